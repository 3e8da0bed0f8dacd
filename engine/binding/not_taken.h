/* What a node that was stopped never took: how it is known, and said. */
#ifndef WR_BINDING_NOT_TAKEN_H
#define WR_BINDING_NOT_TAKEN_H
#include "binding/session.h"

/* After the attachment has ended: is it known that the worker never took this command, nor ever will? */
static inline bool wr_never_taken(const ClientObject *c, uint32_t server, uint64_t sequence) {
    return c->ended && c->closed[server] && sequence >= c->closed[server] - 1;
}

/* Numbers as a tuple; NULL with an exception. */
PyObject *wr_numbers_tuple(const uint64_t *numbers, Py_ssize_t n);
/* To the exception that ends a call in the middle: `not_taken`, the indices of what nobody has of it (stolen; NULL: no memory), and `confirm`
 * (stolen), of the whole call. */
void wr_tell_confirm(PyObject *not_taken, PyObject *confirm);
/* Raise ClosedError for messages that a node which was stopped never took; `indices` (NULL: it is one message) and what they are of. -1. */
int wr_raise_not_taken(const uint64_t *indices, Py_ssize_t n, uint64_t messages_n);
#endif
