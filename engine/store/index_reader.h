/* The store's index as readers of any process see it: clients, queue workers, the collector. Layout and protocol: design note 003, section 1.
 *
 * Regions are opened by their POSIX names, read only, and mapped by the reader itself; extents when they are first needed.
 * Every copy is re-checked, so a reader never takes a half-changed row for a true one, whoever is killed where.
 * One thread at a time.
 */
#ifndef WR_INDEX_READ_H
#define WR_INDEX_READ_H
#include "store/directory.h"

#define WR_INDEX_EXTENTS_MAX 4096
#define WR_INDEX_READER_MEMOS 512 /* power of two */

typedef struct {
    wr_superblock *super;
    uint32_t server;
    uint64_t generation;       /* of the dense regions mapped now, 0: none */
    uint64_t index_generation; /* of the hash table mapped now */
    const uint8_t *dense;      /* header page + dense table */
    uint64_t dense_bytes;
    const uint8_t *hash;       /* header page + rows */
    uint64_t hash_bytes;
    const uint8_t **extents;   /* WR_INDEX_EXTENTS_MAX pointers, NULL: not mapped yet */
    struct {
        uint64_t epoch, group;
        wr_row_ref row;
    } memos[WR_INDEX_READER_MEMOS]; /* rows of the dense table that were found: hints only */
} wr_index_reader;

int wr_index_reader_init(wr_index_reader *r, wr_superblock *super, uint32_t server); /* 0, ENOMEM */
/* Unmap everything. */
void wr_index_reader_close(wr_index_reader *r);

/* 0 and a copy of the entry; ENOENT; ESTALE (the server is about to replace its regions: try again, or wait for it); EINVAL (there is no
 * index in that memory); or an errno of opening a region. Opens what is needed and follows generations by itself. */
int wr_index_lookup(wr_index_reader *r, const uint8_t id[16], wr_index_entry *copy);
/* Fetch what a lookup of this id will touch; never waits, never fails. */
void wr_index_lookup_prefetch(const wr_index_reader *r, const uint8_t id[16]);
#endif
