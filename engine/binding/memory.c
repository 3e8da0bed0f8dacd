/* Memory. It never changes, and lives as long as any buffer of it. */
#include "binding/memory.h"
#include <stdlib.h>

typedef struct {
    PyObject_HEAD
    void *bytes;
    Py_ssize_t n;
} MemoryObject;

PyObject *wr_memory_new(void *bytes, Py_ssize_t n) {
    MemoryObject *self = PyObject_New(MemoryObject, wr_module.memory_type);
    if (!self) {
        free(bytes);
        return NULL;
    }
    self->bytes = bytes;
    self->n = n;
    return (PyObject *)self;
}

static void memory_dealloc(PyObject *op) {
    PyTypeObject *type = Py_TYPE(op);
    free(((MemoryObject *)op)->bytes);
    PyObject_Free(op);
    Py_DECREF(type);
}

static int memory_buffer(PyObject *op, Py_buffer *view, int flags) {
    const MemoryObject *self = (MemoryObject *)op;
    static char nothing[1];
    return PyBuffer_FillInfo(view, op, self->bytes ? self->bytes : nothing, self->n, 1, flags);
}

static Py_ssize_t memory_length(PyObject *op) { return ((MemoryObject *)op)->n; }

static PyType_Slot memory_slots[] = {
    {Py_tp_doc, "Bytes of the core, read-only, as a buffer."},
    {Py_tp_dealloc, memory_dealloc},
    {Py_bf_getbuffer, memory_buffer},
    {Py_sq_length, memory_length},
    {0, NULL},
};

static PyType_Spec memory_spec = {"warren.engine._core.Memory", sizeof(MemoryObject), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
                                  memory_slots};

int wr_bind_memory(PyObject *module) {
    wr_module.memory_type = (PyTypeObject *)PyType_FromSpec(&memory_spec);
    return wr_module.memory_type ? PyModule_AddObjectRef(module, "Memory", (PyObject *)wr_module.memory_type) : -1;
}
