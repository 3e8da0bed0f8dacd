/* Declared in topics/newest.h. */
#define _GNU_SOURCE
#include "topics/newest.h"
#include "kernel/data_files.h"
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <unistd.h>

void wr_newest_begin(wr_topic_reader *r, const uint8_t *node) {
    memcpy(r->node, node, sizeof r->node);
    r->compacted = true;
}

static wr_message_kind damaged(wr_topic_reader *r, uint32_t queue, uint64_t at, const char *what) {
    wr_topic_damage *d = &r->damage;
    snprintf(d->file, sizeof d->file, WR_NEWEST_FOLDER "/%u/%u", r->id, queue);
    d->position = at;
    snprintf(d->expected, WR_DAMAGE_WORDS, "the newest messages of queue %u", queue);
    snprintf(d->found, WR_DAMAGE_WORDS, "%s", what);
    return WR_MESSAGE_DAMAGED;
}

/* Open a queue's file. */
static wr_message_kind open_file(wr_topic_reader *r, uint32_t queue, wr_compacted **file, int *error) {
    char path[PATH_MAX];
    const char *wrong;
    snprintf(path, sizeof path, WR_NEWEST_FOLDER "/%u/%u", r->id, queue);
    /* whatever lies there: a pipe is not waited for, and nobody is led elsewhere */
    const int fd = wr_data_open(r->place.root, path, O_RDONLY, 0);
    *error = fd < 0 ? errno : 0;
    const bool foreign = *error == EISDIR || *error == EPERM;
    if (foreign || *error == ENOENT || *error == ENOTDIR) {
        *error = 0;
        return damaged(r, queue, 0, foreign ? "not a regular file of the owner" : "no such file");
    }
    if (fd < 0) return WR_MESSAGE_ERROR;
    const wr_compacted_code code = wr_compacted_open(file, fd, r->node, r->id, queue, &wrong, error);
    if (code == WR_COMPACTED_FOUND) return WR_MESSAGE_THERE;
    close(fd);
    return code == WR_COMPACTED_DAMAGED ? damaged(r, queue, 0, wrong) : WR_MESSAGE_ERROR;
}

/* The file of a queue, with all that is alive below the minimum. */
static wr_message_kind have_file(wr_topic_reader *r, uint32_t queue, uint64_t minimum, wr_compacted **file, int *error) {
    wr_topic_newest_open *oldest = r->newest;
    for (wr_topic_newest_open *o = r->newest; o < r->newest + WR_TOPIC_NEWEST_OPEN; o++) {
        if (o->file && o->queue == queue) {
            oldest = o;
            break;
        }
        if (oldest->file && (!o->file || o->used < oldest->used)) oldest = o;
    }
    if (!oldest->file || oldest->queue != queue || oldest->file->id.end < minimum) {
        wr_compacted *opened = NULL;
        const wr_message_kind kind = open_file(r, queue, &opened, error);
        if (kind != WR_MESSAGE_THERE) return kind;
        if (opened->id.end < minimum) { /* what it has may have been replaced, or taken away, since */
            wr_compacted_close(opened);
            return damaged(r, queue, 0, "an older one: it ends before the log begins");
        }
        wr_compacted_close(oldest->file);
        *oldest = (wr_topic_newest_open){.queue = queue, .file = opened};
    }
    oldest->used = ++r->uses;
    *file = oldest->file;
    if (oldest->file->id.end > minimum) r->newest_ahead = true;
    return WR_MESSAGE_THERE;
}

/* A record that was found: is it a message of this topic, byte for byte? */
static wr_message_kind checked(wr_topic_reader *r, uint32_t queue, const wr_record *record, const uint8_t *bytes, bool sum) {
    wr_record again;
    if (wr_record_scan(bytes, record->size, record->physical_offset, sum ? WR_SCAN_ALL : WR_SCAN_TEXT, &again) == WR_SCAN_RECORD &&
        wr_topic_reader_owns(r, record, bytes))
        return WR_MESSAGE_THERE;
    return damaged(r, queue, 0, "a message that is none of this topic's");
}

wr_message_kind wr_newest_from(wr_topic_reader *r, uint32_t queue, uint64_t minimum, wr_compacted_order order, uint64_t value, bool sum,
                               wr_record *record, const uint8_t **bytes, uint64_t *next, int *error) {
    wr_compacted *file;
    *next = minimum;
    wr_message_kind kind = have_file(r, queue, minimum, &file, error);
    if (kind != WR_MESSAGE_THERE) return kind;
    switch (wr_compacted_from(file, order, value, record, bytes, error)) {
    case WR_COMPACTED_FOUND: break;
    case WR_COMPACTED_DAMAGED:
        if (file->wrong_next < minimum) *next = file->wrong_next;
        return damaged(r, queue, file->wrong_at, file->wrong);
    case WR_COMPACTED_ERROR: return WR_MESSAGE_ERROR;
    default: return WR_MESSAGE_NONE;
    }
    if (record->queue_offset >= minimum) return WR_MESSAGE_NONE;
    kind = checked(r, queue, record, *bytes, sum);
    if (kind == WR_MESSAGE_DAMAGED) *next = record->queue_offset + 1;
    return kind;
}

wr_message_kind wr_newest_before(wr_topic_reader *r, uint32_t queue, uint64_t minimum, wr_compacted_order order, uint64_t value, wr_record *record,
                                 const uint8_t **bytes, int *error) {
    wr_compacted *file;
    const wr_message_kind kind = have_file(r, queue, minimum, &file, error);
    if (kind != WR_MESSAGE_THERE) return kind;
    for (;;) {
        switch (wr_compacted_before(file, order, value, record, bytes, error)) {
        case WR_COMPACTED_NONE: return WR_MESSAGE_NONE;
        case WR_COMPACTED_ERROR: return WR_MESSAGE_ERROR;
        case WR_COMPACTED_DAMAGED: value = file->wrong_first; break;
        default:
            if (record->queue_offset < minimum) return checked(r, queue, record, *bytes, true);
            value = minimum; /* those behind it the log has */
        }
        order = WR_COMPACTED_OFFSET;
    }
}

/* ---- of all queues ---- */

/* The bounds of the next queue from *queue on that has a file; false: there is none, or *error. */
static bool next_queue(wr_topic_reader *r, uint32_t *queue, wr_topic_bounds *b, int *error) {
    for (;; ++*queue) {
        *error = wr_topic_reader_bounds(r, *queue, b);
        if (*error == ENXIO) *error = 0;
        else if (!*error && !b->minimum) continue;
        else return !*error;
        return false;
    }
}

uint64_t wr_newest_minima(wr_topic_reader *r) {
    wr_topic_bounds b;
    uint64_t sum = 0;
    int error;
    for (uint32_t queue = 0; next_queue(r, &queue, &b, &error); queue++) sum += b.minimum;
    return sum;
}

wr_message_kind wr_newest_at(wr_topic_reader *r, uint64_t position, wr_record *record, const uint8_t **bytes, int *error) {
    wr_topic_bounds b;
    for (uint32_t queue = 0; next_queue(r, &queue, &b, error); queue++) {
        uint64_t next;
        const wr_message_kind kind = wr_newest_from(r, queue, b.minimum, WR_COMPACTED_POSITION, position, true, record, bytes, &next, error);
        if (kind == WR_MESSAGE_NONE || (kind == WR_MESSAGE_THERE && record->physical_offset != position)) continue;
        return kind;
    }
    return *error ? WR_MESSAGE_ERROR : WR_MESSAGE_NONE;
}

/* The last one of a queue with a key of this hash, at a lower position. */
static wr_message_kind find_in(wr_topic_reader *r, uint32_t queue, uint64_t minimum, uint32_t hash, uint64_t below, wr_record *record, const uint8_t **bytes, int *error) {
    wr_compacted *file;
    uint64_t next, offset = minimum;
    wr_message_kind kind = have_file(r, queue, minimum, &file, error);
    if (kind != WR_MESSAGE_THERE) return kind;
    /* positions rise with offsets: what lies at the position or behind it is passed by at once, however many of them have the key */
    if (below != UINT64_MAX && wr_compacted_from(file, WR_COMPACTED_POSITION, below, record, bytes, error) == WR_COMPACTED_FOUND &&
        record->queue_offset < offset)
        offset = record->queue_offset;
    *error = 0;
    for (;;) {
        switch (wr_compacted_find(file, hash, offset, &offset, error)) {
        case WR_COMPACTED_NONE: return WR_MESSAGE_NONE;
        case WR_COMPACTED_ERROR: return WR_MESSAGE_ERROR;
        case WR_COMPACTED_DAMAGED: return damaged(r, queue, file->wrong_at, file->wrong);
        default: break;
        }
        kind = wr_newest_from(r, queue, minimum, WR_COMPACTED_OFFSET, offset, true, record, bytes, &next, error);
        if (kind == WR_MESSAGE_THERE && record->queue_offset == offset && record->physical_offset >= below) continue;
        if (kind == WR_MESSAGE_NONE || (kind == WR_MESSAGE_THERE && record->queue_offset != offset))
            return damaged(r, queue, 0, "a key of a message that is not there");
        return kind;
    }
}

wr_message_kind wr_newest_find(wr_topic_reader *r, uint32_t hash, uint64_t below, wr_record *record, const uint8_t **bytes, int *error) {
    wr_topic_bounds b, best_bounds = {0};
    uint64_t best = 0;
    uint32_t best_queue = UINT32_MAX;
    for (uint32_t queue = 0; next_queue(r, &queue, &b, error); queue++) {
        const wr_message_kind kind = find_in(r, queue, b.minimum, hash, below, record, bytes, error);
        if (kind == WR_MESSAGE_DAMAGED || kind == WR_MESSAGE_ERROR) return kind;
        if (kind != WR_MESSAGE_THERE || (best_queue != UINT32_MAX && record->physical_offset < best)) continue;
        best = record->physical_offset;
        best_queue = queue;
        best_bounds = b;
    }
    if (*error) return WR_MESSAGE_ERROR;
    if (best_queue == UINT32_MAX) return WR_MESSAGE_NONE;
    return find_in(r, best_queue, best_bounds.minimum, hash, below, record, bytes, error); /* its bytes again */
}

wr_message_kind wr_newest_count(wr_topic_reader *r, uint32_t queue, uint64_t minimum, uint64_t *first, uint64_t *n, uint64_t *end, int *error) {
    wr_compacted *file;
    const wr_message_kind kind = have_file(r, queue, minimum, &file, error);
    if (kind != WR_MESSAGE_THERE) return kind;
    *n = file->records_n;
    *end = file->id.end;
    *first = wr_compacted_first(file);
    if (*first > minimum) *first = minimum;
    return WR_MESSAGE_THERE;
}

int wr_newest_bounds(wr_topic_reader *r, uint32_t queue, wr_topic_bounds *b, uint64_t *messages) {
    uint64_t first = 0, n = 0, end = 0;
    int error = wr_topic_reader_all(r, queue, b);
    if (error) return error;
    const uint64_t minimum = b->minimum;
    if (r->compacted && minimum) {
        if (wr_newest_count(r, queue, minimum, &first, &n, &end, &error) == WR_MESSAGE_ERROR) return error;
        b->minimum = first;
    }
    end = end < minimum ? minimum : end > b->maximum ? b->maximum : end;
    *messages = n + b->maximum - end;
    return 0;
}
