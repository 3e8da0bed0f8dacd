/* Delayed rows. Declared in queues/delay.h. */
#include "queues/delay.h"
#include "queues/entries.h"
#include "queues/levels.h"
#include "queues/memory.h"
#include "queues/pages.h"
#include <assert.h>

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
    wr_policy *p = wr_policy_of(q);
    wr_queue_unready(q, sequence, entry);
    entry->state = WR_ENTRY_DELAYED;
    p->delayed_n++;
    *wr_map_set(&p->due, sequence, 0) = due;
    heap_push(p, (wr_delayed){.due = due, .sequence = sequence});
    wr_policy_look_at(e, q, due);
}

uint64_t wr_policy_due(const wr_queue *q, uint64_t sequence) {
    uint64_t *due = q->policy ? wr_map_find(&q->policy->due, sequence, 0) : NULL;
    return due ? *due : 0;
}

bool wr_policy_release_due(wr_queue_engine *e, wr_queue *q, uint64_t now) {
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
