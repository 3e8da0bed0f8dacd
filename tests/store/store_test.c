/* Goal: server, committers and clients of the store as threads of one process show no data race and no bad access; what was
 * confirmed is read back; a scan of the files yields the same store again; nonsense from a client is refused.
 * Method: three clients write, remove, read and eliminate counted ids over small files that roll and are deleted; each id
 * belongs to one client, which knows what must be there. Then the files are scanned into a second server and compared. Then
 * random bytes are executed. Runs under AddressSanitizer and ThreadSanitizer. Prints its seed. */
#include "store/rig.h"
#include "support/random.h"

enum { CLIENTS = 3, IDS = 300, STEPS = 2500, RING = 128, BATCH = 24 };

static rig *here;
static wr_store_server *server;
static void *client_regions[CLIENTS + 1];
static wr_view views[CLIENTS];
static uint64_t seed0;
static _Atomic int ending;
static uint64_t *expected[CLIENTS]; /* per id: references that must be there when the client has ended */

/* ---- the server's threads ---- */

static void *loop(void *unused) {
    (void)unused;
    for (;;) {
        bool last = atomic_load(&ending);
        uint32_t events = wr_store_server_run(server, 2000000);
        serve_events(here);
        if (events & WR_STORE_EVENT_SLOTS) server->slots_seen = atomic_load(&super->slots_version);
        CHECK(!(events & (WR_STORE_EVENT_INDEX | WR_STORE_EVENT_FAILED)));
        if (last && wr_store_server_all_durable(server)) return NULL;
    }
}

static void *committer(void *number) {
    wr_log_commit_run(server->stores[(uintptr_t)number].log, &server->stores[0].row->sleeping);
    return NULL;
}

/* ---- clients ---- */

static wr_view *view_of(void *context, uint32_t slot, uint32_t generation) {
    (void)context;
    return slot < CLIENTS && generation == 1 ? &views[slot] : NULL;
}

static void id_of(uint8_t id[16], uint32_t slot, uint64_t n) {
    wr_put64(id, slot + 1);
    wr_put64(id + 8, n);
}

static void wait_above(wr_store_client *s, _Atomic uint64_t *word, uint64_t value) {
    wr_client *client = s->port->view.client;
    uint64_t until = wr_now_ns() + 60000000000ull;
    while (atomic_load_explicit(word, memory_order_acquire) < value) {
        CHECK(wr_now_ns() < until);
        CHECK(atomic_load(&s->port->view.links[s->server].evicted) == 0);
        atomic_store(&client->waiting, 1);
        if (atomic_load_explicit(word, memory_order_acquire) < value) wr_futex_wait(&client->waiting, 1, 5000000);
        atomic_store(&client->waiting, 0);
    }
}

static uint32_t body_of(uint8_t *to, uint32_t slot, uint64_t n) {
    uint32_t length = (uint32_t)(n * 37 % 1500);
    for (uint32_t i = 0; i < length; i++) to[i] = (uint8_t)(n + slot * 101 + i);
    return length;
}

static void check_read(wr_store_client *s, uint32_t slot, uint64_t n, int there) {
    uint8_t id[16], body[2048], *found;
    uint32_t length;
    uint16_t meta_length;
    id_of(id, slot, n);
    int error = wr_store_client_read(s, id, &found, &length, &meta_length);
    CHECK(error == 0 || error == ENOENT || error == ESTALE);
    CHECK(there < 0 || error == (there ? 0 : ENOENT));
    if (error) return;
    CHECK(length == body_of(body, slot, n) && memcmp(found, body, length) == 0);
    free(found);
}

static void *client_thread(void *argument) {
    uint32_t slot = (uint32_t)(uintptr_t)argument, number = slot == 2;
    uint64_t seed = seed0 * (slot + 3);
    wr_port port;
    CHECK(wr_port_init(&port, super, client_regions[slot], client_bytes, slot, 1, slot + 1) == 0);
    wr_store_client s = {.port = &port,
                         .server = number,
                         .directory = here->regions[number].directory,
                         .directory_rows = super->directory_rows,
                         .summary = here->regions[number].summary,
                         .summary_rows = super->summary_rows,
                         .images = here->regions[number].images,
                         .images_n = super->images_n,
                         .file_bytes = super->file_bytes,
                         .rows_known = true,
                         .node_id = super->node_id,
                         .view_of = view_of};
    char path[300];
    snprintf(path, sizeof path, "%s/%u", folder, number);
    CHECK((s.directory_fd = open(path, O_RDONLY | O_DIRECTORY)) >= 0);
    wr_link *link = &port.view.links[number];
    for (int step = 0; step < STEPS; step++) {
        seed = seed * 6364136223846793005ull + 1442695040888963407ull;
        uint64_t n = (seed >> 40) % IDS;
        uint32_t what = (uint32_t)(seed >> 33) % 16;
        uint8_t id[16];
        id_of(id, slot, n);
        if (what < 2 && n + BATCH <= IDS) { /* some of them are there, some were eliminated, most are new */
            wr_store_body bodies[BATCH];
            static _Thread_local uint8_t texts[BATCH][2048];
            uint64_t sequence;
            for (uint32_t i = 0; i < BATCH; i++) bodies[i] = (wr_store_body){texts[i], body_of(texts[i], slot, n + i)};
            int error = wr_store_client_write_many(&s, id, bodies, BATCH, what < 1 ? WR_FLAG_SYNCED : 0, &sequence);
            CHECK(error == 0 || error == EAGAIN);
            if (error) {
                uint64_t seen = atomic_load(&link->head);
                wr_port_submit(&port, number);
                if (seen < atomic_load(&link->tail)) wait_above(&s, &link->head, seen + 1);
                continue;
            }
            for (uint32_t i = 0; i < BATCH; i++) expected[slot][n + i]++;
            wr_port_submit(&port, number);
        } else if (what < 8) {
            uint64_t position, sequence;
            uint8_t *to, body[2048];
            uint32_t length = body_of(body, slot, n);
            int error = wr_port_alloc(&port, length, &position, &to);
            if (!error) memcpy(to, body, length);
            if (!error) error = wr_store_client_write(&s, id, position, length, 0, 0, what < 2 ? WR_FLAG_SYNCED : 0, &sequence);
            if (!error) error = wr_port_use(&port, number, sequence);
            CHECK(error == 0 || error == EAGAIN);
            if (error) { /* room comes back when heads rise */
                uint64_t seen = atomic_load(&link->head);
                wr_port_submit(&port, number);
                if (seen < atomic_load(&link->tail)) wait_above(&s, &link->head, seen + 1);
                continue;
            }
            expected[slot][n]++;
            if (what < 4) wr_port_submit(&port, number);
        } else if (what < 14) {
            uint32_t eliminated;
            wr_port_submit(&port, number);
            int error = wr_store_client_remove(&s, (const uint8_t (*)[16])id, 1, &eliminated);
            CHECK(error == 0 || error == EAGAIN);
            if (!error && expected[slot][n]) expected[slot][n]--;
            if (error && atomic_load(&link->head) < atomic_load(&link->tail)) wait_above(&s, &link->head, atomic_load(&link->tail));
            wr_port_submit(&port, number);
        } else {
            check_read(&s, slot, n, -1);
            check_read(&s, 1 - slot % 2, n, -1); /* another client's, perhaps of the other store */
        }
    }
    wr_port_submit(&port, number);
    wait_above(&s, &link->processed, atomic_load(&link->tail));
    for (uint64_t n = 0; n < IDS; n++) check_read(&s, slot, n, expected[slot][n] != 0);
    close(s.directory_fd);
    wr_store_client_close(&s);
    wr_port_free(&port);
    return NULL;
}

/* ---- afterwards ---- */

static void compare_with_scan(void) {
    rig *again = make_rig(4096);
    wr_store *store = &again->server->stores[0];
    recover(again);
    uint64_t messages = 0;
    for (uint32_t slot = 0; slot < 2; slot++)
        for (uint64_t n = 0; n < IDS; n++) {
            uint8_t id[16];
            id_of(id, slot, n);
            const wr_index_entry *entry = wr_index_find(&store->index, id);
            CHECK((entry ? entry->ref_count : 0) == expected[slot][n]);
            messages += expected[slot][n] != 0;
        }
    CHECK(store->messages == messages && server->stores[0].messages == messages);
    CHECK(store->valid_bytes == server->stores[0].valid_bytes);
    for (uint32_t slot = 0; slot < 2; slot++)
        CHECK(wr_store_water(store, slot + 1) > 0 && wr_store_water(store, slot + 1) <= 1ull << 36);
    /* What the files say of themselves is what was listed while they were written. */
    for (uint64_t file = 0; file < 4096; file++) {
        const wr_list *kept = here->lists[file];
        const char *reason;
        wr_list *read = kept ? scan_file(0, file, &reason) : NULL;
        if (!kept) continue;
        CHECK(read && !strcmp(reason, "end") && kept->used == read->used && kept->messages == read->messages);
        CHECK(kept->controls == read->controls && kept->message_bytes == read->message_bytes);
        CHECK(wr_list_water_of(kept, 1) == wr_list_water_of(read, 1));
        wr_list_free(read);
    }
    drop_rig(again);
}

/* Random bytes in the ring of a client, many times: whatever they are, the server lives, and lets the client go. */
static void feed_nonsense(void) {
    uint64_t epochs[2] = {1, 1}, seed = seed0;
    uint8_t *region = client_regions[CLIENTS];
    wr_view view;
    wr_geometry g = wr_geometry_of(super);
    CHECK(wr_view_init(&view, region, client_bytes, &g) == 0);
    for (int turn = 0; turn < 300; turn++) {
        memset(region, 0, WR_PAGE_BYTES + 2 * sizeof(wr_link));
        for (uint32_t number = 0; number < 2; number++) {
            for (uint32_t i = 0; i < RING; i++) {
                wr_command *c = wr_view_command(&view, number, i);
                for (size_t k = 0; k < sizeof *c; k++) {
                    seed = seed * 6364136223846793005ull + 1442695040888963407ull;
                    ((uint8_t *)c)[k] = (uint8_t)(seed >> 56);
                }
                if (seed >> 32 & 15) c->op = (uint8_t)(1 + (seed >> 36) % 9);
                if (seed >> 32 & 15) atomic_store(&c->flying, 1 + (uint32_t)(seed >> 40) % 2);
                if (c->op == WR_OP_STORE_WRITE_MANY && seed >> 48 & 7) {
                    c->count = 1 + (seed >> 52) % 64;
                    c->meta_length = 0;
                    c->tag = 0;
                    c->body &= ~3ull;
                    c->length = (uint32_t)c->count * 8 + (uint32_t)(seed >> 44) % 2000;
                    uint8_t *blob = wr_view_blob(&view, c->body, c->length);
                    for (uint32_t k = 0; blob && k < c->count && seed >> 51 & 7; k++) {
                        ((uint32_t *)blob)[k] = (uint32_t)(seed >> (k & 31)) % 6;
                        ((uint32_t *)blob)[c->count + k] = (c->length - (uint32_t)c->count * 8) * (k + 1) / (uint32_t)c->count;
                    }
                    continue;
                }
                if (seed >> 32 & 7) c->length = (uint32_t)(seed >> 44) % 5000, c->meta_length = 0, c->tag = 0;
                if (c->op == WR_OP_STORE_REMOVE && seed >> 50 & 3) c->count = c->length / 16, c->length = c->length / 16 * 16;
            }
            atomic_store(&view.links[number].tail, turn % 7 ? RING : seed);
        }
        uint32_t slot = CLIENTS + (uint32_t)turn % 100;
        int holder = turn % 3 ? -1 : 4;
        CHECK(wr_store_server_attach(server, slot, 1, 1000 + (uint64_t)turn, region, client_bytes, holder, epochs, turn % 2) == 0);
        wr_store_server_close(server, slot);
        for (int tries = 0; wr_store_server_detach(server, slot); tries++) {
            CHECK(tries < 20000);
            uint32_t events = wr_store_server_run(server, 1000000);
            CHECK(!(events & WR_STORE_EVENT_FAILED));
            serve_events(here);
            if (events & WR_STORE_EVENT_INDEX) return; /* random ids have filled it: enough */
        }
    }
}

int main(int argc, char **argv) {
    random_begin("store_test", argc, argv);
    seed0 = random_state;
    make_folder();
    make_superblock();
    geometry_done();
    here = make_rig(4096);
    server = here->server;
    for (int n = 0; n < 2; n++) wr_store_finish(&server->stores[n]);
    publish(here);
    uint64_t epochs[2] = {1, 1};
    wr_geometry g = wr_geometry_of(super);
    for (uint32_t slot = 0; slot <= CLIENTS; slot++) {
        client_regions[slot] = zeroed(client_bytes);
        if (slot == CLIENTS) break;
        CHECK(wr_view_init(&views[slot], client_regions[slot], client_bytes, &g) == 0);
        CHECK((expected[slot] = calloc(IDS, sizeof **expected)));
        atomic_store(&wr_superblock_slot(super, slot)->claim, 1ull << 32 | 1 << 8 | WR_SLOT_ACTIVE);
        CHECK(wr_store_server_attach(server, slot, 1, slot + 1, client_regions[slot], client_bytes, -1, epochs, true) == 0);
    }
    pthread_t threads[3 + CLIENTS];
    CHECK(pthread_create(&threads[0], NULL, loop, NULL) == 0);
    for (uintptr_t n = 0; n < 2; n++) CHECK(pthread_create(&threads[1 + n], NULL, committer, (void *)n) == 0);
    for (uintptr_t slot = 0; slot < CLIENTS; slot++) CHECK(pthread_create(&threads[3 + slot], NULL, client_thread, (void *)slot) == 0);
    for (int i = 0; i < CLIENTS; i++) pthread_join(threads[3 + i], NULL);
    atomic_store(&ending, 1);
    pthread_join(threads[0], NULL);
    CHECK(server->stores[0].eliminated_n + server->stores[1].eliminated_n > 0);
    compare_with_scan();
    feed_nonsense();
    for (uint32_t n = 0; n < 2; n++) wr_log_stop(server->stores[n].log);
    pthread_join(threads[1], NULL);
    pthread_join(threads[2], NULL);
    drop_rig(here);
    for (int i = 0; i <= CLIENTS; i++) munmap(client_regions[i], client_bytes);
    for (int i = 0; i < CLIENTS; i++) free(expected[i]);
    munmap(super, WR_SUPERBLOCK_BYTES);
    clean_up();
    return 0;
}
