/* The mechanism of an attachment: commands, deliveries, waiting. See client/attachment.h for its invariants. */
#include "client/attachment.h"
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define SPIN_NS_MAX 40000ull
#define TAGS_MAX 4096u

int wr_attachment_init(wr_attachment *a, wr_superblock *super, void *region, uint64_t region_bytes, uint32_t slot,
                       uint32_t generation, uint64_t client_epoch) {
    memset(a, 0, sizeof *a);
    int error = wr_port_init(&a->port, super, region, region_bytes, slot, generation, client_epoch);
    if (error) return error;
    a->images_n = super->images_n;
    a->file_bytes = super->file_bytes;
    a->message_bytes_max = super->message_bytes_max;
    a->consumers_size = 64;
    a->consumers = calloc(a->consumers_size, sizeof *a->consumers);
    if (!a->consumers || wr_bodies_init(&a->bodies, super->node_id)) {
        free(a->consumers);
        wr_port_free(&a->port);
        return ENOMEM;
    }
    return 0;
}

void wr_attachment_free(wr_attachment *a) {
    free(a->consumers);
    a->consumers = NULL;
    wr_bodies_free(&a->bodies);
    wr_port_free(&a->port);
}

/* ---- commands ---------------------------------------------------------------------------------------------------- */

int wr_attachment_room(wr_attachment *a, uint32_t server, wr_condition *blocked) {
    wr_link *link = wr_attachment_link(a, server);
    uint64_t next = a->port.prepared[server], ring = a->port.view.g.ring_records;
    blocked->server = server;
    if (atomic_load_explicit(&link->evicted, memory_order_relaxed)) return ECONNRESET;
    if (__builtin_expect(next - a->results[server].looked >= ring, 0)) wr_results_look(a, server); /* before the record is used again */
    if (next - a->port.head_seen[server] < ring) return 0;
    a->port.head_seen[server] = atomic_load_explicit(&link->head, memory_order_acquire);
    if (next - a->port.head_seen[server] < ring) return 0;
    *blocked = (wr_condition){&link->head, next - ring, server};
    return EAGAIN;
}

int wr_attachment_alloc(wr_attachment *a, uint64_t length, uint64_t *position, uint8_t **at, wr_condition *blocked) {
    wr_port *port = &a->port;
    int error = wr_port_alloc(port, length, position, at);
    if (error != EAGAIN) return error;
    if (port->uses_first == port->uses_next) { /* nothing is in use: what was given out belongs to nobody */
        port->arena_freed = port->arena_next;
        return wr_port_alloc(port, length, position, at);
    }
    const wr_blob_use *oldest = &port->uses[port->uses_first & (port->uses_size - 1)];
    *blocked = (wr_condition){&wr_attachment_link(a, oldest->server)->head, oldest->sequence, oldest->server};
    return EAGAIN;
}

static inline wr_command *prepare(wr_attachment *a, uint32_t server, uint8_t op, uint8_t flags, uint32_t queue,
                                  uint64_t *sequence) {
    wr_command *command = wr_port_prepare(&a->port, server, sequence);
    if (!command) return NULL;
    command->op = op;
    command->flags = flags;
    command->queue = queue;
    return command;
}

int wr_attachment_command(wr_attachment *a, uint32_t server, uint8_t op, uint8_t flags, uint32_t queue, uint64_t tag,
                          const uint8_t *id, uint64_t *sequence, wr_condition *blocked) {
    int error = wr_attachment_room(a, server, blocked);
    if (error) return error;
    wr_command *command = prepare(a, server, op, flags, queue, sequence);
    if (!command) return ECONNRESET;
    command->tag = tag;
    if (id) memcpy(command->id, id, 16);
    return 0;
}

int wr_attachment_credit(wr_attachment *a, wr_taker *c, uint64_t credit, uint32_t prefetch, wr_condition *blocked) {
    int error = wr_attachment_room(a, c->server, blocked);
    if (error) return error;
    uint64_t sequence;
    wr_command *command = prepare(a, c->server, WR_OP_CREDIT, 0, c->queue, &sequence);
    if (!command) return ECONNRESET;
    command->tag = credit;
    command->count = prefetch;
    command->body = a->workers[c->server].epoch; /* a restarted worker counts anew, and ignores what was meant for its predecessor */
    c->granted = credit;
    c->prefetch = prefetch;
    c->announced = true;
    return 0;
}

int wr_attachment_cancel(wr_attachment *a, wr_taker *c, uint64_t *sequence, wr_condition *blocked) {
    int error = wr_attachment_command(a, c->server, WR_OP_CANCEL, 0, c->queue, 0, NULL, sequence, blocked);
    if (error) return error;
    /* What the worker pushes before it sees the CANCEL counts as delivered under the next credit: that only grants a little more. */
    c->popped = c->granted = 0;
    c->prefetch = 0;
    c->announced = false;
    return 0;
}

int wr_attachment_blob(wr_attachment *a, uint32_t server, uint8_t op, uint8_t flags, uint32_t queue, uint64_t count,
                       const void *bytes, uint64_t length, uint64_t *sequence, wr_condition *blocked) {
    uint64_t position;
    uint8_t *at;
    int error = wr_attachment_room(a, server, blocked);
    if (error || (error = wr_attachment_alloc(a, length, &position, &at, blocked))) return error;
    memcpy(at, bytes, length);
    wr_command *command = prepare(a, server, op, flags, queue, sequence);
    if (!command) return ECONNRESET;
    command->count = count;
    command->body = position;
    command->length = (uint32_t)length;
    error = wr_port_use(&a->port, server, *sequence);
    if (error) wr_port_abandon(&a->port, server, *sequence);
    return error;
}

/* One blob for the targets from `from` to `to`: the first of them may have many queues, the others have one each. */
static int publish_group(wr_attachment *a, const wr_route *route, uint32_t from, uint32_t to, const wr_message *m,
                         uint64_t *sequences, wr_condition *blocked) {
    for (uint32_t t = from; t < to; t++) {
        int error = wr_attachment_room(a, route->targets[t].server, blocked);
        if (error) return error;
    }
    const wr_target *first = &route->targets[from];
    uint64_t routes = first->ids_n > 1 ? 4ull * first->ids_n : 0, key = m->key ? WR_KEY_BYTES : 0, position;
    uint64_t rest = key + m->meta_length + m->length;
    uint8_t *at;
    int error = wr_attachment_alloc(a, routes + rest, &position, &at, blocked);
    if (error) return error;
    if (routes) memcpy(at, first->ids, routes);
    if (key) memcpy(at + routes, m->key, key);
    if (m->meta_length) memcpy(at + routes + key, m->meta, m->meta_length);
    memcpy(at + routes + key + m->meta_length, m->body, m->length);
    for (uint32_t t = from; t < to; t++) {
        const wr_target *target = &route->targets[t];
        bool many = target->ids_n > 1;
        wr_command *command = prepare(a, target->server, WR_OP_PUBLISH, m->flags | (many ? WR_FLAG_ROUTES : 0),
                                      many ? target->ids_n : target->queue, &sequences[t]);
        error = command ? wr_port_use(&a->port, target->server, sequences[t]) : ECONNRESET;
        if (error) { /* evicted at this moment, or out of memory: no target of this group gets it */
            blocked->server = target->server;
            for (uint32_t u = from; u < t + (command ? 1 : 0); u++)
                wr_port_abandon(&a->port, route->targets[u].server, sequences[u]);
            return error;
        }
        command->meta_length = m->meta_length;
        memcpy(command->id, m->id, 16);
        command->body = position + (many ? 0 : routes);
        command->length = (uint32_t)((many ? routes : 0) + rest);
        command->count = m->expires;
        command->tag = m->due;
    }
    return 0;
}

int wr_attachment_publish(wr_attachment *a, const wr_route *route, uint32_t *done, const wr_message *message,
                          uint64_t *sequences, wr_condition *blocked) {
    while (*done < route->targets_n) {
        uint32_t to = *done + 1;
        /* The last target with many queues carries those with one queue along: they read the same bytes behind its routes. */
        if (to == route->targets_n || route->targets[to].ids_n == 1) to = route->targets_n;
        int error = publish_group(a, route, *done, to, message, sequences, blocked);
        if (error) return error;
        *done = to;
    }
    return 0;
}

bool wr_attachment_publish_run(wr_attachment *a, const wr_target *target, const wr_message *m, const wr_piece *bodies, uint32_t n,
                               uint64_t *first) {
    wr_port *port = &a->port;
    uint32_t server = target->server;
    const wr_link *link = wr_attachment_link(a, server);
    uint64_t next = port->prepared[server], ring = port->view.g.ring_records, position, total = 0;
    uint64_t routes = target->ids_n > 1 ? 4ull * target->ids_n : 0, before = routes + m->meta_length;
    if (next + n - a->results[server].looked > ring) wr_results_look(a, server); /* before the records are used again */
    if (next + n - port->head_seen[server] > ring)
        port->head_seen[server] = atomic_load_explicit(&link->head, memory_order_acquire);
    if (next + n - port->head_seen[server] > ring || next + n - a->results[server].looked > ring ||
        atomic_load_explicit(&link->evicted, memory_order_relaxed))
        return false;
    for (uint32_t i = 0; i < n; i++) total += (before + bodies[i].length + 7) & ~7ull;
    uint8_t *at;
    if (total > wr_attachment_run_bytes(a) || wr_port_alloc(port, total, &position, &at) ||
        wr_port_use_run(port, server, next, next + n - 1))
        return false;
    for (uint32_t i = 0; i < n; i++) {
        uint64_t length = before + bodies[i].length;
        if (routes) memcpy(at, target->ids, routes);
        if (m->meta_length) memcpy(at + routes, m->meta, m->meta_length);
        memcpy(at + before, bodies[i].bytes, bodies[i].length);
        wr_command c = {.op = WR_OP_PUBLISH,
                        .flags = m->flags | (routes ? WR_FLAG_ROUTES : 0),
                        .meta_length = m->meta_length,
                        .body = position,
                        .length = (uint32_t)length,
                        .queue = routes ? target->ids_n : target->queue,
                        .tag = m->due,
                        .count = m->expires};
        wr_attachment_id(a, c.id);
        memcpy((void *)wr_view_command(&port->view, server, next + i), (const void *)&c, sizeof c);
        length = (length + 7) & ~7ull;
        position += length;
        at += length;
    }
    *first = next;
    port->prepared[server] = next + n;
    return true;
}

int wr_attachment_settle(wr_attachment *a, const wr_taker *c, uint8_t op, uint8_t flags, const uint64_t *tags,
                         uint32_t tags_n, wr_condition *blocked) {
    uint64_t sequence;
    assert(tags_n && tags_n <= TAGS_MAX);
    if (tags_n == 1) return wr_attachment_command(a, c->server, op, flags, c->queue, tags[0], NULL, &sequence, blocked);
    return wr_attachment_blob(a, c->server, op, flags, c->queue, tags_n, tags, 8ull * tags_n, &sequence, blocked);
}

/* ---- waiting ----------------------------------------------------------------------------------------------------- */

bool wr_attachment_sleep(wr_client *client, const wr_condition *condition, uint64_t limit_ns, uint64_t spin_ns) {
    uint64_t started = wr_now_ns(), now = started;
    for (;;) {
        for (int i = 0; i < 32; i++) {
            if (wr_condition_met(condition)) return true;
            wr_cpu_relax();
        }
        now = wr_now_ns();
        if (now - started >= spin_ns || now - started >= limit_ns) break;
    }
    if (now - started >= limit_ns) return wr_condition_met(condition);
    /* SYNC waiting: set, then look once more; the server publishes first and takes the word afterwards. It is left set
     * when we go: other threads of this process may sleep on it, and one needless wake is all it costs. */
    atomic_store_explicit(&client->waiting, 1, memory_order_seq_cst);
    atomic_thread_fence(memory_order_seq_cst);
    if (wr_condition_met(condition)) return true;
    wr_futex_wait(&client->waiting, 1, limit_ns - (now - started));
    return wr_condition_met(condition);
}

void wr_attachment_wake(wr_client *client) {
    atomic_store_explicit(&client->waiting, 0, memory_order_seq_cst);
    wr_futex_wake_all(&client->waiting);
}

/* ---- consumers --------------------------------------------------------------------------------------------------- */

static inline uint32_t place_of(const wr_attachment *a, uint32_t queue) {
    return (queue * 2654435761u) & (a->consumers_size - 1);
}

wr_taker *wr_taker_find(const wr_attachment *a, uint32_t queue) {
    for (uint32_t i = place_of(a, queue);; i = (i + 1) & (a->consumers_size - 1)) {
        wr_taker *c = a->consumers[i];
        if (!c || c->queue == queue) return c;
    }
}

static void insert(wr_attachment *a, wr_taker *c) {
    uint32_t i = place_of(a, c->queue);
    while (a->consumers[i]) i = (i + 1) & (a->consumers_size - 1);
    a->consumers[i] = c;
}

/* Rebuild the table with `size` places, without `without`. */
static int rebuild(wr_attachment *a, uint32_t size, const wr_taker *without) {
    wr_taker **old = a->consumers;
    uint32_t old_size = a->consumers_size;
    wr_taker **fresh = calloc(size, sizeof *fresh);
    if (!fresh) return ENOMEM;
    a->consumers = fresh;
    a->consumers_size = size;
    for (uint32_t i = 0; i < old_size; i++)
        if (old[i] && old[i] != without) insert(a, old[i]);
    free(old);
    return 0;
}

int wr_taker_add(wr_attachment *a, wr_taker *c, uint32_t server, uint32_t queue) {
    if (wr_taker_find(a, queue)) return EEXIST;
    if (2 * (a->consumers_n + 1) > a->consumers_size && rebuild(a, 2 * a->consumers_size, NULL)) return ENOMEM;
    memset(c, 0, sizeof *c);
    c->server = server;
    c->queue = queue;
    c->pending_size = c->unacked_size = 16;
    c->pending = malloc(c->pending_size * sizeof *c->pending);
    c->unacked = malloc(c->unacked_size * sizeof *c->unacked);
    if (!c->pending || !c->unacked) {
        free(c->pending);
        free(c->unacked);
        c->pending = NULL;
        c->unacked = NULL;
        return ENOMEM;
    }
    insert(a, c);
    a->consumers_n++;
    return 0;
}

void wr_taker_drop(wr_attachment *a, wr_taker *c) {
    if (!c->pending) return;
    if (a && a->consumers && wr_taker_find(a, c->queue) == c) {
        uint32_t hole = place_of(a, c->queue);
        while (a->consumers[hole] != c) hole = (hole + 1) & (a->consumers_size - 1);
        a->consumers[hole] = NULL;
        a->consumers_n--;
        /* Close the gap: whoever stands behind it in the same run is put in anew. */
        for (uint32_t i = (hole + 1) & (a->consumers_size - 1); a->consumers[i]; i = (i + 1) & (a->consumers_size - 1)) {
            wr_taker *moved = a->consumers[i];
            a->consumers[i] = NULL;
            insert(a, moved);
        }
    }
    free(c->pending);
    free(c->unacked);
    c->pending = NULL;
    c->unacked = NULL;
}

static int grow_pending(wr_taker *c) {
    if (wr_taker_pending(c) < c->pending_size) return 0;
    wr_pending *bigger = malloc(2 * (size_t)c->pending_size * sizeof *bigger);
    if (!bigger) return ENOMEM;
    for (uint64_t i = c->pending_first; i != c->pending_next; i++)
        memcpy((void *)&bigger[i & (2ull * c->pending_size - 1)], (void *)&c->pending[i & (c->pending_size - 1)], sizeof *bigger);
    free(c->pending);
    c->pending = bigger;
    c->pending_size *= 2;
    return 0;
}

static int push_pending(wr_taker *c, const wr_pending *p) {
    if (grow_pending(c)) return ENOMEM;
    memcpy((void *)&c->pending[c->pending_next++ & (c->pending_size - 1)], (const void *)p, sizeof *p);
    return 0;
}

int wr_taker_push_front(wr_taker *c, const wr_pending *p) {
    if (grow_pending(c)) return ENOMEM;
    memcpy((void *)&c->pending[--c->pending_first & (c->pending_size - 1)], (const void *)p, sizeof *p);
    return 0;
}

int wr_taker_hand(wr_taker *c, uint64_t tag) {
    if (c->unacked_next - c->unacked_first == c->unacked_size) {
        /* Full: squeeze the settled places out; grow only when that gains less than half. */
        uint64_t kept = 0;
        for (uint64_t i = c->unacked_first; i != c->unacked_next; i++)
            kept += c->unacked[i & (c->unacked_size - 1)] != WR_TAG_NONE;
        uint32_t size = 2 * kept > c->unacked_size ? 2 * c->unacked_size : c->unacked_size;
        uint64_t *fresh = malloc(size * sizeof *fresh);
        if (!fresh) return ENOMEM;
        uint64_t to = 0;
        for (uint64_t i = c->unacked_first; i != c->unacked_next; i++) {
            uint64_t held = c->unacked[i & (c->unacked_size - 1)];
            if (held != WR_TAG_NONE) fresh[to++] = held;
        }
        free(c->unacked);
        c->unacked = fresh;
        c->unacked_size = size;
        c->unacked_first = 0;
        c->unacked_next = to;
    }
    c->unacked[c->unacked_next++ & (c->unacked_size - 1)] = tag;
    return 0;
}

static inline void trim(wr_taker *c) {
    uint32_t mask = c->unacked_size - 1;
    while (c->unacked_first != c->unacked_next && c->unacked[c->unacked_first & mask] == WR_TAG_NONE) c->unacked_first++;
    while (c->unacked_first != c->unacked_next && c->unacked[(c->unacked_next - 1) & mask] == WR_TAG_NONE) c->unacked_next--;
}

bool wr_taker_forget(wr_taker *c, uint64_t tag) {
    uint32_t mask = c->unacked_size - 1;
    for (uint64_t i = c->unacked_first; i != c->unacked_next; i++) {
        if (c->unacked[i & mask] != tag) continue;
        c->unacked[i & mask] = WR_TAG_NONE;
        trim(c);
        return true;
    }
    return false;
}

uint32_t wr_taker_forget_up_to(wr_taker *c, uint64_t tag, uint64_t *tags, uint32_t room) {
    uint32_t mask = c->unacked_size - 1, n = 0;
    for (uint64_t i = c->unacked_first; i != c->unacked_next && n < room; i++) {
        uint64_t held = c->unacked[i & mask];
        if (held == WR_TAG_NONE || held > tag) continue;
        tags[n++] = held;
        c->unacked[i & mask] = WR_TAG_NONE;
    }
    trim(c);
    return n;
}

/* ---- deliveries -------------------------------------------------------------------------------------------------- */

bool wr_attachment_slot_read(const wr_attachment *a, uint32_t server, uint32_t slot, wr_delivery *to) {
    wr_delivery *from = wr_view_delivery(&a->port.view, server, slot);
    /* SYNC delivery: state is written last by the worker. */
    if (atomic_load_explicit(&from->state, memory_order_acquire) != WR_DELIVERY_HELD) return false;
    memcpy((void *)to, (const void *)from, sizeof *to);
    atomic_thread_fence(memory_order_acquire);
    return atomic_load_explicit(&from->state, memory_order_relaxed) == WR_DELIVERY_HELD && from->pushed_at == to->pushed_at;
}

int wr_attachment_intake(wr_attachment *a, uint32_t server) {
    wr_link *link = wr_attachment_link(a, server);
    wr_worker_side *side = &a->workers[server];
    uint64_t tail = atomic_load_explicit(&link->delivery_tail, memory_order_acquire);
    int error = 0;
    wr_taker *c = NULL;
    if (tail - side->popped > a->port.view.g.delivery_slots) { /* the worker skipped: what was overwritten is not ours any more */
        side->popped = tail - a->port.view.g.delivery_slots;
    }
    while (side->popped != tail) {
        wr_pending p;
        p.slot = atomic_load_explicit(wr_view_delivery_ring(&a->port.view, server, side->popped), memory_order_relaxed);
        bool ours = wr_attachment_slot_read(a, server, p.slot, &p.delivery) && p.delivery.pushed_at == side->popped;
        if (ours) {
            if (!c || c->queue != p.delivery.queue) c = wr_taker_find(a, p.delivery.queue);
            if (c && c->server == server) {
                if ((error = push_pending(c, &p))) break;
                c->popped++;
            } else { /* nobody here reads that queue any more */
                uint64_t sequence;
                wr_condition blocked;
                error = wr_attachment_command(a, server, WR_OP_NACK, WR_FLAG_REQUEUE | WR_FLAG_UNSEEN, p.delivery.queue,
                                              p.delivery.sequence, NULL, &sequence, &blocked);
                if (error) break;
                wr_port_submit(&a->port, server);
            }
        }
        side->popped++;
    }
    atomic_store_explicit(&link->delivery_head, side->popped, memory_order_release);
    return error;
}

void wr_taker_recheck(const wr_attachment *a, wr_taker *c) {
    uint64_t to = c->pending_first;
    for (uint64_t i = c->pending_first; i != c->pending_next; i++) {
        wr_pending p;
        memcpy((void *)&p, (void *)&c->pending[i & (c->pending_size - 1)], sizeof p);
        wr_delivery now;
        if (!wr_attachment_slot_read(a, c->server, p.slot, &now) || now.queue != c->queue ||
            now.sequence != p.delivery.sequence || now.pushed_at != p.delivery.pushed_at)
            continue;
        memcpy((void *)&p.delivery, (void *)&now, sizeof now);
        memcpy((void *)&c->pending[to++ & (c->pending_size - 1)], (void *)&p, sizeof p);
    }
    c->pending_next = to;
}
