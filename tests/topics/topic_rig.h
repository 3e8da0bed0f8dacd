/* A topic worker's log, dispatch and rows for tests of readers: one thread appends, commits and dispatches by the real code, in a folder of
 * support/scratch.h; a model in an array says what is there. Readers map the same regions.
 *
 * Dispatch takes each commit out of its file, as a start does: so it is derived from what is written. */
#ifndef WR_TEST_TOPIC_RIG_H
#define WR_TEST_TOPIC_RIG_H
#include "support/scratch.h"
#include "topics/dispatch.h"
#include "topics/log.h"
#include "topics/message_id.h"
#include "topics/properties.h"
#include "topics/record.h"
#include "topics/rows.h"
#include <pthread.h>
#include <sys/mman.h>

#define RIG_TOPICS 4
#define RIG_QUEUES 3
#define RIG_ROWS (RIG_TOPICS * RIG_QUEUES)
#define RIG_RECORDS_MAX 200000
#define RIG_KEYS 8
#define RIG_NO_TAG 99

static const char *const rig_names[RIG_TOPICS] = {"flights", "Aa", "BB", "seats"}; /* two of one hash */
static const char *const rig_tags[] = {"Aa", "BB", "late", "on time"};              /* two of one hash */
static const char *const rig_keys[RIG_KEYS] = {"N1", "Aa", "BB", "N4", "N5", "N6", "N7", "N8"};
static const uint8_t rig_host[WR_HOST_V4_SIZE] = {127, 0, 0, 1, 0, 0, 0x2a, 0x9f};

typedef struct {
    uint64_t position, offset;
    int64_t ms;
    uint32_t row, size, body_n, seed; /* row: topic × RIG_QUEUES + queue */
    uint32_t tag, keys;               /* RIG_NO_TAG; bits, the first is UNIQ_KEY */
    uint32_t id;
} rig_record;

typedef struct {
    uint64_t file_bytes, ring_bytes;
    uint32_t entries, slots, index_entries;
    uint32_t ids[RIG_TOPICS];
    /* of an incarnation */
    wr_topic_log *log;
    void *ring;
    int ring_fd;
    wr_topic_rows *rows;
    wr_dispatch *dispatch;
    uint32_t row[RIG_ROWS]; /* numbers in the dispatch, and in shared memory */
    pthread_t committer;
    uint64_t next[RIG_ROWS], epoch;
    /* the model */
    rig_record *records;
    uint32_t n, shown; /* appended, dispatched */
    int64_t now;
} rig;

/* Commits that are done, for the thread that dispatches. */
static struct {
    uint64_t from[64], to[64];
    _Atomic uint32_t n, taken;
} rig_done;

static inline void rig_commit_done(void *context, const wr_topic_commit *commit) {
    (void)context;
    CHECK(!commit->error);
    if (commit->at == commit->from) return;
    uint32_t n = atomic_load(&rig_done.n);
    CHECK(n - atomic_load(&rig_done.taken) < 64);
    rig_done.from[n % 64] = commit->from;
    rig_done.to[n % 64] = commit->at + wr_commit_record_bytes(commit->head.marks_n);
    atomic_store(&rig_done.n, n + 1);
}

static inline const char *rig_path(uint64_t base) {
    static _Thread_local char path[300];
    snprintf(path, sizeof path, "%s/commitlog/%020llu", scratch, (unsigned long long)base);
    return path;
}

static inline int rig_open(void *context, uint64_t base) {
    (void)context;
    int fd = open(rig_path(base), O_RDWR);
    return fd < 0 ? -errno : fd;
}

static inline uint32_t rig_body(uint8_t *to, uint32_t seed, uint32_t n) {
    uint64_t x = (seed + 1) * 0x9e3779b97f4a7c15ull;
    for (uint32_t i = 0; i < n; i++) to[i] = (uint8_t)(x >> (i % 56)) ^ (uint8_t)(i >> 8);
    return n;
}

static inline uint32_t rig_properties(uint8_t *to, const rig_record *r) {
    char value[200] = "";
    uint32_t n = 0;
    if (r->tag != RIG_NO_TAG) n += wr_properties_put(to, 4000, "TAGS", 4, rig_tags[r->tag], strlen(rig_tags[r->tag]));
    for (uint32_t i = 1; i < RIG_KEYS; i++)
        if (r->keys >> i & 1) strcat(strcat(value, *value ? " " : ""), rig_keys[i]);
    if (*value) n += wr_properties_put(to + n, 4000, "KEYS", 4, value, strlen(value));
    if (r->keys & 1) n += wr_properties_put(to + n, 4000, "UNIQ_KEY", 8, rig_keys[0], strlen(rig_keys[0]));
    return n + wr_properties_put(to + n, 4000, "origin", 6, "EWR", 3);
}

static void *rig_commits(void *log) {
    wr_topic_log_commit_run(log, NULL);
    return NULL;
}

static inline void *rig_shared(uint64_t bytes) {
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    CHECK(memory != MAP_FAILED);
    return memory;
}

static inline void rig_add(rig *g, uint32_t topic) {
    const wr_dispatch_topic declared = {.id = g->ids[topic], .queues_n = RIG_QUEUES, .name = rig_names[topic], .name_n = (uint32_t)strlen(rig_names[topic])};
    for (uint32_t queue = 0; queue < RIG_QUEUES; queue++) g->row[topic * RIG_QUEUES + queue] = topic * RIG_QUEUES + queue;
    CHECK(wr_dispatch_add(g->dispatch, &declared, &g->row[topic * RIG_QUEUES]) == 0);
}

static inline void rig_show(rig *g, uint32_t topic) {
    for (uint32_t queue = 0; queue < RIG_QUEUES; queue++) {
        uint32_t row = g->row[topic * RIG_QUEUES + queue];
        wr_dispatch_row seen = wr_dispatch_look(g->dispatch, row);
        wr_topic_row_give(g->rows, row, wr_topic_row_key(g->ids[topic], queue), seen.minimum, seen.next);
        wr_dispatch_show(g->dispatch, row, wr_topic_row_at(g->rows, row));
        wr_dispatch_show_index(g->dispatch, &g->rows->index_newest);
    }
}

/* An incarnation: everything that is in the log is dispatched, and shown. */
static inline void rig_live(rig *g) {
    wr_dispatch_place place = {.root = scratch_fd, .log_file_bytes = g->file_bytes, .consume_queue_entries = g->entries, .index_slots = g->slots,
                               .index_entries = g->index_entries};
    const wr_dispatch_log log = {.open = rig_open};
    wr_checkpoint_kind kind;
    wr_log_end end;
    CHECK((g->dispatch = wr_dispatch_new(&place)));
    for (uint32_t i = 0; i < RIG_TOPICS; i++) rig_add(g, i);
    CHECK(wr_dispatch_begin(g->dispatch, &kind) == 0);
    if (g->n) {
        CHECK(wr_dispatch_catch_up(g->dispatch, &log, 0, &end) == 0 && !end.damaged);
    } else {
        end = (wr_log_end){0};
    }
    if (g->n) CHECK(wr_log_settle(rig_open, NULL, NULL, NULL, g->file_bytes, &end) == 0);
    g->rows = rig_shared(WR_TOPIC_ROWS_BYTES);
    for (uint32_t i = 0; i < RIG_TOPICS; i++) rig_show(g, i);
    CHECK((g->ring_fd = memfd_create("ring", 0)) >= 0 && ftruncate(g->ring_fd, (off_t)(WR_PAGE_BYTES + g->ring_bytes)) == 0);
    CHECK((g->ring = wr_topic_ring_map(g->ring_fd, g->ring_bytes)));
    wr_commit_origin origin = {.epoch = ++g->epoch};
    CHECK((g->log = wr_topic_log_new(g->ring, g->ring_bytes, g->file_bytes, &origin, NULL, rig_commit_done, NULL)));
    wr_topic_log_begin(g->log, end.position, end.last.number, end.last.store_ms);
    CHECK(pthread_create(&g->committer, NULL, rig_commits, g->log) == 0);
    atomic_store(&rig_done.n, 0);
    atomic_store(&rig_done.taken, 0);
    g->shown = g->n;
}

static inline void rig_begin(rig *g, uint64_t file_bytes, uint64_t ring_bytes, uint32_t entries) {
    *g = (rig){.file_bytes = file_bytes, .ring_bytes = ring_bytes, .entries = entries, .slots = 7, .index_entries = 60, .now = 1700000000000};
    for (uint32_t i = 0; i < RIG_TOPICS; i++) g->ids[i] = 10 + i;
    for (uint32_t row = 0; row < RIG_ROWS; row++) g->row[row] = row;
    CHECK((g->records = malloc(RIG_RECORDS_MAX * sizeof *g->records)));
    CHECK(mkdirat(scratch_fd, "commitlog", 0700) == 0);
    rig_live(g);
}

static inline void rig_die(rig *g) {
    wr_topic_log_stop(g->log);
    CHECK(pthread_join(g->committer, NULL) == 0);
    wr_topic_log_free(g->log);
    wr_dispatch_free(g->dispatch);
    wr_topic_ring_unmap(g->ring, g->ring_bytes);
    close(g->ring_fd);
    munmap(g->rows, WR_TOPIC_ROWS_BYTES);
}

static inline void rig_end(rig *g) {
    rig_die(g);
    free(g->records);
    scratch_empty();
}

static inline void rig_files(rig *g) {
    const wr_topic_log_state *s = wr_topic_log_look(g->log);
    if (s->has_next || !s->wants_next) return;
    uint64_t base = s->has_file ? s->base + g->file_bytes : s->base;
    int fd = open(rig_path(base), O_RDWR | O_CREAT, 0600);
    CHECK(fd >= 0 && ftruncate(fd, (off_t)g->file_bytes) == 0 && wr_topic_log_offer(g->log, fd, base) == 0);
}

/* Dispatch what is done. */
static inline void rig_dispatch(rig *g) {
    for (uint32_t n = atomic_load(&rig_done.taken); n != atomic_load(&rig_done.n); atomic_store(&rig_done.taken, ++n)) {
        uint64_t from = rig_done.from[n % 64], bytes_n = rig_done.to[n % 64] - from, at = bytes_n - wr_commit_record_bytes(0);
        uint8_t *bytes = malloc(bytes_n);
        wr_commit_head head;
        const uint8_t *marks;
        int fd = rig_open(NULL, from / g->file_bytes * g->file_bytes);
        CHECK(fd >= 0 && pread(fd, bytes, bytes_n, (off_t)(from % g->file_bytes)) == (ssize_t)bytes_n);
        close(fd);
        CHECK(wr_commit_record_read(bytes + at, bytes_n - at, from + at, &head, &marks));
        CHECK(wr_dispatch_commit(g->dispatch, bytes, bytes_n, &head, marks) == 0);
        free(bytes);
        for (uint32_t id = 0; id < WR_TOPIC_WAKES; id++) wr_topic_wake_readers(g->rows, id);
    }
}

/* Seal what was appended, and show it when it is written. */
static inline void rig_commit(rig *g, bool sync) {
    int error;
    while ((error = wr_topic_log_seal(g->log, sync, false, NULL, 0)) == EAGAIN) {}
    CHECK(!error && wr_topic_log_quiesce(g->log, 60000000000ull) == 0);
    rig_dispatch(g);
    g->shown = g->n;
}

/* Append a record as it is told; place and offset are given to it. */
static inline void rig_append(rig *g, rig_record r) {
    static uint8_t body[4 << 20], properties[4000];
    uint32_t topic = r.row / RIG_QUEUES, name_n = (uint32_t)strlen(rig_names[topic]), properties_n = rig_properties(properties, &r);
    const struct iovec part = {body, rig_body(body, r.seed, r.body_n)};
    wr_record_reason reason;
    uint8_t *to;
    CHECK(g->n < RIG_RECORDS_MAX && r.body_n <= sizeof body && r.ms >= g->now);
    g->now = r.ms;
    r.size = wr_record_size(0, name_n, properties_n, r.body_n, &reason);
    r.offset = g->next[r.row]++;
    r.id = g->ids[topic];
    rig_files(g);
    while (!(to = wr_topic_log_reserve(g->log, r.size, &r.position))) {
        CHECK(errno == EAGAIN);
        rig_files(g);
        if (wr_topic_log_look(g->log)->wants_seal) rig_commit(g, false);
    }
    wr_record_head head = {.queue_id = r.row % RIG_QUEUES, .flag = r.id, .queue_offset = r.offset, .physical_offset = r.position,
                           .born_timestamp = (uint64_t)r.ms - 3, .store_timestamp = (uint64_t)r.ms};
    memcpy(head.born_host, rig_host, sizeof rig_host);
    memcpy(head.store_host, rig_host, sizeof rig_host);
    CHECK(wr_record_encode(to, r.size, &head, rig_names[topic], name_n, properties, properties_n, &part, 1) == WR_RECORD_GOOD);
    wr_topic_log_append(g->log, r.size, (uint64_t)r.ms);
    g->records[g->n++] = r;
}

/* Some record; `row` RIG_ROWS: of any queue. */
static inline rig_record rig_any(rig *g, uint32_t row, uint32_t body_max) {
    rig_record r = {.row = row < RIG_ROWS ? row : (uint32_t)random_below(RIG_ROWS), .ms = g->now + (int64_t)random_below(3), .seed = g->n};
    r.tag = (uint32_t)random_below(5);
    if (r.tag == 4) r.tag = RIG_NO_TAG;
    if (random_below(2)) r.keys = (uint32_t)random_below(1 << RIG_KEYS) & (uint32_t)random_below(1 << RIG_KEYS);
    r.body_n = (uint32_t)random_below(body_max + 1);
    return r;
}

/* So many records, in commits of some. */
static inline void rig_fill(rig *g, uint32_t n, uint32_t row, uint32_t body_max) {
    for (uint32_t i = 0; i < n; i++) {
        rig_append(g, rig_any(g, row, body_max));
        if (random_below(20) == 0) rig_commit(g, random_below(4) == 0);
    }
    rig_commit(g, false);
}

/* The record of an offset; NULL: there is none. */
static inline const rig_record *rig_find(const rig *g, uint32_t row, uint64_t offset) {
    for (uint32_t i = 0; i < g->n; i++)
        if (g->records[i].row == row && g->records[i].offset == offset && g->records[i].id == g->ids[row / RIG_QUEUES]) return &g->records[i];
    return NULL;
}

/* Is this, in all its parts, what was appended? */
static inline bool rig_same(const rig_record *r, const wr_record *record, const uint8_t *bytes) {
    static _Thread_local uint8_t body[4 << 20], properties[4000];
    uint32_t n = rig_properties(properties, r);
    rig_body(body, r->seed, r->body_n);
    return record->queue_offset == r->offset && record->physical_offset == r->position && record->size == r->size &&
           record->queue_id == r->row % RIG_QUEUES && record->store_timestamp == (uint64_t)r->ms && record->born_timestamp == (uint64_t)r->ms - 3 &&
           record->body_length == r->body_n && !memcmp(bytes + record->body_at, body, r->body_n) && record->properties_length == n &&
           !memcmp(bytes + record->properties_at, properties, n);
}
#endif
