/* The store server's loop (store/loop.c). */
#ifndef WR_STORE_LOOP_H
#define WR_STORE_LOOP_H
#include "store/store.h"

/* Serve until something needs policy (WR_STORE_EVENT_… bits), a signal, or max_ns. */
uint32_t wr_store_server_run(wr_store_server *server, uint64_t max_ns);
/* Another thread of this process: let run() return. */
void wr_store_server_kick(wr_store_server *server);
/* True when every ring is executed and everything appended is written and synced; posts what is needed to get there. */
bool wr_store_server_all_durable(wr_store_server *server);
#endif
