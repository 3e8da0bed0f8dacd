/* Looking into a queue. Declared in queues/browse.h. */
#include "queues/browse.h"
#include "queues/entries.h"
#include "queues/pages.h"

#define EXPIRED_A_LOOK 16384 /* each chunk of them may come back from disk */
#define CHUNKS_A_LOOK 256    /* that are gone through row by row */

uint64_t wr_queue_browse(wr_queue *q, uint64_t start, wr_delivery *rows, uint64_t size, bool ready_only, uint64_t *next) {
    uint64_t n = 0, at = start, low = q->chunk_base * WR_CHUNK_ROWS, expired = 0, now = wr_wall_ms();
    if (at < low && size) at = low;
    while (n < size && at < q->next && expired < EXPIRED_A_LOOK) {
        const wr_chunk *chunk = wr_queue_chunk(q, at / WR_CHUNK_ROWS);
        if (!chunk || !(ready_only ? chunk->ready_n : chunk->live_n)) {
            at = (at / WR_CHUNK_ROWS + 1) * WR_CHUNK_ROWS;
            continue;
        }
        const wr_entry *entry = &chunk->rows[at % WR_CHUNK_ROWS];
        if (ready_only && entry->state == WR_ENTRY_READY && entry->expires && entry->expires <= now) {
            expired++; /* it goes when it is the head */
        } else if (entry->state == WR_ENTRY_READY || (entry->state == WR_ENTRY_UNACKED && !ready_only)) {
            memset((void *)&rows[n], 0, sizeof rows[n]);
            wr_delivery_fill(&rows[n], q->id, at, entry);
            atomic_store_explicit(&rows[n].state, entry->state == WR_ENTRY_UNACKED, memory_order_relaxed);
            n++;
        }
        at++;
    }
    *next = at > q->next ? q->next : at;
    return n;
}

/* Rows [first, first + count) to the spans; false: no room for one more. */
static bool put_span(wr_span *spans, uint64_t *n, uint64_t size, uint64_t first, uint64_t count) {
    if (*n && spans[*n - 1].first + spans[*n - 1].count == first) {
        spans[*n - 1].count += count;
        return true;
    }
    if (*n == size) return false;
    spans[(*n)++] = (wr_span){first, count};
    return true;
}

uint64_t wr_queue_spans(wr_queue *q, uint64_t start, wr_span *spans, uint64_t size, uint64_t *next) {
    const uint64_t now = wr_wall_ms();
    const bool expiring = q->policy && q->policy->expiring_n;
    uint64_t n = 0, at = start, low = q->chunk_base * WR_CHUNK_ROWS, looks = 0;
    if (at < low) at = low;
    while (at < q->next && looks < CHUNKS_A_LOOK) {
        const uint64_t number = at / WR_CHUNK_ROWS, end = (number + 1) * WR_CHUNK_ROWS;
        const wr_chunk *chunk = wr_queue_chunk_peek(q, number);
        if (chunk && chunk->ready_n == WR_CHUNK_ROWS && !expiring) {
            if (!put_span(spans, &n, size, at, end - at)) break;
            at = end;
        } else if (chunk && chunk->ready_n) {
            /* Rows of a paged chunk are READY, where its bits say that they live; whether they expire is on disk alone. */
            const bool paged = !chunk->rows && !expiring;
            if (!paged) chunk = wr_queue_chunk(q, number);
            for (looks++; chunk && at < end; at++) {
                const uint64_t row = at % WR_CHUNK_ROWS;
                const wr_entry *entry = paged ? NULL : &chunk->rows[row];
                const bool ready = paged ? chunk->page->live[row / 64] >> row % 64 & 1
                                         : entry->state == WR_ENTRY_READY && (!entry->expires || entry->expires > now);
                if (ready && !put_span(spans, &n, size, at, 1)) goto full;
            }
            at = chunk ? at : end;
        } else {
            at = end;
        }
    }
full:
    *next = at > q->next ? q->next : at;
    return n;
}

uint64_t wr_queue_measure(wr_queue *q, uint64_t start, uint64_t end, uint64_t bytes_max, bool one, uint64_t *bytes, bool *full) {
    uint64_t at = start, low = q->chunk_base * WR_CHUNK_ROWS, looks = 0;
    *bytes = 0;
    *full = false;
    if (end > q->next) end = q->next;
    if (at < low) at = low < end ? low : end;
    while (at < end && looks < CHUNKS_A_LOOK) {
        const uint64_t number = at / WR_CHUNK_ROWS, behind = (number + 1) * WR_CHUNK_ROWS;
        const wr_chunk *chunk = wr_queue_chunk(q, number);
        if (!chunk || !chunk->live_n) {
            at = behind;
            continue;
        }
        looks++;
        for (; at < behind && at < end; at++) {
            const wr_entry *entry = &chunk->rows[at % WR_CHUNK_ROWS];
            if (entry->state == WR_ENTRY_GONE) continue;
            if (!one && *bytes + entry->body_length > bytes_max) {
                *full = true;
                return at;
            }
            one = false;
            *bytes += entry->body_length;
        }
    }
    return at < end ? at : end;
}
