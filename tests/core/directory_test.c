/* Goal: directory and index find what is in them, nothing else, and a reader never takes a half-changed row for whole.
 * Method: random inserts and removes against a plain table, ids of the shapes that occur (counted, random, zero-ended, alike);
 * then one writer and two readers as threads, rows whose fields are functions of each other. Prints its seed. */
#include "index.h"
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#define CHECK(condition)                                                             \
    do {                                                                             \
        if (!(condition)) {                                                          \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition);           \
            exit(1);                                                                 \
        }                                                                            \
    } while (0)

static uint64_t state;

static uint64_t random64(void) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state;
}

static void make_id(uint8_t id[16], int shape, uint64_t n) {
    memset(id, 0, 16);
    for (int i = 0; i < 8; i++) {
        if (shape == 0) id[15 - i] = (uint8_t)(n >> 8 * i);                                   /* counted, big-endian */
        if (shape == 1) id[8 + i] = (uint8_t)(n >> 8 * i);                                    /* counted, little-endian */
        if (shape == 2) id[i] = (uint8_t)(n >> 8 * i);                                        /* first half only */
        if (shape == 3) id[i] = id[8 + i] = (uint8_t)((n * 0x9e3779b97f4a7c15ull) >> 8 * i); /* both halves alike */
    }
}

static void *region_of(uint64_t rows, uint64_t *bytes) {
    *bytes = WR_PAGE_BYTES + rows * sizeof(wr_index_row);
    void *region = mmap(NULL, *bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(region != MAP_FAILED);
    return region;
}

static void fill_row(wr_index_row *row, const uint8_t id[16], uint32_t n) {
    wr_row_begin(row);
    row->state = WR_ROW_LIVE;
    memcpy(row->id, id, 16);
    row->ref_count = n;
    row->file = n * 3;
    row->offset = n * 5;
    row->total_size = n * 7;
    wr_row_end(row);
}

static void test_directory(void) {
    enum { ROWS = 256 };
    static _Atomic uint64_t directory[ROWS];
    uint64_t hash = 0x123456789abcdef0ull;
    CHECK(wr_directory_word(0, 1, 5) >> 48 != 0);
    for (uint32_t i = 0; i < WR_DIRECTORY_WAYS; i++) CHECK(wr_directory_insert(directory, ROWS, hash, wr_directory_word(hash, i & 3, i)) != WR_NO_ROW);
    CHECK(wr_directory_insert(directory, ROWS, hash, 77) == WR_NO_ROW);
    CHECK(!wr_directory_remove(directory, ROWS, hash, wr_directory_word(hash, 0, 1), 0));
    CHECK(!wr_directory_remove(directory, ROWS, hash, wr_directory_word(hash, 0, 1), 1u << 30)); /* a hostile hint */
    CHECK(wr_directory_remove(directory, ROWS, hash, wr_directory_word(hash, 1, 5), 3));         /* a wrong one */
    CHECK(!wr_directory_remove(directory, ROWS, hash, wr_directory_word(hash, 1, 5), 0));
    CHECK(wr_directory_insert(directory, ROWS, hash, wr_directory_word(hash, 9, (1ull << 40) + 3)) != WR_NO_ROW);
    CHECK(wr_directory_sweep(directory, ROWS, 1) == WR_DIRECTORY_WAYS / 4 - 1);
    CHECK(wr_directory_sweep(directory, ROWS, 9) == 1);
    CHECK(wr_directory_sweep(directory, ROWS, 0) + wr_directory_sweep(directory, ROWS, 2) + wr_directory_sweep(directory, ROWS, 3) ==
          3 * WR_DIRECTORY_WAYS / 4);
    for (int i = 0; i < ROWS; i++) CHECK(!atomic_load(&directory[i]));
}

static void take_all(wr_index *to, const wr_index *from) {
    for (uint64_t i = 0; i < from->rows_n; i++)
        if (from->rows[i].state == WR_ROW_LIVE) CHECK(wr_index_take(to, &from->rows[i]) != WR_NO_ROW);
}

static void test_against_a_plain_table(int shape) {
    enum { ROWS = 1024, IDS = 2000, STEPS = 60000 };
    uint64_t bytes;
    void *region = region_of(ROWS, &bytes);
    wr_index index;
    CHECK(wr_index_init(&index, region, bytes) == 0);
    static uint32_t there[IDS]; /* ref_count, 0: not there */
    memset(there, 0, sizeof there);
    uint64_t live = 0;
    for (int step = 0; step < STEPS; step++) {
        uint32_t n = (uint32_t)(random64() % IDS);
        uint8_t id[16];
        make_id(id, shape, n);
        uint64_t hash = wr_id_hash(id);
        uint32_t at = wr_index_find(&index, hash, id);
        CHECK((at != WR_NO_ROW) == (there[n] != 0));
        if (at != WR_NO_ROW) {
            CHECK(index.rows[at].ref_count == there[n]);
            if (random64() % 4 == 0 || live > 600) {
                wr_index_remove(&index, at);
                there[n] = 0;
                live--;
            }
        } else if (live < 700) {
            if (index.used > ROWS / 10 * 9) { /* too many tombstones: a clean table, as the server does */
                void *clean = region_of(ROWS, &bytes);
                wr_index next;
                CHECK(wr_index_init(&next, clean, bytes) == 0);
                take_all(&next, &index);
                CHECK(next.used == live && next.live == live);
                munmap(region, bytes);
                region = clean;
                index = next;
            }
            at = wr_index_insert(&index, hash);
            CHECK(at != WR_NO_ROW);
            fill_row(&index.rows[at], id, 1 + n);
            there[n] = 1 + n;
            live++;
        }
        CHECK(index.live == live && index.used >= live && index.used < ROWS);
    }
    /* The same through a reader, and in a larger table. */
    uint64_t bigger_bytes;
    void *bigger_region = region_of(2 * ROWS, &bigger_bytes);
    wr_index bigger;
    CHECK(wr_index_init(&bigger, bigger_region, bigger_bytes) == 0);
    take_all(&bigger, &index);
    CHECK(bigger.live == live && bigger.used == live);
    for (uint32_t n = 0; n < IDS; n++) {
        uint8_t id[16];
        wr_index_row row;
        make_id(id, shape, n);
        uint64_t hash = wr_id_hash(id);
        CHECK(wr_index_lookup(region, bytes, hash, id, &row) == (there[n] ? 0 : ENOENT));
        CHECK(!there[n] || row.ref_count == there[n]);
        CHECK(wr_index_lookup(bigger_region, bigger_bytes, hash, id, &row) == (there[n] ? 0 : ENOENT));
    }
    atomic_store(&index.header->retired, 1);
    uint8_t id[16] = {0};
    wr_index_row row;
    CHECK(wr_index_lookup(region, bytes, wr_id_hash(id), id, &row) == ESTALE);
    CHECK(wr_index_lookup(region, bytes / 2, wr_id_hash(id), id, &row) == EINVAL);
    munmap(region, bytes);
    munmap(bigger_region, bigger_bytes);
}

static void test_full(void) {
    uint64_t bytes;
    void *region = region_of(64, &bytes);
    wr_index index;
    CHECK(wr_index_init(&index, region, bytes) == 0);
    uint32_t n = 0, at;
    uint8_t id[16];
    for (;; n++) {
        make_id(id, 0, n);
        if ((at = wr_index_insert(&index, wr_id_hash(id))) == WR_NO_ROW) break;
        fill_row(&index.rows[at], id, n + 1);
    }
    CHECK(n > 48 && n < 64);
    make_id(id, 1, 4711);
    CHECK(wr_index_find(&index, wr_id_hash(id), id) == WR_NO_ROW);
    munmap(region, bytes);
    CHECK(wr_index_init(&index, region, 4096) == EINVAL);
    CHECK(wr_index_init(&index, region, WR_PAGE_BYTES + 100 * 64) == EINVAL);
}

/* ---- threads ---- */

enum { SHARED_ROWS = 256, SHARED_IDS = 200 };
static uint8_t *shared_region;
static uint64_t shared_bytes;
static _Atomic int ending;
static _Atomic uint64_t hits;

static void *read_rows(void *argument) {
    uint64_t seed = (uint64_t)(uintptr_t)argument * 77777 + 1;
    while (!atomic_load_explicit(&ending, memory_order_relaxed)) {
        seed = seed * 6364136223846793005ull + 1442695040888963407ull;
        uint8_t id[16];
        wr_index_row row;
        make_id(id, 3, (seed >> 33) % SHARED_IDS);
        int error = wr_index_lookup(shared_region, shared_bytes, wr_id_hash(id), id, &row);
        CHECK(error == 0 || error == ENOENT || error == ESTALE); /* the last when the writer is not running just now */
        if (error) continue;
        atomic_fetch_add_explicit(&hits, 1, memory_order_relaxed);
        CHECK(memcmp(row.id, id, 16) == 0);
        CHECK(row.file == row.ref_count * 3 && row.offset == row.ref_count * 5 && row.total_size == row.ref_count * 7);
    }
    return NULL;
}

static void test_readers(void) {
    shared_region = region_of(SHARED_ROWS, &shared_bytes);
    wr_index index;
    CHECK(wr_index_init(&index, shared_region, shared_bytes) == 0);
    pthread_t readers[2];
    for (int i = 0; i < 2; i++) CHECK(pthread_create(&readers[i], NULL, read_rows, (void *)(uintptr_t)(i + 1)) == 0);
    for (uint32_t step = 1; step < 2000000 && (step < 60000 || atomic_load(&hits) < 1000); step++) {
        uint8_t id[16];
        make_id(id, 3, random64() % SHARED_IDS);
        uint64_t hash = wr_id_hash(id);
        uint32_t at = wr_index_find(&index, hash, id);
        if (at == WR_NO_ROW) {
            if (index.live < 150 && (at = wr_index_insert(&index, hash)) != WR_NO_ROW) fill_row(&index.rows[at], id, step);
        } else if (random64() % 3) {
            fill_row(&index.rows[at], id, step);
        } else {
            wr_index_remove(&index, at);
        }
    }
    atomic_store(&ending, 1);
    for (int i = 0; i < 2; i++) pthread_join(readers[i], NULL);
    CHECK(atomic_load(&hits) > 0);
    munmap(shared_region, shared_bytes);
}

int main(void) {
    const char *given = getenv("WARREN_TEST_SEED");
    state = given ? strtoull(given, NULL, 10) : wr_now_ns() | 1;
    printf("WARREN_TEST_SEED=%llu\n", (unsigned long long)state);
    test_directory();
    for (int shape = 0; shape < 4; shape++) test_against_a_plain_table(shape);
    test_full();
    test_readers();
    return 0;
}
