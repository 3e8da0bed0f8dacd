/* Files of the store: their order, when they are settled, and how they go or take the place of others (design note 003, sections 3 to 5).
 *
 * The life of a file: current -> rolled (its list waits until it is durable) -> settled -> empty or a source of a collection: locked
 * -> entries dropped or swung -> gone. Everything here runs on the loop thread between two commands.
 * Invariants: store/store.h. Crash points: retire_begun, swing_begun, swung.
 */
#include "store/command.h"
#include <assert.h>
#include <stdlib.h>

#define AHEAD 16 /* ids from here are fetched */

/* ---- the summary ---- */

wr_summary_row *wr_store_file(const wr_store *store, uint64_t file) {
    wr_summary_row *row = &store->summary[file & (store->summary_rows - 1)];
    return atomic_load_explicit(&row->file, memory_order_relaxed) == file + 1 ? row : NULL;
}

static inline uint64_t load64(_Atomic uint64_t *word) { return atomic_load_explicit(word, memory_order_relaxed); }
static inline void store64(_Atomic uint64_t *word, uint64_t value) { atomic_store_explicit(word, value, memory_order_relaxed); }
static inline bool is_locked(const wr_summary_row *row) { return atomic_load_explicit(&row->locked, memory_order_relaxed); }
static inline bool is_settled(const wr_summary_row *row) { return atomic_load_explicit(&row->settled, memory_order_relaxed); }
static inline bool has_ghosts(const wr_summary_row *row) { return atomic_load_explicit(&row->ghosts, memory_order_relaxed); }

/* No file goes before every worker has said what it holds. */
static bool gate_closed(const wr_store *store) {
    const wr_store_server *server = store->server;
    return store->persistent && (server->workers_resynced & server->workers_all) != server->workers_all;
}

/* Files from this position on stay as they are: a dying client's death point lies in it, and is told by offsets. */
static uint64_t first_death(const wr_store *store) {
    uint64_t first = UINT64_MAX;
    for (uint32_t i = 0; i < store->server->active_n; i++) {
        const wr_store_link *link = &store->links[store->server->active[i]];
        if (link->active && link->dying && link->death_position < first) first = link->death_position;
    }
    return first;
}

int wr_store_add_file(wr_store *store, uint64_t file, uint64_t bytes, uint64_t low, uint64_t high) {
    wr_summary_row *row = &store->summary[file & (store->summary_rows - 1)];
    if (load64(&row->file)) return EBUSY;
    /* Its place: behind all whose positions begin before its own. Mostly that is the end. */
    uint64_t left = store->last_file;
    while (left) {
        wr_summary_row *other = wr_store_file(store, left - 1);
        if (other->position_low < low || (other->position_low == low && left - 1 < file)) break;
        left = load64(&other->left);
    }
    wr_summary_row *before = left ? wr_store_file(store, left - 1) : NULL;
    uint64_t right = before ? load64(&before->right) : store->first_file;
    store64(&row->valid_total_size, 0);
    store64(&row->file_size, bytes);
    store64(&row->messages, 0);
    store64(&row->left, left);
    store64(&row->right, right);
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
        store64(&before->right, file + 1);
    else
        store->first_file = file + 1;
    if (right)
        store64(&wr_store_file(store, right - 1)->left, file + 1);
    else
        store->last_file = file + 1;
    store->files++;
    store->unsettled_n++;
    store->file_bytes_sum += bytes;
    return 0;
}

/* An output is settled when no source of it is left: the files that lie where it lies. */
static void settle_outputs(wr_store *store) {
    if (!store->outputs_n) return;
    for (uint64_t file = store->first_file; file;) {
        wr_summary_row *row = wr_store_file(store, file - 1);
        uint64_t number = file - 1, left = load64(&row->left);
        file = load64(&row->right);
        uint8_t marks = *wr_store_marks(store, number);
        if (is_settled(row) || !(marks & WR_FILE_OUTPUT) || marks & WR_FILE_ARRIVING) continue;
        if ((left && wr_store_file(store, left - 1)->position_high >= row->position_low) ||
            (file && wr_store_file(store, file - 1)->position_low <= row->position_high))
            continue;
        atomic_store_explicit(&row->settled, 1, memory_order_release);
        store->outputs_n--;
        if (!load64(&row->valid_total_size)) wr_store_note_empty(store, number);
    }
}

void wr_store_file_gone(wr_store *store, uint64_t file) {
    wr_summary_row *row = wr_store_file(store, file);
    if (!row) return;
    assert(!load64(&row->valid_total_size) && store->current != file + 1);
    uint64_t left = load64(&row->left), right = load64(&row->right);
    if (left)
        store64(&wr_store_file(store, left - 1)->right, right);
    else
        store->first_file = right;
    if (right)
        store64(&wr_store_file(store, right - 1)->left, left);
    else
        store->last_file = left;
    store->files--;
    store->retired_n++;
    if (!is_settled(row)) --*(*wr_store_marks(store, file) & WR_FILE_OUTPUT ? &store->outputs_n : &store->unsettled_n);
    if (has_ghosts(row)) store->ghosts_n--;
    store->file_bytes_sum -= load64(&row->file_size);
    atomic_store_explicit(&row->file, 0, memory_order_release);
    wr_store_close_file(store, file);
    settle_outputs(store);
    store->empty_check = true; /* files that were pinned by it */
}

void wr_store_ghost(wr_store *store, uint64_t file) {
    wr_summary_row *row = wr_store_file(store, file);
    if (!row || has_ghosts(row)) return;
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

/* Does another file lie where this one's control frames point, or may they speak of a ghost? They speak of what was appended
 * before them: to the left. */
static bool pinned(const wr_store *store, uint64_t file, wr_summary_row *row) {
    if (!(*wr_store_marks(store, file) & WR_FILE_CONTROLS)) return false;
    uint32_t ghosts = store->ghosts_n - has_ghosts(row);
    for (uint64_t left = load64(&row->left); left;) {
        wr_summary_row *other = wr_store_file(store, left - 1);
        bool beyond = !row->pin_low || other->position_high + 1 < row->pin_low;
        if (beyond && !ghosts) return false;
        if (has_ghosts(other) || (!beyond && other->position_low < row->pin_high)) return true;
        left = load64(&other->left);
    }
    return false;
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
        uint64_t more = old_used - load64(&store->current_row->file_size);
        wr_store_add(&store->current_row->file_size, more);
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
        file = load64(&row->right);
    }
}

int wr_store_offer(wr_store *store, int fd, uint64_t file, uint64_t salt, const uint8_t *header) {
    if (load64(&store->summary[file & (store->summary_rows - 1)].file)) return EBUSY;
    int error = wr_log_offer(store->log, fd, file, salt, header);
    if (error) return error;
    store->file_asked = false;
    if (store->state->has_file) wr_store_file_current(store, WR_FILE_HEADER_BYTES);
    for (uint32_t i = 0; i < WR_CLIENT_SLOTS; i++) store->links[i].stalled = false;
    return 0;
}

wr_list *wr_store_take_list(wr_store *store) {
    if (!store->rolled_n) return NULL;
    /* SYNC rolled-durable: pairs with the release in batch_done */
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

/* ---- settling ---- */

uint64_t wr_store_settle_gate(const wr_store *store) {
    /* Also: nothing is recovered that a ring may still hold (replays, below). */
    if (!store->current) return 0;
    uint64_t below = store->current - 1;
    for (uint32_t i = 0; i < store->server->active_n; i++) {
        const wr_store_link *link = &store->links[store->server->active[i]];
        if (!link->active || link->evicted) continue;
        /* Half a batch: its horizon is not posted. */
        if (link->part_file && link->part_file - 1 < below) below = link->part_file - 1;
        if (link->replays && link->told_head < link->replays &&
            atomic_load_explicit(&link->done_head, memory_order_acquire) < link->replays) {
            return 0; /* a client begins to send when its server is there: it is not long until all of that is confirmed */
        }
    }
    return below;
}

/* All files below this number but the two youngest before the current one are settled. */
static void settle_below(wr_store *store, uint64_t below) {
    uint32_t left_to_see = store->unsettled_n, youngest = 0;
    for (uint64_t file = store->last_file; file && left_to_see;) {
        wr_summary_row *row = wr_store_file(store, file - 1);
        uint64_t number = file - 1;
        bool is_current = file == store->current;
        file = load64(&row->left);
        if (is_settled(row) || *wr_store_marks(store, number) & WR_FILE_OUTPUT) continue;
        left_to_see--;
        if (is_current || youngest++ < 2 || number >= below) continue;
        atomic_store_explicit(&row->settled, 1, memory_order_release);
        store->unsettled_n--;
        if (!load64(&row->valid_total_size)) wr_store_note_empty(store, number);
    }
}

static bool nothing_open(const wr_store *store) {
    for (uint32_t i = 0; i < store->server->active_n; i++) {
        const wr_store_link *link = &store->links[store->server->active[i]];
        if (!link->active || link->evicted) continue;
        if (link->part_file || atomic_load_explicit(&link->done_head, memory_order_acquire) < link->effect) return false;
    }
    return true;
}

void wr_store_settle(wr_store *store, bool timer) {
    /* SYNC settled-gate: pairs with the release in batch_done */
    uint64_t gate = atomic_load_explicit(&store->settled_gate, memory_order_acquire);
    timer |= store->settle_check;
    if (gate <= store->settled_seen && !timer) return;
    if (!store->unsettled_n || !store->current || wr_log_look(store->log)->failed) return;
    /* When nothing is open no batch will come that could say so. */
    if (timer && nothing_open(store)) {
        uint64_t now = wr_store_settle_gate(store);
        if (now > gate) gate = now;
    }
    if (gate <= store->settled_seen && !store->settle_check) return;
    store->settle_check = false;
    if (gate > store->settled_seen) store->settled_seen = gate;
    settle_below(store, gate);
}

/* ---- empty files ---- */

int wr_store_note_empty(wr_store *store, uint64_t file) {
    const wr_summary_row *row = wr_store_file(store, file);
    if (!row || !is_settled(row)) return 0; /* it is noted when it is settled */
    if (store->empty_n == store->empty_size) {
        uint32_t size = store->empty_size ? 2 * store->empty_size : 64;
        uint64_t *bigger = realloc(store->empty, size * sizeof *bigger);
        if (!bigger) return ENOMEM; /* the file is noted again when the store starts next */
        store->empty = bigger;
        store->empty_size = size;
    }
    store->empty[store->empty_n++] = file;
    store->empty_check = true;
    return 0;
}

void wr_store_let_empty_go(wr_store *store) {
    if (!store->empty_check || gate_closed(store)) return;
    store->empty_check = false;
    uint64_t death = first_death(store);
    uint32_t kept = 0;
    for (uint32_t i = 0; i < store->empty_n; i++) {
        uint64_t file = store->empty[i];
        wr_summary_row *row = wr_store_file(store, file);
        if (!row || is_locked(row) || load64(&row->valid_total_size) || !is_settled(row))
            continue; /* no candidate any more; it is noted again when it is one */
        bool room = store->gone_n < store->gone_size;
        if (!room) {
            uint32_t size = store->gone_size ? 2 * store->gone_size : 64;
            void *bigger = realloc(store->gone, size * sizeof *store->gone);
            if (bigger) {
                store->gone = bigger;
                store->gone_size = size;
                room = true;
            }
        }
        if (!room || row->position_high >= death || pinned(store, file, row)) {
            store->empty[kept++] = file;
        } else {
            wr_store_ghost(store, file); /* its entries go before it does */
            atomic_store_explicit(&row->locked, 1, memory_order_release);
            store->gone[store->gone_n].file = file;
            store->gone[store->gone_n++].mark = wr_store_log_mark(store);
        }
    }
    store->empty_n = kept;
}

uint64_t wr_store_take_gone(wr_store *store) {
    for (uint32_t i = store->gone_n; i-- > 0;) {
        if (!wr_store_log_durable(store, store->gone[i].mark)) continue;
        uint64_t file = store->gone[i].file;
        store->gone[i] = store->gone[--store->gone_n];
        return file;
    }
    return UINT64_MAX;
}

bool wr_store_gone_ready(wr_store *store) {
    for (uint32_t i = 0; i < store->gone_n; i++)
        if (wr_store_log_durable(store, store->gone[i].mark)) return true;
    return false;
}

uint64_t wr_store_log_mark(const wr_store *store) {
    if (!store->persistent || !store->current) return 0;
    if (store->state->append <= WR_FILE_HEADER_BYTES) return store->rolled_mark; /* the header page alone is never sealed */
    return store->current << 32 | store->state->append;
}

bool wr_store_log_durable(wr_store *store, uint64_t mark) {
    /* SYNC durable-mark: pairs with the release in batch_done */
    if (mark <= atomic_load_explicit(&store->durable_mark, memory_order_acquire)) return true;
    if (!wr_log_look(store->log)->failed) store->want_sync = store->force_sync = true;
    return false;
}

int wr_store_retire(wr_store *store, uint64_t file, const wr_list *list, uint64_t *cursor) {
    wr_summary_row *row = wr_store_file(store, file);
    if (!row || !is_locked(row) || list->file != file) return EINVAL;
    wr_store_ghost(store, file);
    wr_list_cursor walk = wr_list_cursor_at(list, *cursor);
    wr_list_item item;
    uint8_t ahead[16];
    for (uint32_t n = 0; n < WR_STORE_SLICE; n++) {
        if (wr_list_ahead(&walk, AHEAD, ahead)) wr_index_prefetch(&store->index, ahead);
        if (!wr_list_next(&walk, &item)) break;
        if (item.kind != WR_KIND_MESSAGE) continue;
        wr_index_entry *entry = wr_index_find(&store->index, item.id);
        if (!entry || entry->file != file) continue;
        if (wr_entry_held(entry)) return EBUSY;
        wr_index_remove(&store->index, item.id, entry);
    }
    *cursor = wr_list_place(&walk);
    wr_crash_point(store->server->super, WR_CRASH_RETIRE_BEGUN);
    return 0;
}

/* ---- collection ---- */

bool wr_store_lock_files(wr_store *store, const uint64_t *files, uint32_t n) {
    if (gate_closed(store)) return false;
    uint64_t death = first_death(store);
    for (uint32_t i = 0; i < n; i++) {
        const wr_summary_row *row = wr_store_file(store, files[i]);
        if (!row || is_locked(row) || !is_settled(row) || store->current == files[i] + 1 || row->position_high >= death)
            return false;
    }
    for (uint32_t i = 0; i < n; i++) atomic_store_explicit(&wr_store_file(store, files[i])->locked, 1, memory_order_release);
    return true;
}

void wr_store_unlock_files(wr_store *store, const uint64_t *files, uint32_t n, bool ghosts) {
    for (uint32_t i = 0; i < n; i++) {
        wr_summary_row *row = wr_store_file(store, files[i]);
        if (!row) continue;
        if (ghosts) wr_store_ghost(store, files[i]);
        atomic_store_explicit(&row->locked, 0, memory_order_release);
        if (!load64(&row->valid_total_size)) wr_store_note_empty(store, files[i]);
    }
}

int wr_store_collected(wr_store *store, uint64_t file, uint64_t used, uint64_t low, uint64_t high) {
    int error = wr_store_add_file(store, file, used, low, high);
    if (error) return error;
    *wr_store_marks(store, file) = WR_FILE_OUTPUT | WR_FILE_ARRIVING;
    store->unsettled_n--;
    store->outputs_n++;
    wr_store_ghost(store, file); /* until its entries are here */
    store->collected_n++;
    store->copied_bytes += used > WR_FILE_HEADER_BYTES ? used - WR_FILE_HEADER_BYTES : 0;
    return 0;
}

static bool is_source(const uint64_t *sources, uint32_t n, uint64_t file) {
    for (uint32_t i = 0; i < n; i++)
        if (sources[i] == file) return true;
    return false;
}

/* Control frames whose id has no entry may still speak of a ghost: then the output inherits the pins of its sources. */
static void inherit_pins(wr_store *store, wr_summary_row *row, uint64_t file, const uint64_t *sources, uint32_t n) {
    uint64_t low = 0, high = 0;
    for (uint32_t i = 0; i < n; i++) {
        const wr_summary_row *source = wr_store_file(store, sources[i]);
        if (!source || !source->pin_low) continue;
        if (!low || source->pin_low < low) low = source->pin_low;
        if (source->pin_high > high) high = source->pin_high;
    }
    if (!low) return;
    for (uint64_t at = store->first_file; at;) {
        wr_summary_row *other = wr_store_file(store, at - 1);
        if (at - 1 != file && !is_source(sources, n, at - 1) && has_ghosts(other) &&
            other->position_high + 1 >= low && other->position_low < high) {
            if (!row->pin_low || low < row->pin_low) row->pin_low = low;
            if (high > row->pin_high) row->pin_high = high;
            return;
        }
        at = load64(&other->right);
    }
}

int wr_store_swing(wr_store *store, const wr_list *list, const uint64_t *sources, uint32_t n, uint64_t *cursor) {
    uint64_t file = list->file;
    wr_summary_row *row = wr_store_file(store, file);
    uint8_t *marks = wr_store_marks(store, file);
    if (!row || !(*marks & WR_FILE_ARRIVING)) return EINVAL;
    if (*cursor == 0) {
        if (list->controls) *marks |= WR_FILE_CONTROLS;
        inherit_pins(store, row, file, sources, n);
        store64(&row->messages, list->messages);
    }
    wr_list_cursor walk = wr_list_cursor_at(list, *cursor);
    wr_list_item item;
    uint8_t ahead[16];
    for (uint32_t done = 0; done < WR_STORE_SLICE; done++) {
        if (wr_list_ahead(&walk, AHEAD, ahead)) wr_index_prefetch(&store->index, ahead);
        if (!wr_list_next(&walk, &item)) break;
        wr_index_entry *entry = wr_index_find(&store->index, item.id);
        if (item.kind != WR_KIND_MESSAGE) {
            if (entry && !is_source(sources, n, entry->file)) wr_store_pin(store, file, entry->file);
            continue;
        }
        if (!entry || !is_source(sources, n, entry->file)) {
            *marks |= WR_FILE_UNSWUNG; /* it was written anew, or lost its entry, while it was copied */
            continue;
        }
        if (wr_entry_held(entry)) {
            wr_summary_row *from = wr_store_file(store, entry->file);
            store64(&from->valid_total_size, load64(&from->valid_total_size) - entry->total_size);
            wr_store_add(&row->valid_total_size, item.total);
            store->valid_bytes += item.total - entry->total_size;
        }
        wr_entry_begin(entry);
        entry->file = (uint32_t)file;
        entry->offset = (uint32_t)item.offset;
        entry->total_size = item.total;
        wr_entry_end(entry);
    }
    *cursor = wr_list_place(&walk);
    if (*cursor != UINT64_MAX) {
        wr_crash_point(store->server->super, WR_CRASH_SWING_BEGUN);
        return 0;
    }
    *marks &= (uint8_t)~WR_FILE_ARRIVING;
    if (!(*marks & WR_FILE_UNSWUNG)) {
        atomic_store_explicit(&row->ghosts, 0, memory_order_relaxed);
        store->ghosts_n--;
    }
    settle_outputs(store);
    store->empty_check = true;
    wr_crash_point(store->server->super, WR_CRASH_SWUNG);
    return 0;
}

uint64_t wr_store_drop_lost(wr_store *store, const uint8_t (*ids)[16], uint64_t n) {
    uint64_t lost = 0;
    for (uint64_t i = 0; i < n; i++) {
        wr_index_entry *entry = wr_index_find(&store->index, ids[i]);
        if (!entry) continue;
        if (wr_entry_held(entry)) {
            lost++;
            wr_store_release_all(store, entry);
        }
        wr_store_ghost(store, entry->file);
        wr_index_remove(&store->index, ids[i], entry);
    }
    store->lost_n += lost;
    return lost;
}
