/* Topics that are no program's. */
#ifndef WR_TOPICS_SYSTEM_TOPICS_H
#define WR_TOPICS_SYSTEM_TOPICS_H
#include "topics/formats.h"
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

/* Is a topic one of the system's: Warren's own, or one that RocketMQ keeps messages in before they come to theirs? */
static inline bool wr_system_is(const uint8_t *topic, uint32_t n) {
    static const char *const names[] = {WR_SCHEDULE_TOPIC, WR_TIMER_TOPIC, WR_HALF_TOPIC, WR_OP_HALF_TOPIC, WR_PUT_ASIDE_TOPIC};
    if (n >= sizeof WR_SYSTEM_TOPICS - 1 && !memcmp(topic, WR_SYSTEM_TOPICS, sizeof WR_SYSTEM_TOPICS - 1)) return true;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (n == strlen(names[i]) && !memcmp(topic, names[i], n)) return true;
    return false;
}
#endif
