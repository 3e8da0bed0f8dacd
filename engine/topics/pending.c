/* Messages that are to come later. What they are: topics/pending.h. */
#include "topics/pending.h"
#include "kernel/bytes.h"
#include "kernel/frame.h"
#include "topics/formats.h"
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define ROOM_MIN 64u
#define HEAD(field) (WR_LATER_AT_##field)
#define BEHIND_CRC (HEAD(CRC) + 4)

static const char MAGIC[] = WR_LATER_MAGIC;
_Static_assert(sizeof MAGIC - 1 == 8, "the magic");

void wr_pending_free(wr_pending *p) {
    free(p->all);
    free(p->taken);
    *p = (wr_pending){.most = p->most};
}

int wr_pending_reserve(wr_pending *p, uint64_t n) {
    if (n > p->most || p->n > p->most - n) return ENOSPC;
    if (p->n + n <= p->room) return 0;
    uint64_t room = p->room ? 2 * p->room : ROOM_MIN;
    while (room < p->n + n) room *= 2;
    wr_pending_message *all = realloc(p->all, room * sizeof *all);
    if (!all) return ENOMEM;
    p->all = all;
    p->room = room;
    return 0;
}

/* ---- the heap ---- */

static inline bool before(const wr_pending_message *a, const wr_pending_message *b) {
    return a->due != b->due ? a->due < b->due : a->position < b->position;
}

static void rise(wr_pending *p, uint64_t at) {
    const wr_pending_message message = p->all[at];
    for (uint64_t above; at && before(&message, &p->all[above = (at - 1) / 2]); at = above) p->all[at] = p->all[above];
    p->all[at] = message;
}

static void sink(wr_pending *p, uint64_t at) {
    const wr_pending_message message = p->all[at];
    for (uint64_t below; (below = 2 * at + 1) < p->n; at = below) {
        if (below + 1 < p->n && before(&p->all[below + 1], &p->all[below])) below++;
        if (!before(&p->all[below], &message)) break;
        p->all[at] = p->all[below];
    }
    p->all[at] = message;
}

static void order(wr_pending *p) {
    for (uint64_t at = p->n / 2; at-- > 0;) sink(p, at);
}

void wr_pending_put(wr_pending *p, wr_pending_message message) {
    assert(p->n < p->room);
    p->all[p->n++] = message;
    rise(p, p->n - 1);
}

/* Most of a large table's memory goes back when it is nearly empty; without memory for a smaller one it stays. */
static void shrink(wr_pending *p) {
    if (p->room <= 4096 || p->n * 8 > p->room) return;
    wr_pending_message *all = realloc(p->all, p->room / 4 * sizeof *all);
    if (!all) return;
    p->all = all;
    p->room /= 4;
}

void wr_pending_pop(wr_pending *p) {
    assert(p->n);
    p->all[0] = p->all[--p->n];
    if (p->n) sink(p, 0);
    shrink(p);
}

int wr_pending_may_take(wr_pending *p, uint64_t sealed) {
    if (p->taken_n && p->taken[p->taken_n - 1].by < sealed) p->taken_n = 0; /* they lie in order */
    if (p->taken_n < p->taken_room) return 0;
    const uint32_t room = p->taken_room ? 2 * p->taken_room : ROOM_MIN;
    wr_taken_message *taken = realloc(p->taken, room * sizeof *taken);
    if (!taken) return ENOMEM;
    p->taken = taken;
    p->taken_room = room;
    return 0;
}

void wr_pending_take(wr_pending *p, uint64_t by) {
    assert(p->n && p->taken_n < p->taken_room);
    p->taken[p->taken_n++] = (wr_taken_message){p->all[0], by};
    wr_pending_pop(p);
}

void wr_pending_postpone(wr_pending *p, uint64_t due) {
    assert(p->n && due >= p->all[0].due);
    p->all[0].due = due;
    sink(p, 0);
}

uint64_t wr_pending_drop(wr_pending *p, uint32_t topic) {
    uint64_t kept = 0;
    for (uint64_t at = 0; at < p->n; at++)
        if (p->all[at].topic != topic) p->all[kept++] = p->all[at];
    const uint64_t dropped = p->n - kept;
    p->n = kept;
    if (dropped) order(p);
    return dropped;
}

uint64_t wr_pending_lowest(const wr_pending *p) {
    uint64_t lowest = UINT64_MAX;
    for (uint64_t at = 0; at < p->n; at++)
        if (p->all[at].position < lowest) lowest = p->all[at].position;
    for (uint32_t at = 0; at < p->taken_n; at++)
        if (p->taken[at].message.position < lowest) lowest = p->taken[at].message.position;
    return lowest;
}

/* ---- a start ---- */

#define CAME UINT32_MAX /* no size of a record */

static void close_gaps(wr_pending *p) {
    uint64_t kept = 0;
    for (uint64_t at = 0; at < p->n; at++)
        if (p->all[at].size != CAME) p->all[kept++] = p->all[at];
    p->n = kept;
    p->gone = 0;
}

void wr_pending_add(wr_pending *p, wr_pending_message message) {
    assert(p->n < p->room && (!p->n || p->all[p->n - 1].position < message.position));
    p->all[p->n++] = message;
}

bool wr_pending_came(wr_pending *p, uint64_t position) {
    uint64_t low = 0, high = p->n;
    while (low < high) {
        const uint64_t middle = low + (high - low) / 2;
        if (p->all[middle].position < position) low = middle + 1;
        else high = middle;
    }
    if (low == p->n || p->all[low].position != position || p->all[low].size == CAME) return false;
    p->all[low].size = CAME;
    if (++p->gone > ROOM_MIN && p->gone > p->n / 2) close_gaps(p);
    return true;
}

void wr_pending_heap(wr_pending *p) {
    close_gaps(p);
    order(p);
}

/* ---- the snapshot ---- */

uint64_t wr_pending_copy(const wr_pending *p, uint64_t sealed, wr_pending_message *to) {
    uint64_t n = 0;
    for (uint64_t at = 0; at < p->n; at++)
        if (p->all[at].position < sealed) to[n++] = p->all[at];
    for (uint32_t at = 0; at < p->taken_n; at++)
        if (p->taken[at].by >= sealed && p->taken[at].message.position < sealed) to[n++] = p->taken[at].message;
    return n;
}

uint64_t wr_pending_bytes(uint64_t n) { return WR_LATER_SIZE + n * WR_PENDING_SIZE; }

static int by_position(const void *a, const void *b) {
    const uint64_t left = ((const wr_pending_message *)a)->position, right = ((const wr_pending_message *)b)->position;
    return left < right ? -1 : left > right;
}

static uint32_t crc_of(const uint8_t *bytes, uint64_t n) {
    return wr_crc32c(wr_crc32c(0, bytes, HEAD(CRC)), bytes + BEHIND_CRC, n - BEHIND_CRC);
}

void wr_pending_encode(const wr_pending_head *head, wr_pending_message *messages, uint8_t *to) {
    memset(to, 0, WR_LATER_SIZE);
    memcpy(to + HEAD(MAGIC), MAGIC, 8);
    wr_put32(to + HEAD(VERSION), WR_LATER_VERSION);
    memcpy(to + HEAD(NODE), head->node, 16);
    wr_put64(to + HEAD(POSITION), head->position);
    wr_put64(to + HEAD(EPOCH), head->epoch);
    wr_put64(to + HEAD(NUMBER), head->number);
    wr_put64(to + HEAD(PENDING_N), head->n);
    if (head->n) qsort(messages, head->n, sizeof *messages, by_position);
    uint8_t *at = to + WR_LATER_SIZE;
    for (uint64_t i = 0; i < head->n; i++, at += WR_PENDING_SIZE) {
        wr_put64(at + WR_PENDING_AT_POSITION, messages[i].position);
        wr_put64(at + WR_PENDING_AT_DUE, messages[i].due);
        wr_put32(at + WR_PENDING_AT_SIZE, messages[i].size);
        wr_put32(at + WR_PENDING_AT_TOPIC, messages[i].topic);
    }
    wr_put32(to + HEAD(CRC), crc_of(to, wr_pending_bytes(head->n)));
}

static const char *judge(const uint8_t *bytes, uint64_t n, wr_pending_head *head) {
    if (n < WR_LATER_SIZE || memcmp(bytes + HEAD(MAGIC), MAGIC, 8)) return "it is no snapshot of messages that are to come later";
    if (wr_get32(bytes + HEAD(VERSION)) != WR_LATER_VERSION) return "it has another version";
    if (wr_get32(bytes + HEAD(CRC)) != crc_of(bytes, n)) return "its checksum is wrong";
    if (memcmp(bytes + HEAD(NODE), head->node, 16)) return "it is of another node";
    head->position = wr_get64(bytes + HEAD(POSITION));
    head->epoch = wr_get64(bytes + HEAD(EPOCH));
    head->number = wr_get64(bytes + HEAD(NUMBER));
    head->n = wr_get64(bytes + HEAD(PENDING_N));
    return head->n > n / WR_PENDING_SIZE || n != wr_pending_bytes(head->n) ? "it has another length" : NULL;
}

const char *wr_pending_decode(wr_pending *p, const uint8_t *bytes, uint64_t n, wr_pending_head *head) {
    const char *wrong = judge(bytes, n, head);
    if (wrong) return wrong;
    const uint64_t most = p->most;
    p->most = UINT64_MAX; /* those that are there stay, also when the setting was lowered */
    const int error = wr_pending_reserve(p, head->n);
    p->most = most;
    if (error) return "memory";
    const uint8_t *at = bytes + WR_LATER_SIZE;
    for (uint64_t i = 0, last = 0; i < head->n; i++, at += WR_PENDING_SIZE) {
        const wr_pending_message message = {.position = wr_get64(at + WR_PENDING_AT_POSITION), .due = wr_get64(at + WR_PENDING_AT_DUE),
                                            .size = wr_get32(at + WR_PENDING_AT_SIZE), .topic = wr_get32(at + WR_PENDING_AT_TOPIC)};
        if ((i && message.position <= last) || message.position >= head->position || message.size > WR_RECORD_BYTES_MAX) {
            p->n = 0;
            return "its records are in no order";
        }
        last = message.position;
        wr_pending_add(p, message);
    }
    return NULL;
}
