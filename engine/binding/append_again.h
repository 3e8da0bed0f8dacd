/* A message that a group has tried is appended again, to a topic of the group, with what its record had. */
#ifndef WR_BINDING_APPEND_AGAIN_H
#define WR_BINDING_APPEND_AGAIN_H
#include "binding/topic_handle.h"

/* TopicHandle.append_again(body, properties, queue, born, later, timeout): synced, and confirmed when it returns. */
PyObject *wr_topic_append_again(PyObject *op, PyObject *const *args, Py_ssize_t given);
#endif
