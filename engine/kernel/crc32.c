/* CRC-32 (IEEE 802.3): with carry-less multiplication (PCLMULQDQ) where the processor has it, else by tables.
 *
 * A CRC is the remainder of a polynomial over GF(2), and stays the same when a block is replaced by anything of the
 * same remainder. So a block of 128 bits is "folded" over the d bits to the block behind it: its halves times x^(d +
 * 32) and x^(d - 32), both taken mod P, are added to that one. Four blocks side by side hide the instruction's
 * latency; at the end they are folded into one, its 128 bits into 64 and 32 more, and Barrett's reduction takes the
 * remainder. (Gopal et al., Fast CRC Computation for Generic Polynomials Using PCLMULQDQ Instruction, Intel 2009;
 * bits are reflected, which puts one more factor x into every product.)
 *
 * Bytes are copied, and read once, as in crc32c.c.
 */
#include "kernel/crc32.h"
#include "kernel/crc_table.h"

#define POLYNOMIAL 0xedb88320u /* reflected */

static wr_crc_table table;

static void __attribute__((constructor)) make_table(void) { wr_crc_table_make(table, POLYNOMIAL); }

uint32_t wr_crc32_table(uint32_t seed, void *to, const void *from, size_t n) {
    if (to) return ~wr_crc_table_run(table, ~seed, to, from, n, true);
    return ~wr_crc_table_run(table, ~seed, NULL, from, n, false);
}

/* ---- PCLMULQDQ ---- */

#if defined(__x86_64__)
#include <immintrin.h>
#define HARDWARE __attribute__((target("pclmul,sse4.1")))
#define BLOCK 16u

/* x^e mod P, reflected, times x */
#define X_544 0x154442bd4ll /* 4 * 128 + 32 */
#define X_480 0x1c6e41596ll /* 4 * 128 - 32 */
#define X_160 0x1751997d0ll /* 128 + 32 */
#define X_96 0x0ccaa009ell  /* 128 - 32 */
#define X_64 0x163cd6124ll
#define P 0x1db710641ll           /* with its x^32 */
#define X_64_OVER_P 0x1f7011641ll /* the quotient, for Barrett's reduction */

static HARDWARE inline __attribute__((always_inline)) __m128i take(uint8_t *to, const uint8_t *from, bool copy) {
    __m128i block = _mm_loadu_si128((const __m128i *)(const void *)from);
    __asm__ volatile("" : "+x"(block)); /* as wr_once8 */
    if (copy) _mm_storeu_si128((__m128i *)(void *)to, block);
    return block;
}

static HARDWARE inline __attribute__((always_inline)) __m128i fold(__m128i block, __m128i by, __m128i onto) {
    __m128i low = _mm_clmulepi64_si128(block, by, 0x00), high = _mm_clmulepi64_si128(block, by, 0x11);
    return _mm_xor_si128(_mm_xor_si128(low, high), onto);
}

/* The register, of a block that stands for all before it. */
static HARDWARE inline __attribute__((always_inline)) uint32_t reduce(__m128i block) {
    const __m128i words = _mm_setr_epi32(-1, 0, -1, 0), barrett = _mm_set_epi64x(X_64_OVER_P, P);
    __m128i product = _mm_clmulepi64_si128(block, _mm_set_epi64x(X_96, 0), 0x10);
    block = _mm_xor_si128(product, _mm_srli_si128(block, 8));
    product = _mm_clmulepi64_si128(_mm_and_si128(block, words), _mm_set_epi64x(0, X_64), 0x00);
    block = _mm_xor_si128(product, _mm_srli_si128(block, 4));
    __m128i quotient = _mm_and_si128(_mm_clmulepi64_si128(_mm_and_si128(block, words), barrett, 0x10), words);
    block = _mm_xor_si128(block, _mm_clmulepi64_si128(quotient, barrett, 0x00));
    return (uint32_t)_mm_extract_epi32(block, 1);
}

/* `to` is moved along in any case, and written to if `copy`. */
static HARDWARE inline __attribute__((always_inline)) uint32_t run_hardware(uint32_t crc, uint8_t *to,
                                                                            const uint8_t *from, size_t n, bool copy) {
    const __m128i by_one = _mm_set_epi64x(X_96, X_160), by_four = _mm_set_epi64x(X_480, X_544);
    if (n < BLOCK) return wr_crc_table_run(table, crc, to, from, n, copy);
    __m128i a = _mm_xor_si128(take(to, from, copy), _mm_cvtsi32_si128((int)crc));
    size_t at = BLOCK;
    if (n >= 4 * BLOCK) {
        __m128i b = take(to + BLOCK, from + BLOCK, copy), c = take(to + 2 * BLOCK, from + 2 * BLOCK, copy);
        __m128i d = take(to + 3 * BLOCK, from + 3 * BLOCK, copy);
        for (at = 4 * BLOCK; n - at >= 4 * BLOCK; at += 4 * BLOCK) {
            a = fold(a, by_four, take(to + at, from + at, copy));
            b = fold(b, by_four, take(to + at + BLOCK, from + at + BLOCK, copy));
            c = fold(c, by_four, take(to + at + 2 * BLOCK, from + at + 2 * BLOCK, copy));
            d = fold(d, by_four, take(to + at + 3 * BLOCK, from + at + 3 * BLOCK, copy));
        }
        a = fold(fold(fold(a, by_one, b), by_one, c), by_one, d);
    }
    for (; n - at >= BLOCK; at += BLOCK) a = fold(a, by_one, take(to + at, from + at, copy));
    return wr_crc_table_run(table, reduce(a), to + at, from + at, n - at, copy);
}

static HARDWARE uint32_t crc_hardware(uint32_t crc, const uint8_t *from, size_t n) {
    return run_hardware(crc, (uint8_t *)(uintptr_t)from, from, n, false); /* not written to */
}

static HARDWARE uint32_t copy_hardware(uint32_t crc, uint8_t *to, const uint8_t *from, size_t n) {
    return run_hardware(crc, to, from, n, true);
}

static inline bool has_hardware(void) { return __builtin_cpu_supports("pclmul") && __builtin_cpu_supports("sse4.1"); }
#endif

uint32_t wr_crc32(uint32_t seed, const void *bytes, size_t n) {
#if defined(__x86_64__)
    if (has_hardware()) return ~crc_hardware(~seed, bytes, n);
#endif
    return ~wr_crc_table_run(table, ~seed, NULL, bytes, n, false);
}

uint32_t wr_copy_crc32(uint32_t seed, void *to, const void *from, size_t n) {
#if defined(__x86_64__)
    if (has_hardware()) return ~copy_hardware(~seed, to, from, n);
#endif
    return ~wr_crc_table_run(table, ~seed, to, from, n, true);
}
