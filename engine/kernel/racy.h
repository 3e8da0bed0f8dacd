/* Copying memory that another process may change meanwhile: the caller re-checks afterwards (a word, version or generation
 * unchanged) and throws the copy away if it was. ThreadSanitizer, which would report the copy itself, is told so here. */
#ifndef WR_RACY_H
#define WR_RACY_H
#include <stdint.h>
#include <string.h>

#if defined(__SANITIZE_THREAD__)
static void __attribute__((no_sanitize("thread"), noinline, unused)) wr_copy_racy(void *to, const void *from, uint64_t n) {
    for (uint64_t i = 0; i < n; i++) ((uint8_t *)to)[i] = ((const volatile uint8_t *)from)[i];
}
#else
static inline void wr_copy_racy(void *to, const void *from, uint64_t n) { memcpy(to, from, n); }
#endif
#endif
