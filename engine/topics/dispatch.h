/* Dispatch: what the commit log says, into the consume queues and the key index that are derived from it, and the checkpoint of that
 * (docs/design/019-topics.md, sections 5 and 6).
 *
 * Threads: one, of the process that owns the log. Readers of other processes follow by the rows' maxima.
 * Invariants
 *   Commits are applied in order, each as a whole; a row's maximum rises behind the commit, so what is below it has its unit and
 *   its keys. Applying again changes nothing: a unit has its place, and keys come in the order of the log.
 *   A commit that could not be applied (a full disk) is applied again until it is; there is no checkpoint before.
 *   A checkpoint says nothing that is not on stable storage, the log among it.
 * Crash points: killed anywhere, the next one walks the log from the checkpoint, and has all again. Power lost: the same; what was
 *   not synced is not believed. */
#ifndef WR_TOPICS_DISPATCH_H
#define WR_TOPICS_DISPATCH_H
#include "kernel/protocol.h"
#include "topics/checkpoint.h"
#include "topics/presence.h"
#include "topics/walk.h"
#include <stdatomic.h>

typedef struct wr_dispatch wr_dispatch;

typedef struct {
    int root; /* where consumequeue/<topic>/<queue>/, index/ and the checkpoint lie; outlives this */
    uint8_t node[16], boot[16]; /* of the log; of the machine and the mount as they are */
    uint64_t log_file_bytes;
    uint32_t consume_queue_entries, index_slots, index_entries;
} wr_dispatch_place;

/* NULL: no memory, or settings that cannot be. */
wr_dispatch *wr_dispatch_new(const wr_dispatch_place *place);
void wr_dispatch_free(wr_dispatch *dispatch);

/* A topic of the catalog. Its records have its id, or none (a foreign log's) and its name. */
typedef struct {
    uint32_t id, queues_n;
    const char *name;
    uint32_t name_n;
} wr_dispatch_topic;

/* Add a topic: rows[queue] is the number of its queue's row, given by the caller, as low as can be. Those that there are, before
 * wr_dispatch_begin. 0; ENOMEM; EINVAL: an id of 0, or a name that is none of a folder, or a system's; EEXIST: the id, the name, or one of the
 * rows, is there. */
int wr_dispatch_add(wr_dispatch *dispatch, const wr_dispatch_topic *topic, const uint32_t *rows);
/* Forget a topic, and remove its folder. Its rows may be another's from now on; records of it that come still are nobody's.
 * 0; ENOENT; or why files of it could not be removed (then they lie there until the next begin). */
int wr_dispatch_drop(wr_dispatch *dispatch, uint32_t id);
/* Where readers see the row: its maximum is raised, never lowered, and so is its minimum; what was found before is shown at once, but for the
 * maximum. */
void wr_dispatch_show(wr_dispatch *dispatch, uint32_t row, wr_topic_row *shown);

/* Where readers see the newest file of the index (its name as a number): before the maxima rise over its keys. */
void wr_dispatch_show_index(wr_dispatch *dispatch, _Atomic uint64_t *newest);

typedef struct {
    uint64_t minimum, next; /* offsets: the first, and behind the last */
    uint64_t durable;       /* units below are on stable storage */
    uint64_t bytes, from;   /* of the records from `minimum` on; position of the first one, WR_NO_RECORD: there is none */
} wr_dispatch_row;
wr_dispatch_row wr_dispatch_look(const wr_dispatch *dispatch, uint32_t row);

/* Where the checkpoint says that the log had come to, and behind which commit: its number is 0 if there is no checkpoint that says so.
 * *survived: by it, power was not lost since. Nothing is written. 0 or an errno. */
int wr_dispatch_look_begin(const wr_dispatch *dispatch, wr_checkpoint_kind *kind, uint64_t *position, wr_commit_head *last, bool *survived);

/* What a good checkpoint counts on and was not there at wr_dispatch_begin; 0 files: nothing. */
const wr_absence *wr_dispatch_absence(const wr_dispatch *dispatch);

/* Read the checkpoint, and begin with what it says: *kind. Without one, with nothing: what lies there is removed, and a first one is written.
 * Folders of topics that nobody added are removed.
 * 0, or an errno: then there is nothing to do but wr_dispatch_free, and to begin with another. */
int wr_dispatch_begin(wr_dispatch *dispatch, wr_checkpoint_kind *kind);

typedef struct {
    uint64_t units, keys; /* put; a key that was there counts, too */
    uint64_t repeated;    /* records whose unit was there already */
    uint64_t missing;     /* offsets without a record: they got an empty unit */
    uint64_t system;      /* records of the system's topics, commit records not among them */
    uint64_t unknown;     /* of a topic or queue that nobody added, or that was dropped */
    uint64_t halves;      /* prepared or rolled back: no reader sees them */
} wr_dispatch_counts;
const wr_dispatch_counts *wr_dispatch_counted(const wr_dispatch *dispatch);

typedef struct {
    int (*open)(void *context, uint64_t base); /* as of wr_log_visitor */
    int (*progress)(void *context, uint64_t position); /* behind each commit; not 0: an errno that ends it */
    void *context;
} wr_dispatch_log;

/* Walk the log from where it is needed to its end, before more is appended there. `first`: base of its first file. *end: as of wr_log_walk. What the index has behind the
 * end is taken out. 0; an errno of the log or of a put (go on by calling it again); EUCLEAN: the index was damaged under way, and what
 * was is removed: call it again. */
int wr_dispatch_catch_up(wr_dispatch *dispatch, const wr_dispatch_log *log, uint64_t first, wr_log_end *end);

/* Apply a whole commit, as a walk gives it. 0, or an errno: then the same one again. */
int wr_dispatch_commit(wr_dispatch *dispatch, const uint8_t *bytes, uint64_t n, const wr_commit_head *head, const uint8_t *marks);

/* One record, as its appender knows it. */
typedef struct {
    uint32_t topic; /* its id: the row may be another's by now */
    uint32_t row, size;
    uint64_t position, queue_offset, store_ms;
    int64_t tags_code;
    const uint32_t *key_hashes; /* wr_key_hash */
    uint32_t keys_n;
} wr_dispatch_record;

/* The same, of records in memory, by parts: some of a commit's records, then its end, behind which readers see it all. 0 or an errno: then all of
 * the commit again. *wakes: a bit for each pair of words (topics/rows.h) whose readers have something to see. */
int wr_dispatch_put(wr_dispatch *dispatch, const wr_dispatch_record *records, uint32_t n);
int wr_dispatch_end(wr_dispatch *dispatch, const wr_commit_head *head, const wr_commit_mark *marks, uint64_t end, uint32_t *wakes);

/* What a client's mark was in the commits so far; 0: it has none. Marks are kept until their client is forgotten. */
uint64_t wr_dispatch_mark(const wr_dispatch *dispatch, uint64_t client_epoch);
void wr_dispatch_forget(wr_dispatch *dispatch, uint64_t client_epoch);
/* Forget all clients but these. ENOMEM: none is forgotten. */
int wr_dispatch_keep(wr_dispatch *dispatch, const uint64_t *client_epochs, uint32_t n);

/* Sync what was put, and write the checkpoint. `synced`: how far the log is on stable storage. EAGAIN: sync it first; EBUSY: the last commit
 * is to be applied again, or the index needs wr_dispatch_catch_up; or an errno. */
int wr_dispatch_checkpoint(wr_dispatch *dispatch, uint64_t synced);

/* ---- retention (docs/design/023-retention.md) ---- */

/* Messages of a row below `minimum` are gone: readers see that at once. Files that hold nothing else are removed behind the next checkpoint, by
 * wr_dispatch_clean. 0; or an errno: nothing has changed. */
int wr_dispatch_retain(wr_dispatch *dispatch, uint32_t row, uint64_t minimum);
/* Files of the log below a position may go. */
void wr_dispatch_retain_log(wr_dispatch *dispatch, uint64_t first);
uint64_t wr_dispatch_first(const wr_dispatch *dispatch);
/* The row of a topic's queue; UINT32_MAX: there is none. */
uint32_t wr_dispatch_row_of(const wr_dispatch *dispatch, uint32_t id, uint32_t queue);
/* Remove files of consume queues and index that hold nothing that the last checkpoint has; of `most` queues at once: *more, if there are others.
 * 0 or an errno; what could not be removed is tried again with the next file that its queue lets go of. */
int wr_dispatch_clean(wr_dispatch *dispatch, uint32_t most, bool *more);
#endif
