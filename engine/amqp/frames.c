#include "amqp/frames.h"
#include "amqp/arguments.h"
#include "kernel/bytes.h"
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#define HEAD 7u /* of a frame */
#define FIRST_ROOM 512u
#define ROOM_KEPT 4096u /* of a connection that says nothing */
#define ARGUMENTS_KEPT 1024u /* more than any basic.publish has: one with more is wrong, and so is its beginning */
#define BODY_LEAST 8192u /* bytes of memory of a large body of which nothing has come: its first and its last page */
#define CLASS_BASIC (WR_AMQP_BASIC_PUBLISH >> 16)
/* Octets of a content header in front of its properties. */
#define HEADER 12u

/* What is awaited next on its channel. SKIPPED: a body that is too large. OVERRUN: more of a body came than was announced; RabbitMQ
 * waits for ever then, or for the next method. CLOSING: the end of the channel. */
enum { WANTS_HEADER, WANTS_BODY, SKIPPED, OVERRUN, CLOSING };

struct wr_amqp_content {
    uint16_t channel;
    uint8_t state;
    uint8_t *held; /* arguments, then properties */
    uint32_t arguments_n, properties_n;
    uint64_t size, filled;
    uint64_t charged; /* of `assembling` */
    void *body;
    uint8_t *bytes;
};

/* ---- contents ---- */

static void content_free(const wr_amqp_reader *r, wr_amqp_content *content) {
    if (!content) return;
    if (content->body) r->bodies->drop(content->body);
    free(content->held);
    free(content);
}

static wr_amqp_content *content_of(const wr_amqp_reader *r, uint16_t channel) {
    for (uint32_t i = 0; i < r->contents_n; i++)
        if (r->contents[i]->channel == channel) return r->contents[i];
    return NULL;
}

/* What has come of a message is not wanted any more. */
static void content_drop(wr_amqp_reader *r, wr_amqp_content *content) {
    if (content->body) r->bodies->drop(content->body);
    free(content->held);
    content->body = NULL;
    content->held = NULL;
    r->assembling -= content->charged;
    content->charged = 0;
}

/* Out of the list: its memory is the caller's. */
static void content_out(wr_amqp_reader *r, wr_amqp_content *content) {
    r->assembling -= content->charged;
    content->charged = 0;
    for (uint32_t i = 0; i < r->contents_n; i++) {
        if (r->contents[i] != content) continue;
        r->contents[i] = r->contents[--r->contents_n];
        return;
    }
}

static wr_amqp_content *content_new(wr_amqp_reader *r, uint16_t channel, uint8_t state) {
    if (r->contents_n == r->contents_room) {
        const uint32_t room = r->contents_room ? 2 * r->contents_room : 4;
        wr_amqp_content **more = realloc(r->contents, room * sizeof *more);
        if (!more) return NULL;
        r->contents = more;
        r->contents_room = room;
    }
    wr_amqp_content *content = calloc(1, sizeof *content);
    if (!content) return NULL;
    content->channel = channel;
    content->state = state;
    return r->contents[r->contents_n++] = content;
}

/* ---- the reader ---- */

void wr_amqp_reader_open(wr_amqp_reader *r, uint32_t frame_max, uint64_t body_max, uint64_t assembling_max, const wr_amqp_bodies *bodies) {
    *r = (wr_amqp_reader){.frame_max = frame_max, .body_max = body_max, .assembling_max = assembling_max, .bodies = bodies};
}

void wr_amqp_reader_close(wr_amqp_reader *r) {
    for (uint32_t i = 0; i < r->contents_n; i++) content_free(r, r->contents[i]);
    content_free(r, r->ended);
    free(r->contents);
    free(r->held);
    *r = (wr_amqp_reader){.over = true};
}

void wr_amqp_feed(wr_amqp_reader *r, const void *bytes, uint64_t n) {
    r->at = bytes;
    r->end = n ? r->at + n : r->at;
}

uint64_t wr_amqp_kept(const wr_amqp_reader *r) {
    uint64_t kept = r->held_room + r->assembling;
    for (uint32_t i = 0; i < r->contents_n; i++)
        if (r->contents[i]->held) kept += r->contents[i]->arguments_n;
    return kept;
}

uint64_t wr_amqp_came(const wr_amqp_reader *r) {
    uint64_t came = wr_amqp_kept(r);
    for (uint32_t i = 0; i < r->contents_n; i++) {
        const wr_amqp_content *content = r->contents[i];
        const uint64_t left = content->size - content->filled;
        if (content->body && left > BODY_LEAST) came -= left - BODY_LEAST;
    }
    return came;
}

void wr_amqp_fault(wr_amqp_reader *r, wr_amqp_event *event, uint16_t code, uint32_t method, uint16_t channel, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(r->text, sizeof r->text, format, arguments);
    va_end(arguments);
    r->over = true;
    *event = (wr_amqp_event){.kind = WR_AMQP_FAULT, .code = code, .method = method, .channel = channel, .text = r->text};
}

const char *wr_amqp_bytes_text(char to[WR_AMQP_BYTES_ROOM], const uint8_t *bytes, uint32_t n) {
    bool text = n > 0;
    for (uint32_t i = 0; i < n; i++) text = text && bytes[i] >= ' ' && bytes[i] <= '~' && bytes[i] != '"' && bytes[i] != '\\';
    int at = snprintf(to, WR_AMQP_BYTES_ROOM, "<<");
    if (text) at += snprintf(to + at, WR_AMQP_BYTES_ROOM - (size_t)at, "\"%.*s\"", (int)n, (const char *)bytes);
    for (uint32_t i = 0; !text && i < n; i++) at += snprintf(to + at, WR_AMQP_BYTES_ROOM - (size_t)at, "%s%u", i ? "," : "", bytes[i]);
    snprintf(to + at, WR_AMQP_BYTES_ROOM - (size_t)at, ">>");
    return to;
}

/* A fault of a frame whose payload has n octets, of which `payload` are the first ones. */
static bool frame_wrong(wr_amqp_reader *r, wr_amqp_event *event, uint8_t type, uint16_t channel, const uint8_t *payload, uint32_t n, uint16_t code,
                        const char *why) {
    char text[WR_AMQP_BYTES_ROOM];
    const bool whole = n <= WR_AMQP_BYTES_SHOWN;
    wr_amqp_fault(r, event, code, 0, channel, "type %u, %s octets = %s%s", type, whole ? "all" : "first 16",
                  wr_amqp_bytes_text(text, payload, whole ? n : WR_AMQP_BYTES_SHOWN), why);
    return true;
}

static bool marker_wrong(wr_amqp_reader *r, wr_amqp_event *event, uint8_t type, uint16_t channel, const uint8_t *payload, uint32_t n, uint8_t end) {
    char why[40];
    snprintf(why, sizeof why, ": {invalid_frame_end_marker,%u}", end);
    return frame_wrong(r, event, type, channel, payload, n, WR_AMQP_FRAME_ERROR, why);
}

static bool no_memory(wr_amqp_reader *r, wr_amqp_event *event, uint16_t channel) {
    wr_amqp_fault(r, event, WR_AMQP_RESOURCE_ERROR, 0, channel, "the gateway has no memory for this frame");
    return true;
}

/* Copy input to what is held of a frame until there are n bytes. 1: there are, 0: not yet, -1: no memory. */
static int hold(wr_amqp_reader *r, uint32_t n) {
    const uint64_t left = (uint64_t)(r->end - r->at);
    const uint32_t more = n - r->held_n < left ? n - r->held_n : (uint32_t)left;
    if (r->held_room < r->held_n + more) { /* as it comes, not as it is announced */
        uint32_t room = r->held_room ? r->held_room : FIRST_ROOM;
        while (room < r->held_n + more) room *= 2;
        uint8_t *held = realloc(r->held, room);
        if (!held) return -1;
        r->held = held;
        r->held_room = room;
    }
    if (more) memcpy(r->held + r->held_n, r->at, more);
    r->at += more;
    r->held_n += more;
    return r->held_n == n;
}

/* ---- messages ---- */

static uint32_t event_method(const wr_amqp_content *content) { return content && content->state != CLOSING ? WR_AMQP_BASIC_PUBLISH : 0; }

/* A frame that is not what its channel waits for. */
static bool unexpected(wr_amqp_reader *r, wr_amqp_event *event, uint16_t channel, const wr_amqp_content *content) {
    const char *wanted = !content                        ? "expected method frame, got non method frame instead"
                         : content->state == WANTS_HEADER ? "expected content header for class 60, got non content header frame instead"
                                                          : "expected content body, got non content body frame instead";
    wr_amqp_fault(r, event, WR_AMQP_UNEXPECTED_FRAME, event_method(content), channel, "%s", wanted);
    return true;
}

/* A message has come as a whole. */
static bool complete(wr_amqp_reader *r, wr_amqp_event *event, wr_amqp_content *content) {
    content_out(r, content);
    if (content->state == SKIPPED) {
        snprintf(r->text, sizeof r->text, "message size %llu is larger than configured max size %llu", (unsigned long long)content->size,
                 (unsigned long long)r->body_max);
        *event = (wr_amqp_event){.kind = WR_AMQP_REFUSED, .channel = content->channel, .code = WR_AMQP_PRECONDITION_FAILED,
                                 .method = WR_AMQP_BASIC_PUBLISH, .text = r->text};
        content_free(r, content);
        return true;
    }
    *event = (wr_amqp_event){.kind = WR_AMQP_PUBLISH, .channel = content->channel, .method = WR_AMQP_BASIC_PUBLISH, .arguments = content->held,
                             .arguments_n = content->arguments_n, .properties = content->held + content->arguments_n,
                             .properties_n = content->properties_n, .bytes = content->bytes, .bytes_n = content->size, .body = content->body,
                             .held = true};
    content->body = NULL;
    r->ended = content;
    return true;
}

/* A basic.publish whose message does not lie behind it as a whole. True: *event is one. */
static bool begin(wr_amqp_reader *r, wr_amqp_event *event, uint16_t channel, const uint8_t *arguments, uint32_t n) {
    if (r->contents_n >= WR_AMQP_CONTENTS_MAX) {
        wr_amqp_fault(r, event, WR_AMQP_RESOURCE_ERROR, WR_AMQP_BASIC_PUBLISH, channel,
                      "messages are begun on %d channels at once: end some before others are begun", WR_AMQP_CONTENTS_MAX);
        return true;
    }
    wr_amqp_content *content = content_new(r, channel, WANTS_HEADER);
    if (n > ARGUMENTS_KEPT) n = ARGUMENTS_KEPT;
    if (!content || !(content->held = malloc(n ? n : 1))) return no_memory(r, event, channel);
    if (n) memcpy(content->held, arguments, n);
    content->arguments_n = n;
    return false;
}

/* Does the body that is announced find room? True: no, and *event says so. One that is too large for a message is left out, and refused
 * when it has come, as RabbitMQ does it. */
static bool too_large(wr_amqp_reader *r, wr_amqp_event *event, wr_amqp_content *content) {
    if (content->size > r->body_max) {
        content_drop(r, content);
        content->state = SKIPPED;
        return false;
    }
    content->charged = content->size + content->properties_n;
    r->assembling += content->charged;
    if (r->assembling <= r->assembling_max) return false;
    wr_amqp_fault(r, event, WR_AMQP_RESOURCE_ERROR, WR_AMQP_BASIC_PUBLISH, content->channel,
                  "messages that are begun on all channels of a connection may have %llu bytes together: end some before others are begun",
                  (unsigned long long)r->assembling_max);
    return true;
}

/* A content header. True: *event is one. */
static bool header(wr_amqp_reader *r, wr_amqp_event *event, uint16_t channel, const uint8_t *payload, uint32_t n) {
    wr_amqp_content *content = content_of(r, channel);
    if (content && content->state == CLOSING) return false;
    if (!content || content->state != WANTS_HEADER) return unexpected(r, event, channel, content);
    if (wr_get16(payload) != CLASS_BASIC) {
        wr_amqp_fault(r, event, WR_AMQP_UNEXPECTED_FRAME, WR_AMQP_BASIC_PUBLISH, channel,
                      "expected content header for class 60, got one for class %u instead", wr_get16(payload));
        return true;
    }
    if (wr_get16(payload + 2)) return unexpected(r, event, channel, content); /* weight */
    content->size = wr_get64(payload + 4);
    content->properties_n = n - HEADER;
    if (too_large(r, event, content)) return true;
    if (content->state == SKIPPED) return false;
    uint8_t *held = realloc(content->held, (uint64_t)content->arguments_n + content->properties_n + 1);
    if (!held) return no_memory(r, event, channel);
    content->held = held;
    if (content->properties_n) memcpy(held + content->arguments_n, payload + HEADER, content->properties_n);
    if (!content->size) return complete(r, event, content);
    content->state = WANTS_BODY;
    content->body = r->bodies->make(content->size, &content->bytes);
    return !content->body && no_memory(r, event, channel);
}

/* ---- frames of a body ---- */

/* The head of one. True: *event is a fault. */
static bool body_begins(wr_amqp_reader *r, wr_amqp_event *event, uint16_t channel, uint32_t n) {
    wr_amqp_content *content = content_of(r, channel);
    if (!content || content->state == WANTS_HEADER) return unexpected(r, event, channel, content);
    r->in_body = true;
    r->body_channel = channel;
    r->body_left = r->body_n = n;
    if (content->state == CLOSING || content->state == OVERRUN || n <= content->size - content->filled) return false;
    content_drop(r, content);
    content->state = OVERRUN;
    return false;
}

/* Input of one, until its end. True: *event is one. */
static bool body_goes_on(wr_amqp_reader *r, wr_amqp_event *event) {
    wr_amqp_content *content = content_of(r, r->body_channel); /* NULL: its channel is over */
    const uint64_t left = (uint64_t)(r->end - r->at);
    const uint32_t n = r->body_left < left ? r->body_left : (uint32_t)left;
    if (content && (content->state == WANTS_BODY || content->state == SKIPPED)) {
        if (n && content->body) memcpy(content->bytes + content->filled, r->at, n);
        content->filled += n;
    }
    for (uint32_t i = r->body_n - r->body_left, j = 0; i < WR_AMQP_BYTES_SHOWN && j < n; i++, j++) r->body_first[i] = r->at[j];
    r->at += n;
    r->body_left -= n;
    if (r->body_left || r->at == r->end) return false;
    r->in_body = false;
    const uint8_t end = *r->at++;
    if (end != WR_AMQP_FRAME_END) return marker_wrong(r, event, WR_AMQP_FRAME_BODY, r->body_channel, r->body_first, r->body_n, end);
    if (!content || (content->state != WANTS_BODY && content->state != SKIPPED) || content->filled != content->size) return false;
    return complete(r, event, content);
}

/* ---- methods ---- */

/* A message that lies behind its basic.publish, frame by frame, in the input: the usual case. */
static bool whole(wr_amqp_reader *r, wr_amqp_event *event, uint16_t channel, const uint8_t *arguments, uint32_t arguments_n) {
    const uint8_t *at = r->at;
    const uint64_t least = HEAD + HEADER + 2 + 1;
    if ((uint64_t)(r->end - at) < least || at[0] != WR_AMQP_FRAME_HEADER || wr_get16(at + 1) != channel) return false;
    const uint32_t n = wr_get32(at + 3);
    if (n > r->frame_max || n < HEADER || (uint64_t)(r->end - at) < HEAD + (uint64_t)n + 1 || at[HEAD + n] != WR_AMQP_FRAME_END) return false;
    if (wr_get32(at + HEAD) != CLASS_BASIC << 16) return false; /* class, and weight */
    const uint64_t size = wr_get64(at + HEAD + 4);
    if (size > r->frame_max || size > r->body_max) return false;
    const uint8_t *properties = at + HEAD + HEADER;
    at += HEAD + n + 1;
    const uint8_t *body = at;
    if (size) {
        if ((uint64_t)(r->end - at) < HEAD + size + 1 || at[0] != WR_AMQP_FRAME_BODY || wr_get16(at + 1) != channel || wr_get32(at + 3) != size ||
            at[HEAD + size] != WR_AMQP_FRAME_END)
            return false;
        body = at + HEAD;
        at = body + size + 1;
    }
    r->at = at;
    *event = (wr_amqp_event){.kind = WR_AMQP_PUBLISH, .channel = channel, .method = WR_AMQP_BASIC_PUBLISH, .arguments = arguments,
                             .arguments_n = arguments_n, .properties = properties, .properties_n = n - HEADER, .bytes = body, .bytes_n = size,
                             .held = r->held_used};
    return true;
}

/* True: *event is one. */
static bool method(wr_amqp_reader *r, wr_amqp_event *event, uint16_t channel, const uint8_t *payload, uint32_t n) {
    const uint32_t id = wr_get32(payload);
    wr_amqp_content *content = r->contents_n ? content_of(r, channel) : NULL;
    if (content && content->state == CLOSING) {
        if (id != WR_AMQP_CHANNEL_CLOSE && id != WR_AMQP_CHANNEL_CLOSE_OK && id != WR_AMQP_CHANNEL_OPEN) return false;
        content_out(r, content);
        content_free(r, content);
        content = NULL;
    }
    if (content) return unexpected(r, event, channel, content);
    if (id == WR_AMQP_BASIC_PUBLISH && channel) {
        if (whole(r, event, channel, payload + 4, n - 4)) return true;
        return begin(r, event, channel, payload + 4, n - 4);
    }
    const wr_amqp_method *known = wr_amqp_method_of(id);
    if (!known)
        wr_amqp_fault(r, event, WR_AMQP_NOT_IMPLEMENTED, id, channel, "there is no method %u of class %u", id & 0xffff, id >> 16);
    else if (known->content && !channel)
        wr_amqp_fault(r, event, WR_AMQP_CHANNEL_ERROR, id, channel, "%s is for a channel, and 0 is the connection", known->name);
    else if (known->content || !known->by_client)
        wr_amqp_fault(r, event, WR_AMQP_COMMAND_INVALID, id, channel, "unimplemented method");
    else
        *event = (wr_amqp_event){.kind = WR_AMQP_METHOD, .channel = channel, .method = id, .arguments = payload + 4, .arguments_n = n - 4};
    return true;
}

/* ---- frames ---- */

/* Is the payload not too large? True: it is, and *event is a fault. */
static bool frame_too_large(wr_amqp_reader *r, wr_amqp_event *event, const uint8_t *frame) {
    const uint32_t n = wr_get32(frame + 3);
    if (n <= r->frame_max) return false;
    wr_amqp_fault(r, event, WR_AMQP_FRAME_ERROR, 0, wr_get16(frame + 1), "type %u, all octets = <<>>: {frame_too_large,%u,%u}", frame[0], n,
                  r->frame_max - WR_AMQP_FRAME_OVERHEAD);
    return true;
}

static bool is_body(const uint8_t *frame) { return frame[0] == WR_AMQP_FRAME_BODY && wr_get16(frame + 1); }

/* A whole frame of n bytes of payload that is not of a body. True: *event is one. */
static bool frame_ends(wr_amqp_reader *r, wr_amqp_event *event, const uint8_t *frame, uint32_t n) {
    const uint16_t channel = wr_get16(frame + 1);
    const uint8_t *payload = frame + HEAD;
    if (payload[n] != WR_AMQP_FRAME_END) return marker_wrong(r, event, frame[0], channel, payload, n, payload[n]);
    const bool heartbeat = frame[0] == WR_AMQP_FRAME_HEARTBEAT && !n;
    if (frame[0] == WR_AMQP_FRAME_METHOD && n >= 4) return method(r, event, channel, payload, n);
    if (frame[0] == WR_AMQP_FRAME_HEADER && n >= HEADER && channel) return header(r, event, channel, payload, n);
    if ((heartbeat && channel) || (frame[0] == WR_AMQP_FRAME_HEADER && n >= HEADER) || frame[0] == WR_AMQP_FRAME_BODY)
        return frame_wrong(r, event, frame[0], channel, payload, n, WR_AMQP_UNEXPECTED_FRAME, "");
    if (!heartbeat) return frame_wrong(r, event, frame[0], channel, payload, n, WR_AMQP_FRAME_ERROR, ": unknown_frame");
    *event = (wr_amqp_event){.kind = WR_AMQP_HEARTBEAT};
    return true;
}

/* The next frame, or what there is of it. True: *event is one. */
static bool frame(wr_amqp_reader *r, wr_amqp_event *event) {
    const uint8_t *at = r->at;
    if (!r->held_n && r->end - at >= (int64_t)HEAD) {
        if (frame_too_large(r, event, at)) return true;
        const uint32_t n = wr_get32(at + 3);
        if (is_body(at)) {
            r->at += HEAD;
            return body_begins(r, event, wr_get16(at + 1), n);
        }
        if ((uint64_t)(r->end - at) > HEAD + (uint64_t)n) {
            r->at += HEAD + n + 1;
            return frame_ends(r, event, at, n);
        }
    }
    if (r->held_n < HEAD) {
        const int there = hold(r, HEAD);
        if (there < 0) return no_memory(r, event, 0);
        if (!there) return false;
        if (frame_too_large(r, event, r->held)) return true;
    }
    const uint32_t n = wr_get32(r->held + 3);
    if (is_body(r->held)) {
        r->held_n = 0;
        return body_begins(r, event, wr_get16(r->held + 1), n);
    }
    const int there = hold(r, HEAD + n + 1);
    if (there < 0) return no_memory(r, event, 0);
    if (!there) return false;
    r->held_used = true;
    return frame_ends(r, event, r->held, n);
}

static void held_is_free(wr_amqp_reader *r) {
    r->held_used = false;
    r->held_n = 0;
    if (r->held_room <= ROOM_KEPT) return;
    free(r->held);
    r->held = NULL;
    r->held_room = 0;
}

bool wr_amqp_next(wr_amqp_reader *r, wr_amqp_event *event) {
    for (;;) {
        if (r->held_used) held_is_free(r);
        content_free(r, r->ended);
        r->ended = NULL;
        if (r->over || r->at == r->end) return false;
        if (r->in_body ? body_goes_on(r, event) : frame(r, event)) return true;
    }
}

int wr_amqp_closing(wr_amqp_reader *r, uint16_t channel) {
    if (r->over) return 0;
    wr_amqp_content *content = content_of(r, channel);
    if (!content && !(content = content_new(r, channel, CLOSING))) return ENOMEM;
    content_drop(r, content);
    content->state = CLOSING;
    return 0;
}

void wr_amqp_leave_out(wr_amqp_reader *r) {
    r->body_max = 0;
    for (uint32_t i = 0; i < r->contents_n; i++) {
        if (r->contents[i]->state != WANTS_BODY) continue;
        content_drop(r, r->contents[i]);
        r->contents[i]->state = SKIPPED;
    }
}
