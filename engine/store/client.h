/* The message store as its clients use it: write, remove, read, without a call to the server wherever possible.
 * Used by the Client type (application processes) and by the queue worker (towards the stores). One thread at a time.
 * Rules S2, S3, S10 of the store; design notes 001, section 4, and 003, sections 1 and 2. */
#ifndef WR_STORECLIENT_H
#define WR_STORECLIENT_H
#include "store/index_reader.h"
#include "kernel/log.h"
#include "store/owner.h"
#include "ipc/core/port.h"

#define WR_STORE_FILES 64 /* power of two; descriptors of the files that were read last, by file number modulo this */

#define WR_BATCH_MESSAGES 1024        /* a batch is cut at so many messages, or bytes of bodies */
#define WR_BATCH_BYTES (256u << 10)

typedef struct {
    wr_port *port;
    uint32_t server; /* WR_SERVER_STORE_PERSISTENT or _TRANSIENT */
    uint64_t epoch;  /* of the server that the regions are of; 0: whichever is there */
    /* regions of the store, opened by Python, replaced when server.epoch changes; the index is followed by itself */
    _Atomic uint64_t *directory;
    uint32_t directory_rows;
    wr_summary_row *summary;
    uint32_t summary_rows;
    uint8_t *images;
    uint32_t images_n;
    uint64_t file_bytes;
    int directory_fd; /* of the folder with the .rdq files, for readers */
    uint64_t node_id;
    /* Own commands from `rows_from` on have their rows in this directory, those before may not (a server was restarted). Only with
     * `rows_known`; without, none is taken for granted. */
    bool rows_known;
    uint64_t rows_from;
    /* other clients' regions, looked up lazily: Python attaches them; NULL until then */
    wr_view *(*view_of)(void *context, uint32_t slot, uint32_t generation);
    void *context;
    /* what follows is the client's own: all zero at first, given back by wr_store_client_close */
    wr_index_reader index;
    bool index_open;
    bool no_nowait; /* the file system reads in no other way than waiting */
    uint32_t image_hint;
    uint64_t retired_seen; /* server.retired_n when the descriptors were looked through last */
    struct {
        wr_file_ref file;
        uint64_t salt;
        int fd;
    } files[WR_STORE_FILES];
} wr_store_client;

/* Close what the client opened by itself: call it when the store's regions are opened anew, and at the end. */
void wr_store_client_close(wr_store_client *s);

/* Prepare one STORE_WRITE whose blob lies at `body` (length bytes, meta_length of them metadata). owner_tag: 0 for the port's own arena,
 * else wr_owner_tag. Does steps F and C; the caller submits (step S). 0 or EAGAIN (ring or directory bucket full). */
int wr_store_client_write(wr_store_client *s, const uint8_t id[16], uint64_t body, uint32_t length, uint16_t meta_length,
                          uint64_t owner_tag, uint8_t flags, uint64_t *sequence);

/* After a write of `id`: fetch what the next one will touch, if its id is the next (the server changed those lines last). */
void wr_store_client_prefetch_write(wr_store_client *s, const uint8_t id[16]);

typedef struct {
    const void *bytes;
    uint32_t length;
} wr_store_body;

/* How many of n bodies go into one batch: at least 1 (a large one alone). */
uint32_t wr_store_batch_cut(const wr_store_body *bodies, uint32_t n);

/* Prepare one STORE_WRITE_MANY: n (1 ... WR_BATCH_COUNT_MAX) messages whose ids count up from `first` in their last 8 bytes, without
 * wrapping. Copies the bodies into the arena, does steps F and C; the caller submits. 0; EAGAIN (ring, arena or a directory bucket is full:
 * nothing was done); EMSGSIZE (never fits into the arena); ENOMEM. */
int wr_store_client_write_many(wr_store_client *s, const uint8_t first[16], const wr_store_body *bodies, uint32_t n, uint8_t flags,
                               uint64_t *sequence);

/* Prepare the removal of n ids: eliminates what is still flying (no command), sends the rest as one OP_STORE_REMOVE.
 * *eliminated counts the former. 0, EAGAIN (ring or arena full; nothing was done). n is at most 4096. */
int wr_store_client_remove(wr_store_client *s, const uint8_t (*ids)[16], uint32_t n, uint32_t *eliminated);

/* Does a command of mine from `from` on remove this id? *sequence: the last that does. */
bool wr_store_client_removes(const wr_store_client *s, uint64_t from, const uint8_t id[16], uint64_t *sequence);

/* Take back a prepared write that is not submitted (a later one of the same command group failed): its directory rows, then the record
 * and all later ones of this server. */
void wr_store_client_abandon(wr_store_client *s, uint64_t sequence);

/* A newer server has begun to start: files that the index of this one leads into may be gone. */
bool wr_store_client_left_behind(const wr_store_client *s);

/* ---- reading, in two steps, so that the caller can make room of the right size in between ---- */

typedef struct {
    uint32_t length; /* metadata and payload */
    uint16_t meta_length;
    bool in_file;
    wr_index_entry entry; /* in a file: image or disk */
    /* in an arena: the directory's row and word (none: my own ring), whose blob, and where */
    wr_row_ref row;
    uint64_t word;
    const wr_view *view, *owner;
    uint64_t position;
} wr_store_place;

/* Where a message lies now. 0; ENOENT (not there, or no reference); ESTALE (the index is being replaced, or its server died in the middle of
 * a change, or another one has taken over: wait, open the regions anew, and try again); ENXIO (not there, unless it is in the region of a client that cannot be attached here); EBADMSG (the index says nonsense); or an errno. */
int wr_store_client_find(wr_store_client *s, const uint8_t id[16], wr_store_place *place);

/* Copy its metadata to `meta` (meta_length bytes; NULL: not wanted) and its payload to `to` (the other bytes), each once. 0; EAGAIN (it
 * moved: find it again); EINPROGRESS (it is on disk and not in memory, and `wait` is false); EBADMSG (the bytes there are not what was
 * written: only finding the same place again makes it damage, see wr_store_same_place); EUCLEAN (the first page of the file is not what it
 * should be: the same); ENOENT (it is not there: the same); or an errno. */
int wr_store_client_take(wr_store_client *s, const uint8_t id[16], const wr_store_place *place, void *meta, void *to, bool wait);

static inline bool wr_store_same_place(const wr_store_place *a, const wr_store_place *b) {
    return a->in_file && b->in_file && a->entry.file == b->entry.file && a->entry.offset == b->entry.offset &&
           a->entry.total_size == b->entry.total_size;
}

/* Fetch what a find, and then a take, will touch. They never wait and never fail. */
void wr_store_client_prefetch(wr_store_client *s, const uint8_t id[16]);
void wr_store_place_prefetch(wr_store_client *s, const wr_store_place *place);

/* Both steps: 0 and the bytes in *to (malloc'd, caller frees; meta_length of them metadata), ENOENT, ESTALE, EBADMSG (corrupt on disk). */
int wr_store_client_read(wr_store_client *s, const uint8_t id[16], uint8_t **to, uint32_t *length, uint16_t *meta_length);

/* Close the descriptors of files that are gone: an open one keeps their blocks. Costs nothing when no file went. */
void wr_store_client_purge(wr_store_client *s);

/* Give another store client's open descriptor of a file to this one: what a thread without the GIL opened, for the next read with it. */
void wr_store_client_move_file(wr_store_client *from, wr_store_client *to, uint64_t file);
#endif
