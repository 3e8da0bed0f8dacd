/* The digest of a key: SipHash-2-4 with 128 bits (Aumasson and Bernstein). Who does not know the secret cannot make two keys with one digest, so it
 * stands for the key. */
#ifndef WR_TOPICS_KEY_DIGEST_H
#define WR_TOPICS_KEY_DIGEST_H
#include <stdint.h>

typedef struct {
    uint64_t a, b;
} wr_digest;

wr_digest wr_key_digest(const uint64_t secret[2], const void *key, uint64_t n);
#endif
