/* Making the store server, its stores and their regions (store/server.c). */
#ifndef WR_STORE_SERVER_H
#define WR_STORE_SERVER_H
#include "store/store.h"

/* 0 or ENOMEM. */
int wr_store_server_init(wr_store_server *server, wr_superblock *super, uint64_t commit_bytes, uint64_t tick_ns,
                         uint64_t spin_ns);
void wr_store_server_free(wr_store_server *server);

typedef struct {
    void *images, *directory, *summary, *index, *dense;
    uint64_t images_bytes, directory_bytes, summary_bytes, index_bytes, dense_bytes;
} wr_store_regions;

/* Take new, zeroed regions. 0, EINVAL, ENOMEM. */
int wr_store_open(wr_store_server *server, uint32_t number, const wr_store_regions *regions);
/* The folder of its files, for comparing bodies (rule S12). The store does not own the descriptor. */
void wr_store_set_folder(wr_store *store, int fd);
/* Fill a new, zeroed table; the old one is marked as replaced by its owner once its successor is announced. */
int wr_store_replace_index(wr_store *store, void *region, uint64_t bytes, wr_index_header **old);
int wr_store_add_extent(wr_store *store, void *region, uint64_t bytes);
#endif
