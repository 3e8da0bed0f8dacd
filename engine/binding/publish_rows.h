/* Publishing the rows of columns, without an object for each. */
#ifndef WR_BINDING_PUBLISH_ROWS_H
#define WR_BINDING_PUBLISH_ROWS_H
#include "binding/publish.h"

/* Client.publish_rows(routes, rows, bodies, metas, which, extras, level, timeout, wait, numbers) */
PyObject *wr_client_publish_rows(PyObject *op, PyObject *const *args, Py_ssize_t given);
#endif
