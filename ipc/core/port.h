/* The client's side of its own region: prepare and submit commands, allocate blobs, know when they may be reused.
 *
 * A port lives in the private memory of the owner process and is used by one thread at a time (Python: under the GIL).
 * Everything in it can be derived again from the region; it dies with the process.
 *
 * Order of a command: blob bytes, record fields, [flying, directory row], then wr_port_submit: the release of `tail`
 * is the commit point. A death before it leaves nothing that a server would see.
 */
#ifndef WR_PORT_H
#define WR_PORT_H
#include "view.h"

typedef struct {
    uint64_t end;      /* arena position after the blob */
    uint64_t first;    /* first sequence of the run that shares this entry */
    uint64_t sequence; /* last command that needs the blob */
    uint32_t server;
} wr_blob_use;

typedef struct {
    wr_superblock *super;
    wr_view view;
    uint32_t slot;
    uint32_t generation;
    uint64_t client_epoch;
    uint64_t prepared[WR_SERVERS_MAX]; /* next sequence to prepare; >= link.tail */
    uint64_t head_seen[WR_SERVERS_MAX];
    uint64_t arena_next;  /* next position to allocate */
    uint64_t arena_freed; /* everything below may be reused */
    wr_blob_use *uses;    /* FIFO */
    uint32_t uses_size;   /* power of two */
    uint64_t uses_first, uses_next;
} wr_port;

/* 0, EINVAL (region too small for the superblock's geometry) or ENOMEM. Formats the region's first page and links. */
int wr_port_init(wr_port *port, wr_superblock *super, void *region, uint64_t region_bytes, uint32_t slot,
                 uint32_t generation, uint64_t client_epoch);
void wr_port_free(wr_port *port);

/* The next record of the ring to `server`, zeroed. NULL: the ring is full (wait for link.head to rise) or the link was evicted. */
wr_command *wr_port_prepare(wr_port *port, uint32_t server, uint64_t *sequence);
/* Forget prepared and not submitted records of this server from `sequence` on (their blobs are reused when earlier ones are). */
void wr_port_abandon(wr_port *port, uint32_t server, uint64_t sequence);
/* Publish everything prepared and ring the server's bell if it sleeps. Returns true when something was published. */
bool wr_port_submit(wr_port *port, uint32_t server);

/* Room for a blob of `length` bytes (0 is fine). 0, EAGAIN (wait for heads to rise), EMSGSIZE (can never fit). */
int wr_port_alloc(wr_port *port, uint64_t length, uint64_t *position, uint8_t **at);
/* Everything allocated up to now is needed until `server` has passed `sequence`. Call once per command with a blob; for a blob used
 * by several servers once per server, without an allocation in between. ENOMEM is possible. */
int wr_port_use(wr_port *port, uint32_t server, uint64_t sequence);
/* The same for commands first ... sequence, which share what was given out: it is free when all of them are done. */
int wr_port_use_run(wr_port *port, uint32_t server, uint64_t first, uint64_t sequence);
/* Move arena_freed by what the heads allow. */
void wr_port_reclaim(wr_port *port);
#endif
