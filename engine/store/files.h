/* The files of a store: rows of the summary, in order of position (store/files.c). Invariants: store/store.h. */
#ifndef WR_STORE_FILES_H
#define WR_STORE_FILES_H
#include "store/store.h"

/* -- words of a row: written by the loop alone, read by anybody -- */
static inline uint64_t wr_row_load(_Atomic uint64_t *word) { return atomic_load_explicit(word, memory_order_relaxed); }
static inline void wr_row_store(_Atomic uint64_t *word, uint64_t value) { atomic_store_explicit(word, value, memory_order_relaxed); }
static inline void wr_row_add(_Atomic uint64_t *word, uint64_t value) { wr_row_store(word, wr_row_load(word) + value); }
static inline bool wr_row_locked(const wr_summary_row *row) { return atomic_load_explicit(&row->locked, memory_order_relaxed); }
static inline bool wr_row_settled(const wr_summary_row *row) { return atomic_load_explicit(&row->settled, memory_order_relaxed); }
static inline bool wr_row_ghosts(const wr_summary_row *row) { return atomic_load_explicit(&row->ghosts, memory_order_relaxed); }

wr_summary_row *wr_store_file(const wr_store *store, uint64_t file); /* NULL: no such file */
/* WR_FILE_… of a file. */
static inline uint8_t *wr_store_marks(const wr_store *store, uint64_t file) { return &store->marks[file & (store->summary_rows - 1)]; }
/* A file that exists; `low`, `high`: the positions it stands for. EBUSY: its row of the summary is taken (summary_rows is too small). */
int wr_store_add_file(wr_store *store, uint64_t file, uint64_t bytes, uint64_t low, uint64_t high);
/* The file is removed for good, and that is durable. */
void wr_store_file_gone(wr_store *store, uint64_t file);
/* A record of the file is about to lose its entry. */
void wr_store_ghost(wr_store *store, uint64_t file);
/* A control frame in `file` speaks of a record in `target`. */
void wr_store_pin(wr_store *store, uint64_t file, uint64_t target);
/* The file has no live record: it goes if it may, as soon as it is settled. Without memory it is noted at the next start. */
void wr_store_note_empty(wr_store *store, uint64_t file);
/* Which outputs of collections are settled now: an output is when no source of it is left, the files that lie where it lies. */
void wr_store_settle_outputs(wr_store *store);

/* -- becoming current, being rolled -- */
/* EBUSY: its summary row is taken, or there is a next file already. The log owns fd from then on (0 only). */
int wr_store_offer(wr_store *store, int fd, uint64_t file, uint64_t salt, const uint8_t *header);
/* The file has become current; the one before ends at old_used. */
void wr_store_file_current(wr_store *store, uint64_t old_used);
/* The list of a file that was rolled and is durable, NULL if there is none (more). The caller owns it. */
wr_list *wr_store_take_list(wr_store *store);
/* At a clean stop, after the committer has ended: the list of the current file; NULL: none. The caller owns it. */
wr_list *wr_store_current_list(wr_store *store);
#endif
