/* Arguments of methods and properties of contents, read where they lie. */
#ifndef WR_AMQP_ARGUMENTS_H
#define WR_AMQP_ARGUMENTS_H
#include "amqp/tables.h"

/* NULL: there is none. */
const wr_amqp_method *wr_amqp_method_of(uint32_t id);

/* One of them: a number (a bit, too), or bytes: of a text or a table, without its length. */
typedef struct {
    uint64_t number;
    const uint8_t *bytes;
    uint32_t n;
} wr_amqp_value;

/* The arguments of a method, the reserved ones too, from all n bytes behind its id. Tables are checked. */
wr_amqp_wrong wr_amqp_arguments_read(const wr_amqp_method *method, const uint8_t *at, uint32_t n, wr_amqp_value values[WR_AMQP_ARGUMENTS_MAX]);

typedef struct {
    uint16_t flags; /* as on the wire */
    wr_amqp_value values[WR_AMQP_PROPERTIES_N];
} wr_amqp_properties;

static inline bool wr_amqp_has(const wr_amqp_properties *properties, int property) { return properties->flags >> (15 - property) & 1; }

/* The properties of a content, from all n bytes behind its size. The headers are checked. */
wr_amqp_wrong wr_amqp_properties_read(const uint8_t *at, uint32_t n, wr_amqp_properties *properties);
#endif
