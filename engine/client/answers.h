/* Where records of topics lie, as the topic worker answered: kept for whoever wants it, as long as he does.
 *
 * The worker answers into the record of the command, whose place in the ring is used again when its records are in a file. Who wants an
 * answer gives a place for it; it is copied there before that, and later needs no attachment any more. So an answer takes no memory
 * of its own, and none that nobody wants is copied.
 *
 * Invariants
 *   `wanted` has a place for each record of the ring: who wants the answer of the command that is there now, NULL: nobody.
 *   No record is used again before its answer was taken (client/append.c looks before it prepares one).
 *   An answer is final when its command is written; before that, a worker that is killed may be followed by one that answers anew.
 */
#ifndef WR_CLIENT_ANSWERS_H
#define WR_CLIENT_ANSWERS_H
#include "ipc/core/port.h"

/* To one APPEND or APPEND_MANY. */
typedef struct {
    uint64_t offset, position; /* of its first record: in its queue, in the log */
    uint32_t result;           /* RESULT_…; RESULT_NONE: not taken yet */
} wr_answer;

typedef struct {
    wr_answer **wanted; /* by sequence modulo the ring's records; NULL until something was appended */
    uint64_t looked;    /* answers of the commands below were taken */
    uint32_t server;
} wr_answers;

/* 0, ENOMEM. `server`: the topic worker, the same always. */
int wr_answers_open(wr_answers *r, const wr_port *port, uint32_t server);
void wr_answers_free(wr_answers *r);

/* Want the answer of a command that was prepared now. */
void wr_answers_want(wr_answers *r, const wr_port *port, uint64_t sequence, wr_answer *answer);
/* No longer. It may have been taken. */
void wr_answers_forget(wr_answers *r, const wr_port *port, uint64_t sequence, const wr_answer *answer);
/* Take the answers of what is written; `ended`: of all that was processed, nothing more comes. */
void wr_answers_look(wr_answers *r, const wr_port *port, bool ended);
/* Take one that is processed, and perhaps not written yet. */
void wr_answers_take(wr_answers *r, const wr_port *port, uint64_t sequence);
#endif
