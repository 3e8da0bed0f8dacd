/* The loop that a worker's life consists of. */
#ifndef WR_QUEUES_LOOP_H
#define WR_QUEUES_LOOP_H
#include "queues/queue.h"

/* Serve until something needs Python, or `max_ns` have passed (TIMER). Not until_event: returns when there is
 * nothing to do. */
uint32_t wr_queue_run(wr_queue_engine *e, uint64_t max_ns, bool until_event);
#endif
