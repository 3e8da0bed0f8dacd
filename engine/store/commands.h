/* Commands are executed (store/commands.c). */
#ifndef WR_STORE_COMMANDS_H
#define WR_STORE_COMMANDS_H
#include "store/command.h"

/* A link of a queue worker waits for a file at `at`: the removes behind it, up to `tail`, take effect now, and once more in their
 * turn, when nothing is left to be done: a worker's reference is a bit, and it has no frame. A write of the same id between them
 * takes the reference again in its turn, and the remove behind it takes it away. Some at a time; true: there are more. */
bool wr_store_free_ahead(wr_store *store, uint32_t slot, uint64_t at, uint64_t tail);
/* Execute one command of a link. `reason` is filled for WR_STORE_EVICTED. */
int wr_store_execute(wr_store *store, uint32_t slot, uint64_t sequence, wr_command *record, uint32_t *reason);
#endif
