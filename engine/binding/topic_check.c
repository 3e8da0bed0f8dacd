/* Topics' files with nobody serving them, or beside who does: examine, make again what is derived, and the checkpoint. The policy:
 * engine/topics/check.py. All but topics_snapshot take (root, node, boot, log_file_bytes, consume_queue_entries, index_slots, index_entries) first. */
#include "binding/arguments.h"
#include "binding/compacted_files.h"
#include "topics/compact.h"
#include "topics/examine.h"
#include "topics/folder.h"
#include "topics/half_table.h"
#include "topics/log_search.h"
#include "topics/pending.h"
#include "topics/preview.h"
#include "topics/rebuild.h"
#include "topics/survey.h"

#define PLACE 7 /* arguments of a place */

typedef struct {
    wr_dispatch_place place;
    PyObject *progress;     /* called with a position */
    PyThreadState *thread;  /* of who called, while the GIL is released */
} call;

static int bytes_of(PyObject *object, uint8_t to[16]) {
    if (!PyBytes_Check(object) || PyBytes_GET_SIZE(object) != 16) {
        PyErr_SetString(PyExc_ValueError, "node and boot are 16 bytes each");
        return -1;
    }
    memcpy(to, PyBytes_AS_STRING(object), 16);
    return 0;
}

static int place_of(PyObject *const *args, wr_dispatch_place *place) {
    uint64_t root, n[4];
    if (number_of(args[0], 31, "root", &root) || bytes_of(args[1], place->node) || bytes_of(args[2], place->boot) || numbers(args + 3, 4, n)) return -1;
    if (!n[0] || !n[1] || !n[2] || n[3] < 2 || (n[1] | n[2] | n[3]) >> 31) {
        PyErr_SetString(PyExc_ValueError, "sizes of files that cannot be");
        return -1;
    }
    place->root = (int)root;
    place->log_file_bytes = n[0];
    place->consume_queue_entries = (uint32_t)n[1];
    place->index_slots = (uint32_t)n[2];
    place->index_entries = (uint32_t)n[3];
    return 0;
}

static int topic_of(PyObject *item, wr_dispatch_topic *topic) {
    unsigned int id, queues;
    Py_ssize_t n;
    if (!PyArg_ParseTuple(item, "Is#I", &id, &topic->name, &n, &queues)) return -1;
    topic->id = id;
    topic->queues_n = queues;
    topic->name_n = (uint32_t)n;
    return 0;
}

/* Topics from a tuple of (id, name, queues), which keeps the names. NULL with an exception set; PyMem_Free. */
static wr_dispatch_topic *topics_of(PyObject *tuple, uint32_t *n) {
    if (!PyTuple_Check(tuple)) {
        PyErr_SetString(PyExc_TypeError, "topics are a tuple");
        return NULL;
    }
    *n = (uint32_t)PyTuple_GET_SIZE(tuple);
    wr_dispatch_topic *topics = PyMem_Calloc((size_t)*n + 1, sizeof *topics);
    if (!topics) PyErr_NoMemory();
    for (uint32_t i = 0; topics && i < *n; i++) {
        if (topic_of(PyTuple_GET_ITEM(tuple, i), &topics[i]) == 0) continue;
        PyMem_Free(topics);
        return NULL;
    }
    return topics;
}

/* How far it is; an exception of Python's ends the work. */
static int tell(void *context, uint64_t position) {
    call *c = context;
    PyEval_RestoreThread(c->thread);
    PyObject *said = PyErr_CheckSignals() ? NULL : PyObject_CallFunction(c->progress, "K", (unsigned long long)position);
    const int error = said ? 0 : ECANCELED;
    Py_XDECREF(said);
    c->thread = PyEval_SaveThread();
    return error;
}

static PyObject *failed(int error) { return PyErr_Occurred() ? NULL : os_error(error); }

/* ---- examine ---- */

static PyObject *end_of(const wr_log_end *end) {
    PyObject *stranger = end->foreign ? PyBytes_FromStringAndSize((const char *)end->stranger.node, sizeof end->stranger.node) : Py_NewRef(Py_None);
    if (!stranger) return NULL;
    return Py_BuildValue("(KKKON)", (unsigned long long)end->position, (unsigned long long)end->last.number, (unsigned long long)end->last.store_ms,
                         end->torn ? Py_True : Py_False, stranger);
}

static PyObject *wrongs_of(const wr_examine *examine) {
    uint32_t n;
    const wr_examine_wrong *found = wr_examine_found(examine, &n);
    PyObject *list = PyList_New(n);
    for (uint32_t i = 0; list && i < n; i++) {
        const wr_examine_wrong *w = &found[i];
        PyObject *item = Py_BuildValue("(sKKs)", w->file, (unsigned long long)w->count, (unsigned long long)w->at, w->reason);
        if (item) PyList_SET_ITEM(list, i, item);
        else Py_CLEAR(list);
    }
    return list;
}

static PyObject *counts_of(const wr_examine *examine) {
    const wr_examine_counts *c = wr_examine_counted(examine);
    return Py_BuildValue("{sKsKsKsKsKsKsK}", "first", (unsigned long long)c->first, "records", (unsigned long long)c->records, "commits", (unsigned long long)c->commits, "units",
                         (unsigned long long)c->units, "keys", (unsigned long long)c->keys, "unknown", (unsigned long long)c->unknown, "missing",
                         (unsigned long long)c->missing);
}

/* Of the queues of these topics: (topic, queue, minimum, the first offset that is in the log), where the minimum is not 0. */
static PyObject *minima_of(const wr_examine *examine, PyObject *tuple) {
    uint32_t n;
    wr_dispatch_topic *topics = topics_of(tuple, &n);
    PyObject *list = topics ? PyList_New(0) : NULL;
    for (uint32_t i = 0; list && i < n; i++)
        for (uint32_t queue = 0; list && queue < topics[i].queues_n; queue++) {
            const uint64_t minimum = wr_examine_told(examine, topics[i].id, queue);
            if (!minimum) continue;
            const uint64_t from = wr_examine_log_from(examine, topics[i].id, queue);
            PyObject *item = Py_BuildValue("(IIKK)", topics[i].id, queue, (unsigned long long)minimum, (unsigned long long)(from < minimum ? from : minimum));
            if (!item || PyList_Append(list, item)) Py_CLEAR(list);
            Py_XDECREF(item);
        }
    PyMem_Free(topics);
    return list;
}

static int run_all(wr_examine *examine, PyObject *bases, call *c, PyObject *ends) {
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(bases); i++) {
        const unsigned long long base = PyLong_AsUnsignedLongLong(PyTuple_GET_ITEM(bases, i));
        if (PyErr_Occurred()) return -1;
        wr_log_end end;
        c->thread = PyEval_SaveThread();
        int error = wr_examine_run(examine, base, tell, c, &end);
        PyEval_RestoreThread(c->thread);
        PyObject *item = error ? failed(error) : end_of(&end);
        if (!item) return -1;
        const int appended = PyList_Append(ends, item);
        Py_DECREF(item);
        if (appended) return -1;
    }
    int error;
    Py_BEGIN_ALLOW_THREADS
    error = wr_examine_finish(examine);
    Py_END_ALLOW_THREADS
    if (error) failed(error);
    return PyErr_Occurred() ? -1 : 0;
}

static int add_all(wr_examine *examine, PyObject *tuple) {
    uint32_t n;
    wr_dispatch_topic *topics = topics_of(tuple, &n);
    if (!topics) return -1;
    int error = 0;
    for (uint32_t i = 0; !error && i < n; i++) error = wr_examine_add(examine, &topics[i]);
    PyMem_Free(topics);
    if (error) os_error(error);
    return error ? -1 : 0;
}

/* Does a checkpoint of this kind say where the log ended? */
static bool tells_position(wr_checkpoint_kind kind) {
    return kind == WR_CHECKPOINT_GOOD || kind == WR_CHECKPOINT_SETTINGS || kind == WR_CHECKPOINT_OLDER;
}

/* What the checkpoint says that retention took. */
static int add_checkpoint(wr_examine *examine, const wr_dispatch_place *place) {
    wr_checkpoint c = {.consume_queue_entries = place->consume_queue_entries, .index_slots = place->index_slots, .index_entries = place->index_entries};
    wr_checkpoint_kind kind;
    memcpy(c.origin.node, place->node, sizeof c.origin.node);
    int error = wr_checkpoint_read(place->root, "checkpoint", &c, &kind);
    if (!error && kind == WR_CHECKPOINT_GOOD) wr_examine_first(examine, c.first);
    for (uint32_t i = 0; !error && i < c.rows_n; i++) wr_examine_minimum(examine, c.rows[i].topic, c.rows[i].queue, c.rows[i].minimum);
    wr_checkpoint_free(&c);
    if (error) os_error(error);
    return error ? -1 : 0;
}

static PyObject *topics_examine(PyObject *module, PyObject *const *args, Py_ssize_t given) {
    (void)module;
    WR_ARGUMENTS(PLACE + 6, "place, topics, limit, reached, synced, bases, progress");
    call c = {.progress = args[PLACE + 5]};
    uint64_t limit, reached;
    if (place_of(args, &c.place) || number_of(args[PLACE + 1], 64, "limit", &limit) || number_of(args[PLACE + 2], 64, "reached", &reached)) return NULL;
    if (!PyTuple_Check(args[PLACE + 4])) return PyErr_Format(PyExc_TypeError, "bases are a tuple");
    wr_index_mark synced = {.count = 0};
    const char *name;
    if (args[PLACE + 3] != Py_None) {
        if (!PyArg_ParseTuple(args[PLACE + 3], "sI:synced", &name, &synced.count)) return NULL;
        snprintf(synced.name, sizeof synced.name, "%s", name);
    }
    wr_examine *examine = wr_examine_new(&c.place, limit, args[PLACE + 3] == Py_None ? NULL : &synced);
    if (!examine) return os_error(errno);
    wr_examine_reached(examine, reached);
    PyObject *ends = PyList_New(0), *wrongs = NULL, *counts = NULL, *minima = NULL, *result = NULL;
    if (ends && add_all(examine, args[PLACE]) == 0 && add_checkpoint(examine, &c.place) == 0 && run_all(examine, args[PLACE + 4], &c, ends) == 0) {
        wrongs = wrongs_of(examine);
        counts = counts_of(examine);
        minima = minima_of(examine, args[PLACE]);
        if (wrongs && counts && minima) result = PyTuple_Pack(4, ends, wrongs, counts, minima);
    }
    Py_XDECREF(ends);
    Py_XDECREF(wrongs);
    Py_XDECREF(counts);
    Py_XDECREF(minima);
    wr_examine_free(examine);
    return result;
}

/* ---- make again ---- */

static PyObject *topics_rebuild(PyObject *module, PyObject *const *args, Py_ssize_t given) {
    (void)module;
    WR_ARGUMENTS(PLACE + 3, "place, topics, first, progress");
    call c = {.progress = args[PLACE + 2]};
    wr_rebuild_options options = {.progress = tell, .context = &c};
    if (place_of(args, &c.place) || number_of(args[PLACE + 1], 64, "first", &options.first)) return NULL;
    wr_dispatch_topic *topics = topics_of(args[PLACE], &options.topics_n);
    if (!topics) return NULL;
    options.topics = topics;
    wr_dispatch_counts counts = {0};
    c.thread = PyEval_SaveThread();
    int error = wr_rebuild(&c.place, &options, &counts);
    PyEval_RestoreThread(c.thread);
    PyMem_Free(topics);
    return error ? failed(error) : Py_BuildValue("(KK)", (unsigned long long)counts.units, (unsigned long long)counts.keys);
}

/* topics_newest(place, topic, name, queue, end, first, old, to, made, progress): the file of the newest messages of a queue below `end`, made again from
 * the log, whose first file begins at `first`, and from what the old file (its descriptor; -1: none) has of before. How many messages. Raises OSError;
 * EUCLEAN: the log or the old file is damaged. */
static PyObject *topics_newest(PyObject *module, PyObject *const *args, Py_ssize_t given) {
    (void)module;
    WR_ARGUMENTS(PLACE + 9, "place, topic, name, queue, end, first, old, to, made, progress");
    call c = {.progress = args[PLACE + 8]};
    uint64_t topic, queue, to;
    wr_compact_files files = {.progress = tell, .context = &c};
    wr_compact_job job = {.files = &files, .synced = UINT64_MAX, .keys_max = UINT64_MAX, .tombstone_ms = UINT64_MAX, .io = &wr_commit_io_system};
    Py_ssize_t name_n;
    char *name;
    if (place_of(args, &c.place) || number_of(args[PLACE], 32, "topic", &topic) || PyBytes_AsStringAndSize(args[PLACE + 1], &name, &name_n) ||
        number_of(args[PLACE + 2], 16, "queue", &queue) || number_of(args[PLACE + 3], 64, "end", &job.end) ||
        number_of(args[PLACE + 4], 64, "first", &files.first) || number_of(args[PLACE + 6], 31, "to", &to) ||
        number_of(args[PLACE + 7], 64, "made", &job.now))
        return NULL;
    const long old = PyLong_AsLong(args[PLACE + 5]);
    if (PyErr_Occurred()) return NULL;
    files.root = c.place.root;
    files.file_bytes = c.place.log_file_bytes;
    files.topic = (uint32_t)topic;
    files.name = name;
    files.name_n = (uint32_t)name_n;
    job.queue = (uint32_t)queue;
    job.fd = (int)to;
    memcpy(job.node, c.place.node, sizeof job.node);
    if (old >= 0 && !(job.old = wr_compacted_taken((int)old, job.node, files.topic, job.queue))) return NULL;
    wr_compact_result result;
    c.thread = PyEval_SaveThread();
    int error = wr_compact(&job, &result);
    wr_compacted_close(job.old);
    PyEval_RestoreThread(c.thread);
    if (error == EUCLEAN) return raise_errno(error, *result.wrong ? result.wrong : "the log is damaged");
    if (error) return failed(error);
    return PyLong_FromUnsignedLongLong(result.records_n);
}

/* ---- the checkpoint ---- */

static PyObject *rows_of(const wr_checkpoint *c) {
    PyObject *rows = PyList_New(c->rows_n);
    for (uint32_t i = 0; rows && i < c->rows_n; i++) {
        const wr_checkpoint_row *r = &c->rows[i];
        PyObject *row = Py_BuildValue("(IIKKKKK)", r->topic, r->queue, (unsigned long long)r->minimum, (unsigned long long)r->next,
                                      (unsigned long long)r->durable, (unsigned long long)r->bytes, (unsigned long long)r->from);
        if (row) PyList_SET_ITEM(rows, i, row);
        else Py_CLEAR(rows);
    }
    return rows;
}

static PyObject *topics_checkpoint(PyObject *module, PyObject *const *args, Py_ssize_t given) {
    (void)module;
    WR_ARGUMENTS(PLACE, "place");
    wr_dispatch_place place;
    if (place_of(args, &place)) return NULL;
    wr_checkpoint c = {.consume_queue_entries = place.consume_queue_entries, .index_slots = place.index_slots, .index_entries = place.index_entries};
    memcpy(c.origin.node, place.node, sizeof c.origin.node);
    wr_checkpoint_kind kind;
    int error = wr_checkpoint_read(place.root, "checkpoint", &c, &kind);
    if (error) return os_error(error);
    if (kind != WR_CHECKPOINT_GOOD) return Py_BuildValue("(sO)", wr_checkpoint_word(kind), Py_None);
    PyObject *rows = rows_of(&c), *found = NULL;
    if (rows)
        found = Py_BuildValue("(s{sKsKsKsKsKsOsssIsIsO})", wr_checkpoint_word(kind), "position", (unsigned long long)c.position, "first",
                              (unsigned long long)c.first, "number",
                              (unsigned long long)c.number, "epoch", (unsigned long long)c.origin.epoch, "store_ms", (unsigned long long)c.store_ms,
                              "survived", memcmp(c.boot, place.boot, sizeof c.boot) ? Py_False : Py_True, "index", c.index.name, "index_count",
                              (unsigned int)c.index.count, "clients", (unsigned int)c.marks_n, "rows", rows);
    Py_XDECREF(rows);
    wr_checkpoint_free(&c);
    return found;
}

/* ---- what a loss of the log took ---- */

/* (position, epoch, number) of the commit that a walk or a search begins behind. */
static int after_of(PyObject *const *args, const wr_dispatch_place *place, uint64_t *position, wr_commit_head *after) {
    uint64_t n[3];
    if (numbers(args, 3, n)) return -1;
    *position = n[0];
    *after = (wr_commit_head){.origin.epoch = n[1], .number = n[2]};
    memcpy(after->origin.node, place->node, sizeof after->origin.node);
    return 0;
}

static PyObject *surveyed(const wr_survey *survey) {
    PyObject *list = PyList_New(survey->rows_n);
    for (uint32_t i = 0; list && i < survey->rows_n; i++) {
        const wr_surveyed *row = &survey->rows[i];
        PyObject *item = Py_BuildValue("(IIKK)", row->topic, row->queue, (unsigned long long)row->first, (unsigned long long)row->next);
        if (item) PyList_SET_ITEM(list, i, item);
        else Py_CLEAR(list);
    }
    return list;
}

static PyObject *topics_survey(PyObject *module, PyObject *const *args, Py_ssize_t given) {
    (void)module;
    WR_ARGUMENTS(PLACE + 5, "place, position, epoch, number, anew, progress");
    call c = {.progress = args[PLACE + 4]};
    wr_commit_head after;
    wr_log_end end;
    uint64_t position;
    if (place_of(args, &c.place) || after_of(args + PLACE, &c.place, &position, &after)) return NULL;
    wr_survey survey = {.root = c.place.root, .file_bytes = c.place.log_file_bytes, .progress = tell, .context = &c};
    c.thread = PyEval_SaveThread();
    int error = wr_survey_walk(&survey, position, args[PLACE + 3] == Py_True, &after, &end);
    PyEval_RestoreThread(c.thread);
    PyObject *rows = error ? failed(error) : surveyed(&survey), *result = NULL;
    if (rows)
        result = Py_BuildValue("(KKKKOOKN)", (unsigned long long)end.position, (unsigned long long)end.last.origin.epoch,
                               (unsigned long long)end.last.number, (unsigned long long)end.last.store_ms, end.damaged ? Py_True : Py_False,
                               end.foreign ? Py_True : Py_False, (unsigned long long)survey.first, rows);
    wr_survey_free(&survey);
    return result;
}

static int open_to_read(void *context, uint64_t base) { return wr_log_open_file(((const wr_dispatch_place *)context)->root, base, false); }
static const wr_log_visitor to_read = {.open = open_to_read};

static PyObject *topics_next_commit(PyObject *module, PyObject *const *args, Py_ssize_t given) {
    (void)module;
    WR_ARGUMENTS(PLACE + 3, "place, position, epoch, number");
    wr_dispatch_place place;
    wr_commit_head after;
    wr_log_place next;
    uint64_t position;
    int error;
    if (place_of(args, &place) || after_of(args + PLACE, &place, &position, &after)) return NULL;
    Py_BEGIN_ALLOW_THREADS
    error = wr_log_search(&to_read, &place, place.log_file_bytes, position, &after, &next);
    Py_END_ALLOW_THREADS
    if (error == ENOENT) Py_RETURN_NONE;
    if (error) return os_error(error);
    return Py_BuildValue("(KKKK)", (unsigned long long)next.position, (unsigned long long)next.after.origin.epoch,
                         (unsigned long long)next.after.number, (unsigned long long)next.search);
}

/* The look of a start before it writes anything (wr_topic_worker_look). */
static PyObject *topics_preview(PyObject *module, PyObject *const *args, Py_ssize_t given) {
    (void)module;
    WR_ARGUMENTS(PLACE + 1, "place, first");
    wr_dispatch_place place;
    uint64_t first;
    if (place_of(args, &place) || number_of(args[PLACE], 64, "first", &first)) return NULL;
    wr_checkpoint c = {.consume_queue_entries = place.consume_queue_entries, .index_slots = place.index_slots, .index_entries = place.index_entries};
    wr_checkpoint_kind kind;
    memcpy(c.origin.node, place.node, sizeof c.origin.node);
    int error = wr_checkpoint_read(place.root, "checkpoint", &c, &kind);
    const bool known = !error && tells_position(kind);
    wr_commit_head last = {.origin = c.origin, .number = known ? c.number : 0};
    wr_log_previewed looked = {0};
    if (!error) error = wr_log_preview(&to_read, &place, place.log_file_bytes, first, known ? c.position : 0, &last, &looked);
    PyObject *found = error ? os_error(error)
                            : Py_BuildValue("{sssKsKsKsKsOsOsO}", "checkpoint", wr_checkpoint_word(kind), "position",
                                            (unsigned long long)(known ? c.position : 0), "first", (unsigned long long)(known ? c.first : 0), "epoch",
                                            (unsigned long long)(known ? c.origin.epoch : 0), "number", (unsigned long long)(known ? c.number : 0),
                                            "shorter", looked.shorter ? Py_True : Py_False, "foreign", looked.foreign ? Py_True : Py_False, "empty",
                                            looked.empty ? Py_True : Py_False);
    wr_checkpoint_free(&c);
    return found;
}

/* topics_snapshot(kind, node, file): (position, how much is in it) of a snapshot "later" or "halves". Raises ValueError: what is
 * wrong with it. */
static PyObject *topics_snapshot(PyObject *module, PyObject *args) {
    (void)module;
    const char *kind, *wrong;
    PyObject *node;
    Py_buffer file;
    wr_pending pending = {.most = UINT64_MAX};
    wr_pending_head later = {0};
    wr_halves halves = {.most = UINT64_MAX, .kept = UINT64_MAX};
    wr_halves_head head = {0};
    if (!PyArg_ParseTuple(args, "sOy*", &kind, &node, &file)) return NULL;
    if (bytes_of(node, head.node)) {
        PyBuffer_Release(&file);
        return NULL;
    }
    memcpy(later.node, head.node, sizeof later.node);
    const bool is_later = !strcmp(kind, "later");
    Py_BEGIN_ALLOW_THREADS
    if (is_later) wrong = wr_pending_decode(&pending, file.buf, (uint64_t)file.len, &later);
    else wrong = wr_halves_decode(&halves, file.buf, (uint64_t)file.len, &head);
    Py_END_ALLOW_THREADS
    const uint64_t n = is_later ? pending.n : wr_halves_pending(&halves) + halves.next - halves.first;
    wr_pending_free(&pending);
    wr_halves_free(&halves);
    PyBuffer_Release(&file);
    if (wrong && !strcmp(wrong, "memory")) return PyErr_NoMemory();
    if (wrong) return PyErr_Format(PyExc_ValueError, "%s", wrong);
    return Py_BuildValue("(KK)", (unsigned long long)(is_later ? later.position : head.position), (unsigned long long)n);
}

static PyObject *mount_number(PyObject *module, PyObject *given) {
    (void)module;
    const long fd = PyLong_AsLong(given);
    return fd == -1 && PyErr_Occurred() ? NULL : PyLong_FromUnsignedLongLong(wr_folder_mount((int)fd));
}

static PyMethodDef methods[] = {
    {"mount_number", mount_number, METH_O, NULL},
    {"topics_snapshot", topics_snapshot, METH_VARARGS, NULL},
    {"topics_examine", (PyCFunction)(void *)topics_examine, METH_FASTCALL, NULL},
    {"topics_rebuild", (PyCFunction)(void *)topics_rebuild, METH_FASTCALL, NULL},
    {"topics_survey", (PyCFunction)(void *)topics_survey, METH_FASTCALL, NULL},
    {"topics_next_commit", (PyCFunction)(void *)topics_next_commit, METH_FASTCALL, NULL},
    {"topics_newest", (PyCFunction)(void *)topics_newest, METH_FASTCALL, NULL},
    {"topics_preview", (PyCFunction)(void *)topics_preview, METH_FASTCALL, NULL},
    {"topics_checkpoint", (PyCFunction)(void *)topics_checkpoint, METH_FASTCALL, NULL},
    {NULL, NULL, 0, NULL},
};

int wr_bind_topic_check(PyObject *module) { return PyModule_AddFunctions(module, methods); }
