/* The hashes of tags and keys: Java's String.hashCode, over the UTF-16 units of a text in UTF-8. */
#ifndef WR_TOPICS_HASH_H
#define WR_TOPICS_HASH_H
#include <stdint.h>

/* The hash of more text; `hash`: of what stands before it (0 at the start), as Java's int without a sign. The text
 * begins and ends between characters. A byte that begins no character counts as U+FFFD; nothing is read outside. */
uint32_t wr_java_hash(uint32_t hash, const void *text, uint64_t n);

/* What a consume queue has of a tag; 0: no tag. */
static inline int64_t wr_tags_code(const void *tag, uint64_t n) { return (int32_t)wr_java_hash(0, tag, n); }

/* The hash of `topic#key` as the key index has it, without making that string: once per topic, then per key. */
static inline uint32_t wr_key_hash_topic(const void *topic, uint64_t n) {
    return wr_java_hash(wr_java_hash(0, topic, n), "#", 1);
}
static inline uint32_t wr_key_hash(uint32_t topic, const void *key, uint64_t n) {
    uint32_t hash = wr_java_hash(topic, key, n);
    if (hash == 0x80000000u) return 0; /* the int that has no absolute value */
    return hash >> 31 ? -hash : hash;
}
#endif
