/* Publishing to topics beside queues. Declared in client/publish_topics.h.
 *
 * A blob of all of it, read by each server as its own:
 *
 *     properties for topic 0 | … for topic n | 0 to 7 bytes | routes | key | metadata | body
 *     ^ APPEND 0 reads from here to the end, and skips what lies between its properties and the body
 *                    ^ APPEND n                            ^ PUBLISH of the first target; others begin behind the routes
 *
 * Crash points
 *   The tail of each server's ring is its commit point: killed before all have risen, a publisher leaves the message with some of them,
 *   unconfirmed, as with queues of several workers.
 */
#include "client/publish_topics.h"
#include "client/append.h"
#include <string.h>

/* Where the parts of the blob begin, from its begin. */
typedef struct {
    uint64_t properties; /* end of the last topic's */
    uint64_t routes, key, meta, body, end;
} shape;

static shape shape_of(const wr_route *route, uint32_t to, const wr_message *m) {
    shape s = {0};
    for (uint32_t i = 0; i < route->topics_n; i++) s.properties += m->parts[i].properties_length;
    s.routes = (s.properties + 7) & ~7ull;
    s.key = s.routes + (to && route->targets[0].ids_n > 1 ? 4ull * route->targets[0].ids_n : 0);
    s.meta = s.key + (to && m->key ? WR_KEY_BYTES : 0);
    s.body = s.meta + (to ? m->meta_length : 0);
    s.end = s.body + m->length;
    return s;
}

static void fill(uint8_t *at, const wr_route *route, const shape *s, const wr_message *m) {
    uint8_t *properties = at;
    for (uint32_t i = 0; i < route->topics_n; i++) {
        memcpy(properties, m->parts[i].properties, m->parts[i].properties_length);
        properties += m->parts[i].properties_length;
    }
    memset(properties, 0, s->routes - s->properties);
    if (s->key > s->routes) memcpy(at + s->routes, route->targets[0].ids, s->key - s->routes);
    if (s->meta > s->key) memcpy(at + s->key, m->key, s->meta - s->key);
    if (s->body > s->meta) memcpy(at + s->meta, m->meta, s->body - s->meta);
    if (m->length) memcpy(at + s->body, m->body, m->length);
}

/* One command for each topic. 0, ECONNRESET, ENOMEM: none of them. */
static int append(wr_attachment *a, const wr_route *route, const shape *s, uint64_t position, const wr_message *m, uint64_t *sequences) {
    uint32_t server = route->topic_server;
    uint64_t at = 0;
    for (uint32_t i = 0; i < route->topics_n; i++) {
        const wr_topic_part *part = &m->parts[i];
        wr_command *command = wr_attachment_prepare(a, server, WR_OP_APPEND, m->flags & (WR_FLAG_SYNCED | WR_FLAG_WRITTEN), route->topics[i].id, &sequences[i]);
        if (!command) {
            if (i) wr_port_abandon(&a->port, server, sequences[0]);
            return ECONNRESET;
        }
        command->row = part->queue;
        command->tag = m->born_ms;
        command->meta_length = (uint16_t)part->properties_length;
        command->body = position + at;
        command->length = (uint32_t)(s->end - at);
        at += part->properties_length;
        command->count = s->body - at;
    }
    int error = wr_port_use_run(&a->port, server, sequences[0], sequences[route->topics_n - 1]);
    if (error) wr_port_abandon(&a->port, server, sequences[0]);
    return error;
}

/* One command for each target below `to`. */
static int publish(wr_attachment *a, const wr_route *route, uint32_t to, const shape *s, uint64_t position, const wr_message *m,
                   uint64_t *sequences, wr_condition *blocked) {
    for (uint32_t t = 0; t < to; t++) {
        const wr_target *target = &route->targets[t];
        bool many = target->ids_n > 1;
        wr_command *command = wr_attachment_prepare(a, target->server, WR_OP_PUBLISH, m->flags | (many ? WR_FLAG_ROUTES : 0),
                                                    many ? target->ids_n : target->queue, &sequences[t]);
        int error = command ? wr_port_use(&a->port, target->server, sequences[t]) : ECONNRESET;
        if (error) {
            blocked->server = target->server;
            for (uint32_t u = 0; u < t + (command ? 1 : 0); u++) wr_port_abandon(&a->port, route->targets[u].server, sequences[u]);
            return error;
        }
        uint64_t begin = many ? s->routes : s->key;
        command->meta_length = m->meta_length;
        memcpy(command->id, m->id, 16);
        command->body = position + begin;
        command->length = (uint32_t)(s->end - begin);
        command->count = m->expires;
        command->tag = m->due;
    }
    return 0;
}

int wr_publish_topics(wr_attachment *a, const wr_route *route, const wr_message *m, uint64_t *sequences, wr_condition *blocked) {
    uint32_t to = route->targets_n ? wr_route_group(route, 0) : 0, server = route->topic_server;
    uint64_t *appended = sequences + route->targets_n, position;
    uint8_t *at;
    int error = wr_append_room(a, server, route->topics_n, blocked);
    for (uint32_t t = 0; !error && t < to; t++) error = wr_attachment_room(a, route->targets[t].server, blocked);
    if (error) return error;
    const shape s = shape_of(route, to, m);
    if (s.end > UINT32_MAX) return EMSGSIZE;
    if ((error = wr_attachment_alloc(a, s.end, &position, &at, blocked))) return error;
    fill(at, route, &s, m);
    error = append(a, route, &s, position, m, appended);
    if (error) {
        blocked->server = server;
        return error;
    }
    error = publish(a, route, to, &s, position, m, sequences, blocked);
    if (error) wr_port_abandon(&a->port, server, appended[0]);
    return error;
}
