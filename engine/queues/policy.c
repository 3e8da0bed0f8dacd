/* By the clock, and at the door. Declared in queues/policy.h. */
#include "queues/deaths.h"
#include "queues/delay.h"
#include "queues/delivery.h"
#include "queues/entries.h"
#include "queues/keys.h"
#include "queues/levels.h"
#include "queues/policy.h"
#include "queues/registry.h"
#include <assert.h>

#define DEATHS_A_TURN 16384 /* of one queue, so that others are served meanwhile */
#define OFFERS_MAX 64       /* rounds in which a queue above its maximum is delivered before it is cut */
#define LOOK_AGAIN_MS 100   /* a queue whose head does not expire, but something behind it */

/* ---- by the clock ---- */

/* Expired rows at the head, and at the head of each level. Returns when the next one expires, 0: there are more now. */
static uint64_t expire_heads(wr_queue_engine *e, wr_queue *q, uint64_t now, bool *any) {
    wr_policy *p = q->policy;
    uint64_t next = UINT64_MAX, budget = DEATHS_A_TURN, sequence;
    for (int level = p->o.max_priority ? wr_level_from(p, 0) : 0; level >= 0;
         level = p->o.max_priority ? wr_level_from(p, level + 1) : -1) {
        while (p->expiring_n) {
            wr_entry *entry = p->o.max_priority ? wr_queue_first_of_level(q, (uint32_t)level, &sequence) : wr_queue_first(q, &sequence);
            if (!entry || !entry->expires) break;
            if (entry->expires > now) {
                if (entry->expires < next) next = entry->expires;
                break;
            }
            if (!budget--) return 0;
            wr_policy_die(e, q, sequence, entry, WR_REASON_EXPIRED);
            *any = true;
        }
    }
    if (p->expiring_n && next > now + LOOK_AGAIN_MS) next = now + LOOK_AGAIN_MS; /* the head may go before */
    return next;
}

static uint64_t shorten(wr_queue_engine *e, wr_queue *q, bool *any) {
    uint64_t budget = DEATHS_A_TURN, sequence;
    if (!wr_policy_too_long(q)) {
        q->policy->offered = 0;
        return UINT64_MAX;
    }
    /* What somebody waits for is no length: it is delivered first, over several rounds. */
    if (q->policy->offered < OFFERS_MAX && wr_queue_would_deliver(e, q)) {
        q->policy->offered++;
        wr_queue_wake(e, q);
        *any = true;
        return 0;
    }
    q->policy->offered = 0;
    while (wr_policy_too_long(q)) {
        if (!budget--) return 0;
        wr_entry *entry = wr_queue_least(q, &sequence);
        if (!entry) break;
        wr_policy_die(e, q, sequence, entry, WR_REASON_MAXLEN);
        *any = true;
    }
    return UINT64_MAX;
}

bool wr_policy_turn(wr_queue_engine *e) {
    if (!e->timed_n || e->frozen) return false;
    uint64_t now = wr_wall_ms();
    if (now < e->timed_at) return false;
    bool any = false;
    uint64_t kept = 0, n = e->timed_n;
    e->timed_at = UINT64_MAX;
    for (uint64_t i = 0; i < n; i++) {
        wr_queue *q = e->timed[i];
        wr_policy *p = q->policy;
        any |= wr_policy_release_due(e, q, now);
        uint64_t when = expire_heads(e, q, now, &any), then = shorten(e, q, &any);
        if (then < when) when = then;
        if (p->heap_n && p->heap[0].due < when) when = p->heap[0].due;
        if (when < e->timed_at) e->timed_at = when;
        if (p->expiring_n || p->heap_n || !when) e->timed[kept++] = q;
        else p->timed = false;
    }
    /* nobody has come meanwhile: a companion has no times of its own */
    assert(e->timed_n == n);
    e->timed_n = kept;
    return any;
}

uint64_t wr_policy_sleep_ns(const wr_queue_engine *e, uint64_t most) {
    if (!e->timed_n || e->frozen || e->stalled) return most; /* nothing is looked at then */
    uint64_t now = wr_wall_ms();
    if (e->timed_at <= now) return 0;
    uint64_t ms = e->timed_at - now;
    return ms < most / 1000000 ? ms * 1000000 : most;
}

/* ---- admission ---- */

static bool full(const wr_queue *q, uint32_t length) {
    const wr_policy *p = q->policy;
    return p->o.reject_publish && ((p->o.has_max_length && q->ready_n >= p->o.max_length) ||
                                   (p->o.has_max_bytes && p->ready_bytes + length > p->o.max_length_bytes));
}

wr_admission wr_policy_admit(wr_queue_engine *e, wr_queue *q, const uint8_t *key, uint64_t published, uint32_t length) {
    if (key && q->policy->o.deduplication_ms && wr_policy_seen_before(q->policy, key, published)) return WR_ADMIT_DUPLICATE;
    if (!full(q, length)) return WR_ADMIT;
    bool any = false;
    if (q->policy->expiring_n) expire_heads(e, q, wr_wall_ms(), &any);
    if (!full(q, length)) return WR_ADMIT;
    /* Who waits for messages gets some of these first, in the delivery of this round. */
    if (q->ready_n && wr_queue_would_deliver(e, q)) {
        wr_queue_wake(e, q);
        return WR_ADMIT_LATER;
    }
    return WR_ADMIT_REFUSED;
}
