/* Appending to topics. Declared in client/append.h. */
#include "client/append.h"
#include <string.h>

int wr_append_room(wr_attachment *a, uint32_t server, uint32_t n, wr_condition *blocked) {
    wr_link *link = wr_attachment_link(a, server);
    uint64_t last = a->port.prepared[server] + n - 1, ring = a->port.view.g.ring_records;
    int error = wr_attachment_room(a, server, blocked);
    if (error) return error;
    if (last - a->port.head_seen[server] >= ring) a->port.head_seen[server] = atomic_load_explicit(&link->head, memory_order_acquire);
    if (last - a->port.head_seen[server] >= ring) {
        *blocked = (wr_condition){&link->head, last - ring, server};
        return EAGAIN;
    }
    if (last - a->results[server].looked >= ring) wr_results_look(&a->results[server], &a->port, server); /* before the records are used again */
    if (__builtin_expect(last - a->answers.looked < ring, 1) || !a->answers.wanted) return 0; /* nobody wants an answer */
    wr_answers_look(&a->answers, &a->port, false); /* `head` is above it, so it is written */
    if (last - a->answers.looked < ring) return 0;
    *blocked = (wr_condition){&link->written, last - ring, server};
    return EAGAIN;
}

static void fill(uint8_t *at, const wr_append_record *records, uint32_t n) {
    wr_append_part *parts = (wr_append_part *)at;
    if (n > 1) at += n * sizeof *parts;
    for (uint32_t i = 0; i < n; i++) {
        const wr_append_record *r = &records[i];
        if (n > 1) parts[i] = (wr_append_part){.body_length = r->body_length, .properties_length = r->properties_length};
        if (r->properties_length) memcpy(at, r->properties, r->properties_length);
        at += r->properties_length;
        if (r->body_length) memcpy(at, r->body, r->body_length);
        at += r->body_length;
    }
}

int wr_attachment_append(wr_attachment *a, const wr_append *to, const wr_append_record *records, uint32_t n, wr_answer *answer,
                         uint64_t *sequence, wr_condition *blocked) {
    wr_port *port = &a->port;
    uint64_t data = 0, position;
    uint8_t *at;
    for (uint32_t i = 0; i < n; i++) data += (uint64_t)records[i].properties_length + records[i].body_length;
    uint64_t length = wr_append_bytes(n, data);
    int error = wr_answers_open(&a->answers, port, to->server);
    if (!error) error = wr_append_room(a, to->server, 1, blocked);
    if (!error) error = length > UINT32_MAX ? EMSGSIZE : wr_attachment_alloc(a, length, &position, &at, blocked);
    if (error) return error;
    fill(at, records, n);
    uint8_t flags = to->level == WR_LEVEL_SYNCED ? WR_FLAG_SYNCED : to->level == WR_LEVEL_WRITTEN ? WR_FLAG_WRITTEN : 0;
    if (to->kind == WR_APPEND_LATER) flags |= WR_FLAG_LATER;
    if (to->kind == WR_APPEND_HALF) flags |= WR_FLAG_HALF;
    wr_command *command = wr_attachment_prepare(a, to->server, n > 1 ? WR_OP_APPEND_MANY : WR_OP_APPEND, flags, to->topic, sequence);
    if (!command) {
        blocked->server = to->server;
        port->arena_next = position;
        return ECONNRESET;
    }
    command->row = to->queue;
    command->tag = to->born_ms;
    command->count = n > 1 ? n : 0;
    command->meta_length = n > 1 ? 0 : (uint16_t)records->properties_length;
    command->body = position;
    command->length = (uint32_t)length;
    error = wr_port_use(port, to->server, *sequence);
    if (error) {
        wr_port_abandon(port, to->server, *sequence);
        port->arena_next = position;
        return error;
    }
    wr_answers_want(&a->answers, port, *sequence, answer);
    return 0;
}
