/* Mapped derived files. What they are: topics/mapped_file.h. */
#define _GNU_SOURCE
#include "topics/mapped_file.h"
#include "kernel/data_files.h"
#include "kernel/protocol.h"
#include "topics/folder.h"
#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* Its size, and which one it is. */
static int look(wr_mapped_file *file, int fd) {
    struct stat found;
    if (fstat(fd, &found) != 0) return errno;
    while (found.st_size == 0 && ftruncate(fd, (off_t)file->bytes) != 0)
        if (errno != EINTR) return errno;
    if (found.st_size != 0 && (uint64_t)found.st_size < file->bytes) return ESTALE;
    file->device = found.st_dev;
    file->inode = found.st_ino;
    return 0;
}

int wr_mapped_open(wr_mapped_file *file, int root, const char *name, uint64_t bytes, bool *made) {
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

int wr_mapped_have(const wr_mapped_file *file, int root, const char *name, uint64_t from, uint64_t to) {
    struct stat found;
    int fd = wr_data_open(root, name, O_RDWR, 0);
    if (fd < 0) return errno == ENOENT ? ESTALE : errno;
    int error = fstat(fd, &found) != 0 ? errno : 0;
    if (!error && (found.st_dev != file->device || found.st_ino != file->inode || (uint64_t)found.st_size < file->bytes)) error = ESTALE;
    if (!error) /* keeps what is there, and does without the call where a file system has none */
        while ((error = posix_fallocate(fd, (off_t)from, (off_t)(to - from))) == EINTR) {}
    close(fd);
    return error;
}

int wr_mapped_sync(const wr_mapped_file *file, uint64_t from, uint64_t to) {
    from &= ~(uint64_t)(WR_PAGE_BYTES - 1);
    return to > from && msync(file->base + from, to - from, MS_SYNC) != 0 ? errno : 0;
}
