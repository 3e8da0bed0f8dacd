#include "topics/read.h"
#include "topics/hash.h"
#include "topics/newest.h"
#include "topics/properties.h"

#define GAP_BYTES 4096u      /* what lies between two records is read with them, if it is no more: a system call takes as long */
#define RECORD_BYTES_MIN 64u /* no record is smaller */
#define SCANNED_MAX (1u << 18) /* units of one read: who looks for a rare tag hears of it now and then */

const char *wr_read_word(wr_read_status status) {
    static const char *const words[WR_READ_STATUSES] = {"FOUND",
                                                        "NO_MATCHED_MESSAGE",
                                                        "OFFSET_TOO_SMALL",
                                                        "OFFSET_OVERFLOW_ONE",
                                                        "OFFSET_OVERFLOW_BADLY",
                                                        "NO_MESSAGE_IN_QUEUE",
                                                        "OFFSET_FOUND_NULL",
                                                        "MESSAGE_WAS_REMOVING",
                                                        "DAMAGED"};
    return (uint32_t)status < WR_READ_STATUSES ? words[status] : "unknown";
}

static bool end_with(wr_topic_read *read, wr_read_status status, uint64_t next) {
    read->over = true;
    if (read->result.records_n) return false; /* the next read's */
    read->result.status = status;
    read->result.next = next;
    return false;
}

/* May a read come to the end of what is shown? Not when it has enough before. */
static bool may_reach(const wr_topic_request *request, const wr_topic_bounds *b) {
    if (request->end <= b->maximum) return false;
    if (request->offset >= b->maximum) return true;
    const uint64_t n = b->maximum - request->offset;
    return n < (request->tags_n ? SCANNED_MAX : request->records_max) && (request->tags_n || n < request->bytes_max / RECORD_BYTES_MIN);
}

int wr_topic_read_begin(wr_topic_read *read, wr_topic_reader *reader, const wr_topic_request *request) {
    wr_topic_bounds *b = &read->result.bounds;
    read->reader = reader;
    read->request = *request;
    read->result.records_n = 0;
    read->result.next = request->offset;
    read->result.status = WR_READ_OFFSET_OVERFLOW_ONE;
    read->bytes = read->scanned = read->below = 0;
    read->over = read->filtered = false;
    read->error = 0;
    read->units_n = read->at = 0;
    reader->damage.file[0] = 0;
    int error = wr_topic_reader_bounds(reader, request->queue, b);
    if (!error && may_reach(request, b)) error = wr_topic_reader_all(reader, request->queue, b);
    if (error) return error;
    wr_log_reader_retire(&reader->log, wr_topic_reader_first(reader));
    for (uint32_t i = 0; i < request->tags_n; i++) read->codes[i] = wr_tags_code(request->tags[i].at, request->tags[i].n);
    read->stop = request->end < b->maximum ? request->end : b->maximum;
    if (!b->maximum) end_with(read, WR_READ_NO_MESSAGE_IN_QUEUE, 0);
    else if (request->offset < b->minimum && reader->compacted) read->below = b->minimum;
    else if (request->offset < b->minimum) end_with(read, WR_READ_OFFSET_TOO_SMALL, b->minimum);
    else if (request->offset > b->maximum) end_with(read, WR_READ_OFFSET_OVERFLOW_BADLY, b->maximum);
    else if (request->offset == b->maximum) end_with(read, WR_READ_OFFSET_OVERFLOW_ONE, request->offset);
    return 0;
}

/* The row's minimum rose above where this read stands. */
static bool fell_behind(wr_topic_read *read) {
    wr_topic_bounds b;
    if (wr_topic_reader_bounds(read->reader, read->request.queue, &b)) return false;
    read->result.bounds = b;
    return read->result.next < b.minimum;
}

/* The same, and what is alive there is in the file of newest records now. */
static bool goes_to_file(wr_topic_read *read) {
    if (!read->reader->compacted || !fell_behind(read)) return false;
    read->below = read->result.bounds.minimum;
    read->at = read->units_n = 0;
    return true;
}

static bool fail(wr_topic_read *read, int error) {
    read->over = true;
    if (!read->result.records_n) read->error = error;
    return false;
}

/* Have units at hand; false: the read is over, or goes on in the file of newest records. */
static bool more_units(wr_topic_read *read) {
    wr_topic_read_result *result = &read->result;
    uint64_t most = read->stop - result->next;
    if (most > WR_READ_UNITS) most = WR_READ_UNITS;
    if (most > 2 * (uint64_t)read->request.records_max && !read->request.tags_n) most = 2 * (uint64_t)read->request.records_max;
    read->at = 0;
    int error = wr_topic_reader_units(read->reader, read->request.queue, result->next, read->units, (uint32_t)most, &read->units_n);
    if (error) return fail(read, error);
    if (read->units_n) return true;
    if (goes_to_file(read)) return false;
    if (fell_behind(read)) return end_with(read, WR_READ_OFFSET_TOO_SMALL, result->bounds.minimum);
    /* No file, or a part of one: what it had is elsewhere in the log, and nobody knows where. */
    wr_topic_reader_lacks(read->reader, read->request.queue, result->next);
    uint64_t entries = read->reader->place.consume_queue_entries, next = result->next - result->next % entries + entries;
    return end_with(read, WR_READ_DAMAGED, next < read->stop ? next : read->stop);
}

static inline bool may_match(const wr_topic_read *read, const wr_unit *unit) {
    for (uint32_t i = 0; i < read->request.tags_n; i++)
        if (read->codes[i] == unit->tags_code) return true;
    return !read->request.tags_n;
}

static bool matches(const wr_topic_read *read, const wr_record *record, const uint8_t *bytes) {
    wr_text tag;
    if (!read->request.tags_n) return true;
    if (!wr_properties_find(bytes + record->properties_at, record->properties_length, "TAGS", &tag)) return false;
    for (uint32_t i = 0; i < read->request.tags_n; i++)
        if (read->request.tags[i].n == tag.n && !memcmp(read->request.tags[i].at, tag.at, tag.n)) return true;
    return false;
}

/* Bytes of the log behind a unit's record that this read wants next: of records that lie close to each other. */
static uint64_t ahead_of(const wr_topic_read *read) {
    const wr_unit *unit = &read->units[read->at];
    uint64_t begin = unit->physical_offset, end = begin + unit->size, bytes = read->bytes + unit->size;
    uint32_t left = read->request.records_max - read->result.records_n;
    uint64_t units = read->stop - read->result.next; /* of those at hand, some may lie behind the stop */
    for (uint32_t i = read->at + 1; i < read->units_n && i - read->at < units && left > 1; i++) {
        const wr_unit *next = &read->units[i];
        if (!next->size || !may_match(read, next)) continue;
        bytes += next->size;
        if (next->physical_offset < end || next->physical_offset - end > GAP_BYTES || bytes > read->request.bytes_max) break;
        if (next->physical_offset + next->size - begin > WR_LOG_WINDOW_BYTES) break;
        end = next->physical_offset + next->size;
        left--;
    }
    return end - begin - unit->size;
}

static inline void step(wr_topic_read *read) {
    read->at++;
    read->result.next++;
}

/* What is at hand has no message to give. */
static bool take_other(wr_topic_read *read, wr_message_kind kind, int error) {
    wr_topic_read_result *result = &read->result;
    switch (kind) {
    case WR_MESSAGE_ERROR:
        return fail(read, error);
    case WR_MESSAGE_GONE:
        return end_with(read, WR_READ_MESSAGE_WAS_REMOVING, fell_behind(read) ? result->bounds.minimum : result->next + 1);
    default:
        return end_with(read, WR_READ_DAMAGED, result->next + 1);
    }
}

/* The unit at hand is zeros. Whether it is something else by now; else the read is over, and goes on behind those that are zeros, too; or it goes on in the
 * file of newest records. */
static bool is_written(wr_topic_read *read) {
    wr_topic_read_result *result = &read->result;
    const uint64_t left = read->stop - result->next;
    uint32_t zeros;
    int error;
    wr_message_kind kind = wr_topic_reader_unit_again(read->reader, read->request.queue, result->next, &read->units[read->at],
                                                      left < WR_TOPIC_UNITS_AGAIN ? (uint32_t)left : WR_TOPIC_UNITS_AGAIN, &zeros, &error);
    if (kind == WR_MESSAGE_THERE) return true;
    if (kind == WR_MESSAGE_DAMAGED) end_with(read, WR_READ_DAMAGED, result->next + (zeros ? zeros : 1));
    else if (kind != WR_MESSAGE_GONE || !goes_to_file(read)) take_other(read, kind, error);
    return false;
}

static void give(wr_topic_read *read, uint32_t size) {
    read->bytes += size;
    read->result.records_n++;
    read->result.status = WR_READ_FOUND;
}

/* Of the file of newest records: the next message that is wanted. False: there is none at hand; the read is over, or goes on where it stands. */
static bool next_newest(wr_topic_read *read, wr_record *record, const uint8_t **bytes) {
    wr_topic_read_result *result = &read->result;
    const uint64_t limit = read->below < read->stop ? read->below : read->stop;
    uint64_t next;
    int error = 0;
    switch (wr_newest_from(read->reader, read->request.queue, read->below, WR_COMPACTED_OFFSET, result->next, read->request.sum, record, bytes, &next, &error)) {
    case WR_MESSAGE_THERE: break;
    case WR_MESSAGE_DAMAGED: return end_with(read, WR_READ_DAMAGED, next);
    case WR_MESSAGE_ERROR: return fail(read, error);
    default: result->next = limit; return false;
    }
    if (record->queue_offset >= limit) {
        result->next = limit;
        return false;
    }
    if (!matches(read, record, *bytes)) {
        read->filtered = true;
        read->scanned++;
        result->next = record->queue_offset + 1;
        return false;
    }
    if (result->records_n && read->bytes + record->size > read->request.bytes_max) {
        read->over = true;
        return false;
    }
    give(read, record->size);
    result->next = record->queue_offset + 1;
    return true;
}

bool wr_topic_read_next(wr_topic_read *read, wr_record *record, const uint8_t **bytes) {
    wr_topic_read_result *result = &read->result;
    while (!read->over) {
        if (result->next >= read->stop || result->records_n >= read->request.records_max || read->scanned >= SCANNED_MAX) break;
        if (result->next < read->below) {
            if (next_newest(read, record, bytes)) return true;
            continue;
        }
        if (read->at == read->units_n && !more_units(read)) continue;
        const wr_unit *unit = &read->units[read->at];
        if (wr_unit_is_zeros(unit) && !is_written(read)) continue;
        if (!unit->size || !may_match(read, unit)) {
            read->filtered |= unit->size != 0;
            read->scanned++;
            step(read);
            continue;
        }
        const bool full = result->records_n && read->bytes + unit->size > read->request.bytes_max;
        if (full && !read->request.tags_n) break;
        const wr_log_reader *log = &read->reader->log;
        uint64_t ahead = unit->physical_offset >= log->from && unit->physical_offset + unit->size <= log->from + log->n ? 0 : ahead_of(read);
        int error;
        wr_message_kind kind = wr_topic_reader_record(read->reader, read->request.queue, result->next, unit, ahead, read->request.sum, record,
                                                      bytes, &error);
        if (kind == WR_MESSAGE_THERE && matches(read, record, *bytes)) {
            if (full) break;
            give(read, record->size);
            step(read);
            return true;
        }
        if (kind == WR_MESSAGE_GONE && goes_to_file(read)) continue;
        if (kind != WR_MESSAGE_THERE && kind != WR_MESSAGE_NONE) return take_other(read, kind, error);
        read->filtered |= kind == WR_MESSAGE_THERE;
        read->scanned++;
        step(read);
    }
    if (!read->over && !result->records_n) end_with(read, read->filtered ? WR_READ_NO_MATCHED_MESSAGE : WR_READ_OFFSET_FOUND_NULL, result->next);
    read->over = true;
    return false;
}

/* The same of the record at an offset in the file of newest ones. */
static bool newest_again(wr_topic_read *read, wr_record *record, const uint8_t **bytes) {
    wr_topic_read_result *result = &read->result;
    uint64_t next;
    int error = 0;
    const wr_message_kind kind = wr_newest_from(read->reader, read->request.queue, read->below, WR_COMPACTED_OFFSET, result->next, true, record, bytes, &next, &error);
    if (kind == WR_MESSAGE_ERROR) return fail(read, error);
    if (kind != WR_MESSAGE_THERE || record->queue_offset != result->next) return end_with(read, WR_READ_DAMAGED, next > result->next ? next : result->next + 1);
    result->next++;
    result->records_n++;
    return true;
}

bool wr_topic_read_again(wr_topic_read *read, wr_record *record, const uint8_t **bytes) {
    int error;
    read->result.next--;
    read->result.records_n--;
    if (read->result.next < read->below) return newest_again(read, record, bytes);
    read->at--;
    wr_message_kind kind = wr_topic_reader_record(read->reader, read->request.queue, read->result.next, &read->units[read->at], 0, true,
                                                  record, bytes, &error);
    if (kind == WR_MESSAGE_THERE) {
        step(read);
        read->result.records_n++;
        return true;
    }
    if (kind == WR_MESSAGE_NONE) kind = WR_MESSAGE_GONE;
    return take_other(read, kind, error);
}

uint64_t wr_topic_read_expected(const wr_topic_read *read, const wr_record *first) {
    const wr_topic_request *q = &read->request;
    uint64_t n = read->stop - first->queue_offset;
    const uint64_t fit = q->bytes_max / first->size + 1;
    if (n > fit) n = fit;
    return n < q->records_max ? n : q->records_max;
}

int wr_topic_read_end(wr_topic_read *read, wr_topic_read_result *result) {
    *result = read->result;
    return read->error;
}
