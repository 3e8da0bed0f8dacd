/* The bytes of a delivered message: from the worker's memory, from one of its files, or from a store.
 *
 * Invariants
 *   A body is copied once: into the bytes object that the program gets. So are its metadata, into their own.
 *   The GIL is let go where a file is read; the memory is kept by `busy` meanwhile.
 *   What lies in a delivery slot of ours can be asked for: the worker says where it is now.
 */
#include "binding/delivery_body.h"
#include "binding/delivery_type.h"
#include "binding/large.h"
#include "binding/store_side.h"
#include "kernel/delivery.h"

#define FULL_NS 1000000000ull
#define LOCATE_TRIES 6
#define STORE_TRIES 80 /* about 5 s: store and worker were killed, and the worker, or its publisher, is about to send the body again */

/* From memory: true when the bytes were there. */
bool wr_body_from_image(ClientObject *c, uint32_t server, const wr_delivery *d, uint64_t from, void *to, uint64_t bytes) {
    const wr_worker_side *side = &c->a.workers[server];
    const uint8_t *region = wr_delivery_location(d) == WR_LOCATION_JOURNAL             ? side->images
                            : wr_delivery_location(d) == WR_LOCATION_JOURNAL_TRANSIENT ? side->transient_images
                                                                           : NULL;
    return region && wr_image_read(region, c->a.images_n, c->a.file_bytes, d->file, (uint64_t)d->offset + d->blob_offset + from,
                                   to, bytes);
}

int wr_body_from_file(ClientObject *c, uint32_t server, const wr_delivery *d, void *meta, void *to, const char **reason) {
    wr_bodies *bodies = &c->a.bodies;
    int error = EAGAIN;
    if (!pthread_mutex_trylock(&bodies->lock)) {
        error = wr_bodies_read(bodies, server, d, meta, to, true, reason);
        pthread_mutex_unlock(&bodies->lock);
    }
    if (error != EAGAIN) return error;
    c->busy++;
    Py_BEGIN_ALLOW_THREADS
    pthread_mutex_lock(&bodies->lock);
    error = wr_bodies_read(bodies, server, d, meta, to, false, reason);
    pthread_mutex_unlock(&bodies->lock);
    Py_END_ALLOW_THREADS
    c->busy--;
    wr_left(c);
    return error;
}

/* Where is it now? Asks the worker and reads the delivery slot again. 0, ENOENT (we do not hold it any more), -1. */
static int locate(ClientObject *c, uint32_t server, wr_delivery *d, uint32_t slot, uint64_t deadline) {
    uint64_t sequence;
    wr_condition blocked;
    for (;;) {
        int error = wr_attachment_command(&c->a, server, WR_OP_LOCATE, 0, d->queue, d->sequence, NULL, &sequence, &blocked);
        if (!error) break;
        if (wr_blocked(c, error, &blocked, deadline, "room for a question")) return -1;
    }
    wr_port_submit(&c->a.port, server);
    wr_condition condition = {&wr_attachment_link(&c->a, server)->processed, sequence, server};
    if (wr_wait_or_raise(c, &condition, deadline, WR_FOR_REPLY, "the place of a message")) return -1;
    wr_delivery now;
    if (!wr_attachment_slot_read(&c->a, server, slot, &now) || now.queue != d->queue || now.sequence != d->sequence) return ENOENT;
    memcpy((void *)d, (const void *)&now, sizeof now);
    return 0;
}

static bool in_store(const wr_delivery *d) {
    return wr_delivery_location(d) == WR_LOCATION_STORE || wr_delivery_location(d) == WR_LOCATION_STORE_TRANSIENT;
}

/* The file of a message in the data directory, and the byte at which it lies there. */
static PyObject *path_of(HandleObject *h, const wr_delivery *d, uint64_t *offset) {
    const uint32_t location = wr_delivery_location(d), worker = h->server - WR_SERVER_WORKER_FIRST;
    *offset = d->offset;
    if (in_store(d)) {
        const bool transient = location == WR_LOCATION_STORE_TRANSIENT;
        const char *folder = transient ? "store/transient" : "store/persistent";
        uint32_t file;
        if (wr_store_where(h->client, transient, d->id, &file, offset)) return PyUnicode_FromFormat("%s/%u.rdq", folder, file);
        *offset = 0;
        return PyUnicode_FromString(folder);
    }
    if (wr_is_large(location)) {
        char name[WR_LARGE_NAME_BYTES];
        wr_large_name(d->id, name);
        *offset = 0;
        return PyUnicode_FromFormat("queues/worker-%u/large/%s", worker, name);
    }
    const bool segment = location == WR_LOCATION_SEGMENT;
    const char *folder = segment ? "segments" : location == WR_LOCATION_JOURNAL_TRANSIENT ? "transient" : "journal";
    return PyUnicode_FromFormat("queues/worker-%u/%s/%u.%s", worker, folder, d->file, segment ? "dat" : "jnl");
}

/* `lost`: its bytes are not what was written, and it is about to be dropped; else it may be readable again after a
 * start. */
static int corrupt(HandleObject *h, const wr_delivery *d, const char *reason, bool lost) {
    PyObject *module = PyImport_ImportModule("warren.engine.errors"), *bytes = PyBytes_FromStringAndSize((const char *)d->id, 16);
    PyObject *id = bytes ? PyObject_CallMethod(bytes, "hex", NULL) : NULL, *name = id ? PyObject_GetAttrString(h->owner, "name") : NULL;
    PyObject *error = NULL;
    uint64_t offset;
    if (module && name && in_store(d) && !lost)
        error = PyObject_CallMethod(module, "StoreError", "N",
                                    PyUnicode_FromFormat("queue %R: the body of message %U is not in the store: run warren check", name, id));
    else if (module && name) {
        PyObject *path = path_of(h, d, &offset);
        error = PyObject_CallMethod(module, "CorruptRecord", "NKNN", path, (unsigned long long)offset,
                                    PyUnicode_FromFormat("the body of message %U of queue %R", id, name),
                                    PyUnicode_FromFormat(lost ? "bad %s: the message is lost and not delivered again (run warren check)"
                                                              : "bad %s (run warren check)", reason));
    }
    if (error) PyErr_SetObject((PyObject *)Py_TYPE(error), error);
    Py_XDECREF(error);
    Py_XDECREF(name);
    Py_XDECREF(id);
    Py_XDECREF(bytes);
    Py_XDECREF(module);
    return -1;
}

/* The message of a delivery. NULL without an exception: it is not ours any more (or not there any more). `held`: it
 * lies in a delivery slot of ours, so the worker can be asked where it is now; its answer is waited for until the
 * deadline, but a second at least. *lost: with the exception, if its bytes are damaged. */
PyObject *wr_delivery_fetch(HandleObject *h, wr_delivery *d, uint32_t slot, bool held, uint64_t deadline, bool *lost) {
    ClientObject *c = h->client;
    uint32_t server = h->server;
    const char *reason = "place";
    int error = ENOENT;
    /* What is not there may be about to come; bytes that are there and wrong are not. */
    for (int attempt = 0; attempt < (in_store(d) && error == ENOENT ? STORE_TRIES : LOCATE_TRIES); attempt++) {
        error = ENOENT;
        if (wr_delivery_location(d) >= WR_LOCATION_STORE || attempt) h->delays_n++;
        if (wr_delivery_location(d) == WR_LOCATION_STORE || wr_delivery_location(d) == WR_LOCATION_STORE_TRANSIENT) {
            PyObject *body, *meta;
            error = wr_store_fetch(c, wr_delivery_location(d) == WR_LOCATION_STORE_TRANSIENT, d->id, &body, &meta);
            if (error < 0) return NULL;
            if (!error) return wr_delivery_new(h, d, body, meta);
        } else if (wr_is_large(wr_delivery_location(d))) {
            error = d->body_length >= d->meta_length && d->body_length <= WR_MESSAGE_BYTES_MOST ? 0 : EBADMSG;
            PyObject *body, *meta;
            if (!error) {
                if (wr_parts_new(d->body_length - d->meta_length, d->meta_length, &body, &meta)) return NULL;
                error = wr_large_of(c, server, d, meta ? PyBytes_AS_STRING(meta) : NULL, PyBytes_AS_STRING(body), &reason);
                if (!error) return wr_delivery_new(h, d, body, meta);
                Py_DECREF(body);
                Py_XDECREF(meta);
                if (error < 0) return NULL;
            }
        } else if (d->body_length >= d->meta_length && d->body_length <= c->a.shared_bytes_max) {
            uint32_t length = d->body_length - d->meta_length;
            PyObject *body, *meta;
            if (wr_parts_new(length, d->meta_length, &body, &meta)) return NULL;
            if (wr_body_from_image(c, server, d, d->meta_length, PyBytes_AS_STRING(body), length) &&
                (!meta || wr_body_from_image(c, server, d, 0, PyBytes_AS_STRING(meta), d->meta_length)))
                return wr_delivery_new(h, d, body, meta);
            h->delays_n++;
            error = wr_body_from_file(c, server, d, meta ? PyBytes_AS_STRING(meta) : NULL, PyBytes_AS_STRING(body), &reason);
            if (!error) return wr_delivery_new(h, d, body, meta);
            Py_DECREF(body);
            Py_XDECREF(meta);
            if (c->ended) {
                wr_enter_slow(c);
                return NULL;
            }
        }
        if (error != ENOENT && error != EBADMSG && error != EUCLEAN) {
            wr_raise_errno(error, "cannot read the body of a message");
            return NULL;
        }
        if (!held) break;
        uint64_t least = wr_now_ns() + FULL_NS;
        if (locate(c, server, d, slot, !deadline ? WR_CALL_DEADLINE : deadline < least ? least : deadline))
            return NULL; /* an exception, or it is gone */
        if (attempt && wr_nap(c, attempt < 6 ? 1000000ull << attempt : 64000000)) return NULL;
    }
    if (held) {
        *lost = error == EBADMSG; /* the file is there, and is what its first page says */
        corrupt(h, d, in_store(d) ? "crc" : reason, *lost);
    }
    return NULL;
}
