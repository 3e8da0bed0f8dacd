/* Looking into a queue without taking anything. */
#ifndef WR_QUEUES_BROWSE_H
#define WR_QUEUES_BROWSE_H
#include "queues/queue.h"

/* Ready rows that have not expired, or all and held ones too, from sequence `start` on, into room for `size` of them;
 * returns how many, and where to go on in *next: beyond `start` there may be more, also when none were found. `state`
 * says whether one is held. */
uint64_t wr_queue_browse(wr_queue *q, uint64_t start, wr_delivery *rows, uint64_t size, bool ready_only, uint64_t *next);

/* Neighbouring sequences. */
typedef struct {
    uint64_t first, count;
} wr_span;

/* The sequences of ready rows that have not expired, from `start` on, into room for `size` spans; returns how many
 * spans, and where to go on in *next: the queue's end, if that was reached. Paged rows stay on disk. */
uint64_t wr_queue_spans(wr_queue *q, uint64_t start, wr_span *spans, uint64_t size, uint64_t *next);

/* Where the rows from `start` on end that have `bytes_max` bytes of metadata and bodies together (`one`: one row at
 * least); not beyond `end`, nor a look's worth of rows. *bytes: what they have; *full: the next one does not fit. */
uint64_t wr_queue_measure(wr_queue *q, uint64_t start, uint64_t end, uint64_t bytes_max, bool one, uint64_t *bytes, bool *full);
#endif
