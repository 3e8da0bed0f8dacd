/* Rows of the log. What it is: topics/log_rows.h. */
#include "topics/log_rows.h"
#include "topics/commit_record.h"
#include "topics/hash.h"
#include "topics/properties.h"
#include <string.h>

/* `at`: of the record; `base`: of the first byte there is. */
static void put(wr_log_row *row, const uint8_t *at, const uint8_t *base, const wr_record *r) {
    const uint32_t place = (uint32_t)(at - base);
    *row = (wr_log_row){.position = r->physical_offset,
                        .queue_offset = r->queue_offset,
                        .born_timestamp = r->born_timestamp,
                        .store_timestamp = r->store_timestamp,
                        .prepared = r->prepared_transaction_offset,
                        .size = r->size,
                        .queue_id = r->queue_id,
                        .flag = r->flag,
                        .sys_flag = r->sys_flag,
                        .reconsume_times = r->reconsume_times,
                        .body_at = place + r->body_at,
                        .body_length = r->body_length,
                        .topic_at = place + r->topic_at,
                        .topic_length = (uint16_t)r->topic_length,
                        .properties_at = place + r->properties_at,
                        .properties_length = (uint16_t)r->properties_length};
    if (!r->properties_length) return;
    wr_known_properties known;
    wr_properties_known(at + r->properties_at, r->properties_length, &known);
    if (known.keys.at) {
        row->keys_at = (uint32_t)(known.keys.at - base);
        row->keys_length = (uint16_t)known.keys.n;
    }
    if (known.tags.at) {
        row->tag_at = (uint32_t)(known.tags.at - base);
        row->tag_length = (uint16_t)known.tags.n;
        row->tags_code = (uint64_t)wr_tags_code(known.tags.at, known.tags.n);
    }
}

/* Only its topic is looked at first: to read what a commit says costs more than a record. */
static bool ends_commit(const uint8_t *at, const wr_record *r) {
    static const char topic[] = WR_COMMIT_TOPIC;
    if (r->topic_length != sizeof topic - 1 || memcmp(at + r->topic_at, topic, sizeof topic - 1)) return false;
    wr_commit_head head;
    const uint8_t *marks;
    return wr_commit_record_read(at, r->size, r->physical_offset, &head, &marks);
}

uint64_t wr_log_rows(const uint8_t *bytes, uint64_t n, uint64_t position, uint32_t checks, uint64_t *at, wr_log_row *rows, uint64_t most,
                     wr_scan *found, wr_record *end) {
    uint64_t i = 0;
    for (; (*found = wr_record_scan(bytes + *at, n - *at, position + *at, checks, end)) == WR_SCAN_RECORD && i < most; i++) {
        put(&rows[i], bytes + *at, bytes, end);
        rows[i].commit = ends_commit(bytes + *at, end);
        *at += end->size;
    }
    return i;
}
