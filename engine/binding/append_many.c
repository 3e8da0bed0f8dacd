/* Many messages appended by one call: all are looked at and packed first, then they go, queue by queue, in as few commands as
 * possible. Each command's messages are appended together or not at all, with consecutive offsets.
 *
 * Invariants
 *   What is given as a list is held as a tuple: while the call waits for room without the GIL, nothing of it goes.
 *   In each queue the order is that of the call.
 */
#include "binding/append_many.h"
#include "binding/arguments.h"

typedef wr_append_item item;
typedef wr_append_batch batch;

void wr_append_drop(batch *b) {
    for (Py_ssize_t i = 0; i < b->held_n; i++) PyBuffer_Release(&b->held[i]);
    PyMem_Free(b->held);
    PyMem_Free(b->items);
    PyMem_Free(b->packed);
    Py_XDECREF(b->bodies);
    Py_XDECREF(b->keys);
    Py_XDECREF(b->tags);
    Py_XDECREF(b->properties);
    Py_XDECREF(b->queues);
    Py_XDECREF(b->born);
}

/* A list or tuple: of each; anything else is of all. */
static int of_each(const batch *b, PyObject *given, const char *what, PyObject **each, PyObject **all) {
    *all = given;
    if (!PyList_Check(given) && !PyTuple_Check(given)) return 0;
    *each = PySequence_Tuple(given);
    if (!*each) return -1;
    if (PyTuple_GET_SIZE(*each) == b->n) return 0;
    return wr_raise("UsageError", "%s: %zd for %zd bodies", what, PyTuple_GET_SIZE(*each), b->n);
}

static int take_arguments(batch *b, PyObject *const *args) {
    PyObject *list = wr_listed(args[0], "bodies");
    b->bodies = list ? PySequence_Tuple(list) : NULL;
    Py_XDECREF(list);
    if (!b->bodies) return -1;
    b->n = PyTuple_GET_SIZE(b->bodies);
    if (b->n > UINT32_MAX) return wr_raise("UsageError", "%zd messages are too many for one call", b->n);
    if (of_each(b, args[1], "keys", &b->keys, &b->all[0]) || of_each(b, args[2], "tags", &b->tags, &b->all[1]) ||
        of_each(b, args[3], "properties", &b->properties, &b->all[2]) || of_each(b, args[4], "queue", &b->queues, &b->all[3]) ||
        of_each(b, args[5], "born", &b->born, &b->all[4]))
        return -1;
    b->items = PyMem_Malloc((size_t)(b->n ? b->n : 1) * sizeof *b->items);
    if (b->items) return 0;
    PyErr_NoMemory();
    return -1;
}

int wr_append_keep(batch *b, const wr_told *told, item *to) {
    if (b->packed_n + told->n > b->packed_size) {
        uint64_t size = 2 * (b->packed_size + told->n);
        uint8_t *more = PyMem_Realloc(b->packed, size);
        if (!more) {
            PyErr_NoMemory();
            return -1;
        }
        b->packed = more;
        b->packed_size = size;
    }
    if (told->n) memcpy(b->packed + b->packed_n, told->bytes, told->n);
    to->told_at = b->packed_n;
    to->told_n = told->n;
    b->packed_n += told->n;
    return 0;
}

/* The body of one message, held until the end. */
static int keep_body(batch *b, PyObject *object, item *to) {
    ClientObject *c = b->h->client;
    wr_body body;
    if (wr_shared_body_take(c, object, to->told_n, &body)) return -1;
    to->body = body.bytes;
    to->body_length = (uint32_t)body.length;
    if (!body.buffer.obj) return 0;
    if (b->held_n == b->held_size) {
        Py_ssize_t size = b->held_size ? 2 * b->held_size : 64;
        Py_buffer *more = PyMem_Realloc(b->held, (size_t)size * sizeof *more);
        if (!more) {
            wr_body_drop(&body);
            PyErr_NoMemory();
            return -1;
        }
        b->held = more;
        b->held_size = size;
    }
    b->held[b->held_n++] = body.buffer;
    return 0;
}

/* Which message of a batch is wrong: said before what is wrong with it. */
static int wrong(const batch *b, Py_ssize_t i) {
    PyObject *type, *value, *trace;
    if (b->n == 1 || !PyErr_ExceptionMatches(PyExc_Exception)) return -1;
    PyErr_Fetch(&type, &value, &trace);
    PyErr_NormalizeException(&type, &value, &trace);
    PyObject *told = value ? PyUnicode_FromFormat("message %zd of %zd: %S", i, b->n, value) : NULL;
    PyObject *args = told ? PyTuple_Pack(1, told) : NULL;
    if (args && !PyObject_SetAttrString(value, "args", args)) PyErr_Clear();
    Py_XDECREF(told);
    Py_XDECREF(args);
    PyErr_Restore(type, value, trace);
    return -1;
}

/* Look at all messages. What is the same for all is packed once. */
static int look_at_all(batch *b, uint64_t now_ms) {
    const bool told_once = !b->keys && !b->tags && !b->properties;
    uint32_t queue = 0;
    uint64_t born_ms = now_ms;
    bool chosen = false;
    wr_told told;
    item same = {.told_n = 0};
    if (!b->queues && wr_topic_queue(b->h, b->all[3], &queue, &chosen)) return -1;
    if (!b->born && b->all[4] != Py_None && number_of(b->all[4], 63, "born", &born_ms)) return -1;
    if (told_once && (wr_told_pack(&told, b->all[0], b->all[1], b->all[2]) || wr_topic_keyed(b->h, told.keyed) || wr_told_later(&told, b->later) || wr_append_keep(b, &told, &same)))
        return -1;
    bool keyed = !told_once && (b->keys || b->all[0] != Py_None);
    if (!chosen && !b->queues && !keyed) queue = told_once && told.keyed ? wr_told_queue(told.hash, b->h->queues_n) : wr_topic_turn(b->h);
    for (Py_ssize_t i = 0; i < b->n; i++) {
        item *to = &b->items[i];
        *to = same;
        to->queue = queue;
        to->born_ms = born_ms;
        if (!told_once && (wr_told_pack(&told, b->keys ? PyTuple_GET_ITEM(b->keys, i) : b->all[0], b->tags ? PyTuple_GET_ITEM(b->tags, i) : b->all[1],
                                        b->properties ? PyTuple_GET_ITEM(b->properties, i) : b->all[2]) ||
                           wr_topic_keyed(b->h, told.keyed) || wr_told_later(&told, b->later) || wr_append_keep(b, &told, to)))
            return wrong(b, i);
        bool own = chosen;
        if (b->queues && wr_topic_queue(b->h, PyTuple_GET_ITEM(b->queues, i), &to->queue, &own)) return wrong(b, i);
        if (!own && told.keyed) to->queue = wr_told_queue(told.hash, b->h->queues_n);
        else if (!own && (b->queues || keyed)) to->queue = wr_topic_turn(b->h);
        if (b->born && PyTuple_GET_ITEM(b->born, i) != Py_None && number_of(PyTuple_GET_ITEM(b->born, i), 63, "born", &to->born_ms)) return wrong(b, i);
        if (keep_body(b, PyTuple_GET_ITEM(b->bodies, i), to) ||
            !(to->size = wr_topic_record_size(b->h, to->told_n, to->body_length, wr_append_kind_of(b), to->queue)))
            return wrong(b, i);
        b->several |= to->queue != b->items[0].queue;
    }
    return 0;
}

/* The numbers of the messages, queue by queue, in the order of the call within each. NULL with an exception. */
static uint32_t *by_queue(const batch *b) {
    uint32_t *order = PyMem_Malloc((size_t)b->n * sizeof *order);
    uint64_t *next = PyMem_Calloc((size_t)b->h->queues_n + 1, sizeof *next);
    if (order && next) {
        for (Py_ssize_t i = 0; i < b->n; i++) next[b->items[i].queue + 1]++;
        for (uint32_t q = 0; q < b->h->queues_n; q++) next[q + 1] += next[q];
        for (Py_ssize_t i = 0; i < b->n; i++) order[next[b->items[i].queue]++] = (uint32_t)i;
    } else {
        PyErr_NoMemory();
        PyMem_Free(order);
        order = NULL;
    }
    PyMem_Free(next);
    return order;
}

static inline const item *item_at(const batch *b, const wr_appended *to, uint64_t k) { return &b->items[to->order ? to->order[k] : k]; }

/* How many messages from the k-th on go into one command: at least one. */
static uint64_t cut(const batch *b, const wr_appended *to, uint64_t k) {
    const item *first = item_at(b, to, k);
    uint64_t records = 0, data = 0, n = 0, arena = b->h->client->a.port.view.g.arena_bytes / 2;
    for (; k + n < to->records_n && n < WR_APPEND_COUNT_MAX; n++) {
        const item *one = item_at(b, to, k + n);
        records += one->size;
        data += (uint64_t)one->told_n + one->body_length;
        bool fits = records <= b->h->command_bytes && wr_append_bytes(n + 1, data) + 8 <= arena;
        if (n && (!fits || one->queue != first->queue || one->born_ms != first->born_ms)) break;
    }
    return n;
}

/* What the call will have appended: the commands that it takes. NULL with an exception. */
static wr_appended *plan(const batch *b) {
    wr_appended *to = PyMem_Calloc(1, sizeof *to);
    if (!to) goto no_memory;
    to->many = true;
    to->records_n = (uint64_t)b->n;
    to->runs = &to->one;
    memcpy(to->host, b->h->host, sizeof to->host);
    if (!b->n) return to;
    if (b->several && !(to->order = by_queue(b))) goto failed;
    if (!(to->sizes = PyMem_Malloc((size_t)b->n * sizeof *to->sizes))) goto no_memory;
    for (uint64_t k = 0; k < to->records_n; k++) to->sizes[k] = item_at(b, to, k)->size;
    uint64_t runs_n = 0;
    for (uint64_t k = 0; k < to->records_n; k += cut(b, to, k)) runs_n++;
    wr_append_run *runs = runs_n > 1 ? PyMem_Calloc(runs_n, sizeof *runs) : &to->one;
    if (!runs) goto no_memory;
    to->runs = runs;
    to->runs_n = (uint32_t)runs_n;
    uint64_t at = 0;
    for (uint32_t i = 0; i < to->runs_n; i++) {
        uint64_t n = cut(b, to, at);
        runs[i] = (wr_append_run){.first = at, .n = n, .queue = item_at(b, to, at)->queue};
        at += n;
    }
    return to;
no_memory:
    PyErr_NoMemory();
failed:
    wr_appended_free(b->h->client, to);
    return NULL;
}

static int send(const batch *b, wr_appended *to, wr_append_how *how) {
    uint64_t most = to->records_n < WR_APPEND_COUNT_MAX ? to->records_n : WR_APPEND_COUNT_MAX;
    wr_append_record *records = PyMem_Malloc((most ? most : 1) * sizeof *records);
    int error = 0;
    if (!records) {
        PyErr_NoMemory();
        return -1;
    }
    for (uint32_t i = 0; !error && i < to->runs_n; i++) {
        wr_append_run *run = &to->runs[i];
        for (uint64_t k = 0; k < run->n; k++) {
            const item *one = item_at(b, to, run->first + k);
            records[k] = (wr_append_record){.properties = b->packed + one->told_at, .body = one->body, .properties_length = one->told_n,
                                            .body_length = one->body_length};
        }
        error = wr_topic_send(b->h, run->queue, item_at(b, to, run->first)->born_ms, records, (uint32_t)run->n, run, how, !i);
    }
    PyMem_Free(records);
    return error;
}

/* The call ends in the middle: whoever catches that gets the Confirm of what was sent, which names the others. */
static void tell_sent(TopicHandleObject *h, wr_appended *appended, const wr_append_how *how) {
    PyObject *type, *value, *traceback;
    appended->cut = true;
    appended->topic = Py_XNewRef(h->name);
    PyErr_Fetch(&type, &value, &traceback);
    PyObject *left = wr_appended_left(h->client, appended), *confirm = wr_confirm_appended(h->client, how->level, appended);
    if (left && confirm) {
        PyErr_Restore(type, value, traceback);
    } else {
        Py_XDECREF(type);
        Py_XDECREF(value);
        Py_XDECREF(traceback);
    }
    wr_tell_confirm(left, confirm);
}

PyObject *wr_append_go(batch *b, wr_append_how *how) {
    TopicHandleObject *h = b->h;
    wr_appended *appended = plan(b);
    const int error = !appended || send(b, appended, how);
    wr_append_drop(b);
    if (!error) return wr_topic_confirmed(h, appended, how);
    if (appended && appended->runs_n && appended->runs[0].sent) tell_sent(h, appended, how);
    else if (appended) wr_appended_free(h->client, appended);
    return NULL;
}

PyObject *wr_topic_append_many(PyObject *op, PyObject *const *args, Py_ssize_t given) {
    batch b = {.h = (TopicHandleObject *)op};
    wr_append_how how;
    WR_ARGUMENTS(10, "bodies, keys, tags, properties, queues, born, later, level, timeout, wait");
    b.later = args[6];
    how.kind = b.later != Py_None ? WR_APPEND_LATER : WR_APPEND_NOW;
    if (wr_topic_current(b.h)) return NULL;
    if (!take_arguments(&b, args) && !look_at_all(&b, wr_wall_ms()) && !wr_topic_ready(b.h, args[7], args[8], args[9], &how)) return wr_append_go(&b, &how);
    wr_append_drop(&b);
    return NULL;
}

PyObject *wr_topic_check_many(PyObject *op, PyObject *const *args, Py_ssize_t given) {
    batch b = {.h = (TopicHandleObject *)op};
    WR_ARGUMENTS(7, "bodies, keys, tags, properties, queues, born, later");
    b.later = args[6];
    uint32_t turn = b.h->turn;
    if (wr_topic_current(b.h)) return NULL;
    int error = take_arguments(&b, args) || look_at_all(&b, 0);
    b.h->turn = turn;
    wr_append_drop(&b);
    if (error) return NULL;
    Py_RETURN_NONE;
}
