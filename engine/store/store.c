/* Commands of the store: what one record of a ring does (rules S4, S5, S6, S11, S12), and what a dying client may still do.
 * Invariants and crash points: store/store.h. */
#include "store/command.h"
#include <assert.h>

#define IDS_MAX 4096
#define RESYNC_IDS_MAX 32768
#define RESYNC_SLICE 65536 /* entries of the index that a pass looks at in one go: others wait meanwhile */

/* ---- frames ---- */

uint8_t *wr_store_reserve(wr_store *store, uint64_t bytes, uint64_t *offset, bool *too_big) {
    bool rolled = false;
    uint32_t image = store->state->image;
    uint8_t *to = wr_log_reserve(store->log, bytes, offset, &rolled);
    *too_big = !to && errno == EMSGSIZE;
    if (rolled) {
        const wr_image *old = (const wr_image *)store->images + image;
        wr_store_file_current(store, atomic_load_explicit(&old->appended, memory_order_relaxed));
        wr_crash_point(store->server->super, WR_CRASH_ROLL);
    }
    return to;
}

void wr_store_spoil_list(wr_store *store) {
    wr_list_free(store->list);
    store->list = NULL;
}

static void append(wr_store *store, uint64_t bytes, bool synced) {
    wr_log_append(store->log, bytes, synced);
    wr_store_add(&store->current_row->file_size, bytes);
    store->file_bytes_sum += bytes;
    store->written_n++;
}

/* ---- references ---- */

void wr_store_hold(wr_store *store, wr_index_entry *entry, int holder) {
    bool first = !wr_entry_held(entry);
    wr_entry_begin(entry);
    if (holder >= 0) {
        entry->holders |= 1u << holder;
        entry->marks |= 1u << holder;
    } else {
        entry->ref_count++;
    }
    wr_entry_end(entry);
    if (!first) return;
    wr_store_add(&wr_store_file(store, entry->file)->valid_total_size, entry->total_size);
    store->valid_bytes += entry->total_size;
    store->messages++;
}

/* The last reference has gone. */
static void died(wr_store *store, const wr_index_entry *entry) {
    wr_summary_row *file = wr_store_file(store, entry->file);
    uint64_t valid = atomic_load_explicit(&file->valid_total_size, memory_order_relaxed) - entry->total_size;
    atomic_store_explicit(&file->valid_total_size, valid, memory_order_relaxed);
    store->valid_bytes -= entry->total_size;
    store->messages--;
    if (!valid) wr_store_note_empty(store, entry->file);
}

bool wr_store_release(wr_store *store, wr_index_entry *entry, int holder) {
    if (holder >= 0 ? !(entry->holders & 1u << holder) : !entry->ref_count) return false;
    wr_entry_begin(entry);
    if (holder >= 0) {
        entry->holders &= ~(1u << holder);
        entry->marks &= ~(1u << holder);
    } else {
        entry->ref_count--;
    }
    wr_entry_end(entry);
    if (!wr_entry_held(entry)) died(store, entry);
    return true;
}

void wr_store_release_all(wr_store *store, wr_index_entry *entry) {
    if (!wr_entry_held(entry)) return;
    wr_entry_begin(entry);
    entry->ref_count = entry->holders = entry->marks = 0;
    wr_entry_end(entry);
    died(store, entry);
}

/* Which workers hold it is known when all have said so since the start; until then a message that no client holds may be theirs, or
 * nobody's. A worker that has not said yet never waits for itself: its resync stands behind this command. */
static bool provisional(const wr_store *store, const wr_index_entry *entry, int holder) {
    const wr_store_server *server = store->server;
    uint32_t unknown = server->workers_all & ~server->workers_resynced;
    return store->persistent && unknown && !entry->ref_count && (holder < 0 || !(unknown & 1u << holder));
}

/* May a reference come to an entry without one? Never in a file that is locked: who locked it has counted the living. */
static bool may_revive(const wr_store *store, const wr_index_entry *entry) {
    const wr_summary_row *row = wr_store_file(store, entry->file);
    return row && !atomic_load_explicit(&row->locked, memory_order_relaxed);
}

/* ---- dying clients ---- */

/* What a dying client may do with a message (entry: NULL if it is unknown). */
static int mask_of(const wr_store *store, const wr_store_link *link, const wr_index_entry *entry) {
    if (!link->dying) return WR_MASK_NONE;
    if (!entry) return WR_MASK_ALL;
    const wr_summary_row *row = wr_store_file(store, entry->file);
    if (!row) return WR_MASK_ALL;
    /* Offsets say what was first in the file that was current then; a collected file has others. */
    bool behind = row->position_low > link->death_position ||
                  (entry->file == link->death_position && entry->offset >= link->death_offset);
    if (behind) return WR_MASK_ALL;
    return wr_entry_held(entry) ? WR_MASK_NONE : WR_MASK_COUNT;
}

/* ---- commands ---- */

void wr_store_drop_row(wr_store *store, uint64_t hash, uint32_t slot, uint64_t sequence, uint32_t hint) {
    wr_directory_remove(store->directory, store->directory_rows, hash, wr_directory_word(hash, slot, sequence), hint);
}

static const wr_view *blob_owner(wr_store *store, uint32_t slot, const wr_command *c, bool *known) {
    *known = true;
    if (!c->tag) return &store->server->views[slot];
    if (store->server->holder[slot] < 0) return NULL; /* only queue workers write by reference to others' arenas */
    uint32_t owner = (uint32_t)(c->tag & 0xffff) - 1;
    if (owner >= WR_CLIENT_SLOTS) return NULL;
    const wr_store_server *server = store->server;
    *known = server->attached[owner] && server->generation[owner] == c->tag >> 16;
    return &server->views[owner];
}

static int add_reference(wr_store *store, uint32_t slot, uint64_t sequence, const wr_store_message *m, wr_index_entry *entry) {
    bool too_big;
    uint64_t offset;
    uint8_t *to = wr_store_reserve(store, wr_frame_bytes(0), &offset, &too_big);
    if (!to) return WR_STORE_STALLED;
    wr_frame_head head = {.kind = WR_KIND_ADD_REFERENCE,
                          .client_epoch = store->server->client_epoch[slot],
                          .sequence = sequence + 1,
                          .part = m->part};
    memcpy(head.id, m->id, 16);
    uint64_t total = wr_frame_write(to, &head, NULL, 0, NULL, 0, store->state->salt);
    append(store, total, m->flags & WR_FLAG_SYNCED);
    if (store->list && wr_list_add(store->list, &head, offset, total)) wr_store_spoil_list(store);
    wr_store_pin(store, store->current - 1, entry->file);
    wr_store_hold(store, entry, -1);
    return WR_STORE_DONE;
}

static int add_message(wr_store *store, uint32_t slot, uint64_t sequence, const wr_store_message *m, int holder) {
    bool too_big;
    uint64_t offset;
    uint8_t *to = wr_store_reserve(store, wr_frame_bytes(m->length), &offset, &too_big);
    if (!to) return too_big ? WR_STORE_EVICTED : WR_STORE_STALLED;
    wr_index_entry *entry = wr_index_insert(&store->index, m->id);
    if (!entry) return WR_STORE_STALLED;
    wr_frame_head head = {.kind = WR_KIND_MESSAGE,
                          .client_epoch = store->server->client_epoch[slot],
                          .sequence = sequence + 1,
                          .extra = (uint32_t)(holder + 1),
                          .meta_length = m->meta_length,
                          .part = m->part};
    memcpy(head.id, m->id, 16);
    uint64_t total = wr_frame_write(to, &head, NULL, 0, m->body, m->length, store->state->salt);
    append(store, total, m->flags & WR_FLAG_SYNCED);
    if (store->list && wr_list_add(store->list, &head, offset, total)) wr_store_spoil_list(store);
    wr_entry_begin(entry);
    entry->state = 1;
    entry->ref_count = holder < 0;
    entry->holders = entry->marks = holder < 0 ? 0 : 1u << holder;
    entry->file = (uint32_t)(store->current - 1);
    entry->offset = (uint32_t)offset;
    entry->total_size = (uint32_t)total;
    entry->meta_length = m->meta_length;
    wr_entry_end(entry);
    wr_store_add(&store->current_row->valid_total_size, total);
    wr_store_add(&store->current_row->messages, 1);
    store->valid_bytes += total;
    store->messages++;
    return WR_STORE_DONE;
}

int wr_store_take(wr_store *store, uint32_t slot, uint64_t sequence, const wr_store_message *m, bool *masked) {
    int holder = store->server->holder[slot];
    wr_index_entry *entry = wr_index_find(&store->index, m->id);
    int mask = mask_of(store, &store->links[slot], entry);
    *masked = mask == WR_MASK_ALL;
    if (*masked) return WR_STORE_DONE;
    /* Without its body nothing can be compared; ids are made to be unique, so what is there is taken for the same. */
    if (entry && provisional(store, entry, holder) && m->body && !wr_store_same_body(store, entry, m))
        return WR_STORE_STALLED; /* whether the stored one or this one counts is known after the resync */
    if (entry && !wr_entry_held(entry) &&
        (!may_revive(store, entry) || (m->body && !wr_store_same_body(store, entry, m)))) {
        *masked = mask == WR_MASK_COUNT;
        if (*masked) return WR_STORE_DONE;
        wr_store_ghost(store, entry->file);
        wr_index_remove(&store->index, m->id, entry);
        entry = NULL;
    }
    if (!entry) return m->body ? add_message(store, slot, sequence, m, holder) : WR_STORE_EVICTED;
    if (holder < 0 && store->persistent) return add_reference(store, slot, sequence, m, entry);
    wr_store_hold(store, entry, holder);
    return WR_STORE_DONE;
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
        /* SYNC flying: one of this and the client's WRITTEN -> ELIMINATED wins (store/client.c) */
        atomic_compare_exchange_strong_explicit(&record->flying, &flying, WR_FLYING_TAKEN, memory_order_acq_rel,
                                                memory_order_relaxed);
    }
    if (flying == WR_FLYING_ELIMINATED) {
        store->eliminated_n++;
        wr_store_drop_row(store, hash, slot, sequence, c->row);
        wr_store_no_effect(store, c->flags);
        return WR_STORE_DONE;
    }
    if (flying != WR_FLYING_WRITTEN && flying != WR_FLYING_TAKEN) {
        *reason = WR_EVICTED_OPERATION;
        return WR_STORE_EVICTED;
    }
    if (wr_store_replayed(link, sequence)) {
        wr_store_drop_row(store, hash, slot, sequence, c->row);
        return WR_STORE_DONE;
    }
    bool known;
    const wr_view *owner = blob_owner(store, slot, c, &known);
    if (!owner) {
        *reason = WR_EVICTED_OWNER;
        return WR_STORE_EVICTED;
    }
    wr_store_message m = {.id = c->id, .length = c->length, .meta_length = c->meta_length, .flags = c->flags};
    if (known) {
        m.body = wr_view_blob(owner, c->body, c->length);
        if (!m.body) return WR_STORE_EVICTED;
    } else if (server->unserved || atomic_load_explicit(&server->super->slots_version, memory_order_acquire) != server->slots_seen) {
        return WR_STORE_STALLED; /* a client that came a moment ago is attached before long; one that is gone for good is not */
    }
    bool masked;
    int outcome = wr_store_take(store, slot, sequence, &m, &masked);
    if (outcome == WR_STORE_EVICTED && !known) {
        store->lost_n++;
        wr_store_drop_row(store, hash, slot, sequence, c->row);
        atomic_store_explicit(&record->result, WR_RESULT_ERROR, memory_order_relaxed);
        return WR_STORE_DONE;
    }
    if (outcome != WR_STORE_DONE) return outcome;
    if (masked) atomic_store_explicit(&record->result, WR_RESULT_MASKED, memory_order_relaxed);
    /* The index entry is visible: a reader that misses the directory row finds it there. */
    wr_store_drop_row(store, hash, slot, sequence, c->row);
    if (masked) wr_store_no_effect(store, c->flags);
    else wr_store_effect(store, link, sequence, c->flags);
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

/* The entry whose reference a remove of this client takes away; NULL: none. */
static wr_index_entry *removable(wr_store *store, const wr_store_link *link, const uint8_t id[16], int holder) {
    wr_index_entry *entry = wr_index_find(&store->index, id);
    if (!entry || (holder >= 0 ? !(entry->holders & 1u << holder) : !entry->ref_count)) return NULL;
    return mask_of(store, link, entry) == WR_MASK_ALL ? NULL : entry;
}

static int remove_messages(wr_store *store, uint32_t slot, uint64_t sequence, const wr_command *c, uint32_t *reason) {
    wr_store_server *server = store->server;
    wr_store_link *link = &store->links[slot];
    *reason = WR_EVICTED_BLOB;
    const uint8_t (*ids)[16] = copy_ids(store, slot, c, IDS_MAX);
    if (!ids) return WR_STORE_EVICTED;
    int holder = server->holder[slot];
    bool framed = holder < 0 && store->persistent;
    if (framed && wr_store_replayed(link, sequence)) return WR_STORE_DONE;
    for (uint64_t i = 0; i < c->count; i++) wr_index_prefetch(&store->index, ids[i]);
    if (!framed) {
        for (uint64_t i = 0; i < c->count; i++) {
            wr_index_entry *entry = removable(store, link, ids[i], holder);
            if (entry) wr_store_release(store, entry, holder);
        }
        return WR_STORE_DONE;
    }
    bool known = false;
    for (uint64_t i = 0; i < c->count && !known; i++) known = removable(store, link, ids[i], -1) != NULL;
    if (!known) return WR_STORE_DONE; /* nothing to write down, so it need not wait for a file */
    /* Room for all ids and for the padding behind fewer of them; one frame, so that a torn tail has all or none. */
    bool too_big;
    uint64_t offset;
    uint8_t *to = wr_store_reserve(store, wr_frame_bytes(c->length) + WR_FRAME_BYTES_MIN, &offset, &too_big);
    if (!to) return too_big ? WR_STORE_EVICTED : WR_STORE_STALLED;
    uint32_t done = 0;
    for (uint64_t i = 0; i < c->count; i++) {
        wr_index_entry *entry = removable(store, link, ids[i], -1);
        if (!entry) continue;
        wr_store_pin(store, store->current - 1, entry->file);
        wr_store_release(store, entry, -1);
        if (done != i) memcpy(server->ids[done], ids[i], 16);
        done++;
    }
    wr_frame_head head = {.kind = WR_KIND_REMOVE, .client_epoch = server->client_epoch[slot], .sequence = sequence + 1, .extra = done};
    uint64_t total = wr_frame_write(to, &head, NULL, 0, server->ids, 16ull * done, store->state->salt);
    append(store, total, c->flags & WR_FLAG_SYNCED);
    if (store->list && wr_list_add_removes(store->list, &head, offset, total, (const uint8_t (*)[16])server->ids, done))
        wr_store_spoil_list(store);
    wr_store_effect(store, link, sequence, c->flags);
    return WR_STORE_DONE;
}

/* One go of a pass over all entries; false when it has reached the end. A table that was replaced meanwhile begins it anew:
 * what a pass does to an entry may be done twice. */
static bool resync_pass(wr_store *store, wr_store_link *link, uint32_t bits, bool ends) {
    if (link->cursor_of != store->index_count) {
        link->cursor_of = store->index_count;
        link->cursor = (wr_index_cursor){0};
    }
    uint8_t id[16];
    for (uint32_t n = 0; n < RESYNC_SLICE; n++) {
        wr_index_entry *entry = wr_index_next(&store->index, &link->cursor, id);
        if (!entry) {
            link->cursor_of = 0;
            return false;
        }
        if (!ends) {
            if (entry->marks & bits) entry->marks &= ~bits;
            continue;
        }
        /* What a worker holds that this node does not have any more nobody will ever claim. */
        uint32_t gone = (entry->holders & ~store->server->workers_all) | (entry->holders & bits & ~entry->marks);
        for (; gone; gone &= gone - 1) wr_store_release(store, entry, __builtin_ctz(gone));
    }
    return true;
}

/* The end of a worker's resync: it does not hold what it has not marked. A queue may have moved to a worker that has not said yet what
 * it holds, and bodies may be read before: so nothing is released before all have said it, and then for all of them at once. False:
 * not yet through. */
static bool resync_end(wr_store *store, wr_store_link *link, int holder) {
    wr_store_server *server = store->server;
    uint32_t bit = 1u << holder;
    if (!store->persistent || !(server->workers_all & ~(server->workers_resynced | bit))) {
        do {
            if (!link->sweep) link->sweep = store->unswept | bit;
            if (resync_pass(store, link, link->sweep, true)) return false;
            store->unswept &= ~link->sweep;
            link->sweep = 0;
        } while (store->unswept); /* others that came to their end meanwhile */
    } else {
        store->unswept |= bit;
    }
    if (store->persistent) server->workers_resynced |= bit;
    return true;
}

static int resync(wr_store *store, uint32_t slot, wr_command *record, const wr_command *c, uint32_t *reason) {
    wr_store_server *server = store->server;
    wr_store_link *link = &store->links[slot];
    int holder = server->holder[slot];
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
            if (i + 16 < c->count) wr_index_prefetch(&store->index, ids[i + 16]);
            wr_index_entry *entry = wr_index_find(&store->index, ids[i]);
            bool there = entry && (wr_entry_held(entry) || may_revive(store, entry));
            if (there) wr_store_hold(store, entry, holder);
            reply[i] = there;
        }
        view->links[store->number].reply_length = (uint32_t)c->count;
    } else if (c->op == WR_OP_STORE_RESYNC_BEGIN) {
        /* Its marks go: nobody may take what it has not marked for what it does not hold. */
        store->unswept &= ~(1u << holder);
        for (uint32_t i = 0; i < server->active_n; i++) store->links[server->active[i]].sweep &= ~(1u << holder);
        if (resync_pass(store, link, 1u << holder, false)) return WR_STORE_AGAIN;
        link->resyncing = true;
    } else if (link->resyncing) {
        /* Only the end of a resync that began in this incarnation of the server: the marks are its own. */
        if (!resync_end(store, link, holder)) return WR_STORE_AGAIN;
        link->resyncing = false;
        store->empty_check = true;
        wr_store_let_stalled_go_on(store);
    } else {
        result = WR_RESULT_NO;
    }
    atomic_store_explicit(&record->result, result, memory_order_relaxed);
    return WR_STORE_DONE;
}

int wr_store_execute(wr_store *store, uint32_t slot, uint64_t sequence, wr_command *record, uint32_t *reason) {
    wr_command c = wr_store_copy(record);
    wr_store_link *link = &store->links[slot];
    if (link->dying && sequence >= link->death_until) {
        link->dying = false;
        store->empty_check = true;
    }
    switch (c.op) {
    case WR_OP_STORE_WRITE:
        return write_message(store, slot, sequence, record, &c, reason);
    case WR_OP_STORE_WRITE_MANY:
        return wr_store_write_many(store, slot, sequence, record, &c, reason);
    case WR_OP_STORE_REMOVE:
        return remove_messages(store, slot, sequence, &c, reason);
    case WR_OP_STORE_CONTAINS: {
        wr_index_entry *entry = wr_index_find(&store->index, c.id);
        bool held = entry && wr_entry_held(entry);
        atomic_store_explicit(&record->result, held ? WR_RESULT_OK : WR_RESULT_NO, memory_order_relaxed);
        break;
    }
    case WR_OP_STORE_BARRIER:
        atomic_store_explicit(&record->result, WR_RESULT_OK, memory_order_relaxed);
        break;
    case WR_OP_STORE_TERMINATE:
        /* The end, although a later one was announced; also for a server that replays what follows. */
        if (link->dying) atomic_store_explicit(&wr_store_shared_link(store, slot)->death_until, sequence + 1, memory_order_release);
        link->dying = false;
        store->empty_check = true;
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
    wr_store_no_effect(store, c.flags);
    return WR_STORE_DONE;
}
