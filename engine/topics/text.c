#include "topics/text.h"

#define HIGH 0x8080808080808080ull
#define THREES 0x0303030303030303ull

/* Bytes of the character at `at`, 0: none. */
static uint32_t character(const uint8_t *at, uint64_t n) {
    uint8_t first = at[0];
    if (first < 0x80) return 1;
    uint32_t bytes = first < 0xe0 ? 2 : first < 0xf0 ? 3 : 4;
    if (first < 0xc2 || first > 0xf4 || bytes > n) return 0;
    /* what the second byte may be keeps out longer forms than needed, surrogates, and what is above U+10FFFF */
    uint8_t least = first == 0xe0 ? 0xa0 : first == 0xf0 ? 0x90 : 0x80;
    uint8_t most = first == 0xed ? 0x9f : first == 0xf4 ? 0x8f : 0xbf;
    if (at[1] < least || at[1] > most) return 0;
    for (uint32_t i = 2; i < bytes; i++)
        if (at[i] >> 6 != 2) return 0;
    return bytes;
}

static bool good_from(const uint8_t *at, uint64_t n, uint8_t least) {
    while (n) {
        uint32_t bytes = character(at, n);
        if (!bytes || at[0] < least) return false;
        at += bytes;
        n -= bytes;
    }
    return true;
}

bool wr_utf8_good(const void *text, uint64_t n) { return good_from(text, n, 0); }

bool wr_text_good(const void *text, uint64_t n) {
    const uint8_t *at = text;
    while (n) {
        uint64_t some = n < 8 ? n : 8, word = wr_text_word(at, some);
        /* a byte below 3 borrows; the lowest such byte shows, whatever stands above it */
        if ((word | (word - THREES)) & HIGH) return good_from(at, n, 3);
        at += some;
        n -= some;
    }
    return true;
}
