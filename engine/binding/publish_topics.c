/* Topics among the destinations of a publish. Declared in binding/publish_topics.h. */
#include "binding/publish_topics.h"
#include "topics/properties.h"
#include "topics/record.h"
#include <stddef.h>

/* What a route's topics take at most, for errors. */
typedef struct wr_route_limits {
    uint64_t record_bytes_max;
    PyObject *why; /* that is the most */
    PyObject *names; /* of the topics: a tuple of str */
} wr_route_limits;

static const wr_route_limits *limits_of(const wr_route *route) {
    return ((const RouteObject *)((const char *)route - offsetof(RouteObject, route)))->limits; /* only a Route has topics */
}

static int take_topic(RouteObject *self, PyObject *item, uint32_t i) {
    unsigned int id, queues_n;
    PyObject *name;
    Py_ssize_t name_length;
    if (!PyArg_ParseTuple(item, "IIU", &id, &queues_n, &name)) return -1;
    if (!PyUnicode_AsUTF8AndSize(name, &name_length)) return -1;
    if (!id || !queues_n || name_length > UINT16_MAX) {
        PyErr_SetString(PyExc_ValueError, "a topic has an id, queues and a name");
        return -1;
    }
    self->route.topics[i] = (wr_topic_target){.id = id, .queues_n = queues_n, .name_length = (uint32_t)name_length};
    PyTuple_SET_ITEM(self->limits->names, i, Py_NewRef(name));
    return 0;
}

int wr_route_topics(RouteObject *self, PyObject *topics) {
    unsigned int server;
    unsigned long long most;
    PyObject *why, *list;
    if (!PyArg_ParseTuple(topics, "IKUO!", &server, &most, &why, &PyList_Type, &list)) return -1;
    Py_ssize_t n = PyList_GET_SIZE(list);
    if (n > WR_ROUTE_TOPICS_MAX)
        return wr_raise("LimitError", "a message goes to %zd topics, more than %d: bind fewer", n, WR_ROUTE_TOPICS_MAX);
    if (server < WR_SERVER_WORKER_FIRST || server >= WR_SERVERS_MAX || n < 1) {
        PyErr_SetString(PyExc_ValueError, "topics are (topic server, record bytes, why, [(id, queues, name), …])");
        return -1;
    }
    self->route.topics = PyMem_Calloc((size_t)n, sizeof *self->route.topics);
    self->limits = PyMem_Calloc(1, sizeof *self->limits);
    if (!self->route.topics || !self->limits) {
        PyErr_NoMemory();
        return -1;
    }
    self->limits->record_bytes_max = most;
    self->limits->why = Py_NewRef(why);
    if (!(self->limits->names = PyTuple_New(n))) return -1;
    for (Py_ssize_t i = 0; i < n; i++)
        if (take_topic(self, PyList_GET_ITEM(list, i), (uint32_t)i)) return -1;
    self->route.topics_n = (uint32_t)n;
    self->route.topic_server = server;
    return 0;
}

void wr_route_topics_free(RouteObject *self) {
    PyMem_Free(self->route.topics);
    if (!self->limits) return;
    Py_XDECREF(self->limits->why);
    Py_XDECREF(self->limits->names);
    PyMem_Free(self->limits);
}

/* Has the log room for a record of these sizes? */
static int fits(const wr_route *route, uint32_t i, uint32_t properties_length, uint64_t body_length) {
    const wr_route_limits *limits = limits_of(route);
    PyObject *name = PyTuple_GET_ITEM(limits->names, i);
    wr_record_reason reason;
    uint32_t size = wr_record_size(0, route->topics[i].name_length, properties_length, body_length, &reason);
    if (!size)
        return wr_raise("MessageTooLarge", "it goes to topic %R, where a message has %d bytes at most with what is told of it: split it", name,
                        WR_RECORD_BYTES_MAX);
    if (size <= limits->record_bytes_max) return 0;
    return wr_raise("MessageTooLarge", "it goes to topic %R: the message takes %u bytes in the log, which takes %llu at most, by the setting %U", name,
                    size, (unsigned long long)limits->record_bytes_max, limits->why);
}

static int take_part(const wr_route *route, uint32_t i, PyObject *item, uint64_t body_length, wr_topic_part *part) {
    if (!PyTuple_CheckExact(item) || PyTuple_GET_SIZE(item) != 2 || !PyBytes_CheckExact(PyTuple_GET_ITEM(item, 1))) {
        PyErr_SetString(PyExc_TypeError, "a topic is told (queue, properties)");
        return -1;
    }
    unsigned long queue = PyLong_AsUnsignedLong(PyTuple_GET_ITEM(item, 0));
    PyObject *properties = PyTuple_GET_ITEM(item, 1);
    if (queue == (unsigned long)-1 && PyErr_Occurred()) return -1;
    if (queue >= route->topics[i].queues_n || PyBytes_GET_SIZE(properties) > WR_PROPERTIES_BYTES_MAX) {
        PyErr_SetString(PyExc_ValueError, "the topic has no such queue, or properties are too long");
        return -1;
    }
    *part = (wr_topic_part){.properties = PyBytes_AS_STRING(properties), .properties_length = (uint32_t)PyBytes_GET_SIZE(properties),
                            .queue = (uint32_t)queue};
    return fits(route, i, part->properties_length, body_length);
}

int wr_parts_of(const wr_route *route, PyObject *told, uint64_t body_length, wr_topic_part *parts) {
    if (!told || !PyTuple_CheckExact(told) || PyTuple_GET_SIZE(told) != (Py_ssize_t)route->topics_n) {
        PyErr_SetString(PyExc_TypeError, "each topic of the route must be told something");
        return -1;
    }
    for (uint32_t i = 0; i < route->topics_n; i++)
        if (take_part(route, i, PyTuple_GET_ITEM(told, i), body_length, &parts[i])) return -1;
    return 0;
}

int wr_told_item(PyObject *told, Py_ssize_t i, PyObject **item) {
    *item = NULL;
    if (told && PyTuple_CheckExact(told)) {
        *item = Py_NewRef(told);
    } else if (told && PyList_CheckExact(told) && i < PyList_GET_SIZE(told)) {
        *item = Py_NewRef(PyList_GET_ITEM(told, i));
    } else {
        PyErr_SetString(PyExc_TypeError, "what is told to topics is a tuple, or a list with one for each message");
        return -1;
    }
    return 0;
}

int wr_parts_look(ClientObject *c, const wr_route *route, PyObject *told, Py_ssize_t i, PyObject *object, uint16_t meta_length) {
    wr_topic_part parts[WR_ROUTE_TOPICS_MAX];
    wr_body body;
    PyObject *item;
    Py_INCREF(object);
    int error = wr_shared_body_take(c, object, meta_length, &body);
    if (!error) {
        error = wr_told_item(told, i, &item);
        if (!error) error = wr_parts_of(route, item, (uint64_t)body.length, parts);
        Py_XDECREF(item);
        wr_body_drop(&body);
    }
    Py_DECREF(object);
    return error;
}
