/* The append side of a segment file: image in shared memory, group commit on its own thread.
 *
 * One log = one directory of files with one writer process. Four users: persistent and transient message store,
 * persistent and transient journal of a queue worker.
 *
 * The whole current file lies in a shared, prefaulted image (region: one header page of wr_image[], then images_n x
 * file_bytes). The loop thread appends frames to it; readers of any process read the image directly; the committer
 * thread writes sealed, 4 KiB-aligned parts of it to the file (O_DIRECT where the file system allows) and syncs.
 * So the write buffer, cur_file_cache's payloads and the O_DIRECT staging buffer are one memory.
 *
 * Threads: every function is called by the loop thread, but wr_log_commit_run (the committer's whole life) and the
 * `written` and `done` callbacks (called on the committer thread). What a batch confirms is the owner's to publish, in these.
 *
 * Invariants
 *   sealed_to <= append; both in the current file; everything below a posted batch's `to` never changes again.
 *   A frame never crosses a file; a file is rolled before the frame that does not fit.
 *   Roll: the rest of the old file is sealed with sync; an image is reused only when its file is wholly durable. A file is left
 *   before it is full when there is no memory for more of its image.
 *   A file that was left ends with a padding frame with FRAME_LAST, or is full to its last byte. Behind it, and behind what was
 *   sealed of the current file, lies whatever the blocks held before (a recycled file): readers go by frames, never by zeros.
 *   A padding frame names how much of its file was synced when it was made (wr_frame_vouch): a hole that none behind it
 *   vouches for is a torn batch, which was never confirmed; another one is damage.
 *   What is not written, and why nothing behind it is confirmed: kernel/committer.h.
 */
#ifndef WR_LOG_H
#define WR_LOG_H
#include "kernel/committer.h"
#include "kernel/frame.h"
#include "kernel/horizon.h"
#include <pthread.h>

#define WR_LOG_HORIZONS 512

typedef struct {
    uint32_t image;
    uint64_t file;
    uint64_t from, to; /* multiples of the page, `to` exclusive */
    bool sync;         /* fdatasync wanted */
    bool last;         /* last batch of the file */
    uint64_t number;   /* from 1 on */
    uint64_t note;     /* free for the owner; the message store: when this is done, no ring replays files below it */
    uint32_t horizons_n;
    wr_horizon horizons[WR_LOG_HORIZONS];
    int error;         /* errno of the write or sync, 0 if fine */
} wr_batch;

typedef struct wr_log wr_log;
typedef void (*wr_batch_done)(void *context, const wr_batch *batch);

typedef struct {
    uint64_t append;          /* next byte in the current file */
    uint64_t sealed_to;
    uint64_t file;            /* current file number */
    uint64_t salt;
    uint32_t image;           /* index of the current image */
    bool has_file, has_next;
    bool wants_next;          /* the next file should be made now: this one is in use, or something waits for it */
    bool unsealed_sync;       /* some appended frame since the last seal wants sync */
    bool busy;                /* a batch is posted or running */
    bool no_memory;           /* the last wr_log_reserve found no image with memory for its frame: it works again when there is some */
    bool full;                /* no slot for another batch: there is one when the bell rings */
    int failed;
    int no_space;             /* errno of a write that finds no space (ENOSPC, EDQUOT) and is tried again, 0: none is */
    uint64_t commits_n, syncs_n, commit_ns_sum, bytes_written;
} wr_log_state;

/* `region`: wr_image header page + images, mapped; memory for the images may be missing until it is needed; `may_sync` false for transient
 * logs (never fdatasync). `done` may be NULL. Returns NULL with errno. */
wr_log *wr_log_new(void *region, uint64_t region_bytes, uint32_t images_n, uint64_t file_bytes, bool may_sync,
                   wr_batch_done done, void *context);
void wr_log_free(wr_log *log); /* after wr_log_stop and the committer's return */

/* Call `written` for each batch after its bytes were handed to the system and before the sync (on the committer thread, with
 * batch.error 0): the owner may raise `written`, and of a batch without sync `head`. Before the committer runs. */
void wr_log_on_written(wr_log *log, wr_batch_done written);

/* Before the committer runs. */
void wr_log_set_io(wr_log *log, const wr_commit_io *io, void *io_context);
/* Its files have no names and any size, so that none can be removed or cut while it is in use: fuzz targets use such. Before the committer runs. */
void wr_log_set_nameless(wr_log *log);

/* Have memory for so much of each image only, however large the files are; the rest of a file stays empty. Before the first file. */
void wr_log_limit(wr_log *log, uint64_t image_bytes);

/* Have memory for a range of a shared region, which may have none yet. False: the machine has none. */
bool wr_log_populate(uint8_t *from, uint64_t bytes);
const wr_log_state *wr_log_look(const wr_log *log); /* for the loop thread; refreshes what the committer counts */

/* Offer the next file: fd open for writing (O_DIRECT or not), already preallocated to file_bytes, its directory synced; what
 * lies in it does not matter (a recycled file: no frame of it may validate with the new salt).
 * The log owns the fd from now on. If there is no current file it becomes current at once, else at the next roll.
 * `header` is its 4096-byte header page; it is written with the file's first batch. EBUSY: a next file is already there. */
int wr_log_offer(wr_log *log, int fd, uint64_t file, uint64_t salt, const uint8_t *header);

/* Room for one frame of `bytes` in the current file, rolling when it does not fit. Returns the place and its *offset;
 * NULL with errno EAGAIN when it must roll and no next file is offered or no image is free (*rolled tells whether a roll happened),
 * or when no image has memory for it (state.no_memory; try again),
 * EMSGSIZE when it can never fit, or the log's failure. The space is taken only by wr_log_append. */
uint8_t *wr_log_reserve(wr_log *log, uint64_t bytes, uint64_t *offset, bool *rolled);
/* Leave the current file for the next one, if there is one and something was appended; else EAGAIN, or the log's failure. */
int wr_log_leave(wr_log *log);
/* Bytes of the current file that are for frames which need space and give none back. Without a next file that is a quarter of it: the
 * rest is for what removes messages, so that a full disk gets empty again. It has room for an ack of each message of a file, one
 * by one. */
uint64_t wr_log_new_room(const wr_log *log);
/* Must such a frame of `bytes` wait for the next file? Then that is asked for. */
bool wr_log_scarce(wr_log *log, uint64_t bytes);
/* Bytes of the current file that are not used, whether they have memory or not; 0 without a file. */
uint64_t wr_log_left(const wr_log *log);
/* As wr_log_reserve, in the current file only, with room for `leave` more bytes behind it: EAGAIN where wr_log_reserve would roll. */
uint8_t *wr_log_reserve_here(wr_log *log, uint64_t bytes, uint64_t leave, uint64_t *offset);
void wr_log_append(wr_log *log, uint64_t bytes, bool wants_sync);
/* Bytes that may be written from `append` on, after wr_log_reserve has given a place there: for more frames than the one. */
uint64_t wr_log_room(const wr_log *log);

/* Seal what was appended since the last seal (padding it to the page) and post it to the committer with what it confirms.
 * Nothing to seal and no horizons: returns 0 and posts nothing. EAGAIN: the batch queue is full; ENOBUFS: too many horizons. */
int wr_log_seal(wr_log *log, bool sync, uint64_t note, const wr_horizon *horizons, uint32_t horizons_n);

/* Wait until every posted batch is done (at most timeout_ns; ETIMEDOUT). Used before a client's region is detached, and at stop. */
int wr_log_quiesce(wr_log *log, uint64_t timeout_ns);

/* The committer thread's body: returns after wr_log_stop when the posted batches are done. Rings `bell` (the loop
 * thread's own sleep word, may be NULL) after each batch. */
void wr_log_commit_run(wr_log *log, _Atomic uint32_t *bell);
void wr_log_stop(wr_log *log);

/* Copy `bytes` from image of `file` at `offset`, safely against reuse: true when the bytes are the file's. Any process. */
bool wr_image_read(const uint8_t *region, uint32_t images_n, uint64_t file_bytes, uint64_t file, uint64_t offset,
                   void *to, uint64_t bytes);
#endif
