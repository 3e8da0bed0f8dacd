/* AMQP's values as Python's, and back.
 *
 * Invariants
 *   What was decoded and is encoded again is the same bytes, but for what AMQP has several ways to write: true is 1, a name that comes twice
 *   comes once, and a name that is not UTF-8 is written with its escapes.
 *   Nothing is written of a value that has no place: UsageError says what it is. */
#include "binding/amqp_values.h"
#include "amqp/tables.h"
#include "binding/arguments.h"
#include "binding/session.h"
#include "kernel/bytes.h"

#define FIRST_BYTES 256u
#define SHORT_MAX 255

/* ---- to Python ---- */

static PyObject *text_or_bytes(const uint8_t *at, uint32_t n) {
    PyObject *text = PyUnicode_DecodeUTF8((const char *)at, n, NULL);
    if (text || !PyErr_ExceptionMatches(PyExc_UnicodeDecodeError)) return text;
    PyErr_Clear();
    return PyBytes_FromStringAndSize((const char *)at, n);
}

/* A value that Python has no type for; takes `value`. */
static PyObject *tagged(char tag, PyObject *value) {
    if (!value) return NULL;
    const char name[2] = {tag, 0};
    PyObject *module = PyImport_ImportModule("warren.engine.amqp.values"), *classes = module ? PyObject_GetAttrString(module, "CLASSES") : NULL;
    PyObject *class = classes ? PyMapping_GetItemString(classes, name) : NULL, *made = class ? PyObject_CallOneArg(class, value) : NULL;
    Py_XDECREF(class);
    Py_XDECREF(classes);
    Py_XDECREF(module);
    Py_DECREF(value);
    return made;
}

/* Its scale, and 32 bits, which clients take for signed. As the text that decimal.Decimal reads exactly. */
static PyObject *decimal_give(const uint8_t *at, bool plain) {
    char text[32];
    PyOS_snprintf(text, sizeof text, "%ldE-%u", (long)(int32_t)wr_get32(at + 1), at[0]);
    PyObject *made = tagged('D', PyUnicode_FromString(text));
    if (!made || !plain) return made;
    Py_SETREF(made, PyObject_Str(made));
    return made;
}

static PyObject *float_give(const wr_amqp_field *field, bool plain) {
    if (field->n == 8) {
        const uint64_t bits = wr_get64(field->value);
        double number;
        memcpy(&number, &bits, 8);
        return PyFloat_FromDouble(number);
    }
    const uint32_t bits = wr_get32(field->value);
    float number;
    memcpy(&number, &bits, 4);
    PyObject *made = PyFloat_FromDouble((double)number);
    return plain ? made : tagged('f', made);
}

static PyObject *number_give(const wr_amqp_field *field, bool plain) {
    const uint8_t *at = field->value;
    const int64_t long_long = field->n == 8 ? (int64_t)wr_get64(at) : 0;
    PyObject *made = NULL;
    bool own = false;
    switch (field->tag) {
    case 'I': return PyLong_FromLong((int32_t)wr_get32(at));
    case 'b': made = PyLong_FromLong((int8_t)at[0]); break;
    case 'B': made = PyLong_FromLong(at[0]); break;
    case 's': made = PyLong_FromLong((int16_t)wr_get16(at)); break;
    case 'u': made = PyLong_FromLong(wr_get16(at)); break;
    case 'i': made = PyLong_FromUnsignedLong(wr_get32(at)); break;
    case 'T': made = PyLong_FromUnsignedLongLong(wr_get64(at)); break;
    default:
        own = field->tag == 'l' && long_long != (int32_t)long_long;
        made = PyLong_FromLongLong(long_long);
    }
    return plain || own ? made : tagged((char)field->tag, made);
}

static PyObject *field_give(const wr_amqp_field *field, bool plain) {
    switch (field->tag) {
    case 'S': {
        PyObject *made = text_or_bytes(field->value, field->n);
        return made && !plain && PyBytes_CheckExact(made) ? tagged('S', made) : made;
    }
    case 'x': return PyBytes_FromStringAndSize((const char *)field->value, field->n);
    case 't': return PyBool_FromLong(field->value[0]);
    case 'V': Py_RETURN_NONE;
    case 'F':
    case 'A': return wr_amqp_table_give(field->value, field->n, field->tag == 'F', plain);
    case 'D': return decimal_give(field->value, plain);
    case 'd':
    case 'f': return float_give(field, plain);
    default: return number_give(field, plain);
    }
}

PyObject *wr_amqp_table_give(const uint8_t *at, uint32_t n, bool named, bool plain) {
    PyObject *made = named ? PyDict_New() : PyList_New(0);
    wr_amqp_span left = {at, at + n};
    wr_amqp_field field;
    while (made && wr_amqp_field_next(&left, named, &field) > 0) {
        PyObject *value = field_give(&field, plain);
        PyObject *name = value && named ? PyUnicode_DecodeUTF8((const char *)field.name, field.name_n, "backslashreplace") : NULL;
        if (!value || (named && !name) || (named ? PyDict_SetItem(made, name, value) : PyList_Append(made, value))) Py_CLEAR(made);
        Py_XDECREF(name);
        Py_XDECREF(value);
    }
    return made;
}

static PyObject *value_give(uint8_t type, const wr_amqp_value *value) {
    switch (type) {
    case WR_AMQP_BIT: return PyBool_FromLong((long)value->number);
    case WR_AMQP_SHORTSTR: return PyUnicode_DecodeUTF8((const char *)value->bytes, value->n, NULL);
    case WR_AMQP_LONGSTR: return PyBytes_FromStringAndSize((const char *)value->bytes, value->n);
    case WR_AMQP_TABLE: return wr_amqp_table_give(value->bytes, value->n, true, false);
    default: return PyLong_FromUnsignedLongLong(value->number);
    }
}

PyObject *wr_amqp_arguments_give(const wr_amqp_method *method, const wr_amqp_value *values) {
    Py_ssize_t n = 0, at = 0;
    for (int i = 0; i < method->arguments_n; i++) n += !(method->arguments[i] & WR_AMQP_RESERVED);
    PyObject *made = PyTuple_New(n);
    for (int i = 0; made && i < method->arguments_n; i++) {
        if (method->arguments[i] & WR_AMQP_RESERVED) continue;
        PyObject *value = value_give(method->arguments[i], &values[i]);
        if (value) PyTuple_SET_ITEM(made, at++, value);
        else Py_CLEAR(made);
    }
    return made;
}

int wr_amqp_texts_check(const wr_amqp_method *method, const wr_amqp_value *values) {
    for (int i = 0; i < method->arguments_n; i++) {
        if (method->arguments[i] != WR_AMQP_SHORTSTR) continue;
        PyObject *text = PyUnicode_DecodeUTF8((const char *)values[i].bytes, values[i].n, NULL);
        if (!text) return -1;
        Py_DECREF(text);
    }
    return 0;
}

/* ---- from Python ---- */

int wr_amqp_put(wr_memory *to, const void *bytes, uint64_t n) {
    if (wr_memory_have(to, n, FIRST_BYTES)) {
        PyErr_NoMemory();
        return -1;
    }
    if (n) memcpy(to->bytes + to->n, bytes, n);
    to->n += n;
    return 0;
}

int wr_amqp_number_put(wr_memory *to, uint64_t number, int bytes) {
    const uint64_t wire = __builtin_bswap64(number);
    return wr_amqp_put(to, (const uint8_t *)&wire + 8 - bytes, (uint64_t)bytes);
}

/* The bytes of a str, or of bytes; they are the object's. */
static int text_of(PyObject *text, const char *what, const char **bytes, Py_ssize_t *n) {
    if (PyBytes_Check(text)) {
        *bytes = PyBytes_AS_STRING(text);
        *n = PyBytes_GET_SIZE(text);
        return 0;
    }
    if (!PyUnicode_Check(text)) return wr_raise_given("UsageError", text, "%s must be str or bytes", what);
    *bytes = PyUnicode_AsUTF8AndSize(text, n);
    if (*bytes) return 0;
    if (!PyErr_ExceptionMatches(PyExc_UnicodeEncodeError)) return -1;
    PyErr_Clear();
    return wr_raise("UsageError", "%s must be UTF-8: give bytes, or text without lone surrogates", what);
}

int wr_amqp_short_put(wr_memory *to, PyObject *text, const char *what) {
    const char *bytes;
    Py_ssize_t n;
    if (text_of(text, what, &bytes, &n)) return -1;
    if (n > SHORT_MAX) return wr_raise("UsageError", "%s has %zd bytes, and AMQP has room for %d: shorten it", what, n, SHORT_MAX);
    return wr_amqp_number_put(to, (uint64_t)n, 1) || wr_amqp_put(to, bytes, (uint64_t)n) ? -1 : 0;
}

/* What stands from `from` on has its length in the 4 bytes there. 0, -1. */
static int length_put(wr_memory *to, uint64_t from) {
    const uint64_t n = to->n - from - 4;
    if (n > UINT32_MAX) return wr_raise("UsageError", "a table of more than 4 GiB cannot be sent");
    wr_put32(to->bytes + from, (uint32_t)n);
    return 0;
}

static int tag_put(wr_memory *to, char tag) { return wr_amqp_put(to, &tag, 1); }

static int value_put(wr_memory *to, PyObject *value, int depth);

static int long_put(wr_memory *to, char tag, const char *bytes, Py_ssize_t n) {
    if ((uint64_t)n > UINT32_MAX) return wr_raise("UsageError", "a string of more than 4 GiB cannot be sent");
    return tag_put(to, tag) || wr_amqp_number_put(to, (uint64_t)n, 4) || wr_amqp_put(to, bytes, (uint64_t)n) ? -1 : 0;
}

/* A number of `bytes` bytes, which are what is wanted of it if it is signed and lies in its bounds, or unsigned and does. */
static int int_put(wr_memory *to, char tag, PyObject *value, int bytes, bool is_signed) {
    int beyond = 0;
    uint64_t number = 0;
    if (!is_signed) {
        number = PyLong_AsUnsignedLongLong(value);
        if (number == UINT64_MAX && PyErr_Occurred()) {
            if (!PyErr_ExceptionMatches(PyExc_OverflowError)) return -1;
            PyErr_Clear();
            beyond = 1;
        }
        beyond |= bytes < 8 && number >> 8 * bytes;
    } else {
        const long long found = PyLong_AsLongLongAndOverflow(value, &beyond);
        if (found == -1 && PyErr_Occurred()) return -1;
        beyond = beyond || (bytes < 8 && (found < -(1ll << (8 * bytes - 1)) || found >= 1ll << (8 * bytes - 1)));
        number = (uint64_t)found;
    }
    if (beyond) return wr_raise_given("UsageError", value, "a number of AMQP's type %c must fit into %d bytes", tag, bytes);
    return tag_put(to, tag) || wr_amqp_number_put(to, number, bytes) ? -1 : 0;
}

/* A plain int: in 4 bytes, or in 8. */
static int plain_int_put(wr_memory *to, PyObject *value) {
    int beyond;
    const long long number = PyLong_AsLongLongAndOverflow(value, &beyond);
    if (number == -1 && PyErr_Occurred()) return -1;
    const bool narrow = !beyond && number == (int32_t)number;
    return int_put(to, narrow ? 'I' : 'l', value, narrow ? 4 : 8, true);
}

static int float_put(wr_memory *to, char tag, double number) {
    uint64_t wide;
    uint32_t narrow;
    const float single = (float)number;
    memcpy(&wide, &number, 8);
    memcpy(&narrow, &single, 4);
    return tag_put(to, tag) || (tag == 'd' ? wr_amqp_number_put(to, wide, 8) : wr_amqp_number_put(to, narrow, 4)) ? -1 : 0;
}

/* decimal.Decimal: as_tuple() is (sign, digits, exponent). */
static int decimal_put(wr_memory *to, PyObject *value) {
    PyObject *parts = PyObject_CallMethod(value, "as_tuple", NULL), *digits = NULL, *exponent = NULL;
    if (!parts) return -1;
    int64_t number = 0;
    long scale = -1;
    bool fits = PyTuple_Check(parts) && PyTuple_GET_SIZE(parts) == 3;
    if (fits) {
        digits = PyTuple_GET_ITEM(parts, 1);
        exponent = PyTuple_GET_ITEM(parts, 2); /* a letter of what is no number */
        fits = PyTuple_Check(digits) && PyLong_Check(exponent);
    }
    int beyond = 0;
    if (fits) scale = -PyLong_AsLongAndOverflow(exponent, &beyond);
    for (Py_ssize_t i = 0; fits && i < PyTuple_GET_SIZE(digits) && number <= UINT32_MAX; i++) number = 10 * number + PyLong_AsLong(PyTuple_GET_ITEM(digits, i));
    for (; fits && !beyond && scale < 0 && number && number <= UINT32_MAX; scale++) number *= 10; /* 1E+2 */
    if (scale < 0 && !number) scale = 0;
    if (fits && PyLong_AsLong(PyTuple_GET_ITEM(parts, 0))) number = -number;
    fits = fits && !beyond && scale >= 0 && scale <= 255 && number == (int32_t)number;
    Py_DECREF(parts);
    if (PyErr_Occurred()) return -1;
    if (!fits) return wr_raise_given("UsageError", value, "a decimal number of AMQP has 31 bits, and 0 to 255 of its digits behind the point: give it as text");
    return tag_put(to, 'D') || wr_amqp_number_put(to, (uint64_t)scale, 1) || wr_amqp_number_put(to, (uint32_t)number, 4) ? -1 : 0;
}

static int list_put(wr_memory *to, PyObject *list, int depth) {
    if (!depth) return wr_raise("UsageError", "tables are nested too deeply: AMQP's may lie %d deep here", WR_AMQP_DEPTH_MAX);
    PyObject *items = PySequence_Tuple(list); /* a list may change while its elements are looked at */
    if (!items) return -1;
    const uint64_t from = to->n + 1;
    int wrong = tag_put(to, 'A') || wr_amqp_number_put(to, 0, 4);
    for (Py_ssize_t i = 0; !wrong && i < PyTuple_GET_SIZE(items); i++) wrong = value_put(to, PyTuple_GET_ITEM(items, i), depth - 1);
    Py_DECREF(items);
    return wrong || length_put(to, from) ? -1 : 0;
}

/* A table without its tag. */
static int table_put(wr_memory *to, PyObject *table, int depth) {
    if (depth < 0) return wr_raise("UsageError", "tables are nested too deeply: AMQP's may lie %d deep here", WR_AMQP_DEPTH_MAX);
    PyObject *items = PyMapping_Items(table);
    if (!items) return -1;
    const uint64_t from = to->n;
    int wrong = wr_amqp_number_put(to, 0, 4);
    for (Py_ssize_t i = 0; !wrong && i < PyList_GET_SIZE(items); i++) {
        PyObject *name, *value;
        wrong = !PyArg_ParseTuple(PyList_GET_ITEM(items, i), "OO", &name, &value);
        if (!wrong && !PyUnicode_Check(name)) wrong = wr_raise_given("UsageError", name, "names in a table must be str");
        wrong = wrong || wr_amqp_short_put(to, name, "a name in a table") || value_put(to, value, depth);
    }
    Py_DECREF(items);
    return wrong || length_put(to, from) ? -1 : 0;
}

/* One that says its own type: 0 and *tag 0 if it does not. */
static int tag_of(PyObject *value, char *tag) {
    *tag = 0;
    PyObject *found = PyObject_GetAttrString((PyObject *)Py_TYPE(value), "amqp_tag");
    if (!found) {
        if (!PyErr_ExceptionMatches(PyExc_AttributeError)) return -1;
        PyErr_Clear();
        return 0;
    }
    Py_ssize_t n;
    const char *text = PyUnicode_AsUTF8AndSize(found, &n);
    if (text && n == 1) *tag = *text;
    Py_DECREF(found);
    return text ? 0 : -1;
}

static int tagged_put(wr_memory *to, PyObject *value, char tag) {
    switch (tag) {
    case 'b': return int_put(to, tag, value, 1, true);
    case 'B': return int_put(to, tag, value, 1, false);
    case 's': return int_put(to, tag, value, 2, true);
    case 'u': return int_put(to, tag, value, 2, false);
    case 'i': return int_put(to, tag, value, 4, false);
    case 'l':
    case 'L': return int_put(to, tag, value, 8, true);
    case 'T': return int_put(to, tag, value, 8, false);
    case 'f': return float_put(to, tag, PyFloat_AsDouble(value));
    case 'S': return PyBytes_Check(value) ? long_put(to, tag, PyBytes_AS_STRING(value), PyBytes_GET_SIZE(value)) : wr_raise("UsageError", "a LongString is bytes");
    case 'D': return decimal_put(to, value);
    default: return wr_raise_given("UsageError", value, "AMQP has no type %c for this", tag);
    }
}

/* What else Python has, by the name of its class. 1: it is none of these. */
static int other_put(wr_memory *to, PyObject *value) {
    PyObject *module = PyImport_ImportModule("decimal"), *class = module ? PyObject_GetAttrString(module, "Decimal") : NULL;
    int is = class ? PyObject_IsInstance(value, class) : -1;
    Py_XDECREF(class);
    Py_XDECREF(module);
    if (is) return is < 0 ? -1 : decimal_put(to, value);
    if (!PyObject_HasAttrString(value, "timestamp") || !PyObject_HasAttrString(value, "tzinfo")) return 1;
    PyObject *seconds = PyObject_CallMethod(value, "timestamp", NULL), *whole = seconds ? PyNumber_Long(seconds) : NULL;
    const int wrong = !whole || int_put(to, 'T', whole, 8, false);
    Py_XDECREF(seconds);
    Py_XDECREF(whole);
    return wrong ? -1 : 0;
}

static int value_put(wr_memory *to, PyObject *value, int depth) {
    const char *bytes;
    Py_ssize_t n;
    if (value == Py_None) return tag_put(to, 'V');
    if (PyBool_Check(value)) return tag_put(to, 't') || wr_amqp_number_put(to, value == Py_True, 1) ? -1 : 0;
    if (PyUnicode_Check(value)) return text_of(value, "text in a table", &bytes, &n) ? -1 : long_put(to, 'S', bytes, n);
    if (PyLong_CheckExact(value)) return plain_int_put(to, value);
    if (PyBytes_CheckExact(value)) return long_put(to, 'x', PyBytes_AS_STRING(value), PyBytes_GET_SIZE(value));
    if (PyFloat_CheckExact(value)) return float_put(to, 'd', PyFloat_AS_DOUBLE(value));
    if (PyDict_Check(value)) return depth ? (tag_put(to, 'F') ? -1 : table_put(to, value, depth - 1)) : table_put(to, value, -1);
    if (PyList_Check(value) || PyTuple_Check(value)) return list_put(to, value, depth);
    char tag;
    if (tag_of(value, &tag)) return -1;
    if (tag) return tagged_put(to, value, tag);
    if (PyLong_Check(value)) return plain_int_put(to, value);
    if (PyFloat_Check(value)) return float_put(to, 'd', PyFloat_AsDouble(value));
    if (PyObject_CheckBuffer(value)) {
        Py_buffer buffer;
        if (PyObject_GetBuffer(value, &buffer, PyBUF_SIMPLE)) return -1;
        const int wrong = long_put(to, 'x', buffer.buf, buffer.len);
        PyBuffer_Release(&buffer);
        return wrong;
    }
    const int other = other_put(to, value);
    return other > 0 ? wr_raise("UsageError", "a value in a table of AMQP is None, bool, int, float, Decimal, str, bytes, datetime, list or dict, not %s", Py_TYPE(value)->tp_name) : other;
}

static int argument_put(wr_memory *to, uint8_t type, PyObject *value) {
    uint64_t number;
    switch (type) {
    case WR_AMQP_SHORTSTR: return wr_amqp_short_put(to, value, "a short string");
    case WR_AMQP_TABLE:
        if (!PyMapping_Check(value) || PyUnicode_Check(value) || PySequence_Check(value) > PyDict_Check(value)) return wr_raise_given("UsageError", value, "a table must be a dict");
        return table_put(to, value, WR_AMQP_DEPTH_MAX);
    case WR_AMQP_LONGSTR: {
        const char *bytes;
        Py_ssize_t n;
        if (text_of(value, "a long string", &bytes, &n)) return -1;
        if ((uint64_t)n > UINT32_MAX) return wr_raise("UsageError", "a string of more than 4 GiB cannot be sent");
        return wr_amqp_number_put(to, (uint64_t)n, 4) || wr_amqp_put(to, bytes, (uint64_t)n) ? -1 : 0;
    }
    default: {
        const int bytes = type == WR_AMQP_OCTET ? 1 : type == WR_AMQP_SHORT ? 2 : type == WR_AMQP_LONG ? 4 : 8;
        return number_of(value, 8 * bytes, "an argument", &number) || wr_amqp_number_put(to, number, bytes) ? -1 : 0;
    }
    }
}

static int reserved_put(wr_memory *to, uint8_t type) {
    switch (type) {
    case WR_AMQP_OCTET:
    case WR_AMQP_SHORTSTR: return wr_amqp_number_put(to, 0, 1);
    case WR_AMQP_SHORT: return wr_amqp_number_put(to, 0, 2);
    case WR_AMQP_LONGLONG:
    case WR_AMQP_TIMESTAMP: return wr_amqp_number_put(to, 0, 8);
    default: return wr_amqp_number_put(to, 0, 4);
    }
}

int wr_amqp_arguments_put(wr_memory *to, const wr_amqp_method *method, PyObject *arguments) {
    Py_ssize_t wanted = 0, at = 0;
    for (int i = 0; i < method->arguments_n; i++) wanted += !(method->arguments[i] & WR_AMQP_RESERVED);
    if (!PyTuple_Check(arguments) || PyTuple_GET_SIZE(arguments) != wanted) {
        PyErr_Format(PyExc_TypeError, "%s has %zd arguments, and wants them in a tuple", method->name, wanted);
        return -1;
    }
    uint32_t bit = 0;
    for (int i = 0; i < method->arguments_n; i++) {
        const uint8_t type = method->arguments[i] & (uint8_t)~WR_AMQP_RESERVED;
        const bool reserved = type != method->arguments[i];
        PyObject *value = reserved ? NULL : PyTuple_GET_ITEM(arguments, at++);
        if (type != WR_AMQP_BIT) {
            if (reserved ? reserved_put(to, type) : argument_put(to, type, value)) return -1;
            bit = 0;
            continue;
        }
        const int set = reserved ? 0 : PyObject_IsTrue(value);
        if (set < 0 || (!(bit % 8) && wr_amqp_number_put(to, 0, 1))) return -1;
        to->bytes[to->n - 1] |= (uint8_t)(set << bit++ % 8);
    }
    return 0;
}

/* ---- functions of the module ---- */

static PyObject *given_back(wr_memory *to, int wrong) {
    PyObject *made = wrong ? NULL : PyBytes_FromStringAndSize((const char *)to->bytes, (Py_ssize_t)to->n);
    wr_memory_drop(to);
    return made;
}

static PyObject *damaged(const char *text) {
    wr_raise("UsageError", "these are no bytes of AMQP: %s", text);
    return NULL;
}

static PyObject *amqp_table(PyObject *module, PyObject *const *args, Py_ssize_t given) {
    (void)module;
    if (given != 2) WR_ARGUMENTS(1, "data, at=0");
    Py_buffer data;
    uint64_t at = 0;
    if ((given == 2 && number_of(args[1], 63, "at", &at)) || PyObject_GetBuffer(args[0], &data, PyBUF_SIMPLE)) return NULL;
    const uint64_t n = (uint64_t)data.len;
    const uint8_t *bytes = data.buf;
    const char *wrong = NULL;
    PyObject *made = NULL;
    if (at > n || n - at < 4 || n - at - 4 < wr_get32(bytes + at)) wrong = "they end before their table does";
    else wrong = wr_amqp_table_check(bytes + at + 4, wr_get32(bytes + at), true).text;
    if (!wrong) made = wr_amqp_table_give(bytes + at + 4, wr_get32(bytes + at), true, false);
    PyBuffer_Release(&data);
    return wrong ? damaged(wrong) : made;
}

static PyObject *amqp_arguments(PyObject *module, PyObject *const *args, Py_ssize_t given) {
    (void)module;
    if (given != 2) WR_ARGUMENTS(2, "id, data");
    uint64_t id;
    Py_buffer data;
    if (number_of(args[0], 32, "id", &id)) return NULL;
    const wr_amqp_method *method = wr_amqp_method_of((uint32_t)id);
    if (!method) return damaged("there is no such method");
    if (PyObject_GetBuffer(args[1], &data, PyBUF_SIMPLE)) return NULL;
    wr_amqp_value values[WR_AMQP_ARGUMENTS_MAX];
    const wr_amqp_wrong wrong = data.len > UINT32_MAX ? (wr_amqp_wrong){"there are more than 4 GiB", 0}
                                                      : wr_amqp_arguments_read(method, data.buf, (uint32_t)data.len, values);
    PyObject *made = wrong.text ? NULL : wr_amqp_arguments_give(method, values);
    PyBuffer_Release(&data);
    return wrong.text ? damaged(wrong.text) : made;
}

static PyObject *amqp_table_bytes(PyObject *module, PyObject *table) {
    (void)module;
    wr_memory to = {.n = 0};
    return given_back(&to, argument_put(&to, WR_AMQP_TABLE, table));
}

#define NAME(name, type) name,
#define TYPE(name, type) type,
static const char *const NAMES[] = {WR_AMQP_PROPERTIES(NAME)};
static const uint8_t TYPES[] = {WR_AMQP_PROPERTIES(TYPE)};

static PyObject *property_give(int i, const wr_amqp_value *value, bool plain) {
    if (TYPES[i] == WR_AMQP_SHORTSTR) return text_or_bytes(value->bytes, value->n);
    if (TYPES[i] == WR_AMQP_TABLE) return wr_amqp_table_give(value->bytes, value->n, true, plain);
    return PyLong_FromUnsignedLongLong(value->number);
}

static PyObject *amqp_properties(PyObject *module, PyObject *const *args, Py_ssize_t given) {
    (void)module;
    if (given != 2) WR_ARGUMENTS(1, "data, plain=False");
    Py_buffer data;
    if (PyObject_GetBuffer(args[0], &data, PyBUF_SIMPLE)) return NULL;
    const bool plain = given == 2 && args[1] == Py_True;
    wr_amqp_properties found;
    const wr_amqp_wrong wrong =
        data.len > UINT32_MAX ? (wr_amqp_wrong){"there are more than 4 GiB", 0} : wr_amqp_properties_read(data.buf, (uint32_t)data.len, &found);
    PyObject *made = wrong.text ? NULL : PyDict_New();
    for (int i = 0; made && i < WR_AMQP_PROPERTIES_N; i++) {
        if (!wr_amqp_has(&found, i)) continue;
        PyObject *value = property_give(i, &found.values[i], plain);
        if (!value || PyDict_SetItemString(made, NAMES[i], value)) Py_CLEAR(made);
        Py_XDECREF(value);
    }
    PyBuffer_Release(&data);
    return wrong.text ? damaged(wrong.text) : made;
}

static int property_put(wr_memory *to, int i, PyObject *value) {
    return TYPES[i] == WR_AMQP_SHORTSTR ? wr_amqp_short_put(to, value, NAMES[i]) : argument_put(to, TYPES[i], value);
}

static PyObject *amqp_properties_bytes(PyObject *module, PyObject *properties) {
    (void)module;
    if (!PyDict_Check(properties)) return PyErr_Format(PyExc_TypeError, "properties are a dict");
    wr_memory to = {.n = 0};
    uint16_t flags = 0;
    Py_ssize_t known = 0;
    int wrong = wr_amqp_number_put(&to, 0, 2);
    for (int i = 0; !wrong && i < WR_AMQP_PROPERTIES_N; i++) {
        PyObject *value = PyDict_GetItemString(properties, NAMES[i]);
        if (!value) continue;
        known++;
        if (value == Py_None) continue;
        flags |= (uint16_t)(1 << (15 - i));
        Py_INCREF(value);
        wrong = property_put(&to, i, value);
        Py_DECREF(value);
    }
    if (!wrong && known != PyDict_GET_SIZE(properties)) wrong = wr_raise("UsageError", "AMQP has no such property among these: %zd of %zd are known", known, PyDict_GET_SIZE(properties));
    if (!wrong) wr_put16(to.bytes, flags);
    return given_back(&to, wrong);
}

static PyMethodDef functions[] = {
    FAST("amqp_arguments", amqp_arguments, "amqp_arguments(id, data): the arguments of a method that AmqpReader gave as bytes, as a tuple."),
    FAST("amqp_table", amqp_table, "amqp_table(data, at=0): the field table that lies there behind 4 bytes of length, as a dict."),
    {"amqp_table_bytes", amqp_table_bytes, METH_O, "amqp_table_bytes(table): a dict as a field table, with its length."},
    FAST("amqp_properties", amqp_properties, "amqp_properties(data, plain=False): the properties of a content header (flags and values) as a dict."),
    {"amqp_properties_bytes", amqp_properties_bytes, METH_O, "amqp_properties_bytes(properties): a dict as the properties of a content header."},
    {NULL, NULL, 0, NULL},
};

int wr_bind_amqp_values(PyObject *module) { return PyModule_AddFunctions(module, functions); }
