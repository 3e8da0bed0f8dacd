/* Metadata of messages whose key, headers and properties are columns of rows. */
#ifndef WR_BINDING_ROW_METADATA_H
#define WR_BINDING_ROW_METADATA_H
#include "binding/module.h"

/* row_metadata(rows, exchange, routing_key, keys, headers, timestamps, message_ids, ids_are_text, numbers) -> (ends, bytes) */
PyObject *wr_row_metadata(PyObject *module, PyObject *const *args, Py_ssize_t given);
#endif
