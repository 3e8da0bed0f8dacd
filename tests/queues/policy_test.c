/* What queues are declared to do (queues/policy.h), at random, on one thread: publishes with priorities, times and keys, deliveries,
 * acks, returns and rejections; the clock is the real one, and times lie around it.
 *
 * Goal: the invariants hold after every round; deliveries come by priority, then by age; nothing appears or vanishes; and an engine
 * that replays the journal as it lies in the image (what a kill leaves) has the same messages in the same queues with the
 * same reasons. Method: a model of each message's fate by its number; wr_queue_check after each round.
 *
 *   policy_test [SEED]   exits 0
 */
#define _GNU_SOURCE
#include "kernel/delivery.h"
#include "queues/rig.h"
#include "queues/check.h"
#include "queues/delay.h"
#include "queues/levels.h"
#include "queues/loop.h"
#include "queues/owed.h"
#include "queues/pages.h"
#include "queues/registry.h"
#include "queues/replay.h"
#include "support/random.h"

#define FILE_BYTES (8u << 20)

static const rig_shape shape = {.file_bytes = FILE_BYTES, .images_n = 4, .ring_records = 16384, .delivery_slots = 1024, .arena_bytes = 8u << 20, .stats_rows = 8};

#define QUEUE 1
#define DEAD 2
#define PLAIN 3
#define MESSAGES 4000

static uint32_t below(uint32_t n) { return (uint32_t)(random64() * 0x2545F4914F6CDD1Dull >> 33) % n; }

static void declare(rig *r, const wr_policy_options *options) {
    CHECK(wr_queue_declare(r->engine, QUEUE, true) && wr_queue_declare(r->engine, DEAD, true) && wr_queue_declare(r->engine, PLAIN, true));
    wr_policy_set(wr_queue_find(r->engine, QUEUE), options);
}

static void check(rig *r) {
    for (uint32_t id = 1; id <= 3; id++) wr_queue_check(r->engine, wr_queue_find(r->engine, id));
    CHECK(!r->engine->deaths_n && !wr_aside_n(wr_queue_find(r->engine, DEAD)));
}

static void turn(rig *r) {
    wr_queue_run(r->engine, 1000000, false);
    check(r);
}

static wr_command *command(peer *p, uint8_t op, uint32_t queue) {
    uint64_t sequence;
    wr_command *c = wr_port_prepare(&p->port, SERVER, &sequence);
    CHECK(c);
    c->op = op;
    c->queue = queue;
    return c;
}

/* ---- the model ---- */

static struct {
    uint64_t expires, due;
    uint8_t priority;
    bool delivered;
} messages[MESSAGES];

static void publish(peer *p, uint32_t number, bool timed) {
    uint64_t position, now = wr_wall_ms();
    uint32_t length = 8 + below(40);
    bool keyed = below(4) == 0;
    uint8_t *at;
    CHECK(!wr_port_alloc(&p->port, WR_KEY_BYTES + length, &position, &at));
    memset(at, 0, WR_KEY_BYTES + length);
    uint8_t *body = at;
    if (keyed) {
        uint32_t key = below(300);
        memcpy(at, &key, 4);
        body += WR_KEY_BYTES;
    }
    memcpy(body, &number, 4);
    uint64_t sequence;
    wr_command *c = wr_port_prepare(&p->port, SERVER, &sequence);
    CHECK(c && !wr_port_use(&p->port, SERVER, sequence));
    c->op = WR_OP_PUBLISH;
    c->flags = WR_FLAG_PERSISTENT | (keyed ? WR_FLAG_DEDUPLICATE : 0);
    c->body = position;
    c->length = length + (keyed ? WR_KEY_BYTES : 0);
    c->queue = below(10) ? QUEUE : PLAIN;
    messages[number].priority = (uint8_t)(below(4) ? below(10) : below(256));
    memcpy(c->id, &number, 4);
    c->id[15] = 1;
    uint64_t expires = timed && below(3) == 0 ? now - 5 + below(60) : 0, due = timed && below(5) == 0 ? now - 5 + below(60) : 0;
    c->count = expires | (uint64_t)messages[number].priority << WR_PRIORITY_SHIFT;
    c->tag = due;
    messages[number].expires = expires;
    messages[number].due = due;
}

typedef struct {
    uint64_t sequences[1024];
    uint32_t n;
} held;

/* What was delivered of a queue since `before`. */
static void receive(peer *p, held *h, uint32_t queue, uint64_t before) {
    wr_link *link = &p->port.view.links[SERVER];
    uint64_t tail = atomic_load(&link->delivery_tail), head = atomic_load(&link->delivery_head);
    for (; head < tail; head++) {
        const wr_delivery *d = wr_view_delivery(&p->port.view, SERVER, atomic_load(wr_view_delivery_ring(&p->port.view, SERVER, head)));
        if (atomic_load(&d->state) != WR_DELIVERY_HELD || d->pushed_at != head) continue;
        CHECK(d->queue == queue);
        uint32_t number;
        memcpy(&number, d->id, 4);
        CHECK(number < MESSAGES && d->priority == messages[number].priority);
        CHECK(messages[number].delivered || d->delivery_count == 0 || queue == DEAD);
        messages[number].delivered = true;
        CHECK(messages[number].due <= wr_wall_ms());
        CHECK(queue == DEAD || !messages[number].expires || messages[number].expires > before);
        CHECK((queue == DEAD) == ((d->flags >> WR_DELIVERY_REASON_SHIFT & WR_DELIVERY_REASON_MASK) != 0));
        h->sequences[h->n++] = d->sequence;
    }
    atomic_store(&link->delivery_head, tail);
}

static void settle(peer *p, held *h, uint32_t queue) {
    while (h->n && below(8)) {
        uint32_t i = below(h->n);
        wr_command *c = command(p, below(2) ? WR_OP_ACK : WR_OP_NACK, queue);
        c->tag = h->sequences[i];
        if (c->op == WR_OP_NACK && below(3)) c->flags = WR_FLAG_REQUEUE;
        if (c->flags && queue == QUEUE && below(2)) c->body = wr_wall_ms() - 5 + below(30);
        h->sequences[i] = h->sequences[--h->n];
    }
}

/* The same rows in both, but for what only memory knows (who holds what). A DELAYED row may have become due meanwhile. */
static void same(wr_queue *a, wr_queue *b) {
    uint64_t n = 0;
    CHECK(a->next == b->next);
    for (uint64_t s = 0; s < a->next; s++) {
        const wr_entry *x = wr_queue_entry(a, s), *y = wr_queue_entry(b, s);
        CHECK(!x == !y);
        if (!x) continue;
        n++;
        CHECK(!memcmp(x->id, y->id, 16) && x->priority == y->priority && x->reason == y->reason && x->expires == y->expires);
        CHECK(x->file == y->file && x->offset == y->offset && x->body_length == y->body_length && x->blob_offset == y->blob_offset);
        if (x->state == WR_ENTRY_DELAYED && y->state == WR_ENTRY_DELAYED) CHECK(wr_policy_due(a, s) == wr_policy_due(b, s));
        CHECK(y->state == WR_ENTRY_READY || y->state == WR_ENTRY_DELAYED);
    }
    CHECK(n == a->ready_n + a->unacked_n + wr_aside_n(a));
}

static void receive_all(rig *r, peer *b, held *live, peer *d, held *dead) {
    uint64_t before = wr_wall_ms();
    turn(r);
    receive(b, live, QUEUE, before);
    receive(d, dead, DEAD, before);
}

/* An engine with the queues, and `n` clients from slot 1 on. */
static rig *served(const wr_policy_options *options, peer **peers, uint32_t n) {
    rig *r = rig_new(&shape);
    declare(r, options);
    wr_journal_recovered(r->engine, true);
    for (int transient = 0; transient < 2; transient++) CHECK(rig_offer(r, transient));
    for (uint32_t i = 0; i < n; i++) peers[i] = peer_attached(r, 1 + i);
    wr_queue_begin(r->engine, 1);
    return r;
}

static void at_random(const wr_policy_options *options, bool timed) {
    peer *peers[3];
    rig *r = served(options, peers, 3);
    peer *a = peers[0], *b = peers[1], *d = peers[2];
    wr_command *c = command(b, WR_OP_CREDIT, QUEUE);
    c->count = 50; /* prefetch */
    c = command(d, WR_OP_CREDIT, DEAD);
    c->count = 50;
    wr_port_submit(&b->port, SERVER);
    wr_port_submit(&d->port, SERVER);
    memset(messages, 0, sizeof messages);
    held live = {0}, dead = {0};
    for (uint32_t number = 0; number < MESSAGES;) {
        for (uint32_t n = below(60); n && number < MESSAGES; n--) publish(a, number++, timed);
        wr_port_submit(&a->port, SERVER);
        receive_all(r, b, &live, d, &dead);
        settle(b, &live, QUEUE);
        if (dead.n > 40) settle(d, &dead, DEAD);
        wr_port_submit(&b->port, SERVER);
        wr_port_submit(&d->port, SERVER);
        receive_all(r, b, &live, d, &dead);
    }
    for (uint32_t i = 0; i < 5; i++) turn(r);
    const wr_queue *q = wr_queue_find(r->engine, QUEUE);
    CHECK(!options->dead_letters || q->policy->dead_lettered_n);
    /* what came due in the last turn is offered first, and cut in a later one */
    for (uint32_t i = 0; i < 100 && options->has_max_length && q->ready_n > options->max_length; i++) turn(r);
    CHECK(!options->has_max_length || q->ready_n <= options->max_length);
    CHECK(!options->reject_publish || q->policy->refused_n);
    CHECK(!options->deduplication_ms || q->policy->duplicates_n);
    CHECK(options->reject_publish || !options->max_length || q->policy->dropped_n);
    CHECK(!timed || q->policy->expired_n);

    /* what a kill leaves lies in the image */
    rig *again = rig_new(&shape);
    declare(again, options);
    wr_files_add(&again->engine->files, 0);
    uint64_t at = WR_FILE_HEADER_BYTES, frames = 0, appended = wr_log_look(r->engine->log)->append;
    const char *reason;
    CHECK(appended > 100000 && appended < FILE_BYTES);
    CHECK(!wr_journal_replay(again->engine, r->images[0] + WR_PAGE_BYTES, appended, 0, 1000, &at, &frames, &reason) && at == appended);
    for (uint32_t id = 1; id <= 3; id++) {
        wr_queue_check(again->engine, wr_queue_find(again->engine, id));
        same(wr_queue_find(r->engine, id), wr_queue_find(again->engine, id));
    }
    rig_free(again);
    rig_free(r);
    peer_free(a);
    peer_free(b);
    peer_free(d);
}

/* Deliveries of a full queue come by priority and age, each once, over several chunks. */
static void in_order(uint32_t most) {
    wr_policy_options options = {.max_priority = most};
    peer *peers[2];
    rig *r = served(&options, peers, 2);
    peer *a = peers[0], *b = peers[1];
    uint32_t n = 0;
    memset(messages, 0, sizeof messages);
    while (n < MESSAGES) {
        for (uint32_t i = 0; i < 200; i++) publish(a, n++, false);
        wr_port_submit(&a->port, SERVER);
        turn(r);
    }
    uint64_t ready = wr_queue_find(r->engine, QUEUE)->ready_n, got = 0, last = 0;
    uint32_t level = most;
    held live = {0};
    command(b, WR_OP_CREDIT, QUEUE)->tag = 1 << 20;
    while (got < ready) {
        wr_port_submit(&b->port, SERVER);
        turn(r);
        receive(b, &live, QUEUE, 0);
        CHECK(live.n);
        for (uint32_t i = 0; i < live.n; i++, got++) {
            const wr_entry *entry = wr_queue_entry(wr_queue_find(r->engine, QUEUE), live.sequences[i]);
            uint32_t now = entry->priority < most ? entry->priority : most;
            CHECK(now < level || (now == level && (!got || live.sequences[i] > last)));
            level = now;
            last = live.sequences[i];
        }
        for (uint32_t i = 0; i < live.n; i++) command(b, WR_OP_ACK, QUEUE)->tag = live.sequences[i];
        live.n = 0;
    }
    CHECK(level == 0);
    rig_free(r);
    peer_free(a);
    peer_free(b);
}

static uint64_t publish_to(peer *p, const uint32_t *ids, uint32_t n, bool keyed, uint32_t number) {
    uint64_t position, sequence;
    uint32_t key = keyed ? WR_KEY_BYTES : 0, length = 4 * n + key + 8;
    uint8_t *at;
    CHECK(!wr_port_alloc(&p->port, length, &position, &at));
    memset(at, 0, length);
    memcpy(at, ids, 4 * n);
    wr_command *c = wr_port_prepare(&p->port, SERVER, &sequence);
    CHECK(c && !wr_port_use(&p->port, SERVER, sequence));
    c->op = WR_OP_PUBLISH;
    c->flags = WR_FLAG_PERSISTENT | WR_FLAG_ROUTES | (keyed ? WR_FLAG_DEDUPLICATE : 0);
    c->body = position;
    c->length = length;
    c->queue = n;
    memcpy(c->id, &number, 4);
    c->id[15] = 1;
    return sequence;
}

static uint32_t result_of(peer *p, uint64_t sequence) {
    return atomic_load(&wr_view_command(&p->port.view, SERVER, sequence)->result);
}

/* A queue that a PUBLISH names twice takes it, refuses it, or knows it already, once; and a PUBLISH that is sorted
 * again, because a full queue first delivers what it has, counts its unknown queues once. */
static void counted_once(void) {
    static const uint32_t full[] = {QUEUE, PLAIN, QUEUE}, seen[] = {DEAD, PLAIN, DEAD}, unknown[] = {9, QUEUE};
    wr_policy_options options = {.has_max_length = true, .max_length = 1, .reject_publish = true}, keys = {.deduplication_ms = 60000};
    peer *peers[2];
    rig *r = served(&options, peers, 2);
    peer *a = peers[0], *b = peers[1];
    wr_policy_set(wr_queue_find(r->engine, DEAD), &keys);
    uint64_t taken = publish_to(a, full, 3, false, 1), refused = publish_to(a, full, 3, false, 2);
    uint64_t first = publish_to(a, seen, 3, true, 3), again = publish_to(a, seen, 3, true, 4);
    wr_port_submit(&a->port, SERVER);
    turn(r);
    const wr_queue *q = wr_queue_find(r->engine, QUEUE), *d = wr_queue_find(r->engine, DEAD);
    CHECK(result_of(a, taken) == WR_RESULT_OK && result_of(a, refused) == WR_RESULT_REFUSED);
    CHECK(q->ready_n == 1 && q->policy->refused_n == 1);
    CHECK(result_of(a, first) == WR_RESULT_OK && result_of(a, again) == WR_RESULT_OK); /* PLAIN took both */
    CHECK(d->ready_n == 1 && d->policy->duplicates_n == 1 && wr_queue_find(r->engine, PLAIN)->ready_n == 4);

    command(b, WR_OP_CREDIT, QUEUE)->tag = 10;
    wr_port_submit(&b->port, SERVER);
    turn(r);
    CHECK(q->unacked_n == 1 && !q->ready_n);
    uint64_t waits = publish_to(b, unknown, 2, false, 5);
    wr_port_submit(&b->port, SERVER);
    turn(r); /* for the catalog */
    publish_to(a, full, 2, false, 6);
    wr_port_submit(&a->port, SERVER);
    wr_queue_catalog_loaded(r->engine, 1); /* it has no queue 9 either */
    for (uint32_t i = 0; i < 3; i++) turn(r);
    CHECK(result_of(b, waits) == WR_RESULT_OK);
    CHECK(q->unacked_n == 3 && q->policy->refused_n == 1 && r->engine->unroutable_n == 1);
    rig_free(r);
    peer_free(a);
    peer_free(b);
}

/* Times are whole milliseconds that have begun; no message may end before its time is over. */
static void times(void) {
    wr_policy policy = {.o = {.has_message_ttl = true, .message_ttl_ms = 30}};
    wr_queue q = {.policy = &policy};
    CHECK(wr_policy_expires(&q, 1000, 0, 0) == 1031);
    CHECK(wr_policy_expires(&q, 1000, 1020, 0) == 1020);
    CHECK(wr_policy_expires(&q, 1000, WR_EXPIRES_AT_ONCE, 0) == 1000 && wr_policy_expires(&q, 1000, WR_EXPIRES_AT_ONCE, 5000) == 5001);
    CHECK(wr_policy_expires(&q, 1000, 0, 5000) == 5030); /* `due` is a time that was rounded up */
}

int main(int argc, char **argv) {
    uint64_t seed = argc > 1 ? strtoull(argv[1], NULL, 10) : 7;
    times();
    const wr_policy_options all[] = {
        {.has_message_ttl = true, .message_ttl_ms = 30, .dead_letters = DEAD},
        {.has_max_length = true, .max_length = 100, .dead_letters = DEAD, .has_delivery_limit = true, .delivery_limit = 2},
        {.has_max_bytes = true, .max_length_bytes = 2000, .reject_publish = true, .deduplication_ms = 40, .dead_letters = DEAD, .max_priority = 255},
        {.has_max_length = true, .max_length = 0, .dead_letters = DEAD, .has_delivery_limit = true, .delivery_limit = 0},
        {.max_priority = 3, .has_max_length = true, .max_length = 150, .has_delivery_limit = true, .delivery_limit = 1},
        {.max_priority = 9, .has_max_length = true, .max_length = 90, .has_message_ttl = true, .message_ttl_ms = 40, .has_delivery_limit = true, .delivery_limit = 3, .dead_letters = DEAD, .deduplication_ms = 60000},
    };
    for (uint32_t i = 0; i < sizeof all / sizeof *all; i++) {
        random_state = seed * 0x9E3779B97F4A7C15ull + i + 1;
        at_random(&all[i], true);
    }
    random_state = seed;
    wr_policy_options plain = {.has_delivery_limit = true, .delivery_limit = 3, .dead_letters = DEAD};
    at_random(&plain, false);
    in_order(4);
    in_order(255);
    counted_once();
    puts("policy_test: ok");
    return 0;
}
