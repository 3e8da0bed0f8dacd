/* Mapped derived files. What they are: topics/mapped_file.h. */
#define _GNU_SOURCE
#include "topics/mapped_file.h"
#include "kernel/data_files.h"
#include "kernel/protocol.h"
#include "kernel/read.h"
#include "topics/folder.h"
#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

/* ---- stores that find no space ---- */

/* The try that a thread is in, and where its last one failed. */
static _Thread_local struct {
    const uint8_t *volatile base; /* NULL: it is in none */
    uint64_t bytes, at;
    sigjmp_buf back;
} try;

static struct sigaction before; /* the handler for signals outside of a try */

static void take_signal(int number, siginfo_t *info, void *context) {
    const uint8_t *base = try.base, *at = info->si_addr;
    if (base && at >= base && at < base + try.bytes) {
        try.at = (uint64_t)(at - base);
        siglongjmp(try.back, 1);
    }
    if (before.sa_flags & SA_SIGINFO) before.sa_sigaction(number, info, context);
    else if (before.sa_handler != SIG_DFL && before.sa_handler != SIG_IGN) before.sa_handler(number);
    else signal(number, SIG_DFL); /* and the store, made again, ends the process */
}

static void take_signals(void) {
    /* NODEFER: the signal is not blocked after the jump. */
    struct sigaction taken = {.sa_sigaction = take_signal, .sa_flags = SA_SIGINFO | SA_NODEFER | SA_ONSTACK};
    sigemptyset(&taken.sa_mask);
    sigaction(SIGBUS, &taken, &before);
}

bool wr_mapped_try(const wr_mapped_file *file, void (*store)(void *context), void *context) {
    if (!file->elsewhere) {
        store(context);
        return true;
    }
    if (sigsetjmp(try.back, 0)) {
        try.base = NULL;
        return false;
    }
    try.bytes = file->bytes;
    try.base = file->base; /* last: from here on a signal is this try's */
    store(context);
    try.base = NULL;
    return true;
}

/* ---- the file ---- */

/* Its size, and which one it is. */
static int look(wr_mapped_file *file, int fd) {
    struct stat found;
    if (fstat(fd, &found) != 0) return errno;
    while (found.st_size == 0 && ftruncate(fd, (off_t)file->bytes) != 0)
        if (errno != EINTR) return errno;
    if (found.st_size != 0 && (uint64_t)found.st_size < file->bytes) return ESTALE;
    file->device = found.st_dev;
    file->inode = found.st_ino;
    struct statfs system;
    file->elsewhere = fstatfs(fd, &system) != 0 || (system.f_type != EXT4_SUPER_MAGIC && system.f_type != TMPFS_MAGIC);
    return 0;
}

int wr_mapped_open(wr_mapped_file *file, int root, const char *name, uint64_t bytes, bool *made) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, take_signals);
    *file = (wr_mapped_file){.bytes = bytes};
    int fd = wr_data_open(root, name, O_RDWR, 0);
    if (made) *made = fd < 0;
    if (fd < 0 && errno == ENOENT && made) fd = wr_data_open(root, name, O_RDWR | O_CREAT, WR_FOLDER_FILE_MODE);
    if (fd < 0) return errno;
    int error = look(file, fd);
    if (!error) {
        void *base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        if (base == MAP_FAILED) error = errno;
        else file->base = base;
        /* One page at a time, as they are touched: the system reads megabytes ahead of each, which are zeros for the most part, and keeps them. */
        if (!error) madvise(base, bytes, MADV_RANDOM);
    }
    close(fd);
    return error;
}

void wr_mapped_close(wr_mapped_file *file) {
    if (file->base) munmap(file->base, file->bytes);
    *file = (wr_mapped_file){0};
}

/* Open it again, by its name. 0 with *fd, or an errno; ESTALE: the name is of another file, or of none. */
static int open_again(const wr_mapped_file *file, int root, const char *name, int *fd) {
    struct stat found;
    if ((*fd = wr_data_open(root, name, O_RDWR, 0)) < 0) return errno == ENOENT ? ESTALE : errno;
    int error = fstat(*fd, &found) != 0 ? errno : 0;
    if (!error && (found.st_dev != file->device || found.st_ino != file->inode || (uint64_t)found.st_size < file->bytes)) error = ESTALE;
    if (error) close(*fd);
    return error;
}

int wr_mapped_have(const wr_mapped_file *file, int root, const char *name, uint64_t from, uint64_t to) {
    int fd, error = open_again(file, root, name, &fd);
    if (error) return error;
    /* keeps what is there, and does without the call where a file system has none */
    while ((error = posix_fallocate(fd, (off_t)from, (off_t)(to - from))) == EINTR) {}
    close(fd);
    return error;
}

int wr_mapped_why(const wr_mapped_file *file, int root, const char *name) {
    uint8_t page[WR_PAGE_BYTES];
    const uint64_t at = try.at & ~(uint64_t)(WR_PAGE_BYTES - 1);
    const uint64_t n = file->bytes - at < sizeof page ? file->bytes - at : sizeof page;
    int fd, error = open_again(file, root, name, &fd);
    if (error) return error;
    error = wr_read_all(fd, page, n, at);
    ssize_t put = 0;
    if (!error)
        while ((put = pwrite(fd, page, n, (off_t)at)) < 0 && errno == EINTR) {}
    if (put < 0) error = errno;
    close(fd);
    return error ? error : ENOSPC;
}

int wr_mapped_sync(const wr_mapped_file *file, uint64_t from, uint64_t to) {
    from &= ~(uint64_t)(WR_PAGE_BYTES - 1);
    return to > from && msync(file->base + from, to - from, MS_SYNC) != 0 ? errno : 0;
}
