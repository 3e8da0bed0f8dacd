/* The end of a queue. Declared in queues/drop.h. */
#include "queues/consumers.h"
#include "queues/drop.h"
#include "queues/entries.h"
#include "queues/levels.h"
#include "queues/pages.h"
#include "queues/rows.h"

static void forget(wr_queue **list, uint64_t *n, const wr_queue *q) {
    for (uint64_t i = 0; i < *n; i++)
        if (list[i] == q) {
            list[i] = list[--*n];
            return;
        }
}

void wr_queue_drop(wr_queue_engine *e, wr_queue *q) {
    for (uint32_t i = 0; i < e->links_n; i++) {
        wr_qlink *l = e->links[e->order[i]];
        for (wr_consumer **at = &l->consumers; *at;) {
            wr_consumer *c = *at;
            if (c->queue != q) {
                at = &c->next;
                continue;
            }
            wr_consumer_return(e, c, false);
            wr_consumer_stop(e, c);
            wr_consumer_shares(e, c);
            wr_consumer_speaks(e, c);
            wr_map_remove(&e->consumers, (uint64_t)l->slot << 32 | q->id, 0);
            *at = c->next;
            free(c);
        }
    }
    uint64_t end = q->chunk_base + q->chunks_n;
    for (uint64_t number = q->chunk_base; number < end; number++)
        for (uint32_t r = 0; r < WR_CHUNK_ROWS && wr_queue_chunk_peek(q, number); r++) {
            wr_entry *entry = wr_queue_entry(q, number * WR_CHUNK_ROWS + r);
            if (entry) wr_queue_remove_entry(e, q, number * WR_CHUNK_ROWS + r, entry, false, false);
        }
    for (uint64_t i = 0; i < q->chunks_n; i++) {
        wr_chunk *chunk = q->chunks[q->chunks_at + i];
        if (chunk) wr_rows_free(e, chunk->rows); /* rows were still to come */
        free(chunk);
    }
    free(q->chunks);
    free(q->consumers);
    forget(e->wake, &e->wake_n, q);
    forget(e->dirty, &e->dirty_n, q);
    forget(e->changed, &e->changed_n, q);
    forget(e->watched, &e->watched_n, q);
    wr_policy_forget(e, q);
    wr_policy_free(q);
    for (uint32_t i = 0; i < e->ranges_n; i++)
        if (e->ranges[i].queue == q) e->ranges[i].count = 0;
    if (q->stats_row != WR_NO_SLOT) {
        wr_queue_stats *row = (wr_queue_stats *)e->o.stats + q->stats_row;
        atomic_store_explicit(&row->queue, 0, memory_order_release);
        e->stats_used[q->stats_row] = 0;
        if (q->stats_row < e->stats_free_from) e->stats_free_from = q->stats_row;
    }
    if (e->last_queue == q) e->last_queue = NULL;
    wr_map_remove(&e->queues, q->id, 0);
    free(q);
}
