/* Commits, and what they confirm (topics/confirm.c). */
#ifndef WR_TOPIC_CONFIRM_H
#define WR_TOPIC_CONFIRM_H
#include "topics/state.h"

/* Post a commit if it is time, or with `force`. True: one was posted. */
bool wr_topic_seal(wr_topic_server *s, uint64_t now_ns, bool force);
/* Commands that need no commit are confirmed at once, when none before them waits for one. */
void wr_topic_confirm(wr_topic_server *s, wr_topic_link *l);
/* Tell a client what is known of its link; at a start, too: what was written was synced since (wr_log_settle). */
void wr_topic_publish(wr_topic_server *s, wr_topic_link *l);
/* Callbacks of the log. */
void wr_topic_server_written(void *context, const wr_topic_commit *commit);
void wr_topic_server_done(void *context, const wr_topic_commit *commit);
#endif
