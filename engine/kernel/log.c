/* The append side of a segment file. What it is and its invariants: kernel/log.h.
 *
 * Two threads. The loop thread appends to the image and posts batches; the committer writes them and calls back.
 * Between them lies one ring of batches with one writer each way:
 *   posted_n  raised by the loop thread. SYNC batch-posted: its release pairs with the acquire in wr_log_commit_run; the
 *             batch and every byte of the image below batch.to are visible to the committer.
 *   done_n    raised by the committer. SYNC batch-done: its release pairs with the acquires of the loop thread; the batch slot,
 *             and an image whose last batch is done, may be reused.
 * Whoever finds nothing to do sleeps on a word of its own by the protocol of futex.h.
 *
 * Order of a batch: pwrite all, `written` callback, fdatasync when wanted and something is dirty, durable word of the image,
 * `done` callback, done_n, bells. A death anywhere leaves a prefix of the batches in the file, and then a torn tail.
 *
 * After an error the batch and all later ones are "done" with batch.error set and without any I/O: a failed fdatasync may
 * have dropped the dirty pages, so a later success would prove nothing.
 *
 * A pwrite that finds no space is no such error: it was refused before anything was told, its bytes stay as they are in the
 * image, and nothing later is written before them. It is tried again until there is space, or the log is stopped. A sync
 * that reports no space is one: what had been taken over is lost.
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
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>

#define IMAGES_MAX (WR_PAGE_BYTES / sizeof(wr_image))
#define POPULATE_BYTES (1u << 20)
#define LOOP_BYTES (256u << 10) /* the loop's share: about a millisecond where a first touch costs 14 us a page */
#define LEAD_BYTES (1ull << 20)
#define NEXT_PART 64 /* when so much of its file is used a log wants the next one: an empty node needs none on its disk */
#define MARGIN_BYTES (2 * WR_PAGE_BYTES) /* padding behind what was reserved */
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif
#define IDLE_NS 1000000000ull
#define REFUSED_NS 100000000ull /* the pause before a write that found no space is tried again */
#define REWINDS_MAX 100 /* tries to get past one page by writes that end inside it */

struct wr_log {
    /* set by wr_log_new */
    uint8_t *region;
    wr_image *headers;
    uint32_t images_n;
    uint64_t file_bytes;
    uint64_t image_bytes; /* so much of an image may have memory */
    bool may_sync;
    wr_batch_done done, written;
    void *context;
    wr_log_io io;
    void *io_context;
    bool nameless;

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
    _Alignas(64) _Atomic uint64_t posted_n;
    _Atomic uint32_t committer_sleeps;
    _Atomic uint32_t stopping;
    _Alignas(64) _Atomic uint64_t done_n;
    _Atomic uint32_t waiter_sleeps; /* wr_log_quiesce */
    _Atomic int failed, no_space;
    _Atomic uint64_t commits_n, syncs_n, commit_ns_sum, bytes_written;
    _Atomic uint64_t ready[IMAGES_MAX]; /* bytes of the image that have memory; only grows */
    _Atomic uint32_t current;           /* the loop's image */
    _Atomic bool used;                  /* it is worth while to have memory for all images */

    /* committer */
    bool dirty; /* written to the current fd since its last sync */
    int written_fd; /* of the last batch with bytes, -1: closed since */
    uint64_t look_at; /* when it is looked at again while there is nothing to do */

    wr_batch batches[WR_LOG_BATCHES]; /* batch n is at n mod WR_LOG_BATCHES: loop thread's until posted, committer's until done */
};

static inline uint8_t *image_at(const wr_log *log, uint32_t image) {
    return log->region + WR_PAGE_BYTES + image * log->file_bytes;
}

/* ---- the system's calls, replaceable ---- */

static ssize_t real_pwrite(void *context, int fd, const void *from, size_t n, off_t at) {
    (void)context;
    return pwrite(fd, from, n, at);
}

static int real_fdatasync(void *context, int fd) {
    (void)context;
    return fdatasync(fd);
}

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
    log->may_sync = may_sync;
    log->done = done;
    log->context = context;
    log->io = (wr_log_io){real_pwrite, real_fdatasync};
    log->fd = log->next_fd = log->written_fd = -1;
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
    /* Batches that no committer took: their `last` ones own a descriptor that log->fd no longer names. */
    uint64_t posted = atomic_load_explicit(&log->posted_n, memory_order_relaxed);
    for (uint64_t n = atomic_load_explicit(&log->done_n, memory_order_acquire); n < posted; n++) {
        const wr_batch *batch = &log->batches[n % WR_LOG_BATCHES];
        if (batch->last) close(batch->fd);
    }
    if (log->fd >= 0) close(log->fd);
    if (log->next_fd >= 0) close(log->next_fd);
    free(log);
}

void wr_log_limit(wr_log *log, uint64_t image_bytes) {
    image_bytes &= ~(uint64_t)(WR_PAGE_BYTES - 1);
    log->image_bytes = image_bytes && image_bytes < log->file_bytes ? image_bytes : log->file_bytes;
}

void wr_log_on_written(wr_log *log, wr_batch_done written) { log->written = written; }

void wr_log_set_io(wr_log *log, const wr_log_io *io, void *io_context) {
    log->io = *io;
    log->io_context = io_context;
}

void wr_log_set_nameless(wr_log *log) { log->nameless = true; }

static inline bool batches_full(const wr_log *log) {
    return atomic_load_explicit(&log->posted_n, memory_order_relaxed) -
               atomic_load_explicit(&log->done_n, memory_order_acquire) >= WR_LOG_BATCHES;
}

const wr_log_state *wr_log_look(const wr_log *log) {
    /* The state is a copy for the loop thread, refreshed here from what the committer counts. */
    wr_log_state *state = (wr_log_state *)&log->state;
    uint64_t done = atomic_load_explicit(&log->done_n, memory_order_acquire);
    state->busy = done != atomic_load_explicit(&log->posted_n, memory_order_relaxed);
    state->full = batches_full(log);
    state->wants_next = !state->has_next && (log->no_file || (state->has_file && state->append > WR_FILE_HEADER_BYTES + log->file_bytes / NEXT_PART));
    state->failed = atomic_load_explicit(&log->failed, memory_order_relaxed);
    state->no_space = atomic_load_explicit(&log->no_space, memory_order_relaxed);
    state->commits_n = atomic_load_explicit(&log->commits_n, memory_order_relaxed);
    state->syncs_n = atomic_load_explicit(&log->syncs_n, memory_order_relaxed);
    state->commit_ns_sum = atomic_load_explicit(&log->commit_ns_sum, memory_order_relaxed);
    state->bytes_written = atomic_load_explicit(&log->bytes_written, memory_order_relaxed);
    return state;
}

/* A frame fits when it fills the file exactly, or leaves room for a padding frame. */
static inline bool fits(const wr_log *log, uint64_t at, uint64_t bytes) {
    uint64_t room = log->file_bytes - at;
    return bytes == room || (bytes < room && room - bytes >= WR_FRAME_BYTES_MIN);
}

static inline bool image_free(const wr_log *log, uint32_t image) {
    return log->image_last[image] <= atomic_load_explicit(&log->done_n, memory_order_acquire);
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
            if (log->may_sync && durable) wr_frame_vouch(padding, durable, state->salt);
            set_appended(log, end);
        }
    }
    uint64_t number = atomic_load_explicit(&log->posted_n, memory_order_relaxed) + 1;
    wr_batch *batch = &log->batches[(number - 1) % WR_LOG_BATCHES];
    batch->fd = log->fd;
    batch->image = state->image;
    batch->file = state->file;
    batch->from = state->sealed_to;
    batch->to = unsealed(log) ? state->append : state->sealed_to;
    batch->sync = log->may_sync && (sync || state->unsealed_sync);
    batch->last = last;
    batch->number = number;
    batch->note = note;
    batch->horizons_n = horizons_n;
    if (horizons_n) memcpy(batch->horizons, horizons, horizons_n * sizeof *horizons);
    batch->error = 0;
    state->sealed_to = batch->to;
    state->unsealed_sync = false;
    /* SYNC batch-posted */
    atomic_store_explicit(&log->posted_n, number, memory_order_release);
    wr_bell_ring(&log->committer_sleeps);
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
    if (!state->has_next || batches_full(log)) return EAGAIN;
    bool busy = false;
    for (uint32_t n = 1; n < log->images_n; n++) {
        uint32_t image = (state->image + n) % log->images_n;
        if (!image_free(log, image)) {
            busy = true;
            continue;
        }
        if (!loop_ready(log, image, WR_FILE_HEADER_BYTES + bytes)) continue;
        /* image_free has read done_n: if the batch that freed the image had failed, that is visible now. */
        int failed = atomic_load_explicit(&log->failed, memory_order_relaxed);
        if (failed) return failed;
        post(log, true, true, 0, NULL, 0);
        log->image_last[state->image] = atomic_load_explicit(&log->posted_n, memory_order_relaxed);
        take_next(log, image);
        return 0;
    }
    state->no_memory = !busy;
    return EAGAIN;
}

/* May a frame of `bytes` be asked for now? 0 or an errno. */
static inline int askable(wr_log *log, uint64_t bytes) {
    if (bytes < WR_FRAME_BYTES_MIN || !fits(log, WR_FILE_HEADER_BYTES, bytes)) return EMSGSIZE;
    int failed = atomic_load_explicit(&log->failed, memory_order_relaxed);
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
    if (batches_full(log)) return EAGAIN;
    post(log, sync, false, note, horizons, horizons_n);
    return 0;
}

int wr_log_quiesce(wr_log *log, uint64_t timeout_ns) {
    uint64_t posted = atomic_load_explicit(&log->posted_n, memory_order_relaxed);
    uint64_t until = wr_now_ns() + timeout_ns;
    for (;;) {
        if (atomic_load_explicit(&log->done_n, memory_order_acquire) >= posted) return 0;
        atomic_store_explicit(&log->waiter_sleeps, 1, memory_order_relaxed);
        atomic_thread_fence(memory_order_seq_cst);
        uint64_t now = wr_now_ns();
        bool waits = atomic_load_explicit(&log->done_n, memory_order_acquire) < posted;
        if (waits && now < until) wr_futex_wait(&log->waiter_sleeps, 1, until - now);
        atomic_store_explicit(&log->waiter_sleeps, 0, memory_order_relaxed);
        if (waits && now >= until) return ETIMEDOUT;
    }
}

void wr_log_stop(wr_log *log) {
    atomic_store_explicit(&log->stopping, 1, memory_order_release);
    wr_bell_ring(&log->committer_sleeps);
}

/* ---- committer ---- */

/* A write found no space: wait a moment, or for anything that is posted. False: the log is to end, so it is given up. */
static bool wait_for_space(wr_log *log, int error, _Atomic uint32_t *bell) {
    if (atomic_exchange_explicit(&log->no_space, error, memory_order_relaxed) != error && bell) wr_bell_ring(bell);
    atomic_store_explicit(&log->committer_sleeps, 1, memory_order_relaxed);
    atomic_thread_fence(memory_order_seq_cst);
    bool stopping = atomic_load_explicit(&log->stopping, memory_order_acquire);
    if (!stopping) wr_futex_wait(&log->committer_sleeps, 1, REFUSED_NS);
    atomic_store_explicit(&log->committer_sleeps, 0, memory_order_relaxed);
    return !stopping;
}

/* Write all of [from, to). Short writes go on where they ended; where O_DIRECT refuses that place, at the start of its page. */
static int write_all(wr_log *log, const wr_batch *batch, _Atomic uint32_t *bell) {
    const uint8_t *image = image_at(log, batch->image);
    uint64_t at = batch->from;
    int rewinds = 0;
    while (at < batch->to) {
        ssize_t n = log->io.pwrite(log->io_context, batch->fd, image + at, batch->to - at, (off_t)at);
        if (n > 0) {
            if ((uint64_t)n >= WR_PAGE_BYTES) rewinds = 0;
            at += (uint64_t)n;
        } else if (n == 0) {
            return EIO;
        } else if (errno == EINVAL && at % WR_PAGE_BYTES && rewinds < REWINDS_MAX) {
            rewinds++;
            at &= ~(uint64_t)(WR_PAGE_BYTES - 1);
        } else if (errno == ENOSPC || errno == EDQUOT) {
            int error = errno;
            if (!wait_for_space(log, error, bell)) return error;
        } else if (errno != EINTR) {
            return errno;
        }
    }
    atomic_store_explicit(&log->no_space, 0, memory_order_relaxed);
    return 0;
}

static int sync_file(wr_log *log, int fd) {
    while (log->io.fdatasync(log->io_context, fd) != 0)
        if (errno != EINTR) return errno;
    return 0;
}

/* A file without a name is lost with its last descriptor: somebody has removed it, or the whole directory, while it is in use. A file
 * that is shorter than it was made was cut, or is being written over: what was confirmed in it is gone. What is in such a file must not
 * be confirmed. Files that the owner removes are durable, so none of their batches is still to come, and nobody of ours cuts a file that
 * a log has; a log that never syncs promises nothing.
 * Only links and size are asked for: where a file's times were looked at, as by fstat, the next write has to change them, which is one
 * more change of the inode in the file system's journal for each write. */
static int still_there(const wr_log *log, int fd) {
    const unsigned wanted = STATX_NLINK | STATX_SIZE;
    struct statx found;
    if (!log->may_sync || log->nameless) return 0;
    if (statx(fd, "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, wanted, &found) == 0 && (found.stx_mask & wanted) == wanted)
        return found.stx_nlink && found.stx_size >= log->file_bytes ? 0 : ESTALE;
    struct stat old; /* a sandbox that knows no statx */
    return fstat(fd, &old) == 0 && (old.st_nlink == 0 || (uint64_t)old.st_size < log->file_bytes) ? ESTALE : 0;
}

static void commit(wr_log *log, wr_batch *batch, _Atomic uint32_t *bell) {
    uint64_t began = wr_now_ns();
    int error = atomic_load_explicit(&log->failed, memory_order_relaxed);
    if (!error && batch->to > batch->from) {
        error = write_all(log, batch, bell);
        if (!error) {
            log->dirty = true;
            log->written_fd = batch->fd;
            atomic_fetch_add_explicit(&log->bytes_written, batch->to - batch->from, memory_order_relaxed);
            error = still_there(log, batch->fd);
        }
    }
    if (!error && log->written) log->written(log->context, batch);
    if (!error && batch->sync && log->dirty) {
        error = sync_file(log, batch->fd);
        if (!error) error = still_there(log, batch->fd);
        if (!error) {
            log->dirty = false;
            atomic_fetch_add_explicit(&log->syncs_n, 1, memory_order_relaxed);
        }
    }
    if (error) {
        batch->error = error;
        atomic_store_explicit(&log->failed, error, memory_order_release);
    } else if (batch->to && (batch->sync || !log->may_sync)) {
        atomic_store_explicit(&log->headers[batch->image].durable, batch->to, memory_order_release);
    }
    if (batch->last) {
        /* What close could report was reported by fdatasync; a log that never syncs promises nothing. */
        close(batch->fd);
        log->dirty = false;
        log->written_fd = -1;
    }
    atomic_fetch_add_explicit(&log->commits_n, 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&log->commit_ns_sum, wr_now_ns() - began, memory_order_relaxed);
    if (log->done) log->done(log->context, batch);
}

/* Touch the next part of the images while there is nothing else to do: a first touch in the append path would cost up to 14 us
 * a page. Never changes a byte. Returns false when there is nothing left (or no memory). */
static bool populate(wr_log *log) {
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

/* While nothing is written, too, somebody may remove or cut the file in which the last things were confirmed: once a second. True: so
 * it is, and the log has failed. */
static bool idle_look(wr_log *log) {
    if (log->written_fd < 0 || atomic_load_explicit(&log->failed, memory_order_relaxed)) return false;
    uint64_t now = wr_now_ns();
    if (now < log->look_at) return false;
    log->look_at = now + IDLE_NS;
    int error = still_there(log, log->written_fd);
    if (error) atomic_store_explicit(&log->failed, error, memory_order_release);
    return error != 0;
}

void wr_log_commit_run(wr_log *log, _Atomic uint32_t *bell) {
    uint64_t done = atomic_load_explicit(&log->done_n, memory_order_relaxed);
    for (;;) {
        /* `stopping` is read first: what was posted before it is seen below. */
        bool stopping = atomic_load_explicit(&log->stopping, memory_order_acquire);
        /* SYNC batch-posted */
        if (done < atomic_load_explicit(&log->posted_n, memory_order_acquire)) {
            commit(log, &log->batches[done % WR_LOG_BATCHES], bell);
            /* SYNC batch-done */
            atomic_store_explicit(&log->done_n, ++done, memory_order_release);
            if (bell) wr_bell_ring(bell);
            wr_bell_ring(&log->waiter_sleeps);
            continue;
        }
        if (stopping) return;
        if (idle_look(log)) {
            if (bell) wr_bell_ring(bell);
            continue;
        }
        if (populate(log)) continue;
        atomic_store_explicit(&log->committer_sleeps, 1, memory_order_relaxed);
        atomic_thread_fence(memory_order_seq_cst);
        if (done == atomic_load_explicit(&log->posted_n, memory_order_acquire) &&
            !atomic_load_explicit(&log->stopping, memory_order_acquire))
            wr_futex_wait(&log->committer_sleeps, 1, IDLE_NS);
        atomic_store_explicit(&log->committer_sleeps, 0, memory_order_relaxed);
    }
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
