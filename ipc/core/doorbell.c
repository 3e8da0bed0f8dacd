/* Declared in ipc/core/doorbell.h. */
#define _GNU_SOURCE
#include "doorbell.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

void wr_doorbell_of(wr_doorbell *d, uint32_t slot, uint32_t generation) {
    d->slot = slot;
    d->generation = generation;
    atomic_init(&d->fd, WR_DOORBELL_UNKNOWN);
}

/* A quarter of the descriptors that this process may have is kept for files: a server without them stands still, a client without a
 * doorbell is woken a little later. The kernel gives the lowest that is free. */
static bool spare(int fd) {
    struct rlimit limit;
    return !getrlimit(RLIMIT_NOFILE, &limit) && (limit.rlim_cur == RLIM_INFINITY || (rlim_t)fd < limit.rlim_cur - limit.rlim_cur / 4);
}

/* A socket that leads there, or WR_DOORBELL_NONE. */
static int reach(const wr_doorbell *d) {
    char name[32];
    snprintf(name, sizeof name, "%u-%u", d->slot, d->generation);
    int folder = open(WR_DOORBELLS, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC), fd = WR_DOORBELL_NONE;
    if (folder < 0) return WR_DOORBELL_NONE;
    int place = openat(folder, name, O_PATH | O_NOFOLLOW | O_CLOEXEC);
    close(folder);
    if (place < 0) return WR_DOORBELL_NONE;
    struct stat status;
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    snprintf(address.sun_path, sizeof address.sun_path, "/proc/self/fd/%d", place);
    if (!fstat(place, &status) && S_ISSOCK(status.st_mode) &&
        (fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0)) >= 0 &&
        (!spare(fd) || connect(fd, (const struct sockaddr *)&address, sizeof address))) {
        close(fd);
        fd = WR_DOORBELL_NONE;
    }
    close(place);
    return fd < 0 ? WR_DOORBELL_NONE : fd;
}

bool wr_doorbell_ring(wr_doorbell *d) {
    int fd = atomic_load_explicit(&d->fd, memory_order_relaxed);
    if (fd == WR_DOORBELL_UNKNOWN) {
        const int found = reach(d);
        if (atomic_compare_exchange_strong(&d->fd, &fd, found)) fd = found;
        else if (found >= 0) close(found); /* another thread was first */
    }
    if (fd < 0) return false;
    /* Full: it is about to read what lies there, and that is a ring. */
    if (send(fd, "", 1, MSG_DONTWAIT | MSG_NOSIGNAL) == 1 || errno == EAGAIN) return true;
    return false;
}

void wr_doorbell_end(wr_doorbell *d) {
    const int fd = atomic_exchange(&d->fd, WR_DOORBELL_NONE);
    if (fd >= 0) close(fd);
}
