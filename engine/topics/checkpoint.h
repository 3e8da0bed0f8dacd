/* The checkpoint of the derived state: from where the log is walked at a start, and what is on stable storage by then. One file,
 * replaced as a whole; its format is declared in engine/topics/formats.py.
 *
 * In C, because it is taken by the thread that dispatches, each second, without Python.
 * Invariants
 *   What it says is on stable storage before it is written: queues and index, and the log below its position. So a walk from
 *   there makes all that is missing.
 *   It is one of this node, of this place of the log and of these settings, and its checksum is right: else there is none, and
 *   the log is walked from its first file.
 * Crash points: the old file or the new one, whatever happens; a part of one lies under another name, and is written over. */
#ifndef WR_TOPICS_CHECKPOINT_H
#define WR_TOPICS_CHECKPOINT_H
#include "topics/commit_record.h"
#include "topics/index_files.h"

typedef struct {
    uint32_t topic, queue;
    uint64_t minimum; /* the first message that a reader may see */
    uint64_t next;    /* the offset behind the last one in the log below the position */
    uint64_t durable; /* units below are on stable storage */
    uint64_t bytes;   /* of its records from `minimum` on */
    uint64_t from;    /* position of the first of them; WR_NO_RECORD: there is none */
} wr_checkpoint_row;

#define WR_NO_RECORD UINT64_MAX

typedef struct {
    wr_commit_origin origin; /* node and epoch */
    uint64_t number;         /* of the last commit below the position */
    uint64_t position;
    uint64_t first;          /* files of the log below it may have been removed */
    uint64_t store_ms;       /* of its newest record */
    uint8_t boot[16];        /* of the machine and the mount: another one, and what was not synced may be gone */
    uint32_t consume_queue_entries, index_slots, index_entries; /* settings that the files were made with */
    wr_index_mark index;
    uint32_t marks_n, rows_n;
    wr_commit_mark *marks;
    wr_checkpoint_row *rows;
} wr_checkpoint;

/* Replace the file. 0, or an errno: ENOSPC … (the old one is there), or of a sync (then one of the two is). */
int wr_checkpoint_write(int folder, const char *name, const wr_checkpoint *checkpoint);

typedef enum {
    WR_CHECKPOINT_GOOD,
    WR_CHECKPOINT_NONE,     /* no file */
    WR_CHECKPOINT_DAMAGED,  /* cut, or its checksum is wrong */
    WR_CHECKPOINT_NEWER,    /* of another version */
    WR_CHECKPOINT_FOREIGN,  /* of another node */
    WR_CHECKPOINT_SETTINGS, /* files of other sizes */
    WR_CHECKPOINT_OLDER,    /* of a version whose files had another form */
    WR_CHECKPOINT_KINDS
} wr_checkpoint_kind;

/* "good", "none", "damaged", "newer", "foreign", "settings", "older" */
const char *wr_checkpoint_word(wr_checkpoint_kind kind);

/* Read it. `to` holds node and settings as they are wanted, and gets what is there; wr_checkpoint_free it if it is good. Of one with other
 * settings, or of an older version, it gets no marks and no rows. 0 with *kind, or an errno of the system. */
int wr_checkpoint_read(int folder, const char *name, wr_checkpoint *to, wr_checkpoint_kind *kind);
void wr_checkpoint_free(wr_checkpoint *checkpoint);
#endif
