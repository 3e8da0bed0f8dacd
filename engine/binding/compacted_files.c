/* Files of the newest messages, looked at by themselves. Declared in binding/compacted_files.h. */
#define _GNU_SOURCE
#include "binding/compacted_files.h"
#include "binding/arguments.h"
#include <fcntl.h>
#include <unistd.h>

wr_compacted *wr_compacted_taken(int fd, const uint8_t *node, uint32_t topic, uint32_t queue) {
    const char *wrong;
    int error = 0;
    wr_compacted *file = NULL;
    const int own = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    if (own < 0) {
        os_error(errno);
        return NULL;
    }
    const wr_compacted_code code = wr_compacted_open(&file, own, node, topic, queue, &wrong, &error);
    if (code == WR_COMPACTED_FOUND) return file;
    close(own);
    if (code == WR_COMPACTED_DAMAGED) raise_errno(EUCLEAN, wrong);
    else if (error == ENOMEM) PyErr_NoMemory();
    else os_error(error);
    return NULL;
}

/* compacted_look(fd, node, topic, queue): what its head and its tables say, as a dict. */
static PyObject *compacted_look(PyObject *module, PyObject *args) {
    (void)module;
    int fd;
    unsigned int topic, queue;
    const char *node;
    Py_ssize_t node_n;
    if (!PyArg_ParseTuple(args, "iy#II:compacted_look", &fd, &node, &node_n, &topic, &queue)) return NULL;
    if (node_n != 16) return PyErr_Format(PyExc_ValueError, "a node is 16 bytes");
    wr_compacted *file = wr_compacted_taken(fd, (const uint8_t *)node, topic, queue);
    if (!file) return NULL;
    const uint64_t oldest = wr_compacted_oldest_tombstone(file);
    PyObject *found = Py_BuildValue("{s:K,s:K,s:K,s:K,s:K,s:K,s:K}", "first", (unsigned long long)wr_compacted_first(file), "end",
                                    (unsigned long long)file->id.end, "made", (unsigned long long)file->id.made, "bytes", (unsigned long long)file->size,
                                    "records", (unsigned long long)file->records_n, "tombstones", (unsigned long long)file->tombstones_n, "oldest",
                                    (unsigned long long)(oldest == UINT64_MAX ? 0 : oldest));
    wr_compacted_close(file);
    return found;
}

static PyMethodDef functions[] = {
    {"compacted_look", compacted_look, METH_VARARGS, "compacted_look(fd, node, topic, queue): what a file of newest messages says of itself."},
    {NULL, NULL, 0, NULL},
};

int wr_bind_compacted(PyObject *module) { return PyModule_AddFunctions(module, functions); }
