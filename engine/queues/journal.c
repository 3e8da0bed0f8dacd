/* Frames into the journals. Declared in queues/journal.h. */
#include "queues/delay.h"
#include "queues/horizons.h"
#include "queues/journal.h"
#include "queues/keys.h"
#include "queues/owed.h"
#include "queues/registry.h"

#define RANGES_A_FRAME 4096
#define TIGHT_BYTES (256u << 10) /* the frames of a round, and some pages of padding */

void wr_move_put(uint8_t *range, const wr_queue *from, uint64_t first, uint64_t count, const wr_queue *to, uint64_t target, uint32_t reason) {
    wr_range_put(wr_range_put(range, from->id, first, count, target), to->id, target, count, reason);
}

bool wr_journal_may_delete(wr_queue_engine *e, uint32_t file) {
    if (file >= atomic_load_explicit(&e->file_done, memory_order_acquire) || e->stalled) return false;
    bool may = true;
    pthread_mutex_lock(&e->mutex);
    for (uint32_t i = 0; i < e->links_n && may; i++) {
        const wr_qlink *l = e->links[e->order[i]];
        if (!l->evicted && l->done_head < l->takeup_tail) may = false;
        for (uint64_t g = l->gates_first; g != l->gates_next && may; g++)
            if (l->gates[g % l->gates_size].file <= file) may = false;
    }
    pthread_mutex_unlock(&e->mutex);
    return may;
}

static inline bool named(const wr_map_row *queue) { return queue->used && !wr_is_reply_queue((uint32_t)queue->a); }

/* `leave`: so many bytes stay for the frame that comes next. */
static void write_nexts(wr_queue_engine *e, uint64_t leave) {
    /* The first frame of a file: what sequences were used, because the files that say so otherwise may go. */
    uint64_t i = 0;
    while (i < e->queues.size) {
        uint64_t from = i, n = 0;
        for (; i < e->queues.size && n < RANGES_A_FRAME; i++) n += named(&e->queues.rows[i]);
        if (!n) return;
        uint64_t bytes = wr_frame_bytes(n * WR_RANGE_SIZE), offset;
        uint8_t *at = wr_log_reserve_here(e->log, bytes, leave, &offset);
        if (!at) return; /* far too little for so many queues: numbers stay known from the other frames */
        uint8_t *range = at + WR_FRAME_HEAD_BYTES;
        for (uint64_t j = from; j < i; j++) {
            if (!named(&e->queues.rows[j])) continue;
            const wr_queue *q = (const wr_queue *)(uintptr_t)e->queues.rows[j].value;
            range = wr_range_put(range, q->id, q->next, 0, 0);
        }
        wr_frame_head head = {.kind = WR_KIND_ACK, .extra = (uint32_t)n};
        wr_frame_seal(at, &head, n * WR_RANGE_SIZE, wr_log_look(e->log)->salt);
        wr_log_append(e->log, bytes, false);
    }
}

uint8_t *wr_journal_reserve(wr_queue_engine *e, bool transient, uint64_t bytes, uint64_t *offset) {
    wr_log *log = transient ? e->transient_log : e->log;
    wr_files *files = transient ? &e->transient_files : &e->files;
    for (;;) {
        uint8_t *at = wr_log_reserve(log, bytes, offset, NULL);
        if (!at) return NULL;
        const wr_log_state *state = wr_log_look(log);
        if (files->n && files->first + files->n - 1 == state->file) return at;
        /* a file begins, and leaves room for the frame */
        wr_files_add(files, (uint32_t)state->file);
        if (transient) return at;
        write_nexts(e, bytes);
        wr_policy_write_keys(e, bytes);
        wr_policy_write_delays(e, bytes);
    }
}

uint8_t *wr_journal_reserve_new(wr_queue_engine *e, bool transient, uint64_t bytes, uint64_t *offset) {
    if (transient || !wr_log_scarce(e->log, bytes)) return wr_journal_reserve(e, transient, bytes, offset);
    errno = EAGAIN;
    return NULL;
}

int wr_journal_begin(wr_queue_engine *e) {
    uint64_t offset, bytes = wr_frame_bytes(0);
    uint8_t *at = wr_journal_reserve(e, false, bytes, &offset);
    if (!at) return errno;
    wr_frame_head head = {.kind = WR_KIND_ACK};
    wr_frame_seal(at, &head, 0, wr_log_look(e->log)->salt);
    wr_journal_append(e, false, bytes, true);
    return 0;
}

void wr_journal_append(wr_queue_engine *e, bool transient, uint64_t bytes, bool sync) {
    wr_log_append(transient ? e->transient_log : e->log, bytes, sync && !transient);
    if (transient) return;
    e->want_sync |= sync;
    e->want_commit |= sync;
    if (!e->first_unsealed_ns) e->first_unsealed_ns = wr_now_ns();
}

int wr_journal_acks(wr_queue_engine *e) {
    uint32_t at = 0;
    int error = 0;
    while (at < e->ranges_n) {
        bool delays = e->ranges[at].due;
        uint32_t n = 0;
        while (at + n < e->ranges_n && n < RANGES_A_FRAME && (e->ranges[at + n].due != 0) == delays) n++;
        uint64_t bytes = wr_frame_bytes((uint64_t)n * WR_RANGE_SIZE), offset;
        uint8_t *to = wr_journal_reserve(e, false, bytes, &offset);
        if (!to) {
            error = errno;
            if (error == EAGAIN) {
                memmove(e->ranges, e->ranges + at, (e->ranges_n - at) * sizeof *e->ranges);
                e->ranges_n -= at;
                e->round++;
                return EAGAIN;
            }
            break; /* the log has failed: memory goes on, nothing is confirmed */
        }
        uint8_t *range = to + WR_FRAME_HEAD_BYTES;
        for (uint32_t i = at; i < at + n; i++) {
            const wr_pending_range *r = &e->ranges[i];
            range = wr_range_put(range, r->count ? r->queue->id : 0, r->count ? r->first : 0, r->count, r->due);
        }
        wr_frame_head head = {.kind = delays ? WR_KIND_DELAY : WR_KIND_ACK, .extra = n};
        wr_frame_seal(to, &head, (uint64_t)n * WR_RANGE_SIZE, wr_log_look(e->log)->salt);
        wr_journal_append(e, false, bytes, false);
        at += n;
    }
    e->ranges_n = 0;
    e->round++;
    return error;
}

bool wr_journal_tight(wr_queue_engine *e) {
    const wr_log_state *state = wr_log_look(e->log);
    if (state->has_next || !state->has_file || wr_log_left(e->log) > (TIGHT_BYTES < e->o.file_bytes / 16 ? TIGHT_BYTES : e->o.file_bytes / 16)) return false;
    (void)wr_log_scarce(e->log, 0); /* it asks for the next file */
    if (e->first_unsealed_ns || e->unsynced) e->want_commit = e->want_sync = true;
    return true;
}

/* Does somebody wait for room that only a commit gives back? Asked while the disk is full: a commit is padded to its page, so acks wait
 * until they fill one, or until then. */
static bool ring_is_full(const wr_queue_engine *e) {
    for (uint32_t i = 0; i < e->links_n; i++) {
        const wr_qlink *l = e->links[e->order[i]];
        if (l->next - l->posted > e->geometry.ring_records / 4) return true;
    }
    return false;
}

/* Post what waits, if it is time: at once when somebody waits for it, else after a millisecond or a quarter of the
 * write buffer. */
bool wr_journal_seal(wr_queue_engine *e, uint64_t now, bool force) {
    const wr_log_state *state = wr_log_look(e->log);
    /* No horizon above commands whose ACK frames are still to be written. */
    if ((state->busy && !force) || e->stalled || e->ranges_n || e->deaths_n) return false;
    bool unsealed = e->first_unsealed_ns != 0;
    bool tick = e->unsynced && now - e->last_sync_ns >= e->o.tick_ns;
    if (!unsealed && !e->want_commit && !tick) return false;
    if (!force && !e->want_commit && !tick && now - e->first_unsealed_ns < 1000000 &&
        state->append - state->sealed_to < e->o.commit_bytes / 4)
        return false;
    if (!force && !e->want_commit && state->append - state->sealed_to < WR_PAGE_BYTES && wr_log_scarce(e->log, 0) && !ring_is_full(e)) return false;
    bool sync = e->want_sync || tick || force;
    wr_horizon horizons[WR_CLIENT_SLOTS + 2];
    uint32_t n = 0;
    pthread_mutex_lock(&e->mutex);
    for (uint32_t i = 0; i < e->links_n; i++) {
        wr_qlink *l = e->links[e->order[i]];
        /* finished: its region may be unmapped any time */
        if (l->finished || (!l->dirty && !(sync && l->unsynced))) continue;
        horizons[n++] = (wr_horizon){.view = &l->view, .server = e->o.server, .sequence = l->next};
        l->pending_n++;
    }
    pthread_mutex_unlock(&e->mutex);
    uint32_t links_n = n;
    horizons[n++] = (wr_horizon){.server = WR_TOKEN_FILE, .sequence = state->file};
    horizons[n++] = (wr_horizon){.server = WR_TOKEN_WAIT, .sequence = e->token_next};
    if (!state->has_file || wr_log_seal(e->log, sync, 0, horizons, n)) {
        pthread_mutex_lock(&e->mutex);
        for (uint32_t i = 0; i < links_n; i++) ((wr_qlink *)horizons[i].view)->pending_n--;
        pthread_mutex_unlock(&e->mutex);
        return false;
    }
    for (uint32_t i = 0; i < e->links_n; i++) {
        wr_qlink *l = e->links[e->order[i]];
        /* finished: its region may be unmapped any time */
        if (l->finished || (!l->dirty && !(sync && l->unsynced))) continue;
        l->posted = l->next;
        l->dirty = false;
        l->unsynced = !sync;
    }
    e->token_next++;
    e->want_commit = e->want_sync = false;
    e->first_unsealed_ns = 0;
    e->unsynced = !sync;
    if (sync) e->last_sync_ns = now;
    return true;
}

bool wr_journal_sync(wr_queue_engine *e, uint64_t timeout_ns) {
    uint64_t until = wr_now_ns() + timeout_ns;
    e->want_commit = e->want_sync = true;
    while (wr_log_look(e->log)->has_file && !wr_journal_seal(e, wr_now_ns(), true) && wr_now_ns() < until) wr_cpu_relax();
    int error = wr_log_quiesce(e->log, timeout_ns);
    return !error && !wr_log_look(e->log)->failed;
}

bool wr_journal_all_durable(const wr_queue_engine *e) {
    const wr_log_state *state = wr_log_look(e->log);
    return !e->first_unsealed_ns && !e->unsynced && !e->want_commit && !e->stalled && !e->ranges_n && !e->deaths_n &&
           !state->busy && !state->failed;
}
