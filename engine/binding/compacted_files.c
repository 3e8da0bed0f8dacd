/* Files of the newest messages, looked at by themselves. Declared in binding/compacted_files.h. */
#define _GNU_SOURCE
#include "binding/compacted_files.h"
#include "binding/arguments.h"
#include "topics/compacted_check.h"
#include "topics/hash.h"
#include <fcntl.h>
#include <unistd.h>

wr_compacted *wr_compacted_taken(int fd, const uint8_t *node, uint32_t topic, uint32_t queue) {
    const char *wrong;
    int error = 0;
    wr_compacted *file = NULL;
    const int own = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    if (own < 0) {
        os_error(errno);
        return NULL;
    }
    const wr_compacted_code code = wr_compacted_open(&file, own, node, topic, queue, &wrong, &error);
    if (code == WR_COMPACTED_FOUND) return file;
    close(own);
    if (code == WR_COMPACTED_DAMAGED) raise_errno(EUCLEAN, wrong);
    else if (error == ENOMEM) PyErr_NoMemory();
    else os_error(error);
    return NULL;
}

/* compacted_look(fd, node, topic, queue): what its head and its tables say, as a dict. */
static PyObject *compacted_look(PyObject *module, PyObject *args) {
    (void)module;
    int fd;
    unsigned int topic, queue;
    const char *node;
    Py_ssize_t node_n;
    if (!PyArg_ParseTuple(args, "iy#II:compacted_look", &fd, &node, &node_n, &topic, &queue)) return NULL;
    if (node_n != 16) return PyErr_Format(PyExc_ValueError, "a node is 16 bytes");
    wr_compacted *file = wr_compacted_taken(fd, (const uint8_t *)node, topic, queue);
    if (!file) return NULL;
    const uint64_t oldest = wr_compacted_oldest_tombstone(file);
    PyObject *found = Py_BuildValue("{s:K,s:K,s:K,s:K,s:K,s:K,s:K}", "first", (unsigned long long)wr_compacted_first(file), "end",
                                    (unsigned long long)file->id.end, "made", (unsigned long long)file->id.made, "bytes", (unsigned long long)file->size,
                                    "records", (unsigned long long)file->records_n, "tombstones", (unsigned long long)file->tombstones_n, "oldest",
                                    (unsigned long long)(oldest == UINT64_MAX ? 0 : oldest));
    wr_compacted_close(file);
    return found;
}

/* ---- all of it ---- */

typedef struct {
    wr_compacted_wrong *all;
    uint64_t n, room;
    PyThreadState *thread; /* of who called, while the GIL is released */
} wrongs;

static int note_wrong(void *context, const wr_compacted_wrong *wrong) {
    wrongs *w = context;
    if (w->n == w->room) {
        const uint64_t room = w->room ? 2 * w->room : 16;
        wr_compacted_wrong *all = realloc(w->all, room * sizeof *all);
        if (!all) return ENOMEM;
        w->all = all;
        w->room = room;
    }
    w->all[w->n++] = *wrong;
    return 0;
}

/* An exception of Python's ends the work. */
static int look_for_signals(void *context) {
    wrongs *w = context;
    PyEval_RestoreThread(w->thread);
    const int error = PyErr_CheckSignals() ? ECANCELED : 0;
    w->thread = PyEval_SaveThread();
    return error;
}

static PyObject *list_of(const wrongs *w) {
    PyObject *list = PyList_New((Py_ssize_t)w->n);
    for (uint64_t i = 0; list && i < w->n; i++) {
        const wr_compacted_wrong *wrong = &w->all[i];
        PyObject *item = Py_BuildValue("(KKKs)", (unsigned long long)wrong->at, (unsigned long long)wrong->first, (unsigned long long)wrong->next, wrong->reason);
        if (item) PyList_SET_ITEM(list, (Py_ssize_t)i, item);
        else Py_CLEAR(list);
    }
    return list;
}

/* What is sound and below `end`, into `to` unless that is -1. 0 or an errno. */
static int check_into(wr_compacted_check *check, int to, uint64_t made, uint64_t end, uint64_t *records_n) {
    wr_compacted_writer writer;
    wr_compacted_id id = check->file->id;
    uint64_t size;
    if (to < 0) return wr_compacted_check_all(check, records_n);
    id.made = made;
    if (id.end > end) id.end = end;
    wr_compacted_begin(&writer, to, &id, wr_key_hash_topic(check->name, check->name_n), &wr_commit_io_system, NULL);
    check->writer = &writer;
    int error = wr_compacted_check_all(check, records_n);
    if (!error) error = wr_compacted_finish(&writer, &size);
    wr_compacted_end(&writer);
    return error;
}

/* compacted_check(fd, node, topic, queue, name, to, made, end): (records that are sound, [(place, first, next, reason)]). */
static PyObject *compacted_check(PyObject *module, PyObject *args) {
    (void)module;
    int fd, to, error;
    unsigned int topic, queue;
    unsigned long long made, end;
    const char *node, *name;
    Py_ssize_t node_n, name_n;
    if (!PyArg_ParseTuple(args, "iy#IIy#iKK:compacted_check", &fd, &node, &node_n, &topic, &queue, &name, &name_n, &to, &made, &end)) return NULL;
    if (node_n != 16) return PyErr_Format(PyExc_ValueError, "a node is 16 bytes");
    wr_compacted *file = wr_compacted_taken(fd, (const uint8_t *)node, topic, queue);
    if (!file) return NULL;
    wrongs w = {.n = 0};
    uint64_t records_n = 0;
    wr_compacted_check check = {.file = file, .name = name, .name_n = (uint32_t)name_n, .wrong = note_wrong, .progress = look_for_signals, .context = &w};
    w.thread = PyEval_SaveThread();
    error = check_into(&check, to, made, end, &records_n);
    wr_compacted_close(file);
    PyEval_RestoreThread(w.thread);
    PyObject *list = error ? NULL : list_of(&w);
    free(w.all);
    if (error && !PyErr_Occurred()) error == ENOMEM ? PyErr_NoMemory() : os_error(error);
    return list ? Py_BuildValue("(KN)", (unsigned long long)records_n, list) : NULL;
}

/* compacted_empty(fd, node, topic, queue, name, end, made): a file without a record. */
static PyObject *compacted_empty(PyObject *module, PyObject *args) {
    (void)module;
    int fd;
    unsigned int topic, queue;
    unsigned long long end, made;
    const char *node, *name;
    Py_ssize_t node_n, name_n;
    if (!PyArg_ParseTuple(args, "iy#IIy#KK:compacted_empty", &fd, &node, &node_n, &topic, &queue, &name, &name_n, &end, &made)) return NULL;
    if (node_n != 16) return PyErr_Format(PyExc_ValueError, "a node is 16 bytes");
    wr_compacted_id id = {.topic = topic, .queue = queue, .end = end, .made = made};
    memcpy(id.node, node, 16);
    wr_compacted_writer writer;
    uint64_t size;
    wr_compacted_begin(&writer, fd, &id, wr_key_hash_topic((const uint8_t *)name, (uint32_t)name_n), &wr_commit_io_system, NULL);
    PyThreadState *thread = PyEval_SaveThread();
    int error = wr_compacted_finish(&writer, &size);
    wr_compacted_end(&writer);
    PyEval_RestoreThread(thread);
    if (error) return error == ENOMEM ? PyErr_NoMemory() : (os_error(error), NULL);
    Py_RETURN_NONE;
}

static PyMethodDef functions[] = {
    {"compacted_check", compacted_check, METH_VARARGS, "compacted_check(fd, node, topic, queue, name, to, made, end): what of a file of newest messages is damaged."},
    {"compacted_empty", compacted_empty, METH_VARARGS, "compacted_empty(fd, node, topic, queue, name, end, made): a file of newest messages that has none."},
    {"compacted_look", compacted_look, METH_VARARGS, "compacted_look(fd, node, topic, queue): what a file of newest messages says of itself."},
    {NULL, NULL, 0, NULL},
};

int wr_bind_compacted(PyObject *module) { return PyModule_AddFunctions(module, functions); }
