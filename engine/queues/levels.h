/* READY rows of a queue with a policy: how many, how many expire, and by priority in which chunks; and the list of
 * queues to be looked at by the clock. The hooks are inline: one test for a plain queue.
 *
 * Its invariants: queues/queue.h.
 */
#ifndef WR_QUEUES_LEVELS_H
#define WR_QUEUES_LEVELS_H
#include "queues/queue.h"

wr_policy *wr_policy_of(wr_queue *q); /* made if need be */

/* Once, before anything is in the queue. */
void wr_policy_set(wr_queue *q, const wr_policy_options *options);
void wr_policy_free(wr_queue *q);
void wr_policy_forget(wr_queue_engine *e, const wr_queue *q); /* the queue goes: it is in no list any more */
void wr_policy_look_at(wr_queue_engine *e, wr_queue *q, uint64_t when);

static inline uint32_t wr_ready_level(const wr_policy *p, const wr_entry *entry) {
    return entry->priority < p->o.max_priority ? entry->priority : p->o.max_priority;
}

bool wr_policy_too_long(const wr_queue *q);
void wr_policy_comes(wr_queue_engine *e, wr_queue *q, uint64_t sequence, const wr_entry *entry);
void wr_policy_goes(wr_queue *q, uint64_t sequence, const wr_entry *entry);
void wr_policy_other_goes(wr_queue *q, uint64_t sequence, const wr_entry *entry); /* neither READY nor UNACKED */

/* Rows of a chunk that came back from a damaged segment are missing: its ready rows are counted anew. */
void wr_policy_damaged(wr_queue *q, uint64_t number, const wr_chunk *chunk, uint64_t lost_bytes);

static inline void wr_ready_comes(wr_queue_engine *e, wr_queue *q, uint64_t sequence, const wr_entry *entry) {
    if (q->policy || entry->expires) wr_policy_comes(e, q, sequence, entry);
}

static inline void wr_ready_goes(wr_queue *q, uint64_t sequence, const wr_entry *entry) {
    if (q->policy) wr_policy_goes(q, sequence, entry);
}

/* Rows that are neither ready nor unacked. */
static inline uint64_t wr_aside_n(const wr_queue *q) { return q->policy ? q->policy->delayed_n + q->policy->dying_n : 0; }

/* The highest level below `end` that has rows, -1: none; the lowest from `first` on. */
static inline int wr_level_below(const wr_policy *p, int end) {
    for (int word = (end - 1) / 64; end > 0 && word >= 0; word--) {
        const int bits = end - 64 * word;
        const uint64_t used = p->levels_used[word] & (bits >= 64 ? ~0ull : (1ull << bits) - 1);
        if (used) return 64 * word + 63 - __builtin_clzll(used);
    }
    return -1;
}

static inline int wr_level_from(const wr_policy *p, int first) {
    for (int word = first / 64; word < WR_LEVELS / 64; word++) {
        const uint64_t used = p->levels_used[word] & (first > 64 * word ? ~0ull << (first - 64 * word) : ~0ull);
        if (used) return 64 * word + __builtin_ctzll(used);
    }
    return -1;
}

static inline bool wr_has_levels(const wr_queue *q) { return q->policy && q->policy->o.max_priority; }
/* What max_length_bytes counts of a message: its body, without what was said of it (AMQP's properties and headers). */
static inline uint32_t wr_counted_bytes(const wr_entry *entry) {
    return entry->body_length > entry->meta_length ? entry->body_length - entry->meta_length : 0;
}
#endif
