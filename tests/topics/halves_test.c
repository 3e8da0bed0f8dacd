/* Goal: a half message is committed once, or rolled back, whatever dies; who was told what became of it is told the same for ever; what is pending
 * survives in a snapshot and the log, or in the log alone; nonsense costs nobody but its client.
 * Method: the table and its snapshot against a plain list; a client's port and a server in one process, with a small ring and small files. The
 * server dies at any write or sync of its committer, or power fails (mortal_disk.h). It is begun again from a snapshot of any age, or without
 * one; at each begin it is asked again for all that was told before. At the end the log is read whole, record by record. Runs under
 * AddressSanitizer and ThreadSanitizer. Prints its seed. */
#define _GNU_SOURCE
#include "ipc/core/port.h"
#include "kernel/bytes.h"
#include "mortal_disk.h"
#include "support/scratch.h"
#include "topics/confirm.h"
#include "topics/half_record.h"
#include "topics/halves.h"
#include "topics/later.h"
#include "topics/links.h"
#include "topics/properties.h"
#include "topics/server.h"
#include "topics/table.h"

#define RING_BYTES (32 * 4096u)
#define FILE_BYTES (64 * 4096u)
#define SECOND 1000000000ull
#define SERVER 2
#define QUEUES 3
#define TOPIC 7
#define GONE 9 /* a topic that is deleted */
#define MESSAGES_MAX 100000
#define NAME "flights"
#define NONE UINT64_MAX

static const uint8_t node[16] = "a node of tests";

/* ---- the table and its snapshot ---- */

#define LIST 3000

/* A plain list of half messages, and what became of each, at which position. */
static struct {
    wr_half half;
    uint32_t kind; /* 0: pending */
    uint64_t by, offset;
    bool dropped;
} list[LIST];
static uint32_t list_n;

static void compare(const wr_halves *h, uint64_t kept) {
    uint64_t pending = 0, finished = 0, lowest = UINT64_MAX, oldest = 0;
    static uint64_t order[LIST];
    for (uint32_t i = 0; i < list_n; i++) {
        if (list[i].kind) order[finished++] = list[i].by;
        else if (!list[i].dropped && ++pending && list[i].half.position < lowest) lowest = list[i].half.position;
    }
    CHECK(wr_halves_pending(h) == pending && wr_half_lowest(h, UINT64_MAX) == lowest);
    if (finished > kept) { /* the by of the oldest that is kept: they were finished in order */
        for (uint64_t i = 0; i < finished; i++)
            for (uint64_t k = i; k > 0 && order[k] < order[k - 1]; k--) {
                const uint64_t other = order[k];
                order[k] = order[k - 1];
                order[k - 1] = other;
            }
        oldest = order[finished - kept];
    }
    for (uint32_t i = 0; i < list_n; i++) {
        const wr_half *half = wr_half_find(h, list[i].half.position);
        const wr_half_outcome *o = wr_half_outcome_of(h, list[i].half.position);
        if (!list[i].kind) {
            CHECK(!o && !half == list[i].dropped && (!half || !memcmp(half, &list[i].half, sizeof *half)));
            continue;
        }
        CHECK(!half && (!o == (list[i].by < oldest)));
        if (o) CHECK(o->kind == list[i].kind && o->by == list[i].by && o->offset == list[i].offset && o->half.topic == list[i].half.topic);
    }
}

/* As of a position: what was finished behind it is pending, what was prepared behind it is not. */
static void snapshot_is_as_of(const wr_halves *h, uint64_t sealed, uint64_t kept) {
    wr_halves q = {.most = 1, .kept = kept};
    wr_halves_head head = {.position = sealed, .epoch = 5, .number = 77}, found = {0};
    memcpy(head.node, node, 16);
    memcpy(found.node, node, 16);
    uint8_t *file = malloc(wr_halves_bytes(h));
    const uint64_t n = wr_halves_encode(h, &head, file);
    CHECK(n <= wr_halves_bytes(h) && !wr_halves_decode(&q, file, n, &found));
    CHECK(found.position == sealed && found.epoch == 5 && found.number == 77);
    uint64_t pending = 0;
    for (uint32_t i = 0; i < list_n; i++) {
        const bool open = !list[i].dropped && list[i].half.position < sealed && (!list[i].kind || list[i].by >= sealed);
        const wr_half *half = wr_half_find(&q, list[i].half.position);
        const wr_half_outcome *o = wr_half_outcome_of(&q, list[i].half.position), *was = wr_half_outcome_of(h, list[i].half.position);
        pending += open;
        CHECK(!half == !open && (!half || !memcmp(half, &list[i].half, sizeof *half)));
        CHECK(!o == !(was && was->by < sealed) && (!o || (o->by == was->by && o->kind == was->kind && o->queue == was->queue && o->offset == was->offset)));
    }
    CHECK(wr_halves_pending(&q) == pending);
    for (int i = 0; i < 200; i++) { /* any byte that changed, any other length */
        const uint64_t at = random_below(n);
        file[at] ^= 1 + (uint8_t)random_below(255);
        wr_halves_free(&q);
        CHECK(wr_halves_decode(&q, file, n, &found) && !wr_halves_pending(&q));
        wr_halves_encode(h, &head, file);
        CHECK(wr_halves_decode(&q, file, at, &found));
    }
    found.node[3]++;
    CHECK(!strcmp(wr_halves_decode(&q, file, n, &found), "it is of another node"));
    free(file);
    wr_halves_free(&q);
}

static void table_is_a_list(uint64_t kept, bool unsealed) {
    wr_halves h = {.most = 500, .kept = kept};
    uint64_t position = 0, sealed = 0;
    list_n = 0;
    while (list_n < LIST) {
        const uint64_t kind = random_below(20);
        position += 1 + random_below(9);
        if (kind < 9) {
            const int error = wr_half_reserve(&h);
            CHECK(error == (wr_halves_pending(&h) >= h.most ? ENOSPC : 0));
            if (error) continue;
            const wr_half half = {.position = position, .due = random_below(99), .size = 7, .topic = 1 + (uint32_t)random_below(3), .asked = (uint32_t)random_below(5)};
            wr_half_add(&h, half);
            memset(&list[list_n], 0, sizeof *list);
            list[list_n++].half = half;
        } else if (kind < 18) {
            const wr_half *half = wr_half_from(&h, random_below(position), 0);
            if (!half) continue;
            uint32_t i = 0;
            while (list[i].half.position != half->position) i++;
            list[i].kind = 1 + (uint32_t)random_below(3);
            list[i].by = position;
            list[i].offset = random_below(1000);
            if (!unsealed) sealed = position;
            CHECK(!wr_half_may_finish(&h, sealed));
            wr_half_finish(&h, (wr_half_outcome){.half = {.position = half->position}, .by = position, .offset = list[i].offset, .kind = list[i].kind});
        } else if (kind == 18 && random_below(60) == 0) {
            const uint32_t topic = 1 + (uint32_t)random_below(3);
            uint64_t n = 0;
            for (uint32_t i = 0; i < list_n; i++)
                if (!list[i].kind && !list[i].dropped && list[i].half.topic == topic) list[i].dropped = true, n++;
            CHECK(wr_half_drop(&h, topic) == n);
        } else if (kind == 19 && unsealed && random_below(20) == 0) {
            sealed = position;
        }
        if (!unsealed && random_below(100) == 0) compare(&h, kept);
    }
    if (!unsealed) compare(&h, kept);
    snapshot_is_as_of(&h, unsealed ? sealed : position + 1, kept);
    wr_halves_free(&h);
}

/* ---- the client ---- */

typedef struct {
    uint32_t queue;
    uint64_t born, command, position; /* NONE: not confirmed yet */
    bool given;                       /* it was confirmed, synced */
    bool refused, asked, told;        /* whoever was told, was told … */
    wr_half_outcome outcome;          /* … this */
} message;

static wr_superblock *super;
static wr_port port;
static void *region;
static message messages[MESSAGES_MAX];
static uint64_t messages_n, looked, refused_n;

/* The body of the n-th message says which it is. */
static uint32_t make_body(uint8_t *to, uint64_t n) {
    const uint64_t x = (n + 1) * 0x9e3779b97f4a7c15ull;
    const uint32_t length = 8 + (uint32_t)(x >> 40) % (n % 50 ? 200 : 6000);
    memcpy(to, &n, 8);
    for (uint32_t i = 8; i < length; i++) to[i] = (uint8_t)(x >> (i % 57));
    return length;
}

static uint32_t make_properties(uint8_t *to, uint64_t n) {
    char text[40];
    uint32_t bytes = n % 4 ? wr_properties_put(to, 200, "KEYS", 4, text, (uint64_t)snprintf(text, sizeof text, "k%llu", (unsigned long long)n)) : 0;
    if (n % 3) bytes += wr_properties_put(to + bytes, 200, "to", 2, "IAH", 3);
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
    messages_n = looked = refused_n = 0;
}

static void close_client(void) {
    wr_port_free(&port);
    free(region);
    free(super);
}

static wr_command *prepare(const uint8_t *blob, uint64_t length, uint64_t *sequence) {
    uint64_t position;
    uint8_t *at;
    wr_port_reclaim(&port);
    if (wr_port_alloc(&port, length, &position, &at)) return NULL;
    wr_command *record = wr_port_prepare(&port, SERVER, sequence);
    if (!record) return NULL;
    memcpy(at, blob, length);
    record->op = WR_OP_APPEND;
    record->flags = WR_FLAG_SYNCED | WR_FLAG_HALF;
    record->queue = TOPIC;
    record->body = position;
    record->length = (uint32_t)length;
    CHECK(wr_port_use(&port, SERVER, *sequence) == 0);
    return record;
}

/* Prepare one, if there is room. */
static void submit(void) {
    static uint8_t blob[1 << 16];
    uint64_t sequence;
    if (messages_n == MESSAGES_MAX || messages_n - looked >= super->ring_records) return;
    const uint32_t properties_n = make_properties(blob, messages_n), length = properties_n + make_body(blob + properties_n, messages_n);
    wr_command *record = prepare(blob, length, &sequence);
    if (!record) return;
    CHECK(sequence == messages_n); /* each command is one */
    record->row = (uint32_t)random_below(QUEUES);
    record->tag = wr_wall_ms() - 5;
    record->meta_length = (uint16_t)properties_n;
    messages[messages_n] = (message){.queue = record->row, .born = record->tag, .command = sequence, .position = NONE};
    messages_n++;
    CHECK(wr_port_submit(&port, SERVER));
}

static void take_answers(void) {
    const uint64_t synced = atomic_load_explicit(&port.view.links[SERVER].synced, memory_order_acquire);
    for (; looked < synced; looked++) {
        const wr_command *record = wr_view_command(&port.view, SERVER, looked);
        uint64_t offset;
        memcpy(&offset, record->id, 8);
        if (atomic_load(&record->result) == WR_RESULT_ERROR) { /* the log had failed, and it was told so */
            messages[looked].refused = true;
            refused_n++;
            continue;
        }
        memcpy(&messages[looked].position, record->id + 8, 8);
        CHECK(atomic_load(&record->result) == WR_RESULT_OK && offset == UINT64_MAX);
        messages[looked].given = true;
    }
}

/* ---- a server that dies ---- */

typedef struct {
    wr_topic_server s;
    void *ring;
    int fd;
    pthread_t committer;
    uint64_t waiting[64]; /* messages of which it was asked; the answer leaves when the log is synced */
    uint32_t waiting_n;
    uint8_t *copied; /* a snapshot that waits for the log to be synced */
    uint64_t copied_at, copied_bytes;
} life;

static uint8_t *saved; /* the snapshot on the disk */
static uint64_t saved_bytes, epochs;
static bool keeps_all;

static void *commit_run(void *argument) {
    wr_topic_log_commit_run(((life *)argument)->s.log, NULL);
    return NULL;
}

static bool often(void *context, const wr_topic_batch *batch) {
    (void)context;
    (void)batch;
    return random_below(16) != 0; /* no room: the same ones come again */
}

/* What became of one is synced before anybody hears of it. */
static void is_synced(void *context, const wr_topic_commit *commit) {
    (void)context;
    if (commit->sync || commit->error) return;
    const uint64_t n = commit->at - commit->from;
    uint8_t *bytes = records_of(commit, FILE_BYTES);
    wr_record record;
    for (uint64_t at = 0; at < n; at += record.size) {
        CHECK(wr_record_scan(bytes + at, n - at, commit->from + at, 0, &record) == WR_SCAN_RECORD);
        CHECK(!wr_half_kind(bytes + at, &record));
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

static int take_halves(void *context, const uint8_t *bytes, uint64_t n, const wr_commit_head *head, const uint8_t *marks) {
    (void)marks;
    return wr_half_commit(context, bytes, n, head);
}

/* What is pending: from the snapshot on, or from the log's begin on. */
static void take_up_halves(life *l, const wr_log_end *end) {
    static const wr_log_visitor visitor = {open_to_read, take_halves};
    wr_commit_head after = {.origin.epoch = 1};
    memcpy(after.origin.node, node, sizeof node);
    wr_halves_head head = {0};
    memcpy(head.node, node, sizeof node);
    wr_log_end found;
    if (saved && random_below(4)) {
        CHECK(!wr_halves_decode(&l->s.halves, saved, saved_bytes, &head) && head.position <= end->position);
        after.number = head.number;
        after.origin.epoch = head.epoch;
    }
    CHECK(wr_log_walk(&visitor, &l->s, FILE_BYTES, head.position, &after, &found) == 0 && found.position == end->position);
    wr_half_taken_up(&l->s);
    CHECK(wr_topic_find(&l->s, TOPIC)->halves_n == wr_halves_pending(&l->s.halves));
}

static void be_born(life *l) {
    static const wr_log_visitor visitor = {open_to_read, take_up};
    memset((void *)l, 0, sizeof *l);
    wr_topic_server_init(&l->s, super, SERVER);
    l->s.halves.kept = keeps_all ? MESSAGES_MAX : 20;
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
    take_up_halves(l, &end);
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
    if (l->copied && state->synced >= l->copied_at) {
        free(saved);
        saved = l->copied;
        saved_bytes = l->copied_bytes;
        l->copied = NULL;
    } else if (!l->copied && random_below(100) == 0) {
        wr_halves_head head = {.position = state->sealed, .epoch = epochs, .number = state->number};
        memcpy(head.node, node, sizeof node);
        CHECK((l->copied = malloc(wr_halves_bytes(&l->s.halves))));
        l->copied_at = state->sealed;
        l->copied_bytes = wr_halves_encode(&l->s.halves, &head, l->copied);
    }
}

static bool same(const wr_half_outcome *a, const wr_half_outcome *b) {
    return a->kind == b->kind && a->by == b->by && a->queue == b->queue && a->offset == b->offset;
}

/* Say what becomes of one, or ask again. What is told now is told for ever. */
static void decide(life *l, uint64_t n, uint32_t kind) {
    message *m = &messages[n];
    wr_half_outcome outcome;
    if (!m->given || m->asked || l->waiting_n == 64) return;
    const int error = wr_half_decide(&l->s, TOPIC, m->position, kind, &outcome);
    if (error == EAGAIN || wr_topic_log_look(l->s.log)->failed) return;
    if (error == ENOENT) CHECK(!keeps_all); /* it was finished long ago, and its answer lost */
    else CHECK(!error && outcome.half.topic == TOPIC && (!m->told || same(&outcome, &m->outcome)));
    if (error) return;
    m->outcome = outcome;
    m->asked = true;
    l->waiting[l->waiting_n++] = n;
}

static void tell(life *l) {
    const uint64_t synced = wr_topic_log_look(l->s.log)->synced;
    uint32_t kept = 0;
    for (uint32_t i = 0; i < l->waiting_n; i++) {
        message *m = &messages[l->waiting[i]];
        if (m->outcome.by + 1 > synced) {
            l->waiting[kept++] = l->waiting[i];
            continue;
        }
        m->told = true;
        m->asked = false;
    }
    l->waiting_n = kept;
}

static uint32_t any_kind(void) { return random_below(2) ? WR_HALF_COMMITTED : random_below(4) ? WR_HALF_ROLLED_BACK : WR_HALF_PUT_ASIDE; }

static void turn(life *l, bool more) {
    give_files(l);
    take_answers();
    if (more && random_below(3) == 0) submit();
    if (looked && random_below(3) == 0) decide(l, looked - 1 - random_below(looked < 60 ? looked : 60), any_kind());
    wr_topic_round(&l->s, wr_now_ns());
    tell(l);
    save_sometimes(l);
}

/* What was told before stays so; what was confirmed is there. */
static void ask_all_again(life *l) {
    for (uint64_t n = 0; n < messages_n; n++) {
        message *m = &messages[n];
        m->asked = false;
        if (!m->given) continue;
        const wr_half *half = wr_half_find(&l->s.halves, m->position);
        const wr_half_outcome *o = wr_half_outcome_of(&l->s.halves, m->position);
        CHECK(!half || !o);
        CHECK(half || o || !keeps_all);
        if (m->told) CHECK(!half && (!o || same(o, &m->outcome)));
    }
}

/* ---- the log at the end ---- */

typedef struct {
    uint64_t position[MESSAGES_MAX]; /* of its half message + 1; 0: it is not there */
    uint8_t state[MESSAGES_MAX];     /* HALF_…; 0: pending */
    uint64_t offsets[QUEUES], finished, committed;
} reading;

static uint64_t number_of(const uint8_t *bytes, const wr_record *record) {
    static uint8_t body[8192], properties[300];
    uint64_t number;
    CHECK(record->body_length >= 8);
    memcpy(&number, bytes + record->body_at, 8);
    CHECK(number < messages_n && record->body_length == make_body(body, number) && !memcmp(bytes + record->body_at, body, record->body_length));
    const uint32_t n = make_properties(properties, number);
    CHECK(record->properties_length >= n && !memcmp(properties, bytes + record->properties_at, n) && record->flag == TOPIC);
    return number;
}

static void read_outcome(reading *r, const uint8_t *bytes, const wr_record *record, uint32_t kind) {
    uint64_t number = 0;
    while (number < messages_n && r->position[number] != record->prepared_transaction_offset + 1) number++;
    CHECK(number < messages_n && !r->state[number]); /* it lies before, and was not finished */
    r->state[number] = (uint8_t)kind;
    r->finished++;
    if (kind == WR_HALF_COMMITTED) {
        uint8_t properties[300];
        CHECK(number_of(bytes, record) == number && record->properties_length == make_properties(properties, number));
        CHECK(record->topic_length == strlen(NAME) && record->born_timestamp == messages[number].born);
        CHECK(record->queue_id == messages[number].queue && record->queue_offset == r->offsets[record->queue_id]++);
        r->committed++;
    } else if (kind == WR_HALF_PUT_ASIDE) CHECK(number_of(bytes, record) == number);
    if (messages[number].told) CHECK(messages[number].outcome.kind == kind && messages[number].outcome.by == record->physical_offset);
}

static int read_commit(void *context, const uint8_t *bytes, uint64_t n, const wr_commit_head *head, const uint8_t *marks) {
    reading *r = context;
    (void)marks;
    wr_record record;
    for (uint64_t at = 0; at < n - wr_commit_record_bytes(head->marks_n); at += record.size) {
        CHECK(wr_record_scan(bytes + at, n - at, head->from + at, WR_SCAN_ALL, &record) == WR_SCAN_RECORD);
        const uint32_t kind = wr_half_kind(bytes + at, &record);
        if (kind) {
            read_outcome(r, bytes + at, &record, kind);
            continue;
        }
        CHECK(wr_half_is(bytes + at, &record));
        const uint64_t number = number_of(bytes + at, &record);
        CHECK(!r->position[number] && record.born_timestamp == messages[number].born);
        r->position[number] = record.physical_offset + 1;
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
    for (uint64_t n = 0; n < messages_n; n++) {
        CHECK(!messages[n].given || r->position[n] == messages[n].position + 1);
        CHECK(!messages[n].refused || !r->position[n]);
        CHECK(!messages[n].told || r->state[n]);
    }
}

static void empty_log(void) {
    for (uint64_t base = 0; unlink(path_of(base)) == 0; base += FILE_BYTES) {}
    forget_unsynced();
    free(saved);
    saved = NULL;
}

static void lives(int lives_n, bool power, bool all) {
    static life l;
    static reading r;
    uint64_t pending = 0;
    keeps_all = all;
    open_client();
    epochs = 0;
    for (int n = 0; n < lives_n; n++) {
        atomic_store(&calls_left, (int64_t)random_below(50));
        be_born(&l);
        ask_all_again(&l);
        pending += wr_halves_pending(&l.s.halves);
        for (int i = 0; i < 2000 && !wr_topic_log_look(l.s.log)->failed; i++) turn(&l, true);
        take_answers();
        tell(&l);
        die(&l);
        if (power) fail_power();
        else forget_unsynced();
        read_all(&r);
    }
    atomic_store(&calls_left, -1);
    be_born(&l);
    ask_all_again(&l);
    while (looked < messages_n || wr_halves_pending(&l.s.halves)) { /* one that is lost ends it never */
        turn(&l, false);
        const wr_half *half = wr_half_from(&l.s.halves, 0, TOPIC);
        for (uint64_t n = 0; half && n < looked; n++)
            if (messages[n].position == half->position) decide(&l, n, any_kind());
    }
    CHECK(wr_topic_sync(&l.s, 60 * SECOND) == 0 && !wr_topic_find(&l.s, TOPIC)->halves_n);
    die(&l);
    read_all(&r);
    CHECK(r.finished == messages_n - refused_n);
    printf("  %d lives%s: %llu half messages, %llu were committed; %llu were pending at a start\n", lives_n,
           power ? " that end by a loss of power" : "", (unsigned long long)messages_n, (unsigned long long)r.committed, (unsigned long long)pending);
    CHECK(messages_n >= 20 && r.committed >= messages_n / 10); /* how many there are depends on the seed and on who runs beside it */
    close_client();
    empty_log();
}

/* ---- single things ---- */

static life alone;

static void begin_alone(void) {
    atomic_store(&calls_left, -1);
    keeps_all = true;
    open_client();
    epochs = 0;
    be_born(&alone);
}

static void end_alone(void) {
    die(&alone);
    close_client();
    empty_log();
}

/* One command with these properties; its result, or the reason why the link was closed, negative. */
static int64_t give(const char *properties, uint32_t n, uint32_t topic, uint32_t op) {
    static uint8_t blob[1 << 16];
    uint64_t sequence;
    memcpy(blob, properties, n);
    memcpy(blob + n, "body", 4);
    wr_command *record = prepare(blob, n + 4, &sequence);
    CHECK(record);
    record->op = (uint8_t)op;
    record->queue = topic;
    record->meta_length = (uint16_t)n;
    record->count = op == WR_OP_APPEND ? 0 : 1;
    CHECK(wr_port_submit(&port, SERVER));
    const wr_link *link = &port.view.links[SERVER];
    while (atomic_load(&link->processed) <= sequence && !atomic_load(&link->evicted)) {
        give_files(&alone);
        wr_topic_round(&alone.s, wr_now_ns());
    }
    const int64_t reason = atomic_load(&link->evicted);
    return reason ? -reason : (int64_t)atomic_load(&wr_view_command(&port.view, SERVER, sequence)->result);
}

static void nonsense_is_refused(void) {
    static const char *const bad[] = {"a", "a\1b" /* no end: what comes behind would belong to it */, "\1\2", "a\2"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        begin_alone();
        CHECK(give(bad[i], (uint32_t)strlen(bad[i]), TOPIC, WR_OP_APPEND) == -WR_EVICTED_BLOB && !wr_halves_pending(&alone.s.halves));
        CHECK(wr_topic_log_look(alone.s.log)->append == 0);
        end_alone();
    }
    static char long_one[WR_PROPERTIES_BYTES_MAX];
    for (uint32_t less = 0; less < 2; less++) { /* there is room for the message's own, and not for what is added */
        const uint32_t n = WR_PROPERTIES_BYTES_MAX - wr_half_more(strlen(NAME), 0) + 1 - less;
        memset(long_one, 'x', n);
        long_one[1] = 1;
        long_one[n - 1] = 2;
        begin_alone();
        CHECK(give(long_one, n, TOPIC, WR_OP_APPEND) == (less ? WR_RESULT_OK : -WR_EVICTED_BLOB));
        end_alone();
    }
    begin_alone(); /* one at a time */
    CHECK(give("\4\0\0\0\0\0\0\0", 8, TOPIC, WR_OP_APPEND_MANY) == -WR_EVICTED_BLOB);
    end_alone();
}

static void they_go_with_their_topic(void) {
    begin_alone();
    CHECK(wr_topic_declare(&alone.s, GONE, "gone", 4, 1));
    for (int i = 0; i < 5; i++) CHECK(give("", 0, GONE, WR_OP_APPEND) == WR_RESULT_OK && give("", 0, TOPIC, WR_OP_APPEND) == WR_RESULT_OK);
    CHECK(wr_topic_find(&alone.s, GONE)->halves_n == 5 && wr_halves_pending(&alone.s.halves) == 10);
    CHECK(wr_topic_sync(&alone.s, 60 * SECOND) == 0);
    wr_half_drop_topic(&alone.s, wr_topic_find(&alone.s, GONE));
    wr_topic_drop(&alone.s, GONE);
    CHECK(wr_halves_pending(&alone.s.halves) == 5 && !wr_half_from(&alone.s.halves, 0, GONE) && wr_topic_find(&alone.s, TOPIC)->halves_n == 5);
    die(&alone);
    be_born(&alone); /* the log has them for ever */
    CHECK(wr_halves_pending(&alone.s.halves) == 5);
    end_alone();
}

/* Its own record lies before the one that finishes it. */
static void none_is_finished_before_it_is_sealed(void) {
    wr_half_outcome outcome;
    begin_alone();
    CHECK(give("", 0, TOPIC, WR_OP_APPEND) == WR_RESULT_OK && wr_topic_sync(&alone.s, 60 * SECOND) == 0);
    const uint64_t end = wr_topic_log_look(alone.s.log)->append;
    CHECK(!wr_half_reserve(&alone.s.halves));
    wr_half_add(&alone.s.halves, (wr_half){.position = end, .size = 100, .topic = TOPIC}); /* as if it were being appended */
    wr_topic_find(&alone.s, TOPIC)->halves_n++;
    for (uint32_t kind = WR_HALF_COMMITTED; kind <= WR_HALF_PUT_ASIDE; kind++) CHECK(wr_half_decide(&alone.s, TOPIC, end, kind, &outcome) == EAGAIN);
    CHECK(wr_topic_log_look(alone.s.log)->append == end && wr_half_find(&alone.s.halves, end));
    end_alone();
}

/* A clock that is set back asks no later than it would have. */
static void a_clock_that_was_set_back_holds_up_no_question(void) {
    wr_half asked[4];
    uint64_t next;
    begin_alone();
    CHECK(give("", 0, TOPIC, WR_OP_APPEND) == WR_RESULT_OK && wr_topic_sync(&alone.s, 60 * SECOND) == 0);
    wr_half *half = wr_half_from(&alone.s.halves, 0, TOPIC);
    half->due = alone.s.wall_ms + 1;
    CHECK(wr_half_ask(&alone.s, TOPIC, asked, 4, &next) == 0 && next == alone.s.wall_ms + 1);
    half->due = alone.s.wall_ms + 86400000;
    CHECK(wr_half_ask(&alone.s, TOPIC, asked, 4, &next) == 1 && asked[0].asked == 1 && next == alone.s.wall_ms + alone.s.half_interval_ms);
    CHECK(wr_half_ask(&alone.s, TOPIC, asked, 4, &next) == 0);
    end_alone();
}

int main(int argc, char **argv) {
    setvbuf(stdout, NULL, _IOLBF, 0);
    scratch_begin("halves_test", argc, argv);
    CHECK(mkdirat(scratch_fd, "commitlog", 0700) == 0);
    table_is_a_list(LIST, false);
    table_is_a_list(50, false);
    for (int i = 0; i < 4; i++) table_is_a_list(i % 2 ? LIST : 50, true);
    nonsense_is_refused();
    they_go_with_their_topic();
    none_is_finished_before_it_is_sealed();
    a_clock_that_was_set_back_holds_up_no_question();
    lives(ROUNDS(30), false, true);
    lives(ROUNDS(30), true, true);
    lives(ROUNDS(20), true, false);
    free(unsynced);
    close(scratch_fd);
    scratch_end();
    return 0;
}
