/* Goal: loop, committer and dispatcher agree: readers are woken for all that was appended, however much comes at once; topics come and go
 * meanwhile, and rows that are used again show nothing of before; what was stopped goes on. Whatever was confirmed is read by all that ask
 * afterwards, and when it cannot be shown they are answered all the same. What a reader sleeps for does not wait for more.
 * Method: a whole worker with its three threads in one process, a client's port, a reader that sleeps on a row, readers that look at the
 * client's horizons and read what is confirmed. Batches that fill the ring of notes; a disk that is full. Runs under AddressSanitizer and ThreadSanitizer. Prints its seed. */
#define _GNU_SOURCE
#include "ipc/core/port.h"
#include "support/scratch.h"
#include "support/small_mount.h"
#include "topics/links.h"
#include "topics/lookup.h"
#include "topics/loop.h"
#include "topics/properties.h"
#include "topics/queue_files.h"
#include "topics/read.h"
#include "topics/seek.h"
#include "topics/table.h"
#include <pthread.h>
#include <sys/mman.h>

#define RING_BYTES (4u << 20)
#define FILE_BYTES (8u << 20)
#define SERVER 2
#define ROWS_MAX 16
#define ENTRIES 5000

static wr_superblock *super;
static wr_port port;
static void *region;
static uint64_t region_bytes;

static void open_client(void) {
    super = calloc(1, WR_SUPERBLOCK_BYTES);
    CHECK(super);
    super->servers_n = SERVER + 1;
    super->ring_records = 64;
    super->delivery_slots = 2;
    super->reply_bytes = 4096;
    super->arena_bytes = 1 << 20;
    super->message_bytes_max = super->shared_bytes_max = 1 << 14;
    super->state = WR_NODE_RUNNING;
    const wr_geometry g = wr_geometry_of(super);
    region_bytes = wr_view_bytes(&g);
    CHECK((region = aligned_alloc(4096, wr_page_up(region_bytes))));
    memset(region, 0, region_bytes);
    CHECK(wr_port_init(&port, super, region, region_bytes, 0, 1, 100) == 0);
}

static uint64_t submitted; /* the last command's number */

/* n records with a key each; false: no room now. */
static bool submit(uint32_t topic, uint32_t queue, uint32_t n, uint8_t flags) {
    static uint8_t blob[1 << 18];
    static uint8_t properties[64];
    const uint32_t known = wr_properties_put(properties, sizeof properties, "KEYS", 4, "a bc d e f", 10);
    uint64_t length = n * sizeof(wr_append_part), position;
    uint8_t *at;
    for (uint32_t i = 0; i < n; i++) {
        ((wr_append_part *)blob)[i] = (wr_append_part){.body_length = 4, .properties_length = known};
        memcpy(blob + length, properties, known);
        memcpy(blob + length + known, &i, 4);
        length += known + 4;
    }
    CHECK(length <= sizeof blob);
    wr_port_reclaim(&port);
    if (wr_port_alloc(&port, length, &position, &at)) return false;
    wr_command *record = wr_port_prepare(&port, SERVER, &submitted);
    if (!record) return false;
    memcpy(at, blob, length);
    record->op = WR_OP_APPEND_MANY;
    record->flags = flags;
    record->queue = topic;
    record->row = queue;
    record->tag = 1700000000000;
    record->count = n;
    record->body = position;
    record->length = (uint32_t)length;
    CHECK(wr_port_use(&port, SERVER, submitted) == 0 && wr_port_submit(&port, SERVER));
    return true;
}

/* ---- a worker ---- */

typedef struct {
    wr_topic_worker *w;
    wr_topic_rows *rows;
    void *ring;
    int ring_fd;
    pthread_t committer, dispatcher;
    uint64_t next_base;
} life;

static void *commit_run(void *argument) {
    life *l = argument;
    wr_topic_log_commit_run(l->w->s.log, &l->w->s.me->sleeping);
    return NULL;
}

static _Atomic bool dispatcher_rests; /* it begins later */

static void *dispatch_run(void *argument) {
    while (atomic_load(&dispatcher_rests)) sched_yield();
    wr_dispatcher_run(((life *)argument)->w->dispatcher);
    return NULL;
}

static void give_file(life *l) {
    char path[64];
    snprintf(path, sizeof path, "commitlog/%020llu", (unsigned long long)l->next_base);
    int fd = openat(scratch_fd, path, O_RDWR | O_CREAT, 0600);
    CHECK(fd >= 0 && ftruncate(fd, FILE_BYTES) == 0 && wr_topic_log_offer(l->w->s.log, fd, l->next_base) == 0);
    l->next_base += FILE_BYTES;
}

static _Atomic bool disk_fails; /* syncs do */
static _Atomic uint32_t here_n, there_n; /* writes by the loop's thread, and by the committer's */
static _Atomic bool full_here;  /* the loop's writes find no space */
static pthread_t loop_thread;

static ssize_t write_to(void *context, int fd, const void *from, size_t n, off_t at) {
    (void)context;
    const bool here = pthread_equal(pthread_self(), loop_thread);
    atomic_fetch_add(here ? &here_n : &there_n, 1);
    if (!here || !atomic_load(&full_here)) return pwrite(fd, from, n, at);
    errno = ENOSPC;
    return -1;
}

static int sync_to(void *context, int fd) {
    (void)context;
    if (!atomic_load(&disk_fails)) return fdatasync(fd);
    errno = EIO;
    return -1;
}

static void be_born(life *l, uint64_t epoch, const uint32_t *topics, uint32_t topics_n) {
    wr_checkpoint_kind kind;
    char name[20];
    mkdirat(scratch_fd, "commitlog", 0700);
    CHECK((l->rows = aligned_alloc(4096, WR_PAGE_BYTES * 2)));
    memset((void *)l->rows, 0, WR_PAGE_BYTES * 2);
    CHECK((l->ring_fd = memfd_create("ring", 0)) >= 0 && ftruncate(l->ring_fd, WR_PAGE_BYTES + RING_BYTES) == 0);
    CHECK((l->ring = wr_topic_ring_map(l->ring_fd, RING_BYTES)));
    const wr_topic_worker_options options = {.super = super, .server = SERVER, .folder = scratch_fd, .rows = l->rows, .rows_max = ROWS_MAX,
                                             .ring = l->ring, .ring_bytes = RING_BYTES, .node = "a node of tests", .boot = "one", .log_file_bytes = FILE_BYTES,
                                             .consume_queue_entries = ENTRIES, .index_slots = 100, .index_entries = 100000, .spin_ns = 10000,
                                             .tick_ns = 10000000, .commit_bytes = 1 << 18};
    CHECK((l->w = wr_topic_worker_new(&options)));
    for (uint32_t i = 0; i < topics_n; i++)
        CHECK(wr_topic_worker_declare(l->w, topics[i], name, (uint32_t)snprintf(name, sizeof name, "t%u", topics[i] % 10), 2) == 0);
    CHECK(wr_topic_worker_recover(l->w, 0, &kind) == 0 && !l->w->end.damaged && wr_topic_worker_settle(l->w) == 0);
    CHECK(wr_topic_worker_begin(l->w, epoch) == 0);
    wr_topic_log_set_io(l->w->s.log, &(wr_commit_io){write_to, sync_to}, NULL);
    l->next_base = l->w->end.position / FILE_BYTES * FILE_BYTES;
    give_file(l);
    CHECK(wr_topic_worker_attach(l->w, 0, 1, 100, region, region_bytes) == 0);
    CHECK(wr_topic_worker_serve(l->w, epoch) == 0);
    CHECK(pthread_create(&l->committer, NULL, commit_run, l) == 0 && pthread_create(&l->dispatcher, NULL, dispatch_run, l) == 0);
}

static void end_threads(life *l) {
    wr_topic_log_stop(l->w->s.log);
    CHECK(pthread_join(l->committer, NULL) == 0);
    wr_dispatcher_stop(l->w->dispatcher);
    CHECK(pthread_join(l->dispatcher, NULL) == 0);
}

static void let_go(life *l) {
    wr_topic_worker_free(l->w);
    wr_topic_ring_unmap(l->ring, RING_BYTES);
    close(l->ring_fd);
    free((void *)l->rows);
}

static void die(life *l) {
    CHECK(wr_topic_sync(&l->w->s, 60000000000ull) == 0);
    end_threads(l);
    const wr_dispatcher_state state = wr_dispatcher_look(l->w->dispatcher);
    CHECK(!state.failed && !state.trouble && state.checkpoints_n);
    let_go(l);
}

static void turn(life *l) {
    uint32_t events = wr_topic_run(l->w, 1000000, true);
    CHECK(!(events & (WR_TOPIC_EVENT_LOG_FAILED | WR_TOPIC_EVENT_DISPATCH_FAILED)));
    if (events & WR_TOPIC_EVENT_NEED_FILE) give_file(l);
    if (events & WR_TOPIC_EVENT_CATALOG_CHANGED) wr_topic_catalog_loaded(&l->w->s);
}

static uint64_t maximum(const life *l, uint32_t topic, uint32_t queue) {
    wr_topic_row *row = wr_topic_row_find(l->rows, topic, queue);
    return row ? atomic_load_explicit(&row->maximum, memory_order_acquire) : UINT64_MAX;
}

/* ---- a reader ---- */

typedef struct {
    const life *l;
    uint32_t topic;
    uint64_t until;
} follower;

static void *follow(void *argument) {
    const follower *f = argument;
    const uint64_t key = wr_topic_row_key(f->topic, 0);
    wr_topic_row *row = wr_topic_row_find(f->l->rows, f->topic, 0);
    CHECK(row);
    char folder[40];
    snprintf(folder, sizeof folder, "consumequeue/t%u/0", f->topic % 10);
    wr_queue_reader *reader = wr_queue_reader_new(scratch_fd, folder, ENTRIES);
    uint64_t at = 0, last = 0;
    while (at < f->until) {
        CHECK(wr_topic_wait(f->l->rows, row, key, at, 60000000000ull) == 0); /* a wake that was missed is a time-out */
        const uint64_t seen = atomic_load_explicit(&row->maximum, memory_order_acquire);
        CHECK(seen >= at);
        while (at < seen) {
            wr_unit units[100];
            uint32_t found, most = seen - at < 100 ? (uint32_t)(seen - at) : 100;
            CHECK(wr_queue_reader_get(reader, at, units, most, &found) == 0 && found);
            for (uint32_t i = 0; i < found; i++, at++) {
                CHECK(units[i].size && (!at || units[i].physical_offset > last));
                last = units[i].physical_offset;
            }
        }
    }
    wr_queue_reader_free(reader);
    return NULL;
}

/* Many small records at once: more than the notes have slots for, so that records wait for the dispatcher. */
static void all_is_shown_however_much_comes(void) {
    static life l;
    const uint32_t topic = 7, n = 3000, batches = 24;
    uint64_t sent = 0;
    pthread_t reader;
    be_born(&l, 1, &topic, 1);
    follower f = {&l, topic, (uint64_t)n * batches};
    CHECK(pthread_create(&reader, NULL, follow, &f) == 0);
    bool crowded = false;
    while (maximum(&l, topic, 0) < f.until) {
        if (sent < batches && submit(topic, 0, n, sent % 5 == 4 ? WR_FLAG_SYNCED : 0)) sent++;
        turn(&l);
        crowded |= l.w->s.crowded;
    }
    CHECK(pthread_join(reader, NULL) == 0);
    CHECK(atomic_load(&port.view.links[SERVER].head) == batches);
    printf("  records %s for the dispatcher\n", crowded ? "waited" : "did not wait");
    die(&l);
    be_born(&l, 2, &topic, 1);
    CHECK(maximum(&l, topic, 0) == f.until && maximum(&l, topic, 1) == 0 && wr_topic_find(&l.w->s, topic)->queues[0].next == f.until);
    die(&l);
}

static void topics_come_and_go(void) {
    static life l;
    const uint32_t first[] = {1, 2, 3};
    uint32_t there[3] = {1, 2, 3};
    be_born(&l, 3, first, 3);
    for (uint32_t id = 11; id < 60; id += 10)
        for (uint32_t place = 0; place < 3; place++) {
            for (uint32_t i = 0; i < 3; i++)
                submit(there[i], 0, 1 + (uint32_t)random_below(50), random_below(2) ? WR_FLAG_SYNCED : 0);
            for (int i = 0; i < 3; i++) turn(&l);
            CHECK(wr_topic_worker_drop(l.w, there[place]) == 0 && wr_topic_worker_drop(l.w, there[place]) == ENOENT);
            CHECK(maximum(&l, there[place], 0) == UINT64_MAX);
            char name[20];
            const uint32_t n = (uint32_t)snprintf(name, sizeof name, "t%u", (id + place) % 10);
            /* at once, or when rows are free again */
            int error;
            while ((error = wr_topic_worker_declare(l.w, id + place, name, n, 4)) == ENOSPC) turn(&l);
            CHECK(error == 0 && wr_topic_worker_declare(l.w, id + place, name, n, 4) == EEXIST);
            CHECK(maximum(&l, id + place, 0) == 0 && maximum(&l, id + place, 3) == 0);
            there[place] = id + place;
            while (!submit(there[place], 0, 20, 0)) turn(&l);
            while (maximum(&l, there[place], 0) < 20) turn(&l);
            CHECK(maximum(&l, there[place], 3) == 0);
        }
    die(&l);
    be_born(&l, 4, there, 3);
    for (uint32_t i = 0; i < 3; i++) CHECK(maximum(&l, there[i], 0) >= 20 && maximum(&l, there[i], 0) != UINT64_MAX);
    die(&l);
}

/* What the log says of a client that ended is forgotten: at once, and by a start that does not find it. */
static void clients_that_are_gone_are_forgotten(void) {
    static life l;
    const uint32_t topic = 4;
    be_born(&l, 5, &topic, 1);
    while (!submit(topic, 0, 20, WR_FLAG_SYNCED)) turn(&l);
    while (maximum(&l, topic, 0) != 20) turn(&l);
    die(&l);
    wr_checkpoint c = {.consume_queue_entries = ENTRIES, .index_slots = 100, .index_entries = 100000, .origin.node = "a node of tests"};
    wr_checkpoint_kind kind;
    CHECK(wr_checkpoint_read(scratch_fd, "checkpoint", &c, &kind) == 0 && kind == WR_CHECKPOINT_GOOD && c.marks_n == 1 && c.marks[0].client_epoch == 100);
    wr_checkpoint_free(&c);
    be_born(&l, 6, &topic, 1);
    while (!submit(topic, 0, 20, 0)) turn(&l);
    wr_topic_closing(&l.w->s, 0);
    while (!wr_topic_worker_detach(l.w, 0)) turn(&l);
    while (maximum(&l, topic, 0) != 40) turn(&l);
    die(&l);
    CHECK(wr_checkpoint_read(scratch_fd, "checkpoint", &c, &kind) == 0 && kind == WR_CHECKPOINT_GOOD && c.marks_n == 0);
    wr_checkpoint_free(&c);
}

/* ---- what was confirmed ---- */

#define COMMANDS 600
#define ASKERS 2

static struct {
    uint8_t flags;
    uint64_t end; /* offset behind its records */
} commands[COMMANDS];
static _Atomic uint64_t commands_n, all_end; /* all_end: 0 while more come */
static uint64_t first_command;

static wr_topic_reader *reader_of(const life *l, uint32_t topic) {
    char name[20];
    const wr_topic_place place = {.root = scratch_fd, .log_file_bytes = FILE_BYTES, .ring_bytes = RING_BYTES, .consume_queue_entries = ENTRIES,
                                  .index_slots = 100, .index_entries = 100000};
    wr_topic_reader *r = wr_topic_reader_new(&place, topic, name, (uint32_t)snprintf(name, sizeof name, "t%u", topic % 10));
    CHECK(r);
    wr_topic_reader_begin(r, l->ring, l->rows);
    r->patience_ns = 60000000000ull;
    return r;
}

/* Read up to `most` messages from an offset on; the offset behind the last one. */
static uint64_t read_on(wr_topic_reader *r, uint64_t offset, uint32_t most, wr_read_status *status) {
    wr_topic_read *read = malloc(sizeof *read);
    wr_topic_read_result result;
    wr_record record;
    const uint8_t *bytes;
    CHECK(read);
    const wr_topic_request q = {.offset = offset, .end = UINT64_MAX, .records_max = most, .bytes_max = 1 << 20, .sum = true};
    CHECK(wr_topic_read_begin(read, r, &q) == 0);
    while (wr_topic_read_next(read, &record, &bytes)) {}
    CHECK(wr_topic_read_end(read, &result) == 0);
    free(read);
    *status = result.status;
    return result.next;
}

static uint64_t newest_with_key(wr_topic_reader *r) {
    wr_topic_lookup lookup;
    wr_record record;
    const uint8_t *bytes;
    int error;
    CHECK(wr_topic_lookup_begin(&lookup, r, (wr_text){(const uint8_t *)"bc", 2}, INT64_MIN, INT64_MAX) == 0);
    return wr_topic_lookup_next(&lookup, &record, &bytes, &error) == WR_MESSAGE_THERE ? record.queue_offset + 1 : 0;
}

/* The offset behind the last message that its producer knows to be as durable as it asked for, of the newest 200. */
static uint64_t confirmed_end(void) {
    const wr_link *link = &port.view.links[SERVER];
    const uint64_t synced = atomic_load_explicit(&link->synced, memory_order_acquire);
    const uint64_t written = atomic_load_explicit(&link->written, memory_order_acquire);
    const uint64_t n = atomic_load_explicit(&commands_n, memory_order_acquire);
    for (uint64_t i = n; i-- > 0 && n - i < 200;)
        if (first_command + i < synced || (first_command + i < written && commands[i].flags == WR_FLAG_WRITTEN)) return commands[i].end;
    return 0;
}

static void *ask(void *argument) {
    const life *l = argument;
    wr_topic_reader *r = reader_of(l, 8);
    uint64_t last = 0;
    for (uint64_t n = 0; !atomic_load(&all_end) || last < atomic_load(&all_end);) {
        uint64_t offset;
        wr_topic_bounds b;
        wr_read_status status;
        const uint64_t end = confirmed_end();
        if (end == last) continue; /* look at once when it has risen: that is when it may not be shown yet */
        last = end;
        switch (n++ % 6) {
        case 0:
            CHECK(read_on(r, end - 1, 1, &status) == end && status == WR_READ_FOUND);
            break;
        case 1: /* some are at hand */
            CHECK(read_on(r, end > 10 ? end - 10 : 0, 1000, &status) >= end && status == WR_READ_FOUND);
            break;
        case 2:
            CHECK(wr_topic_reader_all(r, 0, &b) == 0 && b.maximum >= end);
            break;
        case 3:
            CHECK(wr_topic_seek(r, 0, INT64_MAX, WR_SEEK_UPPER, &offset) == 0 && offset >= end - 1);
            break;
        case 4:
            CHECK(newest_with_key(r) >= end);
            break;
        default: /* at the very moment */
            for (const uint64_t number = wr_topic_confirmed_commit(l->rows); !wr_topic_is_shown(l->rows, number);) {}
            CHECK(maximum(l, 8, 0) >= end);
        }
        CHECK(!r->behind);
    }
    wr_topic_reader_free(r);
    return NULL;
}

static void what_was_confirmed_is_read(void) {
    static life l;
    static const uint8_t flags[] = {WR_FLAG_SYNCED, WR_FLAG_WRITTEN, WR_FLAG_WRITTEN, 0};
    const uint32_t topic = 8;
    pthread_t askers[ASKERS];
    uint64_t end = 0;
    be_born(&l, 7, &topic, 1);
    CHECK(wr_topic_confirmed_commit(l.rows) == l.w->end.last.number && wr_topic_is_shown(l.rows, l.w->end.last.number));
    first_command = submitted + 1;
    for (uint32_t i = 0; i < ASKERS; i++) CHECK(pthread_create(&askers[i], NULL, ask, &l) == 0);
    for (uint32_t i = 0; i < COMMANDS; i++) {
        const uint32_t n = 1 + (uint32_t)random_below(3);
        commands[i].flags = i == COMMANDS - 1 ? WR_FLAG_SYNCED : flags[random_below(4)];
        commands[i].end = end += n;
        while (!submit(topic, 0, n, commands[i].flags)) turn(&l);
        CHECK(submitted == first_command + i);
        atomic_store_explicit(&commands_n, i + 1, memory_order_release);
        while (random_below(4) && confirmed_end() != end && commands[i].flags) turn(&l);
    }
    atomic_store(&all_end, end);
    while (maximum(&l, topic, 0) < end) turn(&l);
    for (uint32_t i = 0; i < ASKERS; i++) CHECK(pthread_join(askers[i], NULL) == 0);
    CHECK(!wr_topic_shown_wake(l.rows)->waiters);
    die(&l);
}

static void what_a_reader_sleeps_for_is_sealed_at_once(void) {
    static life l;
    const uint32_t topic = 8;
    be_born(&l, 8, &topic, 1);
    const wr_topic_log_state *state = wr_topic_log_look(l.w->s.log);
    for (uint32_t waiters = 0; waiters < 3; waiters++) {
        CHECK(wr_topic_sync(&l.w->s, 60000000000ull) == 0 && state->append == state->sealed);
        const uint64_t before = state->append;
        atomic_store(&wr_topic_wake_of(l.rows, topic)->waiters, waiters);
        CHECK(submit(topic, 1, 1, 0));
        wr_topic_round(&l.w->s, wr_now_ns());
        CHECK(state->append > before && (state->append == state->sealed) == (waiters != 0));
    }
    atomic_store(&wr_topic_wake_of(l.rows, topic)->waiters, 0);
    die(&l);
}

/* Submit a message, execute it, and wait until it is shown; how many writes the loop's thread made. */
static uint32_t append_one(life *l, uint32_t topic) {
    const uint64_t shown = maximum(l, topic, 0);
    const uint32_t before = atomic_load(&here_n);
    while (!submit(topic, 0, 1, 0)) turn(l);
    while (maximum(l, topic, 0) == shown) turn(l);
    return atomic_load(&here_n) - before;
}

/* The loop writes what a reader sleeps for itself, where the committer sleeps; and what finds no space there is written all the same. */
static void what_a_reader_sleeps_for_is_written_here(void) {
    static life l;
    const uint32_t topic = 3;
    be_born(&l, 9, &topic, 1);
    _Atomic uint32_t *waiters = &wr_topic_wake_of(l.rows, topic)->waiters;
    for (uint32_t i = 0; i < 20; i++) CHECK(append_one(&l, topic) == 0); /* nobody sleeps */
    atomic_store(waiters, 1);
    while (!append_one(&l, topic)) {} /* the committer does not always sleep */
    atomic_store(&full_here, true);
    while (!append_one(&l, topic)) {}
    CHECK(!wr_topic_log_look(l.w->s.log)->no_space && !wr_topic_log_look(l.w->s.log)->failed);
    atomic_store(&full_here, false);
    const uint32_t there = atomic_load(&there_n);
    while (atomic_load(&there_n) == there) append_one(&l, topic); /* it is the committer's turn after a sync */
    atomic_store(waiters, 0);
    const uint64_t end = maximum(&l, topic, 0);
    die(&l);
    be_born(&l, 10, &topic, 1);
    CHECK(maximum(&l, topic, 0) == end);
    die(&l);
}

static _Atomic uint32_t answered;

static void *ask_once(void *argument) {
    wr_read_status status;
    read_on(argument, 0, 10, &status);
    atomic_store(&answered, 1 + status);
    return NULL;
}

/* A read whose message is confirmed, and is not shown before something happens; the read's status. */
static wr_read_status ask_until(life *l, wr_topic_reader *r, void (*happens)(life *l)) {
    pthread_t asker;
    atomic_store(&answered, 0);
    CHECK(pthread_create(&asker, NULL, ask_once, r) == 0);
    while (!atomic_load(&wr_topic_shown_wake(l->rows)->waiters)) sched_yield();
    CHECK(!atomic_load(&answered));
    happens(l);
    CHECK(pthread_join(asker, NULL) == 0);
    return (wr_read_status)(atomic_load(&answered) - 1);
}

static void is_held(life *l) { wr_topic_hold(l->rows, WR_TOPIC_HELD_WORK, true); }

static void wakes_up(life *l) {
    (void)l;
    atomic_store(&dispatcher_rests, false);
}

static void a_read_ends_that_cannot_have_all(void) {
    static life l;
    const uint32_t topic = 9;
    wr_topic_bounds b;
    wr_read_status status;
    atomic_store(&dispatcher_rests, true);
    be_born(&l, 11, &topic, 1);
    wr_topic_reader *r = reader_of(&l, topic);
    CHECK(read_on(r, 0, 10, &status) == 0 && status == WR_READ_NO_MESSAGE_IN_QUEUE && !r->behind); /* there is nothing to wait for */
    while (!submit(topic, 0, 5, WR_FLAG_SYNCED)) turn(&l);
    while (atomic_load(&port.view.links[SERVER].synced) <= submitted) turn(&l);
    r->patience_ns = 1000000;
    CHECK(read_on(r, 0, 10, &status) == 0 && status == WR_READ_NO_MESSAGE_IN_QUEUE && r->behind);
    r->behind = false;
    CHECK(wr_topic_reader_all(r, 1, &b) == 0 && !r->behind); /* the other queue has nothing to come */
    CHECK(wr_topic_reader_all(r, 0, &b) == 0 && !b.maximum && r->behind);
    r->behind = false;
    r->patience_ns = 60000000000ull;
    CHECK(ask_until(&l, r, is_held) == WR_READ_NO_MESSAGE_IN_QUEUE && !r->behind);
    CHECK(newest_with_key(r) == 0 && wr_topic_reader_all(r, 0, &b) == 0 && !b.maximum && !r->behind);
    wr_topic_hold(l.rows, WR_TOPIC_HELD_WORK, false);
    CHECK(ask_until(&l, r, wakes_up) == WR_READ_FOUND && !r->behind);
    CHECK(newest_with_key(r) == 5);
    wr_topic_reader_free(r);
    die(&l);
}

/* What was confirmed as written is not shown when the sync fails that others of its commit wait for. Last: the client is told no more. */
static void a_failed_log_holds_up_no_read(void) {
    static life l;
    const uint32_t topic = 6;
    wr_read_status status;
    be_born(&l, 13, &topic, 1);
    wr_topic_reader *r = reader_of(&l, topic);
    atomic_store(&disk_fails, true);
    CHECK(submit(topic, 1, 5, WR_FLAG_SYNCED));
    CHECK(submit(topic, 0, 5, WR_FLAG_WRITTEN));
    while (!wr_topic_log_look(l.w->s.log)->failed) wr_topic_run(l.w, 1000000, true);
    CHECK(wr_topic_log_quiesce(l.w->s.log, 60000000000ull) == 0 && wr_topic_is_held(l.rows));
    CHECK(atomic_load(&port.view.links[SERVER].written) > submitted && wr_topic_reader_unshown(r));
    CHECK(read_on(r, 0, 10, &status) == 0 && status == WR_READ_NO_MESSAGE_IN_QUEUE && !r->behind);
    wr_topic_reader_free(r);
    end_threads(&l);
    let_go(&l);
}

/* This thread is in a mount namespace of its own afterwards. */
static void a_full_disk_holds_up_no_read(void) {
    static life l;
    const uint32_t topic = 5, n = 3000;
    char place[sizeof scratch + 20];
    wr_read_status status;
    const int usual = scratch_fd;
    snprintf(place, sizeof place, "%s/consumequeue", scratch);
    mkdirat(scratch_fd, "consumequeue", 0700);
    if (!small_mount(place, 16384)) {
        printf("  no right to mount: not tried on a full disk\n");
        return;
    }
    CHECK((scratch_fd = open(scratch, O_RDONLY | O_DIRECTORY | O_CLOEXEC)) >= 0);
    be_born(&l, 12, &topic, 1);
    wr_topic_reader *r = reader_of(&l, topic);
    while (!submit(topic, 0, n, WR_FLAG_SYNCED)) turn(&l);
    while (atomic_load(&port.view.links[SERVER].synced) <= submitted || !wr_dispatcher_look(l.w->dispatcher).trouble) turn(&l);
    CHECK(wr_dispatcher_look(l.w->dispatcher).trouble == ENOSPC && wr_topic_is_held(l.rows));
    CHECK(read_on(r, 0, 10, &status) == 0 && status == WR_READ_NO_MESSAGE_IN_QUEUE && !r->behind);
    CHECK(mount(NULL, place, NULL, MS_REMOUNT, "size=8388608") == 0);
    while (wr_topic_is_held(l.rows)) turn(&l);
    CHECK(read_on(r, n - 1, 10, &status) == n && status == WR_READ_FOUND && !r->behind);
    wr_topic_reader_free(r);
    die(&l);
    CHECK(umount(place) == 0);
    close(scratch_fd);
    scratch_fd = usual;
}

int main(int argc, char **argv) {
    scratch_begin("topic_worker_test", argc, argv);
    loop_thread = pthread_self();
    open_client();
    all_is_shown_however_much_comes();
    topics_come_and_go();
    clients_that_are_gone_are_forgotten();
    what_was_confirmed_is_read();
    what_a_reader_sleeps_for_is_sealed_at_once();
    what_a_reader_sleeps_for_is_written_here();
    a_read_ends_that_cannot_have_all();
    a_full_disk_holds_up_no_read();
    a_failed_log_holds_up_no_read();
    wr_port_free(&port);
    free(region);
    free(super);
    scratch_end();
    return 0;
}
