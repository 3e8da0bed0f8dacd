/* A derived file of an exact size, mapped to be written: sparse, and with blocks under what is touched. What
 * somebody appended to it is not looked at.
 *
 * Invariants
 *   A byte of the map is read or written only where wr_mapped_have was 0 before: then the disk has a block for it, and a full
 *   disk is ENOSPC there, and no signal here. (On tmpfs reading a hole takes memory, too.) What remains: who cuts the file
 *   meanwhile, or a disk that fails, ends the process by SIGBUS, as with any map. Readers of other processes have no part in it.
 *   No descriptor is kept: thousands of queues are written by one process. So more blocks are asked for by name, and a name
 *   that stands for another file, or none, is ESTALE.
 *   What is not touched is not in memory either.
 *   An error of a sync is kept by the kernel for the map: the owner says it for ever.
 * Crash points: killed between making a file and giving it its size: it has none, and gets it from the next one. */
#ifndef WR_TOPICS_MAPPED_FILE_H
#define WR_TOPICS_MAPPED_FILE_H
#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

typedef struct {
    uint8_t *base; /* NULL: there is none */
    uint64_t bytes;
    dev_t device;
    ino_t inode;
} wr_mapped_file;

/* Map a file below root; *made, if not NULL: it is made where there is none, and whether it was. 0, or an errno: ENOENT; ESTALE:
 * it is neither empty nor as long as this. */
int wr_mapped_open(wr_mapped_file *file, int root, const char *name, uint64_t bytes, bool *made);
void wr_mapped_close(wr_mapped_file *file);

/* Have blocks for the bytes from … to. What is there stays. 0, or an errno: ENOSPC, EDQUOT, ESTALE. */
int wr_mapped_have(const wr_mapped_file *file, int root, const char *name, uint64_t from, uint64_t to);

/* Sync these bytes, and the file's blocks. 0 or an errno. */
int wr_mapped_sync(const wr_mapped_file *file, uint64_t from, uint64_t to);

/* What an owner keeps of a sync that failed. What the sync covered may be lost, even when there is space again, so no
 * such error passes: those that would be tried again (ENOSPC, EDQUOT, ENOMEM) become EIO. */
static inline int wr_sync_error(int error) {
    return error == ENOSPC || error == EDQUOT || error == ENOMEM ? EIO : error;
}
#endif
