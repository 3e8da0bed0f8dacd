/* What is appended to the current file, and whether it is durable. Invariants: store/store.h. Crash point: roll. */
#include "store/append.h"
#include "ipc/core/crash.h"

/* The log has left the file in this image. */
static void rolled_from(wr_store *store, uint32_t image) {
    const wr_image *old = (const wr_image *)store->images + image;
    wr_store_file_current(store, atomic_load_explicit(&old->appended, memory_order_relaxed));
    wr_crash_point(store->server->super, WR_CRASH_ROLL);
}

uint8_t *wr_store_reserve(wr_store *store, uint64_t bytes, uint64_t *offset, bool *too_big) {
    bool rolled = false;
    uint32_t image = store->state->image;
    uint8_t *to = wr_log_reserve(store->log, bytes, offset, &rolled);
    *too_big = !to && errno == EMSGSIZE;
    if (rolled) rolled_from(store, image);
    return to;
}

bool wr_store_leave_current(wr_store *store) {
    uint32_t image = store->state->image;
    if (wr_log_leave(store->log)) return false;
    rolled_from(store, image);
    return true;
}

uint8_t *wr_store_reserve_new(wr_store *store, uint64_t bytes, uint64_t *offset, bool *too_big) {
    *too_big = false;
    return wr_log_scarce(store->log, bytes) ? NULL : wr_store_reserve(store, bytes, offset, too_big);
}

void wr_store_spoil_list(wr_store *store) {
    wr_list_free(store->list);
    store->list = NULL;
}

uint64_t wr_store_log_mark(const wr_store *store) {
    if (!store->persistent || !wr_file_some(store->current)) return 0;
    if (store->state->append <= WR_FILE_HEADER_BYTES) return store->rolled_mark; /* the header page alone is never sealed */
    return wr_store_mark_of(store->current, store->state->append);
}

bool wr_store_log_durable(wr_store *store, uint64_t mark) {
    /* SYNC durable-mark: pairs with the release in wr_store_log_done */
    if (mark <= atomic_load_explicit(&store->durable_mark, memory_order_acquire)) return true;
    if (!wr_log_look(store->log)->failed) store->want_sync = store->force_sync = true;
    return false;
}
