/* High waters of clients: how far their commands are in the files that the start found. */
#include "store/waters.h"
#include <stdlib.h>

uint64_t wr_store_water(const wr_store *store, uint64_t client_epoch) {
    if (!store->waters_n) return 0;
    uint32_t mask = store->waters_size - 1;
    for (uint32_t i = (uint32_t)(client_epoch * 0x9e3779b97f4a7c15ull >> 40) & mask; store->waters[2 * i + 1]; i = (i + 1) & mask)
        if (store->waters[2 * i] == client_epoch) return store->waters[2 * i + 1];
    return 0;
}

static bool grow_waters(wr_store *store) {
    uint32_t old_size = store->waters_size;
    uint64_t *old = store->waters;
    uint32_t size = old_size ? 2 * old_size : 64;
    uint64_t *bigger = calloc(size, 2 * sizeof *bigger);
    if (!bigger) return false;
    store->waters = bigger;
    store->waters_size = size;
    store->waters_n = 0;
    for (uint32_t i = 0; i < old_size; i++)
        if (old[2 * i + 1]) wr_store_note_water(store, old[2 * i], old[2 * i + 1]);
    free(old);
    return true;
}

bool wr_store_note_water(wr_store *store, uint64_t client_epoch, uint64_t water) {
    if (!water) return true;
    if (store->waters_n * 2 >= store->waters_size && !grow_waters(store)) return false;
    uint32_t mask = store->waters_size - 1;
    uint32_t i = (uint32_t)(client_epoch * 0x9e3779b97f4a7c15ull >> 40) & mask;
    while (store->waters[2 * i + 1] && store->waters[2 * i] != client_epoch) i = (i + 1) & mask;
    if (!store->waters[2 * i + 1]) {
        store->waters[2 * i] = client_epoch;
        store->waters_n++;
    }
    if (water > store->waters[2 * i + 1]) store->waters[2 * i + 1] = water;
    return true;
}
