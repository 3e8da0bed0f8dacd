/* Messages that come later. What they are, and the invariants: topics/later.h. */
#include "topics/later.h"
#include "ipc/core/crash.h"
#include "kernel/racy.h"
#include "topics/coming.h"
#include "topics/links.h"
#include "topics/retried.h"
#include "topics/scheduled.h"
#include "topics/table.h"

/* Of a round, so that clients are served in between. Reading a file may take its time. */
#define ROUND_MESSAGES 256
#define ROUND_BYTES (1u << 20)
#define ROUND_NS 2000000ull
#define AGAIN_MS 60000u /* until one whose record cannot be read is tried again */
#define BLOCKED_NS 1000000ull

void wr_later_begin(wr_topic_server *s, int root, uint64_t file_bytes, const void *ring, uint64_t ring_bytes) {
    wr_log_reader_init(&s->reader, root, file_bytes);
    wr_log_reader_begin(&s->reader, ring, ring_bytes);
}

void wr_later_end(wr_topic_server *s) {
    wr_pending_free(&s->pending);
    if (s->reader.file_bytes) wr_log_reader_free(&s->reader);
}

/* How many are to come, where everybody sees it. */
static void count(wr_topic *topic, uint64_t delayed_n) {
    topic->delayed_n = delayed_n;
    wr_topic_row *row = topic->queues[0].shown;
    if (row) atomic_store_explicit(&row->delayed, delayed_n, memory_order_relaxed);
}

/* ---- append ---- */

/* Put the records into the ring, and what is pending by them into `pending`. False: one of them is none, so there are none. */
static bool encode(wr_topic_server *s, const wr_command *c, const wr_topic *topic, const wr_append_lengths *of, const uint8_t *data, uint8_t *to,
                   uint64_t position, wr_pending_message *pending) {
    static _Thread_local uint8_t properties[WR_PROPERTIES_BYTES_MAX];
    const bool again = wr_retried_topic(topic->name, topic->name_length);
    for (uint32_t i = 0; i < of->n; i++) {
        const wr_append_part *part = &of->parts[i];
        wr_scheduled_when when;
        wr_copy_racy(properties, data, part->properties_length);
        if (!wr_scheduled_when_of(properties, part->properties_length, s->wall_ms, &when)) return false;
        const uint32_t n = part->properties_length +
                           wr_scheduled_put(properties + part->properties_length, topic->name, topic->name_length, c->row, &when);
        wr_record_head head = {.queue_id = when.by_level ? when.level - 1 : 0, .flag = topic->id, .physical_offset = position,
                               .born_timestamp = c->tag, .store_timestamp = s->store_ms};
        if (again) head.reconsume_times = wr_retried_times(properties, part->properties_length);
        memcpy(head.born_host, s->host, sizeof s->host);
        memcpy(head.store_host, s->host, sizeof s->host);
        const struct iovec body = {(void *)(uintptr_t)(data + part->properties_length + of->skip), part->body_length};
        if (wr_record_encode(to, of->sizes[i], &head, wr_scheduled_topic(&when), WR_SCHEDULED_TOPIC_BYTES, properties, n, &body, 1) != WR_RECORD_GOOD)
            return false;
        pending[i] = (wr_pending_message){.due = when.due, .position = position, .size = of->sizes[i], .topic = topic->id};
        data += (uint64_t)part->properties_length + of->skip + part->body_length;
        to += of->sizes[i];
        position += of->sizes[i];
    }
    return true;
}

wr_topic_outcome wr_later_append(wr_topic_server *s, wr_topic_link *l, const wr_command *c, wr_command *record, wr_topic *topic) {
    static _Thread_local wr_append_lengths of;
    static _Thread_local wr_pending_message pending[WR_APPEND_COUNT_MAX];
    const uint32_t more = wr_scheduled_more(topic->name_length, c->row);
    const uint8_t *blob = wr_view_blob(&l->view, c->body, c->length), *data;
    wr_topic_outcome outcome;
    uint64_t position;
    if (!blob || !wr_append_measure(c, WR_SCHEDULED_TOPIC_BYTES, more, blob, &of, &data)) return wr_append_evict(s, l, WR_EVICTED_BLOB);
    if (wr_pending_reserve(&s->pending, of.n)) return wr_append_answer(s, l, record, WR_RESULT_FULL);
    uint8_t *to = wr_append_reserve(s, l, record, of.bytes, &position, &outcome);
    if (!to) return outcome;
    if (!encode(s, c, topic, &of, data, to, position, pending)) return wr_append_evict(s, l, WR_EVICTED_BLOB);
    if (!wr_append_noted(s, position, to)) return WR_TOPIC_WAIT;
    wr_topic_log_append(s->log, of.bytes, s->store_ms);
    for (uint32_t i = 0; i < of.n; i++) wr_pending_put(&s->pending, pending[i]);
    count(topic, topic->delayed_n + of.n);
    return wr_append_accepted(s, l, c, record, UINT64_MAX, position);
}

/* ---- coming ---- */

/* Append a message whose record was read to its topic. */
static wr_come_outcome append_message(wr_topic_server *s, wr_topic *topic, const uint8_t *bytes, const wr_record *r, uint32_t queue) {
    static _Thread_local uint8_t properties[WR_PROPERTIES_BYTES_MAX];
    wr_coming coming = {.topic = topic, .queue = queue, .bytes = bytes, .record = r, .properties = properties,
                        .properties_n = wr_scheduled_properties(bytes, r, properties), .prepared = r->physical_offset + 1};
    const wr_come_outcome outcome = wr_come(s, &coming);
    if (outcome != WR_COME_CAME) return outcome;
    wr_pending_take(&s->pending, coming.position);
    wr_crash_point(s->super, WR_CRASH_TOPIC_LATER_CAME);
    count(topic, topic->delayed_n - 1);
    s->came_n++;
    return outcome;
}

static wr_come_outcome come(wr_topic_server *s, const wr_pending_message *m, wr_topic *topic) {
    const uint8_t *bytes;
    wr_record record;
    wr_scheduled_message message;
    int error = wr_log_reader_get(&s->reader, m->position, m->size, 0, &bytes);
    if (error == ENOMEM) return WR_COME_WAITS;
    if (error || wr_record_scan(bytes, m->size, m->position, WR_SCAN_ALL, &record) != WR_SCAN_RECORD || record.size != m->size) return WR_COME_NEVER;
    if (!wr_scheduled_is(bytes, &record) || record.flag != m->topic || record.sys_flag || !wr_scheduled_read(bytes, &record, &message) ||
        message.queue >= topic->queues_n)
        return WR_COME_NEVER;
    return append_message(s, topic, bytes, &record, message.queue);
}

/* The first one, which is due. False: it has to wait for room. */
static bool serve_first(wr_topic_server *s, const wr_topic_log_state *state) {
    const wr_pending_message first = *wr_pending_first(&s->pending);
    wr_topic *topic = wr_topic_find(s, first.topic);
    if (!topic) {
        wr_pending_pop(&s->pending);
        return true;
    }
    if (first.position + first.size > state->sealed || wr_pending_may_take(&s->pending, state->sealed)) return false;
    switch (come(s, &first, topic)) {
    case WR_COME_CAME: return true;
    case WR_COME_WAITS: return false;
    default: break;
    }
    wr_log_reader_drop(&s->reader); /* what was read is looked at anew */
    s->unreadable_n++;
    s->unreadable_at = first.position;
    wr_pending_postpone(&s->pending, s->wall_ms + AGAIN_MS);
    return true;
}

static bool is_due(const wr_topic_server *s, uint64_t now_ms) {
    const wr_pending_message *first = wr_pending_first(&s->pending);
    return first && first->due <= now_ms && !s->held;
}

bool wr_later_round(wr_topic_server *s) {
    if (!is_due(s, s->wall_ms)) return false;
    const wr_topic_log_state *state = wr_topic_log_look(s->log);
    const uint64_t began = wr_now_ns();
    uint64_t bytes = 0;
    uint32_t n = 0;
    while (is_due(s, s->wall_ms) && !state->failed && n < ROUND_MESSAGES && bytes < ROUND_BYTES && wr_now_ns() - began < ROUND_NS) {
        bytes += wr_pending_first(&s->pending)->size;
        if (!serve_first(s, state)) break;
        n++;
    }
    return n > 0;
}

uint64_t wr_later_sleep_ns(const wr_topic_server *s, uint64_t most) {
    const wr_pending_message *first = wr_pending_first(&s->pending);
    const uint64_t now = wr_wall_ms();
    if (!first || s->held) return most;
    const uint64_t left = first->due > now ? first->due - now : 0;
    if (left >= most / 1000000 + 1) return most;
    const uint64_t sleep = left ? left * 1000000 : BLOCKED_NS; /* due, and no room */
    return sleep < most ? sleep : most;
}

void wr_later_drop(wr_topic_server *s, wr_topic *topic) {
    if (topic->delayed_n) wr_pending_drop(&s->pending, topic->id);
    count(topic, 0);
}

/* ---- a start ---- */

const char *wr_later_decode(wr_topic_server *s, const uint8_t *bytes, uint64_t n, wr_pending_head *head) {
    wr_later_clear(s);
    return wr_pending_decode(&s->pending, bytes, n, head);
}

void wr_later_clear(wr_topic_server *s) { wr_pending_free(&s->pending); }

/* One more that the log has: whatever the limit is now. */
static int add(wr_topic_server *s, wr_pending_message message) {
    const uint64_t most = s->pending.most;
    s->pending.most = UINT64_MAX;
    const int error = wr_pending_reserve(&s->pending, 1);
    s->pending.most = most;
    if (!error) wr_pending_add(&s->pending, message);
    return error;
}

int wr_later_commit(wr_topic_server *s, const uint8_t *bytes, uint64_t n, const wr_commit_head *head) {
    const uint64_t records_n = n - wr_commit_record_bytes(head->marks_n);
    wr_record record;
    int error = 0;
    for (uint64_t at = 0, position; !error && at < records_n; at += record.size) {
        wr_scheduled_message message;
        if (wr_record_scan(bytes + at, n - at, head->from + at, 0, &record) != WR_SCAN_RECORD) return EINVAL; /* the walk has scanned it */
        if (wr_scheduled_came(&record, &position)) wr_pending_came(&s->pending, position);
        else if (record.flag && wr_scheduled_is(bytes + at, &record) && wr_scheduled_read(bytes + at, &record, &message))
            error = add(s, (wr_pending_message){.due = message.due, .position = head->from + at, .size = record.size, .topic = record.flag});
    }
    return error;
}

void wr_later_taken_up(wr_topic_server *s) {
    wr_pending *p = &s->pending;
    uint64_t kept = 0;
    wr_pending_heap(p);
    for (uint64_t at = 0; at < p->n; at++) {
        wr_topic *topic = wr_topic_find(s, p->all[at].topic);
        if (!topic) continue; /* deleted: no other topic will have its id */
        topic->delayed_n++;
        p->all[kept++] = p->all[at];
    }
    p->n = kept;
    wr_pending_heap(p);
}
