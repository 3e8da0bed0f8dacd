/* The survey of a log. Declared in topics/survey.h. */
#define _GNU_SOURCE
#include "topics/survey.h"
#include "topics/bounds.h"
#include "topics/log_search.h"
#include "topics/record.h"
#include "topics/system_topics.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define TELL_BYTES (16ull << 20)

static int open_log(void *context, uint64_t base) { return wr_log_open_file(((const wr_survey *)context)->root, base, false); }

/* The row of a queue, which begins at an offset if it is new. NULL: no memory. */
static wr_surveyed *row_of(wr_survey *s, uint32_t topic, uint32_t queue, uint64_t offset) {
    uint64_t *number = wr_map_put(&s->by_queue, topic, queue);
    if (!number) return NULL;
    if (*number) return &s->rows[*number - 1];
    if (s->rows_n == s->rows_room) {
        const uint32_t room = s->rows_room ? 2 * s->rows_room : 64;
        wr_surveyed *rows = realloc(s->rows, room * sizeof *rows);
        if (!rows) return NULL;
        s->rows = rows;
        s->rows_room = room;
    }
    s->rows[s->rows_n] = (wr_surveyed){topic, queue, offset, offset};
    *number = ++s->rows_n;
    return &s->rows[s->rows_n - 1];
}

/* What retention or an earlier loss took: a queue continues at `next`, and has nothing else if nothing of it was seen. */
static int see_bounds(wr_survey *s, const uint8_t *body, uint64_t n, bool lost) {
    uint64_t first;
    uint32_t rows_n;
    if (!wr_bounds_read(body, n, &first, &rows_n)) return 0;
    if (first > s->first) s->first = first;
    for (uint32_t i = 0; i < rows_n; i++) {
        const uint8_t *from = body + WR_BOUNDS_SIZE + (uint64_t)i * WR_BOUND_SIZE;
        const uint64_t minimum = wr_get64(from + WR_BOUND_AT_MINIMUM), next = wr_get64(from + WR_BOUND_AT_NEXT);
        wr_surveyed *row = row_of(s, wr_get32(from + WR_BOUND_AT_TOPIC), wr_get32(from + WR_BOUND_AT_QUEUE), lost ? minimum : next);
        if (!row) return ENOMEM;
        if (next > row->next) row->next = next;
    }
    return 0;
}

static int see_record(wr_survey *s, const uint8_t *bytes, const wr_record *r) {
    const uint8_t *name = bytes + r->topic_at;
    const uint32_t kind = r->sys_flag & WR_SYS_TRANSACTION_MASK;
    const bool lost = wr_is_lost(name, r->topic_length);
    if (lost || wr_is_bounds(name, r->topic_length)) return see_bounds(s, bytes + r->body_at, r->body_length, lost);
    if (wr_system_is(name, r->topic_length) || kind == WR_SYS_PREPARED || kind == WR_SYS_ROLLBACK || !r->flag) return 0;
    wr_surveyed *row = row_of(s, r->flag, r->queue_id, r->queue_offset);
    if (!row) return ENOMEM;
    if (r->queue_offset >= row->next) row->next = r->queue_offset + 1;
    return 0;
}

static int see_commit(void *context, const uint8_t *bytes, uint64_t n, const wr_commit_head *head, const uint8_t *marks) {
    (void)marks;
    wr_survey *s = context;
    wr_record record;
    int error = 0;
    const uint64_t records_n = n - wr_commit_record_bytes(head->marks_n);
    for (uint64_t at = 0; !error && at < records_n; at += record.size) {
        if (wr_record_scan(bytes + at, n - at, head->from + at, 0, &record) != WR_SCAN_RECORD) return EUCLEAN;
        error = see_record(s, bytes + at, &record);
    }
    if (error || !s->progress || head->from - s->told < TELL_BYTES) return error;
    s->told = head->from;
    return s->progress(s->context, head->from);
}

int wr_survey_walk(wr_survey *s, uint64_t position, bool anew, wr_commit_head *after, wr_log_end *end) {
    static const wr_log_visitor visitor = {open_log, see_commit};
    s->told = position;
    int error = anew ? wr_log_before(&visitor, s, s->file_bytes, position, after) : 0;
    if (error && error != ENOENT) return error;
    return wr_log_walk(&visitor, s, s->file_bytes, position, after, end);
}

void wr_survey_free(wr_survey *s) {
    free(s->rows);
    wr_map_free(&s->by_queue);
    s->rows = NULL;
    s->rows_n = s->rows_room = 0;
}
