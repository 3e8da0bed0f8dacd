/* What was appended, and where it lies. Declared in binding/appended.h. */
#include "binding/appended.h"
#include "binding/not_taken.h"
#include "binding/position.h"

wr_appended *wr_appended_one(uint32_t queue, const uint8_t host[WR_HOST_V4_SIZE]) {
    wr_appended *made = PyMem_Malloc(sizeof *made);
    if (!made) {
        PyErr_NoMemory();
        return NULL;
    }
    *made = (wr_appended){.runs_n = 1, .records_n = 1, .one = {.n = 1, .queue = queue}};
    memcpy(made->host, host, sizeof made->host);
    made->runs = &made->one;
    return made;
}

static inline bool is_known(const wr_append_run *run) { return run->answer.result != WR_RESULT_NONE; }

void wr_appended_free(ClientObject *c, wr_appended *appended) {
    if (!appended) return;
    for (uint32_t i = 0; i < appended->runs_n; i++) {
        const wr_append_run *run = &appended->runs[i];
        if (run->sent && !is_known(run)) wr_answers_forget(&c->a.answers, &c->a.port, run->sequence, &run->answer);
    }
    if (appended->runs != &appended->one) PyMem_Free(appended->runs);
    Py_XDECREF(appended->topic);
    PyMem_Free(appended->sizes);
    PyMem_Free(appended->order);
    PyMem_Free(appended);
}

/* A run that was not sent, because the call ended before, or whose command was never taken. */
static bool is_left(const ClientObject *c, const wr_append_run *run) {
    return !is_known(run) && (!run->sent || wr_never_taken(c, c->a.answers.server, run->sequence));
}

static inline uint64_t number_of_record(const wr_appended *appended, uint64_t at) { return appended->order ? appended->order[at] : at; }

static int by_number(const void *a, const void *b) {
    const uint64_t one = *(const uint64_t *)a, other = *(const uint64_t *)b;
    return one < other ? -1 : one > other;
}

/* The numbers of the messages of such runs, in order; PyMem. *n: how many. NULL: there are none, or no memory. */
static uint64_t *left_of(const ClientObject *c, const wr_appended *appended, Py_ssize_t *n) {
    *n = 0;
    for (uint32_t i = 0; i < appended->runs_n; i++)
        if (is_left(c, &appended->runs[i])) *n += (Py_ssize_t)appended->runs[i].n;
    uint64_t *numbers = *n ? PyMem_Malloc((size_t)*n * sizeof *numbers) : NULL, at = 0;
    for (uint32_t i = 0; numbers && i < appended->runs_n; i++) {
        const wr_append_run *run = &appended->runs[i];
        for (uint64_t k = 0; k < run->n && is_left(c, run); k++) numbers[at++] = number_of_record(appended, run->first + k);
    }
    if (numbers) qsort(numbers, (size_t)*n, sizeof *numbers, by_number);
    return numbers;
}

PyObject *wr_appended_untaken(const ClientObject *c, const wr_appended *appended) {
    Py_ssize_t n;
    uint64_t *numbers = left_of(c, appended, &n);
    if (n && !numbers) return PyErr_NoMemory();
    PyObject *list = PyList_New(0);
    for (Py_ssize_t i = 0, next; list && i < n; i = next) {
        for (next = i + 1; next < n && numbers[next] == numbers[next - 1] + 1;) next++;
        PyObject *row = Py_BuildValue("IKn", c->a.answers.server, (unsigned long long)numbers[i], next - i);
        if (!row || PyList_Append(list, row)) Py_CLEAR(list);
        Py_XDECREF(row);
    }
    PyMem_Free(numbers);
    return list;
}

PyObject *wr_appended_left(const ClientObject *c, const wr_appended *appended) {
    Py_ssize_t n;
    uint64_t *numbers = left_of(c, appended, &n);
    PyObject *made = n && !numbers ? PyErr_NoMemory() : wr_numbers_tuple(numbers, n);
    PyMem_Free(numbers);
    return made;
}

/* The answers of all runs, from the ring if nobody has taken them yet. */
static bool take(ClientObject *c, wr_appended *appended) {
    bool usable = c->open && !c->ended && c->forks == wr_module.forks, looked = false;
    for (uint32_t i = 0; i < appended->runs_n; i++) {
        wr_append_run *run = &appended->runs[i];
        if (is_known(run) || is_left(c, run)) continue;
        if (!usable) return false;
        if (!looked) wr_answers_look(&c->a.answers, &c->a.port, false);
        looked = true;
        if (!is_known(run)) wr_answers_take(&c->a.answers, &c->a.port, run->sequence); /* not written yet: durability none */
    }
    return true;
}

static int raise_deleted(const wr_appended *appended) {
    static const char what[] = "was deleted: declare it again; the message was dropped";
    if (appended->topic) return wr_raise("TopicNotFound", "topic %R %s", appended->topic, what);
    return wr_raise("TopicNotFound", "the topic %s", what);
}

static int raise_not_taken(ClientObject *c) {
    uint32_t server = c->a.answers.server;
    bool usable = c->open && !c->ended && c->forks == wr_module.forks;
    if (usable && atomic_load_explicit(&wr_superblock_server(c->a.port.super, server)->error, memory_order_acquire) &&
        wr_hook(c, WR_HOOK_FROZEN, server, ""))
        return -1;
    return wr_raise("StoreError", "the topic worker could not take the message: see warren status");
}

/* Of a node that was stopped: what it did not take. 0: there is none of it. */
static int raise_left(const ClientObject *c, const wr_appended *appended) {
    Py_ssize_t n;
    uint64_t *numbers = left_of(c, appended, &n);
    if (!n) return 0;
    if (!numbers) PyErr_NoMemory();
    else wr_raise_not_taken(appended->many ? numbers : NULL, n, appended->records_n);
    PyMem_Free(numbers);
    return -1;
}

int wr_appended_check(ClientObject *c, wr_appended *appended) {
    if (!take(c, appended)) return wr_raise("PeerLost", "the attachment ended before it was known where this was appended");
    for (uint32_t i = 0; i < appended->runs_n; i++) {
        uint32_t result = appended->runs[i].answer.result;
        if (__builtin_expect(result == WR_RESULT_OK, 1)) continue;
        if (is_left(c, &appended->runs[i])) continue;
        if (result == WR_RESULT_NO) return raise_deleted(appended);
        if (result == WR_RESULT_REFUSED)
            return wr_raise("MessageTooLarge", "the message is larger than a commit of the log can be: split it, or start the node with larger "
                                               "settings topic_ring_bytes and log_file_bytes");
        if (result == WR_RESULT_FULL && appended->half)
            return wr_raise("LimitError", "as many half messages are neither committed nor rolled back as the setting half_messages_max allows, or "
                                          "as there is memory for: finish some (topic.halves() lists them), or start the node with a larger one");
        if (result == WR_RESULT_FULL)
            return wr_raise("LimitError", "as many messages are to come later as the setting delayed_messages_max allows, or as there is memory "
                                          "for: wait until some have come, or start the node with a larger one");
        return raise_not_taken(c);
    }
    return __builtin_expect(c->ended || appended->cut, 0) ? raise_left(c, appended) : 0;
}

static PyObject *list_of(const wr_appended *appended) {
    PyObject *list = PyList_New((Py_ssize_t)appended->records_n);
    for (uint32_t i = 0; list && i < appended->runs_n; i++) {
        const wr_append_run *run = &appended->runs[i];
        const bool numbered = run->answer.offset != UINT64_MAX; /* what comes later has no offset yet */
        uint64_t position = run->answer.position;
        for (uint64_t k = 0; k < run->n; k++) {
            uint64_t at = run->first + k, number = number_of_record(appended, at);
            PyObject *one = wr_position_new(run->queue, numbered ? run->answer.offset + k : UINT64_MAX, position, appended->host);
            if (!one) {
                Py_DECREF(list);
                return NULL;
            }
            PyList_SET_ITEM(list, (Py_ssize_t)number, one);
            position += appended->sizes[at];
        }
    }
    return list;
}

PyObject *wr_appended_value(const wr_appended *appended) {
    if (appended->many) return list_of(appended);
    const wr_append_run *run = appended->runs;
    return wr_position_new(run->queue, run->answer.offset, run->answer.position, appended->host);
}
