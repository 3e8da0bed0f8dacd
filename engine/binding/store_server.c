/* The message store's server for Python: StoreServer, the loop of the store server.
 *
 * StoreServer belongs to one thread, but for commit_run (one thread for each log), kick, stop and quiesce. It pins the
 * buffers of all regions that it was given until it lets go of them.
 */
#include "binding/arguments.h"
#include "binding/file_list.h"
#include "store/append.h"
#include "store/dying.h"
#include "store/file_life.h"
#include "store/files.h"
#include "store/links.h"
#include "store/loop.h"
#include "store/server.h"
#include "store/start.h"
#include "store/swing.h"
#include "store/waters.h"
#include <sys/mman.h>

typedef struct {
    PyObject_HEAD
    wr_store_server *server;
    Py_buffer super;
    Py_buffer regions[2][5]; /* images, directory, summary, index, dense */
    Py_buffer *extents[2];
    Py_ssize_t extents_n[2];
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
    for (int i = 0; i < 2; i++) {
        for (int k = 0; k < 5; k++) drop_buffer(&self->regions[i][k]);
        for (Py_ssize_t k = 0; k < self->extents_n[i]; k++) drop_buffer(&self->extents[i][k]);
        free(self->extents[i]);
    }
    for (int i = 0; i < WR_CLIENT_SLOTS; i++) drop_buffer(&self->clients[i]);
    drop_buffer(&self->super);
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
    if (!count_ok("open", given, 6) || numbers(args, 1, &number)) return NULL;
    if (number > 1 || self->server->stores[number].open) return PyErr_Format(PyExc_ValueError, "store %llu cannot be opened", (unsigned long long)number);
    Py_buffer *r = self->regions[number];
    int error = 0;
    for (int i = 0; i < 5 && !error; i++) error = PyObject_GetBuffer(args[1 + i], &r[i], PyBUF_WRITABLE);
    if (!error) {
        wr_store_regions regions = {r[0].buf, r[1].buf, r[2].buf, r[3].buf, r[4].buf,
                                    (uint64_t)r[0].len, (uint64_t)r[1].len, (uint64_t)r[2].len, (uint64_t)r[3].len, (uint64_t)r[4].len};
        error = wr_store_open(self->server, (uint32_t)number, &regions);
        if (!error) {
            static const wr_commit_io io = {injected_pwrite, injected_fdatasync};
            wr_log_set_io(self->server->stores[number].log, &io, &self->injected[number]);
            Py_RETURN_NONE;
        }
        raise_errno(error, "a region of the store does not fit the superblock");
    }
    for (int i = 0; i < 5; i++) drop_buffer(&r[i]);
    return NULL;
}

static PyObject *server_set_folder(PyObject *op, PyObject *const *args, Py_ssize_t given) {
    uint64_t fd;
    if (!count_ok("set_folder", given, 2)) return NULL;
    wr_store *store = store_of((ServerObject *)op, args[0]);
    if (!store || numbers(args + 1, 1, &fd)) return NULL;
    wr_store_set_folder(store, (int)fd);
    Py_RETURN_NONE;
}

static PyObject *server_add_extent(PyObject *op, PyObject *const *args, Py_ssize_t given) {
    ServerObject *self = (ServerObject *)op;
    if (!count_ok("add_extent", given, 2)) return NULL;
    wr_store *store = store_of(self, args[0]);
    if (!store) return NULL;
    Py_ssize_t n = self->extents_n[store->number];
    Py_buffer *more = realloc(self->extents[store->number], (size_t)(n + 1) * sizeof *more);
    if (!more) return PyErr_NoMemory();
    self->extents[store->number] = more;
    if (PyObject_GetBuffer(args[1], &more[n], PyBUF_WRITABLE)) return NULL;
    int error = wr_store_add_extent(store, more[n].buf, (uint64_t)more[n].len);
    if (error) {
        drop_buffer(&more[n]);
        return raise_errno(error, "the index does not take this extent");
    }
    self->extents_n[store->number]++;
    Py_RETURN_NONE;
}

static PyObject *server_inject(PyObject *op, PyObject *const *args, Py_ssize_t given) {
    ServerObject *self = (ServerObject *)op;
    uint64_t n[3];
    if (!count_ok("inject", given, 3) || numbers(args, 3, n)) return NULL;
    if (n[0] > 1) return PyErr_Format(PyExc_ValueError, "a store is 0 (persistent) or 1 (transient), not %llu", (unsigned long long)n[0]);
    __atomic_store_n(&self->injected[n[0]].write, (int)n[1], __ATOMIC_RELEASE);
    __atomic_store_n(&self->injected[n[0]].sync, (int)n[2], __ATOMIC_RELEASE);
    Py_RETURN_NONE;
}

static PyObject *server_add_file(PyObject *op, PyObject *const *args, Py_ssize_t given) {
    uint64_t n[4];
    if (!count_ok("add_file", given, 5)) return NULL;
    wr_store *store = store_of((ServerObject *)op, args[0]);
    if (!store || numbers(args + 1, 4, n)) return NULL;
    int error = wr_store_add_file(store, n[0], n[1], n[2], n[3]);
    if (error) return raise_errno(error, "the file's row of the summary is taken");
    Py_RETURN_NONE;
}

/* A list of numbers; NULL with an exception. The caller frees it. */
static uint64_t *numbers_of(PyObject *list, Py_ssize_t *n) {
    PyObject *fast = PySequence_Fast(list, "a list of file numbers is wanted");
    if (!fast) return NULL;
    *n = PySequence_Fast_GET_SIZE(fast);
    uint64_t *to = malloc((size_t)(*n ? *n : 1) * sizeof *to);
    if (!to) PyErr_NoMemory();
    if (to && numbers(PySequence_Fast_ITEMS(fast), *n, to)) {
        free(to);
        to = NULL;
    }
    Py_DECREF(fast);
    return to;
}

static PyObject *server_apply_list(PyObject *op, PyObject *const *args, Py_ssize_t given) {
    uint64_t cursor = 0;
    if (given != 2 && !count_ok("apply_list", given, 3)) return NULL;
    wr_store *store = store_of((ServerObject *)op, args[0]);
    const wr_list *list = store ? wr_file_list_of(args[1]) : NULL;
    if (!list || (given == 3 && numbers(args + 2, 1, &cursor))) return NULL;
    const char *reason = NULL;
    int error;
    Py_BEGIN_ALLOW_THREADS
    error = wr_store_apply_list(store, list, &cursor, &reason);
    Py_END_ALLOW_THREADS
    if (error) return raise_errno(error, error == EINVAL ? "the list's file was not added" : "no memory while a list was applied");
    return Py_BuildValue("Kz", (unsigned long long)cursor, reason);
}

/* A cursor for Python: -1 when all is done. */
static PyObject *cursor_of(uint64_t cursor) {
    return cursor == UINT64_MAX ? PyLong_FromLong(-1) : PyLong_FromUnsignedLongLong(cursor);
}

static PyObject *server_swing(PyObject *op, PyObject *const *args, Py_ssize_t given) {
    uint64_t cursor;
    Py_ssize_t n;
    if (!count_ok("swing", given, 4)) return NULL;
    wr_store *store = store_of((ServerObject *)op, args[0]);
    const wr_list *list = store ? wr_file_list_of(args[1]) : NULL;
    if (!list || numbers(args + 3, 1, &cursor)) return NULL;
    uint64_t *sources = numbers_of(args[2], &n);
    if (!sources) return NULL;
    int error;
    Py_BEGIN_ALLOW_THREADS
    error = wr_store_swing(store, list, sources, (uint32_t)n, &cursor);
    Py_END_ALLOW_THREADS
    free(sources);
    if (error) return raise_errno(error, "no output of a collection with this list is waiting for its entries");
    return cursor_of(cursor);
}

static PyObject *server_drop_entries(PyObject *op, PyObject *const *args, Py_ssize_t given) {
    uint64_t n[1], cursor;
    if (!count_ok("drop_entries", given, 4)) return NULL;
    wr_store *store = store_of((ServerObject *)op, args[0]);
    if (!store || numbers(args + 1, 1, n) || numbers(args + 3, 1, &cursor)) return NULL;
    const wr_list *list = wr_file_list_of(args[2]);
    if (!list) return NULL;
    int error;
    Py_BEGIN_ALLOW_THREADS
    error = wr_store_drop_entries(store, n[0], list, &cursor);
    Py_END_ALLOW_THREADS
    if (error == EBUSY) return PyErr_Format(PyExc_RuntimeError, "file %llu is to go and holds a live record", (unsigned long long)n[0]);
    if (error) return raise_errno(error, "the file is not locked, or the list is not its list");
    return cursor_of(cursor);
}

static PyObject *server_pinned(PyObject *op, PyObject *number) {
    wr_store *store = store_of((ServerObject *)op, number);
    PyObject *list = store ? PyList_New(0) : NULL;
    if (!list) return NULL;
    wr_file_ref right;
    for (wr_file_ref file = store->first_file; list && wr_file_some(file); file = right) {
        right = wr_row_right(wr_store_at(store, file));
        if (!wr_store_pinned(store, wr_file_number(file))) continue;
        PyObject *item = PyLong_FromUnsignedLongLong(wr_file_number(file));
        if (!item || PyList_Append(list, item)) Py_CLEAR(list);
        Py_XDECREF(item);
    }
    return list;
}

static PyObject *server_lock_files(PyObject *op, PyObject *const *args, Py_ssize_t given) {
    Py_ssize_t n;
    if (!count_ok("lock_files", given, 2)) return NULL;
    wr_store *store = store_of((ServerObject *)op, args[0]);
    uint64_t *files = store ? numbers_of(args[1], &n) : NULL;
    if (!files) return NULL;
    bool locked = wr_store_lock_files(store, files, (uint32_t)n);
    free(files);
    return PyBool_FromLong(locked);
}

static PyObject *server_unlock_files(PyObject *op, PyObject *const *args, Py_ssize_t given) {
    Py_ssize_t n;
    if (!count_ok("unlock_files", given, 3)) return NULL;
    int ghosts = PyObject_IsTrue(args[2]);
    wr_store *store = ghosts < 0 ? NULL : store_of((ServerObject *)op, args[0]);
    uint64_t *files = store ? numbers_of(args[1], &n) : NULL;
    if (!files) return NULL;
    wr_store_unlock_files(store, files, (uint32_t)n, ghosts);
    free(files);
    Py_RETURN_NONE;
}

static PyObject *server_collected(PyObject *op, PyObject *const *args, Py_ssize_t given) {
    uint64_t n[4];
    if (!count_ok("collected", given, 5)) return NULL;
    wr_store *store = store_of((ServerObject *)op, args[0]);
    if (!store || numbers(args + 1, 4, n)) return NULL;
    int error = wr_store_collected(store, n[0], n[1], n[2], n[3]);
    if (error) return raise_errno(error, "the file's row of the summary is taken");
    Py_RETURN_NONE;
}

static PyObject *list_or_none(wr_list *list) {
    if (!list) Py_RETURN_NONE;
    return wr_file_list_wrap(list);
}

static PyObject *server_take_list(PyObject *op, PyObject *number) {
    wr_store *store = store_of((ServerObject *)op, number);
    return store ? list_or_none(wr_store_take_list(store)) : NULL;
}

static PyObject *server_current_list(PyObject *op, PyObject *number) {
    wr_store *store = store_of((ServerObject *)op, number);
    return store ? list_or_none(wr_store_current_list(store)) : NULL;
}

static PyObject *server_leave_current(PyObject *op, PyObject *number) {
    wr_store *store = store_of((ServerObject *)op, number);
    return store ? PyBool_FromLong(wr_store_leave_current(store)) : NULL;
}

static PyObject *server_log_mark(PyObject *op, PyObject *number) {
    wr_store *store = store_of((ServerObject *)op, number);
    return store ? PyLong_FromUnsignedLongLong(wr_store_log_mark(store)) : NULL;
}

static PyObject *server_log_durable(PyObject *op, PyObject *const *args, Py_ssize_t given) {
    uint64_t mark;
    if (!count_ok("log_durable", given, 2)) return NULL;
    wr_store *store = store_of((ServerObject *)op, args[0]);
    if (!store || numbers(args + 1, 1, &mark)) return NULL;
    return PyBool_FromLong(wr_store_log_durable(store, mark));
}

static PyObject *server_drop_lost(PyObject *op, PyObject *const *args, Py_ssize_t given) {
    uint8_t (*ids)[16];
    Py_ssize_t n;
    if (!count_ok("drop_lost", given, 2)) return NULL;
    wr_store *store = store_of((ServerObject *)op, args[0]);
    if (!store || ids_of(args[1], &ids, &n)) return NULL;
    uint64_t lost = wr_store_drop_lost(store, (const uint8_t (*)[16])ids, (uint64_t)n);
    free(ids);
    return PyLong_FromUnsignedLongLong(lost);
}

static PyObject *server_client_dying(PyObject *op, PyObject *const *args, Py_ssize_t given) {
    uint64_t n[4];
    if (!count_ok("client_dying", given, 4) || numbers(args, 4, n)) return NULL;
    if (n[0] < 2 && n[1] < WR_CLIENT_SLOTS)
        wr_store_server_dying(((ServerObject *)op)->server, (uint32_t)n[0], (uint32_t)n[1], (uint32_t)n[2], n[3]);
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

static PyObject *server_note_lost(PyObject *op, PyObject *const *args, Py_ssize_t given) {
    uint64_t n[1];
    if (!count_ok("note_lost", given, 2)) return NULL;
    wr_store *store = store_of((ServerObject *)op, args[0]);
    if (!store || numbers(args + 1, 1, n)) return NULL;
    store->lost_n += n[0];
    Py_RETURN_NONE;
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
    drop_buffer(&self->regions[store->number][3]);
    self->regions[store->number][3] = fresh;
    Py_RETURN_NONE;
}

static PyObject *server_take_gone(PyObject *op, PyObject *number) {
    wr_store *store = store_of((ServerObject *)op, number);
    if (!store) return NULL;
    PyObject *list = PyList_New(0);
    for (wr_file_ref file; list && wr_file_some(file = wr_store_take_gone(store));) {
        PyObject *item = PyLong_FromUnsignedLongLong(wr_file_number(file));
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
    if (n[0] >= WR_CLIENT_SLOTS || holder < -1) return PyErr_Format(PyExc_ValueError, "there is no client slot %llu (of %d) or no holder %ld",
                                                                                    (unsigned long long)n[0], WR_CLIENT_SLOTS, holder);
    if (self->server->attached[n[0]]) return raise_errno(EEXIST, "the slot is attached");
    Py_buffer *buffer = &self->clients[n[0]];
    if (PyObject_GetBuffer(args[3], buffer, PyBUF_WRITABLE)) return NULL;
    int error = wr_store_server_attach(self->server, (uint32_t)n[0], (uint32_t)n[1], n[2], buffer->buf, (uint64_t)buffer->len,
                                       (int)holder, epochs, starting);
    if (error) {
        drop_buffer(buffer);
        return raise_errno(error, "the client's region is too small");
    }
    Py_RETURN_NONE;
}

static int slot_of(PyObject *object, uint32_t *slot) {
    uint64_t n;
    if (numbers(&object, 1, &n)) return -1;
    if (n >= WR_CLIENT_SLOTS) {
        PyErr_Format(PyExc_ValueError, "there is no client slot %llu: there are %d", (unsigned long long)n, WR_CLIENT_SLOTS);
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
    drop_buffer(&self->clients[slot]);
    Py_RETURN_TRUE;
}

static PyObject *server_slots_seen(PyObject *op, PyObject *version) {
    uint64_t n;
    if (numbers(&version, 1, &n)) return NULL;
    ((ServerObject *)op)->server->slots_seen = n;
    Py_RETURN_NONE;
}

static PyObject *server_freeze(PyObject *op, PyObject *unused) {
    (void)unused;
    wr_store_server_freeze(((ServerObject *)op)->server);
    Py_RETURN_NONE;
}

static PyObject *server_set_unserved(PyObject *op, PyObject *object) {
    int on = PyObject_IsTrue(object);
    if (on < 0) return NULL;
    ((ServerObject *)op)->server->unserved = on;
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

static PyObject *server_all_durable(PyObject *op, PyObject *unused) {
    (void)unused;
    return PyBool_FromLong(wr_store_server_all_durable(((ServerObject *)op)->server));
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

static PyObject *server_look(PyObject *op, PyObject *number) {
    wr_store *store = store_of((ServerObject *)op, number);
    if (!store) return NULL;
    const wr_log_state *log = wr_log_look(store->log);
    return Py_BuildValue("{sKsKsNsNsNsNsisKsNsKsKsKsKsKsKsNsNsi}", "file", (unsigned long long)log->file, "append",
                         (unsigned long long)log->append, "has_file", PyBool_FromLong(log->has_file), "has_next",
                         PyBool_FromLong(log->has_next), "wants_next", PyBool_FromLong(log->wants_next), "busy", PyBool_FromLong(log->busy), "failed", log->failed, "index_rows",
                         (unsigned long long)store->index.rows_n, "index_tight", PyBool_FromLong(wr_index_tight(&store->index)), "index_live",
                         (unsigned long long)store->index.hash_live, "messages", (unsigned long long)store->messages, "lost",
                         (unsigned long long)store->lost_n, "valid_bytes", (unsigned long long)store->valid_bytes, "resynced",
                         (unsigned long long)store->server->workers_resynced, "extents", (unsigned long long)store->index.extents_n,
                         "wants_extent", PyBool_FromLong(wr_index_wants_extent(&store->index)), "no_memory",
                         PyBool_FromLong(log->no_memory), "no_space", log->no_space);
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

static PyMethodDef server_methods[] = {
    FAST("open", server_open, "open(number, images, directory, summary, index, dense): take new, zeroed regions."),
    FAST("set_folder", server_set_folder, "set_folder(number, fd): where the files are; fd stays the caller's"),
    FAST("add_extent", server_add_extent, "add_extent(number, region)"),
    FAST("inject", server_inject, "inject(number, pwrite_errno, fdatasync_errno): for tests; 0 is the real system."),
    FAST("add_file", server_add_file, "add_file(number, file, bytes, low, high)"),
    FAST("apply_list", server_apply_list, "apply_list(number, list, cursor=0) -> (cursor, reason)"),
    {"take_list", server_take_list, METH_O, "take_list(number) -> list of a rolled file or None"},
    {"current_list", server_current_list, METH_O, "current_list(number) -> list of the current file or None"},
    {"leave_current", server_leave_current, METH_O, "leave_current(number) -> the next file is the current one now"},
    {"log_mark", server_log_mark, METH_O, "log_mark(number) -> what has been appended until now"},
    FAST("log_durable", server_log_durable, "log_durable(number, mark) -> that is durable; else it is asked for"),
    FAST("lock_files", server_lock_files, "lock_files(number, files) -> all of them were locked"),
    {"pinned", server_pinned, METH_O, "pinned(number) -> the files whose control frames are needed"},
    FAST("unlock_files", server_unlock_files, "unlock_files(number, files, ghosts)"),
    FAST("collected", server_collected, "collected(number, file, used, low, high)"),
    FAST("swing", server_swing, "swing(number, list, sources, cursor) -> cursor, -1 when done"),
    FAST("drop_entries", server_drop_entries, "drop_entries(number, file, list, cursor) -> cursor, -1 when done"),
    FAST("drop_lost", server_drop_lost, "drop_lost(number, ids) -> how many were held"),
    FAST("client_dying", server_client_dying, "client_dying(store, slot, generation, until)"),
    {"note_lost", (PyCFunction)(void (*)(void))server_note_lost, METH_FASTCALL,
     "note_lost(number, messages): messages that a start found to be lost"},
    {"finish", server_finish, METH_O, "finish(number) -> rows dropped because their file is not there"},
    FAST("offer", server_offer, "offer(number, fd, file, salt, header)"),
    FAST("replace_index", server_replace_index, "replace_index(number, region)"),
    {"take_gone", server_take_gone, METH_O, "take_gone(number) -> empty files that go: retire, remove, file_gone"},
    FAST("file_gone", server_file_gone, "file_gone(number, file)"),
    FAST("attach", server_attach, "attach(slot, generation, client_epoch, region, holder, epoch0, epoch1, starting)"),
    {"close_slot", server_close_slot, METH_O, "close_slot(slot)"},
    {"detach", server_detach, METH_O, "detach(slot) -> True when the region may go"},
    {"slots_seen", server_slots_seen, METH_O, "slots_seen(version)"},
    {"set_unserved", server_set_unserved, METH_O, "set_unserved(on): some client's region could not be attached, for now"},
    {"freeze", server_freeze, METH_NOARGS, "freeze(): execute nothing but what was submitted until now"},
    {"set_draining", server_set_draining, METH_O, "set_draining(on)"},
    {"run", server_run, METH_O, "run(max_ns) -> events"},
    {"kick", server_kick, METH_NOARGS, "kick(): let run() return"},
    {"all_durable", server_all_durable, METH_NOARGS, "all_durable() -> True when all is executed, written and synced"},
    {"commit_run", server_commit_run, METH_O, "commit_run(number): the committer's whole life"},
    {"stop", server_stop, METH_O, "stop(number): let commit_run end"},
    FAST("water", server_water, "water(number, client_epoch)"),
    {"look", server_look, METH_O, "look(number) -> dict"},
    {NULL, NULL, 0, NULL}};

static PyTypeObject server_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "warren.engine._core.StoreServer",
    .tp_basicsize = sizeof(ServerObject),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_doc = "The store server's loop over both stores (engine/store/store.h).",
    .tp_new = server_new,
    .tp_dealloc = server_dealloc,
    .tp_methods = server_methods,
};

int wr_bind_store(PyObject *module) {
    if (PyModule_AddType(module, &server_type)) return -1;
    static const struct {
        const char *name;
        long value;
    } events[] = {
        {"STORE_EVENT_FILE", WR_STORE_EVENT_FILE},
        {"STORE_EVENT_SLOTS", WR_STORE_EVENT_SLOTS},
        {"STORE_EVENT_INDEX", WR_STORE_EVENT_INDEX},
        {"STORE_EVENT_EMPTY", WR_STORE_EVENT_EMPTY},
        {"STORE_EVENT_FAILED", WR_STORE_EVENT_FAILED},
        {"STORE_EVENT_STOP", WR_STORE_EVENT_STOP},
        {"STORE_EVENT_TIMER", WR_STORE_EVENT_TIMER},
        {"STORE_EVENT_SWEPT", WR_STORE_EVENT_SWEPT},
        {"STORE_EVENT_KICK", WR_STORE_EVENT_KICK},
        {"STORE_EVENT_LIST", WR_STORE_EVENT_LIST},
        {"STORE_EVENT_EXTENT", WR_STORE_EVENT_EXTENT},
    };
    for (size_t i = 0; i < sizeof events / sizeof *events; i++)
        if (PyModule_AddIntConstant(module, events[i].name, events[i].value)) return -1;
    static PyMethodDef functions[] = {{"populate", populate, METH_O, "populate(buffer): touch every page"}, {NULL, NULL, 0, NULL}};
    return PyModule_AddFunctions(module, functions);
}
