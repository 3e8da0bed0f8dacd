/* The queue worker as a client of the two stores: bodies in by reference to their publisher's arena, references out
 * when the last entry of an id is gone (queues/owed.h), and the resync that makes both sides agree after a start of
 * either. */
#ifndef WR_QUEUES_STORE_SIDE_H
#define WR_QUEUES_STORE_SIDE_H
#include "queues/queue.h"

/* One more entry with this id. Its body is sent unless the store has it from before. 0, EAGAIN (later), ENOMEM.
 * *sequence: the store's command that must have passed before the publisher's blob may go. */
int wr_queue_store_write(wr_queue_engine *e, uint32_t store, const uint8_t id[16], uint64_t body, uint32_t length,
                         uint16_t meta_length, uint64_t owner_tag, uint8_t flags, uint64_t *sequence);
/* Entries whose bodies are missing at such a place are dropped and counted, those that are held when they come back; their ids leave `held`.
 * Returns how many. */
uint64_t wr_queue_drop_bodies(wr_queue_engine *e, uint8_t location, const wr_map *missing, wr_map *held);
bool wr_queue_store_round(wr_queue_engine *e); /* removes, resync; true: something moved */
bool wr_queue_stores_behind(wr_queue_engine *e); /* something that was sent is not executed yet, as a body */
#endif
