/* Derived files against the log. What it is: topics/examine.h. */
#define _GNU_SOURCE
#include "topics/examine.h"
#include "kernel/map.h"
#include "kernel/protocol.h"
#include "topics/bounds.h"
#include "topics/hash.h"
#include "topics/index_walk.h"
#include "topics/log_search.h"
#include "topics/properties.h"
#include "topics/queue_files.h"
#include "topics/queue_folders.h"
#include "topics/record.h"
#include "topics/system_topics.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define INDEX "index"
#define UNITS_READ 256u
#define TELL_BYTES (16ull << 20)
#define NONE UINT32_MAX

typedef struct {
    uint64_t next;     /* offset behind the last record that was seen */
    bool any;          /* there was one */
    uint64_t minimum;  /* by the checkpoint */
    uint64_t told;     /* minimum by the checkpoint, or by bounds */
    bool known;        /* something says what `next` is */
    uint64_t log_from; /* 1 more than the offset of the first record that was seen; 0: none was */
    wr_unit *units;    /* in memory, from `from` on */
    uint64_t from;
    uint32_t units_n;
    uint64_t wrong_base; /* file of the consume queue … */
    uint32_t wrong;      /* … of which this was found; NONE: nothing yet */
} a_row;

typedef struct {
    uint32_t id, queues_n, name_n, key_hash;
    char *name;
    a_row *rows;
} a_topic;

struct wr_examine {
    wr_dispatch_place place;
    uint64_t limit;
    uint64_t reached; /* the log was whole up to here */
    uint64_t base; /* of the first file that was walked */
    uint64_t keys_from; /* keys of records below it may be gone */
    bool any;
    a_topic *topics;
    uint32_t topics_n, topics_room;
    wr_map by_id;
    wr_index_walk index;
    wr_examine_wrong *wrongs;
    uint32_t wrongs_n, wrongs_room;
    uint32_t index_wrong; /* the last one of the index */
    int error;            /* of noting something */
    uint64_t sound_from;  /* of the log: commits follow each other from here on */
    wr_examine_counts counts;
    wr_examine_progress progress;
    void *context;
    uint64_t told;
};

/* ---- what is wrong ---- */

/* One more of a file; *number: of its entry in the list, NONE: not yet. */
static void note(wr_examine *e, uint32_t *number, const char *file, uint64_t n, uint64_t at, const char *reason) {
    if (*number == NONE) {
        if (e->wrongs_n == e->wrongs_room) {
            const uint32_t room = e->wrongs_room ? 2 * e->wrongs_room : 16;
            wr_examine_wrong *wrongs = realloc(e->wrongs, room * sizeof *wrongs);
            if (!wrongs) {
                e->error = ENOMEM;
                return;
            }
            e->wrongs = wrongs;
            e->wrongs_room = room;
        }
        *number = e->wrongs_n++;
        e->wrongs[*number] = (wr_examine_wrong){.at = at, .reason = reason};
        snprintf(e->wrongs[*number].file, sizeof e->wrongs[*number].file, "%s", file);
    }
    e->wrongs[*number].count += n;
}

static void unit_wrong(wr_examine *e, const a_topic *topic, uint32_t queue, uint64_t offset, const char *reason) {
    a_row *row = &topic->rows[queue];
    const uint64_t bytes = (uint64_t)e->place.consume_queue_entries * WR_CONSUME_QUEUE_UNIT_SIZE, at = offset * WR_CONSUME_QUEUE_UNIT_SIZE;
    char folder[PATH_MAX], file[PATH_MAX + 32];
    if (row->wrong_base != at / bytes) row->wrong = NONE;
    row->wrong_base = at / bytes;
    wr_queue_folder(topic->name, queue, folder);
    snprintf(file, sizeof file, "%s/%020llu", folder, (unsigned long long)(at / bytes * bytes));
    note(e, &row->wrong, file, 1, at % bytes, reason);
}

/* Of a file of the index; the walk calls it, too. */
static void key_wrong(void *context, const char *name, uint64_t at, const char *reason) {
    wr_examine *e = context;
    char file[64];
    snprintf(file, sizeof file, INDEX "/%s", name);
    if (e->index_wrong != NONE && strcmp(e->wrongs[e->index_wrong].file, file)) e->index_wrong = NONE;
    note(e, &e->index_wrong, file, 1, at, reason);
}

/* ---- begin and end ---- */

wr_examine *wr_examine_new(const wr_dispatch_place *place, uint64_t limit, const wr_index_mark *synced) {
    if (!place->consume_queue_entries || !place->log_file_bytes || !place->index_slots || place->index_entries < 2) return NULL;
    wr_examine *e = calloc(1, sizeof *e);
    if (!e) return NULL;
    e->place = *place;
    e->limit = limit;
    e->index_wrong = NONE;
    int error = wr_index_walk_begin(&e->index, place->root, INDEX, place->index_slots, place->index_entries);
    e->index.wrong = key_wrong;
    e->index.context = e;
    if (!error && synced) wr_index_walk_only(&e->index, synced->name, synced->count);
    if (!error) return e;
    wr_examine_free(e);
    errno = error;
    return NULL;
}

void wr_examine_free(wr_examine *e) {
    if (!e) return;
    for (uint32_t i = 0; i < e->topics_n; i++) {
        for (uint32_t queue = 0; queue < e->topics[i].queues_n; queue++) free(e->topics[i].rows[queue].units);
        free(e->topics[i].name);
        free(e->topics[i].rows);
    }
    wr_index_walk_end(&e->index);
    free(e->by_id.rows);
    free(e->topics);
    free(e->wrongs);
    free(e);
}

int wr_examine_add(wr_examine *e, const wr_dispatch_topic *topic) {
    if (e->topics_n == e->topics_room) {
        const uint32_t room = e->topics_room ? 2 * e->topics_room : 16;
        a_topic *topics = realloc(e->topics, room * sizeof *topics);
        if (!topics) return ENOMEM;
        e->topics = topics;
        e->topics_room = room;
    }
    a_topic new = {.id = topic->id, .queues_n = topic->queues_n, .name_n = topic->name_n, .key_hash = wr_key_hash_topic(topic->name, topic->name_n),
                   .name = strndup(topic->name, topic->name_n), .rows = calloc(topic->queues_n, sizeof *new.rows)};
    uint64_t *by_id = new.name && new.rows ? wr_map_put(&e->by_id, topic->id, 0) : NULL;
    if (!by_id) {
        free(new.name);
        free(new.rows);
        return ENOMEM;
    }
    for (uint32_t queue = 0; queue < new.queues_n; queue++) new.rows[queue].wrong = NONE;
    e->topics[e->topics_n++] = new;
    *by_id = e->topics_n;
    return 0;
}

/* Of a queue of a topic that is known; NULL: it is not. */
static a_row *row_of(const wr_examine *e, uint32_t id, uint32_t queue) {
    const uint64_t *found = wr_map_find(&e->by_id, id, 0);
    return found && queue < e->topics[*found - 1].queues_n ? &e->topics[*found - 1].rows[queue] : NULL;
}

void wr_examine_minimum(wr_examine *e, uint32_t id, uint32_t queue, uint64_t minimum) {
    a_row *row = row_of(e, id, queue);
    if (row) row->minimum = row->told = minimum;
}

uint64_t wr_examine_told(const wr_examine *e, uint32_t id, uint32_t queue) {
    const a_row *row = row_of(e, id, queue);
    return row ? row->told : 0;
}

uint64_t wr_examine_log_from(const wr_examine *e, uint32_t id, uint32_t queue) {
    const a_row *row = row_of(e, id, queue);
    return row && row->log_from ? row->log_from - 1 : UINT64_MAX;
}

void wr_examine_first(wr_examine *e, uint64_t first) {
    if (first > e->counts.first) e->counts.first = first;
    if (first > e->keys_from) e->keys_from = first;
}

void wr_examine_reached(wr_examine *e, uint64_t position) { e->reached = position; }

const wr_examine_counts *wr_examine_counted(const wr_examine *e) { return &e->counts; }
const wr_examine_wrong *wr_examine_found(const wr_examine *e, uint32_t *n) {
    *n = e->wrongs_n;
    return e->wrongs;
}

/* ---- units ---- */

static bool is_of(const a_topic *topic, const wr_record *r, const uint8_t *name) {
    return topic->name_n == r->topic_length && !memcmp(topic->name, name, topic->name_n);
}

/* The topic of a record. One without an id is a foreign log's, and goes by its name. */
static a_topic *topic_of(const wr_examine *e, const wr_record *r, const uint8_t *name) {
    if (r->flag) {
        const uint64_t *found = wr_map_find(&e->by_id, r->flag, 0);
        a_topic *topic = found ? &e->topics[*found - 1] : NULL;
        return topic && is_of(topic, r, name) && r->queue_id < topic->queues_n ? topic : NULL;
    }
    for (uint32_t i = 0; i < e->topics_n; i++)
        if (is_of(&e->topics[i], r, name)) return r->queue_id < e->topics[i].queues_n ? &e->topics[i] : NULL;
    return NULL;
}

/* Have the unit of an offset in memory, if its file has a place for it. */
static int have_unit(const wr_examine *e, const a_topic *topic, uint32_t queue, uint64_t offset) {
    a_row *row = &topic->rows[queue];
    char folder[PATH_MAX];
    if (row->units_n && offset >= row->from && offset - row->from < row->units_n) return 0;
    if (!row->units && !(row->units = malloc(UNITS_READ * sizeof *row->units))) return ENOMEM;
    wr_queue_folder(topic->name, queue, folder);
    wr_queue_reader *reader = wr_queue_reader_new(e->place.root, folder, e->place.consume_queue_entries);
    if (!reader) return ENOMEM;
    row->from = offset;
    row->units_n = 0;
    int error = wr_queue_reader_all(reader, offset, row->units, UNITS_READ, &row->units_n);
    wr_queue_reader_free(reader);
    return error == ENOENT ? 0 : error;
}

/* Of offsets without a record the units say so, or have what was lost: zeros are neither. */
static int examine_gap(wr_examine *e, const a_topic *topic, uint32_t queue, uint64_t from, uint64_t to) {
    const a_row *row = &topic->rows[queue];
    while (from < to) {
        int error = have_unit(e, topic, queue, from);
        if (error) return error;
        if (from - row->from >= row->units_n) { /* the file is not there */
            unit_wrong(e, topic, queue, from, "a unit is missing");
            from += e->place.consume_queue_entries - from % e->place.consume_queue_entries;
            continue;
        }
        const wr_unit *unit = &row->units[from - row->from];
        if (wr_unit_is_zeros(unit)) unit_wrong(e, topic, queue, from, "a unit is zeros");
        from++;
    }
    return e->error;
}

static int examine_unit(wr_examine *e, const a_topic *topic, const wr_record *r, int64_t tags_code) {
    a_row *row = &topic->rows[r->queue_id];
    const bool begins = !row->known && e->base; /* what lay in files before is gone, and whether it should be says the first bounds */
    const uint64_t next = row->next > row->minimum ? row->next : row->minimum;
    const bool any = row->any;
    if (!row->log_from) row->log_from = r->queue_offset + 1;
    if (r->queue_offset > row->next && !begins) e->counts.missing += r->queue_offset - row->next;
    row->next = r->queue_offset + 1;
    row->any = row->known = true;
    if (r->physical_offset >= e->limit || r->queue_offset < row->minimum) return 0;
    int error = any ? examine_gap(e, topic, r->queue_id, next, r->queue_offset) : 0;
    if (!error) error = have_unit(e, topic, r->queue_id, r->queue_offset);
    if (error) return error;
    e->counts.units++;
    const bool there = row->units_n && r->queue_offset - row->from < row->units_n;
    const wr_unit *unit = there ? &row->units[r->queue_offset - row->from] : NULL;
    if (!unit || !unit->size) unit_wrong(e, topic, r->queue_id, r->queue_offset, "a unit is missing");
    else if (unit->physical_offset != r->physical_offset || unit->size != r->size || unit->tags_code != tags_code)
        unit_wrong(e, topic, r->queue_id, r->queue_offset, "a unit says other than the log");
    return e->error;
}

/* ---- keys ---- */

/* A key of a record, against the next entry of the index. */
typedef struct {
    wr_examine *e;
    const wr_record *record;
    uint32_t seen[64], seen_n; /* hashes of its keys: one that comes again is there once */
} keys_of;

static int32_t time_diff_of(int64_t begin, uint64_t at) {
    int64_t diff = ((int64_t)at - begin) / 1000;
    return (int32_t)(diff < 0 ? 0 : diff > INT32_MAX ? INT32_MAX : diff);
}

/* Entries of records below a position: of what is gone, or damaged, or of nothing that is there. */
static int pass_below(wr_examine *e, uint64_t position, wr_walked_key *entry, bool *there) {
    int error;
    while (!(error = wr_index_walk_peek(&e->index, entry, there)) && *there && entry->position < position) {
        if (entry->position >= e->sound_from) key_wrong(e, e->index.name, wr_index_walk_at(&e->index), "a key of no record");
        wr_index_walk_pass(&e->index, entry);
    }
    return error;
}

static int examine_key(keys_of *k, uint32_t hash) {
    wr_examine *e = k->e;
    for (uint32_t i = 0; i < k->seen_n; i++)
        if (k->seen[i] == hash) return 0;
    if (k->seen_n < sizeof k->seen / sizeof *k->seen) k->seen[k->seen_n++] = hash;
    wr_walked_key entry;
    bool there;
    int error = wr_index_walk_peek(&e->index, &entry, &there);
    if (error) return error;
    e->counts.keys++;
    if (!there || entry.position != k->record->physical_offset) {
        if (!e->index.broken) key_wrong(e, wr_index_walk_between(&e->index) ? "" : e->index.name, wr_index_walk_at(&e->index), "a key is missing");
        return e->error;
    }
    e->index.broken = false;
    if (entry.key_hash != hash) key_wrong(e, e->index.name, wr_index_walk_at(&e->index), "a key is another one");
    else if ((int32_t)entry.time_diff != time_diff_of(e->index.header.begin_timestamp, k->record->store_timestamp))
        key_wrong(e, e->index.name, wr_index_walk_at(&e->index), "a key has another time");
    wr_index_walk_pass(&e->index, &entry);
    return e->error;
}

static int examine_keys(wr_examine *e, const a_topic *topic, const wr_record *r, const wr_known_properties *known) {
    keys_of k = {.e = e, .record = r};
    wr_text key;
    uint32_t at = 0;
    int error = known->uniq_key.at && known->uniq_key.n ? examine_key(&k, wr_key_hash(topic->key_hash, known->uniq_key.at, known->uniq_key.n)) : 0;
    while (!error && known->keys.at && wr_keys_next(known->keys, &at, &key))
        if (key.n) error = examine_key(&k, wr_key_hash(topic->key_hash, key.at, key.n));
    return error;
}

/* Keys of a topic that was deleted may be there, or not. */
static int pass_unknown(wr_examine *e, uint64_t position) {
    wr_walked_key entry;
    bool there;
    int error;
    while (!(error = wr_index_walk_peek(&e->index, &entry, &there)) && there && entry.position == position) wr_index_walk_pass(&e->index, &entry);
    return error;
}

/* ---- records and commits ---- */

/* What retention says that it takes of the log. */
static void examine_bounds(wr_examine *e, const uint8_t *body, uint64_t n) {
    uint64_t first;
    uint32_t rows_n;
    if (!wr_bounds_read(body, n, &first, &rows_n)) return;
    if (first > e->counts.first) e->counts.first = first;
    for (uint32_t i = 0; i < rows_n; i++) {
        const uint8_t *from = body + WR_BOUNDS_SIZE + (uint64_t)i * WR_BOUND_SIZE;
        a_row *row = row_of(e, wr_get32(from + WR_BOUND_AT_TOPIC), wr_get32(from + WR_BOUND_AT_QUEUE));
        const uint64_t minimum = wr_get64(from + WR_BOUND_AT_MINIMUM), next = wr_get64(from + WR_BOUND_AT_NEXT);
        if (!row) continue;
        row->known = true;
        if (next > row->next) row->next = next;
        if (minimum <= next && minimum > row->told) row->told = minimum; /* else they are none, as for who dispatches */
    }
}

static int examine_record(wr_examine *e, const uint8_t *bytes, const wr_record *r) {
    const uint8_t *name = bytes + r->topic_at;
    const uint32_t kind = r->sys_flag & WR_SYS_TRANSACTION_MASK;
    e->counts.records++;
    if (wr_is_bounds(name, r->topic_length) || wr_is_lost(name, r->topic_length)) examine_bounds(e, bytes + r->body_at, r->body_length);
    if (wr_system_is(name, r->topic_length)) return 0;
    const a_topic *topic = topic_of(e, r, name);
    const bool judged = r->physical_offset < e->limit;
    wr_walked_key entry;
    bool there;
    int error = judged ? pass_below(e, r->physical_offset, &entry, &there) : 0;
    if (error) return error;
    if (!topic) {
        e->counts.unknown++;
        return judged ? pass_unknown(e, r->physical_offset) : 0;
    }
    if (kind == WR_SYS_PREPARED || kind == WR_SYS_ROLLBACK) return 0;
    wr_known_properties known;
    wr_properties_known(bytes + r->properties_at, r->properties_length, &known);
    error = examine_unit(e, topic, r, known.tags.at ? wr_tags_code(known.tags.at, known.tags.n) : 0);
    if (error || !judged) return error;
    return r->physical_offset < e->keys_from ? pass_unknown(e, r->physical_offset) : examine_keys(e, topic, r, &known);
}

static int tell(wr_examine *e, uint64_t position) {
    if (!e->progress || position - e->told < TELL_BYTES) return 0;
    e->told = position;
    return e->progress(e->context, position);
}

static int examine_commit(void *context, const uint8_t *bytes, uint64_t n, const wr_commit_head *head, const uint8_t *marks) {
    (void)marks;
    wr_examine *e = context;
    wr_record record;
    int error = 0;
    const uint64_t records_n = n - wr_commit_record_bytes(head->marks_n);
    for (uint64_t at = 0; !error && at < records_n; at += record.size) {
        if (wr_record_scan(bytes + at, n - at, head->from + at, 0, &record) != WR_SCAN_RECORD) return EUCLEAN;
        error = examine_record(e, bytes + at, &record);
    }
    e->counts.commits++;
    return error ? error : tell(e, head->from + n);
}

static int open_log(void *context, uint64_t base) {
    const wr_examine *e = context;
    return wr_log_open_file(e->place.root, base, false);
}

static void log_wrong(wr_examine *e, uint64_t from, uint64_t to) {
    char file[64];
    uint32_t number = NONE;
    snprintf(file, sizeof file, "commitlog/%020llu", (unsigned long long)(from / e->place.log_file_bytes * e->place.log_file_bytes));
    note(e, &number, file, to - from, from, "a commit that is not what was written");
}

int wr_examine_run(wr_examine *e, uint64_t base, wr_examine_progress progress, void *context, wr_log_end *end) {
    static const wr_log_visitor visitor = {open_log, examine_commit};
    const uint64_t file_bytes = e->place.log_file_bytes;
    wr_commit_head after = {0};
    uint64_t position = base, search = base;
    memcpy(after.origin.node, e->place.node, sizeof after.origin.node);
    if (!e->any) e->base = base;
    e->any = true;
    e->progress = progress;
    e->context = context;
    if (!e->index.next) e->index.first = base > e->keys_from ? base : e->keys_from;
    int error = wr_log_before(&visitor, e, file_bytes, base, &after);
    if (error && error != ENOENT) return error;
    for (;;) {
        e->sound_from = position;
        if ((error = wr_log_walk(&visitor, e, file_bytes, position, &after, end))) return error;
        /* A later commit vouches for what is damaged; for the last ones others do. */
        if (!end->damaged && (end->foreign || end->position >= e->reached)) return e->error;
        if (end->position > position || search < end->position) search = end->position;
        const uint64_t from = end->position;
        wr_log_place next;
        error = wr_log_search(&visitor, e, file_bytes, search, &end->last, &next);
        if (error && error != ENOENT) return error;
        if (error && !end->damaged) return e->error; /* it was cut, which the end itself says */
        log_wrong(e, from, error ? from / file_bytes * file_bytes + file_bytes : next.position);
        if (error) return e->error;
        position = next.position;
        after = next.after;
        search = next.search;
    }
}

int wr_examine_finish(wr_examine *e) {
    wr_walked_key entry;
    bool there;
    if (!e->limit) return e->error; /* the next start makes all of it again */
    int error = pass_below(e, e->limit, &entry, &there);
    if (!error) error = wr_index_walk_slots(&e->index);
    return error ? error : e->error;
}
