/* The store's index. What it is and its invariants: index.h. */
#include "index.h"
#include "racy.h"
#include <assert.h>
#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/mman.h>

#define ODD_MAX 20000 /* looks at a row that is being changed, before the reader is sent to try again */

int wr_index_init(wr_index *index, void *region, uint64_t region_bytes) {
    memset(index, 0, sizeof *index);
    if (region_bytes < WR_PAGE_BYTES + 64 * sizeof(wr_index_row)) return EINVAL;
    index->header = region;
    index->rows = (wr_index_row *)((uint8_t *)region + WR_PAGE_BYTES);
    uint64_t rows_n = (region_bytes - WR_PAGE_BYTES) / sizeof(wr_index_row);
    if (rows_n & (rows_n - 1) || rows_n > 1ull << 31) return EINVAL;
    index->rows_n = rows_n;
    index->header->rows = rows_n;
#ifdef MADV_POPULATE_WRITE
    /* A row's page that is not mapped yet costs a fault, and defeats every prefetch. Where the kernel cannot, it comes later. */
    madvise(region, region_bytes & ~(uint64_t)(WR_PAGE_BYTES - 1), MADV_POPULATE_WRITE);
#endif
    return 0;
}

static inline bool is_free(const wr_index_row *row) {
    return row->state == WR_ROW_FREE || atomic_load_explicit(&row->version, memory_order_relaxed) == 0;
}

uint32_t wr_index_find(const wr_index *index, uint64_t hash, const uint8_t id[16]) {
    uint64_t mask = index->rows_n - 1;
    for (uint64_t i = hash & mask, n = 0; n <= mask; i = (i + 1) & mask, n++) {
        const wr_index_row *row = &index->rows[i];
        if (is_free(row)) return WR_NO_ROW;
        if (row->state == WR_ROW_LIVE && memcmp(row->id, id, 16) == 0) return (uint32_t)i;
    }
    return WR_NO_ROW;
}

uint32_t wr_index_insert(wr_index *index, uint64_t hash) {
    uint64_t mask = index->rows_n - 1;
    if (index->live > index->rows_n - index->rows_n / 16) return WR_NO_ROW;
    for (uint64_t i = hash & mask, n = 0; n <= mask; i = (i + 1) & mask, n++) {
        wr_index_row *row = &index->rows[i];
        bool free_row = is_free(row);
        if (!free_row && row->state == WR_ROW_LIVE) continue;
        if (free_row && index->used >= index->rows_n - 1) return WR_NO_ROW; /* one free row ends every probe */
        if (free_row) atomic_store_explicit(&index->header->used, ++index->used, memory_order_relaxed);
        atomic_store_explicit(&index->header->live, ++index->live, memory_order_relaxed);
        return (uint32_t)i;
    }
    return WR_NO_ROW;
}

void wr_index_remove(wr_index *index, uint32_t at) {
    uint64_t mask = index->rows_n - 1;
    wr_index_row *row = &index->rows[at];
    assert(row->state == WR_ROW_LIVE);
    wr_row_begin(row);
    row->state = WR_ROW_TOMBSTONE;
    wr_row_end(row);
    index->live--;
    if (is_free(&index->rows[(at + 1) & mask])) {
        /* Nothing lies behind: this row and the tombstones before it end their probes here. */
        for (uint64_t i = at; !is_free(&index->rows[i]) && index->rows[i].state == WR_ROW_TOMBSTONE; i = (i - 1) & mask) {
            wr_row_begin(&index->rows[i]);
            index->rows[i].state = WR_ROW_FREE;
            wr_row_end(&index->rows[i]);
            index->used--;
        }
        atomic_store_explicit(&index->header->used, index->used, memory_order_relaxed);
    }
    atomic_store_explicit(&index->header->live, index->live, memory_order_relaxed);
}

uint32_t wr_index_take(wr_index *to, const wr_index_row *row) {
    uint32_t at = wr_index_insert(to, wr_id_hash(row->id));
    if (at == WR_NO_ROW) return at;
    wr_index_row *copy = &to->rows[at];
    memcpy((uint8_t *)copy + 4, (const uint8_t *)row + 4, sizeof *copy - 4);
    wr_row_end(copy);
    wr_row_end(copy);
    return at;
}

int wr_index_lookup(const uint8_t *region, uint64_t region_bytes, uint64_t hash, const uint8_t id[16], wr_index_row *copy) {
    const wr_index_header *header = (const wr_index_header *)region;
    uint64_t rows_n = header->rows;
    if (!rows_n || rows_n & (rows_n - 1) || region_bytes < WR_PAGE_BYTES ||
        (region_bytes - WR_PAGE_BYTES) / sizeof(wr_index_row) < rows_n)
        return EINVAL;
    const wr_index_row *rows = (const wr_index_row *)(region + WR_PAGE_BYTES);
    uint64_t mask = rows_n - 1;
    int found = ENOENT;
    uint32_t odd = 0;
    for (uint64_t i = hash & mask, n = 0; n <= mask; i = (i + 1) & mask, n++) {
        uint32_t version;
        for (;;) {
            /* SYNC index-row */
            version = atomic_load_explicit(&rows[i].version, memory_order_acquire);
            if (version == 0) break;
            if (version & 1) {
                /* Odd for long when the server does not run just now, for ever when it was killed here: then the
                 * table is replaced soon. */
                if (++odd > ODD_MAX || atomic_load_explicit(&header->retired, memory_order_acquire)) return ESTALE;
                if (odd % 64) wr_cpu_relax();
                else sched_yield();
                continue;
            }
            wr_copy_racy((void *)copy, (const void *)&rows[i], sizeof *copy);
            atomic_thread_fence(memory_order_acquire);
            if (atomic_load_explicit(&rows[i].version, memory_order_relaxed) == version) break;
        }
        if (version == 0 || copy->state == WR_ROW_FREE) break;
        if (copy->state == WR_ROW_LIVE && memcmp(copy->id, id, 16) == 0) {
            found = 0;
            break;
        }
    }
    /* SYNC index-retired: what was read is the truth if the table was not replaced until now */
    if (atomic_load_explicit(&header->retired, memory_order_acquire)) return ESTALE;
    return found;
}
