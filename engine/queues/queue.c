/* Entries, consumers, delivery, acks: what a queue is in memory. What it is for and its invariants: queues/queue.h.
 *
 * Rows lie in chunks of 1024 by sequence; a chunk without a live row is recycled wherever it is, so memory follows the
 * messages and not the span of their sequences. A delivery takes the lowest READY row; a return moves `ready_from`
 * back, so the original order comes back by construction.
 */
#include "queues/policy.h"
#include <assert.h>
#include <stdio.h>

void *(*wr_calloc)(size_t n, size_t each) = calloc;

#define DELIVER_MAX 1024 /* of one queue in one round */
#define STATS_AHEAD 32768 /* bytes of the statistics region that are asked for ahead */

void wr_queue_no_memory(void) {
    fprintf(stderr, "queue worker: no memory for what its queues need\n");
    abort();
}

void *wr_queue_grown(void *list, uint64_t *size, uint64_t needed, size_t each) {
    if (needed <= *size) return list;
    uint64_t bigger = *size ? *size : 16;
    while (bigger < needed) bigger *= 2;
    void *p = realloc(list, bigger * each);
    if (!p) wr_queue_no_memory();
    *size = bigger;
    return p;
}

uint64_t *wr_data_file_live(wr_queue_engine *e, uint32_t file) {
    uint64_t *live = wr_map_put(&e->data_files, file, 0);
    if (!live) wr_queue_no_memory();
    return live;
}

/* ---- queues ---- */

wr_queue *wr_queue_find(wr_queue_engine *e, uint32_t id) {
    if (e->last_queue && e->last_queue->id == id) return e->last_queue;
    uint64_t *found = wr_map_find(&e->queues, id, 0);
    if (!found) return NULL;
    return e->last_queue = (wr_queue *)(uintptr_t)*found;
}

/* A row of the statistics region, the lowest free one, so that memory is used as far as there are queues. WR_NO_SLOT: none is free,
 * or there is no memory for it; then the queue's numbers are not shown. */
static uint32_t take_stats_row(wr_queue_engine *e) {
    uint32_t row = e->stats_free_from;
    while (row < e->o.stats_rows && e->stats_used[row]) row++;
    e->stats_free_from = row;
    if (row >= e->o.stats_rows) return WR_NO_SLOT;
    uint64_t end = (uint64_t)(row + 1) * sizeof(wr_queue_stats), all = (uint64_t)e->o.stats_rows * sizeof(wr_queue_stats);
    if (end > e->stats_ready) {
        uint64_t more = wr_page_up(end + STATS_AHEAD) < all ? wr_page_up(end + STATS_AHEAD) : all;
        if (!wr_log_populate((uint8_t *)e->o.stats + e->stats_ready, more - e->stats_ready)) return WR_NO_SLOT;
        e->stats_ready = more;
    }
    e->stats_used[row] = 1;
    if (row >= e->stats_rows_used) {
        e->stats_rows_used = row + 1;
        atomic_store_explicit(&e->me->queue_stats_rows, e->stats_rows_used, memory_order_release);
    }
    return row;
}

wr_queue *wr_queue_declare(wr_queue_engine *e, uint32_t id, bool durable) {
    wr_queue *q = wr_queue_find(e, id);
    if (q) return q;
    uint64_t *place = wr_map_put(&e->queues, id, 0);
    if (!place) return NULL;
    q = wr_calloc(1, sizeof *q);
    if (!q) {
        wr_map_remove(&e->queues, id, 0);
        return NULL;
    }
    *place = (uint64_t)(uintptr_t)q;
    q->engine = e;
    q->id = id;
    q->durable = durable;
    q->stats_row = take_stats_row(e);
    /* room for each queue once, so that marking never fails */
    e->wake = wr_queue_grown(e->wake, &e->wake_size, e->queues.n, sizeof *e->wake);
    e->dirty = wr_queue_grown(e->dirty, &e->dirty_size, e->queues.n, sizeof *e->dirty);
    wr_queue_dirty(e, q);
    return q;
}

static void forget(wr_queue **list, uint64_t *n, const wr_queue *q) {
    for (uint64_t i = 0; i < *n; i++)
        if (list[i] == q) {
            list[i] = list[--*n];
            return;
        }
}

/* The queue and all that is in it go; who holds something of it holds nothing any more. */
void wr_queue_drop(wr_queue_engine *e, wr_queue *q) {
    for (uint32_t i = 0; i < e->links_n; i++) {
        wr_qlink *l = e->links[e->order[i]];
        for (wr_consumer **at = &l->consumers; *at;) {
            wr_consumer *c = *at;
            if (c->queue != q) {
                at = &c->next;
                continue;
            }
            wr_consumer_return(e, c);
            wr_consumer_stop(e, c);
            wr_map_remove(&e->consumers, (uint64_t)l->slot << 32 | q->id, 0);
            *at = c->next;
            free(c);
        }
    }
    uint64_t end = q->chunk_base + q->chunks_n;
    for (uint64_t number = q->chunk_base; number < end; number++)
        for (uint32_t r = 0; r < WR_CHUNK_ROWS && wr_queue_chunk_peek(q, number); r++) {
            wr_entry *entry = wr_queue_entry(q, number * WR_CHUNK_ROWS + r);
            if (entry) wr_queue_remove_entry(e, q, number * WR_CHUNK_ROWS + r, entry, false, false);
        }
    for (uint64_t i = 0; i < q->chunks_n; i++) {
        wr_chunk *chunk = q->chunks[q->chunks_at + i];
        if (chunk) wr_rows_free(e, chunk->rows); /* rows were still to come */
        free(chunk);
    }
    free(q->chunks);
    free(q->consumers);
    forget(e->wake, &e->wake_n, q);
    forget(e->dirty, &e->dirty_n, q);
    wr_policy_forget(e, q);
    wr_policy_free(q);
    for (uint32_t i = 0; i < e->ranges_n; i++)
        if (e->ranges[i].queue == q) e->ranges[i].count = 0;
    if (q->stats_row != WR_NO_SLOT) {
        wr_queue_stats *row = (wr_queue_stats *)e->o.stats + q->stats_row;
        atomic_store_explicit(&row->queue, 0, memory_order_release);
        e->stats_used[q->stats_row] = 0;
        if (q->stats_row < e->stats_free_from) e->stats_free_from = q->stats_row;
    }
    if (e->last_queue == q) e->last_queue = NULL;
    wr_map_remove(&e->queues, q->id, 0);
    free(q);
}

void wr_queue_wake(wr_queue_engine *e, wr_queue *q) {
    if (q->in_wake) return;
    q->in_wake = true;
    e->wake[e->wake_n++] = q;
}

void wr_queue_dirty(wr_queue_engine *e, wr_queue *q) {
    if (q->in_dirty) return;
    q->in_dirty = true;
    e->dirty[e->dirty_n++] = q;
}

/* ---- chunks and rows ---- */

wr_chunk *wr_queue_chunk_peek(const wr_queue *q, uint64_t number) {
    uint64_t i = number - q->chunk_base;
    return number < q->chunk_base || i >= q->chunks_n ? NULL : q->chunks[q->chunks_at + i];
}

wr_chunk *wr_queue_chunk(const wr_queue *q, uint64_t number) {
    wr_chunk *chunk = wr_queue_chunk_peek(q, number);
    if (!chunk || chunk->rows) return chunk;
    wr_page_in(q->engine, (wr_queue *)q, number, chunk);
    return wr_queue_chunk_peek(q, number); /* none when all its entries were damaged */
}

wr_entry *wr_queue_entry(const wr_queue *q, uint64_t sequence) {
    wr_chunk *chunk = wr_queue_chunk(q, sequence / WR_CHUNK_ROWS);
    if (!chunk) return NULL;
    wr_entry *entry = &chunk->rows[sequence % WR_CHUNK_ROWS];
    return entry->state == WR_ENTRY_GONE ? NULL : entry;
}

uint64_t wr_queue_base(const wr_queue *q) {
    for (uint64_t i = 0; i < q->chunks_n; i++) {
        const wr_chunk *chunk = q->chunks[q->chunks_at + i];
        for (uint32_t r = 0; chunk && chunk->live_n && r < WR_CHUNK_ROWS; r++)
            if (chunk->rows ? chunk->rows[r].state != WR_ENTRY_GONE : chunk->page->live[r / 64] >> r % 64 & 1)
                return (q->chunk_base + i) * WR_CHUNK_ROWS + r;
    }
    return q->next;
}

int wr_queue_room(wr_queue_engine *e, wr_queue *q, uint64_t sequence) {
    uint64_t number = sequence / WR_CHUNK_ROWS;
    if (!q->chunks_n) {
        q->chunk_base = number;
        q->chunks_at = 0;
    }
    if (number < q->chunk_base) {
        /* only recovery does this: segments and journals of a queue come in any order */
        uint64_t more = q->chunk_base - number;
        q->chunks = wr_queue_grown(q->chunks, &q->chunks_size, q->chunks_n + more, sizeof *q->chunks);
        memmove(q->chunks + more, q->chunks + q->chunks_at, q->chunks_n * sizeof *q->chunks);
        memset(q->chunks, 0, more * sizeof *q->chunks);
        q->chunks_at = 0;
        q->chunks_n += more;
        q->chunk_base = number;
    }
    uint64_t i = number - q->chunk_base;
    if (i >= q->chunks_n) {
        if (q->chunks_at + i >= q->chunks_size) {
            if (q->chunks_n) memmove(q->chunks, q->chunks + q->chunks_at, q->chunks_n * sizeof *q->chunks);
            q->chunks_at = 0;
            q->chunks = wr_queue_grown(q->chunks, &q->chunks_size, 2 * (i + 1), sizeof *q->chunks);
        }
        memset(q->chunks + q->chunks_at + q->chunks_n, 0, (i + 1 - q->chunks_n) * sizeof *q->chunks);
        q->chunks_n = i + 1;
    }
    wr_chunk **place = &q->chunks[q->chunks_at + i];
    if (*place) return 0;
    wr_chunk *chunk = wr_calloc(1, sizeof *chunk);
    wr_rows *rows = chunk ? wr_rows_new(e) : NULL;
    if (!rows) {
        free(chunk);
        return ENOMEM;
    }
    chunk->file_low = UINT32_MAX;
    chunk->rows = rows->rows;
    *place = chunk;
    return 0;
}

/* A chunk without live rows is recycled, unless rows of it are still to come. */
void wr_queue_chunk_release(wr_queue_engine *e, wr_queue *q, uint64_t number) {
    uint64_t i = number - q->chunk_base;
    if (number < q->chunk_base || i >= q->chunks_n) return;
    wr_chunk *chunk = q->chunks[q->chunks_at + i];
    if (!chunk || chunk->live_n || (q->next < (number + 1) * WR_CHUNK_ROWS && !e->recovering)) return;
    q->chunks[q->chunks_at + i] = NULL;
    wr_rows_free(e, chunk->rows);
    free(chunk);
    while (q->chunks_n && !q->chunks[q->chunks_at]) {
        q->chunks_at++;
        q->chunks_n--;
        q->chunk_base++;
    }
}

void wr_queue_insert(wr_queue_engine *e, wr_queue *q, uint64_t sequence, const wr_entry *from) {
    wr_chunk *chunk = wr_queue_chunk(q, sequence / WR_CHUNK_ROWS);
    wr_entry *entry = &chunk->rows[sequence % WR_CHUNK_ROWS];
    *entry = *from;
    entry->state = WR_ENTRY_READY;
    chunk->live_n++;
    chunk->ready_n++;
    q->ready_n++;
    q->bytes += entry->body_length;
    e->entries_n++;
    e->bytes += entry->body_length;
    if (sequence < q->ready_from || q->ready_n == 1) q->ready_from = sequence;
    wr_ready_comes(e, q, sequence, entry);
    if (sequence >= q->next) {
        q->next = sequence + 1;
        /* the chunk before may have waited for its rows to come */
        if (sequence % WR_CHUNK_ROWS == 0 && sequence) wr_queue_chunk_release(e, q, sequence / WR_CHUNK_ROWS - 1);
    }
    wr_queue_recent(q, entry, true);
    if (entry->location == WR_LOCATION_STORE) chunk->stored_n++;
    if (entry->flags & WR_ENTRY_PERSISTENT) {
        if (entry->index_file != WR_IN_SEGMENT) {
            uint32_t *live = wr_files_live(&e->files, entry->index_file);
            if (live) ++*live;
            if (entry->index_file < chunk->file_low) chunk->file_low = entry->index_file;
            if (entry->index_file > chunk->file_high) chunk->file_high = entry->index_file;
        } else {
            chunk->segment_n++;
            q->segment_n++;
        }
        if (entry->location == WR_LOCATION_SEGMENT) {
            ++*wr_data_file_live(e, entry->file);
        }
    } else {
        chunk->transient_n++;
        uint32_t *live = wr_files_live(&e->transient_files, entry->file);
        if (live) ++*live;
    }
    wr_queue_dirty(e, q);
}

/* The row leaves the queue. `journalled`: an ACK frame must say so (if the entry is on disk at all). */
void wr_queue_remove_entry(wr_queue_engine *e, wr_queue *q, uint64_t sequence, wr_entry *entry, bool journalled,
                           bool keep_reference) {
    wr_chunk *chunk = wr_queue_chunk(q, sequence / WR_CHUNK_ROWS);
    if (entry->state == WR_ENTRY_READY) wr_queue_unready(q, sequence, entry);
    else if (entry->state == WR_ENTRY_UNACKED) q->unacked_n--;
    else wr_policy_other_goes(q, sequence, entry);
    q->bytes -= entry->body_length;
    e->entries_n--;
    e->bytes -= entry->body_length;
    wr_queue_recent(q, entry, false);
    if (entry->location == WR_LOCATION_STORE) chunk->stored_n--;
    if (entry->flags & WR_ENTRY_PERSISTENT) {
        if (entry->index_file != WR_IN_SEGMENT) {
            uint32_t *live = wr_files_live(&e->files, entry->index_file);
            if (live && *live) --*live;
        } else {
            chunk->segment_n--;
            q->segment_n--;
        }
        if (entry->location == WR_LOCATION_SEGMENT) {
            uint64_t *live = wr_map_find(&e->data_files, entry->file, 0);
            if (live && *live) --*live;
        }
        if (journalled) {
            wr_journal_range(e, q, sequence);
            if (wr_may_be_in_segment(e, entry)) wr_segment_ack_note(e, q, sequence, (uint32_t)wr_log_look(e->log)->file, false);
        }
    } else {
        chunk->transient_n--;
        uint32_t *live = wr_files_live(&e->transient_files, entry->file);
        if (live && *live) --*live;
    }
    if (!keep_reference && (entry->location == WR_LOCATION_STORE || entry->location == WR_LOCATION_STORE_TRANSIENT))
        wr_queue_store_release(e, entry->location == WR_LOCATION_STORE ? 0 : 1, entry->id);
    entry->state = WR_ENTRY_GONE;
    chunk->live_n--;
    if (!chunk->live_n) wr_queue_chunk_release(e, q, sequence / WR_CHUNK_ROWS);
    wr_queue_dirty(e, q);
}

/* ---- consumers and what they hold ---- */

wr_consumer *wr_consumer_find(wr_queue_engine *e, const wr_qlink *l, uint32_t queue) {
    uint64_t *found = wr_map_find(&e->consumers, (uint64_t)l->slot << 32 | queue, 0);
    return found ? (wr_consumer *)(uintptr_t)*found : NULL;
}

wr_consumer *wr_consumer_get(wr_queue_engine *e, wr_qlink *l, wr_queue *q) {
    uint64_t *place = wr_map_put(&e->consumers, (uint64_t)l->slot << 32 | q->id, 0);
    if (!place) return NULL;
    if (*place) return (wr_consumer *)(uintptr_t)*place;
    wr_consumer *c = calloc(1, sizeof *c);
    if (!c) {
        wr_map_remove(&e->consumers, (uint64_t)l->slot << 32 | q->id, 0);
        return NULL;
    }
    *place = (uint64_t)(uintptr_t)c;
    c->link = l;
    c->queue = q;
    c->first = c->last = WR_NO_SLOT;
    c->next = l->consumers;
    l->consumers = c;
    return c;
}

void wr_consumer_stop(wr_queue_engine *e, wr_consumer *c) {
    (void)e;
    if (!c->active) return;
    c->active = false;
    wr_queue *q = c->queue;
    for (uint32_t i = 0; i < q->consumers_n; i++)
        if (q->consumers[i] == c) {
            memmove(q->consumers + i, q->consumers + i + 1, (q->consumers_n - i - 1) * sizeof *q->consumers);
            q->consumers_n--;
            if (q->turn > i) q->turn--;
            break;
        }
    wr_queue_dirty(e, q);
}

void wr_consumer_free_all(wr_queue_engine *e, wr_qlink *l) {
    while (l->consumers) {
        wr_consumer *c = l->consumers;
        assert(c->held_n == 0);
        wr_consumer_stop(e, c);
        l->consumers = c->next;
        wr_map_remove(&e->consumers, (uint64_t)l->slot << 32 | c->queue->id, 0);
        free(c);
    }
}

void wr_queue_unready(wr_queue *q, uint64_t sequence, const wr_entry *entry) {
    wr_queue_chunk(q, sequence / WR_CHUNK_ROWS)->ready_n--;
    q->ready_n--;
    wr_ready_goes(q, sequence, entry);
}

void wr_queue_ready(wr_queue_engine *e, wr_queue *q, uint64_t sequence, wr_entry *entry) {
    entry->state = WR_ENTRY_READY;
    wr_queue_chunk(q, sequence / WR_CHUNK_ROWS)->ready_n++;
    q->ready_n++;
    if (sequence < q->ready_from || q->ready_n == 1) q->ready_from = sequence;
    wr_ready_comes(e, q, sequence, entry);
    wr_queue_wake(e, q);
    wr_queue_dirty(e, q);
}

/* READY → UNACKED; the slot joins the consumer's list, which is ordered by sequence. */
bool wr_hold(wr_queue_engine *e, wr_consumer *c, wr_entry *entry, uint64_t sequence, uint32_t slot) {
    wr_queue *q = c->queue;
    wr_qlink *l = c->link;
    if (entry->state != WR_ENTRY_READY) return false;
    entry->state = WR_ENTRY_UNACKED;
    entry->holder = (uint8_t)l->slot;
    entry->delivery = (uint16_t)slot;
    wr_queue_unready(q, sequence, entry);
    q->unacked_n++;
    wr_held *held = &l->held[slot];
    held->consumer = c;
    held->sequence = sequence;
    uint32_t after = c->last;
    while (after != WR_NO_SLOT && l->held[after].sequence > sequence) after = l->held[after].previous;
    held->previous = after;
    held->next = after == WR_NO_SLOT ? c->first : l->held[after].next;
    if (held->next == WR_NO_SLOT) c->last = slot;
    else l->held[held->next].previous = slot;
    if (after == WR_NO_SLOT) c->first = slot;
    else l->held[after].next = slot;
    c->held_n++;
    wr_queue_dirty(e, q);
    return true;
}

/* The private record goes now, the shared slot when the frames of this round lie in the image. */
static void unhold(wr_consumer *c, uint32_t slot) {
    wr_qlink *l = c->link;
    wr_held *held = &l->held[slot];
    if (held->previous == WR_NO_SLOT) c->first = held->next;
    else l->held[held->previous].next = held->next;
    if (held->next == WR_NO_SLOT) c->last = held->previous;
    else l->held[held->next].previous = held->previous;
    held->consumer = NULL;
    c->held_n--;
    l->release[l->release_n++] = slot;
}

/* UNACKED → READY, redelivered. A message whose body the store has lost cannot come back. */
static void give_back(wr_queue_engine *e, wr_queue *q, uint64_t sequence, wr_entry *entry) {
    if (entry->location == WR_LOCATION_STORE || entry->location == WR_LOCATION_STORE_TRANSIENT) {
        uint64_t a, b;
        memcpy(&a, entry->id, 8);
        memcpy(&b, entry->id + 8, 8);
        if (!wr_map_find(&e->stores[entry->location == WR_LOCATION_STORE ? 0 : 1].refs, a, b)) {
            e->lost_n++;
            q->lost_n++;
            wr_queue_remove_entry(e, q, sequence, entry, true, true);
            return;
        }
    }
    q->requeued_n++;
    if (wr_delivered_too_often(q, entry)) {
        wr_policy_die(e, q, sequence, entry, WR_REASON_DELIVERY_LIMIT);
        return;
    }
    entry->flags |= WR_ENTRY_REDELIVERED;
    q->unacked_n--;
    wr_queue_ready(e, q, sequence, entry);
}

void wr_consumer_return(wr_queue_engine *e, wr_consumer *c) {
    while (c->first != WR_NO_SLOT) {
        uint32_t slot = c->first;
        uint64_t sequence = c->link->held[slot].sequence;
        unhold(c, slot);
        wr_entry *entry = wr_queue_entry(c->queue, sequence);
        assert(entry && entry->state == WR_ENTRY_UNACKED);
        give_back(e, c->queue, sequence, entry);
    }
}

/* The entry that this link holds under a sequence, NULL if it does not. */
static wr_entry *held_by(const wr_qlink *l, const wr_queue *q, uint64_t sequence) {
    wr_entry *entry = wr_queue_entry(q, sequence);
    return entry && entry->state == WR_ENTRY_UNACKED && entry->holder == l->slot ? entry : NULL;
}

static void settle(wr_queue_engine *e, wr_consumer *c, uint64_t sequence, wr_entry *entry, wr_settling how) {
    wr_queue *q = c->queue;
    unhold(c, entry->delivery);
    if (how == WR_SETTLE_UNSEEN && entry->delivery_count) entry->delivery_count--;
    if (how == WR_SETTLE_REQUEUE || how == WR_SETTLE_UNSEEN) {
        give_back(e, q, sequence, entry);
    } else if (how == WR_SETTLE_LOST) {
        wr_delivery_fill(&e->unreadable[e->unreadable_n++ % WR_LOST_ROWS], q->id, sequence, entry);
        q->lost_n++;
        wr_queue_remove_entry(e, q, sequence, entry, true, false);
    } else if (how == WR_SETTLE_REJECT && q->policy) {
        wr_policy_die(e, q, sequence, entry, WR_REASON_REJECTED);
        q->acked_n++;
        e->acked_n++;
    } else {
        wr_queue_remove_entry(e, q, sequence, entry, true, false);
        q->acked_n++;
        e->acked_n++;
    }
    if (c->active) wr_queue_wake(e, q); /* prefetch or a delivery slot is free again */
}

bool wr_queue_settle(wr_queue_engine *e, wr_qlink *l, wr_queue *q, uint64_t sequence, wr_settling how) {
    wr_entry *entry = held_by(l, q, sequence);
    if (!entry) return false;
    settle(e, l->held[entry->delivery].consumer, sequence, entry, how);
    return true;
}

/* All that the link holds in the queue up to and with a sequence. */
uint32_t wr_queue_settle_to(wr_queue_engine *e, wr_qlink *l, wr_queue *q, uint64_t sequence, wr_settling how) {
    wr_consumer *c = wr_consumer_find(e, l, q->id);
    uint32_t n = 0;
    while (c && c->first != WR_NO_SLOT && l->held[c->first].sequence <= sequence) {
        uint64_t at = l->held[c->first].sequence;
        settle(e, c, at, wr_queue_entry(q, at), how);
        n++;
    }
    return n;
}

/* Everything below a sequence goes: the ready ones, with `unacked` the held ones, too. What is delayed or dying stays. */
uint64_t wr_queue_purge(wr_queue_engine *e, wr_queue *q, uint64_t below, bool unacked) {
    uint64_t n = 0;
    if (below > q->next) below = q->next;
    for (uint64_t number = q->chunk_base; number * WR_CHUNK_ROWS < below; number++) {
        for (uint32_t r = 0; r < WR_CHUNK_ROWS; r++) {
            wr_chunk *chunk = wr_queue_chunk(q, number); /* NULL once its last row has gone */
            uint64_t sequence = number * WR_CHUNK_ROWS + r;
            if (!chunk || sequence >= below) break;
            wr_entry *entry = &chunk->rows[r];
            if (entry->state != WR_ENTRY_READY && !(entry->state == WR_ENTRY_UNACKED && unacked)) continue;
            if (entry->state == WR_ENTRY_UNACKED)
                unhold(e->links[entry->holder]->held[entry->delivery].consumer, entry->delivery);
            wr_queue_remove_entry(e, q, sequence, entry, true, false);
            n++;
        }
    }
    q->acked_n += n;
    e->acked_n += n;
    return n;
}

/* ---- delivery ---- */

void wr_delivery_fill(wr_delivery *d, uint32_t queue, uint64_t sequence, const wr_entry *entry) {
    d->queue = queue;
    d->sequence = sequence;
    memcpy(d->id, entry->id, 16);
    d->file = entry->file;
    d->offset = entry->offset;
    d->frame_length = entry->frame_length;
    d->blob_offset = entry->blob_offset;
    d->meta_length = entry->meta_length;
    d->location = entry->location;
    d->flags = (uint8_t)((entry->flags & WR_ENTRY_REDELIVERED ? WR_DELIVERY_REDELIVERED : 0) |
                         entry->reason << WR_DELIVERY_REASON_SHIFT | entry->priority << WR_DELIVERY_PRIORITY_SHIFT);
    d->delivery_count = entry->delivery_count;
    d->body_length = entry->body_length;
}

/* May this consumer get one more? */
static inline bool takes(wr_queue_engine *e, const wr_consumer *c) {
    wr_qlink *l = c->link;
    if (l->evicted || l->closing) return false;
    if (c->prefetch ? c->held_n >= c->prefetch : c->delivered_n >= c->credit) return false;
    if (!l->free_n) {
        l->starved = true; /* the next free slot wakes all its queues */
        return false;
    }
    /* The client's own count decides whether its ring has room: a lie harms only itself. */
    uint64_t head = atomic_load_explicit(&l->view.links[e->o.server].delivery_head, memory_order_acquire);
    if (l->delivery_tail - head < l->view.g.delivery_slots) return true;
    e->ring_full = true; /* nobody tells when that changes: looked at again in each round */
    return false;
}

/* The lowest READY row at or above ready_from, or what its priority puts first. NULL: none, or damage took the last. */
wr_entry *wr_queue_first(wr_queue *q, uint64_t *sequence) {
    if (wr_has_levels(q)) return wr_policy_first(q, sequence);
    uint64_t at = q->ready_from;
    while (q->ready_n && at / WR_CHUNK_ROWS < q->chunk_base + q->chunks_n) {
        wr_chunk *chunk = wr_queue_chunk_peek(q, at / WR_CHUNK_ROWS);
        if (chunk && chunk->ready_n && (chunk = wr_queue_chunk(q, at / WR_CHUNK_ROWS)) && chunk->ready_n) {
            for (uint32_t r = at % WR_CHUNK_ROWS; r < WR_CHUNK_ROWS; r++)
                if (chunk->rows[r].state == WR_ENTRY_READY) {
                    *sequence = at / WR_CHUNK_ROWS * WR_CHUNK_ROWS + r;
                    q->ready_from = *sequence;
                    return &chunk->rows[r];
                }
        }
        at = (at / WR_CHUNK_ROWS + 1) * WR_CHUNK_ROWS;
    }
    return NULL;
}

static void deliver_one(wr_queue_engine *e, wr_consumer *c, wr_entry *entry, uint64_t sequence) {
    wr_qlink *l = c->link;
    wr_queue *q = c->queue;
    uint32_t slot = l->free_slots[--l->free_n];
    wr_delivery *d = wr_view_delivery(&l->view, e->o.server, slot);
    wr_delivery_fill(d, q->id, sequence, entry);
    d->pushed_at = l->delivery_tail;
    atomic_store_explicit(&d->state, WR_DELIVERY_HELD, memory_order_release);
    atomic_store_explicit(wr_view_delivery_ring(&l->view, e->o.server, l->delivery_tail), slot, memory_order_relaxed);
    l->delivery_tail++;
    l->pushed = true;
    wr_hold(e, c, entry, sequence, slot);
    if (entry->delivery_count < UINT16_MAX) entry->delivery_count++;
    c->delivered_n++;
    q->delivered_n++;
    e->delivered_n++;
    if (!wr_has_levels(q)) q->ready_from = sequence + 1;
}

bool wr_queue_would_deliver(wr_queue_engine *e, wr_queue *q) {
    if (e->frozen) return false;
    for (uint32_t i = 0; i < wr_serving_n(q); i++)
        if (takes(e, q->consumers[i])) return true;
    return false;
}

static bool deliver_queue(wr_queue_engine *e, wr_queue *q, bool *more) {
    uint32_t budget = DELIVER_MAX;
    *more = e->ring_full = false;
    while (q->ready_n && q->consumers_n) {
        if (!budget) {
            *more = true;
            break;
        }
        wr_consumer *c = NULL;
        for (uint32_t i = 0, serving_n = wr_serving_n(q); i < serving_n; i++) {
            if (q->turn >= serving_n) q->turn = 0;
            wr_consumer *one = q->consumers[q->turn++];
            if (takes(e, one)) {
                c = one;
                break;
            }
        }
        if (!c) {
            *more = e->ring_full;
            break;
        }
        budget--;
        uint64_t sequence;
        wr_entry *entry = wr_queue_first(q, &sequence);
        if (!entry) break;
        if (entry->expires && entry->expires <= wr_wall_ms()) {
            e->timed_at = 0; /* it goes in the next round, then the one behind it is looked at */
            *more = true;
            break;
        }
        deliver_one(e, c, entry, sequence);
    }
    return budget < DELIVER_MAX;
}

bool wr_deliver(wr_queue_engine *e) {
    if (!e->wake_n || e->frozen) return false;
    bool any = false;
    uint64_t n = e->wake_n, kept = 0;
    for (uint64_t i = 0; i < n; i++) {
        wr_queue *q = e->wake[i];
        bool more;
        any |= deliver_queue(e, q, &more);
        if (more) e->wake[kept++] = q;
        else q->in_wake = false;
    }
    e->wake_n = kept;
    if (!any) return false;
    for (uint32_t i = 0; i < e->links_n; i++) {
        wr_qlink *l = e->links[e->order[i]];
        if (!l->pushed) continue;
        l->pushed = false;
        /* SYNC delivery-visible: pairs with the client's acquire load of delivery_tail */
        atomic_store_explicit(&l->view.links[e->o.server].delivery_tail, l->delivery_tail, memory_order_release);
        wr_bell_ring(&l->view.client->waiting);
    }
    return true;
}

/* ---- statistics ---- */

/* One row more or less whose body lies in a journal file. Only the newest files are counted. */
void wr_queue_recent(wr_queue *q, const wr_entry *entry, bool comes) {
    if (entry->location != WR_LOCATION_JOURNAL && entry->location != WR_LOCATION_JOURNAL_TRANSIENT) return;
    wr_recent *recent = &q->recent[entry->location == WR_LOCATION_JOURNAL_TRANSIENT][entry->file % WR_RECENT_FILES];
    if (comes) {
        if (!recent->n || recent->file < entry->file) *recent = (wr_recent){entry->file, 0};
        if (recent->file == entry->file) recent->n++;
    } else if (recent->file == entry->file && recent->n) {
        recent->n--;
    }
}

/* alpha: body in an image; beta: row in memory alone; gamma: row in memory and in a segment; delta: row on disk only. */
void wr_queue_states(const wr_queue *q, uint64_t *alpha, uint64_t *beta, uint64_t *gamma, uint64_t *delta) {
    const wr_queue_engine *e = q->engine;
    *alpha = 0;
    for (uint32_t transient = 0; transient < 2; transient++) {
        uint64_t current = wr_log_look(transient ? e->transient_log : e->log)->file;
        for (uint32_t i = 0; i < WR_RECENT_FILES; i++) {
            const wr_recent *recent = &q->recent[transient][i];
            if (recent->n && recent->file + (uint64_t)e->o.images_n > current) *alpha += recent->n;
        }
    }
    uint64_t all = q->ready_n + q->unacked_n + wr_aside_n(q);
    *delta = q->paged_n;
    *gamma = q->segment_n - (q->paged_n - q->spilled_n);
    *beta = all - *alpha - *gamma - *delta;
}

void wr_queue_stats_write(wr_queue_engine *e) {
    for (uint64_t i = 0; i < e->dirty_n; i++) {
        wr_queue *q = e->dirty[i];
        q->in_dirty = false;
        if (q->stats_row == WR_NO_SLOT) continue;
        wr_queue_stats *row = (wr_queue_stats *)e->o.stats + q->stats_row;
#define PUT(field, value) atomic_store_explicit(&row->field, value, memory_order_relaxed)
        PUT(ready, q->ready_n);
        PUT(unacked, q->unacked_n);
        PUT(bytes, q->bytes);
        PUT(published, q->published_n);
        PUT(delivered, q->delivered_n);
        PUT(acked, q->acked_n);
        PUT(requeued, q->requeued_n);
        PUT(consumers, q->consumers_n);
        uint64_t consuming = 0;
        for (uint32_t c = 0; c < q->consumers_n; c++) consuming += q->consumers[c]->prefetch > 0;
        PUT(consuming, consuming);
        PUT(consumed, q->consumed_n);
        PUT(asked, q->asked_n);
        PUT(lost, q->lost_n);
        PUT(base, wr_queue_base(q));
        PUT(next, q->next);
        uint64_t alpha, beta, gamma, delta;
        wr_queue_states(q, &alpha, &beta, &gamma, &delta);
        PUT(alpha, alpha);
        PUT(beta, beta);
        PUT(gamma, gamma);
        PUT(delta, delta);
        if (q->policy) {
            PUT(delayed, q->policy->delayed_n);
            PUT(expired, q->policy->expired_n);
            PUT(dropped, q->policy->dropped_n);
            PUT(dead_lettered, q->policy->dead_lettered_n);
            PUT(refused, q->policy->refused_n);
            PUT(duplicates, q->policy->duplicates_n);
        }
#undef PUT
        atomic_store_explicit(&row->queue, q->id, memory_order_release);
    }
    e->dirty_n = 0;
}
