/* Entries leave a file: collection (design note 003, section 5), and empty files that go (store/swing.c).
 * At most WR_STORE_SLICE entries a call; *cursor is UINT64_MAX when all is done. */
#ifndef WR_STORE_SWING_H
#define WR_STORE_SWING_H
#include "store/store.h"

#define WR_STORE_SLICE 4096
/* All or none; false: one is not there, current, locked, or may be replayed, or a worker has not resynced yet. */
bool wr_store_lock_files(wr_store *store, const uint64_t *files, uint32_t n);
/* `ghosts`: dead records without an entry may be in them. */
void wr_store_unlock_files(wr_store *store, const uint64_t *files, uint32_t n, bool ghosts);
/* The output of a collection takes its place. EBUSY as for add_file. */
int wr_store_collected(wr_store *store, uint64_t file, uint64_t used, uint64_t low, uint64_t high);
/* Entries of the output's list that lie in a source lie in the output from now on. EINVAL: no such output. */
int wr_store_swing(wr_store *store, const wr_list *list, const uint64_t *sources, uint32_t n, uint64_t *cursor);
/* Drop the entries without references that lie in a locked file. EBUSY: one has a reference; EINVAL: no such locked file. */
int wr_store_drop_entries(wr_store *store, uint64_t file, const wr_list *list, uint64_t *cursor);
/* Entries whose records are damaged: dropped, counted as lost when they were held. Returns how many of those. */
uint64_t wr_store_drop_lost(wr_store *store, const uint8_t (*ids)[16], uint64_t n);
#endif
