/* Claims of a subscription: READY entries of one queue go to the end of another, and their way back. */
#ifndef WR_QUEUES_CLAIMS_H
#define WR_QUEUES_CLAIMS_H
#include "queues/queue.h"

/* READY entries of `from`, in order, go to the end of `to`. `all`: the held ones, too (there are none in a
 * subscription). One frame, all or nothing. 0, EAGAIN (no room in the journal yet), ENOMEM, or the log's errno;
 * *start == *end: nothing was there. */
int wr_journal_move(wr_queue_engine *e, wr_queue *from, wr_queue *to, uint64_t max_messages, uint64_t max_bytes, bool all,
                    uint64_t client_epoch, uint64_t sequence, uint64_t *start, uint64_t *end);
#endif
