/* Records of half messages (engine/topics/formats.py): of HALF_TOPIC while nobody has said what becomes of them; and the one that says it,
 * which names the first one's position: the message in its topic, or one of OP_HALF_TOPIC or PUT_ASIDE_TOPIC. Nothing here allocates. */
#ifndef WR_TOPICS_HALF_RECORD_H
#define WR_TOPICS_HALF_RECORD_H
#include "topics/record.h"

#define WR_HALF_TOPIC_BYTES ((uint32_t)sizeof WR_HALF_TOPIC - 1)

/* Bytes that its record's properties have more than the message's. */
uint32_t wr_half_more(uint32_t topic_n, uint32_t queue);
/* Write them behind the message's. Returns wr_half_more(topic_n, queue). */
uint32_t wr_half_put(uint8_t *to, const char *topic, uint32_t topic_n, uint32_t queue);

/* Is a record of the log (scanned) a half message? */
bool wr_half_is(const uint8_t *bytes, const wr_record *record);
/* The message's properties: those that its publisher gave it. `to` has room for record->properties_length. Returns how many bytes. */
uint32_t wr_half_properties(const uint8_t *bytes, const wr_record *record, uint8_t *to);

/* What a record says became of the half message at record->prepared_transaction_offset: HALF_…; 0: it is none that says so. */
uint32_t wr_half_kind(const uint8_t *bytes, const wr_record *record);
#endif
