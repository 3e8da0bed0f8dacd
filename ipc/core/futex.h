/* Sleeping and waking across processes on one 32-bit word, sparingly (a wake costs the waker 12-16 us).
 *
 * The word is 1 while its owner sleeps (or is about to). Protocol:
 *   owner:  word = 1; fence; look for work once more; if none: futex wait while word == 1, at most 50 ms; word = 0
 *   others: publish work (release); fence; if word == 1 and exchange(word, 0) == 1: futex wake
 * A death between publish and wake costs the owner at most its time limit, never a hang.
 */
#ifndef WR_FUTEX_H
#define WR_FUTEX_H
#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static inline void wr_cpu_relax(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ __volatile__("yield");
#endif
}

static inline uint64_t wr_now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000ull + (uint64_t)t.tv_nsec;
}

/* The time of day, for what lives longer than the machine's boot: milliseconds since 1970. */
static inline uint64_t wr_wall_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

/* Sleep while *word == expected, at most timeout_ns. Returns 0 when woken or changed, ETIMEDOUT, EINTR. */
static inline int wr_futex_wait(_Atomic uint32_t *word, uint32_t expected, uint64_t timeout_ns) {
    struct timespec t = {.tv_sec = (time_t)(timeout_ns / 1000000000ull), .tv_nsec = (long)(timeout_ns % 1000000000ull)};
    if (syscall(SYS_futex, word, FUTEX_WAIT, expected, &t, NULL, 0) == 0) return 0;
    return errno == EAGAIN ? 0 : errno;
}

static inline void wr_futex_wake_all(_Atomic uint32_t *word) {
    syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

/* Wake the owner of a sleep word if it sleeps. Returns true when a wake was spent.
 * SYNC bell: the fence orders the caller's earlier publication before the load of the word. */
static inline bool wr_bell_ring(_Atomic uint32_t *word) {
    atomic_thread_fence(memory_order_seq_cst);
    if (atomic_load_explicit(word, memory_order_relaxed) == 0) return false;
    if (atomic_exchange_explicit(word, 0, memory_order_acq_rel) == 0) return false;
    wr_futex_wake_all(word);
    return true;
}
#endif
