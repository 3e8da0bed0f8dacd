/* The type Delivery: one message in hand, and its settling.
 *
 * Invariants
 *   A settled message is not settled again; ack(multiple) settles what was handed out, never what is only pending.
 *   Of a queue with an ack timeout nothing is submitted for what the worker has taken back: whoever settles it is told.
 */
#include "binding/delivery_type.h"
#include "kernel/delivery.h"
#include <structmember.h>

#define TAGS_MAX 4096u

PyObject *wr_delivery_new(HandleObject *h, const wr_delivery *d, PyObject *body, PyObject *meta) {
    DeliveryObject *m = (DeliveryObject *)h->messages->tp_alloc(h->messages, 0);
    if (!m) {
        Py_DECREF(body);
        Py_XDECREF(meta);
        return NULL;
    }
    /* A class made in Python is always one for the collector of cycles, which then goes through every thousand
     * messages and, as they are many, through all objects of the process: half of what a consumer did. It can visit
     * nothing in them: their type has no tp_traverse, and without slots or a dictionary of its own the class adds
     * none. */
    if (PyType_IS_GC(h->messages) && !h->messages->tp_dictoffset && h->messages->tp_basicsize == sizeof(DeliveryObject))
        PyObject_GC_UnTrack(m);
    m->body = body;
    m->meta = meta;
    m->handle = (HandleObject *)Py_NewRef(h);
    m->tag = d->sequence;
    memcpy(m->id, d->id, 16);
    m->delivery_count = d->delivery_count;
    m->redelivered = d->flags & WR_DELIVERY_REDELIVERED;
    m->priority = d->priority;
    m->reason = d->flags >> WR_DELIVERY_REASON_SHIFT & WR_DELIVERY_REASON_MASK;
    const uint8_t location = wr_delivery_location(d);
    m->persistent = location != WR_LOCATION_JOURNAL_TRANSIENT && location != WR_LOCATION_STORE_TRANSIENT &&
                    location != WR_LOCATION_LARGE_TRANSIENT;
    return (PyObject *)m;
}

/* ---- settling --------------------------------------------------------------------------------------------------- */

/* The node stops, or has stopped: is anybody left who will read what is submitted now? */
static __attribute__((noinline)) int settle_late(HandleObject *h, uint32_t state) {
    wr_server *worker = wr_superblock_server(h->client->a.port.super, h->server);
    if (state == WR_NODE_DRAINING && atomic_load_explicit(&worker->state, memory_order_acquire) != WR_SERVER_DOWN) return 0;
    return wr_raise("PeerLost", "the node was stopped since this message was delivered: it is in its queue again, and "
                                "the next node delivers it, marked redelivered");
}

/* Is the message still in the hands of this attachment, and its worker there? */
static int settle_enter(HandleObject *h) {
    if (!wr_enter(h->client) && h->registered) {
        uint32_t state = atomic_load_explicit(&h->client->a.port.super->state, memory_order_acquire);
        return __builtin_expect(state > WR_NODE_RUNNING, 0) ? settle_late(h, state) : 0;
    }
    if (!PyErr_Occurred() || PyErr_ExceptionMatches(wr_module.attachment_lost)) {
        PyErr_Clear();
        wr_raise("PeerLost", "this message was delivered to an attachment that has ended: it returns to its queue, redelivered");
    }
    return -1;
}

/* The worker took messages back before they were settled: `n` of `of` (at `indexes`, if given), or this one. */
static int too_late(HandleObject *h, uint8_t op, uint8_t flags, uint64_t tag, Py_ssize_t n, Py_ssize_t of, PyObject *indexes) {
    const char *what = op == WR_OP_ACK ? "ack" : flags & WR_FLAG_REQUEUE ? "nack" : "reject";
    char limit[32];
    PyOS_snprintf(limit, sizeof limit, "%g", h->ack_timeout);
    PyObject *name = PyObject_GetAttrString(h->owner, "name"), *text = NULL;
    PyObject *module = name ? PyImport_ImportModule("warren.engine.errors") : NULL;
    PyObject *class = module ? PyObject_GetAttrString(module, "AckTimedOut") : NULL;
    if (class && of == 1)
        text = PyUnicode_FromFormat("queue %R: message %llu was held for more than the queue's ack_timeout (%s s): it went back to "
                                    "its place, others receive it, and this %s comes too late; declare the queue with a longer "
                                    "ack_timeout, or settle sooner", name, (unsigned long long)tag, limit, what);
    else if (class)
        text = PyUnicode_FromFormat("queue %R: %zd of %zd messages were held for more than the queue's ack_timeout (%s s): they went "
                                    "back to their places, others receive them, and this %s comes too late for them (it holds for "
                                    "the rest); declare the queue with a longer ack_timeout, or settle sooner", name, n, of, limit, what);
    PyObject *error = text ? PyObject_CallOneArg(class, text) : NULL;
    if (error && (!indexes || !PyObject_SetAttrString(error, "late", indexes))) PyErr_SetObject(class, error);
    Py_XDECREF(error);
    Py_XDECREF(text);
    Py_XDECREF(class);
    Py_XDECREF(module);
    Py_XDECREF(name);
    h->overdue = true;
    return -1;
}

/* Send the tags (taken out of `unacked` before). When that fails they are ours again. `due`, of one returned: it waits. */
static int send_tags(HandleObject *h, uint8_t op, uint8_t flags, const uint64_t *tags, const wr_place *places, uint32_t n, uint64_t due) {
    ClientObject *c = h->client;
    wr_condition blocked;
    uint64_t deadline = WR_CALL_DEADLINE;
    for (;;) {
        int error = due ? wr_attachment_return_later(&c->a, &h->consumer, tags[0], due, &blocked)
                        : wr_attachment_settle(&c->a, &h->consumer, op, flags, tags, n, &blocked);
        if (!error) return 0;
        deadline = wr_by_when(c, deadline);
        if (wr_blocked(c, error, &blocked, deadline, "room for an acknowledgement")) {
            for (uint32_t i = 0; i < n && h->registered && !c->ended; i++) {
                if (h->consumer.timed) wr_attachment_not_settling(&c->a, h->server, places[i]);
                wr_place again = places[i];
                if (wr_client_consumer_hand(&h->consumer, tags[i], &again)) break;
            }
            return -1;
        }
        if (!h->registered) return settle_enter(h);
    }
}

/* Of tags that were taken out of `unacked`, those that are still ours, in the same order; how many. */
static uint32_t still_ours(HandleObject *h, uint64_t *tags, wr_place *places, uint32_t n) {
    if (!h->consumer.timed) return n;
    uint32_t kept = 0;
    for (uint32_t i = 0; i < n; i++) {
        if (!wr_attachment_settling(&h->client->a, h->server, places[i])) continue;
        tags[kept] = tags[i];
        places[kept++] = places[i];
    }
    return kept;
}

/* A message, and all that were handed out before it. *late_n of *of were not ours any more. */
static int settle_up_to(HandleObject *h, uint8_t op, uint8_t flags, const DeliveryObject *m, Py_ssize_t *late_n, Py_ssize_t *of) {
    uint64_t tags[512];
    wr_place places[512];
    for (;;) {
        uint32_t n = wr_client_consumer_forget_up_to(&h->consumer, m->tag, m->place, tags, places, 512);
        if (!n) return 0;
        uint32_t ours = still_ours(h, tags, places, n);
        *late_n += n - ours;
        *of += n;
        if (ours && send_tags(h, op, flags, tags, places, ours, 0)) return -1;
    }
}

static int flag_of(PyObject *const *args, Py_ssize_t given, PyObject *names, const char *const *known, bool *values, int known_n) {
    Py_ssize_t named = names ? PyTuple_GET_SIZE(names) : 0;
    if (given > known_n) {
        PyErr_Format(PyExc_TypeError, "at most %d arguments", known_n);
        return -1;
    }
    for (Py_ssize_t i = 0; i < given + named; i++) {
        int at = i < given ? (int)i : -1;
        for (int k = 0; at < 0 && k < known_n; k++)
            if (!PyUnicode_CompareWithASCIIString(PyTuple_GET_ITEM(names, i - given), known[k])) at = k;
        if (at < 0) {
            PyErr_Format(PyExc_TypeError, "unexpected argument %R", PyTuple_GET_ITEM(names, i - given));
            return -1;
        }
        if (wr_flag(args[i], known[at], &values[at])) return -1;
    }
    return 0;
}

static PyObject *settle_one(DeliveryObject *m, uint8_t op, uint8_t flags, bool multiple, uint64_t due) {
    HandleObject *h = m->handle;
    if (m->settled) {
        if (m->late) too_late(h, op, flags, m->tag, 1, 1, NULL);
        else if (m->browsed)
            wr_raise("UsageError", "this message was only looked at (browse, Subscription.read), and nobody holds it, so it cannot "
                                   "be acked or nacked: get and consume receive messages, Subscription.ack settles claims");
        else wr_raise("UsageError", "this message was acked or nacked before");
        return NULL;
    }
    if (settle_enter(h)) return NULL;
    m->settled = true;
    Py_ssize_t late_n = 0, of = 0;
    int error = 0;
    bool timed = h->consumer.timed;
    if (multiple) {
        m->late = timed && wr_client_consumer_taken(&h->client->a, &h->consumer, m->tag, m->place);
        error = settle_up_to(h, op, flags, m, &late_n, &of);
    } else if (wr_client_consumer_forget(&h->consumer, m->tag, m->place)) {
        if (still_ours(h, &m->tag, &m->place, 1)) error = send_tags(h, op, flags, &m->tag, &m->place, 1, due);
        else m->late = true;
    } else if (timed) {
        m->late = wr_attachment_taken(&h->client->a, h->server, m->place);
    }
    if (error) {
        m->settled = m->late = false;
        return NULL;
    }
    wr_port_submit(&h->client->a.port, h->server);
    if (flags & WR_FLAG_REQUEUE && !due) h->nacked = true;
    if (late_n || m->late) {
        too_late(h, op, flags, m->tag, late_n, late_n ? of : 1, NULL);
        return NULL;
    }
    Py_RETURN_NONE;
}

static PyObject *delivery_ack(PyObject *self, PyObject *const *args, Py_ssize_t given, PyObject *names) {
    static const char *const known[] = {"multiple"};
    bool values[1] = {false};
    if ((given || names) && flag_of(args, given, names, known, values, 1)) return NULL;
    return settle_one((DeliveryObject *)self, WR_OP_ACK, 0, values[0], 0);
}

static PyObject *delivery_nack(PyObject *self, PyObject *const *args, Py_ssize_t given, PyObject *names) {
    static const char *const known[] = {"requeue", "multiple"};
    bool values[2] = {true, false};
    if ((given || names) && flag_of(args, given, names, known, values, 2)) return NULL;
    return settle_one((DeliveryObject *)self, WR_OP_NACK, values[0] ? WR_FLAG_REQUEUE : 0, values[1], 0);
}

static PyObject *delivery_nack_until(PyObject *self, PyObject *due) {
    uint64_t at = PyLong_AsUnsignedLongLong(due);
    if (PyErr_Occurred()) return NULL;
    return settle_one((DeliveryObject *)self, WR_OP_NACK, WR_FLAG_REQUEUE, false, at);
}

/* Can all of a batch be settled? 0, -1 with an exception. */
static int check_batch(HandleObject *h, PyObject *list) {
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(list); i++) {
        PyObject *item = PySequence_Fast_GET_ITEM(list, i);
        const char *wrong = !PyObject_TypeCheck(item, wr_module.delivery_type)     ? "not a message"
                            : ((DeliveryObject *)item)->handle->queue != h->queue ? "of another queue"
                            : ((DeliveryObject *)item)->browsed          ? "a message that was only looked at (browse)"
                            : ((DeliveryObject *)item)->handle != h || ((DeliveryObject *)item)->late ? NULL
                            : ((DeliveryObject *)item)->settled                                       ? "acked or nacked before"
                                                                         : NULL;
        if (wrong) return wr_raise("UsageError", "element %zd is %s; nothing was done", i, wrong);
        if (((DeliveryObject *)item)->handle != h)
            return wr_raise("PeerLost", "element %zd was delivered to an attachment that has ended: it returns to its queue, redelivered", i);
    }
    return 0;
}

/* A message of a batch is not ours any more: the worker took it back, or it was settled before. -1 with an exception. */
static int note_late(HandleObject *h, DeliveryObject *m, bool known, Py_ssize_t at, PyObject *late) {
    m->late = known || wr_attachment_taken(&h->client->a, h->server, m->place);
    if (!m->late) return 0;
    PyObject *index = PyLong_FromSsize_t(at);
    int error = index ? PyList_Append(late, index) : -1;
    Py_XDECREF(index);
    return error;
}

/* In as few commands as possible; `late`, of a queue with an ack timeout: the indexes of what the worker took back. */
static int settle_batch(HandleObject *h, uint8_t op, uint8_t flags, PyObject *list, Py_ssize_t n, PyObject *late) {
    uint64_t *tags = PyMem_Malloc(TAGS_MAX * (sizeof *tags + sizeof(wr_place)));
    if (!tags) {
        PyErr_NoMemory();
        return -1;
    }
    wr_place *places = (wr_place *)(tags + TAGS_MAX);
    int error = 0;
    /* the list may become shorter while a wait lets the GIL go */
    for (Py_ssize_t i = 0; !error && i < n && i < PySequence_Fast_GET_SIZE(list);) {
        uint32_t k = 0;
        for (; !error && k < TAGS_MAX && i < n && i < PySequence_Fast_GET_SIZE(list); i++) {
            PyObject *item = PySequence_Fast_GET_ITEM(list, i);
            if (!PyObject_TypeCheck(item, wr_module.delivery_type) || ((DeliveryObject *)item)->handle != h) continue;
            DeliveryObject *m = (DeliveryObject *)item;
            if (m->settled) {
                if (late && m->late) error = note_late(h, m, true, i, late); /* as it was said before */
                continue;
            }
            m->settled = true;
            tags[k] = m->tag;
            places[k] = m->place;
            bool known = wr_client_consumer_forget(&h->consumer, m->tag, m->place);
            if (known && still_ours(h, tags + k, places + k, 1)) k++;
            else if (late) error = note_late(h, m, known, i, late);
        }
        if (k && send_tags(h, op, flags, tags, places, k, 0)) error = -1;
        if (k && flags == WR_FLAG_REQUEUE) h->nacked = true;
    }
    PyMem_Free(tags);
    return error;
}

/* settle_many(messages, ack, requeue, unseen = False): messages of this queue, in as few commands as possible.
 * `unseen`: they were handed to nobody, so that their delivery does not count. */
PyObject *wr_handle_settle_many(PyObject *op, PyObject *const *args, Py_ssize_t given) {
    HandleObject *h = (HandleObject *)op;
    if (given != 3 && given != 4) return PyErr_Format(PyExc_TypeError, "arguments: messages, ack, requeue, unseen");
    uint8_t code = args[1] == Py_True ? WR_OP_ACK : WR_OP_NACK;
    uint8_t flags = code == WR_OP_NACK && args[2] == Py_True ? WR_FLAG_REQUEUE : 0;
    if (flags && given == 4 && args[3] == Py_True) flags |= WR_FLAG_UNSEEN;
    PyObject *list = wr_listed(args[0], "messages");
    if (!list) return NULL;
    Py_ssize_t n = PySequence_Fast_GET_SIZE(list);
    int error = check_batch(h, list);
    if (n && !error) error = settle_enter(h);
    PyObject *late = h->consumer.timed && !error ? PyList_New(0) : NULL;
    if (h->consumer.timed && !late) error = -1;
    uint64_t first = n && !error ? ((DeliveryObject *)PySequence_Fast_GET_ITEM(list, 0))->tag : 0;
    if (n && !error) error = settle_batch(h, code, flags, list, n, late);
    Py_DECREF(list);
    if (n && !error) wr_port_submit(&h->client->a.port, h->server);
    /* What was handed to nobody concerns nobody. */
    Py_ssize_t late_n = late && !error && !(flags & WR_FLAG_UNSEEN) ? PyList_GET_SIZE(late) : 0;
    if (late_n) {
        PyObject *indexes = PyList_AsTuple(late);
        error = indexes ? too_late(h, code, flags, first, late_n, n, indexes) : -1;
        Py_XDECREF(indexes);
    }
    Py_XDECREF(late);
    if (error) return NULL;
    Py_RETURN_NONE;
}

/* ---- the type --------------------------------------------------------------------------------------------------- */

static void delivery_dealloc(PyObject *op) {
    DeliveryObject *m = (DeliveryObject *)op;
    PyTypeObject *type = Py_TYPE(op);
    Py_XDECREF(m->body);
    Py_XDECREF(m->meta);
    Py_XDECREF(m->handle);
    type->tp_free(op);
    Py_DECREF(type);
}

/* view(): of the body's own bytes object, which the view keeps. Nothing of the message is changed, so that threads need
 * no lock for it, and a view knows nothing of acks, queues and nodes. */
static PyObject *delivery_view(PyObject *op, PyObject *unused) {
    (void)unused;
    return PyMemoryView_FromObject(((DeliveryObject *)op)->body);
}

static PyObject *delivery_id(PyObject *op, void *closure) {
    (void)closure;
    return PyBytes_FromStringAndSize((char *)((DeliveryObject *)op)->id, 16);
}

static PyObject *delivery_owner(PyObject *op, void *closure) {
    (void)closure;
    return Py_NewRef(((DeliveryObject *)op)->handle->owner);
}

static PyObject *delivery_timed_out(PyObject *op, void *closure) {
    (void)closure;
    DeliveryObject *m = (DeliveryObject *)op;
    HandleObject *h = m->handle;
    bool there = !m->settled && h->registered && !wr_enter(h->client);
    if (!there) PyErr_Clear();
    return PyBool_FromLong(m->late || (there && wr_client_consumer_taken(&h->client->a, &h->consumer, m->tag, m->place)));
}

static PyMethodDef delivery_methods[] = {
    {"ack", (PyCFunction)(void (*)(void))delivery_ack, METH_FASTCALL | METH_KEYWORDS,
     "ack(multiple=False): ack it; with `multiple`, also everything handed out before it."},
    {"nack", (PyCFunction)(void (*)(void))delivery_nack, METH_FASTCALL | METH_KEYWORDS,
     "nack(requeue=True, multiple=False): return it to its place in the queue (marked redelivered), or drop it."},
    {"view", delivery_view, METH_NOARGS,
     "view(): the body as a read-only memoryview, without a copy; good for as long as something refers to it."},
    {"nack_until", delivery_nack_until, METH_O,
     "nack_until(due): as nack(delay=…), but until a time, in milliseconds since 1970."},
    {NULL, NULL, 0, NULL}};

static PyGetSetDef delivery_attributes[] = {{"message_id", delivery_id, NULL,
                                             "the engine's id, 16 bytes; the publisher's is properties['message_id']", NULL},
                                            {"queue", delivery_owner, NULL, "the queue it came from", NULL},
                                            {"timed_out", delivery_timed_out, NULL,
                                             "its queue's ack_timeout ran out: it went back", NULL},
                                            {NULL, NULL, NULL, NULL, NULL}};

static PyMemberDef delivery_members[] = {
    {"body", T_OBJECT_EX, offsetof(DeliveryObject, body), READONLY, "the bytes that were put"},
    {"meta", T_OBJECT, offsetof(DeliveryObject, meta), READONLY, "metadata as it was published (msgpack), or None"},
    {"delivery_tag", T_ULONGLONG, offsetof(DeliveryObject, tag), READONLY, "position in the queue (sequence)"},
    {"delivery_count", T_USHORT, offsetof(DeliveryObject, delivery_count), READONLY, "deliveries before this one"},
    {"redelivered", T_BOOL, offsetof(DeliveryObject, redelivered), READONLY, "it may have been delivered before"},
    {"priority", T_UBYTE, offsetof(DeliveryObject, priority), READONLY, "0 to 255"},
    {"reason", T_UBYTE, offsetof(DeliveryObject, reason), READONLY, "why it is a dead letter: 1 rejected, 2 expired, 3 maximum length, 4 delivery_limit; 0: it is none"},
    {"persistent", T_BOOL, offsetof(DeliveryObject, persistent), READONLY, "it survives a stop of the node"},
    {"settled", T_BOOL, offsetof(DeliveryObject, settled), READONLY, "acked or nacked, or tried too late"},
    {"browsed", T_BOOL, offsetof(DeliveryObject, browsed), READONLY, "it was only looked at: it cannot be acked"},
    {NULL, 0, 0, 0, NULL}};

static PyType_Slot delivery_slots[] = {{Py_tp_dealloc, delivery_dealloc},   {Py_tp_methods, delivery_methods},
                                       {Py_tp_getset, delivery_attributes}, {Py_tp_members, delivery_members},
                                       {Py_tp_doc, "One delivered message."}, {0, NULL}};
static PyType_Spec delivery_spec = {"warren.engine._core.Delivery", sizeof(DeliveryObject), 0,
                                    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_DISALLOW_INSTANTIATION, delivery_slots};

int wr_bind_delivery(PyObject *module) {
    wr_module.delivery_type = (PyTypeObject *)PyType_FromModuleAndSpec(module, &delivery_spec, NULL);
    return wr_module.delivery_type ? PyModule_AddObjectRef(module, "Delivery", (PyObject *)wr_module.delivery_type) : -1;
}
