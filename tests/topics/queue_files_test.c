/* Goal: a consume queue keeps every unit that was put, wherever its writer is killed; putting again changes nothing; a full disk
 * is an error that passes; readers in other processes see what counts and nothing else, while files come and go, and nothing
 * that is done to a file ends them; a queue that is not used costs no file and no descriptor, and a unit one page.
 * Method: a plain array as model, random puts, rolls, removals and new writers; writers killed by a signal at any instruction; a
 * disk of 256 KiB; files cut under a reader. Prints its seed. */
#define _GNU_SOURCE
#include "kernel/protocol.h"
#include "support/scarce.h"
#include "support/scratch.h"
#include "support/small_mount.h"
#include "topics/queue_files.h"
#include <dirent.h>
#include <signal.h>
#include <sys/mman.h>

#define FOLDER "flights/3"
#define UNIT_BYTES WR_CONSUME_QUEUE_UNIT_SIZE
#define MODEL_MAX 200000u

/* The unit of a number is what its number says, in some `version`. */
static wr_unit unit_of(uint64_t n, uint32_t version) {
    uint64_t x = (n + 1) * 0x9e3779b97f4a7c15ull + version;
    return (wr_unit){x >> 1, 1 + (uint32_t)(x >> 40) % 5000, (int64_t)x};
}

static int put(wr_queue_files *files, uint64_t n, uint32_t version) {
    wr_unit unit = unit_of(n, version);
    return wr_queue_files_put(files, n, unit.physical_offset, unit.size, unit.tags_code);
}

static bool same(const wr_unit *a, const wr_unit *b) {
    return a->physical_offset == b->physical_offset && a->size == b->size && a->tags_code == b->tags_code;
}

/* All units from … to are there, by a reader that was open before, and by a new one. */
static void expect(wr_queue_reader *known, uint32_t entries, uint64_t from, uint64_t to) {
    static wr_unit units[3000];
    wr_queue_reader *fresh = wr_queue_reader_new(scratch_fd, FOLDER, entries);
    for (int i = 0; i < 2; i++)
        for (uint64_t n = from; n < to;) {
            uint32_t found, most = 1 + (uint32_t)random_below(3000);
            if (most > to - n) most = (uint32_t)(to - n);
            CHECK(wr_queue_reader_get(i ? fresh : known, n, units, most, &found) == 0 && found == most);
            for (uint32_t k = 0; k < found; k++) {
                wr_unit wanted = unit_of(n + k, 0);
                CHECK(same(&units[k], &wanted));
            }
            n += found;
        }
    wr_queue_reader_free(fresh);
}

static void path_of(char path[300], uint64_t unit) {
    snprintf(path, 300, "%s/%s/%020llu", scratch, FOLDER, (unsigned long long)unit * UNIT_BYTES);
}

static struct stat status_of(uint64_t unit) {
    char path[300];
    struct stat status;
    path_of(path, unit);
    CHECK(stat(path, &status) == 0);
    return status;
}

/* ---- against a model ---- */

static void against_a_model(void) {
    static const uint32_t sizes[] = {1, 2, 7, 205, 1000, 5000};
    for (int round = 0; round < 60; round++) {
        uint32_t entries = sizes[random_below(6)];
        uint64_t next = 0, minimum = 0, durable, removed, first;
        wr_queue_files *files = wr_queue_files_new(scratch_fd, FOLDER, entries);
        wr_queue_reader *reader = wr_queue_reader_new(scratch_fd, FOLDER, entries);
        CHECK(files && reader);
        CHECK(wr_queue_files_first(scratch_fd, FOLDER, entries, &first) == ENOENT);
        for (int turn = 0; turn < 40; turn++) {
            switch (random_below(6)) {
            case 0: /* another writer, that begins again somewhere */
                wr_queue_files_free(files);
                CHECK((files = wr_queue_files_new(scratch_fd, FOLDER, entries)));
                for (uint64_t n = next - random_below(next - minimum + 1); n < next; n++) CHECK(put(files, n, 0) == 0);
                break;
            case 1:
                CHECK(wr_queue_files_sync(files, &durable) == 0 && durable <= next);
                break;
            case 2:
                minimum += random_below(next - minimum + 1);
                CHECK(wr_queue_files_remove(files, minimum, &removed) == 0);
                if (next) {
                    CHECK(wr_queue_files_first(scratch_fd, FOLDER, entries, &first) == 0);
                    uint64_t lowest = minimum / entries * entries, last = (next - 1) / entries * entries;
                    CHECK(first == (lowest < last ? lowest : last));
                }
                break;
            default:
                for (uint64_t k = random_below(random_below(4) ? 3 * entries + 5 : 20); k-- > 0 && next < MODEL_MAX; next++)
                    CHECK(put(files, next, 0) == 0);
                CHECK(wr_queue_files_sync(files, &durable) == 0);
                CHECK(!next || durable == next || durable == 0);
            }
            expect(reader, entries, minimum, next);
            uint32_t found;
            wr_unit unit;
            CHECK(wr_queue_reader_get(reader, next, &unit, 1, &found) == 0 && found == 0);
            if (next > minimum) CHECK(status_of((next - 1) / entries * entries).st_size == (off_t)entries * UNIT_BYTES);
        }
        wr_queue_files_free(files);
        wr_queue_reader_free(reader);
        scratch_empty();
    }
}

/* A unit that was lost is none; a number that cannot be is refused. */
static void units_that_are_none(void) {
    wr_queue_files *files = wr_queue_files_new(scratch_fd, FOLDER, 100);
    wr_queue_reader *reader = wr_queue_reader_new(scratch_fd, FOLDER, 100);
    wr_unit unit;
    uint32_t found;
    for (uint64_t n = 0; n < 5; n++) CHECK(put(files, n, 0) == 0);
    CHECK(wr_queue_files_put(files, 3, 0, 0, 0) == 0);
    CHECK(wr_queue_reader_get(reader, 3, &unit, 1, &found) == 0 && found == 0);
    CHECK(wr_queue_reader_get(reader, 4, &unit, 1, &found) == 0 && found == 1);
    wr_unit all[98]; /* also those that are not there, as far as the file has place */
    CHECK(wr_queue_reader_all(reader, 2, all, 98, &found) == 0 && found == 98);
    for (uint32_t i = 0; i < 98; i++) CHECK(!all[i].size == (i == 1 || i > 2) && wr_unit_is_empty(&all[i]) == (i == 1) && wr_unit_is_zeros(&all[i]) == (i > 2));
    static const uint8_t mark[UNIT_BYTES] = {0, 0, 0, 0, 0, 0, 0, 0, 0x7f, 0xff, 0xff, 0xff}; /* RocketMQ's */
    uint8_t stored[UNIT_BYTES];
    char path[300];
    path_of(path, 0);
    int fd = open(path, O_RDONLY);
    CHECK(fd >= 0 && pread(fd, stored, UNIT_BYTES, 3 * UNIT_BYTES) == UNIT_BYTES && !memcmp(stored, mark, UNIT_BYTES));
    close(fd);
    CHECK(wr_queue_reader_all(reader, 100, all, 98, &found) == 0 && found == 0);
    CHECK(put(files, WR_QUEUE_UNITS_MAX, 0) == EOVERFLOW && put(files, UINT64_MAX, 0) == EOVERFLOW);
    CHECK(wr_queue_reader_get(reader, UINT64_MAX, &unit, 1, &found) == 0 && found == 0);
    uint64_t far = WR_QUEUE_UNITS_MAX - 1;
    CHECK(put(files, far, 0) == 0 && wr_queue_reader_get(reader, far, &unit, 1, &found) == 0 && found == 1);
    uint64_t first;
    static const struct { uint64_t n; bool down; int64_t first; } near[] = {{0, false, 0}, {99, false, 0}, {100, false, 1}, {99, true, 0}, {1000, true, 0}};
    uint64_t last = far - far % 100;
    for (int i = 0; i < 5; i++)
        CHECK(wr_queue_reader_file(reader, near[i].n, near[i].down, &first) == 0 && first == (near[i].first == 1 ? last : 0));
    CHECK(wr_queue_reader_file(reader, UINT64_MAX, true, &first) == 0 && first == last);
    CHECK(wr_queue_reader_file(reader, last + 100, false, &first) == ENOENT);
    wr_queue_files_free(files);
    wr_queue_reader_free(reader);
    scratch_empty();
    CHECK((reader = wr_queue_reader_new(scratch_fd, FOLDER, 100)) && wr_queue_reader_file(reader, 5, true, &first) == ENOENT);
    wr_queue_reader_free(reader);
}

/* ---- what it costs ---- */

static unsigned files_below(const char *folder) {
    char path[300];
    unsigned n = 0;
    snprintf(path, sizeof path, "%s/%s", scratch, folder);
    DIR *d = opendir(path);
    for (struct dirent *e; d && (e = readdir(d));) n += e->d_name[0] != '.';
    if (d) closedir(d);
    return n;
}

static void what_is_not_used_costs_nothing(void) {
    enum { QUEUES = 4000 };
    static wr_queue_files *files[QUEUES];
    uint64_t durable;
    char name[40];
    unsigned before = descriptors();
    for (int i = 0; i < QUEUES; i++) {
        snprintf(name, sizeof name, "t%d/%d", i / 4, i % 4);
        CHECK((files[i] = wr_queue_files_new(scratch_fd, name, WR_CONSUME_QUEUE_ENTRIES)));
        CHECK(wr_queue_files_sync(files[i], &durable) == 0 && durable == 0);
    }
    CHECK(descriptors() == before && files_below(".") == 0);
    CHECK(put(files[2], 0, 0) == 0 && put(files[3], 0, 0) == 0 && put(files[3999], 600000, 0) == 0);
    CHECK(descriptors() == before && files_below(".") == 2 && files_below("t0") == 2 && files_below("t999") == 1);
    struct stat status;
    CHECK(fstatat(scratch_fd, "t999/3/00000000000012000000", &status, 0) == 0);
    CHECK(status.st_size == 6000000 && status.st_blocks * 512 <= 8192);
    for (uint64_t n = 0; n < 300000; n++) CHECK(put(files[2], n, 0) == 0); /* 4 KiB, 64 KiB, 1 MiB: and the whole at the end */
    CHECK(fstatat(scratch_fd, "t0/2/00000000000000000000", &status, 0) == 0 && status.st_size == 6000000);
    CHECK(descriptors() == before && files_below("t0/2") == 1);
    for (int i = 0; i < QUEUES; i++) wr_queue_files_free(files[i]);
    scratch_empty();
}

/* Pages of a file that are in memory. */
static uint32_t pages_of(uint64_t unit) {
    static unsigned char there[WR_CONSUME_QUEUE_ENTRIES * UNIT_BYTES / WR_PAGE_BYTES + 1];
    const uint64_t bytes = (uint64_t)WR_CONSUME_QUEUE_ENTRIES * UNIT_BYTES;
    char path[300];
    uint32_t n = 0;
    path_of(path, unit);
    int fd = open(path, O_RDONLY);
    CHECK(fd >= 0);
    void *map = mmap(NULL, bytes, PROT_READ, MAP_SHARED, fd, 0);
    CHECK(map != MAP_FAILED && mincore(map, bytes, there) == 0);
    for (uint64_t page = 0; page < sizeof there; page++) n += there[page] & 1;
    munmap(map, bytes);
    close(fd);
    return n;
}

static void a_unit_brings_no_others_into_memory(void) {
    wr_queue_files *files = wr_queue_files_new(scratch_fd, FOLDER, WR_CONSUME_QUEUE_ENTRIES);
    CHECK(put(files, 0, 0) == 0);
    const uint32_t one = pages_of(0);
    CHECK(one && one <= 16); /* a system may have large pages for files: it reads at least 32 small ones ahead */
    CHECK(put(files, WR_CONSUME_QUEUE_ENTRIES / 2, 0) == 0 && pages_of(0) <= 2 * one + 16);
    wr_queue_files_free(files);
    scratch_empty();
}

/* ---- kills ---- */

typedef struct {
    _Atomic uint64_t maximum, minimum;
    _Atomic bool stop;
} a_row;

static a_row *shared_row(void) {
    a_row *row = mmap(NULL, sizeof *row, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(row != MAP_FAILED);
    return row;
}

static void write_for_ever(a_row *row, uint32_t entries) {
    uint64_t durable, removed, next = atomic_load(&row->maximum), minimum = atomic_load(&row->minimum);
    wr_queue_files *files = wr_queue_files_new(scratch_fd, FOLDER, entries);
    CHECK(files);
    for (uint64_t n = next - random_below(next - minimum + 1); n < next; n++) CHECK(put(files, n, 0) == 0); /* a replay */
    for (;; next++) {
        CHECK(put(files, next, 0) == 0);
        atomic_store_explicit(&row->maximum, next + 1, memory_order_release);
        if (next % 64 == 0) CHECK(wr_queue_files_sync(files, &durable) == 0);
        if (next % 3000 == 2999) {
            atomic_store(&row->minimum, next - random_below(1000));
            CHECK(wr_queue_files_remove(files, atomic_load(&row->minimum), &removed) == 0);
        }
    }
}

static void read_for_ever(const a_row *row, uint32_t entries) {
    static wr_unit units[500];
    wr_queue_reader *reader = wr_queue_reader_new(scratch_fd, FOLDER, entries);
    uint64_t good = 0;
    CHECK(reader);
    while (!atomic_load(&row->stop)) {
        uint64_t minimum = atomic_load(&row->minimum), maximum = atomic_load_explicit(&row->maximum, memory_order_acquire);
        if (minimum >= maximum) continue;
        uint64_t n = minimum + random_below(maximum - minimum);
        uint32_t found, most = 1 + (uint32_t)random_below(500);
        if (most > maximum - n) most = (uint32_t)(maximum - n);
        CHECK(wr_queue_reader_get(reader, n, units, most, &found) == 0);
        CHECK(found == most || n + found < atomic_load(&row->minimum));
        for (uint32_t k = 0; k < found; k++) {
            wr_unit wanted = unit_of(n + k, 0);
            CHECK(same(&units[k], &wanted));
        }
        good += found;
    }
    CHECK(good);
    wr_queue_reader_free(reader);
}

/* Writers are killed one after another; two readers look on all the time; in the end all is there. */
static void killed_at_any_instruction(void) {
    for (int round = 0; round < 3; round++) {
        uint32_t entries = 50 + (uint32_t)random_below(700);
        a_row *row = shared_row();
        pid_t readers[2], writer;
        for (int i = 0; i < 2; i++) {
            random64();
            readers[i] = fork_child();
            if (!readers[i]) {
                read_for_ever(row, entries);
                _exit(0);
            }
        }
        for (int kill_n = 0; kill_n < 40; kill_n++) {
            random64();
            writer = fork_child();
            if (!writer) write_for_ever(row, entries);
            const struct timespec some = {0, (long)random_below(8000000)};
            nanosleep(&some, NULL);
            CHECK(kill(writer, SIGKILL) == 0 && waitpid(writer, NULL, 0) == writer);
        }
        writer = fork_child(); /* so that there is something to read in any case */
        if (!writer) write_for_ever(row, entries);
        while (atomic_load(&row->maximum) < 5000) sched_yield();
        CHECK(kill(writer, SIGKILL) == 0 && waitpid(writer, NULL, 0) == writer);
        atomic_store(&row->stop, true);
        for (int i = 0; i < 2; i++) ended_well(readers[i]);
        wr_queue_reader *reader = wr_queue_reader_new(scratch_fd, FOLDER, entries);
        expect(reader, entries, atomic_load(&row->minimum), atomic_load(&row->maximum));
        wr_queue_reader_free(reader);
        munmap(row, sizeof *row);
        scratch_empty();
    }
}

/* ---- disks that are full, files that are cut ---- */

static void on_a_small_disk(void) {
    const uint32_t entries = 9000;
    int root = open(scratch, O_RDONLY | O_DIRECTORY);
    wr_queue_files *files = wr_queue_files_new(root, FOLDER, entries), *others[8];
    wr_queue_reader *reader = wr_queue_reader_new(root, FOLDER, entries);
    uint64_t n = 0, durable, removed;
    int error;
    while (!(error = put(files, n, 0))) n++;
    CHECK(error == ENOSPC && n * UNIT_BYTES > 100000);
    CHECK(put(files, n, 0) == ENOSPC && put(files, n - 1, 0) == 0); /* what is there can be put again */
    for (int i = 0; i < 8; i++) { /* a new queue, too, says so */
        char name[40];
        snprintf(name, sizeof name, "other/%d", i);
        CHECK((others[i] = wr_queue_files_new(root, name, entries)) && put(others[i], 0, 0) == ENOSPC);
    }
    wr_unit unit;
    uint32_t found;
    CHECK(wr_queue_reader_get(reader, n - 1, &unit, 1, &found) == 0 && found == 1);
    CHECK(wr_queue_reader_get(reader, n, &unit, 1, &found) == 0 && found == 0);
    CHECK(wr_queue_files_sync(files, &durable) == 0 && durable == n);
    CHECK(wr_queue_files_remove(files, n, &removed) == 0 && removed == (n - 1) / entries && removed);
    CHECK(WITH_ROOM(put(others[0], 0, 0)) == 0);
    uint64_t had = n;
    CHECK(WITH_ROOM(put(files, n, 0)) == 0);
    n++;
    while (n < had + entries && !(error = put(files, n, 0))) n++;
    CHECK(n > had);
    for (uint64_t k = had / entries * entries; k < n; k++) {
        wr_unit wanted = unit_of(k, 0);
        CHECK(wr_queue_reader_get(reader, k, &unit, 1, &found) == 0 && found == 1 && same(&unit, &wanted));
    }
    for (int i = 0; i < 8; i++) wr_queue_files_free(others[i]);
    wr_queue_files_free(files);
    wr_queue_reader_free(reader);
    close(root);
}

static void a_full_disk_is_an_error_that_passes(void) {
    pid_t child = fork_child();
    if (!child) {
        if (!small_mount(scratch, 256 << 10)) {
            printf("  no right to mount: not tried on a full disk\n");
            fflush(stdout);
            _exit(0);
        }
        on_a_small_disk();
        _exit(0);
    }
    ended_well(child);
}

static void somebody_cuts_removes_or_exchanges_a_file(void) {
    const uint32_t entries = 1000;
    wr_queue_files *files = wr_queue_files_new(scratch_fd, FOLDER, entries);
    wr_queue_reader *reader = wr_queue_reader_new(scratch_fd, FOLDER, entries);
    static wr_unit units[1000];
    uint32_t found;
    char path[300], other[400];
    for (uint64_t n = 0; n < 1200; n++) CHECK(put(files, n, 0) == 0);
    CHECK(wr_queue_reader_get(reader, 0, units, 1000, &found) == 0 && found == 1000);
    path_of(path, 0);
    CHECK(truncate(path, 100 * UNIT_BYTES + 7) == 0);
    CHECK(wr_queue_reader_get(reader, 0, units, 1000, &found) == 0 && found == 100);
    CHECK(wr_queue_reader_get(reader, 100, units, 1, &found) == 0 && found == 0);
    wr_queue_files_free(files);
    CHECK((files = wr_queue_files_new(scratch_fd, FOLDER, entries)) && put(files, 100, 0) == ESTALE);
    CHECK(truncate(path, entries * UNIT_BYTES + 7) == 0); /* what lies behind it is nobody's */
    CHECK(put(files, 100, 0) == 0);
    CHECK(put(files, 1200, 0) == 0);
    path_of(path, 1000);
    snprintf(other, sizeof other, "%s-moved", path);
    CHECK(rename(path, other) == 0);
    uint64_t n = 1201;
    while (n < 2000 && put(files, n, 0) == 0) n++;
    CHECK(n < 2000 && put(files, n, 0) == ESTALE);
    CHECK(wr_queue_reader_get(reader, 1000, units, 1, &found) == 0 && found == 0);
    int fd = open(path, O_RDWR | O_CREAT, 0600); /* another one of the name: not what is mapped */
    CHECK(fd >= 0 && ftruncate(fd, entries * UNIT_BYTES) == 0 && put(files, n, 0) == ESTALE);
    close(fd);
    wr_queue_files_free(files);
    wr_queue_reader_free(reader);
    scratch_empty();
}

static void a_file_that_is_made_again_is_read_again(void) {
    wr_queue_files *files = wr_queue_files_new(scratch_fd, FOLDER, 10);
    wr_queue_reader *reader = wr_queue_reader_new(scratch_fd, FOLDER, 10);
    wr_unit unit, wanted = unit_of(7, 0);
    uint32_t found;
    char path[300];
    for (uint64_t n = 0; n < 5; n++) CHECK(put(files, n, 0) == 0);
    CHECK(wr_queue_reader_get(reader, 4, &unit, 1, &found) == 0 && found == 1);
    wr_queue_files_free(files);
    path_of(path, 0);
    CHECK(unlink(path) == 0 && (files = wr_queue_files_new(scratch_fd, FOLDER, 10)));
    CHECK(wr_queue_reader_get(reader, 4, &unit, 1, &found) == 0 && found == 1); /* what was open stays readable */
    for (uint64_t n = 0; n < 8; n++) CHECK(put(files, n, 0) == 0);
    CHECK(wr_queue_reader_get(reader, 7, &unit, 1, &found) == 0 && found == 1 && same(&unit, &wanted));
    wr_queue_files_free(files);
    wr_queue_reader_free(reader);
    scratch_empty();
}

/* Nobody knows what a sync that failed left out: it is said for ever, and never as an error that passes (ENOSPC): who is
 * told that puts again, and again. */
static void a_sync_that_failed_stays(void) {
    static const int errors[] = {EIO, ENOSPC, EDQUOT, ENOMEM};
    for (size_t i = 0; i < sizeof errors / sizeof *errors; i++) {
        wr_queue_files *files = wr_queue_files_new(scratch_fd, FOLDER, 10);
        uint64_t durable;
        for (uint64_t n = 0; n < 35; n++) CHECK(put(files, n, 0) == 0);
        CHECK(wr_queue_files_synced(files, 0) == 0 && put(files, 35, 0) == 0);
        CHECK(wr_queue_files_synced(files, errors[i]) == EIO && wr_queue_files_synced(files, 0) == EIO);
        CHECK(wr_queue_files_sync(files, &durable) == EIO && put(files, 36, 0) == EIO);
        wr_queue_files_free(files);
        scratch_empty();
    }
}

/* ---- memory that runs out ---- */

static void without_memory(void) {
    for (uint64_t fail = 0; fail < 4; fail++) {
        wr_queue_files *files = wr_queue_files_new(scratch_fd, FOLDER, 10);
        uint64_t removed, durable;
        scarce_begin(fail);
        for (uint64_t n = 0; n < 35; n++) CHECK(SCARCE_AGAIN(put(files, n, 0)) == 0);
        CHECK(SCARCE_AGAIN(wr_queue_files_remove(files, 20, &removed)) == 0 && removed == 2);
        bool failed = scarce_end();
        CHECK(failed || fail > 3);
        CHECK(wr_queue_files_sync(files, &durable) == 0 && durable == 35);
        wr_queue_files_free(files);
        scratch_empty();
    }
    scarce_begin(0);
    CHECK(!wr_queue_files_new(scratch_fd, FOLDER, 10) && scarce_end());
    scarce_begin(0);
    CHECK(!wr_queue_reader_new(scratch_fd, FOLDER, 10) && scarce_end());
}

int main(int argc, char **argv) {
    scratch_begin("queue_files_test", argc, argv);
    against_a_model();
    units_that_are_none();
    what_is_not_used_costs_nothing();
    a_unit_brings_no_others_into_memory();
    killed_at_any_instruction();
    a_full_disk_is_an_error_that_passes();
    somebody_cuts_removes_or_exchanges_a_file();
    a_file_that_is_made_again_is_read_again();
    a_sync_that_failed_stays();
    without_memory();
    scratch_end();
    return 0;
}
