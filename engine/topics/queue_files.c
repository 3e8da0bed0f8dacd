/* Consume queues as files. What they are: topics/queue_files.h. */
#define _GNU_SOURCE
#include "topics/queue_files.h"
#include "kernel/data_files.h"
#include "kernel/protocol.h"
#include "topics/folder.h"
#include "topics/mapped_file.h"
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define UNIT_BYTES WR_CONSUME_QUEUE_UNIT_SIZE
#define READ_UNITS 204 /* of one read: not quite a page */

/* A file that is written, or was, and is to be synced. */
typedef struct written {
    wr_mapped_file file;
    uint64_t base;       /* its first unit */
    uint64_t from, to;   /* bytes that are not synced */
    struct written *next;
} written;

struct wr_queue_files {
    int root;
    uint32_t file_entries;
    int failed;      /* of a sync */
    bool unnamed;    /* a name is not synced */
    written *files;  /* the first is the one at hand; NULL: none */
    uint64_t from, to; /* its bytes that surely have blocks */
    uint64_t behind; /* the highest unit that was put, plus 1 */
    char folder[];
};

static inline uint64_t file_bytes(uint32_t file_entries) { return (uint64_t)file_entries * UNIT_BYTES; }

/* Path of the file of a unit that begins one. */
static int path_of(char path[PATH_MAX], const char *folder, uint64_t base) {
    int n = snprintf(path, PATH_MAX, "%s/%020llu", folder, (unsigned long long)(base * UNIT_BYTES));
    return n < 0 || n >= PATH_MAX ? ENAMETOOLONG : 0;
}

/* ---- the writer ---- */

wr_queue_files *wr_queue_files_new(int root, const char *folder, uint32_t file_entries) {
    assert(file_entries);
    size_t n = strlen(folder) + 1;
    wr_queue_files *f = calloc(1, sizeof *f + n);
    if (!f) return NULL;
    f->root = root;
    f->file_entries = file_entries;
    memcpy(f->folder, folder, n);
    return f;
}

static void drop_first(wr_queue_files *f) {
    written *w = f->files;
    f->files = w->next;
    wr_mapped_close(&w->file);
    free(w);
    f->from = f->to = 0;
}

void wr_queue_files_free(wr_queue_files *f) {
    if (!f) return;
    while (f->files) drop_first(f);
    free(f);
}

static int open_file(wr_queue_files *f, const char *path, wr_mapped_file *file) {
    bool made;
    int error = wr_mapped_open(file, f->root, path, file_bytes(f->file_entries), &made);
    if (error == ENOENT && !(error = wr_folder_make(f->root, f->folder)))
        error = wr_mapped_open(file, f->root, path, file_bytes(f->file_entries), &made);
    f->unnamed = true; /* also one that is there: who made it may have been killed before a sync */
    return error;
}

/* Have the file of a unit at hand. */
static int turn_to(wr_queue_files *f, uint64_t base) {
    written **at = &f->files;
    while (*at && (*at)->base != base) at = &(*at)->next;
    written *w = *at;
    if (w) {
        *at = w->next;
    } else {
        char path[PATH_MAX];
        int error = path_of(path, f->folder, base);
        if (error) return error;
        if (!(w = calloc(1, sizeof *w))) return ENOMEM;
        if ((error = open_file(f, path, &w->file))) {
            free(w);
            return error;
        }
        w->base = base;
    }
    if (f->files && f->files->to == f->files->from) drop_first(f); /* nothing to sync */
    w->next = f->files;
    f->files = w;
    f->from = f->to = 0;
    return 0;
}

static uint64_t step(uint64_t used) { return used < 64u << 10 ? 4u << 10 : used < 1u << 20 ? 64u << 10 : 1u << 20; }

/* Have blocks for bytes of the file at hand, and some more if they go on where the last ones ended. */
static int have(wr_queue_files *f, uint64_t at, uint64_t end) {
    char path[PATH_MAX];
    const uint64_t all = file_bytes(f->file_entries);
    if (at < f->from || at > f->to || f->from == f->to) f->from = f->to = at & ~(uint64_t)(WR_PAGE_BYTES - 1);
    uint64_t least = (end + WR_PAGE_BYTES - 1) & ~(uint64_t)(WR_PAGE_BYTES - 1), to = f->to + step(f->to);
    if (to < least) to = least;
    if (to > all) to = all;
    if (least > all) least = all;
    int error = path_of(path, f->folder, f->files->base);
    if (!error) error = wr_mapped_have(&f->files->file, f->root, path, f->to, to);
    if ((error == ENOSPC || error == EDQUOT) && least < to) error = wr_mapped_have(&f->files->file, f->root, path, f->to, to = least);
    if (!error) f->to = to;
    return error;
}

typedef struct {
    uint8_t *base;
    uint64_t n, physical_offset;
    int64_t tags_code;
    uint32_t size;
} a_put;

static void store_unit(void *context) {
    const a_put *put = context;
    if (put->size) wr_unit_put(put->base, put->n, put->physical_offset, put->size, put->tags_code);
    else wr_unit_put(put->base, put->n, 0, WR_UNIT_EMPTY, 0);
}

/* Why a unit could not be stored into the file at hand. */
static int why(const wr_queue_files *f) {
    char path[PATH_MAX];
    int error = path_of(path, f->folder, f->files->base);
    return error ? error : wr_mapped_why(&f->files->file, f->root, path);
}

int wr_queue_files_put(wr_queue_files *f, uint64_t n, uint64_t physical_offset, uint32_t size, int64_t tags_code) {
    if (f->failed) return f->failed;
    if (n >= WR_QUEUE_UNITS_MAX) return EOVERFLOW;
    uint64_t base = n - n % f->file_entries, at = (n - base) * UNIT_BYTES;
    int error = 0;
    if (!f->files || f->files->base != base) error = turn_to(f, base);
    if (!error && (at < f->from || at + UNIT_BYTES > f->to)) error = have(f, at, at + UNIT_BYTES);
    if (error) return error;
    written *w = f->files;
    if (!wr_mapped_try(&w->file, store_unit, &(a_put){w->file.base, n - base, physical_offset, tags_code, size})) return why(f);
    if (w->from == w->to) w->from = w->to = at;
    if (at < w->from) w->from = at;
    if (at + UNIT_BYTES > w->to) w->to = at + UNIT_BYTES;
    if (n >= f->behind) f->behind = n + 1;
    return 0;
}

/* All is on stable storage: the files that are full go. */
static void settle(wr_queue_files *f) {
    for (written *w = f->files; w; w = w->next) w->from = w->to = 0;
    while (f->files && f->files->next) { /* the one at hand stays */
        written *w = f->files->next;
        f->files->next = w->next;
        wr_mapped_close(&w->file);
        free(w);
    }
    f->unnamed = false;
}

int wr_queue_files_sync(wr_queue_files *f, uint64_t *durable) {
    for (written *w = f->files; w && !f->failed; w = w->next)
        f->failed = wr_sync_error(wr_mapped_sync(&w->file, w->from, w->to));
    if (!f->failed && f->unnamed) f->failed = wr_sync_error(wr_folder_sync(f->root, f->folder));
    if (!f->failed) settle(f);
    *durable = f->behind;
    return f->failed;
}

int wr_queue_files_synced(wr_queue_files *f, int error) {
    if (!f->failed) f->failed = wr_sync_error(error);
    if (!f->failed) settle(f);
    return f->failed;
}

/* What is removed needs no sync, and nothing is put there again. */
static void forget_file(wr_queue_files *f, uint64_t base) {
    written **at = &f->files;
    while (*at && (*at)->base != base) at = &(*at)->next;
    if (!*at) return;
    written *w = *at;
    if (w == f->files) f->from = f->to = 0;
    *at = w->next;
    wr_mapped_close(&w->file);
    free(w);
}

/* The unit that begins the file of a name. false: it is no place of a file. */
static bool base_of(const char *name, uint32_t file_entries, uint64_t *base) {
    unsigned long long at;
    errno = 0;
    at = strtoull(name, NULL, 10);
    *base = at / UNIT_BYTES;
    return !errno && at <= INT64_MAX && at % file_bytes(file_entries) == 0;
}

int wr_queue_files_remove(wr_queue_files *f, uint64_t minimum, uint64_t *removed) {
    wr_folder_list list;
    int error = wr_folder_read(f->root, f->folder, WR_FOLDER_NAME_MAX, &list);
    *removed = 0;
    for (uint32_t i = 0; !error && i + 1 < list.n; i++) {
        char path[PATH_MAX];
        uint64_t base;
        if (!base_of(list.names[i], f->file_entries, &base)) continue;
        if (base + f->file_entries > minimum) break;
        if ((error = path_of(path, f->folder, base))) break;
        forget_file(f, base);
        error = wr_data_unlink(f->root, path);
        if (!error) ++*removed;
        else if (error == ENOENT) error = 0;
    }
    wr_folder_list_free(&list);
    return error;
}

/* ---- anybody ---- */

int wr_queue_files_first(int root, const char *folder, uint32_t file_entries, uint64_t *first) {
    wr_folder_list list;
    int error = wr_folder_read(root, folder, WR_FOLDER_NAME_MAX, &list);
    uint32_t i = 0;
    while (!error && i < list.n && !base_of(list.names[i], file_entries, first)) i++;
    if (!error && i == list.n) error = ENOENT;
    wr_folder_list_free(&list);
    return error;
}

struct wr_queue_reader {
    int root, fd; /* fd −1: none is open */
    uint32_t file_entries;
    uint64_t base;
    _Alignas(8) uint8_t bytes[READ_UNITS * UNIT_BYTES];
    char folder[];
};

wr_queue_reader *wr_queue_reader_new(int root, const char *folder, uint32_t file_entries) {
    assert(file_entries);
    size_t n = strlen(folder) + 1;
    wr_queue_reader *r = calloc(1, sizeof *r + n);
    if (!r) return NULL;
    r->root = root;
    r->fd = -1;
    r->file_entries = file_entries;
    memcpy(r->folder, folder, n);
    return r;
}

void wr_queue_reader_drop(wr_queue_reader *r) {
    if (r->fd >= 0) close(r->fd);
    r->fd = -1;
}

void wr_queue_reader_free(wr_queue_reader *r) {
    if (!r) return;
    wr_queue_reader_drop(r);
    free(r);
}

/* 0, also if there is none: then fd is −1. */
static int open_base(wr_queue_reader *r, uint64_t base) {
    char path[PATH_MAX];
    wr_queue_reader_drop(r);
    int error = path_of(path, r->folder, base);
    if (error) return error;
    r->fd = wr_data_open(r->root, path, O_RDONLY, 0);
    r->base = base;
    return r->fd < 0 && errno != ENOENT && errno != EISDIR && errno != ENOTDIR ? errno : 0;
}

/* Units of the open file, up to the first that is not there, or (`empty`) that the file has no place for. */
static int read_units(wr_queue_reader *r, uint64_t n, bool empty, wr_unit *units, uint32_t most, uint32_t *found) {
    const uint64_t in_file = r->base + r->file_entries - n;
    if (most > in_file) most = (uint32_t)in_file;
    for (*found = 0; *found < most;) {
        uint32_t wanted = most - *found < READ_UNITS ? most - *found : READ_UNITS;
        ssize_t got = pread(r->fd, r->bytes, wanted * UNIT_BYTES, (off_t)((n + *found - r->base) * UNIT_BYTES));
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return errno;
        uint32_t whole = (uint32_t)got / UNIT_BYTES;
        for (uint32_t i = 0; i < whole; i++, ++*found)
            if (!wr_unit_get(r->bytes, i, &units[*found]) && !empty) return 0;
        if (whole < wanted) return 0; /* somebody cut the file, or it has no size yet */
    }
    return 0;
}

static int get_units(wr_queue_reader *r, uint64_t n, bool empty, wr_unit *units, uint32_t most, uint32_t *found) {
    *found = 0;
    if (n >= WR_QUEUE_UNITS_MAX) return 0;
    while (*found < most) {
        uint64_t base = n - n % r->file_entries;
        bool known = r->fd >= 0 && r->base == base;
        uint32_t more = 0;
        int error = known ? 0 : open_base(r, base);
        if (!error && r->fd >= 0) error = read_units(r, n, empty, units + *found, most - *found, &more);
        if (!error && known && !more) { /* the file may have been removed, and made again */
            error = open_base(r, base);
            if (!error && r->fd >= 0) error = read_units(r, n, empty, units + *found, most - *found, &more);
        }
        if (error) return error;
        *found += more;
        n += more;
        if (!more || n % r->file_entries) return 0;
    }
    return 0;
}

int wr_queue_reader_get(wr_queue_reader *r, uint64_t n, wr_unit *units, uint32_t most, uint32_t *found) {
    return get_units(r, n, false, units, most, found);
}

int wr_queue_reader_all(wr_queue_reader *r, uint64_t n, wr_unit *units, uint32_t most, uint32_t *found) {
    return get_units(r, n, true, units, most, found);
}

int wr_queue_reader_file(const wr_queue_reader *r, uint64_t n, bool down, uint64_t *first) {
    wr_folder_list list;
    int error = wr_folder_read(r->root, r->folder, WR_FOLDER_NAME_MAX, &list);
    bool any = false;
    for (uint32_t i = 0; !error && i < list.n; i++) {
        uint64_t base;
        if (!base_of(list.names[i], r->file_entries, &base)) continue;
        if (down && base > n) break;
        *first = base;
        any = down || n - base < r->file_entries || base > n;
        if (!down && any) break;
    }
    wr_folder_list_free(&list);
    return error ? error : any ? 0 : ENOENT;
}
