/* An attachment as Python holds it (the type Client): its memory, whether it may be used, and the functions that may
 * wait. */
#ifndef WR_BINDING_SESSION_H
#define WR_BINDING_SESSION_H
#include "binding/state.h"
#include "client/consumer.h"

/* Why Python's hook is called: hook(code, server, what). It returns to go on waiting, or raises. */
enum {
    WR_HOOK_CHECK = 1,     /* a second of waiting has passed: is anybody alive? */
    WR_HOOK_EPOCH = 2,     /* another incarnation of the server: open its regions, call set_worker or set_store */
    WR_HOOK_EVICTED = 3,   /* the server closed our link; always raises */
    WR_HOOK_FROZEN = 4,    /* the server's disk failed; always raises */
    WR_HOOK_STOPPING = 5,  /* the node is being stopped */
    WR_HOOK_FAILED = 6,    /* the supervisor gave the server up; always raises */
    WR_HOOK_TIMED_OUT = 7, /* `what` was not done in time; always raises */
    WR_HOOK_CATALOG = 8,   /* the catalog has another version */
    WR_HOOK_SILENT = 10,   /* a worker did not say its last word to a get whose time is up; raises when it cannot: dead, stopped, starting */
    WR_HOOK_LARGE = 11,    /* the folder of a worker's large messages is needed: call set_large */
    WR_HOOK_HOT = 9,       /* a hot loop of gets has messages lying ready here: look after them when it stops (server: queue id) */
};

/* What a wait is for: it decides which troubles end it. */
typedef enum { WR_FOR_ROOM, WR_FOR_CONFIRM, WR_FOR_REPLY, WR_FOR_DELIVERY } wr_purpose;
/* What is waited for when something was handed over. */
#define WR_THE_CONFIRM "the confirm (the message was handed over and may still be stored)"

/* Commands of the stores that were masked by a delete_and_terminate of this client: binding/masked.c. */
typedef struct {
    bool looking; /* one has begun: confirms look */
    uint64_t *sequences[2];
    uint64_t n[2];
} wr_masked;

typedef struct ClientObject {
    PyObject_HEAD
    wr_attachment a;
    bool open;             /* the attachment is initialised */
    bool ended;            /* end() was called: nothing is submitted any more, memory goes with the last waiter */
    uint32_t busy;         /* threads that are inside without the GIL */
    uint64_t forks;        /* forks of this process when the client was made */
    uint64_t catalog_seen;
    uint64_t catalog_at;   /* when a wait last found that the catalog has changed */
    PyObject *hook;
    PyObject *end_error;   /* exception that whoever still waits gets */
    Py_buffer super, region;
    Py_buffer images[WR_SERVERS_MAX], transient_images[WR_SERVERS_MAX]; /* of workers */
    struct wr_store_side *store; /* binding/store_side.c */
    uint64_t submitted[WR_SERVERS_MAX][3]; /* last sequence + 1 that wants this level */
    uint64_t final[WR_SERVERS_MAX][3]; /* horizons when it ended */
    uint64_t closed[WR_SERVERS_MAX];   /* when it ended: command + 1 from which on the worker took none (queues/closing.h), 0: not known */
    uint32_t servers_n;
    uint32_t topics_n;     /* handles of topics that were made */
    uint32_t topic_server; /* 0: there is none */
    struct wr_wants *wants;            /* binding/sleeper.c; NULL until somebody watches */
    _Atomic bool doorbell;             /* its servers ring an event loop (ipc/core/doorbell.h) */
    wr_masked masked;
    void (*release)(struct ClientObject *c); /* binding/client_type.c: what is mapped, when nobody is inside */
    uint64_t redelivered_n; /* messages handed out that somebody may have had before */
    uint64_t call_ns;      /* how long a call waits that was given no time and is not to wait; 0: without end */
} ClientObject;

/* Each of these: -1 with an exception set when the client cannot be used (any more). */
int wr_enter_slow(ClientObject *c);
static inline int wr_enter(ClientObject *c) {
    if (__builtin_expect(!c->ended && c->forks == wr_module.forks && c->open, 1)) return 0;
    return wr_enter_slow(c);
}

/* The index of a server, from an argument. */
int wr_server_of(ClientObject *c, PyObject *argument, uint32_t *server);
/* How long the call under way may take, where that is not the timeout that its caller gave. */
void wr_limit(double seconds);
/* Absolute time in ns of a timeout argument (None: 0 = no end). -1 with an exception. */
int wr_deadline(PyObject *timeout, uint64_t *deadline);
/* The same for whoever has looked at the clock; *zero: the timeout is 0. */
int wr_deadline_from(PyObject *timeout, uint64_t now, uint64_t *deadline, bool *zero);

/* For calls that hand something over and do not wait for what becomes of it: they wait for room at most call_ns,
 * counted from where they begin to wait, so that the clock is only read then. */
#define WR_CALL_DEADLINE UINT64_MAX
uint64_t wr_by_when(const ClientObject *c, uint64_t deadline);
/* Of a timeout argument: None is WR_CALL_DEADLINE for a call that does not `wait`. */
static inline int wr_deadline_of_call(PyObject *timeout, bool wait, uint64_t *deadline) {
    if (wait || (timeout && timeout != Py_None)) return wr_deadline(timeout ? timeout : Py_None, deadline);
    *deadline = WR_CALL_DEADLINE;
    return 0;
}

/* Is the node of this attachment stopped? Then nobody serves, or looks at, what is mapped here any more, and what it
 * says is of the past: another node of the directory has memory of its own. The word is written a few times in the
 * life of a node. */
static inline bool wr_node_stopped(const ClientObject *c) {
    return __builtin_expect(atomic_load_explicit(&c->a.port.super->state, memory_order_acquire) == WR_NODE_STOPPED, 0);
}

static inline bool wr_catalog_is_old(const ClientObject *c) {
    return atomic_load_explicit(&c->a.port.super->catalog_version, memory_order_acquire) != c->catalog_seen;
}

/* May the queue have gone since this client read the catalog? Other changes do not concern who has its id. */
static inline bool wr_queue_perhaps_gone(const ClientObject *c, uint32_t queue) {
    uint64_t gone = atomic_load_explicit(&c->a.port.super->queue_gone[queue % WR_QUEUE_GONE_ROWS], memory_order_acquire);
    return gone > c->catalog_seen || c->catalog_seen == UINT64_MAX; /* it has not read any */
}

#define WR_CATALOG_NS 100000000ull
/* Is it time to read a catalog that may say that what is waited for is gone? At most ten times a second, so that a
 * storm of changes costs those who wait little. Who is told so calls the hook. */
static inline bool wr_catalog_due(ClientObject *c) {
    uint64_t now = wr_now_ns();
    if (now - c->catalog_at < WR_CATALOG_NS) return false;
    c->catalog_at = now;
    return true;
}

/* Wait until the condition is met. 0, 1 (deadline passed), -1 (exception: trouble, signal, the client ended). */
int wr_wait(ClientObject *c, const wr_condition *condition, uint64_t deadline, wr_purpose purpose);
/* The same; after each slice `also` says whether there is still something to wait for: 0, or -1 with an exception. */
int wr_wait_while(ClientObject *c, const wr_condition *condition, uint64_t deadline, wr_purpose purpose, int (*also)(void *), void *of);
/* After AttachmentLost from a call that had a deadline: the exception says when that is, for whoever calls again. */
void wr_note_deadline(uint64_t deadline);
/* The same, and a passed deadline is an exception that names `what`. */
int wr_wait_or_raise(ClientObject *c, const wr_condition *condition, uint64_t deadline, wr_purpose purpose, const char *what);
int wr_timed_out(ClientObject *c, uint32_t server, const char *what); /* `what` was not done in time: raises */
/* What the routes of a publish were made from. While it waits and nothing of it was handed over, its queues may go:
 * then it fails with AttachmentLost, and begins anew with the catalog of now. */
typedef struct {
    ClientObject *client;
    uint64_t catalog;
} wr_made_from;

/* After EAGAIN: submit what is prepared everywhere and wait for room. After ECONNRESET, EMSGSIZE, ENOMEM: the
 * exception. */
int wr_blocked(ClientObject *c, int error, const wr_condition *blocked, uint64_t deadline, const char *what);
/* The same for a publish; made: NULL when something of it was handed over. */
int wr_blocked_while(ClientObject *c, int error, const wr_condition *blocked, uint64_t deadline, const char *what,
                     wr_made_from *made);
/* What ends, or mends, a wait for this purpose: a code for the hook, or 0. */
int wr_trouble(ClientObject *c, uint32_t server, wr_purpose purpose);
/* Call the hook; -1 when it raised. */
int wr_hook(ClientObject *c, int code, uint32_t server, const char *what);
/* Raise a class of warren.engine.errors. Returns -1. */
int wr_raise(const char *name, const char *format, ...);

/* The same of a value that was given: ", not <its repr>" is added, as much of it as can be read. */
int wr_raise_given(const char *name, PyObject *given, const char *format, ...);
/* A flag is True or False. 0, -1. */
static inline int wr_flag(PyObject *given, const char *what, bool *flag) {
    *flag = given == Py_True;
    return *flag || given == Py_False ? 0 : wr_raise_given("UsageError", given, "%s must be True or False", what);
}
/* A list or tuple of what was given, as PySequence_Fast; UsageError for what is no iterable. */
PyObject *wr_listed(PyObject *given, const char *what);
/* Raise what warren.engine.kernel.atomic_file.explain makes of an errno. Returns -1. */
int wr_raise_errno(int error, const char *doing);

/* Before a publish (routed) or a write: is the node up, does the catalog hold, is no alarm on? Waits. */
int wr_client_gate(ClientObject *c, uint64_t deadline, bool routed);
/* The last of these questions alone, for the middle of a batch; made: of a publish of which nothing was handed over,
 * else NULL. */
int wr_alarm_gate(ClientObject *c, uint64_t deadline, wr_made_from *made);
/* The same two before messages are appended to topics: their own alarm of the disk counts, too. */
int wr_topics_gate(ClientObject *c, uint64_t deadline);
int wr_topics_alarm_gate(ClientObject *c, uint64_t deadline, wr_made_from *made);
/* Let others run for a moment, without the GIL; -1 with an exception (signal, the client ended). */
int wr_nap(ClientObject *c, uint64_t ns);
/* After leaving `busy`: the last one out of an ended client releases its memory. */
void wr_left(ClientObject *c);

typedef struct {
    const void *bytes;
    Py_ssize_t length;
    Py_buffer buffer; /* obj is NULL when the body is a bytes object */
} wr_body;
int wr_body_take(ClientObject *c, PyObject *object, uint64_t meta_length, wr_body *body);
/* The same for what goes through shared memory alone: to a topic, or into the store. */
int wr_shared_body_take(ClientObject *c, PyObject *object, uint64_t meta_length, wr_body *body);
int wr_raise_too_large(const ClientObject *c, uint64_t body, uint64_t meta_length, bool shared);
static inline void wr_body_drop(wr_body *body) {
    if (body->buffer.obj) PyBuffer_Release(&body->buffer);
}
int wr_level_of(PyObject *argument, int *level);
static inline uint8_t wr_flags_of(int level) {
    return WR_FLAG_PERSISTENT | (level == WR_LEVEL_SYNCED ? WR_FLAG_SYNCED : level == WR_LEVEL_WRITTEN ? WR_FLAG_WRITTEN : 0);
}
/* After AttachmentLost, when something of the call was handed over before: to do it all again would double that. */
void wr_lost_in_the_middle(void);
#endif
