/* What a consumer holds for longer than its queue's ack timeout goes back: to another consumer, marked and counted as
 * any other return. Why it is so: design note 017.
 *
 *   A queue is looked at 16 times in its timeout. A look numbers what it sees: since which look a delivery is out, that
 *   is, in the hands of the program; since which look it lies ahead unseen. So a delivery carries no time, and what the
 *   worker itself slept through counts for nobody.
 *   out too long: it goes back, marked and counted.
 *   ahead too long, at a consumer that neither asked, settled nor handed out anything meanwhile: all that lies ahead
 *   there goes back, unmarked and not counted, the highest first.
 *   A consumer of which nothing was heard for so long gets nothing more until it asks or settles again.
 *
 * Who has a delivery, the client or the worker, one word decides (wr_view_handed), by compare-and-swap: the client
 * hands out, and settles, only what it can mark so; what the worker has marked TAKEN is nobody's there any more. The
 * client can say nothing in it that keeps a delivery for more than three timeouts.
 *
 * Crash points: none. The next worker takes up what is held, and counts from its first look; what was marked TAKEN and
 * is still held goes back at its first look.
 */
#ifndef WR_QUEUES_OVERDUE_H
#define WR_QUEUES_OVERDUE_H
#include "queues/queue.h"

/* Once, before anything is delivered from the queue. */
void wr_overdue_watch(wr_queue_engine *e, wr_queue *q, uint64_t timeout_ms);

/* Look, if it is time; true: something went back. After the commands of the round: an ack that came is in time. */
bool wr_overdue_turn(wr_queue_engine *e);

/* How long the loop may sleep, at most `most`. */
uint64_t wr_overdue_sleep_ns(const wr_queue_engine *e, uint64_t most);
#endif
