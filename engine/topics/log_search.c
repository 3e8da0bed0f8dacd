/* Files of the commit log, and the next commit. What it is: topics/log_search.h. */
#define _GNU_SOURCE
#include "topics/log_search.h"
#include "kernel/data_files.h"
#include "kernel/bytes.h"
#include "topics/folder.h"
#include "topics/record.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PART_BYTES (4u << 20)

int wr_log_open_file(int root, uint64_t base, bool writes) {
    char path[64];
    snprintf(path, sizeof path, "commitlog/%020llu", (unsigned long long)base);
    int fd = wr_data_open(root, path, writes ? O_RDWR : O_RDONLY, 0);
    if (fd < 0) return errno == EISDIR ? -ENOENT : -errno; /* there is no such file */
    return fd;
}

/* A later commit record of the same node in n bytes at a position. */
static bool look(const uint8_t *bytes, uint64_t n, uint64_t position, const wr_commit_head *last, wr_commit_head *head, uint64_t *at) {
    uint8_t magic[4];
    wr_put32(magic, WR_RECORD_MAGIC_V1);
    const uint8_t *found;
    for (uint64_t i = 0; i + WR_LOG_HEAD_AT_MAGIC < n; i++) {
        const uint8_t *marks;
        if (!(found = memmem(bytes + i + WR_LOG_HEAD_AT_MAGIC, n - i - WR_LOG_HEAD_AT_MAGIC, magic, sizeof magic))) return false;
        i = (uint64_t)(found - bytes) - WR_LOG_HEAD_AT_MAGIC;
        if (!wr_commit_record_read(bytes + i, n - i, position + i, head, &marks)) continue;
        if (memcmp(head->origin.node, last->origin.node, sizeof head->origin.node) || head->number <= last->number) continue;
        *at = position + i;
        return true;
    }
    return false;
}

static int look_in_file(int fd, uint64_t base, uint64_t file_bytes, uint64_t position, const wr_commit_head *last, uint8_t *bytes, wr_commit_head *head, uint64_t *at) {
    const uint64_t overlap = wr_commit_record_bytes(WR_COMMIT_MARKS_MAX);
    for (;;) {
        off_t data = lseek(fd, (off_t)(position - base), SEEK_DATA);
        if (data < 0) return errno == ENXIO ? ENOENT : errno;
        position = base + (uint64_t)data;
        if ((uint64_t)data >= file_bytes) return ENOENT; /* somebody appended that to the file */
        const uint64_t left = file_bytes - (uint64_t)data;
        ssize_t n = pread(fd, bytes, left < PART_BYTES ? left : PART_BYTES, data);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return errno;
        if (look(bytes, (uint64_t)n, position, last, head, at)) return 0;
        if ((uint64_t)n <= overlap) return ENOENT;
        position += (uint64_t)n - overlap;
    }
}

int wr_log_search(const wr_log_visitor *visitor, void *context, uint64_t file_bytes, uint64_t position, const wr_commit_head *last,
                  wr_log_place *place) {
    uint8_t *bytes = malloc(PART_BYTES);
    wr_commit_head head;
    uint64_t at = 0;
    int error = bytes ? ENOENT : ENOMEM;
    for (uint64_t from = position; error == ENOENT;) {
        const uint64_t base = from / file_bytes * file_bytes;
        int fd = visitor->open(context, base);
        if (fd < 0) {
            error = -fd;
            break;
        }
        error = look_in_file(fd, base, file_bytes, from, last, bytes, &head, &at);
        close(fd);
        from = base + file_bytes;
    }
    free(bytes);
    if (error) return error;
    const uint64_t end = at + wr_commit_record_bytes(head.marks_n);
    *place = (wr_log_place){.position = end, .after = head, .search = end};
    if (head.from > position) { /* all of its commit is there, sound or not */
        place->position = head.from;
        place->after.number--;
        place->after.origin.epoch = last->origin.epoch;
    }
    return 0;
}
