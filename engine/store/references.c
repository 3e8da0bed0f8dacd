/* References of entries: who holds a message, and what the last one that goes leaves behind. Invariants: store/store.h. */
#include "store/references.h"

void wr_store_hold(wr_store *store, wr_index_entry *entry, int holder) {
    bool first = !wr_entry_held(entry);
    wr_entry_begin(entry);
    if (holder >= 0) {
        entry->holders |= 1u << holder;
        entry->marks |= 1u << holder;
    } else {
        entry->ref_count++;
    }
    wr_entry_end(entry);
    if (!first) return;
    wr_row_add(&wr_store_file(store, entry->file)->valid_total_size, entry->total_size);
    store->valid_bytes += entry->total_size;
    store->messages++;
}

/* The last reference has gone. */
static void died(wr_store *store, const wr_index_entry *entry) {
    wr_summary_row *file = wr_store_file(store, entry->file);
    uint64_t valid = atomic_load_explicit(&file->valid_total_size, memory_order_relaxed) - entry->total_size;
    atomic_store_explicit(&file->valid_total_size, valid, memory_order_relaxed);
    store->valid_bytes -= entry->total_size;
    store->messages--;
    if (!valid) wr_store_note_empty(store, entry->file);
}

bool wr_store_release(wr_store *store, wr_index_entry *entry, int holder) {
    if (holder >= 0 ? !(entry->holders & 1u << holder) : !entry->ref_count) return false;
    wr_entry_begin(entry);
    if (holder >= 0) {
        entry->holders &= ~(1u << holder);
        entry->marks &= ~(1u << holder);
    } else {
        entry->ref_count--;
    }
    wr_entry_end(entry);
    if (!wr_entry_held(entry)) died(store, entry);
    return true;
}

void wr_store_release_all(wr_store *store, wr_index_entry *entry) {
    if (!wr_entry_held(entry)) return;
    wr_entry_begin(entry);
    entry->ref_count = entry->holders = entry->marks = 0;
    wr_entry_end(entry);
    died(store, entry);
}

bool wr_store_may_revive(const wr_store *store, const wr_index_entry *entry) {
    const wr_summary_row *row = wr_store_file(store, entry->file);
    return row && !atomic_load_explicit(&row->locked, memory_order_relaxed);
}
