/* A queue engine without a process around it, for tests and fuzz targets: superblock, regions, files, clients, and the two stores
 * where they are wanted. Either its caller drives it turn by turn on one thread, or rig_start gives it its own threads. */
#ifndef WR_QUEUE_RIG_H
#define WR_QUEUE_RIG_H
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "queues/engine.h"
#include "queues/journal.h"
#include "queues/entries.h"
#include "queues/flush.h"
#include "queues/links.h"
#include "queues/loop.h"
#include "queues/owed.h"
#include "queues/pages.h"
#include "queues/replay.h"
#include "queues/rows.h"
#include "queues/segments.h"
#include "queues/played_stores.h"
#include "support/check.h"
#include "support/guarded.h"
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define SERVER WR_SERVER_WORKER_FIRST
#define RIG_FILES 256
#define RIG_NODE 7

typedef struct {
    uint64_t file_bytes, arena_bytes, message_bytes_max, spin_ns;
    uint32_t images_n, ring_records, delivery_slots, embed_bytes_max, stats_rows;
    const char *folder;       /* of the files of its journals; NULL: they have no names */
    uint32_t directory_rows;  /* of both stores, which stores_play plays; 0: there are none */
} rig_shape;

typedef struct {
    rig_shape shape;
    wr_superblock *super;
    wr_queue_engine *engine;
    uint8_t *images[2], *region, *directory; /* of the journals by `transient`; the engine's own as a client of the stores */
    void *stats;
    uint64_t images_bytes, region_bytes, client_bytes;
    uint32_t next_file[2];
    int files[2][RIG_FILES]; /* of a rig without a folder; -1: gone */
    _Atomic bool stop;
    pthread_t loop, commits[2];
} rig;

static inline wr_log *rig_log(rig *r, int transient) { return transient ? r->engine->transient_log : r->engine->log; }
static inline wr_files *rig_files(rig *r, int transient) { return transient ? &r->engine->transient_files : &r->engine->files; }
static inline uint64_t rig_salt(uint32_t file) { return 1000ull + file; }

/* Whatever the shape leaves open. */
static inline rig_shape rig_whole(rig_shape s) {
    if (!s.message_bytes_max) s.message_bytes_max = 1u << 20;
    if (!s.embed_bytes_max) s.embed_bytes_max = 4096;
    if (!s.stats_rows) s.stats_rows = 64;
    return s;
}

/* Its memory; there is no engine yet. */
static inline rig *rig_regions(const rig_shape *shape) {
    rig *r = calloc(1, sizeof *r);
    CHECK(r);
    rig_shape s = r->shape = rig_whole(*shape);
    memset(r->files, 0xff, sizeof r->files);
    r->super = guarded_new(WR_SUPERBLOCK_BYTES);
    r->super->servers_n = 3;
    r->super->ring_records = s.ring_records;
    r->super->delivery_slots = s.delivery_slots;
    r->super->arena_bytes = s.arena_bytes;
    r->super->reply_bytes = 4096;
    r->super->message_bytes_max = r->super->shared_bytes_max = s.message_bytes_max;
    r->super->embed_bytes_max = s.embed_bytes_max;
    r->super->state = WR_NODE_RUNNING;
    wr_geometry g = wr_geometry_of(r->super);
    r->client_bytes = wr_view_bytes(&g);
    r->images_bytes = WR_PAGE_BYTES + s.images_n * s.file_bytes;
    for (int transient = 0; transient < 2; transient++) r->images[transient] = guarded_new(r->images_bytes);
    r->stats = guarded_new(s.stats_rows * sizeof(wr_queue_stats));
    if (s.directory_rows) {
        r->region_bytes = r->client_bytes;
        r->region = guarded_new(r->region_bytes);
        r->directory = guarded_new(s.directory_rows * 8ull);
    }
    return r;
}

/* 0, ENOMEM */
static inline int rig_engine(rig *r) {
    rig_shape s = r->shape;
    wr_queue_options o = {.super = r->super, .server = SERVER, .images = r->images[0], .transient_images = r->images[1],
                          .images_bytes = r->images_bytes, .images_n = s.images_n, .file_bytes = s.file_bytes, .stats = r->stats,
                          .stats_rows = s.stats_rows, .spin_ns = s.spin_ns, .tick_ns = 25000000, .commit_bytes = 1 << 20,
                          .journal_files_max = 1000};
    if (s.directory_rows) {
        o.region_bytes = r->region_bytes;
        o.region = r->region;
        o.slot = 20;
        o.generation = 1;
        o.client_epoch = 77;
    }
    r->engine = wr_queue_new(&o);
    if (!r->engine) return errno;
    if (!s.directory_rows) return 0;
    stores_open(r->engine, r->directory, s.directory_rows);
    return 0;
}

static inline rig *rig_new(const rig_shape *shape) {
    rig *r = rig_regions(shape);
    CHECK(!rig_engine(r));
    return r;
}

static inline void rig_free(rig *r) {
    wr_queue_free(r->engine);
    guarded_free(r->super, WR_SUPERBLOCK_BYTES);
    for (int transient = 0; transient < 2; transient++) {
        guarded_free(r->images[transient], r->images_bytes);
        for (uint32_t i = 0; i < RIG_FILES; i++)
            if (r->files[transient][i] >= 0) close(r->files[transient][i]);
    }
    guarded_free(r->stats, r->shape.stats_rows * sizeof(wr_queue_stats));
    guarded_free(r->region, r->region_bytes);
    guarded_free(r->directory, r->shape.directory_rows * 8ull);
    free(r);
}

/* ---- files ---- */

static inline void rig_path(const rig *r, char path[256], int transient, uint32_t file) {
    snprintf(path, 256, "%s/%s%u.jnl", r->shape.folder, transient ? "t" : "", file);
}

/* The next file of a journal. False: there are no more, the disk is full. */
static inline bool rig_offer(rig *r, int transient) {
    uint32_t file = r->next_file[transient];
    if (file == RIG_FILES) return false;
    r->next_file[transient]++;
    int fd;
    if (r->shape.folder) {
        char path[256];
        rig_path(r, path, transient, file);
        fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_DIRECT, 0600);
        if (fd < 0) fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);
        CHECK(fd >= 0 && posix_fallocate(fd, 0, (off_t)r->shape.file_bytes) == 0);
    } else {
        fd = memfd_create("warren-rig", MFD_CLOEXEC);
        CHECK(fd >= 0 && ftruncate(fd, (off_t)r->shape.file_bytes) == 0);
        r->files[transient][file] = dup(fd);
    }
    uint8_t header[WR_FILE_HEADER_BYTES];
    wr_file_header_write(header, WR_FILE_JOURNAL, RIG_NODE, SERVER, file, rig_salt(file), 1);
    CHECK(wr_log_offer(rig_log(r, transient), fd, file, rig_salt(file), header) == 0);
    return true;
}

/* What a file says; the caller frees it. */
static inline uint8_t *rig_read(const rig *r, int transient, uint32_t file) {
    char path[256];
    uint8_t *bytes = malloc(r->shape.file_bytes);
    int fd = r->files[transient][file];
    if (r->shape.folder) {
        rig_path(r, path, transient, file);
        fd = open(path, O_RDONLY);
    }
    CHECK(bytes && fd >= 0 && pread(fd, bytes, r->shape.file_bytes, 0) == (ssize_t)r->shape.file_bytes);
    if (r->shape.folder) close(fd);
    return bytes;
}

/* Journal files that nothing needs go, the oldest first. */
static inline void rig_delete_files(rig *r) {
    for (int transient = 0; transient < 2; transient++) {
        wr_files *f = rig_files(r, transient);
        while (f->n > 1 && !f->live[0] && (transient || wr_journal_may_delete(r->engine, f->first))) {
            CHECK(f->first < RIG_FILES);
            if (r->shape.folder) {
                char path[256];
                rig_path(r, path, transient, f->first);
                unlink(path);
            } else {
                close(r->files[transient][f->first]);
                r->files[transient][f->first] = -1;
            }
            wr_files_drop_first(f);
        }
    }
}

/* ---- rows, pages, segments: of a rig with a folder ---- */

/* Rows of a queue as of messages whose bodies lie in file 1 of a journal. Every nth from the first is transient, none for 0. */
static inline void rig_fill(rig *r, wr_queue *q, uint64_t rows, uint64_t transient_each) {
    for (uint64_t s = q->next, end = s + rows; s < end; s++) {
        bool transient = transient_each && s % transient_each == 0;
        wr_entry entry = {.file = 1, .offset = (uint32_t)s, .frame_length = 100, .body_length = 10, .index_file = 1,
                          .location = transient ? WR_LOCATION_JOURNAL_TRANSIENT : WR_LOCATION_JOURNAL,
                          .flags = transient ? 0 : WR_ENTRY_PERSISTENT};
        memcpy(entry.id, &s, 8);
        CHECK(wr_queue_room(r->engine, q, s) == 0);
        wr_queue_insert(r->engine, q, s, &entry);
    }
}

/* 0, or what wr_pages_open says. */
static inline int rig_open_pages(rig *r, uint64_t memory_bytes) {
    char segments[256], spill[256];
    snprintf(segments, sizeof segments, "%s/segments", r->shape.folder);
    snprintf(spill, sizeof spill, "%s/rows", r->shape.folder);
    mkdir(segments, 0700);
    const int rows = open(spill, O_RDWR | O_CREAT | O_TRUNC, 0600), in = open(segments, O_RDONLY | O_DIRECTORY);
    CHECK(rows >= 0 && in >= 0);
    const int error = wr_pages_open(r->engine, in, rows, RIG_NODE, memory_bytes);
    if (error) {
        close(rows);
        close(in);
    }
    return error;
}

/* What a flush does: a journal file's entries into segments of the folder, and the rows told. */
static inline void rig_flush(rig *r, uint32_t file) {
    uint64_t most = wr_segment_export_most(r->engine, file);
    wr_segment_row *rows = malloc((most + 1) * sizeof *rows);
    CHECK(rows);
    uint64_t n = wr_segment_export(r->engine, file, rows, most);
    char path[256];
    for (uint64_t i = 0, group; i < n; i += group) {
        uint32_t number = (uint32_t)(rows[i].sequence / WR_SEGMENT_ENTRY_COUNT);
        group = wr_segment_group(rows + i, n - i);
        for (uint64_t k = i; k < i + group; k++) rows[k].location = rows[k].entry.location = WR_LOCATION_SEGMENT;
        snprintf(path, sizeof path, "%s/segments/%u", r->shape.folder, rows[i].queue);
        mkdir(path, 0700);
        snprintf(path, sizeof path, "%s/segments/%u/%u.idx", r->shape.folder, rows[i].queue, number);
        int fd = open(path, O_RDWR);
        if (fd < 0) {
            uint8_t header[WR_FILE_HEADER_BYTES];
            fd = open(path, O_RDWR | O_CREAT, 0600);
            wr_file_header_write(header, WR_FILE_SEGMENT, RIG_NODE, SERVER, number, 99, 1);
            CHECK(pwrite(fd, header, sizeof header, 0) == (ssize_t)sizeof header);
        }
        int error = wr_segment_write(fd, &rows[i], group, 99);
        if (error == ENOMEM) error = wr_segment_write(fd, &rows[i], group, 99); /* that is where nothing was written */
        CHECK(!error);
        close(fd);
    }
    CHECK(wr_segment_flushed(r->engine, file, rows, n) == n);
    free(rows);
}

/* ---- on one thread ---- */

/* From here on journals_commit commits. */
static inline void rig_commits_by_hand(rig *r) {
    if (!r->shape.folder) wr_log_set_nameless(r->engine->log);
    wr_log_stop(r->engine->log);
    wr_log_stop(r->engine->transient_log);
}

/* ---- on threads of its own ---- */

static inline void *rig_loop(void *arg) {
    rig *r = arg;
    while (!atomic_load(&r->stop)) {
        uint32_t events = wr_queue_run(r->engine, 20000000, true);
        if (events & WR_QUEUE_EVENT_NEED_FILE) CHECK(rig_offer(r, 0));
        if (events & WR_QUEUE_EVENT_NEED_TRANSIENT_FILE) CHECK(rig_offer(r, 1));
        if (events & WR_QUEUE_EVENT_FILES_EMPTY) rig_delete_files(r);
        if (events & WR_QUEUE_EVENT_CATALOG_CHANGED) wr_queue_catalog_loaded(r->engine, atomic_load(&r->super->catalog_version));
        if (events & WR_QUEUE_EVENT_FINISHED)
            for (uint32_t s = 0; s < WR_CLIENT_SLOTS; s++) wr_queue_detach(r->engine, s);
        r->engine->seen_slots_version = atomic_load(&r->super->slots_version);
    }
    return NULL;
}

static inline void *rig_committer(void *arg) {
    rig *r = arg;
    wr_log_commit_run(r->engine->log, &r->engine->me->sleeping);
    return NULL;
}

static inline void *rig_transient_committer(void *arg) {
    rig *r = arg;
    wr_log_commit_run(r->engine->transient_log, &r->engine->me->sleeping);
    return NULL;
}

static inline void rig_start(rig *r) {
    wr_journal_recovered(r->engine, false);
    for (int transient = 0; transient < 2; transient++) CHECK(rig_offer(r, transient));
    atomic_store(&r->engine->me->epoch, 1);
    wr_queue_begin(r->engine, 1);
    CHECK(!pthread_create(&r->commits[0], NULL, rig_committer, r));
    CHECK(!pthread_create(&r->commits[1], NULL, rig_transient_committer, r));
    CHECK(!pthread_create(&r->loop, NULL, rig_loop, r));
}

static inline void rig_stop(rig *r) {
    atomic_store(&r->stop, true);
    pthread_join(r->loop, NULL);
    wr_log_stop(r->engine->log);
    wr_log_stop(r->engine->transient_log);
    pthread_join(r->commits[0], NULL);
    pthread_join(r->commits[1], NULL);
}

/* ---- a client ---- */

typedef struct {
    wr_port port;
    void *region;
    uint64_t bytes;
    uint32_t slot;
} peer;

static inline peer *peer_new(rig *r, uint32_t slot) {
    peer *p = calloc(1, sizeof *p);
    CHECK(p);
    p->bytes = r->client_bytes;
    p->region = guarded_new(p->bytes);
    p->slot = slot;
    CHECK(wr_port_init(&p->port, r->super, p->region, p->bytes, slot, 1, 100 + slot) == 0);
    return p;
}

/* 0, ENOMEM */
static inline int peer_attach(rig *r, const peer *p) {
    return wr_queue_attach(r->engine, p->slot, 1, 100 + p->slot, p->region, p->bytes);
}

static inline peer *peer_attached(rig *r, uint32_t slot) {
    peer *p = peer_new(r, slot);
    CHECK(!peer_attach(r, p));
    return p;
}

static inline void peer_free(peer *p) {
    wr_port_free(&p->port);
    guarded_free(p->region, p->bytes);
    free(p);
}

static inline wr_link *link_of(const peer *p) { return &p->port.view.links[SERVER]; }
#endif
