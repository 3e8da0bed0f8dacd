/* Goal: the directory holds what was put into it until it is removed, wherever hints point; neighbours share the row of their group, and
 * do not crowd one bucket. Method: words and ids, some of them random. Prints its seed. The index: index_test.c. */
#include "store/directory.h"
#include "support/check.h"
#include "support/random.h"
#include <stdio.h>
#include <stdlib.h>


static void test_directory(void) {
    enum { ROWS = 256 };
    static _Atomic uint64_t directory[ROWS];
    uint64_t hash = 0x123456789abcdef0ull;
    CHECK(wr_directory_word(0, 1, 5) >> 48 != 0);
    for (uint32_t i = 0; i < WR_DIRECTORY_WAYS; i++) CHECK(wr_directory_insert(directory, ROWS, hash, wr_directory_word(hash, i & 3, i)).plus_one);
    CHECK(!wr_directory_insert(directory, ROWS, hash, 77).plus_one);
    CHECK(!wr_directory_remove(directory, ROWS, hash, wr_directory_word(hash, 0, 1), (wr_row_ref){0}));
    CHECK(!wr_directory_remove(directory, ROWS, hash, wr_directory_word(hash, 0, 1), wr_row_of(1u << 30))); /* a hostile hint */
    CHECK(wr_directory_remove(directory, ROWS, hash, wr_directory_word(hash, 1, 5), wr_row_of(2)));         /* a wrong one */
    CHECK(!wr_directory_remove(directory, ROWS, hash, wr_directory_word(hash, 1, 5), (wr_row_ref){0}));
    CHECK(wr_directory_insert(directory, ROWS, hash, wr_directory_word(hash, 9, (1ull << 40) + 3)).plus_one);
    CHECK(wr_directory_sweep(directory, ROWS, 1) == WR_DIRECTORY_WAYS / 4 - 1);
    CHECK(wr_directory_sweep(directory, ROWS, 9) == 1);
    CHECK(wr_directory_sweep(directory, ROWS, 0) + wr_directory_sweep(directory, ROWS, 2) + wr_directory_sweep(directory, ROWS, 3) ==
          3 * WR_DIRECTORY_WAYS / 4);
    for (int i = 0; i < ROWS; i++) CHECK(!atomic_load(&directory[i]));
}

/* Neighbours of a batch share the row of their group, which no id of Warren's has. */
static void test_groups(void) {
    uint8_t id[16] = {0}, group[16], first[16] = {0};
    for (int step = 0; step < 10000; step++) {
        uint64_t epoch = random64() >> 12, counter = random64() >> 16;
        wr_put64(id, epoch);
        wr_put64(id + 8, counter);
        CHECK(wr_id_counted(id) && wr_id_epoch(id) == epoch && wr_id_counter(id) == counter);
        wr_group_id(id, group);
        wr_put64(id + 8, counter / WR_DIRECTORY_GROUP * WR_DIRECTORY_GROUP);
        wr_group_id(id, first);
        CHECK(memcmp(group, first, 16) == 0 && !wr_id_counted(group) && memcmp(group + 1, id + 1, 15) == 0);
        wr_put64(id + 8, counter + WR_DIRECTORY_GROUP);
        wr_group_id(id, first);
        CHECK(memcmp(group, first, 16) != 0);
    }
    wr_put64(id, 1ull << 52);
    CHECK(!wr_id_counted(id));
}

/* Counted ids and groups that are under way together are spread over the buckets. */
static void test_spread(void) {
    enum { ROWS = 8192, IDS = 2048 };
    static _Atomic uint64_t directory[ROWS];
    for (int grouped = 0; grouped < 2; grouped++) {
        memset(directory, 0, sizeof directory);
        for (uint64_t n = 0; n < IDS; n++) {
            uint8_t id[16], group[16];
            wr_put64(id, 77ull << 32);
            wr_put64(id + 8, 1000 + (grouped ? n * WR_DIRECTORY_GROUP : n));
            wr_group_id(id, group);
            uint64_t hash = wr_id_hash(grouped ? group : id);
            CHECK(wr_directory_insert(directory, ROWS, hash, wr_directory_word(hash, 3, n)).plus_one);
        }
    }
}

int main(int argc, char **argv) {
    random_begin("directory_test", argc, argv);
    test_directory();
    test_groups();
    test_spread();
    return 0;
}
