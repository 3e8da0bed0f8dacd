/* What the worker is asked to deliver to a handle, and how that ends. Declared in binding/queue_credit.h.
 *
 *   credit: so many messages more, for those who get (binding/queue_get.c says how many).
 *   prefetch: the worker keeps up to so many unacked messages with us, for those who consume with a number.
 *   both: for those who consume without one. The credit follows what they work off (binding/queue_get.c), and the
 *        prefetch is only the limit of what is unacked.
 *
 * Invariant
 *   Order: what is handed out comes by ascending tag (in a priority) but for what somebody had in hand and returned. So
 *   what lies here returns unseen only while the handle is quiet: no credit is out, or only one that is used up; the
 *   last CANCEL, or CREDIT that took back what was not used, was executed, and all that was pushed is taken in; the
 *   highest tags first. Whoever sends a CREDIT meanwhile (the GIL is away while we
 *   wait) gets the rest, which is below all that was returned, and the worker executes the returns before that credit.
 */
#include "binding/queue_credit.h"

/* After EAGAIN: wait for room. 0, 1 (the deadline has passed), -1. */
static int wait_for_room(HandleObject *h, int error, const wr_condition *blocked, uint64_t deadline) {
    if (error != EAGAIN) return wr_blocked(h->client, error, blocked, deadline, "room for a command");
    wr_port_submit(&h->client->a.port, h->server);
    int answer = wr_wait_while(h->client, blocked, deadline, WR_FOR_ROOM, wr_handle_still_there, h);
    return answer || !wr_handle_enter(h) ? answer : -1;
}

/* Send a credit. 0, 1 (no room for it until the deadline), -1. */
int wr_credit_announce(HandleObject *h, uint64_t credit, uint32_t prefetch, uint64_t deadline) {
    ClientObject *c = h->client;
    wr_condition blocked;
    for (;;) {
        int error = wr_attachment_credit(&c->a, &h->consumer, credit, prefetch, &blocked);
        if (!error) break;
        if ((error = wait_for_room(h, error, &blocked, deadline))) return error;
    }
    wr_port_submit(&c->a.port, h->server);
    h->asks_n++;
    return 0;
}

/* What the worker may deliver still, under the credit that is out. */
static uint64_t coming(const wr_client_consumer *c) {
    return c->announced && c->granted > c->popped ? c->granted - c->popped : 0;
}

/* Does the worker know how we consume, and that we want as much? */
static bool knows(const HandleObject *h, uint32_t wanted) {
    const wr_client_consumer *c = &h->consumer;
    if (h->adapts && (!c->announced || c->prefetch != h->unacked_max || !c->granted)) return false;
    return wr_client_consumer_pending(c) + coming(c) > wanted / 2;
}

/* The credit for `wanted` more than what lies here; with a prefetch, 0 would be no limit. */
static uint64_t up_to(const HandleObject *h, uint32_t wanted) {
    uint64_t lying = wr_client_consumer_pending(&h->consumer);
    uint64_t credit = h->consumer.popped + (lying < wanted ? wanted - lying : 0);
    return credit ? credit : 1;
}

/* Let the worker deliver up to `wanted` more than what lies here, if that is worth a command. */
int wr_credit_ensure(HandleObject *h, uint32_t wanted, uint64_t deadline) {
    wr_client_consumer *c = &h->consumer;
    if (h->prefetch && c->announced && c->prefetch == h->prefetch && !c->granted) return 0;
    if (h->prefetch) return wr_credit_announce(h, 0, h->prefetch, deadline);
    if (!knows(h, wanted)) return wr_credit_announce(h, up_to(h, wanted), h->adapts ? h->unacked_max : 0, deadline);
    return 0;
}

int wr_credit_ahead(HandleObject *h, wr_condition *blocked) {
    if (knows(h, h->window)) return 0;
    return wr_attachment_credit(&h->client->a, &h->consumer, up_to(h, h->window), h->unacked_max, blocked);
}

int wr_credit_take_back(HandleObject *h, wr_condition *blocked) {
    ClientObject *c = h->client;
    wr_client_consumer *consumer = &h->consumer;
    if (!consumer->announced) return 0;
    int error;
    if (h->prefetch) { /* one is the smallest prefetch: 0 would mean no limit */
        error = wr_attachment_credit(&c->a, consumer, 0, 1, blocked);
    } else {
        /* nothing came since: the get that asked still waits */
        if (!h->adapts || !coming(consumer) || !consumer->popped) return 0;
        error = wr_attachment_credit(&c->a, consumer, consumer->popped, h->unacked_max, blocked);
    }
    if (error) return error;
    wr_port_submit(&c->a.port, h->server);
    h->cancelled = atomic_load_explicit(&wr_attachment_link(&c->a, h->server)->tail, memory_order_relaxed);
    return 0;
}

int wr_credit_again(HandleObject *h, uint64_t deadline) {
    if (h->prefetch) return wr_credit_announce(h, 0, h->prefetch, deadline);
    const wr_client_consumer *c = &h->consumer;
    if (!h->adapts) return wr_credit_announce(h, c->granted, 0, deadline);
    return wr_credit_announce(h, c->granted ? c->granted : c->popped + 1, h->unacked_max, deadline);
}

#define REMIND_NS 1000000000ull

/* The worker gives nothing more to a consumer that let an ack timeout pass, until it hears of it: a credit that it knows
 * says so (engine/queues/overdue.h). Without room for it now the next slice of the wait says it. */
void wr_credit_remind(HandleObject *h) {
    wr_client_consumer *c = &h->consumer;
    if (!c->timed || !c->announced) return;
    uint64_t now = wr_now_ns();
    if (!h->overdue && now - h->reminded_at < REMIND_NS) return;
    wr_condition blocked;
    if (wr_attachment_credit(&h->client->a, c, c->granted, c->prefetch, &blocked)) return;
    wr_port_submit(&h->client->a.port, h->server);
    h->overdue = false;
    h->reminded_at = now;
}

static bool heard(const HandleObject *h) {
    const wr_link *link = wr_attachment_link(&h->client->a, h->server);
    return atomic_load_explicit(&link->processed, memory_order_acquire) >= h->cancelled;
}

/* Is the last CANCEL executed, and no CREDIT behind it? Then all that will ever come was pushed. */
bool wr_credit_quiet(const HandleObject *h) { return !h->consumer.announced && heard(h); }

bool wr_credit_still(const HandleObject *h) {
    const wr_client_consumer *c = &h->consumer;
    return heard(h) && (!c->announced || (c->granted && !coming(c)));
}

/* Nothing more is to come; what is under way is taken in. 0, 1 (not known until the deadline), -1. Another thread
 * may have sent the CANCEL: it is waited for all the same. Afterwards another thread may have asked for more again. */
int wr_credit_cancel(HandleObject *h, uint64_t deadline) {
    ClientObject *c = h->client;
    wr_condition blocked;
    while (h->consumer.announced) {
        uint64_t sequence;
        int error = wr_attachment_cancel(&c->a, &h->consumer, &sequence, &blocked);
        if (!error) h->cancelled = sequence + 1;
        else if ((error = wait_for_room(h, error, &blocked, deadline))) return error;
    }
    wr_port_submit(&c->a.port, h->server);
    int answer = 0;
    if (!wr_credit_quiet(h)) {
        wr_condition condition = {&wr_attachment_link(&c->a, h->server)->processed, h->cancelled - 1, h->server};
        answer = wr_wait_while(c, &condition, deadline, WR_FOR_REPLY, wr_handle_still_there, h);
    }
    if (answer < 0 || wr_handle_enter(h) || wr_handle_intake(h)) return -1;
    /* what came before the CANCEL was seen counts under no later credit */
    if (wr_credit_quiet(h)) h->consumer.popped = 0;
    return answer;
}

/* Messages that lie here, or may come, without anybody having asked for them yet. */
uint64_t wr_credit_hoarded(const HandleObject *h) {
    const wr_client_consumer *c = &h->consumer;
    if (!h->registered || h->prefetch || h->client->ended) return 0;
    wr_link *link = wr_attachment_link(&h->client->a, h->server);
    uint64_t tail = atomic_load_explicit(&link->delivery_tail, memory_order_acquire);
    uint64_t pushed = tail - h->client->a.workers[h->server].popped;
    bool cancelling = atomic_load_explicit(&link->processed, memory_order_acquire) < h->cancelled;
    return wr_client_consumer_pending(c) + coming(c) + pushed + cancelling;
}

/* Somebody must return what is hoarded when the loop of gets stops: Python starts a thread for that, once. */
int wr_credit_tell_hot(HandleObject *h) {
    if (h->hot || !wr_credit_hoarded(h)) return 0;
    if (wr_hook(h->client, WR_HOOK_HOT, h->queue, "")) return -1;
    h->hot = true;
    return 0;
}

/* ---- prefetch, release ------------------------------------------------------------------------------------------- */

#define RELEASE_NS 10000000000ull
#define TIDY_NS 1000000000ull

/* The worker was asked for the end and has not answered: 1 becomes the exception that says why. */
static int not_released(HandleObject *h, int answer) {
    if (answer <= 0) return answer;
    wr_limit((double)RELEASE_NS / 1e9);
    return wr_handle_late(h, "the return of what was delivered ahead (it is done when the worker continues)");
}

/* Nothing more is delivered, and what lies here is back in the queue; but when another thread asks for more
 * meanwhile, the rest is for that. */
int wr_credit_end(HandleObject *h, uint64_t deadline) {
    ClientObject *c = h->client;
    wr_condition blocked;
    int answer = wr_credit_cancel(h, deadline);
    if (answer) return not_released(h, answer);
    for (uint64_t left = 1; left;) {
        if (wr_handle_enter(h)) return -1;
        if (h->consumer.announced) break;
        if (!wr_credit_quiet(h)) { /* another thread asked, and gave up */
            if ((answer = wr_credit_cancel(h, deadline))) return not_released(h, answer);
            continue;
        }
        int error = wr_attachment_intake(&c->a, h->server);
        /* EAGAIN: it has something of another queue to return */
        if (error == EAGAIN) error = wr_attachment_room(&c->a, h->server, &blocked);
        else if (!error) error = wr_client_consumer_return_last(&h->client->a, &h->consumer, 0, &left, &blocked);
        if (error && wr_blocked(c, error, &blocked, deadline, "room to return messages")) return -1;
    }
    wr_port_submit(&c->a.port, h->server);
    wr_link *link = wr_attachment_link(&c->a, h->server);
    uint64_t tail = atomic_load_explicit(&link->tail, memory_order_relaxed);
    if (!tail) return 0;
    wr_condition condition = {&link->processed, tail - 1, h->server};
    answer = wr_wait(c, &condition, deadline, WR_FOR_REPLY);
    return answer || !wr_handle_enter(h) ? not_released(h, answer) : -1;
}

/* What was granted and not used is taken back by a credit of what came. Who asks for more meanwhile, in another thread,
 * needs what lies here. */
int wr_credit_thin(HandleObject *h, uint64_t keep, uint64_t deadline) {
    ClientObject *c = h->client;
    wr_condition blocked;
    if (!h->registered || !h->adapts || h->prefetch) return 0;
    if (wr_credit_take_back(h, &blocked)) return 0; /* no room to say so: later */
    if (!heard(h)) {
        wr_condition condition = {&wr_attachment_link(&c->a, h->server)->processed, h->cancelled - 1, h->server};
        if (wr_wait_while(c, &condition, deadline, WR_FOR_REPLY, wr_handle_still_there, h) < 0) return -1;
    }
    if (wr_handle_enter(h) || wr_handle_intake(h)) return -1;
    uint64_t left = 1;
    while (left && !h->inside && wr_credit_still(h))
        if (wr_client_consumer_return_last(&h->client->a, &h->consumer, keep, &left, &blocked)) break;
    wr_port_submit(&c->a.port, h->server);
    return 0;
}

/* ---- methods of QueueHandle -------------------------------------------------------------------------------------- */

/* begin(prefetch): the worker keeps up to `prefetch` unacked messages with us from now on; None: what is delivered ahead
 * follows the work, unless somebody else here gave a number. Which beginning of this handle it is. */
PyObject *wr_handle_begin(PyObject *op, PyObject *argument) {
    HandleObject *h = (HandleObject *)op;
    int over = 0; /* then it is -1 */
    long prefetch = PyLong_Check(argument) && !PyBool_Check(argument) ? PyLong_AsLongAndOverflow(argument, &over) : 0;
    if (wr_handle_enter(h) || wr_handle_register(h)) return NULL;
    if (argument == Py_None) {
        h->adapts = true;
        h->unacked_max = WR_UNACKED_MAX;
        return PyLong_FromUnsignedLongLong(++h->begun);
    }
    uint32_t slots = h->client->a.port.view.g.delivery_slots;
    if (prefetch < 1 || prefetch > (long)slots) {
        wr_raise_given("UsageError", argument, "prefetch must lie between 1 and the setting delivery_slots (%u)", slots);
        return NULL;
    }
    h->prefetch = (uint32_t)prefetch;
    return PyLong_FromUnsignedLongLong(++h->begun);
}

/* release(begun=None): end consuming: nothing more is delivered, what was delivered and not handed out is back in
 * the queue. With the number of a beginning it does nothing when there was another since. */
PyObject *wr_handle_release(PyObject *op, PyObject *const *args, Py_ssize_t given) {
    HandleObject *h = (HandleObject *)op;
    if (given > 1) return PyErr_Format(PyExc_TypeError, "arguments: begun=None");
    if (wr_handle_enter(h)) return NULL;
    if (given && args[0] != Py_None) {
        uint64_t begun = PyLong_AsUnsignedLongLong(args[0]);
        if (PyErr_Occurred()) return NULL;
        if (begun != h->begun) Py_RETURN_NONE;
    }
    h->prefetch = 0;
    h->adapts = false;
    h->window = 1;
    h->last_ns = 0;
    h->hot = false;
    if (h->registered && wr_credit_end(h, wr_now_ns() + RELEASE_NS)) return NULL;
    Py_RETURN_NONE;
}

static int64_t hoard_at_rest(HandleObject *h) {
    uint64_t hoard = wr_credit_hoarded(h);
    if (!hoard) h->hot = false;
    else if (h->inside || wr_now_ns() - h->last_ns < 50000000ull) return -1;
    return (int64_t)hoard;
}

PyObject *wr_handle_hoard(PyObject *op, PyObject *unused) {
    (void)unused;
    return PyLong_FromLongLong(hoard_at_rest((HandleObject *)op));
}

/* tidy(): release() if there is a hoard now, and nobody consumes or gets. */
PyObject *wr_handle_tidy(PyObject *op, PyObject *unused) {
    HandleObject *h = (HandleObject *)op;
    (void)unused;
    if (wr_handle_enter(h)) return NULL;
    if (hoard_at_rest(h) > 0) {
        uint64_t deadline = wr_now_ns() + TIDY_NS;
        h->window = 1;
        if (h->adapts ? wr_credit_thin(h, 0, deadline) : wr_credit_end(h, deadline)) return NULL;
    }
    Py_RETURN_NONE;
}
