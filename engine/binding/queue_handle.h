/* One queue as an attachment uses it: the handle, and what lies here of it. */
#ifndef WR_BINDING_QUEUE_HANDLE_H
#define WR_BINDING_QUEUE_HANDLE_H
#include "binding/session.h"

typedef struct {
    PyObject_HEAD
    ClientObject *client;
    wr_client_consumer consumer;
    wr_route route;
    PyObject *owner;        /* the Queue of Python */
    PyObject *name;         /* the owner's, for confirms; NULL: there was none yet */
    PyTypeObject *messages; /* class of the messages, derived from Delivery */
    PyObject *dead;         /* why the queue cannot be used any more (text), or NULL */
    uint32_t server, queue;
    bool registered;        /* `consumer` stands in the attachment */
    uint32_t window;
    uint32_t prefetch;      /* given to consume(); 0: credit */
    bool adapts;            /* somebody consumes without a number: the window is as large as it pays */
    uint32_t unacked_max;   /* the most unacked messages then */
    uint64_t holding_ns;    /* how long a loop of gets holds a message, on average; 0: not known yet */
    uint64_t cancelled;     /* the last CANCEL, or credit that ends it, is answered when `processed` has reached this */
    uint64_t asks_n;        /* how often a CREDIT was sent */
    uint64_t begun;         /* how often begin() was called */
    uint32_t inside;        /* threads that are in a get */
    uint32_t woken;         /* how often wake() was called */
    bool hot;               /* Python was told */
    bool exact;             /* the worker is never asked for more than somebody waits for */
    bool nacked;            /* a message went back since the last get: it is the next one */
    double ack_timeout;     /* of the queue, seconds; 0: none */
    bool overdue;           /* the worker took something back for that: it is reminded of us before it delivers more */
    uint64_t reminded_at;
    uint64_t last_ns;       /* end of the last get */
    uint64_t delays_n;      /* how often a get had to do what takes time: wait, read from a file or a store */
    wr_client_consumer *shell; /* in which `consumer` goes on when this is gone */
    PyObject *weak;
} HandleObject;

/* Each of these: -1 (or NULL) with an exception. */
int wr_handle_enter(HandleObject *h);       /* can it be used? */
int wr_handle_not_stopped(HandleObject *h); /* is the node still there? AttachmentLost when it was stopped */
int wr_handle_up_to_date(HandleObject *h);  /* the regions of a restarted worker are opened anew before a read */
int wr_handle_register(HandleObject *h);    /* `consumer` stands in the attachment from now on */
int wr_handle_still_there(void *handle);    /* is its queue? asked in each slice of a wait */
/* Call the hook for what is waited for of the queue; its name stands before `what`. 0: it raised nothing. */
int wr_handle_hook(HandleObject *h, int code, const char *what);
int wr_handle_late(HandleObject *h, const char *what); /* it was not done in time: raises */
int wr_handle_intake(HandleObject *h);      /* what was pushed, into `pending` */
/* The next pending message; NULL without an exception when there is none. `alone`: an exception will be seen; else
 * that of a damaged message is met again by the next call. */
PyObject *wr_handle_hand_out(HandleObject *h, uint64_t deadline, bool alone);
bool wr_handle_in_memory(const HandleObject *h); /* can the next one be read without waiting? */
static inline bool wr_handle_consumes(const HandleObject *h) { return h->prefetch || h->adapts; }
#endif
