/* Requests to the topic worker. Declared in topics/control.h. */
#include "topics/control.h"
#include "topics/links.h"

bool wr_topic_control(wr_topic_server *s, wr_topic_link *l, const wr_command *c, wr_command *record) {
    const wr_link *shared = wr_topic_shared(s, l);
    /* A worker that is dead has answered it: the reply lies there, and its place may be in use again. */
    if (l->next < l->high || l->next < atomic_load_explicit(&shared->processed, memory_order_relaxed)) return true;
    if (l->closing) {
        atomic_store_explicit(&record->result, WR_RESULT_ERROR, memory_order_relaxed); /* nobody reads the answer */
        return true;
    }
    if (wr_view_blob(&l->view, c->body, c->length)) l->pause = WR_TOPIC_PAUSE_CONTROL;
    else wr_topic_evict(s, l, WR_EVICTED_BLOB);
    return false;
}

wr_topic_link *wr_topic_control_next(const wr_topic_server *s) {
    for (uint32_t i = 0; i < s->links_n; i++) {
        wr_topic_link *l = s->links[s->order[i]];
        if (l->pause == WR_TOPIC_PAUSE_CONTROL && !l->evicted) return l;
    }
    return NULL;
}

void wr_topic_control_answer(wr_topic_link *l, uint32_t result, uint32_t length, uint64_t until) {
    l->control_result = result;
    l->control_length = length;
    l->control_until = until;
    l->pause = WR_TOPIC_PAUSE_ANSWERED;
}

bool wr_topic_control_resume(wr_topic_server *s, wr_topic_link *l) {
    if (l->pause == WR_TOPIC_PAUSE_NONE) return true;
    if (l->pause != WR_TOPIC_PAUSE_ANSWERED) return false;
    const wr_topic_log_state *state = wr_topic_log_look(s->log);
    if (l->control_until > state->synced) {
        if (!state->failed) return false;
        l->control_result = WR_RESULT_ERROR; /* the log failed: the client is told so by an empty reply */
        l->control_length = 0;
    }
    wr_topic_shared(s, l)->reply_length = l->control_length;
    atomic_store_explicit(&wr_view_command(&l->view, s->server, l->next)->result, l->control_result, memory_order_relaxed);
    l->next++; /* visible with `processed` */
    l->spoken = true;
    s->processed_n++;
    l->pause = WR_TOPIC_PAUSE_NONE;
    return true;
}
