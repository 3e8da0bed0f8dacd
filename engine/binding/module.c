/* The extension module warren.engine._core: each part of the core registers its own types and functions. */
#include "binding/module.h"

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, .m_name = "warren.engine._core", .m_doc = "Warren's C core: store, queues, client.", .m_size = -1};

PyMODINIT_FUNC PyInit__core(void) {
    PyObject *module = PyModule_Create(&definition);
    if (!module) return NULL;
    if (wr_bind_kernel(module) || wr_bind_list(module) || wr_bind_collect(module) || wr_bind_store(module) || wr_bind_queue(module) ||
        wr_bind_client(module)) {
        Py_DECREF(module);
        return NULL;
    }
    return module;
}
