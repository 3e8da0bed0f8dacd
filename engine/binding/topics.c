/* The formats of topics for Python: records, properties, hashes, units, message ids, and KeyIndex, which writes and
 * reads a file of the key index in any buffer. What is refused is a ValueError whose text is the core's word for it
 * (wr_record_word, wr_key_word); engine/topics/records.py says it in sentences.
 *
 * A KeyIndex belongs to one thread at a time; it keeps its buffer. Nothing here takes long, so the GIL is kept, but for
 * the scan of a large record. */
#include "binding/arguments.h"
#include "binding/told.h"
#include "topics/consume_queue.h"
#include "topics/hash.h"
#include "topics/key_index.h"
#include "topics/log.h"
#include "topics/message_id.h"
#include "topics/properties.h"
#include "topics/record.h"

#define LONG_BYTES 65536 /* above this the GIL is released */

static PyObject *refuse(const char *word) {
    PyErr_SetString(PyExc_ValueError, word);
    return NULL;
}

/* ---- records ---- */

static PyObject *record_size(PyObject *module, PyObject *const *args, Py_ssize_t given) {
    (void)module;
    uint64_t n[4];
    if (!count_ok("record_size", given, 4) || numbers(args, 4, n)) return NULL;
    wr_record_reason reason;
    uint32_t size = wr_record_size((uint32_t)n[0], n[1], n[2], n[3], &reason);
    return size ? PyLong_FromUnsignedLong(size) : refuse(wr_record_word(reason));
}

static PyObject *record_bytes_max(PyObject *module, PyObject *const *args, Py_ssize_t given) {
    (void)module;
    uint64_t n[2];
    if (!count_ok("topic_record_bytes_max", given, 2) || numbers(args, 2, n)) return NULL;
    return PyLong_FromUnsignedLongLong(wr_topic_log_most_of(n[0], n[1]));
}

/* What Python gives of a record. */
typedef struct {
    wr_record_head head;
    Py_buffer topic, properties, *bodies;
    struct iovec *parts;
    Py_ssize_t parts_n;
} source;

static void source_free(source *s) {
    for (Py_ssize_t i = 0; s->bodies && i < s->parts_n; i++) drop_buffer(&s->bodies[i]);
    PyMem_Free(s->bodies);
    PyMem_Free(s->parts);
    drop_buffer(&s->properties);
    drop_buffer(&s->topic);
}

static int host_of(PyObject *object, uint32_t wanted, uint8_t *to) {
    if (!PyBytes_Check(object) || PyBytes_GET_SIZE(object) != (Py_ssize_t)wanted) {
        PyErr_Format(PyExc_ValueError, "a host of %d bytes is wanted", (int)wanted);
        return -1;
    }
    memcpy(to, PyBytes_AS_STRING(object), wanted);
    return 0;
}

static int parts_of(PyObject *sequence, source *s) {
    PyObject *items = PySequence_Fast(sequence, "the body is a sequence of buffers");
    if (!items) return -1;
    Py_ssize_t n = PySequence_Fast_GET_SIZE(items);
    s->bodies = PyMem_Calloc((size_t)n + 1, sizeof *s->bodies);
    s->parts = PyMem_Calloc((size_t)n + 1, sizeof *s->parts);
    if (!s->bodies || !s->parts) PyErr_NoMemory();
    while (!PyErr_Occurred() && s->parts_n < n) {
        Py_buffer *body = &s->bodies[s->parts_n];
        if (PyObject_GetBuffer(PySequence_Fast_GET_ITEM(items, s->parts_n), body, PyBUF_SIMPLE) < 0) break;
        s->parts[s->parts_n++] = (struct iovec){body->buf, (size_t)body->len};
    }
    Py_DECREF(items);
    return PyErr_Occurred() ? -1 : 0;
}

#define RECORD_ARGUMENTS 14
static int source_of(PyObject *const *args, source *s) {
    wr_record_head *head = &s->head;
    uint64_t queue_id, flag, sys_flag, reconsume_times;
    if (number_of(args[0], 32, "queue_id", &queue_id) || number_of(args[1], 32, "flag", &flag) ||
        number_of(args[2], 64, "queue_offset", &head->queue_offset) ||
        number_of(args[3], 64, "physical_offset", &head->physical_offset) ||
        number_of(args[4], 32, "sys_flag", &sys_flag) ||
        number_of(args[5], 64, "born_timestamp", &head->born_timestamp) ||
        number_of(args[7], 64, "store_timestamp", &head->store_timestamp) ||
        number_of(args[9], 32, "reconsume_times", &reconsume_times) ||
        number_of(args[10], 64, "prepared_transaction_offset", &head->prepared_transaction_offset))
        return -1;
    head->queue_id = (uint32_t)queue_id;
    head->flag = (uint32_t)flag;
    head->sys_flag = (uint32_t)sys_flag;
    head->reconsume_times = (uint32_t)reconsume_times;
    if (host_of(args[6], wr_born_host_bytes(head->sys_flag), head->born_host) ||
        host_of(args[8], wr_store_host_bytes(head->sys_flag), head->store_host))
        return -1;
    if (PyObject_GetBuffer(args[11], &s->topic, PyBUF_SIMPLE) < 0) return -1;
    if (PyObject_GetBuffer(args[12], &s->properties, PyBUF_SIMPLE) < 0) return -1;
    return parts_of(args[13], s);
}

static PyObject *record_encode(PyObject *module, PyObject *const *args, Py_ssize_t given) {
    (void)module;
    source s = {0};
    PyObject *record = NULL;
    if (!count_ok("record_encode", given, RECORD_ARGUMENTS)) return NULL;
    if (source_of(args, &s) == 0) {
        uint64_t body = 0;
        for (Py_ssize_t i = 0; i < s.parts_n; i++) body += s.parts[i].iov_len;
        wr_record_reason reason;
        uint64_t topic = (uint64_t)s.topic.len, properties = (uint64_t)s.properties.len;
        uint32_t size = wr_record_size(s.head.sys_flag, topic, properties, body, &reason);
        if (size && (record = PyBytes_FromStringAndSize(NULL, size)))
            reason = wr_record_encode((uint8_t *)PyBytes_AS_STRING(record), size, &s.head, s.topic.buf, (uint32_t)topic,
                                      s.properties.buf, (uint32_t)properties, s.parts, (uint32_t)s.parts_n);
        if (reason) {
            Py_CLEAR(record);
            refuse(wr_record_word(reason));
        }
    }
    source_free(&s);
    return record;
}

static PyObject *record_blank(PyObject *module, PyObject *left) {
    (void)module;
    uint64_t bytes;
    uint8_t blank[WR_BLANK_SIZE];
    if (number_of(left, 31, "left", &bytes)) return NULL;
    if (bytes < WR_BLANK_SIZE) return refuse("size");
    wr_record_blank(blank, (uint32_t)bytes);
    return PyBytes_FromStringAndSize((const char *)blank, WR_BLANK_SIZE);
}

static PyObject *fields_of(const uint8_t *bytes, const wr_record *r) {
    return Py_BuildValue("(kkkkKKkKy#Ky#kKkky#y#)", (unsigned long)r->magic, (unsigned long)r->body_crc,
                         (unsigned long)r->queue_id, (unsigned long)r->flag, (unsigned long long)r->queue_offset,
                         (unsigned long long)r->physical_offset, (unsigned long)r->sys_flag,
                         (unsigned long long)r->born_timestamp, (const char *)bytes + WR_LOG_HEAD_SIZE,
                         (Py_ssize_t)wr_born_host_bytes(r->sys_flag), (unsigned long long)r->store_timestamp,
                         (const char *)bytes + r->store_host_at, (Py_ssize_t)wr_store_host_bytes(r->sys_flag),
                         (unsigned long)r->reconsume_times, (unsigned long long)r->prepared_transaction_offset,
                         (unsigned long)r->body_at, (unsigned long)r->body_length, (const char *)bytes + r->topic_at,
                         (Py_ssize_t)r->topic_length, (const char *)bytes + r->properties_at,
                         (Py_ssize_t)r->properties_length);
}

static PyObject *record_scan(PyObject *module, PyObject *const *args, Py_ssize_t given) {
    (void)module;
    uint64_t at, position, checks;
    Py_buffer buffer;
    if (!count_ok("record_scan", given, 4) || number_of(args[1], 63, "at", &at) ||
        number_of(args[2], 64, "position", &position) || number_of(args[3], 32, "checks", &checks))
        return NULL;
    if (PyObject_GetBuffer(args[0], &buffer, PyBUF_SIMPLE) < 0) return NULL;
    PyObject *result = NULL;
    if (at > (uint64_t)buffer.len) {
        PyErr_Format(PyExc_ValueError, "at is behind the %zd bytes", buffer.len);
    } else {
        const uint8_t *bytes = (const uint8_t *)buffer.buf + at;
        wr_record r = {0};
        wr_scan found;
        uint64_t n = (uint64_t)buffer.len - at;
        if (n > LONG_BYTES) {
            Py_BEGIN_ALLOW_THREADS
            found = wr_record_scan(bytes, n, position, (uint32_t)checks, &r);
            Py_END_ALLOW_THREADS
        } else {
            found = wr_record_scan(bytes, n, position, (uint32_t)checks, &r);
        }
        PyObject *fields = found == WR_SCAN_RECORD ? fields_of(bytes, &r) : Py_NewRef(Py_None);
        uint32_t size = found == WR_SCAN_RECORD || found == WR_SCAN_BLANK ? r.size : 0;
        if (fields) result = Py_BuildValue("(iksN)", (int)found, (unsigned long)size, wr_record_word(r.reason), fields);
    }
    PyBuffer_Release(&buffer);
    return result;
}

/* ---- properties ---- */

static PyObject *properties_encode(PyObject *module, PyObject *dict) {
    (void)module;
    uint8_t room[WR_PROPERTIES_BYTES_MAX];
    uint32_t used = 0;
    Py_ssize_t place = 0;
    PyObject *key, *item;
    if (!PyDict_Check(dict)) return PyErr_Format(PyExc_TypeError, "properties are a dict of str");
    while (PyDict_Next(dict, &place, &key, &item)) {
        Py_ssize_t name_n, value_n;
        if (!PyUnicode_Check(key) || !PyUnicode_Check(item))
            return PyErr_Format(PyExc_TypeError, "properties are a dict of str");
        const char *name = PyUnicode_AsUTF8AndSize(key, &name_n);
        const char *value = name ? PyUnicode_AsUTF8AndSize(item, &value_n) : NULL;
        if (!value) return NULL;
        uint64_t left = sizeof room - used;
        if ((uint64_t)name_n + (uint64_t)value_n + 2 > left) return refuse(wr_record_word(WR_RECORD_PROPERTIES_LENGTH));
        uint32_t put = wr_properties_put(room + used, left, name, (uint64_t)name_n, value, (uint64_t)value_n);
        if (!put) return refuse(wr_record_word(WR_RECORD_PROPERTIES));
        used += put;
    }
    return PyBytes_FromStringAndSize((const char *)room, used);
}

static PyObject *text_of(wr_text text) { return PyUnicode_DecodeUTF8((const char *)text.at, text.n, NULL); }

static PyObject *properties_decode(PyObject *module, PyObject *object) {
    (void)module;
    Py_buffer buffer;
    if (PyObject_GetBuffer(object, &buffer, PyBUF_SIMPLE) < 0) return NULL;
    PyObject *dict = NULL;
    uint32_t at = 0;
    wr_text name, value;
    if (buffer.len > WR_PROPERTIES_BYTES_MAX) refuse(wr_record_word(WR_RECORD_PROPERTIES_LENGTH));
    else if (!wr_properties_good(buffer.buf, (uint64_t)buffer.len)) refuse(wr_record_word(WR_RECORD_PROPERTIES));
    else dict = PyDict_New();
    while (dict && wr_properties_next(buffer.buf, (uint32_t)buffer.len, &at, &name, &value)) {
        PyObject *key = text_of(name), *item = text_of(value);
        if (!key || !item || PyDict_SetItem(dict, key, item) < 0) Py_CLEAR(dict);
        Py_XDECREF(key);
        Py_XDECREF(item);
    }
    PyBuffer_Release(&buffer);
    return dict;
}

static PyObject *bytes_or_none(wr_text text) {
    return text.at ? PyBytes_FromStringAndSize((const char *)text.at, text.n) : Py_NewRef(Py_None);
}

static PyObject *properties_known(PyObject *module, PyObject *object) {
    (void)module;
    Py_buffer buffer;
    wr_known_properties known;
    if (PyObject_GetBuffer(object, &buffer, PyBUF_SIMPLE) < 0) return NULL;
    PyObject *found = NULL, *keys = NULL;
    uint32_t at = 0;
    wr_text key;
    if (buffer.len > WR_PROPERTIES_BYTES_MAX) {
        refuse(wr_record_word(WR_RECORD_PROPERTIES_LENGTH));
    } else {
        wr_properties_known(buffer.buf, (uint32_t)buffer.len, &known);
        keys = PyList_New(0);
    }
    while (keys && wr_keys_next(known.keys, &at, &key)) {
        PyObject *one = bytes_or_none(key);
        if (!one || PyList_Append(keys, one) < 0) Py_CLEAR(keys);
        Py_XDECREF(one);
    }
    if (keys) found = Py_BuildValue("(ONN)", keys, bytes_or_none(known.tags), bytes_or_none(known.uniq_key));
    Py_XDECREF(keys);
    PyBuffer_Release(&buffer);
    return found;
}

static PyObject *property_value(PyObject *module, PyObject *const *args, Py_ssize_t given) {
    (void)module;
    Py_buffer buffer;
    if (!count_ok("property_value", given, 2)) return NULL;
    const char *name = PyUnicode_AsUTF8(args[1]);
    if (!name || PyObject_GetBuffer(args[0], &buffer, PyBUF_SIMPLE) < 0) return NULL;
    wr_text value = {0};
    PyObject *found = NULL;
    if (buffer.len > WR_PROPERTIES_BYTES_MAX) refuse(wr_record_word(WR_RECORD_PROPERTIES_LENGTH));
    else if (wr_properties_find(buffer.buf, (uint32_t)buffer.len, name, &value)) found = bytes_or_none(value);
    else found = Py_NewRef(Py_None);
    PyBuffer_Release(&buffer);
    return found;
}

static PyObject *property_reserved(PyObject *module, PyObject *object) {
    (void)module;
    const char *name = PyUnicode_AsUTF8(object);
    if (!name) return NULL;
    return PyBool_FromLong(!strcmp(name, "KEYS") || !strcmp(name, "TAGS") || wr_told_reserved(name));
}

static PyObject *text_good(PyObject *module, PyObject *object) {
    (void)module;
    Py_buffer buffer;
    if (PyObject_GetBuffer(object, &buffer, PyBUF_SIMPLE) < 0) return NULL;
    bool good = wr_text_good(buffer.buf, (uint64_t)buffer.len);
    PyBuffer_Release(&buffer);
    return PyBool_FromLong(good);
}

/* ---- hashes ---- */

static PyObject *tags_code(PyObject *module, PyObject *object) {
    (void)module;
    Py_buffer buffer;
    if (PyObject_GetBuffer(object, &buffer, PyBUF_SIMPLE) < 0) return NULL;
    int64_t code = wr_tags_code(buffer.buf, (uint64_t)buffer.len);
    PyBuffer_Release(&buffer);
    return PyLong_FromLongLong(code);
}

static PyObject *key_hash(PyObject *module, PyObject *const *args, Py_ssize_t given) {
    (void)module;
    Py_buffer topic, key;
    if (!count_ok("key_hash", given, 2) || PyObject_GetBuffer(args[0], &topic, PyBUF_SIMPLE) < 0) return NULL;
    if (PyObject_GetBuffer(args[1], &key, PyBUF_SIMPLE) < 0) {
        PyBuffer_Release(&topic);
        return NULL;
    }
    uint32_t hash = wr_key_hash(wr_key_hash_topic(topic.buf, (uint64_t)topic.len), key.buf, (uint64_t)key.len);
    PyBuffer_Release(&key);
    PyBuffer_Release(&topic);
    return PyLong_FromUnsignedLong(hash);
}

/* ---- consume queues ---- */

/* The buffer of units, of which the n-th is wanted; -1 with an exception. */
static int units_of(PyObject *object, PyObject *number, int flags, Py_buffer *buffer, uint64_t *n) {
    if (number_of(number, 63, "n", n) || PyObject_GetBuffer(object, buffer, flags) < 0) return -1;
    const char *wrong = (uintptr_t)buffer->buf & 3 ? "units are aligned to 4 bytes"
                        : *n >= (uint64_t)buffer->len / WR_CONSUME_QUEUE_UNIT_SIZE ? "n is behind the buffer"
                                                                                   : NULL;
    if (!wrong) return 0;
    refuse(wrong);
    PyBuffer_Release(buffer);
    return -1;
}

static PyObject *unit_put(PyObject *module, PyObject *const *args, Py_ssize_t given) {
    (void)module;
    Py_buffer buffer;
    uint64_t n, physical_offset, size;
    if (!count_ok("unit_put", given, 5) || number_of(args[2], 63, "physical_offset", &physical_offset) ||
        number_of(args[3], 31, "size", &size))
        return NULL;
    int64_t code = PyLong_AsLongLong(args[4]);
    if (code == -1 && PyErr_Occurred()) return NULL;
    if (!size) return refuse("size");
    if (units_of(args[0], args[1], PyBUF_WRITABLE, &buffer, &n)) return NULL;
    wr_unit_put(buffer.buf, n, physical_offset, (uint32_t)size, code);
    PyBuffer_Release(&buffer);
    Py_RETURN_NONE;
}

static PyObject *unit_get(PyObject *module, PyObject *const *args, Py_ssize_t given) {
    (void)module;
    Py_buffer buffer;
    uint64_t n;
    wr_unit unit;
    if (!count_ok("unit_get", given, 2) || units_of(args[0], args[1], PyBUF_SIMPLE, &buffer, &n)) return NULL;
    bool there = wr_unit_get(buffer.buf, n, &unit);
    PyBuffer_Release(&buffer);
    if (!there) Py_RETURN_NONE;
    return Py_BuildValue("(KkL)", (unsigned long long)unit.physical_offset, (unsigned long)unit.size,
                         (long long)unit.tags_code);
}

/* ---- message ids ---- */

static PyObject *message_id(PyObject *module, PyObject *const *args, Py_ssize_t given) {
    (void)module;
    char text[WR_MESSAGE_ID_CHARS_V6];
    uint64_t offset;
    if (!count_ok("message_id", given, 2) || number_of(args[1], 63, "physical_offset", &offset)) return NULL;
    Py_ssize_t n = PyBytes_Check(args[0]) ? PyBytes_GET_SIZE(args[0]) : 0;
    if (n != WR_HOST_V4_SIZE && n != WR_HOST_V6_SIZE) return refuse("a host has 8 or 20 bytes");
    uint32_t chars = wr_message_id_put(text, (const uint8_t *)PyBytes_AS_STRING(args[0]), (uint32_t)n, offset);
    return PyUnicode_FromStringAndSize(text, chars);
}

static PyObject *message_host(PyObject *module, PyObject *node) {
    uint8_t host[WR_HOST_V4_SIZE];
    (void)module;
    if (!PyBytes_Check(node) || PyBytes_GET_SIZE(node) != WR_NODE_BYTES) return refuse("a node has 16 bytes");
    wr_message_host((const uint8_t *)PyBytes_AS_STRING(node), host);
    return PyBytes_FromStringAndSize((const char *)host, sizeof host);
}

static PyObject *message_id_parse(PyObject *module, PyObject *object) {
    (void)module;
    Py_ssize_t n;
    wr_message_id id;
    const char *text = PyUnicode_AsUTF8AndSize(object, &n);
    if (!text) return NULL;
    if (!wr_message_id_parse(text, (uint64_t)n, &id)) return refuse("message id");
    return Py_BuildValue("(y#K)", (const char *)id.store_host, (Py_ssize_t)id.store_host_bytes,
                         (unsigned long long)id.physical_offset);
}

/* ---- KeyIndex ---- */

typedef struct {
    PyObject_HEAD
    Py_buffer buffer;
    bool writes;
    wr_key_index index;
    wr_key_writer writer;
} KeyIndexObject;

static PyObject *key_index_new(PyTypeObject *type, PyObject *args, PyObject *keywords) {
    static char *names[] = {"buffer", "slots", "entries", "writable", NULL};
    PyObject *buffer;
    unsigned long long slots, entries;
    int writable = 1;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "OKK|p:KeyIndex", names, &buffer, &slots, &entries, &writable))
        return NULL;
    KeyIndexObject *self = (KeyIndexObject *)type->tp_alloc(type, 0);
    if (!self) return NULL;
    self->writes = writable;
    if (PyObject_GetBuffer(buffer, &self->buffer, writable ? PyBUF_WRITABLE : PyBUF_SIMPLE) < 0) goto failed;
    uint64_t bytes = (uint64_t)self->buffer.len;
    if (slots > UINT32_MAX || entries > UINT32_MAX ||
        !wr_key_index_take(&self->index, self->buffer.buf, bytes, (uint32_t)slots, (uint32_t)entries)) {
        refuse("the buffer is too small for these counts, not aligned to 8 bytes, or the counts cannot be");
        goto failed;
    }
    if (writable) {
        wr_key_code code = wr_key_writer_open(&self->writer, &self->index);
        if (code != WR_KEY_FOUND) {
            refuse(wr_key_word(code));
            goto failed;
        }
    }
    return (PyObject *)self;
failed:
    Py_DECREF(self);
    return NULL;
}

static void key_index_dealloc(KeyIndexObject *self) {
    PyTypeObject *type = Py_TYPE(self);
    drop_buffer(&self->buffer);
    type->tp_free((PyObject *)self);
    Py_DECREF(type);
}

static PyObject *key_index_close(KeyIndexObject *self, PyObject *ignored) {
    (void)ignored;
    drop_buffer(&self->buffer);
    Py_RETURN_NONE;
}

static int is_open(const KeyIndexObject *self, bool to_write) {
    if (!self->buffer.obj) return refuse("this KeyIndex is closed"), 0;
    if (to_write && !self->writes) return refuse("this KeyIndex only reads"), 0;
    return 1;
}

static PyObject *key_index_put(KeyIndexObject *self, PyObject *const *args, Py_ssize_t given) {
    uint64_t hash, offset;
    if (!is_open(self, true) || !count_ok("put", given, 3) || number_of(args[0], 31, "key_hash", &hash) ||
        number_of(args[1], 63, "physical_offset", &offset))
        return NULL;
    int64_t timestamp = PyLong_AsLongLong(args[2]);
    if (timestamp == -1 && PyErr_Occurred()) return NULL;
    wr_key_code code = wr_key_put(&self->writer, (uint32_t)hash, offset, timestamp);
    if (code == WR_KEY_FOUND) Py_RETURN_TRUE;
    if (code == WR_KEY_FULL) Py_RETURN_FALSE;
    return refuse(wr_key_word(code));
}

static PyObject *key_index_truncate(KeyIndexObject *self, PyObject *end) {
    uint64_t offset;
    if (!is_open(self, true) || number_of(end, 64, "end", &offset)) return NULL;
    wr_key_code code = wr_key_truncate(&self->writer, offset);
    if (code != WR_KEY_FOUND) return refuse(wr_key_word(code));
    Py_RETURN_NONE;
}

/* (found, word): what was found up to the end, or up to `limit` entries. */
static PyObject *key_index_find(KeyIndexObject *self, PyObject *const *args, Py_ssize_t given) {
    uint64_t hash, limit;
    if (!is_open(self, false) || !count_ok("find", given, 5) || number_of(args[0], 31, "key_hash", &hash)) return NULL;
    int64_t since = PyLong_AsLongLong(args[1]);
    if (since == -1 && PyErr_Occurred()) return NULL;
    int64_t until = PyLong_AsLongLong(args[2]);
    if (until == -1 && PyErr_Occurred()) return NULL;
    int ordered = PyObject_IsTrue(args[3]);
    if (ordered < 0 || number_of(args[4], 63, "limit", &limit)) return NULL;
    PyObject *all = PyList_New(0);
    wr_key_find find;
    wr_key_entry entry;
    wr_key_code code = WR_KEY_END;
    wr_key_find_begin(&find, &self->index, (uint32_t)hash, since, until, ordered != 0);
    for (uint64_t n = 0; all && n < limit && (code = wr_key_find_next(&find, &entry)) == WR_KEY_FOUND; n++) {
        PyObject *one = Py_BuildValue("(kKLL)", (unsigned long)entry.number, (unsigned long long)entry.physical_offset,
                                      (long long)entry.from, (long long)entry.to);
        if (!one || PyList_Append(all, one) < 0) Py_CLEAR(all);
        Py_XDECREF(one);
    }
    return all ? Py_BuildValue("(Ns)", all, wr_key_word(code)) : NULL;
}

static PyObject *key_index_header(KeyIndexObject *self, PyObject *ignored) {
    (void)ignored;
    wr_key_header h;
    if (!is_open(self, false)) return NULL;
    wr_key_index_header(&self->index, &h);
    return Py_BuildValue("(LLKKkk)", (long long)h.begin_timestamp, (long long)h.end_timestamp,
                         (unsigned long long)h.begin_physical_offset, (unsigned long long)h.end_physical_offset,
                         (unsigned long)h.hash_slot_count, (unsigned long)h.index_count);
}

static PyMethodDef key_index_methods[] = {
    FAST("put", key_index_put, "put(key_hash, physical_offset, store_timestamp): False when it is full."),
    FAST("find", key_index_find, "find(key_hash, since, until, ordered, limit): (entries, word)."),
    {"truncate", (PyCFunction)key_index_truncate, METH_O, "Take out the entries at or behind an offset of the log."},
    {"header", (PyCFunction)key_index_header, METH_NOARGS, "The header's six numbers."},
    {"close", (PyCFunction)key_index_close, METH_NOARGS, "Let go of the buffer."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot key_index_slots[] = {
    {Py_tp_doc, "KeyIndex(buffer, slots, entries, writable=True): a file of the key index in a buffer."},
    {Py_tp_new, key_index_new},
    {Py_tp_dealloc, key_index_dealloc},
    {Py_tp_methods, key_index_methods},
    {0, NULL},
};

static PyType_Spec key_index_spec = {"warren.engine._core.KeyIndex", sizeof(KeyIndexObject), 0, Py_TPFLAGS_DEFAULT,
                                     key_index_slots};

/* ---- module ---- */

static PyMethodDef functions[] = {
    FAST("record_size", record_size, "record_size(sys_flag, topic, properties, body): bytes, from the lengths."),
    FAST("topic_record_bytes_max", record_bytes_max, "topic_record_bytes_max(ring_bytes, file_bytes): of the largest record that a log takes."),
    FAST("record_encode", record_encode, "One record of the commit log."),
    {"record_blank", record_blank, METH_O, "The blank record for the rest of a file."},
    FAST("record_scan", record_scan, "record_scan(buffer, at, position, checks): (what, size, word, fields or None)."),
    {"properties_encode", properties_encode, METH_O, "The bytes of a dict of str."},
    {"properties_decode", properties_decode, METH_O, "The dict of properties."},
    {"properties_known", properties_known, METH_O, "(list of keys, TAGS or None, UNIQ_KEY or None)."},
    FAST("property_value", property_value, "property_value(properties, name): its value, or None."),
    {"property_reserved", property_reserved, METH_O, "Whether a property's name has a meaning of its own."},
    {"text_good", text_good, METH_O, "Whether bytes may be a topic, name or value."},
    {"tags_code", tags_code, METH_O, "Java's hashCode, sign-extended."},
    FAST("key_hash", key_hash, "key_hash(topic, key): hash of `topic#key` in the key index."),
    FAST("unit_put", unit_put, "unit_put(units, n, physical_offset, size, tags_code)."),
    FAST("unit_get", unit_get, "unit_get(units, n): (physical_offset, size, tags_code), or None."),
    {"message_host", message_host, METH_O, "message_host(node): the host of what a node stores."},
    FAST("message_id", message_id, "message_id(store_host, physical_offset): the id."),
    {"message_id_parse", message_id_parse, METH_O, "(store_host, physical_offset) of an id."},
    {NULL, NULL, 0, NULL},
};

int wr_bind_topics(PyObject *module) {
    if (PyModule_AddFunctions(module, functions) < 0) return -1;
    PyObject *type = PyType_FromSpec(&key_index_spec);
    if (!type) return -1;
    int result = PyModule_AddObjectRef(module, "KeyIndex", type);
    Py_DECREF(type);
    return result;
}
