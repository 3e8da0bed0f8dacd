/* The end of links, when the node ends in order. What it promises, and its crash points, are those of queues/closing.h. */
#ifndef WR_TOPIC_CLOSING_H
#define WR_TOPIC_CLOSING_H
#include "topics/state.h"

/* From now on no more is taken than what is submitted. */
void wr_topic_end_links(wr_topic_server *s);
/* How many commands of these are not executed yet. */
uint64_t wr_topic_behind(const wr_topic_server *s);
/* After a sync: close the links that are done with, for their clients to see. Returns how many are not. */
uint32_t wr_topic_close_links(wr_topic_server *s);
#endif
