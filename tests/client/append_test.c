/* Goal: what the topic worker answers to an append is kept for whoever wants it, also after its place in the ring was used again,
 * and for nobody else; only an answer that is final is kept; a command has the bytes that the worker expects.
 * Method: an attachment and a server by hand in one process, with a ring of 8 commands. Runs under AddressSanitizer. */
#include "client/append.h"
#include "support/check.h"
#include "topics/properties.h"
#include <stdlib.h>

#define SERVER 2
#define RING 8

static wr_superblock *super;
static void *region;
static wr_attachment a;
static uint64_t next; /* the server's */

static void begin(void) {
    super = calloc(1, WR_SUPERBLOCK_BYTES);
    CHECK(super);
    super->servers_n = SERVER + 1;
    super->ring_records = RING;
    super->delivery_slots = 2;
    super->reply_bytes = 4096;
    super->arena_bytes = 1 << 16;
    super->message_bytes_max = super->shared_bytes_max = 1 << 14;
    const wr_geometry g = wr_geometry_of(super);
    uint64_t bytes = wr_view_bytes(&g);
    CHECK((region = aligned_alloc(4096, wr_page_up(bytes))));
    memset(region, 0, bytes);
    CHECK(wr_attachment_init(&a, super, region, bytes, 0, 1, 100) == 0);
    next = 0;
}

static void end(void) {
    wr_attachment_free(&a);
    free(region);
    free(super);
}

static int append(uint32_t queue, const char *body, wr_answer *answer, uint64_t *sequence) {
    const wr_append to = {.server = SERVER, .topic = 7, .queue = queue, .born_ms = 1700000000000, .level = WR_LEVEL_SYNCED};
    const wr_append_record record = {.properties = "KEYS\001k\002", .body = body, .properties_length = 7, .body_length = (uint32_t)strlen(body)};
    wr_condition blocked;
    int error = wr_attachment_append(&a, &to, &record, 1, answer, sequence, &blocked);
    if (!error) wr_port_submit(&a.port, SERVER);
    return error;
}

/* The server answers the next command: with its number, times `factor`. */
static void answer_next(uint64_t factor) {
    wr_command *command = wr_view_command(&a.port.view, SERVER, next);
    uint64_t place[2] = {next * factor, 1000 * next * factor};
    memcpy(command->id, place, sizeof place);
    atomic_store(&command->result, WR_RESULT_OK);
    atomic_store(&wr_attachment_link(&a, SERVER)->processed, ++next);
}

static void written(uint64_t until) {
    atomic_store(&wr_attachment_link(&a, SERVER)->written, until);
    atomic_store(&wr_attachment_link(&a, SERVER)->head, until);
}

/* ---- */

static void test_answers_outlive_their_places(void) {
    begin();
    static wr_answer answers[100 * RING];
    uint64_t sequence, told = 0;
    for (uint64_t i = 0; i < 100 * RING; i++) {
        int error;
        while ((error = append(0, "x", &answers[i], &sequence)) == EAGAIN) {
            while (next < atomic_load(&wr_attachment_link(&a, SERVER)->tail)) answer_next(3);
            written(next);
            told++;
        }
        CHECK(!error && sequence == i);
    }
    CHECK(told >= 99);
    while (next < sequence + 1) answer_next(3);
    written(next);
    wr_answers_look(&a.answers, &a.port, false);
    for (uint64_t i = 0; i < 100 * RING; i++)
        CHECK(answers[i].result == WR_RESULT_OK && answers[i].offset == 3 * i && answers[i].position == 3000 * i);
    end();
}

static void test_who_went_gets_none(void) {
    begin();
    wr_answer *gone = malloc(sizeof *gone), kept;
    uint64_t first, second;
    CHECK(!append(0, "a", gone, &first) && !append(0, "b", &kept, &second));
    wr_answers_forget(&a.answers, &a.port, first, gone);
    free(gone); /* the sanitizer sees a write to it */
    answer_next(1);
    answer_next(1);
    written(2);
    wr_answers_look(&a.answers, &a.port, false);
    CHECK(kept.result == WR_RESULT_OK && kept.offset == 1);
    wr_answers_forget(&a.answers, &a.port, second, &kept); /* after it was taken: nothing */
    wr_answer other;
    for (int i = 0; i < RING - 2; i++) {
        CHECK(!append(0, "c", &other, &first));
        wr_answers_forget(&a.answers, &a.port, first, &other);
    }
    CHECK(!append(0, "d", &other, &first) && first == RING);
    wr_answers_forget(&a.answers, &a.port, first - RING, &kept); /* the place is another's now */
    while (next <= first) answer_next(1);
    written(next);
    wr_answers_look(&a.answers, &a.port, false);
    CHECK(other.result == WR_RESULT_OK && other.offset == RING);
    end();
}

static void test_only_what_is_written_is_final(void) {
    begin();
    wr_answer answers[3];
    uint64_t sequence;
    for (int i = 0; i < 3; i++) CHECK(!append(0, "a", &answers[i], &sequence));
    for (int i = 0; i < 3; i++) answer_next(1);
    written(1);
    wr_answers_look(&a.answers, &a.port, false);
    CHECK(answers[0].result == WR_RESULT_OK && answers[1].result == WR_RESULT_NONE && answers[2].result == WR_RESULT_NONE);
    wr_answers_take(&a.answers, &a.port, 1); /* who asked for no durability does not wait */
    CHECK(answers[1].result == WR_RESULT_OK && answers[1].offset == 1);
    next = 1; /* killed: its successor answers anew what was not written */
    answer_next(10);
    answer_next(10);
    written(3);
    wr_answers_look(&a.answers, &a.port, false);
    CHECK(answers[1].offset == 1 && answers[2].offset == 20);
    end();
}

static void test_the_end_takes_what_was_processed(void) {
    begin();
    wr_answer answers[3];
    uint64_t sequence;
    for (int i = 0; i < 3; i++) CHECK(!append(0, "a", &answers[i], &sequence));
    answer_next(1);
    answer_next(1);
    wr_answers_look(&a.answers, &a.port, true);
    CHECK(answers[0].result == WR_RESULT_OK && answers[1].result == WR_RESULT_OK && answers[2].result == WR_RESULT_NONE);
    /* a server says more than it was given */
    atomic_store(&wr_attachment_link(&a, SERVER)->processed, UINT64_MAX);
    wr_answers_look(&a.answers, &a.port, true);
    CHECK(a.answers.looked == 3);
    end();
}

static void test_a_command_as_the_worker_expects_it(void) {
    begin();
    wr_answer answer;
    uint64_t sequence;
    CHECK(!append(5, "body", &answer, &sequence));
    const wr_command *c = wr_view_command(&a.port.view, SERVER, sequence);
    CHECK(c->op == WR_OP_APPEND && c->queue == 7 && c->row == 5 && c->tag == 1700000000000 && c->flags == WR_FLAG_SYNCED);
    CHECK(c->meta_length == 7 && c->length == 11 && !memcmp(wr_view_blob(&a.port.view, c->body, c->length), "KEYS\001k\002body", 11));
    const wr_append to = {.server = SERVER, .topic = 7, .queue = 1, .level = WR_LEVEL_WRITTEN};
    const wr_append_record records[2] = {{.body = "one", .body_length = 3}, {.properties = "a\001b\002", .properties_length = 4}};
    wr_condition blocked;
    wr_answer second;
    CHECK(!wr_attachment_append(&a, &to, records, 2, &second, &sequence, &blocked));
    c = wr_view_command(&a.port.view, SERVER, sequence);
    const wr_append_part parts[2] = {{.body_length = 3}, {.properties_length = 4}};
    const uint8_t *blob = wr_view_blob(&a.port.view, c->body, c->length);
    CHECK(c->op == WR_OP_APPEND_MANY && c->count == 2 && c->meta_length == 0 && c->flags == WR_FLAG_WRITTEN && c->length == sizeof parts + 7);
    CHECK(!memcmp(blob, parts, sizeof parts) && !memcmp(blob + sizeof parts, "onea\001b\002", 7));
    wr_answers_forget(&a.answers, &a.port, sequence, &second);
    wr_answers_forget(&a.answers, &a.port, sequence - 1, &answer);
    end();
}

static void test_what_has_no_room_leaves_nothing(void) {
    begin();
    wr_answer answer;
    uint64_t sequence;
    wr_condition blocked;
    static uint8_t large[1 << 16];
    const wr_append to = {.server = SERVER, .topic = 7};
    wr_append_record record = {.body = large, .body_length = sizeof large};
    CHECK(wr_attachment_append(&a, &to, &record, 1, &answer, &sequence, &blocked) == EMSGSIZE);
    record.body_length = 1 << 14;
    int n = 0;
    while (!wr_attachment_append(&a, &to, &record, 1, &answer, &sequence, &blocked)) {
        n++;
        wr_answers_forget(&a.answers, &a.port, sequence, &answer);
    }
    CHECK(n == 4 && blocked.word == &wr_attachment_link(&a, SERVER)->head && blocked.above == 0 && a.port.prepared[SERVER] == 4);
    wr_port_submit(&a.port, SERVER);
    while (next < 4) answer_next(1);
    written(4);
    CHECK(!wr_attachment_append(&a, &to, &record, 1, &answer, &sequence, &blocked) && sequence == 4);
    atomic_store(&wr_attachment_link(&a, SERVER)->evicted, 1);
    CHECK(append(0, "a", &answer, &sequence) == ECONNRESET && a.port.prepared[SERVER] == 5);
    wr_answers_forget(&a.answers, &a.port, 4, &answer);
    end();
}

int main(void) {
    test_answers_outlive_their_places();
    test_who_went_gets_none();
    test_only_what_is_written_is_final();
    test_the_end_takes_what_was_processed();
    test_a_command_as_the_worker_expects_it();
    test_what_has_no_room_leaves_nothing();
    return 0;
}
