/* The type Delivery: one message in hand. */
#ifndef WR_BINDING_DELIVERY_TYPE_H
#define WR_BINDING_DELIVERY_TYPE_H
#include "binding/queue_handle.h"

typedef struct {
    PyObject_HEAD
    PyObject *body; /* bytes; like `meta`, the same for as long as the message lives, but for one that a gateway has sent (amqp_shed) */
    PyObject *meta; /* bytes or NULL */
    HandleObject *handle;
    uint64_t tag;
    wr_place place; /* of one that was handed out */
    uint8_t id[16];
    uint16_t delivery_count;
    uint8_t priority;
    uint8_t reason; /* WR_REASON_...: why it died, in a queue of dead letters */
    bool persistent;
    bool redelivered;
    bool settled;
    bool browsed; /* looked at, not held: settled from the beginning */
    bool late; /* its queue's ack timeout ran out before that */
} DeliveryObject;

/* A message of the handle's class; takes body and meta (or NULL) in any case. */
PyObject *wr_delivery_new(HandleObject *h, const wr_delivery *d, PyObject *body, PyObject *meta);
/* QueueHandle.settle_many */
PyObject *wr_handle_settle_many(PyObject *op, PyObject *const *args, Py_ssize_t given);
#endif
