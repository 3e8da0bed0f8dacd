/* One PUBLISH: the frames and entries of a message in all its queues. */
#ifndef WR_QUEUES_PUBLISH_H
#define WR_QUEUES_PUBLISH_H
#include "queues/command.h"
#include "queues/queue.h"

wr_outcome wr_command_publish(wr_queue_engine *e, wr_qlink *l, const wr_command *c, wr_command *record, uint64_t sequence);
#endif
