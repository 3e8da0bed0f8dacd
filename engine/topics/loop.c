/* The loop of a topic worker: rounds, events, sleep. Declared in topics/loop.h. */
#include "topics/loop.h"
#include "topics/control.h"
#include "topics/later.h"

#define SLEEP_NS 50000000ull
#define UNSEALED_SLEEP_NS 1000000ull /* records wait for so long at most for others */
#define COUNTERS_NS 2000000ull       /* between two publications while there is work */
#define IDLE_COUNTERS_NS 10000000ull

static void publish_counters(wr_topic_worker *w, uint64_t now) {
    const wr_topic_log_state *state = wr_topic_log_look(w->s.log);
    const uint64_t first = atomic_load_explicit(&w->o.rows->first, memory_order_relaxed);
    const uint64_t files = state->has_file ? state->base / w->o.log_file_bytes - first / w->o.log_file_bytes + 1 : 0;
#define PUT(field, value) atomic_store_explicit(&w->s.me->field, value, memory_order_relaxed)
    PUT(messages, w->messages_n + w->s.records_n);
    PUT(valid_bytes, state->append - first);
    PUT(files, files);
    PUT(file_bytes_sum, files * w->o.log_file_bytes);
    PUT(processed_n, w->s.processed_n);
    PUT(published_n, w->s.records_n);
    PUT(written_n, w->s.records_n);
    PUT(evicted_n, w->s.evicted_n);
    PUT(wakes_n, w->wakes_n);
    PUT(commits_n, state->commits_n);
    PUT(syncs_n, state->syncs_n);
    PUT(commit_ns_sum, state->commit_ns_sum);
#undef PUT
    w->published_ns = now;
}

/* The log takes nothing more: its clients are told by the answers to come, and by the alarm. */
static uint32_t look_at_log(wr_topic_worker *w, const wr_topic_log_state *state) {
    if (!state->failed || w->failed_told) return 0;
    w->failed_told = true;
    atomic_store_explicit(&w->s.me->error, (uint32_t)state->failed, memory_order_release);
    atomic_fetch_or_explicit(&w->s.me->alarms, WR_ALARM_SYNC_FAILED, memory_order_relaxed);
    for (uint32_t i = 0; i < w->s.links_n; i++) wr_view_wake(&w->s.links[w->s.order[i]]->view);
    return WR_TOPIC_EVENT_LOG_FAILED;
}

static uint32_t events_now(wr_topic_worker *w) {
    wr_superblock *super = w->o.super;
    const wr_topic_log_state *state = wr_topic_log_look(w->s.log);
    uint32_t events = look_at_log(w, state);
    if (atomic_load_explicit(&super->slots_version, memory_order_acquire) != w->seen_slots_version) events |= WR_TOPIC_EVENT_SLOTS_CHANGED;
    if (w->s.unknown || atomic_load_explicit(&w->s.me->queues_version, memory_order_acquire) > w->seen_catalog_version)
        events |= WR_TOPIC_EVENT_CATALOG_CHANGED;
    if (atomic_load_explicit(&w->stop, memory_order_relaxed) || atomic_load_explicit(&super->state, memory_order_acquire) == WR_NODE_DRAINING)
        events |= WR_TOPIC_EVENT_STOP & ~w->offered;
    if (atomic_load_explicit(&w->kick, memory_order_relaxed)) events |= WR_TOPIC_EVENT_KICK;
    if (state->wants_next) events |= WR_TOPIC_EVENT_NEED_FILE & ~w->offered;
    if (wr_dispatcher_look(w->dispatcher).failed) events |= WR_TOPIC_EVENT_DISPATCH_FAILED & ~w->offered;
    if (wr_topic_control_next(&w->s)) events |= WR_TOPIC_EVENT_CONTROL & ~w->offered;
    for (uint32_t i = 0; i < w->s.links_n; i++)
        if (w->s.links[w->s.order[i]]->finished) events |= WR_TOPIC_EVENT_FINISHED & ~w->offered;
    return events;
}

static uint64_t sleep_ns(const wr_topic_worker *w, uint64_t left) {
    uint64_t sleep = left < SLEEP_NS ? left : SLEEP_NS;
    if (w->s.unsealed_since && sleep > UNSEALED_SLEEP_NS) sleep = UNSEALED_SLEEP_NS;
    if (w->s.unsynced && sleep > w->s.tick_ns) sleep = w->s.tick_ns;
    return wr_later_sleep_ns(&w->s, sleep);
}

/* Sleep on the server's word, or see what came meanwhile. What ended it: 0, ETIMEDOUT, EINTR; EAGAIN: it did not sleep. */
static int sleep_until_rung(wr_topic_worker *w, uint64_t now, uint64_t left) {
    /* SYNC sleep: announce, look once more, then sleep; who publishes work rings after it (futex.h) */
    atomic_store_explicit(&w->s.me->sleeping, 1, memory_order_relaxed);
    atomic_thread_fence(memory_order_seq_cst);
    int error = EAGAIN;
    if (!wr_topic_round(&w->s, now) && !events_now(w)) {
        uint64_t sleep = sleep_ns(w, left);
        if (sleep) {
            w->wakes_n++;
            error = wr_futex_wait(&w->s.me->sleeping, 1, sleep);
        }
    }
    atomic_store_explicit(&w->s.me->sleeping, 0, memory_order_relaxed);
    return error;
}

uint32_t wr_topic_run(wr_topic_worker *w, uint64_t max_ns, bool until_event) {
    uint64_t now = wr_now_ns(), idle_since = 0;
    const uint64_t deadline = now + max_ns;
    bool just_slept = false;
    for (;; now = wr_now_ns()) {
        bool any = wr_topic_round(&w->s, now);
        uint32_t events = events_now(w);
        if (any && just_slept) w->spin_ns = 2 * w->spin_ns + 1000 < w->o.spin_ns ? 2 * w->spin_ns + 1000 : w->o.spin_ns;
        if (any) just_slept = false;
        if (any && now - w->published_ns > COUNTERS_NS) publish_counters(w, now);
        if (events || now >= deadline || (!any && !until_event)) {
            publish_counters(w, now);
            if (events & WR_TOPIC_EVENT_KICK) atomic_exchange(&w->kick, 0);
            return events ? events : WR_TOPIC_EVENT_TIMER;
        }
        if (any) {
            idle_since = 0;
            continue;
        }
        if (!idle_since) idle_since = now;
        if (now - idle_since < w->spin_ns) {
            wr_cpu_relax();
            continue;
        }
        w->spin_ns -= w->spin_ns / 8;
        if (w->published_ns + IDLE_COUNTERS_NS < now) publish_counters(w, now);
        int error = sleep_until_rung(w, now, deadline - now);
        if (error != EAGAIN) just_slept = error != ETIMEDOUT && wr_now_ns() - now < 100000;
        idle_since = 0;
        if (error == EINTR) {
            publish_counters(w, wr_now_ns());
            return WR_TOPIC_EVENT_TIMER; /* a signal: Python must see it */
        }
    }
}
