/* A store server whose memory runs out. Goal: what was confirmed is there, in memory and in the files, what was removed is not, and
 * nothing leaks, whichever allocation fails; a call that says ENOMEM works when it is called again.
 * Method: a server, its committers and a client on one thread, over files that roll, settle, become empty and go; then a kill and a
 * start from the files; each time with another allocation that fails. */
#define _GNU_SOURCE
#include "support/check.h"
#include "support/scarce.h"

#define AGAIN_POINTER(call)                                  \
    ({                                                       \
        bool before_ = scarce_failed();                      \
        __auto_type found_ = (call);                         \
        if (!found_) {                                       \
            CHECK(!before_ && scarce_failed());              \
            found_ = (call);                                 \
        }                                                    \
        found_;                                              \
    })
#define WORLD_TRY SCARCE_AGAIN
#define WORLD_TRY_POINTER AGAIN_POINTER
#include "store/world.h"
#include "store/client.h"

enum { SLOT = 9, EPOCHS = 34, IDS = 160, BATCH = 20, BODY = 2000 };

static world w;
static wr_store_server *server_memory;
static wr_port ports[EPOCHS];
static void *regions[EPOCHS];
static bool there[2][IDS];

static void id_of(uint8_t id[16], uint64_t n) {
    wr_put64(id, n % 3 ? 77 : 1ull << 60 | n); /* counted ids, and others */
    wr_put64(id + 8, n);
}

static uint32_t body_of(uint8_t *to, uint64_t n) {
    uint32_t length = (uint32_t)(n * 37 % BODY);
    for (uint32_t i = 0; i < length; i++) to[i] = (uint8_t)(n + i);
    return length;
}

static void serve(void) {
    for (int i = 0; i < 4; i++) {
        world_run(&w);
        for (uint32_t n = 0; n < 2; n++) { /* as at a tick */
            w.server->stores[n].want_sync = w.server->stores[n].want_written = true;
            world_commit(&w, n);
        }
    }
}

static void attach(uint32_t slot) {
    atomic_store(&wr_superblock_slot(w.super, slot)->claim, 1ull << 32 | 1 << 8 | WR_SLOT_ACTIVE);
    CHECK(!SCARCE_AGAIN(wr_store_server_attach(w.server, slot, 1, slot + 1, regions[slot], w.client_bytes, -1, w.epochs, true)));
}

static wr_store_client client_of(uint32_t slot, uint32_t number) {
    return (wr_store_client){.port = &ports[slot],
                             .server = number,
                             .directory = w.regions[number].directory,
                             .directory_rows = w.super->directory_rows,
                             .summary = w.regions[number].summary,
                             .summary_rows = w.super->summary_rows,
                             .images = w.regions[number].images,
                             .images_n = w.super->images_n,
                             .file_bytes = w.super->file_bytes,
                             .rows_known = true,
                             .directory_fd = -1,
                             .node_id = w.super->node_id};
}

/* Until all that a client submitted is synced. */
static void finish(uint32_t slot, uint32_t number) {
    wr_link *link = &ports[slot].view.links[number];
    wr_port_submit(&ports[slot], number);
    for (int tries = 0; atomic_load(&link->head) < atomic_load(&link->tail); tries++) {
        CHECK(tries < 100 && !atomic_load(&link->evicted) && !w.full);
        serve();
    }
}

static void finish_all(void) {
    for (uint32_t slot = 0; slot < EPOCHS; slot++)
        for (uint32_t number = 0; number < 2; number++) finish(slot, number);
}

static void write_one(uint32_t slot, uint32_t number, uint64_t n) {
    wr_store_client s = client_of(slot, number);
    uint8_t id[16], body[BODY], *to;
    uint64_t position, sequence;
    uint32_t length = body_of(body, n);
    id_of(id, n);
    for (int error = EAGAIN; error;) {
        error = wr_port_alloc(&ports[slot], length, &position, &to);
        if (!error) memcpy(to, body, length);
        if (!error) error = SCARCE_AGAIN(wr_store_client_write(&s, id, position, length, 0, 0, WR_FLAG_SYNCED, &sequence));
        if (!error) CHECK(!SCARCE_AGAIN(wr_port_use(&ports[slot], number, sequence)));
        if (error) finish_all(); /* the directory is everybody's */
    }
    there[number][n] = true;
}

static void write_batch(uint32_t slot, uint32_t number, uint64_t first) {
    wr_store_client s = client_of(slot, number);
    static uint8_t bodies[BATCH][BODY];
    wr_store_body parts[BATCH];
    uint8_t id[16];
    uint64_t sequence;
    wr_put64(id, 77);
    wr_put64(id + 8, first);
    for (uint32_t i = 0; i < BATCH; i++) parts[i] = (wr_store_body){bodies[i], body_of(bodies[i], first + i)};
    int error;
    while ((error = SCARCE_AGAIN(wr_store_client_write_many(&s, id, parts, BATCH, WR_FLAG_SYNCED, &sequence)))) {
        CHECK(error == EAGAIN);
        finish(slot, number);
    }
}

static void remove_one(uint32_t slot, uint32_t number, uint64_t n) {
    wr_store_client s = client_of(slot, number);
    uint8_t id[16];
    uint32_t eliminated;
    int error;
    id_of(id, n);
    finish(slot, number);
    while ((error = SCARCE_AGAIN(wr_store_client_remove(&s, (const uint8_t (*)[16])id, 1, &eliminated)))) {
        CHECK(error == EAGAIN);
        finish(slot, number);
    }
    there[number][n] = false;
}

static void check(uint32_t stores) {
    for (uint32_t number = 0; number < stores; number++)
        for (uint64_t n = 0; n < IDS; n++) {
            uint8_t id[16], body[BODY];
            uint32_t length = body_of(body, n);
            id_of(id, n);
            if (there[number][n]) {
                world_expect(&w, number, id, body, length);
            } else {
                const wr_index_entry *entry = wr_index_find(&w.server->stores[number].index, id);
                CHECK(!entry || !wr_entry_held(entry));
            }
        }
    world_check(&w);
}

static void scenario(uint64_t n) {
    world_superblock(&w, 0);
    wr_geometry g = wr_geometry_of(w.super);
    CHECK(w.client_bytes == wr_view_bytes(&g));
    for (uint32_t slot = 0; slot < EPOCHS; slot++) {
        regions[slot] = guarded_new(w.client_bytes);
        CHECK(!wr_port_init(&ports[slot], w.super, regions[slot], w.client_bytes, slot, 1, slot + 1));
    }
    memset(there, 0, sizeof there);
    scarce_begin(n);
    world_start(&w, server_memory);
    world_recover(&w);
    world_events(&w, 0);
    for (uint32_t slot = 0; slot < EPOCHS; slot++) attach(slot);
    for (uint64_t i = 0; i < IDS; i++)
        for (uint32_t number = 0; number < 2; number++) write_one((uint32_t)i % EPOCHS, number, i);
    finish_all();
    check(2);
    for (uint64_t i = 0; i < IDS; i++)
        if (i % 8) remove_one((uint32_t)i % EPOCHS, i % 2, i);
    finish_all();
    check(2);
    for (uint64_t i = 0; i < IDS; i++) /* whole files become empty, and go */
        for (uint32_t number = 0; number < 2; number++)
            if (there[number][i]) remove_one((uint32_t)i % EPOCHS, number, i);
    finish_all();
    for (int i = 0; i < 20; i++) serve();
    check(2);
    for (uint32_t number = 0; number < 2; number++) CHECK(w.server->stores[number].retired_n > 0 || scarce_failed());
    write_batch(1, 0, 1000);
    for (uint64_t i = 0; i < IDS; i += 4) write_one(2, 0, i);
    finish(1, 0);
    finish(2, 0);
    check(1);
    world_kill(&w);
    world_start(&w, server_memory);
    world_recover(&w);
    CHECK(!w.full);
    world_events(&w, 0);
    check(1);
    for (uint32_t i = 0; i < BATCH; i++) {
        uint8_t id[16], body[BODY];
        wr_put64(id, 77);
        wr_put64(id + 8, 1000 + i);
        uint32_t length = body_of(body, 1000 + i);
        world_expect(&w, 0, id, body, length);
    }
    for (uint32_t slot = 0; slot < EPOCHS; slot++) attach(slot);
    serve();
    world_stop(&w);
    for (uint32_t slot = 0; slot < EPOCHS; slot++) {
        wr_port_free(&ports[slot]);
        guarded_free(regions[slot], w.client_bytes);
    }
}

/* One file becomes empty, and nothing else happens: it goes, whatever was short when it was looked at first. */
static void one_file(uint64_t n) {
    world_superblock(&w, 0);
    regions[1] = guarded_new(w.client_bytes);
    CHECK(!wr_port_init(&ports[1], w.super, regions[1], w.client_bytes, 1, 1, 2));
    memset(there, 0, sizeof there);
    world_start(&w, server_memory);
    world_recover(&w);
    world_events(&w, 0);
    attach(1);
    const wr_store *store = &w.server->stores[0];
    uint64_t first = wr_log_look(store->log)->file, i = 0;
    while (wr_log_look(store->log)->file < first + 2) {
        write_one(1, 0, i++ % IDS);
        finish(1, 0);
    }
    for (int turns = 0; turns < 20; turns++) serve();
    CHECK(!store->gone_size && !store->retired_n);
    scarce_begin(n);
    for (uint64_t id = 0; wr_store_file(store, first) && wr_row_load(&wr_store_file(store, first)->valid_total_size); id++) remove_one(1, 0, id);
    finish(1, 0);
    for (int turns = 0; turns < 20; turns++) serve();
    CHECK(store->retired_n == 1);
    world_stop(&w);
    wr_port_free(&ports[1]);
    guarded_free(regions[1], w.client_bytes);
}

int main(void) {
    server_memory = aligned_alloc(64, (sizeof *server_memory + 63) & ~(size_t)63);
    CHECK(server_memory);
    world_superblock(&w, 0); /* its folders are made once */
    scarce_count found = scarce_each(scenario, SCARCE_FEW);
    scarce_count alone = scarce_each(one_file, 1);
    CHECK(alone.unhurt);
    printf("store_memory_test: ended %u, said %u, unhurt %u\n", found.ended, found.said, found.unhurt);
    CHECK(found.unhurt > 20 / SCARCE_FEW);
    free(server_memory);
    guarded_free(w.super, WR_SUPERBLOCK_BYTES);
    return 0;
}
