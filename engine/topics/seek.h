/* The offset of a time in a queue of a topic. Store times never step back, so it is a binary search, and the answer is always the same.
 * Messages that are not there (empty units, damage, files that are gone) are passed by. */
#ifndef WR_TOPICS_SEEK_H
#define WR_TOPICS_SEEK_H
#include "topics/reader.h"

typedef enum {
    WR_SEEK_LOWER, /* the first message whose store time is `when` or later; the maximum, if there is none */
    WR_SEEK_UPPER  /* the last one whose store time is `when` or earlier; WR_SEEK_NONE, if there is none */
} wr_seek_boundary;

#define WR_SEEK_NONE UINT64_MAX

/* `when`: milliseconds since 1970. 0; ENXIO: there is no such queue; or an errno. */
int wr_topic_seek(wr_topic_reader *reader, uint32_t queue, int64_t when, wr_seek_boundary boundary, uint64_t *offset);

/* The store time of the first message that is there. 0; ENOENT: there is none; ENXIO: there is no such queue; or an errno. */
int wr_topic_first_time(wr_topic_reader *reader, uint32_t queue, int64_t *time);
#endif
