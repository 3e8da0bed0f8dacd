/* What a node that was stopped never took. Declared in binding/not_taken.h. */
#include "binding/not_taken.h"

PyObject *wr_numbers_tuple(const uint64_t *numbers, Py_ssize_t n) {
    PyObject *tuple = PyTuple_New(n);
    for (Py_ssize_t i = 0; tuple && i < n; i++) {
        PyObject *number = PyLong_FromUnsignedLongLong(numbers[i]);
        if (!number) Py_CLEAR(tuple);
        else PyTuple_SET_ITEM(tuple, i, number);
    }
    return tuple;
}

void wr_tell_confirm(PyObject *not_taken, PyObject *confirm) {
    PyObject *type, *value, *traceback;
    if (!not_taken || !confirm) { /* no memory: that is raised */
        Py_XDECREF(not_taken);
        Py_XDECREF(confirm);
        return;
    }
    PyErr_Fetch(&type, &value, &traceback);
    PyErr_NormalizeException(&type, &value, &traceback);
    if (value && !PyObject_SetAttrString(value, "not_taken", not_taken) && !PyObject_SetAttrString(value, "confirm", confirm)) {
        PyErr_Restore(type, value, traceback);
    } else {
        Py_XDECREF(type);
        Py_XDECREF(value);
        Py_XDECREF(traceback);
    }
    Py_DECREF(not_taken);
    Py_DECREF(confirm);
}

int wr_raise_not_taken(const uint64_t *indices, Py_ssize_t n, uint64_t messages_n) {
    if (!indices) return wr_raise("ClosedError", "the node was stopped before it took the message: it is not stored; start the node, and publish "
                                                 "it again");
    PyObject *numbers = wr_numbers_tuple(indices, n);
    if (!numbers) return -1;
    wr_raise("ClosedError", "the node was stopped before it took %zd of %llu messages: they are not stored, the others are; start the node, and "
                            "publish those that `not_taken` names again", n, (unsigned long long)messages_n);
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    PyErr_NormalizeException(&type, &value, &trace);
    if (value && PyObject_SetAttrString(value, "not_taken", numbers)) PyErr_Clear();
    Py_DECREF(numbers);
    PyErr_Restore(type, value, trace);
    return -1;
}
