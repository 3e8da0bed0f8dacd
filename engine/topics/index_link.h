/* What a file of the key index says of the one before it, in the place of its entry 0, which the format leaves unused: a file that somebody removed
 * is missed by its successor. The bytes are declared in engine/topics/formats.py.
 *
 * It is written before the file gets its name, and never changes. Its checksum is bound to that name, so files that were swapped are noticed. */
#ifndef WR_TOPICS_INDEX_LINK_H
#define WR_TOPICS_INDEX_LINK_H
#include "topics/formats.h"
#include <stdbool.h>
#include <stdint.h>

#define WR_INDEX_NAME_DIGITS 17

typedef struct {
    char previous[WR_INDEX_NAME_DIGITS + 1]; /* name of the file before; "": there was none */
    uint64_t end;                            /* position of its last record: below the log's first one it may have been removed */
} wr_index_link;

/* Names as numbers, for memory that is shared; 0 is none. */
uint64_t wr_index_name_number(const char *name);
void wr_index_number_name(uint64_t number, char name[WR_INDEX_NAME_DIGITS + 1]);

/* `at`: WR_KEY_INDEX_LINK_SIZE bytes; `name`: of the file that they lie in. */
void wr_index_link_put(uint8_t *at, const char *name, const wr_index_link *link);
/* false: these are not the bytes that were written to that file. */
bool wr_index_link_get(const uint8_t *at, const char *name, wr_index_link *link);
#endif
