/* Are the consume queues and the key index what the log says? Reads all, changes nothing.
 *
 * Threads: one. Beside a running worker what lies below its checkpoint is judged, which does not change any more.
 * Invariants
 *   Judged is what a start does not make again: units and keys of records below the checkpoint's position.
 *   Files are read, never mapped: one that somebody cuts is damage, and no signal. */
#ifndef WR_TOPICS_EXAMINE_H
#define WR_TOPICS_EXAMINE_H
#include "topics/dispatch.h"

typedef struct wr_examine wr_examine;

/* What of a file is not as the log has it. */
typedef struct {
    char file[320];     /* below the folder of topics */
    uint64_t count;     /* units, keys, or bytes of the log */
    uint64_t at;        /* of the first: byte in the file; of the log: position */
    const char *reason; /* of the first */
} wr_examine_wrong;

typedef struct {
    uint64_t records, commits, units, keys;
    uint64_t unknown;   /* records of topics that nobody named */
    uint64_t missing;   /* offsets without a record, which no bounds account for */
    uint64_t first;     /* the log may begin here, by its bounds and by the checkpoint */
} wr_examine_counts;

/* `limit`: position of the checkpoint; units and keys of records behind it are not judged. `synced`: power may have been lost since, so of the
 * index only what was synced at the checkpoint is; NULL: all of it is judged. NULL: no memory, or a place that cannot be. */
wr_examine *wr_examine_new(const wr_dispatch_place *place, uint64_t limit, const wr_index_mark *synced);
void wr_examine_free(wr_examine *examine);

/* A topic of the catalog. 0 or ENOMEM. */
int wr_examine_add(wr_examine *examine, const wr_dispatch_topic *topic);

/* What the checkpoint says that retention took: units below a queue's minimum, and keys of records below the log's `first`, are not judged. */
void wr_examine_minimum(wr_examine *examine, uint32_t id, uint32_t queue, uint64_t minimum);
void wr_examine_first(wr_examine *examine, uint64_t first);
/* How far the log was whole, by the checkpoint or the consume queues: damage below it is no torn tail, even of the last commit. */
void wr_examine_reached(wr_examine *examine, uint64_t position);

/* Called now and then; not 0: an errno that ends it. */
typedef int (*wr_examine_progress)(void *context, uint64_t position);

/* Walk the files of the log from this one on, as far as they follow each other. What is damaged is passed by. Files in their order. *end: as of
 * wr_log_walk, behind all damage. 0 or an errno. */
int wr_examine_run(wr_examine *examine, uint64_t base, wr_examine_progress progress, void *context, wr_log_end *end);
/* Behind the last one: what the index has beside. 0 or an errno. */
int wr_examine_finish(wr_examine *examine);

const wr_examine_counts *wr_examine_counted(const wr_examine *examine);
/* The highest minimum of a queue that checkpoint or log told; 0: none, or there is no such queue. */
uint64_t wr_examine_told(const wr_examine *examine, uint32_t id, uint32_t queue);
/* The offset of the first record of a queue that is in the log; UINT64_MAX: none is. */
uint64_t wr_examine_log_from(const wr_examine *examine, uint32_t id, uint32_t queue);
/* What was found so far. */
const wr_examine_wrong *wr_examine_found(const wr_examine *examine, uint32_t *n);

#endif
