/* Publishing: Route, the options of a message, one message, a batch, the wait for their confirms; which headers msgpack
 * gives back as they are. */
#include "binding/publish_topics.h"
#include "binding/arguments.h"
#include "binding/large.h"
#include "binding/row_metadata.h"


/* ---- Route ------------------------------------------------------------------------------------------------------ */

#define ROUTE_IDS_MAX 1024

static int by_many_first(const void *a, const void *b) {
    const wr_target *x = a, *y = b;
    return (x->ids_n == 1) - (y->ids_n == 1);
}

/* Route([(server, [queue id, …]), …], topics): binding/publish_topics.h */
static PyObject *route_new(PyTypeObject *type, PyObject *args, PyObject *keywords) {
    PyObject *targets, *topics = Py_None;
    if (keywords && PyDict_GET_SIZE(keywords)) return PyErr_Format(PyExc_TypeError, "no keywords");
    if (!PyArg_ParseTuple(args, "O!|O", &PyList_Type, &targets, &topics)) return NULL;
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
    if (topics != Py_None && wr_route_topics(self, topics)) {
        Py_DECREF(self);
        return NULL;
    }
    qsort(self->route.targets, self->route.targets_n, sizeof(wr_target), by_many_first);
    return (PyObject *)self;
}

static void route_dealloc(RouteObject *self) {
    PyTypeObject *type = Py_TYPE(self);
    PyMem_Free(self->route.ids);
    wr_route_topics_free(self);
    type->tp_free(self);
    Py_DECREF(type);
}

static PyType_Slot route_slots[] = {{Py_tp_new, route_new},
                                    {Py_tp_dealloc, route_dealloc},
                                    {Py_tp_doc, "Where one message goes: Route([(server, [queue id, ...]), ...], (topic server, record bytes, why, [(id, queues, name), ...]) or None)."},
                                    {0, NULL}};
static PyType_Spec route_spec = {"warren.engine._core.Route", sizeof(RouteObject), 0, Py_TPFLAGS_DEFAULT, route_slots};

/* ---- one message ------------------------------------------------------------------------------------------------ */

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

int wr_publish_given_up(ClientObject *c, const wr_route *route) {
    wr_superblock *super = c->a.port.super;
    if (__builtin_expect(!(atomic_load_explicit(&super->alarms, memory_order_relaxed) & WR_ALARM_SERVER_FAILED), 1)) return 0;
    for (uint32_t t = 0; t < wr_route_commands(route); t++) {
        uint32_t server = wr_route_server(route, t);
        if (server < c->servers_n &&
            atomic_load_explicit(&wr_superblock_server(super, server)->state, memory_order_acquire) == WR_SERVER_FAILED &&
            wr_hook(c, WR_HOOK_FAILED, server, "publish"))
            return -1;
    }
    return 0;
}

static inline void submit(ClientObject *c, const wr_route *route) {
    for (uint32_t t = 0; t < wr_route_commands(route); t++) wr_port_submit(&c->a.port, wr_route_server(route, t));
}

int wr_publish_one(ClientObject *c, const wr_route *route, const wr_body *body, const char *meta, uint16_t meta_length,
                       int level, uint64_t deadline, const wr_extras *extras, const wr_topic_part *parts, uint64_t *sequences, bool first,
                       wr_handed *handed) {
    uint32_t done = 0;
    bool appended = !parts;
    wr_condition blocked;
    if (handed) *handed = (wr_handed){0, false};
    wr_made_from made = {c, c->catalog_seen};
    for (uint32_t t = 0; t < route->targets_n; t++)
        if (route->targets[t].server >= c->servers_n) return wr_raise("UsageError", "the route is of another node");
    if (parts && route->topic_server >= c->servers_n) return wr_raise("UsageError", "the route is of another node");
    if (wr_publish_given_up(c, route)) return -1;
    uint8_t flags = wr_flags_of(level);
    if (extras->transient) flags &= (uint8_t)~WR_FLAG_PERSISTENT;
    if (extras->key) flags |= WR_FLAG_DEDUPLICATE;
    wr_message message = {.meta = meta, .body = body->bytes, .key = extras->key, .length = (uint64_t)body->length,
                          .expires = extras->expires, .due = extras->due, .meta_length = meta_length, .flags = flags, .parts = parts};
    wr_attachment_id(&c->a, message.id);
    if (parts) message.born_ms = wr_wall_ms();
    wr_draft draft = {.fd = -1};
    if (wr_too_large_to_share(c, message.length + meta_length)) {
        if (parts || route->topics_n) return wr_raise_too_large(c, message.length, meta_length, true);
        if (route->targets_n && wr_draft_make(c, route, &message, deadline, &draft)) {
            if (first) wr_note_deadline(deadline);
            else wr_lost_in_the_middle();
            return -1;
        }
        message.flags |= WR_FLAG_LARGE;
    }
    for (;;) {
        int error = 0;
        if (!appended && !(error = wr_publish_topics(&c->a, route, &message, sequences, &blocked))) {
            appended = true;
            done = route->targets_n ? wr_route_group(route, 0) : 0;
        }
        if (!error) error = wr_attachment_publish(&c->a, route, &done, &message, sequences, &blocked);
        if (!error) break;
        deadline = wr_by_when(c, deadline);
        const bool any = done || (parts && appended);
        wr_made_from *begins = first && !any ? &made : NULL;
        if (wr_blocked_while(c, error, &blocked, deadline, "room for the message", begins) || (!any && wr_alarm_gate(c, deadline, begins))) {
            wr_note_deadline(deadline);
            if (any) wr_lost_in_the_middle();
            for (uint32_t t = 0; draft.fd >= 0 && c->open && !c->ended && t < done; t++) wr_port_submit(&c->a.port, route->targets[t].server);
            wr_draft_end(c, &draft, done);
            if (handed) *handed = (wr_handed){done, parts && appended};
            return -1;
        }
    }
    for (uint32_t t = 0; t < wr_route_commands(route); t++) c->submitted[wr_route_server(route, t)][level] = sequences[t] + 1;
    if (draft.fd >= 0) { /* before the lock goes */
        submit(c, route);
        wr_draft_end(c, &draft, route->targets_n);
    }
    return 0;
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
    for (uint32_t t = 0; t < wr_route_commands(route); t++) {
        uint32_t server = wr_route_server(route, t);
        wr_condition condition = {wr_link_horizon(wr_attachment_link(&c->a, server), level), sequences[t], server};
        if (wr_wait_or_raise(c, &condition, deadline, WR_FOR_CONFIRM,
                             WR_THE_CONFIRM)) {
            if (!PyErr_ExceptionMatches(wr_module.attachment_lost)) return NULL;
            PyErr_Clear();
            PyObject *confirm = wr_confirm_new(c, level, route, sequences, runs); /* which outlives the attachment, and says what is known */
            PyObject *answer = confirm ? PyObject_CallMethod(confirm, "wait", NULL) : NULL;
            Py_XDECREF(confirm);
            return answer;
        }
        unusual |= c->a.results[server].n || wr_results_unusual(&c->a.results[server], wr_attachment_link(&c->a, server));
    }
    if (__builtin_expect(unusual, 0)) {
        wr_run one[WR_ROUTE_COMMANDS_MAX];
        for (uint32_t t = 0; t < wr_route_commands(route); t++) one[t] = (wr_run){wr_route_server(route, t), sequences[t], 1, 0};
        if (wr_results_check(c, runs ? runs->runs : one, runs ? runs->n : wr_route_commands(route), runs != NULL, NULL)) return NULL;
    }
    Py_RETURN_NONE;
}

PyObject *wr_publish(ClientObject *c, const wr_route *route, PyObject *object, int level, PyObject *meta, PyObject *timeout,
                     bool wait, PyObject *options, PyObject *told) {
    uint64_t deadline, sequences[WR_ROUTE_COMMANDS_MAX];
    wr_topic_part parts[WR_ROUTE_TOPICS_MAX];
    const char *meta_bytes;
    uint16_t meta_length;
    wr_body body;
    wr_extras extras;
    if (wr_deadline_of_call(timeout, wait, &deadline) || wr_client_gate(c, deadline, true) || meta_of(meta, &meta_bytes, &meta_length) ||
        extras_of(options, &extras) || wr_body_take(c, object, meta_length, &body))
        return NULL;
    const bool topics = route->topics_n;
    int error = topics ? wr_parts_of(route, told, (uint64_t)body.length, parts) : 0;
    if (!error) error = wr_publish_one(c, route, &body, meta_bytes, meta_length, level, deadline, &extras, topics ? parts : NULL, sequences, true, NULL);
    wr_body_drop(&body);
    if (error) return NULL;
    submit(c, route);
    return wr_confirmed(c, route, sequences, level, deadline, wait, NULL);
}

/* ---- a batch ---------------------------------------------------------------------------------------------------- */

static int push_run(wr_runs *runs, wr_run run) {
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
    runs->runs[runs->n++] = run;
    return 0;
}

int wr_run_note(wr_runs *runs, uint32_t server, uint64_t sequence, uint64_t index, uint64_t count) {
    wr_row_ref last = runs->last[server];
    if (wr_row_some(last)) {
        wr_run *run = &runs->runs[wr_row_number(last)];
        if (run->first + run->count == sequence && run->index + run->count == index) {
            run->count += count;
            return 0;
        }
    }
    if (push_run(runs, (wr_run){server, sequence, count, index})) return -1;
    runs->last[server] = wr_row_of(runs->n - 1);
    return 0;
}

int wr_part_note(wr_runs *runs, const wr_route *route, const uint64_t *sequences, wr_handed handed, Py_ssize_t index, uint64_t *last, bool *used) {
    for (uint32_t t = 0; t < wr_route_commands(route); t++) {
        const uint32_t server = wr_route_server(route, t);
        const bool sent = t < route->targets_n ? t < handed.targets : handed.topics;
        if (sent ? wr_run_note(runs, server, sequences[t], (uint64_t)index, 1) : push_run(runs, (wr_run){server, WR_NEVER_SENT, 1, (uint64_t)index})) return -1;
        if (!sent) continue;
        last[server] = sequences[t];
        used[server] = true;
    }
    return 0;
}

/* What one call of wr_publish_many has to do. `routes`, `metas`, `options` are lists (fast sequences) or NULL: then
 * the same for all. */
typedef struct {
    const wr_route *route;
    PyObject *routes, *metas, *options;
    PyObject *told; /* what topics get: a list (of each), a tuple (of all), or NULL */
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
        if (!PyObject_TypeCheck(object, wr_module.route_type)) {
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

/* Messages from `sent` on that differ in their bodies alone and go to one server, as many as are submitted together.
 * Nothing of Python runs in between, so the list stays as it is. Returns how many; 0: the next one goes alone, which
 * waits for room and says what is wrong. */
static uint32_t publish_some(ClientObject *c, const wr_batch_plan *plan, PyObject *list, Py_ssize_t sent, uint64_t *first) {
    const wr_route *route = plan->route;
    if (!route || plan->metas || plan->options || plan->extras.key || route->targets_n != 1 || route->topics_n) return 0;
    const wr_target *target = &route->targets[0];
    if (target->server >= c->servers_n ||
        atomic_load_explicit(&c->a.port.super->alarms, memory_order_relaxed) & WR_ALARM_SERVER_FAILED)
        return 0;
    wr_piece bodies[WR_SUBMIT_EVERY];
    uint32_t n = 0, most = WR_SUBMIT_EVERY - (uint32_t)(sent % WR_SUBMIT_EVERY);
    Py_ssize_t size = PySequence_Fast_GET_SIZE(list);
    uint64_t room = wr_attachment_run_bytes(&c->a), each = 4ull * target->ids_n + plan->meta_length + 8;
    for (; n < most && sent + n < size; n++) {
        PyObject *object = PySequence_Fast_GET_ITEM(list, sent + n);
        if (!PyBytes_CheckExact(object)) break;
        bodies[n] = (wr_piece){PyBytes_AS_STRING(object), (uint64_t)PyBytes_GET_SIZE(object)};
        if (bodies[n].length + plan->meta_length > c->a.shared_bytes_max || bodies[n].length + each > room) break;
        room -= bodies[n].length + each;
    }
    uint8_t flags = wr_flags_of(plan->level);
    if (plan->extras.transient) flags &= (uint8_t)~WR_FLAG_PERSISTENT;
    wr_message message = {.meta = plan->meta, .expires = plan->extras.expires, .due = plan->extras.due,
                          .meta_length = plan->meta_length, .flags = flags};
    if (n < 2 || !wr_attachment_publish_run(&c->a, target, &message, bodies, NULL, n, first)) return 0;
    c->submitted[target->server][plan->level] = *first + n;
    return n;
}

/* One body per element of `list` into the rings. Returns how many were handed over; *error when it ended early. */
static Py_ssize_t publish_list(ClientObject *c, const wr_batch_plan *plan, PyObject *list, uint64_t *last, bool *used,
                               wr_runs *runs, int *error) {
    uint64_t sequences[WR_ROUTE_COMMANDS_MAX];
    wr_topic_part parts[WR_ROUTE_TOPICS_MAX];
    Py_ssize_t sent = 0;
    /* The list may change under our feet while we wait for room without the GIL: its size is read anew each time. */
    for (; sent < PySequence_Fast_GET_SIZE(list); sent++) {
        uint64_t first;
        uint32_t some = publish_some(c, plan, list, sent, &first);
        if (some) {
            uint32_t server = plan->route->targets[0].server;
            if ((*error = wr_run_note(runs, server, first, (uint64_t)sent, some))) return sent;
            last[server] = first + some - 1;
            used[server] = true;
            sent += (Py_ssize_t)some - 1;
            if (sent % WR_SUBMIT_EVERY == WR_SUBMIT_EVERY - 1) wr_port_submit(&c->a.port, server);
            continue;
        }
        const wr_route *route;
        const char *meta;
        uint16_t meta_length;
        wr_body body;
        wr_extras own;
        const wr_extras *extras;
        PyObject *object = Py_NewRef(PySequence_Fast_GET_ITEM(list, sent)), *told = NULL;
        wr_handed handed = {0, false};
        *error = plan_item(plan, sent, &route, &meta, &meta_length, &own, &extras) || wr_body_take(c, object, meta_length, &body);
        if (!*error) {
            const bool topics = route->topics_n;
            *error = topics ? wr_told_item(plan->told, sent, &told) || wr_parts_of(route, told, (uint64_t)body.length, parts) : 0;
            if (!*error)
                *error = wr_publish_one(c, route, &body, meta, meta_length, plan->level, plan->deadline, extras, topics ? parts : NULL, sequences, !sent, &handed);
            if (*error && (handed.targets || handed.topics) && wr_part_note(runs, route, sequences, handed, sent, last, used)) *error = -1;
            wr_body_drop(&body);
        }
        for (uint32_t t = 0; !*error && t < wr_route_commands(route); t++)
            *error = wr_run_note(runs, wr_route_server(route, t), sequences[t], (uint64_t)sent, 1);
        Py_XDECREF(told);
        Py_DECREF(object);
        if (*error) return sent;
        bool now = sent % WR_SUBMIT_EVERY == WR_SUBMIT_EVERY - 1;
        for (uint32_t t = 0; t < wr_route_commands(route); t++) {
            uint32_t server = wr_route_server(route, t);
            last[server] = sequences[t];
            used[server] = true;
        }
        for (uint32_t server = 0; now && server < c->servers_n; server++)
            if (used[server]) wr_port_submit(&c->a.port, server);
    }
    return sent;
}

/* The call ends in the middle: whoever catches that gets the Confirm of the whole call, which names what was not taken of it. So who goes on
 * at another node sends that alone. */
static void tell_handed_over(ClientObject *c, const wr_route *touched, const uint64_t *sequences, int level, Py_ssize_t left, Py_ssize_t n, wr_runs *runs) {
    PyObject *type, *value, *traceback, *not_taken = NULL, *confirm = NULL;
    PyErr_Fetch(&type, &value, &traceback);
    if (left == n || !push_run(runs, (wr_run){WR_NO_SERVER, WR_NEVER_SENT, (uint64_t)(n - left), (uint64_t)left})) {
        PyObject *range = PyObject_CallFunction((PyObject *)&PyRange_Type, "nn", left, n);
        not_taken = range ? PySequence_Tuple(range) : NULL;
        confirm = not_taken ? wr_confirm_new(c, level, touched, sequences, runs) : NULL;
        Py_XDECREF(range);
    }
    if (confirm) {
        PyErr_Restore(type, value, traceback);
    } else { /* no memory: that is raised */
        Py_XDECREF(type);
        Py_XDECREF(value);
        Py_XDECREF(traceback);
    }
    wr_tell_confirm(not_taken, confirm);
}

PyObject *wr_batch_confirmed(ClientObject *c, int error, Py_ssize_t sent, Py_ssize_t n, const uint64_t *last, const bool *used, int level,
                             uint64_t deadline, bool wait, wr_runs *runs) {
    wr_route touched = {.targets_n = 0};
    uint64_t sequences[WR_SERVERS_MAX];
    for (uint32_t server = 0; server < c->servers_n; server++) {
        if (!used[server]) continue;
        if (c->open && !c->ended) wr_port_submit(&c->a.port, server);
        sequences[touched.targets_n] = last[server];
        if (server == c->topic_server) { /* the last one */
            touched.topics_n = 1;
            touched.topic_server = server;
            break;
        }
        touched.targets[touched.targets_n++] = (wr_target){.server = server, .ids_n = 1};
    }
    if (!error) return wr_confirmed(c, &touched, sequences, level, deadline, wait, runs);
    if (runs->n) {
        const wr_run *end = &runs->runs[runs->n - 1]; /* of the message in the middle, if something of it was handed over */
        const Py_ssize_t left = (Py_ssize_t)(end->index + end->count);
        wr_lost_in_the_middle();
        tell_handed_over(c, &touched, sequences, level, left > sent ? left : sent, n, runs);
    }
    return NULL;
}

/* `routes`: a Route, or a sequence of one per body; `meta`: None, bytes, or a sequence of one per body; `options`
 * (NULL: plain) like `meta`. */
PyObject *wr_publish_many(ClientObject *c, const wr_route *route, PyObject *routes, PyObject *bodies, int level, PyObject *meta,
                          PyObject *timeout, bool wait, PyObject *options, PyObject *told) {
    wr_batch_plan plan = {.route = route, .level = level, .told = told};
    uint64_t last[WR_SERVERS_MAX];
    bool used[WR_SERVERS_MAX] = {false};
    wr_runs runs = {.runs = NULL};
    PyObject *list = NULL, *answer = NULL;
    if (wr_deadline_of_call(timeout, wait, &plan.deadline) || wr_client_gate(c, plan.deadline, true)) return NULL;
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
        if (plan_item(&plan, i, &to, &bytes, &length, &own, &extras) || wr_publish_given_up(c, to)) goto done;
        if (to->topics_n) {
            if (wr_parts_look(c, to, told, i, object, length)) goto done;
            continue;
        }
        if (PyBytes_CheckExact(object) && (uint64_t)PyBytes_GET_SIZE(object) + length <= c->a.message_bytes_max) continue;
        Py_INCREF(object); /* asking it for its buffer may run code that changes the list */
        int wrong = wr_body_take(c, object, length, &body);
        if (!wrong) wr_body_drop(&body);
        Py_DECREF(object);
        if (wrong) goto done;
    }
    int error = 0;
    Py_ssize_t sent = publish_list(c, &plan, list, last, used, &runs, &error);
    answer = wr_batch_confirmed(c, error, sent, n, last, used, level, plan.deadline, wait, &runs);
done:
    PyMem_Free(runs.runs);
    Py_XDECREF(plan.options);
    Py_XDECREF(list);
    Py_XDECREF(plan.metas);
    Py_XDECREF(plan.routes);
    return answer;
}

/* ---- methods of Client ------------------------------------------------------------------------------------------ */

int wr_routes_hold(ClientObject *c) {
    if (wr_enter(c)) return -1;
    if (!wr_catalog_is_old(c)) return 0;
    if (!wr_hook(c, WR_HOOK_CATALOG, 0, "")) PyErr_SetString(wr_module.attachment_lost, "the catalog has changed: route again");
    return -1;
}

PyObject *wr_client_publish(PyObject *op, PyObject *const *args, Py_ssize_t given) {
    ClientObject *c = (ClientObject *)op;
    if (given != 7 && given != 8) WR_ARGUMENTS(6, "route, body, level, meta, timeout, wait, options=None, told=None");
    int level;
    bool wait;
    if (!PyObject_TypeCheck(args[0], wr_module.route_type)) return PyErr_Format(PyExc_TypeError, "route must be a Route");
    if (wr_flag(args[5], "wait", &wait) || wr_routes_hold(c) || wr_level_of(args[2], &level)) return NULL;
    return wr_publish(c, &((RouteObject *)args[0])->route, args[1], level, args[3], args[4], wait, given > 6 ? args[6] : NULL, given > 7 ? args[7] : NULL);
}

PyObject *wr_client_publish_many(PyObject *op, PyObject *const *args, Py_ssize_t given) {
    ClientObject *c = (ClientObject *)op;
    if (given != 7 && given != 8) WR_ARGUMENTS(6, "routes, bodies, level, metas, timeout, wait, options=None, told=None");
    int level;
    bool wait;
    if (wr_flag(args[5], "wait", &wait) || wr_routes_hold(c) || wr_level_of(args[2], &level)) return NULL;
    const wr_route *one = PyObject_TypeCheck(args[0], wr_module.route_type) ? &((RouteObject *)args[0])->route : NULL;
    return wr_publish_many(c, one, args[0], args[1], level, args[3], args[4], wait, given > 6 ? args[6] : NULL, given > 7 ? args[7] : NULL);
}

/* ---- headers ---------------------------------------------------------------------------------------------------- */

#define PLAIN_LEVELS 16

/* Whether msgpack gives back what this is. It runs no Python: what is borrowed stays. */
static bool is_plain(PyObject *value, int levels) {
    if (value == Py_None || PyUnicode_CheckExact(value) || PyLong_CheckExact(value) || PyBool_Check(value) ||
        PyBytes_CheckExact(value) || PyFloat_CheckExact(value))
        return true;
    if (!levels) return false;
    if (PyList_CheckExact(value)) {
        for (Py_ssize_t i = 0; i < PyList_GET_SIZE(value); i++)
            if (!is_plain(PyList_GET_ITEM(value, i), levels - 1)) return false;
        return true;
    }
    if (!PyDict_CheckExact(value)) return false;
    PyObject *key, *inner;
    for (Py_ssize_t at = 0; PyDict_Next(value, &at, &key, &inner);)
        if (!PyUnicode_CheckExact(key) || !is_plain(inner, levels - 1)) return false;
    return true;
}

static PyObject *plain_headers(PyObject *module, PyObject *headers) {
    (void)module;
    return PyBool_FromLong(PyDict_CheckExact(headers) && is_plain(headers, PLAIN_LEVELS));
}

static PyMethodDef functions[] = {
    {"row_metadata", (PyCFunction)(void (*)(void))wr_row_metadata, METH_FASTCALL,
     "row_metadata(rows, exchange, routing_key, keys, headers, timestamps, message_ids, ids_are_text, numbers) -> (ends, bytes)"},
    {"plain_headers", plain_headers, METH_O, "plain_headers(headers): whether each comes back as it is; False: look closer."},
    {NULL, NULL, 0, NULL},
};

int wr_bind_publish(PyObject *module) {
    if (PyModule_AddFunctions(module, functions) < 0) return -1;
    wr_module.route_type = (PyTypeObject *)PyType_FromModuleAndSpec(module, &route_spec, NULL);
    return wr_module.route_type ? PyModule_AddObjectRef(module, "Route", (PyObject *)wr_module.route_type) : -1;
}
