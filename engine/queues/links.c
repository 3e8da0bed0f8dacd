/* Links of clients. Declared in queues/links.h. */
#include "kernel/delivery.h"
#include "queues/consumers.h"
#include "queues/drop.h"
#include "queues/exclusive.h"
#include "queues/links.h"
#include "queues/pages.h"
#include "queues/registry.h"
#include <assert.h>
#include <stdlib.h>

void wr_link_free(wr_qlink *l) {
    if (!l) return;
    wr_doorbell_end(&l->view.doorbell);
    free(l->held);
    free(l->free_slots);
    free(l->release);
    free(l->gates);
    free(l);
}

void wr_link_evict(wr_queue_engine *e, wr_qlink *l, uint32_t reason) {
    if (l->evicted) return;
    l->evicted = true;
    e->evicted_n++;
    atomic_store_explicit(&wr_link_shared(e, l)->evicted, reason, memory_order_release);
    wr_view_wake(&l->view);
}

typedef struct {
    uint64_t sequence;
    uint32_t slot;
} claim;

static int by_sequence(const void *a, const void *b) {
    const uint64_t x = ((const claim *)a)->sequence, y = ((const claim *)b)->sequence;
    return (x > y) - (x < y);
}

/* What a shared slot says of a message that is still there, and held by nobody. */
static wr_entry *claimed(wr_queue_engine *e, wr_qlink *l, uint32_t slot, wr_delivery *copy, wr_queue **queue) {
    const wr_delivery *d = wr_view_delivery(&l->view, e->o.server, slot);
    if (atomic_load_explicit(&d->state, memory_order_acquire) != WR_DELIVERY_HELD) return NULL;
    memcpy((void *)copy, (const void *)d, sizeof *copy);
    wr_queue *q = copy->pushed_at < l->delivery_tail ? wr_queue_find(e, copy->queue) : NULL;
    wr_entry *entry = q ? wr_queue_entry(q, copy->sequence) : NULL;
    *queue = q;
    return entry && entry->state == WR_ENTRY_READY && !memcmp(entry->id, copy->id, 16) ? entry : NULL;
}

/* A consumer of the worker before this one. Of a single active one whoever got the last message was it. Who comes when
 * this worker has begun was nobody's, whatever its slots say: it pushes nobody out. And a former one may have settled all. */
static void was_before(wr_queue_engine *e, wr_consumer *c, uint64_t sequence) {
    wr_queue *q = c->queue;
    const wr_consumer *former = q->former;
    c->silent = true;
    if (!c->link->before || !q->policy || !q->policy->o.single_active) return;
    if (former && former->held_n && former->link->held[former->last].sequence > sequence) return;
    q->former = c;
    e->early = true;
}

/* Believe, once, what the shared slots of a client say about who holds what; free the rest. Those that were never used
 * are not even read: that would make memory of them. They are held by ascending sequence, because what a consumer holds
 * is sorted so, and grows at its end. `claims`: room for as many as are used. */
static void take_up_slots(wr_queue_engine *e, wr_qlink *l, claim *claims) {
    uint32_t n = 0;
    wr_delivery copy;
    wr_queue *q;
    for (uint32_t slot = 0; slot < l->slots_used; slot++)
        if (claimed(e, l, slot, &copy, &q)) claims[n++] = (claim){copy.sequence, slot};
    if (n) qsort(claims, n, sizeof *claims, by_sequence);
    for (uint32_t i = 0; i < n; i++) {
        wr_entry *entry = claimed(e, l, claims[i].slot, &copy, &q); /* its client may change it between the looks */
        wr_consumer *c = entry ? wr_consumer_get(e, l, q) : NULL;
        if (!c || !wr_hold(e, c, entry, copy.sequence, claims[i].slot, copy.pushed_at)) continue;
        was_before(e, c, copy.sequence);
        /* The count lives on with who holds it; he may lie, but it is his message. */
        if (copy.delivery_count >= entry->delivery_count)
            entry->delivery_count = copy.delivery_count < UINT16_MAX ? copy.delivery_count + 1 : UINT16_MAX;
    }
    for (uint32_t slot = l->slots_used; slot-- > 0;) {
        if (l->held[slot].consumer) continue;
        wr_delivery *d = wr_view_delivery(&l->view, e->o.server, slot);
        const uint32_t state = atomic_load_explicit(&d->state, memory_order_relaxed);
        if (state == WR_DELIVERY_EXCLUSIVE && l->before && (q = wr_queue_find(e, d->queue)) && wr_exclusive_take_up(e, l, q, slot)) continue;
        if (state) atomic_store_explicit(&d->state, WR_DELIVERY_FREE, memory_order_release);
        l->free_slots[l->free_n++] = slot;
    }
}

int wr_queue_attach(wr_queue_engine *e, uint32_t slot, uint32_t generation, uint64_t client_epoch, void *region, uint64_t bytes) {
    if (slot >= WR_CLIENT_SLOTS || e->links[slot]) return EEXIST;
    const wr_geometry g = wr_geometry_of_client(e->o.super, slot);
    const uint32_t n = g.delivery_slots;
    wr_qlink *l = calloc(1, sizeof *l);
    if (!l) return ENOMEM;
    claim *claims = NULL;
    atomic_init(&l->view.doorbell.fd, WR_DOORBELL_NONE);
    int error = n ? wr_view_init(&l->view, region, bytes, &g) : EINVAL;
    if (!error) {
        wr_doorbell_of(&l->view.doorbell, slot, generation);
        const uint32_t used = atomic_load_explicit(&wr_link_shared(e, l)->slots_used, memory_order_acquire);
        l->slots_used = used < n ? used : n;
        l->held = calloc(n, sizeof *l->held);
        l->free_slots = malloc(n * sizeof *l->free_slots);
        l->release = malloc(n * sizeof *l->release);
        claims = l->slots_used ? malloc(l->slots_used * sizeof *claims) : NULL;
        if (!l->held || !l->free_slots || !l->release || (l->slots_used && !claims)) error = ENOMEM;
    }
    if (error) {
        wr_link_free(l);
        free(claims);
        return error;
    }
    l->used = true;
    l->slot = slot;
    l->generation = generation;
    l->client_epoch = client_epoch;
    uint64_t *high = wr_map_find(&e->high, client_epoch, 0);
    l->high = high ? *high : 0;
    wr_link *link = wr_link_shared(e, l);
    uint64_t head = atomic_load_explicit(&link->head, memory_order_acquire);
    uint64_t tail = atomic_load_explicit(&link->tail, memory_order_acquire);
    bool served = atomic_load_explicit(&link->server_epoch, memory_order_acquire) != 0;
    l->before = served && !e->epoch;
    l->next = l->posted = l->done_written = l->done_synced = l->done_head = head;
    l->limit = wr_link_limit(e, link, tail);
    l->takeup_tail = served ? tail : head;
    l->takeup_processed = atomic_load_explicit(&link->processed, memory_order_acquire);
    l->delivery_tail = atomic_load_explicit(&link->delivery_tail, memory_order_acquire);
    e->links[slot] = l;
    e->order[e->links_n++] = slot;
    if (tail - head > e->geometry.ring_records) {
        l->takeup_tail = head;
        wr_link_evict(e, l, WR_EVICTED_TAKEUP);
    }
    /* once closed, closed for ever */
    if (atomic_load_explicit(&link->evicted, memory_order_relaxed)) l->evicted = true;
    take_up_slots(e, l, claims);
    free(claims);
    if (e->epoch) {
        atomic_store_explicit(&link->server_epoch, e->epoch, memory_order_release);
        wr_view_wake(&l->view); /* somebody may wait for just that, to give credit under it */
    }
    return 0;
}

void wr_queue_begin(wr_queue_engine *e, uint64_t epoch) {
    e->epoch = epoch;
    e->begun_ns = wr_now_ns();
    atomic_store_explicit(&e->me->exclusive_n, e->exclusive_n, memory_order_release);
    e->frozen = false;
    for (uint32_t i = 0; i < e->links_n; i++) {
        wr_qlink *l = e->links[e->order[i]];
        atomic_store_explicit(&wr_link_shared(e, l)->server_epoch, epoch, memory_order_release);
        wr_view_wake(&l->view);
    }
}

void wr_queue_catalog_loaded(wr_queue_engine *e, uint64_t version) {
    e->seen_catalog_version = version;
    e->unknown_waiting = false;
    for (uint32_t i = 0; i < e->links_n; i++) {
        wr_qlink *l = e->links[e->order[i]];
        if (l->pause != WR_PAUSE_UNKNOWN) continue;
        l->unknown_checked = l->next + 1;
        l->pause = WR_PAUSE_NONE;
    }
}

void wr_queue_closing(wr_queue_engine *e, uint32_t slot) {
    if (slot < WR_CLIENT_SLOTS && e->links[slot]) e->links[slot]->closing = true;
}

bool wr_queue_detach(wr_queue_engine *e, uint32_t slot) {
    wr_qlink *l = slot < WR_CLIENT_SLOTS ? e->links[slot] : NULL;
    if (!l || !l->finished) return false;
    e->links[slot] = NULL;
    for (uint32_t i = 0; i < e->links_n; i++)
        if (e->order[i] == slot) {
            e->order[i] = e->order[--e->links_n];
            break;
        }
    wr_link_free(l);
    return true;
}

bool wr_link_sweep(wr_queue_engine *e, wr_qlink *l) {
    if (l->finished || !(l->closing || l->evicted)) return false;
    if (!l->evicted && l->next != atomic_load_explicit(&wr_link_shared(e, l)->tail, memory_order_acquire)) return false;
    if (!l->returned) {
        for (wr_consumer *c = l->consumers; c; c = c->next) {
            wr_consumer_stop(e, c);
            wr_consumer_return(e, c, !l->evicted);
        }
        wr_consumer_free_all(e, l);
        wr_queue *replies = wr_queue_find(e, wr_reply_queue_of(l));
        if (replies) wr_queue_drop(e, replies);
        l->returned = true;
    }
    if (!l->closing || l->release_n || e->ranges_n || e->deaths_n || l->dirty || l->gates_first != l->gates_next) return false;
    pthread_mutex_lock(&e->mutex);
    bool quiet = l->pending_n == 0;
    pthread_mutex_unlock(&e->mutex);
    if (quiet) l->finished = true;
    return quiet;
}

void wr_queue_control_answer(wr_queue_engine *e, wr_qlink *l, uint32_t result, uint32_t length, bool durable) {
    assert(l->pause == WR_PAUSE_CONTROL || l->pause == WR_PAUSE_ANSWERING);
    l->control_result = result;
    l->control_length = length;
    if (durable) {
        l->dirty = true;
        e->want_commit = e->want_sync = true;
        l->durable_token = e->token_next;
        l->pause = WR_PAUSE_DURABLE;
        return;
    }
    l->durable_token = 0;
    l->pause = WR_PAUSE_DURABLE; /* the next round finishes it */
}

bool wr_link_resume(wr_queue_engine *e, wr_qlink *l) {
    if (l->pause == WR_PAUSE_NONE) return true;
    if (l->pause != WR_PAUSE_DURABLE) return false;
    if (l->durable_token > atomic_load_explicit(&e->token_done, memory_order_acquire)) {
        if (!wr_log_look(e->log)->failed) return false;
        l->control_result = WR_RESULT_ERROR; /* SyncFailed: the client looks at server.error */
        l->control_length = 0;
    }
    wr_link_shared(e, l)->reply_length = l->control_length;
    atomic_store_explicit(&wr_view_command(&l->view, e->o.server, l->next)->result, l->control_result, memory_order_relaxed);
    l->next++;
    e->processed_n++;
    l->spoken = true;
    l->pause = WR_PAUSE_NONE;
    return true;
}
