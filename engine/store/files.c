/* The files of a store, as the summary's rows say it: their order, what is known of each, and which one is current
 * (design note 003, sections 3 and 4). Everything here runs on the loop thread between two commands. Invariants: store/store.h.
 */
#include "store/files.h"
#include "store/command.h"
#include "store/open_files.h"
#include <assert.h>
#include <stdlib.h>

/* ---- rows ---- */

wr_summary_row *wr_store_file(const wr_store *store, uint64_t file) {
    wr_summary_row *row = &store->summary[file & (store->summary_rows - 1)];
    return wr_file_is((wr_file_ref){wr_row_load(&row->file)}, file) ? row : NULL;
}

int wr_store_add_file(wr_store *store, uint64_t file, uint64_t bytes, uint64_t low, uint64_t high) {
    wr_summary_row *row = &store->summary[file & (store->summary_rows - 1)];
    if (wr_row_load(&row->file)) return EBUSY;
    /* Its place: behind all whose positions begin before its own. Mostly that is the end. */
    wr_file_ref left = store->last_file;
    wr_summary_row *before;
    while ((before = wr_store_at(store, left))) {
        if (before->position_low < low || (before->position_low == low && wr_file_number(left) < file)) break;
        left = wr_row_left(before);
    }
    wr_file_ref right = before ? wr_row_right(before) : store->first_file, at = wr_file_of(file);
    wr_summary_row *after = wr_store_at(store, right);
    wr_row_store(&row->valid_total_size, 0);
    wr_row_store(&row->file_size, bytes);
    wr_row_store(&row->messages, 0);
    wr_row_store(&row->left, left.plus_one);
    wr_row_store(&row->right, right.plus_one);
    atomic_store_explicit(&row->locked, 0, memory_order_relaxed);
    atomic_store_explicit(&row->image, 0, memory_order_relaxed);
    atomic_store_explicit(&row->replay_free, 0, memory_order_relaxed);
    atomic_store_explicit(&row->ghosts, 0, memory_order_relaxed);
    row->pin_low = row->pin_high = 0;
    row->position_low = low;
    row->position_high = high;
    *wr_store_marks(store, file) = 0;
    atomic_store_explicit(&row->file, at.plus_one, memory_order_release);
    if (before)
        wr_row_store(&before->right, at.plus_one);
    else
        store->first_file = at;
    if (after)
        wr_row_store(&after->left, at.plus_one);
    else
        store->last_file = at;
    store->files++;
    store->replayable_n++;
    store->file_bytes_sum += bytes;
    return 0;
}

void wr_store_ghost(wr_store *store, uint64_t file) {
    wr_summary_row *row = wr_store_file(store, file);
    if (!row || wr_row_ghosts(row)) return;
    /* SYNC ghosts: before the entry goes (its version changes behind a release fence); the collector looks at the entry first */
    atomic_store_explicit(&row->ghosts, 1, memory_order_relaxed);
    store->ghosts_n++;
}

void wr_store_pin(wr_store *store, uint64_t file, uint64_t target) {
    *wr_store_marks(store, file) |= WR_FILE_CONTROLS;
    if (file == target) return;
    wr_summary_row *row = wr_store_file(store, file);
    const wr_summary_row *to = wr_store_file(store, target);
    if (row && to) wr_row_pin(row, to->position_low, to->position_high);
}

void wr_store_note_empty(wr_store *store, uint64_t file) {
    const wr_summary_row *row = wr_store_file(store, file);
    if (!row || !wr_row_replay_free(row)) return; /* it is noted when it is free of replays */
    if (store->empty_n == store->empty_size) {
        uint32_t size = store->empty_size ? 2 * store->empty_size : 64;
        uint64_t *bigger = realloc(store->empty, size * sizeof *bigger);
        if (!bigger) { /* wr_store_let_empty_go looks for it */
            store->empty_lost = store->empty_check = true;
            return;
        }
        store->empty = bigger;
        store->empty_size = size;
    }
    store->empty[store->empty_n++] = file;
    store->empty_check = true;
}

void wr_store_mark_outputs(wr_store *store) {
    if (!store->outputs_n) return;
    wr_file_ref next;
    for (wr_file_ref file = store->first_file; wr_file_some(file); file = next) {
        uint64_t number = wr_file_number(file);
        wr_summary_row *row = wr_store_file(store, number);
        next = wr_row_right(row);
        uint8_t marks = *wr_store_marks(store, number);
        if (wr_row_replay_free(row) || !(marks & WR_FILE_OUTPUT) || marks & WR_FILE_ARRIVING) continue;
        const wr_summary_row *before = wr_store_at(store, wr_row_left(row)), *after = wr_store_at(store, next);
        if (before && before->position_high >= row->position_low) continue;
        if (after && after->position_low <= row->position_high) continue;
        atomic_store_explicit(&row->replay_free, 1, memory_order_release);
        store->outputs_n--;
        if (!wr_row_load(&row->valid_total_size)) wr_store_note_empty(store, number);
    }
}

void wr_store_file_gone(wr_store *store, uint64_t file) {
    wr_summary_row *row = wr_store_file(store, file);
    if (!row) return;
    assert(!wr_row_load(&row->valid_total_size) && !wr_file_is(store->current, file));
    wr_file_ref left = wr_row_left(row), right = wr_row_right(row);
    wr_summary_row *before = wr_store_at(store, left), *after = wr_store_at(store, right);
    if (before)
        wr_row_store(&before->right, right.plus_one);
    else
        store->first_file = right;
    if (after)
        wr_row_store(&after->left, left.plus_one);
    else
        store->last_file = left;
    store->files--;
    store->retired_n++;
    bool output = *wr_store_marks(store, file) & WR_FILE_OUTPUT;
    if (!wr_row_replay_free(row)) --*(output ? &store->outputs_n : &store->replayable_n);
    if (wr_row_ghosts(row)) store->ghosts_n--;
    store->file_bytes_sum -= wr_row_load(&row->file_size);
    atomic_store_explicit(&row->file, 0, memory_order_release);
    wr_store_close_file(store, file);
    wr_store_mark_outputs(store);
    store->empty_check = true; /* files that were pinned by it */
}

/* ---- becoming current, being rolled ---- */

static void roll_list(wr_store *store, uint64_t used) {
    wr_list *list = store->list;
    store->list = NULL;
    if (!list) return;
    list->used = used;
    wr_list_seal(list);
    if (store->rolled_n == store->rolled_size) {
        uint32_t size = store->rolled_size ? 2 * store->rolled_size : 16;
        wr_list **bigger = realloc(store->rolled, size * sizeof(wr_list *));
        if (!bigger) {
            wr_list_free(list); /* its file is scanned when it is needed */
            return;
        }
        store->rolled = bigger;
        store->rolled_size = size;
    }
    store->rolled[store->rolled_n++] = list;
}

void wr_store_file_current(wr_store *store, uint64_t old_used) {
    const wr_log_state *state = store->state;
    if (wr_file_is(store->current, state->file)) return;
    if (wr_file_some(store->current)) {
        store->rolled_mark = wr_store_mark_of(store->current, UINT32_MAX);
        roll_list(store, old_used);
        uint64_t more = old_used - wr_row_load(&store->current_row->file_size);
        wr_row_add(&store->current_row->file_size, more);
        store->file_bytes_sum += more;
    }
    /* The row was seen to be free when the file was offered, and nothing else takes rows meanwhile. */
    int error = wr_store_add_file(store, state->file, WR_FILE_HEADER_BYTES, state->file, state->file);
    assert(error == 0);
    (void)error;
    store->current = wr_file_of(state->file);
    store->current_row = wr_store_file(store, state->file);
    store->list = wr_list_new(state->file, state->salt);
    store->file_asked = false;
    atomic_store_explicit(&store->current_row->image, wr_image_of(state->image).plus_one, memory_order_relaxed);
    wr_summary_row *row;
    for (wr_file_ref file = store->first_file; (row = wr_store_at(store, file)); file = wr_row_right(row))
        if (row != store->current_row && wr_image_is(wr_row_image(row), state->image))
            atomic_store_explicit(&row->image, 0, memory_order_relaxed);
}

int wr_store_offer(wr_store *store, int fd, uint64_t file, uint64_t salt, const uint8_t *header) {
    if (wr_row_load(&store->summary[file & (store->summary_rows - 1)].file)) return EBUSY;
    int error = wr_log_offer(store->log, fd, file, salt, header);
    if (error) return error;
    store->file_asked = false;
    if (store->state->has_file) wr_store_file_current(store, WR_FILE_HEADER_BYTES);
    wr_store_let_stalled_go_on(store);
    return 0;
}

wr_list *wr_store_take_list(wr_store *store) {
    if (!store->rolled_n) return NULL;
    /* SYNC rolled-durable: pairs with the release in wr_store_log_done */
    uint64_t durable_below = atomic_load_explicit(&store->durable_below, memory_order_acquire);
    if (store->persistent && store->rolled[0]->file >= durable_below) return NULL;
    wr_list *list = store->rolled[0];
    store->rolled_n--;
    memmove(store->rolled, store->rolled + 1, store->rolled_n * sizeof *store->rolled);
    return list;
}

wr_list *wr_store_current_list(wr_store *store) {
    wr_list *list = store->list;
    store->list = NULL;
    if (!list) return NULL;
    list->used = wr_page_up(store->state->append);
    wr_list_seal(list);
    return list;
}
