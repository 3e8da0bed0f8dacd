/* Copying what is still needed of some neighbouring files of a store into a new one. Meaning: design note 003, section 5.
 *
 * Mechanism only: it copies, and decides nothing that could be left half done. The server locks the files before, and makes the
 * output count afterwards, or throws it away.
 *
 * Invariants
 *   Copied is a MESSAGE whose entry lies exactly at its place and is held. The files are locked, so a record that is not held
 *   now never is again.
 *   A frame is checked before it is copied, in private memory. What is damaged is not copied but reported.
 *   Control frames of one id are kept all or none from its MESSAGE on: kept when the message was copied, or lies in another
 *   file (a restart would count its references wrong without them), or when there may be one without an entry.
 *   Frames keep their order, their client epoch, sequence and part; the salt becomes that of the output.
 * Crash points: anywhere; the output has no name that counts.
 */
#ifndef WR_COLLECT_H
#define WR_COLLECT_H
#include "store/file_list.h"
#include <stdbool.h>
#include <sys/types.h>

typedef struct {
    int fd;              /* open for reading; stays the caller's */
    const wr_list *list; /* what lies in the file, its number and salt; stays the caller's, as long as the collection lives */
    uint64_t high;       /* its last position */
    bool keep_controls;  /* every control frame is needed: a file that lies at or before it may hold records without an entry */
} wr_collect_source;

/* A record that could not be copied although it is needed. MESSAGE: lost. Control frames are made anew from the list, so they lose nothing. */
typedef struct {
    uint8_t id[16];
    uint64_t file, offset, total;
    const char *reason; /* of wr_frame_check, or "other", "unreadable", "short" */
    uint8_t kind;
} wr_collect_damage;

typedef struct {
    uint64_t messages, message_bytes; /* copied */
    uint64_t controls;                /* ids of control frames kept */
    uint64_t dropped;                 /* items of the lists that were not needed */
    uint64_t read_bytes, written_bytes;
} wr_collect_counts;

/* What it asks and does outside; tests put errors here. lookup: as wr_index_lookup. ghosts: may a file that begins at or before this
 * position hold records without an entry, now? The server says so before it drops an entry, so it is asked after the lookup. */
typedef struct {
    int (*lookup)(void *context, const uint8_t id[16], wr_index_entry *copy);
    bool (*ghosts)(void *context, uint64_t position);
    ssize_t (*pread)(void *context, int fd, void *to, size_t n, off_t at);
    ssize_t (*pwrite)(void *context, int fd, const void *from, size_t n, off_t at);
    void *context;
} wr_collect_io;

/* Where to. fd -1: nothing is written, the needed records are only checked. */
typedef struct {
    int fd;
    uint64_t file_bytes; /* the output must not get longer; a multiple of the page */
    uint64_t node_id;
    uint32_t owner;
    uint64_t file, salt, created_ns;
    uint64_t low, high; /* positions that it stands for */
} wr_collect_output;

typedef struct wr_collect wr_collect;

/* `sources` in the order of their positions; copied. NULL: no memory. */
wr_collect *wr_collect_new(const wr_collect_source *sources, uint32_t sources_n, const wr_collect_output *output, const wr_collect_io *io);
void wr_collect_free(wr_collect *c);

/* Go on until about so many bytes more were read or written, or so many ids were asked for (64 bytes count for each).
 * 0: done, everything is written (not synced; the file may be longer than wr_collect_list()->used). EAGAIN: call again.
 * E2BIG: it does not fit; the first wr_collect_fits() sources do. ESTALE: the index is about to be replaced: call again after a while,
 * or give up. Any other errno (ENOSPC, EIO of a write, ENOMEM): failed, and not to be called again. */
int wr_collect_step(wr_collect *c, uint64_t bytes);

uint32_t wr_collect_fits(const wr_collect *c);
const wr_collect_counts *wr_collect_counted(const wr_collect *c);
const wr_collect_damage *wr_collect_damaged(const wr_collect *c, uint64_t *n);
/* The output's list, NULL without an output; complete when step said 0. `take`: it is the caller's from now on. */
const wr_list *wr_collect_list(const wr_collect *c);
wr_list *wr_collect_take_list(wr_collect *c);
#endif
