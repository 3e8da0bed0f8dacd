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
    return atomic_load_explicit(&row->file, memory_order_relaxed) == file + 1 ? row : NULL;
}

int wr_store_add_file(wr_store *store, uint64_t file, uint64_t bytes, uint64_t low, uint64_t high) {
    wr_summary_row *row = &store->summary[file & (store->summary_rows - 1)];
    if (wr_row_load(&row->file)) return EBUSY;
    /* Its place: behind all whose positions begin before its own. Mostly that is the end. */
    uint64_t left = store->last_file;
    while (left) {
        wr_summary_row *other = wr_store_file(store, left - 1);
        if (other->position_low < low || (other->position_low == low && left - 1 < file)) break;
        left = wr_row_load(&other->left);
    }
    wr_summary_row *before = left ? wr_store_file(store, left - 1) : NULL;
    uint64_t right = before ? wr_row_load(&before->right) : store->first_file;
    wr_row_store(&row->valid_total_size, 0);
    wr_row_store(&row->file_size, bytes);
    wr_row_store(&row->messages, 0);
    wr_row_store(&row->left, left);
    wr_row_store(&row->right, right);
    atomic_store_explicit(&row->locked, 0, memory_order_relaxed);
    atomic_store_explicit(&row->image, 0, memory_order_relaxed);
    atomic_store_explicit(&row->settled, 0, memory_order_relaxed);
    atomic_store_explicit(&row->ghosts, 0, memory_order_relaxed);
    row->pin_low = row->pin_high = 0;
    row->position_low = low;
    row->position_high = high;
    *wr_store_marks(store, file) = 0;
    atomic_store_explicit(&row->file, file + 1, memory_order_release);
    if (before)
        wr_row_store(&before->right, file + 1);
    else
        store->first_file = file + 1;
    if (right)
        wr_row_store(&wr_store_file(store, right - 1)->left, file + 1);
    else
        store->last_file = file + 1;
    store->files++;
    store->unsettled_n++;
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
    if (!row || !to) return;
    if (row->pin_low == 0 || to->position_low + 1 < row->pin_low) row->pin_low = to->position_low + 1;
    if (to->position_high + 1 > row->pin_high) row->pin_high = to->position_high + 1;
}

void wr_store_note_empty(wr_store *store, uint64_t file) {
    const wr_summary_row *row = wr_store_file(store, file);
    if (!row || !wr_row_settled(row)) return; /* it is noted when it is settled */
    if (store->empty_n == store->empty_size) {
        uint32_t size = store->empty_size ? 2 * store->empty_size : 64;
        uint64_t *bigger = realloc(store->empty, size * sizeof *bigger);
        if (!bigger) return; /* the file is noted again when the store starts next */
        store->empty = bigger;
        store->empty_size = size;
    }
    store->empty[store->empty_n++] = file;
    store->empty_check = true;
}

void wr_store_settle_outputs(wr_store *store) {
    if (!store->outputs_n) return;
    for (uint64_t file = store->first_file; file;) {
        wr_summary_row *row = wr_store_file(store, file - 1);
        uint64_t number = file - 1, left = wr_row_load(&row->left);
        file = wr_row_load(&row->right);
        uint8_t marks = *wr_store_marks(store, number);
        if (wr_row_settled(row) || !(marks & WR_FILE_OUTPUT) || marks & WR_FILE_ARRIVING) continue;
        if ((left && wr_store_file(store, left - 1)->position_high >= row->position_low) ||
            (file && wr_store_file(store, file - 1)->position_low <= row->position_high))
            continue;
        atomic_store_explicit(&row->settled, 1, memory_order_release);
        store->outputs_n--;
        if (!wr_row_load(&row->valid_total_size)) wr_store_note_empty(store, number);
    }
}

void wr_store_file_gone(wr_store *store, uint64_t file) {
    wr_summary_row *row = wr_store_file(store, file);
    if (!row) return;
    assert(!wr_row_load(&row->valid_total_size) && store->current != file + 1);
    uint64_t left = wr_row_load(&row->left), right = wr_row_load(&row->right);
    if (left)
        wr_row_store(&wr_store_file(store, left - 1)->right, right);
    else
        store->first_file = right;
    if (right)
        wr_row_store(&wr_store_file(store, right - 1)->left, left);
    else
        store->last_file = left;
    store->files--;
    store->retired_n++;
    if (!wr_row_settled(row)) --*(*wr_store_marks(store, file) & WR_FILE_OUTPUT ? &store->outputs_n : &store->unsettled_n);
    if (wr_row_ghosts(row)) store->ghosts_n--;
    store->file_bytes_sum -= wr_row_load(&row->file_size);
    atomic_store_explicit(&row->file, 0, memory_order_release);
    wr_store_close_file(store, file);
    wr_store_settle_outputs(store);
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
    if (store->current == state->file + 1) return;
    if (store->current) {
        store->rolled_mark = store->current << 32 | UINT32_MAX;
        roll_list(store, old_used);
        uint64_t more = old_used - wr_row_load(&store->current_row->file_size);
        wr_row_add(&store->current_row->file_size, more);
        store->file_bytes_sum += more;
    }
    /* The row was seen to be free when the file was offered, and nothing else takes rows meanwhile. */
    int error = wr_store_add_file(store, state->file, WR_FILE_HEADER_BYTES, state->file, state->file);
    assert(error == 0);
    (void)error;
    store->current = state->file + 1;
    store->current_row = wr_store_file(store, state->file);
    store->list = wr_list_new(state->file, state->salt);
    store->file_asked = false;
    atomic_store_explicit(&store->current_row->image, state->image + 1, memory_order_relaxed);
    for (uint64_t file = store->first_file; file;) {
        wr_summary_row *row = wr_store_file(store, file - 1);
        if (file != store->current && atomic_load_explicit(&row->image, memory_order_relaxed) == state->image + 1)
            atomic_store_explicit(&row->image, 0, memory_order_relaxed);
        file = wr_row_load(&row->right);
    }
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
    if (store->persistent && store->rolled[0]->file >= atomic_load_explicit(&store->durable_file, memory_order_acquire)) return NULL;
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
