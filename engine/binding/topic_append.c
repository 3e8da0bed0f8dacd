/* Appending to a topic: what one message and many have in common. Declared in binding/topic_handle.h. */
#include "binding/topic_handle.h"
#include "topics/half_record.h"
#include "topics/record.h"
#include "topics/scheduled.h"

int wr_topic_current(const TopicHandleObject *h) {
    const ClientObject *c = h->client;
    if (wr_enter(h->client)) return -1;
    if (h->catalog == c->catalog_seen && !wr_catalog_is_old(c)) return 0;
    PyErr_SetString(wr_module.attachment_lost, "the catalog has changed: look for the topic again");
    return -1;
}

int wr_topic_ready(TopicHandleObject *h, PyObject *level, PyObject *timeout, PyObject *wait, wr_append_how *how) {
    ClientObject *c = h->client;
    if (wr_flag(wait, "wait", &how->wait) || wr_topic_current(h) || wr_level_of(level, &how->level)) return -1;
    if (wr_deadline_of_call(timeout, how->wait, &how->deadline) || wr_topics_gate(c, how->deadline)) return -1;
    wr_superblock *super = c->a.port.super;
    if (__builtin_expect(!(atomic_load_explicit(&super->alarms, memory_order_relaxed) & WR_ALARM_SERVER_FAILED), 1)) return 0;
    if (atomic_load_explicit(&wr_superblock_server(super, h->server)->state, memory_order_acquire) != WR_SERVER_FAILED) return 0;
    return wr_hook(c, WR_HOOK_FAILED, h->server, "publish");
}

int wr_topic_send(TopicHandleObject *h, uint32_t queue, uint64_t born_ms, const wr_append_record *records, uint32_t n, wr_append_run *run,
                  wr_append_how *how, bool first) {
    ClientObject *c = h->client;
    const wr_append to = {.server = h->server, .topic = h->topic, .queue = queue, .born_ms = born_ms, .level = how->level, .kind = how->kind};
    wr_made_from made = {c, h->catalog}, *begins = first ? &made : NULL;
    wr_condition blocked = {NULL, 0, h->server};
    for (;;) {
        int error = wr_attachment_append(&c->a, &to, records, n, &run->answer, &run->sequence, &blocked);
        if (!error) break;
        how->deadline = wr_by_when(c, how->deadline);
        if (wr_blocked_while(c, error, &blocked, how->deadline, "room for the message", begins) || wr_topics_alarm_gate(c, how->deadline, begins)) {
            wr_note_deadline(how->deadline);
            if (!first) wr_lost_in_the_middle();
            return -1;
        }
    }
    run->sent = true;
    c->submitted[h->server][how->level] = run->sequence + 1;
    wr_port_submit(&c->a.port, h->server);
    return 0;
}

PyObject *wr_topic_confirmed(TopicHandleObject *h, wr_appended *appended, const wr_append_how *how) {
    ClientObject *c = h->client;
    appended->topic = Py_XNewRef(h->name);
    if (!how->wait) return wr_confirm_appended(c, how->level, appended);
    PyObject *value = NULL;
    if (appended->runs_n) {
        uint64_t last = appended->runs[appended->runs_n - 1].sequence;
        wr_condition condition = {wr_link_horizon(wr_attachment_link(&c->a, h->server), how->level), last, h->server};
        if (wr_wait_or_raise(c, &condition, how->deadline, WR_FOR_CONFIRM, WR_THE_CONFIRM)) {
            if (!PyErr_ExceptionMatches(wr_module.attachment_lost)) {
                wr_appended_free(c, appended);
                return NULL;
            }
            PyErr_Clear();
            PyObject *confirm = wr_confirm_appended(c, how->level, appended); /* which outlives the attachment, and says what is known */
            value = confirm ? PyObject_CallMethod(confirm, "result", NULL) : NULL;
            Py_XDECREF(confirm);
            return value;
        }
    }
    if (!wr_appended_check(c, appended)) value = wr_appended_value(appended);
    wr_appended_free(c, appended);
    return value;
}

int wr_topic_keyed(const TopicHandleObject *h, bool keyed) {
    if (keyed || !h->compacted) return 0;
    return wr_raise("UsageError", "topic %R is compacted, which keeps the newest message of each key: give each message a key", h->name ? h->name : Py_None);
}

int wr_topic_queue(const TopicHandleObject *h, PyObject *queue, uint32_t *to, bool *given) {
    *given = queue != Py_None;
    if (!*given) return 0;
    PyObject *index = PyBool_Check(queue) ? NULL : PyNumber_Index(queue);
    if (!index && PyErr_Occurred() && !PyErr_ExceptionMatches(PyExc_TypeError)) return -1;
    PyErr_Clear();
    int overflow;
    long long number = index ? PyLong_AsLongLongAndOverflow(index, &overflow) : -1;
    Py_XDECREF(index);
    if (number < 0 || number >= h->queues_n)
        return wr_raise_given("UsageError", queue, "queue must be None or a number from 0 to %u", h->queues_n - 1);
    *to = (uint32_t)number;
    return 0;
}

uint32_t wr_topic_record_size(const TopicHandleObject *h, uint32_t properties_length, uint64_t body_length, wr_append_kind kind, uint32_t queue) {
    wr_record_reason reason;
    uint32_t more = 0, topic_n = h->name_length;
    if (kind == WR_APPEND_LATER) more = wr_scheduled_more(h->name_length, queue), topic_n = WR_SCHEDULED_TOPIC_BYTES;
    if (kind == WR_APPEND_HALF) more = wr_half_more(h->name_length, queue), topic_n = WR_HALF_TOPIC_BYTES;
    uint32_t size = wr_record_size(0, topic_n, (uint64_t)properties_length + more, body_length, &reason);
    if (!size && reason == WR_RECORD_PROPERTIES_LENGTH)
        wr_raise("MessageTooLarge", "keys, tag and properties of a message that %s have %u bytes at most: put more into the body",
                 kind == WR_APPEND_HALF ? "is prepared" : "comes later", WR_PROPERTIES_BYTES_MAX - more);
    else if (!size) wr_raise("MessageTooLarge", "a message of a topic has %d bytes at most with what is told of it: split it", WR_RECORD_BYTES_MAX);
    if (!size || size <= h->record_bytes_max) return size;
    wr_raise("MessageTooLarge", "topic %R: the message takes %u bytes in the log, which takes %llu at most, by the setting %U", h->name, size,
             (unsigned long long)h->record_bytes_max, h->record_limit);
    return 0;
}
