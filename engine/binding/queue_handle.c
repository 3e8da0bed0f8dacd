/* One queue as an attachment uses it: the handle, and what lies here of it.
 *
 * The credit that brings messages: binding/queue_credit.c. Who waits for one: binding/queue_get.c; who never waits:
 * binding/queue_poll.c. All take from `pending`, filled by the intake, in order.
 *
 * Invariants
 *   Who waits with a handle learns that its queue is gone: each slice of a wait looks whether it may be
 *   (wr_handle_still_there).
 *   A message is handed out once. What is pending and not handed out is returned to the queue by release(), or by the
 *   worker when this process goes.
 *   Entries taken out of `pending` are in local hands while the GIL is away; they come back there when that fails.
 */
#include "binding/queue_handle.h"
#include "binding/delivery_body.h"
#include "binding/delivery_type.h"

int wr_handle_enter(HandleObject *h) {
    if (wr_enter(h->client)) return -1;
    if (!h->dead) return 0;
    PyErr_SetObject(wr_module.attachment_lost, h->dead);
    return -1;
}

/* `what`, with the name of the queue before it. */
static PyObject *of_queue(HandleObject *h, const char *what) {
    PyObject *name = PyObject_GetAttrString(h->owner, "name");
    PyObject *text = name ? PyUnicode_FromFormat("queue %R: %s", name, what) : NULL;
    Py_XDECREF(name);
    return text;
}

int wr_handle_hook(HandleObject *h, int code, const char *what) {
    PyObject *text = of_queue(h, what);
    const char *bytes = text ? PyUnicode_AsUTF8(text) : NULL;
    int answer = bytes ? wr_hook(h->client, code, h->server, bytes) : -1;
    Py_XDECREF(text);
    return answer;
}

int wr_handle_late(HandleObject *h, const char *what) {
    if (wr_handle_hook(h, WR_HOOK_TIMED_OUT, what)) return -1;
    PyObject *text = of_queue(h, what);
    if (text) wr_raise("TimedOut", "%U: not done in time", text);
    Py_XDECREF(text);
    return -1;
}

int wr_handle_register(HandleObject *h) {
    if (h->registered) return 0;
    ClientObject *c = h->client;
    if (!h->shell && !(h->shell = malloc(sizeof *h->shell))) return PyErr_NoMemory(), -1;
    int error = wr_client_consumer_add(&c->a, &h->consumer, h->server, h->queue);
    if (error == EEXIST)
        return wr_raise("UsageError", "this process consumes the queue already through another handle");
    /* one that was asked through a handle that is gone: what it was told to end may be under way */
    if (error == ESTALE) h->cancelled = atomic_load_explicit(&wr_attachment_link(&c->a, h->server)->tail, memory_order_relaxed);
    else if (error) return PyErr_NoMemory(), -1;
    h->consumer.timed = h->ack_timeout > 0;
    h->registered = true;
    return 0;
}

/* What lies here of a node that was stopped is in its queue again, and comes from the next node. */
int wr_handle_not_stopped(HandleObject *h) {
    if (!wr_node_stopped(h->client)) return 0;
    return wr_hook(h->client, WR_HOOK_STOPPING, h->server, "");
}

/* The worker may have been restarted: then its regions are opened anew before anything is read. */
int wr_handle_up_to_date(HandleObject *h) {
    ClientObject *c = h->client;
    if (wr_handle_not_stopped(h)) return -1;
    uint64_t epoch = atomic_load_explicit(&wr_attachment_link(&c->a, h->server)->server_epoch, memory_order_acquire);
    if (__builtin_expect(epoch == c->a.workers[h->server].epoch, 1)) return 0;
    return wr_hook(c, WR_HOOK_EPOCH, h->server, "");
}

/* The queue may have been deleted, by whomever: then nothing will come any more. 0, -1. */
int wr_handle_still_there(void *handle) {
    HandleObject *h = handle;
    ClientObject *c = h->client;
    if (wr_queue_perhaps_gone(c, h->queue) && wr_catalog_due(c) && wr_hook(c, WR_HOOK_CATALOG, 0, "")) return -1;
    return wr_handle_enter(h); /* another thread may have read the catalog */
}

/* ---- pending, in hand -------------------------------------------------------------------------------------------- */

int wr_handle_intake(HandleObject *h) {
    int error = wr_attachment_intake(&h->client->a, h->server);
    if (error == ENOMEM) PyErr_NoMemory();
    return error == ENOMEM ? -1 : 0;
}

static void push_back(HandleObject *h, const wr_pending *p) {
    if (!wr_client_consumer_push_front(&h->consumer, p)) return;
    wr_condition blocked;
    uint64_t tag = p->delivery.sequence;
    /* No memory: back to the queue with it. When that cannot be said now, the worker returns it when we go. */
    uint8_t flags = WR_FLAG_REQUEUE | WR_FLAG_UNSEEN;
    if (!wr_attachment_settle(&h->client->a, &h->consumer, WR_OP_NACK, flags, &tag, 1, &blocked))
        wr_port_submit(&h->client->a.port, h->server);
}

/* The worker counts a message as lost whose bytes are damaged, and its queue goes on. Without room for that now it
 * stays held. */
static void give_up(HandleObject *h, uint64_t tag) {
    wr_condition blocked;
    if (!wr_attachment_settle(&h->client->a, &h->consumer, WR_OP_NACK, WR_FLAG_UNSEEN, &tag, 1, &blocked))
        wr_port_submit(&h->client->a.port, h->server);
}

/* It is the program's from now on, and this process knows; false: the worker took it back, or there is no memory. */
static bool hand(HandleObject *h, const wr_pending *p, wr_place *place) {
    wr_attachment *a = &h->client->a;
    wr_client_consumer *c = &h->consumer;
    uint64_t standing = c->unacked_next - c->unacked_first;
    if (c->timed && standing == c->unacked_size && standing >= a->port.view.g.delivery_slots) wr_client_consumer_forget_taken(a, c);
    if (wr_client_consumer_hand(c, p->delivery.sequence, place)) {
        PyErr_NoMemory();
        return false;
    }
    if (!c->timed) {
        uint32_t out = wr_handed_word(place->mark, WR_HANDED_OUT);
        atomic_store_explicit(wr_view_handed(&a->port.view, h->server, p->slot), out, memory_order_relaxed);
        return true;
    }
    if (wr_attachment_hand_out(a, h->server, *place, p->delivery.pushed_at)) return true;
    wr_client_consumer_forget(c, p->delivery.sequence, *place);
    h->overdue = true;
    return false;
}

/* Did the worker take back what lies here, before it is read? */
static bool taken_before(HandleObject *h, const wr_pending *p) {
    wr_delivery now;
    if (!h->consumer.timed) return false;
    if (wr_attachment_slot_read(&h->client->a, h->server, p->slot, &now) && now.pushed_at == p->delivery.pushed_at) return false;
    return h->overdue = true;
}

/* The next pending message; NULL without an exception when there is none. `alone`: an exception will be seen; else
 * that of a damaged message is met again by the next call. */
PyObject *wr_handle_hand_out(HandleObject *h, uint64_t deadline, bool alone) {
    wr_client_consumer *c = &h->consumer;
    while (wr_client_consumer_pending(c)) {
        wr_pending p;
        memcpy((void *)&p, (void *)&c->pending[c->pending_first++ & (c->pending_size - 1)], sizeof p);
        if (wr_client_consumer_pending(c)) __builtin_prefetch(&c->pending[c->pending_first & (c->pending_size - 1)]);
        bool lost = false;
        if (taken_before(h, &p)) continue;
        PyObject *message = wr_delivery_fetch(h, &p.delivery, p.slot, true, deadline, &lost);
        if (!message) {
            if (!PyErr_Occurred()) continue;
            /* A message that cannot be read stays held (and is returned when we go) unless it is lost; after
             * anything else it is the next one again. */
            PyObject *type, *value, *trace;
            PyErr_Fetch(&type, &value, &trace);
            PyObject *errors = PyImport_ImportModule("warren.engine.errors");
            PyObject *damaged = errors ? PyObject_GetAttrString(errors, "StoreError") : NULL;
            PyObject *limit = errors ? PyObject_GetAttrString(errors, "LimitError") : NULL;
            bool keep = damaged && limit && PyErr_GivenExceptionMatches(type, damaged) &&
                        !PyErr_GivenExceptionMatches(type, limit);
            Py_XDECREF(damaged);
            Py_XDECREF(limit);
            Py_XDECREF(errors);
            if (!h->client->ended && h->registered) {
                if (!keep || (lost && !alone)) push_back(h, &p);
                else if (lost) give_up(h, p.delivery.sequence);
            }
            PyErr_Restore(type, value, trace);
            return NULL;
        }
        if (!h->registered || h->client->ended) {
            Py_DECREF(message);
            wr_enter_slow(h->client);
            return NULL;
        }
        DeliveryObject *m = (DeliveryObject *)message;
        m->place = (wr_place){.slot = p.slot, .mark = wr_handed_mark(p.delivery.pushed_at)};
        if (hand(h, &p, &m->place)) {
            h->client->redelivered_n += (p.delivery.flags & WR_DELIVERY_REDELIVERED) != 0;
            return message;
        }
        Py_DECREF(message);
        if (PyErr_Occurred()) return NULL;
    }
    return NULL;
}

bool wr_handle_in_memory(const HandleObject *h) {
    const wr_client_consumer *c = &h->consumer;
    uint8_t first;
    const wr_pending *next = &c->pending[c->pending_first & (c->pending_size - 1)];
    return wr_body_from_image(h->client, h->server, &next->delivery, 0, &first, 0);
}

