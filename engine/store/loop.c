/* The store server's loop: rounds over the links, events, sleeping. Invariants: store/store.h; protocol: design note 001, section 2.
 *
 * Threads: everything here runs on the loop thread but wr_store_server_kick.
 */
#include "store/loop.h"
#include "kernel/racy.h"
#include "store/batch.h"
#include "store/command.h"
#include "store/commands.h"
#include "store/dying.h"
#include "store/file_life.h"
#include "store/horizons.h"
#include "store/links.h"

#define ROUND_COMMANDS 512
#define AHEAD 16
#define SLEEP_NS 50000000ull
#define TIMER_NS 250000000ull
#define SPIN_NS_MIN 2000ull
#define SCRUB_TICKS 64          /* timer ticks in which the whole directory is looked through */

/* ---- rounds ---- */

static void prefetch(const wr_store *store, const wr_view *view, const wr_command *record) {
    uint8_t id[16];
    wr_copy_racy(id, record->id, 16);
    uint64_t hash = wr_id_hash(id);
    wr_index_prefetch(&store->index, id);
    __builtin_prefetch((const void *)&store->directory[wr_directory_bucket(hash, store->directory_rows)], 1);
    const uint8_t *blob = view->arena + (record->body & (view->g.arena_bytes - 1));
    if (record->tag == 0 && record->op == WR_OP_STORE_WRITE) {
        __builtin_prefetch(blob);
        __builtin_prefetch(blob + 64);
    }
}

/* Commands of one link. Returns how many were executed; *more: the link has others ready. */
static uint32_t serve(wr_store *store, uint32_t slot, bool *more) {
    wr_store_server *server = store->server;
    wr_store_link *link = &store->links[slot];
    if (!link->active || link->evicted || wr_store_predecessor_unfinished(server, slot)) return 0;
    wr_view *view = &server->views[slot];
    wr_link *shared = wr_store_shared_link(store, slot);
    /* SYNC command-visible: pairs with the release in wr_port_submit */
    uint64_t tail = wr_store_tail(store, slot);
    uint64_t from = link->processed;
    if (tail != from) {
        /* `processed` is ahead of `head`, so the window is checked against the ring from what the client may have reused. */
        if (tail - from > view->g.ring_records) {
            wr_store_evict(store, slot, WR_EVICTED_TAIL);
            return 0;
        }
        if (!link->taken_up) wr_store_take_up(store, slot, tail);
        uint64_t to = tail - from > ROUND_COMMANDS ? from + ROUND_COMMANDS : tail;
        bool answers = false, again = false;
        uint64_t n = from;
        store->round_messages = 0;
        for (uint64_t ahead = from; ahead < to && ahead < from + AHEAD; ahead++)
            prefetch(store, view, wr_view_command(view, store->number, ahead));
        for (; n < to; n++) {
            if (n + AHEAD < to) {
                /* The record will be changed (flying), so its line is fetched for writing before its id is looked at. */
                __builtin_prefetch((const void *)wr_view_command(view, store->number, n + 2 * AHEAD), 1);
                prefetch(store, view, wr_view_command(view, store->number, n + AHEAD));
            }
            wr_command *record = wr_view_command(view, store->number, n);
            uint32_t reason = 0;
            answers |= record->op != WR_OP_STORE_WRITE;
            int outcome = wr_store_execute(store, slot, n, record, &reason);
            again = outcome == WR_STORE_AGAIN;
            if (outcome == WR_STORE_DONE) {
                if (store->round_messages < WR_STORE_ROUND) continue;
                n++; /* enough of one link in one round */
                again = true;
                break;
            }
            link->stalled = outcome == WR_STORE_STALLED;
            if (outcome == WR_STORE_EVICTED) wr_store_evict(store, slot, reason);
            break;
        }
        if (n == to || again) link->stalled = false;
        if (link->stalled && !store->state->has_next) *more |= wr_store_free_ahead(store, slot, n, tail);
        link->processed = n;
        /* SYNC horizon: results are complete below `processed` */
        if (n > atomic_load_explicit(&shared->processed, memory_order_relaxed))
            atomic_store_explicit(&shared->processed, n, memory_order_release);
        store->processed_n += n - from;
        bool raised = wr_store_confirm(store, slot);
        if ((answers && n != from) || raised) wr_view_wake(view);
        *more |= n < tail && !link->stalled && !link->evicted;
        return (uint32_t)(n - from) + again;
    }
    if (link->told_synced < link->processed && wr_store_confirm(store, slot)) wr_view_wake(view);
    return 0;
}

static void publish_statistics(wr_store *store) {
    const wr_log_state *state = wr_log_look(store->log);
    wr_server *row = store->row;
    const struct {
        _Atomic uint64_t *to;
        uint64_t value;
    } all[] = {{&row->messages, store->messages},       {&row->files, store->files},
               {&row->valid_bytes, store->valid_bytes}, {&row->file_bytes_sum, store->file_bytes_sum},
               {&row->processed_n, store->processed_n}, {&row->written_n, store->written_n},
               {&row->eliminated_n, store->eliminated_n}, {&row->commits_n, state->commits_n},
               {&row->syncs_n, state->syncs_n},         {&row->commit_ns_sum, state->commit_ns_sum},
               {&row->evicted_n, store->evicted_n},     {&row->wakes_n, store->server->wakes_n},
               {&row->lost_n, store->lost_before + store->lost_n}, {&row->collected_n, store->collected_n},
               {&row->retired_n, store->retired_n},     {&row->copied_bytes, store->copied_bytes},
               {&row->dense_extents, store->index.extents_n}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (atomic_load_explicit(all[i].to, memory_order_relaxed) != all[i].value)
            atomic_store_explicit(all[i].to, all[i].value, memory_order_relaxed);
}

/* Rows that nobody will remove: of a slot without a client, or of no command that can be under way. Whoever maps the directory can
 * write them, and a bucket that is full of them takes no messages. A row of mine is there before `processed` passes its command. */
static void scrub(wr_store *store) {
    const wr_store_server *server = store->server;
    uint32_t n = store->directory_rows / SCRUB_TICKS + 1;
    for (uint32_t i = 0; i < n; i++, store->scrub_at++) {
        _Atomic uint64_t *at = &store->directory[store->scrub_at & (store->directory_rows - 1)];
        uint64_t word = atomic_load_explicit(at, memory_order_acquire);
        if (!word) continue;
        uint32_t slot = wr_directory_slot(word);
        const wr_store_link *link = &store->links[slot];
        bool stale;
        if (server->attached[slot] && link->active)
            stale = link->evicted || ((word - link->processed) & WR_SEQUENCE_MASK) >= server->views[slot].g.ring_records;
        else
            stale = (atomic_load_explicit(&wr_superblock_slot(server->super, slot)->claim, memory_order_acquire) & 0xff) == WR_SLOT_FREE;
        if (stale) atomic_store_explicit(at, 0, memory_order_release);
    }
}

/* One round over all links of both stores. Returns the commands executed. */
static uint32_t round_once(wr_store_server *server, bool *more) {
    uint32_t done = 0;
    for (uint32_t number = 0; number < 2; number++) {
        wr_store *store = &server->stores[number];
        if (!store->open) continue;
        bool more_here = false;
        store->done_seen = atomic_load_explicit(&store->done_n, memory_order_acquire);
        uint32_t here = 0;
        for (uint32_t i = 0; i < server->active_n; i++) here += serve(store, server->active[i], &more_here);
        bool pending = store->effects || store->want_sync || store->want_written || wr_store_unsealed_bytes(store);
        if (pending || store->unsynced_since) {
            const uint64_t now = wr_now_ns();
            if (pending && !store->pending_since) store->pending_since = now;
            if (wr_store_sync_due(store, now)) store->want_sync = store->force_sync = true;
            if (wr_store_wants_seal(store, more_here, now)) wr_store_seal(store, now);
        }
        wr_store_mark_replay_free(store, server->timer);
        wr_store_let_empty_go(store);
        const wr_log_state *state = wr_log_look(store->log);
        if (state->wants_next && !store->file_asked && !state->failed) {
            store->file_asked = true;
            server->events |= WR_STORE_EVENT_FILE;
        }
        if (wr_index_tight(&store->index) && !store->index_asked) {
            store->index_asked = true;
            server->events |= WR_STORE_EVENT_INDEX;
        }
        if (wr_index_wants_extent(&store->index) && !store->extent_asked) {
            store->extent_asked = true;
            server->events |= WR_STORE_EVENT_EXTENT;
        }
        if (store->gone_n && wr_store_gone_ready(store)) server->events |= WR_STORE_EVENT_EMPTY;
        uint64_t durable_below = atomic_load_explicit(&store->durable_below, memory_order_relaxed);
        if (store->rolled_n && (!store->persistent || store->rolled[0]->file < durable_below))
            server->events |= WR_STORE_EVENT_LIST;
        if (state->failed && !store->failed_told) {
            store->failed_told = true;
            server->events |= WR_STORE_EVENT_FAILED;
        }
        done += here;
        *more |= more_here;
    }
    server->timer = false;
    for (uint32_t i = 0; i < server->active_n; i++) {
        uint32_t slot = server->active[i];
        if (server->closing[slot] && !server->finished[slot]) wr_store_finish_slot(server, slot);
    }
    return done;
}

/* ---- waiting ---- */

/* Is there anything to do now? Asked after the sleep word was set, so nothing is missed. */
static bool has_work(wr_store_server *server, uint64_t now) {
    if (atomic_load_explicit(&server->kicked, memory_order_acquire)) return true;
    if (atomic_load_explicit(&server->super->slots_version, memory_order_acquire) != server->slots_seen) return true;
    if (atomic_load_explicit(&server->super->state, memory_order_relaxed) == WR_NODE_DRAINING && !server->draining) return true;
    for (uint32_t number = 0; number < 2; number++) {
        wr_store *store = &server->stores[number];
        if (!store->open) continue;
        if (atomic_load_explicit(&store->done_n, memory_order_acquire) != store->done_seen) return true;
        if (wr_store_wants_seal(store, false, now)) return true;
        for (uint32_t i = 0; i < server->active_n; i++) {
            uint32_t slot = server->active[i];
            const wr_store_link *link = &store->links[slot];
            if (!link->active || link->evicted || link->stalled || wr_store_predecessor_unfinished(server, slot)) continue;
            if (wr_store_tail(store, slot) != link->processed) return true;
        }
    }
    return false;
}

/* Sleep until the bell rings, a tick is due or `until`. Returns EINTR when a signal came. */
static int sleep_until(wr_store_server *server, uint64_t now, uint64_t until) {
    _Atomic uint32_t *word = &server->stores[0].row->sleeping;
    uint64_t limit = now + SLEEP_NS < until ? SLEEP_NS : until - now;
    for (uint32_t number = 0; number < 2; number++) {
        const wr_store *store = &server->stores[number];
        if (!store->open || !(store->pending_since || store->unsynced_since)) continue;
        uint64_t due = (store->pending_since ? store->pending_since : store->sealed_at) + server->tick_ns;
        uint64_t left = due > now ? due - now : 0;
        /* A busy committer rings when it is done; a log that failed takes nothing more. */
        const wr_log_state *state = wr_log_look(store->log);
        if (left < limit && !state->busy && !state->failed) limit = left;
    }
    if (!limit) return 0;
    atomic_store_explicit(word, 1, memory_order_relaxed);
    atomic_thread_fence(memory_order_seq_cst);
    int error = has_work(server, now) ? 0 : wr_futex_wait(word, 1, limit);
    atomic_store_explicit(word, 0, memory_order_relaxed);
    server->wakes_n++;
    return error;
}

void wr_store_server_kick(wr_store_server *server) {
    atomic_store_explicit(&server->kicked, 1, memory_order_release);
    wr_bell_ring(&server->stores[0].row->sleeping);
}

uint32_t wr_store_server_run(wr_store_server *server, uint64_t max_ns) {
    uint64_t now = wr_now_ns();
    uint64_t end = now + max_ns;
    uint64_t idle_since = 0;
    if (!server->timer_at) server->timer_at = now + TIMER_NS;
    for (uint32_t rounds = 1;; rounds++) {
        bool more = false;
        uint32_t done = round_once(server, &more);
        if (atomic_load_explicit(&server->super->slots_version, memory_order_acquire) != server->slots_seen)
            server->events |= WR_STORE_EVENT_SLOTS;
        if (atomic_load_explicit(&server->super->state, memory_order_relaxed) == WR_NODE_DRAINING && !server->draining)
            server->events |= WR_STORE_EVENT_STOP;
        if (atomic_load_explicit(&server->kicked, memory_order_relaxed)) {
            atomic_store_explicit(&server->kicked, 0, memory_order_relaxed);
            server->events |= WR_STORE_EVENT_KICK;
        }
        if (!done || rounds % 64 == 0) now = wr_now_ns();
        if (now >= server->timer_at) {
            server->timer_at = now + TIMER_NS;
            server->events |= WR_STORE_EVENT_TIMER;
            server->timer = true;
            for (uint32_t number = 0; number < 2; number++) {
                wr_store *store = &server->stores[number];
                if (!store->open) continue;
                wr_store_end_dying(store, now);
                wr_store_let_stalled_go_on(store);
                scrub(store);
            }
        }
        if (server->events || now >= end) break;
        if (done) {
            server->spins = true;
            if (idle_since) { /* spinning paid: it may last longer next time */
                server->spin_ns = server->spin_ns * 2 < server->spin_ns_max ? server->spin_ns * 2 : server->spin_ns_max;
                idle_since = 0;
            }
            continue;
        }
        for (uint32_t number = 0; number < 2; number++)
            if (server->stores[number].open &&
                atomic_load_explicit(&server->stores[number].done_n, memory_order_relaxed) != server->stores[number].done_seen)
                wr_store_let_stalled_go_on(&server->stores[number]);
        if (server->spins && !idle_since) idle_since = now;
        if (server->spins && now - idle_since < server->spin_ns) {
            for (int i = 0; i < 16; i++) wr_cpu_relax();
            continue;
        }
        if (server->spins && server->spin_ns > SPIN_NS_MIN) server->spin_ns /= 2;
        publish_statistics(&server->stores[0]);
        publish_statistics(&server->stores[1]);
        int error = sleep_until(server, now, end < server->timer_at ? end : server->timer_at);
        idle_since = 0;
        /* After a time-out with nothing to do there is nothing to spin for. */
        server->spins = error != ETIMEDOUT;
        now = wr_now_ns();
        if (error == EINTR) break;
    }
    for (uint32_t number = 0; number < 2; number++)
        if (server->stores[number].open) publish_statistics(&server->stores[number]);
    uint32_t events = server->events;
    server->events = 0;
    return events;
}

bool wr_store_server_all_durable(wr_store_server *server) {
    bool durable = true;
    for (uint32_t number = 0; number < 2; number++) {
        wr_store *store = &server->stores[number];
        if (!store->open || wr_log_look(store->log)->failed) continue;
        bool open_effect = wr_store_unsealed_bytes(store) > 0;
        for (uint32_t i = 0; i < server->active_n; i++) {
            uint32_t slot = server->active[i];
            const wr_store_link *link = &store->links[slot];
            if (!link->active || link->evicted || server->finished[slot]) continue;
            if (wr_store_tail(store, slot) != link->processed) durable = false;
            open_effect |= link->effect > (store->persistent ? link->posted_sync : link->posted);
            if (atomic_load_explicit(&link->done_written, memory_order_acquire) < link->effect) durable = false;
        }
        if (open_effect || store->unsynced_since) {
            store->want_sync = store->force_sync = true;
            durable = false;
        }
        if (wr_log_look(store->log)->busy) durable = false;
    }
    return durable;
}
