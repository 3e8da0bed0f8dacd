/* Links that are closed because the node ends. Declared in queues/closing.h. */
#include "queues/closing.h"
#include "queues/links.h"

void wr_queue_end_links(wr_queue_engine *e) {
    for (uint32_t i = 0; i < e->links_n && !e->ending; i++) {
        wr_qlink *l = e->links[e->order[i]];
        if (l->limit == UINT64_MAX) l->limit = atomic_load_explicit(&wr_link_shared(e, l)->tail, memory_order_acquire);
    }
    e->ending = true;
}

uint64_t wr_queue_behind(const wr_queue_engine *e) {
    uint64_t n = 0;
    for (uint32_t i = 0; i < e->links_n; i++) {
        const wr_qlink *l = e->links[e->order[i]];
        if (!l->evicted && !l->finished) n += l->limit - l->next;
    }
    return n;
}

/* Is all that was executed of a link durable? */
static bool is_settled(wr_queue_engine *e, const wr_qlink *l) {
    if (l->evicted || l->next != l->limit || l->pause != WR_PAUSE_NONE || l->dirty || l->unsynced || l->spoken) return false;
    pthread_mutex_lock(&e->mutex);
    const bool settled = !l->pending_n && l->gates_first == l->gates_next && l->done_head >= l->next;
    pthread_mutex_unlock(&e->mutex);
    return settled;
}

uint32_t wr_queue_close_links(wr_queue_engine *e) {
    uint32_t left = 0;
    for (uint32_t i = 0; i < e->links_n; i++) {
        wr_qlink *l = e->links[e->order[i]];
        if (l->finished) continue; /* its client is gone, and its region may be */
        if (!e->ending || e->stalled || !is_settled(e, l)) {
            left++;
            continue;
        }
        /* SYNC closed: pairs with the client's acquire, when the node is stopped; what it was told below is complete */
        atomic_store_explicit(&wr_link_shared(e, l)->closed, l->limit + 1, memory_order_release);
        wr_view_wake(&l->view);
    }
    return left;
}
