/* Appending the rows of columns to a topic, without an object for each. */
#ifndef WR_BINDING_APPEND_ROWS_H
#define WR_BINDING_APPEND_ROWS_H
#include "binding/append_many.h"

/* TopicHandle.append_rows(rows, bodies, keys, tags, headers, queues, born, delays, level, timeout, wait, numbers) */
PyObject *wr_topic_append_rows(PyObject *op, PyObject *const *args, Py_ssize_t given);
#endif
