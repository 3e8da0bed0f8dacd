/* Entries leave a file: they swing to the output of a collection, or are dropped (design note 003, section 5).
 *
 * In slices, between two commands of the loop thread; who calls is the collection (engine/store/collection.py).
 * Invariants: store/store.h. Crash points: retire_begun, swing_begun, swung.
 */
#include "store/swing.h"
#include "ipc/core/crash.h"
#include "store/dying.h"
#include "store/file_life.h"
#include "store/files.h"
#include "store/references.h"

#define AHEAD 16 /* ids from here are fetched */

bool wr_store_lock_files(wr_store *store, const uint64_t *files, uint32_t n) {
    if (wr_store_holders_unknown(store)) return false;
    uint64_t death = wr_store_first_death(store);
    for (uint32_t i = 0; i < n; i++) {
        const wr_summary_row *row = wr_store_file(store, files[i]);
        if (!row || wr_row_locked(row) || !wr_row_replay_free(row)) return false;
        if (wr_file_is(store->current, files[i]) || row->position_high >= death) return false;
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
        if (!wr_row_load(&row->valid_total_size)) wr_store_note_empty(store, files[i]);
    }
}

int wr_store_collected(wr_store *store, uint64_t file, uint64_t used, uint64_t low, uint64_t high) {
    int error = wr_store_add_file(store, file, used, low, high);
    if (error) return error;
    *wr_store_marks(store, file) = WR_FILE_OUTPUT | WR_FILE_ARRIVING;
    store->replayable_n--;
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
static void inherit_pins(wr_store *store, wr_summary_row *row, const uint64_t *sources, uint32_t n) {
    wr_summary_row all = {0}, *other;
    for (uint32_t i = 0; i < n; i++) {
        const wr_summary_row *source = wr_store_file(store, sources[i]);
        if (source) wr_row_pin_as(&all, source);
    }
    if (!all.pin_low) return;
    for (wr_file_ref at = store->first_file; (other = wr_store_at(store, at)); at = wr_row_right(other)) {
        if (other == row || is_source(sources, n, wr_file_number(at))) continue;
        if (!wr_row_ghosts(other) || !wr_row_pins(&all, other)) continue;
        wr_row_pin_as(row, &all);
        return;
    }
}

int wr_store_swing(wr_store *store, const wr_list *list, const uint64_t *sources, uint32_t n, uint64_t *cursor) {
    uint64_t file = list->file;
    wr_summary_row *row = wr_store_file(store, file);
    uint8_t *marks = wr_store_marks(store, file);
    if (!row || !(*marks & WR_FILE_ARRIVING)) return EINVAL;
    if (*cursor == 0) {
        if (list->controls) *marks |= WR_FILE_CONTROLS;
        inherit_pins(store, row, sources, n);
        wr_row_store(&row->messages, list->messages);
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
            wr_row_store(&from->valid_total_size, wr_row_load(&from->valid_total_size) - entry->total_size);
            wr_row_add(&row->valid_total_size, item.total);
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
    wr_store_mark_outputs(store);
    store->empty_check = true;
    wr_crash_point(store->server->super, WR_CRASH_SWUNG);
    return 0;
}

int wr_store_drop_entries(wr_store *store, uint64_t file, const wr_list *list, uint64_t *cursor) {
    wr_summary_row *row = wr_store_file(store, file);
    if (!row || !wr_row_locked(row) || list->file != file) return EINVAL;
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
