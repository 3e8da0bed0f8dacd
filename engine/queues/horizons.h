/* How far the commands of a link are written, synced and done: from the committers' batches to the words of the link.
 *
 * A confirm comes in this order: batch written, batch synced (when wanted), the stores have what the commands refer
 * to (gates), then written, synced and head of the link, as far as the first gate that is still shut. A failed log
 * confirms nothing any more.
 *
 * Threads: the committers call wr_journal_written and wr_journal_done; they meet the loop in the engine's mutex.
 */
#ifndef WR_QUEUES_HORIZONS_H
#define WR_QUEUES_HORIZONS_H
#include "queues/queue.h"

/* A horizon of this server index is the engine's own mark in the row of batches. */
#define WR_TOKEN_FILE (WR_SERVERS_MAX + 1)
#define WR_TOKEN_WAIT (WR_SERVERS_MAX + 2)
void wr_journal_written(void *context, const wr_batch *batch);
void wr_journal_done(void *context, const wr_batch *batch);
void wr_link_confirm(wr_queue_engine *e, wr_qlink *l); /* raise words that need no batch */

/* A command waits until a store has executed one of this worker. */
void wr_link_add_gate(wr_queue_engine *e, wr_qlink *l, uint64_t command, uint32_t store, uint64_t store_sequence, uint32_t file);
bool wr_link_drop_gates(wr_queue_engine *e, wr_qlink *l); /* those that the stores have passed */
#endif
