/* Removals under way. Declared in store/removals.h.
 *
 * A look costs a comparison when nothing is under way, and a mark when something is. A mark that two ids share leads to
 * a look at the commands, which tell. */
#include "store/removals.h"
#include <stdlib.h>

static uint16_t *mark_of(const wr_removals *r, const uint8_t id[16]) { return &r->marks[wr_id_hash(id) & (WR_REMOVALS_MARKS - 1)]; }

int wr_removals_open(wr_removals *r) {
    if (r->marks) return 0;
    r->marks = calloc(WR_REMOVALS_MARKS, sizeof *r->marks);
    r->round = 1;
    return r->marks ? 0 : ENOMEM;
}

void wr_removals_close(wr_removals *r) {
    free(r->marks);
    r->marks = NULL;
    r->until = 0;
}

void wr_removals_note(wr_removals *r, const uint8_t (*ids)[16], uint32_t n, uint64_t until) {
    for (uint32_t i = 0; i < n; i++) *mark_of(r, ids[i]) = r->round;
    r->until = until;
}

static void done(wr_removals *r) {
    r->until = 0;
    if (++r->round) return;
    memset(r->marks, 0, WR_REMOVALS_MARKS * sizeof *r->marks);
    r->round = 1;
}

bool wr_removals_under_way(wr_removals *r, const wr_store_client *s, const uint8_t id[16], uint64_t *sequence) {
    /* SYNC horizon: results are complete below `processed` */
    uint64_t processed = atomic_load_explicit(&s->port->view.links[s->server].processed, memory_order_acquire);
    if (processed >= r->until) {
        done(r);
        return false;
    }
    return *mark_of(r, id) == r->round && wr_store_client_removes(s, processed, id, sequence);
}
