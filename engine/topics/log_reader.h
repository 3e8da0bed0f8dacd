/* Bytes of the commit log for who reads it, in any process: out of its ring while they are there, else out of the files, by
 * `pread` (a mapped file that is cut, or a disk that fails, would be a signal).
 *
 * Threads: one. Invariants
 *   What was copied out of the ring is the log's, or it is not used (wr_topic_ring_read).
 *   The window holds bytes that never change again: it was read as far as its reader knows of records. Whoever reads on a guess
 *   drops it (wr_log_reader_drop).
 *   A file never changes for whoever has it open, but when it is gone: then it is cut (kernel/removal.py), and ends too early. A file of
 *   a name may be another one after a restart of the log's owner: wr_log_reader_begin lets go of all. */
#ifndef WR_TOPICS_LOG_READER_H
#define WR_TOPICS_LOG_READER_H
#include <stdbool.h>
#include <stdint.h>

#define WR_LOG_FOLDER "commitlog"
#define WR_LOG_FILES_OPEN 4
#define WR_LOG_WINDOW_BYTES (256u << 10) /* read at once: it stays in the processor's cache until it was checked and copied */

typedef struct {
    int root; /* a descriptor of the folder above; the caller's */
    uint64_t file_bytes;
    const void *ring; /* its region, mapped once; NULL: there is none */
    uint64_t ring_bytes;
    struct {
        int fd; /* −1: none */
        uint64_t base, used;
    } files[WR_LOG_FILES_OPEN];
    uint64_t uses;
    uint8_t *bytes; /* the window */
    uint64_t room, from, n;
} wr_log_reader;

void wr_log_reader_init(wr_log_reader *reader, int root, uint64_t file_bytes);
void wr_log_reader_free(wr_log_reader *reader);

/* The log of another incarnation of its owner, or the same once more: nothing that was read or opened before is used again. */
void wr_log_reader_begin(wr_log_reader *reader, const void *ring, uint64_t ring_bytes);
/* Let go of the window. */
static inline void wr_log_reader_drop(wr_log_reader *reader) { reader->n = 0; }
/* Let go of open files below a position: they keep the disk from having their space. */
void wr_log_reader_retire(wr_log_reader *reader, uint64_t first);

int wr_log_reader_read(wr_log_reader *reader, uint64_t position, uint64_t n, uint64_t ahead);

/* n bytes at a position, which lie in one file; the next `ahead` bytes are wanted soon. *bytes lasts until the next call. 0; ENODATA: the
 * file is shorter; ENOENT: it is not there; ENOMEM; or an errno of the system. */
static inline int wr_log_reader_get(wr_log_reader *reader, uint64_t position, uint64_t n, uint64_t ahead, const uint8_t **bytes) {
    uint64_t at = position - reader->from;
    if (position < reader->from || at > reader->n || reader->n - at < n) {
        int error = wr_log_reader_read(reader, position, n, ahead);
        if (error) return error;
        at = 0;
    }
    *bytes = reader->bytes + at;
    return 0;
}

/* The same for as many bytes as there are, n at most: where a record's size is not known. They are not kept. 0 with *found, or as before. */
int wr_log_reader_peek(wr_log_reader *reader, uint64_t position, uint64_t n, const uint8_t **bytes, uint64_t *found);
#endif
