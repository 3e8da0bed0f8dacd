/* Bodies of deliveries that lie in files of a queue worker: where they lie, read without the worker. */
#ifndef WR_CLIENT_BODIES_H
#define WR_CLIENT_BODIES_H
#include "kernel/protocol.h"
#include <pthread.h>
#include <stdbool.h>

#define WR_BODY_FILES 16
#define WR_BODY_WINDOW (128u << 10)

typedef struct {
    uint64_t file;
    uint64_t used; /* clock of the last use */
    uint64_t salt;
    uint32_t server;
    uint8_t location;
    int fd; /* -1: free */
    uint8_t *window; /* part of the file read last, WR_BODY_WINDOW bytes, allocated at the first use */
    uint64_t window_at;
    uint64_t window_bytes;
} wr_body_file;

/* Files of a worker as a reader sees them. Under `lock`, which is only taken without the GIL (or tried with it). */
typedef struct {
    pthread_mutex_t lock;
    wr_body_file files[WR_BODY_FILES];
    uint64_t clock;
    uint64_t node_id;
    int journal_fd[WR_SERVERS_MAX];   /* folders, -1: not there; owned */
    int transient_fd[WR_SERVERS_MAX];
    int segments_fd[WR_SERVERS_MAX];
    int large_fd[WR_SERVERS_MAX]; /* folders of messages in files of their own: opened when one comes, and the same ones until the end */
} wr_bodies;

int wr_bodies_init(wr_bodies *bodies, uint64_t node_id);
void wr_bodies_free(wr_bodies *bodies);
/* Another incarnation of the server: take other folders (owned from now on, -1 for none) and forget its open files. */
void wr_bodies_set(wr_bodies *bodies, uint32_t server, int journal_fd, int transient_fd, int segments_fd);
/* Metadata (meta_length bytes) and payload (the rest of body_length) of a delivery that lies in a file; NULL where they are
 * not wanted. 0, ENOENT (the file is gone: locate the message again), EBADMSG (not the bytes that were written
 * there; *reason says what), EUCLEAN (its first page is not that of this file), or errno. The caller holds `lock`. With
 * `window_only` it reads nothing from the disk and answers EAGAIN instead. */
int wr_bodies_read(wr_bodies *bodies, uint32_t server, const wr_delivery *d, void *meta, void *to, bool window_only,
                   const char **reason);
#endif
