/* The type QueueHandle: its life, its attributes, its tables. The work is binding/queue_handle.c's and
 * binding/queue_poll.c's, publishing is binding/publish.c's. */
#include "binding/confirm.h"
#include "binding/delivery_type.h"
#include "binding/publish.h"
#include "binding/queue_credit.h"
#include "binding/queue_get.h"
#include "binding/queue_poll.h"
#include <structmember.h>

static PyObject *put_with(PyObject *op, PyObject *const *args, Py_ssize_t given, bool many) {
    HandleObject *h = (HandleObject *)op;
    int level;
    bool wait;
    if (given != 5 && given != 6) return PyErr_Format(PyExc_TypeError, "arguments: body, level, meta, timeout, wait, options=None");
    if (wr_level_of(args[1], &level) || wr_flag(args[4], "wait", &wait)) return NULL;
    ClientObject *c = h->client;
    if (wr_enter(c)) return NULL;
    /* The catalog may tell that the queue is gone. */
    if (wr_queue_perhaps_gone(c, h->queue) && wr_hook(c, WR_HOOK_CATALOG, 0, "")) return NULL;
    if (wr_handle_enter(h)) return NULL;
    PyObject *options = given == 6 ? args[5] : NULL;
    if (!wait && !h->name && !(h->name = PyObject_GetAttrString(h->owner, "name"))) return NULL;
    PyObject *made = many ? wr_publish_many(c, &h->route, NULL, args[0], level, args[2], args[3], wait, options, NULL)
                          : wr_publish(c, &h->route, args[0], level, args[2], args[3], wait, options, NULL);
    if (made && !wait) Py_XSETREF(((ConfirmObject *)made)->queue, Py_NewRef(h->name));
    return made;
}

static PyObject *handle_put(PyObject *op, PyObject *const *args, Py_ssize_t given) { return put_with(op, args, given, false); }
static PyObject *handle_put_many(PyObject *op, PyObject *const *args, Py_ssize_t given) { return put_with(op, args, given, true); }

/* QueueHandle(client, server, queue, owner, message class) */
static PyObject *handle_new(PyTypeObject *type, PyObject *args, PyObject *keywords) {
    PyObject *client, *owner, *messages;
    unsigned int server, queue;
    if (keywords && PyDict_GET_SIZE(keywords)) return PyErr_Format(PyExc_TypeError, "no keywords");
    if (!PyArg_ParseTuple(args, "O!IIOO!", wr_module.client_type, &client, &server, &queue, &owner, &PyType_Type, &messages)) return NULL;
    ClientObject *c = (ClientObject *)client;
    if (wr_enter(c)) return NULL;
    if (server < WR_SERVER_WORKER_FIRST || server >= c->servers_n || server >= wr_workers_end(c->a.port.super))
        return PyErr_Format(PyExc_ValueError, "server %u is no queue worker of this node", server);
    if (!PyType_IsSubtype((PyTypeObject *)messages, wr_module.delivery_type))
        return PyErr_Format(PyExc_TypeError, "the message class must be derived from Delivery");
    HandleObject *h = (HandleObject *)type->tp_alloc(type, 0);
    if (!h) return NULL;
    h->client = (ClientObject *)Py_NewRef(client);
    h->owner = Py_NewRef(owner);
    h->messages = (PyTypeObject *)Py_NewRef(messages);
    h->server = server;
    h->queue = queue;
    h->window = 1;
    h->route.targets_n = 1;
    h->route.targets[0] = (wr_target){.server = server, .queue = queue, .ids_n = 1};
    return (PyObject *)h;
}

static int handle_traverse(PyObject *op, visitproc visit, void *arg) {
    HandleObject *h = (HandleObject *)op;
    Py_VISIT(Py_TYPE(op));
    Py_VISIT(h->client);
    Py_VISIT(h->owner);
    Py_VISIT(h->messages);
    return 0;
}

static int handle_clear(PyObject *op) {
    HandleObject *h = (HandleObject *)op;
    PyObject *none = Py_NewRef(Py_None);
    Py_XSETREF(h->owner, none);
    return 0;
}

static void handle_dealloc(PyObject *op) {
    HandleObject *h = (HandleObject *)op;
    PyTypeObject *type = Py_TYPE(op);
    PyObject_GC_UnTrack(op);
    if (h->weak) PyObject_ClearWeakRefs(op);
    if (h->registered && h->client->open && h->shell) {
        wr_client_consumer_park(&h->client->a, &h->consumer, h->shell);
        h->shell = NULL;
    }
    if (h->registered) wr_client_consumer_drop(NULL, &h->consumer);
    free(h->shell);
    Py_XDECREF(h->owner);
    Py_XDECREF(h->name);
    Py_XDECREF(h->messages);
    Py_XDECREF(h->dead);
    Py_XDECREF(h->client);
    type->tp_free(op);
    Py_DECREF(type);
}

/* kill(reason): the queue is gone; calls fail with AttachmentLost(reason) from now on. Messages in hand can still be
 * settled. */
static PyObject *handle_kill(PyObject *op, PyObject *reason) {
    Py_XSETREF(((HandleObject *)op)->dead, Py_NewRef(reason));
    Py_RETURN_NONE;
}

/* wake(): who waits in a get gets AttachmentLost, and calls again if it still wants a message. */
static PyObject *handle_wake(PyObject *op, PyObject *unused) {
    (void)unused;
    ((HandleObject *)op)->woken++;
    Py_RETURN_NONE;
}

static PyObject *handle_get_unacked(PyObject *op, void *closure) {
    (void)closure;
    HandleObject *h = (HandleObject *)op;
    bool there = h->registered && !wr_enter(h->client);
    if (!there) PyErr_Clear();
    return PyLong_FromUnsignedLongLong(there ? wr_client_consumer_unacked(&h->client->a, &h->consumer) : 0);
}

static PyObject *handle_get_pending(PyObject *op, void *closure) {
    (void)closure;
    HandleObject *h = (HandleObject *)op;
    return PyLong_FromUnsignedLongLong(h->registered ? wr_client_consumer_pending(&h->consumer) : 0);
}

static PyObject *handle_get_quiet(PyObject *op, void *closure) {
    (void)closure;
    HandleObject *h = (HandleObject *)op;
    return PyBool_FromLong(wr_enter(h->client) ? (PyErr_Clear(), 1) : !h->registered || wr_credit_quiet(h));
}

static PyObject *handle_get_still(PyObject *op, void *closure) {
    (void)closure;
    HandleObject *h = (HandleObject *)op;
    return PyBool_FromLong(wr_enter(h->client) ? (PyErr_Clear(), 1) : !h->registered || wr_credit_still(h));
}

static PyObject *handle_get_usable(PyObject *op, void *closure) {
    (void)closure;
    HandleObject *h = (HandleObject *)op;
    return PyBool_FromLong(!h->dead && !h->client->ended && h->client->forks == wr_module.forks);
}

static PyObject *handle_get_perhaps_gone(PyObject *op, void *closure) {
    (void)closure;
    HandleObject *h = (HandleObject *)op;
    ClientObject *c = h->client;
    return PyBool_FromLong(!h->dead && !c->ended && c->forks == wr_module.forks && c->open && wr_queue_perhaps_gone(c, h->queue));
}

static PyMethodDef handle_methods[] = {
    {"put", (PyCFunction)(void (*)(void))handle_put, METH_FASTCALL, "put(body, level, meta, timeout, wait, options=None) -> Confirm | None"},
    {"put_many", (PyCFunction)(void (*)(void))handle_put_many, METH_FASTCALL,
     "put_many(bodies, level, meta, timeout, wait, options=None) -> Confirm | None"},
    {"get", (PyCFunction)(void (*)(void))wr_handle_get, METH_FASTCALL,
     "get(timeout, ahead=True, woken=None) -> Delivery | None; `woken`: of before it was decided to wait"},
    {"get_many", (PyCFunction)(void (*)(void))wr_handle_get_many, METH_FASTCALL, "get_many(max, timeout, ahead=True) -> list"},
    {"begin", wr_handle_begin, METH_O, "begin(prefetch) -> int: deliver ahead from now on; None: as far as it pays"},
    {"release", (PyCFunction)(void (*)(void))wr_handle_release, METH_FASTCALL,
     "release(begun=None): end consuming; what was not handed out returns to the queue"},
    {"tidy", wr_handle_tidy, METH_NOARGS, "tidy(): release() if there is a hoard now, and nobody consumes or gets"},
    {"hoard", wr_handle_hoard, METH_NOARGS,
     "hoard(): messages that lie or may come here unasked for 50 ms; -1: a get is under way, or was just now; 0: none"},
    {"poll", (PyCFunction)(void (*)(void))wr_handle_poll, METH_FASTCALL, "poll(max, wanted, memory) -> list or code: get_many that never waits"},
    {"stop", wr_handle_stop, METH_NOARGS, "stop(): ask for no more; the sequence of the CANCEL, None: nothing asked for, False: no room"},
    {"adapt", (PyCFunction)(void (*)(void))wr_handle_adapt, METH_FASTCALL,
     "adapt(window, unacked): consume with so many ahead, and at most so many unacked"},
    {"leave", wr_handle_leave, METH_NOARGS, "leave(): it does not consume alone any more; False: no room"},
    {"take_back", wr_handle_take_back, METH_NOARGS, "take_back(): like stop(), but it stays a consumer, and may ask for more"},
    {"ask", wr_handle_ask, METH_NOARGS, "ask() -> bool: announce to the worker what begin() was given; False: no room"},
    {"again", wr_handle_again, METH_NOARGS,
     "again(): send the same credit again; the sequence of the command, None: nothing asked for, False: no room"},
    {"give_back", (PyCFunction)(void (*)(void))wr_handle_give_back, METH_FASTCALL,
     "give_back(keep=0) -> bool: what was not handed out returns to the queue but for the first `keep`; False: no room"},
    {"settle_many", (PyCFunction)(void (*)(void))wr_handle_settle_many, METH_FASTCALL, "settle_many(messages, ack, requeue, unseen=False)"},
    {"check_slots", wr_handle_check_slots, METH_NOARGS, "check_slots(): LimitError when nothing can come before something is settled"},
    {"wake", handle_wake, METH_NOARGS, "wake(): gets that wait raise AttachmentLost once, in their next slice"},
    {"kill", handle_kill, METH_O, "kill(reason): calls fail with AttachmentLost from now on"},
    {NULL, NULL, 0, NULL}};

static PyGetSetDef handle_attributes[] = {
    {"unacked", handle_get_unacked, NULL, "messages handed out and not settled", NULL},
    {"pending", handle_get_pending, NULL, "messages delivered and not handed out", NULL},
    {"quiet", handle_get_quiet, NULL, "nothing is asked for, and nothing more can come of what was", NULL},
    {"still", handle_get_still, NULL, "as quiet, or what was asked for has come", NULL},
    {"usable", handle_get_usable, NULL, "neither the queue nor the attachment is gone", NULL},
    {"perhaps_gone", handle_get_perhaps_gone, NULL, "the catalog, which was not read since, may tell that the queue is gone", NULL},
    {NULL, NULL, NULL, NULL, NULL}};

static PyMemberDef handle_members[] = {{"server", T_UINT, offsetof(HandleObject, server), READONLY, "index of its worker"},
                                       {"queue", T_UINT, offsetof(HandleObject, queue), READONLY, "queue id"},
                                       {"owner", T_OBJECT, offsetof(HandleObject, owner), READONLY, "the Queue"},
                                       {"woken", T_UINT, offsetof(HandleObject, woken), READONLY, "how often wake() was called"},
                                       {"exact", T_BOOL, offsetof(HandleObject, exact), 0, "never ask for more than is waited for"},
                                       {"came", T_ULONGLONG, offsetof(HandleObject, consumer.came_n), READONLY, "deliveries since ever"},
                                       {"cancelled", T_ULONGLONG, offsetof(HandleObject, cancelled), READONLY,
                                        "behind which command nothing comes of what was asked for before"},
                                       {"nacked", T_BOOL, offsetof(HandleObject, nacked), READONLY,
                                        "a message went back since the last get: it is the next one"},
                                       {"ack_timeout", T_DOUBLE, offsetof(HandleObject, ack_timeout), 0,
                                        "of the queue, in seconds; 0: none; set before it is used"},
                                       {"__weaklistoffset__", T_PYSSIZET, offsetof(HandleObject, weak), READONLY, NULL},
                                       {NULL, 0, 0, 0, NULL}};

static PyType_Slot handle_slots[] = {
    {Py_tp_new, handle_new},         {Py_tp_dealloc, handle_dealloc},       {Py_tp_traverse, handle_traverse},
    {Py_tp_clear, handle_clear},     {Py_tp_methods, handle_methods},       {Py_tp_getset, handle_attributes},
    {Py_tp_members, handle_members}, {Py_tp_doc, "QueueHandle(client, server, queue, owner, message_class)"}, {0, NULL}};
static PyType_Spec handle_spec = {"warren.engine._core.QueueHandle", sizeof(HandleObject), 0,
                                  Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, handle_slots};

int wr_bind_queue_handle(PyObject *module) {
    wr_module.handle_type = (PyTypeObject *)PyType_FromModuleAndSpec(module, &handle_spec, NULL);
    if (PyModule_AddStringConstant(module, "THE_ANSWER", wr_the_answer) ||
        PyModule_AddIntConstant(module, "ANSWER_MS", (long)(WR_ANSWER_NS / 1000000)))
        return -1;
    return wr_module.handle_type ? PyModule_AddObjectRef(module, "QueueHandle", (PyObject *)wr_module.handle_type) : -1;
}
