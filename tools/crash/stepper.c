/* Single-steps one client operation, and saves the shared image after every instruction that changed it.
 *
 *   stepper IMAGE REGION_BYTES DIRECTORY_ROWS SLOT GENERATION CLIENT_EPOCH OPERATION OUTPUT
 *
 * IMAGE is a file: superblock | client region | directory, as a real node had them for a client that has just registered. The
 * child maps it shared and does what the core does for a client; the parent single-steps it (ptrace, x86_64) and compares
 * after each instruction. OUTPUT gets, for every distinct image: u64 instruction, u64 ranges, then the ranges, each u64 offset,
 * u64 bytes, bytes: what differs from IMAGE as it was found. A death of the client at any point leaves exactly one of them.
 *
 * Operations (ids: 16 times the letter; bodies: 100 times the letter)
 *   write         a                             write_many    a, b, c, one submit
 *   eliminate     remove a, which is flying      remove        remove a: sends a command (nothing is flying)
 *   read          a, which is flying             contains, barrier, terminate: the plain commands
 *   batch         a … e in one command: ids are the client's epoch and 62 … 66, so they lie in two groups of the directory
 *   batch_eliminate  remove b and d of a batch that is flying
 *   batch_part    remove b, which is flying, and `a` as a single id, which is not: one is eliminated, one command is sent
 *   publish       put a into queue 1 of the worker     settle        ack of sequences 0, 1, 2 of queue 1
 * What comes before the stepped part is found in the first image. Exit: 0; 77 when ptrace is forbidden; else 1 and a reason.
 */
#include "client/attachment.h"
#include "store/client.h"
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define LINE 64
#define STEPS_MAX 2000000ull
#define WORKER WR_SERVER_WORKER_FIRST
#define QUEUE 1

static void fail(const char *what) {
    fprintf(stderr, "stepper: %s: %s\n", what, strerror(errno));
    exit(1);
}

static uint64_t number(const char *text) { return strtoull(text, NULL, 10); }

typedef struct {
    uint8_t *base;
    uint64_t bytes, region_bytes;
    uint32_t directory_rows, slot, generation;
    uint64_t client_epoch;
    const char *operation;
} options;

/* ---- the child ---- */

static void mark(void) { raise(SIGSTOP); } /* the parent begins, and ends, to step here */

static void must(int error, const char *what) {
    if (!error) return;
    errno = error;
    fail(what);
}

static void prepare_write(wr_store_client *store, char letter) {
    uint8_t id[16], *at;
    uint64_t position, sequence;
    memset(id, letter, sizeof id);
    must(wr_port_alloc(store->port, 100, &position, &at), "alloc");
    memset(at, letter, 100);
    must(wr_store_client_write(store, id, position, 100, 0, 0, WR_FLAG_SYNCED, &sequence), "write");
    must(wr_port_use(store->port, store->server, sequence), "use");
}

static void remove_one(wr_store_client *store, char letter, bool expect_eliminated) {
    uint8_t id[1][16];
    uint32_t eliminated;
    memset(id, letter, sizeof id);
    must(wr_store_client_remove(store, (const uint8_t(*)[16])id, 1, &eliminated), "remove");
    if (eliminated != expect_eliminated) must(EPROTO, "elimination");
    wr_port_submit(store->port, store->server);
}

#define BATCH 5
#define BATCH_FROM 62

static void batch_id(const wr_store_client *store, uint32_t i, uint8_t id[16]) {
    uint64_t epoch = store->port->client_epoch;
    for (uint32_t k = 0; k < 8; k++) id[k] = (uint8_t)(epoch >> (56 - 8 * k));
    memset(id + 8, 0, 7);
    id[15] = (uint8_t)(BATCH_FROM + i);
}

static void prepare_batch(wr_store_client *store) {
    static uint8_t bytes[BATCH][100];
    wr_store_body bodies[BATCH];
    uint8_t first[16];
    uint64_t sequence;
    for (uint32_t i = 0; i < BATCH; i++) {
        memset(bytes[i], 'a' + (int)i, sizeof bytes[i]);
        bodies[i] = (wr_store_body){bytes[i], sizeof bytes[i]};
    }
    batch_id(store, 0, first);
    must(wr_store_client_write_many(store, first, bodies, BATCH, WR_FLAG_SYNCED, &sequence), "write_many");
}

static void plain(wr_store_client *store, uint8_t op, char letter) {
    uint64_t sequence;
    wr_command *command = wr_port_prepare(store->port, store->server, &sequence);
    if (!command) must(EAGAIN, "prepare");
    command->op = op;
    command->flags = WR_FLAG_SYNCED;
    memset(command->id, letter, sizeof command->id);
    wr_port_submit(store->port, store->server);
}

static void operate(const options *o) {
    static wr_attachment attachment; /* its port serves the store's client, too */
    wr_superblock *super = (wr_superblock *)o->base;
    uint8_t *region = o->base + WR_SUPERBLOCK_BYTES;
    must(wr_attachment_init(&attachment, super, region, o->region_bytes, o->slot, o->generation, o->client_epoch), "init");
    for (uint32_t server = 0; server < super->servers_n; server++) { /* of a client that has sent something before: go on behind it */
        wr_link *link = &attachment.port.view.links[server];
        uint64_t tail = atomic_load(&link->tail);
        attachment.port.prepared[server] = tail;
        attachment.port.head_seen[server] = atomic_load(&link->head);
        if (tail) attachment.port.arena_next = attachment.port.arena_freed = super->arena_bytes / 2;
    }
    wr_store_client store = {.port = &attachment.port,
                             .server = WR_SERVER_STORE_PERSISTENT,
                             .directory = (_Atomic uint64_t *)(region + o->region_bytes),
                             .directory_rows = o->directory_rows};
    wr_condition blocked;
    uint32_t done = 0;
    uint64_t sequences[1], sequence;
    uint8_t id[16], body[100];
    memset(id, 'a', sizeof id);
    memset(body, 'a', sizeof body);
    if (!strcmp(o->operation, "write")) {
        mark();
        prepare_write(&store, 'a');
        wr_port_submit(store.port, store.server);
    } else if (!strcmp(o->operation, "write_many")) {
        mark();
        for (char letter = 'a'; letter <= 'c'; letter++) prepare_write(&store, letter);
        wr_port_submit(store.port, store.server);
    } else if (!strcmp(o->operation, "eliminate")) {
        prepare_write(&store, 'a');
        wr_port_submit(store.port, store.server);
        mark();
        remove_one(&store, 'a', true);
    } else if (!strcmp(o->operation, "remove")) {
        mark();
        remove_one(&store, 'a', false);
    } else if (!strcmp(o->operation, "read")) {
        uint8_t *bytes;
        uint32_t length;
        uint16_t meta_length;
        prepare_write(&store, 'a');
        wr_port_submit(store.port, store.server);
        mark();
        must(wr_store_client_read(&store, id, &bytes, &length, &meta_length), "read");
        if (length != 100 || memcmp(bytes, body, 100)) must(EBADMSG, "read");
    } else if (!strcmp(o->operation, "contains")) {
        mark();
        plain(&store, WR_OP_STORE_CONTAINS, 'a');
    } else if (!strcmp(o->operation, "barrier")) {
        mark();
        plain(&store, WR_OP_STORE_BARRIER, 0);
    } else if (!strcmp(o->operation, "terminate")) {
        mark();
        plain(&store, WR_OP_STORE_TERMINATE, 0);
    } else if (!strcmp(o->operation, "batch")) {
        mark();
        prepare_batch(&store);
        wr_port_submit(store.port, store.server);
    } else if (!strcmp(o->operation, "batch_eliminate") || !strcmp(o->operation, "batch_part")) {
        bool part = o->operation[6] == 'p';
        uint8_t ids[2][16];
        uint32_t eliminated;
        prepare_batch(&store);
        wr_port_submit(store.port, store.server);
        batch_id(&store, 1, ids[0]);
        if (part)
            memset(ids[1], 'a', 16);
        else
            batch_id(&store, 3, ids[1]);
        mark();
        must(wr_store_client_remove(&store, (const uint8_t(*)[16])ids, 2, &eliminated), "remove");
        if (eliminated != (part ? 1 : 2)) must(EPROTO, "elimination");
        wr_port_submit(store.port, store.server);
    } else if (!strcmp(o->operation, "publish")) {
        wr_route route = {.targets_n = 1, .targets = {{.server = WORKER, .queue = QUEUE, .ids_n = 1}}};
        wr_message message = {.body = body, .length = sizeof body, .flags = WR_FLAG_PERSISTENT | WR_FLAG_SYNCED};
        memcpy(message.id, id, 16);
        mark();
        must(wr_attachment_publish(&attachment, &route, &done, &message, sequences, &blocked), "publish");
        wr_port_submit(&attachment.port, WORKER);
    } else if (!strcmp(o->operation, "settle")) {
        const uint64_t tags[3] = {0, 1, 2};
        mark();
        must(wr_attachment_blob(&attachment, WORKER, WR_OP_ACK, WR_FLAG_SYNCED, QUEUE, 3, tags, sizeof tags, &sequence, &blocked),
             "settle");
        wr_port_submit(&attachment.port, WORKER);
    } else {
        must(EINVAL, o->operation);
    }
    mark();
}

/* ---- the parent ---- */

static void put64(FILE *to, uint64_t value) {
    if (fwrite(&value, 8, 1, to) != 1) fail("output");
}

static void save(FILE *to, uint64_t instruction, const options *o, const uint8_t *original) {
    uint64_t ranges = 0;
    long counted_at = 0;
    put64(to, instruction);
    counted_at = ftell(to);
    put64(to, 0);
    for (uint64_t at = 0; at < o->bytes;) {
        uint64_t line = o->bytes - at < LINE ? o->bytes - at : LINE;
        if (!memcmp(o->base + at, original + at, line)) {
            at += line;
            continue;
        }
        uint64_t end = at + line;
        while (end < o->bytes && memcmp(o->base + end, original + end, o->bytes - end < LINE ? o->bytes - end : LINE))
            end += o->bytes - end < LINE ? o->bytes - end : LINE;
        put64(to, at);
        put64(to, end - at);
        if (fwrite(o->base + at, end - at, 1, to) != 1) fail("output");
        ranges++;
        at = end;
    }
    long end = ftell(to);
    fseek(to, counted_at, SEEK_SET);
    put64(to, ranges);
    fseek(to, end, SEEK_SET);
}

static int wait_stop(pid_t child) {
    int status;
    while (waitpid(child, &status, 0) < 0)
        if (errno != EINTR) fail("waitpid");
    if (!WIFSTOPPED(status)) {
        fprintf(stderr, "stepper: the operation ended early (status %x)\n", status);
        exit(1);
    }
    return WSTOPSIG(status);
}

int main(int argc, char **argv) {
    if (argc != 9) {
        fprintf(stderr, "usage: stepper IMAGE REGION_BYTES DIRECTORY_ROWS SLOT GENERATION CLIENT_EPOCH OPERATION OUTPUT\n");
        return 1;
    }
    options o = {.region_bytes = number(argv[2]),
                 .directory_rows = (uint32_t)number(argv[3]),
                 .slot = (uint32_t)number(argv[4]),
                 .generation = (uint32_t)number(argv[5]),
                 .client_epoch = number(argv[6]),
                 .operation = argv[7]};
    o.bytes = WR_SUPERBLOCK_BYTES + o.region_bytes + 8ull * o.directory_rows;
    int fd = open(argv[1], O_RDWR | O_CLOEXEC);
    struct stat found;
    if (fd < 0 || fstat(fd, &found)) fail(argv[1]);
    if ((uint64_t)found.st_size != o.bytes) must(EINVAL, "size of the image");
    o.base = mmap(NULL, o.bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    uint8_t *original = malloc(o.bytes), *last = malloc(o.bytes);
    FILE *output = fopen(argv[8], "wb");
    if (o.base == MAP_FAILED || !original || !last || !output) fail("memory or output");
    memcpy(original, o.base, o.bytes);
    pid_t child = fork();
    if (child < 0) fail("fork");
    if (!child) {
        if (ptrace(PTRACE_TRACEME, 0, NULL, NULL)) _exit(77);
        operate(&o);
        _exit(0);
    }
    int status;
    while (waitpid(child, &status, 0) < 0)
        if (errno != EINTR) fail("waitpid");
    if (WIFEXITED(status)) return WEXITSTATUS(status) ? WEXITSTATUS(status) : 1;
    if (!WIFSTOPPED(status) || WSTOPSIG(status) != SIGSTOP) must(EPROTO, "first mark");
    ptrace(PTRACE_SETOPTIONS, child, NULL, (void *)(uintptr_t)PTRACE_O_EXITKILL);
    uint64_t instructions = 0, images = 1;
    memcpy(last, o.base, o.bytes);
    save(output, 0, &o, original);
    for (;;) {
        if (ptrace(PTRACE_SINGLESTEP, child, NULL, NULL)) return errno == EPERM || errno == EIO ? 77 : 1;
        int stop = wait_stop(child);
        if (stop == SIGSTOP) break; /* the second mark */
        if (stop != SIGTRAP) must(EPROTO, "a signal");
        if (++instructions > STEPS_MAX) must(EOVERFLOW, "too many instructions");
        if (!memcmp(last, o.base, o.bytes)) continue;
        memcpy(last, o.base, o.bytes);
        save(output, instructions, &o, original);
        images++;
    }
    kill(child, SIGKILL);
    waitpid(child, &status, 0);
    if (fclose(output)) fail("output");
    printf("%llu %llu\n", (unsigned long long)instructions, (unsigned long long)images);
    return 0;
}
