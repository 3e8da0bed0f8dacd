/* Field tables and arrays of AMQP, read where they lie: nothing is copied, and nothing is believed.
 *
 * A table is names (an octet of length, then bytes) and values, an array values alone; a value is a tag and what follows it:
 *
 *     t bool, b B octet, s u 2, I i 4, l L T 8 bytes, f d floats of 4 and 8, D an octet and 4, V nothing,
 *     S x bytes, A an array, F a table: behind 4 bytes of length
 *
 * (RabbitMQ's meanings: signed are b s I l L, and both l and L have 8 bytes.)
 *
 * Invariants
 *   No byte behind the end is read, whatever lengths say.
 *   What `wr_amqp_table_check` calls good is walked to its end by wr_amqp_field_next, in all its tables and arrays. */
#ifndef WR_AMQP_TABLES_H
#define WR_AMQP_TABLES_H
#include "amqp/methods.h"

/* What is left of a table or an array. */
typedef struct {
    const uint8_t *at, *end;
} wr_amqp_span;

typedef struct {
    const uint8_t *name, *value; /* of what has a length: without it */
    uint32_t n;                  /* bytes of the value */
    uint8_t name_n, tag;
} wr_amqp_field;

/* The next one of a table (`named`) or an array: 1, 0 at the end, -1: it is damaged. */
int wr_amqp_field_next(wr_amqp_span *left, bool named, wr_amqp_field *field);

/* An error: its text and its reply code. */
typedef struct {
    const char *text; /* NULL: nothing */
    uint16_t code;
} wr_amqp_wrong;

/* Checks a table or an array of n bytes and everything inside it. Nesting that is too deep has a reply code for the client; damage has none,
 * because RabbitMQ closes the socket without a reply then. */
wr_amqp_wrong wr_amqp_table_check(const uint8_t *at, uint64_t n, bool named);
#endif
