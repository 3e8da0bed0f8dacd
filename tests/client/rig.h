/* An attachment of a client without a node around it: a superblock, a region, and files as a worker leaves them. */
#ifndef WR_CLIENT_RIG_H
#define WR_CLIENT_RIG_H
#include "client/consumer.h"
#include "kernel/delivery.h"
#include "support/check.h"
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SERVERS 4
#define RING 256
#define SLOTS 64
#define WORKER WR_SERVER_WORKER_FIRST
#define ARENA 65536

typedef struct {
    wr_superblock *super;
    void *region;
    uint64_t bytes;
    wr_attachment a;
} node;

/* A client's part of shared memory; the attachment is not made yet. */
static void make_regions(node *n) {
    memset((void *)n, 0, sizeof *n);
    n->super = aligned_alloc(WR_PAGE_BYTES, wr_page_up(WR_SUPERBLOCK_BYTES));
    CHECK(n->super);
    memset((void *)n->super, 0, WR_SUPERBLOCK_BYTES);
    n->super->node_id = 7;
    n->super->servers_n = SERVERS;
    n->super->ring_records = RING;
    n->super->delivery_slots = SLOTS;
    n->super->reply_bytes = 4096;
    n->super->arena_bytes = ARENA;
    n->super->message_bytes_max = n->super->shared_bytes_max = 20000;
    n->super->images_n = 2;
    n->super->file_bytes = 262144;
    wr_geometry g = wr_geometry_of(n->super);
    n->bytes = wr_view_bytes(&g);
    n->region = aligned_alloc(WR_PAGE_BYTES, wr_page_up(n->bytes));
    CHECK(n->region);
    memset(n->region, 0, n->bytes);
}

static int attach(node *n) { return wr_attachment_init(&n->a, n->super, n->region, n->bytes, 3, 1, 99); }

static void drop(node *n) {
    wr_attachment_free(&n->a);
    free(n->region);
    free((void *)n->super);
}

static void write_file(int folder, const char *name, uint64_t file, uint64_t salt, const uint8_t *frames, uint64_t bytes) {
    uint8_t header[WR_FILE_HEADER_BYTES];
    unlinkat(folder, name, 0);
    int fd = openat(folder, name, O_CREAT | O_WRONLY | O_TRUNC, 0600);
    CHECK(fd >= 0);
    wr_file_header_write(header, WR_FILE_JOURNAL, 7, WORKER, file, salt, 1);
    CHECK(write(fd, header, sizeof header) == (ssize_t)sizeof header);
    CHECK(write(fd, frames, bytes) == (ssize_t)bytes);
    close(fd);
}
#endif
