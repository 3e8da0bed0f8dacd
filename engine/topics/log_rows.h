/* Records of a part of the commit log as rows (engine/kernel/rows.py: log_row), for those who read files and not messages.
 *
 * Invariants: as of wr_record_scan; nothing outside of the bytes is read. Nothing here allocates.
 * Crash points: none, nothing is written. */
#ifndef WR_TOPICS_LOG_ROWS_H
#define WR_TOPICS_LOG_ROWS_H
#include "kernel/rows.h"
#include "topics/record.h"

/* The records of n bytes (less than 4 GiB), which lie at `position` of the log, from byte *at on, at most `most` of them. Returns how many;
 * *at is behind the last one, and *found what begins there, with *end its size (BLANK) or reason (BAD); WR_SCAN_RECORD: `rows` is full. */
uint64_t wr_log_rows(const uint8_t *bytes, uint64_t n, uint64_t position, uint32_t checks, uint64_t *at, wr_log_row *rows, uint64_t most,
                     wr_scan *found, wr_record *end);
#endif
