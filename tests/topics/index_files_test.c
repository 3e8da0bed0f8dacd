/* Goal: a key is found from its put on, once, newest first, over all files and whatever became of their writer; after a loss of
 * power nothing is believed but what was synced, and a replay gives the rest; small indexes cost little; a full disk passes.
 * Method: a list as model, small files that roll all the time; writers killed by a signal at any instruction; pages behind a sync
 * that are there or not, sector by sector; a disk of a few pages; damage. Prints its seed. */
#define _GNU_SOURCE
#include "kernel/bytes.h"
#include "support/scarce.h"
#include "support/scratch.h"
#include "support/small_mount.h"
#include "topics/folder.h"
#include "topics/index_files.h"
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/syscall.h>

#define FOLDER "index"
#define KEYS 9
#define PUTS_MAX 60000
#define BEGIN_MS 1700000000000ll
#define SECTOR 512u

/* The n-th key of the log: some records have several. */
typedef struct {
    uint32_t key_hash;
    uint64_t position;
    int64_t ms;
} a_put;

static a_put listed[PUTS_MAX];

static void make_list(void) {
    uint64_t position = random_below(2);
    int64_t now = BEGIN_MS;
    for (uint32_t n = 0; n < PUTS_MAX; n++) {
        bool same = n && random_below(4) == 0; /* another key of the record */
        if (!same) position += n ? 100 + random_below(100) : 0, now += random_below(3) ? 0 : (int64_t)random_below(3000);
        listed[n] = (a_put){(uint32_t)random_below(KEYS), position, now};
        for (uint32_t i = n; same && i-- > 0 && listed[i].position == position;) /* not the same one twice */
            if (listed[i].key_hash == listed[n].key_hash) position += 100, same = false, listed[n].position = position;
    }
}

static int put(wr_index_files *files, uint32_t n) { return wr_index_files_put(files, listed[n].key_hash, listed[n].position, listed[n].ms); }

/* The keys from … to are found, and nothing else. */
static void expect(wr_index_reader *reader, uint32_t from, uint32_t to) {
    for (uint32_t key = 0; key < KEYS; key++) {
        wr_key_entry entry;
        wr_key_code code;
        CHECK(wr_index_reader_find(reader, key, INT64_MIN, INT64_MAX) == 0);
        for (uint32_t n = to; n-- > from;) {
            if (listed[n].key_hash != key) continue;
            CHECK(wr_index_reader_next(reader, &entry, &code) == 0 && code == WR_KEY_FOUND);
            CHECK(entry.physical_offset == listed[n].position && entry.from <= listed[n].ms && listed[n].ms <= entry.to);
        }
        CHECK(wr_index_reader_next(reader, &entry, &code) == 0);
        /* What was below the minimum may be there still, or is missed: whether it has to be there the log says. */
        CHECK(code == WR_KEY_END || (from && (code == WR_KEY_FOUND || code == WR_KEY_MISSING)));
    }
}

/* Of a time range nothing is missing, and nothing is foreign to it by more than its seconds. */
static void expect_range(wr_index_reader *reader, uint32_t from, uint32_t to) {
    if (from == to) return;
    uint32_t key = (uint32_t)random_below(KEYS);
    int64_t since = listed[from + random_below(to - from)].ms, until = since + (int64_t)random_below(20000);
    wr_key_entry entry;
    wr_key_code code;
    CHECK(wr_index_reader_find(reader, key, since, until) == 0);
    for (uint32_t n = to; n-- > from;) {
        if (listed[n].key_hash != key || listed[n].ms < since || listed[n].ms > until) continue;
        do CHECK(wr_index_reader_next(reader, &entry, &code) == 0 && code == WR_KEY_FOUND && entry.to >= since && entry.from <= until);
        while (entry.physical_offset != listed[n].position);
    }
}

static wr_index_files *begin(uint32_t slots, uint32_t entries, const wr_index_mark *mark, bool survived, bool *lost, uint64_t *from) {
    wr_index_files *files = wr_index_files_new(scratch_fd, FOLDER, slots, entries);
    CHECK(files && wr_index_files_recover(files, mark, survived, lost, from) == 0);
    return files;
}

static uint32_t first_at(uint64_t position) {
    uint32_t n = 0;
    while (n < PUTS_MAX && listed[n].position < position) n++;
    return n;
}

/* ---- against a model ---- */

static void against_a_model(void) {
    for (int round = 0; round < 60; round++) {
        uint32_t slots = 1 + (uint32_t)random_below(12), entries = 2 + (uint32_t)random_below(60), next = 0, minimum = 0;
        wr_index_mark mark, *known = NULL;
        uint64_t from, removed;
        bool lost;
        make_list();
        wr_index_files *files = begin(slots, entries, NULL, false, &lost, &from);
        wr_index_reader *reader = wr_index_reader_new(scratch_fd, FOLDER, slots, entries, random_below(2));
        CHECK(reader && !lost && from == 0);
        for (int turn = 0; turn < 30; turn++) {
            switch (random_below(6)) {
            case 0: /* another writer, that begins again somewhere */
                wr_index_files_free(files);
                files = begin(slots, entries, known, true, &lost, &from);
                CHECK(!lost);
                for (uint32_t n = next - (uint32_t)random_below(next - minimum + 1); n < next; n++) CHECK(put(files, n) == 0);
                break;
            case 1:
                CHECK(wr_index_files_sync(files, &mark) == 0);
                known = &mark;
                break;
            case 2: /* the log is cut */
                if (random_below(3) || next == minimum) break;
                next -= (uint32_t)random_below(next - minimum + 1);
                CHECK(wr_index_files_cut(files, listed[next].position) == 0);
                next = first_at(listed[next].position); /* records go as a whole */
                CHECK(wr_index_files_sync(files, &mark) == 0);
                known = &mark;
                break;
            case 3:
                minimum += (uint32_t)random_below((next - minimum) / 2 + 1);
                CHECK(wr_index_files_remove(files, listed[minimum].position, &removed) == 0);
                break;
            default:
                for (uint64_t k = random_below(3 * entries); k-- > 0; next++) CHECK(put(files, next) == 0);
            }
            minimum = minimum < next ? minimum : next;
            expect(reader, minimum, next);
            for (int i = 0; i < 10; i++) expect_range(reader, minimum, next);
        }
        wr_index_files_free(files);
        wr_index_reader_free(reader);
        scratch_empty();
    }
}

/* ---- names and costs ---- */

static void names_rise_also_when_the_clock_does_not(void) {
    bool lost;
    uint64_t from;
    wr_index_mark mark;
    wr_index_files *files = begin(3, 3, NULL, false, &lost, &from);
    const int64_t times[] = {1700000000123ll, 1700000000123ll, 1600000000000ll, 951782399999ll, -5, 1800000000000ll, 0};
    for (uint32_t i = 0; i < 14; i++) CHECK(wr_index_files_put(files, i, 100 * i, times[i / 2]) == 0);
    wr_folder_list list;
    CHECK(wr_folder_read(scratch_fd, FOLDER, WR_INDEX_NAME_DIGITS, &list) == 0 && list.n == 7);
    CHECK(!strcmp(list.names[0], "20231114221320123") && !strcmp(list.names[1], "20231114221320124"));
    CHECK(!strcmp(list.names[2], "20231114221320125") && !strcmp(list.names[4], "20231114221320127"));
    CHECK(!strcmp(list.names[5], "20270115080000000") && !strcmp(list.names[6], "20270115080000001"));
    wr_folder_list_free(&list);
    CHECK(wr_index_files_sync(files, &mark) == 0 && !strcmp(mark.name, "20270115080000001") && mark.count == 3);
    wr_index_files_free(files);
    scratch_empty();
    CHECK(mkdirat(scratch_fd, FOLDER, 0700) == 0); /* behind 59.999 of a day the next one begins; behind the last one nothing does */
    int fd = openat(scratch_fd, FOLDER "/20240229235959999", O_CREAT | O_RDWR, 0600);
    CHECK(fd >= 0 && ftruncate(fd, (off_t)wr_key_index_bytes(3, 3)) == 0);
    uint8_t said[WR_KEY_INDEX_LINK_SIZE];
    wr_index_link_put(said, "20240229235959999", &(wr_index_link){0});
    CHECK(pwrite(fd, said, sizeof said, (off_t)wr_key_index_bytes(3, 0)) == sizeof said);
    close(fd);
    files = begin(3, 3, NULL, true, &lost, &from);
    for (uint32_t i = 0; i < 3; i++) CHECK(wr_index_files_put(files, i, 100 * i, 5) == 0);
    CHECK(wr_index_files_sync(files, &mark) == 0 && !strcmp(mark.name, "20240301000000000"));
    for (uint64_t at = 900; at < 903; at++) CHECK(wr_index_files_put(files, 0, at, INT64_MAX) == 0);
    CHECK(wr_index_files_put(files, 0, 903, INT64_MAX) == EOVERFLOW);
    wr_index_files_free(files);
    scratch_empty();
    CHECK(!wr_index_files_new(scratch_fd, FOLDER, 0, 3) && !wr_index_files_new(scratch_fd, FOLDER, 3, 1));
}

static void a_small_index_costs_little(void) {
    bool lost;
    uint64_t from;
    wr_index_mark mark;
    struct stat status;
    char name[60];
    unsigned before = descriptors();
    wr_index_files *files = begin(WR_INDEX_SLOTS, WR_INDEX_ENTRIES, NULL, false, &lost, &from);
    CHECK(fstatat(scratch_fd, FOLDER, &status, 0) != 0); /* nothing is made before it is used */
    for (uint32_t n = 0; n < 10; n++) CHECK(wr_index_files_put(files, (uint32_t)(random64() >> 33), 100 * n, BEGIN_MS) == 0);
    CHECK(wr_index_files_sync(files, &mark) == 0 && mark.count == 11);
    snprintf(name, sizeof name, FOLDER "/%.17s", mark.name);
    CHECK(fstatat(scratch_fd, name, &status, 0) == 0 && status.st_size == 420000040 && status.st_blocks * 512 <= 128 << 10);
    printf("  an index of ten keys: %lld bytes on the disk\n", (long long)status.st_blocks * 512);
    fflush(stdout);
    wr_index_files_free(files);
    files = begin(WR_INDEX_SLOTS, WR_INDEX_ENTRIES, &mark, true, &lost, &from);
    CHECK(!lost && from == 900);
    for (uint32_t n = 10; n < 2000; n++) CHECK(wr_index_files_put(files, (uint32_t)(random64() >> 33), 100 * n, BEGIN_MS) == 0);
    CHECK(descriptors() == before);
    wr_index_files_free(files);
    scratch_empty();
}

/* Also in the middle of one. */
static void a_look_up_leaves_few_files_open(void) {
    enum { SLOTS = 3, ENTRIES = 10, PUTS = 400, OPEN_MAX = 4 };
    bool lost;
    uint64_t from;
    wr_key_entry entry;
    wr_key_code code;
    make_list();
    wr_index_files *files = begin(SLOTS, ENTRIES, NULL, false, &lost, &from);
    for (uint32_t n = 0; n < PUTS; n++) CHECK(put(files, n) == 0);
    unsigned before = descriptors();
    wr_index_reader *reader = wr_index_reader_new(scratch_fd, FOLDER, SLOTS, ENTRIES, false);
    CHECK(reader);
    for (int round = 0; round < 3; round++) {
        CHECK(wr_index_reader_find(reader, listed[0].key_hash, INT64_MIN, INT64_MAX) == 0);
        do {
            CHECK(wr_index_reader_next(reader, &entry, &code) == 0);
            CHECK(descriptors() <= before + OPEN_MAX + 1);
        } while (code == WR_KEY_FOUND);
        CHECK(code == WR_KEY_END && descriptors() <= before + OPEN_MAX);
        expect(reader, 0, PUTS);
    }
    wr_index_reader_free(reader);
    CHECK(descriptors() == before);
    wr_index_files_free(files);
    scratch_empty();
}

/* ---- kills ---- */

typedef struct {
    _Atomic uint32_t done;
    _Atomic bool stop;
} shared;

static void write_on(shared *s, uint32_t slots, uint32_t entries, const wr_index_mark *mark) {
    bool lost;
    uint64_t from, removed;
    wr_index_mark unused;
    uint32_t next = atomic_load(&s->done);
    wr_index_files *files = begin(slots, entries, mark, true, &lost, &from);
    CHECK(!lost);
    CHECK(wr_index_files_cut(files, UINT64_MAX >> 1) == 0);
    for (uint32_t n = next - (uint32_t)random_below(next + 1); n < next; n++) CHECK(put(files, n) == 0); /* a replay */
    for (; next < PUTS_MAX; next++) {
        CHECK(put(files, next) == 0);
        atomic_store_explicit(&s->done, next + 1, memory_order_release);
        if (next % 256 == 0) CHECK(wr_index_files_sync(files, &unused) == 0);
        if (next % 1024 == 0) CHECK(wr_index_files_remove(files, 0, &removed) == 0 && removed == 0);
    }
    _exit(0);
}

static void read_on(shared *s, uint32_t slots, uint32_t entries) {
    wr_index_reader *reader = wr_index_reader_new(scratch_fd, FOLDER, slots, entries, true);
    while (!atomic_load(&s->stop)) {
        uint32_t n = atomic_load_explicit(&s->done, memory_order_acquire), key = (uint32_t)random_below(KEYS), looked = 0;
        wr_key_entry entry;
        wr_key_code code;
        CHECK(wr_index_reader_find(reader, key, INT64_MIN, INT64_MAX) == 0);
        uint64_t last = UINT64_MAX;
        for (uint32_t i = n; i-- > 0 && looked < 30;) { /* all that was there is found; newer ones may be, too */
            if (listed[i].key_hash != key) continue;
            do {
                CHECK(wr_index_reader_next(reader, &entry, &code) == 0 && code == WR_KEY_FOUND);
                CHECK(entry.physical_offset < last);
                last = entry.physical_offset;
            } while (entry.physical_offset > listed[i].position);
            CHECK(entry.physical_offset == listed[i].position);
            looked++;
        }
    }
    wr_index_reader_free(reader);
    _exit(0);
}

/* Up to where entries are there, of n that were put, when some words of the file's header are as a writer leaves them that is killed in between. */
static uint64_t after_words(uint32_t puts, const uint32_t *at, const uint64_t *words, uint32_t words_n) {
    bool lost;
    uint64_t from;
    wr_index_mark mark;
    uint8_t word[8];
    char path[60];
    wr_index_files *files = begin(3, 10, NULL, true, &lost, &from);
    for (uint32_t n = 0; n < puts; n++) CHECK(wr_index_files_put(files, n, 100 + n, BEGIN_MS) == 0);
    CHECK(wr_index_files_sync(files, &mark) == 0);
    wr_index_files_free(files);
    snprintf(path, sizeof path, FOLDER "/%.17s", mark.name);
    int fd = openat(scratch_fd, path, O_RDWR);
    CHECK(fd >= 0);
    for (uint32_t i = 0; i < words_n; i++) {
        wr_put64(word, words[i]);
        CHECK(pwrite(fd, word, sizeof word, at[i]) == sizeof word);
    }
    close(fd);
    files = begin(3, 10, NULL, true, &lost, &from);
    CHECK(!lost && wr_index_files_newest(files) == wr_index_name_number(mark.name));
    wr_index_files_free(files);
    scratch_empty();
    return from;
}

static void killed_between_two_words(void) {
    const uint32_t newest = WR_KEY_INDEX_HEADER_AT_END_PHYSICAL_OFFSET, counts = WR_KEY_INDEX_HEADER_AT_HASH_SLOT_COUNT;
    /* the first put of a file: not at its end, and not counted */
    CHECK(after_words(1, (const uint32_t[]){counts, newest}, (const uint64_t[]){0, 0}, 2) == 0);
    CHECK(after_words(1, (const uint32_t[]){counts}, (const uint64_t[]){0}, 1) == 0);
    /* another put: not counted */
    CHECK(after_words(3, (const uint32_t[]){newest}, (const uint64_t[]){103}, 1) == 102);
    /* a cut: no longer counted */
    CHECK(after_words(3, (const uint32_t[]){counts}, (const uint64_t[]){2ull << 32 | 3}, 1) == 101);
}

static void killed_at_any_instruction(void) {
    for (int round = 0; round < 3; round++) {
        uint32_t slots = 1 + (uint32_t)random_below(30), entries = 2 + (uint32_t)random_below(3000);
        shared *s = mmap(NULL, sizeof *s, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        CHECK(s != MAP_FAILED);
        make_list();
        pid_t readers[2], writer;
        for (int i = 0; i < 2; i++) {
            random64();
            readers[i] = fork_child();
            if (!readers[i]) read_on(s, slots, entries);
        }
        for (int kills = 0; kills < 40; kills++) {
            random64();
            writer = fork_child();
            if (!writer) write_on(s, slots, entries, NULL);
            const struct timespec some = {0, (long)random_below(6000000)};
            nanosleep(&some, NULL);
            kill(writer, SIGKILL);
            int status;
            CHECK(waitpid(writer, &status, 0) == writer && (WIFSIGNALED(status) ? WTERMSIG(status) == SIGKILL : WEXITSTATUS(status) == 0));
        }
        atomic_store(&s->stop, true);
        for (int i = 0; i < 2; i++) ended_well(readers[i]);
        bool lost;
        uint64_t from;
        wr_index_files *files = begin(slots, entries, NULL, true, &lost, &from);
        uint32_t done = atomic_load(&s->done), there = first_at(from);
        while (there < PUTS_MAX && listed[there].position == from) there++;
        for (uint32_t n = 0; n < done; n++) CHECK(put(files, n) == 0);
        CHECK(wr_index_files_cut(files, done < PUTS_MAX ? listed[done].position : UINT64_MAX >> 1) == 0); /* what was put and not told */
        for (uint32_t n = first_at(done < PUTS_MAX ? listed[done].position : UINT64_MAX); n < done; n++) CHECK(put(files, n) == 0);
        wr_index_reader *reader = wr_index_reader_new(scratch_fd, FOLDER, slots, entries, true);
        expect(reader, 0, done);
        wr_index_reader_free(reader);
        wr_index_files_free(files);
        munmap(s, sizeof *s);
        scratch_empty();
    }
}

/* ---- losses of power ---- */

enum { IMAGES_MAX = 512 };
typedef struct {
    char name[WR_INDEX_NAME_DIGITS + 1];
    uint8_t *bytes;
} image;

static uint32_t take_images(image *images, uint64_t bytes) {
    wr_folder_list list;
    CHECK(wr_folder_read(scratch_fd, FOLDER, WR_INDEX_NAME_DIGITS, &list) == 0 && list.n <= IMAGES_MAX);
    uint32_t n = list.n;
    for (uint32_t i = 0; i < n; i++) {
        char path[60];
        memcpy(images[i].name, list.names[i], sizeof images[i].name);
        snprintf(path, sizeof path, FOLDER "/%.17s", images[i].name);
        int fd = openat(scratch_fd, path, O_RDONLY);
        CHECK(fd >= 0 && (images[i].bytes = malloc(bytes)) && pread(fd, images[i].bytes, bytes, 0) == (ssize_t)bytes);
        close(fd);
    }
    wr_folder_list_free(&list);
    return n;
}

static void free_images(image *images, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) free(images[i].bytes);
}

/* Of what was written behind the sync any sectors are there, or bytes of one. Files that are new then: perhaps. */
static void fail_power(const image *synced, uint32_t synced_n, uint64_t bytes) {
    static image now[IMAGES_MAX];
    uint32_t n = take_images(now, bytes);
    uint64_t chance = random_below(5);
    for (uint32_t i = 0; i < n; i++) {
        char path[60];
        uint32_t k = 0;
        while (k < synced_n && strcmp(synced[k].name, now[i].name)) k++;
        snprintf(path, sizeof path, FOLDER "/%.17s", now[i].name);
        if (k == synced_n && random_below(3) == 0) CHECK(unlinkat(scratch_fd, path, 0) == 0);
        else {
            int fd = openat(scratch_fd, path, O_WRONLY);
            for (uint64_t at = 0; at < bytes; at += SECTOR) {
                uint64_t size = bytes - at < SECTOR ? bytes - at : SECTOR;
                if (random_below(4) < chance) size = random_below(size + 1); /* of the old sector; the rest is the new one */
                if (k < synced_n) memcpy(now[i].bytes + at, synced[k].bytes + at, size);
                else memset(now[i].bytes + at, 0, size);
            }
            CHECK(fd >= 0 && pwrite(fd, now[i].bytes, bytes, 0) == (ssize_t)bytes);
            close(fd);
        }
    }
    free_images(now, n);
}

static void power_fails(void) {
    static image synced[IMAGES_MAX];
    for (int round = 0; round < 60; round++) {
        uint32_t slots = 1 + (uint32_t)random_below(300), entries = 8 + (uint32_t)random_below(random_below(2) ? 20 : 600), next = 0;
        uint64_t bytes = wr_key_index_bytes(slots, entries), from;
        wr_index_mark mark, *known = NULL;
        bool lost;
        make_list();
        wr_index_files *files = begin(slots, entries, NULL, false, &lost, &from);
        wr_index_reader *reader = wr_index_reader_new(scratch_fd, FOLDER, slots, entries, true);
        for (int life = 0; life < 3; life++) {
            next += (uint32_t)random_below(600);
            for (uint32_t n = first_at(from); n < next; n++) CHECK(put(files, n) == 0);
            if (random_below(4)) {
                CHECK(wr_index_files_sync(files, &mark) == 0);
                known = &mark;
            } else if (!known) {
                scratch_empty(); /* not even a name is there */
                wr_index_files_free(files);
                files = begin(slots, entries, NULL, false, &lost, &from);
                continue;
            } else {
                for (uint32_t n = next; n < next + 1; n++) CHECK(put(files, n) == 0);
                CHECK(wr_index_files_sync(files, &mark) == 0);
                next++;
            }
            uint32_t durable = next, synced_n = take_images(synced, bytes);
            for (uint64_t k = random_below(500); k-- > 0; next++) CHECK(put(files, next) == 0);
            wr_index_files_free(files);
            fail_power(synced, synced_n, bytes);
            free_images(synced, synced_n);
            files = begin(slots, entries, known, false, &lost, &from);
            CHECK(!lost && from == (durable ? listed[durable - 1].position : 0));
            expect(reader, 0, durable);
            for (uint32_t n = durable - (uint32_t)random_below(durable + 1); n < next; n++) CHECK(put(files, n) == 0);
            expect(reader, 0, next);
            from = listed[next].position;
        }
        wr_index_files_free(files);
        wr_index_reader_free(reader);
        scratch_empty();
    }
}

/* ---- damage ---- */

static void damage_is_made_again_from_the_log(void) {
    int told = 0;
    for (int round = 0; round < 60; round++) {
        uint32_t slots = 1 + (uint32_t)random_below(20), entries = 2 + (uint32_t)random_below(100), next = 1 + (uint32_t)random_below(500);
        wr_index_mark mark;
        uint64_t from;
        bool lost;
        char path[60];
        make_list();
        wr_index_files *files = begin(slots, entries, NULL, false, &lost, &from);
        for (uint32_t n = 0; n < next; n++) CHECK(put(files, n) == 0);
        CHECK(wr_index_files_sync(files, &mark) == 0);
        wr_index_files_free(files);
        snprintf(path, sizeof path, FOLDER "/%.17s", mark.name);
        int fd = openat(scratch_fd, path, O_WRONLY), kind = (int)random_below(4);
        uint64_t bytes = wr_key_index_bytes(slots, entries), entry = bytes - (uint64_t)entries * 20 + 20 * (1 + random_below(mark.count - 1));
        if (kind == 0) CHECK(unlinkat(scratch_fd, path, 0) == 0);
        if (kind == 1) CHECK(ftruncate(fd, (off_t)random_below(bytes)) == 0);
        if (kind == 2) CHECK(pwrite(fd, "\xff\xff\xff\xff", 4, (off_t)entry + 16) == 4); /* an entry's `previous` */
        if (kind == 3) CHECK(pwrite(fd, "\xff", 1, (off_t)entry) == 1);                  /* its hash */
        close(fd);
        wr_index_reader *reader = wr_index_reader_new(scratch_fd, FOLDER, slots, entries, true);
        for (uint32_t key = 0; key < KEYS; key++) { /* a reader says so, or sees less, and ends */
            wr_key_entry found;
            wr_key_code code;
            CHECK(wr_index_reader_find(reader, key, INT64_MIN, INT64_MAX) == 0);
            do CHECK(wr_index_reader_next(reader, &found, &code) == 0);
            while (code == WR_KEY_FOUND || (code != WR_KEY_END && ++told && !strcmp(wr_index_reader_file(reader), mark.name)));
            CHECK(code == WR_KEY_END);
        }
        files = begin(slots, entries, &mark, false, &lost, &from);
        CHECK(lost && from <= listed[next - 1].position);
        for (uint32_t n = first_at(from); n < next; n++) CHECK(put(files, n) == 0);
        expect(reader, 0, next);
        CHECK(wr_index_files_discard(files, &from) == 0); /* and at any time */
        for (uint32_t n = first_at(from); n < next; n++) CHECK(put(files, n) == 0);
        expect(reader, 0, next);
        wr_index_files_free(files);
        wr_index_reader_free(reader);
        scratch_empty();
    }
    CHECK(told);
}

/* What each look-up says of files, other than keys: one word for all of them, of this file; or END. */
static wr_key_code told_of(wr_index_reader *reader, const char *name, uint64_t *end) {
    wr_key_code told = WR_KEY_END;
    for (uint32_t key = 0; key < KEYS; key++) {
        wr_key_entry entry;
        wr_key_code code, said = WR_KEY_END;
        CHECK(wr_index_reader_find(reader, key, INT64_MIN, INT64_MAX) == 0);
        for (;;) {
            CHECK(wr_index_reader_next(reader, &entry, &code) == 0);
            if (code == WR_KEY_FOUND) continue;
            if (code == WR_KEY_END) break;
            CHECK(said == WR_KEY_END && !strcmp(wr_index_reader_file(reader), name));
            said = code;
            *end = wr_index_reader_missing_end(reader);
        }
        CHECK(!key || said == told);
        told = said;
    }
    return told;
}

/* One that somebody removed, zeroed, or took for another: each look-up says so, and the keys of others are found. */
static void a_file_that_is_not_there_is_missed(void) {
    const uint32_t slots = 5, entries = 30, n = 29 * 6;
    wr_folder_list list;
    uint64_t from, end;
    bool lost;
    char path[60], other[60];
    make_list();
    wr_index_files *files = begin(slots, entries, NULL, false, &lost, &from);
    CHECK(wr_index_files_newest(files) == 0);
    for (uint32_t i = 0; i < n; i++) CHECK(put(files, i) == 0);
    CHECK(wr_folder_read(scratch_fd, FOLDER, WR_INDEX_NAME_DIGITS, &list) == 0 && list.n == 6);
    CHECK(wr_index_files_newest(files) == strtoull(list.names[5], NULL, 10));
    wr_index_reader *reader = wr_index_reader_new(scratch_fd, FOLDER, slots, entries, true);
    for (uint32_t file = 0; file < 6; file++) {
        wr_index_reader_expect(reader, file == 5 ? wr_index_files_newest(files) : 0);
        snprintf(path, sizeof path, FOLDER "/%s", list.names[file]);
        CHECK(renameat(scratch_fd, path, scratch_fd, "elsewhere") == 0);
        CHECK(told_of(reader, list.names[file], &end) == WR_KEY_MISSING);
        CHECK(end == (file == 5 ? UINT64_MAX : listed[29 * file + 28].position));
        CHECK(renameat(scratch_fd, "elsewhere", scratch_fd, path) == 0 && told_of(reader, "", &end) == WR_KEY_END);
    }
    const off_t link_at = (off_t)wr_key_index_bytes(slots, 0);
    for (uint32_t file = 0; file < 5; file++) {
        uint8_t good[260], zeros[260] = {0};
        snprintf(path, sizeof path, FOLDER "/%s", list.names[file]);
        int fd = openat(scratch_fd, path, O_RDWR);
        CHECK(fd >= 0 && pread(fd, good, sizeof good, 0) == sizeof good);
        CHECK(pwrite(fd, zeros, 20, link_at) == 20 && told_of(reader, list.names[file], &end) == WR_KEY_BAD_LINK);
        CHECK(pwrite(fd, good, sizeof good, 0) == sizeof good && told_of(reader, "", &end) == WR_KEY_END);
        CHECK(pwrite(fd, zeros, 40, 0) == 40 && told_of(reader, list.names[file], &end) == WR_KEY_BAD_HEADER);
        CHECK(pwrite(fd, good, sizeof good, 0) == sizeof good && told_of(reader, "", &end) == WR_KEY_END);
        close(fd);
    }
    snprintf(path, sizeof path, FOLDER "/%s", list.names[2]);
    snprintf(other, sizeof other, FOLDER "/%s", list.names[1]);
    CHECK(renameat2(scratch_fd, path, scratch_fd, other, RENAME_EXCHANGE) == 0);
    uint32_t bad = 0;
    wr_key_entry entry;
    wr_key_code code;
    wr_index_reader *fresh = wr_index_reader_new(scratch_fd, FOLDER, slots, entries, true); /* the other has them open */
    CHECK(wr_index_reader_find(fresh, 1, INT64_MIN, INT64_MAX) == 0);
    do {
        CHECK(wr_index_reader_next(fresh, &entry, &code) == 0);
        bad += code == WR_KEY_BAD_LINK;
    } while (code != WR_KEY_END);
    CHECK(bad == 2);
    wr_folder_list_free(&list);
    wr_index_reader_free(reader);
    wr_index_reader_free(fresh);
    wr_index_files_free(files);
    scratch_empty();
}

/* ---- disks and memory that run out ---- */

static void on_a_small_disk(void) {
    int root = open(scratch, O_RDONLY | O_DIRECTORY), error = 0;
    wr_index_mark mark;
    uint64_t from, removed;
    bool lost;
    const uint32_t slots = 500, entries = 4000;
    wr_index_files *files = wr_index_files_new(root, FOLDER, slots, entries);
    wr_index_reader *reader = wr_index_reader_new(root, FOLDER, slots, entries, true);
    make_list();
    CHECK(wr_index_files_recover(files, NULL, false, &lost, &from) == 0);
    uint32_t n = 0;
    while (n < PUTS_MAX && !(error = put(files, n))) n++;
    CHECK(error == ENOSPC && n > entries && put(files, n) == ENOSPC);
    expect(reader, 0, n);
    wr_index_reader_free(reader); /* who has a removed file mapped keeps its place */
    CHECK((reader = wr_index_reader_new(root, FOLDER, slots, entries, true)));
    CHECK(wr_index_files_sync(files, &mark) == 0);
    CHECK(wr_index_files_remove(files, listed[n - 1].position, &removed) == 0 && removed);
    uint32_t had = n;
    while (n < had + 2000 && !(error = WITH_ROOM(put(files, n)))) n++;
    if (n != had + 2000) fprintf(stderr, "%u keys, then %u more: %s\n", had, n - had, strerror(error));
    CHECK(n == had + 2000);
    expect(reader, had, n);
    wr_index_files_free(files);
    wr_index_reader_free(reader);
}

static void a_full_disk_is_an_error_that_passes(void) {
    pid_t child = fork_child();
    if (!child) {
        if (small_mount(scratch, 512 << 10)) on_a_small_disk();
        else printf("  no right to mount: not tried on a full disk\n");
        fflush(stdout);
        _exit(0);
    }
    ended_well(child);
}

/* ---- syncs that fail ---- */

static uint32_t syncs_left = UINT32_MAX; /* before one fails */
static int sync_error;

/* The core's, too: the program's own functions come before the library's. */
int msync(void *at, size_t bytes, int flags) {
    if (!syncs_left) {
        errno = sync_error;
        return -1;
    }
    syncs_left--;
    return (int)syscall(SYS_msync, at, bytes, flags);
}

/* The system forgets what it could not write: a sync that failed once is never followed by one that did not, whatever the error was. The next
 * writer puts again what the last mark does not have. */
static void a_sync_that_failed_stays(void) {
    static const int errors[] = {EIO, ENOSPC, EDQUOT, ENOMEM};
    for (uint32_t i = 0; i < sizeof errors / sizeof *errors; i++)
        for (uint32_t before = 0; before < 3; before++) { /* a file that is full, or the newest one */
            const uint32_t slots = 3, entries = 10;
            wr_index_mark mark, now;
            uint64_t from;
            bool lost;
            make_list();
            wr_index_files *files = begin(slots, entries, NULL, false, &lost, &from);
            for (uint32_t n = 0; n < 5; n++) CHECK(put(files, n) == 0);
            CHECK(wr_index_files_sync(files, &mark) == 0);
            for (uint32_t n = 5; n < 25; n++) CHECK(put(files, n) == 0);
            sync_error = errors[i];
            syncs_left = before;
            CHECK(wr_index_files_sync(files, &now) == EIO);
            syncs_left = UINT32_MAX;
            CHECK(wr_index_files_sync(files, &now) == EIO);
            wr_index_files_free(files);
            files = begin(slots, entries, &mark, false, &lost, &from);
            for (uint32_t n = first_at(from); n < 25; n++) CHECK(put(files, n) == 0);
            CHECK(wr_index_files_sync(files, &mark) == 0);
            wr_index_reader *reader = wr_index_reader_new(scratch_fd, FOLDER, slots, entries, true);
            CHECK(reader);
            expect(reader, 0, 25);
            wr_index_reader_free(reader);
            wr_index_files_free(files);
            scratch_empty();
        }
}

static void without_memory(void) {
    make_list();
    for (uint64_t fail = 0;; fail++) {
        bool lost;
        uint64_t from, removed;
        wr_index_files *files = begin(3, 10, NULL, false, &lost, &from);
        wr_index_reader *reader = wr_index_reader_new(scratch_fd, FOLDER, 3, 10, true);
        scarce_begin(fail);
        for (uint32_t n = 0; n < 60; n++) CHECK(SCARCE_AGAIN(put(files, n)) == 0);
        CHECK(SCARCE_AGAIN(wr_index_files_remove(files, 0, &removed)) == 0);
        CHECK(SCARCE_AGAIN(wr_index_reader_find(reader, 1, 0, 1)) == 0);
        bool failed = scarce_end();
        expect(reader, 0, 60);
        wr_index_files_free(files);
        wr_index_reader_free(reader);
        scratch_empty();
        if (!failed) break;
        CHECK(fail < 1000);
    }
    for (uint64_t fail = 0; fail < 3; fail++) {
        scarce_begin(fail);
        CHECK(!wr_index_files_new(scratch_fd, FOLDER, 3, 10) && scarce_end());
    }
}

int main(int argc, char **argv) {
    scratch_begin("index_files_test", argc, argv);
    against_a_model();
    names_rise_also_when_the_clock_does_not();
    a_small_index_costs_little();
    a_look_up_leaves_few_files_open();
    killed_between_two_words();
    killed_at_any_instruction();
    power_fails();
    damage_is_made_again_from_the_log();
    a_file_that_is_not_there_is_missed();
    a_full_disk_is_an_error_that_passes();
    a_sync_that_failed_stays();
    without_memory();
    scratch_end();
    return 0;
}
