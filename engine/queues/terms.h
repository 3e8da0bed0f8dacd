/* What a clean stop remembers of a queue: rows that were delivered, and the next sequence. */
#ifndef WR_QUEUES_TERMS_H
#define WR_QUEUES_TERMS_H
#include "kernel/formats.h"
#include "queues/queue.h"

/* Kept as it lies in memory; declared in engine/kernel/formats.py. n neighbours that are marked redelivered, or 0: this
 * one, not marked. Sequences without a message are no matter in a run of marks. */
typedef struct {
    uint64_t sequence;
    uint32_t delivery_count, redelivered_n;
} wr_term;
_Static_assert(sizeof(wr_term) == WR_TERM_SIZE, "wr_term");
_Static_assert(offsetof(wr_term, sequence) == WR_TERM_AT_SEQUENCE, "wr_term.sequence");
_Static_assert(offsetof(wr_term, delivery_count) == WR_TERM_AT_DELIVERY_COUNT, "wr_term.delivery_count");
_Static_assert(offsetof(wr_term, redelivered_n) == WR_TERM_AT_REDELIVERED_N, "wr_term.redelivered_n");
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "terms");

typedef struct {
    wr_term *terms;
    uint64_t n, size;
} wr_term_list;

/* False: no memory. The caller frees `terms`. */
bool wr_terms_of(const wr_queue *q, wr_term_list *list);

/* While recovering: they hold again, and sequences go on at `next`. */
void wr_terms_set(wr_queue_engine *e, wr_queue *q, uint64_t next, const uint8_t *terms, uint64_t bytes);
#endif
