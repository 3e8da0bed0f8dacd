/* When a file may go (store/file_life.c). */
#ifndef WR_STORE_FILE_LIFE_H
#define WR_STORE_FILE_LIFE_H
#include "store/store.h"

/* Not every worker has said yet what it holds: no file goes. */
bool wr_store_holders_unknown(const wr_store *store);
/* Files below it hold only commands that are confirmed when everything posted until now is done. */
uint64_t wr_store_confirmed_below(const wr_store *store);
/* Must the file stay for its control frames? They speak of records that were appended before them, to the left of it. While
 * a file lies there that they point to, or one that may hold a ghost, a start without them would bring removed messages
 * back. The rule for files that go, and for what a collection has to copy. */
bool wr_store_pinned(const wr_store *store, uint64_t file);
/* Look which files no ring replays any more. */
void wr_store_mark_replay_free(wr_store *store, bool timer);
/* Lock the empty files that may go; what is still appended must be durable before they do. */
void wr_store_let_empty_go(wr_store *store);
/* wr_store_take_gone has one; else what it waits for is asked for. */
bool wr_store_gone_ready(wr_store *store);
/* Next empty file to go (it is locked; its entries are there); none: none is ready. Then: drop its entries, remove the
 * file, file_gone. */
wr_file_ref wr_store_take_gone(wr_store *store);
#endif
