/* Statistics of queues. Declared in queues/statistics.h. */
#include "queues/levels.h"
#include "queues/rows.h"
#include "queues/statistics.h"

void wr_queue_states(const wr_queue *q, uint64_t *alpha, uint64_t *beta, uint64_t *gamma, uint64_t *delta) {
    const wr_queue_engine *e = q->engine;
    *alpha = 0;
    for (uint32_t transient = 0; transient < 2; transient++) {
        uint64_t current = wr_log_look(transient ? e->transient_log : e->log)->file;
        for (uint32_t i = 0; i < WR_RECENT_FILES; i++) {
            const wr_recent *recent = &q->recent[transient][i];
            if (recent->n && recent->file + (uint64_t)e->o.images_n > current) *alpha += recent->n;
        }
    }
    uint64_t all = q->ready_n + q->unacked_n + wr_aside_n(q);
    *delta = q->paged_n;
    *gamma = q->segment_n - (q->paged_n - q->spilled_n);
    *beta = all - *alpha - *gamma - *delta;
}

#define PUT(field, value) atomic_store_explicit(&row->field, value, memory_order_relaxed)
static void count(wr_queue_stats *row, const wr_queue *q) {
    PUT(ready, q->ready_n);
    PUT(unacked, q->unacked_n);
    PUT(bytes, q->bytes);
    PUT(published, q->published_n);
    PUT(delivered, q->delivered_n);
    PUT(acked, q->acked_n);
    PUT(requeued, q->requeued_n);
    if (!q->policy) return;
    PUT(delayed, q->policy->delayed_n);
    PUT(expired, q->policy->expired_n);
    PUT(dropped, q->policy->dropped_n);
    PUT(dead_lettered, q->policy->dead_lettered_n);
    PUT(refused, q->policy->refused_n);
    PUT(duplicates, q->policy->duplicates_n);
}

void wr_queue_stats_count(wr_queue_engine *e) {
    for (uint64_t i = 0; i < e->changed_n; i++) {
        wr_queue *q = e->changed[i];
        q->in_changed = false;
        if (q->stats_row == WR_NO_SLOT) continue;
        wr_queue_stats *row = (wr_queue_stats *)e->o.stats + q->stats_row;
        if (atomic_load_explicit(&row->queue, memory_order_relaxed) == q->id) count(row, q);
    }
    e->changed_n = 0;
}

void wr_queue_stats_write(wr_queue_engine *e) {
    for (uint64_t i = 0; i < e->dirty_n; i++) {
        wr_queue *q = e->dirty[i];
        q->in_dirty = false;
        if (q->stats_row == WR_NO_SLOT) continue;
        wr_queue_stats *row = (wr_queue_stats *)e->o.stats + q->stats_row;
        count(row, q);
        uint64_t asking = 0, consuming = 0;
        for (uint32_t c = 0; c < q->consumers_n; c++) {
            asking += wr_consumer_asks(q->consumers[c]);
            consuming += q->consumers[c]->prefetch > 0;
        }
        PUT(consumers, asking);
        PUT(consuming, consuming);
        PUT(consumed, q->consumed_n);
        PUT(asked, q->asked_n);
        PUT(lost, q->lost_n);
        PUT(base, wr_queue_base(q));
        PUT(next, q->next);
        uint64_t alpha, beta, gamma, delta;
        wr_queue_states(q, &alpha, &beta, &gamma, &delta);
        PUT(alpha, alpha);
        PUT(beta, beta);
        PUT(gamma, gamma);
        PUT(delta, delta);
        atomic_store_explicit(&row->queue, q->id, memory_order_release);
    }
    e->dirty_n = 0;
}
#undef PUT
