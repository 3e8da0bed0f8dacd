/* Lists that grow, and the end of a worker that has no memory for them. Declared in queues/memory.h. */
#include "queues/memory.h"
#include <stdio.h>

void wr_queue_no_memory(void) {
    fprintf(stderr, "queue worker: no memory for what its queues need\n");
    abort();
}

void *wr_queue_grown(void *list, uint64_t *size, uint64_t needed, size_t each) {
    if (needed <= *size) return list;
    uint64_t bigger = *size ? *size : 16;
    while (bigger < needed) bigger *= 2;
    void *p = realloc(list, bigger * each);
    if (!p) wr_queue_no_memory();
    *size = bigger;
    return p;
}

uint64_t *wr_map_set(wr_map *m, uint64_t a, uint64_t b) {
    uint64_t *value = wr_map_put(m, a, b);
    if (!value) wr_queue_no_memory();
    return value;
}
