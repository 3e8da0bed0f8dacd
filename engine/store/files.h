/* The files of a store: rows of the summary, in order of position (store/files.c). Invariants: store/store.h. */
#ifndef WR_STORE_FILES_H
#define WR_STORE_FILES_H
#include "store/store.h"

/* -- words of a row: written by the loop alone, read by anybody -- */
static inline uint64_t wr_row_load(_Atomic uint64_t *word) { return atomic_load_explicit(word, memory_order_relaxed); }
static inline void wr_row_store(_Atomic uint64_t *word, uint64_t value) { atomic_store_explicit(word, value, memory_order_relaxed); }
static inline void wr_row_add(_Atomic uint64_t *word, uint64_t value) { wr_row_store(word, wr_row_load(word) + value); }
static inline bool wr_row_locked(const wr_summary_row *row) { return atomic_load_explicit(&row->locked, memory_order_relaxed); }
static inline bool wr_row_replay_free(const wr_summary_row *row) {
    return atomic_load_explicit(&row->replay_free, memory_order_relaxed);
}
static inline bool wr_row_ghosts(const wr_summary_row *row) { return atomic_load_explicit(&row->ghosts, memory_order_relaxed); }

/* Its neighbours by position. */
static inline wr_file_ref wr_row_left(wr_summary_row *row) { return (wr_file_ref){wr_row_load(&row->left)}; }
static inline wr_file_ref wr_row_right(wr_summary_row *row) { return (wr_file_ref){wr_row_load(&row->right)}; }
static inline wr_image_ref wr_row_image(const wr_summary_row *row) {
    return (wr_image_ref){atomic_load_explicit(&row->image, memory_order_relaxed)};
}
/* The row speaks of records at these positions: its pins, from pin_low - 1 up to and without pin_high, grow. */
static inline void wr_row_pin(wr_summary_row *row, uint64_t low, uint64_t high) {
    if (!row->pin_low || low + 1 < row->pin_low) row->pin_low = low + 1;
    if (high + 1 > row->pin_high) row->pin_high = high + 1;
}
static inline void wr_row_pin_as(wr_summary_row *row, const wr_summary_row *other) {
    if (other->pin_low) wr_row_pin(row, other->pin_low - 1, other->pin_high - 1);
}
/* Does the other file lie where the row's pins point, and does it lie before all of that? */
static inline bool wr_row_pins(const wr_summary_row *row, const wr_summary_row *other) {
    return row->pin_low && other->position_high + 1 >= row->pin_low && other->position_low < row->pin_high;
}
static inline bool wr_row_before_pins(const wr_summary_row *other, const wr_summary_row *row) {
    return !row->pin_low || other->position_high + 1 < row->pin_low;
}

wr_summary_row *wr_store_file(const wr_store *store, uint64_t file); /* NULL: no such file */
static inline wr_summary_row *wr_store_at(const wr_store *store, wr_file_ref at) { /* NULL: none */
    return wr_file_some(at) ? wr_store_file(store, wr_file_number(at)) : NULL;
}
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
/* The file has no live record: it goes if it may, as soon as no ring replays it. Without memory it is noted at the next
 * start. */
void wr_store_note_empty(wr_store *store, uint64_t file);
/* Which outputs of collections may be collected themselves: those of which no source is left, that is a file that lies
 * where it lies. */
void wr_store_mark_outputs(wr_store *store);

/* -- becoming current, being rolled -- */
/* Up to where a store's log has something: byte `to` of a file (UINT32_MAX: its end). Later places have larger marks; 0:
 * nothing. */
static inline uint64_t wr_store_mark_of(wr_file_ref file, uint64_t to) { return file.plus_one << 32 | to; }
/* EBUSY: its summary row is taken, or there is a next file already. The log owns fd from then on (0 only). */
int wr_store_offer(wr_store *store, int fd, uint64_t file, uint64_t salt, const uint8_t *header);
/* The file has become current; the one before ends at old_used. */
void wr_store_file_current(wr_store *store, uint64_t old_used);
/* The list of a file that was rolled and is durable, NULL if there is none (more). The caller owns it. */
wr_list *wr_store_take_list(wr_store *store);
/* At a clean stop, after the committer has ended: the list of the current file; NULL: none. The caller owns it. */
wr_list *wr_store_current_list(wr_store *store);
#endif
