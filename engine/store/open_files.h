/* Store files that are kept open for reading (store/open_files.c). The store's folder: wr_store_set_folder. */
#ifndef WR_STORE_OPEN_FILES_H
#define WR_STORE_OPEN_FILES_H
#include "store/store.h"

/* A descriptor for reading, which stays this module's; -1: the file cannot be opened. */
int wr_store_open_file(wr_store *store, uint64_t file);
void wr_store_close_file(wr_store *store, uint64_t file);
#endif
