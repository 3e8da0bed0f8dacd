/* A library for LD_PRELOAD that writes down what a process does to the files below one directory: for the power-loss campaign.
 *
 *     WARREN_RECORD        the record: a file made by recording.py, mapped by every process of the node
 *     WARREN_RECORD_BELOW  the directory, an absolute path without links in it; what lies in its `log` does not count
 *
 * All processes and threads write into one mapping; a record's place is a fetch_add, so the order of the file is one order
 * of everything. A record is made before its call, and an END record after it, where it matters what was over when:
 *     WRITE … END      the bytes may be on the disk in any part from WRITE on
 *     SYNC … END       covers what had ended before SYNC, if END says 0
 * Changes of names, sizes and space are recorded once, after they succeeded: before that they count as not happened.
 * NOTE comes from the client (warren_record_note): what is about to be submitted, and what was confirmed.
 *
 * warren_record_fail lets one sync of a file fail, once, in whatever process makes it: nothing is synced, END says so. The
 * process is told so, or hangs until it is killed.
 *
 * A process that dies between a call and its record leaves a change that nobody knows of, though those who come after it
 * find it done. So each process counts the calls that it is in (warren_record_inside), and whoever kills looks at that
 * while it is stopped (recording.py, kill). A sync is none of these: what it covered is only known when it returned.
 * A record of a process that was killed while it made it has kind 0 and is skipped: its call was not made.
 *
 * A file that is mapped, shared and writable, is written by no call. So its bytes are looked at when it is mapped and unmapped, and
 * before each call of its process that changes or syncs anything; what differs from the last look becomes SEEN records, none
 * of which goes over a page. A SYNC of such a file has a range. What a process stored and was killed before a look is found by
 * the look of the next one that maps the file. A store of the bytes that are there already is not seen.
 *
 * What this library cannot describe (copy_file_range, O_SYNC …) becomes a STRANGE record, and the campaign refuses the history.
 * The calls are made as raw system calls: nothing here depends on what libc does inside. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include "../preload.h"

enum { WRITE = 1, END, SYNC, CREATE, RENAME, UNLINK, MKDIR, RMDIR, SIZE, SPACE, NOTE, STRANGE, LINK, SEEN, SYNCFS, HOLE };

#define MAGIC 0x5741525245435244ull
#define FDS_MAX 65536
#ifndef PROCESSES_MAX
#error "recording.py says PROCESSES_MAX when it compiles this"
#endif

typedef struct {
    uint64_t magic; /* written last but one: who finds it may trust `bytes` */
    uint64_t bytes; /* of the whole record, a multiple of 8 */
    _Atomic uint32_t kind;
    uint32_t pid;
    uint64_t inode;
    uint64_t a, b; /* WRITE, SPACE, HOLE, SEEN, SYNC: offset, length (of a SYNC 0: all). SIZE: size. END: place of its beginning, result */
    uint32_t text_bytes, data_bytes; /* paths (two with a NUL between), then bytes */
} record;

typedef struct {
    uint64_t magic;
    _Atomic uint64_t end;
    uint64_t capacity;
    _Atomic uint64_t lost;       /* records that had no room */
    _Atomic uint64_t fails;      /* the sync that is to fail, counted from now, 0: none */
    _Atomic uint64_t failed;     /* the process whose sync has failed, 0: none has */
    _Atomic uint64_t fail_hangs; /* it never learns that, and hangs until it is killed */
    char fail_of[64];            /* only syncs of files whose path has this in it count */
    struct {
        _Atomic uint32_t pid, calls; /* calls that it is in, and whose records are not all made */
    } inside[PROCESSES_MAX];
} head;

static head *log_head;
static char below[PATH_MAX];
static size_t below_bytes;
static _Atomic uint8_t known[FDS_MAX]; /* 0: not known, 1: not ours, 2: ours */

__attribute__((constructor)) static void begin(void) {
    const char *path = getenv("WARREN_RECORD"), *where = getenv("WARREN_RECORD_BELOW");
    if (!path || !where || strlen(where) >= sizeof below) return;
    strcpy(below, where);
    below_bytes = strlen(below);
    int fd = (int)syscall(SYS_openat, AT_FDCWD, path, O_RDWR | O_CLOEXEC, 0);
    if (fd < 0) return;
    struct stat status;
    void *at = MAP_FAILED;
    if (syscall(SYS_fstat, fd, &status) == 0)
        at = (void *)syscall(SYS_mmap, NULL, status.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    syscall(SYS_close, fd);
    if (at != MAP_FAILED && ((head *)at)->magic == MAGIC) log_head = at;
}

/* Returns the record's place, 0 when nothing was recorded. */
static uint64_t put(uint32_t kind, uint64_t inode, uint64_t a, uint64_t b, const char *text, size_t text_bytes,
                    const struct iovec *parts, int parts_n, size_t data_bytes) {
    if (!log_head) return 0;
    int saved = errno;
    size_t bytes = (sizeof(record) + text_bytes + data_bytes + 7) & ~(size_t)7;
    uint64_t at = atomic_fetch_add(&log_head->end, bytes);
    if (at + bytes > log_head->capacity) {
        atomic_fetch_add(&log_head->lost, 1);
        return 0;
    }
    record *r = (record *)((uint8_t *)log_head + at);
    r->bytes = bytes;
    atomic_signal_fence(memory_order_seq_cst);
    r->magic = MAGIC;
    r->pid = (uint32_t)getpid();
    r->inode = inode;
    r->a = a;
    r->b = b;
    r->text_bytes = (uint32_t)text_bytes;
    r->data_bytes = (uint32_t)data_bytes;
    uint8_t *to = (uint8_t *)(r + 1);
    if (text_bytes) memcpy(to, text, text_bytes);
    to += text_bytes;
    for (int i = 0; i < parts_n && data_bytes; i++) {
        size_t n = parts[i].iov_len < data_bytes ? parts[i].iov_len : data_bytes;
        memcpy(to, parts[i].iov_base, n);
        to += n;
        data_bytes -= n;
    }
    atomic_store_explicit(&r->kind, kind, memory_order_release);
    errno = saved;
    return at;
}

static uint64_t put_text(uint32_t kind, uint64_t inode, uint64_t a, uint64_t b, const char *text) {
    return put(kind, inode, a, b, text, strlen(text), NULL, 0, 0);
}

static void put_end(uint64_t began, uint64_t inode, int64_t result) {
    if (began) put(END, inode, began, (uint64_t)result, NULL, 0, NULL, 0, 0);
}

void warren_record_note(const char *bytes, size_t n);
void warren_record_note(const char *bytes, size_t n) {
    struct iovec part = {(void *)(uintptr_t)bytes, n};
    put(NOTE, 0, 0, 0, NULL, 0, &part, 1, n);
}

/* Returns what was left of the last call. */
unsigned warren_record_fail(unsigned at, const char *of, bool hangs);
unsigned warren_record_fail(unsigned at, const char *of, bool hangs) {
    if (!log_head) return 0;
    unsigned left = (unsigned)atomic_exchange(&log_head->fails, 0);
    if (!at) return left;
    atomic_store(&log_head->failed, 0);
    atomic_store(&log_head->fail_hangs, hangs);
    snprintf(log_head->fail_of, sizeof log_head->fail_of, "%s", of);
    atomic_store(&log_head->fails, at);
    return left;
}

unsigned warren_record_failed(void);
unsigned warren_record_failed(void) { return log_head ? (unsigned)atomic_load(&log_head->failed) : 0; }

/* Is this the sync that is to fail? */
static bool fails(const char *path) {
    uint64_t left = atomic_load(&log_head->fails);
    if (!left || !strstr(path + below_bytes, log_head->fail_of)) return false;
    while (left && !atomic_compare_exchange_weak(&log_head->fails, &left, left - 1)) {}
    if (left != 1) return false;
    return true;
}

/* ---- whose file is it ---- */

static bool inside(const char *path) {
    if (!log_head || strncmp(path, below, below_bytes) != 0) return false;
    const char *rest = path + below_bytes;
    return !*rest || (*rest == '/' && strncmp(rest, "/log/", 5) != 0); /* what servers print is no state */
}

/* Is fd a file or directory of ours? */
static bool ours(int fd) {
    if (!log_head || fd < 0 || fd >= FDS_MAX) return false;
    uint8_t now = atomic_load_explicit(&known[fd], memory_order_relaxed);
    if (!now) {
        int saved = errno;
        char path[PATH_MAX];
        now = path_of_fd(fd, path) && inside(path) ? 2 : 1;
        atomic_store_explicit(&known[fd], now, memory_order_relaxed);
        errno = saved;
    }
    return now == 2;
}

/* Its inode if it is an ordinary file, else 0. */
static uint64_t file_inode(int fd, struct stat *status) {
    int saved = errno;
    bool good = syscall(SYS_fstat, fd, status) == 0 && S_ISREG(status->st_mode);
    errno = saved;
    return good ? status->st_ino : 0;
}

static void strange(int fd, const char *what) {
    char text[PATH_MAX + 64], path[PATH_MAX];
    if (!ours(fd)) return;
    int saved = errno;
    snprintf(text, sizeof text, "%s %s", what, path_of_fd(fd, path) ? path : "?");
    put_text(STRANGE, 0, 0, 0, text);
    errno = saved;
}

static void forget(int fd) {
    if (fd >= 0 && fd < FDS_MAX) atomic_store_explicit(&known[fd], 0, memory_order_relaxed);
}

/* ---- calls that are not recorded yet ---- */

/* The calls of this process, or of pid; NULL: no room for one more, and the reader refuses the history. */
static _Atomic uint32_t *calls_of(uint32_t pid, bool make) {
    for (uint32_t i = 0; i < PROCESSES_MAX; i++) {
        uint32_t there = atomic_load(&log_head->inside[i].pid);
        if (!there && make && atomic_compare_exchange_strong(&log_head->inside[i].pid, &there, pid)) there = pid;
        if (there == pid) return &log_head->inside[i].calls;
        if (!there) return NULL;
    }
    if (make) atomic_fetch_add(&log_head->lost, 1);
    return NULL;
}

static void enter(bool mine) {
    _Atomic uint32_t *calls = mine && log_head ? calls_of((uint32_t)getpid(), true) : NULL;
    if (calls) atomic_fetch_add(calls, 1);
}

static void leave(bool mine) {
    _Atomic uint32_t *calls = mine && log_head ? calls_of((uint32_t)getpid(), true) : NULL;
    if (calls) atomic_fetch_sub(calls, 1);
}

unsigned warren_record_inside(unsigned pid);
unsigned warren_record_inside(unsigned pid) {
    _Atomic uint32_t *calls = log_head ? calls_of(pid, false) : NULL;
    return calls ? atomic_load(calls) : 0;
}

/* ---- files that are mapped ---- */

#define PAGE 4096u
#define SECTOR 512u
#define MAPPINGS_MAX 1024

typedef struct {
    uint8_t *base, *last; /* what it was at the last look */
    uint64_t bytes, at, inode;
    char path[PATH_MAX];
} mapping;

static mapping mappings[MAPPINGS_MAX];
static uint32_t mappings_n;
static pthread_mutex_t mappings_lock = PTHREAD_MUTEX_INITIALIZER;

/* Record what is not as it was. The caller has the lock. `all`: whatever it was. */
static void look_at(mapping *m, bool all) {
    uint8_t page[PAGE];
    for (uint64_t at = 0; at < m->bytes; at += PAGE) {
        uint64_t n = m->bytes - at < PAGE ? m->bytes - at : PAGE;
        memcpy(page, m->base + at, n); /* what is recorded is what was compared: others store meanwhile */
        for (uint64_t from = 0; from < n;) {
            uint64_t to = from;
            while (to < n && (all || memcmp(page + to, m->last + at + to, n - to < SECTOR ? n - to : SECTOR) != 0)) to += SECTOR;
            if (to > n) to = n;
            if (to > from) {
                struct iovec part = {page + from, to - from};
                put(SEEN, m->inode, m->at + at + from, to - from, NULL, 0, &part, 1, to - from);
                memcpy(m->last + at + from, page + from, to - from);
            }
            from = to > from ? to : from + SECTOR;
        }
    }
}

static void look_at_all(void) {
    if (!log_head || !mappings_n) return;
    int saved = errno;
    pthread_mutex_lock(&mappings_lock);
    for (uint32_t i = 0; i < mappings_n; i++) look_at(&mappings[i], false);
    pthread_mutex_unlock(&mappings_lock);
    errno = saved;
}

/* ---- open, close ---- */

static int do_open(int at, const char *name, int flags, mode_t mode) {
    char path[PATH_MAX];
    struct stat status;
    bool mine = path_of(at, name, path) && inside(path);
    bool existed = mine && (flags & O_CREAT) && syscall(SYS_newfstatat, AT_FDCWD, path, &status, AT_SYMLINK_NOFOLLOW) == 0;
    uint64_t size = existed ? (uint64_t)status.st_size : 0;
    bool changes = mine && flags & (O_CREAT | O_TRUNC);
    enter(changes);
    int fd = (int)syscall(SYS_openat, at, name, flags, mode);
    if (fd >= 0 && fd < FDS_MAX) atomic_store_explicit(&known[fd], mine ? 2 : 1, memory_order_relaxed);
    uint64_t inode = fd >= 0 && mine && (flags & O_ACCMODE) != O_RDONLY ? file_inode(fd, &status) : 0;
    if (inode) {
        if (flags & O_DSYNC) strange(fd, "opened with O_SYNC:");
        if ((flags & O_CREAT) && !existed) put_text(CREATE, inode, 0, 0, path);
        if ((flags & O_TRUNC) && (existed ? size : 0)) put(SIZE, inode, 0, 0, NULL, 0, NULL, 0, 0);
    }
    leave(changes);
    return fd;
}

OPEN_CALLS

int close(int fd) {
    forget(fd);
    return (int)syscall(SYS_close, fd);
}

int dup2(int from, int to) {
    if (from != to) forget(to);
    return from == to ? (fcntl(from, F_GETFD) < 0 ? -1 : to) : (int)syscall(SYS_dup3, from, to, 0);
}

int dup3(int from, int to, int flags) {
    forget(to);
    return (int)syscall(SYS_dup3, from, to, flags);
}

/* ---- bytes ---- */

static ssize_t do_write(int fd, const struct iovec *parts, int parts_n, int64_t at) {
    struct stat status;
    uint64_t inode = ours(fd) ? file_inode(fd, &status) : 0, began = 0;
    if (inode) {
        size_t bytes = 0;
        for (int i = 0; i < parts_n; i++) bytes += parts[i].iov_len;
        int64_t where = at;
        if (at < 0) {
            int saved = errno;
            where = syscall(SYS_fcntl, fd, F_GETFL) & O_APPEND ? (int64_t)status.st_size : syscall(SYS_lseek, fd, 0, SEEK_CUR);
            errno = saved;
        }
        look_at_all();
        enter(true);
        began = put(WRITE, inode, (uint64_t)where, bytes, NULL, 0, parts, parts_n, bytes);
    }
    ssize_t n;
    if (at < 0) n = parts_n == 1 ? syscall(SYS_write, fd, parts->iov_base, parts->iov_len) : syscall(SYS_writev, fd, parts, parts_n);
    else if (parts_n == 1) n = syscall(SYS_pwrite64, fd, parts->iov_base, parts->iov_len, at);
    else n = syscall(SYS_pwritev, fd, parts, parts_n, at, 0);
    put_end(began, inode, n);
    leave(inode);
    return n;
}

ssize_t write(int fd, const void *from, size_t n) {
    struct iovec part = {(void *)(uintptr_t)from, n};
    return do_write(fd, &part, 1, -1);
}
ssize_t pwrite(int fd, const void *from, size_t n, off_t at) {
    struct iovec part = {(void *)(uintptr_t)from, n};
    return do_write(fd, &part, 1, at);
}
ssize_t pwrite64(int fd, const void *from, size_t n, off64_t at) { return pwrite(fd, from, n, at); }
ssize_t writev(int fd, const struct iovec *parts, int n) { return do_write(fd, parts, n, -1); }
ssize_t pwritev(int fd, const struct iovec *parts, int n, off_t at) { return do_write(fd, parts, n, at); }
ssize_t pwritev64(int fd, const struct iovec *parts, int n, off64_t at) { return do_write(fd, parts, n, at); }
ssize_t pwritev2(int fd, const struct iovec *parts, int n, off_t at, int flags) {
    if (flags) strange(fd, "pwritev2 with flags:");
    return do_write(fd, parts, n, at);
}
ssize_t pwritev64v2(int fd, const struct iovec *parts, int n, off64_t at, int flags) { return pwritev2(fd, parts, n, at, flags); }

static int do_sync(int fd, long number) {
    struct stat status;
    char path[PATH_MAX];
    uint64_t began = 0;
    bool failing = false;
    if (ours(fd)) {
        int saved = errno;
        if (syscall(SYS_fstat, fd, &status) == 0) {
            look_at_all();
            if (S_ISREG(status.st_mode)) {
                began = put(SYNC, status.st_ino, 0, 0, NULL, 0, NULL, 0, 0);
                failing = path_of_fd(fd, path) && fails(path);
            }
            else if (S_ISDIR(status.st_mode) && path_of_fd(fd, path)) began = put_text(SYNC, 0, 0, 0, path);
        }
        errno = saved;
    }
    if (failing) {
        put_end(began, 0, -1);
        bool hangs = atomic_load(&log_head->fail_hangs);
        atomic_store(&log_head->failed, (uint64_t)getpid());
        while (hangs) pause();
        errno = EIO;
        return -1;
    }
    int result = (int)syscall(number, fd);
    put_end(began, 0, result);
    return result;
}
int fsync(int fd) { return do_sync(fd, SYS_fsync); }
int fdatasync(int fd) { return do_sync(fd, SYS_fdatasync); }

int ftruncate(int fd, off_t size) {
    struct stat status;
    uint64_t inode = ours(fd) ? file_inode(fd, &status) : 0;
    if (inode) look_at_all();
    enter(inode);
    int result = (int)syscall(SYS_ftruncate, fd, size);
    if (inode && !result) put(SIZE, inode, (uint64_t)size, 0, NULL, 0, NULL, 0, 0);
    leave(inode);
    return result;
}
int ftruncate64(int fd, off64_t size) { return ftruncate(fd, size); }

static int spaced(int fd, int mode, off_t at, off_t n) {
    struct stat status;
    uint64_t inode = ours(fd) && mode != FALLOC_FL_KEEP_SIZE ? file_inode(fd, &status) : 0; /* neither bytes nor size */
    if (inode) look_at_all();
    enter(inode);
    int result = (int)syscall(SYS_fallocate, fd, mode, at, n);
    if (inode && !result && mode == (FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE)) put(HOLE, inode, (uint64_t)at, (uint64_t)n, NULL, 0, NULL, 0, 0);
    else if (inode && !result && mode) strange(fd, "fallocate with a mode:");
    else if (inode && !result) put(SPACE, inode, (uint64_t)at, (uint64_t)n, NULL, 0, NULL, 0, 0);
    leave(inode);
    return result;
}
int fallocate(int fd, int mode, off_t at, off_t n) { return spaced(fd, mode, at, n); }
int fallocate64(int fd, int mode, off64_t at, off64_t n) { return spaced(fd, mode, at, n); }
int posix_fallocate(int fd, off_t at, off_t n) {
    int saved = errno, error = spaced(fd, 0, at, n) ? errno : 0;
    errno = saved;
    return error;
}
int posix_fallocate64(int fd, off64_t at, off64_t n) { return posix_fallocate(fd, at, n); }

/* ---- names ---- */

/* A socket holds nothing, and its making by bind() is not recorded. */
static bool is_socket(const char *path) {
    struct stat status;
    int saved = errno;
    bool good = syscall(SYS_newfstatat, AT_FDCWD, path, &status, AT_SYMLINK_NOFOLLOW) == 0;
    errno = saved;
    return good && S_ISSOCK(status.st_mode);
}

int renameat2(int from_at, const char *from, int to_at, const char *to, unsigned flags) {
    char text[2 * PATH_MAX], path[PATH_MAX];
    bool mine = path_of(from_at, from, text) && path_of(to_at, to, path) && (inside(text) || inside(path));
    if (mine) look_at_all();
    enter(mine);
    int result = (int)syscall(SYS_renameat2, from_at, from, to_at, to, flags);
    if (mine && !result && !is_socket(path)) {
        size_t first = strlen(text);
        memcpy(text + first + 1, path, strlen(path) + 1);
        if (flags & ~RENAME_NOREPLACE || !inside(text) || !inside(path)) put_text(STRANGE, 0, 0, 0, "a rename in or out, or with flags");
        else put(RENAME, 0, 0, 0, text, first + 1 + strlen(path), NULL, 0, 0);
    }
    leave(mine);
    return result;
}
int renameat(int from_at, const char *from, int to_at, const char *to) { return renameat2(from_at, from, to_at, to, 0); }
int rename(const char *from, const char *to) { return renameat2(AT_FDCWD, from, AT_FDCWD, to, 0); }

int unlinkat(int at, const char *name, int flags) {
    char path[PATH_MAX];
    bool mine = path_of(at, name, path) && inside(path);
    if (mine) look_at_all();
    enter(mine);
    int result = (int)syscall(SYS_unlinkat, at, name, flags);
    if (mine && !result) put_text(flags & AT_REMOVEDIR ? RMDIR : UNLINK, 0, 0, 0, path);
    leave(mine);
    return result;
}
int unlink(const char *name) { return unlinkat(AT_FDCWD, name, 0); }
int rmdir(const char *name) { return unlinkat(AT_FDCWD, name, AT_REMOVEDIR); }
int mkdirat(int at, const char *name, mode_t mode) {
    char path[PATH_MAX];
    bool mine = path_of(at, name, path) && inside(path);
    enter(mine);
    int result = (int)syscall(SYS_mkdirat, at, name, mode);
    if (mine && !result) put_text(MKDIR, 0, 0, 0, path);
    leave(mine);
    return result;
}
int mkdir(const char *name, mode_t mode) { return mkdirat(AT_FDCWD, name, mode); }

int linkat(int from_at, const char *from, int to_at, const char *to, int flags) {
    char text[2 * PATH_MAX], path[PATH_MAX];
    bool mine = path_of(from_at, from, text) && path_of(to_at, to, path) && inside(path);
    enter(mine);
    int result = (int)syscall(SYS_linkat, from_at, from, to_at, to, flags);
    if (mine && !result) {
        size_t first = strlen(text);
        memcpy(text + first + 1, path, strlen(path) + 1);
        if (!inside(text)) put_text(STRANGE, 0, 0, 0, "a link to what lies elsewhere");
        else put(LINK, 0, 0, 0, text, first + 1 + strlen(path), NULL, 0, 0);
    }
    leave(mine);
    return result;
}
int link(const char *from, const char *to) { return linkat(AT_FDCWD, from, AT_FDCWD, to, 0); }
int symlinkat(const char *from, int at, const char *to) {
    char path[PATH_MAX];
    if (path_of(at, to, path) && inside(path)) put_text(STRANGE, 0, 0, 0, "symlink");
    return (int)syscall(SYS_symlinkat, from, at, to);
}
int symlink(const char *from, const char *to) { return symlinkat(from, AT_FDCWD, to); }
int truncate(const char *name, off_t size) {
    char path[PATH_MAX];
    if (path_of(AT_FDCWD, name, path) && inside(path)) put_text(STRANGE, 0, 0, 0, "truncate by name");
    return (int)syscall(SYS_truncate, name, size);
}
int truncate64(const char *name, off64_t size) { return truncate(name, size); }

/* ---- what the campaign has no model of ---- */

ssize_t copy_file_range(int from, off64_t *from_at, int to, off64_t *to_at, size_t n, unsigned flags) {
    strange(to, "copy_file_range into");
    return syscall(SYS_copy_file_range, from, from_at, to, to_at, n, flags);
}
ssize_t sendfile(int to, int from, off_t *at, size_t n) {
    strange(to, "sendfile into");
    return syscall(SYS_sendfile, to, from, at, n);
}
ssize_t sendfile64(int to, int from, off64_t *at, size_t n) { return sendfile(to, from, at, n); }
ssize_t splice(int from, off64_t *from_at, int to, off64_t *to_at, size_t n, unsigned flags) {
    strange(to, "splice into");
    return syscall(SYS_splice, from, from_at, to, to_at, n, flags);
}
/* ---- mappings ---- */

static void mapped(void *base, size_t n, int fd, off_t at) {
    struct stat status;
    int saved = errno;
    uint64_t inode = file_inode(fd, &status);
    if (!inode) return;
    pthread_mutex_lock(&mappings_lock);
    mapping *m = &mappings[mappings_n];
    uint64_t bytes = (uint64_t)status.st_size > (uint64_t)at ? (uint64_t)status.st_size - (uint64_t)at : 0;
    m->base = base;
    m->bytes = bytes < n ? bytes : n;
    m->at = (uint64_t)at;
    m->inode = inode;
    m->last = mappings_n < MAPPINGS_MAX - 1 && path_of_fd(fd, m->path) ? malloc(m->bytes + 1) : NULL;
    if (m->last) {
        mappings_n++;
        look_at(m, true);
    } else strange(fd, "one mapping too many, of");
    pthread_mutex_unlock(&mappings_lock);
    errno = saved;
}

void *mmap(void *where, size_t n, int protection, int flags, int fd, off_t at) {
    bool writes = fd >= 0 && protection & PROT_WRITE && (flags & MAP_TYPE) != MAP_PRIVATE && ours(fd);
    void *base = (void *)syscall(SYS_mmap, where, n, protection, flags, fd, at);
    if (writes && base != MAP_FAILED) mapped(base, n, fd, at);
    return base;
}
void *mmap64(void *where, size_t n, int protection, int flags, int fd, off64_t at) {
    return mmap(where, n, protection, flags, fd, at);
}

int munmap(void *base, size_t n) {
    if (!log_head || !mappings_n) return (int)syscall(SYS_munmap, base, n);
    pthread_mutex_lock(&mappings_lock);
    for (uint32_t i = 0; i < mappings_n; i++) {
        if (mappings[i].base != base) continue;
        look_at(&mappings[i], false);
        free(mappings[i].last);
        if (i != --mappings_n) mappings[i] = mappings[mappings_n];
        break;
    }
    int result = (int)syscall(SYS_munmap, base, n);
    pthread_mutex_unlock(&mappings_lock);
    return result;
}

static uint64_t sync_began(const void *at, size_t n, char path[PATH_MAX]) {
    uint64_t began = 0;
    pthread_mutex_lock(&mappings_lock);
    for (uint32_t i = 0; i < mappings_n; i++) {
        const mapping *m = &mappings[i];
        uint64_t from = (uint64_t)((const uint8_t *)at - m->base);
        if ((const uint8_t *)at < m->base || from >= m->bytes) continue;
        began = put(SYNC, m->inode, m->at + from, n, NULL, 0, NULL, 0, 0);
        strcpy(path, m->path);
        break;
    }
    pthread_mutex_unlock(&mappings_lock);
    return began;
}

/* It never hangs: who comes next stores the same bytes again, which is not seen (above). */
int msync(void *at, size_t n, int flags) {
    char path[PATH_MAX];
    look_at_all();
    uint64_t began = log_head && flags & MS_SYNC ? sync_began(at, n, path) : 0;
    if (began && !atomic_load(&log_head->fail_hangs) && fails(path)) {
        put_end(began, 0, -1);
        atomic_store(&log_head->failed, (uint64_t)getpid());
        errno = EIO;
        return -1;
    }
    int result = (int)syscall(SYS_msync, at, n, flags);
    put_end(began, 0, result);
    return result;
}

/* All files and names; nobody needs more than the record of it. */
int syncfs(int fd) {
    if (!ours(fd)) return (int)syscall(SYS_syncfs, fd);
    look_at_all();
    put_end(put(SYNCFS, 0, 0, 0, NULL, 0, NULL, 0, 0), 0, 0);
    return 0;
}
