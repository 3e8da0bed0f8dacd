/* The notes of what a round has to pay. Declared in queues/owed.h. */
#include "queues/memory.h"
#include "queues/owed.h"
#include <assert.h>
#include <stdio.h>

#define SCARCE_NS 50000000ull /* between two looks, while the disk is full */
#define LATEST_NS 5000000000ull /* so long acks may wait for others: a drained queue gives its segments back */

void wr_files_add(wr_files *f, uint32_t file) {
    if (!f->n) f->first = file;
    assert(file >= f->first);
    uint32_t n = file - f->first + 1;
    f->live = wr_queue_grown(f->live, &f->size, n, sizeof *f->live);
    for (uint32_t i = f->n; i < n; i++) f->live[i] = 0;
    if (n > f->n) f->n = n;
}

void wr_files_drop_first(wr_files *f) {
    assert(f->n);
    memmove(f->live, f->live + 1, (f->n - 1) * sizeof *f->live);
    f->n--;
    f->first++;
}

uint64_t *wr_data_file_live(wr_queue_engine *e, uint32_t file) {
    uint64_t *live = wr_map_put(&e->data_files, file, 0);
    if (!live) wr_queue_no_memory();
    return live;
}

static void add_range(wr_queue_engine *e, wr_queue *q, uint64_t sequence, uint64_t due) {
    e->ranges = wr_queue_grown(e->ranges, &e->ranges_size, e->ranges_n + 1ull, sizeof *e->ranges);
    q->range_round = e->round;
    q->range_at = e->ranges_n;
    e->ranges[e->ranges_n++] = (wr_pending_range){.queue = q, .first = sequence, .count = 1, .due = due};
}

void wr_journal_range(wr_queue_engine *e, wr_queue *q, uint64_t sequence) {
    if (e->recovering) return;
    if (q->range_round == e->round) {
        wr_pending_range *last = &e->ranges[q->range_at];
        if (!last->due && last->first + last->count == sequence && last->count < UINT32_MAX) {
            last->count++;
            return;
        }
    }
    add_range(e, q, sequence, 0);
}

void wr_journal_delay(wr_queue_engine *e, wr_queue *q, uint64_t sequence, uint64_t due) {
    if (!e->recovering) add_range(e, q, sequence, due);
}

void wr_segment_ack_note(wr_queue_engine *e, const wr_queue *q, uint64_t sequence, uint32_t file, bool moved) {
    /* The frame is written before the next seal: it belongs to the batch of the present token. */
    uint64_t token = moved ? UINT64_MAX : e->recovering ? 0 : e->token_next;
    wr_segment_ack *last = e->segment_acks_n ? &e->segment_acks[e->segment_acks_n - 1] : NULL;
    if (last && last->queue == q->id && last->file == file && (last->token == UINT64_MAX) == moved &&
        last->first + last->count == sequence && last->count < UINT32_MAX) {
        last->count++;
        last->token = token;
        return;
    }
    e->segment_acks = wr_queue_grown(e->segment_acks, &e->segment_acks_size, e->segment_acks_n + 1, sizeof *e->segment_acks);
    e->segment_acks[e->segment_acks_n++] = (wr_segment_ack){.queue = q->id, .count = 1, .first = sequence, .token = token, .file = file};
    if (moved) return;
    if (++e->segment_acks_early_n == 1) e->segment_acks_ns = wr_now_ns();
    if (e->segment_acks_early_n == WR_SEGMENT_ACKS_MAX) e->segment_acks_token = token;
}

bool wr_segment_acks_many(const wr_queue_engine *e) {
    if (!e->segment_acks_early_n) return false;
    const uint64_t synced = atomic_load_explicit(&e->token_synced, memory_order_acquire);
    if (e->segment_acks_early_n >= WR_SEGMENT_ACKS_MAX) return synced >= e->segment_acks_token;
    const uint64_t waited = wr_now_ns() - e->segment_acks_ns;
    /* When the disk is full, a segment that they empty gives space. */
    if (waited < SCARCE_NS || (waited < LATEST_NS && !wr_log_scarce(e->log, 0))) return false;
    for (uint64_t i = 0; i < e->segment_acks_n; i++)
        if (e->segment_acks[i].token != UINT64_MAX) return e->segment_acks[i].token <= synced;
    return false;
}

/* The file of its frame, or the batch. */
static inline uint64_t place_of(const wr_segment_ack *ack, bool by_file) { return by_file ? ack->file : ack->token; }

uint64_t wr_segment_acks_up_to(const wr_queue_engine *e, bool by_file, uint64_t limit) {
    uint64_t n = 0;
    for (uint64_t i = 0; i < e->segment_acks_n; i++) n += place_of(&e->segment_acks[i], by_file) <= limit;
    return n;
}

void wr_segment_acks_take(wr_queue_engine *e, bool by_file, uint64_t limit, wr_segment_ack *to) {
    uint64_t kept = 0;
    e->segment_acks_early_n = 0;
    e->segment_acks_ns = wr_now_ns();
    for (uint64_t i = 0; i < e->segment_acks_n; i++) {
        const wr_segment_ack *ack = &e->segment_acks[i];
        if (place_of(ack, by_file) <= limit) {
            *to++ = *ack;
            continue;
        }
        if (ack->token != UINT64_MAX && ++e->segment_acks_early_n == WR_SEGMENT_ACKS_MAX) e->segment_acks_token = ack->token;
        e->segment_acks[kept++] = *ack;
    }
    e->segment_acks_n = kept;
}

int wr_queue_store_hold(wr_queue_engine *e, uint32_t store, const uint8_t id[16]) {
    uint64_t a, b;
    wr_owed_key(id, &a, &b);
    uint64_t *refs = wr_map_put(&e->stores[store].refs, a, b);
    if (!refs) return ENOMEM;
    ++*refs;
    return 0;
}

void wr_queue_store_release(wr_queue_engine *e, uint32_t store, const uint8_t id[16]) {
    wr_qstore *s = &e->stores[store];
    uint64_t a, b;
    wr_owed_key(id, &a, &b);
    uint64_t *refs = wr_map_find(&s->refs, a, b);
    if (!refs) return; /* the store has lost it */
    if (--*refs) return;
    wr_map_remove(&s->refs, a, b);
    if (e->recovering || !e->has_port) return; /* the resync will not name it */
    if (s->removes_n == s->removes_size) {
        uint64_t size = s->removes_size ? 2 * s->removes_size : 1024;
        void *p = realloc(s->removes, size * sizeof *s->removes);
        if (!p) {
            fprintf(stderr, "queue worker: no memory for removals\n");
            abort();
        }
        s->removes = p;
        s->removes_size = size;
    }
    memcpy(s->removes[s->removes_n++], id, 16);
}
