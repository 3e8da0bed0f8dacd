/* Where a message belongs that stands in the log under a system topic of RocketMQ's until it comes to its own: REAL_TOPIC and REAL_QID, behind
 * the properties that its publisher gave it (engine/topics/formats.py). Nothing here allocates. */
#ifndef WR_TOPICS_REAL_PLACE_H
#define WR_TOPICS_REAL_PLACE_H
#include "topics/record.h"
#include "topics/text.h"

/* A property takes its name, its value, and two bytes. */
#define WR_PROPERTY_BYTES(name) ((uint32_t)sizeof(name) - 1 + 2)

/* Bytes of both properties. */
uint32_t wr_real_place_bytes(uint32_t topic_n, uint32_t queue);
/* Write them. Returns wr_real_place_bytes(topic_n, queue). */
uint32_t wr_real_place_put(uint8_t *to, const char *topic, uint32_t topic_n, uint32_t queue);

/* A property of decimal digits, 15 at most. False: there is none of that name, or it is none. */
bool wr_number_in(const uint8_t *properties, uint32_t n, const char *name, uint64_t *to);
/* The queue that a record says. False: none. */
bool wr_real_queue(const uint8_t *bytes, const wr_record *record, uint32_t *queue);

/* The properties of a record but those with these names. `to` has room for record->properties_length. Returns how many bytes. */
uint32_t wr_properties_without(const uint8_t *bytes, const wr_record *record, const char *const *names, size_t names_n, uint8_t *to);
#endif
