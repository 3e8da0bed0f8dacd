/* An entry of a segment of the queue index, as bytes (declared in engine/kernel/formats.py: queue_segment_entry) and
 * as a row. An entry's CRC begins with its place, so that it counts there alone. */
#ifndef WR_QUEUES_SEGMENT_CODEC_H
#define WR_QUEUES_SEGMENT_CODEC_H
#include "queues/queue.h"

/* One entry on its way to a segment: engine/queues/flush.py reads an array of them with numpy (engine/kernel/rows.py). */
typedef struct {
    uint32_t queue;
    uint32_t location; /* where the body will be */
    uint64_t sequence;
    uint64_t due;   /* of a delayed message, else 0 */
    wr_entry entry; /* Python changes file, offset and location of embedded bodies */
} wr_segment_row;
WR_SEGMENT_ROW_AGREES;

uint32_t wr_segment_seed(uint64_t salt, uint32_t queue); /* of the entries of one file */
void wr_segment_encode_rows(uint8_t *to, const wr_segment_row *rows, uint64_t n, uint64_t salt);

/* The row of a queue that lies at `at`; false: none (torn, moved or damaged). The caller has looked for zeros. */
bool wr_segment_decode(const uint8_t at[WR_QUEUE_SEGMENT_ENTRY_SIZE], uint32_t seed, uint64_t sequence, wr_entry *entry, uint64_t *due);
#endif
