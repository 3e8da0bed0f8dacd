/* Replay of journal files. Declared in queues/replay.h. */
#include "queues/deaths.h"
#include "queues/delay.h"
#include "queues/entries.h"
#include "queues/keys.h"
#include "queues/large.h"
#include "queues/owed.h"
#include "queues/pages.h"
#include "queues/registry.h"
#include "queues/replay.h"
#include "queues/rows.h"

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

static int replay_publish(wr_queue_engine *e, const wr_frame_head *head, const uint8_t *frame, uint64_t total, uint32_t file,
                          uint64_t offset) {
    uint64_t room = total - WR_FRAME_HEAD_BYTES - 1;
    uint64_t blob = (uint64_t)head->extra * WR_ROUTE_SIZE;
    bool stored = head->flags & WR_FRAME_STORED, large = stored && head->flags & WR_FRAME_LARGE;
    bool timed = head->flags & WR_FRAME_TIMED, keyed = head->flags & WR_FRAME_KEYED;
    uint64_t extras = (timed ? WR_TIMES_SIZE : 0) + (keyed ? WR_KEY_BYTES : 0);
    uint8_t priority = (uint8_t)(head->flags >> WR_FRAME_PRIORITY_SHIFT & WR_FRAME_PRIORITY_MASK);
    if (head->extra > WR_ROUTES_MAX || blob + (stored ? 4 : 0) + extras > room || (keyed && !timed))
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
                      .location = large ? WR_LOCATION_LARGE : stored ? WR_LOCATION_STORE : WR_LOCATION_JOURNAL,
                      .flags = WR_ENTRY_PERSISTENT,
                      .priority = priority};
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
        entry.expires = q->letters ? 0 : wr_policy_expires(q, published, expires, due);
        wr_queue_insert(e, q, sequence, &entry);
        if (due > now && !q->letters) wr_policy_delay(e, q, sequence, due);
        if (large ? wr_queue_large_hold(e, entry.id, 1) : stored && wr_queue_store_hold(e, 0, entry.id)) return ENOMEM;
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
    uint64_t now = head->kind == WR_KIND_DELAY ? wr_wall_ms() : 0;
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
        if (head->kind == WR_KIND_DELAY) {
            uint64_t due = wr_get64(range + WR_RANGE_AT_TO);
            if (due >> WR_TIME_BITS) return EBADMSG;
            if (q && due > now)
                for (uint64_t s = first; s < first + count && s < q->next; s++) wr_policy_return_later(e, q, s, due);
            continue;
        }
        /* MOVE: this range goes to the next one */
        if (++i >= head->extra) return EBADMSG;
        range += WR_RANGE_SIZE;
        wr_queue *to = wr_queue_named(e, wr_get32(range + WR_RANGE_AT_QUEUE));
        if (!q) continue;
        if (!to) {
            /* A subscription deleted since: later frames ack its claims or bring them back, so it must be there for
             * now. */
            to = wr_queue_declare(e, wr_get32(range + WR_RANGE_AT_QUEUE), true);
            if (!to) return ENOMEM;
            to->past = true;
        }
        if (to->past) to->claims_of = q->id;
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
            if (reason) wr_make_dead_letter(&copy, (uint32_t)reason);
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
        else if (head.kind == WR_KIND_ACK || head.kind == WR_KIND_DELAY || head.kind == WR_KIND_MOVE) error = replay_ranges(e, &head, bytes + *at, total, file);
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
