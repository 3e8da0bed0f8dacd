/* Messages of a compacted topic below the minimum of their queue: out of its file of newest records (topics/compacted.h), for a reader of the topic.
 *
 * Invariants
 *   A file counts while it has all that is alive below the row's minimum. Where the minimum has risen above it, another one has its name already (SYNC
 *   row-minimum: it got that before the minimum rose), and is opened. If that one has less, too, what lies between is gone: damage.
 *   A file that is open stays as it is when another one gets its name. */
#ifndef WR_TOPICS_NEWEST_H
#define WR_TOPICS_NEWEST_H
#include "topics/compacted.h"
#include "topics/reader.h"

#define WR_NEWEST_FOLDER "compacted"

/* The topic is compacted; `node`: whose files it has. Before anything is read. */
void wr_newest_begin(wr_topic_reader *reader, const uint8_t *node);

/* The first message of a queue whose offset, position in the log, or store time is `value` or higher, and whose offset is below `minimum`, which was
 * read from its row. `sum`: its body is summed, too. THERE: the bytes last until the next call; NONE; DAMAGED: reader->damage, and messages from offset
 * *next on may lie behind it; or ERROR. */
wr_message_kind wr_newest_from(wr_topic_reader *reader, uint32_t queue, uint64_t minimum, wr_compacted_order order, uint64_t value, bool sum,
                               wr_record *record, const uint8_t **bytes, uint64_t *next, int *error);

/* The same for the last one whose offset, position or store time is below `value`. Damaged blocks are passed by. */
wr_message_kind wr_newest_before(wr_topic_reader *reader, uint32_t queue, uint64_t minimum, wr_compacted_order order, uint64_t value, wr_record *record,
                                 const uint8_t **bytes, int *error);

/* Of all queues of the topic: the message below its queue's minimum whose record lay at a position. THERE, NONE, DAMAGED or ERROR. */
wr_message_kind wr_newest_at(wr_topic_reader *reader, uint64_t position, wr_record *record, const uint8_t **bytes, int *error);

/* Of all queues: the message below its queue's minimum with the highest position below `below` that may have the key of this hash. */
wr_message_kind wr_newest_find(wr_topic_reader *reader, uint32_t hash, uint64_t below, wr_record *record, const uint8_t **bytes, int *error);

/* The sum of the queues' minima: it rises with the end of each pass. */
uint64_t wr_newest_minima(wr_topic_reader *reader);

/* How much of a queue lies below its minimum, which is not 0: the first offset (the minimum: nothing does), and how many messages there are in its file,
 * which has what is alive below *end. THERE, DAMAGED or ERROR. */
wr_message_kind wr_newest_count(wr_topic_reader *reader, uint32_t queue, uint64_t minimum, uint64_t *first, uint64_t *n, uint64_t *end, int *error);

/* Of any topic: the bounds of a queue with what a file of newest messages has (wr_topic_reader_all), and how many messages a reader sees (those that
 * are replaced already, and in the log still, are not counted). Of a damaged file the first offset is 0: who reads there is told. 0; ENXIO; or an errno. */
int wr_newest_bounds(wr_topic_reader *reader, uint32_t queue, wr_topic_bounds *bounds, uint64_t *messages);
#endif
