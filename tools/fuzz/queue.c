/* Target: the queue worker's reading of client regions. The input is a program of hostile clients and of the engine's rounds and
 * commits; a good client publishes and consumes on a queue of its own, whose id the input cannot know. The stores are played: what
 * the engine asks them is checked and confirmed.
 *
 * Checked: no bad access; the good client gets what it published, in order, once, with its bytes; its link stays open; a link is
 * closed with a reason; a client that ends is swept and all that it held goes back. */
#define _GNU_SOURCE
#include "hostile.h"
#include "kernel/delivery.h"
#include "queues/consumers.h"
#include "queues/drop.h"
#include "queues/engine.h"
#include "queues/journal.h"
#include "queues/links.h"
#include "queues/loop.h"
#include "queues/owed.h"
#include "queues/played_stores.h"
#include "queues/registry.h"
#include "queues/replay.h"
#include <sys/mman.h>
#include <unistd.h>

enum { SERVER = 2, HOSTILES = 2, GOOD_SLOT = 9, ME_SLOT = 20, FILE_BYTES = 32 * 4096, IMAGES = 2, FILES = 200, RING = 64, SLOTS = 16,
       QUEUES = 4, DIRECTORY = 1024, GOOD_MAX = 64, EMBED = 512, ROUNDS_MAX = 400 };

static wr_superblock *super;
static uint8_t *images, *transient_images, *stats, *own_region, *directory;
static uint64_t images_bytes, client_bytes;
static wr_queue_engine *e;
static int files[2][FILES];
static uint32_t next_file[2], rounds;
static bool full;
static hostile hostiles[HOSTILES];
static struct {
    wr_view view;
    uint8_t *region;
    uint64_t secret, next, arena_next;
    uint32_t queue, published, got, credit;
    uint64_t length[GOOD_MAX];
    uint64_t published_body[GOOD_MAX];
} good;

static void offer(int transient) {
    wr_log *log = transient ? e->transient_log : e->log;
    while (!wr_log_look(log)->has_next) {
        uint32_t file = next_file[transient];
        if (file >= FILES) {
            full = true;
            return;
        }
        next_file[transient]++;
        uint8_t header[WR_FILE_HEADER_BYTES];
        int fd = memfd_create("warren-fuzz", MFD_CLOEXEC);
        FUZZ_CHECK(fd >= 0 && ftruncate(fd, FILE_BYTES) == 0);
        files[transient][file] = fd;
        wr_file_header_write(header, WR_FILE_JOURNAL, 7, SERVER, file, 1000 + file, 1);
        FUZZ_CHECK(wr_log_offer(log, dup(fd), file, 1000 + file, header) == 0);
    }
}

static wr_qlink *paused(void) {
    for (uint32_t i = 0; i < e->links_n; i++)
        if (e->links[e->order[i]]->pause == WR_PAUSE_CONTROL) return e->links[e->order[i]];
    return NULL;
}

static void run_round(void) {
    if (full) return;
    rounds++;
    wr_queue_run(e, 0, false);
    stores_play(e);
    offer(0);
    offer(1);
    for (wr_qlink *l; (l = paused());) wr_queue_control_answer(e, l, WR_RESULT_OK, (uint32_t)(l->next % 100), l->next & 1);
    if (e->unknown_waiting || atomic_load(&super->catalog_version) != e->seen_catalog_version)
        wr_queue_catalog_loaded(e, atomic_load(&super->catalog_version));
    for (int transient = 0; transient < 2; transient++) {
        wr_files *f = transient ? &e->transient_files : &e->files;
        while (f->n > 1 && !f->live[0] && (transient || wr_journal_may_delete(e, f->first))) {
            FUZZ_CHECK(f->first < FILES);
            if (files[transient][f->first] >= 0) close(files[transient][f->first]);
            files[transient][f->first] = -1;
            wr_files_drop_first(f);
        }
    }
}

static void run_rounds(uint32_t n) {
    while (n-- && rounds < ROUNDS_MAX && !full) run_round();
}

static void attach(hostile *h) {
    const int error = wr_queue_attach(e, h->slot, h->generation, h->client_epoch, h->region, h->bytes);
    const wr_geometry said = wr_geometry_of_client(super, h->slot);
    FUZZ_CHECK(error == 0 || (error == EINVAL && (said.delivery_slots & (said.delivery_slots - 1) || wr_view_bytes(&said) > h->bytes)));
    h->attached = !error; /* refused if its row says that it has slots which its region has not */
}

static void detach(hostile *h) {
    if (!h->attached) return;
    wr_queue_closing(e, h->slot);
    for (int tries = 0; !wr_queue_detach(e, h->slot); tries++) {
        if (full) return;
        FUZZ_CHECK(tries < 1000);
        run_round();
        journals_commit(e);
    }
    h->attached = false;
}

/* ---- the good client ---- */

static void body_of(uint8_t *to, uint64_t n, uint64_t length) {
    for (uint64_t i = 0; i < length; i++) to[i] = (uint8_t)(fuzz_mix(good.secret + n) >> i % 8 * 8) ^ (uint8_t)i;
}

static wr_command *good_command(uint8_t op) {
    wr_command *c = wr_view_command(&good.view, SERVER, good.next++);
    memset((void *)c, 0, sizeof *c);
    c->op = op;
    c->queue = good.queue;
    return c;
}

static wr_link *good_link(void) { return &good.view.links[SERVER]; }

static void good_take(void) {
    wr_link *link = good_link();
    uint64_t tail = atomic_load(&link->delivery_tail), head = atomic_load(&link->delivery_head);
    static uint8_t frame[FILE_BYTES], body[4096];
    FUZZ_CHECK(tail - head <= SLOTS);
    for (; head < tail; head++) {
        uint32_t slot = atomic_load(wr_view_delivery_ring(&good.view, SERVER, head));
        FUZZ_CHECK(slot < SLOTS);
        const wr_delivery *d = wr_view_delivery(&good.view, SERVER, slot);
        FUZZ_CHECK(atomic_load(&d->state) == WR_DELIVERY_HELD && d->queue == good.queue && d->sequence == good.got && d->pushed_at == head);
        uint64_t length = good.length[good.got];
        FUZZ_CHECK(d->body_length == length);
        if (wr_delivery_location(d) == WR_LOCATION_JOURNAL || wr_delivery_location(d) == WR_LOCATION_JOURNAL_TRANSIENT) {
            int transient = wr_delivery_location(d) == WR_LOCATION_JOURNAL_TRANSIENT;
            FUZZ_CHECK((uint64_t)d->offset + d->frame_length <= FILE_BYTES);
            if (!wr_image_read(transient ? transient_images : images, IMAGES, FILE_BYTES, d->file, d->offset, frame, d->frame_length)) {
                FUZZ_CHECK(d->file < FILES && files[transient][d->file] >= 0);
                FUZZ_CHECK(pread(files[transient][d->file], frame, d->frame_length, d->offset) == (ssize_t)d->frame_length);
            }
            wr_frame_head found;
            FUZZ_CHECK(wr_frame_check(frame, d->frame_length, 0, 1000ull + d->file, &found, NULL) == d->frame_length);
            body_of(body, good.published_body[good.got], length);
            FUZZ_CHECK((uint64_t)d->blob_offset + length <= d->frame_length && !memcmp(frame + d->blob_offset, body, length));
        } else {
            FUZZ_CHECK(length >= EMBED);
        }
        wr_command *c = good_command(WR_OP_ACK);
        c->tag = d->sequence;
        c->flags = d->sequence & 1 ? WR_FLAG_SYNCED : 0;
        good.got++;
    }
    atomic_store(&link->delivery_head, head);
    atomic_store(&link->tail, good.next);
}

static void good_settle(bool everything) {
    for (int tries = 0;; tries++) {
        wr_link *link = good_link();
        good_take();
        if (full) return;
        FUZZ_CHECK(atomic_load(&link->evicted) == 0);
        if (atomic_load(&link->head) >= good.next && (!everything || good.got == good.published)) return;
        FUZZ_CHECK(tries < 300);
        run_round();
        journals_commit(e);
    }
}

static void good_publish(uint32_t count, uint64_t length, uint8_t flags) {
    good_settle(false);
    while (count-- && good.published < GOOD_MAX) {
        wr_command *c = good_command(WR_OP_PUBLISH);
        c->flags = flags;
        wr_put64(c->id, good.secret);
        wr_put64(c->id + 8, good.published);
        uint64_t room = good.view.g.arena_bytes - good.arena_next % good.view.g.arena_bytes;
        if (room < length) good.arena_next += room;
        c->body = good.arena_next;
        c->length = (uint32_t)length;
        body_of(wr_view_blob(&good.view, good.arena_next, length), good.published, length);
        good.arena_next += (length + 7) & ~7ull;
        good.length[good.published] = length;
        good.published_body[good.published] = good.published;
        good.published++;
    }
    atomic_store(&good_link()->tail, good.next);
    good_settle(false);
}

static void good_credit(uint32_t n) {
    good_settle(false);
    good.credit += n;
    wr_command *c = good_command(WR_OP_CREDIT);
    c->tag = good.credit;
    atomic_store(&good_link()->tail, good.next);
    good_settle(false);
}

/* ---- hostile commands ---- */

static const uint8_t ops[] = {WR_OP_PUBLISH, WR_OP_PUBLISH, WR_OP_PUBLISH, WR_OP_ACK,     WR_OP_ACK,    WR_OP_NACK,   WR_OP_CREDIT,
                              WR_OP_CREDIT,  WR_OP_CANCEL,  WR_OP_LOCATE,  WR_OP_CONTROL, WR_OP_BARRIER, WR_OP_LEAVE,   WR_OP_STORE_WRITE};

static void crafted(hostile *h, fuzz_input *in) {
    wr_link *link = &h->view.links[SERVER];
    uint64_t tail = atomic_load(&link->tail);
    wr_command *c = wr_view_command(&h->view, SERVER, tail);
    uint16_t wrong = fuzz16(in);
    memset((void *)c, 0, sizeof *c);
    c->op = ops[fuzz8(in) % sizeof ops];
    c->flags = fuzz8(in);
    wr_put64(c->id, fuzz8(in));
    wr_put64(c->id + 8, fuzz8(in));
    c->queue = wrong & 512 ? WR_REPLY_QUEUE | (h->generation << WR_REPLY_SHIFT & (WR_REPLY_QUEUE - 1)) | (h->slot ^ (wrong >> 12 & 1))
               : wrong & 1 ? fuzz32(in) : 1 + (uint32_t)(wrong >> 12) % (QUEUES + 1);
    c->body = wrong & 2 ? fuzz_size(in, h->view.g.arena_bytes) : (uint64_t)fuzz8(in) * 8;
    c->length = wrong & 4 ? (uint32_t)fuzz_size(in, super->message_bytes_max) : fuzz16(in) & 0x7ff;
    if (wrong & 8) c->meta_length = fuzz16(in);
    if (c->op == WR_OP_CREDIT) {
        c->body = wrong & 2 ? c->body : 0;
        c->tag = wrong & 16 ? fuzz64(in) : fuzz8(in);
        c->count = wrong & 32 ? fuzz64(in) : fuzz8(in) & 7;
    } else if (c->op == WR_OP_PUBLISH) {
        if (wrong & 64) { /* routes */
            uint32_t n = fuzz8(in) & 15;
            c->flags |= WR_FLAG_ROUTES;
            uint8_t *blob = wr_view_blob(&h->view, c->body, 64);
            for (uint32_t i = 0; blob && i < n && i < 16; i++) blob[4 * i] = (uint8_t)(1 + fuzz8(in) % (QUEUES + 1)), memset(blob + 4 * i + 1, 0, 3);
            c->queue = wrong & 128 ? (uint32_t)fuzz_size(in, WR_ROUTES_MAX) : n;
        } else {
            c->flags &= (uint8_t)~WR_FLAG_ROUTES;
            if (c->flags & WR_FLAG_LARGE && !(wrong & 4)) { /* a length, and a key before it */
                const uint32_t key = c->flags & WR_FLAG_DEDUPLICATE ? WR_KEY_BYTES : 0, length = fuzz16(in);
                uint8_t *blob = wr_view_blob(&h->view, c->body, key + sizeof length);
                if (blob) memcpy(blob + key, &length, sizeof length);
                c->length = (uint32_t)(key + sizeof length);
            }
        }
    } else {
        c->tag = wrong & 16 ? fuzz_size(in, 64) : fuzz8(in);
        if (wrong & 32) { /* a list of tags */
            c->count = wrong & 256 ? fuzz_size(in, c->length / 8) : fuzz8(in) & 15;
            uint8_t *blob = wr_view_blob(&h->view, c->body, 128);
            for (uint32_t i = 0; blob && i < 16 && i < c->count; i++) {
                uint64_t tag = fuzz8(in);
                memcpy(blob + 8 * i, &tag, 8);
            }
            if (!(wrong & 4)) c->length = (uint32_t)c->count * 8;
        }
    }
    if (!(wrong & 2048)) atomic_store(&link->tail, tail + 1);
}

static void setup(const uint8_t *data, size_t size) {
    if (!super) {
        super = fuzz_memory(WR_SUPERBLOCK_BYTES);
        images_bytes = WR_PAGE_BYTES + (uint64_t)IMAGES * FILE_BYTES;
        images = fuzz_memory(images_bytes);
        transient_images = fuzz_memory(images_bytes);
        stats = fuzz_memory(8 * sizeof(wr_queue_stats));
        directory = fuzz_memory(DIRECTORY * 8);
    }
    memset((void *)super, 0, WR_SUPERBLOCK_BYTES);
    super->servers_n = 3;
    super->ring_records = RING;
    super->delivery_slots = SLOTS;
    super->arena_bytes = 16 * 1024;
    super->reply_bytes = 4096;
    super->message_bytes_max = super->shared_bytes_max = 8 * 1024;
    super->embed_bytes_max = EMBED;
    super->state = WR_NODE_RUNNING;
    wr_geometry g = wr_geometry_of(super);
    client_bytes = wr_view_bytes(&g);
    if (!own_region) own_region = fuzz_memory(client_bytes);
    memset(own_region, 0, client_bytes);
    memset(images, 0, images_bytes);
    memset(transient_images, 0, images_bytes);
    memset(stats, 0, 8 * sizeof(wr_queue_stats));
    memset(directory, 0, DIRECTORY * 8);
    full = false;
    rounds = 0;
    next_file[0] = next_file[1] = 0;
    memset(files, 0xff, sizeof files);
    wr_queue_options o = {.super = super, .server = SERVER, .images = images, .transient_images = transient_images, .images_bytes = images_bytes,
                          .images_n = IMAGES, .file_bytes = FILE_BYTES, .stats = stats, .stats_rows = 8, .region = own_region,
                          .region_bytes = client_bytes, .slot = ME_SLOT, .generation = 1, .client_epoch = 77, .tick_ns = 1000000,
                          .commit_bytes = 1 << 16, .journal_files_max = 1000};
    e = wr_queue_new(&o);
    FUZZ_CHECK(e);
    wr_log_set_nameless(e->log);
    wr_log_stop(e->log);
    wr_log_stop(e->transient_log);
    stores_open(e, directory, DIRECTORY);
    good.secret = fuzz_secret(data, size);
    good.queue = (uint32_t)fuzz_mix(good.secret) | 0x80000000;
    for (uint32_t q = 1; q <= QUEUES; q++) FUZZ_CHECK(wr_queue_declare(e, q, q & 1));
    FUZZ_CHECK(wr_queue_declare(e, good.queue, good.secret & 1));
    wr_journal_recovered(e, false);
    offer(0);
    offer(1);
    for (int i = 0; i < HOSTILES; i++) {
        hostile *h = &hostiles[i];
        if (!h->region) h->region = fuzz_memory(client_bytes);
        memset(h->region, 0, client_bytes);
        h->bytes = client_bytes;
        h->slot = (uint32_t)(3 + i);
        h->generation = 1;
        h->client_epoch = 1000 + (uint64_t)i;
        h->attached = false;
        FUZZ_CHECK(wr_view_init(&h->view, h->region, h->bytes, &g) == 0);
    }
    if (!good.region) good.region = fuzz_memory(client_bytes);
    memset(good.region, 0, client_bytes);
    FUZZ_CHECK(wr_view_init(&good.view, good.region, client_bytes, &g) == 0);
    good.next = good.arena_next = 0;
    good.published = good.got = good.credit = 0;
    FUZZ_CHECK(wr_queue_attach(e, GOOD_SLOT, 1, 5, good.region, client_bytes) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    fuzz_input in = {data, size};
    setup(data, size);
    uint8_t mode = fuzz8(&in);
    if (mode & 1) hostile_raw(&hostiles[0], &in);
    if (mode & 2) attach(&hostiles[0]); /* before the worker serves: a restart under a hostile client */
    wr_queue_begin(e, 1);
    if (mode & 4 && !hostiles[0].attached) attach(&hostiles[0]);
    race_on(&hostiles[0], good.secret);
    while (in.left && !full) {
        uint8_t what = fuzz8(&in);
        hostile *h = &hostiles[what >> 7];
        switch (what % 16) {
        case 0:
            hostile_raw(h, &in);
            break;
        case 1:
            hostile_fill(h, &in);
            break;
        case 2:
            hostile_link(h, &in, SERVER);
            break;
        case 3: { /* delivery slots: what a worker believes at take-up */
            wr_delivery *d = wr_view_delivery(&h->view, SERVER, fuzz8(&in));
            atomic_store(&d->state, fuzz8(&in) & 3);
            d->queue = 1 + fuzz8(&in) % QUEUES;
            d->sequence = fuzz8(&in);
            d->pushed_at = fuzz8(&in);
            wr_put64(d->id, fuzz8(&in));
            wr_put64(d->id + 8, fuzz8(&in));
            atomic_store(&h->view.links[SERVER].slots_used, fuzz8(&in) & 1 ? fuzz8(&in) : fuzz32(&in));
            const uint8_t said = fuzz8(&in);
            if (said & 1) atomic_store(&wr_superblock_slot(super, h->slot)->delivery_slots, said & 2 ? fuzz32(&in) : 1u << (said >> 3));
            break;
        }
        case 4:
        case 5:
        case 6:
        case 7:
        case 8:
            crafted(h, &in);
            break;
        case 9:
        case 10:
            run_rounds(1 + (what >> 4 & 3));
            break;
        case 11:
            run_rounds(1);
            journals_commit(e);
            run_rounds(1);
            break;
        case 12: {
            uint32_t count = fuzz8(&in), length = fuzz16(&in);
            good_publish(1 + count % 4, length % 1024, fuzz8(&in) & (WR_FLAG_PERSISTENT | WR_FLAG_SYNCED | WR_FLAG_WRITTEN));
            break;
        }
        case 13:
            good_credit(1 + fuzz8(&in) % 16);
            break;
        case 14: {
            uint32_t id = 1 + fuzz8(&in) % QUEUES;
            wr_queue *q = wr_queue_find(e, id);
            if (what & 16) {
                if (q) wr_queue_drop(e, q);
                FUZZ_CHECK(wr_queue_declare(e, id, id & 1));
            } else if (q) {
                wr_queue_purge(e, q, fuzz8(&in), what & 32);
            }
            break;
        }
        default:
            race_off();
            if (h->attached) {
                detach(h);
            } else {
                uint8_t how = fuzz8(&in);
                h->generation++;
                if (how & 1) h->client_epoch += HOSTILES;
                if (how & 2) memset(h->region, 0, 4096 + 3 * sizeof(wr_link));
                attach(h);
            }
            race_on(&hostiles[0], good.secret);
            break;
        }
    }
    if (!full) {
        good_publish(1, 40, WR_FLAG_PERSISTENT);
        good_credit(GOOD_MAX);
        good_settle(true);
    }
    race_off();
    for (int i = 0; i < HOSTILES; i++) detach(&hostiles[i]);
    if (!full) {
        wr_queue *q = wr_queue_find(e, good.queue);
        FUZZ_CHECK(q && q->ready_n == 0 && q->unacked_n == 0 && good.got == good.published);
        for (uint32_t id = 1; id <= QUEUES; id++) FUZZ_CHECK(wr_queue_find(e, id)->unacked_n == 0);
    }
    journals_commit(e);
    wr_queue_free(e);
    for (int t = 0; t < 2; t++)
        for (uint32_t i = 0; i < next_file[t]; i++)
            if (files[t][i] >= 0) close(files[t][i]);
    return 0;
}
