#include "topics/record.h"
#include "kernel/bytes.h"
#include "kernel/crc32.h"
#include "kernel/once.h"
#include "topics/properties.h"
#include <assert.h>

#define HEAD(field) WR_LOG_HEAD_AT_##field
#define TAIL(field) WR_LOG_TAIL_AT_##field
#define PROPERTIES_LENGTH_BYTES 2u

const char *wr_record_word(wr_record_reason reason) {
    static const char *const words[WR_RECORD_REASONS] = {
        "good",         "truncated", "magic",             "size",       "position", "lengths", "number",
        "topic length", "topic",     "properties length", "properties", "crc"};
    return (uint32_t)reason < WR_RECORD_REASONS ? words[reason] : "unknown";
}

/* Bytes of the topic's length. */
static inline uint32_t topic_head(bool v2) { return v2 ? 2 : 1; }

/* From the first byte to the body. */
static inline uint32_t body_place(uint32_t sys_flag) {
    return WR_LOG_HEAD_SIZE + wr_born_host_bytes(sys_flag) + WR_LOG_STORED_SIZE + wr_store_host_bytes(sys_flag) +
           WR_LOG_TAIL_SIZE;
}

uint32_t wr_record_size(uint32_t sys_flag, uint64_t topic_length, uint64_t properties_length, uint64_t body_length,
                        wr_record_reason *reason) {
    *reason = !topic_length || topic_length > WR_TOPIC_BYTES_MAX ? WR_RECORD_TOPIC_LENGTH
              : properties_length > WR_PROPERTIES_BYTES_MAX      ? WR_RECORD_PROPERTIES_LENGTH
              : body_length > WR_RECORD_BYTES_MAX                ? WR_RECORD_SIZE
                                                                 : WR_RECORD_GOOD;
    if (*reason) return 0;
    uint64_t size = body_place(sys_flag) + body_length + topic_head(topic_length > WR_TOPIC_V1_BYTES_MAX) +
                    topic_length + PROPERTIES_LENGTH_BYTES + properties_length;
    if (size <= WR_RECORD_BYTES_MAX) return (uint32_t)size;
    *reason = WR_RECORD_SIZE;
    return 0;
}

/* ---- encode ---- */

static inline bool negative(uint32_t queue_id, uint32_t reconsume_times, uint64_t queue_offset,
                            uint64_t physical_offset) {
    return (queue_id | reconsume_times) >> 31 || (queue_offset | physical_offset) >> 63;
}

/* Topic and properties, and their lengths. Properties are checked where they were copied to: what they are copied from may change
 * meanwhile. The topic is the caller's own, and checked where it lies: bytes that were just copied are not read at once. */
static wr_record_reason put_texts(uint8_t *to, const void *topic, uint32_t topic_length, const void *properties,
                                  uint32_t properties_length) {
    wr_record_reason reason = WR_RECORD_GOOD;
    uint8_t *at = to;
    if (topic_length > WR_TOPIC_V1_BYTES_MAX) *at++ = (uint8_t)(topic_length >> 8);
    *at++ = (uint8_t)topic_length;
    memcpy(at, topic, topic_length);
    if (!wr_text_good(topic, topic_length)) reason = WR_RECORD_TOPIC;
    at += topic_length;
    wr_put16(at, (uint16_t)properties_length);
    at += PROPERTIES_LENGTH_BYTES;
    if (properties_length) memcpy(at, properties, properties_length);
    if (!reason && !wr_properties_good(at, properties_length)) reason = WR_RECORD_PROPERTIES;
    if (reason) memset(to, 0, (size_t)(at - to) + properties_length);
    return reason;
}

static void put_numbers(uint8_t *to, uint32_t size, const wr_record_head *head, bool v2, uint32_t crc,
                        uint32_t body_length) {
    wr_put32(to + HEAD(SIZE), size);
    wr_put32(to + HEAD(MAGIC), v2 ? (uint32_t)WR_RECORD_MAGIC_V2 : (uint32_t)WR_RECORD_MAGIC_V1);
    wr_put32(to + HEAD(BODY_CRC), crc & WR_BODY_CRC_MASK);
    wr_put32(to + HEAD(QUEUE_ID), head->queue_id);
    wr_put32(to + HEAD(FLAG), head->flag);
    wr_put64(to + HEAD(QUEUE_OFFSET), head->queue_offset);
    wr_put64(to + HEAD(PHYSICAL_OFFSET), head->physical_offset);
    wr_put32(to + HEAD(SYS_FLAG), head->sys_flag);
    wr_put64(to + HEAD(BORN_TIMESTAMP), head->born_timestamp);
    to += WR_LOG_HEAD_SIZE;
    uint32_t born = wr_born_host_bytes(head->sys_flag), store = wr_store_host_bytes(head->sys_flag);
    memcpy(to, head->born_host, born);
    to += born;
    wr_put64(to + WR_LOG_STORED_AT_STORE_TIMESTAMP, head->store_timestamp);
    to += WR_LOG_STORED_SIZE;
    memcpy(to, head->store_host, store);
    to += store;
    wr_put32(to + TAIL(RECONSUME_TIMES), head->reconsume_times);
    wr_put64(to + TAIL(PREPARED_TRANSACTION_OFFSET), head->prepared_transaction_offset);
    wr_put32(to + TAIL(BODY_LENGTH), body_length);
}

wr_record_reason wr_record_encode(uint8_t *to, uint32_t size, const wr_record_head *head, const void *topic,
                                  uint32_t topic_length, const void *properties, uint32_t properties_length,
                                  const struct iovec *parts, uint32_t parts_n) {
    bool v2 = topic_length > WR_TOPIC_V1_BYTES_MAX;
    uint32_t body_at = body_place(head->sys_flag);
    uint32_t texts = topic_head(v2) + topic_length + PROPERTIES_LENGTH_BYTES + properties_length;
    uint64_t left = (uint64_t)size - body_at - texts; /* of the body */
    assert(topic_length && topic_length <= WR_TOPIC_BYTES_MAX && properties_length <= WR_PROPERTIES_BYTES_MAX);
    assert(size <= WR_RECORD_BYTES_MAX && (uint64_t)body_at + texts <= size);
    uint32_t body_length = (uint32_t)left;
    if (negative(head->queue_id, head->reconsume_times, head->queue_offset, head->physical_offset))
        return WR_RECORD_NUMBER;
    wr_record_reason reason = put_texts(to + body_at + body_length, topic, topic_length, properties, properties_length);
    if (reason) return reason;
    uint32_t crc = 0;
    uint8_t *at = to + body_at;
    for (uint32_t i = 0; i < parts_n; i++) {
        assert(parts[i].iov_len <= left);
        crc = wr_copy_crc32(crc, at, parts[i].iov_base, parts[i].iov_len);
        at += parts[i].iov_len;
        left -= parts[i].iov_len;
    }
    assert(!left);
    put_numbers(to, size, head, v2, crc, body_length);
    return WR_RECORD_GOOD;
}

void wr_record_blank(uint8_t *to, uint32_t left) {
    assert(left >= WR_BLANK_SIZE && left <= WR_RECORD_BYTES_MAX);
    wr_put32(to + WR_BLANK_AT_SIZE, left);
    wr_put32(to + WR_BLANK_AT_MAGIC, (uint32_t)WR_BLANK_MAGIC);
}

/* ---- scan ---- */

static inline uint64_t take64(const uint8_t *at) { return __builtin_bswap64(wr_once8(at)); }
static inline uint32_t take32(const uint8_t *at) { return __builtin_bswap32(wr_once4(at)); }
static inline uint16_t take16(const uint8_t *at) { return __builtin_bswap16(wr_once2(at)); }

static wr_scan bad(wr_record *record, wr_record_reason reason) {
    record->reason = reason;
    return WR_SCAN_BAD;
}

/* Too few bytes for size and magic. */
static wr_scan scan_few(const uint8_t *bytes, uint64_t n, wr_record *record) {
    uint8_t any = 0;
    for (uint64_t i = 0; i < n; i++) any |= wr_once1(bytes + i);
    return any ? bad(record, WR_RECORD_TRUNCATED) : WR_SCAN_END;
}

/* The places of all parts, from the lengths. The record's size is good. */
static inline wr_record_reason take_places(const uint8_t *bytes, wr_record *r) {
    bool v2 = r->magic == (uint32_t)WR_RECORD_MAGIC_V2;
    uint32_t store_at = WR_LOG_HEAD_SIZE + wr_born_host_bytes(r->sys_flag), head = topic_head(v2);
    r->store_host_at = store_at + WR_LOG_STORED_SIZE;
    r->body_at = body_place(r->sys_flag);
    uint32_t fixed = r->body_at + head + PROPERTIES_LENGTH_BYTES;
    if (r->size < fixed) return WR_RECORD_LENGTHS;
    const uint8_t *tail = bytes + r->body_at - WR_LOG_TAIL_SIZE;
    uint32_t left = r->size - fixed;
    r->body_length = take32(tail + TAIL(BODY_LENGTH));
    if (r->body_length > left) return WR_RECORD_LENGTHS;
    left -= r->body_length;
    r->topic_at = r->body_at + r->body_length + head;
    r->topic_length = v2 ? take16(bytes + r->topic_at - 2) : wr_once1(bytes + r->topic_at - 1);
    uint32_t most = v2 ? WR_TOPIC_BYTES_MAX : WR_TOPIC_V1_BYTES_MAX;
    if (!r->topic_length || r->topic_length > most) return WR_RECORD_TOPIC_LENGTH;
    if (r->topic_length > left) return WR_RECORD_LENGTHS;
    left -= r->topic_length;
    r->properties_at = r->topic_at + r->topic_length + PROPERTIES_LENGTH_BYTES;
    r->properties_length = take16(bytes + r->properties_at - PROPERTIES_LENGTH_BYTES);
    if (r->properties_length != left) return WR_RECORD_LENGTHS;
    if (left > WR_PROPERTIES_BYTES_MAX) return WR_RECORD_PROPERTIES_LENGTH;
    r->store_timestamp = take64(bytes + store_at + WR_LOG_STORED_AT_STORE_TIMESTAMP);
    r->reconsume_times = take32(tail + TAIL(RECONSUME_TIMES));
    r->prepared_transaction_offset = take64(tail + TAIL(PREPARED_TRANSACTION_OFFSET));
    return WR_RECORD_GOOD;
}

wr_scan wr_record_scan(const uint8_t *bytes, uint64_t n, uint64_t position, uint32_t checks, wr_record *r) {
    r->reason = WR_RECORD_GOOD;
    if (n < WR_BLANK_SIZE) return scan_few(bytes, n, r);
    r->size = take32(bytes + HEAD(SIZE));
    r->magic = take32(bytes + HEAD(MAGIC));
    if (!(r->size | r->magic)) return WR_SCAN_END;
    if (r->magic == (uint32_t)WR_BLANK_MAGIC)
        return r->size < WR_BLANK_SIZE || r->size > WR_RECORD_BYTES_MAX ? bad(r, WR_RECORD_SIZE) : WR_SCAN_BLANK;
    if (r->magic != (uint32_t)WR_RECORD_MAGIC_V1 && r->magic != (uint32_t)WR_RECORD_MAGIC_V2)
        return bad(r, WR_RECORD_MAGIC);
    if (r->size < body_place(0) + 1 + 1 + PROPERTIES_LENGTH_BYTES || r->size > WR_RECORD_BYTES_MAX)
        return bad(r, WR_RECORD_SIZE);
    if (r->size > n) return bad(r, WR_RECORD_TRUNCATED);
    r->body_crc = take32(bytes + HEAD(BODY_CRC));
    r->queue_id = take32(bytes + HEAD(QUEUE_ID));
    r->flag = take32(bytes + HEAD(FLAG));
    r->queue_offset = take64(bytes + HEAD(QUEUE_OFFSET));
    r->physical_offset = take64(bytes + HEAD(PHYSICAL_OFFSET));
    r->sys_flag = take32(bytes + HEAD(SYS_FLAG));
    r->born_timestamp = take64(bytes + HEAD(BORN_TIMESTAMP));
    if (r->physical_offset != position) return bad(r, WR_RECORD_POSITION);
    wr_record_reason reason = take_places(bytes, r);
    if (reason) return bad(r, reason);
    if (negative(r->queue_id, r->reconsume_times, r->queue_offset, r->physical_offset)) return bad(r, WR_RECORD_NUMBER);
    if (checks & WR_SCAN_TEXT) {
        if (!wr_text_good(bytes + r->topic_at, r->topic_length)) return bad(r, WR_RECORD_TOPIC);
        if (!wr_properties_good(bytes + r->properties_at, r->properties_length)) return bad(r, WR_RECORD_PROPERTIES);
    }
    if (r->body_crc & ~(uint32_t)WR_BODY_CRC_MASK) return bad(r, WR_RECORD_CRC);
    if (checks & WR_SCAN_BODY && (wr_crc32(0, bytes + r->body_at, r->body_length) & WR_BODY_CRC_MASK) != r->body_crc)
        return bad(r, WR_RECORD_CRC);
    return WR_SCAN_RECORD;
}
