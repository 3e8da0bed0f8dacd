/* The message store's server: one loop over the rings of all clients, for the persistent and the transient store.
 *
 * Mechanism only. Files, regions, slots and the node's life are Python's (engine/message_store.py): run() returns when it is needed.
 *
 * Invariants
 *   Commands of one link are executed in order; a command that cannot go on (no file, no room in the index) stops its
 *   link, not the others, and is tried again. Nothing of it has happened before that.
 *   The index row of a message is visible before its directory row goes.
 *   A horizon is attached to a batch only for commands whose effects lie in that batch or before it (`effect`); what
 *   has no effect on the log is confirmed by the loop when everything before it is.
 *   Every byte of a client's memory that decides anything is copied first.
 *   A file is deleted when no live record is in it, it is not the current one, every worker has said what it holds since the
 *   start, and no older file is left that its own REMOVE or ADD_REFERENCE frames speak of.
 * Crash points
 *   anywhere: rows, files and horizons are derived again from the files and the rings (design note 001, sections 2 and 4).
 */
#ifndef WR_STORE_H
#define WR_STORE_H
#include "index.h"
#include "log.h"

/* Why run() returned (bits). */
#define WR_EVENT_FILE 1     /* a store has no next file: make one and offer it */
#define WR_EVENT_SLOTS 2    /* slots_version has changed: attach, close, detach; then wr_store_server_slots_seen */
#define WR_EVENT_INDEX 4    /* an index is more than 70 % full: wr_store_replace_index */
#define WR_EVENT_EMPTY 8    /* files to unlink: wr_store_take_gone */
#define WR_EVENT_FAILED 16  /* a log has failed */
#define WR_EVENT_STOP 32    /* the node is draining */
#define WR_EVENT_TIMER 64   /* 250 ms have passed */
#define WR_EVENT_SWEPT 128  /* a slot is finished: server_done is written */
#define WR_EVENT_KICK 256   /* somebody in this process called wr_store_server_kick */

typedef struct {
    bool active;
    bool evicted;
    bool resyncing;
    bool stalled;
    uint64_t processed;    /* next command */
    uint64_t effect;       /* commands up to here touch the log; those after it do not */
    uint64_t posted;       /* horizon posted to the committer */
    uint64_t posted_sync;  /* the same, in a batch with sync */
    uint64_t told_written, told_synced, told_head; /* what the loop has published by itself */
    uint64_t high_water;   /* commands below it have their frames on disk */
    uint64_t end;          /* closing: the tail that will be executed */
    _Atomic uint64_t done_written, done_synced, done_head; /* committer */
    _Atomic uint32_t batches; /* posted batches with a horizon of this link */
} wr_store_link;

typedef struct wr_store_server wr_store_server;

typedef struct {
    wr_store_server *server;
    uint32_t number; /* server index */
    bool persistent;
    bool open;
    wr_server *row;
    wr_log *log;
    const wr_log_state *state; /* of the log; what the committer counts is fresh after wr_log_look */
    wr_index index;
    _Atomic uint64_t *directory;
    uint32_t directory_rows;
    wr_summary_row *summary;
    uint32_t summary_rows;
    uint32_t *first_row; /* per summary row: first index row of that file + 1 */
    uint64_t first_file, last_file; /* + 1 */
    uint64_t current; /* + 1 */
    wr_store_link links[WR_CLIENT_SLOTS];

    bool want_sync, want_written; /* somebody waits for it */
    bool effects;                 /* some link has an effect that no batch has */
    bool file_asked, index_asked, failed_told;
    uint64_t pending_since;       /* when the oldest effect that no batch has came up, 0: none */
    _Atomic uint64_t done_n; /* batches done */
    uint64_t done_seen;

    uint64_t *empty; /* files that may go */
    uint32_t empty_n, empty_size;
    bool empty_check;
    uint64_t *gone; /* files to unlink */
    uint32_t gone_n, gone_size;

    uint64_t *waters; /* pairs (client epoch, sequence + 1), open addressing; recovery */
    uint32_t waters_size, waters_n;

    uint64_t messages, files, valid_bytes, file_bytes_sum, processed_n, written_n, eliminated_n, evicted_n, lost_n;
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
    bool draining;
    bool spins;
    _Atomic uint32_t kicked;
    uint32_t events;
    uint64_t commit_bytes, tick_ns, spin_ns_max, spin_ns;
    uint64_t timer_at;
    uint64_t wakes_n;
    uint8_t (*ids)[16]; /* private copy of the ids of one command */
};

/* 0 or ENOMEM. */
int wr_store_server_init(wr_store_server *server, wr_superblock *super, uint64_t commit_bytes, uint64_t tick_ns,
                         uint64_t spin_ns);
void wr_store_server_free(wr_store_server *server);

typedef struct {
    void *images, *directory, *summary, *index;
    uint64_t images_bytes, directory_bytes, summary_bytes, index_bytes;
} wr_store_regions;

/* Take new, zeroed regions. 0, EINVAL, ENOMEM. */
int wr_store_open(wr_store_server *server, uint32_t number, const wr_store_regions *regions);

/* -- start: files in ascending order, then finish -- */
/* A file that exists. EBUSY: its row of the summary is taken (summary_rows is too small). */
int wr_store_add_file(wr_store *store, uint64_t file, uint64_t bytes);
/* Apply the frames of a file from *at on. *reason as of wr_frame_scan, or "index" when the table is too full: replace it and go on.
 * 0 or ENOMEM. */
int wr_store_scan_file(wr_store *store, uint64_t file, const uint8_t *bytes, uint64_t length, uint64_t salt, uint64_t *at,
                       uint64_t *frames, const char **reason);
/* Rows of a snapshot (wr_index_row[]). 0, or ENOBUFS when the table is too full. */
int wr_store_load_rows(wr_store *store, const wr_index_row *rows, uint64_t rows_n);
void wr_store_load_pins(wr_store *store, uint64_t file, uint64_t pin_low, uint64_t pin_high);
/* Everything that follows from rows and files: lists, sums. Returns how many rows had no file and were dropped. */
uint64_t wr_store_finish(wr_store *store);

/* -- policy's hands -- */
/* EBUSY: its summary row is taken, or there is a next file already. The log owns fd from then on (0 only). */
int wr_store_offer(wr_store *store, int fd, uint64_t file, uint64_t salt, const uint8_t *header);
/* Fill a new, zeroed table; the old one is marked retired by wr_store_retire_index once its successor is announced. */
int wr_store_replace_index(wr_store *store, void *region, uint64_t bytes, wr_index_header **old);
/* Next file to unlink, UINT64_MAX if none; and the word that it is unlinked for good. */
uint64_t wr_store_take_gone(wr_store *store);
void wr_store_file_gone(wr_store *store, uint64_t file);

/* Take up a client's links at their heads. `starting`: no client knows the new directory yet, so rows are put back for
 * what is under way. 0, EINVAL (region too small), EEXIST. */
int wr_store_server_attach(wr_store_server *server, uint32_t slot, uint32_t generation, uint64_t client_epoch, void *region,
                           uint64_t bytes, int holder, uint64_t epochs[2], bool starting);
/* The client is leaving or dead: execute what it has submitted, then clean up and write server_done. */
void wr_store_server_close(wr_store_server *server, uint32_t slot);
/* Forget the region. EBUSY: not finished, or the committer still holds a horizon of it. */
int wr_store_server_detach(wr_store_server *server, uint32_t slot);

uint32_t wr_store_server_run(wr_store_server *server, uint64_t max_ns);
/* Another thread of this process: let run() return. */
void wr_store_server_kick(wr_store_server *server);
/* True when every ring is executed and everything appended is written and synced; posts what is needed to get there. */
bool wr_store_server_settle(wr_store_server *server);

/* -- between the parts of the server (store.c: commands and files; storeloop.c: links and the loop; storestart.c: recovery) -- */
enum { WR_STORE_DONE, WR_STORE_STALLED, WR_STORE_EVICTED };
/* A private copy of a record, but for the words that both sides change by atomics. */
static inline wr_command wr_store_copy(const wr_command *record) {
    wr_command c = {0};
    memcpy((void *)&c, (const void *)record, offsetof(wr_command, flying));
    memcpy((void *)c.id, (const void *)record->id, offsetof(wr_command, result) - offsetof(wr_command, id));
    return c;
}
/* Execute one command of a link. `reason` is filled for WR_STORE_EVICTED. */
int wr_store_execute(wr_store *store, uint32_t slot, uint64_t sequence, wr_command *record, uint32_t *reason);
wr_summary_row *wr_store_file(const wr_store *store, uint64_t file); /* NULL: no such file */
void wr_store_link_row(wr_store *store, uint32_t row); /* into its file's list */
void wr_store_relist(wr_store *store);                 /* all rows */
int wr_store_note_empty(wr_store *store, uint64_t file);
void wr_store_collect_empty(wr_store *store);
void wr_store_pin(wr_store *store, uint64_t file, uint64_t target);
bool wr_store_note_water(wr_store *store, uint64_t client_epoch, uint64_t water);

/* Highest sequence + 1 of a client epoch that has frames on disk. */
uint64_t wr_store_water(const wr_store *store, uint64_t client_epoch);
#endif
