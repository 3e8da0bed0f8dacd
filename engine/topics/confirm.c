/* Commits, and what they confirm. Declared in topics/confirm.h. */
#include "kernel/horizon.h"
#include "topics/confirm.h"

#define HERE_BYTES (16u << 10) /* that the loop writes itself for a reader who sleeps: it takes less time than waking the committer */
#define AGE_NS 1000000ull /* for so long records wait for others, when nobody waits for them */

static inline void raise64(uint64_t *word, uint64_t to) {
    if (*word < to) *word = to;
}

/* Under the mutex. */
static void publish(const wr_topic_server *s, wr_topic_link *l) {
    const wr_view *view = &l->view;
    wr_horizon_publish(&(wr_horizon){(wr_view *)view, s->server, l->done_written}, true, false, false);
    wr_horizon_publish(&(wr_horizon){(wr_view *)view, s->server, l->done_synced}, false, true, false);
    wr_horizon_publish(&(wr_horizon){(wr_view *)view, s->server, l->done_head}, false, false, true);
}

static bool concerned(const wr_topic_link *l, bool sync) { return !l->finished && (l->dirty || (sync && l->unsynced)); }

void wr_topic_publish(wr_topic_server *s, wr_topic_link *l) {
    pthread_mutex_lock(&s->mutex);
    publish(s, l);
    pthread_mutex_unlock(&s->mutex);
}

bool wr_topic_seal(wr_topic_server *s, uint64_t now, bool force) {
    const wr_topic_log_state *state = wr_topic_log_look(s->log);
    const uint64_t bytes = state->append - state->sealed;
    bool due = s->unsynced && now - s->synced_at >= s->tick_ns;
    bool pressed = state->wants_seal || (s->crowded && bytes) || force; /* nothing goes on before it is sealed */
    bool wanted = s->want_commit || due || pressed;
    if (state->failed || state->full || (state->busy && !pressed && bytes < s->commit_bytes)) return false;
    if (!wanted && (!bytes || (bytes < s->commit_bytes && now - s->unsealed_since < AGE_NS))) return false;
    bool sync = s->want_sync || due || force;
    wr_commit_mark marks[WR_CLIENT_SLOTS];
    uint32_t n = 0;
    pthread_mutex_lock(&s->mutex);
    for (uint32_t i = 0; i < s->links_n; i++) {
        wr_topic_link *l = s->links[s->order[i]];
        if (!concerned(l, sync)) continue;
        marks[n++] = (wr_commit_mark){.client_epoch = l->client_epoch, .sequence = l->next, .owner = l, .written = l->written};
        l->in_work++;
    }
    pthread_mutex_unlock(&s->mutex);
    for (uint32_t i = 0; i < s->links_n; i++) {
        wr_topic_link *l = s->links[s->order[i]];
        if (!concerned(l, sync)) continue;
        l->sealed = l->next;
        l->dirty = l->written = false;
        l->unsynced = !sync;
    }
    wr_commit_head head = {.number = state->number, .from = state->sealed, .store_ms = s->store_ms, .marks_n = n};
    const bool here = s->awaited && bytes <= HERE_BYTES;
    int error = wr_topic_log_seal(s->log, sync, here, marks, n); /* there is a place, and marks_n is within its limit */
    if (state->number != head.number && s->follower.sealed) { /* the state is the log's own, as it is now */
        head.number = state->number;
        s->follower.sealed(s->follower.context, &head, marks, state->sealed);
    }
    s->crowded = s->awaited = false;
    s->want_commit = s->want_sync = false;
    s->unsealed_since = 0;
    s->unsynced = !sync;
    if (sync) s->synced_at = now;
    return !error;
}

void wr_topic_confirm(wr_topic_server *s, wr_topic_link *l) {
    if (l->dirty || l->sealed == l->next) return;
    pthread_mutex_lock(&s->mutex);
    if (!l->in_work && l->done_head >= l->sealed && l->done_head < l->next) {
        l->done_written = l->done_head = l->next;
        if (!l->unsynced) l->done_synced = l->next;
        l->sealed = l->next;
        publish(s, l);
    }
    pthread_mutex_unlock(&s->mutex);
}

/* Is something confirmed of a commit that is written? Of one that is synced next, what nobody waits for is confirmed behind that: readers
 * who look for what is confirmed would wait for the sync. */
static bool confirms_written(const wr_topic_commit *commit) {
    bool any = !commit->sync;
    for (uint32_t i = 0; !any && i < commit->head.marks_n; i++) any = commit->marks[i].written;
    return any;
}

static void say_confirming(const wr_topic_server *s, const wr_topic_commit *commit) {
    if (s->follower.confirming) s->follower.confirming(s->follower.context, commit->head.number);
}

void wr_topic_server_written(void *context, const wr_topic_commit *commit) {
    wr_topic_server *s = context;
    if (confirms_written(commit)) say_confirming(s, commit);
    pthread_mutex_lock(&s->mutex);
    for (uint32_t i = 0; i < commit->head.marks_n; i++) {
        wr_topic_link *l = commit->marks[i].owner;
        raise64(&l->done_written, commit->marks[i].sequence);
        publish(s, l);
    }
    pthread_mutex_unlock(&s->mutex);
}

void wr_topic_server_done(void *context, const wr_topic_commit *commit) {
    wr_topic_server *s = context;
    if (!commit->error) say_confirming(s, commit);
    if (s->follower.done) s->follower.done(s->follower.context, commit); /* it shows the commit while that is confirmed */
    pthread_mutex_lock(&s->mutex);
    for (uint32_t i = 0; i < commit->head.marks_n; i++) {
        wr_topic_link *l = commit->marks[i].owner;
        l->in_work--;
        if (commit->error) continue;
        raise64(&l->done_written, commit->marks[i].sequence);
        raise64(&l->done_head, commit->marks[i].sequence);
        if (commit->sync) raise64(&l->done_synced, commit->marks[i].sequence);
        publish(s, l);
    }
    pthread_mutex_unlock(&s->mutex);
}
