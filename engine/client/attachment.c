/* The mechanism of an attachment: commands, publishing, waiting. See client/attachment.h for its invariants; what it
 * consumes is client/consumer.c's. */
#include "client/attachment.h"
#include <stdlib.h>
#include <string.h>

#define SPIN_NS_MAX 40000ull

int wr_attachment_init(wr_attachment *a, wr_superblock *super, void *region, uint64_t region_bytes, uint32_t slot,
                       uint32_t generation, uint64_t client_epoch) {
    memset(a, 0, sizeof *a);
    int error = wr_port_init(&a->port, super, region, region_bytes, slot, generation, client_epoch);
    if (error) return error;
    a->images_n = super->images_n;
    a->file_bytes = super->file_bytes;
    a->message_bytes_max = super->message_bytes_max;
    a->shared_bytes_max = super->shared_bytes_max;
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
    wr_answers_free(&a->answers);
    wr_port_free(&a->port);
}

/* ---- commands --------------------------------------------------------------------------------------------------- */

int wr_attachment_room(wr_attachment *a, uint32_t server, wr_condition *blocked) {
    wr_link *link = wr_attachment_link(a, server);
    uint64_t next = a->port.prepared[server], ring = a->port.view.g.ring_records;
    blocked->server = server;
    if (atomic_load_explicit(&link->evicted, memory_order_relaxed)) return ECONNRESET;
    if (__builtin_expect(next - a->results[server].looked >= ring, 0)) wr_results_look(&a->results[server], &a->port, server); /* before the record is used again */
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

int wr_attachment_command(wr_attachment *a, uint32_t server, uint8_t op, uint8_t flags, uint32_t queue, uint64_t tag,
                          const uint8_t *id, uint64_t *sequence, wr_condition *blocked) {
    int error = wr_attachment_room(a, server, blocked);
    if (error) return error;
    wr_command *command = wr_attachment_prepare(a, server, op, flags, queue, sequence);
    if (!command) return ECONNRESET;
    command->tag = tag;
    if (id) memcpy(command->id, id, 16);
    return 0;
}

int wr_attachment_blob(wr_attachment *a, uint32_t server, uint8_t op, uint8_t flags, uint32_t queue, uint64_t count,
                       const void *bytes, uint64_t length, uint64_t *sequence, wr_condition *blocked) {
    uint64_t position;
    uint8_t *at;
    int error = wr_attachment_room(a, server, blocked);
    if (error || (error = wr_attachment_alloc(a, length, &position, &at, blocked))) return error;
    memcpy(at, bytes, length);
    wr_command *command = wr_attachment_prepare(a, server, op, flags, queue, sequence);
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
    const bool large = m->flags & WR_FLAG_LARGE;
    const uint32_t whole = (uint32_t)(m->meta_length + m->length);
    uint64_t rest = key + (large ? sizeof whole : whole);
    uint8_t *at;
    int error = wr_attachment_alloc(a, routes + rest, &position, &at, blocked);
    if (error) return error;
    if (routes) memcpy(at, first->ids, routes);
    if (key) memcpy(at + routes, m->key, key);
    if (large) {
        memcpy(at + routes + key, &whole, sizeof whole);
    } else {
        if (m->meta_length) memcpy(at + routes + key, m->meta, m->meta_length);
        memcpy(at + routes + key + m->meta_length, m->body, m->length);
    }
    for (uint32_t t = from; t < to; t++) {
        const wr_target *target = &route->targets[t];
        bool many = target->ids_n > 1;
        wr_command *command = wr_attachment_prepare(a, target->server, WR_OP_PUBLISH, m->flags | (many ? WR_FLAG_ROUTES : 0),
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
        uint32_t to = wr_route_group(route, *done);
        int error = publish_group(a, route, *done, to, message, sequences, blocked);
        if (error) return error;
        *done = to;
    }
    return 0;
}

bool wr_attachment_publish_run(wr_attachment *a, const wr_target *target, const wr_message *m, const wr_piece *bodies, const wr_piece *metas,
                               uint32_t n, uint64_t *first) {
    wr_port *port = &a->port;
    uint32_t server = target->server;
    const wr_link *link = wr_attachment_link(a, server);
    uint64_t next = port->prepared[server], ring = port->view.g.ring_records, position, total = 0;
    const wr_piece same = {m->meta, m->meta_length};
    uint64_t routes = target->ids_n > 1 ? 4ull * target->ids_n : 0;
    if (next + n - a->results[server].looked > ring) wr_results_look(&a->results[server], port, server); /* before the records are used again */
    if (next + n - port->head_seen[server] > ring)
        port->head_seen[server] = atomic_load_explicit(&link->head, memory_order_acquire);
    if (next + n - port->head_seen[server] > ring || next + n - a->results[server].looked > ring ||
        atomic_load_explicit(&link->evicted, memory_order_relaxed))
        return false;
    for (uint32_t i = 0; i < n; i++) total += (routes + (metas ? metas[i] : same).length + bodies[i].length + 7) & ~7ull;
    uint8_t *at;
    if (total > wr_attachment_run_bytes(a) || wr_port_alloc(port, total, &position, &at) ||
        wr_port_use_run(port, server, next, next + n - 1))
        return false;
    for (uint32_t i = 0; i < n; i++) {
        const wr_piece meta = metas ? metas[i] : same;
        uint64_t before = routes + meta.length, length = before + bodies[i].length;
        if (routes) memcpy(at, target->ids, routes);
        if (meta.length) memcpy(at + routes, meta.bytes, meta.length);
        if (bodies[i].length) memcpy(at + before, bodies[i].bytes, bodies[i].length);
        wr_command c = {.op = WR_OP_PUBLISH,
                        .flags = m->flags | (routes ? WR_FLAG_ROUTES : 0),
                        .meta_length = (uint16_t)meta.length,
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

/* ---- waiting ---------------------------------------------------------------------------------------------------- */

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
    const uint32_t who = wr_client_sleeps(client, WR_WAITS_THREAD);
    atomic_thread_fence(memory_order_seq_cst);
    if (wr_condition_met(condition)) return true;
    wr_futex_wait(&client->waiting, who, limit_ns - (now - started));
    return wr_condition_met(condition);
}

void wr_attachment_wake(wr_client *client) {
    atomic_fetch_and_explicit(&client->waiting, ~WR_WAITS_THREAD, memory_order_seq_cst);
    wr_futex_wake_all(&client->waiting);
}
