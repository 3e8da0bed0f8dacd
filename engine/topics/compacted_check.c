/* A look at all of a file of newest records. Declared in topics/compacted_check.h. */
#define _GNU_SOURCE
#include "topics/compacted_check.h"
#include "kernel/bytes.h"
#include "topics/properties.h"
#include <errno.h>

#define TELL_BYTES (16ull << 20)

static const char unreadable[] = "the disk does not give it";

typedef struct {
    const wr_compacted_check *check;
    wr_compacted *file;
    uint64_t records_n, keys_n, tombstones_n; /* that are sound */
    uint64_t position, time;                  /* of the last of them */
    uint64_t told;
    bool lost;       /* something is, so numbers need not fit */
    bool tombstones; /* those of the table are those that were met */
} a_look;

static int tell(a_look *l, const char *reason, uint64_t at, uint64_t first, uint64_t next) {
    const wr_compacted_wrong wrong = {at, first, next, reason};
    if (first < next) l->lost = true;
    return l->check->wrong(l->check->context, &wrong);
}

/* Of what is there twice, and does not fit: no record is lost by that. */
static int tell_of_all(a_look *l, const char *reason, uint64_t at) { return tell(l, reason, at, l->file->id.end, l->file->id.end); }

/* ---- records ---- */

static bool is_of_topic(const a_look *l, const wr_record *record, const uint8_t *bytes) {
    return record->topic_length == l->check->name_n && !memcmp(bytes + record->topic_at, l->check->name, l->check->name_n) &&
           (!record->flag || record->flag == l->file->id.topic); /* without an id it goes by its name, as in the log */
}

/* NULL: it is sound. Its block has its checksum, so what is found here was written so. */
static const char *look_at_record(const a_look *l, const wr_record *record, const uint8_t *bytes) {
    wr_record again;
    if (wr_record_scan(bytes, record->size, record->physical_offset, WR_SCAN_ALL, &again) != WR_SCAN_RECORD) return "a record is damaged in itself";
    if (!is_of_topic(l, record, bytes)) return "a record is another topic's";
    if (l->records_n && (record->physical_offset <= l->position || record->store_timestamp < l->time)) return "a record is in no order";
    return NULL;
}

static void count_keys(a_look *l, const wr_record *record, const uint8_t *bytes) {
    wr_known_properties known;
    wr_text key;
    wr_properties_known(bytes + record->properties_at, record->properties_length, &known);
    for (uint32_t at = 0; wr_keys_next(known.keys, &at, &key);) l->keys_n++;
    if (known.uniq_key.n) l->keys_n++;
}

static int keep(a_look *l, const wr_record *record, const uint8_t *bytes) {
    const wr_compacted *f = l->file;
    if (!record->body_length) {
        const uint64_t i = l->tombstones_n++;
        if (i >= f->tombstones_n || wr_get64(wr_compacted_tombstone(f, i) + WR_COMPACTED_TOMBSTONE_AT_OFFSET) != record->queue_offset) l->tombstones = false;
    }
    count_keys(l, record, bytes);
    l->records_n++;
    l->position = record->physical_offset;
    l->time = record->store_timestamp;
    if (!l->check->writer || record->queue_offset >= l->check->writer->id.end) return 0;
    return wr_compacted_put(l->check->writer, record, bytes, record->body_length ? 0 : wr_compacted_since(f, record->queue_offset));
}

static bool is_first_of(const wr_compacted *f, uint64_t i, const wr_record *record) {
    const uint8_t *place = wr_compacted_place(f, i);
    return wr_get64(place + WR_COMPACTED_PLACE_AT_OFFSET) == record->queue_offset &&
           wr_get64(place + WR_COMPACTED_PLACE_AT_POSITION) == record->physical_offset &&
           wr_get64(place + WR_COMPACTED_PLACE_AT_STORE_TIMESTAMP) == record->store_timestamp;
}

/* The file has the block at hand, and gave all its records. */
static bool is_over(const wr_compacted *f, uint64_t i) { return f->block_i == i && f->block_at == f->block_n; }

static int look_at_block(a_look *l, uint64_t i) {
    wr_compacted *f = l->file;
    const uint64_t first = wr_compacted_block_offset(f, i), end = wr_compacted_block_offset(f, i + 1);
    wr_record record;
    const uint8_t *bytes;
    int error = 0;
    for (uint64_t at = first; !error && (at == first || !is_over(f, i)); at = record.queue_offset + 1) {
        const wr_compacted_code code = wr_compacted_from(f, WR_COMPACTED_OFFSET, at, &record, &bytes, &error);
        if (code == WR_COMPACTED_ERROR) return error == EIO ? tell(l, unreadable, wr_compacted_block_at(f, i), at, end) : error;
        if (code == WR_COMPACTED_DAMAGED) return tell(l, f->wrong, f->wrong_at, at, end);
        if (code == WR_COMPACTED_NONE || record.queue_offset >= end) return tell(l, "a block does not have its records", wr_compacted_block_at(f, i), at, end);
        if (at == first && !is_first_of(f, i, &record)) error = tell_of_all(l, "a block begins with another record", wr_compacted_block_at(f, i));
        const char *wrong = look_at_record(l, &record, bytes);
        const uint64_t place = wr_compacted_block_at(f, i) + (uint64_t)(bytes - f->block);
        if (!error) error = wrong ? tell(l, wrong, place, record.queue_offset, record.queue_offset + 1) : keep(l, &record, bytes);
    }
    return error;
}

/* ---- the rest ---- */

static int look_at_keys(a_look *l) {
    int error = 0;
    switch (wr_compacted_check_keys(l->file, &error)) {
        case WR_COMPACTED_ERROR: return error == EIO ? tell_of_all(l, unreadable, l->file->keys_at) : error;
        case WR_COMPACTED_DAMAGED: return tell_of_all(l, l->file->wrong, l->file->wrong_at);
        default: return 0;
    }
}

/* What the head and the tables say of the records. */
static int look_at_numbers(a_look *l) {
    const wr_compacted *f = l->file;
    int error = 0;
    if (l->lost) return 0;
    if (l->records_n != f->records_n) error = tell_of_all(l, "its head has another number of records", 0);
    if (!error && l->keys_n != f->keys_n) error = tell_of_all(l, "its keys are not those of its records", f->keys_at);
    if (!error && (!l->tombstones || l->tombstones_n != f->tombstones_n))
        error = tell_of_all(l, "its tombstones are not those of its records", f->size - f->tombstones_n * WR_COMPACTED_TOMBSTONE_SIZE);
    return error;
}

static int go_on(a_look *l, uint64_t at) {
    if (at - l->told < TELL_BYTES) return 0;
    l->told = at;
    return l->check->progress(l->check->context);
}

int wr_compacted_check_all(const wr_compacted_check *check, uint64_t *records_n) {
    a_look l = {.check = check, .file = check->file, .tombstones = true};
    int error = 0;
    for (uint64_t i = 0; !error && i < check->file->blocks_n; i++) {
        error = look_at_block(&l, i);
        if (!error) error = go_on(&l, wr_compacted_block_at(check->file, i));
    }
    if (!error) error = look_at_keys(&l);
    if (!error) error = look_at_numbers(&l);
    *records_n = l.records_n;
    return error;
}
