/* Answers of the topic worker. Declared in client/answers.h. */
#include "client/answers.h"
#include "kernel/protocol.h"
#include "kernel/racy.h"
#include <stdlib.h>

static inline wr_answer **place_of(const wr_answers *r, const wr_port *port, uint64_t sequence) {
    return &r->wanted[sequence & (port->view.g.ring_records - 1)];
}

int wr_answers_open(wr_answers *r, const wr_port *port, uint32_t server) {
    if (r->wanted) return 0;
    r->wanted = calloc(port->view.g.ring_records, sizeof(wr_answer *));
    if (!r->wanted) return ENOMEM;
    r->server = server;
    r->looked = port->prepared[server];
    return 0;
}

void wr_answers_free(wr_answers *r) {
    free(r->wanted);
    r->wanted = NULL;
}

void wr_answers_want(wr_answers *r, const wr_port *port, uint64_t sequence, wr_answer *answer) {
    answer->result = WR_RESULT_NONE;
    *place_of(r, port, sequence) = answer;
}

void wr_answers_forget(wr_answers *r, const wr_port *port, uint64_t sequence, const wr_answer *answer) {
    if (r->wanted && *place_of(r, port, sequence) == answer) *place_of(r, port, sequence) = NULL;
}

void wr_answers_take(wr_answers *r, const wr_port *port, uint64_t sequence) {
    wr_answer *answer = *place_of(r, port, sequence);
    if (!answer) return;
    const wr_command *command = wr_view_command(&port->view, r->server, sequence);
    uint64_t place[2];
    wr_copy_racy(place, command->id, sizeof place); /* a worker that is restarted answers what is not written anew */
    answer->offset = place[0];
    answer->position = place[1];
    answer->result = atomic_load_explicit(&command->result, memory_order_relaxed);
    *place_of(r, port, sequence) = NULL;
}

void wr_answers_look(wr_answers *r, const wr_port *port, bool ended) {
    if (!r->wanted) return;
    wr_link *link = &port->view.links[r->server];
    /* SYNC horizon: pairs with the server's release; what it answered to the commands below is complete. */
    uint64_t until = atomic_load_explicit(ended ? &link->processed : &link->written, memory_order_acquire);
    if (until > port->prepared[r->server]) until = port->prepared[r->server];
    for (; r->looked < until; r->looked++) wr_answers_take(r, port, r->looked);
}
