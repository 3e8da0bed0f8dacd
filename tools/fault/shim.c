/* A library for LD_PRELOAD that lets system calls fail by rule: for the fault campaign.
 *
 *     WARREN_FAULT_CONTROL  the control file, made by shim.py and mapped by every process of a node and its clients
 *     WARREN_FAULT_ROLE     the role of a process that is executed: "supervisor", "client"; others have none
 *
 * A rule names roles, one call, classes of what it touches, an error (or a short count, or a delay), and which of the
 * matching calls fail: from the first-th on, each every-th, so many times. Every call is counted by role, call and class, so a run
 * without rules tells what there is to fail. A call that fails is not made.
 *
 * The servers of a node are forked: a process has the role "starting" from its supervisor's fork until it writes its name
 * to /proc/self/comm, and a supervisor that goes to the background stays one (setsid). A process without a role is left
 * alone: the campaign itself runs under this library, because it forks the others.
 * Allocations fail in the C core only (who calls is looked up by address): Python and its libraries are not the subject.
 * The calls are made as raw system calls where that is simple, so nothing depends on what libc does inside. */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <link.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/sem.h>
#include <sys/shm.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#ifndef NAMES
#error "shim.py says NAMES, the header that it makes, when it compiles this"
#endif
#include "../preload.h"
#include NAMES

#define FDS_MAX 65536
#define SHORT (-1)
#define SLOW (-2)
#define BLOCK 512 /* a short count of an unbuffered call ends where a sector does */

typedef struct {
    _Atomic uint32_t armed;
    uint32_t roles, call, classes; /* bits, a number, bits */
    int32_t error;
    uint32_t delay_ms; /* of SLOW: the call is made after it */
    uint64_t first, every, times;
    _Atomic uint64_t seen, failed;
} rule;

typedef struct {
    uint32_t pid, role, call, klass;
    int32_t error;
    uint32_t rule;
    uint64_t number;
    char text[96];
} hit;

typedef struct {
    uint64_t magic;
    _Atomic uint32_t memory; /* allocations count, too */
    uint32_t unused;
    char below[256]; /* the node's directory */
    rule rules[RULES_MAX];
    _Atomic uint64_t counts[ROLES][CALLS][CLASSES];
    _Atomic uint64_t pids_n;
    uint32_t pids[PIDS_MAX]; /* every process that ever had a role */
    _Atomic uint64_t hits_n;
    hit hits[HITS_MAX];
} control_page;

static control_page *control;
static _Atomic uint32_t role; /* of this process */
static _Atomic uint8_t known[FDS_MAX]; /* class + 1 of a descriptor; 0: not known */
static _Atomic int comm_fd = -1;
static _Atomic uintptr_t core_low, core_high;

static pid_t (*next_fork)(void);
static int (*next_pthread_create)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);
static int (*next_shm_open)(const char *, int, mode_t);
static int (*next_shm_unlink)(const char *);
static DIR *(*next_opendir)(const char *);
static struct dirent64 *(*next_readdir64)(DIR *);

extern void *__libc_malloc(size_t n);
extern void *__libc_calloc(size_t n, size_t size);
extern void *__libc_realloc(void *at, size_t n);
extern void *__libc_memalign(size_t alignment, size_t n);

/* ---- roles ---- */

static void enter(uint32_t new_role) {
    atomic_store(&role, new_role);
    if (!control || new_role == ROLE_NONE) return;
    uint64_t n = atomic_fetch_add(&control->pids_n, 1);
    if (n < PIDS_MAX) control->pids[n] = (uint32_t)getpid();
}

/* The campaign: what the process is that it has just forked. */
void warren_fault_role(unsigned new_role);
void warren_fault_role(unsigned new_role) { enter(new_role); }

static void forked(void) {
    uint32_t now = atomic_load(&role);
    if (now != ROLE_NONE) enter(now == ROLE_SUPERVISOR ? ROLE_STARTING : now);
}

#define NEXT(name) *(void **)&next_##name = dlsym(RTLD_NEXT, #name)

__attribute__((constructor)) static void begin(void) {
    NEXT(fork);
    NEXT(pthread_create);
    NEXT(shm_open);
    NEXT(shm_unlink);
    NEXT(opendir);
    NEXT(readdir64);
    const char *path = getenv("WARREN_FAULT_CONTROL"), *name = getenv("WARREN_FAULT_ROLE");
    if (!path) return;
    int fd = (int)syscall(SYS_openat, AT_FDCWD, path, O_RDWR | O_CLOEXEC, 0);
    if (fd < 0) return;
    void *at = (void *)syscall(SYS_mmap, NULL, sizeof(control_page), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    syscall(SYS_close, fd);
    if (at == MAP_FAILED || ((control_page *)at)->magic != MAGIC) return;
    control = at;
    pthread_atfork(NULL, NULL, forked);
    if (name && !strcmp(name, "supervisor")) enter(ROLE_SUPERVISOR);
    if (name && !strcmp(name, "client")) enter(ROLE_CLIENT);
}

static void named(const char *name, size_t n) {
    if (n >= 12 && !memcmp(name, "warren-store", 12)) enter(ROLE_STORE);
    else if (n >= 14 && !memcmp(name, "warren-worker-", 14)) enter(ROLE_WORKER);
    else if (n >= 13 && !memcmp(name, "warren-topics", 13)) enter(ROLE_TOPICS);
    else if (n >= 13 && !memcmp(name, "warren-collec", 13)) enter(ROLE_COLLECTOR);
}

/* ---- what a call touches ---- */

static bool contains(const char *path, const char *part) { return strstr(path, part) != NULL; }

static uint32_t class_of_path(const char *path) {
    size_t below = strlen(control->below);
    if (!strncmp(path, "/dev/shm/warren-", 16)) return CLASS_SHM;
    if (!below || strncmp(path, control->below, below) != 0 || (path[below] && path[below] != '/')) return CLASS_OTHER;
    const char *rest = path + below;
    if (!strncmp(rest, "/log", 4)) return CLASS_LOG;
    if (!strncmp(rest, "/store", 6)) return CLASS_STORE;
    if (!strncmp(rest, "/topics/compacted", 17)) return CLASS_COMPACTED;
    if (!strncmp(rest, "/topics", 7)) return CLASS_TOPICS;
    if (strncmp(rest, "/queues", 7) != 0) return contains(rest, ".sock") ? CLASS_SOCKET : CLASS_META;
    if (contains(rest, "/large")) return CLASS_LARGE;
    return contains(rest, "/segments") ? CLASS_PAGES : CLASS_JOURNAL;
}

static void set_class(int fd, uint32_t klass) {
    if (fd >= 0 && fd < FDS_MAX) atomic_store_explicit(&known[fd], (uint8_t)(klass + 1), memory_order_relaxed);
}

static void forget(int fd) {
    if (fd >= 0 && fd < FDS_MAX) atomic_store_explicit(&known[fd], 0, memory_order_relaxed);
}

static uint32_t class_of(int fd) {
    if (fd < 0 || fd >= FDS_MAX) return CLASS_OTHER;
    uint8_t now = atomic_load_explicit(&known[fd], memory_order_relaxed);
    if (now) return now - 1u;
    int saved = errno;
    char path[PATH_MAX];
    uint32_t klass = CLASS_OTHER;
    if (path_of_fd(fd, path)) {
        if (!strncmp(path, "socket:", 7)) klass = CLASS_SOCKET;
        else klass = strncmp(path, "pipe:", 5) ? class_of_path(path) : CLASS_PROCESS;
    }
    set_class(fd, klass);
    errno = saved;
    return klass;
}

static bool playing(void) { return control && atomic_load_explicit(&role, memory_order_relaxed) != ROLE_NONE; }

/* ---- does it fail? ---- */

static void note(uint32_t number, const rule *r, uint32_t mine, uint32_t call, uint32_t klass, uint64_t k, int fd, const char *text) {
    uint64_t n = atomic_fetch_add(&control->hits_n, 1);
    if (n >= HITS_MAX) return;
    hit *h = &control->hits[n];
    char path[PATH_MAX];
    if (!text && fd >= 0 && path_of_fd(fd, path)) text = path;
    if (text) {
        size_t size = strlen(text), room = sizeof h->text - 1;
        snprintf(h->text, sizeof h->text, "%s", size > room ? text + (size - room) : text);
    }
    h->role = mine;
    h->call = call;
    h->klass = klass;
    h->error = r->error;
    h->rule = number;
    h->number = k;
    h->pid = (uint32_t)getpid();
}

/* 0: make the call. Else the error, or SHORT. */
static int failing(uint32_t call, uint32_t klass, int fd, const char *text) {
    uint32_t mine = atomic_load_explicit(&role, memory_order_relaxed);
    atomic_fetch_add_explicit(&control->counts[mine][call][klass], 1, memory_order_relaxed);
    for (uint32_t i = 0; i < RULES_MAX; i++) {
        rule *r = &control->rules[i];
        if (!atomic_load_explicit(&r->armed, memory_order_acquire)) continue;
        if (r->call != call || !(r->roles >> mine & 1) || !(r->classes >> klass & 1)) continue;
        uint64_t k = atomic_fetch_add(&r->seen, 1) + 1;
        if (k < r->first || (k - r->first) % r->every) continue;
        if (atomic_fetch_add(&r->failed, 1) >= r->times) continue;
        int saved = errno;
        note(i, r, mine, call, klass, k, fd, text);
        struct timespec left = {r->delay_ms / 1000, r->delay_ms % 1000 * 1000000l};
        while (r->error == SLOW && nanosleep(&left, &left)) {}
        errno = saved;
        return r->error == SLOW ? 0 : r->error;
    }
    return 0;
}

/* For calls that answer -1: true when it failed, with errno. A short count makes no sense there. */
static bool refused(uint32_t call, uint32_t klass, int fd, const char *text) {
    if (!playing()) return false;
    int error = failing(call, klass, fd, text);
    if (error <= 0) return false;
    errno = error;
    return true;
}

static bool refused_fd(uint32_t call, int fd) { return playing() && refused(call, class_of(fd), fd, NULL); }

static bool refused_path(uint32_t call, int at, const char *name) {
    char path[PATH_MAX];
    if (!playing() || !name) return false;
    path_of(at, name, path);
    return refused(call, class_of_path(path), -1, path);
}

/* For calls that move n bytes: how many of them to ask for; -1 with errno when it failed. */
static ssize_t allowed(uint32_t call, uint32_t klass, int fd, size_t n) {
    if (!playing()) return (ssize_t)n;
    int error = failing(call, klass, fd, NULL);
    if (error > 0) {
        errno = error;
        return -1;
    }
    if (error == SHORT && n > 1) return (ssize_t)(n >= 2 * BLOCK ? n / 2 / BLOCK * BLOCK : n % BLOCK ? n / 2 : n);
    return (ssize_t)n;
}

/* ---- open, close ---- */

static int do_open(int at, const char *name, int flags, mode_t mode) {
    char path[PATH_MAX];
    uint32_t klass = CLASS_OTHER;
    if (playing()) {
        path_of(at, name, path);
        klass = class_of_path(path);
        if (refused(flags & (O_CREAT | O_TMPFILE) & ~O_DIRECTORY ? CALL_CREATE : CALL_OPEN, klass, -1, path)) return -1;
    }
    int fd = (int)syscall(SYS_openat, at, name, flags, mode);
    if (playing() && !strcmp(path, "/proc/self/comm")) atomic_store(&comm_fd, fd);
    if (playing()) set_class(fd, klass);
    else forget(fd);
    return fd;
}

OPEN_CALLS

int close(int fd) {
    forget(fd);
    if (fd == atomic_load(&comm_fd)) atomic_store(&comm_fd, -1);
    return (int)syscall(SYS_close, fd);
}

int dup2(int from, int to) {
    if (from == to) return (int)syscall(SYS_fcntl, from, F_GETFD) < 0 ? -1 : to;
    if (refused_fd(CALL_DUP, from)) return -1;
    forget(to);
    return (int)syscall(SYS_dup3, from, to, 0);
}

int dup3(int from, int to, int flags) {
    if (refused_fd(CALL_DUP, from)) return -1;
    forget(to);
    return (int)syscall(SYS_dup3, from, to, flags);
}

int dup(int fd) {
    if (refused_fd(CALL_DUP, fd)) return -1;
    int made = (int)syscall(SYS_dup, fd);
    forget(made);
    return made;
}

static int do_fcntl(int fd, int what, long argument) {
    bool copies = what == F_DUPFD || what == F_DUPFD_CLOEXEC;
    bool locks = what == F_SETLK || what == F_SETLKW || what == F_OFD_SETLK || what == F_OFD_SETLKW;
    if (copies && refused_fd(CALL_DUP, fd)) return -1;
    if (locks && refused_fd(CALL_LOCK, fd)) return -1;
    int result = (int)syscall(SYS_fcntl, fd, what, argument);
    if (copies) forget(result);
    return result;
}

#define FCNTL_ARGUMENT                 \
    va_list more;                      \
    va_start(more, what);              \
    long argument = va_arg(more, long); \
    va_end(more);

int fcntl(int fd, int what, ...) { FCNTL_ARGUMENT return do_fcntl(fd, what, argument); }
int fcntl64(int fd, int what, ...) { FCNTL_ARGUMENT return do_fcntl(fd, what, argument); }
int flock(int fd, int what) { return refused_fd(CALL_LOCK, fd) ? -1 : (int)syscall(SYS_flock, fd, what); }

int pipe2(int fds[2], int flags) {
    if (refused(CALL_PIPE, CLASS_PROCESS, -1, "")) return -1;
    int result = (int)syscall(SYS_pipe2, fds, flags);
    if (!result) forget(fds[0]), forget(fds[1]);
    return result;
}
int pipe(int fds[2]) { return pipe2(fds, 0); }

int epoll_create1(int flags) {
    if (refused(CALL_EPOLL, CLASS_PROCESS, -1, "")) return -1;
    int fd = (int)syscall(SYS_epoll_create1, flags);
    forget(fd);
    return fd;
}

struct epoll_event;
int epoll_ctl(int epoll, int what, int fd, struct epoll_event *event) {
    if (what == 1 && refused(CALL_EPOLL, CLASS_PROCESS, fd, NULL)) return -1;
    return (int)syscall(SYS_epoll_ctl, epoll, what, fd, event);
}

/* ---- bytes ---- */

static ssize_t do_write(int fd, const struct iovec *parts, int parts_n, int64_t at, int flags) {
    size_t bytes = 0;
    for (int i = 0; i < parts_n; i++) bytes += parts[i].iov_len;
    if (playing() && fd == atomic_load(&comm_fd) && parts_n) named(parts->iov_base, parts->iov_len);
    ssize_t n = playing() ? allowed(CALL_WRITE, class_of(fd), fd, bytes) : (ssize_t)bytes;
    if (n < 0) return -1;
    if ((size_t)n < bytes) { /* the first part is enough of it */
        size_t first = parts->iov_len < (size_t)n ? parts->iov_len : (size_t)n;
        return at < 0 ? syscall(SYS_write, fd, parts->iov_base, first) : syscall(SYS_pwrite64, fd, parts->iov_base, first, at);
    }
    if (flags) return syscall(SYS_pwritev2, fd, parts, parts_n, at, 0, flags);
    if (at < 0) return parts_n == 1 ? syscall(SYS_write, fd, parts->iov_base, parts->iov_len) : syscall(SYS_writev, fd, parts, parts_n);
    if (parts_n == 1) return syscall(SYS_pwrite64, fd, parts->iov_base, parts->iov_len, at);
    return syscall(SYS_pwritev, fd, parts, parts_n, at, 0);
}

#define PART(bytes, n) struct iovec part = {(void *)(uintptr_t)(bytes), n}

ssize_t write(int fd, const void *from, size_t n) { PART(from, n); return do_write(fd, &part, 1, -1, 0); }
ssize_t pwrite(int fd, const void *from, size_t n, off_t at) { PART(from, n); return do_write(fd, &part, 1, at, 0); }
ssize_t pwrite64(int fd, const void *from, size_t n, off64_t at) { return pwrite(fd, from, n, at); }
ssize_t writev(int fd, const struct iovec *parts, int n) { return do_write(fd, parts, n, -1, 0); }
ssize_t pwritev(int fd, const struct iovec *parts, int n, off_t at) { return do_write(fd, parts, n, at, 0); }
ssize_t pwritev64(int fd, const struct iovec *parts, int n, off64_t at) { return do_write(fd, parts, n, at, 0); }
ssize_t pwritev2(int fd, const struct iovec *parts, int n, off_t at, int flags) { return do_write(fd, parts, n, at, flags); }
ssize_t pwritev64v2(int fd, const struct iovec *parts, int n, off64_t at, int flags) { return do_write(fd, parts, n, at, flags); }

static ssize_t do_read(int fd, const struct iovec *parts, int parts_n, int64_t at, int flags) {
    size_t bytes = 0;
    for (int i = 0; i < parts_n; i++) bytes += parts[i].iov_len;
    ssize_t n = playing() ? allowed(CALL_READ, class_of(fd), fd, bytes) : (ssize_t)bytes;
    if (n < 0) return -1;
    if ((size_t)n < bytes) {
        size_t first = parts->iov_len < (size_t)n ? parts->iov_len : (size_t)n;
        return at < 0 ? syscall(SYS_read, fd, parts->iov_base, first) : syscall(SYS_pread64, fd, parts->iov_base, first, at);
    }
    if (flags) return syscall(SYS_preadv2, fd, parts, parts_n, at, 0, flags);
    if (at < 0) return parts_n == 1 ? syscall(SYS_read, fd, parts->iov_base, parts->iov_len) : syscall(SYS_readv, fd, parts, parts_n);
    if (parts_n == 1) return syscall(SYS_pread64, fd, parts->iov_base, parts->iov_len, at);
    return syscall(SYS_preadv, fd, parts, parts_n, at, 0);
}

ssize_t read(int fd, void *to, size_t n) { PART(to, n); return do_read(fd, &part, 1, -1, 0); }
ssize_t pread(int fd, void *to, size_t n, off_t at) { PART(to, n); return do_read(fd, &part, 1, at, 0); }
ssize_t pread64(int fd, void *to, size_t n, off64_t at) { return pread(fd, to, n, at); }
ssize_t readv(int fd, const struct iovec *parts, int n) { return do_read(fd, parts, n, -1, 0); }
ssize_t preadv(int fd, const struct iovec *parts, int n, off_t at) { return do_read(fd, parts, n, at, 0); }
ssize_t preadv64(int fd, const struct iovec *parts, int n, off64_t at) { return do_read(fd, parts, n, at, 0); }
ssize_t preadv2(int fd, const struct iovec *parts, int n, off_t at, int flags) { return do_read(fd, parts, n, at, flags); }
ssize_t preadv64v2(int fd, const struct iovec *parts, int n, off64_t at, int flags) { return do_read(fd, parts, n, at, flags); }

int fsync(int fd) { return refused_fd(CALL_SYNC, fd) ? -1 : (int)syscall(SYS_fsync, fd); }
int fdatasync(int fd) { return refused_fd(CALL_SYNC, fd) ? -1 : (int)syscall(SYS_fdatasync, fd); }
int syncfs(int fd) { return refused_fd(CALL_SYNC, fd) ? -1 : (int)syscall(SYS_syncfs, fd); }
/* Of files that are written through a mapping there are those of topics alone. */
int msync(void *at, size_t n, int flags) {
    return flags & MS_SYNC && refused(CALL_SYNC, CLASS_TOPICS, -1, "msync") ? -1 : (int)syscall(SYS_msync, at, n, flags);
}
int sync_file_range(int fd, off64_t at, off64_t n, unsigned flags) {
    return refused_fd(CALL_SYNC, fd) ? -1 : (int)syscall(SYS_sync_file_range, fd, at, n, flags);
}
int ftruncate(int fd, off_t size) { return refused_fd(CALL_TRUNCATE, fd) ? -1 : (int)syscall(SYS_ftruncate, fd, size); }
int ftruncate64(int fd, off64_t size) { return ftruncate(fd, size); }
int fallocate(int fd, int mode, off_t at, off_t n) {
    return refused_fd(CALL_ALLOCATE, fd) ? -1 : (int)syscall(SYS_fallocate, fd, mode, at, n);
}
int fallocate64(int fd, int mode, off64_t at, off64_t n) { return fallocate(fd, mode, at, n); }
int posix_fallocate(int fd, off_t at, off_t n) {
    int saved = errno, error = fallocate(fd, 0, at, n) ? errno : 0;
    errno = saved;
    return error;
}
int posix_fallocate64(int fd, off64_t at, off64_t n) { return posix_fallocate(fd, at, n); }

/* ---- names ---- */

int renameat2(int from_at, const char *from, int to_at, const char *to, unsigned flags) {
    return refused_path(CALL_RENAME, to_at, to) ? -1 : (int)syscall(SYS_renameat2, from_at, from, to_at, to, flags);
}
int renameat(int from_at, const char *from, int to_at, const char *to) { return renameat2(from_at, from, to_at, to, 0); }
int rename(const char *from, const char *to) { return renameat2(AT_FDCWD, from, AT_FDCWD, to, 0); }
int linkat(int from_at, const char *from, int to_at, const char *to, int flags) {
    return refused_path(CALL_LINK, to_at, to) ? -1 : (int)syscall(SYS_linkat, from_at, from, to_at, to, flags);
}
int link(const char *from, const char *to) { return linkat(AT_FDCWD, from, AT_FDCWD, to, 0); }
int unlinkat(int at, const char *name, int flags) {
    return refused_path(CALL_UNLINK, at, name) ? -1 : (int)syscall(SYS_unlinkat, at, name, flags);
}
int unlink(const char *name) { return unlinkat(AT_FDCWD, name, 0); }
int rmdir(const char *name) { return unlinkat(AT_FDCWD, name, AT_REMOVEDIR); }
int mkdirat(int at, const char *name, mode_t mode) {
    return refused_path(CALL_MKDIR, at, name) ? -1 : (int)syscall(SYS_mkdirat, at, name, mode);
}
int mkdir(const char *name, mode_t mode) { return mkdirat(AT_FDCWD, name, mode); }

DIR *opendir(const char *name) { return refused_path(CALL_LIST, AT_FDCWD, name) ? NULL : next_opendir(name); }
struct dirent64 *readdir64(DIR *dir) { return refused_fd(CALL_LIST, dirfd(dir)) ? NULL : next_readdir64(dir); }

/* ---- memory ---- */

/* Python's own arenas: when a thread has no memory to begin with, Thread.start waits for it for ever. */
static bool is_python(void *caller) {
    Dl_info found;
    return dladdr(caller, &found) && found.dli_fname && contains(found.dli_fname, "libpython");
}

static void *map(void *where, size_t n, int protection, int flags, int fd, off_t at, void *caller) {
    if (playing() && (fd >= 0 || !is_python(caller)) && refused(CALL_MMAP, fd < 0 ? CLASS_MEMORY : class_of(fd), fd, ""))
        return MAP_FAILED;
    return (void *)syscall(SYS_mmap, where, n, protection, flags, fd, at);
}
void *mmap(void *where, size_t n, int protection, int flags, int fd, off_t at) {
    return map(where, n, protection, flags, fd, at, __builtin_return_address(0));
}
void *mmap64(void *where, size_t n, int protection, int flags, int fd, off64_t at) {
    return map(where, n, protection, flags, fd, at, __builtin_return_address(0));
}
void *mremap(void *old, size_t old_n, size_t n, int flags, ...) {
    va_list more;
    va_start(more, flags);
    void *where = va_arg(more, void *);
    va_end(more);
    if (refused(CALL_MMAP, CLASS_MEMORY, -1, "mremap")) return MAP_FAILED;
    return (void *)syscall(SYS_mremap, old, old_n, n, flags, where);
}
int madvise(void *at, size_t n, int advice) {
    return refused(CALL_MADVISE, CLASS_MEMORY, -1, "") ? -1 : (int)syscall(SYS_madvise, at, n, advice);
}

static int find_core(struct dl_phdr_info *info, size_t size, void *unused) {
    (void)size, (void)unused;
    if (!contains(info->dlpi_name, "/engine/_core")) return 0;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        if (info->dlpi_phdr[i].p_type != PT_LOAD || !(info->dlpi_phdr[i].p_flags & PF_X)) continue;
        atomic_store(&core_high, info->dlpi_addr + info->dlpi_phdr[i].p_vaddr + info->dlpi_phdr[i].p_memsz);
        atomic_store(&core_low, info->dlpi_addr + info->dlpi_phdr[i].p_vaddr);
    }
    return 1;
}

/* No memory for the C core, when a rule says so. */
static bool refused_memory(void *caller) {
    if (!playing() || !atomic_load_explicit(&control->memory, memory_order_relaxed)) return false;
    if (!atomic_load_explicit(&core_low, memory_order_relaxed)) dl_iterate_phdr(find_core, NULL);
    uintptr_t from = (uintptr_t)caller;
    if (from < atomic_load_explicit(&core_low, memory_order_relaxed) || from >= atomic_load_explicit(&core_high, memory_order_relaxed)) return false;
    char text[32];
    snprintf(text, sizeof text, "core+0x%lx", (unsigned long)(from - core_low));
    return refused(CALL_MALLOC, CLASS_MEMORY, -1, text);
}

#define CALLER __builtin_return_address(0)
void *malloc(size_t n) { return refused_memory(CALLER) ? NULL : __libc_malloc(n); }
void *calloc(size_t n, size_t size) { return refused_memory(CALLER) ? NULL : __libc_calloc(n, size); }
void *realloc(void *at, size_t n) { return refused_memory(CALLER) ? NULL : __libc_realloc(at, n); }
void *aligned_alloc(size_t alignment, size_t n) { return refused_memory(CALLER) ? NULL : __libc_memalign(alignment, n); }
int posix_memalign(void **to, size_t alignment, size_t n) {
    int saved = errno;
    void *made = refused_memory(CALLER) ? NULL : __libc_memalign(alignment, n);
    errno = saved;
    if (!made) return ENOMEM;
    *to = made;
    return 0;
}

/* ---- memory shared by name and by number ---- */

int shm_open(const char *name, int flags, mode_t mode) {
    if (refused(flags & O_CREAT ? CALL_CREATE : CALL_OPEN, CLASS_SHM, -1, name)) return -1;
    int fd = next_shm_open(name, flags, mode);
    if (playing()) set_class(fd, CLASS_SHM);
    else forget(fd);
    return fd;
}
int shm_unlink(const char *name) { return refused(CALL_UNLINK, CLASS_SHM, -1, name) ? -1 : next_shm_unlink(name); }
int shmget(key_t key, size_t size, int flags) {
    return refused(CALL_CREATE, CLASS_SYSV, -1, "segment") ? -1 : (int)syscall(SYS_shmget, key, size, flags);
}
void *shmat(int id, const void *where, int flags) {
    if (refused(CALL_MMAP, CLASS_SYSV, -1, "segment")) return (void *)-1;
    return (void *)syscall(SYS_shmat, id, where, flags);
}
int semget(key_t key, int n, int flags) {
    return refused(CALL_CREATE, CLASS_SYSV, -1, "semaphore") ? -1 : (int)syscall(SYS_semget, key, n, flags);
}
int semop(int id, struct sembuf *operations, size_t n) {
    return refused(CALL_SEMOP, CLASS_SYSV, -1, "") ? -1 : (int)syscall(SYS_semop, id, operations, n);
}

/* ---- sockets ---- */

int socket(int domain, int type, int protocol) {
    if (refused(CALL_SOCKET, CLASS_SOCKET, -1, "")) return -1;
    int fd = (int)syscall(SYS_socket, domain, type, protocol);
    set_class(fd, CLASS_SOCKET);
    return fd;
}
int socketpair(int domain, int type, int protocol, int fds[2]) {
    if (refused(CALL_SOCKET, CLASS_SOCKET, -1, "pair")) return -1;
    int result = (int)syscall(SYS_socketpair, domain, type, protocol, fds);
    if (!result) set_class(fds[0], CLASS_SOCKET), set_class(fds[1], CLASS_SOCKET);
    return result;
}
int connect(int fd, const struct sockaddr *to, socklen_t n) { return refused_fd(CALL_CONNECT, fd) ? -1 : (int)syscall(SYS_connect, fd, to, n); }
int bind(int fd, const struct sockaddr *to, socklen_t n) { return refused_fd(CALL_LISTEN, fd) ? -1 : (int)syscall(SYS_bind, fd, to, n); }
int listen(int fd, int n) { return refused_fd(CALL_LISTEN, fd) ? -1 : (int)syscall(SYS_listen, fd, n); }
int accept4(int fd, struct sockaddr *from, socklen_t *n, int flags) {
    if (refused_fd(CALL_ACCEPT, fd)) return -1;
    int made = (int)syscall(SYS_accept4, fd, from, n, flags);
    set_class(made, CLASS_SOCKET);
    return made;
}
int accept(int fd, struct sockaddr *from, socklen_t *n) { return accept4(fd, from, n, 0); }
ssize_t sendto(int fd, const void *from, size_t n, int flags, const struct sockaddr *to, socklen_t to_n) {
    ssize_t part = allowed(CALL_WRITE, CLASS_SOCKET, fd, n);
    return part < 0 ? -1 : syscall(SYS_sendto, fd, from, part, flags, to, to_n);
}
ssize_t send(int fd, const void *from, size_t n, int flags) { return sendto(fd, from, n, flags, NULL, 0); }
ssize_t recvfrom(int fd, void *to, size_t n, int flags, struct sockaddr *from, socklen_t *from_n) {
    ssize_t part = allowed(CALL_READ, CLASS_SOCKET, fd, n);
    return part < 0 ? -1 : syscall(SYS_recvfrom, fd, to, part, flags, from, from_n);
}
ssize_t recv(int fd, void *to, size_t n, int flags) { return recvfrom(fd, to, n, flags, NULL, NULL); }

/* ---- processes and threads ---- */

pid_t fork(void) { return refused(CALL_FORK, CLASS_PROCESS, -1, "") ? -1 : next_fork(); }
pid_t vfork(void) { return fork(); } /* a child that shares our memory would forget our descriptors */
int pthread_create(pthread_t *made, const pthread_attr_t *attributes, void *(*run)(void *), void *argument) {
    int saved = errno;
    bool no = refused(CALL_FORK, CLASS_PROCESS, -1, "thread");
    int error = no ? errno : 0;
    errno = saved;
    return no ? error : next_pthread_create(made, attributes, run, argument);
}
pid_t setsid(void) { /* a supervisor that goes to the background */
    if (atomic_load(&role) == ROLE_STARTING) enter(ROLE_SUPERVISOR);
    return (pid_t)syscall(SYS_setsid);
}

/* Python opens pidfds, and the core waits, by number. The words behind the number are passed on as they are. */
static long raw(long n, long a, long b, long c, long d, long e, long f) {
    register long r10 __asm__("r10") = d;
    register long r8 __asm__("r8") = e;
    register long r9 __asm__("r9") = f;
    long result;
    __asm__ volatile("syscall" : "=a"(result) : "a"(n), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9) : "rcx", "r11", "memory");
    if (result < 0 && result > -4096) {
        errno = (int)-result;
        return -1;
    }
    return result;
}

long syscall(long n, ...) {
    long v[6];
    va_list more;
    va_start(more, n);
    for (int i = 0; i < 6; i++) v[i] = va_arg(more, long);
    va_end(more);
    if (n == SYS_pidfd_open && playing()) {
        if (refused(CALL_PIDFD, CLASS_PROCESS, -1, "")) return -1;
        long fd = raw(n, v[0], v[1], v[2], v[3], v[4], v[5]);
        forget((int)fd);
        return fd;
    }
    if ((n == SYS_futex && (v[1] & 0x7f) == 0) || n == SYS_futex_waitv) { /* FUTEX_WAIT */
        if (playing() && refused(CALL_WAIT, CLASS_MEMORY, -1, "")) return -1;
    }
    return raw(n, v[0], v[1], v[2], v[3], v[4], v[5]);
}
