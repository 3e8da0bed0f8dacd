/* The client's binding, third part: the message store's face. Methods of Client; the mechanism is storeclient.c.
 *
 * Invariants
 *   stores[i] is used under the GIL alone and never opens a file (its folder is -1: a message on disk answers EBADF). What needs the disk
 *   is read by readers[i] without the GIL, under store_lock; it sees no own ring, because that one may change meanwhile.
 *   Regions of other clients stay attached while any reader is inside; they go when their slot has another owner.
 */
#include "binding_client.h"
#include <sys/shm.h>

#define NAP_NS 200000
#define TRIES 8

typedef struct {
    void *base;
    wr_view view;
    uint32_t generation;
} wr_other;

struct wr_store_side {
    wr_store_client stores[2], readers[2];
    wr_port reader_port; /* like the client's, with an empty ring */
    wr_link *no_links;
    Py_buffer directory[2], index[2], summary[2], images[2];
    uint64_t epoch[2], index_generation[2];
    pthread_mutex_t lock;        /* readers */
    pthread_mutex_t others_lock; /* `others` and `old`; held for an attach at most */
    wr_other *others[WR_CLIENT_SLOTS];
    wr_other **old;
    uint32_t old_n, old_size;
    uint32_t inside; /* readers without the GIL */
    uint64_t slots_seen;
};

static wr_view *view_of(void *context, uint32_t slot, uint32_t generation) {
    ClientObject *c = context;
    struct wr_store_side *side = c->store;
    wr_view *found = NULL;
    pthread_mutex_lock(&side->others_lock);
    wr_other *other = side->others[slot];
    if (other && other->generation == generation) found = &other->view;
    if (!found && (!other || side->old_n < side->old_size)) {
        wr_slot *row = wr_superblock_slot(c->a.port.super, slot);
        int shmid = row->shmid;
        void *base = shmid >= 0 ? shmat(shmid, NULL, SHM_RDONLY) : (void *)-1;
        uint64_t claim = atomic_load_explicit(&row->claim, memory_order_acquire);
        struct shmid_ds status;
        wr_other *fresh = NULL;
        if (base != (void *)-1) {
            if (((claim >> 8) & 0xffffff) == generation && row->shmid == shmid && !shmctl(shmid, IPC_STAT, &status) &&
                (fresh = malloc(sizeof *fresh)) &&
                !wr_view_init(&fresh->view, base, status.shm_segsz, &c->a.port.view.g)) {
                fresh->base = base;
                fresh->generation = generation;
                if (other) side->old[side->old_n++] = other;
                side->others[slot] = fresh;
                found = &fresh->view;
            } else {
                free(fresh);
                shmdt(base);
            }
        }
    }
    pthread_mutex_unlock(&side->others_lock);
    return found;
}

static void detach(wr_other *other) {
    shmdt(other->base);
    free(other);
}

/* Under the GIL: detach what has another owner now, when nobody is inside. */
static void tidy(ClientObject *c) {
    struct wr_store_side *side = c->store;
    uint64_t version = atomic_load_explicit(&c->a.port.super->slots_version, memory_order_acquire);
    if (side->inside || (version == side->slots_seen && !side->old_n)) return;
    pthread_mutex_lock(&side->others_lock);
    while (side->old_n) detach(side->old[--side->old_n]);
    for (uint32_t slot = 0; slot < WR_CLIENT_SLOTS; slot++) {
        wr_other *other = side->others[slot];
        if (!other) continue;
        uint64_t claim = atomic_load_explicit(&wr_superblock_slot(c->a.port.super, slot)->claim, memory_order_acquire);
        if (((claim >> 8) & 0xffffff) == other->generation && (claim & 0xff) != WR_SLOT_FREE) continue;
        side->others[slot] = NULL;
        detach(other);
    }
    side->slots_seen = version;
    pthread_mutex_unlock(&side->others_lock);
}

static void drop(Py_buffer *buffer) {
    if (buffer->obj) PyBuffer_Release(buffer);
    buffer->obj = NULL;
}

static void forget_regions(struct wr_store_side *side, int i) {
    drop(&side->directory[i]);
    drop(&side->index[i]);
    drop(&side->summary[i]);
    drop(&side->images[i]);
    wr_store_client_close(&side->readers[i]);
    if (side->readers[i].directory_fd >= 0) close(side->readers[i].directory_fd);
    side->readers[i].directory_fd = -1;
    side->stores[i].directory = NULL;
}

int wr_store_side_open(ClientObject *c) {
    struct wr_store_side *side = calloc(1, sizeof *side);
    if (!side) return ENOMEM;
    side->no_links = calloc(WR_SERVERS_MAX, sizeof *side->no_links);
    side->old_size = WR_CLIENT_SLOTS;
    side->old = calloc(side->old_size, sizeof *side->old);
    if (!side->no_links || !side->old || pthread_mutex_init(&side->lock, NULL) || pthread_mutex_init(&side->others_lock, NULL)) {
        free(side->no_links);
        free(side->old);
        free(side);
        return ENOMEM;
    }
    side->reader_port = c->a.port;
    side->reader_port.uses = NULL;
    side->reader_port.view.links = side->no_links;
    for (int i = 0; i < 2; i++) {
        wr_store_client s = {.port = &c->a.port,
                             .server = (uint32_t)i,
                             .directory_rows = c->a.port.super->directory_rows,
                             .summary_rows = c->a.port.super->summary_rows,
                             .images_n = c->a.port.super->images_n,
                             .file_bytes = c->a.port.super->file_bytes,
                             .directory_fd = -1,
                             .node_id = c->a.port.super->node_id,
                             .view_of = view_of,
                             .context = c};
        side->stores[i] = s;
        side->readers[i] = s;
        side->readers[i].port = &side->reader_port;
    }
    c->store = side;
    return 0;
}

void wr_store_side_close(ClientObject *c) {
    struct wr_store_side *side = c->store;
    if (!side) return;
    for (int i = 0; i < 2; i++) forget_regions(side, i);
    while (side->old_n) detach(side->old[--side->old_n]);
    for (uint32_t slot = 0; slot < WR_CLIENT_SLOTS; slot++)
        if (side->others[slot]) detach(side->others[slot]);
    free(side->no_links);
    free(side->old);
    free(side);
    c->store = NULL;
}

/* set_store(store, directory, index, summary, images, folder, epoch, index_generation): regions of this incarnation. */
PyObject *wr_store_set(PyObject *op, PyObject *const *args, Py_ssize_t given) {
    ClientObject *c = (ClientObject *)op;
    if (given != 8) return PyErr_Format(PyExc_TypeError, "arguments: store, directory, index, summary, images, folder, epoch, index_generation");
    if (wr_enter(c)) return NULL;
    long i = PyLong_AsLong(args[0]), folder = PyLong_AsLong(args[5]);
    uint64_t epoch = PyLong_AsUnsignedLongLong(args[6]), generation = PyLong_AsUnsignedLongLong(args[7]);
    if (PyErr_Occurred()) return NULL;
    if (i < 0 || i > 1) return PyErr_Format(PyExc_ValueError, "store is 0 or 1");
    Py_buffer fresh[4] = {{.obj = NULL}, {.obj = NULL}, {.obj = NULL}, {.obj = NULL}};
    for (int k = 0; k < 4; k++)
        if (PyObject_GetBuffer(args[1 + k], &fresh[k], k ? PyBUF_SIMPLE : PyBUF_WRITABLE)) goto failed;
    struct wr_store_side *side = c->store;
    wr_store_client *s = &side->stores[i];
    if ((uint64_t)fresh[0].len < 8ull * s->directory_rows || fresh[1].len < WR_PAGE_BYTES ||
        (uint64_t)fresh[2].len < sizeof(wr_summary_row) * (uint64_t)s->summary_rows ||
        (uint64_t)fresh[3].len < WR_PAGE_BYTES + s->images_n * s->file_bytes) {
        PyErr_SetString(PyExc_ValueError, "a region of the store is smaller than the superblock says");
        goto failed;
    }
    c->busy++;
    Py_BEGIN_ALLOW_THREADS
    pthread_mutex_lock(&side->lock);
    Py_END_ALLOW_THREADS
    c->busy--;
    if (c->ended) {
        pthread_mutex_unlock(&side->lock);
        wr_left(c);
        wr_enter_slow(c);
        goto failed;
    }
    forget_regions(side, (int)i);
    side->directory[i] = fresh[0];
    side->index[i] = fresh[1];
    side->summary[i] = fresh[2];
    side->images[i] = fresh[3];
    side->epoch[i] = epoch;
    side->index_generation[i] = generation;
    wr_store_client *both[2] = {s, &side->readers[i]};
    for (int k = 0; k < 2; k++) {
        both[k]->directory = fresh[0].buf;
        both[k]->index = fresh[1].buf;
        both[k]->index_bytes = (uint64_t)fresh[1].len;
        both[k]->summary = fresh[2].buf;
        both[k]->images = fresh[3].buf;
    }
    side->readers[i].directory_fd = (int)folder;
    pthread_mutex_unlock(&side->lock);
    Py_RETURN_NONE;
failed:
    for (int k = 0; k < 4; k++) drop(&fresh[k]);
    return NULL;
}

/* The regions of the store's present incarnation, waiting for it if there were none yet. */
static int current(ClientObject *c, int i, uint64_t deadline) {
    struct wr_store_side *side = c->store;
    wr_server *row = wr_superblock_server(c->a.port.super, (uint32_t)i);
    for (;;) {
        uint64_t epoch = atomic_load_explicit(&row->epoch, memory_order_acquire);
        if (side->stores[i].directory && epoch == side->epoch[i] &&
            atomic_load_explicit(&row->index_generation, memory_order_acquire) == side->index_generation[i])
            return 0;
        if (wr_hook(c, WR_HOOK_EPOCH, (uint32_t)i, "")) return -1;
        if (side->stores[i].directory) return 0; /* the old ones, while there are no others */
        wr_condition condition = {&row->epoch, epoch, (uint32_t)i};
        if (epoch && wr_nap(c, 10 * NAP_NS)) return -1;
        if (!epoch && wr_wait_or_raise(c, &condition, deadline, WR_FOR_REPLY, "the store to come up")) return -1;
        if (deadline && wr_now_ns() >= deadline) {
            if (wr_hook(c, WR_HOOK_TIMED_OUT, (uint32_t)i, "the store to come up")) return -1;
            return wr_raise("TimedOut", "the store did not come up within the timeout");
        }
    }
}

static int store_of(ClientObject *c, PyObject *argument, int *i) {
    long value = PyLong_AsLong(argument);
    if (value == -1 && PyErr_Occurred()) return -1;
    if (value < 0 || value > 1) {
        PyErr_SetString(PyExc_ValueError, "store is 0 or 1");
        return -1;
    }
    *i = (int)value;
    return wr_enter(c);
}

static int id_of(PyObject *object, const uint8_t **id) {
    if (!PyBytes_Check(object) || PyBytes_GET_SIZE(object) != 16)
        return wr_raise("UsageError", "a message id is 16 bytes (node.store().new_id() makes one), not %R", object);
    *id = (const uint8_t *)PyBytes_AS_STRING(object);
    return 0;
}

/* What a remove that got EAGAIN waits for: room in the ring, else in the arena. */
static int wait_for_room(ClientObject *c, int i, uint64_t deadline) {
    wr_condition blocked;
    int error = wr_attachment_room(&c->a, (uint32_t)i, &blocked);
    wr_port *port = &c->a.port;
    if (!error && port->uses_first != port->uses_next) {
        const wr_blob_use *oldest = &port->uses[port->uses_first & (port->uses_size - 1)];
        blocked = (wr_condition){&wr_attachment_link(&c->a, oldest->server)->head, oldest->sequence, oldest->server};
        error = EAGAIN;
    }
    if (!error) return wr_nap(c, NAP_NS);
    return wr_blocked(c, error, &blocked, deadline, "room in the store's ring");
}

static int write_one(ClientObject *c, int i, PyObject *id_object, PyObject *body_object, int level, uint64_t deadline,
                     uint64_t *sequence) {
    const uint8_t *id;
    wr_body body;
    uint64_t position;
    uint8_t *at;
    wr_condition blocked;
    if (id_of(id_object, &id) || wr_body_take(c, body_object, 0, &body)) return -1;
    uint8_t flags = wr_flags_of(level);
    for (;;) {
        int error = wr_attachment_room(&c->a, (uint32_t)i, &blocked);
        if (!error) error = wr_attachment_alloc(&c->a, (uint64_t)body.length, &position, &at, &blocked);
        if (error) {
            if (wr_blocked(c, error, &blocked, deadline, "room for the message") || current(c, i, deadline)) goto failed;
            continue;
        }
        memcpy(at, body.bytes, (size_t)body.length);
        error = wr_store_client_write(&c->store->stores[i], id, position, (uint32_t)body.length, 0, 0, flags, sequence);
        if (!error) error = wr_port_use(&c->a.port, (uint32_t)i, *sequence);
        if (!error) break;
        if (error != EAGAIN) {
            wr_store_client_abandon(&c->store->stores[i], *sequence);
            wr_blocked(c, error, &blocked, deadline, "the message");
            goto failed;
        }
        /* The bucket of the directory is full: others have 32 writes under way with ids like this one. */
        wr_port_submit(&c->a.port, (uint32_t)i);
        if (deadline && wr_now_ns() >= deadline) {
            wr_raise("LimitError", "the directory has no room for this id: raise the setting directory_rows");
            goto failed;
        }
        if (wr_nap(c, NAP_NS) || current(c, i, deadline)) goto failed;
    }
    wr_body_drop(&body);
    c->submitted[i][level] = *sequence + 1;
    return 0;
failed:
    wr_body_drop(&body);
    return -1;
}

/* store_write(store, ids, bodies, level, timeout, wait): lists (or sequences) of one length. */
PyObject *wr_store_write(PyObject *op, PyObject *const *args, Py_ssize_t given) {
    ClientObject *c = (ClientObject *)op;
    int i, level;
    uint64_t deadline, sequence = 0;
    if (given != 6) return PyErr_Format(PyExc_TypeError, "arguments: store, ids, bodies, level, timeout, wait");
    if (store_of(c, args[0], &i) || wr_level_of(args[3], &level) || wr_deadline(args[4], &deadline) || wr_gate(c, deadline) ||
        current(c, i, deadline))
        return NULL;
    PyObject *ids = PySequence_Fast(args[1], "ids must be a sequence");
    PyObject *bodies = ids ? PySequence_Fast(args[2], "bodies must be a sequence") : NULL;
    int error = bodies ? 0 : -1;
    if (!error && PySequence_Fast_GET_SIZE(ids) != PySequence_Fast_GET_SIZE(bodies))
        error = wr_raise("UsageError", "%zd ids for %zd bodies", PySequence_Fast_GET_SIZE(ids), PySequence_Fast_GET_SIZE(bodies));
    for (Py_ssize_t n = 0; !error && n < PySequence_Fast_GET_SIZE(ids); n++) {
        const uint8_t *id;
        wr_body body;
        error = id_of(PySequence_Fast_GET_ITEM(ids, n), &id) || wr_body_take(c, PySequence_Fast_GET_ITEM(bodies, n), 0, &body);
        if (!error) wr_body_drop(&body);
    }
    Py_ssize_t n = 0;
    for (; !error && n < PySequence_Fast_GET_SIZE(ids) && n < PySequence_Fast_GET_SIZE(bodies); n++) {
        PyObject *id = Py_NewRef(PySequence_Fast_GET_ITEM(ids, n)), *body = Py_NewRef(PySequence_Fast_GET_ITEM(bodies, n));
        error = write_one(c, i, id, body, level, deadline, &sequence);
        Py_DECREF(id);
        Py_DECREF(body);
        if (!error && n % 64 == 63) wr_port_submit(&c->a.port, (uint32_t)i);
    }
    Py_XDECREF(ids);
    Py_XDECREF(bodies);
    if (c->open && !c->ended) wr_port_submit(&c->a.port, (uint32_t)i);
    if (error) return NULL;
    wr_route route = {.targets_n = n ? 1 : 0, .targets = {{.server = (uint32_t)i, .ids_n = 1}}};
    return wr_confirmed(c, &route, &sequence, level, deadline, PyObject_IsTrue(args[5]) == 1);
}

/* store_write_one(store, id, body, level, timeout, wait): one message, at the price of one. */
PyObject *wr_store_write_one(PyObject *op, PyObject *const *args, Py_ssize_t given) {
    ClientObject *c = (ClientObject *)op;
    int i, level;
    uint64_t deadline, sequence = 0;
    if (given != 6) return PyErr_Format(PyExc_TypeError, "arguments: store, id, body, level, timeout, wait");
    if (store_of(c, args[0], &i) || wr_level_of(args[3], &level) || wr_deadline(args[4], &deadline) || wr_gate(c, deadline) ||
        current(c, i, deadline) || write_one(c, i, args[1], args[2], level, deadline, &sequence))
        return NULL;
    wr_port_submit(&c->a.port, (uint32_t)i);
    wr_route route = {.targets_n = 1, .targets = {{.server = (uint32_t)i, .ids_n = 1}}};
    return wr_confirmed(c, &route, &sequence, level, deadline, PyObject_IsTrue(args[5]) == 1);
}

/* store_remove(store, ids, timeout) -> how many were eliminated before they were written. */
PyObject *wr_store_remove(PyObject *op, PyObject *const *args, Py_ssize_t given) {
    ClientObject *c = (ClientObject *)op;
    int i;
    uint64_t deadline;
    if (given != 3) return PyErr_Format(PyExc_TypeError, "arguments: store, ids, timeout");
    if (store_of(c, args[0], &i) || wr_deadline(args[2], &deadline) || current(c, i, deadline)) return NULL;
    PyObject *list = PySequence_Fast(args[1], "ids must be a sequence");
    if (!list) return NULL;
    Py_ssize_t n = PySequence_Fast_GET_SIZE(list), done = 0;
    uint8_t(*ids)[16] = PyMem_Malloc(n ? (size_t)n * 16 : 16);
    unsigned long long eliminated = 0;
    bool failed = !ids;
    if (failed) PyErr_NoMemory();
    for (Py_ssize_t k = 0; k < n && !failed; k++) {
        const uint8_t *id;
        failed = id_of(PySequence_Fast_GET_ITEM(list, k), &id);
        if (!failed) memcpy(ids[k], id, 16);
    }
    while (!failed && done < n) {
        uint32_t some = n - done < 4096 ? (uint32_t)(n - done) : 4096, gone = 0;
        int error = wr_store_client_remove(&c->store->stores[i], (const uint8_t(*)[16])(ids + done), some, &gone);
        if (!error) {
            wr_port_submit(&c->a.port, (uint32_t)i);
            done += some;
            eliminated += gone;
        } else if (error == EAGAIN) {
            failed = wait_for_room(c, i, deadline) || current(c, i, deadline);
        } else {
            wr_condition blocked = {NULL, 0, (uint32_t)i};
            failed = wr_blocked(c, error, &blocked, deadline, "the ids") != 0;
        }
    }
    PyMem_Free(ids);
    Py_DECREF(list);
    return failed ? NULL : PyLong_FromUnsignedLongLong(eliminated);
}

/* store_contains(store, id, timeout) -> bool, in order after what this client did before. */
PyObject *wr_store_contains(PyObject *op, PyObject *const *args, Py_ssize_t given) {
    ClientObject *c = (ClientObject *)op;
    int i;
    uint64_t deadline, sequence;
    const uint8_t *id;
    wr_condition blocked;
    if (given != 3) return PyErr_Format(PyExc_TypeError, "arguments: store, id, timeout");
    if (store_of(c, args[0], &i) || wr_deadline(args[2], &deadline) || id_of(args[1], &id)) return NULL;
    uint32_t server = (uint32_t)i;
    for (;;) {
        int error = wr_attachment_command(&c->a, server, WR_OP_STORE_CONTAINS, 0, 0, 0, id, &sequence, &blocked);
        if (error) {
            if (wr_blocked(c, error, &blocked, deadline, "room for a question")) return NULL;
            continue;
        }
        wr_port_submit(&c->a.port, server);
        wr_condition condition = {&wr_attachment_link(&c->a, server)->processed, sequence, server};
        if (wr_wait_or_raise(c, &condition, deadline, WR_FOR_REPLY, "the store's answer")) return NULL;
        /* Another thread may have gone once round the ring before we had the GIL again: then ask again. */
        if (c->a.port.prepared[server] - sequence > c->a.port.view.g.ring_records) continue;
        uint32_t result = atomic_load_explicit(&wr_view_command(&c->a.port.view, server, sequence)->result, memory_order_acquire);
        return PyBool_FromLong(result == WR_RESULT_OK);
    }
}

int wr_store_fetch(ClientObject *c, int i, const uint8_t id[16], uint8_t **bytes, uint32_t *length, uint16_t *meta_length) {
    struct wr_store_side *side = c->store;
    int error = ENOENT;
    for (int attempt = 0; attempt < TRIES; attempt++) {
        if (current(c, i, 0)) return -1;
        tidy(c);
        error = wr_store_client_read(&side->stores[i], id, bytes, length, meta_length);
        if (error == EBADF) { /* on disk */
            c->busy++;
            side->inside++;
            Py_BEGIN_ALLOW_THREADS
            pthread_mutex_lock(&side->lock);
            error = wr_store_client_read(&side->readers[i], id, bytes, length, meta_length);
            pthread_mutex_unlock(&side->lock);
            Py_END_ALLOW_THREADS
            side->inside--;
            c->busy--;
            if (c->ended) {
                if (!error) free(*bytes);
                wr_left(c);
                return wr_enter_slow(c);
            }
            if (error == ENOENT) continue; /* it moved meanwhile, or it is in our own ring */
        }
        if (error != ESTALE && error != EBADF) return error;
        /* A region is being replaced, or an owner's is not there any more: the server knows more in a moment. */
        if (attempt && wr_nap(c, NAP_NS << attempt)) return -1;
    }
    return error == ESTALE || error == EBADF ? ENOENT : error;
}

/* store_read(store, id) -> body, or None when there is no such message. */
PyObject *wr_store_read(PyObject *op, PyObject *const *args, Py_ssize_t given) {
    ClientObject *c = (ClientObject *)op;
    int i;
    const uint8_t *id;
    uint8_t *bytes;
    uint32_t length;
    uint16_t meta_length;
    if (given != 2) return PyErr_Format(PyExc_TypeError, "arguments: store, id");
    if (store_of(c, args[0], &i) || id_of(args[1], &id)) return NULL;
    int error = wr_store_fetch(c, i, id, &bytes, &length, &meta_length);
    if (error < 0) return NULL;
    if (error == ENOENT) Py_RETURN_NONE;
    if (error == ENOMEM) return PyErr_NoMemory();
    if (error == EBADMSG) {
        wr_raise("StoreError", "message %S is damaged on disk: run warren check", args[1]);
        return NULL;
    }
    if (error) {
        errno = error;
        return PyErr_SetFromErrno(PyExc_OSError);
    }
    PyObject *body = PyBytes_FromStringAndSize((char *)bytes + meta_length, (Py_ssize_t)length - meta_length);
    free(bytes);
    return body;
}
