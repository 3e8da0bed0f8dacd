/* The client's binding, second part: QueueHandle (one queue as this attachment uses it) and Delivery (one message in hand).
 *
 * How a consumer gets its messages
 *   get: credit. A window of 1, doubled while calls follow each other within a millisecond and find something, so that a hot loop has
 *        messages lying ready, and an idle one hoards nothing. A get that times out cancels its credit and looks once more.
 *   get with a timeout of 0 (a poll) waits for no message, but for the worker's answer, call_ns at most: "none" is always the worker's word.
 *   consume: prefetch. The worker keeps up to so many unacked messages with us.
 *   Both take from `pending`, filled by the intake, in order.
 *
 * Invariants
 *   Who waits with a handle learns that its queue is gone: each slice of a wait looks whether it may be (queue_gone).
 *   A message is handed out once. What is pending and not handed out is returned to the queue by release(), or by the worker
 *   when this process goes.
 *   A settled message is not settled again; ack(multiple) settles what was handed out, never what is only pending.
 *   Entries taken out of `pending` are in local hands while the GIL is away; they come back there when that fails.
 *   Order: what is handed out comes by ascending tag (in a priority) but for what somebody had in hand and returned. So what lies
 *   here returns unseen only while the handle is quiet: no credit is out, the last CANCEL was executed, and all that was
 *   pushed is taken in; the highest tags first. Whoever sends a CREDIT meanwhile (the GIL is away while we wait) gets the rest, which is
 *   below all that was returned, and the worker executes the returns before that credit.
 */
#include "binding/queue_handle.h"
#include <structmember.h>

#define HOT_NS 1000000ull
#define WINDOW_MAX 256u
#define TAGS_MAX 4096u
#define LOCATE_TRIES 6
#define STORE_TRIES 80 /* about 5 s: store and worker were killed, and the worker, or its publisher, is about to send the body again */

typedef struct {
    PyObject_HEAD
    PyObject *body;
    PyObject *meta; /* bytes or NULL */
    HandleObject *handle;
    uint64_t tag;
    uint8_t id[16];
    uint16_t delivery_count;
    uint8_t priority;
    uint8_t reason; /* WR_REASON_...: why it died, in a queue of dead letters */
    bool persistent;
    bool redelivered;
    bool settled;
} DeliveryObject;

static PyTypeObject *handle_type, *delivery_type;

static int enter(HandleObject *h) {
    if (wr_enter(h->client)) return -1;
    if (!h->dead) return 0;
    PyErr_SetObject(wr_session_lost, h->dead);
    return -1;
}

/* ---- bodies ------------------------------------------------------------------------------------------------------ */

/* From memory: true when the bytes were there. */
static bool read_image(ClientObject *c, uint32_t server, const wr_delivery *d, uint64_t from, void *to, uint64_t bytes) {
    const wr_worker_side *side = &c->a.workers[server];
    const uint8_t *region = d->location == WR_LOCATION_JOURNAL             ? side->images
                            : d->location == WR_LOCATION_JOURNAL_TRANSIENT ? side->transient_images
                                                                           : NULL;
    return region && wr_image_read(region, c->a.images_n, c->a.file_bytes, d->file, (uint64_t)d->offset + d->blob_offset + from,
                                   to, bytes);
}

static int read_file(ClientObject *c, uint32_t server, const wr_delivery *d, void *to, const char **reason) {
    wr_bodies *bodies = &c->a.bodies;
    int error = EAGAIN;
    if (!pthread_mutex_trylock(&bodies->lock)) {
        error = wr_bodies_read(bodies, server, d, to, true, reason);
        pthread_mutex_unlock(&bodies->lock);
    }
    if (error != EAGAIN) return error;
    c->busy++;
    Py_BEGIN_ALLOW_THREADS
    pthread_mutex_lock(&bodies->lock);
    error = wr_bodies_read(bodies, server, d, to, false, reason);
    pthread_mutex_unlock(&bodies->lock);
    Py_END_ALLOW_THREADS
    c->busy--;
    wr_left(c);
    return error;
}

#define FULL_NS 1000000000ull

/* Where is it now? Asks the worker and reads the delivery slot again. 0, ENOENT (we do not hold it any more), -1. */
static int locate(ClientObject *c, uint32_t server, wr_delivery *d, uint32_t slot, uint64_t deadline) {
    uint64_t sequence;
    wr_condition blocked;
    for (;;) {
        int error = wr_attachment_command(&c->a, server, WR_OP_LOCATE, 0, d->queue, d->sequence, NULL, &sequence, &blocked);
        if (!error) break;
        if (wr_blocked(c, error, &blocked, deadline, "room for a question")) return -1;
    }
    wr_port_submit(&c->a.port, server);
    wr_condition condition = {&wr_attachment_link(&c->a, server)->processed, sequence, server};
    if (wr_wait_or_raise(c, &condition, deadline, WR_FOR_REPLY, "the place of a message")) return -1;
    wr_delivery now;
    if (!wr_attachment_slot_read(&c->a, server, slot, &now) || now.queue != d->queue || now.sequence != d->sequence) return ENOENT;
    memcpy((void *)d, (const void *)&now, sizeof now);
    return 0;
}

/* `lost`: its bytes are not what was written, and it is about to be dropped; else it may be readable again after a start. */
static int corrupt(const wr_delivery *d, const char *reason, bool lost) {
    const char *folder = d->location == WR_LOCATION_SEGMENT             ? "segments"
                         : d->location == WR_LOCATION_JOURNAL_TRANSIENT ? "transient"
                                                                        : "journal";
    PyObject *module = PyImport_ImportModule("warren.engine.errors");
    PyObject *error = NULL;
    if (module)
        error = d->location >= WR_LOCATION_STORE
                    ? PyObject_CallMethod(module, "StoreError", "s",
                                          lost ? "a message body in the store is damaged: the message is lost and not delivered again, run warren check"
                                               : "a message body is not in the store: run warren check")
                    : PyObject_CallMethod(module, "CorruptRecord", "NIsN",
                                          PyUnicode_FromFormat("%s/%u.%s", folder, d->file,
                                                               d->location == WR_LOCATION_SEGMENT ? "dat" : "jnl"),
                                          d->offset, "the frame of a message",
                                          PyUnicode_FromFormat(lost ? "bad %s: the message is lost and not delivered again (run warren check)"
                                                                    : "bad %s (run warren check)", reason));
    if (error) PyErr_SetObject((PyObject *)Py_TYPE(error), error);
    Py_XDECREF(error);
    Py_XDECREF(module);
    return -1;
}

static PyObject *deliver(HandleObject *h, const wr_delivery *d, PyObject *body, PyObject *meta) {
    DeliveryObject *m = (DeliveryObject *)h->messages->tp_alloc(h->messages, 0);
    if (!m) {
        Py_DECREF(body);
        Py_XDECREF(meta);
        return NULL;
    }
    /* A class made in Python is always one for the collector of cycles, which then goes through every thousand messages and, as
     * they are many, through all objects of the process: half of what a consumer did. It can visit nothing in them: their type has no
     * tp_traverse, and without slots or a dictionary of its own the class adds none. */
    if (PyType_IS_GC(h->messages) && !h->messages->tp_dictoffset && h->messages->tp_basicsize == sizeof(DeliveryObject))
        PyObject_GC_UnTrack(m);
    m->body = body;
    m->meta = meta;
    m->handle = (HandleObject *)Py_NewRef(h);
    m->tag = d->sequence;
    memcpy(m->id, d->id, 16);
    m->delivery_count = d->delivery_count;
    m->redelivered = d->flags & WR_DELIVERY_REDELIVERED;
    m->priority = d->flags >> WR_DELIVERY_PRIORITY_SHIFT;
    m->reason = d->flags >> WR_DELIVERY_REASON_SHIFT & WR_DELIVERY_REASON_MASK;
    m->persistent = d->location != WR_LOCATION_JOURNAL_TRANSIENT && d->location != WR_LOCATION_STORE_TRANSIENT;
    return (PyObject *)m;
}

/* A message from its two parts, lying behind each other. */
static PyObject *deliver_bytes(HandleObject *h, const wr_delivery *d, const uint8_t *bytes, uint32_t length, uint32_t meta_length) {
    if (meta_length > length) {
        corrupt(d, "length", false);
        return NULL;
    }
    PyObject *body = PyBytes_FromStringAndSize((const char *)bytes + meta_length, (Py_ssize_t)(length - meta_length));
    PyObject *meta = body && meta_length ? PyBytes_FromStringAndSize((const char *)bytes, meta_length) : NULL;
    if (!body || (meta_length && !meta)) {
        Py_XDECREF(body);
        return NULL;
    }
    return deliver(h, d, body, meta);
}

/* The message of a delivery. NULL without an exception: it is not ours any more (or not there any more). `held`: it lies in a
 * delivery slot of ours, so the worker can be asked where it is now; its answer is waited for until the deadline, but a second at least. *lost: with
 * the exception, if its bytes are damaged. */
static PyObject *fetch(HandleObject *h, wr_delivery *d, uint32_t slot, bool held, uint64_t deadline, bool *lost) {
    ClientObject *c = h->client;
    uint32_t server = h->server;
    const char *reason = "place";
    int error = ENOENT;
    /* What is not there may be about to come; bytes that are there and wrong are not. */
    for (int attempt = 0; attempt < (d->location >= WR_LOCATION_STORE && error == ENOENT ? STORE_TRIES : LOCATE_TRIES); attempt++) {
        error = ENOENT;
        if (d->location >= WR_LOCATION_STORE || attempt) h->delays_n++;
        if (d->location == WR_LOCATION_STORE || d->location == WR_LOCATION_STORE_TRANSIENT) {
            uint8_t *bytes;
            uint32_t length;
            uint16_t meta_length;
            error = wr_store_fetch(c, d->location == WR_LOCATION_STORE_TRANSIENT, d->id, &bytes, &length, &meta_length);
            if (error < 0) return NULL;
            if (!error) {
                PyObject *message = deliver_bytes(h, d, bytes, length, meta_length);
                free(bytes);
                return message;
            }
        } else if (d->body_length >= d->meta_length && d->body_length <= c->a.message_bytes_max) {
            uint32_t length = d->body_length - d->meta_length;
            PyObject *body = PyBytes_FromStringAndSize(NULL, length);
            if (!body) return NULL;
            if (read_image(c, server, d, d->meta_length, PyBytes_AS_STRING(body), length)) {
                if (!d->meta_length) return deliver(h, d, body, NULL);
                PyObject *meta = PyBytes_FromStringAndSize(NULL, d->meta_length);
                if (!meta) {
                    Py_DECREF(body);
                    return NULL;
                }
                if (read_image(c, server, d, 0, PyBytes_AS_STRING(meta), d->meta_length)) return deliver(h, d, body, meta);
                Py_DECREF(meta);
            }
            h->delays_n++;
            if (!d->meta_length) {
                error = read_file(c, server, d, PyBytes_AS_STRING(body), &reason);
                if (!error) return deliver(h, d, body, NULL);
            }
            Py_DECREF(body);
            if (d->meta_length) {
                uint8_t *bytes = PyMem_Malloc(d->body_length);
                if (!bytes) return PyErr_NoMemory();
                error = read_file(c, server, d, bytes, &reason);
                PyObject *message = error ? NULL : deliver_bytes(h, d, bytes, d->body_length, d->meta_length);
                PyMem_Free(bytes);
                if (!error) return message;
            }
            if (c->ended) {
                wr_enter_slow(c);
                return NULL;
            }
        }
        if (error != ENOENT && error != EBADMSG && error != EUCLEAN) {
            wr_raise_errno(error, "cannot read the body of a message");
            return NULL;
        }
        if (!held) break;
        uint64_t least = wr_now_ns() + FULL_NS;
        if (locate(c, server, d, slot, !deadline ? WR_CALL_DEADLINE : deadline < least ? least : deadline))
            return NULL; /* an exception, or it is gone */
        if (attempt && wr_nap(c, attempt < 6 ? 1000000ull << attempt : 64000000)) return NULL;
    }
    if (held) {
        *lost = error == EBADMSG; /* the file is there, and is what its first page says */
        corrupt(d, reason, *lost);
    }
    return NULL;
}

/* ---- pending, in hand -------------------------------------------------------------------------------------------- */

static void push_back(HandleObject *h, const wr_pending *p) {
    if (!wr_client_consumer_push_front(&h->consumer, p)) return;
    wr_condition blocked;
    uint64_t tag = p->delivery.sequence;
    /* No memory: back to the queue with it. When that cannot be said now, the worker returns it when we go. */
    if (!wr_attachment_settle(&h->client->a, &h->consumer, WR_OP_NACK, WR_FLAG_REQUEUE | WR_FLAG_UNSEEN, &tag, 1, &blocked))
        wr_port_submit(&h->client->a.port, h->server);
}

/* The worker counts a message as lost whose bytes are damaged, and its queue goes on. Without room for that now it stays held. */
static void give_up(HandleObject *h, uint64_t tag) {
    wr_condition blocked;
    if (!wr_attachment_settle(&h->client->a, &h->consumer, WR_OP_NACK, WR_FLAG_UNSEEN, &tag, 1, &blocked))
        wr_port_submit(&h->client->a.port, h->server);
}

/* The next pending message; NULL without an exception when there is none. `alone`: an exception will be seen; else that of a damaged
 * message is met again by the next call. */
static PyObject *hand_out(HandleObject *h, uint64_t deadline, bool alone) {
    wr_client_consumer *c = &h->consumer;
    while (wr_client_consumer_pending(c)) {
        wr_pending p;
        memcpy((void *)&p, (void *)&c->pending[c->pending_first++ & (c->pending_size - 1)], sizeof p);
        if (wr_client_consumer_pending(c)) __builtin_prefetch(&c->pending[c->pending_first & (c->pending_size - 1)]);
        bool lost = false;
        PyObject *message = fetch(h, &p.delivery, p.slot, true, deadline, &lost);
        if (!message) {
            if (!PyErr_Occurred()) continue;
            /* A message that cannot be read stays held (and is returned when we go) unless it is lost; after anything else it is the next
             * one again. */
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

static int register_consumer(HandleObject *h) {
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
static int not_stopped(HandleObject *h) {
    if (!wr_node_stopped(h->client)) return 0;
    return wr_hook(h->client, WR_HOOK_STOPPING, h->server, "");
}

/* The worker may have been restarted: then its regions are opened anew before anything is read. */
static int up_to_date(HandleObject *h) {
    ClientObject *c = h->client;
    if (not_stopped(h)) return -1;
    uint64_t epoch = atomic_load_explicit(&wr_attachment_link(&c->a, h->server)->server_epoch, memory_order_acquire);
    if (__builtin_expect(epoch == c->a.workers[h->server].epoch, 1)) return 0;
    return wr_hook(c, WR_HOOK_EPOCH, h->server, "");
}

/* The queue may have been deleted, by whomever: then nothing will come any more. 0, -1. */
static int still_there(void *handle) {
    HandleObject *h = handle;
    ClientObject *c = h->client;
    if (wr_queue_perhaps_gone(c, h->queue) && wr_catalog_due(c) && wr_hook(c, WR_HOOK_CATALOG, 0, "")) return -1;
    return enter(h); /* another thread may have read the catalog */
}

/* After EAGAIN: wait for room. 0, 1 (the deadline has passed), -1. */
static int wait_for_room(HandleObject *h, int error, const wr_condition *blocked, uint64_t deadline) {
    if (error != EAGAIN) return wr_blocked(h->client, error, blocked, deadline, "room for a command");
    wr_port_submit(&h->client->a.port, h->server);
    int answer = wr_wait_while(h->client, blocked, deadline, WR_FOR_ROOM, still_there, h);
    return answer || !enter(h) ? answer : -1;
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

/* Nothing more is to come; what is under way is taken in. 0, 1 (not known until the deadline), -1. Another thread may have sent
 * the CANCEL: it is waited for all the same. Afterwards another thread may have asked for more again. */
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
    if (answer < 0 || enter(h) || intake(h)) return -1;
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

#define CHECK_NS 1000000000ull
#define ANSWER_NS 250000000ull /* a get gives the worker at least so long to answer, whatever its timeout is */
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

static const char the_answer[] = "the worker's answer whether there is a message (it may be there all the same: call again)";

static void no_answer(HandleObject *h) {
    if (!wr_hook(h->client, WR_HOOK_TIMED_OUT, h->server, the_answer)) wr_raise("TimedOut", "%s: not there in time", the_answer);
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
    return answer < 0 || enter(h) ? -1 : answer;
}

/* A poll has sent its credit, or found one out. 0: the worker has looked, and what it found is taken in; 1: something has changed
 * meanwhile, ask again; 2: the deadline has passed; -1. */
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

/* A get's time is up. "None" has to be the worker's word: it has done all that it was told when this get asked, and lives. Its last
 * word, to a CANCEL or to the same credit once more, is not waited for long: a worker that merely has much to do was asked before.
 * 0: there is none, or what there is was taken in; 1: the worker was restarted, ask again; -1. */
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
    return wr_hook(c, WR_HOOK_SILENT, h->server, the_answer) || enter(h) ? -1 : 0;
}

/* The next message, waiting for it until the deadline. NULL without an exception: there was none. `wanted`: messages that
 * the caller can use at once. `answer_by`: when the worker's answer has to be there; 0: without end. */
static __attribute__((noinline)) PyObject *wait_for_message(HandleObject *h, uint32_t wanted, uint64_t deadline, bool poll, uint64_t answer_by) {
    ClientObject *c = h->client;
    bool last_look = false;
    uint64_t full_since = 0, check_at = wr_now_ns() + CHECK_NS;
    question asked = {0, 0, 0};
    for (;;) {
        if (enter(h) || up_to_date(h) || register_consumer(h)) return NULL;
        if (!wr_client_consumer_pending(&h->consumer) && intake(h)) return NULL;
        if (wr_client_consumer_pending(&h->consumer)) {
            PyObject *message = hand_out(h, deadline, true);
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

/* A call ends without a message: its credit may be out still, because it failed, or because it served another thread, too. */
static void leave_empty(HandleObject *h) {
    PyObject *type, *value, *trace;
    if (h->inside) return; /* the last one looks */
    PyErr_Fetch(&type, &value, &trace);
    if (enter(h) || tell_hot(h)) PyErr_Clear();
    PyErr_Restore(type, value, trace);
}

static PyObject *next_message(HandleObject *h, uint32_t wanted, uint64_t deadline, bool poll) {
    PyObject *message = NULL;
    h->inside++;
    if (wr_client_consumer_pending(&h->consumer) && h->registered && !enter(h) && !up_to_date(h)) message = hand_out(h, deadline, true);
    if (!message && !PyErr_Occurred()) {
        uint64_t least = deadline && !poll ? wr_now_ns() + ANSWER_NS : 0;
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

/* Before a get. What lies here was delivered before a message went back that belongs before it, or is more than an exact get may
 * find: it returns first, and what comes then comes in the order of the queue. Whoever begins anew begins with a window of one. */
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

/* get(timeout, ahead=True): a message, or None when none came. The clock is a good part of what a hot loop does: it is looked at once,
 * and again only after what takes time. */
static PyObject *handle_get(PyObject *op, PyObject *const *args, Py_ssize_t given) {
    HandleObject *h = (HandleObject *)op;
    uint64_t deadline;
    if (given != 1 && given != 2) return PyErr_Format(PyExc_TypeError, "arguments: timeout, ahead=True");
    bool exact = h->exact || (given == 2 && args[1] == Py_False);
    bool poll; /* a timeout of 0: only the worker's answer is waited for */
    uint64_t now = wr_now_ns(), delays_n = h->delays_n;
    if (enter(h) || wr_deadline_from(args[0], now, &deadline, &poll) || begin_get(h, exact, deadline, poll)) return NULL;
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
        (up_to_date(h) || ensure_credit(h, h->window, 1)))
        PyErr_Clear(); /* the message is handed out all the same: the trouble is met again by the next call */
    if (tell_hot(h)) PyErr_Clear();
    h->last_ns = h->delays_n == delays_n ? now : wr_now_ns();
    return message;
}

/* get_many(max, timeout, ahead=True): a list of at least one message, as many as are there, at most max; empty when none came. */
static PyObject *handle_get_many(PyObject *op, PyObject *const *args, Py_ssize_t given) {
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
    if (enter(h) || wr_deadline_from(args[1], now, &deadline, &poll)) return NULL;
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
        if (!wr_client_consumer_pending(&h->consumer) && (up_to_date(h) || intake(h))) break;
        if (!wr_client_consumer_pending(&h->consumer)) {
            if (!exact || ended) break;
            h->inside--;
            ended = true; /* what was under way is here now, and nothing comes behind it */
            error = end_get(h, deadline);
            h->inside++;
            if (error || !wr_client_consumer_pending(&h->consumer)) break;
        }
        message = hand_out(h, deadline, false);
    }
    h->inside--;
    if (PyErr_Occurred()) {
        if (!PyList_GET_SIZE(list)) goto failed;
        PyErr_Clear(); /* what was handed out before goes to the caller; the trouble is met again by the next call */
    }
    if (!h->prefetch && !enter(h)) {
        if (h->window > wanted && (up_to_date(h) || ensure_credit(h, h->window, 1))) PyErr_Clear();
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

/* ---- the same without waiting, for binding/sleeper.c ----------------------------------------------------------------- */

int wr_handle_enter(HandleObject *h) { return enter(h); }

int wr_handle_not_stopped(HandleObject *h) { return not_stopped(h); }

int wr_handle_intake(HandleObject *h) { return register_consumer(h) || intake(h) ? -1 : 0; }

PyObject *wr_handle_hand_out(HandleObject *h, bool alone) { return hand_out(h, 0, alone); }

bool wr_handle_in_memory(const HandleObject *h) {
    const wr_client_consumer *c = &h->consumer;
    uint8_t first;
    return read_image(h->client, h->server, &c->pending[c->pending_first & (c->pending_size - 1)].delivery, 0, &first, 0);
}

void wr_handle_note_call(HandleObject *h, uint32_t wanted) {
    if (!h->prefetch) note_call(h, wr_now_ns(), wanted, h->exact || wanted >= WINDOW_MAX ? wanted : WINDOW_MAX);
}

/* begin(prefetch): the worker keeps up to `prefetch` unacked messages with us from now on. Which beginning of this handle it is. */
static PyObject *handle_begin(PyObject *op, PyObject *argument) {
    HandleObject *h = (HandleObject *)op;
    int over = 0; /* then it is -1 */
    long prefetch = PyLong_Check(argument) && !PyBool_Check(argument) ? PyLong_AsLongAndOverflow(argument, &over) : 0;
    if (enter(h) || register_consumer(h)) return NULL;
    uint32_t slots = h->client->a.port.view.g.delivery_slots;
    if (prefetch < 1 || prefetch > (long)slots) {
        wr_raise("UsageError", "prefetch must lie between 1 and the setting delivery_slots (%u), not %R", slots, argument);
        return NULL;
    }
    h->prefetch = (uint32_t)prefetch;
    return PyLong_FromUnsignedLongLong(++h->begun);
}

/* Prepare the return of what lies here, or of its last part: 0 (nothing is left, if *left is 0), or what wr_attachment_settle says. */
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
    static const char what[] = "the return of what was delivered ahead (it is done when the worker goes on)";
    if (!wr_hook(h->client, WR_HOOK_TIMED_OUT, h->server, what)) wr_raise("TimedOut", "%s: not done within the timeout", what);
    return -1;
}

/* Nothing more is delivered, and what lies here is back in the queue; but when another thread asks for more meanwhile, the rest is
 * for that. */
static int end_consuming(HandleObject *h, uint64_t deadline) {
    ClientObject *c = h->client;
    wr_condition blocked;
    int answer = cancel(h, deadline);
    if (answer) return not_released(h, answer);
    for (uint64_t left = 1; left;) {
        if (enter(h)) return -1;
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
    return answer || !enter(h) ? not_released(h, answer) : -1;
}

/* release(begun=None): end consuming: nothing more is delivered, what was delivered and not handed out is back in the queue. With
 * the number of a beginning it does nothing when there was another since. */
static PyObject *handle_release(PyObject *op, PyObject *const *args, Py_ssize_t given) {
    HandleObject *h = (HandleObject *)op;
    if (given > 1) return PyErr_Format(PyExc_TypeError, "arguments: begun=None");
    if (enter(h)) return NULL;
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

static PyObject *handle_hoard(PyObject *op, PyObject *unused) {
    (void)unused;
    return PyLong_FromLongLong(hoard_at_rest((HandleObject *)op));
}

/* tidy(): release() if there is a hoard now, and nobody consumes or gets. */
static PyObject *handle_tidy(PyObject *op, PyObject *unused) {
    HandleObject *h = (HandleObject *)op;
    (void)unused;
    if (enter(h)) return NULL;
    if (hoard_at_rest(h) > 0) {
        h->window = 1;
        if (end_consuming(h, wr_now_ns() + TIDY_NS)) return NULL;
    }
    Py_RETURN_NONE;
}

/* ---- publishing -------------------------------------------------------------------------------------------------- */

static PyObject *put_with(PyObject *op, PyObject *const *args, Py_ssize_t given, bool many) {
    HandleObject *h = (HandleObject *)op;
    int level;
    if (given != 5 && given != 6) return PyErr_Format(PyExc_TypeError, "arguments: body, level, meta, timeout, wait, options=None");
    if (wr_level_of(args[1], &level)) return NULL;
    ClientObject *c = h->client;
    if (wr_enter(c)) return NULL;
    /* The catalog may tell that the queue is gone. */
    if (wr_queue_perhaps_gone(c, h->queue) && wr_hook(c, WR_HOOK_CATALOG, 0, "")) return NULL;
    if (enter(h)) return NULL;
    bool wait = args[4] == Py_True;
    PyObject *options = given == 6 ? args[5] : NULL;
    return many ? wr_publish_many(c, &h->route, NULL, args[0], level, args[2], args[3], wait, options)
                : wr_publish(c, &h->route, args[0], level, args[2], args[3], wait, options);
}

static PyObject *handle_put(PyObject *op, PyObject *const *args, Py_ssize_t given) { return put_with(op, args, given, false); }
static PyObject *handle_put_many(PyObject *op, PyObject *const *args, Py_ssize_t given) { return put_with(op, args, given, true); }

/* ---- settling ---------------------------------------------------------------------------------------------------- */

/* The node stops, or has stopped: is anybody left who will read what is submitted now? */
static __attribute__((noinline)) int settle_late(HandleObject *h, uint32_t state) {
    wr_server *worker = wr_superblock_server(h->client->a.port.super, h->server);
    if (state == WR_NODE_DRAINING && atomic_load_explicit(&worker->state, memory_order_acquire) != WR_SERVER_DOWN) return 0;
    return wr_raise("PeerLost", "the node was stopped since this message was delivered: it is in its queue again, and comes redelivered from the "
                                "next node");
}

/* Is the message still in the hands of this attachment, and its worker there? */
static int settle_enter(HandleObject *h) {
    if (!wr_enter(h->client) && h->registered) {
        uint32_t state = atomic_load_explicit(&h->client->a.port.super->state, memory_order_acquire);
        return __builtin_expect(state > WR_NODE_RUNNING, 0) ? settle_late(h, state) : 0;
    }
    if (!PyErr_Occurred() || PyErr_ExceptionMatches(wr_session_lost)) {
        PyErr_Clear();
        wr_raise("PeerLost", "this message was delivered to an attachment that has ended: it returns to its queue, redelivered");
    }
    return -1;
}

/* Send the tags (taken out of `unacked` before). When that fails they are ours again. */
static int send_tags(HandleObject *h, uint8_t op, uint8_t flags, const uint64_t *tags, uint32_t n) {
    ClientObject *c = h->client;
    wr_condition blocked;
    uint64_t deadline = WR_CALL_DEADLINE;
    for (;;) {
        int error = wr_attachment_settle(&c->a, &h->consumer, op, flags, tags, n, &blocked);
        if (!error) return 0;
        deadline = wr_by_when(c, deadline);
        if (wr_blocked(c, error, &blocked, deadline, "room for an acknowledgement")) {
            for (uint32_t i = 0; i < n && h->registered && !c->ended; i++)
                if (wr_client_consumer_hand(&h->consumer, tags[i])) break;
            return -1;
        }
        if (!h->registered) return settle_enter(h);
    }
}

static int settle_up_to(HandleObject *h, uint8_t op, uint8_t flags, uint64_t tag) {
    uint64_t tags[512];
    for (;;) {
        uint32_t n = wr_client_consumer_forget_up_to(&h->consumer, tag, tags, 512);
        if (!n) return 0;
        if (send_tags(h, op, flags, tags, n)) return -1;
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
        int truth = PyObject_IsTrue(args[i]);
        if (truth < 0) return -1;
        values[at] = truth;
    }
    return 0;
}

static PyObject *settle_one(DeliveryObject *m, uint8_t op, uint8_t flags, bool multiple) {
    HandleObject *h = m->handle;
    if (m->settled) {
        wr_raise("UsageError", "this message was acked or nacked before");
        return NULL;
    }
    if (settle_enter(h)) return NULL;
    m->settled = true;
    int error;
    if (multiple) error = settle_up_to(h, op, flags, m->tag);
    else error = wr_client_consumer_forget(&h->consumer, m->tag) ? send_tags(h, op, flags, &m->tag, 1) : 0;
    if (error) {
        m->settled = false;
        return NULL;
    }
    wr_port_submit(&h->client->a.port, h->server);
    if (flags & WR_FLAG_REQUEUE) h->nacked = true;
    Py_RETURN_NONE;
}

static PyObject *delivery_ack(PyObject *self, PyObject *const *args, Py_ssize_t given, PyObject *names) {
    static const char *const known[] = {"multiple"};
    bool values[1] = {false};
    if ((given || names) && flag_of(args, given, names, known, values, 1)) return NULL;
    return settle_one((DeliveryObject *)self, WR_OP_ACK, 0, values[0]);
}

static PyObject *delivery_nack(PyObject *self, PyObject *const *args, Py_ssize_t given, PyObject *names) {
    static const char *const known[] = {"requeue", "multiple"};
    bool values[2] = {true, false};
    if ((given || names) && flag_of(args, given, names, known, values, 2)) return NULL;
    return settle_one((DeliveryObject *)self, WR_OP_NACK, values[0] ? WR_FLAG_REQUEUE : 0, values[1]);
}

/* settle_many(messages, ack, requeue, unseen = False): messages of this queue, in as few commands as possible. `unseen`: they were
 * handed to nobody, so that their delivery does not count. */
static PyObject *handle_settle_many(PyObject *op, PyObject *const *args, Py_ssize_t given) {
    HandleObject *h = (HandleObject *)op;
    if (given != 3 && given != 4) return PyErr_Format(PyExc_TypeError, "arguments: messages, ack, requeue, unseen");
    uint8_t code = args[1] == Py_True ? WR_OP_ACK : WR_OP_NACK;
    uint8_t flags = code == WR_OP_NACK && args[2] == Py_True ? WR_FLAG_REQUEUE : 0;
    if (flags && given == 4 && args[3] == Py_True) flags |= WR_FLAG_UNSEEN;
    PyObject *list = wr_listed(args[0], "messages");
    if (!list) return NULL;
    Py_ssize_t n = PySequence_Fast_GET_SIZE(list);
    for (Py_ssize_t i = 0; i < n; i++) {
        PyObject *item = PySequence_Fast_GET_ITEM(list, i);
        const char *wrong = !PyObject_TypeCheck(item, delivery_type)     ? "not a message"
                            : ((DeliveryObject *)item)->handle->queue != h->queue ? "of another queue"
                            : ((DeliveryObject *)item)->handle != h      ? NULL
                            : ((DeliveryObject *)item)->settled          ? "acked or nacked before"
                                                                         : NULL;
        if (wrong) {
            Py_DECREF(list);
            wr_raise("UsageError", "element %zd is %s; nothing was done", i, wrong);
            return NULL;
        }
        if (((DeliveryObject *)item)->handle != h) {
            Py_DECREF(list);
            wr_raise("PeerLost", "element %zd was delivered to an attachment that has ended: it returns to its queue, redelivered", i);
            return NULL;
        }
    }
    if (n && settle_enter(h)) {
        Py_DECREF(list);
        return NULL;
    }
    int error = 0;
    uint64_t *tags = PyMem_Malloc(TAGS_MAX * sizeof *tags);
    if (!tags) {
        Py_DECREF(list);
        return PyErr_NoMemory();
    }
    for (Py_ssize_t i = 0; !error && i < n && i < PySequence_Fast_GET_SIZE(list);) {
        uint32_t k = 0;
        for (; k < TAGS_MAX && i < n && i < PySequence_Fast_GET_SIZE(list); i++) {
            PyObject *item = PySequence_Fast_GET_ITEM(list, i);
            if (!PyObject_TypeCheck(item, delivery_type) || ((DeliveryObject *)item)->handle != h) continue;
            DeliveryObject *m = (DeliveryObject *)item;
            if (m->settled) continue;
            m->settled = true;
            if (wr_client_consumer_forget(&h->consumer, m->tag)) tags[k++] = m->tag;
        }
        if (k) error = send_tags(h, code, flags, tags, k);
        if (k && flags == WR_FLAG_REQUEUE) h->nacked = true;
    }
    PyMem_Free(tags);
    Py_DECREF(list);
    if (error) return NULL;
    if (n) wr_port_submit(&h->client->a.port, h->server);
    Py_RETURN_NONE;
}

/* ---- browsing ---------------------------------------------------------------------------------------------------- */

/* The handle and the rows of a browse answer. They are read again and again with the GIL away in between, so that only bytes will
 * do: nobody changes those. NULL with an exception. */
static HandleObject *rows_enter(ClientObject *c, PyObject *const *args, Py_ssize_t given) {
    if (given != 2) PyErr_Format(PyExc_TypeError, "arguments: handle, rows");
    else if (!PyObject_TypeCheck(args[0], handle_type)) PyErr_Format(PyExc_TypeError, "handle must be a QueueHandle");
    else if (!PyBytes_CheckExact(args[1])) PyErr_Format(PyExc_TypeError, "rows must be bytes, not %s", Py_TYPE(args[1])->tp_name);
    else if (((HandleObject *)args[0])->client != c) PyErr_Format(PyExc_ValueError, "the handle belongs to another client");
    else if (!enter((HandleObject *)args[0]) && !up_to_date((HandleObject *)args[0])) return (HandleObject *)args[0];
    return NULL;
}

PyObject *wr_deliveries(PyObject *op, PyObject *const *args, Py_ssize_t given) {
    HandleObject *h = rows_enter((ClientObject *)op, args, given);
    if (!h) return NULL;
    const char *rows = PyBytes_AS_STRING(args[1]);
    Py_ssize_t n = PyBytes_GET_SIZE(args[1]) / (Py_ssize_t)sizeof(wr_delivery);
    PyObject *list = PyList_New(n);
    for (Py_ssize_t i = 0; list && i < n; i++) {
        wr_delivery d;
        memcpy((void *)&d, rows + i * (Py_ssize_t)sizeof d, sizeof d);
        bool lost;
        PyObject *message = fetch(h, &d, 0, false, WR_CALL_DEADLINE, &lost);
        if (message) ((DeliveryObject *)message)->settled = true; /* looked at, not held */
        else if (PyErr_Occurred()) Py_CLEAR(list);
        else message = Py_NewRef(Py_None);
        if (list) PyList_SET_ITEM(list, i, message);
    }
    return list;
}

/* Metadata and payload of a row into their places. 0, ENOENT, EBADMSG or EUCLEAN (not where the row says), -1. */
static int read_row(HandleObject *h, const wr_delivery *d, uint8_t *meta, uint8_t *body) {
    ClientObject *c = h->client;
    uint32_t length = d->body_length - d->meta_length;
    const char *reason;
    uint8_t *bytes;
    int error;
    if (d->location == WR_LOCATION_STORE || d->location == WR_LOCATION_STORE_TRANSIENT) {
        uint32_t found;
        uint16_t meta_length;
        error = wr_store_fetch(c, d->location == WR_LOCATION_STORE_TRANSIENT, d->id, &bytes, &found, &meta_length);
        if (error) return error;
        if (found != d->body_length || meta_length != d->meta_length) error = EBADMSG;
    } else {
        if (read_image(c, h->server, d, d->meta_length, body, length) &&
            (!d->meta_length || read_image(c, h->server, d, 0, meta, d->meta_length)))
            return 0;
        if (!(bytes = malloc(d->body_length ? d->body_length : 1))) {
            PyErr_NoMemory();
            return -1;
        }
        error = read_file(c, h->server, d, bytes, &reason);
    }
    if (!error) {
        memcpy(meta, bytes, d->meta_length);
        memcpy(body, bytes + d->meta_length, length);
    }
    free(bytes);
    if (c->ended) return wr_enter_slow(c);
    return error;
}

/* Client.columns(handle, rows): the messages of a browse answer as columns, ready for Arrow:
 * (rows read, tags i64, ids 16 B, value offsets i32, values, metadata offsets i32, metadata, delivery counts i32, redelivered u8).
 * It stops before the first row whose bytes are not where it says. */
PyObject *wr_columns(PyObject *op, PyObject *const *args, Py_ssize_t given) {
    ClientObject *c = (ClientObject *)op;
    HandleObject *h = rows_enter(c, args, given);
    if (!h) return NULL;
    const char *rows = PyBytes_AS_STRING(args[1]);
    Py_ssize_t n = PyBytes_GET_SIZE(args[1]) / (Py_ssize_t)sizeof(wr_delivery), i = 0;
    uint64_t values = 0, metas = 0;
    PyObject *answer = NULL, *parts[8] = {NULL};
    wr_delivery d;
    for (; i < n; i++) {
        memcpy((void *)&d, rows + i * (Py_ssize_t)sizeof d, sizeof d);
        if (d.meta_length > d.body_length || d.body_length > c->a.message_bytes_max) break;
        if (values + d.body_length > INT32_MAX || metas + d.meta_length > INT32_MAX) break;
        values += d.body_length - d.meta_length;
        metas += d.meta_length;
    }
    n = i;
    const Py_ssize_t sizes[8] = {8 * n, 16 * n, 4 * (n + 1), (Py_ssize_t)values, 4 * (n + 1), (Py_ssize_t)metas, 4 * n, n};
    uint8_t *to[8];
    for (int k = 0; k < 8; k++) {
        if (!(parts[k] = PyBytes_FromStringAndSize(NULL, sizes[k]))) goto done;
        to[k] = (uint8_t *)PyBytes_AS_STRING(parts[k]);
    }
    int32_t value_at = 0, meta_at = 0;
    for (i = 0; i < n; i++) {
        memcpy((void *)&d, rows + i * (Py_ssize_t)sizeof d, sizeof d);
        int error = read_row(h, &d, to[5] + meta_at, to[3] + value_at);
        if (error < 0) goto done;
        if (error == ENOENT || error == EBADMSG || error == EUCLEAN) break;
        if (error) {
            wr_raise_errno(error, "cannot read the body of a message");
            goto done;
        }
        int32_t count = d.delivery_count;
        memcpy(to[0] + 8 * i, &d.sequence, 8);
        memcpy(to[1] + 16 * i, d.id, 16);
        memcpy(to[2] + 4 * i, &value_at, 4);
        memcpy(to[4] + 4 * i, &meta_at, 4);
        memcpy(to[6] + 4 * i, &count, 4);
        to[7][i] = d.flags & WR_DELIVERY_REDELIVERED;
        value_at += (int32_t)(d.body_length - d.meta_length);
        meta_at += (int32_t)d.meta_length;
    }
    memcpy(to[2] + 4 * i, &value_at, 4);
    memcpy(to[4] + 4 * i, &meta_at, 4);
    answer = Py_BuildValue("(nOOOOOOOO)", i, parts[0], parts[1], parts[2], parts[3], parts[4], parts[5], parts[6], parts[7]);
done:
    for (int k = 0; k < 8; k++) Py_XDECREF(parts[k]);
    return answer;
}

/* ---- types ------------------------------------------------------------------------------------------------------- */

/* QueueHandle(client, server, queue, owner, message class) */
static PyObject *handle_new(PyTypeObject *type, PyObject *args, PyObject *keywords) {
    PyObject *client, *owner, *messages;
    unsigned int server, queue;
    if (keywords && PyDict_GET_SIZE(keywords)) return PyErr_Format(PyExc_TypeError, "no keywords");
    if (!PyArg_ParseTuple(args, "O!IIOO!", wr_client_type, &client, &server, &queue, &owner, &PyType_Type, &messages)) return NULL;
    ClientObject *c = (ClientObject *)client;
    if (wr_enter(c)) return NULL;
    if (server < WR_SERVER_WORKER_FIRST || server >= c->servers_n)
        return PyErr_Format(PyExc_ValueError, "server %u is no queue worker of this node", server);
    if (!PyType_IsSubtype((PyTypeObject *)messages, delivery_type))
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
    if (h->registered) wr_client_consumer_drop(h->client->open ? &h->client->a : NULL, &h->consumer);
    Py_XDECREF(h->owner);
    Py_XDECREF(h->messages);
    Py_XDECREF(h->dead);
    Py_XDECREF(h->client);
    type->tp_free(op);
    Py_DECREF(type);
}

/* kill(reason): the queue is gone; calls fail with SessionLost(reason) from now on. Messages in hand can still be settled. */
static PyObject *handle_kill(PyObject *op, PyObject *reason) {
    Py_XSETREF(((HandleObject *)op)->dead, Py_NewRef(reason));
    Py_RETURN_NONE;
}

static PyObject *handle_get_unacked(PyObject *op, void *closure) {
    (void)closure;
    HandleObject *h = (HandleObject *)op;
    uint64_t n = 0;
    if (h->registered)
        for (uint64_t i = h->consumer.unacked_first; i != h->consumer.unacked_next; i++)
            n += h->consumer.unacked[i & (h->consumer.unacked_size - 1)] != WR_TAG_NONE;
    return PyLong_FromUnsignedLongLong(n);
}

static PyObject *handle_get_pending(PyObject *op, void *closure) {
    (void)closure;
    HandleObject *h = (HandleObject *)op;
    return PyLong_FromUnsignedLongLong(h->registered ? wr_client_consumer_pending(&h->consumer) : 0);
}

static PyObject *handle_get_quiet(PyObject *op, void *closure) {
    (void)closure;
    HandleObject *h = (HandleObject *)op;
    return PyBool_FromLong(wr_enter(h->client) ? (PyErr_Clear(), 1) : !h->registered || wr_handle_quiet(h));
}

static PyObject *handle_get_usable(PyObject *op, void *closure) {
    (void)closure;
    HandleObject *h = (HandleObject *)op;
    return PyBool_FromLong(!h->dead && !h->client->ended && h->client->forks == wr_forks);
}

static PyObject *handle_get_perhaps_gone(PyObject *op, void *closure) {
    (void)closure;
    HandleObject *h = (HandleObject *)op;
    ClientObject *c = h->client;
    return PyBool_FromLong(!h->dead && !c->ended && c->forks == wr_forks && c->open && wr_queue_perhaps_gone(c, h->queue));
}

static PyMethodDef handle_methods[] = {
    {"put", (PyCFunction)(void (*)(void))handle_put, METH_FASTCALL, "put(body, level, meta, timeout, wait, options=None) -> Confirm | None"},
    {"put_many", (PyCFunction)(void (*)(void))handle_put_many, METH_FASTCALL,
     "put_many(bodies, level, meta, timeout, wait, options=None) -> Confirm | None"},
    {"get", (PyCFunction)(void (*)(void))handle_get, METH_FASTCALL, "get(timeout, ahead=True) -> Delivery | None"},
    {"get_many", (PyCFunction)(void (*)(void))handle_get_many, METH_FASTCALL, "get_many(max, timeout, ahead=True) -> list"},
    {"begin", handle_begin, METH_O, "begin(prefetch) -> int: deliver ahead from now on"},
    {"release", (PyCFunction)(void (*)(void))handle_release, METH_FASTCALL,
     "release(begun=None): end consuming; what was not handed out returns to the queue"},
    {"tidy", handle_tidy, METH_NOARGS, "tidy(): release() if there is a hoard now, and nobody consumes or gets"},
    {"hoard", handle_hoard, METH_NOARGS,
     "hoard(): messages that lie or may come here unasked for 50 ms; -1: a get is under way, or was just now; 0: none"},
    {"poll", (PyCFunction)(void (*)(void))wr_handle_poll, METH_FASTCALL, "poll(max, wanted, memory) -> list or code: get_many that never waits"},
    {"stop", wr_handle_stop, METH_NOARGS, "stop(): ask for no more; the sequence of the CANCEL, None: nothing asked for, False: no room"},
    {"give_back", wr_handle_give_back, METH_NOARGS, "give_back() -> bool: what was not handed out returns to the queue; False: no room"},
    {"settle_many", (PyCFunction)(void (*)(void))handle_settle_many, METH_FASTCALL, "settle_many(messages, ack, requeue, unseen=False)"},
    {"kill", handle_kill, METH_O, "kill(reason): calls fail with SessionLost from now on"},
    {NULL, NULL, 0, NULL}};

static PyGetSetDef handle_attributes[] = {
    {"unacked", handle_get_unacked, NULL, "messages handed out and not settled", NULL},
    {"pending", handle_get_pending, NULL, "messages delivered and not handed out", NULL},
    {"quiet", handle_get_quiet, NULL, "nothing is asked for, and nothing more can come of what was", NULL},
    {"usable", handle_get_usable, NULL, "neither the queue nor the attachment is gone", NULL},
    {"perhaps_gone", handle_get_perhaps_gone, NULL, "the catalog, which was not read since, may tell that the queue is gone", NULL},
    {NULL, NULL, NULL, NULL, NULL}};

static PyMemberDef handle_members[] = {{"server", T_UINT, offsetof(HandleObject, server), READONLY, "index of its worker"},
                                       {"queue", T_UINT, offsetof(HandleObject, queue), READONLY, "queue id"},
                                       {"owner", T_OBJECT, offsetof(HandleObject, owner), READONLY, "the Queue"},
                                       {"exact", T_BOOL, offsetof(HandleObject, exact), 0, "never ask for more than is waited for"},
                                       {"__weaklistoffset__", T_PYSSIZET, offsetof(HandleObject, weak), READONLY, NULL},
                                       {NULL, 0, 0, 0, NULL}};

static PyType_Slot handle_slots[] = {
    {Py_tp_new, handle_new},         {Py_tp_dealloc, handle_dealloc},       {Py_tp_traverse, handle_traverse},
    {Py_tp_clear, handle_clear},     {Py_tp_methods, handle_methods},       {Py_tp_getset, handle_attributes},
    {Py_tp_members, handle_members}, {Py_tp_doc, "QueueHandle(client, server, queue, owner, message_class)"}, {0, NULL}};
static PyType_Spec handle_spec = {"warren.engine._core.QueueHandle", sizeof(HandleObject), 0,
                                  Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, handle_slots};

static void delivery_dealloc(PyObject *op) {
    DeliveryObject *m = (DeliveryObject *)op;
    PyTypeObject *type = Py_TYPE(op);
    Py_XDECREF(m->body);
    Py_XDECREF(m->meta);
    Py_XDECREF(m->handle);
    type->tp_free(op);
    Py_DECREF(type);
}

static PyObject *delivery_id(PyObject *op, void *closure) {
    (void)closure;
    return PyBytes_FromStringAndSize((char *)((DeliveryObject *)op)->id, 16);
}

static PyObject *delivery_owner(PyObject *op, void *closure) {
    (void)closure;
    return Py_NewRef(((DeliveryObject *)op)->handle->owner);
}

static PyMethodDef delivery_methods[] = {
    {"ack", (PyCFunction)(void (*)(void))delivery_ack, METH_FASTCALL | METH_KEYWORDS,
     "ack(multiple=False): done with it; with `multiple` with all handed out before it, too."},
    {"nack", (PyCFunction)(void (*)(void))delivery_nack, METH_FASTCALL | METH_KEYWORDS,
     "nack(requeue=True, multiple=False): not done: back to its place in the queue (marked redelivered), or dropped."},
    {NULL, NULL, 0, NULL}};

static PyGetSetDef delivery_attributes[] = {{"message_id", delivery_id, NULL, "16 bytes", NULL},
                                            {"queue", delivery_owner, NULL, "the queue that it came from", NULL},
                                            {NULL, NULL, NULL, NULL, NULL}};

static PyMemberDef delivery_members[] = {
    {"body", T_OBJECT_EX, offsetof(DeliveryObject, body), READONLY, "the bytes that were put"},
    {"meta", T_OBJECT, offsetof(DeliveryObject, meta), READONLY, "metadata as it was published (msgpack), or None"},
    {"delivery_tag", T_ULONGLONG, offsetof(DeliveryObject, tag), READONLY, "position in the queue"},
    {"delivery_count", T_USHORT, offsetof(DeliveryObject, delivery_count), READONLY, "deliveries before this one"},
    {"redelivered", T_BOOL, offsetof(DeliveryObject, redelivered), READONLY, "it may have been handed to somebody before"},
    {"priority", T_UBYTE, offsetof(DeliveryObject, priority), READONLY, "0 to 9"},
    {"reason", T_UBYTE, offsetof(DeliveryObject, reason), READONLY, "REASON_...: why it died, in a queue of dead letters; else 0"},
    {"persistent", T_BOOL, offsetof(DeliveryObject, persistent), READONLY, "it survives the node"},
    {"settled", T_BOOL, offsetof(DeliveryObject, settled), READONLY, "acked or nacked"},
    {NULL, 0, 0, 0, NULL}};

static PyType_Slot delivery_slots[] = {{Py_tp_dealloc, delivery_dealloc},   {Py_tp_methods, delivery_methods},
                                       {Py_tp_getset, delivery_attributes}, {Py_tp_members, delivery_members},
                                       {Py_tp_doc, "One delivered message."}, {0, NULL}};
static PyType_Spec delivery_spec = {"warren.engine._core.Delivery", sizeof(DeliveryObject), 0,
                                    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_DISALLOW_INSTANTIATION, delivery_slots};

int wr_bind_consumer(PyObject *module) {
    handle_type = (PyTypeObject *)PyType_FromModuleAndSpec(module, &handle_spec, NULL);
    delivery_type = (PyTypeObject *)PyType_FromModuleAndSpec(module, &delivery_spec, NULL);
    if (PyModule_AddStringConstant(module, "THE_ANSWER", the_answer) ||
        PyModule_AddIntConstant(module, "ANSWER_MS", (long)(ANSWER_NS / 1000000)))
        return -1;
    if (!handle_type || !delivery_type || PyModule_AddObjectRef(module, "QueueHandle", (PyObject *)handle_type) ||
        PyModule_AddObjectRef(module, "Delivery", (PyObject *)delivery_type))
        return -1;
    return 0;
}
