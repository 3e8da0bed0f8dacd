#define _GNU_SOURCE
#include "topics/reader.h"
#include "kernel/bytes.h"
#include "topics/compacted.h"
#include "topics/folder.h"
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>

#define PATIENCE_NS 100000000ull
#define SURE_BYTES (1u << 20) /* a larger record is read when its head says so, too: sizes of units are not believed */
#define RECORD_BYTES_MIN 64u  /* no record is smaller */

/* ---- begin and end ---- */

wr_topic_reader *wr_topic_reader_new(const wr_topic_place *place, uint32_t id, const char *name, uint32_t name_n) {
    if (!place->log_file_bytes || !place->consume_queue_entries || place->ring_bytes & (place->ring_bytes - 1)) return NULL;
    if (!name_n || name_n > NAME_MAX || memchr(name, '/', name_n) || memchr(name, 0, name_n) || name[0] == '.') return NULL;
    wr_topic_reader *r = calloc(1, sizeof *r);
    if (!r) return NULL;
    r->place = *place;
    r->patience_ns = PATIENCE_NS;
    r->id = id;
    r->name_n = name_n;
    wr_log_reader_init(&r->log, place->root, place->log_file_bytes);
    r->name = malloc((size_t)name_n + 1);
    r->index = wr_index_reader_new(place->root, "index", place->index_slots, place->index_entries, true);
    if (!r->name || !r->index) {
        wr_topic_reader_free(r);
        return NULL;
    }
    memcpy(r->name, name, name_n);
    r->name[name_n] = 0;
    return r;
}

static void close_queues(wr_topic_reader *r) {
    for (int i = 0; i < WR_TOPIC_QUEUES_OPEN; i++) {
        wr_queue_reader_free(r->queues[i].units);
        r->queues[i] = (wr_topic_queue_open){0};
    }
}

void wr_topic_reader_drop_newest(wr_topic_reader *r) {
    for (wr_topic_newest_open *o = r->newest; o < r->newest + WR_TOPIC_NEWEST_OPEN; o++) {
        wr_compacted_close(o->file);
        *o = (wr_topic_newest_open){0};
    }
}

void wr_topic_reader_free(wr_topic_reader *r) {
    if (!r) return;
    close_queues(r);
    wr_topic_reader_drop_newest(r);
    wr_index_reader_free(r->index);
    wr_log_reader_free(&r->log);
    free(r->watched);
    free(r->name);
    free(r);
}

void wr_topic_reader_begin(wr_topic_reader *r, const void *ring, wr_topic_rows *rows) {
    close_queues(r);
    wr_topic_reader_drop_newest(r);
    free(r->watched);
    r->watched = NULL;
    r->watched_n = 0;
    wr_log_reader_begin(&r->log, r->place.ring_bytes ? ring : NULL, r->place.ring_bytes);
    r->rows = rows;
}

/* ---- rows ---- */

/* The queue's place among the open ones. NULL: no memory. */
static wr_topic_queue_open *have_queue(wr_topic_reader *r, uint32_t queue) {
    wr_topic_queue_open *oldest = r->queues;
    for (wr_topic_queue_open *q = r->queues; q < r->queues + WR_TOPIC_QUEUES_OPEN; q++) {
        if (q->units && q->queue == queue) {
            q->used = ++r->uses;
            return q;
        }
        if (oldest->units && (!q->units || q->used < oldest->used)) oldest = q;
    }
    char folder[PATH_MAX];
    snprintf(folder, sizeof folder, WR_QUEUES_FOLDER "/%s/%u", r->name, queue);
    wr_queue_reader *units = wr_queue_reader_new(r->place.root, folder, r->place.consume_queue_entries);
    if (!units) return NULL;
    wr_queue_reader_free(oldest->units);
    *oldest = (wr_topic_queue_open){.queue = queue, .units = units, .used = ++r->uses};
    return oldest;
}

/* The queue with its row. */
static int have_row(wr_topic_reader *r, uint32_t queue, wr_topic_queue_open **to) {
    if (!r->rows) return ENXIO;
    wr_topic_queue_open *q = have_queue(r, queue);
    if (!q) return ENOMEM;
    if (!q->row && !(q->row = wr_topic_row_find(r->rows, r->id, queue))) return ENXIO;
    *to = q;
    return 0;
}

int wr_topic_reader_bounds(wr_topic_reader *r, uint32_t queue, wr_topic_bounds *bounds) {
    wr_topic_queue_open *q;
    int error = have_row(r, queue, &q);
    if (error) return error;
    /* SYNC row-maximum: units and records below it are there. The minimum is read before: it is never above. */
    bounds->minimum = atomic_load_explicit(&q->row->minimum, memory_order_acquire);
    bounds->maximum = atomic_load_explicit(&q->row->maximum, memory_order_acquire);
    if (!wr_topic_row_is(q->row, wr_topic_row_key(r->id, queue))) {
        q->row = NULL;
        return ENXIO;
    }
    if (bounds->maximum > WR_QUEUE_UNITS_MAX) bounds->maximum = WR_QUEUE_UNITS_MAX;
    if (bounds->minimum > bounds->maximum) bounds->minimum = bounds->maximum;
    return 0;
}

/* A count that stands in the row of the topic's queue 0. */
static int count_of(wr_topic_reader *r, bool halves, uint64_t *n) {
    wr_topic_queue_open *q;
    int error = have_row(r, 0, &q);
    if (error) return error;
    *n = atomic_load_explicit(halves ? &q->row->halves : &q->row->delayed, memory_order_acquire);
    if (wr_topic_row_is(q->row, wr_topic_row_key(r->id, 0))) return 0;
    q->row = NULL;
    return ENXIO;
}

int wr_topic_reader_delayed(wr_topic_reader *r, uint64_t *n) { return count_of(r, false, n); }

int wr_topic_reader_halves(wr_topic_reader *r, uint64_t *n) { return count_of(r, true, n); }

uint64_t wr_topic_reader_unshown(const wr_topic_reader *r) {
    const uint64_t number = r->rows ? wr_topic_confirmed_commit(r->rows) : 0;
    return number && !wr_topic_is_shown(r->rows, number) ? number : 0;
}

void wr_topic_reader_catch_up(wr_topic_reader *r, uint64_t unshown) {
    if (!unshown) return;
    int error = 0;
    for (uint64_t now = wr_now_ns(), until = now + r->patience_ns; now < until && error != EINTR; now = wr_now_ns()) {
        error = wr_topic_wait_shown(r->rows, unshown, until - now);
        if (wr_topic_is_shown(r->rows, unshown) || wr_topic_is_held(r->rows)) return;
    }
    r->behind = true;
}

int wr_topic_reader_all(wr_topic_reader *r, uint32_t queue, wr_topic_bounds *bounds) {
    wr_topic_queue_open *q;
    int error = have_row(r, queue, &q);
    if (error) return error;
    const uint64_t unshown = wr_topic_reader_unshown(r);
    /* SYNC topic-confirmed: what was appended to the queue by then is counted */
    if (unshown && atomic_load_explicit(&q->row->appended, memory_order_relaxed) > atomic_load_explicit(&q->row->maximum, memory_order_relaxed))
        wr_topic_reader_catch_up(r, unshown);
    return wr_topic_reader_bounds(r, queue, bounds);
}

uint64_t wr_topic_reader_first(const wr_topic_reader *r) {
    return r->rows ? atomic_load_explicit(&r->rows->first, memory_order_acquire) : 0;
}

int wr_topic_reader_wait(wr_topic_reader *r, uint32_t queue, uint64_t seen, uint64_t timeout_ns) {
    wr_topic_queue_open *q;
    int error = have_row(r, queue, &q);
    return error ? error : wr_topic_wait(r->rows, q->row, wr_topic_row_key(r->id, queue), seen, timeout_ns);
}

/* ---- several queues ---- */

/* The rows of these queues are known. */
static int have_watched(wr_topic_reader *r, const wr_topic_seen *queues, uint32_t n) {
    if (!r->rows) return ENXIO;
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t queue = queues[i].queue;
        if (queue >= WR_TOPIC_ROWS_MAX) return ENXIO;
        if (queue >= r->watched_n) {
            wr_topic_row **more = realloc(r->watched, (queue + 1) * sizeof *more);
            if (!more) return ENOMEM;
            memset(more + r->watched_n, 0, (queue + 1 - r->watched_n) * sizeof *more);
            r->watched = more;
            r->watched_n = queue + 1;
        }
        if (!r->watched[queue] && !(r->watched[queue] = wr_topic_row_find(r->rows, r->id, queue))) return ENXIO;
    }
    return 0;
}

/* What there is of these queues, whose rows are known. *late: some have messages that are not shown yet. */
static int look_at_any(wr_topic_reader *r, const wr_topic_seen *queues, uint32_t n, const wr_topic_group_seen *group, uint32_t *which, bool *late) {
    *late = false;
    *which = wr_topic_group_changed(r->rows, group) ? WR_TOPIC_GROUP_CHANGED : WR_TOPIC_NOTHING;
    for (uint32_t i = 0; i < n; i++) {
        wr_topic_row *row = r->watched[queues[i].queue];
        /* SYNC row-maximum, row-key: as wr_topic_reader_bounds */
        const uint64_t appended = atomic_load_explicit(&row->appended, memory_order_relaxed);
        const uint64_t maximum = atomic_load_explicit(&row->maximum, memory_order_acquire);
        if (!wr_topic_row_is(row, wr_topic_row_key(r->id, queues[i].queue))) {
            r->watched[queues[i].queue] = NULL;
            return ENXIO;
        }
        *late |= appended > maximum;
        if (*which == WR_TOPIC_NOTHING && maximum != queues[i].seen) *which = i;
    }
    return 0;
}

int wr_topic_reader_wait_any(wr_topic_reader *r, const wr_topic_seen *queues, uint32_t n, const wr_topic_group_seen *group, uint64_t timeout_ns,
                             uint32_t *which) {
    bool late;
    int error = have_watched(r, queues, n);
    if (error) return error;
    const uint64_t until = wr_now_ns() + timeout_ns;
    /* SYNC topic-confirmed: what was appended by then is counted in the rows that are read behind it */
    const uint64_t unshown = wr_topic_reader_unshown(r);
    if ((error = look_at_any(r, queues, n, group, which, &late)) || *which != WR_TOPIC_NOTHING) return error;
    if (unshown && late) {
        wr_topic_reader_catch_up(r, unshown);
        if ((error = look_at_any(r, queues, n, group, which, &late)) || *which != WR_TOPIC_NOTHING) return error;
    }
    const uint64_t now = wr_now_ns();
    if (now >= until || r->behind) return 0;
    wr_topic_wake *wake = wr_topic_wake_of(r->rows, r->id);
    /* SYNC row-wait: as wr_topic_wait, for the queues and the group's stamp */
    atomic_fetch_add_explicit(&wake->waiters, 1, memory_order_seq_cst);
    const uint32_t sequence = atomic_load_explicit(&wake->sequence, memory_order_acquire);
    atomic_thread_fence(memory_order_seq_cst);
    error = look_at_any(r, queues, n, group, which, &late);
    int slept = error || *which != WR_TOPIC_NOTHING ? 0 : wr_futex_wait(&wake->sequence, sequence, until - now);
    atomic_fetch_sub_explicit(&wake->waiters, 1, memory_order_relaxed);
    if (error || *which != WR_TOPIC_NOTHING) return error;
    if (slept == EINTR) return EINTR;
    return look_at_any(r, queues, n, group, which, &late);
}

/* ---- units ---- */

int wr_topic_reader_units(wr_topic_reader *r, uint32_t queue, uint64_t offset, wr_unit *units, uint32_t most, uint32_t *found) {
    wr_topic_queue_open *q = have_queue(r, queue);
    *found = 0;
    return q ? wr_queue_reader_all(q->units, offset, units, most, found) : ENOMEM;
}

int wr_topic_reader_file(wr_topic_reader *r, uint32_t queue, uint64_t offset, bool down, uint64_t *first) {
    wr_topic_queue_open *q = have_queue(r, queue);
    return q ? wr_queue_reader_file(q->units, offset, down, first) : ENOMEM;
}

/* ---- damage ---- */

static void unit_place(wr_topic_reader *r, uint32_t queue, uint64_t offset) {
    uint64_t base = offset - offset % r->place.consume_queue_entries;
    wr_topic_damage *d = &r->damage;
    snprintf(d->file, sizeof d->file, WR_QUEUES_FOLDER "/%s/%u/%020llu", r->name, queue,
             (unsigned long long)base * WR_CONSUME_QUEUE_UNIT_SIZE);
    d->position = (offset - base) * WR_CONSUME_QUEUE_UNIT_SIZE;
}

void wr_topic_reader_lacks(wr_topic_reader *r, uint32_t queue, uint64_t offset) {
    unit_place(r, queue, offset);
    snprintf(r->damage.expected, WR_DAMAGE_WORDS, "where message %llu of queue %u lies", (unsigned long long)offset, queue);
    snprintf(r->damage.found, WR_DAMAGE_WORDS, "no bytes");
}

static void no_record(wr_topic_reader *r, uint32_t queue, uint64_t offset, const wr_unit *unit, const char *found) {
    wr_topic_damage *d = &r->damage;
    uint64_t base = unit->physical_offset - unit->physical_offset % r->place.log_file_bytes;
    snprintf(d->file, sizeof d->file, WR_LOG_FOLDER "/%020llu", (unsigned long long)base);
    d->position = unit->physical_offset - base;
    snprintf(d->expected, WR_DAMAGE_WORDS, "message %llu of queue %u, %u bytes", (unsigned long long)offset, queue, unit->size);
    snprintf(d->found, WR_DAMAGE_WORDS, "%s", found);
}

/* Where the log ends, at most; without its worker's memory its files say so. UINT64_MAX: nothing does. */
static uint64_t log_end(const wr_topic_reader *r) {
    /* SYNC ring-appended: who reads a unit reads this behind it */
    const wr_topic_ring *ring = r->log.ring;
    uint64_t end = ring ? atomic_load_explicit(&ring->appended, memory_order_acquire) : 0;
    wr_folder_list list;
    if (end) return end;
    if (!wr_folder_read(r->place.root, WR_LOG_FOLDER, WR_FOLDER_NAME_MAX, &list) && list.n)
        end = strtoull(list.names[list.n - 1], NULL, 10) + r->place.log_file_bytes;
    wr_folder_list_free(&list);
    return end ? end : UINT64_MAX;
}

/* Why no record can lie where a unit says; NULL: one can. */
static const char *leads_nowhere(const wr_topic_reader *r, const wr_unit *unit) {
    const uint64_t left = r->place.log_file_bytes - unit->physical_offset % r->place.log_file_bytes;
    if (unit->physical_offset >> 63) return "a position that is none";
    if (unit->size < RECORD_BYTES_MIN) return "a size that no record has";
    if (unit->size > left) return "a size that its file has no room for";
    if (unit->physical_offset < wr_topic_reader_first(r)) return "before the log's begin";
    return unit->physical_offset + unit->size > log_end(r) ? "behind the log's end" : NULL;
}

static void bad_unit(wr_topic_reader *r, uint32_t queue, uint64_t offset, const wr_unit *unit, const char *why) {
    wr_topic_reader_lacks(r, queue, offset);
    snprintf(r->damage.found, WR_DAMAGE_WORDS, "position %llu and size %u: %s", (unsigned long long)unit->physical_offset, unit->size, why);
}

static void is_zeros(wr_topic_reader *r, uint32_t queue, uint64_t offset) {
    wr_topic_reader_lacks(r, queue, offset);
    snprintf(r->damage.found, WR_DAMAGE_WORDS, "zeros");
}

/* ---- records ---- */

bool wr_topic_reader_owns(const wr_topic_reader *r, const wr_record *record, const uint8_t *bytes) {
    return (record->flag == r->id || !record->flag) && record->topic_length == r->name_n &&
           !memcmp(bytes + record->topic_at, r->name, r->name_n);
}

/* What is wrong with the record that a unit leads to; NULL: nothing, or *error. */
static const char *look(wr_topic_reader *r, uint32_t queue, uint64_t offset, const wr_unit *unit, uint64_t ahead, bool sum, wr_record *record,
                        const uint8_t **bytes, int *error) {
    const uint64_t left = r->place.log_file_bytes - unit->physical_offset % r->place.log_file_bytes;
    *error = 0;
    if (unit->physical_offset >> 63 || unit->size > left) return "nowhere";
    if (unit->size > SURE_BYTES) {
        uint64_t n;
        *error = wr_log_reader_peek(&r->log, unit->physical_offset, WR_LOG_HEAD_SIZE, bytes, &n);
        if (*error) return NULL;
        if (n < WR_LOG_HEAD_SIZE || wr_get32(*bytes + WR_LOG_HEAD_AT_SIZE) != unit->size) return "another size";
    }
    *error = wr_log_reader_get(&r->log, unit->physical_offset, unit->size, ahead, bytes);
    if (*error == ENODATA) {
        *error = 0;
        return "the end of the file";
    }
    if (*error) return NULL;
    wr_scan found = wr_record_scan(*bytes, unit->size, unit->physical_offset, sum ? WR_SCAN_ALL : WR_SCAN_TEXT, record);
    if (found == WR_SCAN_END) return "zeros";
    if (found == WR_SCAN_BLANK) return "the end of the log's file";
    if (found == WR_SCAN_BAD) {
        static _Thread_local char words[64];
        snprintf(words, sizeof words, "no record: %s", wr_record_word(record->reason));
        return words;
    }
    if (record->size != unit->size) return "another size";
    if (record->queue_offset != offset || record->queue_id != queue) return "another message";
    return wr_topic_reader_owns(r, record, *bytes) ? NULL : "a message of another topic";
}

/* May the message be gone, with its file, or its topic? Not for a unit that leads further back than any message of the queue lies. */
static bool is_gone(wr_topic_reader *r, uint32_t queue, uint64_t offset, const wr_unit *unit) {
    wr_topic_queue_open *q;
    wr_topic_bounds bounds;
    if (have_row(r, queue, &q)) return true;
    /* SYNC row-from: whoever sees it sees the minimum that it is of */
    const uint64_t from = atomic_load_explicit(&q->row->from, memory_order_acquire), first = wr_topic_reader_first(r);
    if (wr_topic_reader_bounds(r, queue, &bounds) || offset < bounds.minimum) return true;
    return unit->physical_offset < first && unit->physical_offset >= from;
}

/* The same where nothing is known of where it lay. */
static bool unit_is_gone(wr_topic_reader *r, uint32_t queue, uint64_t offset) {
    const wr_unit nowhere = {.physical_offset = UINT64_MAX};
    return is_gone(r, queue, offset, &nowhere);
}

/* Units, of a file that is opened now. */
static int units_anew(wr_topic_reader *r, uint32_t queue, uint64_t offset, wr_unit *units, uint32_t most, uint32_t *found) {
    wr_topic_queue_open *q = have_queue(r, queue);
    if (q) wr_queue_reader_drop(q->units);
    return wr_topic_reader_units(r, queue, offset, units, most, found);
}

wr_message_kind wr_topic_reader_unit_again(wr_topic_reader *r, uint32_t queue, uint64_t offset, wr_unit *unit, uint32_t most, uint32_t *zeros,
                                           int *error) {
    wr_unit units[WR_TOPIC_UNITS_AGAIN];
    uint32_t found;
    *zeros = 0;
    if (most > WR_TOPIC_UNITS_AGAIN) most = WR_TOPIC_UNITS_AGAIN;
    if ((*error = units_anew(r, queue, offset, units, most, &found))) return WR_MESSAGE_ERROR;
    while (*zeros < found && wr_unit_is_zeros(&units[*zeros])) ++*zeros;
    if (found && !*zeros) {
        *unit = units[0];
        return WR_MESSAGE_THERE;
    }
    if (unit_is_gone(r, queue, offset)) return WR_MESSAGE_GONE;
    if (found) is_zeros(r, queue, offset);
    else wr_topic_reader_lacks(r, queue, offset);
    return WR_MESSAGE_DAMAGED;
}

wr_message_kind wr_topic_reader_record(wr_topic_reader *r, uint32_t queue, uint64_t offset, const wr_unit *unit, uint64_t ahead, bool sum,
                                       wr_record *record, const uint8_t **bytes, int *error) {
    const char *wrong = look(r, queue, offset, unit, ahead, sum, record, bytes, error);
    if (!wrong && !*error) return WR_MESSAGE_THERE;
    if (*error && *error != ENOENT) return WR_MESSAGE_ERROR;
    /* Once more, from the beginning. */
    wr_unit again;
    uint32_t found;
    wr_log_reader_begin(&r->log, r->log.ring, r->log.ring_bytes);
    if ((*error = units_anew(r, queue, offset, &again, 1, &found))) return WR_MESSAGE_ERROR;
    if (found && wr_unit_is_empty(&again)) return WR_MESSAGE_NONE;
    if (!found || !again.size) {
        if (is_gone(r, queue, offset, unit)) return WR_MESSAGE_GONE;
        if (found) is_zeros(r, queue, offset);
        else wr_topic_reader_lacks(r, queue, offset);
        return WR_MESSAGE_DAMAGED;
    }
    wrong = look(r, queue, offset, &again, 0, true, record, bytes, error);
    if (!wrong && !*error) return WR_MESSAGE_THERE;
    if (*error && *error != ENOENT) return WR_MESSAGE_ERROR;
    wr_log_reader_drop(&r->log);
    if (is_gone(r, queue, offset, &again)) return WR_MESSAGE_GONE;
    const char *nowhere = leads_nowhere(r, &again);
    if (nowhere) bad_unit(r, queue, offset, &again, nowhere);
    else no_record(r, queue, offset, &again, wrong ? wrong : "no such file");
    *error = 0;
    return WR_MESSAGE_DAMAGED;
}
