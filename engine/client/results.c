/* What servers answered to publishes otherwise than "done": refused, dropped as a duplicate, no queue. See client/attachment.h.
 *
 * A record is used again when the ring comes round, so its result is looked at before that, and no record is read as long as
 * the server does not say (link.unusual_until) that there is such a result above what was looked at. */
#include "client/attachment.h"
#include <stdlib.h>
#include <string.h>

static bool push(wr_results *r, uint64_t sequence, uint32_t result) {
    if (r->first + r->n == r->size) {
        if (r->first > r->size / 2) {
            memmove(r->rows, r->rows + r->first, r->n * sizeof *r->rows);
            r->first = 0;
        } else {
            uint32_t size = r->size ? 2 * r->size : 64;
            wr_result *rows = realloc(r->rows, size * sizeof *rows);
            if (!rows) return false;
            r->rows = rows;
            r->size = size;
        }
    }
    r->rows[r->first + r->n++] = (wr_result){sequence, result};
    if (r->n > WR_RESULTS_MAX) {
        r->first += WR_RESULTS_MAX / 2;
        r->n -= WR_RESULTS_MAX / 2;
        r->forgotten = r->rows[r->first].sequence;
    }
    return true;
}

void wr_results_look(wr_attachment *a, uint32_t server) {
    wr_results *r = &a->results[server];
    wr_link *link = wr_attachment_link(a, server);
    uint64_t ring = a->port.view.g.ring_records;
    /* SYNC processed: the server wrote the results below it, and unusual_until, before. */
    uint64_t processed = atomic_load_explicit(&link->processed, memory_order_acquire);
    uint64_t until = atomic_load_explicit(&link->unusual_until, memory_order_relaxed);
    if (processed > a->port.prepared[server]) processed = a->port.prepared[server];
    if (processed <= r->looked) return;
    if (until > r->looked) {
        uint64_t from = r->looked, oldest = a->port.prepared[server] > ring ? a->port.prepared[server] - ring : 0;
        if (from < oldest) from = r->forgotten = oldest;
        for (uint64_t s = from; s < processed && s < until; s++) {
            wr_command *command = wr_view_command(&a->port.view, server, s);
            uint32_t result = atomic_load_explicit(&command->result, memory_order_relaxed);
            if (command->op == WR_OP_PUBLISH && result > WR_RESULT_OK && !push(r, s, result)) r->forgotten = s + 1;
        }
    }
    r->looked = processed;
}

const wr_result *wr_results_find(const wr_attachment *a, uint32_t server, uint64_t from, uint64_t to, uint32_t *n) {
    const wr_results *r = &a->results[server];
    uint32_t low = 0, high = r->n;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (r->rows[r->first + middle].sequence < from) low = middle + 1;
        else high = middle;
    }
    uint32_t end = low;
    while (end < r->n && r->rows[r->first + end].sequence < to) end++;
    *n = end - low;
    return r->rows ? r->rows + r->first + low : NULL;
}

void wr_results_free(wr_attachment *a) {
    for (uint32_t server = 0; server < WR_SERVERS_MAX; server++) {
        free(a->results[server].rows);
        memset(&a->results[server], 0, sizeof a->results[server]);
    }
}
