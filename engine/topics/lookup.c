#include "topics/lookup.h"
#include "topics/half_record.h"
#include "kernel/bytes.h"
#include "topics/hash.h"
#include "topics/newest.h"
#include "topics/properties.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

/* A look-up is made anew when a pass ended under it: more often than that, passes end faster than it does. */
enum { LOOKUPS_MAX = 5 };

/* The unit of the message whose record says that it begins at a position. THERE, NONE or ERROR. */
static wr_message_kind unit_at(wr_topic_reader *r, uint64_t position, uint32_t *queue, uint64_t *offset, wr_unit *unit, int *error) {
    wr_topic_bounds b;
    const uint8_t *head;
    uint64_t n;
    uint32_t found;
    *error = wr_log_reader_peek(&r->log, position, WR_LOG_HEAD_SIZE, &head, &n);
    if (*error == ENOENT) n = 0, *error = 0;
    if (*error) return WR_MESSAGE_ERROR;
    if (n < WR_LOG_HEAD_SIZE || wr_get64(head + WR_LOG_HEAD_AT_PHYSICAL_OFFSET) != position) return WR_MESSAGE_NONE;
    uint32_t flag = wr_get32(head + WR_LOG_HEAD_AT_FLAG), size = wr_get32(head + WR_LOG_HEAD_AT_SIZE);
    *queue = wr_get32(head + WR_LOG_HEAD_AT_QUEUE_ID);
    *offset = wr_get64(head + WR_LOG_HEAD_AT_QUEUE_OFFSET);
    if ((flag && flag != r->id) || *queue > INT32_MAX) return WR_MESSAGE_NONE;
    *error = wr_topic_reader_bounds(r, *queue, &b);
    if (!*error && (*offset < b.minimum || *offset >= b.maximum)) return WR_MESSAGE_NONE;
    if (!*error) *error = wr_topic_reader_units(r, *queue, *offset, unit, 1, &found);
    if (*error) return *error == ENXIO ? WR_MESSAGE_NONE : WR_MESSAGE_ERROR;
    if (!found || wr_unit_is_zeros(unit)) { /* what a reader may see has its unit */
        wr_message_kind kind = wr_topic_reader_unit_again(r, *queue, *offset, unit, 1, &found, error);
        if (kind != WR_MESSAGE_THERE) return kind;
    }
    if (size && unit->size == size && unit->physical_offset == position) return WR_MESSAGE_THERE;
    if (!unit->size) return WR_MESSAGE_NONE;
    /* It leads elsewhere: to its message, and what lies here is none; or to nothing, and it is damaged. */
    wr_record other;
    const uint8_t *bytes;
    wr_message_kind kind = wr_topic_reader_record(r, *queue, *offset, unit, 0, true, &other, &bytes, error);
    return kind == WR_MESSAGE_THERE ? WR_MESSAGE_NONE : kind;
}

/* The message whose record begins at a position, of those that are shown. */
static wr_message_kind message_at(wr_topic_reader *r, uint64_t position, wr_record *record, const uint8_t **bytes, int *error) {
    uint32_t queue;
    uint64_t offset;
    wr_unit unit;
    wr_message_kind kind = unit_at(r, position, &queue, &offset, &unit, error);
    if (kind == WR_MESSAGE_THERE) kind = wr_topic_reader_record(r, queue, offset, &unit, 0, true, record, bytes, error);
    return kind == WR_MESSAGE_GONE ? WR_MESSAGE_NONE : kind;
}

/* The same, also of those that only a file of newest records has. */
static wr_message_kind message_anywhere(wr_topic_reader *r, uint64_t position, wr_record *record, const uint8_t **bytes, int *error) {
    const wr_message_kind kind = message_at(r, position, record, bytes, error);
    return kind == WR_MESSAGE_NONE && r->compacted ? wr_newest_at(r, position, record, bytes, error) : kind;
}

wr_message_kind wr_topic_lookup_at(wr_topic_reader *r, uint64_t position, const uint8_t *store_host, uint32_t store_host_bytes,
                                   wr_record *record, const uint8_t **bytes, int *error) {
    const uint64_t unshown = wr_topic_reader_unshown(r);
    wr_message_kind kind = message_anywhere(r, position, record, bytes, error);
    if (kind == WR_MESSAGE_NONE && unshown) {
        wr_topic_reader_catch_up(r, unshown);
        kind = message_anywhere(r, position, record, bytes, error);
    }
    if (kind != WR_MESSAGE_THERE || !store_host) return kind;
    bool same = store_host_bytes == wr_store_host_bytes(record->sys_flag) && !memcmp(*bytes + record->store_host_at, store_host, store_host_bytes);
    return same ? kind : WR_MESSAGE_NONE;
}

wr_message_kind wr_topic_lookup_half(wr_topic_reader *r, uint64_t position, uint32_t size, wr_record *record, const uint8_t **bytes, int *error) {
    wr_log_reader_drop(&r->log); /* who asks for a position may err */
    *error = size ? wr_log_reader_get(&r->log, position, size, 0, bytes) : ENODATA;
    if (*error == ENOENT || *error == ENODATA) *error = 0, size = 0;
    if (*error) return WR_MESSAGE_ERROR;
    const bool there = size && wr_record_scan(*bytes, size, position, WR_SCAN_ALL, record) == WR_SCAN_RECORD && record->size == size &&
                       wr_half_is(*bytes, record) && record->flag == r->id;
    if (!there) wr_log_reader_drop(&r->log);
    return there ? WR_MESSAGE_THERE : WR_MESSAGE_NONE;
}

int wr_topic_lookup_begin(wr_topic_lookup *l, wr_topic_reader *reader, wr_text key, int64_t since, int64_t until) {
    *l = (wr_topic_lookup){.reader = reader, .key = key, .since = since, .until = until};
    reader->damage.file[0] = 0;
    reader->newest_ahead = false;
    l->minima = reader->compacted ? wr_newest_minima(reader) : 0;
    wr_topic_reader_catch_up(reader, wr_topic_reader_unshown(reader));
    /* SYNC index-newest: pairs with show_index; a file of that name has it by now */
    wr_index_reader_expect(reader->index, reader->rows ? atomic_load_explicit(&reader->rows->index_newest, memory_order_acquire) : 0);
    uint32_t hash = wr_key_hash(wr_key_hash_topic(reader->name, reader->name_n), key.at, key.n);
    return wr_index_reader_find(reader->index, hash, since, until);
}

static bool has_key(const wr_record *record, const uint8_t *bytes, wr_text key) {
    wr_known_properties known;
    wr_text one;
    uint32_t at = 0;
    wr_properties_known(bytes + record->properties_at, record->properties_length, &known);
    if (known.uniq_key.at && known.uniq_key.n == key.n && !memcmp(known.uniq_key.at, key.at, key.n)) return true;
    while (known.keys.at && wr_keys_next(known.keys, &at, &one))
        if (one.n == key.n && !memcmp(one.at, key.at, key.n)) return true;
    return false;
}

static void index_damage(wr_topic_reader *r, wr_key_code code) {
    wr_topic_damage *d = &r->damage;
    snprintf(d->file, sizeof d->file, "index/%s", wr_index_reader_file(r->index));
    d->position = 0;
    snprintf(d->expected, WR_DAMAGE_WORDS, "a file of the key index");
    if (code == WR_KEY_MISSING) snprintf(d->found, WR_DAMAGE_WORDS, "no such file");
    else snprintf(d->found, WR_DAMAGE_WORDS, "a bad %s", wr_key_word(code));
}

/* A key whose record is not there. Whether that is damage: of the index or of the log. */
static bool leads_nowhere(wr_topic_reader *r, uint64_t position, int *error) {
    const uint8_t *head;
    uint64_t n;
    *error = wr_log_reader_peek(&r->log, position, WR_LOG_HEAD_SIZE, &head, &n);
    if (*error == ENOENT) n = 0, *error = 0;
    if (*error || (n == WR_LOG_HEAD_SIZE && wr_get64(head + WR_LOG_HEAD_AT_PHYSICAL_OFFSET) == position)) return false;
    if (position < wr_topic_reader_first(r)) return false; /* removed, and its keys will be */
    snprintf(r->damage.file, sizeof r->damage.file, "index/%s", wr_index_reader_file(r->index));
    r->damage.position = 0;
    snprintf(r->damage.expected, WR_DAMAGE_WORDS, "keys of records of the log");
    snprintf(r->damage.found, WR_DAMAGE_WORDS, "a key of position %llu, where no record begins", (unsigned long long)position);
    return true;
}

static bool is_wanted(const wr_topic_lookup *l, const wr_record *record, const uint8_t *bytes) {
    const int64_t time = (int64_t)record->store_timestamp;
    return time >= l->since && time <= l->until && has_key(record, bytes, l->key);
}

/* Note what the index gives. 0 or ENOMEM. */
static int note_given(wr_topic_lookup *l, uint64_t position) {
    if (!l->reader->compacted) return 0;
    if (l->given_n == l->given_max) {
        const uint32_t max = l->given_max ? 2 * l->given_max : 64;
        uint64_t *more = realloc(l->given, max * sizeof *more);
        if (!more) return ENOMEM;
        l->given = more;
        l->given_max = max;
    }
    l->given[l->given_n++] = position;
    return 0;
}

/* Positions of the index fall: it has the newest first. */
static bool was_given(const wr_topic_lookup *l, uint64_t position) {
    uint32_t low = 0, high = l->given_n;
    while (low < high) {
        const uint32_t middle = low + (high - low) / 2;
        if (l->given[middle] > position) low = middle + 1;
        else high = middle;
    }
    return low < l->given_n && l->given[low] == position;
}

bool wr_topic_lookup_whole(const wr_topic_lookup *l) {
    return !l->reader->compacted || (!l->reader->newest_ahead && l->minima == wr_newest_minima(l->reader));
}

void wr_topic_lookup_end(wr_topic_lookup *l) {
    free(l->given);
    l->given = NULL;
    l->given_n = l->given_max = 0;
}

/* Behind those of the index: of the files of newest records. They lie before all that the log has of their queue; but for what the
 * index gave before a minimum rose over it, which is not given again. */
static wr_message_kind next_newest(wr_topic_lookup *l, wr_record *record, const uint8_t **bytes, int *error) {
    const uint32_t hash = wr_key_hash(wr_key_hash_topic(l->reader->name, l->reader->name_n), l->key.at, l->key.n);
    while (l->reader->compacted && !l->over) {
        const wr_message_kind kind = wr_newest_find(l->reader, hash, l->newest, record, bytes, error);
        l->over = kind != WR_MESSAGE_THERE; /* behind damage nothing is known */
        if (kind != WR_MESSAGE_THERE) return kind;
        l->newest = record->physical_offset;
        if (is_wanted(l, record, *bytes) && !was_given(l, record->physical_offset)) return kind;
    }
    return WR_MESSAGE_NONE;
}

wr_message_kind wr_topic_lookup_next(wr_topic_lookup *l, wr_record *record, const uint8_t **bytes, int *error) {
    if (l->in_files) return next_newest(l, record, bytes, error);
    for (;;) {
        wr_key_entry entry;
        wr_key_code code;
        if ((*error = wr_index_reader_next(l->reader->index, &entry, &code))) return WR_MESSAGE_ERROR;
        if (code == WR_KEY_END) {
            l->in_files = true;
            l->newest = UINT64_MAX;
            return next_newest(l, record, bytes, error);
        }
        if (code == WR_KEY_MISSING && wr_index_reader_missing_end(l->reader->index) < wr_topic_reader_first(l->reader)) continue;
        if (code != WR_KEY_FOUND) {
            index_damage(l->reader, code);
            return WR_MESSAGE_DAMAGED;
        }
        if (l->any && entry.physical_offset == l->last) continue; /* of two keys of one hash */
        wr_message_kind kind = message_at(l->reader, entry.physical_offset, record, bytes, error);
        if (kind == WR_MESSAGE_NONE && leads_nowhere(l->reader, entry.physical_offset, error)) return WR_MESSAGE_DAMAGED;
        if (kind == WR_MESSAGE_NONE && *error) return WR_MESSAGE_ERROR;
        if (kind == WR_MESSAGE_NONE) continue;
        if (kind != WR_MESSAGE_THERE) return kind;
        if (!is_wanted(l, record, *bytes)) continue;
        l->any = true;
        l->last = entry.physical_offset;
        if ((*error = note_given(l, entry.physical_offset))) return WR_MESSAGE_ERROR;
        return kind;
    }
}

/* One look-up, as wr_topic_lookup_all. */
static int look_up(wr_topic_lookup *l, uint64_t limit, bool strict, const wr_topic_lookup_to *to, bool *damaged) {
    *damaged = false;
    for (uint64_t n = 0; n < limit;) {
        wr_record record;
        const uint8_t *bytes;
        int error = 0;
        const wr_message_kind kind = wr_topic_lookup_next(l, &record, &bytes, &error);
        if (kind == WR_MESSAGE_THERE) error = to->put(to->context, &record, bytes);
        if (error || kind == WR_MESSAGE_NONE) return error;
        n += kind == WR_MESSAGE_THERE;
        *damaged |= kind == WR_MESSAGE_DAMAGED;
        if (strict && *damaged) return 0;
    }
    return 0;
}

int wr_topic_lookup_all(wr_topic_reader *reader, wr_text key, int64_t since, int64_t until, uint64_t limit, bool strict, const wr_topic_lookup_to *to,
                        bool *damaged) {
    bool whole = false;
    int error = 0;
    for (int n = 0; n < LOOKUPS_MAX && !error && !whole; n++) {
        wr_topic_lookup lookup;
        to->anew(to->context);
        error = wr_topic_lookup_begin(&lookup, reader, key, since, until);
        if (!error) error = look_up(&lookup, limit, strict, to, damaged);
        whole = wr_topic_lookup_whole(&lookup);
        wr_topic_lookup_end(&lookup);
    }
    return error;
}
