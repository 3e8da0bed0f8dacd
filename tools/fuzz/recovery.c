/* Target: recovery of a store from arbitrary files. The input is some files: frames that are made right, then damaged at some places;
 * for some of them a list instead, which is right by its checksum and need not be true.
 *
 * Checked: no bad access; the index is sound and names places inside files; what a list file says and what the scan said give the same
 * store, whether applied at once or in pieces; the store serves afterwards, and a second kill and recovery gives the same again. */
#define _GNU_SOURCE
#include "framed.h"
#include "store/world.h"

enum { FILES_MAX = 4, SLOT = 7 };

static world w;
static wr_store_server *memory;
static wr_view view;
static uint8_t *region;

/* A sum over all entries that does not depend on their order. */
static uint64_t fingerprint(void) {
    wr_store *store = &w.server->stores[0];
    wr_index_cursor cursor = {0};
    uint8_t id[16];
    uint64_t sum = store->messages;
    for (wr_index_entry *entry; (entry = wr_index_next(&store->index, &cursor, id));) {
        uint64_t h = fuzz_mix(wr_get64(id)) ^ fuzz_mix(wr_get64(id + 8) + 1);
        h = fuzz_mix(h ^ ((uint64_t)entry->file << 32 | entry->offset));
        h = fuzz_mix(h ^ ((uint64_t)entry->total_size << 32 | entry->ref_count));
        sum += fuzz_mix(h ^ ((uint64_t)entry->holders << 32 | entry->meta_length));
    }
    return sum;
}

static void give(wr_store *store, const char *reason) {
    if (!reason) return;
    if (reason[0] == 'i') world_grow(&w, store);
    else world_extent(&w, store);
}

/* `lists`: by way of list files. */
static void recover(bool lists, wr_list **instead) {
    wr_store *store = &w.server->stores[0];
    for (uint64_t file = 0; file < w.next_file[0] && !w.full; file++) {
        if (!w.there[0][file]) continue;
        const char *reason;
        wr_list *list = instead[file];
        if (!list) {
            list = wr_list_scan(file, world_salt(file), world_read(&w, 0, file), WORLD_FILE_BYTES, &reason);
            FUZZ_CHECK(list);
            if (lists) {
                uint64_t n;
                uint8_t *encoded = wr_list_encode(list, WORLD_NODE, 0, &n);
                FUZZ_CHECK(encoded);
                wr_list_free(list);
                list = wr_list_decode(encoded, n, WORLD_NODE, 0, file, world_salt(file), WORLD_FILE_BYTES, &reason);
                FUZZ_CHECK(list);
                free(encoded);
            }
        }
        FUZZ_CHECK(wr_store_add_file(store, file, list->used, file, file) == 0);
        uint64_t cursor = 0;
        while (cursor != UINT64_MAX && !w.full) {
            uint64_t before = cursor;
            FUZZ_CHECK(wr_store_apply_list(store, list, &cursor, &reason) == 0);
            FUZZ_CHECK(cursor >= before && (reason || cursor == UINT64_MAX));
            give(store, reason);
        }
        if (list != instead[file]) wr_list_free(list);
    }
    FUZZ_CHECK(wr_store_finish(store) == 0);
}

static void start(void) {
    world_start(&w, memory);
    w.server->workers_all = 0;
}

/* A client writes, and is served; what it wrote is there. */
static void serve(uint64_t client_epoch, uint64_t secret) {
    wr_geometry g = wr_geometry_of(w.super);
    memset(region, 0, w.client_bytes);
    FUZZ_CHECK(wr_view_init(&view, region, w.client_bytes, &g) == 0);
    wr_link *link = &view.links[0];
    /* a ring that is not at its beginning: high waters that the files name may lie before, in or behind it */
    atomic_store(&link->head, secret & 3);
    atomic_store(&link->tail, secret & 3);
    FUZZ_CHECK(wr_store_server_attach(w.server, SLOT, 1, client_epoch, region, w.client_bytes, -1, w.epochs, true) == 0);
    uint8_t body[40] = {1, 2, 3}, id[16];
    uint64_t first = atomic_load(&link->tail), water = wr_store_water(&w.server->stores[0], client_epoch) >> 16;
    for (uint64_t i = 0; i < 3; i++) {
        wr_command *c = wr_view_command(&view, 0, first + i);
        c->op = WR_OP_STORE_WRITE;
        c->flags = WR_FLAG_SYNCED;
        wr_put64(c->id, secret >> 12);
        wr_put64(c->id + 8, i);
        c->length = sizeof body;
        atomic_store(&c->flying, WR_FLYING_WRITTEN);
    }
    memcpy(view.arena, body, sizeof body);
    atomic_store(&link->tail, first + 3);
    for (int tries = 0; atomic_load(&link->synced) < first + 3; tries++) {
        if (w.full) return;
        FUZZ_CHECK(tries < 100 && !atomic_load(&link->evicted));
        world_events(&w, wr_store_server_run(w.server, 0) & ~(uint32_t)WR_STORE_EVENT_LIST);
        world_commit(&w, 0);
    }
    for (uint64_t i = 0; i < 3; i++) {
        wr_put64(id, secret >> 12);
        wr_put64(id + 8, i);
        if (first + i >= water) world_expect(&w, 0, id, body, sizeof body);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    fuzz_input in = {data, size};
    world_superblock(&w, 0);
    if (!memory) memory = aligned_alloc(64, (sizeof *memory + 63) & ~(size_t)63);
    if (!region) region = fuzz_memory(w.client_bytes);
    uint8_t mode = fuzz8(&in);
    uint64_t secret = fuzz_secret(data, size), client_epoch = fuzz8(&in) & 7;
    uint32_t files = 1 + mode % FILES_MAX;
    wr_list *instead[FILES_MAX] = {NULL};
    w.full = false;
    bool lies = false;
    for (uint32_t file = 0; file < files; file++) {
        static uint8_t bytes[WORLD_FILE_BYTES];
        memset(bytes, 0, sizeof bytes);
        uint8_t how = fuzz8(&in);
        uint64_t n = file + 1 == files ? UINT16_MAX : fuzz16(&in);
        if (n > in.left) n = in.left;
        if (n > WORLD_FILE_BYTES - WR_FILE_HEADER_BYTES) n = WORLD_FILE_BYTES - WR_FILE_HEADER_BYTES;
        fuzz_input part = {in.at, n};
        in.at += n;
        in.left -= n;
        uint32_t damages = how & 3;
        uint32_t damage[3];
        for (uint32_t i = 0; i < damages; i++) damage[i] = fuzz32(&part);
        n = part.left;
        if (how & 4) { /* a list that lies: right head and checksum, any runs that pass decode */
            uint64_t left = n + WR_LIST_HEADER_SIZE;
            uint8_t *list = calloc(1, left);
            FUZZ_CHECK(list);
            fuzz_bytes(&part, list + WR_LIST_HEADER_SIZE, n);
            uint64_t runs = n / WR_LIST_RUN_SIZE, messages = 0, sum = 0, controls = 0;
            left = WR_LIST_HEADER_SIZE + runs * WR_LIST_RUN_SIZE;
            for (uint64_t i = 0; i < runs; i++) {
                uint8_t *run = list + WR_LIST_HEADER_SIZE + i * WR_LIST_RUN_SIZE;
                if (how & 8) { /* likely ones */
                    wr_put64(run, run[7] & 3);
                    wr_put64(run + 8, wr_get64(run + 8) & 0xfff);
                    wr_put32(run + WR_LIST_RUN_AT_COUNT, 1 + (wr_get32(run + WR_LIST_RUN_AT_COUNT) & 0xff));
                    wr_put32(run + WR_LIST_RUN_AT_TOTAL, WR_FRAME_BYTES_MIN + run[WR_LIST_RUN_AT_TOTAL + 3] % 64);
                    wr_put32(run + WR_LIST_RUN_AT_OFFSET, WR_FILE_HEADER_BYTES + (uint32_t)(i * 15000) % 55000);
                    run[WR_LIST_RUN_AT_KIND] = 1 + run[WR_LIST_RUN_AT_KIND] % 3;
                }
                uint64_t count = wr_get32(run + WR_LIST_RUN_AT_COUNT), total = wr_get32(run + WR_LIST_RUN_AT_TOTAL);
                if (run[WR_LIST_RUN_AT_KIND] == WR_KIND_MESSAGE) messages += count, sum += count * total;
                else controls += count;
            }
            memcpy(list + WR_LIST_HEADER_AT_MAGIC, WR_LIST_MAGIC, 8);
            wr_put32(list + WR_LIST_HEADER_AT_VERSION, WR_LIST_VERSION);
            wr_put64(list + WR_LIST_HEADER_AT_NODE_ID, WORLD_NODE);
            wr_put64(list + WR_LIST_HEADER_AT_FILE, file);
            wr_put64(list + WR_LIST_HEADER_AT_SALT, world_salt(file));
            wr_put64(list + WR_LIST_HEADER_AT_USED, WORLD_FILE_BYTES);
            wr_put64(list + WR_LIST_HEADER_AT_RUNS, runs);
            wr_put64(list + WR_LIST_HEADER_AT_MESSAGES, messages);
            wr_put64(list + WR_LIST_HEADER_AT_MESSAGE_BYTES, sum);
            wr_put64(list + WR_LIST_HEADER_AT_CONTROLS, controls);
            wr_put32(list + WR_LIST_HEADER_AT_CRC, wr_crc32c(0, list + 16, left - 16));
            const char *reason;
            instead[file] = wr_list_decode(list, left, WORLD_NODE, 0, file, world_salt(file), WORLD_FILE_BYTES, &reason);
            lies |= instead[file] != NULL;
            free(list);
        } else {
            static const uint8_t kinds[] = {WR_KIND_MESSAGE, WR_KIND_MESSAGE, WR_KIND_ADD_REFERENCE, WR_KIND_REMOVE, WR_KIND_MESSAGE, WR_KIND_PADDING};
            fuzz_bytes(&part, bytes + WR_FILE_HEADER_BYTES, n);
            if (how & 8) /* few ids, few epochs: references meet their messages */
                for (uint64_t at = WR_FILE_HEADER_BYTES; at + WR_FRAME_BYTES_MIN <= WR_FILE_HEADER_BYTES + n;) {
                    uint8_t *frame = bytes + at;
                    uint64_t length = frame[7] & 0x3f;
                    wr_put64(frame, WR_FRAME_BYTES_MIN - 9 + length);
                    memset(frame + WR_FRAME_AT_ID, 0, 7);
                    memset(frame + WR_FRAME_AT_ID + 8, 0, 6);
                    frame[WR_FRAME_AT_ID + 7] &= how & 16 ? 0xf3 : 3;
                    frame[WR_FRAME_AT_ID + 14] &= 1;
                    memset(frame + WR_FRAME_AT_CLIENT_EPOCH, 0, 7);
                    memset(frame + WR_FRAME_AT_SEQUENCE, 0, 7);
                    memset(frame + WR_FRAME_AT_EXTRA, 0, 3);
                    at += WR_FRAME_BYTES_MIN + length;
                }
            make_frames_right(bytes + WR_FILE_HEADER_BYTES, n, world_salt(file), kinds, sizeof kinds);
            for (uint32_t i = 0; i < damages && n; i++) bytes[WR_FILE_HEADER_BYTES + (damage[i] >> 8) % n] ^= (uint8_t)damage[i];
        }
        wr_file_header_write(bytes, WR_FILE_STORE, WORLD_NODE, 0, file, world_salt(file), 1);
        int made = memfd_create("warren-fuzz", MFD_CLOEXEC);
        FUZZ_CHECK(made >= 0 && pwrite(made, bytes, sizeof bytes, 0) == sizeof bytes);
        FUZZ_CHECK(dup3(made, world_fd(0, file), O_CLOEXEC) >= 0);
        close(made);
        w.there[0][file] = true;
        w.next_file[0] = file + 1;
    }
    start();
    recover(false, instead);
    world_check(&w);
    uint64_t once = fingerprint();
    if (!w.full) {
        world_kill(&w);
        start();
        recover(true, instead);
        world_check(&w);
        FUZZ_CHECK(w.full || fingerprint() == once);
    }
    if (!w.full && !lies) { /* a list that lies names the entries of its file no more than its bytes do */
        world_offer(&w, 0);
        world_offer(&w, 1);
        serve(client_epoch, secret);
        world_check(&w);
    }
    world_stop(&w);
    for (uint32_t file = 0; file < FILES_MAX; file++) wr_list_free(instead[file]);
    return 0;
}
