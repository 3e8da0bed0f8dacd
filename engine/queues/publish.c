/* A message into its queues. Declared in queues/publish.h. */
#include "queues/command.h"
#include "queues/delay.h"
#include "queues/entries.h"
#include "queues/horizons.h"
#include "queues/journal.h"
#include "queues/keys.h"
#include "queues/links.h"
#include "queues/owed.h"
#include "queues/pages.h"
#include "queues/policy.h"
#include "queues/publish.h"
#include "queues/registry.h"
#include "queues/rows.h"
#include "queues/store_side.h"

typedef struct {
    uint32_t queues_n;
    wr_queue *queues[WR_ROUTES_MAX];
} routes;

/* What a PUBLISH says beside its body; copied once, because the client may change its memory. */
typedef struct {
    uint64_t published, expires, due; /* milliseconds of CLOCK_REALTIME; `published` only if something needs it */
    uint8_t priority;
    bool keyed;
    uint8_t key[WR_KEY_BYTES];
} message;

/* One journal's part of a message: a frame, and an entry in each queue. The body's store write, if any, was prepared
 * before. */
static wr_outcome publish_part(wr_queue_engine *e, wr_qlink *l, const wr_command *c, uint64_t sequence, const uint8_t *blob,
                            uint32_t length, const message *m, const routes *to, bool transient) {
    bool stored = length >= e->o.super->embed_bytes_max;
    bool timed = m->published;
    uint8_t prefix[WR_ROUTES_MAX * WR_ROUTE_SIZE + 4 + WR_TIMES_SIZE + WR_KEY_BYTES];
    uint64_t prefix_length = (uint64_t)to->queues_n * WR_ROUTE_SIZE;
    for (uint32_t i = 0; i < to->queues_n; i++) {
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
    uint8_t *at = wr_journal_reserve(e, transient, total, &offset);
    if (!at) return WR_WAIT; /* the caller has looked at the log's health */
    uint64_t store_sequence = 0;
    uint32_t store = transient ? 1 : 0;
    if (stored) {
        uint64_t owner = (uint64_t)l->generation << 16 | (l->slot + 1);
        uint64_t position = c->body + (uint64_t)(c->length - length);
        if (wr_queue_store_write(e, store, c->id, position, length, c->meta_length, owner, transient ? 0 : WR_FLAG_SYNCED, &store_sequence))
            return WR_WAIT;
    }
    const wr_log_state *state = wr_log_look(transient ? e->transient_log : e->log);
    wr_frame_head head = {.kind = WR_KIND_PUBLISH,
                          .flags = (uint16_t)((stored ? WR_FRAME_STORED : 0) | (transient ? WR_FRAME_TRANSIENT : 0) |
                                              (timed ? WR_FRAME_TIMED : 0) | (m->keyed ? WR_FRAME_KEYED : 0) |
                                              m->priority << WR_FRAME_PRIORITY_SHIFT),
                          .client_epoch = l->client_epoch,
                          .sequence = sequence + 1,
                          .extra = to->queues_n,
                          .meta_length = c->meta_length};
    memcpy(head.id, c->id, 16);
    wr_frame_write(at, &head, prefix, prefix_length, blob, stored ? 0 : length, state->salt);
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
                      .priority = m->priority & 15};
    entry.location = transient ? (stored ? WR_LOCATION_STORE_TRANSIENT : WR_LOCATION_JOURNAL_TRANSIENT)
                               : (stored ? WR_LOCATION_STORE : WR_LOCATION_JOURNAL);
    memcpy(entry.id, c->id, 16);
    for (uint32_t i = 0; i < to->queues_n; i++) {
        wr_queue *q = to->queues[i];
        if (timed) entry.expires = wr_policy_expires(q, m->published, m->expires, m->due);
        wr_queue_insert(e, q, q->next, &entry);
        q->published_n++;
        if (timed && m->due > m->published) wr_policy_delay(e, q, q->next - 1, m->due);
        if (m->keyed) wr_policy_seen(q, m->key, m->published, m->published);
        if (q->consumers_n) wr_queue_wake(e, q);
    }
    if (stored) {
        uint64_t a, b;
        wr_owed_key(c->id, &a, &b);
        *wr_map_put(&e->stores[store].refs, a, b) += to->queues_n; /* room was reserved by wr_queue_store_write */
        wr_link_add_gate(e, l, sequence, store, store_sequence, (uint32_t)wr_log_look(e->log)->file);
    }
    e->published_n += to->queues_n;
    return WR_DONE;
}

/* The dead worker answered that not every queue took it. A command that was to be executed has no result yet. */
static bool turned_away(const wr_command *c) {
    uint32_t result = atomic_load_explicit(&c->result, memory_order_relaxed);
    return result == WR_RESULT_REFUSED || result == WR_RESULT_DUPLICATE;
}

/* A publish whose frame is on disk from before. The store may not have the body: send it again while its publisher
 * keeps it. */
static wr_outcome publish_again(wr_queue_engine *e, wr_qlink *l, const wr_command *c, wr_command *record, uint64_t sequence,
                             uint32_t length) {
    if (length >= e->o.super->embed_bytes_max) {
        uint64_t a, b, store_sequence;
        wr_owed_key(c->id, &a, &b);
        if (wr_map_find(&e->stores[0].refs, a, b)) {
            uint64_t owner = (uint64_t)l->generation << 16 | (l->slot + 1);
            if (wr_queue_store_write(e, 0, c->id, c->body + (uint64_t)(c->length - length), length, c->meta_length, owner,
                                     WR_FLAG_SYNCED | WR_FLAG_REQUEUE, &store_sequence))
                return WR_WAIT;
            /* frames of the commands behind it may lie in any file */
            wr_link_add_gate(e, l, sequence, 0, store_sequence, 0);
        }
    }
    return wr_command_answer(record, turned_away(c) ? atomic_load_explicit(&c->result, memory_order_relaxed) : WR_RESULT_OK);
}

wr_outcome wr_command_publish(wr_queue_engine *e, wr_qlink *l, const wr_command *c, wr_command *record, uint64_t sequence) {
    static __thread routes durable, transient, refused, duplicate;
    uint32_t ids[WR_ROUTES_MAX];
    uint32_t ids_n = 1;
    const uint8_t *blob = wr_command_blob(l, c);
    if (!blob) goto nonsense;
    uint32_t length = c->length;
    if (c->flags & WR_FLAG_ROUTES) {
        ids_n = c->queue;
        if (ids_n > WR_ROUTES_MAX || (uint64_t)ids_n * 4 > length) goto nonsense;
        memcpy(ids, blob, (size_t)ids_n * 4); /* once: the client may change it */
        blob += (size_t)ids_n * 4;
        length -= ids_n * 4;
    } else {
        ids[0] = c->queue;
    }
    message m = {0};
    if (c->flags & WR_FLAG_DEDUPLICATE) {
        if (length < WR_KEY_BYTES) goto nonsense;
        m.keyed = true;
        memcpy(m.key, blob, WR_KEY_BYTES);
        blob += WR_KEY_BYTES;
        length -= WR_KEY_BYTES;
    }
    if (c->count | c->tag) {
        m.expires = c->count & ~(~0ull << WR_PRIORITY_SHIFT);
        m.due = c->tag;
        m.priority = (uint8_t)(c->count >> WR_PRIORITY_SHIFT);
        if ((m.expires | m.due) >> WR_TIME_BITS || m.priority > WR_PRIORITY_MAX) goto nonsense;
    }
    if (m.keyed || m.expires || m.due) m.published = wr_wall_ms();
    if (c->meta_length > length || length > e->o.super->message_bytes_max) goto nonsense;
    if (wr_pages_full(e)) return WR_WAIT; /* until the flush under way has ended */
    if (sequence < l->high && l->next < l->takeup_tail) return publish_again(e, l, c, record, sequence, length);
    durable.queues_n = transient.queues_n = refused.queues_n = duplicate.queues_n = 0;
    bool told = sequence < l->takeup_processed && sequence < l->takeup_tail;
    if (told && turned_away(c)) return WR_DONE; /* what it wrote beside it would lie below `high` */
    bool half_done = l->half_done == sequence + 1;
    for (uint32_t i = 0; i < ids_n; i++) {
        wr_queue *q = wr_queue_find(e, ids[i]);
        if (!q) {
            if (l->unknown_checked != sequence + 1) {
                l->pause = WR_PAUSE_UNKNOWN;
                e->unknown_waiting = true;
                return WR_WAIT;
            }
            e->unroutable_n++;
            continue;
        }
        routes *to = q->durable && c->flags & WR_FLAG_PERSISTENT ? &durable : &transient;
        if (told && to == &transient) continue; /* it died with the worker that had it */
        uint32_t twice = 0;
        while (twice < to->queues_n && ids_n > 1 && to->queues[twice] != q) twice++;
        if (ids_n > 1 && twice < to->queues_n) continue;
        if (q->policy && !(half_done && to == &durable)) {
            if (!m.published && wr_needs_times(q)) m.published = wr_wall_ms();
            wr_admission admission = wr_policy_admit(e, q, m.keyed ? m.key : NULL, m.published, length);
            if (admission == WR_ADMIT_LATER) return WR_WAIT;
            routes *away = admission == WR_ADMIT_REFUSED ? &refused : admission == WR_ADMIT_DUPLICATE ? &duplicate : NULL;
            if (away) {
                away->queues[away->queues_n++] = q;
                continue;
            }
        }
        if (wr_queue_room(e, q, q->next)) return WR_WAIT;
        to->queues[to->queues_n++] = q;
    }
    if (durable.queues_n && wr_log_look(e->log)->failed) {
        /* Before the answer: the client looks there for the cause. */
        atomic_store_explicit(&e->me->error, (uint32_t)wr_log_look(e->log)->failed, memory_order_release);
        return wr_command_answer(record, WR_RESULT_ERROR);
    }
    if (transient.queues_n && wr_log_look(e->transient_log)->failed) return wr_command_answer(record, WR_RESULT_ERROR);
    /* Before its frame: a worker that is killed behind the frame has told its successor what it cannot see in the
     * frame. */
    if (refused.queues_n) wr_command_answer(record, WR_RESULT_REFUSED);
    /* When the second part has to wait, the first must not be written twice. */
    if (durable.queues_n && !half_done) {
        if (publish_part(e, l, c, sequence, blob, length, &m, &durable, false) == WR_WAIT) return WR_WAIT;
        l->half_done = sequence + 1;
    }
    if (transient.queues_n && publish_part(e, l, c, sequence, blob, length, &m, &transient, true) == WR_WAIT) return WR_WAIT;
    for (uint32_t i = 0; i < refused.queues_n; i++) refused.queues[i]->policy->refused_n++;
    for (uint32_t i = 0; i < duplicate.queues_n; i++) duplicate.queues[i]->policy->duplicates_n++;
    for (uint32_t i = 0; i < refused.queues_n; i++) wr_queue_dirty(e, refused.queues[i]);
    for (uint32_t i = 0; i < duplicate.queues_n; i++) wr_queue_dirty(e, duplicate.queues[i]);
    if (duplicate.queues_n && c->flags & (WR_FLAG_SYNCED | WR_FLAG_WRITTEN)) {
        l->dirty = e->want_commit = true; /* the first one may have come by another link, and not be there yet */
        e->want_sync |= c->flags & WR_FLAG_SYNCED;
    }
    if (!durable.queues_n) wr_link_wants(e, l, c->flags);
    bool stored = durable.queues_n || transient.queues_n;
    if (refused.queues_n || (half_done && turned_away(c))) return wr_command_answer(record, WR_RESULT_REFUSED);
    return wr_command_answer(record, stored ? WR_RESULT_OK : duplicate.queues_n ? WR_RESULT_DUPLICATE : WR_RESULT_NO);
nonsense:
    wr_link_evict(e, l, WR_EVICTED_BLOB);
    return WR_WAIT;
}
