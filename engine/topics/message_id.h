/* The id of a message in a topic: its record's store host and physical offset, as upper case hexadecimal digits. */
#ifndef WR_TOPICS_MESSAGE_ID_H
#define WR_TOPICS_MESSAGE_ID_H
#include "topics/formats.h"
#include <stdbool.h>
#include <stdint.h>

#define WR_MESSAGE_ID_CHARS_V4 (2 * (WR_HOST_V4_SIZE + 8)) /* 32 */
#define WR_MESSAGE_ID_CHARS_V6 (2 * (WR_HOST_V6_SIZE + 8)) /* 56 */

#define WR_NODE_BYTES 16

/* The host of what a node stores, from its identity: an address that no machine has (240.0.0.0/4), and a port. It stays the same for
 * as long as the node lives, and two nodes have the same one by chance once in 2^43 pairs. */
void wr_message_host(const uint8_t node[WR_NODE_BYTES], uint8_t host[WR_HOST_V4_SIZE]);

/* Write an id; store_host is as in the record, of 8 or 20 bytes. The characters written; there is no zero behind
 * them. */
uint32_t wr_message_id_put(char *to, const uint8_t *store_host, uint32_t store_host_bytes, uint64_t physical_offset);

typedef struct {
    uint8_t store_host[WR_HOST_V6_SIZE];
    uint32_t store_host_bytes;
    uint64_t physical_offset;
} wr_message_id;

/* Read an id (digits of either case); false: it is none. Whether a record lies there, and has this store host, the
 * log knows. */
bool wr_message_id_parse(const char *text, uint64_t n, wr_message_id *id);
#endif
