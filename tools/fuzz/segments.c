/* Target: a start of a queue worker from segments of the queue index and journal files. The input is entries and frames that are made
 * right (PUBLISH with times, keys and priorities, ACK, MOVE to other queues and to dead letters), and then damage.
 *
 * Checked: no bad access; the invariants of every queue hold; what is alive, and where, is what a list of sequences says, as far as
 * nothing is damaged; with damage nothing is alive that was never written, and a second start from the same bytes, in other pieces,
 * gives the same. */
#define _GNU_SOURCE
#include "fuzz.h"
#include "queues/check.h"
#include "queues/delay.h"
#include "queues/engine.h"
#include "queues/levels.h"
#include "queues/owed.h"
#include "queues/pages.h"
#include "queues/registry.h"
#include "queues/replay.h"
#include "queues/segment_codec.h"
#include "queues/segments.h"

enum { SERVER = 2, FILE_BYTES = 32 * 4096, IMAGES = 2, QUEUES = 4, SEQUENCES = 3000, FILES = 2, JOURNAL_BYTES = 8192, SEGMENT_ROWS = 2048,
       SALT = 4711, DEAD = 4, FRAMES_MAX = 200 };

static wr_superblock *super;
static uint8_t *images, *transient_images, *stats, *own_region;
static uint64_t images_bytes, client_bytes;
static uint8_t segments[QUEUES + 1][SEGMENT_ROWS * WR_QUEUE_SEGMENT_ENTRY_SIZE], journal[FILES][JOURNAL_BYTES];
static uint64_t used[FILES];
/* 0: never, 1: gone, 2: alive; ids of what was ever written at a place, as a sum */
static uint8_t alive[QUEUES + 1][SEQUENCES];
static bool ever[QUEUES + 1][SEQUENCES];

static wr_queue_engine *fresh(void) {
    memset((void *)super, 0, WR_SUPERBLOCK_BYTES);
    super->servers_n = 3;
    super->ring_records = super->delivery_slots = 64;
    super->arena_bytes = 16 * 1024;
    super->reply_bytes = 4096;
    super->message_bytes_max = super->shared_bytes_max = 8 * 1024;
    super->embed_bytes_max = 512;
    super->state = WR_NODE_RUNNING;
    wr_geometry g = wr_geometry_of(super);
    client_bytes = wr_view_bytes(&g);
    if (!own_region) own_region = fuzz_memory(client_bytes);
    memset(own_region, 0, client_bytes);
    memset(images, 0, images_bytes);
    memset(transient_images, 0, images_bytes);
    memset(stats, 0, 8 * sizeof(wr_queue_stats));
    wr_queue_options o = {.super = super, .server = SERVER, .images = images, .transient_images = transient_images, .images_bytes = images_bytes,
                          .images_n = IMAGES, .file_bytes = FILE_BYTES, .stats = stats, .stats_rows = 8, .region = own_region,
                          .region_bytes = client_bytes, .slot = 20, .generation = 1, .client_epoch = 77, .tick_ns = 1000000,
                          .commit_bytes = 1 << 16, .journal_files_max = 1000};
    wr_queue_engine *e = wr_queue_new(&o);
    FUZZ_CHECK(e);
    wr_log_stop(e->log);
    wr_log_stop(e->transient_log);
    for (uint32_t id = 1; id <= QUEUES; id++) FUZZ_CHECK(wr_queue_declare(e, id, true));
    wr_policy_set(wr_queue_find(e, 2), &(wr_policy_options){.max_priority = 5, .message_ttl_ms = 1000, .dead_letters = DEAD});
    wr_policy_set(wr_queue_find(e, 3), &(wr_policy_options){.has_max_length = true, .max_length = 3, .deduplication_ms = 1000, .dead_letters = DEAD});
    return e;
}

static uint64_t fingerprint(wr_queue_engine *e) {
    uint64_t sum = 0;
    for (uint32_t id = 1; id <= QUEUES; id++) {
        wr_queue *q = wr_queue_find(e, id);
        FUZZ_CHECK(q);
        wr_queue_check(e, q);
        FUZZ_CHECK(q->next <= SEQUENCES);
        for (uint64_t s = 0; s < SEQUENCES; s++) {
            const wr_entry *entry = wr_queue_entry(q, s);
            if (!entry) continue;
            FUZZ_CHECK(ever[id][s] && entry->flags & WR_ENTRY_REDELIVERED);
            FUZZ_CHECK(entry->reason <= WR_REASON_DELIVERY_LIMIT);
            uint64_t h = fuzz_mix(id << 20 | s) ^ wr_get64(entry->id);
            h = fuzz_mix(h ^ ((uint64_t)entry->state << 56 | (uint64_t)entry->location << 48 | entry->offset));
            h = fuzz_mix(h ^ ((uint64_t)entry->file << 32 | entry->index_file) ^ (uint64_t)entry->delivery_count << 20);
            sum += fuzz_mix(h ^ entry->expires ^ (uint64_t)entry->priority << 60 ^ (uint64_t)entry->reason << 56 ^ wr_policy_due(q, s));
        }
    }
    return sum;
}

/* A start from the bytes; the segments last file first and cut where `cut` says, when it is not 0. */
static wr_queue_engine *start(uint32_t cut) {
    wr_queue_engine *e = fresh();
    for (uint32_t id = 1; id <= QUEUES; id++) {
        uint64_t live = 0, bad = 0;
        FUZZ_CHECK(wr_segment_load(e, wr_queue_find(e, id), 0, segments[id], sizeof segments[id], SALT, &live, &bad) == 0);
        FUZZ_CHECK(live + bad <= SEGMENT_ROWS);
    }
    for (uint32_t f = 0; f < FILES; f++) {
        uint64_t at = 0, frames = 0;
        const char *reason;
        wr_files_add(&e->files, f);
        if (cut) { /* until a length in the middle, and on */
            uint64_t middle = used[f] ? cut % used[f] : 0;
            FUZZ_CHECK(wr_journal_replay(e, journal[f], middle, f, SALT + f, &at, &frames, &reason) == 0);
            FUZZ_CHECK(at <= middle);
        }
        FUZZ_CHECK(wr_journal_replay(e, journal[f], JOURNAL_BYTES, f, SALT + f, &at, &frames, &reason) == 0);
        FUZZ_CHECK(at <= JOURNAL_BYTES && reason && frames <= FRAMES_MAX);
    }
    wr_journal_recovered(e, false);
    return e;
}

static void write_segments(fuzz_input *in) {
    for (uint32_t id = 1; id <= QUEUES; id++) {
        uint32_t at = fuzz8(in);
        for (uint32_t n = fuzz8(in) % 24; n; n--) {
            at = (at + fuzz8(in) % 9 * (fuzz8(in) & 64 ? 97u : 1u)) % SEGMENT_ROWS;
            uint16_t choice = fuzz16(in);
            wr_segment_row row = {.queue = id, .sequence = at, .due = choice & 1 ? 1ull << 47 : 0};
            row.entry = (wr_entry){.file = choice % 7u, .offset = fuzz16(in), .frame_length = 100, .body_length = 10, .blob_offset = 80,
                                   .location = choice & 2 ? WR_LOCATION_STORE : WR_LOCATION_SEGMENT, .delivery_count = choice & 4 ? 3 : 0,
                                   .expires = choice & 8 ? 1ull << 40 : 0, .priority = choice >> 4 & 7u, .reason = choice >> 8 & 3u};
            wr_put64(row.entry.id, fuzz_mix(choice + at));
            wr_segment_encode_rows(segments[id] + (uint64_t)at * WR_QUEUE_SEGMENT_ENTRY_SIZE, &row, 1, SALT);
            alive[id][at] = 2;
            ever[id][at] = true;
        }
    }
}

/* What a PUBLISH, an ACK or a MOVE does to the list: rules of the replay. */
static void published(uint32_t id, uint32_t s) {
    alive[id][s] = 2;
    ever[id][s] = true;
}

static void write_journal(fuzz_input *in) {
    uint32_t next[QUEUES + 1], frames = 0;
    for (uint32_t id = 1; id <= QUEUES; id++) {
        next[id] = 0;
        for (uint32_t s = 0; s < SEGMENT_ROWS; s++)
            if (alive[id][s]) next[id] = s + 1;
    }
    for (uint32_t f = 0; f < FILES; f++) {
        used[f] = 0;
        while (in->left && frames < FRAMES_MAX && used[f] + 512 < JOURNAL_BYTES) {
            uint8_t *frame = journal[f] + used[f], *body = frame + WR_FRAME_HEAD_BYTES, *end = body;
            uint8_t what = fuzz8(in);
            uint32_t id = 1 + what % QUEUES;
            wr_frame_head head = {.client_epoch = 5 + (what & 1u), .sequence = ++frames};
            wr_put64(head.id, fuzz_mix(frames));
            if (what & 128) {
                head.kind = WR_KIND_PUBLISH;
                uint8_t how = fuzz8(in);
                head.extra = 1 + how % 3u;
                uint32_t first = id;
                for (uint32_t i = 0; i < head.extra; i++, end += WR_ROUTE_SIZE) {
                    uint32_t q = 1 + (first + i) % QUEUES, s = next[q];
                    if (s >= SEQUENCES) s = 0; /* known: is to be ignored, or comes again */
                    else next[q] += 1 + (how & 4 ? fuzz8(in) : 0);
                    if (next[q] > SEQUENCES) next[q] = SEQUENCES;
                    wr_put32(end + WR_ROUTE_AT_QUEUE, q);
                    wr_put64(end + WR_ROUTE_AT_SEQUENCE, s);
                    published(q, s);
                }
                head.flags = (uint16_t)((how >> 3 & 7u) << WR_FRAME_PRIORITY_SHIFT);
                if (how & 8) {
                    head.flags |= WR_FRAME_STORED;
                    wr_put32(end, 6000);
                    end += 4;
                }
                if (how & 16) {
                    head.flags |= WR_FRAME_TIMED;
                    wr_put64(end + WR_TIMES_AT_PUBLISHED, 1000);
                    wr_put64(end + WR_TIMES_AT_EXPIRES, how & 64 ? 5000 : 0);
                    wr_put64(end + WR_TIMES_AT_DUE, how & 32 ? 1ull << 47 : 0);
                    end += WR_TIMES_SIZE;
                    if (how & 128) {
                        head.flags |= WR_FRAME_KEYED;
                        memset(end, how, WR_KEY_BYTES);
                        end += WR_KEY_BYTES;
                    }
                }
                memset(end, 'b', 16);
                end += 16;
            } else {
                bool move = what & 64;
                head.kind = move ? WR_KIND_MOVE : WR_KIND_ACK;
                if (what & 32) head.client_epoch = head.sequence = 0;
                uint32_t count = 1 + fuzz8(in) % 5u, s = next[id] ? fuzz16(in) % next[id] : 0;
                if (s + count > next[id]) count = next[id] - s;
                uint32_t to = move ? 1 + id % QUEUES : 0, target = to ? next[to] : 0;
                if (!count || (to && target + count > SEQUENCES)) continue;
                wr_put32(end + WR_RANGE_AT_QUEUE, id);
                wr_put32(end + WR_RANGE_AT_COUNT, count);
                wr_put64(end + WR_RANGE_AT_FIRST, s);
                wr_put64(end + WR_RANGE_AT_TO, target);
                end += WR_RANGE_SIZE;
                if (to) {
                    wr_put32(end + WR_RANGE_AT_QUEUE, to);
                    wr_put32(end + WR_RANGE_AT_COUNT, count);
                    wr_put64(end + WR_RANGE_AT_FIRST, target);
                    wr_put64(end + WR_RANGE_AT_TO, what >> 2 & 3u);
                    end += WR_RANGE_SIZE;
                    next[to] = target + count;
                }
                head.extra = to ? 2 : 1;
                for (uint32_t k = 0; k < count; k++) {
                    if (to && alive[id][s + k] == 2) published(to, target + k);
                    if (to) ever[to][target + k] = true;
                    if (alive[id][s + k]) alive[id][s + k] = 1;
                }
            }
            used[f] += wr_frame_seal(frame, &head, (uint64_t)(end - body), SALT + f);
        }
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (!super) {
        super = fuzz_memory(WR_SUPERBLOCK_BYTES);
        images_bytes = WR_PAGE_BYTES + (uint64_t)IMAGES * FILE_BYTES;
        images = fuzz_memory(images_bytes);
        transient_images = fuzz_memory(images_bytes);
        stats = fuzz_memory(8 * sizeof(wr_queue_stats));
    }
    memset(segments, 0, sizeof segments);
    memset(journal, 0, sizeof journal);
    memset(alive, 0, sizeof alive);
    memset(ever, 0, sizeof ever);
    fuzz_input in = {data, size};
    uint8_t damages = fuzz8(&in) & 3;
    uint32_t cut = fuzz16(&in);
    struct {
        uint8_t where, bits;
        uint16_t at;
    } damage[3];
    for (int i = 0; i < 3; i++) {
        damage[i].where = fuzz8(&in);
        damage[i].bits = fuzz8(&in);
        damage[i].at = fuzz16(&in);
    }
    write_segments(&in);
    write_journal(&in);
    for (int i = 0; i < damages; i++) {
        uint32_t which = damage[i].where % (QUEUES + FILES);
        if (which < FILES) journal[which][damage[i].at % JOURNAL_BYTES] ^= damage[i].bits;
        else segments[which - FILES + 1][damage[i].at * 3u % sizeof segments[0]] ^= damage[i].bits;
    }
    wr_queue_engine *e = start(0);
    uint64_t whole = fingerprint(e);
    for (uint32_t id = 1; !damages && id <= QUEUES; id++)
        for (uint64_t s = 0; s < SEQUENCES; s++) FUZZ_CHECK((alive[id][s] == 2) == (wr_queue_entry(wr_queue_find(e, id), s) != NULL));
    wr_queue_free(e);
    e = start(cut | 1);
    FUZZ_CHECK(fingerprint(e) == whole);
    wr_queue_free(e);
    return 0;
}
