/* A journal file back into queues, at a start: frames in order, segments of the queue index having been loaded
 * before. */
#ifndef WR_QUEUES_REPLAY_H
#define WR_QUEUES_REPLAY_H
#include "queues/queue.h"

/* Frames of one journal file from *at on, in order. Leaves *at at the first byte that is no frame and says why; 0,
 * ENOMEM. "last": behind the frame that says that it is the last; "end": at the end of the bytes. */
int wr_journal_replay(wr_queue_engine *e, const uint8_t *bytes, uint64_t length, uint32_t file, uint64_t salt,
                      uint64_t *at, uint64_t *frames_n, const char **reason);

/* Frames are missing here, or a whole file: sequences that are skipped from here on were of lost messages, at most
 * so many (transient ones have no frames, some were acked). */
void wr_journal_gap(wr_queue_engine *e);

/* After the last file: from now on acks are journalled, and after an unclean stop everything counts as delivered
 * before. */
void wr_journal_recovered(wr_queue_engine *e, bool clean);
#endif
