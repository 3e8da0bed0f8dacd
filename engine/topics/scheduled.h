/* The record of a message that is to come later: of a system topic of RocketMQ's, with the topic, queue and time that it is for in its
 * properties (engine/topics/formats.py). What its publisher said of it stands before them, one of DELAY, TIMER_DELAY_MS and
 * TIMER_DELIVER_MS as the last.
 *
 * Nothing here allocates. Bytes that are not a client's own any more: who calls has copied them. */
#ifndef WR_TOPICS_SCHEDULED_H
#define WR_TOPICS_SCHEDULED_H
#include "topics/record.h"
#include "topics/text.h"

/* When a message comes, as its publisher says it. */
typedef struct {
    bool by_level; /* its record is of SCHEDULE_TOPIC */
    uint32_t level;
    uint64_t due; /* milliseconds since 1970 */
} wr_scheduled_when;

/* What the properties of a message say of that, at `now` (milliseconds since 1970). False: nothing, or nonsense. */
bool wr_scheduled_when_of(const uint8_t *properties, uint32_t n, uint64_t now, wr_scheduled_when *when);

/* Bytes that a record's properties have more than the message's. */
uint32_t wr_scheduled_more(uint32_t topic_n, uint32_t queue);
#define WR_SCHEDULED_TOPIC_BYTES ((uint32_t)sizeof WR_SCHEDULE_TOPIC - 1)
/* The topic of its record. */
static inline const char *wr_scheduled_topic(const wr_scheduled_when *when) { return when->by_level ? WR_SCHEDULE_TOPIC : WR_TIMER_TOPIC; }

/* Write them behind the message's. Returns wr_scheduled_more(topic_n, queue). */
uint32_t wr_scheduled_put(uint8_t *to, const char *topic, uint32_t topic_n, uint32_t queue, const wr_scheduled_when *when);

/* What a record says of the message that it holds. */
typedef struct {
    uint32_t queue;
    uint64_t due;
} wr_scheduled_message;

/* Is a record of the log (scanned) one of a message that is to come later, by its topic's name? */
bool wr_scheduled_is(const uint8_t *bytes, const wr_record *record);
/* What it says; false: nothing that this reads. */
bool wr_scheduled_read(const uint8_t *bytes, const wr_record *record, wr_scheduled_message *message);
/* The message's properties: those that its publisher gave it. `to` has room for record->properties_length. Returns how many bytes. */
uint32_t wr_scheduled_properties(const uint8_t *bytes, const wr_record *record, uint8_t *to);

/* Is a record one of a message that was to come later? Then *position is that of its record before. */
static inline bool wr_scheduled_came(const wr_record *record, uint64_t *position) {
    *position = record->prepared_transaction_offset - 1;
    return record->prepared_transaction_offset && !(record->sys_flag & WR_SYS_TRANSACTION_MASK);
}
#endif
