/* The two journals of a queue worker: frames in (engine/kernel/formats.py), batches out.
 *
 * Order of an effect: frame into the image, memory, shared words.
 *
 * A journal file may go when no entry's index record lies in it, all older ones have gone, every batch of it is done,
 * no gate refers to it, no link still has commands of before the last restart, and its acks of segment entries are
 * applied.
 */
#ifndef WR_QUEUES_JOURNAL_H
#define WR_QUEUES_JOURNAL_H
#include "queues/queue.h"

/* Room for a frame; NULL with errno as wr_log_reserve says. */
uint8_t *wr_journal_reserve(wr_queue_engine *e, bool transient, uint64_t bytes, uint64_t *offset);
/* The same for a message: it waits for the next file, as wr_log_scarce says. */
uint8_t *wr_journal_reserve_new(wr_queue_engine *e, bool transient, uint64_t bytes, uint64_t *offset);
void wr_journal_append(wr_queue_engine *e, bool transient, uint64_t bytes, bool sync);

/* Begin the current file with what sequences were used, and have it synced, so that older files without live entries
 * may go even if nothing is ever published. 0 or an errno. */
int wr_journal_begin(wr_queue_engine *e);
/* Write the pending ranges, as ACK and DELAY frames in their order; 0, EAGAIN, or the log's errno (then they are dropped) */
int wr_journal_acks(wr_queue_engine *e);

/* The two ranges of a MOVE frame, 2 * WR_RANGE_SIZE bytes: `count` rows from `first` on go to `target` and what
 * follows. */
void wr_move_put(uint8_t *range, const wr_queue *from, uint64_t first, uint64_t count, const wr_queue *to, uint64_t target, uint32_t reason);

/* Is there hardly any room, and no next file? Then no command is taken: what was acked is synced and applied first, which frees space. */
bool wr_journal_tight(wr_queue_engine *e);
/* Post what waits, if it is time; true: posted. */
bool wr_journal_seal(wr_queue_engine *e, uint64_t now, bool force);
/* Seal everything with sync and wait until it is done. False: not within the time, or the log has failed. */
bool wr_journal_sync(wr_queue_engine *e, uint64_t timeout_ns);
bool wr_journal_all_durable(const wr_queue_engine *e); /* everything that happened is on disk */
bool wr_journal_may_delete(wr_queue_engine *e, uint32_t file);
#endif
