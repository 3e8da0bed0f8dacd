/* Goal: server, committers and clients of the store as threads of one process show no data race and no bad access; what was
 * confirmed is read back; a scan of the files yields the same store again; nonsense from a client is refused.
 * Method: three clients write, remove, read and eliminate counted ids over small files that roll and are deleted; each id
 * belongs to one client, which knows what must be there. Then the files are scanned into a second server and compared. Then
 * random bytes are executed. Runs under AddressSanitizer and ThreadSanitizer. Prints its seed. */
#define _GNU_SOURCE
#include "store.h"
#include "storeclient.h"
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>

#define CHECK(condition)                                                                                  \
    do {                                                                                                  \
        if (!(condition)) {                                                                               \
            fprintf(stderr, "%s:%d: %s (errno %d)\n", __FILE__, __LINE__, #condition, errno);             \
            exit(1);                                                                                      \
        }                                                                                                 \
    } while (0)

enum { CLIENTS = 3, IDS = 300, STEPS = 2500, FILE_BYTES = 64 * 4096, IMAGES = 2, INDEX_ROWS = 4096, RING = 128 };

static char folder[200];
static wr_superblock *super;
static wr_store_server *server;
static void *client_regions[CLIENTS + 1];
static uint64_t client_bytes;
static wr_store_regions regions[2];
static wr_view views[CLIENTS];
static uint64_t next_file, seed0;
static _Atomic int ending;
static uint64_t *expected[CLIENTS]; /* per id: references that must be there when the client has ended */

static void *zeroed(uint64_t bytes) {
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(p != MAP_FAILED);
    return p;
}

static void make_superblock(void) {
    super = zeroed(WR_SUPERBLOCK_BYTES);
    super->servers_n = 2;
    super->ring_records = RING;
    super->delivery_slots = 2;
    super->arena_bytes = 256 * 1024;
    super->reply_bytes = 4096;
    super->message_bytes_max = 32 * 1024;
    super->file_bytes = FILE_BYTES;
    super->images_n = IMAGES;
    super->directory_rows = 1024;
    super->summary_rows = 1024;
    super->node_id = 4711;
    wr_geometry g = wr_geometry_of(super);
    client_bytes = wr_view_bytes(&g);
    super->client_region_bytes = client_bytes;
}

static wr_store_server *make_server(wr_store_regions made[2]) {
    wr_store_server *one = aligned_alloc(64, (sizeof *one + 63) & ~(size_t)63);
    CHECK(one && wr_store_server_init(one, super, 64 * 1024, 2000000, 20000) == 0);
    for (uint32_t number = 0; number < 2; number++) {
        made[number] = (wr_store_regions){.images_bytes = WR_PAGE_BYTES + (uint64_t)IMAGES * FILE_BYTES,
                                          .directory_bytes = super->directory_rows * 8ull,
                                          .summary_bytes = super->summary_rows * sizeof(wr_summary_row),
                                          .index_bytes = WR_PAGE_BYTES + (uint64_t)INDEX_ROWS * sizeof(wr_index_row)};
        made[number].images = zeroed(made[number].images_bytes);
        made[number].directory = zeroed(made[number].directory_bytes);
        made[number].summary = zeroed(made[number].summary_bytes);
        made[number].index = zeroed(made[number].index_bytes);
        CHECK(wr_store_open(one, number, &made[number]) == 0);
    }
    return one;
}

static void drop_server(wr_store_server *one, wr_store_regions made[2]) {
    wr_store_server_free(one);
    free(one);
    for (int n = 0; n < 2; n++) {
        munmap(made[n].images, made[n].images_bytes);
        munmap(made[n].directory, made[n].directory_bytes);
        munmap(made[n].summary, made[n].summary_bytes);
        munmap(made[n].index, made[n].index_bytes);
    }
}

static const char *path_of(uint32_t number, uint64_t file) {
    static _Thread_local char path[300];
    snprintf(path, sizeof path, "%s/%u/%llu.rdq", folder, number, (unsigned long long)file);
    return path;
}

/* ---- the server's threads ---- */

static void offer_file(wr_store *store) {
    uint64_t file = next_file++;
    uint8_t header[WR_FILE_HEADER_BYTES];
    int fd = open(path_of(store->number, file), O_RDWR | O_CREAT | O_EXCL, 0600);
    CHECK(fd >= 0 && posix_fallocate(fd, 0, FILE_BYTES) == 0);
    wr_file_header_write(header, WR_FILE_STORE, super->node_id, store->number, file, file * 99 + 1, 1);
    CHECK(wr_store_offer(store, fd, file, file * 99 + 1, header) == 0);
}

static void *loop(void *unused) {
    (void)unused;
    for (;;) {
        bool last = atomic_load(&ending);
        uint32_t events = wr_store_server_run(server, 2000000);
        for (uint32_t n = 0; n < 2; n++) {
            wr_store *store = &server->stores[n];
            while (!wr_log_look(store->log)->has_next) offer_file(store);
            for (uint64_t file; (file = wr_store_take_gone(store)) != UINT64_MAX;) {
                CHECK(unlink(path_of(n, file)) == 0);
                wr_store_file_gone(store, file);
            }
        }
        if (events & WR_EVENT_SLOTS) server->slots_seen = atomic_load(&super->slots_version);
        CHECK(!(events & (WR_EVENT_INDEX | WR_EVENT_FAILED)));
        if (last && wr_store_server_settle(server)) return NULL;
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
                         .directory = regions[number].directory,
                         .directory_rows = super->directory_rows,
                         .index = regions[number].index,
                         .index_bytes = regions[number].index_bytes,
                         .summary = regions[number].summary,
                         .summary_rows = super->summary_rows,
                         .images = regions[number].images,
                         .images_n = IMAGES,
                         .file_bytes = FILE_BYTES,
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
        if (what < 8) {
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
    wr_store_regions made[2];
    wr_store_server *again = make_server(made);
    wr_store *store = &again->stores[0];
    uint8_t *bytes = malloc(FILE_BYTES);
    for (uint64_t file = 0; file < next_file; file++) {
        int fd = open(path_of(0, file), O_RDONLY);
        if (fd < 0) continue;
        CHECK(pread(fd, bytes, FILE_BYTES, 0) == FILE_BYTES);
        close(fd);
        uint64_t salt, at = WR_FILE_HEADER_BYTES, frames = 0;
        const char *reason;
        if (wr_file_header_check(bytes, WR_FILE_STORE, super->node_id, 0, file, &salt)) continue; /* offered, never used */
        CHECK(wr_store_add_file(store, file, FILE_BYTES) == 0);
        CHECK(wr_store_scan_file(store, file, bytes, FILE_BYTES, salt, &at, &frames, &reason) == 0);
        CHECK(!strcmp(reason, "zeros") || !strcmp(reason, "end"));
    }
    free(bytes);
    CHECK(wr_store_finish(store) == 0);
    uint64_t messages = 0;
    for (uint32_t slot = 0; slot < 2; slot++)
        for (uint64_t n = 0; n < IDS; n++) {
            uint8_t id[16];
            id_of(id, slot, n);
            uint32_t at = wr_index_find(&store->index, wr_id_hash(id), id);
            CHECK((at == WR_NO_ROW ? 0 : store->index.rows[at].ref_count) == expected[slot][n]);
            messages += expected[slot][n] != 0;
        }
    CHECK(store->messages == messages && server->stores[0].messages == messages);
    CHECK(store->valid_bytes == server->stores[0].valid_bytes);
    for (uint32_t slot = 0; slot < 2; slot++) CHECK(wr_store_water(store, slot + 1) > 0 && wr_store_water(store, slot + 1) <= 1u << 20);
    drop_server(again, made);
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
                if (seed >> 32 & 15) c->op = (uint8_t)(1 + (seed >> 36) % 7);
                if (seed >> 32 & 15) atomic_store(&c->flying, 1 + (uint32_t)(seed >> 40) % 2);
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
            CHECK(!(events & WR_EVENT_FAILED));
            for (uint32_t n = 0; n < 2; n++) {
                wr_store *store = &server->stores[n];
                while (!wr_log_look(store->log)->has_next) offer_file(store);
                for (uint64_t file; (file = wr_store_take_gone(store)) != UINT64_MAX;) {
                    unlink(path_of(n, file));
                    wr_store_file_gone(store, file);
                }
            }
            if (events & WR_EVENT_INDEX) return; /* random ids have filled it: enough */
        }
    }
}

int main(void) {
    const char *given = getenv("WARREN_TEST_SEED");
    seed0 = given ? strtoull(given, NULL, 10) : wr_now_ns() | 1;
    printf("WARREN_TEST_SEED=%llu\n", (unsigned long long)seed0);
    snprintf(folder, sizeof folder, "%s/warren-store-test-XXXXXX", getenv("TMPDIR") ? getenv("TMPDIR") : "/tmp");
    CHECK(mkdtemp(folder));
    char path[300];
    for (int n = 0; n < 2; n++) {
        snprintf(path, sizeof path, "%s/%d", folder, n);
        CHECK(mkdir(path, 0700) == 0);
    }
    make_superblock();
    server = make_server(regions);
    wr_store_finish(&server->stores[0]);
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
    drop_server(server, regions);
    for (int i = 0; i <= CLIENTS; i++) munmap(client_regions[i], client_bytes);
    for (int i = 0; i < CLIENTS; i++) free(expected[i]);
    munmap(super, WR_SUPERBLOCK_BYTES);
    for (uint32_t n = 0; n < 2; n++) {
        for (uint64_t file = 0; file < next_file; file++) unlink(path_of(n, file));
        snprintf(path, sizeof path, "%s/%u", folder, n);
        CHECK(rmdir(path) == 0);
    }
    CHECK(rmdir(folder) == 0);
    return 0;
}
