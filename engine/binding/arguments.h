/* What the bindings do with the arguments of a call. */
#ifndef WR_BINDING_ARGS_H
#define WR_BINDING_ARGS_H
#include "binding/module.h"
#include <stdint.h>

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

#endif
