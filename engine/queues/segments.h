/* Entries between memory and the segments of the queue index: those of one journal file out to a flush and, when it
 * has ended, to their new place; back in at a start (design note 001, section 5). */
#ifndef WR_QUEUES_SEGMENTS_H
#define WR_QUEUES_SEGMENTS_H
#include "queues/queue.h"
#include "queues/segment_codec.h"

/* All live entries whose index record lies in a journal file, into room for `size` of them; returns how many.
 * `_most`: the room it takes. */
uint64_t wr_segment_export_most(wr_queue_engine *e, uint32_t file);
uint64_t wr_segment_export(wr_queue_engine *e, uint32_t file, wr_segment_row *rows, uint64_t size);

/* Live rows of a queue from sequence `first` on, into room for `size` of them, which is a chunk or more; returns how
 * many, and where to go on in *next. Rows that are brought back for it leave memory again. */
uint64_t wr_segment_export_queue(wr_queue_engine *e, wr_queue *q, uint64_t first, wr_segment_row *rows, uint64_t size, uint64_t *next);

/* They are in segments now: rows still alive get their new place. Returns how many. */
uint64_t wr_segment_flushed(wr_queue_engine *e, uint32_t file, const wr_segment_row *rows, uint64_t n);

/* Load the entries of a segment file (behind its header page). *bad counts entries that are neither valid nor zero. */
int wr_segment_load(wr_queue_engine *e, wr_queue *q, uint32_t segment, const uint8_t *bytes, uint64_t length, uint64_t salt,
                    uint64_t *live, uint64_t *bad);

/* While recovering: the messages whose bodies lie behind byte `size` of a segment data file, which is not there, go;
 * how many. */
uint64_t wr_segment_drop_lost(wr_queue_engine *e, uint32_t file, uint64_t size);
#endif
