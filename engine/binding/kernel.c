/* The record kernel for Python: checksums, frames, scans, file headers, and a Log for tools and tests.
 *
 * Functions take any object with the buffer protocol. Whatever may take long (checksums and scans of more than a few
 * KiB, the committer, waiting) runs without the GIL; the buffer is pinned meanwhile. The servers use kernel/log.h
 * directly from their own loops; the Log type here drives the same code with one Python thread as loop and one as
 * committer.
 */
#include "binding/arguments.h"
#include "kernel/crc32.h"
#include "kernel/log.h"
#include "kernel/protocol.h"
#include <stdlib.h>

#define LONG_BYTES 16384 /* above this the GIL is released */

/* ---- arguments ---- */

static int count_between(const char *name, Py_ssize_t given, Py_ssize_t least, Py_ssize_t most) {
    if (given >= least && given <= most) return 1;
    PyErr_Format(PyExc_TypeError, "%s takes %zd to %zd arguments, %zd given", name, least, most, given);
    return 0;
}

/* ---- checksums ---- */

typedef uint32_t (*summing)(uint32_t seed, const void *bytes, size_t n);
typedef uint32_t (*copying)(uint32_t seed, void *to, const void *from, size_t n);

static PyObject *sum(const char *name, PyObject *const *args, Py_ssize_t given, summing crc_of) {
    Py_buffer from;
    uint64_t seed = 0;
    if (!count_between(name, given, 1, 2) || (given > 1 && number_of(args[1], 32, "seed", &seed))) return NULL;
    if (PyObject_GetBuffer(args[0], &from, PyBUF_SIMPLE) < 0) return NULL;
    uint32_t crc;
    if (from.len > LONG_BYTES) {
        Py_BEGIN_ALLOW_THREADS
        crc = crc_of((uint32_t)seed, from.buf, (size_t)from.len);
        Py_END_ALLOW_THREADS
    } else {
        crc = crc_of((uint32_t)seed, from.buf, (size_t)from.len);
    }
    PyBuffer_Release(&from);
    return PyLong_FromUnsignedLong(crc);
}

static PyObject *crc32c(PyObject *module, PyObject *const *args, Py_ssize_t given) {
    (void)module;
    return sum("crc32c", args, given, wr_crc32c);
}

static PyObject *crc32(PyObject *module, PyObject *const *args, Py_ssize_t given) {
    (void)module;
    return sum("crc32", args, given, wr_crc32);
}

/* Copy `from` to the start of `to`. */
static PyObject *copy_crc(const char *name, PyObject *const *args, Py_ssize_t given, copying copy) {
    Py_buffer to, from;
    uint64_t seed = 0;
    if (!count_between(name, given, 2, 3) || (given > 2 && number_of(args[2], 32, "seed", &seed))) return NULL;
    if (PyObject_GetBuffer(args[0], &to, PyBUF_WRITABLE) < 0) return NULL;
    if (PyObject_GetBuffer(args[1], &from, PyBUF_SIMPLE) < 0) {
        PyBuffer_Release(&to);
        return NULL;
    }
    PyObject *result = NULL;
    if (to.len < from.len) {
        PyErr_Format(PyExc_ValueError, "%zd bytes do not fit into %zd", from.len, to.len);
    } else {
        uint32_t crc;
        Py_BEGIN_ALLOW_THREADS
        crc = copy((uint32_t)seed, to.buf, from.buf, (size_t)from.len);
        Py_END_ALLOW_THREADS
        result = PyLong_FromUnsignedLong(crc);
    }
    PyBuffer_Release(&from);
    PyBuffer_Release(&to);
    return result;
}

static PyObject *copy_crc32c(PyObject *module, PyObject *const *args, Py_ssize_t given) {
    (void)module;
    return copy_crc("copy_crc32c", args, given, wr_copy_crc32c);
}

static PyObject *copy_crc32c_table(PyObject *module, PyObject *const *args, Py_ssize_t given) {
    (void)module;
    return copy_crc("copy_crc32c_table", args, given, wr_crc32c_table);
}

static PyObject *copy_crc32(PyObject *module, PyObject *const *args, Py_ssize_t given) {
    (void)module;
    return copy_crc("copy_crc32", args, given, wr_copy_crc32);
}

static PyObject *copy_crc32_table(PyObject *module, PyObject *const *args, Py_ssize_t given) {
    (void)module;
    return copy_crc("copy_crc32_table", args, given, wr_crc32_table);
}

/* ---- frames ---- */

/* kind, id, flags, client_epoch, sequence, extra, meta_length: the arguments of every function that makes a frame. */
#define HEAD_ARGS 7
static int head_of(PyObject *const *args, wr_frame_head *head) {
    uint64_t kind, flags, client_epoch, sequence, extra, meta_length;
    Py_buffer id;
    if (number_of(args[0], 8, "kind", &kind) || number_of(args[2], 16, "flags", &flags) ||
        number_of(args[3], 64, "client_epoch", &client_epoch) || number_of(args[4], 64, "sequence", &sequence) ||
        number_of(args[5], 32, "extra", &extra) || number_of(args[6], 16, "meta_length", &meta_length))
        return -1;
    if (PyObject_GetBuffer(args[1], &id, PyBUF_SIMPLE) < 0) return -1;
    int good = id.len == 16;
    if (good) memcpy(head->id, id.buf, 16);
    PyBuffer_Release(&id);
    if (!good) {
        PyErr_SetString(PyExc_ValueError, "an id is 16 bytes");
        return -1;
    }
    head->kind = (uint8_t)kind;
    head->flags = (uint16_t)flags;
    head->client_epoch = client_epoch;
    head->sequence = sequence;
    head->extra = (uint32_t)extra;
    head->meta_length = (uint16_t)meta_length;
    return 0;
}

static PyObject *frame_encode(PyObject *module, PyObject *const *args, Py_ssize_t given) {
    (void)module;
    wr_frame_head head;
    uint64_t salt;
    Py_buffer body;
    if (!count_between("frame_encode", given, HEAD_ARGS + 2, HEAD_ARGS + 2) || head_of(args, &head) ||
        number_of(args[HEAD_ARGS + 1], 64, "salt", &salt))
        return NULL;
    if (PyObject_GetBuffer(args[HEAD_ARGS], &body, PyBUF_SIMPLE) < 0) return NULL;
    PyObject *frame = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)wr_frame_bytes((uint64_t)body.len));
    if (frame)
        wr_frame_write((uint8_t *)PyBytes_AS_STRING(frame), &head, NULL, 0, body.buf, (uint64_t)body.len, salt);
    PyBuffer_Release(&body);
    return frame;
}

static PyObject *frame_pad(PyObject *module, PyObject *const *args, Py_ssize_t given) {
    (void)module;
    uint64_t bytes, salt;
    if (!count_between("frame_pad", given, 2, 3) || number_of(args[0], 31, "bytes", &bytes) ||
        number_of(args[1], 64, "salt", &salt))
        return NULL;
    int last = given > 2 ? PyObject_IsTrue(args[2]) : 0;
    if (last < 0) return NULL;
    if (bytes < WR_FRAME_BYTES_MIN) {
        PyErr_Format(PyExc_ValueError, "a frame has %d bytes at least", WR_FRAME_BYTES_MIN);
        return NULL;
    }
    PyObject *frame = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)bytes);
    if (frame) wr_frame_pad((uint8_t *)PyBytes_AS_STRING(frame), bytes, salt, last != 0);
    return frame;
}

static PyObject *frame_check(PyObject *module, PyObject *const *args, Py_ssize_t given) {
    (void)module;
    Py_buffer file;
    uint64_t at, salt;
    if (!count_between("frame_check", given, 3, 3) || number_of(args[1], 64, "at", &at) ||
        number_of(args[2], 64, "salt", &salt))
        return NULL;
    if (PyObject_GetBuffer(args[0], &file, PyBUF_SIMPLE) < 0) return NULL;
    wr_frame_head head;
    const char *reason;
    uint64_t total = wr_frame_check(file.buf, (uint64_t)file.len, at, salt, &head, &reason);
    PyBuffer_Release(&file);
    if (!total) return PyUnicode_FromString(reason);
    return Py_BuildValue("(KBHy#KKIH)", (unsigned long long)total, head.kind, head.flags, head.id, (Py_ssize_t)16,
                         (unsigned long long)head.client_epoch, (unsigned long long)head.sequence, head.extra,
                         head.meta_length);
}

static PyObject *frame_behind(PyObject *module, PyObject *const *args, Py_ssize_t given) {
    (void)module;
    Py_buffer file;
    uint64_t salt, at;
    if (!count_between("frame_behind", given, 3, 3) || number_of(args[1], 64, "at", &at) ||
        number_of(args[2], 64, "salt", &salt))
        return NULL;
    if (PyObject_GetBuffer(args[0], &file, PyBUF_SIMPLE) < 0) return NULL;
    Py_BEGIN_ALLOW_THREADS
    at = wr_frame_behind(file.buf, (uint64_t)file.len, at, salt);
    Py_END_ALLOW_THREADS
    PyBuffer_Release(&file);
    return PyLong_FromUnsignedLongLong(at);
}

static PyObject *frame_scan(PyObject *module, PyObject *const *args, Py_ssize_t given) {
    (void)module;
    Py_buffer file;
    uint64_t salt, at;
    if (!count_between("frame_scan", given, 3, 3) || number_of(args[1], 64, "salt", &salt) ||
        number_of(args[2], 64, "start", &at))
        return NULL;
    if (PyObject_GetBuffer(args[0], &file, PyBUF_SIMPLE) < 0) return NULL;
    wr_frame_row *rows = NULL;
    uint64_t rows_n = 0, rows_room = 0;
    const char *reason = NULL;
    bool enough = true;
    Py_BEGIN_ALLOW_THREADS
    while (enough && !reason) {
        rows_room = rows_room ? rows_room * 2 : 1024;
        wr_frame_row *more = realloc(rows, rows_room * sizeof *rows);
        enough = more != NULL;
        if (more) {
            rows = more;
            rows_n += wr_frame_scan(file.buf, (uint64_t)file.len, &at, salt, rows + rows_n, rows_room - rows_n, &reason);
        }
    }
    Py_END_ALLOW_THREADS
    PyBuffer_Release(&file);
    PyObject *result = NULL;
    if (!enough)
        PyErr_NoMemory();
    else
        result = Py_BuildValue("(y#Ks)", (const char *)rows, (Py_ssize_t)(rows_n * sizeof *rows), (unsigned long long)at,
                               reason);
    free(rows);
    return result;
}

/* ---- file headers ---- */

static PyObject *file_header_pack(PyObject *module, PyObject *const *args, Py_ssize_t given) {
    (void)module;
    uint64_t kind, node_id, owner, file, salt, created_ns, low = 0, high = 0;
    if (!count_between("file_header_pack", given, 6, 8) || number_of(args[0], 32, "kind", &kind) ||
        number_of(args[1], 64, "node_id", &node_id) || number_of(args[2], 32, "owner", &owner) ||
        number_of(args[3], 64, "file", &file) || number_of(args[4], 64, "salt", &salt) ||
        number_of(args[5], 64, "created_ns", &created_ns) || (given > 6 && number_of(args[6], 63, "low", &low)) ||
        (given > 7 && number_of(args[7], 63, "high", &high)))
        return NULL;
    PyObject *page = PyBytes_FromStringAndSize(NULL, WR_FILE_HEADER_BYTES);
    if (page) {
        uint8_t *to = (uint8_t *)PyBytes_AS_STRING(page);
        wr_file_header_write(to, (uint32_t)kind, node_id, (uint32_t)owner, file, salt, created_ns);
        if (given > 7) wr_file_header_stand_for(to, low, high);
    }
    return page;
}

static PyObject *file_header_check(PyObject *module, PyObject *const *args, Py_ssize_t given) {
    (void)module;
    uint64_t kind, node_id, owner, file, salt = 0;
    Py_buffer page;
    if (!count_between("file_header_check", given, 5, 5) || number_of(args[1], 32, "kind", &kind) ||
        number_of(args[2], 64, "node_id", &node_id) || number_of(args[3], 32, "owner", &owner) ||
        number_of(args[4], 64, "file", &file))
        return NULL;
    if (PyObject_GetBuffer(args[0], &page, PyBUF_SIMPLE) < 0) return NULL;
    const char *reason = "short";
    if (page.len >= WR_FILE_HEADER_BYTES)
        reason = wr_file_header_check(page.buf, (uint32_t)kind, node_id, (uint32_t)owner, file, &salt);
    PyBuffer_Release(&page);
    return Py_BuildValue("(zK)", reason, (unsigned long long)salt);
}

static PyObject *image_read(PyObject *module, PyObject *const *args, Py_ssize_t given) {
    (void)module;
    Py_buffer region;
    uint64_t images_n, file_bytes, file, offset, bytes;
    if (!count_between("image_read", given, 6, 6) || number_of(args[1], 16, "images_n", &images_n) ||
        number_of(args[2], 40, "file_bytes", &file_bytes) || number_of(args[3], 64, "file", &file) ||
        number_of(args[4], 40, "offset", &offset) || number_of(args[5], 31, "bytes", &bytes))
        return NULL;
    if (PyObject_GetBuffer(args[0], &region, PyBUF_SIMPLE) < 0) return NULL;
    PyObject *copy = NULL;
    bool found = false;
    if ((uint64_t)region.len < WR_PAGE_BYTES + images_n * file_bytes)
        PyErr_SetString(PyExc_ValueError, "the region is smaller than its images");
    else if ((copy = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)bytes)))
        found = wr_image_read(region.buf, (uint32_t)images_n, file_bytes, file, offset, PyBytes_AS_STRING(copy), bytes);
    PyBuffer_Release(&region);
    if (!copy || found) return copy;
    Py_DECREF(copy);
    Py_RETURN_NONE;
}

/* ---- Log ---- */

typedef struct {
    PyObject_HEAD
    Py_buffer region;
    wr_log *log;
    int committers;          /* threads inside run_committer: 0 or 1 */
    int waiters;             /* threads inside quiesce */
} LogObject;

static int open_log(LogObject *self) {
    if (self->log) return 1;
    PyErr_SetString(PyExc_ValueError, "the log is closed");
    return 0;
}

static PyObject *log_new(PyTypeObject *type, PyObject *args, PyObject *keywords) {
    static char *names[] = {"buffer", "images_n", "file_bytes", "may_sync", NULL};
    PyObject *buffer;
    unsigned int images_n;
    unsigned long long file_bytes;
    int may_sync = 1;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "OIK|p", names, &buffer, &images_n, &file_bytes, &may_sync))
        return NULL;
    LogObject *self = (LogObject *)type->tp_alloc(type, 0);
    if (!self) return NULL;
    if (PyObject_GetBuffer(buffer, &self->region, PyBUF_WRITABLE) < 0) {
        Py_DECREF(self);
        return NULL;
    }
    self->log = wr_log_new(self->region.buf, (uint64_t)self->region.len, images_n, file_bytes, may_sync != 0, NULL, NULL);
    if (!self->log) {
        os_error(errno);
        Py_DECREF(self);
        return NULL;
    }
    return (PyObject *)self;
}

static void log_dealloc(LogObject *self) {
    PyTypeObject *type = Py_TYPE(self);
    wr_log_free(self->log); /* a running committer holds a reference to self: it has returned */
    if (self->region.obj) PyBuffer_Release(&self->region);
    type->tp_free((PyObject *)self);
    Py_DECREF(type);
}

static PyObject *log_close(LogObject *self, PyObject *ignored) {
    (void)ignored;
    if (self->committers || self->waiters) {
        PyErr_SetString(PyExc_RuntimeError, "the committer still runs: stop() and join its thread first");
        return NULL;
    }
    wr_log_free(self->log);
    self->log = NULL;
    if (self->region.obj) PyBuffer_Release(&self->region);
    Py_RETURN_NONE;
}

static PyObject *log_offer(LogObject *self, PyObject *const *args, Py_ssize_t given) {
    uint64_t file, salt;
    if (!open_log(self) || !count_between("offer", given, 4, 4) || number_of(args[1], 63, "file", &file) ||
        number_of(args[2], 64, "salt", &salt))
        return NULL;
    int fd = PyObject_AsFileDescriptor(args[0]);
    if (fd < 0) return NULL;
    Py_buffer header;
    if (PyObject_GetBuffer(args[3], &header, PyBUF_SIMPLE) < 0) return NULL;
    int error = header.len == WR_FILE_HEADER_BYTES ? wr_log_offer(self->log, fd, file, salt, header.buf) : EINVAL;
    PyBuffer_Release(&header);
    if (error) return os_error(error);
    Py_RETURN_NONE;
}

/* Append `count` equal frames; returns how many went in before the log had to wait for a file or an image. */
static int64_t append(LogObject *self, wr_frame_head *head, const Py_buffer *body, bool wants_sync, uint64_t count,
                      uint64_t *file, uint64_t *offset) {
    uint64_t total = wr_frame_bytes((uint64_t)body->len);
    uint64_t n = 0;
    for (; n < count; n++) {
        bool rolled;
        uint8_t *to = wr_log_reserve(self->log, total, offset, &rolled);
        if (!to) {
            if (errno == EAGAIN) break;
            os_error(errno);
            return -1;
        }
        const wr_log_state *state = wr_log_look(self->log);
        wr_frame_write(to, head, NULL, 0, body->buf, (uint64_t)body->len, state->salt);
        wr_log_append(self->log, total, wants_sync);
        *file = state->file;
        head->sequence++;
    }
    return (int64_t)n;
}

static PyObject *append_call(LogObject *self, const char *name, PyObject *const *args, Py_ssize_t given, bool run) {
    wr_frame_head head;
    uint64_t count = 1, file = 0, offset = 0;
    Py_buffer body;
    if (!open_log(self) || !count_between(name, given, HEAD_ARGS + 2 + run, HEAD_ARGS + 2 + run) || head_of(args, &head) ||
        (run && number_of(args[HEAD_ARGS + 2], 32, "count", &count)))
        return NULL;
    int wants_sync = PyObject_IsTrue(args[HEAD_ARGS + 1]);
    if (wants_sync < 0 || PyObject_GetBuffer(args[HEAD_ARGS], &body, PyBUF_SIMPLE) < 0) return NULL;
    int64_t n = append(self, &head, &body, wants_sync, count, &file, &offset);
    PyBuffer_Release(&body);
    if (n < 0) return NULL;
    if (run) return PyLong_FromLongLong(n);
    if (!n) Py_RETURN_NONE;
    return Py_BuildValue("(KK)", (unsigned long long)file, (unsigned long long)offset);
}

static PyObject *log_append_frame(LogObject *self, PyObject *const *args, Py_ssize_t given) {
    return append_call(self, "append_frame", args, given, false);
}

static PyObject *log_append_run(LogObject *self, PyObject *const *args, Py_ssize_t given) {
    return append_call(self, "append_run", args, given, true);
}

static PyObject *log_seal(LogObject *self, PyObject *sync) {
    if (!open_log(self)) return NULL;
    int wanted = PyObject_IsTrue(sync);
    if (wanted < 0) return NULL;
    int error = wr_log_seal(self->log, wanted, 0, NULL, 0);
    if (error == EAGAIN) Py_RETURN_FALSE;
    if (error) return os_error(error);
    Py_RETURN_TRUE;
}

static PyObject *log_state(LogObject *self, PyObject *ignored) {
    (void)ignored;
    if (!open_log(self)) return NULL;
    const wr_log_state *s = wr_log_look(self->log);
    return Py_BuildValue("{sK sK sK sK sI sN sN sN sN si sK sK sK sK}", "append", (unsigned long long)s->append,
                         "sealed_to", (unsigned long long)s->sealed_to, "file", (unsigned long long)s->file, "salt",
                         (unsigned long long)s->salt, "image", s->image, "has_file", PyBool_FromLong(s->has_file),
                         "has_next", PyBool_FromLong(s->has_next), "unsealed_sync", PyBool_FromLong(s->unsealed_sync),
                         "busy", PyBool_FromLong(s->busy), "failed", s->failed, "commits_n",
                         (unsigned long long)s->commits_n, "syncs_n", (unsigned long long)s->syncs_n, "commit_ns_sum",
                         (unsigned long long)s->commit_ns_sum, "bytes_written", (unsigned long long)s->bytes_written);
}

static PyObject *log_run_committer(LogObject *self, PyObject *ignored) {
    (void)ignored;
    if (!open_log(self)) return NULL;
    if (self->committers) {
        PyErr_SetString(PyExc_RuntimeError, "the log has a committer already");
        return NULL;
    }
    self->committers = 1;
    Py_BEGIN_ALLOW_THREADS
    wr_log_commit_run(self->log, NULL);
    Py_END_ALLOW_THREADS
    self->committers = 0;
    Py_RETURN_NONE;
}

static PyObject *log_stop(LogObject *self, PyObject *ignored) {
    (void)ignored;
    if (!open_log(self)) return NULL;
    wr_log_stop(self->log);
    Py_RETURN_NONE;
}

static PyObject *log_quiesce(LogObject *self, PyObject *timeout) {
    if (!open_log(self)) return NULL;
    double seconds = PyFloat_AsDouble(timeout);
    if (seconds == -1.0 && PyErr_Occurred()) return NULL;
    if (!(seconds >= 0 && seconds <= 1e9)) {
        PyErr_SetString(PyExc_ValueError, "timeout is a number of seconds from 0 on");
        return NULL;
    }
    int error;
    self->waiters++;
    Py_BEGIN_ALLOW_THREADS
    error = wr_log_quiesce(self->log, (uint64_t)(seconds * 1e9));
    Py_END_ALLOW_THREADS
    self->waiters--;
    return PyBool_FromLong(error == 0);
}

static PyMethodDef log_methods[] = {
    {"offer", (PyCFunction)(void (*)(void))log_offer, METH_FASTCALL, "Offer the next file; the log owns fd from now on."},
    {"append_frame", (PyCFunction)(void (*)(void))log_append_frame, METH_FASTCALL,
     "Append one frame; (file, offset), or None when it must wait for a file or an image."},
    {"append_run", (PyCFunction)(void (*)(void))log_append_run, METH_FASTCALL,
     "Append frames with rising sequences; how many went in."},
    {"seal", (PyCFunction)log_seal, METH_O, "Post what was appended; False when the batch queue is full."},
    {"state", (PyCFunction)log_state, METH_NOARGS, "The log's state as a dict."},
    {"run_committer", (PyCFunction)log_run_committer, METH_NOARGS, "The committer thread's body; returns after stop()."},
    {"stop", (PyCFunction)log_stop, METH_NOARGS, "Let the committer return when the posted batches are done."},
    {"quiesce", (PyCFunction)log_quiesce, METH_O, "Wait until all posted batches are done; False when time ran out."},
    {"close", (PyCFunction)log_close, METH_NOARGS, "Close the descriptors and let go of the region."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot log_slots[] = {
    {Py_tp_doc, "Log(buffer, images_n, file_bytes, may_sync=True): the append side of a segment file, for tools and tests."},
    {Py_tp_new, log_new},
    {Py_tp_dealloc, log_dealloc},
    {Py_tp_methods, log_methods},
    {0, NULL},
};

static PyType_Spec log_spec = {"warren.engine._core.Log", sizeof(LogObject), 0, Py_TPFLAGS_DEFAULT, log_slots};

/* ---- module ---- */


static PyMethodDef functions[] = {
    FAST("crc32c", crc32c, "crc32c(data, seed=0): CRC32C of a buffer."),
    FAST("copy_crc32c", copy_crc32c, "copy_crc32c(to, data, seed=0): copy and CRC32C in one pass."),
    FAST("copy_crc32c_table", copy_crc32c_table, "The same without the processor's instruction."),
    FAST("crc32", crc32, "crc32(data, seed=0): CRC-32 of a buffer, as zlib's."),
    FAST("copy_crc32", copy_crc32, "copy_crc32(to, data, seed=0): copy and CRC-32 in one pass."),
    FAST("copy_crc32_table", copy_crc32_table, "The same without the processor's instruction."),
    FAST("frame_encode", frame_encode, "frame_encode(kind, id, flags, client_epoch, sequence, extra, meta_length, body, salt): one frame."),
    FAST("frame_pad", frame_pad, "frame_pad(bytes, salt, last=False): one padding frame."),
    FAST("frame_check", frame_check, "frame_check(buffer, at, salt): (total, kind, flags, id, client_epoch, sequence, extra, "
                      "meta_length), or the reason why there is no frame."),
    FAST("frame_behind", frame_behind, "frame_behind(buffer, at, salt): where valid frames go on behind damage, 0: nowhere."),
    FAST("frame_scan", frame_scan, "frame_scan(buffer, salt, start): (rows, end, reason)."),
    FAST("file_header_pack", file_header_pack, "file_header_pack(kind, node_id, owner, file, salt, created_ns[, low, high]): the header page."),
    FAST("file_header_check", file_header_check, "file_header_check(page, kind, node_id, owner, file): (reason or None, salt)."),
    FAST("image_read", image_read, "image_read(region, images_n, file_bytes, file, offset, bytes): the bytes, or None."),
    {NULL, NULL, 0, NULL},
};

int wr_bind_kernel(PyObject *module) {
    if (PyModule_AddFunctions(module, functions) < 0) return -1;
    PyObject *hash = PyLong_FromUnsignedLongLong(WR_LAYOUT_HASH);
    if (!hash || PyModule_AddObjectRef(module, "LAYOUT_HASH", hash)) {
        Py_XDECREF(hash);
        return -1;
    }
    Py_DECREF(hash);
    PyObject *type = PyType_FromSpec(&log_spec);
    if (!type) return -1;
    int result = PyModule_AddObjectRef(module, "Log", type);
    Py_DECREF(type);
    return result;
}
