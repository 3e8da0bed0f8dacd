/* The engine of a queue worker, made and freed. */
#ifndef WR_QUEUES_ENGINE_H
#define WR_QUEUES_ENGINE_H
#include "queues/queue.h"

wr_queue_engine *wr_queue_new(const wr_queue_options *options); /* NULL with errno */
void wr_queue_free(wr_queue_engine *e);                         /* after both committers have returned */
#endif
