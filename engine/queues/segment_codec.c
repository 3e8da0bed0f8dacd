/* Rows to entries of a segment, and back. Declared in queues/segment_codec.h. */
#include "queues/owed.h"
#include "queues/segment_codec.h"

#define AT(field) WR_QUEUE_SEGMENT_ENTRY_AT_##field

uint32_t wr_segment_seed(uint64_t salt, uint32_t queue) {
    uint8_t place[12];
    wr_put64(place, salt);
    wr_put32(place + 8, queue);
    return wr_crc32c(0, place, sizeof place);
}

/* What an entry's CRC begins with, so that it counts at its place alone. */
static uint32_t seed_of(uint32_t seed, uint64_t sequence) {
    uint8_t place[8];
    wr_put64(place, sequence);
    return wr_crc32c(seed, place, sizeof place);
}

static void encode(uint8_t to[WR_QUEUE_SEGMENT_ENTRY_SIZE], const wr_segment_row *row, uint32_t seed) {
    const wr_entry *entry = &row->entry;
    memset(to, 0, WR_QUEUE_SEGMENT_ENTRY_SIZE);
    to[AT(STATE)] = 1;
    to[AT(LOCATION)] = entry->location;
    wr_put16(to + AT(DELIVERY_COUNT), entry->delivery_count);
    memcpy(to + AT(ID), entry->id, 16);
    wr_put64(to + AT(EXPIRES), entry->expires);
    wr_put32(to + AT(FILE), entry->file);
    wr_put32(to + AT(OFFSET), entry->offset);
    wr_put32(to + AT(FRAME_LENGTH), entry->frame_length);
    wr_put32(to + AT(BODY_LENGTH), entry->body_length);
    wr_put16(to + AT(BLOB_OFFSET), entry->blob_offset);
    wr_put16(to + AT(META_LENGTH), entry->meta_length);
    to[AT(PRIORITY)] = (uint8_t)entry->priority;
    to[AT(REASON)] = (uint8_t)entry->reason;
    wr_put64(to + AT(DUE), row->due);
    wr_put32(to + AT(CRC), wr_crc32c(seed_of(seed, row->sequence), to + 4, WR_QUEUE_SEGMENT_ENTRY_SIZE - 4));
}

void wr_segment_encode_rows(uint8_t *to, const wr_segment_row *rows, uint64_t n, uint64_t salt) {
    uint32_t queue = n ? rows->queue : 0, seed = wr_segment_seed(salt, queue);
    for (uint64_t i = 0; i < n; i++) {
        wr_segment_row row;
        memcpy(&row, &rows[i], sizeof row); /* what lies there may not be aligned */
        if (row.queue != queue) {
            queue = row.queue;
            seed = wr_segment_seed(salt, queue);
        }
        encode(to + i * WR_QUEUE_SEGMENT_ENTRY_SIZE, &row, seed);
    }
}

bool wr_segment_decode(const uint8_t at[WR_QUEUE_SEGMENT_ENTRY_SIZE], uint32_t seed, uint64_t sequence, wr_entry *entry, uint64_t *due) {
    uint8_t location = at[AT(LOCATION)];
    uint64_t expires = wr_get64(at + AT(EXPIRES));
    if (wr_crc32c(seed_of(seed, sequence), at + 4, WR_QUEUE_SEGMENT_ENTRY_SIZE - 4) != wr_get32(at + AT(CRC)) ||
        at[AT(STATE)] != 1 || (location != WR_LOCATION_SEGMENT && !wr_body_apart(location)) || expires >> WR_TIME_BITS ||
        at[AT(REASON)] > WR_REASON_DELIVERY_LIMIT ||
        wr_get64(at + AT(DUE)) >> WR_TIME_BITS)
        return false;
    *entry = (wr_entry){.file = wr_get32(at + AT(FILE)),
                        .offset = wr_get32(at + AT(OFFSET)),
                        .frame_length = wr_get32(at + AT(FRAME_LENGTH)),
                        .body_length = wr_get32(at + AT(BODY_LENGTH)),
                        .blob_offset = wr_get16(at + AT(BLOB_OFFSET)),
                        .meta_length = wr_get16(at + AT(META_LENGTH)),
                        .index_file = WR_IN_SEGMENT,
                        .location = location,
                        .flags = WR_ENTRY_PERSISTENT,
                        .delivery_count = wr_get16(at + AT(DELIVERY_COUNT)),
                        .expires = expires,
                        .priority = at[AT(PRIORITY)],
                        .reason = at[AT(REASON)] & 15};
    memcpy(entry->id, at + AT(ID), 16);
    *due = wr_get64(at + AT(DUE));
    return true;
}
