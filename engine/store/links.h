/* Links of clients (store/links.c). */
#ifndef WR_STORE_LINKS_H
#define WR_STORE_LINKS_H
#include "store/command.h"

/* Take up a client's links at their heads. `starting`: no client knows the new directory yet, so rows are put back for
 * what is under way. 0, EINVAL (region too small), EEXIST. */
int wr_store_server_attach(wr_store_server *server, uint32_t slot, uint32_t generation, uint64_t client_epoch, void *region,
                           uint64_t bytes, int holder, uint64_t epochs[2], bool starting);
/* The server is about to stop: nothing is executed any more but what was submitted until now. */
void wr_store_server_freeze(wr_store_server *server);
/* The client is leaving or dead: execute what it has submitted, then clean up and write server_done. */
void wr_store_server_close(wr_store_server *server, uint32_t slot);
/* Forget the region. EBUSY: not finished, or the committer still holds a horizon of it. */
int wr_store_server_detach(wr_store_server *server, uint32_t slot);
/* A closing slot: when nothing of it is left, say so. */
void wr_store_finish_slot(wr_store_server *server, uint32_t slot);

/* Commands below it are executed. */
static inline uint64_t wr_store_tail(const wr_store *store, uint32_t slot) {
    const wr_store_server *server = store->server;
    const wr_store_link *link = &store->links[slot];
    uint64_t tail = server->closing[slot] ? link->end : atomic_load_explicit(&wr_store_shared_link(store, slot)->tail, memory_order_acquire);
    /* The next server executes the rest: what were executed after the last sync would be in the list of the file, and not in the file. */
    return server->frozen && tail - link->processed > link->limit - link->processed ? link->limit : tail;
}
/* The server is announced, readers look into its index: what is on disk of a link's batches is found there (design note 003, section 12, 6). */
void wr_store_take_up(wr_store *store, uint32_t slot, uint64_t tail);
/* Does a dead incarnation of the same queue worker still have commands to be executed? Then its successor waits: a late
 * RESYNC or STORE_WRITE of the old one would undo what the new one does (docs/design/002-model.md, 3). */
bool wr_store_predecessor_unfinished(const wr_store_server *server, uint32_t slot);
#endif
