/* The type Position: where a message of a topic lies. */
#ifndef WR_BINDING_POSITION_H
#define WR_BINDING_POSITION_H
#include "binding/state.h"
#include "topics/formats.h"

/* New reference. `host`: the store host of the log's records, 8 bytes. */
PyObject *wr_position_new(uint32_t queue, uint64_t offset, uint64_t physical_offset, const uint8_t host[WR_HOST_V4_SIZE]);
#endif
