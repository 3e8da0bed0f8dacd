/* Target: what clients read: index, directory, images, other clients' regions, files. All of it is the input's, at any moment.
 *
 * Checked: no bad access; a read gives bytes of a length that fits, or an error that a caller knows; it ends. */
#define _GNU_SOURCE
#include "hostile.h"
#include "store/index.h"
#include "store/client.h"
#include <fcntl.h>
#include <sys/mman.h>

enum { FILE_BYTES = 8 * 4096, IMAGES = 2, RING = 32, DIRECTORY = 64, HASH_ROWS = 64, TABLE_ROWS = 16, FILES = 4, FILE_FD = 300, MY_SLOT = 1, OTHER_SLOT = 2 };

static wr_superblock *super;
static uint8_t *images, *hash, *dense, *extent, *own;
static _Atomic uint64_t *directory;
static wr_summary_row *summary;
static hostile other;
static wr_store_client s;
static wr_port port;
static const uint8_t **extents;
static char folder[200];
static int folder_fd = -1;

static void clean(void) {
    for (int n = 0; n < FILES; n++) {
        char path[300];
        snprintf(path, sizeof path, "%s/%d.rdq", folder, n);
        unlink(path);
    }
    rmdir(folder);
}

static wr_view *view_of(void *context, uint32_t slot, uint32_t generation) {
    (void)context;
    (void)generation;
    return slot == OTHER_SLOT ? &other.view : NULL;
}

static void once(void) {
    super = fuzz_memory(WR_SUPERBLOCK_BYTES);
    images = fuzz_memory(WR_PAGE_BYTES + IMAGES * FILE_BYTES);
    hash = fuzz_memory(WR_PAGE_BYTES + HASH_ROWS * sizeof(wr_index_row));
    dense = fuzz_memory(WR_PAGE_BYTES + TABLE_ROWS * sizeof(wr_dense_table_row));
    extent = fuzz_memory(WR_DENSE_EXTENT_BYTES);
    directory = fuzz_memory(DIRECTORY * 8);
    summary = fuzz_memory(16 * sizeof *summary);
    extents = calloc(WR_INDEX_EXTENTS_MAX, sizeof *extents);
    FUZZ_CHECK(extents);
    const char *tmp = getenv("TMPDIR");
    snprintf(folder, sizeof folder, "%s/wfuzz-XXXXXX", tmp ? tmp : "/tmp");
    FUZZ_CHECK(mkdtemp(folder));
    for (int n = 0; n < FILES; n++) {
        char path[300], to[64];
        snprintf(path, sizeof path, "%s/%d.rdq", folder, n);
        snprintf(to, sizeof to, "/proc/self/fd/%d", FILE_FD + n);
        FUZZ_CHECK(symlink(to, path) == 0);
    }
    atexit(clean);
    folder_fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    FUZZ_CHECK(folder_fd >= 0);
}

static void id_of(fuzz_input *in, uint8_t id[16]) {
    uint8_t how = fuzz8(in);
    wr_put64(id, how & 128 ? UINT64_MAX - (how & 3) : how & 3);
    wr_put64(id + 8, how >> 2 & 31);
}

/* A row that could be: its id at a place where a probe comes by. */
static void index_row(fuzz_input *in) {
    uint8_t id[16], how = fuzz8(in);
    id_of(in, id);
    wr_index_entry entry = {.file = fuzz8(in) % (FILES + 1), .offset = fuzz16(in), .total_size = fuzz16(in), .ref_count = 1, .state = WR_ROW_LIVE};
    if (how & 1) entry.offset = fuzz32(in);
    if (how & 2) entry.total_size = fuzz32(in);
    if (how & 4) entry.state = fuzz8(in);
    if (how & 8) entry.meta_length = fuzz16(in);
    atomic_store(&entry.version, how & 16 ? fuzz8(in) : 2);
    if (how & 32 && wr_id_counted(id)) {
        uint64_t group = wr_id_counter(id) / WR_DENSE_BLOCK_ENTRIES;
        uint32_t block = how & 64 ? fuzz32(in) : fuzz8(in) & 1;
        wr_dense_table_row *row = (wr_dense_table_row *)(dense + WR_PAGE_BYTES) + (wr_dense_hash(wr_id_epoch(id), group) & (TABLE_ROWS - 1));
        *row = (wr_dense_table_row){.version = 2, .state = WR_DENSE_TABLE_LIVE, .epoch = wr_id_epoch(id), .group = group, .block = block};
        if (block / WR_DENSE_EXTENT_BLOCKS) return;
        wr_index_entry *to = (wr_index_entry *)(extent + block * WR_DENSE_BLOCK_BYTES) + wr_id_counter(id) % WR_DENSE_BLOCK_ENTRIES;
        memcpy((void *)to, (const void *)&entry, sizeof entry);
    } else {
        wr_index_row *row = (wr_index_row *)(hash + WR_PAGE_BYTES) + ((wr_id_hash(id) + (how >> 7)) & (HASH_ROWS - 1));
        memcpy((void *)row, (const void *)&entry, sizeof entry);
        memcpy(row->id, id, 16);
    }
}

/* A command in somebody's ring, and its row in the directory. */
static void under_way(fuzz_input *in) {
    uint8_t id[16], how = fuzz8(in), group[16];
    id_of(in, id);
    const wr_view *view = how & 1 ? &port.view : &other.view;
    uint64_t sequence = fuzz8(in) % RING;
    wr_command *c = wr_view_command(view, 0, sequence);
    memset((void *)c, 0, sizeof *c);
    memcpy(c->id, id, 16);
    c->op = how & 2 ? WR_OP_STORE_WRITE_MANY : how & 4 ? WR_OP_STORE_REMOVE : WR_OP_STORE_WRITE;
    atomic_store(&c->flying, WR_FLYING_WRITTEN);
    c->body = how & 8 ? fuzz_size(in, super->arena_bytes) : (uint64_t)fuzz8(in) * 8;
    c->length = how & 16 ? (uint32_t)fuzz_size(in, super->arena_bytes) : fuzz8(in);
    c->count = how & 32 ? fuzz_size(in, 64) : fuzz8(in) & 15;
    if (how & 64) c->tag = (uint64_t)fuzz8(in) << 16 | (fuzz8(in) & 3);
    if (how & 128) c->meta_length = fuzz16(in);
    if (c->op == WR_OP_STORE_WRITE_MANY && c->count < 64) {
        uint8_t *blob = wr_view_blob(view, c->body, c->count * 8);
        uint32_t end = 0;
        for (uint32_t i = 0; blob && i < c->count; i++) {
            uint32_t flying = WR_FLYING_WRITTEN;
            end += fuzz8(in);
            memcpy(blob + 4 * i, &flying, 4);
            memcpy(blob + 4 * (c->count + i), &end, 4);
        }
        if (!(how & 16)) c->length = (uint32_t)c->count * 8 + end;
    }
    wr_link *link = &view->links[0];
    if (atomic_load(&link->tail) <= sequence) atomic_store(&link->tail, sequence + 1);
    wr_group_id(id, group);
    uint64_t h = wr_id_hash(c->op == WR_OP_STORE_WRITE_MANY ? group : id);
    wr_directory_insert(directory, DIRECTORY, h, wr_directory_word(h, how & 1 ? MY_SLOT : OTHER_SLOT, sequence));
}

static void frame_in_file(fuzz_input *in) {
    uint8_t id[16], frame[512], how = fuzz8(in), body[256];
    id_of(in, id);
    uint32_t file = fuzz8(in) % FILES;
    uint64_t length = fuzz8(in), at = WR_FILE_HEADER_BYTES + fuzz16(in) % (FILE_BYTES - 4096 - 512);
    fuzz_bytes(in, body, length);
    wr_frame_head head = {.kind = how & 1 ? fuzz8(in) : WR_KIND_MESSAGE, .meta_length = (uint16_t)(length / 2)};
    memcpy(head.id, id, 16);
    uint64_t total = wr_frame_write(frame, &head, NULL, 0, body, length, file + 50u);
    if (how & 2) frame[fuzz16(in) % total] ^= fuzz8(in);
    if (how & 4) {
        wr_image *image = (wr_image *)images + (how >> 3 & 1);
        atomic_store(&image->file, file + 1);
        atomic_store(&image->appended, how & 16 ? fuzz_size(in, FILE_BYTES) : FILE_BYTES);
        memcpy(images + WR_PAGE_BYTES + (how >> 3 & 1) * FILE_BYTES + at, frame, total);
    } else {
        FUZZ_CHECK(pwrite(FILE_FD + (int)file, frame, total, (off_t)at) == (ssize_t)total);
    }
    if (!(how & 32)) return;
    wr_index_row *row = (wr_index_row *)(hash + WR_PAGE_BYTES) + (wr_id_hash(id) & (HASH_ROWS - 1));
    *row = (wr_index_row){.version = 2, .state = WR_ROW_LIVE, .file = file, .offset = (uint32_t)at, .total_size = (uint32_t)total, .ref_count = 1};
    row->meta_length = how & 64 ? fuzz16(in) : head.meta_length;
    memcpy(row->id, id, 16);
}

static void read_one(fuzz_input *in) {
    uint8_t id[16], how = fuzz8(in), *to = NULL;
    id_of(in, id);
    uint32_t length = 0;
    uint16_t meta = 0;
    wr_store_client_prefetch(&s, id);
    if (how & 1) {
        int error = wr_store_client_read(&s, id, &to, &length, &meta);
        FUZZ_CHECK(error == 0 || error == ENOENT || error == ESTALE || error == EBADMSG || error == EINVAL || error == ENOMEM);
        if (error) return;
        FUZZ_CHECK(length <= FILE_BYTES + super->arena_bytes && meta <= length);
        for (uint32_t i = 0; i < length; i++) FUZZ_CHECK(to[i] || !to[i]); /* all of it is there */
        free(to);
        return;
    }
    wr_store_place place;
    int error = wr_store_client_find(&s, id, &place);
    FUZZ_CHECK(error == 0 || error == ENOENT || error == ESTALE || error == EBADMSG || error == EINVAL);
    if (error) return;
    wr_store_place_prefetch(&s, &place);
    FUZZ_CHECK(place.length <= FILE_BYTES + super->arena_bytes && place.meta_length <= place.length);
    if (how & 8) hostile_raw(&other, in); /* it changes between the two steps */
    uint8_t *meta_to = how & 2 ? NULL : malloc(place.meta_length + !place.meta_length);
    to = malloc(place.length - place.meta_length + (place.length == place.meta_length));
    FUZZ_CHECK(to && (meta_to || how & 2));
    error = wr_store_client_take(&s, id, &place, meta_to, to, how & 4);
    FUZZ_CHECK(error == 0 || error == EAGAIN || error == EINPROGRESS || error == EBADMSG || error == EUCLEAN || error == ENOENT || error == ELOOP);
    free(meta_to);
    free(to);
}

static void write_some(fuzz_input *in) {
    uint8_t id[16], how = fuzz8(in);
    id_of(in, id);
    uint64_t sequence, position;
    uint8_t *at;
    uint32_t eliminated;
    if (how & 1) {
        uint8_t ids[4][16];
        for (int i = 0; i < 4; i++) id_of(in, ids[i]);
        int error = wr_store_client_remove(&s, (const uint8_t (*)[16])ids, 1 + how % 4, &eliminated);
        FUZZ_CHECK((error == 0 && eliminated <= 4) || error == EAGAIN || error == EMSGSIZE);
    } else if (how & 2) {
        static uint8_t body[256];
        wr_store_body bodies[8];
        for (int i = 0; i < 8; i++) bodies[i] = (wr_store_body){body, fuzz8(in)};
        int error = wr_store_client_write_many(&s, id, bodies, 1 + how % 8, 0, &sequence);
        FUZZ_CHECK(error == 0 || error == EAGAIN || error == EMSGSIZE);
    } else if (wr_port_alloc(&port, how, &position, &at) == 0 && wr_store_client_write(&s, id, position, how, 0, 0, 0, &sequence) == 0) {
        wr_port_use(&port, 0, sequence);
    }
    if (how & 16) wr_port_submit(&port, 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    fuzz_input in = {data, size};
    if (!super) once();
    memset((void *)super, 0, WR_SUPERBLOCK_BYTES);
    super->servers_n = 2;
    super->ring_records = RING;
    super->delivery_slots = 2;
    super->arena_bytes = 8192;
    super->reply_bytes = 4096;
    super->message_bytes_max = super->shared_bytes_max = 8192;
    wr_geometry g = wr_geometry_of(super);
    uint64_t bytes = wr_view_bytes(&g);
    if (!own) {
        own = fuzz_memory(bytes);
        other.region = fuzz_memory(bytes);
    }
    other.bytes = bytes;
    memset(own, 0, bytes);
    memset(other.region, 0, bytes);
    memset(images, 0, WR_PAGE_BYTES + IMAGES * FILE_BYTES);
    memset(hash, 0, WR_PAGE_BYTES + HASH_ROWS * sizeof(wr_index_row));
    memset(dense, 0, WR_PAGE_BYTES + TABLE_ROWS * sizeof(wr_dense_table_row));
    memset((void *)directory, 0, DIRECTORY * 8);
    memset(extent, 0, 2 * WR_DENSE_BLOCK_BYTES);
    memset((void *)summary, 0, 16 * sizeof *summary);
    ((wr_index_header *)hash)->rows = HASH_ROWS;
    ((wr_index_header *)dense)->rows = TABLE_ROWS;
    atomic_store(&wr_superblock_server(super, 0)->generation, 1);
    atomic_store(&wr_superblock_server(super, 0)->index_generation, 1);
    atomic_store(&wr_superblock_slot(super, OTHER_SLOT)->claim, 9ull << 32 | 1 << 8 | WR_SLOT_ACTIVE);
    FUZZ_CHECK(wr_view_init(&other.view, other.region, bytes, &g) == 0);
    FUZZ_CHECK(wr_port_init(&port, super, own, bytes, MY_SLOT, 1, 5) == 0);
    for (int n = 0; n < FILES; n++) {
        uint8_t header[WR_FILE_HEADER_BYTES];
        int made = memfd_create("warren-fuzz", MFD_CLOEXEC);
        FUZZ_CHECK(made >= 0 && ftruncate(made, FILE_BYTES) == 0 && dup3(made, FILE_FD + n, O_CLOEXEC) >= 0);
        close(made);
        wr_file_header_write(header, n == 3 ? WR_FILE_JOURNAL : WR_FILE_STORE, 77, 0, (uint64_t)n, (uint64_t)n + 50, 1);
        FUZZ_CHECK(pwrite(FILE_FD + n, header, sizeof header, 0) == sizeof header);
    }
    memset((void *)extents, 0, WR_INDEX_EXTENTS_MAX * sizeof *extents);
    extents[0] = extent;
    s = (wr_store_client){.port = &port, .directory = directory, .directory_rows = DIRECTORY, .summary = summary, .summary_rows = 16, .images = images,
                          .images_n = IMAGES, .file_bytes = FILE_BYTES, .directory_fd = folder_fd, .node_id = 77, .view_of = view_of, .index_open = true};
    /* The index is here already: what would be mapped under its names. */
    s.index = (wr_index_reader){.super = super, .generation = 1, .index_generation = 1, .dense = dense, .hash = hash, .extents = extents,
                                .dense_bytes = WR_PAGE_BYTES + TABLE_ROWS * sizeof(wr_dense_table_row),
                                .hash_bytes = WR_PAGE_BYTES + HASH_ROWS * sizeof(wr_index_row)};
    uint8_t *regions[] = {hash, dense, (uint8_t *)directory, images, extent};
    const size_t sizes[] = {WR_PAGE_BYTES + HASH_ROWS * sizeof(wr_index_row), WR_PAGE_BYTES + TABLE_ROWS * sizeof(wr_dense_table_row), DIRECTORY * 8,
                            WR_PAGE_BYTES + IMAGES * FILE_BYTES, 2 * WR_DENSE_BLOCK_BYTES};
    for (int steps = 0; in.left && steps < 300; steps++) {
        uint8_t what = fuzz8(&in);
        switch (what % 8) {
        case 0: { /* any bytes anywhere */
            uint32_t which = what >> 4 & 7, n = fuzz8(&in);
            if (which >= 5) {
                hostile_raw(&other, &in);
                break;
            }
            size_t at = fuzz32(&in) % sizes[which];
            if (n > sizes[which] - at) n = (uint32_t)(sizes[which] - at);
            if (n > in.left) n = (uint32_t)in.left;
            fuzz_bytes(&in, regions[which] + at, n);
            break;
        }
        case 1:
            index_row(&in);
            break;
        case 2:
            under_way(&in);
            break;
        case 3:
            frame_in_file(&in);
            break;
        case 4:
            write_some(&in);
            break;
        case 5:
            hostile_link(what & 16 ? &other : &(hostile){.view = port.view, .region = own, .bytes = bytes}, &in, 0);
            break;
        default:
            read_one(&in);
            break;
        }
    }
    for (uint32_t i = 0; i < WR_STORE_FILES; i++)
        if (wr_file_some(s.files[i].file)) close(s.files[i].fd);
    for (int n = 0; n < FILES; n++) close(FILE_FD + n);
    wr_port_free(&port);
    return 0;
}
