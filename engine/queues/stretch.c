/* Plain publishes, many in one go. Declared in queues/stretch.h.
 *
 * A stretch: commands of one link, one behind the other, that go to the same queues of the same kind, with embedded
 * bodies and nothing else (no time, no key, no policy). It reserves once, writes the frames end to end, publishes the
 * image once, and fills neighbouring rows. What is not that simple ends it, and goes the way of a single message
 * (queues/publish.c), which also says what is wrong with a command: nothing is answered here but OK.
 *
 * A stretch has no command of before a restart, ends with the chunk of rows of any of its queues, and never crosses a
 * journal file. Order as for a single message: frames into the image, rows, then (finish_round) `processed`. A kill
 * between two frames leaves whole ones, each with its command's number.
 */
#include "queues/barred.h"
#include "queues/command.h"
#include "queues/journal.h"
#include "queues/owed.h"
#include "queues/pages.h"
#include "queues/registry.h"
#include "queues/rows.h"
#include "queues/stretch.h"

#define AHEAD_COMMANDS 4
#define QUEUES_MAX 16 /* of one stretch */
#define PLAIN_FLAGS (WR_FLAG_SYNCED | WR_FLAG_WRITTEN | WR_FLAG_PERSISTENT | WR_FLAG_ROUTES)

typedef struct {
    wr_command c;
    const uint8_t *blob; /* behind the routes: metadata and body */
    uint32_t length;
} plain;

typedef struct {
    uint8_t flags;
    bool transient;
    uint32_t ids_n;
    uint32_t ids[QUEUES_MAX];
    wr_queue *queues[QUEUES_MAX];
    wr_entry *rows[QUEUES_MAX]; /* of the next sequence */
    uint64_t first[QUEUES_MAX];
} stretch;

/* A copy of a command, because the client may change it. False: it is not plain; a wrong one is no plain one either. */
static inline bool take(const wr_queue_engine *e, const wr_qlink *l, uint64_t sequence, plain *p) {
    memcpy((void *)&p->c, (const void *)wr_view_command(&l->view, e->o.server, sequence), sizeof p->c);
    const wr_command *c = &p->c;
    if (c->op != WR_OP_PUBLISH || c->flags & (uint8_t)~PLAIN_FLAGS || c->count | c->tag) return false;
    p->blob = wr_view_blob(&l->view, c->body, c->length);
    p->length = c->length;
    if (!p->blob) return false;
    if (c->flags & WR_FLAG_ROUTES) {
        if (!c->queue || c->queue > QUEUES_MAX || c->queue * 4u > p->length) return false;
        p->blob += c->queue * 4u;
        p->length -= c->queue * 4u;
    }
    return c->meta_length <= p->length && p->length < e->o.super->embed_bytes_max && p->length <= e->o.super->shared_bytes_max;
}

static inline void ids_of(const plain *p, uint32_t ids[QUEUES_MAX], uint32_t *n) {
    if (p->c.flags & WR_FLAG_ROUTES) {
        *n = p->c.queue;
        memcpy(ids, p->blob - *n * 4u, *n * 4u);
    } else {
        *n = 1;
        ids[0] = p->c.queue;
    }
}

static inline bool same_route(const stretch *s, const plain *p) {
    if (p->c.flags != s->flags) return false;
    if (!(p->c.flags & WR_FLAG_ROUTES)) return p->c.queue == s->ids[0];
    return p->c.queue == s->ids_n && !memcmp(p->blob - s->ids_n * 4u, s->ids, s->ids_n * 4u);
}

/* Its queues, and how many rows have room in the chunks of all. 0: not all are there, alike and plain. */
static uint64_t open_route(wr_queue_engine *e, stretch *s, const plain *p, uint64_t most) {
    s->flags = p->c.flags;
    ids_of(p, s->ids, &s->ids_n);
    for (uint32_t i = 0; i < s->ids_n; i++) {
        wr_queue *q = wr_queue_find(e, s->ids[i]);
        if (!q || q->policy || wr_is_barred(e, q)) return 0;
        bool transient = !(q->durable && s->flags & WR_FLAG_PERSISTENT);
        if (i && transient != s->transient) return 0;
        s->transient = transient;
        for (uint32_t before = 0; before < i; before++)
            if (s->queues[before] == q) return 0;
        s->queues[i] = q;
        uint64_t left = WR_CHUNK_ROWS - q->next % WR_CHUNK_ROWS;
        if (left < most) most = left;
        if (wr_queue_room(e, q, q->next)) return 0;
    }
    for (uint32_t i = 0; i < s->ids_n; i++) {
        wr_queue *q = s->queues[i];
        s->first[i] = q->next;
        s->rows[i] = &wr_queue_chunk(q, q->next / WR_CHUNK_ROWS)->rows[q->next % WR_CHUNK_ROWS];
    }
    return most;
}

/* What n new rows at the end of a queue change beside themselves. */
static void count_rows(wr_queue_engine *e, wr_queue *q, uint64_t first, uint32_t n, uint64_t bytes, uint32_t file, bool transient) {
    uint64_t number = first / WR_CHUNK_ROWS;
    wr_chunk *chunk = wr_queue_chunk_peek(q, number);
    if (!q->ready_n || first < q->ready_from) q->ready_from = first;
    chunk->live_n += n;
    chunk->ready_n += n;
    if (transient) {
        chunk->transient_n += n;
    } else {
        if (file < chunk->file_low) chunk->file_low = file;
        if (file > chunk->file_high) chunk->file_high = file;
    }
    q->ready_n += n;
    q->bytes += bytes;
    q->next = first + n;
    q->published_n += n;
    e->entries_n += n;
    e->bytes += bytes;
    e->published_n += n;
    /* it may have waited for its rows to come */
    if (first % WR_CHUNK_ROWS == 0 && first) wr_queue_chunk_release(e, q, number - 1);
    wr_recent *recent = &q->recent[transient][file % WR_RECENT_FILES];
    if (!recent->n || recent->file < file) *recent = (wr_recent){file, 0};
    if (recent->file == file) recent->n += n;
    uint32_t *live = wr_files_live(transient ? &e->transient_files : &e->files, file);
    if (live) *live += n;
    wr_queue_dirty(e, q);
    if (q->consumers_n) wr_queue_wake(e, q);
}

uint32_t wr_publish_stretch(wr_queue_engine *e, wr_qlink *l, uint64_t most, uint64_t *rows) {
    stretch s;
    plain p;
    uint64_t sequence = l->next, offset;
    if (sequence < l->takeup_tail || l->half_done == sequence + 1 || wr_pages_full(e) || !take(e, l, sequence, &p)) return 0;
    most = open_route(e, &s, &p, most);
    if (!most) return 0;
    uint64_t prefix_length = (uint64_t)s.ids_n * WR_ROUTE_SIZE, total = wr_frame_bytes(prefix_length + p.length);
    uint8_t *to = wr_journal_reserve_new(e, s.transient, total, &offset);
    if (!to) return 0;
    wr_log *log = s.transient ? e->transient_log : e->log;
    const wr_log_state *state = wr_log_look(log);
    uint64_t room = wr_log_room(log), used = 0, bytes = 0;
    if (!s.transient && wr_log_new_room(log) < room) room = wr_log_new_room(log);
    uint32_t file = (uint32_t)state->file, n = 0;
    uint8_t prefix[QUEUES_MAX * WR_ROUTE_SIZE];
    for (uint32_t i = 0; i < s.ids_n; i++) wr_put32(prefix + i * WR_ROUTE_SIZE + WR_ROUTE_AT_QUEUE, s.ids[i]);
    wr_frame_head head = {.kind = WR_KIND_PUBLISH,
                          .flags = s.transient ? WR_FRAME_TRANSIENT : 0,
                          .client_epoch = l->client_epoch,
                          .extra = s.ids_n};
    wr_entry row = {.file = file,
                    .blob_offset = (uint16_t)(WR_FRAME_HEAD_BYTES + prefix_length),
                    .index_file = file,
                    .location = s.transient ? WR_LOCATION_JOURNAL_TRANSIENT : WR_LOCATION_JOURNAL,
                    .state = WR_ENTRY_READY,
                    .flags = s.transient ? 0 : WR_ENTRY_PERSISTENT};
    for (;;) {
        wr_command *record = wr_view_command(&l->view, e->o.server, sequence + n);
        for (uint32_t i = 0; i < s.ids_n; i++) wr_put64(prefix + i * WR_ROUTE_SIZE + WR_ROUTE_AT_SEQUENCE, s.first[i] + n);
        memcpy(head.id, p.c.id, 16);
        head.sequence = sequence + n + 1;
        head.meta_length = p.c.meta_length;
        wr_frame_write(to + used, &head, prefix, prefix_length, p.blob, p.length, state->salt);
        memcpy(row.id, p.c.id, 16);
        row.offset = (uint32_t)(offset + used);
        row.frame_length = (uint32_t)total;
        row.body_length = p.length;
        row.meta_length = p.c.meta_length;
        for (uint32_t i = 0; i < s.ids_n; i++) s.rows[i][n] = row;
        atomic_store_explicit(&record->result, WR_RESULT_OK, memory_order_relaxed); /* visible with `processed` */
        used += total;
        bytes += p.length;
        if (++n == most) break;
        __builtin_prefetch((const void *)wr_view_command(&l->view, e->o.server, sequence + n + AHEAD_COMMANDS));
        if (!take(e, l, sequence + n, &p) || !same_route(&s, &p)) break;
        total = wr_frame_bytes(prefix_length + p.length);
        if (used + total + WR_FRAME_BYTES_MIN > room) break;
    }
    wr_journal_append(e, s.transient, used, s.flags & WR_FLAG_SYNCED);
    for (uint32_t i = 0; i < s.ids_n; i++) count_rows(e, s.queues[i], s.first[i], n, bytes, file, s.transient);
    if (!s.transient) {
        l->dirty = true;
        if (s.flags & WR_FLAG_WRITTEN) e->want_commit = true;
    } else {
        wr_link_wants(e, l, s.flags);
    }
    *rows += (uint64_t)n * s.ids_n;
    return n;
}
