/* What was appended and sealed, from the loop to the dispatcher: a ring of slots in private memory.
 *
 * Two threads. The loop's writes a commit's records as they are appended, and shows them with the commit, when that is sealed; the
 * dispatcher takes commits, whole, in order. The keys are hashed by the loop, while the records are in its cache.
 * Invariants
 *   A commit lies in slots that follow each other: its head, its records, its marks. The head's slot is left free until it is sealed.
 *   There is always room for the head and the marks of what is not sealed, so sealing never waits; records wait.
 *   So whoever waits for room waits for commits that are sealed, or can be: for the disk, and not for itself.
 */
#ifndef WR_TOPICS_NOTES_H
#define WR_TOPICS_NOTES_H
#include "topics/dispatch.h"
#include "topics/state.h"

typedef struct wr_notes wr_notes;

/* `slots_n`: a power of two, two of the largest batches and their marks at least. NULL: no memory. */
wr_notes *wr_notes_new(uint64_t slots_n);
void wr_notes_free(wr_notes *notes);

/* ---- the loop ---- */

/* Note records. False: no room, or no memory for their keys; nothing was noted, and the dispatcher says when there is room. */
bool wr_notes_put(wr_notes *notes, const wr_topic_batch *batch);
/* They are in this commit: show it. */
void wr_notes_seal(wr_notes *notes, const wr_commit_head *head, const wr_commit_mark *marks, uint64_t end);

/* ---- the dispatcher ---- */

typedef struct {
    wr_commit_head head;
    uint64_t end;
    uint32_t records_n;
} wr_noted_commit;

/* The first commit that was not dropped; it stays. False: there is none. */
bool wr_notes_look(const wr_notes *notes, wr_noted_commit *commit);
/* Up to `most` of its records, from the n-th on. Returns how many. */
uint32_t wr_notes_records(const wr_notes *notes, const wr_noted_commit *commit, uint32_t from, wr_dispatch_record *to, uint32_t most);
void wr_notes_marks(const wr_notes *notes, const wr_noted_commit *commit, wr_commit_mark *to);
/* It is done with. True: the loop waits for room. */
bool wr_notes_drop(wr_notes *notes, const wr_noted_commit *commit);
#endif
