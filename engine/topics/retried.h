/* How often a group has tried a message before: a number of its record (reconsume_times), which who appends to a topic of a group says in the
 * property RECONSUME_TIME, as RocketMQ's consumers do. Of other topics' records it is 0, whatever their properties say.
 *
 * Nothing here allocates. Crash points: none. */
#ifndef WR_TOPICS_RETRIED_H
#define WR_TOPICS_RETRIED_H
#include "topics/properties.h"

/* Is a topic one of a group's: of messages that come again, or of those that were given up (engine/catalog/group_topics.py)? */
static inline bool wr_retried_topic(const char *name, uint32_t n) { return n && name[0] == '%'; }

/* What the properties say, which nobody changes meanwhile; 0: nothing, or nonsense. */
uint32_t wr_retried_times(const uint8_t *properties, uint32_t n);
/* The same of properties in a client's memory, which are read once. Up to WR_PROPERTIES_BYTES_MAX. */
uint32_t wr_retried_times_racy(const uint8_t *properties, uint32_t n);
#endif
