/* log_rows, gather, property_pairs: the commit log as rows, and texts of theirs as columns in Arrow's layout. */
#include "binding/arguments.h"
#include "binding/memory.h"
#include "topics/log_rows.h"
#include "topics/properties.h"

#define ROWS_FIRST 4096u
#define ROOM_FIRST 65536u

static PyObject *log_rows(PyObject *module, PyObject *const *args, Py_ssize_t given) {
    (void)module;
    WR_ARGUMENTS(4, "buffer, at, position, checks");
    Py_buffer log;
    uint64_t at, position, checks;
    if (number_of(args[1], 32, "at", &at) || number_of(args[2], 63, "position", &position) || number_of(args[3], 2, "checks", &checks)) return NULL;
    if (PyObject_GetBuffer(args[0], &log, PyBUF_SIMPLE) < 0) return NULL;
    if ((uint64_t)log.len >> 32 || at > (uint64_t)log.len) {
        PyBuffer_Release(&log);
        return PyErr_Format(PyExc_ValueError, "a part of the log has less than 4 GiB, and `at` lies in it");
    }
    wr_memory rows = {0};
    wr_scan found = WR_SCAN_RECORD;
    wr_record end = {0};
    int error = 0;
    Py_BEGIN_ALLOW_THREADS
    while (found == WR_SCAN_RECORD && !(error = wr_memory_have(&rows, ROWS_FIRST * sizeof(wr_log_row), ROOM_FIRST))) {
        const uint64_t room = (rows.room - rows.n) / sizeof(wr_log_row);
        rows.n += sizeof(wr_log_row) * wr_log_rows(log.buf, (uint64_t)log.len, position, (uint32_t)checks, &at, (wr_log_row *)(rows.bytes + rows.n),
                                                    room, &found, &end);
    }
    Py_END_ALLOW_THREADS
    PyBuffer_Release(&log);
    if (error) {
        wr_memory_drop(&rows);
        return PyErr_NoMemory();
    }
    PyObject *memory = wr_memory_give(&rows);
    if (!memory) return NULL;
    const uint32_t size = found == WR_SCAN_BLANK ? end.size : 0;
    return Py_BuildValue("(NKiIs)", memory, (unsigned long long)at, (int)found, size, found == WR_SCAN_BAD ? wr_record_word(end.reason) : "good");
}

/* ---- columns ---- */

/* Places and lengths of the same number of texts, all of them in a buffer. */
typedef struct {
    Py_buffer buffer, at, length;
    uint64_t n;
} texts;

static void drop(texts *t) {
    drop_buffer(&t->buffer);
    drop_buffer(&t->at);
    drop_buffer(&t->length);
}

static inline uint32_t place_of(const texts *t, uint64_t i) { return ((const uint32_t *)t->at.buf)[i]; }
static inline uint32_t length_of(const texts *t, uint64_t i) { return ((const uint32_t *)t->length.buf)[i]; }

static bool inside(const texts *t, uint64_t *total) {
    bool good = true;
    *total = 0;
    for (uint64_t i = 0; i < t->n; i++) {
        good &= (uint64_t)place_of(t, i) + length_of(t, i) <= (uint64_t)t->buffer.len;
        *total += length_of(t, i);
    }
    return good && *total <= INT32_MAX;
}

static int take(texts *t, PyObject *const *args, uint64_t *total) {
    *t = (texts){0};
    if (PyObject_GetBuffer(args[0], &t->buffer, PyBUF_SIMPLE) < 0 || PyObject_GetBuffer(args[1], &t->at, PyBUF_SIMPLE) < 0 ||
        PyObject_GetBuffer(args[2], &t->length, PyBUF_SIMPLE) < 0) {
        drop(t);
        return -1;
    }
    t->n = (uint64_t)t->at.len / 4;
    const bool numbers_good = t->at.len == t->length.len && t->at.len % 4 == 0 && !(((uintptr_t)t->at.buf | (uintptr_t)t->length.buf) % 4);
    if (numbers_good && inside(t, total)) return 0;
    drop(t);
    PyErr_SetString(PyExc_ValueError, "places and lengths are as many u32, within the buffer, and at most 2 GiB of texts together");
    return -1;
}

static inline void put(wr_memory *to, const void *from, uint64_t n) {
    if (n) memcpy(to->bytes + to->n, from, n);
    to->n += n;
}
static inline void put_end(wr_memory *ends, uint64_t end) {
    const uint32_t short_end = (uint32_t)end;
    put(ends, &short_end, 4);
}

static int gathered(const texts *t, uint64_t total, wr_memory *ends, wr_memory *to) {
    if (wr_memory_have(ends, 4 * (t->n + 1), ROOM_FIRST) || wr_memory_have(to, total + 1, ROOM_FIRST)) return ENOMEM;
    put_end(ends, 0);
    for (uint64_t i = 0; i < t->n; i++) {
        put(to, (const uint8_t *)t->buffer.buf + place_of(t, i), length_of(t, i));
        put_end(ends, to->n);
    }
    return 0;
}

/* What memories hold, as a tuple; they are empty then. NULL with an exception. */
static PyObject *give_all(wr_memory *memories, Py_ssize_t n, int error) {
    PyObject *given = error ? PyErr_NoMemory() : PyTuple_New(n);
    for (Py_ssize_t i = 0; i < n; i++) {
        PyObject *one = given ? wr_memory_give(&memories[i]) : NULL;
        if (one) PyTuple_SET_ITEM(given, i, one);
        else Py_CLEAR(given);
        wr_memory_drop(&memories[i]);
    }
    return given;
}

static PyObject *gather(PyObject *module, PyObject *const *args, Py_ssize_t given) {
    (void)module;
    WR_ARGUMENTS(3, "buffer, places, lengths");
    texts t;
    uint64_t total;
    if (take(&t, args, &total)) return NULL;
    wr_memory made[2] = {{0}};
    int error;
    Py_BEGIN_ALLOW_THREADS
    error = gathered(&t, total, &made[0], &made[1]);
    Py_END_ALLOW_THREADS
    drop(&t);
    return give_all(made, 2, error);
}

enum { PAIRS, NAME_ENDS, NAMES, TEXT_ENDS, TEXTS, PAIRS_N };

static inline bool is(wr_text text, const char name[4]) { return text.n == 4 && !memcmp(text.at, name, 4); }

/* A property has 2 bytes at least, so its end of 4 needs twice its room. */
static int paired(const texts *t, uint64_t total, wr_memory *made) {
    int error = wr_memory_have(&made[PAIRS], 4 * (t->n + 1), ROOM_FIRST);
    for (int i = NAME_ENDS; i < PAIRS_N; i++) error |= wr_memory_have(&made[i], 2 * total + 8, ROOM_FIRST);
    if (error) return ENOMEM;
    put_end(&made[PAIRS], 0);
    put_end(&made[NAME_ENDS], 0);
    put_end(&made[TEXT_ENDS], 0);
    for (uint64_t i = 0; i < t->n; i++) {
        uint32_t at = 0;
        wr_text name, value;
        while (wr_properties_next((const uint8_t *)t->buffer.buf + place_of(t, i), length_of(t, i), &at, &name, &value)) {
            if (is(name, "KEYS") || is(name, "TAGS")) continue;
            put(&made[NAMES], name.at, name.n);
            put_end(&made[NAME_ENDS], made[NAMES].n);
            put(&made[TEXTS], value.at, value.n);
            put_end(&made[TEXT_ENDS], made[TEXTS].n);
        }
        put_end(&made[PAIRS], made[NAME_ENDS].n / 4 - 1);
    }
    return 0;
}

static PyObject *property_pairs(PyObject *module, PyObject *const *args, Py_ssize_t given) {
    (void)module;
    WR_ARGUMENTS(3, "buffer, places, lengths");
    texts t;
    uint64_t total;
    if (take(&t, args, &total)) return NULL;
    wr_memory made[PAIRS_N] = {{0}};
    int error;
    Py_BEGIN_ALLOW_THREADS
    error = paired(&t, total, made);
    Py_END_ALLOW_THREADS
    drop(&t);
    return give_all(made, PAIRS_N, error);
}

static PyMethodDef functions[] = {
    {"log_rows", (PyCFunction)(void (*)(void))log_rows, METH_FASTCALL, NULL},
    {"gather", (PyCFunction)(void (*)(void))gather, METH_FASTCALL, NULL},
    {"property_pairs", (PyCFunction)(void (*)(void))property_pairs, METH_FASTCALL, NULL},
    {NULL, NULL, 0, NULL},
};

int wr_bind_log_rows(PyObject *module) { return PyModule_AddFunctions(module, functions); }
