/* What is told of a message that is appended to a topic (key, tag, properties), as bytes of a record: checked, and packed. */
#ifndef WR_BINDING_TOLD_H
#define WR_BINDING_TOLD_H
#include "binding/module.h"
#include "topics/properties.h"

/* Properties that are being packed. */
typedef struct {
    uint8_t bytes[WR_PROPERTIES_BYTES_MAX];
    uint32_t n;
    bool keyed;    /* there is a key; `hash` is of the first */
    uint32_t hash; /* Java's hashCode */
} wr_told;

/* Pack key (None, str, or a list or tuple of str), tag (None or str) and properties (None or a dict of str to str). 0, -1 with an
 * exception. Properties that are bytes were packed by who knows which names may be there. */
int wr_told_pack(wr_told *told, PyObject *key, PyObject *tag, PyObject *properties);

/* Properties that were packed before (topics/properties.h), as they are: no name of them is asked about. */
int wr_told_packed(wr_told *told, const void *properties, uint64_t n);

/* Has a property of this name a meaning of its own in the log, or for RocketMQ? Not KEYS and TAGS. */
bool wr_told_reserved(const char *name);
/* When it comes, behind the rest: packed properties as `later` (bytes; None: it comes at once). 0, -1 with an exception. */
int wr_told_later(wr_told *told, PyObject *later);

/* The queue of `queues_n` that messages with this key go to: as RocketMQ's SelectMessageQueueByHash, |hashCode| mod queues. */
static inline uint32_t wr_told_queue(uint32_t hash, uint32_t queues_n) {
    int64_t code = (int32_t)hash;
    return (uint32_t)((code < 0 ? -code : code) % queues_n);
}
#endif
