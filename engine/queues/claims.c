/* Claims of a subscription. Declared in queues/claims.h. */
#include "queues/claims.h"
#include "queues/entries.h"
#include "queues/journal.h"
#include "queues/memory.h"
#include "queues/pages.h"
#include "queues/registry.h"
#include "queues/rows.h"

#define MOVE_MESSAGES_MAX (1u << 18) /* in one frame: their rows are in memory together */

typedef struct {
    uint64_t first, count;
} span;

int wr_journal_move(wr_queue_engine *e, wr_queue *from, wr_queue *to, uint64_t max_messages, uint64_t max_bytes, bool all,
                    uint64_t client_epoch, uint64_t sequence, uint64_t *start, uint64_t *end) {
    span *spans = NULL;
    uint64_t spans_n = 0, spans_size = 0, n = 0, sum = 0;
    uint64_t spans_max = (e->o.file_bytes / WR_JOURNAL_MOVE_PART) / (2 * WR_RANGE_SIZE);
    if (max_messages > MOVE_MESSAGES_MAX) max_messages = MOVE_MESSAGES_MAX;
    wr_pages_trim(e, 0);
    uint64_t first = from->chunk_base;
    *start = *end = to->next;
    for (uint64_t number = first; number - first < from->chunks_n; number++) {
        const wr_chunk *chunk = wr_queue_chunk_peek(from, number);
        if (!chunk || !chunk->ready_n) continue;
        chunk = wr_queue_chunk(from, number);
        if (!chunk) continue;
        for (uint32_t r = 0; r < WR_CHUNK_ROWS; r++) {
            const wr_entry *entry = &chunk->rows[r];
            if (entry->state != WR_ENTRY_READY) continue;
            uint64_t at = number * WR_CHUNK_ROWS + r;
            if (n == max_messages || (n && sum + entry->body_length > max_bytes)) goto collected;
            if (spans_n && spans[spans_n - 1].first + spans[spans_n - 1].count == at) {
                spans[spans_n - 1].count++;
            } else {
                if (spans_n == spans_max) goto collected;
                spans = wr_queue_grown(spans, &spans_size, spans_n + 1, sizeof *spans);
                spans[spans_n++] = (span){at, 1};
            }
            n++;
            sum += entry->body_length;
        }
    }
collected:
    if (!n) {
        free(spans);
        return 0;
    }
    for (uint64_t s = to->next / WR_CHUNK_ROWS; s <= (to->next + n - 1) / WR_CHUNK_ROWS; s++)
        if (wr_queue_room(e, to, s * WR_CHUNK_ROWS)) {
            free(spans);
            return ENOMEM;
        }
    uint64_t bytes = wr_frame_bytes(spans_n * 2 * WR_RANGE_SIZE), offset;
    uint8_t *at = wr_journal_reserve(e, false, bytes, &offset);
    if (!at) {
        int error = errno;
        free(spans);
        return error;
    }
    uint8_t *range = at + WR_FRAME_HEAD_BYTES;
    uint64_t target = to->next;
    for (uint64_t i = 0; i < spans_n; i++) {
        wr_move_put(range, from, spans[i].first, spans[i].count, to, target, 0);
        range += 2 * WR_RANGE_SIZE;
        target += spans[i].count;
    }
    wr_frame_head head = {.kind = WR_KIND_MOVE, .client_epoch = client_epoch, .sequence = sequence, .extra = (uint32_t)(2 * spans_n)};
    wr_frame_seal(at, &head, spans_n * 2 * WR_RANGE_SIZE, wr_log_look(e->log)->salt);
    wr_journal_append(e, false, bytes, true);
    uint32_t file = (uint32_t)wr_log_look(e->log)->file;
    for (uint64_t i = 0; i < spans_n; i++)
        for (uint64_t s = spans[i].first; s < spans[i].first + spans[i].count; s++) {
            wr_entry copy = wr_queue_take(e, from, s, file);
            if (all) copy.flags |= WR_ENTRY_REDELIVERED;
            copy.expires = 0; /* a claim is held */
            wr_queue_insert(e, to, to->next, &copy);
        }
    free(spans);
    *end = to->next;
    wr_queue_wake(e, to);
    return 0;
}
