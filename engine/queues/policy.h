/* What a queue is declared to do with its messages beyond first in, first out (design note 004, section 2), by the
 * clock and at the door: expiry, delay, maximum length; what is admitted. A plain queue has no wr_policy; the first
 * message with a time makes one. */
#ifndef WR_QUEUES_POLICY_H
#define WR_QUEUES_POLICY_H
#include "queues/queue.h"

bool wr_policy_turn(wr_queue_engine *e); /* expiry, delay, length; true: something moved */

/* How long the loop may sleep, at most `most`. */
uint64_t wr_policy_sleep_ns(const wr_queue_engine *e, uint64_t most);

typedef enum { WR_ADMIT, WR_ADMIT_LATER, WR_ADMIT_REFUSED, WR_ADMIT_DUPLICATE } wr_admission;

wr_admission wr_policy_admit(wr_queue_engine *e, wr_queue *q, const uint8_t *key, uint64_t published, uint32_t length);
#endif
