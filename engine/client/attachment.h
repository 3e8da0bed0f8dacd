/* One attachment of an application process to a node, free of CPython: publish, give commands, wait. What it
 * consumes: client/consumer.h.
 *
 * Invariants
 *   One thread at a time calls into it (Python: whoever holds the GIL), but for wr_attachment_sleep, wr_condition_met
 *   and the functions of wr_bodies, which hold no state of the port and are made for threads that have let the GIL go.
 *   Nothing waits in here: a function that cannot go on returns EAGAIN and says in `blocked` what to wait for. What
 *   was prepared before is submitted by the caller before it waits.
 *   Servers are trusted with the answers (they own the node), but positions are masked all the same.
 * Crash points
 *   before tail rises: nobody sees anything. After it: the servers execute it, whether this process lives or not.
 */
#ifndef WR_CLIENT_ATTACHMENT_H
#define WR_CLIENT_ATTACHMENT_H
#include "client/answers.h"
#include "client/bodies.h"
#include "client/results.h"
#include "kernel/log.h"

/* ---- waiting ------------------------------------------------------------------------------------------------- */

/* Met when *word > above: a horizon has passed a sequence, a ring's head has made room, a delivery was pushed. */
typedef struct {
    _Atomic uint64_t *word;
    uint64_t above;
    uint32_t server;
} wr_condition;

static inline bool wr_condition_met(const wr_condition *c) {
    /* SYNC horizon: pairs with the server's release of its horizons and of delivery_tail. */
    return atomic_load_explicit(c->word, memory_order_acquire) > c->above;
}

enum { WR_LEVEL_NONE = 0, WR_LEVEL_WRITTEN = 1, WR_LEVEL_SYNCED = 2 };

/* ---- the attachment ---------------------------------------------------------------------------------------------- */

typedef struct {
    uint32_t server;
    uint32_t queue;      /* the queue when there is one, else 0 */
    uint32_t ids_n;      /* queues of this server */
    const uint32_t *ids; /* NULL when ids_n is 1 */
} wr_target;

/* A topic that a message goes to. */
typedef struct {
    uint32_t id, queues_n, name_length;
} wr_topic_target;

#define WR_ROUTE_TOPICS_MAX 64
#define WR_ROUTE_COMMANDS_MAX (WR_WORKERS_MAX + WR_ROUTE_TOPICS_MAX) /* that one message takes */

/* The servers (and queues at each) that one message goes to. More than one queue at a server come first. And topics: each gets a command
 * of its own at the topic worker. */
typedef struct {
    uint32_t targets_n, topics_n;
    wr_target targets[WR_WORKERS_MAX];
    uint32_t *ids; /* owned */
    wr_topic_target *topics; /* owned */
    uint32_t topic_server;
} wr_route;

/* The targets from `from` on that share a blob end here: the last target with many queues carries those with one queue along, which read
 * the same bytes behind its routes. */
static inline uint32_t wr_route_group(const wr_route *route, uint32_t from) {
    uint32_t to = from + 1;
    return to >= route->targets_n || route->targets[to].ids_n == 1 ? route->targets_n : to;
}

/* The server of a route's n-th command: those of its targets come first, then those of its topics. */
static inline uint32_t wr_route_commands(const wr_route *route) { return route->targets_n + route->topics_n; }
static inline uint32_t wr_route_server(const wr_route *route, uint32_t n) {
    return n < route->targets_n ? route->targets[n].server : route->topic_server;
}

/* What a topic gets of a message beside its body. */
typedef struct {
    const void *properties; /* good ones (topics/properties.h) */
    uint32_t properties_length;
    uint32_t queue;
} wr_topic_part;

/* One message to publish. `expires`: milliseconds since 1970 | priority << 56, `due`: milliseconds since 1970; 0:
 * none. */
typedef struct {
    uint8_t id[16];
    const void *meta;
    const void *body;
    const uint8_t *key; /* of WR_FLAG_DEDUPLICATE: WR_KEY_BYTES */
    uint64_t length;    /* of the body */
    uint64_t expires;
    uint64_t due;
    uint16_t meta_length;
    uint8_t flags;       /* WR_FLAG_LARGE: metadata and body lie in a file of their own (kernel/large.h) */
    const wr_topic_part *parts; /* for each topic of the route */
    uint64_t born_ms;           /* of a message with parts */
} wr_message;

typedef struct {
    const uint8_t *images;           /* regions of the worker's journals, NULL until opened */
    const uint8_t *transient_images;
    uint64_t epoch;  /* link.server_epoch that its consumers were announced to */
    uint64_t popped; /* position in the delivery ring */
} wr_worker_side;

typedef struct wr_client_consumer wr_client_consumer; /* client/consumer.h */

typedef struct {
    wr_port port;
    uint64_t messages_n; /* ids made */
    uint32_t images_n;
    uint64_t file_bytes;
    uint64_t message_bytes_max, shared_bytes_max; /* a message above the latter has a file of its own */
    wr_worker_side workers[WR_SERVERS_MAX];
    wr_client_consumer **consumers; /* open addressing by queue id */
    uint32_t consumers_size, consumers_n;
    wr_client_consumer *parked; /* those of the table whose reader is gone, and that the worker may still deliver to */
    wr_results results[WR_SERVERS_MAX];
    wr_answers answers; /* of the topic worker */
    wr_bodies bodies;
    uint64_t spin_ns; /* how long a wait spins before it sleeps; adapts */
} wr_attachment;

int wr_attachment_init(wr_attachment *a, wr_superblock *super, void *region, uint64_t region_bytes, uint32_t slot,
                       uint32_t generation, uint64_t client_epoch);
void wr_attachment_free(wr_attachment *a);

/* A new message id: client_epoch:8 | counter:8, big-endian. */
static inline void wr_attachment_id(wr_attachment *a, uint8_t id[16]) {
    wr_put64(id, a->port.client_epoch);
    wr_put64(id + 8, ++a->messages_n);
}

static inline wr_link *wr_attachment_link(const wr_attachment *a, uint32_t server) { return &a->port.view.links[server]; }

/* The horizon of a durability level. */
static inline _Atomic uint64_t *wr_link_horizon(wr_link *link, int level) {
    return level == WR_LEVEL_SYNCED ? &link->synced : level == WR_LEVEL_WRITTEN ? &link->written : &link->processed;
}

/* Room for one more command to a server. 0, EAGAIN, ECONNRESET (the server closed the link). */
int wr_attachment_room(wr_attachment *a, uint32_t server, wr_condition *blocked);
/* wr_port_alloc that says what to wait for. 0, EAGAIN, EMSGSIZE. */
int wr_attachment_alloc(wr_attachment *a, uint64_t length, uint64_t *position, uint8_t **at, wr_condition *blocked);

/* Prepare one message for all targets of a route, from *done on; *done counts the targets that have it. sequences[t] is
 * target t's. Topics of the route are not its business (client/publish_topics.h). 0, EAGAIN (submit, wait for
 * `blocked`, call again), EMSGSIZE, ENOMEM, ECONNRESET (blocked->server). */
int wr_attachment_publish(wr_attachment *a, const wr_route *route, uint32_t *done, const wr_message *message,
                          uint64_t *sequences, wr_condition *blocked);

/* Prepare n messages that differ in their bodies, and in their metadata when `metas` has that of each (NULL: m's), for one target; `m`:
 * what they have in common, without a key.
 * *first: the command of the first one. False: there is no room for all of them at once, or something is the matter;
 * nothing was prepared. */
typedef struct {
    const void *bytes;
    uint64_t length;
} wr_piece;
static inline uint64_t wr_attachment_run_bytes(const wr_attachment *a) { return a->port.view.g.arena_bytes / 16; } /* of one run, at most */
bool wr_attachment_publish_run(wr_attachment *a, const wr_target *target, const wr_message *m, const wr_piece *bodies, const wr_piece *metas,
                               uint32_t n, uint64_t *first);

/* The next record of a ring, with these words; NULL: there is no room (wr_attachment_room says so before), or the
 * link was closed. */
static inline wr_command *wr_attachment_prepare(wr_attachment *a, uint32_t server, uint8_t op, uint8_t flags, uint32_t queue,
                                                uint64_t *sequence) {
    wr_command *command = wr_port_prepare(&a->port, server, sequence);
    if (!command) return NULL;
    command->op = op;
    command->flags = flags;
    command->queue = queue;
    return command;
}
/* Prepare one command without a blob (CANCEL, LOCATE, BARRIER, one ACK or NACK, CONTAINS with `id`, which may be
 * NULL). */
int wr_attachment_command(wr_attachment *a, uint32_t server, uint8_t op, uint8_t flags, uint32_t queue, uint64_t tag,
                          const uint8_t *id, uint64_t *sequence, wr_condition *blocked);
/* Prepare one command with a blob (CONTROL, ACK or NACK of several tags, ids). */
int wr_attachment_blob(wr_attachment *a, uint32_t server, uint8_t op, uint8_t flags, uint32_t queue, uint64_t count,
                       const void *bytes, uint64_t length, uint64_t *sequence, wr_condition *blocked);

/* Sleep until the condition is met, something wakes this client, or limit_ns have passed; spinning first. No GIL
 * needed, no state of the port is touched. Returns whether it is met. */
bool wr_attachment_sleep(wr_client *client, const wr_condition *condition, uint64_t limit_ns, uint64_t spin_ns);
/* Wake every thread of this process that sleeps in wr_attachment_sleep. */
void wr_attachment_wake(wr_client *client);
#endif
