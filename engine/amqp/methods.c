/* The methods of AMQP by their ids. */
#include "amqp/methods.h"
#include "amqp/arguments.h"
#include <stddef.h>

#define ROW(id, name, content, client, server, n, ...) {id, name, content, client, server, n, {__VA_ARGS__}},
static const wr_amqp_method METHODS[] = {WR_AMQP_METHODS(ROW)}; /* in the order of their ids */
_Static_assert(sizeof METHODS / sizeof *METHODS == WR_AMQP_METHODS_N, "methods");

const wr_amqp_method *wr_amqp_method_of(uint32_t id) {
    uint32_t from = 0, end = WR_AMQP_METHODS_N;
    while (from < end) {
        const uint32_t middle = (from + end) / 2;
        if (METHODS[middle].id == id) return &METHODS[middle];
        if (METHODS[middle].id < id) from = middle + 1;
        else end = middle;
    }
    return NULL;
}
