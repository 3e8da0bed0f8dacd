/* TopicServer for Python: policy stays there (engine/topics/service.py), the loop is wr_topic_run. Thin: arguments in, buffers pinned, GIL
 * released around what blocks. All methods but commit_run, dispatch_run, request_stop and kick are called by the thread that calls run. */
#include "binding/arguments.h"
#include "topics/closing.h"
#include "topics/control.h"
#include "topics/links.h"
#include "topics/loop.h"
#include "topics/table.h"

typedef struct {
    PyObject_HEAD
    wr_topic_worker *worker;
    void *ring;
    uint64_t ring_bytes;
    Py_buffer super, rows;
    Py_buffer links[WR_CLIENT_SLOTS];
    _Atomic uint32_t threads; /* inside commit_run and dispatch_run */
    bool running;
} server_object;

static wr_topic_worker *worker_of(PyObject *self) {
    server_object *o = (server_object *)self;
    if (!o->worker) {
        PyErr_SetString(PyExc_ValueError, "the topic server is closed");
        return NULL;
    }
    if (o->running) {
        PyErr_SetString(PyExc_RuntimeError, "the topic server is running: only its own thread may call it, between two runs");
        return NULL;
    }
    return o->worker;
}

/* One that has begun. */
static wr_topic_worker *begun(PyObject *self) {
    wr_topic_worker *w = worker_of(self);
    if (!w || w->dispatcher) return w;
    PyErr_SetString(PyExc_RuntimeError, "the topic server has not begun: recover, settle and begin come first");
    return NULL;
}

static wr_topic_worker *not_begun(PyObject *self) {
    wr_topic_worker *w = worker_of(self);
    if (!w || !w->dispatcher) return w;
    PyErr_SetString(PyExc_RuntimeError, "the topic server has begun");
    return NULL;
}

static void release_all(server_object *o) {
    wr_topic_worker_free(o->worker);
    o->worker = NULL;
    if (o->ring) wr_topic_ring_unmap(o->ring, o->ring_bytes);
    o->ring = NULL;
    drop_buffer(&o->super);
    drop_buffer(&o->rows);
    for (uint32_t i = 0; i < WR_CLIENT_SLOTS; i++) drop_buffer(&o->links[i]);
}

static PyObject *server_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"superblock", "server", "folder", "ring", "rows", "node", "boot", "ring_bytes", "log_file_bytes",
                            "consume_queue_entries", "index_slots", "index_entries", "spin_us", "tick_ms", "commit_bytes", "delayed_max",
                            "halves_max", "half_outcomes", "half_after_ms", "half_interval_ms", "half_checks", NULL};
    PyObject *super, *rows;
    const char *node, *boot;
    Py_ssize_t node_n, boot_n;
    int folder, ring;
    unsigned int server, entries, slots, index_entries, half_checks;
    unsigned long long ring_bytes, file_bytes, spin_us, tick_ms, commit_bytes, delayed_max, halves_max, half_outcomes, half_after_ms, half_interval_ms;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OIiiOy#y#$KKIIIKKKKKKKKI", names, &super, &server, &folder, &ring, &rows, &node, &node_n, &boot, &boot_n,
                                     &ring_bytes, &file_bytes, &entries, &slots, &index_entries, &spin_us, &tick_ms, &commit_bytes,
                                     &delayed_max, &halves_max, &half_outcomes, &half_after_ms, &half_interval_ms, &half_checks))
        return NULL;
    if (server >= WR_SERVERS_MAX || node_n != 16 || boot_n != 16 || !ring_bytes || ring_bytes & (ring_bytes - 1) || ring_bytes % WR_PAGE_BYTES) {
        PyErr_SetString(PyExc_ValueError, "server is an index of the superblock, node and boot are 16 bytes, ring_bytes is a power of two");
        return NULL;
    }
    server_object *o = (server_object *)type->tp_alloc(type, 0);
    if (!o) return NULL;
    if (PyObject_GetBuffer(super, &o->super, PyBUF_WRITABLE) || PyObject_GetBuffer(rows, &o->rows, PyBUF_WRITABLE)) {
        Py_DECREF(o);
        return NULL;
    }
    if (o->super.len < WR_SUPERBLOCK_BYTES || (size_t)o->rows.len < WR_TOPIC_ROWS_BYTES) {
        PyErr_SetString(PyExc_ValueError, "superblock or rows too short");
        Py_DECREF(o);
        return NULL;
    }
    o->ring_bytes = ring_bytes;
    wr_topic_worker_options options = {.super = o->super.buf, .server = server, .folder = folder, .rows = o->rows.buf,
                                       .rows_max = WR_TOPIC_ROWS_MAX, .ring_bytes = ring_bytes, .log_file_bytes = file_bytes,
                                       .consume_queue_entries = entries, .index_slots = slots, .index_entries = index_entries,
                                       .spin_ns = spin_us * 1000, .tick_ns = tick_ms * 1000000, .commit_bytes = commit_bytes,
                                       .delayed_max = delayed_max, .halves_max = halves_max, .half_outcomes_kept = half_outcomes,
                                       .half_after_ms = half_after_ms, .half_interval_ms = half_interval_ms, .half_checks_max = half_checks};
    memcpy(options.node, node, 16);
    memcpy(options.boot, boot, 16);
    options.ring = o->ring = wr_topic_ring_map(ring, ring_bytes);
    if (o->ring) o->worker = wr_topic_worker_new(&options);
    if (!o->worker) {
        const int error = errno;
        Py_DECREF(o);
        return os_error(error);
    }
    return (PyObject *)o;
}

static void server_dealloc(PyObject *self) {
    /* A thread keeps a reference to the object while it runs, so there is none now. */
    release_all((server_object *)self);
    Py_TYPE(self)->tp_free(self);
}

static PyObject *server_close(PyObject *self, PyObject *none) {
    (void)none;
    server_object *o = (server_object *)self;
    if (!o->worker) Py_RETURN_NONE;
    if (!worker_of(self)) return NULL;
    if (atomic_load(&o->threads)) {
        PyErr_SetString(PyExc_RuntimeError, "stop, and wait for the threads first");
        return NULL;
    }
    release_all(o);
    Py_RETURN_NONE;
}

/* ---- topics ---- */

static PyObject *server_declare(PyObject *self, PyObject *args) {
    unsigned int id, queues_n;
    const char *name;
    Py_ssize_t n;
    int compacted = 0;
    if (!PyArg_ParseTuple(args, "Iy#I|p", &id, &name, &n, &queues_n, &compacted)) return NULL;
    wr_topic_worker *w = worker_of(self);
    if (!w) return NULL;
    int error = n > 255 ? EINVAL : wr_topic_worker_declare(w, id, name, (uint32_t)n, queues_n);
    if (error == ENOMEM) return PyErr_NoMemory();
    if (error) return os_error(error);
    wr_topic_find(&w->s, id)->compacted = compacted;
    Py_RETURN_NONE;
}

static PyObject *server_drop(PyObject *self, PyObject *arg) {
    unsigned long id = PyLong_AsUnsignedLong(arg);
    if (PyErr_Occurred()) return NULL;
    wr_topic_worker *w = begun(self);
    if (!w) return NULL;
    int error = wr_topic_worker_drop(w, (uint32_t)id);
    if (error == ENOMEM) return PyErr_NoMemory();
    if (error == ENOENT) return PyErr_Format(PyExc_KeyError, "no topic %lu", id);
    Py_RETURN_NONE;
}

/* ---- start ---- */

static PyObject *server_look(PyObject *self, PyObject *arg) {
    unsigned long long first = PyLong_AsUnsignedLongLong(arg);
    if (PyErr_Occurred()) return NULL;
    wr_topic_worker *w = not_begun(self);
    if (!w) return NULL;
    wr_checkpoint_kind kind;
    wr_log_previewed looked;
    int error;
    ((server_object *)self)->running = true;
    Py_BEGIN_ALLOW_THREADS
    error = wr_topic_worker_look(w, first, &kind, &looked);
    Py_END_ALLOW_THREADS
    ((server_object *)self)->running = false;
    if (error) return os_error(error);
    PyObject *stranger = looked.foreign ? PyBytes_FromStringAndSize((const char *)looked.stranger.node, sizeof looked.stranger.node) : Py_NewRef(Py_None);
    if (!stranger) return NULL;
    return Py_BuildValue("{sssOsOsOsOsKsN}", "checkpoint", wr_checkpoint_word(kind), "survived",
                         looked.survived ? Py_True : Py_False, "shorter", looked.shorter ? Py_True : Py_False, "damaged",
                         looked.damaged ? Py_True : Py_False, "empty", looked.empty ? Py_True : Py_False, "position", (unsigned long long)looked.position, "stranger", stranger);
}

static PyObject *server_recover(PyObject *self, PyObject *arg) {
    unsigned long long first = PyLong_AsUnsignedLongLong(arg);
    if (PyErr_Occurred()) return NULL;
    wr_topic_worker *w = not_begun(self);
    if (!w) return NULL;
    wr_checkpoint_kind kind = WR_CHECKPOINT_NONE;
    int error;
    ((server_object *)self)->running = true;
    Py_BEGIN_ALLOW_THREADS
    error = wr_topic_worker_recover(w, first, &kind);
    Py_END_ALLOW_THREADS
    ((server_object *)self)->running = false;
    if (error) return os_error(error);
    const wr_log_end *end = &w->end;
    PyObject *stranger = end->foreign ? PyBytes_FromStringAndSize((const char *)end->stranger.node, sizeof end->stranger.node) : Py_NewRef(Py_None);
    if (!stranger) return NULL;
    const wr_absence *absence = wr_dispatch_absence(w->dispatch);
    return Py_BuildValue("{s(Isz)sssKsKsKsKsKsOsOsN}", "absent", absence->files_n, absence->file, absence->reason, "checkpoint",
                         wr_checkpoint_word(kind), "first", (unsigned long long)wr_dispatch_first(w->dispatch), "position",
                         (unsigned long long)end->position, "synced",
                         (unsigned long long)end->synced, "number", (unsigned long long)end->last.number, "epoch",
                         (unsigned long long)end->last.origin.epoch, "torn", end->torn ? Py_True : Py_False, "damaged",
                         end->damaged ? Py_True : Py_False, "stranger", stranger);
}

static PyObject *server_settle(PyObject *self, PyObject *none) {
    (void)none;
    wr_topic_worker *w = not_begun(self);
    if (!w) return NULL;
    int error;
    if (w->end.damaged || w->end.foreign)
        return PyErr_Format(PyExc_ValueError, "the log is damaged, or another node's, at %llu", (unsigned long long)w->end.position);
    ((server_object *)self)->running = true;
    Py_BEGIN_ALLOW_THREADS
    error = wr_topic_worker_settle(w);
    Py_END_ALLOW_THREADS
    ((server_object *)self)->running = false;
    if (error) return os_error(error);
    Py_RETURN_NONE;
}

/* A callable, asked with the GIL that the walk has given away. */
typedef struct {
    PyObject *call;
    PyThreadState *state;
} a_visit;

static int visit_record(void *context, const uint8_t *body, uint32_t n) {
    a_visit *visit = context;
    PyEval_RestoreThread(visit->state);
    PyObject *answer = PyObject_CallFunction(visit->call, "y#", (const char *)body, (Py_ssize_t)n);
    Py_XDECREF(answer);
    visit->state = PyEval_SaveThread();
    return answer ? 0 : ECANCELED;
}

/* system_records(topic, anew, position, epoch, number, call): the position where the walk ended. */
static PyObject *server_system_records(PyObject *self, PyObject *args) {
    const char *topic;
    Py_ssize_t topic_n;
    int anew;
    unsigned long long position, epoch, number;
    a_visit visit;
    if (!PyArg_ParseTuple(args, "y#pKKKO", &topic, &topic_n, &anew, &position, &epoch, &number, &visit.call)) return NULL;
    wr_topic_worker *w = not_begun(self);
    if (!w) return NULL;
    const wr_system_walk walk = {.topic = topic, .topic_n = (uint32_t)topic_n, .record = visit_record, .context = &visit};
    wr_log_end end;
    ((server_object *)self)->running = true;
    visit.state = PyEval_SaveThread();
    int error = wr_topic_worker_system(w, &walk, anew, position, epoch, number, &end);
    PyEval_RestoreThread(visit.state);
    ((server_object *)self)->running = false;
    if (PyErr_Occurred()) return NULL;
    if (error) return os_error(error);
    return PyLong_FromUnsignedLongLong(end.position);
}

/* ---- messages that come later ---- */

/* Where a snapshot stands, as of a position behind a commit. */
typedef struct {
    uint64_t position, epoch, number;
} a_place;

/* Take up what a snapshot has; NULL, or what is wrong with it. */
typedef const char *(*a_taking)(wr_topic_worker *w, const uint8_t *bytes, uint64_t n, a_place *place);

static const char *take_later(wr_topic_worker *w, const uint8_t *bytes, uint64_t n, a_place *place) {
    wr_pending_head head = {0};
    memcpy(head.node, w->o.node, sizeof head.node);
    const char *wrong = wr_later_decode(&w->s, bytes, n, &head);
    *place = (a_place){head.position, head.epoch, head.number};
    return wrong;
}

static const char *take_halves(wr_topic_worker *w, const uint8_t *bytes, uint64_t n, a_place *place) {
    wr_halves_head head = {0};
    memcpy(head.node, w->o.node, sizeof head.node);
    wr_halves_free(&w->s.halves);
    const char *wrong = wr_halves_decode(&w->s.halves, bytes, n, &head);
    *place = (a_place){head.position, head.epoch, head.number};
    return wrong;
}

static PyObject *read_snapshot(PyObject *self, PyObject *arg, a_taking take) {
    Py_buffer file;
    wr_topic_worker *w = not_begun(self);
    if (!w || PyObject_GetBuffer(arg, &file, PyBUF_SIMPLE)) return NULL;
    a_place place;
    const char *wrong;
    ((server_object *)self)->running = true;
    Py_BEGIN_ALLOW_THREADS
    wrong = take(w, file.buf, (uint64_t)file.len, &place);
    Py_END_ALLOW_THREADS
    ((server_object *)self)->running = false;
    PyBuffer_Release(&file);
    if (wrong && !strcmp(wrong, "memory")) return PyErr_NoMemory();
    if (wrong) return PyErr_Format(PyExc_ValueError, "%s", wrong);
    return Py_BuildValue("(KKK)", (unsigned long long)place.position, (unsigned long long)place.epoch, (unsigned long long)place.number);
}

/* later_read(file): (position, epoch, number) of a snapshot, which is taken up. Raises ValueError: what is wrong with it. */
static PyObject *server_later_read(PyObject *self, PyObject *arg) { return read_snapshot(self, arg, take_later); }

typedef int (*a_walk)(wr_topic_worker *w, bool anew, uint64_t position, uint64_t epoch, uint64_t number, uint64_t *end, uint32_t *gaps);

static PyObject *walk_log(PyObject *self, PyObject *args, a_walk walk) {
    int anew, error;
    unsigned long long position, epoch, number;
    if (!PyArg_ParseTuple(args, "pKKK", &anew, &position, &epoch, &number)) return NULL;
    wr_topic_worker *w = not_begun(self);
    if (!w) return NULL;
    uint64_t end;
    uint32_t gaps;
    ((server_object *)self)->running = true;
    Py_BEGIN_ALLOW_THREADS
    error = walk(w, anew, position, epoch, number, &end, &gaps);
    Py_END_ALLOW_THREADS
    ((server_object *)self)->running = false;
    if (error == ENOMEM) return PyErr_NoMemory();
    if (error) return os_error(error);
    return Py_BuildValue("(KI)", (unsigned long long)end, gaps);
}

/* later_walk(anew, position, epoch, number): (the position where the walk ended, gaps). */
static PyObject *server_later_walk(PyObject *self, PyObject *args) { return walk_log(self, args, wr_topic_worker_later); }

/* later_copy(): what is pending as of the last sealed commit: (position, number, messages as bytes for later_encode). */
static PyObject *server_later_copy(PyObject *self, PyObject *none) {
    (void)none;
    wr_topic_worker *w = begun(self);
    if (!w) return NULL;
    const wr_topic_log_state *state = wr_topic_log_look(w->s.log);
    const uint64_t most = wr_pending_copy_most(&w->s.pending) * sizeof(wr_pending_message);
    PyObject *copy = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)most);
    if (!copy) return NULL;
    const uint64_t n = wr_pending_copy(&w->s.pending, state->sealed, (wr_pending_message *)(void *)PyBytes_AS_STRING(copy));
    if (_PyBytes_Resize(&copy, (Py_ssize_t)(n * sizeof(wr_pending_message)))) return NULL;
    return Py_BuildValue("(KKN)", (unsigned long long)state->sealed, (unsigned long long)state->number, copy);
}

/* later_encode(node, position, epoch, number, messages): a snapshot. Any thread. */
static PyObject *server_later_encode(PyObject *none, PyObject *args) {
    (void)none;
    const char *node;
    Py_ssize_t node_n;
    PyObject *messages;
    unsigned long long position, epoch, number;
    if (!PyArg_ParseTuple(args, "y#KKKS", &node, &node_n, &position, &epoch, &number, &messages)) return NULL;
    const uint64_t bytes = (uint64_t)PyBytes_GET_SIZE(messages), n = bytes / sizeof(wr_pending_message);
    if (node_n != 16 || bytes % sizeof(wr_pending_message)) return PyErr_Format(PyExc_ValueError, "a node of 16 bytes, and messages of later_copy");
    wr_pending_head head = {.position = position, .epoch = epoch, .number = number, .n = n};
    memcpy(head.node, node, 16);
    PyObject *file = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)wr_pending_bytes(n));
    wr_pending_message *sorted = PyMem_RawMalloc(bytes ? bytes : 1);
    if (!file || !sorted) {
        Py_XDECREF(file);
        PyMem_RawFree(sorted);
        return PyErr_NoMemory();
    }
    Py_BEGIN_ALLOW_THREADS
    memcpy(sorted, PyBytes_AS_STRING(messages), bytes);
    wr_pending_encode(&head, sorted, (uint8_t *)PyBytes_AS_STRING(file));
    Py_END_ALLOW_THREADS
    PyMem_RawFree(sorted);
    return file;
}

/* later_lowest(): position of the first record of those that are to come; None: there is none. */
static PyObject *server_later_lowest(PyObject *self, PyObject *none) {
    (void)none;
    wr_topic_worker *w = begun(self);
    if (!w) return NULL;
    const uint64_t lowest = wr_pending_lowest(&w->s.pending);
    if (lowest == UINT64_MAX) Py_RETURN_NONE;
    return PyLong_FromUnsignedLongLong(lowest);
}

/* later_hold(): none comes any more: the server ends. */
static PyObject *server_later_hold(PyObject *self, PyObject *none) {
    (void)none;
    wr_topic_worker *w = begun(self);
    if (!w) return NULL;
    w->s.held = true;
    Py_RETURN_NONE;
}

/* ---- the node ends ---- */

static PyObject *server_end_links(PyObject *self, PyObject *none) {
    (void)none;
    wr_topic_worker *w = begun(self);
    if (!w) return NULL;
    wr_topic_end_links(&w->s);
    Py_RETURN_NONE;
}

static PyObject *server_behind(PyObject *self, PyObject *none) {
    (void)none;
    wr_topic_worker *w = begun(self);
    return w ? PyLong_FromUnsignedLongLong(wr_topic_behind(&w->s)) : NULL;
}

static PyObject *server_close_links(PyObject *self, PyObject *none) {
    (void)none;
    wr_topic_worker *w = begun(self);
    return w ? PyLong_FromUnsignedLong(wr_topic_close_links(&w->s)) : NULL;
}

/* ---- half messages ---- */

/* halves_read(file): (position, epoch, number) of a snapshot, which is taken up. Raises ValueError: what is wrong with it. */
static PyObject *server_halves_read(PyObject *self, PyObject *arg) { return read_snapshot(self, arg, take_halves); }

/* halves_walk(anew, position, epoch, number): (the position where the walk ended, gaps). */
static PyObject *server_halves_walk(PyObject *self, PyObject *args) { return walk_log(self, args, wr_topic_worker_halves); }

/* halves_snapshot(epoch): as of the last sealed commit: (position, number, the file). */
static PyObject *server_halves_snapshot(PyObject *self, PyObject *arg) {
    const unsigned long long epoch = PyLong_AsUnsignedLongLong(arg);
    if (PyErr_Occurred()) return NULL;
    wr_topic_worker *w = begun(self);
    if (!w) return NULL;
    const wr_topic_log_state *state = wr_topic_log_look(w->s.log);
    wr_halves_head head = {.position = state->sealed, .epoch = epoch, .number = state->number};
    memcpy(head.node, w->o.node, sizeof head.node);
    PyObject *file = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)wr_halves_bytes(&w->s.halves));
    if (!file) return NULL;
    const uint64_t n = wr_halves_encode(&w->s.halves, &head, (uint8_t *)PyBytes_AS_STRING(file));
    if (_PyBytes_Resize(&file, (Py_ssize_t)n)) return NULL;
    return Py_BuildValue("(KKN)", (unsigned long long)head.position, (unsigned long long)head.number, file);
}

/* halves_lowest(): position of the first record that is still needed; None: none is. */
static PyObject *server_halves_lowest(PyObject *self, PyObject *none) {
    (void)none;
    wr_topic_worker *w = begun(self);
    if (!w) return NULL;
    const uint64_t lowest = wr_half_lowest(&w->s.halves, wr_topic_log_look(w->s.log)->sealed);
    if (lowest == UINT64_MAX) Py_RETURN_NONE;
    return PyLong_FromUnsignedLongLong(lowest);
}

/* half_decide(topic, position, kind): (what became of it, queue, offset, position of the record that says so). None: there is no such half message.
 * BlockingIOError: there is no room now. ValueError: its record cannot be read. OSError: the log failed. */
static PyObject *server_half_decide(PyObject *self, PyObject *args) {
    unsigned int topic, kind;
    unsigned long long position;
    if (!PyArg_ParseTuple(args, "IKI", &topic, &position, &kind)) return NULL;
    wr_topic_worker *w = begun(self);
    if (!w) return NULL;
    wr_half_outcome o;
    const int error = wr_half_decide(&w->s, topic, position, kind, &o);
    if (error == ENOENT) Py_RETURN_NONE;
    if (error == EUCLEAN) return PyErr_Format(PyExc_ValueError, "the record of the half message cannot be read");
    if (error) return os_error(error);
    return Py_BuildValue("(IIKK)", o.kind, o.queue, (unsigned long long)o.offset, (unsigned long long)o.by);
}

#define HALVES_AT_ONCE 256

static PyObject *list_halves(const wr_half *halves, uint32_t n) {
    PyObject *list = PyList_New(n);
    for (uint32_t i = 0; list && i < n; i++) {
        PyObject *one = Py_BuildValue("(KIIK)", (unsigned long long)halves[i].position, halves[i].size, halves[i].asked, (unsigned long long)halves[i].due);
        if (one) PyList_SET_ITEM(list, i, one);
        else Py_CLEAR(list);
    }
    return list;
}

/* halves_ask(topic, most): ([(position, size, asked, due)] of those that are to be asked for now, in how many ms the next one is, None: none). */
static PyObject *server_halves_ask(PyObject *self, PyObject *args) {
    unsigned int topic, most;
    if (!PyArg_ParseTuple(args, "II", &topic, &most)) return NULL;
    wr_topic_worker *w = begun(self);
    if (!w) return NULL;
    wr_half halves[HALVES_AT_ONCE];
    uint64_t next;
    const uint32_t n = wr_half_ask(&w->s, topic, halves, most < HALVES_AT_ONCE ? most : HALVES_AT_ONCE, &next);
    PyObject *list = list_halves(halves, n);
    if (!list || next == UINT64_MAX) return list ? Py_BuildValue("(NO)", list, Py_None) : NULL;
    return Py_BuildValue("(NK)", list, (unsigned long long)(next > w->s.wall_ms ? next - w->s.wall_ms : 0));
}

/* halves_of(topic, position, most): [(position, size, asked, due)] of those that are pending, from a position on. */
static PyObject *server_halves_of(PyObject *self, PyObject *args) {
    unsigned int topic, most;
    unsigned long long position;
    if (!PyArg_ParseTuple(args, "IKI", &topic, &position, &most)) return NULL;
    wr_topic_worker *w = begun(self);
    if (!w) return NULL;
    wr_half halves[HALVES_AT_ONCE];
    uint32_t n = 0;
    for (const wr_half *half; n < most && n < HALVES_AT_ONCE && (half = wr_half_from(&w->s.halves, position, topic)); n++) {
        halves[n] = *half;
        position = half->position + 1;
    }
    return list_halves(halves, n);
}

static PyObject *server_begin(PyObject *self, PyObject *arg) {
    unsigned long long epoch = PyLong_AsUnsignedLongLong(arg);
    if (PyErr_Occurred()) return NULL;
    wr_topic_worker *w = not_begun(self);
    if (!w) return NULL;
    int error = wr_topic_worker_begin(w, epoch);
    if (error) return os_error(error);
    Py_RETURN_NONE;
}

static PyObject *server_offer(PyObject *self, PyObject *args) {
    int fd;
    unsigned long long base;
    if (!PyArg_ParseTuple(args, "iK", &fd, &base)) return NULL;
    wr_topic_worker *w = begun(self);
    if (!w) return NULL;
    int error = wr_topic_log_offer(w->s.log, fd, base);
    if (error) return os_error(error);
    w->offered &= ~(uint32_t)WR_TOPIC_EVENT_NEED_FILE;
    Py_RETURN_NONE;
}

static PyObject *server_serve(PyObject *self, PyObject *arg) {
    unsigned long long epoch = PyLong_AsUnsignedLongLong(arg);
    if (PyErr_Occurred()) return NULL;
    wr_topic_worker *w = begun(self);
    if (!w) return NULL;
    if (wr_topic_worker_serve(w, epoch)) return PyErr_NoMemory();
    Py_RETURN_NONE;
}

/* ---- clients ---- */

static PyObject *server_attach(PyObject *self, PyObject *args) {
    unsigned int slot, generation;
    unsigned long long client_epoch;
    PyObject *region;
    if (!PyArg_ParseTuple(args, "IIKO", &slot, &generation, &client_epoch, &region)) return NULL;
    wr_topic_worker *w = begun(self);
    if (!w) return NULL;
    if (slot >= WR_CLIENT_SLOTS) return PyErr_Format(PyExc_ValueError, "there is no slot %u", slot);
    Py_buffer buffer;
    if (PyObject_GetBuffer(region, &buffer, PyBUF_WRITABLE)) return NULL;
    int error = wr_topic_worker_attach(w, slot, generation, client_epoch, buffer.buf, (uint64_t)buffer.len);
    if (error) {
        PyBuffer_Release(&buffer);
        return os_error(error);
    }
    ((server_object *)self)->links[slot] = buffer;
    Py_RETURN_NONE;
}

static PyObject *server_closing(PyObject *self, PyObject *arg) {
    unsigned long slot = PyLong_AsUnsignedLong(arg);
    if (PyErr_Occurred()) return NULL;
    wr_topic_worker *w = worker_of(self);
    if (!w) return NULL;
    wr_topic_closing(&w->s, (uint32_t)slot);
    Py_RETURN_NONE;
}

static PyObject *server_detach(PyObject *self, PyObject *arg) {
    unsigned long slot = PyLong_AsUnsignedLong(arg);
    if (PyErr_Occurred()) return NULL;
    wr_topic_worker *w = begun(self);
    if (!w) return NULL;
    bool done = wr_topic_worker_detach(w, (uint32_t)slot);
    if (done) drop_buffer(&((server_object *)self)->links[slot]);
    return PyBool_FromLong(done);
}

/* (slot, generation, closing, finished, evicted) of each client. */
static PyObject *server_attached(PyObject *self, PyObject *none) {
    (void)none;
    wr_topic_worker *w = worker_of(self);
    PyObject *list = w ? PyList_New(0) : NULL;
    for (uint32_t i = 0; list && i < w->s.links_n; i++) {
        const wr_topic_link *l = w->s.links[w->s.order[i]];
        PyObject *item = Py_BuildValue("IIOOO", l->slot, l->generation, l->closing ? Py_True : Py_False, l->finished ? Py_True : Py_False,
                                       l->evicted ? Py_True : Py_False);
        if (!item || PyList_Append(list, item)) Py_CLEAR(list);
        Py_XDECREF(item);
    }
    return list;
}

static PyObject *server_slots_seen(PyObject *self, PyObject *arg) {
    unsigned long long version = PyLong_AsUnsignedLongLong(arg);
    if (PyErr_Occurred()) return NULL;
    wr_topic_worker *w = worker_of(self);
    if (!w) return NULL;
    w->seen_slots_version = version;
    Py_RETURN_NONE;
}

static PyObject *server_catalog_loaded(PyObject *self, PyObject *arg) {
    unsigned long long version = PyLong_AsUnsignedLongLong(arg);
    if (PyErr_Occurred()) return NULL;
    wr_topic_worker *w = worker_of(self);
    if (!w) return NULL;
    w->seen_catalog_version = version;
    wr_topic_catalog_loaded(&w->s);
    Py_RETURN_NONE;
}

/* ---- requests ---- */

/* Append a record of a system topic: where it ends. None: there is no room now. */
static PyObject *server_append_system(PyObject *self, PyObject *args) {
    const char *topic, *body;
    Py_ssize_t topic_n, body_n;
    if (!PyArg_ParseTuple(args, "y#y#", &topic, &topic_n, &body, &body_n)) return NULL;
    wr_topic_worker *w = begun(self);
    if (!w) return NULL;
    uint64_t end;
    int error = body_n > INT32_MAX ? EMSGSIZE : wr_system_append(&w->s, topic, (uint32_t)topic_n, (const uint8_t *)body, (uint32_t)body_n, &end);
    if (error == EAGAIN) Py_RETURN_NONE;
    if (error) return os_error(error);
    return PyLong_FromUnsignedLongLong(end);
}

/* retain(topic, minima): messages below are gone. retain_log(first): files of the log below may go. A ticket: counters()["retained"], ["saved"]. */
static PyObject *server_retain(PyObject *self, PyObject *args) {
    unsigned int id;
    PyObject *list;
    if (!PyArg_ParseTuple(args, "IO!", &id, &PyList_Type, &list)) return NULL;
    wr_topic_worker *w = begun(self);
    if (!w) return NULL;
    const Py_ssize_t n = PyList_GET_SIZE(list);
    uint64_t *minima = PyMem_Calloc((size_t)n + 1, sizeof *minima), ticket = 0;
    if (!minima) return PyErr_NoMemory();
    for (Py_ssize_t i = 0; i < n && !PyErr_Occurred(); i++) minima[i] = PyLong_AsUnsignedLongLong(PyList_GET_ITEM(list, i));
    int error = PyErr_Occurred() ? 0 : wr_topic_worker_retain(w, id, minima, (uint32_t)n, &ticket);
    PyMem_Free(minima);
    if (PyErr_Occurred()) return NULL;
    if (error == ENOENT) return PyErr_Format(PyExc_KeyError, "no topic %u with %zd queues", id, n);
    if (error) return PyErr_NoMemory();
    return PyLong_FromUnsignedLongLong(ticket);
}

static PyObject *server_retain_log(PyObject *self, PyObject *arg) {
    unsigned long long first = PyLong_AsUnsignedLongLong(arg);
    if (PyErr_Occurred()) return NULL;
    wr_topic_worker *w = begun(self);
    if (!w) return NULL;
    uint64_t ticket;
    if (wr_dispatcher_retain(w->dispatcher, 0, NULL, 0, first, &ticket)) return PyErr_NoMemory();
    return PyLong_FromUnsignedLongLong(ticket);
}

/* The offsets that the next messages of a topic's queues will have. */
static PyObject *server_ends(PyObject *self, PyObject *arg) {
    unsigned long id = PyLong_AsUnsignedLong(arg);
    if (PyErr_Occurred()) return NULL;
    wr_topic_worker *w = begun(self);
    if (!w) return NULL;
    const wr_topic *topic = wr_topic_find(&w->s, (uint32_t)id);
    if (!topic) return PyErr_Format(PyExc_KeyError, "no topic %lu", id);
    PyObject *list = PyList_New(topic->queues_n);
    for (uint32_t i = 0; list && i < topic->queues_n; i++) {
        PyObject *next = PyLong_FromUnsignedLongLong(topic->queues[i].next);
        if (next) PyList_SET_ITEM(list, i, next);
        else Py_CLEAR(list);
    }
    return list;
}

/* tell_group(row, topic, stamp): a group of readers has changed; 0: the row is no group's any more. False: no shared memory for it. */
static PyObject *server_tell_group(PyObject *self, PyObject *args) {
    unsigned int row, topic;
    unsigned long long stamp;
    if (!PyArg_ParseTuple(args, "IIK", &row, &topic, &stamp)) return NULL;
    wr_topic_worker *w = begun(self);
    if (!w) return NULL;
    int error = wr_topic_worker_tell_group(w, row, topic, stamp);
    if (error && error != ENOMEM) return os_error(error);
    return PyBool_FromLong(!error);
}

/* give_member(row, member, group, called): a row is a member's of a group of readers; member 0: it is free. False: no shared memory for it. */
static PyObject *server_give_member(PyObject *self, PyObject *args) {
    unsigned int row;
    unsigned long long member, group, called;
    if (!PyArg_ParseTuple(args, "IKKK", &row, &member, &group, &called)) return NULL;
    wr_topic_worker *w = begun(self);
    if (!w) return NULL;
    int error = wr_topic_worker_give_member(w, row, member, group, called);
    if (error && error != ENOMEM) return os_error(error);
    return PyBool_FromLong(!error);
}

/* member(row): (beats, calls) of a member. */
static PyObject *server_member(PyObject *self, PyObject *args) {
    unsigned int row;
    uint64_t beats, calls;
    if (!PyArg_ParseTuple(args, "I", &row)) return NULL;
    wr_topic_worker *w = begun(self);
    if (!w) return NULL;
    int error = wr_topic_worker_member(w, row, &beats, &calls);
    return error ? os_error(error) : Py_BuildValue("KK", (unsigned long long)beats, (unsigned long long)calls);
}

/* (slot, generation, request) of a client that waits for an answer, or None. */
static PyObject *server_control_next(PyObject *self, PyObject *none) {
    (void)none;
    wr_topic_worker *w = begun(self);
    if (!w) return NULL;
    wr_topic_link *l = wr_topic_control_next(&w->s);
    if (!l) Py_RETURN_NONE;
    wr_command c;
    memcpy((void *)&c, (const void *)wr_view_command(&l->view, w->s.server, l->next), sizeof c);
    const uint8_t *blob = wr_view_blob(&l->view, c.body, c.length); /* NULL: the client has changed its mind; Python refuses it */
    PyObject *request = PyBytes_FromStringAndSize((const char *)blob, blob ? (Py_ssize_t)c.length : 0);
    if (!request) return NULL;
    l->pause = WR_TOPIC_PAUSE_ANSWERING;
    return Py_BuildValue("IIN", l->slot, l->generation, request);
}

static wr_topic_link *answering(const wr_topic_worker *w, unsigned int slot) {
    wr_topic_link *l = slot < WR_CLIENT_SLOTS ? w->s.links[slot] : NULL;
    if (l && l->pause == WR_TOPIC_PAUSE_ANSWERING) return l;
    PyErr_Format(PyExc_ValueError, "slot %u waits for no answer", slot);
    return NULL;
}

/* control_answer(slot, reply, ok, until): when the log is synced up to `until`. */
static PyObject *server_control_answer(PyObject *self, PyObject *args) {
    unsigned int slot;
    const char *reply;
    Py_ssize_t reply_n;
    int ok;
    unsigned long long until;
    if (!PyArg_ParseTuple(args, "Iy#pK", &slot, &reply, &reply_n, &ok, &until)) return NULL;
    wr_topic_worker *w = begun(self);
    wr_topic_link *l = w ? answering(w, slot) : NULL;
    if (!l) return NULL;
    if ((uint64_t)reply_n > w->s.geometry.reply_bytes) return PyErr_Format(PyExc_ValueError, "the answer is too long");
    memcpy(wr_view_reply(&l->view, w->s.server), reply, (size_t)reply_n);
    wr_topic_control_answer(l, ok ? WR_RESULT_OK : WR_RESULT_ERROR, (uint32_t)reply_n, until);
    Py_RETURN_NONE;
}

/* Put a request back: control_next gives it again. */
static PyObject *server_control_later(PyObject *self, PyObject *arg) {
    unsigned long slot = PyLong_AsUnsignedLong(arg);
    if (PyErr_Occurred()) return NULL;
    wr_topic_worker *w = begun(self);
    wr_topic_link *l = w ? answering(w, (unsigned int)slot) : NULL;
    if (!l) return NULL;
    l->pause = WR_TOPIC_PAUSE_CONTROL;
    Py_RETURN_NONE;
}

/* ---- life ---- */

static PyObject *server_run(PyObject *self, PyObject *args) {
    unsigned long long max_ns;
    int until_event = 1;
    if (!PyArg_ParseTuple(args, "K|p", &max_ns, &until_event)) return NULL;
    wr_topic_worker *w = begun(self);
    if (!w) return NULL;
    uint32_t events;
    ((server_object *)self)->running = true;
    Py_BEGIN_ALLOW_THREADS
    events = wr_topic_run(w, max_ns, until_event);
    Py_END_ALLOW_THREADS
    ((server_object *)self)->running = false;
    return PyLong_FromUnsignedLong(events);
}

/* The life of a thread. It began before anybody may stop it: whoever starts it has seen wr_topic_worker_begin. */
static PyObject *live(PyObject *self, bool dispatches) {
    server_object *o = (server_object *)self;
    if (!o->worker || !o->worker->dispatcher) {
        PyErr_SetString(PyExc_ValueError, "the topic server is closed, or has not begun");
        return NULL;
    }
    wr_topic_worker *w = o->worker;
    Py_INCREF(self);
    atomic_fetch_add(&o->threads, 1);
    Py_BEGIN_ALLOW_THREADS
    if (dispatches) wr_dispatcher_run(w->dispatcher);
    else wr_topic_log_commit_run(w->s.log, &w->s.me->sleeping);
    Py_END_ALLOW_THREADS
    atomic_fetch_sub(&o->threads, 1);
    Py_DECREF(self);
    Py_RETURN_NONE;
}

static PyObject *server_commit_run(PyObject *self, PyObject *none) {
    (void)none;
    return live(self, false);
}

static PyObject *server_dispatch_run(PyObject *self, PyObject *none) {
    (void)none;
    return live(self, true);
}

static PyObject *server_stop_log(PyObject *self, PyObject *none) {
    (void)none;
    wr_topic_worker *w = worker_of(self);
    if (!w) return NULL;
    if (w->s.log) wr_topic_log_stop(w->s.log);
    Py_RETURN_NONE;
}

static PyObject *server_stop_dispatch(PyObject *self, PyObject *none) {
    (void)none;
    wr_topic_worker *w = worker_of(self);
    if (!w) return NULL;
    if (w->dispatcher) wr_dispatcher_stop(w->dispatcher);
    Py_RETURN_NONE;
}

/* Callable from any thread and from a signal handler. */
static PyObject *server_request_stop(PyObject *self, PyObject *none) {
    (void)none;
    server_object *o = (server_object *)self;
    if (o->worker) wr_topic_request_stop(o->worker);
    Py_RETURN_NONE;
}

/* Callable from any thread. */
static PyObject *server_kick(PyObject *self, PyObject *none) {
    (void)none;
    server_object *o = (server_object *)self;
    if (o->worker) wr_topic_kick(o->worker);
    Py_RETURN_NONE;
}

static PyObject *server_pending(PyObject *self, PyObject *args) {
    unsigned int bits;
    int on;
    if (!PyArg_ParseTuple(args, "Ip", &bits, &on)) return NULL;
    wr_topic_worker *w = worker_of(self);
    if (!w) return NULL;
    w->offered = on ? w->offered | bits : w->offered & ~bits;
    Py_RETURN_NONE;
}

/* Commit and sync all that was executed; false: not within the time, or the log has failed. */
static PyObject *server_sync(PyObject *self, PyObject *arg) {
    unsigned long long timeout_ns = PyLong_AsUnsignedLongLong(arg);
    if (PyErr_Occurred()) return NULL;
    wr_topic_worker *w = begun(self);
    if (!w) return NULL;
    int error;
    ((server_object *)self)->running = true;
    Py_BEGIN_ALLOW_THREADS
    error = wr_topic_sync(&w->s, timeout_ns);
    Py_END_ALLOW_THREADS
    ((server_object *)self)->running = false;
    return PyBool_FromLong(!error);
}

static PyObject *server_counters(PyObject *self, PyObject *none) {
    (void)none;
    wr_topic_worker *w = begun(self);
    if (!w) return NULL;
    const wr_topic_log_state *state = wr_topic_log_look(w->s.log);
    const wr_dispatcher_state found = wr_dispatcher_look(w->dispatcher);
    return Py_BuildValue("{sKsKsKsKsKsKsisisKsisisKsKsKsKsisKsKsKsKsKsKsK}", "records", (unsigned long long)w->s.records_n, "messages",
                         (unsigned long long)(w->messages_n + w->s.records_n), "append", (unsigned long long)state->append, "sealed",
                         (unsigned long long)state->sealed, "number", (unsigned long long)state->number, "synced",
                         (unsigned long long)state->synced, "failed", state->failed, "no_space", state->no_space, "dispatched",
                         (unsigned long long)found.position, "dispatch_trouble", found.trouble, "dispatch_failed", found.failed, "checkpoints",
                         (unsigned long long)found.checkpoints_n, "saved_position", (unsigned long long)found.saved_position, "retained",
                         (unsigned long long)found.retained, "saved", (unsigned long long)found.saved, "clean_error", found.clean_error, "delayed", (unsigned long long)w->s.pending.n,
                         "came", (unsigned long long)w->s.came_n, "unreadable", (unsigned long long)w->s.unreadable_n, "unreadable_at",
                         (unsigned long long)w->s.unreadable_at, "halves", (unsigned long long)wr_halves_pending(&w->s.halves), "put_aside",
                         (unsigned long long)w->s.put_aside_n, "put_aside_at", (unsigned long long)w->s.put_aside_at);
}

/* The region of rows of a server that is dead: nobody sleeps on it any longer. */
static PyObject *server_wake_all(PyObject *none, PyObject *arg) {
    (void)none;
    Py_buffer rows;
    if (PyObject_GetBuffer(arg, &rows, PyBUF_WRITABLE)) return NULL;
    const bool whole = (size_t)rows.len >= sizeof(wr_topic_rows);
    if (whole) wr_topic_rows_wake_all(rows.buf);
    PyBuffer_Release(&rows);
    if (!whole) return PyErr_Format(PyExc_ValueError, "these are no rows");
    Py_RETURN_NONE;
}

#define M(name, flags) {#name, (PyCFunction)server_##name, flags, NULL}
static PyMethodDef server_methods[] = {
    M(close, METH_NOARGS), M(declare, METH_VARARGS), M(drop, METH_O), M(look, METH_O), M(recover, METH_O), M(settle, METH_NOARGS), M(begin, METH_O),
    M(offer, METH_VARARGS), M(serve, METH_O), M(attach, METH_VARARGS), M(closing, METH_O), M(detach, METH_O), M(attached, METH_NOARGS),
    M(slots_seen, METH_O), M(catalog_loaded, METH_O), M(run, METH_VARARGS), M(commit_run, METH_NOARGS), M(dispatch_run, METH_NOARGS),
    M(stop_log, METH_NOARGS), M(stop_dispatch, METH_NOARGS), M(request_stop, METH_NOARGS), M(kick, METH_NOARGS), M(pending, METH_VARARGS),
    M(sync, METH_O), M(counters, METH_NOARGS), M(system_records, METH_VARARGS), M(append_system, METH_VARARGS), M(ends, METH_O), M(tell_group, METH_VARARGS),
    M(give_member, METH_VARARGS), M(member, METH_VARARGS),
    M(retain, METH_VARARGS), M(retain_log, METH_O),
    M(control_next, METH_NOARGS), M(control_answer, METH_VARARGS), M(control_later, METH_O), M(later_read, METH_O),
    M(later_walk, METH_VARARGS), M(later_copy, METH_NOARGS), M(later_lowest, METH_NOARGS), M(later_hold, METH_NOARGS),
    M(end_links, METH_NOARGS), M(behind, METH_NOARGS), M(close_links, METH_NOARGS),
    M(halves_read, METH_O), M(halves_walk, METH_VARARGS), M(halves_snapshot, METH_O), M(halves_lowest, METH_NOARGS),
    M(half_decide, METH_VARARGS), M(halves_ask, METH_VARARGS), M(halves_of, METH_VARARGS),
    {"later_encode", server_later_encode, METH_VARARGS | METH_STATIC, NULL}, {"wake_all", server_wake_all, METH_O | METH_STATIC, NULL}, {NULL, NULL, 0, NULL}};
#undef M

static PyTypeObject server_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "warren.engine._core.TopicServer",
    .tp_basicsize = sizeof(server_object),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_doc = "Log, links and dispatch of the topic worker (engine/topics/worker.h).",
    .tp_new = server_new,
    .tp_dealloc = server_dealloc,
    .tp_methods = server_methods,
};

int wr_bind_topic_server(PyObject *module) {
    if (PyType_Ready(&server_type)) return -1;
#define EVENT(name) {"TOPIC_EVENT_" #name, WR_TOPIC_EVENT_##name}
    static const struct {
        const char *name;
        long value;
    } events[] = {EVENT(NEED_FILE), EVENT(SLOTS_CHANGED), EVENT(CATALOG_CHANGED), EVENT(LOG_FAILED), EVENT(DISPATCH_FAILED),
                  EVENT(FINISHED),  EVENT(STOP),          EVENT(KICK),            EVENT(CONTROL),
                  EVENT(TIMER)};
#undef EVENT
    for (size_t i = 0; i < sizeof events / sizeof *events; i++)
        if (PyModule_AddIntConstant(module, events[i].name, events[i].value)) return -1;
    return PyModule_AddObjectRef(module, "TopicServer", (PyObject *)&server_type);
}
