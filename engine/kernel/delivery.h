/* The delivery slots of a link, as the engine sees them: each is a wr_delivery, held until it is acked. */
#ifndef WR_DELIVERY_H
#define WR_DELIVERY_H
#include "ipc/core/view.h"
#include "kernel/protocol.h"

_Static_assert(sizeof(wr_delivery) == WR_DELIVERY_SLOT_BYTES, "a delivery fills its slot");

static inline wr_delivery *wr_view_delivery(const wr_view *v, uint32_t server, uint32_t slot) {
    return wr_view_delivery_slot(v, server, slot);
}

/* Where its body lies, WR_LOCATION_… */
static inline uint8_t wr_delivery_location(const wr_delivery *d) { return d->flags >> WR_DELIVERY_LOCATION_SHIFT; }
#endif
