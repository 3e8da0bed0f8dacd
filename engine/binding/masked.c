/* Which commands of a store were masked by this client's delete_and_terminate: their results say so, as long as the
 * ring has not come round, and the list made at its end does afterwards. */
#include "binding/masked.h"

static bool in_ring_and_masked(ClientObject *c, int i, uint64_t sequence) {
    return c->open && !c->ended && c->forks == wr_module.forks &&
           c->a.port.prepared[i] - sequence <= c->a.port.view.g.ring_records &&
           atomic_load_explicit(&wr_view_command(&c->a.port.view, (uint32_t)i, sequence)->result, memory_order_acquire) == WR_RESULT_MASKED;
}

bool wr_masked_any(ClientObject *c, uint32_t server, uint64_t from, uint64_t to) {
    const wr_masked *masked = &c->masked;
    if (server > WR_SERVER_STORE_TRANSIENT || !masked->looking) return false;
    for (uint64_t k = 0; k < masked->n[server]; k++)
        if (masked->sequences[server][k] >= from && masked->sequences[server][k] <= to) return true;
    for (uint64_t sequence = from; sequence <= to; sequence++)
        if (in_ring_and_masked(c, (int)server, sequence)) return true;
    return false;
}

int64_t wr_masked_note(ClientObject *c, int i, uint64_t from, uint64_t to) {
    wr_masked *masked = &c->masked;
    uint64_t ring = c->a.port.view.g.ring_records, before = masked->n[i];
    if (from > to) from = to;
    if (to - from > ring) from = to - ring;
    if (from == to) return 0;
    /* Room for all of them: the records are the server's, and each is read once. */
    uint64_t *bigger = realloc(masked->sequences[i], (before + (to - from)) * sizeof *bigger);
    if (!bigger) {
        PyErr_NoMemory();
        return -1;
    }
    masked->sequences[i] = bigger;
    for (uint64_t sequence = from; sequence < to; sequence++)
        if (in_ring_and_masked(c, i, sequence)) bigger[masked->n[i]++] = sequence;
    if ((bigger = realloc(masked->sequences[i], (masked->n[i] + 1) * sizeof *bigger))) masked->sequences[i] = bigger;
    return (int64_t)(masked->n[i] - before);
}

void wr_masked_free(ClientObject *c) {
    for (int i = 0; i < 2; i++) free(c->masked.sequences[i]);
    c->masked = (wr_masked){.looking = false};
}
