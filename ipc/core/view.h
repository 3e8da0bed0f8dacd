/* Checked pointers into one client region (System V segment), kept in the private memory of whoever attached it.
 *
 * Nothing in here trusts the region: the geometry comes from the superblock, never from the client's own page, and
 * every position is masked. A blob that does not lie inside the arena gives NULL.
 */
#ifndef WR_VIEW_H
#define WR_VIEW_H
#include "layout.h"
#include "futex.h"

typedef struct {
    uint32_t servers_n;
    uint32_t ring_records;
    uint32_t delivery_slots;
    uint32_t reply_bytes;
    uint64_t arena_bytes;
} wr_geometry;

typedef struct {
    wr_geometry g;
    uint8_t *base;
    wr_client *client;
    wr_link *links;
    wr_command *rings;
    uint8_t *deliveries;
    _Atomic uint32_t *delivery_rings;
    _Atomic uint32_t *handed; /* of each slot: what became of the delivery that was handed out from it last (wr_view_handed) */
    uint8_t *replies;
    uint8_t *arena;
    _Atomic uint32_t *bell; /* of a client that is itself a server: where that sleeps; else NULL */
} wr_view;

static inline uint64_t wr_page_up(uint64_t n) { return (n + WR_PAGE_BYTES - 1) & ~(uint64_t)(WR_PAGE_BYTES - 1); }

static inline uint64_t wr_view_bytes(const wr_geometry *g) {
    return WR_PAGE_BYTES + wr_page_up((uint64_t)g->servers_n * sizeof(wr_link)) +
           wr_page_up((uint64_t)g->servers_n * g->ring_records * sizeof(wr_command)) +
           wr_page_up((uint64_t)g->servers_n * g->delivery_slots * WR_DELIVERY_SLOT_BYTES) +
           wr_page_up((uint64_t)g->servers_n * g->delivery_slots * 4) +
           wr_page_up((uint64_t)g->servers_n * g->delivery_slots * WR_HANDED_BYTES) +
           wr_page_up((uint64_t)g->servers_n * g->reply_bytes) + g->arena_bytes;
}

/* Returns 0, or EINVAL when `bytes` is too small for the geometry or the geometry is not made of powers of two. */
static inline int wr_view_init(wr_view *v, void *base, uint64_t bytes, const wr_geometry *g) {
    if (!g->servers_n || g->servers_n > WR_SERVERS_MAX || (g->ring_records & (g->ring_records - 1)) ||
        (g->delivery_slots & (g->delivery_slots - 1)) || (g->arena_bytes & (g->arena_bytes - 1)) ||
        !g->ring_records || !g->delivery_slots || !g->arena_bytes || bytes < wr_view_bytes(g))
        return EINVAL;
    uint8_t *p = base;
    v->g = *g;
    v->base = p;
    v->client = (wr_client *)p;
    p += WR_PAGE_BYTES;
    v->links = (wr_link *)p;
    p += wr_page_up((uint64_t)g->servers_n * sizeof(wr_link));
    v->rings = (wr_command *)p;
    p += wr_page_up((uint64_t)g->servers_n * g->ring_records * sizeof(wr_command));
    v->deliveries = p;
    p += wr_page_up((uint64_t)g->servers_n * g->delivery_slots * WR_DELIVERY_SLOT_BYTES);
    v->delivery_rings = (_Atomic uint32_t *)p;
    p += wr_page_up((uint64_t)g->servers_n * g->delivery_slots * 4);
    v->handed = (_Atomic uint32_t *)p;
    p += wr_page_up((uint64_t)g->servers_n * g->delivery_slots * WR_HANDED_BYTES);
    v->replies = p;
    p += wr_page_up((uint64_t)g->servers_n * g->reply_bytes);
    v->arena = p;
    v->bell = NULL;
    return 0;
}

/* The geometry of a node's client regions, from its superblock. */
static inline wr_geometry wr_geometry_of(const wr_superblock *s) {
    wr_geometry g = {s->servers_n, s->ring_records, s->delivery_slots, s->reply_bytes, s->arena_bytes};
    return g;
}

/* Servers below it are stores and queue workers. Twin of Superblock.queue_workers. */
static inline uint32_t wr_workers_end(const wr_superblock *s) { return s->topic_server ? s->topic_server : s->servers_n; }

static inline wr_server *wr_superblock_server(wr_superblock *s, uint32_t server) {
    return (wr_server *)((uint8_t *)s + WR_SUPERBLOCK_SERVERS_AT) + server;
}

/* Something was published for the client of this view. */
static inline void wr_view_wake(const wr_view *v) {
    wr_bell_ring(&v->client->waiting);
    if (v->bell) wr_bell_ring(v->bell);
}

static inline wr_slot *wr_superblock_slot(wr_superblock *s, uint32_t slot) {
    return (wr_slot *)((uint8_t *)s + WR_SUPERBLOCK_SLOTS_AT) + slot;
}

static inline wr_command *wr_view_command(const wr_view *v, uint32_t server, uint64_t sequence) {
    return v->rings + (uint64_t)server * v->g.ring_records + (sequence & (v->g.ring_records - 1));
}

static inline void *wr_view_delivery_slot(const wr_view *v, uint32_t server, uint32_t slot) {
    return v->deliveries + ((uint64_t)server * v->g.delivery_slots + (slot & (v->g.delivery_slots - 1))) * WR_DELIVERY_SLOT_BYTES;
}

static inline _Atomic uint32_t *wr_view_delivery_ring(const wr_view *v, uint32_t server, uint64_t position) {
    return v->delivery_rings + (uint64_t)server * v->g.delivery_slots + (position & (v->g.delivery_slots - 1));
}

/* Writer: the client, for whoever counts what lies at it and was handed to nobody. A slot is used again only for a later
 * delivery, so what stands here names the present one, or an older one. In queues with an ack timeout it decides who has
 * the delivery, the client or the worker that takes it back: there both write by compare-and-swap. */
static inline _Atomic uint32_t *wr_view_handed(const wr_view *v, uint32_t server, uint32_t slot) {
    return v->handed + (uint64_t)server * v->g.delivery_slots + (slot & (v->g.delivery_slots - 1));
}

/* The word of a delivery, without its state; 0 only once in 2^30 deliveries. */
static inline uint32_t wr_handed_mark(uint64_t pushed_at) { return ((uint32_t)pushed_at + 1) << WR_HANDED_BITS; }

/* What a word says of a delivery: WR_HANDED_…, 0: nothing. */
static inline uint32_t wr_handed_state(uint32_t word, uint32_t mark) {
    return word >> WR_HANDED_BITS == mark >> WR_HANDED_BITS ? word & ((1u << WR_HANDED_BITS) - 1) : 0;
}

static inline uint32_t wr_handed_word(uint32_t mark, uint32_t state) {
    return mark >> WR_HANDED_BITS << WR_HANDED_BITS | state;
}

static inline uint8_t *wr_view_reply(const wr_view *v, uint32_t server) {
    return v->replies + (uint64_t)server * v->g.reply_bytes;
}

/* A blob of the arena; NULL when it does not lie inside. A blob never wraps: the client skips to the arena's start. */
static inline uint8_t *wr_view_blob(const wr_view *v, uint64_t position, uint64_t length) {
    uint64_t at = position & (v->g.arena_bytes - 1);
    if (length > v->g.arena_bytes - at) return NULL;
    return v->arena + at;
}
#endif
