/* The list of a store's file for Python: made by a scan, by a list file, or handed out by the store.
 * store/file_list.h */
#include "binding/arguments.h"
#include "binding/file_list.h"
#include "binding/state.h"
#include <stdlib.h>

#define LONG_BYTES 65536 /* above this the GIL is released */
#define BAD_ROOM 4096

typedef struct {
    PyObject_HEAD
    wr_list *list;
} ListObject;


PyObject *wr_file_list_wrap(wr_list *list) {
    if (!list) return PyErr_NoMemory();
    ListObject *self = PyObject_New(ListObject, wr_module.list_type);
    if (self)
        self->list = list;
    else
        wr_list_free(list);
    return (PyObject *)self;
}

wr_list *wr_file_list_of(PyObject *object) {
    if (Py_TYPE(object) == wr_module.list_type) return ((ListObject *)object)->list;
    PyErr_Format(PyExc_TypeError, "a FileList is wanted, not %s", Py_TYPE(object)->tp_name);
    return NULL;
}

static void list_dealloc(ListObject *self) {
    PyTypeObject *type = Py_TYPE(self);
    wr_list_free(self->list);
    PyObject_Free(self);
    Py_DECREF(type);
}

/* ---- arguments ---- */

/* ---- attributes ---- */

enum { FILE_NUMBER, SALT, USED, MESSAGES, MESSAGE_BYTES, CONTROLS, DAMAGED, RUNS, VOUCHED };

static PyObject *list_number(ListObject *self, void *which) {
    const wr_list *list = self->list;
    uint64_t values[] = {list->file,          list->salt,     list->used,    list->messages,
                         list->message_bytes, list->controls, list->damaged, list->runs_n,
                         list->vouched};
    return PyLong_FromUnsignedLongLong(values[(intptr_t)which]);
}

static PyObject *list_damage(ListObject *self, void *ignored) {
    (void)ignored;
    PyObject *all = PyList_New(0);
    for (uint64_t i = 0; all && i < self->list->damage_n; i++) {
        const wr_list_damage *part = &self->list->damage[i];
        PyObject *one =
            Py_BuildValue("(KKs)", (unsigned long long)part->from, (unsigned long long)part->to, part->reason);
        if (!one || PyList_Append(all, one) < 0) Py_CLEAR(all);
        Py_XDECREF(one);
    }
    return all;
}

static PyObject *list_waters(ListObject *self, void *ignored) {
    (void)ignored;
    PyObject *all = PyDict_New();
    for (uint64_t i = 0; all && i < self->list->waters_size; i++) {
        const wr_list_water *water = &self->list->waters[i];
        if (!water->water) continue;
        PyObject *key = PyLong_FromUnsignedLongLong(water->client_epoch);
        PyObject *value = PyLong_FromUnsignedLongLong(water->water);
        if (!key || !value || PyDict_SetItem(all, key, value) < 0) Py_CLEAR(all);
        Py_XDECREF(key);
        Py_XDECREF(value);
    }
    return all;
}

static PyGetSetDef list_attributes[] = {
    {"file", (getter)list_number, NULL, "number of the file", (void *)FILE_NUMBER},
    {"salt", (getter)list_number, NULL, "salt of the file", (void *)SALT},
    {"used", (getter)list_number, NULL, "end of its last frame", (void *)USED},
    {"messages", (getter)list_number, NULL, "MESSAGE frames", (void *)MESSAGES},
    {"message_bytes", (getter)list_number, NULL, "their bytes", (void *)MESSAGE_BYTES},
    {"controls", (getter)list_number, NULL, "ids of ADD_REFERENCE and REMOVE frames", (void *)CONTROLS},
    {"damaged", (getter)list_number, NULL, "damaged parts that the scan skipped, maybe long ago", (void *)DAMAGED},
    {"vouched", (getter)list_number, NULL, "what lies before it was synced, says a frame that a scan found", (void *)VOUCHED},
    {"runs", (getter)list_number, NULL, "runs of consecutive ids", (void *)RUNS},
    {"damage", (getter)list_damage, NULL, "damaged parts that this scan skipped: (from, to, reason)", NULL},
    {"waters", (getter)list_waters, NULL, "high water of each client epoch", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

/* ---- methods ---- */

static PyObject *list_encode(ListObject *self, PyObject *const *args, Py_ssize_t given) {
    uint64_t node_id, owner, n;
    if (!count_ok("encode", given, 2) || number_of(args[0], 64, "node_id", &node_id) ||
        number_of(args[1], 32, "owner", &owner))
        return NULL;
    uint8_t *bytes;
    Py_BEGIN_ALLOW_THREADS
    bytes = wr_list_encode(self->list, node_id, (uint32_t)owner, &n);
    Py_END_ALLOW_THREADS
    if (!bytes) return PyErr_NoMemory();
    PyObject *result = PyBytes_FromStringAndSize((const char *)bytes, (Py_ssize_t)n);
    free(bytes);
    return result;
}

static PyObject *list_items(ListObject *self, PyObject *ignored) {
    (void)ignored;
    PyObject *all = PyList_New(0);
    wr_list_cursor cursor = wr_list_cursor_at(self->list, 0);
    wr_list_item item;
    while (all && wr_list_next(&cursor, &item)) {
        PyObject *one = Py_BuildValue("(y#KIIHB)", (const char *)item.id, (Py_ssize_t)16, (unsigned long long)item.offset,
                                      item.total, item.extra, item.meta_length, item.kind);
        if (!one || PyList_Append(all, one) < 0) Py_CLEAR(all);
        Py_XDECREF(one);
    }
    return all;
}

static PyObject *list_verify(ListObject *self, PyObject *from) {
    Py_buffer bytes;
    if (PyObject_GetBuffer(from, &bytes, PyBUF_SIMPLE) < 0) return NULL;
    wr_list_bad *bad = malloc(BAD_ROOM * sizeof *bad);
    uint64_t n = 0;
    if (bad) {
        Py_BEGIN_ALLOW_THREADS
        n = wr_list_verify(self->list, bytes.buf, (uint64_t)bytes.len, bad, BAD_ROOM);
        Py_END_ALLOW_THREADS
    }
    PyBuffer_Release(&bytes);
    if (!bad) return PyErr_NoMemory();
    PyObject *all = PyList_New(0);
    for (uint64_t i = 0; all && i < n && i < BAD_ROOM; i++) {
        PyObject *one = Py_BuildValue("(y#KIBs)", (const char *)bad[i].id, (Py_ssize_t)16, (unsigned long long)bad[i].offset,
                                      bad[i].total, bad[i].kind, bad[i].reason);
        if (!one || PyList_Append(all, one) < 0) Py_CLEAR(all);
        Py_XDECREF(one);
    }
    free(bad);
    if (!all) return NULL;
    PyObject *result = Py_BuildValue("(NK)", all, (unsigned long long)n);
    return result;
}

static PyMethodDef list_methods[] = {
    {"encode", (PyCFunction)(void (*)(void))list_encode, METH_FASTCALL, "encode(node_id, owner): the bytes of its list file."},
    {"items", (PyCFunction)list_items, METH_NOARGS,
     "All ids in the order of the file: (id, offset, total, extra, meta_length, kind). For tools and tests."},
    {"verify", (PyCFunction)list_verify, METH_O,
     "verify(buffer): ids whose frames are not in a file's bytes as the list says: ([(id, offset, total, kind, reason)] "
     "(the first 4096), how many)."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot list_slots[] = {
    {Py_tp_doc, "What a file of the store holds, without the bodies. Made by scan_list, decode_list and StoreServer."},
    {Py_tp_dealloc, list_dealloc},
    {Py_tp_methods, list_methods},
    {Py_tp_getset, list_attributes},
    {0, NULL},
};

static PyType_Spec list_spec = {"warren.engine._core.FileList", sizeof(ListObject), 0,
                                Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, list_slots};

/* ---- functions ---- */

static PyObject *decode_list(PyObject *module, PyObject *const *args, Py_ssize_t given) {
    (void)module;
    uint64_t node_id, owner, file, salt, file_bytes;
    Py_buffer from;
    if (!count_ok("decode_list", given, 6) || number_of(args[1], 64, "node_id", &node_id) ||
        number_of(args[2], 32, "owner", &owner) || number_of(args[3], 64, "file", &file) ||
        number_of(args[4], 64, "salt", &salt) || number_of(args[5], 64, "file_bytes", &file_bytes))
        return NULL;
    if (PyObject_GetBuffer(args[0], &from, PyBUF_SIMPLE) < 0) return NULL;
    const char *reason;
    wr_list *list;
    if (from.len > LONG_BYTES) {
        Py_BEGIN_ALLOW_THREADS
        list = wr_list_decode(from.buf, (uint64_t)from.len, node_id, (uint32_t)owner, file, salt, file_bytes, &reason);
        Py_END_ALLOW_THREADS
    } else {
        list = wr_list_decode(from.buf, (uint64_t)from.len, node_id, (uint32_t)owner, file, salt, file_bytes, &reason);
    }
    PyBuffer_Release(&from);
    return list ? wr_file_list_wrap(list) : PyUnicode_FromString(reason);
}

static PyObject *scan_list(PyObject *module, PyObject *const *args, Py_ssize_t given) {
    (void)module;
    uint64_t file, salt;
    Py_buffer from;
    if (!count_ok("scan_list", given, 3) || number_of(args[0], 64, "file", &file) || number_of(args[1], 64, "salt", &salt))
        return NULL;
    if (PyObject_GetBuffer(args[2], &from, PyBUF_SIMPLE) < 0) return NULL;
    const char *reason;
    wr_list *list;
    Py_BEGIN_ALLOW_THREADS
    list = wr_list_scan(file, salt, from.buf, (uint64_t)from.len, &reason);
    Py_END_ALLOW_THREADS
    PyBuffer_Release(&from);
    PyObject *object = wr_file_list_wrap(list);
    return object ? Py_BuildValue("(Ns)", object, reason) : NULL;
}

static PyObject *rewrite_list(PyObject *module, PyObject *const *args, Py_ssize_t given) {
    (void)module;
    uint64_t salt, end;
    Py_buffer from, to;
    if (!count_ok("rewrite_list", given, 4) || number_of(args[3], 64, "salt", &salt)) return NULL;
    const wr_list *list = wr_file_list_of(args[0]);
    if (!list || PyObject_GetBuffer(args[1], &from, PyBUF_SIMPLE) < 0) return NULL;
    if (PyObject_GetBuffer(args[2], &to, PyBUF_WRITABLE) < 0) {
        PyBuffer_Release(&from);
        return NULL;
    }
    Py_BEGIN_ALLOW_THREADS
    end = wr_list_rewrite(list, from.buf, (uint64_t)from.len, to.buf, (uint64_t)to.len, salt);
    Py_END_ALLOW_THREADS
    PyBuffer_Release(&from);
    PyBuffer_Release(&to);
    if (end) return PyLong_FromUnsignedLongLong(end);
    PyErr_SetString(PyExc_ValueError, "the records do not fit into the other file");
    return NULL;
}

static PyMethodDef functions[] = {
    {"decode_list", (PyCFunction)(void (*)(void))decode_list, METH_FASTCALL,
     "decode_list(buffer, node_id, owner, file, salt, file_bytes): the list in a list file, or the reason why there is none."},
    {"rewrite_list", (PyCFunction)(void (*)(void))rewrite_list, METH_FASTCALL,
     "rewrite_list(list, buffer, to, salt): copy the frames that a list names to another file's bytes; the end there."},
    {"scan_list", (PyCFunction)(void (*)(void))scan_list, METH_FASTCALL,
     "scan_list(file, salt, buffer): (list of a file's bytes, why the scan ended at its `used`)."},
    {NULL, NULL, 0, NULL},
};

int wr_bind_list(PyObject *module) {
    if (PyModule_AddFunctions(module, functions) < 0) return -1;
    wr_module.list_type = (PyTypeObject *)PyType_FromSpec(&list_spec);
    return wr_module.list_type ? PyModule_AddObjectRef(module, "FileList", (PyObject *)wr_module.list_type) : -1;
}
