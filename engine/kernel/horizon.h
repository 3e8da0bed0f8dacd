/* A horizon: up to which command of a link something is known (written, synced, head), told to the client by raising words of the link.
 *
 * A log carries horizons in its batches and does not look at them: the owner publishes them from the log's callbacks.
 * Invariant: a word is never lowered.
 */
#ifndef WR_HORIZON_H
#define WR_HORIZON_H
#include "ipc/core/view.h"
#include <stdbool.h>

/* What a batch confirms when it is done: the link's words rise to `sequence`. */
typedef struct {
    wr_view *view; /* for the wake; NULL: horizon of no use any more */
    uint32_t server;
    uint64_t sequence;
} wr_horizon;

/* Raise a link's words, never lower, and wake its client if that waits. written/synced/head select which. */
void wr_horizon_publish(const wr_horizon *h, bool written, bool synced, bool head);
#endif
