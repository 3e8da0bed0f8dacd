/* A start looks which large messages have their files (queues/large.h). */
#ifndef WR_QUEUES_LARGE_MISSING_H
#define WR_QUEUES_LARGE_MISSING_H
#include "queues/queue.h"

/* At a start: of the held ids only these have files. What waits for another one is lost: how many messages. */
int wr_queue_large_missing(wr_queue_engine *e, const uint8_t (*there)[16], uint64_t n, uint64_t *lost);
#endif
