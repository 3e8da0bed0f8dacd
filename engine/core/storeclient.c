/* The message store as its clients see it. What it promises: storeclient.h; the directory's protocol: directory.h.
 *
 * Write (rule S2, S3): blob, record with flying = WRITTEN (F), directory row (C), then the caller submits (S).
 * Remove: a write of mine that is still flying is eliminated by one compare-and-swap against the server's; else a command.
 * Read (rule S10): directory, else index, else once more, because a message moves from the directory to the index.
 *   In memory every copy is re-checked (word or version unchanged); on disk id, length and CRC are.
 *   A reader leaves no mark anywhere: nothing to clean when it dies.
 * Crash points
 *   after F or C, before S: nothing is submitted; the row goes with the sweep of the slot.
 *   after WRITTEN -> ELIMINATED: the write is void, whoever dies next.
 */
#include "storeclient.h"
#include "directory.h"
#include "index.h"
#include "racy.h"
#include <assert.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>

#define READ_TRIES 4

int wr_store_client_write(wr_store_client *s, const uint8_t id[16], uint64_t body, uint32_t length, uint16_t meta_length,
                          uint64_t owner_tag, uint8_t flags, uint64_t *sequence) {
    wr_command *command = wr_port_prepare(s->port, s->server, sequence);
    if (!command) return EAGAIN;
    uint64_t hash = wr_id_hash(id);
    command->op = WR_OP_STORE_WRITE;
    command->flags = flags;
    command->meta_length = meta_length;
    memcpy(command->id, id, 16);
    command->body = body;
    command->length = length;
    command->tag = owner_tag;
    atomic_store_explicit(&command->flying, WR_FLYING_WRITTEN, memory_order_relaxed);
    uint32_t row = wr_directory_insert(s->directory, s->directory_rows, hash, wr_directory_word(hash, s->port->slot, *sequence));
    if (row == WR_NO_ROW) {
        wr_port_abandon(s->port, s->server, *sequence);
        return EAGAIN;
    }
    command->row = row + 1;
    return 0;
}

void wr_store_client_abandon(wr_store_client *s, uint64_t sequence) {
    for (uint64_t n = sequence; n < s->port->prepared[s->server]; n++) {
        wr_command *command = wr_view_command(&s->port->view, s->server, n);
        if (command->op != WR_OP_STORE_WRITE || !command->row) continue;
        /* The one place where a client removes a row: its own, of a record that nobody else was ever shown by `tail`. */
        uint64_t hash = wr_id_hash(command->id);
        wr_directory_remove(s->directory, s->directory_rows, hash, wr_directory_word(hash, s->port->slot, n), command->row);
    }
    wr_port_abandon(s->port, s->server, sequence);
}

/* Void one write of mine that the server has not taken yet. */
static bool eliminate(wr_store_client *s, const uint8_t id[16]) {
    uint64_t hash = wr_id_hash(id);
    uint64_t mine = wr_directory_word(hash, s->port->slot, 0) >> WR_SEQUENCE_BITS;
    const wr_link *link = &s->port->view.links[s->server];
    uint32_t first = wr_directory_bucket(hash, s->directory_rows);
    for (uint32_t i = 0; i < WR_DIRECTORY_WAYS; i++) {
        uint64_t word = atomic_load_explicit(&s->directory[first + i], memory_order_acquire);
        if (word >> WR_SEQUENCE_BITS != mine) continue;
        /* Only what is submitted: the full sequence lies in the ring's window below the tail. */
        uint64_t tail = atomic_load_explicit(&link->tail, memory_order_relaxed);
        uint64_t sequence = (tail & ~WR_SEQUENCE_MASK) | (word & WR_SEQUENCE_MASK);
        if (sequence >= tail || tail - sequence > s->port->view.g.ring_records) continue;
        wr_command *command = wr_view_command(&s->port->view, s->server, sequence);
        if (command->op != WR_OP_STORE_WRITE || memcmp(command->id, id, 16) != 0) continue;
        uint32_t flying = WR_FLYING_WRITTEN;
        /* SYNC flying: one of this and the server's WRITTEN -> TAKEN wins (store.c) */
        if (atomic_compare_exchange_strong_explicit(&command->flying, &flying, WR_FLYING_ELIMINATED, memory_order_acq_rel,
                                                    memory_order_relaxed))
            return true;
    }
    return false;
}

int wr_store_client_remove(wr_store_client *s, const uint8_t (*ids)[16], uint32_t n, uint32_t *eliminated) {
    *eliminated = 0;
    if (n == 0) return 0;
    if (n > 4096) return EINVAL;
    wr_port *port = s->port;
    /* All that can fail comes first: after an elimination there is no way back. */
    uint64_t sequence, position, arena_before = port->arena_next;
    uint8_t *blob;
    wr_command *command = wr_port_prepare(port, s->server, &sequence);
    if (!command) return EAGAIN;
    int error = wr_port_alloc(port, (uint64_t)n * 16, &position, &blob);
    if (error) {
        wr_port_abandon(port, s->server, sequence);
        return error;
    }
    error = wr_port_use(port, s->server, sequence);
    if (error) {
        port->arena_next = arena_before;
        wr_port_abandon(port, s->server, sequence);
        return error;
    }
    uint32_t left = 0;
    for (uint32_t i = 0; i < n; i++) {
        if (eliminate(s, ids[i]))
            ++*eliminated;
        else
            memcpy(blob + 16 * (size_t)left++, ids[i], 16);
    }
    if (!left) {
        wr_port_abandon(port, s->server, sequence);
        return 0;
    }
    command->op = WR_OP_STORE_REMOVE;
    command->body = position;
    command->length = left * 16;
    command->count = left;
    return 0;
}

/* ---- reading ---- */

/* The region of whoever has this slot now; NULL: free, or not attached here yet (*missing). */
static const wr_view *view_of_slot(wr_store_client *s, uint32_t slot, bool *missing) {
    if (slot == s->port->slot) return &s->port->view;
    uint64_t claim = atomic_load_explicit(&wr_superblock_slot(s->port->super, slot)->claim, memory_order_acquire);
    uint32_t state = claim & 0xff;
    if (state == WR_SLOT_FREE || state == WR_SLOT_CLAIMED) return NULL;
    const wr_view *view = s->view_of ? s->view_of(s->context, slot, (uint32_t)(claim >> 8) & 0xffffff) : NULL;
    if (!view) *missing = true;
    return view;
}

/* Copy the body that a directory word names. 0, ENOENT (not this id, eliminated, or gone meanwhile), ENOMEM. */
static int read_record(wr_store_client *s, const uint8_t id[16], const wr_view *view, const wr_command *record,
                       bool *missing, uint8_t **to, uint32_t *length, uint16_t *meta_length) {
    wr_command command;
    wr_copy_racy(&command, record, sizeof command);
    uint32_t flying = atomic_load_explicit(&command.flying, memory_order_relaxed);
    if (command.op != WR_OP_STORE_WRITE || memcmp(command.id, id, 16) != 0 || command.meta_length > command.length ||
        (flying != WR_FLYING_WRITTEN && flying != WR_FLYING_TAKEN))
        return ENOENT;
    const wr_view *owner = view;
    if (command.tag) {
        uint32_t slot = (uint32_t)(command.tag & 0xffff) - 1;
        if (slot >= WR_CLIENT_SLOTS) return ENOENT;
        if (slot != s->port->slot) {
            owner = s->view_of ? s->view_of(s->context, slot, (uint32_t)(command.tag >> 16)) : NULL;
            if (!owner) *missing = true;
        } else {
            owner = command.tag >> 16 == s->port->generation ? &s->port->view : NULL;
        }
        if (!owner) return ENOENT;
    }
    const uint8_t *blob = wr_view_blob(owner, command.body, command.length);
    if (!blob) return ENOENT;
    uint8_t *copy = malloc(command.length ? command.length : 1);
    if (!copy) return ENOMEM;
    wr_copy_racy(copy, blob, command.length);
    *to = copy;
    *length = command.length;
    *meta_length = command.meta_length;
    return 0;
}

static int read_directory(wr_store_client *s, const uint8_t id[16], uint64_t hash, bool *missing, uint8_t **to,
                          uint32_t *length, uint16_t *meta_length) {
    uint64_t tag = wr_directory_word(hash, 0, 0) >> 48;
    uint32_t first = wr_directory_bucket(hash, s->directory_rows);
    for (uint32_t i = 0; i < WR_DIRECTORY_WAYS; i++) {
        /* SYNC directory-row */
        uint64_t word = atomic_load_explicit(&s->directory[first + i], memory_order_acquire);
        if (word >> 48 != tag) continue;
        const wr_view *view = view_of_slot(s, wr_directory_slot(word), missing);
        if (!view) continue;
        const wr_command *record = wr_view_command(view, s->server, word & WR_SEQUENCE_MASK);
        int error = read_record(s, id, view, record, missing, to, length, meta_length);
        if (error == ENOMEM) return error;
        if (error) continue;
        /* The row is there and the command not passed by `head`: so the record was this one, and its blob was not given back
         * while it was copied. The row alone proves nothing in the directory of a dead server, where nobody deletes rows. */
        atomic_thread_fence(memory_order_acquire);
        uint64_t head = atomic_load_explicit(&view->links[s->server].head, memory_order_acquire);
        if (atomic_load_explicit(&s->directory[first + i], memory_order_relaxed) == word &&
            ((word - head) & WR_SEQUENCE_MASK) < view->g.ring_records)
            return 0;
        free(*to);
    }
    return ENOENT;
}

/* What I have submitted and no server has processed has no row when the server died meanwhile and its directory is new. */
static int read_own_ring(wr_store_client *s, const uint8_t id[16], uint8_t **to, uint32_t *length, uint16_t *meta_length) {
    const wr_view *view = &s->port->view;
    const wr_link *link = &view->links[s->server];
    uint64_t tail = atomic_load_explicit(&link->tail, memory_order_relaxed);
    uint64_t from = atomic_load_explicit(&link->head, memory_order_acquire);
    if (tail - from > view->g.ring_records) return ENOENT;
    bool missing = false;
    for (uint64_t n = tail; n-- > from;) {
        const wr_command *record = wr_view_command(view, s->server, n);
        if (record->op == WR_OP_STORE_REMOVE) return ENOENT; /* it may be this id: the server knows */
        if (record->op != WR_OP_STORE_WRITE || memcmp(record->id, id, 16) != 0) continue;
        int error = read_record(s, id, view, record, &missing, to, length, meta_length);
        if (error != ENOENT) return error;
    }
    return ENOENT;
}

void wr_store_client_close(wr_store_client *s) {
    for (uint32_t i = 0; i < WR_STORE_FILES; i++) {
        if (s->files[i].file) close(s->files[i].fd);
        s->files[i].file = 0;
    }
}

static int read_all(int fd, void *to, uint64_t bytes, uint64_t at) {
    for (uint64_t done = 0; done < bytes;) {
        ssize_t n = pread(fd, (uint8_t *)to + done, bytes - done, (off_t)(at + done));
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return errno;
        if (n == 0) return EBADMSG;
        done += (uint64_t)n;
    }
    return 0;
}

/* Descriptor and salt of a file. 0, ENOENT, EBADMSG, or an errno of open. */
static int open_file(wr_store_client *s, uint64_t file, int *fd, uint64_t *salt) {
    for (uint32_t i = 0; i < WR_STORE_FILES; i++) {
        if (s->files[i].file != file + 1) continue;
        *fd = s->files[i].fd;
        *salt = s->files[i].salt;
        return 0;
    }
    char name[32];
    snprintf(name, sizeof name, "%llu.rdq", (unsigned long long)file);
    int opened = openat(s->directory_fd, name, O_RDONLY | O_CLOEXEC);
    if (opened < 0) return errno;
    uint8_t *page = malloc(WR_FILE_HEADER_BYTES);
    int error = page ? read_all(opened, page, WR_FILE_HEADER_BYTES, 0) : ENOMEM;
    if (!error && wr_file_header_check(page, WR_FILE_STORE, s->node_id, s->server, file, salt)) error = EBADMSG;
    free(page);
    if (error) {
        close(opened);
        return error;
    }
    uint32_t at = s->files_next++ % WR_STORE_FILES;
    if (s->files[at].file) close(s->files[at].fd);
    s->files[at].file = file + 1;
    s->files[at].salt = *salt;
    s->files[at].fd = opened;
    *fd = opened;
    return 0;
}

static int read_place(wr_store_client *s, const wr_index_row *row, uint8_t **to, uint32_t *length, uint16_t *meta_length) {
    uint64_t total = row->total_size;
    if (total < WR_FRAME_BYTES_MIN || total > s->file_bytes || row->offset > s->file_bytes - total) return EBADMSG;
    uint8_t *frame = malloc(total);
    if (!frame) return ENOMEM;
    uint64_t bytes = total - WR_FRAME_BYTES_MIN;
    int error = 0;
    if (!wr_image_read(s->images, s->images_n, s->file_bytes, row->file, row->offset + WR_FRAME_HEAD_BYTES, frame, bytes)) {
        int fd = -1;
        uint64_t salt = 0;
        wr_frame_head head;
        error = open_file(s, row->file, &fd, &salt);
        if (!error) error = read_all(fd, frame, total, row->offset);
        if (!error && (wr_frame_check(frame, total, 0, salt, &head, NULL) != total || head.kind != WR_KIND_MESSAGE ||
                       memcmp(head.id, row->id, 16) != 0))
            error = EBADMSG;
        if (!error) memmove(frame, frame + WR_FRAME_HEAD_BYTES, bytes);
    }
    if (error) {
        free(frame);
        return error;
    }
    *to = frame;
    *length = (uint32_t)bytes;
    *meta_length = row->meta_length;
    return 0;
}

int wr_store_client_read(wr_store_client *s, const uint8_t id[16], uint8_t **to, uint32_t *length, uint16_t *meta_length) {
    uint64_t hash = wr_id_hash(id);
    int error = ENOENT;
    wr_index_row before = {0};
    for (int attempt = 0; attempt < READ_TRIES; attempt++) {
        bool missing = false;
        error = read_directory(s, id, hash, &missing, to, length, meta_length);
        if (error != ENOENT) return error;
        wr_index_row row;
        error = wr_index_lookup(s->index, s->index_bytes, hash, id, &row);
        if (error == ESTALE || error == EINVAL) {
            int own = read_own_ring(s, id, to, length, meta_length);
            return own == ENOENT ? ESTALE : own;
        }
        if (error == 0 && wr_row_held(&row)) {
            error = read_place(s, &row, to, length, meta_length);
            if (error != ENOENT && error != EBADMSG) return error;
            /* The file went away under us, or its bytes are bad: only the same place twice makes it an error. */
            bool same = before.file == row.file && before.offset == row.offset && before.total_size == row.total_size;
            if (same && error == EBADMSG) return error;
            before = row;
            error = same ? EBADMSG : EAGAIN;
            continue;
        }
        error = ENOENT;
        if (missing) return ESTALE; /* it may be in a region that is not attached here yet */
        if (attempt) return read_own_ring(s, id, to, length, meta_length);
    }
    return error == EAGAIN ? EBADMSG : error;
}
