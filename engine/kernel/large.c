/* Messages in files of their own. Declared in kernel/large.h. */
#define _GNU_SOURCE
#include "kernel/large.h"
#include "kernel/data_files.h"
#include "kernel/frame.h"
#include "kernel/read.h"
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#define PIECE (1u << 20)
#define CRC_FROM 16
static const uint8_t magic[8] = "WRNLARG1";

void wr_large_name(const uint8_t id[16], char name[WR_LARGE_NAME_BYTES]) {
    static const char digits[] = "0123456789abcdef";
    for (int i = 0; i < 16; i++) {
        name[2 * i] = digits[id[i] >> 4];
        name[2 * i + 1] = digits[id[i] & 15];
    }
    name[32] = 0;
}

static int write_all(int fd, const uint8_t *from, uint64_t bytes, uint64_t at) {
    while (bytes) {
        ssize_t n = pwrite(fd, from, bytes, (off_t)at);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return errno;
        if (!n) return ENOSPC;
        from += n;
        at += (uint64_t)n;
        bytes -= (uint64_t)n;
    }
    return 0;
}

static int sync_of(int fd, bool data) {
    while (data ? fdatasync(fd) : fsync(fd))
        if (errno != EINTR) return errno;
    return 0;
}

/* An empty file of this name, with its lock. Whoever removes files may have the lock of one that was just made: EWOULDBLOCK, and the name
 * stays that one's until it has removed it, or let it go. The name is taken away by who holds a lock alone: else a file that was made anew
 * meanwhile would go in its place. */
static int make(int folder, const char *name, mode_t mode, int *fd) {
    for (;;) {
        *fd = wr_data_open_anyones(folder, name, O_RDWR | O_CREAT, mode);
        if (*fd < 0) return errno;
        struct stat now;
        int error = 0;
        if (flock(*fd, LOCK_SH | LOCK_NB) || fstat(*fd, &now)) error = errno;
        else if (now.st_nlink && (now.st_size || now.st_nlink > 1 || now.st_uid != geteuid()))
            error = EEXIST; /* a message's, damage, or another member's: it is not ours to write over */
        else if (now.st_nlink) {
            if (!fchmod(*fd, mode)) return 0; /* the umask is the program's */
            error = errno;
            wr_data_unlink(folder, name);
        }
        close(*fd);
        if (error && error != EINTR) return error;
    }
}

/* Copied first: the program may change a body while it is written, and what is there must be what was checked. */
static int write_body(int fd, const uint8_t *body, uint64_t length, uint64_t at, uint8_t *piece, uint32_t *crc) {
    for (uint64_t done = 0; done < length;) {
        uint64_t n = length - done < PIECE ? length - done : PIECE;
        *crc = wr_copy_crc32c(*crc, piece, body + done, n);
        int error = write_all(fd, piece, n, at + done);
        if (error) return error;
        /* On its way to the disk while the next piece is copied; only the sync says that it is there. */
        sync_file_range(fd, (off_t)(at + done), (off_t)n, SYNC_FILE_RANGE_WRITE);
        done += n;
    }
    return 0;
}

static int fill(int fd, const wr_large *m, bool sync, uint8_t *piece) {
    uint8_t head[WR_LARGE_HEADER_SIZE] = {0};
    uint64_t total = sizeof head + m->meta_length + m->length;
    int error = fallocate(fd, 0, 0, (off_t)total) ? errno : 0; /* no room is noticed before anything is written */
    if (error && error != EOPNOTSUPP && error != ENOSYS) return error;
    uint32_t body_crc = 0, crc;
    if ((error = write_body(fd, m->body, m->length, sizeof head + m->meta_length, piece, &body_crc))) return error;
    memcpy(head + WR_LARGE_HEADER_AT_MAGIC, magic, sizeof magic);
    wr_put32(head + WR_LARGE_HEADER_AT_VERSION, WR_LARGE_VERSION);
    wr_put64(head + WR_LARGE_HEADER_AT_NODE_ID, m->node_id);
    memcpy(head + WR_LARGE_HEADER_AT_ID, m->id, 16);
    wr_put32(head + WR_LARGE_HEADER_AT_BODY_LENGTH, (uint32_t)(m->meta_length + m->length));
    wr_put16(head + WR_LARGE_HEADER_AT_META_LENGTH, m->meta_length);
    wr_put32(head + WR_LARGE_HEADER_AT_BODY_CRC, body_crc);
    crc = wr_crc32c(0, head + CRC_FROM, sizeof head - CRC_FROM);
    crc = wr_copy_crc32c(crc, piece + sizeof head, m->meta, m->meta_length);
    wr_put32(head + WR_LARGE_HEADER_AT_CRC, crc);
    memcpy(piece, head, sizeof head);
    if ((error = write_all(fd, piece, sizeof head + m->meta_length, 0))) return error;
    return sync ? sync_of(fd, true) : 0;
}

int wr_large_write(int folder, const wr_large *m, bool sync, int *fd) {
    char name[WR_LARGE_NAME_BYTES];
    struct stat of;
    if (m->meta_length + m->length > WR_MESSAGE_BYTES_MOST) return EMSGSIZE;
    if (fstat(folder, &of)) return errno;
    uint8_t *piece = malloc(PIECE);
    if (!piece) return ENOMEM;
    wr_large_name(m->id, name);
    /* members of the node's group read it, if its folder is theirs, too */
    int error = make(folder, name, of.st_mode & S_IWGRP ? 0640 : 0600, fd);
    if (!error) {
        error = fill(*fd, m, sync, piece);
        if (!error && sync) error = sync_of(folder, false);
        if (error) {
            wr_data_unlink(folder, name);
            close(*fd);
        }
    }
    if (error) *fd = -1;
    free(piece);
    return error;
}

int wr_large_link(int from, int to, const uint8_t id[16], bool sync) {
    char name[WR_LARGE_NAME_BYTES];
    wr_large_name(id, name);
    int error = wr_data_link(from, to, name);
    if (error || !sync) return error;
    if ((error = sync_of(to, false))) wr_data_unlink(to, name);
    return error;
}

void wr_large_unlink(int folder, const uint8_t id[16]) {
    char name[WR_LARGE_NAME_BYTES];
    wr_large_name(id, name);
    wr_data_unlink(folder, name);
}

/* The head of an open file, and the metadata behind it, which is covered by the same checksum. */
static int read_head(int fd, uint64_t node_id, const uint8_t id[16], uint8_t *to, uint64_t *length, uint16_t *meta_length, const char **reason) {
    struct stat now;
    int error = wr_read_all(fd, to, WR_LARGE_HEADER_SIZE, 0);
    *reason = "size";
    if (error == EUCLEAN) return EBADMSG;
    if (error) return error;
    *reason = "magic";
    if (memcmp(to + WR_LARGE_HEADER_AT_MAGIC, magic, sizeof magic)) return EBADMSG;
    *reason = "version";
    if (wr_get32(to + WR_LARGE_HEADER_AT_VERSION) != WR_LARGE_VERSION) return EUCLEAN;
    *length = wr_get32(to + WR_LARGE_HEADER_AT_BODY_LENGTH);
    *meta_length = wr_get16(to + WR_LARGE_HEADER_AT_META_LENGTH);
    *reason = "size";
    if (*length > WR_MESSAGE_BYTES_MOST || *meta_length > *length) return EBADMSG;
    if (fstat(fd, &now)) return errno;
    if ((uint64_t)now.st_size != WR_LARGE_HEADER_SIZE + *length) return EBADMSG;
    error = wr_read_all(fd, to + WR_LARGE_HEADER_SIZE, *meta_length, WR_LARGE_HEADER_SIZE);
    if (error) return error == EUCLEAN ? EBADMSG : error;
    *reason = "crc";
    uint32_t crc = wr_crc32c(0, to + CRC_FROM, WR_LARGE_HEADER_SIZE - CRC_FROM);
    if (wr_crc32c(crc, to + WR_LARGE_HEADER_SIZE, *meta_length) != wr_get32(to + WR_LARGE_HEADER_AT_CRC)) return EBADMSG;
    *reason = "node";
    if (wr_get64(to + WR_LARGE_HEADER_AT_NODE_ID) != node_id) return EUCLEAN;
    *reason = "message";
    return memcmp(to + WR_LARGE_HEADER_AT_ID, id, 16) ? EUCLEAN : 0;
}

/* NULL `body`: only checked, piece by piece. */
static int read_body(int fd, uint64_t at, uint64_t length, uint8_t *body, uint32_t wanted, const char **reason) {
    uint8_t *piece = body ? NULL : malloc(PIECE);
    uint32_t crc = 0;
    int error = !body && !piece ? ENOMEM : 0;
    for (uint64_t done = 0; !error && done < length;) {
        uint64_t n = length - done < PIECE ? length - done : PIECE;
        uint8_t *to = body ? body + done : piece;
        if (!(error = wr_read_all(fd, to, n, at + done))) crc = wr_crc32c(crc, to, n);
        done += n;
    }
    free(piece);
    *reason = error == EUCLEAN ? "size" : "crc";
    if (error) return error == EUCLEAN ? EBADMSG : error;
    return crc == wanted ? 0 : EBADMSG;
}

static int open_of(int folder, const uint8_t id[16], int *fd) {
    char name[WR_LARGE_NAME_BYTES];
    if (folder < 0) return ENOENT;
    wr_large_name(id, name);
    *fd = wr_data_open_anyones(folder, name, O_RDONLY, 0);
    return *fd < 0 ? errno : 0;
}

int wr_large_read(int folder, uint64_t node_id, const uint8_t id[16], uint64_t length, uint16_t meta_length, void *meta, void *body,
                  const char **reason) {
    uint64_t found;
    uint16_t found_meta;
    int fd, error = open_of(folder, id, &fd);
    *reason = "place";
    if (error) return error;
    uint8_t *head = malloc(WR_LARGE_HEADER_SIZE + UINT16_MAX);
    error = head ? read_head(fd, node_id, id, head, &found, &found_meta, reason) : ENOMEM;
    if (!error && (found != length || found_meta != meta_length)) {
        *reason = "size";
        error = EBADMSG;
    }
    if (!error && meta) memcpy(meta, head + WR_LARGE_HEADER_SIZE, meta_length);
    if (!error && body)
        error = read_body(fd, WR_LARGE_HEADER_SIZE + meta_length, length - meta_length, body, wr_get32(head + WR_LARGE_HEADER_AT_BODY_CRC), reason);
    free(head);
    close(fd);
    return error;
}

int wr_large_check(int folder, uint64_t node_id, const uint8_t id[16], uint64_t *length, uint16_t *meta_length, const char **reason) {
    int fd, error = open_of(folder, id, &fd);
    *reason = "place";
    if (error) return error;
    uint8_t *head = malloc(WR_LARGE_HEADER_SIZE + UINT16_MAX);
    error = head ? read_head(fd, node_id, id, head, length, meta_length, reason) : ENOMEM;
    if (!error)
        error = read_body(fd, WR_LARGE_HEADER_SIZE + *meta_length, *length - *meta_length, NULL, wr_get32(head + WR_LARGE_HEADER_AT_BODY_CRC), reason);
    free(head);
    close(fd);
    return error;
}
