#include "topics/seek.h"
#include "kernel/bytes.h"
#include "topics/newest.h"

#define UNITS_MAX 512u
#define HEAD_BYTES (WR_LOG_HEAD_SIZE + WR_HOST_V6_SIZE + WR_LOG_STORED_SIZE) /* of a record, as far as its store time */

/* The store time of a message; false: it is not there. */
static bool time_of(wr_topic_reader *r, uint32_t queue, uint64_t offset, const wr_unit *unit, int64_t *time, int *error) {
    const uint8_t *at;
    uint64_t n;
    *error = wr_log_reader_peek(&r->log, unit->physical_offset, HEAD_BYTES, &at, &n);
    if (*error == ENOENT) *error = 0;
    if (*error || n < HEAD_BYTES) return false;
    uint32_t magic = wr_get32(at + WR_LOG_HEAD_AT_MAGIC), sys_flag = wr_get32(at + WR_LOG_HEAD_AT_SYS_FLAG);
    if (magic != (uint32_t)WR_RECORD_MAGIC_V1 && magic != (uint32_t)WR_RECORD_MAGIC_V2) return false;
    if (wr_get32(at + WR_LOG_HEAD_AT_SIZE) != unit->size || wr_get64(at + WR_LOG_HEAD_AT_PHYSICAL_OFFSET) != unit->physical_offset ||
        wr_get32(at + WR_LOG_HEAD_AT_QUEUE_ID) != queue || wr_get64(at + WR_LOG_HEAD_AT_QUEUE_OFFSET) != offset)
        return false;
    uint32_t store_at = WR_LOG_HEAD_SIZE + wr_born_host_bytes(sys_flag) + WR_LOG_STORED_AT_STORE_TIMESTAMP;
    *time = (int64_t)wr_get64(at + store_at);
    return true;
}

typedef struct {
    bool found;
    uint64_t offset;
    int64_t time;
} probe;

/* The first message that is there, of the offsets from … to; or (`zeros`) whose unit is damaged: it may be the one. */
static int first_of(wr_topic_reader *r, uint32_t queue, uint64_t from, uint64_t to, bool zeros, probe *p) {
    wr_unit units[UNITS_MAX];
    int error = 0;
    *p = (probe){0};
    for (uint32_t most = 1; !error && from < to; most = most * 8 < UNITS_MAX ? most * 8 : UNITS_MAX) {
        uint32_t n;
        if (most > to - from) most = (uint32_t)(to - from);
        if ((error = wr_topic_reader_units(r, queue, from, units, most, &n))) break;
        for (uint32_t i = 0; i < n; i++) {
            const bool lost = zeros && wr_unit_is_zeros(&units[i]);
            if (!lost && (!units[i].size || !time_of(r, queue, from + i, &units[i], &p->time, &error))) continue;
            p->found = true;
            p->offset = from + i;
            return 0;
        }
        from += n;
        if (n) continue;
        /* There may be many files that are not there: the next one that is. */
        from += r->place.consume_queue_entries - from % r->place.consume_queue_entries;
        uint64_t base;
        error = wr_topic_reader_file(r, queue, from, false, &base);
        if (error) return error == ENOENT ? 0 : error;
        if (base > from) from = base;
    }
    return error;
}

/* The last one that is there, of the offsets from … to. */
static int last_of(wr_topic_reader *r, uint32_t queue, uint64_t from, uint64_t to, probe *p) {
    wr_unit units[UNITS_MAX];
    int error = 0;
    *p = (probe){0};
    for (uint32_t most = 1; !error && from < to; most = most * 8 < UNITS_MAX ? most * 8 : UNITS_MAX) {
        uint32_t n;
        uint64_t begin = to - from > most ? to - most : from;
        if ((error = wr_topic_reader_units(r, queue, begin, units, (uint32_t)(to - begin), &n))) break;
        for (uint32_t i = n; i-- > 0;) {
            if (!units[i].size || !time_of(r, queue, begin + i, &units[i], &p->time, &error)) continue;
            p->found = true;
            p->offset = begin + i;
            return 0;
        }
        to = begin;
        if (n || to == from) continue;
        uint64_t base;
        error = wr_topic_reader_file(r, queue, to - 1, true, &base);
        if (error) return error == ENOENT ? 0 : error;
        if (to - base > r->place.consume_queue_entries) to = base + r->place.consume_queue_entries;
    }
    return error;
}

/* The first one in the file of newest records that is late enough; false: there is none, or *error. Damage is passed by. */
static bool first_of_file(wr_topic_reader *r, uint32_t queue, uint64_t minimum, int64_t when, uint64_t *offset, int *error) {
    wr_record record;
    const uint8_t *bytes;
    uint64_t next;
    wr_message_kind kind = wr_newest_from(r, queue, minimum, WR_COMPACTED_TIME, (uint64_t)when, false, &record, &bytes, &next, error);
    while (kind == WR_MESSAGE_DAMAGED || (kind == WR_MESSAGE_THERE && (int64_t)record.store_timestamp < when)) {
        if (kind == WR_MESSAGE_THERE) next = record.queue_offset + 1;
        if (next >= minimum) return false;
        kind = wr_newest_from(r, queue, minimum, WR_COMPACTED_OFFSET, next, false, &record, &bytes, &next, error);
    }
    if (kind == WR_MESSAGE_THERE) *offset = record.queue_offset;
    return kind == WR_MESSAGE_THERE;
}

/* The last one there that is early enough. */
static bool last_of_file(wr_topic_reader *r, uint32_t queue, uint64_t minimum, int64_t when, uint64_t *offset, int *error) {
    wr_record record;
    const uint8_t *bytes;
    const wr_message_kind kind = wr_newest_before(r, queue, minimum, WR_COMPACTED_TIME, (uint64_t)when + 1, &record, &bytes, error);
    if (kind == WR_MESSAGE_THERE) *offset = record.queue_offset;
    return kind == WR_MESSAGE_THERE;
}

int wr_topic_seek(wr_topic_reader *r, uint32_t queue, int64_t when, wr_seek_boundary boundary, uint64_t *offset) {
    wr_topic_bounds b;
    probe p;
    int error = wr_topic_reader_all(r, queue, &b);
    if (error) return error;
    const bool file = r->compacted && b.minimum; /* of times before 1970 nothing is stored */
    if (file && boundary == WR_SEEK_LOWER && (first_of_file(r, queue, b.minimum, when < 0 ? 0 : when, offset, &error) || error)) return error;
    /* The first offset behind which all messages are late enough (LOWER: at `when`; UPPER: behind it). */
    uint64_t low = b.minimum, high = b.maximum;
    while (low < high) {
        uint64_t middle = low + (high - low) / 2;
        if ((error = first_of(r, queue, middle, high, false, &p))) return error;
        if (!p.found || (boundary == WR_SEEK_LOWER ? p.time >= when : p.time > when)) high = middle;
        else low = p.offset + 1;
    }
    if (boundary == WR_SEEK_LOWER) error = first_of(r, queue, low, b.maximum, true, &p);
    else error = last_of(r, queue, b.minimum, low, &p);
    if (error) return error;
    if (!p.found && boundary == WR_SEEK_UPPER && file && when >= 0 && (last_of_file(r, queue, b.minimum, when, offset, &error) || error)) return error;
    *offset = p.found ? p.offset : boundary == WR_SEEK_LOWER ? b.maximum : WR_SEEK_NONE;
    return 0;
}

int wr_topic_first_time(wr_topic_reader *r, uint32_t queue, int64_t *time) {
    wr_topic_bounds b;
    probe p;
    int error = wr_topic_reader_bounds(r, queue, &b);
    if (!error) error = first_of(r, queue, b.minimum, b.maximum, false, &p);
    if (error) return error;
    *time = p.time;
    return p.found ? 0 : ENOENT;
}
