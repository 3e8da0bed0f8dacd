#include "amqp/tables.h"
#include "kernel/bytes.h"

/* Bytes of a value behind its tag, and of those that have a length in front. */
#define LONG 16
static const uint8_t BYTES[256] = {
    ['t'] = 1, ['b'] = 1, ['B'] = 1, ['s'] = 2, ['u'] = 2, ['I'] = 4,    ['i'] = 4,    ['l'] = 8,    ['L'] = 8,
    ['T'] = 8, ['f'] = 4, ['d'] = 8, ['D'] = 5, ['V'] = 0, ['S'] = LONG, ['x'] = LONG, ['A'] = LONG, ['F'] = LONG};

int wr_amqp_field_next(wr_amqp_span *left, bool named, wr_amqp_field *field) {
    const uint8_t *at = left->at;
    if (at == left->end) return 0;
    field->name = NULL;
    field->name_n = 0;
    if (named) {
        field->name_n = *at++;
        if (left->end - at < field->name_n) return -1;
        field->name = at;
        at += field->name_n;
        if (at == left->end) return -1;
    }
    field->tag = *at++;
    uint32_t n = BYTES[field->tag];
    if (!n && field->tag != 'V') return -1;
    if (n == LONG) {
        if (left->end - at < 4) return -1;
        n = wr_get32(at);
        at += 4;
    }
    if ((uint64_t)(left->end - at) < n) return -1;
    field->value = at;
    field->n = n;
    left->at = at + n;
    return 1;
}

#define TEXT_OF(number) #number
#define TEXT(number) TEXT_OF(number)

static wr_amqp_wrong check(wr_amqp_span left, bool named, int depth) {
    wr_amqp_field field;
    int found;
    while ((found = wr_amqp_field_next(&left, named, &field)) > 0) {
        if (field.tag != 'F' && field.tag != 'A') continue;
        if (!depth) return (wr_amqp_wrong){"a table is nested too deeply: its values may lie " TEXT(WR_AMQP_DEPTH_MAX) " deep", WR_AMQP_SYNTAX_ERROR};
        const wr_amqp_wrong wrong = check((wr_amqp_span){field.value, field.value + field.n}, field.tag == 'F', depth - 1);
        if (wrong.text) return wrong;
    }
    if (!found) return (wr_amqp_wrong){NULL, 0};
    return (wr_amqp_wrong){"a table has a field that does not end where it should, or has an unknown type", WR_AMQP_INTERNAL_ERROR};
}

wr_amqp_wrong wr_amqp_table_check(const uint8_t *at, uint64_t n, bool named) {
    return check((wr_amqp_span){at, at + n}, named, WR_AMQP_DEPTH_MAX);
}
