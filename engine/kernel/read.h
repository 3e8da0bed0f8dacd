/* Reading of a file at a place, as far as it goes: a signal or a short read is no end. */
#ifndef WR_READ_H
#define WR_READ_H
#include <stdint.h>

/* Read `bytes` of a file from `at` on: *n of them are there, fewer where it ends, or before an error. 0 or an errno. */
int wr_read_up_to(int fd, void *to, uint64_t bytes, uint64_t at, uint64_t *n);

/* All of them. 0 or an errno; EUCLEAN: the file ends before. */
int wr_read_all(int fd, void *to, uint64_t bytes, uint64_t at);
#endif
