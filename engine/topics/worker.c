/* A topic worker. What it is: topics/worker.h. */
#define _GNU_SOURCE
#include "topics/worker.h"
#include "kernel/data_files.h"
#include "topics/confirm.h"
#include "topics/links.h"
#include "topics/log_search.h"
#include "topics/message_id.h"
#include "topics/table.h"
#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

#define ROWS_STEP 1024u /* that get memory at once */
#define SLOTS_MIN (16u << 10)
#define RING_BYTES_A_SLOT 256 /* a record of 100 bytes takes some 200, and a slot */

static void set_halves(wr_topic_server *s, const wr_topic_worker_options *o) {
    if (o->halves_max) s->halves.most = o->halves_max;
    if (o->half_outcomes_kept) s->halves.kept = o->half_outcomes_kept;
    if (o->half_after_ms) s->half_after_ms = o->half_after_ms;
    if (o->half_interval_ms) s->half_interval_ms = o->half_interval_ms;
    s->half_checks_max = o->half_checks_max;
}

wr_topic_worker *wr_topic_worker_new(const wr_topic_worker_options *options) {
    wr_topic_worker *w = calloc(1, sizeof *w);
    if (!w) return NULL;
    w->o = *options;
    w->spin_ns = options->spin_ns;
    wr_dispatch_place place = {.root = options->folder, .log_file_bytes = options->log_file_bytes,
                               .consume_queue_entries = options->consume_queue_entries, .index_slots = options->index_slots,
                               .index_entries = options->index_entries};
    memcpy(place.node, options->node, sizeof place.node);
    memcpy(place.boot, options->boot, sizeof place.boot);
    wr_topic_server_init(&w->s, options->super, options->server);
    wr_message_host(options->node, w->s.host);
    w->s.tick_ns = options->tick_ns;
    w->s.commit_bytes = options->commit_bytes;
    if (options->delayed_max) w->s.pending.most = options->delayed_max;
    set_halves(&w->s, options);
    wr_later_begin(&w->s, options->folder, options->log_file_bytes, options->ring, options->ring_bytes);
    w->free_rows = malloc(options->rows_max * sizeof *w->free_rows);
    w->dispatch = wr_dispatch_new(&place);
    if (w->free_rows && w->dispatch) return w;
    wr_topic_worker_free(w);
    errno = ENOMEM;
    return NULL;
}

void wr_topic_worker_free(wr_topic_worker *w) {
    if (!w) return;
    if (w->s.log) wr_topic_log_free(w->s.log);
    wr_dispatcher_free(w->dispatcher);
    wr_dispatch_free(w->dispatch);
    wr_topic_server_free(&w->s);
    free(w->free_rows);
    free(w);
}

/* ---- topics ---- */

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

/* Have memory for a part of the rows: a touch of a full /dev/shm would be a signal. An older kernel does not know the question: then all
 * of the region was reserved. */
static int populate(void *part, uint64_t bytes) {
    while (madvise(part, bytes, MADV_POPULATE_WRITE) != 0) {
        if (errno == EINTR || errno == EAGAIN) continue;
        return errno == EINVAL ? 0 : ENOMEM;
    }
    return 0;
}

/* Have memory for rows below a number. */
static int have_memory(wr_topic_worker *w, uint32_t rows_n) {
    while (w->rows_ready < rows_n) {
        uint32_t n = w->o.rows_max - w->rows_ready < ROWS_STEP ? w->o.rows_max - w->rows_ready : ROWS_STEP;
        int error = populate(wr_topic_row_at(w->o.rows, w->rows_ready), n * sizeof(wr_topic_row));
        if (error) return error;
        w->rows_ready += n;
    }
    return 0;
}

int wr_topic_worker_tell_group(wr_topic_worker *w, uint32_t row, uint32_t topic, uint64_t stamp) {
    if (row >= WR_TOPIC_GROUPS_MAX) return EINVAL;
    if (!w->groups_ready) {
        int error = populate(wr_topic_group_row_at(w->o.rows, 0), (uint64_t)WR_TOPIC_GROUPS_MAX * sizeof(wr_topic_group_row));
        if (error) return error;
        w->groups_ready = true;
    }
    wr_topic_group_tell(w->o.rows, row, topic, stamp);
    return 0;
}

int wr_topic_worker_give_member(wr_topic_worker *w, uint32_t row, uint64_t member, uint64_t group, uint64_t called) {
    if (row >= WR_TOPIC_MEMBERS_MAX) return EINVAL;
    while (w->members_ready <= row) {
        const uint32_t left = WR_TOPIC_MEMBERS_MAX - w->members_ready, n = left < ROWS_STEP ? left : ROWS_STEP;
        int error = populate(wr_topic_member_row_at(w->o.rows, w->members_ready), n * sizeof(wr_topic_member_row));
        if (error) return error;
        w->members_ready += n;
    }
    wr_topic_member_give(w->o.rows, row, member, group, called);
    return 0;
}

int wr_topic_worker_member(const wr_topic_worker *w, uint32_t row, uint64_t *beats, uint64_t *calls) {
    if (row >= w->members_ready) return EINVAL;
    wr_topic_member_row *found = wr_topic_member_row_at(w->o.rows, row);
    *beats = atomic_load_explicit(&found->beats, memory_order_relaxed);
    *calls = atomic_load_explicit(&found->calls, memory_order_relaxed);
    return 0;
}

static void give_back(void *context, uint32_t row) {
    wr_topic_worker *w = context;
    w->free_rows[w->free_rows_n++] = row;
}

/* Numbers of rows for a topic's queues. */
static int choose_rows(wr_topic_worker *w, wr_topic *topic, uint32_t *numbers) {
    if (w->dispatcher) wr_dispatcher_dropped(w->dispatcher, give_back, w);
    if (topic->queues_n > w->o.rows_max - w->rows_n + w->free_rows_n) return ENOSPC;
    const uint32_t more = topic->queues_n > w->free_rows_n ? topic->queues_n - w->free_rows_n : 0;
    int error = have_memory(w, w->rows_n + more);
    if (error) return error;
    for (uint32_t queue = 0; queue < topic->queues_n; queue++) {
        const uint32_t row = w->free_rows_n ? w->free_rows[--w->free_rows_n] : w->rows_n++;
        numbers[queue] = topic->queues[queue].row = row;
    }
    return 0;
}

static void show_rows(wr_topic_worker *w, wr_topic *topic) {
    for (uint32_t i = 0; i < topic->queues_n; i++) {
        wr_topic_queue *queue = &topic->queues[i];
        const wr_dispatch_row found = w->dispatcher ? (wr_dispatch_row){0} : wr_dispatch_look(w->dispatch, queue->row);
        queue->next = found.next;
        queue->first = found.minimum;
        queue->shown = wr_topic_row_at(w->o.rows, queue->row);
        queue->wake = wr_topic_wake_of(w->o.rows, topic->id);
        w->messages_n += found.next - found.minimum;
        wr_topic_row_give(w->o.rows, queue->row, wr_topic_row_key(topic->id, i), found.minimum, found.next);
        if (!i) atomic_store_explicit(&queue->shown->delayed, topic->delayed_n, memory_order_relaxed);
        if (!i) wr_half_show(topic);
        if (!w->dispatcher) wr_dispatch_show(w->dispatch, queue->row, queue->shown);
    }
}

int wr_topic_worker_declare(wr_topic_worker *w, uint32_t id, const char *name, uint32_t name_n, uint32_t queues_n) {
    if (!id || !queues_n || queues_n > w->o.rows_max) return EINVAL;
    if (wr_topic_find(&w->s, id)) return EEXIST;
    uint32_t *rows = malloc(queues_n * sizeof *rows);
    wr_topic *topic = rows ? wr_topic_declare(&w->s, id, name, name_n, queues_n) : NULL;
    int error = topic ? choose_rows(w, topic, rows) : ENOMEM;
    const bool chosen = !error;
    const wr_dispatch_topic added = {.id = id, .queues_n = queues_n, .name = name, .name_n = name_n};
    if (!error) error = w->dispatcher ? wr_dispatcher_add(w->dispatcher, &added, rows) : wr_dispatch_add(w->dispatch, &added, rows);
    if (!error && w->dispatcher) show_rows(w, topic);
    for (uint32_t queue = 0; error && chosen && queue < queues_n; queue++) give_back(w, rows[queue]);
    if (error && topic) wr_topic_drop(&w->s, id);
    free(rows);
    return error;
}

int wr_topic_worker_drop(wr_topic_worker *w, uint32_t id) {
    wr_topic *topic = wr_topic_find(&w->s, id);
    if (!topic) return ENOENT;
    uint32_t *rows = malloc(topic->queues_n * sizeof *rows);
    for (uint32_t queue = 0; rows && queue < topic->queues_n; queue++) rows[queue] = topic->queues[queue].row;
    int error = rows ? wr_dispatcher_drop(w->dispatcher, id, rows, topic->queues_n) : ENOMEM;
    for (uint32_t queue = 0; !error && queue < topic->queues_n; queue++) wr_topic_row_take(w->o.rows, rows[queue]);
    if (!error) {
        for (uint32_t queue = 0; queue < topic->queues_n; queue++) w->messages_n -= topic->queues[queue].next - topic->queues[queue].first;
        wr_topic_wake_readers(w->o.rows, id); /* who waits for it sees that it is gone */
        wr_later_drop(&w->s, topic);
        wr_half_drop_topic(&w->s, topic);
        wr_topic_drop(&w->s, id);
    }
    free(rows);
    return error;
}

int wr_topic_worker_retain(wr_topic_worker *w, uint32_t id, const uint64_t *minima, uint32_t queues_n, uint64_t *ticket) {
    wr_topic *topic = wr_topic_find(&w->s, id);
    if (!topic || topic->queues_n != queues_n) return ENOENT;
    int error = wr_dispatcher_retain(w->dispatcher, id, minima, queues_n, 0, ticket);
    for (uint32_t i = 0; !error && i < queues_n; i++) {
        wr_topic_queue *queue = &topic->queues[i];
        const uint64_t minimum = minima[i] < queue->next ? minima[i] : queue->next;
        if (minimum <= queue->first) continue;
        w->messages_n -= minimum - queue->first;
        queue->first = minimum;
    }
    return error;
}

/* ---- start ---- */

static int open_file(const wr_topic_worker *w, uint64_t base, int flags) {
    char path[64];
    snprintf(path, sizeof path, "commitlog/%020llu", (unsigned long long)base);
    int fd = wr_data_open(w->o.folder, path, flags, 0);
    return fd < 0 ? -errno : fd;
}

static int open_to_read(void *context, uint64_t base) { return open_file(context, base, O_RDONLY); }
static int open_to_write(void *context, uint64_t base) { return open_file(context, base, O_RDWR); }
static int open_to_look(void *context, uint64_t base) { return open_file(context, base, O_RDONLY); }

int wr_topic_worker_look(const wr_topic_worker *w, uint64_t first, wr_checkpoint_kind *kind, wr_log_previewed *looked) {
    static const wr_log_visitor visitor = {.open = open_to_look};
    wr_commit_head last;
    uint64_t position;
    bool survived;
    int error = wr_dispatch_look_begin(w->dispatch, kind, &position, &last, &survived);
    if (!error) error = wr_log_preview(&visitor, (void *)w, w->o.log_file_bytes, first, position, &last, looked);
    looked->survived = survived;
    if (error || *kind == WR_CHECKPOINT_GOOD || !last.number || looked->shorter || looked->foreign) return error;
    return wr_log_preview_all(&visitor, (void *)w, w->o.log_file_bytes, first, position, &last, looked);
}

int wr_topic_worker_recover(wr_topic_worker *w, uint64_t first, wr_checkpoint_kind *kind) {
    w->first = first;
    const wr_dispatch_log log = {.open = open_to_read, .context = w};
    int error = wr_dispatch_begin(w->dispatch, kind);
    if (error) return error;
    do error = wr_dispatch_catch_up(w->dispatch, &log, first, &w->end);
    while (error == EUCLEAN); /* what was damaged of the index is removed, and made again */
    return error;
}

int wr_topic_worker_settle(wr_topic_worker *w) { return wr_log_settle(open_to_write, w, NULL, NULL, w->o.log_file_bytes, &w->end); }

int wr_topic_worker_system(const wr_topic_worker *w, const wr_system_walk *what, bool anew, uint64_t position, uint64_t epoch, uint64_t number,
                           wr_log_end *end) {
    wr_system_walk walk = *what;
    wr_commit_head after = {.origin.epoch = epoch, .number = number};
    memcpy(after.origin.node, w->o.node, sizeof after.origin.node);
    walk.open = open_to_read;
    walk.open_context = (void *)(uintptr_t)w;
    walk.file_bytes = w->o.log_file_bytes;
    return wr_system_read(&walk, anew, position, &after, end);
}

static int later_commit(void *context, const uint8_t *bytes, uint64_t n, const wr_commit_head *head, const uint8_t *marks) {
    (void)marks;
    wr_topic_worker *w = context;
    return wr_later_commit(&w->s, bytes, n, head);
}

static int half_commit(void *context, const uint8_t *bytes, uint64_t n, const wr_commit_head *head, const uint8_t *marks) {
    (void)marks;
    wr_topic_worker *w = context;
    return wr_half_commit(&w->s, bytes, n, head);
}

static const wr_log_visitor later_visitor = {open_to_read, later_commit}, halves_visitor = {open_to_read, half_commit};

/* Behind damage the walk goes on with the next commit: what came must not come again. */
static int walk_all(wr_topic_worker *w, const wr_log_visitor *visitor, uint64_t first, wr_commit_head *after, wr_log_end *end, uint32_t *gaps) {
    const uint64_t file_bytes = w->o.log_file_bytes;
    uint64_t position = first, search = first;
    for (;;) {
        int error = wr_log_walk(visitor, w, file_bytes, position, after, end);
        if (error || !end->damaged) return error;
        wr_log_place next;
        if (end->position > position || search < end->position) search = end->position;
        error = wr_log_search(visitor, w, file_bytes, search, &end->last, &next);
        if (error) return error == ENOENT ? 0 : error;
        ++*gaps;
        position = next.position;
        *after = next.after;
        search = next.search;
    }
}

static int take_up(wr_topic_worker *w, const wr_log_visitor *visitor, bool anew, uint64_t position, uint64_t epoch, uint64_t number, uint64_t *end,
                   uint32_t *gaps) {
    wr_commit_head after = {.origin.epoch = epoch, .number = number};
    memcpy(after.origin.node, w->o.node, sizeof after.origin.node);
    wr_log_end found;
    *gaps = 0;
    int error = anew ? wr_log_before(visitor, w, w->o.log_file_bytes, position, &after) : 0;
    if (error && error != ENOENT) return error;
    error = anew ? walk_all(w, visitor, position, &after, &found, gaps) : wr_log_walk(visitor, w, w->o.log_file_bytes, position, &after, &found);
    *end = error ? position : found.position;
    return error;
}

int wr_topic_worker_later(wr_topic_worker *w, bool anew, uint64_t position, uint64_t epoch, uint64_t number, uint64_t *end, uint32_t *gaps) {
    if (anew) wr_later_clear(&w->s);
    return take_up(w, &later_visitor, anew, position, epoch, number, end, gaps);
}

int wr_topic_worker_halves(wr_topic_worker *w, bool anew, uint64_t position, uint64_t epoch, uint64_t number, uint64_t *end, uint32_t *gaps) {
    if (anew) wr_halves_free(&w->s.halves);
    return take_up(w, &halves_visitor, anew, position, epoch, number, end, gaps);
}

static uint64_t slots_for(uint64_t ring_bytes) {
    uint64_t slots = SLOTS_MIN;
    while (slots < ring_bytes / RING_BYTES_A_SLOT) slots *= 2;
    return slots;
}

int wr_topic_worker_begin(wr_topic_worker *w, uint64_t epoch) {
    wr_commit_origin origin = {.epoch = epoch};
    memcpy(origin.node, w->o.node, sizeof origin.node);
    if (epoch < w->end.last.origin.epoch) return EINVAL;
    w->s.log = wr_topic_log_new(w->o.ring, w->o.ring_bytes, w->o.log_file_bytes, &origin, wr_topic_server_written, wr_topic_server_done, &w->s);
    if (!w->s.log) return errno;
    wr_topic_log_begin(w->s.log, w->end.position, w->end.last.number, w->end.last.store_ms);
    w->s.store_ms = w->end.last.store_ms;
    wr_later_taken_up(&w->s);
    wr_half_taken_up(&w->s);
    w->s.synced_at = wr_now_ns();
    wr_topic_rows_begin(w->o.rows, w->end.last.number);
    /* Files below what retention has said before are still to be removed, and index files are not there already. */
    const uint64_t told = wr_dispatch_first(w->dispatch), first = told > w->first ? told : w->first;
    atomic_store_explicit(&w->o.rows->first, first, memory_order_release); /* SYNC rows-first */
    wr_dispatch_show_index(w->dispatch, &w->o.rows->index_newest);
    for (uint64_t i = 0; i < w->s.topics.size; i++)
        if (w->s.topics.rows[i].used) show_rows(w, (wr_topic *)(uintptr_t)w->s.topics.rows[i].value);
    const wr_dispatcher_options options = {.dispatch = w->dispatch, .rows = w->o.rows, .origin = origin, .synced = w->end.position,
                                           .number = w->end.last.number, .slots_n = slots_for(w->o.ring_bytes), .bell = &w->s.me->sleeping};
    if (!(w->dispatcher = wr_dispatcher_new(&options))) return ENOMEM;
    w->s.follower = wr_dispatcher_follower(w->dispatcher);
    return 0;
}

int wr_topic_worker_attach(wr_topic_worker *w, uint32_t slot, uint32_t generation, uint64_t client_epoch, void *region, uint64_t bytes) {
    /* Who comes later has nothing in the log of before; the dispatch is its thread's by then. */
    const uint64_t mark = w->s.epoch ? 0 : wr_dispatch_mark(w->dispatch, client_epoch);
    if (mark && !wr_topic_mark(&w->s, client_epoch, mark)) return ENOMEM;
    return wr_topic_attach(&w->s, slot, generation, client_epoch, region, bytes);
}

int wr_topic_worker_serve(wr_topic_worker *w, uint64_t epoch) {
    uint64_t epochs[WR_CLIENT_SLOTS];
    for (uint32_t i = 0; i < w->s.links_n; i++) epochs[i] = w->s.links[w->s.order[i]]->client_epoch;
    int error = wr_dispatch_keep(w->dispatch, epochs, w->s.links_n);
    wr_topic_serve(&w->s, epoch);
    return error;
}

bool wr_topic_worker_detach(wr_topic_worker *w, uint32_t slot) {
    const uint64_t client_epoch = slot < WR_CLIENT_SLOTS && w->s.links[slot] ? w->s.links[slot]->client_epoch : 0;
    if (!wr_topic_detach(&w->s, slot)) return false;
    wr_map_remove(&w->s.high, client_epoch, 0);
    wr_dispatcher_forget(w->dispatcher, client_epoch);
    return true;
}

void wr_topic_request_stop(wr_topic_worker *w) {
    atomic_store(&w->stop, 1);
    wr_bell_ring(&w->s.me->sleeping);
}

void wr_topic_kick(wr_topic_worker *w) {
    atomic_store(&w->kick, 1);
    wr_bell_ring(&w->s.me->sleeping);
}
