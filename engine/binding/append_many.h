/* Many messages appended by one call. */
#ifndef WR_BINDING_APPEND_MANY_H
#define WR_BINDING_APPEND_MANY_H
#include "binding/topic_handle.h"

/* TopicHandle.append_many(bodies, keys, tags, properties, queues, born, later, level, timeout, wait) */
PyObject *wr_topic_append_many(PyObject *op, PyObject *const *args, Py_ssize_t given);
/* check_many(bodies, keys, tags, properties, queues, born, later): raises what append_many would find wrong, before it sends anything. */
PyObject *wr_topic_check_many(PyObject *op, PyObject *const *args, Py_ssize_t given);
#endif
