/* Columns of messages. Bodies are copied and summed in one pass, from where the log was read to. */
#include "binding/topic_columns.h"
#include "binding/memory.h"
#include "kernel/crc32.h"
#include "topics/message_id.h"
#include "topics/properties.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define ROOM_FIRST 65536u
#define ROOM_BODIES_MAX (8u << 20)

static int grow(wr_column *column, uint64_t more) {
    uint64_t room = column->room ? column->room : ROOM_FIRST;
    while (room - column->n < more) room *= 2;
    uint8_t *bytes = realloc(column->bytes, room);
    if (!bytes) return ENOMEM;
    column->bytes = bytes;
    column->room = room;
    return 0;
}

static inline int have(wr_column *column, uint64_t more) { return column->room - column->n >= more ? 0 : grow(column, more); }

/* Room is there. */
static inline void put(wr_column *column, const void *from, uint64_t n) {
    memcpy(column->bytes + column->n, from, n);
    column->n += n;
}
static inline void put_end(wr_column *ends, const wr_column *of) {
    uint32_t end = (uint32_t)of->n;
    put(ends, &end, 4);
}
static inline void put64(wr_column *column, uint64_t number) { put(column, &number, 8); }

static void put_bit(wr_column *bits, uint32_t row, bool set) {
    if (row % 8 == 0) bits->bytes[bits->n++] = 0;
    bits->bytes[row / 8] |= (uint8_t)(set << row % 8);
}

/* Room for what is not the body of one record: so it is not asked for again and again. */
static int have_row(wr_topic_columns *c, const wr_record *r) {
    static const struct { uint8_t column; uint8_t bytes; } fixed[] = {
        {COLUMN_OFFSET, 8},     {COLUMN_TIMESTAMP, 8}, {COLUMN_BORN_TIMESTAMP, 8}, {COLUMN_KEY_VALID, 1}, {COLUMN_KEY_ENDS, 4},
        {COLUMN_TAG_VALID, 1},  {COLUMN_TAG_ENDS, 4},  {COLUMN_VALUE_ENDS, 4},     {COLUMN_ID_ENDS, 4},   {COLUMN_ID, WR_MESSAGE_ID_CHARS_V6},
        {COLUMN_PROPERTIES_ENDS, 4}};
    static const uint8_t texts[] = {COLUMN_KEY, COLUMN_TAG, COLUMN_NAME, COLUMN_TEXT};
    int error = 0;
    for (size_t i = 0; i < sizeof fixed / sizeof *fixed; i++) error |= have(&c->columns[fixed[i].column], fixed[i].bytes);
    for (size_t i = 0; i < sizeof texts; i++) error |= have(&c->columns[texts[i]], r->properties_length);
    /* a property has 2 bytes at least */
    error |= have(&c->columns[COLUMN_NAME_ENDS], 2 * (uint64_t)r->properties_length + 4);
    error |= have(&c->columns[COLUMN_TEXT_ENDS], 2 * (uint64_t)r->properties_length + 4);
    wr_column *value = &c->columns[COLUMN_VALUE];
    return error | have(value, value->room || c->expected < r->body_length ? r->body_length : c->expected);
}

static inline bool is(wr_text text, const char name[4]) { return text.n == 4 && !memcmp(text.at, name, 4); }

static void put_properties(wr_topic_columns *c, const wr_record *r, const uint8_t *bytes) {
    wr_column *k = c->columns;
    uint32_t at = 0, pairs;
    wr_text name, value, keys = {0}, tag = {0};
    while (wr_properties_next(bytes + r->properties_at, r->properties_length, &at, &name, &value)) {
        if (is(name, "KEYS")) {
            keys = value;
        } else if (is(name, "TAGS")) {
            tag = value;
        } else {
            put(&k[COLUMN_NAME], name.at, name.n);
            put(&k[COLUMN_TEXT], value.at, value.n);
            put_end(&k[COLUMN_NAME_ENDS], &k[COLUMN_NAME]);
            put_end(&k[COLUMN_TEXT_ENDS], &k[COLUMN_TEXT]);
        }
    }
    pairs = (uint32_t)(k[COLUMN_NAME_ENDS].n / 4 - 1);
    put(&k[COLUMN_PROPERTIES_ENDS], &pairs, 4);
    if (keys.at) put(&k[COLUMN_KEY], keys.at, keys.n);
    if (tag.at) put(&k[COLUMN_TAG], tag.at, tag.n);
    put_end(&k[COLUMN_KEY_ENDS], &k[COLUMN_KEY]);
    put_end(&k[COLUMN_TAG_ENDS], &k[COLUMN_TAG]);
    put_bit(&k[COLUMN_KEY_VALID], c->rows, keys.at);
    put_bit(&k[COLUMN_TAG_VALID], c->rows, tag.at);
    c->nulls[0] += !keys.at;
    c->nulls[1] += !tag.at;
}

static void put_row(wr_topic_columns *c, const wr_record *r, const uint8_t *bytes) {
    wr_column *k = c->columns;
    put64(&k[COLUMN_OFFSET], r->queue_offset);
    put64(&k[COLUMN_TIMESTAMP], r->store_timestamp);
    put64(&k[COLUMN_BORN_TIMESTAMP], r->born_timestamp);
    k[COLUMN_VALUE].n += r->body_length;
    put_end(&k[COLUMN_VALUE_ENDS], &k[COLUMN_VALUE]);
    k[COLUMN_ID].n += wr_message_id_put((char *)k[COLUMN_ID].bytes + k[COLUMN_ID].n, bytes + r->store_host_at,
                                        wr_store_host_bytes(r->sys_flag), r->physical_offset);
    put_end(&k[COLUMN_ID_ENDS], &k[COLUMN_ID]);
    put_properties(c, r, bytes);
    c->rows++;
}

/* No column may reach where 32 bits end: whether this record is one too many. */
static bool is_full(const wr_topic_columns *c, const wr_record *r) {
    const wr_column *k = c->columns;
    uint64_t most = k[COLUMN_VALUE].n + r->body_length, texts = k[COLUMN_TEXT].n > k[COLUMN_NAME].n ? k[COLUMN_TEXT].n : k[COLUMN_NAME].n;
    if (k[COLUMN_ID].n > texts) texts = k[COLUMN_ID].n;
    if (k[COLUMN_KEY].n > texts) texts = k[COLUMN_KEY].n;
    if (k[COLUMN_TAG].n > texts) texts = k[COLUMN_TAG].n;
    return most > INT32_MAX || texts > INT32_MAX - 2 * WR_PROPERTIES_BYTES_MAX;
}

static int begin(wr_topic_columns *c) {
    static const uint8_t ends[] = {COLUMN_KEY_ENDS,        COLUMN_TAG_ENDS,  COLUMN_VALUE_ENDS, COLUMN_ID_ENDS,
                                   COLUMN_PROPERTIES_ENDS, COLUMN_NAME_ENDS, COLUMN_TEXT_ENDS};
    static const uint32_t zero;
    for (size_t i = 0; i < sizeof ends; i++) {
        if (have(&c->columns[ends[i]], 4)) return ENOMEM;
        put(&c->columns[ends[i]], &zero, 4);
    }
    if (c->expected > ROOM_BODIES_MAX) c->expected = ROOM_BODIES_MAX;
    return 0;
}

int wr_topic_columns_fill(wr_topic_columns *c, wr_topic_read *read) {
    wr_record r;
    const uint8_t *bytes;
    int error = begin(c);
    while (!error && wr_topic_read_next(read, &r, &bytes)) {
        do { /* until its body is what was written, or there is none */
            if (is_full(c, &r)) return EOVERFLOW;
            if ((error = have_row(c, &r))) return ENOMEM;
            const wr_column *value = &c->columns[COLUMN_VALUE];
            uint32_t crc = wr_copy_crc32(0, value->bytes + value->n, bytes + r.body_at, r.body_length);
            if ((crc & WR_BODY_CRC_MASK) == r.body_crc) {
                put_row(c, &r, bytes);
                break;
            }
        } while (wr_topic_read_again(read, &r, &bytes));
    }
    return error;
}

PyObject *wr_topic_columns_give(wr_topic_columns *c) {
    PyObject *given = PyTuple_New(3 + COLUMNS_N);
    if (!given) return NULL;
    const uint64_t numbers[3] = {c->rows, c->nulls[0], c->nulls[1]};
    for (int i = 0; given && i < 3 + COLUMNS_N; i++) {
        PyObject *one;
        if (i < 3) {
            one = PyLong_FromUnsignedLongLong(numbers[i]);
        } else {
            wr_column *column = &c->columns[i - 3];
            uint8_t *fitting = column->n && column->n < column->room / 2 ? realloc(column->bytes, column->n) : NULL;
            if (fitting) column->bytes = fitting;
            one = wr_memory_new(column->bytes, (Py_ssize_t)column->n);
            *column = (wr_column){0};
        }
        if (one) PyTuple_SET_ITEM(given, i, one);
        else Py_CLEAR(given);
    }
    return given;
}

void wr_topic_columns_free(wr_topic_columns *c) {
    for (int i = 0; i < COLUMNS_N; i++) free(c->columns[i].bytes);
    memset(c, 0, sizeof *c);
}
