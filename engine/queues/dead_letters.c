/* Dead letters into the journal. Declared in queues/dead_letters.h. */
#include "queues/dead_letters.h"
#include "queues/deaths.h"
#include "queues/entries.h"
#include "queues/journal.h"
#include "queues/memory.h"
#include "queues/pages.h"
#include "queues/rows.h"

#define SPANS_A_FRAME 1024  /* of a MOVE to dead letters */

/* One MOVE frame from `at` on. Returns the death behind the last one in it; *error as wr_dead_letters_write. */
static uint64_t write_some(wr_queue_engine *e, uint64_t at, int *error) {
    static __thread struct {
        wr_queue *from, *to;
        uint64_t first, count, target;
        uint32_t reason;
    } spans[SPANS_A_FRAME];
    uint32_t n = 0;
    uint64_t end = at;
    for (; end < e->deaths_n; end++) {
        const wr_death *d = &e->deaths[end];
        if (!d->queue) continue;
        if (n && spans[n - 1].from == d->queue && spans[n - 1].reason == d->reason &&
            spans[n - 1].first + spans[n - 1].count == d->sequence) {
            spans[n - 1].count++;
        } else {
            if (n == SPANS_A_FRAME) break;
            wr_queue *to = wr_dead_letter_queue_of(e, d->queue);
            if (!to) { /* deleted since: it cannot go there */
                wr_queue_remove_entry(e, d->queue, d->sequence, wr_queue_entry(d->queue, d->sequence), true, false);
                e->deaths[end].queue = NULL;
                continue;
            }
            spans[n].from = d->queue;
            spans[n].to = to;
            spans[n].first = d->sequence;
            spans[n].count = 1;
            spans[n].target = to->next + d->queue->policy->framed_n;
            spans[n].reason = d->reason;
            n++;
        }
        wr_queue *to = spans[n - 1].to;
        if (wr_queue_room(e, to, to->next + d->queue->policy->framed_n++)) wr_queue_no_memory();
    }
    for (uint32_t i = 0; i < n; i++) spans[i].from->policy->framed_n = 0;
    if (!n) return end;
    uint64_t bytes = wr_frame_bytes((uint64_t)n * 2 * WR_RANGE_SIZE), offset;
    uint8_t *to = wr_journal_reserve(e, false, bytes, &offset);
    uint32_t file = 0;
    if (to) {
        uint8_t *range = to + WR_FRAME_HEAD_BYTES;
        for (uint32_t i = 0; i < n; i++) {
            wr_move_put(range, spans[i].from, spans[i].first, spans[i].count, spans[i].to, spans[i].target, spans[i].reason);
            range += 2 * WR_RANGE_SIZE;
        }
        wr_frame_head head = {.kind = WR_KIND_MOVE, .extra = 2 * n};
        wr_frame_seal(to, &head, (uint64_t)n * 2 * WR_RANGE_SIZE, wr_log_look(e->log)->salt);
        wr_journal_append(e, false, bytes, false);
        file = (uint32_t)wr_log_look(e->log)->file;
    } else {
        *error = errno;
        if (*error == EAGAIN) return at;
        file = (uint32_t)wr_log_look(e->log)->file; /* the log has failed: memory goes on, nothing is confirmed */
    }
    for (uint32_t i = 0; i < n; i++)
        for (uint64_t k = 0; k < spans[i].count; k++)
            wr_dead_letter_move(e, spans[i].from, spans[i].first + k, spans[i].to, spans[i].reason, file);
    return end;
}

int wr_dead_letters_write(wr_queue_engine *e) {
    uint64_t at = 0;
    int error = 0;
    while (at < e->deaths_n && error != EAGAIN) at = write_some(e, at, &error);
    memmove(e->deaths, e->deaths + at, (e->deaths_n - at) * sizeof *e->deaths);
    e->deaths_n -= at;
    return error;
}
