/* The commit log from its files: all commits from a position on, where they end and why, and what is done to the files before the log
 * goes on there (docs/design/019-topics.md, section 6).
 *
 * Nothing in a file is trusted: a commit counts when its record and checksum are right and it follows the one before.
 * Crash points: a walk changes nothing. A wr_log_settle that was begun is begun again by the next start: it writes what the files have
 * already, and takes away what no commit has.
 */
#ifndef WR_TOPIC_WALK_H
#define WR_TOPIC_WALK_H
#include "kernel/committer.h"
#include "topics/commit_record.h"

/* No commit is larger: the ring that it was made in is not. */
#define WR_COMMIT_BYTES_MAX (64ull << 20)

typedef struct {
    /* The file of a base, open for reading; the walk closes it. −ENOENT: there is none; other −errno end the walk. */
    int (*open)(void *context, uint64_t base);
    /* One sound commit: `bytes` of it from its head->from on. 0, or an errno that ends the walk. */
    int (*commit)(void *context, const uint8_t *bytes, uint64_t n, const wr_commit_head *head, const uint8_t *marks);
} wr_log_visitor;

typedef struct {
    uint64_t position;   /* where the last sound commit ends: the next one's place */
    uint64_t synced;     /* all below is on stable storage: the given position, or what the last commit says */
    wr_commit_head last; /* that commit; the given one, if there is none */
    bool torn;           /* something lies right behind it that is no commit. False: it reads as zeros there, which proves nothing */
    bool damaged;        /* and a commit still further, or the checkpoint, says that it was on stable storage */
    bool foreign;        /* a sound commit of another node lies right behind it: that is no torn tail, and is never cut off */
    wr_commit_origin stranger; /* whose it is then */
} wr_log_end;

/* Walk from a position on, where a commit or the end of a file is due, behind the commit `after`; what is below is on stable storage.
 * 0 with *end set, or an errno. */
int wr_log_walk(const wr_log_visitor *visitor, void *context, uint64_t file_bytes, uint64_t position, const wr_commit_head *after,
                wr_log_end *end);

/* The first commit record in a file, of this node, or of any (NULL). 0; ENOENT: there is none, or no such file; or an errno. */
int wr_log_first(const wr_log_visitor *visitor, void *context, uint64_t file_bytes, uint64_t base, const uint8_t *node, wr_commit_head *first);

/* What stands before the first commit of a file, to walk from there: its number is that of the first commit less 1, and its epoch that one's.
 * `before` has the node, and gets the rest. 0; ENOENT: there is no commit in this file; or an errno. */
int wr_log_before(const wr_log_visitor *visitor, void *context, uint64_t file_bytes, uint64_t base, wr_commit_head *before);

/* Make the files so that the log can go on at an end that is neither damaged nor foreign: what is below is on stable storage afterwards, and zeros are
 * behind it, in all files that there are. Before anything is confirmed, shown to a reader or written by a new server. 0 or an errno.
 * What no commit says was synced is written once more before the sync: after a sync that failed, the file still reads as it was
 * written, the system takes that for clean, and another sync would return 0 without writing it. The file before is synced, too, when
 * the log ends with it: its server may have died right before.
 * `open`: as of the visitor, but for writing, too, and not O_DIRECT. `io`: tests put losses there; NULL: the system calls. */
int wr_log_settle(int (*open)(void *context, uint64_t base), void *context, const wr_commit_io *io, void *io_context, uint64_t file_bytes,
                  const wr_log_end *end);
#endif
