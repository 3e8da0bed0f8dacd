/* The message store for Python: StoreServer (the loop of the store server) and StoreClient (its clients' side, bare, for
 * tests and tools; applications use Client).
 *
 * StoreServer belongs to one thread, but for commit_run (one thread for each log), kick, stop and quiesce. It pins the
 * buffers of all regions that it was given until it lets go of them.
 */
#include "binding.h"
#include "store.h"
#include "storeclient.h"
#include <stdlib.h>
#include <sys/mman.h>

static int count_ok(const char *name, Py_ssize_t given, Py_ssize_t wanted) {
    if (given == wanted) return 1;
    PyErr_Format(PyExc_TypeError, "%s takes %zd arguments, %zd given", name, wanted, given);
    return 0;
}

static PyObject *raise_errno(int error, const char *what) {
    PyObject *args = Py_BuildValue("(is)", error, what);
    if (args) PyErr_SetObject(PyExc_OSError, args);
    Py_XDECREF(args);
    return NULL;
}

/* Unsigned numbers from arguments; -1 with an exception set. */
static int numbers(PyObject *const *args, Py_ssize_t n, uint64_t *to) {
    for (Py_ssize_t i = 0; i < n; i++) {
        unsigned long long value = PyLong_AsUnsignedLongLong(args[i]);
        if (value == (unsigned long long)-1 && PyErr_Occurred()) return -1;
        to[i] = value;
    }
    return 0;
}

static void let_go(Py_buffer *buffer) {
    if (buffer->obj) PyBuffer_Release(buffer);
    buffer->obj = NULL;
}

/* ================================================================ server ===== */

typedef struct {
    PyObject_HEAD
    wr_store_server *server;
    Py_buffer super;
    Py_buffer regions[2][4]; /* images, directory, summary, index */
    Py_buffer clients[WR_CLIENT_SLOTS];
    int committers; /* running commit_run */
    struct injected {
        int write, sync; /* errno of the next calls, 0: the real ones */
    } injected[2];
} ServerObject;

static PyObject *server_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"superblock", "commit_bytes", "tick_ns", "spin_ns", NULL};
    Py_buffer super;
    unsigned long long commit_bytes, tick_ns, spin_ns;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "w*KKK:StoreServer", names, &super, &commit_bytes, &tick_ns, &spin_ns)) return NULL;
    ServerObject *self = NULL;
    if ((size_t)super.len < WR_SUPERBLOCK_BYTES) {
        PyErr_SetString(PyExc_ValueError, "this buffer is too small for a superblock");
    } else if ((self = (ServerObject *)type->tp_alloc(type, 0))) {
        self->server = aligned_alloc(64, (sizeof(wr_store_server) + 63) & ~(size_t)63);
        if (!self->server || wr_store_server_init(self->server, super.buf, commit_bytes, tick_ns, spin_ns)) {
            free(self->server);
            self->server = NULL;
            Py_CLEAR(self);
            PyErr_NoMemory();
        }
    }
    if (!self) {
        PyBuffer_Release(&super);
        return NULL;
    }
    self->super = super;
    return (PyObject *)self;
}

static void server_dealloc(PyObject *op) {
    ServerObject *self = (ServerObject *)op;
    if (self->server) {
        wr_store_server_free(self->server);
        free(self->server);
    }
    for (int i = 0; i < 2; i++)
        for (int k = 0; k < 4; k++) let_go(&self->regions[i][k]);
    for (int i = 0; i < WR_CLIENT_SLOTS; i++) let_go(&self->clients[i]);
    let_go(&self->super);
    Py_TYPE(op)->tp_free(op);
}

/* An open store by number; NULL with an exception set. */
static wr_store *store_of(ServerObject *self, PyObject *number) {
    long n = PyLong_AsLong(number);
    if (n == -1 && PyErr_Occurred()) return NULL;
    if (n < 0 || n > 1 || !self->server->stores[n].open) {
        PyErr_Format(PyExc_ValueError, "no open store %ld", n);
        return NULL;
    }
    return &self->server->stores[n];
}

static ssize_t injected_pwrite(void *context, int fd, const void *from, size_t n, off_t at) {
    int error = __atomic_load_n(&((struct injected *)context)->write, __ATOMIC_ACQUIRE);
    if (error) {
        errno = error;
        return -1;
    }
    return pwrite(fd, from, n, at);
}

static int injected_fdatasync(void *context, int fd) {
    int error = __atomic_load_n(&((struct injected *)context)->sync, __ATOMIC_ACQUIRE);
    if (error) {
        errno = error;
        return -1;
    }
    return fdatasync(fd);
}

static PyObject *server_open(PyObject *op, PyObject *const *args, Py_ssize_t given) {
    ServerObject *self = (ServerObject *)op;
    uint64_t number;
    if (!count_ok("open", given, 5) || numbers(args, 1, &number)) return NULL;
    if (number > 1 || self->server->stores[number].open) return PyErr_Format(PyExc_ValueError, "store %llu cannot be opened", (unsigned long long)number);
    Py_buffer *r = self->regions[number];
    int error = 0;
    for (int i = 0; i < 4 && !error; i++) error = PyObject_GetBuffer(args[1 + i], &r[i], PyBUF_WRITABLE);
    if (!error) {
        wr_store_regions regions = {r[0].buf, r[1].buf, r[2].buf, r[3].buf,
                                    (uint64_t)r[0].len, (uint64_t)r[1].len, (uint64_t)r[2].len, (uint64_t)r[3].len};
        error = wr_store_open(self->server, (uint32_t)number, &regions);
        if (!error) {
            static const wr_log_io io = {injected_pwrite, injected_fdatasync};
            wr_log_set_io(self->server->stores[number].log, &io, &self->injected[number]);
            Py_RETURN_NONE;
        }
        raise_errno(error, "a region of the store does not fit the superblock");
    }
    for (int i = 0; i < 4; i++) let_go(&r[i]);
    return NULL;
}

static PyObject *server_inject(PyObject *op, PyObject *const *args, Py_ssize_t given) {
    ServerObject *self = (ServerObject *)op;
    uint64_t n[3];
    if (!count_ok("inject", given, 3) || numbers(args, 3, n)) return NULL;
    if (n[0] > 1) return PyErr_Format(PyExc_ValueError, "store is 0 or 1");
    __atomic_store_n(&self->injected[n[0]].write, (int)n[1], __ATOMIC_RELEASE);
    __atomic_store_n(&self->injected[n[0]].sync, (int)n[2], __ATOMIC_RELEASE);
    Py_RETURN_NONE;
}

static PyObject *server_add_file(PyObject *op, PyObject *const *args, Py_ssize_t given) {
    uint64_t n[2];
    if (!count_ok("add_file", given, 3)) return NULL;
    wr_store *store = store_of((ServerObject *)op, args[0]);
    if (!store || numbers(args + 1, 2, n)) return NULL;
    int error = wr_store_add_file(store, n[0], n[1]);
    if (error) return raise_errno(error, "the file's row of the summary is taken");
    Py_RETURN_NONE;
}

static PyObject *server_scan_file(PyObject *op, PyObject *const *args, Py_ssize_t given) {
    uint64_t file, n[2], frames = 0;
    if (!count_ok("scan_file", given, 5)) return NULL;
    wr_store *store = store_of((ServerObject *)op, args[0]);
    if (!store || numbers(args + 1, 1, &file) || numbers(args + 3, 2, n)) return NULL;
    Py_buffer data;
    if (PyObject_GetBuffer(args[2], &data, PyBUF_SIMPLE)) return NULL;
    const char *reason = NULL;
    int error;
    Py_BEGIN_ALLOW_THREADS
    error = wr_store_scan_file(store, file, data.buf, (uint64_t)data.len, n[0], &n[1], &frames, &reason);
    Py_END_ALLOW_THREADS
    PyBuffer_Release(&data);
    if (error) return raise_errno(error, "no memory or no room in the index while a file was scanned");
    return Py_BuildValue("KKs", (unsigned long long)n[1], (unsigned long long)frames, reason);
}

static PyObject *server_load_rows(PyObject *op, PyObject *const *args, Py_ssize_t given) {
    if (!count_ok("load_rows", given, 2)) return NULL;
    wr_store *store = store_of((ServerObject *)op, args[0]);
    if (!store) return NULL;
    Py_buffer data;
    if (PyObject_GetBuffer(args[1], &data, PyBUF_SIMPLE)) return NULL;
    int error = data.len % (Py_ssize_t)sizeof(wr_index_row) ? EINVAL : 0;
    Py_BEGIN_ALLOW_THREADS
    if (!error) error = wr_store_load_rows(store, data.buf, (uint64_t)data.len / sizeof(wr_index_row));
    Py_END_ALLOW_THREADS
    PyBuffer_Release(&data);
    if (error) return raise_errno(error, "the rows do not fit into the index");
    Py_RETURN_NONE;
}

static PyObject *server_load_pins(PyObject *op, PyObject *const *args, Py_ssize_t given) {
    uint64_t n[3];
    if (!count_ok("load_pins", given, 4)) return NULL;
    wr_store *store = store_of((ServerObject *)op, args[0]);
    if (!store || numbers(args + 1, 3, n)) return NULL;
    wr_store_load_pins(store, n[0], n[1], n[2]);
    Py_RETURN_NONE;
}

static PyObject *server_finish(PyObject *op, PyObject *number) {
    wr_store *store = store_of((ServerObject *)op, number);
    if (!store) return NULL;
    uint64_t dropped;
    Py_BEGIN_ALLOW_THREADS
    dropped = wr_store_finish(store);
    Py_END_ALLOW_THREADS
    return PyLong_FromUnsignedLongLong(dropped);
}

static PyObject *server_offer(PyObject *op, PyObject *const *args, Py_ssize_t given) {
    uint64_t n[3];
    if (!count_ok("offer", given, 5)) return NULL;
    wr_store *store = store_of((ServerObject *)op, args[0]);
    if (!store || numbers(args + 1, 3, n)) return NULL;
    Py_buffer header;
    if (PyObject_GetBuffer(args[4], &header, PyBUF_SIMPLE)) return NULL;
    int error = header.len < WR_FILE_HEADER_BYTES ? EINVAL : wr_store_offer(store, (int)n[0], n[1], n[2], header.buf);
    PyBuffer_Release(&header);
    if (error) return raise_errno(error, "the store does not take this file now");
    Py_RETURN_NONE;
}

static PyObject *server_replace_index(PyObject *op, PyObject *const *args, Py_ssize_t given) {
    if (!count_ok("replace_index", given, 2)) return NULL;
    ServerObject *self = (ServerObject *)op;
    wr_store *store = store_of(self, args[0]);
    if (!store) return NULL;
    Py_buffer fresh;
    if (PyObject_GetBuffer(args[1], &fresh, PyBUF_WRITABLE)) return NULL;
    int error;
    wr_index_header *old;
    Py_BEGIN_ALLOW_THREADS
    error = wr_store_replace_index(store, fresh.buf, (uint64_t)fresh.len, &old);
    Py_END_ALLOW_THREADS
    if (error) {
        PyBuffer_Release(&fresh);
        return raise_errno(error, "this region is no larger index");
    }
    let_go(&self->regions[store->number][3]);
    self->regions[store->number][3] = fresh;
    Py_RETURN_NONE;
}

static PyObject *server_take_gone(PyObject *op, PyObject *number) {
    wr_store *store = store_of((ServerObject *)op, number);
    if (!store) return NULL;
    PyObject *list = PyList_New(0);
    for (uint64_t file; list && (file = wr_store_take_gone(store)) != UINT64_MAX;) {
        PyObject *item = PyLong_FromUnsignedLongLong(file);
        if (!item || PyList_Append(list, item)) Py_CLEAR(list);
        Py_XDECREF(item);
    }
    return list;
}

static PyObject *server_file_gone(PyObject *op, PyObject *const *args, Py_ssize_t given) {
    uint64_t file;
    if (!count_ok("file_gone", given, 2)) return NULL;
    wr_store *store = store_of((ServerObject *)op, args[0]);
    if (!store || numbers(args + 1, 1, &file)) return NULL;
    wr_store_file_gone(store, file);
    Py_RETURN_NONE;
}

static PyObject *server_attach(PyObject *op, PyObject *const *args, Py_ssize_t given) {
    ServerObject *self = (ServerObject *)op;
    uint64_t n[3], epochs[2];
    if (!count_ok("attach", given, 8) || numbers(args, 3, n) || numbers(args + 5, 2, epochs)) return NULL;
    long holder = PyLong_AsLong(args[4]);
    int starting = PyObject_IsTrue(args[7]);
    if ((holder == -1 && PyErr_Occurred()) || starting < 0) return NULL;
    if (n[0] >= WR_CLIENT_SLOTS || holder < -1) return PyErr_Format(PyExc_ValueError, "no such slot or worker");
    if (self->server->attached[n[0]]) return raise_errno(EEXIST, "the slot is attached");
    Py_buffer *buffer = &self->clients[n[0]];
    if (PyObject_GetBuffer(args[3], buffer, PyBUF_WRITABLE)) return NULL;
    int error = wr_store_server_attach(self->server, (uint32_t)n[0], (uint32_t)n[1], n[2], buffer->buf, (uint64_t)buffer->len,
                                       (int)holder, epochs, starting);
    if (error) {
        let_go(buffer);
        return raise_errno(error, "the client's region is too small");
    }
    Py_RETURN_NONE;
}

static int slot_of(PyObject *object, uint32_t *slot) {
    uint64_t n;
    if (numbers(&object, 1, &n)) return -1;
    if (n >= WR_CLIENT_SLOTS) {
        PyErr_SetString(PyExc_ValueError, "no such slot");
        return -1;
    }
    *slot = (uint32_t)n;
    return 0;
}

static PyObject *server_close_slot(PyObject *op, PyObject *object) {
    uint32_t slot;
    if (slot_of(object, &slot)) return NULL;
    wr_store_server_close(((ServerObject *)op)->server, slot);
    Py_RETURN_NONE;
}

static PyObject *server_detach(PyObject *op, PyObject *object) {
    ServerObject *self = (ServerObject *)op;
    uint32_t slot;
    if (slot_of(object, &slot)) return NULL;
    if (wr_store_server_detach(self->server, slot)) Py_RETURN_FALSE;
    let_go(&self->clients[slot]);
    Py_RETURN_TRUE;
}

static PyObject *server_slots_seen(PyObject *op, PyObject *version) {
    uint64_t n;
    if (numbers(&version, 1, &n)) return NULL;
    ((ServerObject *)op)->server->slots_seen = n;
    Py_RETURN_NONE;
}

static PyObject *server_set_draining(PyObject *op, PyObject *object) {
    int on = PyObject_IsTrue(object);
    if (on < 0) return NULL;
    ((ServerObject *)op)->server->draining = on;
    Py_RETURN_NONE;
}

static PyObject *server_run(PyObject *op, PyObject *object) {
    uint64_t max_ns;
    if (numbers(&object, 1, &max_ns)) return NULL;
    uint32_t events;
    Py_BEGIN_ALLOW_THREADS
    events = wr_store_server_run(((ServerObject *)op)->server, max_ns);
    Py_END_ALLOW_THREADS
    return PyLong_FromUnsignedLong(events);
}

static PyObject *server_kick(PyObject *op, PyObject *unused) {
    (void)unused;
    wr_store_server_kick(((ServerObject *)op)->server);
    Py_RETURN_NONE;
}

static PyObject *server_settle(PyObject *op, PyObject *unused) {
    (void)unused;
    return PyBool_FromLong(wr_store_server_settle(((ServerObject *)op)->server));
}

static PyObject *server_commit_run(PyObject *op, PyObject *number) {
    ServerObject *self = (ServerObject *)op;
    wr_store *store = store_of(self, number);
    if (!store) return NULL;
    Py_BEGIN_ALLOW_THREADS
    wr_log_commit_run(store->log, &self->server->stores[0].row->sleeping);
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

static PyObject *server_stop(PyObject *op, PyObject *number) {
    wr_store *store = store_of((ServerObject *)op, number);
    if (!store) return NULL;
    wr_log_stop(store->log);
    Py_RETURN_NONE;
}

static PyObject *server_water(PyObject *op, PyObject *const *args, Py_ssize_t given) {
    uint64_t epoch;
    if (!count_ok("water", given, 2)) return NULL;
    wr_store *store = store_of((ServerObject *)op, args[0]);
    if (!store || numbers(args + 1, 1, &epoch)) return NULL;
    return PyLong_FromUnsignedLongLong(wr_store_water(store, epoch));
}

/* The live rows of the index, packed: the content of a snapshot. */
static PyObject *server_live_rows(PyObject *op, PyObject *number) {
    wr_store *store = store_of((ServerObject *)op, number);
    if (!store) return NULL;
    PyObject *bytes = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)(store->index.live * sizeof(wr_index_row)));
    if (!bytes) return NULL;
    wr_index_row *to = (wr_index_row *)PyBytes_AS_STRING(bytes);
    for (uint64_t i = 0; i < store->index.rows_n; i++) {
        const wr_index_row *row = &store->index.rows[i];
        if (atomic_load(&row->version) && row->state == WR_ROW_LIVE) memcpy((void *)to++, (const void *)row, sizeof *row);
    }
    return bytes;
}

static PyObject *server_look(PyObject *op, PyObject *number) {
    wr_store *store = store_of((ServerObject *)op, number);
    if (!store) return NULL;
    const wr_log_state *log = wr_log_look(store->log);
    return Py_BuildValue("{sKsKsNsNsNsisKsKsKsKsKsKsK}", "file", (unsigned long long)log->file, "append",
                         (unsigned long long)log->append, "has_file", PyBool_FromLong(log->has_file), "has_next",
                         PyBool_FromLong(log->has_next), "busy", PyBool_FromLong(log->busy), "failed", log->failed, "index_rows",
                         (unsigned long long)store->index.rows_n, "index_used", (unsigned long long)store->index.used, "index_live",
                         (unsigned long long)store->index.live, "messages", (unsigned long long)store->messages, "lost",
                         (unsigned long long)store->lost_n, "valid_bytes", (unsigned long long)store->valid_bytes, "resynced",
                         (unsigned long long)store->server->workers_resynced);
}

/* populate(buffer): touch every page now, without the GIL; a first touch costs up to 14 us. */
static PyObject *populate(PyObject *module, PyObject *buffer) {
    (void)module;
    Py_buffer view;
    if (PyObject_GetBuffer(buffer, &view, PyBUF_WRITABLE) < 0) return NULL;
    Py_BEGIN_ALLOW_THREADS
#ifdef MADV_POPULATE_WRITE
    /* Where the kernel cannot, the pages are touched later, one by one. */
    madvise(view.buf, (size_t)view.len & ~(size_t)(WR_PAGE_BYTES - 1), MADV_POPULATE_WRITE);
#endif
    Py_END_ALLOW_THREADS
    PyBuffer_Release(&view);
    Py_RETURN_NONE;
}

#define FAST(name, function, doc) {name, (PyCFunction)(void (*)(void))(function), METH_FASTCALL, doc}
static PyMethodDef server_methods[] = {
    FAST("open", server_open, "open(number, images, directory, summary, index): take new, zeroed regions."),
    FAST("inject", server_inject, "inject(number, pwrite_errno, fdatasync_errno): for tests; 0 is the real system."),
    FAST("add_file", server_add_file, "add_file(number, file, bytes)"),
    FAST("scan_file", server_scan_file, "scan_file(number, file, data, salt, at) -> (at, frames, reason)"),
    FAST("load_rows", server_load_rows, "load_rows(number, rows)"),
    FAST("load_pins", server_load_pins, "load_pins(number, file, pin_low, pin_high)"),
    {"finish", server_finish, METH_O, "finish(number) -> rows dropped because their file is not there"},
    FAST("offer", server_offer, "offer(number, fd, file, salt, header)"),
    FAST("replace_index", server_replace_index, "replace_index(number, region)"),
    {"take_gone", server_take_gone, METH_O, "take_gone(number) -> files to unlink"},
    FAST("file_gone", server_file_gone, "file_gone(number, file)"),
    FAST("attach", server_attach, "attach(slot, generation, client_epoch, region, holder, epoch0, epoch1, starting)"),
    {"close_slot", server_close_slot, METH_O, "close_slot(slot)"},
    {"detach", server_detach, METH_O, "detach(slot) -> True when the region may go"},
    {"slots_seen", server_slots_seen, METH_O, "slots_seen(version)"},
    {"set_draining", server_set_draining, METH_O, "set_draining(on)"},
    {"run", server_run, METH_O, "run(max_ns) -> events"},
    {"kick", server_kick, METH_NOARGS, "kick(): let run() return"},
    {"settle", server_settle, METH_NOARGS, "settle() -> True when all is executed, written and synced"},
    {"commit_run", server_commit_run, METH_O, "commit_run(number): the committer's whole life"},
    {"stop", server_stop, METH_O, "stop(number): let commit_run end"},
    {"live_rows", server_live_rows, METH_O, "live_rows(number) -> packed wr_index_row array"},
    FAST("water", server_water, "water(number, client_epoch)"),
    {"look", server_look, METH_O, "look(number) -> dict"},
    {NULL, NULL, 0, NULL}};

static PyTypeObject server_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "warren.engine._core.StoreServer",
    .tp_basicsize = sizeof(ServerObject),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_doc = "The store server's loop over both stores (engine/core/store.h).",
    .tp_new = server_new,
    .tp_dealloc = server_dealloc,
    .tp_methods = server_methods,
};

/* ================================================================ client ===== */

typedef struct {
    PyObject_HEAD
    wr_port port;
    wr_store_client s;
    Py_buffer super, region, regions[4];
    Py_buffer others[WR_CLIENT_SLOTS];
    wr_view views[WR_CLIENT_SLOTS];
    uint32_t generations[WR_CLIENT_SLOTS];
    int ready;
} ClientObject;

static wr_view *client_view_of(void *context, uint32_t slot, uint32_t generation) {
    ClientObject *self = context;
    if (slot >= WR_CLIENT_SLOTS || !self->others[slot].obj || self->generations[slot] != generation) return NULL;
    return &self->views[slot];
}

static PyObject *client_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"superblock", "region", "slot", "generation", "client_epoch", "server", NULL};
    Py_buffer super, region;
    unsigned int slot, generation, server;
    unsigned long long epoch;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "w*w*IIKI:StoreClient", names, &super, &region, &slot, &generation, &epoch, &server)) return NULL;
    ClientObject *self = (ClientObject *)type->tp_alloc(type, 0);
    int error = ENOMEM;
    if (self && (size_t)super.len >= WR_SUPERBLOCK_BYTES && server < 2)
        error = wr_port_init(&self->port, super.buf, region.buf, (uint64_t)region.len, slot, generation, epoch);
    if (error) {
        Py_XDECREF(self);
        PyBuffer_Release(&super);
        PyBuffer_Release(&region);
        return self ? raise_errno(error, "the region does not fit the superblock") : NULL;
    }
    self->super = super;
    self->region = region;
    const wr_superblock *block = super.buf;
    self->s = (wr_store_client){.port = &self->port,
                                .server = server,
                                .directory_rows = block->directory_rows,
                                .summary_rows = block->summary_rows,
                                .images_n = block->images_n,
                                .file_bytes = block->file_bytes,
                                .directory_fd = -1,
                                .node_id = block->node_id,
                                .view_of = client_view_of,
                                .context = self};
    return (PyObject *)self;
}

static void client_dealloc(PyObject *op) {
    ClientObject *self = (ClientObject *)op;
    wr_store_client_close(&self->s);
    if (self->port.uses) wr_port_free(&self->port);
    for (int i = 0; i < 4; i++) let_go(&self->regions[i]);
    for (int i = 0; i < WR_CLIENT_SLOTS; i++) let_go(&self->others[i]);
    let_go(&self->region);
    let_go(&self->super);
    Py_TYPE(op)->tp_free(op);
}

/* set_regions(images, directory, summary, index, directory_fd) */
static PyObject *client_set_regions(PyObject *op, PyObject *const *args, Py_ssize_t given) {
    ClientObject *self = (ClientObject *)op;
    if (!count_ok("set_regions", given, 5)) return NULL;
    long fd = PyLong_AsLong(args[4]);
    if (fd == -1 && PyErr_Occurred()) return NULL;
    for (int i = 0; i < 4; i++) let_go(&self->regions[i]);
    self->ready = 0;
    for (int i = 0; i < 4; i++)
        if (PyObject_GetBuffer(args[i], &self->regions[i], i == 1 ? PyBUF_WRITABLE : PyBUF_SIMPLE)) return NULL;
    wr_store_client_close(&self->s);
    self->s.images = self->regions[0].buf;
    self->s.directory = self->regions[1].buf;
    self->s.summary = self->regions[2].buf;
    self->s.index = self->regions[3].buf;
    self->s.index_bytes = (uint64_t)self->regions[3].len;
    self->s.directory_fd = (int)fd;
    self->ready = 1;
    Py_RETURN_NONE;
}

/* set_other(slot, generation, region): the region of another client, for reads and for blobs of it. */
static PyObject *client_set_other(PyObject *op, PyObject *const *args, Py_ssize_t given) {
    ClientObject *self = (ClientObject *)op;
    uint64_t n[2];
    if (!count_ok("set_other", given, 3) || numbers(args, 2, n)) return NULL;
    if (n[0] >= WR_CLIENT_SLOTS) return PyErr_Format(PyExc_ValueError, "no such slot");
    let_go(&self->others[n[0]]);
    if (PyObject_GetBuffer(args[2], &self->others[n[0]], PyBUF_WRITABLE)) return NULL;
    wr_geometry g = wr_geometry_of(self->super.buf);
    if (wr_view_init(&self->views[n[0]], self->others[n[0]].buf, (uint64_t)self->others[n[0]].len, &g)) {
        let_go(&self->others[n[0]]);
        return raise_errno(EINVAL, "the region does not fit the superblock");
    }
    self->generations[n[0]] = (uint32_t)n[1];
    Py_RETURN_NONE;
}

static int ready(ClientObject *self) {
    if (self->ready) return 1;
    PyErr_SetString(PyExc_RuntimeError, "set_regions first");
    return 0;
}

static PyObject *submitted(ClientObject *self) {
    wr_port_submit(&self->port, self->s.server);
    return PyLong_FromUnsignedLongLong(self->port.prepared[self->s.server]);
}

/* write_many([(id, body)], flags, submit) -> horizon that covers them; stops early (fewer commands) when the ring is full. */
static PyObject *client_write_many(PyObject *op, PyObject *const *args, Py_ssize_t given) {
    ClientObject *self = (ClientObject *)op;
    uint64_t flags;
    if (!count_ok("write_many", given, 3) || numbers(args + 1, 1, &flags) || !ready(self)) return NULL;
    int submit = PyObject_IsTrue(args[2]);
    PyObject *list = PySequence_Fast(args[0], "a list of (id, body) is wanted");
    if (!list || submit < 0) return NULL;
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(list); i++) {
        const char *id, *body;
        Py_ssize_t id_n, body_n;
        if (!PyArg_ParseTuple(PySequence_Fast_GET_ITEM(list, i), "y#y#", &id, &id_n, &body, &body_n)) goto failed;
        if (id_n != 16) {
            PyErr_SetString(PyExc_ValueError, "an id has 16 bytes");
            goto failed;
        }
        uint64_t position, sequence;
        uint8_t *to;
        int error = wr_port_alloc(&self->port, (uint64_t)body_n, &position, &to);
        if (!error) {
            memcpy(to, body, (size_t)body_n);
            error = wr_store_client_write(&self->s, (const uint8_t *)id, position, (uint32_t)body_n, 0, 0, (uint8_t)flags, &sequence);
        }
        if (!error) error = wr_port_use(&self->port, self->s.server, sequence);
        if (error) {
            if (submit) wr_port_submit(&self->port, self->s.server);
            raise_errno(error, "ring, arena or directory full");
            goto failed;
        }
    }
    Py_DECREF(list);
    return submit ? submitted(self) : PyLong_FromUnsignedLongLong(self->port.prepared[self->s.server]);
failed:
    Py_DECREF(list);
    return NULL;
}

/* write_owned(id, position, length, owner_tag, flags) -> horizon: a body in another client's arena. */
static PyObject *client_write_owned(PyObject *op, PyObject *const *args, Py_ssize_t given) {
    ClientObject *self = (ClientObject *)op;
    uint64_t n[4], sequence;
    if (!count_ok("write_owned", given, 5) || numbers(args + 1, 4, n) || !ready(self)) return NULL;
    const char *id;
    Py_ssize_t id_n;
    if (PyBytes_AsStringAndSize(args[0], (char **)&id, &id_n)) return NULL;
    if (id_n != 16) return PyErr_Format(PyExc_ValueError, "an id has 16 bytes");
    int error = wr_store_client_write(&self->s, (const uint8_t *)id, n[0], (uint32_t)n[1], 0, n[2], (uint8_t)n[3], &sequence);
    return error ? raise_errno(error, "ring or directory full") : submitted(self);
}

static int ids_of(PyObject *list, uint8_t (**ids)[16], Py_ssize_t *n) {
    PyObject *fast = PySequence_Fast(list, "a list of ids is wanted");
    if (!fast) return -1;
    *n = PySequence_Fast_GET_SIZE(fast);
    *ids = malloc((size_t)(*n ? *n : 1) * 16);
    for (Py_ssize_t i = 0; i < *n; i++) {
        PyObject *item = PySequence_Fast_GET_ITEM(fast, i);
        if (!*ids || !PyBytes_Check(item) || PyBytes_GET_SIZE(item) != 16) {
            PyErr_SetString(PyExc_ValueError, "an id is 16 bytes");
            free(*ids);
            Py_DECREF(fast);
            return -1;
        }
        memcpy((*ids)[i], PyBytes_AS_STRING(item), 16);
    }
    Py_DECREF(fast);
    return 0;
}

static PyObject *client_remove(PyObject *op, PyObject *list) {
    ClientObject *self = (ClientObject *)op;
    uint8_t (*ids)[16];
    Py_ssize_t n;
    if (!ready(self) || ids_of(list, &ids, &n)) return NULL;
    uint32_t eliminated;
    int error = wr_store_client_remove(&self->s, (const uint8_t (*)[16])ids, (uint32_t)n, &eliminated);
    free(ids);
    if (error) return raise_errno(error, "ring or arena full");
    PyObject *horizon = submitted(self);
    return horizon ? Py_BuildValue("NI", horizon, eliminated) : NULL;
}

/* command(op, flags, id, ids) -> sequence: any other command; `ids` go into the blob. */
static PyObject *client_command(PyObject *op, PyObject *const *args, Py_ssize_t given) {
    ClientObject *self = (ClientObject *)op;
    uint64_t n[2], sequence;
    if (!count_ok("command", given, 4) || numbers(args, 2, n)) return NULL;
    uint8_t (*ids)[16];
    Py_ssize_t ids_n;
    if (!PyBytes_Check(args[2]) || PyBytes_GET_SIZE(args[2]) != 16) return PyErr_Format(PyExc_ValueError, "an id is 16 bytes");
    if (ids_of(args[3], &ids, &ids_n)) return NULL;
    wr_command *command = wr_port_prepare(&self->port, self->s.server, &sequence);
    int error = command ? 0 : EAGAIN;
    uint64_t position = 0;
    uint8_t *to;
    if (!error && ids_n) {
        error = wr_port_alloc(&self->port, (uint64_t)ids_n * 16, &position, &to);
        if (!error) memcpy(to, ids, (size_t)ids_n * 16);
        if (!error) error = wr_port_use(&self->port, self->s.server, sequence);
        if (error) wr_port_abandon(&self->port, self->s.server, sequence);
    }
    free(ids);
    if (error) return raise_errno(error, "ring or arena full");
    command->op = (uint8_t)n[0];
    command->flags = (uint8_t)n[1];
    memcpy(command->id, PyBytes_AS_STRING(args[2]), 16);
    command->body = position;
    command->length = (uint32_t)ids_n * 16;
    command->count = (uint64_t)ids_n;
    wr_port_submit(&self->port, self->s.server);
    return PyLong_FromUnsignedLongLong(sequence);
}

static PyObject *client_result(PyObject *op, PyObject *object) {
    ClientObject *self = (ClientObject *)op;
    uint64_t sequence;
    if (numbers(&object, 1, &sequence)) return NULL;
    return PyLong_FromUnsignedLong(atomic_load(&wr_view_command(&self->port.view, self->s.server, sequence)->result));
}

static PyObject *client_reply(PyObject *op, PyObject *unused) {
    (void)unused;
    ClientObject *self = (ClientObject *)op;
    uint32_t n = self->port.view.links[self->s.server].reply_length;
    if (n > self->port.view.g.reply_bytes) n = self->port.view.g.reply_bytes;
    return PyBytes_FromStringAndSize((const char *)wr_view_reply(&self->port.view, self->s.server), n);
}

static PyObject *client_read(PyObject *op, PyObject *object) {
    ClientObject *self = (ClientObject *)op;
    char *id;
    Py_ssize_t id_n;
    if (!ready(self) || PyBytes_AsStringAndSize(object, &id, &id_n)) return NULL;
    if (id_n != 16) return PyErr_Format(PyExc_ValueError, "an id has 16 bytes");
    uint8_t *body;
    uint32_t length;
    uint16_t meta_length;
    int error = wr_store_client_read(&self->s, (const uint8_t *)id, &body, &length, &meta_length);
    if (error == ENOENT) Py_RETURN_NONE;
    if (error) return raise_errno(error, error == ESTALE ? "regions were replaced" : "the message cannot be read");
    PyObject *bytes = PyBytes_FromStringAndSize((const char *)body, length);
    free(body);
    return bytes;
}

static _Atomic uint64_t *horizon_word(ClientObject *self, PyObject *name) {
    wr_link *link = &self->port.view.links[self->s.server];
    const char *text = PyUnicode_AsUTF8(name);
    if (!text) return NULL;
    if (!strcmp(text, "processed")) return &link->processed;
    if (!strcmp(text, "written")) return &link->written;
    if (!strcmp(text, "synced")) return &link->synced;
    if (!strcmp(text, "head")) return &link->head;
    if (!strcmp(text, "tail")) return &link->tail;
    PyErr_SetString(PyExc_ValueError, "a horizon is processed, written, synced, head or tail");
    return NULL;
}

/* wait(horizon, sequence, timeout_ns) -> bool */
static PyObject *client_wait(PyObject *op, PyObject *const *args, Py_ssize_t given) {
    ClientObject *self = (ClientObject *)op;
    uint64_t n[2];
    if (!count_ok("wait", given, 3) || numbers(args + 1, 2, n)) return NULL;
    _Atomic uint64_t *word = horizon_word(self, args[0]);
    if (!word) return NULL;
    wr_client *client = self->port.view.client;
    bool met;
    Py_BEGIN_ALLOW_THREADS
    uint64_t until = wr_now_ns() + n[1];
    for (int spins = 0; !(met = atomic_load_explicit(word, memory_order_acquire) >= n[0]); spins++) {
        if (spins < 200) {
            wr_cpu_relax();
            continue;
        }
        if (wr_now_ns() >= until) break;
        atomic_store_explicit(&client->waiting, 1, memory_order_seq_cst);
        if (atomic_load_explicit(word, memory_order_acquire) < n[0]) wr_futex_wait(&client->waiting, 1, 20000000);
        atomic_store_explicit(&client->waiting, 0, memory_order_relaxed);
    }
    Py_END_ALLOW_THREADS
    return PyBool_FromLong(met);
}

static PyObject *client_horizon(PyObject *op, PyObject *name) {
    _Atomic uint64_t *word = horizon_word((ClientObject *)op, name);
    return word ? PyLong_FromUnsignedLongLong(atomic_load(word)) : NULL;
}

static PyObject *client_evicted(PyObject *op, PyObject *unused) {
    (void)unused;
    ClientObject *self = (ClientObject *)op;
    return PyLong_FromUnsignedLong(atomic_load(&self->port.view.links[self->s.server].evicted));
}

/* load(first, count, body, flags, batch, seconds_ns) -> messages: write counted ids as fast as it goes, for measurements. */
static PyObject *client_load(PyObject *op, PyObject *const *args, Py_ssize_t given) {
    ClientObject *self = (ClientObject *)op;
    uint64_t first, n[3];
    Py_buffer body;
    if (!count_ok("load", given, 5) || numbers(args, 1, &first) || numbers(args + 2, 3, n) || !ready(self)) return NULL;
    if (PyObject_GetBuffer(args[1], &body, PyBUF_SIMPLE)) return NULL;
    uint64_t flags = n[0], batch = n[1] ? n[1] : 1, until = wr_now_ns() + n[2], count = 0;
    uint32_t server = self->s.server;
    wr_link *link = &self->port.view.links[server];
    int error = 0;
    Py_BEGIN_ALLOW_THREADS
    while (!error && wr_now_ns() < until) {
        for (uint64_t i = 0; i < batch && !error;) {
            uint8_t id[16], *to;
            uint64_t position, sequence;
            wr_put64(id, self->port.client_epoch);
            wr_put64(id + 8, first + count);
            error = wr_port_alloc(&self->port, (uint64_t)body.len, &position, &to);
            if (!error) {
                memcpy(to, body.buf, (size_t)body.len);
                error = wr_store_client_write(&self->s, id, position, (uint32_t)body.len, 0, 0, (uint8_t)flags, &sequence);
            }
            if (!error) error = wr_port_use(&self->port, server, sequence);
            if (!error) {
                i++;
                count++;
            } else if (error == EAGAIN) {
                wr_port_submit(&self->port, server);
                uint64_t seen = atomic_load_explicit(&link->head, memory_order_acquire);
                uint64_t end = wr_now_ns() + 5000000000ull;
                for (int spins = 0; atomic_load_explicit(&link->head, memory_order_acquire) == seen; spins++) {
                    if (spins < 2000) {
                        wr_cpu_relax();
                        continue;
                    }
                    if (wr_now_ns() > end) break;
                    atomic_store_explicit(&self->port.view.client->waiting, 1, memory_order_seq_cst);
                    if (atomic_load_explicit(&link->head, memory_order_acquire) == seen)
                        wr_futex_wait(&self->port.view.client->waiting, 1, 20000000);
                    atomic_store_explicit(&self->port.view.client->waiting, 0, memory_order_relaxed);
                }
                error = atomic_load_explicit(&link->head, memory_order_acquire) == seen ? ETIMEDOUT : 0;
            }
        }
        wr_port_submit(&self->port, server);
    }
    Py_END_ALLOW_THREADS
    PyBuffer_Release(&body);
    if (error) return raise_errno(error, "the store does not take more");
    return PyLong_FromUnsignedLongLong(count);
}

static PyMethodDef client_methods[] = {
    FAST("set_regions", client_set_regions, "set_regions(images, directory, summary, index, directory_fd)"),
    FAST("set_other", client_set_other, "set_other(slot, generation, region)"),
    FAST("write_many", client_write_many, "write_many([(id, body)], flags, submit) -> horizon"),
    FAST("write_owned", client_write_owned, "write_owned(id, position, length, owner_tag, flags) -> horizon"),
    {"remove", client_remove, METH_O, "remove(ids) -> (horizon, eliminated)"},
    FAST("command", client_command, "command(op, flags, id, ids) -> sequence"),
    {"result", client_result, METH_O, "result(sequence)"},
    {"reply", client_reply, METH_NOARGS, "reply() -> bytes of the reply area"},
    {"read", client_read, METH_O, "read(id) -> body or None"},
    FAST("wait", client_wait, "wait(horizon, sequence, timeout_ns) -> bool"),
    {"horizon", client_horizon, METH_O, "horizon(name) -> int"},
    {"evicted", client_evicted, METH_NOARGS, "evicted() -> reason"},
    FAST("load", client_load, "load(first, body, flags, batch, ns) -> messages written"),
    {NULL, NULL, 0, NULL}};

static PyTypeObject client_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "warren.engine._core.StoreClient",
    .tp_basicsize = sizeof(ClientObject),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_doc = "One client's side of one store, bare (engine/core/storeclient.h).",
    .tp_new = client_new,
    .tp_dealloc = client_dealloc,
    .tp_methods = client_methods,
};

int wr_bind_store(PyObject *module) {
    if (PyModule_AddType(module, &server_type) || PyModule_AddType(module, &client_type)) return -1;
    static const struct {
        const char *name;
        long value;
    } events[] = {{"EVENT_FILE", WR_EVENT_FILE},   {"EVENT_SLOTS", WR_EVENT_SLOTS},   {"EVENT_INDEX", WR_EVENT_INDEX},
                  {"EVENT_EMPTY", WR_EVENT_EMPTY}, {"EVENT_FAILED", WR_EVENT_FAILED}, {"EVENT_STOP", WR_EVENT_STOP},
                  {"EVENT_TIMER", WR_EVENT_TIMER}, {"EVENT_SWEPT", WR_EVENT_SWEPT},   {"EVENT_KICK", WR_EVENT_KICK}};
    for (size_t i = 0; i < sizeof events / sizeof *events; i++)
        if (PyModule_AddIntConstant(module, events[i].name, events[i].value)) return -1;
    static PyMethodDef functions[] = {{"populate", populate, METH_O, "populate(buffer): touch every page"}, {NULL, NULL, 0, NULL}};
    return PyModule_AddFunctions(module, functions);
}
