/* Looking into a queue without taking anything. */
#ifndef WR_QUEUES_BROWSE_H
#define WR_QUEUES_BROWSE_H
#include "queues/queue.h"

/* Ready rows that have not expired, or all and held ones too, from sequence `start` on, into room for `size` of them;
 * returns how many, and where to go on in *next: beyond `start` there may be more, also when none were found. `state`
 * says whether one is held. */
uint64_t wr_queue_browse(wr_queue *q, uint64_t start, wr_delivery *rows, uint64_t size, bool ready_only, uint64_t *next);
#endif
