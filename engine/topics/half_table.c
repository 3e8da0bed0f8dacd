/* Half messages that are pending, and what became of others. What they are: topics/half_table.h. */
#include "topics/half_table.h"
#include "kernel/bytes.h"
#include "kernel/frame.h"
#include "topics/formats.h"
#include <assert.h>

#define ROOM_MIN 64u
#define HEAD(field) (WR_HALVES_AT_##field)
#define BEHIND_CRC (HEAD(CRC) + 4)

static const char MAGIC[] = WR_HALVES_MAGIC;
_Static_assert(sizeof MAGIC - 1 == 8, "the magic");

void wr_halves_free(wr_halves *h) {
    free(h->pending);
    free(h->outcomes);
    free(h->by_half.rows);
    *h = (wr_halves){.most = h->most, .kept = h->kept};
}

/* ---- pending ---- */

static void close_gaps(wr_halves *h) {
    uint64_t kept = 0;
    for (uint64_t at = 0; at < h->n; at++)
        if (h->pending[at].size) h->pending[kept++] = h->pending[at];
    h->n = kept;
    h->gaps = 0;
}

static int more_room(wr_halves *h) {
    if (h->n < h->room) return 0;
    const uint64_t room = h->room ? 2 * h->room : ROOM_MIN;
    wr_half *pending = realloc(h->pending, room * sizeof *pending);
    if (!pending) return ENOMEM;
    h->pending = pending;
    h->room = room;
    return 0;
}

int wr_half_reserve(wr_halves *h) { return wr_halves_pending(h) >= h->most ? ENOSPC : more_room(h); }

void wr_half_add(wr_halves *h, wr_half half) {
    assert(h->n < h->room && half.size && (!h->n || h->pending[h->n - 1].position < half.position));
    h->pending[h->n++] = half;
}

/* The first place whose position is not lower. */
static uint64_t place_of(const wr_halves *h, uint64_t position) {
    uint64_t low = 0, high = h->n;
    while (low < high) {
        const uint64_t middle = low + (high - low) / 2;
        if (h->pending[middle].position < position) low = middle + 1;
        else high = middle;
    }
    return low;
}

wr_half *wr_half_find(const wr_halves *h, uint64_t position) {
    const uint64_t at = place_of(h, position);
    return at < h->n && h->pending[at].position == position && h->pending[at].size ? &h->pending[at] : NULL;
}

wr_half *wr_half_from(const wr_halves *h, uint64_t position, uint32_t topic) {
    for (uint64_t at = place_of(h, position); at < h->n; at++)
        if (h->pending[at].size && (!topic || h->pending[at].topic == topic)) return &h->pending[at];
    return NULL;
}

/* Most of a large table's memory goes back when it is nearly empty; without memory for a smaller one it stays. */
static void take_out(wr_halves *h, wr_half *half) {
    half->size = 0;
    if (++h->gaps <= ROOM_MIN / 2 || h->gaps <= h->n / 2) return;
    close_gaps(h);
    if (h->room <= 4096 || h->n * 8 > h->room) return;
    wr_half *pending = realloc(h->pending, h->room / 4 * sizeof *pending);
    if (!pending) return;
    h->pending = pending;
    h->room /= 4;
}

uint64_t wr_half_drop(wr_halves *h, uint32_t topic) {
    const uint64_t before = wr_halves_pending(h);
    for (uint64_t at = 0; at < h->n; at++)
        if (h->pending[at].size && h->pending[at].topic == topic) {
            h->pending[at].size = 0;
            h->gaps++;
        }
    close_gaps(h);
    return before - wr_halves_pending(h);
}

/* ---- outcomes ---- */

static inline wr_half_outcome *outcome_at(const wr_halves *h, uint64_t number) { return &h->outcomes[number & (h->outcomes_room - 1)]; }

/* Of its half message the log's part below `sealed` does not say yet what became. */
static inline bool is_open(const wr_half_outcome *o, uint64_t sealed) { return o->by >= sealed && o->half.size; }

uint64_t wr_half_lowest(const wr_halves *h, uint64_t sealed) {
    uint64_t lowest = UINT64_MAX;
    const wr_half *first = wr_half_from(h, 0, 0);
    if (first) lowest = first->position;
    for (uint64_t i = h->next; i > h->first && outcome_at(h, i - 1)->by >= sealed; i--) {
        const wr_half_outcome *o = outcome_at(h, i - 1);
        if (is_open(o, sealed) && o->half.position < lowest) lowest = o->half.position;
    }
    return lowest;
}

static void let_go(wr_halves *h) {
    const wr_half_outcome *oldest = outcome_at(h, h->first);
    const uint64_t *number = wr_map_find(&h->by_half, oldest->half.position, 0);
    if (number && *number == h->first) wr_map_remove(&h->by_half, oldest->half.position, 0);
    h->first++;
}

int wr_half_may_finish(wr_halves *h, uint64_t sealed) {
    while (h->next - h->first >= h->kept && h->next > h->first && outcome_at(h, h->first)->by < sealed) let_go(h);
    if (wr_map_reserve(&h->by_half, 1)) return ENOMEM;
    if (h->next - h->first < h->outcomes_room) return 0;
    const uint64_t room = h->outcomes_room ? 2 * h->outcomes_room : ROOM_MIN;
    wr_half_outcome *outcomes = malloc(room * sizeof *outcomes);
    if (!outcomes) return ENOMEM;
    for (uint64_t i = h->first; i < h->next; i++) outcomes[i & (room - 1)] = *outcome_at(h, i);
    free(h->outcomes);
    h->outcomes = outcomes;
    h->outcomes_room = room;
    return 0;
}

void wr_half_finish(wr_halves *h, wr_half_outcome outcome) {
    wr_half *half = wr_half_find(h, outcome.half.position);
    if (half) {
        outcome.half = *half;
        take_out(h, half);
    }
    assert(h->next - h->first < h->outcomes_room);
    *outcome_at(h, h->next) = outcome;
    uint64_t *number = wr_map_put(&h->by_half, outcome.half.position, 0);
    assert(number); /* reserved */
    *number = h->next++;
}

const wr_half_outcome *wr_half_outcome_of(const wr_halves *h, uint64_t position) {
    const uint64_t *number = wr_map_find(&h->by_half, position, 0);
    return number ? outcome_at(h, *number) : NULL;
}

/* ---- the snapshot ---- */

uint64_t wr_halves_bytes(const wr_halves *h) {
    const uint64_t outcomes_n = h->next - h->first, size = WR_HALF_SIZE > WR_HALF_OUTCOME_SIZE ? WR_HALF_SIZE : WR_HALF_OUTCOME_SIZE;
    return WR_HALVES_SIZE + wr_halves_pending(h) * WR_HALF_SIZE + outcomes_n * size;
}

static uint32_t crc_of(const uint8_t *bytes, uint64_t n) {
    return wr_crc32c(wr_crc32c(0, bytes, HEAD(CRC)), bytes + BEHIND_CRC, n - BEHIND_CRC);
}

static uint8_t *put_half(uint8_t *at, const wr_half *half) {
    wr_put64(at + WR_HALF_AT_POSITION, half->position);
    wr_put64(at + WR_HALF_AT_DUE, half->due);
    wr_put32(at + WR_HALF_AT_SIZE, half->size);
    wr_put32(at + WR_HALF_AT_TOPIC, half->topic);
    wr_put32(at + WR_HALF_AT_ASKED, half->asked);
    return at + WR_HALF_SIZE;
}

static uint8_t *put_outcome(uint8_t *at, const wr_half_outcome *o) {
    wr_put64(at + WR_HALF_OUTCOME_AT_HALF, o->half.position);
    wr_put64(at + WR_HALF_OUTCOME_AT_BY, o->by);
    wr_put64(at + WR_HALF_OUTCOME_AT_OFFSET, o->offset);
    wr_put32(at + WR_HALF_OUTCOME_AT_QUEUE, o->queue);
    wr_put32(at + WR_HALF_OUTCOME_AT_TOPIC, o->half.topic);
    wr_put32(at + WR_HALF_OUTCOME_AT_KIND, o->kind);
    return at + WR_HALF_OUTCOME_SIZE;
}

/* Where the next one of those lies that a later record took out, from `after` on (in the order of positions, which is not that of outcomes). */
static const wr_half *open_behind(const wr_halves *h, uint64_t sealed, uint64_t from) {
    const wr_half *found = NULL;
    for (uint64_t i = h->next; i > h->first && outcome_at(h, i - 1)->by >= sealed; i--) {
        const wr_half_outcome *o = outcome_at(h, i - 1);
        if (is_open(o, sealed) && o->half.position >= from && (!found || o->half.position < found->position)) found = &o->half;
    }
    return found;
}

/* Those that are pending as of a position, in their order: of those that are, and of those that the log behind it took out. */
static uint8_t *put_pending(const wr_halves *h, uint64_t sealed, uint8_t *at, uint64_t *n) {
    const wr_half *half = wr_half_from(h, 0, 0), *open = open_behind(h, sealed, 0);
    for (*n = 0; (half && half->position < sealed) || (open && open->position < sealed); ++*n) {
        const bool from_open = open && (!half || open->position < half->position);
        const wr_half *next = from_open ? open : half;
        at = put_half(at, next);
        if (from_open) open = open_behind(h, sealed, next->position + 1);
        else half = wr_half_from(h, next->position + 1, 0);
    }
    return at;
}

uint64_t wr_halves_encode(const wr_halves *h, const wr_halves_head *head, uint8_t *to) {
    memset(to, 0, WR_HALVES_SIZE);
    memcpy(to + HEAD(MAGIC), MAGIC, 8);
    wr_put32(to + HEAD(VERSION), WR_HALVES_VERSION);
    memcpy(to + HEAD(NODE), head->node, 16);
    wr_put64(to + HEAD(POSITION), head->position);
    wr_put64(to + HEAD(EPOCH), head->epoch);
    wr_put64(to + HEAD(NUMBER), head->number);
    uint64_t pending_n, outcomes_n = 0;
    uint8_t *at = put_pending(h, head->position, to + WR_HALVES_SIZE, &pending_n);
    for (uint64_t i = h->first; i < h->next && outcome_at(h, i)->by < head->position; i++, outcomes_n++) at = put_outcome(at, outcome_at(h, i));
    wr_put64(to + HEAD(PENDING_N), pending_n);
    wr_put64(to + HEAD(OUTCOMES_N), outcomes_n);
    wr_put32(to + HEAD(CRC), crc_of(to, (uint64_t)(at - to)));
    return (uint64_t)(at - to);
}

static const char *judge(const uint8_t *bytes, uint64_t n, wr_halves_head *head) {
    if (n < WR_HALVES_SIZE || memcmp(bytes + HEAD(MAGIC), MAGIC, 8)) return "it is no snapshot of half messages";
    if (wr_get32(bytes + HEAD(VERSION)) != WR_HALVES_VERSION) return "it has another version";
    if (wr_get32(bytes + HEAD(CRC)) != crc_of(bytes, n)) return "its checksum is wrong";
    if (memcmp(bytes + HEAD(NODE), head->node, 16)) return "it is of another node";
    head->position = wr_get64(bytes + HEAD(POSITION));
    head->epoch = wr_get64(bytes + HEAD(EPOCH));
    head->number = wr_get64(bytes + HEAD(NUMBER));
    const uint64_t pending_n = wr_get64(bytes + HEAD(PENDING_N)), outcomes_n = wr_get64(bytes + HEAD(OUTCOMES_N));
    if (pending_n > n / WR_HALF_SIZE || outcomes_n > n / WR_HALF_OUTCOME_SIZE ||
        n != WR_HALVES_SIZE + pending_n * WR_HALF_SIZE + outcomes_n * WR_HALF_OUTCOME_SIZE)
        return "it has another length";
    return NULL;
}

static const char *take_pending(wr_halves *h, const uint8_t *at, uint64_t n, uint64_t end) {
    for (uint64_t i = 0, last = 0; i < n; i++, at += WR_HALF_SIZE) {
        const wr_half half = {.position = wr_get64(at + WR_HALF_AT_POSITION), .due = wr_get64(at + WR_HALF_AT_DUE), .size = wr_get32(at + WR_HALF_AT_SIZE),
                              .topic = wr_get32(at + WR_HALF_AT_TOPIC), .asked = wr_get32(at + WR_HALF_AT_ASKED)};
        if ((i && half.position <= last) || half.position >= end || !half.size || half.size > WR_RECORD_BYTES_MAX) return "its records are in no order";
        if (more_room(h)) return "memory"; /* those that are there stay, also when the setting was lowered */
        wr_half_add(h, half);
        last = half.position;
    }
    return NULL;
}

static const char *take_outcomes(wr_halves *h, const uint8_t *at, uint64_t n, uint64_t end) {
    for (uint64_t i = 0, last = 0; i < n; i++, at += WR_HALF_OUTCOME_SIZE) {
        const wr_half_outcome o = {.half = {.position = wr_get64(at + WR_HALF_OUTCOME_AT_HALF), .topic = wr_get32(at + WR_HALF_OUTCOME_AT_TOPIC)},
                                   .by = wr_get64(at + WR_HALF_OUTCOME_AT_BY), .offset = wr_get64(at + WR_HALF_OUTCOME_AT_OFFSET),
                                   .queue = wr_get32(at + WR_HALF_OUTCOME_AT_QUEUE), .kind = wr_get32(at + WR_HALF_OUTCOME_AT_KIND)};
        if ((i && o.by <= last) || o.by >= end || o.half.position >= o.by || o.kind - 1 >= WR_HALF_PUT_ASIDE || wr_half_find(h, o.half.position))
            return "its outcomes are in no order";
        if (wr_half_may_finish(h, UINT64_MAX)) return "memory";
        wr_half_finish(h, o);
        last = o.by;
    }
    return NULL;
}

const char *wr_halves_decode(wr_halves *h, const uint8_t *bytes, uint64_t n, wr_halves_head *head) {
    const char *wrong = judge(bytes, n, head);
    if (wrong) return wrong;
    const uint64_t pending_n = wr_get64(bytes + HEAD(PENDING_N)), outcomes_n = wr_get64(bytes + HEAD(OUTCOMES_N));
    wrong = take_pending(h, bytes + WR_HALVES_SIZE, pending_n, head->position);
    if (!wrong) wrong = take_outcomes(h, bytes + WR_HALVES_SIZE + pending_n * WR_HALF_SIZE, outcomes_n, head->position);
    if (wrong) wr_halves_free(h);
    return wrong;
}
