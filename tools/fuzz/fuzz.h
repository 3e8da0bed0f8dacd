/* What every fuzz target has: its input as a stream of choices, checks that end the run, memory with guarded edges.
 *
 * A target is one file with LLVMFuzzerTestOneInput. clang's libFuzzer drives it (scripts/fuzz), or standalone.c, which
 * replays a corpus and its mutations under any compiler (tests/fuzz). A target must be deterministic: the same input, the same run.
 * Regions are taken from malloc, never from mmap, so that AddressSanitizer knows their ends.
 */
#ifndef WR_FUZZ_H
#define WR_FUZZ_H
#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* The program is wrong: say where, and end. */
#define FUZZ_CHECK(condition)                                                                        \
    do {                                                                                             \
        if (!(condition)) {                                                                          \
            fprintf(stderr, "FUZZ_CHECK %s:%d: %s (errno %d)\n", __FILE__, __LINE__, #condition, errno); \
            abort();                                                                                 \
        }                                                                                            \
    } while (0)

#define CHECK FUZZ_CHECK /* of the rigs that targets share with tests */

typedef struct {
    const uint8_t *at;
    size_t left;
} fuzz_input;

/* Past the end everything is 0. */
static inline uint64_t fuzz_take(fuzz_input *in, unsigned bytes) {
    uint64_t value = 0;
    for (unsigned i = 0; i < bytes && in->left; i++, in->left--) value |= (uint64_t)*in->at++ << 8 * i;
    return value;
}
static inline uint8_t fuzz8(fuzz_input *in) { return (uint8_t)fuzz_take(in, 1); }
static inline uint16_t fuzz16(fuzz_input *in) { return (uint16_t)fuzz_take(in, 2); }
static inline uint32_t fuzz32(fuzz_input *in) { return (uint32_t)fuzz_take(in, 4); }
static inline uint64_t fuzz64(fuzz_input *in) { return fuzz_take(in, 8); }
/* A number near an edge, or any: most bugs of sizes live there. `scale`: what counts as an edge here. */
static inline uint64_t fuzz_size(fuzz_input *in, uint64_t scale) {
    uint8_t how = fuzz8(in);
    switch (how % 8) {
    case 0:
        return fuzz8(in);
    case 1:
        return fuzz16(in);
    case 2:
        return scale + fuzz8(in) - 128;
    case 3:
        return scale / 2 + fuzz8(in);
    case 4:
        return UINT64_MAX - fuzz8(in);
    case 5:
        return 1ull << (fuzz8(in) % 64);
    case 6:
        return UINT32_MAX - fuzz8(in);
    default:
        return fuzz64(in);
    }
}
static inline void fuzz_bytes(fuzz_input *in, void *to, size_t n) {
    size_t k = n < in->left ? n : in->left;
    if (k) memcpy(to, in->at, k);
    memset((uint8_t *)to + k, 0, n - k);
    in->at += k;
    in->left -= k;
}

/* A number that follows from the input and that the input cannot contain: for what a hostile client must not guess. */
static inline uint64_t fuzz_secret(const uint8_t *data, size_t size) {
    uint64_t h = 0xcbf29ce484222325ull;
    for (size_t i = 0; i < size; i++) h = (h ^ data[i]) * 0x100000001b3ull;
    h ^= h >> 33;
    h *= 0xff51afd7ed558ccdull;
    return h ^ h >> 29;
}
static inline uint64_t fuzz_mix(uint64_t h) {
    h ^= h >> 33;
    h *= 0xff51afd7ed558ccdull;
    h ^= h >> 33;
    h *= 0xc4ceb9fe1a85ec53ull;
    return h ^ h >> 33;
}

/* Memory from a page's start to its very end. */
static inline void *fuzz_memory(size_t bytes) {
    void *p = aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
    FUZZ_CHECK(p);
    memset(p, 0, (bytes + 4095) / 4096 * 4096);
    return p;
}
#endif
