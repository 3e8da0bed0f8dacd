/* The messages of a browse answer. */
#ifndef WR_BINDING_COLUMNS_H
#define WR_BINDING_COLUMNS_H
#include "binding/module.h"

PyObject *wr_columns(PyObject *client, PyObject *const *args, Py_ssize_t given);    /* Client.columns, the same for Arrow */
PyObject *wr_deliveries(PyObject *client, PyObject *const *args, Py_ssize_t given); /* Client.deliveries, for browsing */
#endif
