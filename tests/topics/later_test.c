/* Goal: a message that comes later comes once, not before its time, in the order of the times, with all that was given to it, whatever dies;
 * what is pending survives in a snapshot and the log, or in the log alone; nonsense costs nobody but its client.
 * Method: the heap and its snapshot against a plain list; a client's port and a server in one process, with a small ring and small files. The
 * server dies at any write or sync of its committer, or power fails: of what was not synced, each sector is as it was or as it became. It is
 * begun again from a snapshot of any age, or without one. At the end the log is read whole, record by record, beside a list of what is
 * pending there. Runs under AddressSanitizer and ThreadSanitizer. Prints its seed. */
#define _GNU_SOURCE
#include "ipc/core/port.h"
#include "kernel/bytes.h"
#include "mortal_disk.h"
#include "support/scratch.h"
#include "topics/confirm.h"
#include "topics/later.h"
#include "topics/links.h"
#include "topics/properties.h"
#include "topics/scheduled.h"
#include "topics/server.h"
#include "topics/table.h"
#include <sys/mman.h>

#define RING_BYTES (32 * 4096u)
#define FILE_BYTES (64 * 4096u)
#define SECOND 1000000000ull
#define SERVER 2
#define QUEUES 3
#define TOPIC 7
#define GONE 9 /* a topic that is deleted */
#define MESSAGES_MAX 200000
#define NAME "flights"

static const uint8_t node[16] = "a node of tests";

/* ---- the heap and its snapshot ---- */

#define LIST 600

static int by_time(const void *a, const void *b) {
    const wr_pending_message *l = a, *r = b;
    return l->due != r->due ? (l->due < r->due ? -1 : 1) : l->position < r->position ? -1 : l->position > r->position;
}

static int by_place(const void *a, const void *b) {
    const wr_pending_message *l = a, *r = b;
    return l->position < r->position ? -1 : l->position > r->position;
}

static void heap_is_a_sorted_list(void) {
    static wr_pending_message list[LIST];
    wr_pending p = {.most = LIST - 100};
    uint64_t n = 0, position = 0, came = 0;
    for (int step = 0; step < 30000; step++) {
        const uint64_t kind = random_below(20);
        if (kind < 10 && n < p.most) {
            const wr_pending_message m = {.due = random_below(50), .position = position += 1 + random_below(9), .size = 7, .topic = 1 + (uint32_t)random_below(9)};
            CHECK(wr_pending_reserve(&p, 1) == 0);
            wr_pending_put(&p, m);
            list[n++] = m;
        } else if (kind < 10) {
            CHECK(wr_pending_reserve(&p, 1) == ENOSPC);
        } else if (n && kind < 17) {
            qsort(list, n, sizeof *list, by_time);
            CHECK(!memcmp(list, wr_pending_first(&p), sizeof *list));
            CHECK(wr_pending_may_take(&p, random_below(2) ? position : 0) == 0);
            wr_pending_take(&p, position += 1);
            memmove(list, list + 1, --n * sizeof *list);
            came++;
        } else if (n && kind == 17) {
            qsort(list, n, sizeof *list, by_time);
            wr_pending_postpone(&p, list[0].due += random_below(30));
        } else if (kind == 18 && random_below(10) == 0) {
            const uint32_t topic = 1 + (uint32_t)random_below(9);
            uint64_t kept = 0, lowest = UINT64_MAX;
            for (uint64_t i = 0; i < n; i++)
                if (list[i].topic != topic) list[kept++] = list[i];
            CHECK(wr_pending_drop(&p, topic) == n - kept);
            n = kept;
            p.taken_n = 0;
            for (uint64_t i = 0; i < n; i++) lowest = list[i].position < lowest ? list[i].position : lowest;
            CHECK(wr_pending_lowest(&p) == lowest);
        }
        CHECK(p.n == n && !wr_pending_first(&p) == !n);
    }
    CHECK(came > 5000);
    wr_pending_free(&p);
}

/* As of a position in the middle: what came behind it is pending, what was appended behind it is not. */
static void snapshot_holds_what_was_pending(void) {
    static wr_pending_message was[LIST], copy[2 * LIST];
    wr_pending p = {.most = LIST}, q = {.most = LIST};
    uint64_t position = 1000;
    for (uint32_t i = 0; i < 300; i++, position += 10) {
        CHECK(wr_pending_reserve(&p, 1) == 0);
        wr_pending_put(&p, (wr_pending_message){.due = random_below(1000), .position = position, .size = 9, .topic = 3});
    }
    for (uint32_t i = 0; i < 50; i++, position += 10) {
        CHECK(wr_pending_may_take(&p, position) == 0);
        wr_pending_take(&p, position);
    }
    const uint64_t sealed = position;
    memcpy(was, p.all, p.n * sizeof *was);
    const uint64_t was_n = p.n;
    for (uint32_t i = 0; i < 60; i++, position += 10) {
        if (i % 3) {
            CHECK(wr_pending_may_take(&p, sealed) == 0);
            wr_pending_take(&p, position);
        } else wr_pending_put(&p, (wr_pending_message){.due = random_below(10), .position = position, .size = 9, .topic = 3});
    }
    wr_pending_head head = {.position = sealed, .epoch = 5, .number = 77}, found = {0};
    memcpy(head.node, node, 16);
    memcpy(found.node, node, 16);
    CHECK((head.n = wr_pending_copy(&p, sealed, copy)) == was_n && wr_pending_copy_most(&p) >= was_n);
    const uint64_t bytes = wr_pending_bytes(head.n);
    uint8_t *file = malloc(bytes + 1);
    wr_pending_encode(&head, copy, file);
    CHECK(!wr_pending_decode(&q, file, bytes, &found) && q.n == was_n);
    CHECK(found.position == sealed && found.epoch == 5 && found.number == 77);
    qsort(was, was_n, sizeof *was, by_place);
    CHECK(!memcmp(was, q.all, was_n * sizeof *was));
    /* what came afterwards, by the log */
    for (uint64_t i = 0; i < was_n; i += 2) CHECK(wr_pending_came(&q, was[i].position) && !wr_pending_came(&q, was[i].position));
    CHECK(!wr_pending_came(&q, was[0].position + 1) && !wr_pending_came(&q, UINT64_MAX));
    wr_pending_heap(&q);
    CHECK(q.n == was_n / 2);
    for (uint64_t last = 0; q.n; wr_pending_pop(&q)) {
        CHECK(wr_pending_first(&q)->due >= last);
        last = wr_pending_first(&q)->due;
    }
    /* any byte that changed, any other length */
    for (int i = 0; i < 2000; i++) {
        const uint64_t at = random_below(bytes);
        file[at] ^= 1 + (uint8_t)random_below(255);
        const uint8_t bad = file[at];
        CHECK(wr_pending_decode(&q, file, bytes, &found) && !q.n);
        wr_pending_encode(&head, copy, file);
        CHECK(file[at] != bad);
        CHECK(wr_pending_decode(&q, file, at, &found) && wr_pending_decode(&q, file, bytes + 1, &found));
    }
    found.node[3]++;
    CHECK(!strcmp(wr_pending_decode(&q, file, bytes, &found), "it is of another node"));
    free(file);
    wr_pending_free(&p);
    wr_pending_free(&q);
}

/* ---- the client ---- */

typedef struct {
    uint32_t queue, kind; /* 0: it comes at once */
    uint64_t value, born;
    bool refused;
} message;

static wr_superblock *super;
static wr_port port;
static void *region;
static message messages[MESSAGES_MAX];
static uint64_t messages_n, commands_n, looked;
static struct {
    uint64_t first;
    uint32_t n;
    bool later;
} commands[MESSAGES_MAX];
static bool patient; /* levels, which take a second, too */
static bool all_synced;

static const char *const kinds[] = {"", "TIMER_DELAY_MS", "TIMER_DELIVER_MS", "DELAY"};

/* The body of the n-th message says which it is. */
static uint32_t make_body(uint8_t *to, uint64_t n) {
    const uint64_t x = (n + 1) * 0x9e3779b97f4a7c15ull;
    const uint32_t length = 8 + (uint32_t)(x >> 40) % (n % 50 ? 200 : 6000);
    memcpy(to, &n, 8);
    for (uint32_t i = 8; i < length; i++) to[i] = (uint8_t)(x >> (i % 57));
    return length;
}

/* What its publisher gave it, and what the log keeps of that. */
static uint32_t make_properties(uint8_t *to, uint64_t n, bool with_time) {
    char text[40];
    const message *m = &messages[n];
    uint32_t bytes = n % 4 ? wr_properties_put(to, 200, "KEYS", 4, text, (uint64_t)snprintf(text, sizeof text, "k%llu", (unsigned long long)n)) : 0;
    if (n % 3) bytes += wr_properties_put(to + bytes, 200, "to", 2, text, (uint64_t)snprintf(text, sizeof text, "IAH"));
    if (m->kind && with_time)
        bytes += wr_properties_put(to + bytes, 200, kinds[m->kind], strlen(kinds[m->kind]), text,
                                   (uint64_t)snprintf(text, sizeof text, "%llu", (unsigned long long)m->value));
    return bytes;
}

static void open_client(void) {
    super = calloc(1, WR_SUPERBLOCK_BYTES);
    CHECK(super);
    super->servers_n = SERVER + 1;
    super->ring_records = 64;
    super->delivery_slots = 2;
    super->reply_bytes = 4096;
    super->arena_bytes = 1 << 17;
    super->message_bytes_max = super->shared_bytes_max = 1 << 14;
    const wr_geometry g = wr_geometry_of(super);
    const uint64_t bytes = wr_view_bytes(&g);
    CHECK((region = aligned_alloc(4096, wr_page_up(bytes))));
    memset(region, 0, bytes);
    CHECK(wr_port_init(&port, super, region, bytes, 0, 1, 100) == 0);
    messages_n = commands_n = looked = 0;
}

static void close_client(void) {
    wr_port_free(&port);
    free(region);
    free(super);
}

static wr_command *prepare(const uint8_t *blob, uint64_t length) {
    uint64_t position, sequence;
    uint8_t *at;
    wr_port_reclaim(&port);
    if (commands_n - looked >= super->ring_records || wr_port_alloc(&port, length, &position, &at)) return NULL;
    wr_command *record = wr_port_prepare(&port, SERVER, &sequence);
    if (!record) return NULL;
    CHECK(sequence == commands_n);
    memcpy(at, blob, length);
    record->queue = TOPIC;
    record->body = position;
    record->length = (uint32_t)length;
    CHECK(wr_port_use(&port, SERVER, sequence) == 0);
    commands_n++;
    return record;
}

/* Submit some messages, if there is room. */
static void submit(void) {
    static uint8_t blob[1 << 16];
    const bool later = random_below(4) != 0;
    const uint32_t n = random_below(3) ? 1 : 2 + (uint32_t)random_below(12), queue = (uint32_t)random_below(QUEUES);
    const uint64_t born = wr_wall_ms() - 5;
    uint64_t length = n > 1 ? n * sizeof(wr_append_part) : 0;
    uint32_t properties_n = 0;
    if (messages_n + n > MESSAGES_MAX) return;
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t kind = !later ? 0 : patient && random_below(8) == 0 ? 3 : 1 + (uint32_t)random_below(2);
        const uint64_t value = kind == 3 ? 1 : kind == 2 ? wr_wall_ms() - 5 + random_below(30) : random_below(25);
        messages[messages_n + i] = (message){.queue = queue, .kind = kind, .value = value, .born = born};
        properties_n = make_properties(blob + length, messages_n + i, true);
        length += properties_n;
        const uint32_t body_n = make_body(blob + length, messages_n + i);
        length += body_n;
        if (n > 1) ((wr_append_part *)blob)[i] = (wr_append_part){.body_length = body_n, .properties_length = properties_n};
    }
    wr_command *record = prepare(blob, length);
    if (!record) return;
    record->op = n > 1 ? WR_OP_APPEND_MANY : WR_OP_APPEND;
    record->flags = (uint8_t)(all_synced || random_below(2) ? WR_FLAG_SYNCED : random_below(2) ? WR_FLAG_WRITTEN : 0) | (later ? WR_FLAG_LATER : 0);
    record->row = queue;
    record->tag = born;
    record->count = n > 1 ? n : 0;
    record->meta_length = n > 1 ? 0 : (uint16_t)properties_n;
    CHECK(wr_port_submit(&port, SERVER));
    commands[commands_n - 1].first = messages_n;
    commands[commands_n - 1].n = n;
    commands[commands_n - 1].later = later;
    messages_n += n;
}

/* Those of what is written: their records lie in the ring no longer than that. */
static void take_answers(void) {
    const uint64_t head = atomic_load_explicit(&port.view.links[SERVER].head, memory_order_acquire);
    for (; looked < head; looked++) {
        const wr_command *record = wr_view_command(&port.view, SERVER, looked);
        const uint32_t result = atomic_load(&record->result);
        uint64_t offset;
        memcpy(&offset, record->id, 8);
        if (result == WR_RESULT_ERROR) { /* the log had failed, and it was told so */
            for (uint32_t i = 0; i < commands[looked].n; i++) messages[commands[looked].first + i].refused = true;
            continue;
        }
        CHECK(result == WR_RESULT_OK && (offset == UINT64_MAX) == commands[looked].later);
    }
}

/* ---- a server that dies ---- */

typedef struct {
    wr_topic_server s;
    void *ring;
    int fd;
    pthread_t committer;
    /* a snapshot that waits for the log to be synced */
    wr_pending_head head;
    uint8_t *copied;
} life;

static uint8_t *saved; /* the snapshot on the disk */
static uint64_t saved_bytes, epochs;

static void *commit_run(void *argument) {
    wr_topic_log_commit_run(((life *)argument)->s.log, NULL);
    return NULL;
}

static bool often(void *context, const wr_topic_batch *batch) {
    (void)context;
    (void)batch;
    return random_below(16) != 0; /* no room: the same ones come again */
}

/* What came is synced before anybody hears that it is there. */
static void is_synced(void *context, const wr_topic_commit *commit) {
    (void)context;
    if (commit->sync || commit->error) return;
    const uint64_t n = commit->at - commit->from;
    uint8_t *bytes = records_of(commit, FILE_BYTES);
    wr_record record;
    uint64_t before;
    for (uint64_t at = 0; at < n; at += record.size) {
        CHECK(wr_record_scan(bytes + at, n - at, commit->from + at, 0, &record) == WR_SCAN_RECORD);
        CHECK(!wr_scheduled_came(&record, &before));
    }
    free(bytes);
}

/* A commit of the log: offsets and marks for the next server. */
static int take_up(void *context, const uint8_t *bytes, uint64_t n, const wr_commit_head *head, const uint8_t *marks) {
    wr_topic_server *s = context;
    wr_record record;
    for (uint64_t at = 0; at < n; at += record.size) {
        CHECK(wr_record_scan(bytes + at, n - at, head->from + at, WR_SCAN_ALL, &record) == WR_SCAN_RECORD);
        if (record.topic_length != strlen(NAME)) continue;
        wr_topic_queue *row = &wr_topic_find(s, TOPIC)->queues[record.queue_id];
        CHECK(row->next == record.queue_offset);
        row->next++;
    }
    for (uint32_t i = 0; i < head->marks_n; i++) {
        wr_commit_mark mark = wr_commit_mark_read(marks, i);
        CHECK(wr_topic_mark(s, mark.client_epoch, mark.sequence));
    }
    return 0;
}

static int take_later(void *context, const uint8_t *bytes, uint64_t n, const wr_commit_head *head, const uint8_t *marks) {
    (void)marks;
    return wr_later_commit(context, bytes, n, head);
}

/* What is pending: from the snapshot on, or from the log's begin on. */
static void take_up_later(life *l, const wr_log_end *end) {
    static const wr_log_visitor visitor = {open_to_read, take_later};
    wr_commit_head after = {.origin.epoch = 1};
    memcpy(after.origin.node, node, sizeof node);
    wr_pending_head head = {0};
    memcpy(head.node, node, sizeof node);
    wr_log_end found;
    if (saved && random_below(4)) {
        CHECK(!wr_later_decode(&l->s, saved, saved_bytes, &head) && head.position <= end->position);
        after.number = head.number;
        after.origin.epoch = head.epoch;
    }
    CHECK(wr_log_walk(&visitor, &l->s, FILE_BYTES, head.position, &after, &found) == 0 && found.position == end->position);
    wr_later_taken_up(&l->s);
    CHECK(wr_topic_find(&l->s, TOPIC)->delayed_n == l->s.pending.n);
}

static void be_born(life *l) {
    static const wr_log_visitor visitor = {open_to_read, take_up};
    memset((void *)l, 0, sizeof *l);
    wr_topic_server_init(&l->s, super, SERVER);
    CHECK(wr_topic_declare(&l->s, TOPIC, NAME, strlen(NAME), QUEUES));
    wr_commit_head none = {.origin.epoch = 1};
    memcpy(none.origin.node, node, sizeof node);
    wr_log_end end;
    CHECK(wr_log_walk(&visitor, &l->s, FILE_BYTES, 0, &none, &end) == 0 && !end.damaged);
    CHECK(wr_log_settle(open_to_write, NULL, NULL, NULL, FILE_BYTES, &end) == 0);
    unlink(path_of(end.position / FILE_BYTES * FILE_BYTES + FILE_BYTES));
    CHECK((l->fd = memfd_create("ring", 0)) >= 0 && ftruncate(l->fd, WR_PAGE_BYTES + RING_BYTES) == 0);
    CHECK((l->ring = wr_topic_ring_map(l->fd, RING_BYTES)));
    wr_later_begin(&l->s, scratch_fd, FILE_BYTES, l->ring, RING_BYTES);
    take_up_later(l, &end);
    wr_commit_origin origin = end.last.origin;
    origin.epoch = ++epochs;
    CHECK((l->s.log = wr_topic_log_new(l->ring, RING_BYTES, FILE_BYTES, &origin, wr_topic_server_written, wr_topic_server_done, &l->s)));
    wr_topic_log_set_io(l->s.log, &mortal_io, NULL);
    wr_topic_log_begin(l->s.log, end.position, end.last.number, end.last.store_ms);
    l->s.store_ms = end.last.store_ms;
    l->s.follower = (wr_topic_follower){l, often, NULL, NULL, is_synced};
    CHECK(wr_topic_attach(&l->s, 0, 1, 100, region, wr_view_bytes(&l->s.geometry)) == 0);
    wr_topic_serve(&l->s, epochs);
    CHECK(pthread_create(&l->committer, NULL, commit_run, l) == 0);
}

static void die(life *l) {
    wr_topic_log_stop(l->s.log);
    CHECK(pthread_join(l->committer, NULL) == 0);
    wr_topic_log_free(l->s.log);
    wr_topic_server_free(&l->s);
    wr_topic_ring_unmap(l->ring, RING_BYTES);
    close(l->fd);
    free(l->copied);
}

static void give_files(life *l) {
    const wr_topic_log_state *s = wr_topic_log_look(l->s.log);
    if (s->has_next || !s->wants_next) return;
    const uint64_t base = s->has_file ? s->base + FILE_BYTES : s->base;
    int fd = open(path_of(base), O_RDWR | O_CREAT, 0600);
    CHECK(fd >= 0 && ftruncate(fd, FILE_BYTES) == 0 && wr_topic_log_offer(l->s.log, fd, base) == 0);
}

/* A snapshot as of now, which is on the disk when the log is synced so far. */
static void save_sometimes(life *l) {
    const wr_topic_log_state *state = wr_topic_log_look(l->s.log);
    if (l->copied && state->synced >= l->head.position) {
        free(saved);
        saved_bytes = wr_pending_bytes(l->head.n);
        CHECK((saved = malloc(saved_bytes)));
        wr_pending_encode(&l->head, (wr_pending_message *)(void *)l->copied, saved);
        free(l->copied);
        l->copied = NULL;
    } else if (!l->copied && random_below(100) == 0) {
        l->head = (wr_pending_head){.position = state->sealed, .epoch = epochs, .number = state->number};
        memcpy(l->head.node, node, sizeof node);
        CHECK((l->copied = malloc((wr_pending_copy_most(&l->s.pending) + 1) * sizeof(wr_pending_message))));
        l->head.n = wr_pending_copy(&l->s.pending, state->sealed, (wr_pending_message *)(void *)l->copied);
    }
}

static void turn(life *l, bool more) {
    give_files(l);
    take_answers();
    if (more && random_below(3) == 0) submit();
    wr_topic_round(&l->s, wr_now_ns());
    save_sometimes(l);
}

/* ---- the log at the end ---- */

typedef struct {
    wr_pending_message pending[MESSAGES_MAX]; /* as they came; due UINT64_MAX: they came */
    uint64_t number[MESSAGES_MAX];
    uint64_t pending_n, first, offsets[QUEUES], store_ms;
    uint8_t state[MESSAGES_MAX]; /* of each message: 1: it is to come, 2: it came */
    uint64_t came, at_once;
} reading;

static uint64_t number_of(const uint8_t *bytes, const wr_record *record) {
    static uint8_t body[8192];
    uint64_t number;
    CHECK(record->body_length >= 8);
    memcpy(&number, bytes + record->body_at, 8);
    CHECK(number < messages_n && record->body_length == make_body(body, number) && !memcmp(bytes + record->body_at, body, record->body_length));
    CHECK(record->born_timestamp == messages[number].born && record->flag == TOPIC);
    return number;
}

static void read_scheduled(reading *r, const uint8_t *bytes, const wr_record *record) {
    const uint64_t number = number_of(bytes, record);
    const message *m = &messages[number];
    wr_scheduled_message found;
    wr_text name;
    uint8_t properties[300];
    CHECK(m->kind && !r->state[number]);
    CHECK(wr_scheduled_read(bytes, record, &found) && found.queue == m->queue);
    CHECK(wr_properties_find(bytes + record->properties_at, record->properties_length, "REAL_TOPIC", &name));
    CHECK(name.n == strlen(NAME) && !memcmp(name.at, NAME, name.n));
    const uint32_t n = make_properties(properties, number, true);
    CHECK(n < record->properties_length && !memcmp(properties, bytes + record->properties_at, n));
    if (m->kind == 2) CHECK(found.due == m->value);
    else CHECK(found.due >= m->born + (m->kind == 3 ? 1000 : m->value) && found.due <= record->store_timestamp + 1001 + m->value);
    CHECK(record->queue_id == 0 && !record->queue_offset && !record->sys_flag && !record->prepared_transaction_offset);
    CHECK(bytes[record->topic_at] == (m->kind == 3 ? 'S' : 'r'));
    r->state[number] = 1;
    r->number[r->pending_n] = number;
    r->pending[r->pending_n++] = (wr_pending_message){.due = found.due, .position = record->physical_offset};
}

/* Of all that is to come there, this one is the first by its time. */
static void read_came(reading *r, const uint8_t *bytes, const wr_record *record, uint64_t before) {
    const uint64_t number = number_of(bytes, record);
    uint64_t first = r->first, its = UINT64_MAX;
    while (r->first < r->pending_n && r->pending[r->first].due == UINT64_MAX) r->first++;
    for (uint64_t i = first = r->first; i < r->pending_n; i++) {
        if (r->pending[i].due < r->pending[first].due) first = i; /* of equal ones the first was appended first */
        if (r->number[i] == number) its = i;
    }
    CHECK(its == first && r->state[number] == 1 && r->pending[its].position == before);
    CHECK(record->store_timestamp >= r->pending[its].due);
    r->state[number] = 2;
    r->pending[its].due = UINT64_MAX;
    r->came++;
}

static int read_commit(void *context, const uint8_t *bytes, uint64_t n, const wr_commit_head *head, const uint8_t *marks) {
    reading *r = context;
    (void)marks;
    wr_record record;
    for (uint64_t at = 0, before; at < n - wr_commit_record_bytes(head->marks_n); at += record.size) {
        CHECK(wr_record_scan(bytes + at, n - at, head->from + at, WR_SCAN_ALL, &record) == WR_SCAN_RECORD);
        CHECK(record.store_timestamp >= r->store_ms);
        r->store_ms = record.store_timestamp;
        if (wr_scheduled_is(bytes + at, &record)) {
            read_scheduled(r, bytes + at, &record);
            continue;
        }
        CHECK(record.topic_length == strlen(NAME) && !record.sys_flag);
        const uint64_t number = number_of(bytes + at, &record);
        uint8_t properties[300];
        const uint32_t properties_n = make_properties(properties, number, false);
        CHECK(record.properties_length == properties_n && !memcmp(properties, bytes + at + record.properties_at, properties_n));
        CHECK(record.queue_id == messages[number].queue && record.queue_offset == r->offsets[record.queue_id]++);
        if (wr_scheduled_came(&record, &before)) {
            read_came(r, bytes + at, &record, before);
        } else {
            CHECK(!messages[number].kind && !r->state[number]);
            r->state[number] = 2;
            r->at_once++;
        }
    }
    return 0;
}

static void read_all(reading *r) {
    static const wr_log_visitor visitor = {open_to_read, read_commit};
    memset(r, 0, sizeof *r);
    wr_commit_head none = {.origin.epoch = 1};
    memcpy(none.origin.node, node, sizeof node);
    wr_log_end end;
    CHECK(wr_log_walk(&visitor, r, FILE_BYTES, 0, &none, &end) == 0 && !end.damaged);
}

static void empty_log(void) {
    for (uint64_t base = 0; unlink(path_of(base)) == 0; base += FILE_BYTES) {}
    forget_unsynced();
    free(saved);
    saved = NULL;
}

static void lives(int lives_n, bool power) {
    static life l;
    static reading r;
    uint64_t kept = 0, snapshots = 0;
    all_synced = power;
    open_client();
    epochs = 0;
    for (int n = 0; n < lives_n; n++) {
        atomic_store(&calls_left, (int64_t)random_below(50));
        be_born(&l);
        kept += l.s.pending.n;
        const uint8_t *before = saved;
        for (int i = 0; i < 4000 && !wr_topic_log_look(l.s.log)->failed; i++) turn(&l, true);
        snapshots += saved != before;
        die(&l);
        if (power) fail_power();
        else forget_unsynced();
        take_answers();
        read_all(&r);
        for (uint64_t i = 0; i < messages_n && power; i++) CHECK(r.state[i] || messages[i].refused || i >= commands[looked ? looked - 1 : 0].first);
    }
    atomic_store(&calls_left, -1);
    patient = true;
    be_born(&l);
    for (int i = 0; i < 200; i++) turn(&l, true);
    patient = false;
    while (atomic_load(&port.view.links[SERVER].head) < commands_n || l.s.pending.n) turn(&l, false); /* a message that is lost ends it never */
    CHECK(wr_topic_sync(&l.s, 60 * SECOND) == 0 && !l.s.unreadable_n && !wr_topic_find(&l.s, TOPIC)->delayed_n);
    take_answers();
    die(&l);
    read_all(&r);
    for (uint64_t i = 0; i < messages_n; i++) CHECK(r.state[i] == (messages[i].refused ? 0 : 2));
    printf("  %d lives%s: %llu messages came later, %llu at once; %llu were pending at a start; %llu snapshots\n", lives_n,
           power ? " that end by a loss of power" : "", (unsigned long long)r.came, (unsigned long long)r.at_once, (unsigned long long)kept,
           (unsigned long long)snapshots);
    CHECK(r.came > 100);
    close_client();
    empty_log();
}

/* ---- single things ---- */

static life alone;

static void begin_alone(uint64_t most) {
    atomic_store(&calls_left, -1);
    all_synced = true;
    open_client();
    epochs = 0;
    be_born(&alone);
    alone.s.pending.most = most;
}

static void end_alone(void) {
    die(&alone);
    close_client();
    empty_log();
}

/* One command for a message with these properties; its result, or the reason why the link was closed, negative. */
static int64_t give(const char *properties, uint32_t n, uint32_t topic) {
    static uint8_t blob[1 << 16];
    memcpy(blob, properties, n);
    memcpy(blob + n, "body", 4);
    wr_command *record = prepare(blob, n + 4);
    CHECK(record);
    record->op = WR_OP_APPEND;
    record->flags = WR_FLAG_SYNCED | WR_FLAG_LATER;
    record->queue = topic;
    record->meta_length = (uint16_t)n;
    CHECK(wr_port_submit(&port, SERVER));
    commands[commands_n - 1].later = true;
    const wr_link *link = &port.view.links[SERVER];
    while (atomic_load(&link->processed) < commands_n && !atomic_load(&link->evicted)) {
        give_files(&alone);
        wr_topic_round(&alone.s, wr_now_ns());
    }
    const int64_t reason = atomic_load(&link->evicted);
    return reason ? -reason : (int64_t)atomic_load(&wr_view_command(&port.view, SERVER, commands_n - 1)->result);
}

#define GIVE(text) give(text, sizeof text - 1, TOPIC)

static void nonsense_is_refused(void) {
    static const char *const bad[] = {"",
                                      "a\1b\2",
                                      "DELAY\0010\2",
                                      "DELAY\00119\2",
                                      "DELAY\1x\2",
                                      "DELAY\1\2",
                                      "DELAY\0011", /* no end: what comes behind would belong to it */
                                      "TIMER_DELAY_MS\1-1\2",
                                      "TIMER_DELAY_MS\0011234567890123456\2",
                                      "TIMER_DELIVER_MS\1soon\2",
                                      "\1\2TIMER_DELAY_MS\0011\2",
                                      "TIMER_DELAY_MS\0011\2a\2"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        begin_alone(UINT64_MAX);
        CHECK(give(bad[i], (uint32_t)strlen(bad[i]), TOPIC) == -WR_EVICTED_BLOB && !alone.s.pending.n);
        CHECK(wr_topic_log_look(alone.s.log)->append == 0);
        end_alone();
    }
    static char long_one[WR_PROPERTIES_BYTES_MAX];
    for (uint32_t less = 0; less < 2; less++) { /* there is room for the message's own, and not for what is added */
        const uint32_t more = wr_scheduled_more(strlen(NAME), 0), n = WR_PROPERTIES_BYTES_MAX - more + 1 - less;
        memset(long_one, 'x', n);
        long_one[1] = 1;
        memcpy(long_one + n - 18, "\2TIMER_DELAY_MS\0011\2", 18);
        begin_alone(UINT64_MAX);
        CHECK(give(long_one, n, TOPIC) == (less ? WR_RESULT_OK : -WR_EVICTED_BLOB));
        end_alone();
    }
    begin_alone(UINT64_MAX); /* a time is its publisher's to know */
    CHECK(GIVE("TIMER_DELAY_MS\001999999999999999\2") == WR_RESULT_OK && GIVE("TIMER_DELIVER_MS\0010\2") == WR_RESULT_OK);
    end_alone();
}

static void as_many_are_pending_as_can_be(void) {
    begin_alone(3);
    for (int i = 0; i < 3; i++) CHECK(GIVE("DELAY\00118\2") == WR_RESULT_OK);
    CHECK(GIVE("DELAY\00118\2") == WR_RESULT_FULL && alone.s.pending.n == 3);
    CHECK(wr_pending_first(&alone.s.pending)->due > wr_wall_ms() + 7000000);
    end_alone();
}

static void they_go_with_their_topic(void) {
    begin_alone(UINT64_MAX);
    CHECK(wr_topic_declare(&alone.s, GONE, "gone", 4, 1));
    for (int i = 0; i < 5; i++) CHECK(give("TIMER_DELAY_MS\00160000\2", 21, GONE) == WR_RESULT_OK && GIVE("TIMER_DELAY_MS\00170000\2") == WR_RESULT_OK);
    CHECK(wr_topic_find(&alone.s, GONE)->delayed_n == 5 && alone.s.pending.n == 10 && wr_pending_first(&alone.s.pending)->topic == GONE);
    CHECK(wr_topic_sync(&alone.s, 60 * SECOND) == 0);
    wr_later_drop(&alone.s, wr_topic_find(&alone.s, GONE));
    wr_topic_drop(&alone.s, GONE);
    CHECK(alone.s.pending.n == 5 && wr_pending_first(&alone.s.pending)->topic == TOPIC && wr_topic_find(&alone.s, TOPIC)->delayed_n == 5);
    die(&alone);
    be_born(&alone); /* the log has them for ever */
    CHECK(alone.s.pending.n == 5);
    end_alone();
}

/* One that cannot be read waits for a minute, and the others go on. */
static void an_unreadable_one_holds_up_nobody(void) {
    begin_alone(UINT64_MAX);
    for (int i = 0; i < 3; i++) CHECK(GIVE("TIMER_DELAY_MS\00160000\2") == WR_RESULT_OK);
    CHECK(wr_topic_sync(&alone.s, 60 * SECOND) == 0);
    die(&alone);
    be_born(&alone); /* nothing of it is in the ring any more */
    wr_pending *p = &alone.s.pending;
    CHECK(p->n == 3);
    qsort(p->all, p->n, sizeof *p->all, by_place);
    const wr_pending_message bad = p->all[1];
    for (int i = 0; i < 3; i++) p->all[i].due = 5; /* as if their time had come */
    wr_pending_heap(p);
    int fd = open(path_of(0), O_RDWR);
    uint8_t byte;
    const off_t at = (off_t)(bad.position + bad.size / 2);
    CHECK(pread(fd, &byte, 1, at) == 1);
    byte ^= 4;
    CHECK(pwrite(fd, &byte, 1, at) == 1);
    while (alone.s.came_n < 2 || !alone.s.unreadable_n) {
        give_files(&alone);
        wr_topic_round(&alone.s, wr_now_ns());
    }
    CHECK(alone.s.unreadable_n == 1 && alone.s.unreadable_at == bad.position && p->n == 1 && wr_pending_first(p)->due > wr_wall_ms() + 50000);
    byte ^= 4;
    CHECK(pwrite(fd, &byte, 1, at) == 1);
    close(fd);
    p->all[0].due = 5;
    while (p->n) wr_topic_round(&alone.s, wr_now_ns());
    CHECK(alone.s.came_n == 3 && alone.s.unreadable_n == 1);
    end_alone();
}

/* Store times stand still after the clock was set back: a delay is none of theirs. */
static void a_clock_that_was_set_back_delays_nothing_anew(void) {
    begin_alone(UINT64_MAX);
    alone.s.store_ms = wr_wall_ms() + 3600000;
    const uint64_t began = wr_wall_ms();
    CHECK(GIVE("TIMER_DELAY_MS\00120\2") == WR_RESULT_OK && alone.s.pending.n == 1);
    while (!alone.s.came_n) {
        give_files(&alone);
        wr_topic_round(&alone.s, wr_now_ns());
        CHECK(alone.s.came_n == 0 || wr_wall_ms() > began + 20);
    }
    CHECK(wr_wall_ms() < alone.s.store_ms);
    end_alone();
}

/* Clients are served in between, however many are due; and a server that ends lets none come. */
static void many_come_in_rounds(void) {
    begin_alone(UINT64_MAX);
    for (int i = 0; i < 1000; i++) {
        CHECK(GIVE("TIMER_DELAY_MS\00160000\2") == WR_RESULT_OK);
        while (atomic_load(&port.view.links[SERVER].head) < commands_n) wr_topic_round(&alone.s, wr_now_ns());
        take_answers();
    }
    wr_pending *p = &alone.s.pending;
    for (uint64_t i = 0; i < p->n; i++) p->all[i].due = 5;
    wr_pending_heap(p);
    alone.s.held = true;
    CHECK(wr_later_sleep_ns(&alone.s, 50000000) == 50000000);
    for (int i = 0; i < 10; i++) wr_topic_round(&alone.s, wr_now_ns());
    CHECK(p->n == 1000);
    alone.s.held = false;
    CHECK(wr_later_sleep_ns(&alone.s, 50000000) <= 1000000 && wr_later_sleep_ns(&alone.s, 5) == 5);
    int rounds = 0;
    for (uint64_t before = p->n; p->n; before = p->n, rounds++) {
        give_files(&alone);
        wr_topic_round(&alone.s, wr_now_ns());
        CHECK(before - p->n <= 256);
    }
    CHECK(rounds >= 4 && wr_later_sleep_ns(&alone.s, 77) == 77);
    end_alone();
}

int main(int argc, char **argv) {
    setvbuf(stdout, NULL, _IOLBF, 0);
    scratch_begin("later_test", argc, argv);
    CHECK(mkdirat(scratch_fd, "commitlog", 0700) == 0);
    heap_is_a_sorted_list();
    snapshot_holds_what_was_pending();
    nonsense_is_refused();
    as_many_are_pending_as_can_be();
    they_go_with_their_topic();
    an_unreadable_one_holds_up_nobody();
    a_clock_that_was_set_back_delays_nothing_anew();
    many_come_in_rounds();
    for (int i = 0; i < 2; i++) {
        lives(ROUNDS(30), false);
        lives(ROUNDS(30), true);
    }
    free(unsynced);
    close(scratch_fd);
    scratch_end();
    return 0;
}
