/* Segments of the queue index: entries of one journal file out to Python's flush, and back in at a start (design note 001,
 * section 5). The bytes of an entry are declared in engine/kernel/formats.py (queue_segment_entry). */
#ifndef WR_SEGMENT_ENTRY_H
#define WR_SEGMENT_ENTRY_H
#include "queues/queue.h"

/* One entry on its way to a segment, native order: engine/queues/queue_index.py reads an array of them with numpy. */
typedef struct {
    uint32_t queue;
    uint32_t location; /* where the body will be */
    uint64_t sequence;
    uint64_t due;   /* of a delayed message, else 0 */
    wr_entry entry; /* Python changes file, offset and location of embedded bodies */
} wr_segment_row;
_Static_assert(sizeof(wr_segment_row) == 80, "wr_segment_row");

/* All live entries whose index record lies in a journal file, into room for `size` of them; returns how many. `_most`: the room it takes. */
uint64_t wr_segment_export_most(wr_queue_engine *e, uint32_t file);
uint64_t wr_segment_export(wr_queue_engine *e, uint32_t file, wr_segment_row *rows, uint64_t size);
/* They are in segments now: rows still alive get their new place. Returns how many. */
uint64_t wr_segment_flushed(wr_queue_engine *e, uint32_t file, const wr_segment_row *rows, uint64_t n);

/* The rest is for the thread that flushes: nothing of the engine is touched. Rows come queue by queue, by rising sequence. */
typedef struct {
    uint64_t embedded_n; /* rows whose body lies in the journal file */
    uint64_t bytes;      /* of their frames: all, or of the longest run of different frames */
    bool rising;         /* each frame is named once */
} wr_segment_survey;
wr_segment_survey wr_segment_look(const wr_segment_row *rows, uint64_t n);
void wr_segment_place(wr_segment_row *rows, uint64_t n, uint32_t file); /* the data file has embedded bodies where the journal had them */
uint64_t wr_segment_group(const wr_segment_row *rows, uint64_t n);      /* how many of the first ones belong to one segment; n > 0 */
/* Entries of one segment to their places, neighbours in one write. 0 or an errno. */
int wr_segment_write(int fd, const wr_segment_row *rows, uint64_t n, uint64_t salt);
void wr_segment_encode_rows(uint8_t *to, const wr_segment_row *rows, uint64_t n, uint64_t salt);
uint32_t wr_segment_seed(uint64_t salt, uint32_t queue); /* of the entries of one file */
/* The row of a queue that lies at `at`; false: none (torn, moved or damaged). The caller has looked for zeros. */
bool wr_segment_decode(const uint8_t at[WR_QUEUE_SEGMENT_ENTRY_SIZE], uint32_t seed, uint64_t sequence, wr_entry *entry, uint64_t *due);
/* Load the entries of a segment file (behind its header page). *bad counts entries that are neither valid nor zero. */
int wr_segment_load(wr_queue_engine *e, wr_queue *q, uint32_t segment, const uint8_t *bytes, uint64_t length, uint64_t salt,
                    uint64_t *live, uint64_t *bad);
#endif
