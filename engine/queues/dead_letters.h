/* The deaths of a round as MOVE frames: one names the spans of many queues, then its rows move.
 *
 * Invariant: every DYING row is in `deaths` once; nothing of a round is answered before its deaths are written
 * (finish_round).
 */
#ifndef WR_QUEUES_DEAD_LETTERS_H
#define WR_QUEUES_DEAD_LETTERS_H
#include "queues/queue.h"

/* 0, EAGAIN: no room in the journal yet; or the log's errno, and memory goes on */
int wr_dead_letters_write(wr_queue_engine *e);
#endif
