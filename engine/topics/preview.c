/* The log before a start. What it is: topics/preview.h. */
#define _GNU_SOURCE
#include "topics/preview.h"
#include "kernel/bytes.h"
#include "kernel/read.h"
#include "topics/record.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define READ_BYTES (64ull << 10) /* more than a commit record takes */

/* Files from a base on, as far as they follow each other: each begins with a commit of this node, or with none. */
static int look_at_begins(const wr_log_visitor *visitor, void *context, uint64_t file_bytes, uint64_t base, const uint8_t node[16],
                          wr_log_previewed *looked) {
    for (;; base += file_bytes) {
        wr_commit_head head;
        int fd = visitor->open(context, base);
        if (fd < 0) return fd == -ENOENT ? 0 : -fd;
        close(fd);
        int error = wr_log_first(visitor, context, file_bytes, base, NULL, &head);
        if (error && error != ENOENT) return error;
        if (error || !memcmp(head.origin.node, node, sizeof head.origin.node)) continue;
        looked->foreign = true;
        looked->position = base;
        looked->stranger = head.origin;
        return 0;
    }
}

/* Is the commit record of `last` in n bytes that end at a position, with nothing behind it but the end of its file? */
static bool ends_with(const uint8_t *bytes, uint64_t n, uint64_t position, bool file_ends, const wr_commit_head *last) {
    uint8_t magic[4];
    wr_put32(magic, WR_RECORD_MAGIC_V1);
    const uint8_t *found;
    for (uint64_t at = 0; at + WR_LOG_HEAD_AT_MAGIC < n; at++) {
        wr_commit_head head;
        wr_record blank;
        const uint8_t *marks;
        if (!(found = memmem(bytes + at + WR_LOG_HEAD_AT_MAGIC, n - at - WR_LOG_HEAD_AT_MAGIC, magic, sizeof magic))) return false;
        at = (uint64_t)(found - bytes) - WR_LOG_HEAD_AT_MAGIC;
        if (!wr_commit_record_read(bytes + at, n - at, position - n + at, &head, &marks)) continue;
        if (head.number != last->number || head.origin.epoch != last->origin.epoch || memcmp(head.origin.node, last->origin.node, sizeof head.origin.node))
            continue;
        const uint64_t end = at + wr_commit_record_bytes(head.marks_n);
        if (end == n) return true;
        if (file_ends && wr_record_scan(bytes + end, n - end, position - n + end, 0, &blank) == WR_SCAN_BLANK && blank.size == n - end) return true;
    }
    return false;
}

/* Does the log have the commit that the checkpoint ends with? Before the end of a file a blank record may be long. */
static int look_at_end(int fd, uint64_t file_bytes, uint64_t position, const wr_commit_head *last, bool *there) {
    const uint64_t base = (position - 1) / file_bytes * file_bytes, whole = position - base;
    const bool file_ends = whole == file_bytes;
    uint8_t *bytes = NULL;
    int error = 0;
    for (uint64_t size = READ_BYTES;; size *= 8) {
        uint64_t wanted = size < whole ? size : whole, n = 0;
        uint8_t *more = realloc(bytes, wanted);
        error = more ? wr_read_up_to(fd, more, wanted, position - base - wanted, &n) : ENOMEM;
        if (more) bytes = more;
        *there = !error && n == wanted && ends_with(bytes, n, position, file_ends, last);
        if (error || *there || n < wanted || !file_ends || wanted == whole || size >= WR_COMMIT_BYTES_MAX) break;
    }
    free(bytes);
    return error;
}

int wr_log_preview(const wr_log_visitor *visitor, void *context, uint64_t file_bytes, uint64_t first, uint64_t position, const wr_commit_head *last,
                wr_log_previewed *looked) {
    const uint8_t *node = last->origin.node;
    const uint64_t begin = last->number && position > first ? position / file_bytes * file_bytes : first;
    wr_commit_head head;
    *looked = (wr_log_previewed){0};
    int error = wr_log_first(visitor, context, file_bytes, first, NULL, &head);
    looked->empty = error == ENOENT;
    if (error && error != ENOENT) return error;
    if (!error && memcmp(head.origin.node, node, sizeof head.origin.node)) {
        looked->foreign = true;
        looked->position = first;
        looked->stranger = head.origin;
        return 0;
    }
    error = look_at_begins(visitor, context, file_bytes, begin, node, looked);
    if (error || looked->foreign || !last->number || !position) return error;
    int fd = visitor->open(context, (position - 1) / file_bytes * file_bytes);
    bool there = false;
    if (fd < 0 && fd != -ENOENT) return -fd;
    if (fd >= 0) {
        error = look_at_end(fd, file_bytes, position, last, &there);
        close(fd);
    }
    looked->shorter = !there;
    if (!there) looked->position = position;
    return error;
}
