/* Messages that come to their topic. Declared in topics/coming.h. */
#include "topics/coming.h"

wr_come_outcome wr_come(wr_topic_server *s, wr_coming *c) {
    wr_topic_queue *queue = &c->topic->queues[c->queue];
    const wr_record *r = c->record;
    const wr_append_part part = {.body_length = r->body_length, .properties_length = c->properties_n};
    wr_record_reason reason;
    const uint32_t size = wr_record_size(0, c->topic->name_length, c->properties_n, r->body_length, &reason);
    if (!size) return WR_COME_NEVER;
    uint8_t *to = wr_topic_log_reserve(s->log, size, &c->position);
    if (!to) return errno == EMSGSIZE ? WR_COME_NEVER : WR_COME_WAITS;
    c->offset = queue->next;
    wr_record_head head = {.queue_id = c->queue, .flag = c->topic->id, .queue_offset = c->offset, .physical_offset = c->position,
                           .sys_flag = c->sys_flag, .reconsume_times = r->reconsume_times,
                           .born_timestamp = r->born_timestamp, .store_timestamp = s->store_ms,
                           .prepared_transaction_offset = c->prepared};
    memcpy(head.born_host, c->bytes + WR_LOG_HEAD_SIZE, sizeof s->host);
    memcpy(head.store_host, s->host, sizeof s->host);
    const struct iovec body = {(void *)(uintptr_t)(c->bytes + r->body_at), r->body_length};
    if (wr_record_encode(to, size, &head, c->topic->name, c->topic->name_length, c->properties, c->properties_n, &body, 1) != WR_RECORD_GOOD)
        return WR_COME_NEVER;
    const wr_topic_batch batch = {.topic = c->topic, .queue = c->queue, .n = 1, .offset = c->offset, .position = c->position,
                                  .store_ms = s->store_ms, .bytes = to, .sizes = &size, .parts = &part};
    if (!wr_append_put(s, &batch, size)) return WR_COME_WAITS;
    s->want_commit = s->want_sync = true;
    return WR_COME_CAME;
}
