/* Large messages without their files. Declared in queues/large_missing.h. */
#include "queues/large_missing.h"
#include "queues/owed.h"
#include "queues/store_side.h"

int wr_queue_large_missing(wr_queue_engine *e, const uint8_t (*there)[16], uint64_t n, uint64_t *lost) {
    wr_map found = {0}, missing = {0};
    uint64_t a, b;
    int error = wr_map_reserve(&found, n + 1);
    for (uint64_t i = 0; !error && i < n; i++) {
        wr_owed_key(there[i], &a, &b);
        if (!wr_map_put(&found, a, b)) error = ENOMEM;
    }
    for (uint64_t i = 0; !error && i < e->large.size; i++) {
        const wr_map_row *row = &e->large.rows[i];
        if (row->used && !wr_map_find(&found, row->a, row->b) && !wr_map_put(&missing, row->a, row->b)) error = ENOMEM;
    }
    *lost = 0;
    if (!error) *lost = wr_queue_drop_bodies(e, WR_LOCATION_LARGE, &missing, &e->large);
    wr_map_free(&found);
    wr_map_free(&missing);
    return error;
}
