/* The engine of a queue worker, made and freed, and the end of a queue in all its parts. */
#ifndef WR_QUEUES_ENGINE_H
#define WR_QUEUES_ENGINE_H
#include "queues/queue.h"

wr_queue_engine *wr_queue_new(const wr_queue_options *options); /* NULL with errno */
void wr_queue_free(wr_queue_engine *e);                         /* after both committers have returned */

/* The queue and all that is in it go; who holds something of it holds nothing any more. */
void wr_queue_drop(wr_queue_engine *e, wr_queue *q);
#endif
