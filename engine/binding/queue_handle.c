/* One queue as an attachment uses it: how a consumer gets its messages, and how what was not handed out returns.
 *
 * How a consumer gets its messages
 *   get: credit. A window of 1, doubled while calls follow each other within a millisecond and find something, so that
 *        a hot loop has messages lying ready, and an idle one hoards nothing. A get that times out cancels its credit
 *        and looks once more.
 *   get with a timeout of 0 (a poll) waits for no message, but for the worker's answer, call_ns at most: "none" is
 *        always the worker's word.
 *   consume: prefetch. The worker keeps up to so many unacked messages with us.
 *   Both take from `pending`, filled by the intake, in order.
 *
 * Invariants
 *   Who waits with a handle learns that its queue is gone: each slice of a wait looks whether it may be (queue_gone).
 *   A message is handed out once. What is pending and not handed out is returned to the queue by release(), or by the
 *   worker when this process goes.
 *   Entries taken out of `pending` are in local hands while the GIL is away; they come back there when that fails.
 *   Order: what is handed out comes by ascending tag (in a priority) but for what somebody had in hand and returned. So
 *   what lies here returns unseen only while the handle is quiet: no credit is out, the last CANCEL was executed, and
 *   all that was pushed is taken in; the highest tags first. Whoever sends a CREDIT meanwhile (the GIL is away while we
 *   wait) gets the rest, which is below all that was returned, and the worker executes the returns before that credit.
 */
#include "binding/queue_handle.h"
#include "binding/delivery_body.h"

#define HOT_NS 1000000ull
#define FULL_NS 1000000000ull
#define WINDOW_MAX 256u

int wr_handle_enter(HandleObject *h) {
    if (wr_enter(h->client)) return -1;
    if (!h->dead) return 0;
    PyErr_SetObject(wr_module.attachment_lost, h->dead);
    return -1;
}

/* ---- pending, in hand ------------------------------------------------------------------------------------------- */

static void push_back(HandleObject *h, const wr_pending *p) {
    if (!wr_client_consumer_push_front(&h->consumer, p)) return;
    wr_condition blocked;
    uint64_t tag = p->delivery.sequence;
    /* No memory: back to the queue with it. When that cannot be said now, the worker returns it when we go. */
    if (!wr_attachment_settle(&h->client->a, &h->consumer, WR_OP_NACK, WR_FLAG_REQUEUE | WR_FLAG_UNSEEN, &tag, 1, &blocked))
        wr_port_submit(&h->client->a.port, h->server);
}

/* The worker counts a message as lost whose bytes are damaged, and its queue goes on. Without room for that now it
 * stays held. */
static void give_up(HandleObject *h, uint64_t tag) {
    wr_condition blocked;
    if (!wr_attachment_settle(&h->client->a, &h->consumer, WR_OP_NACK, WR_FLAG_UNSEEN, &tag, 1, &blocked))
        wr_port_submit(&h->client->a.port, h->server);
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
            bool keep = damaged && limit && PyErr_GivenExceptionMatches(type, damaged) && !PyErr_GivenExceptionMatches(type, limit);
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
        if (wr_client_consumer_hand(c, p.delivery.sequence)) {
            Py_DECREF(message);
            return PyErr_NoMemory();
        }
        return message;
    }
    return NULL;
}

static int intake(HandleObject *h) {
    int error = wr_attachment_intake(&h->client->a, h->server);
    if (error == ENOMEM) PyErr_NoMemory();
    return error == ENOMEM ? -1 : 0;
}

int wr_handle_register(HandleObject *h) {
    if (h->registered) return 0;
    ClientObject *c = h->client;
    int error = wr_client_consumer_add(&c->a, &h->consumer, h->server, h->queue);
    if (error == EEXIST) return wr_raise("UsageError", "this process consumes the queue already through another handle");
    if (error) {
        PyErr_NoMemory();
        return -1;
    }
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
static int still_there(void *handle) {
    HandleObject *h = handle;
    ClientObject *c = h->client;
    if (wr_queue_perhaps_gone(c, h->queue) && wr_catalog_due(c) && wr_hook(c, WR_HOOK_CATALOG, 0, "")) return -1;
    return wr_handle_enter(h); /* another thread may have read the catalog */
}

/* ---- credit ----------------------------------------------------------------------------------------------------- */

/* After EAGAIN: wait for room. 0, 1 (the deadline has passed), -1. */
static int wait_for_room(HandleObject *h, int error, const wr_condition *blocked, uint64_t deadline) {
    if (error != EAGAIN) return wr_blocked(h->client, error, blocked, deadline, "room for a command");
    wr_port_submit(&h->client->a.port, h->server);
    int answer = wr_wait_while(h->client, blocked, deadline, WR_FOR_ROOM, still_there, h);
    return answer || !wr_handle_enter(h) ? answer : -1;
}

/* Send a credit. 0, 1 (no room for it until the deadline), -1. */
static int announce(HandleObject *h, uint64_t credit, uint32_t prefetch, uint64_t deadline) {
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

/* Let the worker deliver up to `wanted` more than what lies here, if that is worth a command. */
static int ensure_credit(HandleObject *h, uint32_t wanted, uint64_t deadline) {
    wr_client_consumer *c = &h->consumer;
    if (h->prefetch) return c->announced && c->prefetch == h->prefetch ? 0 : announce(h, 0, h->prefetch, deadline);
    uint64_t lying = wr_client_consumer_pending(c), coming = c->announced && c->granted > c->popped ? c->granted - c->popped : 0;
    if (lying + coming > wanted / 2) return 0;
    return announce(h, c->popped + wanted - lying, 0, deadline);
}

/* Is the last CANCEL executed, and no CREDIT behind it? Then all that will ever come was pushed. */
bool wr_handle_quiet(const HandleObject *h) {
    const wr_link *link = wr_attachment_link(&h->client->a, h->server);
    return !h->consumer.announced && atomic_load_explicit(&link->processed, memory_order_acquire) >= h->cancelled;
}

/* Nothing more is to come; what is under way is taken in. 0, 1 (not known until the deadline), -1. Another thread
 * may have sent the CANCEL: it is waited for all the same. Afterwards another thread may have asked for more again. */
static int cancel(HandleObject *h, uint64_t deadline) {
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
    if (!wr_handle_quiet(h)) {
        wr_condition condition = {&wr_attachment_link(&c->a, h->server)->processed, h->cancelled - 1, h->server};
        answer = wr_wait_while(c, &condition, deadline, WR_FOR_REPLY, still_there, h);
    }
    if (answer < 0 || wr_handle_enter(h) || intake(h)) return -1;
    if (wr_handle_quiet(h)) h->consumer.popped = 0; /* what came before the CANCEL was seen counts under no later credit */
    return answer;
}

/* Does this client hold so many messages of the worker that no other can be delivered? */
static bool all_slots_held(HandleObject *h) {
    const wr_attachment *a = &h->client->a;
    uint64_t held = 0;
    for (uint32_t i = 0; i < a->consumers_size; i++) {
        const wr_client_consumer *c = a->consumers[i];
        if (!c || c->server != h->server) continue;
        held += wr_client_consumer_pending(c);
        for (uint64_t n = c->unacked_first; n != c->unacked_next; n++) held += c->unacked[n & (c->unacked_size - 1)] != WR_TAG_NONE;
    }
    return held >= a->port.view.g.delivery_slots;
}

/* Messages that lie here, or may come, without anybody having asked for them yet. */
static uint64_t hoarded(const HandleObject *h) {
    const wr_client_consumer *c = &h->consumer;
    if (!h->registered || h->prefetch || h->client->ended) return 0;
    wr_link *link = wr_attachment_link(&h->client->a, h->server);
    uint64_t pushed = atomic_load_explicit(&link->delivery_tail, memory_order_acquire) - h->client->a.workers[h->server].popped;
    bool cancelling = atomic_load_explicit(&link->processed, memory_order_acquire) < h->cancelled;
    return wr_client_consumer_pending(c) + (c->announced && c->granted > c->popped ? c->granted - c->popped : 0) + pushed + cancelling;
}

/* Somebody must return what is hoarded when the loop of gets stops: Python starts a thread for that, once. */
static int tell_hot(HandleObject *h) {
    if (h->hot || !hoarded(h)) return 0;
    if (wr_hook(h->client, WR_HOOK_HOT, h->queue, "")) return -1;
    h->hot = true;
    return 0;
}

/* ---- get -------------------------------------------------------------------------------------------------------- */

#define CHECK_NS 1000000000ull
#define LAST_WORD_NS 40000000ull /* a get that knows that the worker looked waits so long for its last word */

/* Wait until the worker has taken our link up; a moment longer than the deadline, so that a first look finds something.
 * 0, 1 (it has not), -1. */
static int wait_for_worker(HandleObject *h, uint64_t deadline) {
    ClientObject *c = h->client;
    uint64_t patience = wr_now_ns() + FULL_NS;
    bool up = atomic_load_explicit(&wr_superblock_server(c->a.port.super, h->server)->state, memory_order_acquire) == WR_SERVER_READY;
    wr_condition condition = {&wr_attachment_link(&c->a, h->server)->server_epoch, 0, h->server};
    return wr_wait_while(c, &condition, up && deadline && deadline < patience ? patience : deadline, WR_FOR_REPLY, still_there, h);
}

const char wr_the_answer[] = "the worker's answer whether there is a message (there may still be one: call again)";

static void no_answer(HandleObject *h) {
    if (!wr_hook(h->client, WR_HOOK_TIMED_OUT, h->server, wr_the_answer)) wr_raise("TimedOut", "%s: not there in time", wr_the_answer);
}

static uint64_t told(const HandleObject *h) {
    return atomic_load_explicit(&wr_attachment_link(&h->client->a, h->server)->tail, memory_order_relaxed);
}

/* Wait until the worker has done the first `n` things that it was told. 0, 1 (not known until the deadline), -1. */
static int wait_for_processed(HandleObject *h, uint64_t n, uint64_t deadline) {
    ClientObject *c = h->client;
    if (!n) return 0;
    wr_condition condition = {&wr_attachment_link(&c->a, h->server)->processed, n - 1, h->server};
    int answer = wr_wait_while(c, &condition, deadline, WR_FOR_REPLY, still_there, h);
    return answer < 0 || wr_handle_enter(h) ? -1 : answer;
}

/* A poll has sent its credit, or found one out. 0: the worker has looked, and what it found is taken in; 1:
 * something has changed meanwhile, ask again; 2: the deadline has passed; -1. */
static int hear_worker(HandleObject *h, uint64_t epoch, uint64_t popped, uint64_t deadline) {
    ClientObject *c = h->client;
    for (int round = 0;; round++) {
        int answer = wait_for_processed(h, told(h), deadline);
        if (answer) return answer < 0 ? -1 : 2;
        if (atomic_load_explicit(&wr_attachment_link(&c->a, h->server)->server_epoch, memory_order_acquire) != epoch) return 1;
        if (!h->registered) return 1;
        if (intake(h)) return -1;
        if (wr_client_consumer_pending(&h->consumer)) return 0;
        /* Another thread took what came for this credit, or took the credit back. */
        if (h->consumer.popped != popped || !h->consumer.announced) return 1;
        if (round) return 0;
        if (!h->prefetch && h->inside == 1) { /* nobody else needs the credit */
            if ((answer = cancel(h, deadline))) return answer < 0 ? -1 : 2;
            return atomic_load_explicit(&wr_attachment_link(&c->a, h->server)->server_epoch, memory_order_acquire) != epoch;
        }
        if ((answer = announce(h, h->prefetch ? 0 : h->consumer.granted, h->prefetch, deadline))) return answer < 0 ? -1 : 2;
    }
}

/* What a get has asked the worker for. */
typedef struct {
    uint64_t told;   /* with so many things told to it in all */
    uint64_t epoch;  /* of the worker that it was asked of; 0: nothing was asked */
    uint64_t asks_n; /* of the handle, by then */
} question;

/* A get's time is up. "None" has to be the worker's word: it has done all that it was told when this get asked, and
 * lives. Its last word, to a CANCEL or to the same credit once more, is not waited for long: a worker that merely
 * has much to do was asked before. 0: there is none, or what there is was taken in; 1: the worker was restarted, ask
 * again; -1. */
static int conclude(HandleObject *h, const question *asked, uint64_t answer_by) {
    ClientObject *c = h->client;
    wr_link *link = wr_attachment_link(&c->a, h->server);
    int answer = asked->epoch ? wait_for_processed(h, asked->told, answer_by) : 1;
    if (answer < 0) return -1;
    if (!answer && atomic_load_explicit(&link->server_epoch, memory_order_acquire) != asked->epoch) {
        if (wr_now_ns() < answer_by) return 1;
        answer = 1;
    }
    if (answer) {
        no_answer(h);
        return -1;
    }
    if (!h->registered) return 0;
    uint64_t patience = wr_now_ns() + LAST_WORD_NS;
    if (h->prefetch || (h->inside > 1 && h->consumer.announced)) { /* the credit serves another thread, or the next call */
        answer = announce(h, h->prefetch ? 0 : h->consumer.granted, h->prefetch, patience);
        if (!answer) answer = wait_for_processed(h, told(h), patience);
    } else {
        answer = cancel(h, patience); /* an idle consumer keeps no credit */
    }
    if (answer <= 0) return answer;
    if (tell_hot(h)) return -1; /* somebody looks after the credit later */
    return wr_hook(c, WR_HOOK_SILENT, h->server, wr_the_answer) || wr_handle_enter(h) ? -1 : 0;
}

/* The next message, waiting for it until the deadline. NULL without an exception: there was none. `wanted`: messages
 * that the caller can use at once. `answer_by`: when the worker's answer has to be there; 0: without end. */
static __attribute__((noinline)) PyObject *wait_for_message(HandleObject *h, uint32_t wanted, uint64_t deadline, bool poll, uint64_t answer_by) {
    ClientObject *c = h->client;
    bool last_look = false;
    uint64_t full_since = 0, check_at = wr_now_ns() + CHECK_NS;
    question asked = {0, 0, 0};
    for (;;) {
        if (wr_handle_enter(h) || wr_handle_up_to_date(h) || wr_handle_register(h)) return NULL;
        if (!wr_client_consumer_pending(&h->consumer) && intake(h)) return NULL;
        if (wr_client_consumer_pending(&h->consumer)) {
            PyObject *message = wr_handle_hand_out(h, deadline, true);
            if (message || PyErr_Occurred()) return message;
            continue;
        }
        if (last_look) return NULL;
        h->delays_n++;
        if (!c->a.workers[h->server].epoch) { /* the worker has not seen us yet: credit is counted under its epoch */
            int taken_up = wait_for_worker(h, answer_by);
            if (taken_up > 0) no_answer(h);
            if (taken_up) return NULL;
            continue;
        }
        int answer = ensure_credit(h, wanted, answer_by);
        uint64_t popped = h->consumer.popped, now = wr_now_ns(), epoch = c->a.workers[h->server].epoch;
        if (!answer && (asked.epoch != epoch || asked.asks_n != h->asks_n)) asked = (question){told(h), epoch, h->asks_n};
        if (!answer && !poll) {
            wr_condition condition = wr_attachment_delivery(&c->a, h->server);
            answer = wr_wait(c, &condition, deadline, WR_FOR_DELIVERY);
            now = wr_now_ns();
            if (answer >= 0 && now >= check_at) { /* a wait for messages is one of slices: who looks whether anybody lives is here */
                if (wr_hook(c, WR_HOOK_CHECK, h->server, "")) return NULL;
                check_at = now + CHECK_NS;
            }
        }
        if (answer < 0 || still_there(h)) return NULL;
        bool late = poll || (deadline && now >= deadline);
        if (!wr_condition_met(&(wr_condition){&wr_attachment_link(&c->a, h->server)->delivery_tail,
                                              c->a.workers[h->server].popped, h->server}) && all_slots_held(h)) {
            /* Nothing can come before something is acked. Another thread may do that, in a while. */
            if (!full_since) full_since = now;
            if (late || now - full_since > FULL_NS) {
                wr_raise("LimitError", "this client holds %u messages of the worker unacked, which is the most: ack some, or raise "
                                       "the setting delivery_slots", c->a.port.view.g.delivery_slots);
                return NULL;
            }
        } else {
            full_since = 0;
        }
        if (!late) continue;
        if (poll) {
            if (!answer) answer = hear_worker(h, epoch, popped, answer_by);
            else answer = 2;
            if (answer < 0) return NULL;
            if (answer == 2 || (answer == 1 && answer_by && wr_now_ns() >= answer_by)) {
                no_answer(h);
                return NULL;
            }
            last_look = !answer;
            continue;
        }
        answer = conclude(h, &asked, answer_by);
        if (answer < 0) return NULL;
        last_look = !answer;
    }
}

/* A call ends without a message: its credit may be out still, because it failed, or because it served another
 * thread, too. */
static void leave_empty(HandleObject *h) {
    PyObject *type, *value, *trace;
    if (h->inside) return; /* the last one looks */
    PyErr_Fetch(&type, &value, &trace);
    if (wr_handle_enter(h) || tell_hot(h)) PyErr_Clear();
    PyErr_Restore(type, value, trace);
}

static PyObject *next_message(HandleObject *h, uint32_t wanted, uint64_t deadline, bool poll) {
    PyObject *message = NULL;
    h->inside++;
    if (wr_client_consumer_pending(&h->consumer) && h->registered && !wr_handle_enter(h) && !wr_handle_up_to_date(h)) message = wr_handle_hand_out(h, deadline, true);
    if (!message && !PyErr_Occurred()) {
        uint64_t least = deadline && !poll ? wr_now_ns() + WR_ANSWER_NS : 0;
        uint64_t answer_by = poll ? wr_by_when(h->client, WR_CALL_DEADLINE) : deadline && deadline < least ? least : deadline;
        message = wait_for_message(h, wanted, deadline, poll, answer_by);
    }
    h->inside--;
    if (!message) {
        leave_empty(h);
        if (PyErr_Occurred()) wr_note_deadline(deadline);
    }
    return message;
}

static inline void note_call(HandleObject *h, uint64_t now, uint32_t least, uint32_t most) {
    if (now > h->last_ns + HOT_NS) h->window = least;
    else if (h->window < most) h->window *= 2;
    if (h->window < least) h->window = least;
    if (h->window > most) h->window = most;
}

static int end_consuming(HandleObject *h, uint64_t deadline);

/* Before a get. What lies here was delivered before a message went back that belongs before it, or is more than an
 * exact get may find: it returns first, and what comes then comes in the order of the queue. Whoever begins anew
 * begins with a window of one. */
static __attribute__((noinline)) int begin_anew(HandleObject *h, uint64_t deadline, bool poll) {
    h->nacked = false;
    h->window = 1;
    h->last_ns = 0;
    if (!h->registered || h->inside || !hoarded(h)) return 0; /* what is asked for serves another thread */
    if (poll) return end_consuming(h, wr_by_when(h->client, WR_CALL_DEADLINE));
    uint64_t least = wr_now_ns() + FULL_NS;
    return end_consuming(h, deadline && deadline < least ? least : deadline);
}

static inline int begin_get(HandleObject *h, bool exact, uint64_t deadline, bool poll) {
    return !h->prefetch && (h->nacked || exact) ? begin_anew(h, deadline, poll) : 0;
}

/* After an exact get: what was asked for and did not come is not wanted any more. */
static int end_get(HandleObject *h, uint64_t deadline) {
    if (h->prefetch || h->inside || !h->registered || !hoarded(h)) return 0;
    uint64_t least = wr_now_ns() + FULL_NS;
    int answer = cancel(h, deadline && deadline < least ? least : deadline);
    return answer > 0 ? tell_hot(h) : answer; /* not known: somebody looks after it later */
}

/* get(timeout, ahead=True): a message, or None when none came. The clock is a good part of what a hot loop does: it
 * is looked at once, and again only after what takes time. */
PyObject *wr_handle_get(PyObject *op, PyObject *const *args, Py_ssize_t given) {
    HandleObject *h = (HandleObject *)op;
    uint64_t deadline;
    if (given != 1 && given != 2) return PyErr_Format(PyExc_TypeError, "arguments: timeout, ahead=True");
    bool exact = h->exact || (given == 2 && args[1] == Py_False);
    bool poll; /* a timeout of 0: only the worker's answer is waited for */
    uint64_t now = wr_now_ns(), delays_n = h->delays_n;
    if (wr_handle_enter(h) || wr_deadline_from(args[0], now, &deadline, &poll) || begin_get(h, exact, deadline, poll)) return NULL;
    if (!h->prefetch) note_call(h, now, 1, exact ? 1 : WINDOW_MAX);
    PyObject *message = next_message(h, h->window, deadline, poll);
    if (!message) {
        if (PyErr_Occurred()) return NULL;
        h->window = 1;
        h->last_ns = 0;
        Py_RETURN_NONE;
    }
    /* A hot loop: ask for more before what lies here runs out. */
    if (h->window > 1 && !h->prefetch && wr_client_consumer_pending(&h->consumer) < h->window / 2 &&
        (wr_handle_up_to_date(h) || ensure_credit(h, h->window, 1)))
        PyErr_Clear(); /* the message is handed out all the same: the trouble is met again by the next call */
    if (tell_hot(h)) PyErr_Clear();
    h->last_ns = h->delays_n == delays_n ? now : wr_now_ns();
    return message;
}

/* get_many(max, timeout, ahead=True): a list of at least one message, as many as are there, at most max; empty when
 * none came. */
PyObject *wr_handle_get_many(PyObject *op, PyObject *const *args, Py_ssize_t given) {
    HandleObject *h = (HandleObject *)op;
    uint64_t deadline;
    if (given != 2 && given != 3) return PyErr_Format(PyExc_TypeError, "arguments: max, timeout, ahead=True");
    bool exact = h->exact || (given == 3 && args[2] == Py_False);
    int over = 0;
    long most = PyLong_Check(args[0]) && !PyBool_Check(args[0]) ? PyLong_AsLongAndOverflow(args[0], &over) : 0;
    if (most < 1) { /* -1 if it is over */
        wr_raise("UsageError", "max must be a whole number from 1 to %ld, not %R", LONG_MAX, args[0]);
        return NULL;
    }
    bool poll;
    uint64_t now = wr_now_ns();
    if (wr_handle_enter(h) || wr_deadline_from(args[1], now, &deadline, &poll)) return NULL;
    uint32_t slots = h->client->a.port.view.g.delivery_slots / 2;
    uint32_t wanted = most < (long)slots ? (uint32_t)most : slots;
    if (begin_get(h, exact, deadline, poll)) return NULL;
    if (!h->prefetch) note_call(h, now, wanted, exact ? wanted : wanted < slots / 2 ? 2 * wanted : slots);
    PyObject *list = PyList_New(0);
    if (!list) return NULL;
    PyObject *message = next_message(h, h->window, deadline, poll);
    if (!message && !PyErr_Occurred()) {
        h->window = 1;
        h->last_ns = 0;
        return list;
    }
    h->inside++; /* reading from files lets the GIL go */
    bool ended = false;
    while (message) {
        int error = PyList_Append(list, message);
        Py_DECREF(message);
        if (error) break;
        if (PyList_GET_SIZE(list) >= most || !h->registered) break;
        if (!wr_client_consumer_pending(&h->consumer) && (wr_handle_up_to_date(h) || intake(h))) break;
        if (!wr_client_consumer_pending(&h->consumer)) {
            if (!exact || ended) break;
            h->inside--;
            ended = true; /* what was under way is here now, and nothing comes behind it */
            error = end_get(h, deadline);
            h->inside++;
            if (error || !wr_client_consumer_pending(&h->consumer)) break;
        }
        message = wr_handle_hand_out(h, deadline, false);
    }
    h->inside--;
    if (PyErr_Occurred()) {
        if (!PyList_GET_SIZE(list)) goto failed;
        PyErr_Clear(); /* what was handed out before goes to the caller; the trouble is met again by the next call */
    }
    if (!h->prefetch && !wr_handle_enter(h)) {
        if (h->window > wanted && (wr_handle_up_to_date(h) || ensure_credit(h, h->window, 1))) PyErr_Clear();
        if (tell_hot(h)) PyErr_Clear();
    } else {
        PyErr_Clear();
    }
    h->last_ns = wr_now_ns();
    return list;
failed:
    leave_empty(h);
    Py_DECREF(list);
    return NULL;
}

/* ---- the same without waiting, for binding/queue_poll.c --------------------------------------------------------- */

int wr_handle_intake(HandleObject *h) { return wr_handle_register(h) || intake(h) ? -1 : 0; }

bool wr_handle_in_memory(const HandleObject *h) {
    const wr_client_consumer *c = &h->consumer;
    uint8_t first;
    return wr_body_from_image(h->client, h->server, &c->pending[c->pending_first & (c->pending_size - 1)].delivery, 0, &first, 0);
}

void wr_handle_note_call(HandleObject *h, uint32_t wanted) {
    if (!h->prefetch) note_call(h, wr_now_ns(), wanted, h->exact || wanted >= WINDOW_MAX ? wanted : WINDOW_MAX);
}

/* ---- prefetch, release ------------------------------------------------------------------------------------------ */

/* begin(prefetch): the worker keeps up to `prefetch` unacked messages with us from now on. Which beginning of this
 * handle it is. */
PyObject *wr_handle_begin(PyObject *op, PyObject *argument) {
    HandleObject *h = (HandleObject *)op;
    int over = 0; /* then it is -1 */
    long prefetch = PyLong_Check(argument) && !PyBool_Check(argument) ? PyLong_AsLongAndOverflow(argument, &over) : 0;
    if (wr_handle_enter(h) || wr_handle_register(h)) return NULL;
    uint32_t slots = h->client->a.port.view.g.delivery_slots;
    if (prefetch < 1 || prefetch > (long)slots) {
        wr_raise("UsageError", "prefetch must lie between 1 and the setting delivery_slots (%u), not %R", slots, argument);
        return NULL;
    }
    h->prefetch = (uint32_t)prefetch;
    return PyLong_FromUnsignedLongLong(++h->begun);
}

/* Prepare the return of what lies here, or of its last part: 0 (nothing is left, if *left is 0), or what
 * wr_attachment_settle says. */
int wr_handle_return_last(HandleObject *h, uint64_t *left, wr_condition *blocked) {
    wr_client_consumer *consumer = &h->consumer;
    uint64_t tags[512], at = consumer->pending_next;
    uint32_t n = wr_client_consumer_pending(consumer) < 512 ? (uint32_t)wr_client_consumer_pending(consumer) : 512;
    *left = 0;
    if (!n) return 0;
    for (uint32_t i = n; i-- > 0;) tags[i] = consumer->pending[--at & (consumer->pending_size - 1)].delivery.sequence;
    int error = wr_attachment_settle(&h->client->a, consumer, WR_OP_NACK, WR_FLAG_REQUEUE | WR_FLAG_UNSEEN, tags, n, blocked);
    if (!error) consumer->pending_next = at;
    *left = wr_client_consumer_pending(consumer);
    return error;
}

#define RELEASE_NS 10000000000ull
#define TIDY_NS 1000000000ull

/* The worker was asked for the end and has not answered: 1 becomes the exception that says why. */
static int not_released(HandleObject *h, int answer) {
    if (answer <= 0) return answer;
    static const char what[] = "the return of what was delivered ahead (it is done when the worker continues)";
    if (!wr_hook(h->client, WR_HOOK_TIMED_OUT, h->server, what)) wr_raise("TimedOut", "%s: not done within the timeout", what);
    return -1;
}

/* Nothing more is delivered, and what lies here is back in the queue; but when another thread asks for more
 * meanwhile, the rest is for that. */
static int end_consuming(HandleObject *h, uint64_t deadline) {
    ClientObject *c = h->client;
    wr_condition blocked;
    int answer = cancel(h, deadline);
    if (answer) return not_released(h, answer);
    for (uint64_t left = 1; left;) {
        if (wr_handle_enter(h)) return -1;
        if (h->consumer.announced) break;
        if (!wr_handle_quiet(h)) { /* another thread asked, and gave up */
            if ((answer = cancel(h, deadline))) return not_released(h, answer);
            continue;
        }
        int error = wr_attachment_intake(&c->a, h->server);
        if (error == EAGAIN) error = wr_attachment_room(&c->a, h->server, &blocked); /* it has something of another queue to return */
        else if (!error) error = wr_handle_return_last(h, &left, &blocked);
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
    h->window = 1;
    h->last_ns = 0;
    h->hot = false;
    if (h->registered && end_consuming(h, wr_now_ns() + RELEASE_NS)) return NULL;
    Py_RETURN_NONE;
}

static int64_t hoard_at_rest(HandleObject *h) {
    uint64_t hoard = hoarded(h);
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
        h->window = 1;
        if (end_consuming(h, wr_now_ns() + TIDY_NS)) return NULL;
    }
    Py_RETURN_NONE;
}
