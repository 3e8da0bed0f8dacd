/* Memory that the core fills, and the type Memory: for whoever takes buffers (pyarrow, memoryview), without a copy. */
#ifndef WR_BINDING_MEMORY_H
#define WR_BINDING_MEMORY_H
#include "binding/state.h"

/* Bytes that grow. Large ones are blocks, in large pages where the system has some, that are used again: to have the system clear
 * memory takes as long as to fill it. Some blocks stay when nobody needs them, and the system may take their pages. All zeros: empty.
 * From any thread, also without the GIL. */
typedef struct {
    uint8_t *bytes;
    uint64_t n, room;
} wr_memory;

/* Make room for `more` bytes behind the n; a first room is `first` bytes (a power of two) or more. 0 or ENOMEM, and it is as before. */
int wr_memory_grow(wr_memory *memory, uint64_t more, uint64_t first);
static inline int wr_memory_have(wr_memory *memory, uint64_t more, uint64_t first) {
    return __builtin_expect(memory->room - memory->n >= more, 1) ? 0 : wr_memory_grow(memory, more, first);
}
/* It is empty then. */
void wr_memory_drop(wr_memory *memory);
/* The n bytes as an object of type Memory. It is empty then, also when this fails. New reference. */
PyObject *wr_memory_give(wr_memory *memory);
/* What such an object has. */
const wr_memory *wr_memory_of(PyObject *given);
#endif
