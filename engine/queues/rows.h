/* Rows of a queue: a chunk for 1024 neighbouring sequences, and the blocks of memory that the rows of resident chunks
 * lie in.
 *
 * A chunk without a live row is recycled wherever it is, so memory follows the messages and not the span of their
 * sequences. Blocks that are free are kept for the next chunk, up to a few; many go back to the system.
 *
 * Invariant: the rows of a free block are GONE.
 */
#ifndef WR_QUEUES_ROWS_H
#define WR_QUEUES_ROWS_H
#include "queues/queue.h"

/* Resident or not; NULL: all gone. */
static inline wr_chunk *wr_queue_chunk_peek(const wr_queue *q, uint64_t number) {
    uint64_t i = number - q->chunk_base;
    return number < q->chunk_base || i >= q->chunks_n ? NULL : q->chunks[q->chunks_at + i];
}

/* make the chunk of a sequence >= the lowest one; 0 or ENOMEM */
int wr_queue_room(wr_queue_engine *e, wr_queue *q, uint64_t sequence);
/* recycled, if no row of it lives or is to come */
void wr_queue_chunk_release(wr_queue_engine *e, wr_queue *q, uint64_t number);

/* The lowest sequence that is alive, or the next one to come. */
uint64_t wr_queue_base(const wr_queue *q);

/* One row more or less whose body lies in a journal file. Only the newest files are counted. */
static inline void wr_queue_recent(wr_queue *q, const wr_entry *entry, bool comes) {
    if (entry->location != WR_LOCATION_JOURNAL && entry->location != WR_LOCATION_JOURNAL_TRANSIENT) return;
    wr_recent *recent = &q->recent[entry->location == WR_LOCATION_JOURNAL_TRANSIENT][entry->file % WR_RECENT_FILES];
    if (comes) {
        if (!recent->n || recent->file < entry->file) *recent = (wr_recent){entry->file, 0};
        if (recent->file == entry->file) recent->n++;
    } else if (recent->file == entry->file && recent->n) {
        recent->n--;
    }
}

wr_rows *wr_rows_new(wr_queue_engine *e); /* NULL: no memory */
void wr_rows_free(wr_queue_engine *e, wr_entry *rows); /* all GONE */
void wr_rows_free_spares(wr_queue_engine *e);
void wr_rows_give_back(wr_queue_engine *e);

static inline uint64_t wr_rows_bytes(const wr_queue_engine *e) { return e->rows_n * sizeof(wr_rows); }
#endif
