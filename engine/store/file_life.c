/* When a file of the store may go (design note 003, section 4).
 *
 * The life of a file: current -> rolled (its list waits until it is durable) -> replay-free (no ring replays a command of
 * it) -> empty, or a source of a collection (store/swing.c): locked -> its entries dropped or swung -> gone.
 * Everything here runs on the loop thread between two commands. Invariants: store/store.h.
 */
#include "store/file_life.h"
#include "store/append.h"
#include "store/dying.h"
#include "store/files.h"
#include <stdlib.h>

/* ---- what rings replay ---- */

uint64_t wr_store_confirmed_below(const wr_store *store) {
    /* Also: nothing is recovered that a ring may still hold (replays, below). */
    if (!wr_file_some(store->current)) return 0;
    uint64_t below = wr_file_number(store->current);
    for (uint32_t i = 0; i < store->server->active_n; i++) {
        const wr_store_link *link = &store->links[store->server->active[i]];
        if (!link->active || link->evicted) continue;
        /* Half a batch: its horizon is not posted. */
        wr_file_ref part = link->part_file;
        if (wr_file_some(part) && wr_file_number(part) < below) below = wr_file_number(part);
        if (link->replays && link->told_head < link->replays &&
            atomic_load_explicit(&link->done_head, memory_order_acquire) < link->replays) {
            return 0; /* a client begins to send when its server is there: it is not long until all of that is confirmed */
        }
    }
    return below;
}

/* All files below this number are free of replays. */
static void mark_below(wr_store *store, uint64_t below) {
    uint32_t left_to_see = store->replayable_n;
    wr_file_ref next;
    for (wr_file_ref file = store->last_file; wr_file_some(file) && left_to_see; file = next) {
        uint64_t number = wr_file_number(file);
        wr_summary_row *row = wr_store_file(store, number);
        next = wr_row_left(row);
        if (wr_row_replay_free(row) || *wr_store_marks(store, number) & WR_FILE_OUTPUT) continue;
        left_to_see--;
        if (wr_file_is(store->current, number) || number >= below) continue;
        atomic_store_explicit(&row->replay_free, 1, memory_order_release);
        store->replayable_n--;
        if (!wr_row_load(&row->valid_total_size)) wr_store_note_empty(store, number);
    }
}

/* Nor does the committer write: a file that goes may be another one's space in a moment. */
static bool nothing_open(const wr_store *store) {
    if (wr_log_look(store->log)->busy) return false;
    for (uint32_t i = 0; i < store->server->active_n; i++) {
        const wr_store_link *link = &store->links[store->server->active[i]];
        if (!link->active || link->evicted) continue;
        if (wr_file_some(link->part_file)) return false;
        if (atomic_load_explicit(&link->done_head, memory_order_acquire) < link->effect) return false;
    }
    return true;
}

void wr_store_mark_replay_free(wr_store *store, bool timer) {
    /* SYNC confirmed-below: pairs with the release in wr_store_log_done */
    uint64_t below = atomic_load_explicit(&store->confirmed_below, memory_order_acquire);
    timer |= store->replay_check;
    if (below <= store->confirmed_seen && !timer) return;
    if (!store->replayable_n || !wr_file_some(store->current) || wr_log_look(store->log)->failed) return;
    /* When nothing is open no batch will come that could say so. */
    if (timer && nothing_open(store)) {
        uint64_t now = wr_store_confirmed_below(store);
        if (now > below) below = now;
    }
    if (below <= store->confirmed_seen && !store->replay_check) return;
    store->replay_check = false;
    if (below > store->confirmed_seen) store->confirmed_seen = below;
    mark_below(store, below);
}

/* ---- empty files ---- */

bool wr_store_holders_unknown(const wr_store *store) {
    const wr_store_server *server = store->server;
    return store->persistent && (server->workers_resynced & server->workers_all) != server->workers_all;
}

bool wr_store_pinned(const wr_store *store, uint64_t file) {
    wr_summary_row *row = wr_store_file(store, file), *other;
    if (!row || !(*wr_store_marks(store, file) & WR_FILE_CONTROLS)) return false;
    uint32_t ghosts = store->ghosts_n - wr_row_ghosts(row);
    for (wr_file_ref left = wr_row_left(row); (other = wr_store_at(store, left)); left = wr_row_left(other)) {
        if (wr_row_ghosts(other) || wr_row_pins(row, other)) return true;
        if (!ghosts && wr_row_before_pins(other, row)) return false; /* so do all that are left of it */
    }
    return false;
}

static void find_empty(wr_store *store) {
    store->empty_lost = false;
    wr_summary_row *row;
    for (wr_file_ref file = store->first_file; (row = wr_store_at(store, file)); file = wr_row_right(row)) {
        bool noted = wr_row_locked(row) || wr_row_load(&row->valid_total_size);
        for (uint32_t i = 0; i < store->empty_n && !noted; i++) noted = store->empty[i] == wr_file_number(file);
        if (!noted) wr_store_note_empty(store, wr_file_number(file));
    }
}

void wr_store_let_empty_go(wr_store *store) {
    if (!store->empty_check || wr_store_holders_unknown(store)) return;
    store->empty_check = false;
    if (store->empty_lost) find_empty(store);
    uint64_t death = wr_store_first_death(store);
    uint32_t kept = 0;
    for (uint32_t i = 0; i < store->empty_n; i++) {
        uint64_t file = store->empty[i];
        wr_summary_row *row = wr_store_file(store, file);
        if (!row || wr_row_locked(row) || wr_row_load(&row->valid_total_size) || !wr_row_replay_free(row))
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
        if (!room) store->empty_check = true; /* no memory: nothing else would ask for it again */
        if (!room || row->position_high >= death || wr_store_pinned(store, file)) {
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

wr_file_ref wr_store_take_gone(wr_store *store) {
    for (uint32_t i = store->gone_n; i-- > 0;) {
        if (!wr_store_log_durable(store, store->gone[i].mark)) continue;
        uint64_t file = store->gone[i].file;
        store->gone[i] = store->gone[--store->gone_n];
        return wr_file_of(file);
    }
    return (wr_file_ref){0};
}

bool wr_store_gone_ready(wr_store *store) {
    for (uint32_t i = 0; i < store->gone_n; i++)
        if (wr_store_log_durable(store, store->gone[i].mark)) return true;
    return false;
}
