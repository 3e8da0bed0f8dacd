/* The core's malloc and its kin in C tests. Declared in support/scarce.h. */
#include "support/scarce.h"
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

enum { UNHURT = 10, SAID, ENOUGH, RUNS_MAX = 20000 };

unsigned scarce_again_n;
static _Thread_local bool counting, failed;
static _Thread_local uint64_t left;

void *scarce_malloc(size_t bytes);
void *scarce_calloc(size_t n, size_t each);
void *scarce_realloc(void *old, size_t bytes);
void *scarce_aligned_alloc(size_t alignment, size_t bytes);
int scarce_posix_memalign(void **to, size_t alignment, size_t bytes);

static bool refused(void) {
    if (!counting || failed || left--) return false;
    return failed = true;
}

void *scarce_malloc(size_t bytes) {
    if (!refused()) return malloc(bytes);
    errno = ENOMEM;
    return NULL;
}

void *scarce_calloc(size_t n, size_t each) {
    if (!refused()) return calloc(n, each);
    errno = ENOMEM;
    return NULL;
}

void *scarce_realloc(void *old, size_t bytes) {
    if (!refused()) return realloc(old, bytes);
    errno = ENOMEM;
    return NULL;
}

void *scarce_aligned_alloc(size_t alignment, size_t bytes) {
    if (!refused()) return aligned_alloc(alignment, bytes);
    errno = ENOMEM;
    return NULL;
}

int scarce_posix_memalign(void **to, size_t alignment, size_t bytes) {
    return refused() ? ENOMEM : posix_memalign(to, alignment, bytes);
}

void scarce_begin(uint64_t n) {
    left = n;
    failed = false;
    counting = true;
}

bool scarce_end(void) {
    counting = false;
    return failed;
}

bool scarce_failed(void) { return failed; }

#ifdef __SANITIZE_ADDRESS__
int __lsan_do_recoverable_leak_check(void);
#endif

/* Of a forked child: nothing of the parent's is flushed or cleaned up. */
_Noreturn static void end(int code) {
#ifdef __SANITIZE_ADDRESS__
    if (code != SAID && __lsan_do_recoverable_leak_check()) code = 1;
#endif
    fflush(stderr);
    _exit(code);
}

void scarce_said(void) { end(failed ? SAID : 1); }

scarce_count scarce_each(void (*scenario)(uint64_t n), uint64_t step) {
    scarce_count found = {0};
    FILE *said = tmpfile(); /* what the processes write: shown of the one that fails */
    if (!said) abort();
    for (uint64_t n = (uint64_t)getpid() % step; n < RUNS_MAX; n += step) {
        fflush(stdout);
        rewind(said);
        if (ftruncate(fileno(said), 0)) abort();
        pid_t child = fork_child();
        if (!child) {
            dup2(fileno(said), STDERR_FILENO);
            scenario(n);
            end(scarce_end() ? UNHURT : ENOUGH);
        }
        int status;
        if (child < 0 || waitpid(child, &status, 0) != child) abort();
        int code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
        if (code == ENOUGH) {
            fclose(said);
            return found;
        }
        found.ended += WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT;
        found.said += code == SAID;
        found.unhurt += code == UNHURT;
        if (code == UNHURT || code == SAID || (code < 0 && WTERMSIG(status) == SIGABRT)) continue;
        rewind(said);
        char text[4096];
        for (size_t some; (some = fread(text, 1, sizeof text, said));) fwrite(text, 1, some, stderr);
        fprintf(stderr, "without allocation %llu: exit code %d, signal %d\n", (unsigned long long)n, code, code < 0 ? WTERMSIG(status) : 0);
        exit(1);
    }
    fprintf(stderr, "the scenario has no end\n");
    exit(1);
}
