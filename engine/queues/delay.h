/* Times of a message: when it ends, and when its time has come. A DELAYED row is neither ready nor unacked, and lies
 * in `due` and the heap. */
#ifndef WR_QUEUES_DELAY_H
#define WR_QUEUES_DELAY_H
#include "queues/queue.h"

static inline bool wr_needs_times(const wr_queue *q) { return q->policy && q->policy->o.has_message_ttl; }

/* Does it have no time at all, by its own or by the queue's? */
static inline bool wr_ends_at_once(const wr_queue *q, uint64_t expires) {
    return expires == WR_EXPIRES_AT_ONCE || (wr_needs_times(q) && !q->policy->o.message_ttl_ms);
}

/* When a message ends in a queue: at its own time or at the queue's, whichever is earlier; both count from `due`.
 * `published` is a millisecond that had begun: one more, so that no message ends before its time. What ends at once ends
 * when it is published; consumers that wait at that moment get it (queues/delivery.c). One that was delayed has a
 * millisecond. */
static inline uint64_t wr_policy_expires(const wr_queue *q, uint64_t published, uint64_t expires, uint64_t due) {
    const bool later = due > published;
    if (expires == WR_EXPIRES_AT_ONCE) expires = later ? due + 1 : published;
    if (!wr_needs_times(q) || !published) return expires;
    const uint64_t ttl = q->policy->o.message_ttl_ms;
    uint64_t end = later ? due + (ttl ? ttl : 1) : published + (ttl ? ttl + 1 : 0);
    if (end >> WR_TIME_BITS) end = (1ull << WR_TIME_BITS) - 1;
    return expires && expires < end ? expires : end;
}

/* a READY row waits until then */
void wr_policy_delay(wr_queue_engine *e, wr_queue *q, uint64_t sequence, uint64_t due);

/* A READY row that came back waits until then, also after a kill: DELAY frames say so. At a start: what they said of
 * a row that is READY or DELAYED; nothing if there is none. */
void wr_policy_return_later(wr_queue_engine *e, wr_queue *q, uint64_t sequence, uint64_t due);

/* Frames of a journal file that begins: what was returned and still waits, because the older files may go. `leave`: as for keys. */
void wr_policy_write_delays(wr_queue_engine *e, uint64_t leave);

/* When the time of a DELAYED row comes, else 0. */
uint64_t wr_policy_due(const wr_queue *q, uint64_t sequence);

/* Rows whose time has come become ready; true: there were some. */
bool wr_policy_release_due(wr_queue_engine *e, wr_queue *q, uint64_t now);
#endif
