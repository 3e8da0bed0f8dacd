/* What the message store's face in a client (binding/store_side.c) gives to the type that programs use
 * (binding/store_type.c). */
#ifndef WR_BINDING_STORE_SIDE_H
#define WR_BINDING_STORE_SIDE_H
#include "binding/session.h"

/* Ids as they were given: a list or tuple of bytes objects, or one buffer of 16 bytes each. */
typedef struct {
    PyObject *list;
    const uint8_t *flat;
    Py_buffer buffer;
} wr_ids;

int wr_ids_take(PyObject *object, wr_ids *ids); /* -1 with an exception; then there is nothing to drop */
void wr_ids_drop(wr_ids *ids);
static inline Py_ssize_t wr_ids_n(const wr_ids *ids) { return ids->flat ? ids->buffer.len / 16 : ids->list ? PySequence_Fast_GET_SIZE(ids->list) : 0; }

static inline int wr_id_of(PyObject *object, const uint8_t **id) {
    if (!PyBytes_Check(object) || PyBytes_GET_SIZE(object) != 16) {
        wr_raise_given("UsageError", object, "a message id is 16 bytes (node.store().new_id() makes one)");
        return -1;
    }
    *id = (const uint8_t *)PyBytes_AS_STRING(object);
    return 0;
}

/* Borrowed: good until the GIL is let go. A list may have become shorter meanwhile. */
static inline int wr_ids_get(const wr_ids *ids, Py_ssize_t at, const uint8_t **id) {
    if (ids->flat) {
        *id = ids->flat + 16 * at;
        return 0;
    }
    if (at >= PySequence_Fast_GET_SIZE(ids->list)) {
        wr_raise("UsageError", "the list of ids was changed during the call: give each call a list of its own");
        return -1;
    }
    return wr_id_of(PySequence_Fast_GET_ITEM(ids->list, at), id);
}

int wr_store_side_open(ClientObject *c); /* ENOMEM */
void wr_store_side_close(ClientObject *c);
/* The regions of the store's present incarnation, waiting for it if there were none yet. -1 with an exception. */
int wr_face_current(ClientObject *c, int i, uint64_t deadline);

/* i: 0 persistent, 1 transient. The caller has looked at wr_enter, and at wr_client_gate and wr_face_current before
 * a write. */
int wr_face_write_one(ClientObject *c, int i, const uint8_t id[16], PyObject *body, int level, uint64_t deadline, uint64_t *sequence);
/* bodies: a list or tuple. */
PyObject *wr_face_write_many(ClientObject *c, int i, const wr_ids *ids, PyObject *bodies, int level, uint64_t deadline, bool wait);
PyObject *wr_face_remove(ClientObject *c, int i, const wr_ids *ids, uint64_t deadline);
/* One command without a blob, and its result. -1 with an exception. */
int wr_face_ask(ClientObject *c, int i, uint8_t op, const uint8_t *id, uint64_t deadline, uint32_t *result);
PyObject *wr_face_read(ClientObject *c, int i, const uint8_t id[16]);
PyObject *wr_face_read_many(ClientObject *c, int i, const wr_ids *ids);

/* Room for the payload and the metadata (NULL: none) of a message, as bytes objects. 0; -1 with an exception. */
static inline int wr_parts_new(uint32_t length, uint16_t meta_length, PyObject **body, PyObject **meta) {
    *meta = NULL;
    if (!(*body = PyBytes_FromStringAndSize(NULL, length))) return -1;
    if (!meta_length || (*meta = PyBytes_FromStringAndSize(NULL, meta_length))) return 0;
    Py_CLEAR(*body);
    return -1;
}

/* Payload and metadata (NULL: none; as argument: not wanted) of a message, as bytes objects. 0, ENOENT (no such message,
 * or the region is not there any more), EBADMSG, EUCLEAN, EIO; -1 with an exception. */
int wr_store_fetch(ClientObject *c, int store, const uint8_t id[16], PyObject **body, PyObject **meta);
/* Where a message lies that could not be read. False: not in a file any more. */
bool wr_store_where(ClientObject *c, int store, const uint8_t id[16], uint32_t *file, uint64_t *offset);

/* Methods of Client. */
PyObject *wr_store_set(PyObject *op, PyObject *const *args, Py_ssize_t given);
PyObject *wr_face_dying(PyObject *op, PyObject *argument);
PyObject *wr_face_terminate(PyObject *op, PyObject *const *args, Py_ssize_t given);
#endif
