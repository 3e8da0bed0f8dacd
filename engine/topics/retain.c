/* What retention wants to know. Declared in topics/retain.h. */
#include "topics/retain.h"
#include <errno.h>
#include <stdlib.h>

#define UNITS_AT_ONCE 204u

/* The first unit that is there, of the offsets from … to; size 0: there is none. Files that are gone are passed by. */
static int first_unit(wr_topic_reader *r, uint32_t queue, uint64_t from, uint64_t to, uint64_t *offset, wr_unit *unit) {
    wr_unit units[UNITS_AT_ONCE];
    *unit = (wr_unit){0};
    for (uint32_t most = 1; from < to; most = most * 8 < UNITS_AT_ONCE ? most * 8 : UNITS_AT_ONCE) {
        const uint64_t left = to - from;
        uint32_t n;
        int error = wr_topic_reader_units(r, queue, from, units, left < most ? (uint32_t)left : most, &n);
        if (error) return error;
        for (uint32_t i = 0; i < n; i++) {
            if (!units[i].size) continue;
            *offset = from + i;
            *unit = units[i];
            return 0;
        }
        from += n ? n : r->place.consume_queue_entries - from % r->place.consume_queue_entries;
    }
    return 0;
}

int wr_retain_offset(wr_topic_reader *r, uint32_t queue, uint64_t position, uint64_t *offset) {
    wr_topic_bounds b;
    int error = wr_topic_reader_bounds(r, queue, &b);
    uint64_t low = b.minimum, high = b.maximum;
    while (!error && low < high) {
        const uint64_t middle = low + (high - low) / 2;
        uint64_t found = 0;
        wr_unit unit;
        error = first_unit(r, queue, middle, high, &found, &unit);
        if (!unit.size || unit.physical_offset >= position) high = middle;
        else low = found + 1;
    }
    *offset = low;
    return error;
}

int wr_retain_position(wr_topic_reader *r, uint32_t queue, uint64_t offset, uint64_t *position) {
    wr_topic_bounds b;
    wr_unit unit;
    uint64_t found;
    int error = wr_topic_reader_bounds(r, queue, &b);
    if (!error) error = first_unit(r, queue, offset > b.minimum ? offset : b.minimum, b.maximum, &found, &unit);
    if (!error) *position = unit.size ? unit.physical_offset : UINT64_MAX;
    return error;
}

/* ---- what is too much ---- */

/* A queue whose oldest records are looked at. */
typedef struct {
    uint64_t offset, maximum; /* of the unit at hand */
    uint32_t n, at;
    wr_unit units[UNITS_AT_ONCE];
} a_head;

/* Have a unit at hand whose record is there, or be at the maximum. */
static int have_unit(wr_topic_reader *r, uint32_t queue, a_head *h) {
    while (h->offset < h->maximum) {
        if (h->at < h->n && h->units[h->at].size) return 0;
        if (h->at < h->n) {
            h->at++;
            h->offset++;
            continue;
        }
        const uint64_t left = h->maximum - h->offset;
        int error = wr_topic_reader_units(r, queue, h->offset, h->units, left < UNITS_AT_ONCE ? (uint32_t)left : UNITS_AT_ONCE, &h->n);
        if (error) return error;
        h->at = 0;
        if (!h->n) h->offset += r->place.consume_queue_entries - h->offset % r->place.consume_queue_entries;
    }
    h->offset = h->maximum;
    return 0;
}

static inline uint64_t position_of(const a_head *h) { return h->offset < h->maximum ? h->units[h->at].physical_offset : UINT64_MAX; }

/* The queue with the oldest record, and where the next one's begins. */
static uint32_t oldest_of(const a_head *heads, uint32_t n, uint64_t *next) {
    uint32_t oldest = 0;
    *next = UINT64_MAX;
    for (uint32_t i = 1; i < n; i++) {
        const uint64_t position = position_of(&heads[i]);
        if (position < position_of(&heads[oldest])) {
            *next = position_of(&heads[oldest]);
            oldest = i;
        } else if (position < *next) {
            *next = position;
        }
    }
    return oldest;
}

/* Take records of one queue up to a position. */
static int take(wr_topic_reader *r, uint32_t queue, a_head *h, uint64_t until, uint64_t excess, uint64_t *taken) {
    int error = 0;
    while (!error && *taken < excess && position_of(h) < until) {
        if (until == UINT64_MAX && h->offset + 1 == h->maximum) break; /* the newest of all */
        *taken += h->units[h->at].size;
        h->at++;
        h->offset++;
        error = have_unit(r, queue, h);
    }
    return error;
}

int wr_retain_excess(wr_topic_reader *r, uint32_t queues_n, uint64_t excess, uint64_t *minima) {
    a_head *heads = calloc(queues_n, sizeof *heads);
    uint64_t taken = 0, next;
    int error = heads ? 0 : ENOMEM;
    for (uint32_t i = 0; !error && i < queues_n; i++) {
        wr_topic_bounds b;
        if ((error = wr_topic_reader_bounds(r, i, &b))) break;
        heads[i].offset = b.minimum;
        heads[i].maximum = b.maximum;
        error = have_unit(r, i, &heads[i]);
    }
    while (!error && taken < excess) {
        const uint32_t oldest = oldest_of(heads, queues_n, &next);
        const uint64_t before = taken;
        error = take(r, oldest, &heads[oldest], next, excess, &taken);
        if (taken == before) break; /* there is nothing more to take */
    }
    for (uint32_t i = 0; !error && i < queues_n; i++) minima[i] = heads[i].offset;
    free(heads);
    return error;
}
