/* Slots in a scratch file. Declared in queues/spill.h. */
#define _GNU_SOURCE
#include "queues/spill.h"
#include "kernel/read.h"
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void wr_spill_open(wr_spill *s, int fd, uint64_t slot_bytes) { *s = (wr_spill){.fd = fd, .slot_bytes = slot_bytes}; }

void wr_spill_close(wr_spill *s) {
    if (s->fd >= 0) close(s->fd);
    free(s->free);
    *s = (wr_spill){.fd = -1};
}

/* Room in `free` for every slot there is, so that dropping one never fails. */
static int reserve(wr_spill *s) {
    if (s->slots_n < s->free_size) return 0;
    uint32_t size = s->free_size ? 2 * s->free_size : 64;
    uint32_t *more = realloc(s->free, size * sizeof *more);
    if (!more) return ENOMEM;
    s->free = more;
    s->free_size = size;
    return 0;
}

int wr_spill_put(wr_spill *s, const void *from, uint32_t *slot) {
    if (s->fd < 0) return EBADF;
    int error = s->free_n ? 0 : reserve(s);
    if (error) return error;
    uint32_t at = s->free_n ? s->free[s->free_n - 1] : s->slots_n;
    uint64_t done = 0;
    while (done < s->slot_bytes) {
        ssize_t n = pwrite(s->fd, (const uint8_t *)from + done, s->slot_bytes - done, (off_t)(at * s->slot_bytes + done));
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return n ? errno : EIO;
        done += (uint64_t)n;
    }
    if (s->free_n) s->free_n--;
    else s->slots_n++;
    *slot = at;
    return 0;
}

int wr_spill_get(const wr_spill *s, uint32_t slot, void *to) {
    uint64_t n;
    int error = wr_read_up_to(s->fd, to, s->slot_bytes, slot * s->slot_bytes, &n);
    if (!error) memset((uint8_t *)to + n, 0, s->slot_bytes - n);
    return error;
}

void wr_spill_ahead(const wr_spill *s, uint32_t slot) {
    posix_fadvise(s->fd, (off_t)(slot * s->slot_bytes), (off_t)s->slot_bytes, POSIX_FADV_WILLNEED);
}

void wr_spill_drop(wr_spill *s, uint32_t slot) {
    s->free[s->free_n++] = slot;
    if (s->free_n < s->slots_n) return;
    /* Nobody needs a byte of it. Where that does not work the slots serve again. */
    if (ftruncate(s->fd, 0)) return;
    s->free_n = s->slots_n = 0;
}
