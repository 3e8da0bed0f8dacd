/* Messages of a queue of a topic, in order: a range of offsets, of all tags or of some.
 *
 *     wr_topic_read_begin, then wr_topic_read_next until it says no, then wr_topic_read_end
 *
 * A read ends at its limits, at what is damaged or gone, or where nothing more is to be seen. `next` of its result is where the next one
 * begins: nothing that is there lies between. What goes wrong behind a message that was found is the next read's. */
#ifndef WR_TOPICS_READ_H
#define WR_TOPICS_READ_H
#include "topics/reader.h"

#define WR_READ_UNITS 512 /* looked at together */
#define WR_READ_TAGS 64   /* wanted at once */

typedef enum {
    WR_READ_FOUND,
    WR_READ_NO_MATCHED_MESSAGE,    /* there are some, and none has a wanted tag */
    WR_READ_OFFSET_TOO_SMALL,      /* below the minimum, of a topic that is not compacted: next */
    WR_READ_OFFSET_OVERFLOW_ONE,   /* the maximum: there is nothing yet */
    WR_READ_OFFSET_OVERFLOW_BADLY, /* above the maximum: next */
    WR_READ_NO_MESSAGE_IN_QUEUE,   /* there never was one */
    WR_READ_OFFSET_FOUND_NULL,     /* the log lost the messages there, or keeps newer ones of their keys */
    WR_READ_MESSAGE_WAS_REMOVING,  /* it goes away now: next */
    WR_READ_DAMAGED,               /* reader->damage; next is behind it */
    WR_READ_STATUSES
} wr_read_status;

/* "FOUND", "NO_MATCHED_MESSAGE" … */
const char *wr_read_word(wr_read_status status);

typedef struct {
    uint32_t queue;
    uint64_t offset, end;     /* messages at `end` and behind it are not read */
    uint32_t records_max;
    uint64_t bytes_max;       /* of records; the first one comes whatever its size */
    const wr_text *tags;      /* WR_READ_TAGS at most */
    uint32_t tags_n;          /* 0: all messages, also those without a tag */
    bool sum;                 /* bodies, too; without it who copies them does: wr_topic_read_again */
} wr_topic_request;

typedef struct {
    wr_read_status status;
    uint64_t next;
    wr_topic_bounds bounds;
    uint32_t records_n;
} wr_topic_read_result;

typedef struct {
    wr_topic_reader *reader;
    wr_topic_request request;
    int64_t codes[WR_READ_TAGS];
    wr_topic_read_result result;
    uint64_t bytes, stop; /* of records found; the first offset that is not read */
    uint64_t below;       /* of a compacted topic: messages below this offset are in its file of newest records */
    uint64_t scanned;     /* units, and records of that file */
    bool over, filtered;
    int error;
    uint32_t units_n, at; /* units that were read, from result.next − at on */
    wr_unit units[WR_READ_UNITS];
} wr_topic_read;

/* 0; ENXIO: there is no such queue (any more); or an errno. `tags` stay where they are until the end. */
int wr_topic_read_begin(wr_topic_read *read, wr_topic_reader *reader, const wr_topic_request *request);

/* The next record; its bytes last until the next call. */
bool wr_topic_read_next(wr_topic_read *read, wr_record *record, const uint8_t **bytes);

/* The body of the record given last does not have its checksum: it is read once more. False: the read is over, and what was given is none. */
bool wr_topic_read_again(wr_topic_read *read, wr_record *record, const uint8_t **bytes);

/* After the first record: how many come with it, if they all are as large and have a wanted tag. For who makes room. */
uint64_t wr_topic_read_expected(const wr_topic_read *read, const wr_record *first);

/* 0 with *result, or an errno of the system, when nothing was found before it. */
int wr_topic_read_end(wr_topic_read *read, wr_topic_read_result *result);
#endif
