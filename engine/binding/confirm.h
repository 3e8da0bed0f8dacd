/* The type Confirm: the promise of one or several writes; what the servers said to them. */
#ifndef WR_BINDING_CONFIRM_H
#define WR_BINDING_CONFIRM_H
#include "kernel/ref.h"
#include "binding/appended.h"
#include "binding/not_taken.h"

typedef struct {
    uint32_t server;
    uint64_t sequence;
} wr_confirm_pair;

#define WR_NO_SERVER UINT32_MAX
#define WR_NEVER_SENT UINT64_MAX

/* Messages of a batch that follow each other in the batch and in a ring. */
typedef struct {
    uint32_t server; /* WR_NO_SERVER: of none, and never sent */
    uint64_t first; /* sequence; WR_NEVER_SENT: the call ended before */
    uint64_t count;
    uint64_t index; /* of the first in the batch */
} wr_run;

typedef struct {
    wr_run *runs; /* PyMem, NULL: none */
    uint32_t n, size;
    wr_row_ref last[WR_SERVERS_MAX]; /* of `runs`: the one that grows */
} wr_runs;

typedef struct {
    PyObject_HEAD
    ClientObject *client;
    int level;
    uint32_t pairs_n;
    wr_confirm_pair first;
    uint64_t from;          /* store: first of the commands that it is for */
    wr_confirm_pair *pairs; /* when pairs_n > 1 */
    wr_run *runs;           /* of a batch, NULL: each pair is one message, the same one */
    uint32_t runs_n;
    wr_appended *appended;  /* to a topic, or NULL */
    PyObject *queue;        /* name of the one queue that it was put into, or NULL */
} ConfirmObject;

/* A Confirm of what a publish handed over. `runs`: of a batch, taken over; or NULL. */
PyObject *wr_confirm_new(ClientObject *c, int level, const wr_route *route, const uint64_t *sequences, wr_runs *runs);
/* A Confirm of what was appended to a topic; that is taken over, also by a failure. */
PyObject *wr_confirm_appended(ClientObject *c, int level, wr_appended *appended);
/* A Confirm of nothing: done. */
PyObject *wr_confirm_none(ClientObject *c, int level);
/* After these were confirmed, or will never be (wr_never_taken): 0, or -1 with the exception of what was refused, or not taken. *duplicates
 * (may be NULL): how many were dropped. */
int wr_results_check(ClientObject *c, const wr_run *runs, uint32_t runs_n, bool batch, uint64_t *duplicates);
/* Of commands from ... to of a store: a Confirm, or None when `wait` and they are confirmed. */
PyObject *wr_face_confirmed(ClientObject *c, int store, uint64_t from, uint64_t to, int level, uint64_t deadline, bool wait);
#endif
