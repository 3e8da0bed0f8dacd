/* A server's begin and end, and its rounds over the links. Declared in topics/server.h. */
#include "topics/append.h"
#include "topics/confirm.h"
#include "topics/control.h"
#include "topics/later.h"
#include "topics/links.h"
#include "topics/server.h"
#include "topics/table.h"

#define ROUND_COMMANDS 512
#define ROUND_RECORDS 16384
#define TICK_NS 500000000ull
#define COMMIT_BYTES (1ull << 20)
#define HALF_OUTCOMES 10000
#define HALF_AFTER_MS 6000
#define HALF_INTERVAL_MS 60000
#define HALF_CHECKS 15

/* ---- begin and end ---- */

void wr_topic_server_init(wr_topic_server *s, wr_superblock *super, uint32_t server) {
    memset((void *)s, 0, sizeof *s);
    s->super = super;
    s->me = wr_superblock_server(super, server);
    s->server = server;
    s->geometry = wr_geometry_without_slots(super);
    s->tick_ns = TICK_NS;
    s->commit_bytes = COMMIT_BYTES;
    s->pending.most = s->halves.most = UINT64_MAX;
    s->halves.kept = HALF_OUTCOMES;
    s->half_after_ms = HALF_AFTER_MS;
    s->half_interval_ms = HALF_INTERVAL_MS;
    s->half_checks_max = HALF_CHECKS;
    pthread_mutex_init(&s->mutex, NULL);
}

void wr_topic_server_free(wr_topic_server *s) {
    for (uint32_t i = 0; i < s->links_n; i++) {
        wr_doorbell_end(&s->links[s->order[i]]->view.doorbell);
        free(s->links[s->order[i]]);
    }
    wr_topics_free(s);
    wr_later_end(s);
    wr_halves_free(&s->halves);
    free(s->high.rows);
    pthread_mutex_destroy(&s->mutex);
}

/* ---- rounds ---- */

/* A link that is to end does so when all of it is executed and committed. */
static void sweep(wr_topic_server *s, wr_topic_link *l) {
    if (l->finished || !l->closing || l->dirty) return;
    if (!l->evicted && l->next != atomic_load_explicit(&wr_topic_shared(s, l)->tail, memory_order_acquire)) return;
    pthread_mutex_lock(&s->mutex);
    l->finished = !l->in_work;
    pthread_mutex_unlock(&s->mutex);
}

/* Store times never step back: what is searched by time is in order. */
static void look_at_clock(wr_topic_server *s) {
    s->wall_ms = wr_wall_ms();
    if (s->wall_ms > s->store_ms) s->store_ms = s->wall_ms;
}

static bool serve(wr_topic_server *s, wr_topic_link *l) {
    if (l->evicted || l->finished || l->waits) return false;
    const bool answered = l->pause == WR_TOPIC_PAUSE_ANSWERED;
    if (!wr_topic_control_resume(s, l)) return false;
    wr_link *shared = wr_topic_shared(s, l);
    /* SYNC command-visible: pairs with the client's release store of tail */
    uint64_t n = atomic_load_explicit(&shared->tail, memory_order_acquire) - l->next, records = s->records_n, done = 0;
    if (n > s->geometry.ring_records) {
        wr_topic_evict(s, l, WR_EVICTED_TAIL);
        return true;
    }
    if (n > l->limit - l->next) n = l->limit - l->next;
    if (n) look_at_clock(s); /* behind the tail: none of these was born later */
    if (n > ROUND_COMMANDS) n = ROUND_COMMANDS;
    for (; done < n && s->records_n - records < ROUND_RECORDS; done++) {
        wr_command *record = wr_view_command(&l->view, s->server, l->next);
        __builtin_prefetch((const void *)wr_view_command(&l->view, s->server, l->next + 4));
        wr_command c;
        memcpy((void *)&c, (const void *)record, sizeof c); /* once: the client may change it */
        if (wr_topic_execute(s, l, &c, record) == WR_TOPIC_WAIT) break;
        l->next++;
    }
    l->spoken |= done > 0;
    s->processed_n += done;
    return done > 0 || answered;
}

bool wr_topic_round(wr_topic_server *s, uint64_t now) {
    bool any = false;
    look_at_clock(s);
    for (uint32_t i = 0; i < s->links_n; i++) any |= serve(s, s->links[s->order[i]]);
    any |= wr_later_round(s);
    const wr_topic_log_state *state = wr_topic_log_look(s->log);
    if (!s->unsealed_since && state->append > state->sealed) s->unsealed_since = now;
    for (uint32_t i = 0; i < s->links_n; i++) {
        wr_topic_link *l = s->links[s->order[i]];
        if (l->spoken) {
            l->spoken = false;
            /* SYNC processed-visible: pairs with the client's acquire; answers below are complete. Not lowered after a restart. */
            wr_link *shared = wr_topic_shared(s, l);
            if (atomic_load_explicit(&shared->processed, memory_order_relaxed) < l->next)
                atomic_store_explicit(&shared->processed, l->next, memory_order_release);
            wr_view_tell(&l->view, WR_WAITS_LOOP(WR_NEWS_PROCESSED));
        }
        wr_topic_confirm(s, l);
        sweep(s, l);
    }
    return wr_topic_seal(s, now, false) || any;
}

int wr_topic_sync(wr_topic_server *s, uint64_t timeout_ns) {
    uint64_t until = wr_now_ns() + timeout_ns;
    for (;;) {
        const wr_topic_log_state *state = wr_topic_log_look(s->log);
        if (state->failed) return state->failed;
        if (state->append == state->sealed && !s->unsynced) break;
        wr_topic_seal(s, wr_now_ns(), true);
        uint64_t now = wr_now_ns();
        int error = now < until ? wr_topic_log_quiesce(s->log, until - now) : ETIMEDOUT;
        if (error) return error;
    }
    return wr_topic_log_quiesce(s->log, timeout_ns);
}
