/* Large messages as a client writes and reads them. Declared in binding/large.h.
 *
 * Invariants
 *   A message's file is durable in the folders of all its workers before any of them gets the command (a transient one's is there).
 *   The lock of the file is held until the commands are submitted, so its workers do not take it for garbage.
 * Crash points: kernel/large.h. A call that fails takes back the files of those workers whose commands were not prepared. */
#include "binding/large.h"
#include "binding/arguments.h"

#define NO_SPACE_NS 50000000ull /* between two tries */
#define LOOK_NS 1000000000ull   /* is anybody left who could make room? */

/* The folder of a worker's large messages, opened by Python when it is needed first; -1 with an exception. */
static int folder_of(ClientObject *c, uint32_t server) {
    if (c->a.bodies.large_fd[server] < 0 && wr_hook(c, WR_HOOK_LARGE, server, "")) return -1;
    if (wr_enter(c)) return -1;
    if (c->a.bodies.large_fd[server] >= 0) return c->a.bodies.large_fd[server];
    return wr_raise("PeerLost", "the folder of large messages is not there: try again");
}

static int not_in_time(ClientObject *c, const wr_message *m, uint32_t server, int error) {
    if (wr_hook(c, WR_HOOK_TIMED_OUT, server, "publish")) return -1;
    if (error == EWOULDBLOCK) return wr_raise("TimedOut", "publish: the worker holds the file of the message: try again");
    return wr_raise("TimedOut", "publish: there is no room on the disk for a message of %llu bytes", (unsigned long long)m->length + m->meta_length);
}

/* The folders stay open as long as the client is busy, or has the GIL. */
static int write_file(ClientObject *c, int folder, const wr_message *m, int *fd) {
    const wr_large large = {.id = m->id, .meta = m->meta, .body = m->body, .node_id = c->a.bodies.node_id, .length = m->length,
                            .meta_length = m->meta_length};
    const bool sync = m->flags & WR_FLAG_PERSISTENT;
    int error;
    c->busy++;
    Py_BEGIN_ALLOW_THREADS
    error = wr_large_write(folder, &large, sync, fd);
    Py_END_ALLOW_THREADS
    c->busy--;
    return error;
}

static int link_file(ClientObject *c, int from, int to, const wr_message *m) {
    int error;
    c->busy++;
    Py_BEGIN_ALLOW_THREADS
    error = wr_large_link(from, to, m->id, m->flags & WR_FLAG_PERSISTENT);
    Py_END_ALLOW_THREADS
    c->busy--;
    return error;
}

/* After a time without the GIL. */
static int still_open(ClientObject *c) {
    wr_left(c);
    if (c->ended) return wr_enter_slow(c);
    if (PyErr_CheckSignals()) return -1;
    return c->ended ? wr_enter_slow(c) : 0;
}

int wr_draft_make(ClientObject *c, const wr_route *route, const wr_message *message, uint64_t deadline, wr_draft *draft) {
    int folders[WR_WORKERS_MAX];
    const uint32_t server = route->targets[0].server;
    *draft = (wr_draft){.fd = -1, .route = route};
    memcpy(draft->id, message->id, 16);
    for (uint32_t t = 0; t < route->targets_n; t++)
        if ((folders[t] = folder_of(c, route->targets[t].server)) < 0) return -1;
    deadline = wr_by_when(c, deadline);
    for (uint64_t look_at = wr_now_ns() + LOOK_NS;;) {
        int error = write_file(c, folders[0], message, &draft->fd);
        uint32_t there = error ? 0 : 1;
        for (; !error && there < route->targets_n && !c->ended; there++)
            if ((error = link_file(c, folders[0], folders[there], message))) break;
        /* an ended client's folders are open as long as it is busy: what was written is removed with the next look of its worker */
        if (still_open(c)) {
            if (draft->fd >= 0) close(draft->fd);
            for (uint32_t t = 0; t < there && !c->ended; t++) wr_large_unlink(folders[t], message->id);
            draft->fd = -1;
            return -1;
        }
        if (!error) return 0;
        if (draft->fd >= 0) close(draft->fd);
        draft->fd = -1;
        for (uint32_t t = 0; t < there; t++) wr_large_unlink(folders[t], message->id);
        if (error != ENOSPC && error != EDQUOT && error != EWOULDBLOCK) return wr_raise_errno(error, "cannot write the file of a large message");
        const uint64_t now = wr_now_ns();
        if (deadline && now >= deadline) return not_in_time(c, message, server, error);
        if (now >= look_at) {
            if (wr_hook(c, WR_HOOK_CHECK, server, "publish")) return -1;
            look_at = now + LOOK_NS;
        }
        if (wr_nap(c, deadline && deadline - now < NO_SPACE_NS ? deadline - now : NO_SPACE_NS)) return -1;
    }
}

void wr_draft_end(ClientObject *c, wr_draft *draft, uint32_t handed) {
    if (draft->fd < 0) return;
    for (uint32_t t = handed; t < draft->route->targets_n && c->open && !c->ended; t++)
        wr_large_unlink(c->a.bodies.large_fd[draft->route->targets[t].server], draft->id);
    close(draft->fd); /* the lock goes */
    draft->fd = -1;
}

int wr_large_of(ClientObject *c, uint32_t server, const wr_delivery *d, void *meta, void *body, const char **reason) {
    const int folder = folder_of(c, server);
    int error;
    *reason = "place";
    if (folder < 0) return -1;
    c->busy++;
    Py_BEGIN_ALLOW_THREADS
    error = wr_large_read(folder, c->a.bodies.node_id, d->id, d->body_length, d->meta_length, meta, body, reason);
    Py_END_ALLOW_THREADS
    c->busy--;
    wr_left(c);
    return c->ended ? wr_enter_slow(c) : error;
}

/* large_check(folder, node_id, id): all of a large message is read. (length with metadata, length of these, ""), or what is wrong with it
 * as the third. Raises OSError. */
static PyObject *large_check(PyObject *module, PyObject *args) {
    (void)module;
    int folder, error;
    unsigned long long node_id;
    const char *id, *reason;
    Py_ssize_t id_n;
    uint64_t length = 0;
    uint16_t meta_length = 0;
    if (!PyArg_ParseTuple(args, "iKy#", &folder, &node_id, &id, &id_n)) return NULL;
    if (id_n != 16) return PyErr_Format(PyExc_ValueError, "an id is 16 bytes");
    uint8_t own[16];
    memcpy(own, id, 16);
    Py_BEGIN_ALLOW_THREADS
    error = wr_large_check(folder, node_id, own, &length, &meta_length, &reason);
    Py_END_ALLOW_THREADS
    if (error && error != EBADMSG && error != EUCLEAN) {
        errno = error;
        return PyErr_SetFromErrno(PyExc_OSError);
    }
    return Py_BuildValue("KIs", (unsigned long long)length, (unsigned int)meta_length, error ? reason : "");
}

static PyMethodDef functions[] = {
    {"large_check", large_check, METH_VARARGS, "large_check(folder, node_id, id) -> (length, meta_length, what is wrong)"},
    {NULL, NULL, 0, NULL},
};

int wr_bind_large(PyObject *module) { return PyModule_AddFunctions(module, functions); }
