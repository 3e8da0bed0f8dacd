/* Text in the log: topics, names and values of properties. UTF-8 without the bytes 0x00 to 0x02: 0x01 and 0x02
 * separate properties, and recovery tells a record from what was not written yet by its zeros. */
#ifndef WR_TOPICS_TEXT_H
#define WR_TOPICS_TEXT_H
#include "kernel/once.h"
#include <stdbool.h>

/* Part of a text that lies somewhere else; `at` is NULL where there is none. */
typedef struct {
    const uint8_t *at;
    uint32_t n;
} wr_text;

/* Whether n bytes are such a text; nothing at all is one. */
bool wr_text_good(const void *text, uint64_t n);

/* Whether n bytes are UTF-8 (RFC 3629: the shortest form, no surrogates), whatever characters. */
bool wr_utf8_good(const void *text, uint64_t n);

/* n bytes, 1 to 8, as a word; what is more of it are spaces. They lie in two loads that may overlap. */
static inline uint64_t wr_text_word(const uint8_t *at, uint64_t n) {
    if (n == 8) return wr_once8(at);
    uint64_t word = 0x2020202020202020ull << 8 * n;
    if (n >= 4) return word | wr_once4(at) | (uint64_t)wr_once4(at + n - 4) << 8 * (n - 4);
    if (n >= 2) word |= wr_once2(at);
    return word | (uint64_t)wr_once1(at + n - 1) << 8 * (n - 1);
}
#endif
