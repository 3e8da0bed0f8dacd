/* Target: as store.c, while a thread changes the first client's memory: what the server reads twice shows. */
#define FUZZ_RACE
#include "store.c"
