/* Records into the log (topics/append.c). */
#ifndef WR_TOPIC_APPEND_H
#define WR_TOPIC_APPEND_H
#include "topics/intake.h"

/* Execute a command, of which `c` is a copy. WAIT: nothing was done; try again when the log has room, the catalog was read, or the
 * request is answered. */
wr_topic_outcome wr_topic_execute(wr_topic_server *s, wr_topic_link *l, const wr_command *c, wr_command *record);
#endif
