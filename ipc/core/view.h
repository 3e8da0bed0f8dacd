/* Checked pointers into one client region (System V segment), kept in the private memory of whoever attached it.
 *
 * Nothing in here trusts the region: the geometry comes from the superblock, never from the client's own page, and
 * every position is masked. A blob that does not lie inside the arena gives NULL. How many delivery slots a client has
 * stands in its row of the superblock, which it may change whenever it likes: it is read once, and what it says is
 * compared with the region's true size.
 */
#ifndef WR_VIEW_H
#define WR_VIEW_H
#include "layout.h"
#include "doorbell.h"
#include "futex.h"

typedef struct {
    uint32_t servers_n;
    uint32_t workers_n; /* servers that deliver: from WR_SERVER_WORKER_FIRST on */
    uint32_t ring_records;
    uint32_t delivery_slots; /* at each of these; 0: the slots are not looked at, whatever their number is */
    uint32_t reply_bytes;
    uint64_t arena_bytes;
} wr_geometry;

typedef struct {
    wr_geometry g;
    uint8_t *base;
    wr_client *client;
    wr_link *links;
    wr_command *rings;
    uint8_t *replies;
    uint8_t *arena;
    uint8_t *slots; /* of the first worker; NULL: not looked at */
    uint64_t slots_bytes; /* of each */
    _Atomic uint32_t *bell; /* of a client that is itself a server: where that sleeps; else NULL */
    wr_doorbell doorbell;   /* of a server's view; else there is none */
} wr_view;

static inline uint64_t wr_page_up(uint64_t n) { return (n + WR_PAGE_BYTES - 1) & ~(uint64_t)(WR_PAGE_BYTES - 1); }

/* Delivery slots | delivery ring (u32 for each) | handed out (u32 for each), of one worker. */
#define WR_SLOT_ALL_BYTES (WR_DELIVERY_SLOT_BYTES + 4u + WR_HANDED_BYTES)

static inline uint64_t wr_view_bytes(const wr_geometry *g) {
    return WR_PAGE_BYTES + wr_page_up((uint64_t)g->servers_n * sizeof(wr_link)) +
           wr_page_up((uint64_t)g->servers_n * g->ring_records * sizeof(wr_command)) +
           wr_page_up((uint64_t)g->servers_n * g->reply_bytes) + g->arena_bytes +
           g->workers_n * wr_page_up((uint64_t)g->delivery_slots * WR_SLOT_ALL_BYTES);
}

/* Returns 0, or EINVAL when `bytes` is too small for the geometry or the geometry is not made of powers of two. */
static inline int wr_view_init(wr_view *v, void *base, uint64_t bytes, const wr_geometry *g) {
    if (!g->servers_n || g->servers_n > WR_SERVERS_MAX || g->workers_n > g->servers_n ||
        (g->ring_records & (g->ring_records - 1)) || (g->delivery_slots & (g->delivery_slots - 1)) ||
        (g->arena_bytes & (g->arena_bytes - 1)) || !g->ring_records || g->delivery_slots > WR_DELIVERY_SLOTS_MAX ||
        !g->arena_bytes || bytes < wr_view_bytes(g))
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
    v->replies = p;
    p += wr_page_up((uint64_t)g->servers_n * g->reply_bytes);
    v->arena = p;
    v->slots = g->delivery_slots ? p + g->arena_bytes : NULL;
    v->slots_bytes = wr_page_up((uint64_t)g->delivery_slots * WR_SLOT_ALL_BYTES);
    v->bell = NULL;
    atomic_init(&v->doorbell.fd, WR_DOORBELL_NONE);
    return 0;
}

/* Servers below it are stores and queue workers. Twin of Superblock.queue_workers. */
static inline uint32_t wr_workers_end(const wr_superblock *s) { return s->topic_server ? s->topic_server : s->servers_n; }

/* The geometry of a node's client regions, from its superblock: of one with the node's number of delivery slots. */
static inline wr_geometry wr_geometry_of(const wr_superblock *s) {
    const uint32_t end = wr_workers_end(s);
    wr_geometry g = {s->servers_n, end > WR_SERVER_WORKER_FIRST ? end - WR_SERVER_WORKER_FIRST : 0, s->ring_records,
                     s->delivery_slots, s->reply_bytes, s->arena_bytes};
    return g;
}

/* For whoever looks at no delivery slots: it need not know how many there are. */
static inline wr_geometry wr_geometry_without_slots(const wr_superblock *s) {
    wr_geometry g = wr_geometry_of(s);
    g.delivery_slots = 0;
    return g;
}

static inline wr_server *wr_superblock_server(wr_superblock *s, uint32_t server) {
    return (wr_server *)((uint8_t *)s + WR_SUPERBLOCK_SERVERS_AT) + server;
}

/* What `waiting` of a client says: threads sleep on it, or an event loop wants to be rung for news of these kinds; and a mark of the
 * thread that said last that it sleeps there. Nobody is woken for a mark; but the server that takes the word takes it, too, so that
 * this thread finds another word than it left, whatever others have said since (tools/model/doorbell.py). */
#define WR_WAITS_THREAD 1u
#define WR_WAITS_LOOP(kind) (2u << (kind))
#define WR_WAITS_MARK_BIT 8 /* the number of the thread, which has 22 bits at most */
/* Kinds of news: words of a link that have risen. */
enum { WR_NEWS_PROCESSED, WR_NEWS_WRITTEN, WR_NEWS_SYNCED, WR_NEWS_HEAD, WR_NEWS_DELIVERY, WR_NEWS_KINDS };
#define WR_NEWS_ALL (WR_WAITS_LOOP(WR_NEWS_KINDS) - WR_WAITS_LOOP(0))

/* Something was published for the client of this view; `news`: WR_WAITS_LOOP of each kind.
 * SYNC waiting: the fence orders the caller's earlier publication before the load of the word. */
static inline void wr_view_tell(wr_view *v, uint32_t news) {
    atomic_thread_fence(memory_order_seq_cst);
    if (atomic_load_explicit(&v->client->waiting, memory_order_relaxed) & (WR_WAITS_THREAD | news)) {
        const uint32_t who = atomic_exchange_explicit(&v->client->waiting, 0, memory_order_acq_rel);
        const bool unreached = who & WR_NEWS_ALL && !wr_doorbell_ring(&v->doorbell);
        /* The loop does not learn that it was taken: it stays said, and who sleeps here is woken for the next news, too. */
        if (unreached) atomic_fetch_or_explicit(&v->client->waiting, who & WR_NEWS_ALL, memory_order_seq_cst);
        if (who & WR_WAITS_THREAD || unreached) wr_futex_wake_all(&v->client->waiting);
    }
    if (v->bell) wr_bell_ring(v->bell);
}

/* This thread is about to sleep on the word: `who`: WR_WAITS_THREAD, or 0, for the case alone that a loop is not reached. Returns what
 * the word has to be still when it does. SYNC waiting: what it waits for is looked at once more after that, and a fence. */
static inline uint32_t wr_client_sleeps(wr_client *client, uint32_t who) {
    const uint32_t mark = (uint32_t)syscall(SYS_gettid) << WR_WAITS_MARK_BIT;
    uint32_t now = atomic_load_explicit(&client->waiting, memory_order_relaxed), next;
    do next = (now & (WR_NEWS_ALL | WR_WAITS_THREAD)) | who | mark;
    while (!atomic_compare_exchange_weak_explicit(&client->waiting, &now, next, memory_order_seq_cst, memory_order_relaxed));
    return next;
}

/* The same as wr_view_tell for news of any kind, trouble for example. */
static inline void wr_view_wake(wr_view *v) { wr_view_tell(v, WR_NEWS_ALL); }

static inline wr_slot *wr_superblock_slot(wr_superblock *s, uint32_t slot) {
    return (wr_slot *)((uint8_t *)s + WR_SUPERBLOCK_SLOTS_AT) + slot;
}

/* The geometry of the region of the client in this slot, as its row says at this moment. */
static inline wr_geometry wr_geometry_of_client(wr_superblock *s, uint32_t slot) {
    wr_geometry g = wr_geometry_of(s);
    const uint32_t own = atomic_load_explicit(&wr_superblock_slot(s, slot)->delivery_slots, memory_order_relaxed);
    if (own) g.delivery_slots = own;
    return g;
}

static inline wr_command *wr_view_command(const wr_view *v, uint32_t server, uint64_t sequence) {
    return v->rings + (uint64_t)server * v->g.ring_records + (sequence & (v->g.ring_records - 1));
}

static inline uint8_t *wr_view_slots(const wr_view *v, uint32_t server) {
    return v->slots + (uint64_t)(server - WR_SERVER_WORKER_FIRST) * v->slots_bytes;
}

static inline void *wr_view_delivery_slot(const wr_view *v, uint32_t server, uint32_t slot) {
    return wr_view_slots(v, server) + (uint64_t)(slot & (v->g.delivery_slots - 1)) * WR_DELIVERY_SLOT_BYTES;
}

static inline _Atomic uint32_t *wr_view_delivery_ring(const wr_view *v, uint32_t server, uint64_t position) {
    uint8_t *ring = wr_view_slots(v, server) + (uint64_t)v->g.delivery_slots * WR_DELIVERY_SLOT_BYTES;
    return (_Atomic uint32_t *)ring + (position & (v->g.delivery_slots - 1));
}

/* Writer: the client, for whoever counts what lies at it and was handed to nobody. A slot is used again only for a later
 * delivery, so what stands here names the present one, or an older one. In queues with an ack timeout it decides who has
 * the delivery, the client or the worker that takes it back: there both write by compare-and-swap. */
static inline _Atomic uint32_t *wr_view_handed(const wr_view *v, uint32_t server, uint32_t slot) {
    uint8_t *handed = wr_view_slots(v, server) + (uint64_t)v->g.delivery_slots * (WR_DELIVERY_SLOT_BYTES + 4u);
    return (_Atomic uint32_t *)handed + (slot & (v->g.delivery_slots - 1));
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
