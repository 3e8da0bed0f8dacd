/* Goal: a store into a map that finds no block is an error that says why, and no end of the process, where the file system may write a
 * block elsewhere; the next one works when there is a block again.
 * Method: a file that is cut and grown below its map, which is what a store without space looks like to a process; another file under its
 * name; a signal of somebody else's map, which ends a child. (Without space: crash/test_copy_on_write.py, on real file systems.) */
#define _GNU_SOURCE
#include "support/scratch.h"
#include "topics/mapped_file.h"
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define NAME "file"
#define BYTES (4u << 12)

typedef struct {
    uint8_t *at;
    uint32_t n, done;
} stores;

static void store_all(void *context) {
    stores *s = context;
    for (s->done = 0; s->done < s->n; s->done++) ((volatile uint8_t *)s->at)[s->done << 12] = (uint8_t)(s->done + 1);
}

static void begin(wr_mapped_file *file) {
    bool made;
    CHECK(wr_mapped_open(file, scratch_fd, NAME, BYTES, &made) == 0 && made);
    CHECK(wr_mapped_have(file, scratch_fd, NAME, 0, BYTES) == 0);
    file->elsewhere = true; /* whatever the scratch folder lies on */
}

static void resize(off_t bytes) {
    int fd = openat(scratch_fd, NAME, O_RDWR);
    CHECK(fd >= 0 && ftruncate(fd, bytes) == 0);
    close(fd);
}

static void a_store_without_a_block_is_an_error(void) {
    wr_mapped_file file;
    begin(&file);
    stores s = {file.base, 4, 0};
    CHECK(wr_mapped_try(&file, store_all, &s) && s.done == 4);
    for (int turn = 0; turn < 3; turn++) {
        resize(2 << 12);
        CHECK(!wr_mapped_try(&file, store_all, &s) && s.done == 2 && file.base[0] == 1 && file.base[1 << 12] == 2);
        CHECK(wr_mapped_why(&file, scratch_fd, NAME) == ESTALE);
        resize(BYTES);
        CHECK(wr_mapped_why(&file, scratch_fd, NAME) == ENOSPC); /* it can be written by now: try again */
        CHECK(wr_mapped_try(&file, store_all, &s) && s.done == 4 && file.base[3 << 12] == 4);
    }
    CHECK(renameat(scratch_fd, NAME, scratch_fd, "other") == 0);
    CHECK(wr_mapped_why(&file, scratch_fd, NAME) == ESTALE);
    wr_mapped_close(&file);
    scratch_empty();
}

static void other_signals_end_the_process(void) {
    wr_mapped_file file;
    begin(&file);
    pid_t child = fork_child();
    if (!child) {
        stores s = {file.base, 4, 0};
        CHECK(wr_mapped_try(&file, store_all, &s));
        resize(0);
        store_all(&s); /* outside of a try */
        _exit(0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && WIFSIGNALED(status) && WTERMSIG(status) == SIGBUS);
    wr_mapped_close(&file);
    scratch_empty();
}

int main(int argc, char **argv) {
    scratch_begin("mapped_file_test", argc, argv);
    signal(SIGBUS, SIG_DFL); /* the sanitizer has a handler, which says more and exits otherwise */
    a_store_without_a_block_is_an_error();
    other_signals_end_the_process();
    scratch_end();
    return 0;
}
