/* Keys of deduplication that a queue has seen within its window, and how they outlive a journal file: its first
 * frames name those of before. */
#ifndef WR_QUEUES_KEYS_H
#define WR_QUEUES_KEYS_H
#include "queues/queue.h"

bool wr_policy_seen_before(wr_policy *p, const uint8_t *key, uint64_t now);
void wr_policy_seen(wr_queue *q, const uint8_t key[WR_KEY_BYTES], uint64_t published, uint64_t now);

/* The first frames of a journal file: keys of before, as many as leave room for a frame of `leave` bytes; and their way back. 0 or
 * EBADMSG. */
void wr_policy_write_keys(wr_queue_engine *e, uint64_t leave);

/* What a queue has seen, the oldest first, as rows of a KEYS frame; rows NULL: how many. */
uint64_t wr_policy_keys(const wr_queue *q, uint8_t *rows);
int wr_policy_replay_keys(wr_queue_engine *e, const uint8_t *rows, uint64_t bytes, uint32_t n);
#endif
