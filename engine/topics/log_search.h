/* Files of the commit log, opened by name; and, behind damage, the next commit. */
#ifndef WR_TOPICS_LOG_SEARCH_H
#define WR_TOPICS_LOG_SEARCH_H
#include "topics/walk.h"

/* The file of a base below the folder of topics, for reading, or for writing, too. −errno. */
int wr_log_open_file(int root, uint64_t base, bool writes);

typedef struct {
    uint64_t position;    /* to walk on from there … */
    wr_commit_head after; /* … behind this commit */
    uint64_t search;      /* if nothing is sound there: to search on from there */
} wr_log_place;

/* The first commit record at or behind a position that is of the same node as `last`, and later than it. Where its commit begins behind the
 * position, it may be sound. 0; ENOENT: there is none; or an errno. */
int wr_log_search(const wr_log_visitor *visitor, void *context, uint64_t file_bytes, uint64_t position, const wr_commit_head *last,
                  wr_log_place *place);
#endif
