#ifndef WR_BINDING_H
#define WR_BINDING_H
#define PY_SSIZE_T_CLEAN
#include <Python.h>

/* Each returns 0, or -1 with an exception set. */
int wr_bind_kernel(PyObject *module); /* binding_kernel.c: crc32c, frames, scan, log */
int wr_bind_store(PyObject *module);  /* binding_store.c: StoreServer */
int wr_bind_queue(PyObject *module);  /* binding_queue.c: QueueEngine */
int wr_bind_client(PyObject *module); /* binding_client.c: Client, Delivery */
#endif
