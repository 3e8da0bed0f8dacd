/* Topics among the destinations of a publish: which a Route has, and what each gets of a message. */
#ifndef WR_BINDING_PUBLISH_TOPICS_H
#define WR_BINDING_PUBLISH_TOPICS_H
#include "binding/publish.h"
#include "client/publish_topics.h"

/* The topics of a route that is being made: (topic server, largest record in bytes, why no larger one, [(id, queues, name), …]). 0, -1. */
int wr_route_topics(RouteObject *route, PyObject *topics);
void wr_route_topics_free(RouteObject *route);

/* What the topics of a route get of a message: `told` is a tuple with (queue, properties) for each, which has to stay as long as `parts`.
 * Checked: 0, or -1 with the exception. */
int wr_parts_of(const wr_route *route, PyObject *told, uint64_t body_length, wr_topic_part *parts);
/* What is told of the i-th message of a batch, a new reference. `told`: a list (of each), or a tuple (of all). 0, -1. */
int wr_told_item(PyObject *told, Py_ssize_t i, PyObject **item);
/* Would the i-th message of a batch be taken? Asking it for its body may run code of the program. 0, -1. */
int wr_parts_look(ClientObject *c, const wr_route *route, PyObject *told, Py_ssize_t i, PyObject *object, uint16_t meta_length);
#endif
