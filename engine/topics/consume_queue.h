/* The units of a consume queue, on the memory of a file (or of what stands for it): one writer, readers in any
 * process. The format is declared in engine/topics/formats.py.
 *
 * Invariants
 *   A unit whose size is 0 is not there yet. Its size is written last, so that nobody sees a part of it. How many
 *   units count is a horizon of the caller's; behind it, what a reader sees may be of a writer that was killed, and
 *   is written again. The memory of the first unit is aligned to 4 bytes.
 *   Where there is no message (the log lost it, or keeps a newer one of its key) stands the mark of RocketMQ: position 0,
 *   size UNIT_EMPTY, tags 0. So zeros below the horizon are damage. */
#ifndef WR_TOPICS_CONSUME_QUEUE_H
#define WR_TOPICS_CONSUME_QUEUE_H
#include "topics/formats.h"
#include <assert.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define WR_UNIT(field) WR_CONSUME_QUEUE_UNIT_AT_##field
#define WR_UNIT_NOWHERE UINT64_MAX /* position of a unit in memory that says that there is no message; its size is 0 */

typedef struct {
    uint64_t physical_offset;
    uint32_t size; /* 0: there is no message */
    int64_t tags_code;
} wr_unit;

/* The words of a unit; they are big-endian, and of 4 bytes, because a unit is aligned to no more. */
static inline _Atomic uint32_t *wr_unit_word(const uint8_t *unit, uint32_t at) {
    return (_Atomic uint32_t *)(uintptr_t)(unit + at);
}
static inline void wr_unit_store(uint8_t *unit, uint32_t at, uint32_t value, memory_order order) {
    atomic_store_explicit(wr_unit_word(unit, at), __builtin_bswap32(value), order);
}
static inline uint32_t wr_unit_load(const uint8_t *unit, uint32_t at, memory_order order) {
    return __builtin_bswap32(atomic_load_explicit(wr_unit_word(unit, at), order));
}

/* Write the n-th unit from `units` on; size is not 0. */
static inline void wr_unit_put(uint8_t *units, uint64_t n, uint64_t physical_offset, uint32_t size, int64_t tags_code) {
    uint8_t *unit = units + n * WR_CONSUME_QUEUE_UNIT_SIZE;
    assert(size && !((uintptr_t)units & 3));
    wr_unit_store(unit, WR_UNIT(PHYSICAL_OFFSET), (uint32_t)(physical_offset >> 32), memory_order_relaxed);
    wr_unit_store(unit, WR_UNIT(PHYSICAL_OFFSET) + 4, (uint32_t)physical_offset, memory_order_relaxed);
    wr_unit_store(unit, WR_UNIT(TAGS_CODE), (uint32_t)((uint64_t)tags_code >> 32), memory_order_relaxed);
    wr_unit_store(unit, WR_UNIT(TAGS_CODE) + 4, (uint32_t)tags_code, memory_order_relaxed);
    /* SYNC unit-there: pairs with wr_unit_get */
    wr_unit_store(unit, WR_UNIT(SIZE), size, memory_order_release);
}

/* Read the n-th unit; false: it is not there, or (wr_unit_is_empty) says that there is none. The numbers are as they stand: whether a record lies there, the log
 * knows. */
static inline bool wr_unit_get(const uint8_t *units, uint64_t n, wr_unit *to) {
    const uint8_t *unit = units + n * WR_CONSUME_QUEUE_UNIT_SIZE;
    assert(!((uintptr_t)units & 3));
    /* SYNC unit-there: pairs with wr_unit_put */
    to->size = wr_unit_load(unit, WR_UNIT(SIZE), memory_order_acquire);
    if (!to->size) {
        *to = (wr_unit){0};
        return false;
    }
    to->physical_offset = (uint64_t)wr_unit_load(unit, WR_UNIT(PHYSICAL_OFFSET), memory_order_relaxed) << 32 |
                          wr_unit_load(unit, WR_UNIT(PHYSICAL_OFFSET) + 4, memory_order_relaxed);
    to->tags_code = (int64_t)((uint64_t)wr_unit_load(unit, WR_UNIT(TAGS_CODE), memory_order_relaxed) << 32 |
                              wr_unit_load(unit, WR_UNIT(TAGS_CODE) + 4, memory_order_relaxed));
    if (to->size != WR_UNIT_EMPTY || to->physical_offset || to->tags_code) return true;
    *to = (wr_unit){.physical_offset = WR_UNIT_NOWHERE};
    return false;
}

/* Of one that was read: it says that there is no message; or it is not there, and nothing but zeros is. */
static inline bool wr_unit_is_empty(const wr_unit *unit) { return !unit->size && unit->physical_offset == WR_UNIT_NOWHERE; }
static inline bool wr_unit_is_zeros(const wr_unit *unit) { return !unit->size && unit->physical_offset != WR_UNIT_NOWHERE; }
#endif
