/* Goal: the index finds what is in it, nothing else, in both of its parts; blocks are freed and used again; a reader of another process
 * never takes an entry for another id's, nor a half-changed one for whole.
 * Method: random inserts, removes, runs and replacements of the hash part against a plain table, ids of the shapes that occur (counted ids of
 * several epochs, dense and scattered; random; zero-ended), with the readers' side asked as well; then a writer that fills, removes and reuses
 * blocks, and readers as threads, entries whose fields are functions of their ids. Regions are real POSIX ones. Prints its seed. */
#define _GNU_SOURCE
static void (*in_the_pause)(void);
#define WR_INDEX_READ_PAUSE() (in_the_pause ? in_the_pause() : (void)0)
#include "store/index_reader.c"
#include "support/check.h"
#include "support/random.h"
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

static void unlink_all(void);

static wr_superblock *super;
static wr_server *server_row;
static char made[256][WR_REGION_NAME_BYTES];
static uint32_t made_n;

static void unlink_all(void) {
    while (made_n) shm_unlink(made[--made_n]);
}

static void *region_of(const char *what, uint64_t generation, uint64_t bytes) {
    CHECK(made_n < 256);
    wr_region_name(made[made_n], super, what, 0, generation);
    int fd = shm_open(made[made_n++], O_RDWR | O_CREAT | O_EXCL, 0600);
    CHECK(fd >= 0 && ftruncate(fd, (off_t)bytes) == 0);
    void *region = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    CHECK(region != MAP_FAILED);
    close(fd);
    return region;
}

static uint64_t hash_bytes(uint64_t rows) { return WR_PAGE_BYTES + rows * sizeof(wr_index_row); }
static uint64_t dense_bytes(uint64_t rows) { return WR_PAGE_BYTES + rows * sizeof(wr_dense_table_row); }

static void publish(uint64_t generation, uint64_t index_generation) {
    atomic_store(&server_row->index_generation, index_generation);
    atomic_store(&server_row->generation, generation);
}

static void open_index(wr_index *index, uint64_t generation, uint64_t index_generation, uint64_t hash_rows, uint64_t dense_rows) {
    CHECK(wr_index_init(index, region_of("index", index_generation, hash_bytes(hash_rows)), hash_bytes(hash_rows),
                        region_of("dense", generation, dense_bytes(dense_rows)), dense_bytes(dense_rows)) == 0);
}

static void give_extent(wr_index *index, uint64_t generation) {
    char what[32];
    snprintf(what, sizeof what, "dense%u", index->extents_n);
    CHECK(wr_index_add_extent(index, region_of(what, generation, WR_DENSE_EXTENT_BYTES), WR_DENSE_EXTENT_BYTES) == 0);
}

static void close_index(wr_index *index) {
    munmap(index->header, hash_bytes(index->rows_n));
    munmap(index->dense_header, dense_bytes(index->table_n));
    for (uint32_t i = 0; i < index->extents_n; i++) munmap(index->extents[i], WR_DENSE_EXTENT_BYTES);
    wr_index_free(index);
    unlink_all();
}

static void make_id(uint8_t id[16], uint64_t epoch, uint64_t counter) {
    wr_put64(id, epoch);
    wr_put64(id + 8, counter);
}

/* n-th id of a shape. */
static void shape_id(uint8_t id[16], int shape, uint64_t n) {
    switch (shape) {
    case 0: make_id(id, (7ull << 32) + n % 3, n / 3); break;                                             /* three clients, dense */
    case 1: make_id(id, 7ull << 32, n * 1024 * 5); break;                                                /* one in each fifth group */
    case 2: make_id(id, n * 0x9e3779b97f4a7c15ull, (n + 1) * 0xd6e8feb86659fd93ull); break;              /* random */
    case 3: make_id(id, n << 40, 0); break;                                                              /* first half only */
    case 4: make_id(id, (7ull << 32) + n % 2, n % 4 < 2 ? n / 4 : (n / 4 + 1) << 20); break;             /* both */
    default: make_id(id, n % 2 ? 0 : n * 0x9e3779b97f4a7c15ull, n % 2 ? n : n << 50); break;             /* counted by others, and random */
    }
}

static void fill(wr_index_entry *entry, const uint8_t id[16], uint32_t n) {
    uint64_t hash = wr_id_hash(id);
    wr_entry_begin(entry);
    entry->state = WR_ROW_LIVE;
    entry->ref_count = n;
    entry->holders = (uint32_t)hash;
    entry->file = (uint32_t)(hash >> 32);
    entry->offset = n * 5;
    entry->total_size = n * 7;
    wr_entry_end(entry);
}

static bool is_whole(const wr_index_entry *entry, const uint8_t id[16]) {
    uint64_t hash = wr_id_hash(id);
    return entry->state == WR_ROW_LIVE && entry->holders == (uint32_t)hash && entry->file == (uint32_t)(hash >> 32) &&
           entry->offset == entry->ref_count * 5 && entry->total_size == entry->ref_count * 7;
}

static void grow_hash(wr_index *index, uint64_t *index_generation, uint64_t rows) {
    wr_index_header *old;
    uint64_t old_bytes = hash_bytes(index->rows_n);
    CHECK(wr_index_replace(index, region_of("index", ++*index_generation, hash_bytes(rows)), hash_bytes(rows), &old) == 0);
    CHECK(index->used == index->hash_live && index->rows_n == rows);
    atomic_store(&server_row->index_generation, *index_generation);
    atomic_store(&old->replaced, 1);
    munmap(old, old_bytes);
}

static void test_against_a_plain_table(int shape, bool extents) {
    enum { IDS = 6000, STEPS = 60000 };
    static uint32_t there[IDS]; /* ref_count, 0: not there */
    memset(there, 0, sizeof there);
    uint64_t index_generation = 1, live = 0, live_max = 4000;
    wr_index index;
    open_index(&index, 1, 1, 8192, 1024);
    publish(1, 1);
    wr_index_reader reader;
    CHECK(wr_index_reader_init(&reader, super, 0) == 0);
    for (int step = 0; step < STEPS; step++) {
        if (step % 10000 == 0) live_max = step / 10000 % 2 ? 50 : 4000; /* fills, and empties again */
        if (extents && wr_index_wants_extent(&index) && index.extents_n < 2) give_extent(&index, 1);
        if (wr_index_tight(&index)) grow_hash(&index, &index_generation, index.hash_live < index.rows_n / 4 ? index.rows_n : 2 * index.rows_n);
        uint32_t n = (uint32_t)(random64() % IDS);
        uint8_t id[16];
        shape_id(id, shape, n);
        wr_index_prefetch(&index, id);
        wr_index_entry *entry = wr_index_find(&index, id);
        CHECK((entry != NULL) == (there[n] != 0));
        if (step % 4 == 0) {
            wr_index_entry copy;
            wr_index_lookup_prefetch(&reader, id);
            CHECK(wr_index_lookup(&reader, id, &copy) == (there[n] ? 0 : ENOENT));
            CHECK(!there[n] || (is_whole(&copy, id) && copy.ref_count == there[n]));
        }
        if (entry) {
            CHECK(is_whole(entry, id) && entry->ref_count == there[n]);
            if (random64() % 4 == 0 || live > live_max) {
                wr_index_remove(&index, id, entry);
                there[n] = 0;
                live--;
            }
        } else if (live < live_max) {
            entry = wr_index_insert(&index, id);
            CHECK(entry && entry->state != WR_ROW_LIVE);
            fill(entry, id, 1 + n);
            there[n] = 1 + n;
            live++;
        }
        CHECK(index.live == live && index.hash_live + index.dense_live == live && index.empties <= index.blocks);
    }
    if (!extents) CHECK(index.dense_live == 0);
    if (extents && shape == 0) CHECK(index.hash_live < 200 && index.blocks < 20);
    if (shape == 2 || shape == 3) CHECK(index.dense_live <= 20);
    if (shape == 1) CHECK(index.blocks - index.empties <= 32); /* blocks with one entry each are not made without end */
    /* What the cursor shows is what is there, once. */
    static uint32_t seen[IDS];
    memset(seen, 0, sizeof seen);
    wr_index_cursor cursor = {0};
    uint8_t id[16];
    uint64_t shown = 0;
    for (wr_index_entry *entry; (entry = wr_index_next(&index, &cursor, id));) {
        uint32_t n = entry->ref_count - 1;
        uint8_t same[16];
        CHECK(n < IDS && is_whole(entry, id) && there[n] && !seen[n]++);
        shape_id(same, shape, n);
        CHECK(memcmp(id, same, 16) == 0);
        shown++;
        if (n % 2) {
            wr_index_remove(&index, id, entry);
            there[n] = 0;
        }
    }
    CHECK(shown == live);
    for (uint32_t n = 0; n < IDS; n++) {
        shape_id(id, shape, n);
        wr_index_entry copy;
        CHECK((wr_index_find(&index, id) != NULL) == (there[n] != 0));
        CHECK(wr_index_lookup(&reader, id, &copy) == (there[n] ? 0 : ENOENT));
    }
    wr_index_reader_close(&reader);
    close_index(&index);
}

/* Runs of consecutive ids, single inserts and removals of the same ids, with some of them in the hash part. */
/* An extent with memory for two blocks: ids of other groups go to the hash part, until there is more. */
static void test_extent_without_memory(void) {
    wr_index index;
    uint8_t id[16];
    open_index(&index, 1, 1, 1024, 256);
    publish(1, 1);
    int memory = memfd_create("index_test", MFD_CLOEXEC);
    CHECK(memory >= 0 && ftruncate(memory, 2 * WR_DENSE_BLOCK_BYTES) == 0);
    void *extent = mmap(NULL, WR_DENSE_EXTENT_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, memory, 0);
    CHECK(extent != MAP_FAILED && wr_index_add_extent(&index, extent, WR_DENSE_EXTENT_BYTES) == 0);
    for (uint32_t group = 0; group < 4; group++) {
        make_id(id, 1ull << 32, group * WR_DENSE_BLOCK_ENTRIES);
        fill(wr_index_insert(&index, id), id, 1 + group);
    }
    CHECK(index.blocks == 2 && index.hash_live == 2);
    CHECK(ftruncate(memory, WR_DENSE_EXTENT_BYTES) == 0);
    for (uint32_t group = 4; group < 8; group++) {
        make_id(id, 1ull << 32, group * WR_DENSE_BLOCK_ENTRIES);
        fill(wr_index_insert(&index, id), id, 1 + group);
    }
    CHECK(index.blocks == 6 && index.hash_live == 2);
    for (uint32_t group = 0; group < 8; group++) {
        make_id(id, 1ull << 32, group * WR_DENSE_BLOCK_ENTRIES);
        wr_index_entry *entry = wr_index_find(&index, id);
        CHECK(entry && entry->ref_count == 1 + group);
        wr_index_remove(&index, id, entry);
    }
    CHECK(index.live == 0);
    close_index(&index);
    close(memory);
}

static void test_runs(void) {
    enum { IDS = 20000, STEPS = 20000 };
    static uint32_t there[IDS];
    memset(there, 0, sizeof there);
    wr_index index;
    uint64_t index_generation = 1, live = 0, cut = 0;
    uint8_t id[16];
    open_index(&index, 1, 1, 65536, 256);
    publish(1, 1);
    for (uint32_t n = 0; n < 3000; n += 7) { /* before there is an extent */
        make_id(id, 1ull << 32, n);
        wr_index_run run;
        CHECK(!wr_index_run_of(&index, id, 100, &run));
        fill(wr_index_insert(&index, id), id, 1 + n);
        there[n] = 1 + n;
        live++;
    }
    CHECK(wr_index_wants_extent(&index) && index.hash_live == live);
    give_extent(&index, 1);
    CHECK(wr_index_add_extent(&index, index.extents[0], WR_DENSE_EXTENT_BYTES) == ENOSPC); /* a table of 256 rows */
    CHECK(!wr_index_wants_extent(&index));
    for (int step = 0; step < STEPS; step++) {
        uint32_t first = (uint32_t)(random64() % IDS), want = 1 + (uint32_t)(random64() % 1500);
        if (!step) first = 0; /* over those of before the extent */
        if (!step || random64() % 2) {
            for (uint32_t n = first; n < IDS && n < first + want;) {
                wr_index_run run;
                make_id(id, 1ull << 32, n);
                uint32_t left = IDS - n < first + want - n ? IDS - n : first + want - n, k = 0;
                if (!wr_index_run_of(&index, id, left, &run)) {
                    cut++;
                    wr_index_entry *entry = wr_index_find(&index, id);
                    CHECK((entry != NULL) == (there[n] != 0));
                    if (!entry) {
                        fill(wr_index_insert(&index, id), id, 1 + n);
                        there[n] = 1 + n;
                        live++;
                    }
                    n++;
                    continue;
                }
                CHECK(run.n >= 1 && run.n <= left && n % 1024 + run.n <= 1024);
                for (uint32_t i = 0; i < run.n; i++) {
                    make_id(id, 1ull << 32, n + i);
                    bool absent = run.entries[i].state != WR_ROW_LIVE;
                    CHECK(absent == !there[n + i]);
                    if (!absent) continue;
                    fill(&run.entries[i], id, 1 + n + i);
                    there[n + i] = 1 + n + i;
                    k++;
                }
                wr_index_run_filled(&index, &run, k);
                live += k;
                n += run.n;
            }
        } else {
            for (uint32_t n = first; n < IDS && n < first + 2 * want; n++) {
                make_id(id, 1ull << 32, n);
                wr_index_entry *entry = wr_index_find(&index, id);
                CHECK((entry != NULL) == (there[n] != 0));
                if (!entry) continue;
                CHECK(is_whole(entry, id));
                wr_index_remove(&index, id, entry);
                there[n] = 0;
                live--;
            }
        }
        CHECK(index.live == live && index.hash_live + index.dense_live == live);
        if (wr_index_tight(&index)) grow_hash(&index, &index_generation, 65536);
    }
    CHECK(cut > 0);
    close_index(&index);
}

/* Far more groups than blocks, as a long stream makes them: blocks come back, the table does not fill with tombstones. */
static void test_reuse(void) {
    enum { GROUPS = 5000, KEPT = 300 };
    wr_index index;
    open_index(&index, 1, 1, 1024, 1024);
    give_extent(&index, 1);
    uint8_t id[16];
    for (uint64_t group = 0; group < GROUPS; group++) {
        wr_index_run run;
        make_id(id, (3ull << 32) + group % 2, group * 1024 + 400);
        CHECK(wr_index_run_of(&index, id, 130, &run) && run.n == 130);
        for (uint32_t i = 0; i < run.n; i++) {
            CHECK(run.entries[i].state != WR_ROW_LIVE);
            make_id(id, (3ull << 32) + group % 2, group * 1024 + 400 + i);
            fill(&run.entries[i], id, 1);
        }
        wr_index_run_filled(&index, &run, run.n);
        if (group < KEPT) continue;
        for (uint32_t i = 0; i < 130; i++) {
            make_id(id, (3ull << 32) + group % 2, (group - KEPT) * 1024 + 400 + i);
            wr_index_entry *entry = wr_index_find(&index, id);
            CHECK(entry && is_whole(entry, id));
            wr_index_remove(&index, id, entry);
        }
        CHECK(index.live == KEPT * 130 && index.blocks <= 512 && index.blocks - index.empties == KEPT);
    }
    CHECK(index.table_used < 1000 && index.hash_live == 0);
    /* One message at a time, always removed at once: its block stays. */
    uint64_t taken = index.fresh - index.free_n;
    for (uint64_t n = 0; n < 5000; n++) {
        make_id(id, 9ull << 32, n);
        wr_index_entry *entry = wr_index_insert(&index, id);
        CHECK(entry);
        fill(entry, id, 1);
        wr_index_remove(&index, id, entry);
    }
    CHECK(index.fresh - index.free_n <= taken + 5);
    close_index(&index);
}

static void test_full(void) {
    wr_index index;
    open_index(&index, 1, 1, 64, 16);
    uint32_t n = 0;
    uint8_t id[16];
    for (;; n++) {
        make_id(id, ~0ull, n);
        wr_index_entry *entry = wr_index_insert(&index, id);
        if (!entry) break;
        fill(entry, id, n + 1);
    }
    CHECK(n > 48 && n < 64 && wr_index_tight(&index));
    give_extent(&index, 1);
    CHECK(!wr_index_insert(&index, id));
    for (uint64_t group = 0; group < 14; group++) { /* the table takes 14 of 16 */
        make_id(id, 5, group * 1024);
        wr_index_entry *entry = wr_index_insert(&index, id);
        CHECK(entry);
        fill(entry, id, 1);
    }
    make_id(id, 5, 1ull << 40);
    CHECK(!wr_index_insert(&index, id) && !wr_index_find(&index, id));
    make_id(id, 5, 3 * 1024);
    wr_index_remove(&index, id, wr_index_find(&index, id));
    make_id(id, 5, 1ull << 40);
    CHECK(wr_index_insert(&index, id)); /* an empty block is taken from its group */
    wr_index none;
    CHECK(wr_index_init(&none, index.header, 4096, index.dense_header, dense_bytes(16)) == EINVAL);
    CHECK(wr_index_init(&none, index.header, hash_bytes(64), index.dense_header, dense_bytes(17)) == EINVAL);
    CHECK(wr_index_add_extent(&index, index.extents[0], WR_DENSE_EXTENT_BYTES - 1) == EINVAL);
    wr_index_header *old;
    CHECK(wr_index_replace(&index, index.header, hash_bytes(64), &old) == EINVAL);
    close_index(&index);
}

/* A server takes over: readers follow, and never answer from one old and one new part. */
static void test_generations(void) {
    wr_index old, new;
    wr_index_reader reader;
    wr_index_entry copy;
    uint8_t dense_id[16], random_id[16];
    make_id(dense_id, 5, 77);
    make_id(random_id, ~0ull, 77);
    publish(0, 0);
    CHECK(wr_index_reader_init(&reader, super, 0) == 0);
    CHECK(wr_index_lookup(&reader, dense_id, &copy) == ESTALE); /* no server was ever ready */
    publish(1, 1);
    CHECK(wr_index_lookup(&reader, dense_id, &copy) == ESTALE); /* its regions are gone */
    open_index(&old, 1, 1, 64, 16);
    CHECK(wr_index_lookup(&reader, dense_id, &copy) == ENOENT);
    fill(wr_index_insert(&old, dense_id), dense_id, 1); /* hash part: no extent */
    fill(wr_index_insert(&old, random_id), random_id, 1);
    CHECK(wr_index_lookup(&reader, dense_id, &copy) == 0 && wr_index_lookup(&reader, random_id, &copy) == 0);
    open_index(&new, 2, 2, 64, 16);
    give_extent(&new, 2);
    fill(wr_index_insert(&new, dense_id), dense_id, 2);
    fill(wr_index_insert(&new, random_id), random_id, 2);
    CHECK(new.dense_live == 1 && new.hash_live == 1);
    atomic_store(&old.header->replaced, 1);
    CHECK(wr_index_lookup(&reader, dense_id, &copy) == ESTALE);
    atomic_store(&old.dense_header->replaced, 1);
    atomic_store(&server_row->index_generation, 2);
    CHECK(wr_index_lookup(&reader, dense_id, &copy) == ESTALE);
    atomic_store(&server_row->generation, 2);
    CHECK(wr_index_lookup(&reader, dense_id, &copy) == 0 && copy.ref_count == 2);
    CHECK(wr_index_lookup(&reader, random_id, &copy) == 0 && copy.ref_count == 2);
    /* The writer died in the middle of an entry. */
    wr_entry_begin(wr_index_find(&new, random_id));
    CHECK(wr_index_lookup(&reader, random_id, &copy) == ESTALE);
    CHECK(wr_index_lookup(&reader, dense_id, &copy) == 0);
    /* Nonsense instead of a table. */
    new.header->rows = 63;
    CHECK(wr_index_lookup(&reader, random_id, &copy) != 0);
    new.header->rows = 1ull << 40;
    CHECK(wr_index_lookup(&reader, random_id, &copy) == EINVAL);
    new.header->rows = 64;
    atomic_store(&server_row->generation, 3);
    CHECK(wr_index_lookup(&reader, dense_id, &copy) == ESTALE);
    wr_index_reader_close(&reader);
    munmap(old.header, hash_bytes(64));
    munmap(old.dense_header, dense_bytes(16));
    wr_index_free(&old);
    close_index(&new);
}

/* Between a reader's looks at table and entry the block goes to another group, whose message lies at the same place in it. */
static wr_index *paused_index;
static uint8_t paused_id[16], other_id[16];

static void give_block_away(void) {
    in_the_pause = NULL;
    wr_index_entry *entry = wr_index_find(paused_index, paused_id);
    wr_index_remove(paused_index, paused_id, entry);
    CHECK(wr_index_insert(paused_index, other_id) == entry);
    fill(entry, other_id, 2);
}

static void test_block_goes_in_the_middle(void) {
    wr_index index;
    wr_index_reader reader;
    wr_index_entry copy;
    open_index(&index, 1, 1, 64, 16);
    give_extent(&index, 1);
    publish(1, 1);
    CHECK(wr_index_reader_init(&reader, super, 0) == 0);
    for (uint64_t group = 0; group < 14; group++) { /* the table takes no more */
        make_id(paused_id, 5, group * 1024 + 7);
        fill(wr_index_insert(&index, paused_id), paused_id, 1);
    }
    make_id(other_id, 6, 1024 + 7);
    paused_index = &index;
    in_the_pause = give_block_away;
    CHECK(wr_index_lookup(&reader, paused_id, &copy) == ENOENT);
    CHECK(wr_index_lookup(&reader, other_id, &copy) == 0 && is_whole(&copy, other_id));
    CHECK(wr_index_lookup(&reader, paused_id, &copy) == ENOENT);
    wr_index_reader_close(&reader);
    close_index(&index);
}

/* ---- threads ---- */

enum { SHARED_GROUPS = 900, SHARED_PER_GROUP = 3, SHARED_RANDOM = 200 };
static _Atomic int ending;
static _Atomic uint64_t hits;

static void shared_id(uint8_t id[16], uint64_t n) {
    if (n < SHARED_RANDOM) make_id(id, ~n * 0x9e3779b97f4a7c15ull | 1ull << 63, n);
    else make_id(id, (4ull << 32) + n % 2, (n - SHARED_RANDOM) / SHARED_PER_GROUP * 1024 + n % SHARED_PER_GROUP);
}

static void *read_entries(void *argument) {
    uint64_t seed = (uint64_t)(uintptr_t)argument * 77777 + 1;
    wr_index_reader reader;
    CHECK(wr_index_reader_init(&reader, super, 0) == 0);
    while (!atomic_load_explicit(&ending, memory_order_relaxed)) {
        seed = seed * 6364136223846793005ull + 1442695040888963407ull;
        uint8_t id[16];
        wr_index_entry entry;
        shared_id(id, (seed >> 33) % (SHARED_RANDOM + SHARED_GROUPS * SHARED_PER_GROUP));
        int error = wr_index_lookup(&reader, id, &entry);
        CHECK(error == 0 || error == ENOENT || error == ESTALE); /* the last when the writer is not running just now, or replaces the table */
        if (error) continue;
        atomic_fetch_add_explicit(&hits, 1, memory_order_relaxed);
        CHECK(is_whole(&entry, id));
    }
    wr_index_reader_close(&reader);
    return NULL;
}

static void test_readers(void) {
    wr_index index;
    uint64_t index_generation = 1, blocks_seen = 0;
    open_index(&index, 1, 1, 4096, 1024);
    give_extent(&index, 1);
    publish(1, 1);
    pthread_t readers[2];
    for (int i = 0; i < 2; i++) CHECK(pthread_create(&readers[i], NULL, read_entries, (void *)(uintptr_t)(i + 1)) == 0);
    static uint64_t kept[SHARED_RANDOM + SHARED_GROUPS * SHARED_PER_GROUP];
    memset(kept, 0, sizeof kept);
    for (uint32_t step = 1; step < 3000000 && (step < 100000 || atomic_load(&hits) < 1000); step++) {
        uint8_t id[16];
        uint64_t n = random64() % (sizeof kept / sizeof *kept);
        shared_id(id, n);
        wr_index_entry *entry = wr_index_find(&index, id);
        if (!entry) {
            wr_index_run run;
            if (n >= SHARED_RANDOM && wr_index_run_of(&index, id, 128, &run)) { /* asks for a block of its own */
                fill(run.entries, id, step);
                wr_index_run_filled(&index, &run, 1);
                blocks_seen++;
            } else if ((entry = wr_index_insert(&index, id))) {
                fill(entry, id, step);
            }
        } else if (random64() % 4 == 0) {
            fill(entry, id, step);
        } else {
            wr_index_remove(&index, id, entry);
        }
        if (step % 20000 == 0 && made_n < 200) grow_hash(&index, &index_generation, 4096);
    }
    atomic_store(&ending, 1);
    for (int i = 0; i < 2; i++) pthread_join(readers[i], NULL);
    CHECK(atomic_load(&hits) > 0 && blocks_seen > 1000 && index.fresh == 512); /* every block served several groups */
    close_index(&index);
}

int main(int argc, char **argv) {
    check_clean_up = unlink_all;
    random_begin("index_test", argc, argv);
    super = calloc(1, WR_SUPERBLOCK_BYTES);
    super->node_id = (random64() & 0xffffffffff) | 0xe0ull << 40;
    super->shared_id = super->node_id;
    server_row = wr_superblock_server(super, 0);
    for (int shape = 0; shape < 6; shape++) {
        WITHOUT_THREADS(test_against_a_plain_table(shape, true));
        WITHOUT_THREADS(test_against_a_plain_table(shape, false));
    }
    WITHOUT_THREADS(test_extent_without_memory());
    WITHOUT_THREADS(test_runs());
    WITHOUT_THREADS(test_reuse());
    WITHOUT_THREADS(test_full());
    WITHOUT_THREADS(test_generations());
    WITHOUT_THREADS(test_block_goes_in_the_middle());
    test_readers();
    free(super);
    return 0;
}
