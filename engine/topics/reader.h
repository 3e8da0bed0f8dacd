/* One thread's reader of one topic, in any process: it asks no server. What all kinds of reading stand on: rows, units of consume
 * queues, and records that are checked against their unit (topics/read.h, topics/seek.h, topics/lookup.h).
 *
 * Invariants
 *   Nothing that lies in files or regions is believed: a record counts when it lies where its unit says, has the size, is the message
 *   that was asked for of this very topic, and its body has the checksum (wr_topic_reader_record).
 *   What does not check out is looked at again, in files that are opened again, before it is called damage: its file may
 *   have been removed, and its unit may have changed since it was read.
 *   What a reader may see ends at the row's maximum; whatever is below it has its unit and its keys.
 *   What was confirmed before a call began is seen by it: who comes to the end waits until that is shown.
 * Whether the regions are those of the worker's present incarnation is the caller's to look at, before and where something is missing.
 */
#ifndef WR_TOPICS_READER_H
#define WR_TOPICS_READER_H
#include "topics/index_reader.h"
#include "topics/log_reader.h"
#include "topics/queue_files.h"
#include "topics/record.h"
#include "topics/rows.h"
#include "topics/text.h"

#define WR_QUEUES_FOLDER "consumequeue"
#define WR_TOPIC_QUEUES_OPEN 16 /* consume queues with an open file */
#define WR_TOPIC_NEWEST_OPEN 4  /* files of newest records */
#define WR_DAMAGE_WORDS 112
#define WR_TOPIC_UNITS_AGAIN 512 /* looked at together */

/* Where the topics of a node lie, and what their files were made with. */
typedef struct {
    int root; /* the folder with commitlog, consumequeue and index; the caller's */
    uint64_t log_file_bytes, ring_bytes;
    uint32_t consume_queue_entries, index_slots, index_entries;
} wr_topic_place;

/* Bytes that are not what was written. */
typedef struct {
    char file[320]; /* below the root; empty: no damage */
    uint64_t position;
    char expected[WR_DAMAGE_WORDS], found[WR_DAMAGE_WORDS];
} wr_topic_damage;

typedef struct {
    uint64_t minimum, maximum; /* offsets: the first message that is there, and behind the last */
} wr_topic_bounds;

typedef struct {
    uint32_t queue;
    wr_topic_row *row; /* NULL: look for it */
    wr_queue_reader *units;
    uint64_t used;
} wr_topic_queue_open;

typedef struct {
    uint32_t queue;
    struct wr_compacted *file; /* NULL: none */
    uint64_t used;
} wr_topic_newest_open;

typedef struct {
    wr_topic_place place;
    uint32_t id, name_n;
    char *name;
    wr_topic_rows *rows; /* NULL: no region */
    wr_log_reader log;
    wr_index_reader *index;
    wr_topic_queue_open queues[WR_TOPIC_QUEUES_OPEN];
    bool compacted; /* topics/newest.h; `node`: whose files */
    uint8_t node[16];
    wr_topic_newest_open newest[WR_TOPIC_NEWEST_OPEN];
    uint64_t uses;
    bool newest_ahead; /* such a file was used that has more than its queue's minimum says: a pass is just ending */
    wr_topic_row **watched; /* rows of queues that are waited for together, by their numbers; NULL: not looked for yet */
    uint32_t watched_n;
    wr_topic_damage damage; /* of the last call */
    uint64_t patience_ns;   /* for so long a call waits until what was confirmed is shown */
    bool behind;            /* that was not enough: something that was confirmed before is not shown. Raised by calls, lowered by the caller. */
} wr_topic_reader;

/* NULL: no memory (errno is ENOMEM), or a place or a name that cannot be. */
wr_topic_reader *wr_topic_reader_new(const wr_topic_place *place, uint32_t id, const char *name, uint32_t name_n);
void wr_topic_reader_free(wr_topic_reader *reader);
/* Files of newest records (topics/newest.h) that are open are not used again. */
void wr_topic_reader_drop_newest(wr_topic_reader *reader);

/* The regions of an incarnation (`ring` and `rows` outlive their use): what was opened before is not used again. NULL: none. */
void wr_topic_reader_begin(wr_topic_reader *reader, const void *ring, wr_topic_rows *rows);

/* What is there of a queue. 0; ENXIO: there is no row: deleted, or no such queue; ENOMEM. */
int wr_topic_reader_bounds(wr_topic_reader *reader, uint32_t queue, wr_topic_bounds *bounds);

/* Messages of the topic that are to come later. 0 or an errno, as before. */
int wr_topic_reader_delayed(wr_topic_reader *reader, uint64_t *n);
/* The same of half messages that are pending. */
int wr_topic_reader_halves(wr_topic_reader *reader, uint64_t *n);

/* The same as wr_topic_reader_bounds, when all of the queue is shown that was confirmed before this call; or `behind`. */
int wr_topic_reader_all(wr_topic_reader *reader, uint32_t queue, wr_topic_bounds *bounds);

/* The newest commit, if it was confirmed and is not shown yet; 0: all is shown. */
uint64_t wr_topic_reader_unshown(const wr_topic_reader *reader);
/* Wait until that one is shown; or `behind`. Nobody waits while what shows it is held up (topics/rows.h). */
void wr_topic_reader_catch_up(wr_topic_reader *reader, uint64_t unshown);

/* Position of the log below which nothing is there any more. */
uint64_t wr_topic_reader_first(const wr_topic_reader *reader);

/* Wait until a queue's maximum is above `seen`, or it is deleted: 0 (look again; also for nothing); ETIMEDOUT; EINTR; ENXIO. */
int wr_topic_reader_wait(wr_topic_reader *reader, uint32_t queue, uint64_t seen, uint64_t timeout_ns);

/* How far a queue was seen. */
typedef struct {
    uint32_t queue;
    uint64_t seen;
} wr_topic_seen;

#define WR_TOPIC_NOTHING UINT32_MAX
#define WR_TOPIC_GROUP_CHANGED (UINT32_MAX - 1)

/* Wait until the maximum of one of these queues is not what was seen, or their group has changed, for `timeout_ns` at most; what was
 * confirmed before counts as shown (or `behind`). *which: the place of the first such queue; GROUP_CHANGED; NOTHING: look again. 0; ENXIO: one
 * has no row; ENOMEM; EINTR. */
int wr_topic_reader_wait_any(wr_topic_reader *reader, const wr_topic_seen *queues, uint32_t queues_n, const wr_topic_group_seen *group,
                             uint64_t timeout_ns, uint32_t *which);

/* Units of messages from an offset on, size 0 where there is none (wr_unit_is_empty: it says so; wr_unit_is_zeros); *found: how many the files have,
 * 0 if none. 0 or an errno. */
int wr_topic_reader_units(wr_topic_reader *reader, uint32_t queue, uint64_t offset, wr_unit *units, uint32_t most, uint32_t *found);

/* Of the file of units that is there and nearest to an offset, at it or behind it, or (`down`) at it or before it: its first offset. 0;
 * ENOENT: there is none; or an errno. */
int wr_topic_reader_file(wr_topic_reader *reader, uint32_t queue, uint64_t offset, bool down, uint64_t *first);

typedef enum {
    WR_MESSAGE_THERE,
    WR_MESSAGE_NONE,    /* its unit is empty by now */
    WR_MESSAGE_GONE,    /* its file was removed: below the minimum, or below the log's first position */
    WR_MESSAGE_DAMAGED, /* reader->damage */
    WR_MESSAGE_ERROR    /* *error */
} wr_message_kind;

/* The record of the message at an offset, of which `unit` was read; the next `ahead` bytes of the log are wanted soon. `sum`: its body is
 * summed, too; without, the caller does that when it is copied, and calls again with `sum` if the checksum is another one. The bytes last until
 * the next call of any function. */
wr_message_kind wr_topic_reader_record(wr_topic_reader *reader, uint32_t queue, uint64_t offset, const wr_unit *unit, uint64_t ahead, bool sum,
                                       wr_record *record, const uint8_t **bytes, int *error);

/* Is a record, which was scanned, of this topic? */
bool wr_topic_reader_owns(const wr_topic_reader *reader, const wr_record *record, const uint8_t *bytes);

/* A unit of this queue is not there, which the row has: damage of its file. */
void wr_topic_reader_lacks(wr_topic_reader *reader, uint32_t queue, uint64_t offset);

/* A unit that the row has was read as zeros, or not at all: its file is opened again, and it is read once more. THERE: this is what stands there (a message,
 * or that there is none); GONE; DAMAGED: *zeros units from the offset on, of `most` that are asked for, are zeros, or the file has no place for
 * them (0); or ERROR. */
wr_message_kind wr_topic_reader_unit_again(wr_topic_reader *reader, uint32_t queue, uint64_t offset, wr_unit *unit, uint32_t most, uint32_t *zeros,
                                           int *error);
#endif
