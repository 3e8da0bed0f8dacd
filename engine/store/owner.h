/* In whose arena the body of a write lies: the `tag` of its command. 0: in the writer's own, else in that of the client
 * with this slot and generation. */
#ifndef WR_STORE_OWNER_H
#define WR_STORE_OWNER_H
#include "kernel/ref.h"
#include "ipc/core/layout.h"

static inline uint64_t wr_owner_tag(uint32_t slot, uint32_t generation) {
    return (uint64_t)generation << 16 | wr_slot_of(slot).plus_one;
}
static inline uint64_t wr_owner_generation(uint64_t tag) { return tag >> 16; }
/* False: nonsense, or the writer's own arena. */
static inline bool wr_owner_slot(uint64_t tag, uint32_t *slot) {
    wr_slot_ref owner = {tag & 0xffff};
    if (!wr_slot_some(owner) || wr_slot_number(owner) >= WR_CLIENT_SLOTS) return false;
    *slot = wr_slot_number(owner);
    return true;
}
#endif
