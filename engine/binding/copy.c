/* The type Collection: one collection (store/copy.h) with its own reader of the store's index, stepped by the
 * collector's process.
 *
 * It belongs to one thread; step runs without the GIL. It keeps its lists and the superblock's buffer alive.
 */
#include "binding/arguments.h"
#include "binding/file_list.h"
#include "store/copy.h"
#include "store/index_reader.h"
#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

typedef struct {
    PyObject_HEAD
    Py_buffer super, summary;
    wr_summary_row **rows; /* of the files that were there at the beginning; later ones lie further on */
    uint64_t rows_n;
    PyObject *lists; /* tuple of the FileLists */
    wr_index_reader reader;
    bool reader_open;
    bool running;
    wr_collect *collect;
} CollectionObject;

static int lookup(void *context, const uint8_t id[16], wr_index_entry *copy) {
    return wr_index_lookup(&((CollectionObject *)context)->reader, id, copy);
}

/* A row may have become another file's since: that one lies further on, or is taken for one more that may haunt. */
static bool ghosts(void *context, uint64_t position) {
    const CollectionObject *self = context;
    for (uint64_t i = 0; i < self->rows_n; i++) {
        wr_summary_row *row = self->rows[i];
        if (row->position_low > position || !atomic_load_explicit(&row->file, memory_order_acquire)) continue;
        /* SYNC ghosts: the server sets it before the entry goes */
        if (atomic_load_explicit(&row->ghosts, memory_order_acquire)) return true;
    }
    return false;
}

static int find_rows(CollectionObject *self) {
    uint64_t n = (uint64_t)self->summary.len / sizeof(wr_summary_row);
    wr_summary_row *all = self->summary.buf;
    self->rows = malloc((n + 1) * sizeof *self->rows);
    if (!self->rows) return ENOMEM;
    for (uint64_t i = 0; i < n; i++)
        if (atomic_load_explicit(&all[i].file, memory_order_acquire)) self->rows[self->rows_n++] = &all[i];
    return 0;
}
static ssize_t read_at(void *context, int fd, void *to, size_t n, off_t at) {
    (void)context;
    return pread(fd, to, n, at);
}
static ssize_t write_at(void *context, int fd, const void *from, size_t n, off_t at) {
    (void)context;
    return pwrite(fd, from, n, at);
}

static void release_all(CollectionObject *self) {
    wr_collect_free(self->collect);
    self->collect = NULL;
    if (self->reader_open) wr_index_reader_close(&self->reader);
    self->reader_open = false;
    Py_CLEAR(self->lists);
    free(self->rows);
    self->rows = NULL;
    drop_buffer(&self->summary);
    drop_buffer(&self->super);
}

static void collection_dealloc(PyObject *op) {
    release_all((CollectionObject *)op);
    Py_TYPE(op)->tp_free(op);
}

/* The collection at hand; NULL with an exception when it is closed, or busy. */
static wr_collect *collect_of(PyObject *op) {
    CollectionObject *self = (CollectionObject *)op;
    if (!self->collect) PyErr_SetString(PyExc_ValueError, "this collection is closed");
    else if (self->running) PyErr_SetString(PyExc_RuntimeError, "another thread steps this collection");
    else return self->collect;
    return NULL;
}

/* (fd, FileList, position_high, keep_controls), …: the sources, NULL with an exception; *lists keeps them alive. */
static wr_collect_source *sources_of(PyObject *sequence, PyObject **lists, uint32_t *n) {
    PyObject *items = PySequence_Fast(sequence, "the sources are a sequence of (fd, FileList, position_high, keep_controls)");
    if (!items) return NULL;
    Py_ssize_t count = PySequence_Fast_GET_SIZE(items);
    wr_collect_source *sources = calloc((size_t)count + 1, sizeof *sources);
    *lists = PyTuple_New(count);
    if (!sources || !*lists) {
        PyErr_NoMemory();
        goto failed;
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *list;
        int keep;
        unsigned long long high;
        if (!PyArg_ParseTuple(PySequence_Fast_GET_ITEM(items, i), "iOKp", &sources[i].fd, &list, &high, &keep)) goto failed;
        sources[i].high = high;
        sources[i].keep_controls = keep;
        if (!(sources[i].list = wr_file_list_of(list))) goto failed;
        Py_INCREF(list);
        PyTuple_SET_ITEM(*lists, i, list);
    }
    *n = (uint32_t)count;
    Py_DECREF(items);
    return sources;
failed:
    free(sources);
    Py_CLEAR(*lists);
    Py_DECREF(items);
    return NULL;
}

static PyObject *collection_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"superblock", "summary", "server", "sources", "fd", "file_bytes", "node_id", "file", "salt", "low", "high", "created_ns", NULL};
    PyObject *given;
    unsigned int server;
    wr_collect_output out = {0};
    unsigned long long file_bytes, node_id, file, salt, low, high, created_ns;
    CollectionObject *self = (CollectionObject *)type->tp_alloc(type, 0);
    if (!self) return NULL;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "w*y*IOiKKKKKKK:Collection", names, &self->super, &self->summary, &server, &given, &out.fd, &file_bytes,
                                     &node_id, &file, &salt, &low, &high, &created_ns))
        goto failed;
    if ((size_t)self->super.len < WR_SUPERBLOCK_BYTES || server > WR_SERVER_STORE_TRANSIENT || file_bytes < 2 * WR_PAGE_BYTES ||
        file_bytes % WR_PAGE_BYTES) {
        PyErr_SetString(PyExc_ValueError, "this is no superblock, no store, or no size of a file");
        goto failed;
    }
    out.file_bytes = file_bytes;
    out.node_id = node_id;
    out.owner = server;
    out.file = file;
    out.salt = salt;
    out.low = low;
    out.high = high;
    out.created_ns = created_ns;
    uint32_t n;
    wr_collect_source *sources = sources_of(given, &self->lists, &n);
    if (!sources) goto failed;
    wr_collect_io io = {lookup, ghosts, read_at, write_at, self};
    int error = wr_index_reader_init(&self->reader, self->super.buf, server);
    self->reader_open = !error;
    if (!error && !(error = find_rows(self))) {
        self->collect = wr_collect_new(sources, n, &out, &io);
    }
    free(sources);
    if (!self->collect) {
        PyErr_NoMemory();
        goto failed;
    }
    return (PyObject *)self;
failed:
    Py_DECREF(self);
    return NULL;
}

static PyObject *collection_step(PyObject *op, PyObject *const *args, Py_ssize_t given) {
    CollectionObject *self = (CollectionObject *)op;
    uint64_t bytes;
    if (!count_ok("step", given, 1) || numbers(args, 1, &bytes)) return NULL;
    wr_collect *collect = collect_of(op);
    if (!collect) return NULL;
    int error;
    self->running = true;
    Py_BEGIN_ALLOW_THREADS
    error = wr_collect_step(collect, bytes);
    Py_END_ALLOW_THREADS
    self->running = false;
    if (!error) Py_RETURN_TRUE;
    if (error == EAGAIN) Py_RETURN_FALSE;
    return os_error(error);
}

static PyObject *collection_fits(PyObject *op, PyObject *unused) {
    (void)unused;
    const wr_collect *collect = collect_of(op);
    return collect ? PyLong_FromUnsignedLong(wr_collect_fits(collect)) : NULL;
}

static PyObject *collection_counts(PyObject *op, PyObject *unused) {
    (void)unused;
    const wr_collect *collect = collect_of(op);
    if (!collect) return NULL;
    const wr_collect_counts *n = wr_collect_counted(collect);
    return Py_BuildValue("{s:K,s:K,s:K,s:K,s:K,s:K}", "messages", (unsigned long long)n->messages, "message_bytes",
                         (unsigned long long)n->message_bytes, "controls", (unsigned long long)n->controls, "dropped",
                         (unsigned long long)n->dropped, "read_bytes", (unsigned long long)n->read_bytes, "written_bytes",
                         (unsigned long long)n->written_bytes);
}

static PyObject *collection_damage(PyObject *op, PyObject *unused) {
    (void)unused;
    uint64_t n;
    const wr_collect *collect = collect_of(op);
    if (!collect) return NULL;
    const wr_collect_damage *damage = wr_collect_damaged(collect, &n);
    PyObject *found = PyList_New((Py_ssize_t)n);
    for (uint64_t i = 0; found && i < n; i++) {
        PyObject *item = Py_BuildValue("(y#KKKsi)", (const char *)damage[i].id, (Py_ssize_t)16, (unsigned long long)damage[i].file,
                                       (unsigned long long)damage[i].offset, (unsigned long long)damage[i].total, damage[i].reason, (int)damage[i].kind);
        if (item)
            PyList_SET_ITEM(found, (Py_ssize_t)i, item);
        else
            Py_CLEAR(found);
    }
    return found;
}

static PyObject *collection_take_list(PyObject *op, PyObject *unused) {
    (void)unused;
    wr_collect *collect = collect_of(op);
    if (!collect) return NULL;
    wr_list *list = wr_collect_take_list(collect);
    if (list) return wr_file_list_wrap(list);
    PyErr_SetString(PyExc_RuntimeError, "this collection has no list, or gave it away");
    return NULL;
}

static PyObject *collection_close(PyObject *op, PyObject *unused) {
    (void)unused;
    CollectionObject *self = (CollectionObject *)op;
    if (self->collect && !collect_of(op)) return NULL;
    release_all(self);
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"close", collection_close, METH_NOARGS, "Let go of all memory."},
    {"step", (PyCFunction)(void (*)(void))collection_step, METH_FASTCALL, "Go on for about so many bytes; True when all is written."},
    {"fits", collection_fits, METH_NOARGS, "After OSError(E2BIG): so many of the sources fit."},
    {"counts", collection_counts, METH_NOARGS, "What was copied so far."},
    {"damage", collection_damage, METH_NOARGS, "(id, file, offset, total, reason, kind) of each needed record that is damaged."},
    {"take_list", collection_take_list, METH_NOARGS, "The output's FileList; the end of this collection."},
    {NULL, NULL, 0, NULL},
};

static PyTypeObject type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "warren.engine._core.Collection",
    .tp_basicsize = sizeof(CollectionObject),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_doc = "A collection of neighbouring files into one.",
    .tp_new = collection_new,
    .tp_dealloc = collection_dealloc,
    .tp_methods = methods,
};

int wr_bind_collect(PyObject *module) { return PyModule_AddType(module, &type); }
