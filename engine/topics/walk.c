/* The commit log from its files. What it is: topics/walk.h. */
#define _GNU_SOURCE
#include "topics/walk.h"
#include "kernel/protocol.h"
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#define PART_BYTES (4ull << 20)
#define ZEROS_BYTES (64u << 10)

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
    p->n = 0;
    while (p->n < wanted) {
        ssize_t n = pread(p->fd, p->bytes + p->n, wanted - p->n, (off_t)(position - p->base + p->n));
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return errno;
        if (n == 0) break; /* somebody cut the file: what is missing is no commit */
        p->n += (uint64_t)n;
    }
    return 0;
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

/* Does a commit behind a position say that more than that was on stable storage? Looks at what is written there alone. */
static int look_behind(part *p, uint64_t position, const uint8_t node[16], bool *found) {
    const uint64_t overlap = wr_commit_record_bytes(WR_COMMIT_MARKS_MAX), below = position;
    while (!*found) {
        off_t data = lseek(p->fd, (off_t)(position - p->base), SEEK_DATA);
        if (data < 0) return errno == ENXIO ? 0 : errno;
        position = p->base + (uint64_t)data;
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
        if (kind == WR_COMMIT_TORN || kind == WR_COMMIT_END) {
            end->torn = kind == WR_COMMIT_TORN;
            return 0;
        }
        if (kind == WR_COMMIT_SOUND) {
            error = visitor->commit(context, p->bytes + (end->position - p->position), to - end->position, &head, marks);
            if (error) return error;
            end->last = head;
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
        if ((error = look_behind(p, position, end->last.origin.node, &end->damaged)) || end->damaged) return error;
        position = p->base + p->file_bytes;
    }
}

int wr_log_walk(const wr_log_visitor *visitor, void *context, uint64_t file_bytes, uint64_t position, const wr_commit_head *after,
                wr_log_end *end) {
    part p = {.fd = -1, .file_bytes = file_bytes};
    *end = (wr_log_end){.position = position, .last = *after};
    int error = walk(&p, visitor, context, end);
    if (!error) error = judge(&p, visitor, context, end);
    if (p.fd >= 0) close(p.fd);
    free(p.bytes);
    return error;
}

/* ---- cut ---- */

static int zero(int fd, uint64_t from, uint64_t to) {
    static const uint8_t zeros[ZEROS_BYTES];
    while (from < to) {
        ssize_t n = pwrite(fd, zeros, to - from < sizeof zeros ? to - from : sizeof zeros, (off_t)from);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return errno;
        from += (uint64_t)n;
    }
    return 0;
}

int wr_log_cut(int fd, uint64_t file_bytes, uint64_t from) {
    uint64_t page = (from + WR_PAGE_BYTES - 1) & ~(uint64_t)(WR_PAGE_BYTES - 1);
    int error = zero(fd, from, page < file_bytes ? page : file_bytes);
    if (!error && page < file_bytes && fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)page, (off_t)(file_bytes - page)) != 0)
        error = errno == EOPNOTSUPP ? zero(fd, page, file_bytes) : errno;
    while (!error && fdatasync(fd) != 0)
        if (errno != EINTR) error = errno;
    return error;
}
