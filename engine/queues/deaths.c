/* Death in memory. Declared in queues/deaths.h. */
#include "queues/deaths.h"
#include "queues/entries.h"
#include "queues/memory.h"
#include "queues/registry.h"
#include "queues/rows.h"

static void count_death(wr_policy *p, uint32_t reason) {
    if (reason == WR_REASON_EXPIRED) p->expired_n++;
    else if (reason == WR_REASON_MAXLEN) p->dropped_n++;
}

wr_queue *wr_dead_letter_queue_of(wr_queue_engine *e, const wr_queue *q) {
    if (!q->policy || !q->policy->o.dead_letters) return NULL;
    wr_queue *to = wr_queue_find(e, q->policy->o.dead_letters);
    return to && to != q && to->durable == q->durable ? to : NULL;
}

void wr_dead_letter_move(wr_queue_engine *e, wr_queue *q, uint64_t sequence, wr_queue *to, uint32_t reason, uint32_t file) {
    wr_entry copy = wr_queue_take(e, q, sequence, file);
    wr_make_dead_letter(&copy, reason);
    wr_queue_insert(e, to, to->next, &copy);
    to->published_n++;
    q->policy->dead_lettered_n++;
    wr_queue_wake(e, to);
}

void wr_policy_die(wr_queue_engine *e, wr_queue *q, uint64_t sequence, wr_entry *entry, uint32_t reason) {
    if (q->policy) count_death(q->policy, reason);
    wr_queue *to = wr_dead_letter_queue_of(e, q);
    if (!to) {
        wr_queue_remove_entry(e, q, sequence, entry, true, false);
        return;
    }
    if (!(entry->flags & WR_ENTRY_PERSISTENT)) { /* on no disk: no frame */
        if (wr_queue_room(e, to, to->next)) wr_queue_no_memory();
        wr_dead_letter_move(e, q, sequence, to, reason, 0);
        return;
    }
    if (entry->state == WR_ENTRY_READY) wr_queue_unready(q, sequence, entry);
    else q->unacked_n--;
    entry->state = WR_ENTRY_DYING;
    q->policy->dying_n++;
    e->deaths = wr_queue_grown(e->deaths, &e->deaths_size, e->deaths_n + 1, sizeof *e->deaths);
    e->deaths[e->deaths_n++] = (wr_death){.queue = q, .sequence = sequence, .reason = reason};
    wr_queue_dirty(e, q);
}
