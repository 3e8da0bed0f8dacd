/* Goal: records are written and scanned within their bytes, and a scan refuses what is torn or changed.
 * Method: random records of both versions and both kinds of hosts, in allocations of exactly their size (the sanitizers
 * watch); their prefixes, changed bytes, and random bytes; what is refused leaves zeros; a source that changes while it
 * is copied, and a log that changes while it is scanned. Prints its seed. */
#include "kernel/crc32.h"
#include "support/check.h"
#include "support/random.h"
#include "topics/properties.h"
#include "topics/record.h"
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#define POSITION 0x123456789ull

static void fill(uint8_t *to, size_t n) {
    for (size_t i = 0; i < n; i++) to[i] = (uint8_t)random64();
}

static uint8_t *exact(const void *from, size_t n) {
    uint8_t *to = malloc(n);
    CHECK(to || !n);
    if (n) memcpy(to, from, n);
    return to;
}

typedef struct {
    wr_record_head head;
    uint8_t *topic, *properties, *body;
    uint32_t topic_length, properties_length, body_length;
    struct iovec parts[3];
    uint8_t *bytes;
    uint32_t size;
} sample;

static uint32_t some_properties(uint8_t *to, uint32_t room) {
    uint32_t used = 0;
    static const char *const names[] = {"KEYS", "TAGS", "UNIQ_KEY", "origin", "é"};
    for (uint64_t n = random64() % 6; n--;) {
        const char *name = names[random64() % 5];
        used += wr_properties_put(to + used, room - used, name, strlen(name), "a value of some length",
                                  random64() % 22);
    }
    return used;
}

static void sample_new(sample *s) {
    uint8_t properties[400];
    *s = (sample){.topic_length = random64() % 4 ? 1 + (uint32_t)(random64() % 40) : 1 + (uint32_t)(random64() % 300),
                  .body_length = (uint32_t)(random64() % (random64() % 8 ? 150 : 3000))};
    s->head = (wr_record_head){.queue_id = 7, .flag = (uint32_t)random64(), .queue_offset = random64() >> 1,
                               .physical_offset = POSITION, .sys_flag = (uint32_t)random64(), .reconsume_times = 3,
                               .born_timestamp = random64(), .store_timestamp = random64(),
                               .prepared_transaction_offset = random64()};
    fill(s->head.born_host, sizeof s->head.born_host);
    fill(s->head.store_host, sizeof s->head.store_host);
    s->topic = malloc(s->topic_length);
    CHECK(s->topic);
    memset(s->topic, 'a' + (int)(random64() % 26), s->topic_length);
    s->properties_length = some_properties(properties, sizeof properties);
    s->properties = exact(properties, s->properties_length);
    s->body = malloc(s->body_length);
    fill(s->body, s->body_length);
    uint32_t left = s->body_length, at = 0;
    for (int i = 0; i < 3; i++) {
        uint32_t n = i == 2 ? left : (uint32_t)(random64() % (left + 1));
        s->parts[i] = (struct iovec){s->body + at, n};
        at += n;
        left -= n;
    }
    wr_record_reason reason;
    s->size = wr_record_size(s->head.sys_flag, s->topic_length, s->properties_length, s->body_length, &reason);
    CHECK(s->size && !reason);
    s->bytes = calloc(1, s->size);
    CHECK(s->bytes);
}

static wr_record_reason sample_encode(sample *s) {
    return wr_record_encode(s->bytes, s->size, &s->head, s->topic, s->topic_length, s->properties, s->properties_length,
                            s->parts, 3);
}

static void sample_free(sample *s) {
    free(s->topic);
    free(s->properties);
    free(s->body);
    free(s->bytes);
}

static bool zeros(const uint8_t *bytes, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (bytes[i]) return false;
    return true;
}

static void round_trips(void) {
    for (int round = 0; round < 2000; round++) {
        sample s;
        wr_record r;
        sample_new(&s);
        CHECK(sample_encode(&s) == WR_RECORD_GOOD);
        CHECK(wr_record_scan(s.bytes, s.size, POSITION, WR_SCAN_ALL, &r) == WR_SCAN_RECORD);
        CHECK(r.size == s.size && r.queue_id == 7 && r.flag == s.head.flag && r.sys_flag == s.head.sys_flag);
        CHECK(r.queue_offset == s.head.queue_offset && r.physical_offset == POSITION && r.reconsume_times == 3);
        CHECK(r.born_timestamp == s.head.born_timestamp && r.store_timestamp == s.head.store_timestamp);
        CHECK(r.prepared_transaction_offset == s.head.prepared_transaction_offset);
        CHECK(r.topic_length == s.topic_length && !memcmp(s.bytes + r.topic_at, s.topic, s.topic_length));
        CHECK(r.properties_length == s.properties_length && r.body_length == s.body_length);
        CHECK(!memcmp(s.bytes + r.properties_at, s.properties, s.properties_length));
        CHECK(!memcmp(s.bytes + r.body_at, s.body, s.body_length));
        CHECK(!memcmp(s.bytes + WR_LOG_HEAD_SIZE, s.head.born_host, wr_born_host_bytes(r.sys_flag)));
        CHECK(!memcmp(s.bytes + r.store_host_at, s.head.store_host, wr_store_host_bytes(r.sys_flag)));
        CHECK(r.body_crc == (wr_crc32(0, s.body, s.body_length) & WR_BODY_CRC_MASK));
        CHECK(wr_record_scan(s.bytes, s.size, POSITION + 1, WR_SCAN_ALL, &r) == WR_SCAN_BAD);
        CHECK(r.reason == WR_RECORD_POSITION);
        sample_free(&s);
    }
}

static void prefixes_and_changes(void) {
    for (int round = 0; round < 60; round++) {
        sample s;
        wr_record r;
        sample_new(&s);
        CHECK(sample_encode(&s) == WR_RECORD_GOOD);
        for (uint32_t n = 0; n < s.size; n++) {
            uint8_t *torn = exact(s.bytes, n);
            wr_scan found = wr_record_scan(torn, n, POSITION, WR_SCAN_ALL, &r);
            CHECK(found == WR_SCAN_BAD ? r.reason == WR_RECORD_TRUNCATED : found == WR_SCAN_END && zeros(torn, n));
            free(torn);
        }
        for (int change = 0; change < 2000; change++) {
            uint8_t *other = exact(s.bytes, s.size);
            for (uint64_t n = 1 + random64() % 3; n--;) other[random64() % s.size] = (uint8_t)random64();
            uint32_t checks = (uint32_t)(random64() % 4);
            if (wr_record_scan(other, s.size, POSITION, checks, &r) == WR_SCAN_RECORD) {
                CHECK(r.size == s.size && r.physical_offset == POSITION);
                CHECK(r.properties_at + r.properties_length == r.size);
                CHECK(r.topic_at + r.topic_length <= r.properties_at);
                CHECK(r.body_at + r.body_length <= r.topic_at && r.store_host_at < r.body_at && r.topic_length);
                if (checks & WR_SCAN_BODY)
                    CHECK((wr_crc32(0, other + r.body_at, r.body_length) & WR_BODY_CRC_MASK) == r.body_crc);
                if (checks & WR_SCAN_TEXT) CHECK(wr_text_good(other + r.topic_at, r.topic_length));
            }
            free(other);
        }
        sample_free(&s);
    }
    for (int round = 0; round < 20000; round++) {
        uint64_t n = random64() % 200;
        uint8_t *bytes = malloc(n);
        wr_record r;
        fill(bytes, n);
        static const uint32_t magics[] = {(uint32_t)WR_RECORD_MAGIC_V1, (uint32_t)WR_RECORD_MAGIC_V2,
                                          (uint32_t)WR_BLANK_MAGIC};
        uint32_t head[2] = {__builtin_bswap32((uint32_t)(random64() % 220)),
                            __builtin_bswap32(magics[random64() % 3])};
        if (n >= 8) memcpy(bytes, head, 8);
        wr_record_scan(bytes, n, POSITION, WR_SCAN_ALL, &r);
        free(bytes);
    }
}

static void refused(void) {
    for (int round = 0; round < 500; round++) {
        sample s;
        sample_new(&s);
        wr_record_reason wanted;
        switch (random64() % 4) {
        case 0:
            s.topic[random64() % s.topic_length] = (uint8_t)(random64() % 3);
            wanted = WR_RECORD_TOPIC;
            break;
        case 1:
            s.topic[random64() % s.topic_length] = 0xff;
            wanted = WR_RECORD_TOPIC;
            break;
        case 2:
            s.head.queue_id |= 0x80000000u;
            wanted = WR_RECORD_NUMBER;
            break;
        default:
            wanted = s.properties_length ? WR_RECORD_PROPERTIES : WR_RECORD_GOOD;
            if (s.properties_length) s.properties[random64() % s.properties_length] = 0;
        }
        CHECK(sample_encode(&s) == wanted);
        if (wanted) CHECK(zeros(s.bytes, s.size));
        sample_free(&s);
    }
    wr_record_reason reason;
    CHECK(!wr_record_size(0, 0, 0, 0, &reason) && reason == WR_RECORD_TOPIC_LENGTH);
    CHECK(!wr_record_size(0, WR_TOPIC_BYTES_MAX + 1, 0, 0, &reason) && reason == WR_RECORD_TOPIC_LENGTH);
    CHECK(!wr_record_size(0, 1, WR_PROPERTIES_BYTES_MAX + 1, 0, &reason) && reason == WR_RECORD_PROPERTIES_LENGTH);
    CHECK(!wr_record_size(0, 1, 0, UINT64_MAX, &reason) && reason == WR_RECORD_SIZE);
    CHECK(!wr_record_size(0, UINT64_MAX, UINT64_MAX, UINT64_MAX, &reason));
    CHECK(strcmp(wr_record_word(WR_RECORD_CRC), "crc") == 0 && strcmp(wr_record_word(WR_RECORD_GOOD), "good") == 0);
}

static void places_in_a_file(void) {
    uint8_t file[8] = {0};
    wr_record r;
    CHECK(wr_record_fits(92, 100) && !wr_record_fits(93, 100) && !wr_record_fits(1, 7) && wr_record_fits(0, 8));
    CHECK(!wr_record_fits(UINT64_MAX, UINT64_MAX - 1));
    wr_record_blank(file, 99);
    CHECK(wr_record_scan(file, 8, 0, WR_SCAN_ALL, &r) == WR_SCAN_BLANK && r.size == 99);
}

/* ---- a source that changes ---- */

#if !defined(__SANITIZE_THREAD__) /* which would report the copy itself */
static _Atomic bool done;
static _Atomic uint64_t shared[64]; /* what a client could change */

static void *change(void *unused) {
    (void)unused;
    for (uint64_t n = 0; !atomic_load_explicit(&done, memory_order_relaxed); n++)
        for (int i = 0; i < 64; i++) atomic_store_explicit(&shared[i], n * 0x0101010101010101ull, memory_order_relaxed);
    return NULL;
}

/* The body and the properties change while they are copied. What is written is a good record, or nothing. */
static void changing_source(void) {
    pthread_t thread;
    static uint8_t bytes[1024];
    wr_record r;
    wr_record_reason reason;
    wr_record_head head = {.physical_offset = POSITION};
    struct iovec body = {(void *)(uintptr_t)shared, sizeof shared};
    uint32_t size = wr_record_size(0, 5, 24, sizeof shared, &reason), written = 0;
    CHECK(size && size <= sizeof bytes && pthread_create(&thread, NULL, change, NULL) == 0);
    for (int round = 0; round < 30000; round++) {
        const uint8_t *texts = (const uint8_t *)(uintptr_t)shared;
        memset(bytes, 0, size);
        bool own = round % 2; /* a good text now and then, and a changing body */
        reason = wr_record_encode(bytes, size, &head, own ? (const uint8_t *)"topic" : texts, 5,
                                  own ? (const uint8_t *)"name\1value, of 18 bytes\2" : texts, 24, &body, 1);
        if (reason) CHECK(zeros(bytes, size));
        else CHECK(wr_record_scan(bytes, size, POSITION, WR_SCAN_ALL, &r) == WR_SCAN_RECORD);
        written += !reason;
    }
    CHECK(written >= 15000);
    atomic_store(&done, true);
    pthread_join(thread, NULL);
}

static sample log_record; /* whose lengths and kinds of hosts change all the time */

static void *change_lengths(void *unused) {
    (void)unused;
    static const uint32_t places[] = {WR_LOG_HEAD_AT_SIZE, WR_LOG_HEAD_AT_MAGIC, WR_LOG_HEAD_AT_SYS_FLAG};
    wr_record r;
    CHECK(wr_record_scan(log_record.bytes, log_record.size, POSITION, 0, &r) == WR_SCAN_RECORD);
    uint64_t x = 1;
    while (!atomic_load_explicit(&done, memory_order_relaxed)) {
        x = x * 6364136223846793005ull + 1442695040888963407ull;
        uint32_t which = (uint32_t)(x >> 33) % 6, at = which < 3 ? places[which] : r.body_at - 4;
        if (which == 4) at = r.topic_at - 1;
        if (which == 5) at = r.properties_at - 2;
        _Atomic uint8_t *byte = (_Atomic uint8_t *)&log_record.bytes[at + (uint32_t)(x >> 40) % (which < 4 ? 4 : 1)];
        uint8_t was = atomic_load_explicit(byte, memory_order_relaxed);
        atomic_store_explicit(byte, (uint8_t)(x >> 50), memory_order_relaxed);
        for (int i = 0; i < 30; i++) atomic_load_explicit(&done, memory_order_relaxed);
        atomic_store_explicit(byte, was, memory_order_relaxed);
    }
    return NULL;
}

/* Lengths of a record change while it is scanned: what is found lies within it, whatever was found. Now and then it is
 * the record. */
static void changing_log(void) {
    pthread_t thread;
    wr_record r;
    sample_new(&log_record);
    CHECK(sample_encode(&log_record) == WR_RECORD_GOOD);
    uint32_t size = log_record.size, found = 0;
    atomic_store(&done, false);
    CHECK(pthread_create(&thread, NULL, change_lengths, NULL) == 0);
    for (int round = 0; round < 300000; round++) {
        wr_scan what = wr_record_scan(log_record.bytes, size, POSITION, (uint32_t)round % 4, &r);
        if (what != WR_SCAN_RECORD) continue;
        CHECK(r.size <= size && r.properties_at + r.properties_length == r.size);
        CHECK(r.body_at + r.body_length < r.topic_at);
        CHECK(r.topic_at + r.topic_length + 2 == r.properties_at);
        found++;
    }
    atomic_store(&done, true);
    pthread_join(thread, NULL);
    CHECK(found);
    sample_free(&log_record);
}
#endif

int main(int argc, char **argv) {
    random_begin("record_test", argc, argv);
    round_trips();
    prefixes_and_changes();
    refused();
    places_in_a_file();
#if !defined(__SANITIZE_THREAD__)
    changing_source();
    changing_log();
#endif
    return 0;
}
