/* The half messages of topics: those of which nobody said yet what becomes of them, in the order of their positions, and what became of the
 * newest others; and the snapshot of both as bytes (`halves`, engine/topics/formats.py). What it is for: docs/design/027-halves.md.
 *
 * Threads: one.
 * Memory: 32 bytes for one that is pending, up to 64 as the array doubles; their number has a limit (wr_half_reserve). 56 for one that is
 * not, and 64 in the map by which it is found; `kept` of them, and those of the log's unsealed part.
 * Invariants
 *   Positions rise in `pending`; one that is no longer pending leaves a gap (size 0), and gaps are closed when they are the half of it.
 *   Outcomes lie in the order of `by`. One whose record is not sealed is not let go: a copy that is as of a sealed position has its half
 *   message among those that are pending.
 * Crash points: none, there is no file here; its owner replaces the snapshot as a whole, and not before the log is synced up to its position. */
#ifndef WR_TOPICS_HALF_TABLE_H
#define WR_TOPICS_HALF_TABLE_H
#include "kernel/map.h"

typedef struct {
    uint64_t position;
    uint64_t due; /* when it is asked for, milliseconds since 1970 */
    uint32_t size; /* of its record; 0: it is no longer pending */
    uint32_t topic;
    uint32_t asked; /* how often */
    uint32_t unused;
} wr_half;
_Static_assert(sizeof(wr_half) == 32, "what one costs");

typedef struct {
    wr_half half;  /* size 0: the log that was read does not have its record */
    uint64_t by;   /* position of the record that says so */
    uint64_t offset; /* HALF_COMMITTED: of the message in its queue */
    uint32_t queue, kind;
} wr_half_outcome;
_Static_assert(sizeof(wr_half_outcome) == 56, "what one costs");

typedef struct {
    wr_half *pending;
    uint64_t n, room; /* places, gaps among them */
    uint64_t gaps;
    uint64_t most;    /* pending: how many there may be */
    wr_half_outcome *outcomes; /* a ring; the i-th since the begin lies at i mod outcomes_room, a power of two */
    uint64_t first, next, outcomes_room;
    uint64_t kept;    /* outcomes: so many stay */
    wr_map by_half;   /* position → number of its outcome */
} wr_halves;

typedef struct {
    uint8_t node[16];
    uint64_t position, epoch, number;
} wr_halves_head;

void wr_halves_free(wr_halves *h);

static inline uint64_t wr_halves_pending(const wr_halves *h) { return h->n - h->gaps; }

/* Room for one more. 0; ENOSPC: there would be more than `most`; ENOMEM. */
int wr_half_reserve(wr_halves *h);
/* Behind the others; there is room. */
void wr_half_add(wr_halves *h, wr_half half);
/* The one that is pending with a position; NULL: none is. Until something else changes. */
wr_half *wr_half_find(const wr_halves *h, uint64_t position);
/* The first that is pending, of a topic (0: of any), at a position or behind it; NULL: there is none. */
wr_half *wr_half_from(const wr_halves *h, uint64_t position, uint32_t topic);
/* All that are pending of a topic are forgotten. Returns how many there were. */
uint64_t wr_half_drop(wr_halves *h, uint32_t topic);
/* The lowest position of a record that is needed; UINT64_MAX: none is. `sealed`: of the log. */
uint64_t wr_half_lowest(const wr_halves *h, uint64_t sealed);

/* Room for one more outcome; the log is sealed up to here. ENOMEM. */
int wr_half_may_finish(wr_halves *h, uint64_t sealed);
/* This became of it: of the half message at outcome.half.position, which is no longer pending, if it was. There is room. */
void wr_half_finish(wr_halves *h, wr_half_outcome outcome);
/* What became of one; NULL: that is not kept. */
const wr_half_outcome *wr_half_outcome_of(const wr_halves *h, uint64_t position);

/* The snapshot as of a log that ends at head->position: room for wr_halves_bytes. Returns its length. */
uint64_t wr_halves_bytes(const wr_halves *h);
uint64_t wr_halves_encode(const wr_halves *h, const wr_halves_head *head, uint8_t *to);
/* Take up a file's, into one that is empty. NULL; "memory"; or what is wrong with it: it is no snapshot. `head` has the node that is wanted,
 * and gets the rest. */
const char *wr_halves_decode(wr_halves *h, const uint8_t *bytes, uint64_t n, wr_halves_head *head);
#endif
