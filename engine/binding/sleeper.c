/* One thread that sleeps for all attachments of a process; whoever it wakes polls (binding/queue_poll.c). Underneath
 * asyncio (workers/faces/aio) and the callbacks of confirms (workers/client/waiter.py).
 *
 * Watching
 *   A want is (server, kind, above): wake me when that word has passed `above`. The lowest of each server and kind is
 *   kept; a want ends when it is met. wait_any() sleeps on the `waiting` words of all clients that have wants, with
 *   futex_waitv.
 *
 * Invariants
 *   No wake is lost: watch() enters the want, then looks; wait_any() raises `waiting`, then looks at all wants, then
 *   sleeps.
 *   Only wait_any() ends a want, when it tells everybody who watches the client: the lowest want stands for higher
 *   ones, too.
 *   A client with a doorbell (ipc/core/doorbell.h): watch() says in `waiting` that the loop wants it, and wait_any()
 *   only sleeps on the word, for the case that a server does not reach the loop. With others beside the loop who are to be
 *   told, it says that a thread sleeps there, too, as without a doorbell.
 *   A client without wants is not rung by its servers: nobody sleeps on its word. A want that comes then kicks the
 *   sleeper.
 *   Wants are written under the GIL, and read without it. The memory of a client is kept by `busy`, as in every wait.
 */
#include "binding/sleeper.h"
#include "binding/arguments.h"
#include <linux/futex.h>
#include <sys/syscall.h>

#define NONE UINT64_MAX
#define SLICE_NS 50000000ull
#define SHORT_NS 1000000ull /* without futex_waitv, or with more clients than it takes */
#ifndef SYS_futex_waitv
#define SYS_futex_waitv 449 /* the same number on every architecture */
#endif
#define WAITERS_MAX 128

/* The kernel's, since Linux 5.16. */
struct waiter {
    uint64_t value;
    uint64_t address;
    uint32_t flags; /* 2: a word of 32 bits; 128: of this process alone */
    uint32_t reserved;
};

typedef struct wr_wants {
    _Atomic uint64_t above[WR_SERVERS_MAX][WR_NEWS_KINDS];
    uint64_t trouble; /* what was reported last; the sleeper's own */
} wants;

void wr_waiter_kick(void) {
    atomic_fetch_add_explicit(&wr_module.kicks, 1, memory_order_seq_cst);
    syscall(SYS_futex, &wr_module.kicks, FUTEX_WAKE | FUTEX_PRIVATE_FLAG, INT_MAX, NULL, NULL, 0);
}

static _Atomic uint64_t *word_of(ClientObject *c, uint32_t server, int kind) {
    wr_link *link = wr_attachment_link(&c->a, server);
    return kind == WR_NEWS_DELIVERY ? &link->delivery_tail : kind == WR_NEWS_HEAD ? &link->head : wr_link_horizon(link, kind);
}

/* ---- wants ------------------------------------------------------------------------------------------------------ */

/* watch(server, kind, above): true when it is met already; whoever watches may be told of it once more. For
 * deliveries `above` is what was taken in, whatever is given. */
PyObject *wr_client_watch(PyObject *op, PyObject *const *args, Py_ssize_t given) {
    ClientObject *c = (ClientObject *)op;
    uint32_t server;
    WR_ARGUMENTS(3, "server, kind, above");
    if (wr_enter(c) || wr_server_of(c, args[0], &server)) return NULL;
    long kind = PyLong_AsLong(args[1]);
    uint64_t above = PyLong_AsUnsignedLongLong(args[2]);
    if (PyErr_Occurred()) return NULL;
    if (kind < 0 || kind >= WR_NEWS_KINDS || above == NONE) return PyErr_Format(PyExc_ValueError, "no such kind of want");
    if (kind == WR_NEWS_DELIVERY) above = c->a.workers[server].popped;
    _Atomic uint64_t *word = word_of(c, server, (int)kind);
    if (atomic_load_explicit(word, memory_order_acquire) > above) Py_RETURN_TRUE;
    if (!c->wants) {
        wants *fresh = PyMem_RawMalloc(sizeof *fresh);
        if (!fresh) return PyErr_NoMemory();
        for (uint32_t s = 0; s < WR_SERVERS_MAX; s++)
            for (int k = 0; k < WR_NEWS_KINDS; k++) atomic_init(&fresh->above[s][k], NONE);
        fresh->trouble = 0;
        c->wants = fresh;
    }
    _Atomic uint64_t *want = &c->wants->above[server][kind];
    if (above < atomic_load_explicit(want, memory_order_relaxed)) atomic_store_explicit(want, above, memory_order_relaxed);
    if (atomic_load_explicit(&c->doorbell, memory_order_relaxed))
        atomic_fetch_or_explicit(&c->a.port.view.client->waiting, WR_WAITS_LOOP((uint32_t)kind), memory_order_relaxed);
    /* SYNC want: pairs with the fences in sleep_for and wr_view_tell: either they see this want, or we see what they
     * have not. */
    atomic_thread_fence(memory_order_seq_cst);
    /* Met by now: the want stays all the same, because it may stand for a higher one of somebody else, who is told
     * with it. */
    bool met = atomic_load_explicit(word, memory_order_acquire) > above;
    if (atomic_load_explicit(&wr_module.idle, memory_order_seq_cst)) wr_waiter_kick();
    return PyBool_FromLong(met);
}

typedef struct {
    ClientObject *client;
    wants *wants;
    bool others; /* not only an event loop is told of it */
    bool any;    /* it has wants */
    bool hit;
} watched;

/* What is wrong with the servers that something is wanted of; 0: nothing. Changes when there is something new to
 * tell. */
static uint64_t troubles(ClientObject *c, const wants *w) {
    uint32_t state = atomic_load_explicit(&c->a.port.super->state, memory_order_acquire);
    uint64_t sum = state > WR_NODE_RUNNING ? state : 0;
    for (uint32_t s = 0; s < c->servers_n; s++) {
        bool wanted = false;
        for (int k = 0; k < WR_NEWS_KINDS; k++) wanted |= atomic_load_explicit(&w->above[s][k], memory_order_relaxed) != NONE;
        if (!wanted) continue;
        wr_link *link = wr_attachment_link(&c->a, s);
        wr_server *peer = wr_superblock_server(c->a.port.super, s);
        uint64_t epoch = atomic_load_explicit(&link->server_epoch, memory_order_acquire), one = 0;
        if (atomic_load_explicit(&w->above[s][WR_NEWS_DELIVERY], memory_order_relaxed) != NONE && epoch != c->a.workers[s].epoch)
            one = epoch << 8;
        one |= (atomic_load_explicit(&link->evicted, memory_order_acquire) != 0) |
               (atomic_load_explicit(&peer->error, memory_order_acquire) != 0) << 1 |
               (atomic_load_explicit(&peer->state, memory_order_acquire) == WR_SERVER_FAILED) << 2;
        if (one) sum = (sum ^ one ^ ((uint64_t)s << 3)) * 0x9e3779b97f4a7c15ull | 1;
    }
    return sum;
}

/* Which wants are met? Without the GIL. True when there is somebody to tell. */
static bool look(watched *list, Py_ssize_t n) {
    bool found = false;
    for (Py_ssize_t i = 0; i < n; i++) {
        watched *one = &list[i];
        ClientObject *c = one->client;
        one->any = false;
        one->hit = *(volatile bool *)&c->ended;
        if (!one->wants) one->wants = *(wants *volatile *)&c->wants;
        if (one->wants && !one->hit) {
            for (uint32_t s = 0; s < c->servers_n; s++)
                for (int k = 0; k < WR_NEWS_KINDS; k++) {
                    uint64_t above = atomic_load_explicit(&one->wants->above[s][k], memory_order_relaxed);
                    if (above == NONE) continue;
                    one->any = true;
                    /* SYNC horizon: pairs with the server's release of its horizons and of delivery_tail. */
                    if (atomic_load_explicit(word_of(c, s, k), memory_order_acquire) > above) one->hit = true;
                }
            uint64_t trouble = one->any ? troubles(c, one->wants) : one->wants->trouble;
            if (trouble != one->wants->trouble) {
                one->wants->trouble = trouble;
                if (trouble) one->hit = true;
            }
        }
        found |= one->hit;
    }
    return found;
}

static void set_waiter(struct waiter *w, const _Atomic uint32_t *word, uint32_t value, bool ours) {
    *w = (struct waiter){.value = value, .address = (uint64_t)(uintptr_t)word, .flags = 2 | (ours ? FUTEX_PRIVATE_FLAG : 0)};
}

/* Sleep until something of the list is met, `kicks` is not `seen` any more, or limit_ns have passed. Without the
 * GIL. */
static void sleep_for(watched *list, Py_ssize_t n, uint32_t seen, uint64_t limit_ns, bool waitv) {
    struct waiter waiters[WAITERS_MAX];
    uint32_t who[WAITERS_MAX];
    uint64_t end = wr_now_ns() + limit_ns;
    bool lingers = true; /* for one slice after the last want: the next one need not kick */
    for (;;) {
        bool any = false;
        for (Py_ssize_t i = 0; i < n; i++) any |= list[i].any;
        for (Py_ssize_t i = 0; i < n; i++) {
            /* SYNC waiting: set, then look once more, as in wr_attachment_sleep. With a doorbell the event loop is rung, and who
             * finds that it cannot be wakes whoever sleeps on the word, whatever it says. */
            const bool rung = !list[i].others && atomic_load_explicit(&list[i].client->doorbell, memory_order_relaxed);
            uint32_t now = 0;
            if (list[i].any || lingers) now = wr_client_sleeps(list[i].client->a.port.view.client, rung ? 0 : WR_WAITS_THREAD);
            if (i < WAITERS_MAX) who[i] = now;
        }
        bool resting = !any && !lingers;
        if (resting) atomic_store_explicit(&wr_module.idle, 1, memory_order_seq_cst);
        atomic_thread_fence(memory_order_seq_cst);
        bool met = look(list, n);
        bool more = false;
        for (Py_ssize_t i = 0; i < n; i++) more |= list[i].any;
        uint64_t now = wr_now_ns();
        if (met || (more && resting) || now >= end || atomic_load_explicit(&wr_module.kicks, memory_order_seq_cst) != seen) {
            atomic_store_explicit(&wr_module.idle, 0, memory_order_relaxed);
            if (met || !(more && resting)) return;
            continue;
        }
        uint64_t slice = end - now < SLICE_NS || resting ? end - now : SLICE_NS;
        uint32_t used = 0;
        set_waiter(&waiters[used++], &wr_module.kicks, seen, true);
        for (Py_ssize_t i = 0; i < n && used < WAITERS_MAX; i++)
            if (list[i].any || lingers) set_waiter(&waiters[used++], &list[i].client->a.port.view.client->waiting, who[i], false);
        bool all = waitv && (used < WAITERS_MAX || n < WAITERS_MAX);
        if (!all && !resting && slice > SHORT_NS) slice = SHORT_NS;
        bool slept = false;
        if (waitv && !resting) {
            uint64_t until = now + slice;
            struct timespec t = {(time_t)(until / 1000000000ull), (long)(until % 1000000000ull)};
            slept = syscall(SYS_futex_waitv, waiters, used, 0, &t, CLOCK_MONOTONIC) >= 0 || errno != ENOSYS;
            if (!slept) waitv = false;
        } else {
            struct timespec t = {(time_t)(slice / 1000000000ull), (long)(slice % 1000000000ull)};
            syscall(SYS_futex, &wr_module.kicks, FUTEX_WAIT | FUTEX_PRIVATE_FLAG, seen, &t, NULL, 0);
        }
        atomic_store_explicit(&wr_module.idle, 0, memory_order_relaxed);
        if (!more && wr_now_ns() - now >= SLICE_NS) lingers = false;
    }
}

/* wait_any(clients, shared, seen, seconds, waitv): those of the clients that have something met, have ended, or are in a
 * new kind of trouble; `shared`: those of them that others than an event loop are told of. Returns early when
 * waiter_kicks() is not `seen` any more. */
static PyObject *wait_any(PyObject *module, PyObject *const *args, Py_ssize_t given) {
    (void)module;
    if (given != 5 || !PyList_Check(args[0]) || !PyList_Check(args[1]))
        return PyErr_Format(PyExc_TypeError, "arguments: list of clients, list of shared ones, seen, seconds, waitv");
    Py_ssize_t n = PyList_GET_SIZE(args[0]);
    uint32_t seen = (uint32_t)PyLong_AsUnsignedLong(args[2]);
    double seconds = PyFloat_AsDouble(args[3]);
    if (PyErr_Occurred()) return NULL;
    watched *list = PyMem_RawCalloc(n ? (size_t)n : 1, sizeof *list);
    if (!list) return PyErr_NoMemory();
    PyObject *met = PyList_New(0);
    Py_ssize_t used = 0;
    for (Py_ssize_t i = 0; met && i < n; i++) {
        PyObject *item = PyList_GET_ITEM(args[0], i);
        ClientObject *c = (ClientObject *)item;
        if (!PyObject_TypeCheck(item, wr_module.client_type)) {
            PyErr_SetString(PyExc_TypeError, "not a Client");
            Py_CLEAR(met);
        } else if (c->ended || !c->open || c->forks != wr_module.forks) {
            if (PyList_Append(met, item)) Py_CLEAR(met);
        } else {
            list[used].client = (ClientObject *)Py_NewRef(item);
            for (Py_ssize_t j = 0; j < PyList_GET_SIZE(args[1]); j++) list[used].others |= PyList_GET_ITEM(args[1], j) == item;
            list[used++].wants = c->wants;
            c->busy++;
        }
    }
    if (met && !PyList_GET_SIZE(met)) {
        Py_BEGIN_ALLOW_THREADS
        sleep_for(list, used, seen, (uint64_t)(seconds * 1e9), args[4] == Py_True);
        Py_END_ALLOW_THREADS
    }
    for (Py_ssize_t i = 0; i < used; i++) {
        ClientObject *c = list[i].client;
        if (met && list[i].hit && PyList_Append(met, (PyObject *)c)) Py_CLEAR(met);
        for (uint32_t s = 0; list[i].hit && list[i].wants && s < c->servers_n; s++)
            for (int k = 0; k < WR_NEWS_KINDS; k++) { /* a want ends when it is met; whoever is told says what else it wants */
                uint64_t above = atomic_load_explicit(&list[i].wants->above[s][k], memory_order_relaxed);
                if (above != NONE && atomic_load_explicit(word_of(c, s, k), memory_order_acquire) > above)
                    atomic_store_explicit(&list[i].wants->above[s][k], NONE, memory_order_relaxed);
            }
        c->busy--;
        wr_left(c);
    }
    for (Py_ssize_t i = 0; i < used; i++) Py_DECREF(list[i].client);
    PyMem_RawFree(list);
    return met;
}

static PyObject *waiter_kicks(PyObject *module, PyObject *unused) {
    (void)module;
    (void)unused;
    return PyLong_FromUnsignedLong(atomic_load(&wr_module.kicks));
}

static PyObject *waiter_kick(PyObject *module, PyObject *unused) {
    (void)module;
    (void)unused;
    wr_waiter_kick();
    Py_RETURN_NONE;
}

/* In a child of fork: the sleeper does not exist there. */
static PyObject *waiter_forked(PyObject *module, PyObject *unused) {
    (void)module;
    (void)unused;
    atomic_store(&wr_module.idle, 0);
    Py_RETURN_NONE;
}

/* ---- what never waits ------------------------------------------------------------------------------------------- */

/* room(server, commands, bytes, largest): None when so many commands with so many bytes of blobs, `largest` the
 * largest of them, can be prepared at once, or can never be (the call itself says so); else (server, head): what to
 * watch. */
PyObject *wr_client_room(PyObject *op, PyObject *const *args, Py_ssize_t given) {
    ClientObject *c = (ClientObject *)op;
    uint32_t server;
    WR_ARGUMENTS(4, "server, commands, bytes, largest");
    if (wr_enter(c) || wr_server_of(c, args[0], &server)) return NULL;
    uint64_t commands = PyLong_AsUnsignedLongLong(args[1]), bytes = PyLong_AsUnsignedLongLong(args[2]);
    uint64_t largest = PyLong_AsUnsignedLongLong(args[3]);
    if (PyErr_Occurred()) return NULL;
    wr_port *port = &c->a.port;
    wr_link *link = wr_attachment_link(&c->a, server);
    if (atomic_load_explicit(&link->evicted, memory_order_acquire)) Py_RETURN_NONE;
    uint64_t size = port->view.g.arena_bytes, ring = port->view.g.ring_records;
    if (commands > ring || bytes > size || largest > size / 2) Py_RETURN_NONE;
    uint64_t head = atomic_load_explicit(&link->head, memory_order_acquire);
    if (port->prepared[server] + commands - head > ring)
        return Py_BuildValue("(IK)", server, (unsigned long long)(port->prepared[server] + commands - ring - 1));
    if (!bytes) Py_RETURN_NONE;
    wr_port_reclaim(port);
    /* Each blob is rounded up, and one may leave the arena's end empty because it does not fit there. */
    uint64_t needed = bytes + 8 * commands, left = size - (port->arena_next & (size - 1));
    if (needed > left) needed += left < largest + 8 ? left : largest + 8;
    if (port->uses_first == port->uses_next || port->arena_next + needed - port->arena_freed <= size) Py_RETURN_NONE;
    const wr_blob_use *oldest = &port->uses[port->uses_first & (port->uses_size - 1)];
    for (uint32_t s = 0; s < c->servers_n; s++) wr_port_submit(port, s);
    return Py_BuildValue("(IK)", oldest->server, (unsigned long long)oldest->sequence);
}

/* set_doorbell(on): from now on the servers ring a socket of this client instead of waking the waiting thread, if they
 * reach it; or they do not any more. */
PyObject *wr_client_set_doorbell(PyObject *op, PyObject *argument) {
    ClientObject *c = (ClientObject *)op;
    const int on = PyObject_IsTrue(argument);
    if (on < 0 || wr_enter(c)) return NULL;
    atomic_store_explicit(&c->doorbell, on != 0, memory_order_relaxed);
    wr_waiter_kick(); /* it sleeps in another way from now on */
    Py_RETURN_NONE;
}

/* trouble(server, purpose): a code for the hook, or 0. Purposes: 0 room, 1 confirm, 2 reply, 3 delivery. */
PyObject *wr_client_trouble(PyObject *op, PyObject *const *args, Py_ssize_t given) {
    ClientObject *c = (ClientObject *)op;
    uint32_t server;
    WR_ARGUMENTS(2, "server, purpose");
    if (wr_enter(c) || wr_server_of(c, args[0], &server)) return NULL;
    long purpose = PyLong_AsLong(args[1]);
    if (purpose == -1 && PyErr_Occurred()) return NULL;
    return PyLong_FromLong(wr_trouble(c, server, (wr_purpose)purpose));
}

/* check(server): the hook looks whether anybody is left who could answer, as in every wait that takes a second. */
PyObject *wr_client_check(PyObject *op, PyObject *argument) {
    ClientObject *c = (ClientObject *)op;
    uint32_t server;
    if (wr_enter(c) || wr_server_of(c, argument, &server) || wr_hook(c, WR_HOOK_CHECK, server, "")) return NULL;
    Py_RETURN_NONE;
}

/* lying(server): take in what was pushed; ids of the queues of which something lies here. */
PyObject *wr_client_lying(PyObject *op, PyObject *argument) {
    ClientObject *c = (ClientObject *)op;
    uint32_t server;
    if (wr_enter(c) || wr_server_of(c, argument, &server)) return NULL;
    if (wr_attachment_intake(&c->a, server) == ENOMEM) return PyErr_NoMemory();
    PyObject *list = PyList_New(0);
    for (uint32_t i = 0; list && i < c->a.consumers_size; i++) {
        const wr_client_consumer *consumer = c->a.consumers[i];
        if (!consumer || consumer->server != server || !wr_client_consumer_pending(consumer)) continue;
        PyObject *id = PyLong_FromUnsignedLong(consumer->queue);
        if (!id || PyList_Append(list, id)) Py_CLEAR(list);
        Py_XDECREF(id);
    }
    return list;
}

/* ---- module ----------------------------------------------------------------------------------------------------- */

static PyMethodDef functions[] = {
    {"wait_any", (PyCFunction)(void (*)(void))wait_any, METH_FASTCALL, "wait_any(clients, shared, seen, seconds, waitv) -> list of clients"},
    {"waiter_kicks", waiter_kicks, METH_NOARGS, "waiter_kicks() -> int"},
    {"waiter_kick", waiter_kick, METH_NOARGS, "waiter_kick(): wait_any returns"},
    {"waiter_forked", waiter_forked, METH_NOARGS, "waiter_forked(): in a child of fork nobody waits"},
    {NULL, NULL, 0, NULL}};

int wr_bind_sleeper(PyObject *module) {
    const struct {
        const char *name;
        int value;
    } numbers[] = {{"WANT_HEAD", WR_NEWS_HEAD},     {"WANT_DELIVERY", WR_NEWS_DELIVERY}, {"WANT_PROCESSED", WR_NEWS_PROCESSED}, {"FOR_ROOM", WR_FOR_ROOM},
                   {"FOR_CONFIRM", WR_FOR_CONFIRM}, {"FOR_REPLY", WR_FOR_REPLY},   {"FOR_DELIVERY", WR_FOR_DELIVERY}};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        if (PyModule_AddIntConstant(module, numbers[i].name, numbers[i].value)) return -1;
    return PyModule_AddFunctions(module, functions);
}
