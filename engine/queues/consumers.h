/* Consumers and what they hold: an entry is held, settled, returned.
 *
 * UNACKED: exactly one link's private record `held[delivery]` names (queue, sequence), and the entry names the link
 * back. The private record goes at once, the shared slot when the frames of the round lie in the image (`release`).
 */
#ifndef WR_QUEUES_CONSUMERS_H
#define WR_QUEUES_CONSUMERS_H
#include "queues/queue.h"

wr_consumer *wr_consumer_find(wr_queue_engine *e, const wr_qlink *l, uint32_t queue);
wr_consumer *wr_consumer_get(wr_queue_engine *e, wr_qlink *l, wr_queue *q);
void wr_consumer_stop(wr_queue_engine *e, wr_consumer *c);
/* All that it holds goes back: redelivered, but if it is `gone` what its client had not handed to anybody. */
void wr_consumer_return(wr_queue_engine *e, wr_consumer *c, bool gone);
/* It gets something from now on: as the last one, but whoever was the single active one when the worker before this one died comes
 * first. False: no memory. */
bool wr_consumer_begin(wr_consumer *c);
/* It has asked this worker for something, or left: what it held before says no more of it. */
void wr_consumer_speaks(wr_queue_engine *e, wr_consumer *c);
/* It does not consume alone any more. */
void wr_consumer_shares(wr_queue_engine *e, wr_consumer *c);
void wr_consumer_free_all(wr_queue_engine *e, wr_qlink *l);

/* Of a single active consumer, the next one takes its place. */
void wr_consumer_steps_back(wr_consumer *c);

/* Is there a delivery slot for one more? */
static inline bool wr_slot_left(const wr_qlink *l) { return l->free_n || l->slots_used < l->view.g.delivery_slots; }

/* The one that was freed last, whose memory is warm; only if all are held one that was never used. */
static inline uint32_t wr_slot_take(wr_queue_engine *e, wr_qlink *l) {
    if (l->free_n) return l->free_slots[--l->free_n];
    const uint32_t slot = l->slots_used++;
    /* before it is written: the next worker looks at no slot from here on (links.c) */
    atomic_store_explicit(&l->view.links[e->o.server].slots_used, l->slots_used, memory_order_relaxed);
    return slot;
}

/* READY → UNACKED; the slot joins the consumer's list, which is ordered by sequence. */
bool wr_hold(wr_queue_engine *e, wr_consumer *c, wr_entry *entry, uint64_t sequence, uint32_t slot, uint64_t pushed_at);

static inline uint64_t wr_consumer_client(const wr_consumer *c) {
    return (uint64_t)c->link->generation << 32 | (c->link->slot + 1);
}

/* A message goes to a consumer: how far it has been delivered to. */
static inline void wr_consumer_reaches(const wr_consumer *c, uint64_t sequence) {
    wr_reached *reached = c->queue->reached, now = {wr_consumer_client(c), sequence + 1};
    if (now.client == reached[0].client) {
        if (now.next > reached[0].next) reached[0].next = now.next;
    } else if (now.next > reached[0].next) {
        reached[1] = reached[0];
        reached[0] = now;
    } else if (now.next > reached[1].next) {
        reached[1] = now;
    }
}

/* UNSEEN: a REQUEUE of what was delivered ahead and handed to nobody: it is as if it had never been delivered. Only if
 * another consumer has got something behind it is it marked: no consumer sees unmarked messages out of order. */
/* LOST: its bytes are damaged; it is dropped and counted, without a dead letter. */
typedef enum { WR_SETTLE_ACK, WR_SETTLE_REQUEUE, WR_SETTLE_REJECT, WR_SETTLE_UNSEEN, WR_SETTLE_LOST } wr_settling;

bool wr_queue_settle(wr_queue_engine *e, wr_qlink *l, wr_queue *q, uint64_t sequence, wr_settling how);

/* As WR_SETTLE_REQUEUE, but it waits until `due`. */
bool wr_queue_return_later(wr_queue_engine *e, wr_qlink *l, wr_queue *q, uint64_t sequence, uint64_t due);

/* All that the link holds in the queue up to and with a sequence. */
uint32_t wr_queue_settle_to(wr_queue_engine *e, wr_qlink *l, wr_queue *q, uint64_t sequence, wr_settling how);

/* How many messages were delivered ahead: they are UNACKED, and their clients have not handed them out yet. */
uint64_t wr_queue_ahead(wr_queue_engine *e, const wr_queue *q);

/* Everything below a sequence goes: the ready ones, with `unacked` the held ones, too. What is delayed or dying
 * stays. */
uint64_t wr_queue_purge(wr_queue_engine *e, wr_queue *q, uint64_t below, bool unacked);
#endif
