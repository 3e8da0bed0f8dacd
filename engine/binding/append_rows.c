/* Rows of columns as messages of a topic. What is told of a row is packed from the bytes of its columns; only of a row that is refused are
 * objects made, for the words of binding/told.c.
 *
 * A key is as a reader of topics shows it: all keys of the message, with spaces between them. Headers are its properties; names that have a
 * meaning of their own in the log come along, because a row that was read has them, but for those that say how often a message was tried, or
 * which transaction appended it (workers/faces/topic_rows.py: LEFT_BEHIND; the copy is a new message).
 *
 * Invariants: those of binding/append_many.c; a wrong row refuses the whole call, with its number.
 */
#include "binding/append_rows.h"
#include "binding/arguments.h"
#include "binding/row_columns.h"
#include "topics/hash.h"
#include "topics/text.h"

typedef struct {
    wr_append_batch b;
    wr_row_texts bodies, keys, tags;
    wr_row_pairs headers;
    wr_row_numbers queues, born, delays; /* int32, int64, int64 (milliseconds); below 0: none */
    wr_row_names names;
} rows_plan;

static const char *const left_behind[] = {"WARREN_ORIGIN", "WARREN_RETRY", "RETRY_TOPIC", "ORIGIN_MESSAGE_ID", "RECONSUME_TIME", "WARREN_SINK"};

static bool is(wr_row_text text, const char *name) { return text.n == strlen(name) && !memcmp(text.bytes, name, text.n); }

static bool is_left_behind(wr_row_text name) {
    for (size_t i = 0; i < sizeof left_behind / sizeof *left_behind; i++)
        if (is(name, left_behind[i])) return true;
    return false;
}

static bool put(wr_told *told, const char *name, uint64_t name_n, wr_row_text value) {
    const uint32_t n = wr_properties_put(told->bytes + told->n, sizeof told->bytes - told->n, name, name_n, value.bytes, value.n);
    told->n += n;
    return n;
}

/* The keys of a message and the hash of the first. False: they are not such as can be written. */
static bool put_keys(wr_told *told, wr_row_text keys) {
    const wr_text all = {keys.bytes, keys.n};
    uint32_t at = 0;
    wr_text key;
    if (!wr_keys_next(all, &at, &key)) return false;
    told->keyed = true;
    told->hash = wr_java_hash(0, (const char *)key.at, key.n);
    return put(told, "KEYS", 4, keys);
}

/* The headers of a row. 0; 1: told.c says what is wrong; -1. */
static int put_headers(const rows_plan *p, Py_ssize_t row, wr_told *told) {
    const wr_row_pairs *h = &p->headers;
    if (!h->ends || !wr_row_has(&h->valid, row)) return 0;
    for (int32_t pair = h->ends[row]; pair < h->ends[row + 1]; pair++) {
        const int number = (int)(pair - h->ends[row]);
        const wr_row_text name = wr_row_text_at(&h->names, pair), value = wr_row_text_at(&h->values, pair);
        if (!wr_row_has(&h->pair_valid, pair)) return wr_raise("UsageError", "header %d is null: filter such out of the array of headers", number);
        if (!name.valid) return wr_raise("UsageError", "the key of header %d is null: give each header a name", number);
        if (!value.valid) return wr_raise("UsageError", "the value of header %d is null, which a topic cannot keep: leave it out, or give it an empty value", number);
        if (is(name, "KEYS") || is(name, "TAGS")) return wr_raise("UsageError", "header %d is named %s, as the log names keys and tag: give them as the columns key and tag", number, is(name, "KEYS") ? "KEYS" : "TAGS");
        if (is_left_behind(name)) continue;
        for (int32_t other = h->ends[row]; other < pair; other++) {
            const wr_row_text before = wr_row_text_at(&h->names, other);
            if (before.n == name.n && !memcmp(before.bytes, name.bytes, name.n))
                return wr_raise("UsageError", "headers %d and %d have one name, and a message of a topic has each name once: join their values",
                                (int)(other - h->ends[row]), number);
        }
        if (!name.n || !put(told, (const char *)name.bytes, name.n, value)) return 1;
    }
    return 0;
}

static PyObject *text_object(wr_row_text text, const char *what) {
    if (wr_utf8_good(text.bytes, text.n)) return PyUnicode_FromStringAndSize((const char *)text.bytes, text.n);
    wr_raise("UsageError", "its %s is not UTF-8, which it must be in a topic: encode it, as with base64 or hex", what);
    return NULL;
}

/* Raise what is wrong with a row that could not be packed. Returns -1. */
static int refuse(const rows_plan *p, Py_ssize_t row) {
    const wr_row_text key = wr_row_text_at(&p->keys, row), tag = wr_row_text_at(&p->tags, row);
    const wr_row_pairs *h = &p->headers;
    const bool listed = h->ends && wr_row_has(&h->valid, row);
    wr_told told;
    PyObject *properties = PyDict_New(), *keys = Py_NewRef(Py_None), *tag_object = Py_NewRef(Py_None), *text = NULL;
    bool made = properties;
    if (made && key.valid) {
        made = (text = text_object(key, "key"));
        PyObject *split = made ? PyObject_CallMethod(text, "split", "s", " ") : NULL;
        if ((made = split)) {
            Py_SETREF(keys, split);
        }
        Py_XDECREF(text);
    }
    if (made && tag.valid) {
        text = text_object(tag, "tag");
        if ((made = text)) Py_SETREF(tag_object, text);
    }
    for (int32_t pair = listed ? h->ends[row] : 0; made && listed && pair < h->ends[row + 1]; pair++) {
        const wr_row_text name_text = wr_row_text_at(&h->names, pair);
        if (is_left_behind(name_text)) continue;
        PyObject *name = text_object(name_text, "header's key"), *value = name ? text_object(wr_row_text_at(&h->values, pair), "header's value") : NULL;
        made = value && !PyDict_SetItem(properties, name, value);
        Py_XDECREF(name);
        Py_XDECREF(value);
    }
    if (made && !wr_told_pack(&told, keys, tag_object, properties))
        wr_raise("MessageTooLarge", "keys, tag and headers of a message have %d bytes at most: put more into the body", WR_PROPERTIES_BYTES_MAX);
    Py_XDECREF(properties);
    Py_DECREF(keys);
    Py_DECREF(tag_object);
    return -1;
}

static int pack_row(rows_plan *p, Py_ssize_t row, wr_told *told) {
    const wr_row_text key = wr_row_text_at(&p->keys, row), tag = wr_row_text_at(&p->tags, row);
    told->n = 0;
    told->keyed = false;
    bool good = !key.valid || put_keys(told, key);
    good = good && (!tag.valid || (tag.n && put(told, "TAGS", 4, tag)));
    const int wrong = good ? put_headers(p, row, told) : 1;
    if (wrong < 0) return -1;
    if (!wrong && p->delays.buf) {
        char text[24];
        const int n = snprintf(text, sizeof text, "%lld", (long long)((const int64_t *)p->delays.buf)[row]);
        good = put(told, "TIMER_DELAY_MS", 14, (wr_row_text){(const uint8_t *)text, (uint32_t)n, true});
    }
    return wrong || !good || !wr_utf8_good(told->bytes, told->n) ? refuse(p, row) : wr_topic_keyed(p->b.h, told->keyed);
}

static int look_at(rows_plan *p, Py_ssize_t row, uint64_t now_ms, wr_told *told) {
    wr_append_batch *b = &p->b;
    const wr_row_text body = wr_row_text_at(&p->bodies, row);
    const int32_t queue = p->queues.buf ? ((const int32_t *)p->queues.buf)[row] : -1;
    const int64_t born = p->born.buf ? ((const int64_t *)p->born.buf)[row] : -1;
    wr_append_item *to = &b->items[row];
    *to = (wr_append_item){.body = body.bytes, .body_length = body.n, .born_ms = born < 0 ? now_ms : (uint64_t)born};
    if (pack_row(p, row, told) || wr_append_keep(b, told, to)) return -1;
    if (queue >= (int32_t)b->h->queues_n)
        return wr_raise("UsageError", "its partition is %d, and the topic has %u, numbered from 0: drop the column partition, or give one that is there", queue, b->h->queues_n);
    to->queue = queue >= 0 ? (uint32_t)queue : told->keyed ? wr_told_queue(told->hash, b->h->queues_n) : wr_topic_turn(b->h);
    if ((uint64_t)body.n + told->n > b->h->client->a.shared_bytes_max)
        return wr_raise_too_large(b->h->client, (uint64_t)body.n, told->n, true);
    to->size = wr_topic_record_size(b->h, to->told_n, body.n, wr_append_kind_of(b), to->queue);
    b->several |= to->queue != b->items[0].queue;
    return to->size ? 0 : -1;
}

static int look_at_all(rows_plan *p) {
    const uint64_t now_ms = wr_wall_ms();
    wr_told told;
    if (!(p->b.items = PyMem_Malloc((size_t)(p->b.n ? p->b.n : 1) * sizeof *p->b.items))) {
        PyErr_NoMemory();
        return -1;
    }
    for (Py_ssize_t row = 0; row < p->b.n; row++)
        if (look_at(p, row, now_ms, &told)) return wr_raise_of_row(&p->names, row);
    return 0;
}

static int take(rows_plan *p, PyObject *const *args) {
    const Py_ssize_t n = p->b.n;
    p->b.later = args[7]; /* only whether there is one */
    return wr_row_texts_take(args[1], n, "value", &p->bodies) || wr_row_texts_take(args[2], n, "key", &p->keys) ||
                   wr_row_texts_take(args[3], n, "tag", &p->tags) || wr_row_pairs_take(args[4], n, &p->headers) ||
                   wr_row_numbers_take(args[5], n, 4, "partition", &p->queues) || wr_row_numbers_take(args[6], n, 8, "timestamp", &p->born) ||
                   wr_row_numbers_take(args[7], n, 8, "delay", &p->delays)
               ? -1
               : 0;
}

PyObject *wr_topic_append_rows(PyObject *op, PyObject *const *args, Py_ssize_t given) {
    rows_plan p = {.b = {.h = (TopicHandleObject *)op}};
    wr_append_how how;
    uint64_t rows;
    PyObject *answer = NULL;
    WR_ARGUMENTS(12, "rows, bodies, keys, tags, headers, queues, born, delays, level, timeout, wait, numbers");
    if (number_of(args[0], 31, "rows", &rows) || wr_topic_current(p.b.h)) return NULL;
    p.b.n = (Py_ssize_t)rows;
    if (wr_row_names_take(args[11], p.b.n, &p.names)) return NULL;
    if (!take(&p, args) && !look_at_all(&p) && !wr_topic_ready(p.b.h, args[8], args[9], args[10], &how)) {
        how.kind = wr_append_kind_of(&p.b);
        answer = wr_append_go(&p.b, &how);
    } else {
        wr_append_drop(&p.b);
    }
    wr_row_numbers_drop(&p.names.each);
    wr_row_texts_drop(&p.bodies);
    wr_row_texts_drop(&p.keys);
    wr_row_texts_drop(&p.tags);
    wr_row_pairs_drop(&p.headers);
    wr_row_numbers_drop(&p.queues);
    wr_row_numbers_drop(&p.born);
    wr_row_numbers_drop(&p.delays);
    return answer;
}
