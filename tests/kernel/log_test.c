/* Goal: what the log confirms is in the file, readers of an image never see foreign bytes, and an error freezes everything.
 * Method: the main thread as loop, one committer, one reader, small files and images so that they roll and are reused all the
 * time; afterwards the files are scanned and compared. System calls are replaced to give short writes, EINTR and errors, and
 * real ones fail by a read-only descriptor and RLIMIT_FSIZE. Runs under AddressSanitizer and ThreadSanitizer. Prints its seed. */
#define _GNU_SOURCE /* O_DIRECT */
#include "kernel/log.h"
#include "kernel/protocol.h"
#include "support/check.h"
#include "support/random.h"
#include <dirent.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>

#define FILE_BYTES (16 * 4096u)
#define FILES_MAX 4096
#define SECOND 1000000000ull

static char folder[200];
static const wr_geometry geometry = {.servers_n = 1, .ring_records = 2, .delivery_slots = 2, .reply_bytes = 4096,
                                     .arena_bytes = 4096};

static int descriptors(void) {
    DIR *all = opendir("/proc/self/fd");
    int n = 0;
    CHECK(all);
    while (readdir(all)) n++;
    closedir(all);
    return n;
}

static const char *path_of(uint64_t file) {
    static char path[300];
    snprintf(path, sizeof path, "%s/%llu.rdq", folder, (unsigned long long)file);
    return path;
}

static uint64_t salt_of(uint64_t file) { return file * 0x9e3779b97f4a7c15ull + 1; }

typedef struct {
    uint8_t *region;
    uint64_t region_bytes;
    uint32_t images_n;
    wr_log *log;
    pthread_t committer;
    bool runs;
    wr_view view;
    void *client;
    uint64_t next_file;
    bool may_sync;
} bench;

/* Files begin with what another one left: whole frames under another salt, one at the start of each page. */
static bool recycled;

static int make_file(uint64_t file, int flags) {
    int fd = open(path_of(file), O_RDWR | O_CREAT | O_TRUNC, 0600);
    CHECK(fd >= 0 && posix_fallocate(fd, 0, FILE_BYTES) == 0);
    if (recycled) {
        static uint8_t old[FILE_BYTES - WR_FILE_HEADER_BYTES];
        wr_frame_head head = {.kind = WR_KIND_MESSAGE, .sequence = 1u << 30};
        for (uint64_t at = 0; at < sizeof old; at += 256)
            wr_frame_write(old + at, &head, NULL, 0, folder, 256 - WR_FRAME_BYTES_MIN, ~salt_of(file));
        CHECK(pwrite(fd, old, sizeof old, WR_FILE_HEADER_BYTES) == sizeof old);
    }
    close(fd);
    fd = open(path_of(file), flags);
    if (fd < 0 && errno == EINVAL) fd = open(path_of(file), flags & ~O_DIRECT); /* tmpfs */
    CHECK(fd >= 0);
    return fd;
}

static int offer(bench *b, int flags) {
    uint8_t header[WR_FILE_HEADER_BYTES];
    uint64_t file = b->next_file;
    int fd = make_file(file, flags);
    wr_file_header_write(header, WR_FILE_STORE, 1, 0, file, salt_of(file), 5);
    int error = wr_log_offer(b->log, fd, file, salt_of(file), header);
    if (error)
        close(fd);
    else
        b->next_file++;
    return error;
}

static void *commit_main(void *argument) {
    wr_log_commit_run(((bench *)argument)->log, NULL);
    return NULL;
}

static void start_committer(bench *b) {
    CHECK(pthread_create(&b->committer, NULL, commit_main, b) == 0);
    b->runs = true;
}

/* What an owner does with horizons: written when the bytes are with the system, all when the batch is done. */
static void publish_written(void *context, const wr_batch *batch) {
    const bench *b = context;
    for (uint32_t i = 0; i < batch->horizons_n; i++) wr_horizon_publish(&batch->horizons[i], true, !b->may_sync, !batch->sync);
}

static void publish_done(void *context, const wr_batch *batch) {
    const bench *b = context;
    for (uint32_t i = 0; i < batch->horizons_n && !batch->error; i++)
        wr_horizon_publish(&batch->horizons[i], true, batch->sync || !b->may_sync, true);
}

/* `done`: NULL to publish horizons. */
static void begin(bench *b, uint32_t images_n, bool may_sync, wr_batch_done done, void *context) {
    memset(b, 0, sizeof *b);
    b->may_sync = may_sync;
    b->images_n = images_n;
    b->region_bytes = 4096 + images_n * FILE_BYTES;
    b->region = mmap(NULL, b->region_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(b->region != MAP_FAILED);
    b->log = wr_log_new(b->region, b->region_bytes, images_n, FILE_BYTES, may_sync, done ? done : publish_done, done ? context : b);
    CHECK(b->log);
    if (!done) wr_log_on_written(b->log, publish_written);
    uint64_t bytes = wr_view_bytes(&geometry);
    b->client = aligned_alloc(4096, wr_page_up(bytes));
    CHECK(b->client);
    memset(b->client, 0, bytes);
    CHECK(wr_view_init(&b->view, b->client, bytes, &geometry) == 0);
}

static void end(bench *b) {
    if (b->runs) {
        wr_log_stop(b->log);
        CHECK(pthread_join(b->committer, NULL) == 0);
    }
    wr_log_free(b->log);
    munmap(b->region, b->region_bytes);
    free(b->client);
    for (uint64_t file = 0; file < b->next_file; file++) unlink(path_of(file));
}

static uint64_t word(const _Atomic uint64_t *at) { return atomic_load_explicit(at, memory_order_acquire); }

/* Append one frame; false when the log must wait. */
static bool put(bench *b, uint64_t sequence, uint64_t body, bool sync, uint64_t *file, uint64_t *offset) {
    static uint8_t bytes[FILE_BYTES];
    memset(bytes, (int)(sequence & 0xff), body);
    wr_frame_head head = {.kind = WR_KIND_MESSAGE, .sequence = sequence, .extra = (uint32_t)body};
    bool rolled;
    uint64_t before = wr_log_look(b->log)->file;
    uint8_t *to = wr_log_reserve(b->log, wr_frame_bytes(body), offset, &rolled);
    if (!to) {
        CHECK(!rolled);
        return false;
    }
    const wr_log_state *look = wr_log_look(b->log);
    CHECK(rolled == (look->file != before));
    wr_frame_write(to, &head, NULL, 0, bytes, body, look->salt);
    wr_log_append(b->log, wr_frame_bytes(body), sync);
    *file = look->file;
    return true;
}

/* All frames of all files, in order, have the sequences from 0 on. Returns how many. */
static uint64_t count_files(const bench *b) {
    static uint8_t bytes[FILE_BYTES];
    static wr_frame_row rows[FILE_BYTES / WR_FRAME_BYTES_MIN];
    uint64_t next = 0;
    for (uint64_t file = 0; file < b->next_file; file++) {
        int fd = open(path_of(file), O_RDONLY);
        CHECK(fd >= 0 && pread(fd, bytes, FILE_BYTES, 0) == FILE_BYTES);
        close(fd);
        uint64_t salt = 0, at = WR_FILE_HEADER_BYTES;
        if (bytes[0] == 0) { /* offered, never used: its header lies in no batch */
            CHECK(file + 1 >= b->next_file - 1);
            continue;
        }
        CHECK(!wr_file_header_check(bytes, WR_FILE_STORE, 1, 0, file, &salt) && salt == salt_of(file));
        const char *reason;
        uint64_t n = wr_frame_scan(bytes, FILE_BYTES, &at, salt, rows, sizeof rows / sizeof *rows, &reason);
        /* every file that was left says so itself; behind the current one's frames lies what was there before */
        bool current = file == wr_log_look(b->log)->file;
        if (!current) CHECK(strcmp(reason, "end") == 0);
        if (current && strcmp(reason, "end")) CHECK(at == wr_log_look(b->log)->append && (recycled || !strcmp(reason, "zeros")));
        for (uint64_t i = 0; i < n; i++) {
            CHECK(rows[i].sequence == next);
            const uint8_t *body = bytes + rows[i].offset + WR_FRAME_HEAD_BYTES;
            for (uint32_t k = 0; k < rows[i].extra; k++) CHECK(body[k] == (next & 0xff));
            next++;
        }
    }
    return next;
}

/* ---- three threads ---- */

typedef struct {
    _Atomic uint64_t file, offset, sequence, version; /* the last frame appended; version odd: changing */
    _Atomic uint32_t over;
    bench *b;
    uint64_t good_n, gone_n;
} shared;

static void *read_main(void *argument) {
    shared *s = argument;
    static uint8_t copy[FILE_BYTES];
    uint64_t version = 0, file = 0, offset = 0, sequence = 0;
    bool have = false;
    while (!atomic_load_explicit(&s->over, memory_order_acquire)) {
        /* The same frame is read until its image takes another file: so each reuse is met by a running copy. */
        if (!have) {
            version = word(&s->version);
            file = word(&s->file), offset = word(&s->offset), sequence = word(&s->sequence);
            have = version && version % 2 == 0 && version == word(&s->version);
            continue;
        }
        have = wr_image_read(s->b->region, s->b->images_n, FILE_BYTES, file, offset, copy, WR_FRAME_BYTES_MIN);
        uint64_t total = wr_get64(copy) + 9;
        if (have) CHECK(total >= WR_FRAME_BYTES_MIN && total <= FILE_BYTES);
        have = have && wr_image_read(s->b->region, s->b->images_n, FILE_BYTES, file, offset, copy, total);
        if (have) {
            wr_frame_head head;
            CHECK(wr_frame_check(copy, total, 0, salt_of(file), &head, NULL) == total && head.sequence == sequence);
            s->good_n++;
        } else {
            s->gone_n++;
        }
    }
    return NULL;
}

static void three_threads(uint64_t frames, bool may_sync) {
    static bench b;
    static shared s;
    memset(&s, 0, sizeof s);
    begin(&b, 2, may_sync, NULL, NULL);
    s.b = &b;
    CHECK(wr_log_seal(b.log, true, 0, NULL, 0) == 0);
    CHECK(offer(&b, O_WRONLY | O_DIRECT) == 0);
    start_committer(&b);
    pthread_t reader;
    CHECK(pthread_create(&reader, NULL, read_main, &s) == 0);
    wr_link *link = &b.view.links[0];
    uint64_t sequence = 0, file, offset, sealed = 0;
    while (sequence < frames) {
        if (!wr_log_look(b.log)->has_next) CHECK(offer(&b, O_WRONLY | O_DIRECT) == 0);
        uint64_t body = random64() % 100 ? random64() % 200 : random64() % (FILE_BYTES / 4);
        bool done = put(&b, sequence, body, random64() % 2, &file, &offset);
        if (done) {
            atomic_fetch_add(&s.version, 1);
            atomic_store_explicit(&s.file, file, memory_order_release);
            atomic_store_explicit(&s.offset, offset, memory_order_release);
            atomic_store_explicit(&s.sequence, sequence, memory_order_release);
            atomic_fetch_add(&s.version, 1);
            sequence++;
        } else {
            CHECK(errno == EAGAIN);
        }
        if (!done || random64() % 50 == 0) {
            wr_horizon horizon = {&b.view, 0, sequence};
            int error = wr_log_seal(b.log, random64() % 4 == 0, 0, &horizon, 1);
            CHECK(error == 0 || error == EAGAIN);
            if (error == 0) sealed = sequence;
            if (!done || error) CHECK(wr_log_quiesce(b.log, 60 * SECOND) == 0);
        }
        CHECK(word(&link->head) <= sealed && word(&link->synced) <= sealed);
    }
    wr_horizon horizon = {&b.view, 0, sequence};
    CHECK(wr_log_quiesce(b.log, 60 * SECOND) == 0);
    CHECK(wr_log_seal(b.log, true, 0, &horizon, 1) == 0);
    CHECK(wr_log_quiesce(b.log, 60 * SECOND) == 0);
    CHECK(word(&link->written) == sequence && word(&link->synced) == sequence && word(&link->head) == sequence);
    const wr_log_state *look = wr_log_look(b.log);
    CHECK(!look->busy && !look->failed && (look->syncs_n > 0) == may_sync);
    wr_image *image = (wr_image *)b.region + look->image;
    CHECK(word(&image->durable) == look->append && word(&image->appended) == look->append);
    atomic_store_explicit(&s.over, 1, memory_order_release);
    CHECK(pthread_join(reader, NULL) == 0);
    CHECK(count_files(&b) == sequence);
    CHECK(s.good_n > 0 && look->file > 2);
    /* an old file is in no image any more */
    uint8_t byte;
    CHECK(!wr_image_read(b.region, 2, FILE_BYTES, 0, 0, &byte, 1));
    CHECK(wr_image_read(b.region, 2, FILE_BYTES, look->file, 0, &byte, 1) && byte == 'W');
    CHECK(!wr_image_read(b.region, 2, FILE_BYTES, look->file, look->append, &byte, 1));
    CHECK(!wr_image_read(b.region, 2, FILE_BYTES, look->file, UINT64_MAX, &byte, 2));
    printf("  %llu frames, %llu files, %llu commits, reader: %llu good, %llu gone\n", (unsigned long long)frames,
           (unsigned long long)look->file + 1, (unsigned long long)look->commits_n, (unsigned long long)s.good_n,
           (unsigned long long)s.gone_n);
    end(&b);
}

/* ---- limits ---- */

static void limits(void) {
    static bench b;
    begin(&b, 2, true, NULL, NULL);
    uint64_t offset = 0, file;
    bool rolled = true;
    static wr_horizon horizons[WR_LOG_HORIZONS + 1];
    CHECK(!wr_log_reserve(b.log, 100, &offset, &rolled) && errno == EAGAIN && !rolled);
    CHECK(wr_log_seal(b.log, true, 0, horizons, WR_LOG_HORIZONS + 1) == ENOBUFS);
    CHECK(!wr_log_look(b.log)->busy);
    CHECK(offer(&b, O_WRONLY) == 0 && wr_log_look(b.log)->has_file && !wr_log_look(b.log)->has_next);
    CHECK(offer(&b, O_WRONLY) == 0 && offer(&b, O_WRONLY) == EBUSY);
    uint64_t room = FILE_BYTES - WR_FILE_HEADER_BYTES;
    for (uint64_t left = 1; left < WR_FRAME_BYTES_MIN; left++)
        CHECK(!wr_log_reserve(b.log, room - left, &offset, NULL) && errno == EMSGSIZE);
    CHECK(!wr_log_reserve(b.log, room + 1, &offset, NULL) && errno == EMSGSIZE);
    CHECK(!wr_log_reserve(b.log, UINT64_MAX, &offset, NULL) && errno == EMSGSIZE);
    CHECK(!wr_log_reserve(b.log, WR_FRAME_BYTES_MIN - 1, &offset, NULL) && errno == EMSGSIZE);
    CHECK(wr_log_reserve(b.log, room - WR_FRAME_BYTES_MIN, &offset, NULL) && offset == WR_FILE_HEADER_BYTES);
    CHECK(wr_log_reserve(b.log, room, &offset, NULL));
    /* no committer: the batch queue fills, a roll finds neither slot nor image */
    int posted = 0;
    for (uint64_t i = 0; i < WR_COMMITS + 3; i++) {
        int error = wr_log_seal(b.log, false, 0, horizons, 1);
        CHECK(error == (posted < WR_COMMITS ? 0 : EAGAIN));
        posted += error == 0;
    }
    CHECK(wr_log_quiesce(b.log, 1000) == ETIMEDOUT);
    CHECK(put(&b, 0, room - WR_FRAME_BYTES_MIN, true, &file, &offset) && wr_log_look(b.log)->append == FILE_BYTES);
    CHECK(!put(&b, 1, 1, true, &file, &offset) && errno == EAGAIN);
    start_committer(&b);
    CHECK(wr_log_quiesce(b.log, 60 * SECOND) == 0);
    CHECK(put(&b, 1, 1, true, &file, &offset) && file == 1 && offset == WR_FILE_HEADER_BYTES);
    CHECK(wr_log_seal(b.log, false, 0, NULL, 0) == 0 && wr_log_quiesce(b.log, 60 * SECOND) == 0);
    CHECK(wr_log_look(b.log)->append == 2 * 4096 && count_files(&b) == 2);
    /* wanted by the frame: synced although the seal did not ask */
    CHECK(word(&((wr_image *)b.region)[1].durable) == 2 * 4096);
    /* nothing new */
    uint64_t commits = wr_log_look(b.log)->commits_n;
    CHECK(wr_log_seal(b.log, true, 0, NULL, 0) == 0 && wr_log_look(b.log)->commits_n == commits);
    end(&b);
    /* never started, with a sealed `last` batch, a current and a next file: all descriptors are closed */
    int before = descriptors();
    begin(&b, 3, true, NULL, NULL);
    CHECK(offer(&b, O_WRONLY) == 0 && offer(&b, O_WRONLY) == 0);
    CHECK(put(&b, 0, room - WR_FRAME_BYTES_MIN, true, &file, &offset) && put(&b, 1, 9, true, &file, &offset) && file == 1);
    CHECK(offer(&b, O_WRONLY) == 0 && descriptors() == before + 3);
    end(&b);
    CHECK(descriptors() == before);
    errno = 0;
    uint8_t *page = b.region;
    CHECK(!wr_log_new(page + 8, 1 << 20, 2, FILE_BYTES, true, NULL, NULL) && errno == EINVAL);
    CHECK(!wr_log_new(page, 4096 + 2 * FILE_BYTES - 1, 2, FILE_BYTES, true, NULL, NULL));
    CHECK(!wr_log_new(page, 1 << 20, 1, FILE_BYTES, true, NULL, NULL));
    CHECK(!wr_log_new(page, 1 << 20, 2, FILE_BYTES + 1, true, NULL, NULL));
}

/* A frame that ends less than a padding frame before the end of a page pushes the padding into the next page. */
static void padding(void) {
    static bench b;
    begin(&b, 2, true, NULL, NULL);
    start_committer(&b);
    CHECK(offer(&b, O_WRONLY | O_DIRECT) == 0);
    uint64_t sequence = 0, file, offset, synced_file = 0, synced = 0;
    for (uint64_t left = 0; left <= WR_FRAME_BYTES_MIN + 1; left++) {
        while (!put(&b, sequence, 4096 - left - WR_FRAME_BYTES_MIN, true, &file, &offset)) {
            CHECK(errno == EAGAIN && wr_log_quiesce(b.log, 60 * SECOND) == 0);
            if (!wr_log_look(b.log)->has_next) CHECK(offer(&b, O_WRONLY | O_DIRECT) == 0);
        }
        sequence++;
        CHECK(wr_log_seal(b.log, true, 0, NULL, 0) == 0);
        uint64_t expected = offset + 4096 + (left > 0 && left < WR_FRAME_BYTES_MIN ? 4096 : 0);
        CHECK(wr_log_look(b.log)->append == expected && wr_log_look(b.log)->sealed_to == expected);
        if (left) { /* the padding vouches for what was synced before it, in this file, and for no more */
            const uint8_t *image = b.region + 4096 + wr_log_look(b.log)->image * FILE_BYTES;
            wr_frame_head head;
            CHECK(wr_frame_check(image, FILE_BYTES, offset + 4096 - left, salt_of(file), &head, NULL));
            CHECK(head.kind == WR_KIND_PADDING && head.sequence == (file == synced_file ? synced : 0));
        }
        synced_file = file;
        synced = expected;
        CHECK(wr_log_quiesce(b.log, 60 * SECOND) == 0);
    }
    CHECK(count_files(&b) == sequence);
    end(&b);
}

/* A file is left when its frames end anywhere, also at a page's end, sealed or not, or where one padding frame has room. */
static void endings(void) {
    uint64_t room = FILE_BYTES - WR_FILE_HEADER_BYTES;
    static const uint64_t lefts[] = {0, WR_FRAME_BYTES_MIN, WR_FRAME_BYTES_MIN + 1, 4095, 4096, 4097, 4096 + WR_FRAME_BYTES_MIN - 1,
                                     4096 + WR_FRAME_BYTES_MIN, 8192, 3 * 4096};
    for (uint32_t i = 0; i < 2 * sizeof lefts / sizeof *lefts; i++) {
        static bench b;
        uint64_t left = lefts[i / 2], file, offset;
        begin(&b, 2, true, NULL, NULL);
        start_committer(&b);
        CHECK(offer(&b, O_WRONLY | O_DIRECT) == 0 && offer(&b, O_WRONLY | O_DIRECT) == 0);
        CHECK(put(&b, 0, room - left - WR_FRAME_BYTES_MIN, true, &file, &offset) && file == 0);
        if (i % 2) CHECK(wr_log_seal(b.log, true, 0, NULL, 0) == 0 && wr_log_quiesce(b.log, 60 * SECOND) == 0);
        CHECK(put(&b, 1, room - WR_FRAME_BYTES_MIN, true, &file, &offset) && file == 1);
        CHECK(wr_log_seal(b.log, true, 0, NULL, 0) == 0 && wr_log_quiesce(b.log, 60 * SECOND) == 0);
        CHECK(count_files(&b) == 2);
        end(&b);
    }
}

/* Memory for the images that is not there yet: the log waits for it, and never touches what it has not got. */
static void short_memory(void) {
    static bench b;
    begin(&b, 2, true, NULL, NULL);
    /* The second image lies behind the end of the file that is mapped: a touch there is a SIGBUS. */
    int memory = memfd_create("log_test", MFD_CLOEXEC);
    CHECK(memory >= 0 && ftruncate(memory, 4096 + FILE_BYTES) == 0);
    CHECK(mmap(b.region, b.region_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, memory, 0) == b.region);
    wr_log_free(b.log);
    b.log = wr_log_new(b.region, b.region_bytes, 2, FILE_BYTES, true, NULL, NULL);
    CHECK(b.log);
    start_committer(&b);
    CHECK(offer(&b, O_WRONLY | O_DIRECT) == 0 && offer(&b, O_WRONLY | O_DIRECT) == 0);
    uint64_t sequence = 0, file, offset;
    while (put(&b, sequence, 5000, true, &file, &offset)) {
        sequence++;
        CHECK(file == 0 && wr_log_room(b.log) <= FILE_BYTES - offset && !wr_log_look(b.log)->no_memory);
        CHECK(wr_log_seal(b.log, true, 0, NULL, 0) != ENOBUFS);
        CHECK(wr_log_quiesce(b.log, 60 * SECOND) == 0);
    }
    CHECK(errno == EAGAIN && wr_log_look(b.log)->no_memory && wr_log_look(b.log)->file == 0);
    CHECK(!put(&b, sequence, 5000, true, &file, &offset) && errno == EAGAIN);
    CHECK(ftruncate(memory, (off_t)b.region_bytes) == 0); /* there is some again */
    CHECK(put(&b, sequence, 5000, true, &file, &offset) && file == 1 && !wr_log_look(b.log)->no_memory);
    CHECK(wr_log_seal(b.log, true, 0, NULL, 0) == 0 && wr_log_quiesce(b.log, 60 * SECOND) == 0);
    CHECK(count_files(&b) == sequence + 1);
    end(&b);
    close(memory);
}

/* Keep the committer in files, and append; returns how many files were begun. */
static uint64_t put_many(bench *b, uint64_t n, uint64_t body, uint64_t *sequence, uint64_t *offset_max) {
    uint64_t file = 0, offset, first = wr_log_look(b->log)->file;
    for (uint64_t end = *sequence + n; *sequence < end;) {
        if (!wr_log_look(b->log)->has_next) CHECK(offer(b, O_WRONLY | O_DIRECT) == 0);
        if (put(b, *sequence, body, true, &file, &offset)) {
            CHECK(!wr_log_look(b->log)->no_memory);
            if (offset > *offset_max) *offset_max = offset;
            ++*sequence;
        } else {
            CHECK(errno == EAGAIN && !wr_log_look(b->log)->no_memory);
        }
        CHECK(wr_log_seal(b->log, true, 0, NULL, 0) != ENOBUFS && wr_log_quiesce(b->log, 60 * SECOND) == 0);
    }
    return file - first;
}

/* Each image from a file of its own, which can be cut: a touch behind its end is a SIGBUS, and no memory for who asks before. */
static void cut_images(bench *b, int *memory, const uint64_t *bytes) {
    for (uint32_t image = 0; image < b->images_n; image++) {
        uint8_t *at = b->region + 4096 + image * FILE_BYTES;
        memory[image] = memfd_create("log_test", MFD_CLOEXEC);
        CHECK(memory[image] >= 0 && ftruncate(memory[image], (off_t)bytes[image]) == 0);
        CHECK(mmap(at, FILE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, memory[image], 0) == at);
    }
}

/* A part of two images has memory and the rest has none: files are left early, nothing waits, and nothing of the rest is touched. */
static void little_memory(void) {
    static bench b;
    const uint64_t sure = 7 * 4096; /* the header page, frames, and the padding behind them */
    int memory[3];
    begin(&b, 3, true, NULL, NULL);
    cut_images(&b, memory, (uint64_t[]){sure, sure, 0});
    start_committer(&b);
    CHECK(offer(&b, O_WRONLY | O_DIRECT) == 0);
    uint64_t sequence = 0, offset_max = 0, offset;
    CHECK(put_many(&b, 100, 5000, &sequence, &offset_max) >= 40 && offset_max < sure);
    /* the largest frame that the sure part has room for, behind others */
    CHECK(put_many(&b, 10, sure - 3 * 4096 - WR_FRAME_BYTES_MIN, &sequence, &offset_max) == 10 && offset_max < sure);
    CHECK(!wr_log_reserve_here(b.log, 3 * 4096, 0, &offset) && errno == EAGAIN && !wr_log_look(b.log)->no_memory);
    CHECK(put_many(&b, 1, 100, &sequence, &offset_max) == 1 && wr_log_reserve_here(b.log, WR_FRAME_BYTES_MIN, 0, &offset) &&
          !wr_log_reserve_here(b.log, WR_FRAME_BYTES_MIN, 4 * 4096, &offset));
    for (uint32_t image = 0; image < 3; image++) CHECK(ftruncate(memory[image], FILE_BYTES) == 0); /* there is some again */
    uint64_t files = put_many(&b, 100, 5000, &sequence, &offset_max);
    CHECK(files >= 13 && files <= 17 && offset_max >= FILE_BYTES - 3 * 4096);
    CHECK(count_files(&b) == sequence);
    end(&b);
    for (uint32_t image = 0; image < 3; image++) close(memory[image]);
}

/* A log that may have only a part of its images leaves its files there. */
static void limited_memory(void) {
    static bench b;
    const uint64_t most = 8 * 4096;
    begin(&b, 2, true, NULL, NULL);
    wr_log_limit(b.log, most + 1);
    int memory[2];
    cut_images(&b, memory, (uint64_t[]){most, most});
    start_committer(&b);
    CHECK(offer(&b, O_WRONLY | O_DIRECT) == 0);
    uint64_t sequence = 0, offset_max = 0;
    CHECK(put_many(&b, 200, 3000, &sequence, &offset_max) >= 25 && offset_max < most);
    CHECK(count_files(&b) == sequence);
    end(&b);
    for (uint32_t image = 0; image < 2; image++) close(memory[image]);
}

/* ---- system calls that fail ---- */

typedef struct {
    _Atomic uint32_t mode, writes_n, syncs_n;
    bench *b;
    uint64_t written_seen, synced_seen; /* words of the link at the last fdatasync */
} faults;
enum { FINE, SHORT, WRITE_EIO, SYNC_EIO, NOTHING, REMOVED, REMOVED_LATE, CUT, CUT_LATE, NO_SPACE, QUOTA, HALF, SYNC_NO_SPACE };

static ssize_t faulty_pwrite(void *context, int fd, const void *from, size_t n, off_t at) {
    faults *f = context;
    uint32_t call = atomic_fetch_add(&f->writes_n, 1);
    switch (atomic_load(&f->mode)) {
    case SHORT:
        if (call % 3 == 0) return errno = EINTR, -1;
        if (at % 512) return errno = EINVAL, -1; /* as O_DIRECT has it */
        if (call % 3 == 1 && n > 5000) return pwrite(fd, from, 1 + call * 977 % 5000, at);
        return pwrite(fd, from, n > 4096 ? n - 1536 : n, at);
    case WRITE_EIO:
        return errno = EIO, -1;
    case NO_SPACE:
        return errno = ENOSPC, -1;
    case QUOTA:
        return errno = EDQUOT, -1;
    case HALF: /* each call finds room for one page only, and the next one for none */
        if (call % 2) return errno = ENOSPC, -1;
        return pwrite(fd, from, n > 4096 ? 4096 : n, at);
    case NOTHING:
        return 0;
    case REMOVED:
        CHECK(unlink(path_of(0)) == 0);
        return pwrite(fd, from, n, at);
    case CUT: /* the write makes it longer again, but not whole */
        CHECK(truncate(path_of(0), 0) == 0);
        return pwrite(fd, from, n, at);
    default:
        return pwrite(fd, from, n, at);
    }
}

static int faulty_fdatasync(void *context, int fd) {
    faults *f = context;
    f->written_seen = word(&f->b->view.links[0].written);
    f->synced_seen = word(&f->b->view.links[0].synced);
    if (atomic_fetch_add(&f->syncs_n, 1) % 2 == 0 && atomic_load(&f->mode) == SHORT) return errno = EINTR, -1;
    if (atomic_load(&f->mode) == SYNC_EIO) return errno = EIO, -1;
    if (atomic_load(&f->mode) == SYNC_NO_SPACE) return errno = ENOSPC, -1;
    if (atomic_load(&f->mode) == REMOVED_LATE) CHECK(unlink(path_of(0)) == 0);
    if (atomic_load(&f->mode) == CUT_LATE) CHECK(truncate(path_of(0), WR_FILE_HEADER_BYTES) == 0);
    return fdatasync(fd);
}

static const wr_commit_io faulty = {faulty_pwrite, faulty_fdatasync};

/* A log whose system calls do what `f` says, with its committer. */
static void begin_faulty(bench *b, faults *f) {
    f->b = b;
    begin(b, 2, true, NULL, NULL);
    wr_log_set_io(b->log, &faulty, f);
    start_committer(b);
}

static void short_writes(void) {
    static bench b;
    faults f = {.mode = SHORT};
    begin_faulty(&b, &f);
    uint64_t file, offset;
    for (uint64_t sequence = 0; sequence < 500; sequence++) {
        if (!wr_log_look(b.log)->has_next) CHECK(offer(&b, O_WRONLY) == 0);
        while (!put(&b, sequence, random64() % 3000, true, &file, &offset)) {
            CHECK(errno == EAGAIN && wr_log_quiesce(b.log, 60 * SECOND) == 0);
            if (!wr_log_look(b.log)->has_next) CHECK(offer(&b, O_WRONLY) == 0);
        }
        if (sequence % 10 == 0) CHECK(wr_log_seal(b.log, true, 0, NULL, 0) != ENOBUFS);
    }
    CHECK(wr_log_quiesce(b.log, 60 * SECOND) == 0);
    CHECK(wr_log_seal(b.log, true, 0, NULL, 0) == 0 && wr_log_quiesce(b.log, 60 * SECOND) == 0);
    CHECK(!wr_log_look(b.log)->failed && count_files(&b) == 500);
    end(&b);
}

static _Atomic uint32_t errors_seen;
static void note_error(void *context, const wr_batch *batch) {
    (void)context;
    if (batch->error) atomic_fetch_add(&errors_seen, 1);
}

static void one_failure(uint32_t mode, int expected) {
    static bench b;
    faults f = {.mode = FINE};
    begin_faulty(&b, &f);
    CHECK(offer(&b, O_WRONLY) == 0 && offer(&b, O_WRONLY) == 0);
    uint64_t file, offset;
    wr_horizon horizon = {&b.view, 0, 1};
    wr_link *link = &b.view.links[0];
    CHECK(put(&b, 0, 50, true, &file, &offset) && wr_log_seal(b.log, false, 0, &horizon, 1) == 0);
    CHECK(wr_log_quiesce(b.log, 60 * SECOND) == 0 && word(&link->head) == 1);
    /* `written` was told before the sync began, `synced` was not */
    CHECK(f.written_seen == 1 && f.synced_seen == 0);
    atomic_store(&f.mode, mode);
    horizon.sequence = 2;
    CHECK(put(&b, 1, 50, true, &file, &offset) && wr_log_seal(b.log, true, 0, &horizon, 1) == 0);
    CHECK(wr_log_quiesce(b.log, 60 * SECOND) == 0 && wr_log_look(b.log)->failed == expected);
    /* a later success proves nothing: the disk is well again, the log stays frozen and does no I/O */
    atomic_store(&f.mode, FINE);
    uint32_t writes = atomic_load(&f.writes_n), syncs = atomic_load(&f.syncs_n);
    CHECK(!put(&b, 2, 50, true, &file, &offset) && errno == expected);
    horizon.sequence = 3;
    CHECK(wr_log_seal(b.log, true, 0, &horizon, 1) == 0 && wr_log_quiesce(b.log, 60 * SECOND) == 0);
    CHECK(atomic_load(&f.writes_n) == writes && atomic_load(&f.syncs_n) == syncs);
    CHECK(word(&link->head) == 1 && word(&link->synced) == 1 && word(&link->written) == (mode == SYNC_EIO || mode == SYNC_NO_SPACE || mode == REMOVED_LATE || mode == CUT_LATE ? 2 : 1));
    CHECK(word(&((wr_image *)b.region)[0].durable) == 2 * 4096);
    end(&b);
}

/* Nothing is written, and the file goes: the log fails by itself, for what it confirmed is not there any more. */
static void idle_failure(bool removed) {
    static bench b;
    begin(&b, 2, true, NULL, NULL);
    start_committer(&b);
    CHECK(offer(&b, O_WRONLY) == 0 && offer(&b, O_WRONLY) == 0);
    uint64_t file, offset;
    CHECK(put(&b, 0, 50, true, &file, &offset) && wr_log_seal(b.log, true, 0, NULL, 0) == 0);
    CHECK(wr_log_quiesce(b.log, 60 * SECOND) == 0 && !wr_log_look(b.log)->failed);
    CHECK(removed ? unlink(path_of(0)) == 0 : truncate(path_of(0), FILE_BYTES - 1) == 0);
    for (int tries = 0; tries < 6000 && !wr_log_look(b.log)->failed; tries++) usleep(10000);
    CHECK(wr_log_look(b.log)->failed == ESTALE && !put(&b, 1, 50, true, &file, &offset) && errno == ESTALE);
    end(&b);
}

/* A write that finds no space is tried again: nothing is confirmed meanwhile, everything afterwards, in order. */
static void no_space(uint32_t mode, int expected) {
    static bench b;
    faults f = {.mode = FINE};
    begin_faulty(&b, &f);
    CHECK(offer(&b, O_WRONLY) == 0 && offer(&b, O_WRONLY) == 0);
    uint64_t file, offset;
    wr_horizon horizon = {&b.view, 0, 1};
    wr_link *link = &b.view.links[0];
    CHECK(put(&b, 0, 50, true, &file, &offset) && wr_log_seal(b.log, true, 0, &horizon, 1) == 0);
    CHECK(wr_log_quiesce(b.log, 60 * SECOND) == 0 && word(&link->synced) == 1);
    atomic_store(&f.mode, mode);
    uint64_t n = 1;
    for (; !wr_log_look(b.log)->full; n++) { /* batches pile up behind the first one, up to the last slot */
        CHECK(n < 100 && put(&b, n, 200, true, &file, &offset));
        horizon.sequence = n + 1;
        CHECK(wr_log_seal(b.log, n % 2, 0, &horizon, 1) == 0);
    }
    horizon.sequence = n + 1;
    CHECK(wr_log_seal(b.log, true, 0, &horizon, 1) == EAGAIN);
    uint32_t writes = atomic_load(&f.writes_n);
    while (wr_log_look(b.log)->no_space != expected || atomic_load(&f.writes_n) < writes + 3) sched_yield(); /* it is tried */
    CHECK(wr_log_quiesce(b.log, 1) == ETIMEDOUT && !wr_log_look(b.log)->failed);
    CHECK(word(&link->head) == 1 && word(&link->synced) == 1 && word(&link->written) == 1);
    atomic_store(&f.mode, FINE);
    CHECK(wr_log_quiesce(b.log, 60 * SECOND) == 0);
    CHECK(!wr_log_look(b.log)->failed && !wr_log_look(b.log)->no_space && !wr_log_look(b.log)->full);
    CHECK(wr_log_seal(b.log, true, 0, &horizon, 1) == 0 && wr_log_quiesce(b.log, 60 * SECOND) == 0);
    CHECK(word(&link->head) == n + 1 && word(&link->synced) == n + 1 && word(&link->written) == n + 1);
    CHECK(count_files(&b) == n);
    end(&b);
}

/* Room comes page by page: what was written goes on where it ended. */
static void little_space(void) {
    static bench b;
    faults f = {.mode = HALF};
    begin_faulty(&b, &f);
    CHECK(offer(&b, O_WRONLY) == 0);
    uint64_t file, offset;
    CHECK(put(&b, 0, 3 * 4096, true, &file, &offset) && wr_log_seal(b.log, true, 0, NULL, 0) == 0);
    CHECK(wr_log_quiesce(b.log, 60 * SECOND) == 0 && !wr_log_look(b.log)->failed && !wr_log_look(b.log)->no_space);
    CHECK(count_files(&b) == 1);
    end(&b);
}

/* A log that is to end does not wait for space: the batch has failed, and nothing of it was confirmed. */
static void no_space_at_the_end(void) {
    static bench b;
    faults f = {.mode = NO_SPACE};
    begin_faulty(&b, &f);
    CHECK(offer(&b, O_WRONLY) == 0);
    uint64_t file, offset;
    wr_horizon horizon = {&b.view, 0, 1};
    CHECK(put(&b, 0, 50, true, &file, &offset) && wr_log_seal(b.log, true, 0, &horizon, 1) == 0);
    while (!wr_log_look(b.log)->no_space) sched_yield();
    wr_log_stop(b.log);
    CHECK(wr_log_quiesce(b.log, 60 * SECOND) == 0 && wr_log_look(b.log)->failed == ENOSPC);
    CHECK(word(&b.view.links[0].written) == 0 && word(&b.view.links[0].head) == 0);
    end(&b);
}

/* Errors of the real calls, seen by the owner's callback for the failed batch and each later one. */
static void real_failure(int expected, bool by_limit) {
    static bench b;
    struct rlimit old, small = {3 * 4096 + 100, RLIM_INFINITY};
    CHECK(getrlimit(RLIMIT_FSIZE, &old) == 0);
    small.rlim_max = old.rlim_max;
    atomic_store(&errors_seen, 0);
    begin(&b, 2, true, note_error, NULL);
    CHECK(offer(&b, by_limit ? O_WRONLY : O_RDONLY) == 0);
    if (by_limit) CHECK(setrlimit(RLIMIT_FSIZE, &small) == 0);
    start_committer(&b);
    uint64_t file, offset;
    CHECK(put(&b, 0, 3 * 4096, true, &file, &offset) && wr_log_seal(b.log, true, 0, NULL, 0) == 0);
    CHECK(wr_log_quiesce(b.log, 60 * SECOND) == 0 && wr_log_look(b.log)->failed == expected);
    wr_horizon none = {NULL, 0, 9};
    CHECK(wr_log_seal(b.log, true, 0, &none, 1) == 0 && wr_log_quiesce(b.log, 60 * SECOND) == 0);
    CHECK(atomic_load(&errors_seen) == 2);
    CHECK(setrlimit(RLIMIT_FSIZE, &old) == 0);
    end(&b);
}

/* ---- horizons ---- */

static uint64_t order_n;
static uint64_t order[8];
static void on_written(void *context, const wr_batch *batch) {
    CHECK(!batch->error && context == &order_n);
    order[order_n++] = batch->number * 2;
}
static void on_done(void *context, const wr_batch *batch) {
    CHECK(context == &order_n && batch->note == 77);
    order[order_n++] = batch->number * 2 + 1;
}

static void horizons(void) {
    static bench b;
    begin(&b, 2, true, on_done, &order_n);
    wr_log_on_written(b.log, on_written);
    CHECK(offer(&b, O_WRONLY) == 0);
    uint64_t file, offset;
    CHECK(put(&b, 0, 1, true, &file, &offset) && wr_log_seal(b.log, true, 77, NULL, 0) == 0);
    CHECK(put(&b, 1, 1, false, &file, &offset) && wr_log_seal(b.log, false, 77, NULL, 0) == 0);
    start_committer(&b);
    CHECK(wr_log_quiesce(b.log, 60 * SECOND) == 0);
    CHECK(order_n == 4 && order[0] == 2 && order[1] == 3 && order[2] == 4 && order[3] == 5);
    CHECK(wr_log_look(b.log)->syncs_n == 1 && word(&((wr_image *)b.region)[0].durable) == 2 * 4096);

    /* never lower, not even for a client that writes nonsense there; the sleeping client is woken by a rise only */
    wr_link *link = &b.view.links[0];
    wr_horizon horizon = {&b.view, 0, 5};
    atomic_store(&b.view.client->waiting, 1);
    wr_horizon_publish(&horizon, true, false, false);
    CHECK(word(&link->written) == 5 && word(&link->synced) == 0 && word(&link->head) == 0);
    CHECK(atomic_load(&b.view.client->waiting) == 0);
    horizon.sequence = 4;
    atomic_store(&b.view.client->waiting, 1);
    wr_horizon_publish(&horizon, true, false, false);
    CHECK(word(&link->written) == 5 && atomic_load(&b.view.client->waiting) == 1);
    atomic_store(&link->head, UINT64_MAX);
    wr_horizon_publish(&horizon, true, true, true);
    CHECK(word(&link->head) == UINT64_MAX && word(&link->synced) == 4);
    end(&b);

    /* a batch without sync raises written and head, not synced; a log that never syncs raises all */
    for (int may_sync = 0; may_sync < 2; may_sync++) {
        begin(&b, 2, may_sync, NULL, NULL);
        start_committer(&b);
        CHECK(offer(&b, O_WRONLY) == 0);
        horizon = (wr_horizon){&b.view, 0, 1};
        CHECK(put(&b, 0, 1, false, &file, &offset) && wr_log_seal(b.log, false, 0, &horizon, 1) == 0);
        CHECK(wr_log_quiesce(b.log, 60 * SECOND) == 0);
        link = &b.view.links[0];
        CHECK(word(&link->written) == 1 && word(&link->head) == 1 && word(&link->synced) == !may_sync);
        /* a batch of horizons alone, with sync, syncs what was only written */
        horizon.sequence = 2;
        CHECK(wr_log_seal(b.log, true, 0, &horizon, 1) == 0 && wr_log_quiesce(b.log, 60 * SECOND) == 0);
        CHECK(word(&link->synced) == 2 && wr_log_look(b.log)->syncs_n == (uint64_t)may_sync);
        CHECK(word(&((wr_image *)b.region)[0].durable) == 2 * 4096);
        end(&b);
    }
}

int main(int argc, char **argv) {
    random_begin("log_test", argc, argv);
    const char *tmp = getenv("TMPDIR");
    snprintf(folder, sizeof folder, "%s/log_test.XXXXXX", tmp ? tmp : "/tmp");
    CHECK(mkdtemp(folder));
    CHECK(signal(SIGXFSZ, SIG_IGN) != SIG_ERR);
    int before = descriptors();
    for (int round = 0; round < 2; round++) {
        recycled = round;
        limits();
        padding();
        endings();
        short_memory();
        little_memory();
        limited_memory();
        short_writes();
    }
    horizons();
    one_failure(WRITE_EIO, EIO);
    one_failure(SYNC_EIO, EIO);
    one_failure(SYNC_NO_SPACE, ENOSPC); /* what was taken over and then found no space is lost */
    one_failure(NOTHING, EIO);
    one_failure(REMOVED, ESTALE); /* somebody removed the file while it is in use */
    one_failure(REMOVED_LATE, ESTALE);
    one_failure(CUT, ESTALE);
    one_failure(CUT_LATE, ESTALE);
    idle_failure(true);
    idle_failure(false);
    no_space(NO_SPACE, ENOSPC);
    no_space(QUOTA, EDQUOT);
    little_space();
    no_space_at_the_end();
    real_failure(EBADF, false);
    real_failure(EFBIG, true);
    three_threads(10000, true);
    three_threads(10000, false);
    CHECK(descriptors() == before);
    CHECK(rmdir(folder) == 0);
    return 0;
}
