/* StoreClient for Python: one client's side of one store, bare, for tests and tools; applications use Client. */
#include "binding/arguments.h"
#include "store/client.h"

typedef struct {
    PyObject_HEAD
    wr_port port;
    wr_store_client s;
    Py_buffer super, region, regions[3];
    Py_buffer others[WR_CLIENT_SLOTS];
    wr_view views[WR_CLIENT_SLOTS];
    uint32_t generations[WR_CLIENT_SLOTS];
    int ready;
} BareClientObject;

static wr_view *client_view_of(void *context, uint32_t slot, uint32_t generation) {
    BareClientObject *self = context;
    if (slot >= WR_CLIENT_SLOTS || !self->others[slot].obj || self->generations[slot] != generation) return NULL;
    return &self->views[slot];
}

static PyObject *client_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"superblock", "region", "slot", "generation", "client_epoch", "server", NULL};
    Py_buffer super, region;
    unsigned int slot, generation, server;
    unsigned long long epoch;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "w*w*IIKI:StoreClient", names, &super, &region, &slot, &generation, &epoch, &server)) return NULL;
    BareClientObject *self = (BareClientObject *)type->tp_alloc(type, 0);
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
    BareClientObject *self = (BareClientObject *)op;
    wr_store_client_close(&self->s);
    if (self->port.uses) wr_port_free(&self->port);
    for (int i = 0; i < 3; i++) drop_buffer(&self->regions[i]);
    for (int i = 0; i < WR_CLIENT_SLOTS; i++) drop_buffer(&self->others[i]);
    drop_buffer(&self->region);
    drop_buffer(&self->super);
    Py_TYPE(op)->tp_free(op);
}

/* set_regions(images, directory, summary, directory_fd) */
static PyObject *client_set_regions(PyObject *op, PyObject *const *args, Py_ssize_t given) {
    BareClientObject *self = (BareClientObject *)op;
    if (!count_ok("set_regions", given, 4)) return NULL;
    long fd = PyLong_AsLong(args[3]);
    if (fd == -1 && PyErr_Occurred()) return NULL;
    for (int i = 0; i < 3; i++) drop_buffer(&self->regions[i]);
    self->ready = 0;
    for (int i = 0; i < 3; i++)
        if (PyObject_GetBuffer(args[i], &self->regions[i], i == 1 ? PyBUF_WRITABLE : PyBUF_SIMPLE)) return NULL;
    wr_store_client_close(&self->s);
    self->s.images = self->regions[0].buf;
    self->s.directory = self->regions[1].buf;
    self->s.summary = self->regions[2].buf;
    self->s.rows_known = true;
    self->s.rows_from = self->port.prepared[self->s.server];
    self->s.directory_fd = (int)fd;
    self->ready = 1;
    Py_RETURN_NONE;
}

/* set_other(slot, generation, region): the region of another client, for reads and for blobs of it. */
static PyObject *client_set_other(PyObject *op, PyObject *const *args, Py_ssize_t given) {
    BareClientObject *self = (BareClientObject *)op;
    uint64_t n[2];
    if (!count_ok("set_other", given, 3) || numbers(args, 2, n)) return NULL;
    if (n[0] >= WR_CLIENT_SLOTS) return PyErr_Format(PyExc_ValueError, "there is no client slot %llu: there are %d", (unsigned long long)n[0], WR_CLIENT_SLOTS);
    drop_buffer(&self->others[n[0]]);
    if (PyObject_GetBuffer(args[2], &self->others[n[0]], PyBUF_WRITABLE)) return NULL;
    wr_geometry g = wr_geometry_without_slots(self->super.buf);
    if (wr_view_init(&self->views[n[0]], self->others[n[0]].buf, (uint64_t)self->others[n[0]].len, &g)) {
        drop_buffer(&self->others[n[0]]);
        return raise_errno(EINVAL, "the region does not fit the superblock");
    }
    self->generations[n[0]] = (uint32_t)n[1];
    Py_RETURN_NONE;
}

static int ready(BareClientObject *self) {
    if (self->ready) return 1;
    PyErr_SetString(PyExc_RuntimeError, "set_regions first");
    return 0;
}

static PyObject *submitted(BareClientObject *self) {
    wr_port_submit(&self->port, self->s.server);
    return PyLong_FromUnsignedLongLong(self->port.prepared[self->s.server]);
}

/* write_many([(id, body)], flags, submit) -> horizon that covers them; stops early (fewer commands) when the ring is
 * full. */
static PyObject *client_write_many(PyObject *op, PyObject *const *args, Py_ssize_t given) {
    BareClientObject *self = (BareClientObject *)op;
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

/* write_batch(first id, [body], flags, submit) -> horizon: one OP_STORE_WRITE_MANY. */
static PyObject *client_write_batch(PyObject *op, PyObject *const *args, Py_ssize_t given) {
    BareClientObject *self = (BareClientObject *)op;
    uint64_t flags, sequence;
    if (!count_ok("write_batch", given, 4) || numbers(args + 2, 1, &flags) || !ready(self)) return NULL;
    int submit = PyObject_IsTrue(args[3]);
    const char *id;
    Py_ssize_t id_n;
    if (submit < 0 || PyBytes_AsStringAndSize(args[0], (char **)&id, &id_n)) return NULL;
    if (id_n != 16) return PyErr_Format(PyExc_ValueError, "an id has 16 bytes");
    PyObject *list = PySequence_Fast(args[1], "a list of bodies is wanted");
    if (!list) return NULL;
    Py_ssize_t n = PySequence_Fast_GET_SIZE(list);
    wr_store_body *bodies = malloc((size_t)(n ? n : 1) * sizeof *bodies);
    int error = bodies ? 0 : ENOMEM;
    for (Py_ssize_t i = 0; i < n && !error; i++) {
        PyObject *body = PySequence_Fast_GET_ITEM(list, i);
        if (!PyBytes_Check(body))
            error = EINVAL;
        else
            bodies[i] = (wr_store_body){PyBytes_AS_STRING(body), (uint32_t)PyBytes_GET_SIZE(body)};
    }
    if (!error) error = wr_store_client_write_many(&self->s, (const uint8_t *)id, bodies, (uint32_t)n, (uint8_t)flags, &sequence);
    free(bodies);
    Py_DECREF(list);
    if (error) return raise_errno(error, "ring, arena or directory full, or a body is no bytes");
    return submit ? submitted(self) : PyLong_FromUnsignedLongLong(self->port.prepared[self->s.server]);
}

/* write_owned(id, position, length, owner_tag, flags) -> horizon: a body in another client's arena. */
static PyObject *client_write_owned(PyObject *op, PyObject *const *args, Py_ssize_t given) {
    BareClientObject *self = (BareClientObject *)op;
    uint64_t n[4], sequence;
    if (!count_ok("write_owned", given, 5) || numbers(args + 1, 4, n) || !ready(self)) return NULL;
    const char *id;
    Py_ssize_t id_n;
    if (PyBytes_AsStringAndSize(args[0], (char **)&id, &id_n)) return NULL;
    if (id_n != 16) return PyErr_Format(PyExc_ValueError, "an id has 16 bytes");
    int error = wr_store_client_write(&self->s, (const uint8_t *)id, n[0], (uint32_t)n[1], 0, n[2], (uint8_t)n[3], &sequence);
    return error ? raise_errno(error, "ring or directory full") : submitted(self);
}

static PyObject *client_remove(PyObject *op, PyObject *list) {
    BareClientObject *self = (BareClientObject *)op;
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
    BareClientObject *self = (BareClientObject *)op;
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
    BareClientObject *self = (BareClientObject *)op;
    uint64_t sequence;
    if (numbers(&object, 1, &sequence)) return NULL;
    return PyLong_FromUnsignedLong(atomic_load(&wr_view_command(&self->port.view, self->s.server, sequence)->result));
}

static PyObject *client_reply(PyObject *op, PyObject *unused) {
    (void)unused;
    BareClientObject *self = (BareClientObject *)op;
    uint32_t n = self->port.view.links[self->s.server].reply_length;
    if (n > self->port.view.g.reply_bytes) n = self->port.view.g.reply_bytes;
    return PyBytes_FromStringAndSize((const char *)wr_view_reply(&self->port.view, self->s.server), n);
}

static PyObject *client_read(PyObject *op, PyObject *object) {
    BareClientObject *self = (BareClientObject *)op;
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

static _Atomic uint64_t *horizon_word(BareClientObject *self, PyObject *name) {
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
    BareClientObject *self = (BareClientObject *)op;
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
    _Atomic uint64_t *word = horizon_word((BareClientObject *)op, name);
    return word ? PyLong_FromUnsignedLongLong(atomic_load(word)) : NULL;
}

static PyObject *client_evicted(PyObject *op, PyObject *unused) {
    (void)unused;
    BareClientObject *self = (BareClientObject *)op;
    return PyLong_FromUnsignedLong(atomic_load(&self->port.view.links[self->s.server].evicted));
}

/* load(first, count, body, flags, batch, seconds_ns) -> messages: write counted ids as fast as it goes, for
 * measurements. */
static PyObject *client_load(PyObject *op, PyObject *const *args, Py_ssize_t given) {
    BareClientObject *self = (BareClientObject *)op;
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
    FAST("set_regions", client_set_regions, "set_regions(images, directory, summary, directory_fd)"),
    FAST("set_other", client_set_other, "set_other(slot, generation, region)"),
    FAST("write_many", client_write_many, "write_many([(id, body)], flags, submit) -> horizon"),
    FAST("write_batch", client_write_batch, "write_batch(first id, [body], flags, submit) -> horizon"),
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
    .tp_basicsize = sizeof(BareClientObject),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_doc = "One client's side of one store, bare (engine/store/client.h).",
    .tp_new = client_new,
    .tp_dealloc = client_dealloc,
    .tp_methods = client_methods,
};

int wr_bind_store_client(PyObject *module) { return PyModule_AddType(module, &client_type); }
