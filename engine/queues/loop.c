/* The loop of a queue worker: rounds, events, sleep. Declared in queues/loop.h.
 *
 * A round: up to 512 commands of each link, fewer when they are for many rows; then, once for all, the ACK frames of
 * the round, after which the shared delivery slots are freed and `processed` rises; then the stores, the journal's
 * seal, deliveries, confirms.
 */
#include "ipc/core/futex.h"
#include "kernel/delivery.h"
#include "queues/barred.h"
#include "queues/command.h"
#include "queues/commands.h"
#include "queues/dead_letters.h"
#include "queues/delivery.h"
#include "queues/exclusive.h"
#include "queues/horizons.h"
#include "queues/journal.h"
#include "queues/links.h"
#include "queues/loop.h"
#include "queues/overdue.h"
#include "queues/owed.h"
#include "queues/pages.h"
#include "queues/policy.h"
#include "queues/registry.h"
#include "queues/rows.h"
#include "queues/statistics.h"
#include "queues/store_side.h"
#include "queues/stretch.h"

#define SLEEP_NS 50000000ull
#define SINGLES 8

static uint32_t process_link(wr_queue_engine *e, wr_qlink *l) {
    if (l->evicted || l->finished || !wr_link_resume(e, l)) return 0;
    wr_link *link = wr_link_shared(e, l);
    /* SYNC command-visible: pairs with the client's release store of tail */
    uint64_t tail = atomic_load_explicit(&link->tail, memory_order_acquire);
    uint64_t n = tail - l->next;
    if (!n) return 0;
    if (n > e->geometry.ring_records) {
        wr_link_evict(e, l, WR_EVICTED_TAIL);
        return 1;
    }
    if (n > l->limit - l->next) n = l->limit - l->next;
    if (n > WR_BATCH_COMMANDS) n = WR_BATCH_COMMANDS;
    uint32_t done = 0;
    uint64_t rows = 0;
    uint64_t singles = 0; /* below it commands are looked at one by one: what is not plain comes rarely alone */
    while (done < n && rows < WR_BATCH_ROWS) {
        wr_command *record = wr_view_command(&l->view, e->o.server, l->next);
        if (record->op == WR_OP_PUBLISH && l->next >= singles) {
            uint32_t plain = wr_publish_stretch(e, l, n - done, &rows);
            l->next += plain;
            done += plain;
            if (plain) continue;
            singles = l->next + SINGLES;
        }
        __builtin_prefetch((const void *)wr_view_command(&l->view, e->o.server, l->next + 4));
        wr_command c;
        memcpy((void *)&c, (const void *)record, sizeof c); /* once: the client may change it */
        bool told = l->next < l->takeup_processed && l->next < l->takeup_tail;
        if (!told || c.op == WR_OP_PUBLISH) {
            if (wr_command_execute(e, l, &c, record, l->next) == WR_WAIT) break;
            if (told) atomic_store_explicit(&record->result, atomic_load_explicit(&c.result, memory_order_relaxed), memory_order_relaxed);
            if (c.op == WR_OP_PUBLISH && atomic_load_explicit(&record->result, memory_order_relaxed) != WR_RESULT_OK)
                l->unusual_until = l->next + 1;
            /* It was executed, so what it says of its length holds. */
            if (c.op == WR_OP_PUBLISH) rows += c.flags & WR_FLAG_ROUTES ? c.queue : 1;
            else if (c.op == WR_OP_ACK || c.op == WR_OP_NACK) rows += c.count;
        }
        l->next++;
        done++;
    }
    if (done) l->spoken = true;
    e->processed_n += done;
    return done;
}

/* The frames of the round's acks, then what they allow: free slots, raise `processed`. False: the journal has no
 * room yet. */
static bool finish_round(wr_queue_engine *e) {
    if (e->deaths_n && wr_dead_letters_write(e) == EAGAIN) {
        e->stalled = true;
        return false;
    }
    if (e->ranges_n) {
        if (wr_journal_acks(e) == EAGAIN) {
            e->stalled = true;
            return false;
        }
    } else {
        e->round++; /* gates of one round are merged */
    }
    e->stalled = false;
    if (e->changed_n) wr_queue_stats_count(e);
    for (uint32_t i = 0; i < e->links_n; i++) {
        wr_qlink *l = e->links[e->order[i]];
        for (uint32_t r = 0; r < l->release_n; r++) {
            uint32_t slot = l->release[r];
            atomic_store_explicit(&wr_view_delivery(&l->view, e->o.server, slot)->state, WR_DELIVERY_FREE, memory_order_release);
            l->free_slots[l->free_n++] = slot;
        }
        if (l->release_n && l->starved) {
            l->starved = false;
            for (wr_consumer *c = l->consumers; c; c = c->next)
                if (c->active) wr_queue_wake(e, c->queue);
        }
        l->release_n = 0;
        if (!l->spoken) continue;
        l->spoken = false;
        wr_link *link = wr_link_shared(e, l);
        if (l->unusual_until) atomic_store_explicit(&link->unusual_until, l->unusual_until, memory_order_relaxed);
        /* SYNC processed-visible: pairs with the client's acquire; results below are complete. Never lowered after a
         * restart. */
        if (atomic_load_explicit(&link->processed, memory_order_relaxed) < l->next || l->next >= l->takeup_tail)
            atomic_store_explicit(&link->processed, l->next, memory_order_release);
        wr_view_tell(&l->view, WR_WAITS_LOOP(WR_NEWS_PROCESSED));
    }
    return true;
}

static void publish_counters(wr_queue_engine *e, uint64_t now) {
#define PUT(field, value) atomic_store_explicit(&e->me->field, value, memory_order_relaxed)
    PUT(messages, e->entries_n);
    PUT(valid_bytes, e->bytes);
    PUT(processed_n, e->processed_n);
    PUT(published_n, e->published_n);
    PUT(delivered_n, e->delivered_n);
    PUT(acked_n, e->acked_n);
    PUT(evicted_n, e->evicted_n);
    PUT(wakes_n, e->wakes_n);
    PUT(files, e->files.n + e->data_files.n);
    PUT(file_bytes_sum, (e->files.n + e->data_files.n) * e->o.file_bytes);
    const wr_log_state *state = wr_log_look(e->log);
    PUT(commits_n, state->commits_n);
    PUT(syncs_n, state->syncs_n);
    PUT(commit_ns_sum, state->commit_ns_sum);
    PUT(written_n, e->published_n);
#undef PUT
    if (e->dirty_n) wr_queue_stats_write(e);
    e->last_stats_ns = now;
    wr_pages_look(e, now);
}

/* One turn over everything. True when something moved. */
static bool run_round(wr_queue_engine *e) {
    bool any = false;
    e->round_ms = wr_wall_ms();
    if (e->stalled) {
        if (finish_round(e)) any = true;
    } else {
        wr_barred_look(e);
        /* Before the links: what they publish now is offered to consumers before a queue is cut to its length. */
        if (e->timed_n) any |= wr_policy_turn(e);
        if (!wr_journal_tight(e))
            for (uint32_t i = 0; i < e->links_n; i++) any |= process_link(e, e->links[e->order[i]]) != 0;
        for (uint32_t i = 0; i < e->links_n; i++) wr_link_sweep(e, e->links[e->order[i]]);
        if (e->watched_n) any |= wr_overdue_turn(e);
        if (e->early) wr_exclusive_turn(e);
        finish_round(e);
    }
    /* While slots wait to be freed nothing new is handed out: a kill now would leave two slots for one message. */
    if (!e->stalled) any |= wr_deliver(e);
    any |= wr_queue_store_round(e);
    if (wr_rows_bytes(e) > e->rows_limit) wr_pages_trim(e, 0);
    if (e->first_unsealed_ns || e->want_commit || e->unsynced) any |= wr_journal_seal(e, wr_now_ns(), false);
    for (uint32_t i = 0; i < e->links_n; i++) {
        wr_qlink *l = e->links[e->order[i]];
        if (l->gates_first != l->gates_next) any |= wr_link_drop_gates(e, l);
        if (!e->stalled) wr_link_confirm(e, l); /* `head` must not pass what the next worker has to execute again */
    }
    return any;
}

/* ---- events and sleep ---- */

static uint32_t events_now(wr_queue_engine *e) {
    uint32_t events = 0;
    wr_superblock *super = e->o.super;
    if (atomic_load_explicit(&super->slots_version, memory_order_acquire) != e->seen_slots_version) events |= WR_QUEUE_EVENT_SLOTS_CHANGED;
    /* Changes that do not concern this worker are read in its tick. */
    if (e->unknown_waiting || atomic_load_explicit(&e->me->queues_version, memory_order_acquire) > e->seen_catalog_version)
        events |= WR_QUEUE_EVENT_CATALOG_CHANGED;
    if (atomic_load_explicit(&e->stop, memory_order_relaxed) ||
        atomic_load_explicit(&super->state, memory_order_acquire) == WR_NODE_DRAINING)
        events |= e->offered & WR_QUEUE_EVENT_STOP ? 0 : WR_QUEUE_EVENT_STOP;
    /* taken when it is told, not when it is seen */
    if (atomic_load_explicit(&e->kick, memory_order_relaxed)) events |= WR_QUEUE_EVENT_KICK;
    const wr_log_state *state = wr_log_look(e->log);
    /* A worker with messages has files ahead: the next start gives them back, and so can begin a journal on a full disk. */
    bool used = e->entries_n || state->append > WR_FILE_HEADER_BYTES + WR_PAGE_BYTES;
    if ((state->wants_next || (used && !state->has_next)) && !(e->offered & WR_QUEUE_EVENT_NEED_FILE)) events |= WR_QUEUE_EVENT_NEED_FILE;
    if (state->failed && !e->failed_told) {
        e->failed_told = true;
        atomic_store_explicit(&e->me->error, (uint32_t)state->failed, memory_order_release);
        atomic_fetch_or_explicit(&e->me->alarms, WR_ALARM_SYNC_FAILED, memory_order_relaxed);
        for (uint32_t i = 0; i < e->links_n; i++) wr_view_wake(&e->links[e->order[i]]->view);
        events |= WR_QUEUE_EVENT_LOG_FAILED;
    }
    const wr_log_state *transient = wr_log_look(e->transient_log);
    if ((transient->wants_next || (used && !transient->has_file && !transient->has_next)) && !(e->offered & WR_QUEUE_EVENT_NEED_TRANSIENT_FILE)) events |= WR_QUEUE_EVENT_NEED_TRANSIENT_FILE;
    if (e->files.n > 1) {
        if (e->files.live[0] == 0) {
            if (!(e->offered & WR_QUEUE_EVENT_FILES_EMPTY) && wr_journal_may_delete(e, e->files.first)) events |= WR_QUEUE_EVENT_FILES_EMPTY;
        } else if ((e->files.n > e->o.journal_files_max || (e->files.n > 2 && wr_pages_short(e))) &&
                   !(e->offered & WR_QUEUE_EVENT_FILES_MANY) && wr_journal_may_delete(e, e->files.first)) {
            events |= WR_QUEUE_EVENT_FILES_MANY;
        }
    }
    if (wr_segment_acks_many(e)) events |= WR_QUEUE_EVENT_FILES_EMPTY & ~e->offered;
    if (e->transient_files.n > 1 && e->transient_files.live[0] == 0 && !(e->offered & WR_QUEUE_EVENT_FILES_EMPTY)) events |= WR_QUEUE_EVENT_FILES_EMPTY;
    for (uint32_t i = 0; i < e->links_n; i++) {
        const wr_qlink *l = e->links[e->order[i]];
        if (l->pause == WR_PAUSE_CONTROL && !(e->offered & WR_QUEUE_EVENT_CONTROL)) events |= WR_QUEUE_EVENT_CONTROL;
        if (l->finished && !(e->offered & WR_QUEUE_EVENT_FINISHED)) events |= WR_QUEUE_EVENT_FINISHED;
    }
    for (uint32_t s = 0; s < 2 && e->has_port && !(e->offered & WR_QUEUE_EVENT_STORE_EPOCH); s++) {
        wr_server *server = wr_superblock_server(super, s);
        if (atomic_load_explicit(&server->state, memory_order_acquire) == WR_SERVER_READY &&
            atomic_load_explicit(&server->epoch, memory_order_acquire) != e->stores[s].epoch)
            events |= WR_QUEUE_EVENT_STORE_EPOCH;
    }
    return events;
}

uint32_t wr_queue_run(wr_queue_engine *e, uint64_t max_ns, bool until_event) {
    uint64_t now = wr_now_ns(), deadline = now + max_ns, idle_since = 0;
    bool just_slept = false;
    for (uint32_t turn = 0;; turn++) {
        bool any = run_round(e);
        uint32_t events = events_now(e);
        if (any) {
            if (just_slept) e->spin_ns = 2 * e->spin_ns + 1000 < e->o.spin_ns ? 2 * e->spin_ns + 1000 : e->o.spin_ns;
            just_slept = false;
            idle_since = 0;
            if (turn % 16 == 15 || events) {
                now = wr_now_ns();
                if (now - e->last_stats_ns > 2000000) publish_counters(e, now);
                if (!events && now < deadline) continue;
            } else {
                continue;
            }
        } else {
            now = wr_now_ns();
        }
        if (events || now >= deadline || (!any && !until_event)) {
            publish_counters(e, now);
            if (events & WR_QUEUE_EVENT_KICK) atomic_exchange(&e->kick, 0);
            return events ? events : WR_QUEUE_EVENT_TIMER;
        }
        if (!idle_since) idle_since = now;
        if (now - idle_since < e->spin_ns) {
            wr_cpu_relax();
            continue;
        }
        e->spin_ns -= e->spin_ns / 8;
        if (e->dirty_n || e->last_stats_ns + 10000000 < now) publish_counters(e, now);
        /* SYNC sleep: announce, look once more, then sleep; who publishes work rings after it (futex.h) */
        atomic_store_explicit(&e->me->sleeping, 1, memory_order_relaxed);
        atomic_thread_fence(memory_order_seq_cst);
        if (run_round(e) || events_now(e)) {
            atomic_store_explicit(&e->me->sleeping, 0, memory_order_relaxed);
            idle_since = 0;
            continue;
        }
        uint64_t sleep = deadline - now < SLEEP_NS ? deadline - now : SLEEP_NS;
        if (e->first_unsealed_ns && sleep > 1000000) sleep = 1000000;
        if (e->unsynced && sleep > e->o.tick_ns) sleep = e->o.tick_ns;
        if (e->watched_n) sleep = wr_overdue_sleep_ns(e, sleep);
        if (e->timed_n && sleep) sleep = wr_policy_sleep_ns(e, sleep);
        if (!sleep) {
            atomic_store_explicit(&e->me->sleeping, 0, memory_order_relaxed);
            continue;
        }
        int error = wr_futex_wait(&e->me->sleeping, 1, sleep);
        atomic_store_explicit(&e->me->sleeping, 0, memory_order_relaxed);
        e->wakes_n++;
        just_slept = error != ETIMEDOUT && wr_now_ns() - now < 100000;
        idle_since = 0;
        if (error == EINTR) {
            publish_counters(e, wr_now_ns());
            return WR_QUEUE_EVENT_TIMER; /* a signal: Python must see it */
        }
    }
}
