/* The invariants of a queue. Declared in queues/check.h. */
#include "queues/check.h"
#include "queues/owed.h"
#include "queues/levels.h"
#include "queues/statistics.h"
#include <assert.h>

static void check_policy(const wr_queue *q) {
    const wr_policy *p = q->policy;
    uint64_t bytes = 0, expiring = 0, delayed = 0, returned = 0, dying = 0, levels[WR_LEVELS] = {0}, all = 0;
    bool paged = false;
    for (uint64_t i = 0; i < q->chunks_n; i++) {
        const wr_chunk *chunk = q->chunks[q->chunks_at + i];
        paged |= chunk && !chunk->rows;
        for (uint32_t r = 0; chunk && chunk->rows && r < WR_CHUNK_ROWS; r++) {
            const wr_entry *entry = &chunk->rows[r];
            uint64_t sequence = (q->chunk_base + i) * WR_CHUNK_ROWS + r;
            if (entry->state == WR_ENTRY_DELAYED) {
                delayed++;
                returned += (entry->flags & WR_ENTRY_RETURNED) != 0;
                assert(wr_map_find(&p->due, sequence, 0));
            }
            dying += entry->state == WR_ENTRY_DYING;
            if (entry->state != WR_ENTRY_READY) continue;
            bytes += wr_counted_bytes(entry);
            expiring += entry->expires != 0;
            levels[wr_ready_level(p, entry)]++;
            assert(!p->o.max_priority || sequence >= p->levels[wr_ready_level(p, entry)].from);
        }
    }
    assert(delayed == p->delayed_n && returned == p->returned_n && dying == p->dying_n && p->due.n == delayed && p->heap_n >= delayed);
    for (uint32_t level = 0; p->o.max_priority && level <= p->o.max_priority; level++) all += p->levels[level].n;
    assert(!p->o.max_priority || all == q->ready_n);
    if (paged) return; /* the rest is on disk */
    assert((bytes == p->ready_bytes || !p->o.has_max_bytes) && expiring <= p->expiring_n);
    for (uint32_t level = 0; p->o.max_priority && level <= p->o.max_priority; level++) {
        assert(levels[level] == p->levels[level].n);
        assert(!levels[level] == !(p->levels_used[level / 64] >> level % 64 & 1));
    }
}

void wr_queue_check(const wr_queue_engine *e, const wr_queue *q) {
    uint64_t live = 0, ready = 0, segment = 0, paged = 0, spilled = 0, bytes = 0;
    for (uint64_t i = 0; i < q->chunks_n; i++) {
        const wr_chunk *chunk = q->chunks[q->chunks_at + i];
        uint64_t number = q->chunk_base + i;
        if (!chunk) continue;
        uint32_t rows[3] = {0}, in_segment = 0, transient = 0, stored = 0;
        if (!chunk->rows) {
            assert(chunk->page && chunk->live_n && chunk->ready_n == chunk->live_n);
            assert(chunk->segment_n + chunk->transient_n == chunk->live_n);
            assert(number != q->next / WR_CHUNK_ROWS || e->recovering);
            for (uint32_t r = 0; r < WR_CHUNK_ROWS; r++) rows[1] += chunk->page->live[r / 64] >> r % 64 & 1;
            assert(rows[1] == chunk->live_n);
            paged += chunk->live_n;
            spilled += chunk->transient_n;
            bytes += chunk->page->bytes;
        } else {
            assert(!chunk->page);
            for (uint32_t r = 0; r < WR_CHUNK_ROWS; r++) {
                const wr_entry *entry = &chunk->rows[r];
                if (entry->state == WR_ENTRY_GONE) continue;
                rows[entry->state == WR_ENTRY_READY ? 1 : 2]++;
                in_segment += entry->flags & WR_ENTRY_PERSISTENT && entry->index_file == WR_IN_SEGMENT;
                transient += !(entry->flags & WR_ENTRY_PERSISTENT);
                stored += wr_body_apart(entry->location);
                bytes += entry->body_length;
                /* no READY row lies below ready_from */
                assert(entry->state != WR_ENTRY_READY || number * WR_CHUNK_ROWS + r >= q->ready_from);
                assert(number * WR_CHUNK_ROWS + r < q->next);
            }
            assert(rows[1] + rows[2] == chunk->live_n && rows[1] == chunk->ready_n);
            assert(in_segment == chunk->segment_n && transient == chunk->transient_n && stored == chunk->stored_n);
        }
        live += chunk->live_n;
        ready += chunk->ready_n;
        segment += chunk->segment_n;
    }
    assert(ready == q->ready_n && live == q->ready_n + q->unacked_n + wr_aside_n(q) && bytes == q->bytes);
    assert(segment == q->segment_n && paged == q->paged_n && spilled == q->spilled_n && paged - spilled <= segment);
    if (q->policy) check_policy(q);
    uint64_t alpha, beta, gamma, delta;
    wr_queue_states(q, &alpha, &beta, &gamma, &delta);
    assert(alpha + beta + gamma + delta == live && alpha <= live && beta <= live);
}
