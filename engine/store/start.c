/* Starting the store: what the files' lists say becomes index, file summary and high waters again (design note 003, section 3).
 *
 * Files are applied in order of position, records in order of the file; that is the order in which things happened.
 *   MESSAGE        absolute: the id lies here, and has exactly one reference, a worker's (extra) or an anonymous one: the record was
 *                  appended because nothing held the id. An older place has lost it, and holds a ghost from now on.
 *   ADD_REFERENCE  one more for an id that is there
 *   REMOVE         one less for each id that is there
 * Every frame raises the high water of its client epoch: commands below it are not executed again.
 * A MESSAGE of a place that is superseded counts no bytes: sums are made at the end, from the entries.
 * Applying a list twice from the same cursor on yields the same, as long as no later list was applied.
 */
#include "store/start.h"
#include "store/files.h"
#include "store/waters.h"

#define APPLY_SLICE 1024 /* entries between two looks at the room in the index */
#define AHEAD 16         /* ids from here are fetched */

static inline void put_message(wr_index_entry *entry, uint32_t extra, uint16_t meta_length, uint32_t file, uint64_t offset,
                               uint32_t total) {
    bool worker = extra && extra <= WR_WORKERS_MAX;
    wr_entry_begin(entry);
    entry->file = file;
    entry->offset = (uint32_t)offset;
    entry->total_size = total;
    entry->ref_count = !worker;
    entry->holders = worker ? 1u << (extra - 1) : 0;
    entry->marks = 0;
    entry->meta_length = meta_length;
    entry->state = 1;
    wr_entry_end(entry);
}

static inline void superseded(wr_store *store, const wr_index_entry *entry, uint64_t file) {
    if (entry->file != file) wr_store_ghost(store, entry->file);
}

/* Messages of a run that lie one behind the other in the dense part. Returns how many, 0: the other way. */
static uint32_t apply_dense(wr_store *store, wr_list_cursor *walk, uint32_t max) {
    const wr_list *list = walk->list;
    const wr_list_run *run = &list->runs[walk->run];
    uint32_t left = run->count - walk->at, file = (uint32_t)list->file, fresh = 0;
    uint8_t id[16];
    wr_put64(id, run->id_high);
    wr_put64(id + 8, run->id_low + walk->at);
    wr_index_run entries;
    if (!wr_index_run_of(&store->index, id, left < max ? left : max, &entries)) return 0;
    uint64_t offset = walk->offset;
    for (uint32_t i = 0; i < entries.n; i++) {
        wr_index_entry *entry = &entries.entries[i];
        uint32_t total = wr_list_total(list, run, walk->at + i);
        if (entry->state == 1)
            superseded(store, entry, file);
        else
            fresh++;
        put_message(entry, run->extra, run->meta_length, file, offset, total);
        offset += total;
    }
    if (fresh) wr_index_run_filled(&store->index, &entries, fresh);
    wr_list_skip(walk, entries.n, offset - walk->offset);
    return entries.n;
}

static bool apply_message(wr_store *store, const wr_list *list, const wr_list_item *item) {
    wr_index_entry *entry = wr_index_find(&store->index, item->id);
    if (entry)
        superseded(store, entry, list->file);
    else
        entry = wr_index_insert(&store->index, item->id);
    if (entry) put_message(entry, item->extra, item->meta_length, (uint32_t)list->file, item->offset, item->total);
    return entry != NULL;
}

static void apply_reference(wr_store *store, uint64_t file, const wr_list_item *item) {
    wr_index_entry *entry = wr_index_find(&store->index, item->id);
    if (!entry) return; /* its file is gone: so was every reference */
    wr_store_pin(store, file, entry->file);
    bool more = item->kind == WR_KIND_ADD_REFERENCE;
    if (!more && !entry->ref_count) return;
    wr_entry_begin(entry);
    if (more)
        entry->ref_count++;
    else
        entry->ref_count--;
    wr_entry_end(entry);
}

int wr_store_apply_list(wr_store *store, const wr_list *list, uint64_t *cursor, const char **reason) {
    wr_summary_row *row = wr_store_file(store, list->file);
    *reason = NULL;
    if (!row) return EINVAL;
    if (*cursor == 0) {
        for (uint64_t i = 0; i < list->waters_size; i++)
            if (list->waters[i].water && !wr_store_note_water(store, list->waters[i].client_epoch, list->waters[i].water)) return ENOMEM;
        atomic_store_explicit(&row->messages, list->messages, memory_order_relaxed);
        if (list->controls) *wr_store_marks(store, list->file) |= WR_FILE_CONTROLS;
    }
    wr_list_cursor walk = wr_list_cursor_at(list, *cursor);
    uint32_t since = 0;
    while (walk.run < list->runs_n) {
        if (since == 0) {
            if (wr_index_wants_extent(&store->index))
                *reason = "extent";
            else if (wr_index_tight(&store->index))
                *reason = "index";
            if (*reason) break;
        }
        const wr_list_run *run = &list->runs[walk.run];
        uint32_t done = 1;
        if (run->kind != WR_KIND_MESSAGE || !(done = apply_dense(store, &walk, APPLY_SLICE))) {
            done = 1;
            wr_list_cursor before = walk;
            wr_list_item item;
            uint8_t ahead[16];
            if (wr_list_ahead(&walk, AHEAD, ahead)) wr_index_prefetch(&store->index, ahead);
            wr_list_next(&walk, &item);
            if (run->kind != WR_KIND_MESSAGE) {
                apply_reference(store, list->file, &item);
            } else if (!apply_message(store, list, &item)) {
                walk = before;
                *reason = "index";
                break;
            }
        }
        since = since + done >= APPLY_SLICE ? 0 : since + done;
    }
    *cursor = wr_list_place(&walk);
    return 0;
}

uint64_t wr_store_finish(wr_store *store) {
    uint64_t dropped = 0;
    store->messages = store->valid_bytes = 0;
    wr_index_cursor cursor = {0};
    uint8_t id[16];
    for (wr_index_entry *entry; (entry = wr_index_next(&store->index, &cursor, id));) {
        wr_summary_row *file = wr_store_file(store, entry->file);
        if (!file) {
            wr_index_remove(&store->index, id, entry);
            dropped++;
            continue;
        }
        if (!wr_entry_held(entry)) continue;
        wr_row_add(&file->valid_total_size, entry->total_size);
        store->valid_bytes += entry->total_size;
        store->messages++;
    }
    store->replay_check = true;
    return dropped;
}
