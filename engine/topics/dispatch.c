/* Dispatch. What it is: topics/dispatch.h. */
#define _GNU_SOURCE
#include "topics/dispatch.h"
#include "kernel/map.h"
#include "topics/folder.h"
#include "topics/hash.h"
#include "topics/properties.h"
#include "topics/queue_files.h"
#include "topics/record.h"
#include <assert.h>
#include <limits.h>
#include <stdio.h>
#include <unistd.h>

#define NAME "checkpoint"
#define INDEX "index"
#define QUEUES "consumequeue"
#define NONE UINT32_MAX
#define SYNCED_EACH_MAX 32 /* queues; of more the file system is synced */

typedef struct {
    uint64_t from;
    uint32_t id, queues_n, row;
    uint32_t key_hash;  /* wr_key_hash_topic */
    uint32_t other;     /* another topic of this hash and length, NONE: none */
    uint32_t name_n;
    char *name;
} a_topic;

typedef struct {
    wr_dispatch_row seen;
    uint32_t topic, queue;
    bool known;   /* it had a record, or the checkpoint knows it */
    bool raised;  /* its maximum is to rise behind this commit: in the list `raised` */
    bool unsynced; /* in the list `unsynced` */
    uint32_t next_raised, next_unsynced;
    wr_queue_files *files; /* NULL: not used yet */
    _Atomic uint64_t *maximum;
} a_row;

struct wr_dispatch {
    wr_dispatch_place place;
    a_topic *topics;
    a_row *rows;
    uint32_t topics_n, topics_room, rows_n, rows_room;
    uint32_t last; /* topic of the last record */
    wr_map by_name, marks;
    uint32_t raised, unsynced; /* lists of rows */
    wr_index_files *index;
    bool lost;          /* keys of records from `lost_from` on are missing below `position` */
    uint64_t lost_from;
    bool halfway;       /* the commit at `position` is applied in part */
    bool anew;          /* there is no checkpoint: from the log's first file */
    uint64_t position, store_ms;
    wr_commit_head after; /* the last commit below `position` */
    wr_dispatch_counts counts;
};

/* ---- begin and end ---- */

wr_dispatch *wr_dispatch_new(const wr_dispatch_place *place) {
    if (!place->consume_queue_entries || !place->log_file_bytes) return NULL;
    wr_dispatch *d = calloc(1, sizeof *d);
    if (!d) return NULL;
    d->place = *place;
    d->raised = d->unsynced = d->last = NONE;
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
    for (uint32_t i = 0; i < d->topics_n; i++) free(d->topics[i].name);
    wr_index_files_free(d->index);
    free(d->topics);
    free(d->rows);
    free(d->by_name.rows);
    free(d->marks.rows);
    free(d);
}

/* ---- topics and rows ---- */

static uint32_t find_topic(const wr_dispatch *d, const uint8_t *name, uint32_t n) {
    if (d->last != NONE && d->topics[d->last].name_n == n && !memcmp(d->topics[d->last].name, name, n)) return d->last;
    const uint64_t *found = wr_map_find(&d->by_name, wr_java_hash(0, name, n), n);
    uint32_t at = found ? (uint32_t)*found - 1 : NONE;
    while (at != NONE && memcmp(d->topics[at].name, name, n)) at = d->topics[at].other;
    return at;
}

static bool is_system(const uint8_t *name, uint32_t n) {
    return n >= sizeof WR_SYSTEM_TOPICS - 1 && !memcmp(name, WR_SYSTEM_TOPICS, sizeof WR_SYSTEM_TOPICS - 1);
}

static bool name_good(const char *name, uint32_t n) {
    if (!n || n > NAME_MAX || is_system((const uint8_t *)name, n)) return false;
    if (memchr(name, '/', n) || memchr(name, 0, n)) return false;
    return !(n == 1 && name[0] == '.') && !(n == 2 && name[0] == '.' && name[1] == '.');
}

/* Room for one more topic, and so many rows. */
static int grow(wr_dispatch *d, uint32_t queues_n) {
    if (d->topics_n == d->topics_room) {
        uint32_t room = d->topics_room ? 2 * d->topics_room : 16;
        a_topic *topics = realloc(d->topics, room * sizeof *topics);
        if (!topics) return ENOMEM;
        d->topics = topics;
        d->topics_room = room;
    }
    if (d->rows_room - d->rows_n < queues_n) {
        uint32_t room = d->rows_room + (queues_n > d->rows_room ? queues_n : d->rows_room);
        a_row *rows = realloc(d->rows, room * sizeof *rows);
        if (!rows) return ENOMEM;
        d->rows = rows;
        d->rows_room = room;
    }
    return 0;
}

int wr_dispatch_add(wr_dispatch *d, const wr_dispatch_topic *topic, uint32_t *row) {
    if (!name_good(topic->name, topic->name_n) || !topic->queues_n || topic->queues_n > INT32_MAX / 2) return EINVAL;
    if (find_topic(d, (const uint8_t *)topic->name, topic->name_n) != NONE) return EEXIST;
    char *name = malloc(topic->name_n + 1);
    if (!name || grow(d, topic->queues_n)) {
        free(name);
        return ENOMEM;
    }
    uint64_t *first = wr_map_put(&d->by_name, wr_java_hash(0, topic->name, topic->name_n), topic->name_n);
    if (!first) {
        free(name);
        return ENOMEM;
    }
    memcpy(name, topic->name, topic->name_n);
    name[topic->name_n] = 0;
    uint32_t other = *first ? (uint32_t)*first - 1 : NONE;
    *first = d->topics_n + 1;
    d->topics[d->topics_n++] = (a_topic){.from = topic->from, .id = topic->id, .queues_n = topic->queues_n, .row = d->rows_n,
                                         .key_hash = wr_key_hash_topic(name, topic->name_n), .other = other,
                                         .name_n = topic->name_n, .name = name};
    *row = d->rows_n;
    for (uint32_t queue = 0; queue < topic->queues_n; queue++)
        d->rows[d->rows_n++] = (a_row){.topic = d->topics_n - 1, .queue = queue, .next_raised = NONE, .next_unsynced = NONE};
    return 0;
}

void wr_dispatch_show(wr_dispatch *d, uint32_t row, _Atomic uint64_t *maximum) {
    assert(row < d->rows_n);
    d->rows[row].maximum = maximum;
}

wr_dispatch_row wr_dispatch_look(const wr_dispatch *d, uint32_t row) {
    assert(row < d->rows_n);
    return d->rows[row].seen;
}

const wr_dispatch_counts *wr_dispatch_counted(const wr_dispatch *d) { return &d->counts; }

static void folder_of(const wr_dispatch *d, const a_row *row, char path[PATH_MAX]) {
    snprintf(path, PATH_MAX, QUEUES "/%.255s/%u", d->topics[row->topic].name, row->queue);
}

static int have_files(wr_dispatch *d, a_row *row) {
    char path[PATH_MAX];
    if (row->files) return 0;
    folder_of(d, row, path);
    row->files = wr_queue_files_new(d->place.root, path, d->place.consume_queue_entries);
    return row->files ? 0 : ENOMEM;
}

/* ---- records ---- */

static void raise_later(wr_dispatch *d, uint32_t number) {
    a_row *row = &d->rows[number];
    if (row->raised) return;
    row->raised = true;
    row->next_raised = d->raised;
    d->raised = number;
}

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

/* The unit of a record; `seen.next` is raised when its keys are there, too. */
static int store_unit(wr_dispatch *d, const wr_dispatch_record *r) {
    a_row *row = &d->rows[r->row];
    int error = have_files(d, row);
    if (!row->known) row->seen.minimum = row->seen.next = row->seen.durable = r->queue_offset;
    row->known = true;
    while (!error && row->seen.next < r->queue_offset) { /* the log lost them */
        if (!(error = put_unit(d, r->row, row->seen.next, 0, 0, 0))) row->seen.next++, d->counts.missing++;
    }
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
    if (is_new) row->seen.next = r->queue_offset + 1;
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
    uint32_t at = find_topic(d, name, record->topic_length), kind = record->sys_flag & WR_SYS_TRANSACTION_MASK;
    if (at == NONE && is_system(name, record->topic_length)) {
        d->counts.system++;
        return 0;
    }
    const a_topic *topic = at == NONE ? NULL : &d->topics[at];
    if (!topic || record->queue_id >= topic->queues_n || record->physical_offset < topic->from) {
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
    wr_dispatch_record r = {.row = topic->row + record->queue_id, .size = record->size, .position = record->physical_offset,
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

/* Readers may see what a row has. */
static void show(const a_row *row) {
    if (!row->maximum || atomic_load_explicit(row->maximum, memory_order_relaxed) >= row->seen.next) return;
    /* SYNC row-maximum: pairs with whoever reads units below it */
    atomic_store_explicit(row->maximum, row->seen.next, memory_order_release);
}

/* All of a commit is there. */
static void end_commit(wr_dispatch *d, const wr_commit_head *head, uint64_t end) {
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

int wr_dispatch_records(wr_dispatch *d, const wr_dispatch_record *records, uint32_t n, const wr_commit_head *head,
                        const wr_commit_mark *marks, uint64_t end) {
    int error = 0;
    d->halfway = true;
    for (uint32_t i = 0; !error && i < n; i++) {
        const wr_dispatch_record *r = &records[i];
        assert(r->row < d->rows_n);
        bool is_new = !d->rows[r->row].known || r->queue_offset >= d->rows[r->row].seen.next;
        if (is_new) error = store_unit(d, r);
        for (uint32_t k = 0; !error && k < r->keys_n; k++) error = store_key(d, r->key_hashes[k], r);
        if (!error) error = end_record(d, r, is_new);
    }
    for (uint32_t i = 0; !error && i < head->marks_n; i++) error = add_mark(d, marks[i]);
    if (!error) end_commit(d, head, end);
    return error;
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
                                                   .next = row->seen.next, .durable = row->seen.durable};
    }
    return 0;
}

static int write_checkpoint(wr_dispatch *d) {
    wr_checkpoint c = {.origin = d->after.origin, .number = d->after.number, .position = d->position, .store_ms = d->store_ms,
                       .consume_queue_entries = d->place.consume_queue_entries, .index_slots = d->place.index_slots,
                       .index_entries = d->place.index_entries};
    memcpy(c.boot, d->place.boot, sizeof c.boot);
    int error = sync_all(d, &c.index);
    if (!error) error = fill(d, &c);
    if (!error) error = wr_checkpoint_write(d->place.root, NAME, &c);
    wr_checkpoint_free(&c);
    return error;
}

int wr_dispatch_checkpoint(wr_dispatch *d, uint64_t synced) {
    if (d->halfway || d->lost) return EBUSY;
    return d->position > synced ? EAGAIN : write_checkpoint(d);
}

/* ---- begin ---- */

static a_row *row_of(const wr_dispatch *d, const wr_checkpoint_row *from) {
    for (uint32_t i = 0; i < d->topics_n; i++)
        if (d->topics[i].id == from->topic) return from->queue < d->topics[i].queues_n ? &d->rows[d->topics[i].row + from->queue] : NULL;
    return NULL;
}

static int take(wr_dispatch *d, const wr_checkpoint *c) {
    uint32_t next = 0; /* rows stand in the order in which topics were added, mostly */
    for (uint32_t i = 0; i < c->rows_n; i++) {
        a_row *row = next < d->rows_n && d->topics[d->rows[next].topic].id == c->rows[i].topic && d->rows[next].queue == c->rows[i].queue
                         ? &d->rows[next]
                         : row_of(d, &c->rows[i]);
        if (!row) continue; /* its topic was deleted */
        row->seen = (wr_dispatch_row){c->rows[i].minimum, c->rows[i].durable, c->rows[i].durable};
        row->known = true;
        next = (uint32_t)(row - d->rows) + 1;
    }
    d->position = c->position;
    d->store_ms = c->store_ms;
    d->after = (wr_commit_head){.origin = c->origin, .number = c->number, .store_ms = c->store_ms};
    int error = 0;
    for (uint32_t i = 0; !error && i < c->marks_n; i++) error = add_mark(d, c->marks[i]);
    return error;
}

/* Nothing is known of what lies there, nor how large its files are. */
static int remove_queues(const wr_dispatch *d) {
    int error = 0;
    for (uint32_t i = 0; !error && i < d->rows_n; i++) {
        char folder[PATH_MAX], path[PATH_MAX];
        wr_folder_list list;
        folder_of(d, &d->rows[i], folder);
        error = wr_folder_read(d->place.root, folder, WR_FOLDER_NAME_MAX, &list);
        for (uint32_t k = 0; !error && k < list.n; k++) {
            if (snprintf(path, sizeof path, "%s/%s", folder, list.names[k]) >= (int)sizeof path) error = ENAMETOOLONG;
            else if (unlinkat(d->place.root, path, 0) != 0 && errno != ENOENT) error = errno;
        }
        wr_folder_list_free(&list);
    }
    return error;
}

int wr_dispatch_begin(wr_dispatch *d, wr_checkpoint_kind *kind) {
    wr_checkpoint c = {.consume_queue_entries = d->place.consume_queue_entries, .index_slots = d->place.index_slots,
                       .index_entries = d->place.index_entries};
    memcpy(c.origin.node, d->place.node, sizeof c.origin.node);
    int error = wr_checkpoint_read(d->place.root, NAME, &c, kind);
    bool good = !error && *kind == WR_CHECKPOINT_GOOD;
    if (!error) error = good ? take(d, &c) : remove_queues(d);
    bool survived = good && !memcmp(c.boot, d->place.boot, sizeof c.boot);
    if (!error) error = wr_index_files_recover(d->index, good ? &c.index : NULL, survived, &d->lost, &d->lost_from);
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
    if (end->position > d->position) d->position = end->position; /* behind a blank record */
    d->lost = d->anew = false;
    for (uint32_t i = 0; i < d->rows_n; i++) show(&d->rows[i]); /* those of which the walk saw nothing, too */
    return 0;
}

/* ---- retention ---- */

int wr_dispatch_retain(wr_dispatch *d, uint32_t number, uint64_t minimum) {
    assert(number < d->rows_n);
    a_row *row = &d->rows[number];
    uint64_t removed;
    if (minimum > row->seen.next) minimum = row->seen.next;
    if (minimum <= row->seen.minimum) return 0;
    row->seen.minimum = minimum;
    int error = have_files(d, row);
    return error ? error : wr_queue_files_remove(row->files, minimum, &removed);
}

int wr_dispatch_retain_log(wr_dispatch *d, uint64_t position) {
    uint64_t removed;
    return wr_index_files_remove(d->index, position, &removed);
}
