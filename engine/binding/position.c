/* Position: where a message of a topic lies. Its numbers become objects when they are asked for: an append of a million
 * messages answers with a million of these. */
#include "binding/position.h"
#include "binding/arguments.h"
#include "topics/message_id.h"

typedef struct {
    PyObject_HEAD
    uint32_t queue;
    uint8_t host[WR_HOST_V4_SIZE];
    uint64_t offset, physical_offset;
} PositionObject;

PyObject *wr_position_new(uint32_t queue, uint64_t offset, uint64_t physical_offset, const uint8_t host[WR_HOST_V4_SIZE]) {
    PositionObject *self = PyObject_New(PositionObject, wr_module.position_type);
    if (!self) return NULL;
    self->queue = queue;
    self->offset = offset;
    self->physical_offset = physical_offset;
    memcpy(self->host, host, sizeof self->host);
    return (PyObject *)self;
}

/* -1: it has none yet. */
static int offset_of(PyObject *number, uint64_t *offset) {
    *offset = UINT64_MAX;
    if (PyLong_Check(number) && PyLong_AsLongLong(number) == -1 && !PyErr_Occurred()) return 0;
    PyErr_Clear();
    return number_of(number, 63, "offset", offset);
}

/* Position(queue, offset, physical_offset, message_id): as unpickled. */
static PyObject *position_make(PyTypeObject *type, PyObject *args, PyObject *keywords) {
    static char *names[] = {"queue", "offset", "physical_offset", "message_id", NULL};
    PyObject *numbers[3];
    const char *text;
    Py_ssize_t length;
    uint64_t queue, offset, physical_offset;
    wr_message_id id;
    (void)type;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "OOOs#:Position", names, &numbers[0], &numbers[1], &numbers[2], &text, &length) ||
        number_of(numbers[0], 31, "queue", &queue) || offset_of(numbers[1], &offset) ||
        number_of(numbers[2], 63, "physical_offset", &physical_offset))
        return NULL;
    if (!wr_message_id_parse(text, (uint64_t)length, &id) || id.store_host_bytes != WR_HOST_V4_SIZE || id.physical_offset != physical_offset)
        return PyErr_Format(PyExc_ValueError, "message_id is not of this physical_offset");
    return wr_position_new((uint32_t)queue, offset, physical_offset, id.store_host);
}

static void position_dealloc(PyObject *op) {
    PyTypeObject *type = Py_TYPE(op);
    PyObject_Free(op);
    Py_DECREF(type);
}

static PyObject *get_queue(PyObject *op, void *closure) {
    (void)closure;
    return PyLong_FromUnsignedLong(((PositionObject *)op)->queue);
}

static PyObject *get_offset(PyObject *op, void *closure) {
    (void)closure;
    return PyLong_FromLongLong((long long)((PositionObject *)op)->offset);
}

static PyObject *get_physical_offset(PyObject *op, void *closure) {
    (void)closure;
    return PyLong_FromUnsignedLongLong(((PositionObject *)op)->physical_offset);
}

static PyObject *get_message_id(PyObject *op, void *closure) {
    (void)closure;
    const PositionObject *self = (PositionObject *)op;
    char text[WR_MESSAGE_ID_CHARS_V6];
    uint32_t chars = wr_message_id_put(text, self->host, WR_HOST_V4_SIZE, self->physical_offset);
    return PyUnicode_FromStringAndSize(text, chars);
}

static PyObject *position_repr(PyObject *op) {
    const PositionObject *self = (PositionObject *)op;
    return PyUnicode_FromFormat("Position(queue=%u, offset=%lld, physical_offset=%llu)", self->queue, (long long)self->offset,
                                (unsigned long long)self->physical_offset);
}

static PyObject *position_compare(PyObject *op, PyObject *with, int how) {
    if (Py_TYPE(with) != wr_module.position_type || (how != Py_EQ && how != Py_NE)) Py_RETURN_NOTIMPLEMENTED;
    const PositionObject *a = (PositionObject *)op, *b = (PositionObject *)with;
    bool same = a->queue == b->queue && a->offset == b->offset && a->physical_offset == b->physical_offset && !memcmp(a->host, b->host, sizeof a->host);
    return PyBool_FromLong(same == (how == Py_EQ));
}

static Py_hash_t position_hash(PyObject *op) {
    const PositionObject *self = (PositionObject *)op;
    uint64_t mixed = (self->physical_offset * 31 + self->queue) * 0x9e3779b97f4a7c15ull ^ self->offset;
    return (Py_hash_t)(mixed >> 1);
}

static PyObject *position_reduce(PyObject *op, PyObject *ignored) {
    const PositionObject *self = (PositionObject *)op;
    (void)ignored;
    PyObject *id = get_message_id(op, NULL);
    if (!id) return NULL;
    return Py_BuildValue("(O(ILKN))", Py_TYPE(op), self->queue, (long long)self->offset, (unsigned long long)self->physical_offset, id);
}

static PyGetSetDef attributes[] = {
    {"queue", get_queue, NULL, "the queue of the topic that the message is in", NULL},
    {"offset", get_offset, NULL, "its number in that queue, from 0; -1: it comes later, and has none yet", NULL},
    {"physical_offset", get_physical_offset, NULL, "where its record begins in the log, in bytes", NULL},
    {"message_id", get_message_id, NULL, "its id, for Topic.find_id", NULL},
    {NULL, NULL, NULL, NULL, NULL}};

static PyMethodDef methods[] = {{"__reduce__", position_reduce, METH_NOARGS, "For pickle."}, {NULL, NULL, 0, NULL}};

static PyType_Slot slots[] = {
    {Py_tp_new, position_make},
    {Py_tp_dealloc, position_dealloc},
    {Py_tp_repr, position_repr},
    {Py_tp_richcompare, position_compare},
    {Py_tp_hash, position_hash},
    {Py_tp_methods, methods},
    {Py_tp_getset, attributes},
    {Py_tp_doc, "Where a message of a topic lies: queue, offset, physical_offset, message_id."},
    {0, NULL}};
static PyType_Spec spec = {"warren.engine._core.Position", sizeof(PositionObject), 0, Py_TPFLAGS_DEFAULT, slots};

int wr_bind_position(PyObject *module) {
    wr_module.position_type = (PyTypeObject *)PyType_FromModuleAndSpec(module, &spec, NULL);
    return wr_module.position_type ? PyModule_AddObjectRef(module, "Position", (PyObject *)wr_module.position_type) : -1;
}
