/* Big-endian loads and stores of file structures. */
#ifndef WR_BYTES_H
#define WR_BYTES_H
#include <stdint.h>
#include <string.h>

static inline void wr_put16(uint8_t *p, uint16_t v) { v = __builtin_bswap16(v); memcpy(p, &v, 2); }
static inline void wr_put32(uint8_t *p, uint32_t v) { v = __builtin_bswap32(v); memcpy(p, &v, 4); }
static inline void wr_put64(uint8_t *p, uint64_t v) { v = __builtin_bswap64(v); memcpy(p, &v, 8); }
static inline uint16_t wr_get16(const uint8_t *p) { uint16_t v; memcpy(&v, p, 2); return __builtin_bswap16(v); }
static inline uint32_t wr_get32(const uint8_t *p) { uint32_t v; memcpy(&v, p, 4); return __builtin_bswap32(v); }
static inline uint64_t wr_get64(const uint8_t *p) { uint64_t v; memcpy(&v, p, 8); return __builtin_bswap64(v); }
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "shared memory is declared little-endian");
#endif
