/* A quick look at derived files. What it is: topics/presence.h. */
#define _GNU_SOURCE
#include "topics/presence.h"
#include "kernel/data_files.h"
#include "kernel/bytes.h"
#include "kernel/read.h"
#include "topics/folder.h"
#include "topics/index_link.h"
#include "topics/key_index.h"
#include "topics/queue_files.h"
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

void wr_presence_begin(wr_presence *p, int root, uint64_t log_file_bytes, uint64_t position) {
    *p = (wr_presence){.root = root, .log_file_bytes = log_file_bytes, .position = position};
    wr_log_reader_init(&p->log, root, log_file_bytes);
}

void wr_presence_end(wr_presence *p) { wr_log_reader_free(&p->log); }

static void note(wr_presence *p, const char *file, const char *reason) {
    if (p->found.files_n++) return;
    snprintf(p->found.file, sizeof p->found.file, "%.*s", (int)sizeof p->found.file - 1, file);
    p->found.reason = reason;
}

/* What is wrong with a file by its name and size; NULL: nothing, or *error. */
static const char *look_at(const wr_presence *p, const char *path, uint64_t bytes, int *error) {
    struct stat found;
    *error = wr_data_stat(p->root, path, &found);
    if (*error == ENOENT || *error == ENOTDIR) {
        *error = 0;
        return "is missing";
    }
    if (*error) return NULL;
    if (!S_ISREG(found.st_mode)) return "is no file";
    return (uint64_t)found.st_size >= bytes ? NULL : "has another size: it was cut, or replaced"; /* of what lies behind it nothing is read */
}

/* Readers will meet the same, and be told: no reason not to serve. */
static int pass_by(wr_presence *p, const char *file, int error) {
    if (error && error != ENOMEM) note(p, file, "cannot be read");
    return error == ENOMEM ? error : 0;
}

/* ---- consume queues ---- */

/* Does a unit lead to its message? Where the log itself holds no record nothing is said: that may be its own damage. */
static int leads(wr_presence *p, uint32_t queue, uint64_t offset, const wr_unit *unit, const char **wrong) {
    const uint8_t *head;
    uint64_t n;
    if (wr_unit_is_empty(unit)) return 0;
    if (!unit->size) {
        *wrong = "ends in a unit of zeros";
        return 0;
    }
    if (unit->physical_offset >= p->position || unit->size > p->position - unit->physical_offset) {
        *wrong = "ends in a unit that leads behind the log's end";
        return 0;
    }
    int error = wr_log_reader_peek(&p->log, unit->physical_offset, WR_LOG_HEAD_SIZE, &head, &n);
    if (error || n < WR_LOG_HEAD_SIZE) return error == ENOENT ? 0 : error;
    if (wr_get64(head + WR_LOG_HEAD_AT_PHYSICAL_OFFSET) != unit->physical_offset) return 0;
    if (wr_get32(head + WR_LOG_HEAD_AT_SIZE) != unit->size || wr_get32(head + WR_LOG_HEAD_AT_QUEUE_ID) != queue ||
        wr_get64(head + WR_LOG_HEAD_AT_QUEUE_OFFSET) != offset)
        *wrong = "ends in a unit that leads to another message";
    return 0;
}

static int look_at_last(wr_presence *p, const char *folder, const char *path, uint32_t queue, uint64_t offset) {
    wr_queue_reader *reader = wr_queue_reader_new(p->root, folder, p->consume_queue_entries);
    const char *wrong = NULL;
    wr_unit unit;
    uint32_t found;
    if (!reader) return ENOMEM;
    int error = wr_queue_reader_all(reader, offset, &unit, 1, &found);
    wr_queue_reader_free(reader);
    if (!error && found) error = leads(p, queue, offset, &unit, &wrong);
    if (!error && wrong) note(p, path, wrong);
    return error;
}

int wr_presence_queue(wr_presence *p, const char *folder, uint32_t queue, uint64_t minimum, uint64_t durable) {
    const uint64_t entries = p->consume_queue_entries;
    const char *wrong = NULL;
    char path[PATH_MAX] = "";
    int error = 0;
    if (minimum >= durable || durable > WR_QUEUE_UNITS_MAX) return 0;
    for (uint64_t base = minimum - minimum % entries; !error && base < durable; base += entries) {
        int n = snprintf(path, sizeof path, "%s/%020llu", folder, (unsigned long long)(base * WR_CONSUME_QUEUE_UNIT_SIZE));
        if (n < 0 || n >= (int)sizeof path) return ENAMETOOLONG;
        wrong = look_at(p, path, entries * WR_CONSUME_QUEUE_UNIT_SIZE, &error);
        if (wrong) note(p, path, wrong);
    }
    if (!error && !wrong) error = look_at_last(p, folder, path, queue, durable - 1);
    return pass_by(p, path, error);
}

/* ---- the key index ---- */

static bool is_listed(const wr_folder_list *list, const char *name) {
    for (uint32_t i = 0; i < list->n; i++)
        if (!strcmp(list->names[i], name)) return true;
    return false;
}

static int look_at_link(wr_presence *p, const char *folder, const wr_folder_list *list, const char *name, uint64_t first) {
    const uint64_t at = wr_key_index_bytes(p->index_slots, 0);
    uint8_t bytes[WR_KEY_INDEX_LINK_SIZE];
    char path[PATH_MAX];
    wr_index_link link;
    int error, n = snprintf(path, sizeof path, "%s/%s", folder, name);
    if (n < 0 || n >= (int)sizeof path) return ENAMETOOLONG;
    const char *wrong = look_at(p, path, wr_key_index_bytes(p->index_slots, p->index_entries), &error);
    if (error) return error;
    if (!wrong) {
        int fd = wr_data_open(p->root, path, O_RDONLY, 0);
        if (fd < 0) return errno;
        error = wr_read_all(fd, bytes, sizeof bytes, at);
        close(fd);
        if (error && error != EUCLEAN) return error;
        if (error || !wr_index_link_get(bytes, name, &link)) wrong = "does not say which file comes before it: it is damaged, or another one";
    }
    if (wrong) {
        note(p, path, wrong);
        return 0;
    }
    if (!*link.previous || link.end < first || is_listed(list, link.previous)) return 0;
    snprintf(path, sizeof path, "%s/%s", folder, link.previous);
    note(p, path, "is missing");
    return 0;
}

int wr_presence_index(wr_presence *p, const char *folder, uint64_t first) {
    wr_folder_list list;
    int error = wr_folder_read(p->root, folder, WR_INDEX_NAME_DIGITS, &list);
    for (uint32_t i = 0; !error && i < list.n; i++) error = look_at_link(p, folder, &list, list.names[i], first);
    wr_folder_list_free(&list);
    return pass_by(p, folder, error);
}
