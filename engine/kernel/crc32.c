/* CRC-32 (IEEE 802.3): with carry-less multiplication (PCLMULQDQ, and VPCLMULQDQ for four blocks at once) where the processor has it,
 * else by tables.
 *
 * A CRC is the remainder of a polynomial over GF(2), and stays the same when a block is replaced by anything of the
 * same remainder. So a block of 128 bits is "folded" over the d bits to the block behind it: its halves times x^(d +
 * 32) and x^(d - 32), both taken mod P, are added to that one. Four blocks side by side hide the instruction's
 * latency, four times four where a register holds four; at the end they are folded into one, its 128 bits into 64 and 32 more, and Barrett's reduction takes the
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
#define X_2080 0x11542778all /* 16 * 128 + 32 */
#define X_2016 0x1322d1430ll /* 16 * 128 - 32 */
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

#define WIDE __attribute__((target("pclmul,sse4.1,avx512f,vpclmulqdq")))
#define WIDE_BLOCK 64u
#define WIDE_BYTES (4 * WIDE_BLOCK) /* with less it is not used */

static WIDE inline __attribute__((always_inline)) __m512i take_wide(uint8_t *to, const uint8_t *from, bool copy) {
    __m512i block = _mm512_loadu_si512(from);
    __asm__ volatile("" : "+v"(block)); /* as wr_once8 */
    if (copy) _mm512_storeu_si512(to, block);
    return block;
}

static WIDE inline __attribute__((always_inline)) __m512i fold_wide(__m512i block, __m512i by, __m512i onto) {
    __m512i low = _mm512_clmulepi64_epi128(block, by, 0x00), high = _mm512_clmulepi64_epi128(block, by, 0x11);
    return _mm512_xor_si512(_mm512_xor_si512(low, high), onto);
}

/* As run_hardware, of WIDE_BYTES or more: *done of them, a multiple of WIDE_BLOCK. Returns the block that stands for these. */
static WIDE inline __attribute__((always_inline)) __m128i run_wide(uint32_t crc, uint8_t *to, const uint8_t *from, size_t n, bool copy, size_t *done) {
    const __m512i by_one = _mm512_broadcast_i32x4(_mm_set_epi64x(X_480, X_544)), by_four = _mm512_broadcast_i32x4(_mm_set_epi64x(X_2016, X_2080));
    const __m128i by_block = _mm_set_epi64x(X_96, X_160);
    __m512i a = _mm512_xor_si512(take_wide(to, from, copy), _mm512_zextsi128_si512(_mm_cvtsi32_si128((int)crc)));
    __m512i b = take_wide(to + WIDE_BLOCK, from + WIDE_BLOCK, copy), c = take_wide(to + 2 * WIDE_BLOCK, from + 2 * WIDE_BLOCK, copy);
    __m512i d = take_wide(to + 3 * WIDE_BLOCK, from + 3 * WIDE_BLOCK, copy);
    size_t at = WIDE_BYTES;
    for (; n - at >= WIDE_BYTES; at += WIDE_BYTES) {
        a = fold_wide(a, by_four, take_wide(to + at, from + at, copy));
        b = fold_wide(b, by_four, take_wide(to + at + WIDE_BLOCK, from + at + WIDE_BLOCK, copy));
        c = fold_wide(c, by_four, take_wide(to + at + 2 * WIDE_BLOCK, from + at + 2 * WIDE_BLOCK, copy));
        d = fold_wide(d, by_four, take_wide(to + at + 3 * WIDE_BLOCK, from + at + 3 * WIDE_BLOCK, copy));
    }
    a = fold_wide(fold_wide(fold_wide(a, by_one, b), by_one, c), by_one, d);
    for (; n - at >= WIDE_BLOCK; at += WIDE_BLOCK) a = fold_wide(a, by_one, take_wide(to + at, from + at, copy));
    *done = at;
    __m128i block = _mm512_castsi512_si128(a);
    block = fold(block, by_block, _mm512_extracti32x4_epi32(a, 1));
    block = fold(block, by_block, _mm512_extracti32x4_epi32(a, 2));
    return fold(block, by_block, _mm512_extracti32x4_epi32(a, 3));
}

/* What is left behind the blocks that `block` stands for. */
static HARDWARE inline __attribute__((always_inline)) uint32_t run_rest(__m128i block, uint8_t *to, const uint8_t *from, size_t n, bool copy) {
    const __m128i by_one = _mm_set_epi64x(X_96, X_160);
    size_t at = 0;
    for (; n - at >= BLOCK; at += BLOCK) block = fold(block, by_one, take(to + at, from + at, copy));
    return wr_crc_table_run(table, reduce(block), to + at, from + at, n - at, copy);
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
    return run_rest(a, to + at, from + at, n - at, copy);
}

static HARDWARE uint32_t crc_hardware(uint32_t crc, const uint8_t *from, size_t n) {
    return run_hardware(crc, (uint8_t *)(uintptr_t)from, from, n, false); /* not written to */
}

static HARDWARE uint32_t copy_hardware(uint32_t crc, uint8_t *to, const uint8_t *from, size_t n) {
    return run_hardware(crc, to, from, n, true);
}

static WIDE uint32_t crc_wide(uint32_t crc, const uint8_t *from, size_t n) {
    size_t done;
    uint8_t *to = (uint8_t *)(uintptr_t)from; /* not written to */
    __m128i block = run_wide(crc, to, from, n, false, &done);
    return run_rest(block, to + done, from + done, n - done, false);
}

static WIDE uint32_t copy_wide(uint32_t crc, uint8_t *to, const uint8_t *from, size_t n) {
    size_t done;
    __m128i block = run_wide(crc, to, from, n, true, &done);
    return run_rest(block, to + done, from + done, n - done, true);
}

#endif

/* ---- what this processor has ---- */

enum { TABLES, ONE_BLOCK, FOUR_BLOCKS };
static int has = TABLES, uses = TABLES; /* written by the constructor, before any thread exists, and by tests */

static void __attribute__((constructor)) look_at_processor(void) {
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("pclmul") && __builtin_cpu_supports("sse4.1")) has = ONE_BLOCK;
    if (has && __builtin_cpu_supports("vpclmulqdq") && __builtin_cpu_supports("avx512f")) has = FOUR_BLOCKS;
#endif
    uses = has;
}

int wr_crc32_use(int most) {
    uses = most < has ? most : has;
    return has;
}

uint32_t wr_crc32(uint32_t seed, const void *bytes, size_t n) {
#if defined(__x86_64__)
    if (n >= WIDE_BYTES && uses >= FOUR_BLOCKS) return ~crc_wide(~seed, bytes, n);
    if (uses >= ONE_BLOCK) return ~crc_hardware(~seed, bytes, n);
#endif
    return ~wr_crc_table_run(table, ~seed, NULL, bytes, n, false);
}

uint32_t wr_copy_crc32(uint32_t seed, void *to, const void *from, size_t n) {
#if defined(__x86_64__)
    if (n >= WIDE_BYTES && uses >= FOUR_BLOCKS) return ~copy_wide(~seed, to, from, n);
    if (uses >= ONE_BLOCK) return ~copy_hardware(~seed, to, from, n);
#endif
    return ~wr_crc_table_run(table, ~seed, to, from, n, true);
}
