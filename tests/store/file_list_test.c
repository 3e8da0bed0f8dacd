/* Goal: a list says exactly what its file holds, whoever made it, and no bytes whatever break who reads it.
 * Method: random files of frames by interleaved writers (runs, batches, odd sizes, REMOVEs, padding, a roll) with a plain array as
 * the model: list built by adding == list of a scan == decode(encode). Damage of every kind in the middle of a file: everything else
 * is found and the damage named. Every bit of a list file flipped, every field set to absurd values under a right checksum, every
 * prefix, random bytes: decode says no, or gives a list that lies inside the file. Prints its seed. */
#include "store/file_list.h"
#include "support/check.h"
#include "support/random.h"
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define SALT 0x0123456789abcdefull
#define NODE 77ull
#define OWNER 1u
#define NUMBER 5ull
#define BYTES (512u << 10)
#define ITEMS_MAX 60000


/* The model: what was put into the file. */
static uint8_t file[BYTES];
static wr_list_item items[ITEMS_MAX];
static uint64_t items_n, end;
static wr_list *built;
static uint64_t water[4];

static void make_id(uint8_t id[16], uint64_t high, uint64_t low) {
    wr_put64(id, high);
    wr_put64(id + 8, low);
}

static void item_put(const uint8_t id[16], uint64_t offset, uint64_t total, const wr_frame_head *head) {
    CHECK(items_n < ITEMS_MAX);
    wr_list_item *item = &items[items_n++];
    memset(item, 0, sizeof *item);
    memcpy(item->id, id, 16);
    item->offset = offset;
    item->total = (uint32_t)total;
    item->kind = head->kind;
    if (head->kind != WR_KIND_REMOVE) {
        item->extra = head->extra;
        item->meta_length = head->meta_length;
    }
}

static bool put(wr_frame_head *head, const void *body, uint64_t length) {
    if (end + wr_frame_bytes(length) + 8192 > BYTES) return false;
    uint64_t total = wr_frame_write(file + end, head, NULL, 0, body, length, SALT);
    if (head->kind == WR_KIND_REMOVE) {
        const uint8_t(*ids)[16] = body;
        CHECK(wr_list_add_removes(built, head, end, total, ids, head->extra) == 0);
        for (uint32_t i = 0; i < head->extra; i++) item_put(ids[i], end, total, head);
    } else {
        CHECK(wr_list_add(built, head, end, total) == 0);
        item_put(head->id, end, total, head);
    }
    if (head->sequence) {
        uint64_t now = wr_water(head->sequence, head->part);
        if (now > water[head->client_epoch]) water[head->client_epoch] = now;
    }
    end += total;
    return true;
}

/* Pad to the next page, as a group commit does. */
static void commit(bool last) {
    uint64_t to = (end + 4095) & ~4095ull;
    if (to == end && !last) return;
    if (to - end < WR_FRAME_BYTES_MIN) to += 4096;
    wr_frame_pad(file + end, to - end, SALT, last);
    end = to;
    built->used = end;
}

static void make_file(void) {
    static uint8_t body[3000];
    wr_list_free(built);
    built = wr_list_new(NUMBER, SALT);
    CHECK(built);
    memset(file, 0, sizeof file);
    memset(water, 0, sizeof water);
    items_n = 0;
    end = WR_FILE_HEADER_BYTES;
    uint64_t counters[4] = {0, UINT64_MAX - 5, 1000, 0}, sequences[4] = {0};
    bool room = true;
    while (room) {
        uint64_t epoch = 1 + random_below(3), n = random_below(10) ? 1 + random_below(8) : 1 + random_below(200);
        uint64_t fixed = random_below(2) ? random_below(120) : 0;
        wr_frame_head head = {.client_epoch = epoch, .kind = WR_KIND_MESSAGE, .sequence = ++sequences[epoch]};
        if (random_below(20) == 0) head.sequence = 0; /* made by the store itself */
        if (random_below(6) == 0) head.extra = 1 + (uint32_t)random_below(30);
        if (random_below(6) == 0) head.meta_length = (uint16_t)random_below(20);
        if (random_below(5) == 0) {
            head.kind = WR_KIND_REMOVE;
            head.extra = (uint32_t)(1 + random_below(40));
            head.meta_length = 0;
            uint8_t ids[40][16];
            for (uint32_t i = 0; i < head.extra; i++) make_id(ids[i], epoch, random_below(2) ? counters[epoch] - i : 500 + i);
            room = put(&head, ids, 16 * head.extra);
        } else {
            bool batch = random_below(2);
            if (random_below(4) == 0) head.kind = WR_KIND_ADD_REFERENCE;
            for (uint64_t i = 0; room && i < n; i++) {
                uint64_t length = head.kind == WR_KIND_MESSAGE ? (fixed ? fixed : random_below(30) ? random_below(200) : random_below(3000)) : 0;
                for (uint64_t k = 0; k < length; k++) body[k] = (uint8_t)random64();
                make_id(head.id, epoch, counters[epoch]++);
                if (batch) head.part = (uint16_t)(i + 1);
                else if (head.sequence && i) head.sequence = ++sequences[epoch];
                room = put(&head, body, length);
            }
        }
        if (random_below(10) == 0) commit(false);
    }
    commit(random_below(2));
}

static void same_items(const wr_list *list, uint64_t skip_from, uint64_t skip_to) {
    wr_list_cursor cursor = wr_list_cursor_at(list, 0);
    wr_list_item item;
    uint64_t messages = 0, message_bytes = 0, controls = 0;
    for (uint64_t i = 0; i < items_n; i++) {
        if (items[i].offset >= skip_from && items[i].offset < skip_to) continue;
        CHECK(wr_list_next(&cursor, &item));
        CHECK(memcmp(item.id, items[i].id, 16) == 0 && item.offset == items[i].offset && item.total == items[i].total);
        CHECK(item.kind == items[i].kind && item.extra == items[i].extra && item.meta_length == items[i].meta_length);
        if (item.kind == WR_KIND_MESSAGE) {
            messages++;
            message_bytes += item.total;
        } else {
            controls++;
        }
    }
    CHECK(!wr_list_next(&cursor, &item));
    CHECK(list->messages == messages && list->message_bytes == message_bytes && list->controls == controls);
}

static void same_waters(const wr_list *list) {
    uint64_t n = 0;
    for (uint64_t epoch = 1; epoch < 4; epoch++) {
        CHECK(wr_list_water_of(list, epoch) == water[epoch]);
        n += water[epoch] != 0;
    }
    CHECK(list->waters_n == n);
}

static wr_list *scan(const char **reason) {
    /* An allocation of just the size, so that a sanitizer sees reads behind the end. */
    uint8_t *copy = malloc(BYTES);
    CHECK(copy);
    memcpy(copy, file, BYTES);
    wr_list *list = wr_list_scan(NUMBER, SALT, copy, BYTES, reason);
    free(copy);
    CHECK(list);
    return list;
}

static void three_ways(void) {
    const char *reason;
    wr_list *scanned = scan(&reason);
    CHECK(scanned->damage_n == 0 && scanned->used == end && (!strcmp(reason, "zeros") || !strcmp(reason, "end")));
    same_items(built, 0, 0);
    same_items(scanned, 0, 0);
    same_waters(built);
    same_waters(scanned);
    uint64_t n, m;
    uint8_t *one = wr_list_encode(built, NODE, OWNER, &n), *two = wr_list_encode(scanned, NODE, OWNER, &m);
    CHECK(one && two && n == m && memcmp(one, two, n) == 0);
    wr_list *decoded = wr_list_decode(one, n, NODE, OWNER, NUMBER, SALT, BYTES, &reason);
    CHECK(decoded && !reason && decoded->used == end);
    same_items(decoded, 0, 0);
    same_waters(decoded);
    CHECK(wr_list_verify(decoded, file, BYTES, NULL, 0) == 0);
    free(two);
    two = wr_list_encode(decoded, NODE, OWNER, &m);
    CHECK(two && n == m && memcmp(one, two, n) == 0);
    /* A sealed list takes more all the same. */
    wr_list_seal(built);
    wr_frame_head head = {.client_epoch = 9, .sequence = 1, .kind = WR_KIND_MESSAGE};
    CHECK(wr_list_add(built, &head, end, 100) == 0 && wr_list_water_of(built, 9) == wr_water(1, 0));
    same_waters(decoded);
    free(one);
    free(two);
    wr_list_free(decoded);
    wr_list_free(scanned);
}

/* Damage the frame of an item in the middle: only what lies in the noted part may be missing. */
static void damage_once(void) {
    uint64_t victim = items_n / 4 + random_below(items_n / 2);
    uint64_t from = items[victim].offset, to = from + items[victim].total;
    switch (random_below(5)) {
    case 0: /* a flipped bit */
        file[from + random_below(to - from)] ^= (uint8_t)(1u << random_below(8));
        break;
    case 1: /* a dropped page */
        memset(file + (from & ~4095ull), 0, 4096);
        break;
    case 2: /* a hole of many pages */
        memset(file + (from & ~4095ull), 0, 4 * 4096);
        break;
    case 3: /* the size says anything */
        wr_put64(file + from, random_below(2) ? random64() : random_below(BYTES));
        break;
    default: /* nonsense */
        for (uint64_t i = from; i < from + 300; i++) file[i] = (uint8_t)random64();
    }
    const char *reason;
    wr_list *list = scan(&reason);
    CHECK(!strcmp(reason, "zeros") || !strcmp(reason, "end"));
    CHECK(list->used == end && list->damage_n >= 1 && list->damaged == list->damage_n);
    uint64_t lost_from = list->damage[0].from, lost_to = list->damage[list->damage_n - 1].to;
    CHECK(lost_from <= from && lost_to >= to);
    /* All of the items outside are there; of those between the first and the last damage only true ones. */
    wr_list_cursor cursor = wr_list_cursor_at(list, 0);
    wr_list_item item;
    uint64_t i = 0;
    while (wr_list_next(&cursor, &item)) {
        while (i < items_n && (items[i].offset < item.offset || memcmp(items[i].id, item.id, 16))) {
            CHECK(items[i].offset >= lost_from && items[i].offset < lost_to);
            i++;
        }
        CHECK(i < items_n && items[i].offset == item.offset && items[i].total == item.total);
        i++;
    }
    for (; i < items_n; i++) CHECK(items[i].offset >= lost_from && items[i].offset < lost_to);
    /* The undamaged list names just what is bad. */
    wr_list_bad bad[8];
    CHECK(wr_list_verify(built, file, BYTES, bad, 8) >= 1);
    CHECK(bad[0].reason && bad[0].offset <= from && bad[0].offset + bad[0].total > (from & ~4095ull));
    wr_list_free(list);
}

/* A flipped bit in the body of one frame costs that frame alone. */
static void one_frame(void) {
    uint64_t victim = items_n / 4 + random_below(items_n / 2);
    while (items[victim].kind == WR_KIND_REMOVE || items[victim].total < 60) victim++;
    uint64_t from = items[victim].offset;
    file[from + WR_FRAME_HEAD_BYTES] ^= 1;
    const char *reason;
    wr_list *list = scan(&reason);
    CHECK(list->damage_n == 1 && list->damage[0].from == from && list->damage[0].to == from + items[victim].total);
    CHECK(!strcmp(list->damage[0].reason, "crc"));
    same_items(list, from, from + 1);
    wr_list_free(list);
    file[from + WR_FRAME_HEAD_BYTES] ^= 1;
}

static void torn_and_recycled(void) {
    const char *reason;
    /* Behind the end lies what a recycled file held before: frames with another salt. */
    uint64_t at = end;
    wr_frame_head head = {.kind = WR_KIND_MESSAGE, .client_epoch = 3, .sequence = 1u << 30};
    for (; at + 200 < BYTES; at += wr_frame_write(file + at, &head, NULL, 0, "old", 3, SALT + 1)) make_id(head.id, 9, at);
    wr_list *list = scan(&reason);
    CHECK(list->used == end && list->damage_n == 0);
    same_items(list, 0, 0);
    same_waters(list);
    wr_list_free(list);
    /* The last frame is torn. */
    memset(file + end, 0, BYTES - end);
    uint64_t last = items[items_n - 1].offset;
    memset(file + last + 30, 0, BYTES - last - 30);
    list = scan(&reason);
    CHECK(list->used == last && list->damage_n == 0 && strcmp(reason, "zeros") && strcmp(reason, "end"));
    same_items(list, last, BYTES);
    wr_list_free(list);
    /* A padding frame that is the last ends the file, whatever follows. */
    wr_frame_pad(file + last, 4096 - last % 4096 + 4096, SALT, true);
    uint64_t behind = last + 4096 - last % 4096 + 4096;
    if (behind + 100 < BYTES) wr_frame_write(file + behind, &head, NULL, 0, "new", 3, SALT);
    list = scan(&reason);
    CHECK(!strcmp(reason, "end") && list->used == behind);
    same_items(list, last, BYTES);
    wr_list_free(list);
}

/* decode of hostile bytes: no, or a list that lies inside the file. */
static void try_decode(const uint8_t *bytes, uint64_t n, const char *want) {
    uint8_t *copy = malloc(n + !n);
    CHECK(copy);
    memcpy(copy, bytes, n);
    const char *reason;
    wr_list *list = wr_list_decode(copy, n, NODE, OWNER, NUMBER, SALT, BYTES, &reason);
    free(copy);
    CHECK(!list == !!reason);
    if (want) CHECK(reason && !strcmp(reason, want));
    if (!list) return;
    wr_list_cursor cursor = wr_list_cursor_at(list, 0);
    wr_list_item item;
    uint64_t count = 0, ends = WR_FILE_HEADER_BYTES;
    for (; wr_list_next(&cursor, &item); count++) {
        CHECK(item.offset >= WR_FILE_HEADER_BYTES && item.offset + item.total <= BYTES && item.total >= WR_FRAME_BYTES_MIN);
        CHECK(item.offset >= ends || item.kind == WR_KIND_REMOVE);
        ends = item.offset + item.total;
    }
    CHECK(count == list->messages + list->controls);
    wr_list_free(list);
}

static void put_crc(uint8_t *bytes, uint64_t n) { wr_put32(bytes + WR_LIST_HEADER_AT_CRC, wr_crc32c(0, bytes + 16, n - 16)); }

static void hostile(void) {
    uint64_t n;
    wr_list_seal(built);
    uint8_t *good = wr_list_encode(built, NODE, OWNER, &n);
    CHECK(good);
    for (uint64_t i = 0; i < n; i += 1 + random_below(n / 300)) { /* any bit */
        good[i] ^= (uint8_t)(1u << random_below(8));
        const char *reason;
        wr_list *list = wr_list_decode(good, n, NODE, OWNER, NUMBER, SALT, BYTES, &reason);
        CHECK(!list && reason);
        try_decode(good, n, NULL);
        memcpy(good, "WRNLST01", 8);
        free(good);
        good = wr_list_encode(built, NODE, OWNER, &n);
        CHECK(good);
    }
    for (uint64_t cut = 0; cut < n; cut += 1 + random_below(n / 100)) try_decode(good, cut, cut < 128 ? "size" : "crc");
    static const uint64_t absurd[] = {0, 1, 15, 57, 4095, 4096, BYTES - 1, BYTES, BYTES + 1, 0x7fffffff, 0xffffffff, 1ull << 32,
                                      UINT64_MAX, UINT64_MAX / 40, UINT64_MAX / 40 + 1, 1ull << 63};
    uint8_t *bad = malloc(n);
    CHECK(bad);
    for (uint64_t at = 8; at + 8 <= n && at < 128 + 40 * 8; at += 2) /* every field of the head and of the first runs */
        for (uint64_t k = 0; k < sizeof absurd / sizeof *absurd; k++)
            for (int wide = 0; wide < 3; wide++) {
                memcpy(bad, good, n);
                if (wide == 0) wr_put16(bad + at, (uint16_t)absurd[k]);
                else if (wide == 1) wr_put32(bad + at, (uint32_t)absurd[k]);
                else wr_put64(bad + at, absurd[k]);
                put_crc(bad, n);
                try_decode(bad, n, NULL);
            }
    for (int round = 0; round < 2000; round++) { /* any bytes under a right checksum */
        memcpy(bad, good, n);
        for (uint64_t k = 1 + random_below(4); k; k--) bad[16 + random_below(n - 16)] = (uint8_t)random64();
        put_crc(bad, n);
        try_decode(bad, n, NULL);
    }
    const char *reason;
    CHECK(!wr_list_decode(good, n, NODE + 1, OWNER, NUMBER, SALT, BYTES, &reason) && !strcmp(reason, "node"));
    CHECK(!wr_list_decode(good, n, NODE, OWNER + 1, NUMBER, SALT, BYTES, &reason) && !strcmp(reason, "owner"));
    CHECK(!wr_list_decode(good, n, NODE, OWNER, NUMBER + 1, SALT, BYTES, &reason) && !strcmp(reason, "file"));
    CHECK(!wr_list_decode(good, n, NODE, OWNER, NUMBER, SALT + 1, BYTES, &reason) && !strcmp(reason, "salt"));
    CHECK(!wr_list_decode(good, n, NODE, OWNER, NUMBER, SALT, built->used - 1, &reason) && !strcmp(reason, "size"));
    free(bad);
    free(good);
}

/* Bytes made to keep a scan busy: heads at every page that claim everything up to the end. */
static void busy(void) {
    uint64_t n = 8u << 20;
    uint8_t *bytes = calloc(1, n);
    CHECK(bytes);
    for (uint64_t at = 4096; at + 64 < n; at += 64) {
        wr_put64(bytes + at, n - at - 9);
        bytes[at + WR_FRAME_AT_VERSION] = WR_FORMAT_VERSION;
        bytes[at + WR_FRAME_AT_KIND] = WR_KIND_MESSAGE;
    }
    bytes[n - 1] = WR_FRAME_MARKER;
    const char *reason;
    wr_list *list = wr_list_scan(NUMBER, SALT, bytes, n, &reason);
    CHECK(list && list->messages == 0);
    wr_list_free(list);
    for (uint64_t i = 0; i < n; i++) bytes[i] = (uint8_t)random64();
    list = wr_list_scan(NUMBER, SALT, bytes, n, &reason);
    CHECK(list && list->messages == 0);
    wr_list_free(list);
    free(bytes);
}

/* Lengths around every limit. */
static void small_files(void) {
    const char *reason;
    for (uint64_t length = 0; length < 5000; length = length < 4090 ? length + 819 : length + 1) {
        uint8_t *bytes = calloc(1, length + !length);
        CHECK(bytes);
        if (length > 4100) bytes[4100] = 1;
        wr_list *list = wr_list_scan(NUMBER, SALT, bytes, length, &reason);
        CHECK(list && list->messages == 0 && list->runs_n == 0);
        wr_list_free(list);
        free(bytes);
    }
    wr_list *list = wr_list_new(1, 2);
    CHECK(list);
    wr_frame_head head = {.kind = WR_KIND_MESSAGE};
    CHECK(wr_list_add(list, &head, UINT32_MAX - 50, 57) != 0 && list->messages == 0 && list->runs_n == 0);
    uint8_t ids[4][16] = {{0}};
    head.kind = WR_KIND_REMOVE;
    CHECK(wr_list_add_removes(list, &head, 4096, 57 + 32, (const uint8_t(*)[16])ids, 4) != 0 && list->controls == 0);
    wr_list_free(list);
}

int main(int argc, char **argv) {
    random_begin("file_list_test", argc, argv);
    small_files();
    busy();
    for (int round = 0; round < 20; round++) {
        make_file();
        three_ways();
        make_file();
        one_frame();
        damage_once();
        make_file();
        torn_and_recycled();
    }
    make_file();
    hostile();
    wr_list_free(built);
    /* What adding costs. */
    wr_list *list = wr_list_new(1, 2);
    CHECK(list);
    struct timespec from, to;
    clock_gettime(CLOCK_MONOTONIC, &from);
    for (uint64_t i = 0, at = 4096; i < 400000; i++, at += 157) {
        wr_frame_head head = {.kind = WR_KIND_MESSAGE, .client_epoch = 1, .sequence = 1 + i / 1000, .part = (uint16_t)(i % 1000 + 1)};
        make_id(head.id, 1, i);
        CHECK(wr_list_add(list, &head, at, 157) == 0);
    }
    clock_gettime(CLOCK_MONOTONIC, &to);
    CHECK(list->runs_n == 1 && list->messages == 400000);
    printf("add: %.1f ns\n", ((double)(to.tv_sec - from.tv_sec) * 1e9 + (double)(to.tv_nsec - from.tv_nsec)) / 400000);
    wr_list_free(list);
    return 0;
}
