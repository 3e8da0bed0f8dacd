/* Counts of READY rows. Declared in queues/levels.h. */
#include "queues/levels.h"
#include "queues/memory.h"
#include <assert.h>

wr_policy *wr_policy_of(wr_queue *q) {
    if (!q->policy && !(q->policy = calloc(1, sizeof *q->policy))) wr_queue_no_memory();
    return q->policy;
}

void wr_policy_set(wr_queue *q, const wr_policy_options *options) {
    wr_policy *p = wr_policy_of(q);
    p->o = *options;
    if (p->o.max_priority > WR_PRIORITY_MAX) p->o.max_priority = WR_PRIORITY_MAX;
    if (p->o.max_priority && !(p->levels = calloc(p->o.max_priority + 1, sizeof *p->levels))) wr_queue_no_memory();
}

void wr_policy_free(wr_queue *q) {
    wr_policy *p = q->policy;
    if (!p) return;
    wr_map_free(&p->level_chunks);
    wr_map_free(&p->due);
    wr_map_free(&p->seen);
    free(p->levels);
    free(p->heap);
    free(p->keys);
    free(p);
    q->policy = NULL;
}

void wr_policy_forget(wr_queue_engine *e, const wr_queue *q) {
    for (uint64_t i = 0; i < e->timed_n; i++)
        if (e->timed[i] == q) {
            e->timed[i] = e->timed[--e->timed_n];
            break;
        }
    for (uint64_t i = 0; i < e->deaths_n; i++)
        if (e->deaths[i].queue == q) e->deaths[i].queue = NULL;
}

/* Look at the queue when the wall clock shows `when`, or before. */
void wr_policy_look_at(wr_queue_engine *e, wr_queue *q, uint64_t when) {
    if (!q->policy->timed) {
        q->policy->timed = true;
        e->timed = wr_queue_grown(e->timed, &e->timed_size, e->timed_n + 1, sizeof *e->timed);
        if (!e->timed_n) e->timed_at = when;
        e->timed[e->timed_n++] = q;
    }
    if (when < e->timed_at) e->timed_at = when;
}

bool wr_policy_too_long(const wr_queue *q) {
    const wr_policy *p = q->policy;
    return !p->o.reject_publish && q->ready_n &&
           ((p->o.has_max_length && q->ready_n > p->o.max_length) || (p->o.has_max_bytes && p->ready_bytes > p->o.max_length_bytes));
}

static void level_loses(wr_policy *p, uint32_t level, uint64_t n) {
    if (!(p->levels[level].n -= n)) p->levels_used[level / 64] &= ~(1ull << level % 64);
}

/* q->ready_n counts it already. */
void wr_policy_comes(wr_queue_engine *e, wr_queue *q, uint64_t sequence, const wr_entry *entry) {
    wr_policy *p = wr_policy_of(q);
    p->ready_bytes += wr_counted_bytes(entry);
    if (entry->expires) {
        p->expiring_n++;
        wr_policy_look_at(e, q, entry->expires);
    }
    if (p->o.max_priority) {
        uint32_t level = wr_ready_level(p, entry);
        ++*wr_map_set(&p->level_chunks, sequence / WR_CHUNK_ROWS, level);
        wr_level *l = &p->levels[level];
        if (!l->n++ || sequence < l->from) l->from = sequence;
        p->levels_used[level / 64] |= 1ull << level % 64;
    }
    if (wr_policy_too_long(q)) wr_policy_look_at(e, q, 0);
}

void wr_policy_goes(wr_queue *q, uint64_t sequence, const wr_entry *entry) {
    wr_policy *p = q->policy;
    p->ready_bytes -= wr_counted_bytes(entry);
    if (entry->expires) p->expiring_n--;
    if (p->o.max_priority) {
        uint32_t level = wr_ready_level(p, entry);
        uint64_t *n = wr_map_find(&p->level_chunks, sequence / WR_CHUNK_ROWS, level);
        assert(n && *n && p->levels[level].n);
        if (!--*n) wr_map_remove(&p->level_chunks, sequence / WR_CHUNK_ROWS, level);
        level_loses(p, level, 1);
    }
}

void wr_policy_other_goes(wr_queue *q, uint64_t sequence, const wr_entry *entry) {
    wr_policy *p = q->policy;
    if (entry->state == WR_ENTRY_DYING) {
        p->dying_n--;
    } else {
        assert(entry->state == WR_ENTRY_DELAYED);
        p->delayed_n--;
        if (entry->flags & WR_ENTRY_RETURNED) p->returned_n--;
        wr_map_remove(&p->due, sequence, 0);
    }
}

void wr_policy_damaged(wr_queue *q, uint64_t number, const wr_chunk *chunk, uint64_t lost_bytes) {
    wr_policy *p = q->policy;
    p->ready_bytes -= lost_bytes;
    for (uint32_t level = 0; p->o.max_priority && level <= p->o.max_priority; level++) {
        uint64_t *before = wr_map_find(&p->level_chunks, number, level), now = 0;
        if (!before) continue;
        for (uint32_t r = 0; r < WR_CHUNK_ROWS; r++)
            now += chunk->rows[r].state == WR_ENTRY_READY && wr_ready_level(p, &chunk->rows[r]) == level;
        level_loses(p, level, *before - now);
        *before = now;
        if (!now) wr_map_remove(&p->level_chunks, number, level);
    }
}
