/* Fairness of a queue worker (design note 004, section 4), turn by turn on one thread, so that no time is asserted.
 *
 * Goal: what one queue or one client has to be done in a turn is bounded, and in the same turn everybody else gets all that is his:
 * a queue with 100,000 ready messages and a consumer that takes what it can beside ten light queues; a client that keeps its ring full of
 * publishes, or of publishes to hundreds of queues, beside clients that send a few. Method: turns of a real engine, with what links and
 * queues say after each.
 *
 *   fairness_test   exits 0
 */
#define _GNU_SOURCE
#include "kernel/delivery.h"
#include "queues/rig.h"
#include "queues/entries.h"
#include "queues/loop.h"
#include "queues/registry.h"
#include "queues/rows.h"

#define FILE_BYTES (32u << 20)

static const rig_shape shape = {.file_bytes = FILE_BYTES, .images_n = 2, .ring_records = 4096, .delivery_slots = 8192, .arena_bytes = 4u << 20, .stats_rows = 8};

#define HEAVY 1
#define LIGHT 2 /* the first of ten */
#define LIGHT_N 10
#define FAN 100 /* the first of those that one message goes to */
#define FAN_N 300
#define BACKLOG 100000
#define TURNS 60
/* What one queue may be given, and what one link may have done, in a turn; these bounds are the engine's promise. */
#define DELIVERIES_MAX 1024
#define COMMANDS_MAX 512
#define ROWS_MAX (4096 + WR_ROUTES_MAX)

static rig *begin(void) {
    rig *r = rig_new(&shape);
    CHECK(rig_offer(r, 0));
    CHECK(rig_offer(r, 1));
    CHECK(wr_queue_declare(r->engine, HEAVY, false));
    for (uint32_t i = 0; i < LIGHT_N; i++) CHECK(wr_queue_declare(r->engine, LIGHT + i, false));
    wr_queue_begin(r->engine, 1);
    return r;
}

/* Exactly one: an event ends the run behind it. */
static void turn(rig *r) {
    atomic_store(&r->engine->kick, 1);
    CHECK(wr_queue_run(r->engine, 0, false) & WR_QUEUE_EVENT_KICK);
}

static uint64_t waiting(const peer *p) {
    return atomic_load(&link_of(p)->tail) - atomic_load(&link_of(p)->processed);
}

/* False: no room. `fan`: to so many queues. */
static bool publish(peer *p, uint32_t queue, uint32_t fan) {
    static uint64_t sent;
    uint64_t position, sequence;
    uint8_t *at;
    uint32_t length = 4 * fan + 40;
    if (wr_port_alloc(&p->port, length, &position, &at)) return false;
    wr_command *c = wr_port_prepare(&p->port, SERVER, &sequence);
    if (!c) return false;
    memset(at, 0, length);
    for (uint32_t i = 0; i < fan; i++) {
        uint32_t id = queue + i;
        memcpy(at + 4 * (uint64_t)i, &id, 4);
    }
    CHECK(!wr_port_use(&p->port, SERVER, sequence));
    c->op = WR_OP_PUBLISH;
    c->flags = fan ? WR_FLAG_ROUTES : 0;
    c->queue = fan ? fan : queue;
    c->body = position;
    c->length = length;
    memcpy(c->id, &sent, 8);
    sent++;
    c->id[15] = (uint8_t)p->port.slot;
    return true;
}

static void plain(peer *p, uint8_t op, uint32_t queue, uint64_t tag, uint8_t flags) {
    uint64_t sequence;
    wr_command *c = wr_port_prepare(&p->port, SERVER, &sequence);
    CHECK(c);
    c->op = op;
    c->flags = flags;
    c->queue = queue;
    c->tag = tag;
    wr_port_submit(&p->port, SERVER);
}

/* Take all that was pushed; how many of them are of the heavy queue, and the last of those. */
static uint32_t take(peer *p, uint64_t *last) {
    wr_link *link = link_of(p);
    uint32_t heavy = 0;
    uint64_t tail = atomic_load(&link->delivery_tail);
    for (uint64_t head = atomic_load(&link->delivery_head); head < tail; head++) {
        const wr_delivery *d = wr_view_delivery(&p->port.view, SERVER, atomic_load(wr_view_delivery_ring(&p->port.view, SERVER, head)));
        if (d->queue != HEAVY) continue;
        heavy++;
        *last = d->sequence;
    }
    atomic_store(&link->delivery_head, tail);
    return heavy;
}

/* A deep queue whose consumer takes all it can, beside ten that get a message now and then. */
static void deliveries(void) {
    rig *r = begin();
    peer *greedy = peer_attached(r, 1);
    peer *modest = peer_attached(r, 2);
    peer *publisher = peer_attached(r, 3);
    wr_queue *heavy = wr_queue_find(r->engine, HEAVY);
    for (uint64_t s = 0; s < BACKLOG; s++) {
        wr_entry entry = {.frame_length = 100, .body_length = 40, .location = WR_LOCATION_JOURNAL_TRANSIENT};
        memcpy(entry.id, &s, 8);
        CHECK(!wr_queue_room(r->engine, heavy, s));
        wr_queue_insert(r->engine, heavy, s, &entry);
    }
    plain(greedy, WR_OP_CREDIT, HEAVY, UINT64_MAX, 0);
    for (uint32_t i = 0; i < LIGHT_N; i++) plain(modest, WR_OP_CREDIT, LIGHT + i, UINT64_MAX, 0);
    uint64_t given = 0, last = 0;
    for (uint32_t t = 0; t < TURNS; t++) {
        uint64_t before[LIGHT_N];
        for (uint32_t i = 0; i < LIGHT_N; i++) before[i] = wr_queue_find(r->engine, LIGHT + i)->delivered_n;
        uint32_t which = t * 7 % LIGHT_N, many = 1 + t % 3;
        for (uint32_t i = 0; i < many; i++) CHECK(publish(publisher, LIGHT + (which + i) % LIGHT_N, 0));
        wr_port_submit(&publisher->port, SERVER);
        turn(r);
        for (uint32_t i = 0; i < LIGHT_N; i++) {
            const wr_queue *light = wr_queue_find(r->engine, LIGHT + i);
            bool given_some = (i + LIGHT_N - which) % LIGHT_N < many;
            CHECK(light->ready_n == 0 && light->delivered_n - before[i] == given_some);
        }
        uint32_t n = take(greedy, &last);
        CHECK(n <= DELIVERIES_MAX);
        CHECK(n > 0); /* nor does it wait for the others */
        given += n;
        plain(greedy, WR_OP_ACK, HEAVY, last, WR_FLAG_MULTIPLE);
        take(modest, &last);
    }
    CHECK(given == heavy->delivered_n && heavy->ready_n == BACKLOG - given);
    peer_free(greedy);
    peer_free(modest);
    peer_free(publisher);
    rig_free(r);
}

/* A client whose ring is never empty, beside others that send a few commands each. `fan`: queues of each of its messages. */
static void rings(uint32_t fan) {
    rig *r = begin();
    peer *light[3];
    light[0] = peer_attached(r, 1); /* before it and behind it in the order of a turn */
    peer *heavy = peer_attached(r, 2);
    light[1] = peer_attached(r, 3);
    light[2] = peer_attached(r, 4);
    for (uint32_t i = 0; i < fan; i++) CHECK(wr_queue_declare(r->engine, FAN + i, false));
    uint64_t done_before = 0, rows_before = 0;
    for (uint32_t t = 0; t < TURNS / 4; t++) {
        while (publish(heavy, fan ? FAN : HEAVY, fan)) {}
        wr_port_submit(&heavy->port, SERVER);
        CHECK(waiting(heavy) > COMMANDS_MAX);
        uint64_t from_light = 0;
        for (uint32_t i = 0; i < 3; i++) {
            for (uint32_t n = 0; n < 1 + (t + i) % 5; n++, from_light++) CHECK(publish(light[i], LIGHT + i, 0));
            wr_port_submit(&light[i]->port, SERVER);
        }
        turn(r);
        for (uint32_t i = 0; i < 3; i++) CHECK(waiting(light[i]) == 0);
        uint64_t done = atomic_load(&link_of(heavy)->processed), rows = r->engine->published_n;
        CHECK(done > done_before && done - done_before <= COMMANDS_MAX);
        CHECK(rows - rows_before - from_light <= ROWS_MAX);
        done_before = done;
        rows_before = rows;
    }
    peer_free(heavy);
    for (uint32_t i = 0; i < 3; i++) peer_free(light[i]);
    rig_free(r);
}

int main(void) {
    deliveries();
    rings(0);
    rings(FAN_N);
    printf("fairness_test: fine\n");
    return 0;
}
