/* The commit log from its files. What it is: topics/walk.h. */
#define _GNU_SOURCE
#include "topics/walk.h"
#include "kernel/protocol.h"
#include "kernel/read.h"
#include "topics/record.h"
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define PART_BYTES (4ull << 20)
#define BLOCK_BYTES (64u << 10)

/* A part of a file in memory. */
typedef struct {
    int fd;
    uint64_t base, file_bytes;
    uint64_t position, n; /* of the part */
    uint8_t *bytes;
    uint64_t size;
} part;

/* Have `size` bytes from a position on, as far as the file goes. 0 or an errno. */
static int load(part *p, uint64_t position, uint64_t size) {
    if (size > p->size) {
        uint8_t *bytes = realloc(p->bytes, size);
        if (!bytes) return ENOMEM;
        p->bytes = bytes;
        p->size = size;
    }
    uint64_t left = p->base + p->file_bytes - position, wanted = size < left ? size : left;
    p->position = position;
    return wr_read_up_to(p->fd, p->bytes, wanted, position - p->base, &p->n); /* in a file that was cut, what is missing is no commit */
}

/* Scan what is due at a position. */
static int scan(part *p, uint64_t position, const wr_commit_head *after, wr_commit_kind *kind, wr_commit_head *head, const uint8_t **marks,
                uint64_t *end) {
    uint64_t file_end = p->base + p->file_bytes;
    bool inside = p->n && position >= p->position && position < p->position + p->n;
    int error = inside ? 0 : load(p, position, p->size > PART_BYTES ? p->size : PART_BYTES);
    while (!error) {
        const uint64_t at = position - p->position;
        *kind = wr_commit_scan(p->bytes + at, p->n - at, position, file_end, after, head, marks, end);
        if (*kind != WR_COMMIT_MORE) return 0;
        bool whole = p->position + p->n >= file_end || p->n < p->size; /* there is no more of it */
        if (whole || p->n - at >= WR_COMMIT_BYTES_MAX) {
            *kind = WR_COMMIT_TORN;
            return 0;
        }
        error = load(p, position, at ? p->size : 2 * p->size);
    }
    return error;
}

/* Does a commit behind a position say that more than `below` was on stable storage? Looks at what is written there alone. */
static int look_behind(part *p, uint64_t position, const uint8_t node[16], uint64_t below, bool *found) {
    const uint64_t overlap = wr_commit_record_bytes(WR_COMMIT_MARKS_MAX);
    while (!*found) {
        off_t data = lseek(p->fd, (off_t)(position - p->base), SEEK_DATA);
        if (data < 0) return errno == ENXIO ? 0 : errno;
        position = p->base + (uint64_t)data;
        if ((uint64_t)data >= p->file_bytes) return 0; /* somebody appended that to the file */
        int error = load(p, position, PART_BYTES);
        if (error) return error;
        *found = wr_commit_vouched(p->bytes, p->n, position, node, below);
        if (p->n <= overlap) return 0;
        position += p->n - overlap;
    }
    return 0;
}

static int open_part(part *p, const wr_log_visitor *visitor, void *context, uint64_t position) {
    if (p->fd >= 0) close(p->fd);
    p->base = position / p->file_bytes * p->file_bytes;
    p->n = 0;
    p->fd = visitor->open(context, p->base);
    return p->fd < 0 ? -p->fd : 0;
}

static int walk(part *p, const wr_log_visitor *visitor, void *context, wr_log_end *end) {
    for (;;) {
        bool other = p->fd < 0 || end->position >= p->base + p->file_bytes;
        int error = other ? open_part(p, visitor, context, end->position) : 0;
        if (error) return error == ENOENT ? 0 : error;
        wr_commit_kind kind;
        wr_commit_head head;
        const uint8_t *marks;
        uint64_t to;
        if ((error = scan(p, end->position, &end->last, &kind, &head, &marks, &to))) return error;
        if (kind == WR_COMMIT_TORN || kind == WR_COMMIT_END || kind == WR_COMMIT_FOREIGN) {
            end->torn = kind == WR_COMMIT_TORN;
            end->foreign = kind == WR_COMMIT_FOREIGN;
            if (end->foreign) end->stranger = head.origin;
            return 0;
        }
        if (kind == WR_COMMIT_SOUND) {
            error = visitor->commit(context, p->bytes + (end->position - p->position), to - end->position, &head, marks);
            if (error) return error;
            end->last = head;
            if (head.synced > end->synced) end->synced = head.synced;
        }
        end->position = to;
    }
}

/* From the file of the end on, to the last one. Damage can look like an end, too: a page of zeros. */
static int judge(part *p, const wr_log_visitor *visitor, void *context, wr_log_end *end) {
    uint64_t position = end->position;
    for (;;) {
        int error = open_part(p, visitor, context, position);
        if (error) return error == ENOENT ? 0 : error;
        if ((error = look_behind(p, position, end->last.origin.node, end->position, &end->damaged)) || end->damaged) return error;
        position = p->base + p->file_bytes;
    }
}

int wr_log_walk(const wr_log_visitor *visitor, void *context, uint64_t file_bytes, uint64_t position, const wr_commit_head *after,
                wr_log_end *end) {
    part p = {.fd = -1, .file_bytes = file_bytes};
    *end = (wr_log_end){.position = position, .synced = position, .last = *after};
    int error = walk(&p, visitor, context, end);
    if (!error) error = judge(&p, visitor, context, end);
    if (p.fd >= 0) close(p.fd);
    free(p.bytes);
    return error;
}

/* The first commit record of a file whose begin is in memory, of a node or of any. ENOENT: there is none; EAGAIN: it may lie behind these bytes. */
static int first_commit(const part *p, const uint8_t *node, wr_commit_head *head) {
    const uint8_t *marks;
    wr_record record;
    for (uint64_t at = 0;; at += record.size) {
        wr_scan kind = wr_record_scan(p->bytes + at, p->n - at, p->base + at, 0, &record);
        if (kind == WR_SCAN_BAD && record.reason == WR_RECORD_TRUNCATED && p->n < p->file_bytes) return EAGAIN;
        if (kind == WR_SCAN_END && p->n - at < WR_BLANK_SIZE && p->n < p->file_bytes) return EAGAIN;
        if (kind != WR_SCAN_RECORD) return ENOENT;
        if (!wr_commit_record_read(p->bytes + at, p->n - at, p->base + at, head, &marks)) continue;
        if (!node || !memcmp(head->origin.node, node, sizeof head->origin.node)) return 0;
    }
}

int wr_log_first(const wr_log_visitor *visitor, void *context, uint64_t file_bytes, uint64_t base, const uint8_t *node, wr_commit_head *first) {
    part p = {.fd = -1, .file_bytes = file_bytes};
    int error = open_part(&p, visitor, context, base);
    for (uint64_t size = PART_BYTES; !error; size *= 2) {
        error = load(&p, base, size);
        if (!error) error = first_commit(&p, node, first);
        if (error == EAGAIN) error = p.n < size || size >= WR_COMMIT_BYTES_MAX ? ENOENT : 0;
        else if (!error) break;
    }
    if (p.fd >= 0) close(p.fd);
    free(p.bytes);
    return error;
}

int wr_log_before(const wr_log_visitor *visitor, void *context, uint64_t file_bytes, uint64_t base, wr_commit_head *before) {
    wr_commit_head first;
    int error = wr_log_first(visitor, context, file_bytes, base, before->origin.node, &first);
    if (error) return error;
    before->number = first.number - 1;
    before->origin.epoch = first.origin.epoch;
    return 0;
}

/* ---- before the log goes on ---- */

/* A file that is made ready. */
typedef struct {
    int fd;
    const wr_commit_io *io;
    void *io_context;
} target;

static int write_all(const target *t, const uint8_t *from, uint64_t n, uint64_t at) {
    while (n) {
        ssize_t written = t->io->pwrite(t->io_context, t->fd, from, n, (off_t)at);
        if (written < 0 && errno == EINTR) continue;
        if (written <= 0) return written ? errno : EIO;
        from += written, n -= (uint64_t)written, at += (uint64_t)written;
    }
    return 0;
}

static int zero(const target *t, uint64_t from, uint64_t to) {
    static const uint8_t zeros[BLOCK_BYTES];
    int error = 0;
    for (uint64_t n; !error && from < to; from += n) {
        n = to - from < sizeof zeros ? to - from : sizeof zeros;
        error = write_all(t, zeros, n, from);
    }
    return error;
}

/* Zero a file from a place on, and sync it. */
static int cut(const target *t, uint64_t file_bytes, uint64_t from) {
    uint64_t page = (from + WR_PAGE_BYTES - 1) & ~(uint64_t)(WR_PAGE_BYTES - 1);
    int error = zero(t, from, page < file_bytes ? page : file_bytes);
    while (!error && page < file_bytes) {
        if (fallocate(t->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)page, (off_t)(file_bytes - page)) == 0) break;
        if (errno == EINTR) continue;
        error = errno == EOPNOTSUPP ? zero(t, page, file_bytes) : errno;
        break;
    }
    while (!error && t->io->fdatasync(t->io_context, t->fd) != 0)
        if (errno != EINTR) error = errno;
    return error;
}

/* EIO: somebody has cut the file since it was walked through. */
static int check_size(int fd, uint64_t size) {
    struct stat found;
    if (fstat(fd, &found) != 0) return errno;
    return (uint64_t)found.st_size < size ? EIO : 0;
}

/* Write a part of a file with what it holds. A hole stays one: before the end of a file it may be nearly as long as the file. */
static int write_again(const target *t, uint64_t from, uint64_t to) {
    uint8_t bytes[BLOCK_BYTES];
    while (from < to) {
        const off_t data = lseek(t->fd, (off_t)from, SEEK_DATA);
        if (data < 0 && errno != ENXIO) return errno;
        if (data < 0 || (uint64_t)data >= to) return check_size(t->fd, to);
        const off_t hole = lseek(t->fd, data, SEEK_HOLE);
        if (hole < 0) return errno;
        const uint64_t size = ((uint64_t)hole < to ? (uint64_t)hole : to) - (uint64_t)data;
        from = (uint64_t)data;
        ssize_t n = pread(t->fd, bytes, size < sizeof bytes ? size : sizeof bytes, (off_t)from);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return n ? errno : EIO; /* it was cut */
        int error = write_all(t, bytes, (uint64_t)n, from);
        if (error) return error;
        from += (uint64_t)n;
    }
    return 0;
}

int wr_log_settle(int (*open)(void *context, uint64_t base), void *context, const wr_commit_io *io, void *io_context, uint64_t file_bytes,
                  const wr_log_end *end) {
    /* From the file on in which something may not be synced: the one before, when the log ends with it. */
    for (uint64_t base = end->synced / file_bytes * file_bytes;; base += file_bytes) {
        target t = {open(context, base), io ? io : &wr_commit_io_system, io_context};
        if (t.fd < 0) return t.fd == -ENOENT && base >= end->position ? 0 : -t.fd;
        uint64_t from = end->synced > base ? end->synced - base : 0, to = end->position > base ? end->position - base : 0;
        if (to > file_bytes) to = file_bytes;
        int error = write_again(&t, from, to);
        if (!error) error = cut(&t, file_bytes, to);
        close(t.fd);
        if (error) return error;
    }
}
