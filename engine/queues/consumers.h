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
void wr_consumer_return(wr_queue_engine *e, wr_consumer *c); /* all that it holds goes back, redelivered */
void wr_consumer_free_all(wr_queue_engine *e, wr_qlink *l);

/* READY → UNACKED; the slot joins the consumer's list, which is ordered by sequence. */
bool wr_hold(wr_queue_engine *e, wr_consumer *c, wr_entry *entry, uint64_t sequence, uint32_t slot);

/* UNSEEN: a REQUEUE of what was delivered ahead and handed to nobody: it is as if it had never been delivered. */
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
