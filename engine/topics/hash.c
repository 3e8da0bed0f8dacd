#include "topics/hash.h"
#include "kernel/once.h"

#define HIGH 0x8080808080808080ull
#define REPLACEMENT 0xfffdu

/* 31 to the n-th */
#define P2 (31u * 31u)
#define P3 (31u * P2)
#define P4 (31u * P3)

static inline uint32_t more(uint32_t hash, uint32_t unit) { return hash * 31u + unit; }

/* Four of them, which are ASCII. */
static inline uint32_t more4(uint32_t hash, uint32_t w) {
    return hash * P4 + (uint8_t)w * P3 + (uint8_t)(w >> 8) * P2 + (uint8_t)(w >> 16) * 31u + (w >> 24);
}

/* The character that begins at `at`, and its bytes in *n (given: those there are). */
static uint32_t character(const uint8_t *at, uint64_t *n) {
    uint8_t first = at[0];
    uint32_t bytes = first < 0x80 ? 1 : first < 0xc2 ? 0 : first < 0xe0 ? 2 : first < 0xf0 ? 3 : first < 0xf5 ? 4 : 0;
    uint32_t found = bytes > 1 ? first & (0x7fu >> bytes) : first;
    if (bytes > *n) bytes = 0;
    for (uint32_t i = 1; i < bytes; i++) {
        if (at[i] >> 6 != 2) bytes = 0;
        else found = found << 6 | (at[i] & 0x3fu);
    }
    *n = bytes ? bytes : 1;
    return bytes ? found : REPLACEMENT;
}

uint32_t wr_java_hash(uint32_t hash, const void *text, uint64_t n) {
    const uint8_t *at = text;
    while (n) {
        for (; n >= 8; n -= 8, at += 8) {
            uint64_t w = wr_once8(at);
            if (w & HIGH) break;
            hash = more4(hash, (uint32_t)w);
            hash = more4(hash, (uint32_t)(w >> 32));
        }
        /* one by one: the last few, and the eight bytes that are not ASCII alone */
        for (uint64_t stop = n > 8 ? n - 8 : 0; n > stop;) {
            uint64_t bytes = n;
            uint32_t found = character(at, &bytes);
            if (found >> 16) { /* a pair of surrogates */
                hash = more(hash, 0xd7c0u + (found >> 10));
                found = 0xdc00u | (found & 0x3ffu);
            }
            hash = more(hash, found);
            at += bytes;
            n -= bytes;
        }
    }
    return hash;
}
