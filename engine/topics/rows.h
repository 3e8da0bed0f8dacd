/* The rows of topics in shared memory, one for each (topic, queue): how far a reader sees, and where it sleeps. A header page
 * (wr_topic_rows), then TOPIC_ROWS_MAX of wr_topic_row, which have memory as far as they were used; then TOPIC_GROUPS_MAX of
 * wr_topic_group_row, one for each group of readers with members, and TOPIC_MEMBERS_MAX of wr_topic_member_row, one for each of those.
 *
 * One writer, the topic worker; readers in any process write `waiters`, and of their member's row `beats` and `calls`. The worker believes
 * nothing of it: a wrong value costs or keeps the member's own queues only.
 * Invariants
 *   A row is found by its key, looked for once. When its topic is deleted the key becomes 0 first, and the row may become another's
 *   later: who read a number looks at the key behind it (wr_topic_row_is). Ids of topics never come again, so neither do keys.
 *   `minimum` rises when messages below it are gone for readers; `bytes` and `from` follow it, and precede the maximum.
 *   `maximum` rises only over messages that have their unit and are durable as far as their producer asked for.
 *   A group's stamp is another one after each change, and none comes again, in no row and after no restart: who has seen one knows by a
 *   single load that nothing has changed, and that the row is still its group's.
 *   `confirmed` is a commit's number before anything of it is confirmed, and `shown` when the maxima have risen over all of it: who reads
 *   `confirmed`, then waits for `shown`, sees all that was confirmed before.
 * Crash points: a reader that is killed asleep stays counted in `waiters`: a system call for each commit, until the next start. A worker
 *   that is killed: the next one has another region, and wakes who sleeps on this one (wr_topic_rows_wake_all).
 */
#ifndef WR_TOPICS_ROWS_H
#define WR_TOPICS_ROWS_H
#include "ipc/core/futex.h"
#include "kernel/protocol.h"
#include <stdbool.h>
#include <stddef.h>

#define WR_TOPIC_GROUPS_AT (sizeof(wr_topic_rows) + (uint64_t)WR_TOPIC_ROWS_MAX * sizeof(wr_topic_row))
#define WR_TOPIC_MEMBERS_AT (WR_TOPIC_GROUPS_AT + (uint64_t)WR_TOPIC_GROUPS_MAX * sizeof(wr_topic_group_row))
#define WR_TOPIC_ROWS_BYTES (WR_TOPIC_MEMBERS_AT + (uint64_t)WR_TOPIC_MEMBERS_MAX * sizeof(wr_topic_member_row))

static inline uint64_t wr_topic_row_key(uint32_t id, uint32_t queue) { return (uint64_t)id << 32 | ((uint64_t)queue + 1); }

static inline wr_topic_row *wr_topic_row_at(const wr_topic_rows *rows, uint32_t n) {
    return (wr_topic_row *)((uintptr_t)rows + sizeof *rows) + n;
}

/* The row of a queue; NULL: the topic is not there (any more, or the worker has not yet heard of it). */
static inline wr_topic_row *wr_topic_row_find(const wr_topic_rows *rows, uint32_t id, uint32_t queue) {
    const uint64_t key = wr_topic_row_key(id, queue);
    /* SYNC row-key: pairs with wr_topic_row_give; what the row says is its own */
    uint64_t n = atomic_load_explicit(&((wr_topic_rows *)(uintptr_t)rows)->rows_n, memory_order_acquire);
    for (uint32_t i = 0; i < n && i < WR_TOPIC_ROWS_MAX; i++) {
        wr_topic_row *row = wr_topic_row_at(rows, i);
        if (atomic_load_explicit(&row->key, memory_order_acquire) == key) return row;
    }
    return NULL;
}

/* Is what was read from a row before this (by acquire) of this queue? */
static inline bool wr_topic_row_is(wr_topic_row *row, uint64_t key) {
    /* SYNC row-key: the numbers were stored behind a key of 0 (release), if they are another's */
    return atomic_load_explicit(&row->key, memory_order_relaxed) == key;
}

static inline wr_topic_wake *wr_topic_wake_of(const wr_topic_rows *rows, uint32_t id) {
    return (wr_topic_wake *)((uintptr_t)rows + offsetof(wr_topic_rows, wakes)) + id % WR_TOPIC_WAKES;
}

/* Sleep until the row's maximum is above `seen`, its topic is deleted, or the time is over; at once if it is so already. Returns 0 (look
 * again; also for nothing: topics share words), ETIMEDOUT or EINTR. Ask for slices of time: whether the worker has another region by now is
 * the caller's to look at. */
static inline int wr_topic_wait(const wr_topic_rows *rows, wr_topic_row *row, uint64_t key, uint64_t seen, uint64_t timeout_ns) {
    wr_topic_wake *wake = wr_topic_wake_of(rows, (uint32_t)(key >> 32));
    int error = 0;
    /* SYNC row-wait: counted, then the sequence, then the maximum; pairs with the fence of wr_topic_wake_readers, which raises the maximum,
     * then looks at the count: one of the two sees the other, and a sequence that rose meanwhile ends the sleep. */
    atomic_fetch_add_explicit(&wake->waiters, 1, memory_order_seq_cst);
    uint32_t sequence = atomic_load_explicit(&wake->sequence, memory_order_acquire);
    atomic_thread_fence(memory_order_seq_cst);
    if (atomic_load_explicit(&row->maximum, memory_order_acquire) <= seen && wr_topic_row_is(row, key))
        error = wr_futex_wait(&wake->sequence, sequence, timeout_ns);
    atomic_fetch_sub_explicit(&wake->waiters, 1, memory_order_relaxed);
    return error;
}

/* ---- groups of readers ---- */

/* What a member has seen of its group. No row (from WR_TOPIC_GROUPS_MAX on): it hears of nothing. */
typedef struct {
    uint32_t row;
    uint64_t stamp;
} wr_topic_group_seen;

static inline wr_topic_group_row *wr_topic_group_row_at(const wr_topic_rows *rows, uint32_t n) {
    return (wr_topic_group_row *)((uintptr_t)rows + WR_TOPIC_GROUPS_AT) + n;
}

/* Has the group changed since? What has changed, its member asks the worker, which says it with the newest stamp: so no order is needed. */
static inline bool wr_topic_group_changed(const wr_topic_rows *rows, const wr_topic_group_seen *seen) {
    if (seen->row >= WR_TOPIC_GROUPS_MAX) return false;
    return atomic_load_explicit(&wr_topic_group_row_at(rows, seen->row)->stamp, memory_order_relaxed) != seen->stamp;
}

static inline wr_topic_member_row *wr_topic_member_row_at(const wr_topic_rows *rows, uint32_t n) {
    return (wr_topic_member_row *)((uintptr_t)rows + WR_TOPIC_MEMBERS_AT) + n;
}

/* The process of a member runs, and its program has made that many calls. A row that another member has by now is left alone. A process that
 * was stopped between the check and the store gives that member one beat too many, which only delays its end. */
static inline void wr_topic_member_beat(const wr_topic_rows *rows, uint32_t n, uint64_t member, uint64_t calls) {
    if (n >= WR_TOPIC_MEMBERS_MAX) return;
    wr_topic_member_row *row = wr_topic_member_row_at(rows, n);
    if (atomic_load_explicit(&row->member, memory_order_relaxed) != member) return;
    atomic_store_explicit(&row->calls, calls, memory_order_relaxed);
    atomic_fetch_add_explicit(&row->beats, 1, memory_order_relaxed);
}

/* ---- what was confirmed, and is not shown yet ---- */

#define WR_TOPIC_HELD_WORK 1u /* what is derived finds no space, or no memory */
#define WR_TOPIC_HELD_LOG 2u  /* the log takes nothing more: what was not synced is not shown */

/* The newest commit of which something was confirmed before this. */
static inline uint64_t wr_topic_confirmed_commit(const wr_topic_rows *rows) {
    /* SYNC topic-confirmed: who was told of a confirm sees the number that was stored before it, and what was appended by then */
    return atomic_load_explicit(&((wr_topic_rows *)(uintptr_t)rows)->confirmed, memory_order_acquire);
}

static inline bool wr_topic_is_shown(const wr_topic_rows *rows, uint64_t number) {
    /* SYNC topic-shown: pairs with wr_topic_show; the maxima that are read behind this are above all of the commit */
    return atomic_load_explicit(&((wr_topic_rows *)(uintptr_t)rows)->shown, memory_order_acquire) >= number;
}

static inline bool wr_topic_is_held(const wr_topic_rows *rows) {
    return atomic_load_explicit(&((wr_topic_rows *)(uintptr_t)rows)->held, memory_order_relaxed) != 0;
}

static inline wr_topic_wake *wr_topic_shown_wake(const wr_topic_rows *rows) {
    return (wr_topic_wake *)((uintptr_t)rows + offsetof(wr_topic_rows, shown_wake));
}

/* Sleep until a commit is shown, what shows it is held up, or the time is over; at once if it is so already. As wr_topic_wait. */
static inline int wr_topic_wait_shown(const wr_topic_rows *rows, uint64_t number, uint64_t timeout_ns) {
    wr_topic_wake *wake = wr_topic_shown_wake(rows);
    int error = 0;
    /* SYNC row-wait */
    atomic_fetch_add_explicit(&wake->waiters, 1, memory_order_seq_cst);
    uint32_t sequence = atomic_load_explicit(&wake->sequence, memory_order_acquire);
    atomic_thread_fence(memory_order_seq_cst);
    if (!wr_topic_is_shown(rows, number) && !wr_topic_is_held(rows)) error = wr_futex_wait(&wake->sequence, sequence, timeout_ns);
    atomic_fetch_sub_explicit(&wake->waiters, 1, memory_order_relaxed);
    return error;
}

/* ---- the worker ---- */

/* A row that is free becomes that of a queue, with its numbers; rows_n is above it. */
static inline void wr_topic_row_give(wr_topic_rows *rows, uint32_t n, uint64_t key, uint64_t minimum, uint64_t maximum) {
    wr_topic_row *row = wr_topic_row_at(rows, n);
    atomic_thread_fence(memory_order_release); /* SYNC row-key: behind the key of 0 that it had */
    atomic_store_explicit(&row->minimum, minimum, memory_order_relaxed);
    atomic_store_explicit(&row->maximum, maximum, memory_order_release);
    atomic_store_explicit(&row->appended, maximum, memory_order_relaxed);
    atomic_store_explicit(&row->bytes, 0, memory_order_relaxed);
    atomic_store_explicit(&row->from, UINT64_MAX, memory_order_relaxed);
    atomic_store_explicit(&row->delayed, 0, memory_order_relaxed);
    atomic_store_explicit(&row->halves, 0, memory_order_relaxed);
    /* SYNC row-key: pairs with wr_topic_row_find */
    atomic_store_explicit(&row->key, key, memory_order_release);
    if (atomic_load_explicit(&rows->rows_n, memory_order_relaxed) <= n) atomic_store_explicit(&rows->rows_n, (uint64_t)n + 1, memory_order_release);
}

static inline void wr_topic_row_take(wr_topic_rows *rows, uint32_t n) {
    atomic_store_explicit(&wr_topic_row_at(rows, n)->key, 0, memory_order_release);
}

/* Behind what was raised: wake those who sleep on a pair of words, if there are any. */
static inline void wr_topic_wake_up(wr_topic_wake *wake) {
    atomic_thread_fence(memory_order_seq_cst); /* SYNC row-wait */
    if (!atomic_load_explicit(&wake->waiters, memory_order_relaxed)) return;
    atomic_fetch_add_explicit(&wake->sequence, 1, memory_order_release);
    wr_futex_wake_all(&wake->sequence);
}

static inline void wr_topic_wake_readers(const wr_topic_rows *rows, uint32_t id) { wr_topic_wake_up(wr_topic_wake_of(rows, id)); }

/* A group has changed; stamp 0: it has no members any more, and the row may be given to another. Its members may sleep with the topic's
 * readers: the fence of wr_topic_wake_up lies between the stamp and the look at `waiters` (SYNC row-wait). */
static inline void wr_topic_group_tell(const wr_topic_rows *rows, uint32_t n, uint32_t topic, uint64_t stamp) {
    atomic_store_explicit(&wr_topic_group_row_at(rows, n)->stamp, stamp, memory_order_relaxed);
    wr_topic_wake_readers(rows, topic);
}

/* A free row becomes that of a member, or (member 0) it is free. */
static inline void wr_topic_member_give(wr_topic_rows *rows, uint32_t n, uint64_t member, uint64_t group, uint64_t called) {
    wr_topic_member_row *row = wr_topic_member_row_at(rows, n);
    atomic_store_explicit(&row->group, group, memory_order_relaxed);
    atomic_store_explicit(&row->called, called, memory_order_relaxed);
    atomic_store_explicit(&row->member, member, memory_order_release);
    if (atomic_load_explicit(&rows->members_n, memory_order_relaxed) <= n)
        atomic_store_explicit(&rows->members_n, (uint64_t)n + 1, memory_order_release);
}

/* All up to this commit is shown, for no later one there is (before the rows are given). */
static inline void wr_topic_rows_begin(wr_topic_rows *rows, uint64_t number) {
    atomic_store_explicit(&rows->shown, number, memory_order_release);
    atomic_store_explicit(&rows->confirmed, number, memory_order_release);
}

/* Something of a commit is about to be confirmed. By one thread. */
static inline void wr_topic_confirm_from(wr_topic_rows *rows, uint64_t number) {
    /* SYNC topic-confirmed: before the horizons of its clients */
    if (atomic_load_explicit(&rows->confirmed, memory_order_relaxed) < number) atomic_store_explicit(&rows->confirmed, number, memory_order_release);
}

/* The maxima are above all of a commit. By one thread. */
static inline void wr_topic_show(wr_topic_rows *rows, uint64_t number) {
    /* SYNC topic-shown */
    atomic_store_explicit(&rows->shown, number, memory_order_release);
    wr_topic_wake_up(wr_topic_shown_wake(rows));
}

/* Something keeps commits from being shown, or does so no longer. */
static inline void wr_topic_hold(wr_topic_rows *rows, uint32_t bit, bool held) {
    if (held) atomic_fetch_or_explicit(&rows->held, bit, memory_order_relaxed);
    else atomic_fetch_and_explicit(&rows->held, ~bit, memory_order_relaxed);
    if (held) wr_topic_wake_up(wr_topic_shown_wake(rows));
}

/* The region ends, or is a dead worker's: nobody sleeps on it. */
static inline void wr_topic_rows_wake_all(const wr_topic_rows *rows) {
    for (uint32_t i = 0; i < WR_TOPIC_WAKES; i++) {
        atomic_fetch_add_explicit(&wr_topic_wake_of(rows, i)->sequence, 1, memory_order_release);
        wr_futex_wake_all(&wr_topic_wake_of(rows, i)->sequence);
    }
    atomic_fetch_add_explicit(&wr_topic_shown_wake(rows)->sequence, 1, memory_order_release);
    wr_futex_wake_all(&wr_topic_shown_wake(rows)->sequence);
}
#endif
