/* Declared in kernel/data_files.h. */
#define _GNU_SOURCE
#include "kernel/data_files.h"
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define FOLDER (O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC)

/* A descriptor of the folder that contains a path (close it unless it is root), and the last name; −1 with errno. */
static int enter(int root, const char *path, const char **name) {
    char part[NAME_MAX + 1];
    int at = root, error = 0;
    for (const char *slash; !error && (slash = strchr(path, '/')); path = slash + 1) {
        const size_t n = (size_t)(slash - path);
        if (!n || n > NAME_MAX || (n == 2 && !memcmp(path, "..", 2))) {
            error = n > NAME_MAX ? ENAMETOOLONG : EINVAL;
            break;
        }
        memcpy(part, path, n);
        part[n] = 0;
        const int below = openat(at, part, O_PATH | FOLDER);
        if (below < 0) error = errno;
        if (at != root) close(at);
        at = below;
    }
    if (!error && (!*path || !strcmp(path, ".."))) error = EINVAL;
    *name = path;
    if (!error) return at;
    if (at >= 0 && at != root) close(at);
    errno = error;
    return -1;
}

static void leave(int root, int at) {
    const int error = errno;
    if (at != root) close(at);
    errno = error;
}

/* The result of a call in the folder of a path: 0 or an errno. */
static int answer(int root, int at, int result) {
    const int error = result ? errno : 0;
    leave(root, at);
    return error;
}

static int check(int fd, int root, int flags, bool anyones) {
    struct stat found, of;
    if (fstat(fd, &found) || fstatat(root, "", &of, AT_EMPTY_PATH)) return errno;
    if (!S_ISREG(found.st_mode)) return EISDIR;
    if (found.st_uid != of.st_uid && !anyones && !(flags & O_EXCL)) return EPERM;
    return flags & O_TRUNC && found.st_size && ftruncate(fd, 0) ? errno : 0;
}

static int open_one(int root, const char *path, int flags, mode_t mode, bool anyones) {
    const char *name;
    const int at = enter(root, path, &name);
    if (at < 0) return -1;
    const int fd = openat(at, name, (flags & ~O_TRUNC) | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY, mode);
    leave(root, at);
    int error = fd < 0 ? errno : check(fd, root, flags, anyones);
    if (!error) return fd;
    if (fd >= 0) close(fd);
    errno = error == ELOOP || error == ENXIO ? EISDIR : error;
    return -1;
}

int wr_data_open(int root, const char *path, int flags, mode_t mode) { return open_one(root, path, flags, mode, false); }

int wr_data_open_anyones(int root, const char *path, int flags, mode_t mode) { return open_one(root, path, flags, mode, true); }

int wr_data_open_folder(int root, const char *path) {
    const char *name;
    const int at = enter(root, path, &name);
    if (at < 0) return -1;
    const int fd = openat(at, name, O_RDONLY | FOLDER);
    leave(root, at);
    if (fd < 0 && errno == ELOOP) errno = ENOTDIR;
    return fd;
}

int wr_data_unlink(int root, const char *path) {
    const char *name;
    const int at = enter(root, path, &name);
    return at < 0 ? errno : answer(root, at, unlinkat(at, name, 0));
}

int wr_data_remove_folder(int root, const char *path) {
    const char *name;
    const int at = enter(root, path, &name);
    return at < 0 ? errno : answer(root, at, unlinkat(at, name, AT_REMOVEDIR));
}

int wr_data_make_folder(int root, const char *path, mode_t mode) {
    const char *name;
    const int at = enter(root, path, &name);
    return at < 0 ? errno : answer(root, at, mkdirat(at, name, mode));
}

int wr_data_rename(int root, const char *from, const char *to) {
    const char *old, *new;
    const int source = enter(root, from, &old);
    if (source < 0) return errno;
    const int target = enter(root, to, &new);
    if (target < 0) return answer(root, source, -1);
    const int error = answer(root, target, renameat(source, old, target, new));
    leave(root, source);
    return error;
}

int wr_data_stat(int root, const char *path, struct stat *found) {
    const char *name;
    const int at = enter(root, path, &name);
    return at < 0 ? errno : answer(root, at, fstatat(at, name, found, AT_SYMLINK_NOFOLLOW));
}

int wr_data_link(int from, int to, const char *name) { return linkat(from, name, to, name, 0) ? errno : 0; }
