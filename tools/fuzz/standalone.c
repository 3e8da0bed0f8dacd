/* Drives a fuzz target without libFuzzer: runs each file of a corpus, then mutations of them that follow from a seed.
 *
 *   target [--mutations N] [--seed S] [--seconds T] [--crash FILE] FILE|FOLDER…
 *
 * An input that ends the process is written to FILE (default: crash-input); `target FILE` repeats it. */
#include "fuzz.h"
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define INPUTS_MAX 4096
#define BYTES_MAX (64u << 10)

static struct {
    uint8_t *bytes;
    size_t n;
} inputs[INPUTS_MAX];
static size_t inputs_n;
static const char *crash_file = "crash-input";
static const uint8_t *current;
static size_t current_n;
static uint64_t state;

const char *__asan_default_options(void);
const char *__asan_default_options(void) { return "abort_on_error=1:detect_leaks=1"; }
const char *__ubsan_default_options(void);
const char *__ubsan_default_options(void) { return "abort_on_error=1:print_stacktrace=1"; }

static void keep(int signal_number) {
    int fd = open(crash_file, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    for (size_t done = 0; fd >= 0 && done < current_n;) {
        ssize_t n = write(fd, current + done, current_n - done);
        if (n <= 0) break;
        done += (size_t)n;
    }
    signal(signal_number, SIG_DFL);
    raise(signal_number);
}

static void run(const uint8_t *bytes, size_t n) {
    uint8_t *copy = malloc(n ? n : 1); /* its own allocation: reading past its end shows */
    FUZZ_CHECK(copy);
    if (n) memcpy(copy, bytes, n);
    current = copy;
    current_n = n;
    LLVMFuzzerTestOneInput(copy, n);
    free(copy);
}

static void load(const char *path) {
    struct stat about;
    FUZZ_CHECK(stat(path, &about) == 0);
    if (S_ISDIR(about.st_mode)) {
        struct dirent **names;
        int n = scandir(path, &names, NULL, alphasort);
        FUZZ_CHECK(n >= 0);
        for (int i = 0; i < n; i++) {
            char below[4096];
            snprintf(below, sizeof below, "%s/%s", path, names[i]->d_name);
            if (names[i]->d_name[0] != '.') load(below);
            free(names[i]);
        }
        free(names);
        return;
    }
    FUZZ_CHECK(inputs_n < INPUTS_MAX && about.st_size <= BYTES_MAX);
    int fd = open(path, O_RDONLY);
    uint8_t *bytes = malloc((size_t)about.st_size + 1);
    FUZZ_CHECK(fd >= 0 && bytes && read(fd, bytes, (size_t)about.st_size) == about.st_size);
    close(fd);
    inputs[inputs_n].bytes = bytes;
    inputs[inputs_n++].n = (size_t)about.st_size;
}

static uint64_t chance(uint64_t below) {
    state += 0x9e3779b97f4a7c15ull;
    return below ? fuzz_mix(state) % below : 0;
}

static size_t mutate(uint8_t *bytes, size_t n) {
    static const uint64_t edges[] = {0, 1, 2, 0x7f, 0x80, 0xff, 0xfff, 0x1000, 0x7fff, 0x8000, 0xffff, 0x7fffffff, 0x80000000, 0xffffffff,
                                     1ull << 63, UINT64_MAX};
    for (uint64_t changes = 1 + chance(6); changes--;) {
        size_t at = chance(n + 1), left = n - at;
        switch (chance(9)) {
        case 0:
            if (left) bytes[at] ^= (uint8_t)(1u << chance(8));
            break;
        case 1:
            if (left) bytes[at] = (uint8_t)chance(256);
            break;
        case 2: { /* an edge, either end first */
            size_t width = 1ull << chance(4);
            uint64_t value = edges[chance(sizeof edges / sizeof *edges)];
            bool big = chance(2);
            for (size_t i = 0; i < width && i < left; i++) bytes[at + i] = (uint8_t)(value >> 8 * (big ? width - 1 - i : i));
            break;
        }
        case 3: { /* cut out */
            size_t k = chance(left < 64 ? left + 1 : 64);
            memmove(bytes + at, bytes + at + k, left - k);
            n -= k;
            break;
        }
        case 4: { /* put in */
            size_t k = 1 + chance(32);
            if (n + k > BYTES_MAX) break;
            memmove(bytes + at + k, bytes + at, left);
            for (size_t i = 0; i < k; i++) bytes[at + i] = (uint8_t)chance(256);
            n += k;
            break;
        }
        case 5: { /* the same once more */
            size_t k = chance(left < 256 ? left + 1 : 256);
            if (n + k > BYTES_MAX) break;
            memmove(bytes + at + k, bytes + at, left);
            n += k;
            break;
        }
        case 6: { /* others behind it: many an input is a program */
            for (uint64_t more = 1 + chance(6); more--;) {
                size_t other = chance(inputs_n), k = inputs_n ? inputs[other].n : 0;
                if (n + k > BYTES_MAX) break;
                if (k) memcpy(bytes + n, inputs[other].bytes, k);
                n += k;
            }
            break;
        }
        default: { /* a part of another one */
            if (!inputs_n) break;
            size_t other = chance(inputs_n), from = chance(inputs[other].n + 1), k = chance(inputs[other].n - from + 1);
            if (at + k > BYTES_MAX) break;
            if (k) memcpy(bytes + at, inputs[other].bytes + from, k);
            if (at + k > n) n = at + k;
            break;
        }
        }
    }
    return n;
}

static double seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

int main(int argc, char **argv) {
    uint64_t mutations = 0;
    double most = 1e9;
    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "--mutations") && i + 1 < argc) mutations = strtoull(argv[++i], NULL, 10);
        else if (!strcmp(argv[i], "--seed") && i + 1 < argc) state = strtoull(argv[++i], NULL, 10);
        else if (!strcmp(argv[i], "--seconds") && i + 1 < argc) most = atof(argv[++i]);
        else if (!strcmp(argv[i], "--crash") && i + 1 < argc) crash_file = argv[++i];
        else load(argv[i]);
    }
    signal(SIGABRT, keep);
    double began = seconds();
    run(NULL, 0);
    for (size_t i = 0; i < inputs_n; i++) run(inputs[i].bytes, inputs[i].n);
    uint8_t *bytes = malloc(BYTES_MAX);
    FUZZ_CHECK(bytes);
    uint64_t done = 0;
    for (; done < mutations && seconds() - began < most; done++) {
        size_t from = chance(inputs_n), n = inputs_n ? inputs[from].n : 0;
        if (n) memcpy(bytes, inputs[from].bytes, n);
        n = mutate(bytes, n);
        run(bytes, n);
    }
    printf("%zu inputs, %llu mutations, %.1f s\n", inputs_n, (unsigned long long)done, seconds() - began);
    free(bytes);
    for (size_t i = 0; i < inputs_n; i++) free(inputs[i].bytes);
    return 0;
}
