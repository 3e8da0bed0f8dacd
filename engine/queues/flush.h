/* Rows of a flush on their way to the segments, for the thread that flushes (engine/queues/flush.py): nothing of the
 * engine is touched. Rows come queue by queue, by rising sequence. */
#ifndef WR_QUEUES_FLUSH_H
#define WR_QUEUES_FLUSH_H
#include "queues/queue.h"
#include "queues/segment_codec.h"

typedef struct {
    uint64_t embedded_n; /* rows whose body lies in the journal file */
    uint64_t bytes;      /* of their frames: all, or of the longest run of different frames */
    bool rising;         /* each frame is named once */
} wr_segment_survey;

wr_segment_survey wr_segment_look(const wr_segment_row *rows, uint64_t n);
/* the data file has embedded bodies where the journal had them */
void wr_segment_place(wr_segment_row *rows, uint64_t n, uint32_t file);
/* how many of the first ones belong to one segment; n > 0 */
uint64_t wr_segment_group(const wr_segment_row *rows, uint64_t n);

/* Entries of one segment to their places, neighbours in one write. 0 or an errno. */
int wr_segment_write(int fd, const wr_segment_row *rows, uint64_t n, uint64_t salt);
#endif
