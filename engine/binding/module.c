/* The extension module warren.engine._core: each part of the core registers its own types and functions. */
#include "binding/module.h"

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, .m_name = "warren.engine._core", .m_doc = "Warren's C core: store, queues, client.", .m_size = -1};

PyMODINIT_FUNC PyInit__core(void) {
    PyObject *module = PyModule_Create(&definition);
    if (!module) return NULL;
    int (*const parts[])(PyObject *) = {
        wr_bind_kernel,  wr_bind_list,    wr_bind_collect, wr_bind_store,    wr_bind_store_client, wr_bind_queue,      wr_bind_client,
        wr_bind_publish, wr_bind_confirm, wr_bind_sleeper, wr_bind_delivery, wr_bind_queue_handle, wr_bind_queue_poll, wr_bind_store_type,
        wr_bind_topics,  wr_bind_position, wr_bind_topic_handle,
        wr_bind_memory,  wr_bind_topic_record, wr_bind_topic_reader, wr_bind_topic_watch, wr_bind_compacted, wr_bind_topic_server,
        wr_bind_log_rows, wr_bind_topic_check, wr_bind_large, wr_bind_amqp_values,
        wr_bind_amqp_reader, wr_bind_amqp_frames, wr_bind_amqp_prepare};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        if (!parts[i](module)) continue;
        Py_DECREF(module);
        return NULL;
    }
    return module;
}
