/* The queue worker's engine with client, worker and committers as threads of one process (for ASan and TSan), and its speed.
 *
 * Goal: every message published is delivered once and in order, acks empty the queue, the journal replays to what was left;
 * a hostile client loses its link and nobody else anything; rows that left memory come back as they were, and leave earlier under
 * pressure. Method: a wr_port plays the clients.
 *
 *   queue_test                          the checks; exits 0
 *   queue_test bench SIZE MESSAGES SYNC prints messages a second for publish + deliver + ack
 */
#define _GNU_SOURCE
#include "kernel/delivery.h"
#include "queues/rig.h"
#include "queues/check.h"
#include "queues/claims.h"
#include "queues/consumers.h"
#include "queues/drop.h"
#include "queues/engine.h"
#include "queues/entries.h"
#include "queues/flush.h"
#include "queues/journal.h"
#include "queues/links.h"
#include "queues/loop.h"
#include "queues/owed.h"
#include "queues/pages.h"
#include "queues/registry.h"
#include "queues/replay.h"
#include "queues/rows.h"
#include "queues/segment_codec.h"
#include "queues/segments.h"
#include "queues/spill.h"
#include "queues/statistics.h"
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static char folder[] = "/tmp/warren-queue-test-XXXXXX";
static rig_shape shape = {.file_bytes = 16u << 20, .images_n = 4, .ring_records = 8192, .delivery_slots = 4096, .arena_bytes = 8u << 20,
                          .spin_ns = 50000, .folder = folder};

static void nap(peer *p) {
    _Atomic uint32_t *word = &p->port.view.client->waiting;
    atomic_store(word, 1);
    wr_futex_wait(word, 1, 1000000);
    atomic_store(word, 0);
}

static bool try_publish(peer *p, uint32_t queue, const uint8_t *body, uint32_t length, uint8_t flags, uint64_t number) {
    uint64_t position, sequence;
    uint8_t *at;
    if (wr_port_alloc(&p->port, length, &position, &at)) return false;
    wr_command *c = wr_port_prepare(&p->port, SERVER, &sequence);
    if (!c) return false;
    memcpy(at, body, length);
    c->op = WR_OP_PUBLISH;
    c->flags = flags;
    memcpy(c->id, &number, 8);
    c->id[15] = (uint8_t)p->slot;
    c->body = position;
    c->length = length;
    c->queue = queue;
    assert(wr_port_use(&p->port, SERVER, sequence) == 0);
    return true;
}

static void plain(peer *p, uint8_t op, uint32_t queue, uint64_t tag, uint64_t count, uint8_t flags) {
    uint64_t sequence;
    wr_command *c;
    while (!(c = wr_port_prepare(&p->port, SERVER, &sequence))) nap(p);
    c->op = op;
    c->flags = flags;
    c->queue = queue;
    c->tag = tag;
    c->count = count;
    wr_port_submit(&p->port, SERVER);
}

typedef struct {
    rig *r;
    peer *p;
    uint64_t n;
    uint32_t size, queue;
    uint8_t flags;
} work;

static void *producer(void *arg) {
    work *w = arg;
    uint8_t *body = malloc(w->size);
    memset(body, 7, w->size);
    for (uint64_t i = 0; i < w->n;) {
        uint64_t until = i + 256 < w->n ? i + 256 : w->n;
        for (; i < until; i++) {
            memcpy(body, &i, 8);
            while (!try_publish(w->p, w->queue, body, w->size, w->flags, i)) {
                wr_port_submit(&w->p->port, SERVER);
                nap(w->p);
            }
        }
        wr_port_submit(&w->p->port, SERVER);
    }
    while (atomic_load_explicit(&link_of(w->p)->synced, memory_order_acquire) < w->n) nap(w->p);
    free(body);
    return NULL;
}

/* Takes everything, checks order and bytes from the image (or its disappearance), acks in batches. */
static void *consumer(void *arg) {
    work *w = arg;
    peer *p = w->p;
    wr_link *link = link_of(p);
    plain(p, WR_OP_CREDIT, w->queue, 0, 2048, 0);
    uint64_t got = 0, unread = 0;
    uint8_t *frame = malloc(w->size + 256);
    while (got < w->n) {
        uint64_t tail = atomic_load_explicit(&link->delivery_tail, memory_order_acquire);
        uint64_t head = atomic_load_explicit(&link->delivery_head, memory_order_relaxed);
        if (head == tail) {
            nap(p);
            continue;
        }
        uint64_t last = 0;
        for (; head < tail; head++) {
            uint32_t slot = atomic_load_explicit(wr_view_delivery_ring(&p->port.view, SERVER, head), memory_order_relaxed);
            const wr_delivery *d = wr_view_delivery(&p->port.view, SERVER, slot);
            assert(atomic_load_explicit(&d->state, memory_order_acquire) == WR_DELIVERY_HELD);
            assert(d->pushed_at == head && d->sequence == got && d->body_length == w->size);
            const uint8_t *images = wr_delivery_location(d) == WR_LOCATION_JOURNAL ? w->r->images[0] : w->r->images[1];
            if (wr_image_read(images, shape.images_n, shape.file_bytes, d->file, d->offset, frame, d->frame_length)) {
                uint64_t number;
                memcpy(&number, frame + d->blob_offset, 8);
                assert(number == got);
            } else {
                unread++;
            }
            last = d->sequence;
            got++;
        }
        atomic_store_explicit(&link->delivery_head, tail, memory_order_release);
        plain(p, WR_OP_ACK, w->queue, last, 0, WR_FLAG_MULTIPLE);
    }
    while (atomic_load_explicit(&link->head, memory_order_acquire) < atomic_load(&link->tail)) nap(p);
    free(frame);
    return unread ? (void *)1 : NULL;
}

static double pump(rig *r, uint64_t n, uint32_t size, uint8_t flags) {
    peer *a = peer_new(r, 1), *b = peer_new(r, 2);
    assert(peer_attach(r, a) == 0);
    assert(peer_attach(r, b) == 0);
    rig_start(r);
    work publish = {r, a, n, size, 1, flags}, take = {r, b, n, size, 1, 0};
    pthread_t threads[2];
    uint64_t began = wr_now_ns();
    pthread_create(&threads[0], NULL, producer, &publish);
    pthread_create(&threads[1], NULL, consumer, &take);
    pthread_join(threads[0], NULL);
    pthread_join(threads[1], NULL);
    double seconds = (double)(wr_now_ns() - began) / 1e9;
    rig_stop(r);
    assert(r->engine->entries_n == 0);
    assert(r->engine->published_n == n && r->engine->acked_n == n);
    peer_free(a);
    peer_free(b);
    return seconds;
}

static void check_order(void) {
    rig *r = rig_new(&shape);
    assert(wr_queue_declare(r->engine, 1, true));
    pump(r, 30000, 100, WR_FLAG_PERSISTENT | WR_FLAG_SYNCED);
    rig_free(r);
    r = rig_new(&shape);
    assert(wr_queue_declare(r->engine, 1, false));
    pump(r, 30000, 100, 0);
    rig_free(r);
}

/* What was published and not acked comes back from the file; what was acked does not. */
static void check_replay(void) {
    rig *r = rig_new(&shape);
    assert(wr_queue_declare(r->engine, 1, true));
    peer *a = peer_new(r, 1), *b = peer_new(r, 2);
    assert(peer_attach(r, a) == 0);
    assert(peer_attach(r, b) == 0);
    rig_start(r);
    work publish = {r, a, 3000, 64, 1, WR_FLAG_PERSISTENT | WR_FLAG_SYNCED};
    producer(&publish);
    plain(b, WR_OP_CREDIT, 1, 1000, 0, 0);
    while (atomic_load(&link_of(b)->delivery_tail) < 1000) nap(b);
    plain(b, WR_OP_ACK, 1, 499, 0, WR_FLAG_MULTIPLE | WR_FLAG_SYNCED);
    while (atomic_load(&link_of(b)->synced) < 2) nap(b);
    rig_stop(r);
    uint8_t *bytes = rig_read(r, 0, 0);
    rig *again = rig_new(&shape);
    assert(wr_queue_declare(again->engine, 1, true));
    uint64_t at = WR_FILE_HEADER_BYTES, frames = 0, salt;
    const char *reason;
    assert(!wr_file_header_check(bytes, WR_FILE_JOURNAL, 7, SERVER, 0, &salt));
    wr_files_add(&again->engine->files, 0);
    assert(wr_journal_replay(again->engine, bytes, shape.file_bytes, 0, salt, &at, &frames, &reason) == 0);
    wr_queue *q = wr_queue_find(again->engine, 1);
    assert(q->ready_n == 2500 && q->next == 3000 && wr_queue_base(q) == 500);
    assert(*wr_map_find(&again->engine->high, 101, 0) == 3000);
    /* the consumer's slots say that it holds 500 … 999; the producer's ring says nothing new */
    assert(peer_attach(again, b) == 0);
    assert(q->unacked_n == 500 && q->ready_n == 2000);
    wr_queue_closing(again->engine, 2);
    again->next_file[0] = 1;
    rig_start(again);
    /* the dead consumer's go back, in order, and its link ends */
    for (bool there = true; there; wr_cpu_relax()) there = atomic_load(&again->engine->me->messages) != 2500;
    rig_stop(again);
    for (int i = 0; i < 1000 && q->unacked_n; i++) wr_queue_run(again->engine, 0, false);
    assert(q->unacked_n == 0 && q->ready_n == 2500 && q->ready_from <= 500);
    free(bytes);
    peer_free(a);
    peer_free(b);
    rig_free(r);
    rig_free(again);
}

/* Frames that are missing cost a queue what it says, and messages whose bodies are missing go. Goal: behind a gap the sequences that are
 * skipped are counted once, and nothing else is; of a data file that was cut exactly the messages behind the cut go, of every queue.
 * Method: a journal is replayed without some of its frames; segments are loaded whose bodies lie in two data files. */
#define LOST_N 200u
#define LOST_FIRST 50u
#define LOST_COUNT 30u

static uint64_t replay_without(wr_queue_engine *e, const uint8_t *bytes, uint64_t salt, bool told) {
    uint64_t at = WR_FILE_HEADER_BYTES, published = 0, frames = 0;
    const char *reason;
    wr_frame_head head;
    for (uint64_t total; at < shape.file_bytes && (total = wr_frame_check(bytes, shape.file_bytes, at, salt, &head, &reason)); at += total) {
        bool skipped = head.kind == WR_KIND_PUBLISH && published >= LOST_FIRST && published < LOST_FIRST + LOST_COUNT;
        published += head.kind == WR_KIND_PUBLISH;
        if (skipped && told) wr_journal_gap(e);
        uint64_t from = at;
        if (!skipped) assert(wr_journal_replay(e, bytes, at + total, 0, salt, &from, &frames, &reason) == 0 && from == at + total);
    }
    return published;
}

static void check_gap(void) {
    rig *r = rig_new(&shape);
    assert(wr_queue_declare(r->engine, 1, true));
    peer *a = peer_new(r, 1);
    assert(peer_attach(r, a) == 0);
    rig_start(r);
    work publish = {r, a, LOST_N, 64, 1, WR_FLAG_PERSISTENT | WR_FLAG_SYNCED};
    producer(&publish);
    while (atomic_load(&link_of(a)->synced) < LOST_N) nap(a);
    rig_stop(r);
    uint8_t *bytes = rig_read(r, 0, 0);
    uint64_t salt;
    assert(!wr_file_header_check(bytes, WR_FILE_JOURNAL, 7, SERVER, 0, &salt));
    for (int told = 0; told < 2; told++) {
        rig *again = rig_new(&shape);
        assert(wr_queue_declare(again->engine, 1, true) && wr_queue_declare(again->engine, 2, true));
        wr_files_add(&again->engine->files, 0);
        assert(replay_without(again->engine, bytes, salt, told) == LOST_N);
        wr_queue *q = wr_queue_find(again->engine, 1);
        assert(q->next == LOST_N && q->ready_n == LOST_N - LOST_COUNT && !q->gap);
        assert(q->lost_n == (told ? LOST_COUNT : 0));
        q = wr_queue_find(again->engine, 2);
        assert(q->lost_n == 0 && q->gap == (bool)told); /* nothing was heard of it since */
        rig_free(again);
    }
    free(bytes);
    peer_free(a);
    rig_free(r);
}

static void check_drop_lost(void) {
    rig *r = rig_new(&shape);
    wr_queue_engine *e = r->engine;
    static uint8_t entries[LOST_N * WR_QUEUE_SEGMENT_ENTRY_SIZE];
    static wr_segment_row rows[LOST_N];
    for (uint32_t id = 1; id <= 2; id++) {
        for (uint32_t i = 0; i < LOST_N; i++) /* every other one in another data file */
            rows[i] = (wr_segment_row){.queue = id,
                                       .location = WR_LOCATION_SEGMENT,
                                       .sequence = i,
                                       .entry = {.file = 5 + i % 2,
                                                 .offset = WR_FILE_HEADER_BYTES + 100 * i,
                                                 .frame_length = 100,
                                                 .body_length = 10,
                                                 .blob_offset = WR_FRAME_HEAD_BYTES,
                                                 .location = WR_LOCATION_SEGMENT,
                                                 .state = WR_ENTRY_READY}};
        wr_segment_encode_rows(entries, rows, LOST_N, 77);
        wr_queue *q = wr_queue_declare(e, id, true);
        uint64_t live = 0, bad = 0;
        assert(q && wr_segment_load(e, q, 0, entries, sizeof entries, 77, &live, &bad) == 0 && live == LOST_N && !bad);
    }
    /* the file ends in the middle of the frame of message 100: that and 102, 104, … of each queue are gone */
    assert(wr_segment_drop_lost(e, 5, WR_FILE_HEADER_BYTES + 100 * 100 + 99) == 2 * (LOST_N - 100) / 2);
    for (uint32_t id = 1; id <= 2; id++) {
        wr_queue *q = wr_queue_find(e, id);
        assert(q->lost_n == (LOST_N - 100) / 2 && q->ready_n == LOST_N - q->lost_n);
        for (uint32_t i = 0; i < LOST_N; i++) {
            wr_entry *entry = wr_queue_entry(q, i);
            assert((entry && entry->state != WR_ENTRY_GONE) == (i % 2 || i < 100));
        }
    }
    assert(wr_segment_drop_lost(e, 5, WR_FILE_HEADER_BYTES + 100 * 100) == 0); /* once */
    assert(wr_segment_drop_lost(e, 6, 0) == LOST_N);                          /* all of the other file, of both */
    rig_free(r);
}

/* Plain publishes are executed in stretches; what stands between them, or goes to other queues, ends one. Goal: every queue has what
 * was sent to it, in that order and with its own length, in memory and after a replay of the files. Method: runs of random lengths to one
 * queue, to several in one worker, to one twice, to a transient one, with a time of expiry and with a body for no queue; over several
 * chunks and files; beside it a list of what each queue must hold. */
#define STRETCH_QUEUES 4 /* 1 to 3 durable, 4 transient */
#define STRETCH_N 12000u

typedef struct {
    uint64_t number[STRETCH_QUEUES + 1][STRETCH_N];
    uint32_t n[STRETCH_QUEUES + 1];
} held_by_queues;

static uint32_t length_of(uint64_t number) { return 8 + (uint32_t)(number * 2654435761u >> 8) % 300; }

static void publish_to(peer *p, const uint32_t *ids, uint32_t ids_n, uint64_t number, uint64_t expires) {
    static const uint8_t body[512];
    uint8_t blob[600];
    uint32_t routes = ids_n == 1 ? 0 : 4 * ids_n;
    memcpy(blob, ids, routes);
    memcpy(blob + routes, body, length_of(number));
    uint8_t flags = WR_FLAG_PERSISTENT | WR_FLAG_SYNCED | (routes ? WR_FLAG_ROUTES : 0);
    while (!try_publish(p, routes ? ids_n : ids[0], blob, routes + length_of(number), flags, number)) {
        wr_port_submit(&p->port, SERVER);
        nap(p);
    }
    wr_view_command(&p->port.view, SERVER, p->port.prepared[SERVER] - 1)->count = expires;
}

static void check_held(wr_queue_engine *e, const held_by_queues *h, uint32_t queues_n) {
    for (uint32_t id = 1; id <= queues_n; id++) {
        wr_queue *q = wr_queue_find(e, id);
        assert(q->ready_n == h->n[id] && q->next == h->n[id] && q->ready_from == 0);
        wr_queue_check(e, q);
        for (uint32_t i = 0; i < h->n[id]; i++) {
            const wr_entry *entry = wr_queue_entry(q, i);
            assert(!memcmp(entry->id, &h->number[id][i], 8) && entry->body_length == length_of(h->number[id][i]));
            assert(entry->flags & WR_ENTRY_PERSISTENT ? id != 4 : id == 4);
        }
    }
}

static void check_stretches(void) {
    static held_by_queues h;
    static const uint32_t routes[][3] = {{1}, {2}, {1, 2, 3}, {2, 3}, {3, 3, 1}, {4}, {1, 4, 2}, {9}};
    static const uint32_t routes_n[] = {1, 1, 3, 2, 3, 1, 3, 1};
    shape.file_bytes = 1u << 20;
    rig *r = rig_new(&shape);
    for (uint32_t id = 1; id <= STRETCH_QUEUES; id++) assert(wr_queue_declare(r->engine, id, id != 4));
    peer *a = peer_new(r, 1);
    assert(peer_attach(r, a) == 0);
    rig_start(r);
    uint32_t random = 12345, kind = 0, left = 0, last = 0;
    memset(&h, 0, sizeof h);
    for (uint64_t number = 0; number < STRETCH_N; number++) {
        if (!left--) {
            random = random * 1103515245 + 12345;
            kind = random >> 16 & 7;
            left = random >> 20 & 63;
        }
        bool timed = number % 97 == 0;
        publish_to(a, routes[kind], routes_n[kind], number, timed ? wr_wall_ms() + 1000000 : 0);
        for (uint32_t i = 0; i < routes_n[kind]; i++) {
            uint32_t id = routes[kind][i];
            bool twice = (i && routes[kind][0] == id) || (i > 1 && routes[kind][1] == id);
            if (id <= STRETCH_QUEUES && !twice) h.number[id][h.n[id]++] = number;
        }
        if (number % 512 == 0) wr_port_submit(&a->port, SERVER);
        last = (uint32_t)number;
    }
    wr_port_submit(&a->port, SERVER);
    while (atomic_load_explicit(&link_of(a)->synced, memory_order_acquire) <= last) nap(a);
    rig_stop(r);
    check_held(r->engine, &h, STRETCH_QUEUES);
    assert(r->engine->files.n > 2);
    rig *again = rig_new(&shape);
    for (uint32_t id = 1; id < STRETCH_QUEUES; id++) assert(wr_queue_declare(again->engine, id, true));
    for (uint32_t file = 0; file < r->engine->files.n; file++) {
        uint8_t *bytes = rig_read(r, 0, file);
        uint64_t at = WR_FILE_HEADER_BYTES, frames = 0, salt;
        const char *reason;
        assert(!wr_file_header_check(bytes, WR_FILE_JOURNAL, 7, SERVER, file, &salt));
        wr_files_add(&again->engine->files, file);
        assert(wr_journal_replay(again->engine, bytes, shape.file_bytes, file, salt, &at, &frames, &reason) == 0);
        free(bytes);
    }
    check_held(again->engine, &h, STRETCH_QUEUES - 1);
    peer_free(a);
    rig_free(r);
    rig_free(again);
    shape.file_bytes = 16u << 20;
}

static void check_hostile(void) {
    rig *r = rig_new(&shape);
    assert(wr_queue_declare(r->engine, 1, true));
    peer *good = peer_new(r, 1), *bad = peer_new(r, 2), *worse = peer_new(r, 3), *worst = peer_new(r, 4);
    peer *all[] = {good, bad, worse, worst};
    for (int i = 0; i < 4; i++) assert(wr_queue_attach(r->engine, all[i]->slot, 1, 100, all[i]->region, all[i]->bytes) == 0);
    rig_start(r);
    plain(bad, 99, 1, 0, 0, 0);
    uint64_t sequence;
    wr_command *c = wr_port_prepare(&worse->port, SERVER, &sequence);
    c->op = WR_OP_PUBLISH;
    c->body = worse->port.view.g.arena_bytes - 4;
    c->length = 100;
    c->queue = 1;
    wr_port_submit(&worse->port, SERVER);
    atomic_store(&link_of(worst)->tail, UINT64_MAX / 2);
    wr_bell_ring(&r->engine->me->sleeping);
    for (int i = 1; i < 4; i++)
        while (!atomic_load(&link_of(all[i])->evicted)) nap(all[i]);
    work publish = {r, good, 1000, 64, 1, WR_FLAG_PERSISTENT | WR_FLAG_SYNCED};
    producer(&publish);
    rig_stop(r);
    assert(r->engine->entries_n == 1000 && r->engine->evicted_n == 3);
    for (int i = 0; i < 4; i++) peer_free(all[i]);
    rig_free(r);
}

static void check_map(void) {
    wr_map m = {0};
    for (uint64_t i = 0; i < 5000; i++) *wr_map_put(&m, i % 1000, i) = i;
    for (uint64_t i = 0; i < 5000; i += 3) assert(wr_map_remove(&m, i % 1000, i));
    for (uint64_t i = 0; i < 5000; i++) {
        uint64_t *v = wr_map_find(&m, i % 1000, i);
        assert(i % 3 ? v && *v == i : v == NULL);
    }
    assert(m.n == 5000 - 1667);
    for (uint64_t i = 0; i < 100000; i++) *wr_map_put(&m, i, 1000000) = i;
    uint64_t most = m.size;
    for (uint64_t i = 0; i < 100000; i++) {
        if (i % 1000 == 7) continue;
        assert(wr_map_remove(&m, i, 1000000));
        wr_map_shrink(&m);
    }
    assert(m.n == 3333 + 100 && m.size <= 32 * m.n && m.size >= 2 * m.n && m.size < most);
    for (uint64_t i = 0; i < 100000; i++) assert(!wr_map_find(&m, i, 1000000) == (i % 1000 != 7));
    for (uint64_t i = 1; i < 5000; i++) assert(!wr_map_find(&m, i % 1000, i) == (i % 3 == 0));
    wr_map_free(&m);
}

/* ---- pages ---- */

#define PAGED_ROWS 20000ull

/* A queue whose rows lie in segments, and nearly all of them out of memory; no thread, no client. */
static wr_queue *paged_queue(rig *r, uint32_t id, uint64_t rows) {
    wr_queue_engine *e = r->engine;
    assert(!rig_open_pages(r, 3 * sizeof(wr_rows)));
    wr_queue *q = wr_queue_declare(e, id, true);
    wr_files_add(&e->files, 1);
    rig_fill(r, q, rows, 0);
    wr_pages_trim(e, 0);
    assert(q->paged_n == 0 && wr_rows_bytes(e) > e->memory_bytes); /* the journal alone knows them */
    wr_queue_check(e, q);
    rig_flush(r, 1);
    wr_pages_trim(e, 0);
    wr_queue_check(e, q);
    assert(wr_rows_bytes(e) <= e->memory_bytes && q->paged_n >= rows - 3 * WR_CHUNK_ROWS && q->ready_n == rows && q->bytes == 10 * rows);
    return q;
}

static void check_row(wr_queue *q, uint64_t sequence) {
    const wr_entry *entry = wr_queue_entry(q, sequence);
    assert(entry && entry->state == WR_ENTRY_READY && entry->offset == sequence && entry->location == WR_LOCATION_SEGMENT);
    assert(!memcmp(entry->id, &sequence, 8));
}

static void check_pages(void) {
    rig *r = rig_new(&shape);
    wr_queue_engine *e = r->engine;
    e->recovering = false;
    wr_queue *q = paged_queue(r, 1, PAGED_ROWS);
    /* any row comes back as it was, and its chunk may leave again; memory stays near its limit */
    uint64_t random = 12345;
    for (int i = 0; i < 2000; i++) {
        random = random * 6364136223846793005ull + 1442695040888963407ull;
        check_row(q, (random >> 33) % PAGED_ROWS);
        wr_pages_trim(e, UINT64_MAX);
        assert(wr_rows_bytes(e) <= e->memory_bytes + sizeof(wr_rows));
    }
    wr_queue_check(e, q);
    /* rows go, every third; their entries stay on disk; marks and counts are kept */
    for (uint64_t s = 0; s < PAGED_ROWS; s++) {
        wr_entry *entry = wr_queue_entry(q, s);
        if (s % 3 == 0) {
            wr_queue_remove_entry(e, q, s, entry, true, false);
        } else if (s % 3 == 1) {
            entry->flags |= WR_ENTRY_REDELIVERED;
            entry->delivery_count = (uint16_t)(s % 7);
        }
        if (s % 500 == 0) wr_pages_trim(e, UINT64_MAX);
    }
    wr_queue_check(e, q);
    for (uint64_t number = 0; number <= PAGED_ROWS / WR_CHUNK_ROWS; number++) wr_page_out(e, q, number);
    assert(wr_queue_base(q) == 1);
    wr_queue_check(e, q);
    for (uint64_t s = 0; s < PAGED_ROWS; s++) {
        const wr_entry *entry = wr_queue_entry(q, s);
        assert(!entry == (s % 3 == 0));
        if (!entry) continue;
        assert(entry->delivery_count == (s % 3 == 1 ? s % 7 : 0) && !(entry->flags & WR_ENTRY_REDELIVERED) == (s % 3 != 1));
        if (s % 500 == 0) wr_pages_trim(e, UINT64_MAX);
    }
    /* ranges of acks, merged; not so those of a MOVE */
    assert(e->segment_acks_n == (PAGED_ROWS + 2) / 3 && e->segment_acks[0].count == 1);
    wr_segment_ack_note(e, q, 50, 1, true);
    wr_segment_ack_note(e, q, 51, 1, true);
    wr_segment_ack_note(e, q, 52, 1, false);
    wr_segment_ack_note(e, q, 53, 1, false);
    const wr_segment_ack *last = &e->segment_acks[e->segment_acks_n - 1];
    assert(last->first == 52 && last->count == 2 && last[-1].first == 50 && last[-1].count == 2 && last[-1].token == UINT64_MAX);
    /* claims out of pages, all of them, and a purge of what is left */
    r->next_file[0] = 2;
    assert(rig_offer(r, 0));
    wr_queue *to = wr_queue_declare(e, 2, true);
    uint64_t start, end, moved = 0;
    assert(wr_journal_move(e, q, to, 5000, UINT64_MAX, false, 0, 0, &start, &end) == 0 && end - start == 5000);
    wr_queue_check(e, q);
    wr_queue_check(e, to);
    assert(!memcmp(wr_queue_entry(to, 0)->id, "\1\0\0\0\0\0\0\0", 8));
    moved = end;
    assert(wr_queue_purge(e, q, UINT64_MAX, true) == PAGED_ROWS - (PAGED_ROWS + 2) / 3 - moved);
    wr_queue_check(e, q);
    assert(q->ready_n == 0 && q->paged_n == 0 && e->entries_n == moved);
    wr_queue_drop(e, to);
    assert(e->entries_n == 0 && e->paged_n == 0 && e->bytes == 0);
    rig_free(r);
}

/* A consumer takes a paged backlog in order, gives some back, and gets these first. */
static void check_paged_delivery(void) {
    rig *r = rig_new(&shape);
    wr_queue_engine *e = r->engine;
    wr_queue *q = paged_queue(r, 3, PAGED_ROWS);
    r->next_file[0] = 2;
    peer *p = peer_new(r, 1);
    assert(peer_attach(r, p) == 0);
    rig_start(r);
    wr_link *link = link_of(p);
    plain(p, WR_OP_CREDIT, 3, 0, 1500, 0);
    uint64_t expected = 0, returned = 0;
    while (expected < PAGED_ROWS) {
        uint64_t tail = atomic_load_explicit(&link->delivery_tail, memory_order_acquire);
        uint64_t head = atomic_load_explicit(&link->delivery_head, memory_order_relaxed);
        if (head == tail) {
            nap(p);
            continue;
        }
        uint64_t first = UINT64_MAX, last = 0;
        for (; head < tail; head++) {
            uint32_t slot = atomic_load_explicit(wr_view_delivery_ring(&p->port.view, SERVER, head), memory_order_relaxed);
            const wr_delivery *d = wr_view_delivery(&p->port.view, SERVER, slot);
            if (atomic_load_explicit(&d->state, memory_order_acquire) != WR_DELIVERY_HELD || d->pushed_at != head) continue;
            if (d->sequence != expected) continue; /* delivered behind one that went back */
            if (first == UINT64_MAX) first = expected;
            last = expected++;
        }
        atomic_store_explicit(&link->delivery_head, tail, memory_order_release);
        if (first == UINT64_MAX) continue;
        if (returned < 5 && last - first > 10) {
            returned++;
            expected = first; /* all that it holds goes back */
            plain(p, WR_OP_NACK, 3, UINT64_MAX, 0, WR_FLAG_MULTIPLE | WR_FLAG_REQUEUE);
        } else {
            plain(p, WR_OP_ACK, 3, last, 0, WR_FLAG_MULTIPLE);
        }
    }
    while (atomic_load_explicit(&link->head, memory_order_acquire) < atomic_load(&link->tail)) nap(p);
    rig_stop(r);
    wr_queue_check(e, q);
    assert(returned == 5 && e->page_ins_n >= PAGED_ROWS / WR_CHUNK_ROWS - 4);
    assert(e->entries_n == 0 && e->paged_n == 0);
    peer_free(p);
    rig_free(r);
}

/* A scratch file of slots: what was put comes back, slots are used again, and the last one to go takes the file's bytes with it. */
static void check_spill(void) {
    char path[128];
    snprintf(path, sizeof path, "%s/slots", folder);
    wr_spill s;
    uint8_t bytes[512], found[512];
    uint32_t slots[200], again;
    struct stat there;
    const int fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);
    assert(fd >= 0);
    wr_spill_open(&s, fd, sizeof bytes);
    for (uint32_t i = 0; i < 200; i++) {
        memset(bytes, (int)i, sizeof bytes);
        assert(wr_spill_put(&s, bytes, &slots[i]) == 0 && slots[i] == i);
    }
    wr_spill_drop(&s, slots[70]);
    wr_spill_drop(&s, slots[7]);
    memset(bytes, 250, sizeof bytes);
    assert(wr_spill_put(&s, bytes, &again) == 0 && again == 7);
    for (uint32_t i = 0; i < 200; i++) {
        memset(bytes, i == 7 ? 250 : (int)i, sizeof bytes);
        assert(wr_spill_get(&s, slots[i], found) == 0 && !memcmp(bytes, found, sizeof bytes));
        if (i != 70) wr_spill_drop(&s, slots[i]);
    }
    assert(stat(path, &there) == 0 && there.st_size == 0 && s.slots_n == 0);
    assert(wr_spill_put(&s, bytes, &again) == 0 && again == 0);
    assert(ftruncate(s.fd, 100) == 0);
    assert(wr_spill_get(&s, again, found) == 0 && found[0] == bytes[0] && found[100] == 0);
    /* no room on the disk: nothing was taken */
    close(s.fd);
    s.fd = open("/dev/full", O_RDWR);
    assert(s.fd >= 0 && wr_spill_put(&s, bytes, &again) == ENOSPC && s.slots_n == 1 && s.free_n == 0);
    wr_spill_close(&s);
    assert(wr_spill_put(&s, bytes, &again) == EBADF);
}

/* Transient rows leave memory too, alone and among persistent ones, and come back as they were. */
static void check_transient_pages(void) {
    rig *r = rig_new(&shape);
    wr_queue_engine *e = r->engine;
    e->recovering = false;
    assert(!rig_open_pages(r, 3 * sizeof(wr_rows)));
    wr_files_add(&e->files, 1);
    wr_files_add(&e->transient_files, 1);
    wr_queue *q = wr_queue_declare(e, 20, false), *mixed = wr_queue_declare(e, 21, true);
    rig_fill(r, q, PAGED_ROWS, 1);
    wr_pages_trim(e, 0);
    wr_queue_check(e, q);
    assert(wr_rows_bytes(e) <= e->memory_bytes && q->paged_n == q->spilled_n && q->paged_n >= PAGED_ROWS - 3 * WR_CHUNK_ROWS);
    uint64_t alpha, beta, gamma, delta;
    wr_queue_states(q, &alpha, &beta, &gamma, &delta);
    assert(gamma == 0 && delta == q->paged_n && alpha + beta == PAGED_ROWS - delta);
    /* one in three is transient: the chunk stays until the others are in segments, too */
    rig_fill(r, mixed, PAGED_ROWS, 3);
    wr_pages_trim(e, UINT64_MAX);
    assert(mixed->paged_n == 0);
    rig_flush(r, 1);
    wr_pages_trim(e, UINT64_MAX);
    wr_queue_check(e, mixed);
    assert(wr_rows_bytes(e) <= 6 * sizeof(wr_rows) && mixed->paged_n >= PAGED_ROWS - 3 * WR_CHUNK_ROWS && mixed->spilled_n < mixed->paged_n / 2);
    /* marks and counts, gaps, and acks of segments for the persistent ones alone */
    for (uint64_t s = 0; s < PAGED_ROWS; s++) {
        wr_entry *entry = wr_queue_entry(mixed, s);
        assert(entry && entry->offset == s && !memcmp(entry->id, &s, 8));
        assert(entry->location == (s % 3 ? WR_LOCATION_SEGMENT : WR_LOCATION_JOURNAL_TRANSIENT));
        if (s % 5 == 0) {
            wr_queue_remove_entry(e, mixed, s, entry, true, false);
        } else if (s % 5 == 1) {
            entry->flags |= WR_ENTRY_REDELIVERED;
            entry->delivery_count = (uint16_t)(s % 7);
        }
        if (s % 500 == 0) wr_pages_trim(e, UINT64_MAX);
    }
    assert(wr_page_out(e, mixed, 0) && wr_page_out(e, mixed, 1));
    wr_queue_check(e, mixed);
    assert(wr_queue_base(mixed) == 1);
    uint64_t gone = 0;
    for (uint64_t i = 0; i < e->segment_acks_n; i++) gone += e->segment_acks[i].count;
    assert(gone == (PAGED_ROWS + 4) / 5 - (PAGED_ROWS + 14) / 15);
    for (uint64_t s = 0; s < PAGED_ROWS; s++) {
        const wr_entry *entry = wr_queue_entry(mixed, s);
        assert(!entry == (s % 5 == 0));
        if (!entry) continue;
        assert(entry->delivery_count == (s % 5 == 1 ? s % 7 : 0) && !(entry->flags & WR_ENTRY_REDELIVERED) == (s % 5 != 1));
        if (s % 500 == 0) wr_pages_trim(e, UINT64_MAX);
    }
    /* a damaged slot costs its chunk, which is counted, no more */
    assert(!wr_queue_chunk_peek(q, 3)->rows);
    assert(pwrite(e->spill.fd, "x", 1, (off_t)(wr_queue_chunk_peek(q, 3)->page->slot * sizeof(wr_rows) + 5)) == 1);
    assert(!wr_queue_entry(q, 3 * WR_CHUNK_ROWS) && e->damaged_n == WR_CHUNK_ROWS && q->ready_n == PAGED_ROWS - WR_CHUNK_ROWS);
    wr_queue_check(e, q);
    /* without room on the disk rows stay in memory, and leave when there is some */
    int fd = e->spill.fd;
    assert(wr_queue_entry(q, 5 * WR_CHUNK_ROWS));
    e->spill.fd = open("/dev/full", O_RDWR);
    assert(!wr_page_out(e, q, 5) && e->spill_error == ENOSPC);
    wr_queue *plain = wr_queue_declare(e, 22, true);
    rig_fill(r, plain, 3 * WR_CHUNK_ROWS, 0);
    rig_fill(r, plain, 3 * WR_CHUNK_ROWS, 1);
    rig_flush(r, 1);
    wr_pages_trim(e, UINT64_MAX);
    assert(plain->paged_n == WR_CHUNK_ROWS && !plain->spilled_n); /* nor are others kept from leaving; its head stays */
    wr_queue_drop(e, plain);
    close(e->spill.fd);
    e->spill.fd = fd;
    assert(wr_page_out(e, q, 5) && !e->spill_error);
    wr_queue_check(e, q);
    /* all of it goes, read back or not, and the file with it */
    assert(wr_queue_purge(e, q, UINT64_MAX, true) == PAGED_ROWS - WR_CHUNK_ROWS && q->paged_n == 0 && q->spilled_n == 0);
    wr_queue_drop(e, mixed);
    wr_queue_drop(e, q);
    assert(e->entries_n == 0 && e->paged_n == 0 && e->bytes == 0 && e->spill.slots_n == 0);
    assert(*wr_files_live(&e->transient_files, 1) == WR_CHUNK_ROWS); /* which file the damaged ones named is not known any more */
    rig_free(r);
}

/* How many rows may stay: by pressure and rates. */
static void check_limit(void) {
    uint64_t floor = 16 * sizeof(wr_rows);
    for (uint64_t memory_bytes = sizeof(wr_rows); memory_bytes < 1ull << 40; memory_bytes *= 3)
        for (uint64_t rate = 0; rate < 1ull << 30; rate = 4 * rate + 1) {
            uint64_t before = memory_bytes, steps = 0;
            for (uint32_t pressure = 0; pressure <= 1100; pressure++) {
                uint64_t limit = wr_pages_limit(memory_bytes, pressure, rate);
                assert(limit <= before); /* falls with the pressure, evenly */
                assert(before - limit <= memory_bytes / 500 + 1);
                assert(limit >= (memory_bytes < floor ? memory_bytes : floor));
                assert(limit >= wr_pages_limit(memory_bytes, pressure, rate / 2)); /* grows with the rates */
                assert(pressure > WR_PRESSURE_PAGE || limit == memory_bytes);
                assert(pressure < 1000 || limit <= (memory_bytes / 2 > floor ? memory_bytes / 2 : floor));
                steps += limit != before;
                before = limit;
            }
            assert(memory_bytes <= floor || steps >= 400);
        }
    assert(wr_pages_limit(1u << 30, 1000, 0) == floor);
    assert(wr_pages_limit(1u << 30, 1000, 4u << 20) == (2u << 20) * sizeof(wr_entry)); /* rows of half a second */
    /* a rise counts at once, a fall beyond the slack only */
    uint32_t held = 0, changes = 0;
    for (uint32_t i = 0; i < 100; i++) {
        uint32_t next = wr_pages_pressure(held, i % 2 ? 700 : 660);
        changes += next != held;
        held = next;
    }
    assert(held == 700 && changes <= 2);
    assert(wr_pages_pressure(700, 400) == 450 && wr_pages_pressure(450, 0) == 50 && wr_pages_pressure(30, 0) == 30);
}

/* The loop follows the pressure in the superblock; heads stay, whatever it says; memory is used again when it has passed. */
static void check_pressure(void) {
    rig *r = rig_new(&shape);
    wr_queue_engine *e = r->engine;
    assert(!rig_open_pages(r, 200 * sizeof(wr_rows)));
    e->recovering = false;
    wr_files_add(&e->transient_files, 1);
    wr_queue *queues[20];
    for (uint32_t i = 0; i < 20; i++) {
        queues[i] = wr_queue_declare(e, 30 + i, false);
        rig_fill(r, queues[i], 8 * WR_CHUNK_ROWS, 1);
    }
    wr_queue_run(e, 0, false);
    assert(e->paged_n == 0 && e->rows_limit == e->memory_bytes);
    atomic_store(&r->super->pressure, 750);
    for (int i = 0; i < 3; i++) wr_queue_run(e, 0, false); /* looked at at the end of a run, acted on in the next one */
    uint64_t middle = e->rows_limit;
    assert(middle < 110 * sizeof(wr_rows) && middle > 100 * sizeof(wr_rows) && wr_rows_bytes(e) <= middle && e->page_outs_n);
    atomic_store(&r->super->pressure, 720); /* what left lowers it: nothing swings */
    for (int i = 0; i < 3; i++) wr_queue_run(e, 0, false);
    assert(e->rows_limit == middle);
    atomic_store(&r->super->pressure, 1000);
    for (int i = 0; i < 3; i++) wr_queue_run(e, 0, false);
    assert(e->rows_limit == 16 * sizeof(wr_rows));
    uint64_t outs = e->page_outs_n;
    for (uint32_t i = 0; i < 20; i++) {
        wr_queue_check(e, queues[i]);
        for (uint64_t number = 0; number < 8; number++) assert(!wr_queue_chunk_peek(queues[i], number)->rows == (number >= 2));
    }
    assert(outs == 20 * 6);
    atomic_store(&r->super->pressure, 0);
    for (int i = 0; i < 3; i++) wr_queue_run(e, 0, false);
    assert(e->rows_limit == e->memory_bytes && e->pressure == 50);
    for (uint32_t i = 0; i < 20; i++)
        for (uint64_t s = 0; s < 8 * WR_CHUNK_ROWS; s++) assert(wr_queue_entry(queues[i], s)->offset == s);
    wr_queue_run(e, 0, false);
    assert(e->paged_n == 0 && e->page_outs_n == outs);
    rig_free(r);
}

/* What a long backlog took goes back to the system once it has gone, and not at each turn. */
static void check_give_back(void) {
    rig *r = rig_new(&shape);
    wr_queue_engine *e = r->engine;
    assert(!rig_open_pages(r, 1000 * sizeof(wr_rows)));
    e->recovering = false;
    wr_files_add(&e->transient_files, 1);
    wr_queue *q = wr_queue_declare(e, 60, false);
    rig_fill(r, q, 900 * WR_CHUNK_ROWS, 1);
    wr_queue_purge(e, q, UINT64_MAX, true);
    assert(e->free_rows_n > 0 && e->rows_most >= 900);
    wr_pages_look(e, e->rate_ns + 999999999);
    assert(e->rows_most >= 900); /* not yet a second */
    wr_pages_look(e, e->rate_ns + 1000000000);
    assert(e->rows_most == e->rows_n && e->free_rows_n == 0 && e->rows_n <= 1);
    rig_free(r);
}

static void remove_files(void) {
    char command[160];
    snprintf(command, sizeof command, "rm -rf '%s'", folder);
    if (system(command)) fprintf(stderr, "left behind: %s\n", folder);
}

int main(int argc, char **argv) {
    assert(mkdtemp(folder));
    if (argc >= 5 && !strcmp(argv[1], "bench")) {
        uint32_t size = (uint32_t)atoi(argv[2]);
        uint64_t n = strtoull(argv[3], NULL, 10);
        bool durable = atoi(argv[4]);
        rig *r = rig_new(&shape);
        assert(wr_queue_declare(r->engine, 1, durable));
        double seconds = pump(r, n, size, durable ? WR_FLAG_PERSISTENT | WR_FLAG_SYNCED : 0);
        const wr_log_state *s = wr_log_look(r->engine->log);
        printf("%u bytes, %s: %.0f messages/s (%.2f s), %llu commits, %llu wakes\n", size, durable ? "durable" : "transient", (double)n / seconds, seconds,
               (unsigned long long)s->commits_n, (unsigned long long)r->engine->wakes_n);
        rig_free(r);
        remove_files();
        return 0;
    }
    WITHOUT_THREADS(check_map());
    check_order();
    check_replay();
    check_gap();
    WITHOUT_THREADS(check_drop_lost());
    check_stretches();
    check_hostile();
    WITHOUT_THREADS(check_pages());
    check_paged_delivery();
    WITHOUT_THREADS(check_spill());
    WITHOUT_THREADS(check_transient_pages());
    WITHOUT_THREADS(check_limit());
    WITHOUT_THREADS(check_pressure());
    WITHOUT_THREADS(check_give_back());
    remove_files();
    printf("queue_test: ok\n");
    return 0;
}
