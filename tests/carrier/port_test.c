/* The client's side of a region: ring full and free again, arena allocation, reuse after `head` only, abandoned commands,
 * one blob for several servers, nonsense in the link's words. One thread plays client and servers; see ring_test.c for two.
 *
 * A shadow map of the arena knows which bytes are still needed; every allocation is checked against it. */
#include "ipc/core/port.h"
#include "support/check.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SERVERS 3
#define RING 64
#define ARENA 65536

typedef struct {
    wr_superblock *super;
    void *region;
    wr_port port;
} node;

static node *make(void) {
    node *n = calloc(1, sizeof *n);
    CHECK(n);
    n->super = aligned_alloc(WR_PAGE_BYTES, wr_page_up(WR_SUPERBLOCK_BYTES));
    CHECK(n->super);
    memset((void *)n->super, 0, WR_SUPERBLOCK_BYTES);
    n->super->servers_n = SERVERS;
    n->super->ring_records = RING;
    n->super->delivery_slots = 64;
    n->super->reply_bytes = 4096;
    n->super->arena_bytes = ARENA;
    wr_geometry g = wr_geometry_of(n->super);
    uint64_t bytes = wr_view_bytes(&g);
    n->region = aligned_alloc(WR_PAGE_BYTES, wr_page_up(bytes));
    CHECK(n->region);
    memset(n->region, 0, bytes);
    CHECK(wr_port_init(&n->port, n->super, n->region, bytes - 1, 7, 1, 99) == EINVAL);
    CHECK(wr_port_init(&n->port, n->super, n->region, bytes, 7, 1, 99) == 0);
    CHECK(n->port.view.client->magic == WR_CLIENT_MAGIC && n->port.view.client->client_epoch == 99);
    return n;
}

static void end(node *n) {
    wr_port_free(&n->port);
    free(n->region);
    free(n->super);
    free(n);
}

static void set_head(node *n, uint32_t server, uint64_t head) {
    atomic_store_explicit(&n->port.view.links[server].head, head, memory_order_release);
}

static void test_ring(void) {
    node *n = make();
    uint64_t sequence;
    for (uint64_t i = 0; i < RING; i++) {
        wr_command *c = wr_port_prepare(&n->port, 1, &sequence);
        CHECK(c && sequence == i);
        c->tag = i;
    }
    CHECK(!wr_port_prepare(&n->port, 1, &sequence)); /* full although nothing is submitted */
    CHECK(atomic_load(&n->port.view.links[1].tail) == 0);
    CHECK(wr_port_submit(&n->port, 1) && !wr_port_submit(&n->port, 1));
    CHECK(atomic_load(&n->port.view.links[1].tail) == RING);
    CHECK(!wr_port_prepare(&n->port, 1, &sequence));
    set_head(n, 1, 1);
    wr_command *c = wr_port_prepare(&n->port, 1, &sequence);
    CHECK(c == wr_view_command(&n->port.view, 1, 0) && sequence == RING);
    CHECK(c->tag == 0 && atomic_load(&c->flying) == 0); /* the old record is wiped */
    CHECK(!wr_port_prepare(&n->port, 1, &sequence));
    wr_port_abandon(&n->port, 1, RING);
    CHECK(!wr_port_submit(&n->port, 1));
    CHECK(wr_port_prepare(&n->port, 1, &sequence) && sequence == RING);
    atomic_store(&n->port.view.links[2].evicted, 5);
    CHECK(!wr_port_prepare(&n->port, 2, &sequence)); /* a closed link takes nothing */
    end(n);
}

static void test_bell(void) {
    node *n = make();
    uint64_t sequence;
    wr_server *server = wr_superblock_server(n->super, 2);
    atomic_store(&server->sleeping, 1);
    CHECK(wr_port_prepare(&n->port, 2, &sequence));
    CHECK(atomic_load(&server->sleeping) == 1);
    CHECK(wr_port_submit(&n->port, 2));
    CHECK(atomic_load(&server->sleeping) == 0);
    end(n);
}

static void test_arena_limits(void) {
    node *n = make();
    uint64_t position, sequence;
    uint8_t *at;
    CHECK(wr_port_alloc(&n->port, ARENA / 2 + 1, &position, &at) == EMSGSIZE);
    CHECK(wr_port_alloc(&n->port, UINT64_MAX - 3, &position, &at) == EMSGSIZE); /* rounding up must not wrap */
    CHECK(wr_port_alloc(&n->port, 0, &position, &at) == 0 && position == 0);
    for (int i = 0; i < 2; i++) {
        CHECK(wr_port_alloc(&n->port, ARENA / 2, &position, &at) == 0);
        CHECK(wr_port_prepare(&n->port, 1, &sequence) && wr_port_use(&n->port, 1, sequence) == 0);
    }
    CHECK(wr_port_alloc(&n->port, 1, &position, &at) == EAGAIN);
    wr_port_submit(&n->port, 1);
    set_head(n, 1, 1); /* runs share one entry: space comes back when the run has passed, never before */
    if (wr_port_alloc(&n->port, 1, &position, &at) == EAGAIN) {
        set_head(n, 1, 2);
        CHECK(wr_port_alloc(&n->port, 1, &position, &at) == 0);
    }
    end(n);
}

static void test_shared_blob(void) {
    node *n = make();
    uint64_t position, first, second;
    uint8_t *at;
    CHECK(wr_port_alloc(&n->port, ARENA / 2, &position, &at) == 0);
    CHECK(wr_port_prepare(&n->port, 1, &first) && wr_port_use(&n->port, 1, first) == 0);
    CHECK(wr_port_prepare(&n->port, 2, &second) && wr_port_use(&n->port, 2, second) == 0);
    wr_port_submit(&n->port, 1);
    wr_port_submit(&n->port, 2);
    set_head(n, 1, 1);
    CHECK(wr_port_alloc(&n->port, ARENA / 2, &position, &at) == 0);
    CHECK(wr_port_alloc(&n->port, 8, &position, &at) == EAGAIN); /* server 2 still needs the first */
    set_head(n, 2, 1);
    CHECK(wr_port_alloc(&n->port, 8, &position, &at) == 0);
    end(n);
}

static void test_abandon_frees(void) {
    node *n = make();
    uint64_t position, sequence;
    uint8_t *at;
    for (int i = 0; i < 100; i++) { /* prepared, used, never submitted: the space must not be lost */
        CHECK(wr_port_alloc(&n->port, ARENA / 4, &position, &at) == 0);
        CHECK(wr_port_prepare(&n->port, 1, &sequence) && sequence == 0 && wr_port_use(&n->port, 1, sequence) == 0);
        wr_port_abandon(&n->port, 1, sequence);
    }
    end(n);
}

/* Random traffic against a shadow of the arena. A blob is needed while one of its commands is not below its server's head. */
typedef struct {
    uint64_t position, length;
    uint32_t uses_n;
    struct {
        uint32_t server;
        uint64_t sequence;
    } uses[SERVERS];
} blob;

static uint64_t seed = 88172645463325252ull;
static uint64_t draw(uint64_t below) {
    seed ^= seed << 13;
    seed ^= seed >> 7;
    seed ^= seed << 17;
    return seed % below;
}

static bool needed(const blob *b, const uint64_t *heads) {
    for (uint32_t u = 0; u < b->uses_n; u++)
        if (b->uses[u].sequence >= heads[b->uses[u].server]) return true;
    return false;
}

static void test_random(uint32_t rounds) {
    node *n = make();
    static blob blobs[SERVERS * RING + 1];
    uint32_t blobs_n = 0;
    uint64_t heads[SERVERS] = {0}, allocated = 0, waited = 0;
    for (uint32_t round = 0; round < rounds; round++) {
        if (draw(3)) {
            uint32_t first = (uint32_t)draw(SERVERS), count = draw(5) ? 1 : 1 + (uint32_t)draw(SERVERS);
            uint64_t length = draw(20) ? draw(300) : draw(ARENA / 2), position;
            uint8_t *at;
            bool room = true;
            for (uint32_t s = 0; s < count; s++)
                room &= n->port.prepared[(first + s) % SERVERS] - heads[(first + s) % SERVERS] < RING;
            int error = room ? wr_port_alloc(&n->port, length, &position, &at) : EAGAIN;
            if (!error) {
                allocated++;
                CHECK((position & (ARENA - 1)) + length <= ARENA); /* never wraps */
                CHECK(at == n->port.view.arena + (position & (ARENA - 1)));
                blob b = {.position = position, .length = length};
                for (uint32_t i = 0; i < blobs_n; i++) { /* no needed byte is given out again */
                    uint64_t from = blobs[i].position & (ARENA - 1), mine = position & (ARENA - 1);
                    bool apart = mine + length <= from || from + blobs[i].length <= mine;
                    CHECK(apart || !needed(&blobs[i], heads));
                }
                for (uint32_t s = 0; s < count; s++) {
                    uint32_t server = (first + s) % SERVERS;
                    uint64_t sequence;
                    wr_command *c = wr_port_prepare(&n->port, server, &sequence);
                    CHECK(c);
                    c->body = position;
                    c->length = (uint32_t)length;
                    CHECK(wr_port_use(&n->port, server, sequence) == 0);
                    b.uses[b.uses_n].server = server;
                    b.uses[b.uses_n++].sequence = sequence;
                }
                uint32_t kept = 0;
                for (uint32_t i = 0; i < blobs_n; i++)
                    if (needed(&blobs[i], heads)) blobs[kept++] = blobs[i];
                blobs_n = kept;
                blobs[blobs_n++] = b;
                if (draw(2))
                    for (uint32_t s = 0; s < SERVERS; s++) wr_port_submit(&n->port, s);
            } else {
                CHECK(error == EAGAIN);
                waited++;
                for (uint32_t s = 0; s < SERVERS; s++) wr_port_submit(&n->port, s);
            }
        } else {
            uint32_t server = (uint32_t)draw(SERVERS);
            uint64_t tail = atomic_load(&n->port.view.links[server].tail);
            heads[server] += draw(tail - heads[server] + 1);
            set_head(n, server, heads[server]);
        }
    }
    /* Everything done: the whole arena is there again. */
    for (uint32_t s = 0; s < SERVERS; s++) {
        wr_port_submit(&n->port, s);
        set_head(n, s, atomic_load(&n->port.view.links[s].tail));
    }
    uint64_t position;
    uint8_t *at;
    wr_port_reclaim(&n->port);
    CHECK(n->port.arena_freed == n->port.arena_next);
    CHECK(wr_port_alloc(&n->port, ARENA / 2, &position, &at) == 0);
    CHECK(wr_port_alloc(&n->port, ARENA / 2, &position, &at) == 0);
    CHECK(allocated > rounds / 4 && waited > 0);
    end(n);
}

int main(void) {
    test_ring();
    test_bell();
    test_arena_limits();
    test_shared_blob();
    test_abandon_frees();
    test_random(200000);
    return 0;
}
