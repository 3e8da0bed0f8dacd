/* The messages of topics that are to come later: a heap by when they are due, then by where their records lie, which is the order in which
 * they were appended; and its snapshot as bytes (`later`, engine/topics/formats.py). What it is for: docs/design/024-later-messages.md.
 *
 * Threads: one has a heap. wr_pending_encode works on a copy, on any thread.
 * Memory: 24 bytes a message; the array doubles, so up to 48, and 72 while it does. Their number has a limit (wr_pending_reserve).
 * Invariants
 *   Between wr_pending_order and wr_pending_heap, as a start takes up the log, the array is in the order of positions, and what came is
 *   taken out by its position. Else it is a heap.
 *   What an unsealed part of the log has taken out is kept aside (`taken`) until that is sealed: a copy that is as of a sealed position
 *   has it.
 * Crash points: none, there is no file here; its owner replaces the snapshot as a whole, and not before the log is synced up to its position. */
#ifndef WR_TOPICS_PENDING_H
#define WR_TOPICS_PENDING_H
#include <stdbool.h>
#include <stdint.h>

typedef struct {
    uint64_t due; /* milliseconds since 1970 */
    uint64_t position;
    uint32_t size, topic;
} wr_pending_message;
_Static_assert(sizeof(wr_pending_message) == 24, "what a message costs");

/* One that came by a record at `by`. */
typedef struct {
    wr_pending_message message;
    uint64_t by;
} wr_taken_message;

typedef struct {
    wr_pending_message *all;
    uint64_t n, room, most; /* most: how many there may be */
    uint64_t gone;          /* of `all`, while it is in order: marked as come */
    wr_taken_message *taken;
    uint32_t taken_n, taken_room;
} wr_pending;

/* What a snapshot says of itself: as of a position behind a commit. */
typedef struct {
    uint8_t node[16];
    uint64_t position, epoch, number, n;
} wr_pending_head;

void wr_pending_free(wr_pending *p);

/* Room for so many more, beside those in `taken`. 0; ENOSPC: there would be more than `most`; ENOMEM. */
int wr_pending_reserve(wr_pending *p, uint64_t n);
/* Into the heap; there is room. */
void wr_pending_put(wr_pending *p, wr_pending_message message);
/* The first one that is due; NULL: there is none. */
static inline const wr_pending_message *wr_pending_first(const wr_pending *p) { return p->n ? &p->all[0] : 0; }
/* It is no longer pending, whatever the log says. */
void wr_pending_pop(wr_pending *p);
/* The first one came, by a record at `by`. There is room for it: wr_pending_may_take. */
void wr_pending_take(wr_pending *p, uint64_t by);
/* Room to take one; the log is sealed up to here. ENOMEM. */
int wr_pending_may_take(wr_pending *p, uint64_t sealed);
/* The first one is tried again then. */
void wr_pending_postpone(wr_pending *p, uint64_t due);
/* All of a topic are forgotten. Returns how many there were. */
uint64_t wr_pending_drop(wr_pending *p, uint32_t topic);
/* The lowest position of a record that is needed; UINT64_MAX: none is. */
uint64_t wr_pending_lowest(const wr_pending *p);

/* ---- a start ---- */

/* Behind the others: positions rise. There is room. */
void wr_pending_add(wr_pending *p, wr_pending_message message);
/* The one at a position came; false: it is not there. */
bool wr_pending_came(wr_pending *p, uint64_t position);
/* It is a heap from now on. */
void wr_pending_heap(wr_pending *p);

/* ---- the snapshot ---- */

/* Copy what is pending when the log ends at `sealed`: at most wr_pending_copy_most. Returns how many. */
static inline uint64_t wr_pending_copy_most(const wr_pending *p) { return p->n + p->taken_n; }
uint64_t wr_pending_copy(const wr_pending *p, uint64_t sealed, wr_pending_message *to);

uint64_t wr_pending_bytes(uint64_t n);
/* The file of head->n messages, which are brought into the order of their positions. */
void wr_pending_encode(const wr_pending_head *head, wr_pending_message *messages, uint8_t *to);
/* Take up a file's. NULL; "memory"; or what is wrong with it: it is no snapshot. `head` has the node that is wanted, and gets the rest. */
const char *wr_pending_decode(wr_pending *p, const uint8_t *bytes, uint64_t n, wr_pending_head *head);
#endif
