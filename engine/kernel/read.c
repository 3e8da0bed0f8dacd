/* Reading of a file at a place. Declared in kernel/read.h. */
#define _GNU_SOURCE
#include "kernel/read.h"
#include <errno.h>
#include <unistd.h>

int wr_read_up_to(int fd, void *to, uint64_t bytes, uint64_t at, uint64_t *n) {
    *n = 0;
    while (*n < bytes) {
        ssize_t got = pread(fd, (uint8_t *)to + *n, bytes - *n, (off_t)(at + *n));
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return errno;
        if (!got) return 0;
        *n += (uint64_t)got;
    }
    return 0;
}

int wr_read_all(int fd, void *to, uint64_t bytes, uint64_t at) {
    uint64_t n;
    int error = wr_read_up_to(fd, to, bytes, at, &n);
    return error ? error : n < bytes ? EUCLEAN : 0;
}
