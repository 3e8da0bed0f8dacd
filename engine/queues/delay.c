/* Delayed rows. Declared in queues/delay.h. */
#include "queues/delay.h"
#include "queues/entries.h"
#include "queues/levels.h"
#include "queues/memory.h"
#include "queues/owed.h"
#include "queues/pages.h"
#include <assert.h>

#define DELAYS_A_FRAME 2048

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

/* A DELAYED row, in the heap under its earlier times, too, if it had some. */
static void wait_until(wr_queue_engine *e, wr_queue *q, uint64_t sequence, uint64_t due) {
    wr_policy *p = q->policy;
    *wr_map_set(&p->due, sequence, 0) = due;
    heap_push(p, (wr_delayed){.due = due, .sequence = sequence});
    wr_policy_look_at(e, q, due);
}

void wr_policy_delay(wr_queue_engine *e, wr_queue *q, uint64_t sequence, uint64_t due) {
    wr_entry *entry = wr_queue_entry(q, sequence);
    assert(entry && entry->state == WR_ENTRY_READY);
    wr_policy *p = wr_policy_of(q);
    wr_queue_unready(q, sequence, entry);
    entry->state = WR_ENTRY_DELAYED;
    p->delayed_n++;
    wait_until(e, q, sequence, due);
}

void wr_policy_return_later(wr_queue_engine *e, wr_queue *q, uint64_t sequence, uint64_t due) {
    wr_entry *entry = wr_queue_entry(q, sequence);
    if (!entry) return;
    if (entry->state == WR_ENTRY_READY) wr_policy_delay(e, q, sequence, due);
    else if (entry->state == WR_ENTRY_DELAYED) wait_until(e, q, sequence, due);
    else return;
    if (!(entry->flags & WR_ENTRY_PERSISTENT)) return; /* on no disk: no frame */
    if (!(entry->flags & WR_ENTRY_RETURNED)) q->policy->returned_n++;
    entry->flags |= WR_ENTRY_RETURNED;
    wr_journal_delay(e, q, sequence, due);
}

void wr_policy_write_delays(wr_queue_engine *e, uint64_t leave) {
    /* of all queues; beyond it some come early after a kill */
    uint64_t room = e->o.file_bytes / WR_JOURNAL_KEYS_PART / WR_RANGE_SIZE;
    for (uint64_t i = 0; i < e->queues.size && room; i++) {
        if (!e->queues.rows[i].used) continue;
        wr_queue *q = (wr_queue *)(uintptr_t)e->queues.rows[i].value;
        uint64_t n = q->policy ? (q->policy->returned_n < room ? q->policy->returned_n : room) : 0;
        room -= n;
        for (uint64_t at = 0; n;) {
            uint32_t part = n < DELAYS_A_FRAME ? (uint32_t)n : DELAYS_A_FRAME;
            uint64_t bytes = wr_frame_bytes(part * WR_RANGE_SIZE), offset;
            uint8_t *to = wr_log_reserve_here(e->log, bytes, leave, &offset);
            if (!to) return; /* as with the first frame of a file: the older files know */
            uint8_t *range = to + WR_FRAME_HEAD_BYTES;
            for (uint32_t k = 0; k < part; at++) {
                assert(at < q->policy->due.size);
                const wr_map_row *row = &q->policy->due.rows[at];
                if (!row->used || !(wr_queue_entry(q, row->a)->flags & WR_ENTRY_RETURNED)) continue;
                range = wr_range_put(range, q->id, row->a, 1, row->value);
                k++;
            }
            wr_frame_head head = {.kind = WR_KIND_DELAY, .extra = part};
            wr_frame_seal(to, &head, part * WR_RANGE_SIZE, wr_log_look(e->log)->salt);
            wr_log_append(e->log, bytes, false);
            n -= part;
        }
    }
}

uint64_t wr_policy_due(const wr_queue *q, uint64_t sequence) {
    uint64_t *due = q->policy ? wr_map_find(&q->policy->due, sequence, 0) : NULL;
    return due ? *due : 0;
}

bool wr_policy_release_due(wr_queue_engine *e, wr_queue *q, uint64_t now) {
    wr_policy *p = q->policy;
    bool any = false;
    while (p->heap_n && p->heap[0].due <= now) {
        wr_delayed top = p->heap[0];
        uint64_t sequence = top.sequence;
        heap_pop(p);
        wr_entry *entry = wr_queue_entry(q, sequence);
        if (!entry || entry->state != WR_ENTRY_DELAYED || wr_policy_due(q, sequence) > top.due) continue;
        wr_policy_other_goes(q, sequence, entry);
        entry->flags &= (uint8_t)~WR_ENTRY_RETURNED;
        wr_queue_ready(e, q, sequence, entry);
        any = true;
    }
    return any;
}
