/* The extension module warren.engine._core: what each file of this room registers in it. */
#ifndef WR_BINDING_H
#define WR_BINDING_H
#define PY_SSIZE_T_CLEAN
#include <Python.h>

/* Each returns 0, or -1 with an exception set. */
int wr_bind_kernel(PyObject *module);       /* crc32c, frames, scan, log */
int wr_bind_list(PyObject *module);         /* binding/file_list.c: FileList */
int wr_bind_collect(PyObject *module);      /* binding/copy.c: Collection */
int wr_bind_store(PyObject *module);        /* binding/store_server.c: StoreServer */
int wr_bind_store_client(PyObject *module); /* binding/bare_store_client.c: StoreClient */
int wr_bind_queue(PyObject *module);        /* binding/queue_engine.c: QueueEngine */
int wr_bind_client(PyObject *module);       /* binding/client_type.c: Client */
int wr_bind_publish(PyObject *module);      /* Route */
int wr_bind_large(PyObject *module);        /* binding/large.c: files of large messages */
int wr_bind_confirm(PyObject *module);      /* Confirm */
int wr_bind_sleeper(PyObject *module);      /* wait_any, and what the waiter says to it */
int wr_bind_delivery(PyObject *module);     /* binding/delivery_type.c: Delivery */
int wr_bind_queue_handle(PyObject *module); /* binding/queue_handle_type.c: QueueHandle */
int wr_bind_queue_poll(PyObject *module);   /* the codes of a poll */
int wr_bind_store_type(PyObject *module);   /* binding/store_type.c: StoreFace */
int wr_bind_topic_server(PyObject *module); /* binding/topic_server.c: TopicServer */
int wr_bind_topics(PyObject *module);       /* binding/topics.c: the formats of topics, KeyIndex */
int wr_bind_position(PyObject *module);     /* Position */
int wr_bind_topic_handle(PyObject *module); /* binding/topic_handle.c: TopicHandle */
int wr_bind_memory(PyObject *module);       /* Memory */
int wr_bind_topic_record(PyObject *module); /* Record */
int wr_bind_topic_reader(PyObject *module); /* TopicReader */
int wr_bind_topic_watch(PyObject *module);  /* TopicWatch */
int wr_bind_compacted(PyObject *module);    /* binding/compacted_files.c: files of newest messages */
int wr_bind_log_rows(PyObject *module);     /* binding/topic_log_rows.c: the topics' log as rows and columns */
int wr_bind_topic_check(PyObject *module);  /* binding/topic_check.c: topics' files, examined and made again */
int wr_bind_amqp_values(PyObject *module);  /* AMQP: tables and properties */
int wr_bind_amqp_reader(PyObject *module);  /* AmqpReader */
int wr_bind_amqp_frames(PyObject *module);  /* AMQP: frames that the gateway sends */
int wr_bind_amqp_prepare(PyObject *module); /* AMQP: messages as the engine takes them */
#endif
