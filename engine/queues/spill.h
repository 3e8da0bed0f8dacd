/* A scratch file of equal slots: rows of transient messages, which no segment has, while they are not in memory.
 *
 * It belongs to one incarnation of a queue worker: made empty at its start, never synced, and worth nothing after its
 * end. The loop thread alone uses it. What comes back is checked by the CRC that its owner kept.
 *
 * Invariant: a slot is in use, or in `free`, or at or above slots_n. When the last one in use is dropped, the file is
 * cut to nothing.
 */
#ifndef WR_SPILL_H
#define WR_SPILL_H
#include <stdint.h>

typedef struct {
    int fd; /* -1: there is none */
    uint64_t slot_bytes;
    uint32_t *free;
    uint32_t free_n, free_size, slots_n;
} wr_spill;

void wr_spill_open(wr_spill *s, int fd, uint64_t slot_bytes); /* of an empty file, whose descriptor is its own now */
void wr_spill_close(wr_spill *s);
int wr_spill_put(wr_spill *s, const void *from, uint32_t *slot); /* 0, or an errno: nothing was taken */
/* 0, or an errno; a file that was cut reads as zeros */
int wr_spill_get(const wr_spill *s, uint32_t slot, void *to);
void wr_spill_ahead(const wr_spill *s, uint32_t slot); /* ask the system for it */
void wr_spill_drop(wr_spill *s, uint32_t slot);
#endif
