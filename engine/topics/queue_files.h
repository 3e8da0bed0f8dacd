/* The consume queue of one (topic, queue) as files: the n-th unit for the n-th message, `file_entries` of them a file, which is
 * named by where it begins, in bytes. It is derived from the log; formats: engine/topics/formats.py.
 *
 * Threads and processes: one writer (one thread), any number of readers.
 * Invariants
 *   Nothing is opened or made before it is used: an idle queue costs this structure. The writer keeps one map and no descriptor.
 *   A unit has its place by its number, so putting it again changes nothing. A file has its whole apparent size, and blocks as
 *   far as it was written (topics/mapped_file.h).
 *   How many units count is told elsewhere (the row's maximum, raised behind the put). What lies behind it is of a writer that
 *   died, or of pages that a loss of power mixed, and is written over.
 *   Readers never map: they read. That takes no longer than asking for the file's size before touching a map, and neither a
 *   file that somebody cuts nor a disk that fails can end them. They believe nothing of a unit; the log says whether it is right.
 * Crash points: killed anywhere, the units put before are there. Power lost: those below what the last sync said, and of the
 * others any pages. */
#ifndef WR_TOPICS_QUEUE_FILES_H
#define WR_TOPICS_QUEUE_FILES_H
#include "topics/consume_queue.h"

/* Numbers of units are lower: their places are signed 64-bit numbers. */
#define WR_QUEUE_UNITS_MAX ((uint64_t)INT64_MAX / WR_CONSUME_QUEUE_UNIT_SIZE)

/* ---- the writer ---- */

typedef struct wr_queue_files wr_queue_files;

/* `folder`: below `root` (a descriptor of the caller's, which outlives this); touched by the first put alone. NULL: no memory. */
wr_queue_files *wr_queue_files_new(int root, const char *folder, uint32_t file_entries);
void wr_queue_files_free(wr_queue_files *files); /* what was not synced is the kernel's to write */

/* Store the n-th unit; `size` 0: that there is no message (its record was lost). 0 or an errno, and then the unit is not there:
 * ENOSPC, EDQUOT (go on when there is space); ESTALE: somebody cut, moved or removed the file; or what a sync said. */
int wr_queue_files_put(wr_queue_files *files, uint64_t n, uint64_t physical_offset, uint32_t size, int64_t tags_code);

/* Make all that was put durable, files and names. *durable: behind the highest unit put (0: none was). 0 or an errno; one of a
 * sync stays, because nobody knows what is missing then. */
int wr_queue_files_sync(wr_queue_files *files, uint64_t *durable);

/* The same for an owner who synced the whole file system (or failed to, with this error) behind the last put. */
int wr_queue_files_synced(wr_queue_files *files, int error);

/* Remove the files whose units are all below `minimum`, but never the last one. *removed: how many. 0 or an errno. */
int wr_queue_files_remove(wr_queue_files *files, uint64_t minimum, uint64_t *removed);

/* ---- anybody ---- */

/* The first unit that the files have place for. 0; ENOENT: there is no file; or an errno. */
int wr_queue_files_first(int root, const char *folder, uint32_t file_entries, uint64_t *first);

typedef struct wr_queue_reader wr_queue_reader;
/* Of one thread. NULL: no memory. */
wr_queue_reader *wr_queue_reader_new(int root, const char *folder, uint32_t file_entries);
void wr_queue_reader_free(wr_queue_reader *reader);

/* Read up to `most` units from the n-th on, up to the first that is not there. *found: how many. 0 also if none is: not written
 * yet, or its file is gone (the minimum says which), or cut. Else an errno. The file used last stays open, and readable when it
 * is removed. */
int wr_queue_reader_get(wr_queue_reader *reader, uint64_t n, wr_unit *units, uint32_t most, uint32_t *found);
/* The same with those that are not there, or say that there is no message: their size is 0; up to where a file has no place for one. For who knows
 * how many there are. */
int wr_queue_reader_all(wr_queue_reader *reader, uint64_t n, wr_unit *units, uint32_t most, uint32_t *found);
/* Let go of the file that is open: it may have been removed, and made again. */
void wr_queue_reader_drop(wr_queue_reader *reader);
/* The first unit of the file that is there and has place for the n-th or for later ones, or (`down`) for it or earlier ones: the nearest. 0; ENOENT:
 * there is none; or an errno. */
int wr_queue_reader_file(const wr_queue_reader *reader, uint64_t n, bool down, uint64_t *first);
#endif
