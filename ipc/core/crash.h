/* Named points where a process kills itself when a test asks for it (superblock.crash_point). On cold paths only: one load. */
#ifndef WR_CRASH_H
#define WR_CRASH_H
#include "layout.h"
#include <signal.h>
#include <stdatomic.h>
#include <unistd.h>

static inline void wr_crash_point(wr_superblock *super, uint32_t point) {
    if (__builtin_expect(atomic_load_explicit(&super->crash_point, memory_order_relaxed) != point, 1)) return;
    uint32_t after = atomic_load_explicit(&super->crash_after, memory_order_relaxed);
    while (after)
        if (atomic_compare_exchange_weak_explicit(&super->crash_after, &after, after - 1, memory_order_relaxed, memory_order_relaxed))
            return;
    /* Of several processes at the same point one dies. */
    if (atomic_compare_exchange_strong_explicit(&super->crash_point, &point, 0, memory_order_relaxed, memory_order_relaxed))
        kill(getpid(), SIGKILL);
}
#endif
