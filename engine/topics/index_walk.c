/* The entries of a key index. What it is: topics/index_walk.h. */
#define _GNU_SOURCE
#include "topics/index_walk.h"
#include "kernel/data_files.h"
#include "kernel/bytes.h"
#include "kernel/read.h"
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define HEADER(field) WR_KEY_INDEX_HEADER_AT_##field
#define ENTRY(field) WR_KEY_INDEX_ENTRY_AT_##field
#define ENTRY_BYTES WR_KEY_INDEX_ENTRY_SIZE
#define READ_ENTRIES 3276
#define READ_SLOTS 16384

static void say(const wr_index_walk *w, uint64_t at, const char *reason) { w->wrong(w->context, w->name, at, reason); }

static uint64_t entry_at(const wr_index_walk *w, uint32_t number) { return wr_key_index_bytes(w->slots_n, number); }

uint64_t wr_index_walk_at(const wr_index_walk *w) { return entry_at(w, w->number); }

bool wr_index_walk_between(const wr_index_walk *w) {
    return w->fd < 0 || (w->number == 1 && w->header.index_count > 1) || w->number == w->entries_n;
}

static wr_walked_key entry_of(const uint8_t *at) {
    return (wr_walked_key){wr_get32(at + ENTRY(KEY_HASH)), wr_get32(at + ENTRY(TIME_DIFF)), wr_get32(at + ENTRY(PREVIOUS)),
                            wr_get64(at + ENTRY(PHYSICAL_OFFSET))};
}

static void close_file(wr_index_walk *w) {
    if (w->fd >= 0) close(w->fd);
    w->fd = -1;
}

int wr_index_walk_begin(wr_index_walk *w, int root, const char *folder, uint32_t slots_n, uint32_t entries_n) {
    *w = (wr_index_walk){.root = root, .folder = folder, .slots_n = slots_n, .entries_n = entries_n, .fd = -1};
    w->heads = malloc((uint64_t)slots_n * sizeof *w->heads);
    w->bytes = malloc((uint64_t)READ_ENTRIES * ENTRY_BYTES);
    if (!w->heads || !w->bytes) return ENOMEM;
    int error = wr_folder_read(root, folder, WR_INDEX_NAME_DIGITS, &w->list);
    w->files_n = w->list.n;
    return error == ENOTDIR ? 0 : error; /* what is no folder has no files */
}

void wr_index_walk_end(wr_index_walk *w) {
    close_file(w);
    wr_folder_list_free(&w->list);
    free(w->heads);
    free(w->bytes);
    w->heads = NULL;
    w->bytes = NULL;
}

void wr_index_walk_only(wr_index_walk *w, const char *name, uint32_t count) {
    uint32_t n = 0;
    while (n < w->list.n && strncmp(w->list.names[n], name, WR_INDEX_NAME_DIGITS) <= 0) n++;
    w->files_n = n;
    w->most = n && !strncmp(w->list.names[n - 1], name, WR_INDEX_NAME_DIGITS) ? count : 0;
}

/* Is the open file the last one, of which not all counts? */
static bool is_partial(const wr_index_walk *w) { return w->most && w->next == w->files_n; }

/* ---- a file ---- */

static int read_header(wr_index_walk *w) {
    uint8_t bytes[WR_KEY_INDEX_HEADER_SIZE];
    struct stat found;
    if (fstat(w->fd, &found) != 0) return errno;
    if ((uint64_t)found.st_size < wr_key_index_bytes(w->slots_n, w->entries_n)) return EUCLEAN;
    int error = wr_read_all(w->fd, bytes, sizeof bytes, 0);
    if (error) return error;
    w->header = (wr_key_header){(int64_t)wr_get64(bytes + HEADER(BEGIN_TIMESTAMP)),       (int64_t)wr_get64(bytes + HEADER(END_TIMESTAMP)),
                                wr_get64(bytes + HEADER(BEGIN_PHYSICAL_OFFSET)), wr_get64(bytes + HEADER(END_PHYSICAL_OFFSET)),
                                wr_get32(bytes + HEADER(HASH_SLOT_COUNT)),       wr_get32(bytes + HEADER(INDEX_COUNT))};
    if (!w->header.index_count) w->header.index_count = 1;
    if (is_partial(w) && w->header.index_count > w->most) w->header.index_count = w->most;
    return w->header.index_count > w->entries_n ? EUCLEAN : 0;
}

/* The file cannot be read (on): its other keys are missing. */
static void give_up(wr_index_walk *w, uint64_t at, const char *reason) {
    say(w, at, reason);
    w->broken = true;
    close_file(w);
}

static bool is_listed(const wr_index_walk *w, const char *name) {
    for (uint32_t i = 0; i < w->list.n; i++)
        if (!strcmp(w->list.names[i], name)) return true;
    return false;
}

/* What the open file says of the one before it. */
static int look_at_link(const wr_index_walk *w) {
    uint8_t bytes[WR_KEY_INDEX_LINK_SIZE];
    wr_index_link link;
    int error = wr_read_all(w->fd, bytes, sizeof bytes, entry_at(w, 0));
    if (error) return error == EUCLEAN ? 0 : error; /* it is said where its entries are read */
    if (!wr_index_link_get(bytes, w->name, &link)) say(w, entry_at(w, 0), "what it says of the file before it is damaged, or another file's");
    else if (*link.previous && link.end >= w->first && !is_listed(w, link.previous)) w->wrong(w->context, link.previous, 0, WR_INDEX_FILE_MISSING);
    return 0;
}

static int open_next(wr_index_walk *w) {
    char path[PATH_MAX];
    memcpy(w->name, w->list.names[w->next++], sizeof w->name);
    w->name[WR_INDEX_NAME_DIGITS] = 0;
    int n = snprintf(path, sizeof path, "%s/%s", w->folder, w->name);
    if (n < 0 || n >= (int)sizeof path) return ENAMETOOLONG;
    if ((w->fd = wr_data_open(w->root, path, O_RDONLY, 0)) < 0) {
        if (errno != ENOENT && errno != EISDIR) return errno;
        if (errno == EISDIR) say(w, 0, "is no file");
        w->broken = true; /* it went meanwhile */
        return 0;
    }
    int error = read_header(w);
    if (error == EUCLEAN) give_up(w, 0, "is not as large as it has to be, or counts more entries than it can have");
    else if (error) return error;
    else if (w->header.index_count == 1 && w->next < w->files_n) give_up(w, 0, "counts no keys, and others come behind it");
    else if ((error = look_at_link(w))) return error;
    memset(w->heads, 0, (uint64_t)w->slots_n * sizeof *w->heads);
    w->number = 1;
    w->used = w->bytes_n = 0;
    return 0;
}

/* Of a file all of whose entries were passed the header says the same. */
static void compare_header(const wr_index_walk *w) {
    const wr_key_header *h = &w->header;
    if (w->number > 1 && h->end_physical_offset != w->last) say(w, HEADER(END_PHYSICAL_OFFSET), "its header names another last record");
    else if (h->hash_slot_count != w->used) say(w, HEADER(HASH_SLOT_COUNT), "its header counts other slots");
    else if (h->end_timestamp < h->begin_timestamp) say(w, HEADER(END_TIMESTAMP), "its header's times are reversed");
}

/* A slot may be ahead of what was passed: its chain leads back. */
static int slot_leads_to(const wr_index_walk *w, uint32_t slot, uint32_t head, bool *good) {
    uint8_t bytes[ENTRY_BYTES];
    *good = slot == head;
    while (!*good && slot >= w->number && slot <= w->header.index_count && slot < w->entries_n) {
        int error = wr_read_all(w->fd, bytes, sizeof bytes, entry_at(w, slot));
        if (error) return error;
        uint32_t previous = entry_of(bytes).previous;
        if (previous >= slot) return 0;
        slot = previous;
        *good = slot == head;
    }
    return 0;
}

int wr_index_walk_slots(wr_index_walk *w) {
    if (w->fd < 0 || is_partial(w)) return 0;
    const uint64_t slots_at = WR_KEY_INDEX_HEADER_SIZE;
    uint8_t *bytes = malloc((uint64_t)READ_SLOTS * WR_KEY_INDEX_SLOT_SIZE);
    int error = bytes ? 0 : ENOMEM;
    for (uint32_t from = 0, n; !error && from < w->slots_n; from += n) {
        n = w->slots_n - from < READ_SLOTS ? w->slots_n - from : READ_SLOTS;
        const uint64_t at = slots_at + (uint64_t)from * WR_KEY_INDEX_SLOT_SIZE;
        error = wr_read_all(w->fd, bytes, (uint64_t)n * WR_KEY_INDEX_SLOT_SIZE, at);
        if (!error && !from) error = read_header(w); /* behind the slots: it counts what they point to, but for one */
        for (uint32_t i = 0; !error && i < n; i++) {
            bool good;
            error = slot_leads_to(w, wr_get32(bytes + (uint64_t)i * WR_KEY_INDEX_SLOT_SIZE), w->heads[from + i], &good);
            if (!error && !good) say(w, at + (uint64_t)i * WR_KEY_INDEX_SLOT_SIZE, "a slot does not lead to its newest key");
        }
    }
    free(bytes);
    if (!error && w->number == w->header.index_count) compare_header(w);
    if (error != EUCLEAN) return error;
    say(w, 0, "was cut");
    return 0;
}

/* ---- entries ---- */

/* Have the entry that is due in memory. */
static int have_entry(wr_index_walk *w) {
    if (w->bytes_n && w->number - w->bytes_from < w->bytes_n) return 0;
    uint32_t left = w->header.index_count - w->number;
    w->bytes_from = w->number;
    w->bytes_n = left < READ_ENTRIES ? left : READ_ENTRIES;
    return wr_read_all(w->fd, w->bytes, (uint64_t)w->bytes_n * ENTRY_BYTES, entry_at(w, w->number));
}

int wr_index_walk_peek(wr_index_walk *w, wr_walked_key *entry, bool *there) {
    *there = false;
    for (;;) {
        int error = 0;
        while (w->fd < 0 && w->next < w->files_n && !error) error = open_next(w);
        if (error || w->fd < 0) return error;
        if (w->number < w->header.index_count) {
            if ((error = have_entry(w)) == EUCLEAN) {
                give_up(w, entry_at(w, w->number), "was cut");
                continue;
            }
            if (error) return error;
            *entry = entry_of(w->bytes + (uint64_t)(w->number - w->bytes_from) * ENTRY_BYTES);
            *there = true;
            return 0;
        }
        if (w->next == w->files_n) return 0; /* it may grow: whoever ends looks at its slots */
        if ((error = wr_index_walk_slots(w))) return error;
        close_file(w);
    }
}

void wr_index_walk_pass(wr_index_walk *w, const wr_walked_key *entry) {
    uint32_t *head = &w->heads[entry->key_hash % w->slots_n];
    if (entry->previous != *head) say(w, entry_at(w, w->number) + ENTRY(PREVIOUS), "a chain of keys is broken");
    if (w->number == 1 && w->header.begin_physical_offset != entry->position)
        say(w, HEADER(BEGIN_PHYSICAL_OFFSET), "its header names another first record");
    w->used += !*head;
    *head = w->number++;
    w->last = entry->position;
}
