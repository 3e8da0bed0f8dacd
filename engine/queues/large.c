/* Messages in files of their own. Declared in queues/large.h. */
#include "queues/large.h"
#include "queues/memory.h"
#include "queues/owed.h"

int wr_queue_large_reserve(wr_queue_engine *e) { return wr_map_reserve(&e->large, 1); }

int wr_queue_large_hold(wr_queue_engine *e, const uint8_t id[16], uint32_t n) {
    uint64_t a, b;
    wr_owed_key(id, &a, &b);
    uint64_t *held = wr_map_put(&e->large, a, b);
    if (!held) return ENOMEM;
    *held += n;
    return 0;
}

/* Of the batch that has, or will have, the frames of what happened until now. */
static uint64_t token_of_now(const wr_queue_engine *e) {
    return e->first_unsealed_ns || e->ranges_n || e->deaths_n ? e->token_next : e->token_next - 1;
}

static void note_gone(wr_queue_engine *e, const uint8_t id[16]) {
    e->large_gone = wr_queue_grown(e->large_gone, &e->large_gone_size, e->large_gone_n + 1, sizeof *e->large_gone);
    wr_large_gone *gone = &e->large_gone[e->large_gone_n++];
    memcpy(gone->id, id, 16);
    gone->token = token_of_now(e);
}

void wr_queue_large_release(wr_queue_engine *e, const uint8_t id[16]) {
    uint64_t a, b;
    wr_owed_key(id, &a, &b);
    uint64_t *held = wr_map_find(&e->large, a, b);
    if (!held || --*held) return; /* not held: its file is missing */
    wr_map_remove(&e->large, a, b);
    if (!e->recovering) note_gone(e, id); /* else the start looks which files nobody holds */
}

void wr_queue_large_unwanted(wr_queue_engine *e, const uint8_t id[16]) {
    if (!wr_queue_large_known(e, id)) note_gone(e, id);
}

bool wr_queue_large_known(const wr_queue_engine *e, const uint8_t id[16]) {
    uint64_t a, b;
    wr_owed_key(id, &a, &b);
    if (wr_map_find(&e->large, a, b)) return true;
    for (uint64_t i = 0; i < e->large_gone_n; i++)
        if (!memcmp(e->large_gone[i].id, id, 16)) return true;
    return false;
}

uint64_t wr_queue_large_gone(wr_queue_engine *e, uint8_t (*to)[16], uint64_t n) {
    uint64_t synced = atomic_load_explicit(&e->token_synced, memory_order_acquire), done = 0, kept = 0;
    for (uint64_t i = 0; i < e->large_gone_n; i++) {
        const wr_large_gone *gone = &e->large_gone[i];
        if (done < n && gone->token <= synced) memcpy(to[done++], gone->id, 16);
        else e->large_gone[kept++] = *gone;
    }
    e->large_gone_n = kept;
    return done;
}
