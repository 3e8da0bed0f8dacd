/* The entries of a key index, file after file, in the order of the log; each file's chains and slots are followed meanwhile. Files are read.
 *
 * Threads: one. */
#ifndef WR_TOPICS_INDEX_WALK_H
#define WR_TOPICS_INDEX_WALK_H
#include "topics/folder.h"
#include "topics/index_reader.h"

#define WR_INDEX_FILE_MISSING "is missing"

typedef struct {
    uint32_t key_hash, time_diff, previous;
    uint64_t position;
} wr_walked_key;

typedef struct {
    int root;
    const char *folder;
    uint32_t slots_n, entries_n;
    wr_folder_list list;
    uint32_t next, files_n; /* file of the list; those that count */
    int fd;          /* −1: none is open */
    char name[WR_INDEX_NAME_DIGITS + 1];
    wr_key_header header;
    uint32_t number; /* of the entry that is due */
    uint32_t used;   /* slots */
    uint32_t *heads; /* newest entry of each slot, of those that were passed */
    uint8_t *bytes;
    uint32_t bytes_from, bytes_n; /* entries in memory */
    uint64_t last;   /* position of the entry before */
    uint32_t most;   /* of the last file of the list only so many entries count, and not its slots; 0: all */
    uint64_t first;  /* files whose records all lie below it may have been removed */
    bool broken;     /* a file before could not be read to its end: keys of it are missing */
    /* something is wrong with the file `name`, `at` a byte of it */
    void (*wrong)(void *context, const char *name, uint64_t at, const char *reason);
    void *context;
} wr_index_walk;

/* 0 or an errno; wr_index_walk_end in either case. */
int wr_index_walk_begin(wr_index_walk *walk, int root, const char *folder, uint32_t slots_n, uint32_t entries_n);
void wr_index_walk_end(wr_index_walk *walk);
/* After a loss of power: files behind the one of this name hold anything, and so does this one from entry `count` on. Files before it are
 * whole. "": no file counts. */
void wr_index_walk_only(wr_index_walk *walk, const char *name, uint32_t count);

/* The entry that is due; *there: whether there is one. 0 or an errno. */
int wr_index_walk_peek(wr_index_walk *walk, wr_walked_key *entry, bool *there);
/* Pass it: its chain must go on with the newest entry of its slot. */
void wr_index_walk_pass(wr_index_walk *walk, const wr_walked_key *entry);
/* Where it lies in its file. */
uint64_t wr_index_walk_at(const wr_index_walk *walk);
/* Whether it lies between two files, so that what is missing there was in one that is not there. */
bool wr_index_walk_between(const wr_index_walk *walk);
/* The slots of the open file, of which entries may not have been passed. 0 or an errno. */
int wr_index_walk_slots(wr_index_walk *walk);
#endif
