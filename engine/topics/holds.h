/* Holds: what keeps retention from messages that somebody is going to read (docs/design/023-retention.md).
 *
 * A hold is a position of the log: what lies there and behind it stays. Each client has one word, in its slot of the superblock, for the lowest
 * of its holds; it goes with the slot, so with its process, and outlives the topic worker.
 *
 * The protocol. Who holds: (1) writes its word; (2) looks at `closing`: while it is above the position, it waits; (3) looks at the minimum: if that
 * is above the begin of its range, it came too late, and takes its word back. Retention: (1) writes `closing`, behind all that it is
 * going to take; (2) looks at the words, and lowers `closing` to the lowest of them; (3) raises minima up to there; (4) writes 0 to `closing`.
 * Between 1 and 2 both have a full fence, so one of them sees the other.
 * Crash points: a holder that dies keeps its word until its slot is given back. A worker that dies leaves `closing` in a region that nobody
 * uses any more: the next one begins with 0, and sees the words. */
#ifndef WR_TOPICS_HOLDS_H
#define WR_TOPICS_HOLDS_H
#include "ipc/core/view.h"
#include "kernel/protocol.h"

/* The word of a slot, which is the caller's: position + 1; 0: nothing is held. */
static inline void wr_hold_write(wr_superblock *super, uint32_t slot, uint64_t word) {
    atomic_store_explicit(&wr_superblock_slot(super, slot)->holds, word, memory_order_seq_cst);
    atomic_thread_fence(memory_order_seq_cst); /* SYNC topic-holds: pairs with wr_hold_close */
}

/* What retention is about to take. */
static inline uint64_t wr_hold_closing(const wr_topic_rows *rows) {
    return atomic_load_explicit(&((wr_topic_rows *)(uintptr_t)rows)->closing, memory_order_acquire);
}

/* The lowest position that a client holds, and the slot of one that does; UINT64_MAX: nobody holds any. */
static inline uint64_t wr_hold_lowest(wr_superblock *super, uint32_t *slot) {
    uint64_t lowest = UINT64_MAX;
    for (uint32_t i = 0; i < WR_CLIENT_SLOTS; i++) {
        wr_slot *row = wr_superblock_slot(super, i);
        const uint64_t word = atomic_load_explicit(&row->holds, memory_order_relaxed);
        if (!word || word > lowest || (atomic_load_explicit(&row->claim, memory_order_acquire) & 0xff) != WR_SLOT_ACTIVE) continue;
        lowest = word - 1;
        *slot = i;
    }
    return lowest;
}

/* Messages below a position are about to go: the lowest hold by now. */
static inline uint64_t wr_hold_close(wr_topic_rows *rows, wr_superblock *super, uint64_t position, uint32_t *slot) {
    atomic_store_explicit(&rows->closing, position, memory_order_seq_cst);
    atomic_thread_fence(memory_order_seq_cst); /* SYNC topic-holds: pairs with wr_hold_write */
    return wr_hold_lowest(super, slot);
}
#endif
