/* An attachment of a client (client.c): routes, consumers' books against a naive model, and a run with a server thread
 * that executes commands, delivers and wakes, under the sanitizers. Bodies in files: a journal file read back, torn and
 * replaced. The last argument may be a seed. */
#include "client/rig.h"
#include "support/random.h"
#include <pthread.h>
#include <sys/stat.h>

#define MESSAGES 20000

static void make(node *n) {
    make_regions(n);
    CHECK(!attach(n));
}

/* ---- what was handed out ---- */

static void books(void) {
    node n;
    make(&n);
    wr_client_consumer consumer;
    CHECK(!wr_client_consumer_add(&n.a, &consumer, WORKER, 5));
    CHECK(wr_client_consumer_add(&n.a, &consumer, WORKER, 5) == EEXIST);
    enum { MOST = 4000 };
    static bool held[MOST];
    static uint32_t numbers[MOST]; /* by which they are found; some have another one by now: then they are looked for */
    memset(held, 0, sizeof held);
    consumer.handed_n = UINT32_MAX - (uint32_t)random_below(MOST);
    uint64_t next = 0;
    for (int step = 0; step < 30000; step++) {
        uint64_t what = random_below(10);
        if (what < 5 && next < MOST) {
            held[next] = true;
            wr_place place = {0, (uint32_t)next, 0};
            CHECK(!wr_client_consumer_hand(&consumer, next, &place));
            numbers[next++] = random_below(20) ? place.number : (uint32_t)random64();
        } else if (what < 9) {
            uint64_t tag = next ? random_below(next) : 0;
            CHECK(!wr_client_consumer_forget(&consumer, tag, (wr_place){0, (uint32_t)tag + 1, numbers[tag]}));
            CHECK(wr_client_consumer_forget(&consumer, tag, (wr_place){0, (uint32_t)tag, numbers[tag]}) == held[tag]);
            held[tag] = false;
        } else {
            uint64_t tag = next ? random_below(next) : 0, tags[8], expected = 0;
            wr_place places[8];
            for (uint64_t i = 0; i <= tag && i < next && held[tag]; i++) expected += held[i];
            for (;;) {
                uint32_t some = wr_client_consumer_forget_up_to(&consumer, tag, (wr_place){0, (uint32_t)tag, numbers[tag]}, tags, places, 8);
                if (!some) break;
                expected -= some;
                for (uint32_t i = 0; i < some; i++) {
                    CHECK(tags[i] <= tag && held[tags[i]] && places[i].mark == tags[i]);
                    held[tags[i]] = false;
                }
            }
            CHECK(!expected);
        }
        if (step % 100) continue;
        uint64_t out = 0;
        for (uint64_t i = 0; i < next; i++) out += held[i];
        CHECK(wr_client_consumer_unacked(&n.a, &consumer) == out);
    }
    /* Many consumers, added and dropped: each is found as long as it is there. */
    enum { MANY = 300 };
    static wr_client_consumer many[MANY];
    static bool there[MANY];
    memset(there, 0, sizeof there);
    for (int step = 0; step < 3000; step++) {
        uint32_t i = (uint32_t)random_below(MANY);
        if (there[i]) wr_client_consumer_drop(&n.a, &many[i]);
        else CHECK(!wr_client_consumer_add(&n.a, &many[i], WORKER, 100 + i));
        there[i] = !there[i];
        uint32_t j = (uint32_t)random_below(MANY);
        CHECK(wr_client_consumer_find(&n.a, WORKER, 100 + j) == (there[j] ? &many[j] : NULL));
    }
    for (uint32_t i = 0; i < MANY; i++)
        if (there[i]) wr_client_consumer_drop(&n.a, &many[i]);
    /* Two workers have a queue of one id, as for the answers to calls. */
    static wr_client_consumer other;
    CHECK(!wr_client_consumer_add(&n.a, &other, WORKER + 1, 5));
    CHECK(wr_client_consumer_add(&n.a, &other, WORKER + 1, 5) == EEXIST);
    CHECK(wr_client_consumer_find(&n.a, WORKER, 5) == &consumer && wr_client_consumer_find(&n.a, WORKER + 1, 5) == &other);
    wr_client_consumer_drop(&n.a, &other);
    CHECK(!wr_client_consumer_find(&n.a, WORKER + 1, 5));
    CHECK(wr_client_consumer_find(&n.a, WORKER, 5) == &consumer);
    wr_client_consumer_drop(&n.a, &consumer);
    CHECK(!wr_client_consumer_find(&n.a, WORKER, 5));
    drop(&n);
}

/* ---- results that are not OK ---- */

/* Publishes of which some are refused, over many turns of the ring: each is found, whenever one asks, and no other. */
static void results(void) {
    node n;
    make(&n);
    wr_route route = {.targets_n = 1, .targets = {{.server = WORKER, .queue = 5, .ids_n = 1}}};
    wr_link *link = wr_attachment_link(&n.a, WORKER);
    uint64_t served = 0;
    enum { ALL = 20 * 256 };
    static uint32_t wanted[ALL];
    CHECK(!wr_results_unusual(&n.a.results[WORKER], wr_attachment_link(&n.a, WORKER)));
    for (uint64_t i = 0; i < ALL; i++) {
        wr_condition blocked;
        uint64_t sequence;
        for (;;) {
            uint32_t done = 0;
            wr_message message = {.body = "body", .length = 4};
            int error = wr_attachment_publish(&n.a, &route, &done, &message, &sequence, &blocked);
            if (!error) break;
            CHECK(error == EAGAIN);
            wr_port_submit(&n.a.port, WORKER);
            uint64_t tail = atomic_load(&link->tail), to = served + 1 + random_below((uint32_t)(tail - served));
            for (; served < to; served++) {
                uint32_t result = random_below(8) ? WR_RESULT_OK : WR_RESULT_NO + random_below(5);
                if (served / 700 % 2) result = WR_RESULT_OK; /* long stretches without any */
                wanted[served] = result;
                atomic_store(&wr_view_command(&n.a.port.view, WORKER, served)->result, result);
                if (result != WR_RESULT_OK) atomic_store(&link->unusual_until, served + 1);
            }
            atomic_store(&link->processed, served);
            atomic_store(&link->head, served);
        }
        CHECK(sequence == i);
    }
    wr_results_look(&n.a.results[WORKER], &n.a.port, WORKER);
    CHECK(!wr_results_unusual(&n.a.results[WORKER], wr_attachment_link(&n.a, WORKER)) && n.a.results[WORKER].looked == served && !n.a.results[WORKER].forgotten);
    for (uint64_t from = 0; from < served; from += 97) {
        uint32_t found_n, k = 0;
        const wr_result *found = wr_results_find(&n.a.results[WORKER], from, from + 97, &found_n);
        for (uint64_t i = from; i < from + 97 && i < served; i++) {
            if (wanted[i] == WR_RESULT_OK) continue;
            CHECK(k < found_n && found[k].sequence == i && found[k].result == wanted[i]);
            k++;
        }
        CHECK(k == found_n);
    }
    wr_results_free(&n.a.results[WORKER]);
    drop(&n);
}

/* ---- routes ---- */

static void routes(void) {
    node n;
    make(&n);
    uint32_t ids[] = {1, 2, 3, 4, 5};
    wr_route route = {.targets_n = 2,
                      .targets = {{.server = WORKER, .queue = 1, .ids_n = 3, .ids = ids},
                                  {.server = WORKER + 1, .queue = 4, .ids_n = 1, .ids = ids + 3}}};
    for (int round = 0; round < 2; round++) {
        for (int i = 0;; i++) {
            uint32_t done = 0;
            uint64_t sequences[2];
            wr_condition blocked;
            char body[700];
            static const uint8_t key[WR_KEY_BYTES] = "0123456789abcdef";
            bool keyed = i % 2;
            wr_message message = {.meta = "meta", .meta_length = 4, .body = body, .length = sizeof body,
                                  .expires = 1000 + (uint64_t)i, .due = (uint64_t)i, .key = keyed ? key : NULL,
                                  .flags = keyed ? WR_FLAG_DEDUPLICATE : 0};
            wr_attachment_id(&n.a, message.id);
            memset(body, 'a' + i % 26, sizeof body);
            int error = wr_attachment_publish(&n.a, &route, &done, &message, sequences, &blocked);
            if (error) {
                CHECK(error == EAGAIN && i > 50);
                CHECK(!wr_condition_met(&blocked));
                break;
            }
            wr_command *many = wr_view_command(&n.a.port.view, WORKER, sequences[0]);
            wr_command *one = wr_view_command(&n.a.port.view, WORKER + 1, sequences[1]);
            uint32_t extra = keyed ? WR_KEY_BYTES : 0;
            CHECK(many->queue == 3 && many->length == 12 + extra + 704 && many->flags & WR_FLAG_ROUTES);
            CHECK(one->queue == 4 && one->length == extra + 704 && one->body == many->body + 12 && !(one->flags & WR_FLAG_ROUTES));
            CHECK(one->count == message.expires && one->tag == message.due && many->count == message.expires && many->tag == message.due);
            CHECK(keyed == !!(one->flags & WR_FLAG_DEDUPLICATE) && keyed == !!(many->flags & WR_FLAG_DEDUPLICATE));
            const uint8_t *blob = wr_view_blob(&n.a.port.view, one->body, one->length);
            CHECK(blob && !memcmp(blob, key, extra) && !memcmp(blob + extra, "meta", 4) && !memcmp(blob + extra + 4, body, sizeof body));
        }
        wr_port_submit(&n.a.port, WORKER);
        wr_port_submit(&n.a.port, WORKER + 1);
        for (uint32_t s = WORKER; s < SERVERS; s++) {
            wr_link *link = wr_attachment_link(&n.a, s);
            atomic_store(&link->head, atomic_load(&link->tail));
        }
    }
    drop(&n);
}

/* ---- a server thread ---- */

typedef struct {
    node *n;
    _Atomic bool stop;
    uint64_t received, acked;
    uint8_t *images;
} server;

/* Runs of messages with one metadata for all, and with that of each, to one queue and to three; what has no room is not prepared. */
static void runs(void) {
    node n;
    make(&n);
    static const char *const texts[] = {"", "a", "metadata", "of each"};
    for (int round = 0; round < 200; round++) {
        uint32_t ids[] = {7, 8, 9}, count = 2 + random_below(60), several = random_below(2) ? 3 : 1;
        const wr_target target = {.server = WORKER, .queue = 7, .ids_n = several, .ids = ids};
        const wr_message message = {.meta = "all", .meta_length = 3, .expires = 5, .due = 6, .flags = WR_FLAG_SYNCED};
        const bool each = random_below(2);
        wr_piece bodies[64], metas[64];
        char content[64][40];
        for (uint32_t i = 0; i < count; i++) {
            const uint64_t length = random_below(sizeof content[i] + 1);
            memset(content[i], 'a' + (int)(i % 26), sizeof content[i]);
            bodies[i] = (wr_piece){length ? content[i] : NULL, length};
            metas[i] = (wr_piece){texts[i % 4], strlen(texts[i % 4])};
        }
        uint64_t first;
        wr_link *link = wr_attachment_link(&n.a, WORKER);
        if (!wr_attachment_publish_run(&n.a, &target, &message, bodies, each ? metas : NULL, count, &first)) {
            wr_port_submit(&n.a.port, WORKER);
            const uint64_t tail = atomic_load(&link->tail);
            CHECK(tail > atomic_load(&link->head)); /* something is in the way */
            atomic_store(&link->processed, tail);
            atomic_store(&link->head, tail);
            continue;
        }
        for (uint32_t i = 0; i < count; i++) {
            const wr_command *c = wr_view_command(&n.a.port.view, WORKER, first + i);
            const wr_piece meta = each ? metas[i] : (wr_piece){"all", 3};
            const uint64_t routes = several > 1 ? 4ull * several : 0;
            CHECK(c->op == WR_OP_PUBLISH && c->meta_length == meta.length && c->length == routes + meta.length + bodies[i].length);
            CHECK(c->count == 5 && c->tag == 6 && c->queue == (several > 1 ? several : 7));
            const uint8_t *blob = wr_view_blob(&n.a.port.view, c->body, c->length);
            CHECK(blob && !memcmp(blob, ids, routes) && !memcmp(blob + routes, meta.bytes, meta.length));
            CHECK(!bodies[i].length || !memcmp(blob + routes + meta.length, bodies[i].bytes, bodies[i].length));
        }
    }
    drop(&n);
}

static void wake(node *n) { wr_bell_ring(&n->a.port.view.client->waiting); }

/* Executes what comes on one link: a PUBLISH is delivered at once (its body goes into the image), an ACK frees its slots. */
static void *serve(void *argument) {
    server *s = argument;
    const wr_view *view = &s->n->a.port.view;
    wr_link *link = &view->links[WORKER];
    wr_image *image = (wr_image *)s->images;
    uint64_t next = 0, delivered = 0, append = WR_PAGE_BYTES, slot_of[SLOTS];
    bool busy[SLOTS] = {false};
    atomic_store(&image->file, 1);
    while (!atomic_load(&s->stop)) {
        uint64_t tail = atomic_load_explicit(&link->tail, memory_order_acquire);
        bool stuck = next == tail;
        while (next != tail) {
            wr_command *c = wr_view_command(view, WORKER, next);
            if (c->op == WR_OP_PUBLISH) {
                uint32_t slot = 0;
                while (slot < SLOTS && busy[slot]) slot++;
                if (slot == SLOTS || append + c->length > 200000) { /* no slot: its client must ack first; no room: begin anew */
                    if (slot < SLOTS) append = WR_PAGE_BYTES;
                    stuck = slot == SLOTS;
                    if (stuck) break;
                    continue;
                }
                busy[slot] = true;
                slot_of[slot] = s->received;
                memcpy(s->images + WR_PAGE_BYTES + append, wr_view_blob(view, c->body, c->length), c->length);
                wr_delivery *d = wr_view_delivery(view, WORKER, slot);
                d->queue = c->queue;
                d->sequence = s->received++;
                d->file = 0;
                d->offset = (uint32_t)append;
                d->frame_length = d->body_length = c->length;
                d->blob_offset = 0;
                d->meta_length = c->meta_length;
                d->flags = WR_LOCATION_JOURNAL << WR_DELIVERY_LOCATION_SHIFT;
                d->pushed_at = delivered;
                append += c->length;
                atomic_store_explicit(&image->appended, 200000, memory_order_release);
                atomic_store_explicit(&d->state, WR_DELIVERY_HELD, memory_order_release);
                atomic_store_explicit(wr_view_delivery_ring(view, WORKER, delivered), slot, memory_order_relaxed);
                atomic_store_explicit(&link->delivery_tail, ++delivered, memory_order_release);
            } else if (c->op == WR_OP_ACK) {
                uint64_t tags[64], tags_n = c->count ? c->count : 1;
                CHECK(tags_n <= 64);
                if (c->count) memcpy(tags, wr_view_blob(view, c->body, c->length), 8 * c->count);
                else tags[0] = c->tag;
                for (uint64_t t = 0; t < tags_n; t++)
                    for (uint32_t slot = 0; slot < SLOTS; slot++)
                        if (busy[slot] && slot_of[slot] == tags[t]) {
                            atomic_store_explicit(&wr_view_delivery(view, WORKER, slot)->state, WR_DELIVERY_FREE, memory_order_release);
                            busy[slot] = false;
                            s->acked++;
                        }
            }
            next++;
        }
        atomic_store_explicit(&link->processed, next, memory_order_release);
        atomic_store_explicit(&link->head, next, memory_order_release);
        wake(s->n);
        if (stuck) wr_futex_wait(&wr_superblock_server(s->n->super, WORKER)->sleeping, 1, 100000);
        atomic_store(&wr_superblock_server(s->n->super, WORKER)->sleeping, 1);
    }
    return NULL;
}

/* What is taken out comes back in front, also when the ring has been filled meanwhile. */
static void fronts(void) {
    node n;
    make(&n);
    wr_client_consumer consumer;
    CHECK(!wr_client_consumer_add(&n.a, &consumer, WORKER, 5));
    wr_pending p[40];
    memset((void *)p, 0, sizeof p);
    for (uint64_t i = 40; i-- > 0;) {
        p[i].delivery.sequence = i;
        CHECK(!wr_client_consumer_push_front(&consumer, &p[i]));
    }
    CHECK(wr_client_consumer_pending(&consumer) == 40 && consumer.pending_size == 64);
    for (uint64_t i = 0; i < 40; i++) CHECK(consumer.pending[(consumer.pending_first + i) & (consumer.pending_size - 1)].delivery.sequence == i);
    wr_client_consumer_drop(&n.a, &consumer);
    drop(&n);
}

/* A wake may be meant for something else: sleep until it is met, and give up after ten seconds without it. */
static void await(node *n, const wr_condition *condition, uint64_t spin_ns) {
    uint64_t deadline = wr_now_ns() + 10000000000ull;
    while (!wr_attachment_sleep(n->a.port.view.client, condition, 50000000, spin_ns)) CHECK(wr_now_ns() < deadline);
}

static void two_threads(void) {
    node n;
    make(&n);
    server s = {.n = &n};
    s.images = calloc(1, WR_PAGE_BYTES + 2 * n.super->file_bytes);
    CHECK(s.images);
    wr_client_consumer consumer;
    CHECK(!wr_client_consumer_add(&n.a, &consumer, WORKER, 5));
    pthread_t thread;
    CHECK(!pthread_create(&thread, NULL, serve, &s));
    wr_route route = {.targets_n = 1, .targets = {{.server = WORKER, .queue = 5, .ids_n = 1}}};
    uint64_t sent = 0, taken = 0;
    while (taken < MESSAGES) {
        wr_condition blocked = wr_attachment_delivery(&n.a, WORKER);
        while (sent < MESSAGES && sent - taken < SLOTS) {
            uint32_t done = 0;
            uint64_t sequence;
            char body[256];
            uint64_t length = 8 + sent % 200;
            memset(body, (int)(sent % 251), length);
            memcpy(body, &sent, 8);
            wr_message message = {.body = body, .length = length};
            wr_attachment_id(&n.a, message.id);
            wr_condition full;
            int error = wr_attachment_publish(&n.a, &route, &done, &message, &sequence, &full);
            if (error) {
                CHECK(error == EAGAIN);
                wr_port_submit(&n.a.port, WORKER);
                await(&n, &full, 1000);
                continue;
            }
            sent++;
            if (random_below(4) == 0) wr_port_submit(&n.a.port, WORKER);
        }
        wr_port_submit(&n.a.port, WORKER);
        CHECK(!wr_attachment_intake(&n.a, WORKER));
        if (!wr_client_consumer_pending(&consumer)) {
            blocked = wr_attachment_delivery(&n.a, WORKER);
            if (sent > taken) await(&n, &blocked, random_below(20000));
            continue;
        }
        uint64_t tags[16];
        uint32_t tags_n = 0;
        while (wr_client_consumer_pending(&consumer) && tags_n < 16) {
            wr_pending p;
            memcpy((void *)&p, (void *)&consumer.pending[consumer.pending_first++ & (consumer.pending_size - 1)], sizeof p);
            uint64_t number;
            char body[256];
            CHECK(p.delivery.sequence == taken && p.delivery.body_length == 8 + taken % 200);
            CHECK(wr_image_read(s.images, 2, n.super->file_bytes, 0, p.delivery.offset, body, p.delivery.body_length));
            memcpy(&number, body, 8);
            CHECK(number == taken && (taken % 200 == 0 || body[8] == (char)(taken % 251)));
            wr_place place = {p.slot, wr_handed_mark(p.delivery.pushed_at), 0};
            CHECK(!wr_client_consumer_hand(&consumer, p.delivery.sequence, &place));
            CHECK(wr_client_consumer_forget(&consumer, p.delivery.sequence, place));
            tags[tags_n++] = p.delivery.sequence;
            taken++;
        }
        for (;;) {
            wr_condition full;
            int error = wr_attachment_settle(&n.a, &consumer, WR_OP_ACK, 0, tags, tags_n, &full);
            if (!error) break;
            CHECK(error == EAGAIN);
            wr_port_submit(&n.a.port, WORKER);
            await(&n, &full, 0);
        }
        wr_port_submit(&n.a.port, WORKER);
    }
    wr_link *link = wr_attachment_link(&n.a, WORKER);
    wr_condition all = {&link->processed, atomic_load(&link->tail) - 1, WORKER};
    await(&n, &all, 0);
    atomic_store(&s.stop, true);
    CHECK(!pthread_join(thread, NULL));
    CHECK(s.received == MESSAGES && s.acked == MESSAGES);
    wr_client_consumer_drop(&n.a, &consumer);
    free(s.images);
    drop(&n);
}

/* ---- bodies in files ---- */

static void files(void) {
    char path[] = "/tmp/warren-client-test-XXXXXX";
    CHECK(mkdtemp(path));
    int folder = open(path, O_RDONLY | O_DIRECTORY);
    CHECK(folder >= 0);
    enum { FRAMES = 400, LARGE = 300000 };
    uint8_t *frames = malloc(FRAMES * 2000 + LARGE + 1000);
    uint8_t *body = malloc(LARGE), *found = malloc(LARGE), meta[8];
    CHECK(frames && body && found);
    wr_delivery d[FRAMES];
    memset((void *)d, 0, sizeof d);
    uint64_t at = 0;
    for (uint32_t i = 0; i < FRAMES; i++) {
        uint64_t length = i == 7 ? LARGE : i * 3;
        d[i].meta_length = (uint16_t)(i % 4 * 2);
        memset(body, (int)i, length);
        memset(body, (int)~i, d[i].meta_length);
        wr_frame_head head = {.kind = WR_KIND_PUBLISH, .sequence = i + 1, .client_epoch = 1};
        memcpy(head.id, &i, 4);
        uint8_t prefix[WR_ROUTE_SIZE] = {0};
        uint64_t total = wr_frame_write(frames + at, &head, prefix, sizeof prefix, body, length, 55);
        memcpy(d[i].id, head.id, 16);
        d[i].flags = WR_LOCATION_JOURNAL << WR_DELIVERY_LOCATION_SHIFT;
        d[i].file = 4;
        d[i].offset = (uint32_t)(WR_FILE_HEADER_BYTES + at);
        d[i].frame_length = (uint32_t)total;
        d[i].blob_offset = WR_FRAME_HEAD_BYTES + WR_ROUTE_SIZE;
        d[i].body_length = (uint32_t)length;
        at += total;
    }
    wr_bodies bodies;
    CHECK(!wr_bodies_init(&bodies, 7));
    const char *reason;
    CHECK(wr_bodies_read(&bodies, WORKER, &d[0], NULL, found, false, &reason) == ENOENT);
    wr_bodies_set(&bodies, WORKER, dup(folder), -1, dup(folder));
    CHECK(wr_bodies_read(&bodies, WORKER, &d[0], NULL, found, false, &reason) == ENOENT);
    write_file(folder, "4.jnl", 4, 55, frames, at);
    for (uint32_t i = 0; i < FRAMES; i++) {
        memset(meta, 255, sizeof meta);
        CHECK(!wr_bodies_read(&bodies, WORKER, &d[i], meta, found, false, &reason));
        for (uint32_t k = 0; k < sizeof meta; k++) CHECK(meta[k] == (k < d[i].meta_length ? (uint8_t)~i : 255));
        for (uint32_t k = 0; k < d[i].body_length - d[i].meta_length; k++) CHECK(found[k] == (uint8_t)i);
        if (i == 9) CHECK(!wr_bodies_read(&bodies, WORKER, &d[i + 1], meta, found, true, &reason)); /* in the window */
    }
    wr_delivery wrong = d[20];
    wrong.id[5] ^= 1; /* another message at that place */
    CHECK(wr_bodies_read(&bodies, WORKER, &wrong, NULL, found, false, &reason) == EBADMSG);
    wrong = d[20];
    wrong.offset += 1;
    CHECK(wr_bodies_read(&bodies, WORKER, &wrong, NULL, found, false, &reason) == EBADMSG);
    wrong = d[20];
    wrong.offset = 0x7fffffff;
    CHECK(wr_bodies_read(&bodies, WORKER, &wrong, NULL, found, false, &reason) == EBADMSG);
    wrong = d[20];
    wrong.body_length += 1; /* beyond the frame */
    CHECK(wr_bodies_read(&bodies, WORKER, &wrong, NULL, found, false, &reason) == EBADMSG);
    wrong = d[20];
    wrong.meta_length = (uint16_t)(wrong.body_length + 1); /* more metadata than there is of both */
    CHECK(wr_bodies_read(&bodies, WORKER, &wrong, NULL, found, false, &reason) == EBADMSG);
    wrong = d[20];
    wrong.flags = WR_LOCATION_SEGMENT << WR_DELIVERY_LOCATION_SHIFT; /* 4.dat is not there */
    CHECK(wr_bodies_read(&bodies, WORKER, &wrong, NULL, found, false, &reason) == ENOENT);
    /* Flushed: the same frames under the other name, the journal file gone; then a file of another life under the old name. */
    write_file(folder, "4.dat", 4, 55, frames, at);
    CHECK(!wr_bodies_read(&bodies, WORKER, &wrong, NULL, found, false, &reason));
    CHECK(!wr_bodies_read(&bodies, WORKER, &d[20], NULL, found, false, &reason));
    write_file(folder, "4.jnl", 4, 56, frames, at);
    CHECK(!wr_bodies_read(&bodies, WORKER, &d[20], NULL, found, false, &reason)); /* the open descriptor keeps the old one */
    wr_bodies_set(&bodies, WORKER, dup(folder), -1, -1);
    CHECK(wr_bodies_read(&bodies, WORKER, &d[20], NULL, found, false, &reason) == EBADMSG);
    write_file(folder, "4.jnl", 5, 55, frames, at); /* a renamed file */
    CHECK(wr_bodies_read(&bodies, WORKER, &d[20], NULL, found, false, &reason) == EUCLEAN);
    wr_bodies_free(&bodies);
    unlinkat(folder, "4.jnl", 0);
    unlinkat(folder, "4.dat", 0);
    close(folder);
    CHECK(!rmdir(path));
    free(frames);
    free(body);
    free(found);
}

int main(int count, char **words) {
    if (count > 1) random_state = strtoull(words[1], NULL, 10) | 1;
    books();
    results();
    routes();
    runs();
    files();
    fronts();
    two_threads();
    printf("client_test: fine\n");
    return 0;
}
