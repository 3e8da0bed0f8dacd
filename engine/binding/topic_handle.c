/* TopicHandle: one topic as an attachment appends to it. Many messages: binding/append_many.c. */
#include "binding/topic_handle.h"
#include "binding/append_again.h"
#include "binding/append_many.h"
#include "binding/append_rows.h"
#include "binding/arguments.h"
#include "binding/told.h"

/* TopicHandle(client, server, topic, name length, queues, host, command bytes, catalog version, whether it is compacted) */
static PyObject *handle_new(PyTypeObject *type, PyObject *args, PyObject *keywords) {
    PyObject *client;
    unsigned int server, topic, name_length, queues_n, most;
    const char *host;
    Py_ssize_t host_n;
    unsigned long long catalog;
    int compacted = 0;
    if (keywords && PyDict_GET_SIZE(keywords)) return PyErr_Format(PyExc_TypeError, "no keywords");
    if (!PyArg_ParseTuple(args, "O!IIIIy#IK|p", wr_module.client_type, &client, &server, &topic, &name_length, &queues_n, &host, &host_n, &most,
                          &catalog, &compacted))
        return NULL;
    ClientObject *c = (ClientObject *)client;
    if (wr_enter(c)) return NULL;
    if (server < WR_SERVER_WORKER_FIRST || server >= c->servers_n)
        return PyErr_Format(PyExc_ValueError, "server %u is no topic worker of this node", server);
    if (!queues_n || host_n != WR_HOST_V4_SIZE) return PyErr_Format(PyExc_ValueError, "a topic has queues, and a host has 8 bytes");
    TopicHandleObject *h = (TopicHandleObject *)type->tp_alloc(type, 0);
    if (!h) return NULL;
    h->client = (ClientObject *)Py_NewRef(client);
    h->server = server;
    h->topic = topic;
    h->queues_n = queues_n;
    h->name_length = name_length;
    h->command_bytes = most;
    h->catalog = catalog;
    h->compacted = compacted;
    h->turn = (c->a.port.slot + c->topics_n++) % queues_n; /* clients, and objects of one, do not all begin with the same queue */
    memcpy(h->host, host, sizeof h->host);
    h->record_bytes_max = UINT64_MAX;
    return (PyObject *)h;
}

static void handle_dealloc(PyObject *op) {
    PyTypeObject *type = Py_TYPE(op);
    TopicHandleObject *h = (TopicHandleObject *)op;
    Py_XDECREF(h->client);
    Py_XDECREF(h->name);
    Py_XDECREF(h->record_limit);
    type->tp_free(op);
    Py_DECREF(type);
}

static PyObject *append_one(PyObject *op, PyObject *const *args, Py_ssize_t given, bool half) {
    TopicHandleObject *h = (TopicHandleObject *)op;
    ClientObject *c = h->client;
    wr_append_how how;
    wr_told told;
    wr_body body;
    uint32_t queue = 0;
    uint64_t born_ms = 0;
    bool chosen;
    WR_ARGUMENTS(10, "body, key, tag, properties, queue, born, later, level, timeout, wait");
    if (args[5] != Py_None && number_of(args[5], 63, "born", &born_ms)) return NULL;
    how.kind = half ? WR_APPEND_HALF : args[6] != Py_None ? WR_APPEND_LATER : WR_APPEND_NOW;
    if (wr_topic_current(h) || wr_told_pack(&told, args[1], args[2], args[3]) || wr_topic_keyed(h, told.keyed) || wr_told_later(&told, args[6]) || wr_topic_queue(h, args[4], &queue, &chosen) ||
        wr_shared_body_take(c, args[0], told.n, &body))
        return NULL;
    if (!wr_topic_record_size(h, told.n, (uint64_t)body.length, how.kind, h->queues_n - 1) || wr_topic_ready(h, args[7], args[8], args[9], &how)) {
        wr_body_drop(&body);
        return NULL;
    }
    if (!chosen) queue = told.keyed ? wr_told_queue(told.hash, h->queues_n) : wr_topic_turn(h);
    if (args[5] == Py_None) born_ms = wr_wall_ms();
    const wr_append_record record = {.properties = told.bytes, .body = body.bytes, .properties_length = told.n, .body_length = (uint32_t)body.length};
    wr_appended *appended = wr_appended_one(queue, h->host);
    if (appended) appended->half = half;
    int error = appended ? wr_topic_send(h, queue, born_ms, &record, 1, appended->runs, &how, true) : -1;
    wr_body_drop(&body);
    if (!error) return wr_topic_confirmed(h, appended, &how);
    wr_appended_free(c, appended);
    return NULL;
}

/* append(body, key, tag, properties, queue, born, later, level, timeout, wait) */
static PyObject *handle_append(PyObject *op, PyObject *const *args, Py_ssize_t given) { return append_one(op, args, given, false); }

/* prepare(…): the same of a half message; `later` is None. */
static PyObject *handle_prepare(PyObject *op, PyObject *const *args, Py_ssize_t given) { return append_one(op, args, given, true); }

/* tell(name, record_bytes_max, record_limit): for what it raises. */
static PyObject *handle_tell(PyObject *op, PyObject *args) {
    TopicHandleObject *h = (TopicHandleObject *)op;
    PyObject *name, *limit;
    unsigned long long most;
    if (!PyArg_ParseTuple(args, "UKU", &name, &most, &limit)) return NULL;
    Py_XSETREF(h->name, Py_NewRef(name));
    Py_XSETREF(h->record_limit, Py_NewRef(limit));
    h->record_bytes_max = most;
    Py_RETURN_NONE;
}

/* turn(): the queue that the next messages without a key go to. */
static PyObject *handle_turn(PyObject *op, PyObject *unused) {
    (void)unused;
    if (wr_topic_current((TopicHandleObject *)op)) return NULL;
    return PyLong_FromUnsignedLong(wr_topic_turn((TopicHandleObject *)op));
}

/* queue_of(key): the queue that messages with this key go to. */
static PyObject *handle_queue_of(PyObject *op, PyObject *key) {
    wr_told told;
    if (wr_topic_current((TopicHandleObject *)op)) return NULL;
    if (wr_told_pack(&told, key, Py_None, Py_None)) return NULL;
    if (!told.keyed) {
        wr_raise("UsageError", "without a key no queue is chosen: give one");
        return NULL;
    }
    return PyLong_FromUnsignedLong(wr_told_queue(told.hash, ((TopicHandleObject *)op)->queues_n));
}

static PyObject *handle_get_topic(PyObject *op, void *closure) {
    (void)closure;
    return PyLong_FromUnsignedLong(((TopicHandleObject *)op)->topic);
}

static PyGetSetDef attributes[] = {{"topic", handle_get_topic, NULL, "id of the topic", NULL}, {NULL, NULL, NULL, NULL, NULL}};

static PyMethodDef methods[] = {
    FAST("append", handle_append, "append(body, key, tag, properties, queue, born, later, level, timeout, wait) -> Position | Confirm"),
    FAST("append_again", wr_topic_append_again, "append_again(body, properties, queue, born, later, timeout) -> Position"),
    FAST("prepare", handle_prepare, "prepare(body, key, tag, properties, queue, born, None, level, timeout, wait) -> Position | Confirm"),
    FAST("append_many", wr_topic_append_many,
         "append_many(bodies, keys, tags, properties, queues, born, later, level, timeout, wait) -> list of Position | Confirm"),
    FAST("append_rows", wr_topic_append_rows,
         "append_rows(rows, bodies, keys, tags, headers, queues, born, delays, level, timeout, wait, numbers) -> list of Position | Confirm"),
    FAST("check_many", wr_topic_check_many, "check_many(bodies, keys, tags, properties, queues, born, later): raises what is wrong with them"),
    {"queue_of", handle_queue_of, METH_O, "queue_of(key): the queue that messages with this key go to"},
    {"tell", handle_tell, METH_VARARGS, "tell(name, record_bytes_max, record_limit): the topic's name, the largest record and why, for errors"},
    {"turn", handle_turn, METH_NOARGS, "turn(): the queue of the next messages without a key"},
    {NULL, NULL, 0, NULL}};

static PyType_Slot slots[] = {
    {Py_tp_new, handle_new},
    {Py_tp_dealloc, handle_dealloc},
    {Py_tp_methods, methods},
    {Py_tp_getset, attributes},
    {Py_tp_doc, "TopicHandle(client, server, topic, name length in bytes, queues, host, command bytes, catalog): a topic as an attachment appends to it."},
    {0, NULL}};
static PyType_Spec spec = {"warren.engine._core.TopicHandle", sizeof(TopicHandleObject), 0, Py_TPFLAGS_DEFAULT, slots};

int wr_bind_topic_handle(PyObject *module) {
    PyTypeObject *made = (PyTypeObject *)PyType_FromModuleAndSpec(module, &spec, NULL);
    int error = made ? PyModule_AddObjectRef(module, "TopicHandle", (PyObject *)made) : -1;
    Py_XDECREF(made);
    return error;
}
