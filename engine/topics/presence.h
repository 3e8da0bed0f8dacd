/* Are the derived files there that a checkpoint counts on? A quick look at a start, which changes nothing: names and sizes of all files, the last
 * synced unit of each queue against the log, and what each file of the key index says of the one before it. What lies inside of them
 * `warren check` compares (topics/examine.h).
 *
 * What is not there stays so: readers are told where they meet it, and a repair makes it again. The files that the worker itself
 * goes on with (the newest ones) it makes again by itself, when it meets them.
 *
 * Threads: one. */
#ifndef WR_TOPICS_PRESENCE_H
#define WR_TOPICS_PRESENCE_H
#include "topics/log_reader.h"

typedef struct {
    uint32_t files_n;   /* that are not as they have to be */
    char file[320];     /* the first of them, below the folder of topics */
    const char *reason; /* "is missing" … */
} wr_absence;

typedef struct {
    int root;
    uint64_t log_file_bytes;
    uint32_t consume_queue_entries, index_slots, index_entries;
    uint64_t position; /* of the checkpoint: units lead to records below it */
    wr_log_reader log;
    wr_absence found;
} wr_presence;

void wr_presence_begin(wr_presence *presence, int root, uint64_t log_file_bytes, uint64_t position);
void wr_presence_end(wr_presence *presence);

/* A queue (its folder as of topics/queue_folders.h) that has units of these messages. 0 or ENOMEM. */
int wr_presence_queue(wr_presence *presence, const char *folder, uint32_t queue, uint64_t minimum, uint64_t durable);

/* The key index, of keys of records from `first` on. 0 or ENOMEM. */
int wr_presence_index(wr_presence *presence, const char *folder, uint64_t first);
#endif
