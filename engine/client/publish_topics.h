/* Publishing to topics beside queues: one body in the arena for all of them. */
#ifndef WR_CLIENT_PUBLISH_TOPICS_H
#define WR_CLIENT_PUBLISH_TOPICS_H
#include "client/attachment.h"

/* The targets from `from` on that share a blob end here: the last target with many queues carries those with one queue along, which read
 * the same bytes behind its routes. */
static inline uint32_t wr_route_group(const wr_route *route, uint32_t from) {
    uint32_t to = from + 1;
    return to >= route->targets_n || route->targets[to].ids_n == 1 ? route->targets_n : to;
}

/* Prepare a message for all topics of a route, and for its first group of targets, if there is one: all of them, or none. The sequences of
 * the topics follow those of the targets. What it returns: wr_attachment_publish, which goes on behind that group. */
int wr_publish_topics(wr_attachment *a, const wr_route *route, const wr_message *m, uint64_t *sequences, wr_condition *blocked);
#endif
