/* The type Memory: bytes that the core allocated, for whoever takes buffers (pyarrow, memoryview), without a copy. */
#ifndef WR_BINDING_MEMORY_H
#define WR_BINDING_MEMORY_H
#include "binding/state.h"

/* n bytes from malloc, which it frees in the end, also when this fails. New reference. */
PyObject *wr_memory_new(void *bytes, Py_ssize_t n);
#endif
