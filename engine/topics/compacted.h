/* The file of a queue of a compacted topic: the newest record of each key below an offset (docs/design/029-compaction.md). Written once, from the
 * first record to the last, then read by any process. The format: engine/topics/formats.py.
 *
 * A reader reads by `pread`: a file that is cut, or a disk that fails, is no signal. Nothing that lies in a file is believed: each block and each page
 * counts when its checksum is right, which is bound to the file and to its place in it; then its records are looked at once more.
 *
 * Threads: one has a writer, or a reader. Memory: a writer keeps 16 bytes of each key and tombstone, 32 of each block; a reader the places of the blocks,
 * the tombstones, one block and one page.
 * Crash points: none here. Who writes gives the file its name when wr_compacted_finish has said that it is on stable storage. */
#ifndef WR_TOPICS_COMPACTED_H
#define WR_TOPICS_COMPACTED_H
#include "kernel/bytes.h"
#include "kernel/committer.h"
#include "topics/record.h"

/* Whose file it is. Its checksums are bound to all of this. */
typedef struct {
    uint8_t node[16];
    uint32_t topic, queue;
    uint64_t end;  /* offset: what is alive below it is in the file */
    uint64_t made; /* milliseconds since 1970 */
} wr_compacted_id;

/* ---- writing ---- */

typedef struct {
    uint32_t hash;
    uint64_t offset;
} wr_compacted_key;

/* Things of one size, as many as came. */
typedef struct {
    uint8_t *all;
    uint64_t n, room;
} wr_compacted_list;

typedef struct {
    wr_compacted_id id;
    int fd; /* the caller's: an empty file */
    wr_commit_io io;
    void *io_context;
    uint32_t topic_hash;    /* wr_key_hash_topic */
    uint64_t at;            /* of the block that is not written yet */
    uint8_t *block;
    uint64_t block_n, block_room;
    wr_compacted_list places, keys, tombstones;
    uint64_t records_n, next; /* next: the lowest offset that may come */
} wr_compacted_writer;

void wr_compacted_begin(wr_compacted_writer *writer, int fd, const wr_compacted_id *id, uint32_t topic_hash, const wr_commit_io *io, void *io_context);
/* The next record, of a higher offset than the ones before, and below the end. `since`: of one without a body, which is a tombstone; 0: not yet. 0 or an
 * errno: nothing more may come then. */
int wr_compacted_put(wr_compacted_writer *writer, const wr_record *record, const uint8_t *bytes, uint64_t since);
/* There are no more: write what is left, and sync. 0 with the file's *size, or an errno. */
int wr_compacted_finish(wr_compacted_writer *writer, uint64_t *size);
/* Whatever became of it. */
void wr_compacted_end(wr_compacted_writer *writer);

/* ---- reading ---- */

typedef struct wr_compacted {
    wr_compacted_id id;
    int fd;
    uint64_t size, keys_at, keys_n, records_n, blocks_n, tombstones_n;
    uint8_t *tables;        /* the places, then the tombstones, as in the file */
    uint8_t *block;         /* at hand */
    uint64_t block_room, block_i; /* UINT64_MAX: none */
    uint32_t block_n, block_at;   /* bytes, and where the next record lies */
    uint64_t passed;        /* the offset of the record before that one; with none, 0 and `fresh` */
    bool fresh;
    uint8_t *page;
    uint64_t page_i;
    const char *wrong;      /* what is damaged, of the last call that said so */
    uint64_t wrong_at;      /* place in the file */
    uint64_t wrong_first, wrong_next; /* records before the one offset lie before it, from the other one on behind it */
} wr_compacted;

typedef enum {
    WR_COMPACTED_FOUND,
    WR_COMPACTED_NONE,
    WR_COMPACTED_DAMAGED, /* file->wrong */
    WR_COMPACTED_ERROR    /* *error: an errno of the system */
} wr_compacted_code;

typedef enum { WR_COMPACTED_OFFSET, WR_COMPACTED_POSITION, WR_COMPACTED_TIME } wr_compacted_order;

/* Its tables, of a file that was taken up: the place of a block; where it lies, and its first offset, or for the one behind the last where the blocks
 * end; a tombstone. */
static inline const uint8_t *wr_compacted_place(const wr_compacted *file, uint64_t i) { return file->tables + i * WR_COMPACTED_PLACE_SIZE; }
static inline uint64_t wr_compacted_block_at(const wr_compacted *file, uint64_t i) {
    return i < file->blocks_n ? wr_get64(wr_compacted_place(file, i) + WR_COMPACTED_PLACE_AT_AT) : file->keys_at;
}
static inline uint64_t wr_compacted_block_offset(const wr_compacted *file, uint64_t i) {
    return i < file->blocks_n ? wr_get64(wr_compacted_place(file, i) + WR_COMPACTED_PLACE_AT_OFFSET) : file->id.end;
}
static inline const uint8_t *wr_compacted_tombstone(const wr_compacted *file, uint64_t i) {
    return wr_compacted_place(file, file->blocks_n) + i * WR_COMPACTED_TOMBSTONE_SIZE;
}

/* Take up the file in `fd`, which is the reader's from now on if this succeeds. FOUND; DAMAGED: *wrong says why it is none of this node, topic and queue;
 * ERROR. */
wr_compacted_code wr_compacted_open(wr_compacted **file, int fd, const uint8_t *node, uint32_t topic, uint32_t queue, const char **wrong, int *error);
void wr_compacted_close(wr_compacted *file);

/* The first record whose offset, position in the log, or store time is `value` or higher: the bytes last until the next call. Asked for offset after
 * offset it reads each block once. */
wr_compacted_code wr_compacted_from(wr_compacted *file, wr_compacted_order order, uint64_t value, wr_record *record, const uint8_t **bytes, int *error);

/* The last record whose offset, position or store time is below `value`. */
wr_compacted_code wr_compacted_before(wr_compacted *file, wr_compacted_order order, uint64_t value, wr_record *record, const uint8_t **bytes, int *error);

/* The highest *offset below `below` of a record that may have the key of this hash (wr_key_hash). */
wr_compacted_code wr_compacted_find(wr_compacted *file, uint32_t hash, uint64_t below, uint64_t *offset, int *error);

/* The offset of the first record; the end, if there is none. */
uint64_t wr_compacted_first(const wr_compacted *file);

/* Are all pages of keys whole, and in order? FOUND, DAMAGED or ERROR. */
wr_compacted_code wr_compacted_check_keys(wr_compacted *file, int *error);

/* When the tombstone at an offset began to count; 0: not yet, or there is none. */
uint64_t wr_compacted_since(const wr_compacted *file, uint64_t offset);

/* The earliest of those times; UINT64_MAX: no tombstone has one. */
uint64_t wr_compacted_oldest_tombstone(const wr_compacted *file);
#endif
