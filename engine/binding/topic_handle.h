/* The type TopicHandle: one topic as an attachment appends to it. */
#ifndef WR_BINDING_TOPIC_HANDLE_H
#define WR_BINDING_TOPIC_HANDLE_H
#include "binding/confirm.h"
#include "client/append.h"

typedef struct {
    PyObject_HEAD
    ClientObject *client;
    uint32_t server, topic, queues_n, name_length;
    uint32_t command_bytes; /* records of one command are no more bytes in the log, if there are several */
    uint32_t turn;    /* the queue of the next message without a key */
    uint64_t catalog; /* version that says so */
    PyObject *name;   /* NULL: it was not told */
    uint64_t record_bytes_max; /* the log takes no larger record … */
    PyObject *record_limit;    /* … because of this setting, in words, and what to do; NULL: it was not told */
    uint8_t host[WR_HOST_V4_SIZE];
    bool compacted;            /* each message needs a key */
} TopicHandleObject;

/* How an append is made, and waits. */
typedef struct {
    int level;
    uint64_t deadline;
    bool wait;
    wr_append_kind kind;
} wr_append_how;

/* Does the handle hold? 0, -1 with an exception; AttachmentLost: make another one. */
int wr_topic_current(const TopicHandleObject *h);
/* The same, and is the node up, is no alarm on? Waits. After all that may run code of the program: that could end the client. */
int wr_topic_ready(TopicHandleObject *h, PyObject *level, PyObject *timeout, PyObject *wait, wr_append_how *how);
/* Submit records as one command, when there is room for it. `first`: nothing of the call was handed over before. 0, -1. */
int wr_topic_send(TopicHandleObject *h, uint32_t queue, uint64_t born_ms, const wr_append_record *records, uint32_t n, wr_append_run *run,
                  wr_append_how *how, bool first);
/* The end of a call: a Confirm, or when it is confirmed what it appended. Takes `appended` over. */
PyObject *wr_topic_confirmed(TopicHandleObject *h, wr_appended *appended, const wr_append_how *how);
/* Has it the key that it needs? 0, -1. */
int wr_topic_keyed(const TopicHandleObject *h, bool keyed);
/* The queue that an argument names, 0 … queues - 1; None: false. */
int wr_topic_queue(const TopicHandleObject *h, PyObject *queue, uint32_t *to, bool *given);
/* Bytes of its record in the log, for that queue; 0 with an exception. */
uint32_t wr_topic_record_size(const TopicHandleObject *h, uint32_t properties_length, uint64_t body_length, wr_append_kind kind, uint32_t queue);
static inline uint32_t wr_topic_turn(TopicHandleObject *h) {
    if (h->turn >= h->queues_n) h->turn = 0;
    return h->turn++;
}
#endif
