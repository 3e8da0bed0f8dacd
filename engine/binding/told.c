/* Key, tag and properties of a message of a topic, packed. Declared in binding/told.h. */
#include "binding/told.h"
#include "binding/session.h"
#include "topics/hash.h"

#define NO_PLACE "must not contain the characters \\x00, \\x01 and \\x02, which separate properties in the log: put it into the body"

/* Names with a meaning of their own in the log (WARREN_MESSAGE: workers/client/carried.py; of messages that come again, or were given up:
 * workers/client/retried.py), or for RocketMQ. */
static const char *const reserved[] = {
    "WARREN_MESSAGE",
    "WARREN_ORIGIN", "WARREN_RETRY", "DLQ_ORIGIN_TOPIC", "DLQ_ORIGIN_MESSAGE_ID", "DLQ_ORIGIN_QUEUE", "DLQ_ORIGIN_OFFSET",
    "DELAY", "WAIT", "RETRY_TOPIC", "REAL_TOPIC", "REAL_QID", "TRAN_MSG", "PGROUP", "MIN_OFFSET", "MAX_OFFSET", "BUYER_ID",
    "ORIGIN_MESSAGE_ID", "TRANSFER_FLAG", "CORRECTION_FLAG", "MQ2_FLAG", "RECONSUME_TIME", "MSG_REGION", "TRACE_ON", "EXTEND_UNIQ_INFO",
    "MAX_RECONSUME_TIMES", "CONSUME_START_TIME", "INSTANCE_ID", "CLUSTER", "INNER_NUM", "INNER_BASE", "DUP_INFO",
    "TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_DELIVER_MS", "TIMER_OUT_MS", "TRAN_PREPARED_QUEUE_OFFSET", "CHECK_IMMUNITY_TIME_IN_SECONDS"};

static int too_long(void) {
    return wr_raise("MessageTooLarge", "keys, tag and properties of a message have %d bytes at most: put more into the body",
                    WR_PROPERTIES_BYTES_MAX);
}

/* The UTF-8 of a str; NULL with an exception. `what`: what it is. */
static const char *text_of(PyObject *object, const char *what, Py_ssize_t *n) {
    if (!PyUnicode_Check(object)) {
        wr_raise_given("UsageError", object, "%s must be a str", what);
        return NULL;
    }
    const char *text = PyUnicode_AsUTF8AndSize(object, n);
    if (!text && PyErr_ExceptionMatches(PyExc_UnicodeEncodeError)) {
        PyErr_Clear();
        wr_raise_given("UsageError", object, "%s must be text that is UTF-8, without lone surrogates", what);
    }
    return text;
}

static int put(wr_told *told, const char *name, Py_ssize_t name_n, const char *value, Py_ssize_t value_n) {
    uint64_t room = sizeof told->bytes - told->n;
    if ((uint64_t)name_n > room || (uint64_t)value_n > room || (uint64_t)name_n + (uint64_t)value_n + 2 > room) return too_long();
    uint32_t bytes = wr_properties_put(told->bytes + told->n, room, name, (uint64_t)name_n, value, (uint64_t)value_n);
    if (!bytes) return 1;
    told->n += bytes;
    return 0;
}

/* One key behind the others in `keys`. */
static int add_key(wr_told *told, PyObject *object, uint8_t *keys, uint32_t *n) {
    Py_ssize_t length;
    const char *text = text_of(object, "a key", &length);
    if (!text) return -1;
    if (!length) return wr_raise("UsageError", "a key must not be empty: a message without one is given no key");
    if (memchr(text, WR_KEY_SEPARATOR, (size_t)length))
        return wr_raise_given("UsageError", object, "a key must not contain a space, which separates the keys of a message (give a list of them)");
    if ((uint64_t)length + 1 > WR_PROPERTIES_BYTES_MAX - *n) return too_long();
    if (!told->keyed) told->hash = wr_java_hash(0, text, (uint64_t)length);
    told->keyed = true;
    if (*n) keys[(*n)++] = WR_KEY_SEPARATOR;
    memcpy(keys + *n, text, (size_t)length);
    *n += (uint32_t)length;
    return 0;
}

static int put_keys(wr_told *told, PyObject *key) {
    uint8_t keys[WR_PROPERTIES_BYTES_MAX];
    uint32_t n = 0;
    if (PyUnicode_Check(key)) {
        if (add_key(told, key, keys, &n)) return -1;
    } else if (PyList_Check(key) || PyTuple_Check(key)) {
        /* No code of the program runs in between: the list stays as it is. */
        for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(key); i++)
            if (add_key(told, PySequence_Fast_GET_ITEM(key, i), keys, &n)) return -1;
    } else {
        return wr_raise_given("UsageError", key, "a key must be a str, or a list of str");
    }
    if (!n) return 0;
    int wrong = put(told, "KEYS", 4, (const char *)keys, n);
    return wrong > 0 ? wr_raise_given("UsageError", key, "a key " NO_PLACE) : wrong;
}

static int put_tag(wr_told *told, PyObject *tag) {
    Py_ssize_t n;
    const char *text = text_of(tag, "a tag", &n);
    if (!text) return -1;
    if (!n) return wr_raise("UsageError", "a tag must not be empty: a message without one is given no tag");
    int wrong = put(told, "TAGS", 4, text, n);
    return wrong > 0 ? wr_raise_given("UsageError", tag, "a tag " NO_PLACE) : wrong;
}

bool wr_told_reserved(const char *name) {
    if (name[0] < 'A' || name[0] > 'Z') return false;
    for (size_t i = 0; i < sizeof reserved / sizeof *reserved; i++)
        if (!strcmp(name, reserved[i])) return true;
    return false;
}

static int check_name(PyObject *name, const char *text, Py_ssize_t n) {
    if (!n) return wr_raise("UsageError", "the name of a property must not be empty");
    if (text[0] < 'A' || text[0] > 'Z') return 0;
    if (!strcmp(text, "KEYS")) return wr_raise("UsageError", "the property KEYS holds the keys of a message: give them as key");
    if (!strcmp(text, "TAGS")) return wr_raise("UsageError", "the property TAGS holds the tag of a message: give it as tag");
    if (wr_told_reserved(text)) return wr_raise("UsageError", "the property %R has a meaning of its own in the log: give it another name", name);
    return 0;
}

int wr_told_packed(wr_told *told, const void *properties, uint64_t n) {
    if (n > sizeof told->bytes - told->n) return too_long();
    memcpy(told->bytes + told->n, properties, n);
    told->n += (uint32_t)n;
    return 0;
}

static int put_properties(wr_told *told, PyObject *properties) {
    PyObject *name, *value;
    if (PyBytes_CheckExact(properties) && wr_properties_good(PyBytes_AS_STRING(properties), (uint64_t)PyBytes_GET_SIZE(properties)))
        return wr_told_packed(told, PyBytes_AS_STRING(properties), (uint64_t)PyBytes_GET_SIZE(properties));
    if (!PyDict_Check(properties)) return wr_raise_given("UsageError", properties, "properties must be a mapping of str to str");
    for (Py_ssize_t at = 0; PyDict_Next(properties, &at, &name, &value);) { /* no code of the program runs in between */
        Py_ssize_t name_n, value_n;
        const char *name_text = text_of(name, "the name of a property", &name_n);
        const char *value_text = name_text ? text_of(value, "the value of a property", &value_n) : NULL;
        if (!value_text || check_name(name, name_text, name_n)) return -1;
        int wrong = put(told, name_text, name_n, value_text, value_n);
        if (wrong > 0) wrong = wr_raise("UsageError", "the property %R and its value " NO_PLACE, name);
        if (wrong) return -1;
    }
    return 0;
}

int wr_told_pack(wr_told *told, PyObject *key, PyObject *tag, PyObject *properties) {
    told->n = 0;
    told->keyed = false;
    if (key != Py_None && put_keys(told, key)) return -1;
    if (tag != Py_None && put_tag(told, tag)) return -1;
    return properties == Py_None ? 0 : put_properties(told, properties);
}

int wr_told_later(wr_told *told, PyObject *later) {
    if (later == Py_None) return 0;
    if (!PyBytes_Check(later) || !wr_properties_good(PyBytes_AS_STRING(later), (uint64_t)PyBytes_GET_SIZE(later))) {
        PyErr_SetString(PyExc_TypeError, "later is packed properties, or None");
        return -1;
    }
    return wr_told_packed(told, PyBytes_AS_STRING(later), (uint64_t)PyBytes_GET_SIZE(later));
}
