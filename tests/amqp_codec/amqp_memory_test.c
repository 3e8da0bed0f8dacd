/* A reader of AMQP's frames whose memory runs out. Goal: the connection ends with RESOURCE_ERROR, and nothing leaks, is handed out twice or
 * comes after that; a channel that could not be put aside is put aside when it is tried again.
 * Method: a session whose messages lie in each other's way, in pieces, so that methods, arguments, properties and bodies are kept; the
 * n-th allocation of it fails, for each n, and then each body. */
#include "amqp/arguments.h"
#include "amqp/frames.h"
#include "kernel/bytes.h"
#include "support/scarce.h"
#include <stdlib.h>
#include <string.h>

enum { CHANNELS = 12, BODY = 700, PIECE = 97, METHOD = 6000, MESSAGES = CHANNELS - 1 };

static uint8_t session[1 << 16];
static uint64_t session_n;
static int64_t bodies_n, bodies_left; /* made and not dropped; how many are made before one fails */

static void *body_make(uint64_t n, uint8_t **bytes) {
    if (!bodies_left--) return NULL;
    bodies_n++;
    return *bytes = malloc(n);
}

static void body_drop(void *body) {
    bodies_n--;
    free(body);
}

static const wr_amqp_bodies BODIES = {body_make, body_drop};

static void frame(uint8_t type, uint16_t channel, const void *payload, uint32_t n) {
    uint8_t *at = session + session_n;
    CHECK(session_n + n + 8 <= sizeof session);
    at[0] = type;
    wr_put16(at + 1, channel);
    wr_put32(at + 3, n);
    memcpy(at + 7, payload, n);
    at[7 + n] = WR_AMQP_FRAME_END;
    session_n += n + 8;
}

/* Each channel begins a message; a long method; then the bodies; the last channel is closed by this side. */
static void make_session(void) {
    static uint8_t payload[METHOD] = {0}, body[BODY];
    wr_put32(payload, WR_AMQP_BASIC_PUBLISH);
    for (uint16_t channel = 1; channel <= CHANNELS; channel++) frame(WR_AMQP_FRAME_METHOD, channel, payload, 4 + 2 + 1 + 1 + 1);
    memset(payload, 0, 4);
    wr_put16(payload, 60);
    wr_put64(payload + 4, BODY);
    for (uint16_t channel = 1; channel <= CHANNELS; channel++) frame(WR_AMQP_FRAME_HEADER, channel, payload, 14);
    memset(payload, 0, sizeof payload);
    wr_put32(payload, WR_AMQP_CONNECTION_SECURE_OK);
    wr_put32(payload + 4, METHOD - 8);
    frame(WR_AMQP_FRAME_METHOD, 0, payload, METHOD);
    memset(body, 'b', sizeof body);
    for (uint16_t channel = 1; channel <= CHANNELS; channel++) frame(WR_AMQP_FRAME_BODY, channel, body, BODY);
}

/* How many messages and methods came; *fault: its code. */
static int read_session(uint16_t *fault) {
    wr_amqp_reader r;
    wr_amqp_event event;
    int came = 0;
    *fault = 0;
    wr_amqp_reader_open(&r, 8192, 1 << 20, 1 << 24, &BODIES);
    for (uint64_t at = 0; at < session_n; at += PIECE) {
        wr_amqp_feed(&r, session + at, session_n - at < PIECE ? session_n - at : PIECE);
        while (wr_amqp_next(&r, &event)) {
            CHECK(!*fault);
            if (event.kind == WR_AMQP_FAULT) {
                *fault = event.code;
                continue;
            }
            came++;
            CHECK(event.kind == (event.channel ? WR_AMQP_PUBLISH : WR_AMQP_METHOD));
            if (!event.channel) CHECK(event.arguments_n == METHOD - 4 && !SCARCE_AGAIN(wr_amqp_closing(&r, CHANNELS)));
            if (!event.channel) CHECK(!SCARCE_AGAIN(wr_amqp_closing(&r, CHANNELS + 1)));
            if (!event.body) continue;
            CHECK(event.bytes_n == BODY && event.bytes == event.body && event.bytes[BODY - 1] == 'b');
            body_drop(event.body);
        }
    }
    wr_amqp_reader_close(&r);
    CHECK(!bodies_n);
    return came;
}

int main(void) {
    uint16_t fault;
    make_session();
    bodies_left = 1000;
    CHECK(read_session(&fault) == MESSAGES + 1 && !fault);
    uint64_t n = 0;
    for (bool failed = true; failed; n++) {
        scarce_begin(n);
        bodies_left = 1000;
        const int came = read_session(&fault);
        failed = scarce_end();
        CHECK(fault ? failed && fault == WR_AMQP_RESOURCE_ERROR : came == MESSAGES + 1);
    }
    CHECK(n > 3 * CHANNELS && scarce_again_n);
    for (int before = 0; before < CHANNELS; before++) {
        bodies_left = before;
        CHECK(!read_session(&fault) && fault == WR_AMQP_RESOURCE_ERROR);
    }
    return 0;
}
