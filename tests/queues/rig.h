/* A queue engine without a process around it, and clients of it, for the tests that drive it turn by turn on one thread.
 * Before it is included: FILE_BYTES, IMAGES_N, RING_RECORDS, DELIVERY_SLOTS, ARENA_BYTES. */
#ifndef WR_QUEUE_RIG_H
#define WR_QUEUE_RIG_H
#include "queues/engine.h"
#include "queues/links.h"
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define SERVER WR_SERVER_WORKER_FIRST

#define CHECK(x)                                                            \
    do {                                                                    \
        if (!(x)) {                                                         \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #x);         \
            abort();                                                        \
        }                                                                   \
    } while (0)

static void *memory(uint64_t bytes) {
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(p != MAP_FAILED);
    return p;
}

typedef struct {
    wr_superblock *super;
    wr_queue_engine *e;
    uint8_t *images, *timages;
    void *stats;
} rig;

static void rig_new(rig *r) {
    r->super = memory(WR_SUPERBLOCK_BYTES);
    r->super->servers_n = 3;
    r->super->ring_records = RING_RECORDS;
    r->super->delivery_slots = DELIVERY_SLOTS;
    r->super->arena_bytes = ARENA_BYTES;
    r->super->reply_bytes = 4096;
    r->super->message_bytes_max = 1u << 20;
    r->super->embed_bytes_max = 4096;
    r->super->state = WR_NODE_RUNNING;
    uint64_t bytes = WR_PAGE_BYTES + IMAGES_N * (uint64_t)FILE_BYTES;
    r->images = memory(bytes);
    r->timages = memory(bytes);
    r->stats = memory(8 * sizeof(wr_queue_stats));
    wr_queue_options o = {.super = r->super, .server = SERVER, .images = r->images, .transient_images = r->timages,
                          .images_bytes = bytes, .images_n = IMAGES_N, .file_bytes = FILE_BYTES, .stats = r->stats,
                          .stats_rows = 8, .tick_ns = 25000000, .commit_bytes = 1 << 20, .journal_files_max = 1000};
    r->e = wr_queue_new(&o);
    CHECK(r->e);
}

static void rig_free(rig *r) {
    uint64_t bytes = WR_PAGE_BYTES + IMAGES_N * (uint64_t)FILE_BYTES;
    wr_queue_free(r->e);
    munmap(r->super, WR_SUPERBLOCK_BYTES);
    munmap(r->images, bytes);
    munmap(r->timages, bytes);
    munmap(r->stats, 8 * sizeof(wr_queue_stats));
}

/* The first file of a journal. */
static void offer(wr_log *log) {
    FILE *f = tmpfile();
    CHECK(f);
    int fd = dup(fileno(f));
    fclose(f);
    CHECK(fd >= 0 && posix_fallocate(fd, 0, FILE_BYTES) == 0);
    uint8_t header[WR_FILE_HEADER_BYTES];
    wr_file_header_write(header, WR_FILE_JOURNAL, 7, SERVER, 0, 1000, 1);
    CHECK(!wr_log_offer(log, fd, 0, 1000, header));
}

typedef struct {
    wr_port port;
    void *region;
    uint64_t bytes;
} peer;

static void peer_new(rig *r, peer *p, uint32_t slot) {
    wr_geometry g = wr_geometry_of(r->super);
    p->bytes = wr_view_bytes(&g);
    p->region = memory(p->bytes);
    CHECK(!wr_port_init(&p->port, r->super, p->region, p->bytes, slot, 1, 100 + slot));
    CHECK(!wr_queue_attach(r->e, slot, 1, 100 + slot, p->region, p->bytes));
}

static void peer_free(peer *p) {
    wr_port_free(&p->port);
    munmap(p->region, p->bytes);
}
#endif
