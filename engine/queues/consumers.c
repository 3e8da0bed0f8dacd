/* Consumers and what they hold. Declared in queues/consumers.h. */
#include "kernel/delivery.h"
#include "queues/consumers.h"
#include "queues/deaths.h"
#include "queues/delay.h"
#include "queues/entries.h"
#include "queues/owed.h"
#include "queues/pages.h"
#include "queues/registry.h"
#include <assert.h>

wr_consumer *wr_consumer_find(wr_queue_engine *e, const wr_qlink *l, uint32_t queue) {
    uint64_t *found = wr_map_find(&e->consumers, (uint64_t)l->slot << 32 | queue, 0);
    return found ? (wr_consumer *)(uintptr_t)*found : NULL;
}

wr_consumer *wr_consumer_get(wr_queue_engine *e, wr_qlink *l, wr_queue *q) {
    uint64_t *place = wr_map_put(&e->consumers, (uint64_t)l->slot << 32 | q->id, 0);
    if (!place) return NULL;
    if (*place) return (wr_consumer *)(uintptr_t)*place;
    wr_consumer *c = calloc(1, sizeof *c);
    if (!c) {
        wr_map_remove(&e->consumers, (uint64_t)l->slot << 32 | q->id, 0);
        return NULL;
    }
    *place = (uint64_t)(uintptr_t)c;
    c->link = l;
    c->queue = q;
    c->first = c->last = c->exclusive_slot = WR_NO_SLOT;
    c->next = l->consumers;
    l->consumers = c;
    return c;
}

/* Out of the list of those that get something. */
static void leave(wr_queue *q, const wr_consumer *c) {
    for (uint32_t i = 0; i < q->consumers_n; i++)
        if (q->consumers[i] == c) {
            memmove(q->consumers + i, q->consumers + i + 1, (q->consumers_n - i - 1) * sizeof *q->consumers);
            q->consumers_n--;
            if (q->turn > i) q->turn--;
            break;
        }
}

bool wr_consumer_begin(wr_consumer *c) {
    wr_queue *q = c->queue;
    if (q->consumers_n == q->consumers_size) {
        uint32_t size = q->consumers_size ? 2 * q->consumers_size : 8;
        wr_consumer **list = realloc(q->consumers, size * sizeof *list);
        if (!list) return false;
        q->consumers = list;
        q->consumers_size = size;
    }
    bool first = q->former == c;
    if (first) memmove(q->consumers + 1, q->consumers, q->consumers_n * sizeof *q->consumers);
    q->consumers[first ? 0 : q->consumers_n] = c;
    q->consumers_n++;
    c->active = true;
    c->delivered_n = 0;
    c->prefetch = 0;
    return true;
}

void wr_consumer_speaks(wr_queue_engine *e, wr_consumer *c) {
    c->silent = false;
    if (c->queue->former != c) return;
    c->queue->former = NULL;
    wr_queue_wake(e, c->queue);
}

/* Messages that a single active consumer holds when it leaves come first if they return: until they are settled, the
 * next one gets none of those that are in the queue now (queues/delivery.c). */
static void leaves_first(wr_consumer *c) {
    wr_queue *q = c->queue;
    if (!c->held_n || q->leaving || !q->policy || !q->policy->o.single_active) return;
    if (q->former != c && !(c->prefetch && q->consumers_n && q->consumers[0] == c)) return;
    q->leaving = c;
    q->left_at = q->next;
}

void wr_consumer_stop(wr_queue_engine *e, wr_consumer *c) {
    leaves_first(c);
    if (!c->active) return;
    c->active = false;
    leave(c->queue, c);
    wr_queue_dirty(e, c->queue);
}

void wr_consumer_steps_back(wr_consumer *c) {
    if (!c->active) return;
    leaves_first(c);
    leave(c->queue, c);
    c->queue->consumers[c->queue->consumers_n++] = c;
}

void wr_consumer_shares(wr_queue_engine *e, wr_consumer *c) {
    wr_qlink *l = c->link;
    if (c->exclusive_slot == WR_NO_SLOT) return;
    /* at once: nobody else is let in before it is free, or the next worker would believe two */
    atomic_store_explicit(&wr_view_delivery(&l->view, e->o.server, c->exclusive_slot)->state, WR_DELIVERY_FREE, memory_order_release);
    l->release[l->release_n++] = c->exclusive_slot;
    c->exclusive_slot = WR_NO_SLOT;
    c->queue->exclusive = NULL;
    l->exclusive_n--;
    atomic_store_explicit(&e->me->exclusive_n, --e->exclusive_n, memory_order_release);
    wr_queue_wake(e, c->queue);
}

void wr_consumer_free_all(wr_queue_engine *e, wr_qlink *l) {
    while (l->consumers) {
        wr_consumer *c = l->consumers;
        assert(c->held_n == 0);
        wr_consumer_stop(e, c);
        wr_consumer_shares(e, c);
        wr_consumer_speaks(e, c);
        l->consumers = c->next;
        wr_map_remove(&e->consumers, (uint64_t)l->slot << 32 | c->queue->id, 0);
        free(c);
    }
}

#define NEIGHBOURS 64

/* Does this consumer hold the message of this row? */
static bool holds(const wr_consumer *c, const wr_entry *entry) {
    return entry->state == WR_ENTRY_UNACKED && entry->holder == c->link->slot;
}

/* The slot that holds the message before this one, of those that the consumer holds; WR_NO_SLOT: none. What comes for the first time
 * is behind all others. What comes again has its place among them, and they may be very many: most often the row before or behind it
 * is held, too, or it is the first; else both ends are searched. */
static uint32_t held_before(const wr_consumer *c, const wr_entry *entry, uint64_t sequence) {
    const wr_held *held = c->link->held;
    uint32_t last = c->last, first = c->first;
    if (last == WR_NO_SLOT || held[last].sequence < sequence) return last;
    if (held[first].sequence > sequence) return WR_NO_SLOT;
    const uint32_t row = (uint32_t)(sequence % WR_CHUNK_ROWS);
    for (uint32_t i = 1; i <= NEIGHBOURS && i <= row; i++)
        if (holds(c, entry - i)) return wr_entry_slot(entry - i);
    for (uint32_t i = 1; i <= NEIGHBOURS && row + i < WR_CHUNK_ROWS; i++)
        if (holds(c, entry + i)) return held[wr_entry_slot(entry + i)].previous;
    for (;;) { /* `first` is below it, `last` above */
        if (held[held[first].next].sequence > sequence) return first;
        first = held[first].next;
        last = held[last].previous;
        if (held[last].sequence < sequence) return last;
    }
}

bool wr_hold(wr_queue_engine *e, wr_consumer *c, wr_entry *entry, uint64_t sequence, uint32_t slot, uint64_t pushed_at) {
    wr_queue *q = c->queue;
    wr_qlink *l = c->link;
    if (entry->state != WR_ENTRY_READY) return false;
    entry->state = WR_ENTRY_UNACKED;
    entry->holder = (uint8_t)l->slot;
    wr_entry_set_slot(entry, slot);
    wr_queue_unready(q, sequence, entry);
    q->unacked_n++;
    wr_held *held = &l->held[slot];
    held->consumer = c;
    held->sequence = sequence;
    held->word = wr_handed_mark(pushed_at);
    held->since = 0;
    const uint32_t after = held_before(c, entry, sequence);
    held->previous = after;
    held->next = after == WR_NO_SLOT ? c->first : l->held[after].next;
    if (held->next == WR_NO_SLOT) c->last = slot;
    else l->held[held->next].previous = slot;
    if (after == WR_NO_SLOT) c->first = slot;
    else l->held[after].next = slot;
    c->held_n++;
    wr_queue_dirty(e, q);
    return true;
}

/* The private record goes now, the shared slot when the frames of this round lie in the image. */
static void unhold(wr_consumer *c, uint32_t slot) {
    wr_qlink *l = c->link;
    wr_held *held = &l->held[slot];
    if (held->previous == WR_NO_SLOT) c->first = held->next;
    else l->held[held->previous].next = held->next;
    if (held->next == WR_NO_SLOT) c->last = held->previous;
    else l->held[held->next].previous = held->previous;
    held->consumer = NULL;
    if (!--c->held_n && c->queue->leaving == c) {
        c->queue->leaving = NULL;
        wr_queue_wake(c->queue->engine, c->queue);
    }
    l->release[l->release_n++] = slot;
}

/* UNACKED → READY, redelivered if it may have been seen. A message whose body is lost cannot come back. */
static void give_back(wr_queue_engine *e, wr_queue *q, uint64_t sequence, wr_entry *entry, bool seen) {
    const wr_map *bodies = wr_bodies_held(e, entry->location);
    if (bodies) {
        uint64_t a, b;
        wr_owed_key(entry->id, &a, &b);
        if (!wr_map_find(bodies, a, b)) {
            e->lost_n++;
            q->lost_n++;
            wr_queue_remove_entry(e, q, sequence, entry, true, true);
            return;
        }
    }
    q->requeued_n++;
    if (wr_delivered_too_often(q, entry)) {
        wr_policy_die(e, q, sequence, entry, WR_REASON_DELIVERY_LIMIT);
        return;
    }
    if (seen) entry->flags |= WR_ENTRY_REDELIVERED;
    q->unacked_n--;
    wr_queue_ready(e, q, sequence, entry);
}


/* The entry that this link holds under a sequence, NULL if it does not. */
static wr_entry *held_by(const wr_qlink *l, wr_queue *q, uint64_t sequence) {
    wr_entry *entry = wr_queue_entry(q, sequence);
    return entry && entry->state == WR_ENTRY_UNACKED && entry->holder == l->slot ? entry : NULL;
}

/* Has another consumer got something behind it? */
static bool passed(const wr_consumer *c, uint64_t sequence) {
    const wr_reached *reached = c->queue->reached;
    return reached[reached[0].client == wr_consumer_client(c)].next > sequence + 1;
}

/* What a message that was handed to nobody comes back as. True: another consumer has got something behind it. */
static bool unsee(const wr_consumer *c, uint64_t sequence, wr_entry *entry) {
    if (entry->delivery_count) entry->delivery_count--;
    return passed(c, sequence);
}

/* Has its client handed it to the program? What is gone changes no word any more. */
static bool was_handed(const wr_queue_engine *e, const wr_consumer *c, uint32_t slot) {
    const uint32_t word = atomic_load_explicit(wr_view_handed(&c->link->view, e->o.server, slot), memory_order_acquire);
    return wr_handed_state(word, c->link->held[slot].word) != 0;
}

void wr_consumer_return(wr_queue_engine *e, wr_consumer *c, bool gone) {
    while (c->first != WR_NO_SLOT) {
        const uint32_t slot = c->first;
        const uint64_t sequence = c->link->held[slot].sequence;
        bool seen = !gone || was_handed(e, c, slot);
        unhold(c, slot);
        wr_entry *entry = wr_queue_entry(c->queue, sequence);
        assert(entry && entry->state == WR_ENTRY_UNACKED);
        if (!seen) seen = unsee(c, sequence, entry);
        give_back(e, c->queue, sequence, entry, seen);
    }
}

static void settle(wr_queue_engine *e, wr_consumer *c, uint64_t sequence, wr_entry *entry, wr_settling how) {
    wr_queue *q = c->queue;
    unhold(c, wr_entry_slot(entry));
    c->spoke = true;
    if (how == WR_SETTLE_REQUEUE || how == WR_SETTLE_UNSEEN) {
        give_back(e, q, sequence, entry, how == WR_SETTLE_REQUEUE || unsee(c, sequence, entry));
    } else if (how == WR_SETTLE_LOST) {
        wr_delivery_fill(&e->unreadable[e->unreadable_n++ % WR_LOST_ROWS], q->id, sequence, entry);
        q->lost_n++;
        wr_queue_remove_entry(e, q, sequence, entry, true, false);
    } else if (how == WR_SETTLE_REJECT && q->policy) {
        wr_policy_die(e, q, sequence, entry, WR_REASON_REJECTED);
        q->acked_n++;
        e->acked_n++;
    } else {
        wr_queue_remove_entry(e, q, sequence, entry, true, false);
        q->acked_n++;
        e->acked_n++;
    }
    if (c->active) wr_queue_wake(e, q); /* prefetch or a delivery slot is free again */
    if (q->former == c && !c->held_n && !e->early) wr_consumer_speaks(e, c); /* it has nothing more to say */
}

bool wr_queue_settle(wr_queue_engine *e, wr_qlink *l, wr_queue *q, uint64_t sequence, wr_settling how) {
    wr_entry *entry = held_by(l, q, sequence);
    if (!entry) return false;
    settle(e, l->held[wr_entry_slot(entry)].consumer, sequence, entry, how);
    return true;
}

bool wr_queue_return_later(wr_queue_engine *e, wr_qlink *l, wr_queue *q, uint64_t sequence, uint64_t due) {
    if (!wr_queue_settle(e, l, q, sequence, WR_SETTLE_REQUEUE)) return false;
    const wr_entry *entry = wr_queue_entry(q, sequence); /* a limit of deliveries may have ended it */
    if (entry && entry->state == WR_ENTRY_READY && due > wr_wall_ms()) wr_policy_return_later(e, q, sequence, due);
    return true;
}

uint32_t wr_queue_settle_to(wr_queue_engine *e, wr_qlink *l, wr_queue *q, uint64_t sequence, wr_settling how) {
    wr_consumer *c = wr_consumer_find(e, l, q->id);
    uint32_t n = 0;
    while (c && c->first != WR_NO_SLOT && l->held[c->first].sequence <= sequence) {
        uint64_t at = l->held[c->first].sequence;
        settle(e, c, at, wr_queue_entry(q, at), how);
        n++;
    }
    return n;
}

uint64_t wr_queue_ahead(wr_queue_engine *e, const wr_queue *q) {
    uint64_t n = 0;
    for (uint32_t i = 0; i < e->links_n && q->unacked_n; i++) {
        const wr_qlink *l = e->links[e->order[i]];
        const wr_consumer *c = wr_consumer_find(e, l, q->id);
        for (uint32_t slot = c ? c->first : WR_NO_SLOT; slot != WR_NO_SLOT; slot = l->held[slot].next) {
            uint32_t word = atomic_load_explicit(wr_view_handed(&l->view, e->o.server, slot), memory_order_relaxed);
            n += !wr_handed_state(word, l->held[slot].word);
        }
    }
    return n;
}

uint64_t wr_queue_purge(wr_queue_engine *e, wr_queue *q, uint64_t below, bool unacked) {
    uint64_t n = 0;
    if (below > q->next) below = q->next;
    for (uint64_t number = q->chunk_base; number * WR_CHUNK_ROWS < below; number++) {
        for (uint32_t r = 0; r < WR_CHUNK_ROWS; r++) {
            wr_chunk *chunk = wr_queue_chunk(q, number); /* NULL once its last row has gone */
            uint64_t sequence = number * WR_CHUNK_ROWS + r;
            if (!chunk || sequence >= below) break;
            wr_entry *entry = &chunk->rows[r];
            if (entry->state != WR_ENTRY_READY && !(entry->state == WR_ENTRY_UNACKED && unacked)) continue;
            if (entry->state == WR_ENTRY_UNACKED)
                unhold(e->links[entry->holder]->held[wr_entry_slot(entry)].consumer, wr_entry_slot(entry));
            wr_queue_remove_entry(e, q, sequence, entry, true, false);
            n++;
        }
    }
    q->acked_n += n;
    e->acked_n += n;
    if (q->former && !q->former->held_n && !e->early) wr_consumer_speaks(e, q->former);
    return n;
}
