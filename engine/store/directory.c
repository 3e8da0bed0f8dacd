/* Rows of cur_file_cache's directory: insert, remove, sweep. The protocol is in store/directory.h. */
#include "store/directory.h"

wr_row_ref wr_directory_insert(_Atomic uint64_t *directory, uint32_t rows, uint64_t hash, uint64_t word) {
    uint32_t first = wr_directory_bucket(hash, rows);
    for (uint32_t i = 0; i < WR_DIRECTORY_WAYS; i++) {
        _Atomic uint64_t *at = &directory[first + i];
        uint64_t empty = atomic_load_explicit(at, memory_order_relaxed);
        /* SYNC directory-row: pairs with the acquire of readers (store/client.c); the record is complete below it */
        if (empty == 0 && atomic_compare_exchange_strong_explicit(at, &empty, word, memory_order_release,
                                                                  memory_order_relaxed))
            return wr_row_of(first + i);
    }
    return (wr_row_ref){0};
}

bool wr_directory_remove(_Atomic uint64_t *directory, uint32_t rows, uint64_t hash, uint64_t word, wr_row_ref hint) {
    /* A plain store is enough: a word that is not 0 is changed by the server alone. */
    if (wr_row_some(hint) && wr_row_number(hint) < rows) {
        _Atomic uint64_t *at = &directory[wr_row_number(hint)];
        if (atomic_load_explicit(at, memory_order_relaxed) == word) {
            atomic_store_explicit(at, 0, memory_order_release);
            return true;
        }
    }
    uint32_t first = wr_directory_bucket(hash, rows);
    for (uint32_t i = 0; i < WR_DIRECTORY_WAYS; i++) {
        if (atomic_load_explicit(&directory[first + i], memory_order_relaxed) != word) continue;
        atomic_store_explicit(&directory[first + i], 0, memory_order_release);
        return true;
    }
    return false;
}

uint32_t wr_directory_sweep(_Atomic uint64_t *directory, uint32_t rows, uint32_t slot) {
    uint32_t removed = 0;
    for (uint32_t i = 0; i < rows; i++) {
        uint64_t word = atomic_load_explicit(&directory[i], memory_order_relaxed);
        if (word == 0 || wr_directory_slot(word) != slot) continue;
        atomic_store_explicit(&directory[i], 0, memory_order_release);
        removed++;
    }
    return removed;
}
