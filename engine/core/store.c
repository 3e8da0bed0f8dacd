/* Commands and files of the store: what one record of a ring does (rules S4-S6, S11), and when a file may go.
 * Invariants and crash points: store.h. */
#include "store.h"
#include <assert.h>
#include <stdlib.h>

#define IDS_MAX 4096
#define RESYNC_IDS_MAX 32768

/* ---- files ---- */

wr_summary_row *wr_store_file(const wr_store *store, uint64_t file) {
    wr_summary_row *row = &store->summary[file & (store->summary_rows - 1)];
    return atomic_load_explicit(&row->file, memory_order_relaxed) == file + 1 ? row : NULL;
}

static inline void add64(_Atomic uint64_t *word, uint64_t value) {
    atomic_store_explicit(word, atomic_load_explicit(word, memory_order_relaxed) + value, memory_order_relaxed);
}

int wr_store_note_empty(wr_store *store, uint64_t file) {
    if (store->empty_n == store->empty_size) {
        uint32_t size = store->empty_size ? 2 * store->empty_size : 64;
        uint64_t *bigger = realloc(store->empty, size * sizeof *bigger);
        if (!bigger) return ENOMEM; /* the file is noted again when the store starts next */
        store->empty = bigger;
        store->empty_size = size;
    }
    store->empty[store->empty_n++] = file;
    store->empty_check = true;
    return 0;
}

void wr_store_pin(wr_store *store, uint64_t file, uint64_t target) {
    if (file == target) return;
    wr_summary_row *row = wr_store_file(store, file);
    if (!row) return;
    if (row->pin_low == 0 || target + 1 < row->pin_low) row->pin_low = target + 1;
    if (target + 1 > row->pin_high) row->pin_high = target + 1;
}

static bool pinned(const wr_store *store, const wr_summary_row *row) {
    if (row->pin_low == 0) return false;
    uint64_t self = atomic_load_explicit(&row->file, memory_order_relaxed);
    for (uint64_t file = row->pin_low; file <= row->pin_high; file++)
        if (file != self && wr_store_file(store, file - 1)) return true;
    return false;
}

void wr_store_link_row(wr_store *store, uint32_t at) {
    uint32_t *first = &store->first_row[store->index.rows[at].file & (store->summary_rows - 1)];
    store->index.rows[at].next = *first;
    *first = at + 1;
}

void wr_store_relist(wr_store *store) {
    memset(store->first_row, 0, store->summary_rows * sizeof *store->first_row);
    for (uint64_t i = 0; i < store->index.rows_n; i++) {
        const wr_index_row *row = &store->index.rows[i];
        if (atomic_load_explicit(&row->version, memory_order_relaxed) && row->state == WR_ROW_LIVE)
            wr_store_link_row(store, (uint32_t)i);
    }
}

/* Lock an empty file, drop its rows (all have no reference), and give it to Python to unlink. */
static void let_go(wr_store *store, uint64_t file, wr_summary_row *row) {
    atomic_store_explicit(&row->locked, 1, memory_order_release);
    uint32_t *first = &store->first_row[file & (store->summary_rows - 1)];
    for (uint32_t at = *first; at;) {
        uint32_t next = store->index.rows[at - 1].next;
        if (next) __builtin_prefetch(&store->index.rows[next - 1], 1);
        assert(store->index.rows[at - 1].file == file && !wr_row_held(&store->index.rows[at - 1]));
        wr_index_remove(&store->index, at - 1);
        at = next;
    }
    *first = 0;
    store->gone[store->gone_n++] = file;
}

void wr_store_collect_empty(wr_store *store) {
    if (!store->empty_check) return;
    if (store->persistent && (store->server->workers_resynced & store->server->workers_all) != store->server->workers_all)
        return;
    store->empty_check = false;
    uint32_t kept = 0;
    for (uint32_t i = 0; i < store->empty_n; i++) {
        uint64_t file = store->empty[i];
        wr_summary_row *row = wr_store_file(store, file);
        if (!row || atomic_load_explicit(&row->locked, memory_order_relaxed) ||
            atomic_load_explicit(&row->valid_total_size, memory_order_relaxed) || store->current == file + 1)
            continue; /* no candidate any more; it is noted again when it is one */
        bool room = store->gone_n < store->gone_size;
        if (!room) {
            uint32_t size = store->gone_size ? 2 * store->gone_size : 64;
            uint64_t *bigger = realloc(store->gone, size * sizeof *bigger);
            if (bigger) {
                store->gone = bigger;
                store->gone_size = size;
                room = true;
            }
        }
        if (pinned(store, row) || !room)
            store->empty[kept++] = file;
        else
            let_go(store, file, row);
    }
    store->empty_n = kept;
}

uint64_t wr_store_take_gone(wr_store *store) { return store->gone_n ? store->gone[--store->gone_n] : UINT64_MAX; }

void wr_store_file_gone(wr_store *store, uint64_t file) {
    wr_summary_row *row = wr_store_file(store, file);
    if (!row) return;
    uint64_t left = atomic_load_explicit(&row->left, memory_order_relaxed);
    uint64_t right = atomic_load_explicit(&row->right, memory_order_relaxed);
    if (left)
        atomic_store_explicit(&wr_store_file(store, left - 1)->right, right, memory_order_relaxed);
    else
        store->first_file = right;
    if (right)
        atomic_store_explicit(&wr_store_file(store, right - 1)->left, left, memory_order_relaxed);
    else
        store->last_file = left;
    store->files--;
    store->file_bytes_sum -= atomic_load_explicit(&row->file_size, memory_order_relaxed);
    atomic_store_explicit(&row->file, 0, memory_order_release);
    memset((uint8_t *)row + 8, 0, sizeof *row - 8);
    store->empty_check = store->empty_n > 0; /* it may have pinned others */
}

int wr_store_add_file(wr_store *store, uint64_t file, uint64_t bytes) {
    wr_summary_row *row = &store->summary[file & (store->summary_rows - 1)];
    if (atomic_load_explicit(&row->file, memory_order_relaxed)) return EBUSY;
    memset((uint8_t *)row + 8, 0, sizeof *row - 8);
    atomic_store_explicit(&row->file_size, bytes, memory_order_relaxed);
    atomic_store_explicit(&row->left, store->last_file, memory_order_relaxed);
    if (store->last_file)
        atomic_store_explicit(&wr_store_file(store, store->last_file - 1)->right, file + 1, memory_order_relaxed);
    else
        store->first_file = file + 1;
    store->last_file = file + 1;
    atomic_store_explicit(&row->file, file + 1, memory_order_release);
    store->files++;
    store->file_bytes_sum += bytes;
    return 0;
}

/* A file has become current: it is the log's. */
static void file_current(wr_store *store) {
    const wr_log_state *state = store->state;
    if (store->current == state->file + 1) return;
    uint64_t old = store->current;
    /* The row was seen to be free when the file was offered, and only add_file takes rows. */
    int error = wr_store_add_file(store, state->file, WR_FILE_HEADER_BYTES);
    assert(error == 0);
    (void)error;
    store->current = state->file + 1;
    store->file_asked = false;
    atomic_store_explicit(&wr_store_file(store, state->file)->image, state->image + 1, memory_order_relaxed);
    for (uint64_t file = store->first_file; file;) {
        wr_summary_row *row = wr_store_file(store, file - 1);
        if (file != store->current && atomic_load_explicit(&row->image, memory_order_relaxed) == state->image + 1)
            atomic_store_explicit(&row->image, 0, memory_order_relaxed);
        file = atomic_load_explicit(&row->right, memory_order_relaxed);
    }
    if (old) {
        wr_summary_row *row = wr_store_file(store, old - 1);
        if (row && !atomic_load_explicit(&row->valid_total_size, memory_order_relaxed)) wr_store_note_empty(store, old - 1);
    }
}

int wr_store_offer(wr_store *store, int fd, uint64_t file, uint64_t salt, const uint8_t *header) {
    if (atomic_load_explicit(&store->summary[file & (store->summary_rows - 1)].file, memory_order_relaxed)) return EBUSY;
    int error = wr_log_offer(store->log, fd, file, salt, header);
    if (error) return error;
    store->file_asked = false;
    if (store->state->has_file) file_current(store);
    for (uint32_t i = 0; i < WR_CLIENT_SLOTS; i++) store->links[i].stalled = false;
    return 0;
}

/* ---- frames ---- */

/* Room for a frame of at most `bytes`; NULL: the command must wait (or the log failed). */
static uint8_t *reserve(wr_store *store, uint64_t bytes, uint64_t *offset, bool *too_big) {
    bool rolled = false;
    uint8_t *to = wr_log_reserve(store->log, bytes, offset, &rolled);
    *too_big = !to && errno == EMSGSIZE;
    if (rolled) file_current(store);
    return to;
}

static void append(wr_store *store, uint64_t bytes, bool synced) {
    wr_log_append(store->log, bytes, synced);
    wr_summary_row *row = wr_store_file(store, store->current - 1);
    add64(&row->file_size, bytes);
    store->file_bytes_sum += bytes;
    store->written_n++;
}

/* ---- references ---- */

static void hold(wr_store *store, wr_index_row *row, int holder) {
    bool first = !wr_row_held(row);
    wr_row_begin(row);
    if (holder >= 0) {
        row->holders |= 1u << holder;
        row->marks |= 1u << holder;
    } else {
        row->ref_count++;
    }
    wr_row_end(row);
    if (!first) return;
    add64(&wr_store_file(store, row->file)->valid_total_size, row->total_size);
    store->valid_bytes += row->total_size;
    store->messages++;
}

/* Returns false when there was no such reference. */
static bool release(wr_store *store, wr_index_row *row, int holder) {
    if (holder >= 0 ? !(row->holders & 1u << holder) : !row->ref_count) return false;
    wr_row_begin(row);
    if (holder >= 0) {
        row->holders &= ~(1u << holder);
        row->marks &= ~(1u << holder);
    } else {
        row->ref_count--;
    }
    wr_row_end(row);
    if (wr_row_held(row)) return true;
    wr_summary_row *file = wr_store_file(store, row->file);
    uint64_t valid = atomic_load_explicit(&file->valid_total_size, memory_order_relaxed) - row->total_size;
    atomic_store_explicit(&file->valid_total_size, valid, memory_order_relaxed);
    store->valid_bytes -= row->total_size;
    store->messages--;
    if (!valid && store->current != row->file + 1ull) wr_store_note_empty(store, row->file);
    return true;
}

/* ---- commands ---- */

static inline void effect(wr_store *store, wr_store_link *link, uint64_t sequence, uint8_t flags) {
    link->effect = sequence + 1;
    store->effects = true;
    if (flags & WR_FLAG_SYNCED) store->want_sync = true;
    if (flags & WR_FLAG_WRITTEN) store->want_written = true;
}

static void drop_directory_row(wr_store *store, uint64_t hash, uint32_t slot, uint64_t sequence, uint32_t hint) {
    wr_directory_remove(store->directory, store->directory_rows, hash, wr_directory_word(hash, slot, sequence), hint);
}

static const wr_view *blob_owner(wr_store *store, uint32_t slot, const wr_command *c, bool *known) {
    *known = true;
    if (!c->tag) return &store->server->views[slot];
    uint32_t owner = (uint32_t)(c->tag & 0xffff) - 1;
    if (owner >= WR_CLIENT_SLOTS) return NULL;
    const wr_store_server *server = store->server;
    *known = server->attached[owner] && server->generation[owner] == c->tag >> 16;
    return &server->views[owner];
}

static int write_message(wr_store *store, uint32_t slot, uint64_t sequence, wr_command *record, const wr_command *c,
                         uint32_t *reason) {
    wr_store_server *server = store->server;
    wr_store_link *link = &store->links[slot];
    uint64_t hash = wr_id_hash(c->id);
    *reason = WR_EVICTED_BLOB;
    if (c->length > server->super->message_bytes_max || c->meta_length > c->length) return WR_STORE_EVICTED;
    uint32_t flying = atomic_load_explicit(&record->flying, memory_order_relaxed);
    if (flying == WR_FLYING_WRITTEN) {
        /* SYNC flying: one of this and the client's WRITTEN -> ELIMINATED wins (storeclient.c) */
        atomic_compare_exchange_strong_explicit(&record->flying, &flying, WR_FLYING_TAKEN, memory_order_acq_rel,
                                                memory_order_relaxed);
    }
    if (flying == WR_FLYING_ELIMINATED) {
        store->eliminated_n++;
        drop_directory_row(store, hash, slot, sequence, c->row);
        return WR_STORE_DONE;
    }
    if (flying != WR_FLYING_WRITTEN && flying != WR_FLYING_TAKEN) {
        *reason = WR_EVICTED_OPERATION;
        return WR_STORE_EVICTED;
    }
    if (sequence < link->high_water) { /* replay: its frame is on disk */
        drop_directory_row(store, hash, slot, sequence, c->row);
        return WR_STORE_DONE;
    }
    int holder = server->holder[slot];
    bool too_big;
    uint64_t offset;
    uint32_t at = wr_index_find(&store->index, hash, c->id);
    if (at != WR_NO_ROW && (holder >= 0 || !store->persistent)) {
        hold(store, &store->index.rows[at], holder);
    } else if (at != WR_NO_ROW) {
        uint8_t *to = reserve(store, wr_frame_bytes(0), &offset, &too_big);
        if (!to) return WR_STORE_STALLED;
        wr_frame_head head = {.kind = WR_KIND_ADD_REFERENCE, .client_epoch = server->client_epoch[slot], .sequence = sequence + 1};
        memcpy(head.id, c->id, 16);
        uint64_t total = wr_frame_write(to, &head, NULL, 0, NULL, 0, store->state->salt);
        append(store, total, c->flags & WR_FLAG_SYNCED);
        wr_store_pin(store, store->current - 1, store->index.rows[at].file);
        hold(store, &store->index.rows[at], holder);
    } else {
        bool known;
        const wr_view *owner = blob_owner(store, slot, c, &known);
        if (!owner) {
            *reason = WR_EVICTED_OWNER;
            return WR_STORE_EVICTED;
        }
        if (!known) {
            /* A client that came a moment ago is attached before long; one that is gone for good is not. */
            if (atomic_load_explicit(&server->super->slots_version, memory_order_acquire) != server->slots_seen)
                return WR_STORE_STALLED;
            store->lost_n++;
            drop_directory_row(store, hash, slot, sequence, c->row);
            atomic_store_explicit(&record->result, WR_RESULT_ERROR, memory_order_relaxed);
            return WR_STORE_DONE;
        }
        const uint8_t *blob = wr_view_blob(owner, c->body, c->length);
        if (!blob) return WR_STORE_EVICTED;
        uint8_t *to = reserve(store, wr_frame_bytes(c->length), &offset, &too_big);
        if (!to) return too_big ? WR_STORE_EVICTED : WR_STORE_STALLED;
        at = wr_index_insert(&store->index, hash);
        if (at == WR_NO_ROW) return WR_STORE_STALLED;
        wr_frame_head head = {.kind = WR_KIND_MESSAGE,
                              .client_epoch = server->client_epoch[slot],
                              .sequence = sequence + 1,
                              .extra = (uint32_t)(holder + 1),
                              .meta_length = c->meta_length};
        memcpy(head.id, c->id, 16);
        uint64_t total = wr_frame_write(to, &head, NULL, 0, blob, c->length, store->state->salt);
        append(store, total, c->flags & WR_FLAG_SYNCED);
        wr_index_row *row = &store->index.rows[at];
        wr_row_begin(row);
        row->state = WR_ROW_LIVE;
        memcpy(row->id, c->id, 16);
        row->ref_count = 0;
        row->holders = row->marks = 0;
        row->file = (uint32_t)(store->current - 1);
        row->offset = (uint32_t)offset;
        row->total_size = (uint32_t)total;
        row->meta_length = c->meta_length;
        row->pending = 0;
        wr_row_end(row);
        wr_store_link_row(store, at);
        hold(store, row, holder);
    }
    /* The index row is visible: a reader that misses the directory row finds it there. */
    drop_directory_row(store, hash, slot, sequence, c->row);
    effect(store, link, sequence, c->flags);
    return WR_STORE_DONE;
}

/* A private copy of a command's ids, so that what is checked is what is used. NULL: not inside the client's arena. */
static const uint8_t (*copy_ids(wr_store *store, uint32_t slot, const wr_command *c, uint64_t max))[16] {
    if (c->count > max || c->length != c->count * 16) return NULL;
    const uint8_t *blob = wr_view_blob(&store->server->views[slot], c->body, c->length);
    if (!blob) return NULL;
    memcpy(store->server->ids, blob, c->length);
    return (const uint8_t (*)[16])store->server->ids;
}

static int remove_messages(wr_store *store, uint32_t slot, uint64_t sequence, const wr_command *c, uint32_t *reason) {
    wr_store_server *server = store->server;
    wr_store_link *link = &store->links[slot];
    *reason = WR_EVICTED_BLOB;
    const uint8_t (*ids)[16] = copy_ids(store, slot, c, IDS_MAX);
    if (!ids) return WR_STORE_EVICTED;
    int holder = server->holder[slot];
    bool framed = holder < 0 && store->persistent;
    if (framed && sequence < link->high_water) return WR_STORE_DONE;
    for (uint64_t i = 0; i < c->count; i++) wr_index_prefetch(&store->index, wr_id_hash(ids[i]));
    if (!framed) {
        for (uint64_t i = 0; i < c->count; i++) {
            uint32_t at = wr_index_find(&store->index, wr_id_hash(ids[i]), ids[i]);
            if (at != WR_NO_ROW) release(store, &store->index.rows[at], holder);
        }
        return WR_STORE_DONE;
    }
    uint32_t known = 0;
    for (uint64_t i = 0; i < c->count && !known; i++) {
        uint32_t at = wr_index_find(&store->index, wr_id_hash(ids[i]), ids[i]);
        known = at != WR_NO_ROW && store->index.rows[at].ref_count;
    }
    if (!known) return WR_STORE_DONE; /* nothing to write down, so it need not wait for a file */
    /* Room for all ids and for the padding behind fewer of them; one frame, so that a torn tail has all or none. */
    bool too_big;
    uint64_t offset;
    uint8_t *to = reserve(store, wr_frame_bytes(c->length) + WR_FRAME_BYTES_MIN, &offset, &too_big);
    if (!to) return too_big ? WR_STORE_EVICTED : WR_STORE_STALLED;
    uint32_t done = 0;
    for (uint64_t i = 0; i < c->count; i++) {
        uint32_t at = wr_index_find(&store->index, wr_id_hash(ids[i]), ids[i]);
        if (at == WR_NO_ROW) continue;
        uint64_t file = store->index.rows[at].file;
        if (!release(store, &store->index.rows[at], -1)) continue;
        wr_store_pin(store, store->current - 1, file);
        if (done != i) memcpy(server->ids[done], ids[i], 16);
        done++;
    }
    wr_frame_head head = {.kind = WR_KIND_REMOVE, .client_epoch = server->client_epoch[slot], .sequence = sequence + 1, .extra = done};
    uint64_t total = wr_frame_write(to, &head, NULL, 0, server->ids, 16ull * done, store->state->salt);
    append(store, total, c->flags & WR_FLAG_SYNCED);
    effect(store, link, sequence, c->flags);
    return WR_STORE_DONE;
}

static int resync(wr_store *store, uint32_t slot, wr_command *record, const wr_command *c, uint32_t *reason) {
    wr_store_server *server = store->server;
    wr_store_link *link = &store->links[slot];
    int holder = server->holder[slot];
    uint32_t bit = 1u << (holder & 31);
    wr_index *index = &store->index;
    *reason = WR_EVICTED_OPERATION;
    if (holder < 0) return WR_STORE_EVICTED;
    uint32_t result = WR_RESULT_OK;
    if (c->op == WR_OP_STORE_RESYNC_IDS) {
        *reason = WR_EVICTED_BLOB;
        uint64_t max = server->super->reply_bytes < RESYNC_IDS_MAX ? server->super->reply_bytes : RESYNC_IDS_MAX;
        const uint8_t (*ids)[16] = copy_ids(store, slot, c, max);
        if (!ids) return WR_STORE_EVICTED;
        wr_view *view = &server->views[slot];
        uint8_t *reply = wr_view_reply(view, store->number);
        for (uint64_t i = 0; i < c->count; i++) {
            uint32_t at = wr_index_find(index, wr_id_hash(ids[i]), ids[i]);
            if (at != WR_NO_ROW) hold(store, &index->rows[at], holder);
            reply[i] = at != WR_NO_ROW;
        }
        view->links[store->number].reply_length = (uint32_t)c->count;
    } else if (c->op == WR_OP_STORE_RESYNC_BEGIN) {
        link->resyncing = true;
        for (uint64_t i = 0; i < index->rows_n; i++) index->rows[i].marks &= ~bit;
    } else if (link->resyncing) {
        /* Only the end of a resync that began in this incarnation of the server: the marks are its own. */
        link->resyncing = false;
        for (uint64_t i = 0; i < index->rows_n; i++) {
            wr_index_row *row = &index->rows[i];
            if (row->state == WR_ROW_LIVE && row->holders & bit && !(row->marks & bit)) release(store, row, holder);
        }
        if (store->persistent) server->workers_resynced |= bit;
        store->empty_check = true;
    } else {
        result = WR_RESULT_NO;
    }
    atomic_store_explicit(&record->result, result, memory_order_relaxed);
    return WR_STORE_DONE;
}

int wr_store_execute(wr_store *store, uint32_t slot, uint64_t sequence, wr_command *record, uint32_t *reason) {
    wr_command c = wr_store_copy(record);
    wr_store_link *link = &store->links[slot];
    switch (c.op) {
    case WR_OP_STORE_WRITE:
        return write_message(store, slot, sequence, record, &c, reason);
    case WR_OP_STORE_REMOVE:
        return remove_messages(store, slot, sequence, &c, reason);
    case WR_OP_STORE_CONTAINS: {
        uint32_t at = wr_index_find(&store->index, wr_id_hash(c.id), c.id);
        bool held = at != WR_NO_ROW && wr_row_held(&store->index.rows[at]);
        atomic_store_explicit(&record->result, held ? WR_RESULT_OK : WR_RESULT_NO, memory_order_relaxed);
        break;
    }
    case WR_OP_STORE_BARRIER:
        atomic_store_explicit(&record->result, WR_RESULT_OK, memory_order_relaxed);
        break;
    case WR_OP_STORE_RESYNC_BEGIN:
    case WR_OP_STORE_RESYNC_IDS:
    case WR_OP_STORE_RESYNC_END:
        return resync(store, slot, record, &c, reason);
    default:
        *reason = WR_EVICTED_OPERATION;
        return WR_STORE_EVICTED;
    }
    /* No effect of its own; a durability asked for here is that of what came before. */
    if (c.flags & WR_FLAG_SYNCED && link->effect > link->posted_sync) store->want_sync = true;
    if (c.flags & WR_FLAG_WRITTEN && link->effect > link->posted) store->want_written = true;
    return WR_STORE_DONE;
}
