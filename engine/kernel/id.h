/* The id of a message: 16 bytes, any value. Its hash, and the parts of an id that Warren has counted. */
#ifndef WR_ID_H
#define WR_ID_H
#include "kernel/bytes.h"
#include <stdbool.h>

/* Hash of an id: murmur3's finalizer over both halves. The low bits of the id's last byte only change the low bits of the hash:
 * counted ids (client epoch, counter) come in groups of neighbours, which share pages and their translations; all other
 * bits of the id change all bits of the hash. */
#define WR_HASH_GROUP 15u
static inline uint64_t wr_id_hash(const uint8_t id[16]) {
    uint64_t a, b;
    memcpy(&a, id, 8);
    memcpy(&b, id + 8, 8);
    uint64_t low = b >> 56 & WR_HASH_GROUP;
    b ^= low << 56;
    uint64_t h = a ^ ((b << 31 | b >> 33) * 0x9e3779b97f4a7c15ull);
    h ^= h >> 33;
    h *= 0xff51afd7ed558ccdull;
    h ^= b;
    h ^= h >> 33;
    h *= 0xc4ceb9fe1a85ec53ull;
    h ^= h >> 33;
    return h ^ low;
}

/* Ids made by Warren: client epoch:8 | counter:8, big-endian; the epoch is the node's epoch (small) << 32 | n. Any id may look like
 * one, and be treated as one; a random id hardly ever does. */
static inline uint64_t wr_id_epoch(const uint8_t id[16]) { return wr_get64(id); }
static inline uint64_t wr_id_counter(const uint8_t id[16]) { return wr_get64(id + 8); }
static inline bool wr_id_counted(const uint8_t id[16]) { return !(wr_get64(id) >> 52) && !(wr_get64(id + 8) >> 48); }
#endif
