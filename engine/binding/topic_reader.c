/* TopicReader: reads one topic, in one thread at a time, without asking a server. Its calls answer None where there is no such queue: the
 * topic was deleted, or the regions are of a worker of the past; who has it gives it those of the present (begin).
 *
 * The GIL is released while files and ring are read. `busy` says that a thread is inside: another one is refused. The regions are held as
 * buffers, so they stay mapped until the next begin or close.
 *
 * A call waits a moment for what was confirmed before it and is not shown yet. `behind` says afterwards that this was not enough, so that
 * who asked looks whether there is another worker by now, and asks again. */
#include "binding/arguments.h"
#include "binding/compacted_files.h"
#include "binding/topic_columns.h"
#include "binding/topic_record.h"
#include "kernel/crc32.h"
#include "topics/lookup.h"
#include "topics/compact.h"
#include "topics/message_id.h"
#include "topics/newest.h"
#include "topics/holds.h"
#include "topics/read.h"
#include "topics/retain.h"
#include "topics/seek.h"
#include "topics/span.h"

typedef struct {
    PyObject_HEAD
    wr_topic_reader *reader;
    Py_buffer ring, rows;
    bool busy;
} ReaderObject;

/* ---- begin and end ---- */

static PyObject *reader_new(PyTypeObject *type, PyObject *args, PyObject *keywords) {
    static char *names[] = {"root", "id", "name", "log_file_bytes", "ring_bytes", "consume_queue_entries", "index_slots", "index_entries", "newest_of", NULL};
    int root;
    unsigned int id, entries, slots, index_entries;
    unsigned long long file_bytes, ring_bytes;
    const char *name;
    const char *node = NULL;
    Py_ssize_t name_n, node_n = 16;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "iIy#KKIII|z#:TopicReader", names, &root, &id, &name, &name_n, &file_bytes, &ring_bytes,
                                     &entries, &slots, &index_entries, &node, &node_n))
        return NULL;
    if (node && node_n != 16) return PyErr_Format(PyExc_ValueError, "newest_of: a node is 16 bytes");
    ReaderObject *self = (ReaderObject *)type->tp_alloc(type, 0);
    if (!self) return NULL;
    const wr_topic_place place = {.root = root, .log_file_bytes = file_bytes, .ring_bytes = ring_bytes, .consume_queue_entries = entries,
                                  .index_slots = slots, .index_entries = index_entries};
    errno = 0;
    self->reader = name_n > UINT16_MAX ? NULL : wr_topic_reader_new(&place, id, name, (uint32_t)name_n);
    if (self->reader && node) wr_newest_begin(self->reader, (const uint8_t *)node);
    if (self->reader) return (PyObject *)self;
    const bool memory = errno == ENOMEM;
    Py_DECREF(self);
    return memory ? PyErr_NoMemory() : PyErr_Format(PyExc_ValueError, "no topic's name, or sizes that cannot be");
}

static void let_go(ReaderObject *self) {
    if (self->reader) wr_topic_reader_begin(self->reader, NULL, NULL);
    drop_buffer(&self->ring);
    drop_buffer(&self->rows);
}

static void reader_dealloc(ReaderObject *self) {
    PyTypeObject *type = Py_TYPE(self);
    let_go(self);
    wr_topic_reader_free(self->reader);
    type->tp_free((PyObject *)self);
    Py_DECREF(type);
}

/* Nobody else is inside; 0, or -1 with an exception. */
static int enter(ReaderObject *self) {
    if (self->busy) {
        PyErr_SetString(PyExc_RuntimeError, "another thread reads with this TopicReader");
        return -1;
    }
    self->busy = true;
    self->reader->behind = false;
    return 0;
}

static PyObject *reader_begin(ReaderObject *self, PyObject *const *args, Py_ssize_t given) {
    WR_ARGUMENTS(2, "ring, rows");
    if (enter(self)) return NULL;
    let_go(self);
    int failed = PyObject_GetBuffer(args[0], &self->ring, PyBUF_SIMPLE) < 0 || PyObject_GetBuffer(args[1], &self->rows, PyBUF_WRITABLE) < 0;
    if (!failed && ((uint64_t)self->ring.len < WR_PAGE_BYTES + self->reader->place.ring_bytes || (uint64_t)self->rows.len < WR_TOPIC_ROWS_BYTES)) {
        PyErr_SetString(PyExc_ValueError, "a region is too small");
        failed = 1;
    }
    if (failed) let_go(self);
    else wr_topic_reader_begin(self->reader, self->ring.buf, self->rows.buf);
    self->busy = false;
    if (failed) return NULL;
    Py_RETURN_NONE;
}

static PyObject *reader_close(ReaderObject *self, PyObject *ignored) {
    (void)ignored;
    if (enter(self)) return NULL;
    let_go(self);
    self->busy = false;
    Py_RETURN_NONE;
}

/* ---- what is there ---- */

static int queue_of(PyObject *object, uint32_t *queue) {
    uint64_t number;
    if (number_of(object, 31, "queue", &number)) return -1;
    *queue = (uint32_t)number;
    return 0;
}

static PyObject *failed_with(int error) {
    if (error == ENXIO) Py_RETURN_NONE;
    return error == ENOMEM ? PyErr_NoMemory() : os_error(error);
}

static PyObject *reader_bounds(ReaderObject *self, PyObject *object) {
    uint32_t queue;
    wr_topic_bounds b;
    uint64_t messages;
    if (queue_of(object, &queue) || enter(self)) return NULL;
    int error;
    Py_BEGIN_ALLOW_THREADS
    error = wr_newest_bounds(self->reader, queue, &b, &messages);
    Py_END_ALLOW_THREADS
    self->busy = false;
    if (error) return failed_with(error);
    return Py_BuildValue("(KKK)", (unsigned long long)b.minimum, (unsigned long long)b.maximum, (unsigned long long)messages);
}

/* delayed(): messages of the topic that are to come later, or None. */
static PyObject *reader_delayed(ReaderObject *self, PyObject *none) {
    (void)none;
    uint64_t n;
    if (enter(self)) return NULL;
    const int error = wr_topic_reader_delayed(self->reader, &n);
    self->busy = false;
    return error ? failed_with(error) : PyLong_FromUnsignedLongLong(n);
}

/* halves(): half messages of the topic that are pending, or None. */
static PyObject *reader_halves(ReaderObject *self, PyObject *none) {
    (void)none;
    uint64_t n;
    if (enter(self)) return NULL;
    const int error = wr_topic_reader_halves(self->reader, &n);
    self->busy = false;
    return error ? failed_with(error) : PyLong_FromUnsignedLongLong(n);
}

/* wait(queue, seen, seconds): True: the maximum is above `seen`; False: time is up, or a signal came; None: no such queue. */
static PyObject *reader_wait(ReaderObject *self, PyObject *const *args, Py_ssize_t given) {
    uint32_t queue;
    uint64_t seen;
    wr_topic_bounds b = {0};
    WR_ARGUMENTS(3, "queue, seen, seconds");
    double seconds = PyFloat_AsDouble(args[2]);
    if (PyErr_Occurred() || queue_of(args[0], &queue) || number_of(args[1], 64, "seen", &seen) || enter(self)) return NULL;
    uint64_t limit = seconds <= 0 ? 0 : seconds > 3600 ? 3600ull * 1000000000 : (uint64_t)(seconds * 1e9), until = wr_now_ns() + limit;
    int error;
    Py_BEGIN_ALLOW_THREADS
    for (;;) {
        uint64_t now = wr_now_ns();
        error = wr_topic_reader_bounds(self->reader, queue, &b);
        if (error || b.maximum > seen || now >= until) break;
        error = wr_topic_reader_wait(self->reader, queue, seen, until - now);
        if (error == EINTR) break;
    }
    Py_END_ALLOW_THREADS
    self->busy = false;
    if (error == EINTR) error = 0;
    return error ? failed_with(error) : PyBool_FromLong(b.maximum > seen);
}

/* Pairs of queue and offset from two sequences of numbers; NULL with an exception. */
static wr_topic_seen *seen_of(PyObject *queues, PyObject *offsets, uint32_t *n) {
    PyObject *numbers = PySequence_Fast(queues, "queues are a sequence"), *seen = numbers ? PySequence_Fast(offsets, "seen is a sequence") : NULL;
    wr_topic_seen *found = NULL;
    Py_ssize_t count = seen ? PySequence_Fast_GET_SIZE(numbers) : 0;
    if (seen && (count != PySequence_Fast_GET_SIZE(seen) || count > WR_TOPIC_ROWS_MAX))
        PyErr_SetString(PyExc_ValueError, "queues and seen are as many");
    else if (seen && !(found = PyMem_RawMalloc(((size_t)count + 1) * sizeof *found)))
        PyErr_NoMemory();
    for (Py_ssize_t i = 0; found && i < count; i++)
        if (queue_of(PySequence_Fast_GET_ITEM(numbers, i), &found[i].queue) || number_of(PySequence_Fast_GET_ITEM(seen, i), 64, "seen", &found[i].seen)) {
            PyMem_RawFree(found);
            found = NULL;
        }
    Py_XDECREF(numbers);
    Py_XDECREF(seen);
    *n = (uint32_t)count;
    return found;
}

/* wait_any(queues, seen, row, stamp, seconds): the place of the first queue whose maximum is not what was seen; -1: time is up, or a signal
 * came; -2: the group has another stamp; None: no such queue. */
static PyObject *reader_wait_any(ReaderObject *self, PyObject *const *args, Py_ssize_t given) {
    WR_ARGUMENTS(5, "queues, seen, row, stamp, seconds");
    uint64_t row;
    wr_topic_group_seen group;
    double seconds = PyFloat_AsDouble(args[4]);
    if (PyErr_Occurred() || number_of(args[2], 32, "row", &row) || number_of(args[3], 64, "stamp", &group.stamp)) return NULL;
    group.row = (uint32_t)row;
    uint32_t n, which = WR_TOPIC_NOTHING;
    wr_topic_seen *queues = seen_of(args[0], args[1], &n);
    if (!queues || enter(self)) {
        PyMem_RawFree(queues);
        return NULL;
    }
    uint64_t limit = seconds <= 0 ? 0 : seconds > 3600 ? 3600ull * 1000000000 : (uint64_t)(seconds * 1e9), now = wr_now_ns(), until = now + limit;
    int error;
    Py_BEGIN_ALLOW_THREADS
    do {
        error = wr_topic_reader_wait_any(self->reader, queues, n, &group, until > now ? until - now : 0, &which);
        now = wr_now_ns();
    } while (!error && which == WR_TOPIC_NOTHING && !self->reader->behind && now < until);
    Py_END_ALLOW_THREADS
    self->busy = false;
    PyMem_RawFree(queues);
    if (error && error != EINTR) return failed_with(error);
    return PyLong_FromLong(error || which == WR_TOPIC_NOTHING ? -1 : which == WR_TOPIC_GROUP_CHANGED ? -2 : (long)which);
}

/* ---- reading ---- */

static PyObject *damage_of(const ReaderObject *self, bool damaged) {
    const wr_topic_damage *d = &self->reader->damage;
    if (!damaged) Py_RETURN_NONE;
    return Py_BuildValue("(sKss)", d->file, (unsigned long long)d->position, d->expected, d->found);
}

/* (status, next offset, minimum, maximum, what was read, damage or None); takes over `found`. */
static PyObject *answer(const ReaderObject *self, const wr_topic_read_result *a, PyObject *found) {
    return Py_BuildValue("(iKKKNN)", (int)a->status, (unsigned long long)a->next, (unsigned long long)a->bounds.minimum,
                         (unsigned long long)a->bounds.maximum, found, damage_of(self, a->status == WR_READ_DAMAGED));
}

/* What a read is asked for: queue, offset, end, records_max, bytes_max. -1 with an exception. */
static int request_of(PyObject *const *args, wr_topic_request *q) {
    uint64_t records_max;
    memset(q, 0, sizeof *q);
    if (queue_of(args[0], &q->queue) || number_of(args[1], 64, "offset", &q->offset) || number_of(args[2], 64, "end", &q->end) ||
        number_of(args[3], 32, "records_max", &records_max) || number_of(args[4], 64, "bytes_max", &q->bytes_max))
        return -1;
    q->records_max = (uint32_t)records_max;
    return 0;
}

#define BATCH_ROOM 4096u
#define BATCH_ROOM_MAX (32u << 20)

typedef struct {
    wr_memory memory;
    wr_record_place *places;
    uint32_t records_n, places_room;
} batch;

/* Ask for the room of all that comes: memory that grows is copied. */
static int batch_room(batch *b, const wr_topic_read *read, const wr_record *r) {
    if (b->records_n || read->request.tags_n) return 0;
    const uint64_t bytes = wr_topic_read_expected(read, r) * r->size;
    return wr_memory_have(&b->memory, bytes < BATCH_ROOM_MAX ? bytes : BATCH_ROOM_MAX, BATCH_ROOM);
}

static int batch_put(batch *b, const wr_record *r, const uint8_t *bytes) {
    if (wr_memory_have(&b->memory, r->size, BATCH_ROOM)) return ENOMEM;
    if (b->records_n == b->places_room) {
        uint32_t room = b->places_room ? 2 * b->places_room : 64;
        wr_record_place *places = realloc(b->places, room * sizeof *places);
        if (!places) return ENOMEM;
        b->places = places;
        b->places_room = room;
    }
    memcpy(b->memory.bytes + b->memory.n, bytes, r->size);
    b->places[b->records_n++] = wr_record_place_of(b->memory.n, r);
    b->memory.n += r->size;
    return 0;
}

static void batch_free(batch *b) {
    wr_memory_drop(&b->memory);
    free(b->places);
    *b = (batch){0};
}

/* The records of a batch as a list; the batch is empty then. */
static PyObject *batch_give(batch *b) {
    PyObject *list = wr_topic_records(&b->memory, b->places, b->records_n);
    batch_free(b);
    return list;
}

/* Texts from a tuple of bytes objects, which outlives them; how many, or -1 with an exception. */
static int texts_of(PyObject *tuple, const char *what, wr_text *texts) {
    if (!PyTuple_Check(tuple) || PyTuple_GET_SIZE(tuple) > WR_READ_TAGS) {
        PyErr_Format(PyExc_ValueError, "%s are a tuple of %d bytes objects at most", what, WR_READ_TAGS);
        return -1;
    }
    const int n = (int)PyTuple_GET_SIZE(tuple);
    for (int i = 0; i < n; i++) {
        PyObject *one = PyTuple_GET_ITEM(tuple, i);
        if (!PyBytes_Check(one)) {
            PyErr_Format(PyExc_TypeError, "%s are bytes", what);
            return -1;
        }
        texts[i] = (wr_text){(const uint8_t *)PyBytes_AS_STRING(one), (uint32_t)PyBytes_GET_SIZE(one)};
    }
    return n;
}

/* read(queue, offset, end, records_max, bytes_max, tags): the same with a list of records. */
static PyObject *reader_read(ReaderObject *self, PyObject *const *args, Py_ssize_t given) {
    wr_topic_request q;
    wr_text tags[WR_READ_TAGS];
    WR_ARGUMENTS(6, "queue, offset, end, records_max, bytes_max, tags");
    const int tags_n = request_of(args, &q) ? -1 : texts_of(args[5], "tags", tags);
    if (tags_n < 0) return NULL;
    q.tags = tags;
    q.tags_n = (uint32_t)tags_n;
    q.sum = true;
    if (enter(self)) return NULL;
    wr_topic_read *read = PyMem_RawMalloc(sizeof *read);
    batch b = {0};
    wr_topic_read_result a;
    wr_record r;
    const uint8_t *bytes;
    int error = read ? 0 : ENOMEM;
    Py_BEGIN_ALLOW_THREADS
    if (!error) error = wr_topic_read_begin(read, self->reader, &q);
    while (!error && wr_topic_read_next(read, &r, &bytes))
        if (!(error = batch_room(&b, read, &r))) error = batch_put(&b, &r, bytes);
    if (!error) error = wr_topic_read_end(read, &a);
    Py_END_ALLOW_THREADS
    PyMem_RawFree(read);
    PyObject *list = error ? NULL : batch_give(&b), *answered = list ? answer(self, &a, list) : NULL;
    batch_free(&b);
    self->busy = false;
    return error ? failed_with(error) : answered;
}

static PyObject *read_columns(ReaderObject *self, const wr_topic_request *q, const wr_topic_rows_wanted *wanted) {
    if (enter(self)) return NULL;
    wr_topic_read *read = PyMem_RawMalloc(sizeof *read);
    wr_topic_columns c = {.wanted = *wanted};
    wr_topic_read_result a;
    int error = read ? 0 : ENOMEM;
    Py_BEGIN_ALLOW_THREADS
    if (!error) error = wr_topic_read_begin(read, self->reader, q);
    if (!error) error = wr_topic_columns_fill(&c, read);
    bool full = error == EOVERFLOW;
    if (!error || full) error = wr_topic_read_end(read, &a);
    if (full) a.next--; /* the record that did not fit is the next one's */
    Py_END_ALLOW_THREADS
    PyMem_RawFree(read);
    PyObject *columns = error ? NULL : wr_topic_columns_give(&c), *answered = columns ? answer(self, &a, columns) : NULL;
    wr_topic_columns_free(&c);
    self->busy = false;
    return error ? failed_with(error) : answered;
}

/* columns(queue, offset, end, records_max, bytes_max): the same with columns (binding/topic_columns.h). */
static PyObject *reader_columns(ReaderObject *self, PyObject *const *args, Py_ssize_t given) {
    wr_topic_request q;
    const wr_topic_rows_wanted all = {.want = WANT_ALL, .since = INT64_MIN, .until = INT64_MAX};
    WR_ARGUMENTS(5, "queue, offset, end, records_max, bytes_max");
    return request_of(args, &q) ? NULL : read_columns(self, &q, &all);
}

/* scan(queue, offset, end, records_max, bytes_max, tags, keys, since, until, want): the same with the columns that are wanted, of messages with
 * one of the tags and one of the keys, stored from `since` on and before `until`. There may be fewer rows than messages, and none. */
static PyObject *reader_scan(ReaderObject *self, PyObject *const *args, Py_ssize_t given) {
    wr_topic_request q;
    wr_text tags[WR_READ_TAGS], keys[WR_READ_TAGS];
    uint64_t want;
    WR_ARGUMENTS(10, "queue, offset, end, records_max, bytes_max, tags, keys, since, until, want");
    if (request_of(args, &q) || number_of(args[9], 8, "want", &want)) return NULL;
    const int tags_n = texts_of(args[5], "tags", tags), keys_n = tags_n < 0 ? -1 : texts_of(args[6], "keys", keys);
    if (keys_n < 0) return NULL;
    wr_topic_rows_wanted wanted = {.want = (uint32_t)want, .plain = true, .keys = keys, .keys_n = (uint32_t)keys_n};
    wanted.since = PyLong_AsLongLong(args[7]);
    if (!PyErr_Occurred()) wanted.until = PyLong_AsLongLong(args[8]);
    if (PyErr_Occurred()) return NULL;
    q.tags = tags;
    q.tags_n = (uint32_t)tags_n;
    return read_columns(self, &q, &wanted);
}

/* span(queue, offset, end, bytes_max): (stop, bytes). */
static PyObject *reader_span(ReaderObject *self, PyObject *const *args, Py_ssize_t given) {
    uint32_t queue;
    uint64_t offset, end, bytes_max, stop, bytes;
    WR_ARGUMENTS(4, "queue, offset, end, bytes_max");
    if (queue_of(args[0], &queue) || number_of(args[1], 63, "offset", &offset) || number_of(args[2], 64, "end", &end) ||
        number_of(args[3], 63, "bytes_max", &bytes_max) || enter(self))
        return NULL;
    int error;
    Py_BEGIN_ALLOW_THREADS
    error = wr_topic_span(self->reader, queue, offset, end, bytes_max, &stop, &bytes);
    Py_END_ALLOW_THREADS
    self->busy = false;
    return error ? failed_with(error) : Py_BuildValue("(KK)", (unsigned long long)stop, (unsigned long long)bytes);
}

/* seek(queue, when, upper): an offset; -1: there is none. */
static PyObject *reader_seek(ReaderObject *self, PyObject *const *args, Py_ssize_t given) {
    uint32_t queue;
    uint64_t offset;
    WR_ARGUMENTS(3, "queue, when, upper");
    int64_t when = PyLong_AsLongLong(args[1]);
    int upper = PyObject_IsTrue(args[2]), error;
    if (PyErr_Occurred() || queue_of(args[0], &queue) || enter(self)) return NULL;
    Py_BEGIN_ALLOW_THREADS
    error = wr_topic_seek(self->reader, queue, when, upper ? WR_SEEK_UPPER : WR_SEEK_LOWER, &offset);
    Py_END_ALLOW_THREADS
    self->busy = false;
    if (error) return failed_with(error);
    return offset == WR_SEEK_NONE ? PyLong_FromLong(-1) : PyLong_FromUnsignedLongLong(offset);
}

/* ---- look-ups ---- */

static void found_anew(void *context) {
    batch *b = context;
    b->memory.n = b->records_n = 0;
}

static int found_put(void *context, const wr_record *record, const uint8_t *bytes) { return batch_put(context, record, bytes); }

/* find(key, since, until, limit, strict): (records, damage met last, or None); strict: it ends there. */
static PyObject *reader_find(ReaderObject *self, PyObject *const *args, Py_ssize_t given) {
    uint64_t limit;
    WR_ARGUMENTS(5, "key, since, until, limit, strict");
    int64_t since = PyLong_AsLongLong(args[1]);
    int64_t until = PyErr_Occurred() ? 0 : PyLong_AsLongLong(args[2]);
    if (PyErr_Occurred() || number_of(args[3], 32, "limit", &limit)) return NULL;
    int strict = PyObject_IsTrue(args[4]);
    if (!PyBytes_Check(args[0])) return PyErr_Format(PyExc_TypeError, "key is bytes");
    if (strict < 0 || enter(self)) return NULL;
    batch b = {0};
    const wr_topic_lookup_to to = {&b, found_anew, found_put};
    const wr_text key = {(const uint8_t *)PyBytes_AS_STRING(args[0]), (uint32_t)PyBytes_GET_SIZE(args[0])};
    bool damaged = false;
    int error;
    Py_BEGIN_ALLOW_THREADS
    error = wr_topic_lookup_all(self->reader, key, since, until, limit, strict, &to, &damaged);
    Py_END_ALLOW_THREADS
    PyObject *list = error ? NULL : batch_give(&b), *answered = list ? Py_BuildValue("(NN)", list, damage_of(self, damaged)) : NULL;
    batch_free(&b);
    self->busy = false;
    return error ? failed_with(error) : answered;
}

/* find_id(message id): (records, damage or None): one or none. */
static PyObject *reader_find_id(ReaderObject *self, PyObject *text) {
    Py_ssize_t n;
    wr_message_id id;
    const char *digits = PyUnicode_AsUTF8AndSize(text, &n);
    if (!digits) return NULL;
    if (!wr_message_id_parse(digits, (uint64_t)n, &id)) return PyErr_Format(PyExc_ValueError, "message id");
    if (enter(self)) return NULL;
    wr_record r;
    const uint8_t *bytes;
    batch b = {0};
    int error;
    wr_message_kind kind;
    Py_BEGIN_ALLOW_THREADS
    self->reader->damage.file[0] = 0;
    kind = wr_topic_lookup_at(self->reader, id.physical_offset, id.store_host, id.store_host_bytes, &r, &bytes, &error);
    if (kind == WR_MESSAGE_THERE) error = batch_put(&b, &r, bytes);
    Py_END_ALLOW_THREADS
    PyObject *list = error ? NULL : batch_give(&b), *answered = NULL;
    if (list) answered = Py_BuildValue("(NN)", list, damage_of(self, kind == WR_MESSAGE_DAMAGED));
    batch_free(&b);
    self->busy = false;
    return error ? failed_with(error) : answered;
}

/* half(position, size): the record of a half message; False: it is not there. */
static PyObject *reader_half(ReaderObject *self, PyObject *const *args, Py_ssize_t given) {
    uint64_t position, size;
    WR_ARGUMENTS(2, "position, size");
    if (number_of(args[0], 63, "position", &position) || number_of(args[1], 31, "size", &size) || enter(self)) return NULL;
    wr_record r;
    const uint8_t *bytes;
    batch b = {0};
    int error;
    wr_message_kind kind;
    Py_BEGIN_ALLOW_THREADS
    kind = wr_topic_lookup_half(self->reader, position, (uint32_t)size, &r, &bytes, &error);
    if (kind == WR_MESSAGE_THERE) error = batch_put(&b, &r, bytes);
    Py_END_ALLOW_THREADS
    PyObject *list = error ? NULL : batch_give(&b), *found = NULL;
    if (list) found = Py_NewRef(PyList_GET_SIZE(list) ? PyList_GET_ITEM(list, 0) : Py_False);
    Py_XDECREF(list);
    batch_free(&b);
    self->busy = false;
    return error ? failed_with(error) : found;
}

/* ---- retention and holds ---- */

static PyObject *reader_first_time(ReaderObject *self, PyObject *object) {
    uint32_t queue;
    int64_t time = 0;
    if (queue_of(object, &queue) || enter(self)) return NULL;
    int error;
    Py_BEGIN_ALLOW_THREADS
    error = wr_topic_first_time(self->reader, queue, &time);
    Py_END_ALLOW_THREADS
    self->busy = false;
    if (error == ENOENT) Py_RETURN_NONE;
    return error ? failed_with(error) : PyLong_FromLongLong(time);
}

typedef int (*a_question)(wr_topic_reader *reader, uint32_t queue, uint64_t about, uint64_t *answer);

static PyObject *ask(ReaderObject *self, PyObject *const *args, a_question question) {
    uint32_t queue;
    uint64_t about, answer = 0;
    if (queue_of(args[0], &queue) || number_of(args[1], 64, "about", &about) || enter(self)) return NULL;
    int error;
    Py_BEGIN_ALLOW_THREADS
    error = question(self->reader, queue, about, &answer);
    Py_END_ALLOW_THREADS
    self->busy = false;
    if (!error && answer == UINT64_MAX) return PyLong_FromLong(-1);
    return error ? failed_with(error) : PyLong_FromUnsignedLongLong(answer);
}

static PyObject *reader_offset_of(ReaderObject *self, PyObject *const *args, Py_ssize_t given) {
    WR_ARGUMENTS(2, "queue, position");
    return ask(self, args, wr_retain_offset);
}

static PyObject *reader_position_of(ReaderObject *self, PyObject *const *args, Py_ssize_t given) {
    WR_ARGUMENTS(2, "queue, offset");
    return ask(self, args, wr_retain_position);
}

static PyObject *list_of(const uint64_t *numbers, uint32_t n) {
    PyObject *list = PyList_New(n);
    for (uint32_t i = 0; list && i < n; i++) {
        PyObject *number = PyLong_FromUnsignedLongLong(numbers[i]);
        if (number) PyList_SET_ITEM(list, i, number);
        else Py_CLEAR(list);
    }
    return list;
}

static PyObject *reader_excess(ReaderObject *self, PyObject *const *args, Py_ssize_t given) {
    uint64_t queues_n, excess;
    WR_ARGUMENTS(2, "queues, bytes");
    if (number_of(args[0], 16, "queues", &queues_n) || number_of(args[1], 64, "bytes", &excess)) return NULL;
    uint64_t *minima = PyMem_Calloc((size_t)queues_n + 1, sizeof *minima);
    if (!minima) return PyErr_NoMemory();
    if (enter(self)) {
        PyMem_Free(minima);
        return NULL;
    }
    int error;
    Py_BEGIN_ALLOW_THREADS
    error = wr_retain_excess(self->reader, (uint32_t)queues_n, excess, minima);
    Py_END_ALLOW_THREADS
    self->busy = false;
    PyObject *list = error ? failed_with(error) : list_of(minima, (uint32_t)queues_n);
    PyMem_Free(minima);
    return list;
}

/* ---- compaction ---- */

/* compact(queue, old, from, end, synced, keys_max, now, tombstone_ms, bytes_per_s, fd, stop): (end, bytes, records, gone). Raises OSError; ECANCELED:
 * the first byte of `stop` is not 0; EUCLEAN: damage, and where. */
static PyObject *reader_compact(ReaderObject *self, PyObject *const *args, Py_ssize_t given) {
    WR_ARGUMENTS(11, "queue, old, from, end, synced, keys_max, now, tombstone_ms, bytes_per_s, fd, stop");
    wr_compact_job job = {.reader = self->reader, .io = &wr_commit_io_system};
    const long old = PyLong_AsLong(args[1]);
    uint64_t fd, *numbers_of[] = {&job.from, &job.end, &job.synced, &job.keys_max, &job.now, &job.tombstone_ms, &job.bytes_per_s, &fd};
    if (PyErr_Occurred() || queue_of(args[0], &job.queue)) return NULL;
    for (int i = 0; i < 8; i++)
        if (number_of(args[i + 2], i == 7 ? 31 : 64, "a number", numbers_of[i])) return NULL;
    if (!self->reader->compacted) return PyErr_Format(PyExc_ValueError, "the reader was made without newest_of");
    Py_buffer stop;
    if (PyObject_GetBuffer(args[10], &stop, PyBUF_WRITABLE) < 0) return NULL;
    if (stop.len < (Py_ssize_t)sizeof(_Atomic bool) || enter(self)) {
        PyBuffer_Release(&stop);
        return PyErr_Occurred() ? NULL : PyErr_Format(PyExc_ValueError, "stop is a byte");
    }
    memcpy(job.node, self->reader->node, sizeof job.node);
    job.fd = (int)fd;
    job.stop = stop.buf;
    wr_compact_result result;
    int error = 0;
    job.old = old < 0 ? NULL : wr_compacted_taken((int)old, self->reader->node, self->reader->id, job.queue);
    const bool taken = old < 0 || job.old;
    if (taken) {
        Py_BEGIN_ALLOW_THREADS
        error = wr_compact(&job, &result);
        wr_compacted_close(job.old);
        Py_END_ALLOW_THREADS
    }
    self->busy = false;
    PyBuffer_Release(&stop);
    if (!taken) return NULL;
    if (error == EUCLEAN) return raise_errno(error, result.wrong);
    if (error) return error == ENOMEM ? PyErr_NoMemory() : os_error(error);
    return Py_BuildValue("(KKKK)", (unsigned long long)result.end, (unsigned long long)result.size, (unsigned long long)result.records_n,
                         (unsigned long long)result.gone_n);
}

static PyObject *reader_closing(ReaderObject *self, PyObject *ignored) {
    (void)ignored;
    return PyLong_FromUnsignedLongLong(self->reader->rows ? wr_hold_closing(self->reader->rows) : 0);
}

/* topic_hold(superblock, slot, word). */
static PyObject *topic_hold(PyObject *module, PyObject *const *args, Py_ssize_t given) {
    (void)module;
    uint64_t slot, word;
    Py_buffer super;
    WR_ARGUMENTS(3, "superblock, slot, word");
    if (number_of(args[1], 16, "slot", &slot) || number_of(args[2], 64, "word", &word)) return NULL;
    if (PyObject_GetBuffer(args[0], &super, PyBUF_WRITABLE) < 0) return NULL;
    const bool good = super.len >= WR_SUPERBLOCK_BYTES && slot < WR_CLIENT_SLOTS;
    if (good) wr_hold_write(super.buf, (uint32_t)slot, word);
    PyBuffer_Release(&super);
    if (!good) return PyErr_Format(PyExc_ValueError, "no superblock, or no slot of it");
    Py_RETURN_NONE;
}

/* topic_close(rows, superblock, position): (lowest hold, its slot), or None. */
static PyObject *topic_close(PyObject *module, PyObject *const *args, Py_ssize_t given) {
    (void)module;
    uint64_t position, lowest = UINT64_MAX;
    Py_buffer rows, super;
    uint32_t slot = 0;
    WR_ARGUMENTS(3, "rows, superblock, position");
    if (number_of(args[2], 64, "position", &position) || PyObject_GetBuffer(args[0], &rows, PyBUF_WRITABLE) < 0) return NULL;
    if (PyObject_GetBuffer(args[1], &super, PyBUF_WRITABLE) < 0) {
        PyBuffer_Release(&rows);
        return NULL;
    }
    const bool good = super.len >= WR_SUPERBLOCK_BYTES && (size_t)rows.len >= sizeof(wr_topic_rows);
    if (good) lowest = wr_hold_close(rows.buf, super.buf, position, &slot);
    PyBuffer_Release(&super);
    PyBuffer_Release(&rows);
    if (!good) return PyErr_Format(PyExc_ValueError, "no rows, or no superblock");
    if (lowest == UINT64_MAX) Py_RETURN_NONE;
    return Py_BuildValue("(KI)", (unsigned long long)lowest, (unsigned int)slot);
}

static PyMethodDef functions[] = {
    FAST("topic_hold", topic_hold, "topic_hold(superblock, slot, word): the client of this slot holds what lies at position word - 1; 0: nothing."),
    FAST("topic_close", topic_close, "topic_close(rows, superblock, position): what is below is about to go; the lowest hold, or None."),
    {NULL, NULL, 0, NULL},
};

/* ---- the type ---- */

static PyMethodDef reader_methods[] = {
    {"first_time", (PyCFunction)reader_first_time, METH_O, "first_time(queue): store time of the first message that is there, or None."},
    FAST("offset_of", reader_offset_of, "offset_of(queue, position): of the first message at a position of the log or behind it."),
    FAST("position_of", reader_position_of, "position_of(queue, offset): of the first message at an offset or behind it, or -1."),
    FAST("excess", reader_excess, "excess(queues, bytes): minima of the queues without their oldest messages, of so many bytes together."),
    {"closing", (PyCFunction)reader_closing, METH_NOARGS, "The position below which messages are about to be removed; 0: none are."},
    FAST("compact", reader_compact, "compact(queue, old, from, end, …): a pass over a queue of a compacted topic."),
    FAST("begin", reader_begin, "begin(ring, rows): the regions of the worker's present incarnation."),
    {"close", (PyCFunction)reader_close, METH_NOARGS, "Let go of regions and files; begin makes it read again."},
    {"bounds", (PyCFunction)reader_bounds, METH_O, "bounds(queue): (first offset, behind the last, messages), or None."},
    {"delayed", (PyCFunction)reader_delayed, METH_NOARGS, "delayed(): messages that are to come later, or None."},
    FAST("wait", reader_wait, "wait(queue, seen, seconds): whether the maximum is above `seen`, or None."),
    FAST("wait_any", reader_wait_any, "wait_any(queues, seen, row, stamp, seconds): which of them has changed, -1, -2 or None."),
    FAST("read", reader_read, "read(queue, offset, end, records_max, bytes_max, tags): an answer with records."),
    FAST("columns", reader_columns, "columns(queue, offset, end, records_max, bytes_max): an answer with columns."),
    FAST("scan", reader_scan, "scan(queue, offset, end, records_max, bytes_max, tags, keys, since, until, want): an answer with some columns."),
    FAST("span", reader_span, "span(queue, offset, end, bytes_max): (the offset behind so many bytes, bytes), or None."),
    FAST("seek", reader_seek, "seek(queue, when, upper): an offset, -1 or None."),
    FAST("find", reader_find, "find(key, since, until, limit, strict): (records, damage)."),
    {"halves", (PyCFunction)reader_halves, METH_NOARGS, "halves(): half messages that are pending, or None."},
    FAST("half", reader_half, "half(position, size): the record of a half message; False: it is not there."),
    {"find_id", (PyCFunction)reader_find_id, METH_O, "find_id(message id): (records, damage)."},
    {NULL, NULL, 0, NULL},
};

static PyObject *reader_behind(ReaderObject *self, void *ignored) {
    (void)ignored;
    return PyBool_FromLong(self->reader->behind);
}

static PyGetSetDef reader_attributes[] = {
    {"behind", (getter)reader_behind, NULL, "Whether the last call lacks something that was confirmed before it.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot reader_slots[] = {
    {Py_tp_doc, "Reads one topic, in one thread at a time."},
    {Py_tp_new, reader_new},
    {Py_tp_dealloc, reader_dealloc},
    {Py_tp_methods, reader_methods},
    {Py_tp_getset, reader_attributes},
    {0, NULL},
};

static PyType_Spec reader_spec = {"warren.engine._core.TopicReader", sizeof(ReaderObject), 0, Py_TPFLAGS_DEFAULT, reader_slots};

int wr_bind_topic_reader(PyObject *module) {
    static const struct {
        const char *name;
        int bit;
    } wants[] = {{"WANT_OFFSET", WANT_OFFSET}, {"WANT_TIMESTAMP", WANT_TIMESTAMP}, {"WANT_BORN_TIMESTAMP", WANT_BORN_TIMESTAMP},
                 {"WANT_KEY", WANT_KEY},       {"WANT_TAG", WANT_TAG},             {"WANT_VALUE", WANT_VALUE},
                 {"WANT_ID", WANT_ID},         {"WANT_PROPERTIES", WANT_PROPERTIES}};
    if (PyModule_AddFunctions(module, functions) < 0) return -1;
    for (size_t i = 0; i < sizeof wants / sizeof *wants; i++)
        if (PyModule_AddIntConstant(module, wants[i].name, wants[i].bit) < 0) return -1;
    PyObject *words = PyTuple_New(WR_READ_STATUSES);
    for (int i = 0; words && i < WR_READ_STATUSES; i++) {
        PyObject *word = PyUnicode_FromString(wr_read_word((wr_read_status)i));
        if (word) PyTuple_SET_ITEM(words, i, word);
        else Py_CLEAR(words);
    }
    PyObject *type = words ? PyType_FromSpec(&reader_spec) : NULL;
    int result = type ? PyModule_AddObjectRef(module, "TopicReader", type) : -1;
    if (!result) result = PyModule_AddObjectRef(module, "READ_STATUSES", words);
    Py_XDECREF(type);
    Py_XDECREF(words);
    return result;
}
