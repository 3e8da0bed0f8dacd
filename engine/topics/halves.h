/* Half messages, in the topic worker: appended to the log under a system topic, where no reader sees them, and committed to their own topic
 * or rolled back afterwards; whoever is asked says which, when their publisher does not (docs/design/027-halves.md).
 *
 * On the loop's thread. Invariants
 *   What is pending is what the log says: a record of a half message, and none that says what became of it. The record that says so is one:
 *   in a commit as a whole, or not at all. So one is committed once, or rolled back, whatever is killed.
 *   One is finished when its own record is sealed, so that lies before in the log; what finishes it is synced before anybody is told, or sees it.
 *   Who asks again for what was done is told the same, as long as that is kept.
 *   One is handed out to be asked for when its record is synced, to one at a time.
 *   Half messages of a topic that was deleted go with it.
 * Crash points: between append and seal it is pending again, for nobody was told. How often one was asked for is as of the last snapshot. */
#ifndef WR_TOPICS_HALVES_H
#define WR_TOPICS_HALVES_H
#include "topics/intake.h"
#include "topics/walk.h"

/* Append the message of a command as a half one; the client's link and topic are known. As wr_topic_execute. */
wr_topic_outcome wr_half_append(wr_topic_server *s, wr_topic_link *l, const wr_command *c, wr_command *record, wr_topic *topic);

/* Say what becomes of one (HALF_…), if that was not said before: *outcome is what it is. 0; ENOENT: the topic has no such half message, nor is it
 * kept what became of it; EAGAIN: there is no room now; EUCLEAN: its record cannot be read; or the log's failure. It is on stable storage when
 * the log is synced above outcome->by. */
int wr_half_decide(wr_topic_server *s, uint32_t topic, uint64_t position, uint32_t kind, wr_half_outcome *outcome);

/* Those of a topic that are to be asked for now: `most` of them at most, each counted, and not again before some time. Those that were asked for too
 * often are put aside. *next: when the next one is (milliseconds since 1970), UINT64_MAX: none. Returns how many. */
uint32_t wr_half_ask(wr_topic_server *s, uint32_t topic, wr_half *to, uint32_t most, uint64_t *next);

/* A topic goes. */
void wr_half_drop_topic(wr_topic_server *s, wr_topic *topic);
/* Show how many are pending. */
void wr_half_show(wr_topic *topic);

/* ---- a start, before wr_topic_log_begin ---- */

/* A commit of the log behind what was taken up, for a walk. 0 or an errno. */
int wr_half_commit(wr_topic_server *s, const uint8_t *bytes, uint64_t n, const wr_commit_head *head);
/* All was taken up, and the topics are known: forget those of others, count the rest. */
void wr_half_taken_up(wr_topic_server *s);
#endif
