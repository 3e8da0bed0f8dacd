/* CRC-32 (IEEE 802.3, as in zlib and java.util.zip): the checksum of the bodies in a topic's commit log. Everything
 * else of Warren has CRC32C (kernel/frame.h). */
#ifndef WR_CRC32_H
#define WR_CRC32_H
#include <stddef.h>
#include <stdint.h>

/* `seed` is the CRC of what went before (0 at the start). */
uint32_t wr_crc32(uint32_t seed, const void *bytes, size_t n);
/* memcpy and CRC-32 of the same bytes in one pass: each byte is read once, so the copy has this CRC, whoever changes
 * the source. */
uint32_t wr_copy_crc32(uint32_t seed, void *to, const void *from, size_t n);
/* The same without the processor's instruction (`to` may be NULL): what runs where it is missing, and the tests'
 * oracle. */
uint32_t wr_crc32_table(uint32_t seed, void *to, const void *from, size_t n);
/* For tests, and while nobody computes one: what of the processor is used at most: 0 nothing, 1 an instruction that multiplies one block,
 * 2 one that multiplies four. Returns what there is. */
int wr_crc32_use(int most);
#endif
