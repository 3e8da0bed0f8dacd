/* One record of the commit log: its size, encode, scan. The format is declared in engine/topics/formats.py.
 *
 * Invariants
 *   A record is written in its final form, nothing is patched later, and its source is read once: body, topic and
 *   properties may lie in a client's memory. What is refused leaves `to` as it was, but that topic and properties
 *   may have become zeros (what was not written is). A scan reads each length of the log once, and never outside of
 *   the bytes that it was given.
 * Crash points: none, there is no file here. Who appends raises its horizon when the record is whole. */
#ifndef WR_TOPICS_RECORD_H
#define WR_TOPICS_RECORD_H
#include "topics/formats.h"
#include <stdbool.h>
#include <stdint.h>
#include <sys/uio.h>

/* Why a record cannot be made, or bytes are none. */
typedef enum {
    WR_RECORD_GOOD,
    WR_RECORD_TRUNCATED,         /* the bytes end within it */
    WR_RECORD_MAGIC,             /* no record begins here */
    WR_RECORD_SIZE,              /* smaller than any record, or larger than RECORD_BYTES_MAX */
    WR_RECORD_POSITION,          /* its physical_offset is another position: it was moved, or is an old one */
    WR_RECORD_LENGTHS,           /* the lengths of its parts do not add up to its size */
    WR_RECORD_NUMBER,            /* a number is negative in Java */
    WR_RECORD_TOPIC_LENGTH,      /* no topic, or one that its version, or any, cannot hold */
    WR_RECORD_TOPIC,             /* a byte below 3, or no UTF-8 */
    WR_RECORD_PROPERTIES_LENGTH, /* more than PROPERTIES_BYTES_MAX */
    WR_RECORD_PROPERTIES,        /* wr_properties_good says no */
    WR_RECORD_CRC,               /* the body has another checksum */
    WR_RECORD_REASONS
} wr_record_reason;

/* "good", "truncated", "magic" … */
const char *wr_record_word(wr_record_reason reason);

#define WR_HOST_BYTES_MAX WR_HOST_V6_SIZE

/* What a record has beside topic, properties and body. A host is as in the file (address, then port), the address of
 * the kind that sys_flag says: 8 bytes of the 20, or all. */
typedef struct {
    uint32_t queue_id, flag;
    uint64_t queue_offset, physical_offset;
    uint32_t sys_flag, reconsume_times;
    uint64_t born_timestamp, store_timestamp; /* milliseconds since 1970 */
    uint64_t prepared_transaction_offset;
    uint8_t born_host[WR_HOST_BYTES_MAX], store_host[WR_HOST_BYTES_MAX];
} wr_record_head;

static inline uint32_t wr_born_host_bytes(uint32_t sys_flag) {
    return sys_flag & WR_SYS_BORN_HOST_V6 ? WR_HOST_V6_SIZE : WR_HOST_V4_SIZE;
}
static inline uint32_t wr_store_host_bytes(uint32_t sys_flag) {
    return sys_flag & WR_SYS_STORE_HOST_V6 ? WR_HOST_V6_SIZE : WR_HOST_V4_SIZE;
}

/* Bytes of a record; 0: there can be none, and *reason says why. V1 or V2 follows from the topic's length. */
uint32_t wr_record_size(uint32_t sys_flag, uint64_t topic_length, uint64_t properties_length, uint64_t body_length,
                        wr_record_reason *reason);

/* Write a record of `size` bytes, which wr_record_size said. The body is what the parts hold, one behind the other;
 * it is copied and summed in one pass. Nobody changes the topic meanwhile. WR_RECORD_GOOD, else NUMBER, TOPIC or PROPERTIES, and nothing is there. */
wr_record_reason wr_record_encode(uint8_t *to, uint32_t size, const wr_record_head *head, const void *topic,
                                  uint32_t topic_length, const void *properties, uint32_t properties_length,
                                  const struct iovec *parts, uint32_t parts_n);

/* A record may begin where its size and a blank one behind it fit into what is left of the file; else a blank one is
 * written. */
static inline bool wr_record_fits(uint64_t size, uint64_t left) {
    return left >= WR_BLANK_SIZE && size <= left - WR_BLANK_SIZE;
}
/* Write a blank record for the `left` bytes (8 at least) of a file. Only its own 8 are written. */
void wr_record_blank(uint8_t *to, uint32_t left);

typedef enum {
    WR_SCAN_RECORD = 1,
    WR_SCAN_BLANK, /* `size`: as it says; that this is the rest of the file is the caller's to check */
    WR_SCAN_END,   /* zeros where size and magic would be, or no bytes */
    WR_SCAN_BAD    /* `reason` */
} wr_scan;

/* What a scan checks beside magic, size, lengths, position and signs. */
#define WR_SCAN_TEXT 1u /* topic and properties */
#define WR_SCAN_BODY 2u /* the body's checksum */
#define WR_SCAN_ALL (WR_SCAN_TEXT | WR_SCAN_BODY)

/* A record that was scanned. Places are from its first byte on. */
typedef struct {
    uint32_t size, magic;
    uint32_t body_crc;
    uint32_t queue_id, flag;
    uint32_t sys_flag, reconsume_times;
    uint64_t queue_offset, physical_offset;
    uint64_t born_timestamp, store_timestamp;
    uint64_t prepared_transaction_offset;
    uint32_t store_host_at; /* the born host is at WR_LOG_HEAD_SIZE */
    uint32_t body_at, body_length;
    uint32_t topic_at, topic_length;
    uint32_t properties_at, properties_length;
    wr_record_reason reason; /* of WR_SCAN_BAD; then only this counts */
} wr_record;

/* What begins with the first of n bytes, which lie at `position` of the log. */
wr_scan wr_record_scan(const uint8_t *bytes, uint64_t n, uint64_t position, uint32_t checks, wr_record *record);
#endif
