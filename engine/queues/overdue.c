/* Deliveries that are held for too long. Declared in queues/overdue.h. */
#include "queues/consumers.h"
#include "queues/entries.h"
#include "queues/memory.h"
#include "queues/overdue.h"

#define LOOKS 16u /* in a timeout */
#define SWAPS 4   /* tries to mark a word that its client changes meanwhile */

static uint64_t interval_of(const wr_queue *q) { return q->ack_timeout_ns / LOOKS; }

/* All queues of a timeout are looked at together. */
static void next_look(wr_queue_engine *e, wr_queue *q, uint64_t now) {
    uint64_t interval = interval_of(q);
    q->look_at = (now / interval + 1) * interval;
    if (q->look_at < e->look_at) e->look_at = q->look_at;
}

void wr_overdue_watch(wr_queue_engine *e, wr_queue *q, uint64_t timeout_ms) {
    e->watched = wr_queue_grown(e->watched, &e->watched_size, e->watched_n + 1, sizeof *e->watched);
    if (!e->watched_n) e->look_at = UINT64_MAX;
    e->watched[e->watched_n++] = q;
    q->ack_timeout_ns = timeout_ms * 1000000;
    next_look(e, q, wr_now_ns());
}

/* One look is more than an interval behind the other, unless it came late: one more makes the timeout full. */
static bool over(const wr_queue *q, uint32_t since) { return q->looks - since > LOOKS; }

static _Atomic uint32_t *word_of(wr_queue_engine *e, const wr_consumer *c, uint32_t slot) {
    return wr_view_handed(&c->link->view, e->o.server, slot);
}

static uint32_t state_of(const wr_held *held) { return wr_handed_state(held->word, held->word); }

/* What the client has done with it, as far as it can be believed: no state goes back to an earlier one. */
static void look_at_word(wr_queue_engine *e, wr_consumer *c, uint32_t slot) {
    wr_held *held = &c->link->held[slot];
    uint32_t state = wr_handed_state(atomic_load_explicit(word_of(e, c, slot), memory_order_acquire), held->word);
    bool news = state > state_of(held);
    if (news) {
        held->word = wr_handed_word(held->word, state);
        c->spoke = true;
    }
    if (news || !held->since) held->since = c->queue->looks;
}

/* It is not the client's any more. False: its ack is on the way, or it was unseen and is not now. */
static bool mark_taken(wr_queue_engine *e, const wr_consumer *c, uint32_t slot, bool unseen, bool settling) {
    const wr_held *held = &c->link->held[slot];
    _Atomic uint32_t *word = word_of(e, c, slot);
    uint32_t taken = wr_handed_word(held->word, WR_HANDED_TAKEN), now = atomic_load_explicit(word, memory_order_acquire);
    for (int i = 0; i < SWAPS; i++) {
        uint32_t state = wr_handed_state(now, held->word);
        if ((state == WR_HANDED_SETTLING && !settling) || (unseen && state)) return false;
        /* SYNC taken: pairs with the client's swap of this word (client/consumer.c) */
        if (atomic_compare_exchange_strong(word, &now, taken)) return true;
    }
    if (unseen) return false; /* it is being played with: at the next look it is no news */
    atomic_store(word, taken);
    return true;
}

/* What is out too long. An ack that was said to come, and was not among what was submitted since, does not come. */
static bool take_back_seen(wr_queue_engine *e, wr_consumer *c) {
    wr_queue *q = c->queue;
    wr_qlink *l = c->link;
    bool any = false;
    for (uint32_t slot = c->first, next; slot != WR_NO_SLOT; slot = next) {
        const wr_held *held = &l->held[slot];
        next = held->next;
        uint32_t state = state_of(held);
        bool taken = state == WR_HANDED_TAKEN; /* by the worker before this one */
        bool settling = state == WR_HANDED_SETTLING && (int32_t)(c->done_look - held->since) > 0;
        if (!taken && !(over(q, held->since) && (state == WR_HANDED_OUT || settling))) continue;
        if (!taken && !mark_taken(e, c, slot, false, settling)) continue;
        wr_queue_settle(e, l, q, held->sequence, WR_SETTLE_REQUEUE);
        any = true;
    }
    return any;
}

/* All that lies ahead, the highest first: what is handed out meanwhile is below it. What lies below something that was
 * seen (up to `seen`, or just now) is marked, because it comes out of order. */
static bool take_back_unseen(wr_queue_engine *e, wr_consumer *c, uint64_t seen) {
    wr_queue *q = c->queue;
    wr_qlink *l = c->link;
    bool any = false;
    for (uint32_t slot = c->last, previous; slot != WR_NO_SLOT; slot = previous) {
        const wr_held *held = &l->held[slot];
        uint64_t sequence = held->sequence;
        previous = held->previous;
        if (!mark_taken(e, c, slot, true, false)) {
            if (sequence > seen) seen = sequence;
            continue;
        }
        wr_queue_settle(e, l, q, sequence, WR_SETTLE_UNSEEN);
        wr_entry *entry = sequence < seen ? wr_queue_entry(q, sequence) : NULL;
        if (entry && entry->state == WR_ENTRY_READY) entry->flags |= WR_ENTRY_REDELIVERED;
        any = true;
    }
    return any;
}

static bool look_at_consumer(wr_queue_engine *e, wr_consumer *c) {
    wr_queue *q = c->queue;
    wr_qlink *l = c->link;
    uint64_t seen = 0; /* the highest sequence that was */
    bool ahead = false;
    if (l->next >= c->told) {
        c->done_look = c->told_look;
        c->told_look = q->looks;
        c->told = atomic_load_explicit(&l->view.links[e->o.server].tail, memory_order_acquire);
    }
    for (uint32_t slot = c->first; slot != WR_NO_SLOT; slot = l->held[slot].next) {
        look_at_word(e, c, slot);
        if (state_of(&l->held[slot])) seen = l->held[slot].sequence;
        else ahead |= over(q, l->held[slot].since);
    }
    if (c->spoke) {
        c->spoke = c->stuck = false;
        c->spoke_look = q->looks;
    }
    bool silent = over(q, c->spoke_look);
    bool any = take_back_seen(e, c);
    if (silent && (any || ahead)) {
        any |= take_back_unseen(e, c, seen);
        if (any && q->policy && q->policy->o.single_active) wr_consumer_steps_back(c);
        c->stuck |= any;
    }
    c->spoke = false; /* a return says nothing of it */
    return any;
}

bool wr_overdue_turn(wr_queue_engine *e) {
    uint64_t now;
    if (e->frozen || (now = wr_now_ns()) < e->look_at) return false;
    bool any = false;
    e->look_at = UINT64_MAX;
    for (uint64_t i = 0; i < e->watched_n; i++) {
        wr_queue *q = e->watched[i];
        if (q->look_at > now) {
            if (q->look_at < e->look_at) e->look_at = q->look_at;
            continue;
        }
        if (!++q->looks) q->looks = 1; /* 0: not looked at yet */
        for (uint32_t k = 0; k < e->links_n && q->unacked_n; k++) {
            wr_consumer *c = wr_consumer_find(e, e->links[e->order[k]], q->id);
            if (c && c->held_n) any |= look_at_consumer(e, c);
        }
        next_look(e, q, now);
    }
    return any;
}

uint64_t wr_overdue_sleep_ns(const wr_queue_engine *e, uint64_t most) {
    if (e->frozen || e->stalled) return most; /* nothing is looked at then */
    uint64_t now = wr_now_ns();
    if (e->look_at <= now) return 0;
    return e->look_at - now < most ? e->look_at - now : most;
}
