/* What never waits for one queue: methods of QueueHandle. */
#ifndef WR_BINDING_QUEUE_POLL_H
#define WR_BINDING_QUEUE_POLL_H
#include "binding/queue_handle.h"

PyObject *wr_handle_poll(PyObject *op, PyObject *const *args, Py_ssize_t given);
PyObject *wr_handle_stop(PyObject *op, PyObject *unused);
PyObject *wr_handle_leave(PyObject *op, PyObject *unused);
PyObject *wr_handle_ask(PyObject *op, PyObject *unused);
PyObject *wr_handle_again(PyObject *op, PyObject *unused);
PyObject *wr_handle_give_back(PyObject *op, PyObject *const *args, Py_ssize_t given);
PyObject *wr_handle_adapt(PyObject *op, PyObject *const *args, Py_ssize_t given);
PyObject *wr_handle_take_back(PyObject *op, PyObject *unused);
#endif
