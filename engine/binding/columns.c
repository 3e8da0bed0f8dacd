/* The messages of a browse answer: as a list of deliveries, or as columns for Arrow. */
#include "binding/columns.h"
#include "binding/delivery_body.h"
#include "binding/delivery_type.h"
#include "binding/store_side.h"

/* The handle and the rows of a browse answer. They are read again and again with the GIL away in between, so that
 * only bytes will do: nobody changes those. NULL with an exception. */
static HandleObject *rows_enter(ClientObject *c, PyObject *const *args, Py_ssize_t given) {
    if (given != 2) PyErr_Format(PyExc_TypeError, "arguments: handle, rows");
    else if (!PyObject_TypeCheck(args[0], wr_module.handle_type)) PyErr_Format(PyExc_TypeError, "handle must be a QueueHandle");
    else if (!PyBytes_CheckExact(args[1])) PyErr_Format(PyExc_TypeError, "rows must be bytes, not %s", Py_TYPE(args[1])->tp_name);
    else if (((HandleObject *)args[0])->client != c) PyErr_Format(PyExc_ValueError, "the handle belongs to another client");
    else if (!wr_handle_enter((HandleObject *)args[0]) && !wr_handle_up_to_date((HandleObject *)args[0])) return (HandleObject *)args[0];
    return NULL;
}

PyObject *wr_deliveries(PyObject *op, PyObject *const *args, Py_ssize_t given) {
    HandleObject *h = rows_enter((ClientObject *)op, args, given);
    if (!h) return NULL;
    const char *rows = PyBytes_AS_STRING(args[1]);
    Py_ssize_t n = PyBytes_GET_SIZE(args[1]) / (Py_ssize_t)sizeof(wr_delivery);
    PyObject *list = PyList_New(n);
    for (Py_ssize_t i = 0; list && i < n; i++) {
        wr_delivery d;
        memcpy((void *)&d, rows + i * (Py_ssize_t)sizeof d, sizeof d);
        bool lost;
        PyObject *message = wr_delivery_fetch(h, &d, 0, false, WR_CALL_DEADLINE, &lost);
        if (message) ((DeliveryObject *)message)->browsed = ((DeliveryObject *)message)->settled = true;
        else if (PyErr_Occurred()) Py_CLEAR(list);
        else message = Py_NewRef(Py_None);
        if (list) PyList_SET_ITEM(list, i, message);
    }
    return list;
}

/* Metadata and payload of a row into their places. 0, ENOENT, EBADMSG or EUCLEAN (not where the row says), -1. */
static int read_row(HandleObject *h, const wr_delivery *d, uint8_t *meta, uint8_t *body) {
    ClientObject *c = h->client;
    uint32_t length = d->body_length - d->meta_length;
    const char *reason;
    int error;
    if (d->location == WR_LOCATION_STORE || d->location == WR_LOCATION_STORE_TRANSIENT) {
        PyObject *found, *found_meta;
        error = wr_store_fetch(c, d->location == WR_LOCATION_STORE_TRANSIENT, d->id, &found, &found_meta);
        if (error) return error;
        if (PyBytes_GET_SIZE(found) != length || (found_meta ? PyBytes_GET_SIZE(found_meta) : 0) != d->meta_length) error = EBADMSG;
        if (!error && found_meta) memcpy(meta, PyBytes_AS_STRING(found_meta), d->meta_length);
        if (!error) memcpy(body, PyBytes_AS_STRING(found), length);
        Py_DECREF(found);
        Py_XDECREF(found_meta);
    } else {
        if (wr_body_from_image(c, h->server, d, d->meta_length, body, length) &&
            (!d->meta_length || wr_body_from_image(c, h->server, d, 0, meta, d->meta_length)))
            return 0;
        error = wr_body_from_file(c, h->server, d, meta, body, &reason);
    }
    if (c->ended) return wr_enter_slow(c);
    return error;
}

/* Client.columns(handle, rows): the messages of a browse answer as columns, ready for Arrow: (rows read, tags i64,
 * ids 16 B, value offsets i32, values, metadata offsets i32, metadata, delivery counts i32, redelivered u8). It
 * stops before the first row whose bytes are not where it says. */
PyObject *wr_columns(PyObject *op, PyObject *const *args, Py_ssize_t given) {
    ClientObject *c = (ClientObject *)op;
    HandleObject *h = rows_enter(c, args, given);
    if (!h) return NULL;
    const char *rows = PyBytes_AS_STRING(args[1]);
    Py_ssize_t n = PyBytes_GET_SIZE(args[1]) / (Py_ssize_t)sizeof(wr_delivery), i = 0;
    uint64_t values = 0, metas = 0;
    PyObject *answer = NULL, *parts[8] = {NULL};
    wr_delivery d;
    for (; i < n; i++) {
        memcpy((void *)&d, rows + i * (Py_ssize_t)sizeof d, sizeof d);
        if (d.meta_length > d.body_length || d.body_length > c->a.message_bytes_max) break;
        if (values + d.body_length > INT32_MAX || metas + d.meta_length > INT32_MAX) break;
        values += d.body_length - d.meta_length;
        metas += d.meta_length;
    }
    n = i;
    const Py_ssize_t sizes[8] = {8 * n, 16 * n, 4 * (n + 1), (Py_ssize_t)values, 4 * (n + 1), (Py_ssize_t)metas, 4 * n, n};
    uint8_t *to[8];
    for (int k = 0; k < 8; k++) {
        if (!(parts[k] = PyBytes_FromStringAndSize(NULL, sizes[k]))) goto done;
        to[k] = (uint8_t *)PyBytes_AS_STRING(parts[k]);
    }
    int32_t value_at = 0, meta_at = 0;
    for (i = 0; i < n; i++) {
        memcpy((void *)&d, rows + i * (Py_ssize_t)sizeof d, sizeof d);
        int error = read_row(h, &d, to[5] + meta_at, to[3] + value_at);
        if (error < 0) goto done;
        if (error == ENOENT || error == EBADMSG || error == EUCLEAN) break;
        if (error) {
            wr_raise_errno(error, "cannot read the body of a message");
            goto done;
        }
        int32_t count = d.delivery_count;
        memcpy(to[0] + 8 * i, &d.sequence, 8);
        memcpy(to[1] + 16 * i, d.id, 16);
        memcpy(to[2] + 4 * i, &value_at, 4);
        memcpy(to[4] + 4 * i, &meta_at, 4);
        memcpy(to[6] + 4 * i, &count, 4);
        to[7][i] = d.flags & WR_DELIVERY_REDELIVERED;
        value_at += (int32_t)(d.body_length - d.meta_length);
        meta_at += (int32_t)d.meta_length;
    }
    memcpy(to[2] + 4 * i, &value_at, 4);
    memcpy(to[4] + 4 * i, &meta_at, 4);
    answer = Py_BuildValue("(nOOOOOOOO)", i, parts[0], parts[1], parts[2], parts[3], parts[4], parts[5], parts[6], parts[7]);
done:
    for (int k = 0; k < 8; k++) Py_XDECREF(parts[k]);
    return answer;
}
