/* Goal: loop, committer and dispatcher agree: readers are woken for all that was appended, however much comes at once; topics come and go
 * meanwhile, and rows that are used again show nothing of before; what was stopped goes on.
 * Method: a whole worker with its three threads in one process, a client's port, a reader that sleeps on a row. Batches that fill the
 * ring of notes. Runs under AddressSanitizer and ThreadSanitizer. Prints its seed. */
#define _GNU_SOURCE
#include "ipc/core/port.h"
#include "support/scratch.h"
#include "topics/links.h"
#include "topics/loop.h"
#include "topics/properties.h"
#include "topics/queue_files.h"
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
    super->message_bytes_max = 1 << 14;
    super->state = WR_NODE_RUNNING;
    const wr_geometry g = wr_geometry_of(super);
    region_bytes = wr_view_bytes(&g);
    CHECK((region = aligned_alloc(4096, wr_page_up(region_bytes))));
    memset(region, 0, region_bytes);
    CHECK(wr_port_init(&port, super, region, region_bytes, 0, 1, 100) == 0);
}

/* n records with a key each; false: no room now. */
static bool submit(uint32_t topic, uint32_t queue, uint32_t n, bool synced) {
    static uint8_t blob[1 << 18];
    static uint8_t properties[64];
    const uint32_t known = wr_properties_put(properties, sizeof properties, "KEYS", 4, "a bc d e f", 10);
    uint64_t length = n * sizeof(wr_append_part), position, sequence;
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
    wr_command *record = wr_port_prepare(&port, SERVER, &sequence);
    if (!record) return false;
    memcpy(at, blob, length);
    record->op = WR_OP_APPEND_MANY;
    record->flags = synced ? WR_FLAG_SYNCED : 0;
    record->queue = topic;
    record->row = queue;
    record->tag = 1700000000000;
    record->count = n;
    record->body = position;
    record->length = (uint32_t)length;
    CHECK(wr_port_use(&port, SERVER, sequence) == 0 && wr_port_submit(&port, SERVER));
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

static void *dispatch_run(void *argument) {
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
    l->next_base = l->w->end.position / FILE_BYTES * FILE_BYTES;
    give_file(l);
    CHECK(wr_topic_worker_attach(l->w, 0, 1, 100, region, region_bytes) == 0);
    CHECK(wr_topic_worker_serve(l->w, epoch) == 0);
    CHECK(pthread_create(&l->committer, NULL, commit_run, l) == 0 && pthread_create(&l->dispatcher, NULL, dispatch_run, l) == 0);
}

static void die(life *l) {
    CHECK(wr_topic_sync(&l->w->s, 60000000000ull) == 0);
    wr_topic_log_stop(l->w->s.log);
    CHECK(pthread_join(l->committer, NULL) == 0);
    wr_dispatcher_stop(l->w->dispatcher);
    CHECK(pthread_join(l->dispatcher, NULL) == 0);
    const wr_dispatcher_state state = wr_dispatcher_look(l->w->dispatcher);
    CHECK(!state.failed && !state.trouble && state.checkpoints_n);
    wr_topic_worker_free(l->w);
    wr_topic_ring_unmap(l->ring, RING_BYTES);
    close(l->ring_fd);
    free((void *)l->rows);
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
        if (sent < batches && submit(topic, 0, n, sent % 5 == 4)) sent++;
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
                submit(there[i], 0, 1 + (uint32_t)random_below(50), random_below(2));
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
            while (!submit(there[place], 0, 20, false)) turn(&l);
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
    while (!submit(topic, 0, 20, true)) turn(&l);
    while (maximum(&l, topic, 0) != 20) turn(&l);
    die(&l);
    wr_checkpoint c = {.consume_queue_entries = ENTRIES, .index_slots = 100, .index_entries = 100000, .origin.node = "a node of tests"};
    wr_checkpoint_kind kind;
    CHECK(wr_checkpoint_read(scratch_fd, "checkpoint", &c, &kind) == 0 && kind == WR_CHECKPOINT_GOOD && c.marks_n == 1 && c.marks[0].client_epoch == 100);
    wr_checkpoint_free(&c);
    be_born(&l, 6, &topic, 1);
    while (!submit(topic, 0, 20, false)) turn(&l);
    wr_topic_closing(&l.w->s, 0);
    while (!wr_topic_worker_detach(l.w, 0)) turn(&l);
    while (maximum(&l, topic, 0) != 40) turn(&l);
    die(&l);
    CHECK(wr_checkpoint_read(scratch_fd, "checkpoint", &c, &kind) == 0 && kind == WR_CHECKPOINT_GOOD && c.marks_n == 0);
    wr_checkpoint_free(&c);
}

int main(int argc, char **argv) {
    scratch_begin("topic_worker_test", argc, argv);
    open_client();
    all_is_shown_however_much_comes();
    topics_come_and_go();
    clients_that_are_gone_are_forgotten();
    wr_port_free(&port);
    free(region);
    free(super);
    scratch_end();
    return 0;
}
