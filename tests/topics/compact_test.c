/* Goal: a file of newest records gives what was put into it, byte for byte, by offset, position, time and key, and nothing else, whatever is done to it;
 * a pass leaves of each key its newest record, of tombstones those whose time has not come, and all that nothing takes away; it ends before
 * what is not synced, and by each failure of a read, a write, a sync or an allocation, without a wrong file.
 * Method: the real log, dispatch and reader (topic_rig.h); what should be in the file is a list, made from the rig's model. Prints its seed. */
#define _GNU_SOURCE
#include "support/scarce.h"
#include "topic_rig.h"
#include "topics/compact.h"
#include "topics/compacted_check.h"
#include "topics/hash.h"
#include "topics/key_digest.h"
#include "topics/lookup.h"
#include "topics/newest.h"
#include "topics/read.h"
#include "topics/seek.h"

#define FILE_BYTES (64 * 4096u)
#define RING_BYTES (64 * 4096u)
#define TOPIC 0u
#define QUEUE 1u
#define ROW (TOPIC * RIG_QUEUES + QUEUE)
#define TOMBSTONE_MS 1000u
#define KEPT_MAX 20000u

static const uint8_t node[16] = "node of the test";

static void digests_are_siphash(void) {
    static const struct {
        uint32_t n;
        uint8_t wanted[16];
    } vectors[] = {{0, {0xa3, 0x81, 0x7f, 0x04, 0xba, 0x25, 0xa8, 0xe6, 0x6d, 0xf6, 0x72, 0x14, 0xc7, 0x55, 0x02, 0x93}},
                   {1, {0xda, 0x87, 0xc1, 0xd8, 0x6b, 0x99, 0xaf, 0x44, 0x34, 0x76, 0x59, 0x11, 0x9b, 0x22, 0xfc, 0x45}}};
    uint8_t bytes[16];
    uint64_t secret[2];
    for (uint8_t i = 0; i < 16; i++) bytes[i] = i;
    memcpy(secret, bytes, 16);
    for (int i = 0; i < 2; i++) {
        const wr_digest digest = wr_key_digest(secret, bytes, vectors[i].n);
        CHECK(!memcmp(&digest, vectors[i].wanted, 16));
    }
    for (uint32_t n = 0; n < 16; n++) { /* each byte counts, and so does the length */
        const wr_digest digest = wr_key_digest(secret, bytes, n), longer = wr_key_digest(secret, bytes, n + 1);
        CHECK(digest.a != longer.a && digest.b != longer.b);
        for (uint32_t i = 0; i < n; i++) {
            bytes[i] ^= 0x80;
            const wr_digest other = wr_key_digest(secret, bytes, n);
            bytes[i] ^= 0x80;
            CHECK(digest.a != other.a && digest.b != other.b);
        }
    }
}

/* ---- the model ---- */

typedef struct {
    uint32_t record; /* of the rig */
    uint64_t since;
} kept_record;

typedef struct {
    kept_record all[KEPT_MAX];
    uint32_t n;
    uint64_t end;
} kept;

static uint32_t key_of(const rig_record *r) { return r->keys >> 1; } /* 0: KEYS is empty */

static void keep(kept *to, uint32_t record, uint64_t since) {
    CHECK(to->n < KEPT_MAX);
    to->all[to->n++] = (kept_record){record, since};
}

/* What a pass leaves of `old` and of the queue's records up to `end`. */
static void model_pass(const rig *g, const kept *old, uint64_t end, uint64_t now, kept *to) {
    static uint32_t newest[1 << RIG_KEYS]; /* of each key: place in the rig, plus 1 */
    memset(newest, 0, sizeof newest);
    *to = (kept){.end = end};
    for (uint32_t i = 0; i < g->n; i++)
        if (g->records[i].row == ROW && g->records[i].offset >= old->end && g->records[i].offset < end) newest[key_of(&g->records[i])] = i + 1;
    for (uint32_t i = 0; i < old->n; i++) {
        const rig_record *r = &g->records[old->all[i].record];
        const uint64_t since = old->all[i].since;
        if (key_of(r) && newest[key_of(r)]) continue;
        if (!r->body_n && since && now >= since + TOMBSTONE_MS) continue;
        keep(to, old->all[i].record, r->body_n ? 0 : since ? since : now);
    }
    for (uint32_t i = 0; i < g->n; i++) {
        const rig_record *r = &g->records[i];
        if (r->row != ROW || r->offset < old->end || r->offset >= end) continue;
        if (!key_of(r) || newest[key_of(r)] == i + 1) keep(to, i, 0);
    }
}

/* Records of one queue with keys, one of `keyless` without, and tombstones; some of other queues between them. */
static void fill(rig *g, uint32_t n, uint32_t body_max, uint32_t keyless) {
    for (uint32_t i = 0; i < n; i++) {
        rig_record r = rig_any(g, random_below(4) ? ROW : RIG_ROWS, body_max);
        r.keys = random_below(keyless) ? (uint32_t)(1 + random_below(40)) << 1 | (uint32_t)random_below(2) : random_below(8) != 0;
        if (!random_below(5)) r.body_n = 0;
        rig_append(g, r);
        if (!random_below(20)) rig_commit(g, !random_below(4));
    }
    rig_commit(g, true);
}

/* ---- a pass ---- */

static wr_topic_reader *reader_of(const rig *g, bool ring) {
    const wr_topic_place place = {.root = scratch_fd, .log_file_bytes = g->file_bytes, .ring_bytes = g->ring_bytes,
                                  .consume_queue_entries = g->entries, .index_slots = g->slots, .index_entries = g->index_entries};
    wr_topic_reader *r = wr_topic_reader_new(&place, g->ids[TOPIC], rig_names[TOPIC], (uint32_t)strlen(rig_names[TOPIC]));
    CHECK(r);
    wr_topic_reader_begin(r, ring ? g->ring : NULL, g->rows);
    return r;
}

static int new_file(void) {
    const int fd = openat(scratch_fd, "newest", O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    CHECK(fd >= 0 && unlinkat(scratch_fd, "newest", 0) == 0);
    return fd;
}

static wr_compacted *opened(int fd) {
    wr_compacted *file = NULL;
    const char *wrong;
    int error;
    CHECK(wr_compacted_open(&file, fd, node, 10 + TOPIC, QUEUE, &wrong, &error) == WR_COMPACTED_FOUND && file && !wrong && !error);
    return file;
}

static wr_compact_job job_of(const rig *g, wr_topic_reader *reader, wr_compacted *old, uint64_t now) {
    wr_compact_job job = {.reader = reader, .queue = QUEUE, .old = old, .from = old ? old->id.end : 0, .end = g->next[ROW], .synced = UINT64_MAX,
                          .keys_max = 1000, .now = now, .tombstone_ms = TOMBSTONE_MS, .fd = new_file(), .io = &wr_commit_io_system};
    memcpy(job.node, node, 16);
    return job;
}

/* ---- what a file says ---- */

static bool is_kept(const rig *g, const kept *k, uint32_t i, const wr_record *record, const uint8_t *bytes) {
    return rig_same(&g->records[k->all[i].record], record, bytes);
}

static uint64_t value_of(const rig *g, const kept *k, uint32_t i, wr_compacted_order order) {
    const rig_record *r = &g->records[k->all[i].record];
    return order == WR_COMPACTED_OFFSET ? r->offset : order == WR_COMPACTED_POSITION ? r->position : (uint64_t)r->ms;
}

static void all_in_order(const rig *g, const kept *k, wr_compacted *file) {
    wr_record record;
    const uint8_t *bytes;
    int error = 0;
    uint64_t at = 0;
    for (uint32_t i = 0; i < k->n; i++, at = record.queue_offset + 1) {
        CHECK(wr_compacted_from(file, WR_COMPACTED_OFFSET, at, &record, &bytes, &error) == WR_COMPACTED_FOUND && is_kept(g, k, i, &record, bytes));
        CHECK(wr_compacted_since(file, record.queue_offset) == k->all[i].since);
    }
    CHECK(wr_compacted_from(file, WR_COMPACTED_OFFSET, at, &record, &bytes, &error) == WR_COMPACTED_NONE);
    CHECK(file->records_n == k->n && file->id.end == k->end);
    uint64_t oldest = UINT64_MAX;
    for (uint32_t i = 0; i < k->n; i++)
        if (k->all[i].since && k->all[i].since < oldest) oldest = k->all[i].since;
    CHECK(wr_compacted_oldest_tombstone(file) == oldest);
}

static void any_by_order(const rig *g, const kept *k, wr_compacted *file, wr_compacted_order order, uint32_t n) {
    wr_record record;
    const uint8_t *bytes;
    int error = 0;
    for (; n; n--) {
        uint64_t value = k->n ? value_of(g, k, (uint32_t)random_below(k->n), order) : 0;
        value += random_below(3) - 1;
        if (!random_below(20)) value = random_below(2) ? 0 : UINT64_MAX;
        uint32_t first = 0;
        while (first < k->n && value_of(g, k, first, order) < value) first++;
        const wr_compacted_code code = wr_compacted_from(file, order, value, &record, &bytes, &error);
        CHECK(code == (first < k->n ? WR_COMPACTED_FOUND : WR_COMPACTED_NONE));
        CHECK(first == k->n || is_kept(g, k, first, &record, bytes));
    }
}

static void last_before(const rig *g, const kept *k, wr_compacted *file, wr_compacted_order order) {
    wr_record record;
    const uint8_t *bytes;
    int error = 0;
    const uint64_t value = (k->n ? value_of(g, k, (uint32_t)random_below(k->n), order) : 5) + random_below(3) - 1;
    uint32_t behind = k->n;
    while (behind && value_of(g, k, behind - 1, order) >= value) behind--;
    const wr_compacted_code code = wr_compacted_before(file, order, value, &record, &bytes, &error);
    CHECK(code == (behind ? WR_COMPACTED_FOUND : WR_COMPACTED_NONE) && (!behind || is_kept(g, k, behind - 1, &record, bytes)));
}

static uint32_t hash_of(uint32_t key) {
    const uint32_t topic = wr_key_hash_topic(rig_names[TOPIC], strlen(rig_names[TOPIC]));
    return wr_key_hash(topic, rig_keys[key], strlen(rig_keys[key]));
}

/* Of the records below an offset, the last one with a key of this one's hash: its place, plus 1; 0: there is none. */
static uint32_t last_of(const rig *g, const kept *k, uint32_t key, uint64_t below) {
    for (uint32_t i = k->n; i-- > 0;) {
        const rig_record *r = &g->records[k->all[i].record];
        for (uint32_t other = 0; other < RIG_KEYS && r->offset < below; other++)
            if ((r->keys >> other & 1) && hash_of(other) == hash_of(key)) return i + 1;
    }
    return 0;
}

static void by_keys(const rig *g, const kept *k, wr_compacted *file) {
    int error = 0;
    CHECK(wr_compacted_check_keys(file, &error) == WR_COMPACTED_FOUND);
    for (uint32_t key = 0; key < RIG_KEYS; key++) { /* two of them have one hash */
        uint64_t below = UINT64_MAX, offset;
        for (uint32_t i; (i = last_of(g, k, key, below)); below = offset)
            CHECK(wr_compacted_find(file, hash_of(key), below, &offset, &error) == WR_COMPACTED_FOUND && offset == value_of(g, k, i - 1, WR_COMPACTED_OFFSET));
        CHECK(wr_compacted_find(file, hash_of(key), below, &offset, &error) == WR_COMPACTED_NONE);
    }
    uint64_t offset;
    CHECK(wr_compacted_find(file, 12345, UINT64_MAX, &offset, &error) == WR_COMPACTED_NONE);
}

static void says(const rig *g, const kept *k, wr_compacted *file) {
    all_in_order(g, k, file);
    any_by_order(g, k, file, WR_COMPACTED_OFFSET, 200);
    any_by_order(g, k, file, WR_COMPACTED_POSITION, 200);
    any_by_order(g, k, file, WR_COMPACTED_TIME, 200);
    for (int i = 0; i < 100; i++) last_before(g, k, file, (wr_compacted_order)random_below(3));
    by_keys(g, k, file);
}

/* ---- passes, one after the other ---- */

static void passes_leave_the_newest(uint32_t body_max, bool ring) {
    static kept before, after;
    rig g;
    rig_begin(&g, FILE_BYTES, RING_BYTES, 100);
    wr_topic_reader *reader = reader_of(&g, ring);
    wr_compacted *file = NULL;
    uint64_t now = 5000000, gone = 0, tombstones = 0;
    before = (kept){.n = 0};
    for (int pass = 0; pass < ROUNDS(12) || (pass < 100 && (gone <= ROUNDS(100) || tombstones <= ROUNDS(10))); pass++) {
        if (pass % 4 != 3) fill(&g, (uint32_t)random_below(400), body_max, 20);
        now += random_below(2 * TOMBSTONE_MS);
        wr_compact_job job = job_of(&g, reader, file, now);
        wr_compact_result result;
        if (!random_below(3)) job.bytes_per_s = 1u << 30;
        if (job.end > job.from && !random_below(3)) job.end -= random_below(job.end - job.from);
        model_pass(&g, &before, job.end, now, &after);
        CHECK(wr_compact(&job, &result) == 0 && result.end == job.end && result.records_n == after.n && !*result.wrong);
        struct stat status;
        CHECK(fstat(job.fd, &status) == 0 && (uint64_t)status.st_size == result.size);
        wr_compacted_close(file);
        file = opened(job.fd);
        says(&g, &after, file);
        before = after;
        gone += result.gone_n;
        tombstones += file->tombstones_n;
    }
    CHECK(gone > ROUNDS(100) && tombstones > ROUNDS(10));
    wr_compacted_close(file);
    wr_topic_reader_free(reader);
    rig_end(&g);
}

/* A record that does not end below what is synced, or whose key is the one too many, and all behind it stay in the log alone. */
static void passes_end_where_they_must(void) {
    static kept none, wanted;
    rig g;
    rig_begin(&g, FILE_BYTES, RING_BYTES, 100);
    fill(&g, 500, 300, 20);
    wr_topic_reader *reader = reader_of(&g, true);
    for (int i = 0; i < 40; i++) {
        wr_compact_job job = job_of(&g, reader, NULL, 1);
        wr_compact_result result;
        uint32_t keys = 0, seen[1 << RIG_KEYS] = {0};
        uint64_t end = job.end;
        if (i % 2) job.keys_max = random_below(30);
        else job.synced = g.records[random_below(g.n)].position + random_below(2);
        for (uint32_t r = g.n; r-- > 0;)
            if (g.records[r].row == ROW && g.records[r].position + g.records[r].size > job.synced) end = g.records[r].offset;
        for (uint32_t r = 0; r < g.n && i % 2; r++) {
            if (g.records[r].row != ROW || !key_of(&g.records[r]) || seen[key_of(&g.records[r])]++) continue;
            if (keys++ == job.keys_max) {
                end = g.records[r].offset;
                break;
            }
        }
        none = (kept){.n = 0};
        model_pass(&g, &none, end, 1, &wanted);
        CHECK(wr_compact(&job, &result) == 0 && result.end == end);
        wr_compacted *file = opened(job.fd);
        says(&g, &wanted, file);
        wr_compacted_close(file);
    }
    wr_topic_reader_free(reader);
    rig_end(&g);
}

/* ---- what goes wrong ---- */

static struct {
    int64_t calls; /* until one fails; negative: none does */
    int error;
    bool cuts;     /* writes are short */
    bool synced;   /* nothing was written behind the last sync */
} disk;

static bool call_fails(void) { return disk.calls >= 0 && disk.calls-- == 0; }

static ssize_t bad_pwrite(void *context, int fd, const void *from, size_t n, off_t at) {
    (void)context;
    disk.synced = false;
    if (call_fails()) {
        errno = disk.error;
        return -1;
    }
    if (disk.cuts && n > 1) n = 1 + random_below(n - 1);
    return pwrite(fd, from, n, at);
}

static int bad_sync(void *context, int fd) {
    (void)context;
    (void)fd;
    disk.synced = true;
    if (!call_fails()) return 0;
    errno = disk.error;
    return -1;
}

static const wr_commit_io bad_io = {bad_pwrite, bad_sync};

static void failures_end_a_pass(void) {
    static kept none, wanted;
    static const int errors[] = {EIO, ENOSPC, EDQUOT};
    rig g;
    rig_begin(&g, FILE_BYTES, RING_BYTES, 100);
    fill(&g, 600, 2000, 20);
    wr_topic_reader *reader = reader_of(&g, true);
    wr_compact_result result;
    model_pass(&g, &none, g.next[ROW], 1, &wanted);
    bool done = false;
    for (int64_t n = 0; !done; n++) { /* each write, and the sync */
        CHECK(n < 1000);
        wr_compact_job job = job_of(&g, reader, NULL, 1);
        job.io = &bad_io;
        disk.calls = n;
        disk.error = errors[n % 3];
        const int error = wr_compact(&job, &result);
        done = disk.calls >= 0;
        CHECK(error == (done ? 0 : disk.error) && (!done || disk.synced));
        close(job.fd);
    }
    for (int i = 0; i < 3; i++) { /* a signal, and short writes, are no failure */
        wr_compact_job job = job_of(&g, reader, NULL, 1);
        job.io = &bad_io;
        disk.calls = (int64_t)random_below(5);
        disk.error = EINTR;
        disk.cuts = true;
        CHECK(wr_compact(&job, &result) == 0);
        wr_compacted *file = opened(job.fd);
        says(&g, &wanted, file);
        wr_compacted_close(file);
    }
    done = false;
    for (uint64_t n = 0; !done; n++) { /* each allocation */
        CHECK(n < 1000);
        wr_compact_job job = job_of(&g, reader, NULL, 1);
        scarce_begin(n);
        int error = wr_compact(&job, &result);
        done = !scarce_end();
        CHECK(error == (done ? 0 : ENOMEM));
        close(job.fd);
    }
    wr_compact_job job = job_of(&g, reader, NULL, 1);
    const _Atomic bool stop = true;
    job.stop = &stop;
    CHECK(wr_compact(&job, &result) == ECANCELED);
    job.stop = NULL;
    job.end++; /* more than there is */
    CHECK(wr_compact(&job, &result) == ESTALE);
    job.end--;
    CHECK(wr_compact(&job, &result) == 0);
    wr_compacted *file = opened(job.fd);
    job = job_of(&g, reader, file, 1);
    job.from--;
    CHECK(wr_compact(&job, &result) == EINVAL);
    close(job.fd);
    wr_compacted_close(file);
    wr_topic_reader_free(reader);
    rig_end(&g);
}

static void copy_to(int fd, uint64_t size, int to) {
    static uint8_t bytes[4 << 20];
    CHECK(size <= sizeof bytes && pread(fd, bytes, size, 0) == (ssize_t)size && pwrite(to, bytes, size, 0) == (ssize_t)size);
}

/* Copies a file, changed by the caller later. */
static int copy_of(int fd, uint64_t size) {
    const int copy = new_file();
    copy_to(fd, size, copy);
    return copy;
}

/* What a look at all of a file said. */
typedef struct {
    uint32_t wrongs, unreadable;
    uint64_t next; /* offset: nothing below was said twice */
} heard;

static int hear(void *context, const wr_compacted_wrong *wrong) {
    heard *h = context;
    CHECK(wrong->reason && wrong->first <= wrong->next && (wrong->first == wrong->next || wrong->first >= h->next));
    if (wrong->first < wrong->next) h->next = wrong->next;
    h->wrongs++;
    h->unreadable += !strcmp(wrong->reason, "the disk does not give it");
    return 0;
}

static int no_progress(void *context) {
    (void)context;
    return 0;
}

/* A look at all of a file, whose sound records get into another one. How many they are. */
static uint64_t checked(wr_compacted *file, heard *h, int *to) {
    wr_compacted_writer writer;
    wr_compacted_check check = {.file = file, .name = rig_names[TOPIC], .name_n = (uint32_t)strlen(rig_names[TOPIC]), .writer = &writer, .wrong = hear,
                                .progress = no_progress, .context = h};
    uint64_t size, records_n;
    *h = (heard){0};
    *to = new_file();
    wr_compacted_begin(&writer, *to, &file->id, wr_key_hash_topic(check.name, check.name_n), &wr_commit_io_system, NULL);
    CHECK(wr_compacted_check_all(&check, &records_n) == 0 && wr_compacted_finish(&writer, &size) == 0);
    wr_compacted_end(&writer);
    return records_n;
}

/* What a look keeps of a file is what a reader gets of it; it says damage as `said` has it, and of what it kept it says none. */
static void a_look_keeps_the_rest(wr_compacted *file, bool said) {
    heard h;
    int to, again, error = 0;
    const uint64_t records_n = checked(file, &h, &to);
    CHECK((h.wrongs != 0) == said && !h.unreadable);
    wr_compacted *rest = opened(to);
    wr_record record, of_rest;
    const uint8_t *bytes, *bytes_of_rest;
    uint64_t n = 0;
    for (uint64_t at = 0;;) {
        const wr_compacted_code code = wr_compacted_from(file, WR_COMPACTED_OFFSET, at, &record, &bytes, &error);
        if (code == WR_COMPACTED_NONE) break;
        if (code == WR_COMPACTED_DAMAGED) {
            at = file->wrong_next;
            continue;
        }
        CHECK(code == WR_COMPACTED_FOUND && wr_compacted_from(rest, WR_COMPACTED_OFFSET, n ? at : 0, &of_rest, &bytes_of_rest, &error) == code);
        CHECK(record.size == of_rest.size && !memcmp(bytes, bytes_of_rest, record.size));
        CHECK(wr_compacted_since(rest, record.queue_offset) == wr_compacted_since(file, record.queue_offset));
        at = record.queue_offset + 1;
        n++;
    }
    CHECK(n == records_n && rest->records_n == n && rest->id.end == file->id.end);
    CHECK(checked(rest, &h, &again) == n && !h.wrongs);
    wr_compacted_close(rest);
    close(again);
}

/* Whatever is read of a file is what was put into it. Whether damage was said. */
static bool says_nothing_else(const rig *g, const kept *k, int fd) {
    wr_compacted *file = NULL;
    const char *wrong;
    int error = 0;
    wr_record record;
    const uint8_t *bytes;
    const wr_compacted_code code = wr_compacted_open(&file, fd, node, 10 + TOPIC, QUEUE, &wrong, &error);
    if (code != WR_COMPACTED_FOUND) {
        CHECK(code == WR_COMPACTED_DAMAGED && wrong);
        close(fd);
        return true;
    }
    bool said = false;
    uint32_t i = 0;
    for (uint64_t at = 0;;) {
        const wr_compacted_code it = wr_compacted_from(file, WR_COMPACTED_OFFSET, at, &record, &bytes, &error);
        if (it == WR_COMPACTED_NONE) break;
        CHECK(it != WR_COMPACTED_ERROR);
        if (it == WR_COMPACTED_DAMAGED) {
            CHECK(file->wrong && file->wrong_next > at && file->wrong_next <= k->end);
            said = true;
            at = file->wrong_next;
            while (i < k->n && value_of(g, k, i, WR_COMPACTED_OFFSET) < at) i++;
            continue;
        }
        CHECK(i < k->n && is_kept(g, k, i, &record, bytes)); /* what lies behind damage is all there */
        i++;
        at = record.queue_offset + 1;
    }
    CHECK(i == k->n);
    said |= wr_compacted_check_keys(file, &error) == WR_COMPACTED_DAMAGED;
    a_look_keeps_the_rest(file, said);
    for (uint32_t key = 0; key < RIG_KEYS; key++) {
        uint64_t offset;
        const uint32_t last = last_of(g, k, key, UINT64_MAX);
        const wr_compacted_code it = wr_compacted_find(file, hash_of(key), UINT64_MAX, &offset, &error);
        CHECK(it == WR_COMPACTED_DAMAGED || (last ? it == WR_COMPACTED_FOUND && offset == value_of(g, k, last - 1, WR_COMPACTED_OFFSET) : it == WR_COMPACTED_NONE));
    }
    wr_compacted_close(file);
    return said;
}

/* Parts that the disk does not give: each is said, and the look goes on. */
static void a_look_at_a_bad_disk(int fd) {
    heard h;
    int to, bad = open("/proc/self/mem", O_RDONLY | O_CLOEXEC); /* nothing lies at low addresses: EIO */
    uint8_t byte;
    CHECK(bad >= 0 && pread(bad, &byte, 1, 200) == -1 && errno == EIO);
    wr_compacted *file = opened(fd);
    file->fd = bad;
    CHECK(checked(file, &h, &to) == 0 && h.unreadable == file->blocks_n + 1 && h.wrongs == h.unreadable && h.next == file->id.end);
    close(to);
    close(fd);
    wr_compacted_close(file);
}

static void damage_is_said(void) {
    static kept none, wanted;
    rig g;
    rig_begin(&g, FILE_BYTES, RING_BYTES, 100);
    fill(&g, 3000, 700, 2);
    wr_topic_reader *reader = reader_of(&g, true);
    wr_compact_job job = job_of(&g, reader, NULL, 1);
    wr_compact_result result;
    model_pass(&g, &none, g.next[ROW], 1, &wanted);
    CHECK(wr_compact(&job, &result) == 0);
    const uint64_t size = result.size;
    CHECK(!says_nothing_else(&g, &wanted, copy_of(job.fd, size)));
    a_look_at_a_bad_disk(copy_of(job.fd, size));
    for (int i = 0; i < ROUNDS(1000); i++) { /* one bit; the head and the tables more often */
        const int copy = copy_of(job.fd, size);
        const uint64_t part = random_below(3), at = part == 0 ? random_below(200) : part == 1 ? size - 1 - random_below(3000) : random_below(size);
        uint8_t byte;
        CHECK(pread(copy, &byte, 1, (off_t)at) == 1);
        byte ^= (uint8_t)(1u << random_below(8));
        CHECK(pwrite(copy, &byte, 1, (off_t)at) == 1 && says_nothing_else(&g, &wanted, copy));
    }
    for (int i = 0; i < ROUNDS(300); i++) { /* it is cut; or longer, which nothing reads */
        const int copy = copy_of(job.fd, size);
        uint64_t to = random_below(3) ? random_below(size) : random_below(300);
        if (!random_below(10)) to = size + 1 + random_below(5000);
        CHECK(ftruncate(copy, (off_t)to) == 0 && says_nothing_else(&g, &wanted, copy) == (to < size));
    }
    for (int i = 0; i < ROUNDS(300); i++) { /* a page of zeros, or of another place */
        const int copy = copy_of(job.fd, size);
        uint8_t page[4096] = {0}, was[4096];
        const uint64_t at = random_below(size / 4096) * 4096;
        CHECK(pread(copy, was, 4096, (off_t)at) == 4096);
        if (random_below(2)) CHECK(pread(copy, page, 4096, (off_t)(random_below(size / 4096) * 4096)) == 4096);
        CHECK(pwrite(copy, page, 4096, (off_t)at) == 4096);
        CHECK(says_nothing_else(&g, &wanted, copy) || !memcmp(page, was, 4096));
    }
    wr_compacted *whole = opened(copy_of(job.fd, size));
    const uint64_t pages = whole->keys_n / WR_KEYS_PAGE_N, keys_at = whole->keys_at;
    wr_compacted_close(whole);
    CHECK(pages > 2);
    for (uint64_t i = 1; i < pages; i++) { /* two pages of keys, one in the other's place */
        const int copy = copy_of(job.fd, size);
        uint8_t page[4096];
        CHECK(pread(copy, page, 4096, (off_t)(keys_at + i * 4096)) == 4096 && pwrite(copy, page, 4096, (off_t)(keys_at + (i - 1) * 4096)) == 4096);
        CHECK(says_nothing_else(&g, &wanted, copy));
    }
    /* another one of this queue, of the same size: its blocks and its pages are not this one's */
    wr_compact_job again = job_of(&g, reader, NULL, 2);
    CHECK(wr_compact(&again, &result) == 0 && result.size == size);
    for (int i = 0; i < 100; i++) {
        static uint8_t bytes[70000];
        const int copy = copy_of(job.fd, size);
        const uint64_t at = WR_COMPACTED_SIZE + random_below(size - WR_COMPACTED_SIZE - sizeof bytes);
        CHECK(pread(again.fd, bytes, sizeof bytes, (off_t)at) == (ssize_t)sizeof bytes && pwrite(copy, bytes, sizeof bytes, (off_t)at) == (ssize_t)sizeof bytes);
        CHECK(says_nothing_else(&g, &wanted, copy));
    }
    close(again.fd);
    /* whose it is */
    wr_compacted *file = NULL;
    const char *wrong;
    int error;
    CHECK(wr_compacted_open(&file, job.fd, (const uint8_t *)"another node    ", 10 + TOPIC, QUEUE, &wrong, &error) == WR_COMPACTED_DAMAGED && wrong);
    CHECK(wr_compacted_open(&file, job.fd, node, 11 + TOPIC, QUEUE, &wrong, &error) == WR_COMPACTED_DAMAGED && wrong);
    CHECK(wr_compacted_open(&file, job.fd, node, 10 + TOPIC, QUEUE + 1, &wrong, &error) == WR_COMPACTED_DAMAGED && wrong && !file);
    close(job.fd);
    wr_topic_reader_free(reader);
    rig_end(&g);
}

/* A pass that meets damage leaves nothing out: it ends. */
static void passes_end_at_damage(void) {
    rig g;
    rig_begin(&g, FILE_BYTES, RING_BYTES, 100);
    fill(&g, 300, 2000, 20);
    wr_topic_reader *reader = reader_of(&g, false);
    wr_compact_job job = job_of(&g, reader, NULL, 1);
    wr_compact_result result;
    CHECK(wr_compact(&job, &result) == 0);
    const int broken = copy_of(job.fd, result.size);
    uint8_t byte;
    CHECK(pread(broken, &byte, 1, WR_COMPACTED_SIZE + 100) == 1);
    byte ^= 4;
    CHECK(pwrite(broken, &byte, 1, WR_COMPACTED_SIZE + 100) == 1);
    wr_compacted *file = opened(broken);
    fill(&g, 50, 100, 20);
    wr_compact_job next = job_of(&g, reader, file, 2);
    CHECK(wr_compact(&next, &result) == EUCLEAN && strstr(result.wrong, "checksum"));
    close(next.fd);
    wr_compacted_close(file);
    file = opened(job.fd);
    const rig_record *r = NULL;
    while (!r || r->row != ROW || r->offset < file->id.end || !r->body_n) r = &g.records[random_below(g.n)];
    const int log = rig_open(NULL, r->position / FILE_BYTES * FILE_BYTES);
    const off_t last = (off_t)(r->position % FILE_BYTES + WR_LOG_HEAD_SIZE + WR_HOST_V4_SIZE + WR_LOG_STORED_SIZE + WR_HOST_V4_SIZE + WR_LOG_TAIL_SIZE);
    CHECK(log >= 0 && pread(log, &byte, 1, last) == 1);
    byte ^= 1;
    CHECK(pwrite(log, &byte, 1, last) == 1);
    wr_topic_reader_free(reader); /* it has read that already */
    reader = reader_of(&g, false);
    next = job_of(&g, reader, file, 2);
    CHECK(wr_compact(&next, &result) == EUCLEAN && strstr(result.wrong, "commitlog"));
    close(next.fd);
    close(log);
    wr_compacted_close(file);
    wr_topic_reader_free(reader);
    rig_end(&g);
}

/* ---- readers of the topic ---- */

static void name_it(int fd, uint64_t size, const char *name) {
    if (mkdirat(scratch_fd, "compacted", 0700) == 0) CHECK(mkdirat(scratch_fd, "compacted/10", 0700) == 0);
    const int file = openat(scratch_fd, "compacted/10/new", O_WRONLY | O_CREAT | O_TRUNC, 0600);
    CHECK(file >= 0);
    copy_to(fd, size, file);
    close(file);
    CHECK(renameat(scratch_fd, "compacted/10/new", scratch_fd, name) == 0);
}

/* A pass, whose file gets its name, before the minimum rises. */
static void compact(rig *g, wr_topic_reader *reader, kept *all, uint64_t now, uint64_t to) {
    static kept before;
    wr_compacted *old = NULL;
    if (all->end) {
        const int fd = openat(scratch_fd, "compacted/10/1", O_RDONLY);
        CHECK(fd >= 0);
        old = opened(fd);
    }
    wr_compact_job job = job_of(g, reader, old, now);
    wr_compact_result result;
    job.end = to;
    before = *all;
    model_pass(g, &before, to, now, all);
    CHECK(wr_compact(&job, &result) == 0 && result.end == to);
    name_it(job.fd, result.size, "compacted/10/1");
    close(job.fd);
    wr_compacted_close(old);
}

static bool is_tagged(const rig_record *r, const wr_text *tags, uint32_t n) {
    for (uint32_t i = 0; i < n && r->tag != RIG_NO_TAG; i++)
        if (strlen(rig_tags[r->tag]) == tags[i].n && !memcmp(rig_tags[r->tag], tags[i].at, tags[i].n)) return true;
    return !n;
}

/* What a reader may see from an offset on: of the file below the minimum, of the log behind it. The first one's place in the rig, plus 1. */
static uint32_t first_visible(const rig *g, const kept *k, uint64_t minimum, uint64_t offset, const wr_text *tags, uint32_t tags_n) {
    for (uint32_t i = 0; i < k->n; i++) {
        const rig_record *r = &g->records[k->all[i].record];
        if (r->offset >= offset && r->offset < minimum && is_tagged(r, tags, tags_n)) return k->all[i].record + 1;
    }
    for (uint32_t i = 0; i < g->n; i++) {
        const rig_record *r = &g->records[i];
        if (r->row == ROW && r->offset >= minimum && r->offset >= offset && is_tagged(r, tags, tags_n)) return i + 1;
    }
    return 0;
}

/* All from an offset on, in reads of any size, meets what is visible in order. */
static void reads_all(const rig *g, const kept *k, uint64_t minimum, wr_topic_reader *r, uint64_t offset, bool again) {
    static wr_topic_read read;
    const wr_text all[] = {{(const uint8_t *)"Aa", 2}, {(const uint8_t *)"late", 4}};
    const uint32_t tags_n = random_below(3) ? 0 : 1 + (uint32_t)random_below(2);
    for (uint64_t at = offset; at < g->next[ROW];) {
        const wr_topic_request request = {.queue = QUEUE, .offset = at, .end = random_below(3) ? UINT64_MAX : at + 1 + random_below(50),
                                          .records_max = 1 + (uint32_t)random_below(100), .bytes_max = random_below(2) ? 1 << 30 : random_below(20000),
                                          .tags = all, .tags_n = tags_n, .sum = random_below(2)};
        wr_topic_read_result result;
        wr_record record;
        const uint8_t *bytes;
        uint32_t n = 0;
        CHECK(wr_topic_read_begin(&read, r, &request) == 0);
        for (; wr_topic_read_next(&read, &record, &bytes); n++) {
            const uint32_t wanted = first_visible(g, k, minimum, at, all, tags_n);
            CHECK(wanted && rig_same(&g->records[wanted - 1], &record, bytes) && record.queue_offset < request.end && n < request.records_max);
            if (again && !random_below(5)) CHECK(wr_topic_read_again(&read, &record, &bytes) && rig_same(&g->records[wanted - 1], &record, bytes));
            at = record.queue_offset + 1;
        }
        CHECK(wr_topic_read_end(&read, &result) == 0 && result.records_n == n && result.next >= at && (n != 0) == (result.status == WR_READ_FOUND));
        CHECK(n || result.status == WR_READ_OFFSET_FOUND_NULL || (tags_n && result.status == WR_READ_NO_MATCHED_MESSAGE));
        CHECK(n || result.next > request.offset);
        const uint32_t behind = first_visible(g, k, minimum, at, all, tags_n); /* nothing that is there was passed by */
        CHECK(!behind || g->records[behind - 1].offset >= result.next);
        at = result.next;
    }
}

/* Is a record of the topic visible? `in_file`: only the file has it. */
static bool is_visible(const kept *k, uint64_t minimum, const rig *g, uint32_t i, bool *in_file) {
    const rig_record *r = &g->records[i];
    *in_file = r->row == ROW && r->offset < minimum;
    if (!*in_file) return r->row / RIG_QUEUES == TOPIC;
    for (uint32_t j = 0; j < k->n; j++)
        if (k->all[j].record == i) return true;
    return false;
}

static void finds_positions(const rig *g, const kept *k, uint64_t minimum, wr_topic_reader *r, uint32_t n) {
    wr_record record;
    const uint8_t *bytes;
    for (; n; n--) {
        const uint32_t i = (uint32_t)random_below(g->n);
        const uint64_t off = random_below(10) ? 0 : 1 + random_below(50);
        int error = 0;
        bool in_file;
        const wr_message_kind kind = wr_topic_lookup_at(r, g->records[i].position + off, NULL, 0, &record, &bytes, &error);
        const bool wanted = !off && is_visible(k, minimum, g, i, &in_file);
        CHECK(kind == (wanted ? WR_MESSAGE_THERE : WR_MESSAGE_NONE) && !error && (!wanted || rig_same(&g->records[i], &record, bytes)));
    }
}

static bool has_one(const rig_record *r, uint32_t key) { return r->keys >> key & 1; }

/* The messages of a key: those that the log has, the newest first, then those that only the file has. */
static void finds_keys(const rig *g, const kept *k, uint64_t minimum, wr_topic_reader *r) {
    const uint32_t key = (uint32_t)random_below(RIG_KEYS);
    const wr_text text = {(const uint8_t *)rig_keys[key], (uint32_t)strlen(rig_keys[key])};
    const int64_t begin = g->records[0].ms, since = random_below(2) ? 0 : begin + (int64_t)random_below((uint64_t)(g->now - begin) + 1);
    const int64_t until = random_below(2) ? INT64_MAX : since + (int64_t)random_below(500);
    wr_topic_lookup lookup;
    wr_record record;
    const uint8_t *bytes;
    int error = 0;
    CHECK(wr_topic_lookup_begin(&lookup, r, text, since, until) == 0);
    for (int part = 0; part < 2; part++) {
        for (uint32_t i = g->n; i-- > 0;) {
            bool in_file;
            const rig_record *one = &g->records[i];
            if (!has_one(one, key) || one->ms < since || one->ms > until || !is_visible(k, minimum, g, i, &in_file) || in_file != part) continue;
            CHECK(wr_topic_lookup_next(&lookup, &record, &bytes, &error) == WR_MESSAGE_THERE && rig_same(one, &record, bytes));
        }
    }
    CHECK(wr_topic_lookup_next(&lookup, &record, &bytes, &error) == WR_MESSAGE_NONE && !error);
    wr_topic_lookup_end(&lookup);
}

static void finds_times(const rig *g, const kept *k, uint64_t minimum, wr_topic_reader *r) {
    const int64_t begin = g->records[0].ms, when = begin - 5 + (int64_t)random_below((uint64_t)(g->now - begin) + 10);
    uint64_t lower = g->next[ROW], upper = WR_SEEK_NONE, offset;
    for (uint32_t i = g->n; i-- > 0;) {
        bool in_file;
        if (g->records[i].row != ROW || !is_visible(k, minimum, g, i, &in_file)) continue;
        if (g->records[i].ms >= when) lower = g->records[i].offset;
        if (g->records[i].ms <= when && upper == WR_SEEK_NONE) upper = g->records[i].offset;
    }
    CHECK(wr_topic_seek(r, QUEUE, when, WR_SEEK_LOWER, &offset) == 0 && offset == lower);
    CHECK(wr_topic_seek(r, QUEUE, when, WR_SEEK_UPPER, &offset) == 0 && offset == upper);
}

static void finds(const rig *g, const kept *k, uint64_t minimum, wr_topic_reader *r) {
    finds_positions(g, k, minimum, r, 50);
    for (int i = 0; i < 20; i++) finds_keys(g, k, minimum, r);
    for (int i = 0; i < 20; i++) finds_times(g, k, minimum, r);
    uint64_t first, n, end;
    int error = 0;
    if (!minimum) return;
    CHECK(wr_newest_count(r, QUEUE, minimum, &first, &n, &end, &error) == WR_MESSAGE_THERE && n == k->n && end >= minimum);
    const uint64_t wanted = k->n ? g->records[k->all[0].record].offset : minimum;
    CHECK(first == (wanted < minimum ? wanted : minimum));
}

static wr_topic_read_result first_of(wr_topic_reader *r, uint64_t offset) {
    static wr_topic_read read;
    const wr_topic_request request = {.queue = QUEUE, .offset = offset, .end = UINT64_MAX, .records_max = 1, .bytes_max = 1 << 30, .sum = true};
    wr_topic_read_result result;
    wr_record record;
    const uint8_t *bytes;
    CHECK(wr_topic_read_begin(&read, r, &request) == 0);
    while (wr_topic_read_next(&read, &record, &bytes)) {}
    CHECK(wr_topic_read_end(&read, &result) == 0);
    return result;
}

static void readers_see_the_newest(bool ring, uint32_t body_max) {
    static kept all, open; /* what the newest file has, and the one that the reader has open */
    rig g;
    rig_begin(&g, FILE_BYTES, RING_BYTES, 100);
    wr_topic_row *row = wr_topic_row_at(g.rows, g.row[ROW]);
    wr_topic_reader *reader = reader_of(&g, ring), *plain = reader_of(&g, ring);
    wr_newest_begin(reader, node);
    uint64_t now = 5000000, minimum = 0;
    all = open = (kept){.n = 0};
    for (int pass = 0; pass < ROUNDS(10); pass++) {
        fill(&g, 1 + (uint32_t)random_below(300), body_max, 20);
        reads_all(&g, &open, minimum, reader, 0, true);
        const uint64_t end = g.next[ROW], to = random_below(4) ? end : all.end + random_below(end - all.end + 1);
        compact(&g, plain, &all, now += TOMBSTONE_MS / 2, to);
        if (pass % 3 != 2) atomic_store(&row->minimum, minimum = to); /* else the worker was killed before */
        if (random_below(2)) wr_topic_reader_drop_newest(reader);
        if (minimum > open.end || !reader->newest[0].file) open = all;
        reads_all(&g, &open, minimum, reader, 0, false);
        reads_all(&g, &open, minimum, reader, random_below(end), true);
        finds(&g, &open, minimum, reader);
        if (minimum) CHECK(first_of(plain, random_below(minimum)).status == WR_READ_OFFSET_TOO_SMALL);
    }
    /* what is not there, or is too old */
    fill(&g, 300, body_max, 20);
    compact(&g, plain, &all, now, g.next[ROW]);
    atomic_store(&row->minimum, minimum = all.end);
    const int fd = openat(scratch_fd, "compacted/10/1", O_RDONLY);
    struct stat status;
    CHECK(fd >= 0 && fstat(fd, &status) == 0);
    fill(&g, 50, body_max, 2);
    compact(&g, plain, &all, now, g.next[ROW]);
    atomic_store(&row->minimum, all.end);
    reads_all(&g, &all, all.end, reader, 0, true);
    name_it(fd, (uint64_t)status.st_size, "compacted/10/1");
    wr_topic_reader_drop_newest(reader);
    wr_topic_read_result result = first_of(reader, 0); /* nothing of it: it may have been replaced, or taken away, since */
    CHECK(result.status == WR_READ_DAMAGED && result.next == all.end && strstr(reader->damage.found, "older") && !strcmp(reader->damage.file, "compacted/10/1"));
    CHECK(unlinkat(scratch_fd, "compacted/10/1", 0) == 0);
    wr_topic_reader_begin(reader, ring ? g.ring : NULL, g.rows);
    result = first_of(reader, 0);
    CHECK(result.status == WR_READ_DAMAGED && result.next == all.end && strstr(reader->damage.found, "no such file"));
    CHECK(mkfifoat(scratch_fd, "compacted/10/1", 0600) == 0); /* nobody waits for it */
    result = first_of(reader, 0);
    CHECK(result.status == WR_READ_DAMAGED && result.next == all.end && strstr(reader->damage.found, "regular file"));
    CHECK(unlinkat(scratch_fd, "compacted/10/1", 0) == 0 && symlinkat("0", scratch_fd, "compacted/10/1") == 0);
    result = first_of(reader, 0);
    CHECK(result.status == WR_READ_DAMAGED && result.next == all.end);
    CHECK(unlinkat(scratch_fd, "compacted/10/1", 0) == 0);
    result = first_of(reader, all.end);
    CHECK(result.status == WR_READ_OFFSET_OVERFLOW_ONE);
    close(fd);
    wr_topic_reader_free(reader);
    wr_topic_reader_free(plain);
    rig_end(&g);
}

/* The minimum rises between two reads of the log, whose files and units go at once: the reader goes on in the file. */
static void a_reader_that_falls_behind(void) {
    static kept all;
    rig g;
    rig_begin(&g, FILE_BYTES, RING_BYTES, 50);
    fill(&g, 900, 1500, 20);
    wr_topic_row *row = wr_topic_row_at(g.rows, g.row[ROW]);
    wr_topic_reader *reader = reader_of(&g, false), *plain = reader_of(&g, false);
    wr_newest_begin(reader, node);
    all = (kept){.n = 0};
    static wr_topic_read read;
    const wr_topic_request request = {.queue = QUEUE, .offset = 0, .end = UINT64_MAX, .records_max = 100000, .bytes_max = 1 << 30, .sum = true};
    wr_topic_read_result result;
    wr_record record;
    const uint8_t *bytes;
    CHECK(wr_topic_read_begin(&read, reader, &request) == 0);
    for (uint64_t n = 0; n < 60; n++) CHECK(wr_topic_read_next(&read, &record, &bytes) && record.queue_offset == n);
    compact(&g, plain, &all, 1, g.next[ROW]);
    atomic_store(&row->minimum, all.end);
    uint64_t removed;
    wr_queue_files *files = wr_queue_files_new(scratch_fd, "consumequeue/flights/1", g.entries);
    CHECK(files && wr_queue_files_remove(files, all.end, &removed) == 0 && removed);
    wr_queue_files_free(files);
    const uint64_t first = g.records[g.n - 1].position / FILE_BYTES * FILE_BYTES;
    atomic_store(&g.rows->first, first);
    for (uint64_t base = 0; base < first; base += FILE_BYTES) CHECK(unlink(rig_path(base)) == 0);
    uint64_t at = 60, alive = 0;
    while (wr_topic_read_next(&read, &record, &bytes)) {
        const rig_record *r = rig_find(&g, ROW, record.queue_offset);
        CHECK(record.queue_offset >= at && r && rig_same(r, &record, bytes));
        at = record.queue_offset + 1;
        alive++;
    }
    CHECK(wr_topic_read_end(&read, &result) == 0 && result.next == all.end && alive);
    for (uint32_t i = 0; i < all.n; i++) { /* each key's newest was among them, or came before */
        const rig_record *r = &g.records[all.all[i].record];
        CHECK(r->offset < 60 || alive-- > 0);
    }
    wr_topic_reader_free(reader);
    wr_topic_reader_free(plain);
    rig_end(&g);
}

/* The minimum rises while a key is looked for, behind messages that the index has given: the file does not give them again, and what the
 * index did not come to is given by the file. */
static void a_pass_meets_a_look_up(void) {
    static kept all;
    static uint8_t given[RIG_RECORDS_MAX];
    rig g;
    rig_begin(&g, FILE_BYTES, RING_BYTES, 50);
    fill(&g, 900, 300, 20);
    wr_topic_row *row = wr_topic_row_at(g.rows, g.row[ROW]);
    wr_topic_reader *reader = reader_of(&g, false), *plain = reader_of(&g, false);
    wr_newest_begin(reader, node);
    all = (kept){.n = 0};
    for (uint32_t key = 0; key < RIG_KEYS; key++) {
        wr_topic_lookup lookup;
        wr_record record;
        const uint8_t *bytes;
        int error = 0;
        memset(given, 0, sizeof given);
        CHECK(wr_topic_lookup_begin(&lookup, reader, (wr_text){(const uint8_t *)rig_keys[key], (uint32_t)strlen(rig_keys[key])}, INT64_MIN, INT64_MAX) == 0);
        for (uint32_t n = 0; wr_topic_lookup_next(&lookup, &record, &bytes, &error) == WR_MESSAGE_THERE; n++) {
            uint32_t i = 0;
            while (i < g.n && g.records[i].position != record.physical_offset) i++;
            CHECK(i < g.n && rig_same(&g.records[i], &record, bytes) && !given[i]);
            given[i] = 1;
            if (n == key * 3) { /* the index has more of it */
                compact(&g, plain, &all, 1 + key, g.next[ROW]);
                atomic_store(&row->minimum, all.end);
            }
        }
        CHECK(!error);
        for (uint32_t j = 0; j < all.n; j++) {
            const rig_record *one = &g.records[all.all[j].record];
            CHECK(!has_one(one, key) || given[all.all[j].record]);
        }
        wr_topic_lookup_end(&lookup);
        fill(&g, 300, 300, 20);
    }
    wr_topic_reader_free(reader);
    wr_topic_reader_free(plain);
    rig_end(&g);
}

/* What a look-up gives: the places in the rig of messages with a key; and how many of them lay in the file. `meanwhile`: called when it has given so
 * many of those. */
static uint32_t look_up(const rig *g, wr_topic_reader *reader, uint32_t key, uint8_t *given, bool *whole, uint32_t after, void (*meanwhile)(void)) {
    wr_topic_lookup lookup;
    wr_record record;
    const uint8_t *bytes;
    int error = 0;
    uint32_t n = 0;
    memset(given, 0, RIG_RECORDS_MAX);
    CHECK(wr_topic_lookup_begin(&lookup, reader, (wr_text){(const uint8_t *)rig_keys[key], (uint32_t)strlen(rig_keys[key])}, INT64_MIN, INT64_MAX) == 0);
    while (wr_topic_lookup_next(&lookup, &record, &bytes, &error) == WR_MESSAGE_THERE) {
        uint32_t i = 0;
        while (i < g->n && g->records[i].position != record.physical_offset) i++;
        CHECK(i < g->n && rig_same(&g->records[i], &record, bytes) && !given[i]);
        given[i] = 1;
        if (lookup.in_files && ++n == after) meanwhile();
    }
    CHECK(!error);
    *whole = wr_topic_lookup_whole(&lookup);
    wr_topic_lookup_end(&lookup);
    return n;
}

static rig meeting;
static kept meeting_all;
static wr_topic_reader *meeting_plain;

/* What wr_topic_lookup_all gives of the rig's messages; passes end under it, so often. */
typedef struct {
    uint8_t given[RIG_RECORDS_MAX];
    uint32_t begun, given_n, passes;
} found_all;

static void a_pass_ends(void) {
    fill(&meeting, 200, 300, 20);
    compact(&meeting, meeting_plain, &meeting_all, 1000 + meeting.n, meeting.next[ROW]);
    atomic_store(&wr_topic_row_at(meeting.rows, meeting.row[ROW])->minimum, meeting_all.end);
}

static void all_anew(void *context) {
    found_all *f = context;
    memset(f->given, 0, sizeof f->given);
    f->given_n = 0;
    f->begun++;
}

static int all_put(void *context, const wr_record *record, const uint8_t *bytes) {
    found_all *f = context;
    uint32_t i = 0;
    while (i < meeting.n && meeting.records[i].position != record->physical_offset) i++;
    CHECK(i < meeting.n && rig_same(&meeting.records[i], record, bytes) && !f->given[i]);
    f->given[i] = 1;
    f->given_n++;
    if (f->given_n != 1 || !f->passes) return 0;
    f->passes--;
    a_pass_ends();
    return 0;
}

/* The same, by the call that makes it anew: it gives what is the newest of a key when it ends. Passes that end all the time end it, too. */
static void a_look_up_is_made_anew(wr_topic_reader *reader) {
    static found_all f;
    const wr_topic_lookup_to to = {&f, all_anew, all_put};
    for (uint32_t key = 0; key < RIG_KEYS; key++) {
        const wr_text text = {(const uint8_t *)rig_keys[key], (uint32_t)strlen(rig_keys[key])};
        bool damaged = true;
        f = (found_all){.passes = 2};
        CHECK(wr_topic_lookup_all(reader, text, INT64_MIN, INT64_MAX, UINT64_MAX, true, &to, &damaged) == 0 && !damaged);
        CHECK(f.begun == 3 - f.passes && (!f.given_n || f.begun == 3));
        for (uint32_t j = 0; j < meeting_all.n; j++)
            CHECK(!has_one(&meeting.records[meeting_all.all[j].record], key) || f.given[meeting_all.all[j].record]);
        f = (found_all){.passes = 0};
        CHECK(wr_topic_lookup_all(reader, text, INT64_MIN, INT64_MAX, 1, true, &to, &damaged) == 0 && f.begun == 1 && f.given_n <= 1);
    }
    f = (found_all){.passes = 100};
    bool damaged;
    CHECK(wr_topic_lookup_all(reader, (wr_text){(const uint8_t *)rig_keys[0], (uint32_t)strlen(rig_keys[0])}, INT64_MIN, INT64_MAX, UINT64_MAX, true, &to,
                              &damaged) == 0);
    CHECK(f.begun == 5 && f.passes == 95);
}

/* All lies in the file, and another one gets its name while a key is looked for there: what was replaced meanwhile by what lies behind it may be
 * missing, and it says so. One that is made anew has it all. Also between the file's name and the rise of the minimum. */
static void a_pass_ends_under_a_look_up_in_files(void) {
    static uint8_t given[RIG_RECORDS_MAX];
    rig *g = &meeting;
    rig_begin(g, FILE_BYTES, RING_BYTES, 50);
    wr_topic_reader *reader = reader_of(g, false);
    meeting_plain = reader_of(g, false);
    wr_newest_begin(reader, node);
    meeting_all = (kept){.n = 0};
    a_pass_ends();
    uint32_t missing = 0;
    for (uint32_t key = 0; key < RIG_KEYS; key++) {
        bool whole;
        const uint32_t before = look_up(g, reader, key, given, &whole, 0, NULL);
        CHECK(whole);
        if (before < 2) continue;
        look_up(g, reader, key, given, &whole, 1, a_pass_ends);
        CHECK(!whole);
        bool lacks = false;
        for (uint32_t j = 0; j < meeting_all.n; j++) lacks |= has_one(&g->records[meeting_all.all[j].record], key) && !given[meeting_all.all[j].record];
        missing += lacks;
        look_up(g, reader, key, given, &whole, 0, NULL);
        CHECK(whole);
        for (uint32_t j = 0; j < meeting_all.n; j++) CHECK(!has_one(&g->records[meeting_all.all[j].record], key) || given[meeting_all.all[j].record]);
    }
    CHECK(missing);
    a_look_up_is_made_anew(reader);
    bool whole;
    wr_topic_row *row = wr_topic_row_at(g->rows, g->row[ROW]);
    const uint64_t minimum = atomic_load(&row->minimum);
    a_pass_ends();
    wr_topic_reader *fresh = reader_of(g, false);
    wr_newest_begin(fresh, node);
    atomic_store(&row->minimum, minimum); /* not yet */
    look_up(g, fresh, 0, given, &whole, 0, NULL);
    CHECK(!whole);
    atomic_store(&row->minimum, meeting_all.end);
    look_up(g, fresh, 0, given, &whole, 0, NULL);
    CHECK(whole);
    wr_topic_reader_free(fresh);
    wr_topic_reader_free(reader);
    wr_topic_reader_free(meeting_plain);
    rig_end(g);
}

int main(int argc, char **argv) {
    scratch_begin("compact_test", argc, argv);
    const unsigned open_before = descriptors();
    WITHOUT_THREADS(digests_are_siphash());
    passes_leave_the_newest(300, true);
    passes_leave_the_newest(9000, false);
    WITHOUT_THREADS(passes_leave_the_newest(90000, true));
    passes_end_where_they_must();
    WITHOUT_THREADS(failures_end_a_pass());
    WITHOUT_THREADS(damage_is_said());
    WITHOUT_THREADS(passes_end_at_damage());
    readers_see_the_newest(true, 300);
    readers_see_the_newest(false, 6000);
    a_reader_that_falls_behind();
    a_pass_meets_a_look_up();
    WITHOUT_THREADS(a_pass_ends_under_a_look_up_in_files());
    CHECK(descriptors() == open_before);
    scratch_end();
    return 0;
}
