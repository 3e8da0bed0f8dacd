/* What the worker is asked to deliver to a handle, and how that ends. */
#ifndef WR_BINDING_QUEUE_CREDIT_H
#define WR_BINDING_QUEUE_CREDIT_H
#include "binding/queue_handle.h"

/* 0, 1 (not done, or not known, until the deadline), -1 with an exception. */
int wr_credit_announce(HandleObject *h, uint64_t credit, uint32_t prefetch, uint64_t deadline); /* send a credit */
int wr_credit_ensure(HandleObject *h, uint32_t wanted, uint64_t deadline); /* up to `wanted` more than what lies here */
int wr_credit_again(HandleObject *h, uint64_t deadline); /* what was asked for is asked for once more */
int wr_credit_cancel(HandleObject *h, uint64_t deadline); /* nothing more is to come; what is under way is taken in */

#define WR_UNACKED_MAX 500 /* of those who consume without a number, in a process without event loops */

bool wr_credit_quiet(const HandleObject *h); /* nothing is asked for, and nothing more can come of what was */
bool wr_credit_still(const HandleObject *h); /* the same, or what was asked for has come */
int wr_credit_ahead(HandleObject *h, wr_condition *blocked); /* of who adapts: h->window ahead. 0, EAGAIN, ECONNRESET */
/* Of a handle that adapts: unused credit is taken back. Of one with a prefetch: the prefetch becomes one, so that
 * nothing comes while anything is held here, until the next poll announces it again. 0, or an error of
 * wr_attachment_credit. */
int wr_credit_take_back(HandleObject *h, wr_condition *blocked);
uint64_t wr_credit_hoarded(const HandleObject *h); /* messages that lie here, or may come, unasked for */
void wr_credit_remind(HandleObject *h); /* of a queue with an ack timeout: the worker is told, now and then, that we wait */
int wr_credit_tell_hot(HandleObject *h); /* Python is told, once, that there is a hoard. 0, -1 */
int wr_credit_end(HandleObject *h, uint64_t deadline); /* cancel, and what lies here returns. 0, -1 */
/* What lies here returns but the first `keep`; the worker goes on to count us among the consumers. 0 (also if it is not
 * known by the deadline that nothing more comes; then nothing returns), -1 */
int wr_credit_thin(HandleObject *h, uint64_t keep, uint64_t deadline);

/* Methods of QueueHandle. */
PyObject *wr_handle_begin(PyObject *op, PyObject *argument);
PyObject *wr_handle_release(PyObject *op, PyObject *const *args, Py_ssize_t given);
PyObject *wr_handle_hoard(PyObject *op, PyObject *unused);
PyObject *wr_handle_tidy(PyObject *op, PyObject *unused);
#endif
