/* The type AmqpReader: what a client of the gateway sends, as methods and runs of messages.
 *
 * A run is what its channel published with the same exchange, routing key and flags; messages of other channels may lie between them, but
 * no method: then what comes behind it is another run. So the order of a channel is kept, and a method finds done what was sent before.
 *
 * Invariants
 *   Properties that are handed out were checked; equal ones that follow each other are one object.
 *   A body is copied once.
 *   Arguments with a table that has fields are checked, and stay the bytes that came: as objects they need up to 33 times as much
 *   memory, so amqp_arguments makes these when it is the method's turn. */
#include "amqp/frames.h"
#include "binding/amqp_values.h"
#include "binding/arguments.h"
#include "binding/session.h"
#include <malloc.h>

#define RUNS 16              /* that are open at a time */
#define ARGUMENTS_KEPT 520   /* no basic.publish has more */
#define PROPERTIES_KEPT 1024 /* from one call to the next */
#define BODY_APART (256 << 10) /* bytes of a body that is a mapping of its own when memory is short, and of free memory that stays */
#define BODY_USUAL (32 << 20)  /* else: the most that malloc takes */
#define ASSEMBLING 16        /* bodies of the largest size that may be begun at a time */

typedef struct {
    PyObject_HEAD
    wr_amqp_reader r;
    PyObject *properties; /* the last ones; NULL: none */
    PyObject *heartbeat;
} ReaderObject;

/* One that goes on. What it points to is the list of events'. */
typedef struct {
    uint16_t channel;
    uint32_t arguments_n;
    const uint8_t *arguments;
    PyObject *properties, *bodies;
} run;

typedef struct {
    PyObject *events;
    run runs[RUNS];
    uint32_t runs_n;
    bool kept_used;
    uint8_t kept[ARGUMENTS_KEPT]; /* arguments of a run that do not lie in the input */
} reading;

static void *body_make(uint64_t n, uint8_t **bytes) {
    PyObject *body = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)n);
    if (body) *bytes = (uint8_t *)PyBytes_AS_STRING(body);
    else PyErr_Clear();
    return body;
}

static void body_drop(void *body) { Py_DECREF((PyObject *)body); }

static const wr_amqp_bodies BODIES = {body_make, body_drop};

/* ---- events ---- */

/* Takes `made`. */
static int note(reading *now, PyObject *made) {
    const int wrong = made ? PyList_Append(now->events, made) : -1;
    Py_XDECREF(made);
    return wrong;
}

static int note_wrong(reading *now, const wr_amqp_event *event) {
    const unsigned class = event->method >> 16, method = event->method & 0xffff;
    if (event->kind == WR_AMQP_REFUSED)
        return note(now, Py_BuildValue("(iiisII)", WR_AMQP_REFUSED, event->channel, event->code, event->text, class, method));
    return note(now, Py_BuildValue("(iisIIi)", WR_AMQP_FAULT, event->code, event->text, class, method, event->channel));
}

/* The exception that is set is a text that is no UTF-8: a fault. Else -1. */
static int note_not_utf8(ReaderObject *self, reading *now, wr_amqp_event *event) {
    if (!PyErr_ExceptionMatches(PyExc_UnicodeDecodeError)) return -1;
    PyErr_Clear();
    wr_amqp_fault(&self->r, event, WR_AMQP_FRAME_ERROR, 0, event->channel, "Malformed UTF-8 in shortstr");
    return note_wrong(now, event);
}

/* The arguments of a method are bad: *event becomes a fault. */
static void bad_arguments(ReaderObject *self, wr_amqp_event *event, const wr_amqp_method *method, wr_amqp_wrong wrong) {
    char text[WR_AMQP_BYTES_ROOM];
    if (wrong.code == WR_AMQP_FRAME_ERROR && event->arguments_n <= WR_AMQP_BYTES_SHOWN)
        wr_amqp_fault(&self->r, event, wrong.code, event->method, event->channel, "cannot decode %s",
                      wr_amqp_bytes_text(text, event->arguments, event->arguments_n));
    else
        wr_amqp_fault(&self->r, event, wrong.code, event->method, event->channel, "cannot decode %s: %s", method->name, wrong.text);
}

/* Has a method a table with fields among its arguments? */
static bool has_table(const wr_amqp_method *method, const wr_amqp_value *values) {
    for (int i = 0; i < method->arguments_n; i++)
        if ((method->arguments[i] & (uint8_t)~WR_AMQP_RESERVED) == WR_AMQP_TABLE && values[i].n) return true;
    return false;
}

static int note_method(ReaderObject *self, reading *now, wr_amqp_event *event) {
    const wr_amqp_method *method = wr_amqp_method_of(event->method);
    wr_amqp_value values[WR_AMQP_ARGUMENTS_MAX];
    const wr_amqp_wrong wrong = wr_amqp_arguments_read(method, event->arguments, event->arguments_n, values);
    now->runs_n = 0;
    if (wrong.text) {
        bad_arguments(self, event, method, wrong);
        return note_wrong(now, event);
    }
    PyObject *arguments;
    if (!has_table(method, values)) arguments = wr_amqp_arguments_give(method, values);
    else if (wr_amqp_texts_check(method, values)) arguments = NULL;
    else arguments = PyBytes_FromStringAndSize((const char *)event->arguments, event->arguments_n);
    if (!arguments) return note_not_utf8(self, now, event);
    return note(now, Py_BuildValue("(iiIN)", WR_AMQP_METHOD, event->channel, event->method, arguments));
}

/* The properties of a message as bytes, borrowed; NULL: they are bad, and *event has become a fault, or with an exception. */
static PyObject *properties_of(ReaderObject *self, wr_amqp_event *event) {
    PyObject *last = self->properties;
    if (last && (uint32_t)PyBytes_GET_SIZE(last) == event->properties_n && !memcmp(PyBytes_AS_STRING(last), event->properties, event->properties_n)) return last;
    wr_amqp_properties found;
    const wr_amqp_wrong wrong = wr_amqp_properties_read(event->properties, event->properties_n, &found);
    if (wrong.text) {
        wr_amqp_fault(&self->r, event, wrong.code, event->method, event->channel, "cannot decode the properties of a message: %s", wrong.text);
        return NULL;
    }
    PyObject *made = PyBytes_FromStringAndSize((const char *)event->properties, event->properties_n);
    if (made) Py_XSETREF(self->properties, made);
    return made;
}

/* The run of a channel if it goes on with this message, or NULL, and it is over. */
static run *run_of(reading *now, const wr_amqp_event *event) {
    for (uint32_t i = 0; i < now->runs_n; i++) {
        run *found = &now->runs[i];
        if (found->channel != event->channel) continue;
        if (found->arguments_n == event->arguments_n && !memcmp(found->arguments, event->arguments, event->arguments_n)) return found;
        *found = now->runs[--now->runs_n];
        return NULL;
    }
    return NULL;
}

/* Let the messages that follow go on with it, if there is a place for it, and for its arguments. */
static void run_keep(reading *now, const wr_amqp_event *event, run made) {
    if (now->runs_n == RUNS) return;
    if (event->held) {
        if (now->kept_used || event->arguments_n > ARGUMENTS_KEPT) return;
        memcpy(now->kept, event->arguments, event->arguments_n);
        now->kept_used = true;
        made.arguments = now->kept;
    }
    now->runs[now->runs_n++] = made;
}

/* A new run, and its event. 0, -1 with an exception, 1: its arguments are bad, and *event has become a fault. */
static int run_new(ReaderObject *self, reading *now, wr_amqp_event *event, run *made) {
    const wr_amqp_method *method = wr_amqp_method_of(WR_AMQP_BASIC_PUBLISH);
    wr_amqp_value values[WR_AMQP_ARGUMENTS_MAX];
    const wr_amqp_wrong wrong = wr_amqp_arguments_read(method, event->arguments, event->arguments_n, values);
    if (wrong.text) {
        bad_arguments(self, event, method, wrong);
        return 1;
    }
    PyObject *exchange = PyUnicode_DecodeUTF8((const char *)values[1].bytes, values[1].n, NULL);
    PyObject *key = exchange ? PyUnicode_DecodeUTF8((const char *)values[2].bytes, values[2].n, NULL) : NULL;
    if (!key) {
        Py_XDECREF(exchange);
        if (!PyErr_ExceptionMatches(PyExc_UnicodeDecodeError)) return -1;
        PyErr_Clear();
        wr_amqp_fault(&self->r, event, WR_AMQP_FRAME_ERROR, 0, event->channel, "Malformed UTF-8 in shortstr");
        return 1;
    }
    const int flags = (int)(values[3].number | values[4].number << 1);
    PyObject *properties = PyList_New(0), *bodies = properties ? PyList_New(0) : NULL;
    const int failed = !bodies || note(now, Py_BuildValue("(iiOOiOO)", WR_AMQP_PUBLISH, event->channel, exchange, key, flags, properties, bodies));
    Py_DECREF(exchange);
    Py_DECREF(key);
    Py_XDECREF(properties); /* the event has them */
    Py_XDECREF(bodies);
    if (failed) return -1;
    *made = (run){event->channel, event->arguments_n, event->arguments, properties, bodies};
    run_keep(now, event, *made);
    return 0;
}

/* Takes the body. */
static int note_message(ReaderObject *self, reading *now, wr_amqp_event *event) {
    PyObject *body = event->body ? event->body : PyBytes_FromStringAndSize((const char *)event->bytes, (Py_ssize_t)event->bytes_n);
    if (!body) return -1;
    run fresh, *going = run_of(now, event);
    int wrong = 0;
    PyObject *properties = properties_of(self, event);
    if (!properties) wrong = PyErr_Occurred() ? -1 : 1;
    if (!wrong && !going) {
        wrong = run_new(self, now, event, &fresh);
        going = &fresh;
    }
    if (!wrong) wrong = PyList_Append(going->properties, properties) || PyList_Append(going->bodies, body) ? -1 : 0;
    Py_DECREF(body);
    return wrong > 0 ? note_wrong(now, event) : wrong;
}

static int note_event(ReaderObject *self, reading *now, wr_amqp_event *event) {
    switch (event->kind) {
    case WR_AMQP_PUBLISH: return note_message(self, now, event);
    case WR_AMQP_METHOD: return note_method(self, now, event);
    case WR_AMQP_HEARTBEAT: return PyList_Append(now->events, self->heartbeat);
    default: return note_wrong(now, event);
    }
}

/* ---- the type ---- */

static PyObject *reader_new(PyTypeObject *type, PyObject *args, PyObject *keywords) {
    unsigned int frame_max;
    unsigned long long body_max, assembling_max = 0;
    static char *names[] = {"frame_max", "body_max", "assembling_max", NULL};
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "IK|K", names, &frame_max, &body_max, &assembling_max)) return NULL;
    if (body_max > PY_SSIZE_T_MAX / ASSEMBLING / 2) return PyErr_Format(PyExc_OverflowError, "body_max is too large");
    ReaderObject *self = (ReaderObject *)type->tp_alloc(type, 0);
    if (!self) return NULL;
    wr_amqp_reader_open(&self->r, frame_max, body_max, assembling_max ? assembling_max : ASSEMBLING * (body_max ? body_max : 1), &BODIES);
    self->heartbeat = Py_BuildValue("(i)", WR_AMQP_HEARTBEAT);
    if (self->heartbeat) return (PyObject *)self;
    Py_DECREF(self);
    return NULL;
}

static void reader_dealloc(ReaderObject *self) {
    PyTypeObject *type = Py_TYPE(self);
    wr_amqp_reader_close(&self->r);
    Py_XDECREF(self->properties);
    Py_XDECREF(self->heartbeat);
    type->tp_free(self);
    Py_DECREF(type);
}

static PyObject *reader_read(PyObject *op, PyObject *given) {
    ReaderObject *self = (ReaderObject *)op;
    Py_buffer data;
    reading now;
    wr_amqp_event event;
    now.runs_n = 0;
    now.kept_used = false;
    if (PyObject_GetBuffer(given, &data, PyBUF_SIMPLE)) return NULL;
    now.events = PyList_New(0);
    wr_amqp_feed(&self->r, data.buf, (uint64_t)data.len);
    while (now.events && wr_amqp_next(&self->r, &event)) {
        if (!note_event(self, &now, &event)) continue;
        self->r.over = true; /* what was read of it is lost */
        Py_CLEAR(now.events);
    }
    wr_amqp_feed(&self->r, NULL, 0);
    PyBuffer_Release(&data);
    if (self->properties && PyBytes_GET_SIZE(self->properties) > PROPERTIES_KEPT) Py_CLEAR(self->properties);
    return now.events;
}

static PyObject *reader_closing(PyObject *op, PyObject *given) {
    uint64_t channel;
    if (number_of(given, 16, "channel", &channel)) return NULL;
    if (wr_amqp_closing(&((ReaderObject *)op)->r, (uint16_t)channel)) return PyErr_NoMemory();
    Py_RETURN_NONE;
}

static PyObject *reader_frame_max(PyObject *op, void *closure) {
    (void)closure;
    return PyLong_FromUnsignedLong(((ReaderObject *)op)->r.frame_max);
}

static int reader_set_frame_max(PyObject *op, PyObject *value, void *closure) {
    (void)closure;
    uint64_t frame_max;
    if (!value) {
        PyErr_SetString(PyExc_TypeError, "frame_max cannot be deleted");
        return -1;
    }
    if (number_of(value, 32, "frame_max", &frame_max)) return -1;
    ((ReaderObject *)op)->r.frame_max = (uint32_t)frame_max;
    return 0;
}

static PyObject *reader_kept(PyObject *op, void *closure) {
    (void)closure;
    return PyLong_FromUnsignedLongLong(wr_amqp_kept(&((ReaderObject *)op)->r));
}

static PyObject *reader_came(PyObject *op, void *closure) {
    (void)closure;
    return PyLong_FromUnsignedLongLong(wr_amqp_came(&((ReaderObject *)op)->r));
}

static PyObject *reader_leave_out(PyObject *op, PyObject *nothing) {
    (void)nothing;
    wr_amqp_leave_out(&((ReaderObject *)op)->r);
    Py_RETURN_NONE;
}

/* Large bodies on the heap are fast, as their pages are used again; but one that is begun keeps those of all that have ended below it. As
 * mappings of their own they go back to the system when they end. */
static PyObject *reader_bodies_apart(PyObject *nothing, PyObject *on) {
    (void)nothing;
    const int apart = PyObject_IsTrue(on);
    if (apart < 0) return NULL;
#ifdef __GLIBC__
    mallopt(M_MMAP_THRESHOLD, apart ? BODY_APART : BODY_USUAL);
    mallopt(M_TRIM_THRESHOLD, apart ? BODY_APART : BODY_USUAL);
    malloc_trim(0);
#endif
    Py_RETURN_NONE;
}

static PyMethodDef reader_methods[] = {
    {"bodies_apart", reader_bodies_apart, METH_O | METH_STATIC, "bodies_apart(on): whether the memory of large bodies goes back to the system with each of them."},
    {"read", reader_read, METH_O, "read(data): what these bytes complete, as a list of tuples (docs/design/039-amqp-gateway.md)."},
    {"closing", reader_closing, METH_O, "closing(channel): this side has closed it: leave out its messages until channel.close or channel.close-ok comes."},
    {"leave_out", reader_leave_out, METH_NOARGS, "leave_out(): this side closes the connection: drop bodies that are begun, and leave out all others."},
    {NULL, NULL, 0, NULL}};
static PyGetSetDef reader_attributes[] = {
    {"frame_max", reader_frame_max, reader_set_frame_max, "the largest frame that is taken, in bytes", NULL},
    {"kept", reader_kept, NULL, "bytes of frames and messages that have not come as a whole; bodies count as announced", NULL},
    {"came", reader_came, NULL, "the same, of bodies what has come of them", NULL},
    {NULL, NULL, NULL, NULL, NULL}};
static PyType_Slot reader_slots[] = {{Py_tp_new, reader_new},
                                     {Py_tp_dealloc, reader_dealloc},
                                     {Py_tp_methods, reader_methods},
                                     {Py_tp_getset, reader_attributes},
                                     {Py_tp_doc, "AmqpReader(frame_max, body_max, assembling_max=0): the frames of one connection, as its client sends them."},
                                     {0, NULL}};
static PyType_Spec reader_spec = {"warren.engine._core.AmqpReader", sizeof(ReaderObject), 0, Py_TPFLAGS_DEFAULT, reader_slots};

int wr_bind_amqp_reader(PyObject *module) {
    PyObject *type = PyType_FromModuleAndSpec(module, &reader_spec, NULL);
    const int failed = type ? PyModule_AddObjectRef(module, "AmqpReader", type) : -1;
    Py_XDECREF(type);
    return failed;
}
