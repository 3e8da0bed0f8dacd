/* A file of the key index, on its memory: one writer, readers in any process that map the same. The format is
 * declared in engine/topics/formats.py.
 *
 * Invariants
 *   An entry is written, then its slot points to it, then the header counts it (SYNC index-slot, SYNC index-count).
 *   Both counts are one word of 8 bytes. An entry that is counted never changes; its `previous` is smaller than
 *   itself.
 *   A reader returns counted entries alone. It never reads outside of the file or without end, whatever the file
 *   holds: a chain ends with WR_KEY_BAD_… where it cannot be right.
 *   A writer believes nothing of the file but its counts when it opens it, and those are checked.
 * Crash points (of the process; what reaches the disk after a power loss is the caller's to check)
 *   An entry that no slot points to: is written over. One that its slot points to and nobody counted:
 *   wr_key_writer_open takes it out of its slot, so that no older key of the slot is lost. Readers may look on
 *   meanwhile. A message that is put again then gives the same bytes as if nobody had died.
 */
#ifndef WR_TOPICS_KEY_INDEX_H
#define WR_TOPICS_KEY_INDEX_H
#include "topics/formats.h"
#include <stdbool.h>
#include <stdint.h>

typedef enum {
    WR_KEY_END,          /* no more */
    WR_KEY_FOUND,        /* an entry; of a writer: done */
    WR_KEY_FULL,         /* all entries are used */
    WR_KEY_BAD_HEADER,   /* more entries are counted than there are */
    WR_KEY_BAD_SLOT,     /* a slot points to no entry that may be there */
    WR_KEY_BAD_ENTRY,    /* an entry that is none of its slot, or has a negative number */
    WR_KEY_BAD_PREVIOUS, /* `previous` is no smaller one */
    WR_KEY_BAD_LINK,     /* it does not say which file comes before it (topics/index_link.h) */
    WR_KEY_MISSING,      /* a file is not there */
    WR_KEY_CODES
} wr_key_code;

/* "end", "found", "full", "header", "slot", "entry", "previous", "link", "missing" */
const char *wr_key_word(wr_key_code code);

#define WR_KEY_COUNT_MAX 0x7fffffffu /* of slots, and of entries */

/* Bytes of a file; so where the entry of that number would begin in a longer one, too. */
static inline uint64_t wr_key_index_bytes(uint32_t slots_n, uint32_t entries_n) {
    return WR_KEY_INDEX_HEADER_SIZE + (uint64_t)slots_n * WR_KEY_INDEX_SLOT_SIZE +
           (uint64_t)entries_n * WR_KEY_INDEX_ENTRY_SIZE;
}

/* The memory of a file. */
typedef struct {
    uint8_t *base;
    uint32_t slots_n, entries_n;
} wr_key_index;

/* Take memory that is aligned to 8 bytes. Zeros are an empty index. false: too small, not aligned, or counts that
 * cannot be (1 slot and 2 entries at least, WR_KEY_COUNT_MAX at most). Readers need no more. */
bool wr_key_index_take(wr_key_index *index, void *base, uint64_t bytes, uint32_t slots_n, uint32_t entries_n);

/* What the header says, as it stands. */
typedef struct {
    int64_t begin_timestamp, end_timestamp; /* milliseconds since 1970 */
    uint64_t begin_physical_offset, end_physical_offset;
    uint32_t hash_slot_count, index_count; /* index_count: entries, plus 1 */
} wr_key_header;
void wr_key_index_header(const wr_key_index *index, wr_key_header *header);

/* ---- the writer ---- */

typedef struct {
    wr_key_index index;
    uint32_t count, slots_used; /* the next entry; slots that are not empty */
    int64_t begin;              /* the first entry's store time */
} wr_key_writer;

/* Begin, or go on after another writer: WR_KEY_FOUND, or what is wrong. */
wr_key_code wr_key_writer_open(wr_key_writer *writer, const wr_key_index *index);

/* Add a key (wr_key_hash) of the record at physical_offset. WR_KEY_FOUND, WR_KEY_FULL (the capacity is entries - 1),
 * or WR_KEY_BAD_SLOT: the index is damaged, and must be made anew from the log. */
wr_key_code wr_key_put(wr_key_writer *writer, uint32_t key_hash, uint64_t physical_offset, int64_t store_timestamp);

/* Take out all entries of records at or behind `end` of the log, the newest first: the log was cut there. Entries
 * must have been put in the order of the log, and no reader may look on. end_timestamp becomes the last entry's, up
 * to 999 ms later. WR_KEY_FOUND, or what is wrong. */
wr_key_code wr_key_truncate(wr_key_writer *writer, uint64_t end);

/* ---- readers ---- */

typedef struct {
    uint32_t number;
    uint64_t physical_offset;
    int64_t from, to; /* its store time lies in there, milliseconds since 1970 */
} wr_key_entry;

typedef struct {
    wr_key_index index;
    uint32_t key_hash, slot, next;
    wr_key_code code; /* of the beginning */
    bool ordered;
    int64_t begin, since, until;
    uint64_t first_offset, last_offset; /* entries in the order of the log are of records at these positions, or between them */
} wr_key_find;

/* Look for a hash among the entries whose store time may lie in since … until (both included). `ordered`: entries
 * are in the order of the log, and store times never step back: so the first one that is surely older ends it. The record says whether it
 * has the key, and the time. */
void wr_key_find_begin(wr_key_find *find, const wr_key_index *index, uint32_t key_hash, int64_t since, int64_t until,
                       bool ordered);
/* The next one, newest first: WR_KEY_FOUND, WR_KEY_END, or what is wrong (then it is over, too). */
wr_key_code wr_key_find_next(wr_key_find *find, wr_key_entry *entry);
#endif
