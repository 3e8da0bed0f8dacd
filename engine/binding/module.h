#ifndef WR_BINDING_H
#define WR_BINDING_H
#define PY_SSIZE_T_CLEAN
#include <Python.h>

/* Each returns 0, or -1 with an exception set. */
int wr_bind_kernel(PyObject *module); /* binding/kernel.c: crc32c, frames, scan, log */
int wr_bind_store(PyObject *module);  /* binding/store_server.c: StoreServer */
int wr_bind_queue(PyObject *module);  /* binding/queue_engine.c: QueueEngine */
int wr_bind_client(PyObject *module); /* binding/client_type.c: Client, Delivery */
int wr_bind_list(PyObject *module);   /* binding/file_list.c: FileList */
int wr_bind_collect(PyObject *module); /* binding/copy.c: Collection */
#endif
