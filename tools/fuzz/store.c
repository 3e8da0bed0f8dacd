/* Target: the store server's reading of client regions. The input is a program of a hostile client, or of two, and of the server's
 * rounds and commits; a well-behaved client works beside them.
 *
 * Checked: no bad access; the good client is served, its link stays open and what it wrote is read back; a link is closed with a
 * reason; the index stays sound; a client that ends is swept. Store.race: the same with a thread that changes the region meanwhile. */
#define _GNU_SOURCE
#include "hostile.h"
#include "store/world.h"

enum { HOSTILES = 2, GOOD_SLOT = 9, GOOD_MESSAGES = 48, ROUNDS_MAX = 400 };

static world w;
static wr_store_server *server_memory;
static hostile hostiles[HOSTILES];
static struct {
    wr_view view;
    uint8_t *region;
    uint64_t secret, next[2], arena_next;
    uint32_t n;
    struct {
        uint8_t id[16];
        uint32_t server, length;
        bool removed;
    } messages[GOOD_MESSAGES];
} good;
static uint32_t rounds;
static bool gate; /* files go only when a queue worker has resynced */

static void body_of(uint8_t *to, uint32_t n, uint32_t length) {
    for (uint32_t i = 0; i < length; i++) to[i] = (uint8_t)(fuzz_mix(good.secret + n) >> (i % 8 * 8)) ^ (uint8_t)i;
}

static void run_rounds(uint32_t n) {
    while (n-- && rounds < ROUNDS_MAX && !w.full) {
        rounds++;
        bool was[HOSTILES][2];
        for (int i = 0; i < HOSTILES; i++)
            for (uint32_t k = 0; k < 2; k++) was[i][k] = w.server->stores[k].links[hostiles[i].slot].evicted;
        world_run(&w);
#ifndef FUZZ_RACE
        for (int i = 0; i < HOSTILES; i++)
            for (uint32_t k = 0; k < 2; k++)
                if (!was[i][k] && w.server->stores[k].links[hostiles[i].slot].evicted && hostiles[i].attached)
                    FUZZ_CHECK(atomic_load(&hostiles[i].view.links[k].evicted) != 0);
#else
        (void)was;
#endif
    }
}

static void attach(hostile *h, bool starting) {
    atomic_store(&wr_superblock_slot(w.super, h->slot)->claim, 1ull << 32 | (uint64_t)h->generation << 8 | WR_SLOT_ACTIVE);
    FUZZ_CHECK(wr_store_server_attach(w.server, h->slot, h->generation, h->client_epoch, h->region, h->bytes, h->holder, w.epochs, starting) == 0);
    h->attached = true;
}

/* The client ends; the server must be done with it after some rounds, whatever its memory says. */
static void detach(hostile *h) {
    if (!h->attached) return;
    for (int i = 0; i < HOSTILES; i++) { /* a worker's successor waits for its predecessor */
        hostile *other = &hostiles[i];
        if (other->attached && other->holder >= 0 && h->holder >= 0 && other->client_epoch < h->client_epoch) detach(other);
    }
    wr_store_server_close(w.server, h->slot);
    for (int tries = 0; wr_store_server_detach(w.server, h->slot); tries++) {
        if (w.full) return;
        FUZZ_CHECK(tries < 200);
        if (tries == 100) w.server->workers_resynced = w.server->workers_all; /* a command may wait for a worker's resync */
        world_run(&w);
        w.server->stores[0].want_sync = true;
        for (uint32_t n = 0; n < 2; n++) {
            for (uint32_t i = 0; i < WR_CLIENT_SLOTS; i++) w.server->stores[n].links[i].stalled = false;
            w.server->stores[n].want_written = true;
            world_commit(&w, n);
        }
    }
    h->attached = false;
}

static void good_submit(uint32_t server) {
    atomic_store_explicit(&good.view.links[server].tail, good.next[server], memory_order_release);
}

static void good_wait(uint32_t server) {
    wr_link *link = &good.view.links[server];
    for (int tries = 0; atomic_load(&link->synced) < good.next[server]; tries++) {
        if (w.full) return;
        FUZZ_CHECK(tries < 300);
        FUZZ_CHECK(atomic_load(&link->evicted) == 0);
        world_run(&w);
        for (uint32_t n = 0; n < 2; n++) world_commit(&w, n);
    }
}

static wr_command *good_command(uint32_t server, uint8_t op) {
    wr_command *c = wr_view_command(&good.view, server, good.next[server]++);
    memset((void *)c, 0, sizeof *c);
    c->op = op;
    c->flags = WR_FLAG_SYNCED;
    return c;
}

static uint8_t *good_blob(uint32_t length, uint64_t *position) {
    uint64_t room = good.view.g.arena_bytes - good.arena_next % good.view.g.arena_bytes;
    if (room < length) good.arena_next += room;
    *position = good.arena_next;
    good.arena_next += (length + 7) & ~7u;
    return wr_view_blob(&good.view, *position, length);
}

/* Every other run with counted ids, which lie in the dense part of the index. */
static void good_id(uint8_t id[16], uint32_t n) {
    uint64_t half = fuzz_mix(good.secret);
    wr_put64(id, good.secret & 1 ? half >> 12 : half);
    wr_put64(id + 8, n);
}

/* All in one command. */
static void good_batch(uint32_t server, uint32_t length, uint32_t count) {
    if (count > GOOD_MESSAGES - good.n) count = GOOD_MESSAGES - good.n;
    if (!count || w.full) return;
    uint64_t position;
    uint32_t first = good.n, total = count * (8 + length);
    uint8_t *blob = good_blob(total, &position);
    for (uint32_t i = 0; i < count; i++, good.n++) {
        uint32_t words[2] = {WR_FLYING_WRITTEN, (i + 1) * length};
        memcpy(blob + 4 * i, &words[0], 4);
        memcpy(blob + 4 * (count + i), &words[1], 4);
        body_of(blob + 8 * count + i * length, good.n, length);
        good.messages[good.n].server = server;
        good.messages[good.n].length = length;
        good.messages[good.n].removed = false;
        good_id(good.messages[good.n].id, good.n);
    }
    wr_command *c = good_command(server, WR_OP_STORE_WRITE_MANY);
    good_id(c->id, first);
    c->body = position;
    c->length = total;
    c->count = count;
    good_submit(server);
    good_wait(server);
}

static void good_write(uint32_t server, uint32_t length, uint32_t count) {
    while (count-- && good.n < GOOD_MESSAGES && !w.full) {
        uint32_t n = good.n++;
        good.messages[n].server = server;
        good.messages[n].length = length;
        good.messages[n].removed = false;
        good_id(good.messages[n].id, n);
        wr_command *c = good_command(server, WR_OP_STORE_WRITE);
        memcpy(c->id, good.messages[n].id, 16);
        uint64_t position;
        body_of(good_blob(length, &position), n, length);
        c->body = position;
        c->length = length;
        atomic_store(&c->flying, WR_FLYING_WRITTEN);
    }
    good_submit(server);
    good_wait(server);
}

static void good_remove(uint32_t n) {
    if (n >= good.n || good.messages[n].removed || w.full) return;
    uint32_t server = good.messages[n].server;
    wr_command *c = good_command(server, WR_OP_STORE_REMOVE);
    uint64_t position;
    memcpy(good_blob(16, &position), good.messages[n].id, 16);
    c->body = position;
    c->length = 16;
    c->count = 1;
    good.messages[n].removed = true;
    good_submit(server);
    good_wait(server);
}

static void good_check(void) {
    static uint8_t body[16 * 1024];
    for (uint32_t i = 0; i < good.n && !w.full; i++) {
        const uint8_t *id = good.messages[i].id;
        uint32_t server = good.messages[i].server;
        if (good.messages[i].removed) {
            wr_index_entry *entry = wr_index_find(&w.server->stores[server].index, id);
            FUZZ_CHECK(!entry || !wr_entry_held(entry));
            continue;
        }
        body_of(body, i, good.messages[i].length);
        world_expect(&w, server, id, body, good.messages[i].length);
    }
}

static const uint8_t ops[] = {WR_OP_STORE_WRITE,        WR_OP_STORE_WRITE,      WR_OP_STORE_REMOVE,     WR_OP_STORE_CONTAINS,
                              WR_OP_STORE_BARRIER,      WR_OP_STORE_RESYNC_BEGIN, WR_OP_STORE_RESYNC_IDS, WR_OP_STORE_RESYNC_END,
                              WR_OP_STORE_WRITE_MANY,   WR_OP_STORE_WRITE_MANY, WR_OP_STORE_TERMINATE,  WR_OP_PUBLISH};

static void small_id(fuzz_input *in, uint8_t id[16]) {
    uint8_t how = fuzz8(in);
    good_id(id, 0);
    if (!(how & 2)) wr_put64(id, how & 1 ? 1000 : how >> 2);
    wr_put64(id + 8, how & 0x80 ? fuzz64(in) : fuzz16(in));
    if (how & 2) id[8] |= 0x40; /* of the good client's epoch, but none of its ids: those are nobody else's to know */
}

/* A command that is right but for what the input makes wrong. */
static void crafted(hostile *h, fuzz_input *in, uint32_t server) {
    wr_link *link = &h->view.links[server];
    uint64_t tail = atomic_load(&link->tail);
    wr_command *c = wr_view_command(&h->view, server, tail);
    uint16_t wrong = fuzz16(in);
    memset((void *)c, 0, sizeof *c);
    c->op = ops[fuzz8(in) % sizeof ops];
    c->flags = wrong & 1 ? fuzz8(in) : (uint8_t)(wrong >> 14);
    atomic_store(&c->flying, wrong & 2 ? fuzz8(in) : WR_FLYING_WRITTEN);
    small_id(in, c->id);
    c->body = wrong & 4 ? fuzz_size(in, h->view.g.arena_bytes) : fuzz16(in);
    c->length = wrong & 8 ? (uint32_t)fuzz_size(in, 16 * 1024) : fuzz16(in) & 0x3ff;
    if (wrong & 16) c->meta_length = fuzz16(in);
    if (wrong & 32) c->tag = (uint64_t)fuzz8(in) << 16 | fuzz8(in);
    if (wrong & 64) c->tag = fuzz64(in);
    if (wrong & 128) c->row = fuzz32(in);
    c->count = wrong & 256 ? fuzz_size(in, 4096) : c->length / 16;
    if (c->op == WR_OP_STORE_REMOVE || c->op == WR_OP_STORE_RESYNC_IDS) {
        if (!(wrong & 512)) c->length = (uint32_t)c->count * 16;
        uint8_t *blob = wr_view_blob(&h->view, c->body, c->length);
        for (uint64_t i = 0; blob && i < c->count && i < 32 && i * 16 + 16 <= c->length && wrong & 1024; i++) small_id(in, blob + 16 * i);
    }
    if (c->op == WR_OP_STORE_WRITE_MANY) {
        uint32_t n = wrong & 256 ? (uint32_t)c->count : fuzz8(in);
        c->count = n;
        uint64_t ends = 0, head = 8ull * n;
        uint32_t step = fuzz8(in);
        if (!(wrong & 8)) c->length = (uint32_t)(head + (uint64_t)n * step);
        uint8_t *blob = n <= 4096 ? wr_view_blob(&h->view, c->body, c->length) : NULL;
        if (blob && head <= c->length && !((uintptr_t)blob & 3)) {
            for (uint32_t i = 0; i < n; i++) {
                ends += step;
                ((uint32_t *)(void *)blob)[i] = WR_FLYING_WRITTEN;
                ((uint32_t *)(void *)blob)[n + i] = (uint32_t)ends;
            }
            for (uint32_t i = 0; n && i < (wrong >> 9 & 3); i++) ((uint32_t *)(void *)blob)[fuzz16(in) % (2 * n)] = (uint32_t)fuzz_size(in, ends);
        }
    }
    if (!(wrong & 2048)) atomic_store(&link->tail, tail + 1);
}

/* kill -9 of the server, and another one: what was confirmed is there, links are taken up again. */
static void restart(bool commits) {
    if (w.full) return;
    for (uint32_t n = 0; n < 2 && commits; n++) world_commit(&w, n);
    world_kill(&w);
    world_start(&w, server_memory);
    if (!gate) w.server->workers_all = 0;
    world_recover(&w);
    if (w.full) return;
    for (uint32_t i = 0; i < good.n; i++)
        if (good.messages[i].server == WR_SERVER_STORE_TRANSIENT) good.messages[i].removed = true;
    good_check();
    FUZZ_CHECK(wr_store_server_attach(w.server, GOOD_SLOT, 1, fuzz_mix(good.secret), good.region, w.client_bytes, -1, w.epochs, true) == 0);
    for (int i = 0; i < HOSTILES; i++)
        if (hostiles[i].attached) attach(&hostiles[i], true);
    world_events(&w, 0);
}

static void setup(const uint8_t *data, size_t size, uint8_t mode) {
    world_superblock(&w, 1);
    gate = mode & 8;
    if (!server_memory) server_memory = aligned_alloc(64, (sizeof *server_memory + 63) & ~(size_t)63);
    FUZZ_CHECK(server_memory);
    w.next_file[0] = w.next_file[1] = 0;
    w.full = false;
    rounds = 0;
    world_start(&w, server_memory);
    if (!gate) w.server->workers_all = 0;
    world_recover(&w);
    world_events(&w, 0);
    wr_geometry g = wr_geometry_of(w.super);
    for (int i = 0; i < HOSTILES; i++) {
        hostile *h = &hostiles[i];
        if (!h->region) h->region = fuzz_memory(w.client_bytes);
        memset(h->region, 0, w.client_bytes);
        h->bytes = w.client_bytes;
        h->slot = (uint32_t)(3 + i);
        h->generation = 1;
        h->client_epoch = 1000 + (uint64_t)i;
        h->holder = -1;
        h->attached = false;
        FUZZ_CHECK(wr_view_init(&h->view, h->region, h->bytes, &g) == 0);
    }
    if (!good.region) good.region = fuzz_memory(w.client_bytes);
    memset(good.region, 0, w.client_bytes);
    FUZZ_CHECK(wr_view_init(&good.view, good.region, w.client_bytes, &g) == 0);
    good.secret = fuzz_secret(data, size);
    good.next[0] = good.next[1] = good.arena_next = 0;
    good.n = 0;
    atomic_store(&wr_superblock_slot(w.super, GOOD_SLOT)->claim, 2ull << 32 | 1 << 8 | WR_SLOT_ACTIVE);
    FUZZ_CHECK(wr_store_server_attach(w.server, GOOD_SLOT, 1, fuzz_mix(good.secret), good.region, w.client_bytes, -1, w.epochs, true) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    fuzz_input in = {data, size};
    uint8_t mode = fuzz8(&in);
    setup(data, size, mode);
    hostiles[0].holder = mode & 1 ? 0 : -1;
    hostiles[1].holder = mode & 2 ? 0 : -1;
    hostile_raw(&hostiles[0], &in);
    attach(&hostiles[0], mode & 4);
    race_on(&hostiles[0], good.secret);
    while (in.left && !w.full) {
        uint8_t what = fuzz8(&in);
        hostile *h = &hostiles[what >> 7];
        uint32_t server = what >> 6 & 1;
        switch (what % 16) {
        case 0:
            hostile_raw(h, &in);
            break;
        case 1:
            hostile_fill(h, &in);
            break;
        case 2:
            hostile_link(h, &in, server);
            break;
        case 3:
            fuzz_bytes(&in, (void *)wr_view_command(&h->view, server, fuzz8(&in)), in.left < 64 ? in.left : 64);
            break;
        case 4: /* a blob's head */
            fuzz_bytes(&in, h->view.arena + fuzz16(&in) % (h->view.g.arena_bytes - 64), in.left < 64 ? in.left : 64);
            break;
        case 5:
        case 6:
        case 7:
            crafted(h, &in, server);
            break;
        case 8: {
            wr_link *link = &h->view.links[server];
            atomic_store(&link->tail, atomic_load(&link->tail) + fuzz8(&in) % (WORLD_RING + 2));
            break;
        }
        case 9:
        case 10:
            run_rounds(1 + (what >> 4 & 3));
            break;
        case 11:
            run_rounds(1);
            world_commit(&w, server);
            run_rounds(1);
            break;
        case 12:
        {
            uint32_t length = fuzz16(&in), count = fuzz8(&in);
            if (what & 16) good_batch(server, length % 1500, 1 + count % 32);
            else good_write(server, length % 8000, 1 + count % 4);
            break;
        }
        case 13:
            good_remove(fuzz8(&in));
            break;
        case 14: { /* the directory is everybody's to write */
            if (what & 32) {
                wr_store_server_dying(w.server, fuzz8(&in), h->slot, h->generation - (what >> 4 & 1), fuzz16(&in));
                break;
            }
            uint32_t row = fuzz8(&in);
            _Atomic uint64_t *word = (_Atomic uint64_t *)w.regions[server].directory + row;
            atomic_store(word, fuzz8(&in) & 1 ? wr_directory_word(fuzz16(&in), h->slot, fuzz16(&in)) : fuzz64(&in));
            break;
        }
        default:
            race_off();
            if (what & 16) {
                restart(what & 32);
            } else if (h->attached) {
                detach(h);
                if (!w.full) FUZZ_CHECK(w.server->finished[h->slot]);
            } else {
                uint8_t how = fuzz8(&in);
                h->generation++;
                if (how & 1) h->client_epoch += HOSTILES;
                if (how & 2) h->holder = how & 4 ? 0 : -1;
                if (how & 8) memset(h->region, 0, 4096 + 3 * sizeof(wr_link));
                attach(h, how & 16);
            }
            race_on(&hostiles[0], good.secret);
            break;
        }
    }
    if (!w.full) {
        good_write(0, 100, 1);
        good_write(1, 100, 1);
    }
    race_off();
    for (int i = 0; i < HOSTILES; i++) detach(&hostiles[i]);
    if (!w.full) {
        good_check();
        world_check(&w);
    }
    world_stop(&w);
    return 0;
}
