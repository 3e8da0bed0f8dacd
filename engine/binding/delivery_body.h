/* The bytes of a delivered message. */
#ifndef WR_BINDING_DELIVERY_BODY_H
#define WR_BINDING_DELIVERY_BODY_H
#include "binding/queue_handle.h"

/* From memory: true when the bytes were there. */
bool wr_body_from_image(ClientObject *c, uint32_t server, const wr_delivery *d, uint64_t from, void *to, uint64_t bytes);
/* From a file of the worker, without the GIL when the disk is asked. 0, or as wr_bodies_read; `meta` and `to` are the
 * caller's all the while. */
int wr_body_from_file(ClientObject *c, uint32_t server, const wr_delivery *d, void *meta, void *to, const char **reason);
/* The message of a delivery. NULL without an exception: it is not ours any more (or not there any more). `held`: it
 * lies in a delivery slot of ours, so the worker can be asked where it is now; its answer is waited for until the
 * deadline, but a second at least. *lost: with the exception, if its bytes are damaged. */
PyObject *wr_delivery_fetch(HandleObject *h, wr_delivery *d, uint32_t slot, bool held, uint64_t deadline, bool *lost);
#endif
