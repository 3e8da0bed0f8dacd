/* The store's index, the server's side. What it is and its invariants: store/index.h. */
#include "store/index.h"
#include "kernel/log.h"
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>

#define NO_BLOCK UINT32_MAX
#define GENEROUS 16       /* blocks that are made for whatever comes */
#define FILL 8            /* then blocks are made while an eighth of the entries is in use */
#define EXTENT_EARLY 256  /* free blocks below which the next extent is asked for */
#define DENSE (1ull << 63) /* cursor: in the dense part */

_Static_assert(offsetof(wr_index_row, version) == offsetof(wr_index_entry, version) &&
                   offsetof(wr_index_row, file) == offsetof(wr_index_entry, file) &&
                   offsetof(wr_index_row, offset) == offsetof(wr_index_entry, offset) &&
                   offsetof(wr_index_row, total_size) == offsetof(wr_index_entry, total_size) &&
                   offsetof(wr_index_row, ref_count) == offsetof(wr_index_entry, ref_count) &&
                   offsetof(wr_index_row, holders) == offsetof(wr_index_entry, holders) &&
                   offsetof(wr_index_row, marks) == offsetof(wr_index_entry, marks) &&
                   offsetof(wr_index_row, meta_length) == offsetof(wr_index_entry, meta_length) &&
                   offsetof(wr_index_row, state) == offsetof(wr_index_entry, state) &&
                   offsetof(wr_index_row, id) == sizeof(wr_index_entry),
               "a row begins with an entry");

static inline wr_index_entry *entry_of(wr_index_row *row) { return (wr_index_entry *)row; }

static inline uint32_t *strays_of(const wr_index *index, uint64_t epoch, uint64_t group) {
    return &index->strays[(wr_dense_hash(epoch, group) >> 40) & (WR_INDEX_STRAYS - 1)];
}

/* ---- regions ---- */

static void populate(void *region, uint64_t bytes) {
#ifdef MADV_POPULATE_WRITE
    /* A row's page that is not mapped yet costs a fault, and defeats every prefetch. Where the kernel cannot, it comes later. */
    madvise(region, bytes & ~(uint64_t)(WR_PAGE_BYTES - 1), MADV_POPULATE_WRITE);
#else
    (void)region;
    (void)bytes;
#endif
}

/* Rows behind a header page; 0: the region is no such thing. */
static uint64_t rows_in(uint64_t bytes, uint64_t row_bytes, uint64_t least) {
    if (bytes < WR_PAGE_BYTES + least * row_bytes) return 0;
    uint64_t rows = (bytes - WR_PAGE_BYTES) / row_bytes;
    return rows & (rows - 1) || rows > 1ull << 31 ? 0 : rows;
}

static int take_hash(wr_index *index, void *region, uint64_t bytes) {
    uint64_t rows = rows_in(bytes, sizeof(wr_index_row), 64);
    if (!rows) return EINVAL;
    index->header = region;
    index->rows = (wr_index_row *)((uint8_t *)region + WR_PAGE_BYTES);
    index->rows_n = rows;
    index->used = index->hash_live = 0;
    index->header->rows = rows;
    populate(region, bytes);
    return 0;
}

int wr_index_init(wr_index *index, void *hash_region, uint64_t hash_bytes, void *dense_region, uint64_t dense_bytes) {
    memset(index, 0, sizeof *index);
    uint64_t table_n = rows_in(dense_bytes, sizeof(wr_dense_table_row), 16);
    if (!table_n || take_hash(index, hash_region, hash_bytes)) return EINVAL;
    index->strays = calloc(WR_INDEX_STRAYS, sizeof *index->strays);
    if (!index->strays) return ENOMEM;
    index->dense_header = dense_region;
    index->table = (wr_dense_table_row *)((uint8_t *)dense_region + WR_PAGE_BYTES);
    index->table_n = table_n;
    index->dense_header->rows = table_n;
    populate(dense_region, dense_bytes);
    return 0;
}

void wr_index_free(wr_index *index) {
    free(index->extents);
    free(index->free);
    free(index->block_row);
    free(index->block_idle);
    free(index->strays);
    memset(index, 0, sizeof *index);
}

/* ---- dense blocks ---- */

/* Blocks that the table takes: some rows stay free, so that a probe ends soon. */
static inline uint64_t table_max(const wr_index *index) { return index->table_n - index->table_n / 8; }

static bool resize(void *array, uint64_t n, uint64_t size) {
    void **at = array;
    void *bigger = realloc(*at, n * size);
    if (bigger) *at = bigger;
    return bigger != NULL;
}

int wr_index_add_extent(wr_index *index, void *region, uint64_t bytes) {
    if (bytes < WR_DENSE_EXTENT_BYTES) return EINVAL;
    uint64_t before = (uint64_t)index->extents_n * WR_DENSE_EXTENT_BLOCKS, after = before + WR_DENSE_EXTENT_BLOCKS;
    if (before >= table_max(index)) return ENOSPC;
    if (!resize(&index->extents, index->extents_n + 1, sizeof *index->extents) || !resize(&index->free, after, sizeof *index->free) ||
        !resize(&index->block_row, after, sizeof *index->block_row) || !resize(&index->block_idle, after, 1))
        return ENOMEM;
    memset(index->block_row + before, 0, WR_DENSE_EXTENT_BLOCKS * sizeof *index->block_row);
    memset(index->block_idle + before, 0, WR_DENSE_EXTENT_BLOCKS);
    index->extents[index->extents_n++] = region;
    return 0;
}

static inline uint64_t blocks_left(const wr_index *index) {
    return (uint64_t)index->extents_n * WR_DENSE_EXTENT_BLOCKS - index->fresh + index->free_n;
}

bool wr_index_wants_extent(const wr_index *index) {
    if ((uint64_t)index->extents_n * WR_DENSE_EXTENT_BLOCKS >= table_max(index)) return false;
    return index->extents_n ? blocks_left(index) + index->empties < EXTENT_EARLY : index->asked;
}

static inline wr_index_entry *block_entries(const wr_index *index, uint32_t block) {
    return (wr_index_entry *)(index->extents[block / WR_DENSE_EXTENT_BLOCKS] + block % WR_DENSE_EXTENT_BLOCKS * WR_DENSE_BLOCK_BYTES);
}

static inline wr_index_memo *memo_of(const wr_index *index, uint64_t epoch, uint64_t group) {
    return (wr_index_memo *)&index->memo[(epoch + group) & (WR_INDEX_MEMOS - 1)];
}

static inline void table_begin(wr_dense_table_row *row) {
    /* SYNC dense-row: as index-entry */
    atomic_store_explicit(&row->version, atomic_load_explicit(&row->version, memory_order_relaxed) + 1, memory_order_relaxed);
    atomic_thread_fence(memory_order_release);
}

static inline void table_end(wr_dense_table_row *row) {
    uint32_t version = atomic_load_explicit(&row->version, memory_order_relaxed) + 1;
    atomic_store_explicit(&row->version, version ? version : 2, memory_order_release);
}

/* The block of a group; NULL: it has none. */
static inline wr_index_entry *block_of(const wr_index *index, uint64_t epoch, uint64_t group, uint32_t *at) {
    wr_index_memo *memo = memo_of(index, epoch, group);
    if (memo->entries && memo->epoch == epoch && memo->group == group) {
        *at = memo->row;
        return memo->entries;
    }
    uint64_t mask = index->table_n - 1;
    for (uint64_t i = wr_dense_hash(epoch, group) & mask, n = 0; n <= mask; i = (i + 1) & mask, n++) {
        const wr_dense_table_row *row = &index->table[i];
        if (row->state == WR_DENSE_TABLE_FREE) return NULL;
        if (row->state != WR_DENSE_TABLE_LIVE || row->epoch != epoch || row->group != group) continue;
        *memo = (wr_index_memo){epoch, group, block_entries(index, row->block), (uint32_t)i};
        *at = (uint32_t)i;
        return memo->entries;
    }
    return NULL;
}

static void show_table(const wr_index *index) {
    atomic_store_explicit(&index->dense_header->used, index->table_used, memory_order_relaxed);
    atomic_store_explicit(&index->dense_header->live, index->blocks, memory_order_relaxed);
}

static void free_block(wr_index *index, uint32_t block) {
    uint64_t mask = index->table_n - 1, at = wr_row_number(index->block_row[block]);
    wr_dense_table_row *row = &index->table[at];
    assert(row->state == WR_DENSE_TABLE_LIVE && row->used == 0);
    wr_index_memo *memo = memo_of(index, row->epoch, row->group);
    if (memo->row == at) memo->entries = NULL;
    table_begin(row);
    row->state = WR_DENSE_TABLE_TOMBSTONE;
    table_end(row);
    if (index->table[(at + 1) & mask].state == WR_DENSE_TABLE_FREE) {
        /* Nothing lies behind: this row and the tombstones before it end their probes here. */
        for (uint64_t i = at; index->table[i].state == WR_DENSE_TABLE_TOMBSTONE; i = (i - 1) & mask) {
            table_begin(&index->table[i]);
            index->table[i].state = WR_DENSE_TABLE_FREE;
            table_end(&index->table[i]);
            index->table_used--;
        }
    }
    index->block_row[block] = (wr_row_ref){0};
    index->free[index->free_n++] = block;
    index->blocks--;
    index->empties--;
    show_table(index);
}

/* Take the block that became idle first out of the ring; it is freed when it still is empty. True: it was. */
static bool free_idle(wr_index *index) {
    uint32_t block = index->idle[index->idle_first];
    index->idle_first = (index->idle_first + 1) % WR_INDEX_IDLE;
    index->idle_n--;
    index->block_idle[block] = 0;
    if (index->table[wr_row_number(index->block_row[block])].used) return false;
    free_block(index, block);
    return true;
}

/* A block without entries in use is kept for a while: its group may go on, and making a block costs more than an entry. */
static void note_idle(wr_index *index, uint32_t block) {
    if (index->block_idle[block]) return;
    if (index->idle_n == WR_INDEX_IDLE) free_idle(index);
    index->idle[(index->idle_first + index->idle_n++) % WR_INDEX_IDLE] = block;
    index->block_idle[block] = 1;
}

/* The memory of a block is asked for when it is taken first: an extent that was made while memory was short has none yet. */
static uint32_t take_block(wr_index *index) {
    for (;;) {
        if (index->free_n) return index->free[--index->free_n];
        if (index->fresh < (uint64_t)index->extents_n * WR_DENSE_EXTENT_BLOCKS &&
            wr_log_populate((uint8_t *)block_entries(index, (uint32_t)index->fresh), WR_DENSE_BLOCK_BYTES))
            return (uint32_t)index->fresh++;
        if (!index->idle_n || !index->empties) {
            index->asked = true;
            return NO_BLOCK;
        }
        free_idle(index);
    }
}

/* A block for a group that has none, `expected` entries of which are wanted now. NULL: none is left, or it would waste memory. */
static wr_index_entry *make_block(wr_index *index, uint64_t epoch, uint64_t group, uint32_t expected, uint32_t *at) {
    uint64_t filled = index->blocks - index->empties;
    if (filled >= GENEROUS && expected < WR_DENSE_BLOCK_ENTRIES / FILL &&
        index->dense_live * FILL < (filled - GENEROUS) * WR_DENSE_BLOCK_ENTRIES)
        return NULL;
    while (index->blocks >= table_max(index)) {
        if (!index->idle_n || !index->empties) return NULL;
        free_idle(index);
    }
    uint32_t block = take_block(index);
    if (block == NO_BLOCK) return NULL;
    uint64_t mask = index->table_n - 1, i = wr_dense_hash(epoch, group) & mask;
    while (index->table[i].state == WR_DENSE_TABLE_LIVE) i = (i + 1) & mask;
    wr_dense_table_row *row = &index->table[i];
    if (row->state == WR_DENSE_TABLE_FREE) index->table_used++;
    table_begin(row);
    row->state = WR_DENSE_TABLE_LIVE;
    row->epoch = epoch;
    row->group = group;
    row->block = block;
    row->used = 0;
    table_end(row);
    index->block_row[block] = wr_row_of((uint32_t)i);
    index->blocks++;
    index->empties++;
    note_idle(index, block);
    show_table(index);
    *memo_of(index, epoch, group) = (wr_index_memo){epoch, group, block_entries(index, block), (uint32_t)i};
    *at = (uint32_t)i;
    return block_entries(index, block);
}

static inline void block_filled(wr_index *index, uint32_t at, uint32_t k) {
    wr_dense_table_row *row = &index->table[at];
    if (!row->used && k) index->empties--;
    row->used += k;
    index->dense_live += k;
    index->live += k;
}

/* ---- hash part ---- */

static inline bool is_free(const wr_index_row *row) {
    return row->state == WR_ROW_FREE || atomic_load_explicit(&row->version, memory_order_relaxed) == 0;
}

static wr_index_row *hash_find(const wr_index *index, const uint8_t id[16]) {
    uint64_t mask = index->rows_n - 1;
    for (uint64_t i = wr_id_hash(id) & mask, n = 0; n <= mask; i = (i + 1) & mask, n++) {
        wr_index_row *row = &index->rows[i];
        if (is_free(row)) return NULL;
        if (row->state == WR_ROW_LIVE && memcmp(row->id, id, 16) == 0) return row;
    }
    return NULL;
}

/* A row with this id, still a tombstone. NULL: the table is full. */
static wr_index_row *hash_insert(wr_index *index, const uint8_t id[16]) {
    uint64_t mask = index->rows_n - 1;
    if (index->hash_live > index->rows_n - index->rows_n / 16) return NULL;
    for (uint64_t i = wr_id_hash(id) & mask, n = 0; n <= mask; i = (i + 1) & mask, n++) {
        wr_index_row *row = &index->rows[i];
        bool free_row = is_free(row);
        if (!free_row && row->state == WR_ROW_LIVE) continue;
        if (free_row && index->used >= index->rows_n - 1) return NULL; /* one free row ends every probe */
        if (free_row) atomic_store_explicit(&index->header->used, ++index->used, memory_order_relaxed);
        atomic_store_explicit(&index->header->live, ++index->hash_live, memory_order_relaxed);
        wr_entry_begin(entry_of(row));
        row->state = WR_ROW_TOMBSTONE;
        memcpy(row->id, id, 16);
        wr_entry_end(entry_of(row));
        return row;
    }
    return NULL;
}

static void hash_remove(wr_index *index, wr_index_row *row) {
    uint64_t mask = index->rows_n - 1, at = (uint64_t)(row - index->rows);
    wr_entry_begin(entry_of(row));
    row->state = WR_ROW_TOMBSTONE;
    wr_entry_end(entry_of(row));
    atomic_store_explicit(&index->header->live, --index->hash_live, memory_order_relaxed);
    if (!is_free(&index->rows[(at + 1) & mask])) return;
    for (uint64_t i = at; !is_free(&index->rows[i]) && index->rows[i].state == WR_ROW_TOMBSTONE; i = (i - 1) & mask) {
        wr_entry_begin(entry_of(&index->rows[i]));
        index->rows[i].state = WR_ROW_FREE;
        wr_entry_end(entry_of(&index->rows[i]));
        index->used--;
    }
    atomic_store_explicit(&index->header->used, index->used, memory_order_relaxed);
}

int wr_index_replace(wr_index *index, void *region, uint64_t bytes, wr_index_header **old) {
    uint64_t rows_n = rows_in(bytes, sizeof(wr_index_row), 64);
    if (rows_n / 10 * 7 <= index->hash_live) return EINVAL;
    const wr_index_row *from = index->rows;
    uint64_t from_n = index->rows_n, live = index->hash_live;
    *old = index->header;
    int error = take_hash(index, region, bytes);
    if (error) return error;
    for (uint64_t i = 0; i < from_n; i++) {
        if (is_free(&from[i]) || from[i].state != WR_ROW_LIVE) continue;
        wr_index_row *row = hash_insert(index, from[i].id);
        assert(row);
        wr_entry_begin(entry_of(row));
        memcpy((uint8_t *)row + 4, (const uint8_t *)&from[i] + 4, sizeof *row - 4);
        wr_entry_end(entry_of(row));
    }
    assert(index->hash_live == live);
    (void)live;
    return 0;
}

/* ---- both ---- */

wr_index_entry *wr_index_find(wr_index *index, const uint8_t id[16]) {
    if (wr_id_counted(id)) {
        uint64_t epoch = wr_id_epoch(id), counter = wr_id_counter(id), group = counter / WR_DENSE_BLOCK_ENTRIES;
        uint32_t at;
        wr_index_entry *entries = block_of(index, epoch, group, &at);
        if (entries && entries[counter % WR_DENSE_BLOCK_ENTRIES].state == WR_ROW_LIVE)
            return &entries[counter % WR_DENSE_BLOCK_ENTRIES];
        if (!*strays_of(index, epoch, group)) return NULL;
    }
    if (!index->hash_live) return NULL;
    wr_index_row *row = hash_find(index, id);
    return row ? entry_of(row) : NULL;
}

wr_index_entry *wr_index_insert(wr_index *index, const uint8_t id[16]) {
    bool counted = wr_id_counted(id);
    uint64_t epoch = wr_id_epoch(id), counter = wr_id_counter(id), group = counter / WR_DENSE_BLOCK_ENTRIES;
    if (counted) {
        uint32_t at;
        wr_index_entry *entries = block_of(index, epoch, group, &at);
        if (!entries) entries = make_block(index, epoch, group, 1, &at);
        if (entries) {
            block_filled(index, at, 1);
            return &entries[counter % WR_DENSE_BLOCK_ENTRIES];
        }
    }
    wr_index_row *row = hash_insert(index, id);
    if (row) {
        if (counted) ++*strays_of(index, epoch, group);
        index->live++;
        return entry_of(row);
    }
    uint32_t at;
    wr_index_entry *entries = counted ? make_block(index, epoch, group, WR_DENSE_BLOCK_ENTRIES, &at) : NULL;
    if (!entries) return NULL;
    block_filled(index, at, 1); /* better wasted than waiting for a larger hash part */
    return &entries[counter % WR_DENSE_BLOCK_ENTRIES];
}

void wr_index_remove(wr_index *index, const uint8_t id[16], wr_index_entry *entry) {
    assert(entry->state == WR_ROW_LIVE);
    index->live--;
    if ((uint8_t *)entry >= (uint8_t *)index->rows && (uint8_t *)entry < (uint8_t *)(index->rows + index->rows_n)) {
        if (wr_id_counted(id)) --*strays_of(index, wr_id_epoch(id), wr_id_counter(id) / WR_DENSE_BLOCK_ENTRIES);
        hash_remove(index, (wr_index_row *)entry);
        return;
    }
    wr_entry_begin(entry);
    entry->state = WR_ROW_TOMBSTONE;
    wr_entry_end(entry);
    uint32_t at;
    wr_index_entry *entries = block_of(index, wr_id_epoch(id), wr_id_counter(id) / WR_DENSE_BLOCK_ENTRIES, &at);
    assert(entries && entries + wr_id_counter(id) % WR_DENSE_BLOCK_ENTRIES == entry);
    (void)entries;
    index->dense_live--;
    if (--index->table[at].used) return;
    index->empties++;
    note_idle(index, index->table[at].block);
}

void wr_index_prefetch(const wr_index *index, const uint8_t id[16]) {
    if (wr_id_counted(id)) {
        uint64_t counter = wr_id_counter(id), group = counter / WR_DENSE_BLOCK_ENTRIES;
        uint32_t at;
        wr_index_entry *entries = block_of(index, wr_id_epoch(id), group, &at);
        if (entries) __builtin_prefetch(&entries[counter % WR_DENSE_BLOCK_ENTRIES], 1);
        if (!*strays_of(index, wr_id_epoch(id), group)) return;
    }
    __builtin_prefetch(&index->rows[wr_id_hash(id) & (index->rows_n - 1)], 1);
}

wr_index_entry *wr_index_next(wr_index *index, wr_index_cursor *cursor, uint8_t id[16]) {
    if (!(cursor->at & DENSE)) {
        while (cursor->at < index->rows_n) {
            wr_index_row *row = &index->rows[cursor->at++];
            if (is_free(row) || row->state != WR_ROW_LIVE) continue;
            memcpy(id, row->id, 16);
            return entry_of(row);
        }
        cursor->at = DENSE;
    }
    for (;;) {
        uint64_t at = cursor->at & ~DENSE, block = at / WR_DENSE_BLOCK_ENTRIES;
        if (block >= index->fresh) return NULL;
        wr_row_ref row_at = index->block_row[block];
        if (!wr_row_some(row_at) || !index->table[wr_row_number(row_at)].used) {
            cursor->at = DENSE | (block + 1) * WR_DENSE_BLOCK_ENTRIES;
            continue;
        }
        cursor->at++;
        wr_index_entry *entry = block_entries(index, (uint32_t)block) + at % WR_DENSE_BLOCK_ENTRIES;
        if (entry->state != WR_ROW_LIVE) continue;
        const wr_dense_table_row *row = &index->table[wr_row_number(row_at)];
        wr_put64(id, row->epoch);
        wr_put64(id + 8, row->group * WR_DENSE_BLOCK_ENTRIES + at % WR_DENSE_BLOCK_ENTRIES);
        return entry;
    }
}

bool wr_index_run_of(wr_index *index, const uint8_t first_id[16], uint32_t max, wr_index_run *run) {
    if (!max || !wr_id_counted(first_id)) return false;
    uint64_t epoch = wr_id_epoch(first_id), counter = wr_id_counter(first_id), group = counter / WR_DENSE_BLOCK_ENTRIES;
    uint32_t at, first = counter % WR_DENSE_BLOCK_ENTRIES;
    uint32_t n = max < WR_DENSE_BLOCK_ENTRIES - first ? max : WR_DENSE_BLOCK_ENTRIES - first;
    wr_index_entry *entries = block_of(index, epoch, group, &at);
    if (!entries) entries = make_block(index, epoch, group, n, &at);
    if (!entries) return false;
    if (*strays_of(index, epoch, group) && index->hash_live) {
        uint8_t id[16];
        memcpy(id, first_id, 16);
        for (uint32_t i = 0; i < n; i++) {
            wr_put64(id + 8, counter + i);
            if (!hash_find(index, id)) continue;
            n = i; /* this one has its entry in the hash part */
            break;
        }
        if (!n) return false;
    }
    *run = (wr_index_run){entries + first, n, at};
    return true;
}

void wr_index_run_filled(wr_index *index, const wr_index_run *run, uint32_t k) { block_filled(index, run->row, k); }
