/* Resync: what a worker holds (store/resync.c). */
#ifndef WR_STORE_RESYNC_H
#define WR_STORE_RESYNC_H
#include "store/command.h"

/* OP_STORE_RESYNC_BEGIN, _IDS, _END. WR_STORE_…; `reason` is filled for WR_STORE_EVICTED. */
int wr_store_resync(wr_store *store, uint32_t slot, wr_command *record, const wr_command *c, uint32_t *reason);
#endif
