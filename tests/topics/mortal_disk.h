/* A disk of the commit log for tests: its server dies at any write or sync, or power fails, and then each sector that was written since the
 * last sync is as it was, or as it became. In the folder `commitlog` of support/scratch.h; of one committer at a time. */
#ifndef WR_TEST_MORTAL_DISK_H
#define WR_TEST_MORTAL_DISK_H
#include "support/scratch.h"
#include "topics/log.h"
#include <fcntl.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <unistd.h>

typedef struct {
    uint64_t base, at;
    uint32_t n;
    uint8_t *before;
} written;

static written *unsynced; /* the committer's */
static uint32_t unsynced_n, unsynced_room;
static _Atomic int64_t calls_left; /* of write and sync, until the server dies; negative: it does not */

static void forget_unsynced(void) {
    for (uint32_t i = 0; i < unsynced_n; i++) free(unsynced[i].before);
    unsynced_n = 0;
}

static const char *path_of(uint64_t base) {
    static _Thread_local char path[300];
    snprintf(path, sizeof path, "%s/commitlog/%020llu", scratch, (unsigned long long)base);
    return path;
}

static uint64_t base_of(int fd) {
    char link[64], path[300];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    const ssize_t n = readlink(link, path, sizeof path - 1);
    CHECK(n > 20);
    path[n] = 0;
    return strtoull(path + n - 20, NULL, 10);
}

static bool dies(void) { return atomic_load(&calls_left) >= 0 && atomic_fetch_sub(&calls_left, 1) <= 0; }

static ssize_t mortal_pwrite(void *context, int fd, const void *from, size_t n, off_t at) {
    (void)context;
    const bool last = dies();
    if (last) atomic_store(&calls_left, 0);
    if (unsynced_n == unsynced_room) CHECK((unsynced = realloc(unsynced, (unsynced_room = 2 * unsynced_room + 16) * sizeof *unsynced)));
    written *w = &unsynced[unsynced_n++];
    *w = (written){.base = base_of(fd), .at = (uint64_t)at, .n = (uint32_t)n, .before = calloc(1, n)};
    CHECK(w->before && pread(fd, w->before, n, at) >= 0);
    const size_t part = last && n > 512 ? n / 2 : n;
    CHECK(pwrite(fd, from, part, at) == (ssize_t)part);
    if (!last) return (ssize_t)n;
    errno = EIO;
    return -1;
}

static int mortal_sync(void *context, int fd) {
    (void)context;
    (void)fd;
    if (dies()) {
        atomic_store(&calls_left, 0);
        errno = EIO;
        return -1;
    }
    forget_unsynced(); /* one file at a time is written, and the one before is synced when it ends */
    return 0;
}

/* Each sector that was written since the last sync is as it was, or as it became. */
static void fail_power(void) {
    const uint64_t chance = random_below(5);
    while (unsynced_n) {
        written *w = &unsynced[--unsynced_n];
        int fd = open(path_of(w->base), O_RDWR);
        CHECK(fd >= 0);
        for (uint32_t at = 0; at < w->n; at += 512)
            if (random_below(4) < chance) CHECK(pwrite(fd, w->before + at, w->n - at < 512 ? w->n - at : 512, (off_t)(w->at + at)) > 0);
        close(fd);
        free(w->before);
    }
}

static const wr_commit_io mortal_io = {mortal_pwrite, mortal_sync};

static int open_to_read(void *context, uint64_t base) {
    (void)context;
    int fd = open(path_of(base), O_RDONLY);
    return fd < 0 ? -errno : fd;
}

static int open_to_write(void *context, uint64_t base) {
    (void)context;
    int fd = open(path_of(base), O_RDWR);
    return fd < 0 ? -errno : fd;
}

/* The records of a commit that was written, out of its file: in the ring others may lie in their place by now. To be freed. */
static uint8_t *records_of(const wr_topic_commit *commit, uint64_t file_bytes) {
    const uint64_t base = commit->from / file_bytes * file_bytes, n = commit->at - commit->from;
    const int fd = open_to_read(NULL, base);
    uint8_t *bytes = malloc(n + 1);
    CHECK(fd >= 0 && bytes && pread(fd, bytes, n, (off_t)(commit->from - base)) == (ssize_t)n);
    close(fd);
    return bytes;
}
#endif
