/* Pages of a queue: rows that leave memory and come back from disk (design note 004, section 3). wr_queue_chunk is
 * the door: whoever wants the rows of a chunk gets them there, from memory or from disk. */
#ifndef WR_QUEUES_PAGES_H
#define WR_QUEUES_PAGES_H
#include "queues/queue.h"
#include "queues/rows.h"

/* Page out to, and in from, the folder of the segments and the spill file, which is empty. 0 or an errno; with 0 the descriptors are the
 * engine's. */
int wr_pages_open(wr_queue_engine *e, int segments, int spill, uint64_t node_id, uint64_t memory_bytes);
/* the worker ends when the disk does not give them */
wr_chunk *wr_page_back(wr_queue *q, uint64_t number, wr_chunk *chunk);

/* The chunk with its rows; NULL: all gone. Pointers to rows and chunks are good until the next wr_pages_trim. */
static inline wr_chunk *wr_queue_chunk(wr_queue *q, uint64_t number) {
    wr_chunk *chunk = wr_queue_chunk_peek(q, number);
    return !chunk || chunk->rows ? chunk : wr_page_back(q, number, chunk);
}

/* NULL: gone */
static inline wr_entry *wr_queue_entry(wr_queue *q, uint64_t sequence) {
    wr_chunk *chunk = wr_queue_chunk(q, sequence / WR_CHUNK_ROWS);
    if (!chunk) return NULL;
    wr_entry *entry = &chunk->rows[sequence % WR_CHUNK_ROWS];
    return entry->state == WR_ENTRY_GONE ? NULL : entry;
}

bool wr_page_out(wr_queue_engine *e, wr_queue *q, uint64_t number); /* false: they have to stay */

/* Page out what exceeds rows_limit, a batch at a time. Pointers to rows and chunks are void after it. */
void wr_pages_trim(wr_queue_engine *e, uint64_t now);

/* The limit anew, from the superblock's pressure and the rates; give memory back. Some times a second. */
void wr_pages_look(wr_queue_engine *e, uint64_t now);

/* How many bytes rows may have: pressure in 1/1000 (WR_PRESSURE_PAGE …), rate in rows a second. */
uint64_t wr_pages_limit(uint64_t memory_bytes, uint32_t pressure, uint64_t rate);
uint32_t wr_pages_pressure(uint32_t held, uint32_t pressure); /* a rise counts at once, a fall beyond the slack only */

/* Rows in memory near their limit: flush journal files early. Over it while a flush runs: publishers wait for the
 * disk. */
static inline bool wr_pages_short(const wr_queue_engine *e) {
    return e->segments_fd >= 0 && (e->entries_n - e->paged_n) * sizeof(wr_entry) > e->rows_limit / 2;
}

static inline bool wr_pages_full(const wr_queue_engine *e) {
    /* A stop finishes the rings, whatever that takes. Pressure alone slows nobody down: what it asks for may not be
     * there to leave. */
    return e->offered & WR_QUEUE_EVENT_FILES_MANY && !(e->offered & WR_QUEUE_EVENT_STOP) && e->segments_fd >= 0 &&
           (e->entries_n - e->paged_n) * sizeof(wr_entry) > e->memory_bytes + e->memory_bytes / 4;
}
#endif
