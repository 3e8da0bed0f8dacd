/* Queues that wait for their deletion to be decided. Declared in queues/barred.h. */
#include "queues/barred.h"
#include "queues/consumers.h"
#include "queues/levels.h"
#include "queues/registry.h"

static uint32_t find(wr_queue_engine *e, const wr_queue *q) {
    uint32_t found = q->ready_n || wr_aside_n(q) || wr_queue_ahead(e, q) ? WR_BARRED_MESSAGES : 0;
    if (q->exclusive) found |= WR_BARRED_CONSUMERS;
    for (uint32_t i = 0; i < q->consumers_n; i++)
        if (q->consumers[i]->prefetch) found |= WR_BARRED_CONSUMERS;
    const wr_queue *letters = q->policy && q->policy->o.dead_letters ? wr_queue_find(e, q->policy->o.dead_letters) : NULL;
    if (letters && letters->ready_n + letters->unacked_n) found |= WR_BARRED_LETTERS;
    return found;
}

void wr_barred_look(wr_queue_engine *e) {
    /* SYNC barred: pairs with the supervisor's release store; it rings after it */
    const uint64_t word = atomic_load_explicit(&e->o.super->barred, memory_order_acquire);
    if (word == e->barred && (!word || e->barred_told)) return;
    /* Its queue may have gone: that is followed first, or something would still come into it. */
    if (e->barred_told && atomic_load_explicit(&e->me->queues_version, memory_order_acquire) > e->seen_catalog_version) return;
    e->barred = word;
    e->barred_told = false;
    const wr_queue *q = word ? wr_queue_find(e, (uint32_t)word) : NULL;
    if (!q) return; /* another worker's, or not declared here yet */
    atomic_store_explicit(&e->me->barred_found, find(e, q), memory_order_relaxed);
    /* SYNC barred-seen: pairs with the supervisor's acquire; what was found is complete */
    atomic_store_explicit(&e->me->barred_seen, word, memory_order_release);
    e->barred_told = true;
}
