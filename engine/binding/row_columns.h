/* Columns of rows, as Arrow has them in memory: what a call is given as buffers, checked once and held until its end.
 *
 * A column of texts is given as (ends, bytes, valid): ends are int32, one more than rows, so that row i is bytes[ends[i] … ends[i + 1]);
 * valid has a byte for each row, 0 for a null, or is None. A column of numbers is a buffer of int64, int32 or float64.
 *
 * Invariant
 *   Ends are copied when they are checked: whoever changes the memory meanwhile changes bytes of texts, never where they lie.
 */
#ifndef WR_BINDING_ROW_COLUMNS_H
#define WR_BINDING_ROW_COLUMNS_H
#include "binding/module.h"
#include <stdbool.h>
#include <stdint.h>

typedef struct {
    const uint8_t *bytes;
    uint32_t n;
    bool valid;
} wr_row_text;

typedef struct {
    int32_t *ends; /* NULL: there is no such column */
    Py_buffer bytes, valid;
} wr_row_texts;

/* A buffer of items of one size; buf is NULL when there is no such column. */
typedef Py_buffer wr_row_numbers;

/* Take a column of `rows` rows; `given` is None when there is none. 0, or -1 with an exception; `what`: its name. */
int wr_row_texts_take(PyObject *given, Py_ssize_t rows, const char *what, wr_row_texts *to);
int wr_row_numbers_take(PyObject *given, Py_ssize_t rows, Py_ssize_t item_bytes, const char *what, wr_row_numbers *to);
void wr_row_texts_drop(wr_row_texts *texts);
void wr_row_numbers_drop(wr_row_numbers *numbers);

/* Lists of pairs (name, value): the headers of rows. Given as (ends, valid, names, values, pair_valid, value_is_text). */
typedef struct {
    int32_t *ends; /* of lists, in pairs; NULL: there is no such column */
    wr_row_numbers valid, pair_valid; /* bytes */
    wr_row_texts names, values;
    bool value_is_text;
} wr_row_pairs;

int wr_row_pairs_take(PyObject *given, Py_ssize_t rows, wr_row_pairs *to);
void wr_row_pairs_drop(wr_row_pairs *pairs);

static inline bool wr_row_has(const wr_row_numbers *valid, Py_ssize_t row) { return !valid->buf || ((const uint8_t *)valid->buf)[row]; }

/* The text of a row; of a column that is not there a null. */
static inline wr_row_text wr_row_text_at(const wr_row_texts *t, Py_ssize_t row) {
    if (!t->ends || !wr_row_has(&t->valid, row)) return (wr_row_text){NULL, 0, false};
    return (wr_row_text){(const uint8_t *)t->bytes.buf + t->ends[row], (uint32_t)(t->ends[row + 1] - t->ends[row]), true};
}

/* How the caller numbers the rows, for errors: from a number on, or a buffer of int64. */
typedef struct {
    uint64_t first;
    wr_row_numbers each;
} wr_row_names;

int wr_row_names_take(PyObject *given, Py_ssize_t rows, wr_row_names *to);
/* Say of the exception at hand which row it is about. Returns -1. */
int wr_raise_of_row(const wr_row_names *names, Py_ssize_t row);
#endif
