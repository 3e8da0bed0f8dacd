/* The checkpoint of the derived state. What it is: topics/checkpoint.h. */
#define _GNU_SOURCE
#include "topics/checkpoint.h"
#include "kernel/data_files.h"
#include "kernel/bytes.h"
#include "kernel/frame.h"
#include "kernel/read.h"
#include "topics/folder.h"
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#define HEAD(field) (WR_CHECKPOINT_AT_##field)
#define ROW(field) (WR_CHECKPOINT_ROW_AT_##field)
#define BEHIND_CRC (HEAD(CRC) + 4) /* what the checksum is of, beside the magic and the version before it */
#define BYTES_MAX (1ull << 32)     /* of a file: more rows than there are */
#define V1_HEAD_BYTES 132          /* version 1 ends before `first` … */
#define V1_ROW_BYTES 32            /* … and its rows before `bytes` */

static const char MAGIC[] = WR_CHECKPOINT_MAGIC;
_Static_assert(sizeof MAGIC - 1 == 8, "the magic");

const char *wr_checkpoint_word(wr_checkpoint_kind kind) {
    static const char *const words[WR_CHECKPOINT_KINDS] = {"good", "none", "damaged", "newer", "foreign", "settings", "older"};
    return (uint32_t)kind < WR_CHECKPOINT_KINDS ? words[kind] : "unknown";
}

_Static_assert(V1_HEAD_BYTES == HEAD(FIRST) && V1_ROW_BYTES == ROW(BYTES), "what version 2 has more");

static uint64_t head_bytes(uint32_t version) { return version == 1 ? V1_HEAD_BYTES : WR_CHECKPOINT_SIZE; }
static uint64_t row_bytes(uint32_t version) { return version == 1 ? V1_ROW_BYTES : WR_CHECKPOINT_ROW_SIZE; }

static uint64_t bytes_of(uint32_t version, uint64_t marks_n, uint64_t rows_n) {
    return head_bytes(version) + marks_n * WR_COMMIT_MARK_SIZE + rows_n * row_bytes(version);
}

static uint32_t crc_of(const uint8_t *bytes, uint64_t n) {
    return wr_crc32c(wr_crc32c(0, bytes, HEAD(CRC)), bytes + BEHIND_CRC, n - BEHIND_CRC);
}

/* ---- write ---- */

static void put_head(uint8_t *to, const wr_checkpoint *c) {
    memcpy(to + HEAD(MAGIC), MAGIC, 8);
    wr_put32(to + HEAD(VERSION), WR_CHECKPOINT_VERSION);
    memcpy(to + HEAD(NODE), c->origin.node, 16);
    wr_put64(to + HEAD(EPOCH), c->origin.epoch);
    wr_put64(to + HEAD(NUMBER), c->number);
    wr_put64(to + HEAD(POSITION), c->position);
    wr_put64(to + HEAD(STORE_TIMESTAMP), c->store_ms);
    memcpy(to + HEAD(BOOT), c->boot, 16);
    wr_put32(to + HEAD(CONSUME_QUEUE_ENTRIES), c->consume_queue_entries);
    wr_put32(to + HEAD(INDEX_SLOTS), c->index_slots);
    wr_put32(to + HEAD(INDEX_ENTRIES), c->index_entries);
    wr_put32(to + HEAD(INDEX_COUNT), c->index.count);
    wr_put64(to + HEAD(INDEX_BEGIN), (uint64_t)c->index.begin);
    memcpy(to + HEAD(INDEX_NAME), c->index.name, strnlen(c->index.name, WR_INDEX_NAME_DIGITS));
    wr_put32(to + HEAD(MARKS_N), c->marks_n);
    wr_put32(to + HEAD(ROWS_N), c->rows_n);
    wr_put64(to + HEAD(FIRST), c->first);
}

static void put_rest(uint8_t *to, const wr_checkpoint *c) {
    for (uint32_t i = 0; i < c->marks_n; i++, to += WR_COMMIT_MARK_SIZE) {
        wr_put64(to + WR_COMMIT_MARK_AT_CLIENT_EPOCH, c->marks[i].client_epoch);
        wr_put64(to + WR_COMMIT_MARK_AT_SEQUENCE, c->marks[i].sequence);
    }
    for (uint32_t i = 0; i < c->rows_n; i++, to += WR_CHECKPOINT_ROW_SIZE) {
        wr_put32(to + ROW(TOPIC), c->rows[i].topic);
        wr_put32(to + ROW(QUEUE), c->rows[i].queue);
        wr_put64(to + ROW(MINIMUM), c->rows[i].minimum);
        wr_put64(to + ROW(NEXT), c->rows[i].next);
        wr_put64(to + ROW(DURABLE), c->rows[i].durable);
        wr_put64(to + ROW(BYTES), c->rows[i].bytes);
        wr_put64(to + ROW(FROM), c->rows[i].from);
    }
}

static int write_file(int folder, const char *name, const uint8_t *bytes, uint64_t n) {
    int fd = wr_data_open(folder, name, O_WRONLY | O_CREAT | O_TRUNC, WR_FOLDER_FILE_MODE), error = 0;
    if (fd < 0) return errno;
    while (!error && n) {
        ssize_t done = write(fd, bytes, n);
        if (done < 0 && errno == EINTR) continue;
        if (done <= 0) error = done < 0 ? errno : EIO;
        else bytes += done, n -= (uint64_t)done;
    }
    if (!error && fsync(fd) != 0) error = errno;
    close(fd);
    return error;
}

int wr_checkpoint_write(int folder, const char *name, const wr_checkpoint *c) {
    char new_name[NAME_MAX + 1];
    uint64_t n = bytes_of(WR_CHECKPOINT_VERSION, c->marks_n, c->rows_n);
    int length = snprintf(new_name, sizeof new_name, "%s.new", name);
    if (length < 0 || length >= (int)sizeof new_name) return ENAMETOOLONG;
    uint8_t *bytes = calloc(1, n);
    if (!bytes) return ENOMEM;
    put_head(bytes, c);
    put_rest(bytes + WR_CHECKPOINT_SIZE, c);
    wr_put32(bytes + HEAD(CRC), crc_of(bytes, n));
    int error = write_file(folder, new_name, bytes, n);
    free(bytes);
    if (!error) error = wr_data_rename(folder, new_name, name);
    if (error) wr_data_unlink(folder, new_name);
    return error ? error : wr_folder_sync(folder, ".");
}

/* ---- read ---- */

/* All of a file. NULL with *kind or *error. */
static uint8_t *read_file(int folder, const char *name, uint64_t *n, wr_checkpoint_kind *kind, int *error) {
    struct stat found;
    *kind = WR_CHECKPOINT_NONE;
    *error = 0;
    int fd = wr_data_open(folder, name, O_RDONLY, 0);
    if (fd >= 0 || errno == EISDIR) *kind = WR_CHECKPOINT_DAMAGED;
    if (fd < 0) {
        *error = errno == ENOENT || errno == EISDIR ? 0 : errno;
        return NULL;
    }
    if (fstat(fd, &found) != 0) *error = errno;
    uint8_t *bytes = NULL;
    *n = *error ? 0 : (uint64_t)found.st_size;
    if (*n >= V1_HEAD_BYTES && *n <= BYTES_MAX && !(bytes = malloc(*n))) *error = ENOMEM;
    uint64_t got = 0;
    if (bytes && ((*error = wr_read_up_to(fd, bytes, *n, 0, &got)) || got < *n)) { /* shorter: somebody cut it */
        free(bytes);
        bytes = NULL;
    }
    close(fd);
    return bytes;
}

static wr_checkpoint_kind judge(const uint8_t *bytes, uint64_t n, const wr_checkpoint *wanted) {
    if (memcmp(bytes + HEAD(MAGIC), MAGIC, 8)) return WR_CHECKPOINT_DAMAGED;
    if (wr_get32(bytes + HEAD(CRC)) != crc_of(bytes, n)) return WR_CHECKPOINT_DAMAGED;
    const uint32_t version = wr_get32(bytes + HEAD(VERSION));
    if (!version || version > WR_CHECKPOINT_VERSION) return WR_CHECKPOINT_NEWER;
    if (n < head_bytes(version) || n != bytes_of(version, wr_get32(bytes + HEAD(MARKS_N)), wr_get32(bytes + HEAD(ROWS_N)))) return WR_CHECKPOINT_DAMAGED;
    if (memcmp(bytes + HEAD(NODE), wanted->origin.node, 16)) return WR_CHECKPOINT_FOREIGN;
    if (version < WR_CHECKPOINT_VERSION) return WR_CHECKPOINT_OLDER;
    bool same = wr_get32(bytes + HEAD(CONSUME_QUEUE_ENTRIES)) == wanted->consume_queue_entries &&
                wr_get32(bytes + HEAD(INDEX_SLOTS)) == wanted->index_slots && wr_get32(bytes + HEAD(INDEX_ENTRIES)) == wanted->index_entries;
    return same ? WR_CHECKPOINT_GOOD : WR_CHECKPOINT_SETTINGS;
}

static void get_head(const uint8_t *from, wr_checkpoint *c) {
    c->first = wr_get32(from + HEAD(VERSION)) == 1 ? 0 : wr_get64(from + HEAD(FIRST));
    c->origin.epoch = wr_get64(from + HEAD(EPOCH));
    c->number = wr_get64(from + HEAD(NUMBER));
    c->position = wr_get64(from + HEAD(POSITION));
    c->store_ms = wr_get64(from + HEAD(STORE_TIMESTAMP));
    memcpy(c->boot, from + HEAD(BOOT), 16);
    c->index = (wr_index_mark){.count = wr_get32(from + HEAD(INDEX_COUNT)), .begin = (int64_t)wr_get64(from + HEAD(INDEX_BEGIN))};
    memcpy(c->index.name, from + HEAD(INDEX_NAME), WR_INDEX_NAME_DIGITS);
    c->marks_n = wr_get32(from + HEAD(MARKS_N));
    c->rows_n = wr_get32(from + HEAD(ROWS_N));
}

static int get_rest(const uint8_t *from, wr_checkpoint *c) {
    c->marks = calloc((uint64_t)c->marks_n + 1, sizeof *c->marks);
    c->rows = calloc((uint64_t)c->rows_n + 1, sizeof *c->rows);
    if (!c->marks || !c->rows) {
        wr_checkpoint_free(c);
        return ENOMEM;
    }
    for (uint32_t i = 0; i < c->marks_n; i++) c->marks[i] = wr_commit_mark_read(from, i);
    from += (uint64_t)c->marks_n * WR_COMMIT_MARK_SIZE;
    for (uint32_t i = 0; i < c->rows_n; i++, from += WR_CHECKPOINT_ROW_SIZE)
        c->rows[i] = (wr_checkpoint_row){.topic = wr_get32(from + ROW(TOPIC)),
                                         .queue = wr_get32(from + ROW(QUEUE)),
                                         .minimum = wr_get64(from + ROW(MINIMUM)),
                                         .next = wr_get64(from + ROW(NEXT)),
                                         .durable = wr_get64(from + ROW(DURABLE)),
                                         .bytes = wr_get64(from + ROW(BYTES)),
                                         .from = wr_get64(from + ROW(FROM))};
    return 0;
}

int wr_checkpoint_read(int folder, const char *name, wr_checkpoint *to, wr_checkpoint_kind *kind) {
    uint64_t n;
    int error;
    uint8_t *bytes = read_file(folder, name, &n, kind, &error);
    to->marks = NULL;
    to->rows = NULL;
    to->marks_n = to->rows_n = 0;
    if (!bytes) return error;
    *kind = judge(bytes, n, to);
    if (*kind == WR_CHECKPOINT_GOOD || *kind == WR_CHECKPOINT_SETTINGS || *kind == WR_CHECKPOINT_OLDER) get_head(bytes, to);
    if (*kind == WR_CHECKPOINT_GOOD) error = get_rest(bytes + WR_CHECKPOINT_SIZE, to);
    else to->marks_n = to->rows_n = 0;
    free(bytes);
    return error;
}

void wr_checkpoint_free(wr_checkpoint *c) {
    free(c->marks);
    free(c->rows);
    c->marks = NULL;
    c->rows = NULL;
    c->marks_n = c->rows_n = 0;
}
