/* Goal: what the store's server promises where several things meet: batches that are interrupted, dying clients, ids written again with
 * other bytes, files that settle, go, and are collected, workers that resync.
 * Method: one thread is loop and clients at once, so the order of events is what the test says. A kill: the committers end, all
 * memory of the server goes, a new one reads the files and takes up the clients' regions. */
#include "store/rig.h"

enum { CLIENTS = 4 };

static rig *r;
static wr_store *store;
static pthread_t committers[2];
static void *areas[CLIENTS];
static wr_port ports[CLIENTS];
static wr_store_client clients[CLIENTS];
static int holders[CLIENTS] = {-1, -1, 0, 1};

static void *commit(void *number) {
    wr_store *of = &r->server->stores[(uintptr_t)number];
    wr_log_commit_run(of->log, &r->server->stores[0].row->sleeping);
    return NULL;
}

static void attach(uint32_t slot, bool starting) {
    uint64_t epochs[2] = {r->generation, r->generation};
    atomic_store(&wr_superblock_slot(super, slot)->claim, 1ull << 32 | 1 << 8 | WR_SLOT_ACTIVE);
    CHECK(wr_store_server_attach(r->server, slot, 1, slot + 1, areas[slot], client_bytes, holders[slot], epochs, starting) == 0);
}

static wr_view *view_of(void *context, uint32_t slot, uint32_t generation) {
    (void)context;
    return slot < CLIENTS && generation == 1 ? &ports[slot].view : NULL;
}

static void serve_server(void) {
    store = &r->server->stores[0];
    r->server->slots_seen = atomic_load(&super->slots_version);
    for (uintptr_t n = 0; n < 2; n++) CHECK(pthread_create(&committers[n], NULL, commit, (void *)n) == 0);
    publish(r);
    for (uint32_t slot = 0; slot < CLIENTS; slot++) {
        wr_store_client *s = &clients[slot];
        wr_store_client_close(s);
        *s = (wr_store_client){.port = &ports[slot],
                               .directory = r->regions[0].directory,
                               .directory_rows = super->directory_rows,
                               .summary = r->regions[0].summary,
                               .summary_rows = super->summary_rows,
                               .images = r->regions[0].images,
                               .images_n = super->images_n,
                               .file_bytes = super->file_bytes,
                               .directory_fd = r->folder_fd[0],
                               .node_id = super->node_id,
                               .view_of = view_of};
    }
}

static void begin(uint32_t workers) {
    make_folder();
    make_superblock();
    super->servers_n = 2 + workers;
    super->arena_bytes = 1 << 20;
    geometry_done();
    r = make_rig(4096);
    for (int n = 0; n < 2; n++) wr_store_finish(&r->server->stores[n]);
    for (uint32_t slot = 0; slot < CLIENTS; slot++) {
        areas[slot] = zeroed(client_bytes);
        CHECK(wr_port_init(&ports[slot], super, areas[slot], client_bytes, slot, 1, slot + 1) == 0);
        attach(slot, true);
    }
    serve_server();
    serve_events(r);
}

static void end_committers(void) {
    for (uint32_t n = 0; n < 2; n++) wr_log_stop(r->server->stores[n].log);
    for (uint32_t n = 0; n < 2; n++) pthread_join(committers[n], NULL);
}

static void finish_all(void) {
    end_committers();
    for (uint32_t slot = 0; slot < CLIENTS; slot++) {
        wr_store_client_close(&clients[slot]);
        wr_port_free(&ports[slot]);
    }
    drop_rig(r);
    for (uint32_t slot = 0; slot < CLIENTS; slot++) munmap(areas[slot], client_bytes);
    munmap(super, WR_SUPERBLOCK_BYTES);
    clean_up();
    next_file = 0;
}

/* Kill the server, start another one. */
static void kill_and_start(void) {
    end_committers();
    drop_rig(r);
    r = make_rig(4096);
    recover(r);
    for (uint32_t slot = 0; slot < CLIENTS; slot++) attach(slot, true);
    serve_server();
}

static void one_round(void) { wr_store_server_run(r->server, 0); }

/* A round at a tick of the timer. */
static void tick(void) {
    r->server->timer_at = 1;
    one_round();
}

/* Until everything is executed and durable. */
static void until_done(void) {
    uint64_t end = wr_now_ns() + 20000000000ull;
    do {
        CHECK(wr_now_ns() < end);
        wr_store_server_run(r->server, 1000000);
        serve_events(r);
    } while (!wr_store_server_all_durable(r->server));
}

static void until_durable(void) {
    uint64_t mark = wr_store_log_mark(store);
    uint64_t end = wr_now_ns() + 20000000000ull;
    while (!wr_store_log_durable(store, mark)) {
        CHECK(wr_now_ns() < end);
        wr_store_server_run(r->server, 1000000);
    }
}

static void id_of(uint8_t id[16], uint64_t epoch, uint64_t n) {
    wr_put64(id, epoch);
    wr_put64(id + 8, n);
}

static wr_index_entry *find(uint64_t epoch, uint64_t n) {
    uint8_t id[16];
    id_of(id, epoch, n);
    return wr_index_find(&store->index, id);
}

static uint32_t refs(uint64_t epoch, uint64_t n) {
    const wr_index_entry *entry = find(epoch, n);
    return entry ? entry->ref_count : 0;
}

/* Prepare; not submitted. */
static uint64_t put(uint32_t slot, uint64_t epoch, uint64_t n, uint32_t length, uint8_t fill) {
    uint64_t position, sequence;
    uint8_t id[16], *to;
    id_of(id, epoch, n);
    CHECK(wr_port_alloc(&ports[slot], length, &position, &to) == 0);
    memset(to, fill, length);
    CHECK(wr_store_client_write(&clients[slot], id, position, length, 0, 0, WR_FLAG_SYNCED, &sequence) == 0);
    CHECK(wr_port_use(&ports[slot], 0, sequence) == 0);
    return sequence;
}

static uint64_t put_many(uint32_t slot, uint64_t epoch, uint64_t first, uint32_t count, uint32_t length, uint8_t fill) {
    wr_store_body *bodies = calloc(count, sizeof *bodies);
    uint8_t *text = malloc(length ? length : 1), id[16];
    uint64_t sequence;
    CHECK(bodies && text);
    memset(text, fill, length);
    for (uint32_t i = 0; i < count; i++) bodies[i] = (wr_store_body){text, length};
    id_of(id, epoch, first);
    CHECK(wr_store_client_write_many(&clients[slot], id, bodies, count, WR_FLAG_SYNCED, &sequence) == 0);
    free(bodies);
    free(text);
    return sequence;
}

static uint64_t command(uint32_t slot, uint8_t op, const uint64_t *ids, uint32_t n, uint64_t epoch) {
    uint64_t sequence, position = 0;
    uint8_t *to;
    wr_command *c = wr_port_prepare(&ports[slot], 0, &sequence);
    CHECK(c && wr_port_alloc(&ports[slot], n * 16ull, &position, &to) == 0 && wr_port_use(&ports[slot], 0, sequence) == 0);
    for (uint32_t i = 0; i < n; i++) id_of(to + 16ull * i, epoch, ids[i]);
    c->op = op;
    c->body = position;
    c->length = n * 16;
    c->count = n;
    return sequence;
}

static uint64_t drop(uint32_t slot, uint64_t epoch, uint64_t n) { return command(slot, WR_OP_STORE_REMOVE, &n, 1, epoch); }

static void submit(uint32_t slot) { wr_port_submit(&ports[slot], 0); }

static uint32_t result(uint32_t slot, uint64_t sequence) { return atomic_load(&wr_view_command(&ports[slot].view, 0, sequence)->result); }

static uint8_t first_byte(uint32_t slot, uint64_t epoch, uint64_t n) {
    uint8_t id[16], *body, first;
    uint32_t length;
    uint16_t meta;
    id_of(id, epoch, n);
    int error = wr_store_client_read(&clients[slot], id, &body, &length, &meta);
    CHECK(error == 0 || error == ENOENT);
    if (error) return 0;
    first = body[0];
    free(body);
    return first;
}

static uint32_t directory_rows(void) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < super->directory_rows; i++) n += atomic_load(&store->directory[i]) != 0;
    return n;
}

/* Fill files with messages of an epoch of their own, so that no ring replays the older ones. */
static void age(uint64_t *next) {
    wr_file_ref current = store->current;
    uint32_t rolls = 0;
    for (int n = 0; n < 400 && rolls < 4; n++) {
        put(1, 99, (*next)++, 8000, 9);
        submit(1);
        until_done();
        rolls += store->current.plus_one != current.plus_one;
        current = store->current;
    }
    CHECK(rolls == 4);
    until_done();
}

/* ---- */

/* A batch runs out of files, its server is killed: the rest is executed once, what was done stays done, also for readers. */
static void batch_that_is_interrupted(void) {
    begin(0);
    for (uint64_t n = 100; n < 110; n++) put(1, 5, n, 50, 1); /* some are there already */
    submit(1);
    until_done();
    _Atomic uint32_t *flying;
    uint64_t sequence = put_many(0, 5, 0, 4000, 100, 2);
    const wr_command *c = wr_view_command(&ports[0].view, 0, sequence);
    flying = (_Atomic uint32_t *)wr_view_blob(&ports[0].view, c->body, c->length);
    for (uint32_t i = 3; i < 4000; i += 100) atomic_store(&flying[i], WR_FLYING_ELIMINATED);
    CHECK(directory_rows() == 63);
    submit(0);
    uint64_t offered = next_file; /* nobody makes another file */
    for (int n = 0; n < 50; n++) one_round();
    wr_link *link = &ports[0].view.links[0];
    const wr_store_link *mine = &store->links[0];
    uint32_t done = mine->part; /* a quarter of the file is filled: the rest is for removes */
    CHECK(next_file == offered && done > 500 && done < 4000 && atomic_load(&link->processed) == sequence && mine->stalled);
    CHECK(atomic_load(&flying[0]) == WR_FLYING_DONE && atomic_load(&flying[done]) != WR_FLYING_DONE);
    CHECK(directory_rows() == 63 && first_byte(1, 5, 1) == 2 && first_byte(1, 5, 3999) == 2 && first_byte(1, 5, 3) == 0);
    /* One that is done loses its entry: nobody may find it through the batch's rows. */
    uint8_t id[16];
    id_of(id, 5, 1);
    CHECK(wr_store_drop_lost(store, (const uint8_t (*)[16])id, 1) == 1 && first_byte(1, 5, 1) == 0);
    until_durable();
    CHECK(atomic_load(&link->head) == sequence);
    /* Some frames behind that are in the image only; all of it is lost with the server. */
    kill_and_start();
    CHECK(wr_store_water(store, 1) >> 16 == sequence + 1);
    uint32_t water = (uint16_t)wr_store_water(store, 1);
    CHECK(water == done);
    CHECK(atomic_load(&flying[water]) == WR_FLYING_WRITTEN || atomic_load(&flying[water]) == WR_FLYING_TAKEN);
    atomic_store(&flying[water - 1], WR_FLYING_TAKEN); /* killed between frame and entry */
    one_round();
    CHECK(atomic_load(&flying[water - 1]) == WR_FLYING_DONE);
    CHECK(directory_rows() >= 63 && first_byte(1, 5, 3999) == 2);
    until_done();
    CHECK(atomic_load(&link->head) == sequence + 1 && directory_rows() == 0);
    for (uint64_t n = 0; n < 4000; n++) {
        uint32_t wanted = (n % 100 != 3) + (n >= 100 && n < 110);
        CHECK(refs(5, n) == wanted);
    }
    CHECK(first_byte(1, 5, 105) == 1 && first_byte(1, 5, 3998) == 2);
    CHECK(store->messages == 4000 - 40 + 1); /* 103 was eliminated, and is there from before */
    /* And nothing of it happens again. */
    kill_and_start();
    until_done();
    CHECK(store->messages == 3961);
    for (uint64_t n = 0; n < 4000; n++) CHECK((int)refs(5, n) == (n % 100 != 3) + (n >= 100 && n < 110));
    finish_all();
}

/* Another client's small commands come through while a long batch is executed. */
static void batch_lets_others_go_first(void) {
    begin(0);
    put_many(0, 5, 0, 4096, 0, 2);
    submit(0);
    put(1, 6, 1, 10, 3);
    submit(1);
    one_round();
    CHECK(refs(6, 1) == 1 && store->links[0].part > 0 && store->links[0].part < 4096);
    until_done();
    CHECK(store->messages == 4097);
    finish_all();
}

/* Ids in the hash part when their block comes to exist, and ids that have no dense place at all. */
static void batch_over_both_parts_of_the_index(void) {
    begin(0);
    for (uint64_t n = 0; n < 40; n += 2) put(1, 1ull << 60, n, 10, 1);
    put_many(0, 1ull << 60, 0, 40, 10, 2);
    submit(1);
    submit(0);
    until_done();
    uint32_t twice = 0;
    for (uint64_t n = 0; n < 40; n++) twice += refs(1ull << 60, n) == 2;
    CHECK(twice == 20 && store->messages == 40);
    kill_and_start();
    until_done();
    CHECK(store->messages == 40 && refs(1ull << 60, 0) == 2 && refs(1ull << 60, 1) == 1);
    finish_all();
    /* Counted ids that came before there was an extent. */
    begin(0);
    put_many(0, 5, 0, 40, 10, 1);
    submit(0);
    for (int n = 0; n < 3; n++) one_round();
    CHECK(store->index.hash_live == 40 && store->index.dense_live == 0 && store->index.extents_n == 0);
    serve_events(r);
    CHECK(store->index.extents_n == 1);
    put_many(1, 5, 20, 1100, 10, 1);
    submit(1);
    until_done();
    for (uint64_t n = 0; n < 1120; n++) CHECK(refs(5, n) == (n >= 20 && n < 40 ? 2 : 1));
    CHECK(store->messages == 1120 && store->index.live == 1120 && store->index.dense_live == 1080);
    kill_and_start();
    until_done();
    for (uint64_t n = 0; n < 1120; n++) CHECK(refs(5, n) == (n >= 20 && n < 40 ? 2 : 1));
    finish_all();
}

/* The client says that it dies, and the message comes. */
static void dies(uint32_t slot, uint64_t until) {
    atomic_store(&ports[slot].view.links[0].dying_until, until);
    wr_store_server_dying(r->server, 0, slot, 1, until);
}

/* W1 W2 W1 R1 T W3 R2 W2 R1 R2 R3 W4, and T comes early (the example of rule S9, from RabbitMQ's rabbit_msg_store). */
static void dying_client(bool early) {
    begin(0);
    put(0, 7, 1, 20, 1);
    put(0, 7, 2, 20, 2);
    put(0, 7, 1, 20, 1);
    drop(0, 7, 1);
    submit(0);
    for (int n = 0; n < 5; n++) one_round(); /* the remove may have eliminated the second write of 1 */
    CHECK(refs(7, 1) == 1 && refs(7, 2) == 1);
    if (early) dies(0, UINT64_MAX);
    uint64_t w3 = put(0, 7, 3, 20, 3);
    submit(0);
    one_round();
    if (early) CHECK(!find(7, 3) && result(0, w3) == WR_RESULT_MASKED && directory_rows() == 0);
    if (!early) CHECK(refs(7, 3) == 1);
    drop(0, 7, 2);
    submit(0);
    one_round();
    CHECK(refs(7, 2) == 0 && find(7, 2));
    uint64_t w2 = put(0, 7, 2, 20, 2);
    submit(0);
    one_round();
    CHECK(refs(7, 2) == 1 && result(0, w2) == WR_RESULT_NONE); /* known before: it comes back */
    drop(0, 7, 1);
    drop(0, 7, 2);
    drop(0, 7, 3);
    submit(0);
    one_round();
    uint64_t w4 = put(0, 7, 4, 20, 4);
    uint64_t batch = put_many(0, 7, 10, 5, 20, 4);
    submit(0);
    one_round();
    CHECK(result(0, w4) == (early ? WR_RESULT_MASKED : WR_RESULT_NONE) && result(0, batch) == (early ? WR_RESULT_MASKED : WR_RESULT_NONE));
    CHECK(store->messages == (early ? 0 : 6) && directory_rows() == 0);
    uint64_t other = early ? w2 : w4;
    /* 2 again, with other bytes: it would have to be appended, so a dying client may not. */
    uint64_t again = put(0, 7, 2, 20, 77);
    submit(0);
    one_round();
    if (early) CHECK(result(0, again) == WR_RESULT_MASKED && refs(7, 2) == 0);
    CHECK(result(0, other) == WR_RESULT_NONE);
    command(0, WR_OP_STORE_TERMINATE, NULL, 0, 0);
    submit(0);
    one_round();
    uint64_t after = put(0, 7, 5, 20, 5);
    submit(0);
    until_done();
    CHECK(refs(7, 5) == 1 && result(0, after) == WR_RESULT_NONE);
    /* With the number of the first command that it does not mean it can not come too late. */
    dies(0, after + 1);
    uint64_t beyond = put(0, 7, 6, 20, 5);
    submit(0);
    until_done();
    CHECK(refs(7, 6) == 1 && result(0, beyond) == WR_RESULT_NONE);
    dies(0, beyond + 2);
    uint64_t masked = put(0, 7, 8, 20, 5);
    put(0, 7, 9, 20, 5);
    submit(0);
    until_done();
    CHECK(!find(7, 8) && result(0, masked) == WR_RESULT_MASKED && refs(7, 9) == 1 && !store->links[0].dying);
    finish_all();
}

/* A kill between a masked write and the end: the next server masks what stands in the ring as well. */
static void dying_client_of_a_dead_server(void) {
    begin(0);
    put(0, 7, 1, 20, 1);
    submit(0);
    until_done();
    dies(0, UINT64_MAX);
    put(0, 7, 3, 20, 3);
    submit(0);
    until_done();
    CHECK(!find(7, 3));
    put(1, 7, 3, 20, 3); /* somebody else's */
    submit(1);
    until_done();
    drop(0, 7, 3);
    drop(0, 7, 1);
    command(0, WR_OP_STORE_TERMINATE, NULL, 0, 0);
    uint64_t after = put(0, 7, 5, 20, 5);
    submit(0);
    kill_and_start();
    until_done();
    CHECK(refs(7, 3) == 1 && refs(7, 1) == 0 && refs(7, 5) == 1 && result(0, after) == WR_RESULT_NONE && !store->links[0].dying);
    kill_and_start();
    CHECK(!store->links[0].dying);
    until_done();
    finish_all();
}

/* Others cannot announce a client's death, and whoever announces his own and never ends it does not keep files for ever. */
static void dying_without_end(void) {
    begin(0);
    put(0, 7, 1, 20, 1);
    submit(0);
    until_done();
    uint64_t until = atomic_load(&ports[0].view.links[0].tail) + 5;
    wr_store_server_dying(r->server, 0, 0, 1, until);
    wr_store_server_dying(r->server, 0, 0, 1, UINT64_MAX);
    wr_store_server_dying(r->server, 0, 0, 1, 0);
    CHECK(!store->links[0].dying);
    dies(0, until);
    CHECK(store->links[0].dying);
    tick();
    CHECK(store->links[0].dying && !store->links[0].evicted);
    r->server->dying_ns = 0;
    tick();
    CHECK(!store->links[0].dying && store->links[0].evicted && atomic_load(&ports[0].view.links[0].evicted) == WR_EVICTED_DYING);
    put(1, 7, 2, 20, 1);
    submit(1);
    until_done();
    CHECK(refs(7, 2) == 1);
    finish_all();
}

/* A server that stops executes what was submitted before, and nothing else; the next one does. */
static void frozen_server(void) {
    begin(0);
    put(0, 7, 1, 20, 1);
    submit(0);
    put(1, 7, 2, 20, 1);
    wr_store_server_freeze(r->server);
    submit(1);
    put(0, 7, 3, 20, 1);
    submit(0);
    wr_store_server_freeze(r->server); /* again: it changes nothing */
    until_done();
    CHECK(wr_store_server_all_durable(r->server) && refs(7, 1) == 1 && !find(7, 2) && !find(7, 3));
    CHECK(store->links[0].processed == 1 && store->links[1].processed == 0);
    uint64_t append = store->state->append;
    for (int n = 0; n < 10; n++) tick();
    CHECK(store->state->append == append);
    kill_and_start();
    until_done();
    CHECK(refs(7, 1) == 1 && refs(7, 2) == 1 && refs(7, 3) == 1);
    finish_all();
}

/* Rows that stand for nothing go; those of what is under way stay. */
static void forged_rows(void) {
    begin(0);
    put(0, 7, 1, 20, 1);
    submit(0);
    until_done();
    wr_store_client *s = &clients[0];
    uint64_t processed = store->links[0].processed, hash = 12345;
    uint32_t bucket = wr_directory_bucket(hash, s->directory_rows);
    put(0, 7, 2, 20, 1); /* prepared, not submitted */
    CHECK(directory_rows() == 1);
    for (uint32_t slot = 0; slot < WR_DIRECTORY_WAYS; slot++) /* two of them have a client */
        CHECK(wr_directory_insert(s->directory, s->directory_rows, hash, wr_directory_word(hash, slot, processed - 1 - slot)).plus_one);
    CHECK(!wr_directory_insert(s->directory, s->directory_rows, hash, wr_directory_word(hash, 0, processed)).plus_one);
    for (int n = 0; n < 65; n++) tick();
    CHECK(directory_rows() == 1 && !atomic_load(&s->directory[bucket]));
    submit(0);
    until_done();
    CHECK(refs(7, 2) == 1 && directory_rows() == 0);
    finish_all();
}

/* An id that nothing holds and that is written with other bytes is another message; with the same bytes it is revived. */
static void written_again(bool on_disk) {
    begin(0);
    uint64_t next = 0;
    for (uint64_t n = 1; n <= 3; n++) put(0, 8, n, 300, 10);
    put(0, 8, 9, 300, 10); /* keeps the file */
    submit(0);
    until_done();
    uint32_t file = find(8, 1)->file;
    for (uint64_t n = 1; n <= 3; n++) drop(0, 8, n);
    submit(0);
    until_done();
    if (on_disk) age(&next);
    CHECK(!!atomic_load(&wr_store_file(store, file)->image) == !on_disk && !atomic_load(&wr_store_file(store, file)->ghosts));
    uint64_t at = find(8, 1)->offset;
    put(0, 8, 1, 300, 10);
    put(0, 8, 2, 300, 11);
    put(0, 8, 3, 299, 10);
    submit(0);
    until_done();
    CHECK(find(8, 1)->file == file && find(8, 1)->offset == at && refs(8, 1) == 1);
    CHECK(find(8, 2)->offset != at && first_byte(1, 8, 2) == 11 && find(8, 3)->total_size == 57 + 299);
    CHECK(atomic_load(&wr_store_file(store, file)->ghosts) == 1);
    kill_and_start();
    until_done();
    CHECK(refs(8, 1) == 1 && refs(8, 2) == 1 && refs(8, 3) == 1 && first_byte(1, 8, 2) == 11 && first_byte(1, 8, 1) == 10);
    finish_all();
}

/* A file is not free of replays, and does not go, before the rings can not ask for it again. */
static void replay_free_files(void) {
    begin(0);
    uint64_t next = 0;
    put(0, 9, 1, 100, 1);
    submit(0);
    until_done();
    drop(0, 9, 1);
    submit(0);
    until_done();
    age(&next);
    for (uint64_t n = 0; n < next; n++) drop(1, 99, n), submit(1), until_done();
    uint32_t replay_free = 0, files = 0;
    wr_summary_row *row;
    for (wr_file_ref file = store->first_file; (row = wr_store_at(store, file)); file = wr_row_right(row)) {
        files++;
        replay_free += atomic_load(&row->replay_free);
    }
    CHECK(files == 1 && replay_free == 0 && store->messages == 0); /* the current one */
    /* After a kill: as long as a ring holds commands whose frames lie in a file it stays. */
    put(1, 99, next++, 100, 1);
    submit(1);
    one_round();
    until_durable();
    kill_and_start();
    until_done();
    CHECK(store->messages == 1);
    finish_all();
}

/* What a collection does, step by step, with everything that may come between; then the same from the files. */
static void collection(void) {
    begin(0);
    uint64_t next = 0;
    for (uint64_t n = 0; n < 62; n++) put(0, 10, n, 8000, (uint8_t)(n + 1)), submit(0), until_done();
    uint64_t sources[2] = {find(10, 0)->file, find(10, 0)->file + 1};
    CHECK(find(10, 61)->file == sources[1]);
    age(&next);
    for (uint64_t n = 0; n < 62; n++)
        if (n % 10) drop(0, 10, n);
    submit(0);
    until_done();
    CHECK(!wr_store_lock_files(store, (uint64_t[]){sources[0], wr_file_number(store->current)}, 2) && !atomic_load(&wr_store_file(store, sources[0])->locked));
    CHECK(wr_store_lock_files(store, sources, 2) && !wr_store_lock_files(store, sources, 1));
    put(0, 10, 1, 8000, 2); /* dead, the same bytes, but the file is locked */
    submit(0);
    until_done();
    CHECK(find(10, 1)->file > sources[1] && atomic_load(&wr_store_file(store, sources[0])->ghosts) == 1);
    /* The collector: 0, 10, 20 … and 3, which it has seen alive. */
    uint64_t output = next_file++, salt = 4242, at = WR_FILE_HEADER_BYTES;
    wr_list *list = wr_list_new(output, salt);
    uint8_t *bytes = calloc(1, super->file_bytes);
    CHECK(list && bytes);
    wr_file_header_write(bytes, WR_FILE_STORE, super->node_id, 0, output, salt, 1);
    wr_file_header_stand_for(bytes, sources[0], sources[1]);
    for (uint64_t n = 0; n < 62; n++) {
        if (n % 10 && n != 3) continue;
        wr_frame_head head = {.kind = WR_KIND_MESSAGE, .client_epoch = 1, .sequence = 1};
        id_of(head.id, 10, n);
        memset(bytes + at + WR_FRAME_HEAD_BYTES, (int)(n + 1), 8000);
        uint64_t total = wr_frame_seal(bytes + at, &head, 8000, salt);
        CHECK(wr_list_add(list, &head, at, total) == 0);
        at += total;
    }
    wr_frame_pad(bytes + at, 4096 * 2 - at % 4096, salt, true);
    list->used = at + 4096 * 2 - at % 4096;
    wr_list_seal(list);
    int fd = open(path_of(0, output), O_RDWR | O_CREAT | O_EXCL, 0600);
    CHECK(fd >= 0 && pwrite(fd, bytes, super->file_bytes, 0) == (ssize_t)super->file_bytes);
    close(fd);
    free(bytes);
    drop(0, 10, 0);
    submit(0);
    until_done();
    CHECK(wr_store_collected(store, output, list->used, sources[0], sources[1]) == 0);
    CHECK(atomic_load(&wr_store_file(store, output)->ghosts) == 1);
    uint64_t cursor = 0;
    CHECK(wr_store_swing(store, list, sources, 2, &cursor) == 0 && cursor == UINT64_MAX);
    CHECK(find(10, 10)->file == output && find(10, 0)->file == output && refs(10, 0) == 0 && refs(10, 3) == 0);
    CHECK(first_byte(1, 10, 10) == 11 && first_byte(1, 10, 50) == 51 && first_byte(1, 10, 1) == 2);
    CHECK(atomic_load(&wr_store_file(store, output)->valid_total_size) == 6 * 8057);
    CHECK(atomic_load(&wr_store_file(store, output)->ghosts) == 0 && !atomic_load(&wr_store_file(store, output)->replay_free));
    CHECK(atomic_load(&wr_store_file(store, sources[0])->valid_total_size) == 0);
    for (int i = 0; i < 2; i++) {
        const char *reason;
        wr_list *old = scan_file(0, sources[i], &reason);
        uint32_t calls = 0;
        for (cursor = 0; cursor != UINT64_MAX; calls++) CHECK(wr_store_drop_entries(store, sources[i], old, &cursor) == 0);
        wr_list_free(old);
        CHECK(calls == 1 && unlink(path_of(0, sources[i])) == 0);
        CHECK(!atomic_load(&wr_store_file(store, output)->replay_free));
        wr_store_file_gone(store, sources[i]);
    }
    CHECK(atomic_load(&wr_store_file(store, output)->replay_free) == 1);
    CHECK(!find(10, 2) && find(10, 3) && find(10, 10));
    CHECK(wr_store_file(store, output)->position_low == sources[0] && wr_file_is(store->first_file, output));
    uint64_t messages = store->messages, valid = store->valid_bytes;
    CHECK(store->ghosts_n == 0 && store->outputs_n == 0);
    /* The same from the files, the output at its place. */
    rig *again = make_rig(4096);
    wr_store *other = &again->server->stores[0];
    apply(again, 0, list, sources[0], sources[1]);
    for (uint64_t file = 0; file < next_file; file++) {
        const char *reason;
        wr_list *read = file == output ? NULL : scan_file(0, file, &reason);
        if (!read) continue;
        apply(again, 0, read, file, file);
        wr_list_free(read);
    }
    CHECK(wr_store_finish(other) == 0);
    CHECK(other->messages == messages && other->valid_bytes == valid);
    drop_rig(again);
    wr_list_free(list);
    finish_all();
}

/* A file is pinned by control frames about its own records, while a file to the left of it may hold a ghost: no pin says
 * so. When that file is gone it goes, too. */
static void pinned_by_a_ghost(void) {
    begin(0);
    uint64_t next = 0;
    put(0, 17, 1, 8000, 1);
    put(0, 17, 2, 8000, 1);
    submit(0);
    until_done();
    uint64_t first = find(17, 1)->file;
    age(&next);
    put(0, 17, 3, 8000, 1);
    submit(0);
    until_done();
    uint64_t file = find(17, 3)->file;
    drop(0, 17, 3);
    submit(0);
    until_done();
    CHECK(wr_file_is(store->current, file) && file != first); /* both frames lie in it */
    CHECK(!wr_store_pinned(store, file) && !wr_store_pinned(store, first));
    age(&next);
    drop(0, 17, 1);
    put(0, 17, 1, 8000, 2); /* other bytes: the record in the first file has lost its entry */
    submit(0);
    until_done();
    CHECK(atomic_load(&wr_store_file(store, first)->ghosts) == 1 && find(17, 1)->file > file);
    for (uint64_t n = 0; n < next; n++) {
        drop(1, 99, n);
        submit(1);
        until_done();
    }
    age(&next); /* the file is rolled, and no ring replays it */
    const wr_summary_row *row = wr_store_file(store, file);
    CHECK(row && !row->pin_low && !atomic_load(&wr_store_file(store, file)->valid_total_size));
    CHECK(atomic_load(&wr_store_file(store, file)->replay_free) == 1 && !wr_row_locked(row));
    CHECK(wr_store_pinned(store, file) && !wr_store_pinned(store, first));
    drop(0, 17, 2); /* the last message of the file with the ghost */
    submit(0);
    until_done();
    age(&next);
    CHECK(!wr_store_file(store, first) && !wr_store_pinned(store, first));
    CHECK(!wr_store_file(store, file));
    finish_all();
}

/* Damaged records are dropped and counted; what is left of the file goes as any other. */
static void lost_records(void) {
    begin(0);
    for (uint64_t n = 0; n < 5; n++) put(0, 11, n, 100, 1);
    drop(0, 11, 4);
    submit(0);
    until_done();
    uint8_t ids[3][16];
    for (int i = 0; i < 3; i++) id_of(ids[i], 11, (uint64_t)i * 2 + (i == 2 ? 5 : 0));
    CHECK(wr_store_drop_lost(store, (const uint8_t (*)[16])ids, 3) == 2);
    CHECK(!find(11, 0) && !find(11, 2) && refs(11, 1) == 1 && store->messages == 2);
    CHECK(wr_store_drop_lost(store, (const uint8_t (*)[16])ids, 3) == 0);
    one_round();
    wr_store_server_run(r->server, 1);
    finish_all();
}

/* A file of many small messages goes: its entries in slices, and not before what emptied it is durable. */
static void file_goes_in_slices(void) {
    begin(0);
    uint64_t next = 0, ids[4096];
    put_many(0, 16, 0, 4096, 0, 1);
    submit(0);
    until_done();
    uint64_t file = find(16, 0)->file;
    put_many(0, 16, 4096, 200, 0, 1);
    submit(0);
    until_done();
    CHECK(find(16, 4295)->file == file);
    age(&next);
    const char *reason;
    wr_list *list = scan_file(0, file, &reason);
    CHECK(list->messages >= 4296 && !strcmp(reason, "end"));
    for (uint64_t n = 0; n < 4096; n++) ids[n] = n;
    command(0, WR_OP_STORE_REMOVE, ids, 4096, 16);
    for (uint64_t n = 0; n < 200; n++) ids[n] = 4096 + n;
    command(0, WR_OP_STORE_REMOVE, ids, 200, 16);
    for (uint64_t n = 0; n < next; n++) ids[n] = n;
    command(1, WR_OP_STORE_REMOVE, ids, (uint32_t)next, 99); /* some of them lie in that file, too */
    submit(0);
    submit(1);
    one_round();
    CHECK(atomic_load(&wr_store_file(store, file)->locked) == 1 && store->gone_n >= 1);
    until_durable();
    CHECK(wr_file_some(wr_store_take_gone(store)) || wr_file_some(wr_store_take_gone(store)));
    uint64_t cursor = 0, live = store->index.live;
    CHECK(wr_store_drop_entries(store, file, list, &cursor) == 0 && cursor != UINT64_MAX && store->index.live == live - WR_STORE_SLICE);
    CHECK(atomic_load(&wr_store_file(store, file)->ghosts) == 1 && !find(16, 0) && find(16, 4200));
    put(1, 16, 4200, 0, 1); /* not revived where it is going to vanish */
    submit(1);
    one_round();
    CHECK(refs(16, 4200) == 1 && find(16, 4200)->file != file);
    CHECK(wr_store_drop_entries(store, file, list, &cursor) == 0 && cursor == UINT64_MAX && refs(16, 4200) == 1 && !find(16, 4201));
    CHECK(wr_store_drop_entries(store, file + 1, list, &cursor) == EINVAL);
    wr_store_file_gone(store, file);
    CHECK(!wr_store_file(store, file));
    wr_list_free(list);
    finish_all();
}

/* A worker's resync goes on in slices; the index may be replaced meanwhile; provisional holders make writes of other bytes wait. */
static void resync(void) {
    begin(1);
    for (uint64_t n = 0; n < 10; n++) put(2, 12, n, 50, 1); /* slot 2: worker 0 */
    put(0, 12, 20, 50, 1);
    submit(2);
    submit(0);
    until_done();
    CHECK(find(12, 5)->holders == 1);
    uint64_t gone[] = {5, 6};
    command(2, WR_OP_STORE_REMOVE, gone, 2, 12); /* without a frame: a start knows nothing of it */
    submit(2);
    until_done();
    kill_and_start();
    until_done();
    CHECK(find(12, 5)->holders == 1);
    uint64_t same = put(0, 12, 7, 50, 1), differs = put(0, 12, 5, 50, 2);
    submit(0);
    for (int n = 0; n < 5; n++) one_round();
    serve_events(r);
    for (int n = 0; n < 5; n++) one_round();
    CHECK(refs(12, 7) == 1 && atomic_load(&ports[0].view.links[0].processed) == same + 1 && differs == same + 1);
    command(2, WR_OP_STORE_RESYNC_BEGIN, NULL, 0, 0);
    uint64_t held[] = {0, 1, 2, 3, 4, 7, 8, 9, 77};
    uint64_t ids = command(2, WR_OP_STORE_RESYNC_IDS, held, 9, 12);
    command(2, WR_OP_STORE_RESYNC_END, NULL, 0, 0);
    submit(2);
    until_done();
    CHECK(result(2, ids) == WR_RESULT_OK);
    const uint8_t *reply = wr_view_reply(&ports[2].view, 0);
    for (int i = 0; i < 9; i++) CHECK(reply[i] == (i < 8));
    CHECK(refs(12, 5) == 1 && find(12, 5)->holders == 0 && first_byte(1, 12, 5) == 2);
    CHECK(find(12, 6)->holders == 0 && find(12, 9)->holders == 1 && store->messages == 10);
    finish_all();
}

/* Many entries: BEGIN and END do not stop the loop for as long as they take. */
static void resync_in_slices(void) {
    begin(1);
    for (uint64_t n = 0; n < 80; n++) {
        put_many(0, 13, n * 1024, 1024, 0, 1);
        submit(0);
        until_done();
    }
    CHECK(store->index.live == 80 * 1024);
    command(2, WR_OP_STORE_RESYNC_BEGIN, NULL, 0, 0);
    command(2, WR_OP_STORE_RESYNC_END, NULL, 0, 0);
    submit(2);
    uint32_t rounds = 0;
    for (; atomic_load(&ports[2].view.links[0].processed) < 2; rounds++) {
        CHECK(rounds < 100);
        put(1, 14, rounds, 10, 1);
        submit(1);
        one_round();
        serve_events(r);
        CHECK(refs(14, rounds) == 1);
    }
    CHECK(rounds >= 3 && r->server->workers_resynced == 1);
    finish_all();
}

static bool holds(uint64_t epoch, uint64_t n) {
    const wr_index_entry *entry = find(epoch, n);
    return entry && entry->holders & 1;
}

/* A write of a worker waits for a file: the removes behind it take effect, and the order of the ring decides what is there in the end,
 * also when the server is killed between. */
static void removes_go_ahead(bool killed) {
    begin(0);
    for (uint64_t n = 0; n < 10; n++) put(2, 7, n, 3000, 1);
    submit(2);
    until_done();
    for (uint64_t n = 0; n < 10; n++) CHECK(holds(7, n));
    /* Another client takes what room there is, and nobody makes another file. */
    for (uint64_t n = 0; n < 40; n++) put(1, 8, n, 8000, 9);
    submit(1);
    for (int n = 0; n < 50; n++) one_round();
    CHECK(store->links[1].stalled && !store->state->has_next);
    const uint64_t before = store->valid_bytes, waits = put(2, 7, 20, 9000, 1);
    for (uint64_t n = 0; n < 8; n++) drop(2, 7, n);
    put(2, 7, 3, 3000, 2); /* again, with other bytes */
    drop(2, 7, 8);
    put(2, 7, 8, 3000, 2);
    drop(2, 7, 8);
    submit(2);
    for (int n = 0; n < 50; n++) one_round();
    const wr_link *link = &ports[2].view.links[0];
    CHECK(store->links[2].stalled && atomic_load(&link->processed) == waits && atomic_load(&link->head) <= waits);
    for (uint64_t n = 0; n < 9; n++) CHECK(!holds(7, n));
    CHECK(holds(7, 9) && !holds(7, 20) && store->valid_bytes < before);
    if (killed) kill_and_start();
    serve_events(r);
    until_done();
    for (uint64_t n = 0; n < 9; n++) CHECK(holds(7, n) == (n == 3));
    CHECK(holds(7, 9) && holds(7, 20) && first_byte(1, 7, 3) == 2 && first_byte(1, 7, 20) == 1);
    finish_all();
}

int main(void) {
    removes_go_ahead(false);
    removes_go_ahead(true);
    batch_that_is_interrupted();
    batch_lets_others_go_first();
    batch_over_both_parts_of_the_index();
    dying_client(true);
    dying_client(false);
    dying_client_of_a_dead_server();
    dying_without_end();
    forged_rows();
    frozen_server();
    written_again(false);
    written_again(true);
    replay_free_files();
    collection();
    pinned_by_a_ghost();
    lost_records();
    file_goes_in_slices();
    resync();
    resync_in_slices();
    return 0;
}
