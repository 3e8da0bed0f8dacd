/* The start: files (wr_store_add_file) and their lists in order of position, then finish (store/start.c). */
#ifndef WR_STORE_START_H
#define WR_STORE_START_H
#include "store/store.h"

/* Replay a file by its list, from *cursor on (0 at the beginning). *reason: NULL when it is done; "index": the table is too full,
 * "extent": it wants one: give it and call again. 0 or ENOMEM. */
int wr_store_apply_list(wr_store *store, const wr_list *list, uint64_t *cursor, const char **reason);
/* Everything that follows from entries and files: sums. Returns how many entries had no file and were dropped. */
uint64_t wr_store_finish(wr_store *store);
#endif
