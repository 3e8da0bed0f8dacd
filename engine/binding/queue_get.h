/* A get: the next message of a queue, waited for. */
#ifndef WR_BINDING_QUEUE_GET_H
#define WR_BINDING_QUEUE_GET_H
#include "binding/queue_handle.h"

#define WR_ANSWER_NS 250000000ull /* a get gives the worker at least so long to answer, whatever its timeout is */
extern const char wr_the_answer[]; /* what a get that was not answered says */

void wr_handle_note_call(HandleObject *h, uint32_t wanted); /* one more get, of binding/queue_poll.c; sets `window` */

/* Methods of QueueHandle. */
PyObject *wr_handle_check_slots(PyObject *op, PyObject *unused);
PyObject *wr_handle_get(PyObject *op, PyObject *const *args, Py_ssize_t given);
PyObject *wr_handle_get_many(PyObject *op, PyObject *const *args, Py_ssize_t given);
#endif
