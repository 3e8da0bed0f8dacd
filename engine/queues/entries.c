/* Entries of a queue. Declared in queues/entries.h; invariants: queues/queue.h. */
#include "queues/entries.h"
#include "queues/large.h"
#include "queues/levels.h"
#include "queues/owed.h"
#include "queues/pages.h"
#include "queues/registry.h"
#include "queues/rows.h"

void wr_queue_insert(wr_queue_engine *e, wr_queue *q, uint64_t sequence, const wr_entry *from) {
    wr_chunk *chunk = wr_queue_chunk(q, sequence / WR_CHUNK_ROWS);
    wr_entry *entry = &chunk->rows[sequence % WR_CHUNK_ROWS];
    *entry = *from;
    entry->state = WR_ENTRY_READY;
    entry->flags &= (uint8_t)~WR_ENTRY_RETURNED; /* it may come from another queue */
    chunk->live_n++;
    chunk->ready_n++;
    q->ready_n++;
    q->bytes += entry->body_length;
    e->entries_n++;
    e->bytes += entry->body_length;
    if (sequence < q->ready_from || q->ready_n == 1) q->ready_from = sequence;
    wr_ready_comes(e, q, sequence, entry);
    if (sequence >= q->next) {
        q->next = sequence + 1;
        /* the chunk before may have waited for its rows to come */
        if (sequence % WR_CHUNK_ROWS == 0 && sequence) wr_queue_chunk_release(e, q, sequence / WR_CHUNK_ROWS - 1);
    }
    wr_queue_recent(q, entry, true);
    if (wr_body_apart(entry->location)) chunk->stored_n++;
    if (entry->flags & WR_ENTRY_PERSISTENT) {
        if (entry->index_file != WR_IN_SEGMENT) {
            uint32_t *live = wr_files_live(&e->files, entry->index_file);
            if (live) ++*live;
            if (entry->index_file < chunk->file_low) chunk->file_low = entry->index_file;
            if (entry->index_file > chunk->file_high) chunk->file_high = entry->index_file;
        } else {
            chunk->segment_n++;
            q->segment_n++;
        }
        if (entry->location == WR_LOCATION_SEGMENT) {
            ++*wr_data_file_live(e, entry->file);
        }
    } else {
        chunk->transient_n++;
        uint32_t *live = wr_files_live(&e->transient_files, entry->file);
        if (live) ++*live;
    }
    wr_queue_dirty(e, q);
}

/* The row leaves the queue. `journalled`: an ACK frame must say so (if the entry is on disk at all). */
void wr_queue_remove_entry(wr_queue_engine *e, wr_queue *q, uint64_t sequence, wr_entry *entry, bool journalled,
                           bool keep_reference) {
    wr_chunk *chunk = wr_queue_chunk(q, sequence / WR_CHUNK_ROWS);
    if (entry->state == WR_ENTRY_READY) wr_queue_unready(q, sequence, entry);
    else if (entry->state == WR_ENTRY_UNACKED) q->unacked_n--;
    else wr_policy_other_goes(q, sequence, entry);
    q->bytes -= entry->body_length;
    e->entries_n--;
    e->bytes -= entry->body_length;
    wr_queue_recent(q, entry, false);
    if (wr_body_apart(entry->location)) chunk->stored_n--;
    if (entry->flags & WR_ENTRY_PERSISTENT) {
        if (entry->index_file != WR_IN_SEGMENT) {
            uint32_t *live = wr_files_live(&e->files, entry->index_file);
            if (live && *live) --*live;
        } else {
            chunk->segment_n--;
            q->segment_n--;
        }
        if (entry->location == WR_LOCATION_SEGMENT) {
            uint64_t *live = wr_map_find(&e->data_files, entry->file, 0);
            if (live && *live) --*live;
        }
        if (journalled) {
            wr_journal_range(e, q, sequence);
            if (wr_may_be_in_segment(e, entry)) wr_segment_ack_note(e, q, sequence, (uint32_t)wr_log_look(e->log)->file, false);
        }
    } else {
        chunk->transient_n--;
        uint32_t *live = wr_files_live(&e->transient_files, entry->file);
        if (live && *live) --*live;
    }
    if (!keep_reference && (entry->location == WR_LOCATION_STORE || entry->location == WR_LOCATION_STORE_TRANSIENT))
        wr_queue_store_release(e, entry->location == WR_LOCATION_STORE ? 0 : 1, entry->id);
    else if (!keep_reference && wr_is_large(entry->location))
        wr_queue_large_release(e, entry->id);
    entry->state = WR_ENTRY_GONE;
    chunk->live_n--;
    if (!chunk->live_n) wr_queue_chunk_release(e, q, sequence / WR_CHUNK_ROWS);
    wr_queue_dirty(e, q);
}

wr_entry wr_queue_take(wr_queue_engine *e, wr_queue *q, uint64_t sequence, uint32_t file) {
    wr_entry *entry = wr_queue_entry(q, sequence), copy = *entry;
    if (copy.flags & WR_ENTRY_PERSISTENT && wr_may_be_in_segment(e, &copy)) {
        wr_segment_ack_note(e, q, sequence, file, true);
        if (copy.index_file == WR_IN_SEGMENT) copy.index_file = file; /* only the MOVE says that it is there */
    }
    wr_queue_remove_entry(e, q, sequence, entry, false, true);
    return copy;
}

void wr_queue_ready(wr_queue_engine *e, wr_queue *q, uint64_t sequence, wr_entry *entry) {
    entry->state = WR_ENTRY_READY;
    wr_queue_chunk(q, sequence / WR_CHUNK_ROWS)->ready_n++;
    q->ready_n++;
    if (sequence < q->ready_from || q->ready_n == 1) q->ready_from = sequence;
    wr_ready_comes(e, q, sequence, entry);
    wr_queue_wake(e, q);
    wr_queue_dirty(e, q);
}

wr_entry *wr_queue_first_of_level(wr_queue *q, uint32_t level, uint64_t *sequence) {
    wr_policy *p = q->policy;
    for (uint64_t at = p->levels[level].from; p->levels[level].n && at / WR_CHUNK_ROWS < q->chunk_base + q->chunks_n;
         at = (at / WR_CHUNK_ROWS + 1) * WR_CHUNK_ROWS) {
        if (!wr_map_find(&p->level_chunks, at / WR_CHUNK_ROWS, level)) continue;
        wr_chunk *chunk = wr_queue_chunk(q, at / WR_CHUNK_ROWS);
        for (uint32_t r = at % WR_CHUNK_ROWS; chunk && r < WR_CHUNK_ROWS; r++)
            if (chunk->rows[r].state == WR_ENTRY_READY && wr_ready_level(p, &chunk->rows[r]) == level) {
                *sequence = p->levels[level].from = at / WR_CHUNK_ROWS * WR_CHUNK_ROWS + r;
                return &chunk->rows[r];
            }
    }
    return NULL;
}

/* What a delivery takes, level by level; NULL: none. */
static wr_entry *first_by_level(wr_queue *q, uint64_t *sequence) {
    wr_entry *found = NULL;
    int level = WR_LEVELS;
    while (!found && (level = wr_level_below(q->policy, level)) >= 0) found = wr_queue_first_of_level(q, (uint32_t)level, sequence);
    return found;
}

/* The lowest READY row at or above ready_from, or what its priority puts first. NULL: none, or damage took the last. */
wr_entry *wr_queue_first(wr_queue *q, uint64_t *sequence) {
    if (wr_has_levels(q)) return first_by_level(q, sequence);
    uint64_t at = q->ready_from;
    while (q->ready_n && at / WR_CHUNK_ROWS < q->chunk_base + q->chunks_n) {
        wr_chunk *chunk = wr_queue_chunk_peek(q, at / WR_CHUNK_ROWS);
        if (chunk && chunk->ready_n && (chunk = wr_queue_chunk(q, at / WR_CHUNK_ROWS)) && chunk->ready_n) {
            for (uint32_t r = at % WR_CHUNK_ROWS; r < WR_CHUNK_ROWS; r++)
                if (chunk->rows[r].state == WR_ENTRY_READY) {
                    *sequence = at / WR_CHUNK_ROWS * WR_CHUNK_ROWS + r;
                    q->ready_from = *sequence;
                    return &chunk->rows[r];
                }
        }
        at = (at / WR_CHUNK_ROWS + 1) * WR_CHUNK_ROWS;
    }
    return NULL;
}

wr_entry *wr_queue_least(wr_queue *q, uint64_t *sequence) {
    if (!q->policy->o.max_priority) return wr_queue_first(q, sequence);
    wr_entry *found = NULL;
    for (int level = wr_level_from(q->policy, 0); !found && level >= 0; level = wr_level_from(q->policy, level + 1))
        found = wr_queue_first_of_level(q, (uint32_t)level, sequence);
    return found;
}
