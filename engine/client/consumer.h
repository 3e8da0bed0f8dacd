/* One queue that an attachment consumes.
 *
 * Invariants
 *   A delivery is `pending` from its intake until it is handed out; then its tag stands in `unacked` until it is
 *   settled.
 *   Of a queue with an ack timeout (`timed`) it is handed out, and settled, only if its word could be marked so: else the
 *   worker has taken it back (engine/queues/overdue.h). What it took stands in `pending` until somebody looks, and in
 *   `unacked` until the program settles it, and learns of it.
 * Crash points
 *   pending and unacked die with the process; the worker returns what the delivery slots say is held.
 */
#ifndef WR_CLIENT_CONSUMER_H
#define WR_CLIENT_CONSUMER_H
#include "client/attachment.h"

typedef struct {
    wr_delivery delivery;
    uint32_t slot;
} wr_pending;

#define WR_TAG_NONE UINT64_MAX /* a settled place in `unacked` */

/* Where a delivery was handed out from: one that came again has the same tag, and another mark. `number`: the how many-th it was
 * that was handed out, if nobody says otherwise; only to find it quickly. */
typedef struct {
    uint32_t slot, mark, number;
} wr_place;

typedef struct {
    uint64_t tag;
    wr_place place;
} wr_in_hand;

struct wr_client_consumer {
    uint32_t server;
    uint32_t queue;
    wr_pending *pending; /* ring, power of two */
    uint32_t pending_size;
    uint64_t pending_first, pending_next;
    wr_in_hand *unacked; /* ring, in the order they were handed out, and so by number; settled places keep theirs */
    uint32_t unacked_size;
    uint64_t unacked_first, unacked_next;
    uint64_t unacked_n; /* places in it that are not settled */
    uint32_t handed_n; /* so many were handed out; the number of the next one */
    uint64_t popped;   /* deliveries since the consumer began at the worker */
    uint64_t came_n;   /* deliveries since ever */
    uint64_t granted;  /* absolute credit that the worker knows */
    uint32_t prefetch; /* the most unacked ones that the worker knows, 0: no limit */
    bool announced;    /* a CREDIT was sent and no CANCEL after it */
    bool timed;        /* the queue has an ack timeout */
    wr_client_consumer *next_parked;
};

static inline uint64_t wr_client_consumer_pending(const wr_client_consumer *c) { return c->pending_next - c->pending_first; }

/* Prepare a CREDIT: deliveries up to `credit` since the consumer began, and at most `prefetch` unacked at a time. Either
 * may be 0, for no such limit, but not both. */
int wr_attachment_credit(wr_attachment *a, wr_client_consumer *c, uint64_t credit, uint32_t prefetch, wr_condition *blocked);
/* Prepare a CANCEL: the worker forgets the consumer, what we hold stays ours. The next credit begins a new count. */
int wr_attachment_cancel(wr_attachment *a, wr_client_consumer *c, uint64_t *sequence, wr_condition *blocked);
/* Prepare a LEAVE: who consumes alone, or asked whether it may consume, does not any more. */
int wr_attachment_leave(wr_attachment *a, uint32_t server, uint32_t queue, wr_condition *blocked);
/* ACK or NACK of tags of one queue: one command for one tag, else one with a list. At most 4096 tags. */
int wr_attachment_settle(wr_attachment *a, const wr_client_consumer *c, uint8_t op, uint8_t flags, const uint64_t *tags,
                         uint32_t tags_n, wr_condition *blocked);
/* NACK of one tag, to be delivered again from `due` on: milliseconds of CLOCK_REALTIME. */
int wr_attachment_return_later(wr_attachment *a, const wr_client_consumer *c, uint64_t tag, uint64_t due, wr_condition *blocked);

/* Deliveries since pushed to us, by any queue of the server: into `pending` of their consumers. Deliveries for a
 * queue without a consumer are returned. 0, ENOMEM, or EAGAIN (the ring is full while something must be returned:
 * try again later). */
int wr_attachment_intake(wr_attachment *a, uint32_t server);
/* Prepare the return of what lies here but the first `keep`, unseen, or of its last part: 0 (nothing is left to return, if *left is 0), or
 * what wr_attachment_settle says. */
int wr_client_consumer_return_last(wr_attachment *a, wr_client_consumer *c, uint64_t keep, uint64_t *left, wr_condition *blocked);
/* What to wait for until something is pushed. */
static inline wr_condition wr_attachment_delivery(const wr_attachment *a, uint32_t server) {
    return (wr_condition){&wr_attachment_link(a, server)->delivery_tail, a->workers[server].popped, server};
}

/* One that is parked is taken over, with what it has and what was granted to it: ESTALE, which is no error. ENOMEM, EEXIST. */
int wr_client_consumer_add(wr_attachment *a, wr_client_consumer *c, uint32_t server, uint32_t queue);
/* Its reader is gone, perhaps in the middle of a call: no command can be prepared now. It goes on in `shell` (malloc), until somebody else reads
 * the queue, or the next intake cancels it and returns what lies here. Afterwards as dropped. */
void wr_client_consumer_park(wr_attachment *a, wr_client_consumer *c, wr_client_consumer *shell);
void wr_client_consumer_free_parked(wr_attachment *a); /* before wr_attachment_free */
void wr_client_consumer_drop(wr_attachment *a, wr_client_consumer *c);                                /* forgets it; frees its rings */
/* Each worker may have a queue of the same id: those of replies have. */
wr_client_consumer *wr_client_consumer_find(const wr_attachment *a, uint32_t server, uint32_t queue);
/* A delivery taken out of `pending` is the next one again. ENOMEM. */
int wr_client_consumer_push_front(wr_client_consumer *c, const wr_pending *p);
/* Note that a tag was handed out; its place gets the number. ENOMEM. */
int wr_client_consumer_hand(wr_client_consumer *c, uint64_t tag, wr_place *place);
/* Forget a tag; false when it was not handed out from there (or settled before). */
bool wr_client_consumer_forget(wr_client_consumer *c, uint64_t tag, wr_place place);
/* Move this one, and all that were handed out before it, into `tags` and `places`, in this order; returns how many, at most `room`:
 * 0 when it was not handed out from there (or settled before). */
uint32_t wr_client_consumer_forget_up_to(wr_client_consumer *c, uint64_t tag, wr_place place, uint64_t *tags, wr_place *places, uint32_t room);
/* How many are handed out and not settled, without those that the worker took back. */
uint64_t wr_client_consumer_unacked(const wr_attachment *a, const wr_client_consumer *c);

/* Of a queue with an ack timeout. To hand a pending delivery out, to settle one that was, and to say that this was not
 * submitted: false, the worker has taken it back. */
bool wr_attachment_hand_out(const wr_attachment *a, uint32_t server, wr_place place, uint64_t pushed_at);
bool wr_attachment_settling(const wr_attachment *a, uint32_t server, wr_place place);
void wr_attachment_not_settling(const wr_attachment *a, uint32_t server, wr_place place);
/* Did the worker take back what was handed out? What is not in `unacked` any more is known so until the slot is used
 * again. */
bool wr_attachment_taken(const wr_attachment *a, uint32_t server, wr_place place);
bool wr_client_consumer_taken(const wr_attachment *a, const wr_client_consumer *c, uint64_t tag, wr_place place);
/* What it took back lies here no more. */
void wr_client_consumer_drop_taken(const wr_attachment *a, wr_client_consumer *c);
/* The same of `unacked`: for who settles nothing of so many that they can only be the worker's. */
void wr_client_consumer_forget_taken(const wr_attachment *a, wr_client_consumer *c);
/* The worker was restarted: keep of `pending` what its delivery slots still say is ours, with the locations they say
 * now. */
void wr_client_consumer_recheck(const wr_attachment *a, wr_client_consumer *c);
/* Read a delivery slot; true when it still holds this delivery for us. */
bool wr_attachment_slot_read(const wr_attachment *a, uint32_t server, uint32_t slot, wr_delivery *to);
#endif
