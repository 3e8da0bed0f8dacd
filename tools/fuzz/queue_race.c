/* Target: as queue.c, while a thread changes the first client's memory: what the worker reads twice shows. */
#define FUZZ_RACE
#include "queue.c"
