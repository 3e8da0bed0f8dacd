/* High waters of clients (store/waters.c). */
#ifndef WR_STORE_WATERS_H
#define WR_STORE_WATERS_H
#include "store/store.h"

/* High water of a client epoch in the files that were found at the start. */
uint64_t wr_store_water(const wr_store *store, uint64_t client_epoch);
/* False: no memory. */
bool wr_store_note_water(wr_store *store, uint64_t client_epoch, uint64_t water);
#endif
