/* Goal: CRC-32 is the same by the processor's instruction, by tables and bit by bit, and reads and writes its bytes
 * alone. Method: every length up to 1000 and some longer ones, at the very end of allocations (the sanitizers
 * watch), any alignment and seed; by each instruction that the processor has. Prints its seed. */
#include "kernel/crc32.h"
#include "support/check.h"
#include "support/random.h"
#include <stdlib.h>
#include <string.h>

static uint32_t bit_by_bit(uint32_t seed, const uint8_t *bytes, size_t n) {
    uint32_t crc = ~seed;
    for (size_t i = 0; i < n; i++) {
        crc ^= bytes[i];
        for (int bit = 0; bit < 8; bit++) crc = crc >> 1 ^ (crc & 1 ? 0xedb88320u : 0);
    }
    return ~crc;
}

static void lengths(void) {
    for (size_t n = 0; n < 20000; n += n < 1000 ? 1 : 1 + random64() % 500) {
        size_t skip = random64() % 16;
        uint8_t *from = malloc(n + skip), *to = malloc(n + skip + 1), *other = malloc(n + skip + 1);
        CHECK(from && to && other);
        for (size_t i = 0; i < n + skip; i++) from[i] = (uint8_t)random64();
        memset(to, 0x55, n + skip + 1);
        uint32_t seed = (uint32_t)random64(), expected = bit_by_bit(seed, from + skip, n);
        CHECK(wr_crc32(seed, from + skip, n) == expected);
        CHECK(wr_crc32_table(seed, NULL, from + skip, n) == expected);
        CHECK(wr_copy_crc32(seed, to, from + skip, n) == expected);
        CHECK(memcmp(to, from + skip, n) == 0 && to[n] == 0x55);
        CHECK(wr_crc32_table(seed, other, from + skip, n) == expected && memcmp(other, from + skip, n) == 0);
        size_t cut = n ? random64() % n : 0;
        CHECK(wr_crc32(wr_crc32_table(seed, NULL, from + skip, cut), from + skip + cut, n - cut) == expected);
        CHECK(wr_crc32_table(wr_crc32(seed, from + skip, cut), NULL, from + skip + cut, n - cut) == expected);
        free(from);
        free(to);
        free(other);
    }
}

int main(int argc, char **argv) {
    random_begin("crc32_test", argc, argv);
    const int has = wr_crc32_use(0);
    for (int uses = 0; uses <= has; uses++) {
        wr_crc32_use(uses);
        CHECK(wr_crc32(0, "123456789", 9) == 0xcbf43926u);
        CHECK(wr_crc32(7, "", 0) == 7);
        lengths();
    }
    return 0;
}
