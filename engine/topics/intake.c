/* What commands that append have in common. Declared in topics/intake.h. */
#include "topics/intake.h"
#include "kernel/racy.h"
#include "topics/links.h"

wr_topic_outcome wr_append_answer(wr_topic_server *s, wr_topic_link *l, wr_command *record, uint32_t result) {
    if (__builtin_expect(result != WR_RESULT_OK, 0)) {
        wr_link *shared = wr_topic_shared(s, l);
        if (atomic_load_explicit(&shared->unusual_until, memory_order_relaxed) <= l->next)
            atomic_store_explicit(&shared->unusual_until, l->next + 1, memory_order_relaxed);
    }
    atomic_store_explicit(&record->result, result, memory_order_relaxed); /* visible with `processed`, and so is what it says */
    return WR_TOPIC_DONE;
}

wr_topic_outcome wr_append_evict(wr_topic_server *s, wr_topic_link *l, uint32_t reason) {
    wr_topic_evict(s, l, reason);
    return WR_TOPIC_WAIT;
}

bool wr_append_measure(const wr_command *c, uint32_t topic_n, uint32_t more, const uint8_t *blob, wr_append_lengths *to, const uint8_t **data) {
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
        to->sizes[i] = wr_record_size(0, topic_n, (uint64_t)part->properties_length + more, part->body_length, &reason);
        if (!to->sizes[i]) return false;
        to->bytes += to->sizes[i];
    }
    *data = blob + table;
    return !left;
}

bool wr_append_noted(wr_topic_server *s, uint64_t position, const uint8_t *bytes) {
    const wr_topic_batch none = {.position = position, .store_ms = s->store_ms, .bytes = bytes};
    s->crowded = s->follower.records && !s->follower.records(s->follower.context, &none);
    return !s->crowded;
}

bool wr_append_put(wr_topic_server *s, const wr_topic_batch *batch, uint64_t bytes) {
    wr_topic_queue *queue = &batch->topic->queues[batch->queue];
    s->crowded = s->follower.records && !s->follower.records(s->follower.context, batch);
    if (s->crowded) return false;
    wr_topic_log_append(s->log, bytes, s->store_ms);
    queue->next += batch->n;
    if (queue->shown) atomic_store_explicit(&queue->shown->appended, queue->next, memory_order_release);
    s->records_n += batch->n;
    return true;
}

uint8_t *wr_append_reserve(wr_topic_server *s, wr_topic_link *l, wr_command *record, uint64_t bytes, uint64_t *position, wr_topic_outcome *outcome) {
    const wr_topic_log_state *state = wr_topic_log_look(s->log);
    *outcome = WR_TOPIC_WAIT;
    if (bytes > wr_topic_log_most(s->log)) {
        *outcome = wr_append_answer(s, l, record, WR_RESULT_REFUSED);
        return NULL;
    }
    if (state->failed) {
        atomic_store_explicit(&s->me->error, (uint32_t)state->failed, memory_order_release);
        *outcome = wr_append_answer(s, l, record, WR_RESULT_ERROR);
        return NULL;
    }
    return wr_topic_log_reserve(s->log, bytes, position);
}

wr_topic_outcome wr_append_accepted(wr_topic_server *s, wr_topic_link *l, const wr_command *c, wr_command *record, uint64_t offset,
                                    uint64_t position) {
    l->dirty = true;
    l->written |= (c->flags & (WR_FLAG_SYNCED | WR_FLAG_WRITTEN)) == WR_FLAG_WRITTEN;
    s->want_commit |= (c->flags & (WR_FLAG_SYNCED | WR_FLAG_WRITTEN)) != 0;
    s->want_sync |= (c->flags & WR_FLAG_SYNCED) != 0;
    memcpy(record->id, &offset, 8);
    memcpy(record->id + 8, &position, 8);
    return wr_append_answer(s, l, record, WR_RESULT_OK);
}
