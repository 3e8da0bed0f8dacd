/* The append side of the commit log. What it is and its invariants: topics/log.h.
 *
 * What lies where: a commit is [from, at) records, [at, to) its commit record. A file's last one holds nothing but a blank record of 8
 * bytes, and its `to` is the next file's base: what is not confirmed by marks would be replayed, so the owner seals before a file ends. The committer writes whole pages from the one of `from` on; the last, partial one goes through
 * a page of its own (bounce), whose rest is zero: in the ring, records that are not sealed may lie there already.
 */
#define _GNU_SOURCE
#include "topics/log.h"
#include "kernel/frame.h"
#include "kernel/racy.h"
#include "topics/record.h"
#include <assert.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>

#define LOW_STEP (64u << 10) /* `low` rises by so much at once: the word's line is read by others */
#define ALLOCATE_BYTES (16ull << 20) /* blocks that are asked for ahead of the writes */
#define NEXT_PART 2 /* when so much of its file is used a log wants the next one */

struct wr_topic_log {
    /* set by wr_topic_log_new */
    wr_topic_ring *shared;
    uint8_t *ring;
    uint64_t ring_bytes, file_bytes;
    uint64_t ending; /* bytes that a commit may need behind its records: its commit record, and a blank one */
    wr_commit_origin origin;
    wr_topic_committed written, done;
    void *context;

    /* loop thread */
    wr_topic_log_state state;
    int fd, next_fd;
    uint64_t next_base;
    bool no_file; /* something waits for the next file */
    uint64_t low, store_ms;

    /* both */
    wr_committer committer;
    _Atomic uint64_t done_to; /* positions below are in their files */

    /* who has the committer's turn */
    uint64_t synced, allocated;
    uint8_t *bounce;

    wr_topic_commit commits[WR_COMMITS]; /* beside the committer's, at the same place */
};

static inline uint64_t page_of(uint64_t position) { return position & ~(uint64_t)(WR_PAGE_BYTES - 1); }
static inline uint8_t *place(const wr_topic_log *log, uint64_t position) { return log->ring + (position & (log->ring_bytes - 1)); }

static void commit_sealing(void *context, wr_commit *job);
static void commit_written(void *context, const wr_commit *job);
static void commit_done(void *context, const wr_commit *job);

/* ---- the ring's memory ---- */

void *wr_topic_ring_map(int fd, uint64_t ring_bytes) {
    uint8_t *all = mmap(NULL, WR_PAGE_BYTES + 2 * ring_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (all == MAP_FAILED) return NULL;
    const int way = MAP_SHARED | MAP_FIXED, use = PROT_READ | PROT_WRITE;
    if (mmap(all, WR_PAGE_BYTES + ring_bytes, use, way, fd, 0) != MAP_FAILED &&
        mmap(all + WR_PAGE_BYTES + ring_bytes, ring_bytes, use, way, fd, WR_PAGE_BYTES) != MAP_FAILED)
        return all;
    int error = errno;
    wr_topic_ring_unmap(all, ring_bytes);
    errno = error;
    return NULL;
}

void wr_topic_ring_unmap(void *region, uint64_t ring_bytes) { munmap(region, WR_PAGE_BYTES + 2 * ring_bytes); }

/* ---- begin and end ---- */

static uint64_t ending_bytes(void) { return wr_commit_record_bytes(WR_COMMIT_MARKS_MAX) + WR_BLANK_SIZE; }

wr_topic_log *wr_topic_log_new(void *region, uint64_t ring_bytes, uint64_t file_bytes, const wr_commit_origin *origin,
                               wr_topic_committed written, wr_topic_committed done, void *context) {
    static const wr_commit_owner owner = {.sealing = commit_sealing, .written = commit_written, .done = commit_done};
    const uint64_t ending = ending_bytes();
    if (!region || ring_bytes & (ring_bytes - 1) || ring_bytes % WR_PAGE_BYTES || file_bytes % WR_PAGE_BYTES ||
        ring_bytes < 4 * (ending + WR_PAGE_BYTES) || file_bytes < 4 * (ending + WR_PAGE_BYTES)) {
        errno = EINVAL;
        return NULL;
    }
    wr_topic_log *log = aligned_alloc(64, (sizeof *log + 63) & ~(size_t)63);
    uint8_t *bounce = aligned_alloc(WR_PAGE_BYTES, WR_PAGE_BYTES);
    if (!log || !bounce) {
        free(log);
        free(bounce);
        errno = ENOMEM;
        return NULL;
    }
    memset((void *)log, 0, sizeof *log);
    log->shared = region;
    log->ring = (uint8_t *)region + WR_PAGE_BYTES;
    log->ring_bytes = ring_bytes;
    log->file_bytes = file_bytes;
    log->ending = ending;
    log->origin = *origin;
    log->written = written;
    log->done = done;
    log->context = context;
    log->bounce = bounce;
    log->fd = log->next_fd = -1;
    wr_committer_init(&log->committer, file_bytes, true, &owner, log);
    return log;
}

void wr_topic_log_free(wr_topic_log *log) {
    if (!log) return;
    wr_committer_close(&log->committer);
    if (log->fd >= 0) close(log->fd);
    if (log->next_fd >= 0) close(log->next_fd);
    free(log->bounce);
    free(log);
}

void wr_topic_log_set_io(wr_topic_log *log, const wr_commit_io *io, void *io_context) {
    log->committer.io = *io;
    log->committer.io_context = io_context;
}

void wr_topic_log_begin(wr_topic_log *log, uint64_t position, uint64_t number, uint64_t store_ms) {
    assert(!log->state.has_file);
    log->state.append = log->state.sealed = position;
    log->state.base = position / log->file_bytes * log->file_bytes;
    log->state.number = number;
    log->store_ms = store_ms;
    log->synced = position;
    log->low = page_of(position); /* nothing of before is in the ring, but what the first page is written again with */
    atomic_store_explicit(&log->done_to, position, memory_order_relaxed);
    /* SYNC ring-reuse: readers may still look at the region of an earlier server, which this one writes over */
    atomic_store_explicit(&log->shared->low, position, memory_order_relaxed);
    atomic_thread_fence(memory_order_release);
    atomic_store_explicit(&log->shared->written, position, memory_order_relaxed);
    atomic_store_explicit(&log->shared->synced, position, memory_order_relaxed);
    atomic_store_explicit(&log->shared->appended, position, memory_order_release);
}

/* The first page of a commit is written as a whole: what its file has there already is put into the ring. */
static int read_page(wr_topic_log *log, int fd) {
    uint64_t page = page_of(log->state.append);
    if (page == log->state.append) return 0;
    ssize_t n;
    do n = pread(fd, log->bounce, WR_PAGE_BYTES, (off_t)(page - log->state.base));
    while (n < 0 && errno == EINTR);
    if (n < 0) return errno;
    if ((uint64_t)n < log->state.append - page) return EIO;
    memcpy(place(log, page), log->bounce, log->state.append - page);
    return 0;
}

static void take_next(wr_topic_log *log) {
    log->fd = log->next_fd;
    log->next_fd = -1;
    log->state.base = log->next_base;
    log->state.has_file = true;
    log->state.has_next = false;
}

int wr_topic_log_offer(wr_topic_log *log, int fd, uint64_t base) {
    wr_topic_log_state *state = &log->state;
    if (fd < 0) return EBADF;
    if (log->next_fd >= 0) return EBUSY;
    if (base != (state->has_file ? state->base + log->file_bytes : state->base)) return EINVAL;
    int error = state->has_file ? 0 : read_page(log, fd);
    if (error) return error;
    log->next_fd = fd;
    log->next_base = base;
    state->has_next = true;
    log->no_file = false;
    if (!state->has_file) take_next(log);
    return 0;
}

const wr_topic_log_state *wr_topic_log_look(const wr_topic_log *log) {
    /* The state is a copy for the loop thread, refreshed here from what the committer counts. */
    wr_topic_log_state *state = (wr_topic_log_state *)&log->state;
    const wr_committer *c = &log->committer;
    uint64_t in_work = wr_committer_posted(c) - wr_committer_done(c);
    state->busy = in_work != 0;
    state->full = in_work >= WR_COMMITS;
    state->wants_next = !state->has_next && (log->no_file || (state->has_file && state->append - state->base > log->file_bytes / NEXT_PART));
    state->synced = atomic_load_explicit(&log->shared->synced, memory_order_acquire); /* SYNC log-horizons */
    state->failed = wr_committer_failed(c);
    state->no_space = atomic_load_explicit(&c->no_space, memory_order_relaxed);
    state->commits_n = atomic_load_explicit(&c->commits_n, memory_order_relaxed);
    state->syncs_n = atomic_load_explicit(&c->syncs_n, memory_order_relaxed);
    state->commit_ns_sum = atomic_load_explicit(&c->commit_ns_sum, memory_order_relaxed);
    state->bytes_written = atomic_load_explicit(&c->bytes_written, memory_order_relaxed);
    return state;
}

/* ---- append ---- */

uint64_t wr_topic_log_most_of(uint64_t ring_bytes, uint64_t file_bytes) {
    const uint64_t half = (ring_bytes < file_bytes ? ring_bytes : file_bytes) / 2, beside = ending_bytes() + WR_PAGE_BYTES;
    return half > beside ? half - beside : 0;
}

uint64_t wr_topic_log_most(const wr_topic_log *log) { return wr_topic_log_most_of(log->ring_bytes, log->file_bytes); }

static inline bool fits_file(const wr_topic_log *log, uint64_t bytes) {
    return log->state.append + bytes + log->ending <= log->state.base + log->file_bytes;
}

/* Is there room in the ring for so many bytes from `append` on? What they write over is no longer there for readers. */
static bool make_room(wr_topic_log *log, uint64_t bytes) {
    uint64_t end = log->state.append + bytes + log->ending;
    if (end <= log->low + log->ring_bytes) return true;
    uint64_t free = page_of(atomic_load_explicit(&log->done_to, memory_order_acquire));
    if (end > free + log->ring_bytes) return false;
    uint64_t low = end - log->ring_bytes + LOW_STEP;
    log->low = low < free ? low : free;
    /* SYNC ring-reuse: `low` is above a byte before that changes; a reader that copied it meanwhile sees so after its acquire
     * fence (wr_topic_ring_read). */
    atomic_store_explicit(&log->shared->low, log->low, memory_order_relaxed);
    atomic_thread_fence(memory_order_release);
    return true;
}

static inline bool unsealed(const wr_topic_log *log) { return log->state.append > log->state.sealed; }

/* Post a commit of what is not sealed; the caller has made sure of a place, and of room in file and ring. */
static void post(wr_topic_log *log, bool sync, bool last, bool here, const wr_commit_mark *marks, uint32_t marks_n) {
    wr_topic_log_state *state = &log->state;
    wr_commit *job = wr_committer_next(&log->committer);
    wr_topic_commit *commit = &log->commits[(job->number - 1) % WR_COMMITS];
    bool holds = unsealed(log);
    if (holds) log->state.number++;
    commit->from = state->sealed;
    commit->at = state->append;
    commit->sync = sync;
    commit->last = last;
    commit->error = 0;
    commit->head = (wr_commit_head){.origin = log->origin, .number = log->state.number, .from = state->sealed, .store_ms = log->store_ms, .marks_n = marks_n};
    if (marks_n) memcpy(commit->marks, marks, marks_n * sizeof *marks);
    uint64_t end = state->append + (last ? WR_BLANK_SIZE : holds ? wr_commit_record_bytes(marks_n) : 0);
    commit->to = last ? state->base + log->file_bytes : end;
    job->fd = log->fd;
    job->sync = sync;
    job->last = last;
    uint64_t first = page_of(state->sealed), whole = page_of(end);
    if (holds || last) {
        if (whole > first) job->parts[job->parts_n++] = (wr_commit_part){place(log, first), whole - first, first - state->base};
        if (whole < end) job->parts[job->parts_n++] = (wr_commit_part){log->bounce, WR_PAGE_BYTES, whole - state->base};
    }
    state->append = state->sealed = commit->to;
    state->unsynced = !sync;
    /* SYNC ring-appended: pairs with the acquire in wr_topic_ring_read */
    atomic_store_explicit(&log->shared->appended, commit->to, memory_order_release);
    if (here) wr_committer_post_here(&log->committer);
    else wr_committer_post(&log->committer);
}

/* Leave the current file for the next one. 0 or an errno. */
static int roll(wr_topic_log *log) {
    log->no_file = !log->state.has_next;
    if (unsealed(log) || !log->state.has_next || wr_committer_full(&log->committer)) return EAGAIN;
    post(log, true, true, false, NULL, 0);
    take_next(log);
    return 0;
}

uint8_t *wr_topic_log_reserve(wr_topic_log *log, uint64_t bytes, uint64_t *position) {
    int error = wr_committer_failed(&log->committer);
    if (!error && bytes > wr_topic_log_most(log)) error = EMSGSIZE;
    if (!error && !log->state.has_file) {
        log->no_file = true;
        error = EAGAIN;
    }
    if (!error && !fits_file(log, bytes)) error = roll(log);
    if (!error && !make_room(log, bytes)) error = EAGAIN;
    log->state.wants_seal = error == EAGAIN && unsealed(log);
    if (error) {
        errno = error;
        return NULL;
    }
    *position = log->state.append;
    return place(log, log->state.append);
}

void wr_topic_log_append(wr_topic_log *log, uint64_t bytes, uint64_t store_ms) {
    assert(log->state.has_file && fits_file(log, bytes) && store_ms >= log->store_ms);
    log->store_ms = store_ms;
    log->state.append += bytes;
    /* SYNC ring-appended: bytes below are complete */
    atomic_store_explicit(&log->shared->appended, log->state.append, memory_order_release);
}

int wr_topic_log_seal(wr_topic_log *log, bool sync, bool here, const wr_commit_mark *marks, uint32_t marks_n) {
    if (marks_n > WR_COMMIT_MARKS_MAX) return EMSGSIZE;
    log->state.wants_seal = false;
    if (!unsealed(log) && !(sync && log->state.unsynced) && !marks_n) return 0;
    if (wr_committer_full(&log->committer)) return EAGAIN;
    post(log, sync, false, here, marks, marks_n);
    return 0;
}

int wr_topic_log_quiesce(wr_topic_log *log, uint64_t timeout_ns) { return wr_committer_quiesce(&log->committer, timeout_ns); }

void wr_topic_log_commit_run(wr_topic_log *log, _Atomic uint32_t *bell) { wr_committer_run(&log->committer, bell); }

void wr_topic_log_stop(wr_topic_log *log) { wr_committer_stop(&log->committer); }

/* ---- with the committer's turn ---- */

static wr_topic_commit *commit_of(wr_topic_log *log, const wr_commit *job) { return &log->commits[(job->number - 1) % WR_COMMITS]; }

/* Ask for blocks ahead: writes that find some are cheaper. Without, they ask themselves, and wait for space. */
static void allocate(wr_topic_log *log, const wr_topic_commit *commit, int fd) {
    uint64_t base = commit->from / log->file_bytes * log->file_bytes, end = base + log->file_bytes;
    if (commit->to <= log->allocated || log->allocated >= end) return;
    uint64_t from = log->allocated > page_of(commit->from) ? log->allocated : page_of(commit->from);
    uint64_t to = commit->to + ALLOCATE_BYTES < end ? page_of(commit->to + ALLOCATE_BYTES) : end;
    (void)!fallocate(fd, FALLOC_FL_KEEP_SIZE, (off_t)(from - base), (off_t)(to - from));
    log->allocated = to;
}

/* Fill in what is known only now: the checksum of the records, and how far the log is synced. */
static void commit_sealing(void *context, wr_commit *job) {
    wr_topic_log *log = context;
    wr_topic_commit *commit = commit_of(log, job);
    if (!job->parts_n) return;
    allocate(log, commit, job->fd);
    uint64_t end = commit->to;
    if (commit->at > commit->from) {
        commit->head.synced = log->synced;
        commit->head.crc = wr_crc32c(0, place(log, commit->from), commit->at - commit->from);
        wr_commit_record_write(place(log, commit->at), commit->at, &commit->head, commit->marks);
    }
    if (commit->last) {
        wr_record_blank(place(log, commit->at), (uint32_t)(commit->to - commit->at));
        end = commit->at + WR_BLANK_SIZE;
    }
    uint64_t rest = end - page_of(end);
    if (!rest) return;
    memcpy(log->bounce, place(log, page_of(end)), rest);
    memset(log->bounce + rest, 0, WR_PAGE_BYTES - rest);
}

static void commit_written(void *context, const wr_commit *job) {
    wr_topic_log *log = context;
    const wr_topic_commit *commit = commit_of(log, job);
    atomic_store_explicit(&log->done_to, commit->to, memory_order_release);
    /* SYNC log-horizons: pairs with the readers' acquire; what is below is in its file */
    atomic_store_explicit(&log->shared->written, commit->to, memory_order_release);
    if (log->written) log->written(log->context, commit);
}

static void commit_done(void *context, const wr_commit *job) {
    wr_topic_log *log = context;
    wr_topic_commit *commit = commit_of(log, job);
    commit->error = job->error;
    if (!commit->error && commit->sync) {
        log->synced = commit->to;
        atomic_store_explicit(&log->shared->synced, commit->to, memory_order_release);
    }
    if (log->done) log->done(log->context, commit);
}

/* ---- readers in any process ---- */

bool wr_topic_ring_read(const void *region, uint64_t ring_bytes, uint64_t position, void *to, uint64_t bytes) {
    const wr_topic_ring *shared = region;
    const uint8_t *ring = (const uint8_t *)region + WR_PAGE_BYTES;
    /* SYNC ring-appended */
    uint64_t appended = atomic_load_explicit(&shared->appended, memory_order_acquire);
    if (bytes > ring_bytes || position > appended || bytes > appended - position) return false;
    if (atomic_load_explicit(&shared->low, memory_order_relaxed) > position) return false;
    uint64_t at = position & (ring_bytes - 1), first = ring_bytes - at;
    if (first > bytes) first = bytes;
    wr_copy_racy(to, ring + at, first);
    wr_copy_racy((uint8_t *)to + first, ring, bytes - first);
    /* SYNC ring-reuse */
    atomic_thread_fence(memory_order_acquire);
    return atomic_load_explicit(&shared->low, memory_order_relaxed) <= position;
}
