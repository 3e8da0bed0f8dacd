/* A message is taken (store/take.c). */
#ifndef WR_STORE_TAKE_H
#define WR_STORE_TAKE_H
#include "store/command.h"

/* Rules S5, S6, S12 for one message of a link: a new reference, a revival, or a new record. DONE, STALLED, or EVICTED (too big,
 * or no body and a body is needed); *masked: nothing was done, because the client is dying. */
int wr_store_take(wr_store *store, uint32_t slot, uint64_t sequence, const wr_store_message *message, bool *masked);
#endif
