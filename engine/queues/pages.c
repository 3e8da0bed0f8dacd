/* Pages of a queue: rows that leave memory and come back from disk (design note 004, section 3). Declared in
 * queues/pages.h.
 *
 * What leaves are the rows of a chunk that lie in a segment, synced, and that nobody holds: memory only, nothing is
 * written, so a kill at any point changes nothing. The chunk's description stays with its counts, and with what the
 * segment does not know: which rows are alive (an entry may be on disk although its message was acked; its zero comes
 * later), which are redelivered, and how often they were delivered. What counts rows elsewhere (stores' references,
 * data files, `ready_n`) goes on counting them.
 *
 * No segment has transient messages: a chunk with one of them is written as it is into the spill file
 * (queues/spill.h), which lives no longer than the worker, as they do. Its persistent rows are in segments all the
 * same, for the next start.
 *
 * Victims are the chunks farthest from the head of their queue. The head and the next chunk stay, and whoever reads
 * one in asks the system for those behind it.
 */
#include "kernel/read.h"
#include "kernel/data_files.h"
#include "queues/levels.h"
#include "queues/pages.h"
#include "queues/registry.h"
#include "queues/rows.h"
#include "queues/segment_codec.h"
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

#define HEAD_CHUNKS 2
#define AHEAD_CHUNKS 8
#define TRY_AGAIN_NS 20000000ull
#define TRY_AGAIN_SHARE 64   /* of the time that looking in vain took */
#define TRIM_CHUNKS 256      /* in one turn of the loop */
#define PRESSURE_FULL 1000
#define PRESSURE_SLACK 50
#define FLOOR_CHUNKS 16
#define RATE_NS 1000000000ull
#define RATE_SHARE 2         /* 1/2 s of rows are worth their memory */
#define CHUNK_ENTRY_BYTES (WR_CHUNK_ROWS * WR_QUEUE_SEGMENT_ENTRY_SIZE)
#define CHUNKS_A_SEGMENT (WR_SEGMENT_ENTRY_COUNT / WR_CHUNK_ROWS)

int wr_pages_open(wr_queue_engine *e, int segments, int spill, uint64_t node_id, uint64_t memory_bytes) {
    if (!e->page_bytes && !(e->page_bytes = malloc(CHUNK_ENTRY_BYTES))) return ENOMEM;
    if (e->segments_fd >= 0) close(e->segments_fd);
    e->segments_fd = segments;
    wr_spill_close(&e->spill);
    wr_spill_open(&e->spill, spill, sizeof(wr_rows));
    e->node_id = node_id;
    e->memory_bytes = e->rows_limit = memory_bytes;
    e->rate_ns = wr_now_ns();
    wr_pages_look(e, e->rate_ns);
    return 0;
}

/* ---- how many ---- */

/* Rule Q42: a target out of memory and rates. Up to half of the memory limits it is what the setting allows; from
 * there on it falls evenly, until with the limits reached there is only what the rates justify: rows that are
 * delivered within half a second would be written and read back for nothing. Heads of queues stay whatever the limit
 * says. */
uint64_t wr_pages_limit(uint64_t memory_bytes, uint32_t pressure, uint64_t rate) {
    if (pressure <= WR_PRESSURE_PAGE) return memory_bytes;
    uint64_t most = memory_bytes / 2 / sizeof(wr_entry), rows = rate / RATE_SHARE;
    uint64_t low = (rows < most ? rows : most) * sizeof(wr_entry);
    if (low < FLOOR_CHUNKS * sizeof(wr_rows)) low = FLOOR_CHUNKS * sizeof(wr_rows);
    if (low > memory_bytes) low = memory_bytes;
    if (pressure >= PRESSURE_FULL) return low;
    return low + (memory_bytes - low) * (PRESSURE_FULL - pressure) / (PRESSURE_FULL - WR_PRESSURE_PAGE);
}

/* What leaves lowers the pressure: without slack the limit would rise at once, and swing. */
uint32_t wr_pages_pressure(uint32_t held, uint32_t pressure) {
    if (pressure > held) return pressure;
    return held - pressure > PRESSURE_SLACK ? pressure + PRESSURE_SLACK : held;
}

void wr_pages_look(wr_queue_engine *e, uint64_t now) {
    if (e->segments_fd < 0) return;
    uint32_t pressure = wr_pages_pressure(e->pressure, atomic_load_explicit(&e->o.super->pressure, memory_order_relaxed));
    bool second = now - e->rate_ns >= RATE_NS;
    if (pressure == e->pressure && !second) return;
    e->pressure = pressure;
    if (second) {
        uint64_t n = e->published_n + e->delivered_n, ms = (now - e->rate_ns) / 1000000;
        e->rate = (3 * e->rate + (n - e->rate_n) * 1000 / ms) / 4;
        e->rate_n = n;
        e->rate_ns = now;
    }
    uint64_t before = e->rows_limit;
    e->rows_limit = wr_pages_limit(e->memory_bytes, pressure, e->rate);
    if (e->rows_limit < before) e->trim_after_ns = 0;
    if (second) wr_rows_give_back(e);
}

/* ---- out ---- */

/* Whether all is known elsewhere, or may be. The chunk of `next` still gets rows. */
static bool may_leave(const wr_queue *q, uint64_t number, const wr_chunk *chunk) {
    return chunk->rows && chunk->live_n && chunk->ready_n == chunk->live_n && chunk->segment_n + chunk->transient_n == chunk->live_n &&
           number != q->next / WR_CHUNK_ROWS;
}

/* Without room on disk the rows stay. */
static bool spill(wr_queue_engine *e, const wr_chunk *chunk, wr_page *page) {
    e->spill_error = wr_spill_put(&e->spill, chunk->rows, &page->slot);
    if (e->spill_error) return false;
    page->crc = wr_crc32c(0, chunk->rows, sizeof(wr_rows));
    return true;
}

bool wr_page_out(wr_queue_engine *e, wr_queue *q, uint64_t number) {
    wr_chunk *chunk = wr_queue_chunk_peek(q, number);
    if (e->segments_fd < 0 || !chunk || !may_leave(q, number, chunk)) return false;
    uint16_t most = 0;
    for (uint32_t r = 0; r < WR_CHUNK_ROWS; r++)
        if (chunk->rows[r].state != WR_ENTRY_GONE) most |= chunk->rows[r].delivery_count;
    wr_page *page = calloc(1, sizeof *page + (most ? WR_CHUNK_ROWS * sizeof *page->delivery_counts : 0));
    if (!page) return false;
    if (chunk->transient_n && !spill(e, chunk, page)) {
        free(page);
        return false;
    }
    for (uint32_t r = 0; r < WR_CHUNK_ROWS; r++) {
        wr_entry *entry = &chunk->rows[r];
        if (entry->state == WR_ENTRY_GONE) continue;
        page->live[r / 64] |= 1ull << r % 64;
        if (entry->flags & WR_ENTRY_REDELIVERED) page->redelivered[r / 64] |= 1ull << r % 64;
        if (most) page->delivery_counts[r] = entry->delivery_count;
        page->bytes += entry->body_length;
        page->counted_bytes += wr_counted_bytes(entry);
        wr_queue_recent(q, entry, false);
        entry->state = WR_ENTRY_GONE;
    }
    chunk->counted = most != 0;
    chunk->page = page;
    wr_rows_free(e, chunk->rows);
    chunk->rows = NULL;
    q->paged_n += chunk->live_n;
    q->spilled_n += chunk->transient_n;
    e->paged_n += chunk->live_n;
    e->page_outs_n++;
    wr_queue_dirty(e, q);
    return true;
}

/* One queue's chunks from the tail towards the head. True: enough has left, or as much as one turn may take. */
static bool trim_queue(wr_queue_engine *e, wr_queue *q, uint64_t target, uint32_t *batch) {
    uint64_t low = q->ready_from / WR_CHUNK_ROWS + HEAD_CHUNKS;
    if (low < q->chunk_base) low = q->chunk_base;
    bool no_room = false; /* in the spill file */
    for (uint64_t number = q->chunk_base + q->chunks_n; number > low; number--) {
        const wr_chunk *chunk = wr_queue_chunk_peek(q, number - 1);
        if (!chunk || !may_leave(q, number - 1, chunk) || (no_room && chunk->transient_n)) continue;
        if (!wr_page_out(e, q, number - 1)) {
            if (!chunk->transient_n) return false; /* no memory for its page */
            no_room = true;
            continue;
        }
        if (wr_rows_bytes(e) <= target || !--*batch) return true;
    }
    return false;
}

void wr_pages_trim(wr_queue_engine *e, uint64_t now) {
    if (e->segments_fd < 0 || wr_rows_bytes(e) <= e->rows_limit) return;
    if (!now) now = wr_now_ns();
    if (now < e->trim_after_ns) return;
    wr_rows_free_spares(e);
    e->trim_after_ns = 0;
    uint64_t target = e->rows_limit - e->rows_limit / 8;
    uint32_t batch = TRIM_CHUNKS;
    for (uint64_t i = 0; i < e->queues.size; i++) {
        uint64_t at = e->trim_at++ & (e->queues.size - 1); /* another queue first each time */
        if (!e->queues.rows[at].used) continue;
        if (trim_queue(e, (wr_queue *)(uintptr_t)e->queues.rows[at].value, target, &batch)) return;
    }
    /* What is left lies in the journal alone, at heads, or with consumers: look again when a flush has ended, or
     * later. */
    uint64_t end = wr_now_ns(), took = now < end ? end - now : 0;
    e->trim_after_ns = end + (took > TRY_AGAIN_NS / TRY_AGAIN_SHARE ? TRY_AGAIN_SHARE * took : TRY_AGAIN_NS);
}

/* ---- in ---- */

_Noreturn static void die(const wr_queue *q, uint64_t segment, const char *why) {
    /* Its messages are neither gone nor readable: as with a journal without memory, the next start decides. */
    fprintf(stderr, "queue worker: segment %llu of queue %u cannot be read: %s\n", (unsigned long long)segment, q->id, why);
    abort();
}

static void read_all(const wr_queue *q, uint64_t segment, int fd, uint8_t *to, uint64_t bytes, uint64_t at) {
    uint64_t n;
    int error = wr_read_up_to(fd, to, bytes, at, &n);
    if (error) die(q, segment, strerror(error));
    memset(to + n, 0, bytes - n); /* of a file that was cut: entries that are damaged */
}

static int open_segment(const wr_queue_engine *e, const wr_queue *q, uint64_t segment) {
    char name[64];
    snprintf(name, sizeof name, "%u/%llu.idx", q->id, (unsigned long long)segment);
    return wr_data_open(e->segments_fd, name, O_RDONLY, 0);
}

/* Ask for the chunks behind this one, in this segment and at the begin of the next. */
static void read_ahead(const wr_queue_engine *e, const wr_queue *q, uint64_t number, int fd) {
    uint64_t place = number % CHUNKS_A_SEGMENT;
    posix_fadvise(fd, (off_t)(WR_FILE_HEADER_BYTES + (place + 1) * CHUNK_ENTRY_BYTES), AHEAD_CHUNKS * CHUNK_ENTRY_BYTES, POSIX_FADV_WILLNEED);
    if (place != CHUNKS_A_SEGMENT - AHEAD_CHUNKS / 2) return;
    int next = open_segment(e, q, number / CHUNKS_A_SEGMENT + 1);
    if (next < 0) return; /* there is none */
    posix_fadvise(next, 0, WR_FILE_HEADER_BYTES + AHEAD_CHUNKS * CHUNK_ENTRY_BYTES, POSIX_FADV_WILLNEED);
    close(next);
}

/* Both: the rows of a paged chunk as they were, and the bytes of their bodies; the answer counts those that are
 * damaged. */
static uint32_t from_segment(wr_queue_engine *e, const wr_queue *q, uint64_t number, const wr_chunk *chunk, wr_rows *rows, uint64_t *bytes) {
    const wr_page *page = chunk->page;
    uint64_t segment = number / CHUNKS_A_SEGMENT, salt = 0, due;
    int fd = open_segment(e, q, segment);
    if (fd < 0) die(q, segment, strerror(errno));
    read_all(q, segment, fd, e->page_bytes, WR_FILE_HEADER_BYTES, 0);
    const char *wrong = wr_file_header_check(e->page_bytes, WR_FILE_SEGMENT, e->node_id, e->o.server, segment, &salt);
    if (wrong) die(q, segment, wrong);
    read_all(q, segment, fd, e->page_bytes, CHUNK_ENTRY_BYTES, WR_FILE_HEADER_BYTES + number % CHUNKS_A_SEGMENT * CHUNK_ENTRY_BYTES);
    read_ahead(e, q, number, fd);
    close(fd);
    uint32_t seed = wr_segment_seed(salt, q->id), damaged = 0;
    for (uint32_t r = 0; r < WR_CHUNK_ROWS; r++) {
        if (!(page->live[r / 64] >> r % 64 & 1)) continue;
        wr_entry *entry = &rows->rows[r];
        if (!wr_segment_decode(e->page_bytes + (uint64_t)r * WR_QUEUE_SEGMENT_ENTRY_SIZE, seed, number * WR_CHUNK_ROWS + r, entry, &due)) {
            entry->state = WR_ENTRY_GONE;
            damaged++;
            continue;
        }
        entry->state = WR_ENTRY_READY;
        entry->delivery_count = chunk->counted ? page->delivery_counts[r] : 0;
        if (page->redelivered[r / 64] >> r % 64 & 1) entry->flags |= WR_ENTRY_REDELIVERED;
        *bytes += entry->body_length;
    }
    return damaged;
}

static uint32_t from_spill(wr_queue_engine *e, wr_queue *q, uint64_t number, const wr_chunk *chunk, wr_rows *rows, uint64_t *bytes) {
    const wr_page *page = chunk->page;
    int error = wr_spill_get(&e->spill, page->slot, rows);
    if (error) {
        fprintf(stderr, "queue worker: the rows of transient messages cannot be read: %s\n", strerror(error));
        abort(); /* as above */
    }
    wr_spill_drop(&e->spill, page->slot);
    const wr_chunk *ahead = wr_queue_chunk_peek(q, number + AHEAD_CHUNKS);
    if (ahead && !ahead->rows && ahead->transient_n) wr_spill_ahead(&e->spill, ahead->page->slot);
    if (wr_crc32c(0, rows, sizeof *rows) != page->crc) {
        memset(rows, 0, sizeof *rows);
        return chunk->live_n; /* persistent ones among them come back at the next start */
    }
    for (uint32_t r = 0; r < WR_CHUNK_ROWS; r++) {
        if (rows->rows[r].state == WR_ENTRY_GONE) continue;
        wr_queue_recent(q, &rows->rows[r], true);
        *bytes += rows->rows[r].body_length;
    }
    return 0;
}

static void page_in(wr_queue_engine *e, wr_queue *q, uint64_t number, wr_chunk *chunk) {
    uint64_t bytes = 0;
    wr_rows *rows = wr_rows_new(e);
    if (!rows) die(q, number / CHUNKS_A_SEGMENT, "no memory");
    wr_page *page = chunk->page;
    uint32_t damaged = chunk->transient_n ? from_spill(e, q, number, chunk, rows, &bytes) : from_segment(e, q, number, chunk, rows, &bytes);
    q->paged_n -= chunk->live_n;
    q->spilled_n -= chunk->transient_n;
    e->paged_n -= chunk->live_n;
    chunk->rows = rows->rows;
    chunk->page = NULL;
    e->page_ins_n++;
    wr_queue_dirty(e, q);
    if (damaged) {
        /* Which data files and bodies they named is not known any more: those stay until the next start. */
        /* of the spill file all are lost or none */
        uint32_t in_segment = chunk->transient_n ? chunk->segment_n : damaged;
        chunk->live_n -= damaged;
        chunk->ready_n -= damaged;
        chunk->segment_n -= in_segment;
        chunk->transient_n = 0;
        q->ready_n -= damaged;
        q->segment_n -= in_segment;
        q->bytes -= page->bytes - bytes;
        e->entries_n -= damaged;
        e->bytes -= page->bytes - bytes;
        e->damaged_n += damaged;
        q->lost_n += damaged;
        uint64_t counted_bytes = 0;
        for (uint32_t r = 0; r < WR_CHUNK_ROWS; r++)
            if (rows->rows[r].state != WR_ENTRY_GONE) counted_bytes += wr_counted_bytes(&rows->rows[r]);
        if (q->policy) wr_policy_damaged(q, number, chunk, page->counted_bytes - counted_bytes);
    }
    free(page);
    if (!chunk->live_n) wr_queue_chunk_release(e, q, number);
}

/* The rows of a paged chunk come back. NULL: all its entries were damaged. */
wr_chunk *wr_page_back(wr_queue *q, uint64_t number, wr_chunk *chunk) {
    page_in(q->engine, q, number, chunk);
    return wr_queue_chunk_peek(q, number);
}
