/* Goal: what the log says is in the consume queues and in the key index, once, however their writer ends: killed anywhere, by a loss
 * of power, on a full disk or without memory; a reader of another process finds the unit of all that it is told of.
 * Method: a log of random commits, written from the table of records; a model of it in arrays; lives of a dispatcher that end at any
 * commit, before which the derived files that were not synced become any mix of sectors, and the log's tail is cut. Prints its seed. */
#define _GNU_SOURCE
#include "kernel/frame.h"
#include "support/scarce.h"
#include "support/scratch.h"
#include "support/small_mount.h"
#include "topics/dispatch.h"
#include "topics/folder.h"
#include "topics/hash.h"
#include "topics/properties.h"
#include "topics/queue_files.h"
#include "topics/record.h"
#include <signal.h>
#include <sys/mman.h>

#define LOG_BYTES (64u << 10)
#define LOG_MAX (2u << 20)
#define TOPICS 4
#define QUEUES 3
#define ROWS (TOPICS * QUEUES)
#define KEYS 12
#define RECORDS_MAX 20000
#define COMMITS_MAX 4000
#define SECTOR 512u

static const uint8_t node[16] = "a node of tests";
static const char *const names[TOPICS] = {"flights", "Aa", "BB", "Straße"}; /* two of one hash */

/* ---- the log, and what it says ---- */

typedef struct {
    uint64_t position, offset, ms;
    uint32_t row, size; /* row ROWS: of nobody's topic */
    int tag;            /* −1: none */
    uint32_t keys;      /* bits */
} a_record;

typedef struct {
    uint64_t from, end;
    uint32_t records; /* up to its end */
    wr_commit_head head;
} a_commit;

static uint8_t log_bytes[LOG_MAX];
static a_record records[RECORDS_MAX];
static a_commit commits[COMMITS_MAX];
static uint32_t records_n, commits_n;
static uint64_t log_end, offsets[ROWS], now_ms;

static void name_key(char name[16], uint32_t key) { snprintf(name, 16, "key%u", key); }

static uint32_t make_properties(uint8_t *to, const a_record *r) {
    char value[200] = "", name[16];
    uint32_t n = 0;
    if (r->tag >= 0) n += wr_properties_put(to, 4000, "TAGS", 4, value, (uint32_t)snprintf(value, sizeof value, "tag%d", r->tag));
    value[0] = 0;
    for (uint32_t key = 1; key < KEYS; key++) {
        if (!(r->keys >> key & 1)) continue;
        name_key(name, key);
        strcat(value, key % 2 ? " " : "  ");
        strcat(value, name);
        if (key % 3 == 0) strcat(strcat(value, " "), name); /* twice is once */
    }
    if (*value) n += wr_properties_put(to + n, 4000, "KEYS", 4, value, (uint32_t)strlen(value));
    name_key(name, 0);
    if (r->keys & 1) n += wr_properties_put(to + n, 4000, "UNIQ_KEY", 8, name, (uint32_t)strlen(name));
    return n;
}

/* Of the topic, of nobody's, or none: then the record goes by its name. */
static uint32_t id_of(const a_record *r) {
    if (r->row == ROWS) return r->offset % 2 ? 7 : 0;
    return r->offset % 5 ? 10 * (r->row / QUEUES + 1) : 0;
}

static uint32_t put_record(uint64_t position, a_record *r, uint64_t left) {
    uint8_t properties[4000];
    const char *topic = r->row < ROWS ? names[r->row / QUEUES] : r->offset % 2 ? "nobody's" : "WARREN_SYS_OFFSETS";
    const struct iovec body = {properties, random_below(300)};
    uint32_t properties_n = make_properties(properties, r), topic_n = (uint32_t)strlen(topic);
    wr_record_reason reason;
    r->position = position;
    r->size = wr_record_size(0, topic_n, properties_n, body.iov_len, &reason);
    if (r->size > left) return 0;
    const wr_record_head head = {.queue_id = r->row % QUEUES, .flag = id_of(r), .queue_offset = r->offset, .physical_offset = position, .store_timestamp = r->ms,
                                 .born_timestamp = r->ms};
    CHECK(wr_record_encode(log_bytes + position, r->size, &head, topic, topic_n, properties, properties_n, &body, 1) == WR_RECORD_GOOD);
    return r->size;
}

static a_record next_record(void) {
    a_record r = {.row = (uint32_t)random_below(ROWS + 1), .tag = (int)random_below(4) - 1, .ms = now_ms += random_below(40)};
    if (random_below(2)) r.keys = (uint32_t)random_below(1u << KEYS) & (uint32_t)random_below(1u << KEYS);
    r.offset = r.row < ROWS ? offsets[r.row] : random_below(2);
    return r;
}

/* One more commit, and before it the next file where this one is full. */
static void append_commit(uint64_t epoch) {
    const uint64_t ending = wr_commit_record_bytes(2) + WR_BLANK_SIZE;
    uint64_t file_end = (log_end / LOG_BYTES + 1) * LOG_BYTES;
    if (file_end - log_end < ending + 3000) {
        wr_record_blank(log_bytes + log_end, (uint32_t)(file_end - log_end));
        log_end = file_end;
        file_end += LOG_BYTES;
    }
    CHECK(file_end <= LOG_MAX && commits_n < COMMITS_MAX);
    uint64_t at = log_end;
    for (uint64_t n = 1 + random_below(12); n-- > 0;) {
        a_record r = next_record();
        uint32_t size = put_record(at, &r, file_end - at - ending);
        if (!size) break;
        CHECK(records_n < RECORDS_MAX);
        if (r.row < ROWS) offsets[r.row]++;
        records[records_n++] = r;
        at += size;
    }
    const wr_commit_mark marks[2] = {{.client_epoch = 7, .sequence = records_n}, {.client_epoch = 8, .sequence = commits_n}};
    wr_commit_head head = {.origin.epoch = epoch, .number = commits_n + 1, .from = log_end, .synced = 0, .store_ms = now_ms, .marks_n = 2};
    memcpy(head.origin.node, node, sizeof node);
    head.crc = wr_crc32c(0, log_bytes + log_end, at - log_end);
    wr_commit_record_write(log_bytes + at, at, &head, marks);
    at += wr_commit_record_bytes(2);
    commits[commits_n++] = (a_commit){log_end, at, records_n, head};
    log_end = at;
}

static void begin_log(uint64_t until) {
    memset(log_bytes, 0, sizeof log_bytes);
    memset(offsets, 0, sizeof offsets);
    records_n = commits_n = 0;
    log_end = 0;
    now_ms = 1700000000000ull;
    while (log_end < until) append_commit(1);
}

/* The log loses what comes behind some commits. */
static void cut_log(uint32_t n) {
    while (commits_n > n) {
        commits_n--;
        for (; records_n > (commits_n ? commits[commits_n - 1].records : 0); records_n--)
            if (records[records_n - 1].row < ROWS) offsets[records[records_n - 1].row]--;
    }
    log_end = commits_n ? commits[commits_n - 1].end : 0;
    memset(log_bytes + log_end, 0, LOG_MAX - log_end);
}

static int open_log(void *context, uint64_t base) {
    (void)context;
    if (base > log_end || base >= LOG_MAX) return -ENOENT;
    int fd = memfd_create("log", 0);
    CHECK(fd >= 0 && write(fd, log_bytes + base, LOG_BYTES) == LOG_BYTES);
    return fd;
}

/* ---- a dispatcher, and what it must have made ---- */

static uint32_t entries = 50, slots = 7, index_entries = 40;
static uint8_t boot[16];
static wr_topic_row *shown;

static wr_dispatch *begin(int root, wr_checkpoint_kind *kind) {
    wr_dispatch_place place = {.root = root, .log_file_bytes = LOG_BYTES, .consume_queue_entries = entries, .index_slots = slots,
                               .index_entries = index_entries};
    memcpy(place.node, node, sizeof node);
    memcpy(place.boot, boot, sizeof boot);
    wr_dispatch *d = wr_dispatch_new(&place);
    uint32_t row, added[QUEUES];
    CHECK(d);
    for (uint32_t i = 0; i < TOPICS; i++) {
        const wr_dispatch_topic topic = {.id = 10 * (i + 1), .queues_n = QUEUES, .name = names[i], .name_n = (uint32_t)strlen(names[i])};
        for (uint32_t queue = 0; queue < QUEUES; queue++) added[queue] = i * QUEUES + queue;
        CHECK(wr_dispatch_add(d, &topic, added) == 0 && wr_dispatch_add(d, &topic, added) == EEXIST);
    }
    for (row = 0; row < ROWS; row++) wr_dispatch_show(d, row, &shown[row]);
    CHECK(wr_dispatch_begin(d, kind) == 0);
    return d;
}

static const wr_dispatch_log whole_log = {.open = open_log};

static int catch_up(wr_dispatch *d) {
    wr_log_end end;
    int error;
    do error = wr_dispatch_catch_up(d, &whole_log, 0, &end);
    while (error == EUCLEAN);
    if (!error) CHECK(end.position == log_end && !end.damaged);
    return error;
}

static int put_commit(wr_dispatch *d, const wr_dispatch_record *some, uint32_t n, const wr_commit_head *head, const wr_commit_mark *marks, uint64_t end) {
    uint32_t wakes, half = n / 2;
    int error = wr_dispatch_put(d, some, half);
    if (!error) error = wr_dispatch_put(d, some + half, n - half);
    return error ? error : wr_dispatch_end(d, head, marks, end, &wakes);
}

static int commit(wr_dispatch *d, uint32_t n) {
    const a_commit *c = &commits[n];
    wr_commit_head head;
    const uint8_t *marks;
    uint64_t at = c->end - wr_commit_record_bytes(2);
    CHECK(wr_commit_record_read(log_bytes + at, c->end - at, at, &head, &marks));
    return wr_dispatch_commit(d, log_bytes + c->from, c->end - c->from, &head, marks);
}

/* The same, as the appender has it. */
static int commit_of_memory(wr_dispatch *d, uint32_t n) {
    static wr_dispatch_record rows[64];
    static uint32_t hashes[64][KEYS];
    const a_commit *c = &commits[n];
    const wr_commit_mark marks[2] = {{.client_epoch = 7, .sequence = c->records}, {.client_epoch = 8, .sequence = n}};
    uint32_t rows_n = 0;
    for (uint32_t i = n ? commits[n - 1].records : 0; i < c->records; i++) {
        const a_record *r = &records[i];
        char text[20];
        if (r->row == ROWS) continue;
        const char *topic = names[r->row / QUEUES];
        rows[rows_n] = (wr_dispatch_record){.topic = 10 * (r->row / QUEUES + 1), .row = r->row, .size = r->size, .position = r->position, .queue_offset = r->offset,
                                            .store_ms = r->ms, .key_hashes = hashes[rows_n]};
        if (r->tag >= 0) rows[rows_n].tags_code = wr_tags_code(text, (uint32_t)snprintf(text, sizeof text, "tag%d", r->tag));
        for (uint32_t key = 0; key < KEYS; key++) {
            if (!(r->keys >> key & 1)) continue;
            name_key(text, key);
            hashes[rows_n][rows[rows_n].keys_n++] = wr_key_hash(wr_key_hash_topic(topic, strlen(topic)), text, strlen(text));
        }
        rows_n++;
    }
    return put_commit(d, rows, rows_n, &c->head, marks, c->end);
}

static bool unit_right(const wr_unit *unit, const a_record *r) {
    char text[20];
    int64_t code = r->tag < 0 ? 0 : wr_tags_code(text, (uint32_t)snprintf(text, sizeof text, "tag%d", r->tag));
    return unit->physical_offset == r->position && unit->size == r->size && unit->tags_code == code;
}

/* All of the first records_n records is there, and nothing else counts. */
static void expect(const wr_dispatch *d, int root, uint32_t n) {
    uint64_t next[ROWS] = {0};
    wr_queue_reader *readers[ROWS];
    char folder[100];
    for (uint32_t row = 0; row < ROWS; row++) {
        snprintf(folder, sizeof folder, "consumequeue/%s/%u", names[row / QUEUES], row % QUEUES);
        CHECK((readers[row] = wr_queue_reader_new(root, folder, entries)));
    }
    for (uint32_t i = 0; i < n; i++) {
        const a_record *r = &records[i];
        wr_unit unit;
        uint32_t found;
        if (r->row == ROWS) continue;
        CHECK(r->offset == next[r->row]++);
        CHECK(wr_queue_reader_get(readers[r->row], r->offset, &unit, 1, &found) == 0 && found == 1 && unit_right(&unit, r));
    }
    for (uint32_t row = 0; row < ROWS; row++) {
        CHECK(wr_dispatch_look(d, row).next == next[row] && wr_dispatch_look(d, row).minimum == 0);
        CHECK(atomic_load(&shown[row].maximum) == next[row]);
        wr_queue_reader_free(readers[row]);
    }
    wr_index_reader *reader = wr_index_reader_new(root, "index", slots, index_entries, true);
    for (uint32_t topic = 0; topic < TOPICS; topic++)
        for (uint32_t key = 0; key < KEYS; key++) {
            char text[16];
            wr_key_entry entry;
            wr_key_code code;
            name_key(text, key);
            uint32_t hash = wr_key_hash(wr_key_hash_topic(names[topic], strlen(names[topic])), text, strlen(text));
            CHECK(wr_index_reader_find(reader, hash, INT64_MIN, INT64_MAX) == 0);
            for (uint32_t i = n; i-- > 0;) {
                const a_record *r = &records[i];
                bool other = r->row < ROWS && (topic == 1 || topic == 2) && r->row / QUEUES == 3 - topic; /* Aa and BB: one hash */
                if (r->row == ROWS || (r->row / QUEUES != topic && !other) || !(r->keys >> key & 1)) continue;
                CHECK(wr_index_reader_next(reader, &entry, &code) == 0 && code == WR_KEY_FOUND);
                CHECK(entry.physical_offset == r->position && entry.from <= (int64_t)r->ms && (int64_t)r->ms <= entry.to);
            }
            CHECK(wr_index_reader_next(reader, &entry, &code) == 0 && code == WR_KEY_END);
        }
    wr_index_reader_free(reader);
    CHECK(wr_dispatch_mark(d, 7) == n && wr_dispatch_mark(d, 9) == 0);
}

static void forget_maxima(void) {
    for (uint32_t row = 0; row < ROWS; row++) atomic_store(&shown[row].maximum, 0);
}

/* ---- all files, to compare and to mix ---- */

enum { IMAGES_MAX = 2000 };
typedef struct {
    char path[300];
    uint8_t *bytes;
    uint64_t n;
} image;

static image *taken;
static uint32_t taken_n;

static int take_one(const char *path, const struct stat *status, int kind, struct FTW *where) {
    (void)where;
    if (kind != FTW_F || strstr(path, "checkpoint")) return 0;
    CHECK(taken_n < IMAGES_MAX);
    image *i = &taken[taken_n++];
    snprintf(i->path, sizeof i->path, "%s", path);
    i->n = (uint64_t)status->st_size;
    int fd = open(path, O_RDONLY);
    CHECK(fd >= 0 && (i->bytes = malloc(i->n + 1)) && read(fd, i->bytes, i->n) == (ssize_t)i->n);
    close(fd);
    return 0;
}

static uint32_t take_images(image *images) {
    taken = images;
    taken_n = 0;
    nftw(scratch, take_one, 16, FTW_PHYS);
    return taken_n;
}

static void free_images(image *images, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) free(images[i].bytes);
}

static const image *image_of(const image *images, uint32_t n, const char *path) {
    for (uint32_t i = 0; i < n; i++)
        if (!strcmp(images[i].path, path)) return &images[i];
    return NULL;
}

/* Of what was stored since the images were taken, any sectors are there, or some bytes of one. A new file: perhaps. */
static void fail_power(const image *synced, uint32_t synced_n) {
    static image late[IMAGES_MAX];
    uint32_t n = take_images(late);
    uint64_t chance = random_below(5);
    for (uint32_t i = 0; i < n; i++) {
        const image *old = image_of(synced, synced_n, late[i].path);
        if (!old && random_below(3) == 0) {
            CHECK(unlink(late[i].path) == 0);
            continue;
        }
        for (uint64_t at = 0; at < late[i].n; at += SECTOR) {
            uint64_t size = late[i].n - at < SECTOR ? late[i].n - at : SECTOR;
            if (random_below(4) < chance) size = random_below(size + 1);
            if (old) memcpy(late[i].bytes + at, old->bytes + at, size);
            else memset(late[i].bytes + at, 0, size);
        }
        int fd = open(late[i].path, O_WRONLY);
        CHECK(fd >= 0 && pwrite(fd, late[i].bytes, late[i].n, 0) == (ssize_t)late[i].n);
        close(fd);
    }
    free_images(late, n);
}

/* ---- lives ---- */

static void lives(bool power) {
    static image synced[IMAGES_MAX];
    wr_checkpoint_kind kind;
    begin_log(0);
    forget_maxima();
    wr_dispatch *d = begin(scratch_fd, &kind);
    CHECK(kind == WR_CHECKPOINT_NONE && catch_up(d) == 0 && wr_dispatch_checkpoint(d, 0) == 0);
    uint32_t synced_n = take_images(synced), durable = 0; /* commits below the checkpoint */
    for (int life = 0; life < 12 && log_end < LOG_MAX - 20 * LOG_BYTES; life++) {
        for (uint64_t turns = random_below(60); turns-- > 0;) {
            append_commit(1 + (uint64_t)life);
            CHECK((random_below(2) ? commit : commit_of_memory)(d, commits_n - 1) == 0);
            if (random_below(8) == 0) CHECK(commit(d, commits_n - 1) == 0); /* again */
            if (random_below(30)) continue;
            CHECK(wr_dispatch_checkpoint(d, log_end - 1) == EAGAIN);
            CHECK(wr_dispatch_checkpoint(d, log_end) == 0);
            free_images(synced, synced_n);
            synced_n = take_images(synced);
            durable = commits_n;
        }
        expect(d, scratch_fd, records_n);
        wr_dispatch_free(d);
        if (power) {
            fail_power(synced, synced_n);
            boot[0]++;
            forget_maxima();
        }
        bool cut = random_below(2);
        if (cut) { /* what was not synced of the log is gone, too */
            cut_log(durable + (uint32_t)random_below(commits_n - durable + 1));
            forget_maxima();
        }
        for (uint64_t more = random_below(5); more-- > 0 && !cut;) append_commit(1 + (uint64_t)life); /* in the log, and not dispatched */
        d = begin(scratch_fd, &kind);
        CHECK(kind == WR_CHECKPOINT_GOOD && wr_dispatch_mark(d, 7) == (durable ? commits[durable - 1].records : 0));
        CHECK(catch_up(d) == 0);
        expect(d, scratch_fd, records_n);
    }
    wr_dispatch_free(d);
    free_images(synced, synced_n);
    scratch_empty();
}

/* A second walk stores nothing new, with a checkpoint or without. */
static void replaying_changes_nothing(void) {
    static image before[IMAGES_MAX], after[IMAGES_MAX];
    wr_checkpoint_kind kind;
    begin_log(6 * LOG_BYTES);
    forget_maxima();
    wr_dispatch *d = begin(scratch_fd, &kind);
    CHECK(catch_up(d) == 0 && wr_dispatch_checkpoint(d, log_end) == 0);
    expect(d, scratch_fd, records_n);
    uint32_t n = take_images(before);
    for (int i = 0; i < 3; i++) {
        if (i == 1) {
            wr_dispatch_free(d);
            d = begin(scratch_fd, &kind);
            CHECK(kind == WR_CHECKPOINT_GOOD && catch_up(d) == 0);
        } else if (i == 2) {
            wr_dispatch_free(d);
            CHECK(unlinkat(scratch_fd, "checkpoint", 0) == 0);
            d = begin(scratch_fd, &kind);
            CHECK(kind == WR_CHECKPOINT_NONE && catch_up(d) == 0);
        } else {
            for (uint32_t k = 0; k < commits_n; k++) CHECK(commit(d, k) == 0 && commit_of_memory(d, k) == 0);
            CHECK(wr_dispatch_counted(d)->repeated > 2 * records_n / 2);
        }
        expect(d, scratch_fd, records_n);
        uint32_t again = take_images(after);
        CHECK(again == n);
        for (uint32_t k = 0; k < n; k++) {
            const image *same = image_of(after, again, before[k].path);
            CHECK(same && same->n == before[k].n && !memcmp(same->bytes, before[k].bytes, same->n));
        }
        free_images(after, again);
    }
    free_images(before, n);
    wr_dispatch_free(d);
    entries++; /* other settings: files are made anew */
    d = begin(scratch_fd, &kind);
    CHECK(kind == WR_CHECKPOINT_SETTINGS);
    wr_dispatch_free(d);
    entries--;
    d = begin(scratch_fd, &kind);
    CHECK(kind == WR_CHECKPOINT_SETTINGS && catch_up(d) == 0);
    expect(d, scratch_fd, records_n);
    wr_dispatch_free(d);
    scratch_empty();
}

/* ---- kills, and readers of other processes ---- */

typedef struct {
    _Atomic uint32_t done;
    _Atomic bool stop;
} shared;

static void read_on(const shared *s) {
    wr_queue_reader *readers[ROWS];
    char folder[100];
    static uint32_t by_offset[ROWS][RECORDS_MAX];
    for (uint32_t i = 0; i < records_n; i++)
        if (records[i].row < ROWS) by_offset[records[i].row][records[i].offset] = i;
    for (uint32_t row = 0; row < ROWS; row++) {
        snprintf(folder, sizeof folder, "consumequeue/%s/%u", names[row / QUEUES], row % QUEUES);
        CHECK((readers[row] = wr_queue_reader_new(scratch_fd, folder, entries)));
    }
    while (!atomic_load(&s->stop)) {
        uint32_t row = (uint32_t)random_below(ROWS), found;
        uint64_t maximum = atomic_load_explicit(&shown[row].maximum, memory_order_acquire);
        if (!maximum) continue;
        uint64_t offset = random_below(3) ? maximum - 1 : random_below(maximum);
        wr_unit unit;
        CHECK(wr_queue_reader_get(readers[row], offset, &unit, 1, &found) == 0 && found == 1);
        CHECK(unit_right(&unit, &records[by_offset[row][offset]]));
    }
    for (uint32_t row = 0; row < ROWS; row++) wr_queue_reader_free(readers[row]);
    _exit(0);
}

static void killed_at_any_instruction(void) {
    shared *s = mmap(NULL, sizeof *s, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(s != MAP_FAILED);
    begin_log(12 * LOG_BYTES);
    forget_maxima();
    pid_t readers[2], writer;
    for (int i = 0; i < 2; i++) {
        random64();
        readers[i] = fork_child();
        if (!readers[i]) read_on(s);
    }
    wr_checkpoint_kind kind;
    for (int kills = 0; kills < 60; kills++) {
        random64();
        writer = fork_child();
        if (!writer) {
            wr_dispatch *d = begin(scratch_fd, &kind);
            CHECK(kind == WR_CHECKPOINT_GOOD || !atomic_load(&s->done));
            uint32_t n = 0; /* the commits that the checkpoint does not have */
            while (n < commits_n && commits[n].records <= wr_dispatch_mark(d, 7)) n++;
            for (; n < commits_n; n++) {
                CHECK(commit(d, n) == 0);
                if (random_below(20)) continue;
                CHECK(wr_dispatch_checkpoint(d, commits[n].end) == 0);
                atomic_store(&s->done, n);
            }
            _exit(0);
        }
        const struct timespec some = {0, (long)random_below(5000000)};
        nanosleep(&some, NULL);
        kill(writer, SIGKILL);
        int status;
        CHECK(waitpid(writer, &status, 0) == writer && (WIFSIGNALED(status) ? WTERMSIG(status) == SIGKILL : WEXITSTATUS(status) == 0));
    }
    wr_dispatch *d = begin(scratch_fd, &kind);
    CHECK(catch_up(d) == 0);
    atomic_store(&s->stop, true);
    for (int i = 0; i < 2; i++) ended_well(readers[i]);
    expect(d, scratch_fd, records_n);
    wr_dispatch_free(d);
    munmap(s, sizeof *s);
    scratch_empty();
}

/* ---- disks and memory that run out ---- */

static void on_a_small_disk(void) {
    int root = open(scratch, O_RDONLY | O_DIRECTORY), ballast = openat(root, "ballast", O_CREAT | O_RDWR, 0600);
    wr_checkpoint_kind kind;
    uint64_t full = 0;
    CHECK(ballast >= 0 && posix_fallocate(ballast, 0, 1500 << 10) == 0);
    begin_log(8 * LOG_BYTES);
    wr_dispatch *d = begin(root, &kind);
    for (uint32_t n = 0; n < commits_n; n++) {
        int error;
        for (off_t left = 1400 << 10; (error = commit(d, n)) == ENOSPC; left -= 100 << 10, full++) {
            CHECK(wr_dispatch_checkpoint(d, log_end) == EBUSY && commit(d, n) == ENOSPC && left >= 0 && ftruncate(ballast, left) == 0);
            CHECK((error = commit(d, n)) == 0 || error == ENOSPC);
        }
        CHECK(error == 0);
    }
    CHECK(full);
    expect(d, root, records_n);
    CHECK(ftruncate(ballast, 0) == 0 && wr_dispatch_checkpoint(d, log_end) == 0);
    wr_dispatch_free(d);
}

static void a_full_disk_is_an_error_that_passes(void) {
    forget_maxima();
    pid_t child = fork_child();
    if (!child) {
        if (small_mount(scratch, 1536 << 10)) on_a_small_disk();
        else printf("  no right to mount: not tried on a full disk\n");
        fflush(stdout);
        _exit(0);
    }
    ended_well(child);
}

static void without_memory(void) {
    wr_checkpoint_kind kind;
    for (uint64_t fail = 0;; fail++) {
        begin_log(LOG_BYTES / 2);
        forget_maxima();
        wr_dispatch *d = begin(scratch_fd, &kind);
        scarce_begin(fail);
        for (uint32_t n = 0; n < commits_n; n++) CHECK(SCARCE_AGAIN(commit(d, n)) == 0);
        CHECK(SCARCE_AGAIN(wr_dispatch_checkpoint(d, log_end)) == 0);
        bool failed = scarce_end();
        expect(d, scratch_fd, records_n);
        wr_dispatch_free(d);
        scratch_empty();
        if (!failed) break;
        CHECK(fail < 2000);
    }
}

/* ---- what is skipped, missing, damaged, or not there ---- */

static void what_is_not_for_readers_is_counted(void) {
    wr_checkpoint_kind kind;
    uint64_t nobody = 0, ours = 0, keys = 0;
    begin_log(3 * LOG_BYTES);
    forget_maxima();
    for (uint32_t i = 0; i < records_n; i++) {
        nobody += records[i].row == ROWS, ours += records[i].row < ROWS;
        for (uint32_t key = 0; key < KEYS && records[i].row < ROWS; key++)
            keys += (records[i].keys >> key & 1) * (1 + (key && key % 3 == 0));
    }
    wr_dispatch *d = begin(scratch_fd, &kind);
    uint32_t row = 100;
    wr_dispatch_topic bad[] = {{1, 1, "a/b", 3}, {1, 1, "..", 2}, {1, 1, "", 0}, {1, 0, "x", 1}, {1, 1, "WARREN_SYS_X", 12}, {0, 1, "x", 1}};
    for (int i = 0; i < 6; i++) CHECK(wr_dispatch_add(d, &bad[i], &row) == EINVAL);
    CHECK(catch_up(d) == 0);
    const wr_dispatch_counts *c = wr_dispatch_counted(d);
    CHECK(c->units == ours && c->repeated == 0 && c->missing == 0 && c->system + c->unknown == nobody && c->system && c->unknown && c->keys == keys);
    wr_dispatch_free(d);
    scratch_empty();
}

/* Other topics of the name, another name of the id, a queue that is not there, halves, and offsets that the log lost. */
static void gaps_and_other_topics(void) {
    wr_dispatch_place place = {.root = scratch_fd, .log_file_bytes = LOG_BYTES, .consume_queue_entries = 5, .index_slots = 3, .index_entries = 9};
    uint8_t bytes[4096];
    wr_dispatch *d = wr_dispatch_new(&place);
    const wr_dispatch_topic topic = {.id = 1, .queues_n = 2, .name = "t", .name_n = 1};
    const struct { uint64_t offset; uint32_t queue, flags, id; const char *name; } rows[] = {
        {50, 0, 0, 2, "t"}, {51, 0, 0, 1, "u"}, {7, 0, 0, 0, "t"}, {8, 2, 0, 1, "t"}, {8, 0, WR_SYS_PREPARED, 1, "t"},
        {8, 0, WR_SYS_ROLLBACK, 1, "t"}, {8, 0, WR_SYS_COMMIT, 1, "t"}, {20, 0, 0, 1, "t"}, {0, 1, 0, 1, "t"}};
    const struct iovec body = {"x", 1};
    uint64_t at = 112, first_at = 0, last_at = 0, size_of_one = 0;
    const uint32_t row[2] = {0, 1};
    wr_record_reason reason;
    CHECK(d && wr_dispatch_add(d, &topic, row) == 0);
    for (int i = 0; i < 9; i++) {
        if (i == 2) first_at = at;
        if (i == 7) last_at = at;
        const wr_record_head head = {.queue_id = rows[i].queue, .flag = rows[i].id, .queue_offset = rows[i].offset, .physical_offset = at, .sys_flag = rows[i].flags};
        uint32_t size = wr_record_size(0, 1, 0, 1, &reason);
        size_of_one = size;
        CHECK(wr_record_encode(bytes + at, size, &head, rows[i].name, 1, NULL, 0, &body, 1) == WR_RECORD_GOOD);
        at += size;
    }
    const wr_commit_head head = {.number = 1, .from = 112, .store_ms = 5};
    wr_commit_record_write(bytes + at, at, &head, NULL);
    at += wr_commit_record_bytes(0);
    CHECK(wr_dispatch_commit(d, bytes + 112, at - 112, &head, NULL) == 0);
    const wr_dispatch_counts *c = wr_dispatch_counted(d);
    CHECK(c->unknown == 3 && c->halves == 2 && c->units == 4 && c->missing == 11);
    CHECK(wr_dispatch_look(d, 0).minimum == 7 && wr_dispatch_look(d, 0).next == 21 && wr_dispatch_look(d, 1).next == 1);
    wr_queue_reader *reader = wr_queue_reader_new(scratch_fd, "consumequeue/t/0", 5);
    wr_unit unit;
    uint32_t found;
    for (uint64_t offset = 7; offset < 22; offset++) {
        CHECK(wr_queue_reader_get(reader, offset, &unit, 1, &found) == 0);
        CHECK(found == (offset < 9 || offset == 20));
        CHECK(wr_queue_reader_all(reader, offset, &unit, 1, &found) == 0 && found == 1);
        CHECK(wr_unit_is_empty(&unit) == (offset >= 9 && offset < 20) && wr_unit_is_zeros(&unit) == (offset > 20)); /* what the log lost says so */
    }
    /* What goes, goes in memory at once, and of the files behind a checkpoint alone. */
    bool more;
    CHECK(wr_dispatch_look(d, 0).from == first_at && wr_dispatch_look(d, 0).bytes == 3 * size_of_one && wr_dispatch_look(d, 1).bytes == size_of_one);
    /* A damaged unit lets nothing of the log go: that it leads behind the end, or further back than was known, is not believed. */
    uint8_t bad[20] __attribute__((aligned(4))), good[20];
    int fd = openat(scratch_fd, "consumequeue/t/0/00000000000000000100", O_RDWR);
    wr_unit_put(bad, 0, 1 << 20, 100, 0);
    CHECK(fd >= 0 && pread(fd, good, 20, 60) == 20 && pwrite(fd, bad, 20, 60) == 20);
    CHECK(wr_dispatch_retain(d, 0, 8) == 0 && wr_dispatch_look(d, 0).from == first_at);
    CHECK(pwrite(fd, good, 20, 60) == 20 && close(fd) == 0);
    CHECK(wr_dispatch_retain(d, 0, 8) == 0 && wr_dispatch_look(d, 0).bytes == 2 * size_of_one);
    CHECK(wr_dispatch_retain(d, 0, 19) == 0 && wr_dispatch_look(d, 0).minimum == 19 && wr_dispatch_look(d, 0).bytes == size_of_one);
    CHECK(wr_dispatch_retain(d, 0, 18) == 0 && wr_dispatch_look(d, 0).minimum == 19 && wr_dispatch_look(d, 0).from == last_at);
    CHECK(wr_dispatch_clean(d, 8, &more) == 0 && !more && wr_queue_reader_get(reader, 7, &unit, 1, &found) == 0 && found == 1);
    CHECK(wr_dispatch_checkpoint(d, at) == 0 && wr_dispatch_clean(d, 0, &more) == 0 && more && wr_dispatch_clean(d, 8, &more) == 0 && !more);
    CHECK(wr_queue_reader_get(reader, 20, &unit, 1, &found) == 0 && found == 1); /* it lets go of the other file */
    CHECK(wr_queue_reader_get(reader, 7, &unit, 1, &found) == 0 && found == 0);
    fd = openat(scratch_fd, "consumequeue/t/0/00000000000000000400", O_RDWR);
    wr_unit_put(bad, 0, 100, 100, 0);
    CHECK(fd >= 0 && pread(fd, good, 20, 0) == 20 && pwrite(fd, bad, 20, 0) == 20);
    CHECK(wr_dispatch_retain(d, 0, 20) == 0 && wr_dispatch_look(d, 0).from == last_at);
    CHECK(pwrite(fd, good, 20, 0) == 20 && close(fd) == 0);
    CHECK(wr_dispatch_retain(d, 0, 1000) == 0 && wr_dispatch_look(d, 0).minimum == 21 && wr_dispatch_look(d, 0).from == WR_NO_RECORD);
    CHECK(!wr_dispatch_look(d, 0).bytes && wr_dispatch_row_of(d, 1, 1) == 1 && wr_dispatch_row_of(d, 1, 2) == UINT32_MAX);
    wr_dispatch_retain_log(d, at);
    wr_dispatch_retain_log(d, 1);
    CHECK(wr_dispatch_first(d) == at);
    wr_queue_reader_free(reader);
    wr_dispatch_free(d);
    scratch_empty();
}

static uint32_t files_of(const char *folder) {
    wr_folder_list list;
    CHECK(wr_folder_read(scratch_fd, folder, WR_FOLDER_NAME_MAX, &list) == 0);
    const uint32_t n = list.n;
    wr_folder_list_free(&list);
    return n;
}

/* A topic is dropped, and one of the same name added, while commits go on: records of the old one are nobody's, in memory and in a walk; its
 * files are gone, those of others stay. A folder of a topic that was deleted meanwhile goes at the next begin. */
static void a_topic_is_dropped_and_made_again(void) {
    wr_dispatch_place place = {.root = scratch_fd, .log_file_bytes = LOG_BYTES, .consume_queue_entries = 5, .index_slots = 3, .index_entries = 9};
    const wr_dispatch_topic first = {.id = 3, .queues_n = 2, .name = "Aa", .name_n = 2}, neighbour = {.id = 4, .queues_n = 1, .name = "BB", .name_n = 2},
                            negative = {.id = 7, .queues_n = 1, .name = "flights-of-all", .name_n = 14}, /* its hash is below 0 */
                            again = {.id = 5, .queues_n = 3, .name = "Aa", .name_n = 2};
    wr_checkpoint_kind kind;
    const uint32_t rows[] = {1, 0}, other[] = {2}, new_rows[] = {0, 3, 1};
    wr_dispatch *d = wr_dispatch_new(&place);
    CHECK(wr_dispatch_add(d, &first, rows) == 0 && wr_dispatch_add(d, &neighbour, other) == 0 && wr_dispatch_begin(d, &kind) == 0);
    CHECK((int32_t)wr_java_hash(0, negative.name, negative.name_n) < 0);
    CHECK(wr_dispatch_add(d, &negative, other) == EEXIST && wr_dispatch_add(d, &negative, new_rows + 1) == 0 && wr_dispatch_drop(d, 7) == 0);
    wr_commit_head head = {.number = 1};
    const wr_dispatch_record one[] = {{.topic = 3, .row = rows[0], .size = 100}, {.topic = 4, .row = other[0], .size = 100, .position = 100},
                                      {.topic = 3, .row = rows[1], .size = 100, .position = 200}};
    CHECK(put_commit(d, one, 3, &head, NULL, 300) == 0 && files_of("consumequeue/Aa/1") == 1);
    CHECK(wr_dispatch_drop(d, 3) == 0 && wr_dispatch_drop(d, 3) == ENOENT);
    CHECK(faccessat(scratch_fd, "consumequeue/Aa", F_OK, 0) != 0 && files_of("consumequeue/BB/0") == 1);
    CHECK(wr_dispatch_add(d, &again, new_rows) == 0);
    CHECK(wr_dispatch_look(d, rows[0]).next == 0 && wr_dispatch_look(d, rows[1]).next == 0);
    const wr_dispatch_record two[] = {{.topic = 3, .row = rows[0], .size = 100, .position = 300, .queue_offset = 1},
                                      {.topic = 5, .row = new_rows[0], .size = 100, .position = 400},
                                      {.topic = 4, .row = other[0], .size = 100, .position = 500, .queue_offset = 1}};
    head.number++;
    CHECK(put_commit(d, two, 3, &head, NULL, 600) == 0 && wr_dispatch_counted(d)->unknown == 1);
    CHECK(wr_dispatch_look(d, new_rows[0]).next == 1 && wr_dispatch_look(d, new_rows[1]).next == 0 && wr_dispatch_look(d, other[0]).next == 2);
    CHECK(wr_dispatch_checkpoint(d, 600) == 0);
    wr_dispatch_free(d);
    /* Both are deleted while it is killed, and the name comes a third time. */
    const wr_dispatch_topic third = {.id = 6, .queues_n = 2, .name = "Aa", .name_n = 2};
    d = wr_dispatch_new(&place);
    CHECK(wr_dispatch_add(d, &third, rows) == 0 && wr_dispatch_begin(d, &kind) == 0 && kind == WR_CHECKPOINT_GOOD);
    CHECK(faccessat(scratch_fd, "consumequeue/BB", F_OK, 0) != 0);
    CHECK(wr_dispatch_look(d, rows[0]).next == 0 && wr_dispatch_look(d, rows[0]).minimum == 0);
    wr_dispatch_free(d);
    scratch_empty();
}

/* The index is damaged while nobody looks: told, and made again from the log. */
static void a_damaged_index_is_made_again(void) {
    wr_checkpoint_kind kind;
    for (int round = 0; round < 20; round++) {
        wr_folder_list list;
        char path[60];
        begin_log(4 * LOG_BYTES);
        forget_maxima();
        wr_dispatch *d = begin(scratch_fd, &kind);
        CHECK(catch_up(d) == 0 && wr_dispatch_checkpoint(d, log_end) == 0);
        wr_dispatch_free(d);
        CHECK(wr_folder_read(scratch_fd, "index", WR_INDEX_NAME_DIGITS, &list) == 0 && list.n > 1);
        snprintf(path, sizeof path, "index/%.17s", list.names[list.n - 1]);
        int fd = openat(scratch_fd, path, O_RDWR);
        CHECK(fd >= 0);
        if (round % 2) CHECK(ftruncate(fd, 100) == 0);
        else CHECK(pwrite(fd, "\xff\xff\xff\xff", 4, WR_KEY_INDEX_HEADER_AT_INDEX_COUNT) == 4);
        close(fd);
        wr_folder_list_free(&list);
        if (random_below(2)) append_commit(1);
        d = begin(scratch_fd, &kind);
        CHECK(kind == WR_CHECKPOINT_GOOD && wr_dispatch_checkpoint(d, log_end) == EBUSY && catch_up(d) == 0);
        expect(d, scratch_fd, records_n);
        CHECK(wr_dispatch_checkpoint(d, log_end) == 0);
        wr_dispatch_free(d);
        scratch_empty();
    }
}

/* The log begins later: its first files are gone, and so is the checkpoint. */
static void a_log_without_its_beginning(void) {
    wr_checkpoint_kind kind;
    wr_log_end end;
    begin_log(6 * LOG_BYTES);
    forget_maxima();
    wr_dispatch *d = begin(scratch_fd, &kind);
    CHECK(wr_dispatch_catch_up(d, &whole_log, 2 * LOG_BYTES, &end) == 0 && end.position == log_end && !end.torn);
    for (uint32_t row = 0; row < ROWS; row++) {
        uint64_t first = UINT64_MAX;
        for (uint32_t i = records_n; i-- > 0 && records[i].position >= 2 * LOG_BYTES;)
            if (records[i].row == row) first = records[i].offset;
        CHECK(wr_dispatch_look(d, row).minimum == first && wr_dispatch_look(d, row).next == offsets[row]);
    }
    wr_dispatch_free(d);
    scratch_empty();
}

static void thousands_of_queues_are_not_touched(void) {
    enum { MANY = 1000 };
    wr_dispatch_place place = {.root = scratch_fd, .log_file_bytes = LOG_BYTES, .consume_queue_entries = WR_CONSUME_QUEUE_ENTRIES,
                               .index_slots = WR_INDEX_SLOTS, .index_entries = WR_INDEX_ENTRIES};
    wr_checkpoint_kind kind;
    unsigned before = descriptors();
    const wr_commit_head head = {.number = 1};
    for (int life = 0; life < 2; life++) {
        wr_dispatch *d = wr_dispatch_new(&place);
        for (uint32_t i = 0; i < MANY; i++) {
            char name[20];
            const wr_dispatch_topic topic = {.id = i + 1, .queues_n = 4, .name = name, .name_n = (uint32_t)snprintf(name, sizeof name, "t%u", i)};
            const uint32_t row[4] = {4 * i, 4 * i + 1, 4 * i + 2, 4 * i + 3};
            CHECK(wr_dispatch_add(d, &topic, row) == 0);
        }
        CHECK(wr_dispatch_begin(d, &kind) == 0 && kind == (life ? WR_CHECKPOINT_GOOD : WR_CHECKPOINT_NONE));
        CHECK(descriptors() == before && (life || faccessat(scratch_fd, "consumequeue", F_OK, 0) != 0));
        for (uint32_t i = 0; !life && i < 4 * MANY; i += 1001) {
            const wr_dispatch_record r = {.topic = i / 4 + 1, .row = i, .size = 100, .position = 100ull * i};
            CHECK(put_commit(d, &r, 1, &head, NULL, 100ull * i + 200) == 0);
        }
        CHECK(descriptors() == before && wr_dispatch_look(d, 1001).next == 1 && wr_dispatch_look(d, 1002).next == 0);
        CHECK(wr_dispatch_checkpoint(d, UINT64_MAX) == 0);
        wr_folder_list list;
        CHECK(wr_folder_read(scratch_fd, "consumequeue/t250/1", WR_FOLDER_NAME_MAX, &list) == 0 && list.n == 1);
        wr_folder_list_free(&list);
        CHECK(faccessat(scratch_fd, "consumequeue/t250/2", F_OK, 0) != 0 && faccessat(scratch_fd, "index", F_OK, 0) != 0);
        wr_dispatch_free(d);
    }
    scratch_empty();
}

/* So many at a time that the file system is synced as a whole. */
static void many_queues_are_synced_at_once(void) {
    enum { MANY = 40 };
    wr_dispatch_place place = {.root = scratch_fd, .log_file_bytes = LOG_BYTES, .consume_queue_entries = 3, .index_slots = 3, .index_entries = 9};
    const wr_dispatch_topic topic = {.id = 1, .queues_n = MANY, .name = "t", .name_n = 1};
    wr_commit_head head = {0};
    wr_checkpoint_kind kind;
    uint32_t row[MANY], found;
    uint64_t position = 0;
    for (uint32_t i = 0; i < MANY; i++) row[i] = i;
    for (uint64_t life = 0; life < 3; life++) {
        wr_dispatch *d = wr_dispatch_new(&place);
        CHECK(d && wr_dispatch_add(d, &topic, row) == 0 && wr_dispatch_begin(d, &kind) == 0);
        for (uint64_t offset = 10 * life; offset < 10 * life + 10; offset++)
            for (uint32_t i = 0; i < MANY; i++) {
                const wr_dispatch_record r = {.topic = 1, .row = i, .size = 100, .position = position, .queue_offset = offset};
                head.number++;
                CHECK(wr_dispatch_look(d, i).next == offset && put_commit(d, &r, 1, &head, NULL, position += 100) == 0);
            }
        CHECK(wr_dispatch_look(d, 39).durable == 10 * life && wr_dispatch_checkpoint(d, position) == 0);
        for (uint32_t i = 0; i < MANY; i++) CHECK(wr_dispatch_look(d, i).durable == 10 * life + 10);
        wr_dispatch_free(d);
    }
    wr_queue_reader *reader = wr_queue_reader_new(scratch_fd, "consumequeue/t/39", 3);
    wr_unit units[31];
    CHECK(reader && wr_queue_reader_get(reader, 0, units, 31, &found) == 0 && found == 30);
    for (uint64_t i = 0; i < 30; i++) CHECK(units[i].physical_offset == 100 * (MANY * i + 39));
    wr_queue_reader_free(reader);
    scratch_empty();
}

int main(int argc, char **argv) {
    scratch_begin("dispatch_test", argc, argv);
    shown = mmap(NULL, ROWS * sizeof *shown, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(shown != MAP_FAILED);
    what_is_not_for_readers_is_counted();
    gaps_and_other_topics();
    a_topic_is_dropped_and_made_again();
    replaying_changes_nothing();
    a_log_without_its_beginning();
    a_damaged_index_is_made_again();
    thousands_of_queues_are_not_touched();
    many_queues_are_synced_at_once();
    for (int i = 0; i < 4; i++) lives(i % 2);
    killed_at_any_instruction();
    a_full_disk_is_an_error_that_passes();
    without_memory();
    scratch_end();
    return 0;
}
