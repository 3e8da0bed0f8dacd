/* How a client ends: what it may still do while it is dying (design note 003, section 8), and that its link is closed when it does
 * what it must not. Invariants: store/store.h. Crash point: dying.
 */
#include "store/dying.h"
#include "ipc/core/crash.h"
#include "store/command.h"
#include "store/files.h"

void wr_store_evict(wr_store *store, uint32_t slot, uint32_t reason) {
    wr_store_link *link = &store->links[slot];
    link->evicted = true;
    store->evicted_n++;
    atomic_store_explicit(&wr_store_shared_link(store, slot)->evicted, reason, memory_order_release);
    wr_directory_sweep(store->directory, store->directory_rows, slot);
    wr_view_wake(&store->server->views[slot]);
}

int wr_store_dying_mask(const wr_store *store, const wr_store_link *link, const wr_index_entry *entry) {
    if (!entry) return WR_MASK_ALL;
    const wr_summary_row *row = wr_store_file(store, entry->file);
    if (!row) return WR_MASK_ALL;
    /* Offsets say what was first in the file that was current then; a collected file has others. */
    bool behind = row->position_low > link->death_position ||
                  (entry->file == link->death_position && entry->offset >= link->death_offset);
    if (behind) return WR_MASK_ALL;
    return wr_entry_held(entry) ? WR_MASK_NONE : WR_MASK_COUNT;
}

uint64_t wr_store_first_death(const wr_store *store) {
    uint64_t first = UINT64_MAX;
    for (uint32_t i = 0; i < store->server->active_n; i++) {
        const wr_store_link *link = &store->links[store->server->active[i]];
        if (link->active && link->dying && link->death_position < first) first = link->death_position;
    }
    return first;
}

void wr_store_server_dying(wr_store_server *server, uint32_t number, uint32_t slot, uint32_t generation, uint64_t until) {
    if (number > 1 || slot >= WR_CLIENT_SLOTS || !server->attached[slot] || server->generation[slot] != generation) return;
    wr_store *store = &server->stores[number];
    wr_store_link *link = &store->links[slot];
    if (!store->open || !link->active) return;
    wr_link *shared = wr_store_shared_link(store, slot);
    /* Anybody can post a message; only its owner writes this word. */
    if (!until || atomic_load_explicit(&shared->dying_until, memory_order_acquire) != until) return;
    if (link->processed >= until) return; /* its command was faster */
    link->dying = true;
    link->dying_since_ns = 0;
    link->death_until = until;
    const wr_summary_row *last = wr_store_at(store, store->last_file);
    bool begun = wr_file_some(store->current);
    link->death_position = begun ? wr_file_number(store->current) : last ? last->position_high + 1 : 0;
    link->death_offset = begun ? store->state->append : 0;
    /* For a server that replays these commands: places on disk stay true. Before anything is masked. */
    shared->death_position = link->death_position;
    shared->death_offset = link->death_offset;
    atomic_store_explicit(&shared->death_until, until, memory_order_release);
    wr_crash_point(server->super, WR_CRASH_DYING);
}

void wr_store_end_dying(wr_store *store, uint64_t now) {
    for (uint32_t i = 0; i < store->server->active_n; i++) {
        uint32_t slot = store->server->active[i];
        wr_store_link *link = &store->links[slot];
        if (!link->active || !link->dying || link->evicted) continue;
        if (!link->dying_since_ns || link->stalled) link->dying_since_ns = now;
        if (now - link->dying_since_ns < store->server->dying_ns) continue;
        wr_store_evict(store, slot, WR_EVICTED_DYING);
        link->dying = false; /* nothing of it is executed any more */
        store->empty_check = true;
    }
}
