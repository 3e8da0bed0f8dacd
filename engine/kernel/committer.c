/* The committer of a log. What it is and its invariants: kernel/committer.h.
 *
 *   posted_n  raised by the loop thread. SYNC batch-posted: its release pairs with the acquire in wr_committer_run; the batch and
 *             every byte that its parts point to are visible to the committer.
 *   done_n    raised by the committer. SYNC batch-done: its release pairs with the acquires of the loop thread.
 * Whoever finds nothing to do sleeps on a word of its own by the protocol of futex.h.
 */
#define _GNU_SOURCE
#include "kernel/committer.h"
#include "kernel/protocol.h"
#include <assert.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>

#define IDLE_NS 1000000000ull
#define REFUSED_NS 100000000ull /* the pause before a write that found no space is tried again */
#define AGAIN (-1) /* no errno: the committer is to try it, who may wait */
#define REWINDS_MAX 100 /* tries to get past one page by writes that end inside it */

static ssize_t real_pwrite(void *context, int fd, const void *from, size_t n, off_t at) {
    (void)context;
    return pwrite(fd, from, n, at);
}

static int real_fdatasync(void *context, int fd) {
    (void)context;
    return fdatasync(fd);
}

const wr_commit_io wr_commit_io_system = {real_pwrite, real_fdatasync};

void wr_committer_init(wr_committer *c, uint64_t file_bytes, bool may_sync, const wr_commit_owner *owner, void *context) {
    memset((void *)c, 0, sizeof *c);
    c->owner = *owner;
    c->context = context;
    c->io = wr_commit_io_system;
    c->file_bytes = file_bytes;
    c->may_sync = may_sync;
    c->written_fd = -1;
    pthread_mutex_init(&c->turn, NULL);
}

void wr_committer_close(wr_committer *c) {
    pthread_mutex_destroy(&c->turn);
    for (uint64_t n = wr_committer_done(c); n < wr_committer_posted(c); n++) {
        const wr_commit *commit = &c->commits[n % WR_COMMITS];
        if (commit->last) close(commit->fd);
    }
}

/* ---- loop thread ---- */

wr_commit *wr_committer_next(wr_committer *c) {
    assert(!wr_committer_full(c));
    uint64_t number = wr_committer_posted(c) + 1;
    wr_commit *commit = &c->commits[(number - 1) % WR_COMMITS];
    *commit = (wr_commit){.fd = -1, .number = number};
    return commit;
}

/* SYNC batch-posted */
static void show(wr_committer *c) { atomic_store_explicit(&c->posted_n, wr_committer_posted(c) + 1, memory_order_release); }

void wr_committer_post(wr_committer *c) {
    show(c);
    wr_bell_ring(&c->sleeps);
}

int wr_committer_quiesce(wr_committer *c, uint64_t timeout_ns) {
    uint64_t posted = wr_committer_posted(c);
    uint64_t until = wr_now_ns() + timeout_ns;
    for (;;) {
        if (wr_committer_done(c) >= posted) return 0;
        atomic_store_explicit(&c->waiter_sleeps, 1, memory_order_relaxed);
        atomic_thread_fence(memory_order_seq_cst);
        uint64_t now = wr_now_ns();
        bool waits = wr_committer_done(c) < posted;
        if (waits && now < until) wr_futex_wait(&c->waiter_sleeps, 1, until - now);
        atomic_store_explicit(&c->waiter_sleeps, 0, memory_order_relaxed);
        if (waits && now >= until) return ETIMEDOUT;
    }
}

void wr_committer_stop(wr_committer *c) {
    atomic_store_explicit(&c->stopping, 1, memory_order_release);
    wr_bell_ring(&c->sleeps);
}

/* ---- committer ---- */

/* A write found no space: wait a moment, or for anything that is posted. False: the log is to end, so it is given up. */
static bool wait_for_space(wr_committer *c, int error, _Atomic uint32_t *bell) {
    if (atomic_exchange_explicit(&c->no_space, error, memory_order_relaxed) != error && bell) wr_bell_ring(bell);
    atomic_store_explicit(&c->sleeps, 1, memory_order_relaxed);
    atomic_thread_fence(memory_order_seq_cst);
    bool stopping = atomic_load_explicit(&c->stopping, memory_order_acquire);
    if (!stopping) wr_futex_wait(&c->sleeps, 1, REFUSED_NS);
    atomic_store_explicit(&c->sleeps, 0, memory_order_relaxed);
    return !stopping;
}

/* Write all of a part. Short writes go on where they ended; where O_DIRECT refuses that place, at the start of its page. Not `patient`:
 * AGAIN where there is no space. */
static int write_part(wr_committer *c, int fd, const wr_commit_part *part, bool patient, _Atomic uint32_t *bell) {
    uint64_t done = 0;
    int rewinds = 0;
    while (done < part->bytes) {
        ssize_t n = c->io.pwrite(c->io_context, fd, part->from + done, part->bytes - done, (off_t)(part->at + done));
        if (n > 0) {
            if ((uint64_t)n >= WR_PAGE_BYTES) rewinds = 0;
            done += (uint64_t)n;
        } else if (n == 0) {
            return EIO;
        } else if (errno == EINVAL && done % WR_PAGE_BYTES && rewinds < REWINDS_MAX) {
            rewinds++;
            done &= ~(uint64_t)(WR_PAGE_BYTES - 1);
        } else if (errno == ENOSPC || errno == EDQUOT) {
            int error = errno;
            if (!patient) return AGAIN;
            if (!wait_for_space(c, error, bell)) return error;
        } else if (errno != EINTR) {
            return errno;
        }
    }
    atomic_store_explicit(&c->no_space, 0, memory_order_relaxed);
    return 0;
}

static int sync_file(wr_committer *c, int fd) {
    while (c->io.fdatasync(c->io_context, fd) != 0)
        if (errno != EINTR) return errno;
    return 0;
}

/* A file without a name is lost with its last descriptor: somebody has removed it, or the whole directory, while it is in use. A file
 * that is shorter than it was made was cut, or is being written over: what was confirmed in it is gone. What is in such a file must not
 * be confirmed. Files that the owner removes are durable, so none of their batches is still to come, and nobody of ours cuts a file that
 * a log has; a log that never syncs promises nothing.
 * Only links and size are asked for: where a file's times were looked at, as by fstat, the next write has to change them, which is one
 * more change of the inode in the file system's journal for each write. */
static int still_there(const wr_committer *c, int fd) {
    const unsigned wanted = STATX_NLINK | STATX_SIZE;
    struct statx found;
    if (!c->may_sync || c->nameless) return 0;
    if (statx(fd, "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, wanted, &found) == 0 && (found.stx_mask & wanted) == wanted)
        return found.stx_nlink && found.stx_size >= c->file_bytes ? 0 : ESTALE;
    struct stat old; /* a sandbox that knows no statx */
    return fstat(fd, &old) == 0 && (old.st_nlink == 0 || (uint64_t)old.st_size < c->file_bytes) ? ESTALE : 0;
}

static int write_parts(wr_committer *c, const wr_commit *commit, bool patient, _Atomic uint32_t *bell) {
    for (uint32_t i = 0; i < commit->parts_n; i++) {
        int error = write_part(c, commit->fd, &commit->parts[i], patient, bell);
        if (error) return error;
    }
    if (!commit->parts_n) return 0;
    c->dirty = true;
    c->written_fd = commit->fd;
    for (uint32_t i = 0; i < commit->parts_n; i++)
        atomic_fetch_add_explicit(&c->bytes_written, commit->parts[i].bytes, memory_order_relaxed);
    return still_there(c, commit->fd);
}

/* The next batch, which is posted. False: not `patient`, and there was no space; it is as if nothing had been done. */
static bool commit_next(wr_committer *c, bool patient, _Atomic uint32_t *bell) {
    const uint64_t done = atomic_load_explicit(&c->done_n, memory_order_relaxed);
    wr_commit *commit = &c->commits[done % WR_COMMITS];
    uint64_t began = wr_now_ns();
    int error = wr_committer_failed(c);
    if (!error) {
        if (c->owner.sealing) c->owner.sealing(c->context, commit);
        error = write_parts(c, commit, patient, bell);
        if (error == AGAIN) return false;
    }
    if (!error && c->owner.written) c->owner.written(c->context, commit);
    if (!error && commit->sync && c->dirty) {
        error = sync_file(c, commit->fd);
        if (!error) error = still_there(c, commit->fd);
        if (!error) {
            c->dirty = false;
            atomic_fetch_add_explicit(&c->syncs_n, 1, memory_order_relaxed);
        }
    }
    if (error) {
        commit->error = error;
        atomic_store_explicit(&c->failed, error, memory_order_release);
    }
    if (commit->last) {
        /* What close could report was reported by fdatasync; a log that never syncs promises nothing. */
        close(commit->fd);
        c->dirty = false;
        c->written_fd = -1;
    }
    atomic_fetch_add_explicit(&c->commits_n, 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&c->commit_ns_sum, wr_now_ns() - began, memory_order_relaxed);
    if (c->owner.done) c->owner.done(c->context, commit);
    /* SYNC batch-done */
    atomic_store_explicit(&c->done_n, done + 1, memory_order_release);
    return true;
}

/* On the loop thread: a batch that was just shown. */
static bool do_here(wr_committer *c) {
    const uint64_t n = wr_committer_posted(c) - 1;
    const wr_commit *commit = &c->commits[n % WR_COMMITS];
    if (commit->sync || commit->last || !atomic_load_explicit(&c->sleeps, memory_order_relaxed)) return false;
    if (pthread_mutex_trylock(&c->turn)) return false;
    const bool next = atomic_load_explicit(&c->done_n, memory_order_relaxed) == n;
    const bool done = next && commit_next(c, false, NULL);
    pthread_mutex_unlock(&c->turn);
    return done;
}

void wr_committer_post_here(wr_committer *c) {
    show(c);
    if (!do_here(c)) wr_bell_ring(&c->sleeps);
}

/* While nothing is written, too, somebody may remove or cut the file in which the last things were confirmed: once a second. True: so
 * it is, and the log has failed. */
static bool idle_look(wr_committer *c) {
    if (c->written_fd < 0 || wr_committer_failed(c)) return false;
    uint64_t now = wr_now_ns();
    if (now < c->look_at) return false;
    c->look_at = now + IDLE_NS;
    int error = still_there(c, c->written_fd);
    if (error) atomic_store_explicit(&c->failed, error, memory_order_release);
    return error != 0;
}

/* Until something is posted; the turn is another's meanwhile. */
static void sleep_until_rung(wr_committer *c) {
    atomic_store_explicit(&c->sleeps, 1, memory_order_relaxed);
    atomic_thread_fence(memory_order_seq_cst);
    pthread_mutex_unlock(&c->turn);
    if (wr_committer_done(c) == atomic_load_explicit(&c->posted_n, memory_order_acquire) &&
        !atomic_load_explicit(&c->stopping, memory_order_acquire))
        wr_futex_wait(&c->sleeps, 1, IDLE_NS);
    pthread_mutex_lock(&c->turn);
    atomic_store_explicit(&c->sleeps, 0, memory_order_relaxed);
}

void wr_committer_run(wr_committer *c, _Atomic uint32_t *bell) {
    pthread_mutex_lock(&c->turn);
    for (;;) {
        /* `stopping` is read first: what was posted before it is seen below. */
        bool stopping = atomic_load_explicit(&c->stopping, memory_order_acquire);
        /* SYNC batch-posted */
        if (wr_committer_done(c) < atomic_load_explicit(&c->posted_n, memory_order_acquire)) {
            commit_next(c, true, bell);
            if (bell) wr_bell_ring(bell);
            wr_bell_ring(&c->waiter_sleeps);
            continue;
        }
        if (stopping) break;
        if (idle_look(c)) {
            if (bell) wr_bell_ring(bell);
            continue;
        }
        if (c->owner.idle && c->owner.idle(c->context)) continue;
        sleep_until_rung(c);
    }
    pthread_mutex_unlock(&c->turn);
}
