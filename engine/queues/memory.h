/* Memory of a queue worker's own lists and tables. Without it the worker aborts, as by kill -9, and is started anew:
 * nothing that memory says is lost then, and no caller has to undo half a step. */
#ifndef WR_QUEUES_MEMORY_H
#define WR_QUEUES_MEMORY_H
#include "queues/queue.h"

_Noreturn void wr_queue_no_memory(void);

/* Lists grow by doubling. */
void *wr_queue_grown(void *list, uint64_t *size, uint64_t needed, size_t each);

/* The value of a key, made if need be. */
uint64_t *wr_map_set(wr_map *m, uint64_t a, uint64_t b);
#endif
