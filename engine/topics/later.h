/* Messages that come later, in the topic worker: they are appended to the log under a system topic, and when they are due by the wall clock,
 * to their own topic (docs/design/024-later-messages.md).
 *
 * On the loop's thread. Invariants
 *   What is pending is what the log says: a record of a message that is to come, and none in its topic that names it. So a message comes
 *   once, whatever is killed: the record by which it comes is in a commit as a whole, or not at all.
 *   None comes before its record is sealed: so it lies behind it in the log, and is not confirmed before it.
 *   One comes at a store time that is not before its time, and its commit is synced before a reader sees it.
 *   Those that are due come in the order of their times; some at once, so that clients are served in between.
 *   Messages of a topic that was deleted go with it.
 * Crash points: between append and seal what came is pending again, for nobody has seen it. */
#ifndef WR_TOPICS_LATER_H
#define WR_TOPICS_LATER_H
#include "topics/intake.h"
#include "topics/walk.h"

/* Where it reads records that are due. Before the first round. */
void wr_later_begin(wr_topic_server *s, int root, uint64_t file_bytes, const void *ring, uint64_t ring_bytes);
void wr_later_end(wr_topic_server *s);

/* Append the messages of a command so that they come later; the client's link and topic are known. As wr_topic_execute. */
wr_topic_outcome wr_later_append(wr_topic_server *s, wr_topic_link *l, const wr_command *c, wr_command *record, wr_topic *topic);

/* Append those that are due, as many as are good for a round. True: some were. */
bool wr_later_round(wr_topic_server *s);
/* For so long nothing will be due, `most` at most. */
uint64_t wr_later_sleep_ns(const wr_topic_server *s, uint64_t most);

/* A topic goes. */
void wr_later_drop(wr_topic_server *s, wr_topic *topic);

/* ---- a start, before wr_topic_log_begin ---- */

/* Take up what a snapshot says. As wr_pending_decode. */
const char *wr_later_decode(wr_topic_server *s, const uint8_t *bytes, uint64_t n, wr_pending_head *head);
/* Forget what was taken up. */
void wr_later_clear(wr_topic_server *s);
/* A commit of the log behind it, for a walk. 0 or an errno. */
int wr_later_commit(wr_topic_server *s, const uint8_t *bytes, uint64_t n, const wr_commit_head *head);
/* All was taken up, and the topics are known: forget messages of others, count the rest. */
void wr_later_taken_up(wr_topic_server *s);
#endif
