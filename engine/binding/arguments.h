/* What every binding does with the arguments of a call: how many, numbers, ids, buffers, and OSError. */
#ifndef WR_BINDING_ARGUMENTS_H
#define WR_BINDING_ARGUMENTS_H
#include "binding/module.h"
#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

static inline int count_ok(const char *name, Py_ssize_t given, Py_ssize_t wanted) {
    if (given == wanted) return 1;
    PyErr_Format(PyExc_TypeError, "%s takes %zd arguments, %zd given", name, wanted, given);
    return 0;
}

/* The same, naming what is wanted; returns NULL from the function. */
#define WR_ARGUMENTS(n, names)                                                                \
    if (given != (n)) return PyErr_Format(PyExc_TypeError, "arguments: %s", names)

/* An unsigned number of at most `bits` bits; -1 with an exception set. */
static inline int number_of(PyObject *object, int bits, const char *name, uint64_t *to) {
    unsigned long long value = PyLong_AsUnsignedLongLong(object);
    if (value == (unsigned long long)-1 && PyErr_Occurred()) return -1;
    if (bits < 64 && value >> bits) {
        PyErr_Format(PyExc_OverflowError, "%s does not fit into %d bits", name, bits);
        return -1;
    }
    *to = value;
    return 0;
}

/* OSError. Returns NULL. */
static inline PyObject *raise_errno(int error, const char *what) {
    PyObject *args = Py_BuildValue("(is)", error, what);
    if (args) PyErr_SetObject(PyExc_OSError, args);
    Py_XDECREF(args);
    return NULL;
}

/* The same without a text. */
static inline PyObject *os_error(int error) {
    errno = error;
    return PyErr_SetFromErrno(PyExc_OSError);
}

/* Unsigned numbers from arguments; -1 with an exception set. */
static inline int numbers(PyObject *const *args, Py_ssize_t n, uint64_t *to) {
    for (Py_ssize_t i = 0; i < n; i++) {
        unsigned long long value = PyLong_AsUnsignedLongLong(args[i]);
        if (value == (unsigned long long)-1 && PyErr_Occurred()) return -1;
        to[i] = value;
    }
    return 0;
}

static inline void drop_buffer(Py_buffer *buffer) {
    if (buffer->obj) PyBuffer_Release(buffer);
    buffer->obj = NULL;
}

/* The ids in a sequence; -1 with an exception. The caller frees them. */
static inline int ids_of(PyObject *list, uint8_t (**ids)[16], Py_ssize_t *n) {
    PyObject *fast = PySequence_Fast(list, "a list of ids is wanted");
    if (!fast) return -1;
    *n = PySequence_Fast_GET_SIZE(fast);
    *ids = malloc((size_t)(*n ? *n : 1) * 16);
    for (Py_ssize_t i = 0; i < *n; i++) {
        PyObject *item = PySequence_Fast_GET_ITEM(fast, i);
        if (!*ids || !PyBytes_Check(item) || PyBytes_GET_SIZE(item) != 16) {
            PyErr_SetString(PyExc_ValueError, "an id is 16 bytes");
            free(*ids);
            Py_DECREF(fast);
            return -1;
        }
        memcpy((*ids)[i], PyBytes_AS_STRING(item), 16);
    }
    Py_DECREF(fast);
    return 0;
}

#define FAST(name, function, doc) {name, (PyCFunction)(void (*)(void))(function), METH_FASTCALL, doc}
#endif
