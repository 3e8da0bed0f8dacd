/* A topic worker's core: begin, end, rounds (topics/server.c). What it is and its invariants: topics/state.h. */
#ifndef WR_TOPIC_SERVER_H
#define WR_TOPIC_SERVER_H
#include "topics/state.h"

/* `log` is made with wr_topic_server_written, wr_topic_server_done and the server as context, and is begun. */
void wr_topic_server_init(wr_topic_server *s, wr_superblock *super, uint32_t server);
void wr_topic_server_free(wr_topic_server *s);

/* One turn over all links, then a commit if it is time. True: something moved. */
bool wr_topic_round(wr_topic_server *s, uint64_t now_ns);
/* Commit and sync all that was executed. 0, ETIMEDOUT, or the log's failure. */
int wr_topic_sync(wr_topic_server *s, uint64_t timeout_ns);
#endif
