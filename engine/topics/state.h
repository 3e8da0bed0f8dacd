/* The topic worker's core: it takes commands from the rings of its clients, appends records to the commit log, and confirms.
 * docs/design/019-topics.md.
 *
 * Threads: the loop thread calls everything but the log's callbacks, which the committer calls, or the loop in its place (confirm.c); what
 * both touch of a link is under `mutex`.
 *
 * Invariants
 *   The server alone appends, so offsets are numbers in its memory. A record and its row's offset change together, or not at all.
 *   A command counts as done (`next`) when its records are in the ring; `processed` says so after its answer is written.
 *   A commit carries a mark for each link with records in it: the commands below are in the log. Who attaches with commands below
 *   its mark had them executed by a server that is dead: their records are not appended again (`high`).
 *   `head` rises when a commit is done, so a command stays in its ring until its records are in a file.
 *   What a client wrote is read once, and checked: it loses its link by nonsense, and nobody else anything.
 * Crash points: all is in the log, or comes again from the rings; see topics/log.h.
 */
#ifndef WR_TOPIC_STATE_H
#define WR_TOPIC_STATE_H
#include "ipc/core/view.h"
#include "kernel/map.h"
#include "topics/half_table.h"
#include "topics/log.h"
#include "topics/log_reader.h"
#include "topics/pending.h"
#include "topics/record.h"
#include <pthread.h>

typedef struct {
    uint64_t next;       /* offset of its next record */
    uint64_t first;      /* of the first one, when it was shown */
    uint32_t row;        /* its number in shared memory, and in the dispatch */
    wr_topic_row *shown; /* NULL: it is in no shared memory (tests) */
    wr_topic_wake *wake; /* where readers of its topic sleep; NULL: as `shown` */
} wr_topic_queue;

typedef struct {
    uint32_t id, queues_n;
    uint32_t key_hash; /* wr_key_hash_topic */
    uint32_t name_length;
    char *name;
    wr_topic_queue *queues;
    uint64_t delayed_n; /* of its messages, how many are to come later */
    uint64_t halves_n;  /* of its half messages, how many are pending */
    bool compacted;     /* each message has a key */
} wr_topic;

/* A link with a request that is not answered stands still (topics/control.h). */
typedef enum {
    WR_TOPIC_PAUSE_NONE,
    WR_TOPIC_PAUSE_CONTROL,   /* its next command is a request */
    WR_TOPIC_PAUSE_ANSWERING, /* Python has it */
    WR_TOPIC_PAUSE_ANSWERED   /* the answer leaves when the log is synced so far */
} wr_topic_pause;

typedef struct {
    uint32_t slot, generation;
    uint64_t client_epoch;
    wr_view view;
    uint64_t next;          /* commands executed */
    uint64_t limit;         /* commands from it on are not taken: the node ends */
    uint64_t high;          /* commands below it are in the log already */
    uint64_t sealed;        /* commands whose records are in a commit */
    uint64_t checked;       /* command + 1 that was looked for in a catalog as new as its client's */
    bool waits;             /* for the catalog: its next command names a topic that is not known */
    bool dirty;             /* records since the last seal */
    bool unsynced;          /* sealed without sync since the last one with it */
    bool written;           /* a command since the last seal is confirmed when it is written */
    bool spoken;            /* answers since `processed` rose */
    bool closing, finished, evicted;
    wr_topic_pause pause;
    uint32_t control_result, control_length; /* of the answer */
    uint64_t control_until;                  /* position up to which the log must be synced for it */
    /* under the mutex */
    uint64_t done_written, done_synced, done_head;
    uint32_t in_work;       /* commits that hold a mark of it */
} wr_topic_link;

/* Records of one command, behind each other in the ring: of one queue, with offsets that follow each other. */
typedef struct {
    const wr_topic *topic;
    uint32_t queue, n;
    uint64_t offset, position, store_ms; /* of the first; of all */
    const uint8_t *bytes;
    const uint32_t *sizes;
    const wr_append_part *parts;
} wr_topic_batch;

/* Who derives something from the log (topics/dispatcher.h); a function that is NULL is not called. */
typedef struct {
    void *context;
    /* Records that are about to be appended. False: it has no room for them yet, so they are appended later. On the loop's thread. */
    bool (*records)(void *context, const wr_topic_batch *batch);
    /* All since the last commit are in this one, which was posted, and ends at `end`. On the loop's thread. */
    void (*sealed)(void *context, const wr_commit_head *head, const wr_commit_mark *marks, uint64_t end);
    /* Something of this commit, or of one before, is about to be confirmed. With the committer's turn (kernel/committer.h). */
    void (*confirming)(void *context, uint64_t number);
    /* A commit is written, and synced if that was asked for; or it failed. In order, with the committer's turn, before the last confirms. */
    void (*done)(void *context, const wr_topic_commit *commit);
} wr_topic_follower;

typedef struct wr_topic_server {
    /* set by topics/server.c */
    wr_superblock *super;
    wr_server *me;
    uint32_t server; /* which one of the node's */
    wr_geometry geometry;
    wr_topic_log *log;
    uint64_t tick_ns, commit_bytes;
    uint8_t host[WR_HOST_V4_SIZE]; /* of records: where they were born and stored */
    uint64_t epoch;

    wr_map topics; /* id → wr_topic */
    wr_map high;   /* client epoch → mark */
    wr_topic_link *links[WR_CLIENT_SLOTS];
    uint32_t order[WR_CLIENT_SLOTS], links_n;
    uint64_t wall_ms;        /* the clock, as it was at the round's begin */
    uint64_t store_ms;       /* never lower, and never steps back */
    uint64_t unsealed_since; /* 0: nothing is unsealed */
    uint64_t synced_at;
    bool want_commit, want_sync, unsynced, unknown;
    bool ending;  /* each link has its limit (topics/closing.h) */
    bool awaited; /* a reader sleeps until what is not sealed can be read */
    bool crowded; /* the follower has no room before something is sealed and done */
    uint64_t records_n, processed_n, evicted_n;

    wr_topic_follower follower;

    /* topics/later.h */
    wr_pending pending;
    wr_log_reader reader;
    bool held;                               /* none of them comes: the server ends */
    uint64_t came_n, unreadable_n, unreadable_at; /* messages that came; records that could not be read, and the last one's position */

    /* topics/halves.h */
    wr_halves halves;
    uint64_t half_after_ms, half_interval_ms; /* until one is asked for, and asked for again */
    uint32_t half_checks_max;                 /* so often; 0: without end */
    uint64_t put_aside_n, put_aside_at;       /* for which nobody answered; the last one's position */

    pthread_mutex_t mutex;
} wr_topic_server;

static inline wr_link *wr_topic_shared(const wr_topic_server *s, const wr_topic_link *l) { return &l->view.links[s->server]; }
#endif
