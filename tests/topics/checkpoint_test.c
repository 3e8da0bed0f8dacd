/* Goal: a checkpoint is what was written, wholly, or it is none and says why; a writer that dies, or a full disk, leaves the one
 * before.
 * Method: golden bytes made by hand from the table; each byte changed and each length cut; writers killed by a signal; a disk of
 * one page. Prints its seed. */
#define _GNU_SOURCE
#include "support/scarce.h"
#include "support/scratch.h"
#include "support/small_mount.h"
#include "kernel/bytes.h"
#include "kernel/frame.h"
#include "topics/checkpoint.h"
#include <signal.h>

#define NAME "checkpoint"
#define ROWS 4000

static wr_commit_mark marks[3] = {{7, 70, NULL, false}, {8, 80, NULL, false}, {9, 0, NULL, false}};
static wr_checkpoint_row rows[ROWS];

static wr_checkpoint make(uint64_t number, uint32_t marks_n, uint32_t rows_n) {
    wr_checkpoint c = {.origin = {.node = "a node of tests", .epoch = 5}, .number = number, .position = 1000 * number, .first = 3, .store_ms = 1700000000000ull,
                       .boot = "one boot of it", .consume_queue_entries = 300, .index_slots = 5, .index_entries = 20, .marks_n = marks_n,
                       .rows_n = rows_n, .marks = marks, .rows = rows};
    c.index = (wr_index_mark){"20231114221320123", 17, 1700000000123ll};
    for (uint32_t i = 0; i < rows_n; i++) rows[i] = (wr_checkpoint_row){i / 4, i % 4, number + i, number + 2 * i, number + 2 * i, 1000 * (i + 1), i ? 100 * i : WR_NO_RECORD};
    return c;
}

static wr_checkpoint_kind read_back(int folder, wr_checkpoint *to) {
    wr_checkpoint_kind kind;
    *to = (wr_checkpoint){.origin.node = "a node of tests", .consume_queue_entries = 300, .index_slots = 5, .index_entries = 20};
    CHECK(wr_checkpoint_read(folder, NAME, to, &kind) == 0);
    CHECK(kind == WR_CHECKPOINT_GOOD || (!to->rows && !to->marks));
    return kind;
}

static void check_same(const wr_checkpoint *a, const wr_checkpoint *b) {
    CHECK(a->origin.epoch == b->origin.epoch && a->number == b->number && a->position == b->position && a->first == b->first && a->store_ms == b->store_ms);
    CHECK(!memcmp(a->boot, b->boot, 16) && !memcmp(a->origin.node, b->origin.node, 16));
    CHECK(!strcmp(a->index.name, b->index.name) && a->index.count == b->index.count && a->index.begin == b->index.begin);
    CHECK(a->marks_n == b->marks_n && a->rows_n == b->rows_n && !memcmp(a->rows, b->rows, a->rows_n * sizeof *a->rows));
    for (uint32_t i = 0; i < a->marks_n; i++)
        CHECK(a->marks[i].client_epoch == b->marks[i].client_epoch && a->marks[i].sequence == b->marks[i].sequence);
}

/* Made with the field's order alone; the checksum with another program. */
static const char golden[] =
    "5752544f504943530000000384f9b50561206e6f6465206f66207465737473000000000000000005000000000000000a00000000000027100000018bcfe56800"
    "6f6e6520626f6f74206f6620697400000000012c0000000500000014000000110000018bcfe5687b323032333131313432323133323031323300000000000001"
    "000000020000000000000003000000000000000700000000000000460000000000000000000000000000000a000000000000000a000000000000000a00000000"
    "000003e8ffffffffffffffff0000000000000001000000000000000b000000000000000c000000000000000c00000000000007d00000000000000064";

/* Of version 1. */
static const char golden_v1[] =
    "5752544f504943530000000122338cca61206e6f6465206f66207465737473000000000000000005000000000000000a00000000000027100000018bcfe56800"
    "6f6e6520626f6f74206f6620697400000000012c0000000500000014000000110000018bcfe5687b3230323331313134323231333230313233000000"
    "0000000100000002000000000000000700000000000000460000000000000000000000000000000a000000000000000a000000000000000a"
    "0000000000000001000000000000000b000000000000000c000000000000000c";

static void keeps_its_bytes(void) {
    wr_checkpoint c = make(10, 1, 2);
    uint8_t bytes[400];
    char text[801];
    CHECK(wr_checkpoint_write(scratch_fd, NAME, &c) == 0);
    int fd = openat(scratch_fd, NAME, O_RDONLY);
    ssize_t n = read(fd, bytes, sizeof bytes);
    close(fd);
    CHECK(n > 0 && (size_t)n == strlen(golden) / 2);
    for (ssize_t i = 0; i < n; i++) snprintf(text + 2 * i, 3, "%02x", bytes[i]);
    for (size_t i = 0; i < 2 * (size_t)n; i++) CHECK(text[i] == golden[i]);
}

/* A checkpoint of version 1 says where the log had come to, and of its files nothing that counts. */
static void an_older_one_says_how_far_the_log_was(void) {
    wr_checkpoint found;
    uint8_t bytes[400];
    const size_t n = strlen(golden_v1) / 2;
    for (size_t i = 0; i < n; i++) {
        unsigned byte;
        CHECK(sscanf(golden_v1 + 2 * i, "%2x", &byte) == 1);
        bytes[i] = (uint8_t)byte;
    }
    int fd = openat(scratch_fd, NAME, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    CHECK(write(fd, bytes, n) == (ssize_t)n);
    close(fd);
    CHECK(read_back(scratch_fd, &found) == WR_CHECKPOINT_OLDER && found.first == 0);
    CHECK(found.number == 10 && found.position == 10000 && found.origin.epoch == 5);
}

static void any_other_byte_is_damage(void) {
    wr_checkpoint c = make(10, 3, 5), found;
    uint8_t bytes[1000];
    CHECK(read_back(scratch_fd, &found) == WR_CHECKPOINT_NONE);
    CHECK(wr_checkpoint_write(scratch_fd, NAME, &c) == 0 && read_back(scratch_fd, &found) == WR_CHECKPOINT_GOOD);
    check_same(&c, &found);
    wr_checkpoint_free(&found);
    int fd = openat(scratch_fd, NAME, O_RDWR);
    ssize_t n = pread(fd, bytes, sizeof bytes, 0);
    for (ssize_t i = 0; i < n; i++) {
        uint8_t other = bytes[i] ^ (uint8_t)(1 + random_below(255));
        CHECK(pwrite(fd, &other, 1, i) == 1 && read_back(scratch_fd, &found) == WR_CHECKPOINT_DAMAGED && pwrite(fd, &bytes[i], 1, i) == 1);
    }
    CHECK(pwrite(fd, "x", 1, n) == 1 && read_back(scratch_fd, &found) == WR_CHECKPOINT_DAMAGED);
    for (ssize_t i = n; i-- > 0;) CHECK(ftruncate(fd, i) == 0 && read_back(scratch_fd, &found) == WR_CHECKPOINT_DAMAGED);
    close(fd);
}

static void foreign_ones_are_none(void) {
    wr_checkpoint c = make(10, 3, 5), found;
    c.origin.node[0] ^= 1;
    CHECK(wr_checkpoint_write(scratch_fd, NAME, &c) == 0 && read_back(scratch_fd, &found) == WR_CHECKPOINT_FOREIGN);
    for (int i = 0; i < 3; i++) {
        c = make(10, 3, 5);
        ++*(uint32_t *[]){&c.consume_queue_entries, &c.index_slots, &c.index_entries}[i];
        CHECK(wr_checkpoint_write(scratch_fd, NAME, &c) == 0 && read_back(scratch_fd, &found) == WR_CHECKPOINT_SETTINGS);
    }
    c = make(10, 3, 5);
    CHECK(wr_checkpoint_write(scratch_fd, NAME, &c) == 0);
    for (uint32_t version = WR_CHECKPOINT_VERSION - 1; version <= WR_CHECKPOINT_VERSION + 1; version += 2) {
        uint8_t bytes[1000];
        int fd = openat(scratch_fd, NAME, O_RDWR);
        ssize_t n = pread(fd, bytes, sizeof bytes, 0);
        wr_put32(bytes + WR_CHECKPOINT_AT_VERSION, version);
        wr_put32(bytes + WR_CHECKPOINT_AT_CRC, wr_crc32c(wr_crc32c(0, bytes, WR_CHECKPOINT_AT_CRC), bytes + WR_CHECKPOINT_AT_CRC + 4,
                                                        (size_t)n - WR_CHECKPOINT_AT_CRC - 4));
        CHECK(pwrite(fd, bytes, (size_t)n, 0) == n);
        close(fd);
        CHECK(read_back(scratch_fd, &found) == (version < WR_CHECKPOINT_VERSION ? WR_CHECKPOINT_OLDER : WR_CHECKPOINT_NEWER));
        if (version < WR_CHECKPOINT_VERSION) CHECK(found.number == 10 && found.position == 10000 && found.origin.epoch == 5); /* where the log had come to */
    }
    for (uint32_t kind = 0; kind <= WR_CHECKPOINT_KINDS; kind++) CHECK(*wr_checkpoint_word(kind));
}

static void killed_while_it_is_written(void) {
    wr_checkpoint found;
    uint64_t last = 0;
    scratch_empty();
    for (int kills = 0; kills < 40; kills++) {
        pid_t writer = fork_child();
        for (uint64_t number = last + 1; !writer; number++) {
            wr_checkpoint c = make(number, 3, ROWS);
            CHECK(wr_checkpoint_write(scratch_fd, NAME, &c) == 0);
        }
        const struct timespec some = {0, (long)random_below(6000000)};
        nanosleep(&some, NULL);
        CHECK(kill(writer, SIGKILL) == 0 && waitpid(writer, NULL, 0) == writer);
        wr_checkpoint_kind kind = read_back(scratch_fd, &found);
        CHECK(kind == WR_CHECKPOINT_GOOD || (kind == WR_CHECKPOINT_NONE && !last));
        if (kind != WR_CHECKPOINT_GOOD) continue;
        wr_checkpoint wanted = make(found.number, 3, ROWS);
        check_same(&wanted, &found);
        CHECK(found.number >= last);
        last = found.number;
        wr_checkpoint_free(&found);
    }
}

static void on_a_small_disk(void) {
    int root = open(scratch, O_RDONLY | O_DIRECTORY);
    wr_checkpoint c = make(10, 3, 5), found;
    CHECK(wr_checkpoint_write(root, NAME, &c) == 0);
    c = make(11, 3, ROWS);
    CHECK(wr_checkpoint_write(root, NAME, &c) == ENOSPC && faccessat(root, NAME ".new", F_OK, 0) != 0);
    CHECK(read_back(root, &found) == WR_CHECKPOINT_GOOD && found.number == 10 && found.rows_n == 5);
    wr_checkpoint_free(&found);
    c = make(12, 3, 6);
    CHECK(wr_checkpoint_write(root, NAME, &c) == 0 && read_back(root, &found) == WR_CHECKPOINT_GOOD && found.number == 12);
    wr_checkpoint_free(&found);
}

static void a_full_disk_leaves_the_one_before(void) {
    pid_t child = fork_child();
    if (!child) {
        if (small_mount(scratch, 64 << 10)) on_a_small_disk();
        else printf("  no right to mount: not tried on a full disk\n");
        fflush(stdout);
        _exit(0);
    }
    ended_well(child);
}

static void without_memory(void) {
    wr_checkpoint c = make(10, 3, 5), found = c;
    wr_checkpoint_kind kind;
    scarce_begin(0);
    CHECK(wr_checkpoint_write(scratch_fd, NAME, &c) == ENOMEM && scarce_end() && wr_checkpoint_write(scratch_fd, NAME, &c) == 0);
    for (uint64_t fail = 0; fail < 3; fail++) {
        scarce_begin(fail);
        CHECK(wr_checkpoint_read(scratch_fd, NAME, &found, &kind) == ENOMEM && scarce_end() && !found.rows && !found.marks);
    }
}

int main(int argc, char **argv) {
    scratch_begin("checkpoint_test", argc, argv);
    any_other_byte_is_damage();
    foreign_ones_are_none();
    keeps_its_bytes();
    an_older_one_says_how_far_the_log_was();
    killed_while_it_is_written();
    a_full_disk_leaves_the_one_before();
    without_memory();
    scratch_end();
    return 0;
}
