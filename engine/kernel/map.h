/* A hash table from a 16-byte key to a 64-bit value, in private memory of one thread: open addressing, linear probing,
 * deletion by shifting back, so that it never fills with tombstones. Used for queue ids, message ids, client epochs. */
#ifndef WR_MAP_H
#define WR_MAP_H
#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    uint64_t a, b; /* the key */
    uint64_t value;
    uint64_t used;
} wr_map_row;

typedef struct {
    wr_map_row *rows;
    uint64_t size; /* power of two, 0 while empty */
    uint64_t n;
} wr_map;

static inline uint64_t wr_map_hash(uint64_t a, uint64_t b) {
    uint64_t h = (a ^ (b * 0x9E3779B97F4A7C15ull)) * 0xD6E8FEB86659FD93ull;
    h ^= h >> 32;
    h *= 0xD6E8FEB86659FD93ull;
    return h ^ (h >> 32);
}

static inline uint64_t *wr_map_find(const wr_map *m, uint64_t a, uint64_t b) {
    if (!m->n) return NULL;
    for (uint64_t i = wr_map_hash(a, b);; i++) {
        wr_map_row *row = &m->rows[i & (m->size - 1)];
        if (!row->used) return NULL;
        if (row->a == a && row->b == b) return &row->value;
    }
}

/* Pointers to rows are void after it. */
static inline int wr_map_resize(wr_map *m, uint64_t size) {
    wr_map_row *rows = calloc(size, sizeof *rows);
    if (!rows) return ENOMEM;
    for (uint64_t i = 0; i < m->size; i++) {
        if (!m->rows[i].used) continue;
        uint64_t at = wr_map_hash(m->rows[i].a, m->rows[i].b);
        while (rows[at & (size - 1)].used) at++;
        rows[at & (size - 1)] = m->rows[i];
    }
    free(m->rows);
    m->rows = rows;
    m->size = size;
    return 0;
}

static inline int wr_map_reserve(wr_map *m, uint64_t more) {
    if (m->size && (m->n + more) * 2 <= m->size) return 0;
    uint64_t size = m->size ? m->size : 64;
    while (size < (m->n + more) * 2) size *= 2;
    return size == m->size ? 0 : wr_map_resize(m, size);
}

/* A table that is nearly empty gives most of its memory back; without memory for a smaller one it stays. */
static inline void wr_map_shrink(wr_map *m) {
    if (m->size > 4096 && m->n * 32 < m->size) wr_map_resize(m, m->size / 8);
}

/* The value of a key, made 0 when it is new. NULL: no memory. */
__attribute__((warn_unused_result)) static inline uint64_t *wr_map_put(wr_map *m, uint64_t a, uint64_t b) {
    uint64_t *found = wr_map_find(m, a, b);
    if (found) return found;
    if (wr_map_reserve(m, 1)) return NULL;
    uint64_t i = wr_map_hash(a, b);
    while (m->rows[i & (m->size - 1)].used) i++;
    wr_map_row *row = &m->rows[i & (m->size - 1)];
    *row = (wr_map_row){.a = a, .b = b, .value = 0, .used = 1};
    m->n++;
    return &row->value;
}

static inline bool wr_map_remove(wr_map *m, uint64_t a, uint64_t b) {
    uint64_t *value = wr_map_find(m, a, b);
    if (!value) return false;
    uint64_t hole = (uint64_t)((wr_map_row *)((uint8_t *)value - offsetof(wr_map_row, value)) - m->rows);
    for (uint64_t i = hole + 1;; i++) {
        wr_map_row *row = &m->rows[i & (m->size - 1)];
        if (!row->used) break;
        uint64_t home = wr_map_hash(row->a, row->b);
        /* may the row move into the hole? only if its home does not lie behind the hole */
        if (((i - home) & (m->size - 1)) >= ((i - hole) & (m->size - 1))) {
            m->rows[hole & (m->size - 1)] = *row;
            hole = i;
        }
    }
    m->rows[hole & (m->size - 1)].used = 0;
    m->n--;
    return true;
}

static inline void wr_map_free(wr_map *m) {
    free(m->rows);
    *m = (wr_map){0};
}
#endif
