/* Loads of memory that another process may change meanwhile: each value is read once, into a register. What is
 * checked, copied or summed is then what was read; without this a compiler may read the source a second time. */
#ifndef WR_ONCE_H
#define WR_ONCE_H
#include <stdint.h>
#include <string.h>

static inline uint64_t wr_once8(const uint8_t *from) {
    uint64_t word;
    memcpy(&word, from, 8);
    __asm__ volatile("" : "+r"(word));
    return word;
}

static inline uint32_t wr_once4(const uint8_t *from) {
    uint32_t word;
    memcpy(&word, from, 4);
    __asm__ volatile("" : "+r"(word));
    return word;
}

static inline uint16_t wr_once2(const uint8_t *from) {
    uint16_t word;
    memcpy(&word, from, 2);
    __asm__ volatile("" : "+r"(word));
    return word;
}

static inline uint8_t wr_once1(const uint8_t *from) {
    uint8_t byte = *from;
    __asm__ volatile("" : "+r"(byte));
    return byte;
}
#endif
