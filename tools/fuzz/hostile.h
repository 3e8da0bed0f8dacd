/* A hostile client's region, as the fuzzer writes it: every word of links, rings, delivery slots, replies and arena.
 *
 * With FUZZ_RACE a thread changes the same memory while a server works: what is read twice shows. */
#ifndef WR_FUZZ_HOSTILE_H
#define WR_FUZZ_HOSTILE_H
#include "fuzz.h"
#include "ipc/core/view.h"
#include <pthread.h>

typedef struct {
    wr_view view;
    uint8_t *region;
    uint64_t bytes;
    uint32_t slot, generation;
    uint64_t client_epoch;
    int holder;
    bool attached;
} hostile;

/* Bytes anywhere in the region. */
static inline void hostile_raw(hostile *h, fuzz_input *in) {
    uint64_t at = fuzz32(in) % h->bytes, n = fuzz8(in);
    if (n > h->bytes - at) n = h->bytes - at;
    if (n > in->left) n = in->left;
    fuzz_bytes(in, h->region + at, n);
}

static inline void hostile_fill(hostile *h, fuzz_input *in) {
    uint64_t at = fuzz32(in) % h->bytes, n = fuzz_size(in, 4096);
    if (n > h->bytes - at) n = h->bytes - at;
    memset(h->region + at, fuzz8(in), n);
}

static inline void hostile_link(hostile *h, fuzz_input *in, uint32_t server) {
    wr_link *link = &h->view.links[server];
    _Atomic uint64_t *words[] = {&link->tail, &link->processed, &link->written, &link->synced, &link->head, &link->delivery_head, &link->delivery_tail,
                                 &link->server_epoch};
    _Atomic uint64_t *word = words[fuzz8(in) % (sizeof words / sizeof *words)];
    uint8_t how = fuzz8(in);
    uint64_t value = how & 1 ? atomic_load(word) + (uint64_t)(int64_t)(int8_t)fuzz8(in) : fuzz_size(in, h->view.g.ring_records);
    atomic_store(word, value);
    if (how & 6) return;
    if (how & 8) atomic_store(&link->evicted, 0);
    else atomic_store(&h->view.client->waiting, fuzz32(in));
}

/* ---- the thread that changes memory meanwhile ---- */
#ifdef FUZZ_RACE
static struct {
    pthread_t thread;
    bool started;
    _Atomic(hostile *) target;
    _Atomic uint32_t running, idle;
    _Atomic uint64_t seed;
} racer;

static void *race(void *unused) {
    (void)unused;
    uint64_t x = 1;
    for (;;) {
        hostile *h = atomic_load(&racer.target);
        if (!h) {
            atomic_store(&racer.idle, 1);
            wr_futex_wait(&racer.running, 0, 1000000000);
            continue;
        }
        x = fuzz_mix(x + atomic_load(&racer.seed));
        uint64_t at = x >> 20;
        uint8_t *words = h->region + 4096; /* links, rings, slots; the arena every other time */
        uint64_t n = x & 1 ? (uint64_t)(h->view.arena - words) : 4096;
        if (!(x & 1)) words = h->view.arena;
        _Atomic uint32_t *word = (_Atomic uint32_t *)(void *)(words + (at % n & ~3ull));
        uint32_t was = atomic_load_explicit(word, memory_order_relaxed);
        static const uint32_t edges[] = {0, 1, 2, 3, 15, 16, 64, 4095, 4096, 65535, 65536, 0x7fffffff, 0x80000000, 0xffffffff};
        atomic_store_explicit(word, x & 2 ? edges[(x >> 3) % 14] : was ^ (uint32_t)(x >> 32), memory_order_relaxed);
        atomic_store_explicit(word, was, memory_order_relaxed);
    }
    return NULL;
}

static void race_on(hostile *h, uint64_t seed) {
    if (!racer.started) {
        racer.started = true;
        pthread_create(&racer.thread, NULL, race, NULL);
    }
    atomic_store(&racer.seed, seed);
    atomic_store(&racer.idle, 0);
    atomic_store(&racer.target, h);
    atomic_store(&racer.running, 1);
    wr_futex_wake_all(&racer.running);
}

static void race_off(void) {
    if (!racer.started) return;
    atomic_store(&racer.running, 0);
    atomic_store(&racer.target, NULL);
    while (!atomic_load(&racer.idle)) wr_cpu_relax();
}
#else
static inline void race_on(hostile *h, uint64_t seed) { (void)h, (void)seed; }
static inline void race_off(void) {}
#endif
#endif
