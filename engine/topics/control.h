/* Requests to the topic worker that are neither appends nor barriers (WR_OP_CONTROL): Python answers them (engine/topics/control.py).
 *
 * A link with a request stands still until it is answered. A durable answer waits for the log: it leaves when what it speaks of is on
 * stable storage. Crash point: a request without an answer lies in its client's ring, and is asked again of the next worker. */
#ifndef WR_TOPICS_CONTROL_H
#define WR_TOPICS_CONTROL_H
#include "topics/state.h"

/* Execute one, of which `c` is a copy. False: the link waits for the answer (l->pause), or is evicted. */
bool wr_topic_control(wr_topic_server *s, wr_topic_link *l, const wr_command *c, wr_command *record);

/* A link with a request that nobody has in hand; NULL: there is none. */
wr_topic_link *wr_topic_control_next(const wr_topic_server *s);
/* The request is answered: the reply is written. It leaves when the log is synced up to `until` (0: at once). */
void wr_topic_control_answer(wr_topic_link *l, uint32_t result, uint32_t length, uint64_t until);
/* Does the link go on? The answer leaves, if it may. */
bool wr_topic_control_resume(wr_topic_server *s, wr_topic_link *l);
#endif
