/* A get: the next message of a queue, waited for. Declared in binding/queue_get.h.
 *
 *   get: credit. A window of 1, doubled while calls follow each other within a millisecond and find something, so that
 *        a hot loop has messages lying ready, and an idle one hoards nothing. A get that times out cancels its credit
 *        and looks once more.
 *   get with a timeout of 0 (a poll) waits for no message, but for the worker's answer, call_ns at most: "none" is
 *        always the worker's word.
 *   consume: gets of a handle with a prefetch: the worker keeps messages with us, and no window counts.
 *   consume without a number: credit, too, but the window follows the time that the loop holds a message: so many are
 *        ahead as it works off in AHEAD_NS, one at least. It begins with one and doubles. What lies here beyond it, when
 *        the work has become slower, returns.
 */
#include "binding/delivery_type.h"
#include "binding/queue_get.h"
#include "binding/queue_credit.h"

#define HOT_NS 1000000ull
#define FULL_NS 1000000000ull
#define WINDOW_MAX 256u
#define AHEAD_NS 4000000ull          /* so much work lies ahead, at most: a hundred times what a round trip takes */
#define AHEAD_MAX 1024u              /* of those who consume: more than may be unacked, so that the worker never runs dry */
#define HOLDING_MAX_NS (2 * AHEAD_NS) /* a pause is not much worse than slow work: the average forgets it soon */
#define HOLDING_SHIFT 5              /* the average is of about 32 messages */
#define CHECK_NS 1000000000ull
#define MANY_BYTES (64ull << 20)     /* bodies of one call: whoever takes messages by the hundred has not memory for hundreds of large ones */
#define LAST_WORD_NS 40000000ull /* a get that knows that the worker looked waits so long for its last word */

/* Does this client hold so many messages of the worker that no other can be delivered? Nothing came that was not seen. */
static bool all_slots_held(HandleObject *h) {
    const wr_attachment *a = &h->client->a;
    uint64_t held = 0;
    if (wr_condition_met(&(wr_condition){&wr_attachment_link(a, h->server)->delivery_tail, a->workers[h->server].popped, h->server}))
        return false;
    for (uint32_t i = 0; i < a->consumers_size; i++) {
        wr_client_consumer *c = a->consumers[i];
        if (!c || c->server != h->server) continue;
        if (c->timed) wr_client_consumer_drop_taken(a, c);
        held += wr_client_consumer_pending(c) + wr_client_consumer_unacked(a, c);
    }
    return held >= a->port.view.g.delivery_slots;
}

static void raise_full(const HandleObject *h) {
    wr_raise("LimitError", "this client holds %u messages of the worker unacked, which is the most: ack some, or raise the setting "
                           "delivery_slots", h->client->a.port.view.g.delivery_slots);
}

PyObject *wr_handle_check_slots(PyObject *op, PyObject *unused) {
    HandleObject *h = (HandleObject *)op;
    (void)unused;
    if (wr_handle_enter(h)) return NULL;
    if (!all_slots_held(h)) Py_RETURN_NONE;
    raise_full(h);
    return NULL;
}

/* Wait until the worker has taken our link up; a moment longer than the deadline, so that a first look finds something.
 * 0, 1 (it has not), -1. */
static int wait_for_worker(HandleObject *h, uint64_t deadline) {
    ClientObject *c = h->client;
    uint64_t patience = wr_now_ns() + FULL_NS;
    wr_server *server = wr_superblock_server(c->a.port.super, h->server);
    bool up = atomic_load_explicit(&server->state, memory_order_acquire) == WR_SERVER_READY;
    if (up && deadline && deadline < patience) deadline = patience;
    wr_condition condition = {&wr_attachment_link(&c->a, h->server)->server_epoch, 0, h->server};
    return wr_wait_while(c, &condition, deadline, WR_FOR_REPLY, wr_handle_still_there, h);
}

const char wr_the_answer[] =
    "the worker's answer whether there is a message (there may still be one: call again)";

static uint64_t told(const HandleObject *h) {
    return atomic_load_explicit(&wr_attachment_link(&h->client->a, h->server)->tail, memory_order_relaxed);
}

static uint64_t epoch_now(const HandleObject *h) {
    return atomic_load_explicit(&wr_attachment_link(&h->client->a, h->server)->server_epoch, memory_order_acquire);
}

/* Wait until the worker has done the first `n` things that it was told. 0, 1 (not known until the deadline), -1. */
static int wait_for_processed(HandleObject *h, uint64_t n, uint64_t deadline) {
    ClientObject *c = h->client;
    if (!n) return 0;
    wr_condition condition = {&wr_attachment_link(&c->a, h->server)->processed, n - 1, h->server};
    int answer = wr_wait_while(c, &condition, deadline, WR_FOR_REPLY, wr_handle_still_there, h);
    return answer < 0 || wr_handle_enter(h) ? -1 : answer;
}

/* Did something come that another thread took, which may have been all that the worker was asked for? */
static bool taken_by_others(const HandleObject *h, uint64_t came_n) {
    return h->consumer.came_n != came_n && !wr_client_consumer_pending(&h->consumer);
}

/* A poll has sent its credit, or found one out. 0: the worker has looked, and what it found is taken in; 1:
 * something has changed meanwhile, ask again; 2: the deadline has passed; -1. */
static int hear_worker(HandleObject *h, uint64_t epoch, uint64_t came_n, uint64_t deadline) {
    for (int round = 0;; round++) {
        int answer = wait_for_processed(h, told(h), deadline);
        if (answer) return answer < 0 ? -1 : 2;
        if (epoch_now(h) != epoch) return 1;
        if (!h->registered) return 1;
        if (wr_handle_intake(h)) return -1;
        if (wr_client_consumer_pending(&h->consumer)) return 0;
        /* Another thread took what came for this credit, or took the credit back. */
        if (h->consumer.came_n != came_n || !h->consumer.announced) return 1;
        if (round) return 0;
        if (!wr_handle_consumes(h) && h->inside == 1) { /* nobody else needs the credit */
            if ((answer = wr_credit_cancel(h, deadline))) return answer < 0 ? -1 : 2;
            return epoch_now(h) != epoch || taken_by_others(h, came_n);
        }
        answer = wr_credit_again(h, deadline);
        if (answer) return answer < 0 ? -1 : 2;
    }
}

/* What a get has asked the worker for. */
typedef struct {
    uint64_t told;   /* with so many things told to it in all */
    uint64_t epoch;  /* of the worker that it was asked of; 0: nothing was asked */
    uint64_t asks_n; /* of the handle, by then */
    uint64_t came_n; /* of the handle, when it was last made sure that the worker is asked */
} question;

/* A get's time is up. "None" has to be the worker's word: it has done all that it was told when this get asked, and
 * lives. Its last word, to a CANCEL or to the same credit once more, is not waited for long: a worker that merely
 * has much to do was asked before. 0: there is none, or what there is was taken in; 1: the worker was restarted, or
 * another thread took what came, ask again; -1. */
static int conclude(HandleObject *h, const question *asked, uint64_t answer_by) {
    int answer = asked->epoch ? wait_for_processed(h, asked->told, answer_by) : 1;
    if (answer < 0) return -1;
    if (!answer && epoch_now(h) != asked->epoch) {
        if (wr_now_ns() < answer_by) return 1;
        answer = 1;
    }
    if (answer) return wr_handle_late(h, wr_the_answer);
    if (!h->registered) return 0;
    uint64_t patience = wr_now_ns() + LAST_WORD_NS;
    /* it serves another thread, or the next call */
    if (wr_handle_consumes(h) || (h->inside > 1 && h->consumer.announced)) {
        answer = wr_credit_again(h, patience);
        if (!answer) answer = wait_for_processed(h, told(h), patience);
    } else {
        answer = wr_credit_cancel(h, patience); /* an idle consumer keeps no credit */
    }
    if (answer < 0) return -1;
    if (!answer) return wr_handle_intake(h) ? -1 : taken_by_others(h, asked->came_n) && wr_now_ns() < answer_by;
    if (wr_credit_tell_hot(h)) return -1; /* somebody looks after the credit later */
    return wr_handle_hook(h, WR_HOOK_SILENT, wr_the_answer) || wr_handle_enter(h) ? -1 : 0;
}

/* The next message, waiting for it until the deadline. NULL without an exception: there was none. `wanted`: messages
 * that the caller can use at once. `answer_by`: when the worker's answer has to be there; 0: without end. */
static __attribute__((noinline)) PyObject *wait_for_message(HandleObject *h, uint32_t wanted, uint64_t deadline,
                                                            bool poll, uint64_t answer_by, uint32_t woken) {
    ClientObject *c = h->client;
    bool last_look = false;
    uint64_t full_since = 0, check_at = wr_now_ns() + CHECK_NS;
    question asked = {0, 0, 0, 0};
    for (;;) {
        if (wr_handle_enter(h) || wr_handle_up_to_date(h) || wr_handle_register(h)) return NULL;
        if (!wr_client_consumer_pending(&h->consumer) && wr_handle_intake(h)) return NULL;
        if (wr_client_consumer_pending(&h->consumer)) {
            PyObject *message = wr_handle_hand_out(h, deadline, true);
            if (message || PyErr_Occurred()) return message;
            last_look = false; /* the worker has taken back what came for this credit */
            continue;
        }
        if (last_look) return NULL;
        if (h->woken != woken) {
            PyErr_SetString(wr_module.attachment_lost, "the get was woken: call again");
            return NULL;
        }
        h->delays_n++;
        if (!c->a.workers[h->server].epoch) { /* the worker has not seen us yet: credit is counted under its epoch */
            int taken_up = wait_for_worker(h, answer_by);
            if (taken_up > 0) wr_handle_late(h, wr_the_answer);
            if (taken_up) return NULL;
            continue;
        }
        int answer = wr_credit_ensure(h, wanted, answer_by);
        if (!answer) wr_credit_remind(h);
        uint64_t now = wr_now_ns(), epoch = c->a.workers[h->server].epoch;
        if (!answer && (asked.epoch != epoch || asked.asks_n != h->asks_n))
            asked = (question){told(h), epoch, h->asks_n, 0};
        asked.came_n = h->consumer.came_n;
        if (!answer && !poll) {
            wr_condition condition = wr_attachment_delivery(&c->a, h->server);
            answer = wr_wait(c, &condition, deadline, WR_FOR_DELIVERY);
            now = wr_now_ns();
            if (answer >= 0 && now >= check_at) { /* in slices: who looks whether anybody lives is here */
                if (wr_hook(c, WR_HOOK_CHECK, h->server, "")) return NULL;
                check_at = now + CHECK_NS;
            }
        }
        if (answer < 0 || wr_handle_still_there(h)) return NULL;
        bool late = poll || (deadline && now >= deadline);
        if (all_slots_held(h)) {
            /* Nothing can come before something is acked. Another thread may do that, in a while. */
            if (!full_since) full_since = now;
            if (late || now - full_since > FULL_NS) {
                raise_full(h);
                return NULL;
            }
        } else {
            full_since = 0;
        }
        if (!late) continue;
        if (poll) {
            if (!answer) answer = hear_worker(h, epoch, asked.came_n, answer_by);
            else answer = 2;
            if (answer < 0) return NULL;
            if (answer == 2 || (answer == 1 && answer_by && wr_now_ns() >= answer_by)) {
                wr_handle_late(h, wr_the_answer);
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
    if (wr_handle_enter(h) || wr_credit_tell_hot(h)) PyErr_Clear();
    PyErr_Restore(type, value, trace);
}

static PyObject *next_message(HandleObject *h, uint32_t wanted, uint64_t deadline, bool poll, uint32_t woken) {
    PyObject *message = NULL;
    h->inside++;
    if (wr_client_consumer_pending(&h->consumer) && h->registered && !wr_handle_enter(h) && !wr_handle_up_to_date(h))
        message = wr_handle_hand_out(h, deadline, true);
    if (!message && !PyErr_Occurred()) {
        uint64_t least = deadline && !poll ? wr_now_ns() + WR_ANSWER_NS : 0;
        uint64_t answer_by = deadline && deadline < least ? least : deadline;
        if (poll) answer_by = wr_by_when(h->client, WR_CALL_DEADLINE);
        message = wait_for_message(h, wanted, deadline, poll, answer_by, woken);
    }
    h->inside--;
    if (!message) {
        leave_empty(h);
        if (PyErr_Occurred()) wr_note_deadline(deadline);
    }
    return message;
}

/* ---- how much to ask for ----------------------------------------------------------------------------------------- */

/* How long the loop holds a message: from the end of a get to the next one. */
static inline void note_holding(HandleObject *h, uint64_t now) {
    if (!h->last_ns) return;
    uint64_t held = now - h->last_ns, most = HOLDING_MAX_NS;
    /* One long pause, as of a processor that was given to others, is no slow work; many are: each makes the average five
     * times as long. */
    if (h->holding_ns && (h->holding_ns << 7) + 65536 < most) most = (h->holding_ns << 7) + 65536;
    if (held > most) held = most;
    if (!h->holding_ns) h->holding_ns = held;
    h->holding_ns += (held >> HOLDING_SHIFT) - (h->holding_ns >> HOLDING_SHIFT);
}

static inline void note_call(HandleObject *h, uint64_t now, uint32_t least, uint32_t most) {
    if (now > h->last_ns + HOT_NS) h->window = least;
    else if (h->window < most) h->window *= 2;
    if (h->window < least) h->window = least;
    if (h->window > most) h->window = most;
}

/* A get of one message: not more ahead than pays. For a loop of gets a pause is none that it holds a message in. */
static inline void note_get(HandleObject *h, uint64_t now) {
    if (!h->adapts && now > h->last_ns + HOT_NS) {
        h->window = 1;
        return;
    }
    note_holding(h, now);
    uint32_t most = h->adapts ? AHEAD_MAX : WINDOW_MAX;
    if (2 * h->window * h->holding_ns <= AHEAD_NS && h->window < most) h->window *= 2;
    while (h->window > 1 && h->window * h->holding_ns > AHEAD_NS) h->window /= 2;
}

/* Does so much more lie here than pays that others should have it? */
static inline bool too_much(const HandleObject *h) {
    uint64_t lying = wr_client_consumer_pending(&h->consumer);
    return lying > 2 * h->window && lying * h->holding_ns > 4 * AHEAD_NS;
}

void wr_handle_note_call(HandleObject *h, uint32_t wanted) {
    if (!wr_handle_consumes(h)) note_call(h, wr_now_ns(), wanted, h->exact || wanted >= WINDOW_MAX ? wanted : WINDOW_MAX);
}

/* Before a get. What lies here was delivered before a message went back that belongs before it, or is more than an
 * exact get may find: it returns first, and what comes then comes in the order of the queue. Whoever begins anew
 * begins with a window of one. */
static __attribute__((noinline)) int begin_anew(HandleObject *h, uint64_t deadline, bool poll) {
    h->nacked = false;
    h->window = 1;
    h->last_ns = 0;
    if (!h->registered || h->inside || !wr_credit_hoarded(h)) return 0; /* what is asked for serves another thread */
    if (poll) return wr_credit_end(h, wr_by_when(h->client, WR_CALL_DEADLINE));
    uint64_t least = wr_now_ns() + FULL_NS;
    return wr_credit_end(h, deadline && deadline < least ? least : deadline);
}

static inline int begin_get(HandleObject *h, bool exact, uint64_t deadline, bool poll) {
    return !wr_handle_consumes(h) && (h->nacked || exact) ? begin_anew(h, deadline, poll) : 0;
}

/* After an exact get: what was asked for and did not come is not wanted any more. */
static int end_get(HandleObject *h, uint64_t deadline) {
    if (wr_handle_consumes(h) || h->inside || !h->registered || !wr_credit_hoarded(h)) return 0;
    uint64_t least = wr_now_ns() + FULL_NS;
    int answer = wr_credit_cancel(h, deadline && deadline < least ? least : deadline);
    return answer > 0 ? wr_credit_tell_hot(h) : answer; /* not known: somebody looks after it later */
}

/* ---- methods of QueueHandle -------------------------------------------------------------------------------------- */

/* get(timeout, ahead=True, woken=None): a message, or None when none came. With `woken`, a wake() since that was read
 * counts, too. The clock is a good part of what a hot loop does: it
 * is looked at once, and again only after what takes time. */
PyObject *wr_handle_get(PyObject *op, PyObject *const *args, Py_ssize_t given) {
    HandleObject *h = (HandleObject *)op;
    uint64_t deadline;
    if (given < 1 || given > 3) return PyErr_Format(PyExc_TypeError, "arguments: timeout, ahead=True, woken=None");
    bool ahead = true;
    if (given > 1 && wr_flag(args[1], "ahead", &ahead)) return NULL;
    bool exact = !h->adapts && (h->exact || !ahead);
    uint32_t woken = h->woken;
    if (given == 3) {
        unsigned long seen = PyLong_AsUnsignedLong(args[2]);
        if (PyErr_Occurred()) return NULL;
        woken = (uint32_t)seen;
    }
    bool poll; /* a timeout of 0: only the worker's answer is waited for */
    uint64_t now = wr_now_ns(), delays_n = h->delays_n;
    if (wr_handle_enter(h) || wr_deadline_from(args[0], now, &deadline, &poll) || begin_get(h, exact, deadline, poll))
        return NULL;
    if (h->prefetch) { /* the worker keeps it */
    } else if (exact) {
        note_call(h, now, 1, 1);
    } else {
        note_get(h, now);
        if (h->adapts && !h->inside && too_much(h) && wr_credit_thin(h, h->window, now + LAST_WORD_NS)) {
            if (!PyErr_ExceptionMatches(PyExc_Exception)) return NULL; /* an interrupt */
            PyErr_Clear(); /* what lies here is handed out all the same: the trouble is met again by who waits */
        }
    }
    PyObject *message = next_message(h, h->window, deadline, poll, woken);
    if (!message) {
        if (PyErr_Occurred()) return NULL;
        h->window = 1;
        h->last_ns = 0;
        Py_RETURN_NONE;
    }
    /* A hot loop: ask for more before what lies here runs out. */
    if (h->window > 1 && !h->prefetch && wr_client_consumer_pending(&h->consumer) < h->window / 2 &&
        (wr_handle_up_to_date(h) || wr_credit_ensure(h, h->window, 1)))
        PyErr_Clear(); /* the message is handed out all the same: the trouble is met again by the next call */
    if (wr_credit_tell_hot(h)) PyErr_Clear();
    h->last_ns = h->delays_n == delays_n ? now : wr_now_ns();
    return message;
}

/* get_many(max, timeout, ahead=True): a list of at least one message, as many as are there, at most max, and no more
 * than their bodies are MANY_BYTES together; empty when none came. */
PyObject *wr_handle_get_many(PyObject *op, PyObject *const *args, Py_ssize_t given) {
    HandleObject *h = (HandleObject *)op;
    uint64_t deadline;
    if (given != 2 && given != 3) return PyErr_Format(PyExc_TypeError, "arguments: max, timeout, ahead=True");
    bool ahead = true;
    if (given == 3 && wr_flag(args[2], "ahead", &ahead)) return NULL;
    bool exact = h->exact || !ahead;
    int over = 0;
    long most = PyLong_Check(args[0]) && !PyBool_Check(args[0]) ? PyLong_AsLongAndOverflow(args[0], &over) : 0;
    if (most < 1) { /* -1 if it is over */
        wr_raise_given("UsageError", args[0], "max must be a whole number from 1 to %ld", LONG_MAX);
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
    PyObject *message = next_message(h, h->window, deadline, poll, h->woken);
    if (!message && !PyErr_Occurred()) {
        h->window = 1;
        h->last_ns = 0;
        return list;
    }
    h->inside++; /* reading from files lets the GIL go */
    bool ended = false;
    uint64_t bytes = 0;
    while (message) {
        int error = PyList_Append(list, message);
        bytes += (uint64_t)PyBytes_GET_SIZE(((DeliveryObject *)message)->body);
        Py_DECREF(message);
        if (error) break;
        if (PyList_GET_SIZE(list) >= most || bytes >= MANY_BYTES || !h->registered) break;
        if (!wr_client_consumer_pending(&h->consumer) && (wr_handle_up_to_date(h) || wr_handle_intake(h))) break;
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
        if (h->window > wanted && (wr_handle_up_to_date(h) || wr_credit_ensure(h, h->window, 1))) PyErr_Clear();
        if (wr_credit_tell_hot(h)) PyErr_Clear();
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
