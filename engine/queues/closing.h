/* The end of links, when the node ends in order: each is taken to the tail that it has now, and closed there. (links.h ends the link of a
 * client that leaves.)
 *
 * Invariants
 *   From `limit` on no command is executed: not by this worker, and not by one that is started once more while the node ends.
 *   `closed` of a link in shared memory is written when all below it is executed and durable, bodies at the stores included.
 *   So a client knows of each command whether it was done or never will be, and sends the latter again to the next node.
 * Crash points
 *   killed before `closed` is written: it is started once more, takes up its links, and closes them
 *   killed after it: the next one takes nothing from the link
 *   killed twice, or with all the rest of the node: nothing is closed; its clients do not know, and are told so
 */
#ifndef WR_QUEUES_CLOSING_H
#define WR_QUEUES_CLOSING_H
#include "queues/queue.h"

/* From now on no more is taken than what is submitted. */
void wr_queue_end_links(wr_queue_engine *e);
/* How many commands of these are not executed yet. */
uint64_t wr_queue_behind(const wr_queue_engine *e);
/* After a sync: close the links that are done with, for their clients to see. Returns how many are not. */
uint32_t wr_queue_close_links(wr_queue_engine *e);
#endif
