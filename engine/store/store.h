/* The message store's server: one loop over the rings of all clients, for the persistent and the transient store. Its types, and the
 * invariants that its files keep; what each does is in its own header.
 *
 * Mechanism only. Files, regions, slots and the node's life are Python's (engine/store/message_store.py): run() returns when it is needed.
 *
 * Invariants
 *   Commands of one link are executed in order; a command that cannot go on (no file, no room in the index) stops its
 *   link, not the others, and is tried again. Nothing of it has happened before that, but for the messages of a batch that
 *   are done: it goes on behind them (`part`). While one waits for a file, removes of a queue worker behind it take effect
 *   ahead of their turn, and again in their turn: files get empty, so that a full disk does not stay full.
 *   The index entry of a message is visible before its directory row goes.
 *   A horizon is attached to a batch only for commands whose effects lie in that batch or before it (`effect`); what
 *   has no effect on the log is confirmed by the loop when everything before it is.
 *   Every byte of a client's memory that decides anything is copied first.
 *   The summary's files are linked by position, the order of replay (design note 003, section 4).
 *   A file goes when no live record is in it, no ring replays a command of it, every worker has said what it
 *   holds since the start, and no file is left that its own REMOVE or ADD_REFERENCE frames speak of. It is locked first.
 *   An entry never comes to life in a locked file, and no live entry is ever in a file without a row.
 *   `ghosts` of a file is set before an entry that lies in it is dropped or replaced.
 * Crash points
 *   anywhere: entries, files and horizons are derived again from the files and the rings (design notes 001, sections 2 and 4;
 *   003, section 3). Named ones: roll, batch_written, batch_synced, batch_done, dying, swing_begun, swung, retire_begun.
 */
#ifndef WR_STORE_H
#define WR_STORE_H
#include "store/file_list.h"
#include "store/index.h"
#include "kernel/log.h"
#include "kernel/ref.h"

/* Why run() returned (bits). */
#define WR_STORE_EVENT_FILE 1       /* a store has no next file: make one and offer it */
#define WR_STORE_EVENT_SLOTS 2      /* slots_version has changed: attach, close, detach; then set slots_seen */
#define WR_STORE_EVENT_INDEX 4      /* the hash part of an index is tight: wr_store_replace_index */
#define WR_STORE_EVENT_EMPTY 8      /* empty files that go: wr_store_take_gone */
#define WR_STORE_EVENT_FAILED 16    /* a log has failed */
#define WR_STORE_EVENT_STOP 32      /* the node is draining */
#define WR_STORE_EVENT_TIMER 64     /* 250 ms have passed */
#define WR_STORE_EVENT_SWEPT 128    /* a slot is finished: server_done is written */
#define WR_STORE_EVENT_KICK 256     /* somebody in this process called wr_store_server_kick */
#define WR_STORE_EVENT_LIST 512     /* lists of rolled files to be written: wr_store_take_list */
#define WR_STORE_EVENT_EXTENT 1024  /* an index wants another extent: wr_store_add_extent */

typedef struct {
    bool active;
    bool evicted;
    bool resyncing;
    bool stalled;
    bool dying;            /* design note 003, section 8 */
    bool part_effect;      /* the running batch has put frames into the log */
    bool taken_up;         /* the first command is not executed before readers know the server */
    uint32_t part;         /* messages of the running batch that are done */
    wr_file_ref part_file; /* of its first frame; none yet */
    uint64_t replays;      /* commands below it may have frames in recovered files and are not confirmed yet */
    uint64_t death_position, death_offset, death_until;
    uint64_t dying_since_ns; /* 0: the timer has not seen it yet */
    wr_index_cursor cursor; /* of a running pass over the index (resync) */
    uint64_t cursor_of;     /* the index it belongs to, 0: no pass */
    uint32_t sweep;         /* workers for which the running pass releases, bits */
    uint64_t processed;    /* next command */
    uint64_t freed_ahead;  /* removes below it were looked at while the link waited for a file */
    uint64_t limit;        /* of a frozen server */
    uint64_t effect;       /* commands up to here touch the log; those after it do not */
    uint64_t posted;       /* horizon posted to the committer */
    uint64_t posted_sync;  /* the same, in a batch with sync */
    uint64_t told_written, told_synced, told_head; /* what the loop has published by itself */
    uint64_t high_water;   /* wr_water of the last frame of it that recovery found */
    uint64_t end;          /* closing: the tail that will be executed */
    _Atomic uint64_t done_written, done_synced, done_head; /* committer */
    _Atomic uint32_t batches; /* posted batches with a horizon of this link */
} wr_store_link;

typedef struct wr_store_server wr_store_server;

/* A message that a client writes. */
typedef struct {
    const uint8_t *id;
    const uint8_t *body; /* NULL: its owner is gone for good */
    uint32_t length;
    uint16_t meta_length;
    uint16_t part;
    uint8_t flags;
} wr_store_message;

#define WR_STORE_IDS_MAX 32768 /* ids of one command */
#define WR_STORE_OPEN_FILES 8 /* descriptors for comparing bodies (rule S12) */

#define WR_FILE_CONTROLS 1 /* it has ADD_REFERENCE or REMOVE frames */
#define WR_FILE_OUTPUT 2   /* made by a collection in this life of the server */
#define WR_FILE_ARRIVING 4 /* and its entries are not all here yet */
#define WR_FILE_UNSWUNG 8  /* and some will not come */

typedef struct {
    wr_store_server *server;
    uint32_t number; /* server index */
    bool persistent;
    bool open;
    wr_server *row;
    wr_log *log;
    const wr_log_state *state; /* of the log; what the committer counts is fresh after wr_log_look */
    const uint8_t *images;
    wr_index index;
    _Atomic uint64_t *directory;
    uint32_t directory_rows;
    uint32_t scrub_at; /* the next row that is looked at for staleness */
    wr_summary_row *summary;
    uint32_t summary_rows;
    uint32_t unswept; /* workers whose resync has ended before that of all others: nothing is released for them yet; bits */
    uint8_t *marks; /* per summary row, WR_FILE_…: what only the loop needs to know of a file */
    uint32_t ghosts_n, outputs_n; /* files with ghosts; outputs of collections that are not `replay_free` */
    wr_file_ref first_file, last_file; /* by position */
    wr_file_ref current;
    wr_summary_row *current_row;
    wr_list *list; /* of the current file; NULL: there was no memory for it, so its file will be scanned */
    wr_store_link links[WR_CLIENT_SLOTS];

    bool want_sync, want_written; /* somebody waits for it */
    bool force_sync;              /* and that somebody is the store itself */
    bool effects;                 /* some link has an effect that no batch has */
    bool file_asked, index_asked, failed_told;
    uint64_t pending_since;       /* when the oldest effect that no batch has came up, 0: none */
    uint64_t unsynced_since, sealed_at; /* the oldest and the last batch that no batch with sync follows, 0: there is none */
    _Atomic uint64_t done_n; /* batches done */
    uint64_t done_seen;

    wr_list **rolled; /* lists of rolled files, eldest first */
    uint32_t rolled_n, rolled_size;
    _Atomic uint64_t durable_below; /* rolled files below it are durable (committer) */
    _Atomic uint64_t durable_mark; /* what is durable, as wr_store_log_mark (committer) */
    uint64_t rolled_mark;          /* the end of the file before the current one, 0: there was none */
    _Atomic uint64_t confirmed_below; /* files below it hold only commands whose horizons were published (committer) */
    uint64_t confirmed_seen;
    uint32_t replayable_n; /* files that are not `replay_free`, but for outputs */
    bool replay_check;

    uint64_t *empty; /* files that may go */
    uint32_t empty_n, empty_size;
    bool empty_check, empty_lost; /* look at them; one of them did not find room */
    struct {
        uint64_t file, mark;
    } *gone; /* locked files on their way out; not before what was appended when they were locked is durable */
    uint32_t gone_n, gone_size;

    int folder; /* for comparing bodies; -1: none, every body counts as another */
    struct {
        wr_file_ref file;
        int fd;
    } open_files[WR_STORE_OPEN_FILES];
    uint32_t open_next;
    uint8_t *compare; /* a stored body read from disk */
    uint64_t compare_size;

    uint64_t *waters; /* pairs (client epoch, wr_water), open addressing; recovery */
    uint32_t waters_size, waters_n;

    bool extent_asked;
    uint64_t index_count; /* counts the tables that the index has had, from 1 */
    uint32_t round_messages; /* messages of batches in this round of a link */
    uint64_t messages, files, valid_bytes, file_bytes_sum, processed_n, written_n, eliminated_n, evicted_n, lost_n;
    uint64_t lost_before, collected_n, retired_n, copied_bytes;
} wr_store;

struct wr_store_server {
    wr_superblock *super;
    wr_store stores[2];
    wr_view views[WR_CLIENT_SLOTS];
    bool attached[WR_CLIENT_SLOTS];
    bool closing[WR_CLIENT_SLOTS];
    bool finished[WR_CLIENT_SLOTS];
    uint32_t generation[WR_CLIENT_SLOTS];
    uint64_t client_epoch[WR_CLIENT_SLOTS];
    int holder[WR_CLIENT_SLOTS]; /* queue worker's index, -1: a client of the store API */
    uint32_t active[WR_CLIENT_SLOTS];
    uint32_t active_n;
    uint32_t workers_all, workers_resynced; /* bits */
    uint64_t slots_seen;
    bool unserved; /* the system had no memory to attach some client's region: who writes by reference to it waits */
    uint64_t dying_ns; /* a client that announced its death and does not end it is evicted after so long */
    bool draining;
    bool frozen; /* commands at and above each link's `limit` are the next server's */
    bool spins;
    bool timer; /* 250 ms have passed: this round looks at what nobody tells it */
    _Atomic uint32_t kicked;
    uint32_t events;
    uint64_t commit_bytes, tick_ns, spin_ns_max, spin_ns;
    uint64_t timer_at;
    uint64_t wakes_n;
    uint8_t (*ids)[16]; /* private copy of the ids of one command: WR_STORE_IDS_MAX */
    uint32_t *ends;     /* private copy of the ends of one batch, behind a 0 */
};
#endif
