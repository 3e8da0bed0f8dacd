/* Records of Warren's own topics beside the commits: appended by the worker itself, and read from the log by a start. They have no unit and
 * no key. Offsets of groups are such records (engine/topics/offsets.py). */
#ifndef WR_TOPICS_SYSTEM_RECORD_H
#define WR_TOPICS_SYSTEM_RECORD_H
#include "topics/state.h"
#include "topics/walk.h"

/* Append one, which the next commit syncs. *end: when the log is synced up to there, it is on stable storage. 0; EAGAIN: there is no room now;
 * EMSGSIZE, EINVAL: never; or the log's failure. */
int wr_system_append(wr_topic_server *s, const char *topic, uint32_t topic_n, const uint8_t *body, uint32_t n, uint64_t *end);

typedef struct {
    int (*open)(void *context, uint64_t base); /* as of wr_log_visitor */
    void *open_context;
    uint64_t file_bytes;
    const char *topic;
    uint32_t topic_n;
    int (*record)(void *context, const uint8_t *body, uint32_t n); /* not 0: an errno that ends the walk */
    void *context;
} wr_system_walk;

/* Hand out the bodies of a topic's records in order, from a position behind the commit `after` on. `anew`: from the log's file that begins at
 * the position, whatever comes before; of `after` the node counts alone. 0 with *end as of wr_log_walk, or an errno. */
int wr_system_read(const wr_system_walk *walk, bool anew, uint64_t position, const wr_commit_head *after, wr_log_end *end);
#endif
