/* Goal: a reader of a topic gives every message that counts, once, in order, byte for byte, out of the ring or out of the files, and
 * nothing else; it says by its status why there is none; what is damaged it names and passes by; times, keys and ids lead to the messages
 * that a list leads to; whatever is done to files, rows and ring under it ends no process.
 * Method: the real log, dispatch and rows (topic_rig.h), a model in an array, readers with the ring and without one. Files are
 * changed, cut, removed and replaced by hand. A reader in another thread and one in another process follow an appender that laps a small
 * ring. Prints its seed. */
#define _GNU_SOURCE
#include "support/scarce.h"
#include "topic_rig.h"
#include "topics/folder.h"
#include "topics/lookup.h"
#include "topics/read.h"
#include "topics/seek.h"
#include "topics/span.h"
#include <signal.h>

#define FILE_BYTES (64 * 4096u)
#define RING_BYTES (64 * 4096u)
#define MIB (1u << 20)

static wr_topic_reader *reader_of(const rig *g, uint32_t topic, bool ring) {
    const wr_topic_place place = {.root = scratch_fd, .log_file_bytes = g->file_bytes, .ring_bytes = g->ring_bytes,
                                  .consume_queue_entries = g->entries, .index_slots = g->slots, .index_entries = g->index_entries};
    wr_topic_reader *r = wr_topic_reader_new(&place, g->ids[topic], rig_names[topic], (uint32_t)strlen(rig_names[topic]));
    CHECK(r);
    wr_topic_reader_begin(r, ring ? g->ring : NULL, g->rows);
    return r;
}

/* One read; what was found lies in `found`, in full. */
static struct {
    uint32_t n;
    uint64_t offsets[4096];
} found;

static const rig *model;
static uint32_t model_row;

static wr_topic_read_result read_some(wr_topic_reader *r, const wr_topic_request *request) {
    static wr_topic_read read;
    wr_topic_read_result result;
    wr_record record;
    const uint8_t *bytes;
    found.n = 0;
    CHECK(wr_topic_read_begin(&read, r, request) == 0);
    while (wr_topic_read_next(&read, &record, &bytes)) {
        CHECK(found.n < 4096 && (!found.n || record.queue_offset > found.offsets[found.n - 1]));
        found.offsets[found.n++] = record.queue_offset;
        const rig_record *wanted = rig_find(model, model_row, record.queue_offset);
        CHECK(wanted && rig_same(wanted, &record, bytes));
    }
    CHECK(wr_topic_read_end(&read, &result) == 0 && result.records_n == found.n && (result.status == WR_READ_FOUND) == (found.n != 0));
    CHECK(!found.n || result.next > found.offsets[found.n - 1]);
    return result;
}

static wr_topic_request all_of(uint32_t queue, uint64_t offset, uint32_t max) {
    return (wr_topic_request){.queue = queue, .offset = offset, .end = UINT64_MAX, .records_max = max, .bytes_max = 1 << 30, .sum = true};
}

static wr_topic_read_result read_at(wr_topic_reader *r, uint32_t queue, uint64_t offset, uint32_t max) {
    const wr_topic_request request = all_of(queue, offset, max);
    return read_some(r, &request);
}

static void look_at(const rig *g, uint32_t row) {
    model = g;
    model_row = row;
}

/* ---- statuses and limits ---- */

static void statuses(void) {
    rig g;
    rig_begin(&g, FILE_BYTES, RING_BYTES, 5);
    wr_topic_reader *r = reader_of(&g, 0, true);
    look_at(&g, 0);
    wr_topic_read_result a = read_at(r, 0, 0, 1);
    CHECK(a.status == WR_READ_NO_MESSAGE_IN_QUEUE && a.next == 0 && a.bounds.minimum == 0 && a.bounds.maximum == 0);
    CHECK((a = read_at(r, 0, 12, 1)).status == WR_READ_NO_MESSAGE_IN_QUEUE && a.next == 0);
    rig_fill(&g, 1, 0, 100);
    CHECK((a = read_at(r, 0, 0, 1)).status == WR_READ_FOUND && a.next == 1 && found.n == 1 && a.bounds.maximum == 1);
    CHECK((a = read_at(r, 0, 1, 1)).status == WR_READ_OFFSET_OVERFLOW_ONE && a.next == 1);
    CHECK((a = read_at(r, 0, 2, 1)).status == WR_READ_OFFSET_OVERFLOW_BADLY && a.next == 1);
    CHECK((a = read_at(r, 0, UINT64_MAX, 1)).status == WR_READ_OFFSET_OVERFLOW_BADLY && a.next == 1);
    rig_append(&g, rig_any(&g, 0, 100)); /* not shown */
    CHECK(read_at(r, 0, 1, 1).status == WR_READ_OFFSET_OVERFLOW_ONE);
    rig_fill(&g, 98, 0, 100);
    CHECK((a = read_at(r, 0, 0, 1000)).records_n == 100 && a.next == 100);
    CHECK((a = read_at(r, 0, 17, 10)).records_n == 10 && a.next == 27 && found.offsets[0] == 17);
    wr_topic_request limited = all_of(0, 17, 1000);
    limited.end = 40;
    CHECK((a = read_some(r, &limited)).records_n == 23 && a.next == 40);
    limited.bytes_max = 0; /* one comes in any case */
    CHECK((a = read_some(r, &limited)).records_n == 1 && a.next == 18);
    limited.bytes_max = g.records[17].size + g.records[18].size;
    CHECK((a = read_some(r, &limited)).records_n == 2 && a.next == 19);
    limited.bytes_max--;
    CHECK(read_some(r, &limited).records_n == 1);
    /* Other queues, and topics that are not there. */
    wr_topic_bounds bounds;
    CHECK(read_at(r, 2, 0, 1).status == WR_READ_NO_MESSAGE_IN_QUEUE && wr_topic_reader_bounds(r, RIG_QUEUES, &bounds) == ENXIO);
    /* Retention raises the minimum. */
    wr_topic_row *row = wr_topic_row_at(g.rows, g.row[0]);
    atomic_store(&row->minimum, 30);
    CHECK((a = read_at(r, 0, 29, 1)).status == WR_READ_OFFSET_TOO_SMALL && a.next == 30 && a.bounds.minimum == 30);
    CHECK(read_at(r, 0, 30, 1).status == WR_READ_FOUND);
    atomic_store(&row->minimum, 100); /* all expired: for ever min = max */
    CHECK((a = read_at(r, 0, 99, 1)).status == WR_READ_OFFSET_TOO_SMALL && a.next == 100);
    CHECK(read_at(r, 0, 100, 1).status == WR_READ_OFFSET_OVERFLOW_ONE);
    /* Deleted, and its row another's. */
    wr_topic_row_take(g.rows, g.row[0]);
    CHECK(wr_topic_reader_bounds(r, 0, &bounds) == ENXIO);
    wr_topic_row_give(g.rows, g.row[0], wr_topic_row_key(77, 0), 0, 100);
    CHECK(wr_topic_reader_bounds(r, 0, &bounds) == ENXIO);
    wr_topic_reader_begin(r, NULL, NULL);
    CHECK(wr_topic_reader_bounds(r, 1, &bounds) == ENXIO);
    for (int i = 0; i <= WR_READ_STATUSES; i++) CHECK(*wr_read_word((wr_read_status)i));
    wr_topic_reader_free(r);
    rig_end(&g);
}

/* ---- against the model ---- */

static bool wanted_tag(const rig_record *r, uint32_t tags) { return !tags || (r->tag != RIG_NO_TAG && tags >> r->tag & 1); }

/* A read with random limits finds what the model has. */
static void read_randomly(const rig *g, wr_topic_reader *r, uint32_t row) {
    wr_text tags[4];
    uint32_t bits = random_below(2) ? 0 : (uint32_t)random_below(16);
    wr_topic_request q = all_of(row % RIG_QUEUES, random_below(g->next[row] + 2), 1 + (uint32_t)random_below(random_below(2) ? 10 : 4000));
    for (uint32_t i = 0; i < 4; i++)
        if (bits >> i & 1) tags[q.tags_n++] = (wr_text){(const uint8_t *)rig_tags[i], (uint32_t)strlen(rig_tags[i])};
    q.tags = tags;
    if (random_below(2)) q.end = q.offset + random_below(50) + 1;
    if (random_below(2)) q.bytes_max = random_below(100000);
    look_at(g, row);
    wr_topic_read_result a = read_some(r, &q);
    uint64_t offset = q.offset, bytes = 0;
    uint32_t n = 0;
    CHECK(a.bounds.maximum == g->next[row]);
    if (q.offset >= g->next[row]) return;
    for (uint32_t i = 0; i < g->n && n < q.records_max; i++) {
        const rig_record *m = &g->records[i];
        if (m->row != row || m->offset < offset || m->offset >= q.end || !wanted_tag(m, bits)) continue;
        if (n && bytes + m->size > q.bytes_max) break;
        CHECK(n < found.n && found.offsets[n] == m->offset);
        bytes += m->size;
        n++;
    }
    CHECK(n == found.n && a.status == (n ? WR_READ_FOUND : WR_READ_NO_MATCHED_MESSAGE));
}

static void against_a_model(void) {
    static const uint32_t entries[] = {1, 7, 100, 3000}, bodies[] = {40, 300, 5000};
    for (int round = 0; round < ROUNDS(6); round++) {
        rig g;
        rig_begin(&g, FILE_BYTES << random_below(3), RING_BYTES << random_below(2), entries[random_below(4)]);
        wr_topic_reader *r[RIG_TOPICS][2];
        for (int life = 0; life < 3; life++) {
            for (uint32_t i = 0; i < 2 * RIG_TOPICS; i++) {
                if (!life) r[i / 2][i % 2] = reader_of(&g, i / 2, i % 2);
                else wr_topic_reader_begin(r[i / 2][i % 2], i % 2 ? g.ring : NULL, g.rows);
            }
            for (int turn = 0; turn < 12; turn++) {
                rig_fill(&g, (uint32_t)random_below(60), random_below(2) ? RIG_ROWS : (uint32_t)random_below(RIG_ROWS), bodies[random_below(3)]);
                for (int i = 0; i < 30; i++) {
                    uint32_t row = (uint32_t)random_below(RIG_ROWS);
                    read_randomly(&g, r[row / RIG_QUEUES][random_below(2)], row);
                }
            }
            rig_die(&g);
            rig_live(&g);
        }
        for (uint32_t i = 0; i < 2 * RIG_TOPICS; i++) wr_topic_reader_free(r[i / 2][i % 2]);
        rig_end(&g);
    }
}

/* Larger than what is read at once, and than what is believed of a unit. */
static void large_records(void) {
    rig g;
    rig_begin(&g, 8 * MIB, 8 * MIB, 10);
    for (int i = 0; i < 12; i++) {
        rig_append(&g, rig_any(&g, 0, 3000));
        rig_record big = rig_any(&g, 0, 0);
        big.body_n = 200000 + (uint32_t)random_below(3 * MIB);
        rig_append(&g, big);
        rig_commit(&g, false);
    }
    look_at(&g, 0);
    for (int ring = 0; ring < 2; ring++) {
        wr_topic_reader *r = reader_of(&g, 0, ring);
        for (int i = 0; i < 30; i++) {
            uint64_t from = random_below(24);
            CHECK(read_at(r, 0, from, 24).records_n == 24 - from);
        }
        CHECK(r->log.room <= 8 * MIB);
        wr_topic_reader_free(r);
    }
    rig_end(&g);
}

/* ---- damage ---- */

static void change(const char *path, uint64_t at, const void *bytes, size_t n) {
    int fd = openat(scratch_fd, path, O_WRONLY);
    CHECK(fd >= 0 && pwrite(fd, bytes, n, (off_t)at) == (ssize_t)n);
    close(fd);
}

static void cut(const char *path, uint64_t size) {
    int fd = openat(scratch_fd, path, O_WRONLY);
    CHECK(fd >= 0 && ftruncate(fd, (off_t)size) == 0);
    close(fd);
}

static const char *log_name(uint64_t position) {
    static char path[60];
    snprintf(path, sizeof path, "commitlog/%020llu", (unsigned long long)(position / FILE_BYTES * FILE_BYTES));
    return path;
}

/* Message 3 of queue 0 of the first topic is none; those around it are. Named: this file, this byte. */
static void expect_damage_at_3(const rig *g, const char *file, uint64_t position, const char *word) {
    wr_topic_reader *r = reader_of(g, 0, false);
    look_at(g, 0);
    wr_topic_read_result a = read_at(r, 0, 0, 100);
    CHECK(a.status == WR_READ_FOUND && a.records_n == 3 && a.next == 3);
    a = read_at(r, 0, 3, 100);
    CHECK(a.status == WR_READ_DAMAGED && a.next == 4 && !strcmp(r->damage.file, file) && r->damage.position == position);
    if (!strstr(r->damage.found, word)) fprintf(stderr, "found %s, not %s\n", r->damage.found, word);
    CHECK(strstr(r->damage.found, word) && strstr(r->damage.expected, "message 3 of queue 0"));
    CHECK(read_at(r, 0, 4, 100).records_n == g->next[0] - 4);
    /* A time is found around it, and its id is not. */
    uint64_t offset;
    CHECK(wr_topic_seek(r, 0, g->records[3].ms, WR_SEEK_LOWER, &offset) == 0 && offset >= 3 && offset <= 4);
    wr_topic_reader_free(r);
}

/* Units of zeros below the maximum are damage, whoever asks for their message, and however many they are; a writer's that comes later is none. */
static void zeros(const rig *g, const char *units) {
    static const uint8_t none[20];
    const rig_record *m = &g->records[3];
    wr_topic_lookup l;
    wr_record record;
    const uint8_t *bytes;
    uint64_t offset;
    int error;
    change(units, 60, none, 20);
    expect_damage_at_3(g, units, 60, "zeros");
    wr_topic_reader *r = reader_of(g, 0, false);
    CHECK(wr_topic_seek(r, 0, m->ms, WR_SEEK_LOWER, &offset) == 0 && offset == 3); /* who begins there hears of it */
    wr_message_kind kind;
    CHECK(wr_topic_lookup_begin(&l, r, (wr_text){(const uint8_t *)rig_keys[1], 2}, INT64_MIN, INT64_MAX) == 0);
    while ((kind = wr_topic_lookup_next(&l, &record, &bytes, &error)) == WR_MESSAGE_THERE) CHECK(record.physical_offset > m->position);
    CHECK(kind == WR_MESSAGE_DAMAGED && !strcmp(r->damage.file, units) && r->damage.position == 60);
    CHECK(wr_topic_lookup_next(&l, &record, &bytes, &error) == WR_MESSAGE_THERE && record.queue_offset == 2);
    CHECK(wr_topic_lookup_at(r, m->position, NULL, 0, &record, &bytes, &error) == WR_MESSAGE_DAMAGED && !strcmp(r->damage.found, "zeros"));
    /* A tag that is wanted does not hide it. */
    const wr_text tag = {(const uint8_t *)"none has it", 11};
    wr_topic_request tagged = all_of(0, 3, 10);
    tagged.tags = &tag;
    tagged.tags_n = 1;
    CHECK(read_some(r, &tagged).status == WR_READ_DAMAGED);
    /* Two together, and not what lies behind the end that was asked for. */
    uint8_t two[40], before[40];
    memset(two, 0, sizeof two);
    int fd = openat(scratch_fd, units, O_RDONLY);
    CHECK(fd >= 0 && pread(fd, before, 40, 80) == 40);
    close(fd);
    change(units, 80, two, 20);
    wr_topic_read_result a = read_at(r, 0, 3, 100);
    CHECK(a.status == WR_READ_DAMAGED && a.next == 5);
    wr_topic_request ended = all_of(0, 3, 10);
    ended.end = 4;
    CHECK(read_some(r, &ended).next == 4);
    change(units, 80, before, 40);
    /* The file was made again, with what it had: the one that is open is an old one. */
    const uint64_t size = 100 * WR_CONSUME_QUEUE_UNIT_SIZE;
    uint8_t *all = malloc(size);
    fd = openat(scratch_fd, units, O_RDONLY);
    CHECK(all && fd >= 0 && pread(fd, all, size, 0) == (ssize_t)size && read_at(r, 0, 0, 1).records_n == 1);
    close(fd);
    wr_unit_put(two, 0, m->position, m->size, 0);
    memcpy(all + 60, two, 20);
    CHECK(renameat(scratch_fd, units, scratch_fd, "elsewhere") == 0);
    fd = openat(scratch_fd, units, O_WRONLY | O_CREAT, 0600);
    CHECK(fd >= 0 && pwrite(fd, all, size, 0) == (ssize_t)size);
    close(fd);
    CHECK(read_at(r, 0, 0, 100).records_n == g->next[0]);
    CHECK(renameat(scratch_fd, "elsewhere", scratch_fd, units) == 0);
    free(all);
    wr_topic_reader_free(r);
}

/* The worker's memory says where the log ends, and the rows where it begins: message 3 is said to lie right outside. */
static void a_unit_outside_the_log(rig *g, const char *units) {
    uint8_t bad[20] __attribute__((aligned(4))) = {0};
    const uint64_t end = atomic_load(&((const wr_topic_ring *)g->ring)->appended);
    wr_topic_reader *r = reader_of(g, 0, true);
    wr_topic_row *row = wr_topic_row_at(g->rows, g->row[0]);
    atomic_store(&g->rows->first, 40);
    atomic_store(&row->from, 40);
    const struct { uint64_t position; const char *word; } wrong[] = {{end - 99, "behind the log's end"}, {end, "behind the log's end"}, {39, "before the log's begin"}};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        wr_unit_put(bad, 0, wrong[i].position, 100, 0);
        change(units, 60, bad, 20);
        wr_topic_read_result a = read_at(r, 0, 3, 1);
        CHECK(a.status == WR_READ_DAMAGED && a.next == 4 && !strcmp(r->damage.file, units) && r->damage.position == 60);
        CHECK(strstr(r->damage.found, wrong[i].word));
    }
    atomic_store(&g->rows->first, 0);
    atomic_store(&row->from, 0);
    wr_topic_reader_free(r);
}

static void damage(void) {
    static const uint8_t one = 1;
    rig g;
    rig_begin(&g, FILE_BYTES, RING_BYTES, 100);
    for (int i = 0; i < 8; i++) {
        rig_record r = {.row = 0, .ms = g.now + 10, .seed = g.n, .body_n = 200, .tag = RIG_NO_TAG, .keys = 2};
        rig_append(&g, r);
    }
    rig_fill(&g, 50, 4, 300);
    rig_fill(&g, 5, RIG_QUEUES, 300);
    const rig_record *m = &g.records[3];
    uint64_t body_at = WR_LOG_HEAD_SIZE + 8 + WR_LOG_STORED_SIZE + 8 + WR_LOG_TAIL_SIZE;
    const struct { uint64_t at; const char *word; } bytes[] = {
        {body_at + 100, "crc"},
        {WR_LOG_HEAD_AT_BODY_CRC + 3, "crc"},
        {WR_LOG_HEAD_AT_MAGIC, "magic"},
        {WR_LOG_HEAD_AT_SIZE + 3, "no record"},
        {WR_LOG_HEAD_AT_QUEUE_ID + 3, "another message"},
        {WR_LOG_HEAD_AT_QUEUE_OFFSET + 7, "another message"},
        {WR_LOG_HEAD_AT_PHYSICAL_OFFSET + 7, "position"},
        {WR_LOG_HEAD_AT_FLAG + 3, "another topic"},
        {WR_LOG_HEAD_AT_SYS_FLAG + 3, "no record"}, /* an IPv6 host */
        {body_at - 1, "no record"},
        {body_at + 200, "no record"},               /* length of the topic */
        {body_at + 201, "another topic"},
        {m->size - 4, "properties"},
    };
    for (size_t i = 0; i < sizeof bytes / sizeof *bytes; i++) {
        uint8_t old, wrong;
        int fd = openat(scratch_fd, log_name(m->position), O_RDWR);
        CHECK(fd >= 0 && pread(fd, &old, 1, (off_t)(m->position + bytes[i].at)) == 1);
        wrong = i == 8 ? old ^ 16 : i == 12 ? one : i == 11 ? 'g' : old ^ 0x55;
        if (i == 3) wrong = old + 1;
        CHECK(pwrite(fd, &wrong, 1, (off_t)(m->position + bytes[i].at)) == 1);
        expect_damage_at_3(&g, log_name(m->position), m->position, bytes[i].word);
        CHECK(pwrite(fd, &old, 1, (off_t)(m->position + bytes[i].at)) == 1);
        close(fd);
    }
    /* A unit that leads elsewhere: into a body, behind the log, to no position, to more than a file. */
    const char *units = "consumequeue/flights/0/00000000000000000000";
    wr_unit unit;
    uint8_t good[20], bad[20] __attribute__((aligned(4))) = {0};
    wr_topic_reader *r = reader_of(&g, 0, false);
    uint32_t n;
    CHECK(wr_topic_reader_units(r, 0, 3, &unit, 1, &n) == 0 && n == 1);
    wr_topic_reader_free(r);
    int fd = openat(scratch_fd, units, O_RDONLY);
    CHECK(fd >= 0 && pread(fd, good, 20, 60) == 20);
    close(fd);
    const wr_unit wrong[] = {{unit.physical_offset + 100, unit.size, 0}, {unit.physical_offset, unit.size + 1, 0}, {unit.physical_offset, 1, 0},
                             {g.records[2].position, g.records[2].size, 0}, {5 * FILE_BYTES, 100, 0}, {UINT64_MAX, 100, 0},
                             {FILE_BYTES - 10, 100, 0}, {unit.physical_offset, UINT32_MAX, 0}};
    const char *const nowhere[] = {NULL, NULL, "no record has", NULL, "behind the log's end", "that is none", "no room for", "no room for"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        wr_unit_put(bad, 0, wrong[i].physical_offset, wrong[i].size, 0);
        change(units, 60, bad, 20);
        /* Where no record can lie, the unit is what is damaged; no file of the log is named, and none that never was. */
        if (nowhere[i]) expect_damage_at_3(&g, units, 60, nowhere[i]);
        else expect_damage_at_3(&g, log_name(wrong[i].physical_offset), wrong[i].physical_offset % FILE_BYTES, "");
    }
    a_unit_outside_the_log(&g, units);
    zeros(&g, units);
    change(units, 60, good, 20);
    /* One that says so is no damage: the log lost the message, or has a newer one of its key. */
    wr_unit_put(bad, 0, 0, WR_UNIT_EMPTY, 0);
    change(units, 60, bad, 20);
    r = reader_of(&g, 0, false);
    CHECK(read_at(r, 0, 0, 100).records_n == g.next[0] - 1);
    wr_topic_request one_of = all_of(0, 3, 10);
    one_of.end = 4;
    wr_topic_read_result a = read_some(r, &one_of);
    CHECK(a.status == WR_READ_OFFSET_FOUND_NULL && a.next == 4);
    change(units, 60, good, 20);
    CHECK(read_at(r, 0, 0, 100).records_n == g.next[0]);
    /* Files that are cut, gone, or no files. */
    cut(units, 65);
    CHECK((a = read_at(r, 0, 3, 100)).status == WR_READ_DAMAGED && a.next == g.next[0] && r->damage.position == 60 && !strcmp(r->damage.file, units));
    CHECK(renameat(scratch_fd, "consumequeue/flights/0", scratch_fd, "elsewhere") == 0);
    CHECK((a = read_at(r, 0, 0, 100)).status == WR_READ_DAMAGED || a.records_n);
    wr_topic_reader_begin(r, NULL, g.rows);
    CHECK((a = read_at(r, 0, 0, 100)).status == WR_READ_DAMAGED && r->damage.position == 0);
    uint64_t offset;
    CHECK(wr_topic_seek(r, 0, 0, WR_SEEK_LOWER, &offset) == 0 && offset == g.next[0]);
    atomic_store(&wr_topic_row_at(g.rows, g.row[0])->maximum, 1ull << 58); /* so many files are not looked for one by one */
    for (int boundary = 0; boundary < 2; boundary++) CHECK(wr_topic_seek(r, 0, 0, (wr_seek_boundary)boundary, &offset) == 0);
    CHECK(renameat(scratch_fd, "elsewhere", scratch_fd, "consumequeue/flights/0") == 0);
    CHECK(wr_topic_seek(r, 0, 0, WR_SEEK_LOWER, &offset) == 0 && offset == 0);
    CHECK(wr_topic_seek(r, 0, INT64_MAX, WR_SEEK_UPPER, &offset) == 0 && offset == 2);
    atomic_store(&wr_topic_row_at(g.rows, g.row[0])->maximum, g.next[0]);
    cut(units, 0);
    cut(units, 100 * 20);
    CHECK((a = read_at(r, 0, 0, 100)).status == WR_READ_DAMAGED && a.next == g.next[0] && !strcmp(r->damage.found, "zeros"));
    wr_topic_reader_free(r);
    r = reader_of(&g, 1, false);
    look_at(&g, RIG_QUEUES);
    cut(log_name(0), g.records[g.n - 1].position + 50);
    CHECK((a = read_at(r, 0, 0, 100)).records_n == g.next[RIG_QUEUES] - 1);
    CHECK((a = read_at(r, 0, a.next, 100)).status == WR_READ_DAMAGED && strstr(r->damage.found, "end of the file"));
    CHECK(renameat(scratch_fd, log_name(0), scratch_fd, "elsewhere") == 0);
    wr_topic_reader_begin(r, NULL, g.rows);
    CHECK(read_at(r, 0, 0, 100).status == WR_READ_DAMAGED && strstr(r->damage.found, "no such file"));
    static wr_topic_read read;
    wr_topic_read_result result;
    wr_record record;
    const uint8_t *at;
    const wr_topic_request request = all_of(0, 0, 1);
    for (int i = 0; i < 3; i++) { /* an error of the system is no damage */
        if (i == 0) CHECK(mkdirat(scratch_fd, log_name(0), 0700) == 0);
        if (i == 1) CHECK(symlinkat("../elsewhere", scratch_fd, log_name(0)) == 0);
        if (i == 2) CHECK(mkfifoat(scratch_fd, log_name(0), 0600) == 0);
        CHECK(wr_topic_read_begin(&read, r, &request) == 0 && !wr_topic_read_next(&read, &record, &at) && wr_topic_read_end(&read, &result) != 0);
        wr_topic_reader_begin(r, NULL, g.rows);
        CHECK(unlinkat(scratch_fd, log_name(0), i ? 0 : AT_REMOVEDIR) == 0);
    }
    wr_topic_reader_free(r);
    rig_end(&g);
}

/* ---- retention ---- */

static void retention(void) {
    rig g;
    rig_begin(&g, FILE_BYTES, RING_BYTES, 50);
    rig_fill(&g, 1500, 0, 1500);
    wr_topic_row *row = wr_topic_row_at(g.rows, g.row[0]);
    uint64_t first = 2 * FILE_BYTES, minimum = 0, removed;
    while (g.records[minimum].position < first) minimum++;
    look_at(&g, 0);
    wr_topic_reader *r = reader_of(&g, 0, false), *late = reader_of(&g, 0, false);
    CHECK(read_at(r, 0, 0, 1).status == WR_READ_FOUND); /* has files open */
    /* The log's minimum is there, its files are not, and the queue's minimum comes last. */
    atomic_store(&g.rows->first, first);
    CHECK(unlink(rig_path(0)) == 0 && unlink(rig_path(FILE_BYTES)) == 0);
    wr_topic_read_result a = read_at(late, 0, 5, 100);
    CHECK(a.status == WR_READ_MESSAGE_WAS_REMOVING && a.next == 6);
    atomic_store(&row->minimum, minimum);
    CHECK((a = read_at(late, 0, 6, 100)).status == WR_READ_OFFSET_TOO_SMALL && a.next == minimum);
    CHECK(read_at(late, 0, minimum, 100).records_n == 100);
    CHECK(read_at(r, 0, minimum, 1).status == WR_READ_FOUND);
    for (int i = 0; i < WR_LOG_FILES_OPEN; i++) CHECK(r->log.files[i].fd < 0 || r->log.files[i].base >= first); /* the disk has its space again */
    /* The queue's files follow. */
    wr_queue_files *files = wr_queue_files_new(scratch_fd, "consumequeue/flights/0", g.entries);
    CHECK(files && wr_queue_files_remove(files, minimum, &removed) == 0 && removed);
    wr_queue_files_free(files);
    wr_topic_reader_begin(late, NULL, g.rows);
    uint64_t offset;
    CHECK(wr_topic_seek(late, 0, 0, WR_SEEK_LOWER, &offset) == 0 && offset == minimum);
    CHECK(wr_topic_seek(late, 0, g.records[minimum].ms - 1, WR_SEEK_UPPER, &offset) == 0 && (offset == WR_SEEK_NONE || offset >= minimum));
    wr_record record;
    const uint8_t *bytes;
    int error;
    CHECK(wr_topic_lookup_at(late, g.records[3].position, NULL, 0, &record, &bytes, &error) == WR_MESSAGE_NONE);
    wr_topic_reader_free(r);
    wr_topic_reader_free(late);
    rig_end(&g);
}

/* ---- times ---- */

static void times(void) {
    for (int round = 0; round < 4; round++) {
        rig g;
        rig_begin(&g, FILE_BYTES, RING_BYTES, 40);
        uint64_t offset, lost_from = UINT64_MAX, lost_to = 0;
        for (int i = 0; i < 600; i++) {
            rig_record r = rig_any(&g, 0, 300);
            r.row = (uint32_t)random_below(2);
            r.ms += random_below(4) ? 0 : (int64_t)random_below(30);
            rig_append(&g, r);
        }
        rig_commit(&g, false);
        if (round > 1) { /* the log lost some, and their units say so; or these are zeros: then one of them may be what is looked for */
            uint8_t nothing[20] __attribute__((aligned(4))) = {0};
            if (round == 2) wr_unit_put(nothing, 0, 0, WR_UNIT_EMPTY, 0);
            lost_from = random_below(g.next[0]);
            lost_to = lost_from + random_below(g.next[0] - lost_from) + 1;
            for (offset = lost_from; offset < lost_to; offset++) {
                char path[80];
                snprintf(path, sizeof path, "consumequeue/flights/0/%020llu", (unsigned long long)offset / 40 * 40 * 20);
                change(path, offset % 40 * 20, nothing, 20);
            }
        }
        wr_topic_reader *r = reader_of(&g, 0, round % 2);
        for (int64_t t = g.records[0].ms - 2; t <= g.now + 2; t++) {
            uint64_t lower = g.next[0], upper = WR_SEEK_NONE;
            for (uint32_t i = g.n; i-- > 0;) {
                const rig_record *m = &g.records[i];
                if (m->row || (m->offset >= lost_from && m->offset < lost_to)) continue;
                if (m->ms >= t) lower = m->offset;
                if (m->ms <= t && upper == WR_SEEK_NONE) upper = m->offset;
            }
            if (round == 3 && lower == lost_to) lower = lost_from;
            CHECK(wr_topic_seek(r, 0, t, WR_SEEK_LOWER, &offset) == 0 && offset == lower);
            CHECK(wr_topic_seek(r, 0, t, WR_SEEK_UPPER, &offset) == 0 && offset == upper);
        }
        CHECK(wr_topic_seek(r, 0, INT64_MIN, WR_SEEK_UPPER, &offset) == 0 && offset == WR_SEEK_NONE);
        CHECK(wr_topic_seek(r, 2, 0, WR_SEEK_LOWER, &offset) == 0 && offset == 0);
        CHECK(wr_topic_seek(r, 9, 0, WR_SEEK_LOWER, &offset) == ENXIO);
        wr_topic_reader_free(r);
        rig_end(&g);
    }
}

/* ---- keys and ids ---- */

static void expect_keys(const rig *g, wr_topic_reader *r, uint32_t topic, uint32_t key, int64_t since, int64_t until) {
    const wr_text text = {(const uint8_t *)rig_keys[key], (uint32_t)strlen(rig_keys[key])};
    wr_topic_lookup lookup;
    wr_record record;
    const uint8_t *bytes;
    int error;
    CHECK(wr_topic_lookup_begin(&lookup, r, text, since, until) == 0);
    for (uint32_t i = g->shown; i-- > 0;) {
        const rig_record *m = &g->records[i];
        if (m->row / RIG_QUEUES != topic || m->id != g->ids[topic] || !(m->keys >> key & 1) || m->ms < since || m->ms > until) continue;
        CHECK(wr_topic_lookup_next(&lookup, &record, &bytes, &error) == WR_MESSAGE_THERE && rig_same(m, &record, bytes));
    }
    CHECK(wr_topic_lookup_next(&lookup, &record, &bytes, &error) == WR_MESSAGE_NONE && !error);
}

static void keys_and_ids(void) {
    rig g;
    wr_record record;
    const uint8_t *bytes;
    int error;
    rig_begin(&g, FILE_BYTES, RING_BYTES, 100);
    rig_fill(&g, 300, RIG_ROWS, 300);
    /* A topic that was deleted, and is there again: another one. */
    CHECK(wr_dispatch_drop(g.dispatch, g.ids[1]) == 0);
    for (uint32_t row = RIG_QUEUES; row < 2 * RIG_QUEUES; row++) {
        wr_topic_row_take(g.rows, g.row[row]);
        g.next[row] = 0;
    }
    g.ids[1] = 50;
    rig_add(&g, 1);
    rig_show(&g, 1);
    rig_fill(&g, 300, RIG_ROWS, 300);
    rig_append(&g, rig_any(&g, RIG_QUEUES, 300)); /* not shown */
    wr_topic_reader *r[RIG_TOPICS];
    for (uint32_t topic = 0; topic < RIG_TOPICS; topic++) {
        r[topic] = reader_of(&g, topic, topic % 2);
        for (uint32_t key = 0; key < RIG_KEYS; key++) {
            expect_keys(&g, r[topic], topic, key, INT64_MIN, INT64_MAX);
            for (int i = 0; i < 20; i++) {
                int64_t since = g.records[random_below(g.n)].ms, until = g.records[random_below(g.n)].ms;
                expect_keys(&g, r[topic], topic, key, since, until);
            }
        }
    }
    for (uint32_t i = 0; i < g.n; i++) {
        const rig_record *m = &g.records[i];
        for (uint32_t topic = 0; topic < RIG_TOPICS; topic++) {
            bool there = m->row / RIG_QUEUES == topic && m->id == g.ids[topic] && i < g.shown;
            wr_message_kind kind = wr_topic_lookup_at(r[topic], m->position, rig_host, sizeof rig_host, &record, &bytes, &error);
            CHECK(kind == (there ? WR_MESSAGE_THERE : WR_MESSAGE_NONE) && (!there || rig_same(m, &record, bytes)));
            if (i % 16) continue;
            for (uint64_t at = 1; at < 60; at++) /* within a record */
                CHECK(wr_topic_lookup_at(r[topic], m->position + at, NULL, 0, &record, &bytes, &error) == WR_MESSAGE_NONE);
        }
        uint8_t other[8] = {1};
        CHECK(wr_topic_lookup_at(r[m->row / RIG_QUEUES], m->position, other, 8, &record, &bytes, &error) == WR_MESSAGE_NONE);
    }
    CHECK(wr_topic_lookup_at(r[0], 1ull << 62, NULL, 0, &record, &bytes, &error) == WR_MESSAGE_NONE);
    CHECK(wr_topic_lookup_at(r[0], UINT64_MAX, NULL, 0, &record, &bytes, &error) == WR_MESSAGE_NONE);
    for (uint32_t topic = 0; topic < RIG_TOPICS; topic++) wr_topic_reader_free(r[topic]);
    rig_end(&g);
}

/* A body that holds a record which says that it lies right there, of a message that is there. */
static void a_record_in_a_body(void) {
    rig g;
    uint8_t forged[400];
    wr_record record;
    const uint8_t *bytes;
    wr_record_reason reason;
    int error;
    rig_begin(&g, FILE_BYTES, RING_BYTES, 100);
    rig_fill(&g, 3, 0, 10);
    uint8_t *to;
    uint64_t position;
    const struct iovec inner = {"forged", 6};
    uint32_t inner_n = wr_record_size(0, 7, 0, 6, &reason), size = wr_record_size(0, 7, 0, inner_n, &reason);
    CHECK((to = wr_topic_log_reserve(g.log, size, &position)));
    uint64_t body_at = WR_LOG_HEAD_SIZE + 8 + WR_LOG_STORED_SIZE + 8 + WR_LOG_TAIL_SIZE;
    for (uint64_t offset = 1; offset < 5; offset++) {
        wr_record_head head = {.queue_offset = offset, .flag = g.ids[0], .physical_offset = position + body_at, .store_timestamp = (uint64_t)g.now};
        CHECK(wr_record_encode(forged, inner_n, &head, "flights", 7, NULL, 0, &inner, 1) == WR_RECORD_GOOD);
        const struct iovec body = {forged, inner_n};
        head.queue_offset = 3;
        head.physical_offset = position;
        CHECK(wr_record_encode(to, size, &head, "flights", 7, NULL, 0, &body, 1) == WR_RECORD_GOOD);
        if (offset == 1) {
            wr_topic_log_append(g.log, size, (uint64_t)g.now);
            rig_commit(&g, false);
        } else {
            change(log_name(0), position, to, size);
        }
        wr_topic_reader *r = reader_of(&g, 0, true);
        CHECK(wr_topic_lookup_at(r, position, NULL, 0, &record, &bytes, &error) == WR_MESSAGE_THERE);
        CHECK(wr_topic_lookup_at(r, position + body_at, NULL, 0, &record, &bytes, &error) == WR_MESSAGE_NONE);
        wr_topic_reader_free(r);
    }
    rig_end(&g);
}

static void a_damaged_index(void) {
    rig g;
    wr_record record;
    const uint8_t *bytes;
    int error, bad = 0, there = 0;
    rig_begin(&g, FILE_BYTES, RING_BYTES, 100);
    for (int i = 0; i < 300; i++) {
        rig_record m = rig_any(&g, 0, 50);
        m.keys = 2;
        m.ms += 5;
        rig_append(&g, m);
    }
    rig_commit(&g, false);
    wr_folder_list list;
    char path[60];
    CHECK(wr_folder_read(scratch_fd, "index", WR_INDEX_NAME_DIGITS, &list) == 0 && list.n > 3);
    snprintf(path, sizeof path, "index/%.17s", list.names[1]);
    change(path, WR_KEY_INDEX_HEADER_AT_INDEX_COUNT, "\xff\xff\xff\xff", 4);
    snprintf(path, sizeof path, "index/%.17s", list.names[2]);
    cut(path, 100);
    wr_topic_reader *r = reader_of(&g, 0, true);
    wr_topic_lookup lookup;
    wr_message_kind kind;
    const wr_text key = {(const uint8_t *)"Aa", 2};
    CHECK(wr_topic_lookup_begin(&lookup, r, key, INT64_MIN, INT64_MAX) == 0);
    while ((kind = wr_topic_lookup_next(&lookup, &record, &bytes, &error)) != WR_MESSAGE_NONE) {
        CHECK(kind == WR_MESSAGE_THERE || kind == WR_MESSAGE_DAMAGED);
        if (kind == WR_MESSAGE_THERE) there++;
        else CHECK(!strncmp(r->damage.file, "index/", 6) && !strncmp(r->damage.file + 6, list.names[bad++ ? 1 : 2], 17));
    }
    CHECK(bad == 2 && there == 300 - 2 * 59); /* 59 entries a file */
    wr_folder_list_free(&list);
    wr_topic_reader_free(r);
    rig_end(&g);
}

/* ---- waiting, and an appender that laps ---- */

typedef struct {
    rig *g;
    wr_topic_reader *r;
    uint64_t read_n;
    uint32_t row, wanted;
    bool process;
} follower;

static void *follow(void *argument) {
    follower *f = argument;
    static _Thread_local wr_topic_read read;
    uint64_t offset = 0;
    while (f->read_n < f->wanted) {
        wr_topic_request q = all_of(f->row % RIG_QUEUES, offset, 1 + (uint32_t)(offset % 50));
        wr_topic_read_result a;
        wr_record record;
        const uint8_t *bytes;
        CHECK(wr_topic_read_begin(&read, f->r, &q) == 0);
        while (wr_topic_read_next(&read, &record, &bytes)) {
            uint32_t seed, n;
            memcpy(&seed, bytes + record.body_at, 4); /* the body says what it has to be */
            memcpy(&n, bytes + record.body_at + 4, 4);
            CHECK(seed == record.queue_offset && n == record.body_length);
            for (uint32_t i = 8; i < n; i++) CHECK(bytes[record.body_at + i] == (uint8_t)(seed * 31 + i));
            CHECK(record.queue_offset == offset++);
            f->read_n++;
        }
        CHECK(wr_topic_read_end(&read, &a) == 0);
        CHECK(a.status == WR_READ_FOUND || a.status == WR_READ_OFFSET_OVERFLOW_ONE || a.status == WR_READ_NO_MESSAGE_IN_QUEUE);
        if (a.status == WR_READ_FOUND) continue;
        int error = wr_topic_reader_wait(f->r, f->row % RIG_QUEUES, offset, 2000000000ull);
        CHECK(!error || error == ETIMEDOUT || error == EINTR);
    }
    return NULL;
}

static void append_numbered(rig *g, uint32_t row, uint32_t n) {
    static uint8_t body[3000];
    wr_record_reason reason;
    uint32_t number = (uint32_t)g->next[row]++;
    memcpy(body, &number, 4);
    memcpy(body + 4, &n, 4);
    for (uint32_t i = 8; i < n; i++) body[i] = (uint8_t)(number * 31 + i);
    const struct iovec part = {body, n};
    uint32_t size = wr_record_size(0, 7, 0, n, &reason);
    uint64_t position;
    uint8_t *to;
    rig_files(g);
    while (!(to = wr_topic_log_reserve(g->log, size, &position))) {
        CHECK(errno == EAGAIN);
        rig_files(g);
        if (wr_topic_log_look(g->log)->wants_seal) rig_commit(g, false);
    }
    const wr_record_head head = {.queue_id = row % RIG_QUEUES, .flag = g->ids[0], .queue_offset = number, .physical_offset = position,
                                 .store_timestamp = (uint64_t)g->now};
    CHECK(wr_record_encode(to, size, &head, "flights", 7, NULL, 0, &part, 1) == WR_RECORD_GOOD);
    wr_topic_log_append(g->log, size, (uint64_t)g->now);
}

static void an_appender_that_laps(void) {
    enum { MANY = ROUNDS(6000) };
    rig g;
    rig_begin(&g, 16 * FILE_BYTES, RING_BYTES, 500);
    follower f[3] = {{.row = 0, .wanted = MANY}, {.row = 1, .wanted = MANY}, {.row = 0, .wanted = MANY, .process = true}};
    for (int i = 0; i < 3; i++) {
        f[i].g = &g;
        f[i].r = reader_of(&g, 0, true);
    }
    pid_t child = fork_child();
    if (!child) {
        follow(&f[2]);
        _exit(f[2].read_n == MANY ? 0 : 1);
    }
    pthread_t threads[2];
    for (int i = 0; i < 2; i++) CHECK(pthread_create(&threads[i], NULL, follow, &f[i]) == 0);
    for (uint32_t i = 0; i < 2 * MANY; i++) {
        append_numbered(&g, i % 2, 8 + (uint32_t)random_below(700));
        if (random_below(30) == 0) rig_commit(&g, false);
    }
    rig_commit(&g, false);
    for (int i = 0; i < 2; i++) CHECK(pthread_join(threads[i], NULL) == 0);
    ended_well(child);
    for (int i = 0; i < 3; i++) wr_topic_reader_free(f[i].r);
    rig_end(&g);
}

static void *wait_for_it(void *argument) {
    wr_topic_reader *r = argument;
    wr_topic_bounds bounds;
    int error;
    do error = wr_topic_reader_wait(r, 0, 0, 60000000000ull);
    while (!error && !(error = wr_topic_reader_bounds(r, 0, &bounds)) && !bounds.maximum);
    CHECK(error == 0 || error == ENXIO);
    return NULL;
}

static void waiting(void) {
    for (int deleted = 0; deleted < 2; deleted++) {
        rig g;
        pthread_t thread;
        rig_begin(&g, FILE_BYTES, RING_BYTES, 100);
        wr_topic_reader *r = reader_of(&g, 0, true);
        CHECK(wr_topic_reader_wait(r, 0, 0, 1000000) == ETIMEDOUT && wr_topic_reader_wait(r, 7, 0, 1000000) == ENXIO);
        CHECK(pthread_create(&thread, NULL, wait_for_it, r) == 0);
        wr_topic_wake *wake = wr_topic_wake_of(g.rows, g.ids[0]);
        while (!atomic_load(&wake->waiters)) sched_yield();
        if (deleted) {
            wr_topic_row_take(g.rows, g.row[0]);
            wr_topic_wake_readers(g.rows, g.ids[0]);
        } else {
            rig_fill(&g, 1, 0, 10);
        }
        CHECK(pthread_join(thread, NULL) == 0 && !atomic_load(&wake->waiters));
        wr_topic_reader_free(r);
        rig_end(&g);
    }
}

typedef struct {
    wr_topic_reader *r;
    uint64_t stamp;
    uint32_t which;
    int error;
} a_wait;

/* For messages of two queues, none of which has been seen, and for the group in row 7. */
static void *wait_for_any(void *argument) {
    a_wait *w = argument;
    const wr_topic_seen queues[] = {{.queue = 1}, {.queue = 0}};
    const wr_topic_group_seen group = {.row = 7, .stamp = w->stamp};
    do w->error = wr_topic_reader_wait_any(w->r, queues, 2, &group, 60000000000ull, &w->which);
    while (!w->error && w->which == WR_TOPIC_NOTHING);
    return NULL;
}

static void waiting_for_several(void) {
    enum { MESSAGE, CHANGE, DELETED, WAYS };
    for (int way = 0; way < WAYS; way++) {
        rig g;
        pthread_t thread;
        rig_begin(&g, FILE_BYTES, RING_BYTES, 100);
        a_wait w = {.r = reader_of(&g, 0, true), .stamp = 5};
        wr_topic_group_tell(g.rows, 7, g.ids[0], 5);
        const wr_topic_seen seen[] = {{.queue = 0}, {.queue = 1}}, none = {.queue = 7}, far = {.queue = UINT32_MAX};
        const wr_topic_group_seen mine = {.row = 7, .stamp = 5}, nobody = {.row = UINT32_MAX}, other = {.row = 7, .stamp = 4};
        CHECK(wr_topic_reader_wait_any(w.r, seen, 2, &mine, 1000000, &w.which) == 0 && w.which == WR_TOPIC_NOTHING);
        CHECK(wr_topic_reader_wait_any(w.r, seen, 0, &nobody, 0, &w.which) == 0 && w.which == WR_TOPIC_NOTHING);
        CHECK(wr_topic_reader_wait_any(w.r, seen, 2, &other, 60000000000ull, &w.which) == 0 && w.which == WR_TOPIC_GROUP_CHANGED);
        CHECK(wr_topic_reader_wait_any(w.r, &none, 1, &mine, 0, &w.which) == ENXIO);
        CHECK(wr_topic_reader_wait_any(w.r, &far, 1, &mine, 0, &w.which) == ENXIO);
        CHECK(pthread_create(&thread, NULL, wait_for_any, &w) == 0);
        wr_topic_wake *wake = wr_topic_wake_of(g.rows, g.ids[0]);
        while (!atomic_load(&wake->waiters)) sched_yield();
        if (way == MESSAGE) {
            rig_fill(&g, 1, 0, 10);
        } else if (way == CHANGE) {
            wr_topic_group_tell(g.rows, 7, g.ids[0], 6);
        } else {
            wr_topic_row_take(g.rows, g.row[0]);
            wr_topic_wake_readers(g.rows, g.ids[0]);
        }
        CHECK(pthread_join(thread, NULL) == 0 && !atomic_load(&wake->waiters));
        if (way == MESSAGE) {
            uint64_t maximum = wr_topic_row_at(g.rows, g.row[0])->maximum;
            const uint32_t queue = maximum ? 0 : 1;
            CHECK(w.error == 0 && w.which == 1 - queue);
            const wr_topic_seen beyond[] = {{.queue = queue, .seen = 100}, {.queue = 1 - queue}}; /* an end that lies before what was seen */
            CHECK(wr_topic_reader_wait_any(w.r, beyond, 2, &mine, 60000000000ull, &w.which) == 0 && w.which == 0);
        } else {
            CHECK(way == CHANGE ? w.error == 0 && w.which == WR_TOPIC_GROUP_CHANGED : w.error == ENXIO);
        }
        wr_topic_reader_begin(w.r, g.ring, NULL);
        CHECK(wr_topic_reader_wait_any(w.r, seen, 2, &nobody, 0, &w.which) == ENXIO);
        wr_topic_reader_free(w.r);
        rig_end(&g);
    }
}

#define CHANGES 900

typedef struct {
    wr_topic_reader *r;
    _Atomic uint64_t seen;
} a_member;

/* Synchronises after each change that it hears of. */
static void *hear(void *argument) {
    a_member *m = argument;
    for (wr_topic_group_seen group = {.row = 7}; group.stamp < CHANGES;) {
        uint32_t which;
        CHECK(wr_topic_reader_wait_any(m->r, NULL, 0, &group, 60000000000ull, &which) == 0); /* a change that is missed is a wait of a minute */
        if (which == WR_TOPIC_NOTHING) continue;
        const uint64_t stamp = atomic_load(&wr_topic_group_row_at(m->r->rows, 7)->stamp);
        CHECK(which == WR_TOPIC_GROUP_CHANGED && stamp > group.stamp);
        group.stamp = stamp;
        atomic_store(&m->seen, stamp);
    }
    return NULL;
}

static void no_change_is_missed(void) {
    rig g;
    pthread_t threads[2];
    rig_begin(&g, FILE_BYTES, RING_BYTES, 100);
    a_member members[] = {{.r = reader_of(&g, 0, true)}, {.r = reader_of(&g, 0, true)}};
    for (int i = 0; i < 2; i++) CHECK(pthread_create(&threads[i], NULL, hear, &members[i]) == 0);
    for (uint64_t stamp = 1; stamp <= CHANGES; stamp++) {
        wr_topic_group_tell(g.rows, 7, g.ids[0], stamp);
        for (int i = 0; i < 2 && stamp % 3 == 0; i++) /* now and then they sleep again before the next one */
            while (atomic_load(&members[i].seen) < stamp) sched_yield();
    }
    for (int i = 0; i < 2; i++) {
        CHECK(pthread_join(threads[i], NULL) == 0);
        wr_topic_reader_free(members[i].r);
    }
    CHECK(!atomic_load(&wr_topic_wake_of(g.rows, g.ids[0])->waiters));
    rig_end(&g);
}

/* What is confirmed and not shown yet is waited for, also without time to wait; or `behind`. */
static void confirmed_is_seen_by_several(void) {
    rig g;
    rig_begin(&g, FILE_BYTES, RING_BYTES, 100);
    wr_topic_reader *r = reader_of(&g, 0, true);
    const wr_topic_seen seen = {.queue = 0};
    const wr_topic_group_seen nobody = {.row = UINT32_MAX};
    uint32_t which;
    r->patience_ns = 1000000;
    wr_topic_confirm_from(g.rows, 1);
    CHECK(wr_topic_reader_wait_any(r, &seen, 1, &nobody, 0, &which) == 0 && which == WR_TOPIC_NOTHING && !r->behind); /* nothing is to come */
    atomic_store(&wr_topic_row_at(g.rows, g.row[0])->appended, 1);
    CHECK(wr_topic_reader_wait_any(r, &seen, 1, &nobody, 60000000000ull, &which) == 0 && which == WR_TOPIC_NOTHING && r->behind);
    r->behind = false;
    atomic_store(&wr_topic_row_at(g.rows, g.row[0])->maximum, 1);
    CHECK(wr_topic_reader_wait_any(r, &seen, 1, &nobody, 0, &which) == 0 && which == 0 && !r->behind);
    wr_topic_reader_free(r);
    rig_end(&g);
}

/* ---- how far bytes reach ---- */

/* As a read of so many bytes, which gives a message at least; and files that are gone have none. */
static void spans(void) {
    rig g;
    rig_begin(&g, FILE_BYTES, RING_BYTES, 100);
    for (uint32_t i = 0; i < 20; i++) rig_fill(&g, 20, 0, 100 + 37 * i);
    wr_topic_reader *r = reader_of(&g, 0, true);
    uint64_t stop, bytes, all;
    CHECK(wr_topic_span(r, 0, 0, UINT64_MAX, UINT64_MAX >> 1, &stop, &all) == 0 && stop == 400 && all > 400 * 100);
    for (uint64_t most = 0; most < all; most += 997) {
        for (uint64_t from = 0; from < 400; from += 61) {
            wr_topic_request q = all_of(0, from, 4096);
            q.bytes_max = most;
            model = &g;
            model_row = 0;
            const wr_topic_read_result a = read_some(r, &q);
            CHECK(wr_topic_span(r, 0, from, UINT64_MAX, most, &stop, &bytes) == 0 && bytes <= most);
            CHECK(stop == a.next || (stop == from && !bytes && a.records_n == 1));
            CHECK(wr_topic_span(r, 0, from, from + 3, most, &stop, &bytes) == 0 && stop <= from + 3);
        }
    }
    CHECK(wr_topic_span(r, 0, 400, UINT64_MAX, 5, &stop, &bytes) == 0 && stop == 400 && !bytes);
    CHECK(wr_topic_span(r, 99, 0, UINT64_MAX, 5, &stop, &bytes) == ENXIO);
    atomic_store(&wr_topic_row_at(g.rows, g.row[0])->minimum, 150);
    CHECK(wr_topic_span(r, 0, 0, UINT64_MAX, 0, &stop, &bytes) == 0 && stop == 150 && !bytes);
    CHECK(wr_topic_span(r, 0, 0, 100, 0, &stop, &bytes) == 0 && stop == 100 && !bytes);
    wr_topic_reader_free(r);
    rig_end(&g);
}

/* ---- without memory ---- */

static void without_memory(void) {
    static const wr_topic_place nowhere[] = {{.log_file_bytes = 0, .consume_queue_entries = 1, .index_slots = 1, .index_entries = 2},
                                             {.log_file_bytes = 1, .consume_queue_entries = 0, .index_slots = 1, .index_entries = 2},
                                             {.log_file_bytes = 1, .consume_queue_entries = 1, .index_slots = 0, .index_entries = 2},
                                             {.log_file_bytes = 1, .consume_queue_entries = 1, .index_slots = 1, .index_entries = 2, .ring_bytes = 3}};
    for (int i = 0; i < 4; i++) CHECK(!wr_topic_reader_new(&nowhere[i], 1, "t", 1));
    rig g;
    rig_begin(&g, FILE_BYTES, RING_BYTES, 100);
    rig_fill(&g, 20, 0, 300);
    const wr_topic_place place = {.root = scratch_fd, .log_file_bytes = g.file_bytes, .ring_bytes = g.ring_bytes, .consume_queue_entries = g.entries,
                                  .index_slots = g.slots, .index_entries = g.index_entries};
    static const char *const names[] = {"", "a/b", ".", "..", ".x"};
    for (int i = 0; i < 5; i++) CHECK(!wr_topic_reader_new(&place, 1, names[i], (uint32_t)strlen(names[i])));
    static wr_topic_read read;
    wr_record record;
    const uint8_t *bytes;
    wr_topic_read_result a;
    bool done = false;
    for (int64_t n = 0; !done; n++) {
        CHECK(n < 100);
        scarce_begin(n);
        int error = ENOMEM;
        wr_topic_reader *r = wr_topic_reader_new(&place, g.ids[0], "flights", 7);
        if (r) {
            const wr_topic_request q = all_of(0, 0, 100);
            wr_topic_reader_begin(r, g.ring, g.rows);
            error = wr_topic_read_begin(&read, r, &q);
            while (!error && wr_topic_read_next(&read, &record, &bytes)) {}
            if (!error) error = wr_topic_read_end(&read, &a);
            CHECK(error == ENOMEM || !error);
            const wr_topic_seen seen[] = {{.queue = 1, .seen = 7}, {.queue = 0}};
            const wr_topic_group_seen nobody = {.row = UINT32_MAX};
            uint32_t which = WR_TOPIC_NOTHING;
            const int waited = wr_topic_reader_wait_any(r, seen, 2, &nobody, 0, &which);
            CHECK(waited == ENOMEM || (!waited && which != WR_TOPIC_NOTHING));
            if (waited) error = waited;
        }
        done = !scarce_end();
        CHECK(!done || (!error && a.records_n == 20));
        wr_topic_reader_free(r);
    }
    rig_end(&g);
}

int main(int argc, char **argv) {
    scratch_begin("reader_test", argc, argv);
    statuses();
    WITHOUT_THREADS(large_records());
    WITHOUT_THREADS(damage());
    retention();
    times();
    keys_and_ids();
    WITHOUT_THREADS(a_record_in_a_body());
    WITHOUT_THREADS(a_damaged_index());
    waiting();
    waiting_for_several();
    no_change_is_missed();
    confirmed_is_seen_by_several();
    an_appender_that_laps();
    against_a_model();
    spans();
    WITHOUT_THREADS(without_memory());
    scratch_end();
    return 0;
}
