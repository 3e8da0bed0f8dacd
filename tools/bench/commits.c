/* How near the log (engine/kernel/log.h) comes to the disk: records appended by a loop that does nothing else, committed and synced.
 *
 *     commits DIRECTORY SIZE_BYTES SECONDS FILE_BYTES IMAGES COMMIT_BYTES RECYCLED      one JSON object
 *
 * The loop writes frames of SIZE_BYTES bodies and seals as the store's loop does: when nothing is under way, or when COMMIT_BYTES
 * wait. A maker thread prepares files (fallocate, sync, rename, sync of the directory); with RECYCLED 1 it takes the files that are
 * done, rewrites their header page and gives them a new name. Only records whose batch is done count.
 * Compare with `limits` run before and after it: the disk of a virtual machine varies. */
#define _GNU_SOURCE
#include "kernel/log.h"
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>

enum { SPARES = 4 };

static const char *directory;
static uint64_t file_bytes, made_n, oldest;
static bool recycled;
static _Atomic uint64_t done_bytes, files_done;

static struct {
    pthread_mutex_t lock;
    pthread_cond_t turned;
    bool wanted, ready, over;
    int fd;
    uint64_t file, salt;
} maker = {.lock = PTHREAD_MUTEX_INITIALIZER, .turned = PTHREAD_COND_INITIALIZER};

static void die(const char *what) {
    perror(what);
    exit(1);
}

static void path_of(char path[300], uint64_t file, const char *suffix) {
    snprintf(path, 300, "%s/commits-%d-%llu%s", directory, getpid(), (unsigned long long)file, suffix);
}

static void make_file(uint64_t file, uint64_t salt) {
    char unfinished[300], path[300];
    path_of(unfinished, file, ".new");
    path_of(path, file, "");
    int fd;
    if (recycled && file >= oldest + SPARES && atomic_load(&files_done) > oldest + 1) {
        char old[300];
        path_of(old, oldest++, "");
        if (rename(old, unfinished)) die("rename");
        fd = open(unfinished, O_RDWR | O_CLOEXEC);
    } else {
        fd = open(unfinished, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
        if (fd >= 0 && (errno = posix_fallocate(fd, 0, (off_t)file_bytes))) die("posix_fallocate");
    }
    if (fd < 0) die(unfinished);
    uint8_t *page = aligned_alloc(WR_PAGE_BYTES, WR_PAGE_BYTES);
    wr_file_header_write(page, WR_FILE_STORE, 1, 0, file, salt, 0);
    int direct = open(unfinished, O_WRONLY | O_DIRECT | O_CLOEXEC);
    if (direct >= 0 && pwrite(direct, page, WR_PAGE_BYTES, 0) == WR_PAGE_BYTES) {
        close(fd);
        fd = direct;
    } else if (pwrite(fd, page, WR_PAGE_BYTES, 0) != WR_PAGE_BYTES) {
        die("header");
    }
    free(page);
    if (fsync(fd) || rename(unfinished, path)) die("fsync");
    int folder = open(directory, O_RDONLY | O_DIRECTORY);
    if (folder < 0 || fsync(folder)) die("directory");
    close(folder);
    maker.fd = fd;
}

static void *make_files(void *ignored) {
    (void)ignored;
    pthread_mutex_lock(&maker.lock);
    for (;;) {
        while (!maker.wanted && !maker.over) pthread_cond_wait(&maker.turned, &maker.lock);
        if (maker.over) break;
        maker.wanted = false;
        pthread_mutex_unlock(&maker.lock);
        uint64_t file = made_n++;
        make_file(file, file * 0x9e3779b97f4a7c15ull + 1);
        pthread_mutex_lock(&maker.lock);
        maker.file = file;
        maker.salt = file * 0x9e3779b97f4a7c15ull + 1;
        maker.ready = true;
        pthread_cond_broadcast(&maker.turned);
    }
    pthread_mutex_unlock(&maker.lock);
    return NULL;
}

static void batch_done(void *context, const wr_batch *batch) {
    (void)context;
    if (batch->error) {
        errno = batch->error;
        die("batch");
    }
    atomic_fetch_add(&done_bytes, batch->to - batch->from);
    if (batch->last) atomic_store(&files_done, batch->file + 1);
}

static _Atomic uint32_t bell;

static void *commit(void *log) {
    wr_log_commit_run(log, &bell);
    return NULL;
}

int main(int argc, char **argv) {
    if (argc != 8) {
        fprintf(stderr, "usage: commits DIRECTORY SIZE_BYTES SECONDS FILE_BYTES IMAGES COMMIT_BYTES RECYCLED\n");
        return 2;
    }
    directory = argv[1];
    uint64_t size = strtoull(argv[2], NULL, 10), commit_bytes = strtoull(argv[6], NULL, 10);
    double seconds = strtod(argv[3], NULL);
    file_bytes = strtoull(argv[4], NULL, 10);
    uint32_t images = (uint32_t)strtoul(argv[5], NULL, 10);
    recycled = argv[7][0] == '1';
    uint64_t region_bytes = WR_PAGE_BYTES + images * file_bytes;
    uint8_t *region = mmap(NULL, region_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    uint8_t *source = malloc(size);
    wr_log *log = region == MAP_FAILED ? NULL : wr_log_new(region, region_bytes, images, file_bytes, true, batch_done, NULL);
    if (!log || !source) die("memory");
    memset(source, 7, size);
    pthread_t committer, making;
    if ((errno = pthread_create(&committer, NULL, commit, log)) || (errno = pthread_create(&making, NULL, make_files, NULL))) die("thread");
    const wr_log_state *state = wr_log_look(log);
    wr_frame_head head = {.kind = WR_KIND_MESSAGE};
    uint64_t total = wr_frame_bytes(size), n = 0, begin = 0, stop = 0, waits = 0, at_begin = 0;
    bool asked = false;
    for (;;) {
        wr_log_look(log);
        if (!state->has_next) {
            pthread_mutex_lock(&maker.lock);
            if (!asked) {
                maker.wanted = asked = true;
                pthread_cond_broadcast(&maker.turned);
            }
            if (!state->has_file)
                while (!maker.ready) pthread_cond_wait(&maker.turned, &maker.lock);
            if (maker.ready) {
                uint8_t header[WR_FILE_HEADER_BYTES];
                wr_file_header_write(header, WR_FILE_STORE, 1, 0, maker.file, maker.salt, 0);
                if (wr_log_offer(log, maker.fd, maker.file, maker.salt, header)) die("offer");
                maker.ready = asked = false;
            }
            pthread_mutex_unlock(&maker.lock);
        }
        if (!begin) {
            begin = wr_now_ns();
            stop = begin + (uint64_t)(seconds * 1e9);
        }
        bool stalled = false;
        /* a round of the loop: up to 64 KiB between two looks at the committer */
        for (uint64_t bytes = 0; bytes < 65536; bytes += total) {
            uint64_t offset;
            uint8_t *to = wr_log_reserve(log, total, &offset, NULL);
            if (!to) {
                if (errno != EAGAIN) die("reserve");
                stalled = true;
                break;
            }
            wr_put64(head.id + 8, n++);
            wr_frame_write(to, &head, NULL, 0, source, size, state->salt);
            wr_log_append(log, total, true);
        }
        wr_log_look(log);
        uint64_t waiting = state->append - state->sealed_to;
        if (waiting >= commit_bytes || (!state->busy && waiting)) wr_log_seal(log, true, 0, NULL, 0);
        if (wr_now_ns() >= stop) break;
        if (stalled) {
            waits++;
            atomic_store(&bell, 1);
            atomic_thread_fence(memory_order_seq_cst);
            wr_log_look(log);
            if (state->busy) wr_futex_wait(&bell, 1, 1000000);
            atomic_store(&bell, 0);
        }
    }
    uint64_t bytes = atomic_load(&done_bytes) - at_begin, ns = wr_now_ns() - begin;
    wr_log_look(log);
    printf("{\"size_bytes\": %llu, \"messages_per_s\": %.0f, \"bytes_per_s\": %.0f, \"commits\": %llu, \"syncs\": %llu, \"ms_a_commit\": "
           "%.3f, \"waits\": %llu, \"committer_busy\": %.3f}\n",
           (unsigned long long)size, (double)bytes / (double)total / ((double)ns / 1e9), (double)bytes * (double)size / (double)total / ((double)ns / 1e9),
           (unsigned long long)state->commits_n, (unsigned long long)state->syncs_n,
           (double)state->commit_ns_sum / 1e6 / (double)(state->commits_n ? state->commits_n : 1), (unsigned long long)waits,
           (double)state->commit_ns_sum / (double)ns);
    wr_log_stop(log);
    pthread_join(committer, NULL);
    pthread_mutex_lock(&maker.lock);
    maker.over = true;
    pthread_cond_broadcast(&maker.turned);
    pthread_mutex_unlock(&maker.lock);
    pthread_join(making, NULL);
    wr_log_free(log);
    if (maker.ready) close(maker.fd);
    for (uint64_t file = oldest; file < made_n; file++) {
        char path[300];
        path_of(path, file, "");
        unlink(path);
    }
    return 0;
}
