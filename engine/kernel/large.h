/* A message in a file of its own: `large/<id>` in the folder of each queue worker that has it (links of one file). Written and synced by
 * its publisher before the PUBLISH that speaks of it is submitted, read by its consumers, removed by the worker.
 *
 * Invariants
 *   A file changes no more when its publisher has closed it, and no PUBLISH speaks of it before it is durable under its name.
 *   Its publisher holds a shared lock (flock) on it from before anything is in it until the PUBLISH is submitted to all workers, or never
 *   will be. So whoever gets the exclusive lock, keeps it, and then finds that the worker has executed what its publisher had submitted,
 *   and knows no message of this id, may remove it (engine/queues/large_files.py). A publisher that dies lets its lock go.
 *   Who takes the name of such a file away holds a lock of the file that has the name now.
 * Crash points
 *   before the PUBLISH is submitted: a file, or a part of one, that nobody speaks of; the worker removes it.
 */
#ifndef WR_KERNEL_LARGE_H
#define WR_KERNEL_LARGE_H
#include "kernel/protocol.h"
#include <stdbool.h>
#include <stdint.h>

#define WR_LARGE_NAME_BYTES 33 /* with the zero at the end */

typedef struct {
    const uint8_t *id;
    const void *meta, *body;
    uint64_t node_id, length; /* of the body */
    uint16_t meta_length;
} wr_large;

static inline bool wr_is_large(uint8_t location) { return location == WR_LOCATION_LARGE || location == WR_LOCATION_LARGE_TRANSIENT; }

void wr_large_name(const uint8_t id[16], char name[WR_LARGE_NAME_BYTES]);

/* Make the file in a folder, durable if `sync`, and leave it locked: *fd. 0 or an errno (ENOSPC, EDQUOT: there is no room; EWOULDBLOCK: its
 * worker is just looking at an empty one of this name: try again). Nothing is left behind but that one. */
int wr_large_write(int folder, const wr_large *m, bool sync, int *fd);
/* Give it the same name in another folder. 0 or an errno. */
int wr_large_link(int from, int to, const uint8_t id[16], bool sync);
/* It is not wanted. What cannot be removed now, its worker removes. */
void wr_large_unlink(int folder, const uint8_t id[16]);

/* Metadata (meta_length bytes) and payload (the rest of `length`) into their places; NULL: not wanted, and not read (nor checked). 0;
 * ENOENT; EBADMSG (not what was written, *reason says what); EUCLEAN (a file of another node or message); or an errno. */
int wr_large_read(int folder, uint64_t node_id, const uint8_t id[16], uint64_t length, uint16_t meta_length, void *meta, void *body,
                  const char **reason);
/* Read all of it and check it. 0 or as wr_large_read; *length, *meta_length: what it says. */
int wr_large_check(int folder, uint64_t node_id, const uint8_t id[16], uint64_t *length, uint16_t *meta_length, const char **reason);
#endif
