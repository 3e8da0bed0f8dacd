/* Who consumes a queue alone. Declared in queues/exclusive.h. */
#include "kernel/delivery.h"
#include "queues/barred.h"
#include "queues/consumers.h"
#include "queues/exclusive.h"

#define EARLY_NS 1000000000ull
#define PART 8 /* of a client's delivery slots: so many queues at most it has alone */

static bool is_going(const wr_qlink *l) { return l->closing || l->evicted; }

static bool consumes(const wr_consumer *c) { return (c->active && c->prefetch) || c->joined || (c->silent && c->held_n); }

/* May there be consumers that have not announced themselves to this worker? */
static bool is_early(const wr_queue_engine *e, const wr_qlink *l) {
    if (wr_now_ns() - e->begun_ns > EARLY_NS) return false;
    for (uint32_t i = 0; i < e->links_n; i++) {
        const wr_qlink *other = e->links[e->order[i]];
        if (other != l && other->before) return true;
    }
    return false;
}

static void hold(wr_queue_engine *e, wr_consumer *c, uint32_t slot) {
    c->exclusive_slot = slot;
    c->queue->exclusive = c->link;
    c->link->exclusive_n++;
    atomic_store_explicit(&e->me->exclusive_n, ++e->exclusive_n, memory_order_release);
}

static wr_join alone(wr_queue_engine *e, wr_qlink *l, wr_queue *q, uint32_t *other) {
    if (q->exclusive == l) return WR_JOIN_IN;
    for (uint32_t i = 0; i < e->links_n; i++) {
        const wr_qlink *link = e->links[e->order[i]];
        const wr_consumer *c = link == l ? NULL : wr_consumer_find(e, link, q->id);
        if (!c || !consumes(c)) continue;
        *other = link->slot;
        return is_going(link) ? WR_JOIN_EARLY : WR_JOIN_CONSUMED;
    }
    if (is_early(e, l)) return WR_JOIN_EARLY;
    wr_consumer *c = wr_consumer_get(e, l, q);
    if (!c || !wr_slot_left(l) || l->exclusive_n >= l->view.g.delivery_slots / PART) return WR_JOIN_NO_SLOT;
    uint32_t slot = wr_slot_take(e, l);
    wr_delivery *d = wr_view_delivery(&l->view, e->o.server, slot);
    d->queue = q->id;
    atomic_store_explicit(&d->state, WR_DELIVERY_EXCLUSIVE, memory_order_release);
    hold(e, c, slot);
    return WR_JOIN_IN;
}

wr_join wr_exclusive_join(wr_queue_engine *e, wr_qlink *l, wr_queue *q, bool exclusive, uint32_t *other) {
    if (q->exclusive && q->exclusive != l) {
        *other = q->exclusive->slot;
        return is_going(q->exclusive) ? WR_JOIN_EARLY : WR_JOIN_HELD;
    }
    if (wr_is_barred(e, q)) return WR_JOIN_EARLY;
    if (exclusive) return alone(e, l, q, other);
    wr_consumer *c = wr_consumer_get(e, l, q);
    if (!c) return WR_JOIN_NO_SLOT;
    c->joined = true;
    return WR_JOIN_IN;
}

bool wr_exclusive_leave(wr_queue_engine *e, wr_qlink *l, wr_queue *q) {
    wr_consumer *c = wr_consumer_find(e, l, q->id);
    if (!c || !(c->joined || c->exclusive_slot != WR_NO_SLOT)) return false;
    c->joined = false;
    wr_consumer_shares(e, c);
    return true;
}

void wr_exclusive_turn(wr_queue_engine *e) {
    if (wr_now_ns() - e->begun_ns <= EARLY_NS) return;
    e->early = false;
    for (uint32_t i = 0; i < e->links_n; i++)
        for (wr_consumer *c = e->links[e->order[i]]->consumers; c; c = c->next)
            if (c->queue->former == c && !c->held_n) wr_consumer_speaks(e, c);
}

bool wr_exclusive_take_up(wr_queue_engine *e, wr_qlink *l, wr_queue *q, uint32_t slot) {
    wr_consumer *c = q->exclusive ? NULL : wr_consumer_get(e, l, q);
    if (c) hold(e, c, slot);
    return c != NULL;
}
