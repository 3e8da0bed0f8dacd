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

#define READ_BYTES (64ull << 10) /* more than a commit record takes, and a blank one */
#define PART_BYTES (1ull << 20)

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

/* Do the n bytes that end at a position contain the commit record of `last`, with only the end of its file after it,
 * `rest` bytes after them? */
static bool ends_with(const uint8_t *bytes, uint64_t n, uint64_t position, uint64_t rest, bool file_ends, const wr_commit_head *last) {
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
        if (end == n && !rest) return true;
        if (file_ends && wr_record_scan(bytes + end, n - end, position - n + end, 0, &blank) == WR_SCAN_BLANK && blank.size == n - end + rest)
            return true;
    }
    return false;
}

/* Does the log have the commit that the checkpoint ends with? Before the end of a file the blank record may be nearly as long as the file
 * (log_loss.py), so the file is read backwards, in parts that overlap by more than a commit record. */
static int look_at_end(int fd, uint64_t file_bytes, uint64_t position, const wr_commit_head *last, bool *there) {
    const uint64_t base = (position - 1) / file_bytes * file_bytes, whole = position - base;
    const bool file_ends = whole == file_bytes;
    const uint64_t most = file_ends ? PART_BYTES : READ_BYTES;
    uint8_t *bytes = malloc(most);
    int error = bytes ? 0 : ENOMEM;
    for (uint64_t end = whole; !error;) {
        const uint64_t wanted = most < end ? most : end;
        uint64_t n = 0;
        error = wr_read_up_to(fd, bytes, wanted, end - wanted, &n);
        *there = !error && n == wanted && ends_with(bytes, n, base + end, whole - end, file_ends, last);
        if (*there || n < wanted || !file_ends || wanted == end) break;
        end -= wanted - READ_BYTES;
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

static int pass_by(void *context, const uint8_t *bytes, uint64_t n, const wr_commit_head *head, const uint8_t *marks) {
    (void)context, (void)bytes, (void)n, (void)head, (void)marks;
    return 0;
}

int wr_log_preview_all(const wr_log_visitor *visitor, void *context, uint64_t file_bytes, uint64_t first, uint64_t position, const wr_commit_head *last,
                       wr_log_previewed *looked) {
    const wr_log_visitor walker = {visitor->open, pass_by};
    wr_commit_head before = {.origin = last->origin};
    wr_log_end end;
    int error = wr_log_before(&walker, context, file_bytes, first, &before);
    if (!error) error = wr_log_walk(&walker, context, file_bytes, first, &before, &end);
    if (error) return error == ENOENT ? 0 : error; /* no commit in the first file: the preview has said what that means */
    looked->damaged = end.position < position;
    if (looked->damaged) looked->position = end.position;
    return 0;
}
