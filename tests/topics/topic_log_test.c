/* Goal: what the commit log confirms is in its files and stays there, whatever a loss of power leaves of the rest; readers of the ring never
 * see foreign bytes; a commit is there as a whole or not at all; a torn tail is told from damage, and nothing of it comes again.
 * Method: the main thread as loop, one committer, one reader, a small ring and small files, so that both are gone round all the time.
 * All writes and syncs are recorded; at a random one power fails: of each file, what was not synced is there or not, sector by
 * sector, or half of one. What is left is scanned, cut, gone on with, and power fails again. Runs under AddressSanitizer and
 * ThreadSanitizer. Prints its seed. */
#define _GNU_SOURCE
#include "kernel/bytes.h"
#include "kernel/racy.h"
#include "support/check.h"
#include "support/random.h"
#include "topics/log.h"
#include "topics/record.h"
#include "topics/walk.h"
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>

#define RING_BYTES (32 * 4096u)
#define FILE_BYTES (64 * 4096u)
#define FILES_MAX 64
#define SECTOR 512u
#define EVENTS_MAX 20000
#define COMMITS_MAX 20000
#define SECOND 1000000000ull
#define LINKS 3

static char folder[200];
static const uint8_t node[16] = "a node of tests";
static const char topic[] = "t";

static const char *path_of(uint64_t base) {
    static char path[300];
    snprintf(path, sizeof path, "%s/%020llu", folder, (unsigned long long)base);
    return path;
}

/* ---- what was written, and what was confirmed ---- */

typedef struct {
    int fd;          /* as it was then: `base` says of which file */
    uint64_t base, at, bytes;
    uint8_t *copy;   /* NULL: a sync */
} event;

typedef struct {
    uint64_t from, to, number, marks[LINKS];
    bool records; /* it holds some */
    uint64_t synced_at; /* number of events when it was confirmed as synced, 0: it was not */
} expected;

typedef struct {
    pthread_mutex_t mutex;
    event events[EVENTS_MAX];
    uint64_t events_n;
    expected commits[COMMITS_MAX];
    uint64_t commits_n, done_n;
    uint64_t bases[4096]; /* of descriptors */
} history;

static history *past;

static ssize_t recorded_pwrite(void *context, int fd, const void *from, size_t n, off_t at) {
    (void)context;
    static uint64_t calls;
    if (n > 4096 && ++calls % 8 == 0) n = 4096 * (1 + calls % (n / 4096)); /* a short write */
    ssize_t written = pwrite(fd, from, n, at);
    if (written <= 0) return written;
    pthread_mutex_lock(&past->mutex);
    CHECK(past->events_n < EVENTS_MAX);
    event *e = &past->events[past->events_n++];
    *e = (event){fd, past->bases[fd], (uint64_t)at, (uint64_t)written, malloc((size_t)written)};
    CHECK(e->copy);
    memcpy(e->copy, from, (size_t)written);
    pthread_mutex_unlock(&past->mutex);
    return written;
}

static _Atomic bool sync_fails;

static int recorded_sync(void *context, int fd) {
    (void)context;
    if (sync_fails) {
        errno = EIO;
        return -1;
    }
    pthread_mutex_lock(&past->mutex);
    CHECK(past->events_n < EVENTS_MAX);
    past->events[past->events_n++] = (event){fd, past->bases[fd], 0, 0, NULL};
    pthread_mutex_unlock(&past->mutex);
    return 0;
}

static const wr_commit_io recorded = {recorded_pwrite, recorded_sync};

static void committed(void *context, const wr_topic_commit *commit) {
    (void)context;
    CHECK(!commit->error || sync_fails);
    if (commit->error) return;
    pthread_mutex_lock(&past->mutex);
    for (; past->done_n < past->commits_n && past->commits[past->done_n].to <= commit->to; past->done_n++) {}
    if (commit->sync)
        for (uint64_t i = past->done_n; i-- > 0 && !past->commits[i].synced_at;) past->commits[i].synced_at = past->events_n;
    pthread_mutex_unlock(&past->mutex);
}

static void forget(void) {
    for (uint64_t i = 0; i < past->events_n; i++) free(past->events[i].copy);
    past->events_n = past->commits_n = past->done_n = 0;
}

/* ---- records ---- */

/* The body of the record at a position says which it is, so that every reader can tell. */
static uint32_t make_body(uint8_t *body, uint64_t offset) {
    uint64_t x = offset * 0x9e3779b97f4a7c15ull + 1;
    uint32_t length = 8 + (uint32_t)(x >> 40) % 700;
    wr_put64(body, offset);
    for (uint32_t i = 8; i < length; i++) body[i] = (uint8_t)(x >> (i % 57));
    return length;
}

static uint32_t size_of(uint64_t offset) {
    uint8_t body[1024];
    wr_record_reason reason;
    return wr_record_size(0, sizeof topic - 1, 0, make_body(body, offset), &reason);
}

static void make_record(uint8_t *to, uint64_t position, uint64_t offset) {
    uint8_t body[1024];
    uint32_t length = make_body(body, offset);
    const struct iovec part = {body, length};
    const wr_record_head head = {.queue_offset = offset, .physical_offset = position, .store_timestamp = 1 + offset};
    CHECK(wr_record_encode(to, size_of(offset), &head, topic, sizeof topic - 1, NULL, 0, &part, 1) == WR_RECORD_GOOD);
}

static void check_record(const uint8_t *bytes, uint64_t n, uint64_t position, uint64_t offset) {
    uint8_t body[1024];
    wr_record record;
    CHECK(wr_record_scan(bytes, n, position, WR_SCAN_ALL, &record) == WR_SCAN_RECORD);
    CHECK(record.queue_offset == offset && record.size == size_of(offset));
    CHECK(record.body_length == make_body(body, offset) && !memcmp(bytes + record.body_at, body, record.body_length));
}

/* ---- a log at work ---- */

typedef struct {
    uint64_t position, offset;
    uint32_t size;
} shown_record;

typedef struct {
    uint8_t *region, *once; /* the ring mapped twice, and as readers have it */
    int fd;
    wr_topic_log *log;
    pthread_t committer, reader;
    _Atomic bool stop;
    uint64_t offset, epoch;
    uint64_t marks[LINKS];
    _Atomic uint64_t shown_n; /* records that the reader may look for */
    shown_record shown[1024];
    uint64_t good, gone;
} bench;

static void *commit_run(void *argument) {
    wr_topic_log_commit_run(((bench *)argument)->log, NULL);
    return NULL;
}

static void *read_run(void *argument) {
    bench *b = argument;
    uint64_t x = 88172645463325252ull;
    static uint8_t bytes[4096];
    while (!atomic_load(&b->stop)) {
        uint64_t n = atomic_load_explicit(&b->shown_n, memory_order_acquire);
        if (!n) continue;
        x ^= x << 13, x ^= x >> 7, x ^= x << 17;
        uint64_t back = x % 900 < n ? x % 900 : n - 1, i = (n - 1 - back) % 1024;
        shown_record row;
        wr_copy_racy(&row, &b->shown[i], sizeof row);
        atomic_thread_fence(memory_order_acquire);
        if (atomic_load_explicit(&b->shown_n, memory_order_relaxed) > n - 1 - back + 1024 - 64) continue; /* the row is used again */
        if (wr_topic_ring_read(b->once, RING_BYTES, row.position, bytes, row.size)) {
            check_record(bytes, row.size, row.position, row.offset);
            b->good++;
        } else {
            b->gone++;
        }
    }
    return NULL;
}

static int open_file(uint64_t base) {
    int fd = open(path_of(base), O_RDWR | O_CREAT, 0600);
    CHECK(fd >= 0 && fd < 4096 && ftruncate(fd, FILE_BYTES) == 0);
    pthread_mutex_lock(&past->mutex);
    past->bases[fd] = base;
    pthread_mutex_unlock(&past->mutex);
    return fd;
}

static void begin(bench *b, uint64_t position, uint64_t number, uint64_t offset, uint64_t epoch) {
    memset((void *)b, 0, sizeof *b);
    b->fd = memfd_create("ring", 0);
    CHECK(b->fd >= 0 && ftruncate(b->fd, WR_PAGE_BYTES + RING_BYTES) == 0);
    b->region = wr_topic_ring_map(b->fd, RING_BYTES);
    b->once = mmap(NULL, WR_PAGE_BYTES + RING_BYTES, PROT_READ, MAP_SHARED, b->fd, 0);
    CHECK(b->region && b->once != MAP_FAILED);
    wr_commit_origin origin = {.epoch = epoch};
    memcpy(origin.node, node, sizeof node);
    b->log = wr_topic_log_new(b->region, RING_BYTES, FILE_BYTES, &origin, NULL, committed, NULL);
    CHECK(b->log);
    wr_topic_log_set_io(b->log, &recorded, NULL);
    b->offset = offset;
    b->epoch = epoch;
    wr_topic_log_begin(b->log, position, number, offset);
    CHECK(pthread_create(&b->committer, NULL, commit_run, b) == 0);
    CHECK(pthread_create(&b->reader, NULL, read_run, b) == 0);
}

/* What is sealed is in the files, and nothing behind it. */
static void end(bench *b) {
    static uint8_t bytes[FILE_BYTES];
    CHECK(wr_topic_log_quiesce(b->log, 60 * SECOND) == 0);
    const wr_topic_log_state *s = wr_topic_log_look(b->log);
    int fd = open(path_of(s->base), O_RDONLY);
    CHECK(fd < 0 || pread(fd, bytes, FILE_BYTES, 0) == FILE_BYTES);
    for (uint64_t at = s->sealed - s->base; fd >= 0 && at < FILE_BYTES; at++) CHECK(!bytes[at]);
    close(fd);
    atomic_store(&b->stop, true);
    CHECK(pthread_join(b->reader, NULL) == 0);
    wr_topic_log_stop(b->log);
    CHECK(pthread_join(b->committer, NULL) == 0);
    CHECK(!wr_topic_log_look(b->log)->busy);
    wr_topic_log_free(b->log);
    munmap(b->once, WR_PAGE_BYTES + RING_BYTES);
    wr_topic_ring_unmap(b->region, RING_BYTES);
    close(b->fd);
}

static void give_files(bench *b) {
    const wr_topic_log_state *s = wr_topic_log_look(b->log);
    if (s->has_next || !s->wants_next) return;
    uint64_t base = s->has_file ? s->base + FILE_BYTES : s->base;
    CHECK(wr_topic_log_offer(b->log, open_file(base), base) == 0);
}

static void seal(bench *b, bool sync) {
    wr_commit_mark marks[LINKS];
    const wr_topic_log_state *s = wr_topic_log_look(b->log);
    bool holds = s->append > s->sealed;
    if (s->full) return;
    pthread_mutex_lock(&past->mutex);
    CHECK(past->commits_n < COMMITS_MAX);
    expected *e = &past->commits[past->commits_n];
    *e = (expected){.from = s->sealed, .records = holds};
    for (int i = 0; i < LINKS; i++) {
        b->marks[i] += random64() % 5;
        marks[i] = (wr_commit_mark){.client_epoch = 7 + (uint64_t)i, .sequence = e->marks[i] = b->marks[i]};
    }
    e->to = holds ? s->append + wr_commit_record_bytes(LINKS) : s->append;
    past->commits_n += holds;
    pthread_mutex_unlock(&past->mutex);
    CHECK(wr_topic_log_seal(b->log, sync, false, marks, holds ? LINKS : 0) == 0);
    CHECK(wr_topic_log_look(b->log)->append == e->to);
}

static void append_group(bench *b) {
    uint64_t bytes = 0, position, n = 1 + random64() % (random64() % 8 ? 6 : 60);
    for (uint64_t i = 0; i < n; i++) bytes += size_of(b->offset + i);
    uint8_t *to;
    for (uint64_t tries = 0; !(to = wr_topic_log_reserve(b->log, bytes, &position)); tries++) {
        CHECK(errno == EAGAIN && tries < 1u << 30);
        give_files(b);
        if (wr_topic_log_look(b->log)->wants_seal) seal(b, random64() % 2);
        else CHECK(wr_topic_log_quiesce(b->log, 60 * SECOND) == 0);
    }
    for (uint64_t at = 0, i = 0; i < n; i++) {
        make_record(to + at, position + at, b->offset + i);
        uint64_t row = atomic_load_explicit(&b->shown_n, memory_order_relaxed) + i;
        b->shown[row % 1024] = (shown_record){position + at, b->offset + i, size_of(b->offset + i)};
        at += size_of(b->offset + i);
    }
    wr_topic_log_append(b->log, bytes, 1 + b->offset + n - 1);
    b->offset += n;
    atomic_fetch_add_explicit(&b->shown_n, n, memory_order_release);
}

static void work(bench *b, int turns) {
    for (int i = 0; i < turns; i++) {
        give_files(b);
        append_group(b);
        if (random64() % 3 == 0) seal(b, random64() % 2);
        if (random64() % 16 == 0) CHECK(wr_topic_log_quiesce(b->log, 60 * SECOND) == 0);
    }
}

/* ---- after a loss of power ---- */

typedef struct {
    uint8_t *bytes[FILES_MAX];
} disk;

static uint64_t number_of(uint64_t base) {
    CHECK(base / FILE_BYTES < FILES_MAX);
    return base / FILE_BYTES;
}

static uint8_t *file_of(disk *d, uint64_t base) {
    uint8_t **file = &d->bytes[number_of(base)];
    if (!*file) CHECK((*file = calloc(1, FILE_BYTES)));
    return *file;
}

static void drop(disk *d) {
    for (int i = 0; i < FILES_MAX; i++) free(d->bytes[i]);
    memset(d, 0, sizeof *d);
}

/* What is on the disk when power fails behind so many events: all that was synced, and of the rest any sectors, or parts of one.
 * chance: of 4, what gets there. */
static void fail_power(disk *d, uint64_t events_n, uint64_t chance) {
    uint64_t synced[FILES_MAX] = {0};
    for (uint64_t i = 0; i < events_n; i++)
        if (!past->events[i].copy) synced[number_of(past->events[i].base)] = i + 1;
    for (uint64_t i = 0; i < events_n; i++) {
        const event *e = &past->events[i];
        if (!e->copy) continue;
        uint8_t *file = file_of(d, e->base);
        if (i < synced[number_of(e->base)]) {
            memcpy(file + e->at, e->copy, e->bytes);
            continue;
        }
        for (uint64_t at = 0; at < e->bytes; at += SECTOR) {
            if (random64() % 4 >= chance) continue;
            uint64_t n = random64() % 8 ? SECTOR : random64() % SECTOR; /* or torn */
            memcpy(file + e->at + at, e->copy + at, n);
        }
    }
}

/* The commits of a disk behind the one before `first`. Compares each with what was sealed; *position: where they end. Returns their number. */
static uint64_t scan_all(disk *d, uint64_t first, const wr_commit_head *before, uint64_t *position, uint64_t *offset, wr_commit_kind *last) {
    wr_commit_head after = *before;
    uint64_t n = 0;
    *position = first;
    for (;;) {
        uint64_t base = *position / FILE_BYTES * FILE_BYTES, end;
        const uint8_t *file = file_of(d, base);
        wr_commit_head head;
        const uint8_t *marks;
        *last = wr_commit_scan(file + (*position - base), FILE_BYTES - (*position - base), *position, base + FILE_BYTES, &after, &head,
                               &marks, &end);
        CHECK(*last != WR_COMMIT_MORE);
        if (*last == WR_COMMIT_BLANK) {
            *position = end;
            continue;
        }
        if (*last != WR_COMMIT_SOUND) return n;
        CHECK(n < past->commits_n);
        const expected *e = &past->commits[n];
        CHECK(e->from == head.from && e->from == *position && e->to == end && head.marks_n == LINKS);
        for (uint32_t i = 0; i < LINKS; i++) {
            wr_commit_mark mark = wr_commit_mark_read(marks, i);
            CHECK(mark.client_epoch == 7 + i && mark.sequence == e->marks[i]);
        }
        for (uint64_t at = *position - base; base + at < end;) {
            wr_record record;
            CHECK(wr_record_scan(file + at, FILE_BYTES - at, base + at, WR_SCAN_ALL, &record) == WR_SCAN_RECORD);
            if (record.topic_length == sizeof topic - 1) check_record(file + at, FILE_BYTES - at, base + at, (*offset)++);
            at += record.size;
        }
        *position = end;
        after = head;
        n++;
    }
}

/* Put what is left into the files. */
static void put_back(disk *d) {
    for (uint64_t i = 0; i < FILES_MAX; i++) {
        if (!d->bytes[i]) {
            unlink(path_of(i * FILE_BYTES));
            continue;
        }
        int fd = open(path_of(i * FILE_BYTES), O_RDWR | O_CREAT, 0600);
        CHECK(fd >= 0 && pwrite(fd, d->bytes[i], FILE_BYTES, 0) == FILE_BYTES);
        close(fd);
    }
}

static int settle_open(void *context, uint64_t base) {
    (void)context;
    int fd = open(path_of(base), O_RDWR);
    if (fd < 0) return -errno;
    CHECK(fd < 4096);
    past->bases[fd] = base;
    return fd;
}

/* Cut all behind the end off, as a start does, in the files and here. */
static void cut(disk *d, const wr_log_end *end) {
    CHECK(wr_log_settle(settle_open, NULL, NULL, NULL, FILE_BYTES, end) == 0);
    for (uint64_t i = end->position / FILE_BYTES; i < FILES_MAX; i++) {
        uint64_t base = i * FILE_BYTES;
        if (!d->bytes[i]) continue;
        uint8_t *bytes = d->bytes[i];
        int fd = open(path_of(base), O_RDONLY);
        CHECK(fd >= 0 && pread(fd, bytes, FILE_BYTES, 0) == FILE_BYTES);
        close(fd);
        for (uint64_t at = base > end->position ? 0 : end->position - base; at < FILE_BYTES; at++) CHECK(!bytes[at]);
        if (base <= end->position) continue;
        CHECK(unlink(path_of(base)) == 0);
        free(bytes);
        d->bytes[i] = NULL;
    }
}

/* A start that cut what is behind a position, until power failed again: some sectors are zeroed. */
static void cut_in_part(disk *d, uint64_t position) {
    for (uint64_t i = position / FILE_BYTES; i < FILES_MAX; i++) {
        if (!d->bytes[i]) continue;
        uint64_t base = i * FILE_BYTES, at = position > base ? position - base : 0;
        for (uint64_t next; at < FILE_BYTES; at = next) {
            next = (at / SECTOR + 1) * SECTOR;
            if (random64() % 2) memset(d->bytes[i] + at, 0, next - at);
        }
    }
}

static int walk_open(void *context, uint64_t base) {
    (void)context;
    int fd = open(path_of(base), O_RDONLY);
    return fd < 0 ? -errno : fd;
}

static int walk_commit(void *context, const uint8_t *bytes, uint64_t n, const wr_commit_head *head, const uint8_t *marks) {
    uint64_t *at = context;
    CHECK(head->from >= *at && n > wr_commit_record_bytes(0) && wr_commit_mark_read(marks, 0).client_epoch == 7);
    wr_record record;
    CHECK(wr_record_scan(bytes, n, head->from, WR_SCAN_ALL, &record) == WR_SCAN_RECORD);
    *at = head->from + n;
    return 0;
}

/* All of the log, from its files: it must end at a position, and be damaged or not. */
static wr_log_end walk_all(uint64_t position, bool damaged) {
    static const wr_log_visitor visitor = {walk_open, walk_commit};
    wr_commit_head none = {.origin.epoch = 1};
    memcpy(none.origin.node, node, sizeof node);
    wr_log_end end;
    uint64_t at = 0;
    CHECK(wr_log_walk(&visitor, &at, FILE_BYTES, 0, &none, &end) == 0);
    CHECK(end.position == position && end.damaged == damaged && end.synced <= position);
    return end;
}

static bool vouched(disk *d, uint64_t position) {
    for (uint64_t i = position / FILE_BYTES; i < FILES_MAX; i++) {
        if (!d->bytes[i]) continue;
        uint64_t base = i * FILE_BYTES, from = position > base ? position - base : 0;
        if (wr_commit_vouched(d->bytes[i] + from, FILE_BYTES - from, base + from, node, position)) return true;
    }
    return false;
}

/* Lives of one log; each ends by a loss of power at any write, what is left is checked, and the next one goes on there. */
static void lives(int lives_n) {
    static bench b;
    static disk d, kept;
    uint64_t position = 0, offset = 0, commits_n = 0, good = 0, gone = 0;
    wr_commit_head before = {.origin.epoch = 1};
    memcpy(before.origin.node, node, sizeof node);
    bool damaged_once = false;
    for (int life = 0; life < lives_n && position < (FILES_MAX - 40) * FILE_BYTES; life++) {
        before.origin.epoch = 1 + (uint64_t)life;
        begin(&b, position, before.number, offset, before.origin.epoch);
        work(&b, 20 + (int)(random64() % 400));
        end(&b);
        good += b.good, gone += b.gone;
        uint64_t at = random64() % (past->events_n + 1);
        memset(&d, 0, sizeof d);
        for (int i = 0; i < FILES_MAX; i++)
            if (kept.bytes[i]) memcpy(file_of(&d, (uint64_t)i * FILE_BYTES), kept.bytes[i], FILE_BYTES);
        fail_power(&d, at, random64() % 5);
        for (uint64_t i = 0; i < FILES_MAX && i * FILE_BYTES < position; i++) { /* what was there before is untouched */
            uint64_t most = position - i * FILE_BYTES;
            CHECK(!memcmp(file_of(&d, i * FILE_BYTES), file_of(&kept, i * FILE_BYTES), most < FILE_BYTES ? most : FILE_BYTES));
        }
        wr_commit_kind last;
        uint64_t from = position, end_at = 0, had = offset;
        uint64_t n = scan_all(&d, from, &before, &end_at, &offset, &last);
        for (uint64_t i = 0; i < past->commits_n; i++)
            CHECK(i < n || !past->commits[i].synced_at || past->commits[i].synced_at > at); /* nothing confirmed is missing */
        CHECK(last == WR_COMMIT_END || last == WR_COMMIT_TORN);
        CHECK(!vouched(&d, end_at)); /* what is missing is a torn tail, and no damage */
        put_back(&d);
        CHECK(walk_all(end_at, false).torn == (last == WR_COMMIT_TORN));
        /* A byte of something confirmed changes: that is damage, and is told so as long as a later commit vouches for it. */
        if (n > 3 && past->commits[n - 1].synced_at && past->commits[n - 1].synced_at <= at) {
            uint64_t victim = random64() % n, place = past->commits[victim].from + random64() % (past->commits[victim].to - past->commits[victim].from);
            uint64_t base = place / FILE_BYTES * FILE_BYTES, found, ignored = had;
            uint8_t *byte = file_of(&d, base) + (place - base), old = *byte;
            *byte ^= (uint8_t)(1 + random64() % 255);
            uint64_t sound = scan_all(&d, from, &before, &found, &ignored, &last);
            CHECK(sound == victim && found == past->commits[victim].from);
            bool vouches = false;
            for (uint64_t i = victim + 1; i < n; i++) vouches |= past->commits[i].from > found && vouched(&d, found);
            damaged_once |= vouches;
            put_back(&d);
            CHECK(walk_all(found, vouched(&d, found)).torn == (last == WR_COMMIT_TORN));
            *byte = old;
            put_back(&d);
        }
        if (random64() % 2) {
            cut_in_part(&d, end_at);
            put_back(&d);
        }
        wr_log_end found = walk_all(end_at, false);
        cut(&d, &found);
        drop(&kept);
        kept = d;
        position = end_at;
        before.number += n;
        commits_n += n;
        forget();
    }
    drop(&kept);
    for (uint64_t i = 0; i < FILES_MAX; i++) unlink(path_of(i * FILE_BYTES));
    CHECK(damaged_once || lives_n < 10);
    printf("  %llu commits, %llu records, %llu bytes, reader: %llu good, %llu gone\n", (unsigned long long)commits_n,
           (unsigned long long)offset, (unsigned long long)position, (unsigned long long)good, (unsigned long long)gone);
}

/* ---- the bytes of a commit record ---- */

/* Made with the tables of tests/support/topic_tables.py and the fields' order alone. */
static const char golden[] =
    "000000c0daa320a71c87b2f8000000000000000000000000000000060000000000001092000000000000018bcfe56800"
    "00000000000000000000018bcfe568000000000000000000000000000000000000000000000000540000000100000001"
    "61206e6f6465206f66207465737473000000000000000005000000000000000600000000000010000000000000000fa0"
    "0000018bcfe56800deadbeef000000000000000700000000000000081157415252454e5f5359535f434f4d4d49540000";

static void keeps_its_bytes(void) {
    wr_commit_head head = {.origin.epoch = 5, .number = 6, .from = 4096, .synced = 4000, .store_ms = 1700000000000, .crc = 0xdeadbeef, .marks_n = 1}, found;
    memcpy(head.origin.node, node, sizeof node);
    const wr_commit_mark mark = {.client_epoch = 7, .sequence = 8};
    uint8_t bytes[512], wanted[512];
    uint64_t n = wr_commit_record_bytes(1);
    CHECK(n == strlen(golden) / 2);
    for (uint64_t i = 0; i < n; i++) {
        unsigned byte;
        CHECK(sscanf(golden + 2 * i, "%2x", &byte) == 1);
        wanted[i] = (uint8_t)byte;
    }
    wr_commit_record_write(bytes, 4242, &head, &mark);
    CHECK(!memcmp(bytes, wanted, n));
    const uint8_t *marks;
    CHECK(wr_commit_record_read(bytes, n, 4242, &found, &marks) && found.number == 6 && found.from == 4096 && found.synced == 4000 &&
          found.origin.epoch == 5 && found.crc == 0xdeadbeef && found.store_ms == 1700000000000 && found.marks_n == 1);
    CHECK(wr_commit_mark_read(marks, 0).client_epoch == 7 && wr_commit_mark_read(marks, 0).sequence == 8);
    for (uint64_t i = 0; i < n; i++) { /* any other byte makes it another record, or none */
        bytes[i] ^= 1;
        CHECK(!wr_commit_record_read(bytes, n, 4242, &found, &marks));
        bytes[i] ^= 1;
        CHECK(!wr_commit_record_read(bytes, i, 4242, &found, &marks));
    }
    CHECK(!wr_commit_record_read(bytes, n, 4243, &found, &marks));
}

/* ---- what was cut off ---- */

/* A commit of one record. */
static void one_commit(bench *b) {
    uint64_t position, bytes = size_of(b->offset);
    uint8_t *to = wr_topic_log_reserve(b->log, bytes, &position);
    if (!to) {
        give_files(b);
        CHECK((to = wr_topic_log_reserve(b->log, bytes, &position)));
    }
    make_record(to, position, b->offset++);
    wr_topic_log_append(b->log, bytes, b->offset);
    wr_commit_mark mark = {.client_epoch = 7, .sequence = b->offset};
    CHECK(wr_topic_log_seal(b->log, false, false, &mark, 1) == 0);
    CHECK(wr_topic_log_quiesce(b->log, 60 * SECOND) == 0);
}

/* Of three commits the second is torn. The next server writes the same once more, and power fails before the cut was on the disk:
 * then the third one follows the new second one in place and number, and is of the earlier epoch all the same. */
static void nothing_comes_again(void) {
    static bench b;
    wr_commit_head after = {.origin.epoch = 1}, head;
    memcpy(after.origin.node, node, sizeof node);
    uint64_t ends[3], end_at, position = 0;
    const uint8_t *marks;
    static uint8_t bytes[FILE_BYTES];
    begin(&b, 0, 0, 0, 1);
    for (int i = 0; i < 3; i++) {
        one_commit(&b);
        ends[i] = wr_topic_log_look(b.log)->sealed;
    }
    end(&b);
    begin(&b, ends[0], 1, 1, 2);
    one_commit(&b);
    CHECK(wr_topic_log_look(b.log)->sealed == ends[1]);
    int fd = open(path_of(0), O_RDWR);
    CHECK(fd >= 0 && pread(fd, bytes, FILE_BYTES, 0) == FILE_BYTES);
    /* the page that the last commit wrote ends in zeros: put back what the first server had there */
    for (uint64_t i = 0; i < past->events_n; i++) {
        const event *e = &past->events[i];
        if (e->copy && e->at <= ends[1] && e->at + e->bytes >= ends[2] && !memcmp(e->copy + (ends[2] - e->at), "\0\0\0\0", 4) &&
            memcmp(e->copy + (ends[1] - e->at), "\0\0\0\0", 4))
            memcpy(bytes + ends[1], e->copy + (ends[1] - e->at), ends[2] - ends[1]);
    }
    for (int i = 0; i < 2; i++) {
        CHECK(wr_commit_scan(bytes + position, FILE_BYTES - position, position, FILE_BYTES, &after, &head, &marks, &end_at) == WR_COMMIT_SOUND);
        CHECK(end_at == ends[i] && head.origin.epoch == (uint64_t)i + 1);
        position = end_at;
        after = head;
    }
    CHECK(wr_commit_scan(bytes + position, FILE_BYTES - position, position, FILE_BYTES, &after, &head, &marks, &end_at) == WR_COMMIT_TORN);
    after.origin.node[3] ^= 1; /* a sound commit of another node is no torn tail */
    CHECK(wr_commit_scan(bytes + position, FILE_BYTES - position, position, FILE_BYTES, &after, &head, &marks, &end_at) == WR_COMMIT_FOREIGN);
    CHECK(end_at == position && !memcmp(head.origin.node, node, sizeof node));
    bytes[position + 100] ^= 1; /* a damaged one is */
    CHECK(wr_commit_scan(bytes + position, FILE_BYTES - position, position, FILE_BYTES, &after, &head, &marks, &end_at) == WR_COMMIT_TORN);
    bytes[position + 100] ^= 1;
    after.origin.node[3] ^= 1;
    after.origin.epoch = 1; /* it is that alone */
    CHECK(wr_commit_scan(bytes + position, FILE_BYTES - position, position, FILE_BYTES, &after, &head, &marks, &end_at) == WR_COMMIT_SOUND);
    close(fd);
    end(&b);
    forget();
    unlink(path_of(0));
}

/* ---- what was not synced ---- */

/* What a start leaves on stable storage of an end at a position: exactly the log up to there, when power fails right behind it. */
static void settles(disk *d, uint64_t position) {
    wr_log_end end = walk_all(position, false);
    forget();
    CHECK(wr_log_settle(settle_open, NULL, &recorded, NULL, FILE_BYTES, &end) == 0);
    fail_power(d, past->events_n, 0);
    put_back(d);
    walk_all(position, false);
    forget();
    drop(d);
    put_back(d);
}

/* A sync has failed: the file reads as it was written, the disk has not got it, and the system takes it for clean. A commit in it that
 * a later start reads is on the disk before anything is confirmed for it. */
static void a_failed_sync_is_made_good(void) {
    static bench b;
    static disk d;
    begin(&b, 0, 0, 0, 1);
    one_commit(&b);
    CHECK(wr_topic_log_seal(b.log, true, false, NULL, 0) == 0 && wr_topic_log_quiesce(b.log, 60 * SECOND) == 0);
    CHECK(wr_topic_log_look(b.log)->syncs_n == 1);
    one_commit(&b);
    sync_fails = true;
    CHECK(wr_topic_log_seal(b.log, true, false, NULL, 0) == 0 && wr_topic_log_quiesce(b.log, 60 * SECOND) == 0);
    const wr_topic_log_state *s = wr_topic_log_look(b.log);
    uint64_t position = s->sealed;
    CHECK(s->failed == EIO && s->syncs_n == 1);
    end(&b);
    sync_fails = false;
    fail_power(&d, past->events_n, 0);
    settles(&d, position);
}

/* A server died between the blank record that ends a file and its sync: the log goes on in the next file, which there is not yet. */
static void a_file_that_ends_is_synced(void) {
    static bench b;
    static disk d;
    begin(&b, 0, 0, 0, 1);
    one_commit(&b);
    uint64_t position = wr_topic_log_look(b.log)->sealed;
    end(&b);
    uint8_t blank[WR_BLANK_SIZE];
    wr_record_blank(blank, (uint32_t)(FILE_BYTES - position));
    int fd = open(path_of(0), O_RDWR);
    CHECK(fd >= 0 && pwrite(fd, blank, sizeof blank, (off_t)position) == sizeof blank);
    close(fd);
    settles(&d, FILE_BYTES);
}

/* ---- what is refused ---- */

static void refusals(void) {
    static bench b;
    uint64_t position;
    begin(&b, 0, 0, 0, 1);
    CHECK(!wr_topic_log_reserve(b.log, 100, &position) && errno == EAGAIN);
    CHECK(wr_topic_log_look(b.log)->wants_next && !wr_topic_log_look(b.log)->wants_seal);
    CHECK(wr_topic_log_offer(b.log, -1, 0) == EBADF);
    int fd = open_file(0);
    CHECK(wr_topic_log_offer(b.log, fd, FILE_BYTES) == EINVAL);
    CHECK(wr_topic_log_offer(b.log, fd, 0) == 0);
    fd = open_file(FILE_BYTES);
    CHECK(wr_topic_log_offer(b.log, fd, FILE_BYTES) == 0);
    CHECK(wr_topic_log_offer(b.log, fd, FILE_BYTES) == EBUSY);
    CHECK(!wr_topic_log_reserve(b.log, wr_topic_log_most(b.log) + 1, &position) && errno == EMSGSIZE);
    CHECK(wr_topic_log_reserve(b.log, wr_topic_log_most(b.log), &position) && position == 0);
    CHECK(wr_topic_log_seal(b.log, true, false, NULL, 0) == 0 && wr_topic_log_look(b.log)->commits_n == 0);
    end(&b);
    unlink(path_of(0));
    unlink(path_of(FILE_BYTES));
    uint8_t region[1];
    const wr_commit_origin origin = {.epoch = 1};
    CHECK(!wr_topic_log_new(region, RING_BYTES - 4096, FILE_BYTES, &origin, NULL, NULL, NULL) && errno == EINVAL);
    CHECK(!wr_topic_log_new(region, RING_BYTES, FILE_BYTES + 1, &origin, NULL, NULL, NULL) && errno == EINVAL);
    CHECK(!wr_topic_log_new(region, 4096, FILE_BYTES, &origin, NULL, NULL, NULL) && errno == EINVAL);
}

int main(int argc, char **argv) {
    random_begin("topic_log_test", argc, argv);
    snprintf(folder, sizeof folder, "/tmp/topic-log-XXXXXX");
    CHECK(mkdtemp(folder));
    CHECK((past = calloc(1, sizeof *past)));
    pthread_mutex_init(&past->mutex, NULL);
    keeps_its_bytes();
    refusals();
    nothing_comes_again();
    a_failed_sync_is_made_good();
    a_file_that_ends_is_synced();
    for (int i = 0; i < 3; i++) lives(ROUNDS(12));
    free(past);
    CHECK(rmdir(folder) == 0);
    return 0;
}
