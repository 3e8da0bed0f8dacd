/* The two message stores and the commit threads of a queue engine, played on the caller's thread: what the engine asks is looked at
 * and done. For tests and fuzz targets. */
#ifndef WR_PLAYED_STORES_H
#define WR_PLAYED_STORES_H
#include "queues/engine.h"
#include "queues/journal.h"
#include "store/owner.h"
#include "support/check.h"

/* Both are open, with one directory of `rows` rows that stays empty. */
static inline void stores_open(wr_queue_engine *e, void *directory, uint32_t rows) {
    for (uint32_t n = 0; n < 2; n++) {
        wr_qstore *store = &e->stores[n];
        store->client.directory = (_Atomic uint64_t *)directory;
        store->client.directory_rows = rows;
        store->open = true;
        store->epoch = 1;
        atomic_store(&wr_superblock_server(e->o.super, n)->state, WR_SERVER_READY);
        atomic_store(&wr_superblock_server(e->o.super, n)->epoch, 1);
    }
}

/* Everything asked is looked at and confirmed. */
static inline void stores_play(wr_queue_engine *e) {
    for (uint32_t n = 0; n < 2; n++) {
        wr_link *link = &e->port.view.links[n];
        uint64_t tail = atomic_load(&link->tail);
        for (uint64_t at = atomic_load(&link->processed); at < tail; at++) {
            wr_command *c = wr_view_command(&e->port.view, n, at);
            if (c->op == WR_OP_STORE_WRITE) {
                uint32_t slot;
                CHECK(wr_owner_slot(c->tag, &slot) && c->length <= e->o.super->message_bytes_max && c->meta_length <= c->length);
                CHECK((c->body & (e->o.super->arena_bytes - 1)) + c->length <= e->o.super->arena_bytes);
            } else {
                CHECK(c->op == WR_OP_STORE_REMOVE || (c->op >= WR_OP_STORE_RESYNC_BEGIN && c->op <= WR_OP_STORE_RESYNC_END));
                CHECK(c->op != WR_OP_STORE_RESYNC_IDS || c->count <= e->o.super->reply_bytes);
                if (c->op == WR_OP_STORE_RESYNC_IDS) memset(wr_view_reply(&e->port.view, n), 1, c->count);
            }
            atomic_store(&c->result, WR_RESULT_OK);
        }
        atomic_store(&link->processed, tail);
        atomic_store(&link->written, tail);
        atomic_store(&link->synced, tail);
        atomic_store(&link->head, tail);
        memset((void *)e->stores[n].client.directory, 0, e->stores[n].client.directory_rows * 8ull);
    }
}

/* After wr_log_stop of both journals: what is open is sealed and committed. */
static inline void journals_commit(wr_queue_engine *e) {
    wr_journal_seal(e, wr_now_ns(), true);
    wr_log_commit_run(e->log, NULL);
    wr_log_seal(e->transient_log, false, 0, NULL, 0);
    wr_log_commit_run(e->transient_log, NULL);
}
#endif
