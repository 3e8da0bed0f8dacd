/* Records of messages that are to come later. Declared in topics/scheduled.h. */
#include "topics/scheduled.h"
#include "topics/properties.h"
#include "topics/real_place.h"
#include <assert.h>
#include <stdio.h>
#include <string.h>

_Static_assert(sizeof WR_SCHEDULE_TOPIC == sizeof WR_TIMER_TOPIC, "a record has the same size in both");

#define DUE_DIGITS 13 /* up to the year 2286 */
#define DUE_MAX 9999999999999ull
#define LEVEL(n) WR_DELAY_LEVEL_##n##_MS

static const uint32_t levels_ms[] = {LEVEL(1),  LEVEL(2),  LEVEL(3),  LEVEL(4),  LEVEL(5),  LEVEL(6),  LEVEL(7),  LEVEL(8),  LEVEL(9),
                                     LEVEL(10), LEVEL(11), LEVEL(12), LEVEL(13), LEVEL(14), LEVEL(15), LEVEL(16), LEVEL(17), LEVEL(18)};
_Static_assert(sizeof levels_ms / sizeof *levels_ms == WR_DELAY_LEVELS_N, "the levels");

/* What stands in such a record beside what the publisher gave it. */
static const char *const own[] = {"DELAY", "TIMER_DELAY_MS", "TIMER_DELIVER_MS", "TIMER_OUT_MS", "REAL_TOPIC", "REAL_QID"};

bool wr_scheduled_when_of(const uint8_t *properties, uint32_t n, uint64_t now, wr_scheduled_when *when) {
    uint64_t value;
    if (!n || properties[n - 1] != WR_PROPERTY_VALUE_END) return false; /* others come behind it */
    *when = (wr_scheduled_when){0};
    if (wr_number_in(properties, n, "DELAY", &value)) {
        if (!value || value > WR_DELAY_LEVELS_N) return false;
        when->by_level = true;
        when->level = (uint32_t)value;
        when->due = now + 1 + levels_ms[value - 1]; /* of a millisecond that has begun: not before its time */
    } else if (wr_number_in(properties, n, "TIMER_DELAY_MS", &value)) {
        when->due = now + 1 + value;
    } else if (wr_number_in(properties, n, "TIMER_DELIVER_MS", &value)) {
        when->due = value;
    } else {
        return false;
    }
    if (when->due > DUE_MAX) when->due = DUE_MAX;
    return true;
}

uint32_t wr_scheduled_more(uint32_t topic_n, uint32_t queue) {
    return wr_real_place_bytes(topic_n, queue) + WR_PROPERTY_BYTES("TIMER_OUT_MS") + DUE_DIGITS;
}

uint32_t wr_scheduled_put(uint8_t *to, const char *topic, uint32_t topic_n, uint32_t queue, const wr_scheduled_when *when) {
    const uint32_t bytes = wr_scheduled_more(topic_n, queue);
    char due_text[DUE_DIGITS + 8];
    const int due_n = snprintf(due_text, sizeof due_text, "%0*llu", DUE_DIGITS, (unsigned long long)when->due);
    uint32_t n = wr_real_place_put(to, topic, topic_n, queue);
    n += wr_properties_put(to + n, bytes - n, "TIMER_OUT_MS", 12, due_text, (uint64_t)due_n);
    assert(n == bytes);
    return n;
}

bool wr_scheduled_is(const uint8_t *bytes, const wr_record *record) {
    const uint8_t *name = bytes + record->topic_at;
    return record->topic_length == WR_SCHEDULED_TOPIC_BYTES &&
           (!memcmp(name, WR_SCHEDULE_TOPIC, WR_SCHEDULED_TOPIC_BYTES) || !memcmp(name, WR_TIMER_TOPIC, WR_SCHEDULED_TOPIC_BYTES));
}

bool wr_scheduled_read(const uint8_t *bytes, const wr_record *record, wr_scheduled_message *message) {
    const uint8_t *properties = bytes + record->properties_at;
    return wr_real_queue(bytes, record, &message->queue) && wr_number_in(properties, record->properties_length, "TIMER_OUT_MS", &message->due);
}

uint32_t wr_scheduled_properties(const uint8_t *bytes, const wr_record *record, uint8_t *to) {
    return wr_properties_without(bytes, record, own, sizeof own / sizeof *own, to);
}
