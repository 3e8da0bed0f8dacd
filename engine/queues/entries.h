/* Entries of a queue: they are inserted, become ready and cease to be, are looked for in the order of delivery, and
 * leave. Memory only: what that means for disk and stores is noted in queues/owed.h.
 *
 * A delivery takes the lowest READY row, or the lowest of the highest priority; a return moves `ready_from` back, so
 * the original order comes back by construction.
 */
#ifndef WR_QUEUES_ENTRIES_H
#define WR_QUEUES_ENTRIES_H
#include "queues/levels.h"
#include "queues/pages.h"
#include "queues/queue.h"

/* room was made; row is GONE */
void wr_queue_insert(wr_queue_engine *e, wr_queue *q, uint64_t sequence, const wr_entry *entry);
void wr_queue_remove_entry(wr_queue_engine *e, wr_queue *q, uint64_t sequence, wr_entry *entry, bool journalled, bool keep_reference);

/* A row leaves its queue for another one, as a MOVE frame in journal file `file` says. */
wr_entry wr_queue_take(wr_queue_engine *e, wr_queue *q, uint64_t sequence, uint32_t file);
void wr_queue_ready(wr_queue_engine *e, wr_queue *q, uint64_t sequence, wr_entry *entry); /* the row becomes READY */

/* A READY row ceases to be. */
static inline void wr_queue_unready(wr_queue *q, uint64_t sequence, const wr_entry *entry) {
    wr_queue_chunk(q, sequence / WR_CHUNK_ROWS)->ready_n--;
    q->ready_n--;
    wr_ready_goes(q, sequence, entry);
}

wr_entry *wr_queue_first(wr_queue *q, uint64_t *sequence); /* what is delivered next; ready_n > 0 */

/* The lowest ready row of a level; NULL: none. */
wr_entry *wr_queue_first_of_level(wr_queue *q, uint32_t level, uint64_t *sequence);

/* What goes first when the queue is too long: the oldest of the lowest priority. */
wr_entry *wr_queue_least(wr_queue *q, uint64_t *sequence);

static inline void wr_delivery_fill(wr_delivery *d, uint32_t queue, uint64_t sequence, const wr_entry *entry) {
    d->queue = queue;
    d->sequence = sequence;
    memcpy(d->id, entry->id, 16);
    d->file = entry->file;
    d->offset = entry->offset;
    d->frame_length = entry->frame_length;
    d->blob_offset = entry->blob_offset;
    d->meta_length = entry->meta_length;
    d->priority = (uint8_t)entry->priority;
    d->flags = (uint8_t)((entry->flags & WR_ENTRY_REDELIVERED ? WR_DELIVERY_REDELIVERED : 0) |
                         entry->reason << WR_DELIVERY_REASON_SHIFT | entry->location << WR_DELIVERY_LOCATION_SHIFT);
    d->delivery_count = entry->delivery_count;
    d->body_length = entry->body_length;
}
#endif
