/* The file of the newest records. Declared in topics/compacted.h. */
#define _GNU_SOURCE
#include "topics/compacted.h"
#include "kernel/bytes.h"
#include "kernel/frame.h"
#include "kernel/read.h"
#include "topics/hash.h"
#include "topics/properties.h"
#include <assert.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#define PAGE_BYTES (WR_COMPACTED_PAGE_SIZE + WR_KEYS_PAGE_N * WR_COMPACTED_KEY_SIZE)
_Static_assert(PAGE_BYTES == 4096, "a page of keys is one of the disk");
#define BOUND_BYTES 48u /* what a checksum is bound to */
#define FIRST_ROOM 64u

/* The checksum of a part at a place, of which it covers these bytes. */
static uint32_t sum_of(const wr_compacted_id *id, uint64_t at, const uint8_t *bytes, uint64_t n) {
    uint8_t bound[BOUND_BYTES];
    memcpy(bound, id->node, 16);
    wr_put32(bound + 16, id->topic);
    wr_put32(bound + 20, id->queue);
    wr_put64(bound + 24, id->end);
    wr_put64(bound + 32, id->made);
    wr_put64(bound + 40, at);
    return wr_crc32c(wr_crc32c(0, bound, sizeof bound), bytes, n);
}

/* The checksum of the head but its own field. */
static uint32_t sum_of_head(const uint8_t *head) {
    const uint32_t sum = wr_crc32c(0, head, WR_COMPACTED_AT_CRC);
    return wr_crc32c(sum, head + WR_COMPACTED_AT_CRC + 4, WR_COMPACTED_SIZE - WR_COMPACTED_AT_CRC - 4);
}

static uint64_t pages_of(uint64_t keys_n) { return keys_n / WR_KEYS_PAGE_N + (keys_n % WR_KEYS_PAGE_N != 0); }
/* Bytes of so many keys in their pages. */
static uint64_t pages_bytes(uint64_t keys_n) { return pages_of(keys_n) * WR_COMPACTED_PAGE_SIZE + keys_n * WR_COMPACTED_KEY_SIZE; }

/* ---- writing ---- */

void wr_compacted_begin(wr_compacted_writer *w, int fd, const wr_compacted_id *id, uint32_t topic_hash, const wr_commit_io *io, void *io_context) {
    *w = (wr_compacted_writer){.id = *id, .fd = fd, .io = *io, .io_context = io_context, .topic_hash = topic_hash, .at = WR_COMPACTED_SIZE};
}

void wr_compacted_end(wr_compacted_writer *w) {
    free(w->block);
    free(w->places.all);
    free(w->keys.all);
    free(w->tombstones.all);
    *w = (wr_compacted_writer){.fd = -1};
}

static int write_all(const wr_compacted_writer *w, const uint8_t *from, uint64_t n, uint64_t at) {
    while (n) {
        const ssize_t written = w->io.pwrite(w->io_context, w->fd, from, n, (off_t)at);
        if (written < 0 && errno == EINTR) continue;
        if (written <= 0) return written ? errno : EIO;
        from += written;
        at += (uint64_t)written;
        n -= (uint64_t)written;
    }
    return 0;
}

/* Room for one more; NULL: no memory. */
static uint8_t *more(wr_compacted_list *list, uint64_t size) {
    if (list->n == list->room) {
        const uint64_t room = list->room ? 2 * list->room : FIRST_ROOM;
        uint8_t *all = realloc(list->all, room * size);
        if (!all) return NULL;
        list->all = all;
        list->room = room;
    }
    return list->all + list->n++ * size;
}

static int flush(wr_compacted_writer *w) {
    if (!w->block_n) return 0;
    wr_put32(w->block + WR_COMPACTED_BLOCK_AT_SIZE, (uint32_t)(w->block_n - WR_COMPACTED_BLOCK_SIZE));
    wr_put32(w->block, sum_of(&w->id, w->at, w->block + 4, w->block_n - 4));
    const int error = write_all(w, w->block, w->block_n, w->at);
    w->at += w->block_n;
    w->block_n = 0;
    return error;
}

static int begin_block(wr_compacted_writer *w, const wr_record *record) {
    uint8_t *place = more(&w->places, WR_COMPACTED_PLACE_SIZE);
    if (!place) return ENOMEM;
    wr_put64(place + WR_COMPACTED_PLACE_AT_OFFSET, record->queue_offset);
    wr_put64(place + WR_COMPACTED_PLACE_AT_POSITION, record->physical_offset);
    wr_put64(place + WR_COMPACTED_PLACE_AT_STORE_TIMESTAMP, record->store_timestamp);
    wr_put64(place + WR_COMPACTED_PLACE_AT_AT, w->at);
    w->block_n = WR_COMPACTED_BLOCK_SIZE;
    return 0;
}

static int have_room(wr_compacted_writer *w, uint64_t bytes) {
    if (bytes <= w->block_room) return 0;
    const uint64_t least = WR_COMPACTED_BLOCK_SIZE + WR_COMPACTED_BLOCK_BYTES, room = bytes > least ? bytes : least;
    uint8_t *block = realloc(w->block, room);
    if (!block) return ENOMEM;
    w->block = block;
    w->block_room = room;
    return 0;
}

static int note_key(wr_compacted_writer *w, uint64_t offset, wr_text key) {
    const uint32_t hash = wr_key_hash(w->topic_hash, key.at, key.n);
    wr_compacted_key *to = (wr_compacted_key *)(void *)more(&w->keys, sizeof *to);
    if (!to) return ENOMEM;
    *to = (wr_compacted_key){hash, offset};
    return 0;
}

static int note_keys(wr_compacted_writer *w, const wr_record *record, const uint8_t *bytes) {
    wr_known_properties known;
    wr_text key;
    int error = 0;
    wr_properties_known(bytes + record->properties_at, record->properties_length, &known);
    for (uint32_t at = 0; !error && wr_keys_next(known.keys, &at, &key);) error = note_key(w, record->queue_offset, key);
    if (!error && known.uniq_key.n) error = note_key(w, record->queue_offset, known.uniq_key);
    return error;
}

static int note_tombstone(wr_compacted_writer *w, uint64_t offset, uint64_t since) {
    uint8_t *to = more(&w->tombstones, WR_COMPACTED_TOMBSTONE_SIZE);
    if (!to) return ENOMEM;
    wr_put64(to + WR_COMPACTED_TOMBSTONE_AT_OFFSET, offset);
    wr_put64(to + WR_COMPACTED_TOMBSTONE_AT_SINCE, since);
    return 0;
}

int wr_compacted_put(wr_compacted_writer *w, const wr_record *record, const uint8_t *bytes, uint64_t since) {
    assert(record->queue_offset >= w->next && record->queue_offset < w->id.end);
    const uint64_t least = w->block_n ? w->block_n : WR_COMPACTED_BLOCK_SIZE;
    int error = 0;
    if (w->block_n && least + record->size > WR_COMPACTED_BLOCK_SIZE + WR_COMPACTED_BLOCK_BYTES) error = flush(w);
    if (!error) error = have_room(w, (w->block_n ? w->block_n : WR_COMPACTED_BLOCK_SIZE) + record->size);
    if (!error && !w->block_n) error = begin_block(w, record);
    if (!error) error = note_keys(w, record, bytes);
    if (!error && !record->body_length) error = note_tombstone(w, record->queue_offset, since);
    if (error) return error;
    memcpy(w->block + w->block_n, bytes, record->size);
    w->block_n += record->size;
    w->next = record->queue_offset + 1;
    w->records_n++;
    return 0;
}

static int by_hash(const void *a, const void *b) {
    const wr_compacted_key *x = a, *y = b;
    if (x->hash != y->hash) return x->hash < y->hash ? -1 : 1;
    return x->offset < y->offset ? -1 : x->offset > y->offset;
}

/* The pages of keys, from w->at on. */
static int write_keys(wr_compacted_writer *w) {
    wr_compacted_key *keys = (wr_compacted_key *)(void *)w->keys.all;
    uint8_t page[PAGE_BYTES];
    if (w->keys.n) qsort(keys, w->keys.n, sizeof *keys, by_hash);
    for (uint64_t i = 0; i < w->keys.n;) {
        uint64_t n = WR_COMPACTED_PAGE_SIZE;
        for (; n < PAGE_BYTES && i < w->keys.n; i++, n += WR_COMPACTED_KEY_SIZE) {
            wr_put32(page + n + WR_COMPACTED_KEY_AT_KEY_HASH, keys[i].hash);
            wr_put64(page + n + WR_COMPACTED_KEY_AT_OFFSET, keys[i].offset);
        }
        wr_put32(page, sum_of(&w->id, w->at, page + 4, n - 4));
        const int error = write_all(w, page, n, w->at);
        if (error) return error;
        w->at += n;
    }
    return 0;
}

static int write_list(wr_compacted_writer *w, const wr_compacted_list *list, uint64_t size) {
    const uint64_t n = list->n * size;
    const int error = write_all(w, list->all, n, w->at);
    w->at += n;
    return error;
}

static int write_head(const wr_compacted_writer *w, uint64_t keys_at) {
    uint8_t head[WR_COMPACTED_SIZE] = {0};
    memcpy(head, WR_COMPACTED_MAGIC, 8);
    wr_put32(head + WR_COMPACTED_AT_VERSION, WR_COMPACTED_VERSION);
    memcpy(head + WR_COMPACTED_AT_NODE, w->id.node, 16);
    wr_put32(head + WR_COMPACTED_AT_TOPIC, w->id.topic);
    wr_put32(head + WR_COMPACTED_AT_QUEUE, w->id.queue);
    wr_put64(head + WR_COMPACTED_AT_END, w->id.end);
    wr_put64(head + WR_COMPACTED_AT_MADE, w->id.made);
    wr_put64(head + WR_COMPACTED_AT_BYTES, w->at);
    wr_put64(head + WR_COMPACTED_AT_KEYS_AT, keys_at);
    wr_put64(head + WR_COMPACTED_AT_KEYS_N, w->keys.n);
    wr_put64(head + WR_COMPACTED_AT_RECORDS_N, w->records_n);
    wr_put64(head + WR_COMPACTED_AT_BLOCKS_N, w->places.n);
    wr_put64(head + WR_COMPACTED_AT_TOMBSTONES_N, w->tombstones.n);
    uint32_t sum = sum_of_head(head);
    sum = wr_crc32c(sum, w->places.all, w->places.n * WR_COMPACTED_PLACE_SIZE);
    sum = wr_crc32c(sum, w->tombstones.all, w->tombstones.n * WR_COMPACTED_TOMBSTONE_SIZE);
    wr_put32(head + WR_COMPACTED_AT_CRC, sum);
    return write_all(w, head, sizeof head, 0);
}

int wr_compacted_finish(wr_compacted_writer *w, uint64_t *size) {
    int error = flush(w);
    const uint64_t keys_at = w->at;
    if (!error) error = write_keys(w);
    if (!error) error = write_list(w, &w->places, WR_COMPACTED_PLACE_SIZE);
    if (!error) error = write_list(w, &w->tombstones, WR_COMPACTED_TOMBSTONE_SIZE);
    if (!error) error = write_head(w, keys_at);
    if (!error && w->io.fdatasync(w->io_context, w->fd)) error = errno;
    *size = w->at;
    return error;
}

/* ---- reading ---- */

void wr_compacted_close(wr_compacted *f) {
    if (!f) return;
    if (f->fd >= 0) close(f->fd);
    free(f->tables);
    free(f->block);
    free(f->page);
    free(f);
}

static wr_compacted_code damaged(wr_compacted *f, const char *what, uint64_t at) {
    f->wrong = what;
    f->wrong_at = at;
    f->wrong_first = f->wrong_next = f->id.end;
    return WR_COMPACTED_DAMAGED;
}

/* A block is damaged. */
static wr_compacted_code bad_block(wr_compacted *f, const char *what, uint64_t i, uint64_t at) {
    damaged(f, what, at);
    f->wrong_first = wr_compacted_block_offset(f, i);
    f->wrong_next = wr_compacted_block_offset(f, i + 1);
    return WR_COMPACTED_DAMAGED;
}

/* The numbers of a head, which has its checksum, and what they say of each other. NULL, or what is wrong. */
static const char *take_head(wr_compacted *f, const uint8_t *head, const uint8_t *node, uint32_t topic, uint32_t queue) {
    if (memcmp(head, WR_COMPACTED_MAGIC, 8)) return "it is no file of newest records";
    if (wr_get32(head + WR_COMPACTED_AT_VERSION) != WR_COMPACTED_VERSION) return "it has a version that is not known";
    if (memcmp(head + WR_COMPACTED_AT_NODE, node, 16)) return "it is another node's";
    f->id = (wr_compacted_id){.topic = wr_get32(head + WR_COMPACTED_AT_TOPIC), .queue = wr_get32(head + WR_COMPACTED_AT_QUEUE),
                              .end = wr_get64(head + WR_COMPACTED_AT_END), .made = wr_get64(head + WR_COMPACTED_AT_MADE)};
    memcpy(f->id.node, node, 16);
    if (f->id.topic != topic || f->id.queue != queue) return "it is another queue's";
    f->keys_at = wr_get64(head + WR_COMPACTED_AT_KEYS_AT);
    f->keys_n = wr_get64(head + WR_COMPACTED_AT_KEYS_N);
    f->records_n = wr_get64(head + WR_COMPACTED_AT_RECORDS_N);
    f->blocks_n = wr_get64(head + WR_COMPACTED_AT_BLOCKS_N);
    f->tombstones_n = wr_get64(head + WR_COMPACTED_AT_TOMBSTONES_N);
    if (wr_get64(head + WR_COMPACTED_AT_BYTES) > f->size) return "it was cut";
    f->size = wr_get64(head + WR_COMPACTED_AT_BYTES); /* what somebody appended is never read */
    const uint64_t most = f->size / 4; /* nothing that is counted is smaller: no sum below can overflow */
    if (f->size > INT64_MAX / 16 || f->keys_n > most || f->blocks_n > most || f->tombstones_n > most || f->keys_at > f->size ||
        f->keys_at < WR_COMPACTED_SIZE ||
        f->keys_at + pages_bytes(f->keys_n) + f->blocks_n * WR_COMPACTED_PLACE_SIZE + f->tombstones_n * WR_COMPACTED_TOMBSTONE_SIZE != f->size)
        return "its parts do not add up to its size";
    return NULL;
}

/* Do the places rise, and lie where blocks can? */
static const char *look_at_tables(const wr_compacted *f) {
    uint64_t at = WR_COMPACTED_SIZE;
    if (!f->blocks_n) return f->keys_at == at && !f->records_n && !f->tombstones_n ? NULL : "its blocks are missing";
    for (uint64_t i = 0; i < f->blocks_n; i++) {
        const uint8_t *p = wr_compacted_place(f, i), *before = i ? wr_compacted_place(f, i - 1) : p;
        if (wr_get64(p + WR_COMPACTED_PLACE_AT_AT) != at || wr_compacted_block_at(f, i + 1) < at + WR_COMPACTED_BLOCK_SIZE) return "its blocks do not lie behind each other";
        at = wr_compacted_block_at(f, i + 1);
        if (at > f->keys_at || at - wr_compacted_block_at(f, i) > UINT32_MAX) return "its blocks do not lie behind each other";
        if (wr_compacted_block_offset(f, i + 1) <= wr_compacted_block_offset(f, i) ||
            wr_get64(p + WR_COMPACTED_PLACE_AT_POSITION) < wr_get64(before + WR_COMPACTED_PLACE_AT_POSITION) ||
            wr_get64(p + WR_COMPACTED_PLACE_AT_STORE_TIMESTAMP) < wr_get64(before + WR_COMPACTED_PLACE_AT_STORE_TIMESTAMP))
            return "its blocks are in no order";
    }
    return at == f->keys_at ? NULL : "its blocks do not lie behind each other";
}

static wr_compacted_code open_file(wr_compacted *f, const uint8_t *node, uint32_t topic, uint32_t queue, const char **wrong, int *error) {
    uint8_t head[WR_COMPACTED_SIZE];
    struct stat status;
    if (fstat(f->fd, &status)) {
        *error = errno;
        return WR_COMPACTED_ERROR;
    }
    if (!S_ISREG(status.st_mode)) {
        *wrong = "it is no file";
        return WR_COMPACTED_DAMAGED;
    }
    f->size = (uint64_t)status.st_size;
    if (!(f->page = malloc(PAGE_BYTES))) {
        *error = ENOMEM;
        return WR_COMPACTED_ERROR;
    }
    *error = wr_read_all(f->fd, head, sizeof head, 0);
    if (!*error && !(*wrong = take_head(f, head, node, topic, queue))) {
        const uint64_t n = f->blocks_n * WR_COMPACTED_PLACE_SIZE + f->tombstones_n * WR_COMPACTED_TOMBSTONE_SIZE;
        if (!(f->tables = malloc(n + 1))) *error = ENOMEM;
        else *error = wr_read_all(f->fd, f->tables, n, f->size - n);
        if (!*error) *wrong = wr_crc32c(sum_of_head(head), f->tables, n) != wr_get32(head + WR_COMPACTED_AT_CRC) ? "its head does not have its checksum" : look_at_tables(f);
    }
    if (*error == EUCLEAN) {
        *error = 0;
        *wrong = "it is cut";
    }
    return *error ? WR_COMPACTED_ERROR : *wrong ? WR_COMPACTED_DAMAGED : WR_COMPACTED_FOUND;
}

wr_compacted_code wr_compacted_open(wr_compacted **file, int fd, const uint8_t *node, uint32_t topic, uint32_t queue, const char **wrong, int *error) {
    wr_compacted *f = malloc(sizeof *f);
    *wrong = NULL;
    *error = f ? 0 : ENOMEM;
    if (!f) return WR_COMPACTED_ERROR;
    *f = (wr_compacted){.fd = fd, .block_i = UINT64_MAX, .page_i = UINT64_MAX};
    const wr_compacted_code code = open_file(f, node, topic, queue, wrong, error);
    if (code == WR_COMPACTED_FOUND) {
        *file = f;
        return code;
    }
    f->fd = -1;
    wr_compacted_close(f);
    return code;
}

/* Have a block at hand, before its first record. */
static wr_compacted_code load_block(wr_compacted *f, uint64_t i, int *error) {
    const uint64_t at = wr_compacted_block_at(f, i), n = wr_compacted_block_at(f, i + 1) - at;
    f->block_at = 0;
    f->fresh = true;
    if (f->block_i == i) return WR_COMPACTED_FOUND;
    f->block_i = UINT64_MAX;
    if (n > f->block_room) {
        uint8_t *block = realloc(f->block, n);
        if (!block) {
            *error = ENOMEM;
            return WR_COMPACTED_ERROR;
        }
        f->block = block;
        f->block_room = n;
    }
    *error = wr_read_all(f->fd, f->block, n, at);
    if (*error == EUCLEAN) return bad_block(f, "it is cut", i, at);
    if (*error) return WR_COMPACTED_ERROR;
    if (wr_get32(f->block) != sum_of(&f->id, at, f->block + 4, n - 4) || wr_get32(f->block + WR_COMPACTED_BLOCK_AT_SIZE) != n - WR_COMPACTED_BLOCK_SIZE)
        return bad_block(f, "a block does not have its checksum", i, at);
    f->block_i = i;
    f->block_n = (uint32_t)n - WR_COMPACTED_BLOCK_SIZE;
    return WR_COMPACTED_FOUND;
}

/* The next record of the block at hand; NONE: it has no more. */
static wr_compacted_code next_record(wr_compacted *f, wr_record *record, const uint8_t **bytes) {
    const uint8_t *at = f->block + WR_COMPACTED_BLOCK_SIZE + f->block_at;
    const uint32_t left = f->block_n - f->block_at;
    if (!left) return WR_COMPACTED_NONE;
    const uint64_t next = wr_compacted_block_offset(f, f->block_i + 1);
    if (left < WR_LOG_HEAD_SIZE || wr_record_scan(at, left, wr_get64(at + WR_LOG_HEAD_AT_PHYSICAL_OFFSET), 0, record) != WR_SCAN_RECORD ||
        record->queue_id != f->id.queue || record->queue_offset < wr_compacted_block_offset(f, f->block_i) || record->queue_offset >= next ||
        (!f->fresh && record->queue_offset <= f->passed))
        return bad_block(f, "a record is none of this queue's", f->block_i, wr_compacted_block_at(f, f->block_i) + WR_COMPACTED_BLOCK_SIZE + f->block_at);
    f->block_at += record->size;
    f->passed = record->queue_offset;
    f->fresh = false;
    *bytes = at;
    return WR_COMPACTED_FOUND;
}

static uint64_t of_record(wr_compacted_order order, const wr_record *record) {
    return order == WR_COMPACTED_OFFSET ? record->queue_offset : order == WR_COMPACTED_POSITION ? record->physical_offset : record->store_timestamp;
}

static uint64_t of_place(const wr_compacted *f, wr_compacted_order order, uint64_t i) {
    static const uint32_t fields[] = {WR_COMPACTED_PLACE_AT_OFFSET, WR_COMPACTED_PLACE_AT_POSITION, WR_COMPACTED_PLACE_AT_STORE_TIMESTAMP};
    return wr_get64(wr_compacted_place(f, i) + fields[order]);
}

/* How many blocks begin with a record before the value, or (`at`) at it. */
static uint64_t blocks_before(const wr_compacted *f, wr_compacted_order order, uint64_t value, bool at) {
    uint64_t low = 0, high = f->blocks_n;
    while (low < high) {
        const uint64_t middle = low + (high - low) / 2, its = of_place(f, order, middle);
        if (its < value || (at && its == value)) low = middle + 1;
        else high = middle;
    }
    return low;
}

/* The block in which the first record of `value` or more may lie. Several records have one time: it may be that of the block behind, too. */
static uint64_t block_of(const wr_compacted *f, wr_compacted_order order, uint64_t value) {
    const uint64_t n = blocks_before(f, order, value, order != WR_COMPACTED_TIME);
    return n ? n - 1 : 0;
}

wr_compacted_code wr_compacted_from(wr_compacted *f, wr_compacted_order order, uint64_t value, wr_record *record, const uint8_t **bytes, int *error) {
    if (order == WR_COMPACTED_OFFSET && value >= f->id.end) return WR_COMPACTED_NONE;
    uint64_t i = block_of(f, order, value);
    if (order == WR_COMPACTED_OFFSET && f->block_i == i && !f->fresh && value > f->passed) {
        wr_compacted_code code; /* it goes on where it is */
        while ((code = next_record(f, record, bytes)) == WR_COMPACTED_FOUND)
            if (record->queue_offset >= value) return code;
        if (code != WR_COMPACTED_NONE) return code;
        i++;
    }
    for (; i < f->blocks_n; i++) {
        wr_compacted_code code = load_block(f, i, error);
        while (code == WR_COMPACTED_FOUND && (code = next_record(f, record, bytes)) == WR_COMPACTED_FOUND)
            if (of_record(order, record) >= value) return code;
        if (code != WR_COMPACTED_NONE) return code;
    }
    return WR_COMPACTED_NONE;
}

wr_compacted_code wr_compacted_before(wr_compacted *f, wr_compacted_order order, uint64_t value, wr_record *record, const uint8_t **bytes, int *error) {
    const uint64_t n = blocks_before(f, order, value, false), i = n - 1;
    if (!n) return WR_COMPACTED_NONE;
    wr_record found;
    uint32_t at = UINT32_MAX; /* where it lies */
    wr_compacted_code code = load_block(f, i, error);
    while (code == WR_COMPACTED_FOUND && (code = next_record(f, &found, bytes)) == WR_COMPACTED_FOUND && of_record(order, &found) < value) {
        *record = found;
        at = f->block_at - found.size;
    }
    if (code != WR_COMPACTED_FOUND && code != WR_COMPACTED_NONE) return code;
    if (at == UINT32_MAX) return bad_block(f, "a block begins with another record", i, wr_compacted_block_at(f, i));
    *bytes = f->block + WR_COMPACTED_BLOCK_SIZE + at;
    f->fresh = true; /* where the next one lies is known of another one */
    return WR_COMPACTED_FOUND;
}

/* The i-th key. */
static wr_compacted_code key_at(wr_compacted *f, uint64_t i, wr_compacted_key *key, int *error) {
    const uint64_t page = i / WR_KEYS_PAGE_N, at = f->keys_at + page * PAGE_BYTES, end = f->keys_at + pages_bytes(f->keys_n);
    const uint64_t n = end - at < PAGE_BYTES ? end - at : PAGE_BYTES;
    if (f->page_i != page) {
        f->page_i = UINT64_MAX;
        *error = wr_read_all(f->fd, f->page, n, at);
        if (*error == EUCLEAN) return damaged(f, "it is cut", at);
        if (*error) return WR_COMPACTED_ERROR;
        if (wr_get32(f->page) != sum_of(&f->id, at, f->page + 4, n - 4)) return damaged(f, "a page of keys does not have its checksum", at);
        f->page_i = page;
    }
    const uint8_t *from = f->page + WR_COMPACTED_PAGE_SIZE + i % WR_KEYS_PAGE_N * WR_COMPACTED_KEY_SIZE;
    *key = (wr_compacted_key){wr_get32(from + WR_COMPACTED_KEY_AT_KEY_HASH), wr_get64(from + WR_COMPACTED_KEY_AT_OFFSET)};
    return WR_COMPACTED_FOUND;
}

wr_compacted_code wr_compacted_find(wr_compacted *f, uint32_t hash, uint64_t below, uint64_t *offset, int *error) {
    const wr_compacted_key wanted = {hash, below};
    wr_compacted_key key, best = {0};
    uint64_t low = 0, high = f->keys_n; /* the keys below `low` come before the wanted one */
    bool any = false;
    while (low < high) {
        const uint64_t middle = low + (high - low) / 2;
        const wr_compacted_code code = key_at(f, middle, &key, error);
        if (code != WR_COMPACTED_FOUND) return code;
        if (by_hash(&key, &wanted) < 0) {
            best = key;
            any = true;
            low = middle + 1;
        } else high = middle;
    }
    if (!any || best.hash != hash) return WR_COMPACTED_NONE;
    *offset = best.offset;
    return WR_COMPACTED_FOUND;
}

uint64_t wr_compacted_first(const wr_compacted *f) { return wr_compacted_block_offset(f, 0); }

wr_compacted_code wr_compacted_check_keys(wr_compacted *f, int *error) {
    wr_compacted_key key, before = {0};
    for (uint64_t i = 0; i < f->keys_n; i++, before = key) {
        const wr_compacted_code code = key_at(f, i, &key, error);
        if (code != WR_COMPACTED_FOUND) return code;
        if ((i && by_hash(&before, &key) > 0) || key.offset >= f->id.end) return damaged(f, "its keys are in no order", f->keys_at);
    }
    return WR_COMPACTED_FOUND;
}

uint64_t wr_compacted_since(const wr_compacted *f, uint64_t offset) {
    uint64_t low = 0, high = f->tombstones_n;
    while (low < high) {
        const uint64_t middle = low + (high - low) / 2, its = wr_get64(wr_compacted_tombstone(f, middle) + WR_COMPACTED_TOMBSTONE_AT_OFFSET);
        if (its == offset) return wr_get64(wr_compacted_tombstone(f, middle) + WR_COMPACTED_TOMBSTONE_AT_SINCE);
        if (its < offset) low = middle + 1;
        else high = middle;
    }
    return 0;
}

uint64_t wr_compacted_oldest_tombstone(const wr_compacted *f) {
    uint64_t oldest = UINT64_MAX;
    for (uint64_t i = 0; i < f->tombstones_n; i++) {
        const uint64_t since = wr_get64(wr_compacted_tombstone(f, i) + WR_COMPACTED_TOMBSTONE_AT_SINCE);
        if (since && since < oldest) oldest = since;
    }
    return oldest;
}
