/* The messages of a browse answer: as a list of deliveries, or as columns for Arrow. */
#include "binding/columns.h"
#include "binding/delivery_body.h"
#include "binding/delivery_type.h"
#include "binding/large.h"
#include "binding/store_side.h"
#include "kernel/delivery.h"

/* The handle and the rows of a browse answer. They are read again and again with the GIL away in between, so that
 * only bytes will do: nobody changes those. NULL with an exception. */
static HandleObject *rows_enter(ClientObject *c, PyObject *const *args, Py_ssize_t given, Py_ssize_t wanted) {
    if (given != wanted) PyErr_Format(PyExc_TypeError, "%zd arguments are wanted: handle, rows, ...", wanted);
    else if (!PyObject_TypeCheck(args[0], wr_module.handle_type)) PyErr_Format(PyExc_TypeError, "handle must be a QueueHandle");
    else if (!PyBytes_CheckExact(args[1])) PyErr_Format(PyExc_TypeError, "rows must be bytes, not %s", Py_TYPE(args[1])->tp_name);
    else if (((HandleObject *)args[0])->client != c) PyErr_Format(PyExc_ValueError, "the handle belongs to another client");
    else if (!wr_handle_enter((HandleObject *)args[0]) && !wr_handle_up_to_date((HandleObject *)args[0])) return (HandleObject *)args[0];
    return NULL;
}

PyObject *wr_deliveries(PyObject *op, PyObject *const *args, Py_ssize_t given) {
    HandleObject *h = rows_enter((ClientObject *)op, args, given, 2);
    if (!h) return NULL;
    const char *rows = PyBytes_AS_STRING(args[1]);
    Py_ssize_t n = PyBytes_GET_SIZE(args[1]) / (Py_ssize_t)sizeof(wr_delivery);
    PyObject *list = PyList_New(n);
    for (Py_ssize_t i = 0; list && i < n; i++) {
        wr_delivery d;
        memcpy((void *)&d, rows + i * (Py_ssize_t)sizeof d, sizeof d);
        bool lost;
        PyObject *message = wr_delivery_fetch(h, &d, 0, false, WR_CALL_DEADLINE, &lost);
        if (message) ((DeliveryObject *)message)->browsed = ((DeliveryObject *)message)->settled = true;
        else if (PyErr_Occurred()) Py_CLEAR(list);
        else message = Py_NewRef(Py_None);
        if (list) PyList_SET_ITEM(list, i, message);
    }
    return list;
}

/* Metadata and payload of a row into their places; NULL: not wanted, and not read if that can be helped. 0, ENOENT,
 * EBADMSG or EUCLEAN (not where the row says), -1. */
static int read_row(HandleObject *h, const wr_delivery *d, uint8_t *meta, uint8_t *body) {
    ClientObject *c = h->client;
    const uint32_t length = d->body_length - d->meta_length;
    const char *reason;
    int error;
    if (!d->meta_length) meta = NULL;
    if (!meta && !body) return 0;
    if (wr_delivery_location(d) == WR_LOCATION_STORE || wr_delivery_location(d) == WR_LOCATION_STORE_TRANSIENT) {
        PyObject *found, *found_meta;
        error = wr_store_fetch(c, wr_delivery_location(d) == WR_LOCATION_STORE_TRANSIENT, d->id, &found, &found_meta);
        if (error) return error;
        if (PyBytes_GET_SIZE(found) != length || (found_meta ? PyBytes_GET_SIZE(found_meta) : 0) != d->meta_length) error = EBADMSG;
        if (!error && meta) memcpy(meta, PyBytes_AS_STRING(found_meta), d->meta_length);
        if (!error && body) memcpy(body, PyBytes_AS_STRING(found), length);
        Py_DECREF(found);
        Py_XDECREF(found_meta);
    } else if (wr_is_large(wr_delivery_location(d))) {
        error = wr_large_of(c, h->server, d, meta, body, &reason);
        if (error < 0) return -1;
    } else {
        if ((!body || wr_body_from_image(c, h->server, d, d->meta_length, body, length)) &&
            (!meta || wr_body_from_image(c, h->server, d, 0, meta, d->meta_length)))
            return 0;
        error = wr_body_from_file(c, h->server, d, meta, body, &reason);
    }
    if (c->ended) return wr_enter_slow(c);
    return error;
}

/* The text of msgpack at *at. false: it is none. */
static bool text_of(const uint8_t **at, const uint8_t *end, const uint8_t **text, uint32_t *n) {
    const uint8_t *p = *at;
    if (p == end) return false;
    const uint8_t kind = *p++;
    if (kind >= 0xa0 && kind <= 0xbf) *n = kind & 0x1f;
    else if (kind == 0xd9 && end - p >= 1) *n = *p++;
    else if (kind == 0xda && end - p >= 2) *n = (uint32_t)p[0] << 8 | p[1], p += 2;
    else return false;
    if (*n > (uint64_t)(end - p)) return false;
    *text = p;
    *at = p + *n;
    return true;
}

/* Exchange and routing key of metadata (engine/catalog/metadata.py). false: it is damaged. */
static bool places_of(const uint8_t *meta, uint32_t length, const uint8_t *texts[2], uint32_t n[2]) {
    const uint8_t *at = meta, *end = meta + length;
    if (!length || *at < 0x92 || *at > 0x9f) return false; /* an array with two elements or more */
    at++;
    return text_of(&at, end, &texts[0], &n[0]) && text_of(&at, end, &texts[1], &n[1]);
}

enum { /* the columns, in the order of the answer */
    TAGS, IDS, VALUE_ENDS, VALUES, EXCHANGE_ENDS, EXCHANGES, KEY_ENDS, KEYS, META_ENDS, METAS, COUNTS, REDELIVERED, COLUMNS_N
};

/* Room for the columns of n rows; what is not wanted has none. false with an exception. */
static bool have_columns(PyObject **parts, uint8_t **to, const Py_ssize_t *sizes) {
    for (int k = 0; k < COLUMNS_N; k++) {
        if (!(parts[k] = PyBytes_FromStringAndSize(NULL, sizes[k]))) return false;
        to[k] = (uint8_t *)PyBytes_AS_STRING(parts[k]);
    }
    return true;
}

static inline void put_end(uint8_t *ends, Py_ssize_t row, uint64_t end) {
    const int32_t short_end = (int32_t)end;
    memcpy(ends + 4 * row, &short_end, 4);
}

/* Client.columns(handle, rows, wanted, name): the messages of a browse answer as columns, ready for Arrow: the number of
 * rows read, and the columns above: i64, 16 bytes, ends as i32 from 0 on, bits. `wanted`: values WR_COLUMNS_VALUES,
 * exchanges and routing keys _PLACES (`name`: the key of a message without metadata; no such columns, if no message has
 * any), metadata _METAS. Columns that are not wanted are empty, and bodies that are not wanted are not read. It stops
 * before the first row whose bytes are not where it says. */
PyObject *wr_columns(PyObject *op, PyObject *const *args, Py_ssize_t given) {
    ClientObject *c = (ClientObject *)op;
    HandleObject *h = rows_enter(c, args, given, 4);
    if (!h) return NULL;
    const long wanted = PyLong_AsLong(args[2]);
    if (wanted == -1 && PyErr_Occurred()) return NULL;
    if (!PyBytes_CheckExact(args[3])) return PyErr_Format(PyExc_TypeError, "name must be bytes, not %s", Py_TYPE(args[3])->tp_name);
    const char *rows = PyBytes_AS_STRING(args[1]), *name = PyBytes_AS_STRING(args[3]);
    const uint64_t name_n = (uint64_t)PyBytes_GET_SIZE(args[3]);
    const bool values = wanted & WR_COLUMNS_VALUES, metas = wanted & WR_COLUMNS_METAS;
    bool places = wanted & WR_COLUMNS_PLACES;
    Py_ssize_t n = PyBytes_GET_SIZE(args[1]) / (Py_ssize_t)sizeof(wr_delivery), i = 0;
    uint64_t values_n = 0, metas_n = 0, plain_n = 0;
    PyObject *answer = NULL, *parts[COLUMNS_N] = {NULL};
    uint8_t *to[COLUMNS_N], *scratch = NULL;
    wr_delivery d;
    for (; i < n; i++) {
        memcpy((void *)&d, rows + i * (Py_ssize_t)sizeof d, sizeof d);
        if (d.meta_length > d.body_length || d.body_length > WR_MESSAGE_BYTES_MOST) break;
        if ((values && values_n + d.body_length > INT32_MAX) || metas_n + d.meta_length + (plain_n + 1) * name_n > INT32_MAX) break;
        values_n += d.body_length - d.meta_length;
        metas_n += d.meta_length;
        plain_n += !d.meta_length;
    }
    n = i;
    places = places && metas_n;
    const Py_ssize_t ends = 4 * (n + 1);
    const Py_ssize_t sizes[COLUMNS_N] = {
        [TAGS] = 8 * n, [IDS] = 16 * n, [VALUE_ENDS] = values ? ends : 0, [VALUES] = values ? (Py_ssize_t)values_n : 0,
        [EXCHANGE_ENDS] = places ? ends : 0, [EXCHANGES] = places ? (Py_ssize_t)metas_n : 0, [KEY_ENDS] = places ? ends : 0,
        [KEYS] = places ? (Py_ssize_t)(metas_n + plain_n * name_n) : 0, [META_ENDS] = metas ? ends : 0,
        [METAS] = metas ? (Py_ssize_t)metas_n : 0, [COUNTS] = 4 * n, [REDELIVERED] = (n + 7) / 8,
    };
    if (!have_columns(parts, to, sizes)) goto done;
    if (places && !metas && !(scratch = malloc(UINT16_MAX))) {
        PyErr_NoMemory();
        goto done;
    }
    memset(to[REDELIVERED], 0, (size_t)sizes[REDELIVERED]);
    uint64_t value_at = 0, meta_at = 0, exchange_at = 0, key_at = 0;
    for (i = 0; i < n; i++) {
        memcpy((void *)&d, rows + i * (Py_ssize_t)sizeof d, sizeof d);
        uint8_t *meta = metas ? to[METAS] + meta_at : scratch;
        int error = read_row(h, &d, meta, values ? to[VALUES] + value_at : NULL);
        if (error < 0) goto done;
        if (error == ENOENT || error == EBADMSG || error == EUCLEAN) break;
        if (error) {
            wr_raise_errno(error, "cannot read the body of a message");
            goto done;
        }
        if (places) {
            const uint8_t *texts[2] = {(const uint8_t *)"", (const uint8_t *)name};
            uint32_t text_n[2] = {0, (uint32_t)name_n};
            if (d.meta_length && !places_of(meta, d.meta_length, texts, text_n)) {
                wr_raise("StoreError", "the metadata of a message is damaged: run warren check");
                goto done;
            }
            put_end(to[EXCHANGE_ENDS], i, exchange_at);
            put_end(to[KEY_ENDS], i, key_at);
            memcpy(to[EXCHANGES] + exchange_at, texts[0], text_n[0]);
            memcpy(to[KEYS] + key_at, texts[1], text_n[1]);
            exchange_at += text_n[0];
            key_at += text_n[1];
        }
        const int32_t count = d.delivery_count;
        memcpy(to[TAGS] + 8 * i, &d.sequence, 8);
        memcpy(to[IDS] + 16 * i, d.id, 16);
        memcpy(to[COUNTS] + 4 * i, &count, 4);
        if (d.flags & WR_DELIVERY_REDELIVERED) to[REDELIVERED][i / 8] |= (uint8_t)(1u << i % 8);
        if (values) put_end(to[VALUE_ENDS], i, value_at);
        if (metas) put_end(to[META_ENDS], i, meta_at);
        value_at += d.body_length - d.meta_length;
        meta_at += d.meta_length;
    }
    if (values) put_end(to[VALUE_ENDS], i, value_at);
    if (metas) put_end(to[META_ENDS], i, meta_at);
    if (places) {
        put_end(to[EXCHANGE_ENDS], i, exchange_at);
        put_end(to[KEY_ENDS], i, key_at);
    }
    if (!(answer = PyTuple_New(1 + COLUMNS_N))) goto done;
    PyObject *read = PyLong_FromSsize_t(i);
    if (!read) {
        Py_CLEAR(answer);
        goto done;
    }
    PyTuple_SET_ITEM(answer, 0, read);
    for (int k = 0; k < COLUMNS_N; k++) PyTuple_SET_ITEM(answer, 1 + k, Py_NewRef(parts[k]));
done:
    free(scratch);
    for (int k = 0; k < COLUMNS_N; k++) Py_XDECREF(parts[k]);
    return answer;
}
