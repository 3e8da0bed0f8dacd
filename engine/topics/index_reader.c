/* Look-ups over the files of a key index. What they are: topics/index_reader.h. */
#define _GNU_SOURCE
#include "topics/index_reader.h"
#include "kernel/data_files.h"
#include "topics/folder.h"
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* So many files at the end of the list stay open behind a look-up. It closes an older one when it leaves it: an index may have
 * thousands, a process many readers, and what is removed takes space on the disk as long as anybody has it open. */
enum { KEPT = 4 };

/* A file of the list, mapped when it is first looked at. */
typedef struct {
    char name[WR_INDEX_NAME_DIGITS + 1];
    int fd; /* −1: not yet */
    uint8_t *base;
} mapped;

struct wr_index_reader {
    int root;
    uint32_t slots_n, entries_n;
    uint64_t bytes;
    bool ordered;
    mapped *files; /* oldest first */
    uint32_t files_n;
    uint32_t left;  /* of them, not looked at yet */
    bool looking;   /* in the file `left` */
    bool linked;    /* a file of the name `link.previous` must be there, and was not looked for yet */
    bool bad_link;  /* what the file `left` says of the one before it is damaged */
    bool missing;   /* that file was named last */
    wr_index_link link;
    uint64_t newest; /* must be there; 0: none */
    wr_key_find find;
    uint32_t key_hash;
    int64_t since, until;
    char folder[];
};

wr_index_reader *wr_index_reader_new(int root, const char *folder, uint32_t slots_n, uint32_t entries_n, bool ordered) {
    if (!slots_n || slots_n > WR_KEY_COUNT_MAX || entries_n < 2 || entries_n > WR_KEY_COUNT_MAX) return NULL;
    size_t n = strlen(folder) + 1;
    wr_index_reader *r = calloc(1, sizeof *r + n);
    if (!r) return NULL;
    r->root = root;
    r->slots_n = slots_n;
    r->entries_n = entries_n;
    r->bytes = wr_key_index_bytes(slots_n, entries_n);
    r->ordered = ordered;
    memcpy(r->folder, folder, n);
    return r;
}

static void unmap(const wr_index_reader *r, mapped *file) {
    if (file->base) munmap(file->base, r->bytes);
    if (file->fd >= 0) close(file->fd);
    file->base = NULL;
    file->fd = -1;
}

static void forget_all(wr_index_reader *r) {
    for (uint32_t i = 0; i < r->files_n; i++) unmap(r, &r->files[i]);
    free(r->files);
    r->files = NULL;
    r->files_n = r->left = 0;
    r->looking = false;
}

void wr_index_reader_free(wr_index_reader *r) {
    if (!r) return;
    forget_all(r);
    free(r);
}

/* The files that are there now; what was mapped of them stays so. */
static int list_again(wr_index_reader *r) {
    wr_folder_list list;
    int error = wr_folder_read(r->root, r->folder, WR_INDEX_NAME_DIGITS, &list);
    mapped *files = error || !list.n ? NULL : calloc(list.n, sizeof *files);
    if (!error && list.n && !files) error = ENOMEM;
    if (!error) {
        for (uint32_t i = 0, k = 0; i < list.n; i++) {
            files[i].fd = -1;
            memcpy(files[i].name, list.names[i], sizeof files[i].name);
            while (k < r->files_n && strcmp(r->files[k].name, files[i].name) < 0) k++;
            if (k == r->files_n || strcmp(r->files[k].name, files[i].name)) continue;
            files[i] = r->files[k];
            r->files[k] = (mapped){.fd = -1};
            memcpy(r->files[k].name, files[i].name, sizeof files[i].name);
        }
        forget_all(r);
        r->files = files;
        r->files_n = list.n;
    }
    wr_folder_list_free(&list);
    return error;
}

/* Map a file, whole. 0, ENOENT, ESTALE: it was cut, or is no file; or an errno. */
static int map_file(const wr_index_reader *r, mapped *file) {
    struct stat found;
    if (file->fd >= 0 && (fstat(file->fd, &found) != 0 || !found.st_nlink)) unmap(r, file); /* it may have been made again */
    if (file->fd < 0) {
        char path[PATH_MAX];
        int n = snprintf(path, sizeof path, "%s/%s", r->folder, file->name);
        if (n < 0 || n >= (int)sizeof path) return ENAMETOOLONG;
        if ((file->fd = wr_data_open(r->root, path, O_RDONLY, 0)) < 0) return errno == EISDIR ? ESTALE : errno;
        if (fstat(file->fd, &found) != 0) return errno;
    }
    if ((uint64_t)found.st_size < r->bytes) return ESTALE;
    if (file->base) return 0;
    void *base = mmap(NULL, r->bytes, PROT_READ, MAP_SHARED, file->fd, 0);
    if (base == MAP_FAILED) return errno;
    madvise(base, r->bytes, MADV_RANDOM); /* what lies around an entry is no other look-up's */
    file->base = base;
    return 0;
}

int wr_index_reader_find(wr_index_reader *r, uint32_t key_hash, int64_t since, int64_t until) {
    int error = list_again(r);
    if (error) return error;
    r->key_hash = key_hash;
    r->since = since;
    r->until = until;
    r->left = r->files_n;
    r->looking = r->bad_link = r->missing = false;
    r->linked = r->newest && (!r->files_n || wr_index_name_number(r->files[r->files_n - 1].name) < r->newest);
    r->link = (wr_index_link){.end = UINT64_MAX};
    if (r->linked) wr_index_number_name(r->newest, r->link.previous);
    return 0;
}

void wr_index_reader_expect(wr_index_reader *r, uint64_t newest) { r->newest = newest; }

/* The file that must come next is not among those that are left. */
static bool is_missing(wr_index_reader *r) {
    if (!r->linked || !*r->link.previous) return false;
    r->linked = false;
    for (uint32_t i = r->left; i-- > 0;)
        if (!strcmp(r->files[i].name, r->link.previous)) return false;
    return true;
}

/* The file that was looked at last is done with. */
static void leave(const wr_index_reader *r) {
    if (r->left + KEPT < r->files_n) unmap(r, &r->files[r->left]);
}

/* Look into the file before. *code: WR_KEY_FOUND: something may be found there; WR_KEY_END: nothing is; or what is wrong with it. */
static int next_file(wr_index_reader *r, wr_key_code *code) {
    leave(r);
    mapped *file = &r->files[--r->left];
    wr_key_index index;
    wr_key_header header;
    int error = map_file(r, file);
    *code = error == ESTALE ? WR_KEY_BAD_HEADER : error == ENOENT ? WR_KEY_MISSING : WR_KEY_END;
    if (error == ENOENT && strcmp(r->link.previous, file->name)) r->link.end = UINT64_MAX;
    if (error == ENOENT) memcpy(r->link.previous, file->name, sizeof r->link.previous);
    if (error) return error == ESTALE || error == ENOENT ? 0 : error;
    if (!wr_key_index_take(&index, file->base, r->bytes, r->slots_n, r->entries_n)) return EINVAL;
    r->linked = wr_index_link_get(file->base + wr_key_index_bytes(r->slots_n, 0), file->name, &r->link);
    r->bad_link = !r->linked;
    wr_key_index_header(&index, &header);
    if (r->left + 1 < r->files_n && header.index_count != r->entries_n) { /* one that was followed by another is full */
        *code = WR_KEY_BAD_HEADER;
        return 0;
    }
    bool outside = r->ordered && header.begin_timestamp <= header.end_timestamp &&
                   (header.begin_timestamp > r->until || header.end_timestamp < r->since);
    if (outside && header.index_count > 1) return 0;
    *code = WR_KEY_FOUND;
    wr_key_find_begin(&r->find, &index, r->key_hash, r->since, r->until, r->ordered);
    r->looking = true;
    return 0;
}

int wr_index_reader_next(wr_index_reader *r, wr_key_entry *entry, wr_key_code *code) {
    for (;;) {
        if (r->looking) {
            *code = wr_key_find_next(&r->find, entry);
            if (*code == WR_KEY_FOUND) return 0;
            r->looking = false;
            if (*code != WR_KEY_END) return 0;
        }
        r->missing = is_missing(r);
        *code = r->bad_link ? WR_KEY_BAD_LINK : r->missing ? WR_KEY_MISSING : WR_KEY_END;
        r->bad_link = false;
        if (*code == WR_KEY_END && !r->left) leave(r);
        if (*code != WR_KEY_END || !r->left) return 0;
        int error = next_file(r, code);
        if (error) return error;
        r->missing = *code == WR_KEY_MISSING;
        if (*code != WR_KEY_FOUND && *code != WR_KEY_END) return 0;
    }
}

const char *wr_index_reader_file(const wr_index_reader *r) {
    return r->missing ? r->link.previous : r->left < r->files_n ? r->files[r->left].name : "";
}

uint64_t wr_index_reader_missing_end(const wr_index_reader *r) { return r->link.end; }
