/* Links of clients: take-up, what they wait for, and their end.
 *
 * Take-up after a restart: commands below takeup_tail were submitted to a worker that is dead. Those that wrote
 * frames (sequence < high) are skipped, but for the store's copy of a body, which is sent again while the publisher
 * still keeps it. Of the others those below takeup_processed had their whole effect (frames salvaged, slots written)
 * and are not executed again: a second NACK, or a second "all up to", would hit deliveries made after it. Those above
 * are executed: what of them had happened is not held any more. A link that was closed stays so (queues/closing.h).
 */
#ifndef WR_QUEUES_LINKS_H
#define WR_QUEUES_LINKS_H
#include "queues/queue.h"

static inline wr_link *wr_link_shared(const wr_queue_engine *e, const wr_qlink *l) { return &l->view.links[e->o.server]; }

/* Where what is taken of a link ends, whose tail is here: where it was closed; of a worker that ends, here. */
static inline uint64_t wr_link_limit(const wr_queue_engine *e, const wr_link *link, uint64_t tail) {
    const uint64_t closed = atomic_load_explicit(&link->closed, memory_order_acquire);
    return closed ? closed - 1 : e->ending ? tail : UINT64_MAX;
}

/* The client wrote nonsense: it loses its link, and nobody else anything. WR_EVICTED_… */
void wr_link_evict(wr_queue_engine *e, wr_qlink *l, uint32_t reason);
void wr_link_free(wr_qlink *l);
int wr_queue_attach(wr_queue_engine *e, uint32_t slot, uint32_t generation, uint64_t client_epoch, void *region,
                    uint64_t bytes);

/* All clients that were there are attached: from now on the links are served under this epoch. */
void wr_queue_begin(wr_queue_engine *e, uint64_t epoch);

/* The catalog was read: who waits for a queue id goes on, and what is still unknown is dropped. */
void wr_queue_catalog_loaded(wr_queue_engine *e, uint64_t version);
void wr_queue_closing(wr_queue_engine *e, uint32_t slot);
bool wr_queue_detach(wr_queue_engine *e, uint32_t slot); /* false: not finished */

/* True when all is executed and returned and nobody refers to the link any more. */
bool wr_link_sweep(wr_queue_engine *e, wr_qlink *l);

/* The answer of a CONTROL lies in the reply area; `durable`: not before what was journalled for it is synced. */
void wr_queue_control_answer(wr_queue_engine *e, wr_qlink *l, uint32_t result, uint32_t length, bool durable);

/* False: the link waits, its next command is not looked at. */
bool wr_link_resume(wr_queue_engine *e, wr_qlink *l);
#endif
