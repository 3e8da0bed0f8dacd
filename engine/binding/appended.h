/* What one call appended to a topic, and what the worker answered: for a Confirm, or for the call itself. */
#ifndef WR_BINDING_APPENDED_H
#define WR_BINDING_APPENDED_H
#include "binding/session.h"
#include "topics/formats.h"

/* Records of one command: consecutive offsets of one queue, one behind the other in the log. */
typedef struct {
    wr_answer answer;  /* its place does not move */
    uint64_t sequence;
    uint64_t first, n; /* of the records, as they were sent */
    uint32_t queue;
    bool sent;
} wr_append_run;

typedef struct {
    uint32_t runs_n;
    bool many;          /* the value is a list */
    bool half;          /* it is a half message */
    bool cut;           /* the call ended before all of it was sent */
    uint8_t host[WR_HOST_V4_SIZE];
    uint64_t records_n;
    uint32_t *sizes;    /* of records in the log, as they were sent; NULL: there is one */
    uint32_t *order;    /* the number of each in the call; NULL: as they were sent */
    wr_append_run *runs, one;
    PyObject *topic;    /* its name, for errors; NULL: it is not known */
} wr_appended;

/* A call with one record; NULL with an exception. */
wr_appended *wr_appended_one(uint32_t queue, const uint8_t host[WR_HOST_V4_SIZE]);
void wr_appended_free(ClientObject *c, wr_appended *appended);
/* After all of it is confirmed at the level: 0, or -1 with what the worker refused. */
int wr_appended_check(ClientObject *c, wr_appended *appended);
/* What a node that was stopped never took: [(server, number in the call, how many), …]. */
PyObject *wr_appended_untaken(const ClientObject *c, const wr_appended *appended);
/* The numbers of the messages of these, as a tuple. */
PyObject *wr_appended_left(const ClientObject *c, const wr_appended *appended);
/* After that: a Position, or a list of them in the order of the call. */
PyObject *wr_appended_value(const wr_appended *appended);
#endif
