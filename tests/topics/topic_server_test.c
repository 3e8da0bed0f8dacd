/* Goal: what the topic worker's core confirms is in the log, once, in order, where it said; a batch is all or nothing; whatever a client
 * writes into its region costs nobody but itself.
 * Method: two clients' ports and a server in one process, with a small ring and small files. The server dies at any write or sync of its
 * committer (before, within or behind it), is begun again from the files and the rings, and dies again. At the end the log is read
 * whole. Hostile commands by hand. Runs under AddressSanitizer and ThreadSanitizer. Prints its seed. */
#define _GNU_SOURCE
#include "ipc/core/port.h"
#include "support/check.h"
#include "support/random.h"
#include "topics/confirm.h"
#include "topics/links.h"
#include "topics/server.h"
#include "topics/table.h"
#include "topics/walk.h"
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>

#define RING_BYTES (32 * 4096u)
#define FILE_BYTES (64 * 4096u)
#define SECOND 1000000000ull
#define SERVER 2
#define CLIENTS 2
#define QUEUES 3
#define TOPIC 7
#define COMMANDS_MAX 100000

static char folder[200];
static const uint8_t node[16] = "a node of tests";

static const char *path_of(uint64_t base) {
    static _Thread_local char path[300];
    snprintf(path, sizeof path, "%s/%020llu", folder, (unsigned long long)base);
    return path;
}

/* ---- clients ---- */

typedef struct {
    uint32_t queue, n;
    uint64_t first; /* number of its first record among those of the client */
    bool synced, written;
    uint64_t offset, position; /* as it was told, when it was confirmed */
    bool confirmed, refused; /* refused: by a log that had failed */
} sent;

typedef struct {
    wr_port port;
    void *region;
    uint64_t records_n, commands_n, looked;
    sent commands[COMMANDS_MAX];
} client;

static wr_superblock *super;
static client clients[CLIENTS];

/* The body of a client's n-th record says whose and which it is. */
static uint32_t make_body(uint8_t *to, uint32_t who, uint64_t n) {
    uint64_t x = (n * CLIENTS + who) * 0x9e3779b97f4a7c15ull + 1;
    uint32_t length = 12 + (uint32_t)(x >> 40) % 400;
    memcpy(to, &who, 4);
    memcpy(to + 4, &n, 8);
    for (uint32_t i = 12; i < length; i++) to[i] = (uint8_t)(x >> (i % 57));
    return length;
}

static void open_clients(void) {
    super = calloc(1, WR_SUPERBLOCK_BYTES);
    CHECK(super);
    super->servers_n = SERVER + 1;
    super->ring_records = 64;
    super->delivery_slots = 2;
    super->reply_bytes = 4096;
    super->arena_bytes = 1 << 16;
    super->message_bytes_max = super->shared_bytes_max = 1 << 14;
    const wr_geometry g = wr_geometry_of(super);
    for (uint32_t i = 0; i < CLIENTS; i++) {
        uint64_t bytes = wr_view_bytes(&g);
        CHECK((clients[i].region = aligned_alloc(4096, wr_page_up(bytes))));
        memset(clients[i].region, 0, bytes);
        CHECK(wr_port_init(&clients[i].port, super, clients[i].region, bytes, i, 1, 100 + i) == 0);
    }
}

static void close_clients(void) {
    for (uint32_t i = 0; i < CLIENTS; i++) {
        wr_port_free(&clients[i].port);
        free(clients[i].region);
    }
    free(super);
}

/* Submit one command, if there is room. */
static void submit(uint32_t who) {
    client *c = &clients[who];
    static uint8_t blob[1 << 15];
    uint32_t n = random64() % 3 ? 1 : 2 + (uint32_t)(random64() % 20);
    uint64_t table = n > 1 ? n * sizeof(wr_append_part) : 0, length = table, position, sequence;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t bytes = make_body(blob + length, who, c->records_n + i);
        if (n > 1) ((wr_append_part *)blob)[i] = (wr_append_part){.body_length = bytes};
        length += bytes;
    }
    uint8_t *at;
    wr_port_reclaim(&c->port);
    if (c->commands_n == COMMANDS_MAX || c->commands_n - c->looked >= super->ring_records || wr_port_alloc(&c->port, length, &position, &at)) return;
    wr_command *record = wr_port_prepare(&c->port, SERVER, &sequence);
    if (!record) return;
    CHECK(sequence == c->commands_n);
    memcpy(at, blob, length);
    sent *s = &c->commands[c->commands_n++];
    *s = (sent){.queue = (uint32_t)(random64() % QUEUES), .n = n, .first = c->records_n, .synced = random64() % 2};
    s->written = !s->synced && random64() % 2;
    record->op = n > 1 ? WR_OP_APPEND_MANY : WR_OP_APPEND;
    record->flags = s->synced ? WR_FLAG_SYNCED : s->written ? WR_FLAG_WRITTEN : 0;
    record->queue = TOPIC;
    record->row = s->queue;
    record->tag = 1700000000000;
    record->count = n > 1 ? n : 0;
    record->body = position;
    record->length = (uint32_t)length;
    CHECK(wr_port_use(&c->port, SERVER, sequence) == 0);
    CHECK(wr_port_submit(&c->port, SERVER));
    c->records_n += n;
}

/* Take the answers of what is confirmed now, before their places are used again. */
static void take_answers(uint32_t who) {
    client *c = &clients[who];
    wr_link *link = &c->port.view.links[SERVER];
    uint64_t synced = atomic_load_explicit(&link->synced, memory_order_acquire), head = atomic_load_explicit(&link->head, memory_order_acquire);
    for (; c->looked < head; c->looked++) {
        sent *s = &c->commands[c->looked];
        const wr_command *record = wr_view_command(&c->port.view, SERVER, c->looked);
        uint32_t result = atomic_load(&record->result);
        s->refused = result == WR_RESULT_ERROR;
        CHECK(result == WR_RESULT_OK || s->refused);
        memcpy(&s->offset, record->id, 8);
        memcpy(&s->position, record->id + 8, 8);
        s->confirmed = !s->refused;
    }
    CHECK(synced <= c->commands_n && head <= c->commands_n);
}

/* ---- a server that dies ---- */

static _Atomic int64_t calls_left; /* of write and sync, until it dies; negative: it does not */

static bool dies(void) { return atomic_load(&calls_left) >= 0 && atomic_fetch_sub(&calls_left, 1) <= 0; }

static ssize_t mortal_pwrite(void *context, int fd, const void *from, size_t n, off_t at) {
    (void)context;
    if (!dies()) return pwrite(fd, from, n, at);
    atomic_store(&calls_left, 0);
    size_t part = (size_t)at % 3 == 0 ? n : n / 2; /* the kernel goes on with what it has */
    if (n > 512) CHECK(pwrite(fd, from, part, at) == (ssize_t)part);
    errno = EIO;
    return -1;
}

static int mortal_sync(void *context, int fd) {
    (void)context;
    (void)fd;
    if (!dies()) return 0;
    atomic_store(&calls_left, 0);
    errno = EIO;
    return -1;
}

typedef struct {
    wr_topic_server s;
    void *ring;
    int fd;
    pthread_t committer;
    uint64_t unsealed_n, sealed_number; /* on the loop's thread */
    uint64_t done_to, done_number;      /* on the committer's */
} life;

static void *commit_run(void *argument) {
    wr_topic_log_commit_run(((life *)argument)->s.log, NULL);
    return NULL;
}

static bool count_records(void *context, const wr_topic_batch *batch) {
    wr_record record;
    const uint8_t *bytes = batch->bytes;
    uint64_t position = batch->position;
    if (random64() % 16 == 0) return false; /* no room: the same ones come again */
    for (uint32_t i = 0; i < batch->n; i++, bytes += record.size, position += record.size) {
        CHECK(wr_record_scan(bytes, batch->sizes[i], position, WR_SCAN_ALL, &record) == WR_SCAN_RECORD && record.size == batch->sizes[i]);
        CHECK(record.queue_offset == batch->offset + i && record.queue_id == batch->queue && record.store_timestamp == batch->store_ms);
        CHECK(record.body_length == batch->parts[i].body_length && record.properties_length == batch->parts[i].properties_length);
    }
    life *l = context;
    l->unsealed_n += batch->n;
    return true;
}

static void count_sealed(void *context, const wr_commit_head *head, const wr_commit_mark *marks, uint64_t end) {
    life *l = context;
    CHECK(l->unsealed_n && head->number == l->sealed_number + 1 && head->from < end && head->marks_n && marks[0].sequence);
    l->sealed_number++;
    l->unsealed_n = 0;
}

static void count_done(void *context, const wr_topic_commit *commit) {
    life *l = context;
    CHECK(commit->error || (commit->to >= l->done_to && commit->head.number >= l->done_number));
    if (!commit->error) l->done_to = commit->to, l->done_number = commit->head.number;
}

static int open_to_read(void *context, uint64_t base) {
    (void)context;
    int fd = open(path_of(base), O_RDONLY);
    return fd < 0 ? -errno : fd;
}

static int open_to_write(void *context, uint64_t base) {
    (void)context;
    int fd = open(path_of(base), O_RDWR);
    return fd < 0 ? -errno : fd;
}

/* A commit of the log: offsets and marks for the next server. */
static int take_up(void *context, const uint8_t *bytes, uint64_t n, const wr_commit_head *head, const uint8_t *marks) {
    wr_topic_server *s = context;
    for (uint64_t at = 0; at < n;) {
        wr_record record;
        CHECK(wr_record_scan(bytes + at, n - at, head->from + at, WR_SCAN_ALL, &record) == WR_SCAN_RECORD);
        if (record.topic_length == 1) {
            wr_topic_queue *row = &wr_topic_find(s, TOPIC)->queues[record.queue_id];
            CHECK(row->next == record.queue_offset);
            row->next++;
        }
        at += record.size;
    }
    for (uint32_t i = 0; i < head->marks_n; i++) {
        wr_commit_mark mark = wr_commit_mark_read(marks, i);
        CHECK(wr_topic_mark(s, mark.client_epoch, mark.sequence));
    }
    return 0;
}

static uint64_t epochs;

static void be_born(life *l) {
    static const wr_log_visitor visitor = {open_to_read, take_up};
    static const wr_commit_io io = {mortal_pwrite, mortal_sync};
    memset((void *)l, 0, sizeof *l);
    wr_topic_server_init(&l->s, super, SERVER);
    CHECK(wr_topic_declare(&l->s, TOPIC, "t", 1, QUEUES));
    wr_commit_head none = {.origin.epoch = 1};
    memcpy(none.origin.node, node, sizeof node);
    wr_log_end end;
    CHECK(wr_log_walk(&visitor, &l->s, FILE_BYTES, 0, &none, &end) == 0 && !end.damaged);
    CHECK(wr_log_settle(open_to_write, NULL, NULL, NULL, FILE_BYTES, &end) == 0);
    unlink(path_of(end.position / FILE_BYTES * FILE_BYTES + FILE_BYTES));
    CHECK((l->fd = memfd_create("ring", 0)) >= 0 && ftruncate(l->fd, WR_PAGE_BYTES + RING_BYTES) == 0);
    CHECK((l->ring = wr_topic_ring_map(l->fd, RING_BYTES)));
    wr_commit_origin origin = end.last.origin;
    origin.epoch = ++epochs;
    CHECK((l->s.log = wr_topic_log_new(l->ring, RING_BYTES, FILE_BYTES, &origin, wr_topic_server_written, wr_topic_server_done, &l->s)));
    wr_topic_log_set_io(l->s.log, &io, NULL);
    wr_topic_log_begin(l->s.log, end.position, end.last.number, end.last.store_ms);
    l->s.store_ms = end.last.store_ms;
    l->s.follower = (wr_topic_follower){l, count_records, count_sealed, NULL, count_done};
    l->sealed_number = l->done_number = end.last.number;
    for (uint32_t i = 0; i < CLIENTS; i++) CHECK(wr_topic_attach(&l->s, i, 1, 100 + i, clients[i].region, wr_view_bytes(&l->s.geometry)) == 0);
    CHECK(wr_topic_attach(&l->s, 0, 1, 100, clients[0].region, 4096) == EEXIST);
    wr_topic_serve(&l->s, epochs);
    for (uint32_t i = 0; i < CLIENTS; i++) { /* what was there is synced */
        const wr_link *link = &clients[i].port.view.links[SERVER];
        CHECK(atomic_load(&link->synced) >= atomic_load(&link->head) && atomic_load(&link->server_epoch) == epochs);
    }
    CHECK(pthread_create(&l->committer, NULL, commit_run, l) == 0);
}

static void die(life *l) {
    wr_topic_log_stop(l->s.log);
    CHECK(pthread_join(l->committer, NULL) == 0);
    wr_topic_log_free(l->s.log);
    wr_topic_server_free(&l->s);
    wr_topic_ring_unmap(l->ring, RING_BYTES);
    close(l->fd);
}

static void give_files(life *l) {
    const wr_topic_log_state *s = wr_topic_log_look(l->s.log);
    if (s->has_next || !s->wants_next) return;
    uint64_t base = s->has_file ? s->base + FILE_BYTES : s->base;
    int fd = open(path_of(base), O_RDWR | O_CREAT, 0600);
    CHECK(fd >= 0 && ftruncate(fd, FILE_BYTES) == 0 && wr_topic_log_offer(l->s.log, fd, base) == 0);
}

static void turn(life *l) {
    give_files(l);
    for (uint32_t i = 0; i < CLIENTS; i++) {
        take_answers(i);
        if (random64() % 2) submit(i);
    }
    wr_topic_round(&l->s, wr_now_ns());
}

/* ---- the log at the end ---- */

typedef struct {
    uint64_t next[CLIENTS], offsets[QUEUES], command[CLIENTS], of_command[CLIENTS], records;
} reading;

static void skip_refused(reading *r, uint32_t who) {
    for (const sent *s; r->command[who] < clients[who].commands_n && (s = &clients[who].commands[r->command[who]])->refused; r->command[who]++)
        r->next[who] += s->n;
}

static int read_commit(void *context, const uint8_t *bytes, uint64_t n, const wr_commit_head *head, const uint8_t *marks) {
    reading *r = context;
    (void)marks;
    for (uint64_t at = 0; at < n;) {
        wr_record record;
        CHECK(wr_record_scan(bytes + at, n - at, head->from + at, WR_SCAN_ALL, &record) == WR_SCAN_RECORD);
        uint64_t begin = at;
        at += record.size;
        if (record.topic_length != 1) continue;
        CHECK(record.flag == TOPIC);
        uint8_t body[1024];
        uint32_t who;
        uint64_t number;
        memcpy(&who, bytes + begin + record.body_at, 4);
        memcpy(&number, bytes + begin + record.body_at + 4, 8);
        CHECK(who < CLIENTS);
        skip_refused(r, who);
        CHECK(number == r->next[who]); /* each once, in order */
        CHECK(record.body_length == make_body(body, who, number) && !memcmp(bytes + begin + record.body_at, body, record.body_length));
        const sent *s = &clients[who].commands[r->command[who]];
        CHECK(record.queue_id == s->queue && record.queue_offset == r->offsets[s->queue]);
        if (r->of_command[who] == 0 && s->confirmed) CHECK(s->offset == record.queue_offset && s->position == head->from + begin);
        if (r->of_command[who] == 0) CHECK(head->from + n > begin); /* and all of it in this commit: below */
        r->next[who]++;
        r->offsets[s->queue]++;
        r->records++;
        if (++r->of_command[who] == s->n) {
            r->command[who]++;
            r->of_command[who] = 0;
        }
    }
    for (int i = 0; i < CLIENTS; i++) CHECK(!r->of_command[i]); /* no batch goes on in another commit */
    return 0;
}

static void read_all(reading *r) {
    static const wr_log_visitor visitor = {open_to_read, read_commit};
    memset(r, 0, sizeof *r);
    wr_commit_head none = {.origin.epoch = 1};
    memcpy(none.origin.node, node, sizeof node);
    wr_log_end end;
    CHECK(wr_log_walk(&visitor, r, FILE_BYTES, 0, &none, &end) == 0 && !end.damaged);
    for (uint32_t i = 0; i < CLIENTS; i++) skip_refused(r, i);
}

static void lives(int lives_n) {
    static life l;
    reading r;
    open_clients();
    epochs = 0;
    for (int i = 0; i < CLIENTS; i++) clients[i].records_n = clients[i].commands_n = clients[i].looked = 0;
    for (int n = 0; n < lives_n; n++) {
        atomic_store(&calls_left, (int64_t)(random64() % 60));
        be_born(&l);
        for (int i = 0; i < 3000 && !wr_topic_log_look(l.s.log)->failed; i++) turn(&l);
        die(&l);
        for (uint32_t i = 0; i < CLIENTS; i++) take_answers(i);
        read_all(&r);
        for (uint32_t i = 0; i < CLIENTS; i++) {
            const wr_link *link = &clients[i].port.view.links[SERVER];
            CHECK(r.command[i] >= atomic_load(&link->synced) && r.command[i] >= atomic_load(&link->head));
            CHECK(r.command[i] >= atomic_load(&link->written));
        }
    }
    atomic_store(&calls_left, -1);
    be_born(&l);
    for (uint32_t i = 0; i < CLIENTS; i++)
        while (atomic_load(&clients[i].port.view.links[SERVER].head) < clients[i].commands_n) {
            give_files(&l);
            wr_topic_round(&l.s, wr_now_ns());
            take_answers(i);
        }
    CHECK(wr_topic_sync(&l.s, 60 * SECOND) == 0);
    for (uint32_t i = 0; i < CLIENTS; i++) {
        CHECK(atomic_load(&clients[i].port.view.links[SERVER].synced) == clients[i].commands_n);
        wr_topic_closing(&l.s, i);
        CHECK(!wr_topic_detach(&l.s, i));
        wr_topic_round(&l.s, wr_now_ns());
        CHECK(wr_topic_detach(&l.s, i) && !wr_topic_detach(&l.s, i));
    }
    die(&l);
    read_all(&r);
    for (uint32_t i = 0; i < CLIENTS; i++) CHECK(r.command[i] == clients[i].commands_n && r.next[i] == clients[i].records_n);
    printf("  %d lives, %llu records in %llu commands\n", lives_n, (unsigned long long)r.records,
           (unsigned long long)(clients[0].commands_n + clients[1].commands_n));
    close_clients();
    for (uint64_t base = 0; unlink(path_of(base)) == 0; base += FILE_BYTES) {}
}

/* ---- nonsense ---- */

/* A command of client 0, as it is given; what became of it: its result, or the reason why the link was closed, negative. */
static int64_t give(wr_command given) {
    static life l;
    open_clients();
    epochs = 0;
    for (int i = 0; i < CLIENTS; i++) clients[i].records_n = clients[i].commands_n = clients[i].looked = 0;
    be_born(&l);
    uint64_t sequence;
    wr_command *record = wr_port_prepare(&clients[0].port, SERVER, &sequence);
    CHECK(record);
    memcpy((void *)record, (const void *)&given, sizeof given);
    CHECK(wr_port_submit(&clients[0].port, SERVER));
    clients[0].commands_n = 1;
    submit(1);
    bool known = false;
    for (int i = 0; i < 100; i++) {
        give_files(&l);
        wr_topic_round(&l.s, wr_now_ns());
        if (l.s.unknown && i > 50) {
            known = true;
            wr_topic_catalog_loaded(&l.s);
        }
    }
    CHECK(!known || given.queue != TOPIC);
    CHECK(wr_topic_sync(&l.s, 60 * SECOND) == 0);
    wr_topic_round(&l.s, wr_now_ns());
    int64_t reason = atomic_load(&clients[0].port.view.links[SERVER].evicted);
    int64_t result = atomic_load(&wr_view_command(&clients[0].port.view, SERVER, 0)->result);
    const wr_link *other = &clients[1].port.view.links[SERVER];
    CHECK(!atomic_load(&other->evicted) && atomic_load(&other->head) == 1); /* nobody else feels it */
    bool done = atomic_load(&clients[0].port.view.links[SERVER].head) == 1;
    CHECK(done == !reason);
    die(&l);
    close_clients();
    unlink(path_of(0));
    return reason ? -reason : result;
}

static void nonsense(void) {
    atomic_store(&calls_left, -1);
    const wr_command good = {.op = WR_OP_APPEND, .flags = WR_FLAG_SYNCED, .queue = TOPIC, .length = 10};
    wr_command c = good;
    CHECK(give(c) == WR_RESULT_OK);
    c.length = 0;
    CHECK(give(c) == WR_RESULT_OK); /* an empty body */
    c = good, c.queue = TOPIC + 1;
    CHECK(give(c) == WR_RESULT_NO); /* a topic that nobody knows */
    c = good, c.row = QUEUES;
    CHECK(give(c) == WR_RESULT_NO);
    c = good, c.length = (1 << 16) + 1;
    CHECK(give(c) == -WR_EVICTED_BLOB);
    c = good, c.body = (1 << 16) - 5;
    CHECK(give(c) == -WR_EVICTED_BLOB);
    c = good, c.meta_length = 11;
    CHECK(give(c) == -WR_EVICTED_BLOB);
    c = good, c.meta_length = 5; /* zeros are no properties */
    CHECK(give(c) == -WR_EVICTED_BLOB);
    c = good, c.tag = UINT64_MAX; /* a time is the client's to know */
    CHECK(give(c) == WR_RESULT_OK);
    c = good, c.op = WR_OP_PUBLISH;
    CHECK(give(c) == -WR_EVICTED_OPERATION);
    c = good, c.op = WR_OP_BARRIER;
    CHECK(give(c) == WR_RESULT_OK);
    c = good, c.op = WR_OP_APPEND_MANY;
    CHECK(give(c) == -WR_EVICTED_BLOB); /* of none */
    c.count = 1;
    CHECK(give(c) == -WR_EVICTED_BLOB); /* 2 bytes more than its table says */
    c.length = 8;
    CHECK(give(c) == WR_RESULT_OK);
    c.count = WR_APPEND_COUNT_MAX + 1, c.length = 1 << 16;
    CHECK(give(c) == -WR_EVICTED_BLOB);
    c.count = UINT64_MAX / 8 + 2;
    CHECK(give(c) == -WR_EVICTED_BLOB);
    c = good, c.length = 1 << 16;
    CHECK(give(c) == WR_RESULT_REFUSED); /* more than a commit can hold in so small a ring */
}

int main(int argc, char **argv) {
    setvbuf(stdout, NULL, _IOLBF, 0);
    random_begin("topic_server_test", argc, argv);
    snprintf(folder, sizeof folder, "/tmp/topic-server-XXXXXX");
    CHECK(mkdtemp(folder));
    nonsense();
    for (int i = 0; i < 3; i++) lives(ROUNDS(30));
    CHECK(rmdir(folder) == 0);
    return 0;
}
