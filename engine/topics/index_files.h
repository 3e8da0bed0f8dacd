/* The key index as a sequence of files (topics/key_index.h has the inside of one). It is derived from the log.
 *
 * A file is named by the store time of its first entry, in UTC: yyyyMMddHHmmssSSS, and always later than the one before it. All
 * but the newest are full. They are sparse: pieces of slots and entries get blocks when they are first touched.
 *
 * Each says which one comes before it (topics/index_link.h), so one that somebody removed is missed.
 *
 * Threads and processes: one writer (one thread), any number of readers (topics/index_reader.h).
 * Invariants
 *   Keys are put in the order of the log, so what is there is all up to a position, whenever the writer dies: what is put again
 *   below that is there, and of the record at it every key is looked for. Readers see an entry whole or not at all.
 *   A file has its name when its link is on stable storage, and not before.
 * Crash points: killed anywhere, the next writer goes on (recover with `survived`). Power lost: a file holds what the last mark
 *   counts, and any pages beside; recover makes it again from the entries that the mark counts. */
#ifndef WR_TOPICS_INDEX_FILES_H
#define WR_TOPICS_INDEX_FILES_H
#include "topics/index_reader.h"

/* What is on stable storage: older files wholly, and of this one the entries below `count`. */
typedef struct {
    char name[WR_INDEX_NAME_DIGITS + 1]; /* "": there is no file */
    uint32_t count;                      /* entries, plus 1 */
    int64_t begin;                       /* its begin_timestamp */
} wr_index_mark;

typedef struct wr_index_files wr_index_files;

/* `folder`: below `root` (a descriptor of the caller's, which outlives this); made by the first put. NULL: no memory, or counts that
 * cannot be. */
wr_index_files *wr_index_files_new(int root, const char *folder, uint32_t slots_n, uint32_t entries_n);
void wr_index_files_free(wr_index_files *files);

/* Begin: once, before anything else. `mark`: of the checkpoint, NULL: there is none. `survived`: what the last writer stored is as it
 * left it (a process died, the machine did not). *lost: entries that the mark counts are not there; then those of records from the
 * position *from on have to be put again. 0, or an errno of the system. */
int wr_index_files_recover(wr_index_files *files, const wr_index_mark *mark, bool survived, bool *lost, uint64_t *from);

/* Put a key (wr_key_hash) of the record at a position, which is no lower than the one before. What is there is not doubled. 0 or an
 * errno, and then the key is not there: ENOSPC, EDQUOT (go on when there is space); EUCLEAN: the newest file is damaged (see
 * wr_index_files_discard); or what a sync said. */
int wr_index_files_put(wr_index_files *files, uint32_t key_hash, uint64_t physical_offset, int64_t store_timestamp);

/* Make all that was put durable, files and names, and say so. 0 or an errno; one of a sync stays. */
int wr_index_files_sync(wr_index_files *files, wr_index_mark *mark);

/* Take out the entries of records at or behind `end`: the log was cut there, and no reader looks on. 0, EUCLEAN, or an errno. */
int wr_index_files_cut(wr_index_files *files, uint64_t end);

/* Name of the newest file, as a number; 0: there is none. */
uint64_t wr_index_files_newest(const wr_index_files *files);

/* Remove the newest file. *from: as of wr_index_files_recover. */
int wr_index_files_discard(wr_index_files *files, uint64_t *from);

/* Remove the files whose newest record is below a position, but never the newest file. *removed: how many. 0 or an errno. */
int wr_index_files_remove(wr_index_files *files, uint64_t minimum, uint64_t *removed);
#endif
