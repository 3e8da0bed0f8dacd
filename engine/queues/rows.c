/* Chunks and their rows. Declared in queues/rows.h. */
#include "queues/memory.h"
#include "queues/rows.h"
#include <malloc.h>

#define FREE_ROWS_MAX 128
#define GIVE_BACK_MIN 256 /* blocks */
#define GIVE_BACK_PRESSED 64

wr_rows *wr_rows_new(wr_queue_engine *e) {
    wr_rows *rows = e->free_rows;
    if (rows) {
        e->free_rows = rows->next_free;
        e->free_rows_n--;
        return rows;
    }
    rows = calloc(1, sizeof *rows);
    e->rows_n += rows != NULL;
    if (e->rows_n > e->rows_most) e->rows_most = e->rows_n;
    return rows;
}

void wr_rows_free_spares(wr_queue_engine *e) {
    while (e->free_rows) {
        wr_rows *rows = e->free_rows;
        e->free_rows = rows->next_free;
        free(rows);
        e->rows_n--;
    }
    e->free_rows_n = 0;
}

/* A long backlog has gone, or memory is short: it goes back to the system, and not only to the next malloc. */
void wr_rows_give_back(wr_queue_engine *e) {
    uint64_t used = e->rows_n - e->free_rows_n;
    bool pressed = e->rows_limit < e->memory_bytes;
    if (pressed ? e->rows_most <= used + used / 8 + GIVE_BACK_PRESSED : e->rows_most <= GIVE_BACK_MIN || used >= e->rows_most / 8) return;
    wr_rows_free_spares(e);
    e->rows_most = used;
#ifdef __GLIBC__
    malloc_trim(0);
#endif
}

void wr_rows_free(wr_queue_engine *e, wr_entry *entries) {
    wr_rows *rows = (wr_rows *)entries;
    if (e->free_rows_n < FREE_ROWS_MAX && wr_rows_bytes(e) <= e->rows_limit) {
        rows->next_free = e->free_rows;
        e->free_rows = rows;
        e->free_rows_n++;
    } else {
        free(rows);
        e->rows_n--;
    }
}

uint64_t wr_queue_base(const wr_queue *q) {
    for (uint64_t i = 0; i < q->chunks_n; i++) {
        const wr_chunk *chunk = q->chunks[q->chunks_at + i];
        for (uint32_t r = 0; chunk && chunk->live_n && r < WR_CHUNK_ROWS; r++)
            if (chunk->rows ? chunk->rows[r].state != WR_ENTRY_GONE : chunk->page->live[r / 64] >> r % 64 & 1)
                return (q->chunk_base + i) * WR_CHUNK_ROWS + r;
    }
    return q->next;
}

int wr_queue_room(wr_queue_engine *e, wr_queue *q, uint64_t sequence) {
    uint64_t number = sequence / WR_CHUNK_ROWS;
    if (!q->chunks_n) {
        q->chunk_base = number;
        q->chunks_at = 0;
    }
    if (number < q->chunk_base) {
        /* only recovery does this: segments and journals of a queue come in any order */
        uint64_t more = q->chunk_base - number;
        q->chunks = wr_queue_grown(q->chunks, &q->chunks_size, q->chunks_n + more, sizeof *q->chunks);
        memmove(q->chunks + more, q->chunks + q->chunks_at, q->chunks_n * sizeof *q->chunks);
        memset(q->chunks, 0, more * sizeof *q->chunks);
        q->chunks_at = 0;
        q->chunks_n += more;
        q->chunk_base = number;
    }
    uint64_t i = number - q->chunk_base;
    if (i >= q->chunks_n) {
        if (q->chunks_at + i >= q->chunks_size) {
            if (q->chunks_n) memmove(q->chunks, q->chunks + q->chunks_at, q->chunks_n * sizeof *q->chunks);
            q->chunks_at = 0;
            q->chunks = wr_queue_grown(q->chunks, &q->chunks_size, 2 * (i + 1), sizeof *q->chunks);
        }
        memset(q->chunks + q->chunks_at + q->chunks_n, 0, (i + 1 - q->chunks_n) * sizeof *q->chunks);
        q->chunks_n = i + 1;
    }
    wr_chunk **place = &q->chunks[q->chunks_at + i];
    if (*place) return 0;
    wr_chunk *chunk = calloc(1, sizeof *chunk);
    wr_rows *rows = chunk ? wr_rows_new(e) : NULL;
    if (!rows) {
        free(chunk);
        return ENOMEM;
    }
    chunk->file_low = UINT32_MAX;
    chunk->rows = rows->rows;
    *place = chunk;
    return 0;
}

/* A chunk without live rows is recycled, unless rows of it are still to come. */
void wr_queue_chunk_release(wr_queue_engine *e, wr_queue *q, uint64_t number) {
    uint64_t i = number - q->chunk_base;
    if (number < q->chunk_base || i >= q->chunks_n) return;
    wr_chunk *chunk = q->chunks[q->chunks_at + i];
    if (!chunk || chunk->live_n || (q->next < (number + 1) * WR_CHUNK_ROWS && !e->recovering)) return;
    q->chunks[q->chunks_at + i] = NULL;
    wr_rows_free(e, chunk->rows);
    free(chunk);
    while (q->chunks_n && !q->chunks[q->chunks_at]) {
        q->chunks_at++;
        q->chunks_n--;
        q->chunk_base++;
    }
}
