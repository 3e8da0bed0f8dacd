#define _GNU_SOURCE
#include "topics/log_reader.h"
#include "kernel/data_files.h"
#include "kernel/protocol.h"
#include "kernel/read.h"
#include "topics/log.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define ROOM_KEPT (4u << 20) /* a larger window is given back when it is not needed any more */

void wr_log_reader_init(wr_log_reader *r, int root, uint64_t file_bytes) {
    *r = (wr_log_reader){.root = root, .file_bytes = file_bytes};
    for (int i = 0; i < WR_LOG_FILES_OPEN; i++) r->files[i].fd = -1;
}

static void close_file(wr_log_reader *r, int i) {
    if (r->files[i].fd >= 0) close(r->files[i].fd);
    r->files[i].fd = -1;
}

void wr_log_reader_begin(wr_log_reader *r, const void *ring, uint64_t ring_bytes) {
    for (int i = 0; i < WR_LOG_FILES_OPEN; i++) close_file(r, i);
    wr_log_reader_drop(r);
    r->ring = ring;
    r->ring_bytes = ring_bytes;
}

void wr_log_reader_retire(wr_log_reader *r, uint64_t first) {
    for (int i = 0; i < WR_LOG_FILES_OPEN; i++)
        if (r->files[i].fd >= 0 && r->files[i].base + r->file_bytes <= first) close_file(r, i);
}

void wr_log_reader_free(wr_log_reader *r) {
    wr_log_reader_begin(r, NULL, 0);
    free(r->bytes);
    r->bytes = NULL;
    r->room = 0;
}

/* Have room in the window, which is empty then. */
static int make_room(wr_log_reader *r, uint64_t bytes) {
    wr_log_reader_drop(r);
    if (r->room >= bytes && (r->room <= ROOM_KEPT || bytes > WR_LOG_WINDOW_BYTES)) return 0;
    uint64_t room = 4096;
    while (room < bytes) room *= 2;
    free(r->bytes);
    r->bytes = malloc(room);
    r->room = r->bytes ? room : 0;
    return r->bytes ? 0 : ENOMEM;
}

/* The file of a base. 0 with *fd, or an errno. */
static int open_base(wr_log_reader *r, uint64_t base, int *fd) {
    int oldest = 0;
    for (int i = 0; i < WR_LOG_FILES_OPEN; i++) {
        if (r->files[i].fd >= 0 && r->files[i].base == base) {
            r->files[i].used = ++r->uses;
            *fd = r->files[i].fd;
            return 0;
        }
        if (r->files[oldest].fd >= 0 && (r->files[i].fd < 0 || r->files[i].used < r->files[oldest].used)) oldest = i;
    }
    char path[64];
    snprintf(path, sizeof path, WR_LOG_FOLDER "/%020llu", (unsigned long long)base);
    *fd = wr_data_open(r->root, path, O_RDONLY, 0);
    if (*fd < 0) return errno;
    close_file(r, oldest);
    r->files[oldest].fd = *fd;
    r->files[oldest].base = base;
    r->files[oldest].used = ++r->uses;
    return 0;
}

/* Fill the window with up to n bytes of one file. */
static int read_file(wr_log_reader *r, uint64_t position, uint64_t n) {
    int fd;
    uint64_t base = position - position % r->file_bytes, done = 0;
    int error = open_base(r, base, &fd);
    if (!error) error = wr_read_up_to(fd, r->bytes, n, position - base, &done);
    r->from = position;
    r->n = error ? 0 : done;
    return error;
}

static inline bool read_ring(wr_log_reader *r, uint64_t position, uint64_t n) {
    if (!r->ring || !wr_topic_ring_read(r->ring, r->ring_bytes, position, r->bytes, n)) return false;
    r->from = position;
    r->n = n;
    return true;
}

static inline uint64_t left_in_file(const wr_log_reader *r, uint64_t position) { return r->file_bytes - position % r->file_bytes; }

int wr_log_reader_read(wr_log_reader *r, uint64_t position, uint64_t n, uint64_t ahead) {
    uint64_t left = left_in_file(r, position);
    if (position >> 63 || n > left) return ENODATA;
    if (n + ahead > WR_LOG_WINDOW_BYTES) ahead = n < WR_LOG_WINDOW_BYTES ? WR_LOG_WINDOW_BYTES - n : 0;
    if (ahead > left - n) ahead = left - n;
    int error = make_room(r, n + ahead);
    if (error || read_ring(r, position, n + ahead)) return error;
    error = read_file(r, position, n + ahead);
    if (error || r->n >= n) return error;
    wr_log_reader_drop(r);
    return ENODATA;
}

int wr_log_reader_peek(wr_log_reader *r, uint64_t position, uint64_t n, const uint8_t **bytes, uint64_t *found) {
    *found = 0;
    if (position >> 63) return 0;
    uint64_t left = left_in_file(r, position), there = 0;
    if (n > left) n = left;
    int error = make_room(r, n);
    if (error) return error;
    if (r->ring) {
        /* SYNC ring-appended: what lies behind it is not complete */
        uint64_t appended = atomic_load_explicit(&((wr_topic_ring *)(uintptr_t)r->ring)->appended, memory_order_acquire);
        there = position < appended ? appended - position : 0;
    }
    if (!there || !read_ring(r, position, there < n ? there : n)) error = read_file(r, position, n);
    *bytes = r->bytes;
    *found = r->n;
    wr_log_reader_drop(r);
    return error;
}
