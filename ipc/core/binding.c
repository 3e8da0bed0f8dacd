/* The extension module warren.ipc._core: atomics and futexes on any writable buffer, for code off the hot paths. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <sys/ipc.h>
#include <sys/shm.h>

#include "names.h"
#include "view.h"

/* Buffer and aligned offset of a call; 0 with an exception set when they are wrong. */
static void *place(PyObject *const *args, Py_ssize_t given, Py_ssize_t wanted, size_t width, Py_buffer *buffer) {
    if (given != wanted) {
        PyErr_Format(PyExc_TypeError, "%zd arguments wanted, %zd given", wanted, given);
        return NULL;
    }
    if (PyObject_GetBuffer(args[0], buffer, PyBUF_WRITABLE) < 0) return NULL;
    size_t offset = PyLong_AsSize_t(args[1]);
    if (PyErr_Occurred() || offset % width || (size_t)buffer->len < width || offset > (size_t)buffer->len - width) {
        PyBuffer_Release(buffer);
        if (!PyErr_Occurred()) PyErr_SetString(PyExc_ValueError, "offset is outside the buffer or not aligned");
        return NULL;
    }
    return (uint8_t *)buffer->buf + offset;
}

#define PLACE(width, wanted)                                                     \
    Py_buffer buffer;                                                            \
    (void)module;                                                                \
    void *word = place(args, given, wanted, width, &buffer);                     \
    if (!word) return NULL

static PyObject *number(Py_buffer *buffer, uint64_t value) {
    PyBuffer_Release(buffer);
    return PyLong_FromUnsignedLongLong(value);
}

static PyObject *nothing(Py_buffer *buffer) {
    PyBuffer_Release(buffer);
    Py_RETURN_NONE;
}

static uint64_t value_of(PyObject *object) { return PyLong_AsUnsignedLongLongMask(object); }

static PyObject *load32(PyObject *module, PyObject *const *args, Py_ssize_t given) {
    PLACE(4, 2);
    return number(&buffer, atomic_load_explicit((_Atomic uint32_t *)word, memory_order_acquire));
}

static PyObject *load64(PyObject *module, PyObject *const *args, Py_ssize_t given) {
    PLACE(8, 2);
    return number(&buffer, atomic_load_explicit((_Atomic uint64_t *)word, memory_order_acquire));
}

static PyObject *store32(PyObject *module, PyObject *const *args, Py_ssize_t given) {
    PLACE(4, 3);
    atomic_store_explicit((_Atomic uint32_t *)word, (uint32_t)value_of(args[2]), memory_order_release);
    return PyErr_Occurred() ? (PyBuffer_Release(&buffer), NULL) : nothing(&buffer);
}

static PyObject *store64(PyObject *module, PyObject *const *args, Py_ssize_t given) {
    PLACE(8, 3);
    atomic_store_explicit((_Atomic uint64_t *)word, value_of(args[2]), memory_order_release);
    return PyErr_Occurred() ? (PyBuffer_Release(&buffer), NULL) : nothing(&buffer);
}

static PyObject *add32(PyObject *module, PyObject *const *args, Py_ssize_t given) {
    PLACE(4, 3);
    return number(&buffer, atomic_fetch_add((_Atomic uint32_t *)word, (uint32_t)value_of(args[2])));
}

static PyObject *add64(PyObject *module, PyObject *const *args, Py_ssize_t given) {
    PLACE(8, 3);
    return number(&buffer, atomic_fetch_add((_Atomic uint64_t *)word, value_of(args[2])));
}

static PyObject *or64(PyObject *module, PyObject *const *args, Py_ssize_t given) {
    PLACE(8, 3);
    return number(&buffer, atomic_fetch_or((_Atomic uint64_t *)word, value_of(args[2])));
}

static PyObject *and64(PyObject *module, PyObject *const *args, Py_ssize_t given) {
    PLACE(8, 3);
    return number(&buffer, atomic_fetch_and((_Atomic uint64_t *)word, value_of(args[2])));
}

static PyObject *cas64(PyObject *module, PyObject *const *args, Py_ssize_t given) {
    PLACE(8, 4);
    uint64_t expected = value_of(args[2]);
    bool done = atomic_compare_exchange_strong((_Atomic uint64_t *)word, &expected, value_of(args[3]));
    PyBuffer_Release(&buffer);
    return PyBool_FromLong(done);
}

static PyObject *futex_wait(PyObject *module, PyObject *const *args, Py_ssize_t given) {
    PLACE(4, 4);
    uint32_t expected = (uint32_t)value_of(args[2]);
    uint64_t timeout_ns = value_of(args[3]);
    int error;
    Py_BEGIN_ALLOW_THREADS
    error = wr_futex_wait(word, expected, timeout_ns);
    Py_END_ALLOW_THREADS
    PyBuffer_Release(&buffer);
    return PyLong_FromLong(error);
}

static PyObject *futex_wake(PyObject *module, PyObject *const *args, Py_ssize_t given) {
    PLACE(4, 2);
    wr_futex_wake_all(word);
    return nothing(&buffer);
}

static PyObject *bell_ring(PyObject *module, PyObject *const *args, Py_ssize_t given) {
    PLACE(4, 2);
    bool woken = wr_bell_ring(word);
    PyBuffer_Release(&buffer);
    return PyBool_FromLong(woken);
}

/* The segment belongs to a user from now on, and a group may use it. */
static int give(int id, unsigned int uid, unsigned int gid) {
    struct shmid_ds now;
    if (shmctl(id, IPC_STAT, &now) < 0) return -1;
    now.shm_perm.uid = uid;
    now.shm_perm.gid = gid;
    now.shm_perm.mode = 0660;
    return shmctl(id, IPC_SET, &now);
}

/* segment_create(size, uid, gid): a System V segment that is not attached yet. sysv_ipc makes and attaches in one call, and
 * when the second half fails it forgets the first. With a gid of -1 it stays the caller's alone.
 * Crash point: a process of another user that is killed between shmget and give() leaves one that only he can remove. */
static PyObject *segment_create(PyObject *module, PyObject *const *args, Py_ssize_t given) {
    (void)module;
    if (given != 3) return PyErr_Format(PyExc_TypeError, "3 arguments wanted, %zd given", given);
    size_t size = PyLong_AsSize_t(args[0]);
    long uid = PyLong_AsLong(args[1]), gid = PyLong_AsLong(args[2]);
    if (PyErr_Occurred()) return NULL;
    int id = shmget(IPC_PRIVATE, size, IPC_CREAT | IPC_EXCL | 0600);
    if (id >= 0 && gid >= 0 && give(id, (unsigned int)uid, (unsigned int)gid) < 0) {
        PyErr_SetFromErrno(PyExc_OSError);
        shmctl(id, IPC_RMID, NULL);
        return NULL;
    }
    return id < 0 ? PyErr_SetFromErrno(PyExc_OSError) : PyLong_FromLong(id);
}

/* region_name(superblock, what, server, generation). */
static PyObject *region_name(PyObject *module, PyObject *args) {
    (void)module;
    Py_buffer buffer;
    const char *what;
    unsigned int server;
    unsigned long long generation;
    if (!PyArg_ParseTuple(args, "y*sIK", &buffer, &what, &server, &generation)) return NULL;
    char name[WR_REGION_NAME_BYTES];
    bool whole = (size_t)buffer.len >= sizeof(wr_superblock);
    if (whole) wr_region_name(name, buffer.buf, what, server, generation);
    PyBuffer_Release(&buffer);
    return whole ? PyUnicode_FromString(name) : PyErr_Format(PyExc_ValueError, "this is not a superblock");
}

#define METHOD(name) {#name, (PyCFunction)(void (*)(void))name, METH_FASTCALL, NULL}
static PyMethodDef methods[] = {METHOD(load32),     METHOD(load64),     METHOD(store32),   METHOD(store64), METHOD(add32),
                                METHOD(add64),      METHOD(or64),       METHOD(and64),     METHOD(cas64),
                                METHOD(futex_wait), METHOD(futex_wake), METHOD(bell_ring), METHOD(segment_create),
                                {"region_name", region_name, METH_VARARGS, NULL}, {NULL, NULL, 0, NULL}};

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, .m_name = "warren.ipc._core",
                                        .m_doc = "Atomics and futexes on shared memory.", .m_size = -1,
                                        .m_methods = methods};

PyMODINIT_FUNC PyInit__core(void) {
    return PyModule_Create(&definition);
}
