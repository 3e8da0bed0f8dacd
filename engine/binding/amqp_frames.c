/* Frames of AMQP that the gateway sends: methods, contents, deliveries of many messages.
 *
 * Invariants
 *   Each call makes one bytes object, of exactly its size, and copies each body once.
 *   Messages that follow each other with the same metadata are looked at once. */
#include "amqp/arguments.h"
#include "binding/amqp_values.h"
#include "binding/arguments.h"
#include "binding/delivery_type.h"
#include "kernel/bytes.h"

#define HEAD 7u
#define FRAME(payload) (HEAD + (uint64_t)(payload) + 1)
#define HEADER 12u /* octets of a content header in front of its properties */
#define CLASS_BASIC (WR_AMQP_BASIC_PUBLISH >> 16)
#define DELIVERY_MODE_PERSISTENT 2

/* ---- writing ---- */

static uint8_t *head_write(uint8_t *to, uint8_t type, uint16_t channel, uint32_t n) {
    to[0] = type;
    wr_put16(to + 1, channel);
    wr_put32(to + 3, n);
    return to + HEAD;
}

static uint8_t *end_write(uint8_t *to) {
    *to = WR_AMQP_FRAME_END;
    return to + 1;
}

static uint8_t *bytes_write(uint8_t *to, const void *bytes, uint64_t n) {
    if (n) memcpy(to, bytes, n);
    return to + n;
}

static uint8_t *short_write(uint8_t *to, const uint8_t *text, uint8_t n) {
    *to = n;
    return bytes_write(to + 1, text, n);
}

/* Bytes of a body that one frame has. */
static uint64_t frame_room(uint64_t frame_max) { return frame_max > WR_AMQP_FRAME_OVERHEAD ? frame_max - WR_AMQP_FRAME_OVERHEAD : UINT32_MAX - WR_AMQP_FRAME_OVERHEAD; }

static uint64_t content_size(uint64_t properties_n, uint64_t body_n, uint64_t room) {
    return FRAME(HEADER + properties_n) + body_n + (body_n + room - 1) / room * WR_AMQP_FRAME_OVERHEAD;
}

/* The header of a content, and its body. */
static uint8_t *content_write(uint8_t *to, uint16_t channel, const uint8_t *properties, uint32_t properties_n, const uint8_t *body, uint64_t body_n, uint64_t room) {
    to = head_write(to, WR_AMQP_FRAME_HEADER, channel, HEADER + properties_n);
    wr_put16(to, CLASS_BASIC);
    wr_put16(to + 2, 0);
    wr_put64(to + 4, body_n);
    to = end_write(bytes_write(to + HEADER, properties, properties_n));
    while (body_n) {
        const uint32_t n = body_n < room ? (uint32_t)body_n : (uint32_t)room;
        to = end_write(bytes_write(head_write(to, WR_AMQP_FRAME_BODY, channel, n), body, n));
        body += n;
        body_n -= n;
    }
    return to;
}

/* A frame with a method. 0, -1. */
static int method_put(wr_memory *to, PyObject *channel, PyObject *id, PyObject *arguments, uint16_t *channel_number, const wr_amqp_method **method) {
    uint64_t number, wanted;
    if (number_of(channel, 16, "channel", &number) || number_of(id, 32, "method", &wanted)) return -1;
    *method = wr_amqp_method_of((uint32_t)wanted);
    if (!*method) {
        PyErr_Format(PyExc_ValueError, "there is no method %u of class %u", (unsigned)(wanted & 0xffff), (unsigned)(wanted >> 16));
        return -1;
    }
    *channel_number = (uint16_t)number;
    if (wr_amqp_put(to, "\0\0\0\0\0\0", HEAD) || wr_amqp_number_put(to, wanted, 4) || wr_amqp_arguments_put(to, *method, arguments)) return -1;
    if (to->n - HEAD > UINT32_MAX) {
        PyErr_SetString(PyExc_OverflowError, "arguments of more than 4 GiB");
        return -1;
    }
    head_write(to->bytes, WR_AMQP_FRAME_METHOD, *channel_number, (uint32_t)(to->n - HEAD));
    return wr_amqp_number_put(to, WR_AMQP_FRAME_END, 1);
}

static PyObject *amqp_method(PyObject *module, PyObject *const *args, Py_ssize_t given) {
    (void)module;
    WR_ARGUMENTS(3, "channel, method id, arguments");
    wr_memory to = {.n = 0};
    const wr_amqp_method *method;
    uint16_t channel;
    PyObject *made = method_put(&to, args[0], args[1], args[2], &channel, &method) ? NULL : PyBytes_FromStringAndSize((const char *)to.bytes, (Py_ssize_t)to.n);
    wr_memory_drop(&to);
    return made;
}

static PyObject *amqp_content(PyObject *module, PyObject *const *args, Py_ssize_t given) {
    (void)module;
    WR_ARGUMENTS(6, "channel, method id, arguments, properties, body, frame_max");
    wr_memory to = {.n = 0};
    const wr_amqp_method *method;
    uint16_t channel;
    uint64_t frame_max;
    Py_buffer body = {.obj = NULL};
    PyObject *made = NULL;
    if (!PyBytes_Check(args[3])) return PyErr_Format(PyExc_TypeError, "properties are bytes");
    if (number_of(args[5], 32, "frame_max", &frame_max) || method_put(&to, args[0], args[1], args[2], &channel, &method)) goto done;
    if (!method->content) {
        PyErr_Format(PyExc_ValueError, "%s has no content", method->name);
        goto done;
    }
    if (PyObject_GetBuffer(args[4], &body, PyBUF_SIMPLE)) goto done;
    const uint64_t properties_n = (uint64_t)PyBytes_GET_SIZE(args[3]), room = frame_room(frame_max);
    if (properties_n > UINT32_MAX - HEADER) {
        PyErr_SetString(PyExc_OverflowError, "properties of more than 4 GiB");
        goto done;
    }
    made = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)(to.n + content_size(properties_n, (uint64_t)body.len, room)));
    if (!made) goto done;
    uint8_t *at = bytes_write((uint8_t *)PyBytes_AS_STRING(made), to.bytes, to.n);
    content_write(at, channel, (const uint8_t *)PyBytes_AS_STRING(args[3]), (uint32_t)properties_n, body.buf, (uint64_t)body.len, room);
done:
    drop_buffer(&body);
    wr_memory_drop(&to);
    return made;
}

/* ---- deliveries ---- */

/* What a message says of itself. */
typedef struct {
    const uint8_t *exchange, *key, *properties;
    uint32_t properties_n;
    uint8_t exchange_n, key_n;
} told;

/* A msgpack text or binary; NULL: it is none, or longer than `most`. */
static const uint8_t *msgpack_bytes(const uint8_t **at, const uint8_t *end, bool binary, uint32_t most, uint32_t *n) {
    const uint8_t *from = *at;
    if (from == end) return NULL;
    const uint8_t kind = *from++;
    if (!binary && kind >> 5 == 5) {
        *n = kind & 31;
    } else {
        const uint8_t first = binary ? 0xc4 : 0xd9;
        if (kind < first || kind > first + 2 || end - from < 1 << (kind - first)) return NULL;
        *n = 0;
        for (int i = 0; i < 1 << (kind - first); i++) *n = *n << 8 | *from++;
    }
    if (*n > most || (uint64_t)(end - from) < *n) return NULL;
    *at = from + *n;
    return from;
}

/* Metadata of a message that came by AMQP, as amqp_prepare packs it. */
static bool is_amqp(PyObject *meta, told *to) {
    if (!meta) return false;
    const uint8_t *at = (const uint8_t *)PyBytes_AS_STRING(meta), *end = at + PyBytes_GET_SIZE(meta);
    uint32_t n;
    if (at == end || *at++ != 0x96) return false;
    if (!(to->exchange = msgpack_bytes(&at, end, false, 255, &n))) return false;
    to->exchange_n = (uint8_t)n;
    if (!(to->key = msgpack_bytes(&at, end, false, 255, &n))) return false;
    to->key_n = (uint8_t)n;
    if (end - at < 3 || at[0] != 0xc0 || at[1] != 0xc0 || at[2] != 0xc0) return false;
    at += 3;
    to->properties = msgpack_bytes(&at, end, true, UINT16_MAX, &to->properties_n);
    return to->properties && at == end && to->properties_n >= 2;
}

/* Properties that say nothing of delivery mode and priority, with those that the engine knows. New reference. */
static PyObject *properties_with(PyObject *properties, const DeliveryObject *m) {
    const uint8_t *from = (const uint8_t *)PyBytes_AS_STRING(properties);
    wr_amqp_properties found;
    const wr_amqp_wrong wrong = wr_amqp_properties_read(from, (uint32_t)PyBytes_GET_SIZE(properties), &found);
    if (wrong.text) return PyErr_Format(PyExc_ValueError, "bad properties: %s", wrong.text);
    const bool mode = !wr_amqp_has(&found, WR_AMQP_PROPERTY_DELIVERY_MODE), priority = m->priority && !wr_amqp_has(&found, WR_AMQP_PROPERTY_PRIORITY);
    uint16_t flags = found.flags;
    uint32_t at = 2;
    for (int i = 0; i < WR_AMQP_PROPERTY_DELIVERY_MODE; i++)
        if (wr_amqp_has(&found, i)) at += found.values[i].n + (i == WR_AMQP_PROPERTY_HEADERS ? 4 : 1);
    const uint32_t mode_n = !mode && wr_amqp_has(&found, WR_AMQP_PROPERTY_DELIVERY_MODE), rest = (uint32_t)PyBytes_GET_SIZE(properties) - at - mode_n;
    PyObject *made = PyBytes_FromStringAndSize(NULL, PyBytes_GET_SIZE(properties) + mode + priority);
    if (!made) return NULL;
    uint8_t *to = (uint8_t *)PyBytes_AS_STRING(made);
    if (mode) flags |= 1 << (15 - WR_AMQP_PROPERTY_DELIVERY_MODE);
    if (priority) flags |= 1 << (15 - WR_AMQP_PROPERTY_PRIORITY);
    bytes_write(to, from, at);
    wr_put16(to, flags);
    to += at;
    if (mode) *to++ = m->persistent ? DELIVERY_MODE_PERSISTENT : 1;
    else to = bytes_write(to, from + at, mode_n);
    if (priority) *to++ = m->priority;
    bytes_write(to, from + at + mode_n, rest);
    return made;
}

/* One call of amqp_deliver. */
typedef struct {
    PyObject *tag, *other;
    PyObject *kept; /* what `other` gave, for as long as the call lasts */
    const DeliveryObject *last;
    told said; /* of the last */
    uint16_t channel;
    uint8_t tag_n;
    uint64_t first, room;
} delivering;

static bool same_meta(const DeliveryObject *a, const DeliveryObject *b) {
    if (!a->meta || !b->meta) return !a->meta && !b->meta;
    return a->meta == b->meta || (PyBytes_GET_SIZE(a->meta) == PyBytes_GET_SIZE(b->meta) &&
                                  !memcmp(PyBytes_AS_STRING(a->meta), PyBytes_AS_STRING(b->meta), (size_t)PyBytes_GET_SIZE(a->meta)));
}

/* A short string of what `other` gave. 0, -1. */
static int short_of(PyObject *text, const char *what, const uint8_t **bytes, uint8_t *n) {
    Py_ssize_t size = 0;
    *bytes = PyUnicode_Check(text) ? (const uint8_t *)PyUnicode_AsUTF8AndSize(text, &size) : NULL;
    if (*bytes && size <= 255) {
        *n = (uint8_t)size;
        return 0;
    }
    if (!PyErr_Occurred()) PyErr_Format(PyExc_ValueError, "%s must be str of at most 255 bytes", what);
    return -1;
}

/* What a message that did not come by AMQP says of itself: Python knows. 0, -1. */
static int ask_other(delivering *now, const DeliveryObject *m) {
    PyObject *answer = PyObject_CallOneArg(now->other, m->meta ? m->meta : Py_None);
    if (!answer) return -1;
    PyObject *exchange, *key, *properties;
    int wrong = !PyTuple_Check(answer) || !PyArg_ParseTuple(answer, "OOO!", &exchange, &key, &PyBytes_Type, &properties);
    if (wrong && !PyErr_Occurred()) PyErr_SetString(PyExc_TypeError, "(exchange, key, properties) is wanted of a message that is not AMQP's");
    if (!wrong) wrong = short_of(exchange, "exchange", &now->said.exchange, &now->said.exchange_n) || short_of(key, "routing key", &now->said.key, &now->said.key_n);
    PyObject *whole = wrong ? NULL : properties_with(properties, m);
    if (!whole || PyList_Append(now->kept, answer) || PyList_Append(now->kept, whole)) wrong = -1;
    if (!wrong) {
        now->said.properties = (const uint8_t *)PyBytes_AS_STRING(whole);
        now->said.properties_n = (uint32_t)PyBytes_GET_SIZE(whole);
    }
    Py_XDECREF(whole);
    Py_DECREF(answer);
    return wrong ? -1 : 0;
}

/* now->said becomes what m says. 0, -1. */
static int look(delivering *now, const DeliveryObject *m) {
    if (now->last && same_meta(now->last, m)) {
        const bool engine_says = now->last->persistent == m->persistent && now->last->priority == m->priority;
        told found;
        if (engine_says || is_amqp(m->meta, &found)) return 0;
    }
    now->last = m;
    return is_amqp(m->meta, &now->said) ? 0 : ask_other(now, m);
}

static uint64_t deliver_size(const delivering *now, const told *said, uint64_t body_n) {
    return FRAME(4 + 1 + now->tag_n + 8 + 1 + 1 + said->exchange_n + 1 + said->key_n) + content_size(said->properties_n, body_n, now->room);
}

static uint8_t *deliver_write(uint8_t *to, const delivering *now, const told *said, const DeliveryObject *m, uint64_t tag, const uint8_t *consumer) {
    uint8_t *at = head_write(to, WR_AMQP_FRAME_METHOD, now->channel, 4u + 1 + now->tag_n + 8 + 1 + 1 + said->exchange_n + 1 + said->key_n);
    wr_put32(at, WR_AMQP_BASIC_DELIVER);
    at = short_write(at + 4, consumer, now->tag_n);
    wr_put64(at, tag);
    at[8] = m->redelivered;
    at = short_write(at + 9, said->exchange, said->exchange_n);
    at = end_write(short_write(at, said->key, said->key_n));
    return content_write(at, now->channel, said->properties, said->properties_n, (const uint8_t *)PyBytes_AS_STRING(m->body), (uint64_t)PyBytes_GET_SIZE(m->body), now->room);
}

/* `items` is a tuple of ours. */
static PyObject *deliver_all(delivering *now, PyObject *items, const uint8_t *consumer) {
    const Py_ssize_t n = PyTuple_GET_SIZE(items);
    told *each = PyMem_Malloc((size_t)(n ? n : 1) * sizeof *each);
    if (!each) return PyErr_NoMemory();
    uint64_t size = 0;
    PyObject *made = NULL;
    for (Py_ssize_t i = 0; i < n; i++) {
        PyObject *item = PyTuple_GET_ITEM(items, i);
        if (!PyObject_TypeCheck(item, wr_module.delivery_type)) {
            PyErr_SetString(PyExc_TypeError, "deliveries are of type Delivery");
            goto done;
        }
        const DeliveryObject *m = (const DeliveryObject *)item;
        if (look(now, m)) goto done;
        each[i] = now->said;
        size += deliver_size(now, &now->said, (uint64_t)PyBytes_GET_SIZE(m->body));
    }
    made = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)size);
    if (!made) goto done;
    uint8_t *to = (uint8_t *)PyBytes_AS_STRING(made);
    for (Py_ssize_t i = 0; i < n; i++) to = deliver_write(to, now, &each[i], (const DeliveryObject *)PyTuple_GET_ITEM(items, i), now->first + (uint64_t)i, consumer);
done:
    PyMem_Free(each);
    return made;
}

static PyObject *amqp_deliver(PyObject *module, PyObject *const *args, Py_ssize_t given) {
    (void)module;
    WR_ARGUMENTS(6, "channel, consumer tag, first delivery tag, deliveries, frame_max, other");
    uint64_t channel, frame_max;
    delivering now = {.tag = args[1], .other = args[5]};
    const uint8_t *consumer;
    if (number_of(args[0], 16, "channel", &channel) || short_of(args[1], "consumer tag", &consumer, &now.tag_n) ||
        number_of(args[2], 64, "delivery tag", &now.first) || number_of(args[4], 32, "frame_max", &frame_max))
        return NULL;
    now.channel = (uint16_t)channel;
    now.room = frame_room(frame_max);
    PyObject *items = PySequence_Tuple(args[3]); /* `other` is Python, and may change a list */
    now.kept = items ? PyList_New(0) : NULL;
    PyObject *made = now.kept ? deliver_all(&now, items, consumer) : NULL;
    Py_XDECREF(now.kept);
    Py_XDECREF(items);
    return made;
}

/* What was sent is not kept in memory until it is acked: very many may be unacked. */
static PyObject *amqp_shed(PyObject *module, PyObject *list) {
    (void)module;
    if (!PyList_Check(list)) return PyErr_Format(PyExc_TypeError, "a list of deliveries is wanted");
    PyObject *nothing = PyBytes_FromStringAndSize(NULL, 0);
    if (!nothing) return NULL;
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(list); i++) {
        PyObject *item = PyList_GET_ITEM(list, i);
        if (!PyObject_TypeCheck(item, wr_module.delivery_type)) {
            Py_DECREF(nothing);
            return PyErr_Format(PyExc_TypeError, "deliveries are of type Delivery");
        }
        DeliveryObject *m = (DeliveryObject *)item;
        PyObject *body = m->body;
        m->body = Py_NewRef(nothing);
        Py_DECREF(body);
        Py_CLEAR(m->meta);
    }
    Py_DECREF(nothing);
    Py_RETURN_NONE;
}

static PyMethodDef functions[] = {
    FAST("amqp_method", amqp_method, "amqp_method(channel, method id, arguments): a frame."),
    FAST("amqp_content", amqp_content, "amqp_content(channel, method id, arguments, properties, body, frame_max): the frames of a method with a content."),
    FAST("amqp_deliver", amqp_deliver, "amqp_deliver(channel, consumer tag, first delivery tag, deliveries, frame_max, other): basic.deliver of each Delivery."),
    {"amqp_shed", amqp_shed, METH_O, "amqp_shed(deliveries): let go of the bodies and metadata of a list of them."},
    {NULL, NULL, 0, NULL},
};

int wr_bind_amqp_frames(PyObject *module) { return PyModule_AddFunctions(module, functions); }
