/* A message store without processes: superblock, server, files in memory, regions in guarded memory; commits run in between.
 *
 * The committers are called, not started: a log that was told to stop before lets wr_log_commit_run do what is posted and
 * return. So a run is one thread and repeats exactly. Files are memory files on descriptors of fixed numbers, which a folder of
 * symbolic links names, so that the server finds them as it finds files on disk.
 *
 * What Python's policy does is done here in the plainest way: next files, larger tables, extents, lists, empty files, a start. */
#ifndef WR_STORE_WORLD_H
#define WR_STORE_WORLD_H
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "store/append.h"
#include "store/dying.h"
#include "store/file_life.h"
#include "store/files.h"
#include "store/links.h"
#include "store/loop.h"
#include "store/server.h"
#include "store/start.h"
#include "store/swing.h"
#include "store/waters.h"
#include "support/check.h"
#include "support/guarded.h"
#include <fcntl.h>
#include <sys/mman.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* A call that may find no memory. A test that takes it away says what it does then. */
#ifndef WORLD_TRY
#define WORLD_TRY(call) (call)
#endif
#ifndef WORLD_TRY_POINTER
#define WORLD_TRY_POINTER(call) (call)
#endif

enum {
    WORLD_FILE_BYTES = 16 * 4096,
    WORLD_IMAGES = 2,
    WORLD_FILES = 256, /* of each store; also rows of the summary */
    WORLD_DESCRIPTORS = 300, /* descriptor of file n of store s: this + s * WORLD_FILES + n */
    WORLD_RING = 64,
    WORLD_NODE = 4711,
    WORLD_INDEX_ROWS = 256,
    WORLD_DENSE_ROWS = 64,
    WORLD_TABLES = 32,
};

typedef struct {
    wr_superblock *super;
    wr_store_server *server;
    wr_store_regions regions[2];
    void *extent[2];
    void *tables[2][WORLD_TABLES]; /* hash parts that grew: freed at the end */
    uint64_t tables_bytes[2][WORLD_TABLES];
    uint32_t tables_n[2];
    bool there[2][WORLD_FILES];
    uint64_t next_file[2];
    char folder[2][200];
    int folder_fd[2];
    uint64_t epochs[2];
    bool full; /* no file or no table any more: the disk or memory of this world is full, nothing is promised from here on */
    uint64_t client_bytes;
} world;

static world *world_to_clean;

static inline void world_clean(void) {
    for (int s = 0; s < 2 && world_to_clean; s++) {
        for (int n = 0; n < WORLD_FILES; n++) {
            char path[300];
            snprintf(path, sizeof path, "%s/%d.rdq", world_to_clean->folder[s], n);
            unlink(path);
        }
        rmdir(world_to_clean->folder[s]);
    }
}

static inline int world_fd(uint32_t store, uint64_t file) { return WORLD_DESCRIPTORS + (int)store * WORLD_FILES + (int)file; }

static inline void world_folders(world *w) {
    if (world_to_clean) return;
    for (int s = 0; s < 2; s++) {
        const char *tmp = getenv("TMPDIR");
        snprintf(w->folder[s], sizeof w->folder[s], "%s/warren-world-XXXXXX", tmp ? tmp : "/tmp");
        CHECK(mkdtemp(w->folder[s]));
        for (int n = 0; n < WORLD_FILES; n++) {
            char path[300], to[64];
            snprintf(path, sizeof path, "%s/%d.rdq", w->folder[s], n);
            snprintf(to, sizeof to, "/proc/self/fd/%d", world_fd((uint32_t)s, (uint64_t)n));
            CHECK(symlink(to, path) == 0);
        }
        w->folder_fd[s] = open(w->folder[s], O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        CHECK(w->folder_fd[s] >= 0);
    }
    world_to_clean = w;
    atexit(world_clean);
}

static inline void world_superblock(world *w, uint32_t workers) {
    world_folders(w);
    if (!w->super) w->super = guarded_new(WR_SUPERBLOCK_BYTES);
    wr_superblock *s = w->super;
    memset((void *)s, 0, WR_SUPERBLOCK_BYTES);
    s->servers_n = 2 + workers;
    s->ring_records = WORLD_RING;
    s->delivery_slots = 2;
    s->arena_bytes = 64 * 1024;
    s->reply_bytes = 4096;
    s->message_bytes_max = s->shared_bytes_max = 16 * 1024;
    s->file_bytes = WORLD_FILE_BYTES;
    s->images_n = WORLD_IMAGES;
    s->directory_rows = 256;
    s->summary_rows = WORLD_FILES;
    s->dense_blocks = WORLD_DENSE_ROWS;
    s->node_id = WORLD_NODE;
    s->state = WR_NODE_RUNNING;
    wr_geometry g = wr_geometry_of(s);
    s->client_base_bytes = w->client_bytes = wr_view_bytes(&g);
    w->epochs[0] = w->epochs[1] = 0;
}

static inline uint64_t world_salt(uint64_t file) { return file * 99 + 1; }

static inline void world_remove(world *w, uint32_t number, uint64_t file) {
    CHECK(file < WORLD_FILES && w->there[number][file]);
    close(world_fd(number, file));
    w->there[number][file] = false;
}

static inline void world_offer(world *w, uint32_t number) {
    wr_store *store = &w->server->stores[number];
    while (!wr_log_look(store->log)->has_next && !wr_log_look(store->log)->failed) {
        uint64_t file = w->next_file[number];
        if (file >= WORLD_FILES) {
            w->full = true;
            return;
        }
        w->next_file[number]++;
        uint8_t header[WR_FILE_HEADER_BYTES];
        int made = memfd_create("warren-world", MFD_CLOEXEC);
        CHECK(made >= 0 && ftruncate(made, WORLD_FILE_BYTES) == 0);
        CHECK(dup3(made, world_fd(number, file), O_CLOEXEC) >= 0);
        wr_file_header_write(header, WR_FILE_STORE, WORLD_NODE, number, file, world_salt(file), 1);
        w->there[number][file] = true;
        CHECK(WORLD_TRY(wr_store_offer(store, made, file, world_salt(file), header)) == 0);
    }
}

static inline uint8_t *world_read(world *w, uint32_t number, uint64_t file) {
    static uint8_t bytes[WORLD_FILE_BYTES];
    CHECK(file < WORLD_FILES && w->there[number][file]);
    CHECK(pread(world_fd(number, file), bytes, WORLD_FILE_BYTES, 0) == WORLD_FILE_BYTES);
    return bytes;
}

/* An open server without files: take what is there, or make the first. */
static inline void world_start(world *w, wr_store_server *memory) {
    w->server = memory;
    CHECK(WORLD_TRY(wr_store_server_init(w->server, w->super, 32 * 1024, 1000000, 0)) == 0);
    for (uint32_t n = 0; n < 2; n++) {
        wr_store_regions *r = &w->regions[n];
        if (!r->images) {
            r->images_bytes = WR_PAGE_BYTES + (uint64_t)WORLD_IMAGES * WORLD_FILE_BYTES;
            r->directory_bytes = w->super->directory_rows * 8ull;
            r->summary_bytes = w->super->summary_rows * sizeof(wr_summary_row);
            r->index_bytes = WR_PAGE_BYTES + WORLD_INDEX_ROWS * sizeof(wr_index_row);
            r->dense_bytes = WR_PAGE_BYTES + WORLD_DENSE_ROWS * sizeof(wr_dense_table_row);
            r->images = guarded_new(r->images_bytes);
            r->directory = guarded_new(r->directory_bytes);
            r->summary = guarded_new(r->summary_bytes);
            r->index = guarded_new(r->index_bytes);
            r->dense = guarded_new(r->dense_bytes);
            w->extent[n] = guarded_new(WR_DENSE_EXTENT_BYTES);
        }
        memset(r->images, 0, r->images_bytes);
        memset(r->directory, 0, r->directory_bytes);
        memset(r->summary, 0, r->summary_bytes);
        memset(r->index, 0, r->index_bytes);
        memset(r->dense, 0, r->dense_bytes);
        CHECK(madvise(w->extent[n], WR_DENSE_EXTENT_BYTES, MADV_DONTNEED) == 0);
        CHECK(WORLD_TRY(wr_store_open(w->server, n, r)) == 0);
        wr_store_set_folder(&w->server->stores[n], w->folder_fd[n]);
        wr_log_set_nameless(w->server->stores[n].log);
        wr_log_stop(w->server->stores[n].log);
        w->epochs[n]++;
    }
}

static inline void world_grow(world *w, wr_store *store) {
    uint32_t n = store->number;
    if (w->tables_n[n] == WORLD_TABLES) {
        w->full = true;
        return;
    }
    wr_index_header *old;
    uint64_t bytes = WR_PAGE_BYTES + (store->index.rows_n <= 4096 ? 4 : 1) * store->index.rows_n * sizeof(wr_index_row);
    void *region = guarded_new(bytes);
    int error = WORLD_TRY(wr_store_replace_index(store, region, bytes, &old));
    if (error) {
        guarded_free(region, bytes);
        w->full = true;
        return;
    }
    atomic_store(&old->replaced, 1);
    w->tables_bytes[n][w->tables_n[n]] = bytes;
    w->tables[n][w->tables_n[n]++] = region;
}

static inline void world_extent(world *w, wr_store *store) {
    if (store->index.extents_n) return; /* one has all the blocks that this table can name */
    CHECK(WORLD_TRY(wr_store_add_extent(store, w->extent[store->number], WR_DENSE_EXTENT_BYTES)) == 0);
}

/* The list that was built while a file was written says what a scan of the file says. */
static inline void world_check_list(world *w, uint32_t number, wr_list *list) {
    const char *reason;
    wr_list *scanned = WORLD_TRY_POINTER(wr_list_scan(list->file, list->salt, world_read(w, number, list->file), WORLD_FILE_BYTES, &reason));
    CHECK(scanned && !strcmp(reason, "end") && !scanned->damage_n);
    uint64_t a, b;
    uint8_t *one = WORLD_TRY_POINTER(wr_list_encode(list, WORLD_NODE, number, &a)), *two = WORLD_TRY_POINTER(wr_list_encode(scanned, WORLD_NODE, number, &b));
    CHECK(one && two && list->used == scanned->used && list->messages == scanned->messages && list->controls == scanned->controls);
    CHECK(a == b && !memcmp(one + 16, two + 16, WR_LIST_HEADER_SIZE - 16 + list->runs_n * WR_LIST_RUN_SIZE + list->totals_n * 4));
    for (uint64_t i = 0; i < scanned->waters_size; i++)
        CHECK(wr_list_water_of(list, scanned->waters[i].client_epoch) == wr_list_water_of(scanned, scanned->waters[i].client_epoch));
    free(one);
    free(two);
    wr_list_free(scanned);
}

static inline void world_events(world *w, uint32_t events) {
    CHECK(!(events & WR_STORE_EVENT_FAILED));
    for (uint32_t n = 0; n < 2; n++) {
        wr_store *store = &w->server->stores[n];
        world_offer(w, n);
        for (wr_file_ref gone; wr_file_some(gone = wr_store_take_gone(store));) {
            uint64_t file = wr_file_number(gone);
            const char *reason;
            uint8_t *bytes = world_read(w, n, file);
            wr_list *list = WORLD_TRY_POINTER(wr_list_scan(file, world_salt(file), bytes, WORLD_FILE_BYTES, &reason));
            uint64_t cursor = 0;
            CHECK(list);
            while (cursor != UINT64_MAX) CHECK(WORLD_TRY(wr_store_drop_entries(store, file, list, &cursor)) == 0);
            wr_list_free(list);
            world_remove(w, n, file);
            wr_store_file_gone(store, file);
        }
        if (events & WR_STORE_EVENT_LIST)
            for (wr_list *list; (list = wr_store_take_list(store));) {
                if (store->persistent) world_check_list(w, n, list);
                wr_list_free(list);
            }
        if (events & WR_STORE_EVENT_INDEX && wr_index_tight(&store->index)) world_grow(w, store);
        if (events & WR_STORE_EVENT_EXTENT) world_extent(w, store);
    }
    if (events & WR_STORE_EVENT_SLOTS) w->server->slots_seen = atomic_load(&w->super->slots_version);
}

static inline void world_run(world *w) { world_events(w, wr_store_server_run(w->server, 0)); }

static inline void world_commit(world *w, uint32_t number) { wr_log_commit_run(w->server->stores[number].log, NULL); }

/* As after a kill: what was not handed over is lost. */
static inline void world_kill(world *w) {
    wr_store_server_free(w->server);
    for (uint32_t n = 0; n < 2; n++)
        while (w->tables_n[n]) {
            uint32_t last = --w->tables_n[n];
            guarded_free(w->tables[n][last], w->tables_bytes[n][last]);
        }
}

/* The files of the persistent store are applied; those of the transient one are removed. */
static inline void world_recover(world *w) {
    for (uint32_t n = 0; n < 2; n++) {
        wr_store *store = &w->server->stores[n];
        for (uint64_t file = 0; file < w->next_file[n]; file++) {
            if (!w->there[n][file]) continue;
            uint64_t salt, low, high, cursor = 0;
            uint8_t *bytes = world_read(w, n, file);
            const char *reason;
            if (n == WR_SERVER_STORE_TRANSIENT || wr_file_header_check(bytes, WR_FILE_STORE, WORLD_NODE, n, file, &salt)) {
                world_remove(w, n, file);
                continue;
            }
            wr_file_header_positions(bytes, &low, &high);
            wr_list *list = WORLD_TRY_POINTER(wr_list_scan(file, salt, bytes, WORLD_FILE_BYTES, &reason));
            CHECK(list && WORLD_TRY(wr_store_add_file(store, file, list->used, low, high)) == 0);
            while (cursor != UINT64_MAX && !w->full) {
                CHECK(WORLD_TRY(wr_store_apply_list(store, list, &cursor, &reason)) == 0);
                if (reason && reason[0] == 'i') world_grow(w, store);
                if (reason && reason[0] == 'e') world_extent(w, store);
            }
            wr_list_free(list);
        }
        CHECK(wr_store_finish(store) == 0);
    }
}

static inline void world_stop(world *w) {
    for (uint32_t n = 0; n < 2; n++) world_commit(w, n);
    world_kill(w);
    for (uint32_t n = 0; n < 2; n++) {
        for (uint64_t file = 0; file < w->next_file[n]; file++)
            if (w->there[n][file]) world_remove(w, n, file);
        w->next_file[n] = 0;
    }
}

/* What every reader relies on: whatever was done to the server, its index names places inside existing files, and its sums are right. */
static inline void world_check(world *w) {
    for (uint32_t n = 0; n < 2; n++) {
        wr_store *store = &w->server->stores[n];
        uint64_t messages = 0, bytes = 0, entries = 0;
        wr_index_cursor cursor = {0};
        uint8_t id[16];
        for (wr_index_entry *entry; (entry = wr_index_next(&store->index, &cursor, id)); entries++) {
            CHECK(!(atomic_load(&entry->version) & 1));
            CHECK(wr_index_find(&store->index, id) == entry);
            CHECK(wr_store_file(store, entry->file));
            CHECK(entry->offset >= WR_FILE_HEADER_BYTES && entry->total_size >= WR_FRAME_BYTES_MIN &&
                       (uint64_t)entry->offset + entry->total_size <= WORLD_FILE_BYTES);
            if (!wr_entry_held(entry)) continue;
            messages++;
            bytes += entry->total_size;
        }
        CHECK(entries == store->index.live && messages == store->messages && bytes == store->valid_bytes);
        uint64_t valid = 0, files = 0;
        wr_file_ref last = {0};
        for (wr_file_ref file = store->first_file; wr_file_some(file); files++) {
            wr_summary_row *row = wr_store_at(store, file);
            CHECK(row && files <= WORLD_FILES && wr_row_left(row).plus_one == last.plus_one);
            valid += atomic_load(&row->valid_total_size);
            last = file;
            file = wr_row_right(row);
        }
        CHECK(valid == bytes && last.plus_one == store->last_file.plus_one && files == store->files);
    }
}

/* The body of a message must be these bytes. */
static inline void world_expect(world *w, uint32_t number, const uint8_t id[16], const uint8_t *body, uint32_t length) {
    wr_store *store = &w->server->stores[number];
    wr_index_entry *entry = wr_index_find(&store->index, id);
    CHECK(entry && wr_entry_held(entry) && entry->total_size == wr_frame_bytes(length));
    CHECK(entry->file < WORLD_FILES && w->there[number][entry->file]);
    uint8_t *frame = malloc(entry->total_size);
    CHECK(frame && pread(world_fd(number, entry->file), frame, entry->total_size, entry->offset) == (ssize_t)entry->total_size);
    wr_frame_head head;
    CHECK(wr_frame_check(frame, entry->total_size, 0, world_salt(entry->file), &head, NULL) == entry->total_size);
    CHECK(head.kind == WR_KIND_MESSAGE && !memcmp(head.id, id, 16) && !memcmp(frame + WR_FRAME_HEAD_BYTES, body, length));
    free(frame);
}
#endif
