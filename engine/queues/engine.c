/* The engine, made and freed. Declared in queues/engine.h. */
#include "queues/engine.h"
#include "queues/horizons.h"
#include "queues/levels.h"
#include "queues/links.h"
#include "queues/pages.h"
#include "queues/rows.h"
#include <unistd.h>

wr_queue_engine *wr_queue_new(const wr_queue_options *o) {
    wr_queue_engine *e = calloc(1, sizeof *e);
    if (!e) return NULL;
    e->o = *o;
    e->me = wr_superblock_server(o->super, o->server);
    e->geometry = wr_geometry_without_slots(o->super);
    e->recovering = true;
    e->frozen = true;
    e->segments_fd = -1;
    e->memory_bytes = e->rows_limit = UINT64_MAX;
    e->spill.fd = -1;
    e->round = 1;
    e->token_next = 1;
    e->spin_ns = o->spin_ns / 4;
    e->last_sync_ns = e->last_stats_ns = wr_now_ns();
    pthread_mutex_init(&e->mutex, NULL);
    e->stats_used = calloc((size_t)o->stats_rows + 1, 1);
    e->routes = malloc(sizeof *e->routes);
    atomic_store_explicit(&e->me->queue_stats_rows, 0, memory_order_release);
    e->log = wr_log_new(o->images, o->images_bytes, o->images_n, o->file_bytes, true, wr_journal_done, e);
    if (e->log) wr_log_on_written(e->log, wr_journal_written);
    if (e->log) e->transient_log = wr_log_new(o->transient_images, o->images_bytes, o->images_n, o->file_bytes, false, NULL, NULL);
    uint64_t image_bytes = atomic_load_explicit(&o->super->image_bytes, memory_order_relaxed);
    if (e->log) wr_log_limit(e->log, image_bytes);
    if (e->transient_log) wr_log_limit(e->transient_log, image_bytes);
    int error = e->stats_used && e->routes && e->transient_log ? 0 : errno ? errno : ENOMEM;
    if (!error && o->region) {
        error = wr_port_init(&e->port, o->super, o->region, o->region_bytes, o->slot, o->generation, o->client_epoch);
        e->has_port = !error;
        for (uint32_t s = 0; s < 2; s++) {
            e->stores[s].client.port = &e->port;
            e->stores[s].client.server = s;
            e->stores[s].phase = WR_RESYNC_WANTED;
        }
    }
    if (error) {
        wr_queue_free(e);
        errno = error;
        return NULL;
    }
    return e;
}

void wr_queue_free(wr_queue_engine *e) {
    while (e->links_n) {
        wr_qlink *l = e->links[e->order[--e->links_n]];
        for (wr_consumer *c = l->consumers; c;) {
            wr_consumer *next = c->next;
            free(c);
            c = next;
        }
        wr_link_free(l);
    }
    for (uint64_t i = 0; i < e->queues.size; i++) {
        if (!e->queues.rows[i].used) continue;
        wr_queue *q = (wr_queue *)(uintptr_t)e->queues.rows[i].value;
        for (uint64_t c = 0; c < q->chunks_n; c++) {
            wr_chunk *chunk = q->chunks[q->chunks_at + c];
            if (!chunk) continue;
            free(chunk->rows);
            free(chunk->page);
            free(chunk);
        }
        free(q->chunks);
        free(q->consumers);
        wr_policy_free(q);
        free(q);
    }
    free(e->timed);
    free(e->deaths);
    while (e->free_rows) {
        wr_rows *rows = e->free_rows;
        e->free_rows = rows->next_free;
        free(rows);
    }
    free(e->page_bytes);
    if (e->segments_fd >= 0) close(e->segments_fd);
    wr_spill_close(&e->spill);
    for (uint32_t s = 0; s < 2; s++) {
        wr_map_free(&e->stores[s].refs);
        wr_map_free(&e->stores[s].missing);
        free(e->stores[s].removes);
        free(e->stores[s].ids);
    }
    wr_map_free(&e->large);
    free(e->large_gone);
    wr_map_free(&e->queues);
    wr_map_free(&e->consumers);
    wr_map_free(&e->data_files);
    wr_map_free(&e->high);
    wr_map_free(&e->unknown);
    wr_map_free(&e->moves_start);
    wr_map_free(&e->moves_count);
    free(e->files.live);
    free(e->transient_files.live);
    free(e->ranges);
    free(e->segment_acks);
    free(e->wake);
    free(e->dirty);
    free(e->changed);
    free(e->watched);
    free(e->stats_used);
    free(e->routes);
    if (e->has_port) wr_port_free(&e->port);
    wr_log_free(e->log);
    wr_log_free(e->transient_log);
    pthread_mutex_destroy(&e->mutex);
    free(e);
}
