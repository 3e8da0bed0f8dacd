/* Who consumes a queue alone: at most one client, its holder. It asks for that (control.Join), and gives it back (LEAVE); it goes
 * with its link, and with the queue.
 *
 * While a queue has a holder, no other consumer of it gets anything; those who get (a credit without a prefetch) do. A
 * client that is about to consume asks whether it may, also beside others (`exclusive` false): from then on it counts
 * as a consumer, before its first CREDIT.
 *
 * Invariant
 *   A holder has a delivery slot with WR_DELIVERY_EXCLUSIVE that names the queue; it is written before the answer, and freed before
 *   anybody else can be the holder. It lies in the client's own memory, so it goes with the client.
 * Crash points, of the worker
 *   before the slot is written: nobody was told; whoever asked asks the next worker, and perhaps another one has it by then
 *   before the answer: the next worker believes the slot, and gives the same answer to the same client again
 *   after a LEAVE was executed, before that was told (`processed`): it is executed again, and finds the slot free or not
 * The next worker does not know who consumes without a holder: they announce themselves. So it lets nobody in alone for
 * EARLY_NS, or while somebody holds messages of before and has not spoken since. In the same way it serves nobody else from a queue with
 * a single active consumer (wr_queue.former, delivery.h): who held its last messages comes first again.
 */
#ifndef WR_QUEUES_EXCLUSIVE_H
#define WR_QUEUES_EXCLUSIVE_H
#include "queues/queue.h"

typedef enum {
    WR_JOIN_IN,
    WR_JOIN_HELD,     /* another client has it alone */
    WR_JOIN_CONSUMED, /* alone is not possible: another client consumes */
    WR_JOIN_EARLY,    /* that is not known yet, or who is in the way is leaving: ask again */
    WR_JOIN_NO_SLOT   /* the client has too many queues alone, or holds too many messages */
} wr_join;

/* May this client consume? `other`: the slot of who is in the way. */
wr_join wr_exclusive_join(wr_queue_engine *e, wr_qlink *l, wr_queue *q, bool exclusive, uint32_t *other);
/* It does not any more: what it joined with ends. False: it had not joined. */
bool wr_exclusive_leave(wr_queue_engine *e, wr_qlink *l, wr_queue *q);
/* Each round, while `early`: is it over? Then single active consumers that have not announced themselves, and hold nothing, are none. */
void wr_exclusive_turn(wr_queue_engine *e);
/* At the start: does a slot say that this client is the holder? */
bool wr_exclusive_take_up(wr_queue_engine *e, wr_qlink *l, wr_queue *q, uint32_t slot);
#endif
