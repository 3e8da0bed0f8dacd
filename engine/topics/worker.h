/* A topic worker's parts put together: log, server, dispatch and its thread, rows in shared memory (docs/design/020-topic-worker.md).
 *
 * The order of a life: new, topics declared, look, recover (the log is walked, consume queues and index catch up), settle, begin, a file offered;
 * clients attached, serve; then wr_topic_run in turns (topics/loop.h), with the committer and the dispatcher on threads of their own; sync,
 * stop, free.
 *
 * Threads: the loop's calls everything but wr_topic_request_stop and wr_topic_kick (any thread, a signal handler), and the lives of the two threads.
 * Invariants
 *   A topic has its rows from its declaration to its drop; numbers of rows are used again when the dispatcher is done with them.
 *   Nothing is confirmed, shown or written before what was found is on stable storage (settle).
 */
#ifndef WR_TOPICS_WORKER_H
#define WR_TOPICS_WORKER_H
#include "topics/dispatcher.h"
#include "topics/halves.h"
#include "topics/later.h"
#include "topics/preview.h"
#include "topics/server.h"
#include "topics/system_record.h"

typedef struct {
    wr_superblock *super;
    uint32_t server;
    int folder; /* of topics: a descriptor, which outlives this */
    wr_topic_rows *rows; /* zeroed; the header page has memory, and the rest where the kernel gives none ahead */
    uint32_t rows_max;
    void *ring; /* of wr_topic_ring_map */
    uint64_t ring_bytes;
    uint8_t node[16], boot[16];
    uint64_t log_file_bytes;
    uint32_t consume_queue_entries, index_slots, index_entries;
    uint64_t spin_ns, tick_ns, commit_bytes;
    uint64_t delayed_max; /* messages that are to come later; 0: any number */
    uint64_t halves_max, half_outcomes_kept; /* half messages that are pending, and others of which it is kept what became; 0: any number, as is */
    uint64_t half_after_ms, half_interval_ms; /* until one is asked for, and asked for again; 0: as is */
    uint32_t half_checks_max; /* so often */
} wr_topic_worker_options;

typedef struct wr_topic_worker {
    wr_topic_worker_options o;
    wr_topic_server s;
    wr_dispatch *dispatch;
    wr_dispatcher *dispatcher; /* NULL before begin */
    wr_log_end end;            /* what was found */
    uint64_t first;            /* begin of the log's first file */
    uint64_t messages_n;       /* at begin, of all topics */
    uint32_t *free_rows, free_rows_n, rows_n, rows_ready; /* free ones; ever used; those that have memory */
    bool groups_ready;         /* so have the rows of groups */
    uint32_t members_ready;    /* rows of members that have memory */
    uint64_t seen_slots_version, seen_catalog_version;
    uint32_t offered;          /* events that are being handled: not told again */
    bool failed_told;
    _Atomic uint32_t stop, kick;
    uint64_t spin_ns, published_ns, wakes_n;
} wr_topic_worker;

/* NULL with errno. */
wr_topic_worker *wr_topic_worker_new(const wr_topic_worker_options *options);
void wr_topic_worker_free(wr_topic_worker *w); /* both threads have ended */

/* Topics. 0; ENOMEM, of shared memory, too; EEXIST; EINVAL: no such name or number of queues; ENOSPC: there are as many rows as can be. */
int wr_topic_worker_declare(wr_topic_worker *w, uint32_t id, const char *name, uint32_t name_n, uint32_t queues_n);
int wr_topic_worker_drop(wr_topic_worker *w, uint32_t id); /* ENOENT; ENOMEM */

/* The row of a group of readers of a topic has another stamp; 0: it is no group's any more. ENOMEM of shared memory; EINVAL: no such row. */
int wr_topic_worker_tell_group(wr_topic_worker *w, uint32_t row, uint32_t topic, uint64_t stamp);
/* Give a row to a member of a group, with the time of its last call; member 0 frees it. ENOMEM: shared memory is full; EINVAL: no such row. */
int wr_topic_worker_give_member(wr_topic_worker *w, uint32_t row, uint64_t member, uint64_t group, uint64_t called);
/* The counters that a member wrote into its row. EINVAL: no such row. */
int wr_topic_worker_member(const wr_topic_worker *w, uint32_t row, uint64_t *beats, uint64_t *calls);
/* Retention: as wr_dispatcher_retain. ENOENT: there is no such topic. */
int wr_topic_worker_retain(wr_topic_worker *w, uint32_t id, const uint64_t *minima, uint32_t queues_n, uint64_t *ticket);

/* Look at the log, from its file `first` on at most, and at the checkpoint; nothing is written. 0 with *kind and *looked, or an errno. */
int wr_topic_worker_look(const wr_topic_worker *w, uint64_t first, wr_checkpoint_kind *kind, wr_log_previewed *looked);
/* Walk the log, from its file `first` on at most. 0 with w->end and *kind, or an errno; w->end.damaged, w->end.foreign: nothing more can be done. */
int wr_topic_worker_recover(wr_topic_worker *w, uint64_t first, wr_checkpoint_kind *kind);
int wr_topic_worker_settle(wr_topic_worker *w);
/* Bodies of the records of a system topic from a position behind the commit (epoch, number) on, or (`anew`) from the file that begins there; in
 * order, between settle and begin. As wr_system_read. */
int wr_topic_worker_system(const wr_topic_worker *w, const wr_system_walk *what, bool anew, uint64_t position, uint64_t epoch, uint64_t number,
                           wr_log_end *end);
/* Take up the messages that are to come later from there on, as wr_topic_worker_system, behind what wr_later_decode has taken up (`anew`: it is
 * forgotten). *end: where the walk ended: at w->end.position, or something is between. *gaps: damaged places that were passed by (`anew`). */
int wr_topic_worker_later(wr_topic_worker *w, bool anew, uint64_t position, uint64_t epoch, uint64_t number, uint64_t *end, uint32_t *gaps);
/* The same of half messages, behind what wr_halves_decode has taken up. */
int wr_topic_worker_halves(wr_topic_worker *w, bool anew, uint64_t position, uint64_t epoch, uint64_t number, uint64_t *end, uint32_t *gaps);
/* The log goes on behind what was found, by a server of this epoch (higher than all before it); rows are shown. 0 or an errno. */
int wr_topic_worker_begin(wr_topic_worker *w, uint64_t epoch);
/* A client, with what the log says of it. As wr_topic_attach. */
int wr_topic_worker_attach(wr_topic_worker *w, uint32_t slot, uint32_t generation, uint64_t client_epoch, void *region, uint64_t bytes);

/* All clients that were there are attached: what the log says of others is forgotten, and the links are served under this epoch. Before the
 * threads run. ENOMEM: nothing was forgotten; it serves all the same. */
int wr_topic_worker_serve(wr_topic_worker *w, uint64_t epoch);
bool wr_topic_worker_detach(wr_topic_worker *w, uint32_t slot); /* as wr_topic_detach */

void wr_topic_request_stop(wr_topic_worker *w);
void wr_topic_kick(wr_topic_worker *w); /* the running or next run returns with KICK */
#endif
