/* The few store files that are kept open for reading stored bodies (rule S12). */
#include "store/open_files.h"
#include "kernel/data_files.h"
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

void wr_store_close_file(wr_store *store, uint64_t file) {
    for (uint32_t i = 0; i < WR_STORE_OPEN_FILES; i++) {
        if (!wr_file_is(store->open_files[i].file, file)) continue;
        close(store->open_files[i].fd);
        store->open_files[i].file = (wr_file_ref){0};
    }
}

int wr_store_open_file(wr_store *store, uint64_t file) {
    for (uint32_t i = 0; i < WR_STORE_OPEN_FILES; i++)
        if (wr_file_is(store->open_files[i].file, file)) return store->open_files[i].fd;
    if (store->folder < 0) return -1;
    char name[32];
    snprintf(name, sizeof name, "%llu.rdq", (unsigned long long)file);
    int fd = wr_data_open(store->folder, name, O_RDONLY, 0);
    if (fd < 0) return -1;
    uint32_t at = store->open_next++ % WR_STORE_OPEN_FILES;
    if (wr_file_some(store->open_files[at].file)) close(store->open_files[at].fd);
    store->open_files[at].file = wr_file_of(file);
    store->open_files[at].fd = fd;
    return fd;
}
