/* Links of clients and the loop of a queue worker: take-up, commands, sweep, sleep. Declared in queues/queue.h.
 *
 * A round: up to 512 commands of each link, fewer when they are for many rows; then, once for all, the ACK frames of the round, after which the shared delivery slots
 * are freed and `processed` rises; then the stores, the journal's seal, deliveries, confirms.
 *
 * Commands are copied before they are looked at, every length is checked, every blob is masked into the arena: a client
 * that writes nonsense loses its link and nobody else anything.
 *
 * Replay: commands below takeup_tail were submitted to a worker that is dead. Those that wrote frames (sequence < high) are
 * skipped, but for the store's copy of a body, which is sent again while the publisher still keeps it. Of the others those
 * below takeup_processed had their whole effect (frames salvaged, slots written) and are not executed again: a second NACK, or a
 * second "all up to", would hit deliveries made after it. Those above are executed: what of them had happened is not held any more.
 */
#include "queues/policy.h"
#include <assert.h>
#include <stdlib.h>
#include <unistd.h>

#define SLEEP_NS 50000000ull
#define SINGLES 8

typedef enum { DONE, WAIT } outcome;

/* ---- life ---- */

wr_queue_engine *wr_queue_new(const wr_queue_options *o) {
    wr_queue_engine *e = calloc(1, sizeof *e);
    if (!e) return NULL;
    e->o = *o;
    e->me = wr_superblock_server(o->super, o->server);
    e->geometry = wr_geometry_of(o->super);
    e->recovering = true;
    e->frozen = true;
    e->segments_fd = -1;
    e->memory_bytes = e->rows_limit = UINT64_MAX;
    e->spill.fd = -1;
    e->round = 1;
    e->token_next = 1;
    e->spin_ns = o->spin_ns / 4;
    e->last_sync_ns = e->last_stats_ns = wr_now_ns();
    pthread_mutex_init(&e->mutex, NULL);
    e->stats_used = calloc((size_t)o->stats_rows + 1, 1);
    atomic_store_explicit(&e->me->queue_stats_rows, 0, memory_order_release);
    e->log = wr_log_new(o->images, o->images_bytes, o->images_n, o->file_bytes, true, wr_journal_done, e);
    if (e->log) wr_log_on_written(e->log, wr_journal_written);
    if (e->log) e->transient_log = wr_log_new(o->transient_images, o->images_bytes, o->images_n, o->file_bytes, false, NULL, NULL);
    int error = e->stats_used && e->transient_log ? 0 : errno ? errno : ENOMEM;
    if (!error && o->region) {
        error = wr_port_init(&e->port, o->super, o->region, o->region_bytes, o->slot, o->generation, o->client_epoch);
        e->has_port = !error;
        for (uint32_t s = 0; s < 2; s++) {
            e->stores[s].client.port = &e->port;
            e->stores[s].client.server = s;
            e->stores[s].phase = WR_RESYNC_WANTED;
        }
    }
    if (error) {
        wr_queue_free(e);
        errno = error;
        return NULL;
    }
    return e;
}

static void link_free(wr_qlink *l) {
    if (!l) return;
    free(l->held);
    free(l->free_slots);
    free(l->release);
    free(l->gates);
    free(l);
}

void wr_queue_free(wr_queue_engine *e) {
    while (e->links_n) {
        wr_qlink *l = e->links[e->order[--e->links_n]];
        for (wr_consumer *c = l->consumers; c;) {
            wr_consumer *next = c->next;
            free(c);
            c = next;
        }
        link_free(l);
    }
    for (uint64_t i = 0; i < e->queues.size; i++) {
        if (!e->queues.rows[i].used) continue;
        wr_queue *q = (wr_queue *)(uintptr_t)e->queues.rows[i].value;
        for (uint64_t c = 0; c < q->chunks_n; c++) {
            wr_chunk *chunk = q->chunks[q->chunks_at + c];
            if (!chunk) continue;
            free(chunk->rows);
            free(chunk->page);
            free(chunk);
        }
        free(q->chunks);
        free(q->consumers);
        wr_policy_free(q);
        free(q);
    }
    free(e->timed);
    free(e->deaths);
    while (e->free_rows) {
        wr_rows *rows = e->free_rows;
        e->free_rows = rows->next_free;
        free(rows);
    }
    free(e->page_bytes);
    if (e->segments_fd >= 0) close(e->segments_fd);
    wr_spill_close(&e->spill);
    for (uint32_t s = 0; s < 2; s++) {
        wr_map_free(&e->stores[s].refs);
        wr_map_free(&e->stores[s].missing);
        free(e->stores[s].removes);
        free(e->stores[s].ids);
    }
    wr_map_free(&e->queues);
    wr_map_free(&e->consumers);
    wr_map_free(&e->data_files);
    wr_map_free(&e->high);
    wr_map_free(&e->unknown);
    wr_map_free(&e->moves_start);
    wr_map_free(&e->moves_count);
    free(e->files.live);
    free(e->transient_files.live);
    free(e->ranges);
    free(e->segment_acks);
    free(e->wake);
    free(e->dirty);
    free(e->stats_used);
    if (e->has_port) wr_port_free(&e->port);
    wr_log_free(e->log);
    wr_log_free(e->transient_log);
    pthread_mutex_destroy(&e->mutex);
    free(e);
}

/* ---- links ---- */

static wr_link *shared(const wr_queue_engine *e, const wr_qlink *l) { return &l->view.links[e->o.server]; }

static void evict(wr_queue_engine *e, wr_qlink *l, uint32_t reason) {
    if (l->evicted) return;
    l->evicted = true;
    e->evicted_n++;
    atomic_store_explicit(&shared(e, l)->evicted, reason, memory_order_release);
    wr_bell_ring(&l->view.client->waiting);
}

/* Believe, once, what the shared slots of a client say about who holds what; free the rest. */
static void take_up_slots(wr_queue_engine *e, wr_qlink *l) {
    uint32_t n = l->view.g.delivery_slots;
    for (uint32_t slot = n; slot-- > 0;) {
        wr_delivery *d = wr_view_delivery(&l->view, e->o.server, slot);
        bool held = false;
        if (atomic_load_explicit(&d->state, memory_order_acquire) == WR_DELIVERY_HELD) {
            wr_delivery copy;
            memcpy((void *)&copy, (const void *)d, sizeof copy);
            wr_queue *q = copy.pushed_at < l->delivery_tail ? wr_queue_find(e, copy.queue) : NULL;
            wr_entry *entry = q ? wr_queue_entry(q, copy.sequence) : NULL;
            if (entry && entry->state == WR_ENTRY_READY && !memcmp(entry->id, copy.id, 16)) {
                wr_consumer *c = wr_consumer_get(e, l, q);
                held = c && wr_hold(e, c, entry, copy.sequence, slot);
                /* The count lives on with who holds it; he may lie, but it is his message. */
                if (held && copy.delivery_count >= entry->delivery_count)
                    entry->delivery_count = copy.delivery_count < UINT16_MAX ? copy.delivery_count + 1 : UINT16_MAX;
            }
            if (!held) atomic_store_explicit(&d->state, WR_DELIVERY_FREE, memory_order_release);
        }
        if (!held) l->free_slots[l->free_n++] = slot;
    }
}

int wr_queue_attach(wr_queue_engine *e, uint32_t slot, uint32_t generation, uint64_t client_epoch, void *region, uint64_t bytes) {
    if (slot >= WR_CLIENT_SLOTS || e->links[slot]) return EEXIST;
    wr_qlink *l = calloc(1, sizeof *l);
    if (!l) return ENOMEM;
    int error = wr_view_init(&l->view, region, bytes, &e->geometry);
    uint32_t n = e->geometry.delivery_slots;
    l->held = calloc(n, sizeof *l->held);
    l->free_slots = malloc(n * sizeof *l->free_slots);
    l->release = malloc(n * sizeof *l->release);
    if (!error && (!l->held || !l->free_slots || !l->release)) error = ENOMEM;
    if (error) {
        link_free(l);
        return error;
    }
    l->used = true;
    l->slot = slot;
    l->generation = generation;
    l->client_epoch = client_epoch;
    uint64_t *high = wr_map_find(&e->high, client_epoch, 0);
    l->high = high ? *high : 0;
    wr_link *link = shared(e, l);
    uint64_t head = atomic_load_explicit(&link->head, memory_order_acquire);
    uint64_t tail = atomic_load_explicit(&link->tail, memory_order_acquire);
    bool served = atomic_load_explicit(&link->server_epoch, memory_order_acquire) != 0;
    l->next = l->posted = l->done_written = l->done_synced = l->done_head = head;
    l->takeup_tail = served ? tail : head;
    l->takeup_processed = atomic_load_explicit(&link->processed, memory_order_acquire);
    l->delivery_tail = atomic_load_explicit(&link->delivery_tail, memory_order_acquire);
    e->links[slot] = l;
    e->order[e->links_n++] = slot;
    if (tail - head > e->geometry.ring_records) {
        l->takeup_tail = head;
        evict(e, l, WR_EVICTED_TAKEUP);
    }
    if (atomic_load_explicit(&link->evicted, memory_order_relaxed)) l->evicted = true; /* once closed, closed for ever */
    take_up_slots(e, l);
    if (e->epoch) {
        atomic_store_explicit(&link->server_epoch, e->epoch, memory_order_release);
        wr_bell_ring(&l->view.client->waiting); /* somebody may wait for just that, to give credit under it */
    }
    return 0;
}

/* All clients that were there are attached: from now on the links are served under this epoch. */
void wr_queue_begin(wr_queue_engine *e, uint64_t epoch) {
    e->epoch = epoch;
    e->frozen = false;
    for (uint32_t i = 0; i < e->links_n; i++) {
        wr_qlink *l = e->links[e->order[i]];
        atomic_store_explicit(&shared(e, l)->server_epoch, epoch, memory_order_release);
        wr_bell_ring(&l->view.client->waiting);
    }
}

/* The catalog was read: who waits for a queue id goes on, and what is still unknown is dropped. */
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
    link_free(l);
    return true;
}

/* Returns true when all is executed and returned and nobody refers to the link any more. */
static bool sweep(wr_queue_engine *e, wr_qlink *l) {
    if (l->finished || !(l->closing || l->evicted)) return false;
    if (!l->evicted && l->next != atomic_load_explicit(&shared(e, l)->tail, memory_order_acquire)) return false;
    if (!l->returned) {
        for (wr_consumer *c = l->consumers; c; c = c->next) {
            wr_consumer_stop(e, c);
            wr_consumer_return(e, c);
        }
        wr_consumer_free_all(e, l);
        l->returned = true;
    }
    if (!l->closing || l->release_n || e->ranges_n || e->deaths_n || l->dirty || l->gates_first != l->gates_next) return false;
    pthread_mutex_lock(&e->mutex);
    bool quiet = l->pending_n == 0;
    pthread_mutex_unlock(&e->mutex);
    if (quiet) l->finished = true;
    return quiet;
}

/* ---- commands ---- */

static const uint8_t *blob_of(const wr_qlink *l, const wr_command *c) { return wr_view_blob(&l->view, c->body, c->length); }

static outcome answer(wr_command *record, uint32_t result) {
    atomic_store_explicit(&record->result, result, memory_order_relaxed); /* visible with `processed` */
    return DONE;
}

/* Something that `synced` must cover although it wrote no frame. */
void wr_link_wants(wr_queue_engine *e, wr_qlink *l, uint8_t flags) {
    if (flags & WR_FLAG_SYNCED && (l->dirty || l->unsynced)) {
        l->dirty = true;
        e->want_commit = e->want_sync = true;
    } else if (flags & WR_FLAG_WRITTEN && l->dirty) {
        e->want_commit = true;
    }
}

typedef struct {
    uint32_t queues_n;
    wr_queue *queues[WR_ROUTES_MAX];
} routes;

/* What a PUBLISH says beside its body; copied once, because the client may change its memory. */
typedef struct {
    uint64_t published, expires, due; /* milliseconds of CLOCK_REALTIME; `published` only if something needs it */
    uint8_t priority;
    bool keyed;
    uint8_t key[WR_KEY_BYTES];
} message;

/* One journal's part of a message: a frame, and an entry in each queue. The body's store write, if any, was prepared before. */
static outcome publish_part(wr_queue_engine *e, wr_qlink *l, const wr_command *c, uint64_t sequence, const uint8_t *blob,
                            uint32_t length, const message *m, const routes *to, bool transient) {
    bool stored = length >= e->o.super->embed_bytes_max;
    bool timed = m->published;
    uint8_t prefix[WR_ROUTES_MAX * WR_ROUTE_SIZE + 4 + WR_TIMES_SIZE + WR_KEY_BYTES];
    uint64_t prefix_length = (uint64_t)to->queues_n * WR_ROUTE_SIZE;
    for (uint32_t i = 0; i < to->queues_n; i++) {
        wr_put32(prefix + (uint64_t)i * WR_ROUTE_SIZE + WR_ROUTE_AT_QUEUE, to->queues[i]->id);
        wr_put64(prefix + (uint64_t)i * WR_ROUTE_SIZE + WR_ROUTE_AT_SEQUENCE, to->queues[i]->next);
    }
    if (stored) {
        wr_put32(prefix + prefix_length, length);
        prefix_length += 4;
    }
    if (timed) {
        uint8_t *times = prefix + prefix_length;
        wr_put64(times + WR_TIMES_AT_PUBLISHED, m->published);
        wr_put64(times + WR_TIMES_AT_EXPIRES, m->expires);
        wr_put64(times + WR_TIMES_AT_DUE, m->due);
        prefix_length += WR_TIMES_SIZE;
        if (m->keyed) {
            memcpy(prefix + prefix_length, m->key, WR_KEY_BYTES);
            prefix_length += WR_KEY_BYTES;
        }
    }
    uint64_t total = wr_frame_bytes(prefix_length + (stored ? 0 : length)), offset;
    uint8_t *at = wr_journal_reserve(e, transient, total, &offset);
    if (!at) return WAIT; /* the caller has looked at the log's health */
    uint64_t store_sequence = 0;
    uint32_t store = transient ? 1 : 0;
    if (stored) {
        uint64_t owner = (uint64_t)l->generation << 16 | (l->slot + 1);
        uint64_t position = c->body + (uint64_t)(c->length - length);
        if (wr_queue_store_write(e, store, c->id, position, length, c->meta_length, owner, transient ? 0 : WR_FLAG_SYNCED, &store_sequence))
            return WAIT;
    }
    const wr_log_state *state = wr_log_look(transient ? e->transient_log : e->log);
    wr_frame_head head = {.kind = WR_KIND_PUBLISH,
                          .flags = (uint16_t)((stored ? WR_FRAME_STORED : 0) | (transient ? WR_FRAME_TRANSIENT : 0) |
                                              (timed ? WR_FRAME_TIMED : 0) | (m->keyed ? WR_FRAME_KEYED : 0) |
                                              m->priority << WR_FRAME_PRIORITY_SHIFT),
                          .client_epoch = l->client_epoch,
                          .sequence = sequence + 1,
                          .extra = to->queues_n,
                          .meta_length = c->meta_length};
    memcpy(head.id, c->id, 16);
    wr_frame_write(at, &head, prefix, prefix_length, blob, stored ? 0 : length, state->salt);
    wr_journal_append(e, transient, total, c->flags & WR_FLAG_SYNCED);
    if (!transient) {
        l->dirty = true;
        if (c->flags & WR_FLAG_WRITTEN) e->want_commit = true;
    }
    wr_entry entry = {.file = (uint32_t)state->file,
                      .offset = (uint32_t)offset,
                      .frame_length = (uint32_t)total,
                      .body_length = length,
                      .blob_offset = (uint16_t)(WR_FRAME_HEAD_BYTES + prefix_length),
                      .meta_length = c->meta_length,
                      .index_file = (uint32_t)state->file,
                      .flags = transient ? 0 : WR_ENTRY_PERSISTENT,
                      .priority = m->priority & 15};
    entry.location = transient ? (stored ? WR_LOCATION_STORE_TRANSIENT : WR_LOCATION_JOURNAL_TRANSIENT)
                               : (stored ? WR_LOCATION_STORE : WR_LOCATION_JOURNAL);
    memcpy(entry.id, c->id, 16);
    for (uint32_t i = 0; i < to->queues_n; i++) {
        wr_queue *q = to->queues[i];
        if (timed) entry.expires = wr_policy_expires(q, m->published, m->expires, m->due);
        wr_queue_insert(e, q, q->next, &entry);
        q->published_n++;
        if (timed && m->due > m->published) wr_policy_delay(e, q, q->next - 1, m->due);
        if (m->keyed) wr_policy_seen(q, m->key, m->published, m->published);
        if (q->consumers_n) wr_queue_wake(e, q);
    }
    if (stored) {
        uint64_t a, b;
        memcpy(&a, c->id, 8);
        memcpy(&b, c->id + 8, 8);
        *wr_map_put(&e->stores[store].refs, a, b) += to->queues_n; /* room was reserved by wr_queue_store_write */
        wr_link_add_gate(e, l, sequence, store, store_sequence, (uint32_t)wr_log_look(e->log)->file);
    }
    e->published_n += to->queues_n;
    return DONE;
}

/* The dead worker answered that not every queue took it. A command that was to be executed has no result yet. */
static bool turned_away(const wr_command *c) {
    uint32_t result = atomic_load_explicit(&c->result, memory_order_relaxed);
    return result == WR_RESULT_REFUSED || result == WR_RESULT_DUPLICATE;
}

/* A publish whose frame is on disk from before. The store may not have the body: send it again while its publisher keeps it. */
static outcome publish_again(wr_queue_engine *e, wr_qlink *l, const wr_command *c, wr_command *record, uint64_t sequence,
                             uint32_t length) {
    if (length >= e->o.super->embed_bytes_max) {
        uint64_t a, b, store_sequence;
        memcpy(&a, c->id, 8);
        memcpy(&b, c->id + 8, 8);
        if (wr_map_find(&e->stores[0].refs, a, b)) {
            uint64_t owner = (uint64_t)l->generation << 16 | (l->slot + 1);
            if (wr_queue_store_write(e, 0, c->id, c->body + (uint64_t)(c->length - length), length, c->meta_length, owner,
                                     WR_FLAG_SYNCED | WR_FLAG_REQUEUE, &store_sequence))
                return WAIT;
            wr_link_add_gate(e, l, sequence, 0, store_sequence, 0); /* frames of the commands behind it may lie in any file */
        }
    }
    return answer(record, turned_away(c) ? atomic_load_explicit(&c->result, memory_order_relaxed) : WR_RESULT_OK);
}

static outcome publish(wr_queue_engine *e, wr_qlink *l, const wr_command *c, wr_command *record, uint64_t sequence) {
    static __thread routes durable, transient, refused, duplicate;
    uint32_t ids[WR_ROUTES_MAX];
    uint32_t ids_n = 1;
    const uint8_t *blob = blob_of(l, c);
    if (!blob) goto nonsense;
    uint32_t length = c->length;
    if (c->flags & WR_FLAG_ROUTES) {
        ids_n = c->queue;
        if (ids_n > WR_ROUTES_MAX || (uint64_t)ids_n * 4 > length) goto nonsense;
        memcpy(ids, blob, (size_t)ids_n * 4); /* once: the client may change it */
        blob += (size_t)ids_n * 4;
        length -= ids_n * 4;
    } else {
        ids[0] = c->queue;
    }
    message m = {0};
    if (c->flags & WR_FLAG_DEDUPLICATE) {
        if (length < WR_KEY_BYTES) goto nonsense;
        m.keyed = true;
        memcpy(m.key, blob, WR_KEY_BYTES);
        blob += WR_KEY_BYTES;
        length -= WR_KEY_BYTES;
    }
    if (c->count | c->tag) {
        m.expires = c->count & ~(~0ull << WR_PRIORITY_SHIFT);
        m.due = c->tag;
        m.priority = (uint8_t)(c->count >> WR_PRIORITY_SHIFT);
        if ((m.expires | m.due) >> WR_TIME_BITS || m.priority > WR_PRIORITY_MAX) goto nonsense;
    }
    if (m.keyed || m.expires || m.due) m.published = wr_wall_ms();
    if (c->meta_length > length || length > e->o.super->message_bytes_max) goto nonsense;
    if (wr_pages_full(e)) return WAIT; /* until the flush under way has ended */
    if (sequence < l->high && l->next < l->takeup_tail) return publish_again(e, l, c, record, sequence, length);
    durable.queues_n = transient.queues_n = refused.queues_n = duplicate.queues_n = 0;
    bool told = sequence < l->takeup_processed && sequence < l->takeup_tail;
    if (told && turned_away(c)) return DONE; /* what it wrote beside it would lie below `high` */
    bool half_done = l->half_done == sequence + 1;
    for (uint32_t i = 0; i < ids_n; i++) {
        wr_queue *q = wr_queue_find(e, ids[i]);
        if (!q) {
            if (l->unknown_checked != sequence + 1) {
                l->pause = WR_PAUSE_UNKNOWN;
                e->unknown_waiting = true;
                return WAIT;
            }
            e->unroutable_n++;
            continue;
        }
        routes *to = q->durable && c->flags & WR_FLAG_PERSISTENT ? &durable : &transient;
        if (told && to == &transient) continue; /* it died with the worker that had it */
        uint32_t twice = 0;
        while (twice < to->queues_n && ids_n > 1 && to->queues[twice] != q) twice++;
        if (ids_n > 1 && twice < to->queues_n) continue;
        if (q->policy && !(half_done && to == &durable)) {
            if (!m.published && wr_needs_times(q)) m.published = wr_wall_ms();
            wr_admission admission = wr_policy_admit(e, q, m.keyed ? m.key : NULL, m.published, length);
            if (admission == WR_ADMIT_LATER) return WAIT;
            routes *away = admission == WR_ADMIT_REFUSED ? &refused : admission == WR_ADMIT_DUPLICATE ? &duplicate : NULL;
            if (away) {
                away->queues[away->queues_n++] = q;
                continue;
            }
        }
        if (wr_queue_room(e, q, q->next)) return WAIT;
        to->queues[to->queues_n++] = q;
    }
    if (durable.queues_n && wr_log_look(e->log)->failed) {
        /* Before the answer: the client looks there for the cause. */
        atomic_store_explicit(&e->me->error, (uint32_t)wr_log_look(e->log)->failed, memory_order_release);
        return answer(record, WR_RESULT_ERROR);
    }
    if (transient.queues_n && wr_log_look(e->transient_log)->failed) return answer(record, WR_RESULT_ERROR);
    /* Before its frame: a worker that is killed behind the frame has told its successor what it cannot see in the frame. */
    if (refused.queues_n) answer(record, WR_RESULT_REFUSED);
    /* When the second part has to wait, the first must not be written twice. */
    if (durable.queues_n && !half_done) {
        if (publish_part(e, l, c, sequence, blob, length, &m, &durable, false) == WAIT) return WAIT;
        l->half_done = sequence + 1;
    }
    if (transient.queues_n && publish_part(e, l, c, sequence, blob, length, &m, &transient, true) == WAIT) return WAIT;
    for (uint32_t i = 0; i < refused.queues_n; i++) refused.queues[i]->policy->refused_n++;
    for (uint32_t i = 0; i < duplicate.queues_n; i++) duplicate.queues[i]->policy->duplicates_n++;
    for (uint32_t i = 0; i < refused.queues_n; i++) wr_queue_dirty(e, refused.queues[i]);
    for (uint32_t i = 0; i < duplicate.queues_n; i++) wr_queue_dirty(e, duplicate.queues[i]);
    if (duplicate.queues_n && c->flags & (WR_FLAG_SYNCED | WR_FLAG_WRITTEN)) {
        l->dirty = e->want_commit = true; /* the first one may have come by another link, and not be there yet */
        e->want_sync |= c->flags & WR_FLAG_SYNCED;
    }
    if (!durable.queues_n) wr_link_wants(e, l, c->flags);
    bool stored = durable.queues_n || transient.queues_n;
    if (refused.queues_n || (half_done && turned_away(c))) return answer(record, WR_RESULT_REFUSED);
    return answer(record, stored ? WR_RESULT_OK : duplicate.queues_n ? WR_RESULT_DUPLICATE : WR_RESULT_NO);
nonsense:
    evict(e, l, WR_EVICTED_BLOB);
    return WAIT;
}

static outcome settle_command(wr_queue_engine *e, wr_qlink *l, const wr_command *c, wr_command *record) {
    wr_queue *q = wr_queue_find(e, c->queue);
    bool returned = c->op == WR_OP_NACK && c->flags & WR_FLAG_REQUEUE;
    bool unseen = c->flags & WR_FLAG_UNSEEN;
    wr_settling how = returned             ? unseen ? WR_SETTLE_UNSEEN : WR_SETTLE_REQUEUE
                      : c->op == WR_OP_ACK ? WR_SETTLE_ACK
                      : unseen             ? WR_SETTLE_LOST
                                           : WR_SETTLE_REJECT;
    uint64_t n = 0;
    uint64_t before = e->ranges_n, deaths = e->deaths_n;
    if (!q) {
        /* deleted meanwhile: nothing is held */
    } else if (c->count) {
        const uint8_t *blob = blob_of(l, c);
        if (!blob || c->count > c->length / 8) {
            evict(e, l, WR_EVICTED_BLOB);
            return WAIT;
        }
        for (uint64_t i = 0; i < c->count; i++) {
            uint64_t sequence;
            memcpy(&sequence, blob + i * 8, 8);
            n += wr_queue_settle(e, l, q, sequence, how);
        }
    } else if (c->flags & WR_FLAG_MULTIPLE) {
        n = wr_queue_settle_to(e, l, q, c->tag, how);
    } else {
        n = wr_queue_settle(e, l, q, c->tag, how);
    }
    /* A limit of deliveries ends a message when it is returned. */
    if (n && (e->ranges_n != before || e->deaths_n != deaths || (!returned && q->range_round == e->round))) {
        l->dirty = true;
        if (c->flags & WR_FLAG_SYNCED) e->want_commit = e->want_sync = true;
        if (c->flags & WR_FLAG_WRITTEN) e->want_commit = true;
    } else {
        wr_link_wants(e, l, c->flags);
    }
    return answer(record, n ? WR_RESULT_OK : WR_RESULT_NO);
}

static outcome credit(wr_queue_engine *e, wr_qlink *l, const wr_command *c, wr_command *record) {
    wr_queue *q = wr_queue_find(e, c->queue);
    if (!q && l->unknown_checked != l->next + 1) {
        l->pause = WR_PAUSE_UNKNOWN;
        e->unknown_waiting = true;
        return WAIT;
    }
    /* counted under another worker, or told to one: the client announces itself again */
    if (!q || (c->body && c->body != e->epoch) || l->next < l->takeup_tail) return answer(record, WR_RESULT_NO);
    wr_consumer *consumer = wr_consumer_get(e, l, q);
    if (!consumer) return WAIT;
    if (!consumer->active) {
        if (q->consumers_n == q->consumers_size) {
            uint32_t size = q->consumers_size ? 2 * q->consumers_size : 8;
            wr_consumer **list = realloc(q->consumers, size * sizeof *list);
            if (!list) return WAIT;
            q->consumers = list;
            q->consumers_size = size;
        }
        q->consumers[q->consumers_n++] = consumer;
        consumer->active = true;
        consumer->delivered_n = 0;
        consumer->prefetch = 0;
        q->asked_n++;
        wr_queue_dirty(e, q);
    }
    if (c->count && !consumer->prefetch) {
        q->consumed_n++;
        wr_queue_dirty(e, q);
    }
    consumer->credit = c->tag;
    consumer->prefetch = c->count > UINT32_MAX ? UINT32_MAX : (uint32_t)c->count;
    wr_queue_wake(e, q);
    return answer(record, WR_RESULT_OK);
}

static outcome cancel(wr_queue_engine *e, wr_qlink *l, const wr_command *c, wr_command *record) {
    wr_consumer *consumer = wr_consumer_find(e, l, c->queue);
    if (!consumer) return answer(record, WR_RESULT_NO);
    wr_consumer_stop(e, consumer);
    if (c->flags & WR_FLAG_REQUEUE) wr_consumer_return(e, consumer);
    return answer(record, WR_RESULT_OK);
}

static outcome locate(wr_queue_engine *e, wr_qlink *l, const wr_command *c, wr_command *record) {
    wr_queue *q = wr_queue_find(e, c->queue);
    wr_entry *entry = q ? wr_queue_entry(q, c->tag) : NULL;
    if (!entry || entry->state != WR_ENTRY_UNACKED || entry->holder != l->slot) return answer(record, WR_RESULT_NO);
    wr_delivery *d = wr_view_delivery(&l->view, e->o.server, entry->delivery);
    uint16_t count = entry->delivery_count ? entry->delivery_count - 1 : 0;
    wr_delivery_fill(d, q->id, c->tag, entry);
    d->delivery_count = count;
    return answer(record, WR_RESULT_OK);
}

static outcome execute(wr_queue_engine *e, wr_qlink *l, const wr_command *c, wr_command *record, uint64_t sequence) {
    switch (c->op) {
    case WR_OP_PUBLISH:
        return publish(e, l, c, record, sequence);
    case WR_OP_ACK:
    case WR_OP_NACK:
        return settle_command(e, l, c, record);
    case WR_OP_CREDIT:
        return credit(e, l, c, record);
    case WR_OP_CANCEL:
        return cancel(e, l, c, record);
    case WR_OP_LOCATE:
        return locate(e, l, c, record);
    case WR_OP_BARRIER:
        wr_link_wants(e, l, c->flags);
        return answer(record, WR_RESULT_OK);
    case WR_OP_CONTROL:
        if (l->closing) return answer(record, WR_RESULT_ERROR); /* nobody reads the answer */
        if (!blob_of(l, c)) break;
        l->pause = WR_PAUSE_CONTROL;
        return WAIT;
    default:
        evict(e, l, WR_EVICTED_OPERATION);
        return WAIT;
    }
    evict(e, l, WR_EVICTED_BLOB);
    return WAIT;
}

/* The answer of a CONTROL lies in the reply area; `durable`: not before what was journalled for it is synced. */
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

static bool resume(wr_queue_engine *e, wr_qlink *l) {
    if (l->pause == WR_PAUSE_NONE) return true;
    if (l->pause != WR_PAUSE_DURABLE) return false;
    if (l->durable_token > atomic_load_explicit(&e->token_done, memory_order_acquire)) {
        if (!wr_log_look(e->log)->failed) return false;
        l->control_result = WR_RESULT_ERROR; /* SyncFailed: the client looks at server.error */
        l->control_length = 0;
    }
    shared(e, l)->reply_length = l->control_length;
    atomic_store_explicit(&wr_view_command(&l->view, e->o.server, l->next)->result, l->control_result, memory_order_relaxed);
    l->next++;
    e->processed_n++;
    l->spoken = true;
    l->pause = WR_PAUSE_NONE;
    return true;
}

static uint32_t process_link(wr_queue_engine *e, wr_qlink *l) {
    if (l->evicted || l->finished || !resume(e, l)) return 0;
    wr_link *link = shared(e, l);
    /* SYNC command-visible: pairs with the client's release store of tail */
    uint64_t tail = atomic_load_explicit(&link->tail, memory_order_acquire);
    uint64_t n = tail - l->next;
    if (!n) return 0;
    if (n > e->geometry.ring_records) {
        evict(e, l, WR_EVICTED_TAIL);
        return 1;
    }
    if (n > WR_BATCH_COMMANDS) n = WR_BATCH_COMMANDS;
    uint32_t done = 0;
    uint64_t rows = 0;
    uint64_t singles = 0; /* below it commands are looked at one by one: what is not plain comes rarely alone */
    while (done < n && rows < WR_BATCH_ROWS) {
        wr_command *record = wr_view_command(&l->view, e->o.server, l->next);
        if (record->op == WR_OP_PUBLISH && l->next >= singles) {
            uint32_t plain = wr_publish_stretch(e, l, n - done, &rows);
            l->next += plain;
            done += plain;
            if (plain) continue;
            singles = l->next + SINGLES;
        }
        __builtin_prefetch((const void *)wr_view_command(&l->view, e->o.server, l->next + 4));
        wr_command c;
        memcpy((void *)&c, (const void *)record, sizeof c); /* once: the client may change it */
        bool told = l->next < l->takeup_processed && l->next < l->takeup_tail;
        if (!told || c.op == WR_OP_PUBLISH) {
            if (execute(e, l, &c, record, l->next) == WAIT) break;
            if (told) atomic_store_explicit(&record->result, atomic_load_explicit(&c.result, memory_order_relaxed), memory_order_relaxed);
            if (c.op == WR_OP_PUBLISH && atomic_load_explicit(&record->result, memory_order_relaxed) != WR_RESULT_OK)
                l->unusual_until = l->next + 1;
            /* It was executed, so what it says of its length holds. */
            if (c.op == WR_OP_PUBLISH) rows += c.flags & WR_FLAG_ROUTES ? c.queue : 1;
            else if (c.op == WR_OP_ACK || c.op == WR_OP_NACK) rows += c.count;
        }
        l->next++;
        done++;
    }
    if (done) l->spoken = true;
    e->processed_n += done;
    return done;
}

/* The frames of the round's acks, then what they allow: free slots, raise `processed`. False: the journal has no room yet. */
static bool finish_round(wr_queue_engine *e) {
    if (e->deaths_n && wr_policy_bury(e) == EAGAIN) {
        e->stalled = true;
        return false;
    }
    if (e->ranges_n) {
        if (wr_journal_acks(e) == EAGAIN) {
            e->stalled = true;
            return false;
        }
    } else {
        e->round++; /* gates of one round are merged */
    }
    e->stalled = false;
    for (uint32_t i = 0; i < e->links_n; i++) {
        wr_qlink *l = e->links[e->order[i]];
        for (uint32_t r = 0; r < l->release_n; r++) {
            uint32_t slot = l->release[r];
            atomic_store_explicit(&wr_view_delivery(&l->view, e->o.server, slot)->state, WR_DELIVERY_FREE, memory_order_release);
            l->free_slots[l->free_n++] = slot;
        }
        if (l->release_n && l->starved) {
            l->starved = false;
            for (wr_consumer *c = l->consumers; c; c = c->next)
                if (c->active) wr_queue_wake(e, c->queue);
        }
        l->release_n = 0;
        if (!l->spoken) continue;
        l->spoken = false;
        wr_link *link = shared(e, l);
        if (l->unusual_until) atomic_store_explicit(&link->unusual_until, l->unusual_until, memory_order_relaxed);
        /* SYNC processed-visible: pairs with the client's acquire; results below are complete. Never lowered after a restart. */
        if (atomic_load_explicit(&link->processed, memory_order_relaxed) < l->next || l->next >= l->takeup_tail)
            atomic_store_explicit(&link->processed, l->next, memory_order_release);
        wr_bell_ring(&l->view.client->waiting);
    }
    return true;
}

static void publish_counters(wr_queue_engine *e, uint64_t now) {
#define PUT(field, value) atomic_store_explicit(&e->me->field, value, memory_order_relaxed)
    PUT(messages, e->entries_n);
    PUT(valid_bytes, e->bytes);
    PUT(processed_n, e->processed_n);
    PUT(published_n, e->published_n);
    PUT(delivered_n, e->delivered_n);
    PUT(acked_n, e->acked_n);
    PUT(evicted_n, e->evicted_n);
    PUT(wakes_n, e->wakes_n);
    PUT(files, e->files.n + e->data_files.n);
    PUT(file_bytes_sum, (e->files.n + e->data_files.n) * e->o.file_bytes);
    const wr_log_state *state = wr_log_look(e->log);
    PUT(commits_n, state->commits_n);
    PUT(syncs_n, state->syncs_n);
    PUT(commit_ns_sum, state->commit_ns_sum);
    PUT(written_n, e->published_n);
#undef PUT
    if (e->dirty_n) wr_queue_stats_write(e);
    e->last_stats_ns = now;
    wr_pages_look(e, now);
}

/* One turn over everything. True when something moved. */
static bool run_round(wr_queue_engine *e) {
    bool any = false;
    if (e->stalled) {
        if (finish_round(e)) any = true;
    } else {
        /* Before the links: what they publish now is offered to consumers before a queue is cut to its length. */
        if (e->timed_n) any |= wr_policy_turn(e);
        for (uint32_t i = 0; i < e->links_n; i++) any |= process_link(e, e->links[e->order[i]]) != 0;
        for (uint32_t i = 0; i < e->links_n; i++) sweep(e, e->links[e->order[i]]);
        finish_round(e);
    }
    /* While slots wait to be freed nothing new is handed out: a kill now would leave two slots for one message. */
    if (!e->stalled) any |= wr_deliver(e);
    any |= wr_queue_store_round(e);
    if (wr_rows_bytes(e) > e->rows_limit) wr_pages_trim(e, 0);
    if (e->first_unsealed_ns || e->want_commit || e->unsynced) any |= wr_journal_seal(e, wr_now_ns(), false);
    for (uint32_t i = 0; i < e->links_n; i++) {
        wr_qlink *l = e->links[e->order[i]];
        if (l->gates_first != l->gates_next) any |= wr_link_drop_gates(e, l);
        if (!e->stalled) wr_link_confirm(e, l); /* `head` must not pass what the next worker has to execute again */
    }
    return any;
}

/* ---- events and sleep ---- */

static uint32_t events_now(wr_queue_engine *e) {
    uint32_t events = 0;
    wr_superblock *super = e->o.super;
    if (atomic_load_explicit(&super->slots_version, memory_order_acquire) != e->seen_slots_version) events |= WR_QUEUE_EVENT_SLOTS_CHANGED;
    /* Changes that do not concern this worker are read in its tick. */
    if (e->unknown_waiting || atomic_load_explicit(&e->me->queues_version, memory_order_acquire) > e->seen_catalog_version)
        events |= WR_QUEUE_EVENT_CATALOG_CHANGED;
    if (atomic_load_explicit(&e->stop, memory_order_relaxed) ||
        atomic_load_explicit(&super->state, memory_order_acquire) == WR_NODE_DRAINING)
        events |= e->offered & WR_QUEUE_EVENT_STOP ? 0 : WR_QUEUE_EVENT_STOP;
    if (atomic_load_explicit(&e->kick, memory_order_relaxed)) events |= WR_QUEUE_EVENT_KICK; /* taken when it is told, not when it is seen */
    const wr_log_state *state = wr_log_look(e->log);
    if (!state->has_next && !(e->offered & WR_QUEUE_EVENT_NEED_FILE)) events |= WR_QUEUE_EVENT_NEED_FILE;
    if (state->failed && !e->failed_told) {
        e->failed_told = true;
        atomic_store_explicit(&e->me->error, (uint32_t)state->failed, memory_order_release);
        atomic_fetch_or_explicit(&e->me->alarms, WR_ALARM_SYNC_FAILED, memory_order_relaxed);
        for (uint32_t i = 0; i < e->links_n; i++) wr_bell_ring(&e->links[e->order[i]]->view.client->waiting);
        events |= WR_QUEUE_EVENT_LOG_FAILED;
    }
    if (!wr_log_look(e->transient_log)->has_next && !(e->offered & WR_QUEUE_EVENT_NEED_TRANSIENT_FILE)) events |= WR_QUEUE_EVENT_NEED_TRANSIENT_FILE;
    if (e->files.n > 1) {
        if (e->files.live[0] == 0) {
            if (!(e->offered & WR_QUEUE_EVENT_FILES_EMPTY) && wr_journal_may_delete(e, e->files.first)) events |= WR_QUEUE_EVENT_FILES_EMPTY;
        } else if ((e->files.n > e->o.journal_files_max || (e->files.n > 2 && wr_pages_short(e))) &&
                   !(e->offered & WR_QUEUE_EVENT_FILES_MANY) && wr_journal_may_delete(e, e->files.first)) {
            events |= WR_QUEUE_EVENT_FILES_MANY;
        }
    }
    if (wr_segment_acks_many(e)) events |= WR_QUEUE_EVENT_FILES_EMPTY & ~e->offered;
    if (e->transient_files.n > 1 && e->transient_files.live[0] == 0 && !(e->offered & WR_QUEUE_EVENT_FILES_EMPTY)) events |= WR_QUEUE_EVENT_FILES_EMPTY;
    for (uint32_t i = 0; i < e->links_n; i++) {
        const wr_qlink *l = e->links[e->order[i]];
        if (l->pause == WR_PAUSE_CONTROL && !(e->offered & WR_QUEUE_EVENT_CONTROL)) events |= WR_QUEUE_EVENT_CONTROL;
        if (l->finished && !(e->offered & WR_QUEUE_EVENT_FINISHED)) events |= WR_QUEUE_EVENT_FINISHED;
    }
    for (uint32_t s = 0; s < 2 && e->has_port && !(e->offered & WR_QUEUE_EVENT_STORE_EPOCH); s++) {
        wr_server *server = wr_superblock_server(super, s);
        if (atomic_load_explicit(&server->state, memory_order_acquire) == WR_SERVER_READY &&
            atomic_load_explicit(&server->epoch, memory_order_acquire) != e->stores[s].epoch)
            events |= WR_QUEUE_EVENT_STORE_EPOCH;
    }
    return events;
}

/* Serve until something needs Python, or `max_ns` have passed (TIMER). Not until_event: returns when there is nothing to do. */
uint32_t wr_queue_run(wr_queue_engine *e, uint64_t max_ns, bool until_event) {
    uint64_t now = wr_now_ns(), deadline = now + max_ns, idle_since = 0;
    bool just_slept = false;
    for (uint32_t turn = 0;; turn++) {
        bool any = run_round(e);
        uint32_t events = events_now(e);
        if (any) {
            if (just_slept) e->spin_ns = 2 * e->spin_ns + 1000 < e->o.spin_ns ? 2 * e->spin_ns + 1000 : e->o.spin_ns;
            just_slept = false;
            idle_since = 0;
            if (turn % 16 == 15 || events) {
                now = wr_now_ns();
                if (now - e->last_stats_ns > 2000000) publish_counters(e, now);
                if (!events && now < deadline) continue;
            } else {
                continue;
            }
        } else {
            now = wr_now_ns();
        }
        if (events || now >= deadline || (!any && !until_event)) {
            publish_counters(e, now);
            if (events & WR_QUEUE_EVENT_KICK) atomic_exchange(&e->kick, 0);
            return events ? events : WR_QUEUE_EVENT_TIMER;
        }
        if (!idle_since) idle_since = now;
        if (now - idle_since < e->spin_ns) {
            wr_cpu_relax();
            continue;
        }
        e->spin_ns -= e->spin_ns / 8;
        if (e->dirty_n || e->last_stats_ns + 10000000 < now) publish_counters(e, now);
        /* SYNC sleep: announce, look once more, then sleep; who publishes work rings after it (futex.h) */
        atomic_store_explicit(&e->me->sleeping, 1, memory_order_relaxed);
        atomic_thread_fence(memory_order_seq_cst);
        if (run_round(e) || events_now(e)) {
            atomic_store_explicit(&e->me->sleeping, 0, memory_order_relaxed);
            idle_since = 0;
            continue;
        }
        uint64_t sleep = deadline - now < SLEEP_NS ? deadline - now : SLEEP_NS;
        if (e->first_unsealed_ns && sleep > 1000000) sleep = 1000000;
        if (e->unsynced && sleep > e->o.tick_ns) sleep = e->o.tick_ns;
        if (e->timed_n && !(sleep = wr_policy_sleep_ns(e, sleep))) {
            atomic_store_explicit(&e->me->sleeping, 0, memory_order_relaxed);
            continue;
        }
        int error = wr_futex_wait(&e->me->sleeping, 1, sleep);
        atomic_store_explicit(&e->me->sleeping, 0, memory_order_relaxed);
        e->wakes_n++;
        just_slept = error != ETIMEDOUT && wr_now_ns() - now < 100000;
        idle_since = 0;
        if (error == EINTR) {
            publish_counters(e, wr_now_ns());
            return WR_QUEUE_EVENT_TIMER; /* a signal: Python must see it */
        }
    }
}
