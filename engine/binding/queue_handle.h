/* One queue as an attachment uses it: binding/queue_handle.c may wait, binding/queue_poll.c never does. */
#ifndef WR_BINDING_QUEUE_HANDLE_H
#define WR_BINDING_QUEUE_HANDLE_H
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
    uint64_t cancelled;     /* the last CANCEL is answered when `processed` has reached this */
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

#define WR_ANSWER_NS 250000000ull /* a get gives the worker at least so long to answer, whatever its timeout is */
extern const char wr_the_answer[]; /* what a get that was not answered says */

/* Each of these: -1 (or NULL) with an exception. */
int wr_handle_enter(HandleObject *h);       /* can it be used? */
int wr_handle_not_stopped(HandleObject *h); /* is the node of its attachment still there? AttachmentLost when it was stopped */
int wr_handle_up_to_date(HandleObject *h);  /* the regions of a restarted worker are opened anew, before anything is read */
int wr_handle_register(HandleObject *h);    /* `consumer` stands in the attachment from now on */
int wr_handle_intake(HandleObject *h);      /* what was pushed, into `pending` */
/* The next pending message; NULL without an exception when there is none. `alone`: an exception will be seen; else
 * that of a damaged message is met again by the next call. */
PyObject *wr_handle_hand_out(HandleObject *h, uint64_t deadline, bool alone);
bool wr_handle_in_memory(const HandleObject *h); /* can the next one be read without waiting? */
bool wr_handle_quiet(const HandleObject *h);     /* nothing is asked for, and nothing more can come of what was */
int wr_handle_return_last(HandleObject *h, uint64_t *left, wr_condition *blocked);
void wr_handle_note_call(HandleObject *h, uint32_t wanted); /* one more get; sets `window` */

/* Methods of QueueHandle. */
PyObject *wr_handle_get(PyObject *op, PyObject *const *args, Py_ssize_t given);
PyObject *wr_handle_get_many(PyObject *op, PyObject *const *args, Py_ssize_t given);
PyObject *wr_handle_begin(PyObject *op, PyObject *argument);
PyObject *wr_handle_release(PyObject *op, PyObject *const *args, Py_ssize_t given);
PyObject *wr_handle_hoard(PyObject *op, PyObject *unused);
PyObject *wr_handle_tidy(PyObject *op, PyObject *unused);
#endif
