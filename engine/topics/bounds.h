/* Bounds: records of a system topic that say what retention takes of queues, and of the log before it does (docs/design/023-retention.md). So
 * the log alone tells, without any checkpoint, from where on it has to be there, which minima rose, and at which offsets queues go on.
 * The format: engine/topics/formats.py. */
#ifndef WR_TOPICS_BOUNDS_H
#define WR_TOPICS_BOUNDS_H
#include "kernel/bytes.h"
#include "topics/formats.h"
#include <stdbool.h>
#include <string.h>

static inline bool wr_is_bounds(const uint8_t *topic, uint32_t n) {
    return n == sizeof WR_BOUNDS_TOPIC - 1 && !memcmp(topic, WR_BOUNDS_TOPIC, sizeof WR_BOUNDS_TOPIC - 1);
}

/* The same, of what an accepted loss took: a queue keeps what is left of it, and its offsets go on at `next`. */
static inline bool wr_is_lost(const uint8_t *topic, uint32_t n) {
    return n == sizeof WR_LOST_TOPIC - 1 && !memcmp(topic, WR_LOST_TOPIC, sizeof WR_LOST_TOPIC - 1);
}

/* The head of a body of n bytes, behind which rows_n bounds lie; false: it is none of this version. */
static inline bool wr_bounds_read(const uint8_t *body, uint64_t n, uint64_t *first, uint32_t *rows_n) {
    if (n < WR_BOUNDS_SIZE || wr_get32(body + WR_BOUNDS_AT_VERSION) != WR_BOUNDS_VERSION) return false;
    *rows_n = wr_get32(body + WR_BOUNDS_AT_ROWS_N);
    *first = wr_get64(body + WR_BOUNDS_AT_FIRST);
    return n == WR_BOUNDS_SIZE + (uint64_t)*rows_n * WR_BOUND_SIZE;
}
#endif
