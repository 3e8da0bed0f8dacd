/* A pass over a queue of a compacted topic: what is alive of its file and of the log behind that, in a new file (docs/design/029-compaction.md §3).
 *
 * It reads as any reader does, and writes a file that nobody knows yet: its name, the folder and the queue's minimum are its caller's.
 *
 * Threads: one of its own; it may take long, and looks at `stop` some times a second.
 * Memory: 64 bytes of each key that came since the last pass, beside what the writer keeps.
 * Invariants
 *   Nothing is left out that is not taken away by a newer record of its key below the new end, which is in the new file, or by time.
 *   What cannot be read ends the pass: damage never costs more than what it damaged.
 *   A tombstone stays in the file until `tombstone_ms` after the first pass behind the one that took it in. */
#ifndef WR_TOPICS_COMPACT_H
#define WR_TOPICS_COMPACT_H
#include "topics/compacted.h"
#include "topics/reader.h"

/* The log from its files alone, of a node that is down: records that no reader sees any more, too. */
typedef struct {
    int root;
    uint64_t file_bytes, first; /* base of its first file */
    uint32_t topic, name_n;
    const char *name;
    int (*progress)(void *context, uint64_t position); /* called now and then; not 0: an errno that ends the pass */
    void *context;
} wr_compact_files;

typedef struct {
    wr_topic_reader *reader; /* NULL: by `files`. The old file then gives what lies before the queue's first record in the log */
    const wr_compact_files *files;
    uint8_t node[16];
    uint32_t queue;
    wr_compacted *old;       /* NULL: there is none yet. The queue's minimum is its end */
    uint64_t from;           /* offset: the old file's end, or the queue's minimum without one */
    uint64_t end;            /* offset: records from here on stay in the log alone */
    uint64_t synced;         /* position: so do those that do not end below it */
    uint64_t keys_max;       /* different keys from `from` on: the one too many ends it there */
    uint64_t now, tombstone_ms; /* milliseconds since 1970; for how long a tombstone stays */
    uint64_t bytes_per_s;    /* read or written; 0: as many as come */
    const _Atomic bool *stop;
    int fd;                  /* the new file, empty */
    const wr_commit_io *io;
    void *io_context;
} wr_compact_job;

#define WR_COMPACT_WORDS 640

typedef struct {
    uint64_t end;     /* of the new file */
    uint64_t first;   /* offset of the first record that was read from the log; UINT64_MAX: there was none */
    uint64_t size;    /* its bytes */
    uint64_t records_n, gone_n; /* that are in it; that were read, and are not */
    uint64_t read_bytes;        /* of records */
    char wrong[WR_COMPACT_WORDS];           /* of EUCLEAN: which file is damaged, where and how */
} wr_compact_result;

/* 0: the new file is whole, and on stable storage. ECANCELED: `stop`; EUCLEAN: damage; ESTALE: what is read went meanwhile; EINVAL: `old` does
 * not end at `from`; or an errno. The file is worth nothing then. */
int wr_compact(const wr_compact_job *job, wr_compact_result *result);
#endif
