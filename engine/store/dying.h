/* How a client ends: dying clients, and those whose link is closed (store/dying.c). */
#ifndef WR_STORE_DYING_H
#define WR_STORE_DYING_H
#include "store/store.h"

/* What a dying client may still do with a message. */
enum { WR_MASK_NONE, WR_MASK_COUNT, WR_MASK_ALL };

int wr_store_dying_mask(const wr_store *store, const wr_store_link *link, const wr_index_entry *entry);
/* What a client may do with a message (entry: NULL if it is unknown). */
static inline int wr_store_mask(const wr_store *store, const wr_store_link *link, const wr_index_entry *entry) {
    return link->dying ? wr_store_dying_mask(store, link, entry) : WR_MASK_NONE;
}
/* Files from this position on stay as they are: a dying client's death point lies in it, and is told by offsets. */
uint64_t wr_store_first_death(const wr_store *store);
/* The client is about to make an end with what is under way to store `number`: its death point is now. Believed when its own word
 * `dying_until` says the same. It masks commands below `until`, so that a message that comes late does nothing. */
void wr_store_server_dying(wr_store_server *server, uint32_t number, uint32_t slot, uint32_t generation, uint64_t until);
/* A client that stays dying would keep files from being collected for ever: it is evicted. One whose commands wait (for the disk, for
 * a worker) is not to blame. */
void wr_store_end_dying(wr_store *store, uint64_t now);
/* Close the link of a client that did what it must not, WR_EVICTED_…: nothing of it is executed any more. */
void wr_store_evict(wr_store *store, uint32_t slot, uint32_t reason);
#endif
