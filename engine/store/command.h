/* A command of a link: private copies of what its client wrote, and what it is to the horizons. Invariants: store/store.h. */
#ifndef WR_STORE_COMMAND_H
#define WR_STORE_COMMAND_H
#include "store/store.h"

/* What became of a command. AGAIN: it has more to do, others come first; it is not behind anything. */
enum { WR_STORE_DONE, WR_STORE_STALLED, WR_STORE_EVICTED, WR_STORE_AGAIN };

/* A private copy of a record, but for the words that both sides change by atomics. */
static inline wr_command wr_store_copy(const wr_command *record) {
    wr_command c = {0};
    memcpy((void *)&c, (const void *)record, offsetof(wr_command, flying));
    memcpy((void *)c.id, (const void *)record->id, offsetof(wr_command, result) - offsetof(wr_command, id));
    return c;
}

/* The link as its client sees it. */
static inline wr_link *wr_store_shared_link(const wr_store *store, uint32_t slot) {
    return &store->server->views[slot].links[store->number];
}

/* The command has its frames on disk, wholly, from before the start. */
static inline bool wr_store_replayed(const wr_store_link *link, uint64_t sequence) {
    return link->high_water >= wr_water(sequence + 1, 0);
}

/* The command has an effect on the log, and perhaps somebody waits for it. */
static inline void wr_store_effect(wr_store *store, wr_store_link *link, uint64_t sequence, uint8_t flags) {
    link->effect = sequence + 1;
    store->effects = true;
    if (flags & WR_FLAG_SYNCED) store->want_sync = true;
    if (flags & WR_FLAG_WRITTEN) store->want_written = true;
}

/* The command has no effect of its own (eliminated, masked, a barrier): a durability asked for with it is that of what came before.
 * Asked for in any case: a command behind it in the ring that wants none may have an effect before anybody confirms this one,
 * and would hold it up for ever. */
static inline void wr_store_no_effect(wr_store *store, uint8_t flags) {
    if (flags & WR_FLAG_SYNCED) store->want_sync = true;
    if (flags & WR_FLAG_WRITTEN) store->want_written = true;
}

/* A private copy of a command's ids, so that what is checked is what is used. NULL: not inside the client's arena. */
static inline const uint8_t (*wr_store_copy_ids(wr_store *store, uint32_t slot, const wr_command *c, uint64_t max))[16] {
    if (c->count > max || c->length != c->count * 16) return NULL;
    const uint8_t *blob = wr_view_blob(&store->server->views[slot], c->body, c->length);
    if (!blob) return NULL;
    memcpy(store->server->ids, blob, c->length);
    return (const uint8_t (*)[16])store->server->ids;
}

/* What commands wait for may have come: those that stopped their links are tried again. */
static inline void wr_store_let_stalled_go_on(wr_store *store) {
    for (uint32_t i = 0; i < store->server->active_n; i++) store->links[store->server->active[i]].stalled = false;
}
#endif
