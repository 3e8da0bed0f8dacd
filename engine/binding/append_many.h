/* Many messages appended by one call, given as lists or as columns of rows (binding/append_rows.c). */
#ifndef WR_BINDING_APPEND_MANY_H
#define WR_BINDING_APPEND_MANY_H
#include "binding/told.h"
#include "binding/topic_handle.h"

/* A message that was looked at. */
typedef struct {
    const void *body;
    uint64_t told_at; /* in `packed` */
    uint64_t born_ms;
    uint32_t body_length, told_n, size, queue;
} wr_append_item;

/* What a call appends: all of it is looked at and packed before any of it goes. */
typedef struct {
    TopicHandleObject *h;
    PyObject *bodies;                                /* tuple */
    PyObject *keys, *tags, *properties, *queues, *born; /* of each: tuple; or NULL: `all` */
    PyObject *all[5];
    PyObject *later; /* of all: when they come; None: at once. The caller's */
    Py_ssize_t n;
    wr_append_item *items;
    uint8_t *packed;
    uint64_t packed_n, packed_size;
    Py_buffer *held; /* of bodies that are no bytes */
    Py_ssize_t held_n, held_size;
    bool several; /* queues */
} wr_append_batch;

static inline wr_append_kind wr_append_kind_of(const wr_append_batch *b) { return b->later != Py_None ? WR_APPEND_LATER : WR_APPEND_NOW; }
/* Keep what is told of a message, packed. 0, -1. */
int wr_append_keep(wr_append_batch *b, const wr_told *told, wr_append_item *to);
/* Send what was looked at, in as few commands as possible: what wr_topic_confirmed gives. The batch is dropped. */
PyObject *wr_append_go(wr_append_batch *b, wr_append_how *how);
void wr_append_drop(wr_append_batch *b);

/* TopicHandle.append_many(bodies, keys, tags, properties, queues, born, later, level, timeout, wait) */
PyObject *wr_topic_append_many(PyObject *op, PyObject *const *args, Py_ssize_t given);
/* check_many(bodies, keys, tags, properties, queues, born, later): raises what append_many would find wrong, before it sends anything. */
PyObject *wr_topic_check_many(PyObject *op, PyObject *const *args, Py_ssize_t given);
#endif
