/* The append side of a segment file. What it is and its invariants: kernel/log.h.
 *
 * The loop thread appends to the image and posts batches to the committer (kernel/committer.h), which writes them and calls back. A batch's
 * horizons lie beside the committer's batch, at the same place; an image whose last batch is done may be reused.
 *
 * Memory of the images: a region may be made without it. Each image is ready up to `ready`, and nothing above that is ever touched:
 * the kernel is asked for pages ahead (MADV_POPULATE_WRITE fails where a touch would kill the process), by the committer while
 * it has nothing else to do, and by the loop when that was not enough. A log that nobody uses has LEAD_BYTES.
 * No image gets more than `image_bytes`. Where there is no more memory for the current image, its file is left early for an image
 * that has some: the log goes on with what it has. Who made the region reserved enough of two images for the largest frame, so
 * one of them can always be gone over to, and a log never waits for memory (engine/kernel/image_room.py).
 *
 * Images are taken round robin, but for those without memory.
 */
#define _GNU_SOURCE
#include "kernel/log.h"
#include "kernel/ref.h"
#include "kernel/protocol.h"
#include "kernel/racy.h"
#include <assert.h>
#include <stdlib.h>
#include <sys/mman.h>

#define IMAGES_MAX (WR_PAGE_BYTES / sizeof(wr_image))
#define POPULATE_BYTES (1u << 20)
#define LOOP_BYTES (256u << 10) /* the loop's share: about a millisecond where a first touch costs 14 us a page */
#define LEAD_BYTES (1ull << 20)
#define NEXT_PART 64 /* when so much of its file is used a log wants the next one: an empty node needs none on its disk */
#define MARGIN_BYTES (2 * WR_PAGE_BYTES) /* padding behind what was reserved */
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

struct wr_log {
    /* set by wr_log_new */
    uint8_t *region;
    wr_image *headers;
    uint32_t images_n;
    uint64_t file_bytes;
    uint64_t image_bytes; /* so much of an image may have memory */
    wr_batch_done done, written;
    void *context;

    /* loop thread */
    wr_log_state state;
    int fd;
    bool no_file;                    /* something waits for the next file */
    uint64_t ready_here;             /* of the current image: what `ready` was when last looked at */
    uint64_t image_last[IMAGES_MAX]; /* number of the last batch of the file in this image, 0: never used */
    int next_fd;
    uint64_t next_file, next_salt;
    uint8_t next_header[WR_FILE_HEADER_BYTES];

    /* both */
    wr_committer committer;
    _Atomic uint64_t ready[IMAGES_MAX]; /* bytes of the image that have memory; only grows */
    _Atomic uint32_t current;           /* the loop's image */
    _Atomic bool used;                  /* it is worth while to have memory for all images */

    wr_batch batches[WR_COMMITS]; /* batch n is at n mod WR_COMMITS, as in the committer */
};

static inline uint8_t *image_at(const wr_log *log, uint32_t image) {
    return log->region + WR_PAGE_BYTES + image * log->file_bytes;
}

static void commit_written(void *context, const wr_commit *commit);
static void commit_done(void *context, const wr_commit *commit);
static bool populate(void *context);
static const wr_commit_owner owner = {.written = commit_written, .done = commit_done, .idle = populate};

/* ---- memory of the images ---- */

bool wr_log_populate(uint8_t *from, uint64_t bytes) {
    while (madvise(from, bytes, MADV_POPULATE_WRITE) != 0) {
        if (errno == EINVAL) return true; /* a kernel before 5.14: who made the region has reserved all of it */
        if (errno != EINTR) return false;
    }
    return true;
}

/* Have memory for an image up to `to`. Any of the two threads; what both ask for at once is asked for twice. */
static bool make_ready(wr_log *log, uint32_t image, uint64_t to) {
    uint64_t ready = atomic_load_explicit(&log->ready[image], memory_order_acquire);
    if (ready >= to) return true;
    to = wr_page_up(to) < log->file_bytes ? wr_page_up(to) : log->file_bytes;
    if (to > log->image_bytes) return false;
    if (!wr_log_populate(image_at(log, image) + ready, to - ready)) return false;
    while (ready < to && !atomic_compare_exchange_weak_explicit(&log->ready[image], &ready, to, memory_order_release, memory_order_acquire)) {}
    return true;
}

/* The loop wants to write up to `to` of an image, and padding behind it. False: there is no memory for that. */
static bool loop_ready(wr_log *log, uint32_t image, uint64_t to) {
    to = log->file_bytes - to > MARGIN_BYTES ? to + MARGIN_BYTES : log->file_bytes;
    if (atomic_load_explicit(&log->ready[image], memory_order_acquire) >= to) return true;
    if (to > log->image_bytes) return false;
    uint64_t ahead = log->image_bytes - to > LOOP_BYTES ? to + LOOP_BYTES : log->image_bytes;
    return make_ready(log, image, ahead) || make_ready(log, image, to);
}

/* ---- loop thread ---- */

wr_log *wr_log_new(void *region, uint64_t region_bytes, uint32_t images_n, uint64_t file_bytes, bool may_sync,
                   wr_batch_done done, void *context) {
    /* Two images at least: a roll fills the next one while the committer still writes the last. */
    if (!region || (uintptr_t)region % WR_PAGE_BYTES || images_n < 2 || images_n > IMAGES_MAX ||
        file_bytes % WR_PAGE_BYTES || file_bytes < 2 * WR_PAGE_BYTES || region_bytes < WR_PAGE_BYTES ||
        (region_bytes - WR_PAGE_BYTES) / images_n < file_bytes) {
        errno = EINVAL;
        return NULL;
    }
    wr_log *log = aligned_alloc(64, (sizeof *log + 63) & ~(size_t)63);
    if (!log) return NULL;
    memset(log, 0, sizeof *log);
    log->region = region;
    log->headers = region;
    log->images_n = images_n;
    log->file_bytes = log->image_bytes = file_bytes;
    log->done = done;
    log->context = context;
    log->fd = log->next_fd = -1;
    wr_committer_init(&log->committer, file_bytes, may_sync, &owner, log);
    if (!wr_log_populate(region, WR_PAGE_BYTES) || !make_ready(log, 0, WR_FILE_HEADER_BYTES)) {
        free(log);
        errno = ENOMEM;
        return NULL;
    }
    for (uint32_t i = 0; i < images_n; i++) {
        atomic_store_explicit(&log->headers[i].file, 0, memory_order_relaxed);
        atomic_fetch_add_explicit(&log->headers[i].generation, 1, memory_order_release);
    }
    return log;
}

void wr_log_free(wr_log *log) {
    if (!log) return;
    wr_committer_close(&log->committer); /* the batches own descriptors that log->fd no longer names */
    if (log->fd >= 0) close(log->fd);
    if (log->next_fd >= 0) close(log->next_fd);
    free(log);
}

void wr_log_limit(wr_log *log, uint64_t image_bytes) {
    image_bytes &= ~(uint64_t)(WR_PAGE_BYTES - 1);
    log->image_bytes = image_bytes && image_bytes < log->file_bytes ? image_bytes : log->file_bytes;
}

void wr_log_on_written(wr_log *log, wr_batch_done written) { log->written = written; }

void wr_log_set_io(wr_log *log, const wr_commit_io *io, void *io_context) {
    log->committer.io = *io;
    log->committer.io_context = io_context;
}

void wr_log_set_nameless(wr_log *log) { log->committer.nameless = true; }

const wr_log_state *wr_log_look(const wr_log *log) {
    /* The state is a copy for the loop thread, refreshed here from what the committer counts. */
    wr_log_state *state = (wr_log_state *)&log->state;
    const wr_committer *c = &log->committer;
    uint64_t in_work = wr_committer_posted(c) - wr_committer_done(c);
    state->busy = in_work != 0;
    state->full = in_work >= WR_COMMITS;
    state->wants_next = !state->has_next && (log->no_file || (state->has_file && state->append > WR_FILE_HEADER_BYTES + log->file_bytes / NEXT_PART));
    state->failed = wr_committer_failed(c);
    state->no_space = atomic_load_explicit(&c->no_space, memory_order_relaxed);
    state->commits_n = atomic_load_explicit(&c->commits_n, memory_order_relaxed);
    state->syncs_n = atomic_load_explicit(&c->syncs_n, memory_order_relaxed);
    state->commit_ns_sum = atomic_load_explicit(&c->commit_ns_sum, memory_order_relaxed);
    state->bytes_written = atomic_load_explicit(&c->bytes_written, memory_order_relaxed);
    return state;
}

/* A frame fits when it fills the file exactly, or leaves room for a padding frame. */
static inline bool fits(const wr_log *log, uint64_t at, uint64_t bytes) {
    uint64_t room = log->file_bytes - at;
    return bytes == room || (bytes < room && room - bytes >= WR_FRAME_BYTES_MIN);
}

static inline bool image_free(const wr_log *log, uint32_t image) {
    return log->image_last[image] <= wr_committer_done(&log->committer);
}

static void set_appended(wr_log *log, uint64_t append) {
    log->state.append = append;
    /* SYNC image-appended: pairs with the acquire in wr_image_read; bytes below are complete */
    atomic_store_explicit(&log->headers[log->state.image].appended, append, memory_order_release);
}

/* Make the offered file current, in a free image. */
static void take_next(wr_log *log, uint32_t image) {
    wr_image *header = &log->headers[image];
    /* SYNC image-reuse: `file` becomes 0 and the generation rises before the first byte changes; a reader that copied
     * in between sees one of them after its acquire fence (wr_image_read). */
    atomic_store_explicit(&header->file, 0, memory_order_relaxed);
    atomic_store_explicit(&header->generation, atomic_load_explicit(&header->generation, memory_order_relaxed) + 1,
                          memory_order_relaxed);
    atomic_thread_fence(memory_order_release);
    memcpy(image_at(log, image), log->next_header, WR_FILE_HEADER_BYTES);
    log->fd = log->next_fd;
    log->next_fd = -1;
    log->state.has_file = true;
    log->state.has_next = false;
    log->state.file = log->next_file;
    log->state.salt = log->next_salt;
    log->state.image = image;
    log->state.sealed_to = 0;
    log->ready_here = atomic_load_explicit(&log->ready[image], memory_order_acquire);
    atomic_store_explicit(&log->current, image, memory_order_relaxed);
    log->image_last[image] = UINT64_MAX; /* busy until its last batch has a number */
    atomic_store_explicit(&header->durable, 0, memory_order_relaxed);
    set_appended(log, WR_FILE_HEADER_BYTES);
    atomic_store_explicit(&header->file, wr_file_of(log->next_file).plus_one, memory_order_release);
}

int wr_log_offer(wr_log *log, int fd, uint64_t file, uint64_t salt, const uint8_t *header) {
    if (log->next_fd >= 0) return EBUSY;
    if (fd < 0) return EBADF;
    log->next_fd = fd;
    log->next_file = file;
    log->next_salt = salt;
    memcpy(log->next_header, header, WR_FILE_HEADER_BYTES);
    log->state.has_next = true;
    log->no_file = false;
    if (!log->state.has_file) take_next(log, 0);
    return 0;
}

/* Is there anything that no batch has yet? A file's header page alone waits for its first frame. */
static inline bool unsealed(const wr_log *log) {
    return log->state.has_file && log->state.append > log->state.sealed_to && log->state.append > WR_FILE_HEADER_BYTES;
}

/* Post a batch with all that is not sealed; the caller has made sure of a free slot. */
static void post(wr_log *log, bool sync, bool last, uint64_t note, const wr_horizon *horizons, uint32_t horizons_n) {
    wr_log_state *state = &log->state;
    /* A file that is left ends with a LAST frame, unless it is full: behind it may lie whatever the blocks held before. */
    if (unsealed(log) || (last && state->append < log->file_bytes)) {
        uint64_t end = wr_page_up(state->append);
        if (last && end == state->append && end < log->file_bytes) end += WR_PAGE_BYTES;
        if (end != state->append) {
            if (end - state->append < WR_FRAME_BYTES_MIN) end += WR_PAGE_BYTES;
            assert(end <= log->file_bytes);
            uint8_t *padding = image_at(log, state->image) + state->append;
            wr_frame_pad(padding, end - state->append, state->salt, last);
            uint64_t durable = atomic_load_explicit(&log->headers[state->image].durable, memory_order_acquire);
            if (log->committer.may_sync && durable) wr_frame_vouch(padding, durable, state->salt);
            set_appended(log, end);
        }
    }
    wr_commit *commit = wr_committer_next(&log->committer);
    wr_batch *batch = &log->batches[(commit->number - 1) % WR_COMMITS];
    batch->image = state->image;
    batch->file = state->file;
    batch->from = state->sealed_to;
    batch->to = unsealed(log) ? state->append : state->sealed_to;
    batch->sync = log->committer.may_sync && (sync || state->unsealed_sync);
    batch->last = last;
    batch->number = commit->number;
    batch->note = note;
    batch->horizons_n = horizons_n;
    if (horizons_n) memcpy(batch->horizons, horizons, horizons_n * sizeof *horizons);
    batch->error = 0;
    commit->fd = log->fd;
    commit->sync = batch->sync;
    commit->last = last;
    commit->parts_n = batch->to > batch->from;
    commit->parts[0] = (wr_commit_part){image_at(log, state->image) + batch->from, batch->to - batch->from, batch->from};
    state->sealed_to = batch->to;
    state->unsealed_sync = false;
    wr_committer_post(&log->committer);
}

/* Is there room for a frame behind what was appended, in the file and in memory? */
static inline bool room_here(wr_log *log, uint64_t bytes) {
    if (!fits(log, log->state.append, bytes)) return false;
    uint64_t end = log->state.append + bytes;
    if (log->ready_here < end + MARGIN_BYTES && log->ready_here < log->file_bytes) {
        if (!loop_ready(log, log->state.image, end)) return false;
        log->ready_here = atomic_load_explicit(&log->ready[log->state.image], memory_order_acquire);
    }
    return true;
}

/* Leave the current file for the next one, in an image with memory for a frame of `bytes`. 0 or an errno. */
static int roll(wr_log *log, uint64_t bytes) {
    wr_log_state *state = &log->state;
    log->no_file = !state->has_next;
    if (!state->has_next || wr_committer_full(&log->committer)) return EAGAIN;
    bool busy = false;
    for (uint32_t n = 1; n < log->images_n; n++) {
        uint32_t image = (state->image + n) % log->images_n;
        if (!image_free(log, image)) {
            busy = true;
            continue;
        }
        if (!loop_ready(log, image, WR_FILE_HEADER_BYTES + bytes)) continue;
        /* image_free has read done_n: if the batch that freed the image had failed, that is visible now. */
        int failed = wr_committer_failed(&log->committer);
        if (failed) return failed;
        post(log, true, true, 0, NULL, 0);
        log->image_last[state->image] = wr_committer_posted(&log->committer);
        take_next(log, image);
        return 0;
    }
    state->no_memory = !busy;
    return EAGAIN;
}

/* May a frame of `bytes` be asked for now? 0 or an errno. */
static inline int askable(wr_log *log, uint64_t bytes) {
    if (bytes < WR_FRAME_BYTES_MIN || !fits(log, WR_FILE_HEADER_BYTES, bytes)) return EMSGSIZE;
    int failed = wr_committer_failed(&log->committer);
    if (failed || log->state.has_file) return failed;
    log->no_file = true;
    return EAGAIN;
}

static inline uint8_t *place_here(wr_log *log, uint64_t *offset) {
    log->state.no_memory = false;
    *offset = log->state.append;
    return image_at(log, log->state.image) + log->state.append;
}

uint8_t *wr_log_reserve(wr_log *log, uint64_t bytes, uint64_t *offset, bool *rolled) {
    if (rolled) *rolled = false;
    int error = askable(log, bytes);
    if (!error && !room_here(log, bytes)) {
        error = roll(log, bytes);
        if (!error) {
            if (rolled) *rolled = true;
            log->ready_here = atomic_load_explicit(&log->ready[log->state.image], memory_order_acquire);
        }
    }
    if (!error) return place_here(log, offset);
    errno = error;
    return NULL;
}

int wr_log_leave(wr_log *log) {
    if (!log->state.has_next || log->state.append <= WR_FILE_HEADER_BYTES) return EAGAIN;
    int error = roll(log, WR_FRAME_BYTES_MIN);
    if (error) log->state.no_memory = false; /* nothing waits for it */
    return error;
}

uint64_t wr_log_new_room(const wr_log *log) {
    const wr_log_state *state = &log->state;
    if (state->has_next || !state->has_file) return UINT64_MAX;
    return state->append < log->image_bytes / 4 ? log->image_bytes / 4 - state->append : 0;
}

bool wr_log_scarce(wr_log *log, uint64_t bytes) {
    if (bytes < wr_log_new_room(log)) return false;
    log->no_file = true;
    return true;
}

uint64_t wr_log_left(const wr_log *log) { return log->state.has_file ? log->image_bytes - log->state.append : 0; }

uint8_t *wr_log_reserve_here(wr_log *log, uint64_t bytes, uint64_t leave, uint64_t *offset) {
    int error = askable(log, bytes);
    if (!error && room_here(log, bytes + leave)) return place_here(log, offset);
    errno = error ? error : EAGAIN;
    return NULL;
}

uint64_t wr_log_room(const wr_log *log) {
    uint64_t end = log->ready_here == log->file_bytes ? log->file_bytes : log->ready_here - MARGIN_BYTES;
    return end > log->state.append ? end - log->state.append : 0;
}

void wr_log_append(wr_log *log, uint64_t bytes, bool wants_sync) {
    assert(log->state.has_file && fits(log, log->state.append, bytes));
    log->state.unsealed_sync |= wants_sync;
    set_appended(log, log->state.append + bytes);
}

int wr_log_seal(wr_log *log, bool sync, uint64_t note, const wr_horizon *horizons, uint32_t horizons_n) {
    if (horizons_n > WR_LOG_HORIZONS) return ENOBUFS;
    if (!unsealed(log) && horizons_n == 0) return 0;
    if (wr_committer_full(&log->committer)) return EAGAIN;
    post(log, sync, false, note, horizons, horizons_n);
    return 0;
}

int wr_log_quiesce(wr_log *log, uint64_t timeout_ns) { return wr_committer_quiesce(&log->committer, timeout_ns); }

void wr_log_stop(wr_log *log) { wr_committer_stop(&log->committer); }

void wr_log_commit_run(wr_log *log, _Atomic uint32_t *bell) { wr_committer_run(&log->committer, bell); }

/* ---- on the committer's thread ---- */

static wr_batch *batch_of(wr_log *log, const wr_commit *commit) { return &log->batches[(commit->number - 1) % WR_COMMITS]; }

static void commit_written(void *context, const wr_commit *commit) {
    wr_log *log = context;
    if (log->written) log->written(log->context, batch_of(log, commit));
}

static void commit_done(void *context, const wr_commit *commit) {
    wr_log *log = context;
    wr_batch *batch = batch_of(log, commit);
    batch->error = commit->error;
    if (!batch->error && batch->to && (batch->sync || !log->committer.may_sync))
        atomic_store_explicit(&log->headers[batch->image].durable, batch->to, memory_order_release);
    if (log->done) log->done(log->context, batch);
}

/* Touch the next part of the images while there is nothing else to do: a first touch in the append path would cost up to 14 us
 * a page. Never changes a byte. Returns false when there is nothing left (or no memory). */
static bool populate(void *context) {
    wr_log *log = context;
    uint32_t current = atomic_load_explicit(&log->current, memory_order_relaxed);
    uint64_t appended = atomic_load_explicit(&log->headers[current].appended, memory_order_acquire);
    if (appended > POPULATE_BYTES) atomic_store_explicit(&log->used, true, memory_order_relaxed);
    bool all = atomic_load_explicit(&log->used, memory_order_relaxed);
    for (uint32_t n = 0; n < (all ? log->images_n : 1); n++) {
        uint32_t image = (current + n) % log->images_n;
        uint64_t ready = atomic_load_explicit(&log->ready[image], memory_order_acquire);
        uint64_t most = log->image_bytes;
        uint64_t wanted = all || most < appended + LEAD_BYTES ? most : appended + LEAD_BYTES;
        if (ready >= wanted) continue;
        return make_ready(log, image, wanted - ready < POPULATE_BYTES ? wanted : ready + POPULATE_BYTES);
    }
    return false;
}

/* ---- readers in any process ---- */

bool wr_image_read(const uint8_t *region, uint32_t images_n, uint64_t file_bytes, uint64_t file, uint64_t offset,
                   void *to, uint64_t bytes) {
    const wr_image *headers = (const wr_image *)region;
    for (uint32_t i = 0; i < images_n && i < IMAGES_MAX; i++) {
        const wr_image *header = &headers[i];
        if (!wr_file_is((wr_file_ref){atomic_load_explicit(&header->file, memory_order_acquire)}, file)) continue;
        uint64_t generation = atomic_load_explicit(&header->generation, memory_order_acquire);
        /* SYNC image-appended */
        uint64_t appended = atomic_load_explicit(&header->appended, memory_order_acquire);
        if (appended > file_bytes || offset > appended || bytes > appended - offset) return false;
        wr_copy_racy(to, region + WR_PAGE_BYTES + i * file_bytes + offset, bytes);
        /* SYNC image-reuse */
        atomic_thread_fence(memory_order_acquire);
        return wr_file_is((wr_file_ref){atomic_load_explicit(&header->file, memory_order_relaxed)}, file) &&
               atomic_load_explicit(&header->generation, memory_order_relaxed) == generation;
    }
    return false;
}
