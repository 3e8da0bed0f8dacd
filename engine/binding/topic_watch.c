/* TopicWatch: what a member of a group looks at before each message: has the group another stamp by now? One load. And where it says that its
 * process runs.
 *
 * The region is held as a buffer until close, which any thread may call: looks and closes are calls with the GIL held, so none is inside while
 * another closes. A watch that is closed says that there is a change: its member synchronises, and gets another one. */
#include "binding/arguments.h"
#include "topics/rows.h"

typedef struct {
    PyObject_HEAD
    Py_buffer rows;
    wr_topic_group_seen seen;
    uint32_t row; /* its own */
    uint64_t member;
} WatchObject;

static PyObject *watch_new(PyTypeObject *type, PyObject *args, PyObject *keywords) {
    static char *names[] = {"rows", "row", "stamp", "member_row", "member", NULL};
    PyObject *rows;
    unsigned int row, own;
    unsigned long long stamp, member;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "OIKIK:TopicWatch", names, &rows, &row, &stamp, &own, &member)) return NULL;
    WatchObject *self = (WatchObject *)type->tp_alloc(type, 0);
    if (!self) return NULL;
    self->seen = (wr_topic_group_seen){.row = row, .stamp = stamp};
    self->row = own;
    self->member = member;
    if (PyObject_GetBuffer(rows, &self->rows, PyBUF_SIMPLE) < 0) {
        Py_DECREF(self);
        return NULL;
    }
    if ((uint64_t)self->rows.len >= WR_TOPIC_ROWS_BYTES) return (PyObject *)self;
    Py_DECREF(self);
    return PyErr_Format(PyExc_ValueError, "the region is too small");
}

static void watch_dealloc(WatchObject *self) {
    PyTypeObject *type = Py_TYPE(self);
    drop_buffer(&self->rows);
    type->tp_free((PyObject *)self);
    Py_DECREF(type);
}

static PyObject *watch_changed(WatchObject *self, PyObject *ignored) {
    (void)ignored;
    return PyBool_FromLong(!self->rows.obj || wr_topic_group_changed(self->rows.buf, &self->seen));
}

static PyObject *watch_beat(WatchObject *self, PyObject *calls) {
    const unsigned long long n = PyLong_AsUnsignedLongLong(calls);
    if (PyErr_Occurred()) return NULL;
    if (self->rows.obj) wr_topic_member_beat(self->rows.buf, self->row, self->member, n);
    Py_RETURN_NONE;
}

static PyObject *watch_close(WatchObject *self, PyObject *ignored) {
    (void)ignored;
    drop_buffer(&self->rows);
    Py_RETURN_NONE;
}

static PyMethodDef watch_methods[] = {
    {"changed", (PyCFunction)watch_changed, METH_NOARGS, "Whether the group has changed since, or this was closed."},
    {"beat", (PyCFunction)watch_beat, METH_O, "The process runs, and the program has called so often."},
    {"close", (PyCFunction)watch_close, METH_NOARGS, "Let go of the region."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot watch_slots[] = {
    {Py_tp_doc, "What a member of a group of readers looks at before each message."},
    {Py_tp_new, watch_new},
    {Py_tp_dealloc, watch_dealloc},
    {Py_tp_methods, watch_methods},
    {0, NULL},
};

static PyType_Spec watch_spec = {"warren.engine._core.TopicWatch", sizeof(WatchObject), 0, Py_TPFLAGS_DEFAULT, watch_slots};

int wr_bind_topic_watch(PyObject *module) {
    PyObject *type = PyType_FromSpec(&watch_spec);
    int result = type ? PyModule_AddObjectRef(module, "TopicWatch", type) : -1;
    Py_XDECREF(type);
    return result;
}
