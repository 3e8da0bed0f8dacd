/* What never waits for one queue: poll, stop, give back. Underneath asyncio (workers/faces/aio). What cannot be had at
 * once is said by a code. */
#include "binding/queue_poll.h"
#include "binding/arguments.h"
#include "binding/delivery_type.h"
#include "binding/queue_credit.h"
#include "binding/queue_get.h"
#include <errno.h>

#define POLL_BYTES (4ull << 20) /* bodies of one call, about: who wants more calls again */

enum { POLL_EMPTY, POLL_SLOW, POLL_STALE, POLL_UNBORN, POLL_NO_ROOM };

/* poll(max, wanted, memory): up to `max` messages that lie here, and POLL_BYTES, else a code; then the worker was asked for `wanted`
 * (0: it was not). With `memory` no message is taken that has to be read from a file or the store. */
PyObject *wr_handle_poll(PyObject *op, PyObject *const *args, Py_ssize_t given) {
    HandleObject *h = (HandleObject *)op;
    WR_ARGUMENTS(3, "max, wanted, memory");
    long most = PyLong_AsLong(args[0]), wanted = PyLong_AsLong(args[1]);
    if (PyErr_Occurred()) return NULL;
    if (most < 1 || wanted < 0) return PyErr_Format(PyExc_ValueError, "max must be at least 1, wanted at least 0");
    if (wr_handle_enter(h) || wr_handle_not_stopped(h)) return NULL;
    ClientObject *c = h->client;
    wr_client_consumer *consumer = &h->consumer;
    uint64_t epoch = atomic_load_explicit(&wr_attachment_link(&c->a, h->server)->server_epoch, memory_order_acquire);
    if (epoch != c->a.workers[h->server].epoch) return PyLong_FromLong(POLL_STALE);
    if (!epoch) return PyLong_FromLong(POLL_UNBORN);
    if (wr_handle_register(h)) return NULL; /* one before us may have asked for messages */
    const bool quiet = wr_credit_quiet(h);  /* before what was pushed is taken in: then that is all */
    if (wr_handle_intake(h)) return NULL;
    if (quiet) consumer->popped = 0; /* what came before the CANCEL was seen counts under no later credit */
    uint32_t slots = c->a.port.view.g.delivery_slots / 2;
    if (wanted > (long)slots) wanted = slots;
    if (wanted) wr_handle_note_call(h, (uint32_t)wanted);
    bool memory = args[2] == Py_True;
    PyObject *list = NULL;
    uint64_t bytes = 0;
    while (wr_client_consumer_pending(consumer) && (!memory || wr_handle_in_memory(h))) {
        PyObject *message = wr_handle_hand_out(h, 0, !list);
        if (!message) {
            if (!PyErr_Occurred()) continue;
            if (!list) return NULL;
            PyErr_Clear(); /* what was handed out before goes to the caller; the trouble is met again by the next call */
            break;
        }
        if (!list && !(list = PyList_New(0))) {
            Py_DECREF(message);
            return NULL;
        }
        bytes += (uint64_t)PyBytes_GET_SIZE(((DeliveryObject *)message)->body);
        int error = PyList_Append(list, message);
        Py_DECREF(message);
        if (error) {
            Py_DECREF(list);
            return NULL;
        }
        if (PyList_GET_SIZE(list) >= most || bytes >= POLL_BYTES || !h->registered) break;
    }
    int room = 0;
    bool ahead = h->window > 1 && (h->adapts || !h->exact);
    if (wanted && h->registered && !c->ended && (h->prefetch || !list || ahead)) {
        wr_condition blocked;
        uint64_t lying = wr_client_consumer_pending(consumer), coming = consumer->announced && consumer->granted > consumer->popped ? consumer->granted - consumer->popped : 0;
        if (h->prefetch) {
            if (!consumer->announced || consumer->prefetch != h->prefetch) room = wr_attachment_credit(&c->a, consumer, 0, h->prefetch, &blocked);
        } else if (h->adapts) {
            room = wr_credit_ahead(h, &blocked);
        } else if (lying + coming <= h->window / 2 && !consumer->announced && !quiet) {
            room = EAGAIN; /* a CANCEL is under way: what comes still must not count under this credit */
        } else if (lying + coming <= h->window / 2) {
            room = wr_attachment_credit(&c->a, consumer, consumer->popped + h->window - lying, 0, &blocked);
        }
        wr_port_submit(&c->a.port, h->server);
        if (!list) wr_credit_remind(h);
    }
    if (list) {
        h->last_ns = wr_now_ns();
        return list;
    }
    if (wr_client_consumer_pending(consumer)) return PyLong_FromLong(POLL_SLOW);
    return PyLong_FromLong(room ? POLL_NO_ROOM : POLL_EMPTY);
}

/* stop(): ask for no more. The sequence of the CANCEL, behind which nothing comes any more; None: nothing was asked
 * for; False: there is no room for it now. */
PyObject *wr_handle_stop(PyObject *op, PyObject *unused) {
    HandleObject *h = (HandleObject *)op;
    (void)unused;
    if (wr_handle_enter(h)) return NULL;
    h->prefetch = 0;
    h->adapts = h->nacked = false;
    h->window = 1;
    h->last_ns = 0;
    uint64_t sequence;
    wr_condition blocked;
    wr_attachment *a = &h->client->a;
    if (h->registered && h->consumer.announced) {
        if (wr_attachment_cancel(a, &h->consumer, &sequence, &blocked)) Py_RETURN_FALSE;
        wr_port_submit(&a->port, h->server);
        h->cancelled = sequence + 1;
    }
    if (atomic_load_explicit(&wr_attachment_link(a, h->server)->processed, memory_order_acquire) >= h->cancelled) Py_RETURN_NONE;
    return PyLong_FromUnsignedLongLong(h->cancelled - 1);
}

/* leave(): it does not consume alone any more. False: there is no room to say so now. */
PyObject *wr_handle_leave(PyObject *op, PyObject *unused) {
    HandleObject *h = (HandleObject *)op;
    (void)unused;
    if (wr_handle_enter(h)) return NULL;
    wr_condition blocked;
    if (wr_attachment_leave(&h->client->a, h->server, h->queue, &blocked)) Py_RETURN_FALSE;
    wr_port_submit(&h->client->a.port, h->server);
    Py_RETURN_TRUE;
}

/* adapt(window, unacked): consume without a number: `window` messages ahead, at most `unacked` in hand and ahead. */
PyObject *wr_handle_adapt(PyObject *op, PyObject *const *args, Py_ssize_t given) {
    HandleObject *h = (HandleObject *)op;
    WR_ARGUMENTS(2, "window, unacked");
    unsigned long window = PyLong_AsUnsignedLong(args[0]), unacked = PyErr_Occurred() ? 0 : PyLong_AsUnsignedLong(args[1]);
    if (PyErr_Occurred()) return NULL;
    if (wr_handle_enter(h) || wr_handle_register(h)) return NULL;
    uint32_t slots = h->client->a.port.view.g.delivery_slots;
    if (!window || !unacked) return PyErr_Format(PyExc_ValueError, "window and unacked must be at least 1");
    h->adapts = true;
    h->prefetch = 0;
    h->window = window < slots ? (uint32_t)window : slots;
    h->unacked_max = unacked < slots ? (uint32_t)unacked : slots;
    Py_RETURN_NONE;
}

/* take_back(): who consumes asks for no more, and stays a consumer. As stop(). */
PyObject *wr_handle_take_back(PyObject *op, PyObject *unused) {
    HandleObject *h = (HandleObject *)op;
    (void)unused;
    if (wr_handle_enter(h)) return NULL;
    wr_condition blocked;
    if (h->registered && wr_credit_take_back(h, &blocked)) Py_RETURN_FALSE;
    if (atomic_load_explicit(&wr_attachment_link(&h->client->a, h->server)->processed, memory_order_acquire) >= h->cancelled) Py_RETURN_NONE;
    return PyLong_FromUnsignedLongLong(h->cancelled - 1);
}

/* ask(): announce to the worker what begin() was given, if it does not know. False: the ring has no room now. */
PyObject *wr_handle_ask(PyObject *op, PyObject *unused) {
    HandleObject *h = (HandleObject *)op;
    (void)unused;
    if (wr_handle_enter(h)) return NULL;
    wr_condition blocked;
    wr_client_consumer *consumer = &h->consumer;
    if (!h->registered || !h->prefetch || (consumer->announced && consumer->prefetch == h->prefetch)) Py_RETURN_TRUE;
    if (wr_attachment_credit(&h->client->a, consumer, 0, h->prefetch, &blocked)) Py_RETURN_FALSE;
    wr_port_submit(&h->client->a.port, h->server);
    Py_RETURN_TRUE;
}

/* again(): send the same credit again. Returns the sequence of the command: once it is executed, everything that was
 * there when the worker executed the previous one has arrived. None: nothing is asked for; False: the ring has no room
 * now. */
PyObject *wr_handle_again(PyObject *op, PyObject *unused) {
    HandleObject *h = (HandleObject *)op;
    (void)unused;
    if (wr_handle_enter(h)) return NULL;
    wr_condition blocked;
    wr_attachment *a = &h->client->a;
    wr_client_consumer *consumer = &h->consumer;
    if (!h->registered || !consumer->announced) Py_RETURN_NONE;
    if (wr_attachment_credit(a, consumer, consumer->granted, consumer->prefetch, &blocked)) Py_RETURN_FALSE;
    wr_port_submit(&a->port, h->server);
    return PyLong_FromUnsignedLongLong(atomic_load_explicit(&wr_attachment_link(a, h->server)->tail, memory_order_relaxed) - 1);
}

/* give_back(keep=0): what lies here and was not handed out returns to its place in the queue, the last first, but for
 * the first `keep`. False: no room for saying so, yet. Whoever goes on afterwards calls it when the handle is quiet, else later messages may
 * come before these. */
PyObject *wr_handle_give_back(PyObject *op, PyObject *const *args, Py_ssize_t given) {
    HandleObject *h = (HandleObject *)op;
    if (given > 1) return PyErr_Format(PyExc_TypeError, "arguments: keep=0");
    unsigned long keep = given ? PyLong_AsUnsignedLong(args[0]) : 0;
    if (PyErr_Occurred()) return NULL;
    if (wr_handle_enter(h)) return NULL;
    if (!h->registered) Py_RETURN_TRUE;
    if (wr_handle_register(h) || wr_handle_intake(h)) return NULL;
    int error = 0;
    for (uint64_t left = 1; left && !error;) {
        wr_condition blocked;
        error = wr_client_consumer_return_last(&h->client->a, &h->consumer, keep, &left, &blocked);
    }
    wr_port_submit(&h->client->a.port, h->server);
    return PyBool_FromLong(!error);
}

int wr_bind_queue_poll(PyObject *module) {
    const struct {
        const char *name;
        int value;
    } numbers[] = {{"POLL_EMPTY", POLL_EMPTY},
                   {"POLL_SLOW", POLL_SLOW},
                   {"POLL_STALE", POLL_STALE},
                   {"POLL_UNBORN", POLL_UNBORN},
                   {"POLL_NO_ROOM", POLL_NO_ROOM}};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        if (PyModule_AddIntConstant(module, numbers[i].name, numbers[i].value)) return -1;
    return 0;
}
