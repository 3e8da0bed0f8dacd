/* Horizons of links and the batches that carry them (store/horizons.c). */
#ifndef WR_STORE_HORIZONS_H
#define WR_STORE_HORIZONS_H
#include "store/store.h"

/* The log's callbacks, on the committer; `context` is the store. */
void wr_store_log_written(void *context, const wr_batch *batch);
void wr_store_log_done(void *context, const wr_batch *batch);
/* Confirm commands without effect when everything before them is confirmed. True: a word has risen. */
bool wr_store_confirm(wr_store *store, uint32_t slot);
static inline uint64_t wr_store_unsealed_bytes(const wr_store *store) {
    const wr_log_state *state = store->state;
    if (!state->has_file || state->append <= WR_FILE_HEADER_BYTES) return 0;
    return state->append - state->sealed_to;
}
bool wr_store_wants_seal(const wr_store *store, bool more, uint64_t now);
/* Was nothing sealed for a tick, or for long, although something sealed is not synced? */
bool wr_store_sync_due(const wr_store *store, uint64_t now);
/* Post a batch with every horizon that it covers. */
void wr_store_seal(wr_store *store, uint64_t now);
#endif
