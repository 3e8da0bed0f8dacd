/* Bodies that lie in files of a queue worker: read by their consumer, without the worker.
 *
 * Journal (`<n>.jnl`) and segment (`<n>.dat`) files have one format. A frame is valid by its own CRC, seeded with the
 * salt of its file: a file that was deleted, replaced or recycled under the same name never gives foreign bytes. Files
 * are kept open (an open descriptor keeps the inode), and each has a window of bytes read ahead, because a consumer
 * that drains a backlog reads neighbours.
 */
#include "client/bodies.h"
#include "kernel/data_files.h"
#include "kernel/delivery.h"
#include "kernel/log.h"
#include "kernel/read.h"
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static void forget(wr_body_file *file) {
    if (file->fd >= 0) close(file->fd);
    free(file->window);
    *file = (wr_body_file){.fd = -1};
}

int wr_bodies_init(wr_bodies *bodies, uint64_t node_id) {
    memset(bodies, 0, sizeof *bodies);
    bodies->node_id = node_id;
    for (int i = 0; i < WR_BODY_FILES; i++) bodies->files[i].fd = -1;
    for (int i = 0; i < WR_SERVERS_MAX; i++) bodies->journal_fd[i] = bodies->transient_fd[i] = bodies->segments_fd[i] = bodies->large_fd[i] = -1;
    return pthread_mutex_init(&bodies->lock, NULL);
}

static void replace(int *fd, int with) {
    if (*fd >= 0) close(*fd);
    *fd = with;
}

void wr_bodies_set(wr_bodies *bodies, uint32_t server, int journal_fd, int transient_fd, int segments_fd) {
    for (int i = 0; i < WR_BODY_FILES; i++)
        if (bodies->files[i].fd >= 0 && bodies->files[i].server == server) forget(&bodies->files[i]);
    replace(&bodies->journal_fd[server], journal_fd);
    replace(&bodies->transient_fd[server], transient_fd);
    replace(&bodies->segments_fd[server], segments_fd);
}

void wr_bodies_free(wr_bodies *bodies) {
    for (uint32_t server = 0; server < WR_SERVERS_MAX; server++) {
        wr_bodies_set(bodies, server, -1, -1, -1);
        replace(&bodies->large_fd[server], -1);
    }
    /* The mutex is not destroyed: after a fork it may be held by a thread that does not exist here. */
}

/* Whole bytes or an errno; EBADMSG when the file ends before. */
static int read_all(int fd, void *to, uint64_t bytes, uint64_t at) {
    uint64_t n;
    int error = wr_read_up_to(fd, to, bytes, at, &n);
    return error ? error : n < bytes ? EBADMSG : 0;
}

static int open_file(wr_bodies *bodies, wr_body_file *file, const char **reason) {
    char name[32];
    bool segment = file->location == WR_LOCATION_SEGMENT;
    int folder = segment                                           ? bodies->segments_fd[file->server]
                 : file->location == WR_LOCATION_JOURNAL_TRANSIENT ? bodies->transient_fd[file->server]
                                                                   : bodies->journal_fd[file->server];
    if (folder < 0) return ENOENT;
    snprintf(name, sizeof name, segment ? "%llu.dat" : "%llu.jnl", (unsigned long long)file->file);
    int fd = wr_data_open(folder, name, O_RDONLY, 0);
    if (fd < 0) return errno;
    uint8_t header[WR_FILE_HEADER_BYTES];
    int error = read_all(fd, header, sizeof header, 0);
    if (!error) {
        *reason = wr_file_header_check(header, WR_FILE_JOURNAL, bodies->node_id, file->server, file->file, &file->salt);
        if (*reason) error = EUCLEAN;
    } else if (error == EBADMSG) {
        error = EUCLEAN;
    }
    if (error) {
        close(fd);
        return error;
    }
    file->fd = fd;
    return 0;
}

/* The open file that holds a delivery; opened in the place of the one not used for longest when it is not open. */
static int file_of(wr_bodies *bodies, uint32_t server, const wr_delivery *d, bool window_only, wr_body_file **found,
                   const char **reason) {
    wr_body_file *oldest = &bodies->files[0];
    for (int i = 0; i < WR_BODY_FILES; i++) {
        wr_body_file *file = &bodies->files[i];
        if (file->fd >= 0 && file->file == d->file && file->server == server && file->location == wr_delivery_location(d)) {
            file->used = ++bodies->clock;
            *found = file;
            return 0;
        }
        if (file->used < oldest->used) oldest = file;
    }
    if (window_only) return EAGAIN;
    forget(oldest);
    oldest->server = server;
    oldest->location = wr_delivery_location(d);
    oldest->file = d->file;
    int error = open_file(bodies, oldest, reason);
    if (error) return error;
    oldest->used = ++bodies->clock;
    *found = oldest;
    return 0;
}

/* Check the frame at `frame` and copy metadata and payload out of it; what has no place is not wanted. */
static int take_frame(const wr_body_file *file, const wr_delivery *d, const uint8_t *frame, void *meta, void *to,
                      const char **reason) {
    wr_frame_head head;
    uint64_t total = wr_frame_check(frame, d->frame_length, 0, file->salt, &head, reason);
    if (!total) return EBADMSG;
    if (total != d->frame_length || memcmp(head.id, d->id, 16) || (uint64_t)d->blob_offset + d->body_length + 1 > total ||
        d->meta_length > d->body_length) {
        *reason = "another message";
        return EBADMSG;
    }
    if (d->meta_length && meta) memcpy(meta, frame + d->blob_offset, d->meta_length);
    if (to) memcpy(to, frame + d->blob_offset + d->meta_length, d->body_length - d->meta_length);
    return 0;
}

/* `bytes` of the file at `at`: in the window, which is read anew when it does not hold them. */
static int look(wr_body_file *file, uint64_t at, uint64_t bytes, bool window_only, bool again, const uint8_t **found) {
    if (!again && file->window && at >= file->window_at && at + bytes <= file->window_at + file->window_bytes) {
        *found = file->window + (at - file->window_at);
        return 0;
    }
    if (window_only || bytes > WR_BODY_WINDOW) return EAGAIN;
    if (!file->window && !(file->window = malloc(WR_BODY_WINDOW))) return ENOMEM;
    file->window_bytes = 0;
    file->window_at = at;
    for (;;) {
        ssize_t n = pread(file->fd, file->window, WR_BODY_WINDOW, (off_t)at);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return errno;
        file->window_bytes = (uint64_t)n;
        break;
    }
    if (file->window_bytes < bytes) return EBADMSG;
    *found = file->window;
    return 0;
}

static int read_frame(wr_body_file *file, const wr_delivery *d, void *meta, void *to, bool window_only, const char **reason) {
    const uint8_t *found;
    int error = look(file, d->offset, d->frame_length, window_only, false, &found);
    if (!error) {
        error = take_frame(file, d, found, meta, to, reason);
        if (error != EBADMSG) return error;
        if (window_only) return EAGAIN;
        /* The window may have been read before the frame was written: once more from the file. */
        error = look(file, d->offset, d->frame_length, false, true, &found);
        return error ? error : take_frame(file, d, found, meta, to, reason);
    }
    if (error != EAGAIN || window_only) return error;
    uint8_t *frame = malloc(d->frame_length); /* larger than a window */
    if (!frame) return ENOMEM;
    error = read_all(file->fd, frame, d->frame_length, d->offset);
    if (!error) error = take_frame(file, d, frame, meta, to, reason);
    free(frame);
    return error;
}

int wr_bodies_read(wr_bodies *bodies, uint32_t server, const wr_delivery *d, void *meta, void *to, bool window_only,
                   const char **reason) {
    wr_body_file *file;
    *reason = "short";
    int error = file_of(bodies, server, d, window_only, &file, reason);
    if (!error) error = read_frame(file, d, meta, to, window_only, reason);
    else return error;
    if (error == EBADMSG) forget(file); /* the next attempt opens what bears the name then */
    return error;
}
