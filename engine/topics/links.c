/* Links of clients. Declared in topics/links.h. */
#include "topics/confirm.h"
#include "topics/links.h"

void wr_topic_evict(wr_topic_server *s, wr_topic_link *l, uint32_t reason) {
    if (l->evicted) return;
    l->evicted = true;
    s->evicted_n++;
    atomic_store_explicit(&wr_topic_shared(s, l)->evicted, reason, memory_order_release);
    wr_view_wake(&l->view);
}

bool wr_topic_mark(wr_topic_server *s, uint64_t client_epoch, uint64_t sequence) {
    uint64_t *high = wr_map_put(&s->high, client_epoch, 0);
    if (!high) return false;
    if (*high < sequence) *high = sequence;
    return true;
}

static void serve_link(wr_topic_server *s, wr_topic_link *l) {
    wr_topic_publish(s, l);
    atomic_store_explicit(&wr_topic_shared(s, l)->server_epoch, s->epoch, memory_order_release);
    wr_view_wake(&l->view);
}

int wr_topic_attach(wr_topic_server *s, uint32_t slot, uint32_t generation, uint64_t client_epoch, void *region, uint64_t bytes) {
    if (slot >= WR_CLIENT_SLOTS) return EINVAL;
    if (s->links[slot]) return EEXIST;
    wr_topic_link *l = calloc(1, sizeof *l);
    if (!l) return ENOMEM;
    int error = wr_view_init(&l->view, region, bytes, &s->geometry);
    if (error) {
        free(l);
        return error;
    }
    wr_doorbell_of(&l->view.doorbell, slot, generation);
    l->slot = slot;
    l->generation = generation;
    l->client_epoch = client_epoch;
    const uint64_t *high = wr_map_find(&s->high, client_epoch, 0);
    l->high = high ? *high : 0;
    wr_link *shared = wr_topic_shared(s, l);
    uint64_t head = atomic_load_explicit(&shared->head, memory_order_acquire);
    uint64_t tail = atomic_load_explicit(&shared->tail, memory_order_acquire);
    l->next = l->sealed = l->done_written = l->done_synced = l->done_head = head;
    l->limit = wr_topic_limit(s, shared, tail);
    l->evicted = atomic_load_explicit(&shared->evicted, memory_order_relaxed) != 0; /* once closed, closed for ever */
    s->links[slot] = l;
    s->order[s->links_n++] = slot;
    if (tail - head > s->geometry.ring_records) wr_topic_evict(s, l, WR_EVICTED_TAKEUP);
    if (s->epoch) serve_link(s, l);
    return 0;
}

void wr_topic_serve(wr_topic_server *s, uint64_t epoch) {
    s->epoch = epoch;
    for (uint32_t i = 0; i < s->links_n; i++) serve_link(s, s->links[s->order[i]]);
}

void wr_topic_closing(wr_topic_server *s, uint32_t slot) {
    if (slot < WR_CLIENT_SLOTS && s->links[slot]) s->links[slot]->closing = true;
}

bool wr_topic_detach(wr_topic_server *s, uint32_t slot) {
    wr_topic_link *l = slot < WR_CLIENT_SLOTS ? s->links[slot] : NULL;
    if (!l || !l->finished) return false;
    s->links[slot] = NULL;
    for (uint32_t i = 0; i < s->links_n; i++)
        if (s->order[i] == slot) {
            s->order[i] = s->order[--s->links_n];
            break;
        }
    wr_doorbell_end(&l->view.doorbell);
    free(l);
    return true;
}

void wr_topic_catalog_loaded(wr_topic_server *s) {
    s->unknown = false;
    for (uint32_t i = 0; i < s->links_n; i++) {
        wr_topic_link *l = s->links[s->order[i]];
        if (!l->waits) continue;
        l->checked = l->next + 1;
        l->waits = false;
    }
}
