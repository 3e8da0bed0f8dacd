/* What each command of a link does: acks, credit, cancel, locate; publishing has a room of its own
 * (queues/publish.c). */
#ifndef WR_QUEUES_COMMANDS_H
#define WR_QUEUES_COMMANDS_H
#include "queues/command.h"
#include "queues/queue.h"

/* WR_WAIT: it is looked at again in the next round, or the link is closed. */
wr_outcome wr_command_execute(wr_queue_engine *e, wr_qlink *l, const wr_command *c, wr_command *record, uint64_t sequence);
#endif
