/* What retention wants to know of a topic's units (docs/design/023-retention.md). Threads: the reader's. */
#ifndef WR_TOPICS_RETAIN_H
#define WR_TOPICS_RETAIN_H
#include "topics/reader.h"

/* The first offset whose record lies at a position or behind it; the maximum, if there is none. 0; ENXIO; or an errno. */
int wr_retain_offset(wr_topic_reader *reader, uint32_t queue, uint64_t position, uint64_t *offset);
/* The position of the first record at an offset or behind it; UINT64_MAX: there is none. 0; ENXIO; or an errno. */
int wr_retain_position(wr_topic_reader *reader, uint32_t queue, uint64_t offset, uint64_t *position);

/* Where the queues 0 … queues_n − 1 begin when their oldest records, by the order of the log, of `excess` bytes or a little more, are taken:
 * minima[queue]. The newest record of all stays whatever its size. 0; ENXIO; or an errno. */
int wr_retain_excess(wr_topic_reader *reader, uint32_t queues_n, uint64_t excess, uint64_t *minima);
#endif
