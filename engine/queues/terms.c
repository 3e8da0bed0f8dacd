/* Terms of a queue, over a clean stop. Declared in queues/terms.h. */
#include "queues/pages.h"
#include "queues/rows.h"
#include "queues/terms.h"

static bool add_term(wr_term_list *list, uint64_t sequence, uint32_t delivery_count, bool redelivered) {
    wr_term *last = list->n ? &list->terms[list->n - 1] : NULL;
    if (last && redelivered && last->redelivered_n && last->redelivered_n < UINT32_MAX && last->delivery_count == delivery_count &&
        last->sequence + last->redelivered_n == sequence) {
        last->redelivered_n++;
        return true;
    }
    if (list->n == list->size) {
        uint64_t size = list->size ? 2 * list->size : 64;
        wr_term *more = realloc(list->terms, size * sizeof *more);
        if (!more) return false;
        list->terms = more;
        list->size = size;
    }
    list->terms[list->n++] = (wr_term){sequence, delivery_count, redelivered};
    return true;
}

bool wr_terms_of(const wr_queue *q, wr_term_list *list) {
    bool room = true;
    for (uint64_t i = 0; i < q->chunks_n && room; i++) {
        const wr_chunk *chunk = q->chunks[q->chunks_at + i];
        for (uint32_t r = 0; chunk && r < WR_CHUNK_ROWS && room; r++) {
            bool redelivered;
            uint32_t count;
            if (chunk->rows) {
                const wr_entry *entry = &chunk->rows[r];
                if (entry->state == WR_ENTRY_GONE || !(entry->flags & WR_ENTRY_PERSISTENT)) continue;
                redelivered = entry->state == WR_ENTRY_UNACKED || entry->flags & WR_ENTRY_REDELIVERED;
                count = entry->delivery_count;
            } else {
                if (!(chunk->page->live[r / 64] >> r % 64 & 1)) continue;
                redelivered = chunk->page->redelivered[r / 64] >> r % 64 & 1;
                count = chunk->counted ? chunk->page->delivery_counts[r] : 0;
            }
            if (redelivered || count) room = add_term(list, (q->chunk_base + i) * WR_CHUNK_ROWS + r, count, redelivered);
        }
    }
    return room;
}

/* A chunk without counts stays paged: a run may be all of a long queue. */
static void set_term(wr_queue *q, uint64_t sequence, uint16_t delivery_count, bool redelivered) {
    wr_chunk *chunk = wr_queue_chunk_peek(q, sequence / WR_CHUNK_ROWS);
    uint32_t r = sequence % WR_CHUNK_ROWS;
    if (!chunk) return;
    if (!chunk->rows && (!delivery_count || chunk->counted)) {
        uint64_t bit = 1ull << r % 64;
        if (!(chunk->page->live[r / 64] & bit)) return;
        if (redelivered) chunk->page->redelivered[r / 64] |= bit;
        if (chunk->counted) chunk->page->delivery_counts[r] = delivery_count;
        return;
    }
    wr_entry *entry = wr_queue_entry(q, sequence);
    if (!entry) return;
    entry->delivery_count = delivery_count;
    if (redelivered) entry->flags |= WR_ENTRY_REDELIVERED;
}

void wr_terms_set(wr_queue_engine *e, wr_queue *q, uint64_t next, const uint8_t *terms, uint64_t bytes) {
    for (uint64_t i = 0; i + sizeof(wr_term) <= bytes; i += sizeof(wr_term)) {
        wr_term t;
        memcpy(&t, terms + i, sizeof t);
        uint16_t count = (uint16_t)(t.delivery_count < UINT16_MAX ? t.delivery_count : UINT16_MAX);
        uint64_t end = t.sequence + (t.redelivered_n ? t.redelivered_n : 1);
        for (uint64_t s = t.sequence; s < end && s < q->next; s++) {
            if (s % WR_CHUNK_ROWS == 0) wr_pages_trim(e, 0);
            set_term(q, s, count, t.redelivered_n != 0);
        }
    }
    if (next > q->next) q->next = next;
}
