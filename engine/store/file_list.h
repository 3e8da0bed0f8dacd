/* The list of a store's file: what it holds, without the bodies. File format: LIST_… in engine/kernel/formats.py; meaning: design note 003.
 *
 * Three makers: the store's loop while it appends (wr_list_add, a few ns a record), a scan of the file (wr_list_scan), a list
 * file (wr_list_decode). One user: the index takes it up (wr_store_apply_list), swings to it, or drops what lies in it.
 *
 * In memory a list is the arrays below, in native order. One thread at a time; a list that is complete may be read by many.
 */
#ifndef WR_FILELIST_H
#define WR_FILELIST_H
#include "kernel/frame.h"
#include "kernel/protocol.h"

/* Consecutive ids of one kind; field meanings as LIST_RUN. */
typedef struct {
    uint64_t id_high, id_low; /* the id's halves as big-endian numbers: client epoch and counter where Warren made it */
    uint32_t count;
    uint32_t offset;
    uint32_t total;       /* of each frame; 0: totals[first_total + i] */
    uint32_t first_total; /* index into totals, when total is 0 */
    uint32_t extra;
    uint16_t meta_length;
    uint8_t kind;
} wr_list_run;

typedef struct {
    uint64_t client_epoch;
    uint64_t water; /* (sequence + 1) << 16 | part */
} wr_list_water;

/* Bytes that a scan found to be no record: [from, to). `reason` is a string constant of wr_frame_check. */
typedef struct {
    uint64_t from, to;
    const char *reason;
} wr_list_damage;

typedef struct {
    uint64_t file, salt, used; /* used: end of the last frame, padding included */
    wr_list_run *runs;
    uint64_t runs_n, runs_size;
    uint32_t *totals;
    uint64_t totals_n, totals_size;
    wr_list_water *waters; /* open addressing by epoch while it grows (waters_size a power of two, water 0: free); packed when sealed */
    uint64_t waters_n, waters_size;
    uint64_t messages, message_bytes, controls;
    wr_list_damage *damage; /* found by a scan; a list file keeps only their number */
    uint64_t damage_n;
    uint64_t damaged; /* damaged parts that the scan which made this list skipped, also when it was long ago */
    uint64_t vouched; /* by a scan: what lies before it in the file was synced, says a padding frame (wr_frame_vouch) */
    uint64_t run_end; /* offset behind the last frame of the open run */
    uint64_t last_water; /* where the last water was noted */
} wr_list;

/* High water of one frame: part 0 means that the whole command is one frame. */
static inline uint64_t wr_water(uint64_t sequence_plus_1, uint16_t part) {
    return sequence_plus_1 << 16 | (part ? part : WR_PART_WHOLE);
}

/* The water of a client epoch, 0: none. Every entry of waters[0 … waters_size) with water != 0 counts, packed or not. */
uint64_t wr_list_water_of(const wr_list *list, uint64_t client_epoch);

wr_list *wr_list_new(uint64_t file, uint64_t salt); /* NULL: no memory */
void wr_list_free(wr_list *list);

/* A frame was appended: MESSAGE or ADD_REFERENCE. ENOMEM leaves the list as it was. */
int wr_list_add(wr_list *list, const wr_frame_head *head, uint64_t offset, uint64_t total);
/* A REMOVE frame was appended, with these ids. */
int wr_list_add_removes(wr_list *list, const wr_frame_head *head, uint64_t offset, uint64_t total, const uint8_t (*ids)[16], uint64_t n);

/* Nothing more is added: pack the waters, give back the memory that was kept for more. Cannot fail. */
void wr_list_seal(wr_list *list);

/* All frames of a file's bytes. Damaged parts are noted in `damage` and skipped: the scan goes on behind the damaged frame when its
 * size is sound, else at the next frame before or at the next page start that holds a valid one. *reason: "end", "zeros", or why the bytes at list->used are no frame (a torn tail, if this is the last file
 * written). NULL: no memory. Thread-safe, needs no GIL. */
wr_list *wr_list_scan(uint64_t file, uint64_t salt, const uint8_t *bytes, uint64_t length, const char **reason);

/* The list as bytes of a list file (malloc'd) and back. decode checks everything (magic, version, node, owner, file, salt, CRC, that every
 * run lies inside `file_bytes`, that counts fit): NULL with *reason ("magic", "version", "node", "owner", "file", "salt", "crc", "size", "run", "memory"). */
uint8_t *wr_list_encode(const wr_list *list, uint64_t node_id, uint32_t owner, uint64_t *bytes);
wr_list *wr_list_decode(const uint8_t *bytes, uint64_t n, uint64_t node_id, uint32_t owner, uint64_t file, uint64_t salt,
                        uint64_t file_bytes, const char **reason);

/* The bytes of frames that the list names, checked against a file's bytes: fills at most `room` of bad, returns how many are bad. */
typedef struct {
    uint8_t id[16];
    uint64_t offset;
    uint32_t total;
    uint8_t kind;
    const char *reason; /* of wr_frame_check, or "other": a valid frame, but not this one */
} wr_list_bad;
uint64_t wr_list_verify(const wr_list *list, const uint8_t *bytes, uint64_t length, wr_list_bad *bad, uint64_t room);

/* Copy the frames that the list names, but for those that are bad now, from a file's bytes to those of another one, from its first
 * page on, with its salt, and end it with a last padding frame. Returns the end, 0: they do not fit into `room`. */
uint64_t wr_list_rewrite(const wr_list *list, const uint8_t *bytes, uint64_t length, uint8_t *to, uint64_t room, uint64_t salt);

/* -- a walk over all ids of a list, in order of the file -- */
/* It can be interrupted: its place is one number, run << 32 | id in the run, UINT64_MAX at the end. */
typedef struct {
    const wr_list *list;
    uint64_t run;
    uint32_t at;     /* in the run */
    uint64_t offset; /* of the frame of that id */
} wr_list_cursor;
typedef struct {
    uint8_t id[16];
    uint64_t offset;
    uint32_t total; /* bytes of the frame; the ids of a REMOVE share one */
    uint32_t extra;
    uint16_t meta_length;
    uint8_t kind;
} wr_list_item;

static inline uint32_t wr_list_total(const wr_list *list, const wr_list_run *run, uint32_t at) {
    return run->total ? run->total : list->totals[run->first_total + at];
}
/* Place 0 is the beginning of every list. */
static inline wr_list_cursor wr_list_cursor_at(const wr_list *list, uint64_t place) {
    wr_list_cursor cursor = {.list = list, .run = place >> 32, .at = (uint32_t)place};
    if (cursor.run >= list->runs_n || cursor.at >= list->runs[cursor.run].count) {
        cursor.run = list->runs_n; /* no place of this list: nothing more */
        return cursor;
    }
    const wr_list_run *run = &list->runs[cursor.run];
    cursor.offset = run->offset;
    if (run->kind == WR_KIND_REMOVE) return cursor;
    if (run->total)
        cursor.offset += (uint64_t)cursor.at * run->total;
    else
        for (uint32_t i = 0; i < cursor.at; i++) cursor.offset += list->totals[run->first_total + i];
    return cursor;
}
static inline uint64_t wr_list_place(const wr_list_cursor *cursor) {
    return cursor->run < cursor->list->runs_n ? cursor->run << 32 | cursor->at : UINT64_MAX;
}
/* `n` ids further in the same run; `bytes` is what their frames take. */
static inline void wr_list_skip(wr_list_cursor *cursor, uint32_t n, uint64_t bytes) {
    const wr_list_run *run = &cursor->list->runs[cursor->run];
    cursor->at += n;
    if (run->kind != WR_KIND_REMOVE) cursor->offset += bytes;
    if (cursor->at < run->count) return;
    cursor->at = 0;
    cursor->run++;
    if (cursor->run < cursor->list->runs_n) cursor->offset = cursor->list->runs[cursor->run].offset;
}
/* False at the end. */
static inline bool wr_list_next(wr_list_cursor *cursor, wr_list_item *item) {
    if (cursor->run >= cursor->list->runs_n) return false;
    const wr_list_run *run = &cursor->list->runs[cursor->run];
    wr_put64(item->id, run->id_high);
    wr_put64(item->id + 8, run->id_low + cursor->at);
    item->offset = cursor->offset;
    item->total = wr_list_total(cursor->list, run, cursor->at);
    item->extra = run->extra;
    item->meta_length = run->meta_length;
    item->kind = run->kind;
    wr_list_skip(cursor, 1, item->total);
    return true;
}
/* The id that a walk comes to so many ids later, if its run is so long: what to fetch. False at the end. */
static inline bool wr_list_ahead(const wr_list_cursor *cursor, uint32_t ahead, uint8_t id[16]) {
    if (cursor->run >= cursor->list->runs_n) return false;
    const wr_list_run *run = &cursor->list->runs[cursor->run];
    wr_put64(id, run->id_high);
    wr_put64(id + 8, run->id_low + cursor->at + ahead);
    return true;
}
#endif
