/* AMQP's values as Python's, and back: tables, arguments, properties. */
#ifndef WR_BINDING_AMQP_VALUES_H
#define WR_BINDING_AMQP_VALUES_H
#include "amqp/arguments.h"
#include "binding/memory.h"

/* A table that was checked (`named`), or an array, as a dict or a list. `plain`: of None, bool, int, float, str, bytes, list and dict alone;
 * else values that are of no type of Python's are of those of engine/amqp/values.py. New reference. */
PyObject *wr_amqp_table_give(const uint8_t *at, uint32_t n, bool named, bool plain);
/* The arguments of a method that are not reserved, as a tuple. NULL with UnicodeDecodeError: a short string is not UTF-8. New reference. */
PyObject *wr_amqp_arguments_give(const wr_amqp_method *method, const wr_amqp_value *values);
/* Are all short strings of a method UTF-8? 0, -1 with an exception (UnicodeDecodeError: not all). */
int wr_amqp_texts_check(const wr_amqp_method *method, const wr_amqp_value *values);

/* Behind what is there: the arguments of a method, from a tuple without the reserved ones. 0, -1 with an exception (UsageError). */
int wr_amqp_arguments_put(wr_memory *to, const wr_amqp_method *method, PyObject *arguments);
/* A short string, with its length. 0, -1. */
int wr_amqp_short_put(wr_memory *to, PyObject *text, const char *what);
int wr_amqp_put(wr_memory *to, const void *bytes, uint64_t n);
int wr_amqp_number_put(wr_memory *to, uint64_t number, int bytes);
#endif
