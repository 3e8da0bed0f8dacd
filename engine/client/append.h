/* Appending to topics, free of CPython: one command, and the place where its answer will be. See client/attachment.h for what the
 * functions may be called by, and what their errors mean. */
#ifndef WR_CLIENT_APPEND_H
#define WR_CLIENT_APPEND_H
#include "client/attachment.h"

typedef enum {
    WR_APPEND_NOW,
    WR_APPEND_LATER, /* their properties say when they come (topics/scheduled.h) */
    WR_APPEND_HALF   /* it is one, and a half message (topics/halves.h) */
} wr_append_kind;

/* What the records of one command have in common. */
typedef struct {
    uint32_t server, topic, queue;
    uint64_t born_ms; /* since 1970 */
    int level;
    wr_append_kind kind;
} wr_append;

/* One record; its properties are good ones (topics/properties.h), else the worker closes the link. */
typedef struct {
    const void *properties, *body;
    uint32_t properties_length;
    uint32_t body_length;
} wr_append_record;

/* Room for n commands (1 … WR_ROUTE_TOPICS_MAX) to the topic worker: in the ring, and for the answers of those that were there before. 0,
 * EAGAIN, ECONNRESET. */
int wr_append_room(wr_attachment *a, uint32_t server, uint32_t n, wr_condition *blocked);

/* Bytes of the arena that a command takes. */
static inline uint64_t wr_append_bytes(uint64_t records_n, uint64_t properties_and_bodies) {
    return (records_n > 1 ? records_n * sizeof(wr_append_part) : 0) + properties_and_bodies;
}

/* Prepare one command with 1 … WR_APPEND_COUNT_MAX records, which get consecutive offsets; the answer will be at `answer`, which stays
 * until it is taken or forgotten. 0, EAGAIN, EMSGSIZE, ENOMEM, ECONNRESET. */
int wr_attachment_append(wr_attachment *a, const wr_append *to, const wr_append_record *records, uint32_t n, wr_answer *answer,
                         uint64_t *sequence, wr_condition *blocked);
#endif
