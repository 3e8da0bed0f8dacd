/* Messages of a topic as columns in memory of Arrow's layout. */
#ifndef WR_BINDING_TOPIC_COLUMNS_H
#define WR_BINDING_TOPIC_COLUMNS_H
#include "binding/memory.h"
#include "topics/read.h"

enum {
    COLUMN_OFFSET,
    COLUMN_TIMESTAMP,
    COLUMN_BORN_TIMESTAMP,
    COLUMN_KEY_VALID, /* bits */
    COLUMN_KEY_ENDS,  /* 32-bit numbers, of texts and lists: rows + 1, the first is 0 */
    COLUMN_KEY,
    COLUMN_TAG_VALID,
    COLUMN_TAG_ENDS,
    COLUMN_TAG,
    COLUMN_VALUE_ENDS,
    COLUMN_VALUE,
    COLUMN_ID_ENDS,
    COLUMN_ID,
    COLUMN_PROPERTIES_ENDS, /* of pairs */
    COLUMN_NAME_ENDS,
    COLUMN_NAME,
    COLUMN_TEXT_ENDS,
    COLUMN_TEXT,
    COLUMNS_N
};

typedef struct {
    wr_memory columns[COLUMNS_N];
    uint32_t rows;
    uint32_t room;     /* rows: so many fit into columns where each has as many bytes */
    uint64_t nulls[2]; /* keys, tags */
} wr_topic_columns;

/* Read into columns; without the GIL. 0, ENOMEM, EOVERFLOW (a column is full: what was read fits), or what the read said. */
int wr_topic_columns_fill(wr_topic_columns *c, wr_topic_read *read);
/* (rows, keys that are None, tags that are None, Memory …); the columns are empty then. */
PyObject *wr_topic_columns_give(wr_topic_columns *c);
void wr_topic_columns_free(wr_topic_columns *c);
#endif
