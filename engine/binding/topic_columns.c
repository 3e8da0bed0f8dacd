/* Columns of messages. Bodies are copied and summed in one pass, from where the log was read to. */
#include "binding/topic_columns.h"
#include "kernel/bytes.h"
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
    uint8_t column, bytes, ends, want;
} fixed[] = {{COLUMN_OFFSET, 8, 0, WANT_OFFSET},
             {COLUMN_TIMESTAMP, 8, 0, WANT_TIMESTAMP},
             {COLUMN_BORN_TIMESTAMP, 8, 0, WANT_BORN_TIMESTAMP},
             {COLUMN_KEY_ENDS, 4, 1, WANT_KEY},
             {COLUMN_TAG_ENDS, 4, 1, WANT_TAG},
             {COLUMN_VALUE_ENDS, 4, 1, WANT_VALUE},
             {COLUMN_ID_ENDS, 4, 1, WANT_ID},
             {COLUMN_PROPERTIES_ENDS, 4, 1, WANT_PROPERTIES}};
static const struct {
    uint8_t column, want;
} bits[] = {{COLUMN_KEY_VALID, WANT_KEY}, {COLUMN_TAG_VALID, WANT_TAG}, {COLUMN_PROPERTIES_VALID, WANT_PROPERTIES}};
#define COUNT_OF(array) (sizeof(array) / sizeof *(array))

static inline bool wants(const wr_topic_columns *c, uint32_t what) { return (c->wanted.want & what) != 0; }

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
    for (size_t i = 0; i < COUNT_OF(fixed); i++)
        if (wants(c, fixed[i].want)) c->columns[fixed[i].column].n = ((uint64_t)c->rows + fixed[i].ends) * fixed[i].bytes;
    for (size_t i = 0; i < COUNT_OF(bits); i++)
        if (wants(c, bits[i].want)) c->columns[bits[i].column].n = ((uint64_t)c->rows + 7) / 8;
}

static int have_rows(wr_topic_columns *c, uint64_t more) {
    int error = 0;
    count(c);
    for (size_t i = 0; i < COUNT_OF(fixed); i++)
        if (wants(c, fixed[i].want)) error |= have(&c->columns[fixed[i].column], more * fixed[i].bytes);
    for (size_t i = 0; i < COUNT_OF(bits); i++)
        if (wants(c, bits[i].want)) error |= have(&c->columns[bits[i].column], more / 8 + 1);
    c->room = c->rows + (uint32_t)more;
    return error;
}

/* Ask for the room of all that comes: memory that grows is copied, and touched again and again. */
static int have_all(wr_topic_columns *c, const wr_topic_read *read, const wr_record *r, const uint32_t id_chars) {
    const uint64_t expected = wr_topic_read_expected(read, r), rows = expected < ROWS_FIRST_MAX ? expected + 1 : ROWS_FIRST_MAX;
    const uint64_t bodies = rows * r->body_length;
    int error = have_rows(c, rows);
    if (wants(c, WANT_ID)) error |= have(&c->columns[COLUMN_ID], rows * id_chars);
    if (wants(c, WANT_VALUE)) error |= have(&c->columns[COLUMN_VALUE], bodies < ROOM_BODIES_MAX ? bodies : ROOM_BODIES_MAX);
    return error;
}

/* Room for one record. */
static int have_row(wr_topic_columns *c, const wr_topic_read *read, const wr_record *r) {
    static const uint8_t texts[] = {COLUMN_KEY, COLUMN_TAG, COLUMN_NAME, COLUMN_TEXT};
    int error = 0;
    if (__builtin_expect(c->rows == c->room, 0)) {
        if (c->rows) error = have_rows(c, c->rows);
        else error = have_all(c, read, r, 2 * (wr_store_host_bytes(r->sys_flag) + 8));
    }
    if (r->properties_length && wants(c, WANT_TEXTS)) {
        for (size_t i = 0; i < COUNT_OF(texts); i++) error |= have(&c->columns[texts[i]], r->properties_length);
        /* a property has 2 bytes at least */
        error |= have(&c->columns[COLUMN_NAME_ENDS], 2 * (uint64_t)r->properties_length + 4);
        error |= have(&c->columns[COLUMN_TEXT_ENDS], 2 * (uint64_t)r->properties_length + 4);
    }
    if (wants(c, WANT_ID)) error |= have(&c->columns[COLUMN_ID], WR_MESSAGE_ID_CHARS_V6);
    return wants(c, WANT_VALUE) ? error | have(&c->columns[COLUMN_VALUE], r->body_length) : error;
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
        } else if (wants(c, WANT_PROPERTIES)) {
            put(&k[COLUMN_NAME], name.at, name.n);
            put(&k[COLUMN_TEXT], value.at, value.n);
            put_end(&k[COLUMN_NAME_ENDS], &k[COLUMN_NAME]);
            put_end(&k[COLUMN_TEXT_ENDS], &k[COLUMN_TEXT]);
        }
    }
    if (keys->at && wants(c, WANT_KEY)) put(&k[COLUMN_KEY], keys->at, keys->n);
    if (tag->at && wants(c, WANT_TAG)) put(&k[COLUMN_TAG], tag->at, tag->n);
}

/* Raw bytes of a message's id, of which the digits are made. */
static inline uint32_t put_id(uint8_t *to, const wr_record *r, const uint8_t *bytes) {
    const uint32_t host = wr_store_host_bytes(r->sys_flag);
    memcpy(to, bytes + r->store_host_at, host);
    wr_put64(to + host, r->physical_offset);
    return host + 8;
}

/* Texts of a row: keys, tag, properties. */
static inline void put_texts(wr_topic_columns *c, uint32_t row, const wr_record *r, const uint8_t *bytes) {
    wr_memory *k = c->columns;
    wr_text keys = {0}, tag = {0};
    const uint64_t names_n = k[COLUMN_NAME_ENDS].n;
    if (r->properties_length) put_properties(c, r, bytes, &keys, &tag);
    if (wants(c, WANT_KEY)) {
        set_end(&k[COLUMN_KEY_ENDS], row, k[COLUMN_KEY].n);
        set_bit(&k[COLUMN_KEY_VALID], row, keys.at);
        c->nulls[0] += !keys.at;
    }
    if (wants(c, WANT_TAG)) {
        set_end(&k[COLUMN_TAG_ENDS], row, k[COLUMN_TAG].n);
        set_bit(&k[COLUMN_TAG_VALID], row, tag.at);
        c->nulls[1] += !tag.at;
    }
    if (wants(c, WANT_PROPERTIES)) {
        const bool some = k[COLUMN_NAME_ENDS].n != names_n;
        set_end(&k[COLUMN_PROPERTIES_ENDS], row, k[COLUMN_NAME_ENDS].n / 4 - 1);
        set_bit(&k[COLUMN_PROPERTIES_VALID], row, some);
        c->nulls[2] += !some;
    }
}

static inline void put_row(wr_topic_columns *c, const wr_record *r, const uint8_t *bytes) {
    wr_memory *k = c->columns;
    const uint32_t row = c->rows++;
    const uint64_t unit = c->wanted.plain ? 1000 : 1; /* of a millisecond */
    if (wants(c, WANT_OFFSET)) set64(&k[COLUMN_OFFSET], row, r->queue_offset);
    if (wants(c, WANT_TIMESTAMP)) set64(&k[COLUMN_TIMESTAMP], row, r->store_timestamp * unit);
    if (wants(c, WANT_BORN_TIMESTAMP)) set64(&k[COLUMN_BORN_TIMESTAMP], row, r->born_timestamp * unit);
    if (wants(c, WANT_VALUE)) set_end(&k[COLUMN_VALUE_ENDS], row, k[COLUMN_VALUE].n += r->body_length);
    if (wants(c, WANT_ID)) {
        uint8_t *to = k[COLUMN_ID].bytes + k[COLUMN_ID].n;
        k[COLUMN_ID].n += c->wanted.plain ? put_id(to, r, bytes)
                                          : wr_message_id_put((char *)to, bytes + r->store_host_at, wr_store_host_bytes(r->sys_flag), r->physical_offset);
        set_end(&k[COLUMN_ID_ENDS], row, k[COLUMN_ID].n);
    }
    if (wants(c, WANT_TEXTS)) put_texts(c, row, r, bytes);
}

/* Does a message become a row? */
static bool is_wanted(const wr_topic_rows_wanted *w, const wr_record *r, const uint8_t *bytes) {
    const int64_t stored = (int64_t)r->store_timestamp;
    if (stored < w->since || stored >= w->until) return false;
    if (!w->keys_n) return true;
    wr_text keys, key;
    uint32_t at = 0;
    if (!wr_properties_find(bytes + r->properties_at, r->properties_length, "KEYS", &keys)) return false;
    while (wr_keys_next(keys, &at, &key))
        for (uint32_t i = 0; i < w->keys_n; i++)
            if (w->keys[i].n == key.n && !memcmp(w->keys[i].at, key.at, key.n)) return true;
    return false;
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
    static const struct {
        uint8_t column, want;
    } ends[] = {{COLUMN_KEY_ENDS, WANT_KEY},
                {COLUMN_TAG_ENDS, WANT_TAG},
                {COLUMN_VALUE_ENDS, WANT_VALUE},
                {COLUMN_ID_ENDS, WANT_ID},
                {COLUMN_PROPERTIES_ENDS, WANT_PROPERTIES},
                {COLUMN_NAME_ENDS, WANT_PROPERTIES},
                {COLUMN_TEXT_ENDS, WANT_PROPERTIES}};
    static const uint32_t zero;
    for (size_t i = 0; i < COUNT_OF(ends); i++) {
        if (!wants(c, ends[i].want)) continue;
        if (have(&c->columns[ends[i].column], 4)) return ENOMEM;
        put(&c->columns[ends[i].column], &zero, 4);
    }
    return 0;
}

/* The body into its column, if that is wanted: whether it is what was written. */
static inline bool copy_body(const wr_topic_columns *c, const wr_record *r, const uint8_t *bytes) {
    if (!wants(c, WANT_VALUE)) return true;
    const wr_memory *value = &c->columns[COLUMN_VALUE];
    const uint32_t crc = wr_copy_crc32(0, value->bytes + value->n, bytes + r->body_at, r->body_length);
    return (crc & WR_BODY_CRC_MASK) == r->body_crc;
}

int wr_topic_columns_fill(wr_topic_columns *c, wr_topic_read *read) {
    wr_record r;
    const uint8_t *bytes;
    int error = begin(c);
    while (!error && wr_topic_read_next(read, &r, &bytes)) {
        do { /* until its body is what was written, or there is none */
            if (!is_wanted(&c->wanted, &r, bytes)) break;
            if (is_full(c, &r)) error = EOVERFLOW;
            else if (have_row(c, read, &r)) error = ENOMEM;
            if (error) break;
            if (copy_body(c, &r, bytes)) {
                put_row(c, &r, bytes);
                break;
            }
        } while (wr_topic_read_again(read, &r, &bytes));
    }
    count(c);
    return error;
}

PyObject *wr_topic_columns_give(wr_topic_columns *c) {
    PyObject *given = PyTuple_New(1 + WR_NULLS + COLUMNS_N);
    if (!given) return NULL;
    for (int i = 0; given && i < 1 + WR_NULLS + COLUMNS_N; i++) {
        PyObject *one = i > WR_NULLS ? wr_memory_give(&c->columns[i - 1 - WR_NULLS])
                                     : PyLong_FromUnsignedLongLong(i ? c->nulls[i - 1] : c->rows);
        if (one) PyTuple_SET_ITEM(given, i, one);
        else Py_CLEAR(given);
    }
    return given;
}

void wr_topic_columns_free(wr_topic_columns *c) {
    for (int i = 0; i < COLUMNS_N; i++) wr_memory_drop(&c->columns[i]);
    memset(c, 0, sizeof *c);
}
