/* Records of Warren's own topics. Declared in topics/system_record.h. */
#include "topics/system_record.h"
#include "topics/intake.h"

int wr_system_append(wr_topic_server *s, const char *topic, uint32_t topic_n, const uint8_t *body, uint32_t n, uint64_t *end) {
    wr_record_reason reason;
    uint64_t position;
    const uint32_t size = wr_record_size(0, topic_n, 0, n, &reason);
    if (!size) return EINVAL;
    uint8_t *to = wr_topic_log_reserve(s->log, size, &position);
    if (!to) return errno;
    if (!wr_append_noted(s, position, to)) return EAGAIN;
    wr_record_head head = {.physical_offset = position, .born_timestamp = s->store_ms, .store_timestamp = s->store_ms};
    memcpy(head.born_host, s->host, sizeof s->host);
    memcpy(head.store_host, s->host, sizeof s->host);
    const struct iovec part = {(void *)(uintptr_t)body, n};
    if (wr_record_encode(to, size, &head, topic, topic_n, NULL, 0, &part, 1) != WR_RECORD_GOOD) return EINVAL;
    wr_topic_log_append(s->log, size, s->store_ms);
    s->want_commit = s->want_sync = true;
    *end = position + size;
    return 0;
}

static int open_file(void *context, uint64_t base) {
    const wr_system_walk *walk = context;
    return walk->open(walk->open_context, base);
}

static int look_at_commit(void *context, const uint8_t *bytes, uint64_t n, const wr_commit_head *head, const uint8_t *marks) {
    (void)marks;
    const wr_system_walk *walk = context;
    const uint64_t records_n = n - wr_commit_record_bytes(head->marks_n);
    wr_record record;
    int error = 0;
    for (uint64_t at = 0; !error && at < records_n; at += record.size) {
        if (wr_record_scan(bytes + at, n - at, head->from + at, 0, &record) != WR_SCAN_RECORD) return EINVAL; /* the walk has scanned it */
        const bool wanted = record.topic_length == walk->topic_n && !memcmp(bytes + at + record.topic_at, walk->topic, walk->topic_n);
        if (wanted) error = walk->record(walk->context, bytes + at + record.body_at, record.body_length);
    }
    return error;
}

int wr_system_read(const wr_system_walk *walk, bool anew, uint64_t position, const wr_commit_head *after, wr_log_end *end) {
    static const wr_log_visitor visitor = {open_file, look_at_commit};
    void *context = (void *)(uintptr_t)walk;
    wr_commit_head before = *after;
    int error = anew ? wr_log_before(&visitor, context, walk->file_bytes, position, &before) : 0;
    if (error && error != ENOENT) return error; /* ENOENT: the walk finds nothing, either */
    return wr_log_walk(&visitor, context, walk->file_bytes, position, &before, end);
}
