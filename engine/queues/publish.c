/* A message into its queues. Declared in queues/publish.h. */
#include "queues/barred.h"
#include "queues/command.h"
#include "queues/delay.h"
#include "queues/delivery.h"
#include "queues/entries.h"
#include "queues/horizons.h"
#include "queues/journal.h"
#include "queues/keys.h"
#include "queues/large.h"
#include "queues/links.h"
#include "queues/owed.h"
#include "queues/pages.h"
#include "queues/policy.h"
#include "queues/publish.h"
#include "queues/registry.h"
#include "queues/rows.h"
#include "queues/store_side.h"

/* A PUBLISH, read once, because the client may change its memory; what it says beside its body, and where it goes. */
typedef struct {
    const uint8_t *blob; /* metadata and body, in the arena; NULL: in a file of their own */
    uint32_t length;
    uint64_t published, expires, due; /* milliseconds of CLOCK_REALTIME; `published` only if something needs it */
    uint8_t priority;
    bool keyed;
    uint8_t key[WR_KEY_BYTES];
    uint32_t ids_n;
    uint32_t ids[WR_ROUTES_MAX];
} message;

/* One journal's part of a message: a frame, and an entry in each queue. The body's store write, if any, was prepared
 * before. */
static wr_outcome publish_part(wr_queue_engine *e, wr_qlink *l, const wr_command *c, uint64_t sequence,
                               const message *m, const wr_routes *to, bool transient) {
    uint32_t length = m->length;
    bool large = !m->blob, stored = large || length >= e->o.super->embed_bytes_max;
    bool timed = m->published;
    uint8_t prefix[WR_ROUTES_MAX * WR_ROUTE_SIZE + 4 + WR_TIMES_SIZE + WR_KEY_BYTES];
    uint64_t prefix_length = (uint64_t)to->n * WR_ROUTE_SIZE;
    for (uint32_t i = 0; i < to->n; i++) {
        wr_put32(prefix + (uint64_t)i * WR_ROUTE_SIZE + WR_ROUTE_AT_QUEUE, to->queues[i]->id);
        wr_put64(prefix + (uint64_t)i * WR_ROUTE_SIZE + WR_ROUTE_AT_SEQUENCE, to->queues[i]->next);
    }
    if (stored) {
        wr_put32(prefix + prefix_length, length);
        prefix_length += 4;
    }
    if (timed) {
        uint8_t *times = prefix + prefix_length;
        wr_put64(times + WR_TIMES_AT_PUBLISHED, m->published);
        wr_put64(times + WR_TIMES_AT_EXPIRES, m->expires);
        wr_put64(times + WR_TIMES_AT_DUE, m->due);
        prefix_length += WR_TIMES_SIZE;
        if (m->keyed) {
            memcpy(prefix + prefix_length, m->key, WR_KEY_BYTES);
            prefix_length += WR_KEY_BYTES;
        }
    }
    uint64_t total = wr_frame_bytes(prefix_length + (stored ? 0 : length)), offset;
    uint8_t *at = wr_journal_reserve_new(e, transient, total, &offset);
    if (!at) return WR_WAIT; /* the caller has looked at the log's health */
    uint64_t store_sequence = 0;
    uint32_t store = transient ? 1 : 0;
    if (large) {
        if (wr_queue_large_reserve(e)) return WR_WAIT;
    } else if (stored) {
        uint64_t owner = wr_owner_tag(l->slot, l->generation);
        uint64_t position = c->body + (uint64_t)(c->length - length);
        if (wr_queue_store_write(e, store, c->id, position, length, c->meta_length, owner,
                                 transient ? 0 : WR_FLAG_SYNCED, &store_sequence))
            return WR_WAIT;
    }
    const wr_log_state *state = wr_log_look(transient ? e->transient_log : e->log);
    wr_frame_head head = {.kind = WR_KIND_PUBLISH,
                          .flags = (uint16_t)((stored ? WR_FRAME_STORED : 0) | (large ? WR_FRAME_LARGE : 0) | (transient ? WR_FRAME_TRANSIENT : 0) |
                                              (timed ? WR_FRAME_TIMED : 0) | (m->keyed ? WR_FRAME_KEYED : 0) |
                                              m->priority << WR_FRAME_PRIORITY_SHIFT),
                          .client_epoch = l->client_epoch,
                          .sequence = sequence + 1,
                          .extra = to->n,
                          .meta_length = c->meta_length};
    memcpy(head.id, c->id, 16);
    wr_frame_write(at, &head, prefix, prefix_length, m->blob, stored ? 0 : length, state->salt);
    wr_journal_append(e, transient, total, c->flags & WR_FLAG_SYNCED);
    if (!transient) {
        l->dirty = true;
        if (c->flags & WR_FLAG_WRITTEN) e->want_commit = true;
    }
    wr_entry entry = {.file = (uint32_t)state->file,
                      .offset = (uint32_t)offset,
                      .frame_length = (uint32_t)total,
                      .body_length = length,
                      .blob_offset = (uint16_t)(WR_FRAME_HEAD_BYTES + prefix_length),
                      .meta_length = c->meta_length,
                      .index_file = (uint32_t)state->file,
                      .flags = transient ? 0 : WR_ENTRY_PERSISTENT,
                      .priority = m->priority};
    entry.location = large       ? (transient ? WR_LOCATION_LARGE_TRANSIENT : WR_LOCATION_LARGE)
                     : transient ? (stored ? WR_LOCATION_STORE_TRANSIENT : WR_LOCATION_JOURNAL_TRANSIENT)
                                 : (stored ? WR_LOCATION_STORE : WR_LOCATION_JOURNAL);
    memcpy(entry.id, c->id, 16);
    for (uint32_t i = 0; i < to->n; i++) {
        wr_queue *q = to->queues[i];
        entry.expires = timed && !q->letters ? wr_policy_expires(q, m->published, m->expires, m->due) : 0;
        entry.reason = q->letters ? WR_REASON_MAXLEN : WR_REASON_NONE;
        wr_queue_insert(e, q, q->next, &entry);
        q->published_n++;
        if (timed && !q->letters && m->due > m->published) wr_policy_delay(e, q, q->next - 1, m->due);
        if (m->keyed) wr_policy_seen(q, m->key, m->published, m->published);
        if (entry.expires == m->published && wr_ends_at_once(q, m->expires)) wr_delivery_at_once(e, q, q->next - 1, m->published);
        if (q->consumers_n) wr_queue_wake(e, q);
    }
    if (large) {
        wr_queue_large_hold(e, c->id, to->n); /* room was reserved */
    } else if (stored) {
        uint64_t a, b;
        wr_owed_key(c->id, &a, &b);
        *wr_map_put(&e->stores[store].refs, a, b) += to->n; /* room was reserved by wr_queue_store_write */
        wr_link_add_gate(e, l, sequence, store, store_sequence, (uint32_t)wr_log_look(e->log)->file);
    }
    e->published_n += to->n;
    return WR_DONE;
}

/* The dead worker answered that not every queue took it. A command that was to be executed has no result yet. */
static bool turned_away(const wr_command *c) {
    uint32_t result = atomic_load_explicit(&c->result, memory_order_relaxed);
    return result == WR_RESULT_REFUSED || result == WR_RESULT_DUPLICATE;
}

/* A publish whose frame is on disk from before. The store may not have the body: send it again while its publisher
 * keeps it. */
static wr_outcome publish_again(wr_queue_engine *e, wr_qlink *l, const wr_command *c, wr_command *record,
                                uint64_t sequence, uint32_t length) {
    if (!(c->flags & WR_FLAG_LARGE) && length >= e->o.super->embed_bytes_max) {
        uint64_t a, b, store_sequence;
        wr_owed_key(c->id, &a, &b);
        if (wr_map_find(&e->stores[0].refs, a, b)) {
            uint64_t owner = wr_owner_tag(l->slot, l->generation);
            uint64_t position = c->body + (uint64_t)(c->length - length);
            if (wr_queue_store_write(e, 0, c->id, position, length, c->meta_length, owner,
                                     WR_FLAG_SYNCED | WR_FLAG_REQUEUE, &store_sequence))
                return WR_WAIT;
            /* frames of the commands behind it may lie in any file */
            wr_link_add_gate(e, l, sequence, 0, store_sequence, 0);
        }
    }
    return turned_away(c) ? WR_DONE : wr_command_answer(record, WR_RESULT_OK); /* the dead worker's answer stands */
}

/* False: nonsense. */
static bool decode(const wr_queue_engine *e, const wr_qlink *l, const wr_command *c, message *m) {
    m->blob = wr_command_blob(l, c);
    if (!m->blob) return false;
    m->length = c->length;
    if (c->flags & WR_FLAG_ROUTES) {
        m->ids_n = c->queue;
        if (m->ids_n > WR_ROUTES_MAX || (uint64_t)m->ids_n * 4 > m->length) return false;
        memcpy(m->ids, m->blob, (size_t)m->ids_n * 4); /* once: the client may change it */
        m->blob += (size_t)m->ids_n * 4;
        m->length -= m->ids_n * 4;
    } else {
        m->ids_n = 1;
        m->ids[0] = c->queue;
    }
    m->published = m->expires = m->due = 0;
    m->priority = 0;
    m->keyed = c->flags & WR_FLAG_DEDUPLICATE;
    if (m->keyed) {
        if (m->length < WR_KEY_BYTES) return false;
        memcpy(m->key, m->blob, WR_KEY_BYTES);
        m->blob += WR_KEY_BYTES;
        m->length -= WR_KEY_BYTES;
    }
    if (c->count | c->tag) {
        m->expires = c->count & ~(~0ull << WR_PRIORITY_SHIFT);
        m->due = c->tag;
        m->priority = (uint8_t)(c->count >> WR_PRIORITY_SHIFT);
        if ((m->expires | m->due) >> WR_TIME_BITS) return false;
    }
    if (m->keyed || m->expires || m->due) m->published = wr_wall_ms();
    if (c->flags & WR_FLAG_LARGE) {
        if (m->length != 4) return false;
        memcpy(&m->length, m->blob, 4);
        m->blob = NULL;
        return c->meta_length <= m->length && m->length <= e->o.super->message_bytes_max;
    }
    return c->meta_length <= m->length && m->length <= e->o.super->shared_bytes_max;
}

static bool has(const wr_routes *to, const wr_queue *q) {
    for (uint32_t i = 0; i < to->n; i++)
        if (to->queues[i] == q) return true;
    return false;
}

/* Which queues take it, and how, into e->routes: each queue once, with room for its row. Told: the dead worker has
 * answered it. Half done: its durable part is written, and those queues have admitted it. */
static wr_outcome sort_routes(wr_queue_engine *e, wr_qlink *l, const wr_command *c, uint64_t sequence, message *m,
                              bool told, bool half_done) {
    wr_sorted_routes *sorted = e->routes;
    sorted->durable.n = sorted->transient.n = sorted->refused.n = sorted->duplicate.n = sorted->unknown_n = 0;
    for (uint32_t i = 0; i < m->ids_n; i++) {
        wr_queue *q = wr_queue_find(e, m->ids[i]);
        if (!q) {
            if (!wr_is_reply_queue(m->ids[i]) && l->unknown_checked != sequence + 1) {
                l->pause = WR_PAUSE_UNKNOWN;
                e->unknown_waiting = true;
                return WR_WAIT;
            }
            sorted->unknown_n++;
            continue;
        }
        if (wr_is_barred(e, q)) return WR_WAIT;
        bool durable = q->durable && c->flags & WR_FLAG_PERSISTENT;
        wr_routes *to = durable ? &sorted->durable : &sorted->transient;
        if (told && !durable) continue; /* it died with the worker that had it */
        if (m->ids_n > 1 && (has(to, q) || has(&sorted->refused, q) || has(&sorted->duplicate, q))) continue;
        if (q->policy && !(half_done && durable)) {
            if (!m->published && wr_needs_times(q)) m->published = wr_wall_ms();
            wr_admission admission = wr_policy_admit(e, q, m->keyed ? m->key : NULL, m->published, m->length - c->meta_length);
            if (admission == WR_ADMIT_LATER) return WR_WAIT;
            if (admission == WR_ADMIT_REFUSED) to = &sorted->refused;
            if (admission == WR_ADMIT_DUPLICATE) to = &sorted->duplicate;
            wr_queue *letters = admission == WR_ADMIT_REFUSED && q->policy->o.refused_die ? wr_queue_find(e, q->policy->o.dead_letters) : NULL;
            if (letters) {
                if (wr_queue_room(e, letters, letters->next)) return WR_WAIT;
                wr_routes *there = letters->durable && c->flags & WR_FLAG_PERSISTENT ? &sorted->durable : &sorted->transient;
                there->queues[there->n++] = letters;
            }
        }
        if (to != &sorted->refused && to != &sorted->duplicate && wr_queue_room(e, q, q->next)) return WR_WAIT;
        to->queues[to->n++] = q;
    }
    return WR_DONE;
}

/* At the end: a publish that has to wait is sorted again. */
static void count_turned_away(wr_queue_engine *e) {
    const wr_sorted_routes *to = e->routes;
    e->unroutable_n += to->unknown_n;
    for (uint32_t i = 0; i < to->refused.n; i++) {
        to->refused.queues[i]->policy->refused_n++;
        to->refused.queues[i]->policy->dead_lettered_n += to->refused.queues[i]->policy->o.refused_die;
        wr_queue_dirty(e, to->refused.queues[i]);
    }
    for (uint32_t i = 0; i < to->duplicate.n; i++) {
        to->duplicate.queues[i]->policy->duplicates_n++;
        wr_queue_dirty(e, to->duplicate.queues[i]);
    }
}

wr_outcome wr_command_publish(wr_queue_engine *e, wr_qlink *l, const wr_command *c, wr_command *record,
                              uint64_t sequence) {
    message m;
    if (!decode(e, l, c, &m)) {
        wr_link_evict(e, l, WR_EVICTED_BLOB);
        return WR_WAIT;
    }
    if (wr_pages_full(e)) return WR_WAIT; /* until the flush under way has ended */
    if (sequence < l->high && l->next < l->takeup_tail) return publish_again(e, l, c, record, sequence, m.length);
    bool told = sequence < l->takeup_processed && sequence < l->takeup_tail;
    if (told && turned_away(c)) return WR_DONE; /* what it wrote beside it would lie below `high` */
    bool half_done = l->half_done == sequence + 1;
    if (sort_routes(e, l, c, sequence, &m, told, half_done) == WR_WAIT) return WR_WAIT;
    const wr_sorted_routes *to = e->routes;
    if (to->durable.n && wr_log_look(e->log)->failed) {
        /* Before the answer: the client looks there for the cause. */
        atomic_store_explicit(&e->me->error, (uint32_t)wr_log_look(e->log)->failed, memory_order_release);
        return wr_command_answer(record, WR_RESULT_ERROR);
    }
    if (to->transient.n && wr_log_look(e->transient_log)->failed) return wr_command_answer(record, WR_RESULT_ERROR);
    /* Before its frame: a worker that is killed behind the frame has told its successor what it cannot see in the
     * frame. */
    if (to->refused.n) wr_command_answer(record, WR_RESULT_REFUSED);
    /* When the second part has to wait, the first must not be written twice. */
    if (to->durable.n && !half_done) {
        if (publish_part(e, l, c, sequence, &m, &to->durable, false) == WR_WAIT) return WR_WAIT;
        l->half_done = sequence + 1;
    }
    if (to->transient.n && publish_part(e, l, c, sequence, &m, &to->transient, true) == WR_WAIT) return WR_WAIT;
    count_turned_away(e);
    if (to->duplicate.n && c->flags & (WR_FLAG_SYNCED | WR_FLAG_WRITTEN)) {
        l->dirty = e->want_commit = true; /* the first one may have come by another link, and not be there yet */
        e->want_sync |= c->flags & WR_FLAG_SYNCED;
    }
    if (!m.blob && !to->durable.n && !to->transient.n) wr_queue_large_unwanted(e, c->id);
    if (!to->durable.n) wr_link_wants(e, l, c->flags);
    if (to->refused.n || (half_done && turned_away(c))) return wr_command_answer(record, WR_RESULT_REFUSED);
    bool stored = to->durable.n || to->transient.n;
    return wr_command_answer(record, stored ? WR_RESULT_OK : to->duplicate.n ? WR_RESULT_DUPLICATE : WR_RESULT_NO);
}
