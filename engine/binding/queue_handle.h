/* A queue's handle, as binding/queue_handle.c (which may wait) and binding/sleeper.c (which never waits) use it. */
#ifndef WR_BINDING_CONSUMER_H
#define WR_BINDING_CONSUMER_H
#include "binding/session.h"

typedef struct {
    PyObject_HEAD
    ClientObject *client;
    wr_client_consumer consumer;
    wr_route route;
    PyObject *owner;        /* the Queue of Python */
    PyTypeObject *messages; /* class of the messages, derived from Delivery */
    PyObject *dead;         /* why the queue cannot be used any more (text), or NULL */
    uint32_t server, queue;
    bool registered;        /* `consumer` stands in the attachment */
    uint32_t window;
    uint32_t prefetch;      /* wanted by consume(); 0: credit */
    uint64_t cancelled;     /* sequence + 1 of the last CANCEL, 0: none */
    uint64_t asks_n;        /* how often a CREDIT was sent */
    uint64_t begun;         /* how often begin() was called */
    uint32_t inside;        /* threads that are in a get */
    bool hot;               /* Python was told */
    bool exact;             /* the worker is never asked for more than somebody waits for */
    bool nacked;            /* a message went back since the last get: it is the next one */
    uint64_t last_ns;       /* end of the last get */
    uint64_t delays_n;      /* how often a get had to do what takes time: wait, read from a file or a store */
    PyObject *weak;
} HandleObject;

/* Each of these: -1 (or NULL) with an exception. */
int wr_handle_enter(HandleObject *h);           /* can it be used? */
int wr_handle_intake(HandleObject *h);          /* what was pushed, into `pending` */
PyObject *wr_handle_hand_out(HandleObject *h, bool alone); /* the next pending message; NULL without an exception: none */
int wr_handle_not_stopped(HandleObject *h);     /* is the node of its attachment still there? SessionLost when it was stopped */
bool wr_handle_in_memory(const HandleObject *h); /* can the next one be read without waiting? */
bool wr_handle_quiet(const HandleObject *h);    /* nothing is asked for, and nothing more can come of what was */
int wr_handle_return_last(HandleObject *h, uint64_t *left, wr_condition *blocked);
void wr_handle_note_call(HandleObject *h, uint32_t wanted); /* one more get; sets `window` */
/* binding/sleeper.c */
PyObject *wr_handle_poll(PyObject *op, PyObject *const *args, Py_ssize_t given);
PyObject *wr_handle_stop(PyObject *op, PyObject *unused);
PyObject *wr_handle_give_back(PyObject *op, PyObject *unused);
#endif
