/* Commit records. What they are: topics/commit_record.h. */
#define _GNU_SOURCE /* memmem */
#include "topics/commit_record.h"
#include "kernel/bytes.h"
#include "kernel/frame.h"
#include "topics/record.h"

static const char TOPIC[] = WR_COMMIT_TOPIC;
#define TOPIC_BYTES (sizeof TOPIC - 1)
#define BODY_BYTES_MAX (WR_COMMIT_SIZE + WR_COMMIT_MARKS_MAX * WR_COMMIT_MARK_SIZE)

uint64_t wr_commit_record_bytes(uint32_t marks_n) {
    wr_record_reason reason;
    return wr_record_size(0, TOPIC_BYTES, 0, WR_COMMIT_SIZE + (uint64_t)marks_n * WR_COMMIT_MARK_SIZE, &reason);
}

void wr_commit_record_write(uint8_t *to, uint64_t position, const wr_commit_head *head, const wr_commit_mark *marks) {
    uint8_t body[BODY_BYTES_MAX];
    memset(body, 0, WR_COMMIT_SIZE);
    wr_put32(body + WR_COMMIT_AT_VERSION, WR_COMMIT_VERSION);
    wr_put32(body + WR_COMMIT_AT_MARKS_N, head->marks_n);
    memcpy(body + WR_COMMIT_AT_NODE, head->origin.node, sizeof head->origin.node);
    wr_put64(body + WR_COMMIT_AT_EPOCH, head->origin.epoch);
    wr_put64(body + WR_COMMIT_AT_NUMBER, head->number);
    wr_put64(body + WR_COMMIT_AT_FROM, head->from);
    wr_put64(body + WR_COMMIT_AT_SYNCED, head->synced);
    wr_put64(body + WR_COMMIT_AT_STORE_TIMESTAMP, head->store_ms);
    wr_put32(body + WR_COMMIT_AT_CRC, head->crc);
    for (uint32_t i = 0; i < head->marks_n; i++) {
        uint8_t *mark = body + WR_COMMIT_SIZE + i * WR_COMMIT_MARK_SIZE;
        wr_put64(mark + WR_COMMIT_MARK_AT_CLIENT_EPOCH, marks[i].client_epoch);
        wr_put64(mark + WR_COMMIT_MARK_AT_SEQUENCE, marks[i].sequence);
    }
    const wr_record_head record = {.queue_offset = head->number, .physical_offset = position, .born_timestamp = head->store_ms, .store_timestamp = head->store_ms};
    const struct iovec part = {body, WR_COMMIT_SIZE + head->marks_n * WR_COMMIT_MARK_SIZE};
    uint32_t size = (uint32_t)wr_commit_record_bytes(head->marks_n);
    wr_record_encode(to, size, &record, TOPIC, TOPIC_BYTES, NULL, 0, &part, 1);
}

static bool is_commit(const uint8_t *bytes, const wr_record *record) {
    return record->topic_length == TOPIC_BYTES && !memcmp(bytes + record->topic_at, TOPIC, TOPIC_BYTES);
}

/* What the body's checksum does not cover says the same as the body, or nothing. */
static bool head_agrees(const uint8_t *bytes, const wr_record *record, const wr_commit_head *head) {
    static const uint8_t nobody[WR_HOST_V4_SIZE];
    return record->queue_offset == head->number && record->born_timestamp == head->store_ms && record->store_timestamp == head->store_ms &&
           !record->queue_id && !record->flag && !record->sys_flag && !record->reconsume_times && !record->prepared_transaction_offset &&
           !record->properties_length && !memcmp(bytes + WR_LOG_HEAD_SIZE, nobody, sizeof nobody) &&
           !memcmp(bytes + record->store_host_at, nobody, sizeof nobody);
}

/* Of a record that was scanned, its body too. */
static bool read_body(const uint8_t *bytes, const wr_record *record, wr_commit_head *head, const uint8_t **marks) {
    const uint8_t *body = bytes + record->body_at;
    if (!is_commit(bytes, record) || record->body_length < WR_COMMIT_SIZE || wr_get32(body + WR_COMMIT_AT_VERSION) != WR_COMMIT_VERSION)
        return false;
    head->marks_n = wr_get32(body + WR_COMMIT_AT_MARKS_N);
    if (head->marks_n > WR_COMMIT_MARKS_MAX || record->body_length != WR_COMMIT_SIZE + head->marks_n * WR_COMMIT_MARK_SIZE) return false;
    memcpy(head->origin.node, body + WR_COMMIT_AT_NODE, sizeof head->origin.node);
    head->origin.epoch = wr_get64(body + WR_COMMIT_AT_EPOCH);
    head->number = wr_get64(body + WR_COMMIT_AT_NUMBER);
    head->from = wr_get64(body + WR_COMMIT_AT_FROM);
    head->synced = wr_get64(body + WR_COMMIT_AT_SYNCED);
    head->store_ms = wr_get64(body + WR_COMMIT_AT_STORE_TIMESTAMP);
    head->crc = wr_get32(body + WR_COMMIT_AT_CRC);
    *marks = body + WR_COMMIT_SIZE;
    return head_agrees(bytes, record, head);
}

bool wr_commit_record_read(const uint8_t *bytes, uint64_t n, uint64_t position, wr_commit_head *head, const uint8_t **marks) {
    wr_record record;
    return wr_record_scan(bytes, n, position, WR_SCAN_ALL, &record) == WR_SCAN_RECORD && read_body(bytes, &record, head, marks);
}

wr_commit_mark wr_commit_mark_read(const uint8_t *marks, uint32_t index) {
    const uint8_t *mark = marks + index * WR_COMMIT_MARK_SIZE;
    return (wr_commit_mark){.client_epoch = wr_get64(mark + WR_COMMIT_MARK_AT_CLIENT_EPOCH), .sequence = wr_get64(mark + WR_COMMIT_MARK_AT_SEQUENCE)};
}

/* Is it the end of records from a position on that have a checksum, behind another one? */
static wr_commit_kind judge(const wr_commit_head *head, const wr_commit_head *after, uint64_t position, uint32_t crc) {
    if (head->from != position || head->synced > position || head->crc != crc) return WR_COMMIT_TORN;
    if (memcmp(head->origin.node, after->origin.node, sizeof head->origin.node)) return WR_COMMIT_FOREIGN;
    return head->number == after->number + 1 && head->origin.epoch >= after->origin.epoch ? WR_COMMIT_SOUND : WR_COMMIT_TORN;
}

wr_commit_kind wr_commit_scan(const uint8_t *bytes, uint64_t n, uint64_t position, uint64_t file_end, const wr_commit_head *after,
                              wr_commit_head *head, const uint8_t **marks, uint64_t *end) {
    const uint64_t left = file_end - position;
    wr_record record;
    *end = position;
    for (uint64_t at = 0;; at += record.size) {
        *end = position + at;
        wr_scan kind = wr_record_scan(bytes + at, n - at, position + at, 0, &record);
        bool cut = n < left && (kind == WR_SCAN_END ? n - at < WR_BLANK_SIZE : kind == WR_SCAN_BAD && record.reason == WR_RECORD_TRUNCATED);
        if (cut) return WR_COMMIT_MORE;
        if (kind == WR_SCAN_END) return at ? WR_COMMIT_TORN : WR_COMMIT_END;
        if (kind == WR_SCAN_BLANK) {
            if (at || record.size != left) return WR_COMMIT_TORN;
            *end = file_end;
            return WR_COMMIT_BLANK;
        }
        if (kind == WR_SCAN_BAD || record.size > left - at) return WR_COMMIT_TORN;
        if (!is_commit(bytes + at, &record)) continue;
        if (!wr_commit_record_read(bytes + at, n - at, position + at, head, marks)) return WR_COMMIT_TORN;
        const wr_commit_kind kind_of = judge(head, after, position, wr_crc32c(0, bytes, at));
        *end = kind_of == WR_COMMIT_SOUND ? position + at + record.size : position;
        return kind_of;
    }
}

bool wr_commit_vouched(const uint8_t *bytes, uint64_t n, uint64_t position, const uint8_t node[16], uint64_t below) {
    uint8_t magic[4];
    wr_put32(magic, WR_RECORD_MAGIC_V1);
    uint64_t at = 0;
    const uint8_t *found;
    while (at + WR_LOG_HEAD_AT_MAGIC < n && (found = memmem(bytes + at + WR_LOG_HEAD_AT_MAGIC, n - at - WR_LOG_HEAD_AT_MAGIC, magic, sizeof magic))) {
        at = (uint64_t)(found - bytes) - WR_LOG_HEAD_AT_MAGIC;
        wr_commit_head head;
        const uint8_t *marks;
        if (wr_commit_record_read(bytes + at, n - at, position + at, &head, &marks) && !memcmp(head.origin.node, node, sizeof head.origin.node) &&
            head.synced > below)
            return true;
        at++;
    }
    return false;
}
