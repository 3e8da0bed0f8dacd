/* Which commands of a store were masked by this client's delete_and_terminate: they were confirmed and not stored. */
#ifndef WR_BINDING_MASKED_H
#define WR_BINDING_MASKED_H
#include "binding/session.h"

/* From now on confirms look. */
static inline void wr_masked_begin(ClientObject *c) { c->masked.looking = true; }
/* Note which of the commands from ... to - 1 were masked, before the ring comes round. How many, -1 with an
 * exception. */
int64_t wr_masked_note(ClientObject *c, int store, uint64_t from, uint64_t to);
/* Was one of these commands of a store masked by a delete_and_terminate? */
bool wr_masked_any(ClientObject *c, uint32_t server, uint64_t from, uint64_t to);
void wr_masked_free(ClientObject *c);
#endif
