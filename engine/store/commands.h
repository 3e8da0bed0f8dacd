/* Commands are executed (store/commands.c). */
#ifndef WR_STORE_COMMANDS_H
#define WR_STORE_COMMANDS_H
#include "store/command.h"

/* Execute one command of a link. `reason` is filled for WR_STORE_EVICTED. */
int wr_store_execute(wr_store *store, uint32_t slot, uint64_t sequence, wr_command *record, uint32_t *reason);
#endif
