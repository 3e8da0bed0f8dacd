/* Records into the log. Declared in topics/append.h. */
#include "topics/append.h"
#include "kernel/racy.h"
#include "topics/control.h"
#include "topics/halves.h"
#include "topics/intake.h"
#include "topics/later.h"
#include "topics/links.h"
#include "topics/properties.h"
#include "topics/retried.h"
#include "topics/table.h"

/* What `synced` or `written` of a command must cover, although it wrote nothing. */
static void wants(wr_topic_server *s, wr_topic_link *l, uint8_t flags) {
    if (flags & WR_FLAG_SYNCED && (l->dirty || l->unsynced)) s->want_commit = s->want_sync = true;
    else if (flags & WR_FLAG_WRITTEN && l->dirty) s->want_commit = l->written = true;
}

/* Put the records into the ring. False: one of them is none, so there are none. */
static bool encode(wr_topic_server *s, const wr_command *c, const wr_topic *topic, const wr_append_lengths *of, const uint8_t *data, uint8_t *to,
                   uint64_t position, uint64_t offset) {
    const bool again = wr_retried_topic(topic->name, topic->name_length);
    for (uint32_t i = 0; i < of->n; i++) {
        const wr_append_part *part = &of->parts[i];
        wr_record_head head = {.queue_id = c->row, .flag = topic->id, .queue_offset = offset + i, .physical_offset = position,
                               .born_timestamp = c->tag, .store_timestamp = s->store_ms};
        if (again) head.reconsume_times = wr_retried_times_racy(data, part->properties_length);
        memcpy(head.born_host, s->host, sizeof s->host);
        memcpy(head.store_host, s->host, sizeof s->host);
        const struct iovec body = {(void *)(uintptr_t)(data + part->properties_length + of->skip), part->body_length};
        if (wr_record_encode(to, of->sizes[i], &head, topic->name, topic->name_length, data, part->properties_length, &body, 1) != WR_RECORD_GOOD)
            return false;
        data += (uint64_t)part->properties_length + part->body_length;
        to += of->sizes[i];
        position += of->sizes[i];
    }
    return true;
}

/* Does a reader sleep until something comes to the topic? Then it is written at once, whatever its producer asked for. A reader that falls
 * asleep after this look waits as long as records wait for others. */
static inline bool is_awaited(const wr_topic_queue *queue) {
    return queue->wake && atomic_load_explicit(&queue->wake->waiters, memory_order_relaxed);
}

/* Does each of them have a key? As far as one look can say: what its producer changes afterwards stays in the log, as it is. */
static bool have_keys(const wr_append_lengths *of, const uint8_t *data) {
    static _Thread_local uint8_t properties[WR_PROPERTIES_BYTES_MAX];
    for (uint32_t i = 0; i < of->n; i++) {
        wr_known_properties known;
        wr_copy_racy(properties, data, of->parts[i].properties_length);
        wr_properties_known(properties, of->parts[i].properties_length, &known);
        if (!known.keys.n) return false;
        data += (uint64_t)of->parts[i].properties_length + of->skip + of->parts[i].body_length;
    }
    return true;
}

static wr_topic_outcome append(wr_topic_server *s, wr_topic_link *l, const wr_command *c, wr_command *record) {
    wr_topic *topic = wr_topic_find(s, c->queue);
    if (!topic && l->checked != l->next + 1) {
        l->waits = s->unknown = true;
        return WR_TOPIC_WAIT;
    }
    if (!topic || c->row >= topic->queues_n) return wr_append_answer(s, l, record, WR_RESULT_NO); /* deleted meanwhile, or never there */
    const uint8_t *blob = wr_view_blob(&l->view, c->body, c->length), *data;
    static _Thread_local wr_append_lengths of;
    wr_topic_outcome outcome;
    const bool other = c->flags & (WR_FLAG_LATER | WR_FLAG_HALF);
    if (!other || topic->compacted) {
        if (!blob || !wr_append_measure(c, topic->name_length, 0, blob, &of, &data)) return wr_append_evict(s, l, WR_EVICTED_BLOB);
        if (topic->compacted && !have_keys(&of, data)) return wr_append_evict(s, l, WR_EVICTED_BLOB); /* its library refuses it */
    }
    if (c->flags & WR_FLAG_LATER) return wr_later_append(s, l, c, record, topic);
    if (other) return wr_half_append(s, l, c, record, topic);
    uint64_t position, offset = topic->queues[c->row].next;
    uint8_t *to = wr_append_reserve(s, l, record, of.bytes, &position, &outcome);
    if (!to) return outcome;
    if (!encode(s, c, topic, &of, data, to, position, offset)) return wr_append_evict(s, l, WR_EVICTED_BLOB);
    const wr_topic_batch batch = {.topic = topic, .queue = c->row, .n = of.n, .offset = offset, .position = position, .store_ms = s->store_ms,
                                  .bytes = to, .sizes = of.sizes, .parts = of.parts};
    if (!wr_append_put(s, &batch, of.bytes)) return WR_TOPIC_WAIT;
    s->awaited |= is_awaited(topic->queues + c->row);
    s->want_commit |= s->awaited;
    return wr_append_accepted(s, l, c, record, offset, position);
}

wr_topic_outcome wr_topic_execute(wr_topic_server *s, wr_topic_link *l, const wr_command *c, wr_command *record) {
    switch (c->op) {
    case WR_OP_APPEND:
    case WR_OP_APPEND_MANY:
        /* A server that is dead has appended it, and answered before it sealed. */
        if (l->next < l->high) return WR_TOPIC_DONE;
        return append(s, l, c, record);
    case WR_OP_BARRIER:
        wants(s, l, c->flags);
        return wr_append_answer(s, l, record, WR_RESULT_OK);
    case WR_OP_CONTROL:
        return wr_topic_control(s, l, c, record) ? WR_TOPIC_DONE : WR_TOPIC_WAIT;
    default:
        return wr_append_evict(s, l, WR_EVICTED_OPERATION);
    }
}
