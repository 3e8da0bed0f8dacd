/* A queue worker whose memory runs out. Goal: it ends, as by kill -9, or the call says so and does its work when it is called again,
 * or nothing is seen of it; never is a message lost, delivered twice or half counted, and nothing leaks.
 * Method: a scenario of a worker (queues, policies, clients, publishing, deliveries, acks, returns, dead letters, claims, pages, a flush,
 * a purge, and a start from the files that it left), each time with another allocation that fails. */
#include "queues/rig.h"
#include "queues/check.h"
#include "queues/claims.h"
#include "queues/consumers.h"
#include "queues/drop.h"
#include "queues/deaths.h"
#include "queues/levels.h"
#include "queues/registry.h"
#include "queues/segment_codec.h"
#include "queues/spill.h"
#include "kernel/delivery.h"
#include "support/scarce.h"

enum { QUEUES = 60, LIMITED = 1, LETTERS = 2, KEYED = 3, LEVELS = 4, DEEP = 5, CLAIMED = 6, TRANSIENT = 7, PLAIN = 10,
       MESSAGES = 1000, PAGED_ROWS = 6 * WR_CHUNK_ROWS, PAGED = 100, COUNTED = 101, FILES_NAMED = 300 };

static char base[] = "/tmp/warren-queue-memory-XXXXXX";
static char folder[200];
static rig_shape shape = {.file_bytes = 1u << 20, .images_n = 3, .ring_records = 4096, .delivery_slots = 2048, .arena_bytes = 1u << 20,
                          .directory_rows = 1024};

static void remove_files(const char *path) {
    char line[300];
    snprintf(line, sizeof line, "rm -rf '%s'", path);
    if (system(line)) fprintf(stderr, "left behind: %s\n", path);
}

static wr_queue *declare(rig *r, uint32_t id, bool durable) {
    wr_queue *q = wr_queue_declare(r->engine, id, durable);
    if (!q) {
        CHECK(scarce_failed());
        q = wr_queue_declare(r->engine, id, durable);
    }
    CHECK(q && wr_queue_find(r->engine, id) == q);
    return q;
}

static void declare_all(rig *r) {
    for (uint32_t id = 1; id <= QUEUES; id++) declare(r, id, id != TRANSIENT);
    wr_policy_options limited = {.has_max_length = true, .max_length = 20, .dead_letters = LETTERS}, keyed = {.deduplication_ms = 1000000}, levels = {.max_priority = 5};
    wr_policy_set(wr_queue_find(r->engine, LIMITED), &limited);
    wr_policy_set(wr_queue_find(r->engine, KEYED), &keyed);
    wr_policy_set(wr_queue_find(r->engine, LEVELS), &levels);
}

static void serve(rig *r) {
    for (int turns = 0; turns < 3; turns++) {
        wr_queue_run(r->engine, 0, false);
        stores_play(r->engine);
        for (int transient = 0; transient < 2; transient++)
            while (!wr_log_look(rig_log(r, transient))->has_next) CHECK(rig_offer(r, transient));
        journals_commit(r->engine);
    }
    rig_delete_files(r);
}

static void publish(rig *r, peer *p, uint32_t number) {
    static uint8_t body[5000];
    uint32_t ids[] = {PLAIN + number % 10, PLAIN + (number + 1) % 10, DEEP};
    bool keyed = number % 5 == 0, routes = number % 3 == 0, large = number % 50 == 7;
    uint32_t length = large ? 5000 : 40, before = routes ? sizeof ids : 0;
    uint64_t position, sequence;
    uint8_t *at;
    while (wr_port_alloc(&p->port, before + WR_KEY_BYTES + length, &position, &at)) {
        wr_port_submit(&p->port, SERVER);
        serve(r);
    }
    memset(at, 0, before + WR_KEY_BYTES + length);
    if (routes) memcpy(at, ids, sizeof ids);
    if (keyed) memcpy(at + before, &number, 4);
    memcpy(at + before + (keyed ? WR_KEY_BYTES : 0), body, length);
    wr_command *c;
    while (!(c = wr_port_prepare(&p->port, SERVER, &sequence))) {
        wr_port_submit(&p->port, SERVER);
        serve(r);
    }
    CHECK(!SCARCE_AGAIN(wr_port_use(&p->port, SERVER, sequence)));
    c->op = WR_OP_PUBLISH;
    c->flags = WR_FLAG_SYNCED | (number % 4 ? WR_FLAG_PERSISTENT : 0) | (routes ? WR_FLAG_ROUTES : 0) | (keyed ? WR_FLAG_DEDUPLICATE : 0);
    c->body = position;
    c->length = before + (keyed ? WR_KEY_BYTES : 0) + length;
    c->queue = routes ? 3 : 1 + number % TRANSIENT;
    memcpy(c->id, &number, 4);
    c->id[15] = 1;
    c->count = (uint64_t)(number % 7) << WR_PRIORITY_SHIFT;
    c->tag = number % 11 == 0 ? wr_wall_ms() + 1000000 : 0; /* due */
}

static wr_command *command(peer *p, uint8_t op, uint32_t queue, uint64_t tag) {
    uint64_t sequence;
    wr_command *c = wr_port_prepare(&p->port, SERVER, &sequence);
    CHECK(c);
    c->op = op;
    c->queue = queue;
    c->tag = tag;
    return c;
}

/* Takes what was delivered: one in three goes back, one in ten is rejected, the others are acked. */
static uint64_t settle(rig *r, peer *p) {
    wr_link *link = link_of(p);
    uint64_t tail = atomic_load(&link->delivery_tail), acked = 0;
    for (uint64_t head = atomic_load(&link->delivery_head); head < tail; head++) {
        const wr_delivery *d = wr_view_delivery(&p->port.view, SERVER, atomic_load(wr_view_delivery_ring(&p->port.view, SERVER, head)));
        if (atomic_load(&d->state) != WR_DELIVERY_HELD || d->pushed_at != head) continue;
        bool back = d->sequence % 3 == 1 && !d->delivery_count, rejected = d->sequence % 10 == 2;
        wr_command *c = command(p, back || rejected ? WR_OP_NACK : WR_OP_ACK, d->queue, d->sequence);
        c->flags = back ? WR_FLAG_REQUEUE : WR_FLAG_SYNCED;
        acked += !back;
    }
    atomic_store(&link->delivery_head, tail);
    wr_port_submit(&p->port, SERVER);
    serve(r);
    return acked;
}

static void check(rig *r) {
    for (uint32_t id = 1; id <= QUEUES; id++) {
        wr_queue *q = wr_queue_find(r->engine, id);
        wr_queue_check(r->engine, q);
    }
    CHECK(!r->engine->deaths_n && !r->engine->evicted_n);
}

/* The number of messages that wait in each durable queue, as a start finds them. */
static void count(rig *r, uint64_t found[QUEUES + 1]) {
    for (uint32_t id = 1; id <= QUEUES; id++) {
        const wr_queue *q = wr_queue_find(r->engine, id);
        found[id] = 0;
        for (uint64_t s = wr_queue_base(q); s < q->next; s++) {
            const wr_entry *entry = wr_queue_entry((wr_queue *)q, s);
            found[id] += entry && entry->state != WR_ENTRY_GONE && entry->flags & WR_ENTRY_PERSISTENT;
        }
    }
}

/* Messages through a worker, and into the next one. */
static void traffic(uint64_t n) {
    rig *r = rig_regions(&shape), *again = rig_new(&shape);
    peer *a = peer_new(r, 1), *b = peer_new(r, 2);
    scarce_begin(n);
    CHECK(!SCARCE_AGAIN(rig_engine(r)));
    rig_commits_by_hand(r);
    declare_all(r);
    wr_journal_recovered(r->engine, true);
    for (int transient = 0; transient < 2; transient++) CHECK(rig_offer(r, transient));
    CHECK(!SCARCE_AGAIN(peer_attach(r, a)) && !SCARCE_AGAIN(peer_attach(r, b)));
    wr_queue_begin(r->engine, 1);
    for (uint32_t number = 0; number < MESSAGES; number++) {
        publish(r, a, number);
        if (number % 200 == 0) wr_port_submit(&a->port, SERVER), serve(r);
    }
    wr_port_submit(&a->port, SERVER);
    serve(r);
    wr_link *link = link_of(a);
    CHECK(atomic_load(&link->synced) == MESSAGES && atomic_load(&link->head) == MESSAGES);
    check(r);
    uint64_t start, end, published = r->engine->published_n;
    wr_queue *deep = wr_queue_find(r->engine, DEEP), *claimed = wr_queue_find(r->engine, CLAIMED);
    uint64_t there = deep->ready_n;
    CHECK(there > 100);
    CHECK(!SCARCE_AGAIN(wr_journal_move(r->engine, deep, claimed, 100, UINT64_MAX, false, 0, 0, &start, &end)));
    CHECK(end - start == 100 && deep->ready_n == there - 100);
    check(r);
    for (uint32_t id = 1; id <= QUEUES; id++) command(b, WR_OP_CREDIT, id, 1u << 20);
    wr_port_submit(&b->port, SERVER);
    serve(r);
    uint64_t acked = 0;
    for (uint64_t some = 1; some;) acked += some = settle(r, b);
    for (int i = 0; i < 20; i++) acked += settle(r, b);
    check(r);
    for (uint32_t id = 1; id <= QUEUES; id++) {
        wr_queue *q = wr_queue_find(r->engine, id);
        CHECK(!q->ready_n && !q->unacked_n); /* everything came to its consumer, and was settled */
    }
    CHECK(acked > published / 2);
    for (uint32_t number = 0; number < 300; number++) publish(r, a, 4 * number + 1); /* what the next worker finds */
    wr_port_submit(&a->port, SERVER);
    wr_queue_closing(r->engine, 2);
    serve(r);
    CHECK(wr_queue_detach(r->engine, 2));
    serve(r);
    uint64_t before[QUEUES + 1], after[QUEUES + 1];
    count(r, before);
    uint64_t sum = 0;
    for (uint32_t id = 1; id <= QUEUES; id++) sum += before[id];
    CHECK(sum > 200);
    declare_all(again);
    for (uint32_t file = r->engine->files.first; file < r->next_file[0]; file++) {
        uint64_t at = WR_FILE_HEADER_BYTES, frames = 0, salt;
        const char *reason;
        uint8_t *bytes = rig_read(r, 0, file);
        if (file < r->engine->files.first + r->engine->files.n && !wr_file_header_check(bytes, WR_FILE_JOURNAL, RIG_NODE, SERVER, file, &salt)) {
            wr_files_add(&again->engine->files, file);
            int error = wr_journal_replay(again->engine, bytes, shape.file_bytes, file, salt, &at, &frames, &reason);
            if (error == ENOMEM) scarce_said(); /* the start ends with it */
            CHECK(!error);
        }
        free(bytes);
    }
    wr_journal_recovered(again->engine, true);
    count(again, after);
    CHECK(!memcmp(before, after, sizeof before));
    peer_free(a);
    peer_free(b);
    rig_free(r);
    rig_free(again);
}

/* A backlog that leaves memory and comes back, is purged and dropped. */
static void pages(uint64_t n) {
    rig_shape in_folder = shape;
    in_folder.directory_rows = 0;
    snprintf(folder, sizeof folder, "%s/XXXXXX", base);
    CHECK(in_folder.folder = mkdtemp(folder));
    rig *r = rig_new(&in_folder);
    wr_queue_engine *e = r->engine;
    e->recovering = false;
    scarce_begin(n);
    CHECK(!SCARCE_AGAIN(rig_open_pages(r, 2 * sizeof(wr_rows))));
    wr_files_add(&e->files, 1);
    wr_files_add(&e->transient_files, 1);
    wr_queue *q = declare(r, PAGED, true);
    for (uint64_t s = 0; s < PAGED_ROWS; s++) {
        wr_entry entry = {.file = 1, .offset = (uint32_t)s, .frame_length = 100, .body_length = 10, .index_file = 1,
                          .location = s % 5 ? WR_LOCATION_JOURNAL : WR_LOCATION_JOURNAL_TRANSIENT, .flags = s % 5 ? WR_ENTRY_PERSISTENT : 0,
                          .delivery_count = s % 7 == 0};
        memcpy(entry.id, &s, 8);
        CHECK(!SCARCE_AGAIN(wr_queue_room(e, q, s)));
        wr_queue_insert(e, q, s, &entry);
    }
    rig_flush(r, 1);
    for (int i = 0; i < 3; i++) {
        wr_pages_trim(e, UINT64_MAX);
        wr_queue_check(e, q);
    }
    CHECK(q->paged_n || scarce_failed());
    for (uint64_t s = 0; s < PAGED_ROWS; s++) {
        wr_entry *entry = wr_queue_entry(q, s);
        CHECK(entry && entry->offset == s && !memcmp(entry->id, &s, 8) && entry->delivery_count == (s % 7 == 0));
        CHECK(entry->location == (s % 5 ? WR_LOCATION_SEGMENT : WR_LOCATION_JOURNAL_TRANSIENT));
        if (s % 2) wr_queue_remove_entry(e, q, s, entry, true, false);
        if (s % 1000 == 0) wr_pages_trim(e, UINT64_MAX);
    }
    wr_queue_check(e, q);
    CHECK(q->ready_n == PAGED_ROWS / 2);
    CHECK(wr_queue_purge(e, q, UINT64_MAX, true) == PAGED_ROWS / 2);
    CHECK(!q->ready_n && !e->entries_n && !e->bytes && !e->paged_n && !e->spill.slots_n);
    wr_queue_drop(e, q);
    rig_free(r);
    remove_files(folder);
}

/* Entries in more data files than a table holds without growing, then a flush that names still more: a data file is counted,
 * or it would be taken for one that nobody needs. */
static void data_files(uint64_t n) {
    rig *r = rig_new(&shape);
    wr_queue_engine *e = r->engine;
    static wr_segment_row rows[FILES_NAMED];
    scarce_begin(n);
    wr_files_add(&e->files, 1);
    wr_queue *q = declare(r, COUNTED, true);
    for (uint64_t s = 0; s < 2 * FILES_NAMED; s++) {
        CHECK(!SCARCE_AGAIN(wr_queue_room(e, q, s)));
        bool segment = s < FILES_NAMED;
        wr_entry entry = {.location = segment ? WR_LOCATION_SEGMENT : WR_LOCATION_JOURNAL, .file = segment ? (uint32_t)s + 10 : 1,
                          .index_file = segment ? WR_IN_SEGMENT : 1, .flags = WR_ENTRY_PERSISTENT};
        wr_queue_insert(e, q, s, &entry);
        if (segment) continue;
        entry.location = WR_LOCATION_SEGMENT;
        entry.file = (uint32_t)s + 10;
        rows[s - FILES_NAMED] = (wr_segment_row){.queue = q->id, .location = WR_LOCATION_SEGMENT, .sequence = s, .entry = entry};
    }
    CHECK(wr_segment_flushed(e, 1, rows, FILES_NAMED) == FILES_NAMED);
    for (uint32_t file = 10; file < 10 + 2 * FILES_NAMED; file++) {
        uint64_t *live = wr_map_find(&e->data_files, file, 0);
        CHECK(live && *live == 1);
    }
    rig_free(r);
}

int main(void) {
    CHECK(mkdtemp(base));
    void (*scenarios[])(uint64_t) = {pages, data_files, traffic};
    for (int i = 0; i < 3; i++) {
        scarce_count found = scarce_each(scenarios[i], SCARCE_FEW);
        printf("queue_memory_test: ended %u, said %u, unhurt %u\n", found.ended, found.said, found.unhurt);
        CHECK(found.ended);
    }
    remove_files(base);
    return 0;
}
