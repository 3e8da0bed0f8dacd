/* The store server is made: two stores, each with its regions and its log. Invariants: store/store.h. */
#include "store/server.h"
#include "store/command.h"
#include "store/horizons.h"
#include <stdlib.h>
#include <unistd.h>

#define DYING_NS 60000000000ull

int wr_store_server_init(wr_store_server *server, wr_superblock *super, uint64_t commit_bytes, uint64_t tick_ns,
                         uint64_t spin_ns) {
    memset((void *)server, 0, sizeof *server);
    server->super = super;
    server->commit_bytes = commit_bytes;
    server->tick_ns = tick_ns;
    server->spin_ns_max = server->spin_ns = spin_ns;
    server->dying_ns = DYING_NS;
    server->slots_seen = UINT64_MAX;
    uint32_t workers = wr_workers_end(super) > WR_SERVER_WORKER_FIRST ? wr_workers_end(super) - WR_SERVER_WORKER_FIRST : 0;
    server->workers_all = workers >= 32 ? UINT32_MAX : (1u << workers) - 1;
    server->ids = malloc(WR_STORE_IDS_MAX * sizeof *server->ids);
    server->ends = malloc((WR_BATCH_COUNT_MAX + 1) * sizeof *server->ends);
    if (!server->ids || !server->ends) {
        free(server->ids);
        free(server->ends);
        return ENOMEM;
    }
    for (uint32_t number = 0; number < 2; number++) {
        wr_store *store = &server->stores[number];
        store->server = server;
        store->number = number;
        store->persistent = number == WR_SERVER_STORE_PERSISTENT;
        store->row = wr_superblock_server(super, number);
        store->folder = -1;
    }
    return 0;
}

void wr_store_server_free(wr_store_server *server) {
    for (uint32_t number = 0; number < 2; number++) {
        wr_store *store = &server->stores[number];
        wr_log_free(store->log);
        if (store->open) wr_index_free(&store->index);
        wr_list_free(store->list);
        for (uint32_t i = 0; i < store->rolled_n; i++) wr_list_free(store->rolled[i]);
        for (uint32_t i = 0; i < WR_STORE_OPEN_FILES; i++)
            if (wr_file_some(store->open_files[i].file)) close(store->open_files[i].fd);
        free(store->rolled);
        free(store->marks);
        free(store->empty);
        free(store->gone);
        free(store->waters);
        free(store->compare);
    }
    free(server->ids);
    free(server->ends);
}

int wr_store_open(wr_store_server *server, uint32_t number, const wr_store_regions *r) {
    wr_store *store = &server->stores[number];
    const wr_superblock *super = server->super;
    uint32_t rows = super->directory_rows, files = super->summary_rows;
    if (number > 1 || store->open || rows < WR_DIRECTORY_WAYS || rows & (rows - 1) || files & (files - 1) || !files ||
        r->directory_bytes < (uint64_t)rows * 8 || r->summary_bytes < (uint64_t)files * sizeof(wr_summary_row))
        return EINVAL;
    int error = wr_index_init(&store->index, r->index, r->index_bytes, r->dense, r->dense_bytes);
    if (error) return error;
    store->marks = calloc(files, sizeof *store->marks);
    if (store->marks)
        store->log = wr_log_new(r->images, r->images_bytes, super->images_n, super->file_bytes, store->persistent, wr_store_log_done, store);
    if (!store->log) {
        error = store->marks ? errno : ENOMEM;
        wr_index_free(&store->index);
        free(store->marks);
        store->marks = NULL;
        return error;
    }
    wr_log_limit(store->log, atomic_load_explicit(&super->image_bytes, memory_order_relaxed));
    wr_log_on_written(store->log, wr_store_log_written);
    store->state = wr_log_look(store->log);
    store->images = r->images;
    store->index_count = 1;
    store->replay_check = true;
    store->lost_before = atomic_load_explicit(&store->row->lost_n, memory_order_relaxed);
    store->directory = r->directory;
    store->directory_rows = rows;
    store->summary = r->summary;
    store->summary_rows = files;
    store->open = true;
    return 0;
}

void wr_store_set_folder(wr_store *store, int fd) { store->folder = fd; }

int wr_store_replace_index(wr_store *store, void *region, uint64_t bytes, wr_index_header **old) {
    int error = wr_index_replace(&store->index, region, bytes, old);
    if (error) return error;
    store->index_count++;
    store->index_asked = false;
    wr_store_let_stalled_go_on(store);
    return 0;
}

int wr_store_add_extent(wr_store *store, void *region, uint64_t bytes) {
    int error = wr_index_add_extent(&store->index, region, bytes);
    if (error) return error;
    store->extent_asked = false;
    wr_store_let_stalled_go_on(store);
    return 0;
}
