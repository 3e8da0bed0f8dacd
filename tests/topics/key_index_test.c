/* Goal: the key index holds what was put whatever instruction its writer was killed at, and readers see whole
 * entries while it is written; whatever a file holds, nothing is read or written outside of it, and a look-up ends.
 * Method: each put is taken apart into its stores, and every state between is looked at, and written on, by others;
 * files in allocations of exactly their size with random contents; a writer and readers in threads (also under
 * ThreadSanitizer). Prints its seed. */
#include "support/check.h"
#include "support/random.h"
#include "topics/consume_queue.h"
#include "topics/key_index.h"
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define HEADER(field) WR_KEY_INDEX_HEADER_AT_##field
#define BEGIN_MS 1700000000000ll

/* ---- a list of puts, and what must be found of it ---- */

enum { PUTS_MAX = 64, KEYS = 9 };
typedef struct {
    uint32_t key_hash;
    uint64_t physical_offset;
    int64_t timestamp;
} a_put;

static a_put listed[PUTS_MAX];

static void make_puts(void) {
    int64_t now = BEGIN_MS;
    for (uint32_t n = 0; n < PUTS_MAX; n++) {
        now += (int64_t)(random64() % 3000) - 500;
        listed[n] = (a_put){(uint32_t)(random64() % KEYS), 100ull * n, now};
    }
}

static void expect(const wr_key_index *index, uint32_t n) {
    for (uint32_t key = 0; key < KEYS; key++) {
        wr_key_find find;
        wr_key_entry entry;
        wr_key_find_begin(&find, index, key, INT64_MIN, INT64_MAX, false);
        for (uint32_t i = n; i--;) {
            if (listed[i].key_hash != key) continue;
            CHECK(wr_key_find_next(&find, &entry) == WR_KEY_FOUND);
            CHECK(entry.number == i + 1 && entry.physical_offset == listed[i].physical_offset);
            CHECK(entry.from <= listed[i].timestamp && listed[i].timestamp <= entry.to);
        }
        CHECK(wr_key_find_next(&find, &entry) == WR_KEY_END && wr_key_find_next(&find, &entry) == WR_KEY_END);
    }
}

static bool put(wr_key_writer *writer, uint32_t n) {
    return wr_key_put(writer, listed[n].key_hash, listed[n].physical_offset, listed[n].timestamp) == WR_KEY_FOUND;
}

/* ---- each state between two puts ---- */

enum { SLOTS = 4, ENTRIES = 20, BYTES = WR_KEY_INDEX_HEADER_SIZE + 4 * SLOTS + 20 * ENTRIES };

/* A writer goes on in a file that another one left: with the same puts, or with others (which are listed then). */
static void go_on(const uint8_t *left, uint32_t n, const uint8_t *whole) {
    uint8_t *file = malloc(BYTES);
    wr_key_index index;
    wr_key_writer writer;
    CHECK(file);
    memcpy(file, left, BYTES);
    CHECK(wr_key_index_take(&index, file, BYTES, SLOTS, ENTRIES));
    expect(&index, n);
    CHECK(wr_key_writer_open(&writer, &index) == WR_KEY_FOUND && writer.count == n + 1);
    expect(&index, n);
    CHECK(put(&writer, n) && memcmp(file, whole, BYTES) == 0);
    memcpy(file, left, BYTES);
    CHECK(wr_key_writer_open(&writer, &index) == WR_KEY_FOUND);
    for (uint32_t i = n; i < ENTRIES - 1; i++) {
        listed[i] = (a_put){(listed[i].key_hash + 1) % KEYS, 7 * i + 1, BEGIN_MS};
        CHECK(put(&writer, i));
    }
    CHECK(!put(&writer, ENTRIES - 1));
    expect(&index, ENTRIES - 1);
    free(file);
}

/* The stores of a put in their order; the states are those after each of them. */
static void killed_in_a_put(const uint8_t *before, const uint8_t *after, uint32_t n) {
    struct {
        uint32_t at, bytes;
    } stores[] = {{HEADER(BEGIN_TIMESTAMP), 8},
                  {HEADER(BEGIN_PHYSICAL_OFFSET), 8},
                  {BYTES - 20 * ENTRIES + 20 * (n + 1), 4},
                  {BYTES - 20 * ENTRIES + 20 * (n + 1) + 4, 4},
                  {BYTES - 20 * ENTRIES + 20 * (n + 1) + 8, 4},
                  {BYTES - 20 * ENTRIES + 20 * (n + 1) + 12, 4},
                  {BYTES - 20 * ENTRIES + 20 * (n + 1) + 16, 4},
                  {WR_KEY_INDEX_HEADER_SIZE + 4 * (listed[n].key_hash % SLOTS), 4},
                  {HEADER(END_TIMESTAMP), 8},
                  {HEADER(END_PHYSICAL_OFFSET), 8},
                  {HEADER(HASH_SLOT_COUNT), 8}};
    uint8_t between[BYTES];
    a_put kept[PUTS_MAX];
    memcpy(between, before, BYTES);
    for (uint32_t i = 0; i < sizeof stores / sizeof *stores; i++) {
        memcpy(kept, listed, sizeof listed);
        go_on(between, n, after);
        memcpy(listed, kept, sizeof listed);
        memcpy(between + stores[i].at, after + stores[i].at, stores[i].bytes);
    }
    CHECK(memcmp(between, after, BYTES) == 0);
}

static void killed_at_any_store(void) {
    for (int round = 0; round < 20; round++) {
        uint8_t *file = calloc(1, BYTES), before[BYTES];
        wr_key_index index;
        wr_key_writer writer;
        make_puts();
        CHECK(file && wr_key_index_take(&index, file, BYTES, SLOTS, ENTRIES));
        CHECK(wr_key_writer_open(&writer, &index) == WR_KEY_FOUND);
        for (uint32_t n = 0; n < ENTRIES - 1; n++) {
            memcpy(before, file, BYTES);
            CHECK(put(&writer, n));
            expect(&index, n + 1);
            killed_in_a_put(before, file, n);
        }
        CHECK(wr_key_put(&writer, 1, 1, BEGIN_MS) == WR_KEY_FULL);
        free(file);
    }
}

/* Killed while entries are taken out: who opens the file, and takes out the same, has what was wanted. */
static void killed_in_a_truncate(void) {
    for (int round = 0; round < 50; round++) {
        uint8_t *file = calloc(1, BYTES), *other = calloc(1, BYTES), *killed = malloc(BYTES);
        wr_key_index index, copy, third;
        wr_key_writer writer, copier;
        make_puts();
        CHECK(file && other && killed && wr_key_index_take(&index, file, BYTES, SLOTS, ENTRIES));
        CHECK(wr_key_index_take(&copy, other, BYTES, SLOTS, ENTRIES));
        CHECK(wr_key_index_take(&third, killed, BYTES, SLOTS, ENTRIES));
        CHECK(wr_key_writer_open(&writer, &index) == WR_KEY_FOUND);
        for (uint32_t n = 0; n < ENTRIES - 1; n++) CHECK(put(&writer, n));
        for (uint32_t n = ENTRIES - 1; n--;) { /* one entry less each time */
            memcpy(other, file, BYTES);
            CHECK(wr_key_truncate(&writer, listed[n].physical_offset) == WR_KEY_FOUND && writer.count == n + 1);
            expect(&index, n);
            for (int half = 0; half < 2; half++) { /* before, and after, the counts alone were written */
                memcpy(killed, other, BYTES);
                if (half) memcpy(killed + HEADER(HASH_SLOT_COUNT), file + HEADER(HASH_SLOT_COUNT), 8);
                CHECK(wr_key_writer_open(&copier, &third) == WR_KEY_FOUND);
                CHECK(wr_key_truncate(&copier, listed[n].physical_offset) == WR_KEY_FOUND && copier.count == n + 1);
                expect(&third, n);
            }
        }
        static const uint8_t empty[WR_KEY_INDEX_HEADER_SIZE + 4 * SLOTS];
        CHECK(memcmp(file, empty, sizeof empty) == 0);
        free(file);
        free(other);
        free(killed);
    }
}

/* ---- any contents ---- */

static void any_contents(void) {
    for (int round = 0; round < 20000; round++) {
        uint32_t slots = 1 + (uint32_t)(random64() % 5), entries = 2 + (uint32_t)(random64() % 20);
        uint64_t bytes = wr_key_index_bytes(slots, entries);
        uint8_t *file = calloc(1, bytes);
        wr_key_index index;
        wr_key_writer writer;
        make_puts();
        CHECK(file && wr_key_index_take(&index, file, bytes, slots, entries));
        CHECK(!wr_key_index_take(&index, file, bytes - 1, slots, entries));
        CHECK(wr_key_index_take(&index, file, bytes, slots, entries));
        CHECK(wr_key_writer_open(&writer, &index) == WR_KEY_FOUND);
        for (uint32_t n = 0; n < entries / 2; n++) CHECK(put(&writer, n));
        for (uint64_t changes = 1 + random64() % 20; changes--;) {
            uint64_t at = random64() % bytes;
            file[at] = random64() % 2 ? (uint8_t)random64() : (uint8_t)(random64() % 4);
        }
        for (uint32_t key = 0; key < KEYS; key++) {
            wr_key_find find;
            wr_key_entry entry;
            uint32_t last = entries;
            wr_key_code code;
            wr_key_find_begin(&find, &index, key, INT64_MIN, INT64_MAX, random64() % 2);
            while ((code = wr_key_find_next(&find, &entry)) == WR_KEY_FOUND) {
                CHECK(entry.number && entry.number < last && entry.from <= entry.to && !(entry.physical_offset >> 63));
                last = entry.number;
            }
            CHECK(code != WR_KEY_FULL && wr_key_find_next(&find, &entry) == WR_KEY_END);
        }
        if (wr_key_writer_open(&writer, &index) == WR_KEY_FOUND) {
            if (random64() % 2) wr_key_truncate(&writer, random64() % 2000);
            for (uint32_t n = 0; n < 4; n++) put(&writer, n);
        }
        free(file);
    }
}

/* ---- threads ---- */

enum { RACE_SLOTS = 3, RACE_ENTRIES = 20000, READERS = 2 };
static wr_key_index raced;
static uint8_t raced_units[20 * RACE_ENTRIES];
static _Atomic uint32_t raced_n;

static uint32_t race_key(uint32_t n) { return n * 7919u % KEYS; }

static void *read_race(void *unused) {
    (void)unused;
    for (uint32_t n = 0; n < RACE_ENTRIES - 1;) {
        n = atomic_load_explicit(&raced_n, memory_order_acquire);
        for (uint32_t key = 0; key < KEYS; key++) {
            wr_key_find find;
            wr_key_entry entry;
            uint32_t last = 0, found = 0;
            wr_key_find_begin(&find, &raced, key, INT64_MIN, INT64_MAX, false);
            while (found < 20 && wr_key_find_next(&find, &entry) == WR_KEY_FOUND) {
                uint32_t i = entry.number - 1;
                CHECK(race_key(i) == key && entry.physical_offset == i * 0x100000001ull);
                CHECK(i < 1 || entry.from == BEGIN_MS + 1000 * (int64_t)i);
                CHECK(!found || last - i == KEYS);
                last = i;
                found++;
            }
            for (uint32_t i = n, back = 0; i-- && back < KEYS; back++) /* what was there before is found */
                if (race_key(i) == key) CHECK(found);
        }
        wr_unit unit; /* units appear at any time, whole */
        for (uint32_t i = n > 50 ? n - 50 : 0; i < RACE_ENTRIES && wr_unit_get(raced_units, i, &unit); i++)
            CHECK(unit.physical_offset == i * 0x100000001ull && unit.tags_code == -(int64_t)i && unit.size == i + 1);
    }
    return NULL;
}

static void a_writer_and_readers(void) {
    uint64_t bytes = wr_key_index_bytes(RACE_SLOTS, RACE_ENTRIES);
    uint8_t *file = calloc(1, bytes);
    pthread_t readers[READERS];
    wr_key_writer writer;
    CHECK(file && wr_key_index_take(&raced, file, bytes, RACE_SLOTS, RACE_ENTRIES));
    for (int i = 0; i < READERS; i++) CHECK(pthread_create(&readers[i], NULL, read_race, NULL) == 0);
    CHECK(wr_key_writer_open(&writer, &raced) == WR_KEY_FOUND);
    for (uint32_t n = 0; n < RACE_ENTRIES - 1; n++) {
        if (n % 1000 == 999) CHECK(wr_key_writer_open(&writer, &raced) == WR_KEY_FOUND); /* another one */
        CHECK(wr_key_put(&writer, race_key(n), n * 0x100000001ull, BEGIN_MS + 1000 * (int64_t)n) == WR_KEY_FOUND);
        wr_unit_put(raced_units, n, n * 0x100000001ull, n + 1, -(int64_t)n);
        atomic_store_explicit(&raced_n, n + 1, memory_order_release);
    }
    for (int i = 0; i < READERS; i++) pthread_join(readers[i], NULL);
    free(file);
}

int main(int argc, char **argv) {
    random_begin("key_index_test", argc, argv);
    CHECK(wr_key_index_bytes(WR_INDEX_SLOTS, WR_INDEX_ENTRIES) == 420000040);
    killed_at_any_store();
    killed_in_a_truncate();
    any_contents();
    a_writer_and_readers();
    return 0;
}
