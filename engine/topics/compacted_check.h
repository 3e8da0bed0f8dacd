/* All of a file of newest records: is it what was written, and what of it can be kept? (docs/design/029-compaction.md §6)
 *
 * Threads: one. Changes nothing; a writer, if there is one, gets what is sound.
 * Invariants
 *   A part that is damaged, or that the disk does not give, costs itself alone: what lies behind it is looked at.
 *   The writer gets a record only if its block has its checksum, it is sound by itself, of this topic and queue, and behind the one before it,
 *   and below the end that the writer has.
 * Crash points: none. Who has the writer finishes it, and gives its file a name. */
#ifndef WR_TOPICS_COMPACTED_CHECK_H
#define WR_TOPICS_COMPACTED_CHECK_H
#include "topics/compacted.h"

/* A damaged place. */
typedef struct {
    uint64_t at;          /* in the file */
    uint64_t first, next; /* records of offsets from the one on, below the other one, are lost with it; the same: none are */
    const char *reason;
} wr_compacted_wrong;

typedef struct {
    wr_compacted *file;
    const char *name; /* of the topic */
    uint32_t name_n;
    wr_compacted_writer *writer; /* NULL: this only looks */
    int (*wrong)(void *context, const wr_compacted_wrong *wrong); /* these two: not 0: an errno that ends it */
    int (*progress)(void *context);                               /* called now and then */
    void *context;
} wr_compacted_check;

/* Look at all of it; *records_n: that are sound. 0 or an errno, of memory, of the system, or of the writer. */
int wr_compacted_check_all(const wr_compacted_check *check, uint64_t *records_n);
#endif
