/* The two journals of a queue worker: frames in, horizons out, and the way back from files to queues.
 * What it is for and its invariants: queues/queue.h; the frames: engine/kernel/formats.py.
 *
 * Order of an effect: frame into the image, memory, shared words. Order of a confirm: batch written, batch synced (when
 * wanted), the stores have what the commands refer to (gates), then written / synced / head of the link, as far as the first
 * gate that is still shut. A failed log confirms nothing any more.
 *
 * A journal file may go when no entry's index record lies in it, all older ones have gone, every batch of it is done, no gate
 * refers to it, no link still has commands of before the last restart, and its acks of segment entries are applied.
 */
#include "queues/policy.h"
#include <assert.h>
#include <stdio.h>

#define RANGES_A_FRAME 4096
#define MOVE_MESSAGES_MAX (1u << 18) /* in one frame: their rows are in memory together */

/* A horizon of this server index is the engine's own mark in the row of batches. */
#define TOKEN_FILE (WR_SERVERS_MAX + 1)
#define TOKEN_WAIT (WR_SERVERS_MAX + 2)

static uint8_t *put_range(uint8_t *range, uint32_t queue, uint64_t first, uint64_t count, uint64_t to) {
    wr_put32(range + WR_RANGE_AT_QUEUE, queue);
    wr_put32(range + WR_RANGE_AT_COUNT, (uint32_t)count);
    wr_put64(range + WR_RANGE_AT_FIRST, first);
    wr_put64(range + WR_RANGE_AT_TO, to);
    return range + WR_RANGE_SIZE;
}

/* ---- files ---- */

void wr_files_add(wr_files *f, uint32_t file) {
    if (!f->n) f->first = file;
    assert(file >= f->first);
    uint32_t n = file - f->first + 1;
    f->live = wr_queue_grown(f->live, &f->size, n, sizeof *f->live);
    for (uint32_t i = f->n; i < n; i++) f->live[i] = 0;
    if (n > f->n) f->n = n;
}

uint32_t *wr_files_live(wr_files *f, uint32_t file) {
    return file >= f->first && file - f->first < f->n ? &f->live[file - f->first] : NULL;
}

void wr_files_drop_first(wr_files *f) {
    assert(f->n);
    memmove(f->live, f->live + 1, (f->n - 1) * sizeof *f->live);
    f->n--;
    f->first++;
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

/* ---- append ---- */

static void write_nexts(wr_queue_engine *e) {
    /* The first frame of a file: what sequences were used, because the files that say so otherwise may go. */
    uint64_t i = 0;
    while (i < e->queues.size) {
        uint64_t from = i, n = 0;
        for (; i < e->queues.size && n < RANGES_A_FRAME; i++) n += e->queues.rows[i].used != 0;
        if (!n) return;
        uint64_t bytes = wr_frame_bytes(n * WR_RANGE_SIZE), offset;
        uint8_t *at = wr_log_reserve(e->log, bytes, &offset, NULL);
        if (!at) return; /* file_bytes is far too small for so many queues: numbers stay known from the other frames */
        uint8_t *range = at + WR_FRAME_HEAD_BYTES;
        for (uint64_t j = from; j < i; j++) {
            if (!e->queues.rows[j].used) continue;
            const wr_queue *q = (const wr_queue *)(uintptr_t)e->queues.rows[j].value;
            range = put_range(range, q->id, q->next, 0, 0);
        }
        wr_frame_head head = {.kind = WR_KIND_ACK, .extra = (uint32_t)n};
        wr_frame_seal(at, &head, n * WR_RANGE_SIZE, wr_log_look(e->log)->salt);
        wr_log_append(e->log, bytes, false);
    }
}

/* Room for a frame; NULL with errno as wr_log_reserve says. */
uint8_t *wr_journal_reserve(wr_queue_engine *e, bool transient, uint64_t bytes, uint64_t *offset) {
    wr_log *log = transient ? e->transient_log : e->log;
    wr_files *files = transient ? &e->transient_files : &e->files;
    uint8_t *at = wr_log_reserve(log, bytes, offset, NULL);
    if (!at) return NULL;
    const wr_log_state *state = wr_log_look(log);
    if (files->n && files->first + files->n - 1 == state->file) return at;
    /* a file begins */
    wr_files_add(files, (uint32_t)state->file);
    if (transient) return at;
    write_nexts(e);
    wr_policy_write_keys(e);
    return wr_log_reserve(log, bytes, offset, NULL);
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

void wr_journal_range(wr_queue_engine *e, wr_queue *q, uint64_t sequence) {
    if (e->recovering) return;
    if (q->range_round == e->round) {
        wr_pending_range *last = &e->ranges[q->range_at];
        if (last->first + last->count == sequence && last->count < UINT32_MAX) {
            last->count++;
            return;
        }
    }
    e->ranges = wr_queue_grown(e->ranges, &e->ranges_size, e->ranges_n + 1ull, sizeof *e->ranges);
    q->range_round = e->round;
    q->range_at = e->ranges_n;
    e->ranges[e->ranges_n++] = (wr_pending_range){.queue = q, .first = sequence, .count = 1};
}

void wr_segment_ack_note(wr_queue_engine *e, const wr_queue *q, uint64_t sequence, uint32_t file, bool moved) {
    /* The frame is written before the next seal: it belongs to the batch of the present token. */
    uint64_t token = moved ? UINT64_MAX : e->recovering ? 0 : e->token_next;
    wr_segment_ack *last = e->segment_acks_n ? &e->segment_acks[e->segment_acks_n - 1] : NULL;
    if (last && last->queue == q->id && last->file == file && (last->token == UINT64_MAX) == moved &&
        last->first + last->count == sequence && last->count < UINT32_MAX) {
        last->count++;
        last->token = token;
        return;
    }
    e->segment_acks = wr_queue_grown(e->segment_acks, &e->segment_acks_size, e->segment_acks_n + 1, sizeof *e->segment_acks);
    e->segment_acks[e->segment_acks_n++] = (wr_segment_ack){.queue = q->id, .count = 1, .first = sequence, .token = token, .file = file};
    if (!moved && ++e->segment_acks_early_n == WR_SEGMENT_ACKS_MAX) e->segment_acks_token = token;
}

bool wr_segment_acks_many(const wr_queue_engine *e) {
    return e->segment_acks_early_n >= WR_SEGMENT_ACKS_MAX &&
           atomic_load_explicit(&e->token_synced, memory_order_acquire) >= e->segment_acks_token;
}

int wr_journal_acks(wr_queue_engine *e) {
    uint32_t at = 0;
    int error = 0;
    while (at < e->ranges_n) {
        uint32_t n = e->ranges_n - at < RANGES_A_FRAME ? e->ranges_n - at : RANGES_A_FRAME;
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
            range = put_range(range, r->count ? r->queue->id : 0, r->count ? r->first : 0, r->count, 0);
        }
        wr_frame_head head = {.kind = WR_KIND_ACK, .extra = n};
        wr_frame_seal(to, &head, (uint64_t)n * WR_RANGE_SIZE, wr_log_look(e->log)->salt);
        wr_journal_append(e, false, bytes, false);
        at += n;
    }
    e->ranges_n = 0;
    e->round++;
    return error;
}

/* ---- MOVE: claims of a subscription, and their way back ---- */

typedef struct {
    uint64_t first, count;
} span;

void wr_move_put(uint8_t *range, const wr_queue *from, uint64_t first, uint64_t count, const wr_queue *to, uint64_t target, uint32_t reason) {
    put_range(put_range(range, from->id, first, count, target), to->id, target, count, reason);
}

wr_entry wr_journal_take(wr_queue_engine *e, wr_queue *q, uint64_t sequence, uint32_t file) {
    wr_entry *entry = wr_queue_entry(q, sequence), copy = *entry;
    if (copy.flags & WR_ENTRY_PERSISTENT && wr_may_be_in_segment(e, &copy)) {
        wr_segment_ack_note(e, q, sequence, file, true);
        if (copy.index_file == WR_IN_SEGMENT) copy.index_file = file; /* only the MOVE says that it is there */
    }
    wr_queue_remove_entry(e, q, sequence, entry, false, true);
    return copy;
}

/* READY entries of `from`, in order, go to the end of `to`. `all`: the held ones, too (there are none in a subscription).
 * One frame, all or nothing. 0, EAGAIN (no room in the journal yet), ENOMEM, or the log's errno; *start == *end: nothing was there. */
int wr_journal_move(wr_queue_engine *e, wr_queue *from, wr_queue *to, uint64_t max_messages, uint64_t max_bytes, bool all,
                    uint64_t client_epoch, uint64_t sequence, uint64_t *start, uint64_t *end) {
    span *spans = NULL;
    uint64_t spans_n = 0, spans_size = 0, n = 0, sum = 0;
    uint64_t spans_max = (e->o.file_bytes / 4) / (2 * WR_RANGE_SIZE);
    if (max_messages > MOVE_MESSAGES_MAX) max_messages = MOVE_MESSAGES_MAX;
    wr_pages_trim(e, 0);
    uint64_t first = from->chunk_base;
    *start = *end = to->next;
    for (uint64_t number = first; number - first < from->chunks_n; number++) {
        const wr_chunk *chunk = wr_queue_chunk_peek(from, number);
        if (!chunk || !chunk->ready_n) continue;
        chunk = wr_queue_chunk(from, number);
        if (!chunk) continue;
        for (uint32_t r = 0; r < WR_CHUNK_ROWS; r++) {
            const wr_entry *entry = &chunk->rows[r];
            if (entry->state != WR_ENTRY_READY) continue;
            uint64_t at = number * WR_CHUNK_ROWS + r;
            if (n == max_messages || (n && sum + entry->body_length > max_bytes)) goto collected;
            if (spans_n && spans[spans_n - 1].first + spans[spans_n - 1].count == at) {
                spans[spans_n - 1].count++;
            } else {
                if (spans_n == spans_max) goto collected;
                spans = wr_queue_grown(spans, &spans_size, spans_n + 1, sizeof *spans);
                spans[spans_n++] = (span){at, 1};
            }
            n++;
            sum += entry->body_length;
        }
    }
collected:
    if (!n) {
        free(spans);
        return 0;
    }
    for (uint64_t s = to->next / WR_CHUNK_ROWS; s <= (to->next + n - 1) / WR_CHUNK_ROWS; s++)
        if (wr_queue_room(e, to, s * WR_CHUNK_ROWS)) {
            free(spans);
            return ENOMEM;
        }
    uint64_t bytes = wr_frame_bytes(spans_n * 2 * WR_RANGE_SIZE), offset;
    uint8_t *at = wr_journal_reserve(e, false, bytes, &offset);
    if (!at) {
        int error = errno;
        free(spans);
        return error;
    }
    uint8_t *range = at + WR_FRAME_HEAD_BYTES;
    uint64_t target = to->next;
    for (uint64_t i = 0; i < spans_n; i++) {
        wr_move_put(range, from, spans[i].first, spans[i].count, to, target, 0);
        range += 2 * WR_RANGE_SIZE;
        target += spans[i].count;
    }
    wr_frame_head head = {.kind = WR_KIND_MOVE, .client_epoch = client_epoch, .sequence = sequence, .extra = (uint32_t)(2 * spans_n)};
    wr_frame_seal(at, &head, spans_n * 2 * WR_RANGE_SIZE, wr_log_look(e->log)->salt);
    wr_journal_append(e, false, bytes, true);
    uint32_t file = (uint32_t)wr_log_look(e->log)->file;
    for (uint64_t i = 0; i < spans_n; i++)
        for (uint64_t s = spans[i].first; s < spans[i].first + spans[i].count; s++) {
            wr_entry copy = wr_journal_take(e, from, s, file);
            if (all) copy.flags |= WR_ENTRY_REDELIVERED;
            copy.expires = 0; /* a claim is held */
            wr_queue_insert(e, to, to->next, &copy);
        }
    free(spans);
    *end = to->next;
    wr_queue_wake(e, to);
    return 0;
}

/* ---- seal and horizons ---- */

/* Post what waits, if it is time: at once when somebody waits for it, else after a millisecond or a quarter of the write buffer. */
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
    bool sync = e->want_sync || tick || force;
    wr_horizon horizons[WR_CLIENT_SLOTS + 2];
    uint32_t n = 0;
    pthread_mutex_lock(&e->mutex);
    for (uint32_t i = 0; i < e->links_n; i++) {
        wr_qlink *l = e->links[e->order[i]];
        if (l->finished || (!l->dirty && !(sync && l->unsynced))) continue; /* finished: its region may be unmapped any time */
        horizons[n++] = (wr_horizon){.view = &l->view, .server = e->o.server, .sequence = l->next};
        l->pending_n++;
    }
    pthread_mutex_unlock(&e->mutex);
    uint32_t links_n = n;
    horizons[n++] = (wr_horizon){.server = TOKEN_FILE, .sequence = state->file};
    horizons[n++] = (wr_horizon){.server = TOKEN_WAIT, .sequence = e->token_next};
    if (!state->has_file || wr_log_seal(e->log, sync, 0, horizons, n)) {
        pthread_mutex_lock(&e->mutex);
        for (uint32_t i = 0; i < links_n; i++) ((wr_qlink *)horizons[i].view)->pending_n--;
        pthread_mutex_unlock(&e->mutex);
        return false;
    }
    for (uint32_t i = 0; i < e->links_n; i++) {
        wr_qlink *l = e->links[e->order[i]];
        if (l->finished || (!l->dirty && !(sync && l->unsynced))) continue; /* finished: its region may be unmapped any time */
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

/* Under the mutex: raise the words of a link as far as done and gates allow. */
static void link_publish(wr_queue_engine *e, wr_qlink *l) {
    uint64_t limit = l->gates_first == l->gates_next ? UINT64_MAX : l->gates[l->gates_first % l->gates_size].command;
#define LIMITED(x) ((x) < limit ? (x) : limit)
    wr_horizon h = {.view = &l->view, .server = e->o.server};
    h.sequence = LIMITED(l->done_written);
    wr_horizon_publish(&h, true, false, false);
    h.sequence = LIMITED(l->done_synced);
    wr_horizon_publish(&h, false, true, false);
    h.sequence = LIMITED(l->done_head);
    wr_horizon_publish(&h, false, false, true);
#undef LIMITED
}

static inline void raise64(uint64_t *word, uint64_t to) {
    if (*word < to) *word = to;
}

/* On the committer's thread, between write and sync. */
void wr_journal_written(void *context, const wr_batch *batch) {
    wr_queue_engine *e = context;
    pthread_mutex_lock(&e->mutex);
    for (uint32_t i = 0; i < batch->horizons_n; i++) {
        if (batch->horizons[i].server != e->o.server) continue;
        wr_qlink *l = (wr_qlink *)batch->horizons[i].view;
        raise64(&l->done_written, batch->horizons[i].sequence);
        link_publish(e, l);
    }
    pthread_mutex_unlock(&e->mutex);
}

/* On the committer's thread, when the batch is done or has failed. */
void wr_journal_done(void *context, const wr_batch *batch) {
    wr_queue_engine *e = context;
    pthread_mutex_lock(&e->mutex);
    for (uint32_t i = 0; i < batch->horizons_n; i++) {
        const wr_horizon *h = &batch->horizons[i];
        if (h->server == TOKEN_FILE) {
            if (!batch->error) atomic_store_explicit(&e->file_done, (uint32_t)h->sequence, memory_order_release);
            continue;
        }
        if (h->server == TOKEN_WAIT) {
            if (batch->error) continue;
            atomic_store_explicit(&e->token_done, h->sequence, memory_order_release);
            if (batch->sync) atomic_store_explicit(&e->token_synced, h->sequence, memory_order_release);
            continue;
        }
        wr_qlink *l = (wr_qlink *)h->view;
        l->pending_n--;
        if (batch->error) continue;
        raise64(&l->done_written, h->sequence);
        raise64(&l->done_head, h->sequence);
        if (batch->sync) raise64(&l->done_synced, h->sequence);
        link_publish(e, l);
    }
    pthread_mutex_unlock(&e->mutex);
}

/* Commands that need no batch are confirmed at once, when none before them waits for one. */
void wr_link_confirm(wr_queue_engine *e, wr_qlink *l) {
    if (l->dirty || l->posted == l->next) return;
    pthread_mutex_lock(&e->mutex);
    if (!l->pending_n && l->done_head >= l->posted && l->done_head < l->next) {
        l->done_written = l->done_head = l->next;
        if (!l->unsynced) l->done_synced = l->next;
        l->posted = l->next;
        link_publish(e, l);
    }
    pthread_mutex_unlock(&e->mutex);
}

void wr_link_add_gate(wr_queue_engine *e, wr_qlink *l, uint64_t command, uint32_t store, uint64_t store_sequence, uint32_t file) {
    pthread_mutex_lock(&e->mutex);
    if (l->gates_first != l->gates_next) {
        wr_link_gate *last = &l->gates[(l->gates_next - 1) % l->gates_size];
        if (last->round == e->round && last->store == store) {
            last->store_sequence = store_sequence;
            if (file < last->file) last->file = file;
            pthread_mutex_unlock(&e->mutex);
            return;
        }
    }
    if (l->gates_next - l->gates_first == l->gates_size) {
        uint32_t size = l->gates_size ? 2 * l->gates_size : 64;
        wr_link_gate *gates = malloc(size * sizeof *gates);
        if (!gates) wr_queue_no_memory();
        for (uint64_t g = l->gates_first; g != l->gates_next; g++) gates[g % size] = l->gates[g % l->gates_size];
        free(l->gates);
        l->gates = gates;
        l->gates_size = size;
    }
    l->gates[l->gates_next++ % l->gates_size] =
        (wr_link_gate){.command = command, .store = store, .store_sequence = store_sequence, .file = file, .round = e->round};
    pthread_mutex_unlock(&e->mutex);
}

bool wr_link_drop_gates(wr_queue_engine *e, wr_qlink *l) {
    if (l->gates_first == l->gates_next) return false; /* only this thread adds and drops */
    bool any = false;
    pthread_mutex_lock(&e->mutex);
    while (l->gates_first != l->gates_next) {
        const wr_link_gate *g = &l->gates[l->gates_first % l->gates_size];
        if (!wr_queue_store_passed(e, g->store, g->store_sequence)) break;
        l->gates_first++;
        any = true;
    }
    if (any) link_publish(e, l);
    pthread_mutex_unlock(&e->mutex);
    return any;
}

/* ---- replay ---- */

void wr_journal_gap(wr_queue_engine *e) {
    for (uint64_t i = 0; i < e->queues.size; i++)
        if (e->queues.rows[i].used) ((wr_queue *)(uintptr_t)e->queues.rows[i].value)->gap = true;
}

static void close_gap(wr_queue_engine *e, wr_queue *q, uint64_t sequence) {
    if (sequence < q->next) return; /* of a message that is known */
    q->lost_n += sequence - q->next;
    q->gap = false;
    wr_queue_dirty(e, q);
}

wr_queue *wr_queue_named(wr_queue_engine *e, uint32_t id) {
    wr_queue *q = wr_queue_find(e, id);
    if (!q && e->ids_end && id >= e->ids_end && !wr_map_put(&e->unknown, id, 0)) wr_queue_no_memory();
    return q;
}

static int replay_publish(wr_queue_engine *e, const wr_frame_head *head, const uint8_t *frame, uint64_t total, uint32_t file,
                          uint64_t offset) {
    uint64_t room = total - WR_FRAME_HEAD_BYTES - 1;
    uint64_t blob = (uint64_t)head->extra * WR_ROUTE_SIZE;
    bool stored = head->flags & WR_FRAME_STORED;
    bool timed = head->flags & WR_FRAME_TIMED, keyed = head->flags & WR_FRAME_KEYED;
    uint64_t extras = (timed ? WR_TIMES_SIZE : 0) + (keyed ? WR_KEY_BYTES : 0);
    uint8_t priority = head->flags >> WR_FRAME_PRIORITY_SHIFT & WR_FRAME_PRIORITY_MASK;
    if (head->extra > WR_ROUTES_MAX || blob + (stored ? 4 : 0) + extras > room || (keyed && !timed) || priority > WR_PRIORITY_MAX)
        return EBADMSG;
    const uint8_t *body = frame + WR_FRAME_HEAD_BYTES;
    const uint8_t *times = body + blob + (stored ? 4 : 0);
    uint64_t published = timed ? wr_get64(times + WR_TIMES_AT_PUBLISHED) : 0;
    uint64_t expires = timed ? wr_get64(times + WR_TIMES_AT_EXPIRES) : 0;
    uint64_t due = timed ? wr_get64(times + WR_TIMES_AT_DUE) : 0;
    if ((published | expires | due) >> WR_TIME_BITS) return EBADMSG;
    uint64_t now = due || keyed ? wr_wall_ms() : 0;
    wr_entry entry = {.file = file,
                      .offset = (uint32_t)offset,
                      .frame_length = (uint32_t)total,
                      .body_length = stored ? wr_get32(body + blob) : (uint32_t)(room - blob - extras),
                      .blob_offset = (uint16_t)(WR_FRAME_HEAD_BYTES + blob + (stored ? 4 : 0) + extras),
                      .meta_length = head->meta_length,
                      .index_file = file,
                      .location = stored ? WR_LOCATION_STORE : WR_LOCATION_JOURNAL,
                      .flags = WR_ENTRY_PERSISTENT,
                      .priority = priority & 15};
    memcpy(entry.id, head->id, 16);
    for (uint32_t i = 0; i < head->extra; i++) {
        const uint8_t *route = body + (uint64_t)i * WR_ROUTE_SIZE;
        wr_queue *q = wr_queue_named(e, wr_get32(route + WR_ROUTE_AT_QUEUE));
        uint64_t sequence = wr_get64(route + WR_ROUTE_AT_SEQUENCE);
        if (!q || !q->durable || sequence >= UINT64_MAX / 2) continue;
        if (keyed) wr_policy_seen(q, times + WR_TIMES_SIZE, published, now);
        if (q->gap) close_gap(e, q, sequence);
        /* `next` of a queue with sequences from segments may be above: those entries are known, alive or gone */
        if (wr_queue_entry(q, sequence)) continue;
        if (wr_queue_room(e, q, sequence)) return ENOMEM;
        entry.expires = wr_policy_expires(q, published, expires, due);
        wr_queue_insert(e, q, sequence, &entry);
        if (due > now) wr_policy_delay(e, q, sequence, due);
        if (stored) {
            uint64_t a, b;
            memcpy(&a, entry.id, 8);
            memcpy(&b, entry.id + 8, 8);
            uint64_t *refs = wr_map_put(&e->stores[0].refs, a, b);
            if (!refs) return ENOMEM;
            ++*refs;
        }
    }
    return 0;
}

static void replay_gone(wr_queue_engine *e, wr_queue *q, uint64_t sequence, uint32_t file, bool keep_reference, bool moved) {
    wr_entry *entry = wr_queue_entry(q, sequence);
    if (!entry) return;
    if (entry->index_file == WR_IN_SEGMENT) wr_segment_ack_note(e, q, sequence, file, moved);
    wr_queue_remove_entry(e, q, sequence, entry, false, keep_reference);
}

static int replay_ranges(wr_queue_engine *e, const wr_frame_head *head, const uint8_t *frame, uint64_t total, uint32_t file) {
    if ((uint64_t)head->extra * WR_RANGE_SIZE > total - WR_FRAME_HEAD_BYTES - 1) return EBADMSG;
    for (uint32_t i = 0; i < head->extra; i++) {
        const uint8_t *range = frame + WR_FRAME_HEAD_BYTES + (uint64_t)i * WR_RANGE_SIZE;
        wr_queue *q = wr_queue_named(e, wr_get32(range + WR_RANGE_AT_QUEUE));
        uint64_t first = wr_get64(range + WR_RANGE_AT_FIRST);
        uint64_t count = wr_get32(range + WR_RANGE_AT_COUNT);
        if (head->kind == WR_KIND_ACK) {
            if (!q) continue;
            if (q->gap && (count || first > q->next)) close_gap(e, q, first);
            for (uint64_t s = first; s < first + count && s < q->next; s++) replay_gone(e, q, s, file, false, false);
            if (first + count > q->next) q->next = first + count;
            continue;
        }
        /* MOVE: this range goes to the next one */
        if (++i >= head->extra) return EBADMSG;
        range += WR_RANGE_SIZE;
        wr_queue *to = wr_queue_named(e, wr_get32(range + WR_RANGE_AT_QUEUE));
        if (!q) continue;
        if (!to) {
            /* A subscription deleted since: later frames ack its claims or bring them back, so it must be there for now. */
            to = wr_queue_declare(e, wr_get32(range + WR_RANGE_AT_QUEUE), true);
            if (!to) return ENOMEM;
            to->ghost = true;
        }
        if (to->ghost) to->ghost_of = q->id;
        uint64_t target = wr_get64(range + WR_RANGE_AT_FIRST);
        uint64_t reason = wr_get64(range + WR_RANGE_AT_TO);
        if (reason > WR_REASON_DELIVERY_LIMIT) return EBADMSG;
        for (uint64_t k = 0; k < count && first + k < q->next; k++) {
            wr_entry *entry = wr_queue_entry(q, first + k);
            if (!entry) continue;
            wr_entry copy = *entry;
            bool known = wr_queue_entry(to, target + k);
            replay_gone(e, q, first + k, file, !known, true);
            if (known) continue;
            if (copy.index_file == WR_IN_SEGMENT) copy.index_file = file;
            if (reason) wr_letter(&copy, (uint32_t)reason);
            copy.expires = 0;
            if (wr_queue_room(e, to, target + k)) return ENOMEM;
            wr_queue_insert(e, to, target + k, &copy);
        }
        if (target + count > to->next) to->next = target + count;
        if (head->client_epoch) {
            uint64_t *start = wr_map_put(&e->moves_start, head->client_epoch, head->sequence);
            uint64_t *moved = wr_map_put(&e->moves_count, head->client_epoch, head->sequence);
            if (!start || !moved) return ENOMEM;
            if (i == 1) *start = target;
            *moved = i == 1 ? count : *moved + count;
        }
    }
    return 0;
}

/* Frames of one journal file from *at on, in order. Leaves *at at the first byte that is no frame and says why; 0, ENOMEM.
 * "last": behind the frame that says that it is the last; "end": at the end of the bytes. */
int wr_journal_replay(wr_queue_engine *e, const uint8_t *bytes, uint64_t length, uint32_t file, uint64_t salt, uint64_t *at,
                      uint64_t *frames_n, const char **reason) {
    wr_frame_head head;
    uint64_t epoch = 0, *high = NULL; /* of the frame before */
    *reason = NULL;
    while (*at < length) {
        uint64_t total = wr_frame_check(bytes, length, *at, salt, &head, reason);
        if (!total) return 0;
        int error = 0;
        if (head.kind == WR_KIND_PUBLISH) error = replay_publish(e, &head, bytes + *at, total, file, *at);
        else if (head.kind == WR_KIND_ACK || head.kind == WR_KIND_MOVE) error = replay_ranges(e, &head, bytes + *at, total, file);
        else if (head.kind == WR_KIND_KEYS)
            error = wr_policy_replay_keys(e, bytes + *at + WR_FRAME_HEAD_BYTES, total - WR_FRAME_BYTES_MIN, head.extra);
        if (error == EBADMSG) {
            *reason = "body";
            return 0;
        }
        if (error) return error;
        if (head.client_epoch && (head.kind == WR_KIND_PUBLISH || head.kind == WR_KIND_MOVE)) {
            if (!high || head.client_epoch != epoch) {
                high = wr_map_put(&e->high, head.client_epoch, 0);
                if (!high) return ENOMEM;
                epoch = head.client_epoch;
            }
            if (*high < head.sequence) *high = head.sequence;
        }
        ++*frames_n;
        *at += total;
        if (*frames_n % 1024 == 0) wr_pages_trim(e, 0);
        if (head.kind == WR_KIND_PADDING && head.flags & WR_FRAME_LAST) {
            *reason = "last";
            return 0;
        }
    }
    *reason = "end";
    return 0;
}

/* After the last file: from now on acks are journalled, and after an unclean stop everything counts as delivered before. */
void wr_journal_recovered(wr_queue_engine *e, bool clean) {
    for (uint64_t i = 0; i < e->queues.size; i++) {
        if (!e->queues.rows[i].used) continue;
        wr_queue *q = (wr_queue *)(uintptr_t)e->queues.rows[i].value;
        for (uint64_t c = 0; c < q->chunks_n && !clean; c++) {
            wr_chunk *chunk = q->chunks[q->chunks_at + c];
            if (chunk && !chunk->rows) memcpy(chunk->page->redelivered, chunk->page->live, sizeof chunk->page->live);
            for (uint32_t r = 0; chunk && chunk->rows && r < WR_CHUNK_ROWS; r++)
                if (chunk->rows[r].state != WR_ENTRY_GONE) chunk->rows[r].flags |= WR_ENTRY_REDELIVERED;
        }
        /* rows may still come into the chunk of `next`: it must not lie below the first chunk */
        if (!q->chunks_n) q->chunk_base = q->next / WR_CHUNK_ROWS;
        q->published_n = q->delivered_n = q->acked_n = q->requeued_n = 0;
    }
    e->recovering = false;
}
