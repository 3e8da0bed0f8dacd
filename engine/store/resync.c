/* Resync: after a start of the store each worker says what it holds, and loses what it does not name. Invariants: store/store.h. */
#include "store/resync.h"
#include "store/references.h"

#define RESYNC_SLICE 65536 /* entries of the index that a pass looks at in one go: others wait meanwhile */

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

int wr_store_resync(wr_store *store, uint32_t slot, wr_command *record, const wr_command *c, uint32_t *reason) {
    wr_store_server *server = store->server;
    wr_store_link *link = &store->links[slot];
    int holder = server->holder[slot];
    *reason = WR_EVICTED_OPERATION;
    if (holder < 0) return WR_STORE_EVICTED;
    uint32_t result = WR_RESULT_OK;
    if (c->op == WR_OP_STORE_RESYNC_IDS) {
        *reason = WR_EVICTED_BLOB;
        uint64_t max = server->super->reply_bytes < WR_STORE_IDS_MAX ? server->super->reply_bytes : WR_STORE_IDS_MAX;
        const uint8_t (*ids)[16] = wr_store_copy_ids(store, slot, c, max);
        if (!ids) return WR_STORE_EVICTED;
        wr_view *view = &server->views[slot];
        uint8_t *reply = wr_view_reply(view, store->number);
        for (uint64_t i = 0; i < c->count; i++) {
            if (i + 16 < c->count) wr_index_prefetch(&store->index, ids[i + 16]);
            wr_index_entry *entry = wr_index_find(&store->index, ids[i]);
            bool there = entry && (wr_entry_held(entry) || wr_store_may_revive(store, entry));
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
