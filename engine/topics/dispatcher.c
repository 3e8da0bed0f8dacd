/* The dispatcher. What it is: topics/dispatcher.h. */
#include "topics/dispatcher.h"
#include "topics/notes.h"
#include <assert.h>
#include <pthread.h>

#define CHECKPOINT_NS 1000000000ull
#define AGAIN_NS 200000000ull /* until something is tried again: the log is not synced, or there is no space */
#define IDLE_NS 60000000000ull
#define RECORDS_AT_ONCE 64u
#define LENT_RECORDS 64u /* of a commit that others apply in the dispatcher's place */

#define CLEAN_AT_ONCE 16u /* queues whose files are removed before others are served */

/* A topic that comes, with its name, or goes; or messages of it, or files of the log, that go. */
typedef struct a_job {
    struct a_job *next;
    enum { JOB_ADD, JOB_DROP, JOB_RETAIN, JOB_RETAIN_LOG } kind;
    uint32_t id, queues_n, name_n;
    uint64_t ticket, first;
    const char *name;       /* behind the rows */
    const uint64_t *minima; /* instead of rows */
    uint32_t rows[];
} a_job;

struct wr_dispatcher {
    wr_dispatcher_options o;
    wr_notes *notes;
    /* who has the turn: the dispatcher, but while it sleeps */
    pthread_mutex_t turn;
    bool changed;           /* since the last checkpoint */
    uint64_t checkpoint_at; /* not before */
    uint64_t again_at;      /* a job or a commit is tried again then; 0: none is */
    int work_error, checkpoint_error; /* of what is tried again */
    bool cleans;            /* files that nobody needs are left */
    /* under the mutex */
    pthread_mutex_t mutex;
    a_job *jobs, **jobs_end; /* to do, in order */
    a_job *dropped;
    uint64_t *gone; /* clients */
    uint64_t tickets_n;
    uint32_t gone_n, gone_room;
    /* all */
    _Alignas(64) _Atomic uint64_t done_number, synced; /* commits up to this one are done; the log's horizon (committer) */
    _Atomic uint32_t jobs_n; /* that are to do */
    _Atomic uint32_t stop, sleeps;
    _Atomic int trouble, failed, clean_error;
    _Atomic uint64_t position, checkpoints_n, saved_position, retained, saved;
};

wr_dispatcher *wr_dispatcher_new(const wr_dispatcher_options *options) {
    wr_dispatcher *d = aligned_alloc(64, (sizeof *d + 63) & ~(size_t)63);
    wr_notes *notes = wr_notes_new(options->slots_n);
    if (!d || !notes) {
        free(d);
        wr_notes_free(notes);
        return NULL;
    }
    memset((void *)d, 0, sizeof *d);
    d->o = *options;
    d->notes = notes;
    d->jobs_end = &d->jobs;
    d->done_number = options->number;
    d->synced = d->position = options->synced;
    d->changed = true; /* catching up stored what no checkpoint says yet */
    d->checkpoint_at = wr_now_ns() + CHECKPOINT_NS;
    pthread_mutex_init(&d->mutex, NULL);
    pthread_mutex_init(&d->turn, NULL);
    return d;
}

static void free_jobs(a_job *job) {
    while (job) {
        a_job *next = job->next;
        free(job);
        job = next;
    }
}

void wr_dispatcher_free(wr_dispatcher *d) {
    if (!d) return;
    free_jobs(d->jobs);
    free_jobs(d->dropped);
    free(d->gone);
    wr_notes_free(d->notes);
    pthread_mutex_destroy(&d->mutex);
    pthread_mutex_destroy(&d->turn);
    free(d);
}

static bool has_failed(const wr_dispatcher *d) { return atomic_load_explicit((_Atomic int *)&d->failed, memory_order_relaxed); }

/* ---- the follower ---- */

static void go_on(wr_dispatcher *d);

static bool note_records(void *context, const wr_topic_batch *batch) { return wr_notes_put(((wr_dispatcher *)context)->notes, batch); }

static void note_sealed(void *context, const wr_commit_head *head, const wr_commit_mark *marks, uint64_t end) {
    wr_dispatcher *d = context;
    wr_notes_seal(d->notes, head, marks, end);
    atomic_thread_fence(memory_order_seq_cst); /* SYNC sealed-and-done: noted, then looked whether it is done; note_done the other way round */
    if (atomic_load_explicit(&d->done_number, memory_order_relaxed) >= head->number) go_on(d);
}

static void note_confirming(void *context, uint64_t number) { wr_topic_confirm_from(((wr_dispatcher *)context)->o.rows, number); }

static void note_done(void *context, const wr_topic_commit *commit) {
    wr_dispatcher *d = context;
    if (commit->error) { /* it and all behind it are in the next start's walk, or nowhere */
        wr_topic_hold(d->o.rows, WR_TOPIC_HELD_LOG, true);
        return;
    }
    if (commit->sync) atomic_store_explicit(&d->synced, commit->to, memory_order_release);
    atomic_store_explicit(&d->done_number, commit->head.number, memory_order_release);
    atomic_thread_fence(memory_order_seq_cst); /* SYNC sealed-and-done */
    go_on(d);
}

wr_topic_follower wr_dispatcher_follower(wr_dispatcher *d) { return (wr_topic_follower){d, note_records, note_sealed, note_confirming, note_done}; }

wr_dispatcher_state wr_dispatcher_look(const wr_dispatcher *dispatcher) {
    wr_dispatcher *d = (wr_dispatcher *)(uintptr_t)dispatcher;
    return (wr_dispatcher_state){.trouble = atomic_load_explicit(&d->trouble, memory_order_relaxed),
                                 .failed = atomic_load_explicit(&d->failed, memory_order_acquire),
                                 .position = atomic_load_explicit(&d->position, memory_order_relaxed),
                                 .checkpoints_n = atomic_load_explicit(&d->checkpoints_n, memory_order_relaxed),
                                 .saved_position = atomic_load_explicit(&d->saved_position, memory_order_acquire),
                                 .retained = atomic_load_explicit(&d->retained, memory_order_acquire),
                                 .saved = atomic_load_explicit(&d->saved, memory_order_acquire),
                                 .clean_error = atomic_load_explicit(&d->clean_error, memory_order_relaxed)};
}

/* ---- topics come and go ---- */

static void post_job(wr_dispatcher *d, a_job *job) {
    pthread_mutex_lock(&d->mutex);
    job->next = NULL;
    job->ticket = job->kind == JOB_RETAIN || job->kind == JOB_RETAIN_LOG ? ++d->tickets_n : 0;
    *d->jobs_end = job;
    d->jobs_end = &job->next;
    atomic_fetch_add_explicit(&d->jobs_n, 1, memory_order_release);
    pthread_mutex_unlock(&d->mutex);
    wr_bell_ring(&d->sleeps);
}

static int post(wr_dispatcher *d, const wr_dispatch_topic *topic, bool drop, const uint32_t *rows) {
    const size_t rows_bytes = topic->queues_n * sizeof *rows;
    a_job *job = malloc(sizeof *job + rows_bytes + topic->name_n);
    if (!job) return ENOMEM;
    char *name = (char *)job->rows + rows_bytes;
    *job = (a_job){.kind = drop ? JOB_DROP : JOB_ADD, .id = topic->id, .queues_n = topic->queues_n, .name_n = topic->name_n, .name = name};
    memcpy(job->rows, rows, rows_bytes);
    if (topic->name_n) memcpy(name, topic->name, topic->name_n);
    post_job(d, job);
    return 0;
}

int wr_dispatcher_retain(wr_dispatcher *d, uint32_t id, const uint64_t *minima, uint32_t queues_n, uint64_t first, uint64_t *ticket) {
    const size_t bytes = minima ? queues_n * sizeof *minima : 0, head = (sizeof(a_job) + 7) & ~(size_t)7;
    a_job *job = malloc(head + bytes);
    if (!job) return ENOMEM;
    uint64_t *to = (uint64_t *)(void *)((uint8_t *)job + head);
    *job = (a_job){.kind = minima ? JOB_RETAIN : JOB_RETAIN_LOG, .id = id, .queues_n = minima ? queues_n : 0, .first = first, .minima = to};
    if (bytes) memcpy(to, minima, bytes);
    post_job(d, job);
    *ticket = d->tickets_n; /* of the loop's thread, which alone posts */
    return 0;
}

int wr_dispatcher_add(wr_dispatcher *d, const wr_dispatch_topic *topic, const uint32_t *rows) { return post(d, topic, false, rows); }

int wr_dispatcher_drop(wr_dispatcher *d, uint32_t id, const uint32_t *rows, uint32_t n) {
    const wr_dispatch_topic topic = {.id = id, .queues_n = n};
    return post(d, &topic, true, rows);
}

void wr_dispatcher_dropped(wr_dispatcher *d, void (*give)(void *context, uint32_t row), void *context) {
    pthread_mutex_lock(&d->mutex);
    a_job *dropped = d->dropped;
    d->dropped = NULL;
    pthread_mutex_unlock(&d->mutex);
    for (const a_job *job = dropped; job; job = job->next)
        for (uint32_t queue = 0; queue < job->queues_n; queue++) give(context, job->rows[queue]);
    free_jobs(dropped);
}

void wr_dispatcher_forget(wr_dispatcher *d, uint64_t client_epoch) {
    pthread_mutex_lock(&d->mutex);
    if (d->gone_n == d->gone_room) {
        const uint32_t room = d->gone_room ? 2 * d->gone_room : 16;
        uint64_t *gone = realloc(d->gone, room * sizeof *gone);
        if (gone) d->gone = gone, d->gone_room = room;
    }
    if (d->gone_n < d->gone_room) d->gone[d->gone_n++] = client_epoch;
    pthread_mutex_unlock(&d->mutex);
}

/* Their commits were done when they went, and what is done is applied. */
static void forget_clients(wr_dispatcher *d, uint32_t n) {
    pthread_mutex_lock(&d->mutex);
    for (uint32_t i = 0; i < n; i++) wr_dispatch_forget(d->o.dispatch, d->gone[i]);
    d->gone_n -= n;
    memmove(d->gone, d->gone + n, d->gone_n * sizeof *d->gone);
    pthread_mutex_unlock(&d->mutex);
}

static int add_topic(const wr_dispatcher *d, const a_job *job) {
    const wr_dispatch_topic topic = {.id = job->id, .queues_n = job->queues_n, .name = job->name, .name_n = job->name_n};
    int error = wr_dispatch_add(d->o.dispatch, &topic, job->rows);
    for (uint32_t queue = 0; !error && queue < job->queues_n; queue++)
        wr_dispatch_show(d->o.dispatch, job->rows[queue], wr_topic_row_at(d->o.rows, job->rows[queue]));
    return error;
}

/* Of a topic that was dropped there is nothing to retain. */
static int retain(const wr_dispatcher *d, const a_job *job) {
    int error = 0;
    for (uint32_t queue = 0; !error && queue < job->queues_n; queue++) {
        const uint32_t row = wr_dispatch_row_of(d->o.dispatch, job->id, queue);
        if (row != UINT32_MAX) error = wr_dispatch_retain(d->o.dispatch, row, job->minima[queue]);
    }
    return error;
}

static int execute(const wr_dispatcher *d, const a_job *job) {
    switch (job->kind) {
    case JOB_ADD:
        return add_topic(d, job);
    case JOB_DROP: /* what is left of a folder costs space until the next start, which removes it */
        wr_dispatch_drop(d->o.dispatch, job->id);
        return 0;
    case JOB_RETAIN:
        return retain(d, job);
    case JOB_RETAIN_LOG:
        wr_dispatch_retain_log(d->o.dispatch, job->first);
        /* SYNC rows-first: before a file of the log is removed */
        atomic_store_explicit(&d->o.rows->first, wr_dispatch_first(d->o.dispatch), memory_order_release);
        return 0;
    }
    return EINVAL;
}

/* The first job, if there is one. 0, or an errno: then it is tried again. */
static int do_job(wr_dispatcher *d) {
    pthread_mutex_lock(&d->mutex);
    a_job *job = d->jobs;
    pthread_mutex_unlock(&d->mutex);
    int error = execute(d, job);
    if (error) return error;
    const bool drop = job->kind == JOB_DROP;
    const uint64_t ticket = job->ticket;
    pthread_mutex_lock(&d->mutex);
    if (!(d->jobs = job->next)) d->jobs_end = &d->jobs;
    job->next = d->dropped;
    if (drop) d->dropped = job;
    pthread_mutex_unlock(&d->mutex);
    if (!drop) free(job);
    if (ticket) atomic_store_explicit(&d->retained, ticket, memory_order_release);
    d->changed = true;
    atomic_fetch_sub_explicit(&d->jobs_n, 1, memory_order_relaxed);
    return 0;
}

/* ---- commits ---- */

static bool is_done(wr_dispatcher *d, const wr_noted_commit *commit) {
    /* SYNC commit-done: pairs with note_done */
    return commit->head.number <= atomic_load_explicit(&d->done_number, memory_order_acquire);
}

static void wake_readers(const wr_dispatcher *d, uint32_t wakes) {
    for (uint32_t i = 0; wakes; i++, wakes >>= 1)
        if (wakes & 1) wr_topic_wake_readers(d->o.rows, i);
}

static int apply(wr_dispatcher *d, wr_noted_commit *commit) {
    wr_dispatch_record records[RECORDS_AT_ONCE];
    wr_commit_mark marks[WR_COMMIT_MARKS_MAX];
    uint32_t n, wakes;
    commit->head.origin = d->o.origin;
    d->changed = true;
    for (uint32_t at = 0; (n = wr_notes_records(d->notes, commit, at, records, RECORDS_AT_ONCE)); at += n) {
        int error = wr_dispatch_put(d->o.dispatch, records, n);
        if (error) return error;
    }
    wr_notes_marks(d->notes, commit, marks);
    int error = wr_dispatch_end(d->o.dispatch, &commit->head, marks, commit->end, &wakes);
    if (error) return error;
    wr_topic_show(d->o.rows, commit->head.number);
    wake_readers(d, wakes);
    atomic_store_explicit(&d->position, commit->end, memory_order_relaxed);
    if (wr_notes_drop(d->notes, commit)) wr_bell_ring(d->o.bell);
    return 0;
}

static bool passes(int error) { return error == ENOSPC || error == EDQUOT || error == ENOMEM; }

/* What became of something: it went well, is tried again, or ends the dispatcher. */
static void judge(wr_dispatcher *d, int *kept, int error) {
    const int before = atomic_load_explicit(&d->trouble, memory_order_relaxed);
    if (error && !passes(error)) atomic_store_explicit(&d->failed, error, memory_order_release);
    *kept = passes(error) ? error : 0;
    const int trouble = d->work_error ? d->work_error : d->checkpoint_error;
    atomic_store_explicit(&d->trouble, trouble, memory_order_relaxed);
    if (trouble != before || (error && !passes(error))) wr_bell_ring(d->o.bell);
}

/* Do what there is, as far as it can be done. */
static void work(wr_dispatcher *d) {
    wr_noted_commit commit;
    int error = 0;
    for (;;) {
        /* SYNC dispatch-jobs: a topic's job is posted before its records are noted, so it is seen with them */
        bool noted = wr_notes_look(d->notes, &commit) && is_done(d, &commit);
        if (atomic_load_explicit(&d->jobs_n, memory_order_acquire)) error = do_job(d);
        else if (noted) error = apply(d, &commit);
        else break;
        if (error) break;
    }
    d->again_at = error ? wr_now_ns() + AGAIN_NS : 0;
    if (passes(error) != wr_topic_is_held(d->o.rows)) wr_topic_hold(d->o.rows, WR_TOPIC_HELD_WORK, passes(error));
    judge(d, &d->work_error, error);
}

/* ---- checkpoints and sleep ---- */

static void take_checkpoint(wr_dispatcher *d) {
    wr_noted_commit commit;
    pthread_mutex_lock(&d->mutex);
    const uint32_t gone_n = d->gone_n; /* before the look: what was done of theirs is seen by it */
    pthread_mutex_unlock(&d->mutex);
    if (gone_n && !(wr_notes_look(d->notes, &commit) && is_done(d, &commit))) forget_clients(d, gone_n);
    const uint64_t position = atomic_load_explicit(&d->position, memory_order_relaxed), retained = atomic_load_explicit(&d->retained, memory_order_relaxed);
    int error = wr_dispatch_checkpoint(d->o.dispatch, atomic_load_explicit(&d->synced, memory_order_acquire));
    d->checkpoint_at = wr_now_ns() + (error ? AGAIN_NS : CHECKPOINT_NS);
    if (error == EAGAIN) return; /* the log is not synced so far: it will be */
    if (!error) {
        d->changed = false;
        d->cleans = true;
        atomic_fetch_add_explicit(&d->checkpoints_n, 1, memory_order_relaxed);
        atomic_store_explicit(&d->saved_position, position, memory_order_release);
        atomic_store_explicit(&d->saved, retained, memory_order_release);
    }
    judge(d, &d->checkpoint_error, error);
}

/* Files that nobody needs, a few at a time. What could not be removed costs space, and nothing else. */
static void clean(wr_dispatcher *d) {
    atomic_store_explicit(&d->clean_error, wr_dispatch_clean(d->o.dispatch, CLEAN_AT_ONCE, &d->cleans), memory_order_relaxed);
}

static bool has_work(wr_dispatcher *d) {
    wr_noted_commit commit;
    if (d->again_at && wr_now_ns() < d->again_at) return false;
    return atomic_load_explicit(&d->jobs_n, memory_order_acquire) || (wr_notes_look(d->notes, &commit) && is_done(d, &commit));
}

static void sleep_until_rung(wr_dispatcher *d) {
    uint64_t now = wr_now_ns(), until = now + IDLE_NS;
    if (d->changed && d->checkpoint_at < until) until = d->checkpoint_at;
    if (d->again_at && d->again_at < until) until = d->again_at;
    if (d->cleans) until = now;
    /* SYNC sleep: announce, look once more, then sleep; who publishes work rings after it (futex.h) */
    atomic_store_explicit(&d->sleeps, 1, memory_order_relaxed);
    atomic_thread_fence(memory_order_seq_cst);
    const bool sleep = until > now && !has_work(d) && !atomic_load_explicit(&d->stop, memory_order_acquire);
    pthread_mutex_unlock(&d->turn);
    if (sleep) wr_futex_wait(&d->sleeps, 1, until - now);
    pthread_mutex_lock(&d->turn);
    atomic_store_explicit(&d->sleeps, 0, memory_order_relaxed);
}

/* Is there one commit, and a small one, and nothing else? */
static bool is_little(wr_dispatcher *d) {
    wr_noted_commit commit;
    if (d->again_at || has_failed(d) || atomic_load_explicit(&d->jobs_n, memory_order_acquire)) return false;
    return wr_notes_look(d->notes, &commit) && commit.records_n <= LENT_RECORDS && is_done(d, &commit);
}

/* On the committer's thread, or the loop's: a commit is done and sealed, as far as is known here. It is applied at once where the dispatcher
 * sleeps and it is little; else the dispatcher is woken. */
static void go_on(wr_dispatcher *d) {
    bool lent = false;
    if (atomic_load_explicit(&d->sleeps, memory_order_relaxed) && pthread_mutex_trylock(&d->turn) == 0) {
        const bool knows = d->changed; /* when the next checkpoint is due */
        if (is_little(d)) work(d);
        lent = knows && !d->again_at && !has_failed(d) && !has_work(d);
        pthread_mutex_unlock(&d->turn);
    }
    if (!lent) wr_bell_ring(&d->sleeps);
}

static void run(wr_dispatcher *d) {
    while (!has_failed(d) && !atomic_load_explicit(&d->stop, memory_order_acquire)) {
        if (has_work(d)) work(d);
        if (!has_failed(d) && d->changed && !d->again_at && wr_now_ns() >= d->checkpoint_at) take_checkpoint(d);
        if (!has_failed(d) && d->cleans) clean(d);
        if (!has_failed(d)) sleep_until_rung(d);
    }
    if (has_failed(d)) return;
    d->again_at = 0;
    work(d);
    if (d->changed && !d->again_at && !has_failed(d)) take_checkpoint(d);
}

void wr_dispatcher_run(wr_dispatcher *d) {
    pthread_mutex_lock(&d->turn);
    run(d);
    pthread_mutex_unlock(&d->turn);
}

void wr_dispatcher_stop(wr_dispatcher *d) {
    atomic_store_explicit(&d->stop, 1, memory_order_release);
    wr_bell_ring(&d->sleeps);
}
