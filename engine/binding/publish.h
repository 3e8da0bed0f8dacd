/* Publishing: Route, one message, a batch. */
#ifndef WR_BINDING_PUBLISH_H
#define WR_BINDING_PUBLISH_H
#include "binding/confirm.h"

typedef struct {
    PyObject_HEAD
    wr_route route;
    struct wr_route_limits *limits; /* of a route with topics (binding/publish_topics.c), or NULL */
} RouteObject;

/* Publish one or many bodies; steals nothing. `told`: what the topics of the routes get (binding/publish_topics.h), NULL: there are none.
 * New reference: a Confirm, or None when `wait`. */
PyObject *wr_publish(ClientObject *c, const wr_route *route, PyObject *body, int level, PyObject *meta, PyObject *timeout,
                     bool wait, PyObject *options, PyObject *told);
PyObject *wr_publish_many(ClientObject *c, const wr_route *route, PyObject *routes, PyObject *bodies, int level, PyObject *meta,
                          PyObject *timeout, bool wait, PyObject *options, PyObject *told);
/* A Confirm of these sequences, or None when `wait` and they are confirmed. `runs`: of a batch, taken over by a
 * Confirm; or NULL. */
PyObject *wr_confirmed(ClientObject *c, const wr_route *route, const uint64_t *sequences, int level, uint64_t deadline, bool wait,
                       wr_runs *runs);

/* ---- what publishes of many have in common ---- */

#define WR_SUBMIT_EVERY 64

/* What one message has besides body and metadata; all zero: a plain one. */
typedef struct {
    uint64_t expires, due;
    const uint8_t *key;
    bool transient;
} wr_extras;

/* Ready to publish by routes? They were made from a version of the catalog. 0, -1. */
int wr_routes_hold(ClientObject *c);
/* Nothing goes to any queue of a route while one of its workers is given up: what the others took would be sent
 * again. 0, -1. */
int wr_publish_given_up(ClientObject *c, const wr_route *route);
/* Which commands of a message in the middle of which a call ended were handed over: of the first targets, and those of the topics. */
typedef struct {
    uint32_t targets;
    bool topics;
} wr_handed;

/* One message into the rings, when there is room. `parts`: of a route with topics, else NULL. `first`: nothing of the call was handed over
 * before. `handed` (may be NULL): after an error, what was handed over of it all the same. 0, -1. */
int wr_publish_one(ClientObject *c, const wr_route *route, const wr_body *body, const char *meta, uint16_t meta_length, int level,
                   uint64_t deadline, const wr_extras *extras, const wr_topic_part *parts, uint64_t *sequences, bool first,
                   wr_handed *handed);
/* Note where `count` messages of a batch went, from `index` on. 0, -1. */
int wr_run_note(wr_runs *runs, uint32_t server, uint64_t sequence, uint64_t index, uint64_t count);
/* Note what was handed over of the message of that index, in the middle of which a call ended, and what was not. 0, -1. */
int wr_part_note(wr_runs *runs, const wr_route *route, const uint64_t *sequences, wr_handed handed, Py_ssize_t index, uint64_t *last, bool *used);
/* The end of a call that handed `sent` of n messages over, the last at each server that was `used`: submit, and wr_confirmed; after an `error`
 * its exception, to which a Confirm is added when anything was handed over. */
PyObject *wr_batch_confirmed(ClientObject *c, int error, Py_ssize_t sent, Py_ssize_t n, const uint64_t *last, const bool *used, int level, uint64_t deadline,
                             bool wait, wr_runs *runs);

/* Methods of Client. */
PyObject *wr_client_publish(PyObject *op, PyObject *const *args, Py_ssize_t given);
PyObject *wr_client_publish_many(PyObject *op, PyObject *const *args, Py_ssize_t given);
#endif
