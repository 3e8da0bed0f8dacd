/* The record at the end of each commit of the log: a checksum of all of it, where it belongs, and what it confirms
 * (docs/design/019-topics.md, section 1). Its bytes: engine/topics/formats.py. */
#ifndef WR_COMMIT_RECORD_H
#define WR_COMMIT_RECORD_H
#include <stdbool.h>
#include <stdint.h>

#define WR_COMMIT_MARKS_MAX 256

/* Whose log it is. */
typedef struct {
    uint8_t node[16];
    uint64_t epoch; /* of the server that writes */
} wr_commit_origin;

/* A client's commands below `sequence` are in the log. */
typedef struct {
    uint64_t client_epoch, sequence;
    /* in memory alone */
    void *owner;
    bool written; /* one of the commands is confirmed when it is written */
} wr_commit_mark;

typedef struct {
    wr_commit_origin origin;
    uint64_t number;   /* from 1 on */
    uint64_t from;     /* position of its first record: the end of the commit before, or the begin of a file */
    uint64_t synced;   /* everything below was on stable storage when this one was sealed */
    uint64_t store_ms; /* of its newest record */
    uint32_t crc;      /* CRC-32C of the log from `from` to this record */
    uint32_t marks_n;
} wr_commit_head;

uint64_t wr_commit_record_bytes(uint32_t marks_n);
/* Write one at its position. */
void wr_commit_record_write(uint8_t *to, uint64_t position, const wr_commit_head *head, const wr_commit_mark *marks);
/* Of the n bytes at `position`: is a whole, sound commit record there? `marks`: where they lie, see wr_commit_mark_read. */
bool wr_commit_record_read(const uint8_t *bytes, uint64_t n, uint64_t position, wr_commit_head *head, const uint8_t **marks);
wr_commit_mark wr_commit_mark_read(const uint8_t *marks, uint32_t index);

typedef enum {
    WR_COMMIT_SOUND, /* a whole commit, and its checksum is right */
    WR_COMMIT_BLANK, /* the file ends here */
    WR_COMMIT_END,   /* zeros: nothing was written here */
    WR_COMMIT_MORE,  /* it goes on behind these bytes */
    WR_COMMIT_FOREIGN, /* a whole commit with the right checksum, of another node */
    WR_COMMIT_TORN   /* none of these: torn, damaged, or of another life of the log */
} wr_commit_kind;

/* What lies at `position` of the log, where a commit or the end of a file is due. `after`: node, epoch and number of the commit before;
 * a sound one has the next number, and no lower epoch: what an earlier server wrote, and was cut off, can have the same place and number.
 * *end: behind it (BLANK: the next file's begin); head and marks are set for a sound one, and a foreign one (*end: its begin).
 * TORN: *end is where the first bad record begins. */
wr_commit_kind wr_commit_scan(const uint8_t *bytes, uint64_t n, uint64_t position, uint64_t file_end, const wr_commit_head *after,
                              wr_commit_head *head, const uint8_t **marks, uint64_t *end);

/* Is there, somewhere in these bytes, a sound commit record of the same node which says that more than `below` was synced? Then what is
 * missing below is damage, and no torn tail. */
bool wr_commit_vouched(const uint8_t *bytes, uint64_t n, uint64_t position, const uint8_t node[16], uint64_t below);
#endif
