/* The end of a queue in all its parts. */
#ifndef WR_QUEUES_DROP_H
#define WR_QUEUES_DROP_H
#include "queues/queue.h"

/* The queue and all that is in it go; who holds something of it holds nothing any more. */
void wr_queue_drop(wr_queue_engine *e, wr_queue *q);
#endif
