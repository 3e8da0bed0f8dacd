/* Random numbers of a C test, of a seed that is printed: Marsaglia's xorshift. One thread alone draws them. */
#ifndef WR_TEST_RANDOM_H
#define WR_TEST_RANDOM_H
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static uint64_t random_state = 88172645463325252ull;

static inline uint64_t random64(void) {
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return random_state;
}

static inline uint64_t random_below(uint64_t n) { return random64() % n; }

/* The seed of the program's first word or of WARREN_TEST_SEED; else one of its name, in long tests of the clock: the
 * short tests draw the same in each run. */
static inline void random_begin(const char *name, int argc, char **argv) {
    const char *given = argc > 1 ? argv[1] : getenv("WARREN_TEST_SEED");
    random_state = 5381;
    for (const char *c = name; *c; c++) random_state = random_state * 33 + (uint8_t)*c;
#ifdef WARREN_LONG_TESTS
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    random_state = (uint64_t)t.tv_sec * 1000000000ull + (uint64_t)t.tv_nsec;
#endif
    if (given) random_state = strtoull(given, NULL, 0);
    if (!random_state) random_state = 1;
    printf("%s: seed %#llx\n", name, (unsigned long long)random_state);
    fflush(stdout);
}
#endif
