/* Delivery of ready entries. Declared in queues/delivery.h. */
#include "kernel/delivery.h"
#include "queues/consumers.h"
#include "queues/deaths.h"
#include "queues/delivery.h"
#include "queues/entries.h"
#include "queues/levels.h"
#include "queues/registry.h"

#define DELIVER_MAX 1024 /* of one queue in one round */

/* May this consumer get one more? */
static inline bool takes(wr_queue_engine *e, const wr_consumer *c) {
    wr_qlink *l = c->link;
    if (l->evicted || l->closing || (c->stuck && !c->spoke)) return false;
    if (c->prefetch && (c->held_n >= c->prefetch || (c->queue->exclusive && c->queue->exclusive != l))) return false;
    if (c->delivered_n >= c->credit && (c->credit || !c->prefetch)) return false; /* a prefetch alone is no end */
    if (!wr_slot_left(l)) {
        l->starved = true; /* the next free slot wakes all its queues */
        return false;
    }
    /* The client's own count decides whether its ring has room: a lie harms only itself. */
    uint64_t head = atomic_load_explicit(&l->view.links[e->o.server].delivery_head, memory_order_acquire);
    if (l->delivery_tail - head < l->view.g.delivery_slots) return true;
    e->ring_full = true; /* nobody tells when that changes: looked at again in each round */
    return false;
}

/* Messages that a single active consumer held when it left may return, and come before those that were in the queue
 * then. */
static bool held_up(wr_queue *q) {
    uint64_t sequence;
    return q->leaving && q->consumers_n && q->consumers[0] != q->leaving && wr_queue_first(q, &sequence) && sequence < q->left_at;
}

static void deliver_one(wr_queue_engine *e, wr_consumer *c, wr_entry *entry, uint64_t sequence) {
    wr_qlink *l = c->link;
    wr_queue *q = c->queue;
    uint32_t slot = wr_slot_take(e, l);
    wr_delivery *d = wr_view_delivery(&l->view, e->o.server, slot);
    wr_delivery_fill(d, q->id, sequence, entry);
    d->pushed_at = l->delivery_tail;
    atomic_store_explicit(&d->state, WR_DELIVERY_HELD, memory_order_release);
    atomic_store_explicit(wr_view_delivery_ring(&l->view, e->o.server, l->delivery_tail), slot, memory_order_relaxed);
    wr_hold(e, c, entry, sequence, slot, l->delivery_tail);
    l->delivery_tail++;
    l->pushed = true;
    wr_consumer_reaches(c, sequence);
    if (entry->delivery_count < UINT16_MAX) entry->delivery_count++;
    c->delivered_n++;
    q->delivered_n++;
    e->delivered_n++;
    if (!wr_has_levels(q)) q->ready_from = sequence + 1;
}

bool wr_queue_would_deliver(wr_queue_engine *e, wr_queue *q) {
    if (e->frozen || held_up(q)) return false;
    for (uint32_t i = 0; i < wr_serving_n(q); i++)
        if (takes(e, q->consumers[i])) return true;
    return false;
}

void wr_delivery_at_once(wr_queue_engine *e, wr_queue *q, uint64_t sequence, uint64_t published) {
    wr_policy *p = q->policy;
    if (!p->at_once) {
        p->at_once = true;
        p->at_once_from = sequence;
    }
    p->at_once_published = published;
    wr_queue_wake(e, q);
}

static bool ends_at_once(const wr_queue *q, uint64_t sequence, const wr_entry *entry) {
    const wr_policy *p = q->policy;
    return p && p->at_once && sequence >= p->at_once_from && entry->expires && entry->expires <= p->at_once_published;
}

/* No consumer took them now: they have expired, wherever they lie. */
static void end_at_once(wr_queue_engine *e, wr_queue *q) {
    wr_policy *p = q->policy;
    for (uint64_t sequence = p->at_once_from; sequence < q->next; sequence++) {
        wr_entry *entry = wr_queue_entry(q, sequence);
        if (entry && entry->state == WR_ENTRY_READY && ends_at_once(q, sequence, entry))
            wr_policy_die(e, q, sequence, entry, WR_REASON_EXPIRED);
    }
    p->at_once = false;
}

/* Whose turn it is, of those that may have one more; `waits`: only those that consume, who are there without having asked for just
 * this message. NULL: nobody's. */
static wr_consumer *next_turn(wr_queue_engine *e, wr_queue *q, bool waits) {
    for (uint32_t i = 0, serving_n = wr_serving_n(q); i < serving_n; i++) {
        if (q->turn >= serving_n) q->turn = 0;
        wr_consumer *one = q->consumers[q->turn++];
        if ((one->prefetch || !waits) && takes(e, one)) return one;
    }
    return NULL;
}

static bool deliver_queue(wr_queue_engine *e, wr_queue *q, bool *more) {
    uint32_t budget = DELIVER_MAX;
    *more = e->ring_full = false;
    while (q->ready_n && q->consumers_n && !held_up(q)) {
        if (!budget) {
            *more = true;
            break;
        }
        wr_consumer *c = next_turn(e, q, false);
        if (!c) {
            *more = e->ring_full;
            break;
        }
        budget--;
        uint64_t sequence;
        wr_entry *entry = wr_queue_first(q, &sequence);
        if (!entry) break;
        if (__builtin_expect(ends_at_once(q, sequence, entry), 0)) {
            if (!c->prefetch) c = next_turn(e, q, true);
            if (!c) {
                end_at_once(e, q);
                continue;
            }
        } else if (entry->expires && entry->expires <= e->round_ms) {
            e->timed_at = 0; /* it goes in the next round, then the one behind it is looked at */
            *more = true;
            break;
        }
        deliver_one(e, c, entry, sequence);
    }
    if (q->policy && q->policy->at_once && budget) {
        end_at_once(e, q);
        return true;
    }
    return budget < DELIVER_MAX;
}

bool wr_deliver(wr_queue_engine *e) {
    if (!e->wake_n || e->frozen) return false;
    bool any = false;
    uint64_t n = e->wake_n, kept = 0;
    for (uint64_t i = 0; i < n; i++) {
        wr_queue *q = e->wake[i];
        bool more;
        any |= deliver_queue(e, q, &more);
        if (more) e->wake[kept++] = q;
        else q->in_wake = false;
    }
    while (n < e->wake_n) e->wake[kept++] = e->wake[n++]; /* woken meanwhile: dead letters came there */
    e->wake_n = kept;
    if (!any) return false;
    for (uint32_t i = 0; i < e->links_n; i++) {
        wr_qlink *l = e->links[e->order[i]];
        if (!l->pushed) continue;
        l->pushed = false;
        /* SYNC delivery-visible: pairs with the client's acquire load of delivery_tail */
        atomic_store_explicit(&l->view.links[e->o.server].delivery_tail, l->delivery_tail, memory_order_release);
        wr_view_tell(&l->view, WR_WAITS_LOOP(WR_NEWS_DELIVERY));
    }
    return true;
}
