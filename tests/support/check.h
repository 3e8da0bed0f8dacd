/* A check of a C test: where it failed, and the end of the process. A test that has something to remove first says how. */
#ifndef WR_TEST_CHECK_H
#define WR_TEST_CHECK_H
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <unistd.h>

static void (*check_clean_up)(void);

static inline void check_failed(const char *file, int line, const char *what) {
    fprintf(stderr, "%s:%d: %s (errno %d)\n", file, line, what, errno);
    if (check_clean_up) check_clean_up();
    fflush(NULL); /* what was said before, as the seed */
    _exit(1); /* not abort: that is how a server ends which has no memory */
}

#ifndef CHECK /* a fuzz target has its own */
#define CHECK(condition)                                                        \
    do {                                                                        \
        if (!(condition)) check_failed(__FILE__, __LINE__, #condition);         \
    } while (0)
#endif

/* ./scripts/test-long tries all that ./scripts/test has a part of. */
#ifdef WARREN_LONG_TESTS
enum { AT_LENGTH = 1 };
#else
enum { AT_LENGTH = 0 };
#endif

/* Rounds of a test that goes by chance. The thread sanitizer looks at who meets whom, in any round, and takes many times as long. */
#ifdef __SANITIZE_THREAD__
enum { THREADS_ALONE = 1 };
#define ROUNDS(n) (((n) + 4) / 5)
#else
enum { THREADS_ALONE = 0 };
#define ROUNDS(n) (AT_LENGTH ? (n) : ((n) + 1) / 2)
#endif

/* A test in which nobody meets anybody: of what is damaged, or fails. The thread sanitizer has nothing to see there. */
#define WITHOUT_THREADS(test)                                                                                          \
    do {                                                                                                               \
        if (!THREADS_ALONE) test;                                                                                      \
    } while (0)

/* A child that ends with this process, however that ends: what it waits for would never come. */
static inline pid_t fork_child(void) {
    const pid_t parent = getpid(), child = fork();
    if (child) {
        CHECK(child > 0);
        return child;
    }
    CHECK(prctl(PR_SET_PDEATHSIG, SIGKILL) == 0);
    if (getppid() != parent) _exit(1);
    return 0;
}
#endif
