/* Columns of messages. Bodies are copied and summed in one pass, from where the log was read to. */
#include "binding/topic_columns.h"
#include "kernel/crc32.h"
#include "topics/message_id.h"
#include "topics/properties.h"
#include <errno.h>
#include <string.h>

#define ROOM_FIRST 65536u
#define ROWS_FIRST_MAX (1u << 18) /* asked for at once; memory that is not used is given back */
#define ROOM_BODIES_MAX (32u << 20)

/* Columns where each row has as many bytes; those of ends have one end more. What they hold is said by the rows alone. */
static const struct {
    uint8_t column, bytes, ends;
} fixed[] = {{COLUMN_OFFSET, 8, 0},   {COLUMN_TIMESTAMP, 8, 0}, {COLUMN_BORN_TIMESTAMP, 8, 0}, {COLUMN_KEY_ENDS, 4, 1},
             {COLUMN_TAG_ENDS, 4, 1}, {COLUMN_VALUE_ENDS, 4, 1}, {COLUMN_ID_ENDS, 4, 1},        {COLUMN_PROPERTIES_ENDS, 4, 1}};
static const uint8_t bits[] = {COLUMN_KEY_VALID, COLUMN_TAG_VALID};
#define COUNT_OF(array) (sizeof(array) / sizeof *(array))

static inline int have(wr_memory *column, uint64_t more) { return wr_memory_have(column, more, ROOM_FIRST); }

/* Room is there. */
static inline void put(wr_memory *column, const void *from, uint64_t n) {
    memcpy(column->bytes + column->n, from, n);
    column->n += n;
}
static inline void put_end(wr_memory *ends, const wr_memory *of) {
    uint32_t end = (uint32_t)of->n;
    memcpy(ends->bytes + ends->n, &end, 4);
    ends->n += 4;
}
/* The row's number in a fixed column. */
static inline void set64(const wr_memory *column, uint32_t row, uint64_t number) { memcpy(column->bytes + 8 * (uint64_t)row, &number, 8); }
/* Where the row ends. */
static inline void set_end(const wr_memory *ends, uint32_t row, uint64_t end) {
    const uint32_t short_end = (uint32_t)end;
    memcpy(ends->bytes + 4 * ((uint64_t)row + 1), &short_end, 4);
}

static inline void set_bit(const wr_memory *bits_of, uint32_t row, bool set) {
    uint8_t *at = bits_of->bytes + row / 8;
    if (row % 8 == 0) *at = 0;
    *at |= (uint8_t)(set << row % 8);
}

/* What the fixed columns hold: it is not kept row by row. */
static void count(wr_topic_columns *c) {
    for (size_t i = 0; i < COUNT_OF(fixed); i++) c->columns[fixed[i].column].n = ((uint64_t)c->rows + fixed[i].ends) * fixed[i].bytes;
    for (size_t i = 0; i < COUNT_OF(bits); i++) c->columns[bits[i]].n = ((uint64_t)c->rows + 7) / 8;
}

static int have_rows(wr_topic_columns *c, uint64_t more) {
    int error = 0;
    count(c);
    for (size_t i = 0; i < COUNT_OF(fixed); i++) error |= have(&c->columns[fixed[i].column], more * fixed[i].bytes);
    for (size_t i = 0; i < COUNT_OF(bits); i++) error |= have(&c->columns[bits[i]], more / 8 + 1);
    c->room = c->rows + (uint32_t)more;
    return error;
}

/* Ask for the room of all that comes: memory that grows is copied, and touched again and again. */
static int have_all(wr_topic_columns *c, const wr_topic_read *read, const wr_record *r, const uint32_t id_chars) {
    const uint64_t expected = wr_topic_read_expected(read, r), rows = expected < ROWS_FIRST_MAX ? expected + 1 : ROWS_FIRST_MAX;
    const uint64_t bodies = rows * r->body_length;
    return have_rows(c, rows) | have(&c->columns[COLUMN_ID], rows * id_chars) |
           have(&c->columns[COLUMN_VALUE], bodies < ROOM_BODIES_MAX ? bodies : ROOM_BODIES_MAX);
}

/* Room for one record. */
static int have_row(wr_topic_columns *c, const wr_topic_read *read, const wr_record *r) {
    static const uint8_t texts[] = {COLUMN_KEY, COLUMN_TAG, COLUMN_NAME, COLUMN_TEXT};
    int error = 0;
    if (__builtin_expect(c->rows == c->room, 0)) {
        if (c->rows) error = have_rows(c, c->rows);
        else error = have_all(c, read, r, 2 * (wr_store_host_bytes(r->sys_flag) + 8));
    }
    if (r->properties_length) {
        for (size_t i = 0; i < COUNT_OF(texts); i++) error |= have(&c->columns[texts[i]], r->properties_length);
        /* a property has 2 bytes at least */
        error |= have(&c->columns[COLUMN_NAME_ENDS], 2 * (uint64_t)r->properties_length + 4);
        error |= have(&c->columns[COLUMN_TEXT_ENDS], 2 * (uint64_t)r->properties_length + 4);
    }
    return error | have(&c->columns[COLUMN_ID], WR_MESSAGE_ID_CHARS_V6) | have(&c->columns[COLUMN_VALUE], r->body_length);
}

static inline bool is(wr_text text, const char name[4]) { return text.n == 4 && !memcmp(text.at, name, 4); }

static void put_properties(wr_topic_columns *c, const wr_record *r, const uint8_t *bytes, wr_text *keys, wr_text *tag) {
    wr_memory *k = c->columns;
    uint32_t at = 0;
    wr_text name, value;
    while (wr_properties_next(bytes + r->properties_at, r->properties_length, &at, &name, &value)) {
        if (is(name, "KEYS")) {
            *keys = value;
        } else if (is(name, "TAGS")) {
            *tag = value;
        } else {
            put(&k[COLUMN_NAME], name.at, name.n);
            put(&k[COLUMN_TEXT], value.at, value.n);
            put_end(&k[COLUMN_NAME_ENDS], &k[COLUMN_NAME]);
            put_end(&k[COLUMN_TEXT_ENDS], &k[COLUMN_TEXT]);
        }
    }
    if (keys->at) put(&k[COLUMN_KEY], keys->at, keys->n);
    if (tag->at) put(&k[COLUMN_TAG], tag->at, tag->n);
}

static inline void put_row(wr_topic_columns *c, const wr_record *r, const uint8_t *bytes) {
    wr_memory *k = c->columns;
    const uint32_t row = c->rows++;
    wr_text keys = {0}, tag = {0};
    set64(&k[COLUMN_OFFSET], row, r->queue_offset);
    set64(&k[COLUMN_TIMESTAMP], row, r->store_timestamp);
    set64(&k[COLUMN_BORN_TIMESTAMP], row, r->born_timestamp);
    set_end(&k[COLUMN_VALUE_ENDS], row, k[COLUMN_VALUE].n += r->body_length);
    k[COLUMN_ID].n += wr_message_id_put((char *)k[COLUMN_ID].bytes + k[COLUMN_ID].n, bytes + r->store_host_at,
                                        wr_store_host_bytes(r->sys_flag), r->physical_offset);
    set_end(&k[COLUMN_ID_ENDS], row, k[COLUMN_ID].n);
    if (r->properties_length) put_properties(c, r, bytes, &keys, &tag);
    set_end(&k[COLUMN_PROPERTIES_ENDS], row, k[COLUMN_NAME_ENDS].n / 4 - 1);
    set_end(&k[COLUMN_KEY_ENDS], row, k[COLUMN_KEY].n);
    set_end(&k[COLUMN_TAG_ENDS], row, k[COLUMN_TAG].n);
    set_bit(&k[COLUMN_KEY_VALID], row, keys.at);
    set_bit(&k[COLUMN_TAG_VALID], row, tag.at);
    c->nulls[0] += !keys.at;
    c->nulls[1] += !tag.at;
}

/* No column may reach where 32 bits end: whether this record is one too many. */
static inline bool is_full(const wr_topic_columns *c, const wr_record *r) {
    const wr_memory *k = c->columns;
    const uint64_t most = k[COLUMN_VALUE].n + r->body_length;
    const uint64_t texts[] = {k[COLUMN_TEXT].n, k[COLUMN_NAME].n, k[COLUMN_ID].n, k[COLUMN_KEY].n, k[COLUMN_TAG].n};
    bool full = most > INT32_MAX;
    for (size_t i = 0; i < COUNT_OF(texts); i++) full |= texts[i] > INT32_MAX - 2 * WR_PROPERTIES_BYTES_MAX;
    return full;
}

static int begin(wr_topic_columns *c) {
    static const uint8_t ends[] = {COLUMN_KEY_ENDS,        COLUMN_TAG_ENDS,  COLUMN_VALUE_ENDS, COLUMN_ID_ENDS,
                                   COLUMN_PROPERTIES_ENDS, COLUMN_NAME_ENDS, COLUMN_TEXT_ENDS};
    static const uint32_t zero;
    for (size_t i = 0; i < sizeof ends; i++) {
        if (have(&c->columns[ends[i]], 4)) return ENOMEM;
        put(&c->columns[ends[i]], &zero, 4);
    }
    return 0;
}

int wr_topic_columns_fill(wr_topic_columns *c, wr_topic_read *read) {
    wr_record r;
    const uint8_t *bytes;
    int error = begin(c);
    while (!error && wr_topic_read_next(read, &r, &bytes)) {
        do { /* until its body is what was written, or there is none */
            if (is_full(c, &r)) error = EOVERFLOW;
            else if (have_row(c, read, &r)) error = ENOMEM;
            if (error) break;
            const wr_memory *value = &c->columns[COLUMN_VALUE];
            uint32_t crc = wr_copy_crc32(0, value->bytes + value->n, bytes + r.body_at, r.body_length);
            if ((crc & WR_BODY_CRC_MASK) == r.body_crc) {
                put_row(c, &r, bytes);
                break;
            }
        } while (wr_topic_read_again(read, &r, &bytes));
    }
    count(c);
    return error;
}

PyObject *wr_topic_columns_give(wr_topic_columns *c) {
    PyObject *given = PyTuple_New(3 + COLUMNS_N);
    if (!given) return NULL;
    const uint64_t numbers[3] = {c->rows, c->nulls[0], c->nulls[1]};
    for (int i = 0; given && i < 3 + COLUMNS_N; i++) {
        PyObject *one = i < 3 ? PyLong_FromUnsignedLongLong(numbers[i]) : wr_memory_give(&c->columns[i - 3]);
        if (one) PyTuple_SET_ITEM(given, i, one);
        else Py_CLEAR(given);
    }
    return given;
}

void wr_topic_columns_free(wr_topic_columns *c) {
    for (int i = 0; i < COLUMNS_N; i++) wr_memory_drop(&c->columns[i]);
    memset(c, 0, sizeof *c);
}
