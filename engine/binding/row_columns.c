/* Columns of rows. Declared in binding/row_columns.h. */
#include "binding/row_columns.h"
#include "binding/arguments.h"

int wr_row_numbers_take(PyObject *given, Py_ssize_t rows, Py_ssize_t item_bytes, const char *what, wr_row_numbers *to) {
    to->buf = NULL;
    to->obj = NULL;
    if (given == Py_None) return 0;
    if (PyObject_GetBuffer(given, to, PyBUF_SIMPLE)) return -1;
    if (to->len >= rows * item_bytes && to->buf) return 0;
    PyErr_Format(PyExc_ValueError, "%s: %zd bytes for %zd rows", what, to->len, rows);
    wr_row_numbers_drop(to);
    return -1;
}

void wr_row_numbers_drop(wr_row_numbers *numbers) {
    drop_buffer(numbers);
    numbers->buf = NULL;
}

/* A copy of rows + 1 ends, which rise and do not pass `most`. NULL with an exception. */
static int32_t *ends_of(PyObject *given, Py_ssize_t rows, int64_t most, const char *what) {
    wr_row_numbers raw;
    if (wr_row_numbers_take(given, rows + 1, 4, what, &raw)) return NULL;
    int32_t *ends = PyMem_Malloc((size_t)(rows + 1) * sizeof *ends);
    if (!ends || !raw.buf) {
        if (ends) PyErr_Format(PyExc_TypeError, "%s: there are no ends", what);
        else PyErr_NoMemory();
    } else {
        memcpy(ends, raw.buf, (size_t)(rows + 1) * sizeof *ends);
        bool wrong = ends[0] < 0 || ends[rows] > most;
        for (Py_ssize_t i = 0; i < rows; i++) wrong |= ends[i] > ends[i + 1];
        if (wrong) PyErr_Format(PyExc_ValueError, "%s: the ends of its rows do not rise, or lie outside", what);
    }
    wr_row_numbers_drop(&raw);
    if (!PyErr_Occurred()) return ends;
    PyMem_Free(ends);
    return NULL;
}

int wr_row_texts_take(PyObject *given, Py_ssize_t rows, const char *what, wr_row_texts *to) {
    *to = (wr_row_texts){.ends = NULL};
    if (given == Py_None) return 0;
    if (!PyTuple_CheckExact(given) || PyTuple_GET_SIZE(given) != 3) {
        PyErr_Format(PyExc_TypeError, "%s: a column is (ends, bytes, valid)", what);
        return -1;
    }
    if (PyObject_GetBuffer(PyTuple_GET_ITEM(given, 1), &to->bytes, PyBUF_SIMPLE)) return -1;
    if (!wr_row_numbers_take(PyTuple_GET_ITEM(given, 2), rows, 1, what, &to->valid) &&
        (to->ends = ends_of(PyTuple_GET_ITEM(given, 0), rows, to->bytes.len, what)))
        return 0;
    wr_row_texts_drop(to);
    return -1;
}

void wr_row_texts_drop(wr_row_texts *texts) {
    PyMem_Free(texts->ends);
    texts->ends = NULL;
    drop_buffer(&texts->bytes);
    drop_buffer(&texts->valid);
}

int wr_row_pairs_take(PyObject *given, Py_ssize_t rows, wr_row_pairs *to) {
    *to = (wr_row_pairs){.ends = NULL};
    if (given == Py_None) return 0;
    if (!PyTuple_CheckExact(given) || PyTuple_GET_SIZE(given) != 6) {
        PyErr_SetString(PyExc_TypeError, "headers are (ends, valid, names, values, pair_valid, value_is_text)");
        return -1;
    }
    if (!(to->ends = ends_of(PyTuple_GET_ITEM(given, 0), rows, INT32_MAX, "headers"))) return -1;
    const Py_ssize_t pairs = to->ends[rows];
    to->value_is_text = PyTuple_GET_ITEM(given, 5) == Py_True;
    if (!wr_row_numbers_take(PyTuple_GET_ITEM(given, 1), rows, 1, "headers", &to->valid) &&
        !wr_row_texts_take(PyTuple_GET_ITEM(given, 2), pairs, "names of headers", &to->names) &&
        !wr_row_texts_take(PyTuple_GET_ITEM(given, 3), pairs, "values of headers", &to->values) &&
        !wr_row_numbers_take(PyTuple_GET_ITEM(given, 4), pairs, 1, "headers", &to->pair_valid))
        return 0;
    wr_row_pairs_drop(to);
    return -1;
}

void wr_row_pairs_drop(wr_row_pairs *pairs) {
    PyMem_Free(pairs->ends);
    pairs->ends = NULL;
    wr_row_numbers_drop(&pairs->valid);
    wr_row_numbers_drop(&pairs->pair_valid);
    wr_row_texts_drop(&pairs->names);
    wr_row_texts_drop(&pairs->values);
}

int wr_row_names_take(PyObject *given, Py_ssize_t rows, wr_row_names *to) {
    *to = (wr_row_names){.first = 0};
    return PyLong_Check(given) ? number_of(given, 63, "the first row", &to->first) : wr_row_numbers_take(given, rows, 8, "numbers of rows", &to->each);
}

int wr_raise_of_row(const wr_row_names *names, Py_ssize_t row) {
    const uint64_t number = names->each.buf ? ((const uint64_t *)names->each.buf)[row] : names->first + (uint64_t)row;
    PyObject *type, *value, *trace;
    if (!PyErr_ExceptionMatches(PyExc_Exception)) return -1;
    PyErr_Fetch(&type, &value, &trace);
    PyErr_NormalizeException(&type, &value, &trace);
    PyObject *told = value ? PyUnicode_FromFormat("row %llu: %S", (unsigned long long)number, value) : NULL;
    PyObject *args = told ? PyTuple_Pack(1, told) : NULL;
    if (!args || PyObject_SetAttrString(value, "args", args)) PyErr_Clear();
    Py_XDECREF(told);
    Py_XDECREF(args);
    PyErr_Restore(type, value, trace);
    return -1;
}
