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
    COLUMN_PROPERTIES_VALID, /* bits: it has some */
    COLUMN_PROPERTIES_ENDS,  /* of pairs */
    COLUMN_NAME_ENDS,
    COLUMN_NAME,
    COLUMN_TEXT_ENDS,
    COLUMN_TEXT,
    COLUMNS_N
};

/* What rows have; a buffer of what is not wanted stays empty. */
enum {
    WANT_OFFSET = 1,
    WANT_TIMESTAMP = 2,
    WANT_BORN_TIMESTAMP = 4,
    WANT_KEY = 8,
    WANT_TAG = 16,
    WANT_VALUE = 32, /* without it no body is read */
    WANT_ID = 64,
    WANT_PROPERTIES = 128,
    WANT_ALL = 255,
    WANT_TEXTS = WANT_KEY | WANT_TAG | WANT_PROPERTIES
};

/* Which messages become rows, and of what. */
typedef struct {
    uint32_t want;
    bool plain;          /* ids are bytes, not digits, and times microseconds */
    const wr_text *keys; /* messages with one of these keys */
    uint32_t keys_n;     /* 0: all, also those without a key */
    int64_t since, until; /* stored at `since` or later, and before `until` */
} wr_topic_rows_wanted;

#define WR_NULLS 3

typedef struct {
    wr_memory columns[COLUMNS_N];
    wr_topic_rows_wanted wanted;
    uint32_t rows;
    uint32_t room;            /* rows: so many fit into columns where each has as many bytes */
    uint64_t nulls[WR_NULLS]; /* keys, tags, properties */
} wr_topic_columns;

/* Read into columns, of what is `wanted`; without the GIL. 0, ENOMEM, EOVERFLOW (a column is full: what was read fits), or what the read said. */
int wr_topic_columns_fill(wr_topic_columns *c, wr_topic_read *read);
/* (rows, keys that are None, tags that are None, rows without properties, Memory …); the columns are empty then. */
PyObject *wr_topic_columns_give(wr_topic_columns *c);
void wr_topic_columns_free(wr_topic_columns *c);
#endif
