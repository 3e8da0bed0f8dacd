/* The messages of a browse answer. */
#ifndef WR_BINDING_COLUMNS_H
#define WR_BINDING_COLUMNS_H
#include "binding/module.h"

/* What Client.columns is asked for, beside what each row says by itself. */
#define WR_COLUMNS_VALUES 1
#define WR_COLUMNS_PLACES 2
#define WR_COLUMNS_METAS 4

PyObject *wr_columns(PyObject *client, PyObject *const *args, Py_ssize_t given);    /* Client.columns, the same for Arrow */
PyObject *wr_deliveries(PyObject *client, PyObject *const *args, Py_ssize_t given); /* Client.deliveries, for browsing */
#endif
