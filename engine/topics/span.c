#include "topics/span.h"
#include "topics/newest.h"

#define UNITS_AT_ONCE 512u

typedef struct {
    uint64_t at, end, bytes, bytes_max;
} a_span;

/* A message more; false: it is one too many. */
static bool take(a_span *s, uint64_t offset, uint64_t size) {
    if (s->bytes + size > s->bytes_max) {
        s->at = offset;
        return false;
    }
    s->bytes += size;
    s->at = offset + 1;
    return true;
}

/* What lies in the file of newest records, which has all below `below`; *more: the end of that was reached. */
static int span_newest(wr_topic_reader *r, uint32_t queue, uint64_t below, a_span *s, bool *more) {
    const uint64_t limit = below < s->end ? below : s->end;
    *more = true;
    while (*more && s->at < limit) {
        wr_record record;
        const uint8_t *bytes;
        uint64_t next;
        int error = 0;
        switch (wr_newest_from(r, queue, below, WR_COMPACTED_OFFSET, s->at, false, &record, &bytes, &next, &error)) {
        case WR_MESSAGE_THERE:
            if (record.queue_offset >= limit) s->at = limit;
            else *more = take(s, record.queue_offset, record.size);
            break;
        case WR_MESSAGE_DAMAGED: s->at = next > s->at ? next : s->at + 1; break;
        case WR_MESSAGE_ERROR: return error;
        default: s->at = limit;
        }
    }
    return 0;
}

static int span_units(wr_topic_reader *r, uint32_t queue, a_span *s) {
    wr_unit units[UNITS_AT_ONCE];
    while (s->at < s->end) {
        const uint64_t from = s->at, left = s->end - from;
        uint32_t n;
        int error = wr_topic_reader_units(r, queue, from, units, left < UNITS_AT_ONCE ? (uint32_t)left : UNITS_AT_ONCE, &n);
        if (error) return error;
        for (uint32_t i = 0; i < n; i++)
            if (!take(s, from + i, units[i].size)) return 0;
        if (!n) s->at += r->place.consume_queue_entries - from % r->place.consume_queue_entries; /* a file that is gone */
    }
    return 0;
}

int wr_topic_span(wr_topic_reader *reader, uint32_t queue, uint64_t offset, uint64_t end, uint64_t bytes_max, uint64_t *stop, uint64_t *bytes) {
    wr_topic_bounds b;
    a_span s = {.at = offset, .bytes_max = bytes_max};
    bool more = true;
    int error = wr_topic_reader_bounds(reader, queue, &b);
    if (error) return error;
    s.end = end < b.maximum ? end : b.maximum;
    if (reader->compacted && s.at < b.minimum) error = span_newest(reader, queue, b.minimum, &s, &more);
    else if (s.at < b.minimum) s.at = b.minimum < s.end ? b.minimum : s.end;
    if (!error && more) error = span_units(reader, queue, &s);
    if (s.at > end) s.at = end;
    *stop = s.at;
    *bytes = s.bytes;
    return error;
}
