/* What memory owes: an effect in memory calls neither disk nor store, it notes here what the round has to pay. The
 * round writes the ranges as ACK and DELAY frames (queues/journal.c), sends the removes (queues/store_side.c); segment entries
 * of messages that have gone are zeroed by engine/queues/emptying.py, journal and data files without a live entry
 * removed by it.
 *
 * Invariant: the counts of `files`, `transient_files` and `data_files` are those of the entries that need the file;
 * `refs` counts the entries of a message id.
 */
#ifndef WR_QUEUES_OWED_H
#define WR_QUEUES_OWED_H
#include "kernel/large.h"
#include "queues/queue.h"

void wr_files_add(wr_files *f, uint32_t file);

static inline uint32_t *wr_files_live(wr_files *f, uint32_t file) {
    return file >= f->first && file - f->first < f->n ? &f->live[file - f->first] : NULL;
}

void wr_files_drop_first(wr_files *f);

/* Entries located in a segment data file; known from now on. A file whose entries are not counted would be removed,
 * so without memory for the count the worker ends. */
uint64_t *wr_data_file_live(wr_queue_engine *e, uint32_t file);

/* One range of an ACK, DELAY or MOVE frame; returns where the next one goes. */
static inline uint8_t *wr_range_put(uint8_t *range, uint32_t queue, uint64_t first, uint64_t count, uint64_t to) {
    wr_put32(range + WR_RANGE_AT_QUEUE, queue);
    wr_put32(range + WR_RANGE_AT_COUNT, (uint32_t)count);
    wr_put64(range + WR_RANGE_AT_FIRST, first);
    wr_put64(range + WR_RANGE_AT_TO, to);
    return range + WR_RANGE_SIZE;
}

/* The ACK frame of this round names the message. */
void wr_journal_range(wr_queue_engine *e, wr_queue *q, uint64_t sequence);
/* A DELAY frame of this round names it. */
void wr_journal_delay(wr_queue_engine *e, wr_queue *q, uint64_t sequence, uint64_t due);

static inline bool wr_may_be_in_segment(const wr_queue_engine *e, const wr_entry *entry) {
    return entry->index_file == WR_IN_SEGMENT || entry->index_file < e->flush_mark;
}

/* The message of an entry that is, or may be, in a segment has gone; its frame lies in `file`. */
void wr_segment_ack_note(wr_queue_engine *e, const wr_queue *q, uint64_t sequence, uint32_t file, bool moved);

/* Whether so many wait that those whose frames are synced should be applied. */
bool wr_segment_acks_many(const wr_queue_engine *e);

/* Ranges of segment entries whose messages have gone leave the list: those with their frames in journal files, or in
 * batches, up to `limit`. How many there are, and then into room for them. */
uint64_t wr_segment_acks_up_to(const wr_queue_engine *e, bool by_file, uint64_t limit);
void wr_segment_acks_take(wr_queue_engine *e, bool by_file, uint64_t limit, wr_segment_ack *to);

/* A message id as a key of `refs`. */
static inline void wr_owed_key(const uint8_t id[16], uint64_t *a, uint64_t *b) {
    memcpy(a, id, 8);
    memcpy(b, id + 8, 8);
}

/* Which messages with bodies at such a place are held: message id → entries; NULL: they lie in files of the worker's log. */
static inline wr_map *wr_bodies_held(wr_queue_engine *e, uint8_t location) {
    return location == WR_LOCATION_STORE             ? &e->stores[0].refs
           : location == WR_LOCATION_STORE_TRANSIENT ? &e->stores[1].refs
           : wr_is_large(location)                   ? &e->large
                                                     : NULL;
}

/* Does a durable message at such a place have its body neither in the journal nor in a segment? */
static inline bool wr_body_apart(uint8_t location) { return location == WR_LOCATION_STORE || location == WR_LOCATION_LARGE; }

/* One entry more, at a start. Returns 0, ENOMEM. */
int wr_queue_store_hold(wr_queue_engine *e, uint32_t store, const uint8_t id[16]);
/* One entry less. The last one takes the worker's reference away. */
void wr_queue_store_release(wr_queue_engine *e, uint32_t store, const uint8_t id[16]);
#endif
