/* The store server's loop: links, horizons, group commit, sleeping. Invariants: store/store.h; protocol: design note 001, section 2.
 *
 * Threads: everything here runs on the loop thread but batch_written and batch_done (committer) and wr_store_server_kick.
 * The committer raises a link's words for effects that it made durable; the loop raises them for commands without effect,
 * and only when no effect before them is under way. So the two never write a link's words at the same time.
 */
#include "kernel/racy.h"
#include "store/command.h"
#include <stdlib.h>

#define ROUND_COMMANDS 512
#define AHEAD 16
#define SEAL_BYTES_MIN (128u << 10) /* while more commands wait, a commit begins with so much */
#define SLEEP_NS 50000000ull
#define TIMER_NS 250000000ull
#define SPIN_NS_MIN 2000ull
#define DYING_NS 60000000000ull
#define SCRUB_TICKS 64          /* timer ticks in which the whole directory is looked through */

/* ---- committer ---- */

static wr_store_link *horizon_link(wr_store *store, const wr_horizon *h) { return &store->links[h->view - store->server->views]; }

static void batch_written(void *context, const wr_batch *batch) {
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

static void batch_done(void *context, const wr_batch *batch) {
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
        /* SYNC rolled-durable, settled-gate: pair with the acquires in store/collect.c */
        if (batch->last) atomic_store_explicit(&store->durable_file, batch->file + 1, memory_order_release);
        if (batch->sync)
            atomic_store_explicit(&store->durable_mark, (batch->file + 1) << 32 | (batch->last ? UINT32_MAX : batch->to), memory_order_release);
        if (batch->gate > atomic_load_explicit(&store->settled_gate, memory_order_relaxed))
            atomic_store_explicit(&store->settled_gate, batch->gate, memory_order_release);
    }
    wr_crash_point(store->server->super, WR_CRASH_BATCH_DONE);
    atomic_fetch_add_explicit(&store->done_n, 1, memory_order_release);
}

/* ---- making ---- */

int wr_store_server_init(wr_store_server *server, wr_superblock *super, uint64_t commit_bytes, uint64_t tick_ns,
                         uint64_t spin_ns) {
    memset((void *)server, 0, sizeof *server);
    server->super = super;
    server->commit_bytes = commit_bytes;
    server->tick_ns = tick_ns;
    server->spin_ns_max = server->spin_ns = spin_ns;
    server->dying_ns = DYING_NS;
    server->slots_seen = UINT64_MAX;
    uint32_t workers = super->servers_n > WR_SERVER_WORKER_FIRST ? super->servers_n - WR_SERVER_WORKER_FIRST : 0;
    server->workers_all = workers >= 32 ? UINT32_MAX : (1u << workers) - 1;
    server->ids = malloc(32768 * 16);
    server->ends = malloc((WR_BATCH_COUNT_MAX + 1) * sizeof *server->ends);
    if (!server->ids || !server->ends) {
        free(server->ids);
        free(server->ends);
        return ENOMEM;
    }
    for (uint32_t number = 0; number < 2; number++) {
        wr_store *store = &server->stores[number];
        store->server = server;
        store->number = number;
        store->persistent = number == WR_SERVER_STORE_PERSISTENT;
        store->row = wr_superblock_server(super, number);
        store->folder = -1;
    }
    return 0;
}

void wr_store_server_free(wr_store_server *server) {
    for (uint32_t number = 0; number < 2; number++) {
        wr_store *store = &server->stores[number];
        wr_log_free(store->log);
        if (store->open) wr_index_free(&store->index);
        wr_list_free(store->list);
        for (uint32_t i = 0; i < store->rolled_n; i++) wr_list_free(store->rolled[i]);
        for (uint32_t i = 0; i < WR_STORE_OPEN_FILES; i++)
            if (store->open_files[i].file) close(store->open_files[i].fd);
        free(store->rolled);
        free(store->marks);
        free(store->empty);
        free(store->gone);
        free(store->waters);
        free(store->compare);
    }
    free(server->ids);
    free(server->ends);
}

int wr_store_open(wr_store_server *server, uint32_t number, const wr_store_regions *r) {
    wr_store *store = &server->stores[number];
    const wr_superblock *super = server->super;
    uint32_t rows = super->directory_rows, files = super->summary_rows;
    if (number > 1 || store->open || rows < WR_DIRECTORY_WAYS || rows & (rows - 1) || files & (files - 1) || !files ||
        r->directory_bytes < (uint64_t)rows * 8 || r->summary_bytes < (uint64_t)files * sizeof(wr_summary_row))
        return EINVAL;
    int error = wr_index_init(&store->index, r->index, r->index_bytes, r->dense, r->dense_bytes);
    if (error) return error;
    store->marks = calloc(files, sizeof *store->marks);
    if (store->marks)
        store->log = wr_log_new(r->images, r->images_bytes, super->images_n, super->file_bytes, store->persistent, batch_done, store);
    if (!store->log) {
        error = store->marks ? errno : ENOMEM;
        wr_index_free(&store->index);
        free(store->marks);
        store->marks = NULL;
        return error;
    }
    wr_log_on_written(store->log, batch_written);
    store->state = wr_log_look(store->log);
    store->images = r->images;
    store->index_count = 1;
    store->settle_check = true;
    store->lost_before = atomic_load_explicit(&store->row->lost_n, memory_order_relaxed);
    store->directory = r->directory;
    store->directory_rows = rows;
    store->summary = r->summary;
    store->summary_rows = files;
    store->open = true;
    return 0;
}

void wr_store_set_folder(wr_store *store, int fd) { store->folder = fd; }

/* ---- links ---- */

/* Commands below it are executed. */
static uint64_t tail_of(const wr_store *store, uint32_t slot) {
    const wr_store_server *server = store->server;
    const wr_store_link *link = &store->links[slot];
    uint64_t tail = server->closing[slot] ? link->end : atomic_load_explicit(&wr_store_shared_link(store, slot)->tail, memory_order_acquire);
    /* The next server executes the rest: what were executed after the last sync would be in the list of the file, and not in the file. */
    return server->frozen && tail - link->processed > link->limit - link->processed ? link->limit : tail;
}

static void evict(wr_store *store, uint32_t slot, uint32_t reason) {
    wr_store_link *link = &store->links[slot];
    link->evicted = true;
    store->evicted_n++;
    atomic_store_explicit(&wr_store_shared_link(store, slot)->evicted, reason, memory_order_release);
    wr_directory_sweep(store->directory, store->directory_rows, slot);
    wr_view_wake(&store->server->views[slot]);
}

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

/* The server is announced: readers look into its index, and find there what is on disk (design note 003, section 12, 6). */
static void batches_on_disk(wr_store *store, uint32_t slot, uint64_t tail) {
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
    wr_geometry g = wr_geometry_of(server->super);
    int error = wr_view_init(&server->views[slot], region, bytes, &g);
    if (error) return error;
    /* A queue worker does not sleep in its region, but on its server's word. */
    uint32_t worker = holder < 0 ? g.servers_n : WR_SERVER_WORKER_FIRST + (uint32_t)holder;
    if (worker < g.servers_n) server->views[slot].bell = &wr_superblock_server(server->super, worker)->sleeping;
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
            evict(store, slot, WR_EVICTED_TAKEUP);
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
            store->links[server->active[i]].limit = tail_of(store, server->active[i]);
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
    for (uint32_t i = 0; i < server->active_n; i++)
        if (server->active[i] == slot) server->active[i--] = server->active[--server->active_n];
    for (uint32_t number = 0; number < 2; number++) {
        server->stores[number].links[slot].active = false;
        server->stores[number].empty_check = true; /* it may have been a dying one */
    }
    return 0;
}

/* A closing slot: when nothing of it is left, say so. */
static void finish(wr_store_server *server, uint32_t slot) {
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

static inline void raise_to(_Atomic uint64_t *word, uint64_t *told, uint64_t to) {
    if (*told >= to) return;
    *told = to;
    if (atomic_load_explicit(word, memory_order_relaxed) < to)
        /* SYNC horizon: pairs with the client's acquire */
        atomic_store_explicit(word, to, memory_order_release);
}

/* Confirm commands without effect when everything before them is confirmed. */
static bool confirm(wr_store *store, uint32_t slot) {
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

/* Does a dead incarnation of the same queue worker still have commands to be executed? Then its successor waits: a late
 * RESYNC or STORE_WRITE of the old one would undo what the new one does (docs/design/002-model.md, 3). */
static bool predecessor_unfinished(const wr_store_server *server, uint32_t slot) {
    if (server->holder[slot] < 0) return false;
    for (uint32_t i = 0; i < server->active_n; i++) {
        uint32_t other = server->active[i];
        if (server->holder[other] == server->holder[slot] && server->client_epoch[other] < server->client_epoch[slot] &&
            !server->finished[other])
            return true;
    }
    return false;
}

/* Commands of one link. Returns how many were executed; *more: the link has others ready. */
static uint32_t serve(wr_store *store, uint32_t slot, bool *more) {
    wr_store_server *server = store->server;
    wr_store_link *link = &store->links[slot];
    if (!link->active || link->evicted || predecessor_unfinished(server, slot)) return 0;
    wr_view *view = &server->views[slot];
    wr_link *shared = wr_store_shared_link(store, slot);
    /* SYNC command-visible: pairs with the release in wr_port_submit */
    uint64_t tail = tail_of(store, slot);
    uint64_t from = link->processed;
    if (tail != from) {
        /* `processed` is ahead of `head`, so the window is checked against the ring from what the client may have reused. */
        if (tail - from > view->g.ring_records) {
            evict(store, slot, WR_EVICTED_TAIL);
            return 0;
        }
        if (!link->taken_up) batches_on_disk(store, slot, tail);
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
            if (outcome == WR_STORE_EVICTED) evict(store, slot, reason);
            break;
        }
        if (n == to || again) link->stalled = false;
        link->processed = n;
        /* SYNC horizon: results are complete below `processed` */
        if (n > atomic_load_explicit(&shared->processed, memory_order_relaxed))
            atomic_store_explicit(&shared->processed, n, memory_order_release);
        store->processed_n += n - from;
        bool raised = confirm(store, slot);
        if ((answers && n != from) || raised) wr_view_wake(view);
        *more |= n < tail && !link->stalled && !link->evicted;
        return (uint32_t)(n - from) + again;
    }
    if (link->told_synced < link->processed && confirm(store, slot)) wr_view_wake(view);
    return 0;
}

static uint64_t unsealed_bytes(const wr_store *store) {
    const wr_log_state *state = store->state;
    if (!state->has_file || state->append <= WR_FILE_HEADER_BYTES) return 0;
    return state->append - state->sealed_to;
}

/* Post a batch with every horizon that it covers. */
static void seal(wr_store *store) {
    wr_store_server *server = store->server;
    const wr_log_state *state = wr_log_look(store->log);
    bool sync = store->persistent && (store->want_sync || state->unsealed_sync);
    wr_horizon horizons[WR_CLIENT_SLOTS];
    uint32_t n = 0;
    for (uint32_t i = 0; i < server->active_n; i++) {
        wr_store_link *link = &store->links[server->active[i]];
        if (!link->active || (link->effect <= link->posted && !(sync && link->effect > link->posted_sync))) continue;
        horizons[n++] = (wr_horizon){&server->views[server->active[i]], store->number, link->effect};
        /* Counted before the committer can see it. */
        atomic_fetch_add_explicit(&link->batches, 1, memory_order_relaxed);
    }
    bool nobody = sync && store->force_sync && !n;
    if (nobody) horizons[n++] = (wr_horizon){NULL, store->number, 0}; /* so that there is a batch even when all is sealed */
    uint64_t append = state->append;
    if (wr_log_seal(store->log, sync, wr_store_settle_gate(store), horizons, n)) { /* all batch slots are taken: the next round tries again */
        for (uint32_t i = 0; i < n - nobody; i++)
            atomic_fetch_sub_explicit(&store->links[horizons[i].view - server->views].batches, 1, memory_order_relaxed);
        return;
    }
    if (state->append > append) { /* padding */
        wr_store_add(&store->current_row->file_size, state->append - append);
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
}

static bool wants_seal(const wr_store *store, bool more, uint64_t now) {
    const wr_log_state *state = wr_log_look(store->log);
    if (state->failed || state->full) return false;
    uint64_t bytes = unsealed_bytes(store);
    bool want = store->want_sync || store->want_written;
    if (!bytes && !store->effects && !want) return false;
    if (bytes >= store->server->commit_bytes) return true;
    if (want && !state->busy && (!more || bytes >= SEAL_BYTES_MIN)) return true;
    return store->pending_since && now - store->pending_since >= store->server->tick_ns && !(want && state->busy);
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

/* Who stays dying would keep files from being collected for ever. Whose commands wait (for the disk, for a worker) is not to blame. */
static void end_dying(wr_store *store, uint64_t now) {
    for (uint32_t i = 0; i < store->server->active_n; i++) {
        uint32_t slot = store->server->active[i];
        wr_store_link *link = &store->links[slot];
        if (!link->active || !link->dying || link->evicted) continue;
        if (!link->dying_since_ns || link->stalled) link->dying_since_ns = now;
        if (now - link->dying_since_ns < store->server->dying_ns) continue;
        evict(store, slot, WR_EVICTED_DYING);
        link->dying = false; /* nothing of it is executed any more */
        store->empty_check = true;
    }
}

static void clear_stalls(wr_store *store) {
    for (uint32_t i = 0; i < store->server->active_n; i++) store->links[store->server->active[i]].stalled = false;
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
        uint64_t now = 0;
        if (store->effects || store->want_sync || store->want_written || unsealed_bytes(store)) {
            now = wr_now_ns();
            if (!store->pending_since) store->pending_since = now;
            if (wants_seal(store, more_here, now)) seal(store);
        }
        wr_store_settle(store, server->timer);
        wr_store_let_empty_go(store);
        const wr_log_state *state = wr_log_look(store->log);
        if (!state->has_next && !store->file_asked && !state->failed) {
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
        if (store->rolled_n && (!store->persistent || store->rolled[0]->file < atomic_load_explicit(&store->durable_file, memory_order_relaxed)))
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
        if (server->closing[slot] && !server->finished[slot]) finish(server, slot);
    }
    return done;
}

/* Is there anything to do now? Asked after the sleep word was set, so nothing is missed. */
static bool has_work(wr_store_server *server, uint64_t now) {
    if (atomic_load_explicit(&server->kicked, memory_order_acquire)) return true;
    if (atomic_load_explicit(&server->super->slots_version, memory_order_acquire) != server->slots_seen) return true;
    if (atomic_load_explicit(&server->super->state, memory_order_relaxed) == WR_NODE_DRAINING && !server->draining) return true;
    for (uint32_t number = 0; number < 2; number++) {
        wr_store *store = &server->stores[number];
        if (!store->open) continue;
        if (atomic_load_explicit(&store->done_n, memory_order_acquire) != store->done_seen) return true;
        if (wants_seal(store, false, now)) return true;
        for (uint32_t i = 0; i < server->active_n; i++) {
            uint32_t slot = server->active[i];
            const wr_store_link *link = &store->links[slot];
            if (!link->active || link->evicted || link->stalled || predecessor_unfinished(server, slot)) continue;
            if (tail_of(store, slot) != link->processed) return true;
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
        if (!store->open || !store->pending_since) continue;
        uint64_t due = store->pending_since + server->tick_ns;
        uint64_t left = due > now ? due - now : 0;
        /* A busy committer rings when it is done. */
        if (left < limit && !wr_log_look(store->log)->busy) limit = left;
    }
    if (!limit) return 0;
    atomic_store_explicit(word, 1, memory_order_relaxed);
    atomic_thread_fence(memory_order_seq_cst);
    int error = has_work(server, now) ? 0 : wr_futex_wait(word, 1, limit);
    atomic_store_explicit(word, 0, memory_order_relaxed);
    server->wakes_n++;
    return error;
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
    const wr_summary_row *last = store->last_file ? wr_store_file(store, store->last_file - 1) : NULL;
    link->death_position = store->current ? store->current - 1 : last ? last->position_high + 1 : 0;
    link->death_offset = store->current ? store->state->append : 0;
    /* For a server that replays these commands: places on disk stay true. Before anything is masked. */
    shared->death_position = link->death_position;
    shared->death_offset = link->death_offset;
    atomic_store_explicit(&shared->death_until, until, memory_order_release);
    wr_crash_point(server->super, WR_CRASH_DYING);
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
                end_dying(store, now);
                clear_stalls(store);
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
                clear_stalls(&server->stores[number]);
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

bool wr_store_server_settle(wr_store_server *server) {
    bool settled = true;
    for (uint32_t number = 0; number < 2; number++) {
        wr_store *store = &server->stores[number];
        if (!store->open || wr_log_look(store->log)->failed) continue;
        bool open_effect = unsealed_bytes(store) > 0;
        for (uint32_t i = 0; i < server->active_n; i++) {
            uint32_t slot = server->active[i];
            const wr_store_link *link = &store->links[slot];
            if (!link->active || link->evicted) continue;
            if (tail_of(store, slot) != link->processed) settled = false;
            open_effect |= link->effect > (store->persistent ? link->posted_sync : link->posted);
            if (atomic_load_explicit(&link->done_written, memory_order_acquire) < link->effect) settled = false;
        }
        if (open_effect) {
            store->want_sync = true;
            settled = false;
        }
        if (wr_log_look(store->log)->busy) settled = false;
    }
    return settled;
}
