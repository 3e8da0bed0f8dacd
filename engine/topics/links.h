/* Links of clients (topics/links.c). */
#ifndef WR_TOPIC_LINKS_H
#define WR_TOPIC_LINKS_H
#include "topics/state.h"

/* Where what is taken of a link ends, whose tail is here: where it was closed; of a worker that ends, here. */
static inline uint64_t wr_topic_limit(const wr_topic_server *s, const wr_link *link, uint64_t tail) {
    const uint64_t closed = atomic_load_explicit(&link->closed, memory_order_acquire);
    return closed ? closed - 1 : s->ending ? tail : UINT64_MAX;
}

/* The catalog was read: who waits for a topic goes on, and what is still unknown is refused. */
void wr_topic_catalog_loaded(wr_topic_server *s);

/* Commands of a client below a sequence are in the log: found by the walk. Before it attaches. False: no memory. */
bool wr_topic_mark(wr_topic_server *s, uint64_t client_epoch, uint64_t sequence);
/* 0, EINVAL (region too small), EEXIST, ENOMEM. */
int wr_topic_attach(wr_topic_server *s, uint32_t slot, uint32_t generation, uint64_t client_epoch, void *region, uint64_t bytes);
/* All clients that were there are attached: from now on the links are served under this epoch. */
void wr_topic_serve(wr_topic_server *s, uint64_t epoch);
/* The client is leaving or dead: execute what it has submitted, then let go of it. */
void wr_topic_closing(wr_topic_server *s, uint32_t slot);
bool wr_topic_detach(wr_topic_server *s, uint32_t slot); /* false: not finished */
void wr_topic_evict(wr_topic_server *s, wr_topic_link *l, uint32_t reason);
#endif
