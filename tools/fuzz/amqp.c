/* Target: what a client of the AMQP gateway sends, as frames, arguments, properties and tables.
 *
 * Input: a mode, limits, where the bytes are cut; then the bytes themselves, or (bit 0 of the mode) choices that frames are built from, so
 * that the reader gets deep. Checked: cut anywhere or not at all, the bytes make the same events; what is kept is bounded; after a fault
 * nothing comes; bodies are handed out once or dropped; arguments, properties and tables that are called good are walked to their end. */
#include "fuzz.h"
#include "amqp/arguments.h"
#include "amqp/frames.h"
#include "amqp/tables.h"
#include "kernel/bytes.h"
#include "kernel/frame.h"

enum { BYTES_MAX = 1 << 16 };

typedef struct {
    uint64_t digest, events;
    bool fault;
} seen;

static int64_t bodies_n;

static void *body_make(uint64_t n, uint8_t **bytes) {
    FUZZ_CHECK(n && n <= BYTES_MAX); /* else it would have been refused */
    *bytes = malloc(n);
    FUZZ_CHECK(*bytes);
    bodies_n++;
    return *bytes;
}

static void body_drop(void *body) {
    bodies_n--;
    free(body);
}

static const wr_amqp_bodies BODIES = {body_make, body_drop};

static void digest(seen *to, const void *bytes, uint64_t n) {
    to->digest = fuzz_mix(to->digest ^ (n + 1)) ^ wr_crc32c((uint32_t)to->digest, bytes, n);
}

static void digest_number(seen *to, uint64_t number) { digest(to, &number, sizeof number); }

/* ---- what is called good ---- */

static void walk(const uint8_t *at, uint64_t n, bool named, int depth) {
    FUZZ_CHECK(depth <= WR_AMQP_DEPTH_MAX);
    wr_amqp_span left = {at, at + n};
    wr_amqp_field field;
    int found;
    while ((found = wr_amqp_field_next(&left, named, &field)) > 0) {
        FUZZ_CHECK(left.at > at && left.at <= at + n && field.value >= at && field.value + field.n <= at + n);
        FUZZ_CHECK(!named || field.name + field.name_n <= field.value);
        if (field.tag == 'F' || field.tag == 'A') walk(field.value, field.n, field.tag == 'F', depth + 1);
    }
    FUZZ_CHECK(!found && left.at == left.end);
}

static void look_at_value(uint8_t type, const wr_amqp_value *value, const uint8_t *at, uint32_t n) {
    if (type == WR_AMQP_BIT) FUZZ_CHECK(value->number <= 1);
    if (type != WR_AMQP_SHORTSTR && type != WR_AMQP_LONGSTR && type != WR_AMQP_TABLE) return;
    FUZZ_CHECK(value->bytes >= at && value->bytes + value->n <= at + n);
    FUZZ_CHECK(type != WR_AMQP_SHORTSTR || value->n <= 255);
    if (type == WR_AMQP_TABLE) walk(value->bytes, value->n, true, 0);
}

static void look_at_arguments(const wr_amqp_event *event) {
    const wr_amqp_method *method = wr_amqp_method_of(event->method);
    wr_amqp_value values[WR_AMQP_ARGUMENTS_MAX];
    FUZZ_CHECK(method && method->by_client);
    const wr_amqp_wrong wrong = wr_amqp_arguments_read(method, event->arguments, event->arguments_n, values);
    if (wrong.text) {
        FUZZ_CHECK(wrong.code == WR_AMQP_FRAME_ERROR || wrong.code == WR_AMQP_INTERNAL_ERROR);
        return;
    }
    for (int i = 0; i < method->arguments_n; i++)
        look_at_value(method->arguments[i] & (uint8_t)~WR_AMQP_RESERVED, &values[i], event->arguments, event->arguments_n);
}

static void look_at_properties(const uint8_t *at, uint32_t n) {
    static const uint8_t types[] = {
#define TYPE(name, type) type,
        WR_AMQP_PROPERTIES(TYPE)};
    wr_amqp_properties found;
    if (wr_amqp_properties_read(at, n, &found).text) return;
    for (int i = 0; i < WR_AMQP_PROPERTIES_N; i++)
        if (wr_amqp_has(&found, i)) look_at_value(types[i], &found.values[i], at, n);
}

/* ---- events ---- */

static void look(seen *to, const wr_amqp_event *event) {
    FUZZ_CHECK(!to->fault);
    to->events++;
    digest_number(to, event->kind);
    digest_number(to, event->channel);
    digest_number(to, event->method);
    switch (event->kind) {
    case WR_AMQP_HEARTBEAT:
        return;
    case WR_AMQP_METHOD:
        look_at_arguments(event);
        digest(to, event->arguments, event->arguments_n);
        return;
    case WR_AMQP_PUBLISH:
        FUZZ_CHECK(event->method == WR_AMQP_BASIC_PUBLISH && event->channel);
        look_at_arguments(event);
        look_at_properties(event->properties, event->properties_n);
        digest(to, event->arguments, event->arguments_n);
        digest(to, event->properties, event->properties_n);
        digest(to, event->bytes, event->bytes_n);
        if (event->body) body_drop(event->body);
        return;
    case WR_AMQP_FAULT:
        to->fault = true;
        __attribute__((fallthrough));
    default:
        FUZZ_CHECK(event->kind == WR_AMQP_FAULT || event->kind == WR_AMQP_REFUSED);
        FUZZ_CHECK(event->text && *event->text && strlen(event->text) < 256 && event->code >= 400 && event->code < 600);
        digest_number(to, event->code);
        digest(to, event->text, strlen(event->text));
    }
}

typedef struct {
    uint32_t frame_max;
    uint64_t body_max, assembling_max;
    uint16_t closing; /* a channel that this side closes after the first event of it */
} limits;

/* Read all bytes in pieces of at most `piece`; each is a block of its own, so that no byte beside it can be read. */
static seen read_all(const limits *l, const uint8_t *bytes, uint64_t n, uint64_t piece) {
    wr_amqp_reader r;
    wr_amqp_event event;
    seen to = {.digest = 1};
    wr_amqp_reader_open(&r, l->frame_max, l->body_max, l->assembling_max, &BODIES);
    for (uint64_t at = 0; at < n;) {
        const uint64_t some = n - at < piece ? n - at : piece;
        uint8_t *alone = malloc(some);
        FUZZ_CHECK(alone);
        memcpy(alone, bytes + at, some);
        wr_amqp_feed(&r, alone, some);
        while (wr_amqp_next(&r, &event)) {
            look(&to, &event);
            if (l->closing && event.channel == l->closing && event.kind == WR_AMQP_METHOD) FUZZ_CHECK(!wr_amqp_closing(&r, event.channel));
            FUZZ_CHECK(r.over || r.assembling <= l->assembling_max);
        }
        FUZZ_CHECK(r.held_room <= 2 * ((uint64_t)l->frame_max + WR_AMQP_FRAME_OVERHEAD) + 512);
        FUZZ_CHECK(r.contents_n <= WR_AMQP_CONTENTS_MAX + 1);
        at += some;
        free(alone);
        wr_amqp_feed(&r, NULL, 0);
    }
    wr_amqp_reader_close(&r);
    FUZZ_CHECK(!bodies_n);
    return to;
}

/* ---- frames that are built ---- */

typedef struct {
    uint8_t *bytes;
    uint64_t n, room;
} building;

static void put(building *b, const void *bytes, uint64_t n) {
    if (n > b->room - b->n) n = b->room - b->n;
    if (n) memcpy(b->bytes + b->n, bytes, n);
    b->n += n;
}

static void put_number(building *b, uint64_t number, int bytes) {
    uint8_t wire[8];
    wr_put64(wire, number);
    put(b, wire + 8 - bytes, (uint64_t)bytes);
}

/* n bytes that are alike. */
static void put_some(building *b, fuzz_input *in, uint64_t n) {
    if (n > b->room - b->n) n = b->room - b->n;
    memset(b->bytes + b->n, fuzz8(in), n);
    b->n += n;
}

static void put_frame(building *b, fuzz_input *in, uint8_t type, uint16_t channel, const building *payload) {
    const uint8_t how = fuzz8(in);
    put_number(b, type, 1);
    put_number(b, channel, 2);
    put_number(b, how == 1 ? fuzz_size(in, payload->n) : payload->n, 4);
    put(b, payload->bytes, payload->n);
    put_number(b, how == 2 ? fuzz8(in) : WR_AMQP_FRAME_END, 1);
}

/* A table's fields, some in each other. */
static void put_fields(building *b, fuzz_input *in, bool named, int depth) {
    static const char tags[] = "tbBsuIilLTfdDVSxAF";
    static const uint8_t sizes[] = {1, 1, 1, 2, 2, 4, 4, 8, 8, 8, 4, 8, 5, 0};
    for (uint32_t fields = fuzz8(in) % 4; fields; fields--) {
        if (named) {
            put_number(b, 1, 1);
            put_some(b, in, 1);
        }
        const uint8_t which = fuzz8(in) % 19;
        if (which == 18) {
            put_some(b, in, 1);
            continue;
        }
        put(b, &tags[which], 1);
        if (which < sizeof sizes) {
            put_some(b, in, sizes[which]);
        } else if (which < 16) {
            const uint8_t n = fuzz8(in) % 16;
            put_number(b, n, 4);
            put_some(b, in, n);
        } else {
            const uint64_t at = b->n;
            put_number(b, 0, 4);
            if (depth) put_fields(b, in, which == 17, depth - 1);
            if (at + 4 <= b->n) wr_put32(b->bytes + at, (uint32_t)(b->n - at - 4));
        }
    }
}

static void put_table(building *b, fuzz_input *in) {
    const uint64_t at = b->n;
    put_number(b, 0, 4);
    if (fuzz8(in) % 8) put_fields(b, in, true, 6);
    else
        for (uint64_t inner = 70; inner--;) {
            put(b, "\1xF", 3);
            put_number(b, inner * 7, 4);
        }
    if (at + 4 <= b->n) wr_put32(b->bytes + at, (uint32_t)(b->n - at - 4));
}

static void put_argument(building *b, fuzz_input *in, uint8_t type) {
    const uint8_t n = fuzz8(in) % 24;
    switch (type) {
    case WR_AMQP_OCTET: put_some(b, in, 1); break;
    case WR_AMQP_SHORT: put_some(b, in, 2); break;
    case WR_AMQP_LONG: put_some(b, in, 4); break;
    case WR_AMQP_LONGLONG:
    case WR_AMQP_TIMESTAMP: put_some(b, in, 8); break;
    case WR_AMQP_TABLE: put_table(b, in); break;
    default:
        put_number(b, n, type == WR_AMQP_SHORTSTR ? 1 : 4);
        put_some(b, in, n);
    }
}

static void put_method(building *b, fuzz_input *in, uint16_t channel, uint32_t id) {
    uint8_t bytes[4096];
    building payload = {bytes, 0, sizeof bytes};
    const wr_amqp_method *method = wr_amqp_method_of(id);
    put_number(&payload, id, 4);
    bool bits = false;
    for (int i = 0; method && i < method->arguments_n && payload.n < 2048; i++) {
        const uint8_t type = method->arguments[i] & (uint8_t)~WR_AMQP_RESERVED;
        if (type != WR_AMQP_BIT) put_argument(&payload, in, type);
        else if (!bits) put_some(&payload, in, 1);
        bits = type == WR_AMQP_BIT;
    }
    put_frame(b, in, WR_AMQP_FRAME_METHOD, channel, &payload);
}

static void put_header(building *b, fuzz_input *in, uint16_t channel, uint64_t size) {
    static const uint8_t types[] = {
#define TYPE(name, type) type,
        WR_AMQP_PROPERTIES(TYPE)};
    uint8_t bytes[8192];
    building payload = {bytes, 0, sizeof bytes};
    const uint16_t flags = fuzz16(in);
    put_number(&payload, fuzz8(in) == 1 ? fuzz16(in) : 60, 2);
    put_number(&payload, fuzz8(in) == 1, 2);
    put_number(&payload, size, 8);
    put_number(&payload, flags, 2);
    for (int i = 0; i < WR_AMQP_PROPERTIES_N && payload.n < 2048; i++)
        if (flags >> (15 - i) & 1) put_argument(&payload, in, types[i]);
    put_frame(b, in, WR_AMQP_FRAME_HEADER, channel, &payload);
}

static void put_body(building *b, fuzz_input *in, uint16_t channel, uint64_t n) {
    uint8_t bytes[4096];
    building payload = {bytes, 0, sizeof bytes};
    put_some(&payload, in, n < sizeof bytes ? n : sizeof bytes);
    put_frame(b, in, WR_AMQP_FRAME_BODY, channel, &payload);
}

static uint32_t any_method(fuzz_input *in) {
    static const uint32_t some[] = {WR_AMQP_CHANNEL_OPEN, WR_AMQP_CHANNEL_CLOSE_OK, WR_AMQP_QUEUE_DECLARE, WR_AMQP_BASIC_CONSUME, WR_AMQP_BASIC_ACK,
                                    WR_AMQP_CONNECTION_START_OK, WR_AMQP_EXCHANGE_DECLARE, WR_AMQP_BASIC_NACK};
    const uint8_t which = fuzz8(in);
    return which < sizeof some / sizeof *some ? some[which] : (uint32_t)fuzz8(in) << 16 | fuzz8(in);
}

static void build(building *b, fuzz_input *in) {
    while (in->left && b->n < BYTES_MAX / 2) {
        const uint8_t what = fuzz8(in);
        const uint16_t channel = what >> 4 & 3;
        const uint64_t size = fuzz8(in) < 240 ? fuzz8(in) : fuzz_size(in, 4096);
        switch (what % 8) {
        case 0: put_method(b, in, channel, any_method(in)); break;
        case 1: put_header(b, in, channel, size); break;
        case 2: put_body(b, in, channel, size); break;
        case 3: put(b, "\10\0\0\0\0\0\0\xce", 8); break;
        case 4: put_some(b, in, size % 16); break;
        default: /* a message, in one frame or in two, or nearly */
            put_method(b, in, channel, WR_AMQP_BASIC_PUBLISH);
            put_header(b, in, channel, size);
            if (what & 0x40 && size > 1) put_body(b, in, channel, size / 2), put_body(b, in, channel, size - size / 2);
            else if (size) put_body(b, in, channel, size);
        }
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    fuzz_input in = {data, size};
    const uint8_t mode = fuzz8(&in);
    limits l = {.frame_max = mode & 2 ? 64 + fuzz8(&in) : 4096, .body_max = mode & 4 ? fuzz8(&in) : 8192};
    const bool scarce = mode & 8; /* whether a message that lies there as a whole is counted depends on where it is cut */
    l.assembling_max = scarce ? fuzz16(&in) : 4 * BYTES_MAX;
    l.closing = mode & 16 ? 1 : 0;
    const uint64_t piece = 1 + fuzz8(&in);
    uint8_t *bytes = malloc(BYTES_MAX);
    FUZZ_CHECK(bytes);
    building b = {bytes, 0, BYTES_MAX};
    if (mode & 1) build(&b, &in);
    else put(&b, in.at, in.left);
    const seen whole = read_all(&l, bytes, b.n, BYTES_MAX), cut = read_all(&l, bytes, b.n, mode & 64 ? 1 : piece);
    FUZZ_CHECK(scarce || (whole.digest == cut.digest && whole.events == cut.events));
    /* tables that nobody has framed */
    if (!wr_amqp_table_check(bytes, b.n, mode & 32)) walk(bytes, b.n, mode & 32, 0);
    look_at_properties(bytes, (uint32_t)b.n);
    free(bytes);
    return 0;
}
