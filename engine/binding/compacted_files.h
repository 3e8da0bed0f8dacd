/* Files of the newest messages of queues of compacted topics, for what the bindings do with them. */
#ifndef WR_BINDING_COMPACTED_FILES_H
#define WR_BINDING_COMPACTED_FILES_H
#include "topics/compacted.h"

/* The file of a descriptor, which stays the caller's. NULL with an exception: OSError, EUCLEAN where it is none of this node, topic and queue. */
wr_compacted *wr_compacted_taken(int fd, const uint8_t *node, uint32_t topic, uint32_t queue);
#endif
