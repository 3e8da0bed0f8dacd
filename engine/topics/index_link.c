/* Links between files of the key index. What they are: topics/index_link.h. */
#include "topics/index_link.h"
#include "kernel/bytes.h"
#include "kernel/frame.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LINK(field) WR_KEY_INDEX_LINK_AT_##field
#define NAME_MAX_NUMBER 99999999999999999ull
_Static_assert(WR_KEY_INDEX_LINK_SIZE == WR_KEY_INDEX_ENTRY_SIZE, "it lies in an entry's place");

uint64_t wr_index_name_number(const char *name) { return *name ? strtoull(name, NULL, 10) : 0; }

void wr_index_number_name(uint64_t number, char name[WR_INDEX_NAME_DIGITS + 1]) {
    name[0] = 0;
    if (number && number <= NAME_MAX_NUMBER) snprintf(name, WR_INDEX_NAME_DIGITS + 1, "%017llu", (unsigned long long)number);
}

static uint32_t crc_of(const uint8_t *at, const char *name) {
    return wr_crc32c(wr_crc32c(0, name, strnlen(name, WR_INDEX_NAME_DIGITS)), at, LINK(CRC));
}

void wr_index_link_put(uint8_t *at, const char *name, const wr_index_link *link) {
    wr_put64(at + LINK(PREVIOUS), wr_index_name_number(link->previous));
    wr_put64(at + LINK(END), link->end);
    wr_put32(at + LINK(CRC), crc_of(at, name));
}

bool wr_index_link_get(const uint8_t *at, const char *name, wr_index_link *link) {
    if (wr_get32(at + LINK(CRC)) != crc_of(at, name)) return false;
    wr_index_number_name(wr_get64(at + LINK(PREVIOUS)), link->previous);
    link->end = wr_get64(at + LINK(END));
    return true;
}
