/* Readers of the store's index. What they promise: store/index_reader.h; the writer's side of the protocol: store/index.h.
 *
 * The two parts belong together only while neither header is marked as replaced and the generations are those that were
 * mapped: a server that takes over marks the old headers before it publishes its own regions. So a lookup looks at both
 * marks at its end.
 */
#define _GNU_SOURCE
#include "store/index_reader.h"
#include "store/index.h"
#include "ipc/core/names.h"
#include "kernel/racy.h"
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#ifndef WR_INDEX_READ_PAUSE /* a test puts in here what another process may do at this point */
#define WR_INDEX_READ_PAUSE() ((void)0)
#endif
#define ODD_MAX 20000 /* looks at something that is being changed, before the reader is sent to try again */

int wr_index_reader_init(wr_index_reader *r, wr_superblock *super, uint32_t server) {
    memset(r, 0, sizeof *r);
    r->super = super;
    r->server = server;
    r->extents = calloc(WR_INDEX_EXTENTS_MAX, sizeof *r->extents);
    return r->extents ? 0 : ENOMEM;
}

static void unmap_hash(wr_index_reader *r) {
    if (r->hash) munmap((void *)r->hash, r->hash_bytes);
    r->hash = NULL;
    r->index_generation = 0;
}

static void unmap_dense(wr_index_reader *r) {
    if (r->dense) munmap((void *)r->dense, r->dense_bytes);
    r->dense = NULL;
    r->generation = 0;
    memset(r->memos, 0, sizeof r->memos);
    for (uint32_t i = 0; r->extents && i < WR_INDEX_EXTENTS_MAX; i++) {
        if (r->extents[i]) munmap((void *)r->extents[i], WR_DENSE_EXTENT_BYTES);
        r->extents[i] = NULL;
    }
}

void wr_index_reader_close(wr_index_reader *r) {
    unmap_hash(r);
    unmap_dense(r);
    free(r->extents);
    r->extents = NULL;
}

/* Map a region whole, read only. A name that is not there any more is ESTALE: its server was replaced. */
static int map(const wr_index_reader *r, const char *what, uint64_t generation, uint64_t bytes_min, const uint8_t **to, uint64_t *bytes) {
    char name[WR_REGION_NAME_BYTES];
    wr_region_name(name, r->super, what, r->server, generation);
    int fd = shm_open(name, O_RDONLY | O_CLOEXEC, 0);
    if (fd < 0) return errno == ENOENT ? ESTALE : errno;
    struct stat found;
    int error = 0;
    if (fstat(fd, &found)) {
        error = errno;
    } else if ((uint64_t)found.st_size < bytes_min) {
        error = EINVAL;
    } else {
        *bytes = (uint64_t)found.st_size;
        void *at = mmap(NULL, *bytes, PROT_READ, MAP_SHARED, fd, 0);
        if (at == MAP_FAILED) error = errno;
        else *to = at;
    }
    close(fd);
    return error;
}

static bool rows_fit(const uint8_t *region, uint64_t bytes, uint64_t row_bytes) {
    uint64_t rows = ((const wr_index_header *)region)->rows;
    return rows && !(rows & (rows - 1)) && (bytes - WR_PAGE_BYTES) / row_bytes >= rows;
}

/* Map what the server has published now. */
static int follow(wr_index_reader *r) {
    wr_server *server = wr_superblock_server(r->super, r->server);
    /* SYNC generations: published after the regions are whole, and the old ones marked as replaced */
    uint64_t generation = atomic_load_explicit(&server->generation, memory_order_acquire);
    uint64_t index_generation = atomic_load_explicit(&server->index_generation, memory_order_acquire);
    if (generation == r->generation && index_generation == r->index_generation && r->dense && r->hash) return 0;
    if (!generation || !index_generation) return ESTALE;
    if (index_generation != r->index_generation || !r->hash) {
        unmap_hash(r);
        int error = map(r, "index", index_generation, WR_PAGE_BYTES, &r->hash, &r->hash_bytes);
        if (error) return error;
        if (!rows_fit(r->hash, r->hash_bytes, sizeof(wr_index_row))) {
            unmap_hash(r);
            return EINVAL;
        }
        r->index_generation = index_generation;
    }
    if (generation != r->generation || !r->dense) {
        unmap_dense(r);
        int error = map(r, "dense", generation, WR_PAGE_BYTES, &r->dense, &r->dense_bytes);
        if (error) return error;
        if (!rows_fit(r->dense, r->dense_bytes, sizeof(wr_dense_table_row))) {
            unmap_dense(r);
            return EINVAL;
        }
        r->generation = generation;
    }
    return 0;
}

static int extent_of(wr_index_reader *r, uint32_t extent, const uint8_t **at) {
    if (extent >= WR_INDEX_EXTENTS_MAX) return EINVAL;
    if (!r->extents[extent]) {
        char what[32];
        snprintf(what, sizeof what, "dense%u", extent);
        const uint8_t *mapped = NULL;
        uint64_t bytes = 0;
        int error = map(r, what, r->generation, WR_DENSE_EXTENT_BYTES, &mapped, &bytes);
        if (error) return error;
        if (bytes > WR_DENSE_EXTENT_BYTES) munmap((void *)(mapped + WR_DENSE_EXTENT_BYTES), bytes - WR_DENSE_EXTENT_BYTES);
        r->extents[extent] = mapped;
    }
    *at = r->extents[extent];
    return 0;
}

static inline bool replaced(const uint8_t *region) {
    /* SYNC index-replaced: what was read is the truth if the region was not replaced until now */
    return atomic_load_explicit(&((const wr_index_header *)region)->replaced, memory_order_acquire);
}

/* Copy `bytes` under the version that they begin with. *version 0: never used, nothing copied. False: it is being changed for so long
 * that its writer seems to be dead, or not running. */
static inline bool copy_versioned(const void *from, void *to, uint64_t bytes, uint32_t *version) {
    const _Atomic uint32_t *at = from;
    for (uint32_t odd = 0; odd < ODD_MAX;) {
        /* SYNC index-entry, dense-row */
        *version = atomic_load_explicit(at, memory_order_acquire);
        if (*version == 0) return true;
        if (*version & 1) {
            if (++odd % 64) wr_cpu_relax();
            else sched_yield();
            continue;
        }
        wr_copy_racy(to, from, bytes);
        atomic_thread_fence(memory_order_acquire);
        if (atomic_load_explicit(at, memory_order_relaxed) == *version) return true;
        odd++;
    }
    return false;
}

static inline const wr_dense_table_row *table_of(const wr_index_reader *r) {
    return (const wr_dense_table_row *)(r->dense + WR_PAGE_BYTES);
}

static inline uint32_t memo_of(uint64_t epoch, uint64_t group) { return (uint32_t)(epoch * 61 + group) & (WR_INDEX_READER_MEMOS - 1); }

/* A copy of the row of a group, and where it lies. 0, ENOENT, ESTALE. */
static int find_row(wr_index_reader *r, uint64_t epoch, uint64_t group, wr_dense_table_row *copy, uint32_t *row, uint32_t *version) {
    const wr_dense_table_row *table = table_of(r);
    uint32_t memo = memo_of(epoch, group);
    if (wr_row_some(r->memos[memo].row) && r->memos[memo].epoch == epoch && r->memos[memo].group == group) {
        *row = wr_row_number(r->memos[memo].row);
        if (!copy_versioned(&table[*row], copy, sizeof *copy, version)) return ESTALE;
        if (*version && copy->state == WR_DENSE_TABLE_LIVE && copy->epoch == epoch && copy->group == group) return 0;
    }
    uint64_t mask = ((const wr_index_header *)r->dense)->rows - 1;
    if ((r->dense_bytes - WR_PAGE_BYTES) / sizeof *table <= mask) return EINVAL;
    for (uint64_t i = wr_dense_hash(epoch, group) & mask, n = 0; n <= mask; i = (i + 1) & mask, n++) {
        if (!copy_versioned(&table[i], copy, sizeof *copy, version)) return ESTALE;
        if (*version == 0 || copy->state == WR_DENSE_TABLE_FREE) return ENOENT;
        if (copy->state != WR_DENSE_TABLE_LIVE || copy->epoch != epoch || copy->group != group) continue;
        *row = (uint32_t)i;
        r->memos[memo].epoch = epoch;
        r->memos[memo].group = group;
        r->memos[memo].row = wr_row_of((uint32_t)i);
        return 0;
    }
    return ENOENT;
}

static int find_dense(wr_index_reader *r, const uint8_t id[16], wr_index_entry *copy) {
    uint64_t epoch = wr_id_epoch(id), counter = wr_id_counter(id);
    wr_dense_table_row found;
    uint32_t row, version, of_entry;
    for (int attempt = 0; attempt < 1000; attempt++) {
        int error = find_row(r, epoch, counter / WR_DENSE_BLOCK_ENTRIES, &found, &row, &version);
        if (error) return error;
        WR_INDEX_READ_PAUSE();
        const uint8_t *extent;
        if ((error = extent_of(r, found.block / WR_DENSE_EXTENT_BLOCKS, &extent))) return error;
        const wr_index_entry *entry = (const wr_index_entry *)(extent + found.block % WR_DENSE_EXTENT_BLOCKS * WR_DENSE_BLOCK_BYTES) +
                                      counter % WR_DENSE_BLOCK_ENTRIES;
        if (!copy_versioned(entry, copy, sizeof *copy, &of_entry)) return ESTALE;
        atomic_thread_fence(memory_order_acquire);
        /* The block belonged to this group all the time: its row says goodbye before another group gets an entry of it. */
        if (atomic_load_explicit(&table_of(r)[row].version, memory_order_relaxed) != version) continue;
        return of_entry && copy->state == WR_ROW_LIVE ? 0 : ENOENT;
    }
    return ESTALE;
}

static int find_hash(wr_index_reader *r, const uint8_t id[16], wr_index_entry *copy) {
    const wr_index_row *rows = (const wr_index_row *)(r->hash + WR_PAGE_BYTES);
    uint64_t mask = ((const wr_index_header *)r->hash)->rows - 1;
    if ((r->hash_bytes - WR_PAGE_BYTES) / sizeof *rows <= mask) return EINVAL;
    for (uint64_t i = wr_id_hash(id) & mask, n = 0; n <= mask; i = (i + 1) & mask, n++) {
        wr_index_row row;
        uint32_t version;
        if (!copy_versioned(&rows[i], &row, offsetof(wr_index_row, id) + sizeof row.id, &version)) return ESTALE;
        if (version == 0 || row.state == WR_ROW_FREE) return ENOENT;
        if (row.state != WR_ROW_LIVE || memcmp(row.id, id, 16) != 0) continue;
        memcpy(copy, &row, sizeof *copy);
        return 0;
    }
    return ENOENT;
}

int wr_index_lookup(wr_index_reader *r, const uint8_t id[16], wr_index_entry *copy) {
    int error = follow(r);
    if (error) return error;
    error = wr_id_counted(id) ? find_dense(r, id, copy) : ENOENT;
    if (error == ENOENT) error = find_hash(r, id, copy);
    return replaced(r->hash) || replaced(r->dense) ? ESTALE : error;
}

void wr_index_lookup_prefetch(const wr_index_reader *r, const uint8_t id[16]) {
    if (!r->dense || !r->hash) return;
    if (wr_id_counted(id)) {
        uint64_t epoch = wr_id_epoch(id), counter = wr_id_counter(id), group = counter / WR_DENSE_BLOCK_ENTRIES;
        uint32_t memo = memo_of(epoch, group);
        if (!wr_row_some(r->memos[memo].row) || r->memos[memo].epoch != epoch || r->memos[memo].group != group) {
            uint64_t mask = ((const wr_index_header *)r->dense)->rows - 1;
            __builtin_prefetch(&table_of(r)[wr_dense_hash(epoch, group) & mask]);
            return;
        }
        uint32_t block = table_of(r)[wr_row_number(r->memos[memo].row)].block;
        const uint8_t *extent = block / WR_DENSE_EXTENT_BLOCKS < WR_INDEX_EXTENTS_MAX ? r->extents[block / WR_DENSE_EXTENT_BLOCKS] : NULL;
        if (extent)
            __builtin_prefetch((const wr_index_entry *)(extent + block % WR_DENSE_EXTENT_BLOCKS * WR_DENSE_BLOCK_BYTES) +
                               counter % WR_DENSE_BLOCK_ENTRIES);
        return;
    }
    uint64_t mask = ((const wr_index_header *)r->hash)->rows - 1;
    if ((r->hash_bytes - WR_PAGE_BYTES) / sizeof(wr_index_row) <= mask) return;
    __builtin_prefetch((const wr_index_row *)(r->hash + WR_PAGE_BYTES) + (wr_id_hash(id) & mask));
}
