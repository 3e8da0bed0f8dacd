/* One attachment of an application process to a node, free of CPython: publish, take deliveries, settle them, wait.
 *
 * Invariants
 *   One thread at a time calls into it (Python: whoever holds the GIL), but for wr_attachment_sleep, wr_condition_met and the
 *   functions of wr_bodies, which hold no state of the port and are made for threads that have let the GIL go.
 *   Nothing waits in here: a function that cannot go on returns EAGAIN and says in `blocked` what to wait for. What
 *   was prepared before is submitted by the caller before it waits.
 *   A delivery is `pending` from its intake until it is handed out; then its tag stands in `unacked` until it is settled.
 *   Servers are trusted with the answers (they own the node), but positions are masked all the same.
 * Crash points
 *   before tail rises: nobody sees anything. After it: the servers execute it, whether this process lives or not.
 *   pending and unacked die with the process; the worker returns what the delivery slots say is held.
 */
#ifndef WR_CLIENT_H
#define WR_CLIENT_H
#include "kernel/log.h"
#include "ipc/core/port.h"
#include "store/client.h"

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

/* ---- bodies: where a delivered message lies, read without the worker --------------------------------------------- */

#define WR_BODY_FILES 16
#define WR_BODY_WINDOW (128u << 10)

typedef struct {
    uint64_t file;
    uint64_t used; /* clock of the last use */
    uint64_t salt;
    uint32_t server;
    uint8_t location;
    int fd; /* -1: free */
    uint8_t *window; /* part of the file read last, WR_BODY_WINDOW bytes, allocated at the first use */
    uint64_t window_at;
    uint64_t window_bytes;
} wr_body_file;

/* Files of a worker as a reader sees them. Under `lock`, which is only taken without the GIL (or tried with it). */
typedef struct {
    pthread_mutex_t lock;
    wr_body_file files[WR_BODY_FILES];
    uint64_t clock;
    uint64_t node_id;
    int journal_fd[WR_SERVERS_MAX];   /* folders, -1: not there; owned */
    int transient_fd[WR_SERVERS_MAX];
    int segments_fd[WR_SERVERS_MAX];
} wr_bodies;

int wr_bodies_init(wr_bodies *bodies, uint64_t node_id);
void wr_bodies_free(wr_bodies *bodies);
/* Another incarnation of the server: take other folders (owned from now on, -1 for none) and forget its open files. */
void wr_bodies_set(wr_bodies *bodies, uint32_t server, int journal_fd, int transient_fd, int segments_fd);
/* Metadata and payload (body_length bytes) of a delivery that lies in a file. 0, ENOENT (the file is gone: locate the message again),
 * EBADMSG (not the bytes that were written there; *reason says what), EUCLEAN (its first page is not that of this file), or errno. The
 * caller holds `lock`. With `window_only` it reads nothing from the disk and answers EAGAIN instead. */
int wr_bodies_read(wr_bodies *bodies, uint32_t server, const wr_delivery *d, void *to, bool window_only, const char **reason);

/* ---- consumers --------------------------------------------------------------------------------------------------- */

typedef struct {
    wr_delivery delivery;
    uint32_t slot;
} wr_pending;

#define WR_TAG_NONE UINT64_MAX /* a settled place in `unacked` */

typedef struct {
    uint32_t server;
    uint32_t queue;
    wr_pending *pending; /* ring, power of two */
    uint32_t pending_size;
    uint64_t pending_first, pending_next;
    uint64_t *unacked; /* ring of tags in the order they were handed out */
    uint32_t unacked_size;
    uint64_t unacked_first, unacked_next;
    uint64_t popped;   /* deliveries since the consumer began at the worker */
    uint64_t granted;  /* absolute credit that the worker knows */
    uint32_t prefetch; /* > 0: prefetch mode */
    bool announced;    /* a CREDIT was sent and no CANCEL after it */
} wr_taker;

static inline uint64_t wr_taker_pending(const wr_taker *c) { return c->pending_next - c->pending_first; }

/* ---- the attachment ---------------------------------------------------------------------------------------------- */

typedef struct {
    uint32_t server;
    uint32_t queue;      /* the queue when there is one, else 0 */
    uint32_t ids_n;      /* queues of this server */
    const uint32_t *ids; /* NULL when ids_n is 1 */
} wr_target;

/* The servers (and queues at each) that one message goes to. More than one queue at a server come first. */
typedef struct {
    uint32_t targets_n;
    wr_target targets[WR_WORKERS_MAX];
    uint32_t *ids; /* owned */
} wr_route;

/* One message to publish. `expires`: milliseconds since 1970 | priority << 56, `due`: milliseconds since 1970; 0: none. */
typedef struct {
    uint8_t id[16];
    const void *meta;
    const void *body;
    const uint8_t *key; /* of WR_FLAG_DEDUPLICATE: WR_KEY_BYTES */
    uint64_t length;    /* of the body */
    uint64_t expires;
    uint64_t due;
    uint16_t meta_length;
    uint8_t flags;
} wr_message;

/* ---- results that are not OK: client/results.c --------------------------------------------------------------------------- */

#define WR_RESULTS_MAX (1u << 20) /* kept for each server; the older half goes when there are more */

typedef struct {
    uint64_t sequence;
    uint32_t result;
} wr_result;

typedef struct {
    uint64_t looked;    /* results of the commands below it were looked at */
    uint64_t forgotten; /* of those below it some may not be known any more */
    wr_result *rows;    /* by sequence */
    uint32_t first, n, size;
} wr_results;

typedef struct {
    const uint8_t *images;           /* regions of the worker's journals, NULL until opened */
    const uint8_t *transient_images;
    uint64_t epoch;  /* link.server_epoch that its consumers were announced to */
    uint64_t popped; /* position in the delivery ring */
} wr_worker_side;

typedef struct {
    wr_port port;
    uint64_t messages_n; /* ids made */
    uint32_t images_n;
    uint64_t file_bytes;
    uint64_t message_bytes_max;
    wr_worker_side workers[WR_SERVERS_MAX];
    wr_taker **consumers; /* open addressing by queue id */
    uint32_t consumers_size, consumers_n;
    wr_results results[WR_SERVERS_MAX];
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
 * target t's. 0, EAGAIN (submit, wait for `blocked`, call again), EMSGSIZE, ENOMEM, ECONNRESET (blocked->server). */
int wr_attachment_publish(wr_attachment *a, const wr_route *route, uint32_t *done, const wr_message *message,
                          uint64_t *sequences, wr_condition *blocked);

/* Prepare n messages that differ in their bodies alone for one target; `m`: what they have in common, without a key. *first: the
 * command of the first one. False: there is no room for all of them at once, or something is the matter; nothing was prepared. */
typedef struct {
    const void *bytes;
    uint64_t length;
} wr_piece;
static inline uint64_t wr_attachment_run_bytes(const wr_attachment *a) { return a->port.view.g.arena_bytes / 16; } /* of one run, at most */
bool wr_attachment_publish_run(wr_attachment *a, const wr_target *target, const wr_message *m, const wr_piece *bodies, uint32_t n,
                               uint64_t *first);

/* Look at the results of what the server has processed since the last look. */
void wr_results_look(wr_attachment *a, uint32_t server);
/* Is there anything to look at? A result of a command below `until` may be another than OK. */
static inline bool wr_results_unusual(const wr_attachment *a, uint32_t server) {
    return atomic_load_explicit(&wr_attachment_link(a, server)->unusual_until, memory_order_relaxed) > a->results[server].looked;
}
/* The results of commands from ... to - 1 that are not OK and were looked at. */
const wr_result *wr_results_find(const wr_attachment *a, uint32_t server, uint64_t from, uint64_t to, uint32_t *n);
void wr_results_free(wr_attachment *a); /* they outlive wr_attachment_free */

/* Prepare one command without a blob (CANCEL, LOCATE, BARRIER, one ACK or NACK, CONTAINS with `id`, which may be NULL). */
int wr_attachment_command(wr_attachment *a, uint32_t server, uint8_t op, uint8_t flags, uint32_t queue, uint64_t tag,
                          const uint8_t *id, uint64_t *sequence, wr_condition *blocked);
/* Prepare a CREDIT: deliveries up to `credit` since the consumer began, or (prefetch > 0) `prefetch` unacked at a time. */
int wr_attachment_credit(wr_attachment *a, wr_taker *c, uint64_t credit, uint32_t prefetch, wr_condition *blocked);
/* Prepare a CANCEL: the worker forgets the consumer, what we hold stays ours. The next credit begins a new count. */
int wr_attachment_cancel(wr_attachment *a, wr_taker *c, uint64_t *sequence, wr_condition *blocked);
/* Prepare one command with a blob (CONTROL, ACK or NACK of several tags, ids). */
int wr_attachment_blob(wr_attachment *a, uint32_t server, uint8_t op, uint8_t flags, uint32_t queue, uint64_t count,
                       const void *bytes, uint64_t length, uint64_t *sequence, wr_condition *blocked);
/* ACK or NACK of tags of one queue: one command for one tag, else one with a list. At most 4096 tags. */
int wr_attachment_settle(wr_attachment *a, const wr_taker *c, uint8_t op, uint8_t flags, const uint64_t *tags,
                         uint32_t tags_n, wr_condition *blocked);

/* Deliveries since pushed to us, by any queue of the server: into `pending` of their consumers. Deliveries for a queue without a
 * consumer are returned. 0, ENOMEM, or EAGAIN (the ring is full while something must be returned: try again later). */
int wr_attachment_intake(wr_attachment *a, uint32_t server);
/* What to wait for until something is pushed. */
static inline wr_condition wr_attachment_delivery(const wr_attachment *a, uint32_t server) {
    return (wr_condition){&wr_attachment_link(a, server)->delivery_tail, a->workers[server].popped, server};
}

/* Sleep until the condition is met, something wakes this client, or limit_ns have passed; spinning first. No GIL needed, no
 * state of the port is touched. Returns whether it is met. */
bool wr_attachment_sleep(wr_client *client, const wr_condition *condition, uint64_t limit_ns, uint64_t spin_ns);
/* Wake every thread of this process that sleeps in wr_attachment_sleep. */
void wr_attachment_wake(wr_client *client);

/* ---- consumers of an attachment ---------------------------------------------------------------------------------- */

int wr_taker_add(wr_attachment *a, wr_taker *c, uint32_t server, uint32_t queue); /* ENOMEM, EEXIST */
void wr_taker_drop(wr_attachment *a, wr_taker *c);                                /* forgets it; frees its rings */
wr_taker *wr_taker_find(const wr_attachment *a, uint32_t queue);
/* A delivery taken out of `pending` is the next one again. ENOMEM. */
int wr_taker_push_front(wr_taker *c, const wr_pending *p);
/* Note that a tag was handed out. ENOMEM. */
int wr_taker_hand(wr_taker *c, uint64_t tag);
/* Forget a tag; false when it was not handed out (or settled before). */
bool wr_taker_forget(wr_taker *c, uint64_t tag);
/* Move all handed-out tags <= tag into `tags` (room for `room`), at most `room`; returns how many. */
uint32_t wr_taker_forget_up_to(wr_taker *c, uint64_t tag, uint64_t *tags, uint32_t room);
/* The worker was restarted: keep of `pending` what its delivery slots still say is ours, with the locations they say now. */
void wr_taker_recheck(const wr_attachment *a, wr_taker *c);
/* Read a delivery slot; true when it still holds this delivery for us. */
bool wr_attachment_slot_read(const wr_attachment *a, uint32_t server, uint32_t slot, wr_delivery *to);
#endif
