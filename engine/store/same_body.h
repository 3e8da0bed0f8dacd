/* Comparing bodies (rule S12; store/same_body.c). */
#ifndef WR_STORE_SAME_BODY_H
#define WR_STORE_SAME_BODY_H
#include "store/store.h"

/* Is this the message that the entry's record holds? False also when the record cannot be read. */
bool wr_store_same_body(wr_store *store, const wr_index_entry *entry, const wr_store_message *message);
#endif
