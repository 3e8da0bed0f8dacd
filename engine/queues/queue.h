/* The engine of one queue worker: queues, consumers, what is held by whom, and the journal that makes it durable.
 * Design note 001, sections 2, 5, 8; what it promises: the queues' rules in docs/rules.md. Seven files:
 *   queues/queue.c      entries, consumers, delivery, acks: memory only
 *   queues/pages.c rows that leave memory and come back from the segments, or from the spill file
 *   queues/policy.c what a queue is declared to do: times, lengths, priorities, dead letters
 *   queues/journal.c    frames into the two logs, horizons and gates, replay of a journal file
 *   queues/loop.c  links of clients: take-up, commands, sweep; the loop that a worker's life consists of
 *   queues/stretch.c plain publishes of a batch, as one
 *   queues/store_side.c what the worker is as a client of the stores: writes by reference, removes, resync
 *
 * Threads: everything runs on the loop thread (Python's main thread, between or inside wr_queue_run), but the two
 * committers, which meet it in `mutex` (horizons and gates of the links) and in the logs.
 *
 * Invariants
 *   An entry exists if and only if its row is not GONE; ready_n and unacked_n of a queue count rows.
 *   UNACKED: exactly one link's private record `held[delivery]` names (queue, sequence), and the entry names the link back.
 *   Shared delivery slots are only written; they are believed once, when a link is taken up after a restart.
 *   A frame lies in the image before its effect shows in shared memory: whoever kills the worker between finds the frame
 *   (salvaged from the image), so HELD slots and entries always fit together again.
 *   No READY row lies below ready_from.
 *   Rows of a paged chunk are READY, and transient or in a segment; none is still to come; the counts of its description hold.
 */
#ifndef WR_QUEUE_H
#define WR_QUEUE_H
#include "kernel/log.h"
#include "kernel/map.h"
#include "queues/spill.h"
#include "store/client.h"

#define WR_CHUNK_ROWS 1024
#define WR_LOST_ROWS 64 /* damaged messages that are remembered until the timer names them */
#define WR_ENTRY_GONE 0
#define WR_ENTRY_READY 1
#define WR_ENTRY_UNACKED 2
#define WR_ENTRY_DELAYED 3 /* its time has not come */
#define WR_ENTRY_DYING 4   /* on its way to the dead letters */
#define WR_ENTRY_REDELIVERED 1 /* flags of an entry */
#define WR_ENTRY_PERSISTENT 2
#define WR_IN_SEGMENT UINT32_MAX /* index_file of an entry whose index record lies in a segment */
#define WR_NO_SLOT UINT32_MAX
#define WR_ROUTES_MAX 1024
#define WR_BATCH_COMMANDS 512 /* of one link in one round */
#define WR_BATCH_ROWS 4096    /* rows that they make or settle; the last command may pass it */

/* events of wr_queue_run, bits */
#define WR_QUEUE_EVENT_NEED_FILE 1           /* the persistent journal has no next file */
#define WR_QUEUE_EVENT_NEED_TRANSIENT_FILE 2 /* the transient one */
#define WR_QUEUE_EVENT_SLOTS_CHANGED 4
#define WR_QUEUE_EVENT_CATALOG_CHANGED 8 /* version rose, or a command names an unknown queue */
#define WR_QUEUE_EVENT_CONTROL 16
#define WR_QUEUE_EVENT_FILES_MANY 32  /* flush the oldest journal file */
#define WR_QUEUE_EVENT_FILES_EMPTY 64 /* some journal file may go */
#define WR_QUEUE_EVENT_STORE_EPOCH 128
#define WR_QUEUE_EVENT_LOG_FAILED 256
#define WR_QUEUE_EVENT_TIMER 512     /* max_ns are over, or (not until_event) there is nothing to do */
#define WR_QUEUE_EVENT_STOP 1024     /* the node is draining, or this worker was asked to end */
#define WR_QUEUE_EVENT_FINISHED 2048 /* some ended client is handled */
#define WR_QUEUE_EVENT_KICK 4096     /* another thread asked for attention */

typedef struct {
    uint8_t id[16];
    uint32_t file; /* of the body (journal or segment data file) */
    uint32_t offset;
    uint32_t frame_length;
    uint32_t body_length;
    uint16_t blob_offset;
    uint16_t meta_length;
    uint32_t index_file; /* journal file with the index record, or WR_IN_SEGMENT */
    uint8_t location;
    uint8_t state;
    uint8_t flags;
    uint8_t holder; /* client slot that holds it, when UNACKED */
    uint16_t delivery_count;
    uint16_t delivery; /* its delivery slot */
    uint64_t expires : WR_TIME_BITS; /* milliseconds of CLOCK_REALTIME, 0: never */
    uint64_t priority : 4;
    uint64_t reason : 4; /* WR_REASON_…, in a queue of dead letters */
    uint64_t unused : 8;
} wr_entry;
_Static_assert(sizeof(wr_entry) == 56, "an entry costs 56 bytes");

/* A block of rows; those of a free block are GONE. */
typedef union wr_rows {
    wr_entry rows[WR_CHUNK_ROWS];
    union wr_rows *next_free;
} wr_rows;

/* What the segment does not say of the rows of a paged chunk. If one of them is transient, all of them lie in the spill file. */
typedef struct {
    uint64_t live[WR_CHUNK_ROWS / 64]; /* an entry on disk without its bit is of a message that has gone */
    uint64_t redelivered[WR_CHUNK_ROWS / 64];
    uint64_t bytes;
    uint32_t slot, crc;         /* in the spill file, of transient_n > 0 */
    uint16_t delivery_counts[]; /* absent when all are 0 */
} wr_page;

/* The description of 1024 neighbouring sequences stays as long as one of them is alive; its rows may leave memory. */
typedef struct wr_chunk {
    uint32_t live_n;
    uint32_t ready_n;
    uint32_t segment_n; /* live rows with their index record in a segment */
    uint32_t transient_n; /* live rows that are not persistent */
    uint32_t stored_n;  /* live rows with their body in the persistent store */
    uint32_t file_low, file_high; /* index files of its rows lie in between (WR_IN_SEGMENT apart) */
    bool counted; /* the page has delivery_counts */
    wr_page *page;  /* NULL: resident */
    wr_entry *rows; /* NULL: paged; wr_queue_chunk brings them back */
} wr_chunk;

struct wr_qlink;
struct wr_queue;
struct wr_queue_engine;
struct wr_policy;
struct wr_death;

typedef struct wr_consumer {
    struct wr_qlink *link;
    struct wr_queue *queue;
    bool active;
    uint64_t credit;      /* deliveries allowed since it began */
    uint64_t delivered_n; /* deliveries since it began */
    uint32_t prefetch;    /* most unacked ones; 0: credit counts */
    uint32_t held_n;
    uint32_t first, last; /* held slots, by ascending sequence */
    struct wr_consumer *next; /* of the link */
} wr_consumer;

typedef struct {
    wr_consumer *consumer;
    uint64_t sequence;
    uint32_t previous, next;
} wr_held;

/* Rows whose body lies in one journal file. */
typedef struct {
    uint32_t file, n;
} wr_recent;
#define WR_RECENT_FILES 16 /* images_n is at most that */

typedef struct wr_queue {
    struct wr_queue_engine *engine;
    uint32_t id;
    bool durable;
    bool ghost;        /* named by frames of the past, not declared any more */
    uint32_t ghost_of; /* the queue whose claims it held, 0: none known */
    uint64_t next; /* next sequence */
    uint64_t ready_from;
    uint64_t ready_n, unacked_n, bytes;
    uint64_t segment_n; /* rows with their index record in a segment, resident or not */
    uint64_t paged_n;   /* rows not in memory */
    uint64_t spilled_n; /* those of them that no segment has */
    wr_recent recent[2][WR_RECENT_FILES]; /* by transient, file modulo */
    uint64_t published_n, delivered_n, acked_n, requeued_n;
    uint64_t lost_n; /* to damage; those that lay in a damaged part of a journal are estimated */
    bool gap;        /* recovery: some frames of the past are missing before those that come now */
    uint64_t asked_n, consumed_n; /* consumers that announced themselves; with a prefetch */
    wr_chunk **chunks; /* chunk number chunk_base + i is chunks[chunks_at + i]; NULL: all gone */
    uint64_t chunk_base, chunks_at, chunks_n, chunks_size;
    wr_consumer **consumers; /* the active ones */
    uint32_t consumers_n, consumers_size, turn;
    uint32_t stats_row; /* WR_NO_SLOT: none free */
    bool in_wake, in_dirty;
    uint64_t range_round; /* the pending range `range_at` is this queue's last one if range_round is the current one */
    uint32_t range_at;
    struct wr_policy *policy; /* NULL: a plain queue (queues/policy.h) */
} wr_queue;

typedef struct {
    wr_queue *queue;
    uint64_t first;
    uint32_t count;
} wr_pending_range;

typedef struct {
    uint64_t command; /* first command that waits */
    uint64_t store_sequence; /* until the store's head is above this */
    uint32_t store;
    /* Frames of this command and of those behind it lie in this journal file or later ones: they stay while `head` may be held here,
     * because they alone say that those commands were executed. */
    uint32_t file;
    uint64_t round;
} wr_link_gate;

typedef enum { WR_PAUSE_NONE, WR_PAUSE_UNKNOWN, WR_PAUSE_CONTROL, WR_PAUSE_ANSWERING, WR_PAUSE_DURABLE } wr_pause;

typedef struct wr_qlink {
    wr_view view; /* first: a horizon's view pointer is the link */
    bool used, closing, evicted, returned, finished, spoken;
    bool dirty;    /* something below `next` is confirmed by no posted batch */
    bool unsynced; /* some posted batch did not sync */
    bool pushed;
    bool starved; /* some delivery found no free slot */
    wr_pause pause;
    uint32_t slot, generation;
    uint64_t client_epoch, high;
    uint64_t next; /* next command to process */
    uint64_t takeup_tail;      /* commands below it were submitted to a dead worker */
    uint64_t takeup_processed; /* of these, the ones below were answered */
    uint64_t unusual_until;    /* as in the link */
    uint64_t half_done;        /* command + 1 whose durable part is written */
    uint64_t unknown_checked;  /* command + 1 for which the catalog was reloaded */
    uint64_t durable_token;    /* WR_PAUSE_DURABLE: continue when this token is done */
    uint32_t control_result, control_length;
    uint64_t posted;
    /* under the engine's mutex */
    uint32_t pending_n; /* posted horizons not yet done */
    uint64_t done_written, done_synced, done_head;
    wr_link_gate *gates;
    uint64_t gates_first, gates_next;
    uint32_t gates_size;
    /* deliveries */
    wr_held *held;
    uint32_t *free_slots;
    uint32_t free_n;
    uint64_t delivery_tail;
    uint32_t *release; /* slots to free when the ACK frames lie in the image */
    uint32_t release_n;
    wr_consumer *consumers;
} wr_qlink;

typedef struct {
    uint32_t first, n; /* files first … first + n - 1 */
    uint64_t size;
    uint32_t *live; /* per file: entries that need it */
} wr_files;

/* Entries of a segment whose messages have gone. */
typedef struct {
    uint32_t queue;
    uint32_t count;
    uint64_t first;
    uint64_t token; /* the batch with the ACK frame; UINT64_MAX: a MOVE frame, which needs the entries as long as its file is there */
    uint32_t file;  /* journal file with the frame */
    uint32_t unused;
} wr_segment_ack;
#define WR_SEGMENT_ACKS_MAX 16384 /* ranges in memory: more are applied as soon as their frames are synced */

typedef enum { WR_RESYNC_IDLE, WR_RESYNC_WANTED, WR_RESYNC_BEGIN, WR_RESYNC_IDS, WR_RESYNC_END } wr_resync_phase;

typedef struct {
    wr_store_client client;
    bool open; /* regions of the epoch below are attached */
    uint64_t epoch;
    wr_map refs; /* message id → entries of this worker */
    uint8_t (*removes)[16];
    uint64_t removes_n, removes_size;
    wr_resync_phase phase;
    bool resynced;
    uint8_t (*ids)[16]; /* snapshot while a resync runs */
    uint64_t ids_n, ids_at, ids_sent;
    uint64_t wait_for; /* command of the running step */
    wr_map missing;
} wr_qstore;

typedef struct {
    wr_superblock *super;
    uint32_t server;
    void *images, *transient_images;
    uint64_t images_bytes;
    uint32_t images_n;
    uint64_t file_bytes;
    void *stats; /* wr_queue_stats rows */
    uint32_t stats_rows;
    void *region; /* the worker's own client region, NULL: no stores (tests) */
    uint64_t region_bytes;
    uint32_t slot, generation;
    uint64_t client_epoch;
    uint64_t spin_ns, tick_ns, commit_bytes;
    uint32_t journal_files_max;
} wr_queue_options;

typedef struct wr_queue_engine {
    wr_queue_options o;
    wr_server *me;
    wr_geometry geometry;
    /* queues */
    wr_map queues;    /* id → wr_queue * */
    wr_map consumers; /* slot << 32 | queue id → wr_consumer * */
    wr_queue *last_queue;
    wr_queue **wake;
    uint64_t wake_n, wake_size;
    wr_queue **dirty;
    uint64_t dirty_n, dirty_size;
    wr_rows *free_rows;
    uint64_t free_rows_n;
    uint64_t rows_n; /* blocks of rows, free ones too */
    uint64_t rows_most; /* most of them since memory was given back */
    uint8_t *stats_used;
    uint32_t stats_free_from; /* no row below it is free */
    uint32_t stats_rows_used; /* rows that ever had a queue; readers look no further */
    uint64_t stats_ready;     /* bytes of the region that are memory */
    uint64_t entries_n, bytes;
    /* pages */
    int segments_fd; /* folder of the segments, -1: rows stay in memory */
    uint64_t node_id, memory_bytes; /* of rows, at most */
    uint64_t rows_limit; /* above it chunks are paged out: memory_bytes, or less under pressure */
    uint32_t pressure;   /* as it was taken over from the superblock */
    uint64_t rate, rate_n, rate_ns; /* rows a second that came or were delivered; counted up to, and when */
    wr_spill spill;
    int spill_error; /* errno of the last chunk that found no room there, 0 once one did */
    uint64_t paged_n, page_outs_n, page_ins_n, damaged_n;
    /* Messages that consumers found damaged: how many, and where the last of them lie (number i at i % WR_LOST_ROWS). */
    uint64_t unreadable_n;
    wr_delivery unreadable[WR_LOST_ROWS];
    uint64_t trim_after_ns, trim_at;
    uint8_t *page_bytes; /* room for one chunk's entries */
    /* policies (queues/policy.h) */
    wr_queue **timed; /* queues to be looked at by the clock */
    uint64_t timed_n, timed_size;
    uint64_t timed_at; /* wall clock, milliseconds: not before */
    struct wr_death *deaths; /* to be written as MOVE frames in this round */
    uint64_t deaths_n, deaths_size;
    /* journals */
    wr_log *log, *transient_log;
    wr_files files, transient_files;
    wr_map data_files; /* segment data file → entries located there */
    wr_pending_range *ranges;
    uint32_t ranges_n;
    uint64_t ranges_size;
    uint64_t round; /* one set of pending ranges */
    wr_segment_ack *segment_acks;
    uint64_t segment_acks_n, segment_acks_size;
    uint64_t segment_acks_early_n, segment_acks_token; /* those of ACK frames; when the limit was reached, they went up to this batch */
    uint32_t flush_mark; /* entries of journal files below it may be in segments, too: a flush was begun */
    uint64_t token_next;
    _Atomic uint64_t token_done, token_synced;
    _Atomic uint32_t file_done; /* files below: every batch is done */
    bool want_commit, want_sync; /* since the last seal */
    bool unsynced;               /* frames in batches without sync */
    uint64_t first_unsealed_ns, last_sync_ns, last_stats_ns;
    bool recovering, lost_memory;
    wr_map high; /* client epoch → highest sequence + 1 */
    uint64_t ids_end; /* the catalog never gave an id from here on, 0: nobody knows */
    wr_map unknown;   /* such ids that replayed frames name */
    wr_map moves_start, moves_count; /* (client epoch, sequence + 1) of replayed claims → first target, messages */
    /* links */
    wr_qlink *links[WR_CLIENT_SLOTS];
    uint32_t order[WR_CLIENT_SLOTS], links_n;
    bool stalled; /* the ACK frames of the last round did not find room yet */
    pthread_mutex_t mutex;
    uint64_t epoch; /* of this incarnation, 0 before begin */
    uint64_t seen_slots_version, seen_catalog_version;
    uint32_t offered; /* NEED_FILE events already told */
    bool failed_told, unknown_waiting;
    _Atomic uint32_t stop, kick;
    uint64_t spin_ns;
    bool ring_full;
    bool frozen; /* deliveries off: recovery and stop */
    /* stores */
    wr_port port;
    bool has_port;
    wr_qstore stores[2];
    /* counters of this incarnation */
    uint64_t published_n, delivered_n, acked_n, processed_n, unroutable_n, lost_n, evicted_n, wakes_n, ignored_n;
} wr_queue_engine;

/* ---- life (queues/loop.c) ---- */
wr_queue_engine *wr_queue_new(const wr_queue_options *options); /* NULL with errno */
void wr_queue_free(wr_queue_engine *e);                         /* after both committers have returned */
uint32_t wr_queue_run(wr_queue_engine *e, uint64_t max_ns, bool until_event);
int wr_queue_attach(wr_queue_engine *e, uint32_t slot, uint32_t generation, uint64_t client_epoch, void *region,
                    uint64_t bytes);
void wr_queue_closing(wr_queue_engine *e, uint32_t slot);
void wr_queue_begin(wr_queue_engine *e, uint64_t epoch);
void wr_queue_catalog_loaded(wr_queue_engine *e, uint64_t version);
bool wr_queue_detach(wr_queue_engine *e, uint32_t slot); /* false: not finished */
/* Something of this command that `synced` must cover although it wrote no frame. */
void wr_link_wants(wr_queue_engine *e, wr_qlink *l, uint8_t flags);
void wr_queue_control_answer(wr_queue_engine *e, wr_qlink *l, uint32_t result, uint32_t length, bool durable);

/* ---- plain publishes in one go (queues/stretch.c) ---- */
/* At most `most` commands from l->next on, executed; how many, 0: the first one is not that simple. *rows counts what they made. */
uint32_t wr_publish_stretch(wr_queue_engine *e, wr_qlink *l, uint64_t most, uint64_t *rows);

/* ---- queues and entries (queues/queue.c) ---- */
wr_queue *wr_queue_find(wr_queue_engine *e, uint32_t id);
/* A queue that a replayed record names; NULL: it was deleted since, or the catalog has lost it (`unknown`). */
wr_queue *wr_queue_named(wr_queue_engine *e, uint32_t id);
wr_queue *wr_queue_declare(wr_queue_engine *e, uint32_t id, bool durable); /* NULL: no memory */
void wr_queue_drop(wr_queue_engine *e, wr_queue *q);
wr_chunk *wr_queue_chunk_peek(const wr_queue *q, uint64_t number); /* resident or not; NULL: all gone */
wr_chunk *wr_queue_chunk(const wr_queue *q, uint64_t number);      /* resident: brought back if need be; NULL: all gone */
wr_entry *wr_queue_entry(const wr_queue *q, uint64_t sequence); /* NULL when gone */
/* Lists grow by doubling. Without memory for them the worker aborts, as by kill -9, and is started anew. */
void *wr_queue_grown(void *list, uint64_t *size, uint64_t needed, size_t each);
_Noreturn void wr_queue_no_memory(void);
/* Entries located in a segment data file; known from now on. A file whose entries are not counted would be removed, so without memory
 * for the count the worker ends. */
uint64_t *wr_data_file_live(wr_queue_engine *e, uint32_t file);
int wr_queue_room(wr_queue_engine *e, wr_queue *q, uint64_t sequence); /* make the chunk of a sequence >= the lowest one; 0 or ENOMEM */
void wr_queue_chunk_release(wr_queue_engine *e, wr_queue *q, uint64_t number); /* recycled, if no row of it lives or is to come */
void wr_queue_insert(wr_queue_engine *e, wr_queue *q, uint64_t sequence, const wr_entry *entry); /* room was made; row is GONE */
void wr_queue_remove_entry(wr_queue_engine *e, wr_queue *q, uint64_t sequence, wr_entry *entry, bool journalled, bool keep_reference);
void wr_queue_wake(wr_queue_engine *e, wr_queue *q);
void wr_queue_dirty(wr_queue_engine *e, wr_queue *q);
uint64_t wr_queue_base(const wr_queue *q);
wr_consumer *wr_consumer_find(wr_queue_engine *e, const wr_qlink *l, uint32_t queue);
wr_consumer *wr_consumer_get(wr_queue_engine *e, wr_qlink *l, wr_queue *q);
void wr_consumer_stop(wr_queue_engine *e, wr_consumer *c);
void wr_consumer_return(wr_queue_engine *e, wr_consumer *c); /* all that it holds goes back, redelivered */
void wr_consumer_free_all(wr_queue_engine *e, wr_qlink *l);
bool wr_hold(wr_queue_engine *e, wr_consumer *c, wr_entry *entry, uint64_t sequence, uint32_t slot);
void wr_queue_ready(wr_queue_engine *e, wr_queue *q, uint64_t sequence, wr_entry *entry); /* the row becomes READY */
void wr_queue_unready(wr_queue *q, uint64_t sequence, const wr_entry *entry);             /* a READY row ceases to be */
wr_entry *wr_queue_first(wr_queue *q, uint64_t *sequence); /* what is delivered next; ready_n > 0 */
bool wr_queue_would_deliver(wr_queue_engine *e, wr_queue *q);
/* UNSEEN: a REQUEUE of what was delivered ahead and handed to nobody; it is marked redelivered, but its delivery does not count. */
/* LOST: its bytes are damaged; it is dropped and counted, without a dead letter. */
typedef enum { WR_SETTLE_ACK, WR_SETTLE_REQUEUE, WR_SETTLE_REJECT, WR_SETTLE_UNSEEN, WR_SETTLE_LOST } wr_settling;
bool wr_queue_settle(wr_queue_engine *e, wr_qlink *l, wr_queue *q, uint64_t sequence, wr_settling how);
uint32_t wr_queue_settle_to(wr_queue_engine *e, wr_qlink *l, wr_queue *q, uint64_t sequence, wr_settling how);
void wr_delivery_fill(wr_delivery *d, uint32_t queue, uint64_t sequence, const wr_entry *entry);
bool wr_deliver(wr_queue_engine *e); /* true: something was delivered */
void wr_queue_stats_write(wr_queue_engine *e);
uint64_t wr_queue_purge(wr_queue_engine *e, wr_queue *q, uint64_t below, bool unacked);

void wr_queue_states(const wr_queue *q, uint64_t *alpha, uint64_t *beta, uint64_t *gamma, uint64_t *delta);
void wr_queue_recent(wr_queue *q, const wr_entry *entry, bool comes);

/* ---- pages (queues/pages.c) ---- */
/* Page out to, and in from, the folder of the segments and the spill file. 0 or an errno. */
int wr_pages_open(wr_queue_engine *e, const char *segments, const char *spill, uint64_t node_id, uint64_t memory_bytes);
wr_rows *wr_rows_new(wr_queue_engine *e); /* NULL: no memory */
void wr_rows_free(wr_queue_engine *e, wr_entry *rows); /* all GONE */
void wr_page_in(wr_queue_engine *e, wr_queue *q, uint64_t number, wr_chunk *chunk); /* the worker ends when the disk does not give them */
bool wr_page_out(wr_queue_engine *e, wr_queue *q, uint64_t number); /* false: they have to stay */
/* Page out what exceeds rows_limit, a batch at a time. Pointers to rows and chunks are void after it. */
void wr_pages_trim(wr_queue_engine *e, uint64_t now);
/* The limit anew, from the superblock's pressure and the rates; give memory back. Some times a second. */
void wr_pages_look(wr_queue_engine *e, uint64_t now);
/* How many bytes rows may have: pressure in 1/1000 (WR_PRESSURE_PAGE …), rate in rows a second. */
uint64_t wr_pages_limit(uint64_t memory_bytes, uint32_t pressure, uint64_t rate);
uint32_t wr_pages_pressure(uint32_t held, uint32_t pressure); /* a rise counts at once, a fall beyond the slack only */
/* Rows in memory near their limit: flush journal files early. Over it while a flush runs: publishers wait for the disk. */
static inline bool wr_pages_short(const wr_queue_engine *e) {
    return e->segments_fd >= 0 && (e->entries_n - e->paged_n) * sizeof(wr_entry) > e->rows_limit / 2;
}
static inline bool wr_pages_full(const wr_queue_engine *e) {
    /* A stop finishes the rings, whatever that takes. Pressure alone slows nobody down: what it asks for may not be there to leave. */
    return e->offered & WR_QUEUE_EVENT_FILES_MANY && !(e->offered & WR_QUEUE_EVENT_STOP) && e->segments_fd >= 0 &&
           (e->entries_n - e->paged_n) * sizeof(wr_entry) > e->memory_bytes + e->memory_bytes / 4;
}
static inline uint64_t wr_rows_bytes(const wr_queue_engine *e) { return e->rows_n * sizeof(wr_rows); }
void wr_queue_check(const wr_queue_engine *e, const wr_queue *q); /* asserts the invariants; tests */

/* ---- journal (queues/journal.c) ---- */
uint8_t *wr_journal_reserve(wr_queue_engine *e, bool transient, uint64_t bytes, uint64_t *offset);
void wr_journal_append(wr_queue_engine *e, bool transient, uint64_t bytes, bool sync);
/* Begin the current file with what sequences were used, and have it synced, so that older files without live entries may
 * go even if nothing is ever published. 0 or an errno. */
int wr_journal_begin(wr_queue_engine *e);
int wr_journal_acks(wr_queue_engine *e); /* write the pending ranges; 0, EAGAIN, or the log's errno (then they are dropped) */
void wr_journal_range(wr_queue_engine *e, wr_queue *q, uint64_t sequence);
/* The two ranges of a MOVE frame, 2 * WR_RANGE_SIZE bytes: `count` rows from `first` on go to `target` and what follows. */
void wr_move_put(uint8_t *range, const wr_queue *from, uint64_t first, uint64_t count, const wr_queue *to, uint64_t target, uint32_t reason);
/* A row leaves its queue for another one, as a MOVE frame in journal file `file` says. */
wr_entry wr_journal_take(wr_queue_engine *e, wr_queue *q, uint64_t sequence, uint32_t file);
int wr_journal_move(wr_queue_engine *e, wr_queue *from, wr_queue *to, uint64_t max_messages, uint64_t max_bytes, bool all,
                    uint64_t client_epoch, uint64_t sequence, uint64_t *start, uint64_t *end);
bool wr_journal_seal(wr_queue_engine *e, uint64_t now, bool force); /* true: posted */
void wr_journal_done(void *context, const wr_batch *batch);
void wr_journal_written(void *context, const wr_batch *batch);
void wr_link_confirm(wr_queue_engine *e, wr_qlink *l); /* raise words that need no batch */
bool wr_link_drop_gates(wr_queue_engine *e, wr_qlink *l);   /* drop the gates that the stores have passed */
void wr_link_add_gate(wr_queue_engine *e, wr_qlink *l, uint64_t command, uint32_t store, uint64_t store_sequence, uint32_t file);
void wr_files_add(wr_files *f, uint32_t file);
uint32_t *wr_files_live(wr_files *f, uint32_t file);
void wr_files_drop_first(wr_files *f);
bool wr_journal_may_delete(wr_queue_engine *e, uint32_t file);
int wr_journal_replay(wr_queue_engine *e, const uint8_t *bytes, uint64_t length, uint32_t file, uint64_t salt,
                      uint64_t *at, uint64_t *frames_n, const char **reason);
/* Frames are missing here, or a whole file: sequences that are skipped from here on were of lost messages, at most so many (transient
 * ones have no frames, some were acked). */
void wr_journal_gap(wr_queue_engine *e);
void wr_journal_recovered(wr_queue_engine *e, bool clean);
/* While recovering: the messages whose bodies lie behind byte `size` of a segment data file, which is not there, go; how many. */
uint64_t wr_segment_drop_lost(wr_queue_engine *e, uint32_t file, uint64_t size);
/* The message of an entry that is, or may be, in a segment has gone; its frame lies in `file`. */
void wr_segment_ack_note(wr_queue_engine *e, const wr_queue *q, uint64_t sequence, uint32_t file, bool moved);
/* Whether so many wait that those whose frames are synced should be applied. */
bool wr_segment_acks_many(const wr_queue_engine *e);
static inline bool wr_may_be_in_segment(const wr_queue_engine *e, const wr_entry *entry) {
    return entry->index_file == WR_IN_SEGMENT || entry->index_file < e->flush_mark;
}

/* ---- the stores (queues/store_side.c) ---- */
int wr_queue_store_write(wr_queue_engine *e, uint32_t store, const uint8_t id[16], uint64_t body, uint32_t length,
                         uint16_t meta_length, uint64_t owner_tag, uint8_t flags, uint64_t *sequence);
void wr_queue_store_release(wr_queue_engine *e, uint32_t store, const uint8_t id[16]);
bool wr_queue_store_round(wr_queue_engine *e); /* removes, resync; true: something moved */
bool wr_queue_store_passed(wr_queue_engine *e, uint32_t store, uint64_t sequence);
#endif
