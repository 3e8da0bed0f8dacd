/* Appending to a store's current file (store/append.c). */
#ifndef WR_STORE_APPEND_H
#define WR_STORE_APPEND_H
#include "store/files.h"

/* Room for a frame of at most `bytes`; NULL: the command must wait (or the log failed, or *too_big). */
/* For a message or a reference: the last half file is for removes, as wr_log_scarce says. */
uint8_t *wr_store_reserve_new(wr_store *store, uint64_t bytes, uint64_t *offset, bool *too_big);
uint8_t *wr_store_reserve(wr_store *store, uint64_t bytes, uint64_t *offset, bool *too_big);
/* Go over to the next file, if it is there and the current one was written to: what is in that can be collected, or goes. */
bool wr_store_leave_current(wr_store *store);
/* The frame that was written there is part of the file. */
static inline void wr_store_append(wr_store *store, uint64_t bytes, bool synced) {
    wr_log_append(store->log, bytes, synced);
    wr_row_add(&store->current_row->file_size, bytes);
    store->file_bytes_sum += bytes;
    store->written_n++;
}
/* A list that could not be kept is no list: its file is scanned when it is needed. */
void wr_store_spoil_list(wr_store *store);
/* What has been appended until now, and whether that is durable; when it is not, a sync is on its way, unless the log failed. What
 * replaces or deletes files for good waits for it: a reference that went by a frame that is lost comes back. */
uint64_t wr_store_log_mark(const wr_store *store);
bool wr_store_log_durable(wr_store *store, uint64_t mark);
#endif
