/* How often a message was tried before. Declared in topics/retried.h. */
#include "topics/retried.h"
#include "kernel/racy.h"

#define DIGITS_MAX 9 /* of what is positive in Java, whatever the digits */

uint32_t wr_retried_times(const uint8_t *properties, uint32_t n) {
    wr_text value;
    uint32_t times = 0;
    if (!wr_properties_find(properties, n, "RECONSUME_TIME", &value) || !value.n || value.n > DIGITS_MAX) return 0;
    for (uint32_t i = 0; i < value.n; i++) {
        if (value.at[i] < '0' || value.at[i] > '9') return 0;
        times = times * 10 + (uint32_t)(value.at[i] - '0');
    }
    return times;
}

uint32_t wr_retried_times_racy(const uint8_t *properties, uint32_t n) {
    static _Thread_local uint8_t copied[WR_PROPERTIES_BYTES_MAX];
    wr_copy_racy(copied, properties, n);
    return wr_retried_times(copied, n);
}
