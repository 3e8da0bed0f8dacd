/* The limit of reads from files: pread in a loop, of records of one length at random places of the files given, as a program would do that
 * knows where everything is and checks nothing.
 *
 *     preads LENGTH SECONDS FILE...      prints {"reads_per_s": R}
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define FIRST 4096 /* a file's header page */

static double now_s(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

int main(int argc, char **argv) {
    if (argc < 4) return 2;
    size_t length = strtoul(argv[1], NULL, 10);
    double seconds = strtod(argv[2], NULL);
    int files = argc - 3;
    int *fds = malloc((size_t)files * sizeof *fds);
    uint64_t *sizes = malloc((size_t)files * sizeof *sizes);
    char *to = malloc(length);
    if (!fds || !sizes || !to) return 1;
    for (int i = 0; i < files; i++) {
        struct stat found;
        fds[i] = open(argv[3 + i], O_RDONLY | O_CLOEXEC);
        if (fds[i] < 0 || fstat(fds[i], &found) || (uint64_t)found.st_size < FIRST + length) {
            perror(argv[3 + i]);
            return 1;
        }
        sizes[i] = (uint64_t)found.st_size - length - FIRST + 1;
    }
    uint64_t reads = 0, state = 88172645463325252ull;
    double began = now_s(), took = 0;
    while (took < seconds) {
        for (int n = 0; n < 1000; n++) {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            int file = (int)(state % (uint64_t)files);
            if (pread(fds[file], to, length, (off_t)(FIRST + (state >> 16) % sizes[file])) != (ssize_t)length) {
                perror("pread");
                return 1;
            }
        }
        reads += 1000;
        took = now_s() - began;
    }
    printf("{\"reads_per_s\": %.1f}\n", (double)reads / took);
    return 0;
}
