/* The queues of a worker by id. Declared in queues/registry.h. */
#include "queues/memory.h"
#include "queues/registry.h"

_Static_assert(WR_CLIENT_SLOTS <= 1 << WR_REPLY_SHIFT, "slots of reply queues");

#define STATS_AHEAD 32768 /* bytes of the statistics region that are asked for ahead */

/* A row of the statistics region, the lowest free one, so that memory is used as far as there are queues.
 * WR_NO_SLOT: none is free, or there is no memory for it; then the queue's numbers are not shown. */
static uint32_t take_stats_row(wr_queue_engine *e) {
    uint32_t row = e->stats_free_from;
    while (row < e->o.stats_rows && e->stats_used[row]) row++;
    e->stats_free_from = row;
    if (row >= e->o.stats_rows) return WR_NO_SLOT;
    uint64_t end = (uint64_t)(row + 1) * sizeof(wr_queue_stats), all = (uint64_t)e->o.stats_rows * sizeof(wr_queue_stats);
    if (end > e->stats_ready) {
        uint64_t more = wr_page_up(end + STATS_AHEAD) < all ? wr_page_up(end + STATS_AHEAD) : all;
        if (!wr_log_populate((uint8_t *)e->o.stats + e->stats_ready, more - e->stats_ready)) return WR_NO_SLOT;
        e->stats_ready = more;
    }
    e->stats_used[row] = 1;
    memset((wr_queue_stats *)e->o.stats + row, 0, sizeof(wr_queue_stats)); /* of the queue before: nobody looks at it now */
    if (row >= e->stats_rows_used) {
        e->stats_rows_used = row + 1;
        atomic_store_explicit(&e->me->queue_stats_rows, e->stats_rows_used, memory_order_release);
    }
    return row;
}

wr_queue *wr_queue_declare(wr_queue_engine *e, uint32_t id, bool durable) {
    wr_queue *q = wr_queue_find(e, id);
    if (q) return q;
    uint64_t *place = wr_map_put(&e->queues, id, 0);
    if (!place) return NULL;
    q = calloc(1, sizeof *q);
    if (!q) {
        wr_map_remove(&e->queues, id, 0);
        return NULL;
    }
    *place = (uint64_t)(uintptr_t)q;
    q->engine = e;
    q->id = id;
    q->durable = durable;
    q->stats_row = wr_is_reply_queue(id) ? WR_NO_SLOT : take_stats_row(e);
    /* room for each queue once, so that marking never fails */
    e->wake = wr_queue_grown(e->wake, &e->wake_size, e->queues.n, sizeof *e->wake);
    e->dirty = wr_queue_grown(e->dirty, &e->dirty_size, e->queues.n, sizeof *e->dirty);
    e->changed = wr_queue_grown(e->changed, &e->changed_size, e->queues.n, sizeof *e->changed);
    wr_queue_dirty(e, q);
    return q;
}

wr_queue *wr_queue_named(wr_queue_engine *e, uint32_t id) {
    wr_queue *q = wr_queue_find(e, id);
    if (!q && e->ids_end && id >= e->ids_end && !wr_map_put(&e->unknown, id, 0)) wr_queue_no_memory();
    return q;
}
