/* Metadata of rows, packed as engine/catalog/metadata.py declares it: [exchange, routing key, headers, properties, row], without the nils at
 * its end, and nothing at all for a row of which nothing is said but that it goes to the queue.
 *
 * For a queue (the exchange is ''): a key is the routing key, where it can be one and is not the queue's name, which is the routing key of
 * a message without a key; else it lies in `row`. For an exchange the key is the routing key, or what `routing_key` says for all.
 *
 * Invariants
 *   What is packed comes back equal (metadata.key_of_row, headers_of_row), or the row is refused, with its number.
 *   The map of headers has each name once: that of its last pair.
 */
#include "binding/row_metadata.h"
#include "binding/arguments.h"
#include "binding/memory.h"
#include "binding/row_columns.h"
#include "binding/session.h"
#include "topics/text.h"
#include <math.h>

#define ROUTING_KEY_BYTES_MAX 255
#define FIRST_BYTES 65536u
#define WR_HEADERS_MAX 16384 /* of a message: more have no room in its metadata */

typedef struct {
    wr_row_text exchange, routing_key;
    wr_row_texts keys, ids;
    wr_row_pairs headers;
    wr_row_numbers timestamps; /* float64 seconds since 1970; NaN: none */
    bool ids_are_text, no_memory;
    wr_memory to;
} packer;

/* ---- msgpack ---- */

static uint8_t *room(packer *p, uint64_t n) {
    if (wr_memory_have(&p->to, n, FIRST_BYTES)) {
        p->no_memory = true;
        return NULL;
    }
    uint8_t *at = p->to.bytes + p->to.n;
    p->to.n += n;
    return at;
}

static void put_byte(packer *p, uint8_t byte) {
    uint8_t *at = room(p, 1);
    if (at) *at = byte;
}

static void put_number(packer *p, uint8_t kind, uint64_t number, int bytes) {
    uint8_t *at = room(p, 1 + (uint64_t)bytes);
    if (!at) return;
    *at = kind;
    for (int i = 0; i < bytes; i++) at[1 + i] = (uint8_t)(number >> 8 * (bytes - 1 - i));
}

static void put_bytes(packer *p, const void *bytes, uint64_t n) {
    uint8_t *at = n ? room(p, n) : NULL;
    if (at) memcpy(at, bytes, n);
}

static void put_text(packer *p, const void *bytes, uint32_t n) {
    if (n < 32) put_byte(p, (uint8_t)(0xa0 | n));
    else if (n < 256) put_number(p, 0xd9, n, 1);
    else if (n < 65536) put_number(p, 0xda, n, 2);
    else put_number(p, 0xdb, n, 4);
    put_bytes(p, bytes, n);
}

static void put_binary(packer *p, const void *bytes, uint32_t n) {
    if (n < 256) put_number(p, 0xc4, n, 1);
    else if (n < 65536) put_number(p, 0xc5, n, 2);
    else put_number(p, 0xc6, n, 4);
    put_bytes(p, bytes, n);
}

static void put_nil(packer *p) { put_byte(p, 0xc0); }

static void put_map(packer *p, uint32_t n) {
    if (n < 16) put_byte(p, (uint8_t)(0x80 | n));
    else put_number(p, 0xde, n, 2); /* more do not fit into metadata */
}

static void put_array(packer *p, uint32_t n) {
    if (n < 16) put_byte(p, (uint8_t)(0x90 | n));
    else put_number(p, 0xdc, n, 2);
}

/* ---- headers ---- */

static inline wr_row_text name_at(const packer *p, int32_t pair) { return wr_row_text_at(&p->headers.names, pair); }

static bool same(wr_row_text a, wr_row_text b) { return a.n == b.n && (!a.n || !memcmp(a.bytes, b.bytes, a.n)); }

/* Does its name come again behind it, before `end`? */
static bool comes_again(const packer *p, int32_t pair, int32_t end) {
    const wr_row_text name = name_at(p, pair);
    for (int32_t other = pair + 1; other < end; other++)
        if (same(name, name_at(p, other))) return true;
    return false;
}

/* Are the headers of a row such as have a place? *different: names. */
static int check_headers(const packer *p, int32_t from, int32_t end, uint32_t *different) {
    *different = 0;
    if (end - from > WR_HEADERS_MAX) return wr_raise("MessageTooLarge", "%d headers are more than %d: send more as the body", (int)(end - from), WR_HEADERS_MAX);
    for (int32_t pair = from; pair < end; pair++) {
        if (!wr_row_has(&p->headers.pair_valid, pair)) return wr_raise("UsageError", "header %d is null: filter such out of the array of headers", (int)(pair - from));
        const wr_row_text name = name_at(p, pair), value = wr_row_text_at(&p->headers.values, pair);
        if (!name.valid) return wr_raise("UsageError", "the key of header %d is null: give each header a name", (int)(pair - from));
        if (!wr_utf8_good(name.bytes, name.n)) return wr_raise("UsageError", "the key of header %d is not UTF-8", (int)(pair - from));
        if (p->headers.value_is_text && value.valid && !wr_utf8_good(value.bytes, value.n))
            return wr_raise("UsageError", "the value of header %d is a string that is not UTF-8: give it as binary", (int)(pair - from));
        *different += !comes_again(p, pair, end);
    }
    return 0;
}

static void put_value(packer *p, int32_t pair) {
    const wr_row_text value = wr_row_text_at(&p->headers.values, pair);
    if (!value.valid) put_nil(p);
    else if (p->headers.value_is_text) put_text(p, value.bytes, value.n);
    else put_binary(p, value.bytes, value.n);
}

static void put_pairs(packer *p, int32_t from, int32_t end, bool last_of_each) {
    for (int32_t pair = from; pair < end; pair++) {
        if (last_of_each && comes_again(p, pair, end)) continue;
        const wr_row_text name = name_at(p, pair);
        if (!last_of_each) put_array(p, 2);
        put_text(p, name.bytes, name.n);
        put_value(p, pair);
    }
}

/* ---- a row ---- */

/* Its routing key, and its key where that is none. 0, -1. */
static int keys_of(const packer *p, Py_ssize_t row, wr_row_text *routing_key, wr_row_text *beside) {
    const wr_row_text key = wr_row_text_at(&p->keys, row);
    *routing_key = p->routing_key;
    *beside = (wr_row_text){NULL, 0, false};
    if (!key.valid) return 0;
    const bool fits = key.n <= ROUTING_KEY_BYTES_MAX && wr_utf8_good(key.bytes, key.n);
    if (p->exchange.n) {
        *routing_key = key;
        if (fits) return 0;
        if (key.n > ROUTING_KEY_BYTES_MAX)
            return wr_raise("UsageError", "its key has %u bytes; the routing key of a message has %d at most", key.n, ROUTING_KEY_BYTES_MAX);
        return wr_raise("UsageError", "its key is not UTF-8, which the routing key of a message must be: encode it, as with base64 or hex");
    }
    *(fits && !same(key, p->routing_key) ? routing_key : beside) = key;
    return 0;
}

static int pack_row(packer *p, Py_ssize_t row) {
    const bool listed = p->headers.ends && wr_row_has(&p->headers.valid, row);
    const int32_t from = listed ? p->headers.ends[row] : 0, end = listed ? p->headers.ends[row + 1] : 0;
    const wr_row_text id = wr_row_text_at(&p->ids, row);
    const double when = p->timestamps.buf ? ((const double *)p->timestamps.buf)[row] : NAN;
    uint32_t different;
    wr_row_text routing_key, beside;
    if (keys_of(p, row, &routing_key, &beside) || check_headers(p, from, end, &different)) return -1;
    if (id.valid && !id.n) return wr_raise("UsageError", "its message_id is empty: give null for none");
    if (id.valid && p->ids_are_text && !wr_utf8_good(id.bytes, id.n)) return wr_raise("UsageError", "its message_id is a string that is not UTF-8: give it as binary");
    const bool repeated = different < (uint32_t)(end - from), properties = id.valid || !isnan(when), more = beside.valid || repeated;
    if (!p->exchange.n && !listed && !properties && !more && same(routing_key, p->routing_key)) return 0;
    const uint64_t before = p->to.n;
    put_array(p, more ? 5 : properties ? 4 : listed ? 3 : 2);
    put_text(p, p->exchange.bytes, p->exchange.n);
    put_text(p, routing_key.bytes, routing_key.n);
    if (listed) {
        put_map(p, different);
        put_pairs(p, from, end, true);
    } else if (properties || more) {
        put_nil(p);
    }
    if (properties) {
        put_map(p, (uint32_t)id.valid + !isnan(when));
        if (!isnan(when)) {
            uint64_t bits;
            memcpy(&bits, &when, sizeof bits);
            put_text(p, "timestamp", 9);
            put_number(p, 0xcb, bits, 8);
        }
        if (id.valid) {
            put_text(p, "message_id", 10);
            if (p->ids_are_text) put_text(p, id.bytes, id.n);
            else put_binary(p, id.bytes, id.n);
        }
    } else if (more) {
        put_nil(p);
    }
    if (more) {
        put_array(p, repeated ? 2 : 1);
        if (beside.valid) put_binary(p, beside.bytes, beside.n);
        else put_nil(p);
        if (repeated) {
            put_array(p, (uint32_t)(end - from));
            put_pairs(p, from, end, false);
        }
    }
    if (p->no_memory) {
        PyErr_NoMemory();
        return -1;
    }
    if (p->to.n - before <= UINT16_MAX) return 0;
    return wr_raise("MessageTooLarge", "key, headers and properties of a message take %llu bytes, and may take %d: send large things as the body",
                    (unsigned long long)(p->to.n - before), UINT16_MAX);
}

static PyObject *pack(packer *p, Py_ssize_t rows, const wr_row_names *names) {
    PyObject *ends = PyBytes_FromStringAndSize(NULL, (rows + 1) * 4);
    if (!ends) return NULL;
    for (Py_ssize_t row = 0; row <= rows; row++) {
        if (p->to.n > INT32_MAX) wr_raise("UsageError", "keys and headers of %zd rows take more than 2 GiB: write fewer at once, with a smaller batchRows", rows);
        const int32_t end = (int32_t)p->to.n;
        memcpy(PyBytes_AS_STRING(ends) + 4 * row, &end, 4);
        if (!PyErr_Occurred() && row < rows && pack_row(p, row)) wr_raise_of_row(names, row);
        if (PyErr_Occurred()) {
            Py_DECREF(ends);
            return NULL;
        }
    }
    PyObject *bytes = wr_memory_give(&p->to);
    return bytes ? Py_BuildValue("(NN)", ends, bytes) : (Py_DECREF(ends), NULL);
}

static int text_of(PyObject *given, wr_row_text *to) {
    Py_ssize_t n;
    const char *text = PyUnicode_AsUTF8AndSize(given, &n);
    if (!text) return -1;
    *to = (wr_row_text){(const uint8_t *)text, (uint32_t)n, true};
    return 0;
}

PyObject *wr_row_metadata(PyObject *module, PyObject *const *args, Py_ssize_t given) {
    (void)module;
    WR_ARGUMENTS(9, "rows, exchange, routing_key, keys, headers, timestamps, message_ids, ids_are_text, numbers");
    packer p = {.ids_are_text = args[7] == Py_True};
    uint64_t rows;
    wr_row_names names = {.first = 0};
    PyObject *made = NULL;
    if (!number_of(args[0], 31, "rows", &rows) && !wr_row_names_take(args[8], (Py_ssize_t)rows, &names) && !text_of(args[1], &p.exchange) &&
        !text_of(args[2], &p.routing_key) && !wr_row_texts_take(args[3], (Py_ssize_t)rows, "key", &p.keys) &&
        !wr_row_pairs_take(args[4], (Py_ssize_t)rows, &p.headers) &&
        !wr_row_numbers_take(args[5], (Py_ssize_t)rows, 8, "timestamp", &p.timestamps) &&
        !wr_row_texts_take(args[6], (Py_ssize_t)rows, "message_id", &p.ids))
        made = pack(&p, (Py_ssize_t)rows, &names);
    wr_memory_drop(&p.to);
    wr_row_numbers_drop(&names.each);
    wr_row_texts_drop(&p.keys);
    wr_row_texts_drop(&p.ids);
    wr_row_pairs_drop(&p.headers);
    wr_row_numbers_drop(&p.timestamps);
    return made;
}
