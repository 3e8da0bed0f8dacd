/* Target: records of the commit log as recovery and readers scan them, and the texts in them.
 *
 * Input: mode, then bytes. With bit 0 of the mode the bytes are choices of which a record is made, and then a few
 * changes of it; else they are the memory that is scanned. With bit 1 magic, size, position and checksum are made
 * right first, so that the scan gets deep. Checked: what is called a record has its parts one behind the other
 * within its size, good texts and the right checksum, and its parts make the same bytes again; without checks no
 * less is found; properties, keys, hashes and ids stay within their bytes, and hashes do not depend on where a text
 * is cut. */
#include "fuzz.h"
#include "kernel/bytes.h"
#include "kernel/crc32.h"
#include "topics/hash.h"
#include "topics/message_id.h"
#include "topics/properties.h"
#include "topics/record.h"

enum { BYTES_MAX = 4096 };
#define POSITION 0x1122334455ull

static void look_at_texts(const uint8_t *bytes, uint32_t n) {
    wr_text name, value, key;
    uint32_t at = 0, before = 0, keys_at = 0, pieces = 0;
    bool good = wr_properties_good(bytes, n);
    while (wr_properties_next(bytes, n, &at, &name, &value)) {
        FUZZ_CHECK(at > before && at <= n && name.at >= bytes && value.at == name.at + name.n + 1);
        FUZZ_CHECK(value.at + value.n <= bytes + n);
        if (good) FUZZ_CHECK(name.n && wr_text_good(name.at, name.n) && wr_text_good(value.at, value.n));
        before = at;
        pieces++;
    }
    if (good) FUZZ_CHECK(at == n && (pieces || !n));
    wr_known_properties known;
    wr_properties_known(bytes, n, &known);
    while (wr_keys_next(known.keys, &keys_at, &key)) FUZZ_CHECK(key.n && key.at + key.n <= bytes + n);
    bool text = wr_text_good(bytes, n);
    if (text) FUZZ_CHECK(wr_utf8_good(bytes, n));
    uint32_t hash = wr_java_hash(0, bytes, n);
    for (uint32_t cut = 0; cut <= n && cut < 40; cut++) /* between characters */
        if (text && (cut == n || bytes[cut] >> 6 != 2))
            FUZZ_CHECK(wr_java_hash(wr_java_hash(0, bytes, cut), bytes + cut, n - cut) == hash);
    FUZZ_CHECK(wr_key_hash(wr_key_hash_topic(bytes, n / 2), bytes + n / 2, n - n / 2) >> 31 == 0);
    wr_message_id id;
    if (wr_message_id_parse((const char *)bytes, n, &id)) {
        char again[WR_MESSAGE_ID_CHARS_V6];
        FUZZ_CHECK(wr_message_id_put(again, id.store_host, id.store_host_bytes, id.physical_offset) == n);
        for (uint32_t i = 0; i < n; i++) FUZZ_CHECK((again[i] | 32) == (bytes[i] | 32));
    }
}

/* The parts of a record make its bytes again, but for a short topic that came in version 2, or a last separator that is
 * missing: both have another form. */
static void make_again(const uint8_t *bytes, const wr_record *r) {
    wr_record_head head = {r->queue_id,        r->flag,           r->queue_offset,    r->physical_offset,
                           r->sys_flag,        r->reconsume_times, r->born_timestamp, r->store_timestamp,
                           r->prepared_transaction_offset, {0}, {0}};
    memcpy(head.born_host, bytes + WR_LOG_HEAD_SIZE, wr_born_host_bytes(r->sys_flag));
    memcpy(head.store_host, bytes + r->store_host_at, wr_store_host_bytes(r->sys_flag));
    wr_record_reason reason;
    uint32_t size = wr_record_size(r->sys_flag, r->topic_length, r->properties_length, r->body_length, &reason);
    bool short_v2 = r->magic == (uint32_t)WR_RECORD_MAGIC_V2 && r->topic_length <= WR_TOPIC_V1_BYTES_MAX;
    FUZZ_CHECK(size == r->size - short_v2);
    uint8_t *again = malloc(size);
    FUZZ_CHECK(again);
    uint32_t cut = r->body_length / 3;
    struct iovec parts[] = {{(void *)(uintptr_t)(bytes + r->body_at), cut},
                            {(void *)(uintptr_t)(bytes + r->body_at + cut), r->body_length - cut}};
    FUZZ_CHECK(wr_record_encode(again, size, &head, bytes + r->topic_at, r->topic_length, bytes + r->properties_at,
                                r->properties_length, parts, 2) == WR_RECORD_GOOD);
    if (!short_v2) FUZZ_CHECK(memcmp(again, bytes, size) == 0);
    free(again);
}

static void scan(const uint8_t *bytes, uint64_t n) {
    wr_record r, loose;
    wr_scan found = wr_record_scan(bytes, n, POSITION, WR_SCAN_ALL, &r);
    wr_scan unchecked = wr_record_scan(bytes, n, POSITION, 0, &loose);
    FUZZ_CHECK(found == unchecked || (found == WR_SCAN_BAD && unchecked == WR_SCAN_RECORD));
    FUZZ_CHECK((found == WR_SCAN_BAD) == (r.reason != WR_RECORD_GOOD) && r.reason < WR_RECORD_REASONS);
    if (unchecked == WR_SCAN_RECORD) {
        FUZZ_CHECK(loose.size <= n && loose.properties_at + loose.properties_length == loose.size);
        FUZZ_CHECK(loose.topic_at + loose.topic_length + 2 == loose.properties_at && loose.topic_length);
        FUZZ_CHECK(loose.body_at + loose.body_length < loose.topic_at);
        look_at_texts(bytes + loose.properties_at, loose.properties_length);
        look_at_texts(bytes + loose.topic_at, loose.topic_length);
    }
    if (found != WR_SCAN_RECORD) return;
    FUZZ_CHECK(wr_text_good(bytes + r.topic_at, r.topic_length) && r.physical_offset == POSITION);
    FUZZ_CHECK((wr_crc32_table(0, NULL, bytes + r.body_at, r.body_length) & WR_BODY_CRC_MASK) == r.body_crc);
    make_again(bytes, &r);
}

/* As the record begins: magic, size, position, and a checksum where the lengths lead to a body. */
static void make_right(uint8_t *bytes, uint64_t n, uint8_t mode) {
    if (n < WR_LOG_HEAD_SIZE) return;
    wr_put32(bytes + WR_LOG_HEAD_AT_SIZE, (uint32_t)(mode & 4 && n > 100 ? n - mode % 8 : n));
    wr_put32(bytes + WR_LOG_HEAD_AT_MAGIC, (uint32_t)(mode & 8 ? WR_RECORD_MAGIC_V2 : WR_RECORD_MAGIC_V1));
    wr_put64(bytes + WR_LOG_HEAD_AT_PHYSICAL_OFFSET, POSITION);
    wr_record r;
    if (wr_record_scan(bytes, n, POSITION, 0, &r) == WR_SCAN_RECORD)
        wr_put32(bytes + WR_LOG_HEAD_AT_BODY_CRC, wr_crc32(0, bytes + r.body_at, r.body_length) & WR_BODY_CRC_MASK);
}

/* A record by the input's choices; its bytes, 0: it was refused. */
static uint32_t make(fuzz_input *in, uint8_t *bytes) {
    uint8_t topic[400], properties[600], body[512];
    uint32_t topic_n = fuzz16(in) % sizeof topic, used = 0, body_n = fuzz16(in) % sizeof body;
    wr_record_head head = {.physical_offset = POSITION};
    head.queue_id = fuzz32(in);
    head.flag = fuzz32(in);
    head.queue_offset = fuzz64(in);
    head.sys_flag = fuzz8(in);
    head.reconsume_times = fuzz8(in);
    head.born_timestamp = fuzz64(in);
    fuzz_bytes(in, head.born_host, 8);
    fuzz_bytes(in, topic, topic_n);
    for (uint8_t i = fuzz8(in) % 5; i--;) {
        uint8_t name[20], value[80];
        uint32_t name_n = fuzz8(in) % sizeof name, value_n = fuzz8(in) % sizeof value;
        fuzz_bytes(in, name, name_n);
        fuzz_bytes(in, value, value_n);
        uint32_t left = (uint32_t)sizeof properties - used;
        uint32_t put = wr_properties_put(properties + used, left, name, name_n, value, value_n);
        FUZZ_CHECK(!put || (put == name_n + value_n + 2 && wr_properties_good(properties + used, put)));
        used += put;
    }
    fuzz_bytes(in, body, body_n);
    wr_record_reason reason;
    uint32_t size = wr_record_size(head.sys_flag, topic_n, used, body_n, &reason);
    struct iovec part = {body, body_n};
    if (!size) return 0;
    if (wr_record_encode(bytes, size, &head, topic, topic_n, properties, used, &part, 1)) {
        for (uint32_t i = 0; i < size; i++) FUZZ_CHECK(!bytes[i]); /* what is refused is not there */
        return 0;
    }
    wr_record r;
    FUZZ_CHECK(wr_record_scan(bytes, size, POSITION, WR_SCAN_ALL, &r) == WR_SCAN_RECORD && r.size == size);
    return size;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    fuzz_input in = {data, size};
    static uint8_t room[BYTES_MAX];
    uint8_t mode = fuzz8(&in);
    uint64_t n;
    if (mode & 1) {
        memset(room, 0, sizeof room);
        n = make(&in, room);
        for (uint8_t i = mode >> 4; n && i--;) room[fuzz16(&in) % n] = fuzz8(&in);
        if (n && mode & 2) n = fuzz16(&in) % (n + 1);
    } else {
        n = in.left < BYTES_MAX ? in.left : BYTES_MAX;
        fuzz_bytes(&in, room, n);
    }
    uint8_t *bytes = malloc(n ? n : 1); /* of exactly that size */
    FUZZ_CHECK(bytes);
    memcpy(bytes, room, n);
    if (!(mode & 1)) look_at_texts(bytes, (uint32_t)n);
    if (!(mode & 1) && mode & 2) make_right(bytes, n, mode);
    scan(bytes, n);
    free(bytes);
    return 0;
}
