/* Commands of the store: what one record of a ring does (rules S4, S5, S6, S11). Invariants: store/store.h. */
#include "store/commands.h"
#include "store/append.h"
#include "store/batch.h"
#include "store/dying.h"
#include "store/owner.h"
#include "store/references.h"
#include "store/resync.h"
#include "store/take.h"

#define REMOVE_IDS_MAX 4096
#define AHEAD_COMMANDS 256 /* of one look */

static void drop_row(wr_store *store, uint64_t hash, uint32_t slot, uint64_t sequence, uint32_t hint) {
    uint64_t word = wr_directory_word(hash, slot, sequence);
    wr_directory_remove(store->directory, store->directory_rows, hash, word, (wr_row_ref){hint});
}

static const wr_view *blob_owner(wr_store *store, uint32_t slot, const wr_command *c, bool *known) {
    *known = true;
    if (!c->tag) return &store->server->views[slot];
    if (store->server->holder[slot] < 0) return NULL; /* only queue workers write by reference to others' arenas */
    uint32_t owner;
    if (!wr_owner_slot(c->tag, &owner)) return NULL;
    const wr_store_server *server = store->server;
    *known = server->attached[owner] && server->generation[owner] == wr_owner_generation(c->tag);
    return &server->views[owner];
}

static int write_message(wr_store *store, uint32_t slot, uint64_t sequence, wr_command *record, const wr_command *c,
                         uint32_t *reason) {
    wr_store_server *server = store->server;
    wr_store_link *link = &store->links[slot];
    uint64_t hash = wr_id_hash(c->id);
    *reason = WR_EVICTED_BLOB;
    if (c->length > server->super->shared_bytes_max || c->meta_length > c->length) return WR_STORE_EVICTED;
    uint32_t flying = atomic_load_explicit(&record->flying, memory_order_relaxed);
    if (flying == WR_FLYING_WRITTEN) {
        /* SYNC flying: one of this and the client's WRITTEN -> ELIMINATED wins (store/client.c) */
        atomic_compare_exchange_strong_explicit(&record->flying, &flying, WR_FLYING_TAKEN, memory_order_acq_rel,
                                                memory_order_relaxed);
    }
    if (flying == WR_FLYING_ELIMINATED) {
        store->eliminated_n++;
        drop_row(store, hash, slot, sequence, c->row);
        wr_store_no_effect(store, c->flags);
        return WR_STORE_DONE;
    }
    if (flying != WR_FLYING_WRITTEN && flying != WR_FLYING_TAKEN) {
        *reason = WR_EVICTED_OPERATION;
        return WR_STORE_EVICTED;
    }
    if (wr_store_replayed(link, sequence)) {
        drop_row(store, hash, slot, sequence, c->row);
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
        drop_row(store, hash, slot, sequence, c->row);
        atomic_store_explicit(&record->result, WR_RESULT_ERROR, memory_order_relaxed);
        return WR_STORE_DONE;
    }
    if (outcome != WR_STORE_DONE) return outcome;
    if (masked) atomic_store_explicit(&record->result, WR_RESULT_MASKED, memory_order_relaxed);
    /* The index entry is visible: a reader that misses the directory row finds it there. */
    drop_row(store, hash, slot, sequence, c->row);
    if (masked) wr_store_no_effect(store, c->flags);
    else wr_store_effect(store, link, sequence, c->flags);
    return WR_STORE_DONE;
}

/* The entry whose reference a remove of this client takes away; NULL: none. */
static wr_index_entry *removable(wr_store *store, const wr_store_link *link, const uint8_t id[16], int holder) {
    wr_index_entry *entry = wr_index_find(&store->index, id);
    if (!entry || (holder >= 0 ? !(entry->holders & 1u << holder) : !entry->ref_count)) return NULL;
    return wr_store_mask(store, link, entry) == WR_MASK_ALL ? NULL : entry;
}

static int remove_messages(wr_store *store, uint32_t slot, uint64_t sequence, const wr_command *c, uint32_t *reason) {
    wr_store_server *server = store->server;
    wr_store_link *link = &store->links[slot];
    *reason = WR_EVICTED_BLOB;
    const uint8_t (*ids)[16] = wr_store_copy_ids(store, slot, c, REMOVE_IDS_MAX);
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
        wr_store_pin(store, wr_file_number(store->current), entry->file);
        wr_store_release(store, entry, -1);
        if (done != i) memcpy(server->ids[done], ids[i], 16);
        done++;
    }
    wr_frame_head head = {.kind = WR_KIND_REMOVE, .client_epoch = server->client_epoch[slot], .sequence = sequence + 1, .extra = done};
    uint64_t total = wr_frame_write(to, &head, NULL, 0, server->ids, 16ull * done, store->state->salt);
    wr_store_append(store, total, c->flags & WR_FLAG_SYNCED);
    if (store->list && wr_list_add_removes(store->list, &head, offset, total, (const uint8_t (*)[16])server->ids, done))
        wr_store_spoil_list(store);
    wr_store_effect(store, link, sequence, c->flags);
    return WR_STORE_DONE;
}

bool wr_store_free_ahead(wr_store *store, uint32_t slot, uint64_t at, uint64_t tail) {
    wr_store_link *link = &store->links[slot];
    const int holder = store->server->holder[slot];
    if (holder < 0) return false;
    uint64_t n = link->freed_ahead > at ? link->freed_ahead : at + 1;
    for (uint32_t done = 0; n < tail && done < AHEAD_COMMANDS; n++, done++) {
        const wr_command c = wr_store_copy(wr_view_command(&store->server->views[slot], store->number, n));
        if (c.op != WR_OP_STORE_REMOVE) continue;
        const uint8_t (*ids)[16] = wr_store_copy_ids(store, slot, &c, REMOVE_IDS_MAX);
        for (uint64_t i = 0; ids && i < c.count; i++) { /* what is wrong with it is said in its turn */
            wr_index_entry *entry = removable(store, link, ids[i], holder);
            if (entry) wr_store_release(store, entry, holder);
        }
    }
    link->freed_ahead = n;
    return n < tail;
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
        return wr_store_resync(store, slot, record, &c, reason);
    default:
        *reason = WR_EVICTED_OPERATION;
        return WR_STORE_EVICTED;
    }
    wr_store_no_effect(store, c.flags);
    return WR_STORE_DONE;
}
