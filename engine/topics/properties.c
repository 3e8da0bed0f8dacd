#include "topics/properties.h"

#define HIGH 0x8080808080808080ull

/* Where a reader of properties stands. */
typedef struct {
    uint64_t begin; /* of the name or value */
    uint8_t wanted; /* what ends it */
} place;

/* Go over the separators in a word, which is the i-th byte and those behind it. */
static inline bool separators(uint64_t word, uint64_t i, place *at) {
    /* the high bit of each ASCII byte below 3: 0x7d + 3 is 0x80, and no sum reaches the next byte */
    uint64_t low = ~(((word & ~HIGH) + 0x7d7d7d7d7d7d7d7dull) | word) & HIGH;
    for (; low; low &= low - 1) {
        uint32_t bit = (uint32_t)__builtin_ctzll(low) - 7;
        uint64_t here = i + bit / 8;
        if ((uint8_t)(word >> bit) != at->wanted) return false;
        if (at->wanted == WR_PROPERTY_NAME_END && here == at->begin) return false;
        at->begin = here + 1;
        at->wanted ^= WR_PROPERTY_NAME_END ^ WR_PROPERTY_VALUE_END;
    }
    return true;
}

bool wr_properties_good(const void *properties, uint64_t n) {
    const uint8_t *bytes = properties;
    place at = {0, WR_PROPERTY_NAME_END};
    uint64_t i = 0, any = 0;
    for (; n - i >= 8; i += 8) {
        uint64_t word = wr_once8(bytes + i);
        any |= word;
        if (!separators(word, i, &at)) return false;
    }
    if (n - i) {
        uint64_t word = wr_text_word(bytes + i, n - i);
        any |= word;
        if (!separators(word, i, &at)) return false;
    }
    if (at.wanted == WR_PROPERTY_NAME_END && at.begin != n) return false;
    return !(any & HIGH) || wr_utf8_good(properties, n); /* separators are ASCII: the whole is UTF-8 if its texts are */
}

uint32_t wr_properties_put(uint8_t *to, uint64_t room, const void *name, uint64_t name_n, const void *value,
                           uint64_t value_n) {
    if (!name_n || name_n > room || value_n > room || name_n + value_n + 2 > room) return 0;
    if (!wr_text_good(name, name_n) || !wr_text_good(value, value_n)) return 0;
    memcpy(to, name, name_n);
    to[name_n] = WR_PROPERTY_NAME_END;
    if (value_n) memcpy(to + name_n + 1, value, value_n);
    to[name_n + 1 + value_n] = WR_PROPERTY_VALUE_END;
    return (uint32_t)(name_n + value_n + 2);
}

bool wr_properties_next(const uint8_t *properties, uint32_t n, uint32_t *at, wr_text *name, wr_text *value) {
    if (*at >= n) return false;
    const uint8_t *begin = properties + *at, *end = properties + n;
    const uint8_t *name_end = memchr(begin, WR_PROPERTY_NAME_END, n - *at);
    if (!name_end) return false;
    const uint8_t *value_begin = name_end + 1, *value_end = NULL;
    if (value_begin < end) value_end = memchr(value_begin, WR_PROPERTY_VALUE_END, (size_t)(end - value_begin));
    if (!value_end) value_end = end;
    *name = (wr_text){begin, (uint32_t)(name_end - begin)};
    *value = (wr_text){value_begin, (uint32_t)(value_end - value_begin)};
    *at = value_end < end ? (uint32_t)(value_end - properties) + 1 : n;
    return true;
}

static inline bool is(wr_text text, const char *name, size_t n) { return text.n == n && memcmp(text.at, name, n) == 0; }

bool wr_properties_find(const uint8_t *properties, uint32_t n, const char *name, wr_text *value) {
    uint32_t at = 0;
    bool found = false;
    wr_text a_name, a_value;
    size_t name_n = strlen(name);
    while (wr_properties_next(properties, n, &at, &a_name, &a_value)) {
        if (!is(a_name, name, name_n)) continue;
        *value = a_value;
        found = true;
    }
    return found;
}

void wr_properties_known(const uint8_t *properties, uint32_t n, wr_known_properties *known) {
    uint32_t at = 0;
    wr_text name, value;
    *known = (wr_known_properties){0};
    while (wr_properties_next(properties, n, &at, &name, &value)) {
        if (is(name, "KEYS", 4)) known->keys = value;
        else if (is(name, "TAGS", 4)) known->tags = value;
        else if (is(name, "UNIQ_KEY", 8)) known->uniq_key = value;
    }
}

bool wr_keys_next(wr_text keys, uint32_t *at, wr_text *key) {
    while (*at < keys.n && keys.at[*at] == WR_KEY_SEPARATOR) ++*at;
    uint32_t begin = *at;
    while (*at < keys.n && keys.at[*at] != WR_KEY_SEPARATOR) ++*at;
    if (*at > begin) *key = (wr_text){keys.at + begin, *at - begin};
    return *at > begin;
}
