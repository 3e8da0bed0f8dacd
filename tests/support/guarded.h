/* Shared memory of a test: zeroed pages, and one before and one behind that nobody may touch. */
#ifndef WR_TEST_GUARDED_H
#define WR_TEST_GUARDED_H
#include "support/check.h"
#include <stddef.h>
#include <stdint.h>
#include <sys/mman.h>

#define GUARD_BYTES 4096ull

static inline uint64_t guarded_bytes(uint64_t bytes) { return (bytes + GUARD_BYTES - 1) / GUARD_BYTES * GUARD_BYTES; }

static inline void *guarded_new(uint64_t bytes) {
    uint64_t all = guarded_bytes(bytes) + 2 * GUARD_BYTES;
    uint8_t *p = mmap(NULL, all, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    CHECK(p != MAP_FAILED);
    CHECK(mprotect(p + GUARD_BYTES, guarded_bytes(bytes), PROT_READ | PROT_WRITE) == 0);
    return p + GUARD_BYTES;
}

static inline void guarded_free(void *p, uint64_t bytes) {
    if (p) CHECK(munmap((uint8_t *)p - GUARD_BYTES, guarded_bytes(bytes) + 2 * GUARD_BYTES) == 0);
}
#endif
