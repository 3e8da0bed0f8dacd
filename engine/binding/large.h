/* Messages that are too large for shared memory, as a client writes and reads them (kernel/large.h). */
#ifndef WR_BINDING_LARGE_H
#define WR_BINDING_LARGE_H
#include "binding/publish.h"
#include "kernel/large.h"

/* A message whose file is there, in the folders of all targets of its route, and locked. */
typedef struct {
    int fd;
    const wr_route *route;
    uint8_t id[16];
} wr_draft;

static inline bool wr_too_large_to_share(const ClientObject *c, uint64_t length) { return length > c->a.shared_bytes_max; }

/* Write the message's file, without the GIL; without space on the disk it waits for some until the deadline. 0, -1. */
int wr_draft_make(ClientObject *c, const wr_route *route, const wr_message *message, uint64_t deadline, wr_draft *draft);
/* The commands of the first `handed` targets are submitted, the others never will be: their folders lose the file. */
void wr_draft_end(ClientObject *c, wr_draft *draft, uint32_t handed);

/* Metadata and payload of a delivery that lies in a file of its own; NULL where they are not wanted. 0, or as wr_large_read; -1 with an
 * exception. Without the GIL: what is read into is the caller's all the while. */
int wr_large_of(ClientObject *c, uint32_t server, const wr_delivery *d, void *meta, void *body, const char **reason);
#endif
