/* Links of clients: taken up, closed, and forgotten when nothing of them is left. Invariants: store/store.h. */
#include "store/links.h"
#include "store/batch.h"
#include "store/command.h"
#include "store/dying.h"
#include "store/waters.h"

/* Rows for what was under way when the server before us ended: else nobody could read it until it is executed. */
static void put_rows_back(wr_store *store, uint32_t slot, uint64_t from, uint64_t tail) {
    for (uint64_t n = from; n < tail; n++) {
        const wr_command *record = wr_view_command(&store->server->views[slot], store->number, n);
        wr_command c = wr_store_copy(record);
        uint32_t flying = atomic_load_explicit(&record->flying, memory_order_relaxed);
        if (c.op == WR_OP_STORE_WRITE_MANY) wr_store_take_batch_up(store, slot, n, &c);
        if (wr_store_replayed(&store->links[slot], n)) continue;
        if (c.op != WR_OP_STORE_WRITE || (flying != WR_FLYING_WRITTEN && flying != WR_FLYING_TAKEN)) continue;
        uint64_t hash = wr_id_hash(c.id);
        wr_directory_insert(store->directory, store->directory_rows, hash, wr_directory_word(hash, slot, n));
    }
}

void wr_store_take_up(wr_store *store, uint32_t slot, uint64_t tail) {
    wr_store_link *link = &store->links[slot];
    link->taken_up = true;
    for (uint64_t n = link->processed; n < tail && n < link->high_water >> 16; n++) {
        wr_command c = wr_store_copy(wr_view_command(&store->server->views[slot], store->number, n));
        if (c.op == WR_OP_STORE_WRITE_MANY) wr_store_batch_on_disk(store, slot, n, &c);
    }
}

int wr_store_server_attach(wr_store_server *server, uint32_t slot, uint32_t generation, uint64_t client_epoch, void *region,
                           uint64_t bytes, int holder, uint64_t epochs[2], bool starting) {
    if (slot >= WR_CLIENT_SLOTS || holder >= WR_WORKERS_MAX) return EINVAL;
    if (server->attached[slot]) return EEXIST;
    wr_geometry g = wr_geometry_without_slots(server->super);
    int error = wr_view_init(&server->views[slot], region, bytes, &g);
    if (error) return error;
    wr_doorbell_of(&server->views[slot].doorbell, slot, generation);
    /* A queue worker does not sleep in its region, but on its server's word. */
    uint32_t end = wr_workers_end(server->super), worker = holder < 0 ? end : WR_SERVER_WORKER_FIRST + (uint32_t)holder;
    if (worker < end) server->views[slot].bell = &wr_superblock_server(server->super, worker)->sleeping;
    server->generation[slot] = generation;
    server->client_epoch[slot] = client_epoch;
    server->holder[slot] = holder;
    server->closing[slot] = server->finished[slot] = false;
    for (uint32_t number = 0; number < 2; number++) {
        wr_store *store = &server->stores[number];
        wr_store_link *link = &store->links[slot];
        memset((void *)link, 0, sizeof *link);
        if (!store->open) continue;
        wr_link *shared = wr_store_shared_link(store, slot);
        uint64_t head = atomic_load_explicit(&shared->head, memory_order_relaxed);
        uint64_t tail = atomic_load_explicit(&shared->tail, memory_order_acquire);
        link->active = true;
        link->limit = head;
        link->processed = link->effect = link->posted = link->posted_sync = head;
        link->told_written = link->told_synced = link->told_head = 0;
        atomic_store_explicit(&link->done_written, head, memory_order_relaxed);
        atomic_store_explicit(&link->done_synced, head, memory_order_relaxed);
        atomic_store_explicit(&link->done_head, head, memory_order_relaxed);
        link->high_water = store->persistent ? wr_store_water(store, client_epoch) : 0;
        link->evicted = atomic_load_explicit(&shared->evicted, memory_order_relaxed) != 0;
        if (link->evicted) continue;
        if (tail - head > g.ring_records) {
            wr_store_evict(store, slot, WR_EVICTED_TAKEUP);
            continue;
        }
        uint64_t on_disk = (link->high_water >> 16) < tail ? link->high_water >> 16 : tail;
        if (on_disk > head) link->replays = on_disk;
        uint64_t until = atomic_load_explicit(&shared->death_until, memory_order_acquire);
        if (until > head) { /* forged: it masks its own commands only */
            link->dying = true;
            link->death_until = until;
            link->death_position = shared->death_position;
            link->death_offset = shared->death_offset;
        }
        if (starting) put_rows_back(store, slot, head, tail);
        atomic_store_explicit(&shared->server_epoch, epochs[number], memory_order_release);
    }
    server->attached[slot] = true;
    server->active[server->active_n++] = slot;
    return 0;
}

void wr_store_server_freeze(wr_store_server *server) {
    for (uint32_t i = 0; i < server->active_n && !server->frozen; i++) {
        for (uint32_t number = 0; number < 2; number++) {
            wr_store *store = &server->stores[number];
            store->links[server->active[i]].limit = wr_store_tail(store, server->active[i]);
        }
    }
    server->frozen = true;
}

void wr_store_server_close(wr_store_server *server, uint32_t slot) {
    if (slot >= WR_CLIENT_SLOTS || !server->attached[slot] || server->closing[slot]) return;
    for (uint32_t number = 0; number < 2; number++) {
        wr_store *store = &server->stores[number];
        wr_store_link *link = &store->links[slot];
        if (!link->active) continue;
        link->end = atomic_load_explicit(&wr_store_shared_link(store, slot)->tail, memory_order_acquire);
        if (link->end - link->processed > server->views[slot].g.ring_records) link->end = link->processed;
    }
    server->closing[slot] = true;
}

int wr_store_server_detach(wr_store_server *server, uint32_t slot) {
    if (slot >= WR_CLIENT_SLOTS || !server->attached[slot]) return 0;
    if (server->closing[slot] && !server->finished[slot]) return EBUSY;
    for (uint32_t number = 0; number < 2; number++)
        if (atomic_load_explicit(&server->stores[number].links[slot].batches, memory_order_acquire)) return EBUSY;
    server->attached[slot] = false;
    wr_doorbell_end(&server->views[slot].doorbell);
    for (uint32_t i = 0; i < server->active_n; i++)
        if (server->active[i] == slot) server->active[i--] = server->active[--server->active_n];
    for (uint32_t number = 0; number < 2; number++) {
        server->stores[number].links[slot].active = false;
        server->stores[number].empty_check = true; /* it may have been a dying one */
    }
    return 0;
}

void wr_store_finish_slot(wr_store_server *server, uint32_t slot) {
    for (uint32_t number = 0; number < 2; number++) {
        wr_store *store = &server->stores[number];
        wr_store_link *link = &store->links[slot];
        if (!link->active) continue;
        if (atomic_load_explicit(&link->batches, memory_order_acquire)) return;
        bool failed = wr_log_look(store->log)->failed != 0;
        if (failed || link->evicted) continue; /* nothing more can be done for it */
        if (link->processed < link->end) return;
        if (store->persistent && atomic_load_explicit(&link->done_head, memory_order_acquire) < link->effect) return;
        if (link->effect > link->posted) return;
    }
    for (uint32_t number = 0; number < 2; number++) {
        wr_store *store = &server->stores[number];
        if (store->open) wr_directory_sweep(store->directory, store->directory_rows, slot);
    }
    server->finished[slot] = true;
    wr_slot *row = wr_superblock_slot(server->super, slot);
    uint64_t claim = atomic_load_explicit(&row->claim, memory_order_acquire);
    if (((claim >> 8) & 0xffffff) == server->generation[slot]) {
        row->server_done[0] = row->server_done[1] = (uint8_t)server->generation[slot];
        atomic_thread_fence(memory_order_release);
    }
    server->events |= WR_STORE_EVENT_SWEPT;
}

bool wr_store_predecessor_unfinished(const wr_store_server *server, uint32_t slot) {
    if (server->holder[slot] < 0) return false;
    for (uint32_t i = 0; i < server->active_n; i++) {
        uint32_t other = server->active[i];
        if (server->holder[other] == server->holder[slot] && server->client_epoch[other] < server->client_epoch[slot] &&
            !server->finished[other])
            return true;
    }
    return false;
}
