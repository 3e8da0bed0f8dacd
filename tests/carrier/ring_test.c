/* Client and servers as threads of one process, for ThreadSanitizer: rings, arena reuse, horizons, deliveries, wakes.
 *
 * Each server checks every command and its blob when it takes it, and once more just before it lets `head` pass: until then
 * the bytes must not change. Horizons rise one after the other, as a committer would raise them. Server 2 pushes one delivery
 * for each command; the client frees the slot by a later command. Both sides sleep when they have nothing to do.
 */
#include "ipc/core/port.h"
#include "kernel/delivery.h"
#include "support/check.h"
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SERVERS 3
#define NODE_SERVERS 4
#define RING 64
#define SLOTS 32
#define ARENA 65536
#define COMMANDS 60000

static wr_superblock *super;
static wr_port port;
/* The two stores are one process and share a sleep word, so only one of them plays here. */
static const uint32_t numbers[SERVERS] = {WR_SERVER_STORE_PERSISTENT, WR_SERVER_WORKER_FIRST + 1, WR_SERVER_WORKER_FIRST};
static _Atomic uint64_t sleeps, wakes;

static uint8_t byte_of(uint64_t stamp, uint64_t i) { return (uint8_t)(stamp * 31 + i * 7); }

static void check_command(const wr_view *view, const wr_command *c, uint64_t sequence, uint32_t server) {
    CHECK(c->count == sequence && c->op == WR_OP_STORE_WRITE && c->queue == server);
    const uint8_t *blob = wr_view_blob(view, c->body, c->length);
    CHECK(blob || !c->length);
    for (uint64_t i = 0; i < c->length; i += 13) CHECK(blob[i] == byte_of(c->tag, i));
}

static void raise_word(_Atomic uint64_t *word, uint64_t to) {
    CHECK(atomic_load_explicit(word, memory_order_relaxed) <= to);
    atomic_store_explicit(word, to, memory_order_release);
}

static void *serve(void *argument) {
    uint32_t server = (uint32_t)(uintptr_t)argument;
    wr_view view = port.view;
    wr_link *link = &view.links[server];
    wr_server *row = wr_superblock_server(super, server);
    uint64_t processed = 0, head = 0, delivered = 0;
    uint32_t held[SLOTS], free_n = SLOTS, free_slots[SLOTS];
    for (uint32_t s = 0; s < SLOTS; s++) free_slots[s] = s;
    memset(held, 0, sizeof held);
    while (head < COMMANDS) {
        uint64_t tail = atomic_load_explicit(&link->tail, memory_order_acquire);
        CHECK(tail - head <= RING);
        bool any = false;
        for (; processed < tail; processed++, any = true) {
            wr_command *c = wr_view_command(&view, server, processed);
            check_command(&view, c, processed, server);
            uint32_t flying = WR_FLYING_WRITTEN;
            bool taken = atomic_compare_exchange_strong_explicit(&c->flying, &flying, WR_FLYING_TAKEN, memory_order_acq_rel,
                                                                 memory_order_acquire);
            CHECK(taken || flying == WR_FLYING_ELIMINATED);
            atomic_store_explicit(&c->result, taken ? WR_RESULT_OK : WR_RESULT_NO, memory_order_relaxed);
            if (server != 2) continue;
            if (c->row) { /* the client is done with a delivery */
                uint32_t slot = c->row - 1;
                CHECK(slot < SLOTS && held[slot]);
                held[slot] = 0;
                atomic_store_explicit(&wr_view_delivery(&view, server, slot)->state, WR_DELIVERY_FREE, memory_order_release);
                free_slots[free_n++] = slot;
            }
            if (!free_n) continue;
            uint32_t slot = free_slots[--free_n];
            wr_delivery *d = wr_view_delivery(&view, server, slot);
            d->sequence = delivered;
            d->pushed_at = delivered;
            d->body_length = (uint32_t)(delivered * 3);
            atomic_store_explicit(&d->state, WR_DELIVERY_HELD, memory_order_release);
            atomic_store_explicit(wr_view_delivery_ring(&view, server, delivered), slot, memory_order_relaxed);
            held[slot] = 1;
            delivered++;
        }
        if (any) {
            raise_word(&link->processed, processed);
            if (server == 2) raise_word(&link->delivery_tail, delivered);
        } else if (head < processed) {
            for (uint64_t n = head; n < processed; n++) check_command(&view, wr_view_command(&view, server, n), n, server);
            head = processed;
            raise_word(&link->written, head);
            raise_word(&link->synced, head);
            raise_word(&link->head, head);
            any = true;
        }
        if (any) {
            if (wr_bell_ring(&view.client->waiting)) atomic_fetch_add(&wakes, 1);
            continue;
        }
        /* as in the loops of store and queue worker: announce, look again, sleep */
        atomic_store_explicit(&row->sleeping, 1, memory_order_relaxed);
        atomic_thread_fence(memory_order_seq_cst);
        if (atomic_load_explicit(&link->tail, memory_order_acquire) == processed) {
            wr_futex_wait(&row->sleeping, 1, 50000000ull);
            atomic_fetch_add(&sleeps, 1);
        }
        atomic_store_explicit(&row->sleeping, 0, memory_order_relaxed);
    }
    return NULL;
}

static uint64_t seed = 1181783497276652981ull;
static uint64_t draw(uint64_t below) {
    seed ^= seed << 13;
    seed ^= seed >> 7;
    seed ^= seed << 17;
    return seed % below;
}

/* Wait until the head of a server has passed a command, as a client does. */
static void wait_for(uint32_t server, uint64_t sequence) {
    wr_link *link = &port.view.links[server];
    while (atomic_load_explicit(&link->head, memory_order_acquire) <= sequence) {
        atomic_store_explicit(&port.view.client->waiting, 1, memory_order_seq_cst);
        atomic_thread_fence(memory_order_seq_cst);
        if (atomic_load_explicit(&link->head, memory_order_acquire) > sequence) break;
        wr_futex_wait(&port.view.client->waiting, 1, 50000000ull);
    }
}

typedef struct {
    uint32_t slots[SLOTS];
    uint64_t first, next, popped;
} taken;

/* Deliveries in order, each in a slot that is ours and was pushed at this position. */
static void take(taken *t) {
    wr_link *link = &port.view.links[2];
    uint64_t tail = atomic_load_explicit(&link->delivery_tail, memory_order_acquire);
    for (; t->popped < tail; t->popped++) {
        uint32_t slot = atomic_load_explicit(wr_view_delivery_ring(&port.view, 2, t->popped), memory_order_relaxed);
        CHECK(slot < SLOTS && t->next - t->first < SLOTS);
        wr_delivery *d = wr_view_delivery(&port.view, 2, slot);
        CHECK(atomic_load_explicit(&d->state, memory_order_acquire) == WR_DELIVERY_HELD);
        CHECK(d->pushed_at == t->popped && d->sequence == t->popped && d->body_length == (uint32_t)(t->popped * 3));
        t->slots[t->next++ % SLOTS] = slot;
    }
    atomic_store_explicit(&link->delivery_head, t->popped, memory_order_release);
}

static void fill(wr_command *c, uint32_t server, uint64_t sequence, uint64_t stamp, uint64_t position, uint64_t length) {
    c->op = WR_OP_STORE_WRITE;
    c->queue = server;
    c->count = sequence;
    c->tag = stamp;
    c->body = position;
    c->length = (uint32_t)length;
    atomic_store_explicit(&c->flying, WR_FLYING_WRITTEN, memory_order_relaxed);
}

static void client(void) {
    taken t = {0};
    uint64_t eliminated = 0, stamp = 0;
    while (port.prepared[0] < COMMANDS || port.prepared[2] < COMMANDS || port.prepared[3] < COMMANDS) {
        uint32_t first = (uint32_t)draw(SERVERS), count = draw(8) ? 1 : 2;
        bool room = true;
        for (uint32_t s = 0; s < count; s++) {
            uint32_t server = numbers[(first + s) % SERVERS];
            if (port.prepared[server] == COMMANDS) room = false;
        }
        if (!room) continue;
        for (uint32_t s = 0; s < count; s++) { /* room in the rings first, so that nothing must be given back */
            uint32_t server = numbers[(first + s) % SERVERS];
            if (port.prepared[server] >= RING) {
                wr_port_submit(&port, server);
                wait_for(server, port.prepared[server] - RING);
            }
        }
        uint64_t length = draw(40) ? draw(400) : draw(ARENA / 4), position;
        uint8_t *at;
        for (;;) {
            int error = wr_port_alloc(&port, length, &position, &at);
            if (!error) break;
            CHECK(error == EAGAIN && port.uses_first != port.uses_next);
            for (uint32_t s = 0; s < SERVERS; s++) wr_port_submit(&port, numbers[s]);
            wr_blob_use *oldest = &port.uses[port.uses_first & (port.uses_size - 1)];
            wait_for(oldest->server, oldest->sequence);
        }
        stamp++;
        for (uint64_t i = 0; i < length; i++) at[i] = byte_of(stamp, i);
        for (uint32_t s = 0; s < count; s++) {
            uint32_t server = numbers[(first + s) % SERVERS];
            uint64_t sequence;
            wr_command *c = wr_port_prepare(&port, server, &sequence);
            CHECK(c);
            fill(c, server, sequence, stamp, position, length);
            if (server == 2) {
                take(&t);
                if (t.first != t.next) c->row = t.slots[t.first++ % SLOTS] + 1;
            }
            CHECK(wr_port_use(&port, server, sequence) == 0);
            if (draw(3) == 0) wr_port_submit(&port, server);
            uint32_t flying = WR_FLYING_WRITTEN;
            if (server != 2 && draw(10) == 0)
                eliminated += atomic_compare_exchange_strong_explicit(&c->flying, &flying, WR_FLYING_ELIMINATED,
                                                                      memory_order_acq_rel, memory_order_relaxed);
        }
    }
    for (uint32_t s = 0; s < SERVERS; s++) wr_port_submit(&port, numbers[s]);
    for (uint32_t s = 0; s < SERVERS; s++) wait_for(numbers[s], COMMANDS - 1);
    take(&t);
    CHECK(eliminated > 0 && t.popped > COMMANDS / 4);
}

int main(void) {
    super = aligned_alloc(WR_PAGE_BYTES, wr_page_up(WR_SUPERBLOCK_BYTES));
    CHECK(super);
    memset((void *)super, 0, WR_SUPERBLOCK_BYTES);
    super->servers_n = NODE_SERVERS;
    super->ring_records = RING;
    super->delivery_slots = SLOTS;
    super->reply_bytes = 4096;
    super->arena_bytes = ARENA;
    wr_geometry g = wr_geometry_of(super);
    uint64_t bytes = wr_view_bytes(&g);
    void *region = aligned_alloc(WR_PAGE_BYTES, wr_page_up(bytes));
    CHECK(region);
    memset(region, 0, bytes);
    CHECK(wr_port_init(&port, super, region, bytes, 3, 1, 1) == 0);
    pthread_t servers[SERVERS];
    for (uint32_t s = 0; s < SERVERS; s++) CHECK(pthread_create(&servers[s], NULL, serve, (void *)(uintptr_t)numbers[s]) == 0);
    client();
    for (uint32_t s = 0; s < SERVERS; s++) pthread_join(servers[s], NULL);
    for (uint32_t s = 0; s < SERVERS; s++) {
        const wr_link *link = &port.view.links[numbers[s]];
        CHECK(atomic_load(&link->head) == COMMANDS && atomic_load(&link->processed) == COMMANDS);
    }
    printf("%d commands to each of %d servers, %llu sleeps, %llu wakes of the client\n", COMMANDS, SERVERS,
           (unsigned long long)atomic_load(&sleeps), (unsigned long long)atomic_load(&wakes));
    wr_port_free(&port);
    free(region);
    free(super);
    return 0;
}
