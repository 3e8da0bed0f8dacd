/* Keys that a queue has seen. Declared in queues/keys.h. */
#include "queues/keys.h"
#include "queues/memory.h"
#include "queues/registry.h"

#define KEYS_A_FRAME 2048

bool wr_policy_seen_before(wr_policy *p, const uint8_t *key, uint64_t now) {
    uint64_t a, b;
    while (p->keys_n) { /* what is outside of the window goes */
        const wr_seen *oldest = &p->keys[p->keys_first];
        if (oldest->published + p->o.deduplication_ms > now && p->keys_n < WR_KEYS_MAX) break;
        uint64_t *at = wr_map_find(&p->seen, oldest->a, oldest->b);
        if (at && *at == oldest->published) wr_map_remove(&p->seen, oldest->a, oldest->b);
        p->keys_first = (p->keys_first + 1) % p->keys_size;
        p->keys_n--;
    }
    memcpy(&a, key, 8);
    memcpy(&b, key + 8, 8);
    uint64_t *at = wr_map_find(&p->seen, a, b);
    return at && *at + p->o.deduplication_ms > now;
}

void wr_policy_seen(wr_queue *q, const uint8_t key[WR_KEY_BYTES], uint64_t published, uint64_t now) {
    wr_policy *p = q->policy;
    if (!p || !p->o.deduplication_ms || published + p->o.deduplication_ms <= now || wr_policy_seen_before(p, key, now)) return;
    if (p->keys_n == p->keys_size) {
        uint64_t size = p->keys_size ? 2 * p->keys_size : 64;
        wr_seen *keys = malloc(size * sizeof *keys);
        if (!keys) wr_queue_no_memory();
        for (uint64_t i = 0; i < p->keys_n; i++) keys[i] = p->keys[(p->keys_first + i) % p->keys_size];
        free(p->keys);
        p->keys = keys;
        p->keys_first = 0;
        p->keys_size = size;
    }
    wr_seen *row = &p->keys[(p->keys_first + p->keys_n++) % p->keys_size];
    memcpy(&row->a, key, 8);
    memcpy(&row->b, key + 8, 8);
    row->published = published;
    *wr_map_set(&p->seen, row->a, row->b) = published;
}

static void write_key(uint8_t *row, uint32_t queue, const wr_seen *key) {
    wr_put32(row + WR_SEEN_KEY_AT_QUEUE, queue);
    wr_put64(row + WR_SEEN_KEY_AT_PUBLISHED, key->published);
    memcpy(row + WR_SEEN_KEY_AT_KEY, &key->a, 8);
    memcpy(row + WR_SEEN_KEY_AT_KEY + 8, &key->b, 8);
}

void wr_policy_write_keys(wr_queue_engine *e, uint64_t leave) {
    /* of all queues; beyond it the oldest of a queue are left out */
    uint64_t room = e->o.file_bytes / WR_JOURNAL_KEYS_PART / WR_SEEN_KEY_SIZE;
    for (uint64_t i = 0; i < e->queues.size && room; i++) {
        if (!e->queues.rows[i].used) continue;
        const wr_queue *q = (const wr_queue *)(uintptr_t)e->queues.rows[i].value;
        const wr_policy *p = q->policy;
        uint64_t n = p ? (p->keys_n < room ? p->keys_n : room) : 0;
        room -= n;
        while (n) {
            uint64_t part = n < KEYS_A_FRAME ? n : KEYS_A_FRAME, bytes = wr_frame_bytes(part * WR_SEEN_KEY_SIZE), offset;
            uint8_t *at = wr_log_reserve_here(e->log, bytes, leave, &offset);
            if (!at) return; /* as with the first frame of a file: the older files know */
            uint8_t *row = at + WR_FRAME_HEAD_BYTES;
            for (uint64_t k = 0; k < part; k++, row += WR_SEEN_KEY_SIZE)
                write_key(row, q->id, &p->keys[(p->keys_first + p->keys_n - n + k) % p->keys_size]);
            wr_frame_head head = {.kind = WR_KIND_KEYS, .extra = (uint32_t)part};
            wr_frame_seal(at, &head, part * WR_SEEN_KEY_SIZE, wr_log_look(e->log)->salt);
            wr_log_append(e->log, bytes, false);
            n -= part;
        }
    }
}

uint64_t wr_policy_keys(const wr_queue *q, uint8_t *rows) {
    const wr_policy *p = q->policy;
    uint64_t n = p ? p->keys_n : 0;
    for (uint64_t k = 0; rows && k < n; k++) write_key(rows + k * WR_SEEN_KEY_SIZE, q->id, &p->keys[(p->keys_first + k) % p->keys_size]);
    return n;
}

int wr_policy_replay_keys(wr_queue_engine *e, const uint8_t *rows, uint64_t bytes, uint32_t n) {
    if ((uint64_t)n * WR_SEEN_KEY_SIZE > bytes) return EBADMSG;
    uint64_t now = wr_wall_ms();
    for (; n; n--, rows += WR_SEEN_KEY_SIZE) {
        wr_queue *q = wr_queue_named(e, wr_get32(rows + WR_SEEN_KEY_AT_QUEUE));
        uint64_t published = wr_get64(rows + WR_SEEN_KEY_AT_PUBLISHED);
        if (published >> WR_TIME_BITS) return EBADMSG;
        if (q) wr_policy_seen(q, rows + WR_SEEN_KEY_AT_KEY, published, now);
    }
    return 0;
}
