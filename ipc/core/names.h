/* The names of a node's regions: `/warren-<shared_id>-<what>-<server>-<generation>-<tag>`.
 *
 * Every user can list /dev/shm, and the first to make a file there takes its name. The tag is a keyed hash of the rest
 * (SipHash-2-4), and its key is in the superblock, which others cannot read: visible names do not reveal later ones. */
#ifndef WARREN_NAMES_H
#define WARREN_NAMES_H

#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "view.h"

#define WR_REGION_NAME_BYTES 128

static inline uint64_t wr_rotated(uint64_t word, int bits) { return word << bits | word >> (64 - bits); }

static inline void wr_sip_rounds(uint64_t v[4], int rounds) {
    while (rounds--) {
        v[0] += v[1], v[1] = wr_rotated(v[1], 13) ^ v[0], v[0] = wr_rotated(v[0], 32);
        v[2] += v[3], v[3] = wr_rotated(v[3], 16) ^ v[2];
        v[0] += v[3], v[3] = wr_rotated(v[3], 21) ^ v[0];
        v[2] += v[1], v[1] = wr_rotated(v[1], 17) ^ v[2], v[2] = wr_rotated(v[2], 32);
    }
}

/* SipHash-2-4 of some bytes. */
static inline uint64_t wr_siphash(const uint64_t key[2], const uint8_t *bytes, size_t length) {
    uint64_t v[4] = {key[0] ^ 0x736f6d6570736575, key[1] ^ 0x646f72616e646f6d, key[0] ^ 0x6c7967656e657261, key[1] ^ 0x7465646279746573};
    for (size_t at = 0; at <= length / 8; at++) {
        size_t left = length - 8 * at;
        uint64_t word = 0;
        memcpy(&word, bytes + 8 * at, left < 8 ? left : 8);
        if (left < 8) word |= (uint64_t)length << 56; /* the last word ends with the length */
        v[3] ^= word;
        wr_sip_rounds(v, 2);
        v[0] ^= word;
    }
    v[2] ^= 0xff;
    wr_sip_rounds(v, 4);
    return v[0] ^ v[1] ^ v[2] ^ v[3];
}

/* The name of a region of a server: `what` is one of its kinds, of at most 32 characters. */
static inline void wr_region_name(char name[WR_REGION_NAME_BYTES], const wr_superblock *super, const char *what, uint32_t server,
                                  uint64_t generation) {
    char hashed[72];
    int length = snprintf(hashed, sizeof hashed, "%.32s-%u-%llu", what, server, (unsigned long long)generation);
    snprintf(name, WR_REGION_NAME_BYTES, "/warren-%012llx-%s-%016llx", (unsigned long long)super->shared_id, hashed,
             (unsigned long long)wr_siphash(super->names_key, (const uint8_t *)hashed, (size_t)length));
}

#endif
