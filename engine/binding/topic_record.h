/* The type Record: a message that was read from a topic. */
#ifndef WR_BINDING_TOPIC_RECORD_H
#define WR_BINDING_TOPIC_RECORD_H
#include "binding/memory.h"
#include "topics/record.h"

/* Where a record lies in its batch, and its parts in it. */
typedef struct {
    uint64_t at;
    uint32_t size, body_at, body_length, properties_at, properties_length;
} wr_record_place;

static inline wr_record_place wr_record_place_of(uint64_t at, const wr_record *r) {
    return (wr_record_place){at, r->size, r->body_at, r->body_length, r->properties_at, r->properties_length};
}

/* A list of the n records in `memory`, which were checked; it is empty then, also when this fails. */
PyObject *wr_topic_records(wr_memory *memory, const wr_record_place *places, uint32_t n);
#endif
