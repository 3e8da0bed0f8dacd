/* A look at the commit log before a start writes anything: is it this node's, and is it there as far as the checkpoint says?
 *
 * The walk (topics/walk.h) takes what does not follow its last commit for a torn tail, which is cut off. What this one finds is none,
 * and is nothing that this node's servers can have left behind, whatever they died of: somebody put other files there.
 * Reads alone: the first commit of some files, and the one that ends at the checkpoint; all of it, when the start is to make a new checkpoint. */
#ifndef WR_TOPIC_PREVIEW_H
#define WR_TOPIC_PREVIEW_H
#include "topics/walk.h"

typedef struct {
    bool foreign;   /* the first commit of a file is another node's */
    bool shorter;   /* the last commit that the checkpoint knows is not where it has to end */
    bool damaged;   /* a commit below the checkpoint is not what was written */
    bool empty;     /* there is no commit at the begin of the first file, or no such file */
    bool survived;  /* by the checkpoint: power was not lost since. Not set here */
    uint64_t position; /* foreign: begin of that file; shorter: where that commit has to end; damaged: where the last sound commit before ends */
    wr_commit_origin stranger; /* foreign: whose it is */
} wr_log_previewed;

/* `first`: base of the log's first file. position, last: of the checkpoint; last->number 0: it knows of no commit, or there is none. last->origin
 * has the node in any case. 0 or an errno. */
int wr_log_preview(const wr_log_visitor *visitor, void *context, uint64_t file_bytes, uint64_t first, uint64_t position, const wr_commit_head *last,
                wr_log_previewed *looked);

/* Walk what the preview found nothing wrong with, up to the checkpoint's position. A start that makes a new checkpoint does this before: what is
 * damaged at the log's end is no torn tail, and without the old checkpoint nobody would know. 0 or an errno. */
int wr_log_preview_all(const wr_log_visitor *visitor, void *context, uint64_t file_bytes, uint64_t first, uint64_t position, const wr_commit_head *last,
                       wr_log_previewed *looked);
#endif
