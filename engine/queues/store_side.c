/* The queue worker as a client of the stores. Declared in queues/store_side.h.
 *
 * A worker holds one reference per message id, however many of its queues have the message; `refs` counts its
 * entries. Resync (BEGIN, IDS…, END in ring order): while it runs nothing else is sent, because a write between IDS
 * and END would lose its reference at END, and a remove before its own IDS would be undone by it.
 */
#include "ipc/core/crash.h"
#include "queues/entries.h"
#include "queues/owed.h"
#include "queues/pages.h"
#include "queues/rows.h"
#include "queues/store_side.h"

#define REMOVES_MAX 4096
#define REMOVES_KEPT (1u << 16) /* places in a list that is empty again */
#define IDS_MAX 32768

static inline wr_server *server_of(wr_queue_engine *e, uint32_t store) { return wr_superblock_server(e->o.super, store); }

static inline bool is_up(wr_queue_engine *e, uint32_t store) {
    const wr_qstore *s = &e->stores[store];
    wr_server *server = server_of(e, store);
    return e->has_port && s->open && atomic_load_explicit(&server->state, memory_order_acquire) == WR_SERVER_READY &&
           atomic_load_explicit(&server->epoch, memory_order_acquire) == s->epoch;
}

static bool send_removes(wr_queue_engine *e, uint32_t store) {
    wr_qstore *s = &e->stores[store];
    uint64_t done = 0;
    while (done < s->removes_n) {
        uint32_t n = s->removes_n - done < REMOVES_MAX ? (uint32_t)(s->removes_n - done) : REMOVES_MAX;
        uint32_t eliminated = 0;
        if (wr_store_client_remove(&s->client, (const uint8_t(*)[16])s->removes + done, n, &eliminated)) break;
        done += n;
    }
    memmove(s->removes, s->removes + done, (s->removes_n - done) * sizeof *s->removes);
    s->removes_n -= done;
    return done != 0;
}

int wr_queue_store_write(wr_queue_engine *e, uint32_t store, const uint8_t id[16], uint64_t body, uint32_t length,
                         uint16_t meta_length, uint64_t owner_tag, uint8_t flags, uint64_t *sequence) {
    wr_qstore *s = &e->stores[store];
    if (!is_up(e, store) || s->phase > WR_RESYNC_WANTED) return EAGAIN;
    if (s->removes_n) send_removes(e, store); /* they may name this very id */
    if (s->removes_n) return EAGAIN;
    uint64_t a, b;
    wr_owed_key(id, &a, &b);
    if (wr_map_reserve(&s->refs, 1)) return ENOMEM;
    uint64_t *refs = wr_map_find(&s->refs, a, b);
    if (refs && !(flags & WR_FLAG_REQUEUE)) {
        /* first payload wins; the write before is on its way or done */
        *sequence = e->port.prepared[store] ? e->port.prepared[store] - 1 : 0;
        return 0;
    }
    return wr_store_client_write(&s->client, id, body, length, meta_length, owner_tag, flags & (uint8_t)~WR_FLAG_REQUEUE,
                                 sequence);
}

/* ---- resync ---- */

static int send_plain(wr_queue_engine *e, uint32_t store, uint8_t op, const void *blob, uint64_t count, uint64_t *sequence) {
    uint64_t position = 0;
    uint8_t *at = NULL;
    uint32_t length = (uint32_t)count * 16;
    if (length) {
        int error = wr_port_alloc(&e->port, length, &position, &at);
        if (error) return error;
        memcpy(at, blob, length);
    }
    wr_command *c = wr_port_prepare(&e->port, store, sequence);
    if (!c) return EAGAIN; /* the room of the blob comes back with the next one */
    c->op = op;
    c->body = position;
    c->length = length;
    c->count = count;
    if (length) wr_port_use(&e->port, store, *sequence);
    wr_port_submit(&e->port, store);
    return 0;
}

static bool snapshot(wr_qstore *s) {
    uint8_t(*ids)[16] = malloc((s->refs.n + 1) * sizeof *ids);
    if (!ids) return false;
    free(s->ids);
    s->ids = ids;
    s->ids_n = s->ids_at = 0;
    for (uint64_t i = 0; i < s->refs.size; i++) {
        if (!s->refs.rows[i].used) continue;
        memcpy(s->ids[s->ids_n], &s->refs.rows[i].a, 8);
        memcpy(s->ids[s->ids_n++] + 8, &s->refs.rows[i].b, 8);
    }
    return true;
}

uint64_t wr_queue_drop_bodies(wr_queue_engine *e, uint8_t location, const wr_map *missing, wr_map *held) {
    uint64_t lost = 0;
    if (!missing->n) return 0;
    for (uint64_t i = 0; i < e->queues.size; i++) {
        if (!e->queues.rows[i].used) continue;
        wr_queue *q = (wr_queue *)(uintptr_t)e->queues.rows[i].value;
        uint64_t end = q->chunk_base + q->chunks_n;
        for (uint64_t number = q->chunk_base; number < end; number++) {
            const wr_chunk *chunk = wr_queue_chunk_peek(q, number);
            /* do not bring back what holds none of them */
            if (!chunk || !(wr_body_apart(location) ? chunk->stored_n : chunk->transient_n)) continue;
            for (uint32_t r = 0; r < WR_CHUNK_ROWS; r++) {
                uint64_t sequence = number * WR_CHUNK_ROWS + r, a, b;
                wr_entry *entry = wr_queue_entry(q, sequence);
                if (!entry || (entry->state != WR_ENTRY_READY && entry->state != WR_ENTRY_DELAYED) || entry->location != location) continue;
                wr_owed_key(entry->id, &a, &b);
                if (!wr_map_find(missing, a, b)) continue;
                wr_queue_remove_entry(e, q, sequence, entry, true, true);
                e->lost_n++;
                q->lost_n++;
                lost++;
            }
            wr_pages_trim(e, 0);
        }
    }
    for (uint64_t i = 0; i < missing->size; i++)
        if (missing->rows[i].used) wr_map_remove(held, missing->rows[i].a, missing->rows[i].b);
    return lost;
}

static void drop_missing(wr_queue_engine *e, uint32_t store) {
    wr_qstore *s = &e->stores[store];
    wr_queue_drop_bodies(e, store ? WR_LOCATION_STORE_TRANSIENT : WR_LOCATION_STORE, &s->missing, &s->refs);
    wr_map_free(&s->missing);
}

static bool links_taken_up(const wr_queue_engine *e) {
    for (uint32_t i = 0; i < e->links_n; i++) {
        const wr_qlink *l = e->links[e->order[i]];
        if (!l->evicted && !l->finished && l->next < l->takeup_tail) return false;
    }
    return true;
}

static bool resync_round(wr_queue_engine *e, uint32_t store) {
    wr_qstore *s = &e->stores[store];
    if (s->phase == WR_RESYNC_IDLE) return false;
    if (!is_up(e, store)) {
        s->phase = WR_RESYNC_WANTED;
        return false;
    }
    wr_link *link = &e->port.view.links[store];
    bool passed = s->phase != WR_RESYNC_WANTED &&
                  atomic_load_explicit(&link->processed, memory_order_acquire) > s->wait_for;
    switch (s->phase) {
    case WR_RESYNC_WANTED:
        /* First what publishers' rings still hold of bodies that the store may not have (design note 001, section
         * 5). */
        if (!links_taken_up(e)) return false;
        if (!snapshot(s)) return false;
        wr_map_free(&s->missing);
        if (send_plain(e, store, WR_OP_STORE_RESYNC_BEGIN, NULL, 0, &s->wait_for)) return false;
        s->phase = WR_RESYNC_BEGIN;
        return true;
    case WR_RESYNC_IDS:
        if (!passed) return false;
        wr_crash_point(e->o.super, WR_CRASH_WORKER_RESYNC); /* some ids are answered, no end was sent */
        for (uint64_t i = 0; i < s->ids_sent; i++) {
            if (wr_view_reply(&e->port.view, store)[i]) continue;
            uint64_t a, b;
            wr_owed_key(s->ids[s->ids_at + i], &a, &b);
            if (wr_map_find(&s->refs, a, b) && !wr_map_put(&s->missing, a, b)) return false;
        }
        s->ids_at += s->ids_sent;
        s->ids_sent = 0;
        break;
    case WR_RESYNC_BEGIN:
        if (!passed) return false;
        break;
    case WR_RESYNC_END:
        if (!passed) return false;
        drop_missing(e, store);
        free(s->ids);
        s->ids = NULL;
        s->phase = WR_RESYNC_IDLE;
        s->resynced = true;
        return true;
    case WR_RESYNC_IDLE:
        return false;
    }
    /* the next step */
    uint64_t n = s->ids_n - s->ids_at;
    uint64_t most = e->geometry.reply_bytes < IDS_MAX ? e->geometry.reply_bytes : IDS_MAX;
    if (most * 16 > e->geometry.arena_bytes / 4) most = e->geometry.arena_bytes / 64;
    if (n > most) n = most;
    if (n) {
        if (send_plain(e, store, WR_OP_STORE_RESYNC_IDS, s->ids[s->ids_at], n, &s->wait_for)) {
            s->phase = WR_RESYNC_BEGIN; /* comes here again */
            return false;
        }
        s->ids_sent = n;
        s->phase = WR_RESYNC_IDS;
    } else {
        if (send_plain(e, store, WR_OP_STORE_RESYNC_END, NULL, 0, &s->wait_for)) {
            s->phase = WR_RESYNC_BEGIN;
            return false;
        }
        s->phase = WR_RESYNC_END;
    }
    return true;
}

bool wr_queue_stores_behind(wr_queue_engine *e) {
    for (uint32_t store = 0; e->has_port && store < 2; store++)
        if (atomic_load_explicit(&e->port.view.links[store].processed, memory_order_acquire) < e->port.prepared[store])
            return true;
    return false;
}

bool wr_queue_store_round(wr_queue_engine *e) {
    if (!e->has_port) return false;
    bool any = false;
    for (uint32_t store = 0; store < 2; store++) {
        wr_qstore *s = &e->stores[store];
        any |= resync_round(e, store);
        if (s->removes_n && s->phase <= WR_RESYNC_WANTED && is_up(e, store)) any |= send_removes(e, store);
        wr_map_shrink(&s->refs);
        if (!s->removes_n && s->removes_size > REMOVES_KEPT) {
            free(s->removes);
            s->removes = NULL;
            s->removes_size = 0;
        }
        wr_port_submit(&e->port, store);
    }
    return any;
}
