/* Delivery: ready entries go to the consumers of their queue, in turn, as far as credit, free slots and rings allow. */
#ifndef WR_QUEUES_DELIVERY_H
#define WR_QUEUES_DELIVERY_H
#include "queues/queue.h"

/* Consumers that get something. */
static inline uint32_t wr_serving_n(const wr_queue *q) {
    if (q->former && (q->former->held_n || q->engine->early)) return 0; /* the next one would work beside it */
    return q->policy && q->policy->o.single_active && q->consumers_n ? 1 : q->consumers_n;
}

/* Whether some consumer of the queue would get a message now. */
bool wr_queue_would_deliver(wr_queue_engine *e, wr_queue *q);
bool wr_deliver(wr_queue_engine *e); /* true: something was delivered, or has ended */
/* A READY row has come that ends at once: the deliveries of this round offer it to consumers, and then it is gone. */
void wr_delivery_at_once(wr_queue_engine *e, wr_queue *q, uint64_t sequence, uint64_t published);
#endif
