/* The commit log from its files: all commits from a position on, where they end and why, and how what is behind the end is cut off
 * (docs/design/019-topics.md, section 6).
 *
 * Nothing in a file is trusted: a commit counts when its record and checksum are right and it follows the one before.
 * Crash points: a walk changes nothing. A cut that was begun is begun again by the next start, for it only takes away what no commit has.
 */
#ifndef WR_TOPIC_WALK_H
#define WR_TOPIC_WALK_H
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
    wr_commit_head last; /* that commit; the given one, if there is none */
    bool torn;           /* something lies behind it that is no commit */
    bool damaged;        /* and a commit still further says that it was on stable storage */
} wr_log_end;

/* Walk from a position on, where a commit or the end of a file is due, behind the commit `after`. 0 with *end set, or an errno. */
int wr_log_walk(const wr_log_visitor *visitor, void *context, uint64_t file_bytes, uint64_t position, const wr_commit_head *after,
                wr_log_end *end);

/* Zero a log file of file_bytes from a place on, and sync it. 0 or an errno. */
int wr_log_cut(int fd, uint64_t file_bytes, uint64_t from);
#endif
