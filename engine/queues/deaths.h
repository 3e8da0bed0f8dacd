/* Messages that die: expired, too many, rejected, returned too often. Where dead letters are kept a persistent row is
 * DYING from then until the MOVE frame of the round lies in the image (queues/dead_letters.c), and then in the other
 * queue; a transient one, which is on no disk, moves at once. Where they are not kept it goes at once, like an ack. */
#ifndef WR_QUEUES_DEATHS_H
#define WR_QUEUES_DEATHS_H
#include "queues/queue.h"

static inline bool wr_delivered_too_often(const wr_queue *q, const wr_entry *entry) {
    return q->policy && q->policy->o.has_delivery_limit && entry->delivery_count > q->policy->o.delivery_limit;
}

/* What a message is in the queue of dead letters. */
static inline void wr_make_dead_letter(wr_entry *entry, uint32_t reason) {
    entry->reason = reason & 15;
    entry->expires = 0;
    entry->delivery_count = 0;
    entry->flags &= (uint8_t)~WR_ENTRY_REDELIVERED;
}

/* The queue that keeps the dead letters; NULL: nobody does. */
wr_queue *wr_dead_letter_queue_of(wr_queue_engine *e, const wr_queue *q);

/* The row leaves its queue and enters the other one. `file`: the journal file that says so. */
void wr_dead_letter_move(wr_queue_engine *e, wr_queue *q, uint64_t sequence, wr_queue *to, uint32_t reason, uint32_t file);

/* A READY or UNACKED (and unheld) row ends. */
void wr_policy_die(wr_queue_engine *e, wr_queue *q, uint64_t sequence, wr_entry *entry, uint32_t reason);
#endif
