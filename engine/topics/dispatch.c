/* Dispatch. What it is: topics/dispatch.h. */
#define _GNU_SOURCE
#include "topics/dispatch.h"
#include "kernel/bytes.h"
#include "kernel/map.h"
#include "topics/folder.h"
#include "topics/bounds.h"
#include "topics/hash.h"
#include "topics/properties.h"
#include "topics/queue_files.h"
#include "topics/queue_folders.h"
#include "topics/record.h"
#include "topics/system_topics.h"
#include <assert.h>
#include <limits.h>
#include <unistd.h>

#define NAME "checkpoint"
#define INDEX "index"
#define NONE UINT32_MAX
#define SYNCED_EACH_MAX 32 /* queues; of more the file system is synced */
#define UNITS_AT_ONCE 204u

typedef struct {
    uint32_t id, queues_n;
    uint32_t key_hash;  /* wr_key_hash_topic */
    uint32_t other;     /* another topic of this hash and length, or the next free place; NONE: none */
    uint32_t name_n;
    char *name;         /* NULL: the place is free */
    uint32_t *rows;     /* of its queues */
} a_topic;

typedef struct {
    wr_dispatch_row seen;
    uint32_t topic, queue; /* topic NONE: the row is free */
    bool known;   /* it had a record, or the checkpoint knows it */
    bool raised;  /* its maximum is to rise behind this commit: in the list `raised` */
    bool unsynced; /* in the list `unsynced` */
    bool cleaned; /* in the list `to_clean`: files of it may go behind the next checkpoint */
    uint32_t next_raised, next_unsynced, next_clean;
    uint64_t saved_minimum; /* the last checkpoint's, of a row in `to_clean` */
    wr_queue_files *files; /* NULL: not used yet */
    wr_topic_row *shown;   /* NULL: nobody sees it */
} a_row;

struct wr_dispatch {
    wr_dispatch_place place;
    a_topic *topics;
    a_row *rows;
    uint32_t topics_n, topics_room, rows_n, rows_room;
    uint32_t free_topics;
    uint32_t last; /* topic of the last record */
    wr_map by_id, by_name, marks; /* topic + 1; by_name: the first of a hash and a length */
    uint32_t raised, unsynced, to_clean; /* lists of rows */
    wr_index_files *index;
    _Atomic uint64_t *index_newest; /* where readers see it; NULL: nowhere */
    wr_absence absence;
    bool lost;          /* keys of records from `lost_from` on are missing below `position` */
    uint64_t lost_from;
    bool halfway;       /* the commit at `position` is applied in part */
    bool anew;          /* there is no checkpoint: from the log's first file */
    uint64_t position, store_ms;
    uint64_t first;       /* files of the log below it may be gone */
    uint64_t saved_first; /* the same of the last checkpoint, which is not known to be on stable storage before */
    bool clean_index;
    wr_commit_head after; /* the last commit below `position` */
    wr_dispatch_counts counts;
};

/* ---- begin and end ---- */

wr_dispatch *wr_dispatch_new(const wr_dispatch_place *place) {
    if (!place->consume_queue_entries || !place->log_file_bytes) return NULL;
    wr_dispatch *d = calloc(1, sizeof *d);
    if (!d) return NULL;
    d->place = *place;
    d->raised = d->unsynced = d->to_clean = d->last = d->free_topics = NONE;
    memcpy(d->after.origin.node, place->node, sizeof place->node);
    if (!(d->index = wr_index_files_new(place->root, INDEX, place->index_slots, place->index_entries))) {
        free(d);
        return NULL;
    }
    return d;
}

void wr_dispatch_free(wr_dispatch *d) {
    if (!d) return;
    for (uint32_t i = 0; i < d->rows_n; i++) wr_queue_files_free(d->rows[i].files);
    for (uint32_t i = 0; i < d->topics_n; i++) {
        free(d->topics[i].name);
        free(d->topics[i].rows);
    }
    wr_index_files_free(d->index);
    free(d->topics);
    free(d->rows);
    free(d->by_id.rows);
    free(d->by_name.rows);
    free(d->marks.rows);
    free(d);
}

/* ---- topics and rows ---- */

static uint32_t find_name(const wr_dispatch *d, const uint8_t *name, uint32_t n) {
    const uint64_t *found = wr_map_find(&d->by_name, wr_java_hash(0, name, n), n);
    uint32_t at = found ? (uint32_t)*found - 1 : NONE;
    while (at != NONE && memcmp(d->topics[at].name, name, n)) at = d->topics[at].other;
    return at;
}

static uint32_t find_id(const wr_dispatch *d, uint32_t id) {
    const uint64_t *found = wr_map_find(&d->by_id, id, 0);
    return found ? (uint32_t)*found - 1 : NONE;
}

static bool is_of(const a_topic *topic, uint32_t id, const uint8_t *name, uint32_t n) {
    return topic->name_n == n && !memcmp(topic->name, name, n) && (!id || topic->id == id);
}

/* The topic of a record: of its id and of that name, too. A record without one is a foreign log's. */
static uint32_t find_topic(const wr_dispatch *d, uint32_t id, const uint8_t *name, uint32_t n) {
    if (d->last != NONE && is_of(&d->topics[d->last], id, name, n)) return d->last;
    uint32_t at = id ? find_id(d, id) : find_name(d, name, n);
    return at != NONE && is_of(&d->topics[at], id, name, n) ? at : NONE;
}

static bool name_good(const char *name, uint32_t n) {
    if (!n || n > NAME_MAX || wr_system_is((const uint8_t *)name, n)) return false;
    if (memchr(name, '/', n) || memchr(name, 0, n)) return false;
    return !(n == 1 && name[0] == '.') && !(n == 2 && name[0] == '.' && name[1] == '.');
}

/* Have free places: one for a topic, and so many rows. */
static int have_topic(wr_dispatch *d) {
    if (d->free_topics != NONE) return 0;
    if (d->topics_n == d->topics_room) {
        uint32_t room = d->topics_room ? 2 * d->topics_room : 16;
        a_topic *topics = realloc(d->topics, room * sizeof *topics);
        if (!topics) return ENOMEM;
        d->topics = topics;
        d->topics_room = room;
    }
    d->topics[d->topics_n] = (a_topic){.other = NONE};
    d->free_topics = d->topics_n++;
    return 0;
}

static void free_row(a_row *row) {
    *row = (a_row){.topic = NONE, .next_raised = NONE, .next_unsynced = NONE, .next_clean = NONE, .seen.from = WR_NO_RECORD};
}

/* Have these rows, which must be free. */
static int have_rows(wr_dispatch *d, const uint32_t *rows, uint32_t n) {
    uint32_t end = 0;
    for (uint32_t i = 0; i < n; i++) {
        if (rows[i] < d->rows_n && d->rows[rows[i]].topic != NONE) return EEXIST;
        if (rows[i] >= end) end = rows[i] + 1;
    }
    if (end > d->rows_room) {
        uint32_t room = end > 2 * d->rows_room ? end : 2 * d->rows_room;
        a_row *more = realloc(d->rows, room * sizeof *more);
        if (!more) return ENOMEM;
        d->rows = more;
        d->rows_room = room;
    }
    for (; d->rows_n < end; d->rows_n++) free_row(&d->rows[d->rows_n]);
    return 0;
}

static int name_topic(wr_dispatch *d, uint32_t at, const wr_dispatch_topic *topic, a_topic *to) {
    uint64_t *by_id = wr_map_put(&d->by_id, topic->id, 0);
    if (!by_id) return ENOMEM;
    uint64_t *first = wr_map_put(&d->by_name, wr_java_hash(0, topic->name, topic->name_n), topic->name_n);
    if (!first) {
        wr_map_remove(&d->by_id, topic->id, 0);
        return ENOMEM;
    }
    to->other = *first ? (uint32_t)*first - 1 : NONE;
    *first = *by_id = at + 1;
    return 0;
}

int wr_dispatch_add(wr_dispatch *d, const wr_dispatch_topic *topic, const uint32_t *rows) {
    if (!topic->id || !name_good(topic->name, topic->name_n) || !topic->queues_n || topic->queues_n > INT32_MAX / 2) return EINVAL;
    if (find_id(d, topic->id) != NONE || find_name(d, (const uint8_t *)topic->name, topic->name_n) != NONE) return EEXIST;
    const size_t rows_bytes = topic->queues_n * sizeof *rows;
    a_topic new = {.id = topic->id, .queues_n = topic->queues_n, .name_n = topic->name_n, .key_hash = wr_key_hash_topic(topic->name, topic->name_n),
                   .name = malloc(topic->name_n + 1), .rows = malloc(rows_bytes)};
    int error = new.name && new.rows ? have_topic(d) : ENOMEM;
    if (!error) error = have_rows(d, rows, topic->queues_n);
    if (!error) error = name_topic(d, d->free_topics, topic, &new);
    if (error) {
        free(new.name);
        free(new.rows);
        return error;
    }
    memcpy(new.name, topic->name, topic->name_n);
    new.name[topic->name_n] = 0;
    memcpy(new.rows, rows, rows_bytes);
    const uint32_t at = d->free_topics;
    d->free_topics = d->topics[at].other;
    for (uint32_t queue = 0; queue < topic->queues_n; queue++) d->rows[rows[queue]].topic = at, d->rows[rows[queue]].queue = queue;
    d->topics[at] = new;
    return 0;
}

static void forget_name(wr_dispatch *d, uint32_t at) {
    const a_topic *topic = &d->topics[at];
    const uint32_t hash = wr_java_hash(0, topic->name, topic->name_n);
    uint64_t *first = wr_map_find(&d->by_name, hash, topic->name_n);
    uint32_t before = (uint32_t)*first - 1;
    if (before == at) {
        if (topic->other == NONE) wr_map_remove(&d->by_name, hash, topic->name_n);
        else *first = topic->other + 1;
    } else {
        while (d->topics[before].other != at) before = d->topics[before].other;
        d->topics[before].other = topic->other;
    }
    wr_map_remove(&d->by_id, topic->id, 0);
}

/* Rows of the topic leave the lists. */
static void leave_lists(wr_dispatch *d, uint32_t topic) {
    for (uint32_t *at = &d->raised; *at != NONE;) {
        a_row *row = &d->rows[*at];
        if (row->topic == topic) *at = row->next_raised;
        else at = &row->next_raised;
    }
    for (uint32_t *at = &d->unsynced; *at != NONE;) {
        a_row *row = &d->rows[*at];
        if (row->topic == topic) *at = row->next_unsynced;
        else at = &row->next_unsynced;
    }
    for (uint32_t *at = &d->to_clean; *at != NONE;) {
        a_row *row = &d->rows[*at];
        if (row->topic == topic) *at = row->next_clean;
        else at = &row->next_clean;
    }
}

int wr_dispatch_drop(wr_dispatch *d, uint32_t id) {
    const uint32_t at = find_id(d, id);
    if (at == NONE) return ENOENT;
    forget_name(d, at);
    leave_lists(d, at);
    a_topic *topic = &d->topics[at];
    for (uint32_t queue = 0; queue < topic->queues_n; queue++) {
        a_row *row = &d->rows[topic->rows[queue]];
        wr_queue_files_free(row->files);
        free_row(row);
    }
    int error = wr_topic_folder_remove(d->place.root, topic->name);
    free(topic->name);
    free(topic->rows);
    *topic = (a_topic){.other = d->free_topics};
    d->free_topics = at;
    d->last = NONE;
    return error;
}

/* What a row holds; before its maximum rises, and behind its minimum. */
static void show_held(const a_row *row) {
    atomic_store_explicit(&row->shown->bytes, row->seen.bytes, memory_order_relaxed);
    /* SYNC row-from: pairs with whoever judges a unit that leads further back (topics/reader.c) */
    atomic_store_explicit(&row->shown->from, row->seen.from, memory_order_release);
}

void wr_dispatch_show(wr_dispatch *d, uint32_t row, wr_topic_row *shown) {
    assert(row < d->rows_n);
    d->rows[row].shown = shown;
    show_held(&d->rows[row]);
}

uint32_t wr_dispatch_row_of(const wr_dispatch *d, uint32_t id, uint32_t queue) {
    const uint32_t at = find_id(d, id);
    return at != NONE && queue < d->topics[at].queues_n ? d->topics[at].rows[queue] : NONE;
}

wr_dispatch_row wr_dispatch_look(const wr_dispatch *d, uint32_t row) {
    assert(row < d->rows_n);
    return d->rows[row].seen;
}

const wr_dispatch_counts *wr_dispatch_counted(const wr_dispatch *d) { return &d->counts; }

static int have_files(wr_dispatch *d, a_row *row) {
    char path[PATH_MAX];
    if (row->files) return 0;
    wr_queue_folder(d->topics[row->topic].name, row->queue, path);
    row->files = wr_queue_files_new(d->place.root, path, d->place.consume_queue_entries);
    return row->files ? 0 : ENOMEM;
}

/* ---- what a row holds ---- */

static void raise_later(wr_dispatch *d, uint32_t number) {
    a_row *row = &d->rows[number];
    if (row->raised) return;
    row->raised = true;
    row->next_raised = d->raised;
    d->raised = number;
}

/* Units of a row, from an offset on and below `next`: the sum of sizes up to `to`, and the position of the first record at it or behind it. */
typedef struct {
    uint64_t bytes, from;
} held;

/* Where a unit says that its record lies, if one can lie there: those of a queue follow each other in the log. Else no further than what was known:
 * the log must not go because a unit is damaged. */
static uint64_t from_of(const wr_dispatch *d, const a_row *row, const wr_unit *unit) {
    const bool behind = !d->halfway && (unit->physical_offset >= d->position || unit->size > d->position - unit->physical_offset);
    return behind || unit->physical_offset < row->seen.from ? row->seen.from : unit->physical_offset;
}

static int look_at_units(const wr_dispatch *d, const a_row *row, uint64_t begin, uint64_t to, held *found) {
    char path[PATH_MAX];
    wr_unit units[UNITS_AT_ONCE];
    *found = (held){0, WR_NO_RECORD};
    wr_queue_folder(d->topics[row->topic].name, row->queue, path);
    wr_queue_reader *reader = wr_queue_reader_new(d->place.root, path, d->place.consume_queue_entries);
    int error = reader ? 0 : ENOMEM;
    for (uint64_t n = begin; !error && n < row->seen.next && found->from == WR_NO_RECORD;) {
        const uint64_t left = row->seen.next - n;
        uint32_t there;
        error = wr_queue_reader_all(reader, n, units, left < UNITS_AT_ONCE ? (uint32_t)left : UNITS_AT_ONCE, &there);
        for (uint32_t i = 0; i < there && found->from == WR_NO_RECORD; i++) {
            if (n + i < to) found->bytes += units[i].size;
            else if (units[i].size) found->from = from_of(d, row, &units[i]);
        }
        /* A file that is not there, or was cut: what lies behind it counts all the same. */
        n += there ? there : d->place.consume_queue_entries - n % d->place.consume_queue_entries;
    }
    wr_queue_reader_free(reader);
    return error;
}

static void clean_later(wr_dispatch *d, a_row *row) {
    if (row->cleaned) return;
    row->cleaned = true;
    row->saved_minimum = row->seen.minimum; /* as it was: called before it rises */
    row->next_clean = d->to_clean;
    d->to_clean = (uint32_t)(row - d->rows);
}

static int raise_minimum(wr_dispatch *d, a_row *row, uint64_t minimum) {
    const uint32_t entries = d->place.consume_queue_entries;
    held left = {row->seen.bytes, WR_NO_RECORD};
    if (minimum > row->seen.next) minimum = row->seen.next;
    if (minimum <= row->seen.minimum) return 0;
    int error = minimum < row->seen.next ? look_at_units(d, row, row->seen.minimum, minimum, &left) : 0;
    if (error) return error;
    if (minimum / entries > row->seen.minimum / entries) clean_later(d, row);
    row->seen.minimum = minimum;
    row->seen.from = left.from;
    row->seen.bytes -= left.bytes < row->seen.bytes ? left.bytes : row->seen.bytes;
    if (left.from == WR_NO_RECORD) row->seen.bytes = 0;
    if (!row->shown) return 0;
    /* SYNC row-minimum: pairs with who writes a hold, then looks whether it came in time (topics/holds.h) */
    atomic_store_explicit(&row->shown->minimum, minimum, memory_order_seq_cst);
    show_held(row);
    return 0;
}

/* A queue whose minimum rose: no record of it may be left, or all from there on. */
static int apply_bound(wr_dispatch *d, const uint8_t *from) {
    const uint32_t number = wr_dispatch_row_of(d, wr_get32(from + WR_BOUND_AT_TOPIC), wr_get32(from + WR_BOUND_AT_QUEUE));
    const uint64_t minimum = wr_get64(from + WR_BOUND_AT_MINIMUM), next = wr_get64(from + WR_BOUND_AT_NEXT);
    if (number == NONE || minimum > next || next > WR_QUEUE_UNITS_MAX) return 0; /* its topic was deleted */
    a_row *row = &d->rows[number];
    if (row->known && row->seen.next >= next) return raise_minimum(d, row, minimum);
    row->known = true;
    row->seen = (wr_dispatch_row){next, next, next, 0, WR_NO_RECORD};
    raise_later(d, number);
    return 0;
}

/* ---- records ---- */

static int put_unit(wr_dispatch *d, uint32_t number, uint64_t offset, uint64_t position, uint32_t size, int64_t tags_code) {
    a_row *row = &d->rows[number];
    int error = wr_queue_files_put(row->files, offset, position, size, tags_code);
    if (!error && !row->unsynced) {
        row->unsynced = true;
        row->next_unsynced = d->unsynced;
        d->unsynced = number;
    }
    return error;
}

/* Empty units up to an offset: the log lost what had them. */
static int pass_lost(wr_dispatch *d, uint32_t number, uint64_t next) {
    a_row *row = &d->rows[number];
    int error = have_files(d, row);
    while (!error && row->seen.next < next)
        if (!(error = put_unit(d, number, row->seen.next, 0, 0, 0))) row->seen.next++, d->counts.missing++;
    return error;
}

/* A queue whose newest messages an accepted loss took: what is left of it stays, and their offsets are nobody's again. */
static int apply_lost(wr_dispatch *d, const uint8_t *from) {
    const uint32_t number = wr_dispatch_row_of(d, wr_get32(from + WR_BOUND_AT_TOPIC), wr_get32(from + WR_BOUND_AT_QUEUE));
    const uint64_t minimum = wr_get64(from + WR_BOUND_AT_MINIMUM), next = wr_get64(from + WR_BOUND_AT_NEXT);
    if (number == NONE || minimum > next || next > WR_QUEUE_UNITS_MAX) return 0; /* its topic was deleted */
    a_row *row = &d->rows[number];
    if (!row->known) row->seen = (wr_dispatch_row){minimum, minimum, minimum, 0, WR_NO_RECORD};
    row->known = true;
    int error = pass_lost(d, number, next);
    raise_later(d, number);
    return error;
}

static int apply_bounds(wr_dispatch *d, const uint8_t *body, uint64_t n, int (*apply)(wr_dispatch *d, const uint8_t *from)) {
    uint64_t first;
    uint32_t rows_n;
    int error = 0;
    if (!wr_bounds_read(body, n, &first, &rows_n)) return 0; /* a later version's; files that are missing are said */
    for (uint32_t i = 0; !error && i < rows_n; i++) error = apply(d, body + WR_BOUNDS_SIZE + (uint64_t)i * WR_BOUND_SIZE);
    if (!error) wr_dispatch_retain_log(d, first);
    return error;
}

/* The unit of a record; `seen.next` is raised when its keys are there, too. */
static int store_unit(wr_dispatch *d, const wr_dispatch_record *r) {
    a_row *row = &d->rows[r->row];
    if (!row->known) row->seen.minimum = row->seen.next = row->seen.durable = r->queue_offset;
    row->known = true;
    int error = pass_lost(d, r->row, r->queue_offset);
    return error ? error : put_unit(d, r->row, r->queue_offset, r->position, r->size, r->tags_code);
}

static int store_key(wr_dispatch *d, uint32_t key_hash, const wr_dispatch_record *r) {
    int error = wr_index_files_put(d->index, key_hash, r->position, (int64_t)r->store_ms);
    d->counts.keys += !error;
    return error;
}

static int end_record(wr_dispatch *d, const wr_dispatch_record *r, bool is_new) {
    a_row *row = &d->rows[r->row];
    d->counts.units += is_new;
    d->counts.repeated += !is_new;
    if (is_new) {
        row->seen.next = r->queue_offset + 1;
        row->seen.bytes += r->size;
        if (row->seen.from == WR_NO_RECORD) row->seen.from = r->position;
    }
    raise_later(d, r->row);
    return 0;
}

/* A key of the text, if it is none that is empty. */
static int store_text(wr_dispatch *d, const a_topic *topic, wr_text key, const wr_dispatch_record *r) {
    return key.n ? store_key(d, wr_key_hash(topic->key_hash, key.at, key.n), r) : 0;
}

static int store_keys(wr_dispatch *d, const a_topic *topic, const wr_known_properties *known, const wr_dispatch_record *r) {
    wr_text key;
    uint32_t at = 0;
    int error = known->uniq_key.at ? store_text(d, topic, known->uniq_key, r) : 0;
    while (!error && known->keys.at && wr_keys_next(known->keys, &at, &key)) error = store_text(d, topic, key, r);
    return error;
}

/* A record as it lies in the log. */
static int apply_scanned(wr_dispatch *d, const uint8_t *bytes, const wr_record *record) {
    const uint8_t *name = bytes + record->topic_at;
    uint32_t at = find_topic(d, record->flag, name, record->topic_length), kind = record->sys_flag & WR_SYS_TRANSACTION_MASK;
    if (at == NONE && wr_system_is(name, record->topic_length)) {
        d->counts.system++;
        if (wr_is_bounds(name, record->topic_length)) return apply_bounds(d, bytes + record->body_at, record->body_length, apply_bound);
        return wr_is_lost(name, record->topic_length) ? apply_bounds(d, bytes + record->body_at, record->body_length, apply_lost) : 0;
    }
    const a_topic *topic = at == NONE ? NULL : &d->topics[at];
    if (!topic || record->queue_id >= topic->queues_n) {
        d->counts.unknown++;
        return 0;
    }
    d->last = at;
    if (kind == WR_SYS_PREPARED || kind == WR_SYS_ROLLBACK) {
        d->counts.halves++;
        return 0;
    }
    wr_known_properties known;
    wr_properties_known(bytes + record->properties_at, record->properties_length, &known);
    wr_dispatch_record r = {.topic = topic->id, .row = topic->rows[record->queue_id], .size = record->size, .position = record->physical_offset,
                            .queue_offset = record->queue_offset, .store_ms = record->store_timestamp};
    if (known.tags.at) r.tags_code = wr_tags_code(known.tags.at, known.tags.n);
    bool is_new = !d->rows[r.row].known || r.queue_offset >= d->rows[r.row].seen.next;
    int error = is_new ? store_unit(d, &r) : 0;
    if (!error) error = store_keys(d, topic, &known, &r);
    return error ? error : end_record(d, &r, is_new);
}

/* ---- commits ---- */

static int add_mark(wr_dispatch *d, wr_commit_mark mark) {
    uint64_t *sequence = wr_map_put(&d->marks, mark.client_epoch, 0);
    if (!sequence) return ENOMEM;
    if (mark.sequence > *sequence) *sequence = mark.sequence;
    return 0;
}

uint64_t wr_dispatch_mark(const wr_dispatch *d, uint64_t client_epoch) {
    const uint64_t *sequence = wr_map_find(&d->marks, client_epoch, 0);
    return sequence ? *sequence : 0;
}

void wr_dispatch_forget(wr_dispatch *d, uint64_t client_epoch) { wr_map_remove(&d->marks, client_epoch, 0); }

int wr_dispatch_keep(wr_dispatch *d, const uint64_t *client_epochs, uint32_t n) {
    wr_map kept = {0};
    for (uint32_t i = 0; i < n; i++) {
        const uint64_t mark = wr_dispatch_mark(d, client_epochs[i]);
        uint64_t *to = mark ? wr_map_put(&kept, client_epochs[i], 0) : NULL;
        if (to) *to = mark;
        else if (mark) {
            wr_map_free(&kept);
            return ENOMEM;
        }
    }
    wr_map_free(&d->marks);
    d->marks = kept;
    return 0;
}

/* Readers may see what a row has. */
static void show(const a_row *row) {
    if (!row->shown || atomic_load_explicit(&row->shown->maximum, memory_order_relaxed) >= row->seen.next) return;
    show_held(row);
    /* SYNC row-maximum: pairs with whoever reads units below it */
    atomic_store_explicit(&row->shown->maximum, row->seen.next, memory_order_release);
}

static void show_index(const wr_dispatch *d) {
    /* SYNC index-newest: pairs with wr_topic_lookup_begin; the file had its name before */
    if (d->index_newest) atomic_store_explicit(d->index_newest, wr_index_files_newest(d->index), memory_order_release);
}

void wr_dispatch_show_index(wr_dispatch *d, _Atomic uint64_t *newest) {
    d->index_newest = newest;
    show_index(d);
}

/* All of a commit is there. */
static void end_commit(wr_dispatch *d, const wr_commit_head *head, uint64_t end) {
    show_index(d);
    while (d->raised != NONE) {
        a_row *row = &d->rows[d->raised];
        d->raised = row->next_raised;
        row->raised = false;
        show(row);
    }
    d->halfway = false;
    if (end <= d->position && d->position) return; /* one before the checkpoint, for the index alone */
    d->position = end;
    d->after = *head;
    if (head->store_ms > d->store_ms) d->store_ms = head->store_ms;
}

int wr_dispatch_commit(wr_dispatch *d, const uint8_t *bytes, uint64_t n, const wr_commit_head *head, const uint8_t *marks) {
    wr_record record;
    int error = 0;
    d->halfway = true;
    const uint64_t records_n = n - wr_commit_record_bytes(head->marks_n);
    for (uint64_t at = 0; !error && at < records_n; at += record.size) {
        if (wr_record_scan(bytes + at, n - at, head->from + at, 0, &record) != WR_SCAN_RECORD) return EINVAL; /* the caller's mistake */
        error = apply_scanned(d, bytes + at, &record);
    }
    for (uint32_t i = 0; !error && i < head->marks_n; i++) error = add_mark(d, wr_commit_mark_read(marks, i));
    if (!error) end_commit(d, head, head->from + n);
    return error;
}

int wr_dispatch_put(wr_dispatch *d, const wr_dispatch_record *records, uint32_t n) {
    int error = 0;
    d->halfway = true;
    for (uint32_t i = 0; !error && i < n; i++) {
        const wr_dispatch_record *r = &records[i];
        assert(r->row < d->rows_n);
        const uint32_t topic = d->rows[r->row].topic;
        if (topic == NONE || d->topics[topic].id != r->topic) { /* dropped since it was appended */
            d->counts.unknown++;
            continue;
        }
        bool is_new = !d->rows[r->row].known || r->queue_offset >= d->rows[r->row].seen.next;
        if (is_new) error = store_unit(d, r);
        for (uint32_t k = 0; !error && k < r->keys_n; k++) error = store_key(d, r->key_hashes[k], r);
        if (!error) error = end_record(d, r, is_new);
    }
    return error;
}

int wr_dispatch_end(wr_dispatch *d, const wr_commit_head *head, const wr_commit_mark *marks, uint64_t end, uint32_t *wakes) {
    int error = 0;
    for (uint32_t i = 0; !error && i < head->marks_n; i++) error = add_mark(d, marks[i]);
    if (error) return error;
    *wakes = 0;
    for (uint32_t at = d->raised; at != NONE; at = d->rows[at].next_raised)
        *wakes |= 1u << d->topics[d->rows[at].topic].id % WR_TOPIC_WAKES;
    end_commit(d, head, end);
    return 0;
}

/* ---- checkpoint ---- */

/* Sync the queues that were written: one by one, or the whole file system at once where they are many. (It says its errors from Linux
 * 5.8 on.) */
static int sync_queues(wr_dispatch *d) {
    uint32_t n = 0;
    int error = 0;
    for (uint32_t at = d->unsynced; at != NONE && n <= SYNCED_EACH_MAX; at = d->rows[at].next_unsynced) n++;
    bool at_once = n > SYNCED_EACH_MAX;
    if (at_once && syncfs(d->place.root) != 0) error = errno;
    while (d->unsynced != NONE) {
        a_row *row = &d->rows[d->unsynced];
        uint64_t behind;
        error = at_once ? wr_queue_files_synced(row->files, error) : wr_queue_files_sync(row->files, &behind);
        if (error) return error;
        d->unsynced = row->next_unsynced;
        row->unsynced = false;
        row->seen.durable = row->seen.next;
    }
    return 0;
}

static int sync_all(wr_dispatch *d, wr_index_mark *mark) {
    int error = sync_queues(d);
    return error ? error : wr_index_files_sync(d->index, mark);
}

static int fill(const wr_dispatch *d, wr_checkpoint *c) {
    c->marks = calloc(d->marks.n + 1, sizeof *c->marks);
    c->rows = calloc((uint64_t)d->rows_n + 1, sizeof *c->rows);
    if (!c->marks || !c->rows) return ENOMEM;
    for (uint64_t i = 0; i < d->marks.size; i++)
        if (d->marks.rows[i].used) c->marks[c->marks_n++] = (wr_commit_mark){.client_epoch = d->marks.rows[i].a, .sequence = d->marks.rows[i].value};
    for (uint32_t i = 0; i < d->rows_n; i++) {
        const a_row *row = &d->rows[i];
        if (!row->known) continue;
        c->rows[c->rows_n++] = (wr_checkpoint_row){.topic = d->topics[row->topic].id, .queue = row->queue, .minimum = row->seen.minimum,
                                                   .next = row->seen.next, .durable = row->seen.durable, .bytes = row->seen.bytes,
                                                   .from = row->seen.from};
    }
    return 0;
}

static int write_checkpoint(wr_dispatch *d) {
    wr_checkpoint c = {.origin = d->after.origin, .number = d->after.number, .position = d->position, .first = d->first, .store_ms = d->store_ms,
                       .consume_queue_entries = d->place.consume_queue_entries, .index_slots = d->place.index_slots,
                       .index_entries = d->place.index_entries};
    memcpy(c.boot, d->place.boot, sizeof c.boot);
    int error = sync_all(d, &c.index);
    if (!error) error = fill(d, &c);
    if (!error) error = wr_checkpoint_write(d->place.root, NAME, &c);
    wr_checkpoint_free(&c);
    if (error) return error;
    for (uint32_t at = d->to_clean; at != NONE; at = d->rows[at].next_clean) d->rows[at].saved_minimum = d->rows[at].seen.minimum;
    d->clean_index |= d->saved_first < d->first;
    d->saved_first = d->first;
    return 0;
}

int wr_dispatch_checkpoint(wr_dispatch *d, uint64_t synced) {
    if (d->halfway || d->lost) return EBUSY;
    return d->position > synced ? EAGAIN : write_checkpoint(d);
}

/* ---- begin ---- */

static a_row *row_of(const wr_dispatch *d, const wr_checkpoint_row *from) {
    uint32_t at = find_id(d, from->topic);
    return at != NONE && from->queue < d->topics[at].queues_n ? &d->rows[d->topics[at].rows[from->queue]] : NULL;
}

static int take(wr_dispatch *d, const wr_checkpoint *c) {
    for (uint32_t i = 0; i < c->rows_n; i++) {
        a_row *row = row_of(d, &c->rows[i]);
        if (!row) continue; /* its topic was deleted */
        row->seen = (wr_dispatch_row){c->rows[i].minimum, c->rows[i].durable, c->rows[i].durable, c->rows[i].bytes, c->rows[i].from};
        row->known = true;
    }
    d->first = d->saved_first = c->first;
    d->position = c->position;
    d->store_ms = c->store_ms;
    d->after = (wr_commit_head){.origin = c->origin, .number = c->number, .store_ms = c->store_ms};
    int error = 0;
    for (uint32_t i = 0; !error && i < c->marks_n; i++) error = add_mark(d, c->marks[i]);
    return error;
}

const wr_absence *wr_dispatch_absence(const wr_dispatch *d) { return &d->absence; }

/* Are the files there that the checkpoint counts on? */
static int look_for_files(wr_dispatch *d, const wr_checkpoint *c) {
    wr_presence presence;
    char folder[PATH_MAX];
    int error = 0;
    wr_presence_begin(&presence, d->place.root, d->place.log_file_bytes, c->position);
    presence.consume_queue_entries = d->place.consume_queue_entries;
    presence.index_slots = d->place.index_slots;
    presence.index_entries = d->place.index_entries;
    for (uint32_t i = 0; !error && i < d->rows_n; i++) {
        const a_row *row = &d->rows[i];
        if (row->topic == NONE || !row->known) continue;
        wr_queue_folder(d->topics[row->topic].name, row->queue, folder);
        error = wr_presence_queue(&presence, folder, row->queue, row->seen.minimum, row->seen.durable);
    }
    if (!error) error = wr_presence_index(&presence, INDEX, c->first);
    d->absence = presence.found;
    wr_presence_end(&presence);
    return error;
}

/* Nothing is known of what lies there, nor how large its files are. */
static int empty_queues(const wr_dispatch *d) {
    int error = 0;
    for (uint32_t i = 0; !error && i < d->rows_n; i++) {
        char folder[PATH_MAX];
        if (d->rows[i].topic == NONE) continue;
        wr_queue_folder(d->topics[d->rows[i].topic].name, d->rows[i].queue, folder);
        error = wr_queue_folder_empty(d->place.root, folder);
    }
    return error;
}

static bool is_known(void *context, const char *name, uint32_t n) {
    return find_name(context, (const uint8_t *)name, n) != NONE;
}

static int read_checkpoint(const wr_dispatch *d, wr_checkpoint *c, wr_checkpoint_kind *kind) {
    *c = (wr_checkpoint){.consume_queue_entries = d->place.consume_queue_entries, .index_slots = d->place.index_slots,
                         .index_entries = d->place.index_entries};
    memcpy(c->origin.node, d->place.node, sizeof c->origin.node);
    return wr_checkpoint_read(d->place.root, NAME, c, kind);
}

int wr_dispatch_look_begin(const wr_dispatch *d, wr_checkpoint_kind *kind, uint64_t *position, wr_commit_head *last, bool *survived) {
    wr_checkpoint c;
    int error = read_checkpoint(d, &c, kind);
    const bool known = !error && (*kind == WR_CHECKPOINT_GOOD || *kind == WR_CHECKPOINT_SETTINGS || *kind == WR_CHECKPOINT_OLDER);
    *last = (wr_commit_head){.number = known ? c.number : 0};
    memcpy(last->origin.node, d->place.node, sizeof last->origin.node);
    last->origin.epoch = known ? c.origin.epoch : 0;
    *position = known ? c.position : 0;
    *survived = known && !memcmp(c.boot, d->place.boot, sizeof c.boot);
    wr_checkpoint_free(&c);
    return error;
}

int wr_dispatch_begin(wr_dispatch *d, wr_checkpoint_kind *kind) {
    wr_checkpoint c;
    int error = read_checkpoint(d, &c, kind);
    bool good = !error && *kind == WR_CHECKPOINT_GOOD;
    if (!error) error = wr_topic_folders_sweep(d->place.root, is_known, d);
    if (!error) error = good ? take(d, &c) : empty_queues(d);
    bool survived = good && !memcmp(c.boot, d->place.boot, sizeof c.boot);
    if (!error) error = wr_index_files_recover(d->index, good ? &c.index : NULL, survived, &d->lost, &d->lost_from);
    if (!error && good) error = look_for_files(d, &c);
    d->anew = !good || !c.number;
    wr_checkpoint_free(&c);
    /* so that files are never there without one: who is killed soon leaves them to the next, and readers keep them */
    return error || good ? error : write_checkpoint(d);
}

/* ---- catching up ---- */

typedef struct {
    wr_dispatch *dispatch;
    const wr_dispatch_log *log;
} catching;

static int catch_open(void *context, uint64_t base) {
    const catching *c = context;
    return c->log->open(c->log->context, base);
}

static int catch_commit(void *context, const uint8_t *bytes, uint64_t n, const wr_commit_head *head, const uint8_t *marks) {
    const catching *c = context;
    int error = wr_dispatch_commit(c->dispatch, bytes, n, head, marks);
    if (error || !c->log->progress) return error;
    return c->log->progress(c->log->context, head->from + n);
}

/* The newest file of the index is damaged. */
static int lose_index(wr_dispatch *d) {
    uint64_t from;
    int error = wr_index_files_discard(d->index, &from);
    if (error) return error;
    d->lost_from = d->lost && d->lost_from < from ? d->lost_from : from;
    d->lost = true;
    return EUCLEAN;
}

/* Where the walk begins, and behind which commit. */
static int find_begin(const wr_dispatch *d, const wr_log_visitor *visitor, catching *c, uint64_t first, uint64_t *position, wr_commit_head *after) {
    const uint64_t file_bytes = d->place.log_file_bytes;
    *position = d->position;
    *after = d->after;
    bool nothing = d->anew && !d->after.number;
    if (nothing) *position = first;
    else if (d->lost && d->lost_from < d->position) *position = d->lost_from / file_bytes * file_bytes;
    else return 0;
    if (*position < first) *position = first;
    int error = wr_log_before(visitor, c, file_bytes, *position, after);
    return error == ENOENT ? 0 : error; /* then the walk finds nothing, either */
}

int wr_dispatch_catch_up(wr_dispatch *d, const wr_dispatch_log *log, uint64_t first, wr_log_end *end) {
    static const wr_log_visitor visitor = {catch_open, catch_commit};
    catching c = {d, log};
    wr_commit_head after;
    uint64_t position;
    int error = find_begin(d, &visitor, &c, first, &position, &after);
    if (!error) error = wr_log_walk(&visitor, &c, d->place.log_file_bytes, position, &after, end);
    if (!error) error = wr_index_files_cut(d->index, end->position);
    if (error == EUCLEAN) return lose_index(d);
    if (error) return error;
    if (end->position < d->position && !end->foreign) end->damaged = true; /* it was synced, says the checkpoint */
    if (end->position > d->position) d->position = end->position; /* behind a blank record */
    d->lost = d->anew = false;
    for (uint32_t i = 0; i < d->rows_n; i++) show(&d->rows[i]); /* those of which the walk saw nothing, too */
    return 0;
}

/* ---- retention ---- */

int wr_dispatch_retain(wr_dispatch *d, uint32_t number, uint64_t minimum) {
    assert(number < d->rows_n);
    a_row *row = &d->rows[number];
    return raise_minimum(d, row, minimum);
}

void wr_dispatch_retain_log(wr_dispatch *d, uint64_t first) {
    if (first > d->first) d->first = first;
}

uint64_t wr_dispatch_first(const wr_dispatch *d) { return d->first; }

int wr_dispatch_clean(wr_dispatch *d, uint32_t most, bool *more) {
    const uint32_t entries = d->place.consume_queue_entries;
    uint64_t removed;
    int error = 0;
    *more = false;
    for (uint32_t *at = &d->to_clean; !error && *at != NONE;) {
        a_row *row = &d->rows[*at];
        const bool saved = row->saved_minimum / entries == row->seen.minimum / entries;
        *more |= saved && !most;
        if (!saved || !most) {
            at = &row->next_clean;
            continue;
        }
        most--;
        *at = row->next_clean;
        row->cleaned = false;
        error = have_files(d, row);
        if (!error) error = wr_queue_files_remove(row->files, row->saved_minimum, &removed);
    }
    if (!error && d->clean_index) error = wr_index_files_remove(d->index, d->saved_first, &removed);
    d->clean_index = false;
    return error;
}
