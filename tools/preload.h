/* What libraries for LD_PRELOAD need to tell what a call names (crash/record.c, fault/shim.c). They make every system call themselves. */
#ifndef WR_PRELOAD_H
#define WR_PRELOAD_H
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <unistd.h>

static bool path_of_fd(int fd, char path[PATH_MAX]) {
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = syscall(SYS_readlinkat, AT_FDCWD, link, path, PATH_MAX - 1);
    if (n <= 0) return false;
    path[n] = 0;
    return true;
}

/* The absolute path of what a call names; false, and "", when it is too long or cannot be found out. */
static bool path_of(int at, const char *name, char path[PATH_MAX]) {
    int saved = errno;
    bool good;
    if (name[0] == '/') {
        good = (size_t)snprintf(path, PATH_MAX, "%s", name) < PATH_MAX;
    } else {
        char folder[PATH_MAX];
        good = at == AT_FDCWD ? syscall(SYS_getcwd, folder, sizeof folder) > 0 : path_of_fd(at, folder);
        good = good && (size_t)snprintf(path, PATH_MAX, "%s/%s", folder, name) < PATH_MAX;
    }
    if (!good) path[0] = 0;
    errno = saved;
    return good;
}

/* In a function of the face of open(): its last argument, which is there when a file may be made. */
#define OPEN_MODE                        \
    mode_t mode = 0;                     \
    if (flags & (O_CREAT | O_TMPFILE)) { \
        va_list more;                    \
        va_start(more, flags);           \
        mode = va_arg(more, mode_t);     \
        va_end(more);                    \
    }

/* open() and its sisters, each by the library's own do_open(at, name, flags, mode). */
#define OPEN_CALLS                                                                                                            \
    int open(const char *name, int flags, ...) { OPEN_MODE return do_open(AT_FDCWD, name, flags, mode); }                    \
    int open64(const char *name, int flags, ...) { OPEN_MODE return do_open(AT_FDCWD, name, flags, mode); }                  \
    int openat(int at, const char *name, int flags, ...) { OPEN_MODE return do_open(at, name, flags, mode); }                \
    int openat64(int at, const char *name, int flags, ...) { OPEN_MODE return do_open(at, name, flags, mode); }              \
    int creat(const char *name, mode_t mode) { return do_open(AT_FDCWD, name, O_WRONLY | O_CREAT | O_TRUNC, mode); }         \
    int creat64(const char *name, mode_t mode) { return creat(name, mode); }

#endif
