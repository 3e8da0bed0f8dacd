/* A reflected CRC of 32 bits by tables ("slicing by 8"): what crc32.c and crc32c.c run where the processor has no
 * instruction for it, and on the last few bytes. The tables are written once, by a constructor, before any thread
 * exists. */
#ifndef WR_CRC_TABLE_H
#define WR_CRC_TABLE_H
#include "kernel/once.h"
#include <stdbool.h>
#include <stddef.h>

typedef uint32_t wr_crc_table[8][256];

/* `polynomial`: reflected. */
static inline void wr_crc_table_make(wr_crc_table table, uint32_t polynomial) {
    for (uint32_t i = 0; i < 256; i++) {
        uint32_t crc = i;
        for (int bit = 0; bit < 8; bit++) crc = (crc >> 1) ^ (crc & 1 ? polynomial : 0);
        table[0][i] = crc;
    }
    for (uint32_t i = 0; i < 256; i++)
        for (int k = 1; k < 8; k++) table[k][i] = (table[k - 1][i] >> 8) ^ table[0][table[k - 1][i] & 0xff];
}

/* The register after n bytes more; with `copy` they are copied in the same pass. */
static inline __attribute__((always_inline)) uint32_t wr_crc_table_run(const wr_crc_table table, uint32_t crc,
                                                                       uint8_t *to, const uint8_t *from, size_t n,
                                                                       bool copy) {
    for (; n >= 8; n -= 8, from += 8) {
        uint64_t word = wr_once8(from);
        if (copy) memcpy(to, &word, 8), to += 8;
        word ^= crc;
        crc = table[7][word & 0xff] ^ table[6][word >> 8 & 0xff] ^ table[5][word >> 16 & 0xff] ^
              table[4][word >> 24 & 0xff] ^ table[3][word >> 32 & 0xff] ^ table[2][word >> 40 & 0xff] ^
              table[1][word >> 48 & 0xff] ^ table[0][word >> 56];
    }
    if (n >= 4) {
        uint32_t word = wr_once4(from);
        if (copy) memcpy(to, &word, 4), to += 4;
        word ^= crc;
        crc = table[3][word & 0xff] ^ table[2][word >> 8 & 0xff] ^ table[1][word >> 16 & 0xff] ^ table[0][word >> 24];
        n -= 4, from += 4;
    }
    for (; n; n--, from++) {
        uint8_t byte = wr_once1(from);
        if (copy) *to++ = byte;
        crc = (crc >> 8) ^ table[0][(crc ^ byte) & 0xff];
    }
    return crc;
}
#endif
