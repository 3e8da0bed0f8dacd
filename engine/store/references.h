/* References of entries (store/references.c). */
#ifndef WR_STORE_REFERENCES_H
#define WR_STORE_REFERENCES_H
#include "store/files.h"

/* One reference more or less of an entry. release: false when there was no such reference. */
void wr_store_hold(wr_store *store, wr_index_entry *entry, int holder);
bool wr_store_release(wr_store *store, wr_index_entry *entry, int holder);
/* Take all references away. */
void wr_store_release_all(wr_store *store, wr_index_entry *entry);
/* May a reference come to an entry without one? Never in a file that is locked: who locked it has counted the living. */
bool wr_store_may_revive(const wr_store *store, const wr_index_entry *entry);
#endif
