/* The topics that a server knows (topics/table.c). */
#ifndef WR_TOPIC_TABLE_H
#define WR_TOPIC_TABLE_H
#include "topics/state.h"

/* The topic of an id, made if it is new. NULL: no memory. The name is copied. */
wr_topic *wr_topic_declare(wr_topic_server *s, uint32_t id, const char *name, uint32_t name_length, uint32_t queues_n);
wr_topic *wr_topic_find(const wr_topic_server *s, uint32_t id);
void wr_topic_drop(wr_topic_server *s, uint32_t id);
void wr_topics_free(wr_topic_server *s);
#endif
