/* The dispatcher of a topic worker: a thread that follows the log as it is written. It stores units and keys of commits that are done,
 * raises what readers see and wakes them, and takes a checkpoint each second while something changes, and at its end.
 *
 * Threads: the loop's calls everything but wr_dispatcher_run, which is the dispatcher's whole life, and what the follower does at `confirming`
 * and `done`, on the committer's. All calls of the dispatch are made by who has the turn: the dispatcher's thread, which gives it away while it
 * sleeps. Who has a small commit for it then, loop or committer, applies that at once: it saves a reader the wake of a thread. Topics come
 * and go by jobs, and checkpoints are taken, on the dispatcher's thread alone.
 * Invariants
 *   A commit is applied when it is done: its records are in the file, and synced if their producers asked for that.
 *   A disk without space, or no memory: the same commit again, five times a second, and the alarm (`trouble`). Records that are appended
 *   meanwhile wait for room for their notes, when the ring of those is full; sealing and confirms never wait for it. Nor do readers.
 *   What else goes wrong ends the dispatcher (`failed`): the worker starts again, and catches up from the log.
 *   A row of a topic that was dropped is another's only when its drop is done here.
 * Crash points: as of topics/dispatch.h. */
#ifndef WR_TOPICS_DISPATCHER_H
#define WR_TOPICS_DISPATCHER_H
#include "topics/dispatch.h"
#include "topics/rows.h"
#include "topics/state.h"

typedef struct wr_dispatcher wr_dispatcher;

typedef struct {
    wr_dispatch *dispatch; /* at its log's end (wr_dispatch_catch_up); outlives this */
    wr_topic_rows *rows;
    wr_commit_origin origin; /* of commits from now on */
    uint64_t synced;         /* how far the log is */
    uint64_t number;         /* of its last commit */
    uint64_t slots_n;        /* of the notes, topics/notes.h */
    _Atomic uint32_t *bell;  /* of the loop */
} wr_dispatcher_options;

/* NULL: no memory. */
wr_dispatcher *wr_dispatcher_new(const wr_dispatcher_options *options);
void wr_dispatcher_free(wr_dispatcher *dispatcher); /* after wr_dispatcher_stop and the return of wr_dispatcher_run */

/* Follow a server's log: its follower. */
wr_topic_follower wr_dispatcher_follower(wr_dispatcher *dispatcher);

/* A topic comes; rows[queue] are the numbers that its queues have in shared memory, as they were given. Before its first record. ENOMEM. */
int wr_dispatcher_add(wr_dispatcher *dispatcher, const wr_dispatch_topic *topic, const uint32_t *rows);
/* A topic goes; these were its rows. ENOMEM. */
int wr_dispatcher_drop(wr_dispatcher *dispatcher, uint32_t id, const uint32_t *rows, uint32_t n);
/* Hand out the rows of topics whose drop is done since the last call: they are free. */
void wr_dispatcher_dropped(wr_dispatcher *dispatcher, void (*give)(void *context, uint32_t row), void *context);

/* Retention: messages of a topic below these minima, one for each queue, are gone (`minima` NULL: files of the log below `first` may go). *ticket:
 * done when the state's `retained` has come to it, and of a checkpoint when `saved` has. ENOMEM. */
int wr_dispatcher_retain(wr_dispatcher *dispatcher, uint32_t id, const uint64_t *minima, uint32_t queues_n, uint64_t first, uint64_t *ticket);

/* A client is gone, all of whose commits are done: its mark is needed no more. Without memory it is kept until the next start. */
void wr_dispatcher_forget(wr_dispatcher *dispatcher, uint64_t client_epoch);

typedef struct {
    int trouble;       /* errno of what is tried again; 0: nothing is */
    int failed;        /* errno of what ended it */
    uint64_t position; /* what is below was applied */
    uint64_t checkpoints_n;
    uint64_t saved_position;  /* of the last checkpoint of this dispatcher; 0: there is none */
    uint64_t retained, saved; /* tickets of wr_dispatcher_retain */
    int clean_error;          /* errno for which files of consume queues or index were not removed, when that was tried last */
} wr_dispatcher_state;
wr_dispatcher_state wr_dispatcher_look(const wr_dispatcher *dispatcher);

/* The thread's body: until wr_dispatcher_stop, and what is done then is applied. */
void wr_dispatcher_run(wr_dispatcher *dispatcher);
void wr_dispatcher_stop(wr_dispatcher *dispatcher);
#endif
