#include "topics/message_id.h"
#include "kernel/bytes.h"
#include <assert.h>

#define OFFSET_BYTES 8u

static char *put_hex(char *to, const uint8_t *bytes, uint32_t n) {
    static const char digits[] = "0123456789ABCDEF";
    for (uint32_t i = 0; i < n; i++) {
        *to++ = digits[bytes[i] >> 4];
        *to++ = digits[bytes[i] & 15];
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
