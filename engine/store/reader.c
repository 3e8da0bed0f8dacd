/* Reading from the message store, by any process, without its server (rule S10). What it promises: store/client.h.
 *
 * A message moves from the directory to the index. So: index, directory, index again. While commands of mine are not processed, my own rows
 * come first, so that a client sees what it wrote last (only mine: what others have under way may be undone by what comes before the index
 * shows it). My own ring comes last, because the directory of a restarted server is empty.
 * In memory every copy is re-checked (word, version or generation unchanged); on disk id, length and CRC are.
 * A reader leaves no mark but the hint `slot.reading`, which nobody depends on: nothing to clean when it dies.
 * Nothing in another client's region is trusted: records are copied, then checked; positions are masked.
 */
#define _GNU_SOURCE
#include "store/directory.h"
#include "kernel/data_files.h"
#include "store/index.h"
#include "kernel/racy.h"
#include "store/client.h"
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/uio.h>
#include <unistd.h>

#define READ_TRIES 4
#define META_ON_STACK 512
#define FRAME_ON_STACK 4096 /* a frame that fits is read in one piece: cheaper than four */

/* ---- the directory ---- */

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

/* A message of a batch: its place in the blob. False: it is not in there, or was eliminated. */
static bool find_in_batch(const wr_view *view, const wr_command *command, const uint8_t id[16], wr_store_place *place) {
    uint64_t at = wr_id_counter(id) - wr_id_counter(command->id), head = 8 * command->count;
    if (command->count > WR_BATCH_COUNT_MAX || at >= command->count || memcmp(command->id, id, 8) != 0 || command->length < head ||
        command->body % 8)
        return false;
    const uint8_t *blob = wr_view_blob(view, command->body, command->length);
    if (!blob) return false;
    uint32_t flying = atomic_load_explicit((const _Atomic uint32_t *)blob + at, memory_order_acquire), start = 0, end;
    if (flying != WR_FLYING_WRITTEN && flying != WR_FLYING_TAKEN) return false; /* DONE: the index knows */
    const uint8_t *ends = blob + 4 * command->count;
    if (at) wr_copy_racy(&start, ends + 4 * (at - 1), 4);
    wr_copy_racy(&end, ends + 4 * at, 4);
    if (start > end || end > command->length - head) return false;
    place->owner = view;
    place->position = command->body + head + start;
    place->length = end - start;
    place->meta_length = 0;
    return true;
}

/* Where the body lies that a record names. 0, ENOENT (not this id, eliminated, or nonsense). */
static int find_in_record(wr_store_client *s, const uint8_t id[16], const wr_view *view, const wr_command *record, bool *missing,
                          wr_store_place *place) {
    wr_command command;
    wr_copy_racy(&command, record, sizeof command);
    place->in_file = false;
    place->view = view;
    if (command.op == WR_OP_STORE_WRITE_MANY) return find_in_batch(view, &command, id, place) ? 0 : ENOENT;
    uint32_t flying = atomic_load_explicit(&command.flying, memory_order_relaxed);
    if (command.op != WR_OP_STORE_WRITE || memcmp(command.id, id, 16) != 0 || command.meta_length > command.length ||
        (flying != WR_FLYING_WRITTEN && flying != WR_FLYING_TAKEN))
        return ENOENT;
    place->owner = view;
    if (command.tag) {
        uint32_t slot;
        if (!wr_owner_slot(command.tag, &slot)) return ENOENT;
        if (slot != s->port->slot) {
            place->owner = s->view_of ? s->view_of(s->context, slot, wr_owner_generation(command.tag)) : NULL;
            if (!place->owner) *missing = true;
        } else {
            place->owner = wr_owner_generation(command.tag) == s->port->generation ? &s->port->view : NULL;
        }
        if (!place->owner) return ENOENT;
    }
    if (!wr_view_blob(place->owner, command.body, command.length)) return ENOENT;
    place->position = command.body;
    place->length = command.length;
    place->meta_length = command.meta_length;
    return 0;
}

/* The row is there and the command not passed by `head`: so the record is this one, and its blob was not given back until now. The row
 * alone proves nothing in the directory of a dead server, where nobody deletes rows. */
static bool still_there(const wr_store_client *s, const wr_store_place *place) {
    if (!wr_row_some(place->row)) return true;
    atomic_thread_fence(memory_order_acquire);
    uint64_t head = atomic_load_explicit(&place->view->links[s->server].head, memory_order_acquire);
    return atomic_load_explicit(&s->directory[wr_row_number(place->row)], memory_order_relaxed) == place->word &&
           ((place->word - head) & WR_SEQUENCE_MASK) < place->view->g.ring_records;
}

static bool find_in_bucket(wr_store_client *s, const uint8_t id[16], uint64_t hash, bool own, bool *missing, wr_store_place *place) {
    unsigned shift = own ? WR_SEQUENCE_BITS : 48; /* own rows only: the slot, too */
    uint64_t tag = wr_directory_word(hash, s->port->slot, 0) >> shift;
    uint32_t first = wr_directory_bucket(hash, s->directory_rows);
    for (uint32_t i = 0; i < WR_DIRECTORY_WAYS; i++) {
        /* SYNC directory-row */
        uint64_t word = atomic_load_explicit(&s->directory[first + i], memory_order_acquire);
        if (word >> shift != tag) continue;
        const wr_view *view = view_of_slot(s, wr_directory_slot(word), missing);
        if (!view) continue;
        if (find_in_record(s, id, view, wr_view_command(view, s->server, word & WR_SEQUENCE_MASK), missing, place)) continue;
        place->row = wr_row_of(first + i);
        place->word = word;
        if (still_there(s, place)) return true;
    }
    return false;
}

static int find_in_directory(wr_store_client *s, const uint8_t id[16], bool own, bool *missing, wr_store_place *place) {
    if (find_in_bucket(s, id, wr_id_hash(id), own, missing, place)) return 0;
    uint8_t group[16];
    wr_group_id(id, group);
    return find_in_bucket(s, id, wr_id_hash(group), own, missing, place) ? 0 : ENOENT;
}

/* Does a removal of mine name this id? */
static bool removes(const wr_view *view, const wr_command *record, const uint8_t id[16]) {
    const uint8_t *blob = wr_view_blob(view, record->body, record->length);
    for (uint32_t at = 0; blob && at + 16 <= record->length; at += 16)
        if (memcmp(blob + at, id, 16) == 0) return true;
    return false;
}

bool wr_store_client_removes(const wr_store_client *s, uint64_t from, const uint8_t id[16], uint64_t *sequence) {
    const wr_view *view = &s->port->view;
    uint64_t tail = atomic_load_explicit(&view->links[s->server].tail, memory_order_relaxed);
    if (tail <= from || tail - from > view->g.ring_records) return false;
    for (uint64_t n = tail; n-- > from;) {
        const wr_command *record = wr_view_command(view, s->server, n);
        *sequence = n;
        if (record->op == WR_OP_STORE_REMOVE && removes(view, record, id)) return true;
    }
    return false;
}

/* What I submitted before the present server came up, and it has not taken up yet, has no row in its directory. */
static int find_in_own_ring(wr_store_client *s, const uint8_t id[16], wr_store_place *place) {
    const wr_view *view = &s->port->view;
    const wr_link *link = &view->links[s->server];
    uint64_t tail = atomic_load_explicit(&link->tail, memory_order_relaxed);
    uint64_t from = atomic_load_explicit(&link->head, memory_order_acquire);
    if (s->rows_known && s->rows_from < tail) tail = s->rows_from;
    if (tail <= from || tail - from > view->g.ring_records) return ENOENT;
    bool missing = false;
    place->row = (wr_row_ref){0};
    for (uint64_t n = tail; n-- > from;) {
        const wr_command *record = wr_view_command(view, s->server, n);
        if (record->op == WR_OP_STORE_REMOVE && removes(view, record, id)) return ENOENT;
        if (find_in_record(s, id, view, record, &missing, place) == 0) return 0;
    }
    return ENOENT;
}

/* ---- finding ---- */

static int look_up(wr_store_client *s, const uint8_t id[16], wr_index_entry *entry) {
    if (!s->index_open) {
        int error = wr_index_reader_init(&s->index, s->port->super, s->server);
        if (error) return error;
        s->index_open = true;
    }
    return wr_index_lookup(&s->index, id, entry);
}

/* Another server has taken over since the regions were opened (or the look began): what was not found in them proves nothing. */
static bool taken_over(const wr_store_client *s, uint64_t epoch) {
    uint64_t now = atomic_load_explicit(&wr_superblock_server(s->port->super, s->server)->epoch, memory_order_acquire);
    return now && now != epoch;
}

bool wr_store_client_left_behind(const wr_store_client *s) {
    uint64_t begun = atomic_load_explicit(&wr_superblock_server(s->port->super, s->server)->begun, memory_order_acquire);
    return s->epoch && begun && begun != s->epoch;
}

int wr_store_client_find(wr_store_client *s, const uint8_t id[16], wr_store_place *place) {
    const wr_link *link = &s->port->view.links[s->server];
    uint64_t epoch = s->epoch ? s->epoch
                              : atomic_load_explicit(&wr_superblock_server(s->port->super, s->server)->epoch, memory_order_acquire);
    bool missing = false;
    if (atomic_load_explicit(&link->tail, memory_order_relaxed) != atomic_load_explicit(&link->processed, memory_order_acquire) &&
        find_in_directory(s, id, true, &missing, place) == 0)
        return 0;
    for (int attempt = 0;; attempt++) {
        int error = look_up(s, id, &place->entry);
        if (!error && wr_entry_held(&place->entry)) {
            uint64_t total = place->entry.total_size;
            if (total < WR_FRAME_BYTES_MIN || total > s->file_bytes || place->entry.offset > s->file_bytes - total ||
                place->entry.meta_length > total - WR_FRAME_BYTES_MIN)
                return EBADMSG;
            place->in_file = true;
            place->length = (uint32_t)(total - WR_FRAME_BYTES_MIN);
            place->meta_length = place->entry.meta_length;
            return 0;
        }
        if (error && error != ENOENT) {
            if (find_in_directory(s, id, false, &missing, place) == 0 || find_in_own_ring(s, id, place) == 0) return 0;
            return error == EINVAL ? ESTALE : error;
        }
        if (attempt) break;
        if (find_in_directory(s, id, false, &missing, place) == 0) return 0;
    }
    int error = find_in_own_ring(s, id, place);
    if (error == ENOENT && taken_over(s, epoch)) return ESTALE;
    return error == ENOENT && missing ? ENXIO : error; /* it may be in a region that is not attached here */
}

/* ---- taking ---- */

static int read_parts(int fd, struct iovec *parts, int n, uint64_t at, int flags) {
    while (n) {
        ssize_t done = flags ? preadv2(fd, parts, n, (off_t)at, flags) : preadv(fd, parts, n, (off_t)at);
        if (done < 0 && errno == EINTR) continue;
        if (done < 0) return errno;
        if (done == 0) return EBADMSG;
        at += (uint64_t)done;
        while (n && (uint64_t)done >= parts->iov_len) {
            done -= (ssize_t)parts->iov_len;
            parts++;
            n--;
        }
        if (!n) return 0;
        if (flags) return EAGAIN; /* a part of it is not in memory */
        parts->iov_base = (uint8_t *)parts->iov_base + done;
        parts->iov_len -= (size_t)done;
    }
    return 0;
}

static void close_file(wr_store_client *s, uint32_t at) {
    if (wr_file_some(s->files[at].file)) close(s->files[at].fd);
    s->files[at].file = (wr_file_ref){0};
}

void wr_store_client_purge(wr_store_client *s) {
    uint64_t retired = atomic_load_explicit(&wr_superblock_server(s->port->super, s->server)->retired_n, memory_order_acquire);
    if (retired == s->retired_seen) return;
    s->retired_seen = retired;
    for (uint32_t i = 0; i < WR_STORE_FILES; i++) {
        if (!wr_file_some(s->files[i].file) || !s->summary) continue;
        uint64_t file = wr_file_number(s->files[i].file);
        const wr_summary_row *row = &s->summary[file & (s->summary_rows - 1)];
        if (!wr_file_is((wr_file_ref){atomic_load_explicit(&row->file, memory_order_relaxed)}, file)) close_file(s, i);
    }
}

/* Descriptor and salt of a file. 0, EINPROGRESS (not open, and not to wait), ENOENT, EBADMSG, or an errno of open. */
static int open_file(wr_store_client *s, uint64_t file, bool wait, int *fd, uint64_t *salt) {
    uint32_t at = file & (WR_STORE_FILES - 1);
    if (wr_file_is(s->files[at].file, file)) {
        *fd = s->files[at].fd;
        *salt = s->files[at].salt;
        return 0;
    }
    if (!wait) return EINPROGRESS;
    wr_store_client_purge(s);
    char name[32];
    snprintf(name, sizeof name, "%llu.rdq", (unsigned long long)file);
    int opened = wr_data_open(s->directory_fd, name, O_RDONLY, 0);
    if (opened < 0) return errno;
    uint8_t *page = malloc(WR_FILE_HEADER_BYTES);
    struct iovec all = {page, WR_FILE_HEADER_BYTES};
    int error = page ? read_parts(opened, &all, 1, 0, 0) : ENOMEM;
    if (!error && wr_file_header_check(page, WR_FILE_STORE, s->node_id, s->server, file, salt)) error = EUCLEAN;
    free(page);
    if (error) {
        close(opened);
        return error;
    }
    if (wr_file_some(s->files[at].file)) close(s->files[at].fd);
    s->files[at].file = wr_file_of(file);
    s->files[at].salt = *salt;
    s->files[at].fd = opened;
    *fd = opened;
    return 0;
}

void wr_store_client_move_file(wr_store_client *from, wr_store_client *to, uint64_t file) {
    uint32_t at = file & (WR_STORE_FILES - 1);
    if (!wr_file_is(from->files[at].file, file)) return;
    close_file(to, at);
    to->files[at] = from->files[at];
    from->files[at].file = (wr_file_ref){0};
}

void wr_store_client_close(wr_store_client *s) {
    for (uint32_t i = 0; i < WR_STORE_FILES; i++) close_file(s, i);
    if (s->index_open) wr_index_reader_close(&s->index);
    s->index_open = false;
}

static int disk_answer(wr_store_client *s, const wr_store_place *place, int error, bool wait) {
    if (!wait && (error == EOPNOTSUPP || error == ENOSYS || error == EINVAL)) s->no_nowait = true;
    if (!wait && (error == EAGAIN || s->no_nowait)) return EINPROGRESS;
    if (error == EBADMSG) close_file(s, place->entry.file & (WR_STORE_FILES - 1)); /* it may be a file that was recycled */
    return error;
}

/* The whole frame from the file, its parts straight to where they are wanted; checked like any frame. */
static int take_from_disk(wr_store_client *s, const uint8_t id[16], const wr_store_place *place, void *meta, void *to, bool wait) {
    uint32_t meta_length = place->meta_length, payload = place->length - meta_length;
    int fd = -1;
    uint64_t salt = 0;
    int error = open_file(s, place->entry.file, wait, &fd, &salt);
    if (error) return error;
    if (!wait && s->no_nowait) return EINPROGRESS;
    if (place->entry.total_size <= FRAME_ON_STACK) {
        uint8_t frame[FRAME_ON_STACK];
        wr_frame_head found;
        struct iovec all = {frame, place->entry.total_size};
        error = read_parts(fd, &all, 1, place->entry.offset, wait ? 0 : RWF_NOWAIT);
        if (!error && (wr_frame_check(frame, place->entry.total_size, 0, salt, &found, NULL) != place->entry.total_size ||
                       found.kind != WR_KIND_MESSAGE || memcmp(found.id, id, 16) != 0))
            error = EBADMSG;
        if (!error && meta) memcpy(meta, frame + WR_FRAME_HEAD_BYTES, meta_length);
        if (!error) memcpy(to, frame + WR_FRAME_HEAD_BYTES + meta_length, payload);
        return disk_answer(s, place, error, wait);
    }
    uint8_t head[WR_FRAME_HEAD_BYTES], marker = 0, small[META_ON_STACK];
    uint8_t *skipped = meta || meta_length <= sizeof small ? NULL : malloc(meta_length);
    uint8_t *first = meta ? meta : skipped ? skipped : small;
    if (first == small && meta_length > sizeof small) return ENOMEM;
    struct iovec parts[4] = {{head, sizeof head}, {first, meta_length}, {to, payload}, {&marker, 1}};
    error = read_parts(fd, parts, 4, place->entry.offset, wait ? 0 : RWF_NOWAIT);
    if (!error && (marker != WR_FRAME_MARKER || !wr_frame_check_apart(head, first, meta_length, to, payload, salt) ||
                   head[WR_FRAME_AT_KIND] != WR_KIND_MESSAGE || memcmp(head + WR_FRAME_AT_ID, id, 16) != 0))
        error = EBADMSG;
    free(skipped);
    return disk_answer(s, place, error, wait);
}

/* The image that holds a file; NULL: none. */
static const wr_image *image_of(wr_store_client *s, uint64_t file, const uint8_t **bytes) {
    const wr_image *headers = (const wr_image *)s->images;
    uint32_t n = s->images_n < WR_PAGE_BYTES / sizeof *headers ? s->images_n : WR_PAGE_BYTES / sizeof *headers;
    for (uint32_t i = 0, at = s->image_hint; i < n; i++, at++) {
        if (at >= n) at = 0;
        if (!wr_file_is((wr_file_ref){atomic_load_explicit(&headers[at].file, memory_order_acquire)}, file)) continue;
        s->image_hint = at;
        *bytes = s->images + WR_PAGE_BYTES + at * s->file_bytes;
        return &headers[at];
    }
    return NULL;
}

/* The parts of a message behind each other, to where each is wanted. */
static void copy_parts(const wr_store_place *place, const uint8_t *from, void *meta, void *to) {
    if (meta) wr_copy_racy(meta, from, place->meta_length);
    wr_copy_racy(to, from + place->meta_length, place->length - place->meta_length);
}

static bool take_from_image(wr_store_client *s, const wr_store_place *place, void *meta, void *to) {
    uint64_t file = place->entry.file, offset = (uint64_t)place->entry.offset + WR_FRAME_HEAD_BYTES;
    const uint8_t *from;
    const wr_image *image = image_of(s, file, &from);
    if (!image) return false;
    uint64_t generation = atomic_load_explicit(&image->generation, memory_order_acquire);
    /* SYNC image-appended */
    uint64_t appended = atomic_load_explicit(&image->appended, memory_order_acquire);
    if (appended > s->file_bytes || offset > appended || place->length > appended - offset) return false;
    copy_parts(place, from + offset, meta, to);
    /* SYNC image-reuse */
    atomic_thread_fence(memory_order_acquire);
    return wr_file_is((wr_file_ref){atomic_load_explicit(&image->file, memory_order_relaxed)}, file) &&
           atomic_load_explicit(&image->generation, memory_order_relaxed) == generation;
}

int wr_store_client_take(wr_store_client *s, const uint8_t id[16], const wr_store_place *place, void *meta, void *to, bool wait) {
    if (!place->in_file) {
        const uint8_t *blob = wr_view_blob(place->owner, place->position, place->length);
        if (!blob) return EAGAIN;
        copy_parts(place, blob, meta, to);
        return still_there(s, place) ? 0 : EAGAIN;
    }
    if (take_from_image(s, place, meta, to)) return 0;
    _Atomic uint64_t *reading = &wr_superblock_slot(s->port->super, s->port->slot)->reading;
    uint64_t file = wr_file_of(place->entry.file).plus_one;
    atomic_store_explicit(reading, (uint64_t)s->server << 56 | file, memory_order_relaxed);
    int error = take_from_disk(s, id, place, meta, to, wait);
    atomic_store_explicit(reading, 0, memory_order_relaxed);
    return error;
}

/* ---- both ---- */

void wr_store_client_prefetch(wr_store_client *s, const uint8_t id[16]) {
    if (s->index_open) wr_index_lookup_prefetch(&s->index, id);
}

void wr_store_place_prefetch(wr_store_client *s, const wr_store_place *place) {
    const uint8_t *from;
    if (place->in_file) {
        if (!image_of(s, place->entry.file, &from)) return;
        from += place->entry.offset + WR_FRAME_HEAD_BYTES;
    } else {
        from = wr_view_blob(place->owner, place->position, place->length);
        if (!from) return;
    }
    for (uint32_t at = 0; at < place->length && at < 256; at += 64) __builtin_prefetch(from + at);
}

int wr_store_client_read(wr_store_client *s, const uint8_t id[16], uint8_t **to, uint32_t *length, uint16_t *meta_length) {
    wr_store_place place, before = {.in_file = false};
    int error = EBADMSG;
    for (int attempt = 0; attempt < READ_TRIES; attempt++) {
        if ((error = wr_store_client_find(s, id, &place))) return error == ENXIO ? ESTALE : error;
        uint8_t *bytes = malloc(place.length ? place.length : 1);
        if (!bytes) return ENOMEM;
        error = wr_store_client_take(s, id, &place, bytes, bytes + place.meta_length, true);
        if (!error) {
            *to = bytes;
            *length = place.length;
            *meta_length = place.meta_length;
            return 0;
        }
        free(bytes);
        if (error != EAGAIN && error != ENOENT && error != EBADMSG && error != EUCLEAN) return error;
        /* It went away under us, or its bytes are bad: only the same place twice makes it an error. */
        if (error != EAGAIN && wr_store_same_place(&place, &before)) return wr_store_client_left_behind(s) ? ESTALE : EBADMSG;
        before = place;
    }
    return error == EAGAIN || wr_store_client_left_behind(s) ? ESTALE : EBADMSG;
}
