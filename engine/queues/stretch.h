/* Plain publishes of a link in one go: what a command of a batch has in common with its neighbours is looked at
 * once. */
#ifndef WR_QUEUES_STRETCH_H
#define WR_QUEUES_STRETCH_H
#include "queues/queue.h"

/* At most `most` commands from l->next on, executed; how many, 0: the first one is not that simple. *rows counts
 * what they made. */
uint32_t wr_publish_stretch(wr_queue_engine *e, wr_qlink *l, uint64_t most, uint64_t *rows);
#endif
