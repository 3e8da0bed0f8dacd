/* The Python type FileList: a wr_list that Python carries between the store, the collector and list files. */
#ifndef WR_BINDING_LIST_H
#define WR_BINDING_LIST_H
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include "store/file_list.h"

/* A FileList that owns `list`; takes the list in any case. NULL with an exception. */
PyObject *wr_file_list_wrap(wr_list *list);
/* The list inside, NULL with TypeError. It lives as long as the object. */
wr_list *wr_file_list_of(PyObject *object);
#endif
