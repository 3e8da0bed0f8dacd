/* The committer of a log: batches of bytes are written to files in order, synced, and handed back, on a thread of its own.
 *
 * Two threads. The loop thread takes a place (wr_committer_next), fills it and posts it; the committer's thread
 * (wr_committer_run, its whole life) writes, syncs and calls back. Batch n lies at n mod WR_COMMITS: the loop thread's until it is
 * posted, the committer's until it is done. While the committer sleeps, the loop thread may do a batch in its place that is not to be
 * synced (wr_committer_post_here): that saves the wake of a thread. Who does a batch has the turn.
 *
 * Order of a batch: `sealing`, pwrite of all parts, `written`, fdatasync when wanted and something is dirty, `done`, done_n, bells.
 * A death anywhere leaves a prefix of the batches in the files, and then a torn tail.
 *
 * Invariants
 *   What a posted batch's parts point to never changes before the batch is done, but by `sealing`.
 *   A write that finds no space was refused before anything was told: it is tried again until there is space, or the
 *   committer is stopped. Batches are done in order, so nothing behind it is written or confirmed.
 *   After another failed write, or a failed sync, `failed` holds the errno for ever, and the batch and all later ones are done with
 *   `error` set and without any I/O (rule S7): a failed fdatasync may have dropped the dirty pages, so a later success would prove
 *   nothing. A sync that reports no space is such an error, too: what had been taken over is lost.
 *   So it is with ESTALE when a file has no name any more or is shorter than file_bytes, because somebody removed or cut it while it
 *   is in use: looked at after each write and sync, and once a second while there is nothing to write.
 */
#ifndef WR_COMMITTER_H
#define WR_COMMITTER_H
#include "ipc/core/futex.h"
#include <pthread.h>
#include <sys/types.h>

#define WR_COMMITS 16
#define WR_COMMIT_PARTS 2

typedef struct {
    const uint8_t *from;
    uint64_t bytes, at; /* place in the file */
} wr_commit_part;

typedef struct {
    int fd;
    bool sync; /* fdatasync wanted */
    bool last; /* last batch of the file: close fd afterwards */
    uint32_t parts_n;
    wr_commit_part parts[WR_COMMIT_PARTS];
    uint64_t number; /* from 1 on */
    int error;       /* errno of the write or sync, 0 if fine */
} wr_commit;

/* What the owner of a committer does in its course, by who has the turn; any may be NULL. */
typedef struct {
    void (*sealing)(void *context, wr_commit *commit);       /* before its bytes are written; not for one that fails by an earlier error */
    void (*written)(void *context, const wr_commit *commit); /* its bytes were handed to the system; before the sync */
    void (*done)(void *context, const wr_commit *commit);
    bool (*idle)(void *context); /* nothing to write: true when it did something, and may have more to do */
} wr_commit_owner;

/* The two system calls; tests put short writes and errors here. */
typedef struct {
    ssize_t (*pwrite)(void *io_context, int fd, const void *from, size_t n, off_t at);
    int (*fdatasync)(void *io_context, int fd);
} wr_commit_io;
extern const wr_commit_io wr_commit_io_system; /* the calls themselves */

/* Part of its owner. Only the functions below change it. */
typedef struct {
    /* set before the committer runs */
    wr_commit_owner owner;
    void *context;
    wr_commit_io io;
    void *io_context;
    uint64_t file_bytes;
    bool may_sync;
    bool nameless; /* its files have no names and any size, so that none can be removed or cut while it is in use: fuzz targets use such */

    /* both */
    _Alignas(64) _Atomic uint64_t posted_n;
    _Atomic uint32_t sleeps;
    _Atomic uint32_t stopping;
    _Alignas(64) _Atomic uint64_t done_n;
    _Atomic uint32_t waiter_sleeps; /* wr_committer_quiesce */
    _Atomic int failed, no_space;
    _Atomic uint64_t commits_n, syncs_n, commit_ns_sum, bytes_written;

    /* who has the turn: the committer, but while it sleeps */
    pthread_mutex_t turn;
    bool dirty;       /* written to the current fd since its last sync */
    int written_fd;   /* of the last batch with bytes, -1: closed since */
    uint64_t look_at; /* when it is looked at again while there is nothing to do */

    wr_commit commits[WR_COMMITS];
} wr_committer;

/* `may_sync` false: its files promise nothing, and are never synced. */
void wr_committer_init(wr_committer *c, uint64_t file_bytes, bool may_sync, const wr_commit_owner *owner, void *context);
/* After wr_committer_stop and the return of wr_committer_run: close what batches that nobody took would have closed. */
void wr_committer_close(wr_committer *c);

static inline uint64_t wr_committer_posted(const wr_committer *c) { return atomic_load_explicit(&c->posted_n, memory_order_relaxed); }
/* SYNC batch-done: batches up to this number are done, and what they held may be used again. */
static inline uint64_t wr_committer_done(const wr_committer *c) { return atomic_load_explicit(&c->done_n, memory_order_acquire); }
static inline bool wr_committer_full(const wr_committer *c) { return wr_committer_posted(c) - wr_committer_done(c) >= WR_COMMITS; }
static inline int wr_committer_failed(const wr_committer *c) { return atomic_load_explicit(&c->failed, memory_order_relaxed); }

/* The place of the next batch, zeroed but for its number, to be filled and posted; not when it is full. */
wr_commit *wr_committer_next(wr_committer *c);
void wr_committer_post(wr_committer *c);
/* The same; where the committer sleeps, nothing else is posted, and the batch is neither to be synced nor the last of its file, it is done
 * here at once, callbacks included. What finds no space is the committer's to try again. */
void wr_committer_post_here(wr_committer *c);

/* Wait until every posted batch is done (at most timeout_ns; ETIMEDOUT). */
int wr_committer_quiesce(wr_committer *c, uint64_t timeout_ns);

/* The thread's body: returns after wr_committer_stop when the posted batches are done. Rings `bell` (the loop thread's own sleep
 * word, may be NULL) after each batch. */
void wr_committer_run(wr_committer *c, _Atomic uint32_t *bell);
void wr_committer_stop(wr_committer *c);
#endif
