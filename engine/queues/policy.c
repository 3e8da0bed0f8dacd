/* What a queue is declared to do with its messages. Declared, with its invariants, in queues/policy.h. */
#include "queues/policy.h"
#include <assert.h>
#include <stdio.h>

#define SPANS_A_FRAME 1024  /* of a MOVE to dead letters */
#define DEATHS_A_TURN 16384 /* of one queue, so that others are served meanwhile */
#define LOOK_AGAIN_MS 100   /* a queue whose head does not expire, but something behind it */

static uint64_t *put(wr_map *m, uint64_t a, uint64_t b) {
    uint64_t *value = wr_map_put(m, a, b);
    if (!value) wr_queue_no_memory();
    return value;
}

static wr_policy *policy_of(wr_queue *q) {
    if (!q->policy && !(q->policy = calloc(1, sizeof *q->policy))) wr_queue_no_memory();
    return q->policy;
}

void wr_policy_set(wr_queue *q, const wr_policy_options *options) {
    wr_policy *p = policy_of(q);
    p->o = *options;
    if (p->o.max_priority > WR_PRIORITY_MAX) p->o.max_priority = WR_PRIORITY_MAX;
}

void wr_policy_free(wr_queue *q) {
    wr_policy *p = q->policy;
    if (!p) return;
    wr_map_free(&p->level_chunks);
    wr_map_free(&p->due);
    wr_map_free(&p->seen);
    free(p->heap);
    free(p->keys);
    free(p);
    q->policy = NULL;
}

void wr_policy_forget(wr_queue_engine *e, const wr_queue *q) {
    for (uint64_t i = 0; i < e->timed_n; i++)
        if (e->timed[i] == q) {
            e->timed[i] = e->timed[--e->timed_n];
            break;
        }
    for (uint64_t i = 0; i < e->deaths_n; i++)
        if (e->deaths[i].queue == q) e->deaths[i].queue = NULL;
}

/* Look at the queue when the wall clock shows `when`, or before. */
static void look_at(wr_queue_engine *e, wr_queue *q, uint64_t when) {
    if (!q->policy->timed) {
        q->policy->timed = true;
        e->timed = wr_queue_grown(e->timed, &e->timed_size, e->timed_n + 1, sizeof *e->timed);
        if (!e->timed_n) e->timed_at = when;
        e->timed[e->timed_n++] = q;
    }
    if (when < e->timed_at) e->timed_at = when;
}

/* ---- rows that become ready or cease to be ---- */

static uint32_t level_of(const wr_policy *p, const wr_entry *entry) {
    return entry->priority < p->o.max_priority ? entry->priority : p->o.max_priority;
}

static bool too_long(const wr_queue *q) {
    const wr_policy *p = q->policy;
    return !p->o.reject_publish && q->ready_n &&
           ((p->o.max_length && q->ready_n > p->o.max_length) || (p->o.max_length_bytes && p->ready_bytes > p->o.max_length_bytes));
}

/* q->ready_n counts it already. */
void wr_policy_comes(wr_queue_engine *e, wr_queue *q, uint64_t sequence, const wr_entry *entry) {
    wr_policy *p = policy_of(q);
    p->ready_bytes += entry->body_length;
    if (entry->expires) {
        p->expiring_n++;
        look_at(e, q, entry->expires);
    }
    if (p->o.max_priority) {
        uint32_t level = level_of(p, entry);
        ++*put(&p->level_chunks, sequence / WR_CHUNK_ROWS, level);
        if (!p->level_n[level]++ || sequence < p->level_from[level]) p->level_from[level] = sequence;
    }
    if (too_long(q)) look_at(e, q, 0);
}

void wr_policy_goes(wr_queue *q, uint64_t sequence, const wr_entry *entry) {
    wr_policy *p = q->policy;
    p->ready_bytes -= entry->body_length;
    if (entry->expires) p->expiring_n--;
    if (p->o.max_priority) {
        uint32_t level = level_of(p, entry);
        uint64_t *n = wr_map_find(&p->level_chunks, sequence / WR_CHUNK_ROWS, level);
        assert(n && *n && p->level_n[level]);
        if (!--*n) wr_map_remove(&p->level_chunks, sequence / WR_CHUNK_ROWS, level);
        p->level_n[level]--;
    }
}

void wr_policy_other_goes(wr_queue *q, uint64_t sequence, const wr_entry *entry) {
    wr_policy *p = q->policy;
    if (entry->state == WR_ENTRY_DYING) {
        p->dying_n--;
    } else {
        assert(entry->state == WR_ENTRY_DELAYED);
        p->delayed_n--;
        wr_map_remove(&p->due, sequence, 0);
    }
}

void wr_policy_damaged(wr_queue *q, uint64_t number, const wr_chunk *chunk, uint64_t lost_bytes) {
    wr_policy *p = q->policy;
    p->ready_bytes -= lost_bytes;
    for (uint32_t level = 0; p->o.max_priority && level <= p->o.max_priority; level++) {
        uint64_t *before = wr_map_find(&p->level_chunks, number, level), now = 0;
        if (!before) continue;
        for (uint32_t r = 0; r < WR_CHUNK_ROWS; r++)
            now += chunk->rows[r].state == WR_ENTRY_READY && level_of(p, &chunk->rows[r]) == level;
        p->level_n[level] -= *before - now;
        *before = now;
        if (!now) wr_map_remove(&p->level_chunks, number, level);
    }
}

/* The lowest ready row of a level; NULL: none. */
static wr_entry *first_of_level(wr_queue *q, uint32_t level, uint64_t *sequence) {
    wr_policy *p = q->policy;
    for (uint64_t at = p->level_from[level]; p->level_n[level] && at / WR_CHUNK_ROWS < q->chunk_base + q->chunks_n;
         at = (at / WR_CHUNK_ROWS + 1) * WR_CHUNK_ROWS) {
        if (!wr_map_find(&p->level_chunks, at / WR_CHUNK_ROWS, level)) continue;
        wr_chunk *chunk = wr_queue_chunk(q, at / WR_CHUNK_ROWS);
        for (uint32_t r = at % WR_CHUNK_ROWS; chunk && r < WR_CHUNK_ROWS; r++)
            if (chunk->rows[r].state == WR_ENTRY_READY && level_of(p, &chunk->rows[r]) == level) {
                *sequence = p->level_from[level] = at / WR_CHUNK_ROWS * WR_CHUNK_ROWS + r;
                return &chunk->rows[r];
            }
    }
    return NULL;
}

wr_entry *wr_policy_first(wr_queue *q, uint64_t *sequence) {
    wr_entry *found = NULL;
    for (uint32_t level = q->policy->o.max_priority + 1; !found && level-- > 0;) found = first_of_level(q, level, sequence);
    return found;
}

/* What goes first when the queue is too long: the oldest of the lowest priority. */
static wr_entry *least(wr_queue *q, uint64_t *sequence) {
    if (!q->policy->o.max_priority) return wr_queue_first(q, sequence);
    wr_entry *found = NULL;
    for (uint32_t level = 0; !found && level <= q->policy->o.max_priority; level++) found = first_of_level(q, level, sequence);
    return found;
}

/* ---- delay ---- */

static bool sooner(const wr_delayed *a, const wr_delayed *b) {
    return a->due != b->due ? a->due < b->due : a->sequence < b->sequence;
}

static void heap_push(wr_policy *p, wr_delayed item) {
    p->heap = wr_queue_grown(p->heap, &p->heap_size, p->heap_n + 1, sizeof *p->heap);
    uint64_t i = p->heap_n++;
    for (; i && sooner(&item, &p->heap[(i - 1) / 2]); i = (i - 1) / 2) p->heap[i] = p->heap[(i - 1) / 2];
    p->heap[i] = item;
}

static void heap_pop(wr_policy *p) {
    wr_delayed last = p->heap[--p->heap_n];
    uint64_t i = 0;
    for (uint64_t child; (child = 2 * i + 1) < p->heap_n; i = child) {
        if (child + 1 < p->heap_n && sooner(&p->heap[child + 1], &p->heap[child])) child++;
        if (!sooner(&p->heap[child], &last)) break;
        p->heap[i] = p->heap[child];
    }
    p->heap[i] = last;
}

void wr_policy_delay(wr_queue_engine *e, wr_queue *q, uint64_t sequence, uint64_t due) {
    wr_entry *entry = wr_queue_entry(q, sequence);
    assert(entry && entry->state == WR_ENTRY_READY);
    wr_policy *p = policy_of(q);
    wr_queue_unready(q, sequence, entry);
    entry->state = WR_ENTRY_DELAYED;
    p->delayed_n++;
    *put(&p->due, sequence, 0) = due;
    heap_push(p, (wr_delayed){.due = due, .sequence = sequence});
    look_at(e, q, due);
}

uint64_t wr_policy_due(const wr_queue *q, uint64_t sequence) {
    uint64_t *due = q->policy ? wr_map_find(&q->policy->due, sequence, 0) : NULL;
    return due ? *due : 0;
}

static bool release_due(wr_queue_engine *e, wr_queue *q, uint64_t now) {
    wr_policy *p = q->policy;
    bool any = false;
    while (p->heap_n && p->heap[0].due <= now) {
        uint64_t sequence = p->heap[0].sequence;
        heap_pop(p);
        wr_entry *entry = wr_queue_entry(q, sequence);
        if (!entry || entry->state != WR_ENTRY_DELAYED) continue;
        wr_policy_other_goes(q, sequence, entry);
        wr_queue_ready(e, q, sequence, entry);
        any = true;
    }
    return any;
}

/* ---- death ---- */

static void count_death(wr_policy *p, uint32_t reason) {
    if (reason == WR_REASON_EXPIRED) p->expired_n++;
    else if (reason == WR_REASON_MAXLEN) p->dropped_n++;
}

/* The queue that keeps the dead letters; NULL: nobody does. */
static wr_queue *grave_of(wr_queue_engine *e, const wr_queue *q) {
    if (!q->policy || !q->policy->o.dead_letters) return NULL;
    wr_queue *to = wr_queue_find(e, q->policy->o.dead_letters);
    return to && to != q && to->durable == q->durable ? to : NULL;
}

/* The row leaves its queue and enters the other one. `file`: the journal file that says so. */
static void move_over(wr_queue_engine *e, wr_queue *q, uint64_t sequence, wr_queue *to, uint32_t reason, uint32_t file) {
    wr_entry copy = wr_journal_take(e, q, sequence, file);
    wr_letter(&copy, reason);
    wr_queue_insert(e, to, to->next, &copy);
    to->published_n++;
    q->policy->dead_lettered_n++;
    wr_queue_wake(e, to);
}

void wr_policy_die(wr_queue_engine *e, wr_queue *q, uint64_t sequence, wr_entry *entry, uint32_t reason) {
    if (q->policy) count_death(q->policy, reason);
    wr_queue *to = grave_of(e, q);
    if (!to) {
        wr_queue_remove_entry(e, q, sequence, entry, true, false);
        return;
    }
    if (!(entry->flags & WR_ENTRY_PERSISTENT)) { /* on no disk: no frame */
        if (wr_queue_room(e, to, to->next)) wr_queue_no_memory();
        move_over(e, q, sequence, to, reason, 0);
        return;
    }
    if (entry->state == WR_ENTRY_READY) wr_queue_unready(q, sequence, entry);
    else q->unacked_n--;
    entry->state = WR_ENTRY_DYING;
    q->policy->dying_n++;
    e->deaths = wr_queue_grown(e->deaths, &e->deaths_size, e->deaths_n + 1, sizeof *e->deaths);
    e->deaths[e->deaths_n++] = (wr_death){.queue = q, .sequence = sequence, .reason = reason};
    wr_queue_dirty(e, q);
}

/* One MOVE frame from `at` on. Returns the death behind the last one in it; *error as wr_policy_bury. */
static uint64_t bury_some(wr_queue_engine *e, uint64_t at, int *error) {
    static __thread struct {
        wr_queue *from, *to;
        uint64_t first, count, target;
        uint32_t reason;
    } spans[SPANS_A_FRAME];
    uint32_t n = 0;
    uint64_t end = at;
    for (; end < e->deaths_n; end++) {
        const wr_death *d = &e->deaths[end];
        if (!d->queue) continue;
        if (n && spans[n - 1].from == d->queue && spans[n - 1].reason == d->reason &&
            spans[n - 1].first + spans[n - 1].count == d->sequence) {
            spans[n - 1].count++;
        } else {
            if (n == SPANS_A_FRAME) break;
            wr_queue *to = grave_of(e, d->queue);
            if (!to) { /* deleted since: it cannot go there */
                wr_queue_remove_entry(e, d->queue, d->sequence, wr_queue_entry(d->queue, d->sequence), true, false);
                e->deaths[end].queue = NULL;
                continue;
            }
            spans[n].from = d->queue;
            spans[n].to = to;
            spans[n].first = d->sequence;
            spans[n].count = 1;
            spans[n].target = to->next + d->queue->policy->burying_n;
            spans[n].reason = d->reason;
            n++;
        }
        wr_queue *to = spans[n - 1].to;
        if (wr_queue_room(e, to, to->next + d->queue->policy->burying_n++)) wr_queue_no_memory();
    }
    for (uint32_t i = 0; i < n; i++) spans[i].from->policy->burying_n = 0;
    if (!n) return end;
    uint64_t bytes = wr_frame_bytes((uint64_t)n * 2 * WR_RANGE_SIZE), offset;
    uint8_t *to = wr_journal_reserve(e, false, bytes, &offset);
    uint32_t file = 0;
    if (to) {
        uint8_t *range = to + WR_FRAME_HEAD_BYTES;
        for (uint32_t i = 0; i < n; i++) {
            wr_move_put(range, spans[i].from, spans[i].first, spans[i].count, spans[i].to, spans[i].target, spans[i].reason);
            range += 2 * WR_RANGE_SIZE;
        }
        wr_frame_head head = {.kind = WR_KIND_MOVE, .extra = 2 * n};
        wr_frame_seal(to, &head, (uint64_t)n * 2 * WR_RANGE_SIZE, wr_log_look(e->log)->salt);
        wr_journal_append(e, false, bytes, false);
        file = (uint32_t)wr_log_look(e->log)->file;
    } else {
        *error = errno;
        if (*error == EAGAIN) return at;
        file = (uint32_t)wr_log_look(e->log)->file; /* the log has failed: memory goes on, nothing is confirmed */
    }
    for (uint32_t i = 0; i < n; i++)
        for (uint64_t k = 0; k < spans[i].count; k++)
            move_over(e, spans[i].from, spans[i].first + k, spans[i].to, spans[i].reason, file);
    return end;
}

int wr_policy_bury(wr_queue_engine *e) {
    uint64_t at = 0;
    int error = 0;
    while (at < e->deaths_n && error != EAGAIN) at = bury_some(e, at, &error);
    memmove(e->deaths, e->deaths + at, (e->deaths_n - at) * sizeof *e->deaths);
    e->deaths_n -= at;
    return error;
}

/* ---- by the clock ---- */

/* Expired rows at the head, and at the head of each level. Returns when the next one expires, 0: there are more now. */
static uint64_t expire_heads(wr_queue_engine *e, wr_queue *q, uint64_t now, bool *any) {
    wr_policy *p = q->policy;
    uint64_t next = UINT64_MAX, budget = DEATHS_A_TURN, sequence;
    for (uint32_t level = 0; level <= p->o.max_priority; level++) {
        while (p->expiring_n) {
            wr_entry *entry = p->o.max_priority ? first_of_level(q, level, &sequence) : wr_queue_first(q, &sequence);
            if (!entry || !entry->expires) break;
            if (entry->expires > now) {
                if (entry->expires < next) next = entry->expires;
                break;
            }
            if (!budget--) return 0;
            wr_policy_die(e, q, sequence, entry, WR_REASON_EXPIRED);
            *any = true;
        }
    }
    if (p->expiring_n && next > now + LOOK_AGAIN_MS) next = now + LOOK_AGAIN_MS; /* the head may go before */
    return next;
}

static uint64_t shorten(wr_queue_engine *e, wr_queue *q, bool *any) {
    uint64_t budget = DEATHS_A_TURN, sequence;
    while (too_long(q)) {
        if (!budget--) return 0;
        wr_entry *entry = least(q, &sequence);
        if (!entry) break;
        wr_policy_die(e, q, sequence, entry, WR_REASON_MAXLEN);
        *any = true;
    }
    return UINT64_MAX;
}

bool wr_policy_turn(wr_queue_engine *e) {
    if (!e->timed_n || e->frozen) return false;
    uint64_t now = wr_wall_ms();
    if (now < e->timed_at) return false;
    bool any = false;
    uint64_t kept = 0, n = e->timed_n;
    e->timed_at = UINT64_MAX;
    for (uint64_t i = 0; i < n; i++) {
        wr_queue *q = e->timed[i];
        wr_policy *p = q->policy;
        any |= release_due(e, q, now);
        uint64_t when = expire_heads(e, q, now, &any), then = shorten(e, q, &any);
        if (then < when) when = then;
        if (p->heap_n && p->heap[0].due < when) when = p->heap[0].due;
        if (when < e->timed_at) e->timed_at = when;
        if (p->expiring_n || p->heap_n || !when) e->timed[kept++] = q;
        else p->timed = false;
    }
    /* nobody has come meanwhile: a companion has no times of its own */
    assert(e->timed_n == n);
    e->timed_n = kept;
    return any;
}

uint64_t wr_policy_sleep_ns(const wr_queue_engine *e, uint64_t most) {
    if (!e->timed_n || e->frozen || e->stalled) return most; /* nothing is looked at then */
    uint64_t now = wr_wall_ms();
    if (e->timed_at <= now) return 0;
    uint64_t ms = e->timed_at - now;
    return ms < most / 1000000 ? ms * 1000000 : most;
}

/* ---- admission ---- */

static bool seen_before(wr_policy *p, const uint8_t *key, uint64_t now) {
    uint64_t a, b;
    while (p->keys_n) { /* what is outside of the window goes */
        const wr_seen *oldest = &p->keys[p->keys_first];
        if (oldest->published + p->o.deduplication_ms > now && p->keys_n < WR_KEYS_MAX) break;
        uint64_t *at = wr_map_find(&p->seen, oldest->a, oldest->b);
        if (at && *at == oldest->published) wr_map_remove(&p->seen, oldest->a, oldest->b);
        p->keys_first = (p->keys_first + 1) % p->keys_size;
        p->keys_n--;
    }
    memcpy(&a, key, 8);
    memcpy(&b, key + 8, 8);
    uint64_t *at = wr_map_find(&p->seen, a, b);
    return at && *at + p->o.deduplication_ms > now;
}

void wr_policy_seen(wr_queue *q, const uint8_t key[WR_KEY_BYTES], uint64_t published, uint64_t now) {
    wr_policy *p = q->policy;
    if (!p || !p->o.deduplication_ms || published + p->o.deduplication_ms <= now || seen_before(p, key, now)) return;
    if (p->keys_n == p->keys_size) {
        uint64_t size = p->keys_size ? 2 * p->keys_size : 64;
        wr_seen *keys = malloc(size * sizeof *keys);
        if (!keys) wr_queue_no_memory();
        for (uint64_t i = 0; i < p->keys_n; i++) keys[i] = p->keys[(p->keys_first + i) % p->keys_size];
        free(p->keys);
        p->keys = keys;
        p->keys_first = 0;
        p->keys_size = size;
    }
    wr_seen *row = &p->keys[(p->keys_first + p->keys_n++) % p->keys_size];
    memcpy(&row->a, key, 8);
    memcpy(&row->b, key + 8, 8);
    row->published = published;
    *put(&p->seen, row->a, row->b) = published;
}

static bool full(const wr_queue *q, uint32_t length) {
    const wr_policy *p = q->policy;
    return p->o.reject_publish && ((p->o.max_length && q->ready_n >= p->o.max_length) ||
                                   (p->o.max_length_bytes && p->ready_bytes + length > p->o.max_length_bytes));
}

wr_admission wr_policy_admit(wr_queue_engine *e, wr_queue *q, const uint8_t *key, uint64_t published, uint32_t length) {
    if (key && q->policy->o.deduplication_ms && seen_before(q->policy, key, published)) return WR_ADMIT_DUPLICATE;
    if (!full(q, length)) return WR_ADMIT;
    bool any = false;
    if (q->policy->expiring_n) expire_heads(e, q, wr_wall_ms(), &any);
    if (!full(q, length)) return WR_ADMIT;
    /* Who waits for messages gets some of these first, in the delivery of this round. */
    if (q->ready_n && wr_queue_would_deliver(e, q)) {
        wr_queue_wake(e, q);
        return WR_ADMIT_LATER;
    }
    return WR_ADMIT_REFUSED;
}

#define KEYS_A_FRAME 2048

static void write_key(uint8_t *row, uint32_t queue, const wr_seen *key) {
    wr_put32(row + WR_SEEN_KEY_AT_QUEUE, queue);
    wr_put64(row + WR_SEEN_KEY_AT_PUBLISHED, key->published);
    memcpy(row + WR_SEEN_KEY_AT_KEY, &key->a, 8);
    memcpy(row + WR_SEEN_KEY_AT_KEY + 8, &key->b, 8);
}

void wr_policy_write_keys(wr_queue_engine *e) {
    uint64_t room = e->o.file_bytes / 8 / WR_SEEN_KEY_SIZE; /* of all queues; beyond it the oldest of a queue are left out */
    for (uint64_t i = 0; i < e->queues.size && room; i++) {
        if (!e->queues.rows[i].used) continue;
        const wr_queue *q = (const wr_queue *)(uintptr_t)e->queues.rows[i].value;
        const wr_policy *p = q->policy;
        uint64_t n = p ? (p->keys_n < room ? p->keys_n : room) : 0;
        room -= n;
        while (n) {
            uint64_t part = n < KEYS_A_FRAME ? n : KEYS_A_FRAME, bytes = wr_frame_bytes(part * WR_SEEN_KEY_SIZE), offset;
            uint8_t *at = wr_log_reserve(e->log, bytes, &offset, NULL);
            if (!at) return; /* as with the first frame of a file: the older files know */
            uint8_t *row = at + WR_FRAME_HEAD_BYTES;
            for (uint64_t k = 0; k < part; k++, row += WR_SEEN_KEY_SIZE)
                write_key(row, q->id, &p->keys[(p->keys_first + p->keys_n - n + k) % p->keys_size]);
            wr_frame_head head = {.kind = WR_KIND_KEYS, .extra = (uint32_t)part};
            wr_frame_seal(at, &head, part * WR_SEEN_KEY_SIZE, wr_log_look(e->log)->salt);
            wr_log_append(e->log, bytes, false);
            n -= part;
        }
    }
}

uint64_t wr_policy_keys(const wr_queue *q, uint8_t *rows) {
    const wr_policy *p = q->policy;
    uint64_t n = p ? p->keys_n : 0;
    for (uint64_t k = 0; rows && k < n; k++) write_key(rows + k * WR_SEEN_KEY_SIZE, q->id, &p->keys[(p->keys_first + k) % p->keys_size]);
    return n;
}

int wr_policy_replay_keys(wr_queue_engine *e, const uint8_t *rows, uint64_t bytes, uint32_t n) {
    if ((uint64_t)n * WR_SEEN_KEY_SIZE > bytes) return EBADMSG;
    uint64_t now = wr_wall_ms();
    for (; n; n--, rows += WR_SEEN_KEY_SIZE) {
        wr_queue *q = wr_queue_named(e, wr_get32(rows + WR_SEEN_KEY_AT_QUEUE));
        uint64_t published = wr_get64(rows + WR_SEEN_KEY_AT_PUBLISHED);
        if (published >> WR_TIME_BITS) return EBADMSG;
        if (q) wr_policy_seen(q, rows + WR_SEEN_KEY_AT_KEY, published, now);
    }
    return 0;
}

/* ---- invariants ---- */

void wr_policy_check(const wr_queue *q) {
    const wr_policy *p = q->policy;
    uint64_t bytes = 0, expiring = 0, delayed = 0, dying = 0, levels[WR_LEVELS] = {0}, all = 0;
    bool paged = false;
    for (uint64_t i = 0; i < q->chunks_n; i++) {
        const wr_chunk *chunk = q->chunks[q->chunks_at + i];
        paged |= chunk && !chunk->rows;
        for (uint32_t r = 0; chunk && chunk->rows && r < WR_CHUNK_ROWS; r++) {
            const wr_entry *entry = &chunk->rows[r];
            uint64_t sequence = (q->chunk_base + i) * WR_CHUNK_ROWS + r;
            if (entry->state == WR_ENTRY_DELAYED) {
                delayed++;
                assert(wr_map_find(&p->due, sequence, 0));
            }
            dying += entry->state == WR_ENTRY_DYING;
            if (entry->state != WR_ENTRY_READY) continue;
            bytes += entry->body_length;
            expiring += entry->expires != 0;
            levels[level_of(p, entry)]++;
            assert(!p->o.max_priority || sequence >= p->level_from[level_of(p, entry)]);
        }
    }
    assert(delayed == p->delayed_n && dying == p->dying_n && p->due.n == delayed && p->heap_n >= delayed);
    for (uint32_t level = 0; p->o.max_priority && level < WR_LEVELS; level++) all += p->level_n[level];
    assert(!p->o.max_priority || all == q->ready_n);
    if (paged) return; /* the rest is on disk */
    assert((bytes == p->ready_bytes || !(p->o.max_length_bytes)) && expiring <= p->expiring_n);
    for (uint32_t level = 0; p->o.max_priority && level < WR_LEVELS; level++) assert(levels[level] == p->level_n[level]);
}
