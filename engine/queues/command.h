/* A command of a link while it is executed. It was copied before it was looked at, every length is checked, every
 * blob is masked into the arena; what is answered becomes visible with `processed`. */
#ifndef WR_QUEUES_COMMAND_H
#define WR_QUEUES_COMMAND_H
#include "queues/queue.h"

typedef enum { WR_DONE, WR_WAIT } wr_outcome;

static inline const uint8_t *wr_command_blob(const wr_qlink *l, const wr_command *c) { return wr_view_blob(&l->view, c->body, c->length); }

static inline wr_outcome wr_command_answer(wr_command *record, uint32_t result) {
    atomic_store_explicit(&record->result, result, memory_order_relaxed); /* visible with `processed` */
    return WR_DONE;
}

/* Something that `synced` must cover although it wrote no frame. */
static inline void wr_link_wants(wr_queue_engine *e, wr_qlink *l, uint8_t flags) {
    if (flags & WR_FLAG_SYNCED && (l->dirty || l->unsynced)) {
        l->dirty = true;
        e->want_commit = e->want_sync = true;
    } else if (flags & WR_FLAG_WRITTEN && l->dirty) {
        e->want_commit = true;
    }
}
#endif
