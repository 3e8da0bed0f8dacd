/* An attachment as Python holds it: may it be used, how one waits in it, what ends a wait, and the gate before a
 * publish.
 *
 * Invariants
 *   State of the port is only touched under the GIL. Whoever waits lets the GIL go with a wr_condition alone, and
 *   counts itself in `busy`: the regions are released by end() or by the last waiter after it, so no waiter loses its
 *   memory.
 *   After a fork the child's calls fail with AttachmentLost before they touch the parent's region (`wr_module.forks`).
 *   Trouble (server restarted, link closed, node stopping, disk failed) goes to Python's hook, which mends it or
 *   raises.
 */
#include "binding/session.h"
#include <stdarg.h>

#define SLICE_NS 50000000ull
#define CHECK_NS 1000000000ull
#define SPIN_NS_MIN 2000ull
#define SPIN_NS_MAX 40000ull

/* ---- errors, arguments, deadlines
 * --------------------------------------------------------------------------------- */

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

int wr_raise_given(const char *name, PyObject *given, const char *format, ...) {
    PyObject *module = PyImport_ImportModule("warren.engine.saying");
    PyObject *shown = module ? PyObject_CallMethod(module, "shown", "O", given) : NULL;
    PyObject *wanted = NULL;
    if (shown) {
        va_list arguments;
        va_start(arguments, format);
        wanted = PyUnicode_FromFormatV(format, arguments);
        va_end(arguments);
    }
    if (wanted) wr_raise(name, "%U, not %U", wanted, shown);
    Py_XDECREF(wanted);
    Py_XDECREF(shown);
    Py_XDECREF(module);
    return -1;
}

PyObject *wr_listed(PyObject *given, const char *what) {
    if (PyList_CheckExact(given) || PyTuple_CheckExact(given)) return Py_NewRef(given);
    PyObject *iterator = PyObject_GetIter(given);
    if (!iterator) {
        if (!PyErr_ExceptionMatches(PyExc_TypeError)) return NULL;
        PyErr_Clear();
        wr_raise("UsageError", "%s must be a list or another iterable, not %s", what, Py_TYPE(given)->tp_name);
        return NULL;
    }
    PyObject *list = PySequence_List(iterator);
    Py_DECREF(iterator);
    return list;
}

int wr_raise_errno(int error, const char *doing) {
    PyObject *module = PyImport_ImportModule("warren.engine.kernel.atomic_file");
    PyObject *told = module ? PyObject_CallMethod(module, "explain_errno", "is", error, doing) : NULL;
    if (told) PyErr_SetObject((PyObject *)Py_TYPE(told), told);
    Py_XDECREF(told);
    Py_XDECREF(module);
    return -1;
}

/* How long the call of this thread may take, as its caller said; below 0: he did not. For what is said when it is late. */
static __thread double limit_s = -1.0;

void wr_limit(double seconds) { limit_s = seconds; }

int wr_hook(ClientObject *c, int code, uint32_t server, const char *what) {
    PyObject *hook = Py_NewRef(c->hook);
    double mine = limit_s; /* the hook may make calls of its own */
    bool late = code == WR_HOOK_TIMED_OUT || code == WR_HOOK_SILENT;
    PyObject *answer = late ? PyObject_CallFunction(hook, "iIsd", code, server, what, mine)
                            : PyObject_CallFunction(hook, "iIs", code, server, what ? what : "");
    limit_s = mine;
    Py_DECREF(hook);
    if (!answer) return -1;
    Py_DECREF(answer);
    return c->ended ? wr_enter_slow(c) : 0;
}

int wr_enter_slow(ClientObject *c) {
    if (c->forks != wr_module.forks)
        PyErr_SetString(wr_module.attachment_lost, "this attachment belongs to the parent process");
    else if (c->end_error)
        PyErr_SetObject((PyObject *)Py_TYPE(c->end_error), c->end_error);
    else
        PyErr_SetString(wr_module.attachment_lost, "this attachment has ended");
    return -1;
}

int wr_deadline_from(PyObject *timeout, uint64_t now, uint64_t *deadline, bool *zero) {
    *deadline = 0;
    *zero = false;
    limit_s = -1.0;
    if (timeout == Py_None) return 0;
    double seconds = PyBool_Check(timeout) ? -2.0 : PyFloat_AsDouble(timeout);
    if (seconds == -1.0 && PyErr_Occurred()) {
        if (!PyErr_ExceptionMatches(PyExc_TypeError) && !PyErr_ExceptionMatches(PyExc_OverflowError)) return -1;
        PyErr_Clear();
        seconds = -1.0;
    }
    if (!(seconds >= 0.0)) return wr_raise_given("UsageError", timeout, "timeout must be None or a non-negative number of seconds");
    *zero = seconds == 0.0;
    limit_s = seconds;
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
    limit_s = c->call_ns ? (double)c->call_ns / 1e9 : -1.0;
    return c->call_ns ? wr_now_ns() + c->call_ns : 0;
}

int wr_server_of(ClientObject *c, PyObject *argument, uint32_t *server) {
    unsigned long value = PyLong_AsUnsignedLong(argument);
    if (value == (unsigned long)-1 && PyErr_Occurred()) return -1;
    if (value >= c->servers_n) {
        PyErr_Format(PyExc_ValueError, "server %lu is not one of %u", value, c->servers_n);
        return -1;
    }
    *server = (uint32_t)value;
    return 0;
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

/* Are there Python objects in a buffer of this format (of the module struct; names stand between colons)? Their bytes are addresses. */
static bool holds_objects(const char *format) {
    bool name = false;
    for (; format && *format; format++) {
        if (*format == ':') name = !name;
        else if (*format == 'O' && !name) return true;
    }
    return false;
}

/* The bytes of a buffer; -1: what is wrong with the object was raised. */
static int buffer_of(PyObject *object, Py_buffer *to) {
    static const char *const what = "a body is bytes, bytearray, memoryview or another contiguous buffer of plain values";
    const char *type = Py_TYPE(object)->tp_name;
    if (PyUnicode_Check(object) || !PyObject_CheckBuffer(object)) return wr_raise("UsageError", "%s, not %s", what, type);
    /* some have no word for what they hold, as arrays of dates: then it is no object */
    if (PyObject_GetBuffer(object, to, PyBUF_CONTIG_RO | PyBUF_FORMAT) == 0) {
        if (!holds_objects(to->format)) return 0;
        PyBuffer_Release(to);
        return wr_raise("UsageError", "%s: this %s holds Python objects, of which it has the addresses; encode them", what, type);
    }
    PyErr_Clear();
    if (PyObject_GetBuffer(object, to, PyBUF_SIMPLE) == 0) return 0;
    PyErr_Clear();
    return wr_raise("UsageError", "%s: this %s is not contiguous, or was released; give a copy (bytes, numpy.ascontiguousarray)",
                    what, type);
}

int wr_body_take(ClientObject *c, PyObject *object, uint64_t meta_length, wr_body *body) {
    body->buffer.obj = NULL;
    if (PyBytes_CheckExact(object)) {
        body->bytes = PyBytes_AS_STRING(object);
        body->length = PyBytes_GET_SIZE(object);
    } else {
        if (buffer_of(object, &body->buffer)) return -1;
        body->bytes = body->buffer.buf;
        body->length = body->buffer.len;
    }
    if ((uint64_t)body->length + meta_length > c->a.message_bytes_max) {
        if (body->buffer.obj) PyBuffer_Release(&body->buffer);
        return wr_raise_too_large(c, (uint64_t)body->length, meta_length, false);
    }
    return 0;
}

int wr_shared_body_take(ClientObject *c, PyObject *object, uint64_t meta_length, wr_body *body) {
    if (wr_body_take(c, object, meta_length, body)) return -1;
    if ((uint64_t)body->length + meta_length <= c->a.shared_bytes_max) return 0;
    wr_body_drop(body);
    return wr_raise_too_large(c, (uint64_t)body->length, meta_length, true);
}

int wr_raise_too_large(const ClientObject *c, uint64_t body, uint64_t meta_length, bool shared) {
    const unsigned long long whole = body + meta_length, most = c->a.message_bytes_max, here = c->a.shared_bytes_max;
    if (!shared || here >= most)
        return wr_raise("MessageTooLarge",
                        "a message of %llu bytes (body %llu, headers and properties %llu) is larger than "
                        "message_bytes_max = %llu: split it, or start the node with a larger message_bytes_max",
                        whole, (unsigned long long)body, (unsigned long long)meta_length, most);
    return wr_raise("MessageTooLarge",
                    "a message of %llu bytes (body %llu, headers and properties %llu) is larger than topics and stores take, %llu: split "
                    "it, or send it to queues alone, which take up to message_bytes_max = %llu (what topics take follows arena_bytes and "
                    "file_bytes)",
                    whole, (unsigned long long)body, (unsigned long long)meta_length, here, most);
}

void wr_lost_in_the_middle(void) {
    if (!PyErr_ExceptionMatches(wr_module.attachment_lost)) return;
    PyErr_Clear();
    wr_raise("PeerLost", "the attachment ended in the middle: a part of the messages may have been stored; none was confirmed");
}

/* ---- waiting ---------------------------------------------------------------------------------------------------- */

void wr_left(ClientObject *c) {
    if (c->ended && !c->busy) c->release(c);
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

int wr_timed_out(ClientObject *c, uint32_t server, const char *what) {
    if (wr_hook(c, WR_HOOK_TIMED_OUT, server, what)) return -1;
    return wr_raise("TimedOut", "%s: not done in time", what); /* the hook has raised, with figures */
}

int wr_wait_or_raise(ClientObject *c, const wr_condition *condition, uint64_t deadline, wr_purpose purpose, const char *what) {
    int answer = wr_wait(c, condition, deadline, purpose);
    return answer <= 0 ? answer : wr_timed_out(c, condition->server, what);
}

void wr_note_deadline(uint64_t deadline) {
    if (!deadline || deadline == WR_CALL_DEADLINE || !PyErr_ExceptionMatches(wr_module.attachment_lost)) return;
    PyObject *type, *value, *trace, *when = NULL;
    PyErr_Fetch(&type, &value, &trace);
    PyErr_NormalizeException(&type, &value, &trace);
    if (value && (!(when = PyFloat_FromDouble((double)deadline / 1e9)) || PyObject_SetAttrString(value, "deadline", when)))
        PyErr_Clear(); /* no memory: whoever calls again takes its whole time once more */
    Py_XDECREF(when);
    PyErr_Restore(type, value, trace);
}

/* While a publish waits and nothing of it was handed over: its queues may have gone. Then it begins anew, with the
 * catalog of now, also when another thread has read that meanwhile. */
static int routes_gone(void *of) {
    const wr_made_from *made = of;
    ClientObject *c = made->client;
    if (wr_catalog_is_old(c) && wr_catalog_due(c) && wr_hook(c, WR_HOOK_CATALOG, 0, "")) return -1;
    if (c->catalog_seen == made->catalog) return 0;
    PyErr_SetString(wr_module.attachment_lost, "the catalog has changed: route again");
    return -1;
}

int wr_blocked_while(ClientObject *c, int error, const wr_condition *blocked, uint64_t deadline, const char *what,
                         wr_made_from *made) {
    if (error == EAGAIN) {
        for (uint32_t server = 0; server < c->servers_n; server++) wr_port_submit(&c->a.port, server);
        int answer = wr_wait_while(c, blocked, deadline, WR_FOR_ROOM, made ? routes_gone : NULL, made);
        return answer <= 0 ? answer : wr_timed_out(c, blocked->server, what);
    }
    return wr_blocked(c, error, blocked, deadline, what);
}

int wr_blocked(ClientObject *c, int error, const wr_condition *blocked, uint64_t deadline, const char *what) {
    switch (error) {
    case EAGAIN:
        return wr_blocked_while(c, error, blocked, deadline, what, NULL);
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

/* ---- the gate before a publish ---------------------------------------------------------------------------------- */

#define BLOCKING (WR_ALARM_MEMORY | WR_ALARM_DISK)

static bool alarmed(const ClientObject *c, uint64_t blocking) {
    return atomic_load_explicit(&c->a.port.super->alarms, memory_order_relaxed) & blocking;
}

static int wait_for_the_end(ClientObject *c, uint64_t blocking, uint32_t server, uint64_t deadline, wr_made_from *made) {
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
    } while (alarmed(c, blocking));
    return 0;
}

int wr_alarm_gate(ClientObject *c, uint64_t deadline, wr_made_from *made) {
    if (__builtin_expect(!alarmed(c, BLOCKING), 1)) return 0;
    return wait_for_the_end(c, BLOCKING, WR_SERVER_WORKER_FIRST, deadline, made);
}

int wr_topics_alarm_gate(ClientObject *c, uint64_t deadline, wr_made_from *made) {
    if (__builtin_expect(!alarmed(c, BLOCKING | WR_ALARM_TOPICS_DISK), 1)) return 0;
    return wait_for_the_end(c, BLOCKING | WR_ALARM_TOPICS_DISK, c->a.port.super->topic_server, deadline, made);
}

static int look_at_state(ClientObject *c) {
    wr_superblock *super = c->a.port.super;
    return __builtin_expect(atomic_load_explicit(&super->state, memory_order_relaxed) > WR_NODE_RUNNING, 0)
               ? wr_hook(c, WR_HOOK_STOPPING, WR_SERVER_WORKER_FIRST, "publish")
               : 0;
}

int wr_client_gate(ClientObject *c, uint64_t deadline, bool routed) {
    if (look_at_state(c)) return -1;
    wr_made_from made = {c, c->catalog_seen};
    return wr_alarm_gate(c, deadline, routed ? &made : NULL);
}

int wr_topics_gate(ClientObject *c, uint64_t deadline) {
    if (look_at_state(c)) return -1;
    wr_made_from made = {c, c->catalog_seen};
    return wr_topics_alarm_gate(c, deadline, &made);
}
