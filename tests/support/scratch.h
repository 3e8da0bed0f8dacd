/* A folder of a test of files, which goes when the test ends, also by a check that failed; and random numbers of a printed seed. */
#ifndef WR_TEST_SCRATCH_H
#define WR_TEST_SCRATCH_H
#include "support/check.h"
#include "support/random.h"
#include <fcntl.h>
#include <ftw.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>

static char scratch[200];
static int scratch_fd = -1;
static pid_t scratch_owner;

static inline int scratch_drop(const char *path, const struct stat *status, int kind, struct FTW *where) {
    (void)status, (void)kind;
    if (where->level) remove(path);
    return 0;
}

/* Remove all that is in the folder. */
static inline void scratch_empty(void) { nftw(scratch, scratch_drop, 16, FTW_DEPTH | FTW_PHYS); }

static inline void scratch_end(void) {
    if (getpid() != scratch_owner) return;
    scratch_empty();
    rmdir(scratch);
}

static inline void scratch_begin(const char *name, int argc, char **argv) {
    random_begin(name, argc, argv);
    scratch_owner = getpid();
    snprintf(scratch, sizeof scratch, "/tmp/%s-XXXXXX", name);
    CHECK(mkdtemp(scratch));
    check_clean_up = scratch_end;
    CHECK((scratch_fd = open(scratch, O_RDONLY | O_DIRECTORY | O_CLOEXEC)) >= 0);
}

/* The child ended by itself, and well. */
static inline void ended_well(pid_t child) {
    int status;
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

/* Descriptors of this process. */
static inline unsigned descriptors(void) {
    unsigned n = 0;
    for (int fd = 0; fd < 1024; fd++) n += fcntl(fd, F_GETFD) >= 0;
    return n;
}
#endif
