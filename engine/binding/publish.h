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

/* Methods of Client. */
PyObject *wr_client_publish(PyObject *op, PyObject *const *args, Py_ssize_t given);
PyObject *wr_client_publish_many(PyObject *op, PyObject *const *args, Py_ssize_t given);
#endif
