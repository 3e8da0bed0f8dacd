/* What servers answered to publishes otherwise than "done": the results of one link's commands that are not OK. */
#ifndef WR_CLIENT_RESULTS_H
#define WR_CLIENT_RESULTS_H
#include "ipc/core/port.h"

#define WR_RESULTS_MAX (1u << 20) /* kept for each server; the older half goes when there are more */

typedef struct {
    uint64_t sequence;
    uint32_t result;
} wr_result;

typedef struct {
    uint64_t looked;    /* results of the commands below it were looked at */
    uint64_t forgotten; /* of those below it some may not be known any more */
    wr_result *rows;    /* by sequence */
    uint32_t first, n, size;
} wr_results;

/* Look at the results of what the server has processed since the last look. */
void wr_results_look(wr_results *r, const wr_port *port, uint32_t server);
/* Is there anything to look at? A result of a command below `until` may be another than OK. */
static inline bool wr_results_unusual(const wr_results *r, const wr_link *link) {
    return atomic_load_explicit(&link->unusual_until, memory_order_relaxed) > r->looked;
}
/* The results of commands from ... to - 1 that are not OK and were looked at. */
const wr_result *wr_results_find(const wr_results *r, uint64_t from, uint64_t to, uint32_t *n);
void wr_results_free(wr_results *r);
#endif
