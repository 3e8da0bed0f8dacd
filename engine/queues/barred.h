/* A queue that the supervisor may be about to delete, on a condition: it is barred until that is decided.
 *
 * The supervisor names one queue (superblock.barred). Its worker says what it finds in it, and from then on executes no publish into it
 * and no command that begins a consumer: their links wait. So what it found stays true until the supervisor has deleted
 * the queue, or not, and names it no more. Settling goes on: what returns was never gone.
 *
 * Invariants
 *   `barred_found` is true of the queue when `barred_seen` says so, and nothing comes until the word in the superblock changes,
 *   and the worker has followed the catalog that was told before that.
 *   A worker that is started anew obeys the word before it takes a command.
 * Crash points
 *   the supervisor is killed: its successor clears the word before it answers anybody
 *   the worker is killed: the next one sees the word, and says anew what it finds
 */
#ifndef WR_QUEUES_BARRED_H
#define WR_QUEUES_BARRED_H
#include "queues/queue.h"

/* Each round, before commands: obey what the superblock says now. */
void wr_barred_look(wr_queue_engine *e);

static inline bool wr_is_barred(const wr_queue_engine *e, const wr_queue *q) {
    return e->barred && (uint32_t)e->barred == q->id;
}
#endif
