/* Declared in topics/key_digest.h. */
#include "topics/key_digest.h"
#include <string.h>

static inline uint64_t turn(uint64_t word, int by) { return word << by | word >> (64 - by); }

static void rounds(uint64_t v[4], int n) {
    for (; n; n--) {
        v[0] += v[1], v[1] = turn(v[1], 13) ^ v[0], v[0] = turn(v[0], 32);
        v[2] += v[3], v[3] = turn(v[3], 16) ^ v[2];
        v[0] += v[3], v[3] = turn(v[3], 21) ^ v[0];
        v[2] += v[1], v[1] = turn(v[1], 17) ^ v[2], v[2] = turn(v[2], 32);
    }
}

static void take(uint64_t v[4], uint64_t word) {
    v[3] ^= word;
    rounds(v, 2);
    v[0] ^= word;
}

wr_digest wr_key_digest(const uint64_t secret[2], const void *key, uint64_t n) {
    const uint8_t *bytes = key;
    uint64_t v[4] = {secret[0] ^ 0x736f6d6570736575, secret[1] ^ 0x646f72616e646f6d ^ 0xee, secret[0] ^ 0x6c7967656e657261,
                     secret[1] ^ 0x7465646279746573};
    uint64_t word, last = n << 56;
    wr_digest digest;
    for (; n >= 8; n -= 8, bytes += 8) {
        memcpy(&word, bytes, 8);
        take(v, word);
    }
    for (uint64_t i = 0; i < n; i++) last |= (uint64_t)bytes[i] << 8 * i;
    take(v, last);
    v[2] ^= 0xee;
    rounds(v, 4);
    digest.a = v[0] ^ v[1] ^ v[2] ^ v[3];
    v[1] ^= 0xdd;
    rounds(v, 4);
    digest.b = v[0] ^ v[1] ^ v[2] ^ v[3];
    return digest;
}
