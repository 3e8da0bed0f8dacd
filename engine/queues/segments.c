/* Entries between memory and segments. Declared in queues/segments.h. */
#include "queues/delay.h"
#include "queues/entries.h"
#include "queues/large.h"
#include "queues/owed.h"
#include "queues/pages.h"
#include "queues/registry.h"
#include "queues/rows.h"
#include "queues/segment_codec.h"
#include "queues/segments.h"

uint64_t wr_segment_export_most(wr_queue_engine *e, uint32_t file) {
    const uint32_t *live = wr_files_live(&e->files, file);
    return live ? *live : 0;
}

uint64_t wr_segment_export(wr_queue_engine *e, uint32_t file, wr_segment_row *rows, uint64_t size) {
    uint64_t n = 0;
    if (e->flush_mark <= file) e->flush_mark = file + 1;
    for (uint64_t i = 0; i < e->queues.size && n < size; i++) {
        if (!e->queues.rows[i].used) continue;
        const wr_queue *q = (const wr_queue *)(uintptr_t)e->queues.rows[i].value;
        for (uint64_t c = 0; c < q->chunks_n && n < size; c++) {
            const wr_chunk *chunk = q->chunks[q->chunks_at + c];
            if (!chunk || !chunk->rows || file < chunk->file_low || file > chunk->file_high) continue;
            uint64_t sequence = (q->chunk_base + c) * WR_CHUNK_ROWS;
            for (uint32_t r = 0; r < WR_CHUNK_ROWS && n < size; r++, sequence++) {
                const wr_entry *entry = &chunk->rows[r];
                if (entry->index_file != file || entry->state == WR_ENTRY_GONE || !(entry->flags & WR_ENTRY_PERSISTENT)) continue;
                wr_segment_row *row = &rows[n++];
                row->queue = q->id;
                row->location = entry->location;
                row->sequence = sequence;
                row->due = entry->state == WR_ENTRY_DELAYED ? wr_policy_due(q, sequence) : 0;
                row->entry = *entry;
            }
        }
    }
    return n;
}

uint64_t wr_segment_export_queue(wr_queue_engine *e, wr_queue *q, uint64_t first, wr_segment_row *rows, uint64_t size, uint64_t *next) {
    uint64_t number = first / WR_CHUNK_ROWS, end = q->chunk_base + q->chunks_n, n = 0;
    if (number < q->chunk_base) number = q->chunk_base;
    for (; number < end && n + WR_CHUNK_ROWS <= size; number++) {
        const wr_chunk *chunk = wr_queue_chunk(q, number);
        for (uint32_t r = 0; chunk && r < WR_CHUNK_ROWS; r++) {
            const wr_entry *entry = &chunk->rows[r];
            uint64_t sequence = number * WR_CHUNK_ROWS + r;
            if (entry->state == WR_ENTRY_GONE || !(entry->flags & WR_ENTRY_PERSISTENT) || sequence < first) continue;
            rows[n++] = (wr_segment_row){.queue = q->id, .location = entry->location, .sequence = sequence, .entry = *entry};
            if (entry->state == WR_ENTRY_DELAYED) rows[n - 1].due = wr_policy_due(q, sequence);
        }
        if (chunk) wr_pages_trim(e, 0);
    }
    *next = number < end ? number * WR_CHUNK_ROWS : q->next;
    return n;
}

/* Rows come queue by queue and chunk by chunk: what they have in common is looked up once for a run of them. */
uint64_t wr_segment_flushed(wr_queue_engine *e, uint32_t file, const wr_segment_row *rows, uint64_t n) {
    uint64_t done = 0;
    uint32_t *journal_live = wr_files_live(&e->files, file);
    for (uint64_t i = 0; i < n;) {
        uint32_t id = rows[i].queue;
        uint64_t number = rows[i].sequence / WR_CHUNK_ROWS, end = i + 1;
        while (end < n && rows[end].queue == id && rows[end].sequence / WR_CHUNK_ROWS == number) end++;
        wr_queue *q = wr_queue_find(e, id);
        wr_chunk *chunk = q ? wr_queue_chunk(q, number) : NULL;
        uint64_t before = done, *live = NULL;
        uint32_t live_file = 0;
        for (; i < end; i++) {
            const wr_segment_row *row = &rows[i];
            if (row->entry.location == WR_LOCATION_SEGMENT && (!live || live_file != row->entry.file)) {
                /* the data file exists now, whether or not anything in it is still alive */
                live_file = row->entry.file;
                live = wr_data_file_live(e, live_file);
            }
            wr_entry *entry = chunk ? &chunk->rows[row->sequence % WR_CHUNK_ROWS] : NULL;
            /* acked or claimed while the flush ran, and noted then */
            if (!entry || entry->state == WR_ENTRY_GONE || entry->index_file != file) continue;
            if (entry->location == WR_LOCATION_JOURNAL && live) {
                wr_queue_recent(q, entry, false);
                entry->location = WR_LOCATION_SEGMENT;
                entry->file = row->entry.file;
                entry->offset = row->entry.offset;
                ++*live;
            }
            entry->index_file = WR_IN_SEGMENT;
            done++;
        }
        if (done == before) continue;
        uint32_t moved = (uint32_t)(done - before);
        chunk->segment_n += moved;
        q->segment_n += moved;
        if (journal_live) *journal_live -= moved < *journal_live ? moved : *journal_live;
        wr_queue_dirty(e, q);
    }
    e->trim_after_ns = 0; /* there is something to page out again */
    return done;
}

int wr_segment_load(wr_queue_engine *e, wr_queue *q, uint32_t segment, const uint8_t *bytes, uint64_t length, uint64_t salt,
                    uint64_t *live, uint64_t *bad) {
    static const uint8_t zeros[WR_QUEUE_SEGMENT_ENTRY_SIZE];
    uint64_t n = length / WR_QUEUE_SEGMENT_ENTRY_SIZE;
    if (n > WR_SEGMENT_ENTRY_COUNT) n = WR_SEGMENT_ENTRY_COUNT;
    uint32_t seed = wr_segment_seed(salt, q->id);
    uint64_t roomy = UINT64_MAX; /* the chunk that was made last */
    for (uint64_t i = 0; i < n; i++) {
        const uint8_t *at = bytes + i * WR_QUEUE_SEGMENT_ENTRY_SIZE;
        if (!memcmp(at, zeros, sizeof zeros)) continue;
        uint64_t sequence = (uint64_t)segment * WR_SEGMENT_ENTRY_COUNT + i, due;
        wr_entry entry;
        if (!wr_segment_decode(at, seed, sequence, &entry, &due)) {
            ++*bad; /* a torn zero (its ACK is in the journal), or damage: the journal decides */
            continue;
        }
        if (wr_queue_entry(q, sequence)) continue;
        if (roomy != sequence / WR_CHUNK_ROWS && wr_queue_room(e, q, sequence)) return ENOMEM;
        roomy = sequence / WR_CHUNK_ROWS;
        wr_queue_insert(e, q, sequence, &entry);
        if (due && due > wr_wall_ms()) wr_policy_delay(e, q, sequence, due);
        if (entry.location == WR_LOCATION_STORE && wr_queue_store_hold(e, 0, entry.id)) return ENOMEM;
        if (entry.location == WR_LOCATION_LARGE && wr_queue_large_hold(e, entry.id, 1)) return ENOMEM;
        ++*live;
    }
    wr_pages_trim(e, 0);
    return 0;
}

uint64_t wr_segment_drop_lost(wr_queue_engine *e, uint32_t file, uint64_t size) {
    uint64_t n = 0;
    for (uint64_t i = 0; i < e->queues.size; i++) {
        if (!e->queues.rows[i].used) continue;
        wr_queue *q = (wr_queue *)(uintptr_t)e->queues.rows[i].value;
        uint64_t before = n;
        for (uint64_t s = wr_queue_base(q); s < q->next; s++) {
            wr_chunk *chunk = wr_queue_chunk(q, s / WR_CHUNK_ROWS);
            if (!chunk) { /* none of its rows is alive */
                s |= WR_CHUNK_ROWS - 1;
                continue;
            }
            wr_entry *entry = &chunk->rows[s % WR_CHUNK_ROWS];
            if (entry->state == WR_ENTRY_GONE || entry->location != WR_LOCATION_SEGMENT || entry->file != file ||
                (uint64_t)entry->offset + entry->frame_length <= size)
                continue;
            if (entry->index_file == WR_IN_SEGMENT) wr_segment_ack_note(e, q, s, 0, false);
            wr_queue_remove_entry(e, q, s, entry, false, false);
            n++;
        }
        q->lost_n += n - before;
        wr_pages_trim(e, 0);
    }
    return n;
}
