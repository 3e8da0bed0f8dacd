/* Frames of a connection as its client sends them: bytes in, methods and whole messages out.
 *
 *     frame    type, channel:2, size:4, payload, 0xCE
 *     method   class:2, method:2, arguments       header   class:2, weight:2, size of the body:8, properties
 *
 * A message is a frame with basic.publish, one with its header, and those of its body; frames of other channels may lie between
 * them. One that lies in the input as a whole, frame by frame, is handed out where it lies. Else arguments and properties are
 * copied, and the body is filled as it comes, so that no frame of a body is ever kept.
 *
 * Invariants
 *   No length of the peer is believed before it is checked: a payload is at most frame_max bytes (RabbitMQ's fudge of 8 is in it), a body
 *   body_max, all bodies with their properties that are begun and not ended assembling_max, and there are at most CONTENTS_MAX of them.
 *   So a peer costs at most  2 × frame_max + assembling_max + CONTENTS_MAX × 0.7 KB.
 *   What is wrong is the last event; after it nothing is read.
 *   What an event points to is good until the next call. */
#ifndef WR_AMQP_FRAMES_H
#define WR_AMQP_FRAMES_H
#include "amqp/methods.h"

#define WR_AMQP_BYTES_SHOWN 16u /* in a text */
#define WR_AMQP_BYTES_ROOM 80u

/* Memory of a body that is filled as it comes: made with the size that its header says, given away with its message, or dropped. */
typedef struct {
    void *(*make)(uint64_t n, uint8_t **bytes); /* NULL: there is none */
    void (*drop)(void *body);
} wr_amqp_bodies;

/* `kind`: WR_AMQP_METHOD, _PUBLISH, _HEARTBEAT, _REFUSED (a message of the channel was larger than body_max: it is not handed out,
 * and the channel is to be closed), _FAULT (the connection is to be closed). */
typedef struct {
    uint8_t kind;
    uint16_t channel, code; /* code and `text`: of _REFUSED and _FAULT */
    uint32_t method;        /* its id; of _FAULT: to which it belongs, or 0 */
    const char *text;
    const uint8_t *arguments; /* of the method */
    const uint8_t *properties, *bytes;
    uint32_t arguments_n, properties_n;
    uint64_t bytes_n; /* of the body */
    void *body;       /* what was made for it, the receiver's from now on; NULL: it lies at `bytes` */
    bool held;        /* the arguments do not lie in the input */
} wr_amqp_event;

typedef struct wr_amqp_content wr_amqp_content;

typedef struct {
    uint32_t frame_max;
    uint64_t body_max, assembling_max;
    const wr_amqp_bodies *bodies;
    const uint8_t *at, *end; /* input that was not looked at */
    /* a frame whose payload has not come as a whole; not of a body */
    uint8_t *held;
    uint32_t held_n, held_room;
    bool held_used; /* the last event points to it */
    /* a frame of a body, in the middle of it */
    bool in_body;
    uint16_t body_channel;
    uint32_t body_n, body_left;
    uint8_t body_first[WR_AMQP_BYTES_SHOWN]; /* of its payload, for a text */
    /* messages that are begun, and channels of which nothing but the end is wanted; in no order */
    wr_amqp_content **contents;
    uint32_t contents_n, contents_room;
    wr_amqp_content *ended; /* the last event points to it */
    uint64_t assembling;    /* bytes of their bodies and properties */
    bool over;
    char text[256];
} wr_amqp_reader;

void wr_amqp_reader_open(wr_amqp_reader *reader, uint32_t frame_max, uint64_t body_max, uint64_t assembling_max, const wr_amqp_bodies *bodies);
void wr_amqp_reader_close(wr_amqp_reader *reader);

/* Give it input, which stays where it is until wr_amqp_next has said that there is no event. */
void wr_amqp_feed(wr_amqp_reader *reader, const void *bytes, uint64_t n);
/* The next event; false: none, all input is used. */
bool wr_amqp_next(wr_amqp_reader *reader, wr_amqp_event *event);
/* What an event says is wrong in itself, as its arguments: it becomes a fault, the last one. */
void wr_amqp_fault(wr_amqp_reader *reader, wr_amqp_event *event, uint16_t code, uint32_t method, uint16_t channel, const char *format, ...)
    __attribute__((format(printf, 6, 7)));
/* This side has closed a channel: messages of it are left out until channel.close or channel.close-ok comes. 0 or ENOMEM. */
int wr_amqp_closing(wr_amqp_reader *reader, uint16_t channel);
/* This side closes the connection: bodies that are begun are dropped, and others are left out as they come. */
void wr_amqp_leave_out(wr_amqp_reader *reader);

/* At most WR_AMQP_BYTES_SHOWN bytes as RabbitMQ's texts show them: <<"ab">>, <<0,1>>. */
const char *wr_amqp_bytes_text(char to[WR_AMQP_BYTES_ROOM], const uint8_t *bytes, uint32_t n);

/* bytes that are kept for the peer, for those that count them: bodies by the size that is announced, or by what has come of them */
uint64_t wr_amqp_kept(const wr_amqp_reader *reader);
uint64_t wr_amqp_came(const wr_amqp_reader *reader);
#endif
