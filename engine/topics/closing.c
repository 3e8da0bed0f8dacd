/* Links that are closed because the node ends. Declared in topics/closing.h. */
#include "topics/closing.h"

void wr_topic_end_links(wr_topic_server *s) {
    for (uint32_t i = 0; i < s->links_n && !s->ending; i++) {
        wr_topic_link *l = s->links[s->order[i]];
        if (l->limit == UINT64_MAX) l->limit = atomic_load_explicit(&wr_topic_shared(s, l)->tail, memory_order_acquire);
    }
    s->ending = true;
}

uint64_t wr_topic_behind(const wr_topic_server *s) {
    uint64_t n = 0;
    for (uint32_t i = 0; i < s->links_n; i++) {
        const wr_topic_link *l = s->links[s->order[i]];
        if (!l->evicted && !l->finished) n += l->limit - l->next;
    }
    return n;
}

/* Is all that was executed of a link durable? */
static bool is_settled(wr_topic_server *s, const wr_topic_link *l) {
    if (l->evicted || l->next != l->limit || l->pause != WR_TOPIC_PAUSE_NONE || l->waits || l->dirty || l->unsynced || l->spoken) return false;
    pthread_mutex_lock(&s->mutex);
    const bool settled = !l->in_work && l->done_head >= l->next;
    pthread_mutex_unlock(&s->mutex);
    return settled;
}

uint32_t wr_topic_close_links(wr_topic_server *s) {
    uint32_t left = 0;
    for (uint32_t i = 0; i < s->links_n; i++) {
        wr_topic_link *l = s->links[s->order[i]];
        if (l->finished) continue; /* its client is gone, and its region may be */
        if (!s->ending || !is_settled(s, l)) {
            left++;
            continue;
        }
        /* SYNC closed: pairs with the client's acquire, when the node is stopped; what it was told below is complete */
        atomic_store_explicit(&wr_topic_shared(s, l)->closed, l->limit + 1, memory_order_release);
        wr_view_wake(&l->view);
    }
    return left;
}
