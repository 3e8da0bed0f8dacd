/* The store's index: id -> references and place. Open addressing, linear probing, entries never move.
 *
 * One writer (the store server); readers of any process copy a row and re-check its version (seqlock).
 * A row is FREE (state 2, or version 0: never used), LIVE or a TOMBSTONE. A probe ends at the first FREE row.
 * Removing a row makes a tombstone, and the tombstones just before a FREE row become FREE too: no key lies behind them.
 *
 * Growth: a new table in a new region, filled from the old one; then the old header's `retired` is set, so that readers
 * which still map it know that they must open the region of the new index_generation.
 *
 * Rows of one file are linked by `next`: a file that goes away finds its rows. Readers never look at it.
 */
#ifndef WR_INDEX_H
#define WR_INDEX_H
#include "directory.h"

#define WR_ROW_TOMBSTONE 0
#define WR_ROW_LIVE 1
#define WR_ROW_FREE 2

typedef struct {
    wr_index_header *header; /* region: header page + rows */
    wr_index_row *rows;
    uint64_t rows_n; /* power of two */
    uint64_t used;   /* rows that are not free */
    uint64_t live;
} wr_index;

/* Take a zeroed region. 0, or EINVAL (too small, or the rows are no power of two). */
int wr_index_init(wr_index *index, void *region, uint64_t region_bytes);

static inline void wr_index_prefetch(const wr_index *index, uint64_t hash) {
    __builtin_prefetch(&index->rows[hash & (index->rows_n - 1)], 1);
}

/* Server: half of the rows are used. A larger table takes long to make (its pages are touched for the first time), so it is
 * asked for this early, and made while the loop goes on. The same rule as engine/index.py: tight(). */
static inline bool wr_index_tight(const wr_index *index) { return index->used > index->rows_n / 2; }

/* Server: the live row of an id, WR_NO_ROW if there is none. */
uint32_t wr_index_find(const wr_index *index, uint64_t hash, const uint8_t id[16]);
/* Server: a row for a new id (which must be absent); WR_NO_ROW when the table is full. The caller fills it between begin
 * and end. */
uint32_t wr_index_insert(wr_index *index, uint64_t hash);
/* Server: remove a live row. */
void wr_index_remove(wr_index *index, uint32_t row);
/* Server: a copy of another table's live row; returns where, WR_NO_ROW when the table is full. */
uint32_t wr_index_take(wr_index *to, const wr_index_row *row);

/* Around every change of a row that readers look at. */
static inline void wr_row_begin(wr_index_row *row) {
    /* SYNC index-row: the version is odd before anything else changes */
    atomic_store_explicit(&row->version, atomic_load_explicit(&row->version, memory_order_relaxed) + 1,
                          memory_order_relaxed);
    atomic_thread_fence(memory_order_release);
}
static inline void wr_row_end(wr_index_row *row) {
    /* SYNC index-row: pairs with the acquire in wr_index_lookup */
    uint32_t version = atomic_load_explicit(&row->version, memory_order_relaxed) + 1;
    atomic_store_explicit(&row->version, version ? version : 2, memory_order_release);
}

static inline bool wr_row_held(const wr_index_row *row) { return row->ref_count || row->holders; }

/* Reader of any process: 0 and a copy of the row; ENOENT; ESTALE: open the index anew and try again (it was replaced, or the
 * server does not run and left the row half changed); EINVAL: there is no index in that memory. */
int wr_index_lookup(const uint8_t *region, uint64_t region_bytes, uint64_t hash, const uint8_t id[16], wr_index_row *copy);
#endif
