/* The writer of the key index's files. What it is: topics/index_files.h. */
#define _GNU_SOURCE
#include "topics/index_files.h"
#include "kernel/data_files.h"
#include "kernel/bytes.h"
#include "kernel/read.h"
#include "topics/folder.h"
#include "topics/mapped_file.h"
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define HEADER(field) WR_KEY_INDEX_HEADER_AT_##field
#define ENTRY(field) WR_KEY_INDEX_ENTRY_AT_##field
#define ENTRY_BYTES WR_KEY_INDEX_ENTRY_SIZE
#define PIECE_BITS 12               /* blocks are noted by 4 KiB */
#define LARGE_PIECE (64u << 10)     /* and had by so much … */
#define SMALL_ENTRIES 256           /* … when there are so many entries */
#define READ_ENTRIES 3276           /* of one read */
#define NEW "new"                   /* name of a file that is made */
#define LAST_MS 253402300799999ll   /* of the year 9999 */

/* A file that is full and not synced. */
typedef struct full_file {
    wr_mapped_file file;
    char name[WR_INDEX_NAME_DIGITS + 1];
    struct full_file *next;
} full_file;

struct wr_index_files {
    int root;
    uint32_t slots_n, entries_n;
    uint64_t bytes;
    int failed;            /* of a sync */
    bool unnamed, unsynced; /* a name, the newest file */
    bool torn;             /* a store into the newest file failed: its writer has to be opened again */
    wr_mapped_file file;   /* the newest one; base NULL: there is none */
    char name[WR_INDEX_NAME_DIGITS + 1]; /* of it, or of the newest one that there was */
    bool there;            /* a file of that name is */
    wr_key_writer writer;
    bool any;              /* something was put, ever: `newest` and `first` count */
    uint64_t newest, first; /* positions of the newest entry, and of the first one of the newest file */
    full_file *full;
    wr_index_reader *reader; /* of what lies in older files, too */
    uint64_t *pieces;      /* bits: they have blocks */
    char folder[];
};

/* ---- names ---- */

static void name_of(char name[WR_INDEX_NAME_DIGITS + 1], int64_t ms) {
    ms = ms < 0 ? 0 : ms > LAST_MS ? LAST_MS : ms;
    time_t seconds = (time_t)(ms / 1000);
    struct tm t;
    gmtime_r(&seconds, &t);
    snprintf(name, WR_INDEX_NAME_DIGITS + 1, "%04u%02u%02u%02u%02u%02u%03u", (unsigned)(t.tm_year + 1900) % 10000u,
             (unsigned)(t.tm_mon + 1) % 100u, (unsigned)t.tm_mday % 100u, (unsigned)t.tm_hour % 100u, (unsigned)t.tm_min % 100u,
             (unsigned)t.tm_sec % 100u, (unsigned)(ms % 1000));
}

static int64_t ms_of(const char *name) {
    struct tm t = {0};
    int ms = 0;
    if (sscanf(name, "%4d%2d%2d%2d%2d%2d%3d", &t.tm_year, &t.tm_mon, &t.tm_mday, &t.tm_hour, &t.tm_min, &t.tm_sec, &ms) != 7) return LAST_MS;
    t.tm_year -= 1900;
    t.tm_mon -= 1;
    return (int64_t)timegm(&t) * 1000 + ms;
}

/* A name behind the newest one's, of a time if it is later. */
static int next_name(const wr_index_files *f, int64_t ms, char name[WR_INDEX_NAME_DIGITS + 1]) {
    name_of(name, ms);
    if (strcmp(name, f->name) <= 0) name_of(name, ms_of(f->name) + 1);
    return strcmp(name, f->name) > 0 ? 0 : EOVERFLOW;
}

static int path_of(const wr_index_files *f, char path[PATH_MAX], const char *name) {
    int n = snprintf(path, PATH_MAX, "%s/%s", f->folder, name);
    return n < 0 || n >= PATH_MAX ? ENAMETOOLONG : 0;
}

static int remove_file(const wr_index_files *f, const char *name) {
    char path[PATH_MAX];
    int error = path_of(f, path, name);
    if (!error) error = wr_data_unlink(f->root, path);
    return error == ENOENT ? 0 : error;
}

/* ---- begin and end ---- */

wr_index_files *wr_index_files_new(int root, const char *folder, uint32_t slots_n, uint32_t entries_n) {
    wr_index_reader *reader = wr_index_reader_new(root, folder, slots_n, entries_n, false);
    if (!reader) return NULL;
    uint64_t bytes = wr_key_index_bytes(slots_n, entries_n);
    size_t n = strlen(folder) + 1;
    wr_index_files *f = calloc(1, sizeof *f + n);
    uint64_t *pieces = calloc((bytes >> PIECE_BITS) / 64 + 1, sizeof *pieces);
    if (!f || !pieces) {
        free(f);
        free(pieces);
        wr_index_reader_free(reader);
        return NULL;
    }
    *f = (wr_index_files){.root = root, .slots_n = slots_n, .entries_n = entries_n, .bytes = bytes, .reader = reader, .pieces = pieces};
    memcpy(f->folder, folder, n);
    return f;
}

static void close_newest(wr_index_files *f) {
    wr_mapped_close(&f->file);
    memset(f->pieces, 0, ((f->bytes >> PIECE_BITS) / 64 + 1) * sizeof *f->pieces);
    f->unsynced = f->torn = false;
}

static void drop_full(wr_index_files *f) {
    full_file *w = f->full;
    f->full = w->next;
    wr_mapped_close(&w->file);
    free(w);
}

void wr_index_files_free(wr_index_files *f) {
    if (!f) return;
    while (f->full) drop_full(f);
    close_newest(f);
    wr_index_reader_free(f->reader);
    free(f->pieces);
    free(f);
}

/* ---- blocks ---- */

static inline bool has_piece(const wr_index_files *f, uint64_t piece) { return f->pieces[piece / 64] >> piece % 64 & 1; }

static int have_piece(wr_index_files *f, const char *path, uint64_t at) {
    uint64_t large = f->writer.count > SMALL_ENTRIES ? LARGE_PIECE : 1u << PIECE_BITS, size = large;
    int error;
    for (;;) {
        uint64_t from = at & ~(size - 1), to = from + size < f->bytes ? from + size : f->bytes;
        error = wr_mapped_have(&f->file, f->root, path, from, to);
        if (!error)
            for (uint64_t piece = from >> PIECE_BITS; piece << PIECE_BITS < to; piece++) f->pieces[piece / 64] |= 1ull << piece % 64;
        if ((error != ENOSPC && error != EDQUOT) || size == 1u << PIECE_BITS) return error;
        size = 1u << PIECE_BITS; /* the least */
    }
}

/* Have blocks for n bytes of the newest file, which has this name. */
static int have(wr_index_files *f, const char *name, uint64_t at, uint64_t n) {
    int error = 0;
    for (uint64_t piece = at >> PIECE_BITS; !error && piece <= (at + n - 1) >> PIECE_BITS; piece++) {
        if (has_piece(f, piece)) continue;
        char path[PATH_MAX];
        error = path_of(f, path, name);
        if (!error) error = have_piece(f, path, piece << PIECE_BITS);
    }
    return error == ESTALE ? EUCLEAN : error;
}

static inline uint64_t slot_at(const wr_index_files *f, uint32_t key_hash) {
    return WR_KEY_INDEX_HEADER_SIZE + (uint64_t)(key_hash % f->slots_n) * WR_KEY_INDEX_SLOT_SIZE;
}
static inline uint64_t entry_at(const wr_index_files *f, uint32_t number) { return wr_key_index_bytes(f->slots_n, number); }

/* ---- stores into a map ---- */

/* Store into the file of a name. 0, or an errno: ENOSPC, EDQUOT, EUCLEAN (it is another file by now), EIO. */
static int store_into(const wr_index_files *f, const wr_mapped_file *file, const char *name, void (*store)(void *context), void *context) {
    char path[PATH_MAX];
    if (wr_mapped_try(file, store, context)) return 0;
    int error = path_of(f, path, name);
    if (!error) error = wr_mapped_why(file, f->root, path);
    return error == ESTALE ? EUCLEAN : error;
}

typedef struct {
    wr_key_writer *writer;
    const wr_key_index *index;
    wr_key_code code;
} an_opening;

static void store_opening(void *context) {
    an_opening *o = context;
    o->code = wr_key_writer_open(o->writer, o->index);
}

/* Open the writer of the newest file, which has this name. */
static int open_writer(wr_index_files *f, const char *name) {
    wr_key_index index;
    if (!wr_key_index_take(&index, f->file.base, f->bytes, f->slots_n, f->entries_n)) return EINVAL;
    an_opening opening = {&f->writer, &index, WR_KEY_FOUND};
    int error = store_into(f, &f->file, name, store_opening, &opening);
    f->torn = error != 0;
    return error || opening.code == WR_KEY_FOUND ? error : EUCLEAN;
}

typedef struct {
    wr_key_writer *writer;
    uint32_t key_hash;
    uint64_t physical_offset;
    int64_t store_timestamp;
    wr_key_code code;
} a_put;

static void store_put(void *context) {
    a_put *put = context;
    put->code = wr_key_put(put->writer, put->key_hash, put->physical_offset, put->store_timestamp);
}

/* Put a key into the newest file, which has this name, and blocks for it. */
static int put_key(wr_index_files *f, const char *name, uint32_t key_hash, uint64_t physical_offset, int64_t store_timestamp) {
    a_put put = {&f->writer, key_hash, physical_offset, store_timestamp, WR_KEY_FOUND};
    int error = store_into(f, &f->file, name, store_put, &put);
    f->torn = error != 0;
    return error || put.code == WR_KEY_FOUND ? error : EUCLEAN;
}

/* ---- files as they lie there, read without a map ---- */

typedef struct {
    int64_t begin, end;
    uint64_t first, newest;
    uint32_t count; /* 1: none */
} summary;

static int open_read(const wr_index_files *f, const char *name, int *fd) {
    char path[PATH_MAX];
    struct stat found;
    int error = path_of(f, path, name);
    if (error) return error;
    if ((*fd = wr_data_open(f->root, path, O_RDONLY, 0)) < 0) return errno == ENOENT ? EUCLEAN : errno;
    error = fstat(*fd, &found) != 0 ? errno : (uint64_t)found.st_size < f->bytes ? EUCLEAN : 0;
    if (error) close(*fd);
    return error;
}

/* What a file says of itself; EUCLEAN: nothing that can be. */
static int sum_up(const wr_index_files *f, const char *name, summary *to) {
    uint8_t header[WR_KEY_INDEX_HEADER_SIZE];
    int fd, error = open_read(f, name, &fd);
    if (error) return error;
    error = wr_read_all(fd, header, sizeof header, 0);
    close(fd);
    if (error) return error;
    *to = (summary){.begin = (int64_t)wr_get64(header + HEADER(BEGIN_TIMESTAMP)),
                    .end = (int64_t)wr_get64(header + HEADER(END_TIMESTAMP)),
                    .first = wr_get64(header + HEADER(BEGIN_PHYSICAL_OFFSET)),
                    .newest = wr_get64(header + HEADER(END_PHYSICAL_OFFSET)),
                    .count = wr_get32(header + HEADER(INDEX_COUNT))};
    if (to->count <= 1) { /* the first put may have been killed: what it said of itself is not counted */
        *to = (summary){.count = 1};
        return 0;
    }
    return to->count > f->entries_n || to->newest < to->first || to->newest >> 63 ? EUCLEAN : 0;
}

/* Map a file that is there, to go on with it. */
static int open_newest(wr_index_files *f, const char *name) {
    char path[PATH_MAX];
    uint8_t half[4];
    int fd, error = path_of(f, path, name);
    summary s;
    if (!error) error = sum_up(f, name, &s);
    if (!error) error = open_read(f, name, &fd);
    if (error) return error;
    if (s.count < f->entries_n) error = wr_read_all(fd, half, sizeof half, entry_at(f, s.count) + ENTRY(KEY_HASH));
    close(fd);
    if (!error) error = wr_mapped_open(&f->file, f->root, path, f->bytes, NULL);
    /* what wr_key_writer_open looks at */
    f->writer.count = s.count;
    if (!error) error = have(f, name, 0, WR_KEY_INDEX_HEADER_SIZE);
    if (!error) error = have(f, name, entry_at(f, s.count - 1), (s.count < f->entries_n ? 2 : 1) * ENTRY_BYTES);
    if (!error && s.count < f->entries_n && !(wr_get32(half) >> 31)) error = have(f, name, slot_at(f, wr_get32(half)), WR_KEY_INDEX_SLOT_SIZE);
    if (!error) error = open_writer(f, name);
    wr_index_link link;
    if (!error && !wr_index_link_get(f->file.base + entry_at(f, 0), name, &link)) error = EUCLEAN;
    if (error) {
        close_newest(f);
        return error;
    }
    memcpy(f->name, name, sizeof f->name);
    f->unsynced = f->there = true;
    return 0;
}

/* Up to where entries are there, by the files of a list. */
static int look_at_newest(wr_index_files *f, const wr_folder_list *list) {
    f->any = false;
    f->newest = f->first = 0;
    for (uint32_t i = list->n; i-- > 0;) { /* a newest one can be empty */
        summary s;
        int error = sum_up(f, list->names[i], &s);
        if (error) return error;
        if (s.count == 1) continue;
        f->any = true;
        f->newest = s.newest;
        f->first = i + 1 == list->n ? s.first : s.newest;
        return 0;
    }
    return 0;
}

/* ---- a new file ---- */

typedef struct {
    uint8_t *at;
    const char *name;
    const wr_index_link *link;
} a_link;

static void store_link(void *context) {
    const a_link *l = context;
    wr_index_link_put(l->at, l->name, l->link);
}

/* Make a file of the name NEW, which will have another one, and map it: empty but for its link, with blocks for its head. */
static int make_new(wr_index_files *f, const char *name, const wr_index_link *link) {
    char path[PATH_MAX];
    bool made;
    int error = path_of(f, path, NEW);
    if (!error) error = wr_folder_make(f->root, f->folder);
    if (!error) error = remove_file(f, NEW);
    if (!error) error = wr_mapped_open(&f->file, f->root, path, f->bytes, &made);
    f->writer.count = 1;
    if (!error) error = have(f, NEW, 0, WR_KEY_INDEX_HEADER_SIZE);
    if (!error) error = have(f, NEW, entry_at(f, 0), ENTRY_BYTES);
    if (!error) error = store_into(f, &f->file, NEW, store_link, &(a_link){f->file.base + entry_at(f, 0), name, link});
    if (!error) error = open_writer(f, NEW);
    if (error) {
        close_newest(f);
        remove_file(f, NEW);
    }
    return error;
}

/* Its link is durable before its name can be: a sync of another file may make the name so at any time. */
static int give_name(wr_index_files *f, const char *name) {
    char from[PATH_MAX], to[PATH_MAX];
    int error = path_of(f, from, NEW);
    if (!error) error = path_of(f, to, name);
    if (!error) error = wr_mapped_sync(&f->file, 0, f->bytes);
    if (!error) error = wr_data_rename(f->root, from, to);
    if (error) {
        close_newest(f);
        remove_file(f, NEW);
        return error;
    }
    memmove(f->name, name, sizeof f->name);
    f->unnamed = f->unsynced = f->there = true;
    return 0;
}

/* Keep a full file to be synced, and begin another one. */
static int roll(wr_index_files *f, int64_t store_timestamp) {
    char name[WR_INDEX_NAME_DIGITS + 1];
    wr_index_link link = {0};
    int error = next_name(f, store_timestamp, name);
    if (error) return error;
    if (f->there) {
        memcpy(link.previous, f->name, sizeof link.previous);
        link.end = f->newest;
    }
    if (f->file.base) {
        full_file *w = malloc(sizeof *w);
        if (!w) return ENOMEM;
        *w = (full_file){.file = f->file, .next = f->full};
        memcpy(w->name, f->name, sizeof w->name);
        f->full = w;
        f->file = (wr_mapped_file){0};
        close_newest(f);
    }
    error = make_new(f, name, &link); /* if it fails, the next put tries again */
    return error ? error : give_name(f, name);
}

/* ---- put ---- */

/* Is a key of the newest record there? */
static int is_there(wr_index_files *f, uint32_t key_hash, bool *there) {
    wr_key_entry entry;
    wr_key_code code = WR_KEY_END;
    if (f->file.base && f->writer.count > 1 && f->first < f->newest) { /* all of the record is in this file */
        wr_key_find find;
        wr_key_find_begin(&find, &f->writer.index, key_hash, INT64_MIN, INT64_MAX, false);
        code = wr_key_find_next(&find, &entry);
    } else {
        int error = wr_index_reader_find(f->reader, key_hash, INT64_MIN, INT64_MAX);
        do if (!error) error = wr_index_reader_next(f->reader, &entry, &code);
        while (!error && (code == WR_KEY_MISSING || code == WR_KEY_BAD_LINK)); /* not what is asked for here */
        if (error) return error;
    }
    *there = code == WR_KEY_FOUND && entry.physical_offset == f->newest;
    return code == WR_KEY_FOUND || code == WR_KEY_END ? 0 : EUCLEAN;
}

int wr_index_files_put(wr_index_files *f, uint32_t key_hash, uint64_t physical_offset, int64_t store_timestamp) {
    if (f->failed) return f->failed;
    if (f->torn && f->file.base) {
        int error = open_writer(f, f->name);
        if (error) return error;
    }
    if (f->any && physical_offset <= f->newest) {
        bool there = physical_offset < f->newest;
        int error = there ? 0 : is_there(f, key_hash, &there);
        if (error || there) return error;
    }
    int error = f->file.base && f->writer.count < f->entries_n ? 0 : roll(f, store_timestamp);
    if (!error) error = have(f, f->name, slot_at(f, key_hash), WR_KEY_INDEX_SLOT_SIZE);
    if (!error) error = have(f, f->name, entry_at(f, f->writer.count), ENTRY_BYTES);
    bool first = f->writer.count == 1;
    if (!error) error = put_key(f, f->name, key_hash, physical_offset, store_timestamp);
    if (error) return error;
    if (first) f->first = physical_offset;
    f->newest = physical_offset;
    f->any = f->unsynced = true;
    return 0;
}

int wr_index_files_sync(wr_index_files *f, wr_index_mark *mark) {
    while (!f->failed && f->full) {
        f->failed = wr_sync_error(wr_mapped_sync(&f->full->file, 0, f->bytes));
        if (!f->failed) drop_full(f);
    }
    if (!f->failed && f->unsynced) {
        f->failed = wr_sync_error(wr_mapped_sync(&f->file, 0, f->bytes));
        f->unsynced = f->failed != 0;
    }
    if (!f->failed && f->unnamed) {
        f->failed = wr_sync_error(wr_folder_sync(f->root, f->folder));
        f->unnamed = f->failed != 0;
    }
    *mark = (wr_index_mark){.count = f->file.base ? f->writer.count : 0, .begin = f->file.base ? f->writer.begin : 0};
    if (f->file.base) memcpy(mark->name, f->name, sizeof mark->name);
    return f->failed;
}

uint64_t wr_index_files_newest(const wr_index_files *f) { return f->there ? wr_index_name_number(f->name) : 0; }

/* ---- what goes ---- */

static void forget_full(wr_index_files *f, const char *name) {
    for (full_file **at = &f->full; *at; at = &(*at)->next) {
        full_file *w = *at;
        if (strcmp(w->name, name)) continue;
        *at = w->next;
        wr_mapped_close(&w->file);
        free(w);
        return;
    }
}

/* Remove the newest file of a list that has some. */
static int remove_newest(wr_index_files *f, wr_folder_list *list) {
    const char *name = list->names[list->n - 1];
    if (f->file.base && !strcmp(name, f->name)) close_newest(f);
    if (!strcmp(name, f->name)) f->there = false;
    forget_full(f, name);
    int error = remove_file(f, name);
    f->unnamed = true;
    list->n--;
    return error;
}

/* Go on with the newest file of a list that is sound, and remove those that are not. *n: how many were. */
static int settle(wr_index_files *f, wr_folder_list *list, uint32_t *n) {
    for (*n = 0;; ++*n) {
        int error = list->n && !f->file.base ? open_newest(f, list->names[list->n - 1]) : 0;
        if (!error) error = look_at_newest(f, list); /* opened: its header says what is counted, and no more */
        if (error != EUCLEAN) return error;
        if ((error = remove_newest(f, list))) return error;
    }
}

int wr_index_files_discard(wr_index_files *f, uint64_t *from) {
    wr_folder_list list;
    uint32_t n;
    int error = wr_folder_read(f->root, f->folder, WR_INDEX_NAME_DIGITS, &list);
    if (!error && list.n) error = remove_newest(f, &list);
    if (!error) error = settle(f, &list, &n);
    *from = f->any ? f->newest : 0;
    wr_folder_list_free(&list);
    return error;
}

typedef struct {
    wr_key_writer *writer;
    uint64_t end;
    wr_key_code code;
} a_cut;

static void store_cut(void *context) {
    a_cut *cut = context;
    cut->code = wr_key_truncate(cut->writer, cut->end);
}

int wr_index_files_cut(wr_index_files *f, uint64_t end) {
    wr_folder_list list;
    uint32_t n;
    int error = wr_folder_read(f->root, f->folder, WR_INDEX_NAME_DIGITS, &list);
    while (!error && list.n && f->any && f->newest >= end) {
        a_cut cut = {&f->writer, end, WR_KEY_FOUND};
        error = store_into(f, &f->file, f->name, store_cut, &cut);
        f->torn = error != 0;
        if (!error && cut.code != WR_KEY_FOUND) error = EUCLEAN;
        if (!error && f->writer.count == 1) error = remove_newest(f, &list);
        f->unsynced = f->file.base != NULL;
        if (!error) error = settle(f, &list, &n);
        if (!error && n) error = EUCLEAN;
    }
    wr_folder_list_free(&list);
    return error;
}

int wr_index_files_remove(wr_index_files *f, uint64_t minimum, uint64_t *removed) {
    wr_folder_list list;
    int error = wr_folder_read(f->root, f->folder, WR_INDEX_NAME_DIGITS, &list);
    *removed = 0;
    for (uint32_t i = 0; !error && i + 1 < list.n; i++) {
        summary s;
        error = sum_up(f, list.names[i], &s);
        if (error || s.newest >= minimum) break;
        forget_full(f, list.names[i]);
        error = remove_file(f, list.names[i]);
        *removed += !error;
    }
    wr_folder_list_free(&list);
    return error;
}

/* ---- recovery ---- */

typedef struct {
    const wr_index_files *files;
    uint8_t *base;
    const char *name;
    uint32_t from, to;
} a_range;

/* Store what is there again, of the entries from a number on: a sync of the last writer may have failed, and then the system takes
 * for clean what is in memory alone. */
static void store_again(void *context) {
    const a_range *r = context;
    const wr_index_files *f = r->files;
    wr_index_link link;
    if (wr_index_link_get(r->base + entry_at(f, 0), r->name, &link)) wr_index_link_put(r->base + entry_at(f, 0), r->name, &link);
    for (uint32_t number = r->from ? r->from : 1; number < r->to; number++) {
        uint8_t *entry = r->base + entry_at(f, number);
        volatile uint32_t *words[] = {(uint32_t *)(void *)r->base, (uint32_t *)(void *)(r->base + slot_at(f, wr_get32(entry + ENTRY(KEY_HASH)))),
                                      (uint32_t *)(void *)entry, (uint32_t *)(void *)(entry + ENTRY(PREVIOUS))};
        for (int i = 0; i < 4; i++) *words[i] = *words[i];
    }
}

/* Have a file that the last writer filled behind the mark synced by the next one. */
static int keep_file(wr_index_files *f, const char *name, uint32_t from) {
    char path[PATH_MAX];
    summary s;
    full_file *w = calloc(1, sizeof *w);
    if (!w) return ENOMEM;
    memcpy(w->name, name, sizeof w->name);
    int error = path_of(f, path, name);
    if (!error) error = sum_up(f, name, &s);
    if (!error) error = wr_mapped_open(&w->file, f->root, path, f->bytes, NULL);
    if (error) {
        free(w);
        return error == EUCLEAN || error == ESTALE || error == ENOENT ? 0 : error; /* damaged, and nobody's to sync */
    }
    w->next = f->full;
    f->full = w;
    return store_into(f, &w->file, name, store_again, &(a_range){f, w->file.base, name, from, s.count});
}

static int keep_to_sync(wr_index_files *f, const wr_folder_list *list, const wr_index_mark *mark) {
    int error = 0;
    for (uint32_t i = 0; !error && i < list->n; i++) {
        int order = strcmp(list->names[i], mark ? mark->name : "");
        uint32_t from = order ? 1 : mark->count;
        if (order < 0) continue;
        if (i + 1 < list->n) error = keep_file(f, list->names[i], from);
        else error = store_into(f, &f->file, f->name, store_again, &(a_range){f, f->file.base, f->name, from, f->writer.count});
    }
    return error;
}

/* Put entries of a damaged file, n of them from a number on, into the new one: each must become what it was. */
static int copy_entries(wr_index_files *f, const uint8_t *entries, uint32_t n, uint32_t number, const wr_index_mark *mark) {
    for (uint32_t i = 0; i < n; i++, number++) {
        const uint8_t *old = entries + (uint64_t)i * ENTRY_BYTES;
        uint32_t key_hash = wr_get32(old + ENTRY(KEY_HASH)), diff = wr_get32(old + ENTRY(TIME_DIFF));
        uint64_t position = wr_get64(old + ENTRY(PHYSICAL_OFFSET));
        if ((key_hash | diff) >> 31 || position >> 63 || (number > 1 && position < f->newest)) return EUCLEAN;
        int error = have(f, NEW, slot_at(f, key_hash), WR_KEY_INDEX_SLOT_SIZE);
        if (!error) error = have(f, NEW, entry_at(f, number), ENTRY_BYTES);
        if (error) return error;
        int64_t at = mark->begin + (int64_t)diff * 1000 + (number > 1 ? 999 : 0); /* not earlier than it was */
        if ((error = put_key(f, NEW, key_hash, position, at))) return error;
        if (memcmp(f->file.base + entry_at(f, number), old, ENTRY_BYTES)) return EUCLEAN;
        f->newest = position;
    }
    return 0;
}

/* Make the file of a mark again from its entries alone. */
static int make_again(wr_index_files *f, const wr_index_mark *mark) {
    int fd, error = open_read(f, mark->name, &fd);
    if (error) return error;
    uint8_t *entries = malloc((uint64_t)READ_ENTRIES * ENTRY_BYTES), zeroth[ENTRY_BYTES];
    wr_index_link link;
    if (!entries || mark->count > f->entries_n || !mark->count || mark->begin < 0) error = entries ? EUCLEAN : ENOMEM;
    if (!error) error = wr_read_all(fd, zeroth, sizeof zeroth, entry_at(f, 0));
    if (!error && !wr_index_link_get(zeroth, mark->name, &link)) error = EUCLEAN;
    if (!error) error = make_new(f, mark->name, &link);
    bool made = !error;
    for (uint32_t number = 1; !error && number < mark->count;) {
        uint32_t n = mark->count - number < READ_ENTRIES ? mark->count - number : READ_ENTRIES;
        error = wr_read_all(fd, entries, (uint64_t)n * ENTRY_BYTES, entry_at(f, number));
        if (!error) error = copy_entries(f, entries, n, number, mark);
        number += n;
    }
    free(entries);
    close(fd);
    if (!error) error = give_name(f, mark->name);
    else if (made) {
        close_newest(f);
        remove_file(f, NEW);
    }
    return error;
}

/* Back to a mark: of what came behind it nothing is believed. */
static int go_back(wr_index_files *f, wr_folder_list *list, const wr_index_mark *mark) {
    const char *last = mark ? mark->name : "";
    int error = 0;
    while (!error && list->n && strcmp(list->names[list->n - 1], last) > 0) error = remove_newest(f, list);
    if (error || !*last || !list->n || strcmp(list->names[list->n - 1], last)) return error;
    error = make_again(f, mark);
    return error == EUCLEAN ? remove_newest(f, list) : error;
}

int wr_index_files_recover(wr_index_files *f, const wr_index_mark *mark, bool survived, bool *lost, uint64_t *from) {
    wr_folder_list list;
    uint32_t n = 0;
    int error = remove_file(f, NEW);
    if (!error) error = wr_folder_read(f->root, f->folder, WR_INDEX_NAME_DIGITS, &list);
    else list = (wr_folder_list){0};
    f->unnamed = list.n > 0;
    if (!error && !survived) error = go_back(f, &list, mark);
    if (!error) error = settle(f, &list, &n);
    if (!error && survived) error = keep_to_sync(f, &list, mark);
    *lost = mark && *mark->name && (!list.n || strcmp(list.names[list.n - 1], mark->name) < 0 ||
                                    (!strcmp(list.names[list.n - 1], mark->name) && f->writer.count < mark->count));
    *lost |= n > 0; /* it may have had entries behind the mark, or before it */
    *from = f->any ? f->newest : 0;
    wr_folder_list_free(&list);
    return error;
}
