/* OP_STORE_WRITE_MANY: many messages in one command (store/batch.c). */
#ifndef WR_STORE_BATCH_H
#define WR_STORE_BATCH_H
#include "store/store.h"

#define WR_STORE_ROUND 1024 /* messages of batches that one link has executed in a round */

int wr_store_write_many(wr_store *store, uint32_t slot, uint64_t sequence, wr_command *record, const wr_command *c, uint32_t *reason);
/* The rows of a batch: put into the directory, or deleted. */
void wr_store_group_rows(wr_store *store, uint32_t slot, uint64_t sequence, const uint8_t first_id[16], uint64_t count, bool put);
/* A batch of a dead server's time, before this one is announced: what was done then, and is not on disk, is not done. Rows for its
 * readers. Then, when readers look at this one's index: what is on disk is done, and found there. */
void wr_store_take_batch_up(wr_store *store, uint32_t slot, uint64_t sequence, const wr_command *c);
void wr_store_batch_on_disk(wr_store *store, uint32_t slot, uint64_t sequence, const wr_command *c);
#endif
