/* Records into the log. Declared in topics/append.h. */
#include "topics/append.h"
#include "kernel/racy.h"
#include "topics/control.h"
#include "topics/links.h"
#include "topics/table.h"

/* A batch's lengths, read once. `skip`: bytes between the properties and the body of a record that is alone, which are of who else reads
 * its blob. */
typedef struct {
    uint32_t n;
    uint64_t skip;
    uint64_t bytes; /* of all records */
    wr_append_part parts[WR_APPEND_COUNT_MAX];
    uint32_t sizes[WR_APPEND_COUNT_MAX];
} lengths;

/* What is answered to a command otherwise than "done" its client looks for: it is told that there is something. */
static wr_topic_outcome answer(wr_topic_server *s, wr_topic_link *l, wr_command *record, uint32_t result) {
    if (__builtin_expect(result != WR_RESULT_OK, 0)) {
        wr_link *shared = wr_topic_shared(s, l);
        if (atomic_load_explicit(&shared->unusual_until, memory_order_relaxed) <= l->next)
            atomic_store_explicit(&shared->unusual_until, l->next + 1, memory_order_relaxed);
    }
    atomic_store_explicit(&record->result, result, memory_order_relaxed); /* visible with `processed`, and so is what it says */
    return WR_TOPIC_DONE;
}

static wr_topic_outcome evict(wr_topic_server *s, wr_topic_link *l, uint32_t reason) {
    wr_topic_evict(s, l, reason);
    return WR_TOPIC_WAIT;
}

/* What `synced` or `written` of a command must cover, although it wrote nothing. */
static void wants(wr_topic_server *s, wr_topic_link *l, uint8_t flags) {
    if (flags & WR_FLAG_SYNCED && (l->dirty || l->unsynced)) s->want_commit = s->want_sync = true;
    else if (flags & WR_FLAG_WRITTEN && l->dirty) s->want_commit = l->written = true;
}

/* The lengths of a command's records, and the bytes behind them. False: they do not add up. */
static bool measure(const wr_command *c, const wr_topic *topic, const uint8_t *blob, lengths *to, const uint8_t **data) {
    uint64_t table = 0;
    if (c->op == WR_OP_APPEND) {
        if (c->count > c->length || c->meta_length > c->length - c->count) return false;
        to->n = 1;
        to->skip = c->count;
        to->parts[0] = (wr_append_part){(uint32_t)(c->length - c->meta_length - c->count), c->meta_length};
    } else {
        if (!c->count || c->count > WR_APPEND_COUNT_MAX || c->count * sizeof *to->parts > c->length) return false;
        to->n = (uint32_t)c->count;
        to->skip = 0;
        table = c->count * sizeof *to->parts;
        wr_copy_racy(to->parts, blob, table);
    }
    uint64_t left = c->length - table - to->skip;
    to->bytes = 0;
    for (uint32_t i = 0; i < to->n; i++) {
        const wr_append_part *part = &to->parts[i];
        uint64_t bytes = (uint64_t)part->body_length + part->properties_length;
        wr_record_reason reason;
        if (bytes > left) return false;
        left -= bytes;
        to->sizes[i] = wr_record_size(0, topic->name_length, part->properties_length, part->body_length, &reason);
        if (!to->sizes[i]) return false;
        to->bytes += to->sizes[i];
    }
    *data = blob + table;
    return !left;
}

/* Put the records into the ring. False: one of them is none, so there are none. */
static bool encode(wr_topic_server *s, const wr_command *c, const wr_topic *topic, const lengths *of, const uint8_t *data, uint8_t *to,
                   uint64_t position, uint64_t offset) {
    for (uint32_t i = 0; i < of->n; i++) {
        const wr_append_part *part = &of->parts[i];
        wr_record_head head = {.queue_id = c->row, .flag = topic->id, .queue_offset = offset + i, .physical_offset = position,
                               .born_timestamp = c->tag, .store_timestamp = s->store_ms};
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

/* They are appended, and whoever follows knows of them. False: that one has no room yet. */
static bool put(wr_topic_server *s, const wr_topic_batch *batch, uint64_t bytes) {
    wr_topic_queue *queue = &batch->topic->queues[batch->queue];
    s->crowded = s->follower.records && !s->follower.records(s->follower.context, batch);
    if (s->crowded) return false;
    wr_topic_log_append(s->log, bytes, s->store_ms);
    queue->next += batch->n;
    if (queue->shown) atomic_store_explicit(&queue->shown->appended, queue->next, memory_order_release);
    s->records_n += batch->n;
    return true;
}

/* Does a reader sleep until something comes to the topic? Then it is written at once, whatever its producer asked for. A reader that falls
 * asleep after this look waits as long as records wait for others. */
static inline bool is_awaited(const wr_topic_queue *queue) {
    return queue->wake && atomic_load_explicit(&queue->wake->waiters, memory_order_relaxed);
}

static wr_topic_outcome append(wr_topic_server *s, wr_topic_link *l, const wr_command *c, wr_command *record) {
    wr_topic *topic = wr_topic_find(s, c->queue);
    if (!topic && l->checked != l->next + 1) {
        l->waits = s->unknown = true;
        return WR_TOPIC_WAIT;
    }
    if (!topic || c->row >= topic->queues_n) return answer(s, l, record, WR_RESULT_NO); /* deleted meanwhile, or never there */
    const uint8_t *blob = wr_view_blob(&l->view, c->body, c->length), *data;
    static _Thread_local lengths of;
    if (!blob || !measure(c, topic, blob, &of, &data)) return evict(s, l, WR_EVICTED_BLOB);
    if (of.bytes > wr_topic_log_most(s->log)) return answer(s, l, record, WR_RESULT_REFUSED);
    if (wr_topic_log_look(s->log)->failed) {
        atomic_store_explicit(&s->me->error, (uint32_t)wr_topic_log_look(s->log)->failed, memory_order_release);
        return answer(s, l, record, WR_RESULT_ERROR);
    }
    uint64_t position, offset = topic->queues[c->row].next;
    uint8_t *to = wr_topic_log_reserve(s->log, of.bytes, &position);
    if (!to) return WR_TOPIC_WAIT;
    if (!encode(s, c, topic, &of, data, to, position, offset)) return evict(s, l, WR_EVICTED_BLOB);
    const wr_topic_batch batch = {.topic = topic, .queue = c->row, .n = of.n, .offset = offset, .position = position, .store_ms = s->store_ms,
                                  .bytes = to, .sizes = of.sizes, .parts = of.parts};
    if (!put(s, &batch, of.bytes)) return WR_TOPIC_WAIT;
    l->dirty = true;
    l->written |= (c->flags & (WR_FLAG_SYNCED | WR_FLAG_WRITTEN)) == WR_FLAG_WRITTEN;
    s->awaited |= is_awaited(batch.topic->queues + c->row);
    s->want_commit |= (c->flags & (WR_FLAG_SYNCED | WR_FLAG_WRITTEN)) || s->awaited;
    s->want_sync |= (c->flags & WR_FLAG_SYNCED) != 0;
    memcpy(record->id, &offset, 8);
    memcpy(record->id + 8, &position, 8);
    return answer(s, l, record, WR_RESULT_OK);
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
        return answer(s, l, record, WR_RESULT_OK);
    case WR_OP_CONTROL:
        return wr_topic_control(s, l, c, record) ? WR_TOPIC_DONE : WR_TOPIC_WAIT;
    default:
        return evict(s, l, WR_EVICTED_OPERATION);
    }
}
