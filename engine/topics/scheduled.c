/* Records of messages that are to come later. Declared in topics/scheduled.h. */
#include "topics/scheduled.h"
#include "topics/properties.h"
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

static bool is(wr_text text, const char *name) { return text.n == strlen(name) && !memcmp(text.at, name, text.n); }

/* Decimal digits, up to 15. */
static bool number(wr_text text, uint64_t *to) {
    *to = 0;
    if (!text.n || text.n > 15) return false;
    for (uint32_t i = 0; i < text.n; i++) {
        if (text.at[i] < '0' || text.at[i] > '9') return false;
        *to = *to * 10 + (uint64_t)(text.at[i] - '0');
    }
    return true;
}

static bool number_in(const uint8_t *properties, uint32_t n, const char *name, uint64_t *to) {
    wr_text value;
    return wr_properties_find(properties, n, name, &value) && number(value, to);
}

bool wr_scheduled_when_of(const uint8_t *properties, uint32_t n, uint64_t now, wr_scheduled_when *when) {
    uint64_t value;
    if (!n || properties[n - 1] != WR_PROPERTY_VALUE_END) return false; /* others come behind it */
    *when = (wr_scheduled_when){0};
    if (number_in(properties, n, "DELAY", &value)) {
        if (!value || value > WR_DELAY_LEVELS_N) return false;
        when->by_level = true;
        when->level = (uint32_t)value;
        when->due = now + 1 + levels_ms[value - 1]; /* of a millisecond that has begun: not before its time */
    } else if (number_in(properties, n, "TIMER_DELAY_MS", &value)) {
        when->due = now + 1 + value;
    } else if (number_in(properties, n, "TIMER_DELIVER_MS", &value)) {
        when->due = value;
    } else {
        return false;
    }
    if (when->due > DUE_MAX) when->due = DUE_MAX;
    return true;
}

static uint32_t digits(uint32_t n) {
    uint32_t count = 1;
    while (n /= 10) count++;
    return count;
}

/* A property takes its name, its value, and two bytes. */
#define PROPERTY_BYTES(name) ((uint32_t)sizeof(name) - 1 + 2)

uint32_t wr_scheduled_more(uint32_t topic_n, uint32_t queue) {
    return PROPERTY_BYTES("REAL_TOPIC") + topic_n + PROPERTY_BYTES("REAL_QID") + digits(queue) + PROPERTY_BYTES("TIMER_OUT_MS") + DUE_DIGITS;
}

uint32_t wr_scheduled_put(uint8_t *to, const char *topic, uint32_t topic_n, uint32_t queue, const wr_scheduled_when *when) {
    const uint32_t bytes = wr_scheduled_more(topic_n, queue);
    char queue_text[16], due_text[DUE_DIGITS + 8];
    const int queue_n = snprintf(queue_text, sizeof queue_text, "%u", queue);
    const int due_n = snprintf(due_text, sizeof due_text, "%0*llu", DUE_DIGITS, (unsigned long long)when->due);
    uint32_t n = wr_properties_put(to, bytes, "REAL_TOPIC", 10, topic, topic_n);
    n += wr_properties_put(to + n, bytes - n, "REAL_QID", 8, queue_text, (uint64_t)queue_n);
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
    uint64_t queue;
    if (!number_in(properties, record->properties_length, "REAL_QID", &queue) || queue > INT32_MAX) return false;
    message->queue = (uint32_t)queue;
    return number_in(properties, record->properties_length, "TIMER_OUT_MS", &message->due);
}

static bool is_own(wr_text name) {
    for (size_t i = 0; i < sizeof own / sizeof *own; i++)
        if (is(name, own[i])) return true;
    return false;
}

uint32_t wr_scheduled_properties(const uint8_t *bytes, const wr_record *record, uint8_t *to) {
    const uint8_t *properties = bytes + record->properties_at;
    wr_text name, value;
    uint32_t at = 0, n = 0;
    for (uint32_t begin = 0; wr_properties_next(properties, record->properties_length, &at, &name, &value); begin = at) {
        if (is_own(name)) continue;
        memcpy(to + n, properties + begin, at - begin);
        n += at - begin;
    }
    return n;
}
