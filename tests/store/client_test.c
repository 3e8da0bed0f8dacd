/* Goal: what a client puts into shared memory for a batch is what the design says, all of it or nothing; readers find each message in every
 * phase (flying, taken, done, in an image, on disk) and never crash on nonsense; damage on disk is seen.
 * Method: two clients without a server: the test plays it. Rings, arenas and buckets are filled to the brim; then records, blobs and rows of one
 * client are random bytes, and the other reads. Regions are malloc'd, so AddressSanitizer sees a byte too far. Prints its seed. */
#define _GNU_SOURCE
#include "ipc/core/names.h"
#include "store/index.h"
#include "store/removals.h"
#include "support/check.h"
#include "support/random.h"
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { RING = 64, ROWS = 1024, FILE_BYTES = 64 * 4096, HASH_ROWS = 256, TABLE_ROWS = 16 };
static const uint64_t ARENA = 64 * 1024;
static wr_superblock *super;
static _Atomic uint64_t directory[ROWS];
static uint8_t *images;
static wr_index index_;
static char names[3][WR_REGION_NAME_BYTES], folder[200];
static void *regions[2];
static wr_port ports[2];
static wr_store_client clients[2];

static void clean_up(void) {
    for (int i = 0; i < 3; i++)
        if (names[i][0]) shm_unlink(names[i]);
    for (int file = 0; file < 4 && folder[0]; file++) {
        char name[300];
        snprintf(name, sizeof name, "%s/%d.rdq", folder, file);
        unlink(name);
    }
    if (folder[0]) rmdir(folder);
}

static void *region_of(int at, const char *what, uint64_t bytes) {
    wr_region_name(names[at], super, what, 0, 1);
    int fd = shm_open(names[at], O_RDWR | O_CREAT | O_EXCL, 0600);
    CHECK(fd >= 0 && ftruncate(fd, (off_t)bytes) == 0);
    void *region = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    CHECK(region != MAP_FAILED);
    close(fd);
    return region;
}

static wr_view *view_of(void *context, uint32_t slot, uint32_t generation) {
    (void)context;
    return slot < 2 && generation == 1 ? &ports[slot].view : NULL;
}

static void set_up(void) {
    super = calloc(1, WR_SUPERBLOCK_BYTES);
    super->node_id = (random64() & 0xffffffffff) | 0xe1ull << 40;
    super->shared_id = super->node_id;
    super->servers_n = 1;
    super->ring_records = RING;
    super->delivery_slots = 2;
    super->arena_bytes = ARENA;
    super->reply_bytes = 4096;
    wr_geometry g = wr_geometry_of(super);
    images = calloc(1, WR_PAGE_BYTES + FILE_BYTES);
    wr_server *server = wr_superblock_server(super, 0);
    CHECK(wr_index_init(&index_, region_of(0, "index", WR_PAGE_BYTES + HASH_ROWS * 64), WR_PAGE_BYTES + HASH_ROWS * 64,
                        region_of(1, "dense", WR_PAGE_BYTES + TABLE_ROWS * 32), WR_PAGE_BYTES + TABLE_ROWS * 32) == 0);
    CHECK(wr_index_add_extent(&index_, region_of(2, "dense0", WR_DENSE_EXTENT_BYTES), WR_DENSE_EXTENT_BYTES) == 0);
    atomic_store(&server->index_generation, 1);
    atomic_store(&server->generation, 1);
    for (uint32_t i = 0; i < 2; i++) {
        CHECK(posix_memalign(&regions[i], 4096, wr_view_bytes(&g)) == 0);
        memset(regions[i], 0, wr_view_bytes(&g));
        CHECK(wr_port_init(&ports[i], super, regions[i], wr_view_bytes(&g), i, 1, 7 + i) == 0);
        atomic_store(&wr_superblock_slot(super, i)->claim, 1ull << 32 | 1 << 8 | WR_SLOT_ACTIVE);
        clients[i] = (wr_store_client){.port = &ports[i],
                                       .directory = directory,
                                       .directory_rows = ROWS,
                                       .images = images,
                                       .images_n = 1,
                                       .file_bytes = FILE_BYTES,
                                       .directory_fd = -1,
                                       .node_id = super->node_id,
                                       .view_of = view_of};
    }
    snprintf(folder, sizeof folder, "%s/storeclient-XXXXXX", getenv("TMPDIR") ? getenv("TMPDIR") : "/tmp");
    check_clean_up = clean_up;
    CHECK(mkdtemp(folder));
    for (int i = 0; i < 2; i++) clients[i].directory_fd = open(folder, O_RDONLY | O_DIRECTORY);
}

static void make_id(uint8_t id[16], uint64_t epoch, uint64_t counter) {
    wr_put64(id, epoch);
    wr_put64(id + 8, counter);
}

static uint32_t rows_used(void) {
    uint32_t n = 0;
    for (int i = 0; i < ROWS; i++) n += atomic_load(&directory[i]) != 0;
    return n;
}

/* The server has executed everything: rows gone, ring and arena free. */
static void all_done(int who) {
    wr_link *link = &ports[who].view.links[0];
    uint64_t tail = atomic_load(&link->tail);
    atomic_store(&link->processed, tail);
    atomic_store(&link->head, tail);
    memset((void *)directory, 0, sizeof directory);
}

static bool reads(int who, const uint8_t id[16], const void *body, uint32_t length) {
    uint8_t *found;
    uint32_t n;
    uint16_t meta;
    if (wr_store_client_read(&clients[who], id, &found, &n, &meta)) return false;
    bool same = n == length && meta == 0 && memcmp(found, body, length) == 0;
    free(found);
    return same;
}

static bool reads_nothing(int who, const uint8_t id[16]) {
    uint8_t *found;
    uint32_t n;
    uint16_t meta;
    return wr_store_client_read(&clients[who], id, &found, &n, &meta) == ENOENT;
}

enum { MANY = 300 };
static char texts[MANY][40];
static wr_store_body bodies[MANY];

static void make_bodies(void) {
    for (uint32_t i = 0; i < MANY; i++) {
        bodies[i].length = (uint32_t)(random64() % 40);
        for (uint32_t k = 0; k < bodies[i].length; k++) texts[i][k] = (char)random64();
        bodies[i].bytes = texts[i];
    }
}

static void enter(const uint8_t id[16], uint32_t file, uint32_t offset, uint32_t total) {
    wr_index_entry *entry = wr_index_find(&index_, id);
    if (!entry) entry = wr_index_insert(&index_, id);
    CHECK(entry);
    wr_entry_begin(entry);
    entry->state = 1;
    entry->file = file;
    entry->offset = offset;
    entry->total_size = total;
    entry->ref_count = 1;
    entry->meta_length = 0;
    wr_entry_end(entry);
}

static void leave(const uint8_t id[16]) { wr_index_remove(&index_, id, wr_index_find(&index_, id)); }

static void test_phases(void) {
    uint8_t first[16], id[16];
    uint64_t sequence;
    make_bodies();
    make_id(first, 7, 1000);
    CHECK(wr_store_client_write_many(&clients[0], first, bodies, MANY, WR_FLAG_SYNCED, &sequence) == 0);
    CHECK(rows_used() == (1000 + MANY - 1) / 64 - 1000 / 64 + 1);
    const wr_command *command = wr_view_command(&ports[0].view, 0, sequence);
    CHECK(command->op == WR_OP_STORE_WRITE_MANY && command->count == MANY && command->tag == 0 && command->meta_length == 0 &&
          command->flags == WR_FLAG_SYNCED && memcmp(command->id, first, 16) == 0 && command->body % 8 == 0);
    uint8_t *blob = wr_view_blob(&ports[0].view, command->body, command->length);
    _Atomic uint32_t *flying = (_Atomic uint32_t *)blob;
    const uint32_t *ends = (const uint32_t *)(blob + 4 * MANY);
    CHECK(blob && ends[MANY - 1] == command->length - 8 * MANY && flying[0] == WR_FLYING_WRITTEN);
    CHECK(wr_port_submit(&ports[0], 0));
    for (uint32_t i = 0; i < MANY; i++) {
        make_id(id, 7, 1000 + i);
        CHECK(reads(0, id, texts[i], bodies[i].length) && reads(1, id, texts[i], bodies[i].length));
    }
    make_id(id, 7, 999);
    CHECK(reads_nothing(1, id) && reads_nothing(0, id));
    make_id(id, 7, 1000 + MANY);
    CHECK(reads_nothing(1, id));
    make_id(id, 8, 1000);
    CHECK(reads_nothing(1, id));

    /* Every third is taken by the server: it cannot be eliminated any more; the others can, once. */
    static uint8_t ids[MANY][16];
    for (uint32_t i = 0; i < MANY; i++) {
        make_id(ids[i], 7, 1000 + i);
        if (i % 3 == 0) atomic_store(&flying[i], WR_FLYING_TAKEN);
    }
    uint32_t gone;
    CHECK(wr_store_client_remove(&clients[1], (const uint8_t(*)[16])ids, MANY, &gone) == 0 && gone == 0); /* not of that client */
    wr_store_client_abandon(&clients[1], 0);
    CHECK(wr_store_client_remove(&clients[0], (const uint8_t(*)[16])ids, MANY, &gone) == 0 && gone == MANY - MANY / 3);
    CHECK(wr_view_command(&ports[0].view, 0, sequence + 1)->count == MANY / 3);
    CHECK(wr_store_client_remove(&clients[0], (const uint8_t(*)[16])ids, MANY, &gone) == 0 && gone == 0);
    wr_store_client_abandon(&clients[0], sequence + 1);
    for (uint32_t i = 0; i < MANY; i++)
        CHECK(i % 3 ? reads_nothing(0, ids[i]) && reads_nothing(1, ids[i]) : reads(1, ids[i], texts[i], bodies[i].length));

    /* Done: what the index says counts, for its writer as for others. */
    wr_image *image = (wr_image *)images;
    atomic_store(&image->file, 3 + 1);
    atomic_store(&image->appended, 8192);
    memcpy(images + WR_PAGE_BYTES + 5000 + WR_FRAME_HEAD_BYTES, texts[3], bodies[3].length);
    enter(ids[3], 3, 5000, bodies[3].length + WR_FRAME_BYTES_MIN);
    atomic_store(&flying[3], WR_FLYING_DONE);
    CHECK(reads(0, ids[3], texts[3], bodies[3].length) && reads(1, ids[3], texts[3], bodies[3].length));
    leave(ids[3]);
    CHECK(reads_nothing(0, ids[3]) && reads_nothing(1, ids[3]));

    /* The server is replaced: its directory is empty, only the ring's owner still finds what was not taken up. */
    memset((void *)directory, 0, sizeof directory);
    CHECK(reads(0, ids[6], texts[6], bodies[6].length) && reads_nothing(1, ids[6]));
    clients[0].rows_known = true;
    clients[0].rows_from = sequence + 1;
    CHECK(reads(0, ids[6], texts[6], bodies[6].length));
    clients[0].rows_from = sequence;
    CHECK(reads_nothing(0, ids[6]));
    clients[0].rows_known = false;
    all_done(0);
    CHECK(reads_nothing(0, ids[6]));

    /* Another server has taken over: the regions at hand prove nothing, until they are opened anew. */
    wr_server *server = wr_superblock_server(super, 0);
    wr_store_place place;
    clients[0].epoch = 4;
    atomic_store(&server->epoch, 5);
    CHECK(wr_store_client_find(&clients[0], ids[6], &place) == ESTALE);
    clients[0].epoch = 5;
    CHECK(wr_store_client_find(&clients[0], ids[6], &place) == ENOENT);
    clients[0].epoch = 0;
    CHECK(wr_store_client_find(&clients[0], ids[6], &place) == ENOENT);
    atomic_store(&server->epoch, 0);
}

/* What is removed and not executed yet is told exactly, through all rounds of the marks, also of ids that share one. */
static void test_removals(void) {
    wr_removals r = {0};
    uint8_t ids[2][16], other[16];
    uint64_t sequence, first;
    uint32_t gone;
    CHECK(wr_removals_open(&r) == 0 && wr_removals_open(&r) == 0 && !r.until);
    make_id(ids[0], 7, 5000);
    make_id(ids[1], 7, 5001);
    for (uint64_t counter = 5002;; counter++) {
        make_id(other, 7, counter);
        if ((wr_id_hash(other) ^ wr_id_hash(ids[0])) % WR_REMOVALS_MARKS == 0) break;
    }
    for (int round = 0; round < 70000; round++) {
        CHECK(wr_store_client_remove(&clients[0], (const uint8_t(*)[16])ids, 2, &gone) == 0 && gone == 0);
        wr_removals_note(&r, (const uint8_t(*)[16])ids, 2, ports[0].prepared[0]);
        first = ports[0].prepared[0] - 1;
        CHECK(wr_store_client_remove(&clients[0], (const uint8_t(*)[16])ids, 1, &gone) == 0 && gone == 0);
        wr_removals_note(&r, (const uint8_t(*)[16])ids, 1, ports[0].prepared[0]);
        wr_port_submit(&ports[0], 0);
        CHECK(wr_removals_under_way(&r, &clients[0], ids[0], &sequence) && sequence == first + 1);
        CHECK(wr_removals_under_way(&r, &clients[0], ids[1], &sequence) && sequence == first);
        CHECK(!wr_removals_under_way(&r, &clients[0], other, &sequence));
        atomic_store(&ports[0].view.links[0].processed, first + 1);
        CHECK(wr_removals_under_way(&r, &clients[0], ids[0], &sequence) && sequence == first + 1);
        CHECK(!wr_removals_under_way(&r, &clients[0], ids[1], &sequence) && r.until);
        all_done(0);
        CHECK(!wr_removals_under_way(&r, &clients[0], ids[0], &sequence) && !r.until && r.round);
    }
    wr_removals_close(&r);
    wr_removals_close(&r);
}

/* All or nothing: ring, arena and buckets. */
static void test_full(void) {
    uint8_t id[16];
    uint64_t sequence, prepared = ports[0].prepared[0];
    make_bodies();
    make_id(id, 7, 64 * 1000 - 100);
    /* a bucket of its last group is full */
    uint8_t group[16], last[16];
    make_id(last, 7, 64 * 1000 + 10);
    wr_group_id(last, group);
    uint64_t hash = wr_id_hash(group);
    for (uint32_t i = 0; i < WR_DIRECTORY_WAYS; i++) atomic_store(&directory[wr_directory_bucket(hash, ROWS) + i], 0xffff000000000001ull + i);
    uint32_t before = rows_used();
    uint64_t next = ports[0].arena_next;
    for (int i = 0; i < 1000; i++)
        CHECK(wr_store_client_write_many(&clients[0], id, bodies, 200, 0, &sequence) == EAGAIN && rows_used() == before);
    CHECK(ports[0].prepared[0] == prepared && ports[0].arena_next <= next + ARENA);
    memset((void *)directory, 0, sizeof directory);
    /* the arena */
    uint32_t batches = 0;
    while (wr_store_client_write_many(&clients[0], id, bodies, MANY, 0, &sequence) == 0) {
        batches++;
        CHECK(batches < RING);
    }
    CHECK(batches > 2 && ports[0].prepared[0] == prepared + batches);
    before = rows_used();
    CHECK(wr_store_client_write_many(&clients[0], id, bodies, MANY, 0, &sequence) == EAGAIN && rows_used() == before);
    wr_store_client_abandon(&clients[0], prepared);
    CHECK(rows_used() == 0 && ports[0].prepared[0] == prepared);
    CHECK(!wr_port_submit(&ports[0], 0));
    ports[0].uses_first = ports[0].uses_next; /* as wr_port_reclaim would, a little later */
    ports[0].arena_freed = ports[0].arena_next;
    /* the ring */
    for (uint64_t i = 0; i < RING; i++) {
        make_id(id, 7, i * 64);
        CHECK(wr_store_client_write_many(&clients[0], id, bodies, 2, 0, &sequence) == 0);
    }
    CHECK(wr_store_client_write_many(&clients[0], id, bodies, 2, 0, &sequence) == EAGAIN);
    CHECK(wr_port_submit(&ports[0], 0));
    all_done(0);
    /* never */
    wr_store_body large = {texts, (uint32_t)ARENA};
    CHECK(wr_store_client_write_many(&clients[0], id, &large, 1, 0, &sequence) == EMSGSIZE);
    CHECK(wr_store_client_write_many(&clients[0], id, bodies, 0, 0, &sequence) == EINVAL);
    make_id(id, 7, UINT64_MAX - 3);
    CHECK(wr_store_client_write_many(&clients[0], id, bodies, 4, 0, &sequence) == EINVAL);
    /* cuts */
    wr_store_body some[3] = {{texts, 10}, {texts, WR_BATCH_BYTES}, {texts, 1}};
    CHECK(wr_store_batch_cut(some, 3) == 1 && wr_store_batch_cut(some + 1, 2) == 1 && wr_store_batch_cut(some, 1) == 1);
    static wr_store_body many[WR_BATCH_MESSAGES + 1];
    CHECK(wr_store_batch_cut(many, WR_BATCH_MESSAGES + 1) == WR_BATCH_MESSAGES);
}

/* Counted ids in batches and alone, many under way, checked one by one; some are eliminated. */
static void test_mixed(void) {
    enum { IDS = 2000 };
    static uint8_t text_of[IDS]; /* 0: not there, else the body is this byte, n % 7 times */
    uint64_t sequence;
    uint8_t id[16];
    for (int round = 0; round < 300; round++) {
        memset(text_of, 0, sizeof text_of);
        for (int step = 0; step < 20; step++) {
            uint64_t at = random64() % IDS;
            if (random64() % 3) {
                char same[64][8];
                wr_store_body some[64];
                uint32_t n = 1 + (uint32_t)(random64() % 64);
                if (at + n > IDS) n = (uint32_t)(IDS - at);
                bool fresh = true;
                for (uint32_t i = 0; i < n; i++) fresh &= !text_of[at + i];
                if (!fresh) continue;
                for (uint32_t i = 0; i < n; i++) {
                    memset(same[i], (int)(at + i) % 255 + 1, 8);
                    some[i] = (wr_store_body){same[i], (uint32_t)((at + i) % 7)};
                }
                make_id(id, 7, at);
                if (wr_store_client_write_many(&clients[0], id, some, n, 0, &sequence)) break;
                for (uint32_t i = 0; i < n; i++) text_of[at + i] = (uint8_t)((at + i) % 255 + 1);
            } else if (!text_of[at]) {
                uint64_t position;
                uint8_t *to;
                CHECK(wr_port_alloc(&ports[0], at % 7, &position, &to) == 0);
                memset(to, (int)at % 255 + 1, at % 7);
                make_id(id, 7, at);
                CHECK(wr_store_client_write(&clients[0], id, position, at % 7, 0, 0, 0, &sequence) == 0);
                CHECK(wr_port_use(&ports[0], 0, sequence) == 0);
                text_of[at] = (uint8_t)(at % 255 + 1);
            }
            wr_port_submit(&ports[0], 0);
            uint32_t gone;
            uint8_t remove[1][16];
            at = random64() % IDS;
            make_id(remove[0], 7, at);
            CHECK(wr_store_client_remove(&clients[0], (const uint8_t(*)[16])remove, 1, &gone) == 0 && gone == (text_of[at] != 0));
            if (gone) text_of[at] = 0;
            else wr_store_client_abandon(&clients[0], ports[0].prepared[0] - 1);
        }
        wr_port_submit(&ports[0], 0);
        for (int k = 0; k < 100; k++) {
            uint64_t at = random64() % IDS;
            char body[8];
            make_id(id, 7, at);
            memset(body, text_of[at], 8);
            for (int who = 0; who < 2; who++) CHECK(text_of[at] ? reads(who, id, body, at % 7) : reads_nothing(who, id));
        }
        all_done(0);
    }
}

static void test_disk(void) {
    enum { FRAMES = 50 };
    uint8_t *file = calloc(1, FILE_BYTES), id[16], *found;
    uint64_t salt = random64(), at = WR_FILE_HEADER_BYTES, offsets[FRAMES], totals[FRAMES];
    uint32_t length, lengths[FRAMES];
    uint16_t meta;
    wr_store_place place;
    char name[300], body[8000];
    uint8_t parts[2][8000];
    all_done(0);
    all_done(1);
    wr_file_header_write(file, WR_FILE_STORE, super->node_id, 0, 1, salt, 1);
    for (uint32_t i = 0; i < FRAMES; i++) {
        wr_frame_head head = {.kind = WR_KIND_MESSAGE, .meta_length = (uint16_t)(i % 3 * 600)};
        make_id(head.id, 9, i);
        memset(body, (int)i, sizeof body);
        memset(body, (int)i + 100, head.meta_length);
        offsets[i] = at;
        lengths[i] = 1800 + i + (i % 5 == 4 ? 4000 : 0); /* read in one piece, and in parts */
        totals[i] = wr_frame_write(file + at, &head, NULL, 0, body, lengths[i], salt);
        at += totals[i];
        enter(head.id, 1, (uint32_t)offsets[i], (uint32_t)totals[i]);
        wr_index_entry *entry = wr_index_find(&index_, head.id);
        wr_entry_begin(entry);
        entry->meta_length = head.meta_length;
        wr_entry_end(entry);
    }
    snprintf(name, sizeof name, "%s/1.rdq", folder);
    int fd = open(name, O_RDWR | O_CREAT | O_EXCL, 0600);
    CHECK(fd >= 0 && pwrite(fd, file, FILE_BYTES, 0) == FILE_BYTES);
    make_id(id, 9, 7);
    CHECK(wr_store_client_find(&clients[0], id, &place) == 0 && place.in_file && place.length == 1807 && place.meta_length == 600);
    CHECK(wr_store_client_take(&clients[0], id, &place, NULL, body, false) == EINPROGRESS); /* not open */
    CHECK(wr_store_client_take(&clients[0], id, &place, NULL, body, true) == 0 && body[0] == 7 && body[1206] == 7);
    wr_store_client_move_file(&clients[0], &clients[1], 1);
    CHECK(wr_store_client_take(&clients[0], id, &place, NULL, body, false) == EINPROGRESS);
    int error = wr_store_client_take(&clients[1], id, &place, NULL, body, false);
    CHECK(error == 0 || (error == EINPROGRESS && clients[1].no_nowait)); /* what was just written is in memory */
    CHECK(atomic_load(&wr_superblock_slot(super, 0)->reading) == 0);
    for (uint32_t i = 0; i < FRAMES; i++) {
        make_id(id, 9, i);
        CHECK(wr_store_client_read(&clients[0], id, &found, &length, &meta) == 0 && length == lengths[i] && meta == i % 3 * 600 &&
              found[0] == (meta ? i + 100 : i) && found[meta] == i && found[length - 1] == i);
        free(found);
        CHECK(wr_store_client_find(&clients[0], id, &place) == 0);
        for (int with = 0; with < 2; with++) { /* the metadata, if they are wanted, elsewhere */
            memset(parts, 255, sizeof parts);
            CHECK(wr_store_client_take(&clients[0], id, &place, with ? parts[0] : NULL, parts[1], true) == 0);
            CHECK(parts[0][meta] == 255 && (!meta || parts[0][meta - 1] == (with ? i + 100 : 255)));
            CHECK(parts[1][0] == i && parts[1][length - meta - 1] == i && parts[1][length - meta] == 255);
        }
    }
    /* Any flipped bit is seen. */
    for (int step = 0; step < 300; step++) {
        uint32_t i = (uint32_t)(random64() % FRAMES);
        uint64_t bad = offsets[i] + random64() % totals[i];
        uint8_t flipped = file[bad] ^ (uint8_t)(1 << random64() % 8);
        CHECK(pwrite(fd, &flipped, 1, (off_t)bad) == 1);
        make_id(id, 9, i);
        CHECK(wr_store_client_read(&clients[0], id, &found, &length, &meta) == EBADMSG);
        CHECK(pwrite(fd, file + bad, 1, (off_t)bad) == 1);
        CHECK(wr_store_client_read(&clients[0], id, &found, &length, &meta) == 0);
        free(found);
    }
    /* The index points elsewhere: another message's frame, nowhere, outside, a file that is not there, or is another. */
    make_id(id, 9, 3);
    wr_index_entry *entry = wr_index_find(&index_, id), was = *entry;
    enter(id, 1, (uint32_t)offsets[4], (uint32_t)totals[4]);
    CHECK(wr_store_client_read(&clients[0], id, &found, &length, &meta) == EBADMSG);
    enter(id, 1, 4096 * 60, 500);
    CHECK(wr_store_client_read(&clients[0], id, &found, &length, &meta) == EBADMSG);
    enter(id, 1, FILE_BYTES - 100, 200);
    CHECK(wr_store_client_read(&clients[0], id, &found, &length, &meta) == EBADMSG);
    enter(id, 1, 0, 3);
    CHECK(wr_store_client_read(&clients[0], id, &found, &length, &meta) == EBADMSG);
    enter(id, 2, was.offset, was.total_size);
    CHECK(wr_store_client_read(&clients[0], id, &found, &length, &meta) == EBADMSG);
    /* The same, when a newer server has begun: the file may have gone with the one whose index this is. */
    wr_server *server = wr_superblock_server(super, 0);
    clients[0].epoch = 4;
    atomic_store(&server->begun, 4);
    CHECK(wr_store_client_read(&clients[0], id, &found, &length, &meta) == EBADMSG);
    atomic_store(&server->begun, 5);
    CHECK(wr_store_client_read(&clients[0], id, &found, &length, &meta) == ESTALE);
    clients[0].epoch = 0;
    atomic_store(&server->begun, 0);
    char second[300];
    snprintf(second, sizeof second, "%s/2.rdq", folder);
    CHECK(link(name, second) == 0);
    CHECK(wr_store_client_read(&clients[0], id, &found, &length, &meta) == EBADMSG);
    CHECK(ftruncate(fd, (off_t)offsets[3] + 100) == 0);
    enter(id, 1, was.offset, was.total_size);
    CHECK(wr_store_client_read(&clients[0], id, &found, &length, &meta) == EBADMSG);
    close(fd);
    free(file);
}

/* Whatever stands in another client's region and in the directory: a reader answers, and reads nothing outside of the regions. */
static void test_hostile(void) {
    uint8_t id[16];
    uint32_t answers = 0;
    for (int step = 0; step < 30000; step++) {
        uint64_t counter = 5000 + random64() % 100, sequence = random64() % RING;
        make_id(id, 7, counter);
        uint8_t group[16];
        wr_group_id(id, group);
        bool batch = random64() % 3;
        uint64_t hash = wr_id_hash(batch ? group : id);
        memset((void *)directory, 0, sizeof directory);
        uint32_t slot = random64() % 20 ? 1 : (uint32_t)random64() & 0xff;
        wr_directory_insert(directory, ROWS, hash, wr_directory_word(hash, slot, sequence));
        wr_command *command = wr_view_command(&ports[1].view, 0, sequence);
        for (uint32_t k = 0; k < 16; k++) ((uint32_t *)command)[k] = (uint32_t)random64();
        command->op = batch ? WR_OP_STORE_WRITE_MANY : WR_OP_STORE_WRITE;
        if (random64() % 8) make_id(command->id, 7, batch ? counter - random64() % 100 : counter);
        if (random64() % 2) command->count = random64() % 5000;
        if (random64() % 2) command->length = (uint32_t)(random64() % (2 * ARENA));
        if (random64() % 2) command->body = random64() % ARENA & ~7ull;
        if (random64() % 2) command->tag = random64() % 4 ? 0 : 1ull << 16 | (1 + random64() % 3);
        if (random64() % 2) command->meta_length = 0;
        atomic_store(&command->flying, (uint32_t)(random64() % 5));
        uint32_t *arena = (uint32_t *)ports[1].view.arena;
        uint64_t from = command->body % ARENA / 4;
        for (uint32_t k = 0; k < 400; k++)
            arena[(from + k) % (ARENA / 4)] = random64() % 4 ? (uint32_t)(random64() % 5) : random64() % 2 ? k * 8 : (uint32_t)random64();
        uint8_t *found;
        uint32_t length;
        uint16_t meta;
        int error = wr_store_client_read(&clients[0], id, &found, &length, &meta);
        CHECK(error == 0 || error == ENOENT || error == ESTALE);
        if (error) continue;
        answers++;
        CHECK(length <= ARENA && meta <= length);
        free(found);
    }
    CHECK(answers > 100);
    memset((void *)directory, 0, sizeof directory);
}

int main(int argc, char **argv) {
    random_begin("client_test", argc, argv);
    set_up();
    test_phases();
    test_removals();
    test_full();
    test_mixed();
    test_disk();
    test_hostile();
    for (int i = 0; i < 2; i++) {
        wr_store_client_close(&clients[i]);
        close(clients[i].directory_fd);
        wr_port_free(&ports[i]);
        free(regions[i]);
    }
    munmap(index_.header, WR_PAGE_BYTES + HASH_ROWS * 64);
    munmap(index_.dense_header, WR_PAGE_BYTES + TABLE_ROWS * 32);
    munmap(index_.extents[0], WR_DENSE_EXTENT_BYTES);
    wr_index_free(&index_);
    free(images);
    free(super);
    clean_up();
    return 0;
}
