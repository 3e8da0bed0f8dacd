/* What the parts of the store's server share: store/store.c (one command), store/batch.c (batches), store/body.c (comparing bodies),
 * store/collect.c (files that go), store/start.c (replay), store/loop.c (links and the loop). Invariants: store/store.h. */
#ifndef WR_STOREPARTS_H
#define WR_STOREPARTS_H
#include "ipc/core/crash.h"
#include "store/store.h"

/* What became of a command. AGAIN: it has more to do, others come first; it is not behind anything. */
enum { WR_STORE_DONE, WR_STORE_STALLED, WR_STORE_EVICTED, WR_STORE_AGAIN };

/* What a dying client may still do with a message. */
enum { WR_MASK_NONE, WR_MASK_COUNT, WR_MASK_ALL };

#define WR_STORE_ROUND 1024 /* messages of batches that one link has executed in a round */

/* A private copy of a record, but for the words that both sides change by atomics. */
static inline wr_command wr_store_copy(const wr_command *record) {
    wr_command c = {0};
    memcpy((void *)&c, (const void *)record, offsetof(wr_command, flying));
    memcpy((void *)c.id, (const void *)record->id, offsetof(wr_command, result) - offsetof(wr_command, id));
    return c;
}

/* The link as its client sees it. */
static inline wr_link *wr_store_shared_link(const wr_store *store, uint32_t slot) {
    return &store->server->views[slot].links[store->number];
}

static inline void wr_store_add(_Atomic uint64_t *word, uint64_t value) {
    atomic_store_explicit(word, atomic_load_explicit(word, memory_order_relaxed) + value, memory_order_relaxed);
}

/* The command has its frames on disk, wholly, from before the start. */
static inline bool wr_store_replayed(const wr_store_link *link, uint64_t sequence) {
    return link->high_water >= wr_water(sequence + 1, 0);
}

/* The command has an effect on the log, and perhaps somebody waits for it. */
static inline void wr_store_effect(wr_store *store, wr_store_link *link, uint64_t sequence, uint8_t flags) {
    link->effect = sequence + 1;
    store->effects = true;
    if (flags & WR_FLAG_SYNCED) store->want_sync = true;
    if (flags & WR_FLAG_WRITTEN) store->want_written = true;
}

/* The command has no effect of its own (eliminated, masked, a barrier): a durability asked for with it is that of what came before.
 * Asked for in any case: a command behind it in the ring that wants none may have an effect before anybody confirms this one,
 * and would hold it up for ever. */
static inline void wr_store_no_effect(wr_store *store, uint8_t flags) {
    if (flags & WR_FLAG_SYNCED) store->want_sync = true;
    if (flags & WR_FLAG_WRITTEN) store->want_written = true;
}

/* -- store/store.c -- */
/* Execute one command of a link. `reason` is filled for WR_STORE_EVICTED. */
int wr_store_execute(wr_store *store, uint32_t slot, uint64_t sequence, wr_command *record, uint32_t *reason);

typedef struct {
    const uint8_t *id;
    const uint8_t *body; /* NULL: its owner is gone for good */
    uint32_t length;
    uint16_t meta_length;
    uint16_t part;
    uint8_t flags;
} wr_store_message;
/* Rules S5, S6, S12 for one message of a link: a new reference, a revival, or a new record. DONE, STALLED, or EVICTED (too big,
 * or no body and a body is needed); *masked: nothing was done, because the client is dying. */
int wr_store_take(wr_store *store, uint32_t slot, uint64_t sequence, const wr_store_message *message, bool *masked);

/* Room for a frame of at most `bytes`; NULL: the command must wait (or the log failed, or *too_big). */
uint8_t *wr_store_reserve(wr_store *store, uint64_t bytes, uint64_t *offset, bool *too_big);
/* A list that could not be kept is no list: its file is scanned when it is needed. */
void wr_store_spoil_list(wr_store *store);
void wr_store_drop_row(wr_store *store, uint64_t hash, uint32_t slot, uint64_t sequence, uint32_t hint);
/* One reference more or less of an entry. release: false when there was no such reference. */
void wr_store_hold(wr_store *store, wr_index_entry *entry, int holder);
bool wr_store_release(wr_store *store, wr_index_entry *entry, int holder);
/* Take all references away. */
void wr_store_release_all(wr_store *store, wr_index_entry *entry);

/* -- store/batch.c -- */
int wr_store_write_many(wr_store *store, uint32_t slot, uint64_t sequence, wr_command *record, const wr_command *c, uint32_t *reason);
/* The rows of a batch: put into the directory, or deleted. */
void wr_store_group_rows(wr_store *store, uint32_t slot, uint64_t sequence, const uint8_t first_id[16], uint64_t count, bool put);
/* A batch of a dead server's time, before this one is announced: what was done then, and is not on disk, is not done. Rows for its
 * readers. Then, when readers look at this one's index: what is on disk is done, and found there. */
void wr_store_take_batch_up(wr_store *store, uint32_t slot, uint64_t sequence, const wr_command *c);
void wr_store_batch_on_disk(wr_store *store, uint32_t slot, uint64_t sequence, const wr_command *c);

/* -- store/body.c -- */
/* Is this the message that the entry's record holds? False also when the record cannot be read. */
bool wr_store_same_body(wr_store *store, const wr_index_entry *entry, const wr_store_message *message);
void wr_store_close_file(wr_store *store, uint64_t file);

/* -- store/collect.c -- */
int wr_store_note_empty(wr_store *store, uint64_t file); /* it has no live record; it goes if it may */
void wr_store_let_empty_go(wr_store *store);
bool wr_store_gone_ready(wr_store *store); /* wr_store_take_gone has one; else what it waits for is asked for */
/* The file has become current; the one before ends at old_used. */
void wr_store_file_current(wr_store *store, uint64_t old_used);
/* Files below it hold only commands that are confirmed when everything posted until now is done. */
uint64_t wr_store_settle_gate(const wr_store *store);
void wr_store_settle(wr_store *store, bool timer);
/* A record of the file is about to lose its entry. */
void wr_store_ghost(wr_store *store, uint64_t file);
static inline uint8_t *wr_store_marks(const wr_store *store, uint64_t file) { return &store->marks[file & (store->summary_rows - 1)]; }
/* A control frame in `file` speaks of a record in `target`. */
void wr_store_pin(wr_store *store, uint64_t file, uint64_t target);

/* -- store/start.c -- */
bool wr_store_note_water(wr_store *store, uint64_t client_epoch, uint64_t water);
void wr_store_let_stalled_go_on(wr_store *store);
#endif
