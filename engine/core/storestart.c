/* Starting the store: frames of files, or rows of a snapshot, become index, file summary and high waters again.
 *
 * Files are applied in ascending order, frames in order of position; that is the order in which things happened.
 *   MESSAGE        the id lies here from now on (an older place has lost it); one reference: a worker's (extra) or ref_count
 *   ADD_REFERENCE  one more for an id that is there
 *   REMOVE         one less for each id that is there
 * Every frame raises the high water of its client epoch: commands below it are not executed again.
 * A MESSAGE of a place that is superseded counts no bytes: sums are made at the end, from the rows.
 */
#include "store.h"
#include <assert.h>
#include <stdlib.h>

#define SCAN_ROWS 1024

uint64_t wr_store_water(const wr_store *store, uint64_t client_epoch) {
    if (!store->waters_n) return 0;
    uint32_t mask = store->waters_size - 1;
    for (uint32_t i = (uint32_t)(client_epoch * 0x9e3779b97f4a7c15ull >> 40) & mask; store->waters[2 * i + 1]; i = (i + 1) & mask)
        if (store->waters[2 * i] == client_epoch) return store->waters[2 * i + 1];
    return 0;
}

static bool grow_waters(wr_store *store) {
    uint32_t old_size = store->waters_size;
    uint64_t *old = store->waters;
    uint32_t size = old_size ? 2 * old_size : 64;
    uint64_t *bigger = calloc(size, 2 * sizeof *bigger);
    if (!bigger) return false;
    store->waters = bigger;
    store->waters_size = size;
    store->waters_n = 0;
    for (uint32_t i = 0; i < old_size; i++)
        if (old[2 * i + 1]) wr_store_note_water(store, old[2 * i], old[2 * i + 1]);
    free(old);
    return true;
}

bool wr_store_note_water(wr_store *store, uint64_t client_epoch, uint64_t water) {
    if (!water) return true;
    if (store->waters_n * 2 >= store->waters_size && !grow_waters(store)) return false;
    uint32_t mask = store->waters_size - 1;
    uint32_t i = (uint32_t)(client_epoch * 0x9e3779b97f4a7c15ull >> 40) & mask;
    while (store->waters[2 * i + 1] && store->waters[2 * i] != client_epoch) i = (i + 1) & mask;
    if (!store->waters[2 * i + 1]) {
        store->waters[2 * i] = client_epoch;
        store->waters_n++;
    }
    if (water > store->waters[2 * i + 1]) store->waters[2 * i + 1] = water;
    return true;
}


/* SCAN_ROWS frames at most are applied between two looks at the table's room, so it must hold that many more. */
static bool apply_message(wr_store *store, uint64_t file, const wr_frame_row *frame) {
    uint64_t hash = wr_id_hash(frame->id);
    uint32_t at = wr_index_find(&store->index, hash, frame->id);
    bool fresh = at == WR_NO_ROW;
    if (fresh) at = wr_index_insert(&store->index, hash);
    if (at == WR_NO_ROW) return false;
    wr_index_row *row = &store->index.rows[at];
    wr_row_begin(row);
    if (fresh) {
        row->state = WR_ROW_LIVE;
        memcpy(row->id, frame->id, 16);
        row->ref_count = row->holders = row->marks = 0;
        row->pending = 0;
    }
    row->file = (uint32_t)file;
    row->offset = (uint32_t)frame->offset;
    row->total_size = (uint32_t)frame->total;
    row->meta_length = frame->meta_length;
    if (frame->extra && frame->extra <= WR_WORKERS_MAX)
        row->holders |= 1u << (frame->extra - 1);
    else
        row->ref_count++;
    wr_row_end(row);
    return true;
}

static void apply_reference(wr_store *store, uint64_t file, const uint8_t id[16], int by) {
    uint32_t at = wr_index_find(&store->index, wr_id_hash(id), id);
    if (at == WR_NO_ROW) return; /* its file is gone: so was every reference */
    wr_index_row *row = &store->index.rows[at];
    wr_store_pin(store, file, row->file);
    if (by < 0 && !row->ref_count) return;
    wr_row_begin(row);
    row->ref_count += (uint32_t)by;
    wr_row_end(row);
}

int wr_store_scan_file(wr_store *store, uint64_t file, const uint8_t *bytes, uint64_t length, uint64_t salt, uint64_t *at,
                       uint64_t *frames, const char **reason) {
    wr_frame_row *rows = malloc(SCAN_ROWS * sizeof *rows);
    if (!rows) return ENOMEM;
    int error = 0;
    *reason = NULL;
    while (!*reason && !error) {
        if (wr_index_tight(&store->index)) {
            *reason = "index";
            break;
        }
        uint64_t n = wr_frame_scan(bytes, length, at, salt, rows, SCAN_ROWS / 16, reason);
        for (uint64_t i = 0; i < n; i++) wr_index_prefetch(&store->index, wr_id_hash(rows[i].id));
        for (uint64_t i = 0; i < n && !error; i++) {
            const wr_frame_row *frame = &rows[i];
            if (frame->kind == WR_KIND_MESSAGE) {
                if (!apply_message(store, file, frame)) error = ENOBUFS;
            } else if (frame->kind == WR_KIND_ADD_REFERENCE) {
                apply_reference(store, file, frame->id, 1);
            } else if (frame->kind == WR_KIND_REMOVE) {
                const uint8_t *ids = bytes + frame->offset + WR_FRAME_HEAD_BYTES;
                uint64_t ids_n = (frame->total - WR_FRAME_BYTES_MIN) / 16;
                for (uint64_t k = 0; k < ids_n && k < frame->extra; k++) apply_reference(store, file, ids + 16 * k, -1);
            }
            if (!wr_store_note_water(store, frame->client_epoch, frame->sequence)) error = ENOMEM;
        }
        *frames += n;
    }
    free(rows);
    return error;
}

int wr_store_load_rows(wr_store *store, const wr_index_row *rows, uint64_t rows_n) {
    for (uint64_t i = 0; i < rows_n; i++) {
        if (i + 8 < rows_n) wr_index_prefetch(&store->index, wr_id_hash(rows[i + 8].id));
        uint32_t at = wr_index_insert(&store->index, wr_id_hash(rows[i].id));
        if (at == WR_NO_ROW) return ENOBUFS;
        wr_index_row *row = &store->index.rows[at];
        wr_row_begin(row);
        memcpy((uint8_t *)row + 4, (const uint8_t *)&rows[i] + 4, sizeof *row - 4);
        row->state = WR_ROW_LIVE;
        row->marks = 0;
        wr_row_end(row);
    }
    return 0;
}

void wr_store_load_pins(wr_store *store, uint64_t file, uint64_t pin_low, uint64_t pin_high) {
    wr_summary_row *row = wr_store_file(store, file);
    if (!row) return;
    row->pin_low = pin_low;
    row->pin_high = pin_high;
}

uint64_t wr_store_finish(wr_store *store) {
    uint64_t dropped = 0;
    store->messages = store->valid_bytes = 0;
    for (uint64_t i = 0; i < store->index.rows_n; i++) {
        wr_index_row *row = &store->index.rows[i];
        if (!atomic_load_explicit(&row->version, memory_order_relaxed) || row->state != WR_ROW_LIVE) continue;
        wr_summary_row *file = wr_store_file(store, row->file);
        if (!file) {
            wr_index_remove(&store->index, (uint32_t)i);
            dropped++;
            continue;
        }
        if (!wr_row_held(row)) continue;
        atomic_store_explicit(&file->valid_total_size,
                              atomic_load_explicit(&file->valid_total_size, memory_order_relaxed) + row->total_size,
                              memory_order_relaxed);
        store->valid_bytes += row->total_size;
        store->messages++;
    }
    wr_store_relist(store);
    for (uint64_t file = store->first_file; file;) {
        wr_summary_row *row = wr_store_file(store, file - 1);
        if (!atomic_load_explicit(&row->valid_total_size, memory_order_relaxed)) wr_store_note_empty(store, file - 1);
        file = atomic_load_explicit(&row->right, memory_order_relaxed);
    }
    return dropped;
}

int wr_store_replace_index(wr_store *store, void *region, uint64_t bytes, wr_index_header **old) {
    wr_index next;
    int error = wr_index_init(&next, region, bytes);
    if (error) return error;
    if (next.rows_n / 10 * 7 <= store->index.live) return EINVAL;
    const wr_index from = store->index;
    store->index = next;
    memset(store->first_row, 0, store->summary_rows * sizeof *store->first_row);
    for (uint64_t i = 0; i < from.rows_n; i++) {
        const wr_index_row *row = &from.rows[i];
        if (!atomic_load_explicit(&row->version, memory_order_relaxed) || row->state != WR_ROW_LIVE) continue;
        uint32_t at = wr_index_take(&store->index, row);
        assert(at != WR_NO_ROW);
        wr_store_link_row(store, at);
    }
    *old = from.header;
    store->index_asked = false;
    for (uint32_t i = 0; i < WR_CLIENT_SLOTS; i++) store->links[i].stalled = false;
    return 0;
}
