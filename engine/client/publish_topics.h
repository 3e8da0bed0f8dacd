/* Publishing to topics beside queues: one body in the arena for all of them. */
#ifndef WR_CLIENT_PUBLISH_TOPICS_H
#define WR_CLIENT_PUBLISH_TOPICS_H
#include "client/attachment.h"

/* Prepare a message for all topics of a route, and for its first group of targets, if there is one: all of them, or none. The sequences of
 * the topics follow those of the targets. What it returns: wr_attachment_publish, which goes on behind that group. */
int wr_publish_topics(wr_attachment *a, const wr_route *route, const wr_message *m, uint64_t *sequences, wr_condition *blocked);
#endif
