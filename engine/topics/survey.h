/* The offsets in the intact commits of a log, wherever they are. They show what is lost (engine/topics/log_loss.py).
 * Only reads; one thread. */
#ifndef WR_TOPICS_SURVEY_H
#define WR_TOPICS_SURVEY_H
#include "kernel/map.h"
#include "topics/walk.h"

/* Offsets of a queue: of the first message that was seen, and after the last. Gaps in between are of earlier losses. */
typedef struct {
    uint32_t topic, queue;
    uint64_t first, next;
} wr_surveyed;

typedef struct {
    int root;             /* the folder of topics */
    uint64_t file_bytes;  /* of a file of the log */
    int (*progress)(void *context, uint64_t position); /* now and then; not 0: an errno that ends it */
    void *context;
    /* found */
    wr_surveyed *rows;
    uint32_t rows_n, rows_room;
    wr_map by_queue;
    uint64_t first; /* retention may have removed the log below */
    uint64_t told;
} wr_survey;

/* Walk on from a position, after the commit `after`. `anew`: from the start of a file, whatever came before (only
 * the node of `after` counts). Adds the offsets that it sees to the rows. *end: as in wr_log_walk. Returns 0 or an
 * errno. */
int wr_survey_walk(wr_survey *survey, uint64_t position, bool anew, wr_commit_head *after, wr_log_end *end);
void wr_survey_free(wr_survey *survey);
#endif
