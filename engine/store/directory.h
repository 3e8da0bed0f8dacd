/* The directory of cur_file_cache: id -> (client slot, sequence of the command that carries the body).
 *
 * A region of 64-bit words in buckets of WR_DIRECTORY_WAYS, chosen by the hash of the id. A word is
 *   tag:16 (hash of the id, never 0) | slot:8 | sequence:40 (low bits)
 * so the body is found as slot -> client region -> ring record at the sequence -> blob in an arena, and who holds a row is
 * in the row itself: the rows of a client that died are found by looking (rule S13).
 *
 * Invariants
 *   A row is inserted by the client that owns the slot (compare-and-swap of a word that is 0), after the record is complete.
 *   Only the store server removes rows, and only when the index row of the message is visible or the write is void.
 *   The same word is never inserted twice: the sequence rises. (40 bits: one client would have to send 10^12 commands.)
 * Crash points
 *   after the insert, before the tail is raised: the row names a record that is not submitted; the sweep of the slot removes it.
 */
#ifndef WR_DIRECTORY_H
#define WR_DIRECTORY_H
#include "kernel/id.h"
#include "ipc/core/view.h"
#include "kernel/protocol.h"
#include "kernel/ref.h"

#define WR_SEQUENCE_BITS 40
#define WR_SEQUENCE_MASK ((1ull << WR_SEQUENCE_BITS) - 1)

/* What the directory holds for a group of WR_DIRECTORY_GROUP counted ids that a batch writes: their common part, in a form that
 * no id of Warren's has. */
static inline void wr_group_id(const uint8_t id[16], uint8_t group[16]) {
    memcpy(group, id, 16);
    group[0] ^= 0x80;
    group[15] &= (uint8_t)~(WR_DIRECTORY_GROUP - 1);
}

static inline uint64_t wr_directory_word(uint64_t hash, uint32_t slot, uint64_t sequence) {
    uint64_t tag = (hash >> 48) ^ ((hash & WR_HASH_GROUP) * 0x2001); /* neighbours differ here, too */
    tag &= 0xffff;
    if (tag == 0) tag = 1;
    return tag << 48 | (uint64_t)(slot & 0xff) << WR_SEQUENCE_BITS | (sequence & WR_SEQUENCE_MASK);
}

static inline uint32_t wr_directory_slot(uint64_t word) { return (uint32_t)(word >> WR_SEQUENCE_BITS) & 0xff; }

/* First row of the bucket of a hash. `rows` is a power of two, at least WR_DIRECTORY_WAYS. Neighbours, which are under way
 * together, are spread over buckets here: one bucket would soon be full of them. */
static inline uint32_t wr_directory_bucket(uint64_t hash, uint32_t rows) {
    uint64_t spread = (hash >> 8) + (hash & WR_HASH_GROUP) * 0x9e3779b1u;
    return (uint32_t)spread & (rows - 1) & ~(uint32_t)(WR_DIRECTORY_WAYS - 1);
}

/* Insert a row; returns which, none when the bucket is full (wait, as for a full ring). */
wr_row_ref wr_directory_insert(_Atomic uint64_t *directory, uint32_t rows, uint64_t hash, uint64_t word);
/* Server: remove a word, first where the hint says (a record's `row`), else anywhere in its bucket. False: it was not
 * there. */
bool wr_directory_remove(_Atomic uint64_t *directory, uint32_t rows, uint64_t hash, uint64_t word, wr_row_ref hint);
/* Server: remove every row of a slot; returns how many. */
uint32_t wr_directory_sweep(_Atomic uint64_t *directory, uint32_t rows, uint32_t slot);
#endif
