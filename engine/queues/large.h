/* Messages in files of their own (kernel/large.h), as their worker counts them: each id that a living entry has is held, and its file is
 * removed when the last entry has gone and what says so is durable. The files themselves are the business of
 * engine/queues/large_files.py.
 *
 * Invariant: `held` counts the entries of an id, durable and transient ones together; `gone` has those that had some, and whose file was
 * not handed to be removed yet.
 * Crash points: a worker that is killed before a file is removed leaves it to the next one, which finds nobody who holds it. */
#ifndef WR_QUEUES_LARGE_H
#define WR_QUEUES_LARGE_H
#include "queues/queue.h"

/* Entries more. Returns 0, ENOMEM; never ENOMEM after a reserve. */
int wr_queue_large_reserve(wr_queue_engine *e);
int wr_queue_large_hold(wr_queue_engine *e, const uint8_t id[16], uint32_t n);
void wr_queue_large_release(wr_queue_engine *e, const uint8_t id[16]);
/* A publish that no queue took: nobody will ever speak of the file. */
void wr_queue_large_unwanted(wr_queue_engine *e, const uint8_t id[16]);
/* Is it held, or on its way out? */
bool wr_queue_large_known(const wr_queue_engine *e, const uint8_t id[16]);
/* Ids whose files may go leave the list: at most n. */
uint64_t wr_queue_large_gone(wr_queue_engine *e, uint8_t (*to)[16], uint64_t n);
#endif
