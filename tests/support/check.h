/* A check of a C test: where it failed, and the end of the process. A test that has something to remove first says how. */
#ifndef WR_TEST_CHECK_H
#define WR_TEST_CHECK_H
#include <errno.h>
#include <stdio.h>
#include <unistd.h>

static void (*check_clean_up)(void);

static inline void check_failed(const char *file, int line, const char *what) {
    fprintf(stderr, "%s:%d: %s (errno %d)\n", file, line, what, errno);
    if (check_clean_up) check_clean_up();
    _exit(1); /* not abort: that is how a server ends which has no memory */
}

#ifndef CHECK /* a fuzz target has its own */
#define CHECK(condition)                                                        \
    do {                                                                        \
        if (!(condition)) check_failed(__FILE__, __LINE__, #condition);         \
    } while (0)
#endif
#endif
