/* Horizons of the store's links, and the batches that carry them: when to commit, and what is confirmed (design note 001, section 2).
 *
 * Threads: wr_store_log_written and wr_store_log_done run on the committer, the rest on the loop thread.
 * The committer raises a link's words for effects that it made durable; the loop raises them for commands without effect,
 * and only when no effect before them is under way. So the two never write a link's words at the same time.
 * Crash points: batch_written, batch_synced, batch_done.
 */
#include "store/horizons.h"
#include "ipc/core/crash.h"
#include "store/command.h"
#include "store/file_life.h"
#include "store/files.h"

#define SEAL_BYTES_MIN (128u << 10) /* while more commands wait, a commit begins with so much */
#define UNSYNCED_NS_MAX 1000000000ull /* under load, what nobody waits for is synced by then */

/* ---- committer ---- */

static wr_store_link *horizon_link(wr_store *store, const wr_horizon *h) { return &store->links[h->view - store->server->views]; }

void wr_store_log_written(void *context, const wr_batch *batch) {
    wr_store *store = context;
    bool head = !batch->sync;
    for (uint32_t i = 0; i < batch->horizons_n; i++) {
        const wr_horizon *h = &batch->horizons[i];
        if (!h->view) continue;
        wr_store_link *link = horizon_link(store, h);
        wr_horizon_publish(h, true, !store->persistent, head);
        atomic_store_explicit(&link->done_written, h->sequence, memory_order_release);
        if (!store->persistent) atomic_store_explicit(&link->done_synced, h->sequence, memory_order_release);
        if (head) atomic_store_explicit(&link->done_head, h->sequence, memory_order_release);
    }
    wr_crash_point(store->server->super, WR_CRASH_BATCH_WRITTEN);
}

void wr_store_log_done(void *context, const wr_batch *batch) {
    wr_store *store = context;
    wr_crash_point(store->server->super, WR_CRASH_BATCH_SYNCED);
    for (uint32_t i = 0; i < batch->horizons_n; i++) {
        const wr_horizon *h = &batch->horizons[i];
        if (!h->view) continue;
        wr_store_link *link = horizon_link(store, h);
        if (!batch->error && batch->sync) {
            wr_horizon_publish(h, true, true, true);
            atomic_store_explicit(&link->done_synced, h->sequence, memory_order_release);
            atomic_store_explicit(&link->done_head, h->sequence, memory_order_release);
        }
        /* Last: from now on the region of that client may go. */
        atomic_fetch_sub_explicit(&link->batches, 1, memory_order_release);
    }
    if (!batch->error) {
        /* SYNC rolled-durable, durable-mark, confirmed-below: pair with the acquires in files.c, append.c and file_life.c */
        if (batch->last) atomic_store_explicit(&store->durable_below, batch->file + 1, memory_order_release);
        uint64_t mark = wr_store_mark_of(wr_file_of(batch->file), batch->last ? UINT32_MAX : batch->to);
        if (batch->sync) atomic_store_explicit(&store->durable_mark, mark, memory_order_release);
        if (batch->note > atomic_load_explicit(&store->confirmed_below, memory_order_relaxed))
            atomic_store_explicit(&store->confirmed_below, batch->note, memory_order_release);
    }
    wr_crash_point(store->server->super, WR_CRASH_BATCH_DONE);
    atomic_fetch_add_explicit(&store->done_n, 1, memory_order_release);
}

/* ---- loop ---- */

static inline void raise_to(_Atomic uint64_t *word, uint64_t *told, uint64_t to) {
    if (*told >= to) return;
    *told = to;
    if (atomic_load_explicit(word, memory_order_relaxed) < to)
        /* SYNC horizon: pairs with the client's acquire */
        atomic_store_explicit(word, to, memory_order_release);
}

bool wr_store_confirm(wr_store *store, uint32_t slot) {
    wr_store_link *link = &store->links[slot];
    wr_link *shared = wr_store_shared_link(store, slot);
    uint64_t told = link->told_head + link->told_written + link->told_synced;
    if (!store->persistent) raise_to(&shared->head, &link->told_head, link->processed);
    if (link->told_head < link->processed && atomic_load_explicit(&link->done_head, memory_order_acquire) >= link->effect)
        raise_to(&shared->head, &link->told_head, link->processed);
    if (link->told_written < link->processed && atomic_load_explicit(&link->done_written, memory_order_acquire) >= link->effect)
        raise_to(&shared->written, &link->told_written, link->processed);
    if (link->told_synced < link->processed && atomic_load_explicit(&link->done_synced, memory_order_acquire) >= link->effect)
        raise_to(&shared->synced, &link->told_synced, link->processed);
    return link->told_head + link->told_written + link->told_synced != told;
}

bool wr_store_sync_due(const wr_store *store, uint64_t now) {
    if (!store->unsynced_since) return false;
    const uint64_t tick = store->server->tick_ns;
    return now - store->sealed_at >= tick || now - store->unsynced_since >= (tick > UNSYNCED_NS_MAX ? tick : UNSYNCED_NS_MAX);
}

void wr_store_seal(wr_store *store, uint64_t now) {
    wr_store_server *server = store->server;
    const wr_log_state *state = wr_log_look(store->log);
    bool sync = store->persistent && (store->want_sync || state->unsealed_sync);
    wr_horizon horizons[WR_CLIENT_SLOTS];
    uint32_t n = 0;
    for (uint32_t i = 0; i < server->active_n; i++) {
        wr_store_link *link = &store->links[server->active[i]];
        if (server->finished[server->active[i]]) continue; /* its region may go, and its slot be another's */
        if (!link->active || (link->effect <= link->posted && !(sync && link->effect > link->posted_sync))) continue;
        horizons[n++] = (wr_horizon){&server->views[server->active[i]], store->number, link->effect};
        /* Counted before the committer can see it. */
        atomic_fetch_add_explicit(&link->batches, 1, memory_order_relaxed);
    }
    bool nobody = sync && store->force_sync && !n;
    if (nobody) horizons[n++] = (wr_horizon){NULL, store->number, 0}; /* so that there is a batch even when all is sealed */
    uint64_t append = state->append;
    if (wr_log_seal(store->log, sync, wr_store_confirmed_below(store), horizons, n)) { /* all batch slots are taken: the next round tries again */
        for (uint32_t i = 0; i < n - nobody; i++)
            atomic_fetch_sub_explicit(&store->links[horizons[i].view - server->views].batches, 1, memory_order_relaxed);
        return;
    }
    if (state->append > append) { /* padding */
        wr_row_add(&store->current_row->file_size, state->append - append);
        store->file_bytes_sum += state->append - append;
    }
    if (sync) store->force_sync = false;
    for (uint32_t i = 0; i < n - nobody; i++) {
        wr_store_link *link = &store->links[horizons[i].view - server->views];
        link->posted = horizons[i].sequence;
        if (sync) link->posted_sync = horizons[i].sequence;
    }
    store->want_written = store->effects = false;
    if (sync || !store->persistent) store->want_sync = false;
    store->pending_since = 0;
    if (sync) {
        store->unsynced_since = 0;
    } else if (store->persistent) {
        store->sealed_at = now;
        if (!store->unsynced_since) store->unsynced_since = now;
    }
}

bool wr_store_wants_seal(const wr_store *store, bool more, uint64_t now) {
    const wr_log_state *state = wr_log_look(store->log);
    if (state->failed || state->full) return false;
    uint64_t bytes = wr_store_unsealed_bytes(store);
    bool want = store->want_sync || store->want_written || wr_store_sync_due(store, now);
    if (!bytes && !store->effects && !want) return false;
    if (bytes >= store->server->commit_bytes) return true;
    if (want && !state->busy && (!more || bytes >= SEAL_BYTES_MIN)) return true;
    return store->pending_since && now - store->pending_since >= store->server->tick_ns && !(want && state->busy);
}
