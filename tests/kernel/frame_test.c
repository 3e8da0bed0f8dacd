/* Goal: the CRC is CRC32C whatever way it is computed, and the frame check accepts exactly what was written.
 * Method: vectors of RFC 3720; every length and alignment up to two long blocks against the table code; frames of all small
 * lengths, all their bits flipped, all their prefixes; frames behind damaged ones, with bodies that look like frames; random bytes (the sanitizers watch what is read). Prints its seed. */
#include "kernel/frame.h"
#include "support/check.h"
#include "support/random.h"
#include <stdio.h>
#include <stdlib.h>

#define SALT 0x0123456789abcdefull

static void vectors(void) {
    uint8_t bytes[32];
    CHECK(wr_crc32c(0, "123456789", 9) == 0xe3069283u);
    memset(bytes, 0, 32);
    CHECK(wr_crc32c(0, bytes, 32) == 0x8a9136aau);
    memset(bytes, 0xff, 32);
    CHECK(wr_crc32c(0, bytes, 32) == 0x62a8ab43u);
    for (int i = 0; i < 32; i++) bytes[i] = (uint8_t)i;
    CHECK(wr_crc32c(0, bytes, 32) == 0x46dd794eu);
    for (int i = 0; i < 32; i++) bytes[i] = (uint8_t)(31 - i);
    CHECK(wr_crc32c(0, bytes, 32) == 0x113fdb5cu);
    CHECK(wr_crc32c(7, bytes, 0) == 7);
}

/* The bytes lie at the very end of an allocation, so that one byte too many is seen by the sanitizer. */
static void lengths(void) {
    for (size_t n = 0; n < 26000; n += n < 1700 ? 1 : 1 + random64() % 700) {
        uint8_t *from = malloc(n + 1), *to = malloc(n + 1), *third = malloc(n + 1);
        CHECK(from && to && third);
        for (size_t i = 0; i < n + 1; i++) from[i] = (uint8_t)random64();
        uint32_t seed = (uint32_t)random64();
        size_t skip = n > 0 && random64() % 2;
        uint32_t expected = wr_crc32c_table(seed, NULL, from + skip, n - skip);
        CHECK(wr_crc32c(seed, from + skip, n - skip) == expected);
        CHECK(wr_copy_crc32c(seed, to, from + skip, n - skip) == expected);
        CHECK(memcmp(to, from + skip, n - skip) == 0);
        CHECK(wr_crc32c_table(seed, third, from + skip, n - skip) == expected);
        CHECK(memcmp(third, from + skip, n - skip) == 0);
        size_t cut = n - skip ? random64() % (n - skip) : 0;
        CHECK(wr_crc32c(wr_crc32c(seed, from + skip, cut), from + skip + cut, n - skip - cut) == expected);
        free(from);
        free(to);
        free(third);
    }
}

static wr_frame_head random_head(void) {
    static const uint8_t kinds[] = {WR_KIND_MESSAGE, WR_KIND_ADD_REFERENCE, WR_KIND_REMOVE, WR_KIND_PUBLISH,
                                    WR_KIND_ACK,     WR_KIND_DELAY,         WR_KIND_MOVE};
    wr_frame_head head = {.kind = kinds[random64() % sizeof kinds], .flags = (uint16_t)random64(),
                          .client_epoch = random64(), .sequence = random64(), .extra = (uint32_t)random64(),
                          .meta_length = (uint16_t)random64()};
    for (int i = 0; i < 16; i++) head.id[i] = (uint8_t)random64();
    return head;
}

static bool same(const wr_frame_head *a, const wr_frame_head *b) {
    return memcmp(a->id, b->id, 16) == 0 && a->kind == b->kind && a->flags == b->flags &&
           a->client_epoch == b->client_epoch && a->sequence == b->sequence && a->extra == b->extra &&
           a->meta_length == b->meta_length;
}

static void round_trip(void) {
    for (uint64_t body = 0; body < 300; body += AT_LENGTH ? 1 : 1 + random64() % 7) {
        uint64_t total = wr_frame_bytes(body);
        uint8_t *a = malloc(total), *b = malloc(total), *from = malloc(body + 1);
        CHECK(a && b && from);
        for (uint64_t i = 0; i < body; i++) from[i] = (uint8_t)random64();
        wr_frame_head head = random_head(), read;
        const char *reason;
        uint64_t prefix = body ? random64() % (body + 1) : 0;
        CHECK(wr_frame_write(a, &head, prefix ? from : NULL, prefix, from + prefix, body - prefix, SALT) == total);
        memcpy(b + WR_FRAME_HEAD_BYTES, from, body);
        CHECK(wr_frame_seal(b, &head, body, SALT) == total);
        CHECK(memcmp(a, b, total) == 0);
        CHECK(wr_frame_check(a, total, 0, SALT, &read, &reason) == total && !reason && same(&head, &read));
        CHECK(memcmp(a + WR_FRAME_HEAD_BYTES, from, body) == 0);
        CHECK(wr_frame_check(a, total, 0, SALT + 1, &read, &reason) == 0 && strcmp(reason, "crc") == 0);
        for (uint64_t bit = 0; bit < total * 8; bit++) {
            a[bit / 8] ^= (uint8_t)(1u << bit % 8);
            CHECK(wr_frame_check(a, total, 0, SALT, &read, &reason) == 0 && reason);
            a[bit / 8] ^= (uint8_t)(1u << bit % 8);
        }
        for (uint64_t n = 0; n < total; n++) {
            uint8_t *torn = malloc(n + 1);
            CHECK(torn);
            memcpy(torn, a, n);
            CHECK(wr_frame_check(torn, n, 0, SALT, &read, NULL) == 0);
            free(torn);
        }
        free(a);
        free(b);
        free(from);
    }
}

static void reasons(void) {
    uint8_t frame[200];
    wr_frame_head head = random_head(), read;
    const char *reason;
    uint64_t total = wr_frame_write(frame, &head, NULL, 0, "hello", 5, SALT);
    CHECK(wr_frame_check(frame, total, total, SALT, &read, &reason) == 0 && strcmp(reason, "short") == 0);
    CHECK(wr_frame_check(frame, total, UINT64_MAX, SALT, &read, &reason) == 0 && strcmp(reason, "short") == 0);
    static const uint64_t sizes[] = {0, 47, UINT64_MAX, UINT64_MAX - 8, UINT64_MAX - 56, 1ull << 63, 54};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        wr_put64(frame, sizes[i]);
        CHECK(wr_frame_check(frame, total, 0, SALT, &read, &reason) == 0 && strcmp(reason, "size") == 0);
    }
    wr_put64(frame, total - 9);
    frame[total - 1] = 0;
    CHECK(wr_frame_check(frame, total, 0, SALT, &read, &reason) == 0 && strcmp(reason, "marker") == 0);
    frame[total - 1] = WR_FRAME_MARKER;
    frame[WR_FRAME_AT_VERSION]++;
    CHECK(wr_frame_check(frame, total, 0, SALT, &read, &reason) == 0 && strcmp(reason, "version") == 0);
    frame[WR_FRAME_AT_VERSION]--;
    frame[WR_FRAME_AT_KIND] = 99;
    CHECK(wr_frame_check(frame, total, 0, SALT, &read, &reason) == 0 && strcmp(reason, "kind") == 0);
}

static void scanning(void) {
    enum { BYTES = 64 * 1024, FRAMES = 400 };
    uint8_t *file = calloc(1, BYTES);
    wr_frame_row rows[FRAMES];
    uint64_t offsets[FRAMES], at = 0, n = 0;
    CHECK(file);
    while (n < 300) {
        wr_frame_head head = random_head();
        head.sequence = n;
        uint8_t body[120];
        memset(body, 0xff, sizeof body);
        offsets[n++] = at;
        at += wr_frame_write(file + at, &head, NULL, 0, body, random64() % 120, SALT);
        if (n % 7 == 0) {
            uint64_t filler = WR_FRAME_BYTES_MIN + random64() % 100;
            wr_frame_pad(file + at, filler, SALT, false);
            at += filler;
        }
    }
    uint64_t end = 0;
    const char *reason;
    uint64_t found = wr_frame_scan(file, BYTES, &end, SALT, rows, FRAMES, &reason);
    CHECK(found == 300 && end == at && strcmp(reason, "zeros") == 0);
    for (uint64_t i = 0; i < found; i++) CHECK(rows[i].offset == offsets[i] && rows[i].sequence == i);
    end = 0;
    CHECK(wr_frame_scan(file, at, &end, SALT, rows, FRAMES, &reason) == 300 && strcmp(reason, "end") == 0);
    /* in pieces */
    end = 0;
    found = 0;
    do found += wr_frame_scan(file, BYTES, &end, SALT, rows, 7, &reason);
    while (!reason);
    CHECK(found == 300 && end == at);
    file[BYTES - 1] = 1;
    end = 0;
    CHECK(wr_frame_scan(file, BYTES, &end, SALT, rows, FRAMES, &reason) == 300 && strcmp(reason, "size") == 0);
    file[offsets[100] + WR_FRAME_AT_SEQUENCE] ^= 4;
    end = 0;
    CHECK(wr_frame_scan(file, BYTES, &end, SALT, rows, FRAMES, &reason) == 100 && end == offsets[100]);
    for (int round = 0; round < 2000; round++) {
        for (int i = 0; i < 512; i++) file[i] = (uint8_t)random64();
        wr_put64(file, random64() >> (random64() % 64));
        end = 0;
        wr_frame_scan(file, 512, &end, SALT, rows, FRAMES, &reason);
        CHECK(reason);
    }
    free(file);
}

/* Frames behind damage: the next true one is found whatever its bodies look like, and nothing but a true one ever. The bodies hold frames
 * of this very file, alone and in chains, some as long as the body; the bytes end with an allocation, for the sanitizer. */
static void behind(int rounds) {
    enum { PAGES = 24, BYTES = PAGES * WR_FILE_HEADER_BYTES, FRAMES = 2000 };
    for (int round = 0; round < rounds; round++) {
        uint8_t *file = calloc(1, BYTES);
        uint64_t starts[FRAMES], at = 0, n = 0;
        CHECK(file);
        uint64_t end = round % 3 ? BYTES : BYTES / 2 + random64() % 4000; /* full, or zeros follow a commit, or it is cut there */
        for (;;) {
            uint64_t room = 8 + random64() % 1500, inside = 0;
            uint8_t *body = calloc(1, room);
            CHECK(body);
            while (room - inside >= WR_FRAME_BYTES_MIN && random64() % 8) {
                wr_frame_head fake = random_head();
                uint64_t most = room - inside - WR_FRAME_BYTES_MIN, length = random64() % 2 ? most : random64() % (most + 1);
                if (length > 60 && random64() % 2) length = random64() % 60;
                uint8_t *bytes = calloc(1, length + 1);
                CHECK(bytes);
                inside += wr_frame_write(body + inside, &fake, NULL, 0, bytes, length, SALT);
                free(bytes);
            }
            uint64_t total = wr_frame_bytes(room);
            if (at + total + 2 * WR_FILE_HEADER_BYTES > end) {
                free(body);
                break;
            }
            wr_frame_head head = random_head();
            starts[n++] = at;
            at += wr_frame_write(file + at, &head, NULL, 0, body, room, SALT);
            free(body);
            if (random64() % 4 == 0) { /* the end of a commit */
                uint64_t filler = (WR_FILE_HEADER_BYTES - at % WR_FILE_HEADER_BYTES) % WR_FILE_HEADER_BYTES;
                if (filler && filler < WR_FRAME_BYTES_MIN) filler += WR_FILE_HEADER_BYTES;
                if (filler) {
                    starts[n++] = at;
                    wr_frame_pad(file + at, filler, SALT, false);
                    at += filler;
                }
            }
        }
        uint64_t filler = WR_FILE_HEADER_BYTES - at % WR_FILE_HEADER_BYTES;
        if (filler < WR_FRAME_BYTES_MIN) filler += WR_FILE_HEADER_BYTES;
        starts[n++] = at;
        wr_frame_pad(file + at, filler, SALT, round % 2);
        at += filler;
        CHECK(at <= BYTES && n > 3);
        uint64_t bytes = round % 4 == 1 ? at : BYTES; /* cut behind the last commit */
        uint8_t *exact = malloc(bytes);
        CHECK(exact);
        memcpy(exact, file, bytes);
        for (uint64_t i = 0; i + 1 < n; i += 1 + random64() % 3) {
            /* a bit anywhere in a frame, or its whole head */
            uint64_t total = starts[i + 1] - starts[i], hit = starts[i] + random64() % total;
            memcpy(exact, file, bytes);
            if (random64() % 4) exact[hit] ^= (uint8_t)(1u << random64() % 8);
            else memset(exact + starts[i], (int)(random64() % 256), total < WR_FRAME_HEAD_BYTES ? total : WR_FRAME_HEAD_BYTES);
            wr_frame_head head;
            if (wr_frame_check(exact, bytes, starts[i], SALT, &head, NULL)) continue; /* a padding's body has no checksum */
            uint64_t found = wr_frame_behind(exact, bytes, starts[i], SALT);
            CHECK(found == starts[i + 1]);
        }
        /* nothing is read or found outside, wherever one begins */
        for (uint64_t from = 0; from < bytes; from += 1 + random64() % 700) {
            uint64_t found = wr_frame_behind(exact, bytes, from, SALT);
            CHECK(!found || (found > from && found < bytes));
        }
        CHECK(wr_frame_behind(exact, bytes, bytes, SALT) == 0 && wr_frame_behind(exact, bytes, 0, SALT + 1) == 0);
        free(exact);
        free(file);
    }
}

/* A frame of which only one byte of the size suffered, any byte in any way: the next true one is found, whatever else such a size leads
 * to. Here it leads to commits that follow, as one flipped bit of a padding's does, and into bodies: their frames end in a padding up to
 * a page's end, as a commit does. When the next frame is damaged, too, the one behind it is found. */
static void behind_a_size(void) {
    enum { PAGES = 40, BYTES = PAGES * WR_FILE_HEADER_BYTES };
    uint8_t *file = calloc(1, BYTES), *body = malloc(BYTES);
    uint64_t starts[2 * PAGES], at = 0, n = 0;
    CHECK(file && body);
    while (at < BYTES - 4 * WR_FILE_HEADER_BYTES) {
        wr_frame_head head = random_head(), fake = random_head();
        uint64_t length = 900, room = WR_FILE_HEADER_BYTES - WR_FRAME_HEAD_BYTES + 700; /* page borders are at the same place in all */
        memset(body, 0, room);
        uint64_t inside = wr_frame_write(body, &fake, NULL, 0, body + length, length, SALT);
        wr_frame_pad(body + inside, WR_FILE_HEADER_BYTES - WR_FRAME_HEAD_BYTES - inside, SALT, false);
        wr_frame_write(body + WR_FILE_HEADER_BYTES - WR_FRAME_HEAD_BYTES, &fake, NULL, 0, body + length, 100, SALT);
        starts[n++] = at;
        at += wr_frame_write(file + at, &head, NULL, 0, body, room, SALT);
        starts[n++] = at;
        uint64_t filler = WR_FILE_HEADER_BYTES - at % WR_FILE_HEADER_BYTES;
        wr_frame_pad(file + at, filler, SALT, false);
        at += filler;
    }
    for (uint64_t i = 0; i + 2 < n; i += AT_LENGTH ? 1 : 1 + random64() % 7) {
        uint8_t *size = file + starts[i] + WR_FRAME_AT_SIZE;
        for (int byte = 0; byte < 8; byte++) {
            uint8_t was = size[byte];
            for (int other = 0; other < 256; other++) {
                if (other == was) continue;
                size[byte] = (uint8_t)other;
                CHECK(wr_frame_behind(file, BYTES, starts[i], SALT) == starts[i + 1]);
            }
            size[byte] = was;
        }
        size[7] ^= 1;
        file[starts[i + 1] + WR_FRAME_AT_SEQUENCE] ^= 1;
        CHECK(wr_frame_behind(file, BYTES, starts[i], SALT) == starts[i + 2]);
        file[starts[i + 1] + WR_FRAME_AT_SEQUENCE] ^= 1;
        size[7] ^= 1;
    }
    free(file);
    free(body);
}

/* A body ends in a frame of this file and seven zeros. They read, with the marker behind them, as a size of 255, and that leads over a
 * frame of 256 bytes to the one behind it. */
static void behind_seven_zeros(void) {
    enum { BYTES = WR_FILE_HEADER_BYTES };
    uint8_t *file = calloc(1, BYTES), body[200] = {0};
    uint64_t starts[4], at = 0;
    CHECK(file);
    wr_frame_head head = random_head(), fake = random_head();
    uint64_t inside = wr_frame_write(body, &fake, NULL, 0, "fake", 4, SALT);
    starts[0] = at;
    at += wr_frame_write(file, &head, NULL, 0, body, inside + 7, SALT);
    memset(body, 0, sizeof body);
    for (int i = 1; i < 3; i++) {
        starts[i] = at;
        at += wr_frame_write(file + at, &head, NULL, 0, body, 256 - WR_FRAME_BYTES_MIN, SALT);
    }
    starts[3] = at;
    wr_frame_pad(file + at, BYTES - at, SALT, false);
    CHECK(starts[2] - starts[1] == 256);
    memset(file, 0, WR_FRAME_HEAD_BYTES);
    CHECK(wr_frame_behind(file, BYTES, 0, SALT) == starts[1]);
    free(file);
}

static void file_headers(void) {
    uint8_t page[WR_FILE_HEADER_BYTES];
    uint64_t salt = 0;
    wr_file_header_write(page, WR_FILE_STORE, 11, 2, 33, SALT, 44);
    CHECK(!wr_file_header_check(page, WR_FILE_STORE, 11, 2, 33, &salt) && salt == SALT);
    CHECK(strcmp(wr_file_header_check(page, WR_FILE_JOURNAL, 11, 2, 33, NULL), "kind") == 0);
    CHECK(strcmp(wr_file_header_check(page, WR_FILE_STORE, 12, 2, 33, NULL), "node") == 0);
    CHECK(strcmp(wr_file_header_check(page, WR_FILE_STORE, 11, 3, 33, NULL), "owner") == 0);
    CHECK(strcmp(wr_file_header_check(page, WR_FILE_STORE, 11, 2, 34, NULL), "file") == 0);
    for (int bit = 0; bit < WR_FILE_HEADER_BYTES * 8; bit++) {
        page[bit / 8] ^= (uint8_t)(1u << bit % 8);
        CHECK(wr_file_header_check(page, WR_FILE_STORE, 11, 2, 33, NULL));
        page[bit / 8] ^= (uint8_t)(1u << bit % 8);
    }
}

int main(int argc, char **argv) {
    random_begin("frame_test", argc, argv);
    vectors();
    lengths();
    round_trip();
    reasons();
    scanning();
    behind(ROUNDS(60));
    behind_a_size();
    behind_seven_zeros();
    /* found at random: a flipped bit of a padding's size; seven zeros at the end of a body */
    static const uint64_t kept[] = {0xd9fde81110010333, 0x4559979a1f9be8ec};
    for (size_t i = 0; i < sizeof kept / sizeof *kept; i++) {
        random_state = kept[i];
        behind(60);
    }
    file_headers();
    return 0;
}
