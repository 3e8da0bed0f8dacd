/* What this client removes, and the server has not removed yet: who reads such an id waits for the server, because a
 * reader finds a message as long as its entry stands. */
#ifndef WR_REMOVALS_H
#define WR_REMOVALS_H
#include "store/client.h"

#define WR_REMOVALS_MARKS 8192 /* power of two */

typedef struct {
    uint64_t until; /* the commands below have all removals of mine; 0: all are done */
    uint16_t round; /* of marks: those of another one are of removals that are done */
    uint16_t *marks; /* by hash of the id; one that is marked may have been removed */
} wr_removals;

/* Before the first removal. ENOMEM. */
int wr_removals_open(wr_removals *r);
void wr_removals_close(wr_removals *r);
/* These ids are named by a command below `until`. */
void wr_removals_note(wr_removals *r, const uint8_t (*ids)[16], uint32_t n, uint64_t until);
/* Is there a removal of this id that is not done? *sequence: its command, of several the last. Call it if r->until. */
bool wr_removals_under_way(wr_removals *r, const wr_store_client *s, const uint8_t id[16], uint64_t *sequence);
#endif
