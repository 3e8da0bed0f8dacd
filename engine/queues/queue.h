/* The engine of one queue worker: its types. What it promises: the queues' rules in docs/rules.md; why: design notes 001
 * and 004.
 *
 * The files of this room, each one standing on some of those before it, and on none behind it:
 *   memory         lists that grow, or the worker ends
 *   registry       queues by id
 *   rows           chunks of rows, in memory
 *   owed           what memory owes to disk and stores: a round notes it here, and pays it
 *   levels, keys   what a policy counts: ready rows by priority; keys that were seen
 *   segment_codec, spill, pages
 *                  rows that leave memory and come back, from segments or from the spill file
 *   entries        inserted, ready, first, removed
 *   delay, deaths, consumers, exclusive, overdue, delivery
 *                  what happens to an entry: it waits, dies, is held and settled; who consumes alone; is held too long,
 *                  is delivered
 *   statistics, browse, check
 *   journal, horizons
 *                  frames into the two logs; how far links are confirmed
 *   dead_letters, claims, replay, segments, flush, terms
 *                  what else goes into the journals and the queue index, and the way back at a start
 *   policy         by the clock, and at the door
 *   drop           the end of a queue
 *   store_side     the worker as a client of the stores
 *   links, closing, command, publish, stretch, commands
 *                  links of clients, and what their commands do
 *   loop, engine   rounds; the engine made and freed
 *
 * Threads: everything runs on the loop thread (Python's main thread, between or inside wr_queue_run), but the two
 * committers, which meet it in `mutex` (horizons and gates of the links) and in the logs, and the thread that flushes.
 *
 * Invariants
 *   An entry exists if and only if its row is not GONE; ready_n and unacked_n of a queue count rows.
 *   UNACKED: exactly one link's private record `held[delivery]` names (queue, sequence), and the entry names the link
 *   back.
 *   Shared delivery slots are only written; they are believed once, when a link is taken up after a restart.
 *   A frame lies in the image before its effect shows in shared memory: whoever kills the worker between finds the
 *   frame (salvaged from the image), so HELD slots and entries always fit together again.
 *   No READY row lies below ready_from.
 *   Rows of a paged chunk are READY, and transient or in a segment; none is still to come; the counts of its
 *   description hold.
 * of a queue with a policy
 *   ready_bytes, levels and level_chunks count READY rows, in memory or paged, expiring_n those that expire (too many
 *   after damage); delayed_n, dying_n count those states, returned_n the
 *   DELAYED rows whose time is that of a return.
 *   No READY row of a level lies below its `from`.
 *   A queue with expiring or delayed rows, or above its maximum, is in the engine's `timed`; something of it may
 *   be due before `timed_at` only if that was set so.
 *   Every DYING row is in `deaths` once. Nothing of a round is answered before its deaths are written (finish_round).
 */
#ifndef WR_QUEUE_H
#define WR_QUEUE_H
#include "kernel/log.h"
#include "kernel/map.h"
#include "kernel/rows.h"
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
#define WR_ENTRY_RETURNED 4 /* DELAYED since its return: until when, only DELAY frames say for sure */
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
    uint16_t delivery_low; /* its delivery slot: wr_entry_slot */
    uint64_t expires : WR_TIME_BITS; /* milliseconds of CLOCK_REALTIME, 0: never */
    uint64_t priority : 8;
    uint64_t reason : 4; /* WR_REASON_…, in a queue of dead letters */
    uint64_t delivery_high : 4;
} wr_entry;
_Static_assert(sizeof(wr_entry) == 56, "an entry costs 56 bytes");
_Static_assert(WR_DELIVERY_SLOTS_MAX <= 1u << 20, "a delivery slot has 20 bits");

static inline uint32_t wr_entry_slot(const wr_entry *entry) { return (uint32_t)entry->delivery_high << 16 | entry->delivery_low; }

static inline void wr_entry_set_slot(wr_entry *entry, uint32_t slot) {
    entry->delivery_low = (uint16_t)slot;
    entry->delivery_high = slot >> 16 & 15;
}

/* A block of rows; those of a free block are GONE. */
typedef union wr_rows {
    wr_entry rows[WR_CHUNK_ROWS];
    union wr_rows *next_free;
} wr_rows;

/* What the segment does not say of the rows of a paged chunk. If one of them is transient, all of them lie in the
 * spill file. */
typedef struct {
    uint64_t live[WR_CHUNK_ROWS / 64]; /* an entry on disk without its bit is of a message that has gone */
    uint64_t redelivered[WR_CHUNK_ROWS / 64];
    uint64_t bytes, counted_bytes;
    uint32_t slot, crc;         /* in the spill file, of transient_n > 0 */
    uint16_t delivery_counts[]; /* absent when all are 0 */
} wr_page;

/* The description of 1024 neighbouring sequences stays as long as one of them is alive; its rows may leave memory. */
typedef struct wr_chunk {
    uint32_t live_n;
    uint32_t ready_n;
    uint32_t segment_n; /* live rows with their index record in a segment */
    uint32_t transient_n; /* live rows that are not persistent */
    uint32_t stored_n;  /* live rows with their body in the persistent store, or in a file of its own */
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
    uint64_t credit;      /* deliveries allowed since it began; 0 with a prefetch: no end */
    uint64_t delivered_n; /* deliveries since it began */
    uint32_t prefetch;    /* most unacked ones; 0: no end */
    uint32_t held_n;
    uint32_t first, last; /* held slots, by ascending sequence */
    bool joined;             /* it was told that it may consume, and has not left (queues/exclusive.h) */
    bool silent;             /* it holds what it held when this worker began, and has asked for nothing since */
    uint32_t exclusive_slot; /* of who consumes alone, else WR_NO_SLOT */
    /* of a queue with an ack timeout (queues/overdue.c) */
    bool spoke;             /* it asked for something, or settled something, since the last look */
    bool stuck;             /* it gets nothing until it does */
    uint32_t spoke_look;    /* the look at which it was known to have done so last */
    uint32_t told_look, done_look; /* all that was submitted by the look `done_look` is executed; by `told_look` … */
    uint64_t told;          /* … when the link has come so far */
    struct wr_consumer *next; /* of the link */
} wr_consumer;

/* Does it ask for messages? One without a prefetch that has got what it asked for (a get) is no consumer until it asks again. */
static inline bool wr_consumer_asks(const wr_consumer *c) { return c->active && (c->prefetch || c->delivered_n < c->credit); }

typedef struct {
    wr_consumer *consumer;
    uint64_t sequence;
    uint32_t previous, next;
    uint32_t word;  /* mark of the delivery, and its state as a look saw it */
    uint32_t since; /* that look; 0: none yet */
} wr_held;

/* Rows whose body lies in one journal file. */
typedef struct {
    uint32_t file, n;
} wr_recent;
#define WR_RECENT_FILES 16 /* images_n is at most that */

/* How far a consumer has been delivered to: the sequence behind. Its client is slot + 1 and generation. */
typedef struct {
    uint64_t client, next;
} wr_reached;

typedef struct wr_queue {
    struct wr_queue_engine *engine;
    uint32_t id;
    bool durable;
    bool past;          /* named by frames of the past, not declared any more */
    bool letters;       /* it holds dead letters: they have no times of their own */
    uint32_t claims_of; /* of a past one: the queue whose claims it held, 0: none known */
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
    uint64_t asked_n, consumed_n; /* how often a consumer asked that had not; one with a prefetch came */
    wr_chunk **chunks; /* chunk number chunk_base + i is chunks[chunks_at + i]; NULL: all gone */
    uint64_t chunk_base, chunks_at, chunks_n, chunks_size;
    wr_consumer **consumers; /* the active ones */
    uint32_t consumers_n, consumers_size, turn;
    const struct wr_qlink *exclusive; /* who consumes it alone, or NULL */
    wr_consumer *former; /* of a single active one: who held messages when this worker began, until it speaks */
    const wr_consumer *leaving; /* a single active one that has left, as long as it holds something */
    uint64_t left_at;           /* `next` when it left */
    wr_reached reached[2]; /* of the two that were delivered the highest sequences, the highest first */
    uint32_t stats_row; /* WR_NO_SLOT: none free */
    bool in_wake, in_dirty, in_changed;
    uint64_t ack_timeout_ns; /* 0: none */
    uint64_t look_at;        /* monotonic clock: when it is looked for what is overdue */
    uint32_t looks;          /* of these */
    uint64_t range_round; /* the pending range `range_at` is this queue's last one if range_round is the current one */
    uint32_t range_at;
    struct wr_policy *policy; /* NULL: a plain queue */
} wr_queue;

/* ---- policies ---- */

#define WR_LEVELS (WR_PRIORITY_MAX + 1)
_Static_assert(WR_LEVELS == 256, "a priority fills its byte, so every one is right");
#define WR_KEYS_MAX (1u << 18) /* of one queue in memory; beyond it the oldest are forgotten before their time */

typedef struct {
    uint64_t message_ttl_ms; /* that holds: 0 is at once */
    uint64_t deduplication_ms; /* 0: none */
    uint64_t max_length, max_length_bytes;     /* that hold: 0 may be meant */
    uint32_t delivery_limit;                   /* that holds */
    bool has_message_ttl, has_max_length, has_max_bytes, has_delivery_limit;
    uint32_t dead_letters;                                                    /* queue id, 0: what dies is dropped */
    uint32_t max_priority;
    bool reject_publish, single_active;
    bool refused_die; /* what reject_publish refuses goes to the dead letters */
} wr_policy_options;

typedef struct {
    uint64_t n, from; /* READY rows of one priority; none of them lies below `from` */
} wr_level;

typedef struct {
    uint64_t due, sequence;
} wr_delayed;

typedef struct {
    uint64_t a, b, published;
} wr_seen;

typedef struct wr_policy {
    wr_policy_options o;
    bool timed;
    uint32_t offered; /* rounds since it was found too long, in which somebody waited for messages */
    uint64_t expiring_n, ready_bytes, delayed_n, dying_n;
    bool at_once;                             /* some that end at once came since the last deliveries (queues/delivery.c): */
    uint64_t at_once_from, at_once_published; /* not below this sequence, published until then */
    uint64_t returned_n; /* DELAYED rows with WR_ENTRY_RETURNED */
    uint64_t expired_n, dropped_n, dead_lettered_n, refused_n, duplicates_n;
    uint64_t framed_n; /* dead letters in the frame that is being made */
    /* max_priority: ready rows by level */
    wr_level *levels;                    /* max_priority + 1 */
    uint64_t levels_used[WR_LEVELS / 64]; /* bits of those that have rows */
    wr_map level_chunks; /* (chunk number, level) → ready rows */
    wr_delayed *heap; /* by due, then sequence; may hold rows that are not DELAYED any more */
    uint64_t heap_n, heap_size;
    wr_map due; /* sequence → due, of each DELAYED row */
    /* keys within the window, the oldest first: a ring */
    wr_map seen; /* key → published */
    wr_seen *keys;
    uint64_t keys_first, keys_n, keys_size;
} wr_policy;

typedef struct wr_death {
    wr_queue *queue; /* NULL: dropped meanwhile */
    uint64_t sequence;
    uint32_t reason;
} wr_death;

/* ---- what a round owes ---- */

typedef struct {
    wr_queue *queue;
    uint64_t first;
    uint32_t count;
    uint64_t due; /* 0: they have gone; else they wait until then */
} wr_pending_range;

typedef struct {
    uint64_t command; /* first command that waits */
    uint64_t store_sequence; /* until the store's head is above this */
    uint32_t store;
    /* Frames of this command and of those behind it lie in this journal file or later ones: they stay while `head`
     * may be held here, because they alone say that those commands were executed. */
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
    bool before;  /* a worker before this one served it */
    uint32_t exclusive_n; /* queues that it consumes alone */
    wr_pause pause;
    uint32_t slot, generation;
    uint64_t client_epoch, high;
    uint64_t next; /* next command to process */
    uint64_t limit;            /* commands from it on are not taken: the node ends */
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
    wr_held *held; /* of the slots below slots_used; so are the lists: what was never used is no memory */
    uint32_t slots_used; /* slots from it on were never used */
    uint32_t *free_slots; /* of those below it */
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

/* A message in a file of its own, with no entry any more: the file may go when this batch is synced. */
typedef struct {
    uint8_t id[16];
    uint64_t token;
} wr_large_gone;

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

typedef struct {
    uint32_t n;
    wr_queue *queues[WR_ROUTES_MAX];
} wr_routes;

/* Where a message goes, while it is published. */
typedef struct {
    wr_routes durable, transient, refused, duplicate;
    uint32_t unknown_n;
} wr_sorted_routes;

typedef struct wr_queue_engine {
    wr_queue_options o;
    wr_server *me;
    wr_geometry geometry; /* of a region without its delivery slots: each client may have another number */
    /* queues */
    wr_map queues;    /* id → wr_queue * */
    wr_map consumers; /* slot << 32 | queue id → wr_consumer * */
    wr_queue *last_queue;
    wr_queue **wake;
    uint64_t wake_n, wake_size;
    wr_queue **dirty; /* their rows of statistics are behind */
    uint64_t dirty_n, dirty_size;
    wr_queue **changed; /* since their messages were counted there */
    uint64_t changed_n, changed_size;
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
    /* Messages that consumers found damaged: how many, and where the last of them lie (number i at i %
     * WR_LOST_ROWS). */
    uint64_t unreadable_n;
    wr_delivery unreadable[WR_LOST_ROWS];
    uint64_t trim_after_ns, trim_at;
    uint8_t *page_bytes; /* room for one chunk's entries */
    /* policies */
    wr_queue **timed; /* queues to be looked at by the clock */
    uint64_t timed_n, timed_size;
    uint64_t timed_at; /* wall clock, milliseconds: not before */
    uint64_t round_ms; /* the same, when this round began */
    wr_queue **watched; /* those with an ack timeout */
    uint64_t watched_n, watched_size;
    uint64_t look_at; /* monotonic clock: the first of their looks */
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
    /* those of ACK frames; when the limit was reached, they went up to this batch */
    uint64_t segment_acks_early_n, segment_acks_token;
    uint64_t segment_acks_ns; /* when the first of them came, or some were taken */
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
    wr_sorted_routes *routes; /* of the publish that is executed */
    wr_qlink *links[WR_CLIENT_SLOTS];
    uint32_t order[WR_CLIENT_SLOTS], links_n;
    bool stalled; /* the ACK frames of the last round did not find room yet */
    pthread_mutex_t mutex;
    uint64_t epoch; /* of this incarnation, 0 before begin */
    uint64_t begun_ns;    /* when it began */
    bool early;           /* some single active consumer may announce itself still (queues/exclusive.h) */
    uint32_t exclusive_n; /* queues that somebody consumes alone */
    uint64_t seen_slots_version, seen_catalog_version;
    uint32_t offered; /* NEED_FILE events already told */
    bool failed_told, unknown_waiting;
    _Atomic uint32_t stop, kick;
    uint64_t spin_ns;
    bool ring_full;
    bool frozen; /* deliveries off: recovery and stop */
    bool ending; /* each link has its limit (queues/closing.h) */
    uint64_t barred; /* the superblock's word (queues/barred.h); `barred_told`: its queue is here, and it was said what is in it */
    bool barred_told;
    /* messages in files of their own (queues/large.h) */
    wr_map large; /* message id → entries of this worker */
    wr_large_gone *large_gone;
    uint64_t large_gone_n, large_gone_size;
    /* stores */
    wr_port port;
    bool has_port;
    wr_qstore stores[2];
    /* counters of this incarnation */
    uint64_t published_n, delivered_n, acked_n, processed_n, unroutable_n, lost_n, evicted_n, wakes_n, ignored_n;
} wr_queue_engine;
#endif
