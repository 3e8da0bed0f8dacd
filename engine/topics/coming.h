/* A message that stands in the log under a system topic comes to its own: one that was to come later, or a half one that is committed. The
 * record by which it comes names the one before, so it is the mark, too. On the loop's thread. */
#ifndef WR_TOPICS_COMING_H
#define WR_TOPICS_COMING_H
#include "topics/intake.h"

typedef struct {
    wr_topic *topic;
    uint32_t queue; /* below topic->queues_n */
    const uint8_t *bytes; /* of its record, which was scanned */
    const wr_record *record;
    const uint8_t *properties; /* that it has then */
    uint32_t properties_n;
    uint32_t sys_flag;
    uint64_t prepared; /* prepared_transaction_offset */
    uint64_t position, offset; /* set: where it came */
} wr_coming;

typedef enum {
    WR_COME_CAME,  /* the next commit is synced: nobody sees it before it is as durable as its first record may be */
    WR_COME_WAITS, /* no room */
    WR_COME_NEVER  /* its record cannot be made: too large for a log with smaller settings, or damaged */
} wr_come_outcome;

wr_come_outcome wr_come(wr_topic_server *s, wr_coming *c);
#endif
