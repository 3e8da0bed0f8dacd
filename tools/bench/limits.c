/* The limits of this machine, without Warren and without Python: what the budgets are compared with.
 *
 *     limits DIRECTORY SIZE_BYTES SECONDS          one JSON object a line, {"what": …, figures}
 *     limits DIRECTORY SIZE_BYTES SECONDS append   the first line alone, in all the SECONDS
 *     limits DIRECTORY SIZE_BYTES SECONDS memcpy   that line alone, in all the SECONDS
 *
 * append            A log in a fresh, preallocated file. A filler thread copies bodies of SIZE_BYTES end to end (record
 *                   overhead 0) into one of two aligned, prefaulted staging buffers and computes the CRC32C of each;
 *                   a writer thread does pwrite (O_DIRECT) and fdatasync of the other. A batch is at most 1 MiB (a larger
 *                   record is a batch of its own). Only records whose fdatasync has returned count.
 * append_recycled   The same over the blocks that were just written: no block is allocated, no extent converted.
 * fsync             One block of 4096 bytes with one record: pwrite, fdatasync; each in the next block of a fresh file.
 * fsync_recycled    The same into blocks written before.
 * ring              64-byte records through a single-producer, single-consumer ring of 512 KiB between two processes on two
 *                   cores; each side remembers the other's index, reads it only when it must, and publishes its own
 *                   after every 32 records.
 * wake              A process that sleeps in FUTEX_WAIT on another core: from before FUTEX_WAKE until it runs.
 * spin              The same when it spins instead: half of a round trip.
 * memcpy            64 MiB to another 64 MiB; bytes copied, counted once.
 *
 * Where O_DIRECT is refused (EINVAL) the file is written through the page cache, and "direct" is false.
 * The timed parts share SECONDS: half for append, a quarter for append_recycled, the rest a little each. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#if defined(__SSE4_2__)
#include <nmmintrin.h>
#endif

enum {
    BLOCK_BYTES = 4096,
    BATCH_BYTES = 1 << 20,
    RING_SLOTS = 8192,
    RECORD_WORDS = 8,
    RECORDS_PER_PUBLISH = 32,
    SAMPLES_MAX = 1 << 16,
    SPINS_BEFORE_YIELD = 20000,
};
#define FILE_BYTES_MAX ((uint64_t)6 << 30)
#define COPY_BYTES ((size_t)64 << 20)

static const char *directory;
static size_t record_bytes;
static double seconds;

static void die(const char *what) {
    fprintf(stderr, "limits: %s: %s\n", what, strerror(errno));
    exit(1);
}

static uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* Processor time of this process, all threads. */
static double processor_s(void) {
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static void *map_prefaulted(size_t bytes, int visibility) {
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, visibility | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    if (memory == MAP_FAILED) die("mmap");
    return memory;
}

static cpu_set_t allowed; /* the CPUs that this program was started with */

/* Runs the calling thread on the nth of them, where there are that many. */
static void run_on_cpu(int nth) {
    cpu_set_t one;
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
        if (!CPU_ISSET(cpu, &allowed) || nth-- > 0) continue;
        CPU_ZERO(&one);
        CPU_SET(cpu, &one);
        sched_setaffinity(0, sizeof one, &one);
        return;
    }
}

static uint32_t crc32c(const unsigned char *bytes, size_t length) {
#if defined(__SSE4_2__)
    uint64_t crc = ~0u, word;
    for (; length >= 8; bytes += 8, length -= 8) {
        memcpy(&word, bytes, 8);
        crc = _mm_crc32_u64(crc, word);
    }
    while (length--) crc = _mm_crc32_u8((uint32_t)crc, *bytes++);
    return ~(uint32_t)crc;
#else
    uint32_t crc = ~0u;
    while (length--) {
        crc ^= *bytes++;
        for (int bit = 0; bit < 8; bit++) crc = (crc >> 1) ^ (0x82f63b78u & -(crc & 1));
    }
    return ~crc;
#endif
}

/* ---- samples ----------------------------------------------------------------------------------------------------- */

static uint64_t samples[SAMPLES_MAX];
static size_t sample_count;

static int by_value(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

static void sample(uint64_t ns) {
    if (sample_count < SAMPLES_MAX) samples[sample_count++] = ns;
}

static double percentile_us(double share) {
    size_t index = (size_t)(share * (double)sample_count);
    return (double)samples[index < sample_count ? index : sample_count - 1] / 1000.0;
}

static void print_samples(const char *what, const char *more) {
    if (!sample_count) return;
    qsort(samples, sample_count, sizeof *samples, by_value);
    printf("{\"what\": \"%s\", \"p50\": %.3f, \"p99\": %.3f, \"p999\": %.3f, \"samples\": %zu%s}\n", what, percentile_us(.5),
           percentile_us(.99), percentile_us(.999), sample_count, more);
    fflush(stdout);
    sample_count = 0;
}

/* ---- the file ---------------------------------------------------------------------------------------------------- */

static bool direct;

static void write_all(int fd, const unsigned char *bytes, size_t length, uint64_t position) {
    while (length) {
        ssize_t written = pwrite(fd, bytes, length, (off_t)position);
        if (written < 0 && errno == EINVAL && direct) { /* O_DIRECT accepted by open, refused by write */
            if (fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) & ~O_DIRECT)) die("fcntl");
            direct = false;
            continue;
        }
        if (written < 0 && errno == EINTR) continue;
        if (written <= 0) die("pwrite");
        bytes += written, length -= (size_t)written, position += (uint64_t)written;
    }
}

static void sync_data(int fd) {
    if (fdatasync(fd)) die("fdatasync");
}

/* Returns a new file without a name, with its blocks allocated. */
static int fresh_file(uint64_t bytes) {
    char path[PATH_MAX];
    if (snprintf(path, sizeof path, "%s/limits-%d.tmp", directory, getpid()) >= (int)sizeof path) errno = ENAMETOOLONG, die(directory);
    direct = true;
    int fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_DIRECT, 0600);
    if (fd < 0 && errno == EINVAL) {
        direct = false;
        unlink(path); /* open creates the file before it refuses the flag */
        fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    }
    if (fd < 0) die(path);
    unlink(path);
    errno = posix_fallocate(fd, 0, (off_t)bytes);
    if (errno) die("posix_fallocate");
    if (fsync(fd)) die("fsync");
    return fd;
}

/* ---- append ------------------------------------------------------------------------------------------------------ */

struct batch {
    unsigned char *bytes;
    size_t length;
    uint64_t records;
    bool full; /* under `lock`: the filler sets it, the writer clears it */
};

static struct batch batches[2];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t turned = PTHREAD_COND_INITIALIZER;
static bool stop;
static _Atomic uint32_t checksum; /* read by nobody: keeps the compiler from dropping the CRC */

static void wait_until(struct batch *batch, bool full) {
    pthread_mutex_lock(&lock);
    while (batch->full != full && !stop) pthread_cond_wait(&turned, &lock);
    pthread_mutex_unlock(&lock);
}

static void turn(struct batch *batch, bool full) {
    pthread_mutex_lock(&lock);
    batch->full = full;
    pthread_cond_broadcast(&turned);
    pthread_mutex_unlock(&lock);
}

static void *filler(void *source) {
    size_t per_batch = record_bytes < BATCH_BYTES ? BATCH_BYTES / record_bytes : 1;
    for (int turn_of = 0;; turn_of ^= 1) {
        struct batch *batch = &batches[turn_of];
        wait_until(batch, false);
        if (stop) return NULL;
        uint32_t crc = 0;
        unsigned char *to = batch->bytes;
        for (size_t i = 0; i < per_batch; i++, to += record_bytes) {
            memcpy(to, source, record_bytes);
            crc ^= crc32c(to, record_bytes);
        }
        checksum = crc;
        batch->records = per_batch;
        batch->length = ((size_t)(to - batch->bytes) + BLOCK_BYTES - 1) / BLOCK_BYTES * BLOCK_BYTES;
        turn(batch, true);
    }
}

/* Writes batches from the file's start until the time is over or `bytes_max` are written; returns how many. */
static uint64_t append(const char *what, int fd, uint64_t bytes_max, double time_s, void *source) {
    pthread_t thread;
    uint64_t records = 0, position = 0;
    stop = false;
    for (int i = 0; i < 2; i++) batches[i].full = false;
    if ((errno = pthread_create(&thread, NULL, filler, source))) die("pthread_create");
    uint64_t begin = now_ns(), end = begin;
    double used = processor_s();
    for (int turn_of = 0; (double)(end - begin) < time_s * 1e9; turn_of ^= 1) {
        struct batch *batch = &batches[turn_of];
        wait_until(batch, true);
        if (position + batch->length > bytes_max) break;
        write_all(fd, batch->bytes, batch->length, position);
        sync_data(fd);
        position += batch->length;
        records += batch->records;
        end = now_ns();
        turn(batch, false);
    }
    pthread_mutex_lock(&lock);
    stop = true;
    pthread_cond_broadcast(&turned);
    pthread_mutex_unlock(&lock);
    pthread_join(thread, NULL);
    if (!records) errno = ENOSPC, die("no room for one batch");
    double elapsed = (double)(end - begin) / 1e9;
    printf("{\"what\": \"%s\", \"size_bytes\": %zu, \"messages\": %llu, \"seconds\": %.4f, \"messages_per_s\": %.1f, "
           "\"bytes_per_s\": %.1f, \"direct\": %s, \"cpu_s\": %.4f}\n",
           what, record_bytes, (unsigned long long)records, elapsed, (double)records / elapsed,
           (double)records * (double)record_bytes / elapsed, direct ? "true" : "false", processor_s() - used);
    fflush(stdout);
    return position;
}

static void measure_append(bool alone) {
    size_t staging_bytes = (record_bytes > BATCH_BYTES ? record_bytes : BATCH_BYTES) + BLOCK_BYTES;
    unsigned char *source = map_prefaulted(record_bytes, MAP_PRIVATE);
    for (size_t i = 0; i < record_bytes; i++) source[i] = (unsigned char)(i * 31 + 7);
    for (int i = 0; i < 2; i++) {
        batches[i].bytes = map_prefaulted(staging_bytes, MAP_PRIVATE);
        memset(batches[i].bytes, 0, staging_bytes);
    }
    struct statvfs disk;
    if (statvfs(directory, &disk)) die(directory);
    uint64_t room = (uint64_t)disk.f_bavail * disk.f_frsize / 2, wanted = (uint64_t)(seconds * (alone ? 1 : .5) * 4e9) + 4 * staging_bytes;
    uint64_t bytes = wanted < FILE_BYTES_MAX ? wanted : FILE_BYTES_MAX;
    if (bytes > room) bytes = room;
    bytes -= bytes % BLOCK_BYTES;
    int fd = fresh_file(bytes);
    uint64_t written = append("append", fd, bytes, seconds * (alone ? 1 : .5), source);
    if (!alone) append("append_recycled", fd, written, seconds * .25, source);
    close(fd);
    munmap(source, record_bytes);
    for (int i = 0; i < 2; i++) munmap(batches[i].bytes, staging_bytes);
}

/* ---- one append, one sync ---------------------------------------------------------------------------------------- */

static uint64_t measure_sync(const char *what, int fd, uint64_t blocks, double time_s) {
    unsigned char *block = map_prefaulted(BLOCK_BYTES, MAP_PRIVATE);
    uint64_t done = 0, end = now_ns() + (uint64_t)(time_s * 1e9);
    while (done < blocks && now_ns() < end) {
        uint64_t begin = now_ns();
        memset(block, (int)done, record_bytes < BLOCK_BYTES ? record_bytes : BLOCK_BYTES);
        write_all(fd, block, BLOCK_BYTES, done++ * BLOCK_BYTES);
        sync_data(fd);
        sample(now_ns() - begin);
    }
    print_samples(what, direct ? ", \"direct\": true" : ", \"direct\": false");
    munmap(block, BLOCK_BYTES);
    return done;
}

/* ---- two processes ----------------------------------------------------------------------------------------------- */

struct shared {
    _Alignas(64) _Atomic uint64_t head; /* records taken; the consumer writes */
    _Alignas(64) _Atomic uint64_t tail; /* records put; the producer writes */
    _Alignas(64) _Atomic uint32_t ping; /* a futex word */
    _Alignas(64) _Atomic uint32_t pong;
    _Alignas(64) _Atomic uint64_t asked_ns;
    _Atomic uint64_t woken_ns;
    _Alignas(64) uint64_t slots[RING_SLOTS][RECORD_WORDS];
};

static struct shared *shared;
static int cpu_count;

static void reset_shared(void) { memset(shared, 0, sizeof *shared); }

/* One turn of a spin loop: lets the other side run where there is one core only. */
static void relax(unsigned *spins) {
    if (cpu_count < 2 || ++*spins % SPINS_BEFORE_YIELD == 0) sched_yield();
#if defined(__SSE4_2__)
    _mm_pause();
#endif
}

static pid_t start_on_second_cpu(void (*role)(void)) {
    pid_t child = fork();
    if (child < 0) die("fork");
    if (child) {
        run_on_cpu(0);
        return child;
    }
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    run_on_cpu(1);
    role();
    _exit(0);
}

static void end_of(pid_t child) {
    int status;
    if (waitpid(child, &status, 0) < 0) die("waitpid");
    if (status) errno = ECHILD, die("the second process");
}

static void consume(void) {
    uint64_t head = 0, tail = 0, sum = 0;
    unsigned spins = 0;
    for (;;) {
        while (head == tail) {
            tail = atomic_load_explicit(&shared->tail, memory_order_acquire); /* SYNC record-visible: pairs with produce */
            if (head == tail) relax(&spins);
        }
        uint64_t record[RECORD_WORDS];
        memcpy(record, shared->slots[head % RING_SLOTS], sizeof record);
        if (record[0] == UINT64_MAX) break;
        if (record[0] != head) _exit(2);
        for (int i = 1; i < RECORD_WORDS; i++) sum += record[i];
        if (++head % RECORDS_PER_PUBLISH == 0)
            atomic_store_explicit(&shared->head, head, memory_order_release); /* SYNC slot-free: pairs with produce */
    }
    checksum = (uint32_t)sum;
}

/* Returns records per second. */
static double produce(double time_s) {
    pid_t child = start_on_second_cpu(consume);
    uint64_t tail = 0, head = 0, begin = now_ns(), limit = begin + (uint64_t)(time_s * 1e9), end = 0;
    uint64_t record[RECORD_WORDS] = {0};
    unsigned spins = 0;
    for (bool last = false; !last;) {
        last = tail % 4096 == 0 && now_ns() > limit;
        while (tail - head == RING_SLOTS) {
            head = atomic_load_explicit(&shared->head, memory_order_acquire); /* SYNC slot-free: pairs with consume */
            if (tail - head == RING_SLOTS) relax(&spins);
        }
        record[0] = last ? UINT64_MAX : tail;
        memcpy(shared->slots[tail % RING_SLOTS], record, sizeof record);
        if (++tail % RECORDS_PER_PUBLISH == 0 || last)
            atomic_store_explicit(&shared->tail, tail, memory_order_release); /* SYNC record-visible: pairs with consume */
    }
    end_of(child);
    end = now_ns();
    return (double)(tail - 1) / ((double)(end - begin) / 1e9);
}

/* Two cores that somebody else uses, too, give very different rounds: the limit is the best of them. */
static void measure_ring(double time_s) {
    enum { ROUNDS = 8 };
    double best = 0;
    for (int round = 0; round < ROUNDS; round++) {
        reset_shared();
        double one = produce(time_s / ROUNDS);
        if (one > best) best = one;
    }
    printf("{\"what\": \"ring\", \"records_per_s\": %.1f, \"rounds\": %d}\n", best, ROUNDS);
    fflush(stdout);
}

static void futex(_Atomic uint32_t *word, int operation, uint32_t value) {
    syscall(SYS_futex, word, operation, value, NULL, NULL, 0);
}

static void sleeper(void) {
    for (uint32_t round = 1;; round++) {
        while (atomic_load(&shared->ping) != round) {
            if (atomic_load(&shared->ping) == UINT32_MAX) return;
            futex(&shared->ping, FUTEX_WAIT, round - 1);
        }
        shared->woken_ns = now_ns();
        atomic_store(&shared->pong, round);
    }
}

static void measure_wake(double time_s) {
    pid_t child = start_on_second_cpu(sleeper);
    uint64_t limit = now_ns() + (uint64_t)(time_s * 1e9);
    unsigned spins = 0;
    for (uint32_t round = 1; now_ns() < limit; round++) {
        for (uint64_t asleep = now_ns() + 300000; now_ns() < asleep;) relax(&spins); /* it sleeps by now */
        uint64_t asked = now_ns();
        atomic_store(&shared->ping, round);
        futex(&shared->ping, FUTEX_WAKE, 1);
        while (atomic_load(&shared->pong) != round) relax(&spins);
        sample(shared->woken_ns - asked);
    }
    atomic_store(&shared->ping, UINT32_MAX);
    futex(&shared->ping, FUTEX_WAKE, 1);
    end_of(child);
    print_samples("wake", "");
}

static void spinner(void) {
    unsigned spins = 0;
    for (uint32_t seen = 0;;) {
        uint32_t round = atomic_load_explicit(&shared->ping, memory_order_acquire);
        if (round == UINT32_MAX) return;
        if (round == seen) {
            relax(&spins);
            continue;
        }
        atomic_store_explicit(&shared->pong, seen = round, memory_order_release);
    }
}

static void measure_spin(double time_s) {
    enum { ROUND_TRIPS = 64 };
    pid_t child = start_on_second_cpu(spinner);
    uint64_t limit = now_ns() + (uint64_t)(time_s * 1e9);
    unsigned spins = 0;
    for (uint32_t round = 1; now_ns() < limit;) {
        uint64_t begin = now_ns();
        for (int i = 0; i < ROUND_TRIPS; i++, round++) {
            atomic_store_explicit(&shared->ping, round, memory_order_release);
            while (atomic_load_explicit(&shared->pong, memory_order_acquire) != round) relax(&spins);
        }
        sample((now_ns() - begin) / (2 * ROUND_TRIPS));
    }
    atomic_store(&shared->ping, UINT32_MAX);
    end_of(child);
    print_samples("spin", "");
}

/* ---- memory ------------------------------------------------------------------------------------------------------ */

static void measure_memcpy(double time_s) {
    unsigned char *from = map_prefaulted(COPY_BYTES, MAP_PRIVATE), *to = map_prefaulted(COPY_BYTES, MAP_PRIVATE);
    memset(from, 1, COPY_BYTES);
    memset(to, 2, COPY_BYTES);
    uint64_t limit = now_ns() + (uint64_t)(time_s * 1e9);
    do {
        uint64_t begin = now_ns();
        memcpy(to, from, COPY_BYTES);
        checksum = to[begin % COPY_BYTES];
        sample(now_ns() - begin);
    } while (now_ns() < limit);
    qsort(samples, sample_count, sizeof *samples, by_value);
    printf("{\"what\": \"memcpy\", \"bytes_per_s\": %.1f}\n", (double)COPY_BYTES / (percentile_us(.5) / 1e6));
    munmap(from, COPY_BYTES);
    munmap(to, COPY_BYTES);
}

int main(int argc, char **argv) {
    bool alone = argc == 5 && !strcmp(argv[4], "append"), copy = argc == 5 && !strcmp(argv[4], "memcpy");
    if ((argc != 4 && !alone && !copy) || (record_bytes = strtoull(argv[2], NULL, 10)) < 1 || (seconds = strtod(argv[3], NULL)) <= 0) {
        fprintf(stderr, "usage: limits DIRECTORY SIZE_BYTES SECONDS [append|memcpy]\n");
        return 2;
    }
    directory = argv[1];
    if (sched_getaffinity(0, sizeof allowed, &allowed)) die("sched_getaffinity");
    cpu_count = CPU_COUNT(&allowed);
    if (copy) measure_memcpy(seconds);
    else measure_append(alone);
    if (alone || copy) return 0;
    uint64_t blocks = 16384;
    int fd = fresh_file(blocks * BLOCK_BYTES);
    blocks = measure_sync("fsync", fd, blocks, seconds * .08);
    measure_sync("fsync_recycled", fd, blocks, seconds * .05);
    close(fd);
    measure_memcpy(seconds * .03); /* before this thread is held to one core */
    shared = map_prefaulted(sizeof *shared, MAP_SHARED);
    measure_ring(seconds * .06);
    reset_shared();
    measure_wake(seconds * .03);
    reset_shared();
    measure_spin(seconds * .02);
    return 0;
}
