/* Declared in kernel/map.h. */
#include "kernel/map.h"

void *(*wr_calloc)(size_t n, size_t each) = calloc;
