/* Where a message of a system topic belongs. Declared in topics/real_place.h. */
#include "topics/real_place.h"
#include "topics/properties.h"
#include <assert.h>
#include <stdio.h>
#include <string.h>

static uint32_t digits(uint32_t n) {
    uint32_t count = 1;
    while (n /= 10) count++;
    return count;
}

uint32_t wr_real_place_bytes(uint32_t topic_n, uint32_t queue) {
    return WR_PROPERTY_BYTES("REAL_TOPIC") + topic_n + WR_PROPERTY_BYTES("REAL_QID") + digits(queue);
}

uint32_t wr_real_place_put(uint8_t *to, const char *topic, uint32_t topic_n, uint32_t queue) {
    const uint32_t bytes = wr_real_place_bytes(topic_n, queue);
    char text[16];
    const int text_n = snprintf(text, sizeof text, "%u", queue);
    uint32_t n = wr_properties_put(to, bytes, "REAL_TOPIC", 10, topic, topic_n);
    n += wr_properties_put(to + n, bytes - n, "REAL_QID", 8, text, (uint64_t)text_n);
    assert(n == bytes);
    return n;
}

static bool number(wr_text text, uint64_t *to) {
    *to = 0;
    if (!text.n || text.n > 15) return false;
    for (uint32_t i = 0; i < text.n; i++) {
        if (text.at[i] < '0' || text.at[i] > '9') return false;
        *to = *to * 10 + (uint64_t)(text.at[i] - '0');
    }
    return true;
}

bool wr_number_in(const uint8_t *properties, uint32_t n, const char *name, uint64_t *to) {
    wr_text value;
    return wr_properties_find(properties, n, name, &value) && number(value, to);
}

bool wr_real_queue(const uint8_t *bytes, const wr_record *record, uint32_t *queue) {
    uint64_t found;
    if (!wr_number_in(bytes + record->properties_at, record->properties_length, "REAL_QID", &found) || found > INT32_MAX) return false;
    *queue = (uint32_t)found;
    return true;
}

static bool is_among(wr_text name, const char *const *names, size_t names_n) {
    for (size_t i = 0; i < names_n; i++)
        if (name.n == strlen(names[i]) && !memcmp(name.at, names[i], name.n)) return true;
    return false;
}

uint32_t wr_properties_without(const uint8_t *bytes, const wr_record *record, const char *const *names, size_t names_n, uint8_t *to) {
    const uint8_t *properties = bytes + record->properties_at;
    wr_text name, value;
    uint32_t at = 0, n = 0;
    for (uint32_t begin = 0; wr_properties_next(properties, record->properties_length, &at, &name, &value); begin = at) {
        if (is_among(name, names, names_n)) continue;
        memcpy(to + n, properties + begin, at - begin);
        n += at - begin;
    }
    return n;
}
