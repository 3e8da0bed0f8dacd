/* The type Client: one attachment of this process to a node. Control, barriers, its life, its tables.
 *
 * The mechanism is client/attachment.c, waiting is binding/session.c. */
#include "binding/arguments.h"
#include "binding/columns.h"
#include "binding/publish.h"
#include "binding/publish_rows.h"
#include "binding/sleeper.h"
#include "binding/store_side.h"

static void forked(void) { wr_module.forks++; }

/* ---- control, barrier ------------------------------------------------------------------------------------------- */

static PyObject *client_control(PyObject *op, PyObject *const *args, Py_ssize_t given) {
    ClientObject *c = (ClientObject *)op;
    uint32_t server;
    uint64_t deadline, sequence;
    wr_condition blocked;
    WR_ARGUMENTS(3, "server, request, timeout");
    if (wr_enter(c) || wr_server_of(c, args[0], &server) || wr_deadline(args[2], &deadline)) return NULL;
    if (!PyBytes_Check(args[1])) return PyErr_Format(PyExc_TypeError, "a request is bytes");
    for (;;) {
        int error = wr_attachment_blob(&c->a, server, WR_OP_CONTROL, 0, 0, 0, PyBytes_AS_STRING(args[1]),
                                       (uint64_t)PyBytes_GET_SIZE(args[1]), &sequence, &blocked);
        if (!error) break;
        if (wr_blocked(c, error, &blocked, deadline, "room for a request")) return NULL;
    }
    wr_port_submit(&c->a.port, server);
    wr_link *link = wr_attachment_link(&c->a, server);
    wr_condition condition = {&link->processed, sequence, server};
    if (wr_wait_or_raise(c, &condition, deadline, WR_FOR_REPLY, "the worker's answer")) return NULL;
    uint32_t result = atomic_load_explicit(&wr_view_command(&c->a.port.view, server, sequence)->result, memory_order_acquire);
    uint32_t length = link->reply_length;
    if (length > c->a.port.view.g.reply_bytes) length = c->a.port.view.g.reply_bytes;
    return Py_BuildValue("(Iy#)", result, wr_view_reply(&c->a.port.view, server), (Py_ssize_t)length);
}

/* One command without a blob, and its end: processed, or with a level what that horizon says. Returns the result. */
static PyObject *client_barrier(PyObject *op, PyObject *const *args, Py_ssize_t given) {
    ClientObject *c = (ClientObject *)op;
    uint32_t server;
    int level;
    uint64_t deadline, sequence;
    wr_condition blocked;
    WR_ARGUMENTS(3, "server, level, timeout");
    if (wr_enter(c) || wr_server_of(c, args[0], &server) || wr_level_of(args[1], &level) || wr_deadline(args[2], &deadline)) return NULL;
    uint8_t flags = level == WR_LEVEL_SYNCED ? WR_FLAG_SYNCED : level == WR_LEVEL_WRITTEN ? WR_FLAG_WRITTEN : 0;
    uint8_t code = server < WR_SERVER_WORKER_FIRST ? WR_OP_STORE_BARRIER : WR_OP_BARRIER;
    for (;;) {
        int error = wr_attachment_command(&c->a, server, code, flags, 0, 0, NULL, &sequence, &blocked);
        if (!error) break;
        if (wr_blocked(c, error, &blocked, deadline, "room for a barrier")) return NULL;
    }
    wr_port_submit(&c->a.port, server);
    wr_condition condition = {wr_link_horizon(wr_attachment_link(&c->a, server), level), sequence, server};
    if (wr_wait_or_raise(c, &condition, deadline, WR_FOR_REPLY, "the barrier")) return NULL;
    Py_RETURN_NONE;
}

/* wait_delivery(server, timeout): True when messages of the worker lie here or were pushed, or it was restarted;
 * False: time is up. */
static PyObject *client_wait_delivery(PyObject *op, PyObject *const *args, Py_ssize_t given) {
    ClientObject *c = (ClientObject *)op;
    uint32_t server;
    uint64_t deadline;
    WR_ARGUMENTS(2, "server, timeout");
    if (wr_enter(c) || wr_server_of(c, args[0], &server) || wr_deadline(args[1], &deadline)) return NULL;
    for (;;) {
        for (uint32_t i = 0; i < c->a.consumers_size; i++) {
            const wr_client_consumer *consumer = c->a.consumers[i];
            if (consumer && consumer->server == server && wr_client_consumer_pending(consumer)) Py_RETURN_TRUE;
        }
        wr_condition condition = wr_attachment_delivery(&c->a, server);
        if (wr_condition_met(&condition) ||
            atomic_load_explicit(&wr_attachment_link(&c->a, server)->server_epoch, memory_order_acquire) != c->a.workers[server].epoch)
            Py_RETURN_TRUE;
        int answer = wr_wait(c, &condition, deadline, WR_FOR_DELIVERY);
        if (answer < 0 || wr_enter(c)) return NULL;
        if (answer) Py_RETURN_FALSE;
    }
}

/* wait_submitted(timeout): wait until everything submitted has reached the level that it asked for; False when time was
 * up. */
static PyObject *client_wait_submitted(PyObject *op, PyObject *const *args, Py_ssize_t given) {
    ClientObject *c = (ClientObject *)op;
    uint64_t deadline;
    WR_ARGUMENTS(1, "timeout");
    if (wr_enter(c) || wr_deadline(args[0], &deadline)) return NULL;
    for (uint32_t server = 0; server < c->servers_n; server++) {
        wr_port_submit(&c->a.port, server);
        uint64_t tail = atomic_load_explicit(&wr_attachment_link(&c->a, server)->tail, memory_order_relaxed);
        for (int level = 0; level < 3; level++) {
            uint64_t wanted = level == WR_LEVEL_NONE ? tail : c->submitted[server][level];
            if (!wanted) continue;
            wr_condition condition = {wr_link_horizon(wr_attachment_link(&c->a, server), level), wanted - 1, server};
            int answer = wr_wait(c, &condition, deadline, WR_FOR_CONFIRM);
            if (answer < 0) return NULL;
            if (answer) Py_RETURN_FALSE;
        }
    }
    Py_RETURN_TRUE;
}

static PyObject *client_horizons(PyObject *op, PyObject *argument) {
    ClientObject *c = (ClientObject *)op;
    uint32_t server;
    if (wr_enter(c) || wr_server_of(c, argument, &server)) return NULL;
    wr_link *l = wr_attachment_link(&c->a, server);
    return Py_BuildValue("{sKsKsKsKsK}", "tail", (unsigned long long)atomic_load(&l->tail), "processed",
                         (unsigned long long)atomic_load(&l->processed), "written", (unsigned long long)atomic_load(&l->written),
                         "synced", (unsigned long long)atomic_load(&l->synced), "head", (unsigned long long)atomic_load(&l->head));
}

/* ---- life ------------------------------------------------------------------------------------------------------- */

/* Release what is mapped. Nobody is inside. */
static void release_memory(ClientObject *c) {
    if (!c->open) return;
    c->open = false;
    wr_client_consumer_free_parked(&c->a);
    wr_attachment_free(&c->a);
    for (uint32_t i = 0; i < WR_SERVERS_MAX; i++) {
        drop_buffer(&c->images[i]);
        drop_buffer(&c->transient_images[i]);
    }
    wr_store_side_close(c);
    drop_buffer(&c->region);
    drop_buffer(&c->super);
}

static PyObject *client_new(PyTypeObject *type, PyObject *args, PyObject *keywords) {
    PyObject *super, *region, *hook;
    unsigned int slot, generation;
    unsigned long long epoch;
    if (keywords && PyDict_GET_SIZE(keywords)) return PyErr_Format(PyExc_TypeError, "no keywords");
    if (!PyArg_ParseTuple(args, "OOIIKO", &super, &region, &slot, &generation, &epoch, &hook)) return NULL;
    ClientObject *c = (ClientObject *)type->tp_alloc(type, 0);
    if (!c) return NULL;
    c->release = release_memory;
    c->forks = wr_module.forks;
    c->hook = Py_NewRef(hook);
    int error = 0;
    if (PyObject_GetBuffer(super, &c->super, PyBUF_WRITABLE) || PyObject_GetBuffer(region, &c->region, PyBUF_WRITABLE)) goto failed;
    if (c->super.len < WR_SUPERBLOCK_BYTES) error = EINVAL;
    if (!error)
        error = wr_attachment_init(&c->a, c->super.buf, c->region.buf, (uint64_t)c->region.len, slot, generation, epoch);
    if (!error && (error = wr_store_side_open(c))) wr_attachment_free(&c->a);
    if (error) {
        errno = error;
        PyErr_SetFromErrno(PyExc_OSError); /* whoever attaches says more */
        goto failed;
    }
    c->open = true;
    c->servers_n = c->a.port.view.g.servers_n;
    c->topic_server = c->a.port.super->topic_server;
    c->catalog_seen = UINT64_MAX;
    return (PyObject *)c;
failed:
    drop_buffer(&c->super);
    drop_buffer(&c->region);
    Py_DECREF(c);
    return NULL;
}

/* What is left of the links when the attachment ends. Of a worker that closed its link all that it took is done, and nothing else ever
 * will be; one that never served it took nothing. */
static void keep_ends(ClientObject *c) {
    const bool stopped = wr_node_stopped(c);
    for (uint32_t server = 0; server < c->servers_n; server++) {
        wr_link *link = wr_attachment_link(&c->a, server);
        /* SYNC closed: pairs with the worker's release */
        uint64_t closed = server < WR_SERVER_WORKER_FIRST ? 0 : atomic_load_explicit(&link->closed, memory_order_acquire);
        if (!closed && stopped && server >= WR_SERVER_WORKER_FIRST && !atomic_load_explicit(&link->server_epoch, memory_order_acquire)) closed = 1;
        c->closed[server] = closed;
        for (int level = 0; level < 3; level++) {
            const uint64_t horizon = atomic_load_explicit(wr_link_horizon(link, level), memory_order_acquire);
            c->final[server][level] = closed && closed - 1 > horizon ? closed - 1 : horizon;
        }
    }
}

/* end(error, forked): nothing is submitted any more; whoever waits gets `error`. In a forked child the region is not
 * touched. */
static PyObject *client_end(PyObject *op, PyObject *const *args, Py_ssize_t given) {
    ClientObject *c = (ClientObject *)op;
    WR_ARGUMENTS(1, "error");
    if (c->ended) Py_RETURN_NONE;
    if (args[0] != Py_None && !PyExceptionInstance_Check(args[0])) return PyErr_Format(PyExc_TypeError, "an exception or None");
    bool child = c->forks != wr_module.forks;
    if (c->open && !child) keep_ends(c);
    for (uint32_t server = 0; c->open && !child && server < c->servers_n; server++) wr_results_look(&c->a.results[server], &c->a.port, server);
    if (c->open && !child) wr_answers_look(&c->a.answers, &c->a.port, true);
    c->ended = true;
    if (args[0] != Py_None) c->end_error = Py_NewRef(args[0]);
    if (child) c->busy = 0; /* those threads do not exist here */
    if (c->open && !child) wr_attachment_wake(c->a.port.view.client);
    if (c->busy) wr_waiter_kick();
    if (!c->busy) release_memory(c);
    Py_RETURN_NONE;
}

/* set_large(server, fd): the folder of a worker's large messages; the descriptor is the client's from now on. */
static PyObject *client_set_large(PyObject *op, PyObject *const *args, Py_ssize_t given) {
    ClientObject *c = (ClientObject *)op;
    uint32_t server;
    WR_ARGUMENTS(2, "server, fd");
    if (wr_enter(c) || wr_server_of(c, args[0], &server)) return NULL;
    const int fd = (int)PyLong_AsLong(args[1]);
    if (PyErr_Occurred()) return NULL;
    if (c->a.bodies.large_fd[server] >= 0) close(fd); /* another thread was first, and somebody may be in there */
    else c->a.bodies.large_fd[server] = fd;
    Py_RETURN_NONE;
}

/* set_worker(server, images, transient_images, journal_fd, transient_fd, segments_fd, epoch): regions (None: not
 * there) and folders of this incarnation of a worker. The descriptors are the client's from now on. Consumers begin
 * anew. */
static PyObject *client_set_worker(PyObject *op, PyObject *const *args, Py_ssize_t given) {
    ClientObject *c = (ClientObject *)op;
    uint32_t server;
    WR_ARGUMENTS(7, "server, images, transient_images, journal_fd, transient_fd, segments_fd, epoch");
    if (wr_enter(c) || wr_server_of(c, args[0], &server)) return NULL;
    uint64_t epoch = PyLong_AsUnsignedLongLong(args[6]);
    int fds[3];
    Py_buffer fresh[2] = {{.obj = NULL}, {.obj = NULL}};
    for (int i = 0; i < 3; i++) fds[i] = (int)PyLong_AsLong(args[3 + i]);
    if (PyErr_Occurred()) return NULL;
    for (int i = 0; i < 2; i++) {
        if (args[1 + i] != Py_None && PyObject_GetBuffer(args[1 + i], &fresh[i], PyBUF_SIMPLE)) goto failed;
        uint64_t least = WR_PAGE_BYTES + (uint64_t)c->a.images_n * c->a.file_bytes;
        if (fresh[i].obj && (uint64_t)fresh[i].len < least) {
            PyErr_SetString(PyExc_ValueError, "an images region is smaller than its images");
            goto failed;
        }
    }
    if (wr_attachment_intake(&c->a, server) == ENOMEM) { /* what the predecessor pushed still counts for it */
        PyErr_NoMemory();
        goto failed;
    }
    c->busy++;
    Py_BEGIN_ALLOW_THREADS
    pthread_mutex_lock(&c->a.bodies.lock);
    Py_END_ALLOW_THREADS
    c->busy--;
    if (c->ended) {
        pthread_mutex_unlock(&c->a.bodies.lock);
        wr_left(c);
        wr_enter_slow(c);
        goto failed;
    }
    wr_bodies_set(&c->a.bodies, server, fds[0], fds[1], fds[2]);
    pthread_mutex_unlock(&c->a.bodies.lock);
    drop_buffer(&c->images[server]);
    drop_buffer(&c->transient_images[server]);
    c->images[server] = fresh[0];
    c->transient_images[server] = fresh[1];
    wr_worker_side *side = &c->a.workers[server];
    side->images = fresh[0].obj ? fresh[0].buf : NULL;
    side->transient_images = fresh[1].obj ? fresh[1].buf : NULL;
    /* Several threads may have seen the new worker at once. The second must not forget what the first has announced
     * to it since: a credit counted from 0 again would be below what was delivered, and nothing more would ever
     * come. */
    bool anew = side->epoch != epoch;
    side->epoch = epoch;
    for (uint32_t i = 0; anew && i < c->a.consumers_size; i++) {
        wr_client_consumer *consumer = c->a.consumers[i];
        if (!consumer || consumer->server != server) continue;
        wr_client_consumer_recheck(&c->a, consumer);
        consumer->popped = consumer->granted = 0;
        consumer->announced = false;
    }
    Py_RETURN_NONE;
failed:
    drop_buffer(&fresh[0]);
    drop_buffer(&fresh[1]);
    return NULL;
}

static PyObject *client_link_epoch(PyObject *op, PyObject *argument) {
    ClientObject *c = (ClientObject *)op;
    uint32_t server;
    if (wr_enter(c) || wr_server_of(c, argument, &server)) return NULL;
    return PyLong_FromUnsignedLongLong(atomic_load_explicit(&wr_attachment_link(&c->a, server)->server_epoch, memory_order_acquire));
}

static PyObject *client_evicted(PyObject *op, PyObject *argument) {
    ClientObject *c = (ClientObject *)op;
    uint32_t server;
    if (wr_enter(c) || wr_server_of(c, argument, &server)) return NULL;
    return PyLong_FromUnsignedLong(atomic_load(&wr_attachment_link(&c->a, server)->evicted));
}

static PyObject *client_next_id(PyObject *op, PyObject *unused) {
    ClientObject *c = (ClientObject *)op;
    (void)unused;
    uint8_t id[16];
    if (wr_enter(c)) return NULL;
    wr_attachment_id(&c->a, id);
    return PyBytes_FromStringAndSize((char *)id, 16);
}

static PyObject *client_get_ended(PyObject *op, void *closure) {
    (void)closure;
    ClientObject *c = (ClientObject *)op;
    return PyBool_FromLong(c->ended || c->forks != wr_module.forks);
}

static PyObject *client_get_busy(PyObject *op, void *closure) {
    (void)closure;
    return PyLong_FromUnsignedLong(((ClientObject *)op)->busy);
}

static PyObject *client_get_catalog(PyObject *op, void *closure) {
    (void)closure;
    return PyLong_FromUnsignedLongLong(((ClientObject *)op)->catalog_seen);
}

static int client_set_catalog(PyObject *op, PyObject *value, void *closure) {
    (void)closure;
    uint64_t version = value ? PyLong_AsUnsignedLongLong(value) : 0;
    if (PyErr_Occurred()) return -1;
    ((ClientObject *)op)->catalog_seen = version;
    return 0;
}

static int client_traverse(PyObject *op, visitproc visit, void *arg) {
    ClientObject *c = (ClientObject *)op;
    Py_VISIT(Py_TYPE(op));
    Py_VISIT(c->hook);
    Py_VISIT(c->end_error);
    return 0;
}

static int client_clear(PyObject *op) {
    ClientObject *c = (ClientObject *)op;
    Py_CLEAR(c->end_error);
    PyObject *none = Py_NewRef(Py_None); /* never NULL: somebody may still call it */
    Py_SETREF(c->hook, none);
    return 0;
}

static void client_dealloc(PyObject *op) {
    ClientObject *c = (ClientObject *)op;
    PyTypeObject *type = Py_TYPE(op);
    PyObject_GC_UnTrack(op);
    if (c->open) release_memory(c);
    PyMem_RawFree(c->wants);
    for (uint32_t server = 0; server < WR_SERVERS_MAX; server++) wr_results_free(&c->a.results[server]); /* they outlive the attachment */
    Py_XDECREF(c->hook);
    Py_XDECREF(c->end_error);
    type->tp_free(op);
    Py_DECREF(type);
}

/* ---- the type --------------------------------------------------------------------------------------------------- */

static PyMethodDef client_methods[] = {
    {"publish", (PyCFunction)(void (*)(void))wr_client_publish, METH_FASTCALL, "publish(route, body, level, meta, timeout, wait, options=None)"},
    {"publish_many", (PyCFunction)(void (*)(void))wr_client_publish_many, METH_FASTCALL,
     "publish_many(route or routes, bodies, level, meta or metas, timeout, wait, options=None)"},
    {"publish_rows", (PyCFunction)(void (*)(void))wr_client_publish_rows, METH_FASTCALL,
     "publish_rows(routes, rows, bodies, metas, which, extras, level, timeout, wait, numbers) -> Confirm | None"},
    {"control", (PyCFunction)(void (*)(void))client_control, METH_FASTCALL, "control(server, request, timeout) -> (result, reply)"},
    {"barrier", (PyCFunction)(void (*)(void))client_barrier, METH_FASTCALL, "barrier(server, level, timeout)"},
    {"wait_delivery", (PyCFunction)(void (*)(void))client_wait_delivery, METH_FASTCALL, "wait_delivery(server, timeout) -> bool"},
    {"wait_submitted", (PyCFunction)(void (*)(void))client_wait_submitted, METH_FASTCALL,
     "wait_submitted(timeout) -> bool"},
    {"horizons", client_horizons, METH_O, "horizons(server) -> dict"},
    {"end", (PyCFunction)(void (*)(void))client_end, METH_FASTCALL, "end(error)"},
    {"set_large", (PyCFunction)(void (*)(void))client_set_large, METH_FASTCALL, "set_large(server, fd): the folder of a worker's large messages"},
    {"set_worker", (PyCFunction)(void (*)(void))client_set_worker, METH_FASTCALL,
     "set_worker(server, images, transient_images, journal_fd, transient_fd, segments_fd, epoch)"},
    {"link_epoch", client_link_epoch, METH_O, "link_epoch(server): epoch of the server that serves the link"},
    {"evicted", client_evicted, METH_O, "evicted(server): why the server closed the link, 0 if it did not"},
    {"watch", (PyCFunction)(void (*)(void))wr_client_watch, METH_FASTCALL, "watch(server, kind, above) -> bool: see wait_any; True: met already"},
    {"room", (PyCFunction)(void (*)(void))wr_client_room, METH_FASTCALL,
     "room(server, commands, bytes, largest) -> None, or (server, head) to wait for"},
    {"set_doorbell", wr_client_set_doorbell, METH_O, "set_doorbell(on): servers ring this client's socket, if they reach it, instead of waking the waiting thread"},
    {"check", wr_client_check, METH_O, "check(server): the hook looks whether anybody is left who could answer"},
    {"lying", wr_client_lying, METH_O, "lying(server) -> list: ids of queues with messages that lie here"},
    {"trouble", (PyCFunction)(void (*)(void))wr_client_trouble, METH_FASTCALL, "trouble(server, purpose) -> code for the hook, or 0"},
    {"next_id", client_next_id, METH_NOARGS, "next_id() -> bytes: a new message id"},
    {"columns", (PyCFunction)(void (*)(void))wr_columns, METH_FASTCALL, "columns(handle, rows, wanted, name): messages of a browse answer for Arrow"},
    {"set_store", (PyCFunction)(void (*)(void))wr_store_set, METH_FASTCALL,
     "set_store(store, directory, summary, images, folder, epoch)"},
    {"store_dying", wr_face_dying, METH_O, "store_dying(store) -> commands processed: a delete_and_terminate begins"},
    {"store_terminate", (PyCFunction)(void (*)(void))wr_face_terminate, METH_FASTCALL,
     "store_terminate(store, since, timeout) -> int: its end; how many commands were masked"},
    {"deliveries", (PyCFunction)(void (*)(void))wr_deliveries, METH_FASTCALL,
     "deliveries(handle, rows) -> list: messages of a browse answer (None for one that is gone)"},
    {NULL, NULL, 0, NULL}};

static PyObject *client_get_call_timeout(PyObject *op, void *unused) {
    (void)unused;
    const ClientObject *c = (ClientObject *)op;
    if (!c->call_ns) Py_RETURN_NONE;
    return PyFloat_FromDouble((double)c->call_ns / 1e9);
}

static int client_set_call_timeout(PyObject *op, PyObject *value, void *unused) {
    (void)unused;
    ClientObject *c = (ClientObject *)op;
    double seconds = value && value != Py_None ? PyFloat_AsDouble(value) : 0.0;
    if (PyErr_Occurred()) return -1;
    if (value && value != Py_None && !(seconds > 0.0))
        return wr_raise("UsageError", "call_timeout must be None or a number of seconds above 0");
    c->call_ns = seconds > 1e9 ? 0 : (uint64_t)(seconds * 1e9);
    return 0;
}

static PyObject *client_get_over(PyObject *op, void *closure) {
    (void)closure;
    const ClientObject *c = (ClientObject *)op;
    return PyBool_FromLong(c->ended || c->forks != wr_module.forks || !c->open || wr_node_stopped(c));
}

static PyObject *client_get_behind(PyObject *op, void *closure) {
    (void)closure;
    const ClientObject *c = (ClientObject *)op;
    return PyBool_FromLong(c->forks != wr_module.forks || !c->open || wr_catalog_is_old(c));
}

static PyObject *client_get_redelivered(PyObject *op, void *closure) {
    (void)closure;
    return PyLong_FromUnsignedLongLong(((ClientObject *)op)->redelivered_n);
}

static PyGetSetDef client_attributes[] = {
    {"call_timeout", client_get_call_timeout, client_set_call_timeout,
     "seconds that calls without a timeout wait for room, when they do not wait for what becomes of it; None: without end", NULL},
    {"ended", client_get_ended, NULL, "end() was called, or this is a forked child", NULL},
    {"over", client_get_over, NULL, "it has ended, or its node was stopped: what it knows is of the past", NULL},
    {"behind", client_get_behind, NULL, "the catalog has another version than catalog_seen, or cannot be asked any more", NULL},
    {"busy", client_get_busy, NULL, "threads that wait or read inside; the memory is theirs until they are out", NULL},
    {"redelivered_n", client_get_redelivered, NULL, "messages handed out that somebody may have had before", NULL},
    {"catalog_seen", client_get_catalog, client_set_catalog, "catalog version that the routes were made from", NULL},
    {NULL, NULL, NULL, NULL, NULL}};

static PyType_Slot client_slots[] = {
    {Py_tp_new, client_new},         {Py_tp_dealloc, client_dealloc}, {Py_tp_traverse, client_traverse},
    {Py_tp_clear, client_clear},     {Py_tp_methods, client_methods}, {Py_tp_getset, client_attributes},
    {Py_tp_doc, "Client(superblock, region, slot, generation, client_epoch, hook): one attachment of this process to a node."},
    {0, NULL}};
static PyType_Spec client_spec = {"warren.engine._core.Client", sizeof(ClientObject), 0,
                                  Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, client_slots};

int wr_bind_client(PyObject *module) {
    static bool watching;
    if (!watching && pthread_atfork(NULL, NULL, forked)) {
        PyErr_NoMemory();
        return -1;
    }
    watching = true;
    wr_module.client_type = (PyTypeObject *)PyType_FromModuleAndSpec(module, &client_spec, NULL);
    if (!wr_module.client_type || PyModule_AddObjectRef(module, "Client", (PyObject *)wr_module.client_type)) return -1;
    wr_module.attachment_lost = PyErr_NewExceptionWithDoc("warren.engine._core.AttachmentLost",
                                                "This attachment is over: make another one and call again.", NULL, NULL);
    if (!wr_module.attachment_lost || PyModule_AddObjectRef(module, "AttachmentLost", wr_module.attachment_lost)) return -1;
    const struct {
        const char *name;
        int value;
    } numbers[] = {{"HOOK_CHECK", WR_HOOK_CHECK},       {"HOOK_EPOCH", WR_HOOK_EPOCH},         {"HOOK_EVICTED", WR_HOOK_EVICTED},
                   {"HOOK_FROZEN", WR_HOOK_FROZEN},     {"HOOK_STOPPING", WR_HOOK_STOPPING},   {"HOOK_FAILED", WR_HOOK_FAILED},
                   {"HOOK_TIMED_OUT", WR_HOOK_TIMED_OUT}, {"HOOK_CATALOG", WR_HOOK_CATALOG}, {"HOOK_HOT", WR_HOOK_HOT},
                   {"HOOK_SILENT", WR_HOOK_SILENT}, {"HOOK_LARGE", WR_HOOK_LARGE}, {"LEVEL_NONE", WR_LEVEL_NONE},
                   {"LEVEL_WRITTEN", WR_LEVEL_WRITTEN}, {"LEVEL_SYNCED", WR_LEVEL_SYNCED},
                   {"COLUMNS_VALUES", WR_COLUMNS_VALUES}, {"COLUMNS_PLACES", WR_COLUMNS_PLACES},
                   {"COLUMNS_METAS", WR_COLUMNS_METAS}};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        if (PyModule_AddIntConstant(module, numbers[i].name, numbers[i].value)) return -1;
    return 0;
}
