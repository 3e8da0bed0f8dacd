#include "topics/message_id.h"
#include "kernel/bytes.h"
#include <assert.h>

#define OFFSET_BYTES 8u
#define RESERVED_ADDRESSES 0xf0000000u /* 240.0.0.0/4 */

void wr_message_host(const uint8_t node[WR_NODE_BYTES], uint8_t host[WR_HOST_V4_SIZE]) {
    uint64_t mixed = wr_get64(node); /* splitmix64: every bit of the identity counts for each of the result */
    mixed = (mixed ^ mixed >> 30) * 0xbf58476d1ce4e5b9ull;
    mixed = (mixed ^ mixed >> 27) * 0x94d049bb133111ebull;
    mixed ^= mixed >> 31;
    wr_put32(host, RESERVED_ADDRESSES | (uint32_t)(mixed >> 36));
    wr_put32(host + 4, (uint32_t)(mixed & 0xffff) | 1);
}

/* Digits of n bytes, four at a time: n is a multiple of 4. */
static char *put_hex(char *to, const uint8_t *bytes, uint32_t n) {
    for (uint32_t i = 0; i < n; i += 4, to += 8) {
        uint64_t four = wr_get32(bytes + i), digits; /* the first byte highest */
        digits = (four << 16 | four) & 0x0000ffff0000ffffull;
        digits = (digits << 8 | digits) & 0x00ff00ff00ff00ffull;
        digits = (digits << 4 | digits) & 0x0f0f0f0f0f0f0f0full; /* the first digit highest */
        const uint64_t letters = (digits + 0x0606060606060606ull) >> 4 & 0x0101010101010101ull;
        wr_put64((uint8_t *)to, digits + 0x3030303030303030ull + letters * ('A' - '0' - 10));
    }
    return to;
}

uint32_t wr_message_id_put(char *to, const uint8_t *store_host, uint32_t store_host_bytes, uint64_t physical_offset) {
    uint8_t offset[OFFSET_BYTES];
    assert(store_host_bytes == WR_HOST_V4_SIZE || store_host_bytes == WR_HOST_V6_SIZE);
    wr_put64(offset, physical_offset);
    put_hex(put_hex(to, store_host, store_host_bytes), offset, OFFSET_BYTES);
    return 2 * (store_host_bytes + OFFSET_BYTES);
}

static inline int value_of(char digit) {
    if (digit >= '0' && digit <= '9') return digit - '0';
    if (digit >= 'A' && digit <= 'F') return digit - 'A' + 10;
    if (digit >= 'a' && digit <= 'f') return digit - 'a' + 10;
    return -1;
}

bool wr_message_id_parse(const char *text, uint64_t n, wr_message_id *id) {
    uint8_t bytes[WR_HOST_V6_SIZE + OFFSET_BYTES];
    if (n != WR_MESSAGE_ID_CHARS_V4 && n != WR_MESSAGE_ID_CHARS_V6) return false;
    for (uint32_t i = 0; i < n / 2; i++) {
        int high = value_of(text[2 * i]), low = value_of(text[2 * i + 1]);
        if (high < 0 || low < 0) return false;
        bytes[i] = (uint8_t)(high << 4 | low);
    }
    id->store_host_bytes = (uint32_t)n / 2 - OFFSET_BYTES;
    memcpy(id->store_host, bytes, id->store_host_bytes);
    id->physical_offset = wr_get64(bytes + id->store_host_bytes);
    return !(id->physical_offset >> 63);
}
