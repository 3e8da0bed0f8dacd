/* Memory: it never changes, and lives as long as any buffer of it. */
#define _GNU_SOURCE
#include "binding/memory.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* ---- blocks ---- */

#define BLOCK_BYTES_MIN (2u << 20) /* a large page */
#define KEPT_BYTES_MAX (128ull << 20)

static inline bool enter(void) { return !atomic_exchange_explicit(&wr_module.kept.busy, true, memory_order_acquire); }
static inline void leave(void) { atomic_store_explicit(&wr_module.kept.busy, false, memory_order_release); }

static void *take_kept(uint64_t room) {
    void *found = NULL;
    if (!enter()) return NULL;
    for (uint32_t i = 0; i < wr_module.kept.n && !found; i++) {
        if (wr_module.kept.blocks[i].room != room) continue;
        found = wr_module.kept.blocks[i].bytes;
        wr_module.kept.blocks[i] = wr_module.kept.blocks[--wr_module.kept.n];
        wr_module.kept.bytes -= room;
    }
    leave();
    return found;
}

static bool keep(void *bytes, uint64_t room) {
    if (!enter()) return false;
    const bool fits = wr_module.kept.n < WR_BLOCKS_KEPT && room <= KEPT_BYTES_MAX - wr_module.kept.bytes;
    if (fits) {
        wr_module.kept.blocks[wr_module.kept.n].bytes = bytes;
        wr_module.kept.blocks[wr_module.kept.n++].room = room;
        wr_module.kept.bytes += room;
    }
    leave();
    return fits;
}

static void *take_block(uint64_t room) {
    void *bytes = take_kept(room);
    if (bytes) return bytes;
    if (posix_memalign(&bytes, BLOCK_BYTES_MIN, room)) return NULL;
    madvise(bytes, room, MADV_HUGEPAGE); /* an advice: there may be none */
    return bytes;
}

static void let_go(void *bytes, uint64_t room) {
    if (room < BLOCK_BYTES_MIN) {
        free(bytes);
        return;
    }
    madvise(bytes, room, MADV_FREE); /* the same: pages that the system does not take are used again as they are */
    if (!keep(bytes, room)) free(bytes);
}

/* ---- bytes that grow ---- */

static int move(wr_memory *memory, uint64_t room) {
    const bool small = room < BLOCK_BYTES_MIN;
    uint8_t *bytes;
    if (small && memory->room < BLOCK_BYTES_MIN) {
        bytes = realloc(memory->bytes, room);
        if (!bytes) return ENOMEM;
    } else {
        bytes = small ? malloc(room) : take_block(room);
        if (!bytes) return ENOMEM;
        if (memory->n) memcpy(bytes, memory->bytes, memory->n);
        let_go(memory->bytes, memory->room);
    }
    memory->bytes = bytes;
    memory->room = room;
    return 0;
}

static uint64_t room_of(uint64_t bytes, uint64_t first) {
    while (first < bytes) first *= 2;
    return first;
}

int wr_memory_grow(wr_memory *memory, uint64_t more, uint64_t first) {
    return move(memory, room_of(memory->n + more, memory->room ? memory->room : first));
}

void wr_memory_drop(wr_memory *memory) {
    let_go(memory->bytes, memory->room);
    *memory = (wr_memory){0};
}

/* Much more room than it needs: less of it, if there is memory for that. */
static void fit(wr_memory *memory) {
    if (!memory->n || memory->n >= memory->room / 2) return;
    (void)move(memory, memory->n < BLOCK_BYTES_MIN ? memory->n : room_of(memory->n, BLOCK_BYTES_MIN));
}

/* ---- the type ---- */

typedef struct {
    PyObject_HEAD
    wr_memory memory;
} MemoryObject;

PyObject *wr_memory_give(wr_memory *memory) {
    fit(memory);
    MemoryObject *self = PyObject_New(MemoryObject, wr_module.memory_type);
    if (self) self->memory = *memory;
    else let_go(memory->bytes, memory->room);
    *memory = (wr_memory){0};
    return (PyObject *)self;
}

const wr_memory *wr_memory_of(PyObject *given) { return &((MemoryObject *)given)->memory; }

static void memory_dealloc(PyObject *op) {
    PyTypeObject *type = Py_TYPE(op);
    wr_memory_drop(&((MemoryObject *)op)->memory);
    PyObject_Free(op);
    Py_DECREF(type);
}

static int memory_buffer(PyObject *op, Py_buffer *view, int flags) {
    const wr_memory *memory = wr_memory_of(op);
    static char nothing[1];
    return PyBuffer_FillInfo(view, op, memory->bytes ? (void *)memory->bytes : nothing, (Py_ssize_t)memory->n, 1, flags);
}

static Py_ssize_t memory_length(PyObject *op) { return (Py_ssize_t)wr_memory_of(op)->n; }

static PyType_Slot memory_slots[] = {
    {Py_tp_doc, "Bytes of the core, read-only, as a buffer."},
    {Py_tp_dealloc, memory_dealloc},
    {Py_bf_getbuffer, memory_buffer},
    {Py_sq_length, memory_length},
    {0, NULL},
};

static PyType_Spec memory_spec = {"warren.engine._core.Memory", sizeof(MemoryObject), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
                                  memory_slots};

int wr_bind_memory(PyObject *module) {
    wr_module.memory_type = (PyTypeObject *)PyType_FromSpec(&memory_spec);
    return wr_module.memory_type ? PyModule_AddObjectRef(module, "Memory", (PyObject *)wr_module.memory_type) : -1;
}
