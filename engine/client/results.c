/* What servers answered to publishes otherwise than "done": refused, dropped as a duplicate, no queue, no topic. See
 * client/results.h.
 *
 * A record is used again when the ring comes round, so its result is looked at before that, and no record is read as
 * long as the server does not say (link.unusual_until) that there is such a result above what was looked at. */
#include "client/results.h"
#include "kernel/protocol.h"
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

void wr_results_look(wr_results *r, const wr_port *port, uint32_t server) {
    wr_link *link = &port->view.links[server];
    uint64_t ring = port->view.g.ring_records;
    /* SYNC processed: the server wrote the results below it, and unusual_until, before. The topic worker answers what is not written anew when it
     * is restarted. */
    bool final = server != port->super->topic_server;
    uint64_t processed = atomic_load_explicit(final ? &link->processed : &link->written, memory_order_acquire);
    uint64_t until = atomic_load_explicit(&link->unusual_until, memory_order_relaxed);
    if (processed > port->prepared[server]) processed = port->prepared[server];
    if (processed <= r->looked) return;
    if (until > r->looked) {
        uint64_t from = r->looked, oldest = port->prepared[server] > ring ? port->prepared[server] - ring : 0;
        if (from < oldest) from = r->forgotten = oldest;
        for (uint64_t s = from; s < processed && s < until; s++) {
            wr_command *command = wr_view_command(&port->view, server, s);
            uint32_t result = atomic_load_explicit(&command->result, memory_order_relaxed);
            bool asked = command->op == WR_OP_PUBLISH || command->op == WR_OP_APPEND;
            if (asked && result > WR_RESULT_OK && !push(r, s, result)) r->forgotten = s + 1;
        }
    }
    r->looked = processed;
}

const wr_result *wr_results_find(const wr_results *r, uint64_t from, uint64_t to, uint32_t *n) {
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

void wr_results_free(wr_results *r) {
    free(r->rows);
    memset(r, 0, sizeof *r);
}
