/* Entries between memory and the segments of the queue index. Declared in segment_entry.h. */
#include "segment_entry.h"

#define AT(field) WR_QUEUE_SEGMENT_ENTRY_AT_##field

wr_segment_row *wr_segment_export(wr_queue_engine *e, uint32_t file, uint64_t *n) {
    const uint32_t *live = wr_files_live(&e->files, file);
    uint64_t size = live ? *live : 0;
    wr_segment_row *rows = malloc((size + 1) * sizeof *rows);
    *n = 0;
    if (!rows) return NULL;
    for (uint64_t i = 0; i < e->queues.size && *n < size; i++) {
        if (!e->queues.rows[i].used) continue;
        const wr_queue *q = (const wr_queue *)(uintptr_t)e->queues.rows[i].value;
        for (uint64_t c = 0; c < q->chunks_n && *n < size; c++) {
            const wr_chunk *chunk = q->chunks[q->chunks_at + c];
            if (!chunk || file < chunk->file_low || file > chunk->file_high) continue;
            for (uint32_t r = 0; r < WR_CHUNK_ROWS && *n < size; r++) {
                const wr_entry *entry = &chunk->rows[r];
                if (entry->state == WR_ENTRY_GONE || !(entry->flags & WR_ENTRY_PERSISTENT) || entry->index_file != file) continue;
                rows[(*n)++] = (wr_segment_row){.queue = q->id, .location = entry->location,
                                                .sequence = (q->chunk_base + c) * WR_CHUNK_ROWS + r, .entry = *entry};
            }
        }
    }
    return rows;
}

uint64_t wr_segment_flushed(wr_queue_engine *e, uint32_t file, const wr_segment_row *rows, uint64_t n) {
    uint64_t done = 0;
    for (uint64_t i = 0; i < n; i++) {
        /* The data file exists now, whether or not anything in it is still alive. */
        if (rows[i].entry.location == WR_LOCATION_SEGMENT) wr_map_put(&e->data_files, rows[i].entry.file, 0);
        wr_queue *q = wr_queue_find(e, rows[i].queue);
        if (!q) continue;
        wr_entry *entry = wr_queue_entry(q, rows[i].sequence);
        if (!entry || entry->index_file != file) {
            /* Acked or claimed while the flush ran: its entry in the segment is one too many from the start. */
            wr_segment_ack_note(e, q, rows[i].sequence, (uint32_t)wr_log_look(e->log)->file);
            continue;
        }
        if (entry->location == WR_LOCATION_JOURNAL) {
            entry->location = WR_LOCATION_SEGMENT;
            entry->file = rows[i].entry.file;
            entry->offset = rows[i].entry.offset;
            uint64_t *live = wr_map_put(&e->data_files, entry->file, 0);
            if (live) ++*live;
        }
        entry->index_file = WR_IN_SEGMENT;
        uint32_t *live = wr_files_live(&e->files, file);
        if (live && *live) --*live;
        done++;
    }
    return done;
}

void wr_segment_encode(uint8_t to[WR_QUEUE_SEGMENT_ENTRY_SIZE], const wr_segment_row *row, uint64_t salt) {
    const wr_entry *entry = &row->entry;
    memset(to, 0, WR_QUEUE_SEGMENT_ENTRY_SIZE);
    to[AT(STATE)] = 1;
    to[AT(LOCATION)] = entry->location;
    wr_put16(to + AT(DELIVERY_COUNT), entry->delivery_count);
    memcpy(to + AT(ID), entry->id, 16);
    wr_put64(to + AT(SEQUENCE), row->sequence);
    wr_put32(to + AT(FILE), entry->file);
    wr_put32(to + AT(OFFSET), entry->offset);
    wr_put32(to + AT(FRAME_LENGTH), entry->frame_length);
    wr_put32(to + AT(BODY_LENGTH), entry->body_length);
    wr_put16(to + AT(BLOB_OFFSET), entry->blob_offset);
    wr_put16(to + AT(META_LENGTH), entry->meta_length);
    wr_put32(to + AT(QUEUE), row->queue);
    wr_put32(to + AT(CRC), wr_crc32c(wr_crc32c(0, &salt, sizeof salt), to + 4, WR_QUEUE_SEGMENT_ENTRY_SIZE - 4));
}

int wr_segment_load(wr_queue_engine *e, wr_queue *q, uint32_t segment, const uint8_t *bytes, uint64_t length, uint64_t salt,
                    uint64_t *live, uint64_t *bad) {
    static const uint8_t zeros[WR_QUEUE_SEGMENT_ENTRY_SIZE];
    uint32_t seed = wr_crc32c(0, &salt, sizeof salt);
    uint64_t n = length / WR_QUEUE_SEGMENT_ENTRY_SIZE;
    if (n > WR_SEGMENT_ENTRY_COUNT) n = WR_SEGMENT_ENTRY_COUNT;
    for (uint64_t i = 0; i < n; i++) {
        const uint8_t *at = bytes + i * WR_QUEUE_SEGMENT_ENTRY_SIZE;
        if (!memcmp(at, zeros, sizeof zeros)) continue;
        uint64_t sequence = (uint64_t)segment * WR_SEGMENT_ENTRY_COUNT + i;
        uint8_t location = at[AT(LOCATION)];
        if (wr_crc32c(seed, at + 4, WR_QUEUE_SEGMENT_ENTRY_SIZE - 4) != wr_get32(at + AT(CRC)) || at[AT(STATE)] != 1 ||
            wr_get64(at + AT(SEQUENCE)) != sequence || wr_get32(at + AT(QUEUE)) != q->id ||
            (location != WR_LOCATION_SEGMENT && location != WR_LOCATION_STORE)) {
            ++*bad; /* a torn zero (its ACK is in the journal), or damage: the journal decides */
            continue;
        }
        if (wr_queue_entry(q, sequence)) continue;
        wr_entry entry = {.file = wr_get32(at + AT(FILE)),
                          .offset = wr_get32(at + AT(OFFSET)),
                          .frame_length = wr_get32(at + AT(FRAME_LENGTH)),
                          .body_length = wr_get32(at + AT(BODY_LENGTH)),
                          .blob_offset = wr_get16(at + AT(BLOB_OFFSET)),
                          .meta_length = wr_get16(at + AT(META_LENGTH)),
                          .index_file = WR_IN_SEGMENT,
                          .location = location,
                          .flags = WR_ENTRY_PERSISTENT,
                          .delivery_count = wr_get16(at + AT(DELIVERY_COUNT))};
        memcpy(entry.id, at + AT(ID), 16);
        if (wr_queue_room(e, q, sequence)) return ENOMEM;
        wr_queue_insert(e, q, sequence, &entry);
        if (location == WR_LOCATION_STORE) {
            uint64_t a, b;
            memcpy(&a, entry.id, 8);
            memcpy(&b, entry.id + 8, 8);
            uint64_t *refs = wr_map_put(&e->stores[0].refs, a, b);
            if (!refs) return ENOMEM;
            ++*refs;
        }
        ++*live;
    }
    return 0;
}
