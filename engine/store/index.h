/* The store's index: id -> references and place. Design note 003, section 1; the readers' side is store/index_reader.h.
 *
 * Two parts, an id has one entry at most:
 *   dense  counted ids in blocks of 1024 entries by (epoch, counter >> 10); the dense table says where a block lies. Blocks lie in
 *          extents, regions that are only added. A block whose entries are all unused is kept for a while and then used again.
 *   hash   everything else, and counted ids for which a block would waste memory. Open addressing, linear probing.
 * An id is looked for in the dense part first. An entry in use never moves, but for the hash part's in wr_index_replace.
 *
 * Invariants
 *   One writer, the store server. Everything that readers look at changes between wr_entry_begin and wr_entry_end (seqlock), or has a
 *   version of its own (dense table). A block is named in the table before an entry of it is used, and all its entries are unused
 *   before its row becomes a tombstone. A probe ends at the first free row; tombstones just before a free row become free.
 *   An entry that wr_index_insert gave counts as in use: the caller must fill it before anything else is done with the index.
 *   strays[hash of (epoch, group)] counts the counted ids that lie in the hash part: 0 proves that a group has none there.
 * Crash points
 *   None: the regions are made anew at every start of the server. Its successor must mark both old headers (dense table, hash part) as
 *   `replaced` BEFORE it publishes generation and index_generation, so that no reader takes one new and one old part for a whole.
 */
#ifndef WR_INDEX_H
#define WR_INDEX_H
#include "store/directory.h"

#define WR_ROW_TOMBSTONE 0
#define WR_ROW_LIVE 1
#define WR_ROW_FREE 2

#define WR_DENSE_BLOCK_BYTES ((uint64_t)WR_DENSE_BLOCK_ENTRIES * sizeof(wr_index_entry))
#define WR_DENSE_EXTENT_BYTES (WR_DENSE_BLOCK_BYTES * WR_DENSE_EXTENT_BLOCKS)
#define WR_INDEX_STRAYS 16384
#define WR_INDEX_IDLE 256
#define WR_INDEX_MEMOS 16

typedef struct {
    uint64_t epoch, group;
    wr_index_entry *entries; /* NULL: nothing is remembered here */
    uint32_t row;
} wr_index_memo;

typedef struct wr_index {
    /* hash part */
    wr_index_header *header; /* region: header page + rows */
    wr_index_row *rows;
    uint64_t rows_n; /* power of two */
    uint64_t used;   /* rows that are not free */
    uint64_t hash_live;
    /* dense part */
    wr_index_header *dense_header; /* region: header page + table */
    wr_dense_table_row *table;
    uint64_t table_n;    /* power of two */
    uint64_t table_used; /* rows that are not free */
    uint8_t **extents;
    uint32_t extents_n;
    uint64_t blocks;  /* that have a row */
    uint64_t empties; /* of these, without an entry in use; all of them are in `idle` */
    uint64_t dense_live;
    uint64_t fresh;      /* blocks from here on were never used */
    uint32_t *free;      /* stack of blocks to use again */
    uint32_t free_n;
    wr_row_ref *block_row; /* per block: its row; none: it has none */
    uint8_t *block_idle; /* per block: it is in `idle` */
    uint32_t idle[WR_INDEX_IDLE]; /* ring: blocks that are, or were, empty */
    uint32_t idle_first, idle_n;
    bool asked; /* a block was wanted and there was none */
    uint32_t *strays;
    wr_index_memo memo[WR_INDEX_MEMOS];
    uint64_t live; /* entries in use, of both parts */
} wr_index;

/* Take zeroed regions: hash_region = header page + 2^k index_row, dense_region = header page + 2^k dense_table_row.
 * 0, EINVAL (too small, or the rows are no power of two), ENOMEM. */
int wr_index_init(wr_index *index, void *hash_region, uint64_t hash_bytes, void *dense_region, uint64_t dense_bytes);
/* Give back private memory; the regions are the caller's. */
void wr_index_free(wr_index *index);

/* Extents in order 0, 1, 2 …; WR_DENSE_EXTENT_BYTES each, zeroed (touch their pages before, or they get them block by block). 0, EINVAL, ENOMEM, ENOSPC (the table is full). */
int wr_index_add_extent(wr_index *index, void *region, uint64_t bytes);
/* Few free blocks are left (or none was given yet and a dense insert came), and the table has room. */
bool wr_index_wants_extent(const wr_index *index);

/* The entry in use of an id, whatever its references; NULL: none. */
wr_index_entry *wr_index_find(wr_index *index, const uint8_t id[16]);
/* An entry for an id, which must be absent. NULL: no room (the caller waits). The caller fills it with state 1 between begin and end. */
wr_index_entry *wr_index_insert(wr_index *index, const uint8_t id[16]);
void wr_index_remove(wr_index *index, const uint8_t id[16], wr_index_entry *entry);
void wr_index_prefetch(const wr_index *index, const uint8_t id[16]);

/* Half of the hash part is used. A larger table takes long to make (its pages are touched for the first time), so it is asked for
 * early, and made while the loop goes on. */
static inline bool wr_index_tight(const wr_index *index) { return index->used > index->rows_n / 2; }
/* Go over to a larger or cleaned hash part; *old is the header of the one before (mark it as replaced when the new one is published).
 * 0, EINVAL (too small for what is there). */
int wr_index_replace(wr_index *index, void *region, uint64_t bytes, wr_index_header **old);

/* Every entry in use, hash part first. The entry just given may be removed. Start anew after wr_index_replace. */
typedef struct {
    uint64_t at;
} wr_index_cursor;
wr_index_entry *wr_index_next(wr_index *index, wr_index_cursor *cursor, uint8_t id[16]); /* NULL at the end */

/* Fast path for consecutive counted ids: the entries of id, id + 1 … in one block (made when allowed), n of them (1 … max).
 * Entries with state != 1 are absent: the hash part holds none of them. False: use find and insert for first_id.
 * After filling k absent ones: wr_index_run_filled(index, run, k), before anything else is done with the index. */
typedef struct {
    wr_index_entry *entries;
    uint32_t n;
    uint32_t row;
} wr_index_run;
bool wr_index_run_of(wr_index *index, const uint8_t first_id[16], uint32_t max, wr_index_run *run);
void wr_index_run_filled(wr_index *index, const wr_index_run *run, uint32_t k);

/* Around every change of an entry that readers look at. */
static inline void wr_entry_begin(wr_index_entry *entry) {
    /* SYNC index-entry: the version is odd before anything else changes */
    atomic_store_explicit(&entry->version, atomic_load_explicit(&entry->version, memory_order_relaxed) + 1,
                          memory_order_relaxed);
    atomic_thread_fence(memory_order_release);
}
static inline void wr_entry_end(wr_index_entry *entry) {
    /* SYNC index-entry: pairs with the acquire in store/index_reader.c */
    uint32_t version = atomic_load_explicit(&entry->version, memory_order_relaxed) + 1;
    atomic_store_explicit(&entry->version, version ? version : 2, memory_order_release);
}

static inline bool wr_entry_held(const wr_index_entry *entry) { return entry->ref_count || entry->holders; }

/* Hash of a group of counted ids: its first row in the dense table. */
static inline uint64_t wr_dense_hash(uint64_t epoch, uint64_t group) {
    uint64_t h = (epoch ^ (group << 32 | group >> 32)) * 0x9e3779b97f4a7c15ull;
    h ^= h >> 32;
    h *= 0xc4ceb9fe1a85ec53ull;
    return h ^ h >> 29;
}
#endif
