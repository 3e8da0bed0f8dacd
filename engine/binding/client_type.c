/* The client's binding: Client (one attachment of this process to a node), Route; publish, wait, control. Confirm: binding/confirm.c.
 *
 * The mechanism is client/attachment.c. In here: arguments, the GIL, signals, exceptions, and the life of the memory.
 *
 * Invariants
 *   State of the port is only touched under the GIL. Whoever waits lets the GIL go with a wr_condition alone, and counts
 *   itself in `busy`: the regions are released by end() or by the last waiter after it, so no waiter loses its memory.
 *   After a fork the child's calls fail with SessionLost before they touch the parent's region (`wr_forks`).
 *   Trouble (server restarted, link closed, node stopping, disk failed) goes to Python's hook, which mends it or raises.
 */
#include "binding/store_side.h"
#include <stdarg.h>
#include <sys/shm.h>

#define SLICE_NS 50000000ull
#define CHECK_NS 1000000000ull
#define SPIN_NS_MIN 2000ull
#define SPIN_NS_MAX 40000ull
#define SUBMIT_EVERY 64

PyTypeObject *wr_client_type, *wr_confirm_type, *wr_route_type;
PyObject *wr_session_lost;
uint64_t wr_forks;

static void forked(void) { wr_forks++; }

/* ---- errors, deadlines ------------------------------------------------------------------------------------------- */

int wr_raise(const char *name, const char *format, ...) {
    PyObject *module = PyImport_ImportModule("warren.engine.errors");
    PyObject *class = module ? PyObject_GetAttrString(module, name) : NULL;
    if (class) {
        va_list arguments;
        va_start(arguments, format);
        PyErr_FormatV(class, format, arguments);
        va_end(arguments);
    }
    Py_XDECREF(class);
    Py_XDECREF(module);
    return -1;
}

PyObject *wr_listed(PyObject *given, const char *what) {
    if (!Py_TYPE(given)->tp_iter && !PySequence_Check(given)) {
        wr_raise("UsageError", "%s must be a list or another iterable, not %s", what, Py_TYPE(given)->tp_name);
        return NULL;
    }
    return PySequence_Fast(given, what);
}

int wr_raise_errno(int error, const char *doing) {
    PyObject *module = PyImport_ImportModule("warren.engine.kernel.atomic_file");
    PyObject *told = module ? PyObject_CallMethod(module, "explain_errno", "is", error, doing) : NULL;
    if (told) PyErr_SetObject((PyObject *)Py_TYPE(told), told);
    Py_XDECREF(told);
    Py_XDECREF(module);
    return -1;
}

int wr_hook(ClientObject *c, int code, uint32_t server, const char *what) {
    PyObject *hook = Py_NewRef(c->hook);
    PyObject *answer = PyObject_CallFunction(hook, "iIs", code, server, what ? what : "");
    Py_DECREF(hook);
    if (!answer) return -1;
    Py_DECREF(answer);
    return c->ended ? wr_enter_slow(c) : 0;
}

int wr_enter_slow(ClientObject *c) {
    if (c->forks != wr_forks)
        PyErr_SetString(wr_session_lost, "this attachment belongs to the parent process");
    else if (c->end_error)
        PyErr_SetObject((PyObject *)Py_TYPE(c->end_error), c->end_error);
    else
        PyErr_SetString(wr_session_lost, "this attachment has ended");
    return -1;
}

int wr_deadline_from(PyObject *timeout, uint64_t now, uint64_t *deadline, bool *zero) {
    *deadline = 0;
    *zero = false;
    if (timeout == Py_None) return 0;
    double seconds = PyBool_Check(timeout) ? -2.0 : PyFloat_AsDouble(timeout);
    if (seconds == -1.0 && PyErr_Occurred()) {
        if (!PyErr_ExceptionMatches(PyExc_TypeError) && !PyErr_ExceptionMatches(PyExc_OverflowError)) return -1;
        PyErr_Clear();
        seconds = -1.0;
    }
    if (!(seconds >= 0.0)) return wr_raise("UsageError", "timeout must be None or a non-negative number of seconds");
    *zero = seconds == 0.0;
    if (seconds > 1e9) return 0;
    *deadline = now + (uint64_t)(seconds * 1e9);
    return 0;
}

int wr_deadline(PyObject *timeout, uint64_t *deadline) {
    bool zero;
    return wr_deadline_from(timeout, timeout == Py_None ? 0 : wr_now_ns(), deadline, &zero);
}

uint64_t wr_by_when(const ClientObject *c, uint64_t deadline) {
    if (deadline != WR_CALL_DEADLINE) return deadline;
    return c->call_ns ? wr_now_ns() + c->call_ns : 0;
}

static int server_of(ClientObject *c, PyObject *argument, uint32_t *server) {
    unsigned long value = PyLong_AsUnsignedLong(argument);
    if (value == (unsigned long)-1 && PyErr_Occurred()) return -1;
    if (value >= c->servers_n) {
        PyErr_Format(PyExc_ValueError, "server %lu is not one of %u", value, c->servers_n);
        return -1;
    }
    *server = (uint32_t)value;
    return 0;
}

/* ---- waiting ----------------------------------------------------------------------------------------------------- */

static void release_memory(ClientObject *c);

void wr_left(ClientObject *c) {
    if (c->ended && !c->busy) release_memory(c);
}

int wr_trouble(ClientObject *c, uint32_t server, wr_purpose purpose) {
    wr_link *link = wr_attachment_link(&c->a, server);
    wr_server *peer = wr_superblock_server(c->a.port.super, server);
    uint32_t state = atomic_load_explicit(&c->a.port.super->state, memory_order_acquire);
    if (state == WR_NODE_STOPPED || (state == WR_NODE_DRAINING && (purpose == WR_FOR_ROOM || purpose == WR_FOR_DELIVERY)))
        return WR_HOOK_STOPPING;
    if (atomic_load_explicit(&link->evicted, memory_order_acquire)) return WR_HOOK_EVICTED;
    if (purpose != WR_FOR_DELIVERY && atomic_load_explicit(&peer->error, memory_order_acquire)) return WR_HOOK_FROZEN;
    if (atomic_load_explicit(&peer->state, memory_order_acquire) == WR_SERVER_FAILED) return WR_HOOK_FAILED;
    if (purpose == WR_FOR_DELIVERY &&
        atomic_load_explicit(&link->server_epoch, memory_order_acquire) != c->a.workers[server].epoch)
        return WR_HOOK_EPOCH;
    return 0;
}

int wr_wait_while(ClientObject *c, const wr_condition *condition, uint64_t deadline, wr_purpose purpose, int (*also)(void *), void *of) {
    uint64_t started = wr_now_ns(), check_at = started + CHECK_NS, now = started;
    if (wr_condition_met(condition)) return 0;
    deadline = wr_by_when(c, deadline);
    for (;;) {
        int code = wr_trouble(c, condition->server, purpose);
        if (!code && now >= check_at) {
            code = WR_HOOK_CHECK;
            check_at = now + CHECK_NS;
        }
        if (code) {
            if (wr_hook(c, code, condition->server, "")) return -1;
            if (code == WR_HOOK_EPOCH) return 0; /* what to wait for may be another thing now */
        }
        if (wr_condition_met(condition)) return 0;
        if (deadline && now >= deadline) return 1;
        uint64_t limit = deadline && deadline - now < SLICE_NS ? deadline - now : SLICE_NS;
        wr_client *client = c->a.port.view.client;
        uint64_t spin = c->a.spin_ns;
        c->busy++;
        bool met;
        if (purpose == WR_FOR_ROOM) atomic_fetch_add_explicit(&client->blocked_credit, 1, memory_order_relaxed);
        Py_BEGIN_ALLOW_THREADS
        met = wr_attachment_sleep(client, condition, limit, spin);
        Py_END_ALLOW_THREADS
        if (purpose == WR_FOR_ROOM) atomic_fetch_sub_explicit(&client->blocked_credit, 1, memory_order_relaxed);
        c->busy--;
        wr_left(c);
        if (c->ended) return wr_enter_slow(c);
        now = wr_now_ns();
        uint64_t took = now - started;
        c->a.spin_ns = met && took < SPIN_NS_MAX ? SPIN_NS_MAX : spin / 2 > SPIN_NS_MIN ? spin / 2 : SPIN_NS_MIN;
        if (PyErr_CheckSignals()) return -1;
        if (c->ended) return wr_enter_slow(c);
        if (met || purpose == WR_FOR_DELIVERY) return 0; /* whoever waits for deliveries looks after its credit now and then */
        if (also && also(of)) return -1;
    }
}

int wr_wait(ClientObject *c, const wr_condition *condition, uint64_t deadline, wr_purpose purpose) {
    return wr_wait_while(c, condition, deadline, purpose, NULL, NULL);
}

static int timed_out(ClientObject *c, uint32_t server, const char *what) {
    if (wr_hook(c, WR_HOOK_TIMED_OUT, server, what)) return -1;
    return wr_raise("TimedOut", "%s: not done within the timeout", what);
}

int wr_wait_or_raise(ClientObject *c, const wr_condition *condition, uint64_t deadline, wr_purpose purpose, const char *what) {
    int answer = wr_wait(c, condition, deadline, purpose);
    return answer <= 0 ? answer : timed_out(c, condition->server, what);
}

void wr_note_deadline(uint64_t deadline) {
    if (!deadline || deadline == WR_CALL_DEADLINE || !PyErr_ExceptionMatches(wr_session_lost)) return;
    PyObject *type, *value, *trace, *when = NULL;
    PyErr_Fetch(&type, &value, &trace);
    PyErr_NormalizeException(&type, &value, &trace);
    if (value && (!(when = PyFloat_FromDouble((double)deadline / 1e9)) || PyObject_SetAttrString(value, "deadline", when)))
        PyErr_Clear(); /* no memory: whoever calls again takes its whole time once more */
    Py_XDECREF(when);
    PyErr_Restore(type, value, trace);
}

/* What the routes of a publish were made from. */
typedef struct {
    ClientObject *client;
    uint64_t catalog;
} wr_made_from;

/* While a publish waits and nothing of it was handed over: its queues may have gone. Then it begins anew, with the catalog of now,
 * also when another thread has read that meanwhile. */
static int routes_gone(void *of) {
    const wr_made_from *made = of;
    ClientObject *c = made->client;
    if (wr_catalog_is_old(c) && wr_catalog_due(c) && wr_hook(c, WR_HOOK_CATALOG, 0, "")) return -1;
    if (c->catalog_seen == made->catalog) return 0;
    PyErr_SetString(wr_session_lost, "the catalog has changed: route again");
    return -1;
}

static int blocked_while(ClientObject *c, int error, const wr_condition *blocked, uint64_t deadline, const char *what,
                         wr_made_from *made) {
    if (error == EAGAIN) {
        for (uint32_t server = 0; server < c->servers_n; server++) wr_port_submit(&c->a.port, server);
        int answer = wr_wait_while(c, blocked, deadline, WR_FOR_ROOM, made ? routes_gone : NULL, made);
        return answer <= 0 ? answer : timed_out(c, blocked->server, what);
    }
    return wr_blocked(c, error, blocked, deadline, what);
}

int wr_blocked(ClientObject *c, int error, const wr_condition *blocked, uint64_t deadline, const char *what) {
    switch (error) {
    case EAGAIN:
        return blocked_while(c, error, blocked, deadline, what, NULL);
    case ECONNRESET:
        if (wr_hook(c, WR_HOOK_EVICTED, blocked->server, what)) return -1;
        return wr_raise("PeerLost", "the server closed this client's link");
    case EMSGSIZE:
        return wr_raise("LimitError", "%s does not fit into the client's arena: raise the setting arena_bytes", what);
    default:
        PyErr_NoMemory();
        return -1;
    }
}

/* `blocked`, if any, counts us while we sleep; the region stays mapped as long as somebody is busy. */
static int nap(ClientObject *c, uint64_t ns, _Atomic uint32_t *blocked) {
    struct timespec t = {(time_t)(ns / 1000000000ull), (long)(ns % 1000000000ull)};
    c->busy++;
    if (blocked) atomic_fetch_add_explicit(blocked, 1, memory_order_relaxed);
    Py_BEGIN_ALLOW_THREADS
    nanosleep(&t, NULL);
    Py_END_ALLOW_THREADS
    if (blocked) atomic_fetch_sub_explicit(blocked, 1, memory_order_relaxed);
    c->busy--;
    wr_left(c);
    if (c->ended) return wr_enter_slow(c);
    if (PyErr_CheckSignals()) return -1;
    return c->ended ? wr_enter_slow(c) : 0;
}

int wr_nap(ClientObject *c, uint64_t ns) { return nap(c, ns, NULL); }

static bool alarmed(const ClientObject *c) {
    return atomic_load_explicit(&c->a.port.super->alarms, memory_order_relaxed) & (WR_ALARM_MEMORY | WR_ALARM_DISK);
}

/* made: of a publish of which nothing was handed over; else NULL. */
static int alarm_gate(ClientObject *c, uint64_t deadline, wr_made_from *made) {
    if (__builtin_expect(!alarmed(c), 1)) return 0;
    const uint32_t server = WR_SERVER_WORKER_FIRST;
    uint64_t now = wr_now_ns(), check_at = now + CHECK_NS;
    deadline = wr_by_when(c, deadline);
    do {
        if (deadline && now >= deadline) {
            if (wr_hook(c, WR_HOOK_TIMED_OUT, server, "publish")) return -1;
            return wr_raise("TimedOut", "publishing is blocked by an alarm");
        }
        if (nap(c, deadline && deadline - now < SLICE_NS / 2 ? deadline - now : SLICE_NS / 2, &c->a.port.view.client->blocked_alarm))
            return -1;
        if (atomic_load_explicit(&c->a.port.super->state, memory_order_relaxed) > WR_NODE_RUNNING &&
            wr_hook(c, WR_HOOK_STOPPING, server, "publish"))
            return -1;
        now = wr_now_ns();
        if (now >= check_at) { /* is there anybody left who could clear it? */
            if (wr_hook(c, WR_HOOK_CHECK, server, "publish")) return -1;
            check_at = now + CHECK_NS;
        }
        if (made && routes_gone(made)) {
            wr_note_deadline(deadline);
            return -1;
        }
    } while (alarmed(c));
    return 0;
}

int wr_alarm_gate(ClientObject *c, uint64_t deadline) { return alarm_gate(c, deadline, NULL); }

static int gate(ClientObject *c, uint64_t deadline, bool routed) {
    wr_superblock *super = c->a.port.super;
    if (__builtin_expect(atomic_load_explicit(&super->state, memory_order_relaxed) > WR_NODE_RUNNING, 0) &&
        wr_hook(c, WR_HOOK_STOPPING, WR_SERVER_WORKER_FIRST, "publish"))
        return -1;
    wr_made_from made = {c, c->catalog_seen};
    return alarm_gate(c, deadline, routed ? &made : NULL);
}

int wr_gate(ClientObject *c, uint64_t deadline) { return gate(c, deadline, false); }

/* ---- Route ------------------------------------------------------------------------------------------------------- */

#define ROUTE_IDS_MAX 1024

static int by_many_first(const void *a, const void *b) {
    const wr_target *x = a, *y = b;
    return (x->ids_n == 1) - (y->ids_n == 1);
}

/* Route([(server, [queue id, …]), …]) */
static PyObject *route_new(PyTypeObject *type, PyObject *args, PyObject *keywords) {
    PyObject *targets;
    if (keywords && PyDict_GET_SIZE(keywords)) return PyErr_Format(PyExc_TypeError, "no keywords");
    if (!PyArg_ParseTuple(args, "O!", &PyList_Type, &targets)) return NULL;
    Py_ssize_t n = PyList_GET_SIZE(targets), total = 0;
    for (Py_ssize_t t = 0; t < n; t++) {
        uint32_t server;
        PyObject *ids;
        if (!PyArg_ParseTuple(PyList_GET_ITEM(targets, t), "IO!", &server, &PyList_Type, &ids)) return NULL;
        total += PyList_GET_SIZE(ids);
        if (server >= WR_SERVERS_MAX || PyList_GET_SIZE(ids) < 1)
            return PyErr_Format(PyExc_ValueError, "a target is (server, [queue id, …])");
        if (PyList_GET_SIZE(ids) > ROUTE_IDS_MAX) {
            wr_raise("LimitError", "a message goes to %zd queues of one worker, more than %d: bind fewer, or raise the "
                                   "setting workers", PyList_GET_SIZE(ids), ROUTE_IDS_MAX);
            return NULL;
        }
    }
    if (n > WR_WORKERS_MAX) return PyErr_Format(PyExc_ValueError, "more targets than servers");
    RouteObject *self = (RouteObject *)type->tp_alloc(type, 0);
    if (!self) return NULL;
    self->route.ids = PyMem_Malloc(total ? (size_t)total * 4 : 4);
    if (!self->route.ids) {
        Py_DECREF(self);
        return PyErr_NoMemory();
    }
    uint32_t *to = self->route.ids;
    for (Py_ssize_t t = 0; t < n; t++) {
        wr_target *target = &self->route.targets[self->route.targets_n++];
        PyObject *ids = PyTuple_GET_ITEM(PyList_GET_ITEM(targets, t), 1);
        target->server = (uint32_t)PyLong_AsUnsignedLong(PyTuple_GET_ITEM(PyList_GET_ITEM(targets, t), 0));
        target->ids_n = (uint32_t)PyList_GET_SIZE(ids);
        target->ids = to;
        for (uint32_t i = 0; i < target->ids_n; i++) *to++ = (uint32_t)PyLong_AsUnsignedLong(PyList_GET_ITEM(ids, i));
        target->queue = target->ids[0];
        if (PyErr_Occurred()) {
            Py_DECREF(self);
            return NULL;
        }
    }
    qsort(self->route.targets, self->route.targets_n, sizeof(wr_target), by_many_first);
    return (PyObject *)self;
}

static void route_dealloc(RouteObject *self) {
    PyTypeObject *type = Py_TYPE(self);
    PyMem_Free(self->route.ids);
    type->tp_free(self);
    Py_DECREF(type);
}

static PyType_Slot route_slots[] = {{Py_tp_new, route_new},
                                    {Py_tp_dealloc, route_dealloc},
                                    {Py_tp_doc, "Where one message goes: Route([(server, [queue id, ...]), ...])."},
                                    {0, NULL}};
static PyType_Spec route_spec = {"warren.engine._core.Route", sizeof(RouteObject), 0, Py_TPFLAGS_DEFAULT, route_slots};

/* ---- publish ----------------------------------------------------------------------------------------------------- */

int wr_body_take(ClientObject *c, PyObject *object, uint64_t meta_length, wr_body *body) {
    body->buffer.obj = NULL;
    if (PyBytes_CheckExact(object)) {
        body->bytes = PyBytes_AS_STRING(object);
        body->length = PyBytes_GET_SIZE(object);
    } else {
        if (PyUnicode_Check(object) || PyObject_GetBuffer(object, &body->buffer, PyBUF_SIMPLE)) {
            PyErr_Clear();
            return wr_raise("UsageError", "a body is bytes, bytearray, memoryview or another contiguous buffer, not %s",
                            Py_TYPE(object)->tp_name);
        }
        body->bytes = body->buffer.buf;
        body->length = body->buffer.len;
    }
    if ((uint64_t)body->length + meta_length > c->a.message_bytes_max) {
        if (body->buffer.obj) PyBuffer_Release(&body->buffer);
        return wr_raise("MessageTooLarge",
                        "a message of %zd bytes (with %llu bytes of headers) is larger than message_bytes_max = %llu: "
                        "split it, or make the node with a larger message_bytes_max",
                        body->length, (unsigned long long)meta_length, (unsigned long long)c->a.message_bytes_max);
    }
    return 0;
}

void wr_lost_in_the_middle(void) {
    if (!PyErr_ExceptionMatches(wr_session_lost)) return;
    PyErr_Clear();
    wr_raise("PeerLost", "the attachment ended in the middle: a part of the messages may have been stored; none was confirmed");
}

/* What one message has besides body and metadata; all zero: a plain one. */
typedef struct {
    uint64_t expires, due;
    const uint8_t *key;
    bool transient;
} wr_extras;

/* From (expires | priority << 56, due, key or None, persistent), or None. The key stays in the tuple. */
static int extras_of(PyObject *options, wr_extras *extras) {
    *extras = (wr_extras){.key = NULL};
    if (!options || options == Py_None) return 0;
    if (!PyTuple_CheckExact(options) || PyTuple_GET_SIZE(options) != 4) {
        PyErr_SetString(PyExc_TypeError, "options are (expires, due, key, persistent)");
        return -1;
    }
    extras->expires = PyLong_AsUnsignedLongLong(PyTuple_GET_ITEM(options, 0));
    extras->due = PyLong_AsUnsignedLongLong(PyTuple_GET_ITEM(options, 1));
    if (PyErr_Occurred()) return -1;
    PyObject *key = PyTuple_GET_ITEM(options, 2);
    if (key != Py_None) {
        if (!PyBytes_CheckExact(key) || PyBytes_GET_SIZE(key) != WR_KEY_BYTES) {
            PyErr_SetString(PyExc_TypeError, "a key is 16 bytes");
            return -1;
        }
        extras->key = (const uint8_t *)PyBytes_AS_STRING(key);
    }
    extras->transient = PyTuple_GET_ITEM(options, 3) == Py_False;
    return 0;
}

/* Nothing goes to any queue of a route while one of its workers is given up: what the others took would be sent again. */
static int given_up(ClientObject *c, const wr_route *route) {
    wr_superblock *super = c->a.port.super;
    if (__builtin_expect(!(atomic_load_explicit(&super->alarms, memory_order_relaxed) & WR_ALARM_SERVER_FAILED), 1)) return 0;
    for (uint32_t t = 0; t < route->targets_n; t++) {
        uint32_t server = route->targets[t].server;
        if (server < c->servers_n &&
            atomic_load_explicit(&wr_superblock_server(super, server)->state, memory_order_acquire) == WR_SERVER_FAILED &&
            wr_hook(c, WR_HOOK_FAILED, server, "publish"))
            return -1;
    }
    return 0;
}

/* `first`: nothing of the call was handed over before. */
static int publish_one(ClientObject *c, const wr_route *route, const wr_body *body, const char *meta, uint16_t meta_length,
                       int level, uint64_t deadline, const wr_extras *extras, uint64_t *sequences, bool first) {
    uint32_t done = 0;
    wr_condition blocked;
    wr_made_from made = {c, c->catalog_seen};
    for (uint32_t t = 0; t < route->targets_n; t++)
        if (route->targets[t].server >= c->servers_n) return wr_raise("UsageError", "the route is of another node");
    if (given_up(c, route)) return -1;
    uint8_t flags = wr_flags_of(level);
    if (extras->transient) flags &= (uint8_t)~WR_FLAG_PERSISTENT;
    if (extras->key) flags |= WR_FLAG_DEDUPLICATE;
    wr_message message = {.meta = meta, .body = body->bytes, .key = extras->key, .length = (uint64_t)body->length,
                          .expires = extras->expires, .due = extras->due, .meta_length = meta_length, .flags = flags};
    wr_attachment_id(&c->a, message.id);
    for (;;) {
        int error = wr_attachment_publish(&c->a, route, &done, &message, sequences, &blocked);
        if (!error) break;
        deadline = wr_by_when(c, deadline);
        wr_made_from *begins = first && !done ? &made : NULL;
        if (blocked_while(c, error, &blocked, deadline, "room for the message", begins) || (!done && alarm_gate(c, deadline, begins))) {
            wr_note_deadline(deadline);
            if (done) wr_lost_in_the_middle();
            return -1;
        }
    }
    for (uint32_t t = 0; t < route->targets_n; t++) c->submitted[route->targets[t].server][level] = sequences[t] + 1;
    return 0;
}

static inline void submit(ClientObject *c, const wr_route *route) {
    for (uint32_t t = 0; t < route->targets_n; t++) wr_port_submit(&c->a.port, route->targets[t].server);
}

static int meta_of(PyObject *meta, const char **bytes, uint16_t *length) {
    *bytes = NULL;
    *length = 0;
    if (meta == Py_None) return 0;
    if (!PyBytes_CheckExact(meta)) {
        PyErr_SetString(PyExc_TypeError, "metadata is bytes");
        return -1;
    }
    if (PyBytes_GET_SIZE(meta) > UINT16_MAX)
        return wr_raise("MessageTooLarge", "exchange, routing key and headers take %zd bytes, more than %d",
                        PyBytes_GET_SIZE(meta), UINT16_MAX);
    *bytes = PyBytes_AS_STRING(meta);
    *length = (uint16_t)PyBytes_GET_SIZE(meta);
    return 0;
}

PyObject *wr_confirmed(ClientObject *c, const wr_route *route, const uint64_t *sequences, int level, uint64_t deadline,
                       bool wait, wr_runs *runs) {
    if (!wait) return wr_confirm_new(c, level, route, sequences, runs);
    bool unusual = false;
    for (uint32_t t = 0; t < route->targets_n; t++) {
        uint32_t server = route->targets[t].server;
        wr_condition condition = {wr_link_horizon(wr_attachment_link(&c->a, server), level), sequences[t], server};
        if (wr_wait_or_raise(c, &condition, deadline, WR_FOR_CONFIRM,
                             "the confirm (the message was handed over and may still be stored)")) {
            if (PyErr_ExceptionMatches(wr_session_lost)) {
                PyErr_Clear();
                wr_raise("PeerLost", "the attachment ended before the message was confirmed: it may or may not have been stored");
            }
            return NULL;
        }
        unusual |= c->a.results[server].n || wr_results_unusual(&c->a.results[server], wr_attachment_link(&c->a, server));
    }
    if (__builtin_expect(unusual, 0)) {
        wr_run one[WR_WORKERS_MAX];
        for (uint32_t t = 0; t < route->targets_n; t++) one[t] = (wr_run){route->targets[t].server, sequences[t], 1, 0};
        if (wr_results_check(c, runs ? runs->runs : one, runs ? runs->n : route->targets_n, runs != NULL, NULL)) return NULL;
    }
    Py_RETURN_NONE;
}

PyObject *wr_publish(ClientObject *c, const wr_route *route, PyObject *object, int level, PyObject *meta, PyObject *timeout,
                     bool wait, PyObject *options) {
    uint64_t deadline, sequences[WR_WORKERS_MAX];
    const char *meta_bytes;
    uint16_t meta_length;
    wr_body body;
    wr_extras extras;
    if (wr_deadline_of_call(timeout, wait, &deadline) || gate(c, deadline, true) || meta_of(meta, &meta_bytes, &meta_length) ||
        extras_of(options, &extras) || wr_body_take(c, object, meta_length, &body))
        return NULL;
    int error = publish_one(c, route, &body, meta_bytes, meta_length, level, deadline, &extras, sequences, true);
    wr_body_drop(&body);
    if (error) return NULL;
    submit(c, route);
    return wr_confirmed(c, route, sequences, level, deadline, wait, NULL);
}

/* Note where `count` messages of a batch went, from `index` on. */
static inline int run_note(wr_runs *runs, uint32_t server, uint64_t sequence, uint64_t index, uint64_t count) {
    uint32_t last = runs->last[server];
    if (last) {
        wr_run *run = &runs->runs[last - 1];
        if (run->first + run->count == sequence && run->index + run->count == index) {
            run->count += count;
            return 0;
        }
    }
    if (runs->n == runs->size) {
        uint32_t size = runs->size ? 2 * runs->size : 4;
        wr_run *more = PyMem_Realloc(runs->runs, size * sizeof *more);
        if (!more) {
            PyErr_NoMemory();
            return -1;
        }
        runs->runs = more;
        runs->size = size;
    }
    runs->runs[runs->n++] = (wr_run){server, sequence, count, index};
    runs->last[server] = runs->n;
    return 0;
}

/* What one call of wr_publish_many has to do. `routes`, `metas`, `options` are lists (fast sequences) or NULL: then the same for all. */
typedef struct {
    const wr_route *route;
    PyObject *routes, *metas, *options;
    wr_extras extras; /* without `options`: of all */
    const char *meta;
    uint16_t meta_length;
    int level;
    uint64_t deadline;
} wr_batch_plan;

static int plan_item(const wr_batch_plan *plan, Py_ssize_t i, const wr_route **route, const char **meta, uint16_t *meta_length,
                     wr_extras *own, const wr_extras **extras) {
    *extras = &plan->extras;
    if (plan->options) {
        if (i >= PySequence_Fast_GET_SIZE(plan->options)) return wr_raise("UsageError", "the list of options was changed during the call: give each call a list of its own");
        if (extras_of(PySequence_Fast_GET_ITEM(plan->options, i), own)) return -1;
        *extras = own;
    }
    *route = plan->route;
    *meta = plan->meta;
    *meta_length = plan->meta_length;
    if (plan->routes) {
        if (i >= PySequence_Fast_GET_SIZE(plan->routes)) return wr_raise("UsageError", "the list of routes was changed during the call: give each call a list of its own");
        PyObject *object = PySequence_Fast_GET_ITEM(plan->routes, i);
        if (!PyObject_TypeCheck(object, wr_route_type)) {
            PyErr_SetString(PyExc_TypeError, "routes must be Route objects");
            return -1;
        }
        *route = &((RouteObject *)object)->route;
    }
    if (plan->metas) {
        if (i >= PySequence_Fast_GET_SIZE(plan->metas)) return wr_raise("UsageError", "the list of headers was changed during the call: give each call a list of its own");
        return meta_of(PySequence_Fast_GET_ITEM(plan->metas, i), meta, meta_length);
    }
    return 0;
}

/* Messages from `sent` on that differ in their bodies alone and go to one server, as many as are submitted together. Nothing of Python
 * runs in between, so the list stays as it is. Returns how many; 0: the next one goes alone, which waits for room and says what is wrong. */
static uint32_t publish_some(ClientObject *c, const wr_batch_plan *plan, PyObject *list, Py_ssize_t sent, uint64_t *first) {
    const wr_route *route = plan->route;
    if (!route || plan->metas || plan->options || plan->extras.key || route->targets_n != 1) return 0;
    const wr_target *target = &route->targets[0];
    if (target->server >= c->servers_n ||
        atomic_load_explicit(&c->a.port.super->alarms, memory_order_relaxed) & WR_ALARM_SERVER_FAILED)
        return 0;
    wr_piece bodies[SUBMIT_EVERY];
    uint32_t n = 0, most = SUBMIT_EVERY - (uint32_t)(sent % SUBMIT_EVERY);
    Py_ssize_t size = PySequence_Fast_GET_SIZE(list);
    uint64_t room = wr_attachment_run_bytes(&c->a), each = 4ull * target->ids_n + plan->meta_length + 8;
    for (; n < most && sent + n < size; n++) {
        PyObject *object = PySequence_Fast_GET_ITEM(list, sent + n);
        if (!PyBytes_CheckExact(object)) break;
        bodies[n] = (wr_piece){PyBytes_AS_STRING(object), (uint64_t)PyBytes_GET_SIZE(object)};
        if (bodies[n].length + plan->meta_length > c->a.message_bytes_max || bodies[n].length + each > room) break;
        room -= bodies[n].length + each;
    }
    uint8_t flags = wr_flags_of(plan->level);
    if (plan->extras.transient) flags &= (uint8_t)~WR_FLAG_PERSISTENT;
    wr_message message = {.meta = plan->meta, .expires = plan->extras.expires, .due = plan->extras.due,
                          .meta_length = plan->meta_length, .flags = flags};
    if (n < 2 || !wr_attachment_publish_run(&c->a, target, &message, bodies, n, first)) return 0;
    c->submitted[target->server][plan->level] = *first + n;
    return n;
}

/* One body per element of `list` into the rings. Returns how many were handed over; *error when it ended early. */
static Py_ssize_t publish_list(ClientObject *c, const wr_batch_plan *plan, PyObject *list, uint64_t *last, bool *used,
                               wr_runs *runs, int *error) {
    uint64_t sequences[WR_WORKERS_MAX];
    Py_ssize_t sent = 0;
    /* The list may change under our feet while we wait for room without the GIL: its size is read anew each time. */
    for (; sent < PySequence_Fast_GET_SIZE(list); sent++) {
        uint64_t first;
        uint32_t some = publish_some(c, plan, list, sent, &first);
        if (some) {
            uint32_t server = plan->route->targets[0].server;
            if ((*error = run_note(runs, server, first, (uint64_t)sent, some))) return sent;
            last[server] = first + some - 1;
            used[server] = true;
            sent += (Py_ssize_t)some - 1;
            if (sent % SUBMIT_EVERY == SUBMIT_EVERY - 1) wr_port_submit(&c->a.port, server);
            continue;
        }
        const wr_route *route;
        const char *meta;
        uint16_t meta_length;
        wr_body body;
        wr_extras own;
        const wr_extras *extras;
        PyObject *object = Py_NewRef(PySequence_Fast_GET_ITEM(list, sent));
        *error = plan_item(plan, sent, &route, &meta, &meta_length, &own, &extras) || wr_body_take(c, object, meta_length, &body);
        if (!*error) {
            *error = publish_one(c, route, &body, meta, meta_length, plan->level, plan->deadline, extras, sequences, !sent);
            wr_body_drop(&body);
        }
        for (uint32_t t = 0; !*error && t < route->targets_n; t++)
            *error = run_note(runs, route->targets[t].server, sequences[t], (uint64_t)sent, 1);
        Py_DECREF(object);
        if (*error) return sent;
        bool now = sent % SUBMIT_EVERY == SUBMIT_EVERY - 1;
        for (uint32_t t = 0; t < route->targets_n; t++) {
            uint32_t server = route->targets[t].server;
            last[server] = sequences[t];
            used[server] = true;
        }
        for (uint32_t server = 0; now && server < c->servers_n; server++)
            if (used[server]) wr_port_submit(&c->a.port, server);
    }
    return sent;
}

/* `routes`: a Route, or a sequence of one per body; `meta`: None, bytes, or a sequence of one per body; `options` (NULL: plain) like `meta`. */
PyObject *wr_publish_many(ClientObject *c, const wr_route *route, PyObject *routes, PyObject *bodies, int level, PyObject *meta,
                          PyObject *timeout, bool wait, PyObject *options) {
    wr_batch_plan plan = {.route = route, .level = level};
    uint64_t last[WR_SERVERS_MAX];
    bool used[WR_SERVERS_MAX] = {false};
    wr_runs runs = {.runs = NULL};
    PyObject *list = NULL, *answer = NULL;
    if (wr_deadline_of_call(timeout, wait, &plan.deadline) || gate(c, plan.deadline, true)) return NULL;
    bool each = meta != Py_None && !PyBytes_Check(meta);
    if (!each && meta_of(meta, &plan.meta, &plan.meta_length)) return NULL;
    bool extras_each = options && options != Py_None && !PyTuple_CheckExact(options);
    if (!extras_each && extras_of(options, &plan.extras)) return NULL;
    list = wr_listed(bodies, "bodies");
    if (list && extras_each) plan.options = PySequence_Fast(options, "options must be one per body");
    if (list && each) plan.metas = PySequence_Fast(meta, "headers must be one per body");
    if (list && !route) plan.routes = PySequence_Fast(routes, "routes must be one per body");
    if (!list || PyErr_Occurred()) goto done;
    Py_ssize_t n = PySequence_Fast_GET_SIZE(list);
    if ((plan.metas && PySequence_Fast_GET_SIZE(plan.metas) != n) || (plan.routes && PySequence_Fast_GET_SIZE(plan.routes) != n) ||
        (plan.options && PySequence_Fast_GET_SIZE(plan.options) != n)) {
        wr_raise("UsageError", "there must be as many headers, routing keys and options as bodies (%zd)", n);
        goto done;
    }
    /* All are looked at before the first is sent: a wrong one refuses the whole batch. */
    for (Py_ssize_t i = 0; i < n && i < PySequence_Fast_GET_SIZE(list); i++) {
        PyObject *object = PySequence_Fast_GET_ITEM(list, i);
        const wr_route *to;
        const char *bytes;
        uint16_t length;
        wr_body body;
        wr_extras own;
        const wr_extras *extras;
        if (plan_item(&plan, i, &to, &bytes, &length, &own, &extras) || given_up(c, to)) goto done;
        if (PyBytes_CheckExact(object) && (uint64_t)PyBytes_GET_SIZE(object) + length <= c->a.message_bytes_max) continue;
        Py_INCREF(object); /* asking it for its buffer may run code that changes the list */
        int wrong = wr_body_take(c, object, length, &body);
        if (!wrong) wr_body_drop(&body);
        Py_DECREF(object);
        if (wrong) goto done;
    }
    int error = 0;
    Py_ssize_t sent = publish_list(c, &plan, list, last, used, &runs, &error);
    wr_route touched = {.targets_n = 0};
    uint64_t sequences[WR_SERVERS_MAX];
    for (uint32_t server = 0; server < c->servers_n && touched.targets_n < WR_WORKERS_MAX; server++) {
        if (!used[server]) continue;
        if (c->open && !c->ended) wr_port_submit(&c->a.port, server);
        sequences[touched.targets_n] = last[server];
        touched.targets[touched.targets_n++] = (wr_target){.server = server, .ids_n = 1};
    }
    if (error) {
        if (sent) wr_lost_in_the_middle();
        goto done;
    }
    answer = wr_confirmed(c, &touched, sequences, level, plan.deadline, wait, &runs);
done:
    PyMem_Free(runs.runs);
    Py_XDECREF(plan.options);
    Py_XDECREF(list);
    Py_XDECREF(plan.metas);
    Py_XDECREF(plan.routes);
    return answer;
}

int wr_level_of(PyObject *argument, int *level) {
    long value = PyLong_AsLong(argument);
    if (value == -1 && PyErr_Occurred()) return -1;
    if (value < WR_LEVEL_NONE || value > WR_LEVEL_SYNCED) {
        PyErr_SetString(PyExc_ValueError, "a level is 0, 1 or 2");
        return -1;
    }
    *level = (int)value;
    return 0;
}

#define WANT(n, names)                                                                \
    if (given != (n)) return PyErr_Format(PyExc_TypeError, "arguments: %s", names)

/* Ready to publish by routes? They were made from a version of the catalog. */
static int routes_hold(ClientObject *c) {
    if (wr_enter(c)) return -1;
    if (!wr_catalog_is_old(c)) return 0;
    if (!wr_hook(c, WR_HOOK_CATALOG, 0, "")) PyErr_SetString(wr_session_lost, "the catalog has changed: route again");
    return -1;
}

static PyObject *client_publish(PyObject *op, PyObject *const *args, Py_ssize_t given) {
    ClientObject *c = (ClientObject *)op;
    if (given != 7) WANT(6, "route, body, level, meta, timeout, wait, options=None");
    int level;
    if (!PyObject_TypeCheck(args[0], wr_route_type)) return PyErr_Format(PyExc_TypeError, "route must be a Route");
    if (routes_hold(c) || wr_level_of(args[2], &level)) return NULL;
    return wr_publish(c, &((RouteObject *)args[0])->route, args[1], level, args[3], args[4], args[5] == Py_True,
                      given == 7 ? args[6] : NULL);
}

static PyObject *client_publish_many(PyObject *op, PyObject *const *args, Py_ssize_t given) {
    ClientObject *c = (ClientObject *)op;
    if (given != 7) WANT(6, "routes, bodies, level, metas, timeout, wait, options=None");
    int level;
    if (routes_hold(c) || wr_level_of(args[2], &level)) return NULL;
    const wr_route *one = PyObject_TypeCheck(args[0], wr_route_type) ? &((RouteObject *)args[0])->route : NULL;
    return wr_publish_many(c, one, args[0], args[1], level, args[3], args[4], args[5] == Py_True, given == 7 ? args[6] : NULL);
}

/* ---- control, barrier -------------------------------------------------------------------------------------------- */

static PyObject *client_control(PyObject *op, PyObject *const *args, Py_ssize_t given) {
    ClientObject *c = (ClientObject *)op;
    uint32_t server;
    uint64_t deadline, sequence;
    wr_condition blocked;
    WANT(3, "server, request, timeout");
    if (wr_enter(c) || server_of(c, args[0], &server) || wr_deadline(args[2], &deadline)) return NULL;
    if (!PyBytes_Check(args[1])) return PyErr_Format(PyExc_TypeError, "a request is bytes");
    for (;;) {
        int error = wr_attachment_blob(&c->a, server, WR_OP_CONTROL, 0, 0, 0, PyBytes_AS_STRING(args[1]),
                                       (uint64_t)PyBytes_GET_SIZE(args[1]), &sequence, &blocked);
        if (!error) break;
        if (wr_blocked(c, error, &blocked, deadline, "room for a request")) return NULL;
    }
    wr_port_submit(&c->a.port, server);
    wr_link *link = wr_attachment_link(&c->a, server);
    wr_condition condition = {&link->processed, sequence, server};
    if (wr_wait_or_raise(c, &condition, deadline, WR_FOR_REPLY, "the worker's answer")) return NULL;
    uint32_t result = atomic_load_explicit(&wr_view_command(&c->a.port.view, server, sequence)->result, memory_order_acquire);
    uint32_t length = link->reply_length;
    if (length > c->a.port.view.g.reply_bytes) length = c->a.port.view.g.reply_bytes;
    return Py_BuildValue("(Iy#)", result, wr_view_reply(&c->a.port.view, server), (Py_ssize_t)length);
}

/* One command without a blob, and its end: processed, or with a level what that horizon says. Returns the result. */
static PyObject *client_barrier(PyObject *op, PyObject *const *args, Py_ssize_t given) {
    ClientObject *c = (ClientObject *)op;
    uint32_t server;
    int level;
    uint64_t deadline, sequence;
    wr_condition blocked;
    WANT(3, "server, level, timeout");
    if (wr_enter(c) || server_of(c, args[0], &server) || wr_level_of(args[1], &level) || wr_deadline(args[2], &deadline)) return NULL;
    uint8_t flags = level == WR_LEVEL_SYNCED ? WR_FLAG_SYNCED : level == WR_LEVEL_WRITTEN ? WR_FLAG_WRITTEN : 0;
    uint8_t code = server < WR_SERVER_WORKER_FIRST ? WR_OP_STORE_BARRIER : WR_OP_BARRIER;
    for (;;) {
        int error = wr_attachment_command(&c->a, server, code, flags, 0, 0, NULL, &sequence, &blocked);
        if (!error) break;
        if (wr_blocked(c, error, &blocked, deadline, "room for a barrier")) return NULL;
    }
    wr_port_submit(&c->a.port, server);
    wr_condition condition = {wr_link_horizon(wr_attachment_link(&c->a, server), level), sequence, server};
    if (wr_wait_or_raise(c, &condition, deadline, WR_FOR_REPLY, "the barrier")) return NULL;
    Py_RETURN_NONE;
}

/* wait_delivery(server, timeout): True when messages of the worker lie here or were pushed, or it was restarted; False: time is up. */
static PyObject *client_wait_delivery(PyObject *op, PyObject *const *args, Py_ssize_t given) {
    ClientObject *c = (ClientObject *)op;
    uint32_t server;
    uint64_t deadline;
    WANT(2, "server, timeout");
    if (wr_enter(c) || server_of(c, args[0], &server) || wr_deadline(args[1], &deadline)) return NULL;
    for (;;) {
        for (uint32_t i = 0; i < c->a.consumers_size; i++) {
            const wr_client_consumer *consumer = c->a.consumers[i];
            if (consumer && consumer->server == server && wr_client_consumer_pending(consumer)) Py_RETURN_TRUE;
        }
        wr_condition condition = wr_attachment_delivery(&c->a, server);
        if (wr_condition_met(&condition) ||
            atomic_load_explicit(&wr_attachment_link(&c->a, server)->server_epoch, memory_order_acquire) != c->a.workers[server].epoch)
            Py_RETURN_TRUE;
        int answer = wr_wait(c, &condition, deadline, WR_FOR_DELIVERY);
        if (answer < 0 || wr_enter(c)) return NULL;
        if (answer) Py_RETURN_FALSE;
    }
}

/* settle(timeout): wait until everything submitted has reached the level that it asked for; False when time was up. */
static PyObject *client_settle(PyObject *op, PyObject *const *args, Py_ssize_t given) {
    ClientObject *c = (ClientObject *)op;
    uint64_t deadline;
    WANT(1, "timeout");
    if (wr_enter(c) || wr_deadline(args[0], &deadline)) return NULL;
    for (uint32_t server = 0; server < c->servers_n; server++) {
        wr_port_submit(&c->a.port, server);
        uint64_t tail = atomic_load_explicit(&wr_attachment_link(&c->a, server)->tail, memory_order_relaxed);
        for (int level = 0; level < 3; level++) {
            uint64_t wanted = level == WR_LEVEL_NONE ? tail : c->submitted[server][level];
            if (!wanted) continue;
            wr_condition condition = {wr_link_horizon(wr_attachment_link(&c->a, server), level), wanted - 1, server};
            int answer = wr_wait(c, &condition, deadline, WR_FOR_CONFIRM);
            if (answer < 0) return NULL;
            if (answer) Py_RETURN_FALSE;
        }
    }
    Py_RETURN_TRUE;
}

static PyObject *client_horizons(PyObject *op, PyObject *argument) {
    ClientObject *c = (ClientObject *)op;
    uint32_t server;
    if (wr_enter(c) || server_of(c, argument, &server)) return NULL;
    wr_link *l = wr_attachment_link(&c->a, server);
    return Py_BuildValue("{sKsKsKsKsK}", "tail", (unsigned long long)atomic_load(&l->tail), "processed",
                         (unsigned long long)atomic_load(&l->processed), "written", (unsigned long long)atomic_load(&l->written),
                         "synced", (unsigned long long)atomic_load(&l->synced), "head", (unsigned long long)atomic_load(&l->head));
}

/* ---- life -------------------------------------------------------------------------------------------------------- */

static void drop_buffer(Py_buffer *buffer) {
    if (buffer->obj) PyBuffer_Release(buffer);
    buffer->obj = NULL;
}

/* Release what is mapped. Nobody is inside. */
static void release_memory(ClientObject *c) {
    if (!c->open) return;
    c->open = false;
    wr_attachment_free(&c->a);
    for (uint32_t i = 0; i < WR_SERVERS_MAX; i++) {
        drop_buffer(&c->images[i]);
        drop_buffer(&c->transient_images[i]);
    }
    wr_store_side_close(c);
    drop_buffer(&c->region);
    drop_buffer(&c->super);
}

static PyObject *client_new(PyTypeObject *type, PyObject *args, PyObject *keywords) {
    PyObject *super, *region, *hook;
    unsigned int slot, generation;
    unsigned long long epoch;
    if (keywords && PyDict_GET_SIZE(keywords)) return PyErr_Format(PyExc_TypeError, "no keywords");
    if (!PyArg_ParseTuple(args, "OOIIKO", &super, &region, &slot, &generation, &epoch, &hook)) return NULL;
    ClientObject *c = (ClientObject *)type->tp_alloc(type, 0);
    if (!c) return NULL;
    c->forks = wr_forks;
    c->hook = Py_NewRef(hook);
    int error = 0;
    if (PyObject_GetBuffer(super, &c->super, PyBUF_WRITABLE) || PyObject_GetBuffer(region, &c->region, PyBUF_WRITABLE)) goto failed;
    if (c->super.len < WR_SUPERBLOCK_BYTES) error = EINVAL;
    if (!error)
        error = wr_attachment_init(&c->a, c->super.buf, c->region.buf, (uint64_t)c->region.len, slot, generation, epoch);
    if (!error && (error = wr_store_side_open(c))) wr_attachment_free(&c->a);
    if (error) {
        errno = error;
        PyErr_SetFromErrno(PyExc_OSError); /* whoever attaches says more */
        goto failed;
    }
    c->open = true;
    c->servers_n = c->a.port.view.g.servers_n;
    c->catalog_seen = UINT64_MAX;
    return (PyObject *)c;
failed:
    drop_buffer(&c->super);
    drop_buffer(&c->region);
    Py_DECREF(c);
    return NULL;
}

/* end(error, forked): nothing is submitted any more; whoever waits gets `error`. In a forked child the region is not touched. */
static PyObject *client_end(PyObject *op, PyObject *const *args, Py_ssize_t given) {
    ClientObject *c = (ClientObject *)op;
    WANT(1, "error");
    if (c->ended) Py_RETURN_NONE;
    if (args[0] != Py_None && !PyExceptionInstance_Check(args[0])) return PyErr_Format(PyExc_TypeError, "an exception or None");
    bool child = c->forks != wr_forks;
    for (uint32_t server = 0; c->open && !child && server < c->servers_n; server++)
        for (int level = 0; level < 3; level++)
            c->final[server][level] =
                atomic_load_explicit(wr_link_horizon(wr_attachment_link(&c->a, server), level), memory_order_acquire);
    for (uint32_t server = 0; c->open && !child && server < c->servers_n; server++) wr_results_look(&c->a.results[server], &c->a.port, server);
    c->ended = true;
    if (args[0] != Py_None) c->end_error = Py_NewRef(args[0]);
    if (child) c->busy = 0; /* those threads do not exist here */
    if (c->open && !child) wr_attachment_wake(c->a.port.view.client);
    if (c->busy) wr_waiter_kick();
    if (!c->busy) release_memory(c);
    Py_RETURN_NONE;
}

/* set_worker(server, images, transient_images, journal_fd, transient_fd, segments_fd, epoch): regions (None: not there) and
 * folders of this incarnation of a worker. The descriptors are the client's from now on. Consumers begin anew. */
static PyObject *client_set_worker(PyObject *op, PyObject *const *args, Py_ssize_t given) {
    ClientObject *c = (ClientObject *)op;
    uint32_t server;
    WANT(7, "server, images, transient_images, journal_fd, transient_fd, segments_fd, epoch");
    if (wr_enter(c) || server_of(c, args[0], &server)) return NULL;
    uint64_t epoch = PyLong_AsUnsignedLongLong(args[6]);
    int fds[3];
    Py_buffer fresh[2] = {{.obj = NULL}, {.obj = NULL}};
    for (int i = 0; i < 3; i++) fds[i] = (int)PyLong_AsLong(args[3 + i]);
    if (PyErr_Occurred()) return NULL;
    for (int i = 0; i < 2; i++) {
        if (args[1 + i] != Py_None && PyObject_GetBuffer(args[1 + i], &fresh[i], PyBUF_SIMPLE)) goto failed;
        uint64_t least = WR_PAGE_BYTES + (uint64_t)c->a.images_n * c->a.file_bytes;
        if (fresh[i].obj && (uint64_t)fresh[i].len < least) {
            PyErr_SetString(PyExc_ValueError, "an images region is smaller than its images");
            goto failed;
        }
    }
    if (wr_attachment_intake(&c->a, server) == ENOMEM) { /* what the predecessor pushed still counts for it */
        PyErr_NoMemory();
        goto failed;
    }
    c->busy++;
    Py_BEGIN_ALLOW_THREADS
    pthread_mutex_lock(&c->a.bodies.lock);
    Py_END_ALLOW_THREADS
    c->busy--;
    if (c->ended) {
        pthread_mutex_unlock(&c->a.bodies.lock);
        wr_left(c);
        wr_enter_slow(c);
        goto failed;
    }
    wr_bodies_set(&c->a.bodies, server, fds[0], fds[1], fds[2]);
    pthread_mutex_unlock(&c->a.bodies.lock);
    drop_buffer(&c->images[server]);
    drop_buffer(&c->transient_images[server]);
    c->images[server] = fresh[0];
    c->transient_images[server] = fresh[1];
    wr_worker_side *side = &c->a.workers[server];
    side->images = fresh[0].obj ? fresh[0].buf : NULL;
    side->transient_images = fresh[1].obj ? fresh[1].buf : NULL;
    /* Several threads may have seen the new worker at once. The second must not forget what the first has announced to it since:
     * a credit counted from 0 again would be below what was delivered, and nothing more would ever come. */
    bool anew = side->epoch != epoch;
    side->epoch = epoch;
    for (uint32_t i = 0; anew && i < c->a.consumers_size; i++) {
        wr_client_consumer *consumer = c->a.consumers[i];
        if (!consumer || consumer->server != server) continue;
        wr_client_consumer_recheck(&c->a, consumer);
        consumer->popped = consumer->granted = 0;
        consumer->announced = false;
    }
    Py_RETURN_NONE;
failed:
    drop_buffer(&fresh[0]);
    drop_buffer(&fresh[1]);
    return NULL;
}

static PyObject *client_link_epoch(PyObject *op, PyObject *argument) {
    ClientObject *c = (ClientObject *)op;
    uint32_t server;
    if (wr_enter(c) || server_of(c, argument, &server)) return NULL;
    return PyLong_FromUnsignedLongLong(atomic_load_explicit(&wr_attachment_link(&c->a, server)->server_epoch, memory_order_acquire));
}

static PyObject *client_evicted(PyObject *op, PyObject *argument) {
    ClientObject *c = (ClientObject *)op;
    uint32_t server;
    if (wr_enter(c) || server_of(c, argument, &server)) return NULL;
    return PyLong_FromUnsignedLong(atomic_load(&wr_attachment_link(&c->a, server)->evicted));
}

static PyObject *client_next_id(PyObject *op, PyObject *unused) {
    ClientObject *c = (ClientObject *)op;
    (void)unused;
    uint8_t id[16];
    if (wr_enter(c)) return NULL;
    wr_attachment_id(&c->a, id);
    return PyBytes_FromStringAndSize((char *)id, 16);
}

static PyObject *client_get_ended(PyObject *op, void *closure) {
    (void)closure;
    ClientObject *c = (ClientObject *)op;
    return PyBool_FromLong(c->ended || c->forks != wr_forks);
}

static PyObject *client_get_busy(PyObject *op, void *closure) {
    (void)closure;
    return PyLong_FromUnsignedLong(((ClientObject *)op)->busy);
}

static PyObject *client_get_catalog(PyObject *op, void *closure) {
    (void)closure;
    return PyLong_FromUnsignedLongLong(((ClientObject *)op)->catalog_seen);
}

static int client_set_catalog(PyObject *op, PyObject *value, void *closure) {
    (void)closure;
    uint64_t version = value ? PyLong_AsUnsignedLongLong(value) : 0;
    if (PyErr_Occurred()) return -1;
    ((ClientObject *)op)->catalog_seen = version;
    return 0;
}

static int client_traverse(PyObject *op, visitproc visit, void *arg) {
    ClientObject *c = (ClientObject *)op;
    Py_VISIT(Py_TYPE(op));
    Py_VISIT(c->hook);
    Py_VISIT(c->end_error);
    return 0;
}

static int client_clear(PyObject *op) {
    ClientObject *c = (ClientObject *)op;
    Py_CLEAR(c->end_error);
    PyObject *none = Py_NewRef(Py_None); /* never NULL: somebody may still call it */
    Py_SETREF(c->hook, none);
    return 0;
}

static void client_dealloc(PyObject *op) {
    ClientObject *c = (ClientObject *)op;
    PyTypeObject *type = Py_TYPE(op);
    PyObject_GC_UnTrack(op);
    if (c->open) release_memory(c);
    PyMem_RawFree(c->wants);
    for (uint32_t server = 0; server < WR_SERVERS_MAX; server++) wr_results_free(&c->a.results[server]); /* they outlive the attachment */
    Py_XDECREF(c->hook);
    Py_XDECREF(c->end_error);
    type->tp_free(op);
    Py_DECREF(type);
}

static PyMethodDef client_methods[] = {
    {"publish", (PyCFunction)(void (*)(void))client_publish, METH_FASTCALL, "publish(route, body, level, meta, timeout, wait, options=None)"},
    {"publish_many", (PyCFunction)(void (*)(void))client_publish_many, METH_FASTCALL,
     "publish_many(route or routes, bodies, level, meta or metas, timeout, wait, options=None)"},
    {"control", (PyCFunction)(void (*)(void))client_control, METH_FASTCALL, "control(server, request, timeout) -> (result, reply)"},
    {"barrier", (PyCFunction)(void (*)(void))client_barrier, METH_FASTCALL, "barrier(server, level, timeout)"},
    {"wait_delivery", (PyCFunction)(void (*)(void))client_wait_delivery, METH_FASTCALL, "wait_delivery(server, timeout) -> bool"},
    {"settle", (PyCFunction)(void (*)(void))client_settle, METH_FASTCALL, "settle(timeout) -> bool"},
    {"horizons", client_horizons, METH_O, "horizons(server) -> dict"},
    {"end", (PyCFunction)(void (*)(void))client_end, METH_FASTCALL, "end(error)"},
    {"set_worker", (PyCFunction)(void (*)(void))client_set_worker, METH_FASTCALL,
     "set_worker(server, images, transient_images, journal_fd, transient_fd, segments_fd, epoch)"},
    {"link_epoch", client_link_epoch, METH_O, "link_epoch(server): epoch of the server that serves the link"},
    {"evicted", client_evicted, METH_O, "evicted(server): why the server closed the link, 0 if it did not"},
    {"watch", (PyCFunction)(void (*)(void))wr_client_watch, METH_FASTCALL, "watch(server, kind, above) -> bool: see wait_any; True: met already"},
    {"room", (PyCFunction)(void (*)(void))wr_client_room, METH_FASTCALL,
     "room(server, commands, bytes, largest) -> None, or (server, head) to wait for"},
    {"check", wr_client_check, METH_O, "check(server): the hook looks whether anybody is left who could answer"},
    {"lying", wr_client_lying, METH_O, "lying(server) -> list: ids of queues with messages that lie here"},
    {"trouble", (PyCFunction)(void (*)(void))wr_client_trouble, METH_FASTCALL, "trouble(server, purpose) -> code for the hook, or 0"},
    {"next_id", client_next_id, METH_NOARGS, "next_id() -> bytes: a new message id"},
    {"columns", (PyCFunction)(void (*)(void))wr_columns, METH_FASTCALL, "columns(handle, rows): messages of a browse answer for Arrow"},
    {"set_store", (PyCFunction)(void (*)(void))wr_store_set, METH_FASTCALL,
     "set_store(store, directory, summary, images, folder, epoch)"},
    {"store_dying", wr_face_dying, METH_O, "store_dying(store) -> commands processed: a delete_and_terminate begins"},
    {"store_terminate", (PyCFunction)(void (*)(void))wr_face_terminate, METH_FASTCALL,
     "store_terminate(store, since, timeout) -> int: its end; how many commands were masked"},
    {"deliveries", (PyCFunction)(void (*)(void))wr_deliveries, METH_FASTCALL,
     "deliveries(handle, rows) -> list: messages of a browse answer (None for one that is gone)"},
    {NULL, NULL, 0, NULL}};

static PyObject *client_get_call_timeout(PyObject *op, void *unused) {
    (void)unused;
    const ClientObject *c = (ClientObject *)op;
    if (!c->call_ns) Py_RETURN_NONE;
    return PyFloat_FromDouble((double)c->call_ns / 1e9);
}

static int client_set_call_timeout(PyObject *op, PyObject *value, void *unused) {
    (void)unused;
    ClientObject *c = (ClientObject *)op;
    double seconds = value && value != Py_None ? PyFloat_AsDouble(value) : 0.0;
    if (PyErr_Occurred()) return -1;
    if (value && value != Py_None && !(seconds > 0.0))
        return wr_raise("UsageError", "call_timeout must be None or a number of seconds above 0");
    c->call_ns = seconds > 1e9 ? 0 : (uint64_t)(seconds * 1e9);
    return 0;
}

static PyObject *client_get_over(PyObject *op, void *closure) {
    (void)closure;
    const ClientObject *c = (ClientObject *)op;
    return PyBool_FromLong(c->ended || c->forks != wr_forks || !c->open || wr_node_stopped(c));
}

static PyObject *client_get_behind(PyObject *op, void *closure) {
    (void)closure;
    const ClientObject *c = (ClientObject *)op;
    return PyBool_FromLong(c->forks != wr_forks || !c->open || wr_catalog_is_old(c));
}

static PyGetSetDef client_attributes[] = {
    {"call_timeout", client_get_call_timeout, client_set_call_timeout,
     "seconds that calls without a timeout wait for room, when they do not wait for what becomes of it; None: without end", NULL},
    {"ended", client_get_ended, NULL, "end() was called, or this is a forked child", NULL},
    {"over", client_get_over, NULL, "it has ended, or its node was stopped: what it knows is of the past", NULL},
    {"behind", client_get_behind, NULL, "the catalog has another version than catalog_seen, or cannot be asked any more", NULL},
    {"busy", client_get_busy, NULL, "threads that wait or read inside; the memory is theirs until they are out", NULL},
    {"catalog_seen", client_get_catalog, client_set_catalog, "catalog version that the routes were made from", NULL},
    {NULL, NULL, NULL, NULL, NULL}};

static PyType_Slot client_slots[] = {
    {Py_tp_new, client_new},         {Py_tp_dealloc, client_dealloc}, {Py_tp_traverse, client_traverse},
    {Py_tp_clear, client_clear},     {Py_tp_methods, client_methods}, {Py_tp_getset, client_attributes},
    {Py_tp_doc, "Client(superblock, region, slot, generation, client_epoch, hook): one attachment of this process to a node."},
    {0, NULL}};
static PyType_Spec client_spec = {"warren.engine._core.Client", sizeof(ClientObject), 0,
                                  Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, client_slots};

int wr_bind_client(PyObject *module) {
    static bool watching;
    if (!watching && pthread_atfork(NULL, NULL, forked)) {
        PyErr_NoMemory();
        return -1;
    }
    watching = true;
    struct {
        PyType_Spec *spec;
        PyTypeObject **type;
        const char *name;
    } types[] = {{&client_spec, &wr_client_type, "Client"}, {&wr_confirm_spec, &wr_confirm_type, "Confirm"},
                 {&route_spec, &wr_route_type, "Route"}};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        *types[i].type = (PyTypeObject *)PyType_FromModuleAndSpec(module, types[i].spec, NULL);
        if (!*types[i].type || PyModule_AddObjectRef(module, types[i].name, (PyObject *)*types[i].type)) return -1;
    }
    wr_session_lost = PyErr_NewExceptionWithDoc("warren.engine._core.SessionLost",
                                                "This attachment is over: make another one and call again.", NULL, NULL);
    if (!wr_session_lost || PyModule_AddObjectRef(module, "SessionLost", wr_session_lost)) return -1;
    const struct {
        const char *name;
        int value;
    } numbers[] = {{"HOOK_CHECK", WR_HOOK_CHECK},       {"HOOK_EPOCH", WR_HOOK_EPOCH},         {"HOOK_EVICTED", WR_HOOK_EVICTED},
                   {"HOOK_FROZEN", WR_HOOK_FROZEN},     {"HOOK_STOPPING", WR_HOOK_STOPPING},   {"HOOK_FAILED", WR_HOOK_FAILED},
                   {"HOOK_TIMED_OUT", WR_HOOK_TIMED_OUT}, {"HOOK_CATALOG", WR_HOOK_CATALOG}, {"HOOK_HOT", WR_HOOK_HOT},
                   {"HOOK_SILENT", WR_HOOK_SILENT}, {"LEVEL_NONE", WR_LEVEL_NONE},
                   {"LEVEL_WRITTEN", WR_LEVEL_WRITTEN}, {"LEVEL_SYNCED", WR_LEVEL_SYNCED}};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        if (PyModule_AddIntConstant(module, numbers[i].name, numbers[i].value)) return -1;
    return wr_bind_consumer(module) || wr_bind_store_type(module) || wr_bind_wait(module) ? -1 : 0;
}
