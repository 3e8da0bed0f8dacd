/* The queues of a worker: by id, those whose consumers may get something (`wake`), those whose statistics have
 * changed (`dirty`).
 *
 * A row of the shared statistics belongs to a queue from its declaration until it is dropped. Marking never fails:
 * both lists have room for every queue once.
 */
#ifndef WR_QUEUES_REGISTRY_H
#define WR_QUEUES_REGISTRY_H
#include "queues/queue.h"

static inline wr_queue *wr_queue_find(wr_queue_engine *e, uint32_t id) {
    if (e->last_queue && e->last_queue->id == id) return e->last_queue;
    uint64_t *found = wr_map_find(&e->queues, id, 0);
    if (!found) return NULL;
    return e->last_queue = (wr_queue *)(uintptr_t)*found;
}

/* Of replies to a client: made by its first CREDIT, known to no catalog and no file, gone with its link. Others publish
 * into it. */
static inline bool wr_is_reply_queue(uint32_t id) { return id & WR_REPLY_QUEUE; }
static inline uint32_t wr_reply_queue_of(const wr_qlink *l) {
    return WR_REPLY_QUEUE | (l->generation << WR_REPLY_SHIFT & (WR_REPLY_QUEUE - 1)) | l->slot;
}

/* A queue that a replayed record names; NULL: it was deleted since, or the catalog has lost it (`unknown`). */
wr_queue *wr_queue_named(wr_queue_engine *e, uint32_t id);
wr_queue *wr_queue_declare(wr_queue_engine *e, uint32_t id, bool durable); /* NULL: no memory */

static inline void wr_queue_wake(wr_queue_engine *e, wr_queue *q) {
    if (q->in_wake) return;
    q->in_wake = true;
    e->wake[e->wake_n++] = q;
}

static inline void wr_queue_dirty(wr_queue_engine *e, wr_queue *q) {
    if (!q->in_changed) {
        q->in_changed = true;
        e->changed[e->changed_n++] = q;
    }
    if (q->in_dirty) return;
    q->in_dirty = true;
    e->dirty[e->dirty_n++] = q;
}
#endif
