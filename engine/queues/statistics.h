/* Statistics of queues: where their messages are, and the shared rows that show it. */
#ifndef WR_QUEUES_STATISTICS_H
#define WR_QUEUES_STATISTICS_H
#include "queues/queue.h"

/* alpha: body in an image; beta: row in memory alone; gamma: row in memory and in a segment; delta: row on disk
 * only. */
void wr_queue_states(const wr_queue *q, uint64_t *alpha, uint64_t *beta, uint64_t *gamma, uint64_t *delta);

/* The rows of the dirty queues. */
void wr_queue_stats_write(wr_queue_engine *e);
/* Of the changed ones, in rows that are theirs already, what counts messages: before a client hears of the change. */
void wr_queue_stats_count(wr_queue_engine *e);
#endif
