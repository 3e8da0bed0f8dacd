/* A client whose memory runs out. Goal: each call that finds none says so with ENOMEM and changes nothing; called again, it
 * does what it does. So no message is lost or published twice, no delivery is lost, nothing leaks.
 * Method: one program of a client: it attaches, consumes 40 queues, publishes to two workers over several turns of the rings, takes
 * deliveries, hands them out, puts one back, settles them in lists, and reads bodies from files. The n-th allocation of it fails,
 * for each n; the test plays the workers, and looks at each command that they get. */
#include "client/rig.h"
#include "support/scarce.h"

enum { QUEUES = 40, ROUNDS = 30, EACH = 50, FRAMES = 3, LARGE = 300000 };

static int folder;
static uint8_t *frames, *bodies_as_written;
static wr_delivery in_file[FRAMES];

/* ---- the workers ---- */

typedef struct {
    uint64_t next;                     /* command to look at */
    uint64_t published;                /* messages that came, of this program's numbers */
    uint64_t refused[ROUNDS * EACH];   /* sequences that were not taken */
    uint32_t refused_n;
    uint64_t pushed, acked[SLOTS];
    uint32_t acked_n;
} worker;

/* Executes what was submitted: each message once, in order. Every third one is refused. */
static void work(node *n, worker *w, uint32_t server) {
    wr_link *link = wr_attachment_link(&n->a, server);
    uint64_t tail = atomic_load(&link->tail);
    for (; w->next < tail; w->next++) {
        wr_command *c = wr_view_command(&n->a.port.view, server, w->next);
        uint8_t *blob = wr_view_blob(&n->a.port.view, c->body, c->length);
        if (c->op == WR_OP_PUBLISH) {
            uint64_t number;
            CHECK(blob && c->length == 8 + (server == WORKER ? 12 : 0));
            memcpy(&number, blob + c->length - 8, 8);
            CHECK(number == w->published);
            w->published++;
            bool refuse = number % 3 == 1;
            if (refuse) w->refused[w->refused_n++] = w->next;
            atomic_store(&c->result, refuse ? WR_RESULT_REFUSED : WR_RESULT_OK);
            if (refuse) atomic_store(&link->unusual_until, w->next + 1);
        } else {
            CHECK(c->op == WR_OP_ACK && blob && c->count <= SLOTS && c->length == 8 * c->count);
            memcpy(w->acked + w->acked_n, blob, c->length);
            w->acked_n += (uint32_t)c->count;
        }
    }
    atomic_store(&link->processed, tail);
    atomic_store(&link->head, tail);
}

static void push(node *n, worker *w, uint32_t server, uint32_t queue, uint64_t sequence) {
    wr_link *link = wr_attachment_link(&n->a, server);
    uint32_t slot = (uint32_t)(w->pushed % SLOTS);
    wr_delivery *d = wr_view_delivery(&n->a.port.view, server, slot);
    memset((void *)d, 0, sizeof *d);
    d->queue = queue;
    d->sequence = sequence;
    d->pushed_at = w->pushed;
    atomic_store(&d->state, WR_DELIVERY_HELD);
    atomic_store(wr_view_delivery_ring(&n->a.port.view, server, w->pushed), slot);
    atomic_store(&link->delivery_tail, ++w->pushed);
}

/* ---- the program ---- */

static void publishes(node *n, worker *w) {
    uint32_t ids[] = {1, 2, 3, 4};
    wr_route route = {.targets_n = 2, .targets = {{.server = WORKER, .queue = 1, .ids_n = 3, .ids = ids},
                                                  {.server = WORKER + 1, .queue = 4, .ids_n = 1, .ids = ids + 3}}};
    for (uint64_t i = 0; i < ROUNDS * EACH; i++) {
        uint32_t done = 0;
        uint64_t sequences[2];
        wr_condition blocked;
        wr_message m = {.body = (const char *)&i, .length = sizeof i};
        wr_attachment_id(&n->a, m.id);
        CHECK(!SCARCE_AGAIN(wr_attachment_publish(&n->a, &route, &done, &m, sequences, &blocked)));
        CHECK(done == 2);
        if (i % EACH != EACH - 1) continue;
        for (uint32_t k = 0; k < 2; k++) {
            wr_port_submit(&n->a.port, WORKER + k);
            work(n, &w[k], WORKER + k);
        }
    }
    for (uint32_t k = 0; k < 2; k++) {
        CHECK(w[k].published == ROUNDS * EACH);
        wr_results *r = &n->a.results[WORKER + k];
        wr_results_look(r, &n->a.port, WORKER + k);
        /* A refusal that could not be noted is not taken for success: everything up to it counts as unknown. */
        for (uint32_t i = 0; i < w[k].refused_n; i++) {
            uint32_t found_n;
            const wr_result *found = wr_results_find(r, w[k].refused[i], w[k].refused[i] + 1, &found_n);
            if (found_n) CHECK(found_n == 1 && found->sequence == w[k].refused[i] && found->result == WR_RESULT_REFUSED);
            else CHECK(scarce_failed() && w[k].refused[i] < r->forgotten);
        }
        if (!scarce_failed()) CHECK(!r->forgotten);
    }
}

static void consumes(node *n, worker *w, wr_client_consumer *consumers) {
    for (uint32_t i = 0; i < QUEUES; i++) CHECK(!SCARCE_AGAIN(wr_client_consumer_add(&n->a, &consumers[i], WORKER, 100 + i)));
    for (uint32_t i = 0; i < QUEUES; i++) CHECK(wr_client_consumer_find(&n->a, WORKER, 100 + i) == &consumers[i]);
    for (uint64_t i = 0; i < SLOTS; i++) push(n, &w[0], WORKER, i < SLOTS / 2 ? 100 : 100 + (uint32_t)i % QUEUES, i);
    CHECK(!SCARCE_AGAIN(wr_attachment_intake(&n->a, WORKER)));
    CHECK(n->a.workers[WORKER].popped == SLOTS);
    uint64_t seen = 0, tags[SLOTS];
    wr_place places[SLOTS];
    bool found[SLOTS] = {false};
    uint32_t handed = 0;
    for (uint32_t i = 0; i < QUEUES; i++) {
        wr_client_consumer *c = &consumers[i];
        if (wr_client_consumer_pending(c) > 16) { /* one goes back, to its place */
            wr_pending p;
            memcpy((void *)&p, (void *)&c->pending[c->pending_first++ & (c->pending_size - 1)], sizeof p);
            CHECK(!SCARCE_AGAIN(wr_client_consumer_push_front(c, &p)));
        }
        for (uint64_t last = 0; wr_client_consumer_pending(c); c->pending_first++) {
            uint64_t tag = c->pending[c->pending_first & (c->pending_size - 1)].delivery.sequence;
            CHECK(tag < SLOTS && !found[tag] && tag >= last);
            found[last = tag] = true;
            seen++;
            wr_place place = {0, 0, 0};
            CHECK(!SCARCE_AGAIN(wr_client_consumer_hand(c, tag, &place)));
        }
    }
    CHECK(seen == SLOTS);
    for (uint32_t i = 0; i < QUEUES; i++) {
        const wr_client_consumer *c = &consumers[i];
        const wr_in_hand *last = &c->unacked[(c->unacked_next - 1) & (c->unacked_size - 1)];
        uint32_t some = c->unacked_next == c->unacked_first ? 0 : wr_client_consumer_forget_up_to(&consumers[i], last->tag, last->place, tags, places, SLOTS);
        wr_condition blocked;
        handed += some;
        if (some < 2) continue;
        CHECK(!SCARCE_AGAIN(wr_attachment_settle(&n->a, &consumers[i], WR_OP_ACK, 0, tags, some, &blocked)));
        wr_port_submit(&n->a.port, WORKER);
        work(n, &w[0], WORKER);
    }
    CHECK(handed == SLOTS && w[0].acked_n >= SLOTS / 2);
    for (uint32_t i = 0; i < w[0].acked_n; i++) {
        CHECK(w[0].acked[i] < SLOTS && found[w[0].acked[i]]);
        found[w[0].acked[i]] = false; /* once */
    }
}

static void reads(node *n) {
    static uint8_t found[LARGE];
    const char *reason;
    wr_bodies_set(&n->a.bodies, WORKER, dup(folder), -1, -1);
    for (uint32_t i = 0; i < FRAMES; i++) {
        CHECK(!SCARCE_AGAIN(wr_bodies_read(&n->a.bodies, WORKER, &in_file[i], NULL, found, false, &reason)));
        CHECK(!memcmp(found, bodies_as_written, in_file[i].body_length));
    }
}

static void program(node *n) {
    static worker w[2];
    static wr_client_consumer consumers[QUEUES];
    memset(w, 0, sizeof w);
    memset(consumers, 0, sizeof consumers);
    CHECK(!SCARCE_AGAIN(attach(n)));
    publishes(n, w);
    consumes(n, w, consumers);
    reads(n);
    for (uint32_t i = 0; i < QUEUES; i++) wr_client_consumer_drop(&n->a, &consumers[i]);
    for (uint32_t k = 0; k < 2; k++) wr_results_free(&n->a.results[WORKER + k]);
}

/* ---- files ---- */

static void make_file(char *path) {
    CHECK(mkdtemp(path) && (folder = open(path, O_RDONLY | O_DIRECTORY)) >= 0);
    frames = malloc(FRAMES * (LARGE + 1000));
    bodies_as_written = malloc(LARGE);
    CHECK(frames && bodies_as_written);
    memset(bodies_as_written, 7, LARGE);
    uint64_t at = 0;
    for (uint32_t i = 0; i < FRAMES; i++) {
        uint64_t length = i == 1 ? LARGE : 100;
        wr_frame_head head = {.kind = WR_KIND_PUBLISH, .sequence = i + 1, .client_epoch = 1, .id = {(uint8_t)i}};
        uint8_t prefix[WR_ROUTE_SIZE] = {0};
        uint64_t total = wr_frame_write(frames + at, &head, prefix, sizeof prefix, bodies_as_written, length, 55);
        in_file[i].flags = WR_LOCATION_JOURNAL << WR_DELIVERY_LOCATION_SHIFT;
        in_file[i].file = 4;
        in_file[i].offset = (uint32_t)(WR_FILE_HEADER_BYTES + at);
        in_file[i].frame_length = (uint32_t)total;
        in_file[i].blob_offset = WR_FRAME_HEAD_BYTES + WR_ROUTE_SIZE;
        in_file[i].body_length = (uint32_t)length;
        memcpy(in_file[i].id, head.id, 16);
        at += total;
    }
    write_file(folder, "4.jnl", 4, 55, frames, at);
}

int main(void) {
    char path[] = "/tmp/warren-client-memory-XXXXXX";
    make_file(path);
    uint64_t n = 0;
    for (bool failed = true; failed; n++) {
        node here;
        make_regions(&here);
        scarce_begin(n);
        program(&here);
        failed = scarce_end();
        drop(&here);
    }
    CHECK(n > 20 && scarce_again_n + 10 > n); /* all but a few that concern what was noted of results */
    unlinkat(folder, "4.jnl", 0);
    close(folder);
    CHECK(!rmdir(path));
    free(frames);
    free(bodies_as_written);
    printf("client_memory_test: %llu allocations, %u errors\n", (unsigned long long)n - 1, scarce_again_n);
    return 0;
}
