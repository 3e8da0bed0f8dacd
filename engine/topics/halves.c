/* Half messages. What they are, and the invariants: topics/halves.h. */
#include "topics/halves.h"
#include "ipc/core/crash.h"
#include "kernel/racy.h"
#include "topics/coming.h"
#include "topics/half_record.h"
#include "topics/properties.h"
#include "topics/real_place.h"
#include "topics/table.h"
#include <stdio.h>

void wr_half_show(wr_topic *topic) {
    wr_topic_row *row = topic->queues[0].shown;
    if (row) atomic_store_explicit(&row->halves, topic->halves_n, memory_order_relaxed);
}

static void count(wr_topic *topic, uint64_t halves_n) {
    topic->halves_n = halves_n;
    wr_half_show(topic);
}

/* ---- prepare ---- */

/* Put the record into the ring. False: it is none. */
static bool encode(wr_topic_server *s, const wr_command *c, const wr_topic *topic, const wr_append_lengths *of, const uint8_t *data, uint8_t *to,
                   uint64_t position) {
    static _Thread_local uint8_t properties[WR_PROPERTIES_BYTES_MAX];
    const wr_append_part *part = of->parts;
    wr_copy_racy(properties, data, part->properties_length);
    if (part->properties_length && properties[part->properties_length - 1] != WR_PROPERTY_VALUE_END) return false; /* others come behind */
    const uint32_t n = part->properties_length + wr_half_put(properties + part->properties_length, topic->name, topic->name_length, c->row);
    wr_record_head head = {.flag = topic->id, .physical_offset = position, .sys_flag = WR_SYS_PREPARED, .born_timestamp = c->tag,
                           .store_timestamp = s->store_ms};
    memcpy(head.born_host, s->host, sizeof s->host);
    memcpy(head.store_host, s->host, sizeof s->host);
    const struct iovec body = {(void *)(uintptr_t)(data + part->properties_length + of->skip), part->body_length};
    return wr_record_encode(to, of->sizes[0], &head, WR_HALF_TOPIC, WR_HALF_TOPIC_BYTES, properties, n, &body, 1) == WR_RECORD_GOOD;
}

wr_topic_outcome wr_half_append(wr_topic_server *s, wr_topic_link *l, const wr_command *c, wr_command *record, wr_topic *topic) {
    static _Thread_local wr_append_lengths of;
    const uint8_t *blob = wr_view_blob(&l->view, c->body, c->length), *data;
    const uint32_t more = wr_half_more(topic->name_length, c->row);
    wr_topic_outcome outcome;
    uint64_t position;
    if (!blob || c->op != WR_OP_APPEND || !wr_append_measure(c, WR_HALF_TOPIC_BYTES, more, blob, &of, &data))
        return wr_append_evict(s, l, WR_EVICTED_BLOB);
    if (wr_half_reserve(&s->halves)) return wr_append_answer(s, l, record, WR_RESULT_FULL);
    uint8_t *to = wr_append_reserve(s, l, record, of.bytes, &position, &outcome);
    if (!to) return outcome;
    if (!encode(s, c, topic, &of, data, to, position)) return wr_append_evict(s, l, WR_EVICTED_BLOB);
    if (!wr_append_noted(s, position, to)) return WR_TOPIC_WAIT;
    wr_topic_log_append(s->log, of.bytes, s->store_ms);
    wr_half_add(&s->halves, (wr_half){.position = position, .due = s->store_ms + s->half_after_ms, .size = of.sizes[0], .topic = topic->id});
    count(topic, topic->halves_n + 1);
    return wr_append_accepted(s, l, c, record, UINT64_MAX, position);
}

/* ---- what becomes of them ---- */

static int read_half(wr_topic_server *s, const wr_half *half, wr_record *record, const uint8_t **bytes) {
    int error = wr_log_reader_get(&s->reader, half->position, half->size, 0, bytes);
    if (error == ENOMEM) return EAGAIN;
    if (!error && wr_record_scan(*bytes, half->size, half->position, WR_SCAN_ALL, record) == WR_SCAN_RECORD && record->size == half->size &&
        wr_half_is(*bytes, record) && record->flag == half->topic)
        return 0;
    wr_log_reader_drop(&s->reader); /* what was read is looked at anew */
    return EUCLEAN;
}

/* Append the message to its topic. */
static int commit(wr_topic_server *s, wr_topic *topic, const wr_half *half, wr_half_outcome *outcome) {
    static _Thread_local uint8_t properties[WR_PROPERTIES_BYTES_MAX];
    wr_record record;
    const uint8_t *bytes;
    uint32_t queue;
    int error = read_half(s, half, &record, &bytes);
    if (error) return error;
    if (!wr_real_queue(bytes, &record, &queue) || queue >= topic->queues_n) return EUCLEAN;
    wr_coming coming = {.topic = topic, .queue = queue, .bytes = bytes, .record = &record, .properties = properties,
                        .properties_n = wr_half_properties(bytes, &record, properties), .sys_flag = WR_SYS_COMMIT, .prepared = half->position};
    switch (wr_come(s, &coming)) {
    case WR_COME_CAME: break;
    case WR_COME_WAITS: return EAGAIN;
    default: return EUCLEAN;
    }
    *outcome = (wr_half_outcome){.by = coming.position, .offset = coming.offset, .queue = queue};
    return 0;
}

/* Append a record that says that it is rolled back, with these properties and this body. */
static int append_mark(wr_topic_server *s, const wr_half *half, const char *topic, const uint8_t *properties, uint32_t properties_n,
                       const struct iovec *body, wr_half_outcome *outcome) {
    const uint32_t topic_n = (uint32_t)strlen(topic);
    wr_record_reason reason;
    uint64_t position;
    const uint32_t size = wr_record_size(0, topic_n, properties_n, body->iov_len, &reason);
    if (!size) return EMSGSIZE;
    uint8_t *to = wr_topic_log_reserve(s->log, size, &position);
    if (!to) return errno;
    if (!wr_append_noted(s, position, to)) return EAGAIN;
    wr_record_head head = {.flag = half->topic, .physical_offset = position, .sys_flag = WR_SYS_ROLLBACK, .born_timestamp = s->store_ms,
                           .store_timestamp = s->store_ms, .prepared_transaction_offset = half->position};
    memcpy(head.born_host, s->host, sizeof s->host);
    memcpy(head.store_host, s->host, sizeof s->host);
    if (wr_record_encode(to, size, &head, topic, topic_n, properties, properties_n, body, 1) != WR_RECORD_GOOD) return EUCLEAN;
    wr_topic_log_append(s->log, size, s->store_ms);
    s->want_commit = s->want_sync = true;
    *outcome = (wr_half_outcome){.by = position};
    return 0;
}

/* As RocketMQ has it: tagged "d", the body says of which. */
static int roll_back(wr_topic_server *s, const wr_half *half, wr_half_outcome *outcome) {
    uint8_t tag[16];
    char text[24];
    const uint32_t tag_n = wr_properties_put(tag, sizeof tag, "TAGS", 4, "d", 1);
    const struct iovec body = {text, (size_t)snprintf(text, sizeof text, "%llu", (unsigned long long)half->position)};
    return append_mark(s, half, WR_OP_HALF_TOPIC, tag, tag_n, &body, outcome);
}

/* With all that its record has, so that the message is in the log once more; without, where that cannot be read, or has no room. */
static int put_aside(wr_topic_server *s, const wr_half *half, wr_half_outcome *outcome) {
    static const struct iovec none = {NULL, 0};
    wr_record record;
    const uint8_t *bytes;
    int error = read_half(s, half, &record, &bytes);
    if (!error) {
        const struct iovec body = {(void *)(uintptr_t)(bytes + record.body_at), record.body_length};
        error = append_mark(s, half, WR_PUT_ASIDE_TOPIC, bytes + record.properties_at, record.properties_length, &body, outcome);
    }
    if (error == EUCLEAN || error == EMSGSIZE) error = append_mark(s, half, WR_PUT_ASIDE_TOPIC, NULL, 0, &none, outcome);
    return error;
}

static int finish(wr_topic_server *s, wr_topic *topic, const wr_half *half, uint32_t kind, wr_half_outcome *outcome) {
    switch (kind) {
    case WR_HALF_COMMITTED: return commit(s, topic, half, outcome);
    case WR_HALF_ROLLED_BACK: return roll_back(s, half, outcome);
    case WR_HALF_PUT_ASIDE: return put_aside(s, half, outcome);
    default: return EINVAL;
    }
}

int wr_half_decide(wr_topic_server *s, uint32_t topic_id, uint64_t position, uint32_t kind, wr_half_outcome *outcome) {
    wr_topic *topic = wr_topic_find(s, topic_id);
    const wr_half_outcome *before = wr_half_outcome_of(&s->halves, position);
    const wr_half *found = wr_half_find(&s->halves, position);
    if (topic && before && before->half.topic == topic_id) {
        *outcome = *before;
        return 0;
    }
    if (!topic || !found || found->topic != topic_id) return ENOENT;
    const wr_topic_log_state *state = wr_topic_log_look(s->log);
    if (state->failed) return state->failed;
    const wr_half half = *found;
    if (half.position + half.size > state->sealed) {
        s->want_commit = true;
        return EAGAIN;
    }
    if (wr_half_may_finish(&s->halves, state->sealed)) return EAGAIN;
    int error = finish(s, topic, &half, kind, outcome);
    if (error) return error;
    wr_crash_point(s->super, WR_CRASH_TOPIC_HALF_FINISHED);
    outcome->half = half;
    outcome->kind = kind;
    wr_half_finish(&s->halves, *outcome);
    count(topic, topic->halves_n - 1);
    return 0;
}

/* ---- asking ---- */

/* Is it time to ask for one? A time that is further away than any can be was said before the clock was set back. */
static bool is_due(const wr_topic_server *s, const wr_half *half) {
    const uint64_t longest = s->half_after_ms > s->half_interval_ms ? s->half_after_ms : s->half_interval_ms;
    return half->due <= s->wall_ms || half->due > s->wall_ms + longest;
}

uint32_t wr_half_ask(wr_topic_server *s, uint32_t topic, wr_half *to, uint32_t most, uint64_t *next) {
    const uint64_t synced = wr_topic_log_look(s->log)->synced;
    uint32_t n = 0;
    *next = UINT64_MAX;
    wr_half *half = wr_half_from(&s->halves, 0, topic);
    for (uint64_t at; half && half->position + half->size <= synced; half = wr_half_from(&s->halves, at, topic)) {
        at = half->position + 1;
        wr_half_outcome outcome;
        if (is_due(s, half) && n == most) {
            *next = s->wall_ms;
            break;
        }
        if (is_due(s, half) && s->half_checks_max && half->asked >= s->half_checks_max) {
            if (wr_half_decide(s, topic, half->position, WR_HALF_PUT_ASIDE, &outcome)) break; /* no room: the next time */
            s->put_aside_n++;
            s->put_aside_at = outcome.half.position;
            continue;
        }
        if (is_due(s, half)) {
            half->asked++;
            half->due = s->wall_ms + s->half_interval_ms;
            to[n++] = *half;
        }
        if (half->due < *next) *next = half->due;
    }
    return n;
}

void wr_half_drop_topic(wr_topic_server *s, wr_topic *topic) {
    if (topic->halves_n) wr_half_drop(&s->halves, topic->id);
    count(topic, 0);
}

/* ---- a start ---- */

/* One more that the log has: whatever the limit is now. */
static int add(wr_topic_server *s, wr_half half) {
    const uint64_t most = s->halves.most;
    s->halves.most = UINT64_MAX;
    const int error = wr_half_reserve(&s->halves);
    s->halves.most = most;
    if (!error) wr_half_add(&s->halves, half);
    return error;
}

static int take_outcome(wr_topic_server *s, const wr_record *record, uint32_t kind) {
    if (wr_half_may_finish(&s->halves, UINT64_MAX)) return ENOMEM;
    wr_half_outcome outcome = {.half = {.position = record->prepared_transaction_offset, .topic = record->flag}, .by = record->physical_offset, .kind = kind};
    if (kind == WR_HALF_COMMITTED) {
        outcome.queue = record->queue_id;
        outcome.offset = record->queue_offset;
    }
    wr_half_finish(&s->halves, outcome);
    return 0;
}

int wr_half_commit(wr_topic_server *s, const uint8_t *bytes, uint64_t n, const wr_commit_head *head) {
    const uint64_t records_n = n - wr_commit_record_bytes(head->marks_n);
    wr_record record;
    int error = 0;
    for (uint64_t at = 0; !error && at < records_n; at += record.size) {
        if (wr_record_scan(bytes + at, n - at, head->from + at, 0, &record) != WR_SCAN_RECORD) return EINVAL; /* the walk has scanned it */
        if (!(record.sys_flag & WR_SYS_TRANSACTION_MASK)) continue;
        const uint32_t kind = wr_half_kind(bytes + at, &record);
        if (kind) error = take_outcome(s, &record, kind);
        else if (wr_half_is(bytes + at, &record))
            error = add(s, (wr_half){.position = head->from + at, .due = record.store_timestamp + s->half_after_ms, .size = record.size, .topic = record.flag});
    }
    return error;
}

void wr_half_taken_up(wr_topic_server *s) {
    wr_halves *h = &s->halves;
    const wr_half *half = wr_half_from(h, 0, 0);
    for (uint64_t at; half; half = wr_half_from(h, at, 0)) {
        at = half->position + 1;
        wr_topic *topic = wr_topic_find(s, half->topic);
        if (topic) topic->halves_n++;
        else wr_half_drop(h, half->topic); /* deleted: no other topic will have its id */
    }
}
