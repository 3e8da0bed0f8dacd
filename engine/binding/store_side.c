/* The client's binding, third part: the message store. Regions, waiting, writing, reading; the mechanism is
 * store/client.c and store/reader.c, the type that programs use is binding/store_type.c.
 *
 * Invariants
 *   stores[i] is used under the GIL alone, and waits for no disk: a message that is on disk and not in memory is read
 *   by readers[i] without the GIL, under `lock`. That lock is never waited for with the GIL held, so its holder may
 *   wait for the GIL.
 *   Regions of other clients stay attached from a find to the take after it: they go in tidy(), at the beginning of a
 *   call.
 */
#include "binding/store_side.h"
#include "binding/arguments.h"
#include "binding/confirm.h"
#include "binding/masked.h"
#include "store/removals.h"
#include <sys/shm.h>

#define NAP_NS 200000
#define TRIES 8          /* looks at what is being replaced just now */
#define TRIES_LONG 20    /* then, waits for another incarnation of the store */
#define TRY_NS 1500000000ull
#define SUBMIT_EVERY 64
#define READ_AHEAD 32

typedef struct {
    void *base;
    wr_view view;
    uint32_t generation;
} wr_other;

struct wr_store_side {
    wr_store_client stores[2], readers[2];
    wr_port reader_port; /* like the client's, with an empty ring */
    wr_link *no_links;
    Py_buffer directory[2], summary[2], images[2];
    uint64_t epoch[2];
    wr_removals removals[2];
    pthread_mutex_t lock; /* readers */
    wr_other *others[WR_CLIENT_SLOTS];
    wr_other **old;
    uint32_t old_n, old_size;
    uint64_t slots_seen;
    int view_error; /* why a region could not be attached though it may be there; 0: none such */
};

static wr_view *view_of(void *context, uint32_t slot, uint32_t generation) {
    ClientObject *c = context;
    struct wr_store_side *side = c->store;
    wr_other *other = side->others[slot];
    if (other && other->generation == generation) return &other->view;
    if (other && side->old_n == side->old_size) return NULL;
    wr_slot *row = wr_superblock_slot(c->a.port.super, slot);
    int shmid = row->shmid;
    void *base = shmid >= 0 ? shmat(shmid, NULL, SHM_RDONLY) : (void *)-1;
    if (base == (void *)-1) {
        if (shmid >= 0 && (errno == ENOMEM || errno == ENFILE || errno == EMFILE)) side->view_error = errno;
        return NULL;
    }
    uint64_t claim = atomic_load_explicit(&row->claim, memory_order_acquire);
    struct shmid_ds status;
    const wr_geometry g = wr_geometry_without_slots(c->a.port.super);
    wr_other *fresh = NULL;
    if (((claim >> 8) & 0xffffff) == generation && row->shmid == shmid && !shmctl(shmid, IPC_STAT, &status) &&
        (fresh = malloc(sizeof *fresh)) && !wr_view_init(&fresh->view, base, status.shm_segsz, &g)) {
        fresh->base = base;
        fresh->generation = generation;
        if (other) side->old[side->old_n++] = other;
        side->others[slot] = fresh;
        return &fresh->view;
    }
    free(fresh);
    shmdt(base);
    return NULL;
}

static void detach(wr_other *other) {
    shmdt(other->base);
    free(other);
}

/* Detach what has another owner now. */
static void tidy(ClientObject *c) {
    struct wr_store_side *side = c->store;
    for (int i = 0; i < 2; i++) wr_store_client_purge(&side->stores[i]);
    uint64_t version = atomic_load_explicit(&c->a.port.super->slots_version, memory_order_acquire);
    if (version == side->slots_seen && !side->old_n) return;
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
}

static void forget_regions(struct wr_store_side *side, int i) {
    drop_buffer(&side->directory[i]);
    drop_buffer(&side->summary[i]);
    drop_buffer(&side->images[i]);
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
    if (!side->no_links || !side->old || pthread_mutex_init(&side->lock, NULL)) {
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
    for (int i = 0; i < 2; i++) {
        forget_regions(side, i);
        wr_store_client_close(&side->stores[i]);
        wr_removals_close(&side->removals[i]);
    }
    while (side->old_n) detach(side->old[--side->old_n]);
    for (uint32_t slot = 0; slot < WR_CLIENT_SLOTS; slot++)
        if (side->others[slot]) detach(side->others[slot]);
    wr_masked_free(c);
    free(side->no_links);
    free(side->old);
    free(side);
    c->store = NULL;
}

/* set_store(store, directory, summary, images, folder, epoch): regions of this incarnation. */
PyObject *wr_store_set(PyObject *op, PyObject *const *args, Py_ssize_t given) {
    ClientObject *c = (ClientObject *)op;
    WR_ARGUMENTS(6, "store, directory, summary, images, folder, epoch");
    if (wr_enter(c)) return NULL;
    long i = PyLong_AsLong(args[0]), folder = PyLong_AsLong(args[4]);
    uint64_t epoch = PyLong_AsUnsignedLongLong(args[5]);
    if (PyErr_Occurred()) return NULL;
    if (i < 0 || i > 1) return PyErr_Format(PyExc_ValueError, "a store is 0 (persistent) or 1 (transient), not %ld", i);
    Py_buffer fresh[3] = {{.obj = NULL}, {.obj = NULL}, {.obj = NULL}};
    for (int k = 0; k < 3; k++)
        if (PyObject_GetBuffer(args[1 + k], &fresh[k], k ? PyBUF_SIMPLE : PyBUF_WRITABLE)) goto failed;
    struct wr_store_side *side = c->store;
    wr_store_client *s = &side->stores[i];
    if ((uint64_t)fresh[0].len < 8ull * s->directory_rows ||
        (uint64_t)fresh[1].len < sizeof(wr_summary_row) * (uint64_t)s->summary_rows ||
        (uint64_t)fresh[2].len < WR_PAGE_BYTES + s->images_n * s->file_bytes) {
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
    side->summary[i] = fresh[1];
    side->images[i] = fresh[2];
    side->epoch[i] = epoch;
    wr_store_client_close(s);
    s->epoch = epoch;
    s->rows_known = true;
    s->rows_from = c->a.port.prepared[i];
    wr_store_client *both[2] = {s, &side->readers[i]};
    for (int k = 0; k < 2; k++) {
        both[k]->directory = fresh[0].buf;
        both[k]->summary = fresh[1].buf;
        both[k]->images = fresh[2].buf;
    }
    side->readers[i].directory_fd = (int)folder;
    pthread_mutex_unlock(&side->lock);
    Py_RETURN_NONE;
failed:
    for (int k = 0; k < 3; k++) drop_buffer(&fresh[k]);
    return NULL;
}

static int current_slow(ClientObject *c, int i, uint64_t deadline) {
    struct wr_store_side *side = c->store;
    wr_server *row = wr_superblock_server(c->a.port.super, (uint32_t)i);
    deadline = wr_by_when(c, deadline);
    for (;;) {
        uint64_t epoch = atomic_load_explicit(&row->epoch, memory_order_acquire);
        if (side->stores[i].directory && epoch == side->epoch[i]) return 0;
        if (wr_hook(c, WR_HOOK_EPOCH, (uint32_t)i, "")) return -1;
        if (side->stores[i].directory) return 0; /* the old ones, while there are no others */
        wr_condition condition = {&row->epoch, epoch, (uint32_t)i};
        if (epoch && wr_nap(c, 10 * NAP_NS)) return -1;
        if (!epoch && wr_wait_or_raise(c, &condition, deadline, WR_FOR_REPLY, "the store to come up")) return -1;
        if (deadline && wr_now_ns() >= deadline) {
            if (wr_hook(c, WR_HOOK_TIMED_OUT, (uint32_t)i, "the store to come up")) return -1;
            return wr_raise("TimedOut", "the store did not come up in time");
        }
    }
}

int wr_face_current(ClientObject *c, int i, uint64_t deadline) {
    const struct wr_store_side *side = c->store;
    const wr_server *row = wr_superblock_server(c->a.port.super, (uint32_t)i);
    if (side->stores[i].directory && atomic_load_explicit(&row->epoch, memory_order_acquire) == side->epoch[i]) return 0;
    return current_slow(c, i, deadline);
}

/* ---- writing ---- */

/* What a command that got EAGAIN waits for: room in the ring, else in the arena, else (a bucket of the directory is
 * full) a moment. */
static int wait_for_room(ClientObject *c, int i, uint64_t deadline) {
    wr_condition blocked;
    int error = wr_attachment_room(&c->a, (uint32_t)i, &blocked);
    wr_port *port = &c->a.port;
    if (!error && port->uses_first != port->uses_next) {
        const wr_blob_use *oldest = &port->uses[port->uses_first & (port->uses_size - 1)];
        blocked = (wr_condition){&wr_attachment_link(&c->a, oldest->server)->head, oldest->sequence, oldest->server};
        error = EAGAIN;
    } else if (!error) {
        port->arena_freed = port->arena_next; /* nothing is in use: what was given out belongs to nobody */
        if (deadline && wr_now_ns() >= deadline)
            return wr_raise("LimitError", "the directory has no room for this id: raise the setting directory_rows");
        wr_port_submit(port, (uint32_t)i);
        return wr_nap(c, NAP_NS);
    }
    return wr_blocked(c, error, &blocked, deadline, "room for the message");
}

/* One body into the arena and one record into the ring; EAGAIN and the like as store/client.h says. */
static int prepare_one(ClientObject *c, int i, const uint8_t id[16], const void *bytes, uint64_t length, int level, uint64_t *sequence) {
    wr_port *port = &c->a.port;
    uint64_t position;
    uint8_t *at;
    int error = wr_port_alloc(port, length, &position, &at);
    if (error) return error;
    memcpy(at, bytes, length);
    error = wr_store_client_write(&c->store->stores[i], id, position, (uint32_t)length, 0, 0, wr_flags_of(level), sequence);
    if (error) {
        port->arena_next = position;
        return error;
    }
    error = wr_port_use(port, (uint32_t)i, *sequence);
    if (error) wr_store_client_abandon(&c->store->stores[i], *sequence);
    return error;
}

/* After a failed preparation: wait and return 0 to try again, or -1 with an exception. */
static int try_again(ClientObject *c, int i, int error, uint64_t deadline) {
    if (error == EAGAIN) return wait_for_room(c, i, deadline) || wr_alarm_gate(c, deadline, NULL) || wr_face_current(c, i, deadline) ? -1 : 0;
    wr_condition blocked = {NULL, 0, (uint32_t)i};
    wr_blocked(c, error, &blocked, deadline, "the message");
    return -1;
}

int wr_face_write_one(ClientObject *c, int i, const uint8_t id[16], PyObject *object, int level, uint64_t deadline, uint64_t *sequence) {
    wr_body body;
    if (wr_shared_body_take(c, object, 0, &body)) return -1;
    int error;
    while ((error = prepare_one(c, i, id, body.bytes, (uint64_t)body.length, level, sequence))) {
        deadline = wr_by_when(c, deadline);
        if (try_again(c, i, error, deadline)) break;
    }
    wr_body_drop(&body);
    if (error) return -1;
    wr_store_client_prefetch_write(&c->store->stores[i], id);
    c->submitted[i][level] = *sequence + 1;
    return 0;
}

/* ---- many ids ---- */

int wr_ids_take(PyObject *object, wr_ids *ids) {
    *ids = (wr_ids){.flat = NULL};
    if (PyList_Check(object) || PyTuple_Check(object)) {
        ids->list = Py_NewRef(object);
    } else if (PyObject_CheckBuffer(object)) {
        if (PyObject_GetBuffer(object, &ids->buffer, PyBUF_SIMPLE)) return -1;
        if (ids->buffer.len % 16) {
            wr_raise("UsageError", "%zd bytes are no whole number of message ids, which have 16 bytes each", ids->buffer.len);
            PyBuffer_Release(&ids->buffer);
            ids->buffer.obj = NULL;
            return -1;
        }
        ids->flat = ids->buffer.buf;
        return 0;
    } else if (!(ids->list = wr_listed(object, "ids"))) {
        return -1;
    }
    return 0;
}

void wr_ids_drop(wr_ids *ids) {
    if (ids->buffer.obj) PyBuffer_Release(&ids->buffer);
    Py_XDECREF(ids->list);
}

/* How many ids from `at` on count up, at most `most`; 0 with an exception. first gets the first of them. */
static uint32_t run_of(const wr_ids *ids, Py_ssize_t at, uint32_t most, uint8_t first[16]) {
    const uint8_t *id;
    if (wr_ids_get(ids, at, &id)) return 0;
    memcpy(first, id, 16);
    uint64_t prefix, next = wr_id_counter(id);
    memcpy(&prefix, id, 8);
    if (next > UINT64_MAX - most) return 1;
    uint32_t n = 1;
    for (; n < most; n++) {
        uint64_t same;
        if (wr_ids_get(ids, at + n, &id)) return 0;
        memcpy(&same, id, 8);
        if (same != prefix || wr_id_counter(id) != ++next) break;
    }
    return n;
}

typedef struct {
    uint32_t n, held_n;
    wr_store_body bodies[WR_BATCH_MESSAGES];
    Py_buffer *held; /* of bodies that are no bytes objects */
} wr_bodies_of_batch;

static void drop_bodies(wr_bodies_of_batch *b) {
    for (uint32_t k = 0; k < b->held_n; k++) PyBuffer_Release(&b->held[k]);
    b->held_n = 0;
}

/* The bodies of a batch, borrowed: good until the GIL is let go. Ends early when the batch is full. -1 with an
 * exception. */
static int bodies_from(ClientObject *c, PyObject *list, Py_ssize_t at, uint32_t most, wr_bodies_of_batch *b) {
    uint64_t bytes = 0;
    for (b->n = 0; b->n < most && bytes <= WR_BATCH_BYTES; b->n++) {
        PyObject *object = PySequence_Fast_GET_ITEM(list, at + b->n);
        if (!PyBytes_CheckExact(object) && !PyTuple_CheckExact(list))
            return wr_raise("UsageError", "the list of bodies was changed during the call: give each call a list of its own"); /* taking it may run code that changes a list again */
        wr_store_body *body = &b->bodies[b->n];
        if (PyBytes_CheckExact(object) && (uint64_t)PyBytes_GET_SIZE(object) <= c->a.shared_bytes_max) {
            *body = (wr_store_body){PyBytes_AS_STRING(object), (uint32_t)PyBytes_GET_SIZE(object)};
        } else {
            wr_body other;
            if (!b->held && !(b->held = PyMem_Malloc(WR_BATCH_MESSAGES * sizeof *b->held))) {
                PyErr_NoMemory();
                return -1;
            }
            if (wr_shared_body_take(c, object, 0, &other)) return -1;
            if (other.buffer.obj) b->held[b->held_n++] = other.buffer;
            *body = (wr_store_body){other.bytes, (uint32_t)other.length};
        }
        bytes += body->length;
    }
    return 0;
}

/* The next messages from `at` on: a batch, or one. Returns how many were prepared, 0 to try again, -1 with an
 * exception. */
static Py_ssize_t write_next(ClientObject *c, int i, const wr_ids *ids, PyObject *bodies, Py_ssize_t at, int level, uint64_t deadline,
                             wr_bodies_of_batch *b, uint64_t *sequence) {
    Py_ssize_t n = wr_ids_n(ids);
    if (n > PySequence_Fast_GET_SIZE(bodies)) n = PySequence_Fast_GET_SIZE(bodies);
    if (at >= n) return wr_raise("UsageError", "the list of ids or of bodies was changed during the call: give each call a list of its own");
    uint8_t first[16];
    uint32_t run = run_of(ids, at, n - at < WR_BATCH_MESSAGES ? (uint32_t)(n - at) : WR_BATCH_MESSAGES, first);
    if (!run || bodies_from(c, bodies, at, run, b)) {
        drop_bodies(b);
        return -1;
    }
    run = wr_store_batch_cut(b->bodies, b->n);
    int error = run > 1 ? wr_store_client_write_many(&c->store->stores[i], first, b->bodies, run, wr_flags_of(level), sequence)
                        : prepare_one(c, i, first, b->bodies[0].bytes, b->bodies[0].length, level, sequence);
    drop_bodies(b);
    if (error) return try_again(c, i, error, deadline);
    c->submitted[i][level] = *sequence + 1;
    if (run > 1) wr_port_submit(&c->a.port, (uint32_t)i);
    return run;
}

PyObject *wr_face_write_many(ClientObject *c, int i, const wr_ids *ids, PyObject *bodies, int level, uint64_t deadline, bool wait) {
    Py_ssize_t n = wr_ids_n(ids), done = 0;
    if (n != PySequence_Fast_GET_SIZE(bodies)) {
        wr_raise("UsageError", "%zd ids for %zd bodies", n, PySequence_Fast_GET_SIZE(bodies));
        return NULL;
    }
    /* All are looked at before the first is sent: a wrong one refuses them all. */
    for (Py_ssize_t k = 0; k < n; k++) {
        const uint8_t *id;
        wr_body body;
        PyObject *object = PySequence_Fast_GET_ITEM(bodies, k);
        if (wr_ids_get(ids, k, &id)) return NULL;
        if (PyBytes_CheckExact(object) && (uint64_t)PyBytes_GET_SIZE(object) <= c->a.shared_bytes_max) continue;
        if (!PyTuple_CheckExact(bodies)) { /* asking an object for its buffer may run code that changes a list: take one of our own */
            PyObject *own = PySequence_Tuple(bodies), *answer = own ? wr_face_write_many(c, i, ids, own, level, deadline, wait) : NULL;
            Py_XDECREF(own);
            return answer;
        }
        if (wr_shared_body_take(c, object, 0, &body)) return NULL;
        wr_body_drop(&body);
    }
    wr_bodies_of_batch *b = PyMem_Malloc(sizeof *b);
    if (!b) return PyErr_NoMemory();
    b->held = NULL;
    b->held_n = 0;
    uint64_t sequence = 0, first = 0, calls = 0;
    uint64_t by_when = deadline;
    while (done < n) {
        Py_ssize_t some = write_next(c, i, ids, bodies, done, level, by_when, b, &sequence);
        if (some < 0) break;
        by_when = some ? deadline : wr_by_when(c, by_when);
        if (!done) first = sequence;
        done += some;
        if (some == 1 && ++calls % SUBMIT_EVERY == 0) wr_port_submit(&c->a.port, (uint32_t)i);
    }
    PyMem_Free(b->held);
    PyMem_Free(b);
    if (c->open && !c->ended) wr_port_submit(&c->a.port, (uint32_t)i);
    if (done < n) {
        if (done) wr_lost_in_the_middle();
        return NULL;
    }
    if (!n) return wait ? Py_NewRef(Py_None) : wr_confirm_none(c, level);
    return wr_face_confirmed(c, i, first, sequence, level, deadline, wait);
}

/* ---- removing, asking ---- */

PyObject *wr_face_remove(ClientObject *c, int i, const wr_ids *ids, uint64_t deadline) {
    Py_ssize_t n = wr_ids_n(ids), done = 0;
    wr_removals *removals = &c->store->removals[i];
    if (wr_removals_open(removals)) return PyErr_NoMemory();
    uint8_t(*copy)[16] = PyMem_Malloc(n ? (size_t)n * 16 : 16);
    if (!copy) return PyErr_NoMemory();
    unsigned long long eliminated = 0;
    bool failed = false;
    for (Py_ssize_t k = 0; k < n && !failed; k++) {
        const uint8_t *id;
        failed = wr_ids_get(ids, k, &id);
        if (!failed) memcpy(copy[k], id, 16);
    }
    while (!failed && done < n) {
        uint32_t some = n - done < 4096 ? (uint32_t)(n - done) : 4096, gone = 0;
        int error = wr_store_client_remove(&c->store->stores[i], (const uint8_t(*)[16])(copy + done), some, &gone);
        if (error) {
            deadline = wr_by_when(c, deadline);
            failed = try_again(c, i, error, deadline) != 0;
            continue;
        }
        if (gone < some) wr_removals_note(removals, (const uint8_t(*)[16])(copy + done), some, c->a.port.prepared[i]);
        wr_port_submit(&c->a.port, (uint32_t)i);
        done += some;
        eliminated += gone;
    }
    PyMem_Free(copy);
    if (failed && done) wr_lost_in_the_middle();
    return failed ? NULL : PyLong_FromUnsignedLongLong(eliminated);
}

int wr_face_ask(ClientObject *c, int i, uint8_t op, const uint8_t *id, uint64_t deadline, uint32_t *result) {
    uint64_t sequence;
    wr_condition blocked;
    uint32_t server = (uint32_t)i;
    for (;;) {
        int error = wr_attachment_command(&c->a, server, op, 0, 0, 0, id, &sequence, &blocked);
        if (error) {
            if (wr_blocked(c, error, &blocked, deadline, "room for a question")) return -1;
            continue;
        }
        wr_port_submit(&c->a.port, server);
        wr_condition condition = {&wr_attachment_link(&c->a, server)->processed, sequence, server};
        if (wr_wait_or_raise(c, &condition, deadline, WR_FOR_REPLY, "the store's answer")) return -1;
        /* Another thread may have gone once round the ring before we had the GIL again: then ask again. */
        if (c->a.port.prepared[server] - sequence > c->a.port.view.g.ring_records) continue;
        *result = atomic_load_explicit(&wr_view_command(&c->a.port.view, server, sequence)->result, memory_order_acquire);
        return 0;
    }
}

/* ---- the end of a client ---- */

static int store_number(PyObject *argument) {
    long i = PyLong_AsLong(argument);
    if (i == -1 && PyErr_Occurred()) return -1;
    if (i < 0 || i > 1) {
        PyErr_Format(PyExc_ValueError, "a store is 0 (persistent) or 1 (transient), not %ld", i);
        return -1;
    }
    return (int)i;
}

/* store_dying(store) -> (commands processed, commands submitted): from now on Confirms look whether their writes
 * were masked. */
PyObject *wr_face_dying(PyObject *op, PyObject *argument) {
    ClientObject *c = (ClientObject *)op;
    int i = store_number(argument);
    if (i < 0 || wr_enter(c)) return NULL;
    wr_masked_begin(c);
    wr_link *link = wr_attachment_link(&c->a, (uint32_t)i);
    atomic_store_explicit(&link->dying_until, atomic_load_explicit(&link->tail, memory_order_relaxed), memory_order_release);
    return Py_BuildValue("KK", (unsigned long long)atomic_load_explicit(&link->processed, memory_order_acquire),
                         (unsigned long long)atomic_load_explicit(&link->tail, memory_order_relaxed));
}

/* store_terminate(store, since, timeout): end of a delete_and_terminate; notes which of the commands from `since` on
 * were masked, before the ring comes round. */
PyObject *wr_face_terminate(PyObject *op, PyObject *const *args, Py_ssize_t given) {
    ClientObject *c = (ClientObject *)op;
    uint64_t deadline;
    uint32_t result;
    WR_ARGUMENTS(3, "store, since, timeout");
    int i = store_number(args[0]);
    uint64_t from = i < 0 ? 0 : PyLong_AsUnsignedLongLong(args[1]);
    if (PyErr_Occurred() || wr_enter(c) || wr_deadline(args[2], &deadline)) return NULL;
    if (wr_face_ask(c, i, WR_OP_STORE_TERMINATE, NULL, deadline, &result)) return NULL;
    int64_t n = wr_masked_note(c, i, from, c->a.port.prepared[i]);
    return n < 0 ? NULL : PyLong_FromLongLong(n);
}

/* ---- reading ---- */

/* Take what is not in memory, without the GIL. 0 or as wr_store_client_take; -1 with an exception. */
static int take_waiting(ClientObject *c, int i, const uint8_t id[16], const wr_store_place *place, void *meta, void *to) {
    struct wr_store_side *side = c->store;
    wr_store_client *reader = &side->readers[i];
    c->busy++;
    int error;
    Py_BEGIN_ALLOW_THREADS
    pthread_mutex_lock(&side->lock);
    error = wr_store_client_take(reader, id, place, meta, to, true);
    Py_END_ALLOW_THREADS
    if (!error && !side->stores[i].no_nowait) wr_store_client_move_file(reader, &side->stores[i], place->entry.file);
    pthread_mutex_unlock(&side->lock);
    c->busy--;
    if (!c->ended) return error;
    wr_left(c);
    return wr_enter_slow(c);
}

/* The index or a region is being replaced, or its server is gone and left something half done. 0: look again; -1
 * with an exception. */
static int wait_for_index(ClientObject *c, int i, int attempt) {
    if (!attempt) return 0;
    if (attempt < TRIES) return wr_nap(c, NAP_NS << attempt);
    if (attempt >= TRIES + TRIES_LONG)
        return wr_raise("PeerLost", "no server of the store has come up for half a minute: `warren status` and log/store.log of the node say why; then try again");
    wr_server *row = wr_superblock_server(c->a.port.super, (uint32_t)i);
    wr_condition condition = {&row->epoch, c->store->epoch[i], (uint32_t)i};
    return wr_wait(c, &condition, wr_now_ns() + TRY_NS, WR_FOR_REPLY) < 0 ? -1 : 0;
}

int wr_store_fetch(ClientObject *c, int i, const uint8_t id[16], PyObject **body, PyObject **meta) {
    struct wr_store_side *side = c->store;
    wr_store_place place, before = {.in_file = false};
    for (int attempt = 0, moved = 0, missing = 0;; attempt++) {
        if (wr_face_current(c, i, 0)) return -1;
        tidy(c);
        side->view_error = 0;
        int error = wr_store_client_find(&side->stores[i], id, &place);
        if (error == ENXIO && missing++ < TRIES) { /* its writer's region is not there: perhaps the index is about to have it */
            if (missing > 1 && wr_nap(c, NAP_NS << missing)) return -1;
            continue;
        }
        if (error == ENXIO) return side->view_error ? side->view_error : ENOENT;
        if (error == ESTALE) {
            if (wait_for_index(c, i, attempt)) return -1;
            continue;
        }
        if (error) return error;
        PyObject *payload, *metadata;
        if (wr_parts_new(place.length - place.meta_length, meta ? place.meta_length : 0, &payload, &metadata)) return -1;
        void *to = PyBytes_AS_STRING(payload), *meta_to = metadata ? PyBytes_AS_STRING(metadata) : NULL;
        error = wr_store_client_take(&side->stores[i], id, &place, meta_to, to, false);
        if (error == EINPROGRESS) error = take_waiting(c, i, id, &place, meta_to, to);
        if (!error) {
            *body = payload;
            if (meta) *meta = metadata;
            return 0;
        }
        Py_DECREF(payload);
        Py_XDECREF(metadata);
        if (error == EBADF) error = ENOENT; /* the folder was not there, or is another one now */
        if (error != EAGAIN && error != ENOENT && error != EBADMSG && error != EUCLEAN) return error;
        if (error != EAGAIN && wr_store_same_place(&place, &before)) {
            if (!wr_store_client_left_behind(&side->stores[i])) return error == EBADMSG ? EBADMSG : EUCLEAN;
            if (wait_for_index(c, i, attempt)) return -1; /* the file went with a server that died: the next one knows better */
            continue;
        }
        if (++moved > TRIES && wr_nap(c, NAP_NS)) return -1;
        before = place;
    }
}

bool wr_store_where(ClientObject *c, int i, const uint8_t id[16], uint32_t *file, uint64_t *offset) {
    wr_store_place place;
    if (wr_store_client_find(&c->store->stores[i], id, &place) || !place.in_file) return false;
    *file = place.entry.file;
    *offset = place.entry.offset;
    return true;
}

/* What this client has removed is not to be found: wait until the server has executed that. 0; -1 with an exception. */
static int removal_done(ClientObject *c, int i, const uint8_t id[16]) {
    struct wr_store_side *side = c->store;
    uint64_t deadline = 0, sequence;
    while (side->removals[i].until && wr_removals_under_way(&side->removals[i], &side->stores[i], id, &sequence)) {
        wr_condition condition = {&wr_attachment_link(&c->a, (uint32_t)i)->processed, sequence, (uint32_t)i};
        if (!deadline) deadline = wr_by_when(c, WR_CALL_DEADLINE);
        if (wr_wait_or_raise(c, &condition, deadline, WR_FOR_REPLY, "the store to remove this message")) return -1;
    }
    return 0;
}

PyObject *wr_face_read(ClientObject *c, int i, const uint8_t id[16]) {
    PyObject *object;
    if (removal_done(c, i, id)) return NULL;
    int error = wr_store_fetch(c, i, id, &object, NULL);
    if (!error) return object;
    if (error < 0) return NULL;
    if (error == ENOENT) Py_RETURN_NONE;
    if (error == EBADMSG || error == EUCLEAN) {
        PyObject *shown = PyBytes_FromStringAndSize((const char *)id, 16), *hex = shown ? PyObject_CallMethod(shown, "hex", NULL) : NULL;
        if (hex) wr_raise("StoreError", "message %U is damaged on disk: run warren check", hex);
        Py_XDECREF(shown);
        Py_XDECREF(hex);
        return NULL;
    }
    wr_raise_errno(error, "cannot read a message of the store");
    return NULL;
}

/* Up to READ_AHEAD messages at once: memory is fetched for all of them before any is copied. What is not at hand
 * stays NULL. */
static int read_ahead(ClientObject *c, int i, const uint8_t (*ids)[16], uint32_t n, PyObject **to) {
    struct wr_store_side *side = c->store;
    wr_store_client *s = &side->stores[i];
    wr_store_place places[READ_AHEAD];
    int errors[READ_AHEAD];
    for (uint32_t k = 0; k < n && side->removals[i].until; k++)
        if (removal_done(c, i, ids[k])) return -1;
    if (wr_face_current(c, i, 0)) return -1;
    tidy(c);
    for (uint32_t k = 0; k < n; k++) wr_store_client_prefetch(s, ids[k]);
    for (uint32_t k = 0; k < n; k++) {
        errors[k] = wr_store_client_find(s, ids[k], &places[k]);
        if (!errors[k]) wr_store_place_prefetch(s, &places[k]);
    }
    for (uint32_t k = 0; k < n; k++) {
        if (errors[k] == ENOENT) to[k] = Py_NewRef(Py_None);
        if (errors[k]) continue;
        PyObject *object = PyBytes_FromStringAndSize(NULL, places[k].length - places[k].meta_length);
        if (!object) return -1;
        if (wr_store_client_take(s, ids[k], &places[k], NULL, PyBytes_AS_STRING(object), false)) Py_DECREF(object);
        else to[k] = object;
    }
    return 0;
}

PyObject *wr_face_read_many(ClientObject *c, int i, const wr_ids *ids) {
    Py_ssize_t n = wr_ids_n(ids);
    PyObject *list = PyList_New(n);
    for (Py_ssize_t at = 0; list && at < n; at += READ_AHEAD) {
        uint8_t some[READ_AHEAD][16];
        uint32_t k = 0;
        PyObject *found[READ_AHEAD] = {NULL};
        for (; k < READ_AHEAD && at + k < n; k++) {
            const uint8_t *id;
            if (wr_ids_get(ids, at + k, &id)) break;
            memcpy(some[k], id, 16);
        }
        bool failed = at + k < n && k < READ_AHEAD;
        if (!failed) failed = read_ahead(c, i, (const uint8_t(*)[16])some, k, found) != 0;
        for (uint32_t m = 0; m < k; m++) {
            if (!failed && !found[m]) failed = !(found[m] = wr_face_read(c, i, some[m]));
            PyList_SET_ITEM(list, at + m, found[m]);
        }
        if (failed) Py_CLEAR(list);
    }
    return list;
}
