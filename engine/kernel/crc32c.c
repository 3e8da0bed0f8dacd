/* CRC32C (Castagnoli, RFC 3720): with the SSE4.2 instruction where the processor has it, else by tables.
 *
 * The instruction takes 3 cycles but a new one may start each cycle, so long inputs run as three streams side by side;
 * their CRCs are joined by "append n zero bytes" tables (after Mark Adler's kernel/crc32c.c: the CRC is linear over GF(2), so
 * appending zeros is a 32 x 32 bit matrix, split into four tables of 256 words).
 *
 * wr_copy_crc32c loads each word of the source exactly once into a register and both stores it and feeds it to the CRC:
 * a client that changes its memory meanwhile gets what it deserves, but the copy always matches its checksum.
 *
 * All tables are written once by a constructor, before any thread exists, and only read afterwards.
 */
#include "kernel/crc_table.h"
#include "kernel/frame.h"

#define POLYNOMIAL 0x82f63b78u /* reflected */
#define LONG_BYTES 4096
#define SHORT_BYTES 256

static wr_crc_table table;
static uint32_t zeros_long[4][256];
static uint32_t zeros_short[4][256];

/* ---- tables ---- */

static uint32_t matrix_times(const uint32_t *matrix, uint32_t vector) {
    uint32_t sum = 0;
    for (; vector; vector >>= 1, matrix++)
        if (vector & 1) sum ^= *matrix;
    return sum;
}

static void matrix_square(uint32_t *square, const uint32_t *matrix) {
    for (int i = 0; i < 32; i++) square[i] = matrix_times(matrix, matrix[i]);
}

/* Tables of the operator "append `bytes` zero bytes"; bytes is a power of two. */
static void make_zeros(uint32_t zeros[4][256], size_t bytes) {
    uint32_t a[32], b[32];
    a[0] = POLYNOMIAL; /* append one zero bit */
    for (int i = 1; i < 32; i++) a[i] = 1u << (i - 1);
    for (size_t bits = 1; bits < bytes * 8; bits *= 2) {
        matrix_square(b, a);
        memcpy(a, b, sizeof a);
    }
    for (uint32_t i = 0; i < 256; i++)
        for (int k = 0; k < 4; k++) zeros[k][i] = matrix_times(a, i << (8 * k));
}

static void __attribute__((constructor)) make_tables(void) {
    wr_crc_table_make(table, POLYNOMIAL);
    make_zeros(zeros_long, LONG_BYTES);
    make_zeros(zeros_short, SHORT_BYTES);
}

/* ---- tables only ---- */

uint32_t wr_crc32c_table(uint32_t seed, void *to, const void *from, size_t n) {
    if (to) return ~wr_crc_table_run(table, ~seed, to, from, n, true);
    return ~wr_crc_table_run(table, ~seed, NULL, from, n, false);
}

/* ---- SSE4.2 ---- */

#if defined(__x86_64__)
#define HARDWARE __attribute__((target("sse4.2")))

static inline uint32_t append_zeros(uint32_t zeros[4][256], uint32_t crc) {
    return zeros[0][crc & 0xff] ^ zeros[1][crc >> 8 & 0xff] ^ zeros[2][crc >> 16 & 0xff] ^ zeros[3][crc >> 24];
}

/* Three streams of `span` bytes each, joined. */
static HARDWARE inline __attribute__((always_inline)) uint64_t run_three(uint64_t crc, uint8_t *to, const uint8_t *from,
                                                                         size_t span, uint32_t zeros[4][256], bool copy) {
    uint64_t b = 0, c = 0;
    for (size_t i = 0; i < span; i += 8) {
        uint64_t x = wr_once8(from + i), y = wr_once8(from + span + i), z = wr_once8(from + 2 * span + i);
        if (copy) {
            memcpy(to + i, &x, 8);
            memcpy(to + span + i, &y, 8);
            memcpy(to + 2 * span + i, &z, 8);
        }
        crc = __builtin_ia32_crc32di(crc, x);
        b = __builtin_ia32_crc32di(b, y);
        c = __builtin_ia32_crc32di(c, z);
    }
    crc = append_zeros(zeros, (uint32_t)crc) ^ b;
    return append_zeros(zeros, (uint32_t)crc) ^ c;
}

static HARDWARE inline __attribute__((always_inline)) uint32_t run_hardware(uint32_t seed, uint8_t *to,
                                                                            const uint8_t *from, size_t n, bool copy) {
    uint64_t crc = seed;
    for (; n >= 3 * LONG_BYTES; n -= 3 * LONG_BYTES, from += 3 * LONG_BYTES) {
        crc = run_three(crc, to, from, LONG_BYTES, zeros_long, copy);
        if (copy) to += 3 * LONG_BYTES;
    }
    for (; n >= 3 * SHORT_BYTES; n -= 3 * SHORT_BYTES, from += 3 * SHORT_BYTES) {
        crc = run_three(crc, to, from, SHORT_BYTES, zeros_short, copy);
        if (copy) to += 3 * SHORT_BYTES;
    }
    for (; n >= 8; n -= 8, from += 8) {
        uint64_t word = wr_once8(from);
        if (copy) memcpy(to, &word, 8), to += 8;
        crc = __builtin_ia32_crc32di(crc, word);
    }
    uint32_t rest = (uint32_t)crc;
    if (n >= 4) {
        uint32_t word = wr_once4(from);
        if (copy) memcpy(to, &word, 4), to += 4;
        rest = __builtin_ia32_crc32si(rest, word);
        n -= 4, from += 4;
    }
    for (; n; n--, from++) {
        uint8_t byte = wr_once1(from);
        if (copy) *to++ = byte;
        rest = __builtin_ia32_crc32qi(rest, byte);
    }
    return rest;
}

static HARDWARE uint32_t crc_hardware(uint32_t seed, const uint8_t *from, size_t n) {
    return run_hardware(seed, NULL, from, n, false);
}

static HARDWARE uint32_t copy_hardware(uint32_t seed, uint8_t *to, const uint8_t *from, size_t n) {
    return run_hardware(seed, to, from, n, true);
}
#endif

uint32_t wr_crc32c(uint32_t seed, const void *bytes, size_t n) {
#if defined(__x86_64__)
    if (__builtin_cpu_supports("sse4.2")) return ~crc_hardware(~seed, bytes, n);
#endif
    return ~wr_crc_table_run(table, ~seed, NULL, bytes, n, false);
}

uint32_t wr_copy_crc32c(uint32_t seed, void *to, const void *from, size_t n) {
#if defined(__x86_64__)
    if (__builtin_cpu_supports("sse4.2")) return ~copy_hardware(~seed, to, from, n);
#endif
    return ~wr_crc_table_run(table, ~seed, to, from, n, true);
}
