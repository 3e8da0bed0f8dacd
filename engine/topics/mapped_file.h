/* A derived file of an exact size, mapped to be written: sparse, and with blocks under what is touched. What
 * somebody appended to it is not looked at.
 *
 * Invariants
 *   A byte of the map is read or written only where wr_mapped_have was 0 before: then the disk has a block for it, and a full
 *   disk is ENOSPC there. (On tmpfs reading a hole takes memory, too.)
 *   A block does not promise space where the file system writes elsewhere: btrfs always, XFS when a copy of the file shares the block. There
 *   a store may find no space, each time that its page was written back, and the system says that by SIGBUS. So all stores are made
 *   by wr_mapped_try. It leaves a store that failed as a kill would leave it, and wr_mapped_why says why it failed. On ext4 and tmpfs,
 *   which keep a block where it is, it costs nothing.
 *   What remains: who cuts the file, or a disk that fails, while the map is read outside of a try ends the process by SIGBUS, as with
 *   any map. Readers of other processes have no part in it.
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
    bool elsewhere; /* its file system may write a block elsewhere, so that a store can find no space */
} wr_mapped_file;

/* Map a file below root; *made, if not NULL: it is made where there is none, and whether it was. 0, or an errno: ENOENT; ESTALE:
 * it is neither empty nor as long as this. */
int wr_mapped_open(wr_mapped_file *file, int root, const char *name, uint64_t bytes, bool *made);
void wr_mapped_close(wr_mapped_file *file);

/* Have blocks for the bytes from … to. What is there stays. 0, or an errno: ENOSPC, EDQUOT, ESTALE. */
int wr_mapped_have(const wr_mapped_file *file, int root, const char *name, uint64_t from, uint64_t to);

/* Run a function that stores into the map, and holds no lock and owns nothing meanwhile. false: a store of it failed, those before it
 * were made, and those after it were not. */
bool wr_mapped_try(const wr_mapped_file *file, void (*store)(void *context), void *context);
/* Why the last try of this thread failed, by writing the page that it failed at as it is; when that works, space was
 * lacking (ENOSPC) and may be there now. An errno: ENOSPC, EDQUOT (try again when there is space); ESTALE; EIO. */
int wr_mapped_why(const wr_mapped_file *file, int root, const char *name);

/* Sync these bytes, and the file's blocks. 0 or an errno. */
int wr_mapped_sync(const wr_mapped_file *file, uint64_t from, uint64_t to);

/* What an owner keeps of a sync that failed. What the sync covered may be lost, even when there is space again, so no
 * such error passes: those that would be tried again (ENOSPC, EDQUOT, ENOMEM) become EIO. */
static inline int wr_sync_error(int error) {
    return error == ENOSPC || error == EDQUOT || error == ENOMEM ? EIO : error;
}
#endif
