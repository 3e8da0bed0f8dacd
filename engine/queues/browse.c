/* Looking into a queue. Declared in queues/browse.h. */
#include "queues/browse.h"
#include "queues/entries.h"
#include "queues/pages.h"

#define EXPIRED_A_LOOK 16384 /* each chunk of them may come back from disk */

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
