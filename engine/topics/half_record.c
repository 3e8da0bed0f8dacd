/* Records of half messages. Declared in topics/half_record.h. */
#include "topics/half_record.h"
#include "topics/properties.h"
#include "topics/real_place.h"
#include "topics/system_topics.h"
#include <assert.h>

/* What stands in such a record beside what the publisher gave it. */
static const char *const own[] = {"TRAN_MSG", "REAL_TOPIC", "REAL_QID"};

uint32_t wr_half_more(uint32_t topic_n, uint32_t queue) {
    return WR_PROPERTY_BYTES("TRAN_MSG") + 4 + wr_real_place_bytes(topic_n, queue);
}

uint32_t wr_half_put(uint8_t *to, const char *topic, uint32_t topic_n, uint32_t queue) {
    const uint32_t bytes = wr_half_more(topic_n, queue);
    uint32_t n = wr_properties_put(to, bytes, "TRAN_MSG", 8, "true", 4);
    n += wr_real_place_put(to + n, topic, topic_n, queue);
    assert(n == bytes);
    return n;
}

static inline uint32_t transaction_of(const wr_record *record) { return record->sys_flag & WR_SYS_TRANSACTION_MASK; }

static bool is_of(const uint8_t *bytes, const wr_record *record, const char *topic) {
    return record->topic_length == strlen(topic) && !memcmp(bytes + record->topic_at, topic, record->topic_length);
}

bool wr_half_is(const uint8_t *bytes, const wr_record *record) {
    return transaction_of(record) == WR_SYS_PREPARED && record->flag && is_of(bytes, record, WR_HALF_TOPIC);
}

uint32_t wr_half_properties(const uint8_t *bytes, const wr_record *record, uint8_t *to) {
    return wr_properties_without(bytes, record, own, sizeof own / sizeof *own, to);
}

uint32_t wr_half_kind(const uint8_t *bytes, const wr_record *record) {
    if (!record->flag) return 0; /* of a foreign log */
    if (transaction_of(record) == WR_SYS_COMMIT) return wr_system_is(bytes + record->topic_at, record->topic_length) ? 0 : WR_HALF_COMMITTED;
    if (transaction_of(record) != WR_SYS_ROLLBACK) return 0;
    return is_of(bytes, record, WR_OP_HALF_TOPIC) ? WR_HALF_ROLLED_BACK : is_of(bytes, record, WR_PUT_ASIDE_TOPIC) ? WR_HALF_PUT_ASIDE : 0;
}
