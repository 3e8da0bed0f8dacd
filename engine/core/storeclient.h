/* The message store as its clients use it: write, remove, read, without a call to the server wherever possible.
 * Used by the Client type (application processes) and by the queue worker (towards the stores). One thread at a time.
 * Rules S2, S3, S10 of the store; design note 001, section 4. */
#ifndef WR_STORECLIENT_H
#define WR_STORECLIENT_H
#include "log.h"
#include "port.h"

#define WR_STORE_FILES 8

typedef struct {
    wr_port *port;
    uint32_t server; /* WR_SERVER_STORE_PERSISTENT or _TRANSIENT */
    /* regions of the store, opened by Python, replaced when server.epoch or index_generation changes */
    _Atomic uint64_t *directory;
    uint32_t directory_rows;
    uint8_t *index; /* header page + rows */
    uint64_t index_bytes;
    wr_summary_row *summary;
    uint32_t summary_rows;
    uint8_t *images;
    uint32_t images_n;
    uint64_t file_bytes;
    int directory_fd; /* of the folder with the .rdq files, for readers */
    uint64_t node_id;
    /* other clients' regions, looked up lazily: Python attaches them; NULL until then */
    wr_view *(*view_of)(void *context, uint32_t slot, uint32_t generation);
    void *context;
    /* files that were read last; closed by wr_store_client_close. All zero: none. */
    struct {
        uint64_t file; /* + 1, 0: none */
        uint64_t salt;
        int fd;
    } files[WR_STORE_FILES];
    uint32_t files_next;
} wr_store_client;

/* Close what the client opened by itself: call it when the store's regions are opened anew, and at the end. */
void wr_store_client_close(wr_store_client *s);

/* Prepare one STORE_WRITE whose blob lies at `body` (length bytes, meta_length of them metadata). owner_tag: 0 for the port's own arena,
 * else generation << 16 | slot + 1. Does steps F and C; the caller submits (step S). 0 or EAGAIN (ring or directory bucket full). */
int wr_store_client_write(wr_store_client *s, const uint8_t id[16], uint64_t body, uint32_t length, uint16_t meta_length,
                          uint64_t owner_tag, uint8_t flags, uint64_t *sequence);

/* Prepare the removal of n ids: eliminates what is still flying (no command), sends the rest as one OP_STORE_REMOVE.
 * *eliminated counts the former. 0, EAGAIN (ring or arena full; nothing was done). n is at most 4096. */
int wr_store_client_remove(wr_store_client *s, const uint8_t (*ids)[16], uint32_t n, uint32_t *eliminated);

/* Take back a prepared write that is not submitted (a later one of the same command group failed): its directory row, then the record
 * and all later ones of this server. */
void wr_store_client_abandon(wr_store_client *s, uint64_t sequence);

/* Find a body. Returns 0 and the bytes in *to (malloc'd, caller frees; meta_length of them metadata), ENOENT (not there, or no reference),
 * ESTALE (a region of the store was replaced: re-open and try again), EBADMSG (corrupt on disk). */
int wr_store_client_read(wr_store_client *s, const uint8_t id[16], uint8_t **to, uint32_t *length, uint16_t *meta_length);
#endif
