/* A store server and its clients as threads of one test process: regions under their real names, files in a folder of their own. */
#ifndef STORE_HARNESS_H
#define STORE_HARNESS_H
#define _GNU_SOURCE
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
#include "store/client.h"
#include "ipc/core/names.h"
#include "support/check.h"
#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>

#define EXTENTS_MAX 8

static char folder[200];
static wr_superblock *super;
static uint64_t client_bytes;
static uint64_t next_file = 0, generation_next = 1;
static char shm_names[256][WR_REGION_NAME_BYTES];
static uint32_t shm_n;

static void clean_up(void) {
    while (shm_n) shm_unlink(shm_names[--shm_n]);
    for (int n = 0; n < 2 && folder[0]; n++) {
        char path[600];
        snprintf(path, sizeof path, "%s/%d", folder, n);
        DIR *dir = opendir(path);
        for (struct dirent *entry; dir && (entry = readdir(dir));) {
            if (entry->d_name[0] == '.') continue;
            snprintf(path, sizeof path, "%s/%d/%s", folder, n, entry->d_name);
            unlink(path);
        }
        if (dir) closedir(dir);
        snprintf(path, sizeof path, "%s/%d", folder, n);
        rmdir(path);
    }
    if (folder[0]) rmdir(folder);
    folder[0] = 0;
}

static void *zeroed(uint64_t bytes) {
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(p != MAP_FAILED);
    return p;
}

static void *shm_region(const char *what, uint32_t number, uint64_t generation, uint64_t bytes) {
    CHECK(shm_n < 256);
    wr_region_name(shm_names[shm_n], super, what, number, generation);
    int fd = shm_open(shm_names[shm_n++], O_RDWR | O_CREAT | O_EXCL, 0600);
    CHECK(fd >= 0 && ftruncate(fd, (off_t)bytes) == 0);
    void *region = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    CHECK(region != MAP_FAILED);
    close(fd);
    return region;
}

static void make_folder(void) {
    snprintf(folder, sizeof folder, "%s/warren-store-test-XXXXXX", getenv("TMPDIR") ? getenv("TMPDIR") : "/tmp");
    check_clean_up = clean_up;
    CHECK(mkdtemp(folder));
    for (int n = 0; n < 2; n++) {
        char path[300];
        snprintf(path, sizeof path, "%s/%d", folder, n);
        CHECK(mkdir(path, 0700) == 0);
    }
}

/* Small geometry; `change` what matters before anything else is made. */
static void make_superblock(void) {
    super = zeroed(WR_SUPERBLOCK_BYTES);
    super->servers_n = 2;
    super->ring_records = 128;
    super->delivery_slots = 2;
    super->arena_bytes = 256 * 1024;
    super->reply_bytes = 4096;
    super->message_bytes_max = super->shared_bytes_max = 32 * 1024;
    super->file_bytes = 64 * 4096;
    super->images_n = 2;
    super->directory_rows = 4096;
    super->summary_rows = 1024;
    super->dense_blocks = 1024;
    super->node_id = (uint64_t)getpid() << 16 | 0x4711;
    super->shared_id = super->node_id;
}

static void geometry_done(void) {
    wr_geometry g = wr_geometry_of(super);
    client_bytes = wr_view_bytes(&g);
    super->client_base_bytes = client_bytes;
}

typedef struct {
    wr_store_server *server;
    wr_store_regions regions[2];
    void *extents[2][EXTENTS_MAX];
    uint64_t generation;
    int folder_fd[2];
    wr_list *lists[4096]; /* of files of the persistent store that were rolled, as list files would keep them */
} rig;

static const char *path_of(uint32_t number, uint64_t file) {
    static _Thread_local char path[300];
    snprintf(path, sizeof path, "%s/%u/%llu.rdq", folder, number, (unsigned long long)file);
    return path;
}

/* A server with empty stores. It is published when `publish` is called: after recovery. */
static rig *make_rig(uint64_t index_rows) {
    rig *r = calloc(1, sizeof *r);
    CHECK(r);
    r->generation = generation_next++;
    r->server = aligned_alloc(64, (sizeof *r->server + 63) & ~(size_t)63);
    CHECK(r->server && wr_store_server_init(r->server, super, 64 * 1024, 2000000, 20000) == 0);
    for (uint32_t number = 0; number < 2; number++) {
        wr_store_regions *made = &r->regions[number];
        *made = (wr_store_regions){.images_bytes = WR_PAGE_BYTES + (uint64_t)super->images_n * super->file_bytes,
                                   .directory_bytes = super->directory_rows * 8ull,
                                   .summary_bytes = super->summary_rows * sizeof(wr_summary_row),
                                   .index_bytes = WR_PAGE_BYTES + index_rows * sizeof(wr_index_row),
                                   .dense_bytes = WR_PAGE_BYTES + super->dense_blocks * sizeof(wr_dense_table_row)};
        made->images = shm_region("images", number, r->generation, made->images_bytes);
        made->directory = shm_region("directory", number, r->generation, made->directory_bytes);
        made->summary = shm_region("summary", number, r->generation, made->summary_bytes);
        made->index = shm_region("index", number, r->generation, made->index_bytes);
        made->dense = shm_region("dense", number, r->generation, made->dense_bytes);
        CHECK(wr_store_open(r->server, number, made) == 0);
        char path[300];
        snprintf(path, sizeof path, "%s/%u", folder, number);
        CHECK((r->folder_fd[number] = open(path, O_RDONLY | O_DIRECTORY)) >= 0);
        wr_store_set_folder(&r->server->stores[number], r->folder_fd[number]);
    }
    return r;
}

static void __attribute__((unused)) publish(rig *r) {
    for (uint32_t number = 0; number < 2; number++) {
        wr_server *row = wr_superblock_server(super, number);
        atomic_store(&row->index_generation, r->generation);
        atomic_store(&row->generation, r->generation);
        atomic_store(&row->epoch, r->generation);
    }
}

/* All memory goes, as when the server was killed; its committer must have ended. */
static void drop_rig(rig *r) {
    for (uint32_t number = 0; number < 2; number++) close(r->folder_fd[number]);
    uint32_t extents[2] = {r->server->stores[0].index.extents_n, r->server->stores[1].index.extents_n};
    wr_store_server_free(r->server);
    free(r->server);
    for (int n = 0; n < 2; n++) {
        atomic_store(&((wr_index_header *)r->regions[n].index)->replaced, 1);
        atomic_store(&((wr_index_header *)r->regions[n].dense)->replaced, 1);
        munmap(r->regions[n].images, r->regions[n].images_bytes);
        munmap(r->regions[n].directory, r->regions[n].directory_bytes);
        munmap(r->regions[n].summary, r->regions[n].summary_bytes);
        munmap(r->regions[n].index, r->regions[n].index_bytes);
        munmap(r->regions[n].dense, r->regions[n].dense_bytes);
        for (uint32_t k = 0; k < extents[n]; k++) munmap(r->extents[n][k], WR_DENSE_EXTENT_BYTES);
    }
    for (size_t i = 0; i < sizeof r->lists / sizeof *r->lists; i++) wr_list_free(r->lists[i]);
    free(r);
}

static void give_extent(rig *r, uint32_t number) {
    wr_store *store = &r->server->stores[number];
    uint32_t n = store->index.extents_n;
    CHECK(n < EXTENTS_MAX);
    char what[32];
    snprintf(what, sizeof what, "dense%u", n);
    r->extents[number][n] = shm_region(what, number, r->generation, WR_DENSE_EXTENT_BYTES);
    CHECK(wr_store_add_extent(store, r->extents[number][n], WR_DENSE_EXTENT_BYTES) == 0);
}

static void offer_file(wr_store *store) {
    uint64_t file = next_file++;
    uint8_t header[WR_FILE_HEADER_BYTES];
    int fd = open(path_of(store->number, file), O_RDWR | O_CREAT | O_EXCL, 0600);
    CHECK(fd >= 0 && posix_fallocate(fd, 0, (off_t)super->file_bytes) == 0);
    wr_file_header_write(header, WR_FILE_STORE, super->node_id, store->number, file, file * 99 + 1, 1);
    CHECK(wr_store_offer(store, fd, file, file * 99 + 1, header) == 0);
}

/* The list of a file, by reading it; NULL: no file of this store, or never written. */
static wr_list *scan_file(uint32_t number, uint64_t file, const char **reason) {
    uint8_t *bytes = malloc(super->file_bytes);
    int fd = open(path_of(number, file), O_RDONLY);
    wr_list *list = NULL;
    uint64_t salt;
    CHECK(bytes);
    if (fd >= 0) {
        CHECK(pread(fd, bytes, super->file_bytes, 0) == (ssize_t)super->file_bytes);
        close(fd);
        if (!wr_file_header_check(bytes, WR_FILE_STORE, super->node_id, number, file, &salt))
            CHECK((list = wr_list_scan(file, salt, bytes, super->file_bytes, reason)));
    }
    free(bytes);
    return list;
}

/* What policy does after run(): files, extents, lists, empty files. */
static void serve_events(rig *r) {
    for (uint32_t n = 0; n < 2; n++) {
        wr_store *store = &r->server->stores[n];
        while (!wr_log_look(store->log)->has_next) offer_file(store);
        if (wr_index_wants_extent(&store->index) && store->index.extents_n < EXTENTS_MAX) give_extent(r, n);
        for (wr_list *list; (list = wr_store_take_list(store));) {
            if (n || list->file >= 4096)
                wr_list_free(list);
            else
                r->lists[list->file] = list;
        }
        for (wr_file_ref gone; wr_file_some(gone = wr_store_take_gone(store));) {
            uint64_t file = wr_file_number(gone);
            const char *reason;
            wr_list *list = n == 0 && file < 4096 && r->lists[file] ? r->lists[file] : scan_file(n, file, &reason);
            CHECK(list);
            for (uint64_t cursor = 0; cursor != UINT64_MAX;) CHECK(wr_store_drop_entries(store, file, list, &cursor) == 0);
            wr_list_free(list);
            if (n == 0 && file < 4096) r->lists[file] = NULL;
            CHECK(unlink(path_of(n, file)) == 0);
            wr_store_file_gone(store, file);
        }
    }
}

/* Replay one file into a store. */
static void __attribute__((unused)) apply(rig *r, uint32_t number, const wr_list *list, uint64_t low, uint64_t high) {
    wr_store *store = &r->server->stores[number];
    CHECK(wr_store_add_file(store, list->file, list->used, low, high) == 0);
    uint64_t cursor = 0;
    for (const char *wants;;) {
        CHECK(wr_store_apply_list(store, list, &cursor, &wants) == 0);
        if (!wants) break;
        CHECK(!strcmp(wants, "extent")); /* the tables of these tests are large enough */
        give_extent(r, number);
    }
    CHECK(cursor == UINT64_MAX);
}

/* Replay all files of the persistent store that are there, by reading them. */
static void __attribute__((unused)) recover(rig *r) {
    for (uint64_t file = 0; file < next_file; file++) {
        const char *reason;
        wr_list *list = scan_file(0, file, &reason);
        if (!list) continue;
        apply(r, 0, list, file, file);
        wr_list_free(list);
    }
    for (uint32_t n = 0; n < 2; n++) CHECK(wr_store_finish(&r->server->stores[n]) == 0);
}
#endif
