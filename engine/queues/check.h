/* The invariants of a queue, asserted row by row: for tests. */
#ifndef WR_QUEUES_CHECK_H
#define WR_QUEUES_CHECK_H
#include "queues/queue.h"

void wr_queue_check(const wr_queue_engine *e, const wr_queue *q);
#endif
