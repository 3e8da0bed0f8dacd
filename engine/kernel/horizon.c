/* Horizons are published: words of a link rise, and its client is woken. What they are: kernel/horizon.h. */
#include "kernel/horizon.h"

/* Raise a word of a client's link, never lower it. The loop thread and the committers of two logs may do so at once, and a
 * hostile client may write there, too: hence tries that end. Only the client itself suffers from a word that it keeps changing. */
static bool raise_word(_Atomic uint64_t *word, uint64_t to) {
    uint64_t now = atomic_load_explicit(word, memory_order_relaxed);
    for (int tries = 0; now < to && tries < 1000; tries++)
        /* SYNC horizon: pairs with the client's acquire; results and effects below are complete */
        if (atomic_compare_exchange_weak_explicit(word, &now, to, memory_order_release, memory_order_relaxed))
            return true;
    return false;
}

void wr_horizon_publish(const wr_horizon *h, bool written, bool synced, bool head) {
    if (!h->view) return;
    wr_link *link = &h->view->links[h->server];
    uint32_t news = 0;
    if (written && raise_word(&link->written, h->sequence)) news |= WR_WAITS_LOOP(WR_NEWS_WRITTEN);
    if (synced && raise_word(&link->synced, h->sequence)) news |= WR_WAITS_LOOP(WR_NEWS_SYNCED);
    if (head && raise_word(&link->head, h->sequence)) news |= WR_WAITS_LOOP(WR_NEWS_HEAD);
    if (news) wr_view_tell(h->view, news);
}
