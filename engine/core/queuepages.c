/* Pages of a queue: rows that leave memory and come back from the segments (design note 004, section 3). Declared in queue.h.
 *
 * What leaves are the rows of a chunk that lie in a segment, synced, and that nobody holds: memory only, nothing is written, so a
 * kill at any point changes nothing. The chunk's description stays with its counts, and with what the segment does not know:
 * which rows are alive (an entry may be on disk although its message was acked; its zero comes later), which are redelivered, and
 * how often they were delivered. What counts rows elsewhere (stores' references, data files, `ready_n`) goes on counting them.
 *
 * Victims are the chunks farthest from the head of their queue. The head and the next chunk stay, and whoever reads one in asks the
 * system for those behind it.
 */
#include "queuepolicy.h"
#include "segment_entry.h"
#include <assert.h>
#include <fcntl.h>
#include <malloc.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define FREE_ROWS_MAX 128
#define HEAD_CHUNKS 2
#define AHEAD_CHUNKS 8
#define GIVE_BACK_MIN 1024 /* blocks */
#define TRY_AGAIN_NS 20000000ull
#define CHUNK_ENTRY_BYTES (WR_CHUNK_ROWS * WR_QUEUE_SEGMENT_ENTRY_SIZE)
#define CHUNKS_A_SEGMENT (WR_SEGMENT_ENTRY_COUNT / WR_CHUNK_ROWS)

int wr_pages_open(wr_queue_engine *e, const char *segments, uint64_t node_id, uint64_t memory_bytes) {
    if (!e->page_bytes && !(e->page_bytes = malloc(CHUNK_ENTRY_BYTES))) return ENOMEM;
    int fd = open(segments, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) return errno;
    if (e->segments_fd >= 0) close(e->segments_fd);
    e->segments_fd = fd;
    e->node_id = node_id;
    e->memory_bytes = memory_bytes;
    return 0;
}

wr_rows *wr_rows_new(wr_queue_engine *e) {
    wr_rows *rows = e->free_rows;
    if (rows) {
        e->free_rows = rows->next_free;
        e->free_rows_n--;
        return rows;
    }
    rows = calloc(1, sizeof *rows);
    e->rows_n += rows != NULL;
    if (e->rows_n > e->rows_most) e->rows_most = e->rows_n;
    return rows;
}

/* A long backlog is gone: its memory goes back to the system, and not only to the next malloc. */
static void give_back(wr_queue_engine *e) {
    e->rows_most = 0;
#ifdef __GLIBC__
    malloc_trim(0);
#else
    (void)e;
#endif
}

void wr_rows_free(wr_queue_engine *e, wr_entry *entries) {
    wr_rows *rows = (wr_rows *)entries;
    if (e->free_rows_n < FREE_ROWS_MAX && wr_rows_bytes(e) <= e->memory_bytes) {
        rows->next_free = e->free_rows;
        e->free_rows = rows;
        e->free_rows_n++;
    } else {
        free(rows);
        e->rows_n--;
    }
    if (e->rows_most > GIVE_BACK_MIN && e->rows_n - e->free_rows_n < e->rows_most / 8) give_back(e);
}

/* ---- out ---- */

/* Whether all is known elsewhere. The chunk of `next` still gets rows. */
static bool may_leave(const wr_queue *q, uint64_t number, const wr_chunk *chunk) {
    return chunk->rows && chunk->live_n && chunk->ready_n == chunk->live_n && chunk->segment_n == chunk->live_n &&
           number != q->next / WR_CHUNK_ROWS;
}

bool wr_page_out(wr_queue_engine *e, wr_queue *q, uint64_t number) {
    wr_chunk *chunk = wr_queue_chunk_peek(q, number);
    if (e->segments_fd < 0 || !chunk || !may_leave(q, number, chunk)) return false;
    uint16_t most = 0;
    for (uint32_t r = 0; r < WR_CHUNK_ROWS; r++)
        if (chunk->rows[r].state != WR_ENTRY_GONE) most |= chunk->rows[r].delivery_count;
    wr_page *page = calloc(1, sizeof *page + (most ? WR_CHUNK_ROWS * sizeof *page->delivery_counts : 0));
    if (!page) return false;
    for (uint32_t r = 0; r < WR_CHUNK_ROWS; r++) {
        wr_entry *entry = &chunk->rows[r];
        if (entry->state == WR_ENTRY_GONE) continue;
        page->live[r / 64] |= 1ull << r % 64;
        if (entry->flags & WR_ENTRY_REDELIVERED) page->redelivered[r / 64] |= 1ull << r % 64;
        if (most) page->delivery_counts[r] = entry->delivery_count;
        page->bytes += entry->body_length;
        entry->state = WR_ENTRY_GONE;
    }
    chunk->counted = most != 0;
    chunk->page = page;
    wr_rows_free(e, chunk->rows);
    chunk->rows = NULL;
    q->paged_n += chunk->live_n;
    e->paged_n += chunk->live_n;
    e->page_outs_n++;
    wr_queue_dirty(e, q);
    return true;
}

/* One queue's chunks from the tail towards the head, until enough has left. */
static bool trim_queue(wr_queue_engine *e, wr_queue *q, uint64_t target) {
    uint64_t low = q->ready_from / WR_CHUNK_ROWS + HEAD_CHUNKS;
    if (low < q->chunk_base) low = q->chunk_base;
    for (uint64_t number = q->chunk_base + q->chunks_n; number > low; number--) {
        const wr_chunk *chunk = wr_queue_chunk_peek(q, number - 1);
        if (!chunk || !may_leave(q, number - 1, chunk)) continue;
        if (!wr_page_out(e, q, number - 1)) return false; /* no memory for its page */
        if (wr_rows_bytes(e) <= target) return true;
    }
    return false;
}

void wr_pages_trim(wr_queue_engine *e, uint64_t now) {
    if (e->segments_fd < 0 || wr_rows_bytes(e) <= e->memory_bytes) return;
    if (e->trim_after_ns) {
        if (!now) now = wr_now_ns();
        if (now < e->trim_after_ns) return;
    }
    while (e->free_rows) {
        wr_rows *rows = e->free_rows;
        e->free_rows = rows->next_free;
        free(rows);
        e->rows_n--;
    }
    e->free_rows_n = 0;
    e->trim_after_ns = 0;
    uint64_t target = e->memory_bytes - e->memory_bytes / 8;
    for (uint64_t i = 0; i < e->queues.size; i++) {
        uint64_t at = e->trim_at++ & (e->queues.size - 1); /* another queue first each time */
        if (!e->queues.rows[at].used) continue;
        if (trim_queue(e, (wr_queue *)(uintptr_t)e->queues.rows[at].value, target)) return;
    }
    /* What is left lies in the journal alone, at heads, or with consumers: look again when a flush has ended, or later. */
    e->trim_after_ns = wr_now_ns() + TRY_AGAIN_NS;
}

/* ---- in ---- */

static void die(const wr_queue *q, uint64_t segment, const char *why) {
    /* Its messages are neither gone nor readable: as with a journal without memory, the next start decides. */
    fprintf(stderr, "queue worker: segment %llu of queue %u cannot be read: %s\n", (unsigned long long)segment, q->id, why);
    abort();
}

static void read_all(const wr_queue *q, uint64_t segment, int fd, uint8_t *to, uint64_t bytes, off_t at) {
    while (bytes) {
        ssize_t n = pread(fd, to, bytes, at);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) die(q, segment, strerror(errno));
        if (!n) {
            memset(to, 0, bytes); /* a file that was cut: its entries are damaged */
            return;
        }
        to += n;
        bytes -= (uint64_t)n;
        at += n;
    }
}

static int open_segment(const wr_queue_engine *e, const wr_queue *q, uint64_t segment) {
    char name[64];
    snprintf(name, sizeof name, "%u/%llu.idx", q->id, (unsigned long long)segment);
    return openat(e->segments_fd, name, O_RDONLY | O_CLOEXEC);
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

void wr_page_in(wr_queue_engine *e, wr_queue *q, uint64_t number, wr_chunk *chunk) {
    uint64_t segment = number / CHUNKS_A_SEGMENT, salt = 0, bytes = 0, due;
    wr_rows *rows = wr_rows_new(e);
    if (!rows) die(q, segment, "no memory");
    int fd = open_segment(e, q, segment);
    if (fd < 0) die(q, segment, strerror(errno));
    read_all(q, segment, fd, e->page_bytes, WR_FILE_HEADER_BYTES, 0);
    const char *wrong = wr_file_header_check(e->page_bytes, WR_FILE_SEGMENT, e->node_id, e->o.server, segment, &salt);
    if (wrong) die(q, segment, wrong);
    read_all(q, segment, fd, e->page_bytes, CHUNK_ENTRY_BYTES, (off_t)(WR_FILE_HEADER_BYTES + number % CHUNKS_A_SEGMENT * CHUNK_ENTRY_BYTES));
    read_ahead(e, q, number, fd);
    close(fd);
    uint32_t seed = wr_segment_seed(salt, q->id);
    wr_page *page = chunk->page;
    q->paged_n -= chunk->live_n;
    e->paged_n -= chunk->live_n;
    uint32_t damaged = 0;
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
        bytes += entry->body_length;
    }
    chunk->rows = rows->rows;
    chunk->page = NULL;
    e->page_ins_n++;
    wr_queue_dirty(e, q);
    if (damaged) {
        /* Which data files and bodies they named is not known any more: those stay until the next start. */
        chunk->live_n -= damaged;
        chunk->ready_n -= damaged;
        chunk->segment_n -= damaged;
        q->ready_n -= damaged;
        q->segment_n -= damaged;
        q->bytes -= page->bytes - bytes;
        e->entries_n -= damaged;
        e->bytes -= page->bytes - bytes;
        e->damaged_n += damaged;
        if (q->policy) wr_policy_damaged(q, number, chunk, page->bytes - bytes);
    }
    free(page);
    if (!chunk->live_n) wr_queue_chunk_release(e, q, number);
}

/* ---- invariants ---- */

void wr_queue_check(const wr_queue_engine *e, const wr_queue *q) {
    uint64_t live = 0, ready = 0, segment = 0, paged = 0, bytes = 0;
    for (uint64_t i = 0; i < q->chunks_n; i++) {
        const wr_chunk *chunk = q->chunks[q->chunks_at + i];
        uint64_t number = q->chunk_base + i;
        if (!chunk) continue;
        uint32_t rows[3] = {0}, in_segment = 0, stored = 0;
        if (!chunk->rows) {
            assert(chunk->page && chunk->live_n && chunk->ready_n == chunk->live_n && chunk->segment_n == chunk->live_n);
            assert(number != q->next / WR_CHUNK_ROWS || e->recovering);
            for (uint32_t r = 0; r < WR_CHUNK_ROWS; r++) rows[1] += chunk->page->live[r / 64] >> r % 64 & 1;
            assert(rows[1] == chunk->live_n);
            paged += chunk->live_n;
            bytes += chunk->page->bytes;
        } else {
            assert(!chunk->page);
            for (uint32_t r = 0; r < WR_CHUNK_ROWS; r++) {
                const wr_entry *entry = &chunk->rows[r];
                if (entry->state == WR_ENTRY_GONE) continue;
                rows[entry->state == WR_ENTRY_READY ? 1 : 2]++;
                in_segment += entry->flags & WR_ENTRY_PERSISTENT && entry->index_file == WR_IN_SEGMENT;
                stored += entry->location == WR_LOCATION_STORE;
                bytes += entry->body_length;
                /* no READY row lies below ready_from */
                assert(entry->state != WR_ENTRY_READY || number * WR_CHUNK_ROWS + r >= q->ready_from);
                assert(number * WR_CHUNK_ROWS + r < q->next);
            }
            assert(rows[1] + rows[2] == chunk->live_n && rows[1] == chunk->ready_n);
            assert(in_segment == chunk->segment_n && stored == chunk->stored_n);
        }
        live += chunk->live_n;
        ready += chunk->ready_n;
        segment += chunk->segment_n;
    }
    assert(ready == q->ready_n && live == q->ready_n + q->unacked_n + wr_aside_n(q) && bytes == q->bytes);
    assert(segment == q->segment_n && paged == q->paged_n && paged <= segment);
    if (q->policy) wr_policy_check(q);
    uint64_t alpha, beta, gamma, delta;
    wr_queue_states(q, &alpha, &beta, &gamma, &delta);
    assert(alpha + beta + gamma + delta == live && alpha <= live && beta <= live);
}
