/* QueueEngine for Python: policy stays there (engine/queues/service.py), the loop is wr_queue_run. Thin: arguments in, buffers pinned, GIL
 * released around what blocks. All methods but commit_run are called by the thread that calls run. */
#include "binding/arguments.h"
#include "kernel/delivery.h"
#include "queues/browse.h"
#include "queues/check.h"
#include "queues/claims.h"
#include "queues/closing.h"
#include "queues/consumers.h"
#include "queues/drop.h"
#include "queues/engine.h"
#include "queues/exclusive.h"
#include "queues/flush.h"
#include "queues/journal.h"
#include "queues/keys.h"
#include "queues/large.h"
#include "queues/large_missing.h"
#include "queues/levels.h"
#include "queues/links.h"
#include "queues/loop.h"
#include "queues/overdue.h"
#include "queues/owed.h"
#include "queues/pages.h"
#include "queues/registry.h"
#include "queues/replay.h"
#include "queues/rows.h"
#include "queues/segment_codec.h"
#include "queues/segments.h"
#include "queues/statistics.h"
#include "queues/store_side.h"
#include "queues/terms.h"
#include <structmember.h>

typedef struct {
    PyObject_HEAD
    wr_queue_engine *engine;
    Py_buffer super, images, timages, stats, region;
    Py_buffer links[WR_CLIENT_SLOTS];
    Py_buffer directories[2];
    _Atomic uint32_t committers; /* threads inside commit_run */
    bool running;
} engine_object;

static int get_buffer(PyObject *source, Py_buffer *view) { return PyObject_GetBuffer(source, view, PyBUF_WRITABLE); }

static wr_queue_engine *engine_of(PyObject *self) {
    engine_object *o = (engine_object *)self;
    if (!o->engine) {
        PyErr_SetString(PyExc_ValueError, "the queue engine is closed");
        return NULL;
    }
    if (o->running) {
        PyErr_SetString(PyExc_RuntimeError, "the queue engine is running: only its own thread may call it, between two runs");
        return NULL;
    }
    return o->engine;
}

static wr_queue *queue_of(wr_queue_engine *e, unsigned int id) {
    wr_queue *q = wr_queue_find(e, id);
    if (!q) PyErr_Format(PyExc_KeyError, "no queue %u in this worker", id);
    return q;
}

static void release_all(engine_object *o) {
    Py_buffer *all[] = {&o->super, &o->images, &o->timages, &o->stats, &o->region, &o->directories[0], &o->directories[1]};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        drop_buffer(all[i]);
    for (uint32_t i = 0; i < WR_CLIENT_SLOTS; i++)
        drop_buffer(&o->links[i]);
}

static PyObject *engine_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"superblock", "server", "images", "timages", "stats", "region", "slot", "generation", "client_epoch",
                            "images_n", "file_bytes", "spin_us", "tick_ms", "commit_bytes", "journal_files_max", NULL};
    PyObject *super, *images, *timages, *stats, *region;
    unsigned int server, slot, generation, images_n, journal_files_max;
    unsigned long long client_epoch, file_bytes, spin_us, tick_ms, commit_bytes;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OIOOOOIIKIKKKKI", names, &super, &server, &images, &timages, &stats, &region,
                                     &slot, &generation, &client_epoch, &images_n, &file_bytes, &spin_us, &tick_ms, &commit_bytes,
                                     &journal_files_max))
        return NULL;
    if (server < WR_SERVER_WORKER_FIRST || server >= WR_SERVERS_MAX) {
        PyErr_SetString(PyExc_ValueError, "server must be the server index of a queue worker");
        return NULL;
    }
    engine_object *o = (engine_object *)type->tp_alloc(type, 0);
    if (!o) return NULL;
    if (get_buffer(super, &o->super) || get_buffer(images, &o->images) || get_buffer(timages, &o->timages) ||
        get_buffer(stats, &o->stats) || (region != Py_None && get_buffer(region, &o->region))) {
        Py_DECREF(o);
        return NULL;
    }
    if (o->super.len < WR_SUPERBLOCK_BYTES || o->images.len != o->timages.len) {
        PyErr_SetString(PyExc_ValueError, "superblock too short, or image regions of two sizes");
        Py_DECREF(o);
        return NULL;
    }
    wr_queue_options options = {.super = o->super.buf, .server = server, .images = o->images.buf, .transient_images = o->timages.buf,
                                .images_bytes = (uint64_t)o->images.len, .images_n = images_n, .file_bytes = file_bytes,
                                .stats = o->stats.buf, .stats_rows = (uint32_t)((size_t)o->stats.len / sizeof(wr_queue_stats)),
                                .region = o->region.obj ? o->region.buf : NULL, .region_bytes = (uint64_t)o->region.len,
                                .slot = slot, .generation = generation, .client_epoch = client_epoch, .spin_ns = spin_us * 1000,
                                .tick_ns = tick_ms * 1000000, .commit_bytes = commit_bytes, .journal_files_max = journal_files_max};
    o->engine = wr_queue_new(&options);
    if (!o->engine) {
        Py_DECREF(o);
        return os_error(errno);
    }
    return (PyObject *)o;
}

static void engine_dealloc(PyObject *self) {
    engine_object *o = (engine_object *)self;
    /* A committer keeps a reference to the object while it runs, so there is none now. */
    if (o->engine) wr_queue_free(o->engine);
    release_all(o);
    Py_TYPE(self)->tp_free(self);
}

static PyObject *engine_close(PyObject *self, PyObject *none) {
    (void)none;
    engine_object *o = (engine_object *)self;
    if (!o->engine) Py_RETURN_NONE;
    if (!engine_of(self)) return NULL;
    if (atomic_load(&o->committers)) {
        PyErr_SetString(PyExc_RuntimeError, "stop_logs and wait for the committer threads first");
        return NULL;
    }
    wr_queue_free(o->engine);
    o->engine = NULL;
    release_all(o);
    Py_RETURN_NONE;
}

static PyObject *engine_run(PyObject *self, PyObject *args) {
    unsigned long long max_ns;
    int until_event = 1;
    if (!PyArg_ParseTuple(args, "K|p", &max_ns, &until_event)) return NULL;
    wr_queue_engine *e = engine_of(self);
    if (!e) return NULL;
    uint32_t events;
    ((engine_object *)self)->running = true;
    Py_BEGIN_ALLOW_THREADS
    events = wr_queue_run(e, max_ns, until_event);
    Py_END_ALLOW_THREADS
    ((engine_object *)self)->running = false;
    return PyLong_FromUnsignedLong(events);
}

static PyObject *engine_commit_run(PyObject *self, PyObject *args) {
    int transient;
    if (!PyArg_ParseTuple(args, "p", &transient)) return NULL;
    engine_object *o = (engine_object *)self;
    if (!o->engine) {
        PyErr_SetString(PyExc_ValueError, "the queue engine is closed");
        return NULL;
    }
    wr_log *log = transient ? o->engine->transient_log : o->engine->log;
    _Atomic uint32_t *bell = &o->engine->me->sleeping;
    Py_INCREF(self);
    atomic_fetch_add(&o->committers, 1);
    Py_BEGIN_ALLOW_THREADS
    wr_log_commit_run(log, bell);
    Py_END_ALLOW_THREADS
    atomic_fetch_sub(&o->committers, 1);
    Py_DECREF(self);
    Py_RETURN_NONE;
}

static PyObject *engine_stop_logs(PyObject *self, PyObject *none) {
    (void)none;
    wr_queue_engine *e = engine_of(self);
    if (!e) return NULL;
    wr_log_stop(e->log);
    wr_log_stop(e->transient_log);
    Py_RETURN_NONE;
}

/* Callable from any thread and from a signal handler. */
static PyObject *engine_request_stop(PyObject *self, PyObject *none) {
    (void)none;
    engine_object *o = (engine_object *)self;
    if (o->engine) {
        atomic_store(&o->engine->stop, 1);
        wr_bell_ring(&o->engine->me->sleeping);
    }
    Py_RETURN_NONE;
}

/* Callable from any thread: the running or next run returns with KICK. */
static PyObject *engine_kick(PyObject *self, PyObject *none) {
    (void)none;
    engine_object *o = (engine_object *)self;
    if (o->engine) {
        atomic_store(&o->engine->kick, 1);
        wr_bell_ring(&o->engine->me->sleeping);
    }
    Py_RETURN_NONE;
}

static PyObject *engine_offer(PyObject *self, PyObject *args) {
    int transient, fd;
    unsigned int file;
    unsigned long long salt;
    Py_buffer header;
    if (!PyArg_ParseTuple(args, "piIKy*", &transient, &fd, &file, &salt, &header)) return NULL;
    wr_queue_engine *e = engine_of(self);
    int error = EINVAL;
    if (e && header.len == WR_FILE_HEADER_BYTES) error = wr_log_offer(transient ? e->transient_log : e->log, fd, file, salt, header.buf);
    PyBuffer_Release(&header);
    if (!e) return NULL;
    if (error) return os_error(error);
    e->offered &= ~(transient ? (uint32_t)WR_QUEUE_EVENT_NEED_TRANSIENT_FILE : (uint32_t)WR_QUEUE_EVENT_NEED_FILE);
    Py_RETURN_NONE;
}

/* Rows beyond `memory_bytes` leave memory and come back from this folder of segments, those of transient messages from the spill file. */
static PyObject *engine_open_pages(PyObject *self, PyObject *args) {
    unsigned long long node_id, memory_bytes;
    int segments, spill;
    if (!PyArg_ParseTuple(args, "iiKK", &segments, &spill, &node_id, &memory_bytes)) return NULL;
    wr_queue_engine *e = engine_of(self);
    if (!e) return NULL;
    int error = wr_pages_open(e, segments, spill, node_id, memory_bytes);
    if (error) return os_error(error);
    Py_RETURN_NONE;
}

/* Page a chunk out, wherever it is (tests). False: its rows have to stay. */
static PyObject *engine_page_out(PyObject *self, PyObject *args) {
    unsigned int id;
    unsigned long long number;
    if (!PyArg_ParseTuple(args, "IK", &id, &number)) return NULL;
    wr_queue_engine *e = engine_of(self);
    wr_queue *q = e ? queue_of(e, id) : NULL;
    if (!q) return NULL;
    return PyBool_FromLong(wr_page_out(e, q, number));
}

/* Asserts the invariants of every queue: a process that violates them ends. */
static PyObject *engine_check(PyObject *self, PyObject *none) {
    (void)none;
    wr_queue_engine *e = engine_of(self);
    if (!e) return NULL;
    for (uint64_t i = 0; i < e->queues.size; i++)
        if (e->queues.rows[i].used) wr_queue_check(e, (const wr_queue *)(uintptr_t)e->queues.rows[i].value);
    Py_RETURN_NONE;
}

static PyObject *engine_begin_journal(PyObject *self, PyObject *nothing) {
    (void)nothing;
    wr_queue_engine *e = engine_of(self);
    if (!e) return NULL;
    int error = wr_journal_begin(e);
    if (error) return os_error(error);
    Py_RETURN_NONE;
}

static PyObject *engine_pending(PyObject *self, PyObject *args) {
    unsigned int bits;
    int on;
    if (!PyArg_ParseTuple(args, "Ip", &bits, &on)) return NULL;
    wr_queue_engine *e = engine_of(self);
    if (!e) return NULL;
    e->offered = on ? e->offered | bits : e->offered & ~bits;
    Py_RETURN_NONE;
}

/* ---- queues ---- */

static PyObject *engine_declare(PyObject *self, PyObject *args) {
    unsigned int id;
    int durable, past = 0, letters = 0;
    if (!PyArg_ParseTuple(args, "Ip|pp", &id, &durable, &past, &letters)) return NULL;
    wr_queue_engine *e = engine_of(self);
    if (!e) return NULL;
    wr_queue *q = wr_queue_declare(e, id, durable);
    if (!q) return PyErr_NoMemory();
    q->past = past;
    q->letters = letters;
    Py_RETURN_NONE;
}

/* A limit that may be 0; None: there is none. False: an exception is set. */
static bool limit_of(PyObject *given, uint64_t most, bool *has, uint64_t *limit) {
    *has = given && given != Py_None;
    if (!*has) return true;
    *limit = PyLong_AsUnsignedLongLong(given);
    if (*limit == (uint64_t)-1 && PyErr_Occurred()) return false;
    if (*limit > most) PyErr_Format(PyExc_OverflowError, "a limit is %llu at most", (unsigned long long)most);
    return *limit <= most;
}

/* Once, before anything is in the queue. */
static PyObject *engine_set_policy(PyObject *self, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"queue", "message_ttl_ms", "max_length", "max_length_bytes", "deduplication_ms", "delivery_limit",
                            "dead_letters", "max_priority", "reject_publish", "single_active", "refused_die", NULL};
    unsigned int id, dead_letters = 0, max_priority = 0;
    unsigned long long deduplication_ms = 0;
    PyObject *message_ttl = NULL, *max_length = NULL, *max_bytes = NULL, *delivery_limit = NULL;
    wr_policy_options options = {0};
    uint64_t deliveries = 0;
    int reject_publish = 0, single_active = 0, refused_die = 0;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "I|$OOOKOIIppp", names, &id, &message_ttl, &max_length, &max_bytes,
                                     &deduplication_ms, &delivery_limit, &dead_letters, &max_priority, &reject_publish, &single_active,
                                     &refused_die))
        return NULL;
    wr_queue_engine *e = engine_of(self);
    wr_queue *q = e ? queue_of(e, id) : NULL;
    if (!q) return NULL;
    if (deduplication_ms >> WR_TIME_BITS || max_priority > WR_PRIORITY_MAX || dead_letters == id)
        return PyErr_Format(PyExc_ValueError, "queue %u: no policy has such a time, priority or companion", id);
    if (!limit_of(message_ttl, (1ull << WR_TIME_BITS) - 1, &options.has_message_ttl, &options.message_ttl_ms) ||
        !limit_of(max_length, UINT64_MAX, &options.has_max_length, &options.max_length) ||
        !limit_of(max_bytes, UINT64_MAX, &options.has_max_bytes, &options.max_length_bytes) ||
        !limit_of(delivery_limit, UINT32_MAX, &options.has_delivery_limit, &deliveries))
        return NULL;
    options.delivery_limit = (uint32_t)deliveries;
    options.deduplication_ms = deduplication_ms;
    options.dead_letters = dead_letters;
    options.max_priority = max_priority;
    options.reject_publish = reject_publish;
    options.single_active = single_active;
    options.refused_die = refused_die && dead_letters;
    if (q->next && q->ready_n + q->unacked_n)
        return PyErr_Format(PyExc_ValueError, "queue %u is in use: its policy is given when it is declared", id);
    wr_policy_set(q, &options);
    Py_RETURN_NONE;
}

/* set_ack_timeout(queue, ms): once, before anything is delivered from it. */
static PyObject *engine_set_ack_timeout(PyObject *self, PyObject *args) {
    unsigned int id;
    unsigned long long ms;
    if (!PyArg_ParseTuple(args, "IK", &id, &ms)) return NULL;
    wr_queue_engine *e = engine_of(self);
    wr_queue *q = e ? queue_of(e, id) : NULL;
    if (!q) return NULL;
    if (!ms || ms >> WR_TIME_BITS) return PyErr_Format(PyExc_ValueError, "queue %u: no ack timeout is that long", id);
    if (q->ack_timeout_ns || q->unacked_n)
        return PyErr_Format(PyExc_ValueError, "queue %u is in use: its ack timeout is given when it is declared", id);
    wr_overdue_watch(e, q, ms);
    Py_RETURN_NONE;
}

/* (delayed, expired, dropped, dead_lettered, refused, duplicates): the counts since the start but the first. */
static PyObject *engine_policy_counts(PyObject *self, PyObject *arg) {
    wr_queue_engine *e = engine_of(self);
    unsigned long id = PyLong_AsUnsignedLong(arg);
    if (!e || PyErr_Occurred()) return NULL;
    wr_queue *q = queue_of(e, (unsigned int)id);
    if (!q) return NULL;
    wr_policy none = {0};
    const wr_policy *p = q->policy ? q->policy : &none;
    return Py_BuildValue("KKKKKK", (unsigned long long)p->delayed_n, (unsigned long long)p->expired_n, (unsigned long long)p->dropped_n,
                         (unsigned long long)p->dead_lettered_n, (unsigned long long)p->refused_n, (unsigned long long)p->duplicates_n);
}

static PyObject *engine_drop(PyObject *self, PyObject *arg) {
    wr_queue_engine *e = engine_of(self);
    unsigned long id = PyLong_AsUnsignedLong(arg);
    if (!e || PyErr_Occurred()) return NULL;
    wr_queue *q = queue_of(e, (unsigned int)id);
    if (!q) return NULL;
    wr_queue_drop(e, q);
    Py_RETURN_NONE;
}

static PyObject *engine_queues(PyObject *self, PyObject *none) {
    (void)none;
    wr_queue_engine *e = engine_of(self);
    if (!e) return NULL;
    PyObject *list = PyList_New(0);
    for (uint64_t i = 0; list && i < e->queues.size; i++) {
        if (!e->queues.rows[i].used || wr_is_reply_queue((uint32_t)e->queues.rows[i].a)) continue;
        PyObject *id = PyLong_FromUnsignedLongLong(e->queues.rows[i].a);
        if (!id || PyList_Append(list, id)) Py_CLEAR(list);
        Py_XDECREF(id);
    }
    return list;
}

/* Queues that only frames of the past name: (id, queue whose claims they hold or 0, entries). */
static PyObject *engine_past_queues(PyObject *self, PyObject *none) {
    (void)none;
    wr_queue_engine *e = engine_of(self);
    if (!e) return NULL;
    PyObject *list = PyList_New(0);
    for (uint64_t i = 0; list && i < e->queues.size; i++) {
        if (!e->queues.rows[i].used) continue;
        const wr_queue *q = (const wr_queue *)(uintptr_t)e->queues.rows[i].value;
        if (!q->past) continue;
        PyObject *row = Py_BuildValue("IIK", q->id, q->claims_of, (unsigned long long)(q->ready_n + q->unacked_n));
        if (!row || PyList_Append(list, row)) Py_CLEAR(list);
        Py_XDECREF(row);
    }
    return list;
}

/* ---- clients ---- */

static PyObject *engine_attach(PyObject *self, PyObject *args) {
    unsigned int slot, generation;
    unsigned long long epoch;
    PyObject *source;
    if (!PyArg_ParseTuple(args, "IIKO", &slot, &generation, &epoch, &source)) return NULL;
    wr_queue_engine *e = engine_of(self);
    if (!e) return NULL;
    if (slot >= WR_CLIENT_SLOTS || e->links[slot]) return os_error(EEXIST);
    Py_buffer *view = &((engine_object *)self)->links[slot];
    if (get_buffer(source, view)) return NULL;
    int error = wr_queue_attach(e, slot, generation, epoch, view->buf, (uint64_t)view->len);
    if (error) {
        PyBuffer_Release(view);
        return os_error(error);
    }
    Py_RETURN_NONE;
}

static PyObject *engine_closing(PyObject *self, PyObject *arg) {
    wr_queue_engine *e = engine_of(self);
    unsigned long slot = PyLong_AsUnsignedLong(arg);
    if (!e || PyErr_Occurred()) return NULL;
    wr_queue_closing(e, (uint32_t)slot);
    Py_RETURN_NONE;
}

static PyObject *engine_detach(PyObject *self, PyObject *arg) {
    wr_queue_engine *e = engine_of(self);
    unsigned long slot = PyLong_AsUnsignedLong(arg);
    if (!e || PyErr_Occurred()) return NULL;
    if (!wr_queue_detach(e, (uint32_t)slot)) Py_RETURN_FALSE;
    PyBuffer_Release(&((engine_object *)self)->links[slot]);
    Py_RETURN_TRUE;
}

static PyObject *engine_attached(PyObject *self, PyObject *none) {
    (void)none;
    wr_queue_engine *e = engine_of(self);
    if (!e) return NULL;
    PyObject *list = PyList_New(e->links_n);
    for (uint32_t i = 0; list && i < e->links_n; i++) {
        const wr_qlink *l = e->links[e->order[i]];
        PyObject *row = Py_BuildValue("IINNN", l->slot, l->generation, PyBool_FromLong(l->closing), PyBool_FromLong(l->finished),
                                      PyBool_FromLong(l->evicted));
        if (!row) Py_CLEAR(list);
        else PyList_SET_ITEM(list, i, row);
    }
    return list;
}

static PyObject *engine_slots_seen(PyObject *self, PyObject *arg) {
    wr_queue_engine *e = engine_of(self);
    unsigned long long version = PyLong_AsUnsignedLongLong(arg);
    if (!e || PyErr_Occurred()) return NULL;
    e->seen_slots_version = version;
    Py_RETURN_NONE;
}

static PyObject *engine_catalog_loaded(PyObject *self, PyObject *arg) {
    wr_queue_engine *e = engine_of(self);
    unsigned long long version = PyLong_AsUnsignedLongLong(arg);
    if (!e || PyErr_Occurred()) return NULL;
    wr_queue_catalog_loaded(e, version);
    Py_RETURN_NONE;
}

static PyObject *engine_begin(PyObject *self, PyObject *arg) {
    wr_queue_engine *e = engine_of(self);
    unsigned long long epoch = PyLong_AsUnsignedLongLong(arg);
    if (!e || PyErr_Occurred()) return NULL;
    wr_queue_begin(e, epoch);
    Py_RETURN_NONE;
}

static PyObject *engine_freeze(PyObject *self, PyObject *arg) {
    wr_queue_engine *e = engine_of(self);
    int on = PyObject_IsTrue(arg);
    if (!e || on < 0) return NULL;
    e->frozen = on;
    Py_RETURN_NONE;
}

static PyObject *engine_end_links(PyObject *self, PyObject *none) {
    (void)none;
    wr_queue_engine *e = engine_of(self);
    if (!e) return NULL;
    wr_queue_end_links(e);
    Py_RETURN_NONE;
}

static PyObject *engine_behind(PyObject *self, PyObject *none) {
    (void)none;
    wr_queue_engine *e = engine_of(self);
    return e ? PyLong_FromUnsignedLongLong(wr_queue_behind(e)) : NULL;
}

static PyObject *engine_close_links(PyObject *self, PyObject *none) {
    (void)none;
    wr_queue_engine *e = engine_of(self);
    return e ? PyLong_FromUnsignedLong(wr_queue_close_links(e)) : NULL;
}

/* ---- stores ---- */

static PyObject *engine_set_store(PyObject *self, PyObject *args) {
    unsigned int store;
    unsigned long long epoch;
    PyObject *source;
    if (!PyArg_ParseTuple(args, "IKO", &store, &epoch, &source)) return NULL;
    wr_queue_engine *e = engine_of(self);
    if (!e) return NULL;
    if (store > 1 || !e->has_port) return PyErr_Format(PyExc_ValueError, "no store %u, or no client region", store);
    engine_object *o = (engine_object *)self;
    Py_buffer view = {0};
    if (source != Py_None && get_buffer(source, &view)) return NULL;
    if (view.obj && (uint64_t)view.len < (uint64_t)e->o.super->directory_rows * 8) {
        PyBuffer_Release(&view);
        return PyErr_Format(PyExc_ValueError, "the directory is too short");
    }
    if (o->directories[store].obj) PyBuffer_Release(&o->directories[store]);
    o->directories[store] = view;
    wr_qstore *s = &e->stores[store];
    s->open = view.obj != NULL;
    s->client.directory = view.buf;
    s->client.directory_rows = e->o.super->directory_rows;
    if (s->open && s->epoch != epoch) {
        s->epoch = epoch;
        s->phase = WR_RESYNC_WANTED;
        s->resynced = false;
    }
    Py_RETURN_NONE;
}

/* ---- control ---- */

static PyObject *engine_control_next(PyObject *self, PyObject *none) {
    (void)none;
    wr_queue_engine *e = engine_of(self);
    if (!e) return NULL;
    for (uint32_t i = 0; i < e->links_n; i++) {
        wr_qlink *l = e->links[e->order[i]];
        if (l->pause != WR_PAUSE_CONTROL) continue;
        wr_command c;
        memcpy((void *)&c, (const void *)wr_view_command(&l->view, e->o.server, l->next), sizeof c);
        const uint8_t *blob = wr_view_blob(&l->view, c.body, c.length);
        PyObject *request = PyBytes_FromStringAndSize((const char *)blob, blob ? (Py_ssize_t)c.length : 0);
        if (!request) return NULL;
        l->pause = WR_PAUSE_ANSWERING;
        return Py_BuildValue("IKKNK", l->slot, (unsigned long long)l->client_epoch, (unsigned long long)(l->next + 1), request,
                             (unsigned long long)l->high);
    }
    Py_RETURN_NONE;
}

static PyObject *engine_control_answer(PyObject *self, PyObject *args) {
    unsigned int slot;
    int ok, durable;
    Py_buffer reply;
    if (!PyArg_ParseTuple(args, "Iy*pp", &slot, &reply, &ok, &durable)) return NULL;
    wr_queue_engine *e = engine_of(self);
    wr_qlink *l = e && slot < WR_CLIENT_SLOTS ? e->links[slot] : NULL;
    bool fits = l && (uint64_t)reply.len <= e->geometry.reply_bytes && l->pause == WR_PAUSE_ANSWERING;
    if (fits) {
        memcpy(wr_view_reply(&l->view, e->o.server), reply.buf, (size_t)reply.len);
        wr_queue_control_answer(e, l, ok ? WR_RESULT_OK : WR_RESULT_ERROR, (uint32_t)reply.len, durable);
    }
    PyBuffer_Release(&reply);
    if (!e) return NULL;
    if (!fits) return PyErr_Format(PyExc_ValueError, "slot %u waits for no answer, or the answer is too long", slot);
    Py_RETURN_NONE;
}

/* Put the request back: it is answered in a later round. */
static PyObject *engine_control_later(PyObject *self, PyObject *arg) {
    wr_queue_engine *e = engine_of(self);
    unsigned long slot = PyLong_AsUnsignedLong(arg);
    if (!e || PyErr_Occurred()) return NULL;
    wr_qlink *l = slot < WR_CLIENT_SLOTS ? e->links[slot] : NULL;
    if (l && l->pause == WR_PAUSE_ANSWERING) l->pause = WR_PAUSE_CONTROL;
    Py_RETURN_NONE;
}

/* Where bodies and positions are: (ready, unacked, alpha, beta, gamma, delta, bytes, base, next). */
static PyObject *engine_stats(PyObject *self, PyObject *arg) {
    wr_queue_engine *e = engine_of(self);
    unsigned long id = PyLong_AsUnsignedLong(arg);
    if (!e || PyErr_Occurred()) return NULL;
    wr_queue *q = queue_of(e, (unsigned int)id);
    if (!q) return NULL;
    uint64_t alpha, beta, gamma, delta;
    wr_queue_states(q, &alpha, &beta, &gamma, &delta);
    return Py_BuildValue("KKKKKKKKK", (unsigned long long)q->ready_n, (unsigned long long)q->unacked_n, (unsigned long long)alpha,
                         (unsigned long long)beta, (unsigned long long)gamma, (unsigned long long)delta, (unsigned long long)q->bytes,
                         (unsigned long long)wr_queue_base(q), (unsigned long long)q->next);
}

/* Messages that nobody has received: ready, or delivered ahead and not handed out yet. */
static PyObject *engine_waiting(PyObject *self, PyObject *arg) {
    wr_queue_engine *e = engine_of(self);
    unsigned long id = PyLong_AsUnsignedLong(arg);
    if (!e || PyErr_Occurred()) return NULL;
    wr_queue *q = queue_of(e, (unsigned int)id);
    return q ? PyLong_FromUnsignedLongLong(q->ready_n + wr_queue_ahead(e, q)) : NULL;
}

/* join(queue, slot, exclusive): (WR_JOIN_… of queues/exclusive.h, the slot of who is in the way). */
static PyObject *engine_join(PyObject *self, PyObject *args) {
    unsigned int id, slot;
    int exclusive;
    if (!PyArg_ParseTuple(args, "IIp", &id, &slot, &exclusive)) return NULL;
    wr_queue_engine *e = engine_of(self);
    wr_queue *q = e ? queue_of(e, id) : NULL;
    if (!q) return NULL;
    wr_qlink *l = slot < WR_CLIENT_SLOTS ? e->links[slot] : NULL;
    if (!l) return PyErr_Format(PyExc_ValueError, "slot %u has no link", slot);
    uint32_t other = 0;
    wr_join joined = wr_exclusive_join(e, l, q, exclusive, &other);
    return Py_BuildValue("II", (unsigned int)joined, (unsigned int)other);
}

static PyObject *engine_purge(PyObject *self, PyObject *args) {
    unsigned int id;
    unsigned long long below;
    int unacked;
    if (!PyArg_ParseTuple(args, "IKp", &id, &below, &unacked)) return NULL;
    wr_queue_engine *e = engine_of(self);
    wr_queue *q = e ? queue_of(e, id) : NULL;
    if (!q) return NULL;
    return PyLong_FromUnsignedLongLong(wr_queue_purge(e, q, below, unacked));
}

static PyObject *engine_browse(PyObject *self, PyObject *args) {
    unsigned int id;
    unsigned long long start, count;
    int ready_only;
    if (!PyArg_ParseTuple(args, "IKKp", &id, &start, &count, &ready_only)) return NULL;
    wr_queue_engine *e = engine_of(self);
    wr_queue *q = e ? queue_of(e, id) : NULL;
    if (!q) return NULL;
    if (count > 1u << 20) count = 1u << 20;
    uint64_t there = q->ready_n + (ready_only ? 0 : q->unacked_n);
    if (count > there) count = there;
    PyObject *bytes = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)(count * sizeof(wr_delivery)));
    if (!bytes) return NULL;
    wr_delivery *rows = (wr_delivery *)PyBytes_AS_STRING(bytes);
    uint64_t next, n = wr_queue_browse(q, start, rows, count, ready_only, &next);
    if (_PyBytes_Resize(&bytes, (Py_ssize_t)(n * sizeof(wr_delivery)))) return NULL;
    return Py_BuildValue("NK", bytes, (unsigned long long)next);
}

static PyObject *engine_spans(PyObject *self, PyObject *args) {
    unsigned int id;
    unsigned long long start, count;
    if (!PyArg_ParseTuple(args, "IKK", &id, &start, &count)) return NULL;
    wr_queue_engine *e = engine_of(self);
    wr_queue *q = e ? queue_of(e, id) : NULL;
    if (!q) return NULL;
    if (count > 1u << 20) count = 1u << 20;
    if (count > q->ready_n) count = q->ready_n;
    PyObject *bytes = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)(count * sizeof(wr_span)));
    if (!bytes) return NULL;
    uint64_t next, n = wr_queue_spans(q, start, (wr_span *)PyBytes_AS_STRING(bytes), count, &next);
    if (_PyBytes_Resize(&bytes, (Py_ssize_t)(n * sizeof(wr_span)))) return NULL;
    return Py_BuildValue("NK", bytes, (unsigned long long)next);
}

static PyObject *engine_measure(PyObject *self, PyObject *args) {
    unsigned int id;
    unsigned long long start, end, bytes_max;
    int one;
    if (!PyArg_ParseTuple(args, "IKKKp", &id, &start, &end, &bytes_max, &one)) return NULL;
    wr_queue_engine *e = engine_of(self);
    wr_queue *q = e ? queue_of(e, id) : NULL;
    if (!q) return NULL;
    uint64_t bytes;
    bool full;
    uint64_t next = wr_queue_measure(q, start, end, bytes_max, one, &bytes, &full);
    return Py_BuildValue("KKN", (unsigned long long)next, (unsigned long long)bytes, PyBool_FromLong(full));
}

static PyObject *engine_move(PyObject *self, PyObject *args) {
    unsigned int from_id, to_id;
    unsigned long long max_messages, max_bytes, epoch, sequence;
    int all;
    if (!PyArg_ParseTuple(args, "IIKKpKK", &from_id, &to_id, &max_messages, &max_bytes, &all, &epoch, &sequence)) return NULL;
    wr_queue_engine *e = engine_of(self);
    wr_queue *from = e ? queue_of(e, from_id) : NULL;
    wr_queue *to = from ? queue_of(e, to_id) : NULL;
    if (!to) return NULL;
    uint64_t start, end;
    int error = wr_journal_move(e, from, to, max_messages, max_bytes, all, epoch, sequence, &start, &end);
    if (error == EAGAIN) Py_RETURN_NONE; /* no journal file yet */
    if (error) return os_error(error);
    return Py_BuildValue("KK", (unsigned long long)start, (unsigned long long)end);
}

/* ---- recovery ---- */

static PyObject *engine_replay(PyObject *self, PyObject *args) {
    Py_buffer bytes;
    unsigned int file;
    unsigned long long salt, at;
    if (!PyArg_ParseTuple(args, "y*IKK", &bytes, &file, &salt, &at)) return NULL;
    wr_queue_engine *e = engine_of(self);
    uint64_t position = at, frames_n = 0;
    const char *reason = NULL;
    int error = 0;
    if (e) {
        wr_files_add(&e->files, file);
        Py_BEGIN_ALLOW_THREADS
        error = wr_journal_replay(e, bytes.buf, (uint64_t)bytes.len, file, salt, &position, &frames_n, &reason);
        Py_END_ALLOW_THREADS
    }
    PyBuffer_Release(&bytes);
    if (!e) return NULL;
    if (error) return os_error(error);
    return Py_BuildValue("KKs", (unsigned long long)position, (unsigned long long)frames_n, reason);
}

static PyObject *engine_load_segment(PyObject *self, PyObject *args) {
    Py_buffer bytes;
    unsigned int id, segment;
    unsigned long long salt;
    if (!PyArg_ParseTuple(args, "IIy*K", &id, &segment, &bytes, &salt)) return NULL;
    wr_queue_engine *e = engine_of(self);
    wr_queue *q = e ? queue_of(e, id) : NULL;
    uint64_t live = 0, bad = 0;
    int error = 0;
    if (q) {
        Py_BEGIN_ALLOW_THREADS
        error = wr_segment_load(e, q, segment, bytes.buf, (uint64_t)bytes.len, salt, &live, &bad);
        Py_END_ALLOW_THREADS
    }
    PyBuffer_Release(&bytes);
    if (!q) return NULL;
    if (error) return os_error(error);
    return Py_BuildValue("KK", (unsigned long long)live, (unsigned long long)bad);
}

static PyObject *engine_gap(PyObject *self, PyObject *none) {
    (void)none;
    wr_queue_engine *e = engine_of(self);
    if (!e) return NULL;
    wr_journal_gap(e);
    Py_RETURN_NONE;
}

static PyObject *engine_ids_end(PyObject *self, PyObject *args) {
    unsigned long long end;
    if (!PyArg_ParseTuple(args, "K", &end)) return NULL;
    wr_queue_engine *e = engine_of(self);
    if (!e) return NULL;
    e->ids_end = end;
    Py_RETURN_NONE;
}

static PyObject *engine_unknown(PyObject *self, PyObject *none) {
    (void)none;
    wr_queue_engine *e = engine_of(self);
    PyObject *list = e ? PyList_New(0) : NULL;
    for (uint64_t i = 0; list && i < e->unknown.size; i++) {
        if (!e->unknown.rows[i].used) continue;
        PyObject *id = PyLong_FromUnsignedLongLong(e->unknown.rows[i].a);
        if (!id || PyList_Append(list, id)) Py_CLEAR(list);
        Py_XDECREF(id);
    }
    return list;
}

static PyObject *engine_drop_lost(PyObject *self, PyObject *args) {
    unsigned int file;
    unsigned long long size;
    if (!PyArg_ParseTuple(args, "IK", &file, &size)) return NULL;
    wr_queue_engine *e = engine_of(self);
    return e ? PyLong_FromUnsignedLongLong(wr_segment_drop_lost(e, file, size)) : NULL;
}

static PyObject *engine_lost(PyObject *self, PyObject *args) {
    unsigned int id;
    unsigned long long more = 0;
    if (!PyArg_ParseTuple(args, "I|K", &id, &more)) return NULL;
    wr_queue_engine *e = engine_of(self);
    wr_queue *q = e ? queue_of(e, id) : NULL;
    if (!q) return NULL;
    q->lost_n += more;
    if (more) wr_queue_dirty(e, q);
    return PyLong_FromUnsignedLongLong(q->lost_n);
}

static PyObject *engine_recovered(PyObject *self, PyObject *arg) {
    wr_queue_engine *e = engine_of(self);
    int clean = PyObject_IsTrue(arg);
    if (!e || clean < 0) return NULL;
    wr_journal_recovered(e, clean);
    Py_RETURN_NONE;
}

static PyObject *engine_terms(PyObject *self, PyObject *arg) {
    wr_queue_engine *e = engine_of(self);
    unsigned long id = PyLong_AsUnsignedLong(arg);
    if (!e || PyErr_Occurred()) return NULL;
    wr_queue *q = queue_of(e, (unsigned int)id);
    if (!q) return NULL;
    wr_term_list list = {0};
    bool room = wr_terms_of(q, &list);
    PyObject *bytes = room ? PyBytes_FromStringAndSize((const char *)list.terms, (Py_ssize_t)(list.n * sizeof(wr_term))) : PyErr_NoMemory();
    free(list.terms);
    return bytes;
}

static PyObject *engine_set_terms(PyObject *self, PyObject *args) {
    unsigned int id;
    unsigned long long next;
    Py_buffer bytes;
    if (!PyArg_ParseTuple(args, "IKy*", &id, &next, &bytes)) return NULL;
    wr_queue_engine *e = engine_of(self);
    wr_queue *q = e ? queue_of(e, id) : NULL;
    if (q) wr_terms_set(e, q, next, bytes.buf, (uint64_t)bytes.len);
    PyBuffer_Release(&bytes);
    if (!q) return NULL;
    Py_RETURN_NONE;
}

/* ---- files ---- */

static PyObject *files_list(const wr_files *f) {
    PyObject *list = PyList_New(f->n);
    for (uint32_t i = 0; list && i < f->n; i++) {
        PyObject *row = Py_BuildValue("II", f->first + i, f->live[i]);
        if (!row) Py_CLEAR(list);
        else PyList_SET_ITEM(list, i, row);
    }
    return list;
}

static PyObject *engine_files(PyObject *self, PyObject *arg) {
    wr_queue_engine *e = engine_of(self);
    int transient = PyObject_IsTrue(arg);
    if (!e || transient < 0) return NULL;
    return files_list(transient ? &e->transient_files : &e->files);
}

static PyObject *engine_may_delete(PyObject *self, PyObject *arg) {
    wr_queue_engine *e = engine_of(self);
    unsigned long file = PyLong_AsUnsignedLong(arg);
    if (!e || PyErr_Occurred()) return NULL;
    return PyBool_FromLong(wr_journal_may_delete(e, (uint32_t)file));
}

static PyObject *engine_drop_first(PyObject *self, PyObject *arg) {
    wr_queue_engine *e = engine_of(self);
    int transient = PyObject_IsTrue(arg);
    if (!e || transient < 0) return NULL;
    wr_files *f = transient ? &e->transient_files : &e->files;
    if (f->n < 2 || f->live[0]) return PyErr_Format(PyExc_ValueError, "the oldest file is needed");
    wr_files_drop_first(f);
    Py_RETURN_NONE;
}

/* export_file(file, into): the rows of a flush into a bytearray, which is made as long as they are. It is used again by the next flush:
 * memory that is new to the process costs more than the rows. */
static PyObject *engine_export_file(PyObject *self, PyObject *args) {
    unsigned int file;
    PyObject *into;
    wr_queue_engine *e = engine_of(self);
    if (!e || !PyArg_ParseTuple(args, "IO!", &file, &PyByteArray_Type, &into)) return NULL;
    uint64_t most = wr_segment_export_most(e, file);
    if ((uint64_t)PyByteArray_GET_SIZE(into) < most * sizeof(wr_segment_row) &&
        PyByteArray_Resize(into, (Py_ssize_t)(most * sizeof(wr_segment_row))))
        return NULL;
    uint64_t n = wr_segment_export(e, file, (wr_segment_row *)PyByteArray_AS_STRING(into), most);
    return PyLong_FromUnsignedLongLong(n * sizeof(wr_segment_row));
}

/* Live rows of a queue from sequence `first` on, at most about `count`, and where to go on: (wr_segment_row …, next). Rows that are
 * brought back for it leave memory again. */
static PyObject *engine_export_queue(PyObject *self, PyObject *args) {
    unsigned int id;
    unsigned long long first, count;
    if (!PyArg_ParseTuple(args, "IKK", &id, &first, &count)) return NULL;
    wr_queue_engine *e = engine_of(self);
    wr_queue *q = e ? queue_of(e, id) : NULL;
    if (!q) return NULL;
    uint64_t next, n, most = (count / WR_CHUNK_ROWS + 1) * WR_CHUNK_ROWS;
    wr_segment_row *rows = malloc(most * sizeof *rows);
    if (!rows) return PyErr_NoMemory();
    n = wr_segment_export_queue(e, q, first, rows, most, &next);
    PyObject *answer = Py_BuildValue("(y#K)", (const char *)rows, (Py_ssize_t)(n * sizeof *rows), (unsigned long long)next);
    free(rows);
    return answer;
}

/* keys(queue): what it has seen, as rows of a KEYS frame */
static PyObject *engine_keys(PyObject *self, PyObject *arg) {
    wr_queue_engine *e = engine_of(self);
    unsigned long id = PyLong_AsUnsignedLong(arg);
    if (!e || PyErr_Occurred()) return NULL;
    const wr_queue *q = queue_of(e, (unsigned int)id);
    if (!q) return NULL;
    PyObject *bytes = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)(wr_policy_keys(q, NULL) * WR_SEEN_KEY_SIZE));
    if (bytes) wr_policy_keys(q, (uint8_t *)PyBytes_AS_STRING(bytes));
    return bytes;
}

static PyObject *engine_set_keys(PyObject *self, PyObject *arg) {
    wr_queue_engine *e = engine_of(self);
    Py_buffer rows;
    if (!e || PyObject_GetBuffer(arg, &rows, PyBUF_SIMPLE)) return NULL;
    int error = wr_policy_replay_keys(e, rows.buf, (uint64_t)rows.len, (uint32_t)((uint64_t)rows.len / WR_SEEN_KEY_SIZE));
    PyBuffer_Release(&rows);
    if (error) return os_error(error);
    Py_RETURN_NONE;
}

static PyObject *engine_flushed(PyObject *self, PyObject *args) {
    unsigned int file;
    Py_buffer bytes;
    if (!PyArg_ParseTuple(args, "Iy*", &file, &bytes)) return NULL;
    wr_queue_engine *e = engine_of(self);
    uint64_t n = 0;
    if (e) n = wr_segment_flushed(e, file, bytes.buf, (uint64_t)bytes.len / sizeof(wr_segment_row));
    PyBuffer_Release(&bytes);
    if (!e) return NULL;
    return PyLong_FromUnsignedLongLong(n);
}

static PyObject *take_acks(wr_queue_engine *e, bool by_file, uint64_t limit) {
    uint64_t n = wr_segment_acks_up_to(e, by_file, limit);
    PyObject *bytes = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)(n * sizeof(wr_segment_ack)));
    if (bytes) wr_segment_acks_take(e, by_file, limit, (wr_segment_ack *)PyBytes_AS_STRING(bytes));
    return bytes;
}

/* Those whose frames lie in files up to `file`. */
static PyObject *engine_segment_acks(PyObject *self, PyObject *arg) {
    wr_queue_engine *e = engine_of(self);
    unsigned long file = PyLong_AsUnsignedLong(arg);
    if (!e || PyErr_Occurred()) return NULL;
    return take_acks(e, true, file);
}

/* Those whose frames are synced and not needed, when many wait; else none. */
static PyObject *engine_early_acks(PyObject *self, PyObject *none) {
    (void)none;
    wr_queue_engine *e = engine_of(self);
    if (!e) return NULL;
    if (!wr_segment_acks_many(e)) return PyBytes_FromStringAndSize(NULL, 0);
    return take_acks(e, false, atomic_load_explicit(&e->token_synced, memory_order_acquire));
}

static PyObject *engine_data_files(PyObject *self, PyObject *none) {
    (void)none;
    wr_queue_engine *e = engine_of(self);
    if (!e) return NULL;
    PyObject *dict = PyDict_New();
    for (uint64_t i = 0; dict && i < e->data_files.size; i++) {
        if (!e->data_files.rows[i].used) continue;
        PyObject *key = PyLong_FromUnsignedLongLong(e->data_files.rows[i].a);
        PyObject *value = PyLong_FromUnsignedLongLong(e->data_files.rows[i].value);
        if (!key || !value || PyDict_SetItem(dict, key, value)) Py_CLEAR(dict);
        Py_XDECREF(key);
        Py_XDECREF(value);
    }
    return dict;
}

static PyObject *engine_forget_data_file(PyObject *self, PyObject *arg) {
    wr_queue_engine *e = engine_of(self);
    unsigned long file = PyLong_AsUnsignedLong(arg);
    if (!e || PyErr_Occurred()) return NULL;
    wr_map_remove(&e->data_files, file, 0);
    Py_RETURN_NONE;
}

static PyObject *engine_encode_entries(PyObject *self, PyObject *args) {
    Py_buffer rows;
    unsigned long long salt;
    (void)self;
    if (!PyArg_ParseTuple(args, "y*K", &rows, &salt)) return NULL;
    uint64_t n = (uint64_t)rows.len / sizeof(wr_segment_row);
    PyObject *bytes = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)(n * WR_QUEUE_SEGMENT_ENTRY_SIZE));
    if (bytes) {
        uint8_t *to = (uint8_t *)PyBytes_AS_STRING(bytes); /* nobody else has seen it yet */
        Py_BEGIN_ALLOW_THREADS
        wr_segment_encode_rows(to, rows.buf, n, salt);
        Py_END_ALLOW_THREADS
    }
    PyBuffer_Release(&rows);
    return bytes;
}

/* What entries of a segment are, one byte each: 0 empty, 1 a message, 2 neither. */
static PyObject *engine_check_entries(PyObject *self, PyObject *args) {
    Py_buffer entries;
    unsigned long long salt, first;
    unsigned int queue;
    (void)self;
    if (!PyArg_ParseTuple(args, "y*KIK", &entries, &salt, &queue, &first)) return NULL;
    const uint64_t n = (uint64_t)entries.len / WR_QUEUE_SEGMENT_ENTRY_SIZE;
    PyObject *kinds = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)n);
    if (kinds) {
        char *to = PyBytes_AS_STRING(kinds); /* nobody else has seen it yet */
        Py_BEGIN_ALLOW_THREADS
        static const uint8_t empty[WR_QUEUE_SEGMENT_ENTRY_SIZE];
        const uint32_t seed = wr_segment_seed(salt, queue);
        for (uint64_t i = 0; i < n; i++) {
            const uint8_t *at = (const uint8_t *)entries.buf + i * WR_QUEUE_SEGMENT_ENTRY_SIZE;
            wr_entry entry;
            uint64_t due;
            if (!memcmp(at, empty, sizeof empty)) to[i] = 0;
            else to[i] = wr_segment_decode(at, seed, first + i, &entry, &due) ? 1 : 2;
        }
        Py_END_ALLOW_THREADS
    }
    PyBuffer_Release(&entries);
    return kinds;
}

/* Rows of a flush; -1 with an exception when they are none. */
static int rows_of(PyObject *object, int flags, Py_buffer *rows, uint64_t *n) {
    if (PyObject_GetBuffer(object, rows, flags)) return -1;
    *n = (uint64_t)rows->len / sizeof(wr_segment_row);
    if ((uint64_t)rows->len % sizeof(wr_segment_row) == 0 && (uintptr_t)rows->buf % _Alignof(wr_segment_row) == 0) return 0;
    PyBuffer_Release(rows);
    PyErr_SetString(PyExc_ValueError, "these are no rows of a flush");
    return -1;
}

static PyObject *engine_look_at_rows(PyObject *self, PyObject *object) {
    Py_buffer rows;
    uint64_t n;
    (void)self;
    if (rows_of(object, PyBUF_SIMPLE, &rows, &n)) return NULL;
    wr_segment_survey found;
    Py_BEGIN_ALLOW_THREADS
    found = wr_segment_look(rows.buf, n);
    Py_END_ALLOW_THREADS
    PyBuffer_Release(&rows);
    return Py_BuildValue("(KKN)", (unsigned long long)found.embedded_n, (unsigned long long)found.bytes, PyBool_FromLong(found.rising));
}

static PyObject *engine_place_rows(PyObject *self, PyObject *args) {
    PyObject *object;
    unsigned int file;
    Py_buffer rows;
    uint64_t n;
    (void)self;
    if (!PyArg_ParseTuple(args, "OI", &object, &file) || rows_of(object, PyBUF_WRITABLE, &rows, &n)) return NULL;
    Py_BEGIN_ALLOW_THREADS
    wr_segment_place(rows.buf, n, file);
    Py_END_ALLOW_THREADS
    PyBuffer_Release(&rows);
    Py_RETURN_NONE;
}

/* groups_of_rows(rows): [(queue, segment, first row, end)] */
static PyObject *engine_groups_of_rows(PyObject *self, PyObject *object) {
    Py_buffer rows;
    uint64_t n;
    (void)self;
    if (rows_of(object, PyBUF_SIMPLE, &rows, &n)) return NULL;
    PyObject *list = PyList_New(0);
    for (uint64_t first = 0, end; list && first < n; first = end) {
        const wr_segment_row *row = (const wr_segment_row *)rows.buf + first;
        Py_BEGIN_ALLOW_THREADS
        end = first + wr_segment_group(row, n - first);
        Py_END_ALLOW_THREADS
        PyObject *group = Py_BuildValue("(IKKK)", row->queue, (unsigned long long)(row->sequence / WR_SEGMENT_ENTRY_COUNT),
                                        (unsigned long long)first, (unsigned long long)end);
        if (!group || PyList_Append(list, group)) Py_CLEAR(list);
        Py_XDECREF(group);
    }
    PyBuffer_Release(&rows);
    return list;
}

/* write_rows(fd, rows, first, end, salt): entries of one segment to their places */
static PyObject *engine_write_rows(PyObject *self, PyObject *args) {
    int fd, error;
    PyObject *object;
    unsigned long long first, end, salt;
    Py_buffer rows;
    uint64_t n;
    (void)self;
    if (!PyArg_ParseTuple(args, "iOKKK", &fd, &object, &first, &end, &salt) || rows_of(object, PyBUF_SIMPLE, &rows, &n)) return NULL;
    if (first > end || end > n) {
        PyBuffer_Release(&rows);
        return PyErr_Format(PyExc_ValueError, "there are %llu rows", (unsigned long long)n);
    }
    Py_BEGIN_ALLOW_THREADS
    error = wr_segment_write(fd, (const wr_segment_row *)rows.buf + first, end - first, salt);
    Py_END_ALLOW_THREADS
    PyBuffer_Release(&rows);
    if (error) return os_error(error);
    Py_RETURN_NONE;
}

/* ---- messages in files of their own ---- */

static PyObject *ids_taken(uint64_t (*take)(wr_queue_engine *, uint8_t (*)[16], uint64_t), wr_queue_engine *e, uint64_t n) {
    PyObject *bytes = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)(16 * n));
    if (!bytes) return NULL;
    n = take(e, (uint8_t(*)[16])PyBytes_AS_STRING(bytes), n);
    return _PyBytes_Resize(&bytes, (Py_ssize_t)(16 * n)) ? NULL : bytes;
}

/* The ids whose files may go now. */
static PyObject *engine_large_gone(PyObject *self, PyObject *none) {
    (void)none;
    wr_queue_engine *e = engine_of(self);
    return e ? ids_taken(wr_queue_large_gone, e, e->large_gone_n) : NULL;
}

/* Is a message of this id held, or on its way out? */
static PyObject *engine_large_known(PyObject *self, PyObject *arg) {
    wr_queue_engine *e = engine_of(self);
    if (!e) return NULL;
    if (!PyBytes_Check(arg) || PyBytes_GET_SIZE(arg) != 16) return PyErr_Format(PyExc_ValueError, "an id is 16 bytes");
    return PyBool_FromLong(wr_queue_large_known(e, (const uint8_t *)PyBytes_AS_STRING(arg)));
}

/* At a start: only these have files, 16 bytes each. (how many messages were dropped, how many files are held) */
static PyObject *engine_large_missing(PyObject *self, PyObject *arg) {
    wr_queue_engine *e = engine_of(self);
    if (!e) return NULL;
    if (!PyBytes_Check(arg) || PyBytes_GET_SIZE(arg) % 16) return PyErr_Format(PyExc_ValueError, "an id is 16 bytes");
    uint64_t lost;
    int error = wr_queue_large_missing(e, (const uint8_t(*)[16])PyBytes_AS_STRING(arg), (uint64_t)PyBytes_GET_SIZE(arg) / 16, &lost);
    if (error) return os_error(error);
    return PyLong_FromUnsignedLongLong(lost);
}

/* How far the commands of a client are executed, and submitted: (next, tail); None: it has no link here. */
static PyObject *engine_link_of(PyObject *self, PyObject *arg) {
    wr_queue_engine *e = engine_of(self);
    unsigned long long epoch = PyLong_AsUnsignedLongLong(arg);
    if (!e || PyErr_Occurred()) return NULL;
    for (uint32_t i = 0; i < e->links_n; i++) {
        wr_qlink *l = e->links[e->order[i]];
        if (l->client_epoch != epoch) continue;
        if (l->finished || l->evicted) Py_RETURN_NONE;
        /* SYNC command-visible: pairs with the client's release store of tail */
        uint64_t tail = atomic_load_explicit(&l->view.links[e->o.server].tail, memory_order_acquire);
        return Py_BuildValue("KK", (unsigned long long)l->next, (unsigned long long)tail);
    }
    Py_RETURN_NONE;
}

/* ---- the rest ---- */

/* Seal everything with sync and wait until it is done. False: not within the time. */
static PyObject *engine_sync(PyObject *self, PyObject *args) {
    unsigned long long timeout_ns;
    if (!PyArg_ParseTuple(args, "K", &timeout_ns)) return NULL;
    wr_queue_engine *e = engine_of(self);
    if (!e) return NULL;
    bool done;
    ((engine_object *)self)->running = true;
    Py_BEGIN_ALLOW_THREADS
    done = wr_journal_sync(e, timeout_ns);
    Py_END_ALLOW_THREADS
    ((engine_object *)self)->running = false;
    return PyBool_FromLong(done);
}

/* (current journal file, end of its frames). */
static PyObject *engine_position(PyObject *self, PyObject *none) {
    (void)none;
    wr_queue_engine *e = engine_of(self);
    if (!e) return NULL;
    const wr_log_state *state = wr_log_look(e->log);
    return Py_BuildValue("KK", (unsigned long long)state->file, (unsigned long long)(state->has_file ? state->append : 0));
}

/* (batch that what happens now belongs to, the last one that is synced) */
static PyObject *engine_tokens(PyObject *self, PyObject *none) {
    (void)none;
    wr_queue_engine *e = engine_of(self);
    if (!e) return NULL;
    return Py_BuildValue("KK", (unsigned long long)e->token_next, (unsigned long long)atomic_load_explicit(&e->token_synced, memory_order_acquire));
}

/* Everything that happened is on disk. */
static PyObject *engine_all_durable(PyObject *self, PyObject *none) {
    (void)none;
    wr_queue_engine *e = engine_of(self);
    if (!e) return NULL;
    return PyBool_FromLong(wr_journal_all_durable(e));
}

/* (queue, sequence, location, file, offset, frame length, id) of the last messages that consumers found damaged, of which `told` are known. */
static PyObject *engine_unreadable(PyObject *self, PyObject *arg) {
    unsigned long long told = PyLong_AsUnsignedLongLong(arg);
    if (PyErr_Occurred()) return NULL;
    wr_queue_engine *e = engine_of(self);
    if (!e) return NULL;
    if (e->unreadable_n > WR_LOST_ROWS && told < e->unreadable_n - WR_LOST_ROWS) told = e->unreadable_n - WR_LOST_ROWS;
    PyObject *list = PyList_New(0);
    for (; list && told < e->unreadable_n; told++) {
        const wr_delivery *d = &e->unreadable[told % WR_LOST_ROWS];
        PyObject *item = Py_BuildValue("IKiIIIy#", d->queue, (unsigned long long)d->sequence, (int)wr_delivery_location(d), d->file, d->offset, d->frame_length,
                                       (const char *)d->id, (Py_ssize_t)sizeof d->id);
        if (!item || PyList_Append(list, item)) Py_CLEAR(list);
        Py_XDECREF(item);
    }
    return list;
}

static PyObject *engine_counters(PyObject *self, PyObject *none) {
    (void)none;
    wr_queue_engine *e = engine_of(self);
    if (!e) return NULL;
    const wr_log_state *state = wr_log_look(e->log);
    return Py_BuildValue("{sKsKsKsisKsKsKsKsKsKsKsKsKsKsKsKsKsKsKsKsIsisOsOsOsOsi}", "unreadable", (unsigned long long)e->unreadable_n, "row_bytes", (unsigned long long)wr_rows_bytes(e), "rows_limit", (unsigned long long)e->rows_limit, "spill_error", e->spill_error, "paged", (unsigned long long)e->paged_n, "page_ins",
                         (unsigned long long)e->page_ins_n, "page_outs", (unsigned long long)e->page_outs_n, "damaged", (unsigned long long)e->damaged_n, "published", (unsigned long long)e->published_n, "delivered",
                         (unsigned long long)e->delivered_n, "acked", (unsigned long long)e->acked_n, "unroutable",
                         (unsigned long long)e->unroutable_n, "lost", (unsigned long long)e->lost_n, "evicted",
                         (unsigned long long)e->evicted_n, "messages", (unsigned long long)e->entries_n, "bytes",
                         (unsigned long long)e->bytes, "large", (unsigned long long)e->large.n, "large_gone", (unsigned long long)e->large_gone_n, "commits", (unsigned long long)state->commits_n, "syncs",
                         (unsigned long long)state->syncs_n, "file", state->has_file ? (unsigned int)state->file : 0u, "failed",
                         state->failed, "stalled", e->stalled ? Py_True : Py_False, "stores_behind",
                         wr_queue_stores_behind(e) ? Py_True : Py_False, "resynced",
                         e->stores[0].resynced && e->stores[1].resynced ? Py_True : Py_False, "no_memory",
                         state->no_memory || wr_log_look(e->transient_log)->no_memory ? Py_True : Py_False, "no_space",
                         state->no_space ? state->no_space : wr_log_look(e->transient_log)->no_space);
}

static PyObject *engine_high(PyObject *self, PyObject *arg) {
    wr_queue_engine *e = engine_of(self);
    unsigned long long epoch = PyLong_AsUnsignedLongLong(arg);
    if (!e || PyErr_Occurred()) return NULL;
    uint64_t *high = wr_map_find(&e->high, epoch, 0);
    return PyLong_FromUnsignedLongLong(high ? *high : 0);
}

/* (start, end) of a claim that was durable before the last restart, None if there was none. */
static PyObject *engine_replayed_claim(PyObject *self, PyObject *args) {
    unsigned long long epoch, sequence;
    if (!PyArg_ParseTuple(args, "KK", &epoch, &sequence)) return NULL;
    wr_queue_engine *e = engine_of(self);
    if (!e) return NULL;
    uint64_t *start = wr_map_find(&e->moves_start, epoch, sequence), *moved = wr_map_find(&e->moves_count, epoch, sequence);
    if (!start || !moved) Py_RETURN_NONE;
    return Py_BuildValue("KK", (unsigned long long)*start, (unsigned long long)(*start + *moved));
}

#define M(name, flags) {#name, (PyCFunction)engine_##name, flags, NULL}
static PyMethodDef engine_methods[] = {
    M(close, METH_NOARGS), M(run, METH_VARARGS), M(commit_run, METH_VARARGS), M(stop_logs, METH_NOARGS),
    M(request_stop, METH_NOARGS), M(kick, METH_NOARGS), M(offer, METH_VARARGS), M(begin_journal, METH_NOARGS), M(open_pages, METH_VARARGS), M(check, METH_NOARGS), M(page_out, METH_VARARGS), M(pending, METH_VARARGS), M(declare, METH_VARARGS), M(drop, METH_O),
    {"set_policy", (PyCFunction)(void (*)(void))engine_set_policy, METH_VARARGS | METH_KEYWORDS, NULL},
    M(set_ack_timeout, METH_VARARGS), M(policy_counts, METH_O),
    M(queues, METH_NOARGS), M(past_queues, METH_NOARGS), M(replayed_claim, METH_VARARGS), M(attach, METH_VARARGS), M(closing, METH_O), M(detach, METH_O), M(attached, METH_NOARGS),
    M(slots_seen, METH_O), M(catalog_loaded, METH_O), M(begin, METH_O), M(freeze, METH_O), M(end_links, METH_NOARGS), M(behind, METH_NOARGS),
    M(close_links, METH_NOARGS), M(set_store, METH_VARARGS),
    M(control_next, METH_NOARGS), M(control_answer, METH_VARARGS), M(control_later, METH_O), M(stats, METH_O), M(waiting, METH_O), M(join, METH_VARARGS), M(purge, METH_VARARGS),
    M(browse, METH_VARARGS), M(spans, METH_VARARGS), M(measure, METH_VARARGS), M(move, METH_VARARGS), M(replay, METH_VARARGS), M(gap, METH_NOARGS), M(ids_end, METH_VARARGS), M(unknown, METH_NOARGS), M(drop_lost, METH_VARARGS), M(lost, METH_VARARGS), M(load_segment, METH_VARARGS), M(recovered, METH_O),
    M(terms, METH_O), M(set_terms, METH_VARARGS), M(files, METH_O), M(may_delete, METH_O), M(drop_first, METH_O),
    M(export_file, METH_VARARGS), M(export_queue, METH_VARARGS), M(keys, METH_O), M(set_keys, METH_O), M(flushed, METH_VARARGS), M(segment_acks, METH_O), M(early_acks, METH_NOARGS), M(data_files, METH_NOARGS),
    M(forget_data_file, METH_O), {"encode_entries", engine_encode_entries, METH_VARARGS | METH_STATIC, NULL},
    {"check_entries", engine_check_entries, METH_VARARGS | METH_STATIC, NULL},
    {"look_at_rows", engine_look_at_rows, METH_O | METH_STATIC, NULL}, {"place_rows", engine_place_rows, METH_VARARGS | METH_STATIC, NULL},
    {"groups_of_rows", engine_groups_of_rows, METH_O | METH_STATIC, NULL}, {"write_rows", engine_write_rows, METH_VARARGS | METH_STATIC, NULL},
    M(sync, METH_VARARGS), M(position, METH_NOARGS), M(tokens, METH_NOARGS), M(all_durable, METH_NOARGS), M(large_gone, METH_NOARGS), M(large_known, METH_O), M(large_missing, METH_O), M(link_of, METH_O), M(counters, METH_NOARGS), M(unreadable, METH_O), M(high, METH_O), {NULL, NULL, 0, NULL}};

static PyTypeObject engine_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "warren.engine._core.QueueEngine",
    .tp_basicsize = sizeof(engine_object),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_doc = "Queues, consumers and the journal of one queue worker (engine/queues/queue.h).",
    .tp_new = engine_new,
    .tp_dealloc = engine_dealloc,
    .tp_methods = engine_methods,
};

int wr_bind_queue(PyObject *module) {
    if (PyType_Ready(&engine_type)) return -1;
#define EVENT(name) {"QUEUE_EVENT_" #name, WR_QUEUE_EVENT_##name}
    static const struct {
        const char *name;
        long value;
    } events[] = {EVENT(NEED_FILE),   EVENT(NEED_TRANSIENT_FILE), EVENT(SLOTS_CHANGED), EVENT(CATALOG_CHANGED), EVENT(CONTROL),
                  EVENT(FILES_MANY),  EVENT(FILES_EMPTY),         EVENT(STORE_EPOCH),   EVENT(LOG_FAILED),      EVENT(TIMER),
                  EVENT(STOP),        EVENT(FINISHED),            EVENT(KICK)};
#undef EVENT
    for (size_t i = 0; i < sizeof events / sizeof *events; i++)
        if (PyModule_AddIntConstant(module, events[i].name, events[i].value)) return -1;
    return PyModule_AddObjectRef(module, "QueueEngine", (PyObject *)&engine_type);
}
