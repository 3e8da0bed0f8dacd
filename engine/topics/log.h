/* The commit log of a node's topics: its append side (docs/design/019-topics.md).
 *
 * Position p of the log lies in the file of that base, at p − base, and, as long as it is new, in a ring in shared memory at p mod
 * ring_bytes. The loop thread writes records into the ring; readers of any process read there directly; the committer thread
 * (kernel/committer.h) writes sealed parts of it to the file and syncs. Records lie behind each other without gaps, so the last page
 * of a commit is written again by the next one, with the same bytes at its begin.
 *
 * Threads: every function is called by the loop thread, but wr_topic_log_commit_run (the committer's whole life) and the `written`
 * and `done` callbacks, called by who has the committer's turn: it, or the loop thread in wr_topic_log_seal.
 *
 * Invariants
 *   done <= sealed <= appended; everything below `sealed` never changes again, but for the commit record at the end of a commit
 *   that is not yet written: the committer fills it in, and readers never look there.
 *   Records and their commit record lie in one file; a file ends with a blank record, behind a commit.
 *   A commit is sealed with what it confirms: marks of the links whose commands it holds. Nothing is confirmed by another way.
 *   A position is written over in the ring only when it is in its file, and `low` is above it before the first byte changes.
 */
#ifndef WR_TOPIC_LOG_H
#define WR_TOPIC_LOG_H
#include "kernel/committer.h"
#include "kernel/protocol.h"
#include "topics/commit_record.h"

typedef struct {
    uint64_t from, to; /* positions, `to` exclusive: the next commit's from */
    bool sync;
    bool last;         /* of its file */
    wr_commit_head head;
    wr_commit_mark marks[WR_COMMIT_MARKS_MAX];
    uint64_t at;       /* of the commit record, or of the blank one; `to`: there is none, what was written before is synced */
    int error;         /* errno of the write or sync, 0 if fine */
} wr_topic_commit;

typedef struct wr_topic_log wr_topic_log;
typedef void (*wr_topic_committed)(void *context, const wr_topic_commit *commit);

typedef struct {
    uint64_t append;   /* next position */
    uint64_t synced;   /* what is below is on stable storage */
    uint64_t sealed;
    uint64_t base;     /* of the current file */
    bool has_file, has_next;
    bool wants_next;   /* the next file should be made now */
    bool wants_seal;   /* the last wr_topic_log_reserve found no room before what it has is sealed */
    bool unsynced;     /* something was sealed without sync since the last one with it */
    bool busy;         /* a commit is posted or running */
    bool full;         /* no place for another commit: there is one when the bell rings */
    int failed;
    int no_space;      /* errno of a write that finds no space and is tried again, 0: none is */
    uint64_t number;   /* of the last commit that was posted with records */
    uint64_t commits_n, syncs_n, commit_ns_sum, bytes_written;
} wr_topic_log_state;

/* Map the region `fd` (one page of wr_topic_ring, then the ring) with the ring twice, one behind the other, so that nothing in it is ever
 * split. NULL with errno. */
void *wr_topic_ring_map(int fd, uint64_t ring_bytes);
void wr_topic_ring_unmap(void *region, uint64_t ring_bytes);

/* `region`: of wr_topic_ring_map, all of it with memory. Sizes: multiples of the page, ring_bytes a power of two. NULL with errno. */
wr_topic_log *wr_topic_log_new(void *region, uint64_t ring_bytes, uint64_t file_bytes, const wr_commit_origin *origin,
                               wr_topic_committed written, wr_topic_committed done, void *context);
void wr_topic_log_free(wr_topic_log *log); /* after wr_topic_log_stop and the committer's return */
/* For tests. Before the committer runs. */
void wr_topic_log_set_io(wr_topic_log *log, const wr_commit_io *io, void *io_context);

/* Where the log goes on: behind the commit `number`, whose newest record has store_ms. All below is in its file, and synced
 * (wr_log_settle), for every commit from now on says so. Before the first file; a new log begins at 0, 0, 0. */
void wr_topic_log_begin(wr_topic_log *log, uint64_t position, uint64_t number, uint64_t store_ms);

/* Offer the file of a base: open for writing (O_DIRECT or not; the first one for reading, too), of file_bytes, its directory synced, zeros
 * behind the last commit. The log owns the fd from now on. The first one is that of the position where the log goes on, then each
 * the one behind the last. EBUSY: a next one is already there. EINVAL: another one's turn. Else what reading its last page said. */
int wr_topic_log_offer(wr_topic_log *log, int fd, uint64_t base);

const wr_topic_log_state *wr_topic_log_look(const wr_topic_log *log); /* refreshes what the committer counts */

/* The largest group of records that can lie in one commit. */
uint64_t wr_topic_log_most(const wr_topic_log *log);
uint64_t wr_topic_log_most_of(uint64_t ring_bytes, uint64_t file_bytes); /* of a log with these sizes */
/* Room for records of `bytes` in all, which will lie in one commit. Returns the place and its *position; NULL with errno EAGAIN when the
 * ring is full, or it must go on in another file, and something is not sealed (state.wants_seal), no commit is done yet or can be
 * posted, or no file is offered; EMSGSIZE; or the log's failure. The space is taken only by wr_topic_log_append. */
uint8_t *wr_topic_log_reserve(wr_topic_log *log, uint64_t bytes, uint64_t *position);
/* store_ms: of the newest record. Never lower than before. */
void wr_topic_log_append(wr_topic_log *log, uint64_t bytes, uint64_t store_ms);

/* Seal what was appended since the last seal with a commit record, and post it with what it confirms. Nothing to seal (nor, with `sync`, to
 * sync) and no marks: returns 0 and posts nothing. EAGAIN: no place for another commit. EMSGSIZE: too many marks. `here`: where the committer
 * sleeps, and nothing is to be synced, this thread writes the commit itself, at once. */
int wr_topic_log_seal(wr_topic_log *log, bool sync, bool here, const wr_commit_mark *marks, uint32_t marks_n);

int wr_topic_log_quiesce(wr_topic_log *log, uint64_t timeout_ns);
void wr_topic_log_commit_run(wr_topic_log *log, _Atomic uint32_t *bell);
void wr_topic_log_stop(wr_topic_log *log);

/* Copy `bytes` at `position`, which the log has, out of the ring (mapped once, any process): true when they are its; false: read the file. */
bool wr_topic_ring_read(const void *region, uint64_t ring_bytes, uint64_t position, void *to, uint64_t bytes);
#endif
