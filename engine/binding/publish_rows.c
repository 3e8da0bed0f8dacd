/* Publishing the rows of columns: bodies and metadata are copied from where they lie into the arena, in runs of rows that go to the same
 * server with the same options.
 *
 * Invariants
 *   All rows are looked at before the first is sent: a wrong one refuses the whole call, with its number.
 *   The order of the rows is that of their commands.
 * Crash points: those of any publish (client/attachment.h). What was handed over of a call that fails may be stored.
 */
#include "binding/publish_rows.h"
#include "binding/arguments.h"
#include "binding/row_columns.h"

typedef struct {
    PyObject *routes; /* a Route, or a list of them; the caller's */
    wr_row_texts bodies, metas;
    wr_row_numbers which; /* int32: the number of each row's route; not there: the first */
    wr_row_numbers expires, due, keys, keyed; /* uint64, uint64, 16 bytes, a byte: is there a key? */
    wr_row_names names;
    Py_ssize_t rows;
    int level;
    uint64_t deadline;
} plan;

static Py_ssize_t routes_n(const plan *p) { return PyTuple_CheckExact(p->routes) ? PyTuple_GET_SIZE(p->routes) : 1; }

static inline int32_t which_at(const plan *p, Py_ssize_t row) { return p->which.buf ? ((const int32_t *)p->which.buf)[row] : 0; }

static inline const wr_route *route_at(const plan *p, Py_ssize_t row) {
    PyObject *object = PyTuple_CheckExact(p->routes) ? PyTuple_GET_ITEM(p->routes, which_at(p, row)) : p->routes;
    return &((RouteObject *)object)->route;
}

static inline wr_extras extras_at(const plan *p, Py_ssize_t row) {
    return (wr_extras){.expires = p->expires.buf ? ((const uint64_t *)p->expires.buf)[row] : 0,
                       .due = p->due.buf ? ((const uint64_t *)p->due.buf)[row] : 0,
                       .key = p->keys.buf && wr_row_has(&p->keyed, row) ? (const uint8_t *)p->keys.buf + row * WR_KEY_BYTES : NULL};
}

static inline uint16_t meta_length_at(const plan *p, Py_ssize_t row) { return (uint16_t)wr_row_text_at(&p->metas, row).n; }

/* Are all routes such as this can publish by, and all rows small enough? 0, -1. */
static int look(ClientObject *c, const plan *p) {
    for (Py_ssize_t i = 0; i < routes_n(p); i++) {
        PyObject *object = PyTuple_CheckExact(p->routes) ? PyTuple_GET_ITEM(p->routes, i) : p->routes;
        if (!PyObject_TypeCheck(object, wr_module.route_type) || ((RouteObject *)object)->route.topics_n) {
            PyErr_SetString(PyExc_TypeError, "routes must be Route objects, of queues alone");
            return -1;
        }
        if (wr_publish_given_up(c, &((RouteObject *)object)->route)) return -1;
    }
    for (Py_ssize_t row = 0; row < p->rows; row++) {
        const uint64_t meta = wr_row_text_at(&p->metas, row).n, body = wr_row_text_at(&p->bodies, row).n;
        if (which_at(p, row) < 0 || which_at(p, row) >= routes_n(p)) {
            PyErr_SetString(PyExc_ValueError, "there is no such route");
            return -1;
        }
        if (meta <= UINT16_MAX && meta + body <= c->a.message_bytes_max) continue;
        wr_raise("MessageTooLarge", "a message of %llu bytes with its headers is larger than %llu (setting message_bytes_max)",
                 (unsigned long long)(meta + body), (unsigned long long)c->a.message_bytes_max);
        return wr_raise_of_row(&p->names, row);
    }
    return 0;
}

/* Rows from `sent` on that go to one server with the same options, as many as are submitted together. 0: the next one goes alone, which
 * waits for room and says what is wrong. */
static uint32_t publish_some(ClientObject *c, const plan *p, Py_ssize_t sent, uint64_t *first) {
    const wr_route *route = route_at(p, sent);
    const wr_extras extras = extras_at(p, sent);
    if (extras.key || route->targets_n != 1 || route->targets[0].server >= c->servers_n ||
        atomic_load_explicit(&c->a.port.super->alarms, memory_order_relaxed) & WR_ALARM_SERVER_FAILED)
        return 0;
    const wr_target *target = &route->targets[0];
    wr_piece bodies[WR_SUBMIT_EVERY], metas[WR_SUBMIT_EVERY];
    uint32_t n = 0;
    const uint32_t most = WR_SUBMIT_EVERY - (uint32_t)(sent % WR_SUBMIT_EVERY);
    uint64_t room = wr_attachment_run_bytes(&c->a);
    for (; n < most && sent + n < p->rows; n++) {
        const Py_ssize_t row = sent + n;
        const wr_extras own = extras_at(p, row);
        if (which_at(p, row) != which_at(p, sent) || own.key || own.expires != extras.expires || own.due != extras.due) break;
        const wr_row_text body = wr_row_text_at(&p->bodies, row), meta = wr_row_text_at(&p->metas, row);
        const uint64_t bytes = (uint64_t)body.n + meta.n + 4ull * target->ids_n + 8;
        if (bytes > room) break;
        room -= bytes;
        bodies[n] = (wr_piece){body.bytes, body.n};
        metas[n] = (wr_piece){meta.bytes, meta.n};
    }
    const wr_message message = {.expires = extras.expires, .due = extras.due, .flags = wr_flags_of(p->level)};
    if (n < 2 || !wr_attachment_publish_run(&c->a, target, &message, bodies, p->metas.ends ? metas : NULL, n, first)) return 0;
    c->submitted[target->server][p->level] = *first + n;
    return n;
}

static int publish_alone(ClientObject *c, const plan *p, Py_ssize_t row, uint64_t *sequences, wr_handed *handed) {
    const wr_row_text body = wr_row_text_at(&p->bodies, row), meta = wr_row_text_at(&p->metas, row);
    const wr_extras extras = extras_at(p, row);
    const wr_body taken = {.bytes = body.bytes ? body.bytes : (const uint8_t *)"", .length = body.n};
    return wr_publish_one(c, route_at(p, row), &taken, (const char *)meta.bytes, meta_length_at(p, row), p->level, p->deadline, &extras, NULL, sequences, !row, handed);
}

/* Returns how many were handed over; *error when it ended early. */
static Py_ssize_t publish_all(ClientObject *c, const plan *p, uint64_t *last, bool *used, wr_runs *runs, int *error) {
    Py_ssize_t sent = 0;
    while (sent < p->rows) {
        uint64_t sequences[WR_ROUTE_COMMANDS_MAX];
        const wr_route *route = route_at(p, sent);
        uint32_t some = publish_some(c, p, sent, sequences);
        if (!some) {
            wr_handed handed;
            if ((*error = publish_alone(c, p, sent, sequences, &handed))) {
                if (handed.targets && wr_part_note(runs, route, sequences, handed, sent, last, used)) *error = -1;
                return sent;
            }
            some = 1;
        }
        for (uint32_t t = 0; t < route->targets_n; t++) {
            const uint32_t server = route->targets[t].server;
            if ((*error = wr_run_note(runs, server, sequences[t], (uint64_t)sent, some))) return sent;
            last[server] = sequences[t] + some - 1;
            used[server] = true;
        }
        sent += some;
        for (uint32_t server = 0; !(sent % WR_SUBMIT_EVERY) && server < c->servers_n; server++)
            if (used[server]) wr_port_submit(&c->a.port, server);
    }
    return sent;
}

static int take_extras(PyObject *given, plan *p) {
    if (given == Py_None) return 0;
    if (!PyTuple_CheckExact(given) || PyTuple_GET_SIZE(given) != 4) {
        PyErr_SetString(PyExc_TypeError, "extras are (expires, due, keys, keyed)");
        return -1;
    }
    return wr_row_numbers_take(PyTuple_GET_ITEM(given, 0), p->rows, 8, "expires", &p->expires) ||
                   wr_row_numbers_take(PyTuple_GET_ITEM(given, 1), p->rows, 8, "due", &p->due) ||
                   wr_row_numbers_take(PyTuple_GET_ITEM(given, 2), p->rows, WR_KEY_BYTES, "keys", &p->keys) ||
                   wr_row_numbers_take(PyTuple_GET_ITEM(given, 3), p->rows, 1, "keyed", &p->keyed)
               ? -1
               : 0;
}

PyObject *wr_client_publish_rows(PyObject *op, PyObject *const *args, Py_ssize_t given) {
    ClientObject *c = (ClientObject *)op;
    WR_ARGUMENTS(10, "routes, rows, bodies, metas, which, extras, level, timeout, wait, numbers");
    plan p = {.routes = args[0]};
    uint64_t last[WR_SERVERS_MAX], rows;
    bool used[WR_SERVERS_MAX] = {false}, wait;
    wr_runs runs = {.runs = NULL};
    PyObject *answer = NULL;
    if (wr_flag(args[8], "wait", &wait) || number_of(args[1], 31, "rows", &rows)) return NULL;
    p.rows = (Py_ssize_t)rows;
    if (wr_row_names_take(args[9], p.rows, &p.names)) return NULL;
    if (!wr_row_texts_take(args[2], p.rows, "value", &p.bodies) && !wr_row_texts_take(args[3], p.rows, "metadata", &p.metas) &&
        !wr_row_numbers_take(args[4], p.rows, 4, "which", &p.which) && !take_extras(args[5], &p) && !wr_routes_hold(c) &&
        !wr_level_of(args[6], &p.level) && !wr_deadline_of_call(args[7], wait, &p.deadline) && !wr_client_gate(c, p.deadline, true) &&
        !look(c, &p)) {
        int error = 0;
        const Py_ssize_t sent = publish_all(c, &p, last, used, &runs, &error);
        answer = wr_batch_confirmed(c, error, sent, p.rows, last, used, p.level, p.deadline, wait, &runs);
    }
    PyMem_Free(runs.runs);
    wr_row_numbers_drop(&p.names.each);
    wr_row_texts_drop(&p.bodies);
    wr_row_texts_drop(&p.metas);
    wr_row_numbers_drop(&p.which);
    wr_row_numbers_drop(&p.expires);
    wr_row_numbers_drop(&p.due);
    wr_row_numbers_drop(&p.keys);
    wr_row_numbers_drop(&p.keyed);
    return answer;
}
