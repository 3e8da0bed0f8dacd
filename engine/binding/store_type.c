/* StoreFace: what a program's Store is made of. Arguments, durability, and the attachment in use; the work is
 * binding/store_side.c's.
 *
 * Invariants
 *   `core` is the attachment that was good last. When it is not any more (node restarted, fork, link closed) the
 *   owner's attribute `core` gives another one, or raises; what AttachmentLost interrupts before anything was handed
 *   over is done again with it.
 *   A call holds its own reference to the core: another thread may put a new one in its place meanwhile.
 */
#include "binding/confirm.h"
#include "binding/store_side.h"
#include <structmember.h>

typedef struct {
    PyObject_HEAD
    PyObject *owner; /* warren.workers.client.client.Client */
    ClientObject *core;
    int store;
    char transient;
} FaceObject;

/* ---- arguments ---- */

enum { A_ID, A_IDS, A_BODY, A_BODIES, A_DURABILITY, A_WAIT, A_TIMEOUT, A_N };
static const char *const argument_texts[A_N] = {"id", "ids", "body", "bodies", "durability", "wait", "timeout"};
_Static_assert(A_N <= sizeof wr_module.store_argument_names / sizeof *wr_module.store_argument_names, "a name for each");
static const char *const level_texts[3] = {"none", "written", "synced"};

typedef struct {
    const char *name;
    int n, required;
    int arguments[5];
} wr_signature;

/* Positions and keywords of a fast call into `to`, in the order of the signature; NULL: not given. */
static int take_arguments(const wr_signature *signature, PyObject *const *args, Py_ssize_t given, PyObject *names, PyObject **to) {
    if (given > signature->n) {
        PyErr_Format(PyExc_TypeError, "%s() takes at most %d arguments (%zd given)", signature->name, signature->n, given);
        return -1;
    }
    for (int k = 0; k < signature->n; k++) to[k] = k < given ? args[k] : NULL;
    for (Py_ssize_t k = 0; names && k < PyTuple_GET_SIZE(names); k++) {
        PyObject *name = PyTuple_GET_ITEM(names, k);
        int at = 0;
        while (at < signature->n && name != wr_module.store_argument_names[signature->arguments[at]]) at++;
        if (at == signature->n) /* not interned, or wrong */
            for (at = 0; at < signature->n && PyUnicode_CompareWithASCIIString(name, argument_texts[signature->arguments[at]]);) at++;
        if (at == signature->n || to[at]) {
            PyErr_Format(PyExc_TypeError, at == signature->n ? "%s() got an unexpected keyword argument %R" : "%s() got argument %R twice",
                         signature->name, name);
            return -1;
        }
        to[at] = args[given + k];
    }
    for (int k = 0; k < signature->required; k++) {
        if (to[k]) continue;
        PyErr_Format(PyExc_TypeError, "%s() misses the argument '%s'", signature->name, argument_texts[signature->arguments[k]]);
        return -1;
    }
    return 0;
}

/* The rules of workers/client/arguments.py: level_of. */
static int level_from(const FaceObject *self, PyObject *durability, int *level) {
    *level = self->transient ? WR_LEVEL_NONE : WR_LEVEL_SYNCED;
    if (!durability || durability == Py_None) return 0;
    int found = -1;
    for (int k = 0; k < 3 && found < 0; k++)
        if (durability == wr_module.level_names[k]) found = k;
    for (int k = 0; k < 3 && found < 0 && PyUnicode_Check(durability); k++)
        if (!PyUnicode_CompareWithASCIIString(durability, level_texts[k])) found = k;
    if (found < 0)
        return wr_raise_given("UsageError", durability, "durability must be one of 'none', 'written', 'synced' or None");
    if (found && self->transient)
        return wr_raise_given("UsageError", durability,
                              "this store is transient, and its messages are kept in memory only: durability can only be 'none'");
    *level = found;
    return 0;
}

static inline int deadline_from(PyObject *timeout, bool wait, uint64_t *deadline) {
    *deadline = 0;
    return wait && (!timeout || timeout == Py_None) ? 0 : wr_deadline_of_call(timeout, wait, deadline);
}

/* ---- the attachment in use ---- */

/* A new reference; NULL with an exception. */
static ClientObject *core_of(FaceObject *self) {
    ClientObject *core = self->core;
    if (core && core->open && !core->ended && core->forks == wr_module.forks && !wr_node_stopped(core)) return (ClientObject *)Py_NewRef(core);
    PyObject *found = self->owner ? PyObject_GetAttrString(self->owner, "core") : NULL;
    if (!found) {
        if (!PyErr_Occurred()) wr_raise("ClosedError", "this store was never opened");
        return NULL;
    }
    if (!PyObject_TypeCheck(found, wr_module.client_type)) {
        Py_DECREF(found);
        PyErr_SetString(PyExc_TypeError, "the owner's core is no Client");
        return NULL;
    }
    ClientObject *old = self->core;
    self->core = (ClientObject *)Py_NewRef(found);
    Py_XDECREF(old);
    return (ClientObject *)found;
}

/* To do it again after AttachmentLost? Whatever happened, the reference to the core is given back. */
static bool again(ClientObject *c, PyObject *answer) {
    Py_DECREF(c);
    if (answer || !PyErr_ExceptionMatches(wr_module.attachment_lost)) return false;
    PyErr_Clear();
    return true;
}

/* ---- methods ---- */

static PyObject *face_write(PyObject *op, PyObject *const *args, Py_ssize_t given, PyObject *names) {
    static const wr_signature signature = {"write", 5, 2, {A_ID, A_BODY, A_DURABILITY, A_WAIT, A_TIMEOUT}};
    FaceObject *self = (FaceObject *)op;
    PyObject *a[5], *answer;
    int level;
    bool wait;
    uint64_t deadline, sequence;
    const uint8_t *id;
    if (take_arguments(&signature, args, given, names, a) || level_from(self, a[2], &level) || wr_flag(a[3] ? a[3] : Py_True, "wait", &wait) ||
        deadline_from(a[4], wait, &deadline) || wr_id_of(a[0], &id))
        return NULL;
    ClientObject *c;
    do {
        if (!(c = core_of(self))) return NULL;
        answer = NULL;
        if (!wr_enter(c) && !wr_client_gate(c, deadline, false) && !wr_face_current(c, self->store, deadline) &&
            !wr_face_write_one(c, self->store, id, a[1], level, deadline, &sequence)) {
            wr_port_submit(&c->a.port, (uint32_t)self->store);
            answer = wr_face_confirmed(c, self->store, sequence, sequence, level, deadline, wait);
        }
    } while (again(c, answer));
    return answer;
}

static PyObject *face_write_many(PyObject *op, PyObject *const *args, Py_ssize_t given, PyObject *names) {
    static const wr_signature signature = {"write_many", 5, 2, {A_IDS, A_BODIES, A_DURABILITY, A_WAIT, A_TIMEOUT}};
    FaceObject *self = (FaceObject *)op;
    PyObject *a[5], *answer = NULL;
    int level;
    bool wait;
    uint64_t deadline;
    wr_ids ids;
    if (take_arguments(&signature, args, given, names, a) || level_from(self, a[2], &level) || wr_flag(a[3] ? a[3] : Py_True, "wait", &wait) ||
        deadline_from(a[4], wait, &deadline) || wr_ids_take(a[0], &ids))
        return NULL;
    PyObject *bodies = wr_listed(a[1], "bodies");
    ClientObject *c;
    do {
        if (!bodies || !(c = core_of(self))) break;
        answer = NULL;
        if (!wr_enter(c) && !wr_client_gate(c, deadline, false) && !wr_face_current(c, self->store, deadline))
            answer = wr_face_write_many(c, self->store, &ids, bodies, level, deadline, wait);
    } while (again(c, answer));
    Py_XDECREF(bodies);
    wr_ids_drop(&ids);
    return answer;
}

static PyObject *face_read(PyObject *op, PyObject *object) {
    FaceObject *self = (FaceObject *)op;
    const uint8_t *id;
    PyObject *answer;
    ClientObject *c;
    if (wr_id_of(object, &id)) return NULL;
    do {
        if (!(c = core_of(self))) return NULL;
        answer = wr_enter(c) ? NULL : wr_face_read(c, self->store, id);
    } while (again(c, answer));
    return answer;
}

static PyObject *face_read_many(PyObject *op, PyObject *object) {
    FaceObject *self = (FaceObject *)op;
    PyObject *answer = NULL;
    ClientObject *c;
    wr_ids ids;
    if (wr_ids_take(object, &ids)) return NULL;
    do {
        if (!(c = core_of(self))) break;
        answer = wr_enter(c) ? NULL : wr_face_read_many(c, self->store, &ids);
    } while (again(c, answer));
    wr_ids_drop(&ids);
    return answer;
}

static PyObject *face_remove(PyObject *op, PyObject *const *args, Py_ssize_t given, PyObject *names) {
    static const wr_signature signature = {"remove", 2, 1, {A_IDS, A_TIMEOUT}};
    FaceObject *self = (FaceObject *)op;
    PyObject *a[2], *answer = NULL;
    uint64_t deadline;
    ClientObject *c;
    wr_ids ids;
    if (take_arguments(&signature, args, given, names, a) || deadline_from(a[1], false, &deadline) || wr_ids_take(a[0], &ids)) return NULL;
    do {
        if (!(c = core_of(self))) break;
        answer = wr_enter(c) || wr_face_current(c, self->store, deadline) ? NULL : wr_face_remove(c, self->store, &ids, deadline);
    } while (again(c, answer));
    wr_ids_drop(&ids);
    return answer;
}

static PyObject *face_contains(PyObject *op, PyObject *const *args, Py_ssize_t given, PyObject *names) {
    static const wr_signature signature = {"contains", 2, 1, {A_ID, A_TIMEOUT}};
    FaceObject *self = (FaceObject *)op;
    PyObject *a[2], *answer;
    uint64_t deadline;
    uint32_t result;
    const uint8_t *id;
    ClientObject *c;
    if (take_arguments(&signature, args, given, names, a) || deadline_from(a[1], true, &deadline) || wr_id_of(a[0], &id)) return NULL;
    do {
        if (!(c = core_of(self))) return NULL;
        answer = wr_enter(c) || wr_face_ask(c, self->store, WR_OP_STORE_CONTAINS, id, deadline, &result)
                     ? NULL
                     : PyBool_FromLong(result == WR_RESULT_OK);
    } while (again(c, answer));
    return answer;
}

static PyObject *face_new_id(PyObject *op, PyObject *unused) {
    FaceObject *self = (FaceObject *)op;
    (void)unused;
    ClientObject *c = core_of(self);
    if (!c) return NULL;
    uint8_t id[16];
    wr_attachment_id(&c->a, id);
    Py_DECREF(c);
    return PyBytes_FromStringAndSize((char *)id, 16);
}

#define NEW_IDS_MAX 1000000 /* at once: nobody else runs meanwhile */

static PyObject *face_new_ids(PyObject *op, PyObject *count) {
    FaceObject *self = (FaceObject *)op;
    Py_ssize_t n = PyIndex_Check(count) && !PyBool_Check(count) ? PyNumber_AsSsize_t(count, NULL) : -1; /* cut to the largest */
    if (n < 0 || n > NEW_IDS_MAX) {
        if (!PyErr_Occurred()) wr_raise_given("UsageError", count, "count must be a whole number from 0 to %d", NEW_IDS_MAX);
        return NULL;
    }
    ClientObject *c = core_of(self);
    if (!c) return NULL;
    uint64_t epoch = c->a.port.client_epoch, first = c->a.messages_n + 1;
    c->a.messages_n += (uint64_t)n;
    Py_DECREF(c);
    PyObject *list = PyList_New(n);
    for (Py_ssize_t k = 0; list && k < n; k++) {
        PyObject *id = PyBytes_FromStringAndSize(NULL, 16);
        if (!id) {
            Py_CLEAR(list);
            break;
        }
        wr_put64((uint8_t *)PyBytes_AS_STRING(id), epoch);
        wr_put64((uint8_t *)PyBytes_AS_STRING(id) + 8, first + (uint64_t)k);
        PyList_SET_ITEM(list, k, id);
    }
    return list;
}

/* ---- life ---- */

static int face_init(PyObject *op, PyObject *args, PyObject *keywords) {
    static char *names[] = {"client", "transient", NULL};
    FaceObject *self = (FaceObject *)op;
    PyObject *owner;
    int transient;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "Op", names, &owner, &transient)) return -1;
    Py_XSETREF(self->owner, Py_NewRef(owner));
    Py_CLEAR(self->core);
    self->transient = (char)transient;
    self->store = transient ? WR_SERVER_STORE_TRANSIENT : WR_SERVER_STORE_PERSISTENT;
    return 0;
}

static int face_traverse(PyObject *op, visitproc visit, void *arg) {
    FaceObject *self = (FaceObject *)op;
    Py_VISIT(Py_TYPE(op));
    Py_VISIT(self->owner);
    Py_VISIT(self->core);
    return 0;
}

static int face_clear(PyObject *op) {
    FaceObject *self = (FaceObject *)op;
    Py_CLEAR(self->owner);
    Py_CLEAR(self->core);
    return 0;
}

static void face_dealloc(PyObject *op) {
    PyTypeObject *type = Py_TYPE(op);
    PyObject_GC_UnTrack(op);
    face_clear(op);
    type->tp_free(op);
    Py_DECREF(type);
}

#define NAMED(name, function, doc) {name, (PyCFunction)(void (*)(void))function, METH_FASTCALL | METH_KEYWORDS, doc}

static PyMethodDef face_methods[] = {
    NAMED("write", face_write,
         "write(id, body, durability=None, wait=True, timeout=None)\n--\n\n"
         "Write a message. Returns when it is as durable as requested (default: 'synced', transient 'none').\n\n"
         "With wait=False, returns a Confirm at once. Raises UsageError (id), MessageTooLarge, TimedOut, PeerLost, SyncFailed."),
    NAMED("write_many", face_write_many,
         "write_many(ids, bodies, durability=None, wait=True, timeout=None)\n--\n\n"
         "Write many messages in order, with one Confirm for all. `ids`: a sequence, or one buffer of 16 bytes each.\n\n"
         "Consecutive ids (new_ids) are sent as batches, which cost a fraction. Raises what write raises; a wrong id or body refuses all."),
    {"read", face_read, METH_O,
     "read(id)\n--\n\nThe body of a message, or None if there is none. Raises StoreError for a damaged one.\n\n"
     "None, too, after a remove() by this client of the last reference; that of another one may not be executed yet."},
    {"read_many", face_read_many, METH_O,
     "read_many(ids)\n--\n\nThe bodies of many messages; None for each that does not exist. Raises StoreError for a damaged one.\n\n"
     "After a remove(): as read."},
    NAMED("remove", face_remove,
         "remove(ids, timeout=None)\n--\n\n"
         "Remove one reference of each id; returns how many writes were eliminated before they were stored.\n\n"
         "An unknown id is not an error. Removes are executed in order; `barrier()` waits for them."),
    NAMED("contains", face_contains,
         "contains(id, timeout=None)\n--\n\nWhether the store holds the message, after everything this client did before."),
    {"new_id", face_new_id, METH_NOARGS,
     "new_id()\n--\n\nA message id that no other client makes: client epoch, counter."},
    {"new_ids", face_new_ids, METH_O, "new_ids(count)\n--\n\nUp to 1,000,000 consecutive new ids, for writing batches."},
    {NULL, NULL, 0, NULL}};

static PyMemberDef face_members[] = {
    {"_client", T_OBJECT, offsetof(FaceObject, owner), READONLY, "the client that it belongs to"},
    {"transient", T_BOOL, offsetof(FaceObject, transient), READONLY, "whether it keeps messages in memory only"},
    {NULL, 0, 0, 0, NULL}};

static PyType_Slot face_slots[] = {
    {Py_tp_init, face_init},       {Py_tp_traverse, face_traverse}, {Py_tp_clear, face_clear},     {Py_tp_dealloc, face_dealloc},
    {Py_tp_methods, face_methods}, {Py_tp_members, face_members},   {Py_tp_doc, "StoreFace(client, transient): the base of Store."},
    {0, NULL}};
static PyType_Spec face_spec = {"warren.engine._core.StoreFace", sizeof(FaceObject), 0,
                                Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC, face_slots};

int wr_bind_store_type(PyObject *module) {
    for (int k = 0; k < A_N; k++)
        if (!wr_module.store_argument_names[k] && !(wr_module.store_argument_names[k] = PyUnicode_InternFromString(argument_texts[k]))) return -1;
    for (int k = 0; k < 3; k++)
        if (!wr_module.level_names[k] && !(wr_module.level_names[k] = PyUnicode_InternFromString(level_texts[k]))) return -1;
    PyObject *type = PyType_FromModuleAndSpec(module, &face_spec, NULL);
    if (!type) return -1;
    int error = PyModule_AddObjectRef(module, "StoreFace", type);
    Py_DECREF(type);
    return error;
}
