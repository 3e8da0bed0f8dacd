/* Horizons and gates of links. Declared in queues/horizons.h. */
#include "queues/horizons.h"
#include "queues/memory.h"

/* Whether a store has executed a command of this worker. */
static bool store_passed(wr_queue_engine *e, uint32_t store, uint64_t sequence) {
    if (!e->has_port) return true;
    return atomic_load_explicit(&e->port.view.links[store].head, memory_order_acquire) > sequence;
}

/* Under the mutex: raise the words of a link as far as done and gates allow. */
static void link_publish(wr_queue_engine *e, wr_qlink *l) {
    uint64_t limit = l->gates_first == l->gates_next ? UINT64_MAX : l->gates[l->gates_first % l->gates_size].command;
#define LIMITED(x) ((x) < limit ? (x) : limit)
    wr_horizon h = {.view = &l->view, .server = e->o.server};
    h.sequence = LIMITED(l->done_written);
    wr_horizon_publish(&h, true, false, false);
    h.sequence = LIMITED(l->done_synced);
    wr_horizon_publish(&h, false, true, false);
    h.sequence = LIMITED(l->done_head);
    wr_horizon_publish(&h, false, false, true);
#undef LIMITED
}

static inline void raise64(uint64_t *word, uint64_t to) {
    if (*word < to) *word = to;
}

/* On the committer's thread, between write and sync. */
void wr_journal_written(void *context, const wr_batch *batch) {
    wr_queue_engine *e = context;
    pthread_mutex_lock(&e->mutex);
    for (uint32_t i = 0; i < batch->horizons_n; i++) {
        if (batch->horizons[i].server != e->o.server) continue;
        wr_qlink *l = (wr_qlink *)batch->horizons[i].view;
        raise64(&l->done_written, batch->horizons[i].sequence);
        link_publish(e, l);
    }
    pthread_mutex_unlock(&e->mutex);
}

/* On the committer's thread, when the batch is done or has failed. */
void wr_journal_done(void *context, const wr_batch *batch) {
    wr_queue_engine *e = context;
    pthread_mutex_lock(&e->mutex);
    for (uint32_t i = 0; i < batch->horizons_n; i++) {
        const wr_horizon *h = &batch->horizons[i];
        if (h->server == WR_TOKEN_FILE) {
            if (!batch->error) atomic_store_explicit(&e->file_done, (uint32_t)h->sequence, memory_order_release);
            continue;
        }
        if (h->server == WR_TOKEN_WAIT) {
            if (batch->error) continue;
            atomic_store_explicit(&e->token_done, h->sequence, memory_order_release);
            if (batch->sync) atomic_store_explicit(&e->token_synced, h->sequence, memory_order_release);
            continue;
        }
        wr_qlink *l = (wr_qlink *)h->view;
        l->pending_n--;
        if (batch->error) continue;
        raise64(&l->done_written, h->sequence);
        raise64(&l->done_head, h->sequence);
        if (batch->sync) raise64(&l->done_synced, h->sequence);
        link_publish(e, l);
    }
    pthread_mutex_unlock(&e->mutex);
}

/* Commands that need no batch are confirmed at once, when none before them waits for one. */
void wr_link_confirm(wr_queue_engine *e, wr_qlink *l) {
    if (l->dirty || l->posted == l->next) return;
    pthread_mutex_lock(&e->mutex);
    if (!l->pending_n && l->done_head >= l->posted && l->done_head < l->next) {
        l->done_written = l->done_head = l->next;
        if (!l->unsynced) l->done_synced = l->next;
        l->posted = l->next;
        link_publish(e, l);
    }
    pthread_mutex_unlock(&e->mutex);
}

void wr_link_add_gate(wr_queue_engine *e, wr_qlink *l, uint64_t command, uint32_t store, uint64_t store_sequence, uint32_t file) {
    pthread_mutex_lock(&e->mutex);
    if (l->gates_first != l->gates_next) {
        wr_link_gate *last = &l->gates[(l->gates_next - 1) % l->gates_size];
        if (last->round == e->round && last->store == store) {
            last->store_sequence = store_sequence;
            if (file < last->file) last->file = file;
            pthread_mutex_unlock(&e->mutex);
            return;
        }
    }
    if (l->gates_next - l->gates_first == l->gates_size) {
        uint32_t size = l->gates_size ? 2 * l->gates_size : 64;
        wr_link_gate *gates = malloc(size * sizeof *gates);
        if (!gates) wr_queue_no_memory();
        for (uint64_t g = l->gates_first; g != l->gates_next; g++) gates[g % size] = l->gates[g % l->gates_size];
        free(l->gates);
        l->gates = gates;
        l->gates_size = size;
    }
    l->gates[l->gates_next++ % l->gates_size] =
        (wr_link_gate){.command = command, .store = store, .store_sequence = store_sequence, .file = file, .round = e->round};
    pthread_mutex_unlock(&e->mutex);
}

bool wr_link_drop_gates(wr_queue_engine *e, wr_qlink *l) {
    if (l->gates_first == l->gates_next) return false; /* only this thread adds and drops */
    bool any = false;
    pthread_mutex_lock(&e->mutex);
    while (l->gates_first != l->gates_next) {
        const wr_link_gate *g = &l->gates[l->gates_first % l->gates_size];
        if (!store_passed(e, g->store, g->store_sequence)) break;
        l->gates_first++;
        any = true;
    }
    if (any) link_publish(e, l);
    pthread_mutex_unlock(&e->mutex);
    return any;
}
