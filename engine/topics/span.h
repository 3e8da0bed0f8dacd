/* How many messages a number of bytes is: for who divides the messages of a queue into parts. */
#ifndef WR_TOPICS_SPAN_H
#define WR_TOPICS_SPAN_H
#include "topics/reader.h"

/* From `offset` on and below `end`, which is at most the maximum: *stop is behind the last message whose record, with those before it, has
 * `bytes_max` bytes of log at most, and *bytes is what they have. Consume queues alone are read; what a compacted topic keeps elsewhere is looked
 * at record by record. What is gone, or damaged, has no bytes: who reads it says so. 0 or an errno, as wr_topic_reader_bounds. */
int wr_topic_span(wr_topic_reader *reader, uint32_t queue, uint64_t offset, uint64_t end, uint64_t bytes_max, uint64_t *stop, uint64_t *bytes);
#endif
