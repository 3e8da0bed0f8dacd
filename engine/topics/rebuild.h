/* Make what is derived from the log again, from the log alone.
 *
 * Crash points: the checkpoint goes first. Whoever starts without one makes all again. */
#ifndef WR_TOPICS_REBUILD_H
#define WR_TOPICS_REBUILD_H
#include "topics/dispatch.h"

typedef struct {
    const wr_dispatch_topic *topics; /* of the catalog */
    uint32_t topics_n;
    uint64_t first; /* base of the log's first file */
    int (*progress)(void *context, uint64_t position); /* behind each commit; not 0: an errno that ends it */
    void *context;
} wr_rebuild_options;

/* Consume queues, index and checkpoint; the log is settled, as a start does. 0 with what was put; EUCLEAN: the log is damaged, so that what lies
 * behind would be missing: only derived files were changed; or an errno. Nobody else has the folder. */
int wr_rebuild(const wr_dispatch_place *place, const wr_rebuild_options *options, wr_dispatch_counts *counts);
#endif
