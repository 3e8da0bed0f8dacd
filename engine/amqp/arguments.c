#include "amqp/arguments.h"
#include "kernel/bytes.h"
#include <stddef.h>

#define CUT ((wr_amqp_wrong){"it ends before its last argument does", WR_AMQP_FRAME_ERROR})

/* One value that is no bit. */
static wr_amqp_wrong read_value(uint8_t type, const uint8_t **at, const uint8_t *end, wr_amqp_value *value) {
    static const uint8_t numbers[] = {[WR_AMQP_OCTET] = 1, [WR_AMQP_SHORT] = 2, [WR_AMQP_LONG] = 4, [WR_AMQP_LONGLONG] = 8,
                                      [WR_AMQP_SHORTSTR] = 1, [WR_AMQP_LONGSTR] = 4, [WR_AMQP_TABLE] = 4, [WR_AMQP_TIMESTAMP] = 8};
    const uint32_t n = numbers[type];
    if (end - *at < n) return CUT;
    uint64_t number = 0;
    for (uint32_t i = 0; i < n; i++) number = number << 8 | (*at)[i];
    *at += n;
    *value = (wr_amqp_value){.number = number};
    if (type != WR_AMQP_SHORTSTR && type != WR_AMQP_LONGSTR && type != WR_AMQP_TABLE) return (wr_amqp_wrong){NULL, 0};
    if ((uint64_t)(end - *at) < number) return CUT;
    *value = (wr_amqp_value){.bytes = *at, .n = (uint32_t)number};
    *at += number;
    return type == WR_AMQP_TABLE ? wr_amqp_table_check(value->bytes, value->n, true) : (wr_amqp_wrong){NULL, 0};
}

wr_amqp_wrong wr_amqp_arguments_read(const wr_amqp_method *method, const uint8_t *at, uint32_t n, wr_amqp_value values[WR_AMQP_ARGUMENTS_MAX]) {
    const uint8_t *end = at + n;
    uint32_t bit = 0;
    uint8_t bits = 0;
    for (uint32_t i = 0; i < method->arguments_n; i++) {
        const uint8_t type = method->arguments[i] & (uint8_t)~WR_AMQP_RESERVED;
        if (type != WR_AMQP_BIT) {
            const wr_amqp_wrong wrong = read_value(type, &at, end, &values[i]);
            if (wrong.text) return wrong;
            bit = 0;
            continue;
        }
        if (!(bit % 8)) {
            if (at == end) return CUT;
            bits = *at++;
        }
        values[i] = (wr_amqp_value){.number = bits >> bit++ % 8 & 1};
    }
    if (at != end) return (wr_amqp_wrong){"it goes on behind its last argument", WR_AMQP_FRAME_ERROR};
    return (wr_amqp_wrong){NULL, 0};
}

wr_amqp_wrong wr_amqp_properties_read(const uint8_t *at, uint32_t n, wr_amqp_properties *properties) {
#define TYPE(name, type) type,
    static const uint8_t types[] = {WR_AMQP_PROPERTIES(TYPE)};
    const uint8_t *end = at + n;
    if (n < 2) return (wr_amqp_wrong){"the properties have no flags", WR_AMQP_INTERNAL_ERROR};
    properties->flags = wr_get16(at);
    if (properties->flags & 3) return (wr_amqp_wrong){"the properties have flags of which none is known", WR_AMQP_INTERNAL_ERROR};
    at += 2;
    for (int i = 0; i < WR_AMQP_PROPERTIES_N; i++) {
        if (!wr_amqp_has(properties, i)) continue;
        wr_amqp_wrong wrong = read_value(types[i], &at, end, &properties->values[i]);
        if (!wrong.text) continue;
        if (wrong.code == WR_AMQP_FRAME_ERROR) wrong.code = WR_AMQP_INTERNAL_ERROR; /* no frame of a method: RabbitMQ says nothing */
        return wrong;
    }
    if (at != end) return (wr_amqp_wrong){"the properties go on behind the last one", WR_AMQP_INTERNAL_ERROR};
    return (wr_amqp_wrong){NULL, 0};
}
