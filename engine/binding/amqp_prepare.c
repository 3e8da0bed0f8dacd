/* What messages that came by AMQP are in the engine: metadata, and delivery options, as Client.publish_many takes them.
 *
 * Metadata is [exchange, routing key, nil, nil, nil, properties as they were on the wire] (engine/catalog/metadata.py). Of the properties
 * the engine heeds delivery_mode (2: persistent), priority and expiration (milliseconds).
 *
 * Invariants
 *   Properties that are one object make one metadata object and one tuple of options. */
#include "amqp/arguments.h"
#include "amqp/tables.h"
#include "binding/amqp_values.h"
#include "binding/arguments.h"
#include "kernel/bytes.h"
#include "kernel/protocol.h"

#define TIME_MAX ((1ull << WR_TIME_BITS) - 1)
#define EXPIRATION_MAX 4294967295ull /* RabbitMQ's: milliseconds */
#define EXPIRATION_DIGITS 10
#define DELIVERY_MODE_PERSISTENT 2

typedef struct {
    wr_memory front; /* metadata up to the properties */
    uint64_t now_ms;
    PyObject *meta, *options; /* of the last properties */
    uint8_t odd;
} preparing;

static int text_put(wr_memory *to, PyObject *text, const char *what) {
    Py_ssize_t n;
    const char *bytes = PyUnicode_Check(text) ? PyUnicode_AsUTF8AndSize(text, &n) : NULL;
    if (!bytes) {
        if (!PyErr_Occurred()) PyErr_Format(PyExc_TypeError, "%s must be str", what);
        return -1;
    }
    const int wrong = n < 32    ? wr_amqp_number_put(to, 0xa0u | (uint64_t)n, 1)
                      : n < 256 ? wr_amqp_number_put(to, 0xd9u << 8 | (uint64_t)n, 2)
                                : wr_amqp_number_put(to, 0xdaull << 16 | ((uint64_t)n & 0xffff), 3);
    if (n > UINT16_MAX) {
        PyErr_Format(PyExc_ValueError, "%s has more than %d bytes", what, UINT16_MAX);
        return -1;
    }
    return wrong || wr_amqp_put(to, bytes, (uint64_t)n) ? -1 : 0;
}

/* Metadata with these properties; NULL without an exception: they are too large. */
static PyObject *meta_of(const preparing *now, PyObject *properties) {
    const uint64_t n = (uint64_t)PyBytes_GET_SIZE(properties), head = n < 256 ? 2 : 3, size = now->front.n + head + n;
    if (size > UINT16_MAX) return NULL;
    PyObject *made = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)size);
    if (!made) return NULL;
    uint8_t *to = (uint8_t *)PyBytes_AS_STRING(made);
    memcpy(to, now->front.bytes, now->front.n);
    to += now->front.n;
    *to = n < 256 ? 0xc4 : 0xc5;
    if (n < 256) to[1] = (uint8_t)n;
    else wr_put16(to + 1, (uint16_t)n);
    memcpy(to + head, PyBytes_AS_STRING(properties), n);
    return made;
}

/* Milliseconds of an expiration; false: it is no number, or too large. */
static bool expiration_of(const wr_amqp_value *value, uint64_t *milliseconds) {
    *milliseconds = 0;
    if (!value->n || value->n > EXPIRATION_DIGITS) return false;
    for (uint32_t i = 0; i < value->n; i++) {
        if (value->bytes[i] < '0' || value->bytes[i] > '9') return false;
        *milliseconds = 10 * *milliseconds + (uint64_t)(value->bytes[i] - '0');
    }
    return *milliseconds <= EXPIRATION_MAX;
}

/* Are there copies for other routing keys? */
static bool has_copies(const wr_amqp_value *headers) {
    wr_amqp_span left = {headers->bytes, headers->bytes + headers->n};
    wr_amqp_field field;
    while (wr_amqp_field_next(&left, true, &field) > 0)
        if ((field.name_n == 2 && !memcmp(field.name, "CC", 2)) || (field.name_n == 3 && !memcmp(field.name, "BCC", 3))) return true;
    return false;
}

/* Does an answer go to the channel that publishes? */
static bool asks_for_replies(const wr_amqp_value *reply_to) {
    static const char name[] = "amq.rabbitmq.reply-to";
    return reply_to->n == sizeof name - 1 && !memcmp(reply_to->bytes, name, sizeof name - 1);
}

/* Options, and what is odd. 0, -1. */
static int options_of(preparing *now, const wr_amqp_properties *said) {
    uint64_t life = 0, expires = 0, priority = 0, mode = 0;
    if (wr_amqp_has(said, WR_AMQP_PROPERTY_EXPIRATION)) {
        if (!expiration_of(&said->values[WR_AMQP_PROPERTY_EXPIRATION], &life)) now->odd |= WR_AMQP_ODD_EXPIRATION;
        else expires = life ? now->now_ms + 1 + life : WR_EXPIRES_AT_ONCE; /* as metadata.options: from the next millisecond on */
    }
    if (wr_amqp_has(said, WR_AMQP_PROPERTY_DELIVERY_MODE)) {
        mode = said->values[WR_AMQP_PROPERTY_DELIVERY_MODE].number;
        if (mode != 1 && mode != DELIVERY_MODE_PERSISTENT) now->odd |= WR_AMQP_ODD_DELIVERY_MODE;
    }
    if (wr_amqp_has(said, WR_AMQP_PROPERTY_PRIORITY)) priority = said->values[WR_AMQP_PROPERTY_PRIORITY].number;
    if (wr_amqp_has(said, WR_AMQP_PROPERTY_HEADERS) && has_copies(&said->values[WR_AMQP_PROPERTY_HEADERS])) now->odd |= WR_AMQP_ODD_COPIES;
    if (wr_amqp_has(said, WR_AMQP_PROPERTY_USER_ID)) now->odd |= WR_AMQP_ODD_USER_ID;
    if (wr_amqp_has(said, WR_AMQP_PROPERTY_REPLY_TO) && asks_for_replies(&said->values[WR_AMQP_PROPERTY_REPLY_TO])) now->odd |= WR_AMQP_ODD_REPLY_TO;
    if (expires > TIME_MAX) expires = TIME_MAX;
    PyObject *made = Py_BuildValue("(KiOO)", (unsigned long long)(expires | priority << WR_PRIORITY_SHIFT), 0, Py_None, mode == DELIVERY_MODE_PERSISTENT ? Py_True : Py_False);
    if (!made) return -1;
    Py_XSETREF(now->options, made);
    return 0;
}

/* What these properties make: now->meta, now->options, now->odd. 0, -1. */
static int prepare(preparing *now, PyObject *properties) {
    if (!PyBytes_CheckExact(properties) || PyBytes_GET_SIZE(properties) > UINT32_MAX) {
        PyErr_SetString(PyExc_TypeError, "properties are bytes");
        return -1;
    }
    wr_amqp_properties said;
    const wr_amqp_wrong wrong = wr_amqp_properties_read((const uint8_t *)PyBytes_AS_STRING(properties), (uint32_t)PyBytes_GET_SIZE(properties), &said);
    if (wrong.text) {
        PyErr_Format(PyExc_ValueError, "bad properties: %s", wrong.text);
        return -1;
    }
    now->odd = 0;
    if (options_of(now, &said)) return -1;
    PyObject *made = meta_of(now, properties);
    if (!made) {
        if (PyErr_Occurred()) return -1;
        now->odd |= WR_AMQP_ODD_SIZE;
        made = Py_NewRef(Py_None);
    }
    Py_XSETREF(now->meta, made);
    return 0;
}

static int note_odd(PyObject *odd, Py_ssize_t i, uint8_t why) {
    PyObject *pair = Py_BuildValue("(ni)", i, why);
    const int wrong = pair ? PyList_Append(odd, pair) : -1;
    Py_XDECREF(pair);
    return wrong;
}

/* Each for itself: lists. */
static PyObject *prepare_each(preparing *now, PyObject *list) {
    PyObject *metas = PyList_New(0), *options = PyList_New(0), *odd = PyList_New(0), *last = NULL;
    int wrong = !metas || !options || !odd;
    for (Py_ssize_t i = 0; !wrong && i < PyList_GET_SIZE(list); i++) {
        PyObject *properties = PyList_GET_ITEM(list, i);
        if (properties != last) wrong = prepare(now, properties);
        last = properties;
        wrong = wrong || PyList_Append(metas, now->meta) || PyList_Append(options, now->options) || (now->odd && note_odd(odd, i, now->odd));
    }
    PyObject *made = wrong ? NULL : PyTuple_Pack(3, metas, options, odd);
    Py_XDECREF(metas);
    Py_XDECREF(options);
    Py_XDECREF(odd);
    return made;
}

static PyObject *prepare_all(preparing *now, PyObject *list) {
    const Py_ssize_t n = PyList_GET_SIZE(list);
    bool alike = n > 0;
    for (Py_ssize_t i = 1; alike && i < n; i++) alike = PyList_GET_ITEM(list, i) == PyList_GET_ITEM(list, 0);
    if (!alike) return prepare_each(now, list);
    PyObject *properties = Py_NewRef(PyList_GET_ITEM(list, 0)), *odd = PyList_New(0);
    int wrong = !odd || prepare(now, properties);
    for (Py_ssize_t i = 0; !wrong && now->odd && i < n; i++) wrong = note_odd(odd, i, now->odd);
    PyObject *made = wrong ? NULL : PyTuple_Pack(3, now->meta, now->options, odd);
    Py_XDECREF(odd);
    Py_DECREF(properties);
    return made;
}

static PyObject *amqp_prepare(PyObject *module, PyObject *const *args, Py_ssize_t given) {
    (void)module;
    WR_ARGUMENTS(4, "exchange, key, properties, now_ms");
    preparing now = {.odd = 0};
    if (!PyList_Check(args[2])) return PyErr_Format(PyExc_TypeError, "properties must be a list");
    PyObject *made = NULL;
    if (!number_of(args[3], WR_TIME_BITS - 1, "now_ms", &now.now_ms) && !wr_amqp_number_put(&now.front, 0x96, 1) && !text_put(&now.front, args[0], "exchange") &&
        !text_put(&now.front, args[1], "routing key") && !wr_amqp_number_put(&now.front, 0xc0c0c0, 3))
        made = prepare_all(&now, args[2]);
    Py_XDECREF(now.meta);
    Py_XDECREF(now.options);
    wr_memory_drop(&now.front);
    return made;
}

static PyMethodDef functions[] = {
    FAST("amqp_prepare", amqp_prepare, "amqp_prepare(exchange, key, properties, now_ms) -> (metas, options, odd): what Client.publish_many takes."),
    {NULL, NULL, 0, NULL},
};

int wr_bind_amqp_prepare(PyObject *module) { return PyModule_AddFunctions(module, functions); }
