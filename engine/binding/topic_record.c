/* Record. The records of a batch share its memory; what is asked for becomes an object when it is asked for, because a reader of
 * millions looks at a part of each. */
#include "binding/topic_record.h"
#include "binding/arguments.h"
#include "kernel/bytes.h"
#include "topics/message_id.h"
#include "topics/properties.h"

#define RECORD_ROOM 64u
#define STORED_AT(r) (WR_LOG_HEAD_SIZE + wr_born_host_bytes(sys_flag_of(r)))

typedef struct {
    PyObject_HEAD
    PyObject *memory;
    const uint8_t *bytes;
    uint32_t size, body_at, body_length, properties_at, properties_length;
} RecordObject;

static PyObject *record_of(PyObject *given, const wr_record_place *place) {
    RecordObject *self = PyObject_New(RecordObject, wr_module.record_type);
    if (!self) return NULL;
    self->memory = Py_NewRef(given);
    self->bytes = wr_memory_of(given)->bytes + place->at;
    self->size = place->size;
    self->body_at = place->body_at;
    self->body_length = place->body_length;
    self->properties_at = place->properties_at;
    self->properties_length = place->properties_length;
    return (PyObject *)self;
}

PyObject *wr_topic_records(wr_memory *memory, const wr_record_place *places, uint32_t n) {
    PyObject *given = wr_memory_give(memory), *list = given ? PyList_New(n) : NULL;
    for (uint32_t i = 0; list && i < n; i++) {
        PyObject *record = record_of(given, &places[i]);
        if (record) PyList_SET_ITEM(list, i, record);
        else Py_CLEAR(list);
    }
    Py_XDECREF(given);
    return list;
}

/* Record(bytes): as unpickled. */
static PyObject *record_make(PyTypeObject *type, PyObject *args, PyObject *keywords) {
    static char *names[] = {"", NULL};
    Py_buffer given;
    (void)type;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "y*:Record", names, &given)) return NULL;
    wr_memory memory = {0};
    wr_record r;
    wr_scan found = WR_SCAN_BAD;
    const uint64_t n = (uint64_t)given.len;
    const int error = wr_memory_grow(&memory, n, RECORD_ROOM);
    if (!error) memcpy(memory.bytes, given.buf, n);
    PyBuffer_Release(&given);
    if (error) return PyErr_NoMemory();
    memory.n = n;
    if (n > WR_LOG_HEAD_SIZE) found = wr_record_scan(memory.bytes, n, wr_get64(memory.bytes + WR_LOG_HEAD_AT_PHYSICAL_OFFSET), WR_SCAN_ALL, &r);
    if (found != WR_SCAN_RECORD || r.size != n) {
        wr_memory_drop(&memory);
        return PyErr_Format(PyExc_ValueError, "these bytes are no record of a topic's log");
    }
    const wr_record_place place = wr_record_place_of(0, &r);
    PyObject *bytes = wr_memory_give(&memory), *record = bytes ? record_of(bytes, &place) : NULL;
    Py_XDECREF(bytes);
    return record;
}

static void record_dealloc(PyObject *op) {
    PyTypeObject *type = Py_TYPE(op);
    Py_DECREF(((RecordObject *)op)->memory);
    PyObject_Free(op);
    Py_DECREF(type);
}

/* ---- what it says ---- */

static inline const RecordObject *self_of(PyObject *op) { return (const RecordObject *)op; }
static inline uint32_t sys_flag_of(const RecordObject *r) { return wr_get32(r->bytes + WR_LOG_HEAD_AT_SYS_FLAG); }

static PyObject *get_queue(PyObject *op, void *closure) {
    (void)closure;
    return PyLong_FromUnsignedLong(wr_get32(self_of(op)->bytes + WR_LOG_HEAD_AT_QUEUE_ID));
}

/* A number of 8 bytes; `closure`: where it lies in the head. */
static PyObject *get_number(PyObject *op, void *closure) {
    return PyLong_FromLongLong((int64_t)wr_get64(self_of(op)->bytes + (uintptr_t)closure));
}

static PyObject *get_timestamp(PyObject *op, void *closure) {
    (void)closure;
    return PyLong_FromLongLong((int64_t)wr_get64(self_of(op)->bytes + STORED_AT(self_of(op)) + WR_LOG_STORED_AT_STORE_TIMESTAMP));
}

static PyObject *get_reconsume_times(PyObject *op, void *closure) {
    (void)closure;
    const RecordObject *r = self_of(op);
    return PyLong_FromUnsignedLong(wr_get32(r->bytes + r->body_at - WR_LOG_TAIL_SIZE + WR_LOG_TAIL_AT_RECONSUME_TIMES));
}

static PyObject *get_body(PyObject *op, void *closure) {
    (void)closure;
    const RecordObject *r = self_of(op);
    return PyBytes_FromStringAndSize((const char *)r->bytes + r->body_at, r->body_length);
}

static PyObject *get_message_id(PyObject *op, void *closure) {
    (void)closure;
    const RecordObject *r = self_of(op);
    char text[WR_MESSAGE_ID_CHARS_V6];
    uint32_t chars = wr_message_id_put(text, r->bytes + STORED_AT(r) + WR_LOG_STORED_SIZE, wr_store_host_bytes(sys_flag_of(r)),
                                       wr_get64(r->bytes + WR_LOG_HEAD_AT_PHYSICAL_OFFSET));
    return PyUnicode_FromStringAndSize(text, chars);
}

static PyObject *text_of(wr_text text) { return PyUnicode_DecodeUTF8((const char *)text.at, text.n, "replace"); }

static PyObject *get_tag(PyObject *op, void *closure) {
    (void)closure;
    const RecordObject *r = self_of(op);
    wr_text tag;
    if (!wr_properties_find(r->bytes + r->properties_at, r->properties_length, "TAGS", &tag)) Py_RETURN_NONE;
    return text_of(tag);
}

static PyObject *get_keys(PyObject *op, void *closure) {
    (void)closure;
    const RecordObject *r = self_of(op);
    wr_text keys, key;
    uint32_t at = 0;
    PyObject *list = PyList_New(0), *tuple = NULL;
    bool any = wr_properties_find(r->bytes + r->properties_at, r->properties_length, "KEYS", &keys);
    while (list && any && wr_keys_next(keys, &at, &key)) {
        PyObject *one = text_of(key);
        if (!one || PyList_Append(list, one) < 0) Py_CLEAR(list);
        Py_XDECREF(one);
    }
    if (list) tuple = PyList_AsTuple(list);
    Py_XDECREF(list);
    return tuple;
}

static PyObject *get_key(PyObject *op, void *closure) {
    (void)closure;
    const RecordObject *r = self_of(op);
    wr_text keys, key;
    uint32_t at = 0;
    if (!wr_properties_find(r->bytes + r->properties_at, r->properties_length, "KEYS", &keys) || !wr_keys_next(keys, &at, &key)) Py_RETURN_NONE;
    return text_of(key);
}

static PyObject *get_properties(PyObject *op, void *closure) {
    (void)closure;
    const RecordObject *r = self_of(op);
    PyObject *dict = PyDict_New();
    uint32_t at = 0;
    wr_text name, value;
    while (dict && wr_properties_next(r->bytes + r->properties_at, r->properties_length, &at, &name, &value)) {
        if (name.n == 4 && (!memcmp(name.at, "KEYS", 4) || !memcmp(name.at, "TAGS", 4))) continue;
        PyObject *key = text_of(name), *item = text_of(value);
        if (!key || !item || PyDict_SetItem(dict, key, item) < 0) Py_CLEAR(dict);
        Py_XDECREF(key);
        Py_XDECREF(item);
    }
    return dict;
}

#define REPR_BYTES 32 /* of the body, as engine/saying.py */

static PyObject *record_repr(PyObject *op) {
    const RecordObject *r = self_of(op);
    const Py_ssize_t shown = r->body_length < REPR_BYTES ? r->body_length : REPR_BYTES;
    PyObject *key = get_key(op, NULL), *tag = get_tag(op, NULL), *text = NULL;
    PyObject *begins = PyBytes_FromStringAndSize((const char *)r->bytes + r->body_at, shown);
    if (key && tag && begins)
        text = PyUnicode_FromFormat("Record(queue=%u, offset=%llu, key=%R, tag=%R, %u bytes: %R%s)",
                                    wr_get32(r->bytes + WR_LOG_HEAD_AT_QUEUE_ID),
                                    (unsigned long long)wr_get64(r->bytes + WR_LOG_HEAD_AT_QUEUE_OFFSET), key, tag, r->body_length,
                                    begins, shown < r->body_length ? "\xe2\x80\xa6" : "");
    Py_XDECREF(begins);
    Py_XDECREF(key);
    Py_XDECREF(tag);
    return text;
}

static PyObject *record_compare(PyObject *op, PyObject *with, int how) {
    if (Py_TYPE(with) != wr_module.record_type || (how != Py_EQ && how != Py_NE)) Py_RETURN_NOTIMPLEMENTED;
    bool same = self_of(op)->size == self_of(with)->size && !memcmp(self_of(op)->bytes, self_of(with)->bytes, self_of(op)->size);
    return PyBool_FromLong(same == (how == Py_EQ));
}

static Py_hash_t record_hash(PyObject *op) {
    Py_hash_t hash = (Py_hash_t)wr_get64(self_of(op)->bytes + WR_LOG_HEAD_AT_PHYSICAL_OFFSET);
    return hash == -1 ? -2 : hash;
}

static PyObject *record_reduce(PyObject *op, PyObject *ignored) {
    (void)ignored;
    return Py_BuildValue("(O(y#))", Py_TYPE(op), (const char *)self_of(op)->bytes, (Py_ssize_t)self_of(op)->size);
}

#define HEAD_NUMBER(field) ((void *)(uintptr_t)WR_LOG_HEAD_AT_##field)
static PyGetSetDef record_fields[] = {
    {"queue", get_queue, NULL, "Queue of the topic.", NULL},
    {"offset", get_number, NULL, "Offset in its queue.", HEAD_NUMBER(QUEUE_OFFSET)},
    {"physical_offset", get_number, NULL, "Position in the node's log of topics, bytes.", HEAD_NUMBER(PHYSICAL_OFFSET)},
    {"key", get_key, NULL, "Its first key, or None.", NULL},
    {"keys", get_keys, NULL, "All keys, a tuple.", NULL},
    {"tag", get_tag, NULL, "Its tag, or None.", NULL},
    {"body", get_body, NULL, "The bytes that were appended.", NULL},
    {"properties", get_properties, NULL, "Names and values, beside keys and tag: a dict of str.", NULL},
    {"timestamp", get_timestamp, NULL, "When it was stored, milliseconds since 1970.", NULL},
    {"born_timestamp", get_number, NULL, "When it was sent, as its producer said, milliseconds since 1970.", HEAD_NUMBER(BORN_TIMESTAMP)},
    {"message_id", get_message_id, NULL, "Its id: find_id finds it.", NULL},
    {"reconsume_times", get_reconsume_times, NULL, "How often it was delivered and failed before.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyMethodDef record_methods[] = {
    {"__reduce__", record_reduce, METH_NOARGS, "For pickle and copy."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot record_slots[] = {
    {Py_tp_doc, "One message of a topic. Records that were read together share their memory: one that is kept keeps it all."},
    {Py_tp_new, record_make},
    {Py_tp_dealloc, record_dealloc},
    {Py_tp_getset, record_fields},
    {Py_tp_methods, record_methods},
    {Py_tp_repr, record_repr},
    {Py_tp_richcompare, record_compare},
    {Py_tp_hash, record_hash},
    {0, NULL},
};

static PyType_Spec record_spec = {"warren.Record", sizeof(RecordObject), 0, Py_TPFLAGS_DEFAULT, record_slots};

int wr_bind_topic_record(PyObject *module) {
    wr_module.record_type = (PyTypeObject *)PyType_FromSpec(&record_spec);
    return wr_module.record_type ? PyModule_AddObjectRef(module, "Record", (PyObject *)wr_module.record_type) : -1;
}
