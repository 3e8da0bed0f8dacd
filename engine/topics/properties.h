/* The properties of a message: `name 0x01 value 0x02`, one behind the other. Nothing here allocates; what is found
 * points into the properties. The format is declared in engine/topics/formats.py. */
#ifndef WR_TOPICS_PROPERTIES_H
#define WR_TOPICS_PROPERTIES_H
#include "topics/formats.h"
#include "topics/text.h"

/* Whether n bytes are properties: good texts, no empty name, each with its two separators (the very last may be
 * missing). */
bool wr_properties_good(const void *properties, uint64_t n);

/* Write one property to `to`. The bytes written, 0: an illegal byte, an empty name, or more than `room`. That a name
 * comes once is the caller's to see to. */
uint32_t wr_properties_put(uint8_t *to, uint64_t room, const void *name, uint64_t name_n, const void *value,
                           uint64_t value_n);

/* The property at *at, which moves behind it; false: no more. Reads nothing outside of bad properties either, and
 * ends at what is none. */
bool wr_properties_next(const uint8_t *properties, uint32_t n, uint32_t *at, wr_text *name, wr_text *value);

/* The value of a name, of its last property as in RocketMQ; false: there is none. */
bool wr_properties_find(const uint8_t *properties, uint32_t n, const char *name, wr_text *value);

/* What the log itself understands, in one pass. `at` is NULL where there is none. */
typedef struct {
    wr_text keys;     /* KEYS */
    wr_text tags;     /* TAGS */
    wr_text uniq_key; /* UNIQ_KEY */
} wr_known_properties;
void wr_properties_known(const uint8_t *properties, uint32_t n, wr_known_properties *known);

/* The next key of KEYS that is not empty; *at moves behind it. */
bool wr_keys_next(wr_text keys, uint32_t *at, wr_text *key);
#endif
