/* Messages that are appended again. Declared in binding/append_again.h. What is told of them was packed by workers/client/retried.py: names
 * that are reserved are among it, so none of its checks is one of told.c's. */
#include "binding/append_again.h"
#include "binding/arguments.h"
#include "binding/told.h"

PyObject *wr_topic_append_again(PyObject *op, PyObject *const *args, Py_ssize_t given) {
    TopicHandleObject *h = (TopicHandleObject *)op;
    ClientObject *c = h->client;
    wr_append_how how;
    wr_told told = {.n = 0};
    wr_body body;
    uint32_t queue = 0;
    uint64_t born_ms = 0;
    bool chosen, later;
    WR_ARGUMENTS(6, "body, properties, queue, born, later, timeout");
    if (wr_flag(args[4], "later", &later) || number_of(args[3], 63, "born", &born_ms)) return NULL;
    if (wr_topic_current(h) || wr_told_later(&told, args[1]) || wr_topic_queue(h, args[2], &queue, &chosen) ||
        wr_shared_body_take(c, args[0], told.n, &body))
        return NULL;
    PyObject *level = PyLong_FromLong(WR_LEVEL_SYNCED);
    how.kind = later ? WR_APPEND_LATER : WR_APPEND_NOW;
    if (!level || !wr_topic_record_size(h, told.n, (uint64_t)body.length, later ? WR_APPEND_LATER : WR_APPEND_NOW, queue) || wr_topic_ready(h, level, args[5], Py_True, &how)) {
        Py_XDECREF(level);
        wr_body_drop(&body);
        return NULL;
    }
    Py_DECREF(level);
    const wr_append_record record = {.properties = told.bytes, .body = body.bytes, .properties_length = told.n, .body_length = (uint32_t)body.length};
    wr_appended *appended = wr_appended_one(queue, h->host);
    int error = appended ? wr_topic_send(h, queue, born_ms, &record, 1, appended->runs, &how, true) : -1;
    wr_body_drop(&body);
    if (!error) return wr_topic_confirmed(h, appended, &how);
    wr_appended_free(c, appended);
    return NULL;
}
