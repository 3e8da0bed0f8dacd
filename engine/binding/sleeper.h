/* One thread that waits for all attachments of a process, and what never waits for one thing. */
#ifndef WR_BINDING_SLEEPER_H
#define WR_BINDING_SLEEPER_H
#include "binding/session.h"

void wr_waiter_kick(void); /* the thread in wait_any looks at its clients anew */
/* Methods of Client. */
PyObject *wr_client_watch(PyObject *op, PyObject *const *args, Py_ssize_t given);
PyObject *wr_client_room(PyObject *op, PyObject *const *args, Py_ssize_t given);
PyObject *wr_client_check(PyObject *op, PyObject *argument);
PyObject *wr_client_lying(PyObject *op, PyObject *argument);
PyObject *wr_client_set_doorbell(PyObject *op, PyObject *argument);
PyObject *wr_client_trouble(PyObject *op, PyObject *const *args, Py_ssize_t given);
#endif
