/* Target: what readers of topics read: the log's files and its ring, consume queues, the key index, the rows.
 *
 * Input: mode, messages (queue, body, tag, keys), then steps: reads of a range, by time, key or position, and, with bit 0 of the mode, damage
 * of any bytes, files that are cut or go. Some of the log lies in the ring alone. Checked: no bad access; each call ends, and goes
 * forward; what is given is a sound record of the queue and offset that were asked for; where nobody damaged anything it is what a list
 * has. */
#define _GNU_SOURCE
#include "fuzz.h"
#include "kernel/crc32.h"
#include "topics/hash.h"
#include "topics/lookup.h"
#include "topics/properties.h"
#include "topics/read.h"
#include "topics/seek.h"
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

enum { LOG = 4096, FILES = 3, ENTRIES = 8, SLOTS = 3, KEYS = 40, QUEUES = 2, MESSAGES = 24, ID = 5 };
#define NOW 1700000000000ll
#define INDEX_BYTES (WR_KEY_INDEX_HEADER_SIZE + SLOTS * WR_KEY_INDEX_SLOT_SIZE + KEYS * WR_KEY_INDEX_ENTRY_SIZE)

static const char *const names[] = {"Aa", "BB", "c"};

typedef struct {
    uint64_t position, offset;
    int64_t ms;
    uint32_t queue, size, tag, key; /* of names; 3: none */
} a_message;

static struct {
    uint8_t log[FILES * LOG], units[QUEUES][(MESSAGES / ENTRIES + 1) * ENTRIES * WR_CONSUME_QUEUE_UNIT_SIZE];
    uint8_t *index, *ring;
    wr_topic_rows *rows;
    a_message messages[MESSAGES];
    uint32_t n;
    uint64_t next[QUEUES], end;
    bool sound;
    wr_topic_reader *reader;
} f;

static char folder[200];
static int folder_fd = -1;

static const char *log_file(uint64_t n) {
    static char path[100];
    snprintf(path, sizeof path, "commitlog/%020llu", (unsigned long long)n * LOG);
    return path;
}

static const char *queue_file(uint32_t queue, uint64_t n) {
    static char path[100];
    snprintf(path, sizeof path, "consumequeue/t/%u/%020llu", queue, (unsigned long long)n * ENTRIES * WR_CONSUME_QUEUE_UNIT_SIZE);
    return path;
}

#define INDEX_FILE "index/20231114221320000"

static void clean(void) {
    static const char *const folders[] = {"commitlog", "index", "consumequeue/t/0", "consumequeue/t/1", "consumequeue/t", "consumequeue"};
    for (uint64_t i = 0; i < FILES; i++) unlinkat(folder_fd, log_file(i), 0);
    for (uint64_t i = 0; i < 2 * (MESSAGES / ENTRIES + 1); i++) unlinkat(folder_fd, queue_file(i % 2, i / 2), 0);
    unlinkat(folder_fd, INDEX_FILE, 0);
    for (int i = 0; i < 6; i++) unlinkat(folder_fd, folders[i], AT_REMOVEDIR);
    rmdir(folder);
}

static void once(void) {
    static const char *const folders[] = {"commitlog", "index", "consumequeue", "consumequeue/t", "consumequeue/t/0", "consumequeue/t/1"};
    const char *tmp = getenv("TMPDIR");
    snprintf(folder, sizeof folder, "%s/wfuzz-XXXXXX", tmp ? tmp : "/tmp");
    FUZZ_CHECK(mkdtemp(folder));
    folder_fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    FUZZ_CHECK(folder_fd >= 0);
    for (int i = 0; i < 6; i++) FUZZ_CHECK(mkdirat(folder_fd, folders[i], 0700) == 0);
    atexit(clean);
    f.rows = fuzz_memory(WR_TOPIC_ROWS_BYTES);
    f.ring = fuzz_memory(WR_PAGE_BYTES + LOG);
    f.index = fuzz_memory(INDEX_BYTES);
}

static void write_file(const char *path, const void *bytes, size_t n) {
    int fd = openat(folder_fd, path, O_WRONLY | O_CREAT, 0600); /* not O_TRUNC, which some file systems answer with a flush */
    FUZZ_CHECK(fd >= 0 && pwrite(fd, bytes, n, 0) == (ssize_t)n);
    close(fd);
}

/* ---- a topic that is right ---- */

static void append(fuzz_input *in, wr_key_writer *index) {
    a_message m = {.queue = fuzz8(in) % QUEUES, .tag = fuzz8(in) % 4, .key = fuzz8(in) % 4, .ms = NOW + f.n / 2 * (fuzz8(in) % 3)};
    uint8_t body[600], properties[200];
    uint32_t properties_n = 0, body_n = fuzz16(in) % sizeof body;
    wr_record_reason reason;
    if (f.n && m.ms < f.messages[f.n - 1].ms) m.ms = f.messages[f.n - 1].ms;
    memset(body, fuzz8(in), body_n);
    if (m.tag < 3) properties_n += wr_properties_put(properties, 200, "TAGS", 4, names[m.tag], strlen(names[m.tag]));
    if (m.key < 3) properties_n += wr_properties_put(properties + properties_n, 100, "KEYS", 4, names[m.key], strlen(names[m.key]));
    m.size = wr_record_size(0, 1, properties_n, body_n, &reason);
    if (f.end % LOG + m.size + WR_BLANK_SIZE > LOG) f.end += LOG - f.end % LOG;
    if (f.end + m.size > sizeof f.log) return;
    m.offset = f.next[m.queue]++;
    m.position = f.end;
    const wr_record_head head = {.queue_id = m.queue, .flag = ID, .queue_offset = m.offset, .physical_offset = m.position,
                                 .store_timestamp = (uint64_t)m.ms};
    const struct iovec part = {body, body_n};
    FUZZ_CHECK(wr_record_encode(f.log + m.position, m.size, &head, "t", 1, properties, properties_n, &part, 1) == WR_RECORD_GOOD);
    wr_unit_put(f.units[m.queue], m.offset, m.position, m.size, m.tag < 3 ? wr_tags_code(names[m.tag], strlen(names[m.tag])) : 0);
    if (m.key < 3) wr_key_put(index, wr_key_hash(wr_key_hash_topic("t", 1), names[m.key], strlen(names[m.key])), m.position, m.ms);
    f.end += m.size;
    f.messages[f.n++] = m;
}

static void show(void) {
    wr_topic_ring *ring = (wr_topic_ring *)(void *)f.ring;
    memset(f.ring, 0, WR_PAGE_BYTES + LOG);
    uint64_t low = f.end > LOG ? f.end - LOG : 0;
    for (uint64_t at = low; at < f.end; at++) f.ring[WR_PAGE_BYTES + at % LOG] = f.log[at];
    atomic_store(&ring->low, low);
    atomic_store(&ring->appended, f.end);
    memset(f.rows, 0, sizeof *f.rows + 4 * sizeof(wr_topic_row));
    for (uint32_t queue = 0; queue < QUEUES; queue++) wr_topic_row_give(f.rows, queue, wr_topic_row_key(ID, queue), 0, f.next[queue]);
}

static void store(fuzz_input *in) {
    /* The last file may lie in the ring alone. */
    uint64_t written = fuzz8(in) % 2 && f.end > LOG ? f.end / LOG * LOG : sizeof f.log;
    if (f.end - f.end / LOG * LOG == 0) written = sizeof f.log;
    for (uint64_t i = 0; i < FILES; i++) {
        if (i * LOG < written) write_file(log_file(i), f.log + i * LOG, LOG);
        else unlinkat(folder_fd, log_file(i), 0);
    }
    for (uint64_t i = 0; i < 2 * (MESSAGES / ENTRIES + 1); i++) {
        const size_t bytes = ENTRIES * WR_CONSUME_QUEUE_UNIT_SIZE;
        write_file(queue_file(i % 2, i / 2), f.units[i % 2] + i / 2 * bytes, bytes);
    }
    write_file(INDEX_FILE, f.index, INDEX_BYTES);
}

/* ---- damage ---- */

static void spoil_file(fuzz_input *in, const char *path, uint64_t bytes) {
    int fd = openat(folder_fd, path, O_RDWR);
    uint8_t value[8], n = 1 + fuzz8(in) % 8;
    uint64_t at = fuzz16(in) % bytes;
    fuzz_bytes(in, value, n);
    if (fd < 0) return;
    FUZZ_CHECK(pwrite(fd, value, n, (off_t)at) == n);
    if (fuzz8(in) % 8 == 0) FUZZ_CHECK(ftruncate(fd, (off_t)(fuzz16(in) % bytes)) == 0);
    close(fd);
    if (fuzz8(in) % 16 == 0) unlinkat(folder_fd, path, 0);
}

static void spoil(fuzz_input *in) {
    uint64_t value = fuzz_size(in, f.end);
    wr_topic_row *row = wr_topic_row_at(f.rows, fuzz8(in) % QUEUES);
    f.sound = false;
    switch (fuzz8(in) % 8) {
    case 0:
    case 1:
        spoil_file(in, log_file(fuzz8(in) % FILES), LOG);
        break;
    case 2:
    case 3:
        spoil_file(in, queue_file(fuzz8(in) % 2, fuzz8(in) % 3), ENTRIES * WR_CONSUME_QUEUE_UNIT_SIZE);
        break;
    case 4:
        spoil_file(in, INDEX_FILE, INDEX_BYTES);
        break;
    case 5:
        f.ring[fuzz16(in) % (WR_PAGE_BYTES + LOG)] = (uint8_t)value;
        break;
    case 6:
        atomic_store(value % 2 ? &row->minimum : &row->maximum, value);
        break;
    default:
        if (value % 3) atomic_store(&f.rows->first, value);
        else atomic_store(&row->key, value % 2 ? 0 : value);
    }
}

/* ---- reading ---- */

static void look_at(const wr_record *r, const uint8_t *bytes) {
    wr_record again;
    FUZZ_CHECK(wr_record_scan(bytes, r->size, r->physical_offset, WR_SCAN_ALL, &again) == WR_SCAN_RECORD && again.size == r->size);
    FUZZ_CHECK(r->topic_length == 1 && bytes[r->topic_at] == 't' && (r->flag == ID || !r->flag));
}

static const a_message *message_at(uint32_t queue, uint64_t offset) {
    for (uint32_t i = 0; i < f.n; i++)
        if (f.messages[i].queue == queue && f.messages[i].offset == offset) return &f.messages[i];
    return NULL;
}

static void range(fuzz_input *in) {
    static wr_topic_read read;
    wr_text tags[2];
    wr_topic_request q = {.queue = fuzz8(in) % (QUEUES + 1), .offset = fuzz_size(in, f.n), .end = fuzz_size(in, f.n), .sum = fuzz8(in) % 2,
                          .records_max = 1 + fuzz8(in), .bytes_max = fuzz_size(in, LOG), .tags = tags, .tags_n = fuzz8(in) % 3};
    wr_topic_read_result a;
    wr_record r;
    const uint8_t *bytes;
    uint32_t wanted[2], n = 0;
    if (q.end <= q.offset) q.end = UINT64_MAX;
    for (uint32_t i = 0; i < q.tags_n; i++) {
        wanted[i] = fuzz8(in) % 3;
        tags[i] = (wr_text){(const uint8_t *)names[wanted[i]], (uint32_t)strlen(names[wanted[i]])};
    }
    if (wr_topic_read_begin(&read, f.reader, &q)) return;
    uint64_t next = q.offset;
    while (wr_topic_read_next(&read, &r, &bytes)) {
        bool bad = !q.sum && (wr_crc32(0, bytes + r.body_at, r.body_length) & WR_BODY_CRC_MASK) != r.body_crc;
        if (bad && !wr_topic_read_again(&read, &r, &bytes)) break;
        look_at(&r, bytes);
        FUZZ_CHECK(r.queue_id == q.queue && r.queue_offset >= next && r.queue_offset < q.end);
        const a_message *m = message_at(q.queue, r.queue_offset);
        if (f.sound) FUZZ_CHECK(m && m->position == r.physical_offset && (!q.tags_n || m->tag == wanted[0] || m->tag == wanted[q.tags_n - 1]));
        for (; f.sound && next < r.queue_offset; next++) /* what was left out has another tag */
            FUZZ_CHECK(q.tags_n && message_at(q.queue, next)->tag != wanted[0] && message_at(q.queue, next)->tag != wanted[q.tags_n - 1]);
        next = r.queue_offset + 1;
        n++;
    }
    int error = wr_topic_read_end(&read, &a);
    if (f.sound) FUZZ_CHECK(!error && a.status != WR_READ_DAMAGED && a.status != WR_READ_OFFSET_FOUND_NULL && a.status != WR_READ_MESSAGE_WAS_REMOVING);
    if (error) return;
    FUZZ_CHECK(a.records_n == n && (uint32_t)a.status < WR_READ_STATUSES && n <= q.records_max);
    if (n) FUZZ_CHECK(a.status == WR_READ_FOUND && a.next >= next);
    else FUZZ_CHECK(a.status != WR_READ_FOUND);
    bool stays = a.status == WR_READ_OFFSET_OVERFLOW_ONE || a.status == WR_READ_OFFSET_OVERFLOW_BADLY || a.status == WR_READ_NO_MESSAGE_IN_QUEUE;
    FUZZ_CHECK(stays || a.next > q.offset);
}

static void by_time(fuzz_input *in) {
    uint32_t queue = fuzz8(in) % QUEUES;
    int64_t when = fuzz8(in) % 4 ? NOW + fuzz8(in) : (int64_t)fuzz64(in);
    wr_seek_boundary boundary = fuzz8(in) % 2 ? WR_SEEK_UPPER : WR_SEEK_LOWER;
    uint64_t offset, lower = f.next[queue], upper = WR_SEEK_NONE;
    if (wr_topic_seek(f.reader, queue, when, boundary, &offset) || !f.sound) return;
    for (uint32_t i = f.n; i-- > 0;) {
        if (f.messages[i].queue != queue) continue;
        if (f.messages[i].ms >= when) lower = f.messages[i].offset;
        if (f.messages[i].ms <= when && upper == WR_SEEK_NONE) upper = f.messages[i].offset;
    }
    FUZZ_CHECK(offset == (boundary == WR_SEEK_UPPER ? upper : lower));
}

static void by_key(fuzz_input *in) {
    uint32_t key = fuzz8(in) % 3, i = f.n;
    wr_topic_lookup lookup;
    wr_record r;
    const uint8_t *bytes;
    int error;
    wr_message_kind kind;
    const wr_text text = {(const uint8_t *)names[key], (uint32_t)strlen(names[key])};
    if (wr_topic_lookup_begin(&lookup, f.reader, text, INT64_MIN, INT64_MAX)) return;
    for (int looks = 0; (kind = wr_topic_lookup_next(&lookup, &r, &bytes, &error)) != WR_MESSAGE_NONE && kind != WR_MESSAGE_ERROR; looks++) {
        FUZZ_CHECK(looks < 2 * KEYS && (!f.sound || kind == WR_MESSAGE_THERE));
        if (kind != WR_MESSAGE_THERE) continue;
        look_at(&r, bytes);
        while (f.sound && i && f.messages[i - 1].key != key) i--;
        if (f.sound) FUZZ_CHECK(i && f.messages[--i].position == r.physical_offset);
    }
    for (; f.sound && i; i--) FUZZ_CHECK(f.messages[i - 1].key != key);
}

static void by_position(fuzz_input *in) {
    uint64_t position = fuzz8(in) % 2 && f.n ? f.messages[fuzz8(in) % f.n].position : fuzz_size(in, f.end);
    wr_record r;
    const uint8_t *bytes;
    int error;
    wr_message_kind kind = wr_topic_lookup_at(f.reader, position, NULL, 0, &r, &bytes, &error);
    if (kind == WR_MESSAGE_THERE) look_at(&r, bytes);
    bool there = false;
    for (uint32_t i = 0; i < f.n; i++) there |= f.messages[i].position == position;
    if (f.sound) FUZZ_CHECK(kind == (there ? WR_MESSAGE_THERE : WR_MESSAGE_NONE));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    fuzz_input in = {data, size};
    wr_key_index index;
    wr_key_writer writer;
    if (folder_fd < 0) once();
    memset(f.log, 0, sizeof f.log);
    memset(f.units, 0, sizeof f.units);
    memset(f.index, 0, INDEX_BYTES);
    wr_index_link_put(f.index + wr_key_index_bytes(SLOTS, 0), INDEX_FILE + sizeof "index", &(wr_index_link){0});
    memset(f.next, 0, sizeof f.next);
    f.n = 0;
    f.end = 0;
    f.sound = true;
    uint8_t mode = fuzz8(&in), messages = fuzz8(&in) % MESSAGES;
    FUZZ_CHECK(wr_key_index_take(&index, f.index, INDEX_BYTES, SLOTS, KEYS) && wr_key_writer_open(&writer, &index) == WR_KEY_FOUND);
    for (uint8_t i = 0; i < messages; i++) append(&in, &writer);
    show();
    store(&in);
    const wr_topic_place place = {.root = folder_fd, .log_file_bytes = LOG, .ring_bytes = LOG, .consume_queue_entries = ENTRIES,
                                  .index_slots = SLOTS, .index_entries = KEYS};
    FUZZ_CHECK((f.reader = wr_topic_reader_new(&place, ID, "t", 1)));
    wr_topic_reader_begin(f.reader, f.ring, f.rows);
    for (int i = 0; i < 40 && (in.left || i < 8); i++) {
        uint8_t what = fuzz8(&in);
        if (mode & 1 && what % 3 == 0) {
            spoil(&in);
            continue;
        }
        static void (*const calls[])(fuzz_input *) = {range, range, by_time, by_key, by_position};
        calls[what / 3 % 5](&in);
        if (what >> 7) wr_topic_reader_begin(f.reader, f.ring, f.rows);
    }
    wr_topic_reader_free(f.reader);
    return 0;
}
