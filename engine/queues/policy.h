/* What a queue is declared to do with its messages beyond first in, first out (design note 004, section 2): time to live, maximum
 * length, priorities, delay, delivery limit, single active consumer, deduplication, dead letters. queues/policy.c.
 *
 * A plain queue has no wr_policy; the first message with a time makes one. The hooks in queues/queue.c and queues/loop.c are the inline
 * functions below: one test for a plain queue.
 *
 * States. A DELAYED row is neither ready nor unacked, and lies in `due` and the heap. A row that dies where dead letters are kept is
 * DYING from then until the MOVE frame of the round lies in the image; then it is in the other queue. Where they are not kept
 * it goes at once, like an ack.
 *
 * Invariants
 *   ready_bytes, level_n and level_chunks count READY rows, in memory or paged, expiring_n those that expire (too many after damage);
 *   delayed_n, dying_n count those states.
 *   No READY row of a level lies below its level_from.
 *   A queue with expiring or delayed rows, or above its maximum, is in the engine's `timed`; something of it may
 *   be due before `timed_at` only if that was set so.
 *   Every DYING row is in `deaths` once. Nothing of a round is answered before its deaths are buried (finish_round).
 */
#ifndef WR_QUEUEPOLICY_H
#define WR_QUEUEPOLICY_H
#include "queues/queue.h"

#define WR_LEVELS (WR_PRIORITY_MAX + 1)
#define WR_KEYS_MAX (1u << 18) /* of one queue in memory; beyond it the oldest are forgotten before their time */

typedef struct {
    uint64_t message_ttl_ms, max_length, max_length_bytes, deduplication_ms; /* 0: none */
    uint32_t delivery_limit;                                                  /* 0: none */
    uint32_t dead_letters;                                                    /* queue id, 0: what dies is dropped */
    uint32_t max_priority;
    bool reject_publish, single_active;
} wr_policy_options;

typedef struct {
    uint64_t due, sequence;
} wr_delayed;

typedef struct {
    uint64_t a, b, published;
} wr_seen;

typedef struct wr_policy {
    wr_policy_options o;
    bool timed;
    uint64_t expiring_n, ready_bytes, delayed_n, dying_n;
    uint64_t expired_n, dropped_n, dead_lettered_n, refused_n, duplicates_n;
    uint64_t burying_n; /* of the frame that is being made */
    /* max_priority: ready rows by level */
    uint64_t level_n[WR_LEVELS], level_from[WR_LEVELS];
    wr_map level_chunks; /* (chunk number, level) → ready rows */
    wr_delayed *heap; /* by due, then sequence; may hold rows that are not DELAYED any more */
    uint64_t heap_n, heap_size;
    wr_map due; /* sequence → due, of each DELAYED row */
    /* keys within the window, the oldest first: a ring */
    wr_map seen; /* key → published */
    wr_seen *keys;
    uint64_t keys_first, keys_n, keys_size;
} wr_policy;

typedef struct wr_death {
    wr_queue *queue; /* NULL: dropped meanwhile */
    uint64_t sequence;
    uint32_t reason;
} wr_death;

void wr_policy_set(wr_queue *q, const wr_policy_options *options);
void wr_policy_free(wr_queue *q);
void wr_policy_forget(wr_queue_engine *e, const wr_queue *q); /* the queue goes: it is in no list any more */
void wr_policy_comes(wr_queue_engine *e, wr_queue *q, uint64_t sequence, const wr_entry *entry);
void wr_policy_goes(wr_queue *q, uint64_t sequence, const wr_entry *entry);
void wr_policy_other_goes(wr_queue *q, uint64_t sequence, const wr_entry *entry); /* neither READY nor UNACKED */
wr_entry *wr_policy_first(wr_queue *q, uint64_t *sequence); /* what a delivery takes, level by level; NULL: none */
/* Rows of a chunk that came back from a damaged segment are missing: its ready rows are counted anew. */
void wr_policy_damaged(wr_queue *q, uint64_t number, const wr_chunk *chunk, uint64_t lost_bytes);
void wr_policy_check(const wr_queue *q); /* asserts the invariants; tests */
void wr_policy_delay(wr_queue_engine *e, wr_queue *q, uint64_t sequence, uint64_t due); /* a READY row waits until then */
uint64_t wr_policy_due(const wr_queue *q, uint64_t sequence);
/* A READY or UNACKED (and unheld) row ends. */
void wr_policy_die(wr_queue_engine *e, wr_queue *q, uint64_t sequence, wr_entry *entry, uint32_t reason);
int wr_policy_bury(wr_queue_engine *e); /* 0, EAGAIN: no room in the journal yet; or the log's errno, and memory goes on */
bool wr_policy_turn(wr_queue_engine *e); /* expiry, delay, length; true: something moved */
uint64_t wr_policy_sleep_ns(const wr_queue_engine *e, uint64_t most);

typedef enum { WR_ADMIT, WR_ADMIT_LATER, WR_ADMIT_REFUSED, WR_ADMIT_DUPLICATE } wr_admission;
wr_admission wr_policy_admit(wr_queue_engine *e, wr_queue *q, const uint8_t *key, uint64_t published, uint32_t length);
void wr_policy_seen(wr_queue *q, const uint8_t key[WR_KEY_BYTES], uint64_t published, uint64_t now);

/* The first frames of a journal file: keys of before; and their way back. 0 or EBADMSG. */
void wr_policy_write_keys(wr_queue_engine *e);
/* What a queue has seen, the oldest first, as rows of a KEYS frame; rows NULL: how many. */
uint64_t wr_policy_keys(const wr_queue *q, uint8_t *rows);
int wr_policy_replay_keys(wr_queue_engine *e, const uint8_t *rows, uint64_t bytes, uint32_t n);

static inline void wr_ready_comes(wr_queue_engine *e, wr_queue *q, uint64_t sequence, const wr_entry *entry) {
    if (q->policy || entry->expires) wr_policy_comes(e, q, sequence, entry);
}
static inline void wr_ready_goes(wr_queue *q, uint64_t sequence, const wr_entry *entry) {
    if (q->policy) wr_policy_goes(q, sequence, entry);
}
/* Rows that are neither ready nor unacked. */
static inline uint64_t wr_aside_n(const wr_queue *q) { return q->policy ? q->policy->delayed_n + q->policy->dying_n : 0; }
static inline bool wr_has_levels(const wr_queue *q) { return q->policy && q->policy->o.max_priority; }
/* Consumers that get something. */
static inline uint32_t wr_serving_n(const wr_queue *q) {
    return q->policy && q->policy->o.single_active && q->consumers_n ? 1 : q->consumers_n;
}
static inline bool wr_delivered_too_often(const wr_queue *q, const wr_entry *entry) {
    return q->policy && q->policy->o.delivery_limit && entry->delivery_count > q->policy->o.delivery_limit;
}
/* What a message is in the queue of dead letters. */
static inline void wr_letter(wr_entry *entry, uint32_t reason) {
    entry->reason = reason & 15;
    entry->expires = 0;
    entry->delivery_count = 0;
    entry->flags &= (uint8_t)~WR_ENTRY_REDELIVERED;
}
static inline bool wr_needs_times(const wr_queue *q) { return q->policy && q->policy->o.message_ttl_ms; }
/* When a message ends in a queue: at its own time or at the queue's, whichever is earlier; both count from `due`. `published` is a
 * millisecond that had begun: one more, so that no message ends before its time. */
static inline uint64_t wr_policy_expires(const wr_queue *q, uint64_t published, uint64_t expires, uint64_t due) {
    if (!wr_needs_times(q) || !published) return expires;
    uint64_t end = (due > published ? due : published + 1) + q->policy->o.message_ttl_ms;
    if (end >> WR_TIME_BITS) end = (1ull << WR_TIME_BITS) - 1;
    return expires && expires < end ? expires : end;
}
#endif
