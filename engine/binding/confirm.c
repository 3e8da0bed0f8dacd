/* The client's binding: Confirm, the promise of one or several writes. It holds sequences of commands; the horizons of
 * their links say whether it is kept. It outlives its attachment: then the horizons of its end count (`final`). */
#include "binding/confirm.h"
#include "binding/arguments.h"
#include "binding/masked.h"


static ConfirmObject *confirm_of(ClientObject *c, int level, uint32_t pairs_n) {
    ConfirmObject *confirm;
    if (wr_module.spare_confirms_n) {
        confirm = (ConfirmObject *)wr_module.spare_confirms[--wr_module.spare_confirms_n];
        PyObject_Init((PyObject *)confirm, wr_module.confirm_type);
    } else if (!(confirm = PyObject_New(ConfirmObject, wr_module.confirm_type))) {
        return NULL;
    }
    confirm->client = (ClientObject *)Py_NewRef(c);
    confirm->level = level;
    confirm->pairs_n = pairs_n;
    confirm->pairs = NULL;
    confirm->runs = NULL;
    confirm->runs_n = 0;
    confirm->from = UINT64_MAX;
    confirm->appended = NULL;
    confirm->queue = NULL;
    return confirm;
}

PyObject *wr_confirm_none(ClientObject *c, int level) { return (PyObject *)confirm_of(c, level, 0); }

PyObject *wr_confirm_new(ClientObject *c, int level, const wr_route *route, const uint64_t *sequences, wr_runs *runs) {
    const uint32_t n = wr_route_commands(route);
    ConfirmObject *confirm = confirm_of(c, level, n);
    if (!confirm) return NULL;
    if (n) confirm->first = (wr_confirm_pair){wr_route_server(route, 0), sequences[0]};
    if (n > 1) {
        confirm->pairs = PyMem_Malloc(n * sizeof *confirm->pairs);
        if (!confirm->pairs) {
            Py_DECREF(confirm);
            return PyErr_NoMemory();
        }
        for (uint32_t t = 0; t < n; t++) confirm->pairs[t] = (wr_confirm_pair){wr_route_server(route, t), sequences[t]};
    }
    if (runs) { /* its own from now on */
        confirm->runs = runs->runs;
        confirm->runs_n = runs->n;
        runs->runs = NULL;
    }
    return (PyObject *)confirm;
}

PyObject *wr_confirm_appended(ClientObject *c, int level, wr_appended *appended) {
    uint32_t sent = appended->runs_n; /* a call that ended in the middle sent the first ones */
    while (sent && !appended->runs[sent - 1].sent) sent--;
    ConfirmObject *confirm = confirm_of(c, level, sent ? 1 : 0);
    if (!confirm) {
        wr_appended_free(c, appended);
        return NULL;
    }
    if (sent) confirm->first = (wr_confirm_pair){c->a.answers.server, appended->runs[sent - 1].sequence};
    confirm->appended = appended;
    return (PyObject *)confirm;
}

static void confirm_dealloc(ConfirmObject *self) {
    PyTypeObject *type = Py_TYPE(self);
    if (self->appended) wr_appended_free(self->client, self->appended);
    Py_XDECREF(self->client);
    Py_XDECREF(self->queue);
    PyMem_Free(self->pairs);
    PyMem_Free(self->runs);
    if (wr_module.spare_confirms_n < WR_SPARE_CONFIRMS) wr_module.spare_confirms[wr_module.spare_confirms_n++] = (PyObject *)self;
    else PyObject_Free(self);
    Py_DECREF(type);
}

static const wr_confirm_pair *pairs_of(const ConfirmObject *self) { return self->pairs ? self->pairs : &self->first; }

static bool pair_done(const ConfirmObject *self, const wr_confirm_pair *pair) {
    ClientObject *c = self->client;
    if (c->ended || !c->open || c->forks != wr_module.forks) return c->final[pair->server][self->level] > pair->sequence;
    return atomic_load_explicit(wr_link_horizon(wr_attachment_link(&c->a, pair->server), self->level), memory_order_acquire) >
           pair->sequence;
}

/* The indices of a list of (index) rows as a tuple, in order and once each. NULL with an exception. */
static PyObject *indices_of(uint64_t *indices, Py_ssize_t n) {
    Py_ssize_t kept = 0;
    for (Py_ssize_t i = 0; i < n; i++)
        if (!kept || indices[i] != indices[kept - 1]) indices[kept++] = indices[i];
    return wr_numbers_tuple(indices, kept);
}

static int by_index(const void *a, const void *b) {
    uint64_t one = *(const uint64_t *)a, other = *(const uint64_t *)b;
    return one < other ? -1 : one > other;
}

static int raise_full(uint64_t *indices, Py_ssize_t n, uint64_t messages_n, bool batch) {
    qsort(indices, (size_t)n, sizeof *indices, by_index);
    PyObject *refused = indices_of(indices, n);
    if (!refused) return -1;
#define FULL "full (its max_length or max_length_bytes, with overflow reject-publish): take messages from it, " \
             "publish again later, or delete it and declare it with a higher maximum"
    if (batch)
        wr_raise("QueueFull", "%zd of %llu messages refused, because a queue is " FULL, PyTuple_GET_SIZE(refused),
                 (unsigned long long)messages_n);
    else
        wr_raise("QueueFull", "the message was refused, because a queue is " FULL);
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    PyErr_NormalizeException(&type, &value, &trace);
    if (value && PyObject_SetAttrString(value, "refused", refused)) PyErr_Clear();
    Py_DECREF(refused);
    PyErr_Restore(type, value, trace);
    return -1;
}

/* A worker could not take a message. Its disk, or that of a store, is why when one has failed: then the hook says
 * so. */
static int raise_not_taken(ClientObject *c, uint32_t worker) {
    const char *who = worker == c->topic_server ? "the topic worker" : "the worker";
    if (c->open && !c->ended && c->forks == wr_module.forks) {
        const uint32_t servers[] = {worker, WR_SERVER_STORE_PERSISTENT, WR_SERVER_STORE_TRANSIENT};
        for (size_t i = 0; i < sizeof servers / sizeof *servers; i++) {
            wr_server *server = wr_superblock_server(c->a.port.super, servers[i]);
            if (atomic_load_explicit(&server->error, memory_order_acquire) && wr_hook(c, WR_HOOK_FROZEN, servers[i], "")) return -1;
        }
    }
    return wr_raise("StoreError", "%s could not take the message: see warren status", who);
}

enum { TAKEN = 1, NOT_TAKEN = 2 };

/* How many commands of a run the worker took. */
static uint64_t taken_of(const ClientObject *c, const wr_run *run) {
    if (run->first == WR_NEVER_SENT) return 0;
    if (!run->count || !wr_never_taken(c, run->server, run->first + run->count - 1)) return run->count;
    const uint64_t end = c->closed[run->server] - 1;
    return run->first < end ? end - run->first : 0;
}

/* Of each message whether workers took it, by TAKEN and NOT_TAKEN. *any: one did not. NULL: no memory, or there is none of the kind. */
static uint8_t *taken_of_each(const ClientObject *c, const wr_run *runs, uint32_t runs_n, uint64_t messages_n, bool *any) {
    *any = false;
    for (uint32_t i = 0; i < runs_n && !*any; i++) *any = taken_of(c, &runs[i]) < runs[i].count;
    uint8_t *of = *any ? PyMem_Calloc(messages_n, 1) : NULL;
    for (uint32_t i = 0; of && i < runs_n; i++) {
        const uint64_t taken = taken_of(c, &runs[i]);
        for (uint64_t k = 0; k < runs[i].count; k++) of[runs[i].index + k] |= k < taken ? TAKEN : NOT_TAKEN;
    }
    return of;
}

/* Say which messages were not taken; `refused` are those that a full queue refused besides. Returns -1, or 0: there are none. */
static int raise_not_taken_of(const uint8_t *of, uint64_t messages_n, uint64_t *refused, Py_ssize_t refused_n, bool batch) {
    Py_ssize_t n = 0;
    for (uint64_t i = 0; i < messages_n; i++) {
        if (of[i] == (TAKEN | NOT_TAKEN))
            return wr_raise("PeerLost", "the node was stopped when workers of some queues had taken a message for the exchange, and others had not: "
                                        "it is in the queues of the former; publish it again if that does no harm");
        n += of[i] == NOT_TAKEN;
    }
    uint64_t *indices = PyMem_Malloc(((size_t)n + (size_t)refused_n) * sizeof *indices);
    if (!indices) {
        PyErr_NoMemory();
        return -1;
    }
    n = 0;
    for (uint64_t i = 0; i < messages_n; i++)
        if (of[i] == NOT_TAKEN) indices[n++] = i;
    if (refused_n) { /* neither of the two is there: whoever sends again what was refused sends both */
        memcpy(indices + n, refused, (size_t)refused_n * sizeof *indices);
        raise_full(indices, n + refused_n, messages_n, batch);
    } else {
        wr_raise_not_taken(batch ? indices : NULL, n, messages_n);
    }
    PyMem_Free(indices);
    return -1;
}

int wr_results_check(ClientObject *c, const wr_run *runs, uint32_t runs_n, bool batch, uint64_t *duplicates) {
    bool error = false, none = false, no_topic = false, unknown = false;
    uint32_t by = 0, topics = c->topic_server;
    Py_ssize_t refused_n = 0;
    uint64_t *refused = NULL, messages_n = 0, doubles_n = 0;
    for (uint32_t i = 0; i < runs_n; i++) {
        const wr_run *run = &runs[i];
        if (run->index + run->count > messages_n) messages_n = run->index + run->count;
        if (run->first == WR_NEVER_SENT) continue;
        wr_results *r = &c->a.results[run->server];
        if (c->open && !c->ended && c->forks == wr_module.forks && wr_results_unusual(r, wr_attachment_link(&c->a, run->server)))
            wr_results_look(r, &c->a.port, run->server);
        uint32_t n;
        const uint64_t taken = taken_of(c, run);
        const wr_result *found = wr_results_find(r, run->first, run->first + taken, &n);
        unknown |= taken && run->first < r->forgotten;
        uint64_t *more = n ? PyMem_Realloc(refused, ((size_t)refused_n + n) * sizeof *refused) : refused;
        if (n && !more) {
            PyMem_Free(refused);
            PyErr_NoMemory();
            return -1;
        }
        refused = more;
        for (uint32_t k = 0; k < n; k++) {
            if (found[k].result == WR_RESULT_REFUSED) refused[refused_n++] = run->index + (found[k].sequence - run->first);
            if (found[k].result == WR_RESULT_ERROR) error = true, by = run->server;
            *(run->server == topics ? &no_topic : &none) |= found[k].result == WR_RESULT_NO;
            doubles_n += found[k].result == WR_RESULT_DUPLICATE;
        }
    }
    int answer = 0;
    bool left;
    uint8_t *of = taken_of_each(c, runs, runs_n, messages_n, &left);
    if (duplicates) *duplicates = doubles_n;
    if (error) answer = raise_not_taken(c, by);
    else if (none) answer = wr_raise("QueueNotFound", "the queue was deleted: declare it again; the message was dropped");
    else if (no_topic)
        answer = wr_raise("TopicNotFound", "a topic that is bound to the exchange was deleted: the message is not there, only where else it went");
    else if (left && !of) PyErr_NoMemory(), answer = -1;
    else if (left) answer = raise_not_taken_of(of, messages_n, refused, refused_n, batch);
    else if (refused_n) answer = raise_full(refused, refused_n, messages_n, batch);
    else if (unknown)
        answer = wr_raise("StoreError", "too many messages have been refused since, so this confirm cannot tell "
                                        "whether its own were: ask earlier");
    PyMem_Free(of);
    PyMem_Free(refused);
    return answer;
}

/* What the servers said to the messages of a confirm that is done. */
static int results_of(ConfirmObject *self, uint64_t *duplicates) {
    if (duplicates) *duplicates = 0;
    if (self->from != UINT64_MAX) return 0; /* of a store */
    if (self->appended) return wr_appended_check(self->client, self->appended);
    if (self->runs) return wr_results_check(self->client, self->runs, self->runs_n, true, duplicates);
    wr_run one[WR_ROUTE_COMMANDS_MAX];
    const wr_confirm_pair *pairs = pairs_of(self);
    for (uint32_t i = 0; i < self->pairs_n; i++) one[i] = (wr_run){pairs[i].server, pairs[i].sequence, 1, 0};
    return wr_results_check(self->client, one, self->pairs_n, false, duplicates);
}

static int masked(void) {
    return wr_raise("ClosedError", "this client called delete_and_terminate before: what was written (or a part of it) "
                                   "was not stored");
}

/* Is it known of all of it whether it was taken? */
static bool is_known(const ConfirmObject *self) {
    const wr_confirm_pair *pairs = pairs_of(self);
    for (uint32_t i = 0; i < self->pairs_n; i++)
        if (!pair_done(self, &pairs[i]) && !wr_never_taken(self->client, pairs[i].server, pairs[i].sequence)) return false;
    return true;
}

/* The attachment is over, and with it the wait: say so in the user's words. */
static int lost(ConfirmObject *self) {
    if (!PyErr_ExceptionMatches(wr_module.attachment_lost)) return -1;
    PyErr_Clear();
    if (is_known(self)) return results_of(self, NULL);
    return wr_raise("PeerLost", "the attachment ended before this was confirmed: it may or may not have been stored; "
                                "publish it again if that does no harm");
}

/* Its time is over: raises, and names what it was put into. */
static int late(const ConfirmObject *self, uint32_t server) {
    PyObject *name = self->appended ? self->appended->topic : self->queue;
    if (!name) return wr_timed_out(self->client, server, WR_THE_CONFIRM);
    PyObject *text = PyUnicode_FromFormat("%s %R: %s", self->appended ? "topic" : "queue", name, WR_THE_CONFIRM);
    const char *what = text ? PyUnicode_AsUTF8(text) : NULL;
    int answer = what ? wr_timed_out(self->client, server, what) : -1;
    Py_XDECREF(text);
    return answer;
}

static int confirm_wait_until(ConfirmObject *self, uint64_t deadline) {
    ClientObject *c = self->client;
    const wr_confirm_pair *pairs = pairs_of(self);
    for (uint32_t i = 0; i < self->pairs_n; i++) {
        if (pair_done(self, &pairs[i])) continue;
        if (wr_enter(c)) return lost(self);
        wr_condition condition = {wr_link_horizon(wr_attachment_link(&c->a, pairs[i].server), self->level),
                                  pairs[i].sequence, pairs[i].server};
        int waited = wr_wait(c, &condition, deadline, WR_FOR_CONFIRM);
        if (waited > 0) waited = late(self, pairs[i].server);
        if (waited) {
            if (!pair_done(self, &pairs[i])) return lost(self);
            PyErr_Clear(); /* it ended, and this was confirmed before */
        }
    }
    if (self->pairs_n == 1 && self->from <= self->first.sequence &&
        wr_masked_any(c, self->first.server, self->from, self->first.sequence))
        return masked();
    return results_of(self, NULL);
}

static int optional_timeout(PyObject *const *args, Py_ssize_t given, PyObject *names, uint64_t *deadline) {
    Py_ssize_t named = names ? PyTuple_GET_SIZE(names) : 0;
    PyObject *timeout = Py_None;
    if (given + named > 1) {
        PyErr_SetString(PyExc_TypeError, "at most one argument: timeout");
        return -1;
    }
    if (named && PyUnicode_CompareWithASCIIString(PyTuple_GET_ITEM(names, 0), "timeout")) {
        PyErr_Format(PyExc_TypeError, "unexpected argument %R", PyTuple_GET_ITEM(names, 0));
        return -1;
    }
    if (given + named) timeout = args[0];
    return wr_deadline(timeout, deadline);
}

static PyObject *confirm_wait(PyObject *op, PyObject *const *args, Py_ssize_t given, PyObject *names) {
    uint64_t deadline;
    if (optional_timeout(args, given, names, &deadline) || confirm_wait_until((ConfirmObject *)op, deadline)) return NULL;
    Py_RETURN_NONE;
}

static PyObject *confirm_result(PyObject *op, PyObject *const *args, Py_ssize_t given, PyObject *names) {
    const ConfirmObject *self = (ConfirmObject *)op;
    uint64_t deadline;
    if (optional_timeout(args, given, names, &deadline) || confirm_wait_until((ConfirmObject *)op, deadline)) return NULL;
    if (self->appended) return wr_appended_value(self->appended);
    Py_RETURN_NONE;
}

static PyObject *confirm_exception(PyObject *op, PyObject *const *args, Py_ssize_t given, PyObject *names) {
    uint64_t deadline;
    if (optional_timeout(args, given, names, &deadline)) return NULL;
    if (confirm_wait_until((ConfirmObject *)op, deadline) == 0) Py_RETURN_NONE;
    if (PyErr_ExceptionMatches(PyExc_TimeoutError) || !PyErr_ExceptionMatches(PyExc_Exception)) return NULL;
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    PyErr_NormalizeException(&type, &value, &trace);
    Py_XDECREF(type);
    Py_XDECREF(trace);
    return value;
}

PyObject *wr_face_confirmed(ClientObject *c, int store, uint64_t from, uint64_t to, int level, uint64_t deadline, bool wait) {
    uint32_t server = (uint32_t)store;
    if (!wait) {
        ConfirmObject *confirm = confirm_of(c, level, 1);
        if (!confirm) return NULL;
        confirm->first = (wr_confirm_pair){server, to};
        confirm->from = from;
        return (PyObject *)confirm;
    }
    wr_condition condition = {wr_link_horizon(wr_attachment_link(&c->a, server), level), to, server};
    if (wr_wait_or_raise(c, &condition, deadline, WR_FOR_CONFIRM, WR_THE_CONFIRM)) {
        if (PyErr_ExceptionMatches(wr_module.attachment_lost)) {
            PyErr_Clear();
            wr_raise("PeerLost", "the attachment ended before the message was confirmed: it may or may not have been stored");
        }
        return NULL;
    }
    if (wr_masked_any(c, server, from, to)) {
        masked();
        return NULL;
    }
    Py_RETURN_NONE;
}

/* The first command that is not confirmed yet; NULL when there is none. */
static const wr_confirm_pair *open_pair(const ConfirmObject *self) {
    const wr_confirm_pair *pairs = pairs_of(self);
    for (uint32_t i = 0; i < self->pairs_n; i++)
        if (!pair_done(self, &pairs[i])) return &pairs[i];
    return NULL;
}

/* Whether result() answers at once: it is confirmed, or never will be. */
static PyObject *confirm_done(PyObject *op, PyObject *unused) {
    ConfirmObject *self = (ConfirmObject *)op;
    ClientObject *c = self->client;
    (void)unused;
    const wr_confirm_pair *pair = open_pair(self);
    return PyBool_FromLong(!pair || c->ended || !c->open || c->forks != wr_module.forks || wr_trouble(c, pair->server, WR_FOR_CONFIRM));
}

static PyObject *confirm_repr(PyObject *op) {
    PyObject *done = confirm_done(op, NULL);
    PyObject *text = PyUnicode_FromFormat("<Confirm, %s>", done == Py_True ? "done" : "pending");
    Py_DECREF(done);
    return text;
}

/* untaken(): what a node that was stopped never took, [(server, index of the first message, how many), …]; server -1: none of them had it. None: it is not known, or not over. */
static PyObject *confirm_untaken(PyObject *op, PyObject *unused) {
    const ConfirmObject *self = (ConfirmObject *)op;
    const ClientObject *c = self->client;
    (void)unused;
    if (!is_known(self)) Py_RETURN_NONE;
    if (self->appended) return wr_appended_untaken(c, self->appended);
    PyObject *list = PyList_New(0);
    const wr_confirm_pair *pairs = pairs_of(self);
    const uint32_t runs_n = self->runs ? self->runs_n : self->from == UINT64_MAX ? self->pairs_n : 0;
    for (uint32_t i = 0; list && i < runs_n; i++) {
        const wr_run run = self->runs ? self->runs[i] : (wr_run){pairs[i].server, pairs[i].sequence, 1, 0};
        const uint64_t taken = taken_of(c, &run);
        if (taken == run.count) continue;
        PyObject *row = Py_BuildValue("iKK", (int)run.server, (unsigned long long)(run.index + taken), (unsigned long long)(run.count - taken));
        if (!row || PyList_Append(list, row)) Py_CLEAR(list);
        Py_XDECREF(row);
    }
    return list;
}

/* waits_for(): (server, level, sequence): it is confirmed, or waits for another one, when the level's horizon has
 * passed that; None: done. */
static PyObject *confirm_waits_for(PyObject *op, PyObject *unused) {
    ConfirmObject *self = (ConfirmObject *)op;
    (void)unused;
    const wr_confirm_pair *pair = open_pair(self);
    if (!pair) Py_RETURN_NONE;
    return Py_BuildValue("(IiK)", pair->server, self->level, (unsigned long long)pair->sequence);
}

static PyObject *confirm_false(PyObject *op, PyObject *unused) {
    (void)op;
    (void)unused;
    Py_RETURN_FALSE;
}

static PyObject *confirm_add_done_callback(PyObject *op, PyObject *callback) {
    if (!wr_module.confirm_callback) return PyErr_Format(PyExc_RuntimeError, "import warren.workers.client.waiter first");
    return PyObject_CallFunctionObjArgs(wr_module.confirm_callback, op, callback, NULL);
}

static PyObject *confirm_as_future(PyObject *op, PyObject *unused) {
    (void)unused;
    if (!wr_module.confirm_future) return PyErr_Format(PyExc_RuntimeError, "import warren.workers.client.waiter first");
    return PyObject_CallOneArg(wr_module.confirm_future, op);
}

static PyObject *confirm_get_core(PyObject *op, void *closure) {
    (void)closure;
    return Py_NewRef(((ConfirmObject *)op)->client);
}

static PyObject *confirm_duplicate(PyObject *op, void *closure) {
    (void)closure;
    ConfirmObject *self = (ConfirmObject *)op;
    uint64_t duplicates = 0;
    const wr_confirm_pair *pairs = pairs_of(self);
    for (uint32_t i = 0; i < self->pairs_n; i++)
        if (!pair_done(self, &pairs[i])) Py_RETURN_FALSE;
    if (results_of(self, &duplicates)) PyErr_Clear(); /* wait() says it */
    return PyBool_FromLong(duplicates != 0);
}

static PyObject *confirm_reduce(PyObject *op, PyObject *ignored) {
    (void)op;
    (void)ignored;
    PyErr_SetString(PyExc_TypeError, "a Confirm stays in the process that published: wait for it there (wait, result, "
                                     "add_done_callback), and tell others what came of it");
    return NULL;
}

static PyGetSetDef confirm_attributes[] = {
    {"core", confirm_get_core, NULL, "the Client that it is of", NULL},
    {"duplicate", confirm_duplicate, NULL,
     "it is confirmed, and a message was dropped because its message_id was seen within the deduplication window", NULL},
    {NULL, NULL, NULL, NULL, NULL}};

static PyMethodDef confirm_methods[] = {
    {"wait", (PyCFunction)(void (*)(void))confirm_wait, METH_FASTCALL | METH_KEYWORDS,
     "wait(timeout=None): return when it is confirmed at its durability. Raises TimedOut, PeerLost, SyncFailed, ClosedError, QueueFull."},
    {"result", (PyCFunction)(void (*)(void))confirm_result, METH_FASTCALL | METH_KEYWORDS,
     "result(timeout=None): the same as wait; the result is None, of a topic the Position (a batch: a list of them)."},
    {"exception", (PyCFunction)(void (*)(void))confirm_exception, METH_FASTCALL | METH_KEYWORDS,
     "exception(timeout=None): wait, and return the error, or None if it was confirmed."},
    {"done", confirm_done, METH_NOARGS, "Whether result() would answer at once: confirmed, or failed for good. Never waits."},
    {"cancel", confirm_false, METH_NOARGS, "Always False: a submitted message cannot be recalled."},
    {"cancelled", confirm_false, METH_NOARGS, "Always False."},
    {"add_done_callback", confirm_add_done_callback, METH_O,
     "add_done_callback(fn): call fn(confirm) when it is done, in a thread of Warren's; immediately if it is done already."},
    {"future", confirm_as_future, METH_NOARGS,
     "future(): a concurrent.futures.Future of it, for concurrent.futures.wait and asyncio.wrap_future."},
    {"waits_for", confirm_waits_for, METH_NOARGS, "waits_for() -> (server, level, sequence) | None"},
    {"untaken", confirm_untaken, METH_NOARGS, "untaken() -> [(server, index, count), ...] | None: what a node that was stopped never took"},
    {"__reduce__", confirm_reduce, METH_NOARGS, "It cannot be pickled: TypeError."},
    {"__class_getitem__", Py_GenericAlias, METH_O | METH_CLASS, "Confirm[Position]: for type checkers."},
    {NULL, NULL, 0, NULL}};

static PyType_Slot confirm_slots[] = {
    {Py_tp_dealloc, confirm_dealloc},
    {Py_tp_repr, confirm_repr},
    {Py_tp_methods, confirm_methods},
    {Py_tp_getset, confirm_attributes},
    {Py_tp_doc, "The promise of one or several writes, like a concurrent.futures.Future."},
    {0, NULL}};
static PyType_Spec confirm_spec = {"warren.Confirm", sizeof(ConfirmObject), 0,
                                   Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, confirm_slots};

/* set_confirm_face(add_done_callback, future): what Confirm's methods of these names call, with the confirm first. */
static PyObject *set_confirm_face(PyObject *module, PyObject *const *args, Py_ssize_t given) {
    (void)module;
    WR_ARGUMENTS(2, "add_done_callback, future");
    Py_XSETREF(wr_module.confirm_callback, Py_NewRef(args[0]));
    Py_XSETREF(wr_module.confirm_future, Py_NewRef(args[1]));
    Py_RETURN_NONE;
}

static PyMethodDef functions[] = {
    {"set_confirm_face", (PyCFunction)(void (*)(void))set_confirm_face, METH_FASTCALL, "set_confirm_face(add_done_callback, future)"},
    {NULL, NULL, 0, NULL}};

int wr_bind_confirm(PyObject *module) {
    wr_module.confirm_type = (PyTypeObject *)PyType_FromModuleAndSpec(module, &confirm_spec, NULL);
    if (!wr_module.confirm_type || PyModule_AddObjectRef(module, "Confirm", (PyObject *)wr_module.confirm_type)) return -1;
    return PyModule_AddFunctions(module, functions);
}
